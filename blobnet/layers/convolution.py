"""Convolutions, with one set of kernels for one and two dimensions, any stride, dilation, padding and groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from blobnet.blob import Halo, Shape
from blobnet.geometry import Padding, Pair, WindowAxis, check_padding, halo, pair, window_axes
from blobnet.initializers import check_initializer
from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.activation import check_activation, split
from blobnet.layers.base import Layer, ParameterSpec, Site
from blobnet.layers.blocking import choose_tile, lanes_for, position_tile, splits_for
from blobnet.layers.gradients import bias_gradient, reduce_splits

#: The bias modes of seed 000: nothing, one a unit, one a position.
BIAS_MODES: dict[bool | str, int] = {False: 0, True: 1, "position": 2}


@dataclass(frozen=True)
class _Convolution(Layer):
    """What Conv1D and Conv2D share; ``rank`` is the number of spatial axes."""

    filters: int
    kernel_size: int | Pair
    stride: int | Pair = 1
    padding: Padding = 0
    dilation: int | Pair = 1
    groups: int = 1
    bias: bool | str = True
    activation: str | None = None
    initializer: str = "he_normal"
    rank: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self._lists_to_tuples()
        self._require_counts("filters", "groups")
        for name in ("kernel_size", "stride", "dilation"):
            pair(self.subject, name, getattr(self, name), self.rank)
        check_padding(self.subject, self.padding, self.rank)
        known = isinstance(self.bias, (bool, str)) and self.bias in BIAS_MODES
        self._require(known, "bias must be True, False or 'position'", bias=self.bias)
        divides = self.filters % self.groups == 0
        self._require(divides, "groups must divide filters", filters=self.filters, groups=self.groups)
        check_activation(self, self.activation)
        check_initializer(self.subject, self.initializer)

    @property
    def backward_reads_inputs(self) -> bool:
        return True

    @property
    def fuses_activation(self) -> bool:
        return True

    def expanded(self) -> tuple[Layer, ...]:
        return split(self, replace(self, activation=None), self.activation)

    def _axes(self, shape: Shape) -> tuple[WindowAxis, WindowAxis]:
        kernel, stride, dilation = (
            pair(self.subject, name, getattr(self, name), self.rank) for name in ("kernel_size", "stride", "dilation")
        )
        return window_axes(kernel, stride, dilation, self.padding, (shape.height, shape.width), self.rank)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = inputs[0]
        self._require_rank(shape, self.rank)
        divides = shape.units % self.groups == 0
        self._require_shape(divides, "groups must divide the input's units", input=shape, groups=self.groups)
        vertical, horizontal = self._axes(shape)
        fits = vertical.fits(shape.height) and horizontal.fits(shape.width)
        self._require_shape(
            fits,
            "the dilated filter must fit the padded input",
            hint="use a smaller filter, more padding, or pool less before this layer.",
            input=shape,
            filter=(vertical.span, horizontal.span),
            padding=(vertical.padding, horizontal.padding),
        )
        height, width = vertical.output_size(shape.height), horizontal.output_size(shape.width)
        return Shape(self.filters, height, width, self.rank)

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        vertical, horizontal = self._axes(inputs[0])
        taps = (vertical.kernel, horizontal.kernel)[2 - self.rank :]
        shape = (self.filters, inputs[0].units // self.groups, *taps)
        weight = ParameterSpec("weight", shape, self.initializer, decayed=True)
        if not self.bias:
            return (weight,)
        dimensions = self.output_shape(inputs).dimensions if self.bias == "position" else (self.filters,)
        return weight, ParameterSpec("bias", dimensions, "zeros")

    def input_halo(self, inputs: Sequence[Shape]) -> Halo:
        vertical, horizontal = self._axes(inputs[0])
        width = inputs[0].width
        before, after = horizontal.input_halo(width)
        # A row of the output must fit the pitch, or two of its cells would be one position.
        after = max(after, horizontal.output_size(width) - width)
        return halo(vertical.input_halo(inputs[0].height), (before, after))

    def delta_halo(self, inputs: Sequence[Shape]) -> Halo:
        vertical, horizontal = self._axes(inputs[0])
        width = inputs[0].width
        before, after = horizontal.delta_halo(width)
        # A row of the widest phase must fit the pitch, or two cells of a phase would be one position.
        after = max(after, -(-width // horizontal.stride) - horizontal.output_size(width))
        return halo(vertical.delta_halo(inputs[0].height), (before, after))

    def same_pitch(self, inputs: Sequence[Shape]) -> bool:
        return all(axis.stride == 1 for axis in self._axes(inputs[0]))

    def _macros(self, site: Site) -> dict[str, Macro]:
        vertical, horizontal = self._axes(site.inputs[0].shape)
        return {
            "GROUP_INPUT_UNITS": site.inputs[0].shape.units // self.groups,
            "GROUP_OUTPUT_UNITS": self.filters // self.groups,
            "FILTER_HEIGHT": vertical.kernel,
            "FILTER_WIDTH": horizontal.kernel,
            "STRIDE_Y": vertical.stride,
            "STRIDE_X": horizontal.stride,
            "DILATION_Y": vertical.dilation,
            "DILATION_X": horizontal.dilation,
            "PAD_TOP": vertical.padding[0],
            "PAD_LEFT": horizontal.padding[0],
        }

    def forward(self, site: Site) -> list[KernelCall]:
        macros = self._macros(site)
        output, units = site.output.shape, self.filters // self.groups
        flat = macros["STRIDE_Y"] == 1 and macros["STRIDE_X"] == 1
        kernel = "convolution/forward_flat" if flat else "convolution/forward_rows"
        tunables = site.tuning.of(kernel)
        if flat:
            del macros["STRIDE_Y"], macros["STRIDE_X"]
            positions = (output.height - 1) * site.inputs[0].layout.unit_memory_width + output.width
            tile, tiles = position_tile(tunables, units, 1, positions)
        else:
            tile, tiles = position_tile(tunables, units, output.height, output.width)
        blocks = self.groups * -(-units // tile["BLOCK_UNITS"])
        bias_mode = BIAS_MODES[self.bias]
        return [
            KernelCall(
                kernel,
                f"{site.name} forward",
                GlobalSize(tiles * tile["LOCAL_WIDTH"], blocks),
                blobs={"INPUT": site.inputs[0], "OUTPUT": site.output},
                # NOTE: a kernel takes no null array; without a bias the role is bound to the weights and not read.
                arrays={
                    "WEIGHT": site.parameter("weight"),
                    "BIAS": site.parameter("bias" if bias_mode else "weight"),
                },
                macros={
                    **macros,
                    "BIAS_MODE": bias_mode,
                    "ACTIVATION": f"ACTIVATION_{site.activation or 'linear'}",
                    **_block_macros(tile),
                },
                tunables=tunables,
                local_size=(tile["LOCAL_WIDTH"], 1, 1),
            )
        ]

    def backward_parameters(self, site: Site) -> list[KernelCall]:
        macros = self._macros(site)
        kernel = "convolution/backward_weight"
        tunables = site.tuning.of(kernel)
        delta = site.delta
        same_pitch = delta.layout.unit_memory_width == site.inputs[0].layout.unit_memory_width
        flat = macros["STRIDE_Y"] == 1 and macros["STRIDE_X"] == 1 and (same_pitch or delta.shape.height == 1)
        run = delta.shape.width
        if flat:
            run += (delta.shape.height - 1) * delta.layout.unit_memory_width
        units = self.filters // self.groups
        weight = site.gradient("weight")
        columns = weight.elements // self.filters
        limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_COLUMNS"], tunables["MAXIMUM_ACCUMULATORS"]
        block_units, block_columns = choose_tile(units, columns, *limits)
        size = (-(-columns // block_columns), self.groups * -(-units // block_units))
        splits = splits_for(size[0] * size[1], tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"])
        partials = site.memory("weight partials", splits * weight.elements) if splits > 1 else weight
        local = tunables["GROUP_WIDTH"]
        label = f"{site.name} backward weight"
        calls = [
            KernelCall(
                kernel,
                label,
                GlobalSize(size[0] * local, size[1], splits, per_sample=False),
                blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": delta},
                arrays={"PARTIALS": partials},
                macros={
                    **macros,
                    "GROUPS": self.groups,
                    "FLAT": int(flat),
                    "SPLITS": splits,
                    "LANES": lanes_for(run, tunables["MAXIMUM_LANES"]),
                    "BLOCK_COLUMNS": block_columns,
                    "BLOCK_UNITS": block_units,
                },
                tunables=tunables,
                local_size=(local, 1, 1),
            )
        ]
        if splits > 1:
            calls.append(reduce_splits(site, label, partials, weight, splits))
        return calls + bias_gradient(site, BIAS_MODES[self.bias])

    def backward_data(self, site: Site) -> list[KernelCall]:
        target = site.input_deltas[0]
        if target is None:
            return []
        axes = self._axes(target.shape)
        calls = [
            self._phase_call(site, axes, (y, x))
            for y in range(min(axes[0].stride, target.shape.height))
            for x in range(min(axes[1].stride, target.shape.width))
        ]
        # Phases without taps are 0: there is nothing to add.
        return [call for call in calls if not site.accumulate[0] or (call.macros["TAPS_Y"] and call.macros["TAPS_X"])]

    def _phase_call(self, site: Site, axes: tuple[WindowAxis, WindowAxis], phase: Pair) -> KernelCall:
        target = site.input_deltas[0]
        assert target is not None
        kernel = "convolution/backward_data"
        tunables = site.tuning.of(kernel)
        units = target.shape.units // self.groups
        height, width = (
            -(-(size - first) // axis.stride)
            for size, first, axis in zip((target.shape.height, target.shape.width), phase, axes, strict=True)
        )
        positions = (height - 1) * site.delta.layout.unit_memory_width + width
        tile, tiles = position_tile(tunables, units, 1, positions)
        vertical, horizontal = (_phase_taps(axis, first) for axis, first in zip(axes, phase, strict=True))
        macros = self._macros(site)
        for unused in ("DILATION_Y", "DILATION_X", "PAD_TOP", "PAD_LEFT"):
            del macros[unused]
        return KernelCall(
            kernel,
            f"{site.name} backward data",
            GlobalSize(tiles * tile["LOCAL_WIDTH"], self.groups * -(-units // tile["BLOCK_UNITS"])),
            blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
            arrays={"WEIGHT": site.parameter("weight")},
            macros={
                **macros,
                "PHASE_Y": phase[0],
                "PHASE_X": phase[1],
                "TAPS_Y": vertical.count,
                "TAPS_X": horizontal.count,
                "TAP_Y_FIRST": vertical.first,
                "TAP_Y_STEP": vertical.step,
                "TAP_X_FIRST": horizontal.first,
                "TAP_X_STEP": horizontal.step,
                "ROW_FIRST": vertical.shift,
                "ROW_STEP": vertical.shift_step,
                "COLUMN_FIRST": horizontal.shift,
                "COLUMN_STEP": horizontal.shift_step,
                "ACCUMULATE": int(site.accumulate[0]),
                **_block_macros(tile),
            },
            tunables=tunables,
            local_size=(tile["LOCAL_WIDTH"], 1, 1),
        )


@dataclass(frozen=True)
class _PhaseTaps:
    """The taps of one axis that touch the input cells of a phase, and where in the delta they read."""

    count: int
    first: int
    step: int
    shift: int
    shift_step: int


def _phase_taps(axis: WindowAxis, phase: int) -> _PhaseTaps:
    """Taps k with (phase + padding - k * dilation) divisible by the stride, the first one's shift and the step."""
    taps = [k for k in range(axis.kernel) if (phase + axis.padding[0] - k * axis.dilation) % axis.stride == 0]
    if not taps:
        return _PhaseTaps(0, 0, 1, 0, 0)
    common = math.gcd(axis.stride, axis.dilation)
    shift = (phase + axis.padding[0] - taps[0] * axis.dilation) // axis.stride
    return _PhaseTaps(len(taps), taps[0], axis.stride // common, shift, -axis.dilation // common)


def _block_macros(tile: dict[str, int]) -> dict[str, Macro]:
    return {name: tile[name] for name in ("LANES", "BLOCK_UNITS", "BLOCK_VECTORS")}


@dataclass(frozen=True)
class Conv2D(_Convolution):
    """2-D convolution: (N, C, H, W) -> (N, filters, H', W').

    output[o] = bias[o] + sum over input units i of its group and taps of weight[o, i] * input[i]

    Args:
        filters: output units.
        kernel_size: taps, an int or (vertical, horizontal).
        stride: an int or (vertical, horizontal).
        padding: zeros around the input: an int, (vertical, horizontal), ((top, bottom), (left, right)), 'same' or
            'valid'.
        dilation: distance between taps, an int or (vertical, horizontal).
        groups: independent groups of units; as many as input units make a depthwise convolution.
        bias: False, True (one a unit) or 'position' (one for each output value): modes 0, 1 and 2 of seed 000.
        activation: a function to apply to the output, see Activation.
        initializer: how ``weight`` starts, see blobnet.initializers.

    Raises:
        OptionError: an argument is out of range.
        ShapeError: the input has no height and width, its units do not divide into groups, or the filter does not fit.
    """


@dataclass(frozen=True)
class Conv1D(_Convolution):
    """1-D convolution: (N, C, W) -> (N, filters, W'). Arguments as for Conv2D, with one number an axis.

    ``padding`` is an int, (left, right), 'same' or 'valid'.
    """

    rank: ClassVar[int] = 1
