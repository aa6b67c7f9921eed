"""Where deltas lie, and who adds to them."""

from __future__ import annotations

import sys

import pytest

from blobnet import layers
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning.deltas import place_deltas
from blobnet.planning.placement import place_outputs
from blobnet.planning.roles import assign_roles
from tests.planning.stages import Stages, request_for, stages


def where(found: Stages) -> dict[str, tuple[str, int, int]]:
    vertices = found.request.graph.vertices
    return {
        vertices[index].name: (region.storage.name, region.unit_offset, region.units)
        for index, region in found.deltas.regions.items()
    }


def three_readers() -> Graph:
    images = layers.Input(2, 4, 5, name="images")()
    node = layers.Conv2D(3, 1, name="node")(images)
    parts = [layers.Conv2D(3, 3, padding=1, name=name)(node) for name in ("first", "second")]
    return from_nodes(images, layers.Concat(name="join")([*parts, node]))


def test_the_reader_that_runs_backward_first_sets_and_the_others_add() -> None:
    found = stages(request_for(three_readers()))
    first, second, join = (found.index(name) for name in ("first", "second", "join"))
    assert found.deltas.accumulate == {
        (join, 0): False,
        (join, 1): False,
        (join, 2): False,
        (second, 0): True,
        (first, 0): True,
    }


def test_deltas_of_a_concat_lie_in_its_own() -> None:
    # Not so that of the third input: what else reads it adds to its delta, while the first two are still to be read.
    found = where(stages(request_for(three_readers())))
    assert found["first"] == ("join delta", 0, 3)
    assert found["second"] == ("join delta", 3, 3)
    assert found["join"] == ("join delta", 0, 9)
    assert found["node"] == ("join delta", 6, 3)
    apart = where(stages(request_for(three_readers(), share=False)))
    assert {name: region[0] for name, region in apart.items()} == {name: f"{name} delta" for name in found}


def test_there_are_deltas_only_where_they_are_wanted() -> None:
    assert "images" not in where(stages(request_for(three_readers())))
    assert "images" in where(stages(request_for(three_readers(), input_delta=True)))
    assert where(stages(request_for(three_readers(), training=False, input_delta=True))) == {}
    frozen = ("node/weight", "node/bias", "first/weight", "first/bias")
    assert set(where(stages(request_for(three_readers(), frozen=frozen)))) == {"second", "join"}


def test_a_sum_shares_its_delta_unless_a_reader_adds_to_it_too_early() -> None:
    images = layers.Input(2, 4, 5, name="images")()
    node = layers.Conv2D(2, 1, name="node")(images)
    branch = layers.Conv2D(2, 1, name="branch")(node)
    found = where(stages(request_for(from_nodes(images, layers.Add(name="sum")([branch, node])))))
    # The branch adds to the delta of the node, and still reads its own: they are not in one place.
    assert found["branch"] != found["node"]
    assert "sum delta" in (found["branch"][0], found["node"][0])


def test_an_absorbed_activation_has_the_delta_of_its_norm() -> None:
    images = layers.Input(2, 4, 5)()
    norm = layers.BatchNorm(name="norm")(layers.Conv2D(2, 1)(images))
    graph = from_nodes(images, layers.Conv2D(1, 1)(layers.Activation("relu", name="relu")(norm)))
    found = where(stages(request_for(graph)))
    assert found["norm"] == found["relu"]


def cut(*ends: tuple[int, int]) -> Graph:
    images = layers.Input(2, 4, 5, name="images")()
    node = layers.Conv2D(6, 1, name="node")(images)
    parts = [layers.Slice((end,), name=f"part {place}")(node) for place, end in enumerate(ends)]
    convolved = [layers.Conv2D(2, 1, name=f"of {part.layer.name}")(part) for part in parts]
    return from_nodes(images, layers.Concat(name="join")(convolved))


def test_deltas_of_slices_lie_in_that_of_their_input_if_they_are_all_of_it() -> None:
    found = stages(request_for(cut((0, 2), (4, 6), (2, 4))))
    places = where(found)
    assert [places[f"part {place}"] for place in range(3)] == [("node delta", first, 2) for first in (0, 4, 2)]
    assert places["node"] == ("node delta", 0, 6)
    assert not any(found.deltas.accumulate.values())
    assert not [item.call.label for item in found.calls if item.call.label.startswith("part")]


@pytest.mark.parametrize("ends", [((0, 2), (2, 5)), ((0, 4), (3, 6)), ((0, 6), (0, 6))], ids=str)
def test_other_slices_add_to_the_delta_of_their_input(ends: tuple[tuple[int, int], ...]) -> None:
    found = stages(request_for(cut(*ends)))
    places = where(found)
    assert {places[f"part {place}"][0] for place in range(2)} == {"part 0 delta", "part 1 delta"}
    first, second = (found.index(f"part {place}") for place in range(2))
    assert (found.deltas.accumulate[second, 0], found.deltas.accumulate[first, 0]) == (False, True)
    labels = {item.call.label.split(":")[0] for item in found.calls}
    assert {label for label in labels if label.startswith("part")} == {
        f"part {place} backward data" for place in range(2)
    }


def test_deltas_that_cannot_be_shared_say_why() -> None:
    images = layers.Input(2, 4, 5, name="images")()
    node = layers.Conv2D(2, 1, name="node")(images)
    branch = layers.Conv2D(2, 1, name="branch")(node)
    total = layers.Add(name="sum")([branch, node])
    flat = layers.Flatten(name="flat")(layers.Add(name="double")([total, total]))

    def told(**options: bool) -> dict[tuple[str, int], str]:
        graph = from_nodes(images, layers.Concat(name="join")([flat]))
        found = stages(request_for(graph, **options))
        reasons = found.deltas.copy_reasons
        return {(graph.vertices[index].name, position): why for (index, position), why in reasons.items()}

    assert told() == {
        ("flat", 0): "double is (2, 4, 5), which is no part of (40)",
        ("double", 0): "sum comes in more than once",
        ("sum", 1): "another reader adds to node or branch too early",
    }
    assert set(told(share=False).values()) == {"no memory is shared"}


def calls_of_planning(readers: int, kind: str) -> int:
    """How many functions the passes of places call where one tensor has so many readers, which a concat joins."""
    images = layers.Input(2, 4, 5)()
    node = layers.Conv2D(3, 1)(images)
    outputs = [layers.Conv2D(1, 1)(node) for _ in range(readers)]
    if kind == "in place":
        outputs = [layers.Activation("relu")(own) for own in outputs]
    if kind == "sums":
        outputs = [node + own for own in outputs]
    request = request_for(from_nodes(images, layers.Concat()(outputs)))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    roles = assign_roles(request)
    sys.setprofile(count)
    try:
        place_deltas(request, roles, place_outputs(request, roles))
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", ["plain", "in place", "sums"])
def test_planning_takes_time_in_proportion_to_the_readers(kind: str) -> None:
    assert calls_of_planning(400, kind) < 5 * calls_of_planning(100, kind)
