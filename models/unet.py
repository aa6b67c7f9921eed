"""U-Net, a class for each position (Ronneberger et al., *U-Net: Convolutional Networks for Biomedical Image
Segmentation*, 2015), with padding, so that the mask has the size of the picture, and batch norms.
"""

from __future__ import annotations

from collections.abc import Sequence

import blobnet as bn
from blobnet import layers
from blobnet.errors import ShapeError
from blobnet.models.blocks import convolution


def unet(
    input_shape: Sequence[int] = (1, 28, 28),
    classes: int = 2,
    class_names: Sequence[str] = (),
    seed: int = 0,
    filters: Sequence[int] = (16, 32, 64),
) -> bn.Model:
    """Down to planes of 1 / 2^levels of the picture's sides and up again, each level joined to the one on its way down.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: logits at each position.
        class_names: their names.
        seed: of the initial weights.
        filters: units of each level; the last ones are those at the bottom.

    Raises:
        ShapeError: a side cannot be halved so often.
    """
    levels = len(filters) - 1
    if any(side % 2**levels for side in input_shape[1:]):
        rule = f"height and width must be multiples of {2**levels}: they are halved {levels} times"
        raise ShapeError("unet", rule, input=tuple(input_shape))
    images = layers.Input(*input_shape, name="input")()
    node, skips = images, []
    for level, units in enumerate(filters, start=1):
        node = _two(node, units, f"down{level}")
        if level <= levels:
            skips.append(node)
            node = layers.MaxPool2D(2, name=f"pool{level}")(node)
    for level in range(levels, 0, -1):
        units = filters[level - 1]
        node = layers.ConvTranspose2D(units, 2, stride=2, name=f"up{level}_grow")(node)
        node = layers.Concat(name=f"join{level}")([skips[level - 1], node])
        node = _two(node, units, f"up{level}")
    logits = layers.Conv2D(classes, 1, name="logits")(node)
    return bn.Model(images, logits, class_names=class_names, seed=seed)


def _two(node: layers.Node, units: int, name: str) -> layers.Node:
    """Two 3x3 convolutions with batch norms."""
    node = convolution(node, units, 3, f"{name}_a")
    return convolution(node, units, 3, f"{name}_b")
