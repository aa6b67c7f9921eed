"""Block sizes: how many sums one work-item keeps, within a kernel's tunables.

A cost model in the spirit of seed 001 proposes; tuning overrides the tunables. A tile of units x vectors needs one load
a row and one a column for each of its multiply-adds' products, so the cost of a tile shape is its (padded) work times
1 + LOAD_COST * (1/units + 1/vectors).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from blobnet.launch.kernel_call import rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import power_of_two

#: What a vector costs, in multiply-adds, however few lanes it has: costs are those of processors with so many; a load.
VECTOR_COST, LOAD_COST = 16, 0.5
#: Elements that a CPU's second cache holds beside what else is read, and what it costs to read one from beyond it, in
#: multiply-adds of a compute unit.
CACHE_ELEMENTS, READ_COST = 2**18, 30
#: Elements from which on what lies a multiple of them apart shares its place in a processor's first cache, how many
#: such a place holds, and what it costs to read more in turn.
WAY_ELEMENTS, WAYS, CONFLICT_COST = 2**10, 8, 1.3


@dataclass(frozen=True, order=True)
class Block:
    """A tile of ``units`` x ``vectors`` sums; its cost counts multiply-adds for each row of the product.

    The vectors of some have ``lanes``; ``count``: tiles along these.
    """

    cost: float
    units: int
    vectors: int
    lanes: int = 0
    count: int = 0

    def __str__(self) -> str:
        return f"{self.units}x{self.vectors}" + (f"x{self.lanes}" if self.lanes else "")

    @property
    def values(self) -> int:
        """Values of all vectors of a unit."""
        return self.vectors * self.lanes

    @property
    def macros(self) -> dict[str, Macro]:
        """The tile as macros."""
        return {"BLOCK_UNITS": self.units, "BLOCK_VECTORS": self.vectors, "LANES": self.lanes}


@lru_cache(4096)
def blocks(units: int, vectors: int, most_units: int, most_vectors: int, sums: int) -> tuple[Block, ...]:
    """Tiles for ``units`` x ``vectors`` of work, with at most ``sums`` sums, the cheapest first.

    Sums may take three quarters of a work-item's registers: a row of the vectors and a unit's factor lie beside them.
    """

    def cost(block_units: int, block_vectors: int) -> float:
        work = rounded_up(units, block_units) * rounded_up(vectors, block_vectors)
        return work * (1 + LOAD_COST * (1 / block_units + 1 / block_vectors))

    found = (
        Block(cost(block_units, block_vectors), block_units, block_vectors)
        for block_units in range(1, min(units, most_units) + 1)
        for block_vectors in range(1, min(vectors, most_vectors) + 1)
        if block_units * block_vectors <= sums and (block_units + 1) * block_vectors < sums * 4 / 3
    )
    return tuple(sorted(found))


def vector_tiles(tunables: Mapping[str, int], units: int, run: int, runs: int = 1, stride: int = 1) -> list[Block]:
    """Tiles for ``units`` units and ``runs`` runs of ``run`` values, along which the lanes lie; the cheapest first.

    ``stride`` is how far the weights of a unit are from the next one's, which are read side by side.
    """
    lanes = power_of_two(run, tunables["MAXIMUM_LANES"])
    vectors = runs * -(-run // lanes)
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]

    def cost(block: Block) -> float:
        return block.cost * VECTOR_COST * (1 if stride % WAY_ELEMENTS or block.units <= WAYS else CONFLICT_COST)

    found = [
        Block(cost(block), block.units, block.vectors, lanes, -(-vectors // block.vectors))
        for block in blocks(units, vectors, *limits)
    ]
    return sorted(found, key=lambda tile: tile.cost)


def reads(of_units: int, unit_blocks: int, of_columns: int, column_blocks: int) -> tuple[int, int]:
    """Elements read from beyond a cache if blocks of units follow one another, and if blocks of columns do.

    (See kernels/convolution/order.h.) What all units read, ``of_units`` elements, is read again for each block of
    columns in the one order, what all columns read for each block of units in the other; unless a cache holds it.
    """

    def read(elements: int, times: int) -> int:
        return elements * (times if elements > CACHE_ELEMENTS else 1)

    return of_columns + read(of_units, column_blocks), of_units + read(of_columns, unit_blocks)


def order(
    unit_blocks: int, column_blocks: int, read: tuple[int, int], *, tied: bool = False
) -> tuple[tuple[int, int], dict[str, Macro]]:
    """Width and height in the order of blocks that reads less, and the macro of kernels/convolution/order.h.

    ``tied``: whether units come first where both read as much.
    """
    units_first = read[0] < read[1] or (tied and read[0] == read[1])
    size = (unit_blocks, column_blocks) if units_first else (column_blocks, unit_blocks)
    return size, {"UNITS_FIRST": int(units_first)}


def splits_for(groups: int, target: int, maximum: int) -> int:
    """The parts of a sum, a power of two, that make ``target`` groups of ``groups``, as far as ``maximum`` allows."""
    wanted = min(-(-target // groups), max(1, maximum))
    return 1 << (wanted - 1).bit_length()


def powers_of_two(most: int) -> Iterator[int]:
    """1, 2, 4 and so on, up to ``most``; 1 at least."""
    value = 1
    while value <= max(1, most):
        yield value
        value *= 2
