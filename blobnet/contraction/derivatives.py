"""Derivatives: from a program, another one that gives dL/d input from dL/d output.

Every statement O[A] = aggregation of e(X[B], ...) gives, for each read of X, over the same points and constraints with
the maps exchanged,

    dX[B] += dO[A] * (de/dX at the term) * (dO/d term)

where dO/d term is 1 for sums and element-wise statements, 1 at the first term that equals a maximum or minimum and 0
at others, and the product of the other terms for a product (never the product divided by the term, which may be 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from blobnet.contraction import ranges
from blobnet.contraction.form import (
    Affine,
    Apply,
    Constraint,
    Expression,
    Number,
    Position,
    Program,
    Read,
    Statement,
    Tensor,
    apply,
    rewritten,
    unused,
)
from blobnet.contraction.functions import COMPARISONS
from blobnet.errors import OptionError

ZERO, ONE = Number(0.0), Number(1.0)

#: Places of terms are compared as floats, which are exact below.
MAX_PLACES = 2**24


def differentiate(program: Program, wanted: Iterable[str] | None = None) -> Program:
    """The program that gives the gradient of every input that is ``wanted`` (all by default).

    Its inputs are those of ``program`` and a delta for each output, ``d_R`` of the shape of R; its outputs are the
    gradients, ``d_X`` of the shape of X (:func:`delta_names` tells the names, which give way to tensors of such names).
    The statements of ``program`` come first, less those whose results no derivative reads.

    Raises:
        OptionError: what is wanted is no input; or a maximum or minimum is over more than 2^24 terms.
    """
    names = [tensor.name for tensor in program.inputs]
    chosen = list(names if wanted is None else wanted)
    for name in chosen:
        if name not in names:
            raise OptionError(name, "the contraction has no such input", inputs=", ".join(names) or "none")
    return _Differentiation(program, chosen).program()


def delta_names(program: Program) -> dict[str, str]:
    """The name of each tensor's delta in the derivative of ``program``."""
    tensors = [*program.inputs, *(statement.output.tensor for statement in program.statements)]
    taken = {tensor.name for tensor in tensors}
    names = {}
    for tensor in tensors:
        names[tensor.name] = unused(f"d_{tensor.name}", taken)
        taken.add(names[tensor.name])
    return names


class _Differentiation:
    def __init__(self, forward: Program, wanted: list[str]) -> None:
        self.forward = forward
        self.wanted = wanted
        self.names = delta_names(forward)
        self.taken = {*self.names, *self.names.values()}
        self.statements: list[Statement] = []
        self.begun: set[str] = set()  # tensors whose delta has values
        self.helpers: dict[str, Read] = {}  # what the terms of a tensor read beside its delta

    def program(self) -> Program:
        moved = set(self.wanted)  # tensors that depend on what is wanted
        for statement in self.forward.statements:
            if any(read.tensor.name in moved for read in statement.reads):
                moved.add(statement.output.tensor.name)
        deltas = tuple(self.delta(tensor) for tensor in self.forward.outputs)
        for tensor in self.forward.outputs:
            self.begin(tensor)
        for statement in reversed(self.forward.statements):
            if statement.output.tensor.name in self.begun:
                for read in statement.reads:
                    if read.tensor.name in moved:
                        self.pull(statement, read)
        inputs = {tensor.name: tensor for tensor in self.forward.inputs}
        for name in self.wanted:
            if name not in self.begun:
                self.statements.append(filled(self.delta(inputs[name]), ZERO))
        gradients = tuple(self.delta(inputs[name]) for name in self.wanted)
        return Program((*self.forward.inputs, *deltas), gradients, (*self.kept(), *_summed(self.statements)))

    def kept(self) -> list[Statement]:
        """The statements of the forward pass that derivatives need."""
        needed = {read.tensor.name for statement in self.statements for read in statement.reads}
        kept: list[Statement] = []
        for statement in reversed(self.forward.statements):
            if statement.output.tensor.name in needed:
                kept.insert(0, statement)
                needed |= {read.tensor.name for read in statement.reads}
        return kept

    def delta(self, tensor: Tensor) -> Tensor:
        return Tensor(self.names[tensor.name], tensor.shape)

    def new(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = Tensor(unused(name, self.taken), shape)
        self.taken.add(tensor.name)
        return tensor

    def begin(self, output: Tensor) -> None:
        """Gives an output its delta: the program's input, or a copy if statements that read the output add to it."""
        self.begun.add(output.name)
        if any(read.tensor == output for statement in self.forward.statements for read in statement.reads):
            given = self.delta(output)
            self.names[output.name] = self.new(given.name, given.shape).name
            self.statements.append(filled(self.delta(output), given))

    def pull(self, statement: Statement, read: Read) -> None:
        """Adds what the statement gives to the delta of what it reads."""
        delta = Read(self.delta(statement.output.tensor), statement.output.map)
        value = pulled(statement.expression, read, delta)
        if value == ZERO:
            return
        if statement.aggregation in "<>":
            value = select(apply("equal", self.place(statement), self.helper(statement, self.first)), value, ZERO)
        elif statement.aggregation == "*":
            value = pulled(statement.expression, read, product(delta, self.helper(statement, self.others)))
        if value == delta and self.is_same(statement, read):
            self.begun.add(read.tensor.name)
            self.names[read.tensor.name] = delta.tensor.name
            return
        output = Read(self.delta(read.tensor), read.map)
        again = read.tensor.name in self.begun
        self.begun.add(read.tensor.name)
        box, value = _taken(statement.box, value)
        pulled_back = replace(statement, output=output, aggregation="+", expression=value, accumulates=again)
        self.statements.append(replace(pulled_back, ranges=tuple(box.items())))

    def is_same(self, statement: Statement, read: Read) -> bool:
        """Return True if what the statement reads has the delta of its result, cell by cell, and from nowhere else."""
        output, tensor = statement.output, read.tensor
        same = statement.is_cellwise and read.map == output.map and tensor.shape == output.tensor.shape
        made = any(other.output.tensor == tensor for other in self.forward.statements)
        readers = [item for other in self.forward.statements for item in other.reads if item.tensor == tensor]
        return same and made and len(readers) == 1 and tensor not in self.forward.outputs

    def helper(self, statement: Statement, make: Callable[[Statement], Read]) -> Read:
        """Return what ``make`` makes for a statement, once."""
        name = statement.output.tensor.name
        if name not in self.helpers:
            self.helpers[name] = make(statement)
        return self.helpers[name]

    def place(self, statement: Statement) -> Position:
        """Return the number of a term within its cell."""
        return Position(_place(_told_apart(statement), statement.box))

    def first(self, statement: Statement) -> Read:
        """The place of the first term of a maximum or minimum that equals the result."""
        output, place = statement.output, self.place(statement)
        terms = place.form.range(statement.box).stop
        if terms > MAX_PLACES:
            kind = "maximum" if statement.aggregation == ">" else "minimum"
            raise OptionError(f"gradient of {output}", f"a {kind} must be over no more than 2^24 terms", terms=terms)
        first = Read(self.new(f"first_{output.tensor.name}", output.tensor.shape), output.map)
        value = select(apply("same", statement.expression, output), place, Number(math.inf))
        self.statements.append(replace(statement, output=first, aggregation="<", expression=value))
        return first

    def others(self, statement: Statement) -> Read:
        """Return for every term of a product the product of all others of its cell: in (terms of a cell)^2 steps.

        They run over the indexes again, under other names. Where the output has indexes for itself these stay as they
        are; else all are renamed, and the output's element must be the same.
        """
        box, output = statement.box, statement.output
        again = _told_apart(statement)
        renamed: dict[str, str] = {}
        for name in again:
            renamed[name] = unused(f"{name}_", {*box, *renamed.values()})
        forms = {name: Affine.index(other) for name, other in renamed.items()}
        spans = tuple(statement.ranges) + tuple((renamed[name], box[name]) for name in again)
        same_cell = [Constraint(form - form.substitute(forms), 1) for form in output.map]
        other_terms = [bound.substitute(forms) for bound in statement.constraints]
        constraints = [*statement.constraints, *other_terms, *same_cell]
        shape = tuple(len(span) for span in box.values())
        tensor = self.new(f"others_{output.tensor.name}", shape)
        here = tuple(Affine.index(name) - span.start for name, span in box.items())
        place = _place(again, box)
        itself = apply("equal", Position(place - place.substitute(forms)), ZERO)
        value = select(itself, ONE, substituted(statement.expression, forms))
        needed = ranges.needed(constraints, dict(spans))
        self.statements.append(Statement(Read(tensor, here), "*", value, spans, needed))
        return Read(tensor, here)


def _taken(box: dict[str, range], value: Expression) -> tuple[dict[str, range], Expression]:
    """The part of a box in which one index chooses a term that is 0 elsewhere, and the term: what is 0 is not read."""
    if not isinstance(value, Apply) or value.function != "select":
        return box, value
    condition, *terms = value.arguments
    if not isinstance(condition, Apply) or condition.function not in COMPARISONS or ZERO not in terms:
        return box, value
    place, bound = condition.arguments
    if not isinstance(place, Position) or not isinstance(bound, Number) or len(place.form.indexes) != 1:
        return box, value
    (name,) = place.form.indexes
    compare, is_first = getattr(np, condition.function), terms[1] == ZERO
    found = [
        number
        for number in box[name]
        if compare(place.form.range({name: range(number, number + 1)}).start, bound.value) == is_first
    ]
    if not found or found[-1] - found[0] != len(found) - 1:
        return box, value
    return _taken({**box, name: range(found[0], found[-1] + 1)}, terms[0] if is_first else terms[1])


def _summed(statements: Sequence[Statement]) -> list[Statement]:
    """The statements with one sum in place of a copy to which the next one that touches it adds, cell by cell."""
    left = list(statements)
    for copy in statements:
        source, target = copy.expression, copy.output
        if copy.accumulates or not isinstance(source, Read) or source.map != target.map:
            continue
        if not ranges.tells_apart(target.map, copy.box) or copy.reduction_indexes:
            continue
        later = left[left.index(copy) + 1 :]
        touched = {target.tensor, source.tensor}
        touching = (one for one in later if one.output.tensor in touched or _reads(one, target.tensor))
        adding = next(touching, None)
        if adding is None or _reads(adding, target.tensor):
            continue
        if (adding.output, adding.ranges, adding.constraints) == (target, copy.ranges, copy.constraints):
            total = add(source, adding.expression)
            left[left.index(adding)] = replace(adding, expression=total, accumulates=False)
            left.remove(copy)
    return left


def _reads(statement: Statement, tensor: Tensor) -> bool:
    return any(read.tensor == tensor for read in statement.reads)


def filled(tensor: Tensor, value: Number | Tensor) -> Statement:
    """Fills a tensor with a number or with another tensor of its shape."""
    axes = tuple((f"_{axis}", range(size)) for axis, size in enumerate(tensor.shape))
    element = tuple(Affine.index(name) for name, _ in axes)
    return Statement(Read(tensor, element), "=", Read(value, element) if isinstance(value, Tensor) else value, axes)


def _told_apart(statement: Statement) -> tuple[str, ...]:
    """Indexes that differ between any two terms of one cell."""
    if ranges.tells_apart(statement.output.map, statement.box):
        return statement.reduction_indexes
    return tuple(statement.box)


def _place(names: Iterable[str], box: dict[str, range]) -> Affine:
    """Counts the points of the box of some indexes, the last index fastest."""
    place = Affine()
    for name in names:
        place = place * len(box[name]) + (Affine.index(name) - box[name].start)
    return place


def substituted(expression: Expression, forms: dict[str, Affine]) -> Expression:
    """The expression with other forms in place of some of its indexes."""

    def change(node: Expression) -> Expression | None:
        if isinstance(node, Position):
            return Position(node.form.substitute(forms))
        return node.substitute(forms) if isinstance(node, Read) else None

    return rewritten(expression, change)


# Element-wise derivatives


def pulled(expression: Expression, read: Read, delta: Expression) -> Expression:
    """``delta`` * d ``expression`` / d ``read``: as the delta travels down, so that a branch not taken is exactly 0."""
    if expression == read:
        return delta
    if not isinstance(expression, Apply) or read not in expression.walk():
        return ZERO
    if expression.function == "select":
        condition, chosen, otherwise = expression.arguments
        return select(condition, pulled(chosen, read, delta), pulled(otherwise, read, delta))
    total: Expression = ZERO
    rules = DERIVATIVES.get(expression.function, ())
    for argument, rule in zip(expression.arguments, rules, strict=bool(rules)):
        total = add(total, pulled(argument, read, rule(expression, delta)))
    return total


def add(a: Expression, b: Expression) -> Expression:
    """A + b, where 0 is left out."""
    return b if a == ZERO else a if b == ZERO else apply("add", a, b)


def product(a: Expression, b: Expression) -> Expression:
    """A * b, where 1 is left out."""
    return b if a == ONE else a if b == ONE else apply("multiply", a, b)


def select(condition: Expression, a: Expression, b: Expression) -> Expression:
    """Condition ? a : b, unless both are the same."""
    return a if a == b else apply("select", condition, a, b)


def _first_argument(whole: Apply, delta: Expression) -> Expression:
    """The first argument of max and min has the delta if it is the result."""
    return select(apply("same", whole, whole.arguments[0]), delta, ZERO)


def _second_argument(whole: Apply, delta: Expression) -> Expression:
    return select(apply("same", whole, whole.arguments[0]), ZERO, delta)


def _of_base(whole: Apply, delta: Expression) -> Expression:
    base, exponent = whole.arguments
    lowered = exponent - 1
    return select(apply("equal", exponent, ZERO), ZERO, product(delta, product(exponent, apply("pow", base, lowered))))


def _of_exponent(whole: Apply, delta: Expression) -> Expression:
    base, _ = whole.arguments
    return select(apply("equal", base, ZERO), ZERO, product(delta, product(whole, apply("log", base))))


def _sign(x: Expression, delta: Expression) -> Expression:
    negative = select(apply("less", x, ZERO), apply("negate", delta), ZERO)
    return select(apply("greater", x, ZERO), delta, negative)


Rule = Callable[[Apply, Expression], Expression]

#: For every argument: what it gets of a delta. Functions that are not here, comparisons and steps, give nothing.
DERIVATIVES: dict[str, tuple[Rule, ...]] = {
    "add": (lambda f, d: d, lambda f, d: d),
    "subtract": (lambda f, d: d, lambda f, d: apply("negate", d)),
    "multiply": (lambda f, d: product(d, f.arguments[1]), lambda f, d: product(d, f.arguments[0])),
    # Both with the same quotient: in p = e / sum(e) what p = 1 gets is then exactly 0, as in p * (d - sum(d p)).
    "divide": (
        lambda f, d: d / f.arguments[1],
        lambda f, d: apply("negate", product(d / f.arguments[1], f)),
    ),
    "negate": (lambda f, d: apply("negate", d),),
    "abs": (lambda f, d: _sign(f.arguments[0], d),),
    "cos": (lambda f, d: apply("negate", product(d, apply("sin", f.arguments[0]))),),
    "erf": (
        lambda f, d: product(
            product(d, Number(2.0 / math.sqrt(math.pi))),
            apply("exp", apply("negate", f.arguments[0] * f.arguments[0])),
        ),
    ),
    "exp": (lambda f, d: product(d, f),),
    "expm1": (lambda f, d: product(d, apply("exp", f.arguments[0])),),
    "log": (lambda f, d: d / f.arguments[0],),
    "log1p": (lambda f, d: d / (1 + f.arguments[0]),),
    "max": (_first_argument, _second_argument),
    "min": (_first_argument, _second_argument),
    "pow": (_of_base, _of_exponent),
    "round": (lambda f, d: d,),
    "sigmoid": (lambda f, d: product(d, product(f, 1 - f)),),
    "sin": (lambda f, d: product(d, apply("cos", f.arguments[0])),),
    "sqrt": (lambda f, d: d / apply("multiply", 2, f),),
    "tanh": (lambda f, d: product(d, 1 - product(f, f)),),
}
