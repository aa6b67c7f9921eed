"""3x3 and 5x5 filters at stride 1 by minimal filtering (patches.py), on processors whose blobs have cells.

Vectors are units of a position, as in rows.py: nothing changes places between patches and rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from blobnet.implementations.base import FORWARD
from blobnet.implementations.blocking import Block
from blobnet.implementations.operation import Operation
from blobnet.implementations.patches import Costs, Patches
from blobnet.implementations.rows import has_vectors, unit_blocks
from blobnet.launch.kernel_call import GlobalSize, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.memory.blob import CELL_UNITS, FLOAT32

#: What it costs to make a value of a patch at a point, in multiply-adds.
READ_COST = 48


class UnitPatches(Patches):
    """Minimal filtering of blobs of cells: vectors of units, some patches at a time."""

    directions = (FORWARD,)
    variants = ("patches2_rows", "patches4_rows")
    kernels = "convolution/winograd_unit_sums"
    patch = "convolution/winograd_units"
    costs = Costs(result=22, kept=9, product=0.7, chunk=1_000_000)
    takes_cells = True
    needs_cells = True

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        alike = operation.input.type == operation.output.type
        return super().matches(operation) and operation.groups == 1 and alike and has_vectors(operation)

    def blocks(self, patches: int) -> list[Block]:
        return unit_blocks(self.operation, patches, self.tunables(self.operation))

    @property
    def sides(self) -> tuple[int, int, int]:
        return self.tile.values, self.tile.units, 1

    @property
    def beside(self) -> int:
        return self.tile.lanes

    @cached_property
    def patches_at_once(self) -> int:
        # As many runs as share one reading of a point's weights, and leave enough work-items for all cores.
        runs = self.patches // self.tile.units
        items = self.units // self.tile.values * runs
        most = items // (self.tunables(self.operation)["TARGET_ITEMS"] * self.operation.cores)
        room = self.operation.tuning.model.local_memory // (FLOAT32.itemsize * self.points * self.tile.values)
        return self.tile.units * max(1, min(runs, most, room // self.tile.units))

    @property
    def kept(self) -> int:
        return self.points * self.tile.values * self.patches_at_once

    @property
    def tile_macros(self) -> Mapping[str, Macro]:
        tile, runs = self.tile, self.patches_at_once // self.tile.units
        return {"RUN": tile.units, "RUNS_AT_ONCE": runs, "BLOCK_VECTORS": tile.vectors, "LANES": tile.lanes}

    def whole(self, patches: int) -> int:
        return rounded_up(patches, self.tile.units)

    def patch_work(self, units: int) -> tuple[GlobalSize, None]:
        return GlobalSize(units // CELL_UNITS, self.sample_patches // self.row_patches), None

    @property
    def reading(self) -> float:
        return READ_COST * self.operation.depth * self.sample_patches
