"""Block sizes: how many sums one work-item keeps, within a kernel's tunables.

A cost model in the spirit of seed 001 proposes; tuning overrides the tunables. A tile of units x vectors needs one load
a row and one a column for each of its multiply-adds' products, so the cost of a tile shape is its (padded) work times
1 + LOAD_COST * (1/units + 1/vectors).
"""

from __future__ import annotations

from collections.abc import Mapping

from blobnet.kernel_call import power_of_two

#: What a load costs, in multiply-adds.
LOAD_COST = 0.5


def lanes_for(width: int, maximum: int) -> int:
    """The vector length for runs of ``width``: the smallest power of two that holds the run, at most ``maximum``."""
    return power_of_two(width, maximum)


def choose_tile(units: int, vectors: int, most_units: int, most_vectors: int, accumulators: int) -> tuple[int, int]:
    """The (units, vectors) of a tile for ``units`` x ``vectors`` of work, with at most ``accumulators`` sums."""

    def cost(tile: tuple[int, int]) -> tuple[float, int]:
        padded = -(-units // tile[0]) * tile[0] * -(-vectors // tile[1]) * tile[1]
        return padded * (1 + LOAD_COST * (1 / tile[0] + 1 / tile[1])), tile[0]

    candidates = (
        (block_units, block_vectors)
        for block_units in range(1, min(units, most_units) + 1)
        for block_vectors in range(1, min(vectors, most_vectors) + 1)
        if block_units * block_vectors <= accumulators
    )
    return min(candidates, key=cost)


def position_tile(tunables: Mapping[str, int], units: int, runs: int, run: int) -> tuple[dict[str, int], int]:
    """Macros of a tile whose lanes are positions, for ``runs`` runs of ``run`` positions and ``units`` units.

    Returns:
        The macros LANES, BLOCK_UNITS, BLOCK_VECTORS and LOCAL_WIDTH; and the number of tiles along the positions.
    """
    lanes = lanes_for(run, tunables["MAXIMUM_LANES"])
    local = tunables["GROUP_WIDTH"]
    vectors = runs * -(-run // lanes)
    groups = -(-vectors // local)
    limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
    block_units, block_vectors = choose_tile(units, groups, *limits)
    macros = {"LANES": lanes, "BLOCK_UNITS": block_units, "BLOCK_VECTORS": block_vectors, "LOCAL_WIDTH": local}
    return macros, -(-groups // block_vectors)


def splits_for(groups: int, target: int, maximum: int) -> int:
    """Into how many partial sums to split a reduction whose launch has only ``groups`` work-groups."""
    splits = 1
    while splits < maximum and groups * splits < target:
        splits *= 2
    return splits
