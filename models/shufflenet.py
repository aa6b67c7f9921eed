"""ShuffleNetV2 (Ma et al., *ShuffleNet V2: practical guidelines for efficient CNN design*, 2018, table 5)."""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers
from blobnet.models.blocks import classifier, convolution, linear

#: Units and blocks of the stages.
STAGES = ((116, 4), (232, 8), (464, 4))


def shufflenet_v2_x1_0(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, class_names: Sequence[str] = (), seed: int = 0
) -> bn.Model:
    """The network of 1x units: a 3x3 stem, three stages, a 1x1 convolution and a global average.

    A block leaves half of its units as they are, and has filters for the others; then both halves take turns.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at the end.
        class_names: their names.
        seed: of the initial weights.
    """
    images = layers.Input(*input_shape, name="input")()
    node = convolution(images, 24, 3, "stem", stride=2)
    node = layers.MaxPool2D(3, 2, padding=1, name="stem_pool")(node)
    for stage, (units, count) in enumerate(STAGES, start=1):
        for block in range(1, count + 1):
            node = _block(node, units // 2, 2 if block == 1 else 1, f"stage{stage}_block{block}")
    node = convolution(node, 1024, 1, "head")
    return bn.Model(images, classifier(node, classes), class_names=class_names, seed=seed)


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
    result: layers.Node = linear(node, units, 3, name, stride=stride, groups=units)
    return result
