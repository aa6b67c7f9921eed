"""The memory of a blob against an enumeration of its cells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.errors import ShapeError
from blobnet.memory.blob import BlobLayout, Halo, Padding, Shape, geometry_type

SEEDS = pytest.mark.parametrize("seed", range(60), ids="seed{}".format)
COUNT = 3
"""Samples in a buffer."""


def random_case(seed: int) -> tuple[Shape, Halo, int, BlobLayout]:
    """(shape, halo, slack, layout) with random everything; every fourth has the smallest pitch there is.

    Every third has planes within its units, and a third of all each row with zeros of its own.
    """
    random = np.random.default_rng(seed)
    units, depth, height, width, slack, offset, behind = random.integers(
        [1, 1, 1, 1, 0, 0, 0], [5, 4, 7, 8, 6, 4, 3]
    ).tolist()
    sides = random.integers(0, [[3], [4], [5]], (3, 2))
    shape, halo = Shape(units, height, width), Halo(*sides[1:])
    if seed % 3 == 0:
        shape, halo = Shape(units, depth, height, width), Halo(*sides)
    own_zeros = seed % 9 in (0, 1, 2)
    pitch = None
    if seed % 4:
        pitch = (
            width + (halo.left + halo.right if own_zeros else max(halo.left, halo.right)) + int(random.integers(0, 4))
        )
    whole = shape.with_units(offset + units + behind)
    layout = BlobLayout.padded(whole, halo, pitch=pitch, slack=slack, padding=Padding(own_zeros=own_zeros))
    return shape, halo, slack, layout.slice_units(offset, units)


def enumerated(shape: Shape, layout: BlobLayout) -> npt.NDArray[np.int64]:
    """A buffer in which data cell number i of (n, z, y, x) in C order holds i, and every other cell -1; z are planes.

    Built from planes, rows and columns, without the index equation.
    """
    sizes = COUNT, layout.unit_memory_count, layout.depth.memory, layout.plane_memory_elements
    buffer = np.full(sizes, -1, dtype=np.int64)
    numbers = iter(range(COUNT * shape.elements))
    rows = layout.height.memory * layout.width.memory
    for n, unit, depth in itertools.product(range(COUNT), range(shape.units), range(shape.depth)):
        memory = buffer[n, layout.unit_offset + unit, layout.depth.before + depth, :rows]
        plane = memory.reshape(layout.height.memory, layout.width.memory)
        for y, x in itertools.product(range(shape.height), range(shape.width)):
            plane[layout.height.before + y, layout.width.before + x] = next(numbers)
    return buffer


def all_cells(shape: Shape) -> tuple[npt.NDArray[np.int64], ...]:
    """n, z, y, x of every data cell; z are planes."""
    return tuple(np.indices((COUNT, shape.planes, shape.height, shape.width)))


def reads_only_zeros(layout: BlobLayout, halo: Halo) -> bool:
    """Whether every cell that ``halo`` asks for lies in the unit and is no data cell, nor slack."""
    mask = layout.halo_mask()
    start = replace(layout, unit_offset=0).index(0, 0, 0, 0)
    sizes = layout.depth.size, layout.height.size, layout.width.size
    ranges = (range(-before, size + after) for (before, after), size in zip(halo.axes, sizes, strict=True))
    for cell in itertools.product(*ranges):
        if all(0 <= place < size for place, size in zip(cell, sizes, strict=True)):
            continue
        position = start + sum(place * stride for place, stride in zip(cell, layout.strides[2:], strict=True))
        if not 0 <= position < mask.size or not mask[position]:
            return False
    return True


@SEEDS
def test_index(seed: int) -> None:
    shape, _, _, layout = random_case(seed)
    positions = layout.index(*all_cells(shape))
    found = enumerated(shape, layout).reshape(-1)[positions]
    assert (found.reshape(-1) == np.arange(COUNT * shape.elements)).all()
    assert len(np.unique(positions)) == positions.size
    assert type(layout.index(0, 0, 0, 0)) is int
    within = positions % layout.memory_elements % layout.unit_memory_elements % layout.plane_memory_elements
    assert (within < layout.plane_extent).all()


@SEEDS
def test_halo_mask(seed: int) -> None:
    """Everything in the extent that is not data is halo; the rest is slack."""
    shape, halo, _, layout = random_case(seed)
    unit = enumerated(shape, layout)[0, layout.unit_offset]
    mask = layout.halo_mask().reshape(unit.shape)
    assert mask.dtype == np.bool_
    rows = layout.height.memory * layout.width.memory
    assert layout.plane_extent == min(rows + halo.left, layout.plane_memory_elements)
    assert (mask == ((unit == -1) & (np.arange(layout.plane_memory_elements) < layout.plane_extent))).all()
    assert layout.halo_elements == mask.sum()


@SEEDS
def test_zeros_around_the_data(seed: int) -> None:
    """All of the halo, corners and the last row's right zeros too, is reached by index with y and x out of range."""
    _, halo, _, layout = random_case(seed)
    assert layout.holds(halo)
    assert reads_only_zeros(layout, halo)
    behind = layout.plane_extent - layout.height.memory * layout.width.memory
    most = layout.width.after + behind
    wider = Halo(*halo.axes[:2], (halo.left, most))
    assert layout.holds(wider)
    assert reads_only_zeros(layout, wider)
    assert not layout.holds(Halo(*halo.axes[:2], (halo.left, most + 1)))


@SEEDS
def test_holds_is_safe(seed: int) -> None:
    """Whatever halo a layout claims to hold really is zeros; one more on any side is refused."""
    _, halo, _, layout = random_case(seed)
    for sides in itertools.product(range(4), repeat=4):
        other = Halo(sides[:2], sides[2:])
        if layout.holds(other):
            assert reads_only_zeros(layout, other), other
    for axis, side in itertools.product(range(3), range(2)):
        if (axis, side) != (2, 1):  # Rows may have more zeros behind them than they were asked for.
            sides = np.array(halo.axes)
            sides[axis, side] += 1
            assert not layout.holds(Halo(*sides)), (axis, side)


@SEEDS
def test_data(seed: int) -> None:
    """The view is the data, to read and to write."""
    shape, _, _, layout = random_case(seed)
    buffer = enumerated(shape, layout)
    view = layout.data(buffer, COUNT)
    depth = (shape.depth,) if shape.depth > 1 else ()
    assert view.shape == (COUNT, shape.units, *depth, shape.height, shape.width)
    assert (view.reshape(-1) == np.arange(COUNT * shape.elements)).all()
    assert layout.data(buffer, 1).shape[0] == 1
    view[:] = -1
    assert (buffer == -1).all()
    for dtype in (np.float32, np.uint8):
        flat = np.arange(COUNT * layout.memory_elements).astype(dtype)
        assert (layout.data(flat, COUNT).reshape(-1) == flat[layout.index(*all_cells(shape)).reshape(-1)]).all()


@SEEDS
def test_slice_units(seed: int) -> None:
    shape, _, _, layout = random_case(seed)
    buffer = enumerated(shape, layout)
    for first in range(shape.units):
        for count in range(1, shape.units - first + 1):
            part = layout.slice_units(first, count)
            assert (part.data(buffer, COUNT) == layout.data(buffer, COUNT)[:, first : first + count]).all()
            assert part.index(1, 0, 2, 3) == layout.index(1, first * shape.depth, 2, 3)
            assert part.unit_padding == layout.unit_memory_count - layout.unit_offset - first - count
            assert (part.halo_mask() == layout.halo_mask()).all()


@SEEDS
def test_sizes(seed: int) -> None:
    shape, halo, slack, layout = random_case(seed)
    depth = (shape.depth,) if shape.depth > 1 else ()
    assert layout.shape == Shape(shape.units, *depth, shape.height, shape.width)
    assert layout.plane_elements == shape.height * shape.width
    assert layout.unit_elements == shape.positions
    assert layout.plane_count == shape.units * shape.depth
    assert layout.depth.memory == halo.axes[0][0] + shape.depth + halo.axes[0][1]
    assert layout.depth.after == halo.axes[0][1]
    assert layout.height.memory == halo.top + shape.height + halo.bottom
    assert layout.height.after == halo.bottom
    tail = 0 if seed % 9 in (0, 1, 2) else halo.left
    assert layout.plane_memory_elements == layout.height.memory * layout.width.memory + tail + slack
    assert layout.unit_memory_elements == layout.depth.memory * layout.plane_memory_elements
    assert layout.memory_elements == layout.unit_memory_count * layout.unit_memory_elements
    columns = layout.width.before + shape.width + layout.width.after
    assert columns == layout.width.memory
    assert layout.unit_offset + layout.unit_count + layout.unit_padding == layout.unit_memory_count
    assert layout.is_contiguous == (layout.unit_memory_elements == shape.positions)


def test_contiguous() -> None:
    shape = Shape(3, 4, 5)
    layout = BlobLayout.padded(shape)
    assert layout.is_contiguous
    assert not layout.halo_mask().any()
    assert (layout.index(*all_cells(shape)).reshape(-1) == np.arange(COUNT * 60)).all()
    for changes in ({"slack": 1}, {"pitch": 6}, {"halo": Halo((1, 0), (0, 0))}, {"halo": Halo((1, 0))}):
        assert not BlobLayout.padded(shape, **changes).is_contiguous


def test_shared_row_pitch() -> None:
    """The example of docs/memory_layout.md."""
    layout = BlobLayout.padded(Shape(1, 3, 4), Halo((1, 1), (1, 1)), slack=1)
    assert (layout.width.memory, layout.height.memory) == (5, 5)
    assert (layout.plane_extent, layout.unit_memory_elements) == (26, 27)
    assert layout.index(0, 0, 0, 4) == layout.index(0, 0, 1, -1)
    assert layout.index(0, 0, 3, 4) == layout.plane_extent - 1


def test_rows_with_zeros_of_their_own() -> None:
    """The blob of Hedberg 2015, figure 1: UNIT_MEMORY_ELEMENTS is the memory height times the memory width."""
    layout = BlobLayout.padded(Shape(2, 3, 4), Halo((1, 2), (2, 1)), padding=Padding(own_zeros=True))
    assert (layout.width.memory, layout.height.memory) == (2 + 4 + 1, 1 + 3 + 2)
    assert layout.unit_memory_elements == 7 * 6 == layout.plane_extent
    assert layout.width.after == 1
    assert not layout.is_plain


@pytest.mark.parametrize("own_zeros", [False, True])
@pytest.mark.parametrize("align", [1, 4, 16])
def test_rounded_up(own_zeros: bool, align: int) -> None:
    shape, halo = Shape(3, 5, 7), Halo((1, 0), (2, 2))
    layout = BlobLayout.padded(shape, halo, padding=Padding(own_zeros, align))
    assert layout.width.memory % align == layout.unit_memory_elements % align == 0
    smallest = BlobLayout.padded(shape, halo, padding=Padding(own_zeros))
    assert 0 <= layout.width.memory - smallest.width.memory < align
    assert layout.holds(halo)
    assert reads_only_zeros(layout, halo)


# -- macros ----------------------------------------------------------------------------------------------------------

#: Table 1 of Hedberg 2015, and the stride between samples.
NAMES = {
    *("UNIT_OFFSET", "UNIT_COUNT", "UNIT_PADDING", "UNIT_MEMORY_COUNT", "UNIT_WIDTH", "UNIT_HEIGHT", "UNIT_ELEMENTS"),
    *("UNIT_MEMORY_WIDTH", "UNIT_MEMORY_HEIGHT", "UNIT_MEMORY_ELEMENTS", "UNIT_MEMORY_WIDTH_PADDING"),
    *("UNIT_MEMORY_HEIGHT_PADDING", "UNIT_MEMORY_WIDTH_OFFSET", "UNIT_MEMORY_HEIGHT_OFFSET", "MEMORY_ELEMENTS"),
}
#: The same for a third axis, and what a plane is.
PLANE_NAMES = {
    *("UNIT_DEPTH", "UNIT_MEMORY_DEPTH", "UNIT_MEMORY_DEPTH_PADDING", "UNIT_MEMORY_DEPTH_OFFSET"),
    *("PLANE_COUNT", "PLANE_ELEMENTS", "PLANE_MEMORY_ELEMENTS", "PLANE_EXTENT"),
}


class Numbers(dict[str, Any]):
    """What macros come to: those that name others too."""

    def __init__(self, macros: Mapping[str, int | str], known: Mapping[str, Any]) -> None:
        super().__init__(known)
        self.macros = macros

    def __missing__(self, name: str) -> Any:
        if name not in self.macros:
            raise KeyError(name)
        return eval(str(self.macros[name]), {}, self)


def numbers_of(layout: BlobLayout) -> dict[str, int]:
    """Table 1, by the names of its numbers in kernels."""
    found = {name: getattr(layout, name.lower()) for name in NAMES | PLANE_NAMES if hasattr(layout, name.lower())}
    for axis, size in (("DEPTH", layout.depth), ("HEIGHT", layout.height), ("WIDTH", layout.width)):
        found |= {f"UNIT_{axis}": size.size, f"UNIT_MEMORY_{axis}": size.before + size.size + size.after}
        found |= {f"UNIT_MEMORY_{axis}_OFFSET": size.before, f"UNIT_MEMORY_{axis}_PADDING": size.after}
    assert found.keys() == NAMES | PLANE_NAMES
    return found


@SEEDS
def test_macros(seed: int) -> None:
    """Complete, and with the unit offset given as the kernel argument, equal to the layout's own values."""
    _, _, _, layout = random_case(seed)
    for plain in {layout.is_plain, False}:
        macros = layout.macros("INPUT_DELTA", plain=plain)
        assert set(macros) == {f"INPUT_DELTA_{name}" for name in NAMES | PLANE_NAMES}
        numbers = Numbers(macros, {"input_delta_unit_offset": layout.unit_offset})
        for name in NAMES | PLANE_NAMES:
            assert numbers[f"INPUT_DELTA_{name}"] == numbers_of(layout)[name], name


@SEEDS
def test_geometry_is_what_the_macros_of_an_argument_read(seed: int) -> None:
    _, _, _, layout = random_case(seed)
    for plain in {layout.is_plain, False}:
        fields = re.fullmatch(r"typedef struct { int (.*); } geometry_t;", geometry_type(plain))
        assert fields
        values = layout.geometry(plain).tolist()
        argument = SimpleNamespace(**dict(zip(fields[1].split(", "), values, strict=True)))
        macros = layout.macros("INPUT", as_argument=True, plain=plain)
        numbers = Numbers(macros, {"input_geometry": argument, "input_unit_offset": layout.unit_offset})
        for name in sorted(NAMES | PLANE_NAMES):
            assert numbers[f"INPUT_{name}"] == numbers_of(layout)[name], name
        for name in ("UNIT_COUNT", "UNIT_WIDTH", "UNIT_ELEMENTS", "PLANE_COUNT", "PLANE_ELEMENTS"):
            number = np.arange(1000, dtype=np.int64)
            multiplier, shift = (np.uint32(numbers[f"INPUT_{name}_{part}"] % 2**32) for part in ("MULTIPLIER", "SHIFT"))
            found = ((2 * number.astype(np.uint64) * np.uint64(multiplier)) >> np.uint64(32)) >> np.uint64(shift)
            assert (found == number // numbers[f"INPUT_{name}"]).all(), name


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 28, 49, 64, 223, 12544, 50176, (1 << 24) + 1, (1 << 30) - 1, 1 << 30])
def test_quotients_without_a_division(size: int) -> None:
    """The kernels' QUOTIENT, for numbers up to what an int holds: at the borders, and random ones."""
    fields = BlobLayout.padded(Shape(1, 1, size)).geometry(plain=True)[-4:].view(np.uint32).astype(np.uint64)
    rng = np.random.default_rng(size)
    multiples = rng.integers(0, (1 << 31) // size + 1, 1000) * size
    numbers = np.concatenate([multiples - 1, multiples, multiples + 1, rng.integers(0, 1 << 31, 1000), [0, 2**31 - 1]])
    numbers = numbers[(numbers >= 0) & (numbers < 1 << 31)].astype(np.uint64)
    for multiplier, shift in (fields[:2], fields[2:]):  # UNIT_WIDTH and UNIT_ELEMENTS, which are the same here.
        assert (((2 * numbers * multiplier) >> np.uint64(32)) >> shift == numbers // np.uint64(size)).all()


def test_moving_a_blob_changes_no_macro() -> None:
    layout = BlobLayout.padded(Shape(9, 3, 4)).slice_units(0, 2)
    assert replace(layout, unit_offset=5).macros("INPUT") == layout.macros("INPUT")


def test_index_of_the_kernels() -> None:
    """BLOB_INDEX of kernels/blob.h is BlobLayout.index."""
    header = (Path(__file__).parents[2] / "kernels" / "blob.h").read_text().replace("\\\n", " ")
    found = re.search(r"#define BLOB_INDEX\(ROLE, n, z, y, x\)(.*)", header)
    assert found
    parts = re.search(r"#ifdef GENERAL_BLOBS(.*?)#else(.*?)#endif", header, re.DOTALL)
    assert parts
    role = SimpleNamespace()
    for seed in range(40):
        shape, _, _, layout = random_case(seed)
        n, z, y, x = all_cells(shape)
        for plain in {layout.is_plain, False}:
            macros = layout.macros("OUTPUT", plain=plain)
            numbers = Numbers(
                macros, {"output_unit_offset": layout.unit_offset, "ROLE": role, "UNIT_DEPTH": "UNIT_DEPTH"}
            )
            numbers["QUOTIENT"] = lambda number, _, size, known=numbers: number // known[f"OUTPUT_{size}"]
            numbers["REMAINDER"] = lambda number, _, size, known=numbers: number % known[f"OUTPUT_{size}"]
            plane_index = re.search(r"#define PLANE_INDEX\(ROLE, z\)(.*)", parts[2 if plain else 1])
            assert plane_index
            index = found[1].replace("PLANE_INDEX(ROLE, z)", plane_index[1])
            expression = " ".join(index.replace("ROLE##", "OUTPUT").replace("(size_t)", "").split())
            numbers |= {"n": n, "z": z, "y": y, "x": x}
            assert (eval(expression, {}, numbers) == layout.index(n, z, y, x)).all()


# -- shapes, halos, errors -------------------------------------------------------------------------------------------


def test_shape() -> None:
    assert Shape(3, 4, 5).dimensions == (3, 4, 5)
    assert Shape(3, 5).dimensions == (3, 5)
    assert Shape.flat(3).dimensions == (3,)
    volume = Shape(3, 2, 4, 5)
    assert (volume.dimensions, volume.rank, volume.planes, volume.positions) == ((3, 2, 4, 5), 3, 6, 40)
    assert (volume.depth, volume.height, volume.width) == volume.axes == (2, 4, 5)
    assert [shape.axes for shape in (Shape(3, 4, 5), Shape(3, 5), Shape(3))] == [(1, 4, 5), (1, 1, 5), (1, 1, 1)]
    assert (volume.with_units(7), volume.one_unit) == (Shape(7, 2, 4, 5), Shape(1, 8, 5))
    with pytest.raises(
        ShapeError, match=r"^shape: there are at most 3 spatial axes\. Received units=1, sizes=\(2, 3, 4, 5\)"
    ):
        Shape(1, 2, 3, 4, 5)
    assert [str(shape) for shape in (Shape(3, 4, 5), Shape(3, 5), Shape.flat(3))] == [
        "(3, 4, 5)",
        "(3, 5)",
        "(3)",
    ]
    assert [shape.elements for shape in (Shape(3, 4, 5), Shape(3, 5), Shape.flat(3))] == [60, 15, 3]


def test_merged_halo() -> None:
    assert Halo((1, 2), (3, 4)).merged(Halo((4, 3), (2, 1))) == Halo((4, 3), (3, 4))
    assert Halo((1, 2)).merged(Halo((0, 1), (3, 0), (0, 4))) == Halo((0, 1), (3, 0), (1, 4))
    assert Halo((0, 0), (0, 0), (1, 2)) == Halo((1, 2)) != Halo() == Halo((0, 0), (0, 0))
    assert Halo().merged(Halo((1, 0), (2, 0))) == Halo((1, 0), (2, 0))


@pytest.mark.parametrize(
    ("halo", "pitch"),
    [
        (Halo(), 3),
        (Halo((0, 2)), 5),
        (Halo((2, 0)), 5),
        (Halo((2, 0)), 4),
    ],
    ids=str,
)
def test_pitch_too_small(halo: Halo, pitch: int) -> None:
    with pytest.raises(ShapeError) as caught:
        BlobLayout.padded(Shape(1, 3, 4), halo, pitch=pitch)
    assert str(caught.value) == (
        f"blob layout: the row pitch must hold the data and its halo. Received pitch={pitch}, halo={halo}."
    )


def test_layouts_of_one_plane_share_their_halo() -> None:
    """Equal ``plane``, whatever the units around: the same cells are halo."""
    layout = BlobLayout.padded(Shape(2, 3, 4), Halo((1, 1), (2, 1)))
    moved = BlobLayout.padded(Shape(11, 3, 4), Halo((1, 1), (2, 1))).slice_units(3, 5)
    assert layout.plane == moved.plane
    assert (layout.halo_mask() == moved.halo_mask()).all()
    assert layout.plane != BlobLayout.padded(Shape(2, 3, 4), Halo((1, 1), (1, 2))).plane


def test_slack_is_no_halo() -> None:
    """One layout's halo may not be another's slack, which may hold anything, if their planes are equal."""
    halo, slack = BlobLayout.padded(Shape(1, 2, 2), Halo((0, 1), (0, 0))), BlobLayout.padded(Shape(1, 2, 2), slack=2)
    assert (halo.halo_mask() != slack.halo_mask()).any()
    assert halo.plane != slack.plane
