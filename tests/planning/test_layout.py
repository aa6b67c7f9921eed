"""Halos, pitch and blobs."""

from __future__ import annotations

from blobnet import layers
from blobnet.memory.blob import FLOAT16, FLOAT32, Halo
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning import make_plan
from blobnet.planning.layout import lay_out, possible_halos
from tests.kinds import tuning_for
from tests.planning.stages import request_for, stages


def graph() -> Graph:
    images = layers.Input(2, 6, 5, name="images")()
    node = layers.Conv2D(3, 1, name="node")(images)
    small = layers.Conv2D(4, 3, padding=1, name="small")(node)
    large = layers.Conv2D(4, (1, 5), padding=((0, 0), (1, 3)), name="large")(node)
    return from_nodes(images, layers.Add(name="sum")([small, large]))


def test_every_reader_says_which_halos_it_may_read() -> None:
    found = stages(request_for(graph()))
    halos = possible_halos(found.request.graph, found.places, found.deltas)
    for name in ("small", "large"):
        vertex = found.request.graph.vertices[found.index(name)]
        shapes = found.request.graph.input_shapes(vertex)
        assert halos[vertex.index, "node output"] == vertex.layer.input_halo(shapes)
        delta = found.deltas.regions[vertex.index].storage.name
        assert halos[vertex.index, delta] == vertex.layer.delta_halo(shapes)
    assert all(halo != Halo() for halo in halos.values())
    assert found.index("node") not in {index for index, _ in halos}


def test_a_storage_has_the_most_that_any_reader_asks_for_of_the_halos_that_are_given() -> None:
    request = request_for(graph(), tuning=tuning_for("gpu"))
    found = stages(request)
    halos = possible_halos(request.graph, found.places, found.deltas)
    small, large = ((found.index(name), "node output") for name in ("small", "large"))
    both = lay_out(request, found.places, found.deltas, halos, {})
    assert both.halos["node output"] == Halo((1, 1), (1, 3)) == halos[small].merged(halos[large])
    assert both.pitches["node output"] == 5 + 3
    one = lay_out(request, found.places, found.deltas, {small: halos[small]}, {})
    assert one.halos["node output"] == Halo((1, 1), (1, 1))
    assert one.pitches["node output"] == 5 + 1
    none = lay_out(request, found.places, found.deltas, {}, {})
    assert set(none.halos.values()) == {Halo()}
    assert set(none.pitches.values()) == {5}


def test_one_pitch_for_the_planes_that_a_layer_connects_on_a_cpu() -> None:
    pitches = stages(request_for(graph(), tuning=tuning_for("cpu"))).layouts.pitches
    assert set(pitches.values()) == {5 + 3}
    apart = stages(request_for(graph(), tuning=tuning_for("gpu"))).layouts.pitches
    assert apart["images output"] == 5 < apart["node output"]


def test_halves_lie_between_the_layers() -> None:
    tuning = tuning_for("cpu", storage=FLOAT16)
    plan = make_plan(graph(), 3, tuning=tuning)
    assert {name: blob.type for name, blob in plan.outputs.items()} == {
        **dict.fromkeys(("images", "node", "small"), FLOAT16),
        **dict.fromkeys(("large", "sum"), FLOAT32),  # The sum is made where the second one lies.
    }
    wide = make_plan(graph(), 3, tuning=tuning_for("cpu"))
    storage = plan.placed["images output"]
    assert 2 * plan.buffers[storage].bytes(3) == wide.buffers[storage].bytes(3)
    assert 2 * plan.phase("forward")[1].bytes(3) < 2 * wide.phase("forward")[1].bytes(3)
    training = stages(request_for(graph(), tuning=tuning)).layouts
    assert set(training.types.values()) == {FLOAT16, FLOAT32}  # As for inference.


def test_a_blob_is_the_units_of_its_region() -> None:
    images = layers.Input(2, 6, 5, name="images")()
    parts = [layers.Conv2D(units, 3, padding=1, name=f"part{units}")(images) for units in (3, 4)]
    joined = from_nodes(images, layers.Conv2D(2, 3, padding=1)(layers.Concat(name="join")(parts)))
    found = stages(request_for(joined))
    blob = found.layouts.blob(found.places.regions[found.index("part4")])
    assert (blob.storage, blob.shape.units) == ("join output", 4)
    assert (blob.layout.unit_offset, blob.layout.unit_memory_count) == (3, 7)
    assert blob.layout.holds(Halo((1, 1), (1, 1)))
