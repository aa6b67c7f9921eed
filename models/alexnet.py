"""AlexNet in one column (Krizhevsky, *One weird trick for parallelizing convolutional neural networks*, 2014)."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import chain, network


@network()
def alexnet(images: layers.Node, classes: int) -> layers.Node:
    """Five convolutions, the first with 11x11 taps and stride 4, three pools, and three dense layers with dropout.

    The first dense layer sees whatever the last pool leaves: 6x6 at 224x224. The sides of a sample are at least 63.
    """
    return chain(
        images,
        [
            layers.Conv2D(64, 11, 4, 2, activation="relu", name="conv1"),
            layers.MaxPool2D(3, 2, name="pool1"),
            layers.Conv2D(192, 5, padding=2, activation="relu", name="conv2"),
            layers.MaxPool2D(3, 2, name="pool2"),
            layers.Conv2D(384, 3, padding=1, activation="relu", name="conv3"),
            layers.Conv2D(256, 3, padding=1, activation="relu", name="conv4"),
            layers.Conv2D(256, 3, padding=1, activation="relu", name="conv5"),
            layers.MaxPool2D(3, 2, name="pool3"),
            layers.Flatten(name="flatten"),
            layers.Dropout(0.5, name="dropout1"),
            layers.Dense(4096, activation="relu", name="dense1"),
            layers.Dropout(0.5, name="dropout2"),
            layers.Dense(4096, activation="relu", name="dense2"),
            layers.Dense(classes, name="logits"),
        ],
    )
