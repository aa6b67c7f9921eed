"""The memory of a blob against an enumeration of its cells."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.blob import BlobLayout, Halo, Shape, geometry_type
from blobnet.errors import ShapeError

SEEDS = pytest.mark.parametrize("seed", range(60), ids="seed{}".format)
COUNT = 3
"""Samples in a buffer."""


def random_case(seed: int) -> tuple[Shape, Halo, int, BlobLayout]:
    """(shape, halo, slack, layout) with random everything; every fourth has the smallest pitch there is."""
    random = np.random.default_rng(seed)
    units, height, width, top, bottom, left, right, slack, offset, behind = random.integers(
        [1, 1, 1, 0, 0, 0, 0, 0, 0, 0], [5, 7, 8, 4, 4, 5, 5, 6, 4, 3]
    ).tolist()
    shape, halo = Shape(units, height, width), Halo((top, bottom), (left, right))
    pitch = None if seed % 4 == 0 else width + max(left, right) + int(random.integers(0, 4))
    layout = BlobLayout.padded(
        shape, halo, pitch=pitch, slack=slack, unit_offset=offset, unit_memory_count=offset + units + behind
    )
    return shape, halo, slack, layout


def enumerated(shape: Shape, layout: BlobLayout) -> npt.NDArray[np.int64]:
    """A buffer in which data cell number i of (n, z, y, x) in C order holds i, and every other cell -1.

    Built from rows and columns, without the index equation.
    """
    buffer = np.full((COUNT, layout.unit_memory_count, layout.unit_memory_elements), -1, dtype=np.int64)
    numbers = iter(range(COUNT * shape.elements))
    rows = layout.unit_memory_height * layout.unit_memory_width
    for n, z in itertools.product(range(COUNT), range(shape.units)):
        plane = buffer[n, layout.unit_offset + z, :rows].reshape(layout.unit_memory_height, layout.unit_memory_width)
        for y, x in itertools.product(range(shape.height), range(shape.width)):
            plane[layout.unit_memory_height_offset + y, layout.unit_memory_width_offset + x] = next(numbers)
    return buffer


def all_cells(shape: Shape) -> tuple[npt.NDArray[np.int64], ...]:
    """n, z, y, x of every data cell."""
    return tuple(np.indices((COUNT, shape.units, shape.height, shape.width)))


def reads_only_zeros(layout: BlobLayout, halo: Halo) -> bool:
    """Whether every cell that ``halo`` asks for lies in the plane and is no data cell."""
    mask = layout.halo_mask()
    own = replace(layout, unit_offset=0)
    rows = range(-halo.top, layout.unit_height + halo.bottom)
    columns = range(-halo.left, layout.unit_width + halo.right)
    for y, x in itertools.product(rows, columns):
        if 0 <= y < layout.unit_height and 0 <= x < layout.unit_width:
            continue
        position = own.index(0, 0, y, x)
        if not 0 <= position < layout.plane_extent or not mask[position]:
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
    within = positions % layout.memory_elements % layout.unit_memory_elements
    assert (within < layout.plane_extent).all()


@SEEDS
def test_halo_mask(seed: int) -> None:
    """Everything in the extent that is not data is halo; the rest is slack."""
    shape, _, slack, layout = random_case(seed)
    plane = enumerated(shape, layout)[0, layout.unit_offset]
    mask = layout.halo_mask()
    assert mask.dtype == np.bool_
    assert layout.unit_memory_elements - layout.plane_extent == slack
    assert (mask == ((plane == -1) & (np.arange(plane.size) < layout.plane_extent))).all()


@SEEDS
def test_zeros_around_the_data(seed: int) -> None:
    """All of the halo, corners and the last row's right zeros too, is reached by index with y and x out of range."""
    _, halo, _, layout = random_case(seed)
    assert layout.holds(halo)
    assert reads_only_zeros(layout, halo)
    wider = replace(halo, right=layout.unit_memory_width - layout.unit_width)
    assert layout.holds(wider)
    assert reads_only_zeros(layout, wider)


@SEEDS
def test_holds_is_safe(seed: int) -> None:
    """Whatever halo a layout claims to hold really is zeros; one more on any side is refused."""
    _, halo, _, layout = random_case(seed)
    for sides in itertools.product(range(4), repeat=4):
        other = Halo(sides[:2], sides[2:])
        if layout.holds(other):
            assert reads_only_zeros(layout, other), other
    for side in ("top", "bottom", "left"):
        assert not layout.holds(replace(halo, **{side: getattr(halo, side) + 1})), side
    assert not layout.holds(replace(halo, right=layout.unit_memory_width - layout.unit_width + 1))


@SEEDS
def test_data(seed: int) -> None:
    """The view is the data, to read and to write."""
    shape, _, _, layout = random_case(seed)
    buffer = enumerated(shape, layout)
    view = layout.data(buffer, COUNT)
    assert view.shape == (COUNT, shape.units, shape.height, shape.width)
    assert (view.reshape(-1) == np.arange(COUNT * shape.elements)).all()
    assert layout.data(buffer, 1).shape[0] == 1
    view[:] = -1
    assert (buffer == -1).all()
    for dtype in (np.float32, np.uint8):
        flat = np.arange(COUNT * layout.memory_elements).astype(dtype)
        assert (layout.data(flat, COUNT) == flat[layout.index(*all_cells(shape))]).all()


@SEEDS
def test_slice_units(seed: int) -> None:
    shape, _, _, layout = random_case(seed)
    buffer = enumerated(shape, layout)
    for first in range(shape.units):
        for count in range(1, shape.units - first + 1):
            part = layout.slice_units(first, count)
            assert (part.data(buffer, COUNT) == layout.data(buffer, COUNT)[:, first : first + count]).all()
            assert part.index(1, 0, 2, 3) == layout.index(1, first, 2, 3)
            assert part.unit_padding == layout.unit_memory_count - layout.unit_offset - first - count
            assert (part.halo_mask() == layout.halo_mask()).all()


@SEEDS
def test_sizes(seed: int) -> None:
    shape, halo, slack, layout = random_case(seed)
    assert layout.unit_elements == shape.height * shape.width
    assert layout.unit_memory_height == halo.top + shape.height + halo.bottom
    assert layout.unit_memory_height_padding == halo.bottom
    assert layout.unit_memory_elements == layout.plane_extent + slack
    assert layout.memory_elements == layout.unit_memory_count * layout.unit_memory_elements
    columns = layout.unit_memory_width_offset + shape.width + layout.unit_memory_width_padding
    assert columns == layout.unit_memory_width
    assert layout.unit_offset + layout.unit_count + layout.unit_padding == layout.unit_memory_count
    assert layout.is_contiguous == (layout.unit_memory_elements == shape.height * shape.width)


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
    assert (layout.unit_memory_width, layout.unit_memory_height) == (5, 5)
    assert (layout.plane_extent, layout.unit_memory_elements) == (26, 27)
    assert layout.index(0, 0, 0, 4) == layout.index(0, 0, 1, -1)
    assert layout.index(0, 0, 3, 4) == layout.plane_extent - 1


# -- macros ----------------------------------------------------------------------------------------------------------

#: Table 1 of Hedberg 2015, and the stride between samples.
NAMES = {
    *("UNIT_OFFSET", "UNIT_COUNT", "UNIT_PADDING", "UNIT_MEMORY_COUNT", "UNIT_WIDTH", "UNIT_HEIGHT", "UNIT_ELEMENTS"),
    *("UNIT_MEMORY_WIDTH", "UNIT_MEMORY_HEIGHT", "UNIT_MEMORY_ELEMENTS", "UNIT_MEMORY_WIDTH_PADDING"),
    *("UNIT_MEMORY_HEIGHT_PADDING", "UNIT_MEMORY_WIDTH_OFFSET", "UNIT_MEMORY_HEIGHT_OFFSET", "MEMORY_ELEMENTS"),
}


@SEEDS
def test_macros(seed: int) -> None:
    """Complete, and with the unit offset given as the kernel argument, equal to the layout's own values."""
    _, _, _, layout = random_case(seed)
    macros = layout.macros("INPUT_DELTA")
    assert set(macros) == {f"INPUT_DELTA_{name}" for name in NAMES}
    for name in NAMES:
        value = eval(str(macros[f"INPUT_DELTA_{name}"]), {"input_delta_unit_offset": layout.unit_offset})
        assert value == getattr(layout, name.lower()), name


@SEEDS
def test_geometry_is_what_the_macros_of_an_argument_read(seed: int) -> None:
    _, _, _, layout = random_case(seed)
    fields = re.fullmatch(r"typedef struct { int (.*); } geometry_t;", geometry_type(plain=True))
    assert fields
    argument = SimpleNamespace(**dict(zip(fields[1].split(", "), layout.geometry(plain=True).tolist(), strict=True)))
    names = {"input_geometry": argument, "input_unit_offset": layout.unit_offset}
    macros = layout.macros("INPUT", as_argument=True)
    for name in sorted(NAMES - {"UNIT_PADDING"}):
        assert eval(str(macros[f"INPUT_{name}"]), {}, names) == getattr(layout, name.lower()), name
    known = {name: eval(str(macros[name]), {}, names) for name in ("INPUT_UNIT_MEMORY_COUNT", "INPUT_UNIT_COUNT")}
    assert eval(str(macros["INPUT_UNIT_PADDING"]), known, names) == layout.unit_padding


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
    layout = BlobLayout.padded(Shape(2, 3, 4), unit_memory_count=9)
    assert replace(layout, unit_offset=5).macros("INPUT") == layout.macros("INPUT")


def test_index_of_the_kernels() -> None:
    """BLOB_INDEX of kernels/blob.h is BlobLayout.index."""
    header = (Path(__file__).parents[2] / "kernels" / "blob.h").read_text().replace("\\\n", " ")
    found = re.search(r"#define BLOB_INDEX\(ROLE, n, z, y, x\)(.*)", header)
    assert found
    expression = " ".join(found[1].replace("ROLE##", "OUTPUT").replace("(size_t)", "").split())
    for seed in range(20):
        shape, _, _, layout = random_case(seed)
        n, z, y, x = all_cells(shape)
        macros: dict[str, Any] = {
            name: eval(str(value), {"output_unit_offset": layout.unit_offset})
            for name, value in layout.macros("OUTPUT").items()
        }
        assert (eval(expression, {**macros, "n": n, "z": z, "y": y, "x": x}) == layout.index(n, z, y, x)).all()


# -- shapes, halos, errors -------------------------------------------------------------------------------------------


def test_shape() -> None:
    assert Shape(3, 4, 5).dimensions == (3, 4, 5)
    assert Shape(3, 5).dimensions == (3, 5)
    assert Shape.flat(3).dimensions == (3,)
    assert [str(shape) for shape in (Shape(3, 4, 5), Shape(3, 5), Shape.flat(3))] == [
        "(3, 4, 5)",
        "(3, 5)",
        "(3)",
    ]
    assert [shape.elements for shape in (Shape(3, 4, 5), Shape(3, 5), Shape.flat(3))] == [60, 15, 3]


def test_merged_halo() -> None:
    assert Halo((1, 2), (3, 4)).merged(Halo((4, 3), (2, 1))) == Halo((4, 3), (3, 4))
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
    moved = BlobLayout.padded(Shape(5, 3, 4), Halo((1, 1), (2, 1)), unit_offset=3, unit_memory_count=11)
    assert layout.plane == moved.plane
    assert (layout.halo_mask() == moved.halo_mask()).all()
    assert layout.plane != BlobLayout.padded(Shape(2, 3, 4), Halo((1, 1), (1, 2))).plane


def test_slack_is_no_halo() -> None:
    """One layout's halo may not be another's slack, which may hold anything, if their planes are equal."""
    halo, slack = BlobLayout.padded(Shape(1, 2, 2), Halo((0, 1), (0, 0))), BlobLayout.padded(Shape(1, 2, 2), slack=2)
    assert (halo.halo_mask() != slack.halo_mask()).any()
    assert halo.plane != slack.plane
