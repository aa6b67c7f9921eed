"""Parameters that several nodes read: one layer's, used several times, whose gradients are the sums of all uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

import onnx
import torch
from onnx import helper
from onnx_graphs import graph_of, saved

import blobnet as bn

node = helper.make_node
functional = torch.nn.functional


def _arrays(**shapes: tuple[int, ...]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {name: (random.standard_normal(shape) / 2).astype(np.float32) for name, shape in shapes.items()}


def _twice(kind: str, constants: list[str], **attributes: Any) -> list[Any]:
    """Two nodes of one kind with the same constants."""
    ends = (("x", "a"), ("c", "y"))
    nodes = [node(kind, [ends[n][0], *constants], [ends[n][1]], f"n{n}", **attributes) for n in (0, 1)]
    return [nodes[0], node("Tanh", ["a"], ["c"], "tanh"), nodes[1]]


def _matrix(transposed: int) -> tuple[Any, ...]:
    """A product by a matrix, which each node has of its own node, and a sum."""
    made = [node("Transpose", ["w"], [f"t{n}"], f"t{n}", perm=[1, 0]) for n in (0, 1)]
    names = ("t0", "t1") if transposed else ("w", "w")
    nodes = [
        *(made if transposed else []),
        node("MatMul", ["x", names[0]], ["m0"], "n0"),
        node("Add", ["m0", "b"], ["a"], "s0"),
        node("Tanh", ["a"], ["c"], "tanh"),
        node("MatMul", ["c", names[1]], ["m1"], "n1"),
        node("Add", ["m1", "b"], ["y"], "s1"),
    ]
    return (
        nodes,
        (5,),
        _arrays(w=(5, 5), b=(5,)),
        {"w": "n0/weight", "b": "s0/shift"},
        lambda x, w, b: x @ (w.T if transposed else w) + b,
    )


_CASES: dict[str, tuple[Any, ...]] = {
    "Conv": (
        _twice("Conv", ["w", "b"], pads=[1] * 4),
        (3, 4, 5),
        _arrays(w=(3, 3, 3, 3), b=(3,)),
        {"w": "n0/weight", "b": "n0/bias"},
        lambda x, w, b: functional.conv2d(x, w, b, padding=1),
    ),
    "Gemm": (
        _twice("Gemm", ["w", "b"], transB=1, alpha=0.5),
        (5,),
        _arrays(w=(5, 5), b=(5,)),
        {"w": "n0/weight", "b": "n0/bias"},
        lambda x, w, b: 0.5 * x @ w.T + b,
    ),
    "MatMul": _matrix(0),
    "transposed": _matrix(1),
    "Mul": (_twice("Mul", ["w"]), (3, 4, 5), _arrays(w=(3, 1, 1)), {"w": "n0/scale"}, lambda x, w: x * w),
    "PRelu": (
        _twice("PRelu", ["w"]),
        (3, 4, 5),
        _arrays(w=(3, 1, 1)),
        {"w": "n0/slope"},
        lambda x, w: functional.prelu(x, w.flatten()),
    ),
    "LayerNormalization": (
        _twice("LayerNormalization", ["w", "b"]),
        (6,),
        _arrays(w=(6,), b=(6,)),
        {"w": "n0/scale", "b": "n0/shift"},
        lambda x, w, b: functional.layer_norm(x, (6,), w, b),
    ),
    "GroupNormalization": (
        _twice("GroupNormalization", ["w", "b"], num_groups=2),
        (4, 3, 3),
        _arrays(w=(4,), b=(4,)),
        {"w": "n0/scale", "b": "n0/shift"},
        lambda x, w, b: functional.group_norm(x, 2, w, b),
    ),
}


@pytest.mark.parametrize(("case", "as_nodes"), [*((case, False) for case in _CASES), ("Conv", True), ("MatMul", True)])
def test_shared_parameters_train_as_one(case: str, as_nodes: bool, tmp_path: Path) -> None:
    nodes, shape, constants, names, run = _CASES[case]
    model = graph_of(nodes, {"x": ("N", *shape)}, {"y": ("N", *shape)}, {} if as_nodes else constants, opset=21)
    model.ir_version = 10
    if as_nodes:
        for name, values in constants.items():
            made = node("Constant", [], [name], name, value=onnx.numpy_helper.from_array(values))
            model.graph.node.insert(0, made)
    found = bn.onnx.load(saved(tmp_path, model))
    assert sorted(found.graph.trainable) == sorted(names.values())
    random = np.random.default_rng(1)
    x, target = (random.standard_normal((4, *shape)).astype(np.float32) for _ in range(2))
    twins = {name: torch.from_numpy(values.astype(np.float64)).requires_grad_() for name, values in constants.items()}
    wanted = run(torch.tanh(run(torch.from_numpy(x.astype(np.float64)), **twins)), **twins)
    np.testing.assert_allclose(found.predict(x), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    ((wanted - torch.from_numpy(target)) ** 2).mean().backward()
    gradients = found.gradients(x, target, loss="mse")
    for name, own in names.items():
        wanted_one = twins[name].grad.numpy()
        if own.endswith("weight") and case in ("MatMul", "transposed"):
            wanted_one = wanted_one if case == "transposed" else wanted_one.T
        scale = 0.5 if case == "Gemm" and name == "w" else 1  # The layer's weight has the factor in it.
        given = scale * gradients[own].reshape(wanted_one.shape)
        np.testing.assert_allclose(given, wanted_one, rtol=2e-3, atol=1e-5, err_msg=name)


def test_a_matrix_and_its_transpose_are_two_layers(tmp_path: Path) -> None:
    """What both have, sizes and name, says nothing of the order."""
    constants = _arrays(w=(4, 4))
    nodes = [node("Gemm", ["x", "w"], ["a"], "n0"), node("Gemm", ["a", "w"], ["y"], "n1", transB=1)]
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 4)}, {"y": ("N", 4)}, constants))
    with pytest.warns(
        bn.errors.BlobnetWarning, match=r"train apart, .* Received layers=n0 and n1\. Hint: fit\(freeze="
    ):
        model = bn.onnx.load(path)
    x = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(model.predict(x), x @ constants["w"] @ constants["w"].T, rtol=1e-4, atol=1e-5)


def test_layers_with_copies_of_an_array_are_told(tmp_path: Path) -> None:
    """In whatever order and shape they have it; those that nothing trains, and that share a layer, are not."""
    constants = {**_arrays(w=(3, 3, 3, 3), v=(3, 3, 3, 3), c=(3, 4, 5)), "shape": np.array([3, 3, 3, 3])}
    nodes = [
        node("Conv", ["x", "w"], ["a"], "n0", pads=[1] * 4),
        node("Conv", ["a", "w"], ["b"], "n1", pads=[2] * 4, dilations=[2, 2]),
        node("Transpose", ["w"], ["turned"], "turned", perm=[0, 1, 3, 2]),
        node("Reshape", ["turned", "shape"], ["t"], "same"),
        node("Conv", ["b", "t"], ["d"], "n2", pads=[1] * 4),
        node("Conv", ["d", "v"], ["e"], "n3", pads=[1] * 4),
        node("Conv", ["e", "v"], ["f"], "n4", pads=[1] * 4),
        node("Add", ["f", "c"], ["g"], "n5"),
        node("Mul", ["g", "c"], ["y"], "n6"),
    ]
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 3, 4, 5)}, {"y": ("N", 3, 4, 5)}, constants))
    with pytest.warns(bn.errors.BlobnetWarning, match=r"layers=n0 and n1 and n2\. Hint"):
        bn.onnx.load(path)
    session = bn.onnx.Session(path)  # Which trains nothing.
    assert session.predict(np.zeros((2, 3, 4, 5), np.float32)).shape == (2, 3, 4, 5)


def test_constants_within_a_loop_are_one_layers(tmp_path: Path) -> None:
    """Those of two loops with the same names are two."""
    names = (("i", 7), ("on", 9), ("c", 1))
    loops = []
    arrays = _arrays(w0=(4, 4), w1=(4, 4))
    for number, (source, target) in enumerate((("x", "a"), ("a", "y"))):
        constant = node("Constant", [], ["w"], "w", value=onnx.numpy_helper.from_array(arrays[f"w{number}"]))
        body = helper.make_graph(
            [node("Identity", ["on"], ["goes"]), constant, node("MatMul", ["c", "w"], ["d"], f"n{number}")],
            "body",
            [helper.make_tensor_value_info(name, kind, None) for name, kind in names],
            [helper.make_tensor_value_info(name, kind, None) for name, kind in (("goes", 9), ("d", 1))],
        )
        loops.append(node("Loop", ["trips", "", source], [target], f"loop{number}", body=body))
    model = graph_of(loops, {"x": ("N", 4)}, {"y": ("N", 4)}, {"trips": np.array(3)})
    found = bn.onnx.load(saved(tmp_path, model))
    assert sorted(found.graph.trainable) == ["n0/weight", "n1/weight"]
    x = np.random.default_rng(3).standard_normal((2, 4)).astype(np.float32)
    wanted = x @ np.linalg.matrix_power(arrays["w0"], 3) @ np.linalg.matrix_power(arrays["w1"], 3)
    np.testing.assert_allclose(found.predict(x), wanted, rtol=1e-4, atol=1e-5)
