"""Convolutions as products of matrices through local memory: how GPUs compute them (kernels/convolution/tiled.h)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from blobnet.blob import Shape
from blobnet.implementations.base import BACKWARD_WEIGHTS, Candidate, Implementation
from blobnet.implementations.blocking import powers_of_two
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.sums import split_sum
from blobnet.implementations.tile import (
    LAUNCH_COST,
    VALUE_COST,
    ProductTile,
    Tile,
    product_cost,
    sum_cost,
    tiles_for,
)
from blobnet.kernel_call import Array, GlobalSize, KernelCall, cell_work, elementwise_work
from blobnet.kernel_source import Macro

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
class PackedWeights:
    """The weights of an operation as a matrix for products: a row is a tap and a source unit, a column a result's unit.

    Attributes:
        operation: whose.
        tile: what reads the matrix.
    """

    operation: Operation
    tile: ProductTile

    @property
    def depth_rows(self) -> int:
        """Rows a tap: whole tiles, unless that wastes too much."""
        depth = self.operation.depth
        whole = -(-depth // self.tile.depth) * self.tile.depth
        return whole if whole == depth or depth >= 4 * self.tile.depth else depth

    @property
    def columns(self) -> int:
        """Columns: whole tiles of units."""
        return -(-self.operation.units // self.tile.units) * self.tile.units

    @property
    def elements(self) -> int:
        """Values of the matrix; behind the last tap it has a row of zeros."""
        return self.operation.groups * (self.operation.taps * self.depth_rows + 1) * self.columns

    @property
    def macros(self) -> dict[str, Macro]:
        """The matrix as macros."""
        return {"DEPTH_ROWS": self.depth_rows, "UNIT_COLUMNS": self.columns}

    @property
    def array(self) -> Array:
        """The matrix's memory."""
        return self.operation.memory(f"weights packed for {self.operation.direction}", self.elements)

    def call(self) -> KernelCall:
        """The launch that packs."""
        size = GlobalSize(self.columns, self.depth_rows + 1, self.operation.groups, per_sample=False)
        return self._pack("convolution/pack_weight", size, 32)

    def _pack(self, kernel: str, size: GlobalSize, local: int) -> KernelCall:
        group = self.operation.weights // self.operation.groups
        return self.operation.call(
            kernel,
            size,
            (local, 1, 1),
            macros={**self.macros, "GROUP_STRIDE": group},
            arrays={"PACKED": self.array},
            label=f"{self.operation.label}: pack",
        )

    def row(self, phase: Phase) -> int:
        """Positions from one row of results to the next; sums of those beyond the width are not stored."""
        return phase.width

    def positions(self, phase: Phase) -> int:
        """Columns of the product that makes a phase of a sample."""
        return (phase.height - 1) * self.row(phase) + phase.width

    def cost(self) -> float:
        """What packing costs (see Candidate)."""
        return LAUNCH_COST + 2 * self.elements * VALUE_COST / self.operation.cores

    def product_cost(self, positions: int, taps: int, splits: int) -> float:
        """The cost of a product with all ``positions`` of the batch over ``taps`` taps (see Candidate)."""
        rows = taps * self.depth_rows / splits + self.tile.overhead
        groups, cores = self.operation.groups * splits, self.operation.cores
        return rows * product_cost(self.tile, self.operation.units, positions, groups, cores)

    def splits(self, positions: int, taps: int) -> Iterator[int]:
        """Into how many parts the rows of such a product may go: more of them only until the device is full."""
        yield 1
        if not self.tile.is_guess:
            tiles = self.operation.groups * (self.columns // self.tile.units) * -(-positions // self.tile.columns)
            full = 2 * SPLIT_TILES * self.operation.cores // tiles
            most = full, taps * self.depth_rows // LEAST_ROWS, MOST_SPLITS
            yield from (splits for splits in powers_of_two(min(most)) if splits > 1)


class Tiled(Implementation):
    """Products of matrices through local memory, the weights packed first; in splits where there are few tiles."""

    lanes = True
    forward = "convolution/forward_tiled"
    backward_data = "convolution/backward_data_tiled"
    backward_weights = "convolution/backward_weight_tiled"
    packing: type[PackedWeights] = PackedWeights

    def tiles(self, operation: Operation) -> Sequence[ProductTile]:
        """The tiles for an operation."""
        if operation.direction == BACKWARD_WEIGHTS:
            return tiles_for(WEIGHT_TILES, operation.tuning, rows=None)
        rows = [phase.taps * operation.depth for phase in operation.plain.phases]
        return tiles_for(TILES, operation.tuning, rows)

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        of_weights = operation.direction == BACKWARD_WEIGHTS
        for tile in self.tiles(operation):
            for ending, cost, calls in (self._sums if of_weights else self._products)(operation, tile):
                yield Candidate(self.way(f"{tile}{ending}"), cost, calls, tile.is_guess, precision=tile.precision)

    def _products(self, operation: Operation, tile: ProductTile) -> Iterator[_Sum]:
        """Packs the weights, and multiplies them with the source, phase by phase."""
        packed, results = self.packing(operation, tile), operation.batch_size * operation.result.shape.elements
        phases = operation.plain.phases
        work = [(operation.batch_size * packed.positions(phase), phase.taps) for phase in phases]
        for splits in packed.splits(*max(work, key=lambda item: item[0] * item[1])):
            cost = packed.cost() + (len(work) - 1) * LAUNCH_COST
            cost += sum(packed.product_cost(*item, splits) for item in work)
            cost += sum_cost(results, splits, operation.cores)
            ending = "" if splits == 1 else f" in {splits}"
            yield ending, cost, partial(self._product_calls, operation, packed, splits)

    def _product_calls(self, operation: Operation, packed: PackedWeights, splits: int) -> list[KernelCall]:
        kernel, tile, bias = self.kernel(operation), packed.tile, operation.bias
        partials, sums = _add(operation, splits) if splits > 1 else (operation.memory("no partials", 1), [])
        if splits > 1:  # What is left to do is done to the sums of all parts.
            operation = operation.plain
        products, cleared = [], []
        for phase in operation.phases:
            # What no tap meets is 0: one program for all of them. Of a product in splits, the partial sums must be.
            if not phase.taps and splits == 1:
                shape = Shape(operation.result.shape.units, phase.height, phase.width)
                work = elementwise_work(shape, operation.tuning)
                cleared.append(operation.call("convolution/clear_phase", *work, facts=phase.macros))
                continue
            size = GlobalSize(
                packed.columns // tile.units * tile.items,
                operation.groups,
                splits,
                positions=packed.positions(phase),
                tile=tile.columns,
            )
            macros = {**packed.macros, **tile.macros, "ROW_POSITIONS": packed.row(phase), "SPLITS": splits}
            # NOTE: a kernel takes no null array; were it the matrix, that would not count as constant. The bias also
            # where it is not read, since the weights may be there only to be packed.
            arrays = {"PACKED": packed.array, "PARTIALS": partials, "BIAS": bias}
            local = tile.items, 1, 1
            products.append(operation.call(kernel, size, local, macros=macros, facts=phase.macros, arrays=arrays))
        packing = [packed.call()] if products else []
        return [*packing, *products, *cleared, *sums]

    def _sums(self, operation: Operation, tile: ProductTile) -> Iterator[_Sum]:
        """Multiplies the delta with the input over all positions, in the best splits."""
        delta, cores = operation.output.shape, operation.cores
        positions = operation.batch_size * delta.height * delta.width

        def cost(splits: int) -> float:
            groups = operation.groups * splits
            product = product_cost(tile, operation.output_units, operation.columns, groups, cores)
            return product * (positions / splits + tile.overhead) + sum_cost(operation.weights, splits, cores)

        splits = min(powers_of_two(min(MOST_POSITION_SPLITS, -(-positions // tile.depth))), key=cost)
        yield "", cost(splits), partial(self._sum_calls, operation, tile, splits)

    def _sum_calls(self, operation: Operation, tile: ProductTile, splits: int) -> list[KernelCall]:
        tiles = -(-operation.output_units // tile.units) * -(-operation.columns // tile.columns)
        partials, reductions = split_sum(operation, splits)
        product = operation.call(
            self.backward_weights,
            GlobalSize(tiles * tile.items, splits, operation.groups, per_sample=False),
            (tile.items, 1, 1),
            macros={"SPLITS": splits, **tile.macros},
            arrays={"PARTIALS": partials},
        )
        return [product, *reductions]


def _add(operation: Operation, splits: int) -> tuple[Array, list[KernelCall]]:
    """Where the parts of a product go (kernels/convolution/splits.h), and what adds them and does the rest."""
    kernel = "convolution/split_sum"
    partials = operation.memory(f"{operation.direction} partials", per_sample=splits * operation.result.shape.elements)
    work = cell_work(kernel, operation.result.shape, operation.tuning)
    label = f"{operation.label}: sum"
    call = operation.call(kernel, *work, macros={"SPLITS": splits}, arrays={"PARTIALS": partials}, label=label)
    return partials, [call]


#: How a candidate's tile ends, its cost, and what makes its launches.
_Sum = tuple[str, float, Callable[[], list[KernelCall]]]
