"""Convolutions, with one set of kernels for one and two dimensions, any stride, dilation, padding and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from blobnet.implementations.base import BACKWARD_WEIGHTS, unbroken
from blobnet.launch.elementwise import PER_CELL, SUM, EpilogueOp, fits
from blobnet.launch.kernel_call import KernelCall
from blobnet.launch.task import IN_CELLS, Task, convolution_text
from blobnet.layers.base import LayerContext, ParameterSpec, TakesCells
from blobnet.layers.product import BIAS_MODES, _Product, without_norm
from blobnet.layers.windows import Filtering
from blobnet.memory.blob import Halo, Shape
from blobnet.memory.windows import Padding, Pair, halo_of_delta, halo_of_input


@dataclass(frozen=True)
class _Convolution(Filtering, _Product):
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
    family: ClassVar[str] = "convolution"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = isinstance(self.bias, (bool, str)) and self.bias in BIAS_MODES
        self._require(known, "bias must be True, False or 'position'", bias=self.bias)

    @property
    def notation(self) -> str:
        """The hyperparameters that make the work, as benchmarks and tuning write them: ``64k3s2p1``."""
        text = convolution_text(self.filters, self.kernel_size, self.stride, self.padding, self.dilation, self.groups)
        return text + ("b" if self.bias else "")

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        if self.bias == "position":
            # Kernels add a bias for each position and another blob to a cell at once.
            is_added = bool(steps) and steps[0].expression == SUM and steps[0].per == PER_CELL
            return fits(steps, blobs=int(is_added))
        return fits(without_norm(steps), blobs=1)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape(self.filters, *self._output_sizes(inputs[0]))

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        taps = (axis.kernel for axis in self.windows(inputs[0]))
        bias = self.output_shape(inputs).dimensions if self.bias == "position" else (self.filters,)
        return self._specs((self.filters, inputs[0].units // self.groups, *taps), bias)

    def input_halo(self, inputs: Sequence[Shape]) -> Halo:
        return halo_of_input(*self._axes(inputs[0]), inputs[0].height, inputs[0].width)

    def delta_halo(self, inputs: Sequence[Shape]) -> Halo:
        return halo_of_delta(*self._axes(inputs[0]), inputs[0].height, inputs[0].width)

    def takes_cells(self, site: LayerContext) -> TakesCells:
        kind, apart = site.tuning.cells, (site.inputs[0].shape.units, self.filters) == (self.groups,) * 2
        each = 1 if apart else self.groups
        if kind is None or self.bias == "position":
            return TakesCells()
        inputs, output = (blob.shape.units // each % kind.cell == 0 for blob in (site.inputs[0], site.output))
        if apart and not inputs:
            return TakesCells()
        found = self.alternatives(site.in_cells(kind))
        ways = [unbroken(site.tuning.choices, task, each) for task, each in found.items()]
        measured = all(any(way.doubt == 0 for way in each) for each in ways)
        return TakesCells(inputs, output, alike=apart) if measured else TakesCells()

    def same_pitch(self, inputs: Sequence[Shape]) -> bool:
        return all(axis.stride == 1 for axis in self._axes(inputs[0]))

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        return super().backward_parameters(site) + self.operation(site, BACKWARD_WEIGHTS).bias_gradient()

    def _task(self, site: LayerContext, direction: str) -> Task:
        sizes = site.inputs[0].shape.units, *site.inputs[0].shape.axes[-self.rank :]
        # The bias costs nothing to speak of.
        layer = f"{'x'.join(map(str, sizes))}:{replace(self, bias=False).notation}"
        has_cells = site.inputs[0].type.cell * site.output.type.cell > 1
        precision = f"{site.tuning.precision}{IN_CELLS}" if has_cells else site.tuning.precision
        return Task(direction, layer, site.batch_size, precision)


@dataclass(frozen=True)
class Conv2D(_Convolution):
    """2-D convolution: (N, C, H, W) -> (N, filters, H', W').

    output[o] = bias[o] + sum over input units i of its group and taps of weight[o, i] * input[i]

    Square filters at stride 1 (on processors 3x3 and 5x5) go by minimal filtering (Lavin & Gray 2015, arXiv 1509.09308)
    where that is faster: the largest errors, at up to 512 units, then are 4e-5 of the result's root mean square instead
    of 2e-5.

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
        initializer: how ``weight`` starts, see blobnet.layers.initializers.

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
