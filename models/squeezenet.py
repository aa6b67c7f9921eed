"""SqueezeNet (Iandola et al., *SqueezeNet: AlexNet-level accuracy with 50x fewer parameters*, 2016)."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import network

#: Units of the fire modules: squeezed, and of each of the two expanding convolutions; None for a pool.
MODULES = (
    *((16, 64), (16, 64), None, (32, 128), (32, 128), None),
    *((48, 192), (48, 192), (64, 256), (64, 256)),
)


@network()
def squeezenet1_1(images: layers.Node, classes: int) -> layers.Node:
    """Version 1.1: a 3x3 stem, eight fire modules, a 1x1 convolution to the classes, and a global average.

    A fire module is a 1x1 convolution to few units, and of these a 1x1 and a 3x3 one side by side. Pools round sizes
    up, and a ReLU comes before the average, as in the authors' own definition and torchvision's.

    The sides of a sample are at least 17.
    """
    node = layers.Conv2D(64, 3, 2, activation="relu", name="stem")(images)
    node = layers.MaxPool2D(3, 2, ceil_mode=True, name="stem_pool")(node)
    number = 1
    for units in MODULES:
        if units is None:
            node = layers.MaxPool2D(3, 2, ceil_mode=True, name=f"pool{number}")(node)
        else:
            number += 1
            node = _fire(node, *units, f"fire{number}")
    node = layers.Dropout(0.5, name="dropout")(node)
    node = layers.Conv2D(classes, 1, activation="relu", name="classes")(node)
    return layers.GlobalAveragePool(name="logits")(node)


def _fire(node: layers.Node, squeezed: int, expanded: int, name: str) -> layers.Node:
    node = layers.Conv2D(squeezed, 1, activation="relu", name=f"{name}_squeeze")(node)
    first = layers.Conv2D(expanded, 1, activation="relu", name=f"{name}_expand1")(node)
    second = layers.Conv2D(expanded, 3, padding=1, activation="relu", name=f"{name}_expand3")(node)
    return layers.Concat(name=f"{name}_join")([first, second])
