"""Modules of PyTorch as models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet.errors import OptionError
from blobnet.optimizers import SGD

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnx")


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A residual network with a norm, gates, and a dense layer behind a flattened plane."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU())
        self.gates = nn.Linear(4, 4)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(4 * 3 * 4, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.inner(x)
        x = x * torch.sigmoid(self.gates(x.mean((2, 3))))[:, :, None, None]
        return self.head(self.pool(x).flatten(1))


def net() -> Any:
    torch.manual_seed(0)
    module = Net()
    with torch.no_grad():
        module.norm.running_mean.normal_()
        module.norm.running_var.uniform_(0.5, 2)
        module.norm.weight.normal_()
    return module


@pytest.mark.parametrize("count", [1, 3])
def test_a_module_becomes_a_model_that_trains(device: Any, count: int) -> None:
    module = net().train()
    model = bn.from_torch(module, torch.zeros(count, 2, 6, 8))
    assert module.training
    assert module.norm.training
    x = np.random.default_rng(0).normal(size=(5, 2, 6, 8)).astype(np.float32)
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model.predict(x, device=device), expected, atol=1e-5)
    # Layers have the modules' names, and their weights.
    weights = model.weights
    np.testing.assert_array_equal(weights["stem/weight"], module.stem.weight.detach().numpy())
    np.testing.assert_array_equal(weights["inner.0/weight"], module.inner[0].weight.detach().numpy())
    np.testing.assert_array_equal(weights["norm/running_mean"], module.norm.running_mean.numpy())
    np.testing.assert_array_equal(weights["head/weight"], module.head.weight.detach().numpy())

    # A step of training is PyTorch's step: the norm runs as in training.
    y = np.arange(5)
    loss = torch.nn.functional.cross_entropy(module.train()(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    with torch.no_grad():
        after = (module.stem.weight - 0.1 * module.stem.weight.grad).numpy()
    model.fit(x, y, batch_size=5, epochs=1, optimizer=SGD(0.1), device=device)
    np.testing.assert_allclose(model.weights["stem/weight"], after, atol=1e-5)
    np.testing.assert_allclose(model.weights["norm/running_mean"], module.norm.running_mean.numpy(), atol=1e-5)


class Parts(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Operators that take a tensor apart and put it together again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norms = torch.nn.Sequential(torch.nn.GroupNorm(2, 4), torch.nn.Hardswish(), torch.nn.PixelShuffle(2))
        self.pool = torch.nn.AdaptiveAvgPool2d(2)

    def forward(self, x: Any) -> Any:
        values, gates = torch.chunk(self.conv(x), 2, 1)
        first, second = torch.split(values * torch.sigmoid(gates), [1, 3], 1)
        both = torch.cat([second, torch.nn.functional.silu(first)], 1)
        planes = self.pool(self.norms(torch.stack([both, both.abs().sqrt().exp()], 2).mean(2)))
        pieces = torch.chunk(x, 4, 3)  # 7 columns in parts of 2, 2, 2 and 1
        return torch.cat([planes.permute(0, 2, 3, 1).flatten(1), pieces[3].pow(2).flatten(1), pieces[1].sum((2, 3))], 1)


def test_parts_of_tensors(device: Any) -> None:
    torch.manual_seed(1)
    module = Parts().eval()
    model = bn.from_torch(module, torch.zeros(2, 3, 6, 7))
    x = np.random.default_rng(2).normal(size=(3, 3, 6, 7)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model.predict(x, device=device), expected, atol=1e-5)


class Einsum(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Any) -> Any:
        return torch.einsum("nchw,fc->nfhw", x, self.weight)


@pytest.mark.parametrize("part", [Einsum, lambda: torch.nn.AdaptiveAvgPool2d((4, 5)), lambda: torch.nn.LPPool2d(2, 3)])
def test_parts_whose_windows_are_gathered(device: Any, tmp_path: Path, part: Any) -> None:
    """Of which no size divides the next; and as they are written to ONNX."""
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), part()).eval()
    model = bn.from_torch(module, torch.zeros(2, 3, 8, 9))
    x = np.random.default_rng(2).normal(size=(3, 3, 8, 9)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model.predict(x, device=device), expected, atol=1e-5)
    bn.onnx.save(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(bn.onnx.Session(tmp_path / "model.onnx").predict(x), expected, atol=1e-5)


class Two(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, left: Any, right: Any) -> Any:
        return torch.cat([left, right], 1) * 2


def test_several_inputs(device: Any) -> None:
    model = bn.from_torch(Two(), (torch.zeros(1, 3, 4), torch.zeros(1, 2, 4)))
    given = [np.full((2, units, 4), units, np.float32) for units in (3, 2)]
    x = dict(zip(model.graph.inputs, given, strict=True))
    np.testing.assert_array_equal(model.predict(x, device=device), 2 * np.concatenate(given, 1))


class Depends(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Sorted(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return torch.linalg.det(x)


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (Depends(), torch.zeros(2, 3), r"from_torch: PyTorch must be able to export the module\. Received cause="),
        (Sorted(), torch.zeros(2, 3, 3), r"every operator must be one that blobnet has .* operator=Det"),
        (len, torch.zeros(2, 3), r"it takes a torch\.nn\.Module, and a tensor of samples.* module=builtin_function"),
        (torch.nn.ReLU(), np.zeros((2, 3)), r"it takes a torch\.nn\.Module, .*example=\['ndarray'\]"),
        (torch.nn.ReLU(), torch.zeros(3), r"it takes a torch\.nn\.Module, .*example=\['Tensor'\]"),
    ],
)
def test_what_cannot_be_taken(module: Any, example: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        bn.from_torch(module, example)


def test_without_onnxscript(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(OptionError, match=r"PyTorch and onnxscript must be installed.* Hint: pip install torch onnx"):
        bn.from_torch(torch.nn.ReLU(), torch.zeros(2, 3))


class Reader(torch.nn.Module):
    """Letters, two layers both ways, and the last states."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.letters = torch.nn.Embedding(9, 4)
        self.reads = getattr(torch.nn, kind)(4, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(20, 3)

    def forward(self, x: Any) -> Any:
        states, last = self.reads(self.letters(x))
        last = last[0] if isinstance(last, tuple) else last
        return self.head(torch.cat([states[:, 2], last[-2], last[-1]], 1))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_modules(device: Any, kind: str) -> None:
    module, x = Reader(kind).eval(), torch.randint(0, 9, (3, 6))
    model = bn.from_torch(module, x)
    kinds = [vertex.layer.kind for vertex in model.graph.vertices]
    assert kinds.count(kind) == 2
    assert "Embedding" in kinds
    np.testing.assert_allclose(model.predict(x.numpy(), device=device), module(x).detach().numpy(), atol=1e-5)


class Several(torch.nn.Module):
    """Arguments without names."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(3, 2)

    def forward(self, x: Any, *others: Any) -> Any:
        return self.dense(x) + others[0] * others[1]


def test_modules_with_any_number_of_arguments(device: Any) -> None:
    module, given = Several().eval(), [torch.randn(4, size) for size in (3, 2, 2)]
    model = bn.from_torch(module, tuple(given))
    found = model.predict([item.numpy() for item in given], device=device)
    np.testing.assert_allclose(found, module(*given).detach().numpy(), atol=1e-5)
