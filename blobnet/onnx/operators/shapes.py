"""Operators that move values, or give them another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from blobnet import layers
from blobnet.onnx.lowering import NodeStatement, applied, elementwise, joined, names_of, taken
from blobnet.onnx.operation import HUGE, Operation, operator
from blobnet.onnx.operators.reductions import without
from blobnet.onnx.values import Array, Pieces, Tensor, Value, node_sizes, own_axes, parts_of

#: Cumulative sums are products with a matrix of so many rows at most.
_LONGEST_SUM = 4096


def reshaped(op: Operation, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The same values in another shape of ONNX."""
    before = op.shape_of(tensor)
    op.require(math.prod(shape) == math.prod(before), "the shape must hold the same values", shape=shape, input=before)
    if tensor.at is None or op.samples is None:
        return replace(tensor, axes=tuple(shape))
    # The samples are on the axis that has as many values before them: a place for them alone, if there is one.
    first = math.prod(tensor.axes[: tensor.at]) * tensor.outer
    places = {}
    for place, size in enumerate(shape):
        outer, rest = divmod(first, math.prod(shape[:place]))
        if not rest and size % (outer * op.samples) == 0:
            places[place] = outer
    if not places:
        op.mixed("the new shape must keep the samples together", input=before, shape=tuple(shape))
    at = min(places, key=lambda place: (shape[place] != op.samples, places[place] != 1))
    axes = tuple(size // op.samples if place == at else size for place, size in enumerate(shape))
    return replace(tensor, axes=axes, at=at, outer=places[at])


@operator("Reshape")
def _reshape(op: Operation) -> Tensor:
    tensor, wanted = op.tensor(0), op.numbers("shape", 1)
    before = op.shape_of(tensor)
    kept = not op.get("allowzero", 0)
    fits = all(size >= -1 for size in wanted) and wanted.count(-1) <= 1
    fits = fits and not (kept and any(size == 0 for size in wanted[len(before) :]))
    op.require(fits, "the shape must have sizes, 0 for one that stays, and -1 at most once", shape=wanted)
    sizes = [before[place] if size == 0 and kept else size for place, size in enumerate(wanted)]
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        op.require(known > 0, "the size of -1 must follow from the others", shape=wanted, input=before)
        sizes[sizes.index(-1)] = math.prod(before) // known
    return reshaped(op, tensor, sizes)


@operator("Flatten")
def _flatten(op: Operation) -> Tensor:
    tensor, shape = op.tensor(0), op.shape_of(op.value(0))
    axis = int(op.get("axis", 1))
    op.require(-len(shape) <= axis <= len(shape), "the axis must be one of the tensor's", axis=axis, input=shape)
    axis += len(shape) if axis < 0 else 0
    return reshaped(op, tensor, (math.prod(shape[:axis]), math.prod(shape[axis:])))


@operator("Squeeze")
def _squeeze(op: Operation) -> Tensor:
    tensor = op.tensor(0)
    axes = op.numbers("axes", 1)
    if axes is None:
        # Without axes, the samples are none to drop.
        axes = [axis for axis, size in enumerate(tensor.axes) if size == 1 and axis != tensor.at]
    gone = {op.axis(axis, tensor) for axis in axes}
    op.require(all(tensor.axes[axis] == 1 for axis in gone), "axes must have the size 1", axes=axes)
    return without(tensor, sorted(gone), keep=False)


@operator("Unsqueeze")
def _unsqueeze(op: Operation) -> Tensor:
    tensor, axes = op.tensor(0), op.numbers("axes", 1, ())
    rank = len(tensor.axes) + len(axes)
    new = {axis + rank if axis < 0 else axis for axis in axes}
    op.require(len(new) == len(axes) and all(0 <= axis < rank for axis in new), "axes must be new ones", axes=axes)
    old = [axis for axis in range(rank) if axis not in new]
    sizes = dict(zip(old, tensor.axes, strict=True))
    at = None if tensor.at is None else old[tensor.at]
    return replace(tensor, axes=tuple(sizes.get(axis, 1) for axis in range(rank)), at=at)


@operator("Shape")
def _shape(op: Operation) -> Array:
    shape = op.shape_of(op.value(0))
    return np.array(shape[slice(op.get("start"), op.get("end"))], np.int64)


@operator("Size")
def _size(op: Operation) -> Array:
    return np.array(math.prod(op.shape_of(op.value(0))), np.int64)


def transposed(op: Operation, tensor: Tensor, order: Sequence[int], sizes: Sequence[int] | None = None) -> Tensor:
    """The axes of a tensor in another order; ``sizes`` are those that the node should have."""
    axes = tuple(tensor.axes[axis] for axis in order)
    at = None if tensor.at is None else list(order).index(tensor.at)
    long = [axis for axis in order if tensor.axes[axis] > 1]
    if long == sorted(long):
        return replace(tensor, axes=axes, at=at)
    dimensions, own = tensor.node.shape.dimensions, own_axes(tensor.axes, tensor.at)
    if dimensions == tensor.sizes:
        node = op.layer(layers.Permute(tuple(own.index(axis) for axis in order if axis in own)), tensor.node)
        return replace(tensor, node=node, axes=axes, at=at)
    if sizes is None:
        # Planes that stay planes need no other shape afterwards.
        sizes = dimensions if parts_of(axes, dimensions) is not None else node_sizes(axes, at)
    names = names_of(len(axes))
    reads = [names[list(order).index(axis)] for axis in range(len(axes))]
    statement = NodeStatement(op)
    node = statement.node(f"+({statement.read(tensor, reads)})", axes, names, sizes)
    return replace(tensor, node=node, axes=axes, at=at)


@operator("Transpose")
def _transpose(op: Operation) -> Tensor:
    tensor, rank = op.tensor(0), len(op.shape_of(op.value(0)))
    order = op.numbers("perm", default=tuple(reversed(range(rank))))
    op.require(sorted(order) == list(range(rank)), "perm must have each axis once", perm=order, axes=rank)
    return transposed(op, tensor, order)


@operator("DepthToSpace")
def _depth_to_space(op: Operation) -> Tensor:
    node, (height, width) = op.spatial()
    block, units = int(op.get("blocksize", 0)), node.shape.units
    op.require(block > 0 and units % block**2 == 0, "blocksize^2 must divide the units", blocksize=block, units=units)
    if op.get("mode", "DCR") == "CRD":
        return op.of_samples(op.layer(layers.DepthToSpace(block), node))
    sizes = (units // block**2, height * block, width * block)
    view = Tensor(node, (1, block, block, sizes[0], height, width), 0)
    return replace(transposed(op, view, (0, 3, 4, 1, 5, 2), sizes), axes=(1, *sizes))


@operator("SpaceToDepth")
def _space_to_depth(op: Operation) -> Tensor:
    node, (height, width) = op.spatial()
    block, units = int(op.get("blocksize", 0)), node.shape.units
    fits = block > 0 and height % block == 0 and width % block == 0
    op.require(fits, "blocksize must divide height and width", blocksize=block, planes=(height, width))
    sizes = (units * block**2, height // block, width // block)
    view = Tensor(node, (1, units, sizes[1], block, sizes[2], block), 0)
    order = (0, 1, 3, 5, 2, 4) if op.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return replace(transposed(op, view, order, sizes), axes=(1, *sizes))


@operator("Concat")
def _concat(op: Operation) -> Value:
    values = [value for value in op.inputs if value is not None]
    at = next((value.at for value in values if isinstance(value, Tensor)), None)
    tensors = [op.tensor(place, at or 0) for place in range(len(values)) if 0 not in op.shape_of(values[place])]
    op.require(bool(tensors), "there must be something to join", shapes=[op.shape_of(value) for value in values])
    axis = op.axis(int(op.get("axis", 0)), tensors[0])
    if len({(tensor.at, tensor.outer) for tensor in tensors}) > 1:
        op.mixed("all inputs must have the samples on the same axis")
    others = {tensor.axes[:axis] + tensor.axes[axis + 1 :] for tensor in tensors}
    rule = "the inputs must have the same sizes along all other axes"
    op.require(len(others) == 1, rule, shapes=[op.shape_of(value) for value in values])
    if len(tensors) == 1:
        return tensors[0]
    axes = (*tensors[0].axes[:axis], sum(tensor.axes[axis] for tensor in tensors), *tensors[0].axes[axis + 1 :])
    if math.prod(axes[:axis]) == 1:
        nodes = [op.shaped(tensor, node_sizes(tensor.axes[axis:])) for tensor in tensors]
        return replace(tensors[0], node=op.layer(layers.Concat(), *nodes), axes=axes)
    return joined(op, tensors, axis)


@operator("Split")
def _split(op: Operation) -> Sequence[Value]:
    tensor = op.tensor(0)
    axis = op.axis(int(op.get("axis", 0)), tensor)
    size, count = tensor.axes[axis], len(op.outputs)
    parts = op.numbers("split", 1)
    if parts is None:
        each = -(-size // int(op.get("num_outputs", count)))
        parts = [min(each, size - first) for first in range(0, size, each)]
    op.require(len(parts) == count, "there must be an output for each part", split=parts, outputs=count)
    return _parts(op, tensor, axis, parts)


def _parts(op: Operation, tensor: Tensor, axis: int, sizes: Sequence[int]) -> list[Any]:
    """The parts of a tensor of these sizes along an axis."""
    size = tensor.axes[axis]
    op.require(sum(sizes) == size, "the parts must be all of the axis", split=sizes, size=size)
    ranges = [range(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
    return [taken(op, tensor, axis, part) if part else _nothing(op, tensor, axis) for part in ranges]


@operator("SplitToSequence")
def _split_to_sequence(op: Operation) -> Sequence[Any]:
    """Parts of so many elements, the last of what is left; or of as many each as a vector says."""
    tensor = op.tensor(0)
    axis = op.axis(int(op.get("axis", 0)), tensor)
    size = tensor.axes[axis]
    parts = op.numbers("split", 1)
    op.require(parts is not None and min(parts) > 0, "there must be the sizes of parts, of at least 1", split=parts)
    if op.array(1).ndim == 0:
        parts = [min(*parts, size - first) for first in range(0, size, *parts)]
    return [Pieces(tuple(_parts(op, tensor, axis, parts)))]


@operator("SequenceAt")
def _sequence_at(op: Operation) -> Tensor:
    (pieces, *_), (place,) = op.inputs, op.numbers("position", 1)
    is_one = isinstance(pieces, Pieces) and -len(pieces.items) <= place < len(pieces.items)
    op.require(is_one, "the place must be one of a sequence's", place=place)
    assert isinstance(pieces, Pieces)
    return pieces.items[place]


@operator("Slice")
def _slice(op: Operation) -> Value:
    tensor, shape = op.tensor(0), op.shape_of(op.value(0))
    if "starts" in op.attributes:
        starts, ends = op.numbers("starts"), op.numbers("ends")
        axes, steps = op.numbers("axes"), None
    else:
        starts, ends = op.numbers("starts", 1), op.numbers("ends", 2)
        axes, steps = op.numbers("axes", 3), op.numbers("steps", 4)
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    same = len(starts) == len(ends) == len(axes) == len(steps) and 0 not in steps
    op.require(same, "there must be a start, an end and a step that is not 0 for each axis", axes=axes, steps=steps)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        op.require(-len(shape) <= axis < len(shape), "an axis must be one of the tensor's", axis=axis, input=shape)
        if axis % len(shape) == tensor.at and (start, step) == (0, 1) and end >= 2**31 - 1:
            continue
        own = op.axis(axis, tensor)
        part = range(tensor.axes[own])[start:end:step]
        if not part:
            return _nothing(op, tensor, own)
        tensor = taken(op, tensor, own, part)
    return tensor


def _nothing(op: Operation, tensor: Tensor, axis: int) -> Array:
    """No element along an axis: all is known of that, its shape."""
    shape = op.shape_of(tensor)
    return np.zeros((*shape[:axis], 0, *shape[axis + 1 :]), np.float32)


@operator("Pad")
def _pad(op: Operation) -> Tensor:
    tensor, rank = op.tensor(0), len(op.shape_of(op.value(0)))
    pads, mode = op.numbers("pads", 1, ()), op.get("mode", "constant")
    value = float(op.number("value", 2, 0.0))
    axes = op.numbers("axes", 3) or range(rank)
    op.require(len(pads) == 2 * len(axes), "pads must be two numbers for each axis", pads=pads, axes=list(axes))
    op.require(mode in ("constant", "reflect", "edge", "wrap"), "the mode must be known", mode=mode)
    sides = {axis % rank: (pads[place], pads[len(axes) + place]) for place, axis in enumerate(axes)}
    own = {op.axis(axis, tensor): pair for axis, pair in sides.items() if pair != (0, 0)}
    units, *planes = own_axes(tensor.axes, tensor.at) or [0]
    is_zero = mode == "constant" and value == 0 and min(pads, default=0) >= 0 and units not in own
    if is_zero and own and tensor.node.shape.dimensions == tensor.sizes:
        node = op.layer(layers.Pad(tuple(own.get(axis, (0, 0)) for axis in planes)), tensor.node)
        axes = tuple(size + sum(own.get(axis, (0, 0))) for axis, size in enumerate(tensor.axes))
        return replace(tensor, node=node, axes=axes)
    mask = np.zeros(tensor.axes, np.float32)
    for axis, (before, after) in own.items():
        size = tensor.axes[axis]
        op.require(max(before, after) <= 2**24, "pads must be within memory", pads=pads)
        cells = np.arange(size)[max(0, -before) : size - max(0, -after)]
        op.require(cells.size > 0, "pads must leave something of the axis", pads=pads, size=size)
        grown = max(0, before), max(0, after)
        indexes = np.pad(cells, grown, mode, **({"constant_values": -1} if mode == "constant" else {}))
        tensor = taken(op, tensor, axis, indexes.tolist())
        if mode == "constant" and value:
            mask = np.take(mask, cells, axis)
            widths = [grown if place == axis else (0, 0) for place in range(mask.ndim)]
            mask = np.pad(mask, widths, constant_values=max(-HUGE, min(HUGE, value)))
    if mode == "constant" and value:
        return elementwise(op, "{0} + {1}", tensor, mask)
    return tensor


def _embedding(op: Operation, indexes: Tensor) -> Tensor:
    """Rows of a matrix by numbers that depend on the samples."""
    weight = op.array(0)
    count, units = weight.shape
    numbers = op.shaped(indexes, (math.prod(indexes.sizes),))
    node = op.layer(layers.Embedding(count, units), numbers, weights={"weight": weight}, key=op.key_of(weight))
    rows = op.layer(layers.Permute((1, 0)), node, part="rows")
    return Tensor(rows, (*indexes.axes, units), indexes.at, weight.dtype, indexes.outer)


@operator("Gather")
def _gather(op: Operation) -> Tensor:
    indexes = op.value(1)
    weight = op.value(0)
    is_matrix = not isinstance(weight, Tensor) and weight.ndim == 2 and not op.get("axis", 0)
    if isinstance(indexes, Tensor) and is_matrix:
        return _embedding(op, indexes)
    tensor, indexes = op.tensor(0), op.array(1)
    axis = op.axis(int(op.get("axis", 0)), tensor)
    size = tensor.axes[axis]
    places = [int(index) + size * (index < 0) for index in indexes.ravel()]
    op.require(all(0 <= place < size for place in places), "indexes must be within the axis", size=size)
    at = tensor.at if tensor.at is None or tensor.at < axis else tensor.at + indexes.ndim - 1
    axes = (*tensor.axes[:axis], *indexes.shape, *tensor.axes[axis + 1 :])
    form = _affine(np.reshape(places, indexes.shape)) if min(indexes.shape, default=1) > 1 < indexes.ndim else None
    if form is None:
        return replace(taken(op, tensor, axis, places), axes=axes, at=at)
    names, end = names_of(len(axes)), axis + indexes.ndim
    moves = (f"{step}*{name}" for step, name in zip(form[1:], names[axis:end], strict=True))
    reads = [*names[:axis], " + ".join([str(form[0]), *moves]), *names[end:]]
    statement = NodeStatement(op)
    node = statement.node(f"+({statement.read(tensor, reads)})", axes, names, node_sizes(axes, at))
    return replace(tensor, node=node, axes=axes, at=at)


@operator("GatherND")
def _gather_nd(op: Operation) -> Tensor:
    tensor = op.tensor(0)
    if isinstance(op.value(1), Tensor) or op.get("batch_dims", 0):
        op.on_host("the indexes must be known, and the same for all samples", axes=tensor.axes)
    indexes = op.array(1)
    count = indexes.shape[-1] if indexes.ndim else 0
    op.require(1 <= count <= len(tensor.axes), "indexes must be of the first axes", indexes=indexes.shape)
    if tensor.at is not None and tensor.at < count:
        op.mixed("the operator must leave the axis of the samples alone", axis=tensor.at)
    sizes, rest = tensor.axes[:count], tensor.axes[count:]
    places = [indexes[..., axis] + size * (indexes[..., axis] < 0) for axis, size in enumerate(sizes)]
    fits = all(((own >= 0) & (own < size)).all() for own, size in zip(places, sizes, strict=True))
    op.require(bool(fits), "indexes must be within the axes", sizes=sizes)
    at = None if tensor.at is None else tensor.at - count
    flat = replace(tensor, axes=(math.prod(sizes), *rest), at=None if at is None else 1 + at)
    found = taken(op, flat, 0, np.ravel_multi_index(places, sizes).ravel().tolist())
    return replace(found, axes=(*indexes.shape[:-1], *rest), at=None if at is None else indexes.ndim - 1 + at)


def _affine(places: Array) -> list[int] | None:
    """The first of indexes, and what a step along each axis adds, at all places the same; None where it is not.

    Such are windows, which overlap.
    """
    first = int(places.flat[0])
    steps = [int(np.take(places, 1, axis).flat[0]) - first for axis in range(places.ndim)]
    cells = sum(np.ix_(*(step * np.arange(size) for step, size in zip(steps, places.shape, strict=True))), first)
    return [first, *steps] if np.array_equal(places, cells) and min(steps) >= 0 else None


@operator("Expand")
def _expand(op: Operation) -> Tensor:
    tensor, wanted = op.tensor(0), op.numbers("shape", 1)
    before = op.shape_of(tensor)
    try:
        shape = np.broadcast_shapes(before, wanted)
    except ValueError:
        op.require(False, "the shapes must go together", input=before, shape=wanted)
    more = len(shape) - len(before)
    at = None if tensor.at is None else tensor.at + more
    if at is not None and shape[at] != before[at - more]:
        op.mixed("the samples' axis must stay as it is", input=before, shape=wanted)
    axes = tuple(tensor.axes[axis - more] if axis == at else size for axis, size in enumerate(shape))
    if math.prod(axes) == math.prod(tensor.axes):
        return replace(tensor, axes=axes, at=at)
    names = names_of(len(axes))
    reads = ["0" if size == 1 else name for size, name in zip(tensor.axes, names[more:], strict=True)]
    statement = NodeStatement(op)
    node = statement.node(f"+({statement.read(tensor, reads)})", axes, names, node_sizes(axes, at))
    return replace(tensor, node=node, axes=axes, at=at)


@operator("Tile")
def _tile(op: Operation) -> Tensor:
    tensor, repeats = op.tensor(0), op.numbers("repeats", 1)
    shape = op.shape_of(tensor)
    fits = len(repeats) == len(shape) and min(repeats, default=1) > 0
    op.require(fits, "there must be a number of at least 1 for each axis", repeats=repeats, input=shape)
    if tensor.at is not None and repeats[tensor.at] != 1:
        op.mixed("the samples' axis must stay as it is", repeats=repeats)
    # Each axis is two: which repetition, and which element.
    axes = [size for pair in zip(repeats, tensor.axes, strict=True) for size in pair]
    names = names_of(len(axes))
    whole = tuple(most * size for most, size in zip(repeats, tensor.axes, strict=True))
    sizes = node_sizes(whole, tensor.at)
    statement = NodeStatement(op)
    node = statement.node(f"+({statement.read(tensor, names[1::2])})", axes, names, sizes)
    return replace(tensor, node=node, axes=whole)


@operator("CumSum")
def _cumulative_sum(op: Operation) -> Tensor:
    tensor, place = op.tensor(0), op.array(1)
    op.require(place.size == 1, "the axis must be one number", axis=place.tolist())
    axis = op.axis(int(place.reshape(())), tensor)
    size = tensor.axes[axis]
    if size > _LONGEST_SUM:
        op.on_host(f"cumulative sums must be of at most {_LONGEST_SUM} values", size=size)
    matrix = np.tril(np.ones((size, size), np.float32), -int(bool(op.get("exclusive", 0))))
    found = applied(op, tensor, axis, matrix.T if op.get("reverse", 0) else matrix)
    return replace(found, type=tensor.type)
