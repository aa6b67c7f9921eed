"""How networks are made of functions from nodes to nodes, and the blocks that several of them have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from inspect import cleandoc
from typing import Protocol

import blobnet as bn
from blobnet import layers
from blobnet.memory.windows import Padding


class NetworkFunction(Protocol):
    """A function that returns a model."""

    def __call__(
        self,
        input_shape: Sequence[int] = ...,
        classes: int = ...,
        class_names: Sequence[str] = (),
        seed: int = 0,
        *,
        pretrained: str | None = None,
    ) -> bn.Model:
        """Build the network."""


def network(
    input_shape: Sequence[int] = (3, 224, 224), classes: int = 1000, *, name: str = "", text: str = ""
) -> Callable[[Callable[[layers.Node, int], layers.Node]], NetworkFunction]:
    """Make a network of a function from its input, and the number of its classes, to their logits.

    Args:
        input_shape: of a sample, where its caller does not say it.
        classes: the same.
        name: of the network; that of the function if empty.
        text: what it is; the function's docstring if empty.
    """

    def made(inner: Callable[[layers.Node, int], layers.Node]) -> NetworkFunction:
        def build(
            input_shape: Sequence[int] = input_shape,
            classes: int = classes,
            class_names: Sequence[str] = (),
            seed: int = 0,
        ) -> bn.Model:
            images = layers.Input(*input_shape, name="input")()
            return bn.Model(images, inner(images, classes), class_names=class_names, seed=seed)

        build.__name__ = build.__qualname__ = name or inner.__name__
        build.__module__, build.__doc__ = inner.__module__, f"{cleandoc(text or inner.__doc__ or '')}\n\n{_ARGUMENTS}"
        return build  # type: ignore[return-value]  # blobnet.models adds pretrained.

    return made


_ARGUMENTS = """\
Args:
    input_shape: (units, height, width) of a sample.
    classes: logits at the end.
    class_names: their names.
    seed: of the initial weights.
"""


def chain(node: layers.Node, stack: Iterable[layers.Layer]) -> layers.Node:
    """Layers one after another."""
    for layer in stack:
        node = layer(node)
    return node


@dataclass(frozen=True)
class Convolutions:
    """Convolutions of a network: without bias, with a batch norm and an activation behind each.

    Attributes:
        activation: its name; None for none.
        epsilon: what the norm adds to variances.
        momentum: the weight of a batch in the norm's running statistics.
        padding: as of Conv2D; half of the kernel if None, which keeps the size of planes at stride 1.
    """

    activation: str | None = "relu"
    epsilon: float = 1e-5
    momentum: float = 0.1
    padding: Padding | None = None

    def __call__(
        self,
        node: layers.Node,
        filters: int,
        kernel: int | tuple[int, int],
        name: str,
        *,
        stride: int = 1,
        groups: int = 1,
    ) -> layers.Node:
        """One of them, after a node: NAME_conv, NAME_norm and NAME_ACTIVATION."""
        padding = self.padding
        if padding is None:
            padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        node = layers.Conv2D(filters, kernel, stride, padding, groups=groups, bias=False, name=f"{name}_conv")(node)
        node = layers.BatchNorm(self.momentum, self.epsilon, name=f"{name}_norm")(node)
        return layers.Activation(self.activation, name=f"{name}_{self.activation}")(node) if self.activation else node


#: The usual ones, and those without an activation.
convolution, linear = Convolutions(), Convolutions(activation=None)


def basic_block(node: layers.Node, units: int, stride: int, name: str) -> layers.Node:
    """Two 3x3 convolutions, added to the block's input (He et al., *Deep residual learning*, 2016, figure 5, left)."""
    branch = convolution(node, units, 3, f"{name}_a", stride=stride)
    branch = linear(branch, units, 3, f"{name}_b")
    return residual(node, branch, stride, name)


def residual(node: layers.Node, branch: layers.Node, stride: int, name: str) -> layers.Node:
    """The ReLU of a branch plus what it reads, or plus a 1x1 convolution of that where the shapes differ."""
    units = branch.shape.units
    same = stride == 1 and node.shape.units == units
    shortcut = node if same else linear(node, units, 1, f"{name}_shortcut", stride=stride)
    return layers.Activation("relu", name=f"{name}_relu")(branch + shortcut)


@dataclass(frozen=True)
class Gates:
    """Units times gates, which two dense layers make of the means of all units.

    Hu et al., *Squeeze-and-Excitation Networks*, 2018, with as many values between the two as a network says.

    Attributes:
        squeezed: values between the dense layers NAME_squeeze and NAME_excite.
        activation: what follows the first of them.
        last: what follows the second.
    """

    squeezed: int
    activation: str = "relu"
    last: str = "sigmoid"

    def __call__(self, node: layers.Node, name: str) -> layers.Node:
        means = layers.GlobalAveragePool(name=f"{name}_means")(node)
        inner = layers.Dense(self.squeezed, activation=self.activation, name=f"{name}_squeeze")(means)
        gates = layers.Dense(node.shape.units, activation=self.last, name=f"{name}_excite")(inner)
        return layers.Multiply(name=f"{name}_gated")([gates, node])


@dataclass(frozen=True)
class InvertedResidual:
    """Wider by a 1x1 convolution, one filter a unit, and narrow again; added to its input if it fits.

    Sandler et al., *MobileNetV2: inverted residuals and linear bottlenecks*, 2018.

    Attributes:
        wide: units of the filters; where the input has as many, nothing comes before them.
        kernel: their rows and columns.
        units: of the output.
        stride: of the filters.
        convolution: the first two; the last is the same without an activation.
        gates: of the filters' units, if any.
        rate: at which the branch is left out in training, where it is added.
    """

    wide: int
    kernel: int
    units: int
    stride: int
    convolution: Convolutions
    gates: Gates | None = None
    rate: float = 0.0

    def __call__(self, node: layers.Node, name: str) -> layers.Node:
        given, wide, usual = node.shape.units, self.wide, self.convolution
        branch = node if wide == given else usual(node, wide, 1, f"{name}_expand")
        branch = usual(branch, wide, self.kernel, f"{name}_depthwise", stride=self.stride, groups=wide)
        if self.gates:
            branch = self.gates(branch, name)
        branch = replace(usual, activation=None)(branch, self.units, 1, f"{name}_project")
        if self.stride > 1 or given != self.units:
            return branch
        return layers.Add()([node, left_out(branch, self.rate, f"{name}_depth")])


def left_out(node: layers.Node, rate: float, name: str) -> layers.Node:
    """A branch that is left out of samples at some rate, in training."""
    return layers.StochasticDepth(rate, name=name)(node) if rate else node


def classifier(node: layers.Node, classes: int, dropout: float = 0.0) -> layers.Node:
    """A global average, perhaps dropout, and logits."""
    node = layers.GlobalAveragePool(name="pool")(node)
    if dropout:
        node = layers.Dropout(dropout, name="dropout")(node)
    return layers.Dense(classes, name="logits")(node)
