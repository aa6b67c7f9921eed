"""The meaning of programs: float64 NumPy over every term, one statement after another.

Written apart from everything that makes or runs programs, and simple rather than fast: for every block of the index
space, the points that meet the constraints, the value of the expression at each, and NumPy's unbuffered aggregation
into the output. It checks that no term reads or writes outside of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from blobnet.contraction.analysis import met_by_halos
from blobnet.contraction.form import (
    NEUTRAL,
    Affine,
    Apply,
    Constraint,
    Expression,
    Number,
    Position,
    Program,
    Read,
    Statement,
)
from blobnet.contraction.functions import FUNCTIONS

Array = npt.NDArray[np.float64]
Points = dict[str, npt.NDArray[np.int64]]

#: Points that are looked at together: some ten arrays of so many float64 live at a time.
BLOCK = 2**18


def _erf(x: Array) -> Array:
    return np.array([math.erf(value) for value in x])


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def _same(a: Array, b: Array) -> npt.ArrayLike:
    return np.equal(a, b) | (np.isnan(a) & np.isnan(b))


def _select(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition != 0, a, b)


#: The functions that NumPy does not have, or has under other names.
_OTHERS: dict[str, Callable[..., npt.ArrayLike]] = {
    "negate": np.negative,
    "same": _same,
    "select": _select,
    "detach": np.positive,
    "erf": _erf,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "round": np.rint,
    "sigmoid": _sigmoid,
}
COMPUTE = {name: _OTHERS.get(name) or getattr(np, name) for name in FUNCTIONS}
_AGGREGATE = {"+": np.add, "*": np.multiply, ">": np.maximum, "<": np.minimum, "=": np.add}


def run(program: Program, arrays: Mapping[str, npt.ArrayLike], *, with_halos: bool = False) -> dict[str, Array]:
    """The outputs of ``program`` for its inputs, by name, in float64.

    Args:
        program: what to run.
        arrays: its inputs, by name.
        with_halos: whether to do as implementations do that meet edges by halos: constraints of
            :func:`blobnet.contraction.analysis.met_by_halos` are not tested, and outside of tensors zeros are read.
    """
    values = {tensor.name: np.asarray(arrays[tensor.name], np.float64) for tensor in program.inputs}
    for tensor in program.inputs:
        if values[tensor.name].shape != tensor.shape:
            raise ValueError(
                f"{tensor.name} has shape {values[tensor.name].shape}, but the program is for {tensor.shape}"
            )
    with np.errstate(all="ignore"):
        for statement in program.statements:
            _run(statement, values, met_by_halos(statement) if with_halos else None)
    return {tensor.name: values[tensor.name] for tensor in program.outputs}


def _run(statement: Statement, values: dict[str, Array], met: tuple[Constraint, ...] | None) -> None:
    """One statement; with halos where ``met``, the constraints that they meet, is not None."""
    tensor = statement.output.tensor
    if not statement.accumulates:
        values[tensor.name] = np.full(tensor.shape, NEUTRAL[statement.aggregation])
    flat = values[tensor.name].reshape(-1)
    for points in blocks(statement, met or ()):
        terms = _value(statement.expression, points, values, met is not None)
        _AGGREGATE[statement.aggregation].at(flat, _element(statement.output, points)[0], terms)


def blocks(statement: Statement, untested: tuple[Constraint, ...] = ()) -> Iterator[Points]:
    """The points that meet the constraints but for those ``untested``, in blocks: an array an index, one for ""."""
    total = statement.points
    for start in range(0, total, BLOCK):
        rest = np.arange(start, min(total, start + BLOCK))
        points: Points = {"": rest}
        for name, span in reversed(statement.ranges):
            rest, place = np.divmod(rest, len(span))
            points[name] = place + span.start
        keep = np.ones(len(points[""]), bool)
        for constraint in statement.constraints:
            if constraint in untested:
                continue
            value = affine(constraint.form, points)
            keep &= (value >= 0) & (value < constraint.size)
        yield {name: place[keep] for name, place in points.items()}


def _count(points: Points) -> int:
    return len(points[""])


def affine(form: Affine, points: Points) -> npt.NDArray[np.int64]:
    """The form's value at every point."""
    value = np.full(_count(points), form.offset)
    for name, factor in form.terms:
        value += factor * points[name]
    return value


def _element(read: Read, points: Points, halo: bool = False) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the element of the tensor, in C order, that every point reads or writes, and whether it is inside."""
    element = np.zeros(_count(points), np.int64)
    inside = np.ones(_count(points), bool)
    for form, size in zip(read.map, read.tensor.shape, strict=True):
        axis = affine(form, points)
        inside &= (axis >= 0) & (axis < size)
        element = element * size + axis
    if not halo and not inside.all():
        raise IndexError(f"{read} is outside of its tensor in {np.count_nonzero(~inside)} terms")
    return np.where(inside, element, 0), inside


def _value(expression: Expression, points: Points, values: Mapping[str, Array], halo: bool) -> Array:
    if isinstance(expression, Number):
        return np.full(_count(points), expression.value)
    if isinstance(expression, Position):
        return affine(expression.form, points).astype(np.float64)
    if isinstance(expression, Read):
        element, inside = _element(expression, points, halo)
        return np.where(inside, values[expression.tensor.name].ravel()[element], 0.0)
    assert isinstance(expression, Apply)
    arguments = [_value(argument, points, values, halo) for argument in expression.arguments]
    return np.asarray(COMPUTE[expression.function](*arguments), np.float64)
