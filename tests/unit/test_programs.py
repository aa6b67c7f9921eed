"""How many programs a plan needs: what differs only in sizes has the same one (docs/kernels.md)."""

from __future__ import annotations

import pytest

import blobnet as bn
from blobnet.device.tuning import Tunings
from blobnet.launch.kernel_call import Tuning
from blobnet.losses import CrossEntropy
from blobnet.models import densenet121, resnet50
from blobnet.models.mobilenet_v2 import mobilenet_v2
from blobnet.planning import make_plan
from tests.kinds import tuning_for

#: An NVIDIA H200 (blobnet/device/tunings/nvidia_h200.json).
GPU = tuning_for("gpu", compute_units=132, group_size=1024, local_memory=49152)
TUNED = tuning_for(
    "gpu", compute_units=132, group_size=1024, local_memory=49152, choices=Tunings({"device": "NVIDIA H200"}).choices
)


@pytest.fixture(scope="module", params=[resnet50, mobilenet_v2], ids=lambda network: network.__name__)
def network(request: pytest.FixtureRequest) -> bn.Model:
    model: bn.Model = request.param()
    return model


@pytest.mark.parametrize("tuning", [GPU, TUNED], ids=["untuned", "tuned"])
def test_programs_of_a_training_step_on_a_gpu(network: bn.Model, tuning: Tuning) -> None:
    """A first step waits for all of them to be built."""
    plan = make_plan(network.graph, 64, training=True, loss=CrossEntropy(), tuning=tuning)
    programs = {call.assemble() for _, call in plan.calls}
    assert len(programs) <= 145 < len(plan.calls)
    assert not any(call.constant_sizes for _, call in plan.calls)


def test_kernels_that_move_data_have_one_program_each(network: bn.Model) -> None:
    plan = make_plan(network.graph, 64, training=True, loss=CrossEntropy(), tuning=GPU)
    for kernel in ("blob/zero_halo", "convolution/pack_weight", "gradient/reduce", "normalization/forward_statistics"):
        calls = [call for _, call in plan.calls if call.kernel == kernel]
        assert sum(len(call.each) for call in calls) > 3
        for are_combined in (True, False):
            programs = {call.assemble() for call in calls if bool(call.combines) == are_combined}
            assert len(programs) <= 1, kernel


def test_norms_of_a_deep_network_share_programs_on_a_cpu() -> None:
    """They have as many sizes as layers; products, which are faster with constants, have a program for each."""
    plan = make_plan(densenet121().graph, 1, tuning=tuning_for("cpu"))
    norms = [call for _, call in plan.calls if call.kernel == "normalization/forward_inference"]
    assert len(norms) > 50
    assert len({call.assemble() for call in norms}) <= 16
    assert {call.constant_sizes for _, call in plan.calls if call.kernel.startswith("convolution/forward")} == {True}
