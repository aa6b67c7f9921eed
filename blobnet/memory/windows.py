"""The arithmetic of windows: sizes, halos and phases of convolutions and pooling, one axis at a time.

The formulas are those of docs/design.md (K taps, stride S, dilation D, padding P0/P1, H in, O out).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from blobnet.errors import OptionError
from blobnet.memory.blob import Halo
from blobnet.memory.blob import Pair as Pair
from blobnet.support.checks import is_int

Padding = int | str | tuple[int, ...] | tuple[Pair, ...]


@dataclass(frozen=True)
class WindowAxis:
    """A window that slides along one axis."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: Pair = (0, 0)

    @property
    def span(self) -> int:
        """Cells from the first to the last tap, both included: D(K-1)+1."""
        return self.dilation * (self.kernel - 1) + 1

    def fits(self, size: int) -> bool:
        """Return True if at least one window lies within the padded input."""
        return size + sum(self.padding) >= self.span

    def output_size(self, size: int) -> int:
        """Windows along an input of ``size`` cells."""
        return (size + sum(self.padding) - self.span) // self.stride + 1

    def meets(self, windows: int, size: int) -> bool:
        """Return True if a tap of one of so many windows lies on one of ``size`` cells, not all of them on padding."""
        taps = [self.dilation * tap - self.padding[0] for tap in range(self.kernel)]
        return any(0 <= self.stride * window + tap < size for tap in taps for window in range(windows))

    def rounded_up(self, size: int) -> WindowAxis:
        """Return the axis with padding after an input of ``size`` cells for one more window that reaches beyond it.

        Each begins within the input or the padding before it, as in PyTorch.
        """
        windows = -(-(size + sum(self.padding) - self.span) // self.stride) + 1
        windows -= (windows - 1) * self.stride >= size + self.padding[0]
        after = (windows - 1) * self.stride + self.span - size - self.padding[0]
        return replace(self, padding=(self.padding[0], max(self.padding[1], after)))

    def input_halo(self, size: int) -> Pair:
        """Zeros that the forward pass reads before and after the input."""
        last = (self.output_size(size) - 1) * self.stride + self.span
        return self.padding[0], max(0, last - size - self.padding[0])

    def delta_halo(self, size: int) -> Pair:
        """Zeros that the backward pass reads before and after the output's delta."""
        before = max(0, (self.span - 1 - self.padding[0]) // self.stride)
        after = max(0, (size - 1 + self.padding[0]) // self.stride - (self.output_size(size) - 1))
        return before, after


@dataclass(frozen=True)
class PhaseAxis:
    """A phase along one axis: its ``size`` results, the taps that these meet, and the source's cells that they read.

    Result i reads, at the j-th of ``count`` taps, cell ``i * stride + shift + j * shift_step``; that tap is number
    ``first + j * step`` of the ``filter_taps`` of the filter. ``offset`` is the first result's place. A result of
    ``beside`` phases side by side is a block of as many cells, and the filter the window that it reads (``is_window``).
    """

    offset: int
    size: int
    count: int
    first: int
    step: int
    shift: int
    shift_step: int
    filter_taps: int
    stride: int = 1
    beside: int = 1
    is_window: bool = False

    @classmethod
    def all(cls, axis: WindowAxis, size: int, *, backward: bool) -> Iterator[PhaseAxis]:
        """Backward: results ``offset``, ``offset + stride`` and so on, of taps whose way from there the stride divides.

        Forward there is one, which has all results and taps.
        """
        sign, stride, divisor = (-1, 1, axis.stride) if backward else (1, axis.stride, 1)
        common = math.gcd(divisor, axis.dilation)
        for offset in range(min(divisor, size)):
            ways = [offset + sign * (tap * axis.dilation - axis.padding[0]) for tap in range(axis.kernel)]
            taps = [tap for tap, way in enumerate(ways) if way % divisor == 0]
            met = 0, 1, 0, 0
            if taps:
                met = taps[0], divisor // common, ways[taps[0]] // divisor, sign * axis.dilation // common
            yield cls(offset, -(-(size - offset) // divisor), len(taps), *met, axis.kernel, stride)

    @classmethod
    def side_by_side(cls, axis: WindowAxis, size: int) -> PhaseAxis | None:
        """All backward phases: blocks of ``stride`` cells, which read one window of the delta, part of it for nothing.

        The first block begins where the window is smallest. None where every window reads beyond the halo.
        """
        (before, after), last, found = axis.delta_halo(size), axis.output_size(size) - 1, []
        for ahead in range(axis.stride):
            blocks = (size - 1 + ahead) // axis.stride + 1
            pairs = product(range(axis.stride), range(axis.kernel))
            ways = [cell - ahead + axis.padding[0] - tap * axis.dilation for cell, tap in pairs]
            shifts = [way // axis.stride for way in ways if way % axis.stride == 0]
            if min(shifts) >= -before and blocks - 1 + max(shifts) <= last + after:
                count = max(shifts) - min(shifts) + 1
                found.append(cls(-ahead, blocks, count, 0, 1, max(shifts), -1, count, 1, axis.stride, True))
        return min(found, key=lambda item: item.count, default=None)

    def taps_inside(self, size: int) -> int:
        """Products of its results and taps with a cell of a source of ``size`` cells and not of its halo."""
        first = (i * self.stride + self.shift for i in range(self.size))
        return sum(0 <= cell + j * self.shift_step < size for cell in first for j in range(self.count))


def halo_of_input(vertical: WindowAxis, horizontal: WindowAxis, height: int, width: int) -> Halo:
    """The zeros that a convolution reads around its input."""
    before, after = horizontal.input_halo(width)
    # A row of the output must fit the pitch, or two of its cells would be one position.
    after = max(after, horizontal.output_size(width) - width)
    return Halo(vertical.input_halo(height), (before, after))


def halo_of_delta(vertical: WindowAxis, horizontal: WindowAxis, height: int, width: int) -> Halo:
    """The zeros that its backward pass reads around its output's delta."""
    before, after = horizontal.delta_halo(width)
    # A row of the widest phase must fit the pitch, or two cells of a phase would be one position.
    after = max(after, -(-width // horizontal.stride) - horizontal.output_size(width))
    return Halo(vertical.delta_halo(height), (before, after))


def axis_numbers(subject: str, name: str, value: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """``value`` as a number for each of ``rank`` axes, the outermost first: one int is for all of them.

    Raises:
        OptionError: it is neither an int nor as many of them as there are axes, or one is below 1.
    """
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(values) != rank or not all(is_int(item, 1) for item in values):
        numbers = ("an int", "an int or a pair of ints", "an int or three ints")[rank - 1]
        received: dict[str, Any] = {name: value}
        raise OptionError(subject, f"{name} must be {numbers} of at least 1", **received)
    return values


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(is_int(side, 0) for side in value)


def _sides(padding: Any, rank: int) -> tuple[Pair, ...] | None:
    """(before, after) for each axis, from all allowed forms but 'same'; None for what is none of them."""
    if padding == "valid":
        return ((0, 0),) * rank
    if is_int(padding, 0):
        return ((padding, padding),) * rank
    if rank == 1 and _is_pair(padding):
        return (padding,)
    if not isinstance(padding, tuple) or len(padding) != rank or rank == 1:
        return None
    if all(map(_is_pair, padding)):
        return padding
    return tuple((side, side) for side in padding) if all(is_int(side, 0) for side in padding) else None


def check_padding(subject: str, padding: Padding, rank: int) -> Padding:
    """``padding`` if it is one of the allowed forms, for ``rank`` axes.

    Raises:
        OptionError: it is not.
    """
    if padding == "same" or _sides(padding, rank) is not None:
        return padding
    forms = (
        "an int, (left, right), 'same' or 'valid'",
        "an int, (vertical, horizontal), ((top, bottom), (left, right)), 'same' or 'valid'",
        "an int, one for each axis, ((front, back), (top, bottom), (left, right)), 'same' or 'valid'",
    )[rank - 1]
    raise OptionError(subject, f"padding must be {forms}, without negative numbers", padding=padding)


def axis_padding(padding: Padding, windows: Sequence[WindowAxis], sizes: Sequence[int]) -> tuple[Pair, ...]:
    """(before, after) for each axis, from one of the forms that check_padding allows; resolves 'same' and 'valid'.

    'same' gives ceil(size / stride) outputs, with the odd zero after the data.
    """
    if padding == "same":
        return tuple(_same(window, size) for window, size in zip(windows, sizes, strict=True))
    sides = _sides(padding, len(windows))
    assert sides is not None
    return sides


def axes_of_window(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], padding: Padding, sizes: Sequence[int]
) -> tuple[WindowAxis, ...]:
    """A window over an input of ``sizes``, an axis for each of them."""
    windows = [WindowAxis(*numbers) for numbers in zip(kernel, stride, dilation, strict=True)]
    sides = axis_padding(padding, windows, sizes)
    return tuple(replace(window, padding=side) for window, side in zip(windows, sides, strict=True))


def _same(axis: WindowAxis, size: int) -> Pair:
    total = max(0, (-(-size // axis.stride) - 1) * axis.stride + axis.span - size)
    return total // 2, total - total // 2
