"""LeNet-5 (LeCun et al., *Gradient-based learning applied to document recognition*, 1998), with ReLU and max pools."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers


def lenet5(
    input_shape: Sequence[int] = (1, 28, 28), classes: int = 10, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Two 5x5 convolutions, each pooled, then three dense layers; the first convolution keeps the image's size.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return bn.Sequential(
        [
            layers.Input(*input_shape, name="input"),
            layers.Conv2D(6, 5, padding="same", activation="relu", name="conv1"),
            layers.MaxPool2D(2, name="pool1"),
            layers.Conv2D(16, 5, padding="same" if min(input_shape[1:]) < 14 else 0, activation="relu", name="conv2"),
            layers.MaxPool2D(2, name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(120, activation="relu", name="dense1"),
            layers.Dense(84, activation="relu", name="dense2"),
            layers.Dense(classes, name="logits"),
        ],
        class_names=class_names,
        seed=seed,
    )
