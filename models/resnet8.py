"""A residual network with three stages of one block (He et al., *Deep residual learning*, 2016, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers


def resnet8(
    input_shape: Sequence[int] = (1, 28, 28), classes: int = 10, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """Stages of 16, 32 and 64 units, the later two at half the size of the one before; then a global average.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    images = layers.Input(*input_shape, name="input")()
    node = _convolution(images, 16, 3, 1, "stem")
    node = layers.Activation("relu", name="stem_relu")(node)
    for number, units in enumerate((16, 32, 64), start=1):
        node = _block(node, units, 1 if number == 1 else 2, f"block{number}")
    node = layers.GlobalAveragePool(name="pool")(node)
    logits = layers.Dense(classes, name="logits")(node)
    return bn.Model(images, logits, class_names=class_names, seed=seed)


def _convolution(node: layers.Node, units: int, kernel: int, stride: int, name: str) -> layers.Node:
    node = layers.Conv2D(units, kernel, stride, kernel // 2, bias=False, name=f"{name}_conv")(node)
    return layers.BatchNorm(name=f"{name}_norm")(node)


def _block(node: layers.Node, units: int, stride: int, name: str) -> layers.Node:
    """Two 3x3 convolutions, added to the block's input (through a 1x1 convolution where the shape changes)."""
    branch = _convolution(node, units, 3, stride, f"{name}_a")
    branch = layers.Activation("relu", name=f"{name}_a_relu")(branch)
    branch = _convolution(branch, units, 3, 1, f"{name}_b")
    shortcut = node if stride == 1 else _convolution(node, units, 1, stride, f"{name}_shortcut")
    return layers.Activation("relu", name=f"{name}_relu")(branch + shortcut)
