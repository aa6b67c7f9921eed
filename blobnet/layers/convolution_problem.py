"""What a convolution has to compute, for the modules that know how: register tiles, local memory, strips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from blobnet.blob import Shape
from blobnet.geometry import Pair, WindowAxis
from blobnet.kernel_call import Array, Blob
from blobnet.kernel_source import Macro
from blobnet.layers.activation import activation_macro
from blobnet.layers.base import Site
from blobnet.layers.candidates import Candidate


@dataclass(frozen=True)
class Taps:
    """The taps of one axis that touch the input cells of a phase, and where in the delta they read."""

    count: int
    first: int
    step: int
    shift: int
    shift_step: int

    @classmethod
    def of_phase(cls, axis: WindowAxis, phase: int) -> Taps:
        """Taps k with (phase + padding - k * dilation) divisible by the stride, the first one's shift and the step."""
        taps = [k for k in range(axis.kernel) if (phase + axis.padding[0] - k * axis.dilation) % axis.stride == 0]
        if not taps:
            return cls(0, 0, 1, 0, 0)
        common = math.gcd(axis.stride, axis.dilation)
        shift = (phase + axis.padding[0] - taps[0] * axis.dilation) // axis.stride
        return cls(len(taps), taps[0], axis.stride // common, shift, -axis.dilation // common)


@dataclass(frozen=True)
class Phase:
    """One dense part of the backward pass of a strided convolution: input cells (i * stride + y, j * stride + x)."""

    y: int
    x: int
    height: int
    width: int
    vertical: Taps
    horizontal: Taps

    @property
    def taps(self) -> int:
        """Taps that its cells meet."""
        return self.vertical.count * self.horizontal.count

    @property
    def macros(self) -> dict[str, Macro]:
        """The phase as macros."""
        return {
            "PHASE_Y": self.y,
            "PHASE_X": self.x,
            # A phase without taps has rows of none: kernels divide by TAPS_X, and compilers would warn.
            "TAPS_Y": self.vertical.count if self.horizontal.count else 0,
            "TAPS_X": max(1, self.horizontal.count),
            "TAP_Y_FIRST": self.vertical.first,
            "TAP_Y_STEP": self.vertical.step,
            "TAP_X_FIRST": self.horizontal.first,
            "TAP_X_STEP": self.horizontal.step,
            "ROW_FIRST": self.vertical.shift,
            "ROW_STEP": self.vertical.shift_step,
            "COLUMN_FIRST": self.horizontal.shift,
            "COLUMN_STEP": self.horizontal.shift_step,
        }


@dataclass(frozen=True)
class InputPhases:
    """The padded input as dense planes, in which a strided convolution has stride 1 (convolution/input_phases.h).

    Attributes:
        count: phases that some tap reads, vertically and horizontally.
        height, width: of a phase, as far as taps read it.
    """

    count: Pair
    height: int
    width: int

    @property
    def planes(self) -> int:
        """Phases of a unit."""
        return self.count[0] * self.count[1]

    @property
    def macros(self) -> dict[str, Macro]:
        """How many there are."""
        return {"PHASES_Y": self.count[0], "PHASES_X": self.count[1]}


@dataclass(frozen=True)
class Problem:
    """A convolution at its site: units of a group, groups, and the window along both axes."""

    input_units: int
    output_units: int
    groups: int
    vertical: WindowAxis
    horizontal: WindowAxis
    bias_mode: int

    @property
    def taps(self) -> int:
        """Taps of a filter."""
        return self.vertical.kernel * self.horizontal.kernel

    @property
    def columns(self) -> int:
        """Weights of one output unit."""
        return self.input_units * self.taps

    @property
    def strides(self) -> Pair:
        """The vertical and the horizontal stride."""
        return self.vertical.stride, self.horizontal.stride

    @property
    def origin_macros(self) -> dict[str, Macro]:
        """Padding in front of the input."""
        return {"PAD_TOP": self.vertical.padding[0], "PAD_LEFT": self.horizontal.padding[0]}

    @property
    def stride_macros(self) -> dict[str, Macro]:
        """Stride."""
        return {"STRIDE_Y": self.vertical.stride, "STRIDE_X": self.horizontal.stride}

    @property
    def filter_macros(self) -> dict[str, Macro]:
        """Units, filter and stride."""
        return {
            "GROUP_INPUT_UNITS": self.input_units,
            "GROUP_OUTPUT_UNITS": self.output_units,
            "FILTER_HEIGHT": self.vertical.kernel,
            "FILTER_WIDTH": self.horizontal.kernel,
            **self.stride_macros,
        }

    @property
    def macros(self) -> dict[str, Macro]:
        """Units, filter, stride, dilation and padding."""
        return {
            **self.filter_macros,
            "DILATION_Y": self.vertical.dilation,
            "DILATION_X": self.horizontal.dilation,
            **self.origin_macros,
        }

    # What kernels/convolution/epilogue.h takes, to be put behind a forward kernel's own blobs, arrays and macros.
    # NOTE: a kernel takes no null arrays: roles that are not read are bound to the weights and the output.

    def epilogue_blobs(self, site: Site) -> dict[str, Blob]:
        """The residual."""
        return {"RESIDUAL": site.epilogue.residual or site.output}

    def epilogue_arrays(self, site: Site) -> dict[str, Array]:
        """The bias."""
        return {"BIAS": site.parameter("bias" if self.bias_mode else "weight")}

    def epilogue_macros(self, site: Site) -> dict[str, Macro]:
        """What forward does to a sum before it is stored."""
        return {
            "BIAS_MODE": self.bias_mode,
            "HAS_RESIDUAL": int(site.epilogue.residual is not None),
            **activation_macro(site.activation),
        }

    def input_phases(self, output: Shape) -> InputPhases:
        """The phases of the input that an output of that shape reads."""
        axes = self.vertical, self.horizontal
        height, width = (
            size + (axis.span - 1) // axis.stride
            for axis, size in zip(axes, (output.height, output.width), strict=True)
        )
        count = min(axes[0].stride, axes[0].span), min(axes[1].stride, axes[1].span)
        return InputPhases(count, height, width)

    def phases(self, target: Shape, *, accumulate: bool) -> Iterator[Phase]:
        """The phases of the backward pass to an input delta, without those that add nothing to it."""
        for y in range(min(self.vertical.stride, target.height)):
            for x in range(min(self.horizontal.stride, target.width)):
                height, width = (
                    -(-(size - first) // stride)
                    for size, first, stride in zip((target.height, target.width), (y, x), self.strides, strict=True)
                )
                taps = Taps.of_phase(self.vertical, y), Taps.of_phase(self.horizontal, x)
                phase = Phase(y, x, height, width, *taps)
                if phase.taps or not accumulate:
                    yield phase


def inside(start: int, step: int, count: int, size: int) -> int:
    """Of ``count`` cells, ``start`` and each ``step`` behind the last, those from 0 to ``size`` - 1."""
    return sum(0 <= start + step * i < size for i in range(count))


def taps_inside(problem: Problem, source: Pair, output: Pair) -> int:
    """Taps that read the input and not its padding, over all positions of the output."""
    count = 1
    for axis, size, outputs in zip((problem.vertical, problem.horizontal), source, output, strict=True):
        count *= sum(
            inside(cell * axis.stride - axis.padding[0], axis.dilation, axis.kernel, size) for cell in range(outputs)
        )
    return count


#: What a module that knows one way to compute a direction offers for it: no candidate, one or several.
Way = Callable[[Site, Problem], Iterable[Candidate]]
