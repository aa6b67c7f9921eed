"""MobileNetV2 (Sandler et al., *MobileNetV2: inverted residuals and linear bottlenecks*, 2018, table 2)."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers

#: Stages of inverted residuals: expansion, units, blocks, and the stride of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """A 3x3 stem, 17 inverted residual blocks around depthwise convolutions, a 1x1 convolution and a global average.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    images = layers.Input(*input_shape, name="input")()
    node = _convolution(images, 32, 3, "stem", stride=2)
    number = 0
    for expansion, units, blocks, first_stride in STAGES:
        for block in range(blocks):
            number += 1
            node = _block(node, expansion, units, 1 if block else first_stride, f"block{number}")
    node = _convolution(node, 1280, 1, "head")
    node = layers.GlobalAveragePool(name="pool")(node)
    node = layers.Dropout(0.2, name="dropout")(node)
    logits = layers.Dense(classes, name="logits")(node)
    return bn.Model(images, logits, class_names=class_names, seed=seed)


def _convolution(
    node: layers.Node, units: int, kernel: int, name: str, *, stride: int = 1, groups: int = 1, is_linear: bool = False
) -> layers.Node:
    """A convolution without bias, its batch norm and, unless ``is_linear``, a ReLU that ends at 6."""
    node = layers.Conv2D(units, kernel, stride, kernel // 2, groups=groups, bias=False, name=f"{name}_conv")(node)
    node = layers.BatchNorm(name=f"{name}_norm")(node)
    return node if is_linear else layers.Activation("relu6", name=f"{name}_relu6")(node)


def _block(node: layers.Node, expansion: int, units: int, stride: int, name: str) -> layers.Node:
    """Wider by a 1x1 convolution, one 3x3 filter a unit, narrow again without a ReLU; added to its input if it fits."""
    wide = expansion * node.shape.units
    branch = node if expansion == 1 else _convolution(node, wide, 1, f"{name}_expand")
    branch = _convolution(branch, wide, 3, f"{name}_depthwise", stride=stride, groups=wide)
    branch = _convolution(branch, units, 1, f"{name}_project", is_linear=True)
    return node + branch if stride == 1 and node.shape.units == units else branch
