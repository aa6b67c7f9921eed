"""ConvNeXt (Liu et al., *A ConvNet for the 2020s*, 2022)."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import left_out, network

#: Of the tiny one: blocks and units of each stage, and the rate at which the last block's branch is left out.
DEPTHS, UNITS, STOCHASTIC_DEPTH = (3, 3, 9, 3), (96, 192, 384, 768), 0.1
#: What the factors of branches start with.
LAYER_SCALE = 1e-6
_EPSILON = 1e-6


@network()
def convnext_tiny(images: layers.Node, classes: int) -> layers.Node:
    """ConvNeXt-T: patches of 4x4, four stages of 3, 3, 9 and 3 blocks with 96 to 768 units, and a global average.

    A block is one 7x7 filter a unit, a norm over the units of each position, two 1x1 convolutions around a GELU, and a
    learned factor for each unit; all that is added to its input, and left out of whole samples in training, in later
    blocks more often.

    The sides of a sample are at least 32.
    """
    node = layers.Conv2D(UNITS[0], 4, 4, name="stem_conv")(images)
    node = layers.LayerNorm(_EPSILON, name="stem_norm")(node)
    number, last = 0, sum(DEPTHS) - 1
    for stage, (count, units) in enumerate(zip(DEPTHS, UNITS, strict=True), start=1):
        if stage > 1:
            node = layers.LayerNorm(_EPSILON, name=f"shrink{stage - 1}_norm")(node)
            node = layers.Conv2D(units, 2, 2, name=f"shrink{stage - 1}_conv")(node)
        for block in range(1, count + 1):
            node = _block(node, STOCHASTIC_DEPTH * number / last, f"stage{stage}_block{block}")
            number += 1
    node = layers.GlobalAveragePool(name="pool")(node)
    node = layers.LayerNorm(_EPSILON, name="last_norm")(node)
    return layers.Dense(classes, name="logits")(node)


def _block(node: layers.Node, rate: float, name: str) -> layers.Node:
    units = node.shape.units
    branch = layers.Conv2D(units, 7, padding=3, groups=units, name=f"{name}_depthwise")(node)
    branch = layers.LayerNorm(_EPSILON, name=f"{name}_norm")(branch)
    branch = layers.Conv2D(4 * units, 1, activation="gelu", name=f"{name}_expand")(branch)
    branch = layers.Conv2D(units, 1, name=f"{name}_project")(branch)
    branch = layers.Scale(LAYER_SCALE, name=f"{name}_scale")(branch)
    return node + left_out(branch, rate, f"{name}_depth")
