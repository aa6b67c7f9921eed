"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blobnet import layers
from blobnet.onnx.lowering import NodeStatement, elementwise, names_of
from blobnet.onnx.operation import Operation, operator
from blobnet.onnx.values import Array, Tensor, Value


@operator("Gemm")
def _gemm(op: Operation) -> Tensor:
    alpha, beta = float(op.get("alpha", 1.0)), float(op.get("beta", 1.0))
    first, second = op.value(0), op.value(1)
    ranks = (len(op.shape_of(first)), len(op.shape_of(second)))
    op.require(ranks == (2, 2), "the factors must be matrices", shapes=(op.shape_of(first), op.shape_of(second)))
    is_dense = isinstance(first, Tensor) and first.is_plain and not isinstance(second, Tensor)
    if is_dense and not op.get("transA", 0) and (not op.given(2) or not isinstance(op.value(2), Tensor)):
        weight = np.asarray(second if op.get("transB", 0) else second.T)  # type: ignore[union-attr]
        weight = weight if alpha == 1 else weight * np.float32(alpha)
        bias = op.array(2) * np.float32(beta) if op.given(2) else None
        if bias is not None and not (bias.size in (1, len(weight)) and bias.shape[-1:] in ((), (bias.size,))):
            return elementwise(op, "{0} + {1}", _dense(op, op.tensor(0), weight, None, op.key_of(op.array(1))), bias)
        names = op.key_of(*(op.array(place) for place in (1, 2) if op.given(place)))
        return _dense(op, op.tensor(0), weight, bias, names and (names, alpha, beta, op.get("transB", 0)))
    found = _product(op, first, second, transposed=(bool(op.get("transA", 0)), bool(op.get("transB", 0))))
    if alpha != 1:
        found = elementwise(op, f"{alpha!r} * {{0}}", found)
    if op.given(2):
        found = elementwise(op, f"{{0}} + {beta!r} * {{1}}", found, op.value(2), parameter="shift")
    return found


def _dense(op: Operation, tensor: Tensor, weight: Array, bias: Array | None, key: object) -> Tensor:
    """A Dense layer of weights (units, values)."""
    units, values = weight.shape
    op.require(
        tensor.sizes in ((values,), () if values == 1 else (values,)),
        "the factors must fit",
        shapes=(op.shape_of(tensor), weight.shape),
    )
    weights = {"weight": weight}
    if bias is not None:
        weights["bias"] = np.broadcast_to(bias.ravel(), (units,))
    node = op.layer(layers.Dense(units, bias=bias is not None), tensor.node, weights=weights, key=key)
    return Tensor(node, (1, units), 0)


@operator("MatMul")
def _matmul(op: Operation) -> Tensor:
    first, second = op.value(0), op.value(1)
    is_dense = isinstance(first, Tensor) and first.is_plain and not isinstance(second, Tensor)
    if is_dense and second.ndim == 2 and len(op.shape_of(first)) == 2:  # type: ignore[union-attr]
        return _dense(op, op.tensor(0), np.asarray(second).T, None, op.key_of(second))  # type: ignore[arg-type]
    return _product(op, first, second)


def with_bias(op: Operation) -> Tensor | None:
    """A Dense layer that only this sum reads, with the numbers that the sum adds as its bias, if it is that."""
    for place in (0, 1):
        tensor, bias = op.value(place), op.value(1 - place)
        if isinstance(bias, Tensor) or not isinstance(tensor, Tensor) or not (op.alone[0] and op.alone[1]):
            continue
        layer = tensor.node.layer
        if not isinstance(layer, layers.Dense) or layer.bias or layer in op.shared.values():
            continue
        if bias.shape not in ((layer.units,), (1, layer.units)):
            continue
        op.require(bool(np.isfinite(bias).all()), "every number of a constant must be one", input=1 - place)
        node = replace(layer, bias=True)(*tensor.node.inputs)
        weights = {**tensor.node.weights, "bias": np.ascontiguousarray(bias.reshape(-1), np.float32)}
        return replace(tensor, node=replace(node, weights=weights))
    return None


def _product(op: Operation, left: Value, right: Value, *, transposed: tuple[bool, bool] = (False, False)) -> Tensor:
    """The product of stacks of matrices, as NumPy has it; of vectors too."""
    shapes = [op.shape_of(left), op.shape_of(right)]
    op.require(all(shapes), "the factors must be matrices or vectors", shapes=shapes)
    row, column = ("m" * (len(shapes[0]) > 1), "n" * (len(shapes[1]) > 1))
    # The axes of each factor that are summed over, from the end.
    places = [-2 if row and transposed[0] else -1, -1 if not column or transposed[1] else -2]
    sizes = {shape[place] for shape, place in zip(shapes, places, strict=True)}
    op.require(len(sizes) == 1, "the inner sizes must be equal", shapes=shapes)
    first = f"k{row}" if transposed[0] else f"{row}k"
    second = f"{column}k" if transposed[1] else f"k{column}"
    stacks = ["..." * (len(shape) > 1) for shape in shapes]
    equation = f"{stacks[0]}{first},{stacks[1]}{second}->{max(stacks)}{row}{column}"
    return _summed(op, [left, right], *_labels(op, equation, [len(shape) for shape in shapes]))


@operator("Einsum")
def _einsum(op: Operation) -> Tensor:
    """Multiply two factors at a time, and sum at once over each index that is not needed later."""
    values = [op.value(place) for place in range(len(op.inputs))]
    labels, result = _labels(op, str(op.get("equation", "")), [len(op.shape_of(value)) for value in values])
    # Arrays go to tensors, so that each product is a layer's.
    order = sorted(range(len(values)), key=lambda place: not isinstance(values[place], Tensor))
    first, *others = order
    found, own = values[first], labels[first]
    if not others:
        return _summed(op, [found], [own], result)
    for number, place in enumerate(others, 1):
        needed = {*result, *(label for later in order[number + 1 :] for label in labels[later])}
        kept = [label for label in dict.fromkeys([*own, *labels[place]]) if label in needed]
        kept = result if place == order[-1] else kept
        found, own = _summed(op, [found, values[place]], [own, labels[place]], kept), kept
    assert isinstance(found, Tensor)
    return found


def _labels(op: Operation, equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The labels of the axes of each input, and of the result; those of "..." are numbers, from the end."""
    equation = "".join(equation.split())
    text, arrow, after = equation.partition("->")
    terms = text.split(",")
    rule = "the equation must have a term for each input, and a letter for each axis"
    op.require(len(terms) == len(ranks), rule, equation=equation, inputs=len(ranks))

    def labels(term: str, rank: int) -> list[str]:
        before, dots, after = term.partition("...")
        more = rank - len(before) - len(after)
        is_right = (before + after).isascii() and (not before + after or (before + after).isalpha())
        op.require(is_right and (more >= 0 if dots else more == 0), rule, equation=equation, axes=rank)
        return [*before, *(str(number) for number in range(more, 0, -1)), *after]

    found = [labels(term, rank) for term, rank in zip(terms, ranks, strict=True)]
    there = [label for own in found for label in own]
    dots = sorted({label for label in there if label.isdecimal()}, key=int, reverse=True)
    if not arrow:
        return found, [*dots, *sorted(label for label in there if there.count(label) == 1 and label.isalpha())]
    size = len(after.replace("...", "", 1)) + len(dots) * ("..." in after)
    result = labels(after, size)
    is_right = len(set(result)) == len(result) and set(result) <= set(there)
    op.require(is_right, "the result must have letters of the inputs, each once", equation=equation)
    return found, result


def _summed(op: Operation, values: Sequence[Value], labels: Sequence[Sequence[str]], kept: Sequence[str]) -> Tensor:
    """The product of values, one of them a tensor, summed over all labels of their axes but these."""
    shapes = [op.shape_of(value) for value in values]
    samples = {
        (own[value.at], value.outer)
        for value, own in zip(values, labels, strict=True)
        if isinstance(value, Tensor) and value.at is not None
    }
    label, outer = next(iter(samples), ("", 1))
    is_apart = len(samples) <= 1 and all(own.count(label) <= 1 for own in labels)
    if not is_apart or (label and label not in kept):
        op.mixed("factors must have the samples on one axis, which is none of the sum's", shapes=shapes)
    parts = [
        op.array_of_sample(value, own.index(label), outer) if not isinstance(value, Tensor) and label in own else value
        for value, own in zip(values, labels, strict=True)
    ]
    axes = [part.axes if isinstance(part, Tensor) else part.shape for part in parts]
    sizes: dict[str, int] = {}
    for size, name in (
        (size, name) for own, found in zip(labels, axes, strict=True) for name, size in zip(own, found, strict=True)
    ):
        sizes[name] = max(size, sizes.get(name, 1))
    fits = all(
        size in (1, sizes[name])
        for own, found in zip(labels, axes, strict=True)
        for name, size in zip(own, found, strict=True)
    )
    op.require(fits and len(sizes) <= 26, "axes of one letter must have one size, of at most 26 letters", shapes=shapes)
    indexes = dict(zip(sizes, names_of(len(sizes)), strict=True))
    key = op.key_of(*(value for value in values if not isinstance(value, Tensor)))
    terms, statement = list[str](), NodeStatement(op, key=key)
    for part, own, found in zip(parts, labels, axes, strict=True):
        cells = ["0" if size == 1 else indexes[name] for size, name in zip(found, own, strict=True)]
        terms.append(statement.read(part, cells, "weight", trained=True))
    at, out = kept.index(label) if label else None, [indexes[name] for name in kept]
    return statement.result(f"+({' * '.join(terms)})", [sizes[name] for name in kept], out, at, outer)
