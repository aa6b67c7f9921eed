"""Whole networks in float64, layer by layer: with NumPy's references, and with PyTorch where it is installed.

The two share the walk over the graph and the arithmetic of padding, and nothing else. Arrays are (N, C, H, W), 1-D data
has H = 1 and vectors H = W = 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from blobnet.examination.reference import convolution, dense, dropout, losses, normalization, pooling
from blobnet.examination.reference.activation import named
from blobnet.network.graph import Graph, Vertex
from tests.reference import joins

Pair = tuple[int, int]
Sides = tuple[Pair, Pair]


class Operations(Protocol):
    """What a network is made of; arrays are NumPy's or PyTorch's."""

    def array(self, values: Any) -> Any: ...
    def shaped(self, x: Any, shape: Sequence[int]) -> Any: ...
    def activation(self, x: Any, name: str) -> Any: ...
    def add(self, inputs: list[Any]) -> Any: ...
    def concat(self, inputs: list[Any]) -> Any: ...
    def dense(self, x: Any, weight: Any, bias: Any) -> Any: ...
    def convolution(
        self, x: Any, weight: Any, bias: Any, *, stride: Pair, padding: Sides, dilation: Pair, groups: int
    ) -> Any: ...
    def max_pool(self, x: Any, window: Pair, stride: Pair, padding: Sides) -> Any: ...
    def average_pool(self, x: Any, window: Pair, stride: Pair, padding: Sides, count_include_pad: bool) -> Any: ...
    def global_average_pool(self, x: Any) -> Any: ...
    def batch_norm(
        self, x: Any, parameters: Mapping[str, Any], epsilon: float, momentum: float, training: bool
    ) -> Any: ...


def run(
    graph: Graph,
    weights: Mapping[str, Any],
    x: Any,
    operations: Operations,
    *,
    training: bool,
    frozen: Collection[str] = (),
    seed: int = 0,
    step: int = 0,
) -> Any:
    """The output (N, units, height, width) of a network; in training with the statistics and masks of training.

    A layer whose trainable parameters are all ``frozen`` runs as in inference.
    """
    values: list[Any] = []
    for vertex in graph.vertices:
        inputs = [values[source] for source in vertex.inputs] or [x]
        parameters = {spec.name: weights[f"{vertex.name}/{spec.name}"] for spec in graph.parameters(vertex)}
        trainable = {f"{vertex.name}/{spec.name}" for spec in graph.parameters(vertex) if spec.trainable}
        trains = training and not (trainable and trainable <= set(frozen))
        value = _layer(graph, vertex, inputs, parameters, operations, trains, (seed, step))
        shape = vertex.shape
        values.append(operations.shaped(value, (len(x), shape.units, shape.height, shape.width)))
    return values[-1]


def _layer(
    graph: Graph,
    vertex: Vertex,
    inputs: list[Any],
    parameters: Mapping[str, Any],
    operations: Operations,
    training: bool,
    random: tuple[int, int],
) -> Any:
    layer: Any = vertex.layer
    x, kind = inputs[0], layer.kind
    if kind == "Input":
        shape = (len(x), vertex.shape.units, vertex.shape.height, vertex.shape.width)
        mean, deviation = (operations.shaped(parameters[name], (1, -1, 1, 1)) for name in ("mean", "deviation"))
        return (operations.shaped(x, shape) - mean) / deviation
    if kind == "Activation":
        return operations.activation(x, layer.activates or layer.function)
    if kind == "Add":
        return operations.add(inputs)
    if kind == "Concat":
        return operations.concat(inputs)
    if kind == "Flatten":
        return x
    if kind == "Multiply":
        return math.prod(inputs)
    if kind == "PReLU":
        slope = operations.shaped(parameters["slope"], (1, -1, 1, 1))
        return x * (x > 0) + slope * x * (x <= 0)
    if kind == "Slice":
        return x[:, slice(*layer.ranges[0])]
    if kind == "Dropout":
        if not training:
            return x
        mask = dropout.dropout_mask(*random, vertex.index, len(x), vertex.shape.elements, layer.rate)
        return x * operations.array(mask.reshape(x.shape))
    if kind == "BatchNorm":
        return operations.batch_norm(x, parameters, layer.epsilon, layer.momentum, training)
    if kind == "Dense":
        return operations.dense(x, parameters["weight"], parameters.get("bias"))
    if kind == "GlobalAveragePool":
        return operations.global_average_pool(x)
    window = layer.kernel_size if kind.startswith("Conv") else layer.pool_size
    kernel = _pair(window, layer.rank)
    stride = _pair(getattr(layer, "stride", None) or window, layer.rank)
    dilation = _pair(getattr(layer, "dilation", 1), layer.rank)
    padding = _sides(layer.padding, layer.rank, kernel, stride, dilation, x.shape[2:])
    if kind.startswith("Conv"):
        weight, bias = parameters["weight"], parameters.get("bias")
        weight = operations.shaped(weight, (*weight.shape[:2], *kernel))
        if layer.bias == "position":
            bias = operations.shaped(bias, (vertex.shape.units, vertex.shape.height, vertex.shape.width))
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": layer.groups}
        return operations.convolution(x, weight, bias, **options)
    if kind.startswith("MaxPool"):
        return operations.max_pool(x, kernel, stride, padding)
    assert kind.startswith("AveragePool"), kind
    return operations.average_pool(x, kernel, stride, padding, layer.count_include_pad)


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


class NumPyOperations:
    """The references. ``running`` gets the new running statistics of batch norms, by order."""

    def __init__(self) -> None:
        self.running: list[tuple[Any, Any]] = []

    def array(self, values: Any) -> Any:
        return np.asarray(values, np.float64)

    def shaped(self, x: Any, shape: Sequence[int]) -> Any:
        return np.asarray(x, np.float64).reshape(shape)

    def activation(self, x: Any, name: str) -> Any:
        return named(name)[0](x)

    def add(self, inputs: list[Any]) -> Any:
        return joins.add(inputs)

    def concat(self, inputs: list[Any]) -> Any:
        return joins.concat(inputs)

    def dense(self, x: Any, weight: Any, bias: Any) -> Any:
        return dense.dense(x, weight, bias)

    def convolution(self, x: Any, weight: Any, bias: Any, **options: Any) -> Any:
        return convolution.conv2d(x, weight, bias, **options)

    def max_pool(self, x: Any, window: Pair, stride: Pair, padding: Sides) -> Any:
        return pooling.max_pool2d(x, window, stride, padding)

    def average_pool(self, x: Any, window: Pair, stride: Pair, padding: Sides, count_include_pad: bool) -> Any:
        return pooling.avg_pool2d(x, window, stride, padding, count_include_pad=count_include_pad)

    def global_average_pool(self, x: Any) -> Any:
        return pooling.global_average_pool(x)

    def batch_norm(self, x: Any, parameters: Mapping[str, Any], epsilon: float, momentum: float, training: bool) -> Any:
        values = [parameters[name] for name in ("scale", "shift", "running_mean", "running_variance")]
        if not training:
            return normalization.batch_norm_inference(x, *values, epsilon=epsilon)
        result, *running = normalization.batch_norm_training(x, *values, momentum=momentum, epsilon=epsilon)
        self.running.append((running[0], running[1]))
        return result


def numpy_loss(kind: str, output: Any, labels: Any) -> float:
    """The loss of a batch."""
    flat = output.reshape(len(output), -1)
    if kind == "CrossEntropy":
        return losses.cross_entropy(flat, labels)[0]
    function = losses.mean_squared_error if kind == "MeanSquaredError" else losses.binary_cross_entropy
    return function(flat, np.asarray(labels, np.float64).reshape(flat.shape))[0]


class TorchOperations:
    """PyTorch's own operations."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.functional = torch.nn.functional

    def array(self, values: Any) -> Any:
        return self.torch.tensor(np.asarray(values, np.float64))

    def shaped(self, x: Any, shape: Sequence[int]) -> Any:
        return x.reshape(tuple(shape))

    def activation(self, x: Any, name: str) -> Any:
        if name == "linear":
            return x
        if name == "softmax":
            return self.functional.softmax(x, dim=1)
        return getattr(self.functional, name)(x)

    def add(self, inputs: list[Any]) -> Any:
        return sum(inputs[1:], inputs[0])

    def concat(self, inputs: list[Any]) -> Any:
        return self.torch.cat(inputs, dim=1)

    def dense(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.functional.linear(x.flatten(1), weight, bias)

    def convolution(self, x: Any, weight: Any, bias: Any, *, padding: Sides, **options: Any) -> Any:
        by_position = bias is not None and bias.ndim == 3
        result = self.functional.conv2d(self._padded(x, padding, 0.0), weight, None if by_position else bias, **options)
        return result + bias if by_position else result

    def max_pool(self, x: Any, window: Pair, stride: Pair, padding: Sides) -> Any:
        return self.functional.max_pool2d(self._padded(x, padding, -np.inf), window, stride)

    def average_pool(self, x: Any, window: Pair, stride: Pair, padding: Sides, count_include_pad: bool) -> Any:
        (top, bottom), (left, right) = padding
        assert (top, left) == (bottom, right), "PyTorch's average pooling pads both sides alike"
        return self.functional.avg_pool2d(x, window, stride, (top, left), count_include_pad=count_include_pad)

    def global_average_pool(self, x: Any) -> Any:
        return x.mean(dim=(2, 3))

    def batch_norm(self, x: Any, parameters: Mapping[str, Any], epsilon: float, momentum: float, training: bool) -> Any:
        # NOTE: changes the running statistics that it is given, as PyTorch does.
        names = ("running_mean", "running_variance", "scale", "shift")
        values = [parameters[name] for name in names]
        return self.functional.batch_norm(x, *values, training=training, momentum=momentum, eps=epsilon)

    def _padded(self, x: Any, padding: Sides, value: float) -> Any:
        (top, bottom), (left, right) = padding
        return self.functional.pad(x, (left, right, top, bottom), value=value)

    def loss(self, kind: str, output: Any, labels: Any) -> Any:
        flat = output.flatten(1)
        if kind == "CrossEntropy":
            return self.functional.cross_entropy(flat, self.torch.tensor(np.asarray(labels, np.int64)))
        targets = self.array(labels).reshape(flat.shape)
        if kind == "MeanSquaredError":
            return self.functional.mse_loss(flat, targets)
        return self.functional.binary_cross_entropy_with_logits(flat, targets)


def torch_gradients(
    torch: Any,
    graph: Graph,
    weights: Mapping[str, Any],
    x: Any,
    labels: Any,
    kind: str,
    seed: int = 0,
    step: int = 0,
    frozen: Collection[str] = (),
) -> tuple[float, dict[str, Any]]:
    """The loss of a training batch, and by name its derivatives by all trainable parameters and by ``input``.

    The ``frozen`` ones have requires_grad=False, and their batch norms are in eval mode.
    """
    operations = TorchOperations(torch)
    tensors = {name: operations.array(values) for name, values in weights.items()}
    tensors["input"] = operations.array(x)
    wanted = [name for name in graph.trainable if name not in frozen] + ["input"]
    for name in wanted:
        tensors[name].requires_grad_()
    output = run(graph, tensors, tensors["input"], operations, training=True, frozen=frozen, seed=seed, step=step)
    loss = operations.loss(kind, output, labels)
    loss.backward()
    return float(loss.detach()), {name: tensors[name].grad.numpy() for name in wanted if tensors[name].grad is not None}
