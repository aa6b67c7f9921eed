"""Quantised values, in float32: whole numbers as the file rounds them, and what they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blobnet.onnx.lowering import elementwise
from blobnet.onnx.operation import OPERATORS, Operation, operator
from blobnet.onnx.values import Array, Tensor, Value

#: The least and the largest number of a type.
_RANGES = {
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
}


@operator("QuantizeLinear")
def _quantize(op: Operation) -> Tensor:
    zero = op.array(2) if op.given(2) else _zeros(op)
    return _quantized(op, op.tensor(0), op.array(1), zero)


@operator("DequantizeLinear")
def _dequantize(op: Operation) -> Value:
    tensor = op.tensor(0)
    zero = op.array(2) if op.given(2) else np.zeros((), tensor.type)
    return _dequantized(op, tensor, op.array(1), zero)


@operator("QLinearConv", "QLinearMatMul")
def _of_quantized(op: Operation) -> Value:
    """A product of quantised values: of what they stand for, quantised again."""
    # Filters may have a scale for each output unit, columns of matrices too.
    factors = (0, None), (3, 0 if op.kind == "QLinearConv" else -1)
    inputs = [
        _dequantized(op, op.value(place), op.array(place + 1), op.array(place + 2), axis) for place, axis in factors
    ]
    if op.given(8):  # A bias is in units of both scales.
        inputs.append(op.array(8).astype(np.float32) * (op.array(1) * op.array(4)).astype(np.float32))
    count, kind = len(inputs), op.kind.removeprefix("QLinear")
    inner = replace(op, kind=kind, inputs=inputs, sources=(None,) * count, alone=(True,) * count)
    found = OPERATORS[kind](inner)
    assert isinstance(found, Tensor)
    return _quantized(op, found, op.array(6), op.array(7))


def _zeros(op: Operation) -> Array:
    """The zero point where none is given: of the type that the node says, uint8 by default."""
    from onnx.helper import tensor_dtype_to_np_dtype

    return np.zeros((), tensor_dtype_to_np_dtype(op.get("output_dtype") or 2))


def _quantized(op: Operation, tensor: Tensor, scale: Array, zero: Array) -> Tensor:
    op.require(zero.dtype.name in _RANGES, "values must be quantised as whole numbers", type=zero.dtype.name)
    least, most = _RANGES[zero.dtype.name]
    text = f"min(max(round({{0}} / {{1}}) + {{2}}, {least}), {most})"
    found = elementwise(op, text, tensor, *_beside(op, tensor, scale, zero))
    return replace(found, type=zero.dtype)


def _dequantized(op: Operation, value: Value, scale: Array, zero: Array, axis: int | None = None) -> Value:
    numbers = _beside(op, value, scale, zero, axis)
    if isinstance(value, Tensor):
        return elementwise(op, "({0} - {2}) * {1}", value, *numbers)
    known: Array = (value.astype(np.float32) - numbers[1]) * numbers[0]
    return known


def _beside(op: Operation, value: Value, scale: Array, zero: Array, axis: int | None = None) -> Sequence[Array]:
    """The scale and the zero point as they go together with a value: one number, or one for each place on an axis."""
    rank = len(op.shape_of(value))
    place = int(op.get("axis", 1)) if axis is None else axis
    found = []
    for numbers in (scale, zero):
        op.require(numbers.ndim <= 1, "scales must be one number, or one for each place on an axis", scale=scale.shape)
        own = numbers.astype(np.float32)
        shape = [1] * rank
        if own.size > 1:
            op.require(-rank <= place < rank, "an axis must be one of the tensor's", axis=place, axes=rank)
            shape[place] = own.size
        found.append(own.reshape(shape if own.size > 1 else ()))
    return found
