"""Operators that aggregate over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from blobnet import layers
from blobnet.onnx.lowering import NodeStatement, elementwise, names_of
from blobnet.onnx.operation import Operation, operator
from blobnet.onnx.values import Tensor

#: The term, the aggregation, and what is done to the result.
_REDUCTIONS = {
    "ReduceL1": ("abs({0})", "+", ""),
    "ReduceL2": ("{0} * {0}", "+", "sqrt({0})"),
    "ReduceLogSum": ("{0}", "+", "log({0})"),
    "ReduceMax": ("{0}", ">", ""),
    "ReduceMean": ("{0} / COUNT", "+", ""),
    "ReduceMin": ("{0}", "<", ""),
    "ReduceProd": ("{0}", "*", ""),
    "ReduceSum": ("{0}", "+", ""),
    "ReduceSumSquare": ("{0} * {0}", "+", ""),
}


def reduced(op: Operation, tensor: Tensor, axes: Sequence[int], term: str, aggregation: str = "+") -> Tensor:
    """An aggregation over some axes, which have the size 1 in the result; COUNT are their elements."""
    names = names_of(len(tensor.axes))
    reads = [f"k{name}" if axis in axes else name for axis, name in enumerate(names)]
    sizes = [1 if axis in axes else size for axis, size in enumerate(tensor.axes)]
    term = term.replace("COUNT", str(math.prod(tensor.axes[axis] for axis in axes)))
    statement = NodeStatement(op)
    text = f"{aggregation}({term.format(statement.read(tensor, reads))})"
    return replace(statement.result(text, sizes, names, tensor.at, tensor.outer), type=tensor.type)


def reduced_axes(op: Operation, tensor: Tensor) -> list[int] | None:
    """The axes that a reduction is over; None for none at all."""
    axes = op.numbers("axes", 1)
    if not axes:
        if op.get("noop_with_empty_axes", 0):
            return None
        axes = range(len(tensor.axes))
    return sorted({op.axis(axis, tensor) for axis in axes})


def without(tensor: Tensor, axes: Sequence[int], *, keep: bool) -> Tensor:
    """A reduced tensor, without the axes of size 1 that it was reduced over unless they are to be kept."""
    if keep:
        return tensor
    at = None if tensor.at is None else tensor.at - sum(axis < tensor.at for axis in axes)
    return replace(tensor, axes=tuple(size for axis, size in enumerate(tensor.axes) if axis not in axes), at=at)


@operator(*_REDUCTIONS, "ReduceLogSumExp")
def _reduce(op: Operation) -> Tensor:
    tensor, keep = op.tensor(0), bool(op.get("keepdims", 1))
    term, aggregation, last = _REDUCTIONS.get(op.kind, ("", "", ""))
    axes = reduced_axes(op, tensor)
    if axes is None:
        text = (last or "{0}").replace("{0}", f"({term.replace('COUNT', '1')})")
        return tensor if text == "({0})" else elementwise(op, text, tensor)
    pool = {"ReduceMean": layers.GlobalAveragePool(), "ReduceMax": layers.GlobalMaxPool()}.get(op.kind)
    if pool and tensor.is_plain and 3 <= len(tensor.axes) <= 5 and axes == list(range(2, len(tensor.axes))):
        node = op.layer(pool, op.shaped(tensor))
        return without(replace(tensor, node=node, axes=(*tensor.axes[:2], *(1,) * len(axes))), axes, keep=keep)
    if op.kind == "ReduceLogSumExp":
        most = reduced(op, tensor, axes, "{0}", ">")
        powers = elementwise(op, "exp({0} - {1})", tensor, most)
        sums = reduced(op, powers, axes, "{0}")
        return without(elementwise(op, "log({0}) + {1}", sums, most), axes, keep=keep)
    found = reduced(op, tensor, axes, term, aggregation)
    return without(elementwise(op, last, found) if last else found, axes, keep=keep)
