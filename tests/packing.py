"""Tar archives to read, as other tools write them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def as_png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def pack(path: Path, members: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> Path:
    """An archive of these files, in their order."""
    with tarfile.open(path, "w") as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def pack_digits(path: Path, split: Any, first: int, count: int) -> Path:
    """Some samples of the real digits, from 0 to 16, as pictures and their classes."""
    members: dict[str, bytes] = {}
    for number in range(first, first + count):
        pixels = (split.x[number, 0] * 15).astype(np.uint8)
        members |= {f"{number:03}.png": as_png(pixels), f"{number:03}.cls": str(split.y[number]).encode()}
    return pack(path, members)
