"""Statements of the contraction language as nodes of ONNX.

So are element-wise functions, sums, maxima and products of matrices, with inputs in any order of axes and of parts of
them, places as values, and what is padded with zeros. An axis that holds several, as digits of a number (``16*a + b``),
is cut into these; where another one moves with several indexes, as windows do (``2*y + k - 1``), it is gathered into
an axis for each, with zeros around it for places beyond its edges. A mask leaves out what constraints exclude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt

from blobnet.contraction.form import (
    NEUTRAL,
    Affine,
    Apply,
    Expression,
    Number,
    Position,
    Program,
    Read,
    Statement,
    Tensor,
    rewritten,
)
from blobnet.contraction.functions import COMPARISONS
from blobnet.errors import OptionError
from blobnet.onnx.place import Place

#: The operators that have not the name of their function.
_OPERATORS = {"subtract": "Sub", "multiply": "Mul", "divide": "Div", "negate": "Neg", "detach": "Identity"}
_AGGREGATIONS = {"+": "ReduceSum", "*": "ReduceProd", ">": "ReduceMax", "<": "ReduceMin"}
#: ONNX's numbers for types.
_FLOAT, _BOOL = 1, 9


def add_statements(place: Place, program: Program, inputs: tuple[str, ...]) -> str:
    """Adds the nodes of a program; ``inputs`` are the names of the layer's inputs among its own.

    Raises:
        OptionError: a statement has no such form.
    """
    values = dict(zip(inputs, place.inputs, strict=True))
    values |= {tensor.name: place.parameter(tensor.name) for tensor in program.inputs if tensor.name not in values}
    for statement in program.statements:
        values[statement.output.tensor.name] = _Nodes(place, statement, values).result()
    return values[program.outputs[0].name]


class _Nodes:
    """The nodes of one statement; its indexes are axes of all values on the way."""

    def __init__(self, place: Place, statement: Statement, values: dict[str, str]) -> None:
        self.place, self.values, self.output = place, values, statement.output
        self.statement = replace(
            statement,
            output=_cut(statement.output, statement.box),
            expression=rewritten(
                statement.expression, lambda node: _cut(node, statement.box) if isinstance(node, Read) else None
            ),
        )
        #: The shapes that tensors have.
        self.shapes = {read.tensor.name: read.tensor.shape for read in statement.reads}
        self.indexes = [name for name, _ in statement.ranges]

    def result(self) -> str:
        statement, reduced = self.statement, self.statement.reduction_indexes
        seen = {index for read in statement.reads for index in self._axes(read)}
        still = {name for name, span in statement.ranges if len(span) == 1}
        rule = "each index stands in something that is read"
        self._require(seen | still == set(self.indexes) and not statement.accumulates, rule)
        target = self._axes(statement.output)
        is_single = all(len(form.terms) <= 1 for form in statement.output.map)
        self._require(is_single, "each axis that is written moves with one index")
        factors = _factors(statement.expression)
        is_product = bool(factors) and bool(reduced) and statement.aggregation == "+" and seen == set(self.indexes)
        # What lies beyond an edge is read as 0.
        if is_product and {edge for read in factors for edge in read.edges}.issuperset(statement.constraints):
            return self._placed(self._product(factors, target))
        value = self._value(statement.expression)
        for constraint in statement.constraints:
            numbers = self._numbers(constraint.form)
            holds = self.place.constant((numbers >= 0) & (numbers < constraint.size))
            value = self.place.node("Where", holds, value, self.place.constant(NEUTRAL[statement.aggregation]))
        if reduced:
            axes = self.place.constant([self.indexes.index(name) for name in reduced])
            value = self.place.node(_AGGREGATIONS[statement.aggregation], value, axes, keepdims=0)
        left = [name for name in self.indexes if name not in reduced]
        return self._placed(self._transposed(value, left, target))

    def _product(self, factors: list[Read], target: list[str]) -> str:
        letters = dict(zip(self.indexes, ascii_lowercase, strict=False))
        terms = ["".join(letters[index] for index in self._axes(read)) for read in factors]
        equation = f"{','.join(terms)}->{''.join(letters[index] for index in target)}"
        return self.place.node("Einsum", *map(self._part, factors), equation=equation)

    def _value(self, expression: Expression) -> str:
        place = self.place
        if isinstance(expression, Number):
            return place.constant(float(expression.value))
        if isinstance(expression, Read):
            axes = self._axes(expression)
            value = self._transposed(self._part(expression), axes, sorted(axes, key=self.indexes.index))
            missing = [number for number, index in enumerate(self.indexes) if index not in axes]
            return place.node("Unsqueeze", value, place.constant(missing)) if missing else value
        if isinstance(expression, Position):
            return place.constant(self._numbers(expression.form).astype(np.float32))
        assert isinstance(expression, Apply)
        name, values = expression.function, list(map(self._value, expression.arguments))
        if name == "not_equal":
            return place.node("Cast", place.node("Not", place.node("Equal", *values)), to=_FLOAT)
        if name == "select":
            return place.node("Where", place.node("Cast", values[0], to=_BOOL), *values[1:])
        if name == "expm1":
            return place.node("Sub", place.node("Exp", *values), place.constant(1.0))
        if name == "log1p":
            return place.node("Log", place.node("Add", *values, place.constant(1.0)))
        # "less_equal" is LessOrEqual.
        value = place.node(_OPERATORS.get(name, name.title().replace("_", "Or")), *values)
        return place.node("Cast", value, to=_FLOAT) if name in COMPARISONS else value

    def _axes(self, read: Read) -> list[str]:
        """The indexes that a tensor's axes move with; those that stand still have none."""
        axes = [index for form in read.map for index in form.indexes]
        self._require(len(set(axes)) == len(axes), "each index moves one axis of what is read or written")
        return axes

    def _numbers(self, form: Affine) -> npt.NDArray[np.int64]:
        """The values of a form, with an axis for each index, of size 1 where it does not move."""
        total = np.full((1,) * len(self.indexes), form.offset)
        for name, factor in form.terms:
            span = self.statement.box[name]
            sizes = [len(span) if name == index else 1 for index in self.indexes]
            total = total + factor * np.arange(span.start, span.stop).reshape(sizes)
        return total

    def _part(self, read: Read) -> str:
        """Return the part of a tensor that is read, with an axis for each index."""
        place, box = self.place, self.statement.box
        value = self._shaped(self.values[read.tensor.name], self.shapes[read.tensor.name], read.tensor.shape)
        parts, before, after = {}, [0] * len(read.map), [0] * len(read.map)
        for axis, (form, size) in enumerate(zip(read.map, read.tensor.shape, strict=True)):
            span = form.range(box)
            step = (*_factor(form), 1)[0]
            if len(form.terms) > 1:
                before[axis], after[axis] = max(0, -span.start), max(0, span.stop - size)
            elif len(span) < size or step != 1:
                # What ends before the first element has no place for its end.
                parts[axis] = (
                    (span.start, span.stop, step) if step > 0 else (span.stop - 1, span.start - 1 - size, step)
                )
        if parts:
            numbers = [*(list(column) for column in zip(*parts.values(), strict=True))]
            value = place.node("Slice", value, *map(place.constant, (*numbers[:2], list(parts), numbers[2])))
        value = place.node("Pad", value, place.constant(before + after)) if any(before + after) else value
        for axis, form in reversed([*enumerate(read.map)]):
            if len(form.terms) > 1:
                moves = [factor * np.arange(box[name].start, box[name].stop) for name, factor in form.terms]
                cells = sum(np.ix_(*moves), form.offset + before[axis])
                value = place.node("Gather", value, place.constant(cells), axis=axis)
        widths = [max(1, len(form.terms)) for form in read.map]
        fixed = [sum(widths[:axis]) for axis, form in enumerate(read.map) if not form.terms]
        return place.node("Squeeze", value, place.constant(fixed)) if fixed else value

    def _placed(self, value: str) -> str:
        """A result where the output has it, with zeros around it."""
        place, output, box = self.place, self.statement.output, self.statement.box
        fixed = [axis for axis, form in enumerate(output.map) if not form.terms]
        value = place.node("Unsqueeze", value, place.constant(fixed)) if fixed else value
        spans = [form.range(box) for form in output.map]
        before = [span.start for span in spans]
        after = [size - span.stop for span, size in zip(spans, output.tensor.shape, strict=True)]
        rule = "a result lies side by side, with zeros alone around it"
        is_dense = all(factor == 1 for form in output.map for factor in _factor(form))
        self._require(is_dense and (self.statement.aggregation in "+=" or not any(before + after)), rule)
        value = place.node("Pad", value, place.constant(before + after)) if any(before + after) else value
        return self._shaped(value, output.tensor.shape, self.output.tensor.shape)

    def _shaped(self, value: str, shape: Sequence[int], wanted: Sequence[int]) -> str:
        """A value in another shape, whose first axis may be that of the samples, and stays then."""
        if tuple(shape) == tuple(wanted):
            return value
        return self.place.reshaped(
            value, *(0 if (axis, size) == (0, shape[0]) else size for axis, size in enumerate(wanted))
        )

    def _transposed(self, value: str, axes: list[str], wanted: list[str]) -> str:
        return value if axes == wanted else self.place.node("Transpose", value, perm=[*map(axes.index, wanted)])

    def _require(self, condition: bool, rule: str) -> None:
        if not condition:
            hint = "blobnet.onnx.forms.FORMS takes a function for a kind of layer of your own."
            received = {"statement": str(self.statement)}
            rule = f"the layer must have a form in ONNX, which contractions have where {rule}"
            raise OptionError(self.place.layer.subject, rule, hint=hint, **received)


def _cut(read: Read, box: Mapping[str, range]) -> Read:
    """A read whose axes that hold several are cut into these, each of which moves with one index, where they can be."""
    sizes: list[int] = []
    forms: list[Affine] = []
    for form, size in zip(read.map, read.tensor.shape, strict=True):
        digits = _digits(form, size, box) if len(form.terms) > 1 else [(form, size)]
        forms += [own for own, _ in digits]
        sizes += [own for _, own in digits]
    return Read(Tensor(read.tensor.name, tuple(sizes)), tuple(forms))


def _digits(form: Affine, size: int, box: Mapping[str, range]) -> list[tuple[Affine, int]]:
    """The digits of a number, in a system of several bases, with their sizes; the number itself if it has none."""
    terms = sorted(form.terms, key=lambda term: -term[1])
    bases, offset, found = [size, *(factor for _, factor in terms)], form.offset, []
    for (name, factor), base in zip(terms, bases, strict=False):
        if factor <= 0 or base % factor:
            return [(form, size)]
        own = Affine.of({name: 1}, offset // factor)
        offset %= factor
        span = own.range(box)
        if span.start < 0 or span.stop > base // factor:
            return [(form, size)]
        found.append((own, base // factor))
    return [*found, (Affine((), offset), bases[-1])] if bases[-1] > 1 else found


def _factor(form: Affine) -> tuple[int, ...]:
    """Return how far a form moves with its index, if it has one."""
    return tuple(factor for _, factor in form.terms)


def _factors(expression: Expression) -> list[Read]:
    """Return the factors of a product of reads; nothing if it is something else."""
    if isinstance(expression, Read):
        return [expression]
    if not isinstance(expression, Apply) or expression.function != "multiply":
        return []
    parts = [_factors(argument) for argument in expression.arguments]
    return [read for part in parts for read in part] if all(parts) else []
