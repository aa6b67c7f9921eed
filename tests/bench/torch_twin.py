"""The same layers and networks in PyTorch, with the same names, so that weights can be carried over.

PyTorch is imported only when it is asked for: blobnet does not depend on it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from blobnet.bench.timing import values_like
from blobnet.device.discovery import DeviceInfo
from blobnet.errors import OptionError
from blobnet.examination.layer_cases import BACKWARD, Case
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.layers.base import Layer
from blobnet.memory.blob import FloatArray, Shape
from blobnet.memory.windows import axis_numbers
from blobnet.model import Model
from blobnet.network.graph import Graph, Vertex

_HINT = "pip install torch (a CPU build is enough for CPU devices)"
#: Layers of several inputs, which are functions there.
_JOINS = ("Add", "Concat", "Interleave", "Multiply")
_PARAMETER_NAMES = {"scale": "weight", "shift": "bias", "running_variance": "running_var"}


def load() -> Any:
    """PyTorch, with cuDNN's choice by measurement.

    Raises:
        OptionError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise OptionError("--against torch", "PyTorch must be installed", cause=error, hint=_HINT) from error
    torch.backends.cudnn.benchmark = True
    return torch


def set_precision(precision: str) -> None:
    """Lets PyTorch round to TF32, or not, or to 16 bits (autocast), as blobnet does; cuDNN may round by default.

    Raises:
        OptionError: PyTorch is not installed.
    """
    torch = load()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.set_autocast_cache_enabled(False)  # It would keep weights of steps before: nothing leaves this autocast.
    for where in ("cpu", "cuda"):
        torch.set_autocast_dtype(where, torch.float16 if precision == "fp16" else torch.bfloat16)
        torch.set_autocast_enabled(where, precision in ("bf16", "fp16"))


def device_for(info: DeviceInfo) -> str:
    """PyTorch's name for the kind of device that ``info`` is.

    Raises:
        OptionError: PyTorch does not run there.
    """
    if info.is_host:
        return "cpu"
    if "NVIDIA" in info.platform and load().cuda.is_available():
        return "cuda"
    rule = "PyTorch must run on the same device: a CPU, or an NVIDIA GPU with a CUDA build of PyTorch"
    raise OptionError("--against torch", rule, device=info.name, hint="--device cpu, say.")


def description(where: str) -> str:
    """PyTorch's version and what it runs on."""
    torch = load()
    tf32 = "on" if torch.backends.cudnn.allow_tf32 else "off"
    return f"PyTorch {torch.__version__}, " + (
        f"{torch.get_num_threads()} threads" if where == "cpu" else f"{torch.cuda.get_device_name()}, TF32 {tf32}"
    )


def finish(where: str) -> None:
    """Waits for all that PyTorch has begun."""
    if where != "cpu":
        load().cuda.synchronize()


def check_layer(layer: Layer, shape: Shape) -> None:
    """Raises OptionError unless PyTorch has a counterpart of a layer on an input of this shape."""
    _layer_module(load(), layer, shape)


def check_graph(graph: Graph) -> None:
    """Raises OptionError unless PyTorch has a counterpart of every layer."""
    for vertex in graph.vertices[1:]:
        if vertex.layer.kind not in _JOINS:
            check_layer(vertex.layer, graph.input_shapes(vertex)[0])


class CaseTwin:
    """A layer in PyTorch, with as many sets of arrays as blobnet rotates."""

    def __init__(self, case: Case, batch_size: int, sets: int, where: str) -> None:
        torch = load()
        self.torch, self.case, self.where = torch, case, where
        #: As networks have them under autocast: numbers of the narrow type, with channels last where that is meant.
        self._form: dict[str, Any] = {}
        if torch.is_autocast_enabled(where):
            self._form = {"dtype": torch.get_autocast_dtype(where)}
            if case.layer.kind == "Conv2D":
                self._form["memory_format"] = torch.channels_last
        module = _layer_module(torch, case.layer, case.input)
        self._sets: list[dict[str, Callable[[], object]]] = []
        for _ in range(sets):
            own = (module() if module else None, self._array(batch_size, case.input))
            self._sets.append(self._product(*own, batch_size) if case.is_product else self._other(*own, batch_size))

    def _array(self, batch_size: int, shape: Shape) -> Any:
        values = values_like(batch_size * shape.elements).reshape(batch_size, *shape.dimensions)
        return self.torch.tensor(values, device=self.where).to(**self._form)

    def _product(self, module: Any, x: Any, batch_size: int) -> dict[str, Callable[[], object]]:
        """A convolution or dense layer: PyTorch's own functions for each of the three phases."""
        torch, layer = self.torch, module.to(self.where).to(**self._form).requires_grad_(False)
        weight, bias = layer.weight, layer.bias
        delta = self._array(batch_size, self.case.output)
        if self.case.layer.kind == "Dense":
            flat = x.reshape(batch_size, -1)

            def dense_weights() -> object:
                return delta.t() @ flat, None if bias is None else delta.sum(0)

            return {
                FORWARD: lambda: layer(flat),
                BACKWARD_DATA: lambda: delta @ weight,
                BACKWARD_WEIGHTS: dense_weights,
            }
        geometry = (list(layer.stride), list(layer.padding), list(layer.dilation), False, [0] * len(layer.stride))
        sizes = None if bias is None else list(bias.shape)

        def backward(mask: list[bool]) -> object:
            return torch.ops.aten.convolution_backward(delta, x, weight, sizes, *geometry, layer.groups, mask)

        return {
            FORWARD: lambda: layer(x),
            BACKWARD_DATA: lambda: backward([True, False, False]),
            BACKWARD_WEIGHTS: lambda: backward([False, True, bias is not None]),
        }

    def _other(self, module: Any, x: Any, batch_size: int) -> dict[str, Callable[[], object]]:
        """Any other layer: forward without a graph, and autograd's backward through a graph that is kept."""
        torch = self.torch
        if module is None:
            other = x.clone()
            return {FORWARD: lambda: x + other}
        layer = module.to(self.where).train()
        leaf = x.clone().requires_grad_()
        output = layer(leaf)
        delta = self._array(batch_size, self.case.output).reshape(output.shape)
        wanted = [leaf, *layer.parameters()]

        def forward() -> object:
            with torch.no_grad():
                return layer(x)

        return {
            FORWARD: forward,
            BACKWARD: lambda: torch.autograd.grad(output, wanted, delta, retain_graph=True),
        }

    def burst(self, direction: str, length: int) -> float:
        """Seconds of one of ``length`` repeats, as CaseBench.burst measures them."""
        self._sets[-1][direction]()
        finish(self.where)
        start = time.perf_counter()
        for index in range(length):
            self._sets[index % len(self._sets)][direction]()
        finish(self.where)
        return (time.perf_counter() - start) / length


class Twin:
    """A blobnet network as a PyTorch module, called ``module``, that runs the same vertices in the same order."""

    def __init__(self, model: Model) -> None:
        torch = load()
        self.graph: Graph = model.graph
        self.module = _network(torch, self.graph)
        self.set_weights(model.weights)

    def set_weights(self, weights: Mapping[str, FloatArray]) -> None:
        """Copies a model's weights into the module."""
        torch = load()
        with torch.no_grad():
            for name, values in weights.items():
                layer, _, parameter = name.partition("/")
                if layer == self.graph.input.name:
                    shape = (1, -1) + (1,) * self.graph.input.shape.rank
                    getattr(self.module, parameter).data = torch.tensor(values).reshape(shape)
                    continue
                target = getattr(self.module.parts[layer], _PARAMETER_NAMES.get(parameter, parameter))
                target.copy_(torch.tensor(values))


def training_step(
    network: Any, where: str, x: npt.NDArray[Any], y: npt.NDArray[Any], learning_rate: float
) -> Callable[[], None]:
    """Return a function that begins one step of Adam for a module on a batch, which it copies to the device as well."""
    torch = load()
    network = network.train().to(where)
    optimizer = torch.optim.Adam(network.parameters(), learning_rate)
    host = [torch.tensor(x), torch.tensor(y, dtype=torch.int64)]
    if where == "cuda":  # As the loaders of PyTorch can do beside the training.
        host = [values.pin_memory() for values in host]

    def step() -> None:
        inputs, labels = (values.to(where, non_blocking=True) for values in host)
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()

    return step


def inference_step(network: Any, where: str, x: npt.NDArray[Any]) -> Callable[[], None]:
    """Return a function by which a module predicts a batch, copied to the device, and its outputs back."""
    torch = load()
    network = network.eval().to(where)
    host_inputs = torch.tensor(x)

    def step() -> None:
        with torch.no_grad():
            network(host_inputs.to(where)).cpu()

    return step


def _network(torch: Any, graph: Graph) -> Any:
    class Network(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not there for type checkers
        """Parts by their layers' names, and the input's statistics."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(1))
            self.register_buffer("deviation", torch.ones(1))
            self.parts = torch.nn.ModuleDict()
            for vertex in graph.vertices[1:]:
                if vertex.layer.kind not in _JOINS:
                    make = _layer_module(torch, vertex.layer, graph.input_shapes(vertex)[0])
                    assert make is not None
                    self.parts[vertex.name] = make()

        def forward(self, x: Any) -> Any:
            values = [(x - self.mean) / self.deviation]
            for vertex in graph.vertices[1:]:
                values.append(self._value(vertex, [values[source] for source in vertex.inputs]))
            return values[-1]

        def _value(self, vertex: Vertex, inputs: list[Any]) -> Any:
            if vertex.layer.kind == "Concat":
                return torch.cat(inputs, 1)
            if vertex.layer.kind == "Interleave":
                return torch.stack(inputs, 2).flatten(1, 2)
            if vertex.layer.kind == "Add":
                return sum(inputs[1:], inputs[0])
            if vertex.layer.kind == "Multiply":
                axes = 2 + vertex.shape.rank
                return math.prod(value.reshape(*value.shape, *(1,) * (axes - value.ndim)) for value in inputs)
            value = inputs[0].flatten(1) if vertex.layer.flattens_input else inputs[0]
            return self.parts[vertex.name](value)

    return Network()


def _layer_module(torch: Any, layer: Any, shape: Shape) -> Callable[[], Any] | None:
    """Return a function that makes a layer's module; None for Add.

    Raises:
        OptionError: the layer has no counterpart.
    """
    nn, kind = torch.nn, layer.kind
    if hasattr(layer, "kernel_size") or hasattr(layer, "pool_size"):
        return _window_module(nn, layer, shape)
    makers: dict[str, Callable[[], Any] | None] = {
        "Dense": lambda: nn.Linear(shape.elements, layer.units, layer.bias),
        "BatchNorm": lambda: (nn.BatchNorm2d if shape.rank == 2 else nn.BatchNorm1d)(
            shape.units, layer.epsilon, layer.momentum
        ),
        "GlobalAveragePool": lambda: nn.Sequential(
            (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[shape.rank - 1](1), nn.Flatten()
        ),
        "AdaptiveAveragePool": lambda: (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[shape.rank - 1](layer.output_size),
        "Flatten": nn.Flatten,
        "Dropout": lambda: nn.Dropout(layer.rate),
        "Slice": lambda: _function(torch, lambda own, x: x[_slices(layer)]),
        "Tokens": lambda: _function(
            torch,
            lambda own, x: torch.cat([own.token.expand(len(x), 1, -1), x.flatten(2).mT], 1).add(own.position).mT,
            **_zeros(torch, layer, shape),
        ),
        "MultiHeadAttention": lambda: _function(
            torch, lambda own, x: _attention(torch, own, x, layer), **_zeros(torch, layer, shape)
        ),
        "StochasticDepth": lambda: _function(torch, lambda own, x: _left_out(torch, own, x, layer.rate)),
        "LayerNorm": lambda: _function(
            torch,
            lambda own, x: nn.functional.layer_norm(
                x.movedim(1, -1), (shape.units,), own.weight, own.bias, layer.epsilon
            ).movedim(-1, 1),
            **({"weight": None, "bias": None} | _zeros(torch, layer, shape)),
        ),
        "Scale": lambda: _function(
            torch,
            lambda own, x: x * own.weight.reshape(-1, *(1,) * shape.rank),
            **_zeros(torch, layer, shape),
        ),
        "Add": None,
        "Activation": lambda: _activation(nn, layer),
    }
    if kind not in makers:
        raise OptionError("--against torch", "every layer must have a counterpart in PyTorch", layer=layer.subject)
    return makers[kind]


def _window_module(nn: Any, layer: Any, shape: Shape) -> Callable[[], Any]:
    """The same for convolutions and pooling."""
    if layer.kind.startswith("ConvTranspose"):
        make = getattr(nn, f"ConvTranspose{layer.rank}d")
        sides = layer.kernel_size, layer.stride, layer.padding, layer.output_padding
        return lambda: make(shape.units, layer.filters, *sides, layer.groups, layer.bias, layer.dilation)
    if hasattr(layer, "pool_size"):
        is_max = layer.kind.startswith("Max")
        make = getattr(nn, f"{'Max' if is_max else 'Avg'}Pool{layer.rank}d")
        settings = {"ceil_mode": layer.ceil_mode} if is_max else {"count_include_pad": layer.count_include_pad}
        # What rounding up adds after the data PyTorch adds itself.
        padding = _padding(replace(layer, ceil_mode=False) if is_max else layer, shape)
        return lambda: make(layer.pool_size, layer.stride, padding, **settings)
    taps, stride, dilation = (
        axis_numbers(layer.subject, name, getattr(layer, name), layer.rank)
        for name in ("kernel_size", "stride", "dilation")
    )
    make = nn.Conv1d if layer.rank == 1 else nn.Conv2d
    padding, has_bias = _padding(layer, shape), _has_bias(layer)
    return lambda: make(shape.units, layer.filters, taps, stride, padding, dilation, layer.groups, has_bias)


def _zeros(torch: Any, layer: Layer, shape: Shape) -> dict[str, Any]:
    """Zeros for the parameters of a layer, by the names that they have there; weights are set later."""
    return {_PARAMETER_NAMES.get(spec.name, spec.name): torch.zeros(spec.shape) for spec in layer.parameters([shape])}


def _attention(torch: Any, own: Any, x: Any, layer: Any) -> Any:
    """Compute self-attention of one input (N, units, width)."""
    linear, parts = torch.nn.functional.linear, []
    for name in ("query", "key", "value"):
        part = linear(x.mT, getattr(own, name), getattr(own, f"{name}_bias", None))
        parts.append(part.unflatten(2, (layer.heads, -1)).transpose(1, 2))
    mixed = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=layer.causal)
    return linear(mixed.transpose(1, 2).flatten(2), own.output, getattr(own, "output_bias", None)).mT


def _slices(layer: Any) -> tuple[slice, ...]:
    """Return the slices of a Slice layer, of the samples and of each axis."""
    return (slice(None), *(slice(*part) if part else slice(None) for part in layer.ranges))


def _left_out(torch: Any, own: Any, x: Any, rate: float) -> Any:
    """Whole samples times 0 or 1 / (1 - rate), in training."""
    if not own.training:
        return x
    kept = torch.empty((len(x), *(1,) * (x.ndim - 1)), dtype=x.dtype, device=x.device).bernoulli_(1 - rate)
    return x * kept.div_(1 - rate)


def _function(torch: Any, function: Callable[..., Any], **parameters: Any) -> Any:
    """A module that is a function of itself and its inputs, with parameters that start as these arrays, or are None."""

    class Function(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not there for type checkers
        def __init__(self) -> None:
            super().__init__()
            for name, values in parameters.items():
                setattr(self, name, None if values is None else torch.nn.Parameter(values))

        def forward(self, *inputs: Any) -> Any:
            return function(self, *inputs)

    return Function()


def _activation(nn: Any, layer: Any) -> Any:
    names = {"relu": "ReLU", "relu6": "ReLU6", "leaky_relu": "LeakyReLU", "elu": "ELU", "sigmoid": "Sigmoid",
             "tanh": "Tanh", "softplus": "Softplus", "silu": "SiLU", "gelu": "GELU", "linear": "Identity",
             "hard_sigmoid": "Hardsigmoid", "hard_swish": "Hardswish", "mish": "Mish"}  # fmt: skip
    if layer.limit is not None:
        return nn.Hardtanh(0, layer.limit)
    numbers = () if layer.slope is None else (layer.slope,)
    return nn.Softmax(1) if layer.function == "softmax" else getattr(nn, names[layer.function])(*numbers)


def _has_bias(layer: Any) -> bool:
    if layer.bias == "position":
        raise OptionError("--against torch", "PyTorch has no bias for each position", layer=layer.subject)
    return bool(layer.bias)


def _padding(layer: Any, shape: Shape) -> tuple[int, ...]:
    axes = layer._axes(shape)[-layer.rank :]
    if any(axis.padding[0] != axis.padding[1] for axis in axes):
        rule = "PyTorch pads both sides of an axis alike"
        raise OptionError("--against torch", rule, layer=layer.subject, padding=[axis.padding for axis in axes])
    return tuple(axis.padding[0] for axis in axes)
