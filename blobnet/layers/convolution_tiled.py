"""Convolutions as products of matrices through local memory: how GPUs compute them (kernels/convolution/tiled.h)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from blobnet.blob import Shape
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall, cell_call, elementwise_work
from blobnet.kernel_source import Macro
from blobnet.layers.base import Epilogue, Site
from blobnet.layers.blocking import powers_of_two
from blobnet.layers.candidates import BACKWARD_DATA, FORWARD, Candidate
from blobnet.layers.convolution_problem import Phase, Problem
from blobnet.layers.gradients import split_sum
from blobnet.layers.tile import LAUNCH_COST, VALUE_COST, ProductTile, Tile, product_cost, sum_cost, tiles_for

#: Tiles of forward and backward data. Speeds were fitted to times on an NVIDIA H200 (docs/performance.md).
TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=1.3, overhead=14),
    Tile(64, 128, 8, 8, 8, speed=0.97, busy=1.4, overhead=12),
    Tile(32, 256, 8, 8, 8, speed=0.94, busy=1.5, overhead=20),
    Tile(32, 64, 16, 4, 4, speed=0.71, busy=2.3, overhead=14),
)
#: Tiles of the gradient of the weights.
WEIGHT_TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=1.5, overhead=30),
    Tile(64, 128, 8, 8, 8, speed=0.98, busy=1.5, overhead=30),
    Tile(64, 32, 16, 8, 4, speed=0.88, busy=8, overhead=60),
    Tile(32, 32, 16, 4, 4, speed=0.83, busy=8, overhead=60),
)
#: Tiles for each compute unit up to which a sum over rows may be split, the most splits, and the least rows of each.
SPLIT_TILES, MOST_SPLITS, LEAST_ROWS = 4, 32, 64
#: The most splits of a sum over positions.
MOST_POSITION_SPLITS = 256


@dataclass(frozen=True)
class Positions:
    """The columns of a product: ``row`` positions for each row of ``height`` x ``width`` results.

    With a ``row`` above the width there are positions between two rows, whose sums are not stored.
    """

    height: int
    width: int
    row: int

    @property
    def count(self) -> int:
        """Positions of a sample."""
        return (self.height - 1) * self.row + self.width


@dataclass(frozen=True)
class Splits:
    """The parts of a product whose rows are split (kernels/convolution/splits.h).

    Attributes:
        count: how many.
        partials: where their sums go; None if there is one part, which makes the result itself.
        sum: the launches that add them.
    """

    count: int
    partials: Array | None
    sum: tuple[KernelCall, ...]

    @classmethod
    def of(cls, site: Site, problem: Problem, direction: str, count: int, *, accumulate: bool = False) -> Splits:
        """``count`` parts of what makes ``site.output``, with the epilogue of ``site`` and ``problem``."""
        if count == 1:
            return cls(1, None, ())
        partials = site.memory(f"{direction} partials", per_sample=count * site.output.shape.elements)
        call = cell_call(
            "convolution/split_sum",
            f"{site.name} {direction}: sum",
            {"RESULT": site.output, **problem.epilogue_blobs(site)},
            site.tuning,
            arrays={"PARTIALS": partials, **problem.epilogue_arrays(site)},
            macros={"SPLITS": count, "ACCUMULATE": int(accumulate), **problem.epilogue_macros(site)},
        )
        return cls(count, partials, (call,))


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
    tile: ProductTile

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

    @property
    def elements(self) -> int:
        """Values of the matrix; behind the last tap it has a row of zeros."""
        return self.groups * (self.taps * self.depth_rows + 1) * self.columns

    def array(self, site: Site) -> Array:
        """The matrix's memory."""
        return site.memory(f"weights packed for {self.name}", self.elements)

    def call(self, site: Site) -> KernelCall:
        """The launch that packs."""
        size = GlobalSize(self.columns, self.depth_rows + 1, self.groups, per_sample=False)
        return self._pack(site, "convolution/pack_weight", size, 32)

    def _pack(self, site: Site, kernel: str, size: GlobalSize, local: int) -> KernelCall:
        weight = site.parameter("weight")
        return KernelCall(
            kernel,
            f"{site.name} {self.name}: pack",
            size,
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
            local_size=(local, 1, 1),
        )

    @staticmethod
    def positions(height: int, width: int, source: Blob, stride: int) -> Positions:
        """The positions of results that read every ``stride``-th column of ``source``."""
        return Positions(height, width, width)

    def cost(self, cores: int) -> float:
        """What packing costs (see Candidate)."""
        return LAUNCH_COST + 2 * self.elements * VALUE_COST / cores

    def product_cost(self, positions: int, taps: int, splits: int, cores: int) -> float:
        """The cost of a product with all ``positions`` of the batch over ``taps`` taps (see Candidate)."""
        rows = taps * self.depth_rows / splits + self.tile.overhead
        return rows * product_cost(self.tile, self.units, positions, self.groups * splits, cores)

    def splits(self, positions: int, taps: int, cores: int) -> Iterator[int]:
        """Into how many parts the rows of such a product may go: more of them only until the device is full."""
        yield 1
        if not self.tile.is_guess:
            tiles = self.groups * (self.columns // self.tile.units) * -(-positions // self.tile.columns)
            most = 2 * SPLIT_TILES * cores // tiles, taps * self.depth_rows // LEAST_ROWS, MOST_SPLITS
            yield from (splits for splits in powers_of_two(min(most)) if splits > 1)

    def product(
        self,
        site: Site,
        kernel: str,
        label: str,
        positions: Positions,
        blobs: Mapping[str, Blob],
        arrays: Mapping[str, Array],
        macros: Mapping[str, Macro],
        splits: Splits,
    ) -> KernelCall:
        """The launch that multiplies: a ``kernel`` that reads the matrix, besides what else it takes."""
        width = self.columns // self.tile.units * self.tile.items
        return KernelCall(
            kernel,
            label,
            GlobalSize(width, self.groups, splits.count, positions=positions.count, tile=self.tile.columns),
            blobs,
            # NOTE: a kernel takes no null array; were it the matrix, that would not count as constant.
            {"PACKED": self.array(site), "PARTIALS": splits.partials or site.memory("no partials", 1), **arrays},
            {**macros, **self.macros, "ROW_POSITIONS": positions.row, "SPLITS": splits.count},
            local_size=(self.tile.items, 1, 1),
        )


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Packs the weights, and multiplies them with the input."""
    tiles = tiles_for(TILES, site.tuning, [problem.taps * problem.input_units])
    return forward_products(site, problem, tiles, "tiled", PackedWeights, "convolution/forward_tiled")


def forward_products(
    site: Site, problem: Problem, tiles: Iterable[ProductTile], name: str, weights: type[PackedWeights], kernel: str
) -> Iterator[Candidate]:
    """Candidates for each of ``tiles``: a ``kernel`` that multiplies packed ``weights`` with the input."""
    shape = site.output.shape
    positions = weights.positions(shape.height, shape.width, site.inputs[0], problem.horizontal.stride)
    for tile in tiles:
        packed = weights(
            "forward",
            units=problem.output_units,
            depth=problem.input_units,
            unit_stride=problem.columns,
            depth_stride=problem.taps,
            groups=problem.groups,
            taps=problem.taps,
            tile=tile,
        )
        work, cores = (site.batch_size * positions.count, problem.taps), site.tuning.model.cores
        for splits in packed.splits(*work, cores):
            cost = packed.cost(cores) + packed.product_cost(*work, splits, cores)
            cost += sum_cost(site.batch_size * shape.elements, splits, cores)
            calls = partial(_forward_calls, site, problem, positions, packed, kernel, splits)
            yield Candidate(f"{name} {tile}{_in_splits(splits)}", cost, calls, tile.is_guess, tile.precision)


def _in_splits(splits: int) -> str:
    """How a candidate's name ends."""
    return "" if splits == 1 else f" in {splits}"


def _forward_calls(
    site: Site, problem: Problem, positions: Positions, packed: PackedWeights, kernel: str, count: int
) -> list[KernelCall]:
    splits = Splits.of(site, problem, FORWARD, count)
    # NOTE: also where it is not read, since the weights may be there only to be packed.
    arrays = problem.epilogue_arrays(site)
    if count > 1:  # What is left to do is done to the sums of all parts.
        site, problem = _plain(site, problem, site.output)
    product = packed.product(
        site,
        kernel,
        f"{site.name} forward",
        positions,
        {"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)},
        arrays,
        {**problem.macros, **problem.epilogue_macros(site)},
        splits,
    )
    return [packed.call(site), product, *splits.sum]


def _plain(site: Site, problem: Problem, result: Blob) -> tuple[Site, Problem]:
    """``site`` and ``problem`` of what makes ``result`` without an epilogue."""
    return replace(site, output=result, epilogue=Epilogue()), replace(problem, bias_mode=0)


def backward_data(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Packs the weights, and multiplies them with the delta, phase by phase."""
    target = site.input_deltas[0]
    assert target is not None
    phases = problem.phases(target.shape, accumulate=False)
    tiles = tiles_for(TILES, site.tuning, [phase.taps * problem.output_units for phase in phases])
    return backward_data_products(site, problem, tiles, "tiled", PackedWeights, "convolution/backward_data_tiled")


def backward_data_products(
    site: Site, problem: Problem, tiles: Iterable[ProductTile], name: str, weights: type[PackedWeights], kernel: str
) -> Iterator[Candidate]:
    """Candidates for each of ``tiles``: a ``kernel`` that multiplies packed ``weights`` with the delta."""
    target, cores = site.input_deltas[0], site.tuning.model.cores
    assert target is not None

    def phases(accumulate: bool) -> list[tuple[Phase, Positions]]:
        # Whatever the stride, neighbours in a phase read neighbours in the delta.
        return [
            (phase, weights.positions(phase.height, phase.width, site.delta, 1))
            for phase in problem.phases(target.shape, accumulate=accumulate)
        ]

    one, several = phases(accumulate=site.accumulate[0]), phases(accumulate=False)
    for tile in tiles:
        packed = weights(
            "backward data",
            units=problem.input_units,
            depth=problem.output_units,
            unit_stride=problem.taps,
            depth_stride=problem.columns,
            groups=problem.groups,
            taps=problem.taps,
            tile=tile,
        )
        work = [(site.batch_size * positions.count, phase.taps) for phase, positions in several]
        most = max(work, key=lambda item: item[0] * item[1])
        for splits in packed.splits(*most, cores):
            cost = packed.cost(cores) + (len(work) - 1) * LAUNCH_COST
            cost += sum(packed.product_cost(*item, splits, cores) for item in work)
            cost += sum_cost(site.batch_size * target.shape.elements, splits, cores)
            parts = one if splits == 1 else several
            calls = partial(_backward_data_calls, site, problem, parts, packed, kernel, splits)
            yield Candidate(f"{name} {tile}{_in_splits(splits)}", cost, calls, tile.is_guess, tile.precision)


def _backward_data_calls(
    site: Site,
    problem: Problem,
    phases: Sequence[tuple[Phase, Positions]],
    packed: PackedWeights,
    kernel: str,
    count: int,
) -> list[KernelCall]:
    target, accumulate = site.input_deltas[0], site.accumulate[0]
    assert target is not None
    splits = Splits.of(*_plain(site, problem, target), BACKWARD_DATA, count, accumulate=accumulate)
    # What no tap meets is 0: one program for all of them. Of a product in splits, the partial sums must be.
    clears = [phase for phase, _ in phases if not phase.taps and count == 1]
    products = [
        packed.product(
            site,
            kernel,
            f"{site.name} backward data",
            positions,
            {"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
            {},
            {**problem.filter_macros, **phase.macros, "ACCUMULATE": int(accumulate and count == 1)},
            splits,
        )
        for phase, positions in phases
        if phase not in clears
    ]
    cleared = [_clear_call(site, target, problem, phase) for phase in clears]
    packing = [packed.call(site)] if products else []
    return [*packing, *products, *cleared, *splits.sum]


def _clear_call(site: Site, target: Blob, problem: Problem, phase: Phase) -> KernelCall:
    """The launch that makes a phase without taps."""
    stride_y, stride_x = problem.strides
    size, local = elementwise_work(Shape(target.shape.units, phase.height, phase.width), site.tuning)
    return KernelCall(
        "convolution/clear_phase",
        f"{site.name} backward data",
        size,
        {"INPUT_DELTA": target},
        macros={"STRIDE_Y": stride_y, "STRIDE_X": stride_x, "PHASE_Y": phase.y, "PHASE_X": phase.x},
        local_size=local,
    )


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Multiplies the delta with the input over all positions, in splits."""
    kernel = "convolution/backward_weight_tiled"
    tiles = tiles_for(WEIGHT_TILES, site.tuning, rows=None)
    return backward_weight_products(site, problem, tiles, "tiled", kernel)


def backward_weight_products(
    site: Site, problem: Problem, tiles: Iterable[ProductTile], name: str, kernel: str
) -> Iterator[Candidate]:
    """Candidates for each of ``tiles``: a ``kernel`` that multiplies the delta with the input, in the best splits."""
    positions = site.batch_size * site.delta.shape.height * site.delta.shape.width
    cores, elements = site.tuning.model.cores, site.gradient("weight").elements

    def cost(tile: ProductTile, splits: int) -> float:
        groups = problem.groups * splits
        product = product_cost(tile, problem.output_units, problem.columns, groups, cores)
        return product * (positions / splits + tile.overhead) + sum_cost(elements, splits, cores)

    for tile in tiles:
        most = min(MOST_POSITION_SPLITS, -(-positions // tile.depth))
        splits = min(powers_of_two(most), key=partial(cost, tile))
        calls = partial(_backward_weight_calls, site, problem, tile, kernel, splits)
        yield Candidate(f"{name} {tile}", cost(tile, splits), calls, tile.is_guess, tile.precision)


def _backward_weight_calls(
    site: Site, problem: Problem, tile: ProductTile, kernel: str, splits: int
) -> list[KernelCall]:
    tiles = -(-problem.output_units // tile.units) * -(-problem.columns // tile.columns)
    label = f"{site.name} backward weight"
    partials, reductions = split_sum(site, label, "weight", splits)
    product = KernelCall(
        kernel,
        label,
        GlobalSize(tiles * tile.items, splits, problem.groups, per_sample=False),
        blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": site.delta},
        arrays={"PARTIALS": partials},
        macros={**problem.macros, "GROUPS": problem.groups, "SPLITS": splits, **tile.macros},
        local_size=(tile.items, 1, 1),
    )
    return [product, *reductions]
