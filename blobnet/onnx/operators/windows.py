"""Operators that slide windows over planes: convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blobnet import layers
from blobnet.memory.windows import Padding, WindowAxis, axis_padding
from blobnet.onnx.lowering import NodeStatement, elementwise, names_of
from blobnet.onnx.operation import Operation, operator
from blobnet.onnx.values import Array, Tensor

# By the number of spatial axes.
_CONVOLUTIONS: tuple[Any, ...] = (layers.Conv1D, layers.Conv2D, layers.Conv3D)
_TRANSPOSED: tuple[Any, ...] = (layers.ConvTranspose1D, layers.ConvTranspose2D, layers.ConvTranspose3D)
_MAXIMA: tuple[Any, ...] = (layers.MaxPool1D, layers.MaxPool2D, layers.MaxPool3D)
_AVERAGES: tuple[Any, ...] = (layers.AveragePool1D, layers.AveragePool2D, layers.AveragePool3D)


#: Cells of all windows along an axis.
_MOST = 2**26


@dataclass(frozen=True)
class _Window:
    """A window along an axis of ``size`` cells; ``whole`` is padded as far as the last one of ``ceil_mode`` reaches."""

    axis: WindowAxis
    whole: WindowAxis
    size: int

    @property
    def count(self) -> int:
        """Windows."""
        return self.whole.output_size(self.size)


def _per_axis(op: Operation, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    found = op.numbers(name, default=(default,) * rank)
    fits = len(found) == rank and min(found, default=0) >= int(name != "output_padding")
    op.require(fits, f"{name} must have a number for each spatial axis", received=found)
    return tuple(found)


def _windows(op: Operation, kernel: Sequence[int], sizes: Sequence[int]) -> list[_Window]:
    """The windows of a node over planes."""
    rank = len(sizes)
    fits = len(kernel) == rank and min(kernel) >= 1
    op.require(fits, "the window must have a size for each spatial axis", window=kernel, planes=sizes)
    strides, dilations = _per_axis(op, "strides", rank), _per_axis(op, "dilations", rank)
    pads, mode = op.numbers("pads", default=(0,) * 2 * rank), op.get("auto_pad", "NOTSET")
    op.require(len(pads) == 2 * rank and min(pads) >= 0, "pads must be two numbers of at least 0 an axis", pads=pads)
    op.require(mode in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), "auto_pad must be known", auto_pad=mode)
    found = []
    for place, (size, taps, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        axis = WindowAxis(taps, stride, dilation)
        if mode == "NOTSET":
            axis = replace(axis, padding=(pads[place], pads[rank + place]))
        elif mode.startswith("SAME"):
            (before, after), *_ = axis_padding("same", [axis], [size])
            axis = replace(axis, padding=(before, after) if mode == "SAME_UPPER" else (after, before))
        op.require(axis.fits(size), "the window must fit the padded input", window=kernel, planes=sizes, pads=pads)
        found.append(_Window(axis, axis.rounded_up(size) if op.get("ceil_mode", 0) else axis, size))
        rule = "windows must be no larger, and no more, than memory can hold"
        op.require(found[-1].count * taps <= _MOST, rule, windows=found[-1].count, window=taps)
    return found


def _padding(windows: Sequence[_Window]) -> Padding:
    """The padding of windows, as layers take it."""
    pairs = [item.whole.padding for item in windows]
    if all(before == after for before, after in pairs):
        return pairs[0][0] if len(set(pairs)) == 1 else tuple(before for before, _ in pairs)
    return pairs[0] if len(pairs) == 1 else tuple(pairs)


def _numbers(values: Sequence[int]) -> int | tuple[int, ...]:
    """One number where all are the same."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _weights(op: Operation) -> dict[str, Array]:
    """The parameters of a convolution."""
    return {"weight": op.array(1)} | ({"bias": op.array(2)} if op.given(2) else {})


@operator("Conv")
def _conv(op: Operation) -> Tensor:
    weights = _weights(op)
    weight = weights["weight"]
    node, sizes = op.spatial()
    groups = int(op.get("group", 1))
    fits = weight.ndim == len(sizes) + 2 and groups >= 1 and weight.shape[1] * groups == node.shape.units
    op.require(fits, "the weights must be (filters, units / group, ...)", weights=weight.shape, input=node.shape)
    windows = _windows(op, weight.shape[2:], sizes)
    layer = _CONVOLUTIONS[len(sizes) - 1](
        weight.shape[0],
        _numbers(weight.shape[2:]),
        stride=_numbers([item.axis.stride for item in windows]),
        padding=_padding(windows),
        dilation=_numbers([item.axis.dilation for item in windows]),
        groups=groups,
        bias=op.given(2),
    )
    node = op.layer(layer, node, weights=weights, key=op.key_of(*weights.values()))
    return op.of_samples(node)


@operator("ConvTranspose")
def _conv_transpose(op: Operation) -> Tensor:
    weights = _weights(op)
    weight = weights["weight"]
    node, sizes = op.spatial()
    rank, groups = len(sizes), int(op.get("group", 1))
    fits = weight.ndim == rank + 2 and weight.shape[0] == node.shape.units and groups >= 1
    op.require(fits, "the weights must be (units, filters / group, ...)", weights=weight.shape, input=node.shape)
    kernel = weight.shape[2:]
    strides, dilations = _per_axis(op, "strides", rank), _per_axis(op, "dilations", rank)
    more, mode = _per_axis(op, "output_padding", rank, 0), op.get("auto_pad", "NOTSET")
    pads, wanted = op.numbers("pads", default=(0,) * 2 * rank), op.numbers("output_shape")
    if mode.startswith("SAME") and wanted is None:
        wanted = tuple(size * stride for size, stride in zip(sizes, strides, strict=True))
    before, extra, crops = [], [], []
    for place, (size, taps, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        whole = (size - 1) * stride + dilation * (taps - 1) + 1
        first, last = pads[place], pads[rank + place]
        if wanted is not None:
            total = whole + more[place] - wanted[place - rank]
            first = total // 2 if mode == "SAME_UPPER" else total - total // 2
            first, last = max(0, first), total - max(0, first)
        elif mode == "VALID":
            first = last = 0
        target = whole + more[place] - first - last
        op.require(first >= 0 and target > 0, "pads must leave something of the output", pads=pads)
        # What the layer pads on both sides, and cells at the end that it makes beyond or that are to be cut.
        before.append(first)
        extra.append(max(0, target - (whole - 2 * first)))
        crops.append(target)
    layer = _TRANSPOSED[rank - 1](
        weight.shape[1] * groups,
        _numbers(kernel),
        stride=_numbers(strides),
        padding=_numbers(before),
        output_padding=_numbers(extra),
        dilation=_numbers(dilations),
        groups=groups,
        bias=op.given(2),
    )
    node = op.layer(layer, node, weights=weights, key=op.key_of(*weights.values()))
    if node.shape.dimensions[1:] != tuple(crops):
        node = op.layer(layers.Slice((None, *((0, size) for size in crops))), node)
    return op.of_samples(node)


def _pooled(
    op: Operation, windows: Sequence[_Window], aggregation: str, term: str = "{0}", *, is_mean: bool = False
) -> Tensor:
    """An aggregation over windows of any kind, of terms in which {0} is an element; or their mean."""
    node, _ = op.spatial()
    names, counts = names_of(2 + len(windows)), [item.count for item in windows]
    taps = [f"k{name}" for name in names[2:]]
    reads = [
        f"{item.axis.stride}*{name} + {item.axis.dilation}*{tap} - {item.axis.padding[0]}"
        for item, name, tap in zip(windows, names[2:], taps, strict=True)
    ]
    bounds = [f"{tap} < {item.axis.kernel}" for tap, item in zip(taps, windows, strict=True)]
    statement = NodeStatement(op, *bounds)
    text = term.format(statement.read(op.of_samples(node), [*names[:2], *reads]))
    if is_mean:
        for name, item in zip(names[2:], windows, strict=True):
            share = 1 / _lengths(item, bool(op.get("count_include_pad", 0)))
            text += f" * {statement.read(share, [name])}"
    return statement.result(f"{aggregation}({text})", (1, node.shape.units, *counts), names, at=0)


def _lengths(item: _Window, padded: bool) -> Array:
    """Return the number of cells of each window: of data, or of data and padding."""
    axis = item.axis
    cells = np.arange(item.count)[:, None] * axis.stride + np.arange(axis.kernel) * axis.dilation - axis.padding[0]
    first, end = (-axis.padding[0], item.size + axis.padding[1]) if padded else (0, item.size)
    counts: Array = np.maximum(1, ((cells >= first) & (cells < end)).sum(axis=1))
    return counts


def _is_plain(windows: Sequence[_Window]) -> bool:
    """Return True if the layers for pooling have such windows."""
    return all(item.axis.dilation == 1 and max(item.whole.padding) < item.axis.kernel for item in windows)


@operator("MaxPool", "AveragePool")
def _pool(op: Operation) -> Tensor:
    if any(op.outputs[1:]):
        op.on_host("a model must not be asked for the indices of maxima", outputs=list(op.outputs))
    node, sizes = op.spatial()
    windows, is_mean = _windows(op, op.numbers("kernel_shape", default=()), sizes), op.kind == "AveragePool"
    # Padding counts as data, but not what the last window of ceil_mode has beyond it.
    counts_padding = is_mean and bool(op.get("count_include_pad", 0))
    if not _is_plain(windows) or (counts_padding and any(item.whole != item.axis for item in windows)):
        return _pooled(op, windows, "+" if is_mean else ">", is_mean=is_mean)
    kind = (_AVERAGES if is_mean else _MAXIMA)[len(sizes) - 1]
    layer = kind(
        _numbers([item.axis.kernel for item in windows]),
        _numbers([item.axis.stride for item in windows]),
        _padding(windows),
        **({"count_include_pad": counts_padding} if is_mean else {}),
    )
    return op.of_samples(op.layer(layer, node))


@operator("LpPool")
def _lp_pool(op: Operation) -> Tensor:
    _, sizes = op.spatial()
    power = int(op.get("p", 2))
    windows = _windows(op, op.numbers("kernel_shape", default=()), sizes)
    sums = _pooled(op, windows, "+", "{0} * {0}" if power == 2 else f"pow(abs({{0}}), {power})")
    return elementwise(op, "sqrt({0})" if power == 2 else f"pow({{0}}, {1 / power!r})", sums)


@operator("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(op: Operation) -> Tensor:
    node, sizes = op.spatial()
    layer = layers.GlobalMaxPool() if op.kind == "GlobalMaxPool" else layers.GlobalAveragePool()
    return Tensor(op.layer(layer, node), (1, node.shape.units, *(1,) * len(sizes)), 0)
