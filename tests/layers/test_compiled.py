"""The compiler of contractions as an implementation of convolutions and dense layers."""

from __future__ import annotations

from typing import Any

import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.implementations import IMPLEMENTATIONS
from blobnet.launch.kernel_call import KernelCall
from blobnet.launch.task import Task, TunedChoices, Variant
from blobnet.layers import Conv1D, Conv2D, Dense
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning import Plan, make_plan
from tests.kinds import tuning_for
from tests.layers import test_dense
from tests.layers.test_convolution import contract

OTHERS = frozenset(variant for name, item in IMPLEMENTATIONS.items() if name != "compiled" for variant in item.variants)
CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    "groups, phases without taps": (Conv2D(6, (1, 2), stride=2, groups=3, bias="position"), Shape(9, 7, 8)),
    "dilation over the stride": (Conv2D(7, 3, stride=2, dilation=3, padding="same"), Shape(6, 7, 8)),
    "depthwise": (Conv2D(12, 3, groups=6, padding=((2, 0), (0, 1)), bias=False), Shape(6, 5, 9)),
    "one row": (Conv1D(4, 3, dilation=2, padding=(2, 1)), Shape(3, 17)),
}


def is_compiled(call: KernelCall) -> bool:
    return call.way is not None and call.way.variant == "compiled"


@pytest.mark.parametrize("case", CASES)
def test_every_arrangement(device: Device, case: str) -> None:
    """With the epilogues that are fused, and with one that is a launch of its own."""
    layer, shape = CASES[case]
    tuning = tuning_for("cpu", only={"compiled"})
    report = contract(device, layer, shape, fused=("relu", "gelu"), absolute=5e-5, tuning=tuning)
    for run in report.runs.values():
        assert all(any(map(is_compiled, calls)) for calls in run.calls.values() if calls)


@pytest.mark.parametrize("shape", [Shape.flat(19), Shape(3, 4, 5)], ids=str)
def test_dense_layers(device: Device, shape: Shape) -> None:
    tuning = tuning_for("gpu", only={"compiled"})
    report = test_dense.contract(device, Dense(7), shape, kernels=None, fused=("sigmoid",), tuning=tuning)
    for run in report.runs.values():
        assert all(any(map(is_compiled, calls)) for calls in run.calls.values() if calls)


def test_it_is_what_is_left_where_all_else_is_broken(device: Device) -> None:
    for kind in ("cpu", "gpu"):
        tuning = tuning_for(kind, broken=OTHERS)
        report = contract(device, Conv2D(5, 3, stride=(1, 2), padding=1), Shape(4, 6, 7), ["tight"], tuning=tuning)
        for run in report.runs.values():
            assert all(any(map(is_compiled, calls)) for calls in run.calls.values() if calls)


def plan_of(graph: Graph, kind: str, **settings: Any) -> Plan:
    tuning = tuning_for(kind, **settings)
    return make_plan(graph, 2, loss=MeanSquaredError(), training=True, tuning=tuning, input_delta=True)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_it_is_chosen_where_it_is_asked_for_or_was_measured_as_the_fastest(kind: str) -> None:
    source = layers.Input(4, 6, 7)()
    graph = from_nodes(source, layers.Dense(3)(layers.Conv2D(5, 3)(source)))
    choices = TunedChoices(({Task("backward weights", "4x6x7:5k3", 2): Variant("compiled")},))
    for settings, expected in (
        ({}, set()),
        ({"only": {"compiled"}}, {("conv2d_1", phase) for phase in ("forward", "backward data", "backward weights")}
            | {("dense_1", phase) for phase in ("forward", "backward data", "backward weights")}),
        ({"choices": choices}, {("conv2d_1", "backward weights")}),
    ):  # fmt: skip
        calls = [call for _, call in plan_of(graph, kind, **settings).calls if is_compiled(call)]
        assert {(call.label.split()[0], call.direction) for call in calls} == expected


def test_no_device_of_guesses_alone_gets_it_untuned() -> None:
    """Where no measured tile fits, a hand-written kernel with a tile that nobody measured comes first."""
    source = layers.Input(40, 9, 9)()
    graph = from_nodes(source, layers.Conv2D(70, 3)(source))
    plan = plan_of(graph, "gpu", registers=64, compute_units=16)
    assert not any(is_compiled(call) for _, call in plan.calls)


def test_backward_reads_the_delta_with_its_zeros_and_packs_a_factor() -> None:
    """A copy of the delta has no zeros around it, so that loops would be clamped, and nothing can be packed then."""
    source = layers.Input(256, 14, 14)()
    plan = plan_of(from_nodes(source, layers.Conv2D(256, 3, padding=1)(source)), "cpu", only={"compiled"}, lanes=16)
    calls = [call for _, call in plan.calls if is_compiled(call)]
    for direction in ("backward weights", "backward data"):
        packing, product = (call for call in calls if call.direction == direction)
        assert packing.moves
        assert "; pack " in product.assemble()
        assert "constraint" not in product.assemble()
