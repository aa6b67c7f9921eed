"""The blocks that several of the networks are made of."""

from __future__ import annotations

from functools import partial

from blobnet import layers
from blobnet.memory.windows import Padding


def convolution(
    node: layers.Node,
    filters: int,
    kernel: int | tuple[int, int],
    name: str,
    *,
    stride: int = 1,
    padding: Padding | None = None,
    groups: int = 1,
    activation: str | None = "relu",
    epsilon: float = 1e-5,
    momentum: float = 0.1,
) -> layers.Node:
    """A convolution without bias, its batch norm and an activation: NAME_conv, NAME_norm and NAME_ACTIVATION.

    Args:
        node: what it reads.
        filters: units of the output.
        kernel: rows and columns of the filters, or one number for both.
        name: what its layers' names begin with.
        stride: the step of the filters.
        padding: as of Conv2D; half of the kernel if None, which keeps the size of planes at stride 1.
        groups: into which units are divided.
        activation: its name; None for none.
        epsilon: what the norm adds to variances.
        momentum: the weight of a batch in the norm's running statistics.
    """
    if padding is None:
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    node = layers.Conv2D(filters, kernel, stride, padding, groups=groups, bias=False, name=f"{name}_conv")(node)
    node = layers.BatchNorm(momentum, epsilon, name=f"{name}_norm")(node)
    return node if activation is None else layers.Activation(activation, name=f"{name}_{activation}")(node)


def basic_block(node: layers.Node, units: int, stride: int, name: str) -> layers.Node:
    """Two 3x3 convolutions, added to the block's input (He et al., *Deep residual learning*, 2016, figure 5, left)."""
    branch = convolution(node, units, 3, f"{name}_a", stride=stride)
    branch = convolution(branch, units, 3, f"{name}_b", activation=None)
    return residual(node, branch, stride, name)


def residual(node: layers.Node, branch: layers.Node, stride: int, name: str) -> layers.Node:
    """The ReLU of a branch plus what it reads, or plus a 1x1 convolution of that where the shapes differ."""
    units = branch.shape.units
    same = stride == 1 and node.shape.units == units
    shortcut = node if same else convolution(node, units, 1, f"{name}_shortcut", stride=stride, activation=None)
    return layers.Activation("relu", name=f"{name}_relu")(branch + shortcut)


def inverted_residual(
    node: layers.Node,
    wide: int,
    kernel: int,
    units: int,
    stride: int,
    name: str,
    *,
    activation: str,
    squeezed: int = 0,
    squeeze_activation: str = "relu",
    gate: str = "sigmoid",
    rate: float = 0.0,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
) -> layers.Node:
    """Wider by a 1x1 convolution, one filter a unit, and narrow again; added to its input if it fits.

    Sandler et al., *MobileNetV2: inverted residuals and linear bottlenecks*, 2018.

    Args:
        node: what it reads.
        wide: units of the filters; where the input has as many, nothing comes before them.
        kernel: their rows and columns.
        units: of the output.
        stride: of the filters.
        name: what its layers' names begin with.
        activation: after the first two convolutions; the last has none.
        squeezed: values between the layers of gates after the filters, see :func:`squeeze_excite`; 0 for no gates.
        squeeze_activation: within the gates.
        gate: the last function of the gates.
        rate: at which the branch is left out in training, where it is added.
        epsilon: of the norms.
        momentum: of the norms.
    """
    given = node.shape.units
    normed = partial(convolution, epsilon=epsilon, momentum=momentum)
    branch = node if wide == given else normed(node, wide, 1, f"{name}_expand", activation=activation)
    branch = normed(branch, wide, kernel, f"{name}_depthwise", stride=stride, groups=wide, activation=activation)
    if squeezed:
        branch = squeeze_excite(branch, squeezed, name, activation=squeeze_activation, gate=gate)
    branch = normed(branch, units, 1, f"{name}_project", activation=None)
    if stride > 1 or given != units:
        return branch
    return layers.Add()([node, left_out(branch, rate, f"{name}_depth")])


def left_out(node: layers.Node, rate: float, name: str) -> layers.Node:
    """A branch that is left out of samples at some rate, in training."""
    return layers.StochasticDepth(rate, name=name)(node) if rate else node


def squeeze_excite(
    node: layers.Node, squeezed: int, name: str, *, activation: str = "relu", gate: str = "sigmoid"
) -> layers.Node:
    """Units times gates, which two dense layers make of the means of all units.

    Hu et al., *Squeeze-and-Excitation Networks*, 2018, with as many values between the two as a network says.

    Args:
        node: what it reads, with positions.
        squeezed: values between the dense layers NAME_squeeze and NAME_excite.
        name: what its layers' names begin with.
        activation: what follows the first of them.
        gate: what follows the second.
    """
    means = layers.GlobalAveragePool(name=f"{name}_means")(node)
    inner = layers.Dense(squeezed, activation=activation, name=f"{name}_squeeze")(means)
    gates = layers.Dense(node.shape.units, activation=gate, name=f"{name}_excite")(inner)
    return layers.Multiply(name=f"{name}_gated")([gates, node])


def classifier(node: layers.Node, classes: int, dropout: float = 0.0) -> layers.Node:
    """A global average, perhaps dropout, and logits."""
    node = layers.GlobalAveragePool(name="pool")(node)
    if dropout:
        node = layers.Dropout(dropout, name="dropout")(node)
    return layers.Dense(classes, name="logits")(node)
