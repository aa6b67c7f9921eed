"""U-Nets: a class for each position of a picture, and seed 002's conditional network of sequences."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import blobnet as bn
from blobnet import datasets, layers
from blobnet.command_line.main import main
from blobnet.device.device import Device
from blobnet.errors import ShapeError
from blobnet.hardware.device_model import GENERIC
from blobnet.layers import initializers
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.memory.blob import FloatArray
from blobnet.model import Model
from blobnet.models.unet import unet
from blobnet.models.unet_1d import unet_1d
from tests.reference.compare import assert_close

#: Small ones, that build and train in a moment.
SMALL: dict[str, Any] = {"input_shape": (3, 8), "condition": 5, "filters": (4, 8), "kernel_size": 3, "groups": 2}


# -- no copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device_class", list(GENERIC))
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("build", [unet, unet_1d])
def test_concat_costs_no_copy(build: Any, training: bool, device_class: str) -> None:
    model = build(filters=(16, 32, 64))
    loss = CrossEntropy() if build is unet else MeanSquaredError()
    plan = model.plan(8, training=training, loss=loss, device_class=device_class)
    joins = [vertex for vertex in model.graph.vertices if vertex.layer.kind == "Concat"]
    assert len(joins) == 2
    assert plan.copies == []
    for vertex in joins:
        # The parts lie in the memory of the whole, one behind the other.
        whole = plan.outputs[vertex.name]
        parts = [plan.outputs[model.graph.vertices[source].name] for source in vertex.inputs]
        assert {part.storage for part in parts} == {whole.storage}
        assert parts[1].layout.unit_offset - parts[0].layout.unit_offset == parts[0].shape.units
        if training:
            deltas = [plan.deltas[model.graph.vertices[source].name] for source in vertex.inputs]
            assert {delta.storage for delta in deltas} == {plan.deltas[vertex.name].storage}


# -- pictures ----------------------------------------------------------------------------------------------------------


def shapes_on_noise(count: int, seed: int, side: int = 16) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Bright discs (class 1) and squares (class 2) on noise as bright as they are at single positions."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 1, side, side)).astype(np.float32)
    masks = np.zeros((count, side, side), np.int64)
    rows, columns = np.mgrid[:side, :side]
    for picture, mask in zip(x, masks, strict=True):
        for kind in (1, 2):
            y0, x0 = random.integers(4, side - 4, 2)
            size = random.integers(3, 5)
            away = np.abs(np.stack([rows - y0, columns - x0]))
            inside = np.hypot(*away) <= size if kind == 1 else away.max(axis=0) < size
            mask[inside] = kind
            picture[0, inside] = picture[0, inside] * 0.5 + (1.5 if kind == 1 else -1.5)
    return x, masks


def mean_iou(model: Model, x: npt.NDArray[Any], masks: npt.NDArray[np.int64], classes: int) -> float:
    said = model.predict(x).argmax(axis=1)
    both = [
        ((said == unit) & (masks == unit)).sum() / ((said == unit) | (masks == unit)).sum() for unit in range(classes)
    ]
    return float(np.mean(both))


@pytest.mark.long
def test_masks_are_learnt(device: Device) -> None:
    (x, masks), (xv, masks_v) = shapes_on_noise(256, 0), shapes_on_noise(64, 1)
    model = unet((1, 16, 16), classes=3, filters=(8, 12, 16), seed=1)
    settings: dict[str, Any] = {"optimizer": bn.optimizers.Adam(1e-2), "metrics": "iou", "validation": (xv, masks_v)}
    before = mean_iou(model, xv, masks_v, 3)
    history = model.fit(x, masks, epochs=10, batch_size=32, device=device, verbose=False, **settings)
    found = mean_iou(model, xv, masks_v, 3)
    assert before < 0.4
    assert found > 0.85
    assert history["validation_iou"][-1] == pytest.approx(found, abs=1e-6)
    # Positions alone do not tell: what is bright enough is right much less often.
    value = xv[:, 0]
    single = np.where(value > 0.75, 1, np.where(value < -0.75, 2, 0))
    assert (single == masks_v).mean() < 0.75 < history["validation_accuracy"][-1]


@pytest.mark.long
def test_masks_of_digits_are_learnt(device: Device) -> None:
    """Which strokes belong to a digit below 5 only the whole picture tells."""
    data = datasets.load("digits").train
    x = (np.asarray(data.x[:1200]) / 16).astype(np.float32)
    masks = np.where(x[:, 0] > 0.3, 1 + (np.asarray(data.y[:1200])[:, None, None] >= 5), 0)
    model = unet((1, 8, 8), classes=3, filters=(8, 16, 24))
    settings: dict[str, Any] = {"optimizer": bn.optimizers.Adam(1e-2), "device": device, "verbose": False}
    model.fit(x[:1000], masks[:1000], epochs=10, batch_size=50, **settings)
    assert mean_iou(model, x[1000:], masks[1000:], 3) > 0.75


# -- sequences ---------------------------------------------------------------------------------------------------------


def torch_unet_1d(model: Model, torch: Any, tensors: dict[str, Any], levels: int, groups: int) -> Any:
    """The output of :func:`unet_1d`, written down for PyTorch."""
    functional = torch.nn.functional
    known = functional.mish(tensors["condition"])

    def convolution(values: Any, name: str) -> Any:
        weight = tensors[f"{name}/weight"]
        values = functional.conv1d(values, weight, tensors[f"{name}/bias"], padding=weight.shape[2] // 2)
        own = tensors[f"{name}_norm/scale"], tensors[f"{name}_norm/shift"]
        return functional.mish(functional.group_norm(values, groups, *own))

    def block(values: Any, name: str) -> Any:
        branch = convolution(values, f"{name}_a")
        scale, shift = (
            functional.linear(known, tensors[f"{name}_{part}/weight"], tensors[f"{name}_{part}/bias"])[:, :, None]
            for part in ("scale", "shift")
        )
        branch = convolution(branch * (1 + scale) + shift, f"{name}_b")
        if f"{name}_shortcut/weight" in tensors:
            own = tensors[f"{name}_shortcut/weight"], tensors[f"{name}_shortcut/bias"]
            values = functional.conv1d(values, *own)
        return branch + values

    values, skips = tensors["sequence"], []
    for level in range(1, levels + 1):
        values = block(block(values, f"down{level}_1"), f"down{level}_2")
        skips.append(values)
        if level < levels:
            own = tensors[f"down{level}_shrink/weight"], tensors[f"down{level}_shrink/bias"]
            values = functional.conv1d(values, *own, stride=2, padding=1)
    values = block(block(values, "middle_1"), "middle_2")
    for level in range(levels, 1, -1):
        values = torch.cat([values, skips[level - 1]], dim=1)
        values = block(block(values, f"up{level}_1"), f"up{level}_2")
        own = tensors[f"up{level}_grow/weight"], tensors[f"up{level}_grow/bias"]
        values = functional.conv_transpose1d(values, *own, stride=2, padding=1)
    values = convolution(values, "last")
    return functional.conv1d(values, tensors["noise/weight"], tensors["noise/bias"])


def published_unet_1d(torch: Any, units: int, condition: int, step: int = 256) -> Any:
    """The modules of Chi et al.'s ConditionalUnet1D at its published settings: 256, 512 and 1024 units, kernels of 5
    taps, 8 groups, scales and shifts. Its condition begins with ``step`` numbers that a network of its own makes.
    """
    nn, counts, taps, groups = torch.nn, [256, 512, 1024], 5, 8

    def convolution(inputs: int, outputs: int) -> Any:
        return nn.Sequential(nn.Conv1d(inputs, outputs, taps, padding=taps // 2), nn.GroupNorm(groups, outputs))

    def block(inputs: int, outputs: int) -> Any:
        parts = {"first": convolution(inputs, outputs), "second": convolution(outputs, outputs)}
        parts["condition"] = nn.Linear(step + condition, 2 * outputs)
        if inputs != outputs:
            parts["residual"] = nn.Conv1d(inputs, outputs, 1)
        return nn.ModuleDict(parts)

    levels = list(zip([units, *counts[:-1]], counts, strict=True))
    down = [nn.ModuleList([block(before, count), block(count, count)]) for before, count in levels]
    up = [nn.ModuleList([block(2 * count, before), block(before, before)]) for before, count in reversed(levels[1:])]
    for (_, count), level in zip(levels[:-1], down[:-1], strict=True):
        level.append(nn.Conv1d(count, count, 3, stride=2, padding=1))
    for (before, _), level in zip(reversed(levels[1:]), up, strict=True):
        level.append(nn.ConvTranspose1d(before, before, 4, stride=2, padding=1))
    return nn.ModuleDict(
        {
            "step": nn.Sequential(nn.Linear(step, 4 * step), nn.Linear(4 * step, step)),
            "down": nn.ModuleList(down),
            "middle": nn.ModuleList([block(counts[-1], counts[-1]) for _ in range(2)]),
            "up": nn.ModuleList(up),
            "last": nn.Sequential(convolution(counts[0], counts[0]), nn.Conv1d(counts[0], units, 1)),
        }
    )


def test_the_conditional_network_has_the_published_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """For Push-T's states, two observations of five numbers: the paper's notebook prints 6.535322e+07."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(initializers, "initialize", lambda spec, *_: np.zeros(spec.shape, np.float32))
    with torch.device("meta"):
        published = published_unet_1d(torch, 2, 2 * 5)
    theirs: Counter[tuple[int, ...]] = Counter()
    for name, values in published.named_parameters():
        if "condition" in name:  # Scales and shifts are two layers here.
            theirs[(values.shape[0] // 2, *values.shape[1:])] += 2
        elif not name.startswith("step."):  # Who has the network makes the condition.
            theirs[tuple(values.shape)] += 1
    model = unet_1d((2, 16), condition=256 + 2 * 5)
    assert Counter(model.graph.named_parameters[name].shape for name in model.graph.trainable) == theirs
    made = sum(values.numel() for values in published["step"].parameters())
    assert f"{model.parameter_count + made:e}" == "6.535322e+07"


@pytest.mark.long
def test_the_conditional_network_against_pytorch(device: Device) -> None:
    torch = pytest.importorskip("torch")
    model = unet_1d(**SMALL, seed=3)
    random = np.random.default_rng(0)
    x = {"sequence": random.standard_normal((6, 3, 8)), "condition": random.standard_normal((6, 5))}
    x = {name: values.astype(np.float32) for name, values in x.items()}
    y = random.standard_normal((6, 3, 8)).astype(np.float32)
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in (model.weights | x).items()}
    wanted = [*model.graph.trainable, *x]
    for name in wanted:
        tensors[name].requires_grad_()
    output = torch_unet_1d(model, torch, tensors, levels=2, groups=2)
    assert_close(model.predict(x, device=device), output.detach().numpy(), relative=1e-4, absolute=1e-5, what="noise")
    torch.nn.functional.mse_loss(output, torch.tensor(y, dtype=torch.float64)).backward()
    found = model.gradients(x, y, loss="mse", device=device)
    assert set(found) == set(wanted)
    for name in wanted:
        assert_close(found[name], tensors[name].grad.numpy(), relative=1e-3, absolute=1e-5, what=name)


@pytest.mark.long
def test_the_conditional_network_learns(device: Device) -> None:
    """Noise that was added to waves, whose heights only the condition tells."""
    random = np.random.default_rng(1)
    condition = random.standard_normal((512, 5)).astype(np.float32)
    places = np.linspace(0, 2 * np.pi, 8) + np.arange(3)[:, None]
    waves = 2 * condition[:, :3, None] * np.sin(places)
    noise = random.standard_normal((512, 3, 8)).astype(np.float32)
    x = {"sequence": (waves + noise).astype(np.float32), "condition": condition}
    model = unet_1d(**{**SMALL, "filters": (8, 16)})
    settings: dict[str, Any] = {"optimizer": bn.optimizers.Adam(1e-2), "loss": "mse", "device": device}
    history = model.fit(x, noise, epochs=30, batch_size=64, verbose=False, **settings)
    assert history["loss"][-1] < 0.2 * history["loss"][0]
    shuffled = {**x, "condition": condition[::-1].copy()}
    assert model.evaluate(shuffled, noise, device=device)["loss"] > 3 * model.evaluate(x, noise, device=device)["loss"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_sides_must_be_halved() -> None:
    with pytest.raises(ShapeError, match=r"unet: height and width must be multiples of 4: they are halved 2 times"):
        unet((1, 30, 28))
    with pytest.raises(ShapeError, match=r"unet_1d: the width must be a multiple of 4: it is halved 2 times"):
        unet_1d((2, 18))


def test_the_command_line_says_what_goes_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "unet_1d", "--dataset", "digits"]) == 1
    assert "unet_1d: this model takes samples of (units, width)" in capsys.readouterr().err


def test_the_norms_of_the_large_network_can_be_planned() -> None:
    """Its passes backward need work space of different sizes."""
    rows = layers.Input(512, width=4)()
    model = Model(rows, layers.Conv1D(2, 1)(layers.GroupNorm(8)(rows)))
    assert model.plan(4, loss=MeanSquaredError()).phase("backward")
