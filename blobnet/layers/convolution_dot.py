"""Convolutions at few positions on GPUs, bound by reading the weights: dot products over the input units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Problem

#: Positions of all samples, and products of a position and a tap, up to which these kernels are worth their unrolling.
MOST_POSITIONS, MOST_PRODUCTS = 8, 128
#: Input units from which the work-items of a group have enough to do.
_LEAST_UNITS = 128
#: Output units of a work-group, its work-items, and the sums and runs of columns under way of one of them, at most.
_UNITS, _LOCAL, _SUMS, _AHEAD = 4, 256, 16, 5


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """A work-group for a few output units, where so few positions are asked for that a weight is used a few times."""
    shape, source = site.output.shape, site.inputs[0].shape
    positions = shape.height * shape.width
    few = site.batch_size * positions <= MOST_POSITIONS and positions * problem.taps <= MOST_PRODUCTS
    window = problem.vertical.reach(source.height), problem.horizontal.reach(source.width)
    # Neighbouring cells, as they are stored, and neighbouring columns, as they are read, lie in different banks.
    pitch = -(-problem.input_units // 32) * 32 + 4
    elements = max(window[0] * window[1] * pitch, _SUMS * _LOCAL) + _LOCAL
    if few and problem.input_units >= _LEAST_UNITS and 4 * elements <= site.tuning.local_memory:
        macros: dict[str, Macro] = {"UNIT_PITCH": pitch, "WINDOW_HEIGHT": window[0], "WINDOW_WIDTH": window[1]}
        # The weights' bytes bind, which no other way reads as they lie: measured as the fastest wherever it fits.
        yield Candidate("dot", 0.0, partial(_forward_calls, site, problem, macros))


def _forward_calls(site: Site, problem: Problem, window: dict[str, Macro]) -> list[KernelCall]:
    lanes = 1 if problem.columns % 4 else 4
    units = min(_UNITS, _SUMS // (site.output.shape.height * site.output.shape.width))
    return [
        KernelCall(
            "convolution/forward_dot",
            f"{site.name} forward",
            GlobalSize(_LOCAL, problem.groups * -(-problem.output_units // units)),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)},
            arrays={"WEIGHT": site.parameter("weight"), **problem.epilogue_arrays(site)},
            macros={
                **problem.macros,
                **problem.epilogue_macros(site),
                **window,
                "LANES": lanes,
                "AHEAD": min(_AHEAD, -(-problem.columns // (lanes * _LOCAL))),
                "BLOCK_UNITS": units,
            },
            local_size=(_LOCAL, 1, 1),
        )
    ]
