"""Operators as texts of the contraction language, for tensors with any number of axes.

An element of a tensor is named by an expression for each of ONNX's axes; :func:`cell` says where that is in the node.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

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


class NodeStatement:
    """One aggregation that is being written: :meth:`read` what it reads, then take its :meth:`result`.

    Attributes:
        bounds: constraints of indexes.
    """

    def __init__(self, op: Operation, *bounds: str, key: object = None) -> None:
        """Begin a statement of a node's; ``key`` is as of :meth:`Operation.layer`."""
        self.bounds = bounds
        self._op, self._key = op, key
        self._nodes: list[Node] = []
        self._maps: list[Map] = []
        self._trained: dict[str, Array] = {}
        self._given: dict[str, Array] = {}

    def read(self, value: Tensor | Array, indexes: Sequence[str], name: str = "", *, trained: bool = False) -> str:
        """Return the element of a value at indexes, one for each axis; an array becomes a parameter of that name.

        Axes of an array where the index is 0 have one element, and are left out. What is not ``trained`` never is.
        """
        if isinstance(value, Tensor):
            tensor = readable(self._op, value)
            self._nodes.append(tensor.node)
            self._maps.append(cell(tensor.axes, tensor.node.shape.dimensions, indexes))
            return f"I{len(self._nodes) - 1}[n, {self._maps[-1]}]"
        kept = [axis for axis, index in enumerate(indexes) if index != "0"]
        name = name or f"value{len(self._trained) + len(self._given)}"
        (self._trained if trained else self._given)[name] = value.reshape([value.shape[axis] for axis in kept])
        return f"{name}[{_listed([indexes[axis] for axis in kept])}]"

    def result(self, text: str, axes: Sequence[int], out: Sequence[str], at: int | None, outer: int = 1) -> Tensor:
        """Return the tensor of an aggregation of a term, ``+(...)`` or the like, of what was read.

        Args:
            text: the aggregation.
            axes: the sizes of the result's axes.
            out: an index for each of them.
            at: the axis of the samples.
            outer: see Tensor.
        """
        return Tensor(self.node(text, axes, out, node_sizes(axes, at)), tuple(axes), at, outer=outer)

    def node(self, text: str, axes: Sequence[int], out: Sequence[str], sizes: Sequence[int]) -> Node:
        """Return the same as a node of ``sizes``, which the axes are parts of."""
        rule = f"a tensor must have at most {MAX_ELEMENTS:,} values a sample"
        self._op.require(math.prod(sizes) <= MAX_ELEMENTS, rule, shape=tuple(axes))
        written = cell(axes, sizes, out)
        heads = [f"I{place}[N, {_listed(node.shape.dimensions)}]" for place, node in enumerate(self._nodes)]
        heads += [f"{name}[{_listed(values.shape)}]" for name, values in {**self._trained, **self._given}.items()]
        body = f"O[n, {written} : N, {_listed(sizes)}] = {text}{_limits(self.bounds, written, *self._maps)};"
        whole = f"function ({', '.join(heads)}) -> (O) {{ {body} }}"
        return contraction(self._op, whole, *self._nodes, trained=self._trained, given=self._given, key=self._key)


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
    ends = {(len(tensor.axes) - tensor.at, tensor.outer) for tensor in tensors if tensor.at is not None}
    if len(ends) > 1:
        op.mixed("tensors must have the samples on the same axis", shapes=shapes)
    end, outer = ends.pop() if ends else (0, 1)
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
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    padded = [(1,) * (rank - array.ndim) + array.shape for array in arrays]
    is_vector = parameter is not None and [max(shape) for shape in padded] == [array.size for array in arrays]
    first = next(iter(own_axes(axes, at)), None)
    units = 1 if first is None else axes[first]
    of_units = is_vector and len(arrays) == 1 and first is not None and padded[0][first] == units
    node = None
    if all(tensor.axes == axes for tensor in tensors) and (not arrays or of_units):
        node = _step(op, text, operands, units, str(parameter), key)
    if node is None:
        statement, names, terms = NodeStatement(op, key=key), names_of(rank), []
        for operand, own_sizes in zip(operands, sizes, strict=True):
            if isinstance(operand, str):
                terms.append(operand)
                continue
            own_names = names[rank - len(own_sizes) :]
            cells = ["0" if size == 1 else name for size, name in zip(own_sizes, own_names, strict=True)]
            trained = is_vector and not isinstance(operand, Tensor) and operand is arrays[0]
            terms.append(statement.read(operand, cells, str(parameter) if trained else "", trained=trained))
        node = statement.node(f"+({text.format(*terms)})", axes, names, node_sizes(axes, at))
    return Tensor(node, axes, at, np.dtype(np.bool_ if boolean else np.float32), outer)


def _step(
    op: Operation, text: str, operands: Sequence[Tensor | Array | str], units: int, parameter: str, key: object
) -> Node | None:
    """An expression that is the same at all places, whatever the node's shape is: a layer before it may do it.

    None where nodes have no such units.
    """
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    vectors = {parameter: arrays[0].ravel()} if arrays else {}
    same = len({tensor.node.shape for tensor in tensors}) == 1
    same = same and (not vectors or tensors[0].node.shape.units == units)
    nodes = [tensor.node if same else op.shaped(tensor) for tensor in tensors]
    if vectors and nodes[0].shape.units != units:
        return None
    distinct = list(dict.fromkeys(nodes))
    reads = iter([f"I{distinct.index(node)}[n, c, ...]" for node in nodes])
    terms = [
        operand if isinstance(operand, str) else next(reads) if isinstance(operand, Tensor) else f"{parameter}[c]"
        for operand in operands
    ]
    heads = [f"I{place}[N, C, ...]" for place in range(len(distinct))] + [f"{name}[C]" for name in vectors]
    whole = f"function ({', '.join(heads)}) -> (O) {{ O[n, c, ...] = +({text.format(*terms)}); }}"
    return contraction(op, whole, *distinct, trained=vectors, key=key)


def applied(op: Operation, tensor: Tensor, axis: int, matrix: Array) -> Tensor:
    """The product of a matrix (new size, size) with the vectors along an axis."""
    names = names_of(len(tensor.axes))
    axes = (*tensor.axes[:axis], len(matrix), *tensor.axes[axis + 1 :])
    reads = [*names[:axis], "k", *names[axis + 1 :]]
    statement = NodeStatement(op)
    text = f"+({statement.read(matrix, [names[axis], 'k'], 'value')} * {statement.read(tensor, reads)})"
    return statement.result(text, axes, names, tensor.at, tensor.outer)


def runs(indexes: Sequence[int]) -> list[tuple[int, int, int]]:
    """The indexes as runs that have one step each: (first, step, count). The first is -1 in a run of zeros."""
    if isinstance(indexes, range):
        return [(indexes.start, indexes.step, len(indexes))]
    found: list[tuple[int, int, int]] = []
    place = 0
    while place < len(indexes):
        first, end = indexes[place], place + 1
        # Zeros go with nothing else.
        step = indexes[end] - first if end < len(indexes) and first >= 0 else 0
        while end < len(indexes) and indexes[end] - indexes[end - 1] == step and (indexes[end] >= 0 or first < 0):
            end += 1
        found.append((first, step if end > place + 1 else 0, end - place))
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
    tensor, pieces = readable(op, tensor), runs(indexes)
    start, step, count = pieces[0]
    is_slice = len(pieces) == 1 and start >= 0 and (step > 0 or count == 1)
    if is_slice and tensor.node.shape.dimensions == tensor.sizes:
        part = (start, start + step * (count - 1) + 1, *((step,) if step > 1 else ()))
        before = own_axes(tensor.axes, tensor.at).index(axis)
        node = op.layer(layers.Slice((*(None,) * before, part)), tensor.node)
        return replace(tensor, node=node, axes=axes)
    if len(pieces) > _MAX_RUNS:
        matrix = np.zeros((len(indexes), size), np.float32)
        for row, index in enumerate(indexes):
            matrix[row, index] = index >= 0
        return replace(applied(op, tensor, axis, matrix), type=tensor.type)
    name = names_of(axis + 1)[axis]
    places = [f"{start} + {step}*{name}" if step else str(start) for start, step, _ in pieces]
    counts = [count for *_, count in pieces]
    return _assembled(op, [(tensor if place != "-1" else None, place) for place in places], counts, axis, tensor)


def joined(op: Operation, tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors one after the other along an axis."""
    tensors = [readable(op, tensor) for tensor in tensors]
    counts, name = [tensor.axes[axis] for tensor in tensors], names_of(axis + 1)[axis]
    parts = [(tensor, name if count > 1 else "0") for tensor, count in zip(tensors, counts, strict=True)]
    return _assembled(op, parts, counts, axis, tensors[0])


def _assembled(
    op: Operation, parts: Sequence[tuple[Tensor | None, str]], counts: Sequence[int], axis: int, like: Tensor
) -> Tensor:
    """A tensor with so many elements of each part along an axis, one part after the other.

    A part is a tensor and its index along the axis; None stands for zeros. All else is as in the tensor ``like``.
    """
    axes = (*like.axes[:axis], sum(counts), *like.axes[axis + 1 :])
    names, target = names_of(len(axes)), node_sizes(axes, like.at)
    nodes = list(dict.fromkeys(tensor.node for tensor, _ in parts if tensor))
    statements: list[str] = []
    for (tensor, index), count, first in zip(parts, counts, accumulate(counts, initial=0), strict=False):
        if tensor is None:
            continue
        written = cell(axes, target, [*names[:axis], f"{first} + {names[axis]}", *names[axis + 1 :]])
        read = cell(tensor.axes, tensor.node.shape.dimensions, [*names[:axis], index, *names[axis + 1 :]])
        limits = _limits([f"{names[axis]} < {count}"], written, read)
        whole, source = f"T{len(statements)}[n, {written} : N, {_listed(target)}]", nodes.index(tensor.node)
        statements.append(f"{whole} = +(I{source}[n, {read}]){limits};")
    heads = ", ".join(f"I{place}[N, {_listed(node.shape.dimensions)}]" for place, node in enumerate(nodes))
    total = " + ".join(f"T{place}" for place in range(len(statements)))
    text = f"function ({heads}) -> (O) {{ {' '.join(statements)} O = {total}; }}"
    return replace(like, node=contraction(op, text, *nodes), axes=axes)
