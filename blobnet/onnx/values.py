"""The values of an ONNX graph: arrays, which are known, and tensors, which a network computes.

One rule says where the samples are. Either axis 0 of all inputs and outputs are the samples of a batch, and each tensor
knows on which of its axes they are, alone or among other things (a reshape may give 2 samples of 5 rows an axis of
10); or all of a tensor is one sample (``load(samples=False)``). What an operator does along other axes is the same in
both, and what it does along the samples' axis it can do in the second case alone.

A sample in blobnet has 1 to 4 axes, (units[[[, depth], height], width]), and one in ONNX any number. So a tensor knows
ONNX's axes, and its node has the same values, in the same order, in a shape that may be another one: operators that
only give values another shape compute nothing, and those that need the real one ask for it (``Operation.shaped``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.layers import Node

#: A value that does not depend on the samples.
Array: TypeAlias = npt.NDArray[Any]

#: Axes that a sample may have in blobnet.
MAX_AXES = 4
#: Values of a tensor that a sample may have.
MAX_ELEMENTS = 2**31

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value that a network computes.

    Attributes:
        node: that gives it.
        axes: the sizes of ONNX's axes for a single sample.
        at: the axis that the samples are on; None where all of the tensor is one.
        outer: where that axis has more than the samples, how many of its values lie before them: it has the size
            outer * samples * the values after them.
        type: of its elements in ONNX; on the device all are float32, and False and True are 0 and 1.
    """

    node: Node
    axes: tuple[int, ...]
    at: int | None
    type: Any = _FLOAT32
    outer: int = 1
    name: str = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the axes that a sample has: all but one that has nothing but the samples."""
        return tuple(self.axes[axis] for axis in own_axes(self.axes, self.at))

    @property
    def is_plain(self) -> bool:
        """True if axis 0 has the samples and nothing else."""
        return self.at == 0 and self.axes[0] == 1


Value: TypeAlias = "Tensor | Array"


@dataclass(frozen=True, eq=False)
class Pieces:
    """A sequence of values, as ONNX's operators for such have it."""

    items: tuple[Tensor, ...]


def whole(tensor: Tensor, result: npt.NDArray[np.float32]) -> Array:
    """A tensor as ONNX has it, of what its node gave for all samples, (samples, ...)."""
    array: Array = result.reshape(tensor.axes if tensor.at is None else -1)
    if tensor.at is not None:
        before, here, after = tensor.axes[: tensor.at], tensor.axes[tensor.at], tensor.axes[tensor.at + 1 :]
        parts = array.reshape(len(result), *before, tensor.outer, here // tensor.outer, *after)
        array = np.moveaxis(parts, 0, tensor.at + 1).reshape(*before, here * len(result), *after)
    return array != 0 if tensor.type == np.bool_ else array.astype(tensor.type, copy=False)


def own_axes(axes: Sequence[int], at: int | None) -> list[int]:
    """The axes that a sample has: all but one that has nothing but the samples."""
    return [axis for axis, size in enumerate(axes) if axis != at or size > 1]


def node_sizes(axes: Sequence[int], at: int | None = None) -> tuple[int, ...]:
    """The sizes of a node for ONNX's axes: the same, where there are not too many, else the first ones in one."""
    sizes = [axes[axis] for axis in own_axes(axes, at)]
    first = max(1, len(sizes) - MAX_AXES + 1)
    return (math.prod(sizes[:first]), *sizes[first:])


def parts_of(axes: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """Return the axes that lie in each of a node's sizes; None if an axis lies in several."""
    parts: list[list[int]] = []
    axis = 0
    for size in sizes:
        part: list[int] = []
        while axis < len(axes) and math.prod(axes[place] for place in (*part, axis)) <= size:
            part.append(axis)
            axis += 1
        if math.prod(axes[place] for place in part) != size:
            return None
        parts.append(part)
    return parts if axis == len(axes) else None
