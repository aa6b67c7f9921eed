"""How a table becomes a kernel: one short value that search proposes, tests force, and reports print.

    join y x; tile o 1x1x48; tile y_x 1x4x7; vector o 16; pack W; unroll a b; order n y_x o i a b

Its text is a list of settings, of which each may be missing:

    peel x          of an output index the values that always meet its constraints; the others have kernels of their own
    join y x        two neighbours are one index, y_x (of more, from left to right)
    tile o 8x2x6    of an output index: work-items side by side x tiles that a work-item makes one after another x
                    results in registers
    vector o 16     lanes of an index, which are consecutive values of it
    chunk i 8       values of a reduction index whose operands are in local memory at a time (all of it without)
    unroll a b      reduction indexes that are written out
    local I W       operands that pass through local memory
    pack W          operands that a kernel before lays out so that the lanes of the vector lie side by side
    split n 4       a reduction index in so many parts, whose partial results a second kernel combines
    order n o y x i a b   outputs, the index of work-groups that changes fastest last; then reductions, innermost last
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from blobnet.contraction.form import Position
from blobnet.contraction.table import Operand, Table, interior, joined, period_of, restricted
from blobnet.errors import OptionError, near_matches

#: Statements that the innermost loop is unrolled to at most, and results that a work-item keeps.
MOST_STATEMENTS = 2048
LANES = (1, 2, 4, 8, 16)


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
class Schedule:
    """See the head of this module. Indexes without a tile have one of 1x1x1."""

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

    def tile(self, index: str) -> Tile:
        """The tile of an output index."""
        return self.tiles.get(index, Tile())

    @property
    def threads(self) -> int:
        """Work-items of a group."""
        return math.prod(tile.threads for tile in self.tiles.values())

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        parts = [f"peel {self.peel}"] if self.peel else []
        parts += [f"join {' '.join(names)}" for names in self.joins]
        parts += [f"tile {name} {tile}" for name, tile in self.tiles.items() if tile != Tile()]
        parts += [f"vector {self.vector} {self.lanes}"] if self.lanes > 1 else []
        parts += [f"chunk {name} {size}" for name, size in self.chunks.items()]
        for word, names in (("unroll", self.unrolled), ("local", self.local), ("pack", self.packed)):
            parts += [f"{word} {' '.join(names)}"] if names else []
        parts += [f"split {self.split[0]} {self.split[1]}"] if self.split[1] > 1 else []
        parts += [f"order {' '.join(self.order)}"] if self.order else []
        return "; ".join(parts)

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that a text describes.

        Raises:
            OptionError: it is none.
        """
        made = cls()
        for part in text.split(";"):
            word, *names = part.split() or [""]
            if not word:
                continue
            try:
                made = _with(made, word, names)
            except OptionError:
                raise
            except ValueError as error:
                raise _bad(f"{part.strip()!r} is no setting", hint="see blobnet/contraction/schedule.py.") from error
        return made


def _with(made: Schedule, word: str, names: list[str]) -> Schedule:
    def number(text: str) -> int:
        if int(text) < 1:
            raise ValueError(text)
        return int(text)

    if word == "peel":
        (name,) = names
        return replace(made, peel=name)
    if word == "join" and len(names) > 1:
        return replace(made, joins=(*made.joins, tuple(names)))
    if word == "tile":
        name, sizes = names
        threads, walk, block = map(number, sizes.split("x"))
        return replace(made, tiles={**made.tiles, name: Tile(threads, walk, block)})
    if word in ("vector", "split"):
        name, size = names
        if word == "split":
            return replace(made, split=(name, number(size)))
        return replace(made, vector=name, lanes=number(size))
    if word == "chunk":
        name, size = names
        return replace(made, chunks={**made.chunks, name: number(size)})
    fields = {"unroll": "unrolled", "local": "local", "pack": "packed", "order": "order"}
    if word not in fields or not names:
        known = [*fields, "peel", "join", "tile", "vector", "split"]
        raise _bad(f"{word!r} is no setting", hint=near_matches(word, known))
    return replace(made, **{fields[word]: tuple(names)})  # type: ignore[arg-type]


def _bad(rule: str, hint: str | None = None, **received: object) -> OptionError:
    return OptionError("schedule", rule, hint=hint, **received)


def prepared(table: Table, schedule: Schedule) -> Table:
    """The table of a schedule's main kernel: without the border of what is peeled, its indexes joined.

    Raises:
        OptionError: they cannot be.
    """
    if schedule.peel:
        _known(table, [schedule.peel])
        if not can_peel(table, schedule.peel):
            rule = f"{schedule.peel} must be an output index in constraints with others, which some of its values meet"
            raise _bad(rule, schedule=schedule)
        table = restricted(table, schedule.peel, interior(table, schedule.peel))
    for names in schedule.joins:
        outer = names[0]
        for inner in names[1:]:
            _known(table, (outer, inner))
            if not period_of(table, outer, inner):
                rule = f"{outer} and {inner} must be the same distance apart in every operand to be joined"
                raise _bad(rule, schedule=schedule)
            table = joined(table, outer, inner)
            outer = f"{outer}_{inner}"
    return table


def can_peel(table: Table, name: str) -> bool:
    """Whether an output index can be peeled."""
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


def operand_names(table: Table) -> dict[str, Operand]:
    """What schedules call the operands of the terms: by tensor, the second of the same tensor W.2, and so on."""
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
    """Whether a schedule is one for a table (that is :func:`prepared` for it) on a device.

    Raises:
        OptionError: it is not, and why.
    """
    extents, names = table.extents, operand_names(table)
    outputs = {index.name for index in table.outputs}
    _known(table, [*schedule.tiles, *schedule.chunks, *schedule.unrolled, *schedule.order])
    _known(table, [name for name in (schedule.vector, schedule.split[0]) if name])
    tied = constrained(table)
    for name in (*schedule.local, *schedule.packed):
        if name not in names:
            raise _bad(f"there is no operand {name!r}", hint=near_matches(name, list(names)))
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
        if tile.step > extents[name] and not (schedule.packed and name == schedule.vector):
            raise _bad(f"a tile of {name} must not be larger than its range", range=extents[name], schedule=schedule)
    for name in schedule.unrolled:
        if name in outputs or name in tied or name in (schedule.vector, table.sample_reduction):
            rule = f"{name} must be a reduction index without constraints or lanes, not over samples, to be unrolled"
            raise _bad(rule, schedule=schedule)
    if statements(table, schedule) > MOST_STATEMENTS:
        rule = f"the innermost loop must have no more than {MOST_STATEMENTS} multiply-adds"
        raise _bad(rule, multiply_adds=statements(table, schedule), schedule=schedule)
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
    if parts > 1 and (part in outputs or extents[part] % parts or parts > extents[part]):
        raise _bad(
            f"{part} must be a reduction index whose range the parts divide", range=extents[part], schedule=schedule
        )
    if schedule.lanes > 1:
        _check_vector(table, schedule, outputs, tied)
    elif schedule.packed:
        raise _bad("operands are packed for the lanes of a vector, and there is none", schedule=schedule)
    if schedule.threads > most_threads:
        raise _bad(f"a work-group must have no more than {most_threads} work-items", schedule=schedule)
    if schedule.local:
        used = 4 * sum(tile.elements for tile in local_tiles(table, schedule).values())
        if used > local_memory:
            raise _bad(f"local memory has {local_memory} bytes", needed=used, schedule=schedule)


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
            strides[axis] = size
            size *= extents[axis]
            if axis == axes[-1] and len(axes) > 1:
                size = (size // schedule.lanes + 1) * schedule.lanes if aligned else size + 1 - size % 2
        # Loads of every second element read one more.
        size += schedule.lanes > 1
        found[operand] = LocalTile(tuple(extents), tuple(steps), tuple(strides), size, aligned)
    return found
