"""OpenCL C of a table under a schedule.

Every kernel has one form. A work-group makes a tile of cells, a work-item a block of it in registers, named after their
indexes; around that go the loops over what is aggregated. Where the last tile of an index would overhang, it begins
earlier instead, and cells of two tiles are written twice with the same value: so nothing outside is ever read, and no
inner loop has a test. Constraints that are left are limits of loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

from blobnet.contraction.c_text import digit, number, summed, times
from blobnet.contraction.form import NEUTRAL
from blobnet.contraction.products import ProductGenerator
from blobnet.contraction.schedule import Schedule, partial_results
from blobnet.contraction.stores import Stores
from blobnet.contraction.table import Index, Table
from blobnet.contraction.terms import Terms
from blobnet.contraction.writing import Kernel
from blobnet.launch.kernel_source import expanded
from blobnet.memory.blob import StorageType

#: How vectors of so many lanes are read and written that may begin at any element.
_VECTORS = """\
#define LOAD_ALIGNED{0}(pointer) (*(__local const float{0} *)(pointer))
#ifdef __NV_CL_C_VERSION
#define LOAD{0}(pointer) vload{0}(0, pointer)
#define LOAD_LOCAL{0}(pointer) vload{0}(0, pointer)
#define STORE{0}(value, pointer) vstore{0}(value, 0, pointer)
#else
typedef float{0} loose{0}_t __attribute__((aligned(4)));
#define LOAD{0}(pointer) (*(__global const loose{0}_t *)(pointer))
#define LOAD_LOCAL{0}(pointer) (*(__local const loose{0}_t *)(pointer))
#define STORE{0}(value, pointer) (*(__global loose{0}_t *)(pointer) = (value))
#endif
"""


#: What has something brought near that is read later; a function of OpenCL C would be a call (kernels/vector.h).
_PREFETCH = """\
#ifdef TAKES_PREFETCH
#define PREFETCH(pointer) __builtin_prefetch((__global const void *)(pointer))
#else
#define PREFETCH(pointer)
#endif
"""

#: Ends an `if` that all work-items of a group enter, or none, around a barrier.
#: NOTE: PoCL 3.1 otherwise takes what is in it for unreachable, or crashes, where conditions within one another come
#: last (docs/drivers.md). A loop that goes round once is no help: Clang makes an `if` of it.
_END_OF_IF = """\
#ifdef IS_HOST
#define END_OF_IF barrier(CLK_LOCAL_MEM_FENCE)
#else
#define END_OF_IF
#endif
"""

#: Stands after each row of a product that is written out. NOTE: AMD's compiler loads as many rows ahead as it counts
#: registers for, and spilled some of these: 256 were in use for 8x8 sums a work-item, which take 140 if loads stay in
#: their four rows (docs/history/drivers.md).
_END_OF_ROW = """\
#ifdef __AMDGCN__
#if __has_builtin(__builtin_amdgcn_sched_barrier)
#define END_OF_ROW(row) if ((row) % 4 == 3) __builtin_amdgcn_sched_barrier(0);
#endif
#endif
#ifndef END_OF_ROW
#define END_OF_ROW(row)
#endif
"""

#: Where a row lies that a work-item loads, and a number that is `shift` after the row that is `apart` from it.
#: NOTE: AMD's GPUs add 32 bits of a work-item to a pointer that all of a wave have in common; on some of Intel's a
#: work-item adds them to its own, which are made ahead of the loop (docs/history/drivers.md).
_ROWS = """\
#ifdef __AMDGCN__
#define ROW_OF(type) uint
#define ROW_AT(type, blob, place) (uint)(place) * (uint)sizeof(type)
#define ROW_BEHIND(type, blob, row, apart, shift) BYTES_BEHIND(type, blob + apart, row + shift * (uint)sizeof(type))
#else
#define ROW_OF(type) __global const type *
#define ROW_AT(type, blob, place) blob + (place)
#define ROW_BEHIND(type, blob, row, apart, shift) BYTES_BEHIND(type, row + apart, shift * (uint)sizeof(type))
#endif
#define BYTES_BEHIND(type, pointer, bytes) ((__global const type *)((__global const char *)(pointer) + (bytes)))
"""


def program_text(kernels: Iterable[Kernel]) -> str:
    """The source of a program of these kernels, which have different entries."""
    kernels = list(kernels)
    lanes = sorted({lanes for kernel in kernels for lanes in (kernel.lanes, *kernel.widths)} - {1})
    texts = [kernel.text for kernel in kernels]
    macros = {
        "PREFETCH(": _PREFETCH,
        "END_OF_IF": _END_OF_IF,
        "END_OF_ROW(": _END_OF_ROW,
        "ROW_OF(": _ROWS,
        "_narrow": f'{expanded("narrow.h")}\n#line 1 "generated"',
    }
    used = [macro for name, macro in macros.items() if any(name in text for text in texts)]
    return "\n".join([*map(_VECTORS.format, lanes), *used, *texts])


def generate(
    table: Table,
    schedule: Schedule,
    entry: str = "contraction",
    units: Mapping[str, int] | None = None,
    types: Mapping[str, StorageType] | None = None,
) -> Kernel:
    """The kernel of a table (that is prepared, its operands packed) under a schedule that fits it.

    ``units`` says for some tensors how many elements their offset counts in, instead of one; their parameters come
    first, in this order. ``types`` are those of tensors whose numbers are not float32 in memory.
    """
    generator = ProductGenerator if schedule.product else Generator
    return generator(table, schedule, entry, units or {}, types or {}).kernel()


class Generator(Terms, Stores):
    """Writes a kernel."""

    def kernel(self) -> Kernel:
        table, schedule = self.table, self.schedule
        threads = schedule.threads
        groups = math.prod(self.groups(index) for index in table.outputs)
        with self.kernel_block():
            for operand, tile in self.tiles.items():
                name = self.name(f"{self.buffers[operand.name]}_tile")
                self.put(f"__local float {name}[{tile.elements}] __attribute__((aligned(128)));")
                self.pointers[operand] = name
            if schedule.shared[1] > 1:
                self.partials = self.name(f"{self.total}s")
                elements = partial_results(table, schedule)
                self.put(f"__local float {self.partials}[{elements}] __attribute__((aligned(128)));")
            self.tile_names = dict(self.pointers)
            self.places()
            moving = [name for name in self.outputs if max(self.extents[name], schedule.tile(name).step) > 1]
            self.walk([table.index(name) for name in moving])
        text = "\n".join(self.lines) + "\n"
        buffers, widths = tuple(self.buffers), frozenset(self.widths)
        return Kernel(text, self.entry, buffers, groups, threads, schedule.lanes, bool(self.count), widths)

    def places(self) -> None:
        """Write which tile the group makes, and which part of it the work-item."""
        outputs = [self.table.index(name) for name in self.outputs]
        split = [index for index in outputs if self.groups(index) > 1]
        self.group_names = {index.name: "0" for index in outputs}
        for number_, index in enumerate(reversed(split)):
            if number_ == 0:
                self.put("int rest = get_group_id(0);")
            name = self.name(f"{self.index_names[index.name]}_group")
            last = number_ == len(split) - 1
            self.put(f"const int {name} = rest{'' if last else f' % {self.groups(index)}'};")
            if not last:
                self.put(f"rest /= {self.groups(index)};")
            self.group_names[index.name] = name
        self.thread_names = {index.name: "0" for index in outputs}
        threaded = [(name, self.schedule.tile(name).threads) for name in self.outputs]
        threaded = [(name, count) for name, count in threaded if count > 1]
        if self.schedule.shared[1] > 1:
            # Among the others as the order has it: lanes of a GPU go through what changes fastest.
            order = {name: number for number, name in enumerate(self.schedule.order)}
            place = order.get(self.schedule.shared[0], -1)
            threaded.insert(sum(order.get(name, -1) < place for name, _ in threaded), self.schedule.shared)
        if self.schedule.threads > 1:
            self.put("const int thread = get_local_id(0);")
        below = 1
        for key, count in reversed(threaded):
            name = self.name(f"{self.index_names[key]}_thread")
            size = count if below * count < self.schedule.threads else 0
            self.put(f"const int {name} = {digit('thread', below, size)};")
            if key == self.schedule.shared[0]:
                self.share = name
                # Partial results lie as work-items do, without one of those that share.
                before = times(f"(thread / {below * count})", below * (count - 1)) if size else 0
                self.partial_place = summed(before, f"thread % {below}" if below > 1 else 0)
                self.partial_step = below
            else:
                self.thread_names[key] = name
            below *= count

    def walk(self, left: list[Index]) -> None:
        """The tiles that a work-item makes one after another, index by index, and what it does for each."""
        if not left:
            self.cells()
            return
        index, rest = left[0], left[1:]
        tile, name = self.schedule.tile(index.name), self.index_names[index.name]
        group = self.group_names[index.name]
        start = self.name(f"{name}_tile")
        first = "0" if group == "0" else f"{group} * {tile.size}"
        if tile.walk == 1 or (self.groups(index) == 1 and tile.step >= index.extent):
            if first == "0":
                start = "0"
            else:
                self.put(f"const int {start} = {first};")
            is_sample = self.is_sample(index) and start != "0"
            with self.group_block(f"{start} < {self.count}") if is_sample else nullcontext():
                self.origin(index, start)
                self.walk(rest)
            return
        most = end = self.count if self.is_sample(index) else str(index.extent)
        if self.groups(index) > 1:
            end = self.name(f"{name}_end")
            limit = f"{first} + {tile.size}"
            exact = index.extent % tile.size == 0 and not self.is_sample(index)
            self.put(f"const int {end} = {limit if exact else f'min({limit}, {most})'};")
        with self.block(f"for (int {start} = {first}; {start} < {end}; {start} += {tile.step})"):
            self.origin(index, start)
            self.walk(rest)

    def origin(self, index: Index, start: str) -> None:
        """Write where the tile that starts at ``start`` begins, and the work-item's block."""
        tile, name = self.schedule.tile(index.name), self.index_names[index.name]
        self.starts[index.name] = start
        first = start
        if not self.overhangs(index.name) and index.extent % tile.step and start != "0":
            first = self.name(f"{name}_first")
            self.put(f"const int {first} = min({start}, {index.extent - tile.step});")
        self.firsts[index.name] = first
        lanes = self.lanes(index.name)
        thread = self.thread_names[index.name]
        if thread == "0":
            self.values[index.name] = first
            return
        at = self.name(f"{name}_at")
        add = thread if lanes == 1 else f"{thread} * {lanes}"
        self.put(f"const int {at} = {summed(first, add)};")
        self.values[index.name] = at

    def cells(self) -> None:
        """Everything for one block: totals, loops, stores."""
        table = self.table
        for index in table.outputs:
            self.values.setdefault(index.name, "0")
        places = self.block_places()
        is_reduction_vector = self.schedule.lanes > 1 and not self.vector_output
        neutral = number(NEUTRAL[table.aggregation])
        kinds = [(self.total, self.type)] + ([("tail", "float")] if is_reduction_vector else [])
        for prefix, type_ in kinds:
            value = neutral if type_ == "float" else f"({type_})({neutral})"
            for place in places:
                self.put(f"{type_} {self.place_name(prefix, place)} = {value};")
        kept = dict(self.pointers)
        for operand in table.loads:
            if operand in self.tiles:
                self.local_pointer(operand)
            elif operand not in self.pointers:
                self.global_pointer(operand)
        conditions = [self.inside(bound) for bound in table.cell_constraints]
        terms, cells = ([], conditions) if not table.covers else (conditions, [])
        with self.when(cells) if cells else nullcontext():
            self.block_of_cells(places, terms)
        self.pointers = kept

    def block_of_cells(self, places: list[dict[str, int]], conditions: list[str]) -> None:
        """Terms, under conditions for there being any, and stores."""
        with self.when(conditions) if conditions else nullcontext():
            self.chunks(dict.fromkeys(self.loops), {})
        if self.schedule.lanes > 1 and not self.vector_output:
            for place in places:
                self.reduce_lanes(place)
        if not self.share:
            self.stores(places)
            return
        self.combine_shares(places)
        with self.block(f"if ({self.share} == 0)"):
            self.stores(places)
