"""LeNet-5 (LeCun et al., *Gradient-based learning applied to document recognition*, 1998), with ReLU and max pools."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import chain, network


@network((1, 28, 28), 10)
def lenet5(images: layers.Node, classes: int) -> layers.Node:
    """Two 5x5 convolutions, each pooled, then three dense layers; the first convolution keeps the image's size."""
    return chain(
        images,
        [
            layers.Conv2D(6, 5, padding="same", activation="relu", name="conv1"),
            layers.MaxPool2D(2, name="pool1"),
            layers.Conv2D(
                16, 5, padding="same" if min(images.shape.sizes) < 14 else 0, activation="relu", name="conv2"
            ),
            layers.MaxPool2D(2, name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(120, activation="relu", name="dense1"),
            layers.Dense(84, activation="relu", name="dense2"),
            layers.Dense(classes, name="logits"),
        ],
    )
