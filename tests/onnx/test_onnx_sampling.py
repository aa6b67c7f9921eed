"""GridSample, GatherElements and DFT, against onnxruntime, PyTorch and NumPy; and states that are made of the batch."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper
from onnx_graphs import graph_of, saved

import blobnet as bn
from blobnet.device.device import Device


def _runtime(path: Path, inputs: dict[str, Any]) -> list[np.ndarray]:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)


@pytest.mark.parametrize(
    ("mode", "padding", "corners"),
    [
        *itertools.product(["bilinear"], ["zeros", "border", "reflection"], [0, 1]),
        ("nearest", "zeros", 1),
        ("nearest", "border", 0),
        ("nearest", "reflection", 1),
        ("bicubic", "zeros", 0),
        ("bicubic", "border", 1),
        ("bicubic", "reflection", 0),
        ("bicubic", "reflection", 1),
    ],
)
def test_grid_samples(device: Device, mode: str, padding: str, corners: int, tmp_path: Path) -> None:
    """Of places within and far outside, whose gradients are PyTorch's in float64; of grids that are constants, too."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng([corners, len(padding), len(mode)])
    units, height, width, rows, columns = (int(size) for size in 1 + random.integers(1, 7, 5))
    count = int(random.integers(1, 4))
    x = random.standard_normal((count, units, height, width)).astype(np.float32)
    grid = random.uniform(-2.5, 2.5, (count, rows, columns, 2)).astype(np.float32)
    options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    nodes = [helper.make_node("GridSample", ["x", "grid"], ["y"], "sample", **options)]
    shapes = {"x": ("N", *x.shape[1:]), "grid": ("N", *grid.shape[1:])}
    path = saved(tmp_path, graph_of(nodes, shapes, {"y": ("N", units, rows, columns)}))
    model, inputs = bn.onnx.load(path), {"x": x, "grid": grid}
    found = model.predict(inputs, device=device)
    np.testing.assert_allclose(found, _runtime(path, inputs)[0], rtol=2e-4, atol=2e-5)
    ends = {name: torch.tensor(values, dtype=torch.float64).requires_grad_() for name, values in inputs.items()}
    y = torch.nn.functional.grid_sample(*ends.values(), mode, padding, bool(corners))
    np.testing.assert_allclose(found, y.detach(), rtol=2e-4, atol=2e-5)
    target = random.standard_normal(y.shape).astype(np.float32)
    ((y - torch.from_numpy(target)) ** 2).mean().backward()
    gradients = model.gradients(inputs, target, loss=bn.losses.MeanSquaredError(), device=device)
    for name, values in ends.items():
        wanted = values.grad.numpy()
        np.testing.assert_allclose(gradients[name], wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max() + 1e-6)
    if padding != "zeros":
        return
    bn.onnx.save(model, tmp_path / "again.onnx")
    np.testing.assert_allclose(_runtime(tmp_path / "again.onnx", inputs)[0], found, rtol=1e-4, atol=1e-5)
    fixed = saved(tmp_path, graph_of(nodes, {"x": shapes["x"]}, {"y": None}, {"grid": grid[:1]}))
    wanted = torch.nn.functional.grid_sample(
        ends["x"], ends["grid"][:1].expand(count, -1, -1, -1), mode, padding, bool(corners)
    )
    found = bn.onnx.load(fixed).predict(x, device=device)
    np.testing.assert_allclose(found, wanted.detach(), rtol=2e-4, atol=2e-5)


def test_a_transformer_of_pictures_that_begins_with_the_identity_trains(device: Device, tmp_path: Path) -> None:
    """All places are cells' own ones, where slopes have a kink: they are those of PyTorch, to the right."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 5, 9)).astype(np.float32)
    # Sides of a power of two and one: the places are exact.
    rows, columns = np.linspace(-1, 1, 5), np.linspace(-1, 1, 9)
    grid = np.stack(np.broadcast_arrays(columns[None, :], rows[:, None]), -1).astype(np.float32)[None].repeat(2, 0)
    nodes = [helper.make_node("GridSample", ["x", "grid"], ["y"], "sample", align_corners=1)]
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 3, 5, 9), "grid": ("N", 5, 9, 2)}, {"y": None}))
    places = torch.tensor(grid, dtype=torch.float64).requires_grad_()
    torch.nn.functional.grid_sample(torch.tensor(x).double(), places, align_corners=True).square().mean().backward()
    gradients = bn.onnx.load(path).gradients(
        {"x": x, "grid": grid}, np.zeros_like(x), loss=bn.losses.MeanSquaredError(), device=device
    )
    np.testing.assert_allclose(gradients["grid"], places.grad, rtol=1e-4, atol=1e-6)
    assert np.abs(gradients["grid"][:, :-1, :-1]).min() > 0


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_samples_of_volumes(device: Device, mode: str, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((3, 2, 4, 3, 5)).astype(np.float32)
    grid = random.uniform(-1.5, 1.5, (3, 2, 5, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("GridSample", ["x", "grid"], ["y"], "sample", mode=mode, padding_mode="border")]
    model = graph_of(nodes, {"x": ("N", *x.shape[1:]), "grid": ("N", *grid.shape[1:])}, {"y": None}, opset=20)
    path = saved(tmp_path, model)
    found = bn.onnx.load(path).predict({"x": x, "grid": grid}, device=device)
    np.testing.assert_allclose(found, _runtime(path, {"x": x, "grid": grid})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("kind", ["constant", "whole numbers", "computed"])
def test_elements_are_gathered(device: Device, kind: str, axis: int, tmp_path: Path) -> None:
    """By indexes that the file has, that are an input, or that the host makes of another one; fewer ones, too."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng([axis % 3, len(kind)])
    x = random.standard_normal((3, 4, 5, 6)).astype(np.float32)
    shape = [3, *(int(random.integers(2, size + 1)) for size in x.shape[1:])]
    shape[axis] = int(random.integers(1, 9))
    indexes = random.integers(-x.shape[axis], x.shape[axis], shape)
    last = helper.make_node("GatherElements", ["x", "i"], ["y"], "elements", axis=axis)
    nodes, inputs = [last], {"x": x}
    if kind == "constant":
        indexes[:] = indexes[:1]
        model = graph_of(nodes, {"x": x.shape}, {"y": None}, {"i": indexes})
    elif kind == "whole numbers":
        inputs["i"] = indexes
        model = graph_of(nodes, {"x": ("N", *x.shape[1:])}, {"y": None})
        model.graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, ["N", *shape[1:]]))
    else:
        inputs["p"] = indexes.astype(np.float32) + np.float32(0.5)
        nodes = [helper.make_node("Floor", ["p"], ["f"]), helper.make_node("Cast", ["f"], ["i"], to=7), last]
        model = graph_of(nodes, {"x": ("N", *x.shape[1:]), "p": ("N", *shape[1:])}, {"y": None})
    path = saved(tmp_path, model)
    found = bn.onnx.Session(path, device=device).predict(inputs if len(inputs) > 1 else x)
    np.testing.assert_array_equal(found, _runtime(path, inputs)[0])
    if kind == "constant":
        values = torch.tensor(x, dtype=torch.float64).requires_grad_()
        cut = values[tuple(slice(None if own == axis % 4 else size) for own, size in enumerate(shape))]
        y = torch.gather(cut, axis, torch.tensor(indexes % x.shape[axis]))
        y.square().mean().backward()
        gradients = bn.onnx.load(path).gradients(x, np.zeros(shape), loss=bn.losses.MeanSquaredError(), device=device)
        np.testing.assert_allclose(gradients["input"], values.grad, rtol=1e-5, atol=1e-7)


def test_gathering_that_lets_samples_meet_is_told(tmp_path: Path) -> None:
    nodes = [helper.make_node("GatherElements", ["x", "i"], ["y"], "elements", axis=1)]
    path = saved(tmp_path, graph_of(nodes, {"x": (2, 4)}, {"y": None}, {"i": np.array([[0, 3], [1, 1]])}))
    with pytest.raises(
        bn.errors.OptionError, match=r"elements \(GatherElements\): a constant must be the same for all"
    ):
        bn.onnx.load(path)
    nodes = [helper.make_node("GatherElements", ["x", "i"], ["y"], "elements", axis=1)]
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 4)}, {"y": None}, {"i": np.array([[0, 4]])}))
    with pytest.raises(bn.errors.OptionError, match=r"elements \(GatherElements\): indexes must be within the axis"):
        bn.onnx.load(path)


@pytest.mark.parametrize("length", [None, 5, 12])
@pytest.mark.parametrize("case", ["real", "onesided", "complex", "inverse", "inverse onesided"])
def test_fourier_transforms(device: Device, case: str, length: int | None, tmp_path: Path) -> None:
    """Cut off and filled up, along the last axis of signals and another one, in both forms of the operator."""
    random = np.random.default_rng(len(case) + (length or 0))
    onesided, inverse, parts = "onesided" in case, "inverse" in case, 1 if case in ("real", "onesided") else 2
    x = random.standard_normal((3, 4, 8, parts)).astype(np.float32)
    for opset, axis in ((17, 2), (20, -2), (20, 1)):
        options = {"onesided": int(onesided), "inverse": int(inverse)}
        options |= {"axis": axis} if opset == 17 else {}
        names = ["x", "length" if length else "", *["axis"] * (opset == 20)]
        constants = {"length": np.array(length or 0), "axis": np.array(axis)}
        nodes = [helper.make_node("DFT", names, ["y"], "waves", **options)]
        path = saved(tmp_path, graph_of(nodes, {"x": ("N", *x.shape[1:])}, {"y": None}, constants, opset=opset))
        along, values = axis % 4, x.astype(np.float64) @ ([1] if parts == 1 else [1, 1j])
        size = length or (2 * (x.shape[along] - 1) if onesided and inverse else x.shape[along])
        transform = {"onesided": np.fft.rfft, "inverse": np.fft.ifft, "inverse onesided": np.fft.irfft}
        wanted = transform.get(case, np.fft.fft)(values, size, along)
        wanted = np.stack([wanted.real, wanted.imag][: 1 if case == "inverse onesided" else 2], -1)
        found = bn.onnx.load(path).predict(x, device=device)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)
        if case != "inverse onesided":  # Which onnxruntime does not have.
            np.testing.assert_allclose(found, _runtime(path, {"x": x})[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("count", [1, 4])
def test_zero_states_are_made_of_the_batch(device: Device, count: int, tmp_path: Path) -> None:
    """As recurrent networks have them: zeros of (samples, 3), to which each trip of a scan adds."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["m"], "product"),
            helper.make_node("Add", ["m", "part"], ["s"], "sum"),
            helper.make_node("Tanh", ["s"], ["next"], "tanh"),
        ],
        "body",
        [helper.make_tensor_value_info(name, 1, ["N", 3]) for name in ("state", "part")],
        [helper.make_tensor_value_info("next", 1, ["N", 3])],
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["samples"]),
        helper.make_node("Concat", ["samples", "units"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"], "zeros"),
        helper.make_node("Scan", ["zeros", "x"], ["y"], "scan", num_scan_inputs=1, scan_input_axes=[1], body=body),
    ]
    random = np.random.default_rng(count)
    constants = {"zero": np.array([0]), "units": np.array([3]), "w": random.standard_normal((3, 3)).astype(np.float32)}
    path = saved(tmp_path, graph_of(nodes, {"x": ("N", 5, 3)}, {"y": ("N", 3)}, constants))
    x = random.standard_normal((count, 5, 3)).astype(np.float32)
    model = bn.onnx.load(path)
    np.testing.assert_allclose(model.predict(x, device=device), _runtime(path, {"x": x})[0], rtol=1e-5, atol=1e-6)
