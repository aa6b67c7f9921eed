"""Operators as texts of the contraction language, for tensors with any number of axes.

An element of a tensor is named by an expression for each of ONNX's axes; :func:`cell` says where that is in the node.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blobnet import layers
from blobnet.layers import Node
from blobnet.layers.initializers import GIVEN
from blobnet.onnx.operation import HUGE, Operation
from blobnet.onnx.values import MAX_ELEMENTS, Array, Tensor, Value, node_sizes, own_axes, parts_of

#: More runs of indexes than this are taken by a matrix.
_MAX_RUNS = 12


@dataclass(frozen=True)
class Map:
    """The place of an element in a node: expressions for its axes, and the bounds of the indexes in them."""

    places: tuple[str, ...]
    bounds: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.places)


def cell(axes: Sequence[int], sizes: Sequence[int], indexes: Sequence[str]) -> Map:
    """Return the place of a tensor's element at ``indexes`` in a node of ``sizes`` that its axes are parts of."""
    parts = parts_of(axes, sizes)
    assert parts is not None
    places, bounds = [], []
    for part in parts:
        long = [axis for axis in part if axes[axis] > 1]
        terms = []
        for number, axis in enumerate(long):
            stride = math.prod(axes[place] for place in long[number + 1 :])
            terms.append(f"{stride}*({indexes[axis]})" if stride > 1 else indexes[axis])
        if len(long) > 1:
            bounds += [f"{indexes[axis]} < {axes[axis]}" for axis in long if not indexes[axis].isdecimal()]
        places.append(" + ".join(terms) or "0")
    return Map(tuple(places), tuple(bounds))


def names_of(count: int) -> list[str]:
    """Names of indexes for axes."""
    return [f"i{letter}" for letter in string.ascii_lowercase[:count]]


def readable(op: Operation, tensor: Tensor) -> Tensor:
    """The tensor, with a node whose sizes its axes are parts of."""
    if parts_of(tensor.axes, tensor.node.shape.dimensions) is None:
        return replace(tensor, node=op.shaped(tensor))
    return tensor


def contraction(
    op: Operation,
    text: str,
    *nodes: Node,
    trained: Mapping[str, Array] | None = None,
    given: Mapping[str, Array] | None = None,
    key: object = None,
) -> Node:
    """A Contraction layer with parameters that are trained, and others that are not."""
    trained, given = trained or {}, given or {}
    layer = layers.Contraction(text, initializers=dict.fromkeys(given, GIVEN))
    return op.layer(layer, *nodes, weights={**trained, **given} or None, key=key)


def gathered(
    op: Operation,
    tensors: Sequence[Tensor],
    indexes: Sequence[Sequence[str]],
    axes: Sequence[int],
    out: Sequence[str],
    term: str,
    *,
    at: int | None,
    outer: int = 1,
    aggregation: str = "+",
    bounds: Sequence[str] = (),
    trained: Mapping[str, Array] | None = None,
    given: Mapping[str, Array] | None = None,
    key: object = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """One aggregation of a term, in which {0}, {1}, ... are elements of tensors, at ``indexes`` of each.

    Args:
        op: whose.
        tensors: what is read.
        indexes: an expression for each axis of each tensor.
        axes: the sizes of the result's axes.
        out: an index for each of them.
        term: with the names of parameters as they are.
        at: the result's axis of the samples.
        outer: see Tensor.
        aggregation: of the language.
        bounds: constraints.
        trained: parameters with their values.
        given: the same of those that are never trained.
        key: see Operation.layer.
        sizes: of the node, that the axes are parts of.
    """
    tensors = [readable(op, tensor) for tensor in tensors]
    target = node_sizes(axes, at) if sizes is None else sizes
    rule = f"a tensor must have at most {MAX_ELEMENTS:,} values a sample"
    op.require(math.prod(target) <= MAX_ELEMENTS, rule, shape=tuple(axes))
    written = cell(axes, target, out)
    maps = [cell(tensor.axes, tensor.node.shape.dimensions, own) for tensor, own in zip(tensors, indexes, strict=True)]
    heads = [f"I{place}[N, {_listed(tensor.node.shape.dimensions)}]" for place, tensor in enumerate(tensors)]
    heads += [f"{name}[{_listed(values.shape)}]" for name, values in {**(trained or {}), **(given or {})}.items()]
    reads = [f"I{place}[n, {own}]" for place, own in enumerate(maps)]
    limits = _limits(bounds, written, *maps)
    text = f"function ({', '.join(heads)}) -> (O) {{ O[n, {written} : N, {_listed(target)}]"
    text += f" = {aggregation}({term.format(*reads)}){limits}; }}"
    node = contraction(op, text, *(tensor.node for tensor in tensors), trained=trained, given=given, key=key)
    return Tensor(node, tuple(axes), at, outer=outer)


def _limits(bounds: Sequence[str], *maps: Map) -> str:
    """The constraints of a statement, each once."""
    found = dict.fromkeys([*bounds, *(bound for own in maps for bound in own.bounds)])
    return "".join(f", {bound}" for bound in found)


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))


def number_text(value: float) -> str:
    """A number as the language writes it."""
    value = float(np.float32(value))
    if math.isinf(value):
        # The language has no infinity; the largest number does wherever values are compared with it.
        value = math.copysign(HUGE, value)
    return f"({value!r})" if value < 0 or math.copysign(1, value) < 0 else repr(value)


def elementwise(
    op: Operation, text: str, *values: Value, parameter: str | None = None, boolean: bool = False
) -> Tensor:
    """An expression of values that go together as in NumPy, in which {0}, {1}, ... stand for them.

    Numbers are written out, other arrays are parameters that are not trained; ``parameter`` is the name of a vector
    that is.
    """
    shapes = [op.shape_of(value) for value in values]
    rank = max(map(len, shapes))
    # Shapes go together from the end, and so must the samples.
    tensors = [value for value in values if isinstance(value, Tensor)]
    behind = {(len(tensor.axes) - tensor.at, tensor.outer) for tensor in tensors if tensor.at is not None}
    if len(behind) > 1:
        op.mixed("tensors must have the samples on the same axis", shapes=shapes)
    end, outer = behind.pop() if behind else (0, 1)
    at = rank - end if end else None
    operands: list[Tensor | Array | str] = []
    for value in values:
        if isinstance(value, Tensor):
            operands.append(value)
        elif value.size == 1:
            operands.append(number_text(value.reshape(()).item()))
        else:
            own = None if at is None else value.ndim - (rank - at)
            operands.append(op.array_of_sample(value, own, outer) if own is not None and own >= 0 else value)
    sizes = [
        () if isinstance(item, str) else item.axes if isinstance(item, Tensor) else item.shape for item in operands
    ]
    try:
        axes = np.broadcast_shapes(*sizes)
    except ValueError:
        op.require(False, "the inputs' shapes must go together", shapes=shapes)
    axes = (1,) * (rank - len(axes)) + axes
    key = op.key_of(*(value for value in values if not isinstance(value, Tensor) and value.size > 1))
    found = _expression(op, text, operands, axes, at, parameter, key)
    return Tensor(found, axes, at, np.dtype(np.bool_ if boolean else np.float32), outer)


def _expression(
    op: Operation,
    text: str,
    operands: Sequence[Tensor | Array | str],
    axes: tuple[int, ...],
    at: int | None,
    parameter: str | None,
    key: object,
) -> Node:
    """The node of an expression of operands that are repeated to ``axes``."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    padded = [(1,) * (len(axes) - array.ndim) + array.shape for array in arrays]
    is_vector = parameter is not None and [max(shape) for shape in padded] == [array.size for array in arrays]
    first = next(iter(own_axes(axes, at)), None)
    units = 1 if first is None else axes[first]
    of_units = is_vector and len(arrays) == 1 and first is not None and padded[0][first] == units
    if all(tensor.axes == axes for tensor in tensors) and (not arrays or of_units):
        # The same at all places, whatever the node's shape is: a step that a layer before it may do.
        same = len({tensor.node.shape for tensor in tensors}) == 1
        same = same and (not arrays or tensors[0].node.shape.units == units)
        nodes = [tensor.node if same else op.shaped(tensor) for tensor in tensors]
        if not arrays or nodes[0].shape.units == units:
            distinct = list(dict.fromkeys(nodes))
            reads = iter([f"I{distinct.index(node)}[n, c, ...]" for node in nodes])
            whole_terms = [_read(operand, reads, f"{parameter}[c]") for operand in operands]
            heads = [f"I{place}[N, C, ...]" for place in range(len(distinct))] + [f"{parameter}[C]"] * len(arrays)
            whole_text = f"function ({', '.join(heads)}) -> (O) {{ O[n, c, ...] = +({text.format(*whole_terms)}); }}"
            vectors = {str(parameter): array.ravel() for array in arrays}
            return contraction(op, whole_text, *distinct, trained=vectors, key=key)
    names = names_of(len(axes))
    terms: list[str] = []
    indexes: list[Sequence[str]] = []
    parameters: dict[str, Array] = {}
    for operand in operands:
        if isinstance(operand, str):
            terms.append(operand)
            continue
        own = operand.axes if isinstance(operand, Tensor) else operand.shape
        cells = ["0" if size == 1 else name for size, name in zip(own, names[len(names) - len(own) :], strict=True)]
        if isinstance(operand, Tensor):
            terms.append(f"{{{len(indexes)}}}")
            indexes.append(cells)
        else:
            name = parameter if is_vector and not parameters else f"value{len(parameters)}"
            parameters[str(name)] = operand.reshape([size for size in own if size > 1])
            terms.append(f"{name}[{', '.join(cell for cell in cells if cell != '0')}]")
    trained = {name: values for name, values in parameters.items() if name == parameter}
    given = {name: values for name, values in parameters.items() if name != parameter}
    whole = text.format(*terms)
    return gathered(op, tensors, indexes, axes, names, whole, at=at, trained=trained, given=given, key=key).node


def _read(operand: Tensor | Array | str, reads: Iterator[str], vector: str) -> str:
    if isinstance(operand, str):
        return operand
    return next(reads) if isinstance(operand, Tensor) else vector


def applied(op: Operation, tensor: Tensor, axis: int, matrix: Array) -> Tensor:
    """The product of a matrix (new size, size) with the vectors along an axis."""
    names = names_of(len(tensor.axes))
    axes = (*tensor.axes[:axis], len(matrix), *tensor.axes[axis + 1 :])
    reads = [*names[:axis], "k", *names[axis + 1 :]]
    term = f"value[{names[axis]}, k] * {{0}}"
    return gathered(op, [tensor], [reads], axes, names, term, at=tensor.at, outer=tensor.outer, given={"value": matrix})


def runs(indexes: Sequence[int]) -> list[range | tuple[int, int]]:
    """The indexes as runs that have one step each; (index, times) where one is repeated, or stands for zeros."""
    found: list[range | tuple[int, int]] = []
    place = 0
    while place < len(indexes):
        end = place + 1
        step = indexes[end] - indexes[place] if end < len(indexes) else 1
        # What stands for zeros goes with nothing else.
        step = 0 if indexes[place] < 0 else step
        while end < len(indexes) and indexes[end] - indexes[end - 1] == step and (indexes[end] >= 0 or step == 0):
            end += 1
        if step == 0 or end == place + 1:
            found.append((indexes[place], end - place))
        else:
            found.append(range(indexes[place], indexes[place] + step * (end - place), step))
        place = end
    return found


def taken(op: Operation, tensor: Tensor, axis: int, indexes: Sequence[int]) -> Tensor:
    """The elements at ``indexes`` along an axis; -1 stands for a 0."""
    size = tensor.axes[axis]
    rule = "indexes must be within the axis, and there must be some"
    # Of a range the ends say all.
    ends = indexes[:: max(1, len(indexes) - 1)] if isinstance(indexes, range) else indexes
    op.require(len(indexes) > 0 and all(-1 <= index < size for index in ends), rule, size=size)
    if indexes == range(size) or (not isinstance(indexes, range) and list(indexes) == list(range(size))):
        return tensor
    axes = (*tensor.axes[:axis], len(indexes), *tensor.axes[axis + 1 :])
    tensor = readable(op, tensor)
    pieces = [indexes] if isinstance(indexes, range) else runs(indexes)
    sizes = tensor.node.shape.dimensions
    only = pieces[0] if isinstance(pieces[0], range) else range(pieces[0][0], pieces[0][0] + (pieces[0][1] == 1))
    if len(pieces) == 1 and len(only) and only.step > 0 and only.start >= 0 and sizes == tensor.sizes:
        part = (only.start, only.stop, only.step) if only.step > 1 else (only.start, only.start + len(only))
        before = own_axes(tensor.axes, tensor.at).index(axis)
        node = op.layer(layers.Slice((*(None,) * before, part)), tensor.node)
        return replace(tensor, node=node, axes=axes)
    if len(pieces) > _MAX_RUNS:
        matrix = np.zeros((len(indexes), size), np.float32)
        for row, index in enumerate(indexes):
            matrix[row, index] = index >= 0
        return replace(applied(op, tensor, axis, matrix), type=tensor.type)
    names, target = names_of(len(axes)), node_sizes(axes, tensor.at)
    statements: list[str] = []
    terms: list[str] = []
    first = 0
    for piece in pieces:
        count = len(piece) if isinstance(piece, range) else piece[1]
        start = piece.start if isinstance(piece, range) else piece[0]
        if start >= 0:
            own = f"{first} + {names[axis]}"
            step = piece.step if isinstance(piece, range) else 0
            read = f"{start} + {step}*{names[axis]}" if step else str(start)
            written = cell(axes, target, [*names[:axis], own, *names[axis + 1 :]])
            reads = cell(tensor.axes, sizes, [*names[:axis], read, *names[axis + 1 :]])
            limits = _limits([f"{names[axis]} < {count}"], written, reads)
            terms.append(f"T{len(terms)}")
            statements.append(f"{terms[-1]}[n, {written} : N, {_listed(target)}] = +(I[n, {reads}]){limits};")
        first += count
    text = f"function (I[N, {_listed(sizes)}]) -> (O) {{ {' '.join(statements)} O = {' + '.join(terms)}; }}"
    return replace(tensor, node=contraction(op, text, tensor.node), axes=axes)


def joined(op: Operation, tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors one behind the other along an axis."""
    tensors = [readable(op, tensor) for tensor in tensors]
    first = tensors[0].axes
    axes = (*first[:axis], sum(tensor.axes[axis] for tensor in tensors), *first[axis + 1 :])
    names, target = names_of(len(axes)), node_sizes(axes, tensors[0].at)
    heads, statements, begin = [], [], 0
    for place, tensor in enumerate(tensors):
        sizes, size = tensor.node.shape.dimensions, tensor.axes[axis]
        own = f"{begin} + {names[axis]}"
        written = cell(axes, target, [*names[:axis], own, *names[axis + 1 :]])
        read = ["0" if place == axis and size == 1 else name for place, name in enumerate(names)]
        reads = cell(tensor.axes, sizes, read)
        heads.append(f"I{place}[N, {_listed(sizes)}]")
        limits = _limits([f"{names[axis]} < {size}"], written, reads)
        statements.append(f"T{place}[n, {written} : N, {_listed(target)}] = +(I{place}[n, {reads}]){limits};")
        begin += size
    total = " + ".join(f"T{place}" for place in range(len(tensors)))
    text = f"function ({', '.join(heads)}) -> (O) {{ {' '.join(statements)} O = {total}; }}"
    return replace(tensors[0], node=contraction(op, text, *(tensor.node for tensor in tensors)), axes=axes)
