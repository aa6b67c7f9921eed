"""PlaidML's choice of tiles, as published (seed 001): a cost model and a search over flat tables.

    blobnet compile TEXT --shapes I=8x64x28x28 W=64x64x3x3 --model seed [--gradients] [--show]

A replica, figure for figure, of what J. Bruestle, "Automatic Kernel Generation in PlaidML" (2018), prints for its
convolution, on the hardware of its example; for any contraction, to compare other choices with (docs/sources.md). A
work-group computes one tile of the output, in steps of one tile of the reduction: it loads a tile of each operand to
local memory, and keeps the output in registers. The model does not see registers of operands, bandwidth and bank
conflicts of local memory, groups at a time on a core, nor what overhangs. It counts an expression's operations once a
multiplication, so its flops a byte are too many.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blobnet.command_line.compile import program_of
from blobnet.contraction.form import Apply, Read
from blobnet.contraction.fusion import Fused
from blobnet.contraction.layout import Layout
from blobnet.contraction.lowering import grouped
from blobnet.contraction.table import Operand, Table, Value, flatten
from blobnet.memory.blob import FLOAT32

Tile = tuple[int, ...]
_ELEMENT = FLOAT32.itemsize


@dataclass(frozen=True)
class Access:
    """Where a statement reads or writes: element ``offset`` + sum of stride * index, one stride an index."""

    tensor: str
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class UpperBound:
    """One side of a constraint: sum of factor * index <= ``most``, one factor an index."""

    factors: tuple[int, ...]
    most: int

    def __str__(self) -> str:
        return f"({','.join(map(str, self.factors))}) <= {self.most}"


@dataclass(frozen=True)
class Flat:
    """A statement's table as it was published: a row an index of more than one value, constraints one side at a time.

    Args:
        indexes: in alphabetical order.
        ranges: how many values each takes, from 0.
        output: what is written.
        operands: what is read, in the order of the expression.
        bounds: the sides of constraints that the ranges do not imply.
    """

    indexes: tuple[str, ...]
    ranges: tuple[int, ...]
    output: Access
    operands: tuple[Access, ...]
    bounds: tuple[UpperBound, ...]

    @classmethod
    def of(cls, table: Table) -> Flat:
        """The published form of a table whose tensors have no halo."""
        extents = {name: size for name, size in sorted(table.extents.items()) if size > 1}
        boxes = {name: range(size) for name, size in table.extents.items()}

        def access(operand: Operand) -> Access:
            return Access(operand.name, tuple(map(operand.stride, extents)), operand.start)

        bounds = []
        for constraint in table.constraints:
            factors = tuple(map(constraint.form.coefficient, extents))
            reached = constraint.form.range(boxes)
            if reached.start < 0:
                bounds.append(UpperBound(tuple(-factor for factor in factors), constraint.form.offset))
            if reached.stop > constraint.size:
                bounds.append(UpperBound(factors, constraint.size - 1 - constraint.form.offset))
        operands = tuple(map(access, table.loads))
        return cls(tuple(extents), tuple(extents.values()), access(table.stores[0].operand), operands, tuple(bounds))

    def __str__(self) -> str:
        accesses = (self.output, *self.operands)
        lines: list[list[object]] = [["", "Range", *(access.tensor for access in accesses)]]
        for row, (index, size) in enumerate(zip(self.indexes, self.ranges, strict=True)):
            lines.append([index, size, *(access.strides[row] for access in accesses)])
        lines.append(["off", "", *(access.offset for access in accesses)])
        table = ["".join(str(cell).rjust(10 if column else 8) for column, cell in enumerate(line)) for line in lines]
        return "\n".join([*table, *(f"Constraint: {bound}" for bound in self.bounds)])


@dataclass(frozen=True)
class Hardware:
    """What the model knows of a device.

    Args:
        threads: of a work-group.
        memory_width: bytes that move at once.
        local_memory: bytes that a work-group may use.
        registers: bytes of accumulators that a work-group may use.
        groups: work-groups that keep the device busy.
        goal: flops a byte of memory beyond which memory is no limit.
    """

    threads: int
    memory_width: int
    local_memory: int
    registers: int
    groups: int
    goal: float

    @property
    def elements(self) -> int:
        """Elements that move at once."""
        return self.memory_width // _ELEMENT


#: What the text's example ran on.
PUBLISHED = Hardware(threads=256, memory_width=32, local_memory=18432, registers=18432, groups=20, goal=20)


@dataclass(frozen=True)
class Merged:
    """Indexes of an operand that reach the same elements, taken as one."""

    names: tuple[str, ...]
    stride: int
    range: int

    @property
    def name(self) -> str:
        """As it is called in tables: ``i_x``."""
        return "_".join(self.names)


@dataclass(frozen=True)
class ReadPlan:
    """How a tile of an operand lies in local memory.

    Args:
        merged: in the order of their strides in memory.
        local: the stride of each in local memory: odd, so that banks differ.
        elements: that the tile takes there.
        lines: of ``memory_width`` that loading it moves.
    """

    merged: tuple[Merged, ...]
    local: tuple[int, ...]
    elements: int
    lines: int


@dataclass(frozen=True)
class OutputPlan:
    """How many threads go along each index: those of the output, then what is left along those of the reduction."""

    threads: Tile
    rolled_up: bool


@dataclass(frozen=True)
class Score:
    """What the model says of a tile.

    Args:
        total_operations: of the whole statement.
        work_groups: tiles of the output.
        inner_loops: tiles of the reduction.
        shared_memory: bytes of local memory.
        output_registers: bytes of accumulators of a work-group.
        memory_read: bytes that a step reads.
        memory_written: bytes that a work-group writes.
        operations: at a time.
        threads_used: of a work-group.
        flops_per_byte: of memory that is read or written.
        over: "memory" or "registers" if there is not enough.
        roof_ratio: flops a byte as a part of the goal.
        occupancy_ratio: work-groups as a part of those that keep the device busy.
        thread_ratio: threads used as a part of all.
    """

    total_operations: int
    work_groups: int
    inner_loops: int
    shared_memory: int
    output_registers: int
    memory_read: int
    memory_written: int
    operations: int
    threads_used: int
    flops_per_byte: float
    over: str
    roof_ratio: float
    occupancy_ratio: float
    thread_ratio: float

    @property
    def value(self) -> float:
        """From 0 to 1, the more the better; -1 for what is over memory or registers."""
        return -1.0 if self.over else self.roof_ratio * self.occupancy_ratio * self.thread_ratio

    def __str__(self) -> str:
        figures = (
            f"to={self.total_operations} wg={self.work_groups} il={self.inner_loops} sm={self.shared_memory} "
            f"or={self.output_registers} mr={self.memory_read} mw={self.memory_written} op={self.operations} "
            f"tu={self.threads_used}"
        )
        if self.over:
            return f"{figures}, over {self.over}"
        ratios = f"roof {self.roof_ratio:.6g}, occupancy {self.occupancy_ratio:.6g}, threads {self.thread_ratio:.6g}"
        return f"{figures}, {self.flops_per_byte:.6g} flops a byte; {ratios}: {self.value:.6g}"


def read_plan(flat: Flat, access: Access, tile: Tile, hardware: Hardware) -> ReadPlan:
    """Merges the indexes of an operand, and lays out its tile.

    An index joins an earlier one of which its stride is a multiple if it goes on where that one ends or before.
    """
    rows = [row for row in range(len(tile)) if access.strides[row]]
    merged: list[Merged] = []
    for row in sorted(rows, key=lambda row: abs(access.strides[row])):
        stride, name = abs(access.strides[row]), flat.indexes[row]
        for place, other in enumerate(merged):
            steps, rest = divmod(stride, other.stride)
            if not rest and other.range >= steps:
                names, reach = (*other.names, name), other.range + steps * (tile[row] - 1)
                merged[place] = Merged(names, other.stride, reach)
                break
        else:
            merged.append(Merged((name,), stride, tile[row]))
    side_by_side = max((min(hardware.elements, m.stride * m.range) // m.stride for m in merged), default=1)
    lines = math.prod(m.range for m in merged) // max(1, side_by_side)
    local, size = {}, 1
    for place in sorted(range(len(merged)), key=lambda place: (merged[place].range % 2 == 0, -merged[place].range)):
        local[place] = size | 1
        size = local[place] * merged[place].range
    return ReadPlan(tuple(merged), tuple(local[place] for place in range(len(merged))), size, lines)


def output_plan(flat: Flat, tile: Tile, hardware: Hardware) -> OutputPlan:
    """Gives threads to indexes.

    The output index of the least stride has what moves at once; then one index at a time has twice as many, first those
    whose tile they divide, of these the one with the fewest. Reduction indexes have what is left when no more fit.
    """
    strides = flat.output.strides
    threads = [1] * len(tile)
    left = hardware.threads
    outer = sorted((row for row in range(len(tile)) if strides[row]), key=lambda row: abs(strides[row]))
    if outer:
        first = outer[0]
        threads[first] = _power_of_two(min(hardware.elements, left, tile[first]))
        left //= threads[first]
    left = _doubled(threads, outer, tile, left)
    inner = [row for row in range(len(tile)) if not strides[row]]
    after = _doubled(threads, inner, tile, left)
    return OutputPlan(tuple(threads), after < left)


def _doubled(threads: list[int], rows: list[int], tile: Tile, left: int) -> int:
    """Doubles threads along ``rows`` while any are left and fit; gives what is left then."""
    while left > 1:
        fitting = [row for row in rows if threads[row] < tile[row]]
        if not fitting:
            break
        row = min(fitting, key=lambda row: (tile[row] % (2 * threads[row]) != 0, threads[row]))
        threads[row] *= 2
        left //= 2
    return left


def _power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << (number - 1).bit_length()


def score(flat: Flat, tile: Tile, hardware: Hardware, operations_after: int = 0, inputs_after: int = 0) -> Score:
    """What a tile costs.

    Args:
        flat: the statement.
        tile: how much of each index, in the order of the table.
        hardware: what it runs on.
        operations_after: of the element-wise expression on the result.
        inputs_after: arrays that this expression reads beside the result.
    """
    strides = flat.output.strides
    tiles = [-(-size // step) for size, step in zip(flat.ranges, tile, strict=True)]
    work_groups = math.prod(count for count, stride in zip(tiles, strides, strict=True) if stride)
    inner_loops = math.prod(count for count, stride in zip(tiles, strides, strict=True) if not stride)
    plans = [read_plan(flat, access, tile, hardware) for access in flat.operands]
    out = output_plan(flat, tile, hardware)
    shared = _ELEMENT * (sum(plan.elements for plan in plans) + hardware.threads * out.rolled_up)
    outer = [row for row, stride in enumerate(strides) if stride]
    accumulators = math.prod(-(-tile[row] // out.threads[row]) for row in outer)
    lines = math.prod(-(-tile[row] // hardware.elements) if abs(strides[row]) == 1 else tile[row] for row in outer)
    read = hardware.memory_width * sum(plan.lines for plan in plans)
    written = hardware.memory_width * lines
    total = math.prod(flat.ranges) * (2 + operations_after)
    flops_per_byte = total / (work_groups * (inner_loops * read + written * (1 + inputs_after)))
    operations = min(hardware.threads, math.prod(tile))
    used = max(operations, math.prod(out.threads))
    registers = _ELEMENT * hardware.threads * accumulators
    over = "memory" if shared > hardware.local_memory else "registers" if registers > hardware.registers else ""
    return Score(
        total_operations=total,
        work_groups=work_groups,
        inner_loops=inner_loops,
        shared_memory=shared,
        output_registers=registers,
        memory_read=read,
        memory_written=written,
        operations=operations,
        threads_used=used,
        flops_per_byte=flops_per_byte,
        over=over,
        roof_ratio=min(flops_per_byte, hardware.goal) / hardware.goal,
        occupancy_ratio=min(work_groups, hardware.groups) / hardware.groups,
        thread_ratio=used / hardware.threads,
    )


def search(flat: Flat, hardware: Hardware, operations_after: int = 0, inputs_after: int = 0) -> dict[Tile, Score]:
    """The tiles that the search looks at, in its order, with their scores.

    From a tile of ones on, the best one that is waiting (of equals, the last in the order of numbers) makes place for
    those with one of its sides doubled, until the best one is worse than the tile that was looked at last.
    """
    seen: dict[Tile, Score] = {}
    waiting: list[tuple[float, Tile]] = []  # a heap, least first: scores and tiles with their signs turned

    def look(tile: Tile) -> float:
        seen[tile] = score(flat, tile, hardware, operations_after, inputs_after)
        heapq.heappush(waiting, (-seen[tile].value, tuple(-side for side in tile)))
        return seen[tile].value

    last = look((1,) * len(flat.ranges))
    while waiting and -waiting[0][0] >= last:
        best = tuple(-side for side in heapq.heappop(waiting)[1])
        for row, size in enumerate(flat.ranges):
            tile = (*best[:row], min(2 * best[row], size), *best[row + 1 :])
            if tile not in seen:
                last = look(tile)
    return seen


def choose(flat: Flat, hardware: Hardware, operations_after: int = 0, inputs_after: int = 0) -> Tile:
    """The tile of the best score that :func:`search` finds; of equals, the last."""
    return _best(search(flat, hardware, operations_after, inputs_after))


def _best(seen: Mapping[Tile, Score]) -> Tile:
    return max(enumerate(seen), key=lambda entry: (seen[entry[1]].value, entry[0]))[1]


def explained(group: Fused, hardware: Hardware = PUBLISHED, *, with_search: bool = False) -> Iterator[str]:
    """Yield what the text prints for its example: the table, the tile, and where operands and threads lie.

    Args:
        group: a statement that aggregates, and what is stored for each cell, for tensors without padding.
        hardware: what it runs on.
        with_search: also the tiles that the search looks at.
    """
    statement = group.head
    tensors = [read.tensor for read in (statement.output, *statement.reads)]
    flat = Flat.of(flatten(statement, {tensor.name: Layout.padded(tensor.shape) for tensor in tensors}))
    after = [node for _, expression in group.stores for node in expression.walk()]
    operations, inputs = (sum(isinstance(node, kind) for node in after) for kind in (Apply, Read))
    seen = search(flat, hardware, operations, inputs)
    chosen = _best(seen)
    yield f"{statement}\n{flat}"
    yield from (
        f"Output operation: {read} = {expression}" for read, expression in group.stores if expression != Value()
    )
    yield from (f"tile {list(tile)}: {found}" for tile, found in seen.items() if with_search)
    sides = ", ".join(f"{name}: {side}" for name, side in zip(flat.indexes, chosen, strict=True))
    yield f"chosen of {len(seen)} tiles: [{sides}]\n  {seen[chosen]}"
    for access in flat.operands:
        plan = read_plan(flat, access, chosen, hardware)
        yield f"{access.tensor}: {plan.elements} elements of local memory\n{'Range':>18}{'Global':>10}{'Local':>10}"
        for merged, local in zip(plan.merged, plan.local, strict=True):
            yield f"{merged.name:>8}{merged.range:>10}{merged.stride:>10}{local:>10}"
    threads = zip(flat.indexes, output_plan(flat, chosen, hardware).threads, strict=True)
    yield f"threads: {', '.join(f'{name}: {count}' for name, count in threads if count > 1)}"


def report(options: argparse.Namespace) -> None:
    """Print the tables of a text, and the tiles that are chosen for them."""
    groups = [group for group in grouped(program_of(options)) if group.head.reduction_indexes]
    print("\n\n".join("\n".join(explained(group, with_search=options.show)) for group in groups))
