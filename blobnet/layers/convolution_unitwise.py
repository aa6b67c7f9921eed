"""Gradients of the weights of convolutions whose lanes are input units, which a copy lays side by side: for CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import lanes_for, splits_for, tiles
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Problem, taps_inside

#: What it costs to copy a value, and to put a weight's sum in its place, in multiply-adds of a compute unit.
COPY_COST, WEIGHT_COST = 40, 60
#: What the launches around the product cost, on the same scale but for all compute units.
LAUNCHES_COST = 100_000


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Lanes of input units of a tap, at all output units."""
    tunables = site.tuning.of("convolution/backward_weight_unitwise")
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
    most = tunables["MAXIMUM_LANES"]
    lanes = lanes_for(problem.input_units, most)
    source, delta = site.inputs[0].shape, site.delta.shape
    taps = taps_inside(problem, (source.height, source.width), (delta.height, delta.width))
    phases = problem.input_phases(delta)
    # What it reads, and what of it goes into phases that a tap reads.
    copied = (source.height * source.width + phases.planes * phases.height * phases.width) / 2
    copying = COPY_COST * copied * source.units * site.batch_size
    for sums, units, vectors in tiles(problem.output_units, -(-problem.input_units // lanes), *limits):
        # A vector that is not full takes as long as one that is.
        cost = sums * most * taps * site.batch_size * problem.groups + copying
        if problem.taps > 1:
            cost += WEIGHT_COST * site.gradient("weight").elements
        calls = partial(_calls, site, problem, units, vectors, lanes)
        yield Candidate(f"unitwise {units}x{vectors}x{lanes}", cost / site.tuning.model.cores + LAUNCHES_COST, calls)


def _calls(site: Site, problem: Problem, block_units: int, block_vectors: int, lanes: int) -> list[KernelCall]:
    kernel = "convolution/backward_weight_unitwise"
    tunables = site.tuning.of(kernel)
    label = f"{site.name} backward weight"
    delta = site.delta.shape
    phases = problem.input_phases(delta)
    panel_units = block_vectors * lanes
    group_panels = -(-problem.input_units // panel_units)
    panels = problem.groups * group_panels
    blocks = -(-problem.output_units // block_units)
    ranges = -(-blocks // tunables["RANGE_BLOCKS"])
    splits = splits_for(ranges * problem.taps * panels, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"])

    gradient = site.gradient("weight")
    columns = group_panels * panel_units
    whole = problem.taps == 1 and splits == 1 and columns == problem.input_units
    units = problem.groups * problem.output_units
    partials = gradient if whole else site.memory("weight partials", splits * problem.taps * units * columns)
    copy = site.memory(
        "input in panels", per_sample=panels * panel_units * phases.planes * phases.height * phases.width
    )
    panel_macros: dict[str, Macro] = {
        **phases.macros,
        "PHASE_HEIGHT": phases.height,
        "PHASE_WIDTH": phases.width,
        "PANEL_UNITS": panel_units,
        "LANES": lanes,
    }
    calls = [
        KernelCall(
            "convolution/pack_units",
            f"{label}: pack",
            GlobalSize(panels * block_vectors),
            blobs={"INPUT": site.inputs[0]},
            arrays={"PANELS": copy},
            macros={
                "GROUP_INPUT_UNITS": problem.input_units,
                **problem.stride_macros,
                **problem.origin_macros,
                **panel_macros,
            },
        ),
        KernelCall(
            kernel,
            label,
            GlobalSize(ranges, problem.taps, panels * splits, per_sample=False),
            blobs={"OUTPUT_DELTA": site.delta},
            arrays={"PANELS": copy, "PARTIALS": partials},
            macros={
                **problem.macros,
                **panel_macros,
                "GROUPS": problem.groups,
                "INPUT_HEIGHT": site.inputs[0].shape.height,
                "INPUT_WIDTH": site.inputs[0].shape.width,
                "SPLITS": splits,
                "PIECE_ROWS": min(max(1, tunables["PIECE_POSITIONS"] // delta.width), delta.height),
                "RANGE": tunables["RANGE_BLOCKS"] * block_units,
                "BLOCK_VECTORS": block_vectors,
                "BLOCK_UNITS": block_units,
            },
            tunables=tunables,
        ),
    ]
    if not whole:
        calls.append(
            KernelCall(
                "convolution/unitwise_gradient",
                label,
                GlobalSize(-(-problem.input_units // lanes), units, per_sample=False),
                arrays={"PARTIALS": partials, "GRADIENT": gradient},
                macros={
                    "UNITS": units,
                    "GROUP_INPUT_UNITS": problem.input_units,
                    "COLUMNS": columns,
                    "TAPS": problem.taps,
                    "SPLITS": splits,
                    "LANES": lanes,
                },
            )
        )
    return calls
