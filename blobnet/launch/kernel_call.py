"""A launch as data: which kernel, on which blobs and arrays, with which macros and work size.

Layers make calls without a device; the executor binds and launches them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError
from blobnet.hardware.device_model import HOST, DeviceModel
from blobnet.launch import kernel_source
from blobnet.launch.kernel_source import Macro
from blobnet.launch.task import BrokenVariant, Task, TunedChoices, Variant
from blobnet.memory.blob import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Axis,
    BlobLayout,
    Padding,
    Shape,
    StorageType,
    storage_type,
)

#: The precisions of a network: what products round their factors to on tensor cores (tf32: to the first 10 bits of the
#: fraction), and the type of numbers between layers; cells of tf32 are rounded, too. Sums, statistics, weights and
#: losses are float32 in all.
PRECISIONS = {
    "fp32": ("fp32", FLOAT32),
    "tf32": ("tf32", FLOAT32),
    "bf16": ("bf16", BFLOAT16),
    "fp16": ("fp16", FLOAT16),
}


def settle(precision: str, storage: str) -> tuple[str, StorageType]:
    """Return one of PRECISIONS and the storage of numbers between layers, where either may be said alone.

    fp32 and float32 are what is said where nothing is. A narrow storage by itself is the precision of that storage.

    Raises:
        OptionError: there is no such storage, or the precision has another one.
    """
    own, asked = PRECISIONS[precision][1], storage_type(storage)
    if precision == "fp32" and asked != FLOAT32:
        return next(name for name, (_, kind) in PRECISIONS.items() if kind == asked), asked
    if own != FLOAT32 and asked not in (own, FLOAT32):
        rule = f"precision {precision} keeps {own.name} between layers"
        raise OptionError("storage", rule, storage=storage, hint="leave one of the two out.")
    return precision, own if asked == FLOAT32 else asked


#: The phase of calls that run whenever parameters have changed.
CONSTANT = "constant"
#: The kernel that clears halos; and what the one does that the planner needs where blobs cannot share memory.
ZERO_HALO, COPYING = "blob/zero_halo", "copying blobs"
#: The tables of calls that combine others.
TABLES = "tables"
#: The samples of each shard of a step, of calls that are made for all of them.
SHARD_COUNTS = "samples of shards"
#: Floats that a GPU loads at once.
_QUAD = 4


@dataclass(frozen=True)
class Blob:
    """A blob as a call sees it: the storage that holds it, and its layout there.

    ``is_memory``: it lies in memory that a layer asked for (LayerContext.memory), and has no halo.
    """

    storage: str
    layout: BlobLayout
    is_memory: bool = False
    type: StorageType = FLOAT32

    @property
    def shape(self) -> Shape:
        """The units, and the axes of each."""
        planes = self.layout.shape
        return planes if self.type.cell == 1 else planes.with_units(planes.units * self.type.cell)

    def part(self, first: int, units: int) -> Blob:
        """Return some of its units, in whole elements, from the first one on."""
        cell = self.type.cell
        return replace(self, layout=self.layout.slice_units(first // cell, units // cell))

    def in_cells(self, kind: StorageType) -> Blob:
        """Return the blob with cells for elements, if its units fill them."""
        layout, cell = self.layout, kind.cell
        units = {name: getattr(layout, name) // cell for name in ("unit_count", "unit_offset", "unit_memory_count")}
        return replace(self, layout=replace(layout, **units), type=kind)

    @property
    def numbers(self) -> BlobLayout:
        """The layout of the numbers that the host sees: of cells, units are cells, and rows as much longer."""
        layout, cell = self.layout, self.type.cell
        if cell == 1:
            return layout
        width = Axis(*(cell * part for part in layout.width))
        return replace(layout, width=width, plane_memory_elements=cell * layout.plane_memory_elements)

    def read(self, memory: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
        """Return the data of ``count`` samples, as they are in a host copy of the memory: (n, unit[, depth], y, x)."""
        data = self.numbers.data(memory, count)
        if self.type.cell == 1:
            return data
        # A cell has its units side by side.
        *outer, width = data.shape
        split = data.reshape(*outer, width // self.type.cell, self.type.cell)
        return np.moveaxis(split, -1, 2).reshape(count, *self.shape.dimensions)

    def write(self, memory: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Puts the data of the first samples, (n, unit[, depth], y, x), rounded, into a host copy of the memory."""
        cell, data = self.type.cell, self.numbers.data(memory, len(values))
        numbers = self.type.encode(values)
        if cell > 1:
            numbers = numbers.reshape(len(values), self.layout.unit_count, cell, *data.shape[2:-1], -1)
            numbers = np.moveaxis(numbers, 2, -1)
        data[...] = numbers.reshape(data.shape)


@dataclass(frozen=True)
class Array:
    """A plain run of elements: a parameter, its gradient, or memory that a layer asks for.

    It holds ``elements + count * per_sample`` elements of ``type`` for a batch of ``count``, from ``offset`` on; or for
    every batch as many as for a whole one, if samples lie ``side_by_side``. No plan reuses ``persistent`` memory.
    """

    storage: str
    elements: int
    per_sample: int = 0
    offset: int = 0
    persistent: bool = False
    side_by_side: bool = False
    type: StorageType = FLOAT32

    def end(self, count: int) -> int:
        """Return its end in its storage, of which it may be a part, for a batch of ``count``."""
        return self.offset + self.elements + count * self.per_sample


class ArrayKind(Enum):
    """What a layer asks for an array for. The value of the first two is the storage that holds all of them."""

    PARAMETER = "parameters"
    GRADIENT = "gradients"
    #: Memory of the layer's own, from the first call that names it to the last.
    MEMORY = "memory"
    #: The same, which all shards of a process have together.
    COMMON = "common"
    #: Memory that is filled from outside: samples, rows, the step.
    SHARED = "shared"


class ArrayHandle(NamedTuple):
    """What a layer calls an array by; the plan says where it lies (LayerContext.array).

    Attributes:
        kind: what it is for.
        name: within the layer, or of what is shared.
        elements, per_sample: float32 elements, and for each sample; 0 where the plan knows better.
    """

    kind: ArrayKind
    name: str
    elements: int = 0
    per_sample: int = 0


@dataclass(frozen=True)
class GlobalSize:
    """Work-items along each dimension.

    ``units`` is for one sample when ``per_sample``, and then times the batch; or, if a work-item takes ``samples`` of
    them at once, times the blocks of so many. With ``positions``, ``width`` is for one ``tile`` of the batch's
    positions, so many a sample, and for at most ``most`` tiles if not 0; nothing else grows with the batch.
    """

    width: int
    height: int = 1
    units: int = 1
    per_sample: bool = True
    samples: int = 1
    positions: int = 0
    tile: int = 1
    most: int = 0

    @property
    def grows(self) -> bool:
        """True if it depends on the batch."""
        return self.per_sample or self.positions > 0

    def of_batch(self, count: int) -> tuple[int, int, int]:
        """Work-items along each dimension for a batch of ``count``."""
        if self.positions:
            tiles = -(-count * self.positions // self.tile)
            return self.width * min(tiles, self.most or tiles), self.height, self.units
        return self.width, self.height, self.units * (-(-count // self.samples) if self.per_sample else 1)


@dataclass(frozen=True)
class Shards:
    """The shards that a launch serves, one behind the other along a dimension of its work-items.

    Attributes:
        count, dimension: how many there are at most, and along which dimension.
        moved: the roles whose memory is another one for each shard: by how many elements, and for each sample of one.
    """

    count: int
    dimension: int
    moved: Mapping[str, tuple[int, int]]

    def arguments(self, first: int, batch: Batch) -> list[np.generic]:
        """What KernelSource.of_shards takes, from shard ``first`` on."""
        moves = (np.int64(fixed + batch.room * each) for fixed, each in self.moved.values())
        return [np.int32(first), np.int32(batch.room if batch.apart is None else batch.apart), *moves]


@dataclass(frozen=True)
class KernelCall:
    """One launch.

    ``blobs`` and ``arrays`` give the kernel's roles. The macros of the roles, and GLOBAL_*, LOCAL_* and GAPLESS (no
    blob has anything between its rows) where the header asks, are added here. ``samples`` are those of the plan's batch
    that the launch takes, None for all: a batch without any of them goes without the launch. With ``shards`` it does
    for each of several shards what it else does for one (planning/sharding.py), and ``samples`` are those of each.
    ``gathers`` is the role of an array in which each shard of a step has left its part, side by side: the call is
    made once for all shards of a process, when those of all are there. ``combines`` are calls in whose place it is made
    (planning/combining.py), by KernelSource.of_several of their kernel. With ``constant_sizes`` the program is for
    these sizes alone, also where the header has them as arguments. ``generated`` is the kernel's source where it is no
    file of kernels/; ``kernel`` is its name then.

    ``label`` is for people: ``conv1 forward``. ``owner`` is the layer, loss or optimizer that the call is for (None:
    the plan's own clears a halo); of a layer ``vertex`` is the number in the graph, and ``direction`` is given. Of
    several ways to compute (blobnet/implementations) ``way`` is its own, ``task`` what that does, and ``cost`` what all
    its calls take (of the first, else 0). ``again`` makes its blob again for less; ``reason`` says why it moves values.
    """

    kernel: str
    label: str
    global_size: GlobalSize
    blobs: Mapping[str, Blob] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    macros: Mapping[str, Macro] = field(default_factory=dict)
    tunables: Mapping[str, int] = field(default_factory=dict)
    local_size: tuple[int, int, int] | None = None
    way: Variant | None = None
    task: Task | None = None
    cost: float | None = field(default=None, compare=False, repr=False)
    samples: range | None = None
    shards: Shards | None = None
    gathers: str = ""
    combines: tuple[KernelCall, ...] = ()
    constant_sizes: bool = False
    owner: object = field(default=None, repr=False)
    vertex: int | None = None
    direction: str = ""
    generated: kernel_source.KernelSource | None = None
    reason: str = ""
    again: KernelCall | None = field(default=None, compare=False, repr=False)

    @property
    def source(self) -> kernel_source.KernelSource:
        """The kernel's text, and what it takes."""
        return self.generated or kernel_source.load(self.kernel)

    def storages(self, *accesses: str) -> set[str]:
        """The storages that the kernel uses in one of these ways: ``read``, ``write``, ``update``."""
        source = self.source
        blobs = {blob.storage for role, blob in self.blobs.items() if source.blobs[role] in accesses}
        return blobs | {array.storage for role, array in self.arrays.items() if source.arrays[role] in accesses}

    def assemble(self) -> str:
        """The source text for the driver.

        Raises:
            KernelError: roles or macros differ from those that the header declares.
        """
        return self._text

    @cached_property
    def _text(self) -> str:
        """Asked for when programs are built and again when launches are bound; equal ones are one object."""
        source = self.source
        subject = f"kernel {self.kernel} ({self.label})"
        kernel_source.check_names(subject, "blobs", self.blobs, source.blobs)
        kernel_source.check_names(subject, "arrays", self.arrays, source.arrays)
        numbers = self._numbers
        kernel_source.check_names(subject, "scalars", numbers.keys() & set(source.sizes), source.sizes)
        macros = {name: value for name, value in numbers.items() if name not in source.sizes}
        blob_macros: dict[str, Macro] = {}
        for role, blob in self.blobs.items():
            blob_macros |= blob.layout.macros(role, as_argument=self.passes_geometry, plain=self.has_plain_blobs)
        types = {role: blob.type for role, blob in self.blobs.items()}
        types |= {role: array.type for role, array in self.arrays.items()}
        blob_macros |= source.storage_macros(types)
        if "CELL_UNITS" in blob_macros and all(array.offset % _QUAD == 0 for array in self.arrays.values()):
            blob_macros["ALIGNED_ARRAYS"] = 1
        sizes = self.sizes if self.constant_sizes else None
        return sys.intern(source.assemble(macros, blob_macros, sizes, plain=self.has_plain_blobs))

    @property
    def moves(self) -> str | None:
        """The purpose of a call that only moves data: ``packing weights``; None if it computes."""
        return None if self.macros.get("ACCUMULATE") else self.source.moves

    def bytes(self, count: int) -> int:
        """Bytes of all that it reads and writes for a batch of ``count``, once each: data cells, and whole arrays.

        A kernel that writes zeros alone writes the halo.
        """
        if self.combines:
            return (self.shards.count if self.shards else 1) * sum(call.bytes(count) for call in self.combines)
        samples = len(self.samples_of(count))
        size = sum(
            (array.elements + samples * array.per_sample) * array.type.itemsize for array in self.arrays.values()
        )
        for blob in self.blobs.values():
            layout = blob.layout
            cells = layout.halo_elements if self.kernel == ZERO_HALO else layout.unit_elements
            size += samples * layout.unit_count * cells * blob.type.itemsize
        return size

    @property
    def halos_read(self) -> set[str]:
        """The storages of the blobs that the kernel reads with their halo."""
        source = self.source
        roles = {role for role, access in source.blobs.items() if access == "read"} - source.data_alone
        return {blob.storage for role, blob in self.blobs.items() if role in roles}

    @property
    def passes_geometry(self) -> bool:
        """True if the sizes of blobs are arguments of the kernel."""
        return self.source.sizes_as_arguments and not self.constant_sizes

    @property
    def has_plain_blobs(self) -> bool:
        """True if the program need know nothing of planes within units, nor of rows with zeros of their own."""
        return all(blob.layout.is_plain for blob in self.blobs.values())

    @property
    def _numbers(self) -> dict[str, Macro]:
        """The macros and sizes that the header lists: those of the call, and the work sizes for which it asks."""
        source, work = self.source, {}
        for axis, name in enumerate(("WIDTH", "HEIGHT", "UNITS")):
            work[f"GLOBAL_{name}"] = self.dimensions[axis]
            work[f"LOCAL_{name}"] = (self.local_size or (1, 1, 1))[axis]
        layouts = [blob.layout for blob in self.blobs.values()]
        if layouts:
            work["PLANES"] = -(-layouts[0].plane_count // self.global_size.units)
        work["GAPLESS"] = int(all(layout.width.memory == layout.width.size for layout in layouts))
        asked = {name: work[name] for name in (*source.macros, *source.sizes) if name in work}
        return {**self.macros, **self.tunables, **asked}

    def for_shards(self, count: int, moved: Mapping[str, tuple[int, int]]) -> KernelCall:
        """The call for each of up to ``count`` shards, whose memory Shards.moved tells apart."""
        # Along the dimension with the fewest work-groups, of those that do not grow with the batch.
        size, local = self.work_size(1), self.local_size or (1, 1, 1)
        groups = [whole // part for whole, part in zip(size, local, strict=True)]
        has_positions = self.global_size.positions > 0
        grows = [has_positions, False, self.global_size.per_sample and not has_positions]
        dimension = min((number for number in (2, 1, 0) if not grows[number]), key=lambda number: groups[number])
        source = self.source.of_shards(moved, dimension, groups[dimension])
        return replace(self, shards=Shards(count, dimension, moved), generated=source)

    @property
    def each(self) -> tuple[KernelCall, ...]:
        """The calls that it combines, or itself."""
        return self.combines or (self,)

    @property
    def table(self) -> list[int]:
        """The rows for those that it combines (KernelSource.of_several)."""
        table, first = list[int](), 0
        for call in self.combines:
            begins = [call.arrays[role].offset - self.arrays[role].offset for role in call.source.arrays]
            table += [first, *begins, *call.sizes.values()]
            first += call.groups
        return table

    @property
    def groups(self) -> int:
        """Work-groups of a call along the width alone, which does not depend on the batch."""
        return -(-self.global_size.width // (self.local_size or (1, 1, 1))[0])

    @property
    def fault(self) -> BrokenVariant | None:
        """The variant to avoid if a driver does not build the kernel: with any tile, or else with this one alone."""
        if self.way is None:
            return None
        return BrokenVariant.of(self.task, Variant(self.way.variant)) if self.task else BrokenVariant(self.way)

    @property
    def sizes(self) -> dict[str, int]:
        """The values of the scalars that do not depend on the batch."""
        numbers = self._numbers
        return {name: int(numbers[name]) for name in self.source.sizes}

    @property
    def dimensions(self) -> tuple[int, int, int]:
        """GLOBAL_WIDTH, GLOBAL_HEIGHT, GLOBAL_UNITS: the work of one sample, not rounded to the local size."""
        return self.global_size.width, self.global_size.height, self.global_size.units

    def samples_of(self, count: int) -> range:
        """The samples of a batch, or of a shard, of ``count`` that this launch takes."""
        return range(count) if self.samples is None else self.samples[: max(0, count - self.samples.start)]

    def parts(self, count: int, of_shard: int) -> list[tuple[range, range]]:
        """The launches for a batch of ``count``: the shards of each, and the samples that it takes of each of them.

        A call for several shards is a launch for the full ones, of ``of_shard`` samples, and one for what is left.
        """
        parts = [(range(1), self.samples_of(count))]
        if self.shards is not None:
            full, rest = divmod(count, of_shard)
            parts = [(range(full), self.samples_of(of_shard)), (range(full, full + 1), self.samples_of(rest))]
        is_always = self.samples is None and self.shards is None
        return [(shards, samples) for shards, samples in parts if shards and (samples or is_always)]

    def work_size(self, count: int, shards: int = 1) -> tuple[int, int, int]:
        """The global size for ``count`` samples, of each of ``shards``; each dimension a multiple of the local one."""
        local = self.local_size or (1, 1, 1)
        sizes = [rounded_up(*pair) for pair in zip(self.global_size.of_batch(count), local, strict=True)]
        if self.shards is not None:
            sizes[self.shards.dimension] *= shards
        return sizes[0], sizes[1], sizes[2]


@dataclass(frozen=True)
class Batch:
    """The samples that launches are for.

    Attributes:
        count: how many there are on the device.
        of_shard: those of each of the shards that they are, but for the last one, which may have less; None: all.
        whole: how many there are in what batch norms are over, where that is the batches of several shards.
        shard: the number of the shard that they are.
        first: the number of the first one within its step, which may be made of several batches (random numbers).
        apart: by how many the number of the first one of a shard is beyond that of the shard before; None: of_shard.
        divisor: what the sum of the samples' losses is divided by, for each output of the network; ``count`` if None.
    """

    count: int
    of_shard: int | None = None
    whole: int | None = None
    shard: int = 0
    first: int = 0
    apart: int | None = None
    divisor: float | tuple[float, ...] | None = None

    def of_output(self, number: int, weight: float = 1.0) -> Batch:
        """The batch for the loss of one output, which is multiplied by a weight; a divisor of 0 is 1."""
        divisor = self.divisor[number] if isinstance(self.divisor, tuple) else self.divisor
        divisor = self.count if divisor is None else divisor or 1.0
        return replace(self, divisor=divisor / weight if weight else math.inf)

    @property
    def room(self) -> int:
        """The samples of a full shard."""
        return self.of_shard or max(1, self.count)

    def scalars(self, samples: range) -> dict[str, int | float]:
        """The values of all scalar arguments that kernels may have, for a launch that takes these samples.

        An int is a kernel's ``int``, a float its ``float``.
        """
        return {
            "COUNT": len(samples),
            "WHOLE": len(samples) if self.whole is None else self.whole,
            "SHARD": self.shard,
            "FILLED_SHARDS": -(-self.count // self.room),
            "FIRST": samples.start,
            "FIRST_SAMPLE": self.first + samples.start,
            "DIVISOR": float(self.count if self.divisor is None or isinstance(self.divisor, tuple) else self.divisor),
        }


@dataclass(frozen=True)
class Tuning:
    """The facts by which kernels are chosen: of the device, one of PRECISIONS for products, and variants.

    ``padding`` is how plans pad blobs, and ``storage`` what the numbers of those between the layers are in plans for
    inference; weights, results and sums are float32. ``cells`` is their type where blobs may have cells for elements;
    None: none may. ``chosen`` has what was chosen by this for an operation, so that layers that are alike are looked at
    once; each plan has its own (planning/plan.py).
    """

    model: DeviceModel = HOST
    precision: str = "fp32"
    choices: TunedChoices = field(default_factory=TunedChoices)
    padding: Padding = field(default_factory=Padding)
    storage: StorageType = FLOAT32
    cells: StorageType | None = None
    chosen: dict[object, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def of(self, kernel: str) -> dict[str, int]:
        """The tunables of ``kernel``."""
        return kernel_source.load(kernel).tuning(self.model)


def for_model(calls: Iterable[KernelCall], model: DeviceModel) -> list[KernelCall]:
    """The calls with programs for a device.

    A GPU's serve any size, since building them takes long. A CPU's compiler makes better loops of most kernels where it
    knows their length (docs/kernels.md).
    """
    return [replace(call, constant_sizes=not (model.is_simt or call.source.sizes_everywhere)) for call in calls]


def rounded_up(size: int, step: int) -> int:
    """``size`` up to the next multiple of ``step``."""
    return -(-size // step) * step
