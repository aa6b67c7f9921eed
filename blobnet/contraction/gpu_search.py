"""Schedules for devices whose work-items are lanes: products of matrices, shared sums, and blocks of results.

What is a sum of products is a product of matrices through local memory, if each operand has indexes of its own. Long
sums of few results are shared by work-items side by side. All else is a result a work-item, or a block of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from blobnet.contraction.costs import CostModel, Prediction
from blobnet.contraction.schedule import Product, Schedule, Side, Tile, can_be_cheap, check, constrained
from blobnet.contraction.table import CUT, Table, cut, join_name, part_of
from blobnet.errors import OptionError
from blobnet.launch.work_sizes import group_size

#: Multiply-adds that a loop is written out to at most.
_STATEMENTS = 1200
#: A reduction index of up to so many values is written out, as the taps of a filter are.
_TAPS = 11
#: One work-item makes all results of an output index of up to so many values.
_FEW = 4
#: Long sums are split where a compute unit has no more than so many work-items; the terms of a long sum for each lane.
_FULL, _LONG = 128, 4
#: Tiles of products of matrices: rows, columns, depth, and rows and columns of a work-item.
MATRIX_TILES = (
    (128, 128, 8, (8, 8)),
    (128, 64, 16, (8, 8)),
    (128, 64, 8, (8, 8)),
    (64, 128, 16, (8, 8)),
    (64, 128, 8, (8, 8)),
    (32, 256, 8, (8, 8)),
    (32, 128, 8, (4, 8)),
    (32, 128, 16, (4, 8)),
    (64, 64, 16, (8, 8)),
    (64, 64, 16, (8, 4)),
    (64, 64, 8, (8, 4)),
    (64, 32, 16, (8, 4)),
    (32, 64, 16, (4, 4)),
    (32, 32, 16, (4, 4)),
    (16, 256, 8, (4, 8)),
    (16, 128, 16, (4, 4)),
)


def gpu_schedules(table: Table, model: CostModel, base: Schedule) -> list[tuple[Prediction, Schedule]]:
    """Schedules with their predictions, the best first; at least one."""
    found = [(model.gpu(plain), plain) for plain in _plains(table, model, base)]
    products = list(_matrices(table, model, base))
    found += [(model.gpu(product), product) for product in products]
    if not products or _narrow(table, products[0].product):
        found += _shares(table, model, base)
    return sorted(found, key=lambda item: item[0].cycles)


def _narrow(table: Table, product: Product | None) -> bool:
    """Return True if one of the matrices is nearly a vector."""
    return product is not None and any(
        math.prod(table.extents[name] for name in side.names) < _FEW for side in (product.rows, product.columns)
    )


def _matrices(table: Table, model: CostModel, base: Schedule) -> Iterator[Schedule]:
    """Products of matrices: every tile, in splits of the depth where there are few."""
    device = model.device
    names = [list(strides) for strides in model.strides.values()]
    if len(names) != 2 or constrained(table) or not table.reductions or any(index.period for index in table.outputs):
        return
    samples = table.sample.indexes if table.sample else ()
    near = [name for name in _by_distance(model) if table.extents[name] > 1 or name in samples]
    own = [[name for name in near if name in names[side] and name not in names[1 - side]] for side in (0, 1)]
    neither = [name for name in near if name not in names[0] and name not in names[1]]
    if not own[0] or not own[1]:
        return
    # Neighbours of what is stored are columns.
    first = next(name for name in near if name in own[0] or name in own[1])
    right = 0 if first in own[0] else 1
    rows, columns = list(reversed(own[1 - right])), list(reversed([*own[right], *neither]))
    for side in (rows, columns):
        side.sort(key=lambda name: name not in samples)
    keys = list(model.strides)
    left, right_key = keys[1 - right], keys[right]
    for depth, along, packed in _depths(table, model, (left, rows[-1]), (right_key, columns[-1])):
        is_cheap = device.prefers_32bit_addresses and can_be_cheap(table, depth)
        for (height, width, step, block), splits in itertools.product(MATRIX_TILES, (1, 2, 4, 8, 16, 32, 64, 128, 256)):
            if along and table.extents[along] % step:
                continue
            sides = Side(tuple(rows), height, block[0]), Side(tuple(columns), width, block[1])
            product = Product(*sides, depth, step, along, is_cheap and not along)
            many = splits > 1 and model.product_groups(product, splits) > 8 * device.compute_units
            if many or (splits > 1 and model.points < 64 * splits):
                continue
            schedule = replace(
                base, product=product, packed=packed, split=(depth[0], splits) if splits > 1 else ("", 1)
            )
            if _fits(table, model, schedule):
                yield schedule


def _depths(
    table: Table, model: CostModel, left: tuple[str, str], right: tuple[str, str]
) -> Iterator[tuple[tuple[str, ...], str, tuple[str, ...]]]:
    """Orders of the depth, the index that steps go along, and what is packed."""
    samples = table.sample.indexes if table.sample else ()
    reductions = [name for name in model.reductions if table.extents[name] > 1 or name in samples]
    reductions = reductions or model.reductions[:1]

    def ordered(key: str, last: str = "") -> tuple[str, ...]:
        found = sorted(reductions, key=lambda name: -abs(model.strides[key].get(name, 0)))
        found.sort(key=lambda name: (name not in samples, name == last))
        return tuple(found)

    long = max(reductions, key=lambda name: table.extents[name])
    orders = list(dict.fromkeys([ordered(right[0]), ordered(left[0]), ordered(right[0], long)]))
    for order in orders:
        packed = []
        last = order[-1]
        for key, near in (left, right):
            strides = model.strides[key]
            if strides.get(near) != 1 and strides.get(last) != 1 and not set(samples) & set(strides):
                packed.append(key)
        yield order, "", tuple(packed)
        yield order, last, tuple(packed)
        if not packed and model.strides[left[0]].get(left[1]) != 1 and not set(samples) & set(model.strides[left[0]]):
            yield order, last, (left[0],)


def _fits(table: Table, model: CostModel, schedule: Schedule) -> bool:
    try:
        check(table, schedule, model.device.group_size, model.device.local_memory)
    except OptionError:
        return False
    return True


def _plains(table: Table, model: CostModel, base: Schedule) -> Iterator[Schedule]:
    """A result a work-item, or a few, neighbours beside each other: for what moves more than it computes."""
    near = _by_distance(model)
    tied = constrained(table)
    taps = [name for name in model.reductions if table.extents[name] <= _TAPS and name not in tied]
    taps = [name for name in taps if name != table.sample_reduction]
    order = tuple(reversed(near))
    others = [name for name in near[1:3] if name not in tied and table.extents[name] > 1]
    few = [name for name in near[1:] if 1 < table.extents[name] <= _FEW and name not in tied]
    blocks = [("", 1), *((name, block) for name in others for block in (2, 4, 7, 8))]
    for whole, (name, block) in itertools.product(["", *few], blocks):
        if whole == name != "":
            continue
        if name and block > table.extents[name]:
            continue
        for first in range(len(taps) + 1):
            unrolled = tuple(taps[first:])
            results = block * (table.extents[whole] if whole else 1)
            if results * math.prod(table.extents[tap] for tap in unrolled) > _STATEMENTS:
                continue
            tiles: dict[str, Tile] = {}
            left = group_size(model.device)
            for other in near:
                own = block if other == name else table.extents[other] if other == whole else 1
                threads = min(left, table.extents[other] // own)
                if threads * own > 1:
                    tiles[other] = Tile(threads, 1, own)
                    left //= threads
            loops = tuple(other for other in model.reductions if other not in unrolled)
            made = replace(base, tiles=tiles, unrolled=unrolled, order=order + loops)
            yield made
            if not block > 1 and not whole:
                yield from _split(table, model, made)


def _split(table: Table, model: CostModel, schedule: Schedule) -> Iterator[Schedule]:
    """The same with a long sum in parts, where results are too few for a device."""
    outputs = math.prod(table.extents[name] for name in model.outputs)
    loops = [name for name in model.reductions if name not in schedule.unrolled and table.extents[name] > _TAPS]
    if table.aggregation != "+" or constrained(table) or not loops:
        return
    longest = max(loops, key=lambda name: table.extents[name])
    for parts in (4, 16, 64):
        if table.extents[longest] % parts == 0 and outputs * parts <= _FULL * model.device.compute_units:
            yield replace(schedule, split=(longest, parts))


def _shares(table: Table, model: CostModel, base: Schedule) -> list[tuple[Prediction, Schedule]]:
    """Long sums of few results: work-items side by side share the index whose values lie so."""
    if constrained(table) or table.aggregation == "=" or model.points < _LONG * model.device.lanes:
        return []
    return [found for name, within in _shared(table, model) for found in _shares_of(table, model, base, name, within)]


def _shared(table: Table, model: CostModel) -> list[tuple[str, str]]:
    """Reductions whose values lie side by side, each with the output whose values lie between them, or "".

    Between positions there are the units of a cell.
    """
    found = []
    long = [name for name in model.reductions if table.extents[name] > 3 and name != table.sample_reduction]
    short = [name for name in model.outputs if 1 < table.extents[name] <= _TAPS]
    for within in ("", *short):
        step = table.extents[within] if within else 1
        maps = [strides for strides in model.strides.values() if not within or strides.get(within) == 1]
        near = [name for name in long if any(strides.get(name) == step for strides in maps)]
        if near:
            found.append((max(near, key=lambda name: table.extents[name]), within))
    return found


def _shares_of(
    table: Table, model: CostModel, base: Schedule, name: str, within: str
) -> list[tuple[Prediction, Schedule]]:
    """Sums that work-items side by side share by an index, each with the values of an output between them."""
    found = []
    joined_names = {part for names in base.joins for part in (join_name(names), *names)}
    others = [other for other in model.reductions if other != name and table.extents[other] > 1]
    cuttable = [other for other in others if other not in joined_names and other != table.sample_reduction]
    small = [index.name for index in table.outputs if 1 < index.extent <= _TAPS and index.name != within]
    blocks = {key: table.extents[key] for key in small}
    if math.prod(blocks.values()) > 32:
        blocks = {}
    cuts: list[tuple[str, int]] = [("", 1)]
    cuts += [(other, size) for other in cuttable for size in (2, 4, 7, 8) if not table.extents[other] % size]
    last = {within: Tile(table.extents[within], 1, 1)} if within else {}
    for (other, size), items in itertools.product(cuts, (table.extents[name], 32, 64, 128)):
        if items > min(table.extents[name], 128):
            continue
        own, by = table, model
        if other:
            own = cut(table, other, size)
            by = CostModel(own, model.device)
        tiles = {key: Tile(1, 1, block) for key, block in blocks.items()}
        apart = [key for key in _by_distance(by) if key not in {*blocks, within} and own.extents[key] > 1]
        for beside in (1, 2, 4, 8, 16):
            many = within or items >= model.device.lanes // 2
            if beside > 1 and (many or not apart or beside > own.extents[apart[0]]):
                break
            sides = {**tiles, **({apart[0]: Tile(beside, 1, 1)} if beside > 1 else {})}
            made = replace(
                base,
                cuts={other: size} if other else {},
                tiles={**sides, **last},
                shared=(name, items),
                unrolled=(part_of(other, CUT),) if other else (),
                order=(*(key for key in by.outputs if key not in {*sides, within}), *sides, *others, name, *last),
            )
            options = [made]
            if others:  # Parts lie far apart: those of one read their own lines.
                split = max(others, key=lambda key: max(abs(strides.get(key, 0)) for strides in by.strides.values()))
                parts = [count for count in range(2, 65) if own.extents[split] % count == 0]
                options += [replace(made, split=(split, count)) for count in parts]
            found += [(by.gpu(option), option) for option in options if _fits(own, by, option)]
    return found


def _by_distance(model: CostModel) -> list[str]:
    """Outputs, those that lie closest together in what is stored first."""
    return sorted(model.outputs, key=lambda name: (abs(model.store.stride(name)), -model.outputs.index(name)))
