"""Tables carried out in float64, point by point: the oracle of generated code, apart from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from blobnet.contraction.form import NEUTRAL, Affine, Apply, Expression, Number, Position
from blobnet.contraction.reference import COMPUTE, Array
from blobnet.contraction.table import Index, Load, Operand, Table, Value

#: The ufunc of each aggregation.
COMBINE = {"+": np.add, "*": np.multiply, ">": np.maximum, "<": np.minimum, "=": np.add}


def evaluate(table: Table, buffers: Mapping[str, Array], count: int | None = None) -> None:
    """Carries out a table on float64 buffers.

    Args:
        table: what to do.
        buffers: by the names of operands.
        count: samples in the batch; None for all.

    Raises:
        IndexError: a point is outside of a buffer.
    """
    cells = math.prod(index.extent for index in table.outputs)
    neutral = NEUTRAL[table.aggregation]
    values = np.full(cells, neutral)
    points = _points(table.indexes)
    cell = np.zeros(len(next(iter(points.values()))), np.int64)
    for index in table.outputs:
        cell = cell * index.extent + points[index.name]
    keep = np.ones(len(cell), bool)
    for constraint in table.constraints:
        form = _affine(constraint.form, points)
        keep &= (form >= 0) & (form < constraint.size)
    if table.sample and count is not None:
        keep &= _affine(table.sample, points) < count
    points = {name: place[keep] for name, place in points.items()}
    with np.errstate(all="ignore"):
        terms = np.broadcast_to(_value(table.expression, points, buffers, None), int(keep.sum()))
        COMBINE[table.aggregation].at(values, cell[keep], terms)
        points = _points(table.outputs)
        keep = np.ones(cells, bool)
        for index in table.outputs:
            if index.period:
                keep &= points[index.name] % index.period < index.kept
        if not table.covers:
            for constraint in table.cell_constraints:
                form = _affine(constraint.form, _points(table.outputs))
                keep &= (form >= 0) & (form < constraint.size)
        if table.sample_cell and count is not None:
            keep &= _affine(table.sample_cell, points) < count
        points = {name: place[keep] for name, place in _points(table.outputs).items()}
        values = values[keep]
        if table.accumulates:
            values = COMBINE[table.aggregation](
                buffers[table.stores[0].operand.name][_address(table.stores[0].operand, points)], values
            )
        results = [_value(store.expression, points, buffers, values) for store in table.stores]
        for store, result in zip(table.stores, results, strict=True):
            buffers[store.operand.name][_address(store.operand, points)] = result


def _points(indexes: Sequence[Index]) -> dict[str, npt.NDArray[np.int64]]:
    """Every point of the box."""
    rest = np.arange(math.prod(index.extent for index in indexes))
    points = {"": rest}
    for index in reversed(indexes):
        rest, points[index.name] = np.divmod(rest, index.extent)
    return points


def _affine(form: Affine, points: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    value = np.full(len(points[""]), form.offset)
    for name, factor in form.terms:
        value += factor * points[name]
    return value


def _address(operand: Operand, points: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    address = np.full(len(points[""]), operand.offset)
    for stride, form in operand.axes:
        address += stride * _affine(form, points)
    if operand.packed:
        address += points[operand.packed] // operand.block * operand.block * (operand.packed_stride - 1)
    if address.size and address.min() < 0:
        raise IndexError(f"{operand.name} is read at {address.min()}")
    return address


def _value(
    expression: Expression,
    points: Mapping[str, npt.NDArray[np.int64]],
    buffers: Mapping[str, Array],
    value: Array | None,
) -> Array:
    if isinstance(expression, Number):
        return np.full(len(points[""]), expression.value)
    if isinstance(expression, Position):
        return _affine(expression.form, points).astype(np.float64)
    if isinstance(expression, Load):
        return buffers[expression.operand.name][_address(expression.operand, points)]
    if isinstance(expression, Value):
        assert value is not None
        return value
    assert isinstance(expression, Apply)
    arguments = [_value(part, points, buffers, value) for part in expression.arguments]
    return np.asarray(COMPUTE[expression.function](*arguments), np.float64)
