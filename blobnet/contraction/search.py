"""The search for the schedule of the least predicted time: all blocks that registers hold, then orders and splits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from blobnet.contraction.costs import CostModel, InnerLoop, Prediction
from blobnet.contraction.form import Position
from blobnet.contraction.gpu_search import gpu_schedules
from blobnet.contraction.schedule import LANES, Schedule, Tile, can_peel, constrained, prepared
from blobnet.contraction.schedule_cache import cached_schedule
from blobnet.contraction.table import Operand, Table, interior, join_name, period_of
from blobnet.hardware.device_model import DeviceModel

#: Blocks of an index that are tried, and candidates whose orders and splits are.
_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
_FINALISTS, _OF_A_VECTOR = 10, 4
#: Blocks are passed over that alone take so many times the least time so far (split sums may take less).
_MARGIN = 1.1
#: Values of a reduction index that are written out at most, and multiply-adds in a loop.
_UNROLL, _STATEMENTS = 11, 110
#: Parts of a split sum.
_MAX_PARTS = 64
#: Lanes of a vector at least: compilers make nothing of fewer.
_MIN_LANES = 4
#: Steps of a loop that what it reads from afar is asked for ahead, and steps from which on that is worth it.
_AHEAD, _MIN_STEPS = 8, 32
#: Cycles that a group should take at least, and groups that each compute unit should have.
_GROUP_CYCLES, _GROUPS = 20000, 8


def best_schedule(table: Table, device: DeviceModel) -> Schedule:
    """The schedule of the least predicted time; tables that differ in names of tensors and offsets alone share it."""
    names = {name: f"{number}" for number, name in enumerate(table.buffers)}
    schedule = _best(_renamed(table, names), device)
    known = {new: old for old, new in names.items()}

    def old_names(keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(known[name] + dot + number for name, dot, number in (key.partition(".") for key in keys))

    return replace(schedule, local=old_names(schedule.local), packed=old_names(schedule.packed))


def _renamed(table: Table, names: Mapping[str, str]) -> Table:
    """The table with other names of tensors, all of which begin where their buffers do."""

    def operand(old: Operand) -> Operand:
        return replace(old, name=names[old.name], offset=0)

    return table.changed(operand=operand)


@lru_cache(maxsize=1024)
def _best(table: Table, device: DeviceModel) -> Schedule:
    return cached_schedule(table, device, lambda: search(table, device)[0][1])


def search(table: Table, device: DeviceModel) -> list[tuple[Prediction, Schedule]]:
    """The best schedules that were found, the best first."""
    found: list[tuple[Prediction, Schedule]] = []
    blocks: list[tuple[float, CostModel, Schedule]] = []
    for base in _bases(table, device):
        joined = prepared(table, base)
        model = CostModel(joined, device)
        if device.is_simt:
            found += gpu_schedules(joined, model, base)
            continue
        for vector, lanes, packed in _vectors(joined, device):
            vectors = replace(base, vector=vector, lanes=lanes, packed=packed)
            best = _blocks(joined, model, vectors)
            blocks += [(cost, model, _blocked(model, vectors, block, unrolled)) for cost, block, unrolled in best]
    least = math.inf
    for cost, model, schedule in sorted(blocks, key=lambda item: item[0]):
        if cost > least * _MARGIN:
            break  # What a block takes by itself is a part of what all takes.
        tried = [(model.cpu(ordered), ordered) for ordered in _orders(model.table, model, schedule)]
        least = min(least, *(prediction.cycles for prediction, _ in tried))
        found += tried
    # Of equals the first one: the order of the search is part of its result.
    return sorted(found, key=lambda item: item[0].cycles)[:_FINALISTS]


def _bases(table: Table, device: DeviceModel) -> list[Schedule]:
    """Return schedules that only choose which part of the table a kernel makes, and its indexes."""
    peels = [""]
    if not device.is_simt:
        store = table.stores[0].operand
        near = [index for index in table.outputs if abs(store.stride(index.name)) == 1 and can_peel(table, index.name)]
        peels += [index.name for index in near if 2 * len(interior(table, index.name)) > index.extent]
    bases = [Schedule(peel=peel) for peel in peels]
    return [replace(base, joins=joins) for base in bases for joins in joinings(prepared(table, base))]


def joinings(table: Table) -> list[tuple[tuple[str, ...], ...]]:
    """Return the joins of indexes: always those without gaps, and as one more way cells with gaps between rows."""
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
                chains = [chain for chain in chains if join_name(chain) != outer] + [parts]
                table = prepared(table, Schedule(joins=((outer, inner),)))
                done = False
                break
    return tuple(chains)


def _chain(chains: list[tuple[str, ...]], name: str) -> tuple[str, ...]:
    return next((chain for chain in chains if join_name(chain) == name), (name,))


def _vectors(table: Table, device: DeviceModel) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Indexes that lanes may be, how many, and the operands that have to be packed for it."""
    tied, widest = constrained(table), min(device.lanes, LANES[-1])
    model = CostModel(table, device)
    yield "", 1, ()
    if device.lanes == 1 or device.is_simt:
        return
    uses_place = any(isinstance(node, Position) for node in table.expression.walk())
    for index in table.indexes:
        name = index.name
        if name in tied or index.extent < 2:
            continue
        moved = [key for key, strides in model.strides.items() if name in strides]
        steps = {model.strides[key][name] for key in moved}
        lanes = 1 << (min(index.extent, widest).bit_length() - 1)
        if not index.is_output:
            if steps <= {1, 2} and name != table.sample_reduction and table.aggregation != "=" and not uses_place:
                while lanes >= _MIN_LANES:
                    yield name, lanes, ()
                    lanes = lanes // 2 if index.extent % lanes else 0
            continue
        if lanes >= _MIN_LANES and (steps <= {1, 2} or model.store.stride(name) == 1):
            yield name, lanes, ()
        if tied or not moved or (steps == {1} and not any(model.conflicts(model.strides[key], ()) for key in moved)):
            continue
        can_pack = all(_has_own_axis(model, key, name) for key in moved)
        if can_pack and table.reductions:
            width = min(widest, 1 << (index.extent - 1).bit_length())
            yield name, width, tuple(moved)


def _has_own_axis(model: CostModel, key: str, name: str) -> bool:
    forms = [form for _, form in model.operands[key].axes if form.coefficient(name)]
    return len(forms) == 1 and forms[0].terms == ((name, 1),)


def _blocked(model: CostModel, base: Schedule, blocks: Mapping[str, int], unrolled: tuple[str, ...]) -> Schedule:
    """The schedule of a block of results."""
    tiles = {name: Tile(1, 1, block) for name, block in blocks.items() if block > 1}
    reductions = [name for name in model.reductions if name != base.vector and name not in unrolled]
    order = tuple(reductions) + ((base.vector,) if base.vector in model.reductions else ())
    return replace(base, tiles=tiles, unrolled=unrolled, order=order)


def _blocks(table: Table, model: CostModel, base: Schedule) -> list[tuple[float, Mapping[str, int], tuple[str, ...]]]:
    """The best blocks of results in registers, and what is unrolled, after the cycles that they take."""
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
    points: float = model.points
    if vector and not is_output:
        points *= (extents[vector] // lanes + extents[vector] % lanes) / extents[vector]
    packing = model.packing(packed)
    best: list[tuple[float, Mapping[str, int], tuple[str, ...]]] = []
    for width, choice in itertools.product(widths, choices):
        vectors = width * math.prod(choice.values())
        if vectors > most:
            continue
        blocks = dict.fromkeys(model.outputs, 1) | choice
        if is_output:
            blocks[vector] = width * lanes
        unrolled = _unrolled(table, vectors, vector, tied)
        tiles = math.prod([-(-extents[name] // block) for name, block in blocks.items()])
        begin = model.stores(math.prod(blocks.values()), vector, lanes) + model.start(unrolled)
        if len(best) == _OF_A_VECTOR and (
            tiles * (vectors * model.operations * points + begin) + packing >= best[-1][0]
        ):
            continue  # Its arithmetic alone takes longer.
        cycles = model.inner(InnerLoop(tuple(blocks.values()), vector, lanes, packed, unrolled))[0]
        best.append((tiles * (cycles * points + begin) + packing, blocks, unrolled))
        best = sorted(best, key=lambda item: item[0])[:_OF_A_VECTOR]
    return best


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


def _orders(table: Table, model: CostModel, schedule: Schedule) -> Iterator[Schedule]:
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
                    splits += [(index.name, parts) for parts in _parts(index.extent)]
    for order in orders:
        for split in splits:
            yield _walked(table, model, replace(schedule, order=order + schedule.order, split=split))


def _parts(extent: int) -> list[int]:
    """In how many parts a range may be split, a third apart at least: those that divide it, and others between."""
    found = [1]
    for parts in range(2, min(extent, _MAX_PARTS) + 1):
        is_even = extent % parts == 0
        # The last part is shorter, and none is empty.
        is_full = -(-extent // -(-extent // parts)) == parts
        if (is_even and 3 * parts >= 4 * found[-1]) or (is_full and parts >= 2 * found[-1]):
            found.append(parts)
    return found[1:]


def _ahead(model: CostModel, schedule: Schedule) -> int:
    """Steps of the innermost loop that vectors are asked for ahead: processors see coming what lies in one row."""
    loops = [name for name in schedule.order if name in model.reductions and model.extents[name] > 1]
    if not loops or model.extents[loops[-1]] < _MIN_STEPS or schedule.vector not in model.outputs:
        return 0
    moved = [strides for strides in model.strides.values() if strides.get(schedule.vector) == 1]
    return _AHEAD if any(strides.get(loops[-1], 0) > schedule.lanes for strides in moved) else 0


def _walked(table: Table, model: CostModel, schedule: Schedule) -> Schedule:
    """Tiles one after another along the fastest index, so that groups are large enough to be worth it."""
    outputs = [name for name in schedule.order if name in model.outputs]
    schedule = replace(schedule, ahead=_ahead(model, schedule))
    if not outputs:
        return schedule
    fastest = outputs[-1]
    tile = schedule.tile(fastest)
    blocks = {name: schedule.tile(name).block for name in model.outputs}
    loop = InnerLoop(tuple(blocks.values()), schedule.vector, schedule.lanes, schedule.packed, schedule.unrolled)
    cycles = model.inner(loop)[0]
    block = (
        cycles * model.points / schedule.split[1] / (schedule.lanes if schedule.vector in model.reductions else 1) + 50
    )
    count = math.prod(-(-table.extents[name] // size) for name, size in blocks.items()) * schedule.split[1]
    along = -(-table.extents[fastest] // tile.block)
    walk = max(1, min(along, int(_GROUP_CYCLES / block), count // (_GROUPS * model.device.compute_units)))
    walk = -(-along // -(-along // walk))
    tiles = {**schedule.tiles, fastest: replace(tile, walk=walk)}
    return replace(schedule, tiles={name: tile for name, tile in tiles.items() if tile != Tile()})
