"""The float64 reference of a layer, from its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.contraction import reference as of_contractions
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.examination.reference import activation, convolution, dense, normalization, pooling, recurrent
from blobnet.examination.reference.windows import Pair, Sides
from blobnet.layers import (
    GRU,
    LSTM,
    Activation,
    AveragePool1D,
    AveragePool2D,
    BatchNorm,
    Conv1D,
    Conv2D,
    Dense,
    GlobalAveragePool,
    MaxPool1D,
    MaxPool2D,
)
from blobnet.layers.base import Layer
from blobnet.layers.lowered import Bound, ContractionLayer
from blobnet.memory.blob import Shape

Float64Array = npt.NDArray[np.float64]
Inputs = Sequence[Float64Array]
Parameters = Mapping[str, Float64Array]
Backward = tuple[Sequence[Float64Array], Mapping[str, Float64Array]]
Pool = MaxPool1D | MaxPool2D | AveragePool1D | AveragePool2D


@dataclass(frozen=True)
class Reference:
    """The reference of a layer, on (N, C, H, W) arrays and parameters by name.

    Attributes:
        forward: (inputs, parameters) -> output.
        backward: (inputs, parameters, output's delta) -> a delta for each input, a gradient for each parameter.
    """

    forward: Callable[[Inputs, Parameters], Float64Array]
    backward: Callable[[Inputs, Parameters, Float64Array], Backward]


def reference_of(layer: Layer, shapes: Sequence[Shape]) -> Reference:
    """The reference of a layer on inputs of these shapes; LookupError if there is none."""
    shape = shapes[0]
    if isinstance(layer, Conv1D | Conv2D):
        return of_convolution(layer, shape)
    if isinstance(layer, Dense):
        return of_dense()
    if isinstance(layer, MaxPool1D | MaxPool2D | AveragePool1D | AveragePool2D):
        return of_pool(layer, _sides(layer.padding, layer.rank))
    if isinstance(layer, GlobalAveragePool):
        return _of_function(pooling.global_average_pool, pooling.global_average_pool_backward)
    if isinstance(layer, BatchNorm):
        return of_batch_norm(layer)
    if isinstance(layer, Activation):
        return _of_function(*activation.named(layer.function))
    if isinstance(layer, LSTM | GRU):
        return of_recurrent(layer)
    if isinstance(layer, ContractionLayer):
        return of_statements(layer, shapes)
    raise LookupError(f"there is no float64 reference of {layer}")


def _of_function(
    forward: Callable[[Float64Array], Float64Array], backward: Callable[[Float64Array, Float64Array], Float64Array]
) -> Reference:
    """The reference of a layer of one input, without parameters."""
    return Reference(lambda inputs, _: forward(inputs[0]), lambda inputs, _, delta: ([backward(inputs[0], delta)], {}))


# -- convolutions and dense layers -------------------------------------------------------------------------------------


def as_pair(value: Any, rank: int) -> Pair:
    """(vertical, horizontal) of an argument."""
    if rank == 1:
        return 1, value
    return value if isinstance(value, tuple) else (value, value)


def sides(layer: Conv1D | Conv2D, shape: Shape) -> Sides:
    """((top, bottom), (left, right)) of a convolution's padding."""
    if layer.padding != "same":
        return _sides(layer.padding, layer.rank)
    kernel, stride, dilation = arguments(layer)
    found = []
    for axis, size in enumerate((shape.height, shape.width)):
        outputs = (size + stride[axis] - 1) // stride[axis]
        span = dilation[axis] * (kernel[axis] - 1) + 1
        total = max(0, (outputs - 1) * stride[axis] + span - size)
        found.append((total // 2, total - total // 2))
    return found[0], found[1]


def _sides(padding: Any, rank: int) -> Sides:
    """Return the zeros on both sides of each axis, for padding other than ``same``."""
    if padding == "valid":
        return (0, 0), (0, 0)
    if rank == 1:
        return (0, 0), padding if isinstance(padding, tuple) else (padding, padding)
    if isinstance(padding, int):
        return (padding, padding), (padding, padding)
    if isinstance(padding[0], int):
        return (padding[0], padding[0]), (padding[1], padding[1])
    top_bottom, left_right = padding
    return top_bottom, left_right


def arguments(layer: Conv1D | Conv2D) -> tuple[Pair, Pair, Pair]:
    """Kernel size, stride and dilation."""
    kernel = as_pair(layer.kernel_size, layer.rank)
    return kernel, as_pair(layer.stride, layer.rank), as_pair(layer.dilation, layer.rank)


def of_convolution(layer: Conv1D | Conv2D, shape: Shape) -> Reference:
    """The reference of a convolution."""
    _, stride, dilation = arguments(layer)
    windows = convolution.Windows(stride, sides(layer, shape), dilation, layer.groups)

    def unpacked(parameters: Parameters) -> tuple[Float64Array, Float64Array | None]:
        weight, bias = parameters["weight"], parameters.get("bias")
        if layer.rank == 1:
            weight = weight[:, :, None, :]
            bias = bias[:, None, :] if bias is not None and bias.ndim == 2 else bias
        return weight, bias

    def forward(inputs: Inputs, parameters: Parameters) -> Float64Array:
        return convolution.conv2d(inputs[0], *unpacked(parameters), windows)

    def backward(inputs: Inputs, parameters: Parameters, delta: Float64Array) -> Backward:
        return _named(*convolution.conv2d_backward(inputs[0], *unpacked(parameters), delta, windows))

    return Reference(forward, backward)


def of_dense() -> Reference:
    """The reference of a dense layer."""

    def forward(inputs: Inputs, parameters: Parameters) -> Float64Array:
        return dense.dense(inputs[0], parameters["weight"], parameters.get("bias"))

    def backward(inputs: Inputs, parameters: Parameters, delta: Float64Array) -> Backward:
        delta = delta.reshape(len(delta), -1)
        return _named(*dense.dense_backward(inputs[0], parameters["weight"], parameters.get("bias"), delta))

    return Reference(forward, backward)


def _named(delta: Float64Array, weight: Float64Array, bias: Float64Array | None) -> Backward:
    return [delta], {"weight": weight} if bias is None else {"weight": weight, "bias": bias}


# -- others ------------------------------------------------------------------------------------------------------------


def window(layer: Pool) -> tuple[Pair, Pair]:
    """Size and stride of a pool as (vertical, horizontal)."""
    size = as_pair(layer.pool_size, layer.rank)
    return size, size if layer.stride is None else as_pair(layer.stride, layer.rank)


def of_pool(layer: Pool, padding: Sides) -> Reference:
    """The reference of a pool, which pads these sides."""
    size, stride = window(layer)
    settings: dict[str, Any] = {"kernel": size, "stride": stride, "padding": padding}
    pair = pooling.max_pool2d, pooling.max_pool2d_backward
    if not isinstance(layer, MaxPool1D | MaxPool2D):
        settings["count_include_pad"] = layer.count_include_pad
        pair = pooling.avg_pool2d, pooling.avg_pool2d_backward
    return _of_function(*(partial(function, **settings) for function in pair))


def of_batch_norm(layer: BatchNorm) -> Reference:
    """The reference of a batch norm in training."""

    def forward(inputs: Inputs, values: Parameters) -> Float64Array:
        numbers = normalization.Numbers(layer.momentum, layer.epsilon)
        return normalization.batch_norm_training(inputs[0], **values, numbers=numbers)[0]

    def backward(inputs: Inputs, values: Parameters, delta: Float64Array) -> Backward:
        found = normalization.batch_norm_backward(inputs[0], values["scale"], delta, epsilon=layer.epsilon)
        return [found[0]], {"scale": found[1], "shift": found[2]}

    return Reference(forward, backward)


def of_recurrent(layer: LSTM | GRU) -> Reference:
    """The reference of a recurrent layer: each direction sees its positions from its first on."""
    units = layer.units

    def sides(parameters: Parameters) -> list[tuple[str, int, dict[str, Float64Array]]]:
        names = {"weight", "recurrent", "bias", "recurrent_bias"}
        return [
            (
                prefix,
                -1 if layer.reverse or prefix else 1,
                {name: parameters[prefix + name] for name in names if prefix + name in parameters},
            )
            for prefix in layer.prefixes
        ]

    def samples(inputs: Inputs) -> Iterator[tuple[int, Float64Array]]:
        """The number of each sample, and what there is of it, (1, C, length)."""
        x = inputs[0].reshape(*inputs[0].shape[:2], -1)
        lengths = inputs[1].reshape(-1).astype(int) if len(inputs) > 1 else [x.shape[2]] * len(x)
        for number, length in enumerate(lengths):
            yield number, x[number : number + 1, :, :length]

    def forward(inputs: Inputs, parameters: Parameters) -> Float64Array:
        count, found = len(inputs[0]), []
        width = inputs[0].reshape(*inputs[0].shape[:2], -1).shape[2]
        for _, step, own in sides(parameters):
            part = np.zeros((count, units, width) if layer.return_sequences else (count, units))
            for number, x in samples(inputs):
                values, _ = recurrent.states(layer.kind, x[:, :, ::step], own)
                if layer.return_sequences:
                    part[number, :, : x.shape[2]] = values[0, :, ::step]
                else:
                    part[number] = values[0, :, -1]
            found.append(part)
        return np.concatenate(found, axis=1)

    def backward(inputs: Inputs, parameters: Parameters, delta: Float64Array) -> Backward:
        deltas = [np.zeros(given.shape) for given in inputs]
        dx = deltas[0].reshape(*inputs[0].shape[:2], -1)
        delta, gradients = delta.reshape(*delta.shape[:2], -1), dict[str, Float64Array]()
        for number, (prefix, step, own) in enumerate(sides(parameters)):
            for sample, x in samples(inputs):
                part = delta[sample : sample + 1, number * units : (number + 1) * units]
                whole = np.zeros((1, units, x.shape[2]))
                whole[:, :, slice(None) if layer.return_sequences else slice(-1, None)] = part[:, :, : x.shape[2]]
                whole = whole[:, :, ::step] if layer.return_sequences else whole
                found, of_parameters = recurrent.states_backward(layer.kind, x[:, :, ::step], own, whole)
                dx[sample, :, : x.shape[2]] += found[0, :, ::step]
                for name, values in of_parameters.items():
                    gradients[prefix + name] = gradients.get(prefix + name, 0.0) + values
        return deltas, gradients

    return Reference(forward, backward)


def of_statements(layer: ContractionLayer, shapes: Sequence[Shape]) -> Reference:
    """Return the reference of a layer that consists of statements of the contraction language."""

    def given(bound: Bound, inputs: Inputs, parameters: Parameters) -> dict[str, Float64Array]:
        arrays = {**dict(zip(bound.inputs, inputs, strict=True)), **parameters}
        return {tensor.name: arrays[tensor.name].reshape(tensor.shape) for tensor in bound.program.inputs}

    def forward(inputs: Inputs, parameters: Parameters) -> Float64Array:
        bound = layer.bound(shapes, len(inputs[0]))
        return of_contractions.run(bound.program, given(bound, inputs, parameters))[bound.output.name]

    def backward(inputs: Inputs, parameters: Parameters, delta: Float64Array) -> Backward:
        bound = layer.bound(shapes, len(inputs[0]))
        names, derived = delta_names(bound.program), differentiate(bound.program)
        arrays = {**given(bound, inputs, parameters), names[bound.output.name]: delta.reshape(bound.output.shape)}
        found = of_contractions.run(derived, {tensor.name: arrays[tensor.name] for tensor in derived.inputs})
        own = {tensor.name: found[names[tensor.name]] for tensor in bound.parameters}
        return [found[names[name]] for name in bound.inputs], own

    return Reference(forward, backward)
