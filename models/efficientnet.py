"""EfficientNet (Tan and Le, *EfficientNet: rethinking model scaling for convolutional neural networks*, 2019)."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import Convolutions, Gates, InvertedResidual, classifier, network

#: Stages of inverted residuals: expansion, taps, units, blocks, and the stride of the first block.
STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
#: The rate at which the branch of a block after the last one would be left out; the first one's is 0.
STOCHASTIC_DEPTH = 0.2


@network()
def efficientnet_b0(images: layers.Node, classes: int) -> layers.Node:
    """EfficientNet-B0: a 3x3 stem, 16 inverted residual blocks with gates, a 1x1 convolution and a global average.

    Gates have a quarter of the values that the block reads between their layers. Branches that are added are left out
    in training, of whole samples, the later ones more often.
    """
    convolution = Convolutions("silu")
    node = convolution(images, 32, 3, "stem", stride=2)
    number, total = 0, sum(stage[3] for stage in STAGES)
    for expansion, kernel, units, count, first_stride in STAGES:
        for block in range(count):
            given, stride, rate = node.shape.units, 1 if block else first_stride, STOCHASTIC_DEPTH * number / total
            gates = Gates(max(1, given // 4), "silu")
            number += 1
            own = InvertedResidual(expansion * given, kernel, units, stride, convolution, gates, rate)
            node = own(node, f"block{number}")
    node = convolution(node, 1280, 1, "head")
    return classifier(node, classes, dropout=0.2)
