"""Where the units of pictures are: first here, last in files of TensorFlow and Keras, and as cameras give them."""

from __future__ import annotations

from collections.abc import Sequence

#: The orders of a transpose that puts units first, and of one that puts them last.
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def has_units_last(axes: Sequence[int | str]) -> bool:
    """Return True if the axes of an input are those of gray or RGB pictures, (samples, height, width, units)."""
    return len(axes) == 4 and axes[1] not in (1, 3) and axes[3] in (1, 3)


def with_units_first(sample: Sequence[int], units: int) -> tuple[int, ...]:
    """Return the shape of a sample: of (height, width, ``units``) as (units, height, width), any other as it is."""
    return (sample[2], *sample[:2]) if len(sample) == 3 and sample[2] == units else (*sample,)
