"""GoogLeNet (Szegedy et al., *Going deeper with convolutions*, 2015, table 1), with batch norms."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers
from blobnet.models import blocks

#: Units of the branches of each module: 1x1; 1x1 and 3x3; 1x1 and 3x3; 1x1 after a pool. A stage ends with a pool.
STAGES = (
    ("3", ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64))),
    (
        "4",
        (
            (192, 96, 208, 16, 48, 64),
            (160, 112, 224, 24, 64, 64),
            (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64),
            (256, 160, 320, 32, 128, 128),
        ),
    ),
    ("5", ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))),
)
#: The modules whose outputs auxiliary classifiers read, and the names of these.
AUXILIARY = {"4a": "auxiliary1", "4d": "auxiliary2"}

_convolution = blocks.Convolutions(epsilon=1e-3)


def googlenet(
    input_shape: Sequence[int] = (3, 224, 224),
    classes: int = 1000,
    class_names: Sequence[str] = (),
    seed: int = 0,
    auxiliary: bool = False,
) -> bn.Model:
    """Nine modules of four branches whose outputs are joined, and a global average.

    As the weights of torchvision want it, and other than the paper: batch norms (epsilon 1e-3) after all convolutions
    and no local response norms, 3x3 filters in the branches with 5x5 ones, and pools that round sizes up.

    Args:
        input_shape: (units, height, width) of a sample, with sides of at least 15.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
        auxiliary: whether there are the outputs ``auxiliary1`` and ``auxiliary2`` beside ``logits``, for training: from
            the middle of the network, with losses of 0.3 in the paper (``fit(loss_weights=...)``).
    """
    images = layers.Input(*input_shape, name="input")()
    node = _convolution(images, 64, 7, "stem1", stride=2)
    node = layers.MaxPool2D(3, 2, ceil_mode=True, name="stem1_pool")(node)
    node = _convolution(node, 64, 1, "stem2")
    node = _convolution(node, 192, 3, "stem3")
    node = layers.MaxPool2D(3, 2, ceil_mode=True, name="stem3_pool")(node)
    heads: dict[str, layers.Node] = {}
    for stage, modules in STAGES:
        for letter, units in zip("abcde", modules, strict=False):
            name = f"{stage}{letter}"
            node = _module(node, units, f"inception{name}")
            if auxiliary and name in AUXILIARY:
                heads[AUXILIARY[name]] = _auxiliary(node, classes, AUXILIARY[name])
        if stage < "5":
            node = layers.MaxPool2D(3 if stage == "3" else 2, 2, ceil_mode=True, name=f"pool{stage}")(node)
    logits = blocks.classifier(node, classes, dropout=0.2)
    outputs = {"logits": logits, **heads} if auxiliary else logits
    return bn.Model(images, outputs, class_names=() if auxiliary else class_names, seed=seed)


def _module(node: layers.Node, units: Sequence[int], name: str) -> layers.Node:
    """Four branches, one after the other among the units."""
    first = _convolution(node, units[0], 1, f"{name}_1")
    second = _convolution(_convolution(node, units[1], 1, f"{name}_2a"), units[2], 3, f"{name}_2b")
    third = _convolution(_convolution(node, units[3], 1, f"{name}_3a"), units[4], 3, f"{name}_3b")
    pooled = layers.MaxPool2D(3, 1, 1, ceil_mode=True, name=f"{name}_4_pool")(node)
    fourth = _convolution(pooled, units[5], 1, f"{name}_4")
    return layers.Concat(name=f"{name}_join")([first, second, third, fourth])


def _auxiliary(node: layers.Node, classes: int, name: str) -> layers.Node:
    """A classifier on 4x4 means."""
    node = layers.AdaptiveAveragePool(4, name=f"{name}_pool")(node)
    node = _convolution(node, 128, 1, name)
    node = layers.Flatten(name=f"{name}_flatten")(node)
    node = layers.Dense(1024, activation="relu", name=f"{name}_dense")(node)
    node = layers.Dropout(0.7, name=f"{name}_dropout")(node)
    return layers.Dense(classes, name=f"{name}_logits")(node)
