"""The search for the schedule of the least predicted time: all blocks that registers hold, then orders and splits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from blobnet.contraction.costs import BLOCK_START, Model, Prediction
from blobnet.contraction.form import Position
from blobnet.contraction.gpu_search import gpu_schedules
from blobnet.contraction.schedule import Schedule, Tile, can_peel, constrained, prepared
from blobnet.contraction.table import Table, interior, period_of
from blobnet.device_model import DeviceModel

#: Blocks of an index that are tried, and candidates whose orders and splits are.
_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
_FINALISTS, _OF_A_VECTOR = 10, 4
#: Values of a reduction index that are written out at most, and multiply-adds in a loop.
_UNROLL, _STATEMENTS = 11, 110
#: Cycles that a group should take at least, and groups that each compute unit should have.
_GROUP_CYCLES, _GROUPS = 20000, 8


def best_schedule(table: Table, device: DeviceModel) -> Schedule:
    """The schedule of the least predicted time."""
    return search(table, device)[0][1]


def search(table: Table, device: DeviceModel) -> list[tuple[Prediction, Schedule]]:
    """The best schedules that were found, the best first."""
    found: list[tuple[Prediction, Schedule]] = []
    for base in _bases(table, device):
        joined = prepared(table, base)
        model = Model(joined, device)
        if device.items_are_lanes:
            found += gpu_schedules(joined, model, base)
            continue
        for vector, lanes, packed in _vectors(joined, device):
            vectors = replace(base, vector=vector, lanes=lanes, packed=packed)
            cheapest = sorted(_blocks(joined, model, vectors), key=lambda item: item[0])[:_OF_A_VECTOR]
            for _, blocks, unrolled in cheapest:
                schedule = _blocked(model, vectors, blocks, unrolled)
                found += [(model.cpu(ordered), ordered) for ordered in _orders(joined, model, schedule)]
    # Of equals the first one: the order of the search is part of its result.
    return sorted(found, key=lambda item: item[0].cycles)[:_FINALISTS]


def _bases(table: Table, device: DeviceModel) -> list[Schedule]:
    """What of the table a kernel makes, and its indexes."""
    peels = [""]
    if not device.items_are_lanes:
        store = table.stores[0].operand
        near = [index for index in table.outputs if abs(store.stride(index.name)) == 1 and can_peel(table, index.name)]
        peels += [index.name for index in near if 2 * len(interior(table, index.name)) > index.extent]
    bases = [Schedule(peel=peel) for peel in peels]
    return [replace(base, joins=joins) for base in bases for joins in joinings(prepared(table, base))]


def joinings(table: Table) -> list[tuple[tuple[str, ...], ...]]:
    """What can be joined: what has no gaps always, cells with gaps between rows as one more way."""
    dense = _joined(table, gaps=False)
    loose = _joined(table, gaps=True)
    return list(dict.fromkeys([dense, loose]))


def _joined(table: Table, gaps: bool) -> tuple[tuple[str, ...], ...]:
    chains: list[tuple[str, ...]] = []
    done = False
    while not done:
        done = True
        for outer, inner in itertools.permutations([index.name for index in table.indexes], 2):
            period = period_of(table, outer, inner)
            if period and (gaps or period == table.index(inner).extent):
                parts = _chain(chains, outer) + _chain(chains, inner)
                if len(_chain(chains, inner)) > 1:
                    continue  # Names are joined from left to right.
                chains = [chain for chain in chains if "_".join(chain) != outer] + [parts]
                table = prepared(table, Schedule(joins=((outer, inner),)))
                done = False
                break
    return tuple(chains)


def _chain(chains: list[tuple[str, ...]], name: str) -> tuple[str, ...]:
    return next((chain for chain in chains if "_".join(chain) == name), (name,))


def _vectors(table: Table, device: DeviceModel) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Indexes that lanes may be, how many, and the operands that have to be packed for it."""
    tied = constrained(table)
    model = Model(table, device)
    yield "", 1, ()
    if device.lanes == 1 or device.items_are_lanes:
        return
    uses_place = any(isinstance(node, Position) for node in table.expression.walk())
    for index in table.indexes:
        name = index.name
        if name in tied or index.extent < 2:
            continue
        moved = [key for key, strides in model.strides.items() if name in strides]
        steps = {model.strides[key][name] for key in moved}
        lanes = 1 << (min(index.extent, device.lanes).bit_length() - 1)
        if not index.is_output:
            if steps == {1} and name != table.sample_reduction and table.aggregation != "=" and not uses_place:
                while lanes >= 4:
                    yield name, lanes, ()
                    lanes = lanes // 2 if index.extent % lanes else 0
            continue
        if lanes > 1 and (steps <= {1, 2} or model.store.stride(name) == 1):
            yield name, lanes, ()
        if tied or not moved or steps == {1}:
            continue
        can_pack = all(_has_own_axis(model, key, name) for key in moved)
        if can_pack and table.reductions:
            width = min(device.lanes, 1 << (index.extent - 1).bit_length())
            yield name, width, tuple(moved)


def _has_own_axis(model: Model, key: str, name: str) -> bool:
    forms = [form for _, form in model.operands[key].axes if form.coefficient(name)]
    return len(forms) == 1 and forms[0].terms == ((name, 1),)


def _blocked(model: Model, base: Schedule, blocks: Mapping[str, int], unrolled: tuple[str, ...]) -> Schedule:
    """The schedule of a block of results."""
    tiles = {name: Tile(1, 1, block) for name, block in blocks.items() if block > 1}
    reductions = [name for name in model.reductions if name != base.vector and name not in unrolled]
    order = tuple(reductions) + ((base.vector,) if base.vector in model.reductions else ())
    return replace(base, tiles=tiles, unrolled=unrolled, order=order)


def _blocks(table: Table, model: Model, base: Schedule) -> Iterator[tuple[float, Mapping[str, int], tuple[str, ...]]]:
    """Blocks of results in registers, and what is unrolled, behind the cycles that they take."""
    tied = constrained(table)
    extents = table.extents
    most = model.device.registers
    vector, lanes, packed = base.vector, base.lanes, base.packed
    others = [name for name in model.outputs if name != vector and extents[name] > 1 and name not in tied]
    is_output = vector in model.outputs
    widths = [1]
    if is_output:
        count = -(-extents[vector] // lanes) if packed else extents[vector] // lanes
        widths = list(range(1, min(count, 4) + 1))
    sizes = {name: _useful(extents[name]) for name in others}
    choices: list[dict[str, int]] = [{}, *({name: size} for name in others for size in sizes[name])]
    choices += [
        {a: size, b: other}
        for a, b in itertools.combinations(others, 2)
        for size in sizes[a]
        for other in sizes[b]
        if size * other <= most
    ]
    for width, choice in itertools.product(widths, choices):
        results = math.prod(choice.values())
        if width * results > most:
            continue
        blocks = dict.fromkeys(model.outputs, 1) | choice
        if is_output:
            blocks[vector] = width * lanes
        unrolled = _unrolled(table, width * results, vector, tied)
        cycles = model.inner(blocks, vector, lanes, packed, unrolled)[0]
        points: float = model.points
        if vector and not is_output:
            points *= (extents[vector] // lanes + 1.5 * (extents[vector] % lanes)) / extents[vector]
        tiles = math.prod([-(-extents[name] // block) for name, block in blocks.items()])
        stores = model.stores(math.prod(blocks.values()), vector, lanes)
        cost = tiles * (cycles * points + stores + BLOCK_START) + model.packing(packed)
        yield cost, blocks, unrolled


def _useful(extent: int) -> list[int]:
    """Blocks above 1 of a range: the smallest of those that make as many tiles."""
    found: dict[int, int] = {}
    for block in (*_BLOCKS, extent):
        if 1 < block <= min(extent, _BLOCKS[-1]):
            tiles = -(-extent // block)
            found.setdefault(tiles, -(-extent // tiles))
    return sorted(set(found.values()) - {1})


def _unrolled(table: Table, vectors: int, vector: str, tied: set[str]) -> tuple[str, ...]:
    """The innermost reduction indexes that are short enough to be written out."""
    chosen: list[str] = []
    total = vectors
    for index in reversed(table.reductions):
        if index.extent == 1:
            continue
        if index.name in (vector, table.sample_reduction) or index.name in tied:
            break
        if index.extent > _UNROLL or total * index.extent > _STATEMENTS:
            break
        total *= index.extent
        chosen.insert(0, index.name)
    return tuple(chosen)


def _orders(table: Table, model: Model, schedule: Schedule) -> Iterator[Schedule]:
    """Orders of tiles, splits of what is summed, and tiles that a work-item makes one after another."""
    long = [name for name in model.outputs if table.extents[name] > schedule.tile(name).block]
    orders = [tuple(model.outputs)]
    for name in long:
        order = (*(other for other in model.outputs if other != name), name)
        if order not in orders:
            orders.append(order)
    splits = [("", 1)]
    if table.reductions and not constrained(table):
        results = math.prod(table.extents[name] for name in model.outputs)
        if results * 4 < model.points * 100:
            for index in table.reductions:
                if index.name not in (*schedule.unrolled, schedule.vector):
                    splits += [
                        (index.name, parts)
                        for parts in range(2, min(index.extent, 64) + 1)
                        if index.extent % parts == 0
                    ]
    for order in orders:
        for split in splits:
            yield _walked(table, model, replace(schedule, order=order + schedule.order, split=split))


def _walked(table: Table, model: Model, schedule: Schedule) -> Schedule:
    """Tiles one after another along the fastest index, so that groups are large enough to be worth it."""
    outputs = [name for name in schedule.order if name in model.outputs]
    if not outputs:
        return schedule
    fastest = outputs[-1]
    tile = schedule.tile(fastest)
    blocks = {name: schedule.tile(name).block for name in model.outputs}
    cycles = model.inner(blocks, schedule.vector, schedule.lanes, schedule.packed, schedule.unrolled)[0]
    block = (
        cycles * model.points / schedule.split[1] / (schedule.lanes if schedule.vector in model.reductions else 1) + 50
    )
    count = math.prod(-(-table.extents[name] // size) for name, size in blocks.items()) * schedule.split[1]
    along = -(-table.extents[fastest] // tile.block)
    walk = max(1, min(along, int(_GROUP_CYCLES / block), count // (_GROUPS * model.device.compute_units)))
    walk = -(-along // -(-along // walk))
    return replace(schedule, tiles={**schedule.tiles, fastest: replace(tile, walk=walk)})
