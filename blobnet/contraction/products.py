"""OpenCL C of a sum of products as a product of two matrices through local memory, for work-items that are lanes.

An element of either operand lies at what its row (or column) adds plus what the place in the depth adds, since maps are
affine. So rows, columns and depth may each be a run of several indexes: a work-item divides their numbers once, for the
rows and columns that it loads in every step, and for the depth once a step. No cell is wasted but in the last tile, and
odd ranges cost nothing.

While a step of both matrices is multiplied the next one is on its way, in registers, to the other half of local memory.
Places after the end of the depth are 0 in both matrices; rows and columns after theirs repeat the last one, and are
not stored. Results leave through local memory, so that neighbours store neighbours.

With cheap addresses it is the first step that takes what steps do not divide, and the others test nothing. What they
load lies after a row (or column) of theirs, as many bytes of 32 bits as the depth adds (ROW_BEHIND, source.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blobnet.contraction.c_text import affine, digit, summed, times
from blobnet.contraction.form import Affine
from blobnet.contraction.schedule import Product, Side, depth_of, part_steps, sides
from blobnet.contraction.stores import Stores
from blobnet.contraction.table import Operand, Table, loads_of
from blobnet.contraction.writing import Kernel

#: Neighbouring work-items that load neighbours of the depth, where these lie side by side in memory.
_ALONG_DEPTH = 8
#: Rows of both matrices whose products are written out; those of the last step where AMD's compiler does: after a loop
#: it loads all of them at once, and spills what has no room (docs/history/drivers.md).
UNROLLED, _LAST_UNROLLED = 16, 4


@dataclass(frozen=True)
class Matrix:
    """One of the two, and how a work-group brings a step of it to local memory.

    Args:
        operand: what it is made of.
        side: its rows or columns.
        is_far: whether neighbouring work-items load neighbours of the depth, not of the side.
        width: elements that a work-item loads at once.
        pitch: elements in local memory from one row to the next.
        slots: rows or columns that a work-item loads.
        slot_step: how far these are apart.
        places: of the depth that it loads of each.
        place_step: how far these are apart.
        text: what it is called.
    """

    operand: Operand
    side: Side
    is_far: bool
    width: int
    pitch: int
    slots: int
    slot_step: int
    places: int
    place_step: int
    text: str

    def value(self, slot: int, place: int) -> str:
        """Return the name of a loaded element."""
        return f"{self.text}_next" + (f"_{slot}" if self.slots > 1 else "") + (f"_{place}" if self.places > 1 else "")


def matrix_of(table: Table, product: Product, operand: Operand, side: Side, is_packed: bool, text: str = "") -> Matrix:
    """One of the two matrices of a product."""
    threads, step = product.threads, product.step
    near, last = (
        next((name for name in reversed(names) if table.extents[name] > 1), names[-1])
        for names in (side.names, product.depth)
    )
    if not is_packed and operand.stride(near) != 1 and operand.stride(last) == 1:
        along = min(_ALONG_DEPTH, 1 << (step.bit_length() - 1), threads)
        along = max(along, threads // side.size)
        apart = threads // along
        return Matrix(operand, side, True, 1, side.size + 4, side.size // apart, apart, -(-step // along), along, text)
    width = 4 if is_packed else 1
    per = side.size // width
    if threads >= per:
        apart = threads // per
        return Matrix(operand, side, False, width, side.size, 1, 0, -(-step // apart), apart, text)
    return Matrix(operand, side, False, width, side.size, per // threads, threads * width, step, 1, text)


def moves(
    operand: Operand, names: Sequence[str], sizes: Mapping[str, int], along: str = "", step: int = 1
) -> list[tuple[int, int, int, bool]]:
    """Return an operand's moves along a run of indexes: (values below, values, stride, is the outermost).

    Neighbours in the run that are neighbours in memory are one. Of the index ``along`` each value is so many.
    """
    found: list[tuple[int, int, int, bool]] = []
    below = 1
    long = [name for name in names if sizes[name] > 1]
    for name in reversed(long):
        stride = operand.stride(name) * (step if name == along else 1)
        if found and found[-1][2] * found[-1][1] == stride:
            before = found.pop()
            found.append((before[0], before[1] * sizes[name], before[2], name == long[0]))
        else:
            found.append((below, sizes[name], stride, name == long[0]))
        below *= sizes[name]
    return [run for run in found if run[2]]


class ProductGenerator(Stores):
    """Writes a kernel."""

    def kernel(self) -> Kernel:
        assert self.schedule.product
        table, product = self.table, self.schedule.product
        self.product, self.side_of = product, {"row": product.rows, "column": product.columns}
        self.left, self.right = (
            matrix_of(table, product, operand, side, bool(operand.block), text)
            for operand, side, text in zip(sides(table, product), self.side_of.values(), ("left", "right"), strict=True)
        )
        with self.kernel_block():
            self.local_memory()
            groups = self.places()
            columns, total = product.columns, self.total_of(product.columns.names)
            if columns.names[0] in self.sample_names and total > columns.size:
                with self.block(f"if (column_tile < {self.limits['column']})"):
                    self.body()
            else:
                self.body()
        text = "\n".join(self.lines) + "\n"
        return Kernel(text, self.entry, tuple(self.buffers), groups, product.threads, 1, bool(self.count))

    # -- what lies where ---------------------------------------------------------------------------------------------

    @property
    def sample_names(self) -> tuple[str, ...]:
        return self.table.sample.indexes if self.table.sample else ()

    def total_of(self, names: Sequence[str]) -> int:
        return math.prod(self.extents[name] for name in names)

    def local_memory(self) -> None:
        step, rows = self.product.step, self.side_of["row"]
        sizes = (
            2 * step * self.left.pitch,
            max(2 * step * self.right.pitch, rows.items * self.side_of["column"].size),
        )
        for matrix, size in zip((self.left, self.right), sizes, strict=True):
            self.put(f"__local float {matrix.text}_tile[{size}] __attribute__((aligned(128)));")

    def places(self) -> int:
        """Write which tile the group makes; return the number of groups."""
        table = self.table
        own = {*self.side_of["row"].names, *self.side_of["column"].names}
        counts = [(name, -(-self.total_of(side.names) // side.size)) for name, side in self.side_of.items()]
        apart = [(index.name, index.extent) for index in table.outputs if index.name not in own]
        groups = math.prod(count for _, count in counts + apart)
        self.values = {}
        self.put("const int thread = get_local_id(0);")
        left = groups
        if groups > 1:
            self.put("int group = get_group_id(0);")
        for name, count in [*counts, *reversed(apart)]:
            left //= count
            text = "0" if count == 1 else "group" if left == 1 else f"group % {count}"
            if name in self.side_of and (name, count) in counts:
                self.put(f"const int {name}_tile = {times(f'({text})', self.side_of[name].size) if count > 1 else 0};")
            else:
                mine = self.name(self.index_names[name])
                self.put(f"const int {mine} = {text};")
                self.values[name] = mine
            if count > 1 and left > 1:
                self.put(f"group /= {count};")
        self.apart = [name for name, _ in apart]
        self.limits = {}
        for word, names in (("column", self.side_of["column"].names), ("depth", self.product.depth)):
            total = self.total_of(names)
            first = names[0]
            has_samples = first in self.sample_names
            self.limits[word] = f"{word}_limit" if has_samples else str(total)
            if has_samples:
                self.put(f"const int {word}_limit = {times(self.count, total // self.extents[first])};")
        return groups

    def offset(
        self, operand: Operand, names: Sequence[str], number: str, sizes: Mapping[str, int] | None = None
    ) -> str:
        """Return what a number in a run of indexes adds to the place of an operand."""
        parts = []
        for below, size, stride, is_first in moves(
            operand, names, sizes or self.extents, self.product.along if sizes else "", self.product.step
        ):
            parts.append(times(digit(number, below, 0 if is_first else size), stride))
        return summed(*parts)

    def apart_offset(self, operand: Operand) -> list[str]:
        """Return what the operand's start, and indexes of no side, add."""
        return [str(operand.start), *(times(self.values[name], operand.stride(name)) for name in self.apart)]

    def index_value(self, names: Sequence[str], number: str, wanted: str) -> str:
        """The value of an index in a run."""
        below = math.prod(self.extents[name] for name in names[names.index(wanted) + 1 :])
        text = digit(number, below, 0 if wanted == names[0] else self.extents[wanted])
        return text if text == number else f"({text})"

    # -- the kernel --------------------------------------------------------------------------------------------------

    def body(self) -> None:
        product = self.product
        for matrix, word in ((self.left, "row"), (self.right, "column")):
            self.pointers_of(matrix, word)
        rows, columns = self.side_of["row"], self.side_of["column"]
        self.put(f"const int item_row = thread / {columns.items};")
        self.put(f"const int item_column = thread % {columns.items};")
        for matrix, item in ((self.left, "item_row"), (self.right, "item_column")):
            self.put(f"__local const float *{self.const}{matrix.text}_at = {matrix.text}_tile + {item} * 4;")
        for row in range(rows.block):
            for quad in range(columns.block // 4):
                self.put(f"float4 {self.sum(row, quad)} = 0.0f;")
        for matrix in (self.left, self.right):
            type_ = f"float{matrix.width}" if matrix.width > 1 else "float"
            values = [matrix.value(slot, place) for slot in range(matrix.slots) for place in range(matrix.places)]
            self.put(f"{type_} {', '.join(values)};")
        steps = -(-depth_of(self.table) // product.step)
        parts = self.schedule.split[1]
        limit = self.limits["depth"]
        last = str(steps) if limit.isdigit() else f"({limit} + {product.step - 1}) / {product.step}"
        first = "0"
        if parts > 1:
            size = part_steps(self.table, product, parts)
            first = f"{self.values[self.apart[0]]} * {size}"
            self.put(f"const int first_step = {first};")
            last = f"min(first_step + {size}, {last})"
            first = "first_step"
        self.put(f"const int last_step = {last} - 1;")
        if product.cheap_addresses:
            self.put(f"const int missing = max((last_step + 1) * {product.step} - {limit}, 0);")
        may_be_empty = parts > 1 or not limit.isdigit()
        with self.group_block(f"{first} <= last_step" if may_be_empty else ""):
            self.fetch(first, is_first=True)
            self.store_step(is_first=True)
            self.put("barrier(CLK_LOCAL_MEM_FENCE);")
            if product.cheap_addresses:
                for matrix in (self.left, self.right):
                    self.put(f"int {matrix.text}_turn = {product.step * matrix.pitch};")
            else:
                self.put("int now = 0;")
            with self.block(f"for (int step = {first}; step < last_step; step++)"):
                self.fetch("(step + 1)")
                self.multiply()
                if not product.cheap_addresses:
                    self.put("now = 1 - now;")
                self.store_step()
                self.put("barrier(CLK_LOCAL_MEM_FENCE);")
                if product.cheap_addresses:
                    self.turn()
            self.multiply(is_last=True)
        self.results()

    @property
    def const(self) -> str:
        """The qualifier of pointers to local memory: with cheap addresses they move from one half to the other."""
        return "" if self.product.cheap_addresses else "const "

    def turn(self) -> None:
        """The halves of local memory change places."""
        for matrix in (self.left, self.right):
            turn = f"{matrix.text}_turn"
            for use in ("put", "at"):
                self.put(f"{matrix.text}_{use} += {turn};")
            self.put(f"{turn} = -{turn};")

    def sum(self, row: int, quad: int) -> str:
        return f"sum{row}_{quad}"

    def pointers_of(self, matrix: Matrix, word: str) -> None:
        """Write the pointers to the rows or columns that a work-item loads, for the first place of the depth."""
        product, operand, side = self.product, matrix.operand, matrix.side
        total = self.total_of(side.names)
        if matrix.is_far:
            slot, place = f"thread / {matrix.place_step}", f"thread % {matrix.place_step}"
        elif matrix.place_step > 1:
            per = side.size // matrix.width
            slot, place = times(f"(thread % {per})", matrix.width), f"thread / {per}"
        else:
            slot, place = times("thread", matrix.width), "0"
        self.put(f"const int {matrix.text}_slot = {slot};")
        self.put(f"const int {matrix.text}_place = {place};")
        base = f"{matrix.text}_place * {matrix.pitch} + {matrix.text}_slot"
        self.put(f"__local float *{self.const}{matrix.text}_put = {matrix.text}_tile + {base};")
        is_packed = matrix.width > 1
        runs = moves(operand, side.names, self.extents)
        is_even = is_packed or (len(runs) <= 1 and total % side.size == 0)
        self.even = {**getattr(self, "even", {}), matrix.text: (runs[0][2] if runs else 0) if is_even else None}
        for slot_ in range(1 if is_even else matrix.slots):
            number = summed(f"{word}_tile + {matrix.text}_slot", slot_ * matrix.slot_step)
            if not is_packed and total % side.size:
                number = f"min({number}, {total - 1})"
            mine = f"{matrix.text}_{word}{slot_}"
            self.put(f"const int {mine} = {number};")
            parts = [*self.apart_offset(operand), self.offset(operand, side.names, mine)]
            if product.along and operand.stride(product.along):
                parts.append(times(f"{matrix.text}_place", operand.stride(product.along)))
            text = summed(*parts)
            type_, blob, from_ = self.c_type(operand.name), self.buffers[operand.name], f"{matrix.text}_from{slot_}"
            if product.cheap_addresses:
                self.put(f"const ROW_OF({type_}) {from_} = ROW_AT({type_}, {blob}, {text});")
            else:
                self.put(f"__global const {type_} *const {from_} = {blob} + ({text});")

    def fetch(self, step: str, *, is_first: bool = False) -> None:
        """Loads a step of both matrices into registers, be it the first one."""
        product = self.product
        depth, size = product.depth, product.step
        with self.block(""):
            if product.along:
                sizes = {**self.extents, product.along: self.extents[product.along] // size}
                for matrix in (self.left, self.right):
                    shift = self.offset(matrix.operand, depth, step, sizes)
                    self.put(f"const int {matrix.text}_shift = {shift};")
                    for place in range(matrix.places):
                        beyond = place * matrix.place_step * matrix.operand.stride(product.along)
                        at = summed(f"{matrix.text}_shift", beyond)
                        self.load_place(matrix, place, at, self.in_step(matrix, place))
                return
            is_cheap, limit = product.cheap_addresses, self.limits["depth"]
            number, less = ("uint", "" if is_first else " - missing") if is_cheap else ("int", "")
            for matrix in (self.left, self.right):
                for place in range(matrix.places):
                    mine, own = f"{matrix.text}_depth{place}", summed(f"{matrix.text}_place", place * matrix.place_step)
                    self.put(f"const {number} {mine} = {step} * {size} + {own}{less};")
                    at = self.offset(matrix.operand, depth, mine)
                    conditions = [*self.in_step(matrix, place)]
                    if is_cheap:
                        conditions += [f"{own} < {size} - missing"] if is_first else []
                    elif not limit.isdigit() or int(limit) % size:
                        conditions.append(f"{mine} < {limit}")
                    if " " in at:
                        self.put(f"const {number} {mine}_shift = {at};")
                        at = f"{mine}_shift"
                    self.load_place(matrix, place, at, conditions)

    def in_step(self, matrix: Matrix, place: int) -> list[str]:
        """Return the condition that a place of the depth belongs to the step."""
        if (place + 1) * matrix.place_step <= self.product.step:
            return []
        return [f"{matrix.text}_place < {self.product.step - place * matrix.place_step}"]

    def load_place(self, matrix: Matrix, place: int, at: str, conditions: list[str]) -> None:
        type_, blob = self.c_type(matrix.operand.name), self.buffers[matrix.operand.name]
        width = matrix.width if matrix.width > 1 else ""
        even = self.even[matrix.text]
        for slot in range(matrix.slots):
            pointer = f"{matrix.text}_from{slot if even is None else 0}"
            apart = slot * matrix.slot_step * (even or 0)
            index = f"{at} + {apart}" if apart or (slot and even is not None) else at
            if self.product.cheap_addresses:
                text = f"ROW_BEHIND({type_}, {blob}, {pointer}, {apart}, {at})"
                text = f"*(__global const float{width} *){text}" if type_ == "float" else f"load_narrow{width}({text})"
            elif self.is_narrow(matrix.operand.name):
                text = f"load_narrow{width}({pointer} + {index})"
            else:
                text = f"*(__global const float{width} *)({pointer} + {index})" if width else f"{pointer}[{index}]"
            if conditions:
                text = f"{' && '.join(conditions)} ? {text} : 0.0f"
                if matrix.width > 1:
                    text = text.replace(": 0.0f", f": (float{matrix.width})(0.0f)")
            self.put(f"{matrix.value(slot, place)} = {text};")

    def store_step(self, *, is_first: bool = False) -> None:
        """Puts a step into one half of local memory, the first one into the first."""
        step = self.product.step
        for matrix in (self.left, self.right):
            half = f"{matrix.text}_turn" if self.product.cheap_addresses else f"now * {step * matrix.pitch}"
            half_at = "" if is_first else f"{half} + "
            for place in range(matrix.places):
                conditions = self.in_step(matrix, place)
                for slot in range(matrix.slots):
                    at = f"{half_at}{place * matrix.place_step * matrix.pitch + slot * matrix.slot_step}"
                    target = f"{matrix.text}_put[{at}]"
                    if matrix.width > 1:
                        target = f"*(__local float{matrix.width} *)({matrix.text}_put + {at})"
                    line = f"{target} = {matrix.value(slot, place)};"
                    self.put(f"if ({conditions[0]}) {{ {line} }}" if conditions else line)

    def multiply(self, *, is_last: bool = False) -> None:
        """Multiplies a step of both matrices, be it the last one."""
        step = self.product.step
        rows, columns = self.side_of["row"], self.side_of["column"]
        for matrix in (self.left, self.right):
            half = "" if self.product.cheap_addresses else f" + now * {step * matrix.pitch}"
            self.put(f"__local const float *{matrix.text}_now = {matrix.text}_at{half};")
        last, others = (
            f"__attribute__((opencl_unroll_hint({rows})))" for rows in (_LAST_UNROLLED, min(step, UNROLLED))
        )
        for line in ("#ifdef __AMDGCN__", last, "#else", others, "#endif") if is_last else (others,):
            self.put(line)
        with self.block(f"for (int place = 0; place < {step}; place++)"):
            for matrix, side in ((self.left, rows), (self.right, columns)):
                for quad in range(side.block // 4):
                    at = summed(f"place * {matrix.pitch}", quad * side.items * 4)
                    self.put(f"const float4 {matrix.text}{quad} = *(__local const float4 *)({matrix.text}_now + {at});")
            for row in range(rows.block):
                for quad in range(columns.block // 4):
                    factor = f"{self.left.text}{row // 4}.s{row % 4}"
                    self.put(f"{self.sum(row, quad)} += {factor} * {self.right.text}{quad};")
            self.put("END_OF_ROW(place)")

    def results(self) -> None:
        """Stores the sums, a row of each work-item at a time, through local memory."""
        schedule, table = self.schedule, self.table
        rows, columns = self.side_of["row"], self.side_of["column"]
        threads, total = schedule.threads, self.total_of(columns.names)
        stage = f"{self.right.text}_tile"
        slots = max(1, columns.size // threads)
        apart = max(1, threads // columns.size)
        loaded = [operand for store in table.stores for operand in loads_of(store.expression)]
        operands = list(dict.fromkeys([*(store.operand for store in table.stores), *loaded]))
        self.put(f"const int result_column = {f'thread % {columns.size}' if slots == 1 else 'thread'};")
        names = {}
        for slot in range(slots):
            column = f"column{slot}"
            self.put(f"const int {column} = {summed('column_tile + result_column', slot * threads)};")
            for operand in operands:
                name = self.name(f"{self.buffers[operand.name]}_column{slot}")
                text = summed(*self.apart_offset(operand), self.offset(operand, columns.names, column))
                self.put(f"const int {name} = {text};")
                names[operand, slot] = name
        for row in range(rows.block):
            self.put("barrier(CLK_LOCAL_MEM_FENCE);")
            for quad in range(columns.block // 4):
                at = summed(f"item_row * {columns.size} + item_column * 4", quad * columns.items * 4)
                self.put(f"*(__local float4 *)({stage} + {at}) = {self.sum(row, quad)};")
            self.put("barrier(CLK_LOCAL_MEM_FENCE);")
            start = "0" if apart == 1 else f"thread / {columns.size}"
            with self.block(f"for (int item = {start}; item < {rows.items}; item += {apart})"):
                first = row // 4 * rows.items * 4 + row % 4
                self.put(f"const int result_row = {summed('row_tile + item * 4', first)};")
                for slot in range(slots):
                    self.result(names, slot, stage, total)

    def result(self, names: Mapping[tuple[Operand, int], str], slot: int, stage: str, total: int) -> None:
        """Stores one result, whose row and column are known."""
        rows, columns = self.side_of["row"], self.side_of["column"]
        column = f"column{slot}"
        conditions = []
        if self.total_of(rows.names) % rows.size:
            conditions.append(f"result_row < {self.total_of(rows.names)}")
        if total % columns.size or not self.limits["column"].isdigit():
            conditions.append(f"{column} < {self.limits['column']}")
        values = dict(self.values)
        for side, number in ((rows, "result_row"), (columns, column)):
            values |= {name: self.index_value(side.names, number, name) for name in side.names}
        sample = self.table.sample_cell
        if sample and sample != Affine.index(columns.names[0]):
            conditions.append(f"{affine(sample, values)} < {self.count}")

        def element(operand: Operand) -> str:
            return summed(names[operand, slot], self.offset(operand, rows.names, "result_row"))

        with self.when(conditions):
            name = self.name("total")
            at = summed(f"item * {columns.size} + result_column", slot * self.schedule.threads)
            self.put(f"float {name} = {stage}[{at}];")
            self.write(name, "float", lambda form: f"(float)({affine(form, values)})", element)
