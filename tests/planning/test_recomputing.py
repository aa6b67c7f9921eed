"""Blobs that the backward pass computes again: the same bits, from less memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blobnet import layers, models
from blobnet.device.device import Device
from blobnet.layers import Node
from blobnet.losses import CrossEntropy
from blobnet.model import Model
from blobnet.network.graph import Graph, from_nodes
from blobnet.optimizers import SGD
from blobnet.planning import Plan, make_plan
from blobnet.planning.recomputing import AGAIN
from blobnet.planning.timeline import memory_schedule
from tests.kinds import tuning_for
from tests.small_graphs import KNOWN_GRAPHS, random_graph
from tests.train.test_plans import model_of


def plans(graph: Graph, batch_size: int = 4, **settings: Any) -> tuple[Plan, Plan]:
    """The plan of a training that keeps all blobs, and of one that computes some again."""
    given = {"loss": CrossEntropy(), "training": True, **settings}
    kept, again = (make_plan(graph, batch_size, recompute=recompute, **given) for recompute in (False, True))
    return kept, again


def made_again(plan: Plan) -> list[str]:
    """The blobs that the backward pass computes again, in its order."""
    ending = f" output{AGAIN}"
    calls = [call for call in plan.phase("backward") if call.label.endswith(AGAIN)]
    written = [name for call in calls for name in call.storages("write", "update")]
    assert all(name.endswith(ending) for name in written)
    return [name.removesuffix(ending) for name in written]


def norms(source: Node, activation: str = "relu") -> Node:
    node = layers.BatchNorm(name="norm")(layers.Conv2D(8, 3, padding=1, name="first")(source))
    return layers.Conv2D(4, 3, name="second")(layers.Activation(activation, name="function")(node))


def test_what_is_made_again_is_what_can_be_made_of_what_is_kept() -> None:
    images = layers.Input(3, 12, 12)()
    graph = from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(norms(images))))
    kept, again = plans(graph)
    assert made_again(kept) == []
    assert made_again(again) == ["function"]
    labels = [call.label for call in again.phase("backward")]
    place = labels.index(f"norm forward{AGAIN}")
    assert labels[place + 1].startswith("second backward weight"), "right before it is read"
    assert again.bytes() < kept.bytes()
    # A prediction has no backward pass.
    assert made_again(plans(graph, training=False)[1]) == []


def test_what_took_the_place_of_what_it_was_made_of_is_not_made_again() -> None:
    """Nobody keeps what a convolution gives an activation."""
    images = layers.Input(3, 12, 12)()
    node = layers.Conv2D(8, 3, name="first")(images)
    node = layers.Conv2D(4, 3, name="second")(layers.Activation("relu", name="function")(node))
    graph = from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node)))
    assert made_again(plans(graph)[1]) == []


def test_of_a_chain_of_sums_every_second_one_is_made_again() -> None:
    """Each is made of the one before, which must be there."""
    images = layers.Input(3, 12, 12)()
    node = layers.Conv2D(8, 3, padding=1)(images)
    for number in range(5):
        side = layers.BatchNorm(name=f"norm{number}")(layers.Conv2D(8, 3, padding=1, name=f"conv{number}")(node))
        node = layers.Activation("relu", name=f"sum{number}")(layers.Add(name=f"add{number}")([node, side]))
    graph = from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node)))
    found = made_again(plans(graph)[1])
    assert [name for name in found if name.startswith("sum")] == ["sum4", "sum2", "sum0"]


def test_what_others_overwrite_is_kept(device: Device) -> None:
    """A function in place of a concat, of which another function's input is a part. To one kernel all is one unit."""
    source = layers.Input(4)()
    part = layers.Dense(2, name="part")(source)
    read = layers.Activation("tanh", name="read")(part)
    joined = layers.Concat()([layers.Dense(3)(read), part])
    over = layers.Activation("relu", name="over")(joined)
    graph = from_nodes(source, layers.Dense(3)(layers.Add()([layers.Dense(5)(over), layers.Dense(5)(read)])))
    assert made_again(plans(graph)[1]) == []
    assert trained(graph, device, True) == trained(graph, device, False)


def test_what_updates_its_blob_is_computed_again(device: Device) -> None:
    """A softmax, which reads what it writes."""
    images = layers.Input(3, 12, 12)()
    node = layers.Conv2D(8, 3, padding=1)(images)
    plain, soft = layers.Conv2D(4, 3)(node), layers.Conv2D(4, 3)(layers.Activation("softmax", name="soft")(node))
    graph = from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(layers.Add()([plain, soft]))))
    assert made_again(plans(graph)[1]) == ["soft"]
    assert trained(graph, device, True) == trained(graph, device, False)


def test_parts_of_blobs_and_what_moves_much_are_kept() -> None:
    """Norms that write into a concat, and the mean of a much larger blob."""
    images = layers.Input(3, 12, 12)()
    node = layers.Conv2D(8, 3, padding=1)(images)
    parts = [layers.BatchNorm(name=f"part{number}")(node) for number in range(2)]
    joined = layers.Conv2D(4, 3, name="last")(layers.Concat()(parts))
    mean = layers.Dense(3)(layers.GlobalAveragePool(name="mean")(node))
    graph = from_nodes(images, layers.Add()([layers.Dense(3)(layers.GlobalAveragePool()(joined)), mean]))
    for kind in "cpu", "gpu":
        kept, again = plans(graph, tuning=tuning_for(kind))
        assert made_again(again) == []
        assert all(call.again is None for plan in (kept, again) for _, call in plan.calls)


def test_the_plan_says_so() -> None:
    images = layers.Input(3, 12, 12)()
    kept, again = plans(from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(norms(images)))))
    assert "computed again" not in str(kept)
    assert re.search(r"^computed again +1 blob, [0-9.]+ KiB$", str(again), re.MULTILINE)
    held = [memory_schedule(plan).held for plan in (kept, again)]
    assert held[0].keys() == held[1].keys()
    made = next(place for place, (_, call) in enumerate(again.calls) if call.label.endswith(AGAIN))
    size = held[1]["activations"][made] - held[1]["activations"][made - 2]
    assert size > 0, "the second blob is one of the activations"


@pytest.mark.parametrize(
    ("name", "most"), [("densenet121", 0.55), ("mobilenet_v2", 0.7), ("resnet50", 0.87), ("efficientnet_b0", 0.75)]
)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_memory(name: str, most: float, kind: str) -> None:
    network: Callable[..., Model] = getattr(models, name)
    kept, again = plans(network((3, 96, 96), 100).graph, 32, tuning=tuning_for(kind))
    assert again.bytes() < most * kept.bytes()
    norms_of = ([call.label for call in plan.phase("forward") if "norm" in call.kernel] for plan in (kept, again))
    assert next(norms_of) == next(norms_of), "none of them moved"


def trained(graph: Graph, device: Device, recompute: bool) -> tuple[Any, Any]:
    """The weights of any network after two epochs, with a last batch of 2, and its losses."""
    model, random = model_of(graph), np.random.default_rng(1)
    x = random.standard_normal((10, *graph.input.shape.dimensions)).astype(np.float32)
    y = random.integers(0, graph.output.shape.units, (10, *graph.output.shape.dimensions[1:]))
    given = {"epochs": 2, "batch_size": 4, "optimizer": SGD(0.001, momentum=0.9), "seed": 5, "verbose": False}
    model.fit(x, y, device=device, recompute=recompute, debug=True, **given)
    return {name: values.tobytes() for name, values in model.weights.items()}, model.history


@pytest.mark.parametrize("name", ["residual", "dense blocks", "in place around concat", "twice", "many units"])
def test_known_networks_have_the_same_bits(device: Device, name: str) -> None:
    graph = KNOWN_GRAPHS[name]()
    assert trained(graph, device, True) == trained(graph, device, False)


@pytest.mark.parametrize("first", [0, 4, 8, 564])
def test_random_networks_have_the_same_bits(device: Device, first: int) -> None:
    graphs = [random_graph(seed, steps=12 if first < 100 else 30) for seed in range(first, first + 4)]
    assert any(made_again(plans(graph)[1]) for graph in graphs)
    for graph in graphs:
        assert trained(graph, device, True) == trained(graph, device, False)
