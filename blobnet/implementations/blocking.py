"""Block sizes: how many sums one work-item keeps, within a kernel's tunables.

A cost model in the spirit of seed 001 proposes; tuning overrides the tunables. A tile of units x vectors needs one load
a row and one a column for each of its multiply-adds' products, so the cost of a tile shape is its (padded) work times
1 + LOAD_COST * (1/units + 1/vectors).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blobnet.kernel_call import power_of_two
from blobnet.kernel_source import Macro

#: What a load costs, in multiply-adds.
LOAD_COST = 0.5
#: Elements that a CPU's second cache holds beside what else is read, and what it costs to read one from beyond it, in
#: multiply-adds of a compute unit.
CACHE_ELEMENTS, READ_COST = 2**18, 30
#: Work-items for each compute unit from which on it does not matter that some units have one more.
FEW_ITEMS = 4


def lanes_for(width: int, maximum: int) -> int:
    """The vector length for runs of ``width``: the smallest power of two that holds the run, at most ``maximum``."""
    return power_of_two(width, maximum)


def tiles(units: int, vectors: int, most_units: int, most_vectors: int, sums: int) -> list[tuple[float, int, int]]:
    """Tiles for ``units`` x ``vectors`` of work, with at most ``sums`` sums: (cost, units, vectors), cheapest first.

    The cost counts multiply-adds of vectors.
    """
    return sorted(
        (
            -(-units // block_units) * block_units
            * -(-vectors // block_vectors) * block_vectors
            * (1 + LOAD_COST * (1 / block_units + 1 / block_vectors)),
            block_units,
            block_vectors,
        )
        for block_units in range(1, min(units, most_units) + 1)
        for block_vectors in range(1, min(vectors, most_vectors) + 1)
        if block_units * block_vectors <= sums
    )  # fmt: skip


def choose_tile(units: int, vectors: int, most_units: int, most_vectors: int, sums: int) -> tuple[int, int]:
    """The (units, vectors) of the cheapest of :func:`tiles`."""
    return tiles(units, vectors, most_units, most_vectors, sums)[0][1:]


@dataclass(frozen=True)
class VectorTile:
    """A tile of sums: ``units`` x ``vectors`` vectors of ``lanes``.

    Attributes:
        count: tiles along the vectors.
        cost: multiply-adds for each row of the product; a vector that holds less than the most lanes takes as long.
    """

    units: int
    vectors: int
    lanes: int
    count: int
    cost: float

    def __str__(self) -> str:
        return f"{self.units}x{self.vectors}x{self.lanes}"

    @property
    def values(self) -> int:
        """Values of all vectors of a unit."""
        return self.vectors * self.lanes

    @property
    def macros(self) -> dict[str, Macro]:
        """The tile as macros."""
        return {"BLOCK_UNITS": self.units, "BLOCK_VECTORS": self.vectors, "LANES": self.lanes}


def vector_tiles(tunables: Mapping[str, int], units: int, run: int, runs: int = 1) -> list[VectorTile]:
    """Tiles for ``units`` units and ``runs`` runs of ``run`` values, along which the lanes lie; the cheapest first."""
    most = tunables["MAXIMUM_LANES"]
    lanes = lanes_for(run, most)
    vectors = runs * -(-run // lanes)
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
    return [
        VectorTile(block_units, block_vectors, lanes, count=-(-vectors // block_vectors), cost=cost * most)
        for cost, block_units, block_vectors in tiles(units, vectors, *limits)
    ]


def reads(of_units: int, unit_blocks: int, of_columns: int, column_blocks: int) -> tuple[int, int]:
    """Elements read from beyond a cache if blocks of units follow one another, and if blocks of columns do.

    (See kernels/convolution/order.h.) What all units read, ``of_units`` elements, is read again for each block of
    columns in the one order, what all columns read for each block of units in the other; unless a cache holds it.
    """

    def read(elements: int, times: int) -> int:
        return elements * (times if elements > CACHE_ELEMENTS else 1)

    return of_columns + read(of_units, column_blocks), of_units + read(of_columns, unit_blocks)


def balance(items: int, cores: int) -> float:
    """How many times as long so few equal work-items take as if compute units shared them evenly; 1 for many."""
    return -(-items // cores) * cores / items if items < FEW_ITEMS * cores else 1.0


def splits_for(groups: int, target: int, maximum: int) -> int:
    """Into how many partial sums to split a reduction whose launch has only ``groups`` work-groups."""
    splits = 1
    while splits < maximum and groups * splits < target:
        splits *= 2
    return splits


def powers_of_two(most: int) -> Iterator[int]:
    """1, 2, 4 and so on, up to ``most``; 1 at least."""
    value = 1
    while value <= max(1, most):
        yield value
        value *= 2
