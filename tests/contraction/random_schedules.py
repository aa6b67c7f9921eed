"""Random schedules that fit a table: odd tiles, lanes, local memory, packed operands, splits, shared indexes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from blobnet.contraction.schedule import Product, Schedule, Side, Tile, can_peel, check, operand_names, prepared
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


def product(table: Table, rng: np.random.Generator) -> Schedule:
    """A product of matrices, of a table that has two operands at least."""
    first, second = list(operand_names(table).values())[:2]
    outputs = [str(name) for name in rng.permutation([index.name for index in table.outputs])]
    rows = [name for name in outputs if first.stride(name) and not second.stride(name)]
    columns = [name for name in outputs if name not in rows and not first.stride(name)]
    rows, columns = (names[: int(rng.integers(1, 4))] for names in (rows, columns))
    depth = [str(name) for name in rng.permutation([index.name for index in table.reductions])]
    depth.sort(key=lambda name: name != table.sample_reduction)
    step = int(rng.integers(1, 10))
    is_even = bool(depth) and table.extents[depth[-1]] % step == 0
    along = depth[-1] if is_even and rng.random() < 0.7 else ""
    blocks = [int(rng.choice([4, 4, 8])) for _ in range(2)]
    sizes = [block << int(rng.integers(0, 4)) for block in blocks]
    sides = Side(tuple(rows), sizes[0], blocks[0]), Side(tuple(columns), sizes[1], blocks[1])
    return Schedule(
        product=Product(*sides, tuple(depth), step, along, not along and rng.random() < 0.5),
        packed=tuple(name for name in operand_names(table) if rng.random() < 0.4),
        split=(depth[0], int(rng.integers(2, 5))) if depth and rng.random() < 0.4 else ("", 1),
    )


def proposal(table: Table, rng: np.random.Generator) -> Schedule:
    if len(operand_names(table)) > 1 and rng.random() < 0.3:
        return product(table, rng)
    peels = [index.name for index in table.outputs if can_peel(table, index.name)]
    peel = str(rng.choice(peels)) if peels and rng.random() < 0.7 else ""
    table = prepared(table, Schedule(peel=peel))
    cuts = {}
    for index in table.reductions:
        sizes = [size for size in range(2, index.extent + 1) if index.extent % size == 0]
        if sizes and rng.random() < 0.2 and index.name != table.sample_reduction:
            cuts[index.name] = int(rng.choice(sizes))
    table = prepared(table, Schedule(cuts=cuts))
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
        split = (index.name, int(rng.integers(1, index.extent + 1)))
    order = tuple(rng.permutation([index.name for index in table.indexes if index.name != vector]))
    if vector:
        order += (vector,)
    shared = ("", 1)
    loops = [index for index in reductions if index.name not in some and index.extent > 1]
    if loops and rng.random() < 0.4:
        index = loops[rng.integers(len(loops))]
        shared = (index.name, int(rng.integers(2, min(index.extent, 9) + 1)))
        if rng.random() < 0.5:
            order = (*(name for name in order if name != index.name),)
    wide = tuple(name for name in names if rng.random() < 0.3)
    made = Schedule(tuple(joins), peel, tiles, vector, lanes, chunks, tuple(some), local, packed, split, order)
    return replace(made, cuts=cuts, shared=shared, wide=wide)
