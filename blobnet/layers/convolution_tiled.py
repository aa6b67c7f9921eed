"""Convolutions as products of matrices through local memory: how GPUs compute them (kernels/convolution/tiled.h)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from blobnet.kernel_call import Array, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import splits_for
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Phase, Problem
from blobnet.layers.gradients import split_sum


@dataclass(frozen=True)
class Tile:
    """What one work-group computes: ``units`` x ``columns`` sums, of which a work-item keeps a part.

    A column is a position (forward, backward data) or a weight of one unit (its gradient). ``depth`` rows of both
    factors lie in local memory. ``speed`` is relative to the fastest tile, on a product that fills the device;
    a compute unit is busy with ``busy`` tiles side by side.
    """

    units: int
    columns: int
    depth: int
    item_units: int
    item_columns: int
    speed: float
    busy: int = 1

    @property
    def items(self) -> int:
        """Work-items in a group."""
        return self.units // self.item_units * (self.columns // self.item_columns)

    def __str__(self) -> str:
        return f"{self.units}x{self.columns}"

    @property
    def macros(self) -> dict[str, Macro]:
        """The tile as macros."""
        return {
            "TILE_UNITS": self.units,
            "TILE_COLUMNS": self.columns,
            "TILE_DEPTH": self.depth,
            "ITEM_UNITS": self.item_units,
            "ITEM_COLUMNS": self.item_columns,
        }


#: Tiles of forward and backward data. Speeds were fitted to times on an NVIDIA H200 (docs/performance.md).
TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=2),
    Tile(64, 128, 8, 8, 8, speed=0.97),
    Tile(32, 256, 8, 8, 8, speed=0.94, busy=3),
    Tile(32, 64, 16, 4, 4, speed=0.71, busy=2),
)
#: Tiles of the gradient of the weights.
WEIGHT_TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0),
    Tile(64, 128, 8, 8, 8, speed=0.98),
    Tile(64, 32, 16, 8, 4, speed=0.88),
    Tile(32, 32, 16, 4, 4, speed=0.83),
)
#: Tiles for each compute unit that a split sum should have, and the most splits.
SPLIT_TILES, MOST_SPLITS = 8, 256


def _cost(tile: Tile, units: int, columns: int, groups: int, compute_units: int) -> float:
    """When ``groups`` products of ``units`` x ``columns`` sums are done, for each of their rows (see Candidate)."""
    count = groups * -(-units // tile.units) * -(-columns // tile.columns)
    return max(tile.busy, -(-count // compute_units)) * tile.units * tile.columns / tile.speed


@dataclass(frozen=True)
class PackedWeights:
    """The weights as a matrix for products: a row is a tap and a source unit, a column a unit of the result.

    Attributes:
        name: what the matrix is for.
        units, depth: result and source units of a group.
        unit_stride, depth_stride: from one to the next in the layer's weights.
        groups, taps: as in the layer.
        tile: what reads the matrix.
    """

    name: str
    units: int
    depth: int
    unit_stride: int
    depth_stride: int
    groups: int
    taps: int
    tile: Tile

    @property
    def depth_rows(self) -> int:
        """Rows a tap: whole tiles, unless that wastes too much."""
        whole = -(-self.depth // self.tile.depth) * self.tile.depth
        return whole if whole == self.depth or self.depth >= 4 * self.tile.depth else self.depth

    @property
    def columns(self) -> int:
        """Columns: whole tiles of units."""
        return -(-self.units // self.tile.units) * self.tile.units

    @property
    def macros(self) -> dict[str, Macro]:
        """What a kernel that reads the matrix must know."""
        return {"DEPTH_ROWS": self.depth_rows, "UNIT_COLUMNS": self.columns, **self.tile.macros}

    def array(self, site: Site) -> Array:
        """The matrix's memory; behind the last tap it has a row of zeros."""
        return site.memory(
            f"weights packed for {self.name}", self.groups * (self.taps * self.depth_rows + 1) * self.columns
        )

    def call(self, site: Site) -> KernelCall:
        """The launch that packs."""
        weight = site.parameter("weight")
        return KernelCall(
            "convolution/pack_weight",
            f"{site.name} {self.name}: pack",
            GlobalSize(self.columns, self.depth_rows + 1, self.groups, per_sample=False),
            arrays={"WEIGHT": weight, "PACKED": self.array(site)},
            macros={
                "UNITS": self.units,
                "DEPTH": self.depth,
                "TAPS": self.taps,
                "DEPTH_ROWS": self.depth_rows,
                "UNIT_COLUMNS": self.columns,
                "UNIT_STRIDE": self.unit_stride,
                "DEPTH_STRIDE": self.depth_stride,
                "GROUP_STRIDE": weight.elements // self.groups,
            },
            local_size=(32, 1, 1),
        )

    def product_size(self, positions: int) -> GlobalSize:
        """The work of a product with ``positions`` results a unit and sample."""
        width = self.columns // self.tile.units * self.tile.items
        return GlobalSize(width, self.groups, positions=positions, tile=self.tile.columns)


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Packs the weights, and multiplies them with the input."""
    positions = site.batch_size * site.output.shape.height * site.output.shape.width
    for tile in TILES:
        cost = _cost(tile, problem.output_units, positions, problem.groups, site.tuning.compute_units)
        yield Candidate(f"tiled {tile}", cost * problem.columns, partial(_forward_calls, site, problem, tile))


def _forward_calls(site: Site, problem: Problem, tile: Tile) -> list[KernelCall]:
    packed = PackedWeights(
        "forward",
        units=problem.output_units,
        depth=problem.input_units,
        unit_stride=problem.columns,
        depth_stride=problem.taps,
        groups=problem.groups,
        taps=problem.taps,
        tile=tile,
    )
    product = KernelCall(
        "convolution/forward_tiled",
        f"{site.name} forward",
        packed.product_size(site.output.shape.height * site.output.shape.width),
        blobs={"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)},
        arrays={"PACKED": packed.array(site), **problem.epilogue_arrays(site)},
        macros={**problem.macros, **problem.epilogue_macros(site), **packed.macros},
        local_size=(tile.items, 1, 1),
    )
    return [packed.call(site), product]


def backward_data(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Packs the weights, and multiplies them with the delta, phase by phase."""
    target = site.input_deltas[0]
    assert target is not None
    phases = list(problem.phases(target.shape, accumulate=site.accumulate[0]))
    for tile in TILES:
        cost = sum(
            _cost(
                tile,
                problem.input_units,
                site.batch_size * phase.height * phase.width,
                problem.groups,
                site.tuning.compute_units,
            )
            * (phase.taps * problem.output_units)
            for phase in phases
        )
        yield Candidate(f"tiled {tile}", cost, partial(_backward_data_calls, site, problem, phases, tile))


def _backward_data_calls(site: Site, problem: Problem, phases: Sequence[Phase], tile: Tile) -> list[KernelCall]:
    packed = PackedWeights(
        "backward data",
        units=problem.input_units,
        depth=problem.output_units,
        unit_stride=problem.taps,
        depth_stride=problem.columns,
        groups=problem.groups,
        taps=problem.taps,
        tile=tile,
    )
    products = [_backward_phase(site, problem, phase, packed) for phase in phases]
    return [packed.call(site), *products] if products else []


def _backward_phase(site: Site, problem: Problem, phase: Phase, packed: PackedWeights) -> KernelCall:
    target = site.input_deltas[0]
    assert target is not None
    return KernelCall(
        "convolution/backward_data_tiled",
        f"{site.name} backward data",
        packed.product_size(phase.height * phase.width),
        blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
        arrays={"PACKED": packed.array(site)},
        macros={
            **problem.filter_macros,
            **phase.macros,
            **packed.macros,
            "ACCUMULATE": int(site.accumulate[0]),
        },
        local_size=(packed.tile.items, 1, 1),
    )


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Multiplies the delta with the input over all positions, in splits."""
    positions = site.batch_size * site.delta.shape.height * site.delta.shape.width
    for tile in WEIGHT_TILES:
        # Splits fill the device, whatever the tile.
        cost = _cost(tile, problem.output_units, problem.columns, problem.groups, compute_units=1)
        cost *= positions / site.tuning.compute_units
        yield Candidate(f"tiled {tile}", cost, partial(_backward_weight_calls, site, problem, tile))


def _backward_weight_calls(site: Site, problem: Problem, tile: Tile) -> list[KernelCall]:
    units, columns = problem.output_units, problem.columns
    compute_units = site.tuning.compute_units
    tiles = -(-units // tile.units) * -(-columns // tile.columns)
    steps = -(-site.batch_size * site.delta.shape.height * site.delta.shape.width // tile.depth)
    splits = splits_for(tiles * problem.groups, SPLIT_TILES * compute_units, min(MOST_SPLITS, steps))
    label = f"{site.name} backward weight"
    partials, reductions = split_sum(site, label, "weight", splits)
    product = KernelCall(
        "convolution/backward_weight_tiled",
        label,
        GlobalSize(tiles * tile.items, splits, problem.groups, per_sample=False),
        blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": site.delta},
        arrays={"PARTIALS": partials},
        macros={**problem.macros, "GROUPS": problem.groups, "SPLITS": splits, **tile.macros},
        local_size=(tile.items, 1, 1),
    )
    return [product, *reductions]
