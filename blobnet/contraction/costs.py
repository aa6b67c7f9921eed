"""The cost model that chooses schedules: the time of a table under a schedule, in cycles of a device's compute unit.

The inner loop of a work-item takes as long as its arithmetic or its loads, whichever is more. The traffic between
caches and memory follows from the footprints of the operands, in the order of the tiles. Only ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from blobnet.contraction.form import Apply
from blobnet.contraction.functions import FUNCTIONS
from blobnet.contraction.products import matrix_of, moves
from blobnet.contraction.schedule import (
    Product,
    Schedule,
    Tile,
    combining,
    local_tiles,
    operand_names,
    order_of,
    partial_results,
    sides,
)
from blobnet.contraction.table import Table
from blobnet.hardware.device_model import DeviceModel
from blobnet.memory.blob import FLOAT32

# On CPUs, in cycles of a compute unit if nothing else is said.
VECTOR_LOAD = 1.0  # a vector from the first cache
FAR = 1.2  # more for one from the second cache
UNALIGNED = 1.6  # more for one that may begin anywhere
EVEN = 3.0  # more for one of every second element, which is loaded as two
SCALAR_LOAD = 1.0  # a scalar that is spread over a vector
STAYING = 0.2  # the same where it stays in a register for many blocks
LATENCY = 4  # an addition that waits for the one before
SPILL = 1.5  # each register that is missing
VECTOR_STORE, SCALAR_STORE = 2.0, 4.0  # a vector; a scalar, which goes through memory first
BLOCK_START, SHORT_START, GROUP_START = 40, 15, 400  # the start of a block, of one without a loop, of a group
PACK, PARTIAL = 6.0, 1.0  # a value that is packed for lanes; one that a partial result adds
LAUNCH = 60000  # one more launch
CACHE_PART = 0.5  # the part of a cache that holds what is read again
LAST_CACHE, MEMORY = 8.0, 4.0  # bytes a cycle from the last cache, and from memory
RUN_STARTS = 64, 512  # bytes that both would bring in the time in which a run of neighbours begins
SAME_LINES = 60.0  # a row that falls into the same lines of a cache as others: _MANY_PAGES rows, whole pages apart
STREAMS = 8  # rows far apart that memory brings as fast as one
PAGES = 1024  # pages that a processor remembers the places of
_PAGE, _MANY_PAGES = 4096, 32  # bytes; rows
#: Bytes of the first cache to the last, where they are not known.
_CACHES = 1 << 15, 1 << 20, 1 << 25

# On GPUs, in cycles of a compute unit, fitted to times on an NVIDIA H200 (docs/performance.md).
_REGISTER_FILE = 1 << 18  # bytes of registers of a compute unit, where they are not known
HELD, OTHER_REGISTERS = 0.6, 28  # the part of the values of a loop that registers hold; registers for all else
_MIN_REGISTERS = 32  # registers of a work-item at least: they limit how many are under way
MAX_WIDE = 4  # lanes of a vector that a work-item loads at once
COMBINE_START = 60  # a barrier, and the loads after it
_BUSY_LANES = 800  # work-items that keep a compute unit busy while they read global memory in their loops
_TOGETHER = 4  # turns of a loop that compilers write out
_LATENCY = 600  # until loads from global memory arrive
_LAUNCH = 4000  # one more launch
_PACK, _MOVE, _ONE_MORE = 1.0, 0.3, 100  # a value that is packed; one of a partial sum; each partial sum
# Products of matrices there.
_SPEED = 1.72  # multiply-adds of a lane a cycle at best
_LOCAL, _GLOBAL = 3.0, 9.1  # multiply-adds in the time of a load from local memory, and from global memory
_STEP = 1.6  # the same for a step with its barrier
_DIVIDED = 6.5  # instructions of a division, for each place of the depth that a work-item loads
_FAR_LOAD = 0.011  # what each load along the depth adds to the time of a step, as a part
_SCATTERED = 100  # a value without neighbours in what is fetched
_ENDS = 20  # rows that the start and the end of a tile take
_BUSY_ITEMS = 300  # work-items that keep a compute unit busy
#: Multiply-adds a cycle of a compute unit (of 128) that the best product reaches.
_BEST = 107


@dataclass(frozen=True)
class Prediction:
    """The predicted figures of a schedule.

    Attributes:
        cycles: until a GPU is done; the sum over all compute units of a CPU.
        arithmetic: cycles of these that the terms' arithmetic takes.
        loads: for each multiply-add of vectors (lanes).
        registers: of a work-item.
        groups: work-groups.
        traffic: bytes from the last cache, and from memory.
        overhang: computed results for each result that is needed.
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


def cost(cycles: float, device: DeviceModel) -> float:
    """Cycles in the unit of hand-written kernels' costs: multiply-adds of a compute unit in its best product.

    On an H200 at batch 32 both models then agree within 20 % for most products of matrices (docs/implementations.md).
    """
    return cycles * (_BEST if device.is_simt else device.lanes / device.compute_units)


def predict(table: Table, schedule: Schedule, device: DeviceModel) -> Prediction:
    """Return the predicted figures of a table, whose indexes are joined, under a schedule."""
    model = CostModel(table, device)
    return model.gpu(schedule) if device.is_simt else model.cpu(schedule)


class InnerLoop(NamedTuple):
    """The innermost loop of a block of results on a CPU.

    Attributes:
        blocks: results along each output index.
        vector, lanes, packed, unrolled: as schedules have them.
        parts: of what is summed.
    """

    blocks: tuple[int, ...]
    vector: str
    lanes: int
    packed: tuple[str, ...]
    unrolled: tuple[str, ...]
    parts: int = 1


class CostModel:
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
        self._inner: dict[InnerLoop, tuple[float, float, int, float]] = {}
        self._footprints: dict[tuple[object, ...], float] = {}

    def inner(self, loop: InnerLoop) -> tuple[float, float, int, float]:
        """Of an innermost loop: cycles of a point of a block, loads, registers, cycles of arithmetic alone."""
        if loop in self._inner:
            return self._inner[loop]
        blocks, lanes = dict(zip(self.outputs, loop.blocks, strict=True)), loop.lanes
        vectors = math.prod(loop.blocks)
        if loop.vector in blocks:
            vectors = vectors // blocks[loop.vector] * (blocks[loop.vector] // lanes)
        cost = live = count = 0.0
        room = self.device.registers - 1 - vectors
        # Where no loop is left, scalars stay in registers for all blocks along some index.
        is_written_out = len(loop.unrolled) == self.long_reductions
        for key, strides in self.strides.items():
            is_scalar = lanes == 1 or loop.vector not in strides
            number, both = self._places(strides, loop, blocks)
            # Compilers keep every scalar that they have spread.
            held: float = number if is_scalar else min(number, 4)
            taps = math.prod([self.extents[name] for name in loop.unrolled if name in strides])
            if is_scalar and is_written_out:
                held *= taps
            each: float = number
            if both < number * taps and both <= room:
                # What other taps do not move is loaded once for all of them.
                each, held = both / taps, both
                room -= both
            each /= math.prod([self.extents[name] for name in loop.unrolled if name not in strides])
            count += each
            live += held
            if is_scalar:
                cost += each * (STAYING if is_written_out else SCALAR_LOAD) + self._far_scalars(key, loop, blocks)
            else:
                cost += each * self._vector_load(key, loop, blocks)
        registers = vectors + math.ceil(live)
        arithmetic = vectors * self.operations
        cycles = max(arithmetic, cost, LATENCY)
        cycles += SPILL * max(0, registers - self.device.registers)
        cycles += 0.3 * min(arithmetic, cost) + 2.0 / math.prod(self.extents[name] for name in loop.unrolled)
        self._inner[loop] = found = cycles, count, registers, arithmetic
        return found

    def _places(self, strides: Mapping[str, int], loop: InnerLoop, blocks: Mapping[str, int]) -> tuple[int, int]:
        """Different elements of an operand in a block: for one term of its cells, and for all unrolled terms.

        Neighbouring places of a block may be the same element, and those of unrolled taps if registers hold them.
        """
        alone: dict[int, int] = {}
        shared: dict[int, int] = {}
        vectors = 1
        for name, stride in strides.items():
            size = blocks.get(name, 1)
            if name == loop.vector:
                vectors *= max(1, size // loop.lanes)  # Lanes that are summed are no block.
                continue
            if size > 1:
                alone[abs(stride)] = alone.get(abs(stride), 1) + size - 1
            elif name in loop.unrolled:
                size = self.extents[name]
            if size > 1:
                shared[abs(stride)] = shared.get(abs(stride), 1) + size - 1
        return vectors * math.prod(alone.values()), vectors * _different(shared)

    def _is_far(self, key: str, loop: InnerLoop, blocks: Mapping[str, int]) -> bool:
        """Return True if the first cache does not hold what a block reads of an operand."""
        spans = {**self.extents, **blocks}
        return self.footprint(key, spans, key in loop.packed, loop.vector) / loop.parts > self.caches[0] / 2

    def _far_scalars(self, key: str, loop: InnerLoop, blocks: Mapping[str, int]) -> float:
        """Cycles of scalars whose next ones lie in other lines of the second cache."""
        strides = self.strides[key]
        looped = [name for name in self.reductions if name not in (*loop.unrolled, loop.vector)]
        innermost = next((name for name in reversed(looped) if self.extents[name] > 1), "")
        apart = self.device.cache_line <= 4 * abs(strides.get(innermost, 0))
        if apart and self._is_far(key, loop._replace(packed=()), blocks):
            return FAR * lines(strides, {**dict.fromkeys(self.extents, 1), **blocks})
        return 0.0

    def _vector_load(self, key: str, loop: InnerLoop, blocks: Mapping[str, int]) -> float:
        """Cycles of a vector of an operand."""
        strides, is_packed, lanes = self.strides[key], key in loop.packed, loop.lanes
        step = 1 if is_packed else strides[loop.vector]
        if step not in (1, 2):
            return lanes
        unaligned = 0.0 if is_packed else UNALIGNED * min(1.0, 4 * lanes / self.device.cache_line)
        price = VECTOR_LOAD + unaligned + (FAR if self._is_far(key, loop, blocks) else 0)
        if step == 2:
            # Taps of odd places are in the vectors of even ones.
            pairs = [self.extents[name] for name in loop.unrolled if strides.get(name) == 1]
            price = 2 * price * (-(-pairs[0] // 2) / pairs[0] if pairs else 1) + EVEN
        if not is_packed and loop.vector in blocks:
            price += self.conflicts(strides, loop.unrolled) / max(1, blocks[loop.vector] // lanes)
        return price

    def start(self, unrolled: Sequence[str]) -> float:
        """Cycles of beginning a block."""
        return SHORT_START if len(unrolled) == self.long_reductions else BLOCK_START

    def scalars(self, blocks: Mapping[str, int], vector: str, fastest: str) -> int:
        """Scalars of a block that are not those of the next one, with all reductions written out."""
        return sum(
            math.prod(blocks.get(name, self.extents[name]) for name in strides)
            for strides in self.strides.values()
            if vector not in strides and fastest in strides
        )

    def scattered(self, blocks: Mapping[str, int], packed: Sequence[str]) -> float:
        """How much longer memory takes for a block that reads rows from many pages at once."""
        streams = max(
            math.prod(size for name, size in blocks.items() if 4 * abs(strides.get(name, 0)) >= _PAGE)
            for key, strides in [("", {}), *self.strides.items()]
            if key not in packed
        )
        return 1 + max(0, streams - STREAMS) / (2 * STREAMS)

    def conflicts(self, strides: Mapping[str, int], unrolled: Sequence[str]) -> float:
        """Cycles of a row of vectors if those of the innermost loop are whole pages apart, in the same few lines."""
        looped = [name for name in self.reductions if name not in unrolled and self.extents[name] > 1]
        step = 4 * abs(strides.get(looped[-1], 0)) if looped else 0
        return SAME_LINES if step and step % _PAGE == 0 and self.extents[looped[-1]] >= _MANY_PAGES else 0.0

    def footprint(self, key: str, sizes: Mapping[str, int], packed: bool, vector: str) -> float:
        """Bytes of cache lines that an operand touches for so many values of each index."""
        known = (key, packed and vector, *map(sizes.__getitem__, self.strides[key]))
        if known not in self._footprints:
            strides = dict(self.strides[key])
            # In a copy lanes lie side by side, and vectors follow one another in the order of reading.
            runs = -(-sizes[vector] // 16) if packed and strides.pop(vector, 0) else 0
            count = runs * elements(strides, sizes) if runs else lines(strides, sizes)
            self._footprints[known] = count * self.device.cache_line
        return self._footprints[known]

    def cpu(self, schedule: Schedule) -> Prediction:
        """On a CPU, whose work-items compute with vectors."""
        lanes, vector = schedule.lanes, schedule.vector
        blocks = {name: schedule.tile(name).block for name in self.outputs}
        parts = schedule.split[1]
        sizes = dict(self.extents)
        if parts > 1:
            sizes[schedule.split[0]] = -(-sizes[schedule.split[0]] // parts)
        points: float = math.prod(sizes[name] for name in self.reductions)
        by_lanes = lanes > 1 and vector in self.reductions
        if by_lanes:
            points = points // sizes[vector] * (sizes[vector] // lanes + sizes[vector] % lanes)
        loop = InnerLoop(tuple(blocks.values()), vector, lanes, schedule.packed, schedule.unrolled, parts)
        cycles, loads, registers, arithmetic = self.inner(loop)
        results = math.prod(blocks.values())
        vectors = results // lanes if lanes > 1 and not by_lanes else results
        stores = self.stores(results, vector, lanes)
        tiles = {name: -(-self.extents[name] // blocks[name]) for name in self.outputs}
        count = math.prod(tiles.values()) * parts
        groups = math.prod(-(-self.extents[name] // schedule.tile(name).size) for name in self.outputs) * parts
        outputs, _ = order_of(self.table, schedule)
        fetched = self.traffic(schedule, sizes, blocks, tiles, outputs)
        compute = count * (points * cycles + stores + self.start(schedule.unrolled)) + groups * GROUP_START
        moving = [name for name in outputs if tiles[name] > 1]
        if moving and len(schedule.unrolled) == self.long_reductions:
            compute += count * (SCALAR_LOAD - STAYING) * self.scalars(blocks, vector, moving[-1])
        share = schedule.shared[1]
        if (
            share > 1
        ):  # Work-items one after another, each with a block; and what they have come to goes through memory.
            compute += count * (share - 1) * (BLOCK_START + results * (SCALAR_LOAD + SCALAR_STORE))
        near, distant = fetched
        memory = near / LAST_CACHE + distant / MEMORY * self.scattered(blocks, schedule.packed)
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
        if schedule.product:
            return self.product(schedule, schedule.product)
        device = self.device
        threads = schedule.threads
        warps = threads / device.lanes
        tiles = {name: schedule.tile(name) for name in self.outputs}
        results = math.prod(tile.block for tile in tiles.values())
        parts = schedule.split[1]
        points = self.points / parts
        shared, share = schedule.shared
        groups = parts * math.prod(-(-self.extents[name] // tile.size) for name, tile in tiles.items())
        chunk = {name: schedule.chunks.get(name, self.extents[name]) for name in self.reductions}
        if parts > 1:
            name = schedule.split[0]
            chunk[name] = min(chunk[name], self.extents[name] // parts)
        at_once = math.prod(chunk.values()) if schedule.local else points
        chunks = points / at_once
        loads, far = self._gpu_loads(schedule, tiles)
        issue = (results * self.operations + loads + far) / 4
        inner = max(issue, loads + far) + 0.25 * min(issue, loads + far)
        registers = self.held(tiles, schedule.unrolled)
        resident = self._gpu_resident(schedule, registers, groups)
        sizes = {name: tiles[name].step if name in tiles else chunk[name] for name in self.extents}
        fill = bytes_ = 0.0
        for key in schedule.local:
            count = elements(self.strides[key], sizes)
            fill += -(-count // threads) * 20 * warps / 4
            bytes_ += lines(self.strides[key], sizes, 8) * 32
        latency = 1200 / resident if schedule.local else 0
        near = any(self.store.stride(name) == 1 and tile.threads >= 8 for name, tile in tiles.items())
        stores = results * (4 if near else 16) * warps
        # Each of those that share an index has a part of the terms; its partial results pass through local memory.
        terms = at_once * inner * warps / share
        if share > 1 and not schedule.local:
            # Loads of different turns wait for one another; of the innermost loop's, where it is long, four do not.
            turns = -(-chunk[shared] // share) * at_once / chunk[shared]
            turns /= math.prod(self.extents[name] for name in schedule.unrolled)
            turns /= _TOGETHER if chunk[shared] >= _TOGETHER * share else 1
            terms = max(terms, turns * _LATENCY / resident)
        combined = sum(COMBINE_START + results * (before // after) * warps for before, after in combining(share))
        cycles = chunks * (terms + max(fill, bytes_ / 40) + latency) + stores + combined + 2000 / resident
        if registers > device.registers:
            cycles *= 3
        traffic = groups * chunks * bytes_
        waves = max(_BUSY_LANES / threads, -(-groups // device.compute_units))
        total = max(waves * cycles, traffic / (30 * device.compute_units))
        needed = math.prod(self.extents[name] for name in self.outputs)
        overhang = math.prod(-(-self.extents[name] // tile.step) * tile.step for name, tile in tiles.items()) / needed
        if parts > 1:
            total += 8 * parts * needed / (20 * device.compute_units) + 4000
        arithmetic = groups / device.compute_units * points * results * self.operations / 4 * warps / share
        return Prediction(total, arithmetic, (loads + far) / results, registers, groups, (traffic, traffic), overhang)

    def _gpu_loads(self, schedule: Schedule, tiles: Mapping[str, Tile]) -> tuple[float, float]:
        """Return the loads of one term of a work-item's cells: from local memory, and from global memory."""
        vector, lanes, (shared, share) = schedule.vector, schedule.lanes, schedule.shared
        moved = [name for name, tile in tiles.items() if tile.threads > 1] + [shared] * (share > 1)
        loads = far = 0.0
        for key, strides in self.strides.items():
            number: float = math.prod(tile.block for name, tile in tiles.items() if name in strides)
            number /= lanes if vector in strides and lanes > 1 else 1
            taps = [name for name in schedule.unrolled if name in strides]
            if taps and key not in schedule.local:
                # Neighbouring places of a block meet the same elements at other taps, which are loaded once.
                spans: dict[int, int] = {}
                for name, stride in strides.items():
                    tile = tiles.get(name)
                    size = self.extents[name] if name in taps else tile.block if tile and tile.threads == 1 else 1
                    spans[abs(stride)] = spans.get(abs(stride), 1) + size - 1
                apart = math.prod(t.block for n, t in tiles.items() if n in strides and t.threads > 1)
                number = apart * math.prod(spans.values()) / math.prod(self.extents[name] for name in taps)
            number /= math.prod(self.extents[name] for name in schedule.unrolled if name not in strides)
            if key in schedule.local:
                loads += number
                continue
            if key in schedule.wide:
                number /= min(MAX_WIDE, self.run(key, tiles, schedule.unrolled, vector))
            near = any(strides.get(name) == 1 for name in moved)
            still = not any(name in strides for name in moved)
            far += number * (1 if near or still else 16)
        return loads, far

    def _gpu_resident(self, schedule: Schedule, registers: int, groups: int) -> int:
        """Work-groups that a compute unit holds."""
        threads, device = schedule.threads, self.device
        local = sum(tile.elements for tile in local_tiles(self.table, schedule).values()) if schedule.local else 0
        local += partial_results(self.table, schedule)
        room = min(
            self.register_file // (registers * threads),
            self.register_file // (_MIN_REGISTERS * threads),
            32,
            (device.core_memory or 2 * device.local_memory) // (FLOAT32.itemsize * local + 1024),
        )
        return max(1, min(room, -(-groups // device.compute_units)))

    def product_groups(self, product: Product, parts: int) -> int:
        """Work-groups of a product of matrices whose depth is in so many parts."""
        rows, columns = product.rows, product.columns
        own = {*rows.names, *columns.names}
        count = parts * math.prod(self.extents[name] for name in self.outputs if name not in own)
        for side in (rows, columns):
            count *= -(-math.prod(self.extents[name] for name in side.names) // side.size)
        return count

    def product(self, schedule: Schedule, product: Product) -> Prediction:
        """On a GPU, a product of matrices."""
        rows, columns, device = product.rows, product.columns, self.device
        parts, step = schedule.split[1], product.step
        groups = self.product_groups(product, parts)
        steps = -(-self.points // step // parts)
        results = rows.size * columns.size
        loads = 1 / rows.block + 1 / columns.block
        speed = 1 / (1 + _LOCAL * loads + _GLOBAL * (1 / rows.size + 1 / columns.size) + _STEP / step)
        values, under_way, instructions = 0.0, 0, 0.0
        for side, operand in zip((rows, columns), sides(self.table, product), strict=True):
            is_packed = any(self.operands[key] == operand for key in schedule.packed)
            matrix = matrix_of(self.table, product, operand, side, is_packed)
            under_way += matrix.slots * matrix.places * matrix.width
            if not product.along:
                divided = len(moves(operand, product.depth, self.extents)) - 1
                instructions += _DIVIDED * max(0.3, divided) * matrix.places
            if matrix.is_far:
                speed /= 0.96 + _FAR_LOAD * matrix.slots * matrix.places
            elif not is_packed:
                runs = moves(operand, side.names, self.extents)
                near_by = [size for below, size, stride, _ in runs if below == 1 and stride in (1, 2)]
                values += _SCATTERED / (near_by[0] if near_by else 1) * side.size * step
        speed /= 1 + instructions / (step * rows.block * columns.block)
        speed *= _SPEED
        registers = rows.block * columns.block + rows.block + columns.block + under_way + OTHER_REGISTERS
        row = results / 128 / speed + values / step / 128
        ends = _ENDS * results / 128
        busy = _BUSY_ITEMS / product.threads
        waves = max(busy, -(-groups // device.compute_units))
        # A step is too short for the next one to arrive where too few groups wait for each other.
        resident = max(1, min(self.register_file // (registers * product.threads), -(-groups // device.compute_units)))
        stall = max(1.0, _LATENCY / (resident * step * results / 128))
        total = waves * (steps * step * row * stall + ends)
        total += sum(_LAUNCH + _PACK * self.elements(key) / device.compute_units for key in schedule.packed)
        needed = math.prod(self.extents[name] for name in self.outputs)
        if parts > 1:
            total += _LAUNCH + (_MOVE * needed / device.compute_units + _ONE_MORE) * parts
        if registers > device.registers:
            total *= 3
        arithmetic = groups / device.compute_units * steps * step * results / 128
        sizes = [math.prod(self.extents[name] for name in side.names) for side in (rows, columns)]
        overhang = math.prod(
            -(-size // side.size) * side.size / size for size, side in zip(sizes, (rows, columns), strict=True)
        )
        traffic = 4.0 * groups * steps * step * (rows.size + columns.size)
        return Prediction(total, arithmetic, loads, registers, groups, (traffic, traffic), overhang)

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

    def run(self, key: str, tiles: Mapping[str, Tile], unrolled: Sequence[str], vector: str) -> int:
        """Neighbours of an operand that the innermost loop of a GPU's work-item reads one by one."""
        strides, count = self.strides[key], 1
        if vector in strides:
            return 1
        for name in sorted(strides, key=lambda name: abs(strides[name])):
            tile = tiles.get(name, Tile())
            places = self.extents[name] if name in unrolled else tile.block if tile.threads == 1 else 1
            if places > 1 and abs(strides[name]) > count:
                break
            count += abs(strides[name]) * (places - 1)
        return count

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
        kept = {key: strides for key, strides in self.strides.items() if key not in schedule.packed}
        kept |= {"=": self.store_strides}
        moving = {key: set(self.strides[key]) for key in self.operands} | {"=": set(self.store_strides)}

        def touched(key: str, spans: Mapping[str, int]) -> float:
            if key == "=":  # What is stored is read first, a line at a time.
                return 2 * lines(self.store_strides, spans) * self.device.cache_line
            return self.footprint(key, spans, key in schedule.packed, schedule.vector)

        parts = schedule.split[1]
        # Bytes within one step of an index, the fastest first: what tiles before left in a cache is not fetched again.
        steps: list[tuple[str, dict[str, float], dict[str, float], bool]] = []
        inside = {key: touched(key, spans) for key in moving}
        first = dict(inside)
        for name in reversed([name for name in outputs if tiles[name] > 1]):
            is_known = sum(pages(strides, spans) for strides in kept.values()) <= PAGES
            spans[name] = sizes[name]
            whole = {key: touched(key, spans) if name in indexes else inside[key] for key, indexes in moving.items()}
            steps.append((name, inside, whole, is_known))
            inside = whole
        spans = {name: blocks.get(name, size) for name, size in sizes.items()}
        runs = {key: self.run_starts(key, schedule, spans, tiles, outputs) for key in moving}
        found = []
        for cache, start in zip(self.caches[1:], RUN_STARTS, strict=True):
            brought = dict(first)
            for name, before, after, is_known in steps:
                fits = is_known and sum(before.values()) <= cache * CACHE_PART
                for key in moving:
                    brought[key] *= after[key] / before[key] if fits else tiles[name]
            found.append(parts * sum(size * (1 + start * runs[key]) for key, size in brought.items()))
        return found[0], found[1]

    def run_starts(
        self,
        key: str,
        schedule: Schedule,
        spans: Mapping[str, int],
        tiles: Mapping[str, int],
        outputs: Sequence[str],
    ) -> float:
        """How often a run of neighbours begins for each byte, of what is stored ("=") or of an operand.

        Tiles one after another go on with runs, unless there are too many side by side.
        """
        if key in schedule.packed:
            return 0.0
        line = self.device.cache_line // FLOAT32.itemsize
        strides = self.store_strides if key == "=" else self.strides[key]
        run, apart = line, 1
        for stride, span in sorted((abs(stride), spans[name]) for name, stride in strides.items()):
            if stride <= run:
                run += stride * (span - 1)
            else:
                apart *= span
        for name in reversed(outputs):
            if tiles[name] == 1 or name not in strides:
                continue
            step = abs(strides[name]) * spans[name]
            if apart > STREAMS or step > run + line:
                break
            run = max(run, step * tiles[name])
        return 1 / (FLOAT32.itemsize * run)


def _different(spans: Mapping[int, int]) -> int:
    """Different sums of multiples of strides, of each so many; those that meet are counted once."""
    count, first, reach = 1, 0, 0
    for stride, size in sorted(spans.items()):
        if first and stride % first == 0 and stride <= reach + first:
            count = count // (reach // first + 1)
        else:
            first, reach = stride, 0
        reach += stride * (size - 1)
        count *= reach // first + 1
    return count


def elements(strides: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """Different elements, with indexes of the same stride as one."""
    spans: dict[int, int] = {}
    for name, stride in strides.items():
        spans[abs(stride)] = spans.get(abs(stride), 1) + sizes[name] - 1
    return float(math.prod(spans.values()))


def pages(strides: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """Pages of memory that are touched."""
    return lines(strides, sizes, _PAGE // FLOAT32.itemsize)


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
