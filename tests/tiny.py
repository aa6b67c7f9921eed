"""A network and data that train in a moment; all tests of training share them, since building kernels takes longest."""

from __future__ import annotations

import numpy as np
import pytest

from blobnet import datasets, layers
from blobnet.execution import loader
from blobnet.memory.blob import FloatArray
from blobnet.model import Model, Sequential

CLASSES = 10


def tiny_model(seed: int = 0) -> Model:
    """Every kind of layer that keeps something: weights, statistics, masks, winners."""
    return Sequential(
        [
            layers.Input(1, 8, 8, name="input"),
            layers.Conv2D(4, 3, padding=1, activation="relu", name="conv1"),
            layers.MaxPool2D(2, name="pool1"),
            layers.Conv2D(6, 3, padding=1, bias=False, name="conv2"),
            layers.BatchNorm(name="norm2"),
            layers.Activation("relu", name="relu2"),
            layers.Dropout(0.25, name="dropout"),
            layers.Flatten(name="flatten"),
            layers.Dense(CLASSES, name="logits"),
        ],
        class_names=[str(digit) for digit in range(CLASSES)],
        seed=seed,
    )


def digits(count: int, first: int = 0) -> tuple[FloatArray, np.ndarray]:
    """Some of the real digits: (count, 1, 8, 8) from 0 to 1, and labels."""
    split = datasets.load("digits").train
    part = slice(first, first + count)
    return (split.x[part] / 16).astype(np.float32), split.y[part]


def share_of_memory(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Lets data sets take this part of a device's free memory, also if that is the host's; 0: all are streamed."""
    for name in ("_SHARE_OF_MEMORY", "_SHARE_OF_HOST"):
        monkeypatch.setattr(loader, name, share)
