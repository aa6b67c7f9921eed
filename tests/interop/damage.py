"""Files that are cut off or changed at random."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from blobnet.errors import FileError, OptionError, ShapeError

#: How many copies of a file are changed.
COPIES = 300


def refusals(path: Path, load: Callable[[Path], object], *, cuts: int, lengths: Iterable[int], places: int) -> int:
    """How many changed copies of a file are refused, by an error of ours: the others are other numbers.

    Every file that is cut off must be refused as one.

    Args:
        path: of the file, which is written over.
        load: reads it.
        cuts: random lengths to which it is cut, besides ``lengths``; negative ones count from its end.
        lengths: further ones.
        places: bytes that change in each copy.
    """
    whole, random = path.read_bytes(), np.random.default_rng(0)
    further = {length % len(whole) for length in lengths}
    for length in sorted({*further, *random.integers(0, len(whole), cuts).tolist()}):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError):
            load(path)
    refused = 0
    for _ in range(COPIES):
        changed = bytearray(whole)
        for place in random.integers(0, len(whole), places):
            changed[place] = random.integers(256)
        path.write_bytes(changed)
        try:
            load(path)
        except (FileError, ShapeError, OptionError):
            refused += 1
    return refused
