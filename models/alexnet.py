"""AlexNet in one column (Krizhevsky, *One weird trick for parallelizing convolutional neural networks*, 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers


def alexnet(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Five convolutions, the first with 11x11 taps and stride 4, three pools, and three dense layers with dropout.

    The first dense layer sees whatever the last pool leaves: 6x6 at 224x224. The sides of a sample are at least 63.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return bn.Sequential(
        [
            layers.Input(*input_shape, name="input"),
            layers.Conv2D(64, 11, 4, 2, activation="relu", name="conv1"),
            layers.MaxPool2D(3, 2, name="pool1"),
            layers.Conv2D(192, 5, padding=2, activation="relu", name="conv2"),
            layers.MaxPool2D(3, 2, name="pool2"),
            layers.Conv2D(384, 3, padding=1, activation="relu", name="conv3"),
            layers.Conv2D(256, 3, padding=1, activation="relu", name="conv4"),
            layers.Conv2D(256, 3, padding=1, activation="relu", name="conv5"),
            layers.MaxPool2D(3, 2, name="pool3"),
            layers.Flatten(name="flatten"),
            layers.Dropout(0.5, name="dropout1"),
            layers.Dense(4096, activation="relu", name="dense1"),
            layers.Dropout(0.5, name="dropout2"),
            layers.Dense(4096, activation="relu", name="dense2"),
            layers.Dense(classes, name="logits"),
        ],
        class_names=class_names,
        seed=seed,
    )
