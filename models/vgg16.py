"""VGG-16 (Simonyan and Zisserman, *Very deep convolutional networks*, 2015, configuration D)."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers

#: Units of the convolutions of each stage; a pool follows each stage.
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Thirteen 3x3 convolutions in five stages, each halved by a pool, and three dense layers with dropout.

    The first dense layer sees whatever the last pool leaves: 7x7 at 224x224, 2x2 at 64x64. The sides of a sample are
    at least 32.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    chain: list[layers.Layer] = [layers.Input(*input_shape, name="input")]
    for stage, filters in enumerate(STAGES, start=1):
        for number, units in enumerate(filters, start=1):
            chain.append(layers.Conv2D(units, 3, padding=1, activation="relu", name=f"conv{stage}_{number}"))
        chain.append(layers.MaxPool2D(2, name=f"pool{stage}"))
    chain.append(layers.Flatten(name="flatten"))
    for number in (1, 2):
        chain.append(layers.Dense(4096, activation="relu", name=f"dense{number}"))
        chain.append(layers.Dropout(0.5, name=f"dropout{number}"))
    chain.append(layers.Dense(classes, name="logits"))
    return bn.Sequential(chain, class_names=class_names, seed=seed)
