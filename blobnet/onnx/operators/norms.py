"""Normalizations, and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blobnet import layers
from blobnet.onnx.lowering import contraction, elementwise
from blobnet.onnx.operation import Operation, operator
from blobnet.onnx.operators.reductions import reduced
from blobnet.onnx.values import Array, Tensor, Value


def _units_first(op: Operation, tensor: Tensor) -> tuple[int, ...]:
    """The sizes of a node for a tensor whose units are their own axis."""
    units, *rest = tensor.sizes or (1,)
    return (units, *rest) if len(rest) <= 3 else (units, *rest[:2], math.prod(rest[2:]))


def _last_axes(op: Operation, tensor: Tensor, axis: int) -> int:
    """The first of the axes from ``axis`` to the last; the samples must be on none of them."""
    first = op.axis(axis, tensor)
    if tensor.at is not None and first < tensor.at:
        op.mixed("the operator must leave the axis of the samples alone", axis=axis, shape=op.shape_of(tensor))
    return first


@operator("BatchNormalization")
def _batch_normalization(op: Operation) -> Value | Sequence[Value]:
    op.require(op.get("spatial", 1) == 1, "there must be one mean for each unit", spatial=0)
    epsilon, momentum = float(op.get("epsilon", 1e-5)), float(op.get("momentum", 0.9))
    if op.get("training_mode", 0):
        return _over_samples(op, op.tensor(0), epsilon, momentum)
    names = ("scale", "shift", "running_mean", "running_variance")
    weights = {name: op.array(1 + place) for place, name in enumerate(names)}
    if op.samples is None:
        return _over_samples(op, op.tensor(0), epsilon, momentum)
    tensor = op.plain()
    node = op.shaped(tensor, _units_first(op, tensor))
    fits = all(values.shape == (node.shape.units,) for values in weights.values())
    op.require(fits, "there must be a number for each unit", units=node.shape.units)
    layer = layers.BatchNorm(momentum=min(1.0, max(0.0, 1 - momentum)), epsilon=max(epsilon, 1e-30))
    return replace(tensor, node=op.layer(layer, node, weights=weights, key=op.key_of(*weights.values())))


def _over_samples(op: Operation, tensor: Tensor, epsilon: float, momentum: float) -> list[Value]:
    """Batch normalization of a whole tensor, of which axis 1 are the units."""
    if op.samples is not None:
        op.mixed("statistics over samples are no values of one of them", training_mode=1)
    rank = len(tensor.axes)
    shape = (1, tensor.axes[1], *(1,) * (rank - 2))
    axes = [axis for axis in range(rank) if axis != 1]

    def columns(value: Value) -> Value:
        return Tensor(value.node, shape, None) if isinstance(value, Tensor) else value.reshape(shape)

    scale, shift, mean, variance = (columns(op.value(place)) for place in range(1, 5))
    outputs: list[Value] = []
    if op.get("training_mode", 0):
        own, _, spread = _statistics(op, tensor, axes)
        for old, new in ((mean, own), (variance, spread)):
            moved = elementwise(op, f"{momentum!r} * {{0}} + {1 - momentum!r} * {{1}}", old, new)
            outputs.append(Tensor(moved.node, (tensor.axes[1],), None))
        mean, variance = own, spread
    text = f"({{0}} - {{1}}) / sqrt({{2}} + {epsilon!r}) * {{3}} + {{4}}"
    return [elementwise(op, text, tensor, mean, variance, scale, shift), *outputs]


@operator("MeanVarianceNormalization")
def _mean_variance_normalization(op: Operation) -> Tensor:
    """Compute from the deviations what ONNX writes out with E[x^2] - E[x]^2, which is noise where means are large."""
    tensor = op.tensor(0)
    axes = sorted({op.axis(int(axis), tensor) for axis in op.get("axes", (0, 2, 3))})
    _, centred, spread = _statistics(op, tensor, axes)
    return elementwise(op, "{0} / (sqrt({1}) + 1e-9)", centred, spread)


def _statistics(op: Operation, tensor: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of a tensor over some axes, its values less that, and the mean of their squares."""
    mean = reduced(op, tensor, axes, "{0} / COUNT")
    centred = elementwise(op, "{0} - {1}", tensor, mean)
    return mean, centred, reduced(op, centred, axes, "{0} * {0} / COUNT")


@operator("InstanceNormalization", "GroupNormalization")
def _group_normalization(op: Operation) -> Tensor:
    weights, epsilon = {"scale": op.array(1), "shift": op.array(2)}, float(op.get("epsilon", 1e-5))
    key = op.key_of(*weights.values())
    node, _ = op.spatial()
    if op.kind == "InstanceNormalization":
        return op.of_samples(op.layer(layers.InstanceNorm(epsilon), node, weights=weights, key=key))
    groups = int(op.get("num_groups", 1))
    if op.version < 21:  # A number for each group.
        weights = {name: np.repeat(values, node.shape.units // groups) for name, values in weights.items()}
    return op.of_samples(op.layer(layers.GroupNorm(groups, epsilon), node, weights=weights, key=key))


@operator("LayerNormalization", "RMSNormalization")
def _layer_normalization(op: Operation) -> Sequence[Value]:
    tensor, epsilon = op.tensor(0), float(op.get("epsilon", 1e-5))
    axis = _last_axes(op, tensor, int(op.get("axis", -1)))
    centres = op.kind == "LayerNormalization"
    parameters = {"scale": op.value(1), **({"shift": op.value(2)} if op.given(2) else {})}
    values = math.prod(tensor.axes[axis:])
    known = [value for value in parameters.values() if not isinstance(value, Tensor) and value.size == values]
    if len(known) < len(parameters) or any(op.outputs[1:]):
        return _written_out(op, tensor, axis, epsilon, centres)
    trained: dict[str, Array] = {name: value.ravel() for name, value in parameters.items()}  # type: ignore[union-attr]
    rows = math.prod(tensor.axes[:axis])
    if rows == 1 and centres and "shift" in trained:
        node = op.layer(layers.LayerNorm(epsilon), op.shaped(tensor, (values,)), weights=trained, key=op.key_of(*known))
        return [replace(tensor, node=node)]
    heads = "".join(f", {name}[X]" for name in trained)
    shift = " + shift[x]" if "shift" in trained else ""
    centred = "I[n, r, x] - S[n, r] / X" if centres else "I[n, r, x]"
    text = f"""function (I[N, R, X]{heads}) -> (O) {{
      {"S[n, r] = +(I[n, r, x]);" if centres else ""}
      D[n, r, x] = +({centred});
      V[n, r] = +(D[n, r, x] * D[n, r, x]);
      O[n, r, x] = +(D[n, r, x] / sqrt(V[n, r] / X + {epsilon!r}) * scale[x]{shift});
    }}"""
    node = contraction(op, text, op.shaped(tensor, (rows, values)), trained=trained, key=op.key_of(*known))
    return [replace(tensor, node=node)]


def _written_out(op: Operation, tensor: Tensor, axis: int, epsilon: float, centres: bool) -> Sequence[Value]:
    """The same by its parts, where these are outputs too, or the parameters are no constants."""
    axes = range(axis, len(tensor.axes))
    if centres:
        mean, centred, spread = _statistics(op, tensor, axes)
    else:
        centred, spread = tensor, reduced(op, tensor, axes, "{0} * {0} / COUNT")
    inverse = elementwise(op, f"1 / sqrt({{0}} + {epsilon!r})", spread)
    shift = [op.value(2)] if op.given(2) else []
    found = elementwise(op, "{0} * {1} * {2}" + " + {3}" * len(shift), centred, inverse, op.value(1), *shift)
    return [found, mean, inverse] if centres else [found, inverse]


@operator("LRN")
def _local_response(op: Operation) -> Tensor:
    tensor, size = op.plain(), int(op.get("size", 1))
    alpha, beta, bias = float(op.get("alpha", 1e-4)), float(op.get("beta", 0.75)), float(op.get("bias", 1.0))
    node = op.shaped(tensor, _units_first(op, tensor))
    if size % 2:
        return replace(tensor, node=op.layer(layers.LocalResponseNorm(size, alpha, beta, bias), node))
    # ONNX begins one unit later than the layer.
    square = " * ".join([f"I[n, c + k - {(size - 1) // 2}, ...]"] * 2)
    text = f"""function (I[N, C, ...]) -> (O) {{
      S[n, c, ... : N, C, ...] = +({square}), k < {size};
      O = I / pow({bias!r} + {alpha / size!r} * S, {beta!r});
    }}"""
    return replace(tensor, node=contraction(op, text, node))


@operator("Softmax", "LogSoftmax")
def _softmax(op: Operation) -> Tensor:
    tensor, old = op.tensor(0), op.version < 13
    axis = int(op.get("axis", 1 if old else -1))
    axis = _last_axes(op, tensor, axis) if old else op.axis(axis, tensor)
    # Older operator sets mean all axes from there on, as one.
    end = len(tensor.axes) if old else axis + 1
    rows, size, rest = (math.prod(sizes) for sizes in (tensor.axes[:axis], tensor.axes[axis:end], tensor.axes[end:]))
    logarithm = op.kind == "LogSoftmax"
    if rows == 1 and not logarithm:
        whole = tensor.node.shape.dimensions
        sizes = whole if whole[0] == size and (len(whole) > 1) == (rest > 1) else (size, rest) if rest > 1 else (size,)
        return replace(tensor, node=op.layer(layers.Activation("softmax"), op.shaped(tensor, sizes)))
    cell, group = "n, a, i, b", "n, a, b"
    result = f"X[{cell}] - log(Z[{group}])" if logarithm else f"E[{cell}] / Z[{group}]"
    # The greatest is no part of the result, and needs no derivative.
    text = f"""function (I[N, A, K, B]) -> (O) {{
      M[{group}] = >(I[{cell}]);
      X[{cell}] = +(I[{cell}] - detach(M[{group}]));
      E = exp(X);
      Z[{group}] = +(E[{cell}]);
      O[{cell}] = +({result});
    }}"""
    return replace(tensor, node=contraction(op, text, op.shaped(tensor, (rows, size, rest))))


@operator("LpNormalization")
def _lp_normalization(op: Operation) -> Tensor:
    tensor = op.tensor(0)
    axis, power = op.axis(int(op.get("axis", -1)), tensor), int(op.get("p", 2))
    sums = reduced(op, tensor, [axis], "{0} * {0}" if power == 2 else "abs({0})")
    norm = "sqrt({1})" if power == 2 else "{1}"
    return elementwise(op, f"({{1}} == 0 ? 0 : {{0}} / {norm})", tensor, sums)
