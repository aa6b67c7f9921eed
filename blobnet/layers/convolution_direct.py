"""Convolutions by tiles of sums in registers, straight from the blobs: how CPUs compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from blobnet.blob import BlobLayout, Shape
from blobnet.geometry import Pair
from blobnet.kernel_call import Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import READ_COST, PositionTile, lanes_for, position_tiles, reads, splits_for, tiles
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import InputPhases, Phase, Problem
from blobnet.layers.gradients import split_sum

#: Elements of its two blobs that a split of the gradient of the weights should touch at most: every tile reads its
#: share of them, so they should stay in a CPU's last cache.
SPLIT_ELEMENTS = 2**21
#: What it costs to copy a value when the input is split into phases, and to store one where vectors are not whole, in
#: multiply-adds.
COPY_COST, STORE_COST = 40, 50
#: Most vectors of sums where several taps read phases: with 24, Intel's compiler makes loops of 0.6 of the speed.
SPLIT_ACCUMULATORS = 20
#: How much longer the gradient of the weights takes where no other tap reads what a column has brought near.
ONE_TAP_COST = 1.15
#: What it costs to add up the lanes of a weight's sum and to store it, in multiply-adds.
WEIGHT_COST = 200


@dataclass(frozen=True)
class Source:
    """What forward and the gradient of the weights read at stride 1: the input, or a copy that is split into phases.

    Attributes:
        layout: of its planes.
        phases: of the input; None: the input itself.
    """

    layout: BlobLayout
    phases: InputPhases | None = None

    @classmethod
    def of(cls, site: Site, problem: Problem) -> Source:
        """The one of a site."""
        source = site.inputs[0]
        if problem.strides == (1, 1):
            return cls(source.layout)
        phases = problem.input_phases(site.output.shape)
        shape = Shape(source.shape.units * phases.planes, phases.height, phases.width)
        return cls(BlobLayout.padded(shape), phases)

    @property
    def copied(self) -> int:
        """Values of the copy, of one sample."""
        return self.layout.memory_elements if self.phases else 0

    def macros(self, problem: Problem) -> dict[str, Macro]:
        """The problem's macros, for a kernel that reads this."""
        macros = {**problem.macros, "PHASES_Y": 1, "PHASES_X": 1}
        # Padding is part of the phases.
        return {**macros, **self.phases.macros, "PAD_TOP": 0, "PAD_LEFT": 0} if self.phases else macros

    def blob(self, site: Site, direction: str) -> Blob:
        """Where it is."""
        if not self.phases:
            return site.inputs[0]
        memory = site.memory(f"phases {direction}", per_sample=self.layout.memory_elements)
        return Blob(memory.storage, self.layout, is_memory=True)

    def calls(self, site: Site, problem: Problem, direction: str) -> list[KernelCall]:
        """The launch that makes the copy, if there is one."""
        if not self.phases:
            return []
        kernel = "convolution/split_phases"
        tunables = site.tuning.of(kernel)
        return [
            KernelCall(
                kernel,
                f"{site.name} {direction}: split",
                GlobalSize(1, 1, self.layout.unit_count),
                blobs={"INPUT": site.inputs[0], "PHASES": self.blob(site, direction)},
                macros={
                    **problem.stride_macros,
                    **problem.origin_macros,
                    **self.phases.macros,
                    "LANES": 1 << (min(self.phases.width, tunables["MAXIMUM_LANES"]).bit_length() - 1),
                },
                tunables=tunables,
            )
        ]


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """On flat planes; with a stride on those of the input's phases."""
    output = site.output.shape
    source = Source.of(site, problem)
    tunables = site.tuning.of("convolution/forward_flat")
    pitch = source.layout.unit_memory_width
    one_run = 1, (output.height - 1) * pitch + output.width
    if source.phases and problem.taps > 1:
        tunables["MAXIMUM_ACCUMULATORS"] = min(tunables["MAXIMUM_ACCUMULATORS"], SPLIT_ACCUMULATORS)
    more, runs = _copy_cost(site, source), [one_run]
    if pitch != site.output.layout.unit_memory_width:
        runs.append((output.height, output.width))
        more += STORE_COST * output.elements * site.batch_size / site.tuning.model.cores
    # Rows of their own, if they take no more vectors: more of these are stored as they are.
    choices = [position_tiles(tunables, problem.output_units, *run) for run in reversed(runs)]
    tiles = min(choices, key=lambda of_run: of_run[0].cost)
    for tile in tiles:
        read = min(_tile_reads(tile, source.layout, problem, problem.output_units, problem.taps))
        cost = _cost(site, problem, tile.cost * problem.columns + READ_COST * read) + more
        calls = partial(_forward_calls, site, problem, source, tile, flat=tiles is choices[-1])
        yield Candidate(f"direct {tile}", cost, calls)


def _forward_calls(site: Site, problem: Problem, source: Source, tile: PositionTile, *, flat: bool) -> list[KernelCall]:
    kernel = "convolution/forward_flat"
    blob = source.blob(site, "forward")
    size, order = _order_of_tiles(tile, blob, problem, problem.output_units, problem.taps)
    return [
        *source.calls(site, problem, "forward"),
        KernelCall(
            kernel,
            f"{site.name} forward",
            GlobalSize(*size),
            blobs={"INPUT": blob, "OUTPUT": site.output, **problem.epilogue_blobs(site)},
            arrays={"WEIGHT": site.parameter("weight"), **problem.epilogue_arrays(site)},
            macros={
                **source.macros(problem),
                **problem.epilogue_macros(site),
                **tile.macros,
                **order,
                "FLAT": int(flat),
            },
            tunables=site.tuning.of(kernel),
        ),
    ]


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """On flat planes at one pitch, else row by row; with a stride on those of the input's phases."""
    tunables = site.tuning.of("convolution/backward_weight")
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_COLUMNS"], tunables["MAXIMUM_ACCUMULATORS"]
    most = tunables["MAXIMUM_LANES"]
    source = Source.of(site, problem)
    rows, run = _runs(site, source)
    # A vector that holds less than the most lanes takes as long.
    positions = rows * -(-run // lanes_for(run, most)) * most * (ONE_TAP_COST if problem.taps == 1 else 1)
    more = WEIGHT_COST * site.gradient("weight").elements / site.tuning.model.cores + _copy_cost(site, source)
    for cost, units, columns in tiles(problem.output_units, problem.columns, *limits):
        calls = partial(_backward_weight_calls, site, problem, source, units, columns)
        yield Candidate(f"direct {units}x{columns}", _cost(site, problem, cost * positions) + more, calls)


def _runs(site: Site, source: Source) -> Pair:
    """How many runs of positions the gradient of the weights sums for a sample, and how long they are.

    Flat planes (one pitch) are one run, else each row is one.
    """
    delta = site.delta
    same_pitch = delta.layout.unit_memory_width == source.layout.unit_memory_width
    if same_pitch or delta.shape.height == 1:
        return 1, delta.shape.width + (delta.shape.height - 1) * delta.layout.unit_memory_width
    return delta.shape.height, delta.shape.width


def _backward_weight_calls(
    site: Site, problem: Problem, source: Source, block_units: int, block_columns: int
) -> list[KernelCall]:
    kernel = "convolution/backward_weight"
    tunables = site.tuning.of(kernel)
    delta = site.delta
    rows, run = _runs(site, source)
    column_blocks = -(-problem.columns // block_columns)
    unit_blocks = problem.groups * -(-problem.output_units // block_units)
    lanes = lanes_for(run, tunables["MAXIMUM_LANES"])
    piece = min(run, -(-tunables["PIECE_POSITIONS"] // lanes) * lanes)
    layouts = source.layout, delta.layout
    elements = site.batch_size * sum(layout.unit_count * layout.unit_memory_elements for layout in layouts)
    splits = max(
        splits_for(unit_blocks * column_blocks, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"]),
        splits_for(1, -(-elements // SPLIT_ELEMENTS), tunables["MAXIMUM_SPLITS"]),
    )
    of_units, of_columns = (
        site.batch_size * layout.unit_count * layout.unit_memory_elements // (problem.groups * splits)
        for layout in reversed(layouts)
    )
    read = reads(of_units, unit_blocks, of_columns, column_blocks)
    size, order = _order(unit_blocks, column_blocks, read)
    direction = "backward weight"
    label = f"{site.name} {direction}"
    partials, reductions = split_sum(site, label, "weight", splits)
    call = KernelCall(
        kernel,
        label,
        GlobalSize(*size, splits, per_sample=False),
        blobs={"INPUT": source.blob(site, direction), "OUTPUT_DELTA": delta},
        arrays={"PARTIALS": partials},
        macros={
            **source.macros(problem),
            "GROUPS": problem.groups,
            "FLAT": int(rows == 1),
            "PIECE": piece if rows == 1 else run,
            "SPLITS": splits,
            "LANES": lanes,
            "BLOCK_COLUMNS": block_columns,
            "BLOCK_UNITS": block_units,
            **order,
        },
        tunables=tunables,
    )
    return [*source.calls(site, problem, direction), call, *reductions]


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
            min(_tile_reads(tile, site.delta.layout, problem, problem.input_units, phase.taps))
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
        size, order = _order_of_tiles(tile, site.delta, problem, problem.input_units, phase.taps)
        calls.append(
            KernelCall(
                kernel,
                f"{site.name} backward data",
                GlobalSize(*size),
                blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
                arrays={"WEIGHT": site.parameter("weight")},
                macros={
                    **problem.filter_macros,
                    **phase.macros,
                    "ACCUMULATE": int(site.accumulate[0]),
                    **tile.macros,
                    **order,
                },
                tunables=site.tuning.of(kernel),
            )
        )
    return calls


def _cost(site: Site, problem: Problem, multiply_adds: float) -> float:
    """The cost of a candidate that needs so many multiply-adds a sample and group."""
    return multiply_adds * site.batch_size * problem.groups / site.tuning.model.cores


def _copy_cost(site: Site, source: Source) -> float:
    """The cost of splitting the input into phases."""
    return COPY_COST * source.copied * site.batch_size / site.tuning.model.cores


def _order_of_tiles(
    tile: PositionTile, source: Blob, problem: Problem, units: int, taps: int
) -> tuple[Pair, dict[str, Macro]]:
    """:func:`_order` of a tile whose result has ``units`` units a group."""
    unit_blocks = problem.groups * -(-units // tile.macros["BLOCK_UNITS"])
    return _order(unit_blocks, tile.count, _tile_reads(tile, source.layout, problem, units, taps))


def _order(unit_blocks: int, column_blocks: int, read: Pair) -> tuple[Pair, dict[str, Macro]]:
    """Width and height in the order of blocks that reads less (:func:`reads`), and the macro of kernels/.../order.h."""
    units_first = read[0] < read[1]
    size = (unit_blocks, column_blocks) if units_first else (column_blocks, unit_blocks)
    return size, {"UNITS_FIRST": int(units_first)}


def _tile_reads(tile: PositionTile, source: BlobLayout, problem: Problem, units: int, taps: int) -> Pair:
    """:func:`reads` of a tile whose result has ``units`` units a group."""
    plane = source.unit_count * source.unit_memory_elements // problem.groups
    weights = problem.input_units * problem.output_units * taps
    return reads(weights, -(-units // tile.macros["BLOCK_UNITS"]), plane, tile.count)
