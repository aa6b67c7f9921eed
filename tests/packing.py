"""Files of many pictures to read, as other tools write them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def picture(seed: int, size: tuple[int, int] = (5, 7)) -> np.ndarray:
    """Pixels of one picture, (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)


def planes(*seeds: int, size: tuple[int, int] = (5, 7)) -> np.ndarray:
    """Pictures as they are read, (N, 3, height, width)."""
    return np.stack([picture(seed, size).transpose(2, 0, 1) for seed in seeds])


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


def pack_values(path: Path, values: Mapping[Any, bytes], **settings: Any) -> Path:
    """An LMDB data base of these values by their keys."""
    lmdb = pytest.importorskip("lmdb", reason="lmdb is not installed")
    with lmdb.open(str(path), map_size=1 << 24, **settings) as database, database.begin(write=True) as view:
        for key, value in values.items():
            view.put(key if isinstance(key, bytes) else key.encode(), value)
    return path


def pack_table(path: Path, columns: Mapping[str, Sequence[Any]], features: Any = None, **settings: Any) -> Path:
    """A Parquet file of columns, of which pictures are bytes or (bytes, path), with what ``datasets`` says of them."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pictures = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    arrays = {
        name: pa.array([{"bytes": own[0], "path": own[1]} for own in values], pictures)
        if isinstance(values[0], tuple)
        else pa.array(values)
        for name, values in columns.items()
    }
    said = {"info": {"features": features}} if features is not None else {}
    table = pa.table(arrays, metadata={"huggingface": json.dumps(said)})
    pytest.importorskip("pyarrow.parquet").write_table(table, path, **settings)
    return path


def pack_digits(path: Path, split: Any, first: int, count: int) -> Path:
    """Some samples of the real digits, from 0 to 16, as pictures and their classes, in a file of the path's kind."""
    rows = range(first, first + count)
    pictures = [as_png((split.x[row, 0] * 15).astype(np.uint8)) for row in rows]
    if path.suffix == ".parquet":
        features = {"image": {"_type": "Image"}, "label": {"names": [*"0123456789"], "_type": "ClassLabel"}}
        names = [f"{row:03}.png" for row in rows]
        columns = {"image": [*zip(pictures, names, strict=True)], "label": [int(split.y[row]) for row in rows]}
        return pack_table(path, columns, features)
    members: dict[str, bytes] = {}
    for row, picture in zip(rows, pictures, strict=True):
        members |= {f"{row:03}.png": picture, f"{row:03}.cls": str(split.y[row]).encode()}
    return (pack_values if path.suffix == ".lmdb" else pack)(path, members)
