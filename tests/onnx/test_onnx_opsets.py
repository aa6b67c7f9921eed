"""One network as each operator set writes it, from the oldest that is read to the newest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_graphs import graph_of, saved

import blobnet as bn
from blobnet.errors import BlobnetWarning, FileError, OptionError
from blobnet.onnx.reading import OLDEST_OPSET

#: The first operator sets of forms that change: numbers that become inputs, and what a sum over axes is called.
_NUMBERS = {"Clip": 11, "Pad": 11, "Slice": 10, "Split": 13, "Squeeze": 13, "ReduceMean": 18}


def _network(opset: int) -> Any:
    """A convolution, a norm, limits, an edge, a pool, more places, a part, groups in another order, means, a head."""
    random = np.random.default_rng(0)
    constants: dict[str, Any] = {
        "w": random.standard_normal((6, 3, 3, 3)).astype(np.float32) / 2,
        "variance": random.uniform(0.5, 1.5, 6).astype(np.float32),
        "head": random.standard_normal((6, 5)).astype(np.float32),
        "none": np.zeros(5, np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "roi": np.zeros(0, np.float32),
    }
    constants |= {name: random.standard_normal(6).astype(np.float32) for name in ("scale", "shift", "mean")}
    nodes: list[Any] = []

    def add(kind: str, *inputs: str, numbers: dict[str, Any] | None = None, outputs: int = 1, **attributes: Any) -> Any:
        """A node, whose numbers are attributes or inputs."""
        names = [f"v{len(nodes)}_{place}" for place in range(outputs)]
        if numbers and opset >= _NUMBERS[kind]:
            own = {f"{kind}{len(nodes)}_{name}": np.asarray(values) for name, values in numbers.items()}
            constants.update(own)
            inputs += tuple(own)
        else:
            attributes |= numbers or {}
        nodes.append(helper.make_node(kind, [*inputs], names, f"n{len(nodes)}", **attributes))
        return names if outputs > 1 else names[0]

    value = add("Conv", "x", "w", pads=[1] * 4)
    value = add("BatchNormalization", value, "scale", "shift", "mean", "variance")
    value = add("Clip", value, numbers={"min": np.float32(0), "max": np.float32(6)})
    value = add("Pad", value, numbers={"pads": [0, 0, 1, 1, 0, 0, 1, 1], "value": np.float32(0.5)})
    value = add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    if opset < 9:
        value = add("Upsample", value, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest")
    elif opset < 11:
        value = add("Upsample" if opset == 9 else "Resize", value, "scales", mode="nearest")
    else:
        value = add("Resize", value, "roi", "scales", mode="nearest")
    value = add("Slice", value, numbers={"starts": [1, 0], "ends": [9, -1], "axes": [2, 3]})
    first, second = add("Split", value, numbers={"split": [2, 4]}, outputs=2, axis=1)
    value = add("Concat", second, first, axis=1)
    value = add("Dropout", value)
    value = add("ReduceMean", value, numbers={"axes": [2, 3]}, keepdims=1)
    value = add("Squeeze", value, numbers={"axes": [2, 3]})
    value = add("Gemm", value, "head", "none")
    value = add("Softmax", value, axis=1)
    model = graph_of(nodes, {"x": ("N", 3, 8, 8)}, {value: ("N", 5)}, constants, opset=opset)
    model.ir_version = 8 if opset < 21 else 10
    return model


def test_every_operator_set_says_the_same(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    newest = onnx.defs.onnx_opset_version()
    (wanted,) = ReferenceEvaluator(_network(newest)).run(None, {"x": x})
    assert np.ptp(wanted) > 0.1
    for opset in range(OLDEST_OPSET, newest + 1):
        model = bn.onnx.load(saved(tmp_path, _network(opset)))
        np.testing.assert_allclose(model.predict(x), wanted, rtol=1e-4, atol=1e-6, err_msg=f"operator set {opset}")
        assert {"n0/weight", "n1/scale", "n1/shift"} < set(model.graph.trainable)


def _before_seven(sizes: tuple[int, ...]) -> Any:
    """Sums along an axis, a norm, and slopes (units,) as such files have them."""
    random = np.random.default_rng(2)
    units = sizes[0]
    constants = {
        name: random.uniform(0.5, 1.5, units).astype(np.float32) for name in ("a", "s", "b", "m", "v", "slope")
    }
    node = helper.make_node
    nodes = [
        node("Add", ["x", "a"], ["t"], "sum", axis=1, broadcast=1),
        node("BatchNormalization", ["t", "s", "b", "m", "v"], ["c"], "norm", is_test=1),
        node("PRelu", ["c", "slope"], ["d"], "slopes"),
        node("Dropout", ["d"], ["y"], "drop", is_test=1),
    ]
    return graph_of(nodes, {"x": ("N", *sizes)}, {"y": ("N", *sizes)}, constants, opset=6)


@pytest.mark.parametrize("sizes", [(3, 3), (3, 5), (4, 5, 4), (2, 3, 2, 2)])
def test_files_from_before_operator_set_seven(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """Also where as many values lie along the last axis as there are units, which newer slopes would be for."""
    model = _before_seven(sizes)
    arrays = {item.name: onnx.numpy_helper.to_array(item).astype(np.float64) for item in model.graph.initializer}
    x = np.random.default_rng(1).standard_normal((2, *sizes)).astype(np.float32)
    a, s, b, m, v, slope = (values.reshape(-1, *(1,) * (len(sizes) - 1)) for values in arrays.values())
    c = (x + a - m) * s / np.sqrt(v + 1e-5) + b
    path = saved(tmp_path, model)
    for found in (bn.onnx.load(path).predict(x), bn.onnx.Session(model).predict(x)):
        np.testing.assert_allclose(found, np.where(c > 0, c, slope * c), rtol=1e-5, atol=1e-6)
    model.graph.node[3].op_type = "Upsample"
    del model.graph.node[3].attribute[:]
    model.graph.node[3].attribute.extend(
        [helper.make_attribute("height_scale", 2.0), helper.make_attribute("width_scale", 2.0)]
    )
    model.opset_import[0].version = 1
    with pytest.raises(FileError, match=r"ONNX's version converter must know how|ONNX's checker accepts"):
        bn.onnx.load(saved(tmp_path, model))


@pytest.mark.parametrize("bias", [(), (1,), (5,), (1, 5), (3, 5), (3, 1), (1, 1)])
def test_sums_behind_a_gemm(bias: tuple[int, ...], tmp_path: Path) -> None:
    """What is added may be a matrix, the same for all samples."""
    random = np.random.default_rng(3)
    row = random.standard_normal((1, *bias[1:]) if len(bias) == 2 else bias).astype(np.float32)
    constants = {"w": random.standard_normal((4, 5)).astype(np.float32), "c": np.broadcast_to(row, bias).copy()}
    nodes = [helper.make_node("Gemm", ["x", "w", "c"], ["y"], "it", alpha=0.5, beta=3.0)]
    model = graph_of(nodes, {"x": (3, 4)}, {"y": (3, 5)}, constants)
    x = random.standard_normal((3, 4)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(bn.onnx.load(saved(tmp_path, model)).predict(x), wanted, rtol=1e-5, atol=1e-6)
    if len(bias) == 2 and bias[0] > 1:  # A session also takes one that differs.
        constants["c"] = random.standard_normal(bias).astype(np.float32)
        model = graph_of(nodes, {"x": (3, 4)}, {"y": (3, 5)}, constants)
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_allclose(bn.onnx.Session(model).predict(x), wanted, rtol=1e-5, atol=1e-6)


def test_inputs_and_outputs_without_shapes(tmp_path: Path) -> None:
    """Of an output nobody needs one; that of an input follows from arrays, or from sizes."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Sub", ["a", "one"], ["y"])]
    model = graph_of(nodes, {"x": ("N", 3, 4)}, {"y": None, "a": None}, {"one": np.float32(1)})
    model.graph.output[1].ClearField("type")
    x = np.random.default_rng(4).standard_normal((2, 3, 4)).astype(np.float32)
    before = model.SerializeToString(deterministic=True)
    for found in (bn.onnx.load(saved(tmp_path, model)).predict(x), bn.onnx.Session(model).predict(x)):
        np.testing.assert_array_equal(found["y"], np.maximum(x, 0) - 1)
        np.testing.assert_array_equal(found["a"], np.maximum(x, 0))
    assert model.SerializeToString(deterministic=True) == before
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path = saved(tmp_path, model)
    np.testing.assert_array_equal(bn.onnx.Session(path).predict(x)["a"], np.maximum(x, 0))
    assert bn.onnx.load(path, sizes={"x": x.shape}).graph.input.shape.dimensions == (3, 4)
    rule = r"input x: an input must have axes, of which the file says nothing\. Hint: load\(\.\.\., sizes=\{'x': \("
    with pytest.raises(OptionError, match=rule):
        bn.onnx.load(path)


def test_shapes_of_outputs_that_a_file_gets_wrong(tmp_path: Path) -> None:
    nodes = [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2])]
    for said in ((1, 3, 5, 5), (1, 3, 4), (7, 2, "h", 4)):
        path = saved(tmp_path, graph_of(nodes, {"x": (1, 3, 5, 5)}, {"y": said}))
        rule = r"output y: an output should have the shape that the file says.*file=\(.*found=\(samples, 3, 4, 4\)"
        with pytest.warns(BlobnetWarning, match=rule):
            bn.onnx.load(path)
        with pytest.warns(BlobnetWarning, match=rule):
            bn.onnx.Session(path).network()
    for said in ((1, 3, 4, 4), ("n", "c", "h", "w"), (5, 3, 4, "w")):
        bn.onnx.load(saved(tmp_path, graph_of(nodes, {"x": (1, 3, 5, 5)}, {"y": said})))
