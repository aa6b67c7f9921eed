"""DenseNets (Huang et al., *Densely connected convolutional networks*, 2017, table 1).

Every layer reads what all layers of its block before it have made. These parts lie side by side in memory from the
start: nothing is copied to join them.
"""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers
from blobnet.models.blocks import classifier

#: The 1x1 convolution before each 3x3 one has this many times its filters.
BOTTLENECK = 4


def densenet121(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """DenseNet-121: a 7x7 stem, blocks of 6, 12, 24 and 16 layers that add 32 units each, and a global average.

    Args:
        input_shape: (units, height, width) of a sample, with sides of at least 29.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _densenet(input_shape, classes, class_names, seed, 32, (6, 12, 24, 16))


def densenet161(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """DenseNet-161: as :func:`densenet121`, with blocks of 6, 12, 36 and 24 layers that add 48 units each.

    Args:
        input_shape: (units, height, width) of a sample, with sides of at least 29.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    return _densenet(input_shape, classes, class_names, seed, 48, (6, 12, 36, 24))


def _densenet(
    input_shape: Sequence[int],
    classes: int,
    class_names: Sequence[str],
    seed: int,
    growth: int,
    blocks: Sequence[int],
) -> bn.Model:
    """A stem, and blocks of so many layers, each of which adds ``growth`` units to the stem's two times as many.

    Between blocks a 1x1 convolution halves the units, and a pool the sides.
    """
    images = layers.Input(*input_shape, name="input")()
    node = layers.Conv2D(2 * growth, 7, 2, 3, bias=False, name="stem_conv")(images)
    node = _activated(node, "stem")
    node = layers.MaxPool2D(3, 2, padding=1, name="stem_pool")(node)
    for block, count in enumerate(blocks, start=1):
        for layer in range(1, count + 1):
            name = f"block{block}_layer{layer}"
            added = _activated(node, f"{name}_a")
            added = layers.Conv2D(BOTTLENECK * growth, 1, bias=False, name=f"{name}_a_conv")(added)
            added = _activated(added, f"{name}_b")
            added = layers.Conv2D(growth, 3, padding=1, bias=False, name=f"{name}_b_conv")(added)
            node = layers.Concat(name=f"{name}_join")([node, added])
        if block < len(blocks):
            name = f"transition{block}"
            node = layers.Conv2D(node.shape.units // 2, 1, bias=False, name=f"{name}_conv")(_activated(node, name))
            node = layers.AveragePool2D(2, name=f"{name}_pool")(node)
    node = _activated(node, "last")
    return bn.Model(images, classifier(node, classes), class_names=class_names, seed=seed)


def _activated(node: layers.Node, name: str) -> layers.Node:
    node = layers.BatchNorm(name=f"{name}_norm")(node)
    return layers.Activation("relu", name=f"{name}_relu")(node)
