"""Tiles of products of matrices, what work-groups of GPUs compute: sizes, speeds, and what a product with them costs.

Each implementation has a list of tiles with the speeds that were measured there; a model gives those of others, for
tuning to try.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.kernel_source import Macro
from blobnet.memory.blob import FLOAT32


@dataclass(frozen=True)
class Tile:
    """The part of a product that a work-group computes: ``units`` x ``columns`` sums, ``depth`` rows at once.

    A work-item keeps ``item_units`` x ``item_columns`` of the sums; both factors lie in local memory. A column is a
    position (forward, backward data) or a weight of one unit (its gradient).

    ``speed`` is relative to the fastest tile of fp32, on a product that fills the device; a compute unit is busy with
    ``busy`` tiles side by side, and ``overhead`` rows are what a tile's beginning and its end cost. ``totals``: it
    keeps as many totals, to which it adds sums of a few rows. ``doubt``: 1 if nobody has measured the speed.
    """

    units: int
    columns: int
    depth: int
    item_units: int
    item_columns: int
    speed: float = field(kw_only=True)
    busy: float = field(default=1, kw_only=True)
    overhead: int = field(default=0, kw_only=True)
    totals: bool = field(default=False, kw_only=True)
    doubt: int = field(default=0, kw_only=True)

    @property
    def items(self) -> int:
        """Work-items in a group."""
        return self.units // self.item_units * (self.columns // self.item_columns)

    def count(self, units: int, columns: int) -> int:
        """Tiles of a product of ``units`` x ``columns`` sums."""
        return -(-units // self.units) * -(-columns // self.columns)

    def cost(self, units: int, columns: int, groups: int, cores: int) -> float:
        """When ``groups`` products of ``units`` x ``columns`` sums are done, for each of their rows."""
        rounds = max(self.busy, -(-groups * self.count(units, columns) // cores))
        return rounds * self.units * self.columns / self.speed

    @property
    def local_bytes(self) -> int:
        """Local memory, double-buffered, at the larger pitch of the kernels; results leave through it as well."""
        rows = max(2 * self.depth, self.units // self.item_units)
        return FLOAT32.itemsize * (2 * self.depth * (self.units + 4) + rows * (self.columns + 4))

    @property
    def prefetched(self) -> int:
        """Values of the next step that a work-item brings."""
        return self.depth * (self.units + self.columns) // self.items

    @property
    def registers(self) -> int:
        """The least registers of a work-item: its sums, a row of their factors, what it prefetches, and addresses."""
        sums, factors = self.item_units * self.item_columns * (1 + self.totals), self.item_units + self.item_columns
        return sums + factors + self.prefetched + _ADDRESS_REGISTERS

    @property
    def most_registers(self) -> int:
        """The same where the compiler loads factors of the rows to come ahead."""
        return self.registers + self.depth * self.item_units * self.item_columns // _SUMS_AHEAD

    def registers_by(self, compiler: str | None, rows: Collection[int] | None) -> int:
        """Registers that a compiler takes for products of so many ``rows``; None where none loads factors ahead."""
        if compiler in _FRUGAL:
            return self.registers
        if compiler in _NOTHING_AHEAD or rows is None:
            # Of gradients of weights Intel's addresses are short (Tiled.addresses).
            short = _ADDRESS_REGISTERS // 2 if compiler in _NOTHING_AHEAD and rows is None else 0
            return (self.registers - short) * 4 // 3
        is_unrolled = any(self.depth < count <= _STEPS_UNROLLED * self.depth for count in rows)
        return self.most_registers + is_unrolled * (_STEPS_UNROLLED + 1) * self.prefetched

    def __str__(self) -> str:
        return f"{self.units}x{self.columns}x{self.depth}/{self.item_units}x{self.item_columns}"

    @property
    def macros(self) -> dict[str, Macro]:
        """The tile as macros."""
        sizes = {"TILE_UNITS": self.units, "TILE_COLUMNS": self.columns, "TILE_DEPTH": self.depth}
        return {**sizes, "ITEM_UNITS": self.item_units, "ITEM_COLUMNS": self.item_columns}


#: What is known of GPUs, for tiles that were not measured: 32-bit registers of a compute unit, the most of a work-item,
#: those that hold no values, bytes of local memory of a compute unit, and its work-items that hide each other's waits.
_REGISTERS, _MAX_REGISTERS, _ADDRESS_REGISTERS, _LOCAL_BYTES, _HIDING_ITEMS = 1 << 16, 192, 32, 1 << 17, 256
#: Sums times rows for each register that holds what is loaded ahead; steps that are no loop any more, so that all that
#: they fetch is under way at once; whose compilers load nothing ahead, and whose take no more than a tile needs; see
#: docs/performance.md.
_SUMS_AHEAD, _STEPS_UNROLLED, _NOTHING_AHEAD, _FRUGAL = 5, 3, ("intel",), (None, "nvidia")
#: Costs in multiply-adds of a value from local memory, of one from global memory, and of a step with its barrier. They
#: are fitted to the speeds of the tiles in tiled.py, which they give within 3 %.
_LOCAL_COST, _GLOBAL_COST, _STEP_COST = 1.9, 9.1, 0.8
#: The tile whose speed is 1.
_FASTEST = Tile(128, 64, 16, 8, 8, speed=1.0)
#: Units, columns, depths, and those of a work-item that tiles are made of; work-items of a group.
_TRIED, _ITEMS = ((32, 64, 128, 256), (32, 64, 128, 256), (8, 16), (4, 8), (4, 8)), range(64, 257)


def predicted_speed(tile: Tile) -> float:
    """The speed that a tile should have, from its footprint, in the manner of seed 001.

    A multiply-add of the tile needs 1/item_units + 1/item_columns values from local memory (bank conflicts aside), and
    1/units + 1/columns from global memory; too few work-items side by side, for want of registers or local memory, do
    not hide waits.
    """

    def cost(of: Tile) -> float:
        local = _LOCAL_COST * (1 / of.item_units + 1 / of.item_columns)
        return 1 + (local + _GLOBAL_COST * (1 / of.units + 1 / of.columns) + _STEP_COST / of.depth)

    groups = min(_REGISTERS // (tile.registers * tile.items), _LOCAL_BYTES // tile.local_bytes)
    return min(1.0, groups * tile.items / _HIDING_ITEMS) * cost(_FASTEST) / cost(tile)


@cache
def guessed_tiles(measured: tuple[Tile, ...], model: DeviceModel, rows: frozenset[int] | None) -> tuple[Tile, ...]:
    """Return for each footprint that was not measured the tile of the highest predicted speed that fits a device."""
    best: dict[tuple[int, int], Tile] = {}
    tried = (Tile(*sizes, speed=0.0, doubt=1) for sizes in itertools.product(*_TRIED))
    small = (tile for tile in tried if tile.items in _ITEMS and tile.registers <= _MAX_REGISTERS)
    for tile in fitting(small, model, rows):
        guess = replace(tile, speed=predicted_speed(tile), busy=max(1, _HIDING_ITEMS // tile.items))
        footprint = tile.units, tile.columns
        best[footprint] = max(guess, best.get(footprint, guess), key=lambda item: item.speed)
    known = {(tile.units, tile.columns) for tile in measured}
    return tuple(tile for footprint, tile in best.items() if footprint not in known)


def fitting(tiles: Iterable[Tile], model: DeviceModel, rows: Collection[int] | None = ()) -> tuple[Tile, ...]:
    """The tiles whose work-groups a device allows, and whose work-items have room in its registers.

    ``rows`` are those of the products, as far as they are known; None where no compiler loads factors ahead.
    """
    return tuple(
        tile
        for tile in tiles
        if tile.items <= model.group_size
        and tile.local_bytes <= model.local_memory
        and tile.registers_by(model.compiler, rows) <= model.registers
    )


def tiles_for(measured: tuple[Tile, ...], tuning: Tuning, rows: Collection[int] | None = ()) -> tuple[Tile, ...]:
    """The tiles that fit a device: measured ones, and others for tuning to try; the smallest one where none fits.

    ``rows`` as for :func:`fitting`.
    """
    known = fitting(measured, tuning.model, rows)
    few = None if rows is None else frozenset(count for count in rows if count <= _STEPS_UNROLLED * max(_TRIED[2]))
    return known + guessed_tiles(known, tuning.model, few) or (min(measured, key=lambda tile: tile.registers),)


#: What moving a value to or from memory costs the device, and a launch a compute unit, in multiply-adds (see
#: Implementation.cost).
VALUE_COST, LAUNCH_COST = 28, 540_000
