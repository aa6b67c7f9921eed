"""The intermediate form: contractions whose sizes are known, as frozen values.

Everything after the parser reads this form and nothing else: ranges, halos, costs, derivatives, the reference, and
whatever generates code. There is one kind of statement. With ``O`` its output, ``i`` its indexes and ``e`` its
expression it says

    O[A i + a] = aggregation over the terms of e(i, X[B i + b], Y[C i + c], ...)

and its *terms* are the points of the box ``ranges`` at which every one of ``constraints`` holds. An element-wise
statement is the same with the aggregation "=": its indexes are the output's axes, so every cell has one term, and
broadcasting is a map that does not move. A :class:`Program` is a list of statements; derivatives are programs too.

What holds in every statement that :mod:`blobnet.contraction.binding`, ``derivatives`` and ``phases`` make:

* ``ranges`` is in the order in which the indexes appear (output first). This is the order of terms that ties refer to.
* At each term every read, and the write, is inside its tensor: beside the constraints that were written,
  ``constraints`` hold all of their edges ``0 <= map < size``, less what the box or another constraint implies.
* The box is as small as interval arithmetic finds it, and never empty, nor is any range.
* A cell of the output without terms gets the aggregation's neutral element (:data:`NEUTRAL`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

from blobnet.contraction.functions import FUNCTIONS

Shape = tuple[int, ...]

#: Elements, indexes and maps are 32-bit numbers on devices.
LIMIT = 2**31

#: What aggregations give for no terms at all; "=" is of element-wise statements and has one term for every cell.
NEUTRAL = {"+": 0.0, "*": 1.0, ">": -math.inf, "<": math.inf, "=": 0.0}


def unused(name: str, taken: Container[str]) -> str:
    """A name that is not taken, as near to ``name`` as can be."""
    while name in taken:
        name += "_"
    return name


def numbered(name: str, taken: Container[str]) -> str:
    """The name, or ``name_2`` and so on: the first that is not taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


@dataclass(frozen=True)
class Affine:
    """``offset`` + the sum of coefficient * index, in whole numbers.

    ``terms`` is sorted by index, each once, without coefficients of 0, so that equal forms are equal values. Made by
    :meth:`of`, :meth:`index` and arithmetic.
    """

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0

    @staticmethod
    def of(coefficients: Mapping[str, int], offset: int = 0) -> Affine:
        """The form with these coefficients."""
        return Affine(tuple(sorted((name, factor) for name, factor in coefficients.items() if factor)), offset)

    @staticmethod
    def index(name: str) -> Affine:
        """One index by itself."""
        return Affine(((name, 1),))

    @property
    def indexes(self) -> tuple[str, ...]:
        """The indexes that the form depends on."""
        return tuple(name for name, _ in self.terms)

    def coefficient(self, index: str) -> int:
        """Return the number that one step of ``index`` adds."""
        return dict(self.terms).get(index, 0)

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.offset + other)
        total = dict(self.terms)
        for name, factor in other.terms:
            total[name] = total.get(name, 0) + factor
        return Affine.of(total, self.offset + other.offset)

    def __mul__(self, factor: int) -> Affine:
        return Affine.of({name: factor * old for name, old in self.terms}, factor * self.offset)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, size: int) -> Constraint:
        """The constraint 0 <= form < size, as the language writes it."""
        return Constraint(self, size)

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + -other

    def substitute(self, forms: Mapping[str, Affine]) -> Affine:
        """The form with other forms in place of some of its indexes."""
        total = Affine((), self.offset)
        for name, factor in self.terms:
            total += forms.get(name, Affine.index(name)) * factor
        return total

    def range(self, ranges: Mapping[str, range]) -> range:
        """From the least value over a box of index ranges to one past the greatest; exact, as a box is."""
        low = high = self.offset
        for name, factor in self.terms:
            ends = factor * ranges[name].start, factor * (ranges[name].stop - 1)
            low, high = low + min(ends), high + max(ends)
        return range(low, high + 1)

    def __str__(self) -> str:
        text = "".join(
            f" {'-' if factor < 0 else '+'} {'' if abs(factor) == 1 else f'{abs(factor)}*'}{name}"
            for name, factor in self.terms
        )
        if self.offset or not text:
            text += f" {'-' if self.offset < 0 else '+'} {abs(self.offset)}"
        return text[3:] if text.startswith(" +") else f"-{text[3:]}"


@dataclass(frozen=True)
class Constraint:
    """0 <= ``form`` < ``size``."""

    form: Affine
    size: int

    def substitute(self, forms: Mapping[str, Affine]) -> Constraint:
        """The constraint with other forms in place of some of the indexes."""
        return Constraint(self.form.substitute(forms), self.size)

    def __str__(self) -> str:
        return f"{self.form} < {self.size}"


@dataclass(frozen=True)
class Tensor:
    """A named array of a known shape: an input, a result, or what stands between statements."""

    name: str
    shape: Shape

    @property
    def elements(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)

    def __call__(self, *map: Affine | int) -> Read:
        """One element; a whole number stands for the index that does not move."""
        return Read(self, tuple(Affine((), form) if isinstance(form, int) else form for form in map))


class Expression:
    """A value at one term: a :class:`Number`, :class:`Position`, :class:`Read` or :class:`Apply`.

    Operators of expressions, numbers and forms (as values) are expressions.
    """

    def walk(self) -> Iterator[Expression]:
        """The expression and everything in it, outermost and leftmost first."""
        yield self

    def __add__(self, other: Operand) -> Apply:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Apply:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Apply:
        return apply("subtract", self, other)

    def __rsub__(self, other: Operand) -> Apply:
        return apply("subtract", other, self)

    def __mul__(self, other: Operand) -> Apply:
        return apply("multiply", self, other)

    def __truediv__(self, other: Operand) -> Apply:
        return apply("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Apply:
        return apply("divide", other, self)


@dataclass(frozen=True)
class Number(Expression):
    """A constant; sizes that stand in expressions are such, too."""

    value: float

    def __str__(self) -> str:
        return repr(float(self.value)).removesuffix(".0")


@dataclass(frozen=True)
class Position(Expression):
    """An affine form of the indexes as a value: masks, and which of equal terms came first."""

    form: Affine

    def __str__(self) -> str:
        return f"({self.form})"


@dataclass(frozen=True)
class Read(Expression):
    """One element of a tensor; as a statement's ``output``, the element that is written.

    ``map`` has an affine form for every axis of the tensor.
    """

    tensor: Tensor
    map: tuple[Affine, ...]

    @property
    def edges(self) -> tuple[Constraint, ...]:
        """The constraints that the element is inside the tensor: one an axis."""
        return tuple(map(Constraint, self.map, self.tensor.shape))

    def substitute(self, forms: Mapping[str, Affine]) -> Read:
        """The element with other forms in place of some of the indexes."""
        return Read(self.tensor, tuple(form.substitute(forms) for form in self.map))

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.map))}]"


@dataclass(frozen=True)
class Apply(Expression):
    """A function of :data:`blobnet.contraction.functions.FUNCTIONS` of other expressions; operators are functions."""

    function: str
    arguments: tuple[Expression, ...]

    def walk(self) -> Iterator[Expression]:
        yield self
        for argument in self.arguments:
            yield from argument.walk()

    def __str__(self) -> str:
        symbol = FUNCTIONS[self.function].symbol
        if not symbol and self.function != "select":
            return f"{self.function}({', '.join(map(str, self.arguments))})"
        parts = [f"({part})" if _is_operator(part) else str(part) for part in self.arguments]
        if self.function == "select":
            return f"{parts[0]} ? {parts[1]} : {parts[2]}"
        return f" {symbol} ".join(parts) if len(parts) > 1 else f"{symbol}{parts[0]}"


#: What operators and functions of expressions take.
Operand = Expression | Affine | float


def apply(function: str, *arguments: Operand) -> Apply:
    """A function of :data:`blobnet.contraction.functions.FUNCTIONS`: ``apply("exp", x)``."""
    return Apply(function, tuple(map(_expression, arguments)))


def rewritten(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """The expression with what ``change`` gives in place of those parts for which it gives anything."""
    changed = change(expression)
    if changed is not None:
        return changed
    if isinstance(expression, Apply):
        return Apply(expression.function, tuple(rewritten(part, change) for part in expression.arguments))
    return expression


def _expression(operand: Operand) -> Expression:
    if isinstance(operand, Affine):
        return Position(operand)
    return operand if isinstance(operand, Expression) else Number(float(operand))


def _is_operator(expression: Expression) -> bool:
    """Return True if an expression stands in brackets as an operand."""
    if not isinstance(expression, Apply):
        return False
    return bool(FUNCTIONS[expression.function].symbol) or expression.function == "select"


@dataclass(frozen=True)
class Statement:
    """One contraction, or element-wise statement (``aggregation`` "="); see the head of this module.

    Args:
        output: the tensor that it writes, and where.
        aggregation: "+" sum, "*" product, ">" maximum, "<" minimum, "=" one term for every cell.
        expression: what a term is.
        ranges: the index ranges, all of step 1, in the order of the terms.
        constraints: what else terms must meet.
        accumulates: whether the output has values already, which count as one more term of each cell.
    """

    output: Read
    aggregation: str
    expression: Expression
    ranges: tuple[tuple[str, range], ...]
    constraints: tuple[Constraint, ...] = ()
    accumulates: bool = False

    @property
    def box(self) -> dict[str, range]:
        """The range of each index, by its name."""
        return dict(self.ranges)

    @property
    def points(self) -> int:
        """The points of the box: the terms, if there are no constraints."""
        return math.prod(len(span) for _, span in self.ranges)

    @property
    def reads(self) -> tuple[Read, ...]:
        """The different reads of the expression, in its order; a tensor may be read through several maps."""
        return tuple(dict.fromkeys(node for node in self.expression.walk() if isinstance(node, Read)))

    @property
    def output_indexes(self) -> tuple[str, ...]:
        """The indexes that move the output's element, in the order of the ranges."""
        moving = {name for form in self.output.map for name in form.indexes}
        return tuple(name for name, _ in self.ranges if name in moving)

    @property
    def is_cellwise(self) -> bool:
        """True if every cell of the output tensor has one term: the output's map is an index for each axis."""
        names = [form.indexes[0] for form in self.output.map if form == Affine.index(*form.indexes[:1] or "?")]
        spans = [self.box[name] for name in dict.fromkeys(names)]
        whole = spans == list(map(range, self.output.tensor.shape))
        return whole and not self.reduction_indexes and not self.constraints

    @property
    def reduction_indexes(self) -> tuple[str, ...]:
        """The indexes that do not move the output's element, in the order of the ranges."""
        moving = set(self.output_indexes)
        return tuple(name for name, _ in self.ranges if name not in moving)

    def __str__(self) -> str:
        equals = f"{'+' if self.accumulates else ''}="
        value = f"({self.expression})" if self.aggregation == "=" else f"{self.aggregation}({self.expression})"
        return ", ".join([f"{self.output} {equals} {value}", *map(str, self.constraints)])


@dataclass(frozen=True)
class Program:
    """Statements one after another. Inputs are never written; every other tensor is, before it is read."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        names = ", ".join(f"{tensor.name}[{', '.join(map(str, tensor.shape))}]" for tensor in self.inputs)
        lines = [f"function ({names}) -> ({', '.join(tensor.name for tensor in self.outputs)}) {{"]
        for statement in self.statements:
            spans = ", ".join(f"{name} in {span.start}..{span.stop - 1}" for name, span in statement.ranges)
            lines.append(f"  {statement};" + (f"  # {spans}" if spans else ""))
        return "\n".join([*lines, "}"])
