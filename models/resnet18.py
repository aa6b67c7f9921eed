"""ResNet-18 (He et al., *Deep residual learning for image recognition*, 2016, table 1)."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers


def resnet18(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """A 7x7 stem, four stages of two basic blocks with 64 to 512 units, and a global average.

    Where a stage halves the planes, the shortcut is a 1x1 convolution (the paper's option B).

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    images = layers.Input(*input_shape, name="input")()
    node = _convolution(images, 64, 7, 2, "stem")
    node = layers.Activation("relu", name="stem_relu")(node)
    node = layers.MaxPool2D(3, 2, padding=1, name="stem_pool")(node)
    for stage, units in enumerate((64, 128, 256, 512), start=1):
        for block in (1, 2):
            node = _block(node, units, 2 if stage > 1 and block == 1 else 1, f"stage{stage}_block{block}")
    node = layers.GlobalAveragePool(name="pool")(node)
    logits = layers.Dense(classes, name="logits")(node)
    return bn.Model(images, logits, class_names=class_names, seed=seed)


def _convolution(node: layers.Node, units: int, kernel: int, stride: int, name: str) -> layers.Node:
    node = layers.Conv2D(units, kernel, stride, kernel // 2, bias=False, name=f"{name}_conv")(node)
    return layers.BatchNorm(name=f"{name}_norm")(node)


def _block(node: layers.Node, units: int, stride: int, name: str) -> layers.Node:
    """Two 3x3 convolutions, added to the block's input."""
    branch = _convolution(node, units, 3, stride, f"{name}_a")
    branch = layers.Activation("relu", name=f"{name}_a_relu")(branch)
    branch = _convolution(branch, units, 3, 1, f"{name}_b")
    same = stride == 1 and node.shape.units == units
    shortcut = node if same else _convolution(node, units, 1, stride, f"{name}_shortcut")
    return layers.Activation("relu", name=f"{name}_relu")(branch + shortcut)
