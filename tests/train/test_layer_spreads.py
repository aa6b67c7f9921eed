"""What is inside a model, against NumPy, the gradients that users get, and units that are made to die."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import OptionError, PlanError
from blobnet.execution.executor import plan_for
from blobnet.inspection.layer_statistics import DEFAULT_COUNT, QUANTILES, Spread, layer_spreads
from blobnet.model import Model, Sequential
from tests.tiny import digits, tiny_model


def plain_model(seed: int = 3) -> Model:
    """Without statistics of batches or dropout: training sees what prediction sees."""
    return Sequential(
        [
            layers.Input(1, 8, 8, name="in"),
            layers.Conv2D(5, 3, padding=1, activation="relu", name="one"),
            layers.MaxPool2D(2, name="pool"),
            layers.Conv2D(7, 3, activation="sigmoid", name="two"),
            layers.Flatten(name="flat"),
            layers.Dense(10, name="out"),
        ],
        seed=seed,
    )


def check(found: Spread | None, values: Any) -> None:
    assert found is not None
    exact = np.asarray(values, np.float64)
    wanted = exact.min(), exact.max(), exact.mean(), exact.std(), *np.percentile(exact, QUANTILES)
    received = found.least, found.most, found.mean, found.deviation, *found.quantiles
    np.testing.assert_allclose(received, wanted, rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(found.magnitudes, np.percentile(np.abs(exact[exact != 0]), QUANTILES), rtol=2e-3)
    assert found.zeros == pytest.approx((exact == 0).mean(), abs=1e-9)
    assert found.broken == 0


def test_a_spread_is_of_what_is_finite() -> None:
    found = Spread.of(np.array([[1.0, -3.0, np.nan], [0.0, np.inf, 2.0]], np.float32))
    assert (found.least, found.most, found.mean, found.zeros, found.broken) == (-3, 2, 0, 0.25, 2)
    assert found.deviation == pytest.approx(np.sqrt(14 / 4))
    assert found.magnitudes[2] == 2
    nothing = Spread.of(np.full(3, np.nan))
    assert (nothing.quantiles, nothing.magnitudes, nothing.broken) == ((), (), 3)
    assert Spread.of(np.zeros(4)).magnitudes == ()


def test_values_and_gradients_are_those_of_the_first_batch(device: Device) -> None:
    model = plain_model()
    x, y = digits(60)
    model.set_normalization([0.3], [0.4])
    found = layer_spreads(model, x, y, count=20, seed=5, device=device)
    assert [layer.title for layer in found.layers] == ["in", "one + relu", "pool", "two + sigmoid + Flatten", "out"]
    assert [layer.inputs for layer in found.layers] == [(), (0,), (1,), (2,), (3,)]
    assert [layer.shape.dimensions for layer in found.layers] == [(1, 8, 8), (5, 8, 8), (5, 4, 4), (28,), (10,)]
    assert [layer.parameters for layer in found.layers] == [2, 50, 0, 322, 290]
    numbers = np.random.default_rng([5, 0]).permutation(60)[:20]
    for layer, name in zip(found.layers, ["in", "one_relu", "pool", "flat", "out"], strict=True):
        check(layer.values, model.outputs_of(name).predict(x[numbers], device=device))
    gradients = model.gradients(x[numbers], y[numbers], device=device)
    for layer in found.layers:
        if layer.name in ("one", "two", "out"):
            assert layer.parameter == f"{layer.name}/weight"
            check(layer.weights, model.weights[layer.parameter])
            check(layer.gradients, gradients[layer.parameter])
        else:
            assert (layer.parameter, layer.weights, layer.gradients) == ("", None, None)


def test_layers_run_as_in_training(device: Device) -> None:
    x, y = digits(40)
    model = tiny_model()
    found = {layer.name: layer for layer in layer_spreads(model, x, y, count=40, device=device).layers}
    assert found["conv2"].title == "conv2 + BatchNorm + relu + Dropout + Flatten"
    before = model.outputs_of("conv2").predict(x, device=device).astype(np.float64)
    normal = (before - before.mean(axis=(0, 2, 3), keepdims=True)) / np.sqrt(
        before.var(axis=(0, 2, 3), keepdims=True) + 1e-5
    )
    values = found["conv2"].values
    assert values is not None
    # A quarter of what the activation leaves is dropped, and the rest grows by 4/3.
    assert values.most <= np.maximum(normal, 0).max() / 0.75 + 1e-4
    assert values.zeros == pytest.approx(1 - 0.75 * (normal > 0).mean(), abs=0.03)
    assert values.mean == pytest.approx(np.maximum(normal, 0).mean(), rel=0.05)


def test_no_layers_values_are_lost_where_blobs_could_share_memory(device: Device) -> None:
    """A residual block: the sum could be computed by the convolution before it, in its memory."""
    start = layers.Input(2, 6, 5, name="in")()
    left = layers.Conv2D(3, 3, padding=1, name="left")(start)
    right = layers.Conv2D(3, 1, name="right")(start)
    both = layers.Concat(name="both")([left + right, right])
    model = Model(start, layers.Dense(4, name="out")(layers.Activation("relu", name="relu")(both)))
    random = np.random.default_rng(4)
    x = random.normal(size=(11, 2, 6, 5)).astype(np.float32)
    found = layer_spreads(model, x, random.integers(0, 4, 11), device=device)
    assert [layer.inputs for layer in found.layers] == [(), (0,), (0,), (1, 2), (3, 2), (4,)]
    for layer in found.layers:
        order = np.random.default_rng([0, 0]).permutation(11)
        check(layer.values, model.outputs_of(layer.last).predict(x[order], device=device))


def test_dead_units_are_named(device: Device) -> None:
    model = plain_model()
    weights = model.weights
    weights["one/bias"][[0, 3]] = -1e3  # Never above 0.
    weights["two/weight"][4] = 0  # One value for all samples.
    model.set_weights(weights)
    x, y = digits(30)
    found = layer_spreads(model, x, y, device=device)
    dead = {layer.name: layer.dead for layer in found.layers if layer.dead}
    assert dead == {"one": (0, 3), "two": (4,)}
    assert {layer.name: layer.unconnected for layer in found.layers if layer.unconnected} == {"two": (4,)}
    assert found.faults == [
        "one_relu: 2 of 5 units are dead, the same for all 30 samples: 0, 3",
        "two_sigmoid: 1 of 7 units are dead, the same for all 30 samples: 4",
        "two/weight: all weights of 1 units are 0: 4",
    ]
    assert str(found).endswith("\n".join(found.faults))
    alone = layer_spreads(model)
    assert (alone.samples, alone.faults) == (0, found.faults[2:])
    assert all(layer.values is None and layer.gradients is None for layer in alone.layers)


def test_what_dropout_drops_is_not_dead(device: Device) -> None:
    model = Sequential([layers.Input(3), layers.Dense(40, activation="relu"), layers.Dropout(0.9), layers.Dense(2)])
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    found = layer_spreads(model, x, np.arange(6) % 2, device=device)
    inner = model.outputs_of("dense_1_relu").predict(x, device=device)
    assert found.layers[1].dead == tuple(np.flatnonzero((inner == inner[0]).all(axis=0)))
    assert found.layers[1].values is not None
    assert found.layers[1].values.zeros > 0.8


def test_what_is_not_finite_is_told(device: Device) -> None:
    model = plain_model()
    model._weights = {**model.weights, "two/weight": np.full((7, 5, 3, 3), np.nan, np.float32)}
    found = layer_spreads(model, *digits(8), device=device)
    told = [line.partition(" numbers are NaN or infinite")[0] for line in found.faults]
    assert {"two/weight: 315", "flat, values: 224", "out, values: 80"} <= set(told)


def test_a_batch_that_nobody_asked_for_shrinks_to_what_fits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def plan(of: Device, graph: Any, size: int, **settings: Any) -> Any:
        sizes.append(size)
        if size > 10:
            raise PlanError("plan", "all buffers must fit the device's memory")
        return plan_for(of, graph, size, **settings)

    monkeypatch.setattr("blobnet.inspection.layer_statistics.plan_for", plan)
    x, y = digits(100)
    assert layer_spreads(plain_model(), x, y, device=device).samples == 8
    assert sizes == [DEFAULT_COUNT, 32, 16, 8]
    with pytest.raises(PlanError):
        layer_spreads(plain_model(), x, y, count=50, device=device)


def test_a_stream_has_no_first_batch_of_its_own(device: Device) -> None:
    with pytest.raises(OptionError, match=r"^layer_spreads: samples must have numbers"):
        layer_spreads(plain_model(), [digits(8)], device=device)


@pytest.mark.parametrize(
    ("first", "shape"),
    [
        ([layers.Input(3, 6, 7), layers.Conv2D(4, (3, 2), name="first"), layers.Flatten()], (4, 3, 3, 2)),
        ([layers.Input(3, width=9), layers.Conv1D(4, 5, name="first"), layers.Flatten()], (4, 1, 3, 5)),
        ([layers.Input(2, 3, 4), layers.Flatten(), layers.Dense(6, name="first")], (6, 2, 3, 4)),
        ([layers.Input(5), layers.Dense(6, name="first")], None),
    ],
)
def test_the_first_filters(first, shape) -> None:
    model = Sequential([*first, layers.Dense(2)])
    found = layer_spreads(model)
    assert found.filters_of == "first"
    if shape is None:
        assert found.filters is None
    else:
        assert found.filters is not None
        np.testing.assert_array_equal(found.filters, model.weights["first/weight"].reshape(shape))


def test_as_text() -> None:
    model = Sequential([layers.Input(1, 4, 4, name="in"), layers.Flatten(name="flat"), layers.Dense(3, name="out")])
    model.set_weights({"out/weight": np.arange(48).reshape(3, 16)})
    assert str(layer_spreads(model)).splitlines() == [
        "layer  output shape  parameters  weights",
        "----------------------------------------",
        "in     (1, 4, 4)              2",
        "flat   (16)                   -",
        "out    (3)                   51       14",
        "----------------------------------------",
        "deviations of weights",
    ]
