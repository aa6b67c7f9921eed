"""VGG (Simonyan and Zisserman, *Very deep convolutional networks*, 2015, table 1): chains of 3x3 convolutions.

Five stages, each halved by a pool, then three dense layers with dropout. The first of these sees whatever the last pool
leaves: 7x7 at 224x224, as in the paper, 2x2 at 64x64. The sides of a sample are at least 32. Those with ``_bn`` have
batch norms, and biases before them, as torchvision's weights want it.
"""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers

#: Convolutions of each stage, and their units.
A, B, D, E = (1, 1, 2, 2, 2), (2, 2, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)
UNITS = (64, 128, 256, 512, 512)


def vgg11(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Configuration A: 8 convolutions.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _vgg(input_shape, classes, class_names, seed, A, has_norms=False)


def vgg11_bn(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Configuration A: 8 convolutions, each with a batch norm.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _vgg(input_shape, classes, class_names, seed, A, has_norms=True)


def vgg13(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Configuration B: 10 convolutions.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _vgg(input_shape, classes, class_names, seed, B, has_norms=False)


def vgg13_bn(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Configuration B: 10 convolutions, each with a batch norm.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _vgg(input_shape, classes, class_names, seed, B, has_norms=True)


def vgg16(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Configuration D: 13 convolutions.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _vgg(input_shape, classes, class_names, seed, D, has_norms=False)


def vgg16_bn(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Configuration D: 13 convolutions, each with a batch norm.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _vgg(input_shape, classes, class_names, seed, D, has_norms=True)


def vgg19(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Configuration E: 16 convolutions.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _vgg(input_shape, classes, class_names, seed, E, has_norms=False)


def vgg19_bn(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Configuration E: 16 convolutions, each with a batch norm.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _vgg(input_shape, classes, class_names, seed, E, has_norms=True)


def _vgg(
    input_shape: Sequence[int],
    classes: int,
    class_names: Sequence[str],
    seed: int,
    counts: Sequence[int],
    *,
    has_norms: bool,
) -> bn.Model:
    chain: list[layers.Layer] = [layers.Input(*input_shape, name="input")]
    for stage, (units, count) in enumerate(zip(UNITS, counts, strict=True), start=1):
        for number in range(1, count + 1):
            name = f"{stage}_{number}"
            chain.append(
                layers.Conv2D(units, 3, padding=1, activation=None if has_norms else "relu", name=f"conv{name}")
            )
            if has_norms:
                chain += [layers.BatchNorm(name=f"norm{name}"), layers.Activation("relu", name=f"relu{name}")]
        chain.append(layers.MaxPool2D(2, name=f"pool{stage}"))
    chain.append(layers.Flatten(name="flatten"))
    for number in (1, 2):
        chain.append(layers.Dense(4096, activation="relu", name=f"dense{number}"))
        chain.append(layers.Dropout(0.5, name=f"dropout{number}"))
    chain.append(layers.Dense(classes, name="logits"))
    return bn.Sequential(chain, class_names=class_names, seed=seed)
