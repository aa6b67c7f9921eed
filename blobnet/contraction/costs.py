"""What a table under a schedule costs on a device, in cycles of one compute unit: the model that chooses schedules.

A work-item's inner loop takes as long as its arithmetic or its loads, whichever is more; what passes between caches and
memory follows from the footprints of the operands, in the order in which tiles come. Only ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blobnet.contraction.form import Apply
from blobnet.contraction.functions import FUNCTIONS
from blobnet.contraction.schedule import Schedule, Tile, local_tiles, operand_names, order_of
from blobnet.contraction.table import Table
from blobnet.device_model import DeviceModel

#: Cycles of a vector from the first cache; what more it takes from the second, and where it begins anywhere.
VECTOR_LOAD, FAR, UNALIGNED = 1.0, 1.2, 1.0
#: Cycles of a scalar that is spread, of one that comes from the second cache, and of an add after another.
SCALAR_LOAD, LATENCY = 1.0, 4
#: Cycles for each register that there is not.
SPILL = 1.5
#: Cycles of a vector that is stored, of a scalar that goes through memory first, of beginning a block, and a group.
VECTOR_STORE, SCALAR_STORE, BLOCK_START, GROUP_START = 2.0, 4.0, 40, 400
#: The part of a cache that holds what comes again; bytes a cycle from the last cache, and from memory.
CACHE_PART = 0.5
LAST_CACHE, MEMORY = 8.0, 4.0
#: Cycles of a value that is packed for lanes, of one that a partial result adds, and of one more launch.
PACK, PARTIAL, LAUNCH = 6.0, 1.0, 60000
#: Bytes of the caches from the first to the last, and of registers of a GPU's compute unit, where they are not known.
_CACHES, _REGISTER_FILE = (1 << 15, 1 << 20, 1 << 25), 1 << 18
#: Of the values that a GPU's work-item reads in a loop the part that it holds; its registers for all else.
HELD, OTHER_REGISTERS = 0.6, 28
#: Registers that a GPU's work-item has in any case: no more of them are under way at a time than have room then.
_LEAST_REGISTERS = 32
#: Cycles of a vector of every second element, besides those of its two halves.
EVEN = 2.0


@dataclass(frozen=True)
class Prediction:
    """What a schedule comes to.

    Attributes:
        cycles: in all, of one compute unit after another.
        arithmetic: of these, of terms alone if nothing held them up.
        loads: a multiply-add of vectors (lanes), from registers' point of view.
        registers: that a work-item needs.
        groups: work-groups.
        traffic: bytes from the last cache, and from memory.
        overhang: results that are computed, for each that is needed.
    """

    cycles: float
    arithmetic: float
    loads: float
    registers: int
    groups: int
    traffic: tuple[float, float]
    overhang: float

    def __str__(self) -> str:
        return (
            f"{self.cycles:.3g} cycles ({self.arithmetic / self.cycles:.0%} arithmetic), {self.loads:.2f} loads a "
            f"multiply-add, {self.registers} registers, {self.groups} groups, {self.traffic[0] / 2**20:.1f} MiB from "
            f"the last cache, {self.traffic[1] / 2**20:.1f} MiB from memory, {self.overhang:.2f} results a result"
        )


def predict(table: Table, schedule: Schedule, device: DeviceModel) -> Prediction:
    """What a table, whose indexes are joined, comes to under a schedule."""
    model = Model(table, device)
    return model.gpu(schedule) if device.items_are_lanes else model.cpu(schedule)


class Model:
    """The costs of a table whose indexes are joined, on a device."""

    def __init__(self, table: Table, device: DeviceModel) -> None:
        self.table, self.device = table, device
        self.caches = (*device.caches, *_CACHES[len(device.caches) :])[: len(_CACHES)]
        self.register_file = (device.register_file or _REGISTER_FILE) // 4
        self.extents = table.extents
        self.outputs = [index.name for index in table.outputs]
        self.reductions = [index.name for index in table.reductions]
        self.operands = operand_names(table)
        names = list(self.extents)
        self.strides = {
            key: {n: operand.stride(n) for n in names if operand.stride(n)} for key, operand in self.operands.items()
        }
        functions = [node.function for node in table.expression.walk() if isinstance(node, Apply)]
        combine = {"+": 1, "*": 1, ">": 3, "<": 3, "=": 0}[table.aggregation]
        self.operations = max(1, sum(max(1, FUNCTIONS[name].flops) for name in functions) + combine)
        if table.aggregation == "+" and isinstance(table.expression, Apply) and table.expression.function == "multiply":
            self.operations -= 1
        self.points = math.prod(self.extents[name] for name in self.reductions)
        self.long_reductions = sum(self.extents[name] > 1 for name in self.reductions)
        self.store = table.stores[0].operand
        self.store_strides = {n: self.store.stride(n) for n in self.outputs if self.store.stride(n)}

    def packed_strides(self, key: str, vector: str) -> dict[str, int]:
        """Strides of a copy with the vector's lanes side by side: rows stay in their order."""
        strides = dict(self.strides[key])
        return {name: 1 if name == vector else 16 * stride for name, stride in strides.items()}

    def inner(
        self,
        blocks: Mapping[str, int],
        vector: str,
        lanes: int,
        packed: Sequence[str],
        unrolled: Sequence[str],
        parts: float = 1,
    ) -> tuple[float, float, int, float]:
        """Of the innermost loop: cycles of a point of a block, loads, registers, cycles of arithmetic alone.

        ``parts``: in how many the reductions are split.
        """
        vectors = 1
        for name, block in blocks.items():
            vectors *= block // lanes if name == vector else block
        unroll = math.prod(self.extents[name] for name in unrolled)
        spans = {name: blocks.get(name, size) for name, size in self.extents.items()}
        first_cache = self.caches[0] / 2
        cost = live = count = 0.0
        room = self.device.registers - 1 - vectors
        for key, strides in self.strides.items():
            step = strides.get(vector, 0) if lanes > 1 else 0
            if key in packed and step:
                step = 1
            # Neighbouring places of a block may be the same element, and those of unrolled taps if registers hold them.
            alone: dict[int, int] = {}
            shared: dict[int, int] = {}
            number = both = 1
            for name, stride in strides.items():
                size = blocks.get(name, 1) // (lanes if name == vector else 1)
                if name == vector:
                    number, both = number * size, both * size
                    continue
                alone[abs(stride)] = alone.get(abs(stride), 1) + size - 1
                size = self.extents[name] if name in unrolled else size
                shared[abs(stride)] = shared.get(abs(stride), 1) + size - 1
            number, both = number * math.prod(alone.values()), both * math.prod(shared.values())
            # Compilers keep every scalar that they have spread.
            held: float = number if step == 0 else min(number, 4)
            taps = math.prod([self.extents[name] for name in unrolled if name in strides])
            if step == 0 and len(unrolled) == self.long_reductions:
                held *= taps  # No loop is left: they stay for all blocks.
            each: float = number
            if both < number * taps and both <= room:
                # What other taps do not move is loaded once for all of them.
                each, held = both / taps, both
                room -= both
            each /= math.prod([self.extents[name] for name in unrolled if name not in strides])
            count += each
            live += held
            if step == 0:
                cost += each * SCALAR_LOAD
                continue
            if step not in (1, 2):
                cost += each * lanes
                continue
            is_far = self.footprint(key, spans, key in packed, vector) / parts > first_cache
            price = VECTOR_LOAD + (0 if key in packed else UNALIGNED) + (FAR if is_far else 0)
            cost += each * (price if step == 1 else 2 * price + EVEN)
        registers = vectors + math.ceil(live)
        arithmetic = vectors * self.operations
        cycles = max(arithmetic, cost, LATENCY)
        cycles += SPILL * max(0, registers - self.device.registers)
        cycles += 0.3 * min(arithmetic, cost) + 2.0 / unroll
        return cycles, count, registers, arithmetic

    def footprint(self, key: str, sizes: Mapping[str, int], packed: bool, vector: str) -> float:
        """Bytes of cache lines that an operand touches for so many values of each index."""
        strides = self.packed_strides(key, vector) if packed else self.strides[key]
        return lines(strides, sizes) * self.device.cache_line

    def cpu(self, schedule: Schedule) -> Prediction:
        """On a CPU, whose work-items compute with vectors."""
        lanes, vector = schedule.lanes, schedule.vector
        blocks = {name: schedule.tile(name).block for name in self.outputs}
        parts = schedule.split[1]
        sizes = dict(self.extents)
        if parts > 1:
            sizes[schedule.split[0]] //= parts
        points: float = math.prod(sizes[name] for name in self.reductions)
        by_lanes = lanes > 1 and vector in self.reductions
        if by_lanes:
            points = points // sizes[vector] * (sizes[vector] // lanes + 1.5 * (sizes[vector] % lanes))
        cycles, loads, registers, arithmetic = self.inner(
            blocks, vector, lanes, schedule.packed, schedule.unrolled, parts
        )
        results = math.prod(blocks.values())
        vectors = results // lanes if lanes > 1 and not by_lanes else results
        stores = self.stores(results, vector, lanes)
        tiles = {name: -(-self.extents[name] // blocks[name]) for name in self.outputs}
        count = math.prod(tiles.values()) * parts
        groups = math.prod(-(-self.extents[name] // schedule.tile(name).size) for name in self.outputs) * parts
        outputs, _ = order_of(self.table, schedule)
        fetched = self.traffic(schedule, sizes, blocks, tiles, outputs)
        compute = count * (points * cycles + stores + BLOCK_START) + groups * GROUP_START
        near, distant = fetched
        memory = near / LAST_CACHE + distant / MEMORY
        total = max(compute, memory) + 0.3 * min(compute, memory)
        total += self.packing(schedule.packed) + (2 * LAUNCH if schedule.peel else 0)
        if parts > 1:
            total += LAUNCH + PARTIAL * (parts + 1) * math.prod(self.extents[name] for name in self.outputs)
        units = self.device.compute_units
        total *= -(-groups // units) * units / groups
        needed = math.prod(self.extents[name] for name in self.outputs)
        overhang = math.prod(tiles.values()) * results / needed
        return Prediction(
            total, count * points * arithmetic, loads / max(1, vectors), registers, groups, fetched, overhang
        )

    def gpu(self, schedule: Schedule) -> Prediction:
        """On a GPU, whose work-items are lanes: cycles of a compute unit that starts four warps' instructions."""
        device = self.device
        threads, lanes, vector = schedule.threads, schedule.lanes, schedule.vector
        warps = threads / device.lanes
        tiles = {name: schedule.tile(name) for name in self.outputs}
        results = math.prod(tile.block for tile in tiles.values())
        parts = schedule.split[1]
        points = self.points / parts
        groups = parts * math.prod(-(-self.extents[name] // tile.size) for name, tile in tiles.items())
        chunk = {name: schedule.chunks.get(name, self.extents[name]) for name in self.reductions}
        if parts > 1:
            name = schedule.split[0]
            chunk[name] = min(chunk[name], self.extents[name] // parts)
        at_once = math.prod(chunk.values()) if schedule.local else points
        chunks = points / at_once
        loads = far = 0.0
        for key, strides in self.strides.items():
            number: float = math.prod(tile.block for name, tile in tiles.items() if name in strides)
            number /= lanes if vector in strides and lanes > 1 else 1
            if key in schedule.local:
                loads += number
            else:
                near = any(tile.threads > 1 and strides.get(name) == 1 for name, tile in tiles.items())
                still = not any(tile.threads > 1 and name in strides for name, tile in tiles.items())
                far += number * (2 if near or still else 8)
        issue = (results * self.operations + loads + far) / 4
        inner = max(issue, loads + far) + 0.25 * min(issue, loads + far)
        local = sum(tile.elements for tile in local_tiles(self.table, schedule).values()) if schedule.local else 0
        registers = self.held(tiles, schedule.unrolled)
        resident = min(
            self.register_file // (registers * threads),
            self.register_file // (_LEAST_REGISTERS * threads),
            32,
            (device.core_memory or 2 * device.local_memory) // (4 * local + 1024),
        )
        resident = max(1, min(resident, -(-groups // device.compute_units)))
        sizes = {name: tiles[name].step if name in tiles else chunk[name] for name in self.extents}
        fill = bytes_ = 0.0
        for key in schedule.local:
            count = elements(self.strides[key], sizes)
            fill += -(-count // threads) * 20 * warps / 4
            bytes_ += lines(self.strides[key], sizes, 8) * 32
        latency = 1200 / resident if schedule.local else 0
        near = any(self.store.stride(name) == 1 and tile.threads >= 8 for name, tile in tiles.items())
        stores = results * (4 if near else 16) * warps
        cycles = chunks * (at_once * inner * warps + max(fill, bytes_ / 40) + latency) + stores + 2000 / resident
        if registers > device.registers:
            cycles *= 3
        traffic = groups * chunks * bytes_
        total = max(-(-groups // device.compute_units) * cycles, traffic / (30 * device.compute_units))
        needed = math.prod(self.extents[name] for name in self.outputs)
        overhang = math.prod(-(-self.extents[name] // tile.step) * tile.step for name, tile in tiles.items()) / needed
        if parts > 1:
            total += 8 * parts * needed / (20 * device.compute_units) + 4000
        arithmetic = groups / device.compute_units * points * results * self.operations / 4 * warps
        return Prediction(total, arithmetic, (loads + far) / results, registers, groups, (traffic, traffic), overhang)

    def held(self, tiles: Mapping[str, Tile], unrolled: Sequence[str]) -> int:
        """Registers of a GPU's work-item that makes a block with these reductions written out.

        Compilers load early: they hold a part of all that the written-out terms read, elements of several taps once.
        The numbers are fitted to what AMD's compiler takes for convolutions (tests/bench/spills.py).
        """
        results = math.prod(tile.block for tile in tiles.values())
        values = 0
        for strides in self.strides.values():
            count: dict[int, int] = {}
            reach: dict[int, int] = {}
            for name, stride in strides.items():
                tile, step = tiles.get(name), abs(stride)
                if tile is None and name not in unrolled:
                    continue
                places, along = (tile.block, tile.threads) if tile else (self.extents[name], 1)
                count[step] = count.get(step, 1) * places
                reach[step] = reach.get(step, 1) + (places - 1) * along
            values += math.prod(min(count[step], reach[step]) for step in count)
        return int(results + HELD * values + OTHER_REGISTERS)

    def stores(self, results: int, vector: str, lanes: int) -> float:
        """Cycles in which a block of results is stored."""
        if vector in self.reductions:
            return results * (VECTOR_STORE + 12)
        if lanes > 1 and self.store.stride(vector) != 1:
            return results * SCALAR_STORE
        return results / lanes * VECTOR_STORE

    def packing(self, packed: Sequence[str]) -> float:
        """Cycles in which operands are packed."""
        return sum(PACK * self.elements(key) + LAUNCH for key in packed)

    def elements(self, key: str) -> float:
        """Values of an operand that are touched."""
        return elements(self.strides[key], self.extents)

    def traffic(
        self,
        schedule: Schedule,
        sizes: Mapping[str, int],
        blocks: Mapping[str, int],
        tiles: Mapping[str, int],
        outputs: Sequence[str],
    ) -> tuple[float, float]:
        """Bytes that operands bring from the last cache, and from memory."""
        spans = {name: blocks.get(name, size) for name, size in sizes.items()}
        moving = {key: set(self.strides[key]) for key in self.operands} | {"=": set(self.store_strides)}

        def touched(key: str, spans: Mapping[str, int]) -> float:
            if key == "=":  # What is stored is read first, a line at a time.
                return 2 * lines(self.store_strides, spans) * self.device.cache_line
            return self.footprint(key, spans, key in schedule.packed, schedule.vector)

        parts = schedule.split[1]
        # Bytes within one step of an index, the fastest first: what tiles before left in a cache is not fetched again.
        steps: list[tuple[str, dict[str, float], dict[str, float]]] = []
        inside = {key: touched(key, spans) for key in moving}
        first = dict(inside)
        for name in reversed([name for name in outputs if tiles[name] > 1]):
            spans[name] = sizes[name]
            whole = {key: touched(key, spans) if name in indexes else inside[key] for key, indexes in moving.items()}
            steps.append((name, inside, whole))
            inside = whole
        found = []
        for cache in self.caches[1:]:
            brought = dict(first)
            for name, before, after in steps:
                fits = sum(before.values()) <= cache * CACHE_PART
                for key in moving:
                    brought[key] *= after[key] / before[key] if fits else tiles[name]
            found.append(parts * sum(brought.values()))
        return found[0], found[1]


def elements(strides: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """Different elements, with indexes of the same stride as one."""
    spans: dict[int, int] = {}
    for name, stride in strides.items():
        spans[abs(stride)] = spans.get(abs(stride), 1) + sizes[name] - 1
    return float(math.prod(spans.values()))


def lines(strides: Mapping[str, int], sizes: Mapping[str, int], line: int = 16) -> float:
    """Cache lines that are touched: runs of neighbours, each begun anywhere."""
    spans: dict[int, int] = {}
    for name, stride in strides.items():
        spans[abs(stride)] = spans.get(abs(stride), 1) + sizes[name] - 1
    run, count = 1.0, 1.0
    for stride, span in sorted(spans.items()):
        if stride <= max(run, line / 2):
            run = stride * (span - 1) + run
        else:
            count *= span
    return count * (run / line + (0.5 if run % line else 0.0) + (0.4 if run < line else 0.0))
