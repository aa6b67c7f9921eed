"""A network with two inputs and two outputs, and what it learns from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet import layers, losses
from blobnet.model import Model

Arrays = dict[str, npt.NDArray[Any]]
LOSSES = {"mask": losses.CrossEntropy(), "value": losses.MeanSquaredError()}


def two_ends(seed: int = 0, **ends: Any) -> Model:
    """Two inputs and two outputs; a convolution and a dense layer in two places each, and a constant."""
    picture, state = layers.Input(2, 6, 5)(), layers.Input(3, name="rows")()
    pattern = layers.Constant(np.random.default_rng(5).standard_normal((2, 6, 5)), name="pattern", trainable=True)()
    shared = layers.Conv2D(4, 3, padding=1, activation="tanh", name="shared")
    first, second = shared(picture), shared(picture + pattern)
    joined = layers.Concat(name="joined")([first, second])
    mask = layers.Conv2D(3, 1, name="classes")(joined)
    dense = layers.Dense(3, name="dense")
    moved = dense(layers.Activation("sigmoid")(dense(state)))
    pooled = layers.GlobalAveragePool()(joined)
    value = layers.Dense(2, name="values")(layers.Concat()([moved, pooled]))
    settings = {"inputs": {"image": picture, "state": state}, "outputs": {"mask": mask, "value": value}, **ends}
    return Model(settings["inputs"], settings["outputs"], seed=seed)


def data(count: int = 24, seed: int = 1) -> tuple[Arrays, Arrays]:
    """Samples and labels that belong together in part."""
    random = np.random.default_rng(seed)
    image = random.standard_normal((count, 2, 6, 5)).astype(np.float32)
    state = random.standard_normal((count, 3)).astype(np.float32)
    mask = (image[:, 0] > 0.3).astype(np.int64) + (image[:, 1] > 0.5)
    value = np.stack([state[:, 0] + image.mean(axis=(1, 2, 3)), state[:, 1] * 0.5], axis=1)
    return {"image": image, "state": state}, {"mask": mask, "value": value.astype(np.float32)}
