"""3x3 and 5x5 filters at stride 1 by minimal filtering (winograd.py), on processors.

Patches become values at their points as the rows of a blob are read. A work-item multiplies those of a tile of patches
with the weights of a block of units, point by point, and stores results: its sums never leave its cache. The gradient
of the weights sums over patches, point by point.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from blobnet.implementations.base import BACKWARD_WEIGHTS
from blobnet.implementations.blocking import VECTOR_COST, Block, blocks, vector_tiles
from blobnet.implementations.operation import Operation
from blobnet.implementations.winograd import WORKSPACE, Winograd
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import power_of_two
from blobnet.memory.blob import FLOAT32

#: Cells of a patch on a side, and the sides of filters that leave 2 or 4 results, which vectors bring into rows.
SIDES: Mapping[int, Collection[int]] = {4: (3,), 6: (3, 5)}
#: Elements of a cache line, and units of which tiles have whole numbers, so that their weights are vectors.
LINE, UNITS = 16, 4
#: The cheapest tiles of each kind of patches that are candidates: planning looks at the cost of each.
MOST_TILES = 4
#: The part of the last cache that patches between two launches may take, and their bytes for each core: a virtual
#: machine may tell of a cache that others use as well.
CACHE_PART, CORE_BYTES = 4, 1 << 22
#: What it costs to make a vector of patches at a point, and each of its values, in multiply-adds.
READ_VECTOR_COST, READ_COST = 250, 25
#: To make a value of the weights at a point.
WEIGHT_COST = 75
#: To add up the lanes of a sum over patches, and the patches that such sums should have.
SUM_COST, MIN_SUM = 60, 512


class Costs(NamedTuple):
    """What parts of the work cost, in multiply-adds.

    Attributes:
        result: to make a value of a result of one at a point.
        kept: to read a value of the weights at a point that the last batch has left.
        product: a multiply-add of the products.
        chunk: to begin a chunk.
    """

    result: float
    kept: float
    product: float
    chunk: float


class Patches(Winograd):
    """Minimal filtering: 3x3 and 5x5 at stride 1 by 2.25 to 4 times fewer multiplications; sums stay near."""

    tile: Block

    lanes = False
    variants = ("patches2", "patches4")
    kernels = "convolution/winograd_sums"
    weight, patch = "convolution/winograd_blocks", "convolution/winograd_rows"
    costs: ClassVar[Costs] = Costs(result=14, kept=5, product=1.2, chunk=1_500_000)

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Patches]:
        own = _Gradient if operation.direction == BACKWARD_WEIGHTS else cls
        taps = operation.vertical.kernel
        for side in (side for side, known in SIDES.items() if taps in known):
            cells = side - taps + 1
            kind = cls.variants[cells > 2], cells, side**2
            one = own(operation, (Block(0, 1, 1, 1), *kind))  # Chunks hardly depend on the tile.
            tiles = one.blocks(len(one.chunks[0]) * one.sample_patches) if one.fits else ()
            found = (own(operation, (tile, *kind)) for tile in tiles)
            yield from islice((item for item in found if item.fits), MOST_TILES)

    @classmethod
    def kernel_of(cls, direction: str) -> str:
        return "convolution/winograd_products" if direction == BACKWARD_WEIGHTS else cls.kernels

    def __init__(self, operation: Operation, choice: tuple[Block, str, int, int]) -> None:
        super().__init__(operation, choice)
        #: Points of a patch.
        self.points = choice[3]
        self.fits = self.fits and FLOAT32.itemsize * self.kept <= operation.tuning.model.local_memory

    def blocks(self, patches: int) -> list[Block]:
        """The tiles for so many patches."""
        units, limits = self.operation.units, self.tunables(self.operation)
        return [tile for tile in vector_tiles(limits, units, patches) if tile.units % UNITS == 0 or tile.units == units]

    @property
    def sides(self) -> tuple[int, int, int]:
        return self.tile.units, self.tile.values, 1

    @property
    def beside(self) -> int:
        """Units whose weights lie side by side."""
        return self.tile.units

    @property
    def kept(self) -> int:
        """Values in local memory: a work-item's sums, and rows of a vector of patches."""
        return self.points * self.tile.units * self.tile.values + (self.cells**2 + 4) * self.tile.lanes

    @property
    def patches_at_once(self) -> int:
        """Patches a work-item."""
        return self.tile.values

    @property
    def tile_macros(self) -> Mapping[str, Macro]:
        """The tile as macros of the kernel that sums."""
        return self.tile.macros

    @property
    def read_units(self) -> int:
        """Units of a group whose patches lie between two launches."""
        return self.operation.depth

    @property
    def min_samples(self) -> int:
        """Samples of a chunk, whether a cache has room for them or not."""
        return 1

    @property
    def most_samples(self) -> int:
        caches, cores = self.operation.tuning.model.caches, self.operation.cores
        size = FLOAT32.itemsize * self.batches * self.read_units * self.sample_patches
        room = min([cores * CORE_BYTES, *(last // CACHE_PART for last in caches[-1:])])
        left = WORKSPACE - FLOAT32.itemsize * self.batches * self.fixed
        return min(left // size, max(self.min_samples, room // size))

    @cached_property
    def row_lanes(self) -> int:
        """Patches of a row that are read at once."""
        return power_of_two(self.row_patches, self.tunables(self.operation)["MAXIMUM_LANES"])

    def whole(self, patches: int) -> int:
        return _pitch(rounded_up(patches + -self.row_patches % self.row_lanes, self.tile.values))

    def splits_of(self, rows: int) -> int:
        return 1

    @property
    def reading(self) -> float:
        """What it costs to make a sample's patches, for each point."""
        rows = self.sample_patches // self.row_patches * rounded_up(self.row_patches, self.row_lanes)
        readers = min(self.operation.cores, self.operation.groups * self.read_units)  # Each takes a unit.
        cost = (READ_VECTOR_COST / self.row_lanes + READ_COST) * self.read_units * rows
        return cost * self.operation.cores / readers

    @property
    def cost(self) -> float:
        operation, costs = self.operation, self.costs
        result = costs.result * operation.units * self.sample_patches
        sums = costs.product * self.tile.cost * self.depth * len(self.chunks)
        weights = (costs.kept if operation.keeps_weights else WEIGHT_COST) * self.fixed
        every = self.batches * (operation.batch_size * (self.reading + result) + sums + weights)
        return every / operation.cores + costs.chunk * len(self.chunks)

    def calls(self) -> list[KernelCall]:
        operation, units = self.operation, self.operation.groups * self.units
        weights, weights_pitch = self._memory_for("weights", self.fixed)
        patches, pitch = self._memory_for("patches", self.depth * self.patches)
        facts = {"WEIGHTS_PITCH": weights_pitch, "PATCHES_PITCH": pitch, "BLOCK": self.beside}
        lanes = math.gcd(self.beside, self.tunables(operation)["MAXIMUM_LANES"])
        size = GlobalSize(self.depth, units // self.beside, per_sample=False)
        calls = [self._call(self.weight, size, None, ": weights", TRANSFORMED=weights, LANES=lanes, **facts)]
        size = GlobalSize(units // self.sides[0], positions=self.sample_patches, tile=self.patches_at_once)
        for samples in self.chunks:
            given = {"LEFT": weights, "RIGHT": patches, **facts, **self.tile_macros}
            calls.append(self._read(samples, operation.source, patches, pitch))
            calls.append(self._call(self.kernel, size, None, "", samples, **given))
        return calls

    def _memory_for(self, name: str, elements: int) -> tuple[Array, int]:
        """Memory for so many elements of a group at each point, and from a point to the next."""
        pitch = _pitch(self.operation.groups * elements)
        return self.operation.memory(f"{self.operation.direction}: {name}", self.points * pitch), pitch

    def _read(
        self, samples: range, blob: Blob, to: Array, pitch: int, lanes: int = 1, *, delta: bool = False
    ) -> KernelCall:
        """Transforms the patches of a blob, and puts zeros behind the last one up to a multiple of ``lanes``."""
        facts: dict[str, Any] = {"PATCHES_PITCH": pitch, "LANES": self.row_lanes, "SUM_LANES": lanes, "delta": delta}
        return self._patch(samples, blob, to, blob.shape.units // self.operation.groups, **facts)

    def patch_work(self, units: int) -> tuple[GlobalSize, None]:
        return GlobalSize(self.operation.groups * units, per_sample=False), None


class _Gradient(Patches):
    """Sums over patches, which lanes are until the end."""

    variants = Patches.variants
    gradient = "convolution/winograd_filters"

    def blocks(self, patches: int) -> list[Block]:
        operation, limits = self.operation, self.tunables(self.operation)
        most = limits["MAXIMUM_UNITS"], limits["MAXIMUM_COLUMNS"], limits["MAXIMUM_ACCUMULATORS"]
        lanes = power_of_two(patches, limits["MAXIMUM_LANES"])
        return [replace(block, lanes=lanes) for block in blocks(operation.units, operation.depth, *most)]

    @property
    def sides(self) -> tuple[int, int, int]:
        return 1, self.tunables(self.operation)["MAXIMUM_LANES"], 1

    @property
    def kept(self) -> int:
        return 0

    @property
    def read_units(self) -> int:
        return self.operation.depth + self.operation.units

    @property
    def min_samples(self) -> int:
        return -(-MIN_SUM // self.sample_patches)

    def whole(self, patches: int) -> int:
        return _pitch(patches + self.row_lanes + self.tile.lanes)

    @property
    def cost(self) -> float:
        operation = self.operation
        vectors = sum(-(-len(chunk) * self.sample_patches // self.tile.lanes) for chunk in self.chunks)
        sums = (self.costs.product * VECTOR_COST * vectors) * self.tile.cost + SUM_COST * len(self.chunks) * self.fixed
        every = operation.batch_size * self.reading + sums + WEIGHT_COST * self.fixed
        return self.batches * every / operation.cores + self.costs.chunk * len(self.chunks)

    def calls(self) -> list[KernelCall]:
        operation, tile = self.operation, self.tile
        deltas, deltas_pitch = self._memory_for("deltas", operation.units * self.patches)
        patches, pitch = self._memory_for("patches", operation.depth * self.patches)
        products, products_pitch = self._memory_for("products", self.fixed)
        facts: dict[str, Any] = {"DELTAS_PITCH": deltas_pitch, "PATCHES_PITCH": pitch, "PRODUCTS_PITCH": products_pitch}
        facts |= {"LANES": tile.lanes, "BLOCK_UNITS": tile.units, "BLOCK_COLUMNS": tile.vectors}
        arrays = {"LEFT": deltas, "RIGHT": patches, "PRODUCTS": products}
        blocks, calls = operation.groups * -(-operation.units // tile.units), list[KernelCall]()
        size = GlobalSize(blocks, self.points, per_sample=False)
        for samples in self.chunks:
            given = {"ACCUMULATE": int(samples.start > 0), **arrays, **facts}
            calls.append(self._read(samples, operation.output, deltas, deltas_pitch, tile.lanes, delta=True))
            calls.append(self._read(samples, operation.input, patches, pitch, tile.lanes))
            calls.append(self._call(self.kernel, size, None, ": products", samples, **given))
        size = GlobalSize(operation.groups * operation.units, per_sample=False)
        facts |= {"LANES": self.sides[1]}
        return [*calls, self._call(self.gradient, size, None, PRODUCTS=products, **facts)]


def _pitch(elements: int) -> int:
    """A pitch of an odd number of cache lines: what lies that far apart does not share its place in a cache."""
    return LINE * (-(-elements // LINE) | 1)
