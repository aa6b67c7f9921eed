"""Inception v3 (Szegedy et al., *Rethinking the Inception architecture for computer vision*, 2016)."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers
from blobnet.models import blocks

#: A convolution of a branch: units, and rows and columns of the filters.
Filters = tuple[int, int | tuple[int, int]]

#: Along rows, and along columns.
ROW, COLUMN = (1, 7), (7, 1)

_convolution, _valid = blocks.Convolutions(epsilon=1e-3), blocks.Convolutions(epsilon=1e-3, padding=0)


def inception_v3(
    input_shape: Sequence[int] = (3, 299, 299),
    classes: int = 1000,
    class_names: Sequence[str] = (),
    seed: int = 0,
    auxiliary: bool = False,
) -> bn.Model:
    """Five convolutions, eleven modules of three or four branches whose outputs are joined, and a global average.

    Norms have an epsilon of 1e-3, as torchvision's weights want it.

    Args:
        input_shape: (units, height, width) of a sample, with sides of at least 75.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
        auxiliary: whether there is the output ``auxiliary`` beside ``logits``, for training: from the last planes of
            17x17, with a loss of 0.4 in torchvision's training (``fit(loss_weights=...)``). The sides of a sample are
            at least 107 then.
    """
    images = layers.Input(*input_shape, name="input")()
    node = _valid(images, 32, 3, "stem1", stride=2)
    node = _valid(node, 32, 3, "stem2")
    node = _convolution(node, 64, 3, "stem3")
    node = layers.MaxPool2D(3, 2, name="stem3_pool")(node)
    node = _convolution(node, 80, 1, "stem4")
    node = _valid(node, 192, 3, "stem5")
    node = layers.MaxPool2D(3, 2, name="stem5_pool")(node)
    for letter, units in zip("bcd", (32, 64, 64), strict=True):
        third: list[Filters] = [(64, 1), (96, 3), (96, 3)]
        node = _module(node, [[(64, 1)], [(48, 1), (64, 5)], third], units, f"mixed5{letter}")
    node = _shrunk(node, [[(384, 3)], [(64, 1), (96, 3), (96, 3)]], "mixed6a")
    for letter, units in zip("bcde", (128, 160, 160, 192), strict=True):
        second: list[Filters] = [(units, 1), (units, ROW), (192, COLUMN)]
        third = [(units, 1), (units, COLUMN), (units, ROW), (units, COLUMN), (192, ROW)]
        node = _module(node, [[(192, 1)], second, third], 192, f"mixed6{letter}")
    heads = {"auxiliary": _auxiliary(node, classes)} if auxiliary else {}
    node = _shrunk(node, [[(192, 1), (320, 3)], [(192, 1), (192, ROW), (192, COLUMN), (192, 3)]], "mixed7a")
    for letter in "bc":
        node = _wide_module(node, f"mixed7{letter}")
    logits = blocks.classifier(node, classes, dropout=0.5)
    outputs = {"logits": logits, **heads} if auxiliary else logits
    return bn.Model(images, outputs, class_names=() if auxiliary else class_names, seed=seed)


def _branch(node: layers.Node, chain: Sequence[Filters], name: str) -> layers.Node:
    """Convolutions that keep the size: NAMEa, NAMEb, ..."""
    for letter, (units, kernel) in zip("abcde", chain, strict=False):
        node = _convolution(node, units, kernel, f"{name}{letter}")
    return node


def _pooled(node: layers.Node, units: int, name: str) -> layers.Node:
    """A 1x1 convolution of means of 3x3 cells."""
    means = layers.AveragePool2D(3, 1, 1, name=f"{name}_4_pool")(node)
    return _convolution(means, units, 1, f"{name}_4")


def _module(node: layers.Node, chains: Sequence[Sequence[Filters]], pooled: int, name: str) -> layers.Node:
    """Three branches of convolutions and one after a pool (the paper's figures 5 and 6)."""
    branches = [_branch(node, chain, f"{name}_{number}") for number, chain in enumerate(chains, start=1)]
    return layers.Concat(name=f"{name}_join")([*branches, _pooled(node, pooled, name)])


def _shrunk(node: layers.Node, chains: Sequence[Sequence[Filters]], name: str) -> layers.Node:
    """Half the size: branches whose last filters have stride 2 and no padding, and a pool (the paper's figure 10)."""
    branches = []
    for number, (*chain, (units, kernel)) in enumerate(chains, start=1):
        branch = _branch(node, chain, f"{name}_{number}")
        branches.append(_valid(branch, units, kernel, f"{name}_{number}_last", stride=2))
    return layers.Concat(name=f"{name}_join")([*branches, layers.MaxPool2D(3, 2, name=f"{name}_3_pool")(node)])


def _wide_module(node: layers.Node, name: str) -> layers.Node:
    """Branches that end with a filter along rows and one along columns, side by side (the paper's figure 7)."""
    branches = [_convolution(node, 320, 1, f"{name}_1a")]
    chains: list[list[Filters]] = [[(384, 1)], [(448, 1), (384, 3)]]
    for number, chain in enumerate(chains, start=2):
        branch = _branch(node, chain, f"{name}_{number}")
        ends = [_convolution(branch, 384, kernel, f"{name}_{number}_{kernel[0]}") for kernel in ((1, 3), (3, 1))]
        branches.append(layers.Concat(name=f"{name}_{number}_join")(ends))
    return layers.Concat(name=f"{name}_join")([*branches, _pooled(node, 192, name)])


def _auxiliary(node: layers.Node, classes: int) -> layers.Node:
    """A classifier on means of 5x5 cells."""
    node = layers.AveragePool2D(5, 3, name="auxiliary_pool")(node)
    node = _convolution(node, 128, 1, "auxiliary1")
    node = _valid(node, 768, 5, "auxiliary2")
    node = layers.GlobalAveragePool(name="auxiliary_means")(node)
    return layers.Dense(classes, name="auxiliary_logits")(node)
