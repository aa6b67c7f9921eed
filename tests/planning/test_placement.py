"""Where blobs lie, before they have layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from blobnet import layers
from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning.placement import Occupied, Places, Region, place_outputs
from blobnet.planning.roles import assign_roles
from tests.planning.stages import request_for


def places_of(graph: Graph, **options: bool) -> tuple[Places, dict[str, tuple[str, int, int]]]:
    request = request_for(graph, **options)
    places = place_outputs(request, assign_roles(request))
    where = {
        vertex.name: (region.storage.name, region.unit_offset, region.units)
        for vertex, region in zip(graph.vertices, places.regions, strict=True)
    }
    return places, where


def test_regions_overlap_where_they_have_units_in_common() -> None:
    rng, occupied = np.random.default_rng(0), Occupied()
    storage = Region.whole("a", Shape(24, 4, 5)).storage
    regions = [Region(storage, start, 1 + int(rng.integers(24 - start))) for start in rng.integers(0, 24, 80).tolist()]
    for index, region in enumerate(regions):
        occupied.add(index, region)
    for index in range(0, 80, 3):
        occupied.remove(index, regions[index])
    for asked in regions:
        units = set(range(asked.unit_offset, asked.unit_offset + asked.units))
        wanted = {
            index
            for index, own in enumerate(regions)
            if index % 3 and units & set(range(own.unit_offset, own.unit_offset + own.units))
        }
        found = list(occupied.within(asked))
        assert sorted(itertools.chain.from_iterable(found)) == sorted(wanted)
        assert all(own == sorted(own) for own in found)


def joined() -> Graph:
    images = layers.Input(2, 4, 5, name="images")()
    first = layers.Conv2D(3, 1, name="first")(images)
    second = layers.Conv2D(4, 1, name="second")(images)
    inner = layers.Concat(name="inner")([first, second])
    outer = layers.Concat(name="outer")([layers.Conv2D(1, 1, name="third")(images), inner])
    return from_nodes(images, layers.Conv2D(2, 1, name="last")(outer))


def test_joins_lie_in_each_other_through_unit_offsets() -> None:
    places, where = places_of(joined())
    assert where == {
        "images": ("images output", 0, 2),
        "first": ("outer output", 1, 3),
        "second": ("outer output", 4, 4),
        "inner": ("outer output", 1, 7),
        "third": ("outer output", 0, 1),
        "outer": ("outer output", 0, 8),
        "last": ("last output", 0, 2),
    }
    assert places.in_place_of == {}


def test_nothing_is_joined_that_may_not_be_shared() -> None:
    places, where = places_of(joined(), share=False)
    assert where == {name: (f"{name} output", 0, units) for name, (_, _, units) in places_of(joined())[1].items()}
    assert places.in_place_of == {}


def test_a_layer_runs_in_place_unless_somebody_reads_later() -> None:
    images = layers.Input(2, 4, 5, name="images")()
    node = layers.Conv2D(2, 1, name="node")(images)
    alone = from_nodes(images, layers.Activation("relu", name="relu")(node))
    places, where = places_of(alone, training=False)
    assert where["node"] == where["relu"] == ("relu output", 0, 2)
    assert places.in_place_of == {alone.output.index: 0}
    read = layers.Concat(name="both")([layers.Activation("relu", name="relu")(node), node])
    _, where = places_of(from_nodes(images, read), training=False)
    assert where["node"][1] != where["relu"][1]
    # The derivative of gelu needs what was there before.
    kept = from_nodes(images, layers.Activation("gelu", name="gelu")(node))
    assert places_of(kept)[0].in_place_of == {}
    assert places_of(kept, training=False)[0].in_place_of == {kept.output.index: 0}


def test_a_flat_vertex_keeps_planes_if_its_readers_can_do_with_them() -> None:
    images = layers.Input(2, 4, 5)()
    flat = layers.Flatten()(layers.Conv2D(3, 1)(images))
    read_by_dense, _ = places_of(from_nodes(images, layers.Dense(2)(flat)))
    assert read_by_dense.planes[2] == Shape(3, 4, 5)
    result, _ = places_of(from_nodes(images, flat))
    assert result.planes[2] == Shape(60)


def cut() -> Graph:
    images = layers.Input(2, 4, 5, name="images")()
    node = layers.Conv2D(7, 1, name="node")(images)
    whole, rest = layers.Slice(((0, -2), None), name="most")(node), layers.Slice(((-2, None),), name="rest")(node)
    part = layers.Activation("tanh", name="part")(layers.Slice(((1, 4),), name="some")(whole))
    dropped = layers.Dropout(0.5, name="dropped")(rest)
    strip = layers.Slice((None, (1, 3)), name="strip")(node)
    ends = [layers.Conv2D(1, 1, name=f"of {node.layer.name}")(node) for node in (part, dropped)]
    return from_nodes(images, layers.Concat(name="ends")([*ends, layers.Conv2D(1, 1, padding=((1, 1), (0, 0)))(strip)]))


def test_units_side_by_side_are_read_where_they_lie() -> None:
    places, where = places_of(cut(), training=False)
    names = [vertex.name for vertex in cut().vertices]
    assert {names[index]: first for index, first in places.parts.items()} == {
        "most": 0,
        "some": 1,
        "rest": 5,
        "dropped": 0,
    }
    assert where["most"] == ("node output", 0, 5)
    assert where["some"] == ("node output", 1, 3)
    # What is nothing in inference is nothing to a part either.
    assert where["rest"] == where["dropped"] == ("node output", 5, 2)
    # No part is overwritten: others may read these units.
    assert where["part"] == ("part output", 0, 3)
    assert where["strip"] == ("strip output", 0, 7)
    assert places_of(cut(), share=False)[0].parts == {}


def test_a_blob_is_not_overwritten_before_its_parts_are_read() -> None:
    images = layers.Input(2, 4, 5, name="images")()
    node = layers.Activation("tanh", name="node")(images)
    part = layers.Slice(((1, 2),), name="part")(node)
    activated = layers.Activation("sigmoid", name="activated")(node)
    late = layers.Conv2D(2, 1, name="late")(layers.Concat(name="join")([activated, part]))
    for ends in ([late], [late, layers.Conv2D(2, 1, name="last")(part)]):
        _, where = places_of(from_nodes(images, layers.Concat(name="ends")(ends)), training=False)
        assert where["node"][0] != where["activated"][0]
        assert where["part"] == (where["node"][0], where["node"][1] + 1, 1)


def hindrances(make: Callable[[layers.Node], layers.Node], **options: bool) -> dict[tuple[str, int], str]:
    images = layers.Input(2, 4, 5, name="images")()
    graph = from_nodes(images, make(layers.Conv2D(2, 1, name="node")(images)))
    places, _ = places_of(graph, **options)
    return {(graph.vertices[index].name, position): why for (index, position), why in places.copy_reasons.items()}


def conv(node: layers.Node, name: str) -> layers.Node:
    return layers.Conv2D(2, 1, name=name)(node)


def test_what_cannot_be_shared_says_why() -> None:
    def two_joins(node: layers.Node) -> layers.Node:
        first = layers.Concat(name="first")([conv(node, "other"), node])
        return layers.Concat(name="last")([conv(first, "behind"), node])

    def parts(node: layers.Node) -> layers.Node:
        return layers.Concat(name="join")(layers.split(node, (1, 1)))

    def flat(node: layers.Node) -> layers.Node:
        return layers.Concat(name="join")([layers.Flatten(name="flat")(node)])

    def overwritten(node: layers.Node) -> layers.Node:
        inner = layers.Concat(name="inner")([node, conv(node, "other")])
        changed = layers.Activation("relu", name="relu")(inner)
        return layers.Concat(name="join")([changed, conv(node, "last")])

    assert hindrances(two_joins) == {("first", 1): "node lies in last output"}
    assert hindrances(lambda node: layers.Concat(name="twice")([node, node])) == {
        ("twice", place): "node comes in more than once" for place in (0, 1)
    }
    assert hindrances(parts) == {("join", place): f"slice_{place + 1} is a part of node" for place in (0, 1)}
    assert hindrances(flat) == {("flat", 0): "node is (2, 4, 5), which is no part of (40)"}
    assert hindrances(overwritten, training=False) == {("relu", 0): "relu would overwrite inner"}
    assert hindrances(flat, share=False) == {(name, 0): "no memory is shared" for name in ("flat", "join")}
