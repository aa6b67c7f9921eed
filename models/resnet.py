"""Residual networks (He et al., *Deep residual learning for image recognition*, 2016, table 1 and section 4.2)."""

from __future__ import annotations

from blobnet import layers
from blobnet.models.blocks import NetworkFunction, basic_block, classifier, convolution, linear, network, residual

#: The output of a bottleneck block has this many times the units of its 3x3 convolution.
EXPANSION = 4
#: Zeros in place of units that a shortcut does not have, and of every other cell of rows and columns only the first.
_SHORTCUT = """function (I[N, C, Y, X]) -> (O) {
  O[n, c + (F - C)/2, y, x : N, F, (Y + 1)/2, (X + 1)/2] = +(I[n, c, 2*y, 2*x]);
}"""


@network((1, 28, 28), 10)
def resnet8(images: layers.Node, classes: int) -> layers.Node:
    """For small images: stages of one block with 16, 32 and 64 units, each at half the size of the one before.

    Where a stage halves the planes, the shortcut is a 1x1 convolution.
    """
    node = convolution(images, 16, 3, "stem")
    for number, units in enumerate((16, 32, 64), start=1):
        node = basic_block(node, units, 1 if number == 1 else 2, f"block{number}")
    return classifier(node, classes)


def _bottleneck(node: layers.Node, units: int, stride: int, name: str) -> layers.Node:
    """A 1x1, a 3x3 and a 1x1 convolution, added to the block's input."""
    branch = convolution(node, units, 1, f"{name}_a")
    branch = convolution(branch, units, 3, f"{name}_b", stride=stride)
    branch = linear(branch, EXPANSION * units, 1, f"{name}_c")
    return residual(node, branch, stride, name)


_LARGE = "A 7x7 stem, four stages of {}, {}, {} and {} {} blocks, and a global average.\n\n    {}"
_BASIC = """Stages have 64 to 512 units. Where one halves the planes, the shortcut is a 1x1 convolution: the paper's
    option B."""
_DEEP = """Version 1.5: where a stage halves the planes, the block's 3x3 convolution has the stride; in the paper the
    1x1 convolution before it has, and skips three quarters of its input. That is also what torchvision does."""
_SMALL = """For CIFAR-10: three stages of {} basic blocks with 16, 32 and 64 units, and a global average.

    Shortcuts have no parameters (the paper's option A): where a stage halves the planes, they take every other row and
    column, and zeros in place of the units that they do not have, as many before as after."""


def _large(depth: int, *counts: int, is_deep: bool) -> NetworkFunction:
    text = _LARGE.format(*counts, *(("bottleneck", _DEEP) if is_deep else ("basic", _BASIC)))

    @network(name=f"resnet{depth}", text=text)
    def build(images: layers.Node, classes: int) -> layers.Node:
        node = convolution(images, 64, 7, "stem", stride=2)
        node = layers.MaxPool2D(3, 2, padding=1, name="stem_pool")(node)
        for stage, (units, count) in enumerate(zip((64, 128, 256, 512), counts, strict=True), start=1):
            for number in range(1, count + 1):
                block, stride = _bottleneck if is_deep else basic_block, 2 if stage > 1 and number == 1 else 1
                node = block(node, units, stride, f"stage{stage}_block{number}")
        return classifier(node, classes)

    return build


def _small(depth: int, count: int) -> NetworkFunction:
    @network((3, 32, 32), 10, name=f"resnet{depth}", text=_SMALL.format(count))
    def build(images: layers.Node, classes: int) -> layers.Node:
        node = convolution(images, 16, 3, "stem")
        for stage, units in enumerate((16, 32, 64), start=1):
            for number in range(1, count + 1):
                name = f"stage{stage}_block{number}"
                stride = 2 if stage > 1 and number == 1 else 1
                branch = convolution(node, units, 3, f"{name}_a", stride=stride)
                branch = linear(branch, units, 3, f"{name}_b")
                if stride > 1:
                    node = layers.Contraction(_SHORTCUT, sizes={"F": units}, name=f"{name}_shortcut")(node)
                node = layers.Activation("relu", name=f"{name}_relu")(branch + node)
        return classifier(node, classes)

    return build


resnet18, resnet34 = _large(18, 2, 2, 2, 2, is_deep=False), _large(34, 3, 4, 6, 3, is_deep=False)
resnet50, resnet101 = _large(50, 3, 4, 6, 3, is_deep=True), _large(101, 3, 4, 23, 3, is_deep=True)
resnet20, resnet56 = _small(20, 3), _small(56, 9)
