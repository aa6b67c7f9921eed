"""VGG (Simonyan and Zisserman, *Very deep convolutional networks*, 2015, table 1): chains of 3x3 convolutions.

Five stages, each halved by a pool, then three dense layers with dropout. The first of these sees whatever the last pool
leaves: 7x7 at 224x224, as in the paper, 2x2 at 64x64. The sides of a sample are at least 32. Those with ``_bn`` have
batch norms, and biases before them, as torchvision's weights want it.
"""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import NetworkFunction, chain, network

#: Convolutions of each stage of a configuration, and the units of the stages.
CONFIGURATIONS = {"A": (1, 1, 2, 2, 2), "B": (2, 2, 2, 2, 2), "D": (2, 2, 3, 3, 3), "E": (2, 2, 4, 4, 4)}
UNITS = (64, 128, 256, 512, 512)


def _vgg(letter: str, *, has_norms: bool) -> NetworkFunction:
    """The network of a configuration, called by its layers with weights."""
    counts = CONFIGURATIONS[letter]
    name = f"vgg{sum(counts) + 3}{'_bn' if has_norms else ''}"
    text = f"Configuration {letter}: {sum(counts)} convolutions{', each with a batch norm' if has_norms else ''}."

    @network(name=name, text=text)
    def build(images: layers.Node, classes: int) -> layers.Node:
        stack: list[layers.Layer] = []
        for stage, (units, count) in enumerate(zip(UNITS, counts, strict=True), start=1):
            for number in range(1, count + 1):
                name, function = f"{stage}_{number}", None if has_norms else "relu"
                stack.append(layers.Conv2D(units, 3, padding=1, activation=function, name=f"conv{name}"))
                if has_norms:
                    stack += [layers.BatchNorm(name=f"norm{name}"), layers.Activation("relu", name=f"relu{name}")]
            stack.append(layers.MaxPool2D(2, name=f"pool{stage}"))
        stack.append(layers.Flatten(name="flatten"))
        for number in (1, 2):
            stack.append(layers.Dense(4096, activation="relu", name=f"dense{number}"))
            stack.append(layers.Dropout(0.5, name=f"dropout{number}"))
        return chain(images, [*stack, layers.Dense(classes, name="logits")])

    return build


vgg11, vgg13, vgg16, vgg19 = (_vgg(letter, has_norms=False) for letter in CONFIGURATIONS)
vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn = (_vgg(letter, has_norms=True) for letter in CONFIGURATIONS)
