"""The arithmetic of windows: sizes and halos of convolutions and pooling, one axis at a time.

The formulas are those of docs/design.md (K taps, stride S, dilation D, padding P0/P1, H in, O out).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from blobnet.blob import Halo
from blobnet.errors import OptionError

Pair = tuple[int, int]
Padding = int | str | Pair | tuple[Pair, Pair]


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
        """Whether at least one window lies within the padded input."""
        return size + sum(self.padding) >= self.span

    def output_size(self, size: int) -> int:
        """Windows along an input of ``size`` cells."""
        return (size + sum(self.padding) - self.span) // self.stride + 1

    def input_halo(self, size: int) -> Pair:
        """Zeros that the forward pass reads before and after the input."""
        last = (self.output_size(size) - 1) * self.stride + self.span
        return self.padding[0], max(0, last - size - self.padding[0])

    def delta_halo(self, size: int) -> Pair:
        """Zeros that the backward pass reads before and after the output's delta."""
        before = max(0, (self.span - 1 - self.padding[0]) // self.stride)
        after = max(0, (size - 1 + self.padding[0]) // self.stride - (self.output_size(size) - 1))
        return before, after


def halo(vertical: Pair, horizontal: Pair) -> Halo:
    """The halo of a pair of axes."""
    return Halo(vertical[0], vertical[1], horizontal[0], horizontal[1])


def pair(subject: str, name: str, value: int | Pair, rank: int) -> Pair:
    """``value`` as (vertical, horizontal); a 1-D window takes one number and stands still vertically."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(values) != rank or not all(is_int(item, 1) for item in values):
        numbers = "an int" if rank == 1 else "an int or a pair of ints"
        received: dict[str, Any] = {name: value}
        raise OptionError(subject, f"{name} must be {numbers} of at least 1", **received)
    return (1, values[0]) if rank == 1 else (values[0], values[1])


def plain(value: Any) -> Any:
    """A hyperparameter with tuples in place of lists and arrays, and Python's numbers in place of NumPy's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(plain(item) for item in value) if isinstance(value, list | tuple) else value


def is_int(value: object, minimum: int) -> bool:
    """Whether ``value`` is a whole number, Python's or NumPy's, and no bool, of at least ``minimum``."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= minimum  # type: ignore[arg-type]
    except TypeError:
        return False


def check_count(subject: str, name: str, value: Any) -> int:
    """``value`` as Python's int; OptionError unless it is a whole number of at least 1."""
    if not is_int(value, 1):
        received: dict[str, Any] = {name: value}
        raise OptionError(subject, f"{name} must be an int of at least 1", **received)
    return operator.index(value)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(is_int(side, 0) for side in value)


def check_padding(subject: str, padding: Padding, rank: int) -> Padding:
    """``padding`` if it is one of the allowed forms."""
    if padding in ("same", "valid") or is_int(padding, 0) or _is_pair(padding):
        return padding
    if rank == 2 and isinstance(padding, tuple) and len(padding) == 2 and all(_is_pair(item) for item in padding):
        return padding
    forms = "an int, (left, right), 'same' or 'valid'"
    if rank == 2:
        forms = "an int, (vertical, horizontal), ((top, bottom), (left, right)), 'same' or 'valid'"
    raise OptionError(subject, f"padding must be {forms}, without negative numbers", padding=padding)


def window_axes(
    kernel: Pair, stride: Pair, dilation: Pair, padding: Padding, size: Pair, rank: int
) -> tuple[WindowAxis, WindowAxis]:
    """The (vertical, horizontal) axes of a window over an input of ``size``; resolves 'same' and 'valid'.

    'same' gives ceil(size / stride) outputs, with the odd zero after the data.
    """
    sides: tuple[Pair, Pair]
    if padding == "same":
        sides = tuple(  # type: ignore[assignment]
            _same(WindowAxis(kernel[axis], stride[axis], dilation[axis]), size[axis]) for axis in range(2)
        )
    elif padding == "valid":
        sides = ((0, 0), (0, 0))
    elif isinstance(padding, int):
        sides = ((padding, padding), (padding, padding))
    else:
        assert isinstance(padding, tuple)
        first, second = padding
        if isinstance(first, tuple) and isinstance(second, tuple):
            sides = (first, second)
        elif rank == 1:
            sides = ((0, 0), (first, second))  # type: ignore[assignment]
        else:
            sides = ((first, first), (second, second))  # type: ignore[assignment]
    if rank == 1:
        sides = ((0, 0), sides[1])
    vertical, horizontal = (WindowAxis(kernel[axis], stride[axis], dilation[axis], sides[axis]) for axis in range(2))
    return vertical, horizontal


def _same(axis: WindowAxis, size: int) -> Pair:
    total = max(0, (-(-size // axis.stride) - 1) * axis.stride + axis.span - size)
    return total // 2, total - total // 2


def size_text(value: object) -> str:
    """A hyperparameter of one or several axes as benchmarks write it: 3, (3, 5) as ``3x5``, ``same``."""
    return "x".join(size_text(item) for item in value) if isinstance(value, tuple) else str(value)
