"""ResNet-50 (He et al., *Deep residual learning for image recognition*, 2016, table 1), its version 1.5."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers

#: A block's output has this many times the units of its 3x3 convolution.
EXPANSION = 4


def resnet50(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """A 7x7 stem, four stages of 3, 4, 6 and 3 bottleneck blocks, and a global average.

    Version 1.5: where a stage halves the planes, the block's 3x3 convolution has the stride; in the paper the 1x1
    convolution before it has, and skips three quarters of its input. That is also what PyTorch's resnet50 does.

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
    for stage, (units, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(1, blocks + 1):
            node = _block(node, units, 2 if stage > 1 and block == 1 else 1, f"stage{stage}_block{block}")
    node = layers.GlobalAveragePool(name="pool")(node)
    logits = layers.Dense(classes, name="logits")(node)
    return bn.Model(images, logits, class_names=class_names, seed=seed)


def _convolution(node: layers.Node, units: int, kernel: int, stride: int, name: str) -> layers.Node:
    node = layers.Conv2D(units, kernel, stride, kernel // 2, bias=False, name=f"{name}_conv")(node)
    return layers.BatchNorm(name=f"{name}_norm")(node)


def _block(node: layers.Node, units: int, stride: int, name: str) -> layers.Node:
    """A 1x1, a 3x3 and a 1x1 convolution, added to the block's input."""
    branch = _convolution(node, units, 1, 1, f"{name}_a")
    branch = layers.Activation("relu", name=f"{name}_a_relu")(branch)
    branch = _convolution(branch, units, 3, stride, f"{name}_b")
    branch = layers.Activation("relu", name=f"{name}_b_relu")(branch)
    branch = _convolution(branch, EXPANSION * units, 1, 1, f"{name}_c")
    same = stride == 1 and node.shape.units == EXPANSION * units
    shortcut = node if same else _convolution(node, EXPANSION * units, 1, stride, f"{name}_shortcut")
    return layers.Activation("relu", name=f"{name}_relu")(branch + shortcut)
