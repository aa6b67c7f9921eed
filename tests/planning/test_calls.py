"""From layouts to launches: sites, fusion, schedule, and which calls are constant."""

from __future__ import annotations

import copy
import math
from collections import Counter

import pytest

from blobnet import layers, models
from blobnet.device.discovery import tuning_of
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.launch.elementwise import FUNCTIONS, SUM, EpilogueOp, Norm
from blobnet.launch.kernel_call import CONSTANT, PRECISIONS
from blobnet.losses import CrossEntropy
from blobnet.network.graph import Graph, from_nodes, sequential
from blobnet.planning import make_plan
from blobnet.planning.constants import with_constants
from blobnet.planning.fusion import fuse
from blobnet.planning.memory import allocate
from blobnet.planning.schedule import halos_read, schedule
from blobnet.planning.sites import make_sites
from tests.kinds import tuning_for
from tests.planning.stages import request_for, stages
from tests.small_graphs import KNOWN_GRAPHS


def block(*behind: layers.Layer) -> Graph:
    images = layers.Input(2, 6, 5, name="images")()
    first = layers.Conv2D(3, 1, name="first")(images)
    norm = layers.BatchNorm(name="norm")(layers.Conv2D(3, 3, padding=1, name="second")(first))
    node = layers.Activation("relu", name="relu")(layers.Add(name="sum")([norm, first]))
    for layer in behind:
        node = layer(node)
    return from_nodes(images, node)


# -- sites -------------------------------------------------------------------------------------------------------------


def test_a_site_says_what_its_layer_reads_and_writes() -> None:
    found = stages(request_for(block(), frozen=("second/weight",)))
    first, second, norm = (found.fusion.sites[found.index(name)] for name in ("first", "second", "norm"))
    assert second.inputs == (first.output,)
    assert second.input_deltas == (first.output_delta,)
    assert first.input_deltas == (None,)
    assert (first.accumulate, second.accumulate) == ((False,), (True,))
    assert norm.output_delta is not None
    assert (second.name, second.ordinal, second.batch_size) == ("second", 2, 3)
    assert (second.frozen, norm.frozen) == ({"weight"}, set())


def test_the_gradient_of_a_frozen_parameter_is_work_space() -> None:
    found = stages(request_for(block(), frozen=("second/weight",)))
    second, slices = found.fusion.sites[found.index("second")], found.request.parameters.slices
    assert second.parameter("weight").offset == slices["second/weight"].offset
    assert (second.parameter("weight").storage, second.gradient("bias").storage) == ("parameters", "gradients")
    assert second.gradient("bias").offset == slices["second/bias"].offset
    frozen = second.gradient("weight")
    assert (frozen.storage, frozen.elements, frozen.persistent) == ("second/weight gradient", 3 * 3 * 9, False)
    assert second.memory("mine", 7, 2).storage == "second/mine"
    assert second.shared("rows").persistent


def test_the_slope_of_an_absorbed_activation_is_its_norms() -> None:
    chain = [layers.Conv2D(2, 1), layers.BatchNorm(name="norm"), layers.Activation("relu", name="relu")]
    found = stages(request_for(sequential([layers.Input(2, 6, 5), *chain, layers.Conv2D(1, 1)])))
    (step,) = found.fusion.sites[2].fused_activations
    assert step == layers.Activation("relu").nonlinearity.step
    assert not any(site.fused_activations for index, site in enumerate(found.fusion.sites) if index != 2)


# -- fusion ------------------------------------------------------------------------------------------------------------


def test_the_layers_in_place_behind_a_product_are_its_epilogue() -> None:
    inference = stages(request_for(block(), training=False))
    first, second, norm, total, relu = (inference.index(name) for name in ("first", "second", "norm", "sum", "relu"))
    assert inference.fusion.computed_by == {norm: second, total: second, relu: second}
    epilogue = inference.fusion.sites[second].epilogue
    assert [type(step) for step in epilogue] == [Norm, EpilogueOp, EpilogueOp]
    assert [step.expression for step in epilogue[1:]] == [SUM, FUNCTIONS["relu"].value]
    assert epilogue[1].blob == inference.fusion.sites[first].output
    assert not any(site.epilogue for index, site in enumerate(inference.fusion.sites) if index != second)
    assert stages(request_for(block())).fusion.computed_by == {total: norm, relu: norm}


# -- schedule ----------------------------------------------------------------------------------------------------------


def test_calls_come_in_the_order_of_the_phases_and_say_whose_they_are() -> None:
    found = stages(request_for(block()))
    assert [phase for phase, _ in Counter(item.phase for item in found.calls).items()] == [
        "forward",
        "loss",
        "backward",
    ]
    order = {"forward": [], "backward": []}  # type: dict[str, list[int]]
    for item in found.calls:
        assert (item.vertex is None) == (item.phase == "loss") == (item.call.owner is found.request.loss)
        if item.vertex is not None:
            assert item.call.vertex == item.vertex
            assert item.call.owner is found.request.graph.vertices[item.vertex].layer
            order[item.phase].append(item.vertex)
            wanted = {FORWARD} if item.phase == "forward" else {BACKWARD_WEIGHTS, BACKWARD_DATA}
            assert item.call.direction in wanted
    assert order["forward"] == sorted(order["forward"])
    assert order["backward"] == sorted(order["backward"], reverse=True)
    assert not set(order["forward"]) & found.fusion.computed_by.keys()


def test_frozen_layers_have_no_gradients_and_those_before_no_backward_calls() -> None:
    frozen = ("first/weight", "first/bias", "second/weight", "second/bias", "norm/scale", "norm/shift")
    found = stages(request_for(block(layers.Conv2D(2, 1, name="last")), frozen=frozen))
    backward = {(item.call.owner.name, item.call.direction) for item in found.calls if item.phase == "backward"}
    assert backward == {("last", BACKWARD_WEIGHTS)}


def test_halos_are_read_by_the_calls_that_say_so() -> None:
    found = stages(request_for(block()))
    read = halos_read(found.calls)
    assert read == {
        (item.vertex, name) for item in found.calls if item.vertex is not None for name in item.call.halos_read
    }
    storage = found.fusion.sites[found.index("first")].output.storage
    assert (found.index("second"), storage) in read
    assert halos_read([]) == set()


# -- constants ---------------------------------------------------------------------------------------------------------


def test_calls_on_parameters_alone_are_constant_unless_these_are_trained() -> None:
    graph = KNOWN_GRAPHS["plain"]()
    scheduled = stages(request_for(graph, training=False, tuning=tuning_for("cpu"))).calls
    calls = [(item.phase, item.call) for item in scheduled]
    found = with_constants(calls, 0)
    first = [call for phase, call in found if phase == CONSTANT]
    assert first, "the test needs weights that are packed"
    assert found[: len(first)] == tuple((CONSTANT, call) for call in first)
    assert found[len(first) :] == tuple(item for item in calls if item[1] not in first)
    for call in first:
        assert not call.global_size.grows
        assert not call.storages("write", "update") & {"parameters"}
    everything = request_for(graph).parameters.elements
    assert with_constants(calls, everything) == tuple(calls)


# -- all of them -------------------------------------------------------------------------------------------------------


def test_no_pass_changes_what_it_is_given() -> None:
    for name, make in KNOWN_GRAPHS.items():
        for training in (True, False):
            found = stages(request_for(make(), training=training))
            before = copy.deepcopy((found.roles, found.places, found.deltas, found.layouts))
            sites = make_sites(found.request, found.roles, found.places, found.deltas, found.layouts)
            again = fuse(found.request.graph, found.places, sites)
            calls = schedule(found.request, found.roles, again)
            allocate(found.request, with_constants([(item.phase, item.call) for item in calls], 0))
            assert (found.roles, found.places, found.deltas, found.layouts) == before, name
            assert calls == found.calls, name


def test_a_plan_is_what_was_asked_for_and_more() -> None:
    request = request_for(block())
    plan = make_plan(
        request.graph, 3, loss=request.loss, training=True, tuning=request.tuning, parameters=request.parameters
    )
    assert plan.request == request
    assert plan.for_batch(3) == plan
    assert plan.for_batch(4).batch_size == 4


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compilers_are_told_of_large_work_groups(precision: str) -> None:
    """Else NVIDIA's may give work-items more registers than so many can have, which the launch finds out."""
    gpu = tuning_for("gpu", compute_units=132, group_size=1024, local_memory=48 << 10, capability=(9, 0))
    tuning = tuning_of(gpu.model, precision, PRECISIONS[precision][1], gpu.padding, gpu.choices)
    graph = models.resnet18((3, 64, 64)).graph
    calls = [call for _, call in make_plan(graph, 128, loss=CrossEntropy(), training=True, tuning=tuning).calls]
    groups = {call.source.name: call.source.text for call in calls if math.prod(call.local_size or ()) > 256}
    assert {"normalization/forward_unit", "normalization/backward_unit"} <= set(groups)
    for name, text in groups.items():
        assert "reqd_work_group_size" in text, name
