"""The places of operands for a kernel's block of cells, as text: pointers, offsets, loads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from blobnet.contraction.c_text import affine, summed, times
from blobnet.contraction.form import Affine, Expression
from blobnet.contraction.schedule import Schedule, local_tiles, order_of
from blobnet.contraction.table import Index, Load, Operand, Table
from blobnet.contraction.writing import Writer
from blobnet.memory.blob import FLOAT32, StorageType

#: The function that loads numbers of 16 bits (kernels/narrow.h), without their count.
_LOAD_NARROW = "load_narrow"
#: What variables that hold partial results are called.
_TOTALS = {"+": "sum", "*": "product", ">": "greatest", "<": "least", "=": "value"}


def load_text(pointer: str, offset: int, stride: int, lanes: int, loads: str) -> str:
    """The text of a vector that is loaded, or of one number."""

    def place(at: int) -> str:
        return f"{pointer} + {at}" if at else pointer

    def one(at: int) -> str:
        return f"{loads}({place(at)})" if loads == _LOAD_NARROW else f"{pointer}[{at}]"

    def vector(at: int) -> str:
        return f"{loads}{lanes}({place(at)})"

    if stride == 0 or lanes == 1:
        return one(offset)
    if stride == 1:
        return vector(offset)
    if stride == 2:
        # Odd places are in the vectors of the even ones before them, which another tap loads.
        part, first = ("odd", offset - 1) if offset > 0 and offset % 2 else ("even", offset)
        # NOTE: even ones read one element more than they take, which buffers have room for.
        return f"(float{lanes})({vector(first)}.{part}, {vector(first + lanes)}.{part})"
    return f"(float{lanes})({', '.join(one(offset + stride * lane) for lane in range(lanes))})"


class Addresses(Writer):
    """The names that all parts of a kernel share: of indexes, buffers, and what has been set so far."""

    def __init__(
        self,
        table: Table,
        schedule: Schedule,
        entry: str,
        units: Mapping[str, int],
        types: Mapping[str, StorageType],
    ) -> None:
        super().__init__(entry)
        self.table, self.schedule, self.units, self.types = table, schedule, units, types
        self.extents = table.extents
        self.vector_output = schedule.lanes > 1 and table.index(schedule.vector).is_output
        self.type = f"float{schedule.lanes}" if schedule.lanes > 1 else "float"
        self.tiles = local_tiles(table, schedule)
        self.outputs, self.loops = order_of(table, schedule)
        ordered = [*(name for name in units if name in table.buffers), *(n for n in table.buffers if n not in units)]
        self.buffers = {name: self.given("t", name) for name in ordered}
        self.count = self.name("count") if table.sample else ""
        self.index_names = {index.name: self.given("i", index.name) for index in table.indexes}
        #: The text of every index's value: of outputs without what the place in the block adds.
        self.values: dict[str, str] = {}
        #: Where the tile begins, and where it would begin if it did not have to fit.
        self.firsts: dict[str, str] = {}
        self.starts: dict[str, str] = {}
        #: Which tile the group makes, and which part of it the work-item.
        self.group_names: dict[str, str] = {}
        self.thread_names: dict[str, str] = {}
        #: Where operands lie for what has been set so far, and where in local memory.
        self.pointers: dict[Operand, str] = {}
        self.tile_names: dict[Operand, str] = {}
        self.total = _TOTALS[table.aggregation]
        #: Which of those that share an index the work-item is; where partial results are in local memory.
        self.share, self.partials, self.partial_place = "", "", "0"
        #: Lanes of vectors of neighbours that are loaded one by one otherwise.
        self.widths: set[int] = set()
        self.runs: dict[tuple[Operand, int], tuple[int, int]] = {}
        self.partial_step = 1

    @contextmanager
    def kernel_block(self) -> Iterator[None]:
        """The kernel around what is written within, with its table and schedule above and pointers to whole units."""
        written = {store.operand.name for store in self.table.stores}
        offsets = {name: self.name(f"{text}_offset") for name, text in self.buffers.items()}
        parameters = [
            f"__global {'' if name in written else 'const '}{self.c_type(name)} *restrict {text}, "
            f"const int {offsets[name]}"
            for name, text in self.buffers.items()
        ]
        parameters += [f"const int {self.count}"] if self.count else []
        for line in (*str(self.table).splitlines(), str(self.schedule)):
            self.put(f"// {line}".rstrip())
        self.put(f"__kernel __attribute__((reqd_work_group_size({self.schedule.threads}, 1, 1))) void")
        with self.block(f"{self.entry}({', '.join(parameters)})"):
            for name, text in self.buffers.items():
                self.put(f"{text} += {times(offsets[name], self.units.get(name, 1))};")
            yield

    def is_narrow(self, name: str) -> bool:
        """Return True if the numbers of a tensor are narrower in memory than what kernels compute with."""
        return self.types.get(name, FLOAT32) != FLOAT32

    def c_type(self, name: str) -> str:
        """Return the C type of a tensor's numbers in memory."""
        return self.types[name].c_type if self.is_narrow(name) else "float"

    def loads(self, name: str) -> str:
        """Return the function that loads vectors of a tensor, without their length."""
        return _LOAD_NARROW if self.is_narrow(name) else "LOAD"

    def element_text(self, name: str, at: str) -> str:
        """A number of a tensor, where a cell is stored."""
        buffer = self.buffers[name]
        return f"load_narrow({summed(buffer, at)})" if self.is_narrow(name) else f"{buffer}[{at}]"

    def rounder(self, type_: str) -> Callable[[str, Expression, Load], str]:
        """Return a function that gives the text of an expression's value as it is in an operand's memory."""

        def rounded(text: str, value: Expression, kept: Load) -> str:
            name = kept.operand.name
            same = isinstance(value, Load) and self.c_type(value.operand.name) == self.c_type(name)
            if same or not self.is_narrow(name):
                return text
            return f"round_narrow{type_.removeprefix('float')}({text}, {self.buffers[name]})"

        return rounded

    def store_text(self, name: str, value: str, at: str) -> str:
        """A number that goes to an element of a tensor."""
        buffer = self.buffers[name]
        place = f"{summed(buffer, at)}"
        return f"store_narrow({value}, {place});" if self.is_narrow(name) else f"{buffer}[{at}] = {value};"

    def store_vector_text(self, name: str, value: str, at: str) -> str:
        """The same of a vector, from an element on."""
        kind = "store_narrow" if self.is_narrow(name) else "STORE"
        return f"{kind}{self.schedule.lanes}({value}, {summed(self.buffers[name], at)});"

    def groups(self, index: Index) -> int:
        """Tiles along an output index."""
        return -(-index.extent // self.schedule.tile(index.name).size)

    def lanes(self, name: str) -> int:
        return self.schedule.lanes if name == self.schedule.vector else 1

    def overhangs(self, name: str) -> bool:
        """Return True if the last tile may go beyond the range: the packed operands have room for that."""
        return bool(self.schedule.packed) and name == self.schedule.vector

    def is_sample(self, index: Index) -> bool:
        """Return True if an output index is the sample's number: of tiles without samples nothing is done."""
        return self.table.sample_cell == Affine.index(index.name)

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

    @staticmethod
    def sum_text(first: str, step: int) -> str:
        return str(int(first) + step) if first.isdigit() else first if step == 0 else f"({first} + {step})"

    def offset_text(self, operand: Operand) -> str:
        """The element of an operand at the work-item's origin."""
        parts = []
        for name in [index.name for index in self.table.outputs]:
            stride, step = operand.origin_stride(name), operand.stride(name)
            first, thread = self.firsts.get(name, "0"), self.thread_names[name]
            if thread != "0" and stride == step:
                first, thread = self.values[name], "0"
            parts += [times(first, stride), times(thread, step * self.lanes(name))]
        return summed(operand.start, *parts)

    def tile_size(self, name: str, chunks: Mapping[str, int]) -> int:
        """Values of an index that a tile in local memory spans."""
        index, tile = self.table.index(name), self.schedule.tile(name)
        chunk = {**self.schedule.chunks, **chunks}.get(name, index.extent)
        return min(tile.step if index.is_output else chunk, index.extent)

    def global_pointer(self, operand: Operand) -> None:
        """Return the pointer to an operand for the work-item's block and 0 of every other index."""
        name = self.name(f"{self.buffers[operand.name]}_at")
        text = f"{summed(self.buffers[operand.name], self.offset_text(operand))}"
        self.put(f"__global const {self.c_type(operand.name)} *const {name} = {text};")
        self.pointers[operand] = name

    def local_pointer(self, operand: Operand) -> None:
        """Return the pointer to an operand in local memory for the work-item's block."""
        tile = self.tiles[operand]
        parts = [
            times(self.thread_names[index.name], tile.stride(operand, index.name) * self.lanes(index.name))
            for index in self.table.outputs
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
        self.put(f"__local const float *const {name} = {summed(self.tile_names[operand], *parts, constant)};")
        self.pointers[operand] = name

    def step_pointers(self, name: str, value: str, operands: list[Operand]) -> None:
        """Pointers to where operands lie at a value of an index."""
        for operand in operands:
            pointer = self.pointers[operand]
            tile = self.tiles.get(operand)
            stride = tile.stride(operand, name) if tile else operand.stride(name)
            if stride:
                kind = "__local const float" if tile else f"__global const {self.c_type(operand.name)}"
                mine = self.name(f"{self.buffers[operand.name]}_{self.index_names[name]}")
                self.put(f"{kind} *const {mine} = {pointer} + {times(value, stride)};")
                self.pointers[operand] = mine

    def noter(self, type_: str) -> Callable[[str], str]:
        """Return a function that names a text which is needed more than once."""

        def note(text: str) -> str:
            name = self.name("term")
            self.put(f"const {type_} {name} = {text};")
            return name

        return note

    def placer(
        self, type_: str, steps: Mapping[str, int], values: Mapping[str, str], vector: str
    ) -> Callable[[Affine], str]:
        """Return a function that gives an affine form as a value of the type, at a place of the block."""

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
