"""Schedules for devices whose work-items are lanes: tiles of two sides, of which each operand has one, as for matrices.

The *rows* of a tile are an index whose lanes can be vectors in local memory; the *columns* are the other outputs, those
that lie closest in memory first, so that neighbours store neighbours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from blobnet.contraction.costs import Model, Prediction
from blobnet.contraction.schedule import Schedule, Tile, check, constrained
from blobnet.contraction.table import Table
from blobnet.errors import OptionError

_MOST_THREADS, _LEAST_THREADS = 256, 64
_MOST_RESULTS, _LEAST_RESULTS = 96, 8
_CHUNKS = (4, 8, 16, 32)
#: Multiply-adds in a loop.
_STATEMENTS = 1200
#: Values of a reduction index that count as the taps of a filter, which one tile in local memory serves.
_TAPS = 11
_FINALISTS, _TILES = 4, 24


def gpu_schedules(table: Table, model: Model, base: Schedule) -> list[tuple[Prediction, Schedule]]:
    """Schedules with their predictions, the best first; at least one."""
    plain = _plain(table, model, base)
    found = [(model.gpu(plain), plain)]
    if table.reductions and not constrained(table) and len(model.operands) > 1 and table.aggregation != "=":
        tiles = [(model.gpu(schedule), schedule) for schedule in _products(table, model, base)]
        finalists = (schedule for _, schedule in sorted(tiles, key=lambda item: item[0].cycles))
        for schedule in itertools.islice((one for one in finalists if _fits(table, model, one)), _FINALISTS):
            tried = [other for other in _splits(table, model, schedule) if _fits(table, model, other)]
            found += [(model.gpu(other), other) for other in tried]
    return sorted(found, key=lambda item: item[0].cycles)


def _fits(table: Table, model: Model, schedule: Schedule) -> bool:
    try:
        check(table, schedule, model.device.group_size, model.device.local_memory)
    except OptionError:
        return False
    return True


def _plain(table: Table, model: Model, base: Schedule) -> Schedule:
    """A result a work-item, neighbours beside each other: for what moves more than it computes."""
    tiles: dict[str, Tile] = {}
    left = min(256, model.device.group_size)
    for name in _by_distance(model):
        threads = min(left, table.extents[name])
        if threads > 1:
            tiles[name] = Tile(threads, 1, 1)
            left //= threads
    order = tuple(reversed(_by_distance(model)))
    return replace(base, tiles=tiles, order=order)


def _by_distance(model: Model) -> list[str]:
    """Outputs, those that lie closest together in what is stored first."""
    return sorted(model.outputs, key=lambda name: (abs(model.store.stride(name)), -model.outputs.index(name)))


def _products(table: Table, model: Model, base: Schedule) -> list[Schedule]:
    """Tiles through local memory: those of the best rates of registers, with several chunks each."""
    tiles = sorted(_tiles(table, model), key=lambda item: item[0])[:_TILES]
    return [
        schedule
        for _, sides, order, lanes, rows in tiles
        for schedule in _chunked(table, model, base, sides, order, lanes, rows)
    ]


def _tiles(table: Table, model: Model) -> Iterator[tuple[float, dict[str, Tile], tuple[str, ...], int, str]]:
    """(cost, tile of each output, order, lanes, rows), the cost by loads, overhang and what groups share alone."""
    extents = table.extents
    most = min(_MOST_THREADS, model.device.group_size)
    for rows, lanes in _rows(table, model):
        columns = [name for name in _by_distance(model) if name != rows and extents[name] > 1][:3]
        order = (*(name for name in model.outputs if name != rows and name not in columns), rows, *reversed(columns))
        of_rows = [key for key, strides in model.strides.items() if rows in strides]
        blocks = (lanes, 2 * lanes) if lanes > 1 else (1, 2, 4, 8)
        options = [_options(extents[name], place) for place, name in enumerate(columns)]
        for choice in itertools.product(_sides(extents[rows], (1, 4, 8, 16), blocks), *options):
            threads = math.prod([tile.threads for tile in choice])
            results = math.prod([tile.block for tile in choice])
            if not _LEAST_THREADS <= threads <= most or not _LEAST_RESULTS <= results <= _MOST_RESULTS:
                continue
            sides = dict(zip((rows, *columns), choice, strict=True))
            loads = shared = 0.0
            for key, strides in model.strides.items():
                own = [tile for name, tile in sides.items() if name in strides]
                number = math.prod([tile.block for tile in own])
                loads += number / (lanes if key in of_rows else 1)
                shared += math.prod([tile.step for tile in own])
            waste = math.prod(
                [-(-extents[name] // tile.step) * tile.step / extents[name] for name, tile in sides.items()]
            )
            groups = math.prod(
                [-(-extents[name] // (sides[name].step if name in sides else 1)) for name in model.outputs]
            )
            idle = max(1.0, model.device.compute_units / groups) if model.points < 1024 else 1.0
            cost = waste * idle * (max(results / 4, loads) + 0.25 * loads + 12 * shared / threads) / results
            if columns and sides[columns[0]].threads < 8:
                cost *= 1.2  # Neighbours do not store neighbours.
            yield cost, sides, order, lanes, rows


def _chunked(
    table: Table, model: Model, base: Schedule, sides: dict[str, Tile], order: tuple[str, ...], lanes: int, rows: str
) -> Iterator[Schedule]:
    """Schedules of a tile, by what is in local memory at a time."""
    extents = table.extents
    taps = [name for name in model.reductions if extents[name] <= _TAPS and name != table.sample_reduction]
    long = [name for name in model.reductions if name not in taps]
    if not long:
        long, taps = model.reductions[:1], model.reductions[1:]
    results = math.prod(tile.block for tile in sides.values())
    # The longest chunk goes along what lies closest in the operands.
    along = min(long, key=lambda name: min(strides.get(name, 1 << 40) for strides in model.strides.values()))
    # As many taps are written out as registers hold.
    written = [tuple(taps[first:]) for first in range(len(taps) + 1)]
    short = [names for names in written if results * math.prod(extents[name] for name in names) <= _STATEMENTS]
    unrolled = next((names for names in short if model.held(sides, names) <= model.device.registers), None)
    if unrolled is None:
        return
    inner = (*(name for name in long if name != along), along, *taps)
    for size, few in itertools.product(_CHUNKS, range(len(taps) + 1)):
        chunks = {name: 1 for name in long if name != along and extents[name] > 1}
        if size < extents[along]:
            chunks[along] = size
        elif size >= 2 * extents[along] and size > _CHUNKS[0]:
            break
        # Where reductions are short, not all of them may fit.
        chunks |= {name: 1 for name in taps[:few] if extents[name] > 1}
        schedule = replace(
            base,
            tiles={name: tile for name, tile in sides.items() if tile != Tile()},
            vector=rows if lanes > 1 else "",
            lanes=lanes,
            chunks=chunks,
            unrolled=unrolled,
            local=tuple(model.operands),
            order=order + tuple(name for name in inner if name not in unrolled),
        )
        if _local_bytes(model, schedule) <= model.device.local_memory:
            yield schedule


def _local_bytes(model: Model, schedule: Schedule) -> float:
    """A little less than what local memory is needed: without padding."""
    total = 0.0
    for strides in model.strides.values():
        spans: dict[int, int] = {}
        for name, stride in strides.items():
            size = schedule.chunks.get(name, model.extents[name])
            size = schedule.tile(name).step if name in model.outputs else size
            spans[abs(stride)] = spans.get(abs(stride), 1) + size - 1
        total += math.prod(spans.values())
    return 4 * total


def _rows(table: Table, model: Model) -> Iterator[tuple[str, int]]:
    for name in model.outputs:
        moved = [key for key, strides in model.strides.items() if name in strides]
        if len(moved) != 1 or table.extents[name] < 4 or table.index(name).period:
            continue
        alone = any(form.terms == ((name, 1),) for _, form in model.operands[moved[0]].axes)
        yield name, 4 if alone else 1


def _sides(extent: int, threads: tuple[int, ...], blocks: tuple[int, ...]) -> list[Tile]:
    found = [Tile(count, 1, block) for count in threads for block in blocks if count * block <= extent]
    return found or [Tile(1, 1, 1)]


def _options(extent: int, place: int) -> list[Tile]:
    """Tiles of a column: many work-items side by side along the closest."""
    threads = {1, 8, 16, 32} if place == 0 else {1, 2, 4, 8}
    blocks = {1, 2, 4, 8} if place == 0 else {1, 2, 4}
    if extent <= 3:
        blocks, threads = blocks | {extent}, threads | {extent}
    elif place == 0 and extent <= 64:
        threads |= {-(-extent // count) for count in (1, 2, 4) if -(-extent // count) * count == extent}
    return [Tile(count, 1, block) for count in sorted(threads) for block in sorted(blocks) if count * block <= extent]


def _splits(table: Table, model: Model, schedule: Schedule) -> Iterator[Schedule]:
    yield schedule
    for name in model.reductions:
        if name in schedule.unrolled or table.extents[name] < 2:
            continue
        for parts in (2, 4, 7, 8, 14, 16, 28, 32, 56, 64):
            if table.extents[name] % parts == 0 and parts <= table.extents[name]:
                extent = table.extents[name] // parts
                chunks = {key: min(size, extent) if key == name else size for key, size in schedule.chunks.items()}
                yield replace(schedule, split=(name, parts), chunks=chunks)
