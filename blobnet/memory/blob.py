"""The memory of a BLOB: one layout, one index equation (docs/memory_layout.md).

Names are those of Table 1 in Hedberg, *Guidelines and Conventions* (2015): once as the fields below, once as the
macros that :meth:`BlobLayout.macros` makes of them. The equation stands twice in the project: :meth:`BlobLayout.index`
for Python and ``BLOB_INDEX`` in ``kernels/blob.h`` for kernels.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError, ShapeError, near_matches

FloatArray = npt.NDArray[np.float32]
Pair = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class StorageType:
    """The type of numbers in memory; kernels compute in ``real_t`` and sum up in ``accumulator_t`` (kernels/blob.h).

    Attributes:
        name: for people.
        c_type: what kernels call it; ``real_t`` where numbers are in memory what kernels compute with.
        dtype: NumPy's name of numbers with as many bits.
        epsilon: from 1 to the next number.
        needs_loss_scale: whether its range is so small that deltas must be scaled (blobnet/losses/base.py).
        cell: units of an element, of one position and side by side (docs/memory_layout.md): a blob of *cells* is a
            blob whose elements are vectors, of a ``cell``-th of the units.
    """

    name: str
    c_type: str
    dtype: str
    epsilon: float
    needs_loss_scale: bool = False
    cell: int = 1

    @property
    def number_size(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.dtype).itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.cell * self.number_size

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return numbers as they are in memory, rounded to the nearest: an array of ``dtype``."""
        if self.c_type in (TF32.c_type, TF32_CELLS.c_type):
            bits = np.asarray(values, np.float32).view(np.uint32)
            rounded = np.where(np.isfinite(bits.view(np.float32)), (bits + 0x1000) & ~np.uint32(0x1FFF), bits)
            return rounded.astype(np.uint32).view(np.float32)
        if self.dtype != BFLOAT16.dtype:
            return np.asarray(values).astype(self.dtype)
        bits = np.asarray(values, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(bits.view(np.float32)), 0x7FC0, rounded).astype(np.uint16)

    def decode(self, memory: npt.NDArray[Any]) -> FloatArray:
        """Return the numbers that are in memory."""
        if self.dtype != BFLOAT16.dtype:
            return memory.astype(np.float32, copy=False)
        return (memory.astype(np.uint32) << 16).view(np.float32)


FLOAT32 = StorageType("float32", "real_t", "float32", 2.0**-23)
FLOAT16 = StorageType("float16", "half", "float16", 2.0**-10, needs_loss_scale=True)
#: The first 16 bits of a float32: its sign, its 8 bits of exponent and 7 of its fraction.
BFLOAT16 = StorageType("bfloat16", "bfloat_t", "uint16", 2.0**-7)
#: Floats rounded to what tensor cores read of them (kernels/tf32.h): of cells alone, of 16 bytes as all on GPUs.
TF32 = StorageType("float32", "tf32_t", "float32", 2.0**-10)
TF32_CELLS = replace(TF32, c_type="tf32_cell_t", cell=4)
#: Units of other cells.
CELL_UNITS = 8
FLOAT32_CELLS = replace(FLOAT32, c_type="float8", cell=CELL_UNITS)
FLOAT16_CELLS = replace(FLOAT16, c_type="half_cell_t", cell=CELL_UNITS)
BFLOAT16_CELLS = replace(BFLOAT16, c_type="bfloat_cell_t", cell=CELL_UNITS)
#: What cells have numbers of.
NUMBERS_OF = {FLOAT32_CELLS: FLOAT32, TF32_CELLS: TF32, FLOAT16_CELLS: FLOAT16, BFLOAT16_CELLS: BFLOAT16}
#: The cells that products take, by what they round factors to.
CELLS_OF = {"fp32": FLOAT32_CELLS, "tf32": TF32_CELLS, "bf16": BFLOAT16_CELLS, "fp16": FLOAT16_CELLS}
#: The types that plans may ask for, by name.
STORAGE_TYPES = {kind.name: kind for kind in (FLOAT32, FLOAT16, BFLOAT16)}


def storage_type(name: str) -> StorageType:
    """The type of a name.

    Raises:
        OptionError: there is none.
    """
    if name not in STORAGE_TYPES:
        hint = near_matches(name, list(STORAGE_TYPES))
        raise OptionError("storage", f"it must be one of {', '.join(STORAGE_TYPES)}", storage=name, hint=hint)
    return STORAGE_TYPES[name]


#: The spatial axes that there may be, the outermost first, and how many they are.
AXIS_NAMES = ("depth", "height", "width")
AXES = len(AXIS_NAMES)

#: The names of Table 1 that are a part of an axis of the layout (:class:`Axis`), and which.
_OF_AXES = {
    name.format(axis.upper()): (axis, part)
    for axis in AXIS_NAMES
    for name, part in (
        ("UNIT_{}", "size"),
        ("UNIT_MEMORY_{}", "memory"),
        ("UNIT_MEMORY_{}_OFFSET", "before"),
        ("UNIT_MEMORY_{}_PADDING", "after"),
    )
}
#: The numbers of a layout that are macros of a role, if every blob of a call is plain (:attr:`BlobLayout.is_plain`).
_SIZES = (
    "UNIT_COUNT",
    "UNIT_MEMORY_COUNT",
    "UNIT_WIDTH",
    "UNIT_HEIGHT",
    "UNIT_ELEMENTS",
    "UNIT_MEMORY_WIDTH",
    "UNIT_MEMORY_HEIGHT",
    "UNIT_MEMORY_ELEMENTS",
    "UNIT_MEMORY_WIDTH_PADDING",
    "UNIT_MEMORY_HEIGHT_PADDING",
    "UNIT_MEMORY_WIDTH_OFFSET",
    "UNIT_MEMORY_HEIGHT_OFFSET",
    "MEMORY_ELEMENTS",
)
#: The numbers that are macros besides if one is not plain; and their values in a plain blob, whose units are planes.
_PLANE_SIZES = {
    "UNIT_DEPTH": "1",
    "UNIT_MEMORY_DEPTH": "1",
    "UNIT_MEMORY_DEPTH_PADDING": "0",
    "UNIT_MEMORY_DEPTH_OFFSET": "0",
    "PLANE_COUNT": "UNIT_COUNT",
    "PLANE_ELEMENTS": "UNIT_ELEMENTS",
    "PLANE_MEMORY_ELEMENTS": "UNIT_MEMORY_ELEMENTS",
    "PLANE_EXTENT": "(UNIT_MEMORY_HEIGHT * UNIT_MEMORY_WIDTH + UNIT_MEMORY_WIDTH_OFFSET)",
}
#: Sizes that kernels divide by: where these are arguments, so is what a quotient is made of without a division.
_DIVISORS = ("UNIT_COUNT", "UNIT_WIDTH", "UNIT_ELEMENTS")
_PLANE_DIVISORS = ("UNIT_HEIGHT", "UNIT_DEPTH", "PLANE_COUNT", "PLANE_ELEMENTS")
_PARTS = ("MULTIPLIER", "SHIFT")


def _sizes(plain: bool) -> tuple[str, ...]:
    """The numbers of a layout, where all blobs of a call are plain or not."""
    return _SIZES if plain else (*_SIZES, *_PLANE_SIZES)


def _divisors(plain: bool) -> tuple[str, ...]:
    """Those that kernels divide by."""
    return _DIVISORS if plain else (*_DIVISORS, *_PLANE_DIVISORS)


def _fields(plain: bool) -> tuple[str, ...]:
    """The numbers of the argument that holds a layout, for kernels whose program should not depend on them."""
    return (*_sizes(plain), *(f"{name}_{part}" for name in _divisors(plain) for part in _PARTS))


def geometry_type(plain: bool) -> str:
    """The type of that argument, in C; ``plain`` says whether all blobs of the call are."""
    return f"typedef struct {{ int {', '.join(name.lower() for name in _fields(plain))}; }} geometry_t;"


@dataclass(frozen=True, init=False)
class Shape:
    """The shape of one sample: ``Shape(units, *sizes)``, the sizes of up to three spatial axes, the outermost first.

    (units, depth, height, width), (units, height, width), (units, width) or (units,); axes that are not there have the
    size 1.
    """

    units: int
    sizes: tuple[int, ...]

    def __init__(self, units: int, *sizes: int) -> None:
        if len(sizes) > AXES:
            raise ShapeError("shape", f"there are at most {AXES} spatial axes", units=units, sizes=sizes)
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "sizes", sizes)

    @classmethod
    def flat(cls, units: int) -> Shape:
        """The shape of ``units`` values without spatial axes."""
        return cls(units)

    @property
    def rank(self) -> int:
        """The spatial axes that users see."""
        return len(self.sizes)

    @property
    def axes(self) -> tuple[int, int, int]:
        """(depth, height, width)."""
        depth, height, width = _leading(self.sizes, 1)
        return depth, height, width

    @property
    def depth(self) -> int:
        """Planes of a unit."""
        return self.axes[0]

    @property
    def height(self) -> int:
        """Rows of a plane."""
        return self.axes[1]

    @property
    def width(self) -> int:
        """Values in a row."""
        return self.axes[2]

    @property
    def planes(self) -> int:
        """Planes of all units."""
        return self.units * self.depth

    @property
    def positions(self) -> int:
        """Values in one unit."""
        return math.prod(self.sizes)

    @property
    def elements(self) -> int:
        """Values in one sample."""
        return self.units * self.positions

    @property
    def one_unit(self) -> Shape:
        """All rows of a unit as one plane: the work of kernels that loop over the units."""
        return Shape(1, self.depth * self.height, self.width)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The axes that users see, batch left out: (units[[[, depth], height], width])."""
        return (self.units, *self.sizes)

    def with_units(self, units: int) -> Shape:
        """Return a shape of the same axes with another number of units."""
        return Shape(units, *self.sizes)

    def __str__(self) -> str:
        return "(" + ", ".join(str(size) for size in self.dimensions) + ")"

    def __repr__(self) -> str:
        return f"Shape{self}"


@dataclass(frozen=True, init=False)
class Halo:
    """Zeros that some reader needs around the data of every unit: ``Halo(*sides)``.

    ``sides`` are (before, after) for each spatial axis, the outermost first: ``Halo((top, bottom), (left, right))``.
    Outer axes without any may be left out; ``Halo()`` is none at all.
    """

    sides: tuple[Pair, ...]

    def __init__(self, *sides: Pair) -> None:
        given = tuple((int(before), int(after)) for before, after in sides)
        while given and given[0] == (0, 0):
            given = given[1:]
        object.__setattr__(self, "sides", given)

    @property
    def axes(self) -> tuple[Pair, Pair, Pair]:
        """(before, after) of depth, height and width."""
        depth, height, width = _leading(self.sides, (0, 0))
        return depth, height, width

    @property
    def top(self) -> int:
        """Rows above the data."""
        return self.axes[1][0]

    @property
    def bottom(self) -> int:
        """Rows below the data."""
        return self.axes[1][1]

    @property
    def left(self) -> int:
        """Zeros left of each row."""
        return self.axes[2][0]

    @property
    def right(self) -> int:
        """Zeros right of each row."""
        return self.axes[2][1]

    def merged(self, other: Halo) -> Halo:
        """The smallest halo that serves both readers."""
        both = zip(self.axes, other.axes, strict=True)
        return Halo(*((max(a[0], b[0]), max(a[1], b[1])) for a, b in both))


@dataclass(frozen=True)
class Padding:
    """Padding besides the zeros that some reader needs.

    Attributes:
        own_zeros: whether each row has zeros of its own on both sides, so that a plane is its memory height times its
            memory width (Hedberg 2015, figure 1); else rows share them.
        align: what the row pitch, and the elements of a plane, are rounded up to a multiple of.
    """

    own_zeros: bool = False
    align: int = 1

    def pitch(self, width: int, halo: Halo) -> int:
        """The least elements from row to row."""
        return self.rounded_up(width + (halo.left + halo.right if self.own_zeros else max(halo.left, halo.right)))

    def rounded_up(self, elements: int) -> int:
        """The next multiple of ``align``."""
        return -(-elements // self.align) * self.align


class Axis(NamedTuple):
    """A spatial axis in memory: the data, and the zeros before and after it that are its own."""

    before: int
    size: int
    after: int

    @property
    def memory(self) -> int:
        """All of it."""
        return self.before + self.size + self.after


@dataclass(frozen=True)
class BlobLayout:
    """The layout of a blob in its buffer, in elements.

    A plane is ``height.memory`` rows at the pitch ``width.memory``. As a rule rows share their zeros: those left of row
    y+1 are also those right of row y, and after the last row follow ``width.before`` more. Where each row has its own
    zeros on both sides, nothing follows. Data, and the halo around it, fill the plane's first :attr:`plane_extent`
    elements; what is left up to ``plane_memory_elements`` is slack, which no kernel reads into a result.

    A unit is ``depth.memory`` planes, one after the other; where a value has less than three spatial axes, one.
    """

    unit_count: int
    unit_offset: int
    unit_memory_count: int
    depth: Axis
    height: Axis
    width: Axis
    plane_memory_elements: int

    @classmethod
    def padded(
        cls,
        shape: Shape,
        halo: Halo | None = None,
        *,
        pitch: int | None = None,
        slack: int = 0,
        padding: Padding | None = None,
    ) -> BlobLayout:
        """The layout of ``shape`` with ``halo`` zeros around each unit, in memory of its own (see :meth:`slice_units`).

        Args:
            shape: what it holds.
            halo: the zeros around each unit; None: no zeros.
            pitch: elements from row to row, which are rounded up; as few as possible if None.
            slack: elements after each plane.
            padding: how the zeros lie, and what is rounded up; None: rows share their zeros, and nothing is.

        Raises:
            ShapeError: the pitch does not hold the data and its halo.
        """
        halo, padding = halo or Halo(), padding or Padding()
        (front, back), (top, bottom), (left, _) = halo.axes
        needed = padding.pitch(shape.width, halo)
        pitch = needed if pitch is None else padding.rounded_up(pitch)
        height = Axis(top, shape.height, bottom)
        plane = height.memory * pitch + (0 if padding.own_zeros else left) + slack
        layout = cls(
            unit_count=shape.units,
            unit_offset=0,
            unit_memory_count=shape.units,
            depth=Axis(front, shape.depth, back),
            height=height,
            width=Axis(left, shape.width, pitch - left - shape.width),
            plane_memory_elements=padding.rounded_up(plane),
        )
        if pitch < needed or not layout.holds(halo):
            raise ShapeError("blob layout", "the row pitch must hold the data and its halo", pitch=pitch, halo=halo)
        return layout

    @cached_property
    def shape(self) -> Shape:
        """Its shape: units of planes, or of rows of planes."""
        depth = (self.depth.size,) if self.depth.size > 1 else ()
        return Shape(self.unit_count, *depth, self.height.size, self.width.size)

    def holds(self, halo: Halo) -> bool:
        """Return True if this layout has at least ``halo`` zeros on every side."""
        pairs = zip(halo.axes, self.zeros.axes, strict=True)
        return all(before <= zeros[0] and after <= zeros[1] for (before, after), zeros in pairs)

    @cached_property
    def zeros(self) -> Halo:
        """All zeros around the data; those after a row are those before the next one, too, where rows share them."""
        after_rows = self.plane_extent - self.height.memory * self.width.memory
        before = min(self.width.before, self.width.memory - self.width.size)
        depth, height = ((axis.before, axis.after) for axis in (self.depth, self.height))
        return Halo(depth, height, (before, self.width.after + after_rows))

    # -- Table 1 -----------------------------------------------------------------------------------------------------

    @property
    def unit_padding(self) -> int:
        """Units of the memory after this blob's own units."""
        return self.unit_memory_count - self.unit_offset - self.unit_count

    @property
    def unit_elements(self) -> int:
        """Data values in one unit."""
        return self.depth.size * self.plane_elements

    @property
    def plane_count(self) -> int:
        """Planes of data in one sample."""
        return self.unit_count * self.depth.size

    @property
    def plane_elements(self) -> int:
        """Data values in one plane."""
        return self.height.size * self.width.size

    @property
    def unit_memory_elements(self) -> int:
        """The stride between units."""
        return self.depth.memory * self.plane_memory_elements

    @property
    def memory_elements(self) -> int:
        """The stride between samples."""
        return self.unit_memory_count * self.unit_memory_elements

    @cached_property
    def plane_extent(self) -> int:
        """Elements at the start of a plane that are data or halo; the rest is slack."""
        rows = self.height.memory * self.width.memory
        return min(rows + self.width.before, self.plane_memory_elements)

    @property
    def halo_elements(self) -> int:
        """Zeros in one unit."""
        return self.depth.memory * self.plane_extent - self.unit_elements

    @cached_property
    def is_plain(self) -> bool:
        """True if a unit is one plane whose rows share their zeros: the layout that most kernels are made for."""
        rows = self.height.memory * self.width.memory
        return self.depth == (0, 1, 0) and self.plane_extent == rows + self.width.before

    @property
    def plane(self) -> tuple[object, ...]:
        """The numbers that two layouts must share for the halo of one to be zero in the other too."""
        return (
            self.depth,
            self.height.size,
            self.width.size,
            self.height.before * self.width.memory + self.width.before,
            self.width.memory,
            self.plane_extent,
            self.plane_memory_elements,
        )

    @property
    def is_contiguous(self) -> bool:
        """True if the data of one sample is one run of memory."""
        return self.unit_memory_elements == self.unit_elements

    def as_row(self) -> BlobLayout:
        """Units of a single value each as one row, if they are all there is in memory; else this layout."""
        if self.unit_memory_elements != 1 or self.unit_count != self.unit_memory_count:
            return self
        return BlobLayout.padded(Shape(1, self.unit_count))

    @property
    def strides(self) -> tuple[int, int, int, int, int]:
        """Elements from sample to sample, unit to unit, plane to plane, row to row, and value to value."""
        units, planes = self.unit_memory_elements, self.plane_memory_elements
        return self.memory_elements, units, planes, self.width.memory, 1

    def index(self, n: Any, z: Any, y: Any, x: Any) -> Any:
        """The index equation; takes integers or integer arrays.

        ``z`` counts planes: it is the unit, or, where a unit has several, plane ``z % unit_depth`` of unit
        ``z // unit_depth``.
        """
        return (
            x
            + self.width.before
            + self.width.memory * (self.height.before + y)
            + self.plane_memory_elements * (self.depth.before + z % self.depth.size)
            + self.unit_memory_elements * (self.unit_offset + z // self.depth.size)
            + self.memory_elements * n
        )

    def macros(self, role: str, *, as_argument: bool = False, plain: bool = True) -> dict[str, int | str]:
        """Table 1 as macros of ``role``; the unit offset is a kernel argument: moving a blob compiles nothing.

        Args:
            role: whose.
            as_argument: whether all sizes are arguments too, as fields of what :meth:`geometry` is for.
            plain: whether all blobs of the call are plain; such programs know nothing of planes within units.
        """
        argument = role.lower()
        values: dict[str, int | str] = {}
        for name in _fields(plain) if as_argument else _sizes(plain):
            values[f"{role}_{name}"] = f"{argument}_geometry.{name.lower()}" if as_argument else self._size(name)
        if plain:
            values |= _alike(role, as_argument)
        free = self.unit_memory_count - self.unit_count
        others = f"{role}_UNIT_MEMORY_COUNT - {role}_UNIT_COUNT" if as_argument else str(free)
        values[f"{role}_UNIT_OFFSET"] = f"{argument}_unit_offset"
        values[f"{role}_UNIT_PADDING"] = f"({others} - {argument}_unit_offset)"
        return values

    def geometry(self, plain: bool) -> npt.NDArray[np.int32]:
        """The value of an argument of :func:`geometry_type`."""
        values = [self._size(name) for name in _sizes(plain)]
        for name in _divisors(plain):
            values += _reciprocal(self._size(name))
        return np.array(values, np.int64).astype(np.int32)

    def _size(self, name: str) -> int:
        """Return the value of a macro by its name."""
        axis, part = _OF_AXES.get(name, ("", ""))
        value: int = getattr(getattr(self, axis), part) if axis else getattr(self, name.lower())
        return value

    def slice_units(self, first: int, count: int) -> BlobLayout:
        """The layout of ``count`` of this blob's units, from ``first`` on, in the same memory."""
        return replace(self, unit_offset=self.unit_offset + first, unit_count=count)

    def data(self, buffer: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
        """The data of ``count`` samples as a strided view of a host copy of the buffer.

        (n, unit, y, x), or (n, unit, plane, y, x) where a unit has several planes.
        """
        step = buffer.itemsize
        fits = buffer.flags.c_contiguous and count * self.memory_elements <= buffer.size
        assert fits, f"{count} samples of {self.memory_elements} elements must fit a contiguous {buffer.size}"
        sizes = (count, self.unit_count, self.depth.size, self.height.size, self.width.size)
        strides = tuple(step * stride for stride in self.strides)
        # NOTE: as_strided takes 20 times as long.
        view: npt.NDArray[Any] = np.ndarray(sizes, buffer.dtype, buffer, step * self.index(0, 0, 0, 0), strides)
        return view[:, :, 0] if self.depth.size == 1 else view

    def halo_mask(self) -> npt.NDArray[np.bool_]:
        """Return a mask of a unit's ``unit_memory_elements``: True where the promise demands a zero."""
        mask = np.zeros((self.depth.memory, self.plane_memory_elements), dtype=bool)
        mask[:, : self.plane_extent] = True
        flat = mask.reshape(-1)
        z, y, x = np.mgrid[: self.depth.size, : self.height.size, : self.width.size]
        flat[replace(self, unit_offset=0).index(0, z, y, x)] = False
        return flat


@lru_cache(1024)
def _alike(role: str, as_argument: bool) -> dict[str, str]:
    """The macros of a role that are others of its own where blobs are plain."""
    names = dict(_PLANE_SIZES)
    if as_argument:
        divisors = set(_PLANE_DIVISORS) & _PLANE_SIZES.keys() - {"UNIT_DEPTH"}
        names |= {f"{name}_{part}": f"{names[name]}_{part}" for name in divisors for part in _PARTS}
    own = {name: re.sub(r"[A-Z]\w+", lambda found: f"{role}_{found[0]}", alike) for name, alike in names.items()}
    return {f"{role}_{name}": alike for name, alike in own.items()}


def _leading(values: tuple[T, ...], missing: T) -> tuple[T, ...]:
    """Values of the last axes, with those of all of them in front."""
    return (missing,) * (AXES - len(values)) + values


def _reciprocal(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) with ``number // divisor == (2 * number * multiplier >> 32) >> shift`` for 31-bit numbers.

    Both are positive, and the multiplier fits 32 bits (Granlund and Montgomery, *Division by invariant integers using
    multiplication*, 1994, theorem 4.2).
    """
    shift = (divisor - 1).bit_length()
    return -(-(1 << (31 + shift)) // divisor), shift
