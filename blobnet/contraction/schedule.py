"""The schedule of a kernel: one short value that search proposes, tests force, and reports print.

    join y x; tile o 1x1x48; tile y.x 1x4x7; vector o 16; pack W; unroll a b; order n y.x o i a b

Its text is a list of settings, of which each may be missing:

    peel x          of an output index the values that always meet its constraints; the others have kernels of their own
    cut i 4         a reduction index is two: i, and i/cut, which goes through so many neighbours
    join y x        two neighbours are one index, y.x (of more, from left to right)
    tile o 8x2x6    of an output index: work-items side by side x tiles that a work-item makes one after another x
                    results in registers
    vector o 16     lanes of an index, which are consecutive values of it
    chunk i 8       values of a reduction index whose operands are in local memory at a time (all of it without)
    share i 32      a reduction index whose values so many work-items of a group take in turn; what they come to is
                    combined through local memory
    unroll a b      reduction indexes that are written out
    wide W I        operands of which neighbours that the innermost loop reads one by one are loaded as vectors
    local I W       operands that pass through local memory
    pack W          operands that a kernel before lays out so that the lanes of the vector lie side by side
    ahead 8         vectors that the innermost loop reads so many steps later are asked for, where each step's lie afar
    split n 4       a reduction index in so many parts (the last may be shorter, or fewer), whose partial results a
                    second kernel combines
    order n o y x i a b   outputs, the index of work-groups that changes fastest last; then reductions, innermost last.
                    Work-items side by side follow it, too, those of a shared index before all others if it is not named

The search proposes no chunk, wide or local: the ladders of the seeds (tests/bench/schedules.py) are made of them.

A sum of products may be one of two matrices instead, whose rows, columns and depth are runs of several indexes:

    rows o 64x8           output indexes of one operand alone: rows of a work-group x of a work-item
    columns n y x 128x8   those of the other one, or of none
    depth i a b 16        the reduction indexes, and rows of both matrices that are in local memory at a time
    along b               all rows of a step are of this index, the last one, whose range they divide
    addresses cheap       where they do not: no step but the first one tests its rows, and bytes have 32 bits

Then ``split i 4`` goes for the whole depth, whose steps need not be a multiple of the parts, and ``pack`` for an
operand whose copy has rows (or columns) side by side. Other outputs are matrices apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from blobnet.contraction.form import Apply, Position
from blobnet.contraction.table import Load, Operand, Table, cut, interior, join_name, joined, period_of, restricted
from blobnet.errors import OptionError, near_matches
from blobnet.memory.blob import FLOAT32

#: Statements that the innermost loop is unrolled to at most, and results that a work-item keeps.
MAX_STATEMENTS = 2048
LANES = (1, 2, 4, 8, 16)
#: What is wrong with a product that lacks something.
_WHOLE = "a product has rows, columns and depth"
#: Of so many partial results of a shared index one is made at a time: as many barriers as this has powers below them.
RADIX = 4


@dataclass(frozen=True)
class Tile:
    """The part of an output index that a work-group makes: ``threads`` x ``walk`` x ``block`` values."""

    threads: int = 1
    walk: int = 1
    block: int = 1

    @property
    def step(self) -> int:
        """Values that all work-items of a group make at a time."""
        return self.threads * self.block

    @property
    def size(self) -> int:
        """Values that a group makes."""
        return self.step * self.walk

    def __str__(self) -> str:
        return f"{self.threads}x{self.walk}x{self.block}"


@dataclass(frozen=True)
class Side:
    """Output indexes that are the rows, or columns, of a matrix: ``size`` of a work-group, ``block`` of a work-item."""

    names: tuple[str, ...]
    size: int
    block: int

    @property
    def items(self) -> int:
        """Work-items side by side."""
        return self.size // self.block

    def __str__(self) -> str:
        return f"{' '.join(self.names)} {self.size}x{self.block}"


@dataclass(frozen=True)
class Product:
    """A sum of products as one of two matrices; see the head of this module.

    Args:
        rows: output indexes of one operand alone.
        columns: those of the other one, or of none.
        depth: the reduction indexes.
        step: rows of both matrices that are in local memory at a time.
        along: the index of all rows of a step; "" where steps do not keep to one.
        cheap_addresses: whether only the first step tests its rows, and bytes have 32 bits.
    """

    rows: Side
    columns: Side
    depth: tuple[str, ...]
    step: int
    along: str = ""
    cheap_addresses: bool = False

    @property
    def threads(self) -> int:
        """Work-items of a group."""
        return self.rows.items * self.columns.items

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory at most: two steps of both matrices; results leave through it, too."""
        columns = max(2 * self.step, self.rows.items) * (self.columns.size + 4)
        return FLOAT32.itemsize * (2 * self.step * (self.rows.size + 4) + columns)

    def __str__(self) -> str:
        parts = [f"rows {self.rows}", f"columns {self.columns}", f"depth {' '.join(self.depth)} {self.step}"]
        parts += [f"along {self.along}"] if self.along else []
        return "; ".join([*parts, *["addresses cheap"] * self.cheap_addresses])


@dataclass(frozen=True)
class Schedule:
    """See the head of this module. Indexes without a tile have one of 1x1x1; a product has no tiles."""

    joins: tuple[tuple[str, ...], ...] = ()
    peel: str = ""
    tiles: Mapping[str, Tile] = field(default_factory=dict)
    vector: str = ""
    lanes: int = 1
    chunks: Mapping[str, int] = field(default_factory=dict)
    unrolled: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    packed: tuple[str, ...] = ()
    split: tuple[str, int] = ("", 1)
    order: tuple[str, ...] = ()
    cuts: Mapping[str, int] = field(default_factory=dict)
    shared: tuple[str, int] = ("", 1)
    wide: tuple[str, ...] = ()
    ahead: int = 0
    product: Product | None = None

    def tile(self, index: str) -> Tile:
        """The tile of an output index."""
        return self.tiles.get(index, Tile())

    @property
    def threads(self) -> int:
        """Work-items of a group."""
        return self.product.threads if self.product else self.owners * self.shared[1]

    @property
    def owners(self) -> int:
        """Work-items of a group that make results of their own."""
        return math.prod(tile.threads for tile in self.tiles.values())

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        parts = [f"peel {self.peel}"] if self.peel else []
        parts += [f"cut {name} {size}" for name, size in self.cuts.items()]
        parts += [f"join {' '.join(names)}" for names in self.joins]
        parts += [f"tile {name} {tile}" for name, tile in self.tiles.items() if tile != Tile()]
        parts += [f"vector {self.vector} {self.lanes}"] if self.lanes > 1 else []
        parts += [f"chunk {name} {size}" for name, size in self.chunks.items()]
        parts += [f"share {self.shared[0]} {self.shared[1]}"] if self.shared[1] > 1 else []
        lists = ("unroll", self.unrolled), ("wide", self.wide), ("local", self.local), ("pack", self.packed)
        for word, names in lists:
            parts += [f"{word} {' '.join(names)}"] if names else []
        parts += [f"ahead {self.ahead}"] if self.ahead else []
        parts += [f"split {self.split[0]} {self.split[1]}"] if self.split[1] > 1 else []
        parts += [f"order {' '.join(self.order)}"] if self.order else []
        return "; ".join([*parts, *([str(self.product)] if self.product else [])])

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that a text describes.

        Raises:
            OptionError: it is none.
        """
        made: dict[str, Any] = {}
        for part in filter(str.strip, text.split(";")):
            word, *names = part.split()
            if word not in _SETTINGS:
                raise _bad(f"{word!r} is no setting", hint=near_matches(word, list(_SETTINGS)))
            name, read = _SETTINGS[word]
            try:
                value = read(names)
            except ValueError as error:
                raise _bad(f"{part.strip()!r} is no setting", hint="see blobnet/contraction/schedule.py.") from error
            # What there may be several of is a dictionary.
            made[name] = {**made.get(name, {}), **value} if isinstance(value, dict) else value
        for pair in (("vector", "lanes"), ("depth", "step")):
            made |= zip(pair, made.get(pair[0], ()), strict=False)
        made["joins"] = tuple(made.get("joins", ()))
        product = {item.name: made.pop(item.name) for item in fields(Product) if item.name in made}
        if product and not product.keys() >= {"rows", "columns", "depth"}:
            raise _bad(_WHOLE, schedule=text)
        return cls(**made, product=Product(**product) if product else None)


def _number(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def _one(names: list[str]) -> str:
    (name,) = names
    return name


def _several(names: list[str], least: int = 1) -> tuple[str, ...]:
    if len(names) < least:
        raise ValueError(names)
    return tuple(names)


def _sized(names: list[str]) -> tuple[str, int]:
    name, size = names
    return name, _number(size)


def _tile(names: list[str]) -> dict[str, Tile]:
    name, sizes = names
    threads, walk, block = map(_number, sizes.split("x"))
    return {name: Tile(threads, walk, block)}


def _side(names: list[str]) -> Side:
    *indexes, sizes = names
    height, block = map(_number, sizes.split("x"))
    return Side(_several(indexes), height, block)


def _cheap(names: list[str]) -> bool:
    if names != ["cheap"]:
        raise ValueError(names)
    return True


#: The field that each setting is, and what reads its words.
_SETTINGS: dict[str, tuple[str, Callable[[list[str]], Any]]] = {
    "peel": ("peel", _one),
    "cut": ("cuts", lambda names: dict([_sized(names)])),
    "join": ("joins", lambda names: {_several(names, 2): None}),
    "tile": ("tiles", _tile),
    "vector": ("vector", _sized),
    "chunk": ("chunks", lambda names: dict([_sized(names)])),
    "share": ("shared", _sized),
    "unroll": ("unrolled", _several),
    "wide": ("wide", _several),
    "local": ("local", _several),
    "pack": ("packed", _several),
    "ahead": ("ahead", lambda names: _number(_one(names))),
    "split": ("split", _sized),
    "order": ("order", _several),
    "rows": ("rows", _side),
    "columns": ("columns", _side),
    "depth": ("depth", lambda names: (_several(names[:-1]), _number(names[-1]))),
    "along": ("along", _one),
    "addresses": ("cheap_addresses", _cheap),
}


def _bad(rule: str, hint: str | None = None, **received: object) -> OptionError:
    return OptionError("schedule", rule, hint=hint, **received)


def prepared(table: Table, schedule: Schedule) -> Table:
    """The table of a schedule's main kernel: without the border of what is peeled, its indexes cut and joined.

    Raises:
        OptionError: they cannot be.
    """
    if schedule.peel:
        _known(table, [schedule.peel])
        if not can_peel(table, schedule.peel):
            rule = f"{schedule.peel} must be an output index in constraints with others, which some of its values meet"
            raise _bad(rule, schedule=schedule)
        table = restricted(table, schedule.peel, interior(table, schedule.peel))
    for name, size in schedule.cuts.items():
        _known(table, [name])
        index = table.index(name)
        if index.is_output or index.extent % size or name == table.sample_reduction:
            rule = f"{name} must be a reduction index, not over samples, whose range {size} divides to be cut"
            raise _bad(rule, range=index.extent, schedule=schedule)
        table = cut(table, name, size)
    for names in schedule.joins:
        outer = names[0]
        for inner in names[1:]:
            _known(table, (outer, inner))
            if not period_of(table, outer, inner):
                rule = f"{outer} and {inner} must be the same distance apart in every operand to be joined"
                raise _bad(rule, schedule=schedule)
            table = joined(table, outer, inner)
            outer = join_name((outer, inner))
    return table


def can_peel(table: Table, name: str) -> bool:
    """Return True if an output index can be peeled."""
    is_tied = table.index(name).is_output and name in constrained(table)
    return is_tied and not table.cell_constraints and len(interior(table, name)) > 0


def borders(table: Table, schedule: Schedule) -> list[Table]:
    """The tables of what a schedule peels off."""
    if not schedule.peel:
        return []
    inside, extent = interior(table, schedule.peel), table.extents[schedule.peel]
    spans = (range(inside.start), range(inside.stop, extent))
    return [restricted(table, schedule.peel, span) for span in spans if span]


def _known(table: Table, names: Iterable[str]) -> None:
    known = [index.name for index in table.indexes]
    for name in names:
        if name not in known:
            raise _bad(f"there is no index {name!r}", hint=near_matches(name, known))


def _known_operands(table: Table, keys: Iterable[str]) -> None:
    names = operand_names(table)
    for key in keys:
        if key not in names:
            raise _bad(f"there is no operand {key!r}", hint=near_matches(key, list(names)))


def operand_names(table: Table) -> dict[str, Operand]:
    """Return the names of the operands in schedules: by tensor, the second of the same tensor W.2, and so on."""
    names: dict[str, Operand] = {}
    for operand in table.loads:
        name, number = operand.name, 1
        while name in names:
            number += 1
            name = f"{operand.name}.{number}"
        names[name] = operand
    return names


def constrained(table: Table) -> set[str]:
    """Indexes that constraints tie."""
    return {name for constraint in table.constraints for name in constraint.form.indexes}


def statements(table: Table, schedule: Schedule) -> int:
    """Multiply-adds that the innermost loop is written out to."""
    lanes = {schedule.vector: schedule.lanes}
    results = math.prod(schedule.tile(index.name).block // lanes.get(index.name, 1) for index in table.outputs)
    return results * math.prod(table.extents[name] for name in schedule.unrolled)


def order_of(table: Table, schedule: Schedule) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Outputs and reductions in the order of a schedule; those that it does not name come before."""
    place = {name: number for number, name in enumerate(schedule.order)}

    def ordered(names: list[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda name: place.get(name, -1)))

    reductions = [index.name for index in table.reductions if index.name not in schedule.unrolled]
    return (
        ordered([index.name for index in table.outputs]),
        (*ordered(reductions), *ordered(list(schedule.unrolled))),
    )


def check(table: Table, schedule: Schedule, most_threads: int = 1 << 30, local_memory: int = 1 << 30) -> None:
    """Raise OptionError unless a schedule is one for a table (that is :func:`prepared` for it) on a device.

    Raises:
        OptionError: it is not, and why.
    """
    if schedule.product:
        check_product(table, schedule, schedule.product)
    else:
        _check_tiling(table, schedule)
    if schedule.threads > most_threads:
        raise _bad(f"a work-group must have no more than {most_threads} work-items", schedule=schedule)
    elements = sum(tile.elements for tile in local_tiles(table, schedule).values()) + partial_results(table, schedule)
    used = schedule.product.local_bytes if schedule.product else FLOAT32.itemsize * elements
    if used > local_memory:
        raise _bad(f"local memory has {local_memory} bytes", needed=used, schedule=schedule)


def _check_tiling(table: Table, schedule: Schedule) -> None:
    """Raise OptionError where tiles, and what goes with them, do not fit a table."""
    outputs, tied = {index.name for index in table.outputs}, constrained(table)
    _known(table, [*schedule.tiles, *schedule.chunks, *schedule.unrolled, *schedule.order])
    _known(table, [name for name in (schedule.vector, schedule.split[0], schedule.shared[0]) if name])
    _known_operands(table, (*schedule.local, *schedule.packed, *schedule.wide))
    if schedule.packed and schedule.local:
        raise _bad("operands are either packed or in local memory", schedule=schedule)
    if schedule.lanes not in LANES:
        raise _bad(f"a vector must have {', '.join(map(str, LANES))} lanes", schedule=schedule)
    if tied and (schedule.local or schedule.packed):
        raise _bad("operands must be read where they lie while constraints are left", schedule=schedule)
    for name, tile in schedule.tiles.items():
        if name not in outputs:
            raise _bad(f"{name} is no output index and has no tile", schedule=schedule)
        if name in tied and tile.block > 1:
            raise _bad(f"{name} is in a constraint and must have one result a work-item", schedule=schedule)
        extent = table.extents[name]
        if tile.step > extent and not (schedule.packed and name == schedule.vector):
            raise _bad(f"a tile of {name} must not be larger than its range", range=extent, schedule=schedule)
    for name in schedule.unrolled:
        if name in outputs or name in tied or name in (schedule.vector, table.sample_reduction):
            rule = f"{name} must be a reduction index without constraints or lanes, not over samples, to be unrolled"
            raise _bad(rule, schedule=schedule)
    if statements(table, schedule) > MAX_STATEMENTS:
        rule = f"the innermost loop must have no more than {MAX_STATEMENTS} multiply-adds"
        raise _bad(rule, multiply_adds=statements(table, schedule), schedule=schedule)
    _check_parts(table, schedule, outputs)
    if schedule.lanes > 1:
        _check_vector(table, schedule, outputs, tied)
    elif schedule.packed:
        raise _bad("operands are packed for the lanes of a vector, and there is none", schedule=schedule)


def _check_parts(table: Table, schedule: Schedule, outputs: set[str]) -> None:
    """The same of chunks, splits and shares of what is summed."""
    extents, names = table.extents, operand_names(table)
    for name in schedule.chunks:
        if name in outputs or not schedule.local:
            raise _bad(
                f"{name} must be a reduction index, and an operand in local memory, for chunks", schedule=schedule
            )
        if extents[name] % schedule.chunks[name] and any(
            form.coefficient(name) < 0 for key in schedule.local for _, form in names[key].axes
        ):
            raise _bad(f"chunks of {name} must divide its range, which runs backwards in memory", schedule=schedule)
    part, parts = schedule.split
    if parts > 1 and (part in outputs or parts > extents[part]):
        raise _bad(
            f"{part} must be a reduction index with a value for each part", range=extents[part], schedule=schedule
        )
    whole = (*schedule.unrolled, schedule.vector, schedule.shared[0])
    if parts > 1 and extents[part] % parts and (schedule.local or schedule.wide or part in whole):
        rule = f"parts of {part} must divide its range where it is written out, shared, or lanes, or loads are wide"
        raise _bad(f"{rule} or local", range=extents[part], schedule=schedule)
    if schedule.shared[1] > 1:
        _check_shared(table, schedule, outputs)


def _check_shared(table: Table, schedule: Schedule, outputs: set[str]) -> None:
    name, items = schedule.shared
    part, parts = schedule.split
    least = table.extents[name] // (parts if part == name else 1)
    is_loop = name not in outputs and name not in (*schedule.unrolled, schedule.vector)
    if not is_loop or items > least or table.aggregation == "=":
        rule = f"{name} must be a reduction index with a loop of its own, of at least {items} values, to be shared"
        raise _bad(rule, range=table.extents[name], schedule=schedule)
    if table.cell_constraints:
        rule = "work-items cannot share what some of them have no terms for"
        raise _bad(rule, constraint=table.cell_constraints[0], schedule=schedule)


def partial_results(table: Table, schedule: Schedule) -> int:
    """Elements of local memory through which work-items that share an index combine what they have come to."""
    results = math.prod(schedule.tile(index.name).block for index in table.outputs)
    return (schedule.shared[1] - 1) * schedule.owners * results


def combining(items: int) -> list[tuple[int, int]]:
    """Return the numbers of partial results before and after each step that combines them."""
    steps = []
    while items > 1:
        left = -(-items // RADIX)
        steps.append((items, left))
        items = left
    return steps


def _check_vector(table: Table, schedule: Schedule, outputs: set[str], tied: set[str]) -> None:
    name, lanes, names = schedule.vector, schedule.lanes, operand_names(table)
    if name in tied:
        raise _bad(f"{name} is in a constraint and cannot be lanes", schedule=schedule)
    if name not in outputs:
        _, reductions = order_of(table, schedule)
        inner = [index for index in reductions if index not in schedule.unrolled]
        uses_place = any(isinstance(node, Position) for node in table.expression.walk())
        moves_otherwise = schedule.packed or schedule.local or uses_place or name == table.sample_reduction
        if inner[-1] != name or table.aggregation == "=" or moves_otherwise:
            raise _bad(f"the reduction index {name} must be the innermost loop to be lanes", schedule=schedule)
        return
    if schedule.tile(name).block % lanes:
        raise _bad(f"the results of {name} must be whole vectors", schedule=schedule)
    if not schedule.packed:
        return
    for operand in map(names.__getitem__, schedule.packed):
        own = [form for _, form in operand.axes if form.coefficient(name)]
        if len(own) != 1 or own[0].terms != ((name, 1),):
            raise _bad(f"{operand.name} must have an axis that is {name} alone to be packed", schedule=schedule)
    packed = [names[key] for key in schedule.packed]
    if any(operand not in packed and operand.stride(name) for operand in table.loads):
        raise _bad(f"all operands with {name} must be packed", schedule=schedule)


def sides(table: Table, product: Product) -> tuple[Operand, Operand]:
    """The operands of a product of matrices: whose rows, and whose columns.

    Raises:
        OptionError: the table is none.
    """
    is_sum = table.aggregation == "+" and len(table.loads) == 2
    if not is_sum or table.expression != Apply("multiply", tuple(map(Load, table.loads))):
        raise _bad("rows, columns and depth are of a sum of products of two operands", schedule=product)
    first, second = table.loads
    return (first, second) if first.stride(product.rows.names[0]) else (second, first)


def depth_of(table: Table) -> int:
    """Terms of each sum."""
    return math.prod(index.extent for index in table.reductions)


def part_steps(table: Table, product: Product, parts: int) -> int:
    """Steps of each of so many parts of the depth."""
    return -(-depth_of(table) // product.step // parts)


def can_be_cheap(table: Table, depth: Sequence[str]) -> bool:
    """Return True if 32 bits hold the distance in bytes of all that a product reads from its tensor's start."""
    for operand in table.loads:
        moves = [(operand.stride(index.name), index.extent - 1) for index in table.indexes]
        first, last = (operand.start + sum(end(0, stride * most) for stride, most in moves) for end in (min, max))
        is_forward = all(operand.stride(name) >= 0 for name in depth)
        if first < 0 or FLOAT32.itemsize * last >= 1 << 32 or not is_forward:
            return False
    return True


def check_product(table: Table, schedule: Schedule, product: Product) -> None:
    """:func:`check` of a product of matrices."""
    if not (product.rows.names and product.columns.names and product.depth):
        raise _bad(_WHOLE, schedule=schedule)
    _known(table, [*product.rows.names, *product.columns.names, *product.depth])
    if schedule != Schedule(joins=schedule.joins, packed=schedule.packed, split=schedule.split, product=product):
        raise _bad("a product has no tiles, lanes, chunks, nor an order", schedule=schedule)
    _check_sides(table, product)
    depth, along, reductions = product.depth, product.along, table.reductions
    inner = [index.name for index in reductions if index.extent > 1 or index.name == table.sample_reduction]
    is_repeated = len(set(depth)) < len(depth)
    if is_repeated or not {index.name for index in reductions} >= set(depth) >= set(inner):
        raise _bad("the depth is all reduction indexes, each once", schedule=schedule)
    if table.constraints:
        raise _bad("a product has no constraints", schedule=schedule)
    if table.sample_reduction not in ("", depth[0]):
        raise _bad(f"{table.sample_reduction}, which runs over samples, comes first in the depth", schedule=schedule)
    if along and (along != depth[-1] or table.extents[along] % product.step):
        raise _bad(f"{along} must be the last of the depth, and whole steps of it", schedule=schedule)
    if product.cheap_addresses and (along or not can_be_cheap(table, depth)):
        rule = "cheap addresses take operands of less than 4 GB, a depth that leads forwards, and steps along no index"
        raise _bad(rule, schedule=schedule)
    _known_operands(table, schedule.packed)
    samples = table.sample.indexes if table.sample else ()
    for key in schedule.packed:
        if any(operand_names(table)[key].stride(name) for name in samples):
            raise _bad(f"{key} has samples and is read where it lies", schedule=schedule)
    part, parts = schedule.split
    if parts > 1 and (part != depth[0] or parts > -(-depth_of(table) // product.step)):
        raise _bad(f"{depth[0]} stands for the depth, which must have a step a part", schedule=schedule)


def _check_sides(table: Table, product: Product) -> None:
    rows, columns = product.rows, product.columns
    left, right = sides(table, product)
    for side, own, other in ((rows, left, right), (columns, right, left)):
        for name in side.names:
            if not table.index(name).is_output or other.stride(name) or table.index(name).period:
                raise _bad(f"{name} must be an output index of {own.name} alone, without gaps", schedule=product)
        if side.block not in (4, 8, 16) or side.size % side.block or side.size & (side.size - 1):
            raise _bad("a block has 4, 8 or 16 rows or columns, and a tile a power of two of them", schedule=product)
    if len({*rows.names, *columns.names}) < len(rows.names) + len(columns.names):
        raise _bad("an index is either of rows or of columns, once", schedule=product)


@dataclass(frozen=True)
class LocalTile:
    """A part of an operand in local memory.

    Args:
        extents: of each of its axes there.
        steps: from one value of an axis to the next, in memory.
        strides: in local memory.
        elements: all of it.
        aligned: whether the lanes of vectors lie side by side, from multiples of the lanes on.
    """

    extents: tuple[int, ...]
    steps: tuple[int, ...]
    strides: tuple[int, ...]
    elements: int
    aligned: bool = False

    def stride(self, operand: Operand, index: str) -> int:
        """Elements in local memory that one step of an index moves."""
        forms = [form for _, form in operand.axes]
        axes = zip(forms, self.steps, self.strides, strict=True)
        return sum(form.coefficient(index) // step * stride for form, step, stride in axes)


def local_tiles(table: Table, schedule: Schedule, chunks: Mapping[str, int] | None = None) -> dict[Operand, LocalTile]:
    """The tiles of the operands that pass through local memory: one serves all taps of a filter."""
    sizes = {}
    for index in table.indexes:
        tile = schedule.tile(index.name)
        chunk = {**schedule.chunks, **(chunks or {})}.get(index.name, index.extent)
        sizes[index.name] = min(tile.step if index.is_output else chunk, index.extent)
    names = operand_names(table)
    found = {}
    for key in schedule.local:
        operand = names[key]
        extents, steps = [], []
        for _, form in operand.axes:
            # Indexes of one value do not move; the others' greatest common step is that of memory's values.
            factors = [abs(factor) for name, factor in form.terms if sizes[name] > 1]
            step = math.gcd(*factors) or math.gcd(*(abs(factor) for _, factor in form.terms)) or 1
            extents.append(1 + sum(abs(f) // step * (sizes[name] - 1) for name, f in form.terms if sizes[name] > 1))
            steps.append(step)
        # The lanes of a vector come last, and rows after multiples of them; else the axis that lies closest in memory,
        # and rows an odd length apart: no bank conflicts.
        lane = ((schedule.vector, 1),) if schedule.lanes > 1 else ()
        aligned = bool(lane) and any(form.terms == lane for _, form in operand.axes)
        axes = sorted(
            range(len(extents)),
            key=lambda axis: (aligned and operand.axes[axis][1].terms == lane, -abs(operand.axes[axis][0])),
        )
        strides, size = [0] * len(extents), 1
        for axis in reversed(axes):
            if schedule.shared[0] in operand.axes[axis][1].indexes and not aligned:
                size += 1 - size % 2  # Work-items that share an index read one value of it each.
            strides[axis] = size
            size *= extents[axis]
            if axis == axes[-1] and len(axes) > 1:
                size = (size // schedule.lanes + 1) * schedule.lanes if aligned else size + 1 - size % 2
        # Loads of every second element read one more.
        size += schedule.lanes > 1
        found[operand] = LocalTile(tuple(extents), tuple(steps), tuple(strides), size, aligned)
    return found
