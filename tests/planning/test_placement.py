"""Where blobs lie, before they have layouts."""

from __future__ import annotations

from blobnet import layers
from blobnet.blob import Shape
from blobnet.graph import Graph, from_nodes
from blobnet.planning.placement import Places, Region, place_outputs
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
    whole = Region.whole("a", Shape(6, 4, 5))
    first, second = Region(whole.storage, 0, 2), Region(whole.storage, 2, 4)
    assert whole.overlaps(first)
    assert first.overlaps(whole)
    assert whole.overlaps(second)
    assert not first.overlaps(second)
    assert not second.overlaps(first)
    assert not first.overlaps(Region.whole("b", Shape(6, 4, 5)))


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
