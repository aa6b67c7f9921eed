"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blobnet import layers
from blobnet.onnx.lowering import elementwise, gathered, names_of
from blobnet.onnx.operation import Operation, operator
from blobnet.onnx.values import Array, Tensor, Value


@operator("Gemm")
def _gemm(op: Operation) -> Tensor:
    alpha, beta = float(op.get("alpha", 1.0)), float(op.get("beta", 1.0))
    first, second = op.value(0), op.value(1)
    ranks = (len(op.shape_of(first)), len(op.shape_of(second)))
    op.require(ranks == (2, 2), "the factors must be matrices", shapes=(op.shape_of(first), op.shape_of(second)))
    is_dense = op.samples is not None and isinstance(first, Tensor) and not isinstance(second, Tensor)
    if is_dense and not op.get("transA", 0) and (not op.given(2) or not isinstance(op.value(2), Tensor)):
        weight = np.asarray(second if op.get("transB", 0) else second.T) * np.float32(alpha)  # type: ignore[union-attr]
        bias = op.array(2) * np.float32(beta) if op.given(2) else None
        exact = (1, 2) if alpha == beta == 1 else ()
        return _dense(op, op.tensor(0), weight, bias, op.sources_of(*exact) if exact else None)
    if op.samples is not None and op.get("transA", 0):
        op.mixed("the first factor must have the samples as its rows", transA=1)
    found = _product(op, first, second, transposed=(bool(op.get("transA", 0)), bool(op.get("transB", 0))))
    if alpha != 1:
        found = elementwise(op, f"{alpha!r} * {{0}}", found)
    if op.given(2):
        found = elementwise(op, f"{{0}} + {beta!r} * {{1}}", found, op.value(2), parameter="shift")
    return found


def _dense(op: Operation, tensor: Tensor, weight: Array, bias: Array | None, key: object) -> Tensor:
    """A Dense layer of weights (units, values)."""
    units, values = weight.shape
    op.require(tensor.axes == (values,), "the factors must fit", shapes=(op.shape_of(tensor), weight.shape))
    weights = {"weight": weight}
    if bias is not None:
        own = bias.shape[1:] if bias.ndim == 2 else bias.shape
        fits = bias.ndim <= 2 and bias.shape[:-1] in ((), (1,)) and own in ((), (1,), (units,))
        op.require(fits, "what is added must be a number for each unit", shape=bias.shape, units=units)
        weights["bias"] = np.broadcast_to(bias.reshape(own), (units,))
    node = op.layer(layers.Dense(units, bias=bias is not None), tensor.node, weights=weights, key=key)
    return Tensor(node, (units,))


@operator("MatMul")
def _matmul(op: Operation) -> Tensor:
    first, second = op.value(0), op.value(1)
    is_dense = op.samples is not None and isinstance(first, Tensor) and not isinstance(second, Tensor)
    if is_dense and second.ndim == 2 and len(op.shape_of(first)) == 2:  # type: ignore[union-attr]
        return _dense(op, op.tensor(0), np.asarray(second).T, None, None)
    return _product(op, first, second)


@dataclass(frozen=True)
class _Factor:
    """A factor of a product of stacks of matrices.

    Attributes:
        value: that it is.
        shape: ONNX's.
        stack: the sizes before its matrices.
        inner, outer: the axes that the sum runs over, and that is left; the latter None for a vector.
    """

    value: Value
    shape: tuple[int, ...]
    stack: tuple[int, ...]
    inner: int
    outer: int | None

    @classmethod
    def of(cls, op: Operation, value: Value, inner: int) -> _Factor:
        """The factor whose matrices are summed over their axis ``inner``, 0 or 1, if it has such."""
        shape = op.shape_of(value)
        op.require(bool(shape), "the factors must be matrices or vectors", shape=shape)
        if len(shape) == 1:
            return cls(value, shape, (), 0, None)
        return cls(value, shape, shape[:-2], len(shape) - 2 + inner, len(shape) - 1 - inner)

    def cells(self, stack: Sequence[str], outer: str) -> list[str]:
        """Indexes of an element, where ``stack`` are those of the result's stack."""
        own = stack[len(stack) - len(self.stack) :]
        cells = ["0" if size == 1 else index for size, index in zip(self.stack, own, strict=True)]
        cells += [""] * (len(self.shape) - len(cells))
        cells[self.inner] = "k"
        if self.outer is not None:
            cells[self.outer] = outer
        return cells


def _product(op: Operation, left: Value, right: Value, *, transposed: tuple[bool, bool] = (False, False)) -> Tensor:
    """The product of stacks of matrices, as NumPy has it; of vectors too."""
    first, second = _Factor.of(op, left, 1 - transposed[0]), _Factor.of(op, right, int(transposed[1]))
    shapes = (first.shape, second.shape)
    op.require(first.shape[first.inner] == second.shape[second.inner], "the inner sizes must be equal", shapes=shapes)
    try:
        stack = np.broadcast_shapes(first.stack, second.stack)
    except ValueError:
        op.require(False, "the stacks of matrices must go together", shapes=shapes)
    outer = [factor.shape[factor.outer] for factor in (first, second) if factor.outer is not None]
    names = names_of(len(stack) + len(outer))
    terms: list[str] = []
    tensors: list[Tensor] = []
    indexes: list[Sequence[str]] = []
    parameters: dict[str, Array] = {}
    for factor in (first, second):
        # The row of the first factor is the axis behind the stack, the column of the second one the last axis.
        own = "" if factor.outer is None else names[len(stack) if factor is first else -1]
        cells, value = factor.cells(names[: len(stack)], own), factor.value
        if isinstance(value, Tensor):
            if op.lead and cells[:1] != names[:1] and not (stack and len(factor.stack) == len(stack)):
                op.mixed("matrices must have the samples as their first axis", shapes=shapes)
            terms.append(f"{{{len(tensors)}}}")
            tensors.append(value)
            indexes.append(cells[op.lead :])
            continue
        if op.lead and stack and len(factor.stack) == len(stack):
            cells, value = cells[1:], op.array_of_samples(value)
        elif op.lead and set(names[:1]) & set(cells):
            op.mixed("a constant must not have the samples among its axes", shapes=shapes)
        kept = [(index, size) for index, size in zip(cells, value.shape, strict=True) if index != "0"]
        name = f"weight{len(parameters) or ''}"
        parameters[name] = value.reshape([size for _, size in kept])
        terms.append(f"{name}[{', '.join(index for index, _ in kept)}]")
    axes = (*stack, *outer)[op.lead :]
    return gathered(op, tensors, indexes, axes, names[op.lead :], " * ".join(terms), trained=parameters)
