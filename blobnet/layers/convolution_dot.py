"""Convolutions at few positions on GPUs, bound by reading the weights: dot products over the input units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.layers.base import Site
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Problem

#: Positions of all samples, and products of a position and a tap, up to which these kernels are worth their unrolling.
MOST_POSITIONS, MOST_PRODUCTS = 8, 128
#: Input units from which the work-items of a group have enough to do.
_LEAST_UNITS = 128
#: Output units of a work-group, and its work-items.
_UNITS, _LOCAL = 4, 256


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """A work-group for a few output units, where so few positions are asked for that a weight is used a few times."""
    positions = site.output.shape.height * site.output.shape.width
    few = site.batch_size * positions <= MOST_POSITIONS and positions * problem.taps <= MOST_PRODUCTS
    if few and problem.input_units >= _LEAST_UNITS:
        # The weights' bytes bind, which no other way reads as they lie: measured as the fastest wherever it fits.
        yield Candidate("dot", 0.0, partial(_forward_calls, site, problem))


def _forward_calls(site: Site, problem: Problem) -> list[KernelCall]:
    return [
        KernelCall(
            "convolution/forward_dot",
            f"{site.name} forward",
            GlobalSize(_LOCAL, problem.groups * -(-problem.output_units // _UNITS)),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)},
            arrays={"WEIGHT": site.parameter("weight"), **problem.epilogue_arrays(site)},
            macros={
                **problem.macros,
                **problem.epilogue_macros(site),
                "LANES": 1 if problem.columns % 4 else 4,
                "BLOCK_UNITS": _UNITS,
            },
            local_size=(_LOCAL, 1, 1),
        )
    ]
