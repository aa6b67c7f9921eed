"""Where samples are among the axes of tensors, and tensors with more axes than blobnet's samples have."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper
from onnx_graphs import graph_of, saved

import blobnet as bn


def _runtime(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)


@pytest.mark.parametrize("batch", ["N", 1, 2])
def test_attention_that_moves_the_samples_and_merges_them_with_heads(batch: str | int, tmp_path: Path) -> None:
    """As PyTorch exports it: (samples, places, units) to (places, samples * heads, units / heads), and back."""
    random = np.random.default_rng(0)
    places, units, heads = 5, 12, 3
    constants = {
        "w": random.standard_normal((units, units)).astype(np.float32),
        "b": random.standard_normal(units).astype(np.float32),
        "apart": np.array([places, -1, units // heads]),
        "together": np.array([places, -1, units]),
    }
    swap = {"perm": [1, 0, 2]}
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], "first", **swap),
        helper.make_node("MatMul", ["a", "w"], ["b0"], "product"),
        helper.make_node("Add", ["b0", "b"], ["c"], "bias"),
        helper.make_node("Reshape", ["c", "apart"], ["d"], "apart"),
        helper.make_node("Transpose", ["d"], ["e"], "heads", **swap),
        helper.make_node("Transpose", ["e"], ["f"], "keys", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["e", "f"], ["g"], "scores"),
        helper.make_node("Softmax", ["g"], ["h"], "softmax", axis=-1),
        helper.make_node("MatMul", ["h", "e"], ["i"], "values"),
        helper.make_node("Transpose", ["i"], ["j"], "back", **swap),
        helper.make_node("Reshape", ["j", "together"], ["k"], "together"),
        helper.make_node("Transpose", ["k"], ["y"], "last", **swap),
    ]
    model = graph_of(nodes, {"x": (batch, places, units)}, {"y": (batch, places, units)}, constants)
    path = saved(tmp_path, model)
    net = bn.onnx.load(path)
    x = random.standard_normal((3, places, units)).astype(np.float32)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    (wanted,) = _runtime(saved(tmp_path, model), {"x": x})
    np.testing.assert_allclose(net.predict(x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", ["N", 2])
def test_rows_with_the_samples_within_them(batch: str | int, tmp_path: Path) -> None:
    """(places, samples, units) to (places * samples, units) for a product, and back."""
    random = np.random.default_rng(5)
    constants = {
        "rows": np.array([-1, 6]),
        "w": random.standard_normal((6, 4)).astype(np.float32),
        "b": random.standard_normal(4).astype(np.float32),
        "back": np.array([5, -1, 4]),
    }
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], "first", perm=[1, 0, 2]),
        helper.make_node("Reshape", ["a", "rows"], ["c"], "rows"),
        helper.make_node("Gemm", ["c", "w", "b"], ["d"], "product"),
        helper.make_node("Tanh", ["d"], ["e"], "tanh"),
        helper.make_node("Reshape", ["e", "back"], ["f"], "back"),
        helper.make_node("Transpose", ["f"], ["y"], "last", perm=[1, 0, 2]),
    ]
    model = graph_of(nodes, {"x": (batch, 5, 6)}, {"y": (batch, 5, 4)}, constants)
    net = bn.onnx.load(saved(tmp_path, model))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    x = random.standard_normal((3, 5, 6)).astype(np.float32)
    (wanted,) = _runtime(saved(tmp_path, model), {"x": x})
    np.testing.assert_allclose(net.predict(x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", [(0, 1, 4, 2, 5, 3), (0, 3, 5, 1, 2, 4), (0, 4, 1, 2, 3, 5)])
def test_six_axes(order: tuple[int, ...], tmp_path: Path) -> None:
    """A sample of five axes in another order, and what comes before and behind it."""
    random = np.random.default_rng(1)
    sizes = (2, 3, 2, 4, 5)
    constants = {"six": np.array([0, *sizes]), "three": np.array([0, 6, -1])}
    nodes = [
        helper.make_node("Reshape", ["x", "six"], ["a"], "six"),
        helper.make_node("Transpose", ["a"], ["b"], "order", perm=list(order)),
        helper.make_node("Softmax", ["b"], ["c"], "softmax", axis=3),
        helper.make_node("ReduceMax", ["c"], ["d"], "most", axes=[2], keepdims=0),
        helper.make_node("Neg", ["d"], ["e"], "minus"),
        helper.make_node("Concat", ["e", "d"], ["f"], "both", axis=2),
        helper.make_node("Slice", ["f", "start", "end", "axis", "step"], ["y"], "back"),
    ]
    constants |= {"start": np.array([-1]), "end": np.array([-(2**31)]), "axis": np.array([2]), "step": np.array([-1])}
    model = graph_of(nodes, {"x": ("N", 12, 4, 5)}, {"y": None}, constants)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(1, [None] * 5))
    path = saved(tmp_path, model)
    x = random.standard_normal((3, 12, 4, 5)).astype(np.float32)
    (wanted,) = _runtime(path, {"x": x})
    found = bn.onnx.load(path).predict(x)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-6)


def test_several_outputs_and_heads_of_sigmoids(tmp_path: Path) -> None:
    """A detector's end: boxes and scores of several planes, one behind the other, and a mask."""
    random = np.random.default_rng(2)
    nodes, constants, parts = [], {"flat": np.array([0, 6, -1])}, []
    for level, stride in enumerate((1, 2)):
        constants[f"w{level}"] = random.standard_normal((6, 3, 3, 3)).astype(np.float32)
        nodes += [
            helper.make_node("Conv", ["image", f"w{level}"], [f"c{level}"], strides=[stride] * 2, pads=[1] * 4),
            helper.make_node("Reshape", [f"c{level}", "flat"], [f"r{level}"]),
        ]
        parts.append(f"r{level}")
    nodes += [
        helper.make_node("Concat", parts, ["all"], axis=2),
        helper.make_node("Split", ["all"], ["places", "raw"], axis=1, num_outputs=2),
        helper.make_node("Sigmoid", ["raw"], ["scores"]),
        helper.make_node("Transpose", ["places"], ["boxes"], perm=[0, 2, 1]),
        helper.make_node("Resize", ["c1", "", "scales"], ["mask"], mode="nearest"),
    ]
    constants["scales"] = np.array([1, 1, 2, 2], np.float32)
    outputs: dict[str, Any] = {"boxes": ("N", 45, 3), "scores": ("N", 3, 45), "mask": ("N", 6, 6, 6)}
    model = graph_of(nodes, {"image": ("N", 3, 6, 6)}, outputs, constants, opset=18)
    path = saved(tmp_path, model)
    x = random.standard_normal((2, 3, 6, 6)).astype(np.float32)
    found = bn.onnx.load(path).predict(x)
    assert list(found) == list(outputs)
    for name, wanted in zip(outputs, _runtime(path, {"image": x}), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)


def test_layers_with_the_same_initializers_are_one(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    constants = {"w": random.standard_normal((3, 3, 3, 3)).astype(np.float32), "b": np.ones(3, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["c"], "relu"),
        helper.make_node("Conv", ["c", "w", "b"], ["y"], "second", pads=[1] * 4),
    ]
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 3, 5, 5)}, {"y": ("N", 3, 5, 5)}, constants))
    model = bn.onnx.load(path)
    assert set(model.graph.trainable) == {"first/weight", "first/bias"}
    x = random.standard_normal((2, 3, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(model.predict(x), _runtime(path, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_backend_keeps_a_network_for_each_size_and_few_of_them() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    entries = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["a", "b"]),
        helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, ["c"]),
    ]
    ends = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["d", "e"])]
    model = helper.make_model(
        helper.make_graph([node], "g", entries, ends), opset_imports=[helper.make_opsetid("", 17)]
    )
    prepared = bn.onnx.Backend.prepare(model)
    for width in (2, 3, 4, 3, 2, 5, 6, 7, 8, 9, 10, 11):
        x = np.random.default_rng(width).standard_normal((4, width)).astype(np.float32)
        for shape in ((width, 4), (-1, 2)):
            (found,) = prepared.run([x, np.array(shape)])
            np.testing.assert_array_equal(found, x.reshape(shape))
    assert len(prepared._session._networks) == 8
    with pytest.raises(bn.errors.OptionError, match=r"there must be an array for each input. Received inputs=x, shape"):
        prepared.run([x])


def test_run_node() -> None:
    x = np.random.default_rng(4).standard_normal((2, 3, 4)).astype(np.float32)
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    (found,) = bn.onnx.Backend.run_node(node, [x])
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5)
    (found,) = bn.onnx.Backend.run_node(node, [x], opset_version=11)
    np.testing.assert_allclose(found, powers / powers.sum((1, 2), keepdims=True), rtol=1e-5)
    assert bn.onnx.Backend.supports_device("CPU")
    assert not bn.onnx.Backend.supports_device("no such device")


#: What stands between the pictures of a graph and its first convolution: nodes that read "x" and give "t".
_BEGINNINGS = {
    "nothing": [],
    "a number and one for each unit": [("Mul", ["x", "one"], "a"), ("Add", ["a", "units"], "p")],
    "what an input layer does": [("Sub", ["x", "units"], "a"), ("Div", ["a", "all"], "p")],
    "with itself": [("Mul", ["x", "x"], "a"), ("Relu", ["a"], "b"), ("Sub", ["one", "b"], "p")],
    "numbers for each column": [("Add", ["x", "columns"], "p")],
    "a reader of both": [("Add", ["x", "units"], "a"), ("MatMul", ["x", "square"], "b"), ("Add", ["a", "b"], "p")],
}


@pytest.mark.parametrize("beginning", _BEGINNINGS)
@pytest.mark.parametrize(("units", "sizes"), [(3, (6, 5)), (1, (4, 7)), (3, ("h", "w"))])
def test_pictures_with_units_last_are_turned(
    beginning: str, units: int, sizes: tuple[int | str, int | str], tmp_path: Path
) -> None:
    """Of any beginning, whether the graph turns them itself or not, and whether it turns its output back."""
    if beginning == "numbers for each column" and "w" in sizes:
        pytest.skip("the numbers say how many columns there are")
    random = np.random.default_rng(units)
    height, width = (6, 5) if "h" in sizes else sizes
    constants = {
        "one": np.float32(0.5),
        "units": random.standard_normal(units).astype(np.float32),
        "all": random.uniform(0.5, 2, (1, 1, 1, units)).astype(np.float32),
        "columns": random.standard_normal((width, units)).astype(np.float32),
        "square": random.standard_normal((units, units)).astype(np.float32),
        "w": random.standard_normal((4, units, 3, 3)).astype(np.float32),
    }
    nodes = [helper.make_node(kind, inputs, [output], output) for kind, inputs, output in _BEGINNINGS[beginning]]
    nodes += [
        helper.make_node("Transpose", ["p" if nodes else "x"], ["t"], "turn", perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["c"], ["y"], "back", perm=[0, 2, 3, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["g"], "mean"),
    ]
    model = graph_of(nodes, {"x": ("N", *sizes, units)}, {"y": ("N", *sizes, 4), "g": ("N", 4, 1, 1)}, constants)
    path = saved(tmp_path, model)
    first = (units, height, width)
    net = bn.onnx.load(path, units_first=True, sizes=first if "h" in sizes else None)
    assert net.graph.input.shape.dimensions == first
    if beginning in ("nothing", "what an input layer does"):
        assert "Contraction" not in [vertex.layer.kind for vertex in net.graph.vertices]
    x = random.standard_normal((2, height, width, units)).astype(np.float32)
    wanted = _runtime(path, {"x": x})
    found = net.predict(x.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(found["y"], wanted[0].transpose(0, 3, 1, 2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["g"], wanted[1], rtol=1e-4, atol=1e-5)
    # Without being asked to, nothing is turned.
    if "h" not in sizes:
        np.testing.assert_allclose(bn.onnx.load(path).predict(x)["y"], wanted[0], rtol=1e-4, atol=1e-5)


def _resize(random: np.random.Generator, mode: str, coordinates: str, numbers: str) -> tuple[Any, tuple[int, ...]]:
    """A Resize with random sizes, decimal scales or wanted sizes, and options."""
    size, attributes = (
        tuple(map(int, random.integers(3, 12, 2))),
        {"mode": mode, "coordinate_transformation_mode": coordinates},
    )
    opset = {"tf_half_pixel_for_nn": 11, "ten": 10}.get(coordinates, 19)
    if opset == 10:
        attributes.pop("coordinate_transformation_mode")
    elif mode == "nearest":
        attributes["nearest_mode"] = str(random.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    if mode == "cubic":
        attributes |= {"exclude_outside": int(random.integers(2)), "cubic_coeff_a": float(random.choice([-0.75, -0.5]))}
    constants: dict[str, Any] = {"roi": np.zeros(0, np.float32)} if opset == 11 else {}
    if coordinates == "tf_crop_and_resize":
        attributes["extrapolation_value"] = 2.5
        begin, end = random.uniform(-0.2, 0.4, 2), random.uniform(0.5, 1.3, 2)
        constants["roi"] = np.array([0, 0, *begin, 1, 1, *end], np.float32)
    elif opset == 19 and mode != "nearest":
        attributes["antialias"] = int(random.integers(2))
    while True:  # No axis keeps its size, in which onnxruntime heeds no region.
        scales = np.array([1, 1, *random.uniform(0.3, 2.7, 2).round(int(random.integers(1, 3)))], np.float32)
        wanted = (scales * np.float32((1, 2, *size))).astype(np.int64)
        if wanted[2] != size[0] and wanted[3] != size[1]:
            break
    if numbers == "scales":
        constants["scales"] = scales
    else:
        constants["sizes"] = wanted
        if numbers != "sizes" and coordinates != "tf_crop_and_resize":
            attributes |= {"keep_aspect_ratio_policy": numbers, "axes": [2, 3]}
            constants["sizes"] = wanted[2:]
    places = ["scales"] if opset == 10 else ["roi", "scales", "sizes"]
    names = [name if name in constants else "" for name in places]
    node = helper.make_node(
        "Resize",
        ["x", *names[: names.index("sizes") + 1 if "sizes" in names else -1 if len(names) > 2 else None]],
        ["y"],
        "it",
        **attributes,
    )
    return graph_of([node], {"x": ("N", 2, *size)}, {"y": None}, constants, opset=opset), size


_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)


@pytest.mark.parametrize("coordinates", [*_COORDINATES, "ten"])
def test_resize_gives_what_onnxruntime_does(coordinates: str) -> None:
    """Sizes and values, for decimal scales in all modes; those of operator set 10 too."""
    runtime = pytest.importorskip("onnxruntime")
    random, compared = np.random.default_rng(1), 0
    of_sizes = [] if coordinates in ("ten", "tf_half_pixel_for_nn") else ["sizes", "policy"]
    for mode in ("nearest", "linear") if coordinates == "ten" else ("nearest", "linear", "cubic"):
        for numbers in ("scales", *of_sizes):
            numbers = str(random.choice(["not_larger", "not_smaller"])) if numbers == "policy" else numbers
            model, size = _resize(random, mode, coordinates, numbers)
            x = random.standard_normal((1, 2, *size)).astype(np.float32)
            with contextlib.suppress(runtime.capi.onnxruntime_pybind11_state.NotImplemented):
                session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
                (wanted,) = session.run(None, {"x": x})
                found = bn.onnx.Session(model).predict(x)
                assert found.shape == wanted.shape, model.graph.node
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5, err_msg=str(model.graph.node))
                compared += 1
    assert compared >= (5 if of_sizes else 2)


@pytest.mark.parametrize("scale", [0.7, 1.1, 2.6, 0.45])
def test_resize_gives_the_sizes_and_values_of_pytorch(scale: float) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 2, 10, 10, generator=torch.Generator().manual_seed(0))
    forms: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "nearest": ({}, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        "bilinear": ({"align_corners": True}, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        "bicubic": (
            {"antialias": True},
            {"mode": "cubic", "antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5},
        ),
    }
    for mode, (settings, attributes) in forms.items():
        wanted = functional.interpolate(x, scale_factor=scale, mode=mode, **settings).numpy()
        node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
        constants = {"scales": np.array([1, 1, scale, scale], np.float32)}
        model = graph_of([node], {"x": ("N", 2, 10, 10)}, {"y": None}, constants, opset=19)
        found = bn.onnx.Session(model).predict(x.numpy())
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5, err_msg=mode)


def test_a_resize_that_keeps_all_sizes_changes_nothing() -> None:
    """As in PyTorch and onnxruntime, whatever the scale."""
    x = np.random.default_rng(3).standard_normal((2, 2, 5, 4)).astype(np.float32)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    model = graph_of([node], {"x": ("N", 2, 5, 4)}, {"y": None}, {"scales": np.array([1, 1, 1.1, 1.2], np.float32)})
    np.testing.assert_array_equal(bn.onnx.Session(model).predict(x), x)


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("settings", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
def test_cumulative_sums(axis: int, settings: dict[str, int], tmp_path: Path) -> None:
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"], "sums", **settings)]
    model = graph_of(nodes, {"x": ("N", 5, 7)}, {"y": ("N", 5, 7)}, {"axis": np.array(axis)})
    path, x = saved(tmp_path, model), np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)
    np.testing.assert_allclose(bn.onnx.load(path).predict(x), _runtime(path, {"x": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_operators_with_lengths_of_samples(kind: str, way: str, tmp_path: Path) -> None:
    """All positions and the last states, as onnxruntime has them; lengths are whole numbers on the axis of samples."""
    random, directions, gates = np.random.default_rng(0), 2 if way == "bidirectional" else 1, 4 if kind == "LSTM" else 3
    shapes = {"w": (directions, gates * 4, 3), "r": (directions, gates * 4, 4), "b": (directions, 2 * gates * 4)}
    more = {} if kind == "LSTM" else {"linear_before_reset": 1}
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], "first", perm=[1, 0, 2]),
        helper.make_node(kind, ["a", *shapes, "n"], ["c", "d"], "states", hidden_size=4, direction=way, **more),
        helper.make_node("Transpose", ["c"], ["y"], "all", perm=[2, 0, 1, 3]),
        helper.make_node("Transpose", ["d"], ["z"], "ends", perm=[1, 0, 2]),
    ]
    constants = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    outputs = {"y": ("N", 5, directions, 4), "z": ("N", directions, 4)}
    model = graph_of(nodes, {"x": ("N", 5, 3), "n": ("N",)}, outputs, constants)
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT32
    path = saved(tmp_path, model)
    x, lengths = random.standard_normal((4, 5, 3)).astype(np.float32), np.array([5, 1, 3, 4], np.int32)
    found = bn.onnx.load(path).predict({"x": x, "n": lengths[:, None]})
    for ours, wanted in zip(found.values(), _runtime(path, {"x": x, "n": lengths}), strict=True):
        np.testing.assert_allclose(ours.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([5, 1], np.int32), "n"))
    with pytest.raises(bn.errors.OptionError, match="lengths that are no input must be those of whole samples"):
        bn.onnx.load(saved(tmp_path, model))
