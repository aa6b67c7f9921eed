"""Loop, Scan and Einsum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import helper
from onnx_graphs import graph_of, saved

import blobnet as bn
from blobnet import losses

node = helper.make_node


def body(nodes: list[Any], inputs: dict[str, int], outputs: list[str]) -> Any:
    """A graph within a node; inputs have ONNX's types."""
    ends = [helper.make_tensor_value_info(name, 9 if name == "goes" else 1, None) for name in outputs]
    entries = [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs.items()]
    return helper.make_graph(nodes, "body", entries, ends)


def _gradients(model: bn.Model, x: np.ndarray, names: list[str]) -> None:
    """Against differences of the sum of squares, in float64 as far as float32 gives them."""
    target = np.zeros((len(x), *model.graph.output.shape.dimensions), np.float32)
    found = model.gradients(x, target, loss=losses.MeanSquaredError())
    weights = {name: values.astype(np.float64) for name, values in model.weights.items()}
    random = np.random.default_rng(3)
    for name in names:
        direction = random.standard_normal(weights[name].shape)
        values = []
        for step in (-1e-2, 1e-2):
            model.set_weights({**weights, name: weights[name] + step * direction})
            values.append(np.mean(model.predict(x).astype(np.float64) ** 2))
        model.set_weights(weights)
        slope = (values[1] - values[0]) / 2e-2
        assert abs(slope) > 1e-3
        np.testing.assert_allclose(np.sum(found[name] * direction), slope, rtol=2e-2, err_msg=name)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("nij,jk->nki", [(3, 2, 5), (5, 4)]),
        ("n...j, kj -> n...k", [(3, 2, 3, 5), (4, 5)]),
        ("njj,jk,kl->nl", [(3, 5, 5), (5, 2), (2, 3)]),
        ("ab,nb->na", [(4, 5), (3, 5)]),
    ],
)
def test_einsum_of_samples_and_weights(equation: str, shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    at = next(place for place, shape in enumerate(shapes) if shape[0] == 3)
    x, names = arrays[at], [f"v{place}" for place in range(len(shapes))]
    constants = {name: array for name, array in zip(names, arrays, strict=True) if name != names[at]}
    graph = graph_of(
        [node("Einsum", names, ["y"], "sum", equation=equation)],
        {names[at]: ("N", *x.shape[1:])},
        {"y": None},
        constants,
    )
    model = bn.onnx.load(saved(tmp_path, graph))
    np.testing.assert_allclose(model.predict(x), np.einsum(equation, *arrays), rtol=1e-4, atol=1e-5)
    assert len(model.graph.trainable) == len(constants)
    _gradients(model, x, list(model.graph.trainable))


def test_einsum_that_lets_samples_meet(tmp_path: Path) -> None:
    graph = graph_of([node("Einsum", ["x"], ["y"], "sum", equation="nj->j")], {"x": ("N", 4)}, {"y": None})
    path = saved(tmp_path, graph)
    with pytest.raises(bn.errors.OptionError, match=r"node sum \(Einsum\): factors must have the samples on one axis"):
        bn.onnx.load(path)
    x = np.random.default_rng(1).random((3, 4), np.float32)
    np.testing.assert_allclose(bn.onnx.Session(path).run([x])["y"], x.sum(0), rtol=1e-5)


@pytest.mark.parametrize("equation", ["ij", "ijk,->ij", "ij->ik", "ij->ii", "i1->i", "ij,jk->ik"])
def test_einsum_of_a_wrong_equation(equation: str, tmp_path: Path) -> None:
    graph = graph_of([node("Einsum", ["x"], ["y"], "sum", equation=equation)], {"x": ("N", 4, 4)}, {"y": None})
    with pytest.raises(bn.errors.OptionError, match=r"node sum \(Einsum\): the (equation|result) must have"):
        bn.onnx.load(saved(tmp_path, graph))


def recurrent(trips: Any) -> Any:
    """h = tanh(h @ w + b) so many times, and all of them."""
    random = np.random.default_rng(2)
    nodes = [
        node("MatMul", ["h", "w"], ["a"], "product"),
        node("Add", ["a", "b"], ["c"], "sum"),
        node("Tanh", ["c"], ["d"], "tanh"),
        node("Identity", ["going"], ["goes"]),
        node("Identity", ["d"], ["e"]),
    ]
    own = body(nodes, {"i": 7, "going": 9, "h": 1}, ["goes", "d", "e"])
    loop = node("Loop", ["trips", "", "x"], ["last", "all"], "loop", body=own)
    back = node("Transpose", ["all"], ["y"], perm=[1, 0, 2])
    constants = {
        "trips": np.array(trips),
        "w": random.standard_normal((4, 4)).astype(np.float32),
        "b": random.standard_normal(4).astype(np.float32),
    }
    return graph_of([loop, back], {"x": ("N", 4)}, {"y": None}, constants), constants


def test_the_trips_of_a_loop_share_their_weights(tmp_path: Path) -> None:
    graph, constants = recurrent(3)
    model = bn.onnx.load(saved(tmp_path, graph))
    x = h = np.random.default_rng(4).standard_normal((5, 4)).astype(np.float32)
    states = []
    for _ in range(3):
        h = np.tanh(h @ constants["w"] + constants["b"])
        states.append(h)
    np.testing.assert_allclose(model.predict(x), np.stack(states, 1), rtol=1e-4, atol=1e-5)
    trainable = list(model.graph.trainable)
    assert sorted(model.weights[name].size for name in trainable) == [4, 16]
    _gradients(model, x, trainable)


def test_loops_are_bounded(tmp_path: Path) -> None:
    graph, _ = recurrent(2**62)
    path = saved(tmp_path, graph)
    message = r"node loop \(Loop\): the trips of loops may run 2,000 nodes in all.* Hint: export the network with fewer"
    with pytest.raises(bn.errors.OptionError, match=message):
        bn.onnx.load(path)


def test_a_loop_whose_trips_depend_on_values_runs_on_the_host(tmp_path: Path) -> None:
    """A number that is doubled until it is beyond 100; one that never is ends at the bound."""
    nodes = [
        node("Mul", ["h", "two"], ["d"], "double"),
        node("Less", ["d", "most"], ["goes"], "less"),
    ]
    own = body(nodes, {"i": 7, "going": 9, "h": 1}, ["goes", "d"])
    first = node("Abs", ["x"], ["a"], "abs")
    loop = node("Loop", ["", "", "a"], ["y"], "loop", body=own)
    constants = {"two": np.array(2, np.float32), "most": np.array([[100]], np.float32)}
    path = saved(tmp_path, graph_of([first, loop], {"x": (1, 1)}, {"y": None}, constants))
    with pytest.raises(
        bn.errors.OptionError, match=r"loop \(Loop\): what decides .* must be known .* Hint: bn.onnx.Ses"
    ):
        bn.onnx.load(path)
    session = bn.onnx.Session(path)
    assert session.network().tail == ("loop (Loop)",)
    for value in (-3.0, 0.7, 200.0):
        wanted = abs(value) * 2
        while wanted < 100:
            wanted *= 2
        np.testing.assert_allclose(session.run([np.array([[value]], np.float32)])["y"], [[wanted]], rtol=1e-6)
    with pytest.raises(bn.errors.OptionError, match=r"the trips of loops may run 10,000 nodes in all"):
        session.run([np.zeros((1, 1), np.float32)])


def test_a_scan_goes_along_any_axis_and_backwards(tmp_path: Path) -> None:
    nodes = [node("Add", ["s", "p"], ["t"], "sum"), node("Identity", ["t"], ["q"])]
    own = body(nodes, {"s": 1, "p": 1}, ["t", "q"])
    axes = {
        "scan_input_axes": [2],
        "scan_input_directions": [1],
        "scan_output_axes": [-1],
        "scan_output_directions": [1],
    }
    scan = node("Scan", ["first", "x"], ["last", "y"], "scan", body=own, num_scan_inputs=1, **axes)
    reduce = node("ReduceSum", ["x", "two"], ["zero"], keepdims=0)
    none = node("Mul", ["zero", "none"], ["first"])
    constants = {"two": np.array([2]), "none": np.array(0, np.float32)}
    graph = graph_of([reduce, none, scan], {"x": ("N", 3, 5)}, {"y": None}, constants)
    x = np.random.default_rng(5).standard_normal((2, 3, 5)).astype(np.float32)
    found = bn.onnx.load(saved(tmp_path, graph)).predict(x)
    np.testing.assert_allclose(found, np.cumsum(x[..., ::-1], 2)[..., ::-1], rtol=1e-5, atol=1e-6)
