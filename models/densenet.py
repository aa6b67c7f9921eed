"""DenseNets (Huang et al., *Densely connected convolutional networks*, 2017, table 1).

Every layer reads what all layers of its block before it have made. These parts lie side by side in memory from the
start: nothing is copied to join them.
"""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import NetworkFunction, classifier, network

#: The 1x1 convolution before each 3x3 one has this many times its filters.
BOTTLENECK = 4


def _activated(node: layers.Node, name: str) -> layers.Node:
    node = layers.BatchNorm(name=f"{name}_norm")(node)
    return layers.Activation("relu", name=f"{name}_relu")(node)


def _densenet(growth: int, *counts: int) -> NetworkFunction:
    """A stem, and blocks of so many layers, each of which adds ``growth`` units to the stem's two times as many.

    Between blocks a 1x1 convolution halves the units, and a pool the sides.
    """
    depth = 2 * sum(counts) + 5  # A stem, two convolutions a layer, one between blocks, and the last layer.
    text = "A 7x7 stem, blocks of {}, {}, {} and {} layers that add {} units each, and a global average.\n\n"
    text += "The sides of a sample are at least 29."

    @network(name=f"densenet{depth}", text=text.format(*counts, growth))
    def build(images: layers.Node, classes: int) -> layers.Node:
        node = layers.Conv2D(2 * growth, 7, 2, 3, bias=False, name="stem_conv")(images)
        node = _activated(node, "stem")
        node = layers.MaxPool2D(3, 2, padding=1, name="stem_pool")(node)
        for block, count in enumerate(counts, start=1):
            for layer in range(1, count + 1):
                name = f"block{block}_layer{layer}"
                added = _activated(node, f"{name}_a")
                added = layers.Conv2D(BOTTLENECK * growth, 1, bias=False, name=f"{name}_a_conv")(added)
                added = _activated(added, f"{name}_b")
                added = layers.Conv2D(growth, 3, padding=1, bias=False, name=f"{name}_b_conv")(added)
                node = layers.Concat(name=f"{name}_join")([node, added])
            if block < len(counts):
                name = f"transition{block}"
                node = layers.Conv2D(node.shape.units // 2, 1, bias=False, name=f"{name}_conv")(_activated(node, name))
                node = layers.AveragePool2D(2, name=f"{name}_pool")(node)
        return classifier(_activated(node, "last"), classes)

    return build


densenet121, densenet161 = _densenet(32, 6, 12, 24, 16), _densenet(48, 6, 12, 36, 24)
