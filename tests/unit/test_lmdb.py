"""LMDB data bases of pictures and labels: what is read, and what is refused."""

from __future__ import annotations

import gc
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets import image_folder
from blobnet.errors import DataError, FileError, OptionError
from tests.packing import as_png, pack, pack_values, picture, planes

pytest.importorskip("lmdb", reason="lmdb is not installed")


#: Of pictures that take some pages each.
SIZE = 25, 37


def pairs(count: int, first: int = 0) -> dict[str, bytes]:
    """Pictures and classes."""
    found = {}
    for number in range(first, first + count):
        found |= {f"a/{number:03}.png": as_png(picture(number, SIZE)), f"a/{number:03}.cls": str(number % 3).encode()}
    return found


@pytest.mark.parametrize("kept", [0, 1 << 26])
@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_and_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, workers: int) -> None:
    """Of folders and of files, which tell splits; the same as from an archive."""
    monkeypatch.setattr(image_folder, "KEPT_BYTES", kept)
    pack_values(tmp_path / "train.lmdb", pairs(7))
    pack_values(tmp_path / "val.lmdb", pairs(4, 30), subdir=False)
    before = sorted(tmp_path.rglob("*"))
    data = datasets.load(tmp_path, workers=workers)
    assert data.validation is not None
    assert data.class_names == ("0", "1", "2")
    assert data.train.y.tolist() == [0, 1, 2, 0, 1, 2, 0]
    rows = np.array([6, 0, 3, 0])
    np.testing.assert_array_equal(np.asarray(data.train.x[rows]), planes(6, 0, 3, 0, size=SIZE))
    np.testing.assert_array_equal(np.asarray(data.validation.x), planes(30, 31, 32, 33, size=SIZE))
    assert data.train.files[5] == f"{tmp_path}/train.lmdb/data.mdb, a/005.png"
    assert sorted(tmp_path.rglob("*")) == before  # Nothing is written, and no lock taken.
    again = datasets.load(tmp_path / "train.lmdb")  # While it is open.
    assert again.name == "train"
    archive = datasets.load(pack(tmp_path / "a.tar", pairs(7)))
    np.testing.assert_array_equal(np.asarray(again.train.x), np.asarray(archive.train.x))
    assert len(datasets.load(f"{tmp_path}/{{train,val}}.lmdb", workers=0).train) == 7


def test_a_folder_of_any_name(tmp_path: Path) -> None:
    assert (
        repr(datasets.load(pack_values(tmp_path / "birds", pairs(3)))) == "birds: 3 samples of (3, 25, 37), 3 classes"
    )


def test_every_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """LMDB maps files: without a check a signal ends the process."""
    whole = (pack_values(tmp_path / "a.lmdb", pairs(5)) / "data.mdb").read_bytes()
    for number, cut in enumerate([*range(0, len(whole) - 4096, 4096), 100, 5000, len(whole) - 1]):
        path = tmp_path / f"{number}.mdb"
        path.write_bytes(whole[:cut])
        with pytest.raises(FileError, match=r"mdb: the file must be a readable LMDB data base\. Received reason="):
            datasets.load(path)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"00000001": pickle.dumps((b"", 3))}, "keys must be names of files. Received key=00000001. Hint: 0001.jpg"),
        ({"a.png": as_png(picture(1, SIZE))}, "a: every sample must have a label: .cls, label in .json, .txt"),
        ({"a.cls": b"0"}, "a: every sample must have one picture. Received found=cls"),
        ({"a.png": b"\x80\x04", "a.cls": b"0"}, "a.png: the picture must be readable and whole"),
        ({b"\xff.png": b"1"}, "the file must be a readable LMDB data base. Received reason='utf-8' codec can't decode"),
        ({}, "there must be samples to train on. Received found=nothing"),
    ],
)  # fmt: skip
def test_values_that_do_not_do(tmp_path: Path, values: Any, rule: str) -> None:
    with pytest.raises((DataError, FileError)) as caught:
        datasets.load(pack_values(tmp_path / "a.lmdb", values))
    assert rule in str(caught.value)


def test_a_file_that_is_written_to_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_folder, "KEPT_BYTES", 0)
    path = pack_values(tmp_path / "a.lmdb", pairs(3))
    x = datasets.load(path, workers=0).train.x
    with (path / "data.mdb").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises((DataError, FileError), match="the file must stay as it was"):
        np.asarray(x[:1])
    del x
    gc.collect()
    shutil.rmtree(path)
    assert len(datasets.load(pack_values(path, pairs(5))).train) == 5


def test_without_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack_values(tmp_path / "a.lmdb", pairs(3))
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(OptionError, match=r'reading LMDB needs lmdb.*pip install "blobnet\[lmdb\]"'):
        datasets.load(path)
