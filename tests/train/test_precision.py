"""Training with bfloat16 between layers: gradients as near as its roundings allow, the same accuracy, the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.execution.executor import plan_for
from blobnet.memory.blob import BFLOAT16, FLOAT32
from blobnet.model import Model
from tests.tiny import digits, tiny_model


def smooth_model() -> Model:
    """A network without kinks, at which a rounding may send a gradient elsewhere."""
    return bn.Sequential(
        [
            layers.Input(3, 9, 11),
            layers.Conv2D(8, 3, padding="same", bias=False),
            layers.BatchNorm(),
            layers.Activation("tanh"),
            layers.Conv2D(8, 3, stride=2, padding="same", activation="gelu"),
            layers.AveragePool2D(2),
            layers.Flatten(),
            layers.Dense(5),
        ]
    )


def test_rounds_to_nearest_even() -> None:
    # 1 + 2^-8 lies between 1 and 1 + 2^-7: the even one is 1. 1 + 3 * 2^-8 lies between odd 1 + 2^-7 and 1 + 2^-6.
    values = np.float32([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8 + 2**-20), np.inf, 3.4e38, 1e-40, -0.0])
    wanted = np.float32([1, 1 + 2**-6, -(1 + 2**-7), np.inf, np.inf, 2.0**-133, -0.0])
    np.testing.assert_array_equal(BFLOAT16.decode(BFLOAT16.encode(values)), wanted)
    assert np.isnan(BFLOAT16.decode(BFLOAT16.encode(np.uint32([0x7F800001]).view(np.float32)))).all()


def test_a_type_of_a_plan_that_was_read_back_is_the_same() -> None:
    again = replace(BFLOAT16)
    assert again is not BFLOAT16
    np.testing.assert_array_equal(again.decode(again.encode([1.5, -2.0])), [1.5, -2.0])


def test_gradients(device: Device) -> None:
    generator, model = np.random.default_rng(0), smooth_model()
    x, y = generator.standard_normal((16, 3, 9, 11), dtype=np.float32), generator.integers(0, 5, 16)
    exact, rounded = (model.gradients(x, y, device=device, precision=name) for name in ("fp32", "bf16"))
    for name, values in exact.items():
        error = np.linalg.norm(rounded[name] - values) / np.linalg.norm(values)
        # Roundings of 2^-9 on the way, of independent signs: more than those of fp32, and no more than some of them.
        assert 2.0**-12 < error < 4 * 2.0**-9, name


def test_learns_as_in_float32(device: Device) -> None:
    (x, y), (unseen, labels) = digits(1200), digits(230, 1200)
    accuracies = {}
    for precision in ("fp32", "bf16"):
        model = tiny_model()
        model.fit(x, y, epochs=8, batch_size=16, device=device, precision=precision, verbose=False)
        accuracies[precision] = model.evaluate(unseen, labels, device=device, precision=precision)["accuracy"]
    assert accuracies["fp32"] > 0.85
    assert accuracies["bf16"] > accuracies["fp32"] - 0.03


def test_resumes_with_the_same_bits(device: Device, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"device": device, "precision": "bf16", "batch_size": 16, "verbose": False}
    data, whole, halves = digits(64), tiny_model(), tiny_model()
    whole.fit(*data, epochs=2, **settings)
    halves.fit(*data, epochs=1, **settings)
    halves.save(tmp_path / "one.h5")
    again = bn.load(tmp_path / "one.h5")
    again.fit(*data, epochs=2, resume=True, **settings)
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(again.weights[name], values, err_msg=name)


def test_memory_and_what_stays_float32(device: Device) -> None:
    graph, options = tiny_model().graph, {"loss": bn.losses.CrossEntropy(), "training": True}
    wide, narrow = (plan_for(device.at(name), graph, 64, **options) for name in ("fp32", "bf16"))
    blobs = {blob.storage: blob for _, call in narrow.calls for blob in call.blobs.values()}
    assert {name for name, blob in blobs.items() if blob.type == FLOAT32} == {"logits output"}
    assert {blob.type for blob in blobs.values()} == {FLOAT32, BFLOAT16}
    assert all(array.type == FLOAT32 for _, call in narrow.calls for array in call.arrays.values() if array.persistent)
    # All but the logits, and the room behind each buffer that vectors may read.
    sizes = [sum(plan.buffers[name].bytes(64) for name in blobs if name in plan.buffers) for plan in (wide, narrow)]
    assert sizes[1] < 0.55 * sizes[0]


def test_prediction_in_one_precision_of_what_was_trained_in_another(device: Device) -> None:
    x, model = digits(20)[0], tiny_model()
    exact = model.predict(x, device=device)
    for options in ({"precision": "bf16"}, {"storage": "bfloat16"}):
        found = model.predict(x, device=device, **options)
        assert found.dtype == np.float32
        assert 0 < np.abs(found - exact).max() < 0.03 * np.abs(exact).max()


def test_unknown_precision(device: Device) -> None:
    with pytest.raises(OptionError, match=r"it must be one of fp32, tf32, bf16\. Received precision=fp16\."):
        tiny_model().fit(*digits(8), device=device, precision="fp16")
