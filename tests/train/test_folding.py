"""Batch norms in the weights in front of them, and what of a plan is made once."""

from __future__ import annotations

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.examination.reference.convolution import Windows, conv2d
from blobnet.examination.reference.dense import dense
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FloatArray
from blobnet.optimizers import SGD
from blobnet.training.settings import TrainingSettings
from blobnet.training.training_step import TrainingStep
from tests.kinds import as_gpu
from tests.tiny import digits


def statistics(generator: np.random.Generator, units: int, variance: float) -> dict[str, FloatArray]:
    """Those of a norm, with variances about ``variance``, of which one is 0, and scales of both signs and 0."""
    values = {
        "running_mean": generator.standard_normal(units),
        "running_variance": variance * 10 ** generator.uniform(-1, 1, units),
        "scale": generator.standard_normal(units),
        "shift": generator.standard_normal(units),
    }
    values["running_variance"][0] = values["scale"][-1] = 0
    return {f"norm/{name}": each.astype(np.float32) for name, each in values.items()}


LAYERS: dict[str, layers.Layer] = {
    "convolution": layers.Conv2D(7, 3, padding=1, bias=False, name="layer"),
    "with a bias": layers.Conv2D(6, (2, 3), stride=2, name="layer"),
    "grouped": layers.Conv2D(9, 3, groups=3, padding=1, name="layer"),
    "depthwise": layers.Conv2D(3, 5, groups=3, padding=2, bias=False, name="layer"),
    "dense": layers.Dense(11, name="layer"),
    "dense without a bias": layers.Dense(4, bias=False, name="layer"),
}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("variance", [1.0, 1e-4, 1e-12])
@pytest.mark.parametrize("name", LAYERS)
def test_predictions_with_a_folded_norm(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str, variance: float, kind: str
) -> None:
    """Errors are measured against what is added up: sums, less their mean, may be much smaller than their terms."""
    layer, generator = LAYERS[name], np.random.default_rng(int(1 / variance) % 1000 + len(name))
    model = bn.Sequential([layers.Input(3, 8, 9), layer, layers.BatchNorm(name="norm")])
    weights = dict(model.weights)
    units = weights["norm/scale"].size
    weights |= statistics(generator, units, variance)
    weights["layer/weight"] = generator.standard_normal(weights["layer/weight"].shape).astype(np.float32)
    bias = generator.standard_normal(units).astype(np.float32) if "layer/bias" in weights else None
    if bias is not None:
        weights["layer/bias"] = bias
    model.set_weights(weights)
    x = generator.standard_normal((5, 3, 8, 9)).astype(np.float32)

    def sums(samples: FloatArray, weight: FloatArray) -> FloatArray:
        if isinstance(layer, layers.Dense):
            return dense(samples.reshape(len(samples), -1).astype(np.float64), weight.astype(np.float64))
        assert isinstance(layer, layers.Conv2D)
        pad = layer.padding
        wide = ((pad, pad), (pad, pad))  # type: ignore[assignment]
        step = layer.stride if isinstance(layer.stride, tuple) else (layer.stride, layer.stride)
        return conv2d(samples, weight, None, Windows(step, wide, groups=layer.groups))  # type: ignore[arg-type]

    def by_unit(values: FloatArray) -> FloatArray:
        return values.astype(np.float64).reshape(-1, *(1,) * (model.graph.output.shape.rank))

    mean, running, scale, shift = (
        by_unit(weights[f"norm/{name}"]) for name in ("running_mean", "running_variance", "scale", "shift")
    )
    added = by_unit(np.zeros(units) if bias is None else bias)
    factor = scale / np.sqrt(running + 1e-5)
    wanted = (sums(x, weights["layer/weight"]) + added - mean) * factor + shift
    terms = (sums(np.abs(x), np.abs(weights["layer/weight"])) + np.abs(added) + np.abs(mean)) * np.abs(factor)
    if kind == "gpu":
        as_gpu(monkeypatch, device)
    found = model.predict(x, device=Device(device.info))
    assert (np.abs(found - wanted) <= 1e-6 * (terms + np.abs(shift))).all()
    if variance == 1:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def network() -> bn.Sequential:
    """Two convolutions, each with a norm, and a head."""
    return bn.Sequential(
        [
            layers.Input(1, 8, 8),
            layers.Conv2D(4, 3, stride=2, bias=False, name="conv1"),
            layers.BatchNorm(name="norm1"),
            layers.Activation("relu"),
            layers.Conv2D(6, 3, padding=1, name="conv2"),
            layers.BatchNorm(name="norm2"),
            layers.Activation("relu"),
            layers.Flatten(),
            layers.Dense(10, name="head"),
        ]
    )


def other_weights(model: bn.Sequential, seed: int) -> dict[str, FloatArray]:
    generator = np.random.default_rng(seed)
    return {
        name: (0.1 + np.abs(0.3 * generator.standard_normal(values.shape))).astype(np.float32)
        for name, values in model.weights.items()
    }


def test_norms_are_folded_anew_when_weights_change(device: Device) -> None:
    model, (x, y) = network(), digits(24)
    before = model.predict(x[:3], device=device)

    def check() -> None:
        nonlocal before
        twin = network()
        twin.set_weights(model.weights)
        after = model.predict(x[:3], device=device)
        assert not np.array_equal(after, before)
        assert np.array_equal(after, twin.predict(x[:3], device=device))
        before = after

    model.set_weights(other_weights(model, 1))
    check()
    model.fit(x, y, epochs=2, batch_size=8, device=device, verbose=False)
    check()
    model.fit(x, y, epochs=1, batch_size=8, freeze=["conv1", "norm*"], device=device, verbose=False)
    check()


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("frozen", [("conv1", "norm1"), ("conv2", "norm2", "norm1")])
def test_a_step_makes_what_frozen_layers_need_once_for_their_weights(
    device: Device, monkeypatch: pytest.MonkeyPatch, frozen: tuple[str, ...], kind: str
) -> None:
    """Steps change the others alone; new weights from outside change all."""
    if kind == "gpu":
        as_gpu(monkeypatch, device)
    gpu = Device(device.info)
    model, (x, y) = network(), digits(8)
    names = {name for name in model.weights if name.split("/")[0] in frozen}

    def step_of(weights: dict[str, FloatArray]) -> TrainingStep:
        settings = TrainingSettings(loss=CrossEntropy(), optimizer=SGD(0.1), batch_size=8, freeze=frozenset(names))
        made = TrainingStep(gpu, model.graph, weights, settings)
        made.load_batch(x, y)
        return made

    def gradients(step: TrainingStep) -> dict[str, FloatArray]:
        step.compute_gradients(8)
        return step.gradients()

    step = step_of(dict(model.weights))
    calls: list[str] = []
    run = step.executor.run
    monkeypatch.setattr(step.executor, "run", lambda phase, *others: (calls.append(phase), run(phase, *others))[1])
    for _ in range(2):
        gradients(step)
        step.update(0.1)
    assert calls.count("constant") == 1
    here, fresh = gradients(step), gradients(step_of(step.parameters.read()))
    assert all(np.array_equal(here[name], fresh[name]) for name in fresh)
    weights = other_weights(model, 2)
    step.parameters.write(weights)
    here, fresh = gradients(step), gradients(step_of(weights))
    assert calls.count("constant") == 2
    assert all(np.array_equal(here[name], fresh[name]) for name in fresh)
    assert any(np.abs(values).max() > 0 for values in fresh.values())
