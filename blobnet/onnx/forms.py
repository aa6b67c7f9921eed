"""The form of each layer in ONNX: a function for each kind, which adds nodes and returns the name of their result.

Operators are those of opset 20. Arrays are (N, units, ...) there as here, and weights have the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from blobnet.memory.windows import axes_of_window, axis_numbers
from blobnet.onnx.operators.elementwise import ACTIVATIONS
from blobnet.onnx.operators.recurrent import to_gates
from blobnet.onnx.place import Place

Form: TypeAlias = Callable[[Place], str]
#: The form of each kind of layer; other layers may still be statements of the contraction language (statements.py).
FORMS: dict[str, Form] = {}


def _form(*kinds: str) -> Callable[[Form], Form]:
    def register(form: Form) -> Form:
        FORMS.update(dict.fromkeys(kinds, form))
        return form

    return register


# -- where values come from --------------------------------------------------------------------------------------------


@_form("Input")
def _input(place: Place) -> str:
    """Samples, less the mean, over the deviation, which conventions.take_normalization reads back."""
    mean, deviation = place.weights["mean"], place.weights["deviation"]
    value, axes = place.samples, place.shape.rank
    if mean.any():
        value = place.node("Sub", value, place.parameter("mean", axes=axes))
    return place.node("Div", value, place.parameter("deviation", axes=axes)) if (deviation != 1).any() else value


@_form("Constant")
def _constant(place: Place) -> str:
    return _for_every_sample(place, place.parameter("value"), *place.shape.dimensions)


def _for_every_sample(place: Place, value: str, *sizes: int) -> str:
    """A value of these sizes, once for each sample of the batch."""
    batch = place.node("Shape", place.samples, start=0, end=1)
    return place.node("Expand", value, place.node("Concat", batch, place.constant(sizes), axis=0))


# -- products ----------------------------------------------------------------------------------------------------------


@_form("Dense")
def _dense(place: Place) -> str:
    value = place.node("Flatten", place.input, axis=1) if place.rank else place.input
    bias = [place.parameter("bias")] if place.layer.bias else []
    return place.node("Gemm", value, place.parameter("weight"), *bias, transB=1)


def _window(place: Place, size: str) -> dict[str, list[int]]:
    """The attributes of a layer's window; ``size`` is the name of its size."""
    layer, shape = place.layer, place.shapes[0]
    values = {"size": getattr(layer, size), "stride": layer.stride, "dilation": getattr(layer, "dilation", 1)}
    values["stride"] = values["size"] if values["stride"] is None else values["stride"]
    sizes, strides, dilations = (axis_numbers(layer.subject, name, value, shape.rank) for name, value in values.items())
    axes = axes_of_window(sizes, strides, dilations, layer.padding, shape.sizes)
    if getattr(layer, "ceil_mode", False) and layer.padding != "same":
        axes = tuple(axis.rounded_up(length) for axis, length in zip(axes, shape.sizes, strict=True))
    pads = [axis.padding[side] for side in (0, 1) for axis in axes]
    return {"kernel_shape": [*sizes], "strides": [*strides], "dilations": [*dilations], "pads": pads}


@_form("Conv1D", "Conv2D", "Conv3D")
def _convolution(place: Place) -> str:
    layer = place.layer
    bias = [place.parameter("bias")] if layer.bias is True else []
    attributes: dict[str, Any] = {**_window(place, "kernel_size"), "group": layer.groups}
    value = place.node("Conv", place.input, place.parameter("weight"), *bias, **attributes)
    return place.node("Add", value, place.parameter("bias")) if layer.bias == "position" else value


@_form("ConvTranspose1D", "ConvTranspose2D", "ConvTranspose3D")
def _transposed(place: Place) -> str:
    layer, rank = place.layer, place.rank
    names = {"kernel_shape": "kernel_size", "strides": "stride", "pads": "padding", "dilations": "dilation"}
    names["output_padding"] = "output_padding"
    attributes: dict[str, Any] = {}
    for attribute, name in names.items():
        value = getattr(layer, name)
        attributes[attribute] = [*value] if isinstance(value, tuple) else [value] * rank
    attributes["pads"] *= 2
    bias = [place.parameter("bias")] if layer.bias else []
    weight = place.parameter("weight")
    return place.node("ConvTranspose", place.input, weight, *bias, **attributes, group=layer.groups)


@_form("MatMul")
def _matmul(place: Place) -> str:
    layer, most = place.layer, max(shape.rank for shape in place.shapes)
    factors = []
    transposed = layer.transpose_first, layer.transpose_second
    for value, shape, is_transposed in zip(place.inputs, place.shapes, transposed, strict=True):
        axes = 1 + most
        if shape.rank < most:
            value = place.node("Unsqueeze", value, place.constant([*range(1, 1 + most - shape.rank)]))
        order = [*range(axes - 1), axes, axes - 1]
        factors.append(place.node("Transpose", value, perm=order) if is_transposed else value)
    return place.node("MatMul", *factors)


@_form("MultiHeadAttention")
def _attention(place: Place) -> str:
    layer, units = place.layer, place.shapes[0].units
    each = units // layer.heads
    sources = {"query": 0, "key": min(1, len(place.inputs) - 1), "value": len(place.inputs) - 1}

    def product(name: str, value: str) -> str:
        result = place.node("MatMul", place.parameter(name), value)
        return place.node("Add", result, place.parameter(f"{name}_bias", axes=1)) if layer.bias else result

    heads = {}
    for name, source in sources.items():
        columns = place.shapes[source].width
        heads[name] = place.reshaped(product(name, place.inputs[source]), 0, layer.heads, each, columns)
    query = place.node("Transpose", heads["query"], perm=[0, 1, 3, 2])
    fits = place.node("Mul", place.node("MatMul", query, heads["key"]), place.constant(1 / math.sqrt(each)))
    if layer.causal:
        size = place.shapes[0].width, place.shapes[sources["key"]].width
        is_later = np.arange(size[1]) > np.arange(size[0])[:, None]
        fits = place.node("Add", fits, place.constant(np.where(is_later, np.finfo(np.float32).min, np.float32(0))))
    weights = place.node("Transpose", place.node("Softmax", fits, axis=3), perm=[0, 1, 3, 2])
    seen = place.reshaped(place.node("MatMul", heads["value"], weights), 0, units, place.shapes[0].width)
    return product("output", seen)


# -- series ------------------------------------------------------------------------------------------------------------


@_form("Embedding")
def _embedding(place: Place) -> str:
    """Whole numbers, of which ONNX takes none that there are not."""
    value = place.node("Flatten", place.input, axis=1) if place.rank else place.input
    number = place.node("Cast", value, to=7)
    place.main = place.node("Gather", place.parameter("weight"), number)
    return place.node("Transpose", place.main, perm=[0, 2, 1])


@_form("LSTM", "GRU")
def _recurrent(place: Place) -> str:
    """ONNX has (positions, samples, values), (positions, directions, samples, units), and last states besides."""
    layer, width = place.layer, place.shapes[0].width
    directions, is_lstm = len(layer.prefixes), layer.kind == "LSTM"

    def both(name: str) -> str:
        """A parameter of each direction, in ONNX's order of gates."""
        found = [
            place.turned(prefix + name, to_gates(layer.kind, place.weights[prefix + name])[None])
            for prefix in layer.prefixes
        ]
        return found[0] if directions == 1 else place.node("Concat", *found, axis=0)

    more = []
    if layer.bias:
        zeros = (
            place.constant(np.zeros((directions, 4 * layer.units), np.float32)) if is_lstm else both("recurrent_bias")
        )
        more = [place.node("Concat", both("bias"), zeros, axis=1)]
    if len(place.inputs) > 1:
        more = [*(more or [""]), place.node("Cast", place.node("Squeeze", place.inputs[1], place.constant([1])), to=6)]
    attributes = {} if is_lstm else {"linear_before_reset": 1}
    attributes["output_place"] = 0 if layer.return_sequences else 1
    way = "bidirectional" if directions > 1 else "reverse" if layer.reverse else "forward"
    rows = place.node("Transpose", place.input, perm=[2, 0, 1])
    arrays = both("weight"), both("recurrent"), *more
    place.main = value = place.node(layer.kind, rows, *arrays, hidden_size=layer.units, direction=way, **attributes)
    if layer.return_sequences:
        value = place.node("Transpose", value, perm=[2, 1, 3, 0])
        return place.reshaped(value, 0, directions * layer.units, width)
    return place.reshaped(place.node("Transpose", value, perm=[1, 0, 2]), 0, directions * layer.units)


# -- pooling -----------------------------------------------------------------------------------------------------------


@_form("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(place: Place) -> str:
    value = place.node(place.layer.kind, place.input) if place.rank else place.input
    return place.node("Flatten", value, axis=1)


@_form("AdaptiveAveragePool", "AdaptiveMaxPool")
def _adaptive_pool(place: Place) -> str:
    is_average = place.layer.kind == "AdaptiveAveragePool"
    sizes, wanted = place.shapes[0].sizes, place.shape.sizes
    if all(size % count == 0 for size, count in zip(sizes, wanted, strict=True)):
        window = [size // count for size, count in zip(sizes, wanted, strict=True)]
        pool = "AveragePool" if is_average else "MaxPool"
        return place.node(pool, place.input, kernel_shape=window, strides=window)
    # Windows that are not alike: one after the other, along one axis after the other.
    value, reduce = place.input, "ReduceMean" if is_average else "ReduceMax"
    for number, (size, count) in enumerate(zip(sizes, wanted, strict=True)):
        axis = place.constant([2 + number])
        parts = []
        for part in range(count):
            ends = [place.constant([end]) for end in (part * size // count, -(-(part + 1) * size // count))]
            parts.append(place.node(reduce, place.node("Slice", value, *ends, axis), axis, keepdims=1))
        value = place.node("Concat", *parts, axis=2 + number)
    return value


# -- norms -------------------------------------------------------------------------------------------------------------


@_form("BatchNorm", "Standardize")
def _batch_norm(place: Place) -> str:
    layer = place.layer
    names = [place.parameter(name) for name in ("scale", "shift", "running_mean", "running_variance")]
    numbers = {"epsilon": float(getattr(layer, "epsilon", 0.0)), "momentum": 1 - float(getattr(layer, "momentum", 0.0))}
    return place.node("BatchNormalization", place.input, *names, **numbers)


@_form("LayerNorm")
def _layer_norm(place: Place) -> str:
    """Over the units, which ONNX wants after all other axes."""
    axes, value = place.rank, place.input
    back = [0, axes + 1, *range(1, axes + 1)]
    if axes:
        value = place.node("Transpose", value, perm=[0, *range(2, axes + 2), 1])
    if place.layer.affine:
        scale = [place.parameter("scale"), place.parameter("shift")]
    else:
        scale = [place.constant(np.ones(place.shape.units, np.float32))]
    value = place.node("LayerNormalization", value, *scale, axis=-1, epsilon=float(place.layer.epsilon))
    return place.node("Transpose", value, perm=back) if axes else value


@_form("InstanceNorm", "GroupNorm")
def _group_norm(place: Place) -> str:
    """Groups are units for an instance norm."""
    groups = getattr(place.layer, "groups", place.shape.units)
    ones, zeros = (place.constant(np.full(groups, value, np.float32)) for value in (1, 0))
    value = place.reshaped(place.input, 0, groups, -1)
    value = place.node("InstanceNormalization", value, ones, zeros, epsilon=float(place.layer.epsilon))
    return place.affine(place.reshaped(value, 0, *place.shape.dimensions), place.rank)


@_form("LocalResponseNorm")
def _local_response_norm(place: Place) -> str:
    layer = place.layer
    if layer.size % 2 and place.rank == 2:
        numbers = {"alpha": float(layer.alpha), "beta": float(layer.beta), "bias": float(layer.bias)}
        return place.node("LRN", place.input, size=layer.size, **numbers)
    # ONNX takes the odd unit from the other side: the mean of squares as an average pool over (units, positions).
    squares = place.reshaped(place.node("Mul", place.input, place.input), 0, 1, place.shape.units, -1)
    pads = [layer.size // 2, 0, layer.size - 1 - layer.size // 2, 0]
    window: dict[str, Any] = {"kernel_shape": [layer.size, 1], "pads": pads, "count_include_pad": 1}
    means = place.reshaped(place.node("AveragePool", squares, **window), 0, *place.shape.dimensions)
    sums = place.node("Mul", means, place.constant(float(layer.alpha)))
    powers = place.node("Add", sums, place.constant(float(layer.bias)))
    return place.node("Div", place.input, place.node("Pow", powers, place.constant(float(layer.beta))))


# -- single values -----------------------------------------------------------------------------------------------------

#: The operators that are a function, and their attributes.
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{function: (operator, {}) for operator, (function, _) in ACTIVATIONS.items()},
    "linear": ("Identity", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.01}),
    "hard_sigmoid": ("HardSigmoid", ACTIVATIONS["HardSigmoid"][1]),
    "gelu": ("Gelu", {}),
    "softmax": ("Softmax", {"axis": 1}),
}


@_form("Activation")
def _activation(place: Place) -> str:
    layer = place.layer
    limit = 6 if layer.function == "relu6" else layer.limit
    if limit is not None:
        return place.node("Clip", place.input, place.constant(0.0), place.constant(float(limit)))
    if layer.function == "silu":
        return place.node("Mul", place.input, place.node("Sigmoid", place.input))
    operator, attributes = _ACTIVATIONS[layer.function]
    if layer.slope is not None:
        attributes = {"alpha": float(layer.slope)}
    return place.node(operator, place.input, **attributes)


@_form("Add", "Multiply")
def _join(place: Place) -> str:
    """Inputs two at a time; (units,) alone gets axes of size 1."""
    operator, most = {"Add": "Add", "Multiply": "Mul"}[place.layer.kind], place.shape.rank
    values = [
        place.node("Unsqueeze", value, place.constant([*range(2, 2 + most)])) if shape.rank < most else value
        for value, shape in zip(place.inputs, place.shapes, strict=True)
    ]
    result = values[0]
    for value in values[1:]:
        result = place.node(operator, result, value)
    return result


@_form("SqueezeExcite")
def _squeeze_excite(place: Place) -> str:
    axes = place.constant([*range(2, 2 + place.rank)])
    gates = place.node("ReduceMean", place.input, axes, keepdims=0)
    for name, function in (("squeeze", "Relu"), ("excite", "Sigmoid")):
        gates = place.node("Gemm", gates, place.parameter(name), place.parameter(f"{name}_bias"), transB=1)
        gates = place.node(function, gates)
    return place.node("Mul", place.input, place.node("Unsqueeze", gates, axes))


# -- values that move --------------------------------------------------------------------------------------------------


@_form("Interleave")
def _interleave(place: Place) -> str:
    axis = place.constant([2])
    parts = [place.node("Unsqueeze", value, axis) for value in place.inputs]
    return place.reshaped(place.node("Concat", *parts, axis=2), 0, *place.shape.dimensions)


@_form("Tokens")
def _tokens(place: Place) -> str:
    units = place.shape.units
    first = _for_every_sample(place, place.parameter("token", axes=1), units, 1)
    columns = place.node("Concat", first, place.reshaped(place.input, 0, units, -1), axis=2)
    return place.node("Add", columns, place.node("Transpose", place.parameter("position"), perm=[1, 0]))


@_form("Pad")
def _pad(place: Place) -> str:
    padding = place.layer.padding if isinstance(place.layer.padding, tuple) else (place.layer.padding,) * place.rank
    sides = [side if isinstance(side, tuple) else (side, side) for side in padding]
    before, after = zip(*sides, strict=True)
    return place.node("Pad", place.input, place.constant([0, 0, *before, 0, 0, *after]))


@_form("Slice")
def _slice(place: Place) -> str:
    sizes = place.shapes[0].dimensions
    ranges = [range(size)[slice(*(part or (None,)))] for part, size in zip(place.layer.ranges, sizes, strict=False)]
    numbers = [[part.start for part in ranges], [part.stop for part in ranges], [*range(1, 1 + len(ranges))]]
    numbers.append([part.step for part in ranges])
    return place.node("Slice", place.input, *map(place.constant, numbers))


@_form("Upsample")
def _upsample(place: Place) -> str:
    layer = place.layer
    scale = layer.scale if isinstance(layer.scale, tuple) else (layer.scale,) * place.rank
    scales = place.constant(np.array([1, 1, *scale], np.float32))
    if layer.mode == "nearest":
        points = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        points = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return place.node("Resize", place.input, "", scales, **points)


@_form("SpaceToDepth")
def _space_to_depth(place: Place) -> str:
    """ONNX's operator of that name puts the units in another order."""
    shape, block = place.shapes[0], place.layer.block
    parts = place.reshaped(place.input, 0, shape.units, shape.height // block, block, shape.width // block, block)
    return place.reshaped(place.node("Transpose", parts, perm=[0, 1, 3, 5, 2, 4]), 0, *place.shape.dimensions)


# -- layers that are one node ------------------------------------------------------------------------------------------


def _average_pool(place: Place) -> str:
    counted = int(place.layer.count_include_pad)
    return place.node("AveragePool", place.input, **_window(place, "pool_size"), count_include_pad=counted)


def _max_pool(place: Place) -> str:
    return place.node("MaxPool", place.input, **_window(place, "pool_size"))


FORMS |= {
    **dict.fromkeys(("AveragePool1D", "AveragePool2D", "AveragePool3D"), _average_pool),
    **dict.fromkeys(("MaxPool1D", "MaxPool2D", "MaxPool3D"), _max_pool),
    "Concat": lambda place: place.node("Concat", *place.inputs, axis=1),
    "DepthToSpace": lambda place: place.node("DepthToSpace", place.input, blocksize=place.layer.block, mode="CRD"),
    "Dropout": lambda place: place.node("Dropout", place.input, place.constant(float(place.layer.rate))),
    "Flatten": lambda place: place.node("Flatten", place.input, axis=1),
    "Permute": lambda place: place.node("Transpose", place.input, perm=[0, *(1 + axis for axis in place.layer.order)]),
    "PReLU": lambda place: place.node("PRelu", place.input, place.parameter("slope", axes=place.rank)),
    "Reshape": lambda place: place.reshaped(place.input, 0, *place.shape.dimensions),
    # As in prediction: ONNX has no operator that leaves samples out.
    "StochasticDepth": lambda place: place.node("Identity", place.input),
}
