"""What was read from an ONNX file trains as what it was exported from, in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

import torch
from onnx import helper
from onnx_graphs import graph_of, saved

import blobnet as bn

#: Steps from samples (N, 3, 4, 5) on, each an operator and its number: what is done to an input, and what stays.
_SCALINGS = {
    "whole pictures": [("Cast", 1), ("Mul", 1 / 127.5), ("Add", -1.0)],
    "each unit": [("Div", 255.0), ("Sub", "units"), ("Mul", "scales")],
    "in the other order": [("Sub", "units"), ("Identity", None), ("Div", "scales"), ("Add", 0.5), ("Mul", 3.0)],
    "of constants": [("Mul", "constant")],
    "nothing: a sign": [("Mul", -1.0)],
    "nothing: of columns": [("Add", "columns")],
}


@pytest.mark.filterwarnings("ignore:x. normalised samples should have")
@pytest.mark.parametrize("case", _SCALINGS)
def test_what_scales_an_input_is_its_normalization(case: str, tmp_path: Path) -> None:
    """Whatever operators do it, by numbers of the file; so another normalization is in its place, and not beside it."""
    random = np.random.default_rng(len(case))
    constants: dict[str, Any] = {
        "units": random.standard_normal((3, 1, 1)).astype(np.float32),
        "scales": random.uniform(0.5, 2, (1, 3, 1, 1)).astype(np.float32),
        "columns": random.standard_normal(5).astype(np.float32),
    }
    value, nodes, wanted = "x", [], (x := random.integers(0, 256, (2, 3, 4, 5)).astype(np.float32)).astype(np.float64)
    for place, (kind, number) in enumerate(_SCALINGS[case]):
        if number == "constant":
            tensor = helper.make_tensor(number, 1, (), [0.25])
            nodes, constants = [*nodes, helper.make_node("Constant", [], [number], value=tensor)], {number: 0.25}
        elif isinstance(number, float):
            constants[f"n{place}"] = np.float32(number)
        name = number if isinstance(number, str) else f"n{place}"
        inputs = [value] if kind in ("Cast", "Identity") else [name, value] if kind == "Mul" else [value, name]
        nodes.append(
            helper.make_node(kind, inputs, [f"v{place}"], f"s{place}", **({"to": 1} if kind == "Cast" else {}))
        )
        value, own = f"v{place}", np.float64(constants.get(name, 0))
        functions = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract, "Div": np.divide}
        wanted = functions[kind](wanted, own) if kind in functions else wanted
    nodes.append(helper.make_node("Relu", [value], ["y"], "relu"))
    constants = {key: item for key, item in constants.items() if key != "constant"}
    model = bn.onnx.load(saved(tmp_path, graph_of(nodes, {"x": ("N", 3, 4, 5)}, {"y": None}, constants)))
    np.testing.assert_allclose(model.predict(x), np.maximum(wanted, 0), rtol=1e-5, atol=1e-5)
    kinds = [vertex.layer.kind for vertex in model.graph.vertices]
    if "nothing" in case:
        assert "Contraction" in kinds
        return
    assert kinds == ["Input", "Activation"]
    model.set_normalization([1, 2, 3], [2, 1, 4])
    again = (x - np.reshape([1, 2, 3], (3, 1, 1))) / np.reshape([2, 1, 4], (3, 1, 1))
    np.testing.assert_allclose(model.predict(x), np.maximum(again, 0), rtol=1e-6, atol=1e-6)


def test_a_branch_reads_the_input_itself(tmp_path: Path) -> None:
    """What an If within reads is no longer all that a graph around it scales."""
    branch = [
        helper.make_graph([helper.make_node(kind, ["x"], [f"out{kind}"], f"in{kind}")], kind, [], [
            helper.make_tensor_value_info(f"out{kind}", 1, ["N", 4])
        ])
        for kind in ("Tanh", "Relu")
    ]  # fmt: skip
    nodes = [
        helper.make_node("Sub", ["x", "one"], ["a"], "less"),
        helper.make_node("If", ["yes"], ["b"], "choice", then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Mul", ["a", "b"], ["y"], "both"),
    ]
    constants = {"one": np.float32(1), "yes": np.array(True)}
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 4)}, {"y": None}, constants))
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(bn.onnx.load(path).predict(x), (x - 1) * np.tanh(x), rtol=1e-5, atol=1e-6)


def _network(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Convolutions, a norm that is trained, a pool, a residual; and in PyTorch, with the names of its parameters."""
    torch.manual_seed(0)
    first, norm = torch.nn.Conv2d(3, 6, 3, stride=2, padding=1), torch.nn.BatchNorm2d(6, eps=1e-3)
    second, head = torch.nn.Conv2d(6, 6, 3, padding=1, groups=2, bias=False), torch.nn.Linear(6, 5)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 1.5)
    parts = {"first": first, "norm": norm, "second": second, "head": head}
    constants = {
        f"{name}.{key}": value.detach().numpy()
        for name, part in parts.items()
        for key, value in part.state_dict().items()
        if value.ndim
    }
    nodes = [
        helper.make_node("Conv", ["image", "first.weight", "first.bias"], ["a"], "first", pads=[1] * 4, strides=[2, 2]),
        helper.make_node(
            "BatchNormalization",
            ["a", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"],
            ["b"],
            "norm",
            epsilon=1e-3,
        ),
        helper.make_node("Relu", ["b"], ["c"], "relu"),
        helper.make_node("Conv", ["c", "second.weight"], ["d"], "second", pads=[1] * 4, group=2),
        helper.make_node("Add", ["c", "d"], ["e"], "sum"),
        helper.make_node("GlobalAveragePool", ["e"], ["f"], "pool"),
        helper.make_node("Flatten", ["f"], ["g"], "flat"),
        helper.make_node("Gemm", ["g", "head.weight", "head.bias"], ["logits"], "head", transB=1),
    ]
    model = graph_of(nodes, {"image": ("N", 3, 11, 9)}, {"logits": ("N", 5)}, constants)

    def run(x: Any) -> Any:
        hidden = torch.relu(norm(first(x)))
        return head((hidden + second(hidden)).mean((2, 3)))

    return bn.onnx.load(saved(folder, model)), {"run": run, **parts}


def test_gradients_are_those_of_pytorch(tmp_path: Path) -> None:
    model, twin = _network(tmp_path)
    random = np.random.default_rng(1)
    x, y = random.standard_normal((7, 3, 11, 9)).astype(np.float32), random.integers(0, 5, 7)
    for part in ("first", "norm", "second", "head"):
        twin[part].eval()
    with torch.no_grad():
        wanted = twin["run"](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model.predict(x), wanted, rtol=1e-4, atol=1e-5)
    twin["norm"].train()
    entry = torch.from_numpy(x).requires_grad_()
    torch.nn.functional.cross_entropy(twin["run"](entry), torch.from_numpy(y)).backward()
    found = model.gradients(x, y, loss="cross_entropy")
    names = {"weight": "weight", "bias": "bias"}
    for part in ("first", "norm", "second", "head"):
        own = {"weight": "scale", "bias": "shift"} if part == "norm" else names
        for key, parameter in twin[part].named_parameters():
            gradient = found[f"{part}/{own[key]}"]
            np.testing.assert_allclose(gradient, parameter.grad.numpy(), rtol=2e-3, atol=2e-5, err_msg=f"{part} {key}")
    np.testing.assert_allclose(found["input"], entry.grad.numpy(), rtol=2e-3, atol=2e-5)


def test_fine_tuning_with_another_head(tmp_path: Path) -> None:
    model, _ = _network(tmp_path)
    small = model.with_classes(3, ["a", "b", "c"], seed=2)
    assert small.graph.output.shape.units == 3
    frozen = small.layers_until("pool")
    assert frozen == ["first", "norm", "second"]
    random = np.random.default_rng(3)
    y = random.integers(0, 3, 60)
    x = random.standard_normal((60, 3, 11, 9)).astype(np.float32) + y[:, None, None, None]
    before = small.weights
    history = small.fit(x, y, epochs=6, batch_size=20, optimizer=bn.optimizers.Adam(0.05), freeze=frozen, verbose=False)
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    for name, values in small.weights.items():
        assert np.array_equal(values, before[name]) == (not name.startswith("head/")), name
    small.save(tmp_path / "small.h5")
    again = bn.load(tmp_path / "small.h5")
    assert again.class_names == ("a", "b", "c")
    np.testing.assert_array_equal(again.predict(x), small.predict(x))


def test_operators_without_a_layer_train_too(tmp_path: Path) -> None:
    """A resize by a matrix, a gather in no order, a vector, a norm over the last axis, a product with a matrix."""
    random = np.random.default_rng(4)
    order = [3, 0, 0, 2, 1, 2]
    constants = {
        "sizes": np.array([1, 4, 5, 8], np.int64),
        "order": np.array(order, np.int64),
        "factor": random.uniform(0.5, 1.5, (6, 1, 1)).astype(np.float32),
        "mask": random.uniform(0.5, 1.5, (6, 5, 8)).astype(np.float32),
        "scale": random.uniform(0.5, 1.5, 8).astype(np.float32),
        "shift": random.standard_normal(8).astype(np.float32),
        "matrix": random.standard_normal((8, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["a"], "resize", mode="linear"),
        helper.make_node("Gather", ["a", "order"], ["b"], "gather", axis=1),
        helper.make_node("Mul", ["b", "factor"], ["c"], "factor"),
        helper.make_node("Mul", ["c", "mask"], ["d"], "mask"),
        helper.make_node("LayerNormalization", ["d", "scale", "shift"], ["e"], "norm"),
        helper.make_node("MatMul", ["e", "matrix"], ["y"], "matrix"),
    ]
    model = bn.onnx.load(saved(tmp_path, graph_of(nodes, {"x": (1, 4, 5, 6)}, {"y": (1, 6, 5, 3)}, constants)))
    x = random.standard_normal((3, 4, 5, 6)).astype(np.float32)
    target = random.standard_normal((3, 6, 5, 3)).astype(np.float32)

    tensors = {name: torch.from_numpy(values) for name, values in constants.items() if values.dtype == np.float32}
    trained = ("factor", "scale", "shift", "matrix")
    for name in trained:
        tensors[name].requires_grad_()
    entry = torch.from_numpy(x).requires_grad_()
    hidden = torch.nn.functional.interpolate(entry, size=(5, 8), mode="bilinear")[:, order]
    hidden = hidden * tensors["factor"] * tensors["mask"]
    hidden = torch.nn.functional.layer_norm(hidden, (8,), tensors["scale"], tensors["shift"])
    result = hidden @ tensors["matrix"]
    loss = ((result - torch.from_numpy(target)) ** 2).mean(dim=(1, 2, 3)).mean()
    loss.backward()
    np.testing.assert_allclose(model.predict(x), result.detach().numpy(), rtol=1e-4, atol=1e-5)
    found = model.gradients(x, target, loss="mse")
    of_layers = {"factor": "factor/scale", "scale": "norm/scale", "shift": "norm/shift", "matrix": "matrix/weight"}
    assert set(found) == {*of_layers.values(), "input"}
    for name, own in of_layers.items():
        wanted = tensors[name].grad.numpy().reshape(found[own].shape)
        np.testing.assert_allclose(found[own], wanted, rtol=2e-3, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found["input"], entry.grad.numpy(), rtol=2e-3, atol=1e-5)

    given = {name: values for name, values in model.weights.items() if name.rpartition("/")[2].startswith("value")}
    assert given
    history = model.fit(x, target, epochs=5, loss="mse", optimizer=bn.optimizers.Adam(0.01), verbose=False)
    assert history["loss"][-1] < history["loss"][0]
    after = model.weights
    assert all(np.array_equal(after[name], values) for name, values in given.items())
    model.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(bn.load(tmp_path / "model.h5").predict(x), model.predict(x))


@pytest.mark.parametrize("order", ["product first", "bias first"])
def test_a_bias_that_a_sum_adds_is_the_layers_own(tmp_path: Path, order: str) -> None:
    rng = np.random.default_rng(7)
    constants = {"w": rng.standard_normal((3, 4)).astype(np.float32), "b": rng.standard_normal(4).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], "head"),
        helper.make_node("Add", ["product", "b"] if order == "product first" else ["b", "product"], ["y"], "bias"),
    ]
    model = bn.onnx.load(saved(tmp_path, graph_of(nodes, {"x": ("N", 3)}, {"y": ("N", 4)}, constants)))
    assert set(model.weights) >= {"head/weight", "head/bias"}
    x = rng.standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_allclose(model.predict(x), x @ constants["w"] + constants["b"], rtol=1e-5, atol=1e-6)
    assert model.with_classes(7).predict(x).shape == (5, 7)


def test_a_product_that_others_read_too_stays_without_a_bias(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    constants = {"w": rng.standard_normal((3, 4)).astype(np.float32), "b": rng.standard_normal(4).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], "head"),
        helper.make_node("Add", ["product", "b"], ["sum"], "bias"),
        helper.make_node("Mul", ["sum", "product"], ["y"], "gate"),
    ]
    model = bn.onnx.load(saved(tmp_path, graph_of(nodes, {"x": ("N", 3)}, {"y": ("N", 4)}, constants)))
    x = rng.standard_normal((5, 3)).astype(np.float32)
    product = x @ constants["w"]
    np.testing.assert_allclose(model.predict(x), (product + constants["b"]) * product, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_that_exporters_write_for_open_axes(tmp_path: Path, size: int) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    path = saved(tmp_path, graph_of(nodes, {"x": (size, 3, size)}, {"y": (size, 3, size)}))
    with pytest.raises(bn.errors.OptionError, match=r"must have a size of at least 1"):
        bn.onnx.load(path)
    x = np.random.default_rng(0).standard_normal((4, 3, 6)).astype(np.float32)
    np.testing.assert_array_equal(bn.onnx.load(path, sizes={"x": (1, 3, 6)}).predict(x), np.maximum(x, 0))


def test_sizes_of_a_sample(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 3, "width")}, {"y": ("N", 3, "width")}))
    assert bn.onnx.load(path, sizes=(3, 6)).graph.input.shape.dimensions == (3, 6)
    rule = r"input x: the sizes of an input must be those that the file says. Received sizes=\(1, 9, 6\)"
    with pytest.raises(bn.errors.OptionError, match=rule):
        bn.onnx.load(path, sizes=(9, 6))
    with pytest.raises(bn.errors.OptionError, match=r"as many axes as the file says\. Received sample=\(3, 6, 6\)"):
        bn.onnx.load(path, sizes=(3, 6, 6))
    nodes = [helper.make_node("Add", ["a", "b"], ["y"], "sum")]
    path = saved(tmp_path, graph_of(nodes, {"a": ("N", "k"), "b": ("N", "k")}, {"y": ("N", "k")}))
    with pytest.raises(bn.errors.OptionError, match=r"the shape of a sample is that of one input"):
        bn.onnx.load(path, sizes=(3,))


def _quantised(kind: str, is_whole: bool, per_unit: bool) -> Any:
    """A network of quantised values, whose scales are powers of 2: all sums are exact, in any order."""
    random = np.random.default_rng(7)
    info = np.iinfo(kind)
    weights = random.integers(-6, 7, (5, 4, 3, 3)).astype(np.int8)
    scales = (2.0 ** random.integers(-5, -2, 5)).astype(np.float32) if per_unit else np.float32(2**-4)
    constants = {
        "s0": np.float32(2**-5),
        "z0": np.array(random.integers(info.min // 16, info.max // 16 + 1), kind),
        "w": weights,
        "sw": scales,
        "zw": np.zeros_like(scales, np.int8),
        "b": random.integers(-99, 99, 5).astype(np.int32),
        "sb": np.float32(2**-5) * scales,
        "zb": np.zeros_like(scales, np.int32),
        "s1": np.float32(2**-3),
        "z1": np.array(3, kind),
        "m": random.integers(-6, 7, (20, 3)).astype(np.int8),
        "sm": np.float32(2**-2),
        "zm": np.array(1, np.int8),
        "s2": np.float32(2**-1),
    }
    node = helper.make_node
    first = [node("QuantizeLinear", ["x", "s0", "z0"], ["q0"], "q0")]
    if is_whole:
        inputs = ["q0", "s0", "z0", "w", "sw", "zw", "s1", "z1", "b"]
        first += [node("QLinearConv", inputs, ["q1"], "conv", strides=[2, 2])]
    else:
        first += [
            node("DequantizeLinear", ["q0", "s0", "z0"], ["f0"], "f0"),
            node("DequantizeLinear", ["w", "sw", "zw"], ["fw"], "fw", axis=0),
            node("DequantizeLinear", ["b", "sb", "zb"], ["fb"], "fb", axis=0),
            node("Conv", ["f0", "fw", "fb"], ["c"], "conv", strides=[2, 2]),
            node("QuantizeLinear", ["c", "s1", "z1"], ["q1"], "q1"),
        ]
    last = [node("MaxPool", ["q1"], ["p"], "pool", kernel_shape=[2, 2]), node("Flatten", ["p"], ["f"], "flat")]
    if is_whole:
        last += [node("QLinearMatMul", ["f", "s1", "z1", "m", "sm", "zm", "s2", "z1"], ["q2"], "product")]
    else:
        last += [
            node("DequantizeLinear", ["f", "s1", "z1"], ["f1"], "f1"),
            node("DequantizeLinear", ["m", "sm", "zm"], ["fm"], "fm"),
            node("MatMul", ["f1", "fm"], ["d"], "product"),
            node("QuantizeLinear", ["d", "s2", "z1"], ["q2"], "q2"),
        ]
    last += [node("DequantizeLinear", ["q2", "s2", "z1"], ["y"], "y")]
    return graph_of(first + last, {"x": ("N", 4, 7, 7)}, {"y": ("N", 3)}, constants)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("per_unit", [False, True])
def test_quantised_networks_give_what_onnxruntime_gives(
    tmp_path: Path, kind: str, is_whole: bool, per_unit: bool
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    path = saved(tmp_path, _quantised(kind, is_whole, per_unit))
    with pytest.warns(bn.errors.BlobnetWarning, match="its quantised values are computed in float32"):
        model = bn.onnx.load(path)
    x = np.random.default_rng(8).normal(0, 2, (40, 4, 7, 7)).astype(np.float32)
    x[0] *= 100  # Beyond the largest numbers.
    x[1] = (np.arange(x[1].size).reshape(x[1].shape) + 0.5) / 32  # Between two of them.
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (wanted,) = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert len(np.unique(wanted)) > 20
    np.testing.assert_array_equal(model.predict(x), wanted)


def test_quantised_networks_train_as_pytorch_trains_them(tmp_path: Path) -> None:
    """Gradients pass what is rounded, and not what is cut off (torch.fake_quantize_per_tensor_affine)."""
    random = np.random.default_rng(9)
    weight = random.standard_normal((3, 6)).astype(np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["f"], "f"),
        helper.make_node("Gemm", ["f", "w"], ["y"], "head", transB=1),
    ]
    constants = {"s": np.float32(0.11), "z": np.array(-20, np.int8), "w": weight}
    model = graph_of(nodes, {"x": ("N", 6)}, {"y": ("N", 3)}, constants)
    with pytest.warns(bn.errors.BlobnetWarning, match="quantised"):
        net = bn.onnx.load(saved(tmp_path, model))
    x, y = random.normal(0, 10, (9, 6)).astype(np.float32), random.integers(0, 3, 9)
    entry, own = torch.from_numpy(x).requires_grad_(), torch.from_numpy(weight).requires_grad_()
    logits = torch.fake_quantize_per_tensor_affine(entry, 0.11, -20, -128, 127) @ own.T
    np.testing.assert_allclose(net.predict(x), logits.detach().numpy(), rtol=1e-5, atol=1e-5)
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(y)).backward()
    found = net.gradients(x, y, loss="cross_entropy")
    assert entry.grad is not None
    assert own.grad is not None
    assert (entry.grad == 0).any()
    np.testing.assert_allclose(found["input"], entry.grad.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["head/weight"], own.grad.numpy(), rtol=1e-4, atol=1e-6)
