"""Whole plans on a device: graphs against NumPy, and planned in every way with the same bits.

tests/unit/test_planned_graphs.py does the same for many more graphs, without a device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from blobnet import Model, layers
from blobnet.blob import FloatArray
from blobnet.device import Device
from blobnet.executor import Executor
from blobnet.graph import Graph
from blobnet.kernel_call import Tuning
from blobnet.planner import Plan
from tests.reference.compare import assert_close
from tests.reference.convolution import conv2d
from tests.simple_graphs import (
    dense_graph,
    nested_graph,
    random_graph,
    random_samples,
    reference,
    residual_graph,
    training_plan,
)

COUNT = 3
WAYS = [(True, True), (True, False), (False, False), (False, True)]


def run(device: Device, plan: Plan, samples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(output, dL/d input) of the second of two batches; every launch is checked."""
    executor = Executor(device, plan, debug=True)
    parameters = np.zeros(plan.parameters.elements, np.float32)
    piece = plan.parameters.slices[f"{plan.graph.input.name}/deviation"]
    parameters[piece.offset : piece.offset + piece.elements] = 1
    executor.write_array("parameters", parameters)
    for batch in (10 * samples[::-1], samples):
        executor.write_array("samples", batch)
        executor.run("forward", COUNT)
        executor.run("loss", COUNT)
        output = executor.read_blob(plan.outputs[plan.graph.output.name], COUNT)
        executor.run("backward", COUNT)
        delta = executor.read_blob(plan.deltas[plan.graph.input.name], COUNT)
    return output, delta


def check(device: Device, graph: Graph) -> None:
    """All ways to plan a graph give NumPy's numbers, and the same bits."""
    samples = random_samples(graph, COUNT)
    expected = reference(graph, samples)
    results = []
    for share, reuse in WAYS:
        plan = training_plan(graph, COUNT + 1, share=share, reuse=reuse, tuning=Tuning(device.kind))
        found = run(device, plan, samples)
        what = f"share={share}, reuse={reuse}"
        for name, actual, wanted in zip(("output", "input delta"), found, expected, strict=True):
            absolute = 1e-5 * max(1.0, float(np.abs(wanted).max()))
            assert_close(actual.reshape(wanted.shape), wanted, relative=1e-5, absolute=absolute, what=f"{name}, {what}")
        results.append([values.tobytes() for values in found])
        assert results[-1] == results[0], f"{what}: bits differ from share=True, reuse=True"


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(device: Device, seed: int) -> None:
    check(device, random_graph(seed, 8))


@pytest.mark.parametrize("make", [residual_graph, dense_graph, nested_graph])
def test_known_graphs(device: Device, make: Callable[[], Graph]) -> None:
    check(device, make())


def test_convolution_wider_than_its_input(device: Device) -> None:
    """A column of cells, padded: the input's pitch must hold a row of the output."""
    inputs = layers.Input(2, 5, 1)()
    model = Model(inputs, layers.Conv2D(3, 1, padding=1, bias=True, name="conv")(inputs))
    random = np.random.default_rng(0)
    model.set_weights({"conv/bias": random.standard_normal(3)})
    samples = random.standard_normal((COUNT, 2, 5, 1)).astype(np.float32)
    weights = model.weights
    expected = conv2d(samples, weights["conv/weight"], weights["conv/bias"], padding=((1, 1), (1, 1)))
    assert_close(model.predict(samples, device=device), expected, relative=1e-6, absolute=1e-6, what="output")


def test_memory_of_layers_with_similar_names(device: Device) -> None:
    """'a weight' is a layer's name and 'weight partials' an array's: they must not meet."""
    nodes = [layers.Input(4, 6, 6)()]
    nodes.append(layers.Conv2D(4, 3, padding=1, name="a")(nodes[-1]))
    nodes.append(layers.BatchNorm(name="a weight")(nodes[-1]))
    plan = Model(nodes[0], layers.Dense(2)(nodes[-1])).plan(2)
    own = {array.storage for _, call in plan.calls for array in call.arrays.values() if not array.persistent}
    assert {"a/weight partials", "a weight/partials"} <= own
