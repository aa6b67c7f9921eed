"""Random schedules that fit a table: odd tiles, lanes, local memory, packed operands, splits."""

from __future__ import annotations

import numpy as np

from blobnet.contraction.schedule import Schedule, Tile, can_peel, check, operand_names, prepared
from blobnet.contraction.table import Table, period_of
from blobnet.errors import OptionError


def random_schedule(table: Table, rng: np.random.Generator) -> Schedule:
    """A schedule that :func:`check` accepts; the simplest one if chance finds no other."""
    for _ in range(30):
        schedule = proposal(table, rng)
        try:
            check(prepared(table, schedule), schedule, most_threads=64, local_memory=1 << 15)
        except OptionError:
            continue
        return schedule
    return Schedule()


def proposal(table: Table, rng: np.random.Generator) -> Schedule:
    peels = [index.name for index in table.outputs if can_peel(table, index.name)]
    peel = str(rng.choice(peels)) if peels and rng.random() < 0.7 else ""
    table = prepared(table, Schedule(peel=peel))
    joins: list[tuple[str, ...]] = []
    if rng.random() < 0.4:
        pairs = [(a.name, b.name) for a in table.indexes for b in table.indexes
                 if a != b and period_of(table, a.name, b.name)]  # fmt: skip
        if pairs:
            joins = [pairs[rng.integers(len(pairs))]]
            table = prepared(table, Schedule(joins=tuple(joins)))
    lanes, vector = 1, ""
    if rng.random() < 0.6:
        lanes = int(rng.choice([2, 2, 4, 4, 8, 16]))
        vector = str(rng.choice([index.name for index in table.indexes])) if table.indexes else ""
    lanes = lanes if vector else 1
    is_gpu = rng.random() < 0.5
    tiles = {}
    for index in table.outputs:
        width = lanes if index.name == vector else 1
        block = width * int(rng.integers(1, 4))
        tiles[index.name] = Tile(int(rng.integers(1, 4)) if is_gpu else 1, int(rng.integers(1, 4)), block)
        if rng.random() < 0.3:
            tiles[index.name] = Tile(1, 1, width)
    names = list(operand_names(table))
    reductions = [index for index in table.reductions if index.name != vector]
    some = [index.name for index in reductions if rng.random() < 0.3]
    local = tuple(name for name in names if rng.random() < 0.5) if rng.random() < 0.4 else ()
    chunks = {index.name: int(rng.integers(1, index.extent + 1)) for index in reductions
              if local and rng.random() < 0.5}  # fmt: skip
    packed: tuple[str, ...] = ()
    if vector and not local and rng.random() < 0.7:
        packed = tuple(name for name, operand in operand_names(table).items() if operand.stride(vector))
    split = ("", 1)
    if reductions and rng.random() < 0.3:
        index = reductions[rng.integers(len(reductions))]
        parts = [count for count in range(1, index.extent + 1) if index.extent % count == 0]
        split = (index.name, int(rng.choice(parts)))
    order = tuple(rng.permutation([index.name for index in table.indexes if index.name != vector]))
    if vector:
        order += (vector,)
    return Schedule(tuple(joins), peel, tiles, vector, lanes, chunks, tuple(some), local, packed, split, order)
