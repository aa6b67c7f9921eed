"""Convolutions at few positions on GPUs, bound by reading the weights: dot products over the input units."""

from __future__ import annotations

from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.layers.base import Site
from blobnet.layers.convolution_problem import Problem

#: Positions of all samples, and products of a position and a tap, up to which these kernels are worth their unrolling.
MOST_POSITIONS, MOST_PRODUCTS = 8, 128
#: Input units from which the work-items of a group have enough to do.
_LEAST_UNITS = 128
#: Output units of a work-group, and its work-items.
_UNITS, _LOCAL = 2, 256


def fits(site: Site, problem: Problem) -> bool:
    """Whether so few positions are asked for that every weight is used but a few times."""
    positions = site.output.shape.height * site.output.shape.width
    few = site.batch_size * positions <= MOST_POSITIONS and positions * problem.taps <= MOST_PRODUCTS
    return few and problem.input_units >= _LEAST_UNITS


def forward(site: Site, problem: Problem) -> list[KernelCall]:
    """A work-group for a few output units."""
    return [
        KernelCall(
            "convolution/forward_dot",
            f"{site.name} forward",
            GlobalSize(_LOCAL, problem.groups * -(-problem.output_units // _UNITS)),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output},
            arrays={"WEIGHT": site.parameter("weight"), "BIAS": problem.bias(site)},
            macros={**problem.macros, **problem.epilogue_macros(site), "BLOCK_UNITS": _UNITS},
            local_size=(_LOCAL, 1, 1),
        )
    ]
