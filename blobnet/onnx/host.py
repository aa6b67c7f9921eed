"""The part of an ONNX graph that the host computes, by the operators of ONNX's reference evaluator, in NumPy.

That is what does not depend on samples, once, as the file is read; and the tail of a network: the nodes that follow
what the device gives, each time that it runs (blobnet/onnx/bodies.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from blobnet.onnx.boxes import non_max_suppression
from blobnet.onnx.operation import UnsupportedError
from blobnet.onnx.values import Array, Tensor

#: Bytes that a constant may take. Files themselves hold no tensor beyond 2 GiB.
MAX_BYTES = 2**31

#: The operators that constants and tails may be made by. None of them loops: blobnet/onnx/bodies.py has those.
KINDS = frozenset([
    "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "Constant",
    "ConstantOfShape", "Cos", "CumSum", "DequantizeLinear", "Div", "Einsum", "Equal", "Erf", "Exp", "Expand",
    "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Hardmax",
    "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "MatMul", "Max", "MaxPool", "MaxUnpool", "Mean", "Min",
    "Mod", "Mul", "Neg", "NonMaxSuppression", "NonZero", "Not", "OneHot", "Or", "Pad", "Pow", "QuantizeLinear",
    "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "ReverseSequence", "RoiAlign",
    "Round", "ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax", "Split",
    "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where",
    "Xor",
])  # fmt: skip


class Late:
    """A value that the host computes when the network has run."""


@dataclass(frozen=True, eq=False)
class HostNode:
    """A node of the tail.

    Attributes:
        proto: the node, an ``onnx.NodeProto``.
        version: of the operator set.
        inputs: the values that it reads, by ONNX's names; graphs within it read some of them too.
        outputs: a value for each output, those that are missing too.
        subject: how errors name the node.
    """

    proto: Any
    version: int
    inputs: Mapping[str, Operand]
    outputs: tuple[Late, ...]
    subject: str

    @property
    def text(self) -> str:
        """Its name in plans."""
        name = self.proto.name or next((name for name in self.proto.output if name), "")
        return f"{name} ({self.proto.op_type})"


#: A value that a node of the tail reads.
Operand: TypeAlias = "Tensor | Array | Late"


def evaluated(
    node: Any, version: int, known: Mapping[str, Array], subject: str, most: int = 4 * MAX_BYTES
) -> list[Array]:
    """The outputs of a node, an ``onnx.NodeProto``, for inputs that are known, by their names, in ``most`` bytes.

    Raises:
        UnsupportedError: they cannot be computed, or are too large.
    """
    arrays = [known.get(name) for name in node.input]
    received = [array.shape for array in arrays if array is not None]
    try:
        size = _most_elements(node.op_type, arrays)
    except (ValueError, IndexError, OverflowError) as error:
        rule = "what the host computes must have inputs of the shapes that ONNX says"
        raise UnsupportedError(subject, rule, inputs=received, cause=error) from error
    if not 0 <= size * 8 <= most:
        rule = "what the host computes must have a size that memory can hold"
        raise UnsupportedError(subject, rule, inputs=received, elements=size, most=most // 8)
    try:
        with np.errstate(all="ignore"):
            found = _outputs(node, version, known)
            return [np.asarray(found[place]) if name else np.zeros(0) for place, name in enumerate(node.output)]
    except Exception as error:  # Operators raise whatever NumPy does.
        rule = "what the host computes must be what ONNX's reference evaluator can"
        raise UnsupportedError(subject, rule, inputs=received, cause=error) from error


def _outputs(node: Any, version: int, known: Mapping[str, Array]) -> Any:
    """Return the outputs of ONNX's evaluator."""
    from onnx.numpy_helper import to_array

    if node.op_type == "ConstantOfShape":
        # Files that have no weights make all of them so: a view of the one number takes no memory.
        fill = to_array(node.attribute[0].t) if node.attribute else np.zeros(1, np.float32)
        (shape,) = map(known.__getitem__, node.input)
        return [np.broadcast_to(fill.reshape(()), shape.tolist())]
    if node.op_type in KINDS:
        # NOTE: a graph takes the evaluator three times as long as its only node, and files have a thousand constants.
        settings = {"log": lambda *_: None, "opsets": {"": version}, "new_ops": {}}
        return _operator(node.op_type, version)(node, settings).run(*map(known.get, node.input))
    # Some of the others ONNX writes out, for the types of their inputs.
    import onnx
    from onnx.reference import ReferenceEvaluator

    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in known.items()
    ]
    ends = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = onnx.GraphProto(name="host", node=[node], input=infos, output=ends)
    return ReferenceEvaluator(graph, opsets={"": version}).run(None, dict(known))


@cache
def _operator(kind: str, version: int) -> Any:
    """The evaluator's class for one of KINDS, of a version of the operator set."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import load_op

    class NonMaxSuppression(OpRun):
        """The operator of that name; the evaluator's own goes through boxes one by one."""

        def _run(self, *arrays: Array, center_point_box: int | None = None) -> tuple[Array]:
            return (non_max_suppression(*arrays, centers=bool(center_point_box)),)

    class GatherElements(OpRun):
        """The operator of that name; the evaluator's own takes no negative axis, and no fewer indexes than values."""

        def _run(self, values: Array, indexes: Array, axis: int = 0) -> tuple[Array]:
            own = axis % values.ndim
            cut = values[tuple(slice(None if place == own else size) for place, size in enumerate(indexes.shape))]
            return (np.take_along_axis(cut, indexes, own),)

    if kind in ("QuantizeLinear", "DequantizeLinear"):
        version = max(version, 21)  # The evaluator has none that is older, and this one takes what these took.
    known = {"NonMaxSuppression": NonMaxSuppression, "GatherElements": GatherElements}
    return known[kind] if kind in known else load_op("", kind, version)


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
    if kind == "Einsum":  # Its loops run over all combinations of indexes.
        return math.prod(sizes)
    try:
        return max(sum(sizes), math.prod(np.broadcast_shapes(*(array.shape for array in given))))
    except ValueError:
        return sum(sizes)
