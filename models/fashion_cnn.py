"""A small convolutional network for 28x28 images, with batch normalisation and dropout."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import chain, network


@network((1, 28, 28), 10)
def fashion_cnn(images: layers.Node, classes: int) -> layers.Node:
    """Four times convolution - batch norm - ReLU, pooled after each pair, then a dense layer, with dropout."""
    stack: list[layers.Layer] = []
    for number, units in enumerate((32, 32, 64, 64), start=1):
        stack += [
            layers.Conv2D(units, 3, padding="same", bias=False, name=f"conv{number}"),
            layers.BatchNorm(name=f"norm{number}"),
            layers.Activation("relu", name=f"relu{number}"),
        ]
        if number % 2 == 0:
            stack += [
                layers.MaxPool2D(2, name=f"pool{number // 2}"),
                layers.Dropout(0.25, name=f"dropout{number // 2}"),
            ]
    stack += [
        layers.Flatten(name="flatten"),
        layers.Dense(128, activation="relu", name="dense1"),
        layers.Dropout(0.5, name="dropout3"),
        layers.Dense(classes, name="logits"),
    ]
    return chain(images, stack)
