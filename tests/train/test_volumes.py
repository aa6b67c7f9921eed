"""Networks on samples of (units, depth, height, width)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device

SHAPE = (2, 3, 4, 5)


def network() -> bn.Model:
    source = layers.Input(2, 4, 5, depth=3, name="input")()
    normal = layers.BatchNorm()(source)
    sum_ = layers.Add()([layers.Activation("silu")(normal), layers.Dropout(0.2)(normal)])
    joined = layers.Concat()([sum_, layers.Activation("tanh")(source)])
    return bn.Model([source], [layers.Dense(3)(layers.Flatten()(layers.BatchNorm()(joined)))])


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(1, 2, (count, *SHAPE)).astype(np.float32)
    return x, (x[:, 0].mean(axis=(1, 2, 3)) > 1).astype(np.int64) + 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_network_of_volumes_learns_and_is_kept(device: Device, tmp_path: Path, seed: int) -> None:
    x, y = samples(96)
    model = network()
    history = model.fit(x, y, epochs=6, batch_size=16, optimizer=bn.optimizers.Adam(1e-2), seed=seed, device=device)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    model.save(tmp_path / "volumes.h5")
    again = bn.load(tmp_path / "volumes.h5")
    assert again.graph.input.shape.dimensions == SHAPE
    np.testing.assert_array_equal(again.predict(x, device=device), model.predict(x, device=device))
