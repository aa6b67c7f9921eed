"""Convolutions at few positions on GPUs, bound by reading the weights: dot products over the input units."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from blobnet.kernel_call import GlobalSize, KernelCall, power_of_two
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Problem

#: Positions of all samples, and products of a position and a tap, up to which these kernels are worth their unrolling.
MOST_POSITIONS, MOST_PRODUCTS = 8, 128
#: Input units from which the work-items of a group have enough to do.
_LEAST_UNITS = 128
#: Work-items of a warp (kernels/warp.h), and of a group at most.
_WARP, _ITEMS = 32, 256
#: Output units of a group, where each weight is used once.
_UNITS = 4
#: Where weights are used several times: values of the input that a work-item keeps.
_VALUES = 32
#: The same: most values of one input unit, all of which a work-item keeps.
_MOST_WINDOW = 64
#: The same: weights of a group in local memory, of which a compute unit's should hold several groups'.
_WEIGHTS = 6144


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """A work-group for a few output units, where so few positions are asked for that a weight is used a few times."""
    positions = site.output.shape.height * site.output.shape.width
    few = site.batch_size * positions <= MOST_POSITIONS and positions * problem.taps <= MOST_PRODUCTS
    fits = positions == 1 or Window.of(site, problem).values <= _MOST_WINDOW
    if few and fits and problem.input_units >= _LEAST_UNITS:
        # The weights' bytes bind, which no other way reads as they lie: measured as the fastest wherever it fits.
        yield Candidate("dot", 0.0, partial(_forward_calls, site, problem, positions))


@dataclass(frozen=True)
class Window:
    """What all positions read of an input unit, as aligned runs: ``reads`` of ``lanes``, ``skew`` before the first."""

    lanes: int
    reads: int
    skew: int

    @classmethod
    def of(cls, site: Site, problem: Problem) -> Window:
        """From the first element to the last, with what is between rows."""
        output, layout = site.output.shape, site.inputs[0].layout
        axes = problem.vertical, problem.horizontal
        height, width = (
            (size - 1) * axis.stride + axis.span for size, axis in zip((output.height, output.width), axes, strict=True)
        )
        lanes = math.gcd(layout.unit_memory_elements, 4)
        skew = int(layout.index(0, -layout.unit_offset, -axes[0].padding[0], -axes[1].padding[0])) % lanes
        return cls(lanes, -(-(skew + (height - 1) * layout.unit_memory_width + width) // lanes), skew)

    @property
    def values(self) -> int:
        """Values that a work-item keeps."""
        return self.lanes * self.reads

    @property
    def macros(self) -> dict[str, Macro]:
        """The window as macros."""
        return {"LANES": self.lanes, "READS": self.reads, "SKEW": self.skew}


def _forward_calls(site: Site, problem: Problem, positions: int) -> list[KernelCall]:
    macros = {**problem.macros, **problem.epilogue_macros(site)}
    # Aligned runs, of weights that are read at once, divide those of an output unit.
    run = 1 if problem.columns % 4 else 4
    if positions == 1:
        kernel, items, block = "convolution/forward_dot", _ITEMS, _UNITS
        # From one position there is no stride to another.
        macros = {name: value for name, value in macros.items() if name not in problem.stride_macros}
        macros |= {"LANES": run, "BLOCK_UNITS": block}
    else:
        kernel, block = "convolution/forward_dot_local", 1
        window = Window.of(site, problem)
        units, items = _round(problem, window)
        macros |= {"ITEM_UNITS": units, "RUN": run, **window.macros}
    return [
        KernelCall(
            kernel,
            f"{site.name} forward",
            GlobalSize(items * problem.groups * -(-problem.output_units // block)),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)},
            arrays={"WEIGHT": site.parameter("weight"), **problem.epilogue_arrays(site)},
            macros=macros,
            local_size=(items, 1, 1),
        )
    ]


def _round(problem: Problem, window: Window) -> tuple[int, int]:
    """Input units a work-item, and work-items a group: as many as there is room, and work, for."""
    units = min(max(1, _VALUES // window.values), -(-problem.input_units // _WARP))
    items = max(_WARP, power_of_two(-(-problem.input_units // units), _ITEMS))
    while items > _WARP and units * items * problem.taps > _WEIGHTS:
        items //= 2
    return units, items
