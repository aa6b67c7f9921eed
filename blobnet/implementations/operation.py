"""What implementations implement: one direction of a product of a blob and weights, and the launches' vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from blobnet.blob import Shape
from blobnet.geometry import Pair, WindowAxis
from blobnet.implementations.base import BACKWARD_DATA
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning
from blobnet.kernel_source import Macro, load

#: The macros of no activation (kernels/activation/functions.h).
NO_ACTIVATION: Mapping[str, Macro] = {"ACTIVATION": "ACTIVATION_linear", "ACTIVATION_PARAMETER": 0.0}


@dataclass(frozen=True)
class Taps:
    """The taps of one axis that meet the results of a phase, and the cells of the source that these read.

    Result i reads, at the j-th of ``count`` taps, cell ``i * stride + shift + j * shift_step``; that tap is number
    ``first + j * step`` of the filter.
    """

    count: int
    first: int
    step: int
    shift: int
    shift_step: int
    stride: int = 1

    @classmethod
    def forward(cls, axis: WindowAxis) -> Taps:
        """All of them."""
        return cls(axis.kernel, 0, 1, -axis.padding[0], axis.dilation, axis.stride)

    @classmethod
    def of_phase(cls, axis: WindowAxis, phase: int) -> Taps:
        """Taps k with (phase + padding - k * dilation) divisible by the stride, the first one's shift and the step."""
        taps = [k for k in range(axis.kernel) if (phase + axis.padding[0] - k * axis.dilation) % axis.stride == 0]
        if not taps:
            return cls(0, 0, 1, 0, 0)
        common = math.gcd(axis.stride, axis.dilation)
        shift = (phase + axis.padding[0] - taps[0] * axis.dilation) // axis.stride
        return cls(len(taps), taps[0], axis.stride // common, shift, -axis.dilation // common)

    def inside(self, results: int, size: int) -> int:
        """Of the products of so many results, those with a cell of a source of ``size`` cells and not of its halo."""
        first = (i * self.stride + self.shift for i in range(results))
        return sum(0 <= cell + j * self.shift_step < size for cell in first for j in range(self.count))


@dataclass(frozen=True)
class Phase:
    """A dense part of an operation, whose results all meet the same taps at the same shifts.

    Forward is one. Of the backward pass of a strided convolution each makes the cells (i * stride + y, j * stride + x).
    """

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

    def taps_inside(self, source: Shape) -> int:
        """Taps that read the source and not its halo, over all positions."""
        return self.vertical.inside(self.height, source.height) * self.horizontal.inside(self.width, source.width)

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
        """How many there are, and their size."""
        names = "PHASES_Y", "PHASES_X", "PHASE_HEIGHT", "PHASE_WIDTH"
        return dict(zip(names, (*self.count, self.height, self.width), strict=True))


@dataclass(frozen=True)
class Operation:
    """One of the three contractions of a layer's input, weights and output: it makes one of them of the other two.

        forward           O[n, o, y, x] = +(I[n, i, y*S + a*D - P, x*S + b*D - P] * W[o, i, a, b])
        backward data    dI[n, i, q, r] = +(dO[n, o, (q + P - a*D)/S, (r + P - b*D)/S] * W[o, i, a, b])
        backward weights dW[o, i, a, b] = +(dO[n, o, y, x] * I[n, i, y*S + a*D - P, x*S + b*D - P])

    Units are apart in groups. A dense layer is a convolution whose filters are as large as its input.

    Attributes:
        name: the layer's.
        family: what the kernels are written for, ``convolution`` or ``dense``.
        direction: FORWARD, BACKWARD_DATA or BACKWARD_WEIGHTS.
        input, output: the layer's, or their deltas: what the contraction reads or makes.
        groups: groups of units.
        vertical, horizontal: the window.
        array: finds the layer's parameters and gradients, and makes memory: Site.array.
        tuning: for kernels.
        batch_size: the plan's samples.
        bias_mode: 0 no bias, 1 one a unit, 2 one a position; backward weights: whose gradient is wanted.
        residual: what to add to a result of the forward pass.
        activation: macros of what to apply to it then.
        accumulate: backward data: whether to add to what is there.
    """

    name: str
    family: str
    direction: str
    input: Blob
    output: Blob
    groups: int
    vertical: WindowAxis
    horizontal: WindowAxis
    array: Callable[[str, str, int, int], Array]
    tuning: Tuning = field(default_factory=Tuning)
    batch_size: int = 1
    bias_mode: int = 0
    residual: Blob | None = None
    activation: Mapping[str, Macro] = field(default_factory=lambda: NO_ACTIVATION)
    accumulate: bool = False

    # -- sizes -------------------------------------------------------------------------------------------------------

    @property
    def input_units(self) -> int:
        """Input units of a group."""
        return self.input.shape.units // self.groups

    @property
    def output_units(self) -> int:
        """Output units of a group."""
        return self.output.shape.units // self.groups

    @property
    def taps(self) -> int:
        """Taps of a filter."""
        return self.vertical.kernel * self.horizontal.kernel

    @property
    def columns(self) -> int:
        """Weights of one output unit."""
        return self.input_units * self.taps

    @property
    def weights(self) -> int:
        """All weights."""
        return self.groups * self.output_units * self.columns

    @property
    def strides(self) -> Pair:
        """The vertical and the horizontal stride."""
        return self.vertical.stride, self.horizontal.stride

    @property
    def cores(self) -> int:
        """Compute units of the device."""
        return self.tuning.model.cores

    # -- as a product of weights with a blob: forward and backward data ----------------------------------------------

    @property
    def source(self) -> Blob:
        """The blob that it reads; of backward weights the input."""
        return self.output if self.direction == BACKWARD_DATA else self.input

    @property
    def result(self) -> Blob:
        """The blob that it makes; of backward weights the other one that it reads."""
        return self.input if self.direction == BACKWARD_DATA else self.output

    @property
    def units(self) -> int:
        """Units of the result, of a group."""
        return self.result.shape.units // self.groups

    @property
    def depth(self) -> int:
        """Units of the source, of a group."""
        return self.source.shape.units // self.groups

    @property
    def unit_stride(self) -> int:
        """From the weights of a unit of the result to those of the next."""
        return self.taps if self.direction == BACKWARD_DATA else self.columns

    @property
    def depth_stride(self) -> int:
        """The same for a unit of the source."""
        return self.columns if self.direction == BACKWARD_DATA else self.taps

    @property
    def phases(self) -> list[Phase]:
        """The dense parts, without those that add nothing to what is there."""
        height, width = self.result.shape.height, self.result.shape.width
        if self.direction != BACKWARD_DATA:
            return [Phase(0, 0, height, width, Taps.forward(self.vertical), Taps.forward(self.horizontal))]
        stride_y, stride_x = self.strides
        found = [
            Phase(
                y,
                x,
                -(-(height - y) // stride_y),
                -(-(width - x) // stride_x),
                Taps.of_phase(self.vertical, y),
                Taps.of_phase(self.horizontal, x),
            )
            for y in range(min(stride_y, height))
            for x in range(min(stride_x, width))
        ]
        return [phase for phase in found if phase.taps or not self.accumulate]

    @property
    def input_phases(self) -> InputPhases:
        """The phases of the input that the output reads."""
        axes, output = (self.vertical, self.horizontal), self.output.shape
        height, width = (
            size + (axis.span - 1) // axis.stride
            for axis, size in zip(axes, (output.height, output.width), strict=True)
        )
        return InputPhases((min(axes[0].stride, axes[0].span), min(axes[1].stride, axes[1].span)), height, width)

    @property
    def plain(self) -> Operation:
        """The contraction alone, without what is done to its results, nor what they are added to."""
        return replace(self, bias_mode=0, residual=None, activation=NO_ACTIVATION, accumulate=False)

    # -- launches ----------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.name} {self.direction.removesuffix('s')}"

    def memory(self, name: str, elements: int = 0, per_sample: int = 0) -> Array:
        """Memory of the layer's own: Site.memory."""
        return self.array("memory", name, elements, per_sample)

    @property
    def weight(self) -> Array:
        """The weights."""
        return self._parameter("WEIGHT")

    @property
    def bias(self) -> Array:
        """The bias; the weights where there is none, for kernels take no null arrays."""
        return self._parameter("BIAS")

    @property
    def gradient(self) -> Array:
        """The gradient of the weights."""
        return self._parameter("WEIGHT_GRADIENT")

    def _parameter(self, role: str) -> Array:
        """What a kernel calls ``WEIGHT``, ``BIAS``, ``WEIGHT_GRADIENT`` or ``BIAS_GRADIENT``."""
        name, _, gradient = role.lower().partition("_")
        known = name if name == "weight" or self.bias_mode else "weight"
        return self.array(gradient or "parameter", known, 0, 0)

    @property
    def macros(self) -> dict[str, Macro]:
        """All that kernels may ask about it."""
        return {
            "GROUPS": self.groups,
            "GROUP_INPUT_UNITS": self.input_units,
            "GROUP_OUTPUT_UNITS": self.output_units,
            "UNITS": self.units,
            "DEPTH": self.depth,
            "UNIT_STRIDE": self.unit_stride,
            "DEPTH_STRIDE": self.depth_stride,
            "TAPS": self.taps,
            "FILTER_HEIGHT": self.vertical.kernel,
            "FILTER_WIDTH": self.horizontal.kernel,
            "STRIDE_Y": self.vertical.stride,
            "STRIDE_X": self.horizontal.stride,
            "DILATION_Y": self.vertical.dilation,
            "DILATION_X": self.horizontal.dilation,
            "PAD_TOP": self.vertical.padding[0],
            "PAD_LEFT": self.horizontal.padding[0],
            "INPUT_HEIGHT": self.input.shape.height,
            "INPUT_WIDTH": self.input.shape.width,
            "RESULT_HEIGHT": self.result.shape.height,
            "RESULT_WIDTH": self.result.shape.width,
            "BIAS_MODE": self.bias_mode,
            "HAS_BIAS": int(self.bias_mode > 0),
            "HAS_RESIDUAL": int(self.residual is not None),
            **self.activation,
            "ACCUMULATE": int(self.accumulate),
        }

    def call(
        self,
        kernel: str,
        size: GlobalSize,
        local: tuple[int, int, int] | None = None,
        *,
        macros: Mapping[str, Macro] | None = None,
        facts: Mapping[str, Macro] | None = None,
        blobs: Mapping[str, Blob] | None = None,
        arrays: Mapping[str, Array] | None = None,
        label: str = "",
        samples: range | None = None,
    ) -> KernelCall:
        """A launch.

        Args:
            kernel: its name. Roles and macros that its header lists are the operation's, unless they are given here.
            size: its work-items.
            local: those of a group; None: as the driver likes.
            macros: the kernel's own macros.
            facts: more facts of the operation, of which the kernel gets those that its header lists.
            blobs: for roles that the operation does not know, or knows otherwise.
            arrays: likewise.
            label: for people, instead of the operation's.
            samples: those that it takes, None: all.
        """
        header = load(kernel)
        asked = {**self.macros, **(facts or {})}
        known = {
            **dict.fromkeys(("INPUT", "INPUT_DELTA"), self.input),
            **dict.fromkeys(("OUTPUT", "OUTPUT_DELTA"), self.output),
            "RESULT": self.result,
            # NOTE: a kernel takes no null arrays: roles that are not read are bound to what is there.
            "RESIDUAL": self.residual or self.result,
            **(blobs or {}),
        }
        own = arrays or {}
        return KernelCall(
            kernel,
            label or self.label,
            size,
            {role: known[role] for role in header.blobs if role in known},
            {role: own[role] if role in own else self._parameter(role) for role in header.arrays},
            {**{name: asked[name] for name in (*header.macros, *header.sizes) if name in asked}, **(macros or {})},
            self.tuning.of(kernel),
            local,
            samples=samples,
        )
