"""Pooling over windows and over whole planes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from blobnet.launch.elementwise import EpilogueOp, fits, with_epilogue
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import elementwise_work, full_group, group_size, planes_at_once, power_of_two
from blobnet.layers.base import ALIKE, Layer, LayerContext, TakesCells
from blobnet.layers.windows import Pooling
from blobnet.memory.blob import FLOAT32, Shape
from blobnet.memory.windows import Padding, Pair, WindowAxis

#: Of a unit's mean on a GPU: the most work-items that share it, and values that each of them adds.
_SHARERS, _OWN_VALUES = 512, 4


@dataclass(frozen=True)
class _Pool(Pooling):
    """Base of the layers that pool windows.

    Their kernels clamp every window to the data, forward and backward, so they ask for no halo at all.
    """

    pool_size: int | Pair
    stride: int | Pair | None = None
    padding: Padding = 0

    def takes_cells(self, site: LayerContext) -> TakesCells:
        return ALIKE

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        return fits(steps, blobs=0)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape(inputs[0].units, *self._output_sizes(inputs[0]))

    def _window_macros(self, planes: Shape) -> dict[str, Macro]:
        """The macros of the window over the input's ``planes``."""
        vertical, horizontal = self._axes(planes)
        return {
            "WINDOW_HEIGHT": vertical.kernel,
            "WINDOW_WIDTH": horizontal.kernel,
            "STRIDE_Y": vertical.stride,
            "STRIDE_X": horizontal.stride,
            "PAD_TOP": vertical.padding[0],
            "PAD_LEFT": horizontal.padding[0],
        }

    def _full_columns(self, planes: Shape) -> tuple[int, int]:
        """The output columns, from first to after the last, whose windows lie within the input's ``planes``."""
        _, axis = self._axes(planes)
        before = axis.padding[0]
        begin = min(-(-before // axis.stride), axis.output_size(planes.width))
        return begin, max(begin, (planes.width + before - axis.kernel) // axis.stride + 1)

    def _forward_call(self, site: LayerContext, kernel: str, **arrays: Array) -> KernelCall:
        planes = site.inputs[0].layout.shape
        tunables = site.tuning.of(kernel)
        begin, end = self._full_columns(planes)
        size, local = elementwise_work(site.output.layout.shape, site.tuning, site.batch_size)
        call = KernelCall(
            kernel,
            f"{site.name} forward",
            size,
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output},
            arrays=arrays,
            macros={
                **self._window_macros(planes),
                "LANES": _lanes_within(end - begin, tunables["MAXIMUM_LANES"], site.inputs[0]),
                "FULL_BEGIN": begin,
                "FULL_END": end,
            },
            tunables=tunables,
            local_size=local,
        )
        return with_epilogue(call, site.epilogue)

    def _backward_calls(self, site: LayerContext, kernel: str, *, clamp_windows: bool) -> list[KernelCall]:
        """``clamp_windows``: whether windows that reach beyond the data need care."""
        delta = site.input_deltas[0]
        if delta is None:
            return []
        planes, output = delta.layout.shape, site.delta.layout.shape
        tunables = site.tuning.of(kernel)
        _, axis = self._axes(planes)
        before, stride = axis.padding[0], axis.stride
        first_group, end_group = before // stride, (planes.width - 1 + before) // stride + 1
        first_column, end_column = self._full_columns(planes) if clamp_windows else (0, output.width)
        begin = min(end_group, max(first_column + -(-axis.kernel // stride) - 1, -(-before // stride)))
        end = max(begin, min(end_column, (planes.width + before) // stride))
        lanes = _lanes_within(end - begin, tunables["MAXIMUM_LANES"], delta)
        if site.accumulate[0]:
            end -= (end - begin) % lanes
        groups = Shape(planes.units, planes.height, end_group - first_group)
        size, local = elementwise_work(groups, site.tuning, site.batch_size)
        return [
            KernelCall(
                kernel,
                f"{site.name} backward data",
                size,
                blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": delta},
                macros={
                    **self._window_macros(planes),
                    "ACCUMULATE": int(site.accumulate[0]),
                    "LANES": lanes,
                    "GROUP_BEGIN": first_group,
                    "GROUP_END": end_group,
                    "INNER_BEGIN": begin,
                    "INNER_END": end,
                },
                tunables=tunables,
                local_size=local,
            )
        ]


def _lanes_within(run: int, maximum: int, blob: Blob) -> int:
    """The longest vector of numbers within ``run`` positions: a power of two up to ``maximum``; at least 1."""
    lanes = 1
    while blob.type.cell == 1 and 2 * lanes <= min(run, maximum):
        lanes *= 2
    return lanes


@dataclass(frozen=True)
class _MaxPool(_Pool):
    """Base of max pooling."""

    ceil_mode: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.ceil_mode, bool), "ceil_mode must be True or False", ceil_mode=self.ceil_mode)

    def windows(self, shape: Shape) -> tuple[WindowAxis, ...]:
        windows = super().windows(shape)
        if not self.ceil_mode or self.padding == "same":
            return windows
        return tuple(axis.rounded_up(size) for axis, size in zip(windows, shape.axes[-self.rank :], strict=True))

    def forward(self, site: LayerContext) -> list[KernelCall]:
        if not any(site.input_deltas):
            return [self._forward_call(site, "pooling/max_forward")]
        call = self._forward_call(site, "pooling/max_forward_training")
        return [self._with_winners(site, call)]

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        calls = self._backward_calls(site, "pooling/max_backward", clamp_windows=False)
        return [self._with_winners(site, call) for call in calls]

    def _with_winners(self, site: LayerContext, call: KernelCall) -> KernelCall:
        """Return a call with the array of the taps that won, in as few bytes as their numbers fit."""
        vertical, horizontal = self._axes(site.inputs[0].layout.shape)
        taps = vertical.kernel * horizontal.kernel
        size = next(size for size in (1, 2, 4) if taps <= 1 << 8 * size)
        words = -(-size * site.output.shape.elements // FLOAT32.itemsize)
        macros = {**call.macros, "WINNER_BYTES": size}
        return replace(call, arrays={**call.arrays, "WINNERS": site.memory("winners", per_sample=words)}, macros=macros)


@dataclass(frozen=True)
class _AveragePool(_Pool):
    """Base of average pooling."""

    count_include_pad: bool = True

    def _window_macros(self, planes: Shape) -> dict[str, Macro]:
        return {**super()._window_macros(planes), "COUNT_INCLUDE_PAD": int(self.count_include_pad)}

    def forward(self, site: LayerContext) -> list[KernelCall]:
        return [self._forward_call(site, "pooling/average_forward")]

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        return self._backward_calls(site, "pooling/average_backward", clamp_windows=not self.count_include_pad)


@dataclass(frozen=True)
class MaxPool2D(_MaxPool):
    """The largest value in a window that slides over each plane.

        output(n, z, y, x) = max over v, u of input(n, z, y * stride - top + v, x * stride - left + u)

    (N, C, H, W) -> (N, C, floor((H + top + bottom - v) / stride) + 1, likewise for W). Padding never wins. Where a
    maximum occurs twice, the first one in row-major order gets the delta; a NaN wins over everything (as in PyTorch).

    Args:
        pool_size: the window: rows and columns, or one int for both.
        stride: the step from window to window; the window itself if None. It may be smaller or larger.
        padding: an int, (vertical, horizontal), ((top, bottom), (left, right)), "same" or "valid"; smaller than the
            window on every side.
        ceil_mode: whether sizes are rounded up instead: a last window may reach beyond the padded input, if it begins
            before the end of the data.

    Raises:
        OptionError: a size, stride or padding that is not allowed.
        ShapeError: the input has not these axes, or the window is larger than the padded input.
    """

    rank: ClassVar[int] = 2


@dataclass(frozen=True)
class MaxPool1D(_MaxPool):
    """The largest value in a window that slides along each unit.

        output(n, z, x) = max over u of input(n, z, x * stride - left + u)

    (N, C, W) -> (N, C, floor((W + left + right - u) / stride) + 1). Ties and NaN as in :class:`MaxPool2D`.

    Args:
        pool_size: the window's length.
        stride: the step from window to window; the window itself if None.
        padding: an int, (left, right), "same" or "valid"; smaller than the window on either side.
        ceil_mode: as in :class:`MaxPool2D`.

    Raises:
        OptionError: a size, stride or padding that is not allowed.
        ShapeError: the input has not these axes, or the window is larger than the padded input.
    """

    rank: ClassVar[int] = 1


@dataclass(frozen=True)
class AveragePool2D(_AveragePool):
    """The mean over a window that slides over each plane.

        output(n, z, y, x) = sum over v, u of input(n, z, y * stride - top + v, x * stride - left + u) / divisor

    (N, C, H, W) -> (N, C, floor((H + top + bottom - v) / stride) + 1, likewise for W).

    Args:
        pool_size: the window: rows and columns, or one int for both.
        stride: the step from window to window; the window itself if None. It may be smaller or larger.
        padding: an int, (vertical, horizontal), ((top, bottom), (left, right)), "same" or "valid"; smaller than the
            window on every side.
        count_include_pad: whether the divisor is the window's area, or else the number of its cells that are data.

    Raises:
        OptionError: a size, stride or padding that is not allowed.
        ShapeError: the input has not these axes, or the window is larger than the padded input.
    """

    rank: ClassVar[int] = 2


@dataclass(frozen=True)
class AveragePool1D(_AveragePool):
    """The mean over a window that slides along each unit.

        output(n, z, x) = sum over u of input(n, z, x * stride - left + u) / divisor

    (N, C, W) -> (N, C, floor((W + left + right - u) / stride) + 1).

    Args:
        pool_size: the window's length.
        stride: the step from window to window; the window itself if None.
        padding: an int, (left, right), "same" or "valid"; smaller than the window on either side.
        count_include_pad: whether the divisor is the window's length, or else the number of its cells that are data.

    Raises:
        OptionError: a size, stride or padding that is not allowed.
        ShapeError: the input has not these axes, or the window is larger than the padded input.
    """

    rank: ClassVar[int] = 1


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    """The mean of each unit (Lin et al., *Network in Network*, 2013).

        output(n, z) = the sum of input(n, z, ...) over all its positions / their number

    (N, C, any axes) -> (N, C).
    """

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        return fits(steps, blobs=0)

    def takes_cells(self, site: LayerContext) -> TakesCells:
        return TakesCells(inputs=not any(step.numbers for step in site.epilogue))

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape.flat(inputs[0].units)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        model, shape = site.tuning.model, site.inputs[0].layout.shape
        if model.is_simt:
            group = full_group(model, power_of_two(-(-shape.positions // _OWN_VALUES), group_size(model, _SHARERS)))
        else:
            # A CPU's group does units one after the other: it takes some time to begin.
            group = (1, 1, planes_at_once(shape))
        call = KernelCall(
            "pooling/global_average_forward",
            f"{site.name} forward",
            GlobalSize(group[0], 1, site.inputs[0].layout.unit_count),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output},
            local_size=group,
        )
        return [with_epilogue(call, site.epilogue)]

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        delta = site.input_deltas[0]
        if delta is None:
            return []
        size, local = elementwise_work(delta.layout.shape, site.tuning, site.batch_size)
        return [
            KernelCall(
                "pooling/global_average_backward",
                f"{site.name} backward data",
                size,
                blobs={"INPUT_DELTA": delta, "OUTPUT_DELTA": site.delta},
                macros={"ACCUMULATE": int(site.accumulate[0])},
                local_size=local,
            )
        ]
