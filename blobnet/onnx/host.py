"""What of an ONNX graph does not depend on samples: computed once, by ONNX's reference evaluator in NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from blobnet.onnx.operation import UnsupportedError
from blobnet.onnx.values import Array

#: Bytes that a constant may take. Files themselves hold no tensor beyond 2 GiB.
MOST_BYTES = 2**31

#: The operators that constants may be made by. None of them loops.
KINDS = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "ArgMax",
        "ArgMin",
        "Cast",
        "CastLike",
        "Ceil",
        "Clip",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Cos",
        "CumSum",
        "Div",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "EyeLike",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Log",
        "MatMul",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "Pad",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Relu",
        "Reshape",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Sigmoid",
        "Sign",
        "Sin",
        "Size",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tanh",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
        "Xor",
    ]
)


def evaluated(node: Any, version: int, arrays: Sequence[Array | None], subject: str) -> list[Array]:
    """The outputs of a node, an ``onnx.NodeProto``, for inputs that are known.

    Raises:
        UnsupportedError: they cannot be computed, or are too large.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    received = [array.shape for array in arrays if array is not None]
    try:
        size = _most_elements(node.op_type, arrays)
    except (ValueError, IndexError, OverflowError) as error:
        rule = "a constant must have inputs of the shapes that ONNX says"
        raise UnsupportedError(subject, rule, inputs=received, cause=error) from error
    if not 0 <= size * 8 <= 4 * MOST_BYTES:
        rule = "a constant must have a size that memory can hold"
        raise UnsupportedError(subject, rule, inputs=received, elements=size, most=MOST_BYTES // 2)
    known = {name: array for name, array in zip(node.input, arrays, strict=True) if name and array is not None}
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in known.items()
    ]
    ends = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.GraphProto(name="constant", node=[node], input=infos, output=ends)
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(graph, opsets={"": version}).run(None, known)
    except Exception as error:  # The evaluator raises whatever NumPy does.
        rule = "a constant must be what ONNX's reference evaluator can compute"
        raise UnsupportedError(subject, rule, inputs=received, cause=error) from error
    arrays_found = iter(map(np.asarray, found))
    return [next(arrays_found) if name else np.zeros(0) for name in node.output]


def _most_elements(kind: str, arrays: Sequence[Array | None]) -> int:
    """An upper bound of the elements of a node's output; -1 if it makes none at all."""
    given = [array for array in arrays if array is not None]

    def numbers(place: int) -> list[int]:
        return [int(number) for number in np.ravel(given[place])]

    if kind == "ConstantOfShape" and given:
        return math.prod(numbers(0)) if all(number >= 0 for number in numbers(0)) else -1
    if kind == "Expand" and len(given) > 1:
        return given[0].size * math.prod(max(1, number) for number in numbers(1))
    if kind == "Tile" and len(given) > 1:
        return given[0].size * math.prod(max(0, number) for number in numbers(1))
    if kind == "Range" and len(given) == 3:
        start, limit, delta = (float(array.reshape(())) for array in given)
        return int(abs((limit - start) / delta)) + 1 if delta and math.isfinite((limit - start) / delta) else -1
    if kind == "Pad" and len(given) > 1:
        return math.prod(size + sum(map(abs, numbers(1))) for size in given[0].shape)
    if kind == "OneHot" and len(given) > 1:
        return given[0].size * max(1, abs(numbers(1)[0]))
    if kind in ("MatMul", "Gather", "GatherND") and len(given) > 1:
        axis = max(1, min(given[0].shape, default=1))
        return given[0].size * given[1].size // (axis if kind == "Gather" else 1)
    sizes = [array.size for array in given]
    try:
        return max(sum(sizes), math.prod(np.broadcast_shapes(*(array.shape for array in given))))
    except ValueError:
        return sum(sizes)
