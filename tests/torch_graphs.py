"""Any graph, its losses and optimizers in PyTorch: what random networks are compared with.

It shares no arithmetic with blobnet: the masks of dropout come from the reference of blobnet/checkup. Arrays have the
shapes that users see, (N, units[[[, depth], height], width]).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import isabstract
from typing import Any

import numpy as np

from blobnet import losses, optimizers
from blobnet.examination.reference.dropout import dropout_mask
from blobnet.layers.base import Layer
from blobnet.layers.lowered import ContractionLayer
from blobnet.network.graph import Graph, Vertex

try:
    import torch
    from torch.nn import functional
except ImportError:  # Tests that need it are skipped.
    torch = functional = None  # type: ignore[assignment]

#: A layer of inputs and parameters by name.
Module = Callable[[Any, list[Any], dict[str, Any]], Any]


# -- layers ------------------------------------------------------------------------------------------------------------


def numbers(value: Any, rank: int) -> tuple[int, ...]:
    """One number for each axis."""
    return tuple(value) if isinstance(value, tuple) else (value,) * rank


def sides(layer: Any, window: Sequence[int], stride: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) of each axis, of a window with its dilation."""
    if layer.padding == "valid":
        return [(0, 0)] * layer.rank
    if layer.padding == "same":
        total = [
            max(0, (-(-size // step) - 1) * step + span - size)
            for span, step, size in zip(window, stride, sizes, strict=True)
        ]
        return [(both // 2, both - both // 2) for both in total]
    if isinstance(layer.padding, int):
        return [(layer.padding, layer.padding)] * layer.rank
    if layer.rank == 1:
        return [layer.padding]
    return [(side, side) if isinstance(side, int) else tuple(side) for side in layer.padding]


def padded(x: Any, sides: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
    return functional.pad(x, [side for both in reversed(sides) for side in both], value=value)


def by_unit(values: Any, like: Any) -> Any:
    """(units,) beside (N, units, ...)."""
    return values.reshape(1, -1, *(1,) * (like.ndim - 2))


def of_rank(values: Any, axes: int) -> Any:
    """Axes of one value behind the others."""
    return values.reshape(*values.shape, *(1,) * (axes - values.ndim))


def convolution(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    rank = layer.rank
    kernel, stride, dilation = (numbers(getattr(layer, name), rank) for name in ("kernel_size", "stride", "dilation"))
    window = [gap * (taps - 1) + 1 for gap, taps in zip(dilation, kernel, strict=True)]
    own = padded(x[0], sides(layer, window, stride, x[0].shape[2:]))
    by_position = layer.bias == "position"
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    bias = None if by_position else p.get("bias")
    result = function(own, p["weight"], bias, stride, dilation=dilation, groups=layer.groups)
    return result + p["bias"] if by_position else result


def transposed(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    function = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[layer.rank - 1]
    names = ("stride", "padding", "output_padding", "dilation")
    stride, padding, more, dilation = (numbers(getattr(layer, name), layer.rank) for name in names)
    return function(x[0], p["weight"], p.get("bias"), stride, padding, more, layer.groups, dilation)


def pool(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    rank = layer.rank
    window = numbers(layer.pool_size, rank)
    stride = window if layer.stride is None else numbers(layer.stride, rank)
    around = sides(layer, window, stride, x[0].shape[2:])
    if layer.kind.startswith("Max"):
        function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[rank - 1]
        if getattr(layer, "ceil_mode", False) and layer.padding != "same":
            return function(x[0], window, stride, [before for before, _ in around], ceil_mode=True)
        return function(padded(x[0], around, -math.inf), window, stride)
    function = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[rank - 1]
    means = function(padded(x[0], around), window, stride)
    if layer.count_include_pad:
        return means
    return means / function(padded(torch.ones_like(x[0]), around), window, stride)


def adaptive(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    rank, what = x[0].ndim - 2, "max" if layer.kind == "AdaptiveMaxPool" else "avg"
    function = getattr(functional, f"adaptive_{what}_pool{rank}d")
    return function(x[0], numbers(layer.output_size, rank))


def attention(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    parts = []
    for place, name in enumerate(("query", "key", "value")):
        source = x[min(place, len(x) - 1)].mT
        part = functional.linear(source, p[name], p.get(f"{name}_bias"))
        parts.append(part.unflatten(2, (layer.heads, -1)).transpose(1, 2))
    query, key, value = parts
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if layer.causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.arange(columns)[None, :] > torch.arange(rows)[:, None]
        scores = scores.masked_fill(hidden, -math.inf)
    mixed = scores.softmax(-1) @ value
    return functional.linear(mixed.transpose(1, 2).flatten(2), p["output"], p.get("output_bias")).mT


def matmul(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    first, second = x
    rank = max(first.ndim, second.ndim)
    first, second = (
        item.reshape(item.shape[0], *(1,) * (rank - item.ndim), *item.shape[1:]) for item in (first, second)
    )
    return (first.mT if layer.transpose_first else first) @ (second.mT if layer.transpose_second else second)


def squeeze_excite(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    hidden = (x[0].flatten(2).mean(2) @ p["squeeze"].T + p["squeeze_bias"]).relu()
    return x[0] * of_rank((hidden @ p["excite"].T + p["excite_bias"]).sigmoid(), x[0].ndim)


def tokens(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    front = p["token"][None, :, None].expand(len(x[0]), -1, -1)
    return torch.cat([front, x[0].flatten(2)], 2) + p["position"].mT


def standardized(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    mean, variance, scale, shift = (
        by_unit(p[name], x[0]) for name in ("running_mean", "running_variance", "scale", "shift")
    )
    return scale * (x[0] - mean) / variance.sqrt() + shift


def layer_norm(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    last = x[0].movedim(1, -1)
    own = p.get("scale"), p.get("shift")
    return functional.layer_norm(last, last.shape[-1:], *own, layer.epsilon).movedim(-1, 1)


def upsample(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    rank = x[0].ndim - 2
    mode = "nearest" if layer.mode == "nearest" else ("linear", "bilinear", "trilinear")[rank - 1]
    options = {} if mode == "nearest" else {"align_corners": False}
    return functional.interpolate(x[0], scale_factor=numbers(layer.scale, rank), mode=mode, **options)


def response_norm(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    own = x[0].unsqueeze(2) if x[0].ndim == 2 else x[0]
    result = functional.local_response_norm(own, layer.size, layer.alpha, layer.beta, layer.bias)
    return result.reshape(x[0].shape)


def zeros_around(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    around = numbers(layer.padding, x[0].ndim - 2)
    return padded(x[0], [(side, side) if isinstance(side, int) else side for side in around])


def activation(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    name, own = layer.function, x[0]
    if name == "linear":
        return own
    if name == "softmax":
        return own.softmax(1)
    if layer.limit is not None:
        return functional.hardtanh(own, 0.0, layer.limit)
    if name == "leaky_relu":
        return functional.leaky_relu(own, 0.01 if layer.slope is None else layer.slope)
    return getattr(functional, {"hard_sigmoid": "hardsigmoid", "hard_swish": "hardswish"}.get(name, name))(own)


#: Texts of layers.Contraction, and what they mean.
CONTRACTIONS: dict[str, Module] = {
    "function (I[N, C, ...], W[F, C]) -> (O) { O[n, f, ... : N, F, ...] = +(I[n, c, ...] * W[f, c]); }": (
        lambda layer, x, p: torch.einsum("nc...,fc->nf...", x[0], p["W"])
    ),
    "function (I[N, C, ...], p[C], q[C]) -> (O) { O[n, c, ...] = +(tanh(I[n, c, ...] * p[c]) + q[c]); }": (
        lambda layer, x, p: torch.tanh(x[0] * by_unit(p["p"], x[0])) + by_unit(p["q"], x[0])
    ),
    "function (I[N, C, ...]) -> (O) { O[n, 0, ... : N, 1, ...] = >(I[n, c, ...]); }": (
        lambda layer, x, p: x[0].max(1, keepdim=True).values
    ),
    "function (A[N, C, ...], B[N, C, ...]) -> (O) { O[n, c, ...] = +(A[n, c, ...] * B[n, c, ...] - A[n, c, ...]); }": (
        lambda layer, x, p: x[0] * x[1] - x[0]
    ),
}


def recurrent(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    """PyTorch's own module, whose second bias an LSTM here does not have."""
    names = {
        "weight": "weight_ih_l0",
        "recurrent": "weight_hh_l0",
        "bias": "bias_ih_l0",
        "recurrent_bias": "bias_hh_l0",
    }
    arguments = {"batch_first": True, "bidirectional": layer.bidirectional, "bias": layer.bias}
    module = getattr(torch.nn, layer.kind)(x[0].shape[1], layer.units, **arguments)
    own = {names[name.removeprefix("reverse_")] + "_reverse" * name.startswith("reverse_"): p[name] for name in p}
    own |= {name: 0 * own[name.replace("hh", "ih")] for name, _ in module.named_parameters() if name not in own}
    if len(x) > 1:
        return packed(layer, module, own, x[0].transpose(1, 2), x[1].detach().long().reshape(-1))
    series = x[0].flip(2) if layer.reverse else x[0]
    states, _ = torch.func.functional_call(module, own, (series.transpose(1, 2),))
    if layer.return_sequences:
        return states.transpose(1, 2).flip(2) if layer.reverse else states.transpose(1, 2)
    return torch.cat([states[:, -1, : layer.units], states[:, 0, layer.units :]], 1)


def packed(layer: Any, module: Any, own: dict[str, Any], series: Any, lengths: Any) -> Any:
    """The same of samples (N, width, channels) of several lengths: PyTorch's packed sequences."""
    places = torch.arange(series.shape[1]).expand(series.shape[:2])
    turned = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)[:, :, None]
    series = series.gather(1, turned.expand(series.shape)) if layer.reverse else series
    packs = torch.nn.utils.rnn
    pack = packs.pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
    states, last = torch.func.functional_call(module, own, (pack,))
    if not layer.return_sequences:
        return (last[0] if isinstance(last, tuple) else last).transpose(0, 1).flatten(1)
    states, _ = packs.pad_packed_sequence(states, batch_first=True, total_length=series.shape[1])
    return (states.gather(1, turned.expand(states.shape)) if layer.reverse else states).transpose(1, 2)


def embedding(layer: Any, x: list[Any], p: dict[str, Any]) -> Any:
    """Values that are no numbers of vectors, as random networks have them, give zeros."""
    hits = x[0].flatten(1)[:, :, None] == torch.arange(layer.count)
    return (hits.to(x[0].dtype) @ p["weight"]).transpose(1, 2)


MODULES: dict[str, Module] = {
    **{f"Conv{rank}D": convolution for rank in (1, 2, 3)},
    **{f"ConvTranspose{rank}D": transposed for rank in (1, 2, 3)},
    **{f"{what}Pool{rank}D": pool for what in ("Max", "Average") for rank in (1, 2, 3)},
    "Activation": activation,
    "AdaptiveAveragePool": adaptive,
    "AdaptiveMaxPool": adaptive,
    "Add": lambda layer, x, p: sum(of_rank(item, max(other.ndim for other in x)) for item in x),
    "Concat": lambda layer, x, p: torch.cat(x, 1),
    "Contraction": lambda layer, x, p: CONTRACTIONS[layer.text](layer, x, p),
    "Dense": lambda layer, x, p: functional.linear(x[0].flatten(1), p["weight"], p.get("bias")),
    "DepthToSpace": lambda layer, x, p: functional.pixel_shuffle(x[0], layer.block),
    "Embedding": embedding,
    "Flatten": lambda layer, x, p: x[0].flatten(1),
    "GRU": recurrent,
    "GlobalAveragePool": lambda layer, x, p: x[0].reshape(*x[0].shape[:2], -1).mean(2),
    "GlobalMaxPool": lambda layer, x, p: x[0].flatten(2).max(2).values,
    "GroupNorm": lambda layer, x, p: torch.group_norm(  # PyTorch's function for layers refuses groups of one value.
        x[0], layer.groups, p.get("scale"), p.get("shift"), layer.epsilon
    ),
    "InstanceNorm": lambda layer, x, p: functional.instance_norm(
        x[0], weight=p.get("scale"), bias=p.get("shift"), eps=layer.epsilon
    ),
    "Interleave": lambda layer, x, p: torch.stack(x, 2).flatten(1, 2),
    "LSTM": recurrent,
    "LayerNorm": layer_norm,
    "LocalResponseNorm": response_norm,
    "MatMul": matmul,
    "MultiHeadAttention": attention,
    "Multiply": lambda layer, x, p: math.prod(of_rank(item, max(other.ndim for other in x)) for item in x),
    "PReLU": lambda layer, x, p: functional.prelu(x[0], p["slope"]),
    "Pad": zeros_around,
    "Permute": lambda layer, x, p: x[0].permute(0, *(1 + axis for axis in layer.order)),
    "Reshape": lambda layer, x, p: x[0].reshape(len(x[0]), *layer.shape),
    "Scale": lambda layer, x, p: x[0] * by_unit(p["scale"], x[0]),
    "Slice": lambda layer, x, p: x[0][(slice(None), *(slice(*part) if part else slice(None) for part in layer.ranges))],
    "SpaceToDepth": lambda layer, x, p: functional.pixel_unshuffle(x[0], layer.block),
    "SqueezeExcite": squeeze_excite,
    "Standardize": standardized,
    "Tokens": tokens,
    "Upsample": upsample,
}
#: Kinds that :class:`Network` computes itself: they depend on more than inputs and parameters.
OF_STEPS = {"BatchNorm", "Constant", "Dropout", "Input", "StochasticDepth"}


class Network:
    """A graph of PyTorch's functions.

    Attributes:
        tensors: all parameters by name; those that are trained require a gradient.
        noise: what each value of each layer is changed by at most, over its size, at random.
        storage: the type of PyTorch's that each value of each layer is rounded to then, and each delta on its way back.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Any],
        *,
        frozen: Collection[str] = (),
        dtype: str = "float64",
        noise: float = 0.0,
        storage: str = "",
        seed: int = 0,
    ) -> None:
        self.graph, self.frozen, self.noise, self.storage = graph, frozenset(frozen), noise, storage
        self.dtype = getattr(torch, dtype)
        self.tensors = {name: torch.tensor(np.asarray(values), dtype=self.dtype) for name, values in weights.items()}
        self._random = torch.Generator().manual_seed(seed)
        for name in self.trained:
            self.tensors[name].requires_grad_()

    @property
    def trained(self) -> list[str]:
        """The names of parameters that are trained."""
        return [name for name in self.graph.trainable if name not in self.frozen]

    def tensor(self, values: Any) -> Any:
        """An array of what is computed with."""
        return torch.tensor(np.asarray(values), dtype=self.dtype)

    def output(self, x: Any, **options: Any) -> Any:
        """The only output, for the only input; see :meth:`outputs`."""
        given = x if isinstance(x, torch.Tensor) else self.tensor(x)
        (found,) = self.outputs(dict.fromkeys(self.graph.inputs, given), **options).values()
        return found

    def outputs(self, x: Mapping[str, Any], *, training: bool, seed: int = 0, step: int = 0) -> dict[str, Any]:
        """The outputs by name; batch norms change their running statistics in training."""
        entries = {vertex.index: name for name, vertex in self.graph.inputs.items()}
        values: list[Any] = []
        self._count = len(next(iter(x.values())))
        for vertex in self.graph.vertices:
            inputs = [x[entries[vertex.index]]] if vertex.index in entries else [values[item] for item in vertex.inputs]
            value = self._value(vertex, inputs, training, seed, step)
            if self.storage:
                value = _rounded(self._changed, getattr(torch, self.storage), value)
            elif self.noise:
                value = self._changed(value)
            values.append(value)
        return {name: values[vertex.index] for name, vertex in self.graph.outputs.items()}

    def _changed(self, value: Any) -> Any:
        """By the noise."""
        noise = torch.rand(value.shape, generator=self._random, dtype=self.dtype) * 2 - 1
        return value * (1 + self.noise * noise)

    def _value(self, vertex: Vertex, x: list[Any], training: bool, seed: int, step: int) -> Any:
        layer: Any = vertex.layer
        own = {spec.name: self.tensors[vertex.parameter(spec.name)] for spec in self.graph.parameters(vertex)}
        if layer.kind == "Input":
            return (x[0] - by_unit(own["mean"], x[0])) / by_unit(own["deviation"], x[0])
        if layer.kind == "Constant":
            return own["value"].expand(self._count, *vertex.shape.dimensions)
        if layer.kind in ("Dropout", "StochasticDepth"):
            if not training:
                return x[0]
            elements = vertex.shape.elements
            mask = dropout_mask(seed, step, vertex.index, len(x[0]), elements, layer.rate)
            if layer.kind == "StochasticDepth":
                mask = np.repeat(mask[:, :1], elements, axis=1)
            return x[0] * self.tensor(mask.reshape(x[0].shape))
        if layer.kind == "BatchNorm":
            trains = training and not {vertex.parameter(name) for name in ("scale", "shift")} <= self.frozen
            return self._batch_norm(layer, x[0], own, trains)
        return MODULES[layer.kind](layer, x, own)

    def _batch_norm(self, layer: Any, x: Any, own: dict[str, Any], training: bool) -> Any:
        mean, variance = own["running_mean"], own["running_variance"]
        if training:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            values = x.numel() // x.shape[1]
            moved = x.mean(axes), x.var(axes, correction=0)
            with torch.no_grad():
                unbiased = moved[1] * values / max(1, values - 1)
                mean.lerp_(moved[0], layer.momentum)
                variance.lerp_(unbiased, layer.momentum)
            mean, variance = moved
        normalized = (x - by_unit(mean, x)) / (by_unit(variance, x) + layer.epsilon).sqrt()
        return normalized * by_unit(own["scale"], x) + by_unit(own["shift"], x)


def _rounded(changed: Callable[[Any], Any], storage: Any, value: Any) -> Any:
    """Values that are changed and rounded to a type, as their deltas are."""

    class Rounded(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, value: Any) -> Any:
            return changed(value).to(storage).to(value.dtype)

        @staticmethod
        def backward(context: Any, delta: Any) -> Any:
            return changed(delta).to(storage).to(delta.dtype)

    return Rounded.apply(value)


# -- losses ------------------------------------------------------------------------------------------------------------


#: A loss that is a text, Charbonnier's, of K values a sample.
CHARBONNIER = """function (P[N, C, ...], T[N, C, ...]) -> (L) {
  L[n] = +(sqrt((P[n, c, ...] - T[n, c, ...]) * (P[n, c, ...] - T[n, c, ...]) + 0.25) / K);
}"""


def _class_terms(loss: Any, z: Any, labels: Any, of_class: Any) -> tuple[Any, Any]:
    """The loss of each position, (N, positions), and its weight, without that of the sample."""
    classes = z.shape[1]
    logits = z.reshape(len(z), classes, -1)
    counted = labels != loss.ignore if loss.ignore is not None else torch.ones_like(labels, dtype=torch.bool)
    known = torch.where(counted, labels, 0)
    logarithm = logits.log_softmax(1)
    t = functional.one_hot(known, classes).movedim(-1, 1).to(z.dtype)
    t = t * (1 - loss.label_smoothing) + loss.label_smoothing / classes
    if isinstance(loss, losses.Focal):
        t = t * (1 - logarithm.exp()) ** loss.gamma
    return -(t * logarithm).sum(1), counted * of_class[known]


def _dice(loss: Any, z: Any, labels: Any, of_class: Any) -> Any:
    """The loss of each sample."""
    classes = z.shape[1]
    counted = labels != loss.ignore if loss.ignore is not None else torch.ones_like(labels, dtype=torch.bool)
    t = functional.one_hot(torch.where(counted, labels, 0), classes).movedim(-1, 1) * counted[:, None]
    p = z.reshape(len(z), classes, -1).softmax(1) * counted[:, None]
    each = 1 - (2 * (p * t).sum(2) + loss.smoothing) / (p.sum(2) + t.sum(2) + loss.smoothing)
    return (each * of_class).sum(1) / of_class.sum()


def _boxes(loss: Any, z: Any, y: Any) -> Any:
    """The loss of each sample, of boxes: heat maps are drawn box by box, and sizes gathered where the middles are."""
    height, width = z.shape[2:]
    found = []
    for own, rows in zip(z, y, strict=True):
        boxes = rows[rows[:, 0] >= 0]
        kinds, sides = boxes[:, 0].long(), boxes[:, 1:] * z.new_tensor([width, height, width, height])
        size, middle = sides[:, 2:] - sides[:, :2], (sides[:, :2] + sides[:, 2:]) / 2
        cell = middle.long().minimum(torch.tensor([width - 1, height - 1]))
        heat, t = torch.zeros_like(own[:-4]), 0.7
        for kind, (w, h), (x, y_) in zip(kinds, size, cell, strict=True):
            a, b, c = z.new_tensor([[1, -(w + h), w * h * (1 - t) / (1 + t)], [4, -2 * (w + h), w * h * (1 - t)],
                                    [4 * t, 2 * t * (w + h), w * h * (t - 1)]]).T  # fmt: skip
            roots = torch.stack([-b - (b * b - 4 * a * c).sqrt(), -b + (b * b - 4 * a * c).sqrt()]) / (2 * a)
            deviation = (2 * roots[roots > 0].min() + 1) / 6
            down, across = torch.arange(height)[:, None] - y_, torch.arange(width)[None] - x
            peak = torch.exp(-(down**2 + across**2) / (2 * deviation**2))
            peak = peak * (torch.maximum(down.abs(), across.abs()) <= 3 * deviation)
            heat[kind] = torch.maximum(heat[kind], peak)
        p, is_middle = own[:-4].sigmoid(), heat == 1
        hits = -((1 - p) ** 2) * functional.logsigmoid(own[:-4])
        others = -((1 - heat) ** 4) * p**2 * functional.logsigmoid(-own[:-4])
        said = own[-4:, cell[:, 1], cell[:, 0]].T
        total = torch.where(is_middle, hits, others).sum()
        total = total + loss.size_weight * (said[:, :2] - size).abs().sum()
        total = total + loss.offset_weight * (said[:, 2:] - (middle - cell)).abs().sum()
        found.append(total / max(1, len(boxes)))
    return torch.stack(found)


def _of_targets(loss: Any, z: Any, y: Any) -> Any:
    """The loss of each value."""
    if isinstance(loss, losses.BinaryCrossEntropy):
        y = y * (1 - loss.label_smoothing) + loss.label_smoothing / 2
        return functional.binary_cross_entropy_with_logits(z, y, reduction="none")
    if isinstance(loss, losses.MeanSquaredError):
        return (z - y) ** 2
    if isinstance(loss, losses.MeanAbsoluteError):
        return functional.l1_loss(z, y, reduction="none")
    if isinstance(loss, losses.Huber):
        return functional.huber_loss(z, y, reduction="none", delta=loss.delta)
    assert isinstance(loss, losses.Expression)
    assert loss.text == CHARBONNIER
    return ((z - y) ** 2 + 0.25).sqrt()


def loss_sums(
    loss: losses.Loss, z: Any, y: Any, of_samples: Any | None = None, of_classes: Any | None = None
) -> tuple[Any, float]:
    """The weighted sum of a batch's losses, and the weight: the loss is the one over the other."""
    of_sample = z.new_ones(len(z)) if of_samples is None else torch.tensor(of_samples, dtype=z.dtype)
    if isinstance(loss, losses.CenterNet):
        return (_boxes(loss, z, torch.tensor(np.asarray(y), dtype=z.dtype)) * of_sample).sum(), float(of_sample.sum())
    if not loss.takes_classes:
        y = torch.tensor(np.asarray(y), dtype=z.dtype).reshape(z.shape)
        each = _of_targets(loss, z, y).reshape(len(z), -1).mean(1)
        return (each * of_sample).sum(), float(of_sample.sum())
    labels = torch.tensor(np.asarray(y, np.int64)).reshape(len(z), -1)
    of_class = z.new_ones(z.shape[1]) if of_classes is None else torch.tensor(of_classes, dtype=z.dtype)
    if isinstance(loss, losses.Dice):
        return (_dice(loss, z, labels, of_class) * of_sample).sum(), float(of_sample.sum())
    each, weight = _class_terms(loss, z, labels, of_class)
    weight = weight * of_sample[:, None] / labels.shape[1]
    return (each * weight).sum(), float(weight.sum())


def torch_gradients(
    graph: Graph, weights: Mapping[str, Any], x: Any, labels: Any, loss: losses.Loss, seed: int = 0, **options: Any
) -> tuple[float, dict[str, Any]]:
    """The loss of a training batch, and by name its derivatives by all that is trained and by ``input``.

    ``options`` are those of Network. What the loss does not depend on is left out.
    """
    network = Network(graph, weights, **options)
    given = network.tensor(x).requires_grad_()
    value, weight = loss_sums(loss, network.output(given, training=True, seed=seed), labels)
    (value / weight).backward()
    found = {**{name: network.tensors[name].grad for name in network.trained}, "input": given.grad}
    return float(value.detach()) / weight, {name: own.numpy() for name, own in found.items() if own is not None}


# -- optimizers --------------------------------------------------------------------------------------------------------


def optimizer_of(network: Network, own: Any, factors: Mapping[str, float]) -> Callable[[], None]:
    """What makes a step of the gradients that there are; ``factors`` of the learning rate by parameter."""
    groups = []
    for name in network.trained:
        decays = network.graph.named_parameters[name].decayed
        rate = own.learning_rate * factors.get(name, 1.0)
        groups.append(
            {"params": [network.tensors[name]], "lr": rate, "weight_decay": own.weight_decay if decays else 0.0}
        )
    made: Any
    if isinstance(own, optimizers.SGD):
        made = torch.optim.SGD(groups, momentum=own.momentum, nesterov=own.nesterov)
    elif isinstance(own, optimizers.RMSprop):
        made = torch.optim.RMSprop(groups, alpha=own.alpha, eps=own.epsilon, momentum=own.momentum)
    else:
        kind = torch.optim.AdamW if isinstance(own, optimizers.AdamW) else torch.optim.Adam
        made = kind(groups, betas=(own.beta1, own.beta2), eps=own.epsilon)

    def step() -> None:
        trained = [network.tensors[name] for name in network.trained]
        for tensor in trained:
            if tensor.grad is None:  # The losses do not depend on it.
                tensor.grad = torch.zeros_like(tensor)
        if own.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained, own.clip_norm)
        made.step()
        made.zero_grad()

    return step


def own_kinds() -> set[str]:
    """All layers of blobnet; tests define others."""
    own = {name: kind for name, kind in Layer.kinds.items() if kind.__module__.startswith("blobnet.")}
    # A layer overrides one of two methods of this base, so none of them is abstract.
    return {name for name, kind in own.items() if not isabstract(kind) and kind is not ContractionLayer}


def unknown_kinds() -> set[str]:
    """Those that PyTorch is not told how to compute."""
    return own_kinds() - MODULES.keys() - OF_STEPS
