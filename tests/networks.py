"""Whole networks in float64, layer by layer, with NumPy's references: arrays are (N, C, H, W), 1-D data has H = 1 and
vectors H = W = 1. (tests/torch_graphs.py has any network in PyTorch.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blobnet.examination.reference import convolution, dense, dropout, normalization, pooling
from blobnet.examination.reference.activation import named
from blobnet.network.graph import Graph, Vertex
from tests.reference import joins

Pair = tuple[int, int]
Sides = tuple[Pair, Pair]


def run(graph: Graph, weights: Mapping[str, Any], x: Any, *, training: bool, seed: int = 0, step: int = 0) -> Any:
    """The output (N, units, height, width) of a network; in training with the statistics and masks of training."""
    values: list[Any] = []
    for vertex in graph.vertices:
        inputs = [values[source] for source in vertex.inputs] or [np.asarray(x, np.float64)]
        parameters = {spec.name: weights[f"{vertex.name}/{spec.name}"] for spec in graph.parameters(vertex)}
        value = _layer(graph, vertex, inputs, parameters, training, (seed, step))
        values.append(_shaped(value, (len(x), vertex.shape.units, vertex.shape.height, vertex.shape.width)))
    return values[-1]


def _shaped(values: Any, shape: Sequence[int]) -> Any:
    return np.asarray(values, np.float64).reshape(shape)


def _layer(
    graph: Graph,
    vertex: Vertex,
    inputs: list[Any],
    parameters: Mapping[str, Any],
    training: bool,
    random: tuple[int, int],
) -> Any:
    layer: Any = vertex.layer
    x, kind = inputs[0], layer.kind
    if kind == "Input":
        shape = (len(x), vertex.shape.units, vertex.shape.height, vertex.shape.width)
        mean, deviation = (_shaped(parameters[name], (1, -1, 1, 1)) for name in ("mean", "deviation"))
        return (_shaped(x, shape) - mean) / deviation
    if kind == "Activation":
        return named(layer.nonlinearity.text)[0](x)
    if kind == "Add":
        return joins.add(inputs)
    if kind == "Concat":
        return joins.concat(inputs)
    if kind == "Flatten":
        return x
    if kind == "Multiply":
        return math.prod(inputs)
    if kind == "PReLU":
        slope = _shaped(parameters["slope"], (1, -1, 1, 1))
        return x * (x > 0) + slope * x * (x <= 0)
    if kind == "Slice":
        return x[:, slice(*layer.ranges[0])]
    if kind == "Dropout":
        mask = dropout.dropout_mask(*random, vertex.index, len(x), vertex.shape.elements, layer.rate)
        return x * mask.reshape(x.shape) if training else x
    if kind == "BatchNorm":
        numbers = [parameters[name] for name in ("scale", "shift", "running_mean", "running_variance")]
        if not training:
            return normalization.batch_norm_inference(x, *numbers, epsilon=layer.epsilon)
        own = normalization.Numbers(layer.momentum, layer.epsilon)
        return normalization.batch_norm_training(x, *numbers, own)[0]
    if kind == "Dense":
        return dense.dense(x, parameters["weight"], parameters.get("bias"))
    if kind == "GlobalAveragePool":
        return pooling.global_average_pool(x)
    window = layer.kernel_size if kind.startswith("Conv") else layer.pool_size
    kernel = _pair(window, layer.rank)
    stride = _pair(getattr(layer, "stride", None) or window, layer.rank)
    dilation = _pair(getattr(layer, "dilation", 1), layer.rank)
    padding = _sides(layer.padding, layer.rank, kernel, stride, dilation, x.shape[2:])
    if kind.startswith("Conv"):
        weight, bias = parameters["weight"], parameters.get("bias")
        weight = _shaped(weight, (*weight.shape[:2], *kernel))
        if layer.bias == "position":
            bias = _shaped(bias, (vertex.shape.units, vertex.shape.height, vertex.shape.width))
        return convolution.conv2d(x, weight, bias, convolution.Windows(stride, padding, dilation, layer.groups))
    if kind.startswith("MaxPool"):
        return pooling.max_pool2d(x, kernel, stride, padding)
    assert kind.startswith("AveragePool"), kind
    return pooling.avg_pool2d(x, kernel, stride, padding, count_include_pad=layer.count_include_pad)


def _pair(value: Any, rank: int) -> Pair:
    if isinstance(value, int):
        return (1, value) if rank == 1 else (value, value)
    return (value[0], value[1])


def _sides(padding: Any, rank: int, kernel: Pair, stride: Pair, dilation: Pair, size: Sequence[int]) -> Sides:
    if padding == "same":
        spans = [dilation[axis] * (kernel[axis] - 1) + 1 for axis in range(2)]
        outputs = [-(-size[axis] // stride[axis]) for axis in range(2)]
        total = [max(0, (outputs[axis] - 1) * stride[axis] + spans[axis] - size[axis]) for axis in range(2)]
        return (total[0] // 2, total[0] - total[0] // 2), (total[1] // 2, total[1] - total[1] // 2)
    if padding == "valid":
        padding = 0
    if rank == 1:
        return (0, 0), (padding, padding) if isinstance(padding, int) else padding
    if isinstance(padding, int):
        padding = (padding, padding)
    return tuple((side, side) if isinstance(side, int) else side for side in padding)  # type: ignore[return-value]
