"""Square filters at stride 1 by minimal filtering (winograd.py), on processors.

Patches become values at their points as the rows of a blob are read. A work-item multiplies those of a tile of patches
with the weights of a block of units, point by point, and stores results: its sums never leave its cache.
"""

from __future__ import annotations

import math
from typing import Any

from blobnet.implementations.base import BACKWARD_DATA, FORWARD
from blobnet.implementations.blocking import Block, vector_tiles
from blobnet.implementations.operation import Operation
from blobnet.implementations.winograd import PATCH_TAPS, WORKSPACE, Winograd
from blobnet.launch.kernel_call import GlobalSize, KernelCall, rounded_up
from blobnet.launch.work_sizes import power_of_two
from blobnet.memory.blob import FLOAT32

#: Cells of a patch on a side.
SIDES = 4, 6
#: Elements of a cache line, and units of which tiles have whole numbers, so that their weights are vectors.
LINE, UNITS = 16, 4
#: The part of the last cache that patches between two launches may take, and their bytes where it is not known.
CACHE_PART, CHUNK_BYTES = 4, 1 << 21
#: What it costs to make a vector of patches at a point, one of its values, and to take one back, in multiply-adds; the
#: same for a value of the weights, and for reading one that is there from the last batch; and a multiply-add itself.
VECTOR_COST, PATCH_COST, RESULT_COST = 450, 12, 14
WEIGHT_COST, KEPT_COST, PRODUCT_COST = 75, 5, 1.2


class Patches(Winograd):
    """Minimal filtering: square filters at stride 1 by 2.25 to 4 times fewer multiplications; sums stay near."""

    tile: Block

    lanes = False
    directions = (FORWARD, BACKWARD_DATA)
    variants = ("patches2", "patches3", "patches4", "patches5")
    kernels = "convolution/winograd_sums"
    weight, patch = "convolution/winograd_blocks", "convolution/winograd_rows"

    @classmethod
    def tiles(cls, operation: Operation) -> list[tuple[Any, str, int, int]]:
        taps, limits, found = operation.vertical.kernel, cls.tunables(operation), []
        for side in SIDES:
            if taps in PATCH_TAPS[side]:
                kind = f"patches{side - taps + 1}", side - taps + 1, side**2
                one = cls(operation, (Block(0, 1, 1, 1), *kind))
                patches = len(one.chunks[0]) * one.sample_patches
                tiles = vector_tiles(limits, operation.units, patches)
                found += [(tile, *kind) for tile in tiles if tile.units % UNITS == 0 or tile.units == operation.units]
        return found

    def __init__(self, operation: Operation, choice: tuple[Block, str, int, int]) -> None:
        super().__init__(operation, choice)
        model = operation.tuning.model
        # The sums of a work-item, and the rows of a vector of patches (kernels/convolution/winograd_sums.cl).
        kept = choice[3] * self.tile.units * self.tile.values + (self.cells**2 + 4) * self.tile.lanes
        self.fits = self.fits and FLOAT32.itemsize * kept <= model.local_memory

    @property
    def sides(self) -> tuple[int, int, int]:
        return self.tile.units, self.tile.values, 1

    @property
    def most_samples(self) -> int:
        caches = self.operation.tuning.model.caches
        size = FLOAT32.itemsize * self.batches * self.depth * self.sample_patches
        room = caches[-1] // CACHE_PART if caches else CHUNK_BYTES
        return min(WORKSPACE // size, max(1, room // size))

    @property
    def row_lanes(self) -> int:
        """Patches of a row that are read at once."""
        return power_of_two(self.row_patches, self.tunables(self.operation)["MAXIMUM_LANES"])

    def whole(self, patches: int) -> int:
        return _pitch(rounded_up(patches + -self.row_patches % self.row_lanes, self.tile.values))

    @property
    def cost(self) -> float:
        operation, batch, products = self.operation, self.operation.batch_size, self.batches
        rows = self.sample_patches // self.row_patches * -(-self.row_patches // self.row_lanes) * self.row_lanes
        source = (VECTOR_COST / self.row_lanes + PATCH_COST) * self.depth * rows
        result = RESULT_COST * operation.units * self.sample_patches
        sums = PRODUCT_COST * self.tile.cost * self.depth * len(self.chunks)
        weights = (KEPT_COST if operation.keeps_weights else WEIGHT_COST) * self.fixed
        return products * (batch * (source + result) + sums + weights) / operation.cores

    def calls(self) -> list[KernelCall]:
        operation, tile, points = self.operation, self.tile, self.batches // self.operation.groups
        blocks = operation.groups * self.units // tile.units
        pitches = _pitch(operation.groups * self.fixed), _pitch(operation.groups * self.depth * self.patches)
        facts: dict[str, Any] = {"WEIGHTS_PITCH": pitches[0], "PATCHES_PITCH": pitches[1], "BLOCK": tile.units}
        weights = operation.memory(f"filtered weights for {operation.direction}", points * pitches[0])
        patches = operation.memory(f"{operation.direction} patches", points * pitches[1])
        lanes = math.gcd(tile.units, self.tunables(operation)["MAXIMUM_LANES"])
        size = GlobalSize(self.depth, blocks, per_sample=False)
        calls = [self._call(self.weight, size, None, ": weights", TRANSFORMED=weights, LANES=lanes, **facts)]
        size = GlobalSize(blocks, positions=self.sample_patches, tile=tile.values)
        for samples in self.chunks:
            calls += [
                self._patch(samples, operation.source, patches, self.depth, LANES=self.row_lanes, **facts),
                self._call(self.kernel, size, None, "", samples, LEFT=weights, RIGHT=patches, **facts, **tile.macros),
            ]
        return calls

    def patch_work(self, units: int) -> tuple[GlobalSize, None]:
        return GlobalSize(self.operation.groups * units, per_sample=False), None


def _pitch(elements: int) -> int:
    """A pitch of an odd number of cache lines: what lies that far apart does not share its place in a cache."""
    return LINE * (-(-elements // LINE) | 1)
