"""CenterNet: boxes by their middles, on the trunk of another network (Zhou et al., *Objects as Points*, 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import blobnet as bn
from blobnet import layers
from blobnet.errors import OptionError, ShapeError, near_matches
from blobnet.losses.center_net import BOX_NAMES

#: The picture's cells for each cell of the output, about.
STRIDE = 4
#: The chance of a middle that every cell begins with is 0.1, as its logit: cells without one are by far the most.
_FIRST_LOGIT = math.log(0.1 / 0.9)


def centernet(
    input_shape: Sequence[int] = (3, 256, 256),
    classes: int = 80,
    class_names: Sequence[str] = (),
    seed: int = 0,
    trunk: str | bn.Model = "resnet18",
    filters: Sequence[int] = (256, 128, 64),
) -> bn.Model:
    """A network's layers up to its last planes, grown to about a quarter of the picture's sides, and two heads.

    The output is that of :class:`blobnet.losses.CenterNet`: (classes + 4, height, width). Planes grow by transposed
    convolutions of 4x4 with batch norms, twice the sides each. Each head is a 3x3 convolution of 64 units and one of
    1x1.

    Args:
        input_shape: (units, height, width) of a sample.
        classes: kinds of boxes.
        class_names: their names.
        seed: of the initial weights.
        trunk: the name of a network of :mod:`blobnet.models`; or a model, whose weights are kept.
        filters: units of the transposed convolutions; the last number goes on for more of them.

    Raises:
        OptionError: the trunk is no network that has planes.
        ShapeError: a model that is the trunk takes other samples.
    """
    whole = trunk if isinstance(trunk, bn.Model) else _named(trunk, input_shape, seed)
    shape = whole.graph.input.shape
    if shape.dimensions != tuple(input_shape):
        raise ShapeError("centernet", "the trunk must take such samples", trunk=shape, input=tuple(input_shape))
    inner = [vertex for vertex in whole.graph.vertices[1:] if vertex not in whole.graph.outputs.values()]
    planes = [vertex.name for vertex in inner if vertex.shape.rank == 2 and min(vertex.shape.sizes) > 1]
    # Of a transformer only the first layer has planes.
    if not planes or any(isinstance(vertex.layer, layers.MultiHeadAttention) for vertex in inner):
        rule = "the trunk must have planes, with a height and a width, up to its last layers"
        raise OptionError("centernet", rule, trunk=trunk, hint="resnet18, for example.")
    images, node = whole.trunk(planes[-1])
    grown = math.log2(max(1.0, min(shape.sizes) / STRIDE / min(node.shape.sizes)))
    for number in range(round(grown)):
        units, own = filters[min(number, len(filters) - 1)], f"grow{number + 1}"
        node = layers.ConvTranspose2D(units, 4, stride=2, padding=1, bias=False, name=f"{own}_conv")(node)
        node = layers.Activation("relu", name=f"{own}_relu")(layers.BatchNorm(name=f"{own}_norm")(node))
    heads = []
    for own, units in (("heat", classes), ("box", len(BOX_NAMES))):
        head = layers.Conv2D(64, 3, padding=1, activation="relu", name=f"{own}_conv")(node)
        heads.append(layers.Conv2D(units, 1, name=own)(head))
    names = (*class_names, *BOX_NAMES) if class_names else ()
    model = bn.Model(images, layers.Concat(name="centers")(heads), class_names=names, seed=seed)
    model.set_weights({"heat/bias": [_FIRST_LOGIT] * classes})
    return model


def _named(trunk: str, input_shape: Sequence[int], seed: int) -> bn.Model:
    known = [name for name in bn.models.__all__ if name != "centernet"]
    if trunk not in known:
        hint = near_matches(str(trunk), known)
        raise OptionError("centernet", "the trunk must be one of blobnet's networks", trunk=trunk, hint=hint)
    model: bn.Model = getattr(bn.models, trunk)(tuple(input_shape), seed=seed)
    return model
