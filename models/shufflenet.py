"""ShuffleNetV2 (Ma et al., *ShuffleNet V2: practical guidelines for efficient CNN design*, 2018, table 5)."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import classifier, convolution, linear, network

#: Units and blocks of the stages.
STAGES = ((116, 4), (232, 8), (464, 4))


@network()
def shufflenet_v2_x1_0(images: layers.Node, classes: int) -> layers.Node:
    """The network of 1x units: a 3x3 stem, three stages, a 1x1 convolution and a global average.

    A block leaves half of its units as they are, and has filters for the others; then both halves take turns.
    """
    node = convolution(images, 24, 3, "stem", stride=2)
    node = layers.MaxPool2D(3, 2, padding=1, name="stem_pool")(node)
    for stage, (units, count) in enumerate(STAGES, start=1):
        for block in range(1, count + 1):
            node = _block(node, units // 2, 2 if block == 1 else 1, f"stage{stage}_block{block}")
    node = convolution(node, 1024, 1, "head")
    return classifier(node, classes)


def _block(node: layers.Node, units: int, stride: int, name: str) -> layers.Node:
    """Two times ``units``, of which those of a block without stride are its input's first half."""
    if stride > 1:
        first = _depthwise(node, stride, f"{name}_1_depthwise")
        first, second = convolution(first, units, 1, f"{name}_1"), node
    else:
        first, second = layers.split(node, (units, units))
    second = convolution(second, units, 1, f"{name}_2a")
    second = _depthwise(second, stride, f"{name}_2_depthwise")
    second = convolution(second, units, 1, f"{name}_2b")
    return layers.Interleave(name=f"{name}_shuffle")([first, second])


def _depthwise(node: layers.Node, stride: int, name: str) -> layers.Node:
    units = node.shape.units
    return linear(node, units, 3, name, stride=stride, groups=units)
