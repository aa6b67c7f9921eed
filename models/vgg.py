"""VGG (Simonyan and Zisserman, *Very deep convolutional networks*, 2015, table 1): chains of 3x3 convolutions.

Five stages, each halved by a pool, then three dense layers with dropout. The first of these sees whatever the last pool
leaves: 7x7 at 224x224, as in the paper, 2x2 at 64x64. The sides of a sample are at least 32. Those with ``_bn`` have
batch norms, and biases before them, as torchvision's weights want it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import blobnet as bn
from blobnet import layers
from blobnet.models.blocks import NetworkFunction, member

#: Convolutions of each stage of a configuration, and the units of the stages.
CONFIGURATIONS = {"A": (1, 1, 2, 2, 2), "B": (2, 2, 2, 2, 2), "D": (2, 2, 3, 3, 3), "E": (2, 2, 4, 4, 4)}
UNITS = (64, 128, 256, 512, 512)


def _vgg(
    input_shape: Sequence[int],
    classes: int,
    class_names: Sequence[str],
    seed: int,
    counts: Sequence[int],
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


def _family(*, has_norms: bool) -> Iterator[NetworkFunction]:
    """The networks of all configurations, each called by its layers with weights."""
    for letter, counts in CONFIGURATIONS.items():
        name = f"vgg{sum(counts) + 3}{'_bn' if has_norms else ''}"
        text = f"Configuration {letter}: {sum(counts)} convolutions{', each with a batch norm' if has_norms else ''}."
        yield member(_vgg, name, text, counts, has_norms)


vgg11, vgg13, vgg16, vgg19 = _family(has_norms=False)
vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn = _family(has_norms=True)
