"""Operators that read at places which are values themselves, and the Fourier transform: each a sum over whole axes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from blobnet.onnx.lowering import NodeStatement, names_of, taken
from blobnet.onnx.operation import Operation, operator
from blobnet.onnx.values import Tensor

#: Elements that the matrix of a Fourier transform may have.
_MAX_ELEMENTS = 2**24
#: Cells that are added at both ends of an axis, so that whatever a cubic reads is a cell.
_CUBIC_REACH = 3
#: The weight of the cell ``K`` at the place ``P``. At a cell's own place slopes are those to its right, as in PyTorch.
_WEIGHTS = {
    "nearest": "(detach(round(P)) == K ? 1.0 : 0.0)",
    "linear": "(P >= K ? (P < K + 1 ? 1.0 - (P - K) : 0.0) : (P >= K - 1 ? 1.0 + (P - K) : 0.0))",
    "cubic": (
        "(abs(P - K) <= 1.0 ? (1.25*abs(P - K) - 2.25) * abs(P - K) * abs(P - K) + 1.0"
        " : (abs(P - K) < 2.0 ? ((3.75 - 0.75*abs(P - K)) * abs(P - K) - 6.0) * abs(P - K) + 3.0 : 0.0))"
    ),
}


@operator("GatherElements")
def _gather_elements(op: Operation) -> Tensor:
    """The sum over the axis of the values whose places are the index."""
    tensor, indexes, shape = op.tensor(0), op.array(1), op.shape_of(op.value(0))
    axis, at = op.axis(int(op.get("axis", 0)), tensor), tensor.at
    size = tensor.axes[axis]
    op.require(indexes.ndim == len(shape), "there must be as many axes of indexes", shape=shape, indexes=indexes.shape)
    if at is not None:
        if indexes.shape[at] != shape[at]:
            op.mixed("there must be indexes for all samples", shape=shape, indexes=indexes.shape)
        indexes = op.array_of_sample(indexes, at, tensor.outer)
    fits = all(own <= most or place == axis for place, (own, most) in enumerate(zip(indexes.shape, shape, strict=True)))
    op.require(fits, "axes of indexes must be as long as the values' at most", shape=shape, indexes=indexes.shape)
    op.require(bool(((indexes >= -size) & (indexes < size)).all()), "indexes must be within the axis", size=size)
    names = names_of(indexes.ndim)
    reads = [*names[:axis], "k", *names[axis + 1 :]]
    cells = ["0" if own == 1 else name for own, name in zip(indexes.shape, names, strict=True)]
    statement = NodeStatement(op, f"k < {size}")
    text = f"+(({statement.read(indexes % size, cells, 'place')} == k ? {statement.read(tensor, reads)} : 0.0))"
    return replace(statement.result(text, indexes.shape, names, at, tensor.outer), type=tensor.type)


@operator("GridSample")
def _grid_sample(op: Operation) -> Tensor:
    """The sum over all cells of their values times what they count, which is a product of numbers of each axis."""
    tensor, grid = op.tensor(0), op.tensor(1)
    sizes, wanted, shapes = tensor.axes[2:], grid.axes[:-1], [op.shape_of(tensor), op.shape_of(grid)]
    at, outer = tensor.at, tensor.outer
    if at or (at, outer) != (grid.at, grid.outer):
        op.mixed("both inputs must have the samples on axis 0", shapes=shapes)
    fits = len(sizes) == grid.axes[-1] == len(grid.axes) - 2 > 0 and shapes[0][0] == shapes[1][0]
    op.require(fits, "there must be samples, units and spatial axes, and places of as many axes", shapes=shapes)
    mode, padding = op.get("mode", "linear").removeprefix("bi"), op.get("padding_mode", "zeros")
    is_known = mode in _WEIGHTS and padding in ("zeros", "border", "reflection")
    op.require(is_known, "mode and padding_mode must be known", mode=mode, padding_mode=padding)
    names = names_of(len(grid.axes))
    parts: list[Tensor] = []
    for axis, size in enumerate(sizes):
        aligned, last, first = bool(op.get("align_corners", 0)), size - 1, 0
        place = f"(({{0}} + 1.0) / 2.0 * {last})" if aligned else f"((({{0}} + 1.0) * {size} - 1.0) / 2.0)"
        if padding == "reflection":
            low, span = (0.0, max(last, 1)) if aligned else (-0.5, size)
            turns = f"(({place} - ({low})) / {2 * span})"
            place = f"({low} + {span}*(1.0 - abs(2.0*({turns} - floor({turns})) - 1.0)))"
        if mode == "cubic" and padding != "zeros":
            how = "edge" if padding == "border" else "reflect" if aligned else "symmetric"
            around = np.pad(np.arange(size), _CUBIC_REACH, how)  # type: ignore[call-overload]
            tensor, first = taken(op, tensor, 2 + axis, around.tolist()), -_CUBIC_REACH
        if padding != "zeros":
            place = f"min(max({place}, {first + (first < 0)}), {last - first - (first < 0)})"
        long, read = tensor.axes[2 + axis], [*names[:-1], str(len(sizes) - 1 - axis)]
        statement = NodeStatement(op)
        where = place.format(statement.read(grid, read))
        places = statement.result(f"+({where})", wanted, names[:-1], at, outer)
        statement, cells = NodeStatement(op), np.arange(first, first + long, dtype=np.float32)
        term = _WEIGHTS[mode].replace("K", statement.read(cells, names[-1:], "K"))
        term = term.replace("P", statement.read(places, names[:-1]))
        parts.append(statement.result(f"+({term})", (*wanted, long), names, at, outer))
    statement = NodeStatement(op)
    terms = [statement.read(tensor, [names[0], "c", *(f"k{axis}" for axis in range(len(sizes)))])]
    terms += [statement.read(part, [*names[:-1], f"k{axis}"]) for axis, part in enumerate(parts)]
    axes, out = (wanted[0], tensor.axes[1], *wanted[1:]), [names[0], "c", *names[1:-1]]
    return statement.result(f"+({' * '.join(terms)})", axes, out, at, outer)


@operator("DFT")
def _fourier(op: Operation) -> Tensor:
    """The product with a matrix, along the axis and that of real and imaginary parts."""
    tensor = op.tensor(0)
    axis = op.axis(int(op.number("axis", 2, -2 if op.version >= 20 else 1)), tensor)
    op.axis(-1, tensor)
    inverse, onesided, parts = bool(op.get("inverse", 0)), bool(op.get("onesided", 0)), tensor.axes[-1]
    rule = "the last axis must be the real and perhaps the imaginary part, and the transform that of another one"
    fits = axis < len(tensor.axes) - 1 and parts in ((1 + inverse,) if onesided else (1, 2))
    op.require(fits, rule, shape=op.shape_of(tensor), axis=axis, onesided=onesided, inverse=inverse)
    given = tensor.axes[axis]
    length = int(op.number("dft_length", 1, 2 * (given - 1) if onesided and inverse else given))
    most = length // 2 + 1 if onesided else length
    size, results = (length, 1) if onesided and inverse else (most, 2)
    fits = length > 0 and 4 * size * given <= _MAX_ELEMENTS
    op.require(fits, f"the matrix must have 1 to {_MAX_ELEMENTS} elements", dft_length=length, size=given)
    used = min(given, most if inverse else length)
    turns = np.outer(np.arange(size), np.arange(used)) % length / length
    waves = np.exp((2j if inverse else -2j) * np.pi * turns) / (length if inverse else 1)
    if onesided and inverse:  # Each stands for its conjugate too, but for those that are their own.
        waves *= np.where(np.arange(used) * 2 % length == 0, 1, 2)
    waves = np.pad(waves, ((0, 0), (0, given - used)))
    matrix = np.array([[waves.real, -waves.imag], [waves.imag, waves.real]], np.float32)[:results, :parts]
    names = names_of(len(tensor.axes))
    reads = [*names[:axis], "t", *names[axis + 1 : -1], "p"]
    axes = (*tensor.axes[:axis], size, *tensor.axes[axis + 1 : -1], results)
    statement = NodeStatement(op)
    factors = statement.read(matrix, [names[-1], "p", names[axis], "t"], "wave"), statement.read(tensor, reads)
    return statement.result(f"+({' * '.join(factors)})", axes, names, tensor.at, tensor.outer)
