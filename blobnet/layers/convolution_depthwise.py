"""Convolutions of units that are apart (depthwise) on CPUs: rows of planes, straight from the input."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.layers.base import Site
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Problem

KERNEL = "convolution/forward_depthwise"
#: What a multiply-add and a load cost, and what it costs to store a vector in these; work-items of a compute unit.
SUM_COST, STORE_COST, WORK_ITEMS = 0.7, 4, 8
#: Taps up to which this kernel, which unrolls them all, is worth compiling.
MOST_TAPS = 49


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Blocks of rows of several heights."""
    if problem.input_units > 1 or problem.output_units > 1 or problem.taps > MOST_TAPS:
        return
    tunables, output = site.tuning.of(KERNEL), site.output.shape
    # Vectors that are whole, in a row.
    lanes = 1 << (min(output.width, tunables["MAXIMUM_LANES"]).bit_length() - 1)
    for rows in sorted({min(rows, output.height) for rows in (tunables["MAXIMUM_ROWS"], 2, 1)}):
        vectors = -(-output.height // rows) * rows * -(-output.width // lanes) * output.units * site.batch_size
        loads = (rows - 1) * problem.vertical.stride + problem.vertical.span
        steps = problem.taps + loads * problem.horizontal.kernel / rows + STORE_COST
        # A vector that holds less than the most lanes takes as long.
        cost = SUM_COST * vectors * tunables["MAXIMUM_LANES"] * steps / site.tuning.model.cores
        yield Candidate(f"depthwise {rows}x{lanes}", cost, partial(_calls, site, problem, lanes, rows))


def _calls(site: Site, problem: Problem, lanes: int, block_rows: int) -> list[KernelCall]:
    output = site.output.shape
    blocks = -(-output.height // block_rows)
    parts = min(blocks, max(1, -(-WORK_ITEMS * site.tuning.model.cores // (output.units * site.batch_size))))
    rows = -(-blocks // parts) * block_rows
    return [
        KernelCall(
            KERNEL,
            f"{site.name} forward",
            GlobalSize(1, -(-output.height // rows), output.units),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)},
            arrays={"WEIGHT": site.parameter("weight"), **problem.epilogue_arrays(site)},
            macros={
                **problem.macros,
                **problem.epilogue_macros(site),
                "LANES": lanes,
                "BLOCK_ROWS": block_rows,
                "ROWS": rows,
            },
            tunables=site.tuning.of(KERNEL),
        )
    ]
