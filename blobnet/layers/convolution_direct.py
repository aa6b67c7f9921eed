"""Convolutions by tiles of sums in registers, straight from the blobs: how CPUs compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from blobnet.geometry import Pair
from blobnet.kernel_call import Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import READ_COST, PositionTile, lanes_for, position_tiles, reads, splits_for, tiles
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Phase, Problem
from blobnet.layers.gradients import split_sum

#: Elements of its two blobs that a split of the gradient of the weights should touch at most: every tile reads its
#: share of them, so they should stay in a CPU's last cache.
SPLIT_ELEMENTS = 2**21
#: How much longer the gradient of the weights takes with vectors whose values lie a stride apart.
STRIDED_COST = 2.5
#: What it costs to add up the lanes of a weight's sum and to store it, in multiply-adds.
WEIGHT_COST = 60


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """On flat planes at stride 1, else row by row."""
    output = site.output.shape
    flat = problem.strides == (1, 1)
    tunables = site.tuning.of(_forward_kernel(problem))
    if flat:
        positions = (output.height - 1) * site.inputs[0].layout.unit_memory_width + output.width
        tiles = position_tiles(tunables, problem.output_units, 1, positions)
    else:
        tiles = position_tiles(tunables, problem.output_units, output.height, output.width)
    for tile in tiles:
        read = min(_tile_reads(tile, site.inputs[0], problem.output_units, problem.input_units, problem.taps))
        cost = _cost(site, problem, tile.cost * problem.columns + READ_COST * read)
        yield Candidate(f"direct {tile}", cost, partial(_forward_calls, site, problem, tile))


def _forward_kernel(problem: Problem) -> str:
    return "convolution/forward_flat" if problem.strides == (1, 1) else "convolution/forward_rows"


def _forward_calls(site: Site, problem: Problem, tile: PositionTile) -> list[KernelCall]:
    macros = problem.macros
    kernel = _forward_kernel(problem)
    if problem.strides == (1, 1):
        del macros["STRIDE_Y"], macros["STRIDE_X"]
    size, order = _order(tile, site.inputs[0], problem, problem.output_units, problem.input_units, problem.taps)
    return [
        KernelCall(
            kernel,
            f"{site.name} forward",
            size,
            blobs={"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)},
            arrays={"WEIGHT": site.parameter("weight"), **problem.epilogue_arrays(site)},
            macros={**macros, **problem.epilogue_macros(site), **_block_macros(tile), **order},
            tunables=site.tuning.of(kernel),
            local_size=(tile.macros["LOCAL_WIDTH"], 1, 1),
        )
    ]


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """On flat planes at stride 1 and one pitch, else row by row."""
    tunables = site.tuning.of("convolution/backward_weight")
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_COLUMNS"], tunables["MAXIMUM_ACCUMULATORS"]
    most = tunables["MAXIMUM_LANES"]
    rows, run = _runs(site, problem)
    lanes = lanes_for(run, most)
    # A vector that holds less than the most lanes takes as long.
    positions = rows * -(-run // lanes) * most * (STRIDED_COST if problem.horizontal.stride > 1 else 1)
    stores = WEIGHT_COST * site.gradient("weight").elements / site.tuning.compute_units
    for cost, units, columns in tiles(problem.output_units, problem.columns, *limits):
        calls = partial(_backward_weight_calls, site, problem, units, columns)
        yield Candidate(f"direct {units}x{columns}", _cost(site, problem, cost * positions) + stores, calls)


def _runs(site: Site, problem: Problem) -> Pair:
    """How many runs of positions the gradient of the weights sums for a sample, and how long they are.

    Flat planes (stride 1, one pitch) are one run, else each row is one.
    """
    delta = site.delta
    same_pitch = delta.layout.unit_memory_width == site.inputs[0].layout.unit_memory_width
    if problem.strides == (1, 1) and (same_pitch or delta.shape.height == 1):
        return 1, delta.shape.width + (delta.shape.height - 1) * delta.layout.unit_memory_width
    return delta.shape.height, delta.shape.width


def _backward_weight_calls(site: Site, problem: Problem, block_units: int, block_columns: int) -> list[KernelCall]:
    kernel = "convolution/backward_weight"
    tunables = site.tuning.of(kernel)
    delta = site.delta
    rows, run = _runs(site, problem)
    flat = rows == 1 and problem.strides == (1, 1)
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
    of_units, of_columns = (
        site.batch_size * units * layout.unit_memory_elements // splits
        for units, layout in ((problem.output_units, layouts[1]), (problem.input_units, layouts[0]))
    )
    units_first, columns_first = reads(of_units, height, of_columns, width)
    first = local == 1 and units_first < columns_first
    label = f"{site.name} backward weight"
    partials, reductions = split_sum(site, label, "weight", splits)
    call = KernelCall(
        kernel,
        label,
        GlobalSize(*((height, width) if first else (width * local, height)), splits, per_sample=False),
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
            "UNITS_FIRST": int(first),
        },
        tunables=tunables,
        local_size=(local, 1, 1),
    )
    return [call, *reductions]


def backward_data(site: Site, problem: Problem) -> Iterator[Candidate]:
    """A launch for each phase; its tiles are a candidate each if there is one phase, else each phase's cheapest."""
    target = site.input_deltas[0]
    assert target is not None
    phases = list(problem.phases(target.shape, accumulate=site.accumulate[0]))
    choices = [_phase_tiles(site, problem, phase) for phase in phases]
    if len(phases) != 1:
        choices = [of_phase[:1] for of_phase in choices]
    for chosen in zip(*choices, strict=True) if phases else [()]:
        sums = sum(tile.cost * phase.taps for tile, phase in zip(chosen, phases, strict=True)) * problem.output_units
        read = sum(
            min(_tile_reads(tile, site.delta, problem.input_units, problem.output_units, phase.taps))
            for tile, phase in zip(chosen, phases, strict=True)
        )
        name = f"direct {chosen[0]}" if len(chosen) == 1 else "direct"
        calls = partial(_backward_phases, site, problem, phases, chosen)
        yield Candidate(name, _cost(site, problem, sums + READ_COST * read), calls)


def _phase_tiles(site: Site, problem: Problem, phase: Phase) -> list[PositionTile]:
    positions = (phase.height - 1) * site.delta.layout.unit_memory_width + phase.width
    return position_tiles(site.tuning.of("convolution/backward_data"), problem.input_units, 1, positions)


def _backward_phases(
    site: Site, problem: Problem, phases: Sequence[Phase], tiles: Sequence[PositionTile]
) -> list[KernelCall]:
    target = site.input_deltas[0]
    assert target is not None
    kernel = "convolution/backward_data"
    calls = []
    for phase, tile in zip(phases, tiles, strict=True):
        size, order = _order(tile, site.delta, problem, problem.input_units, problem.output_units, phase.taps)
        calls.append(
            KernelCall(
                kernel,
                f"{site.name} backward data",
                size,
                blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
                arrays={"WEIGHT": site.parameter("weight")},
                macros={
                    **problem.filter_macros,
                    **phase.macros,
                    "ACCUMULATE": int(site.accumulate[0]),
                    **_block_macros(tile),
                    **order,
                },
                tunables=site.tuning.of(kernel),
                local_size=(tile.macros["LOCAL_WIDTH"], 1, 1),
            )
        )
    return calls


def _cost(site: Site, problem: Problem, multiply_adds: float) -> float:
    """The cost of a candidate that needs so many multiply-adds a sample and group."""
    return multiply_adds * site.batch_size * problem.groups / site.tuning.compute_units


def _order(
    tile: PositionTile, source: Blob, problem: Problem, units: int, depth: int, taps: int
) -> tuple[GlobalSize, dict[str, Macro]]:
    """The work of a tile whose result has ``units`` units a group, from ``depth`` of the source's, and its macro."""
    local = tile.macros["LOCAL_WIDTH"]
    units_first, columns_first = _tile_reads(tile, source, units, depth, taps)
    first = local == 1 and units_first < columns_first
    width, height = tile.count * local, problem.groups * -(-units // tile.macros["BLOCK_UNITS"])
    return GlobalSize(*((height, width) if first else (width, height))), {"UNITS_FIRST": int(first)}


def _tile_reads(tile: PositionTile, source: Blob, units: int, depth: int, taps: int) -> Pair:
    """:func:`reads` of a tile."""
    plane, weights = depth * source.layout.unit_memory_elements, units * depth * taps
    return reads(weights, -(-units // tile.macros["BLOCK_UNITS"]), plane, tile.count)


def _block_macros(tile: PositionTile) -> dict[str, Macro]:
    return {name: tile.macros[name] for name in ("LANES", "BLOCK_UNITS", "BLOCK_VECTORS")}
