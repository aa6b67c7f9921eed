"""The memory of a BLOB: one layout, one index equation (docs/memory_layout.md).

Names are those of Table 1 in Hedberg, *Guidelines and Conventions* (2015): once as the fields below, once as the
macros that :meth:`BlobLayout.macros` makes of them. The equation stands twice in the project: :meth:`BlobLayout.index`
for Python and ``BLOB_INDEX`` in ``kernels/blob.h`` for kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.errors import ShapeError

FloatArray = npt.NDArray[np.float32]

#: What of a layout kernels take as macros of a role; all of it but the unit offset, and what follows from that.
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
#: Sizes that kernels divide by: where these are arguments, so is what a quotient is made of without a division.
_DIVISORS = ("UNIT_COUNT", "UNIT_WIDTH", "UNIT_ELEMENTS")
_FIELDS = (*_SIZES, *(f"{name}_{part}" for name in _DIVISORS for part in ("MULTIPLIER", "SHIFT")))
#: The type of the argument that holds them, for kernels whose program should not depend on them.
GEOMETRY_TYPE = f"typedef struct {{ int {', '.join(name.lower() for name in _FIELDS)}; }} geometry_t;"


@dataclass(frozen=True)
class Shape:
    """The shape of one sample: ``units`` planes of ``height`` x ``width``.

    ``rank`` counts the spatial axes that users see: 2 for (units, height, width), 1 for (units, width), 0 for (units,).
    """

    units: int
    height: int = 1
    width: int = 1
    rank: int = 2

    @classmethod
    def flat(cls, units: int) -> Shape:
        """The shape of ``units`` values without spatial axes."""
        return cls(units, 1, 1, rank=0)

    @property
    def elements(self) -> int:
        """Values in one sample."""
        return self.units * self.height * self.width

    @property
    def one_unit(self) -> Shape:
        """A single unit of the same planes: the work of kernels that loop over the units."""
        return replace(self, units=1)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The axes that users see, batch left out: (units[, height][, width])."""
        return (self.units, self.height, self.width) if self.rank == 2 else (self.units, self.width)[: self.rank + 1]

    def __str__(self) -> str:
        return "(" + ", ".join(str(size) for size in self.dimensions) + ")"


@dataclass(frozen=True)
class Halo:
    """Zeros that some reader needs around the data of every unit."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def merged(self, other: Halo) -> Halo:
        """The smallest halo that serves both readers."""
        return Halo(
            max(self.top, other.top),
            max(self.bottom, other.bottom),
            max(self.left, other.left),
            max(self.right, other.right),
        )


@dataclass(frozen=True)
class BlobLayout:
    """Where the values of a blob lie in its buffer, in elements.

    A plane (unit) is ``unit_memory_height`` rows at the pitch ``unit_memory_width``, followed by
    ``unit_memory_width_offset`` more zeros: the zeros left of row y+1 are also the zeros right of row y, so the last
    row needs a few of its own. Data, and the halo around it, fill the plane's first :attr:`extent` elements; what is
    left up to ``unit_memory_elements`` is slack, which no kernel reads into a result.
    """

    unit_count: int
    unit_height: int
    unit_width: int
    unit_offset: int
    unit_memory_count: int
    unit_memory_height: int
    unit_memory_width: int
    unit_memory_elements: int
    unit_memory_height_offset: int
    unit_memory_width_offset: int

    @classmethod
    def padded(
        cls,
        shape: Shape,
        halo: Halo | None = None,
        *,
        pitch: int | None = None,
        slack: int = 0,
        unit_offset: int = 0,
        unit_memory_count: int | None = None,
    ) -> BlobLayout:
        """The layout of ``shape`` with ``halo`` zeros around each unit, rows sharing their zeros."""
        halo = halo or Halo()
        width = pitch if pitch is not None else shape.width + max(halo.left, halo.right)
        height = halo.top + shape.height + halo.bottom
        layout = cls(
            unit_count=shape.units,
            unit_height=shape.height,
            unit_width=shape.width,
            unit_offset=unit_offset,
            unit_memory_count=unit_offset + shape.units if unit_memory_count is None else unit_memory_count,
            unit_memory_height=height,
            unit_memory_width=width,
            unit_memory_elements=height * width + halo.left + slack,
            unit_memory_height_offset=halo.top,
            unit_memory_width_offset=halo.left,
        )
        if not layout.holds(halo):
            raise ShapeError("blob layout", "the row pitch must hold the data and its halo", pitch=width, halo=halo)
        return layout

    def holds(self, halo: Halo) -> bool:
        """Whether this layout has at least ``halo`` zeros on every side."""
        return (
            halo.top <= self.unit_memory_height_offset
            and halo.bottom <= self.unit_memory_height_padding
            and halo.left <= self.unit_memory_width_offset
            and max(halo.left, halo.right) <= self.unit_memory_width - self.unit_width
        )

    @property
    def unit_padding(self) -> int:
        """Units of the memory behind this blob's own units."""
        return self.unit_memory_count - self.unit_offset - self.unit_count

    @property
    def unit_elements(self) -> int:
        """Data values in one unit."""
        return self.unit_height * self.unit_width

    @property
    def unit_memory_height_padding(self) -> int:
        """Zero rows below the data."""
        return self.unit_memory_height - self.unit_memory_height_offset - self.unit_height

    @property
    def unit_memory_width_padding(self) -> int:
        """Zeros right of the data within its own row (more follow, left of the next row)."""
        return self.unit_memory_width - self.unit_memory_width_offset - self.unit_width

    @property
    def memory_elements(self) -> int:
        """The stride between samples."""
        return self.unit_memory_count * self.unit_memory_elements

    @property
    def extent(self) -> int:
        """Elements at the start of a plane that are data or halo; the rest is slack."""
        return self.unit_memory_height * self.unit_memory_width + self.unit_memory_width_offset

    @property
    def plane(self) -> tuple[int, ...]:
        """What two layouts must share so that the halo of one is also zero in the other."""
        return (
            self.unit_height,
            self.unit_width,
            self.unit_memory_height_offset * self.unit_memory_width + self.unit_memory_width_offset,
            self.unit_memory_width,
            self.extent,
            self.unit_memory_elements,
        )

    @property
    def is_contiguous(self) -> bool:
        """Whether the data of one sample is one run of memory."""
        return self.unit_memory_elements == self.unit_elements

    def as_row(self) -> BlobLayout:
        """Units of a single value each as one row, if they are all there is in memory; else this layout."""
        if self.unit_memory_elements != 1 or self.unit_count != self.unit_memory_count:
            return self
        return BlobLayout.padded(Shape(1, 1, self.unit_count))

    def index(self, n: Any, z: Any, y: Any, x: Any) -> Any:
        """The index equation; takes integers or integer arrays."""
        return (
            x
            + self.unit_memory_width_offset
            + self.unit_memory_width * (self.unit_memory_height_offset + y)
            + self.unit_memory_elements * (self.unit_offset + z)
            + self.memory_elements * n
        )

    def macros(self, role: str, as_argument: bool = False) -> dict[str, int | str]:
        """Table 1 as macros of ``role``; the unit offset is a kernel argument: moving a blob compiles nothing.

        ``as_argument``: so are all sizes, as fields of the argument that :attr:`geometry` is for.
        """
        argument, names = role.lower(), _FIELDS if as_argument else _SIZES
        values: dict[str, int | str] = {
            f"{role}_{name}": f"{argument}_geometry.{name.lower()}" if as_argument else getattr(self, name.lower())
            for name in names
        }
        free = self.unit_memory_count - self.unit_count
        behind = f"{role}_UNIT_MEMORY_COUNT - {role}_UNIT_COUNT" if as_argument else str(free)
        values[f"{role}_UNIT_OFFSET"] = f"{argument}_unit_offset"
        values[f"{role}_UNIT_PADDING"] = f"({behind} - {argument}_unit_offset)"
        return values

    @property
    def geometry(self) -> npt.NDArray[np.int32]:
        """The value of an argument of GEOMETRY_TYPE."""
        values = [getattr(self, name.lower()) for name in _SIZES]
        for name in _DIVISORS:
            values += _reciprocal(getattr(self, name.lower()))
        return np.array(values, np.int64).astype(np.int32)

    def slice_units(self, first: int, count: int) -> BlobLayout:
        """The layout of ``count`` of this blob's units, from ``first`` on, in the same memory."""
        return replace(self, unit_offset=self.unit_offset + first, unit_count=count)

    def data(self, buffer: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
        """The data of ``count`` samples as a strided (n, unit, y, x) view of a host copy of the buffer."""
        step = buffer.itemsize
        fits = buffer.flags.c_contiguous and count * self.memory_elements <= buffer.size
        assert fits, f"{count} samples of {self.memory_elements} elements must fit a contiguous {buffer.size}"
        return np.lib.stride_tricks.as_strided(
            buffer.reshape(-1)[self.index(0, 0, 0, 0) :],
            (count, self.unit_count, self.unit_height, self.unit_width),
            (
                self.memory_elements * step,
                self.unit_memory_elements * step,
                self.unit_memory_width * step,
                step,
            ),
        )

    def halo_mask(self) -> npt.NDArray[np.bool_]:
        """For one plane of ``unit_memory_elements``: True where the promise demands a zero."""
        mask = np.zeros(self.unit_memory_elements, dtype=bool)
        mask[: self.extent] = True
        y, x = np.mgrid[: self.unit_height, : self.unit_width]
        origin = replace(self, unit_offset=0)
        mask[origin.index(0, 0, y, x)] = False
        return mask


def _reciprocal(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) with ``number // divisor == (2 * number * multiplier >> 32) >> shift`` for 31-bit numbers.

    Both are positive, and the multiplier fits 32 bits (Granlund and Montgomery, *Division by invariant integers using
    multiplication*, 1994, theorem 4.2).
    """
    shift = (divisor - 1).bit_length()
    return -(-(1 << (31 + shift)) // divisor), shift
