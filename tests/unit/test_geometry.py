"""Window arithmetic against brute force: which cells do the taps touch?"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from blobnet.errors import OptionError
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import Shape
from blobnet.memory.windows import WindowAxis, axes_of_window, axis_numbers, check_padding

SIZES = range(1, 17)
STRIDES = range(1, 5)


def overhang(positions: list[int], size: int) -> tuple[int, int]:
    """How far positions reach before 0 and behind size - 1."""
    return max([0, *(-item for item in positions)]), max([0, *(item - size + 1 for item in positions)])


@pytest.mark.parametrize("dilation", [1, 2, 3], ids="dilation{}".format)
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5], ids="kernel{}".format)
def test_axis_exhaustively(kernel: int, dilation: int) -> None:
    cases = 0
    taps = [k * dilation for k in range(kernel)]
    for stride, before, after, size in itertools.product(STRIDES, range(4), range(4), SIZES):
        axis = WindowAxis(kernel, stride, dilation, (before, after))
        case = f"{axis}, size={size}"
        windows = [
            start for start in range(0, size + before + after, stride) if start + taps[-1] < size + before + after
        ]
        assert axis.span == taps[-1] + 1, case
        assert axis.fits(size) == bool(windows), case
        if not windows:
            assert axis.output_size(size) < 1, case
            continue
        outputs = axis.output_size(size)
        assert outputs == len(windows), case

        touched = [start + tap - before for start in windows for tap in taps]
        assert axis.input_halo(size) == overhang(touched, size), case

        # A gather without branches: each input cell reads every output that its taps could have come from.
        sums = [x + before - tap for x in range(size) for tap in taps]
        needed = overhang([item // stride for item in sums if item % stride == 0], outputs)
        declared = axis.delta_halo(size)
        assert declared[0] >= needed[0], case
        assert declared[1] >= needed[1], case
        if size >= stride:  # every residue of the stride occurs among the input cells
            assert declared == needed, case
        cases += 1
    assert cases > 400


@pytest.mark.parametrize("dilation", [1, 2, 3], ids="dilation{}".format)
def test_same(dilation: int) -> None:
    """ceil(size / stride) outputs; no zero more than needed; the odd one after the data."""
    for kernel, stride, size in itertools.product(range(1, 8), STRIDES, range(1, 12)):
        (axis,) = axes_of_window((kernel,), (stride,), (dilation,), "same", (size,))
        case = f"{axis}, size={size}"
        wanted = -(-size // stride)
        assert axis.output_size(size) == wanted, case
        before, after = axis.padding
        assert after - before in (0, 1), case
        if after:
            fewer = WindowAxis(kernel, stride, dilation, (before, after - 1))
            assert fewer.output_size(size) < wanted, case


@pytest.mark.parametrize(
    ("padding", "rank", "vertical", "horizontal"),
    [
        (0, 2, (0, 0), (0, 0)),
        (2, 2, (2, 2), (2, 2)),
        ((1, 3), 2, (1, 1), (3, 3)),
        (((1, 2), (3, 4)), 2, (1, 2), (3, 4)),
        ("valid", 2, (0, 0), (0, 0)),
        ("same", 2, (0, 1), (1, 1)),
        (2, 1, None, (2, 2)),
        ((1, 3), 1, None, (1, 3)),
        ("valid", 1, None, (0, 0)),
        ("same", 1, None, (1, 1)),
    ],
)
def test_padding_forms(padding: Any, rank: int, vertical: Any, horizontal: Any) -> None:
    assert check_padding("conv1 (Conv2D)", padding, rank) is padding
    kernel, ones, sizes = (2, 3)[-rank:], (1, 1)[-rank:], (8, 9)[-rank:]
    wanted = WindowAxis(2, padding=vertical), WindowAxis(3, padding=horizontal)
    assert axes_of_window(kernel, ones, ones, padding, sizes) == wanted[-rank:]


def test_order_of_axes() -> None:
    """Vertical before horizontal in every pair; along a row a window stands still vertically."""
    layer = Conv2D(1, (2, 3), stride=(4, 5), dilation=(6, 7), padding=((1, 2), (3, 4)))
    wanted = WindowAxis(2, 4, 6, (1, 2)), WindowAxis(3, 5, 7, (3, 4))
    assert layer._axes(Shape(1, 50, 60)) == layer.windows(Shape(1, 50, 60)) == wanted
    row = Conv1D(1, 3, stride=5, dilation=7, padding=(3, 4))
    # Blobs have rows as planes of one.
    for shape in Shape(1, 60), Shape(1, 1, 60):
        assert row._axes(shape) == (WindowAxis(1), *row.windows(shape)) == (WindowAxis(1), wanted[1])


FORMS_1D = "an int, (left, right), 'same' or 'valid'"
FORMS_2D = "an int, (vertical, horizontal), ((top, bottom), (left, right)), 'same' or 'valid'"
BAD_PADDING = [-1, 1.5, None, "SAME", "", (1,), (1, 2, 3), (-1, 0), ((1, 2),), ((0, 0), (0, -1)), (1, (1, 2)), (1.5, 2)]


@pytest.mark.parametrize("rank", [1, 2], ids="rank{}".format)
@pytest.mark.parametrize(
    "padding",
    [
        *BAD_PADDING,
        ((1,), (1, 2, 3)),
        ((), (1, 2)),
        ((1, 2), ()),
    ],
    ids=repr,
)
def test_bad_padding(padding: Any, rank: int) -> None:
    if padding == ((1,), (1, 2, 3)) and rank == 1:
        padding = ((), (2, 1))
    forms = FORMS_1D if rank == 1 else FORMS_2D
    with pytest.raises(OptionError) as caught:
        check_padding("conv1 (Conv2D)", padding, rank)
    assert str(caught.value) == (
        f"conv1 (Conv2D): padding must be {forms}, without negative numbers. Received padding={padding}."
    )


def test_sides_of_two_axes_in_1d() -> None:
    with pytest.raises(OptionError, match=r"padding must be an int, \(left, right\), 'same' or 'valid', without"):
        check_padding("conv1 (Conv1D)", ((1, 1), (2, 2)), 1)


@pytest.mark.parametrize(
    ("value", "rank", "expected"),
    [(3, 2, (3, 3)), ((2, 3), 2, (2, 3)), ([2, 3], 2, (2, 3)), (3, 1, (3,)), ((3,), 1, (3,)), (2, 3, (2, 2, 2))],
    ids=str,
)
def test_numbers_of_axes(value: Any, rank: int, expected: tuple[int, ...]) -> None:
    assert axis_numbers("conv1 (Conv2D)", "stride", value, rank) == expected


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        *((item, 2) for item in (0, -1, (1, 0), (2,), (1, 2, 3), (), (1.5, 2), "ab")),
        *((item, 1) for item in (0, (1, 2), "a")),
        (1.5, 2),
        (None, 2),
    ],
    ids=repr,
)
def test_bad_numbers_of_axes(value: Any, rank: int) -> None:
    numbers = "an int" if rank == 1 else "an int or a pair of ints"
    with pytest.raises(OptionError) as caught:
        axis_numbers("conv1 (Conv2D)", "stride", value, rank)
    assert str(caught.value) == f"conv1 (Conv2D): stride must be {numbers} of at least 1. Received stride={value}."


#: Size, window, stride, padding, and the windows that PyTorch 2.13's pools have in ceil_mode.
ROUNDED_UP = [
    *((4, 5, 2, 1, 2), (15, 5, 4, 2, 5), (15, 4, 4, 2, 5), (10, 2, 3, 0, 4), (14, 3, 2, 1, 8), (11, 5, 3, 1, 4)),
    *((2, 1, 4, 0, 1), (13, 1, 4, 0, 4), (13, 5, 3, 1, 5), (6, 3, 3, 1, 3), (14, 5, 2, 1, 7), (5, 4, 4, 0, 2)),
    *((112, 3, 2, 0, 56), (14, 2, 2, 0, 7), (2, 3, 2, 0, 1)),
]


@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "windows"), ROUNDED_UP)
def test_sizes_that_are_rounded_up(size: int, kernel: int, stride: int, padding: int, windows: int) -> None:
    axis = WindowAxis(kernel, stride, padding=(padding, padding)).rounded_up(size)
    assert axis.output_size(size) == windows
    # No more padding than the last window needs, and not so much that it sees nothing else.
    assert axis.padding[0] == padding
    assert padding <= axis.padding[1] < kernel
    assert axis.padding[1] == max(padding, (windows - 1) * stride + kernel - size - padding)
