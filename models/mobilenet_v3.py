"""MobileNetV3 (Howard et al., *Searching for MobileNetV3*, 2019, table 2)."""

from __future__ import annotations

from dataclasses import replace

from blobnet import layers
from blobnet.models.blocks import Convolutions, Gates, InvertedResidual, network

#: Inverted residuals: taps, wide units, units, whether there are gates, the activation, and the stride.
SMALL = (
    (3, 16, 16, True, "relu", 2),
    (3, 72, 24, False, "relu", 2),
    (3, 88, 24, False, "relu", 1),
    (5, 96, 40, True, "hard_swish", 2),
    (5, 240, 40, True, "hard_swish", 1),
    (5, 240, 40, True, "hard_swish", 1),
    (5, 120, 48, True, "hard_swish", 1),
    (5, 144, 48, True, "hard_swish", 1),
    (5, 288, 96, True, "hard_swish", 2),
    (5, 576, 96, True, "hard_swish", 1),
    (5, 576, 96, True, "hard_swish", 1),
)


@network()
def mobilenet_v3_small(images: layers.Node, classes: int) -> layers.Node:
    """A 3x3 stem, 11 inverted residual blocks, most with gates, a 1x1 convolution, an average and two dense layers.

    The inner values of gates are a quarter of their units, rounded to a multiple of 8 but by less than a tenth down;
    norms have an epsilon of 1e-3 and a momentum of 0.01, as torchvision's weights want it.
    """
    convolution = Convolutions("hard_swish", epsilon=1e-3, momentum=0.01)
    node = convolution(images, 16, 3, "stem", stride=2)
    for number, (kernel, wide, units, has_gates, activation, stride) in enumerate(SMALL, start=1):
        gates = Gates(_multiple_of_8(wide // 4), last="hard_sigmoid") if has_gates else None
        own = replace(convolution, activation=activation)
        node = InvertedResidual(wide, kernel, units, stride, own, gates)(node, f"block{number}")
    node = convolution(node, 576, 1, "head")
    node = layers.GlobalAveragePool(name="pool")(node)
    node = layers.Dense(1024, activation="hard_swish", name="dense")(node)
    node = layers.Dropout(0.2, name="dropout")(node)
    return layers.Dense(classes, name="logits")(node)


def _multiple_of_8(value: int) -> int:
    """The nearest multiple of 8, at least 8; the next one where that is less than nine tenths of the value."""
    nearest = max(8, (value + 4) // 8 * 8)
    return nearest + 8 * (10 * nearest < 9 * value)
