"""OpenCL C of a table under a schedule.

Every kernel has one form. A work-group makes a tile of cells, a work-item a block of it in registers, named after their
indexes; around that go the loops over what is aggregated. Where the last tile of an index would overhang, it begins
earlier instead, and cells of two tiles are written twice with the same value: so nothing outside is ever read, and no
inner loop has a test. Constraints that are left are limits of loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from blobnet.contraction.c_text import Text, affine, combined, number
from blobnet.contraction.form import NEUTRAL, Affine, Constraint
from blobnet.contraction.schedule import Schedule, local_tiles, order_of
from blobnet.contraction.table import Index, Load, Operand, Store, Table, loads_of

#: What variables that hold partial results are called.
_TOTALS = {"+": "sum", "*": "product", ">": "greatest", "<": "least", "=": "value"}
#: What sources cannot name anything else: words, and types of vectors.
_WORDS = """
    auto break case char const continue default do double else enum extern float for goto half if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool
    kernel global local constant private uint ulong uchar ushort image pipe from element row column size_t NAN INFINITY
    thread rest event_t sampler_t true false min max floor ceil exp log pow sin cos sqrt tanh erf fabs I M_PI MAXFLOAT
    HUGE_VALF read_only write_only read_write complex imaginary barrier CLK_LOCAL_MEM_FENCE get_group_id get_local_id
"""
_TYPES = ("float", "int", "LOAD", "LOAD_LOCAL", "LOAD_ALIGNED", "STORE")
_RESERVED = frozenset([*_WORDS.split(), *(f"{name}{lanes}" for name in _TYPES for lanes in (2, 4, 8, 16))])

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


@dataclass(frozen=True)
class Kernel:
    """A kernel's text, and how to launch it.

    Its parameters are buffers of float32, by the names of tensors, each with an offset (an int), and if it
    ``takes_count`` the number of samples in the batch.
    """

    text: str
    entry: str
    buffers: tuple[str, ...]
    groups: int
    threads: int
    lanes: int
    takes_count: bool = False


def program_text(kernels: Iterable[Kernel]) -> str:
    """The source of a program of these kernels, which have different entries."""
    kernels = list(kernels)
    lanes = sorted({kernel.lanes for kernel in kernels} - {1})
    return "\n".join([*map(_VECTORS.format, lanes), *(kernel.text for kernel in kernels)])


def generate(
    table: Table, schedule: Schedule, entry: str = "contraction", units: Mapping[str, int] | None = None
) -> Kernel:
    """The kernel of a table (whose indexes are joined, and operands packed) under a schedule that fits it.

    ``units`` says for some tensors how many elements their offset counts in, instead of one; their parameters come
    first, in this order.
    """
    return _Generator(table, schedule, entry, units or {}).kernel()


class _Generator:
    def __init__(self, table: Table, schedule: Schedule, entry: str, units: Mapping[str, int]) -> None:
        self.table, self.schedule, self.entry, self.units = table, schedule, entry, units
        self.lines: list[str] = []
        self.depth = 0
        self.used = {*_RESERVED, entry}
        self.extents = table.extents
        self.vector_output = schedule.lanes > 1 and table.index(schedule.vector).is_output
        self.type = f"float{schedule.lanes}" if schedule.lanes > 1 else "float"
        self.tiles = local_tiles(table, schedule)
        self.outputs, self.loops = order_of(table, schedule)
        ordered = [*(name for name in units if name in table.buffers), *(n for n in table.buffers if n not in units)]
        self.buffers = {name: self.name(name) for name in ordered}
        self.count = self.name("count") if table.sample else ""
        self.index_names = {index.name: self.name(index.name) for index in table.indexes}
        #: The text of every index's value: of outputs without what the place in the block adds.
        self.values: dict[str, str] = {}
        #: Where the tile begins, and where it would begin if it did not have to fit.
        self.firsts: dict[str, str] = {}
        self.starts: dict[str, str] = {}
        self.pointers: dict[Operand, str] = {}
        self.total = _TOTALS[table.aggregation]

    # -- writing -----------------------------------------------------------------------------------------------------

    def name(self, wanted: str) -> str:
        """A name that nothing else has here."""
        found, count = wanted, 1
        while found in self.used:
            count += 1
            found = f"{wanted}_{count}"
        self.used.add(found)
        return found

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        used = set(self.used)
        self.put(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.put("}")
        self.used = used

    # -- the kernel --------------------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        table, schedule = self.table, self.schedule
        written = {store.operand.name for store in table.stores}
        offsets = {name: self.name(f"{text}_offset") for name, text in self.buffers.items()}
        parameters = [
            f"__global {'' if name in written else 'const '}float *restrict {text}, const int {offsets[name]}"
            for name, text in self.buffers.items()
        ]
        parameters += [f"const int {self.count}"] if self.count else []
        threads = schedule.threads
        groups = math.prod(self.groups(index) for index in table.outputs)
        self.header()
        hint = f"__attribute__((vec_type_hint({self.type}))) " if schedule.lanes > 1 and threads == 1 else ""
        self.put(f"__kernel {hint}__attribute__((reqd_work_group_size({threads}, 1, 1))) void")
        with self.block(f"{self.entry}({', '.join(parameters)})"):
            for name, text in self.buffers.items():
                self.put(f"{text} += {_times(offsets[name], self.units.get(name, 1))};")
            for operand, tile in self.tiles.items():
                name = self.name(f"{self.buffers[operand.name]}_tile")
                self.put(f"__local float {name}[{tile.elements}] __attribute__((aligned(128)));")
                self.pointers[operand] = name
            self.tile_names = dict(self.pointers)
            self.places()
            moving = [name for name in self.outputs if max(self.extents[name], schedule.tile(name).step) > 1]
            self.walk([table.index(name) for name in moving])
        text = "\n".join(self.lines) + "\n"
        return Kernel(text, self.entry, tuple(self.buffers), groups, threads, schedule.lanes, bool(self.count))

    def header(self) -> None:
        for line in str(self.table).splitlines():
            self.put(f"// {line}".rstrip())
        self.put(f"// {self.schedule}".rstrip())

    def groups(self, index: Index) -> int:
        """Tiles along an output index."""
        return -(-index.extent // self.schedule.tile(index.name).size)

    def places(self) -> None:
        """Which tile the group makes, and which part of it the work-item."""
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
        threaded = [index for index in outputs if self.schedule.tile(index.name).threads > 1]
        if self.schedule.threads > 1:
            self.put("const int thread = get_local_id(0);")
        below = 1
        for index in reversed(threaded):
            count = self.schedule.tile(index.name).threads
            name = self.name(f"{self.index_names[index.name]}_thread")
            text = "thread" if below == 1 else f"thread / {below}"
            self.put(f"const int {name} = {text}{f' % {count}' if below * count < self.schedule.threads else ''};")
            self.thread_names[index.name] = name
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
                self.origin(index, "0")
                self.walk(rest)
                return
            self.put(f"const int {start} = {first};")
            if self.is_sample(index):
                with self.block(f"if ({start} < {self.count})"):
                    self.origin(index, start)
                    self.walk(rest)
                return
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
        """Where the tile begins that starts at ``start``, and the work-item's block."""
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
        self.put(f"const int {at} = {add if first == '0' else f'{first} + {add}'};")
        self.values[index.name] = at

    def is_sample(self, index: Index) -> bool:
        """Whether an output index is the sample's number: of tiles without samples nothing is done."""
        return self.table.sample_cell == Affine.index(index.name)

    def overhangs(self, name: str) -> bool:
        """Whether the last tile may go beyond the range: the packed operands have room for that."""
        return bool(self.schedule.packed) and name == self.schedule.vector

    def lanes(self, name: str) -> int:
        return self.schedule.lanes if name == self.schedule.vector else 1

    # -- a block of cells ----------------------------------------------------------------------------------------------

    def block_places(self) -> list[dict[str, int]]:
        """The places in the block of a work-item, of the first lane: what they add to each output index."""
        axes = []
        for name in self.outputs:
            tile, lanes = self.schedule.tile(name), self.lanes(name)
            axes.append([(name, step * tile.threads * lanes) for step in range(tile.block // lanes)])
        return [dict(place) for place in itertools.product(*axes)]

    def place_name(self, prefix: str, place: Mapping[str, int]) -> str:
        """``sum_o16_x3``: names tell the place in the block."""
        parts = [
            f"{self.index_names[name]}{place[name]}"
            for name in self.outputs
            if self.schedule.tile(name).block > self.lanes(name)
        ]
        return "_".join([prefix, *parts])

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
        conditions = " && ".join(map(self.inside, table.cell_constraints))
        if conditions and not table.covers:
            with self.block(f"if ({conditions})"):
                self.block_of_cells(places)
        else:
            self.block_of_cells(places, conditions)
        self.pointers = kept

    def block_of_cells(self, places: list[dict[str, int]], condition: str = "") -> None:
        """Terms, under a condition for there being any, and stores."""
        if condition:
            with self.block(f"if ({condition})"):
                self.chunks(dict.fromkeys(self.loops), {})
        else:
            self.chunks(dict.fromkeys(self.loops), {})
        if self.schedule.lanes > 1 and not self.vector_output:
            for place in places:
                self.reduce_lanes(place)
        self.stores(places)

    def reduce_lanes(self, place: Mapping[str, int]) -> None:
        """Combines the lanes of a total, pairwise, and the tail."""
        total, tail = self.place_name(self.total, place), self.place_name("tail", place)
        lanes, source = self.schedule.lanes, total
        while lanes > 1:
            lanes //= 2
            type_ = "float" if lanes == 1 else f"float{lanes}"
            low, high = ("s0", "s1") if lanes == 1 else ("lo", "hi")
            half = self.name(f"{total}_{lanes}")
            other = self.name(f"{total}_{lanes}")
            self.put(f"{type_} {half} = {source}.{low};")
            self.put(f"const {type_} {other} = {source}.{high};")
            self.put(combined(self.table.aggregation, half, other))
            source = half
        self.put(combined(self.table.aggregation, tail, source))

    def global_pointer(self, operand: Operand) -> None:
        """Where the operand lies for the work-item's block and 0 of everything else."""
        name = self.name(f"{self.buffers[operand.name]}_at")
        offset = self.offset_text(operand, [index.name for index in self.table.outputs], with_threads=True)
        text = f"{self.buffers[operand.name]}{self.plus(offset)}"
        self.put(f"__global const float *const {name} = {text};")
        self.pointers[operand] = name

    def offset_text(self, operand: Operand, names: list[str], with_threads: bool) -> str:
        """The element of an operand at the tile's origin, or the work-item's."""
        parts = []
        constant = operand.start
        for name in names:
            stride, step = operand.origin_stride(name), operand.stride(name)
            if not step:
                continue
            first, thread = self.firsts.get(name, "0"), self.thread_names[name]
            if with_threads and thread != "0" and stride == step:
                first, thread = self.values[name], "0"
            if first != "0":
                parts.append(_times(first, stride))
            if with_threads and thread != "0":
                parts.append(_times(thread, step * self.lanes(name)))
        if constant or not parts:
            parts.insert(0, str(constant))
        return " + ".join(parts).replace("+ -", "- ")

    @staticmethod
    def plus(offset: str) -> str:
        return "" if offset == "0" else f" {offset.replace('-', '- ', 1)}" if offset[0] == "-" else f" + {offset}"

    def local_pointer(self, operand: Operand) -> None:
        """Where the operand lies in local memory for the work-item's block."""
        tile = self.tiles[operand]
        parts = [
            _times(self.thread_names[index.name], tile.stride(operand, index.name) * self.lanes(index.name))
            for index in self.table.outputs
            if self.thread_names[index.name] != "0" and tile.stride(operand, index.name)
        ]
        # Forms that shrink along an index begin at their other end.
        axes = zip(operand.axes, tile.steps, tile.strides, strict=True)
        constant = sum(
            abs(factor) // step * stride * (self.tile_size(name, {}) - 1)
            for (_, form), step, stride in axes
            for name, factor in form.terms
            if factor < 0
        )
        name = self.name(f"{self.buffers[operand.name]}_at")
        parts += [str(constant)] if constant else []
        self.put(f"__local const float *const {name} = {' + '.join([self.tile_names[operand], *parts])};")
        self.pointers[operand] = name

    def tile_size(self, name: str, chunks: Mapping[str, int]) -> int:
        """Values of an index that a tile in local memory spans."""
        index, tile = self.table.index(name), self.schedule.tile(name)
        chunk = {**self.schedule.chunks, **chunks}.get(name, index.extent)
        return min(tile.step if index.is_output else chunk, index.extent)

    # -- loops over what is aggregated ---------------------------------------------------------------------------------

    def chunks(self, loops: dict[str, None], sizes: dict[str, int]) -> None:
        """Loops over what passes through local memory at a time; what is left at their ends is written out again."""
        chunked = [name for name in loops if self.schedule.chunks.get(name, self.extents[name]) < self.extents[name]]
        todo = [name for name in chunked if name not in sizes]
        if not todo:
            if self.tiles:
                self.put("barrier(CLK_LOCAL_MEM_FENCE);")
                for operand in self.tiles:
                    self.fill(operand, sizes)
                self.put("barrier(CLK_LOCAL_MEM_FENCE);")
            limits = {name: sizes.get(name, self.extents[name]) for name in loops}
            self.loop(list(loops), limits)
            return
        name = todo[0]
        size, extent = self.schedule.chunks[name], self.extents[name]
        origin = self.name(f"{self.index_names[name]}_chunk")
        rest = extent - extent % size
        is_sample = name == self.table.sample_reduction
        end = f"min({rest}, {self.samples_left(name)})" if is_sample else rest
        with self.block(f"for (int {origin} = 0; {origin} < {end}; {origin} += {size})"):
            self.chunk(name, origin, loops, {**sizes, name: size})
        if extent % size:
            with self.block(f"if ({rest} < {self.samples_left(name)})" if is_sample else ""):
                self.chunk(name, str(rest), loops, {**sizes, name: extent % size})

    def chunk(self, name: str, origin: str, loops: dict[str, None], sizes: dict[str, int]) -> None:
        """One chunk of an index, from ``origin`` on."""
        before = dict(self.pointers)
        self.firsts[name] = origin
        self.step_pointers(name, origin, [operand for operand in self.pointers if operand not in self.tiles])
        self.chunks(loops, sizes)
        self.pointers = before
        del self.firsts[name]

    def fill(self, operand: Operand, sizes: Mapping[str, int]) -> None:
        """Copies a tile of an operand to local memory, all work-items of the group together."""
        tile = self.tiles[operand]
        extents = [
            1 + sum(abs(factor) // step * (self.tile_size(name, sizes) - 1) for name, factor in form.terms)
            for (_, form), step in zip(operand.axes, tile.steps, strict=True)
        ]
        names = [index.name for index in self.table.outputs] + [name for name in sizes if name in self.firsts]
        low = sum(
            stride * factor * (self.tile_size(name, sizes) - 1)
            for stride, form in operand.axes
            for name, factor in form.terms
            if factor < 0
        )
        buffer = self.buffers[operand.name]
        count = math.prod(extents)
        with self.block(""):
            parts = [str(operand.start + low)] if operand.start + low else []
            for name in names:
                stride = operand.origin_stride(name)
                if stride and self.firsts.get(name, "0") != "0":
                    parts.append(_times(self.firsts[name], stride))
            offset = " + ".join(parts or ["0"]).replace("+ -", "- ")
            self.put(f"__global const float *const from = {buffer}{self.plus(offset)};")
            start, step = ("thread", self.schedule.threads) if self.schedule.threads > 1 else ("0", 1)
            with self.block(f"for (int element = {start}; element < {count}; element += {step})"):
                axes = sorted(range(len(extents)), key=lambda axis: -operand.axes[axis][0])
                axes = [axis for axis in axes if extents[axis] > 1]
                below, source, target = 1, [], []
                for axis in reversed(axes):
                    extent = extents[axis]
                    text = "element" if below == 1 else f"element / {below}"
                    if below * extent < count:
                        text = f"{text} % {extent}"
                    text = text if text == "element" else f"({text})"
                    below *= extent
                    source.append(_times(text, operand.axes[axis][0] * tile.steps[axis]))
                    target.append(_times(text, tile.strides[axis]))
                to = " + ".join(target or ["0"])
                self.put(f"{self.tile_names[operand]}[{to}] = from[{' + '.join(source or ['0'])}];")

    def loop(self, names: list[str], limits: Mapping[str, int]) -> None:
        """The loops that are left, outermost first, and the innermost block."""
        looped = [name for name in names if name not in self.schedule.unrolled]
        if not looped:
            self.terms(limits, self.schedule.lanes)
            return
        name, rest = looped[0], [other for other in names if other != looped[0]]
        index = self.index_names[name]
        if name == self.schedule.vector:
            self.vector_loop(name, limits)
            return
        chunk = self.firsts.get(name)
        start, end = self.bounds(name, [*rest, *self.schedule.unrolled], limits[name])
        if limits[name] == 1 and (start, end) == ("0", "1"):
            self.values[name] = chunk or "0"
            self.loop(rest, limits)
            return
        with self.block(f"for (int {index} = {start}; {index} < {end}; {index}++)"):
            before = dict(self.pointers)
            self.values[name] = index if chunk in (None, "0") else f"({chunk} + {index})"
            self.step_pointers(name, index, list(self.pointers))
            self.loop(rest, limits)
            self.pointers = before

    def step_pointers(self, name: str, value: str, operands: list[Operand]) -> None:
        """Pointers to where operands lie at a value of an index."""
        for operand in operands:
            pointer = self.pointers[operand]
            tile = self.tiles.get(operand)
            stride = tile.stride(operand, name) if tile else operand.stride(name)
            if stride:
                space = "__local" if tile else "__global"
                mine = self.name(f"{self.buffers[operand.name]}_{self.index_names[name]}")
                self.put(f"{space} const float *const {mine} = {pointer} + {_times(value, stride)};")
                self.pointers[operand] = mine

    def vector_loop(self, name: str, limits: Mapping[str, int]) -> None:
        """The innermost loop in whole vectors, and what is left of it one by one."""
        lanes, extent = self.schedule.lanes, limits[name]
        index = self.index_names[name]
        whole = extent - extent % lanes
        for start, end, width in ((0, whole, lanes), (whole, extent, 1)):
            if start < end:
                with self.block(f"for (int {index} = {start}; {index} < {end}; {index} += {width})"):
                    before = dict(self.pointers)
                    self.values[name] = index
                    self.step_pointers(name, index, list(self.pointers))
                    self.terms(limits, width)
                    self.pointers = before

    def inside(self, constraint: Constraint) -> str:
        text = affine(constraint.form, self.values)
        return f"{text} >= 0 && {text} < {constraint.size}"

    def bounds(self, name: str, inner: list[str], extent: int) -> tuple[str, str]:
        """First value of a loop, and one past the last: what constraints leave that tie it to what is outside."""
        lows, highs = ["0"], [str(extent)]
        for constraint in self.table.constraints:
            factor = constraint.form.coefficient(name)
            if not factor or any(constraint.form.coefficient(other) for other in inner):
                continue
            rest = Affine.of({n: f for n, f in constraint.form.terms if n != name}, constraint.form.offset)
            # 0 <= factor * value + rest < size
            first, last = -rest, -rest + (constraint.size - 1)
            if factor < 0:
                first, last = -last, -first
            lows.append(_quotient(affine(first + (abs(factor) - 1), self.values), abs(factor)))
            highs.append(_quotient(affine(last, self.values), abs(factor)) + " + 1")
        if name == self.table.sample_reduction:
            highs.append(self.samples_left(name))
        if len(highs) == 1:
            return lows[0], highs[0]
        index = self.index_names[name]
        start, end = self.name(f"{index}_start"), self.name(f"{index}_stop")
        self.put(f"const int {start} = {_nested('max', lows)};")
        self.put(f"const int {end} = {_nested('min', highs)};")
        return start, end

    def samples_left(self, name: str) -> str:
        """One past the last value of the index that runs over samples, from the start of the chunk that it is in on."""
        form = self.table.sample
        assert form is not None
        assert form.coefficient(name) == 1, form
        before = [affine(form - Affine.index(name), self.values), self.firsts.get(name, "0")]
        return " - ".join([self.count, *(f"({text})" for text in before if text != "0")])

    def terms(self, limits: Mapping[str, int], lanes: int) -> None:
        """The innermost block: loads, each once, and the terms of all cells of the block."""
        table = self.table
        type_ = self.type if lanes > 1 or self.vector_output else "float"
        prefix = self.total if type_ == self.type else "tail"
        loaded: dict[tuple[Operand, int], str] = {}
        unrolled = [[(name, value) for value in range(limits[name])] for name in self.schedule.unrolled]
        for combination in itertools.product(*unrolled):
            steps = dict(combination)
            values = {
                **self.values,
                **{name: self.sum_text(self.firsts.get(name, "0"), step) for name, step in steps.items()},
            }
            for place in self.block_places():
                text = self.text_of(type_, {**place, **steps}, values, loaded, lanes)
                total = self.place_name(prefix, place)
                term = text.of(table.expression)
                if table.aggregation in "<>" and not term.isidentifier():
                    term = text.note(term)
                if table.aggregation in "+*=" and term.startswith("(") and term.endswith(")") and _is_one(term):
                    term = term[1:-1]
                self.put(combined(table.aggregation, total, term))

    @staticmethod
    def sum_text(first: str, step: int) -> str:
        return str(int(first) + step) if first.isdigit() else first if step == 0 else f"({first} + {step})"

    def text_of(
        self,
        type_: str,
        steps: Mapping[str, int],
        values: Mapping[str, str],
        loaded: dict[tuple[Operand, int], str],
        lanes: int,
    ) -> Text:
        """What writes expressions of the terms at one place."""
        vector = self.schedule.vector if lanes > 1 else ""

        def load(node: Load) -> str:
            operand = node.operand
            tile = self.tiles.get(operand)
            stride = (lambda n: tile.stride(operand, n)) if tile else operand.stride
            offset = sum(stride(name) * step for name, step in steps.items())
            if (operand, offset) not in loaded:
                space = "LOAD_ALIGNED" if tile and tile.aligned else "LOAD_LOCAL" if tile else "LOAD"
                value = self.load_text(self.pointers[operand], offset, stride(vector) if vector else 0, lanes, space)
                name = self.name(f"{self.buffers[operand.name]}_{offset}".replace("-", "m"))
                self.put(f"const {type_} {name} = {value};")
                loaded[operand, offset] = name
            return loaded[operand, offset]

        return Text(type_, load, self.placer(type_, steps, values, vector), "", self.noter(type_))

    def noter(self, type_: str):  # type: ignore[no-untyped-def]
        def note(text: str) -> str:
            name = self.name("term")
            self.put(f"const {type_} {name} = {text};")
            return name

        return note

    def placer(self, type_: str, steps: Mapping[str, int], values: Mapping[str, str], vector: str):  # type: ignore[no-untyped-def]
        def place(form: Affine) -> str:
            shift = sum(
                form.coefficient(name) * step for name, step in steps.items() if self.table.index(name).is_output
            )
            text = affine(form + shift, values)
            if type_ == "float":
                return f"(float)({text})"
            lanes = self.schedule.lanes
            numbers = ", ".join(str(form.coefficient(vector) * lane) for lane in range(lanes)) if vector else "0"
            return f"convert_float{lanes}((int{lanes})({text}) + (int{lanes})({numbers}))"

        return place

    @staticmethod
    def load_text(pointer: str, offset: int, stride: int, lanes: int, space: str) -> str:
        if stride == 0 or lanes == 1:
            return f"{pointer}[{offset}]"
        if stride == 1:
            return f"{space}{lanes}({pointer} + {offset})" if offset else f"{space}{lanes}({pointer})"
        if stride == 2:
            # NOTE: this reads one element more than it takes, which buffers have room for.
            halves = [f"{space}{lanes}({pointer} + {offset + start})" for start in (0, lanes)]
            return f"(float{lanes})({halves[0]}.even, {halves[1]}.even)"
        return f"(float{lanes})({', '.join(f'{pointer}[{offset + stride * lane}]' for lane in range(lanes))})"

    # -- stores --------------------------------------------------------------------------------------------------------

    def stores(self, places: list[dict[str, int]]) -> None:
        prefix = "tail" if self.schedule.lanes > 1 and not self.vector_output else self.total
        by_lanes = self.vector_output and not self.stores_vectors()
        if by_lanes and self.schedule.threads == 1:
            self.store_by_cells(places, prefix)
            return
        for place in places:
            total = self.place_name(prefix, place)
            if by_lanes:
                for lane in range(self.schedule.lanes):
                    at = {**place, self.schedule.vector: place[self.schedule.vector] + lane}
                    self.store_lane(f"{total}.s{lane:x}", at)
                continue
            guards = self.guards({name: self.sum_text(self.values[name], step) for name, step in place.items()})
            if guards:
                with self.block(f"if ({' && '.join(guards)})"):
                    self.store_place(total, place)
            elif any(loads_of(store.expression) for store in self.table.stores) or self.table.accumulates:
                with self.block(""):
                    self.store_place(total, place)
            else:
                self.store_place(total, place)

    def store_lane(self, total: str, place: Mapping[str, int]) -> None:
        """Stores one lane of a vector by itself."""
        guards = self.guards({name: self.sum_text(self.values[name], step) for name, step in place.items()})
        with self.block(f"if ({' && '.join(guards)})" if guards else ""):
            self.store_place(total, place, scalar=True)

    def stores_vectors(self) -> bool:
        """Whether the lanes of a vector go to neighbouring elements, all of them."""
        vector = self.schedule.vector
        index, tile = self.table.index(vector), self.schedule.tile(vector)
        if self.overhangs(vector) and index.extent % tile.step:
            return False
        if self.table.accumulates and index.extent % tile.step:
            return False
        if self.table.sample_cell and self.table.sample_cell.coefficient(vector):
            return False
        if index.period:
            # Between the rows must be zeros, and no cells of other indexes.
            store = self.table.stores[0].operand
            others = [other for other in self.table.outputs if other != index and other.extent > 1]
            within = any(abs(store.stride(other.name)) < index.period for other in others)
            if within or not self.table.covers or self.table.accumulates:
                return False
        return all(store.operand.stride(vector) == 1 for store in self.table.stores)

    def masks(self, index: Index) -> bool:
        """Whether whole vectors are stored, with zeros between rows, where zeros are."""
        return index.name == self.schedule.vector and self.stores_vectors()

    def guards(self, values: Mapping[str, str]) -> list[str]:
        """What must hold for a cell to be stored by this work-item."""
        found = []
        sample = self.table.sample_cell
        # Of a tile of one sample nothing is done where there is none.
        if sample and (len(sample.terms) > 1 or self.schedule.tile(sample.indexes[0]).step > 1 or sample.offset):
            found.append(f"{affine(sample, values)} < {self.count}")
        for index in self.table.outputs:
            tile, value = self.schedule.tile(index.name), values[index.name]
            ragged = index.extent % tile.step
            if index.period and not self.masks(index):
                found.append(f"({value}) % {index.period} < {index.kept}")
            if self.overhangs(index.name) and ragged:
                found.append(f"{value} < {index.extent}")
            elif self.table.accumulates and ragged and self.starts.get(index.name, "0") != "0":
                found.append(f"{value} >= {self.starts[index.name]}")
        return found

    def store_place(self, total: str, place: Mapping[str, int], scalar: bool = False) -> None:
        """The stores of one place of the block, scalar or vector."""
        is_vector = self.vector_output and not scalar
        lanes = self.schedule.lanes if is_vector else 1
        type_ = self.type if is_vector else "float"
        vector = self.schedule.vector if is_vector else ""
        names = [index.name for index in self.table.outputs]

        def element(operand: Operand) -> str:
            offset = self.offset_text(operand, names, with_threads=True)
            step = sum(operand.stride(name) * value for name, value in place.items())
            return offset if not step else f"{offset} + {step}".replace("+ -", "- ") if offset != "0" else str(step)

        def load(node: Load) -> str:
            buffer = self.buffers[node.operand.name]
            stride = node.operand.stride(vector) if vector else 0
            name = self.name(f"{buffer}_value")
            at = element(node.operand)
            if lanes > 1 and stride:
                value = self.load_text(f"({buffer}{self.plus(at)})", 0, stride, lanes, "LOAD")
            else:
                value = f"{buffer}[{at}]"
            self.put(f"const {type_} {name} = {value};")
            return name

        column = self.sum_text(self.values[vector], place[vector]) if vector else ""
        self.write(total, type_, load, self.placer(type_, place, self.values, vector), element, column)

    def store_row_ends(self, value: str, pointer: str, first: str) -> None:
        """Stores a vector that may reach beyond a row: zeros there, as there have been."""
        index, lanes = self.table.index(self.schedule.vector), self.schedule.lanes
        with self.block(""):
            self.put(f"{self.type} row = {value};")
            self.put(f"const int column = ({first}) % {index.period};")
            with self.block(f"if (column + {lanes} > {index.kept})"):
                numbers = ", ".join(map(str, range(lanes)))
                keep = f"(column + (int{lanes})({numbers})) % {index.period} < {index.kept}"
                self.put(f"row = ({keep}) ? row : ({self.type})(0.0f);")
            self.put(f"STORE{lanes}(row, {pointer});")

    def write(self, total: str, type_: str, load, place, element, gap_column: str = "") -> None:  # type: ignore[no-untyped-def]
        """What becomes of a total: one more term, expressions, stores."""
        stores: tuple[Store, ...] = self.table.stores
        lanes = self.schedule.lanes
        if self.table.accumulates:
            self.put(combined(self.table.aggregation, total, load(Load(stores[0].operand))))
        memory: dict[Operand, str] = {}

        def load_once(node: Load) -> str:
            if node.operand not in memory:
                memory[node.operand] = load(node)
            return memory[node.operand]

        text = Text(type_, load_once, place, total, self.noter(type_))
        for store in stores:
            value = text.of(store.expression)
            at = element(store.operand)
            buffer = self.buffers[store.operand.name]
            if type_ == "float":
                self.put(f"{buffer}[{at}] = {value};")
            elif self.table.index(self.schedule.vector).period:
                self.store_row_ends(value, f"{buffer}{self.plus(at)}", gap_column)
            else:
                self.put(f"STORE{lanes}({value}, {buffer}{self.plus(at)});")

    def store_by_cells(self, places: list[dict[str, int]], prefix: str) -> None:
        """Stores where lanes are not neighbours in memory: the block goes through private memory, cell by cell."""
        table = self.table
        store = table.stores[0].operand
        blocked = [name for name in self.outputs if self.schedule.tile(name).block > 1]
        # The innermost loop takes the closest elements of what is stored.
        inner = sorted(blocked, key=lambda name: -abs(store.stride(name)))
        vector = self.schedule.vector
        layout = [name for name in blocked if name != vector] + [vector]
        strides, size = {}, 1
        for name in reversed(layout):
            strides[name] = size
            size *= self.schedule.tile(name).block
        results = self.name("results")
        self.put(f"float {results}[{size}] __attribute__((aligned(64)));")
        for place in places:
            at = 0
            for name in layout:
                tile, width = self.schedule.tile(name), self.lanes(name)
                at += strides[name] * (place[name] // (tile.threads * width) * width)
            self.put(f"*({self.type} *)({results} + {at}) = {self.place_name(prefix, place)};")
        self.depth_of_cells(inner, strides, results)

    def depth_of_cells(self, inner: list[str], strides: Mapping[str, int], results: str) -> None:
        values = dict(self.values)
        steps = {name: self.name(f"{self.index_names[name]}_step") for name in inner}
        opened = 0
        for name in inner:
            tile, width = self.schedule.tile(name), self.lanes(name)
            step = steps[name]
            self.put(f"for (int {step} = 0; {step} < {tile.block}; {step}++) {{")
            self.depth += 1
            opened += 1
            moved = step
            if tile.threads > 1:
                moved = (
                    f"{step} / {width} * {tile.threads * width} + {step} % {width}"
                    if width > 1
                    else f"{step} * {tile.threads}"
                )
            at = self.name(f"{self.index_names[name]}_cell")
            base = values[name]
            self.put(f"const int {at} = {moved if base == '0' else f'{base} + {moved}'};")
            values[name] = at
        guards = self.guards(values)
        if guards:
            self.put(f"if ({' && '.join(guards)}) {{")
            self.depth += 1
            opened += 1
        total = self.name(self.total)
        where = " + ".join(_times(steps[name], strides[name]) for name in inner)
        self.put(f"float {total} = {results}[{where}];")

        def element(operand: Operand) -> str:
            parts = [str(operand.start)] if operand.start else []
            for index in self.table.outputs:
                stride = operand.stride(index.name)
                if stride and values[index.name] != "0":
                    parts.append(_times(values[index.name], stride))
            return " + ".join(parts or ["0"]).replace("+ -", "- ")

        def load(node: Load) -> str:
            name = self.name(f"{self.buffers[node.operand.name]}_value")
            self.put(f"const float {name} = {self.buffers[node.operand.name]}[{element(node.operand)}];")
            return name

        def place(form: Affine) -> str:
            return f"(float)({affine(form, values)})"

        self.write(total, "float", load, place, element)
        for _ in range(opened):
            self.depth -= 1
            self.put("}")


def _times(text: str, factor: int) -> str:
    """``factor * text`` of a name, a number or what is in brackets."""
    if text.isdigit():
        return str(int(text) * factor)
    if not (text.isidentifier() or (text.startswith("(") and _is_one(text))):
        text = f"({text})"
    return text if factor == 1 else f"{text} * {factor}" if factor >= 0 else f"{text} * ({factor})"


def _is_one(text: str) -> bool:
    """Whether the first bracket closes at the end."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place == len(text) - 1
    return False


def _quotient(text: str, divisor: int) -> str:
    """Division that rounds down, as C's does not below zero."""
    if divisor == 1:
        return text if text.isdigit() else f"({text})"
    if text.lstrip("-").isdigit():
        return str(int(text) // divisor)
    # A multiple of the divisor that makes any 31-bit number positive is too large: the sign is looked at.
    return f"(({text}) >= 0 ? ({text}) / {divisor} : -((-({text}) + {divisor - 1}) / {divisor}))"


def _nested(function: str, values: list[str]) -> str:
    text = values[0]
    for value in values[1:]:
        text = f"{function}({text}, {value})"
    return text
