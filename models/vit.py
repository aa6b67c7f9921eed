"""The vision transformer (Dosovitskiy et al., *An image is worth 16x16 words*, 2021)."""

from __future__ import annotations

from blobnet import layers
from blobnet.errors import ShapeError
from blobnet.models.blocks import network

#: Sides of a patch, blocks, units of a patch, heads of attention, and units between the two layers after it.
PATCH, DEPTH, UNITS, HEADS, INNER = 16, 12, 192, 3, 768
_EPSILON = 1e-6


@network()
def vit_tiny(images: layers.Node, classes: int) -> layers.Node:
    """The tiny one of Touvron et al. (*Training data-efficient image transformers*, 2021): 12 blocks of 192 units.

    Patches of 16x16 become columns of 192 values; a block is attention of each to all, with 3 heads, and two layers for
    each column around a GELU, both after a norm and added to what they read. A learned column says the class. The
    definition is that of torchvision's VisionTransformer.

    The sides of a sample are multiples of 16.

    Raises:
        ShapeError: patches do not divide a side.
    """
    if any(side % PATCH for side in images.shape.sizes):
        raise ShapeError("vit_tiny", f"height and width must be multiples of {PATCH}", input=images.shape.dimensions)
    node = layers.Conv2D(UNITS, PATCH, PATCH, name="patches")(images)
    node = layers.Tokens(name="tokens")(node)
    for number in range(1, DEPTH + 1):
        node = _block(node, f"block{number}")
    node = layers.Slice((None, (0, 1)), name="token")(node)
    node = layers.Flatten(name="flatten")(node)
    node = layers.LayerNorm(_EPSILON, name="last_norm")(node)
    return layers.Dense(classes, name="logits")(node)


def _block(node: layers.Node, name: str) -> layers.Node:
    branch = layers.LayerNorm(_EPSILON, name=f"{name}_a_norm")(node)
    node = node + layers.MultiHeadAttention(HEADS, name=f"{name}_attention")(branch)
    branch = layers.LayerNorm(_EPSILON, name=f"{name}_b_norm")(node)
    branch = layers.Conv1D(INNER, 1, activation="gelu", name=f"{name}_expand")(branch)
    return node + layers.Conv1D(UNITS, 1, name=f"{name}_project")(branch)
