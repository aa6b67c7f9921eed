"""Convolutions by tiles of sums in registers, straight from the blobs: how CPUs compute them."""

from __future__ import annotations

from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import choose_tile, lanes_for, position_tile, splits_for
from blobnet.layers.convolution_problem import Phase, Problem
from blobnet.layers.gradients import split_sum

#: Elements of its two blobs that a split of the gradient of the weights should touch at most: every tile reads its
#: share of them, so they should stay in a CPU's last cache.
SPLIT_ELEMENTS = 2**21


def forward(site: Site, problem: Problem) -> list[KernelCall]:
    """On flat planes at stride 1, else row by row."""
    macros = problem.macros
    output = site.output.shape
    flat = problem.strides == (1, 1)
    kernel = "convolution/forward_flat" if flat else "convolution/forward_rows"
    tunables = site.tuning.of(kernel)
    if flat:
        del macros["STRIDE_Y"], macros["STRIDE_X"]
        positions = (output.height - 1) * site.inputs[0].layout.unit_memory_width + output.width
        tile, tiles = position_tile(tunables, problem.output_units, 1, positions)
    else:
        tile, tiles = position_tile(tunables, problem.output_units, output.height, output.width)
    return [
        KernelCall(
            kernel,
            f"{site.name} forward",
            GlobalSize(tiles * tile["LOCAL_WIDTH"], problem.groups * -(-problem.output_units // tile["BLOCK_UNITS"])),
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output},
            arrays={"WEIGHT": site.parameter("weight"), "BIAS": problem.bias(site)},
            macros={**macros, **problem.epilogue_macros(site), **_block_macros(tile)},
            tunables=tunables,
            local_size=(tile["LOCAL_WIDTH"], 1, 1),
        )
    ]


def backward_weight(site: Site, problem: Problem) -> list[KernelCall]:
    """On flat planes at stride 1 and one pitch, else row by row."""
    kernel = "convolution/backward_weight"
    tunables = site.tuning.of(kernel)
    delta = site.delta
    same_pitch = delta.layout.unit_memory_width == site.inputs[0].layout.unit_memory_width
    flat = problem.strides == (1, 1) and (same_pitch or delta.shape.height == 1)
    run = delta.shape.width
    if flat:
        run += (delta.shape.height - 1) * delta.layout.unit_memory_width
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_COLUMNS"], tunables["MAXIMUM_ACCUMULATORS"]
    block_units, block_columns = choose_tile(problem.output_units, problem.columns, *limits)
    width, height = -(-problem.columns // block_columns), problem.groups * -(-problem.output_units // block_units)
    lanes = lanes_for(run, tunables["MAXIMUM_LANES"])
    piece = min(run, -(-tunables["PIECE_POSITIONS"] // lanes) * lanes)
    layouts = site.inputs[0].layout, delta.layout
    elements = site.batch_size * sum(layout.unit_count * layout.unit_memory_elements for layout in layouts)
    splits = max(
        splits_for(width * height, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"]),
        splits_for(1, -(-elements // SPLIT_ELEMENTS), tunables["MAXIMUM_SPLITS"]),
    )
    local = tunables["GROUP_WIDTH"]
    label = f"{site.name} backward weight"
    partials, reductions = split_sum(site, label, "weight", splits)
    call = KernelCall(
        kernel,
        label,
        GlobalSize(width * local, height, splits, per_sample=False),
        blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": delta},
        arrays={"PARTIALS": partials},
        macros={
            **problem.macros,
            "GROUPS": problem.groups,
            "FLAT": int(flat),
            "PIECE": piece if flat else run,
            "SPLITS": splits,
            "LANES": lanes,
            "BLOCK_COLUMNS": block_columns,
            "BLOCK_UNITS": block_units,
        },
        tunables=tunables,
        local_size=(local, 1, 1),
    )
    return [call, *reductions]


def backward_data(site: Site, problem: Problem) -> list[KernelCall]:
    """A launch for each phase."""
    target = site.input_deltas[0]
    assert target is not None
    phases = problem.phases(target.shape, accumulate=site.accumulate[0])
    return [_backward_phase(site, problem, phase) for phase in phases]


def _backward_phase(site: Site, problem: Problem, phase: Phase) -> KernelCall:
    target = site.input_deltas[0]
    assert target is not None
    kernel = "convolution/backward_data"
    tunables = site.tuning.of(kernel)
    positions = (phase.height - 1) * site.delta.layout.unit_memory_width + phase.width
    tile, tiles = position_tile(tunables, problem.input_units, 1, positions)
    return KernelCall(
        kernel,
        f"{site.name} backward data",
        GlobalSize(tiles * tile["LOCAL_WIDTH"], problem.groups * -(-problem.input_units // tile["BLOCK_UNITS"])),
        blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
        arrays={"WEIGHT": site.parameter("weight")},
        macros={
            **problem.filter_macros,
            **phase.macros,
            "ACCUMULATE": int(site.accumulate[0]),
            **_block_macros(tile),
        },
        tunables=tunables,
        local_size=(tile["LOCAL_WIDTH"], 1, 1),
    )


def _block_macros(tile: dict[str, int]) -> dict[str, Macro]:
    return {name: tile[name] for name in ("LANES", "BLOCK_UNITS", "BLOCK_VECTORS")}
