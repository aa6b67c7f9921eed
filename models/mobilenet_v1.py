"""MobileNet (Howard et al., *MobileNets: efficient convolutional neural networks for mobile vision*, 2017, table 1)."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers
from blobnet.models.blocks import Convolutions, classifier

#: Units of the blocks' outputs, and the strides of their 3x3 filters.
BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
)


def mobilenet_v1(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """A 3x3 stem, 13 blocks of one 3x3 filter a unit and a 1x1 convolution, and a global average.

    As Keras's weights want it, where the paper says less: ReLUs end at 6, norms have an epsilon of 1e-3, filters at
    stride 2 have their zeros after the data alone, and a thousandth of the averages is dropped.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    images = layers.Input(*input_shape, name="input")()
    node = _convolution(images, 32, 3, 2, "stem")
    for number, (units, stride) in enumerate(BLOCKS, start=1):
        node = _convolution(node, node.shape.units, 3, stride, f"block{number}_depthwise", groups=node.shape.units)
        node = _convolution(node, units, 1, 1, f"block{number}_pointwise")
    return bn.Model(images, classifier(node, classes, dropout=1e-3), class_names=class_names, seed=seed)


def _convolution(node: layers.Node, units: int, kernel: int, stride: int, name: str, groups: int = 1) -> layers.Node:
    convolution = Convolutions("relu6", 1e-3, 0.01, padding=((0, 1), (0, 1)) if stride == 2 else None)
    result: layers.Node = convolution(node, units, kernel, name, stride=stride, groups=groups)
    return result
