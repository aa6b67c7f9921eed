"""MobileNetV2 (Sandler et al., *MobileNetV2: inverted residuals and linear bottlenecks*, 2018, table 2)."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import Convolutions, InvertedResidual, classifier, network

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


@network()
def mobilenet_v2(images: layers.Node, classes: int) -> layers.Node:
    """A 3x3 stem, 17 inverted residual blocks around depthwise convolutions, a 1x1 convolution and a global average."""
    convolution = Convolutions("relu6")
    node = convolution(images, 32, 3, "stem", stride=2)
    number = 0
    for expansion, units, count, first_stride in STAGES:
        for block in range(count):
            number += 1
            wide, stride = expansion * node.shape.units, 1 if block else first_stride
            node = InvertedResidual(wide, 3, units, stride, convolution)(node, f"block{number}")
    node = convolution(node, 1280, 1, "head")
    return classifier(node, classes, dropout=0.2)
