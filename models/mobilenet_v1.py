"""MobileNet (Howard et al., *MobileNets: efficient convolutional neural networks for mobile vision*, 2017, table 1)."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import Convolutions, classifier, network

#: Units of the blocks' outputs, and the strides of their 3x3 filters.
BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
)


@network()
def mobilenet_v1(images: layers.Node, classes: int) -> layers.Node:
    """A 3x3 stem, 13 blocks of one 3x3 filter a unit and a 1x1 convolution, and a global average.

    As Keras's weights want it, where the paper says less: ReLUs end at 6, norms have an epsilon of 1e-3, filters at
    stride 2 have their zeros after the data alone, and a thousandth of the averages is dropped.
    """
    node = _convolution(images, 32, 3, 2, "stem")
    for number, (units, stride) in enumerate(BLOCKS, start=1):
        node = _convolution(node, node.shape.units, 3, stride, f"block{number}_depthwise", groups=node.shape.units)
        node = _convolution(node, units, 1, 1, f"block{number}_pointwise")
    return classifier(node, classes, dropout=1e-3)


def _convolution(node: layers.Node, units: int, kernel: int, stride: int, name: str, groups: int = 1) -> layers.Node:
    convolution = Convolutions("relu6", 1e-3, 0.01, padding=((0, 1), (0, 1)) if stride == 2 else None)
    return convolution(node, units, kernel, name, stride=stride, groups=groups)
