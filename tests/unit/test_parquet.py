"""Parquet files of pictures and labels, as the package datasets writes them: what is read, and what is refused."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets import image_folder, parquet
from blobnet.errors import BlobnetWarning, DataError, FileError, OptionError
from tests.packing import as_png, pack_table, picture, planes

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")
NAMES = ["zebra", "ant", "bee|wasp"]
FEATURES = {
    "img": {"_type": "Image"},
    "fine": {"names": NAMES, "_type": "ClassLabel"},
    "note": {"dtype": "string", "_type": "Value"},
    "tags": {"feature": {"names": ["x", "y"], "_type": "ClassLabel"}, "_type": "List"},
}


def cells(count: int, first: int = 0) -> list[tuple[bytes, str]]:
    return [(as_png(picture(number)), f"{number:03}.png") for number in range(first, first + count)]


def table(path: Path, count: int = 7, first: int = 0, **changes: Any) -> Path:
    """Pictures with classes, in groups of three rows."""
    columns = {"img": cells(count, first), "fine": [number % 3 for number in range(count)]} | changes
    columns = {name: values for name, values in columns.items() if values is not None}
    return pack_table(path, columns, {name: FEATURES.get(name) for name in columns}, row_group_size=3)


@pytest.mark.parametrize("kept", [0, 1 << 26])
@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_and_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, workers: int) -> None:
    """In the order of the schema's names, not of their letters."""
    monkeypatch.setattr(image_folder, "KEPT_BYTES", kept)
    for number, first in enumerate((0, 10)):
        table(tmp_path / f"train-0000{number}-of-00002.parquet", first=first)
    table(tmp_path / "validation-00000-of-00001.parquet", 2, 20)
    table(tmp_path / "test-00000-of-00001.parquet", 4, 30)
    data = datasets.load(tmp_path, workers=workers)
    assert data.validation is not None
    assert data.test is not None
    assert [len(split) for split in (data.train, data.validation, data.test)] == [14, 2, 4]
    assert data.class_names == tuple(NAMES)
    assert data.train.y.tolist() == [0, 1, 2, 0, 1, 2, 0] * 2
    rows = np.array([13, 0, 6, 7, 0])
    np.testing.assert_array_equal(np.asarray(data.train.x[rows]), planes(16, 0, 6, 10, 0))
    np.testing.assert_array_equal(np.asarray(data.test.x), planes(30, 31, 32, 33))
    assert data.train.files[8] == f"{tmp_path}/train-00001-of-00002.parquet, row 1, 011.png"
    assert len(datasets.load(tmp_path / "test-*.parquet").train) == 4


@pytest.mark.parametrize("settings", [{"compression": "zstd"}, {"use_dictionary": True}, {"write_page_checksum": True}])
@pytest.mark.parametrize("kind", ["binary", "large_binary"])
def test_columns_of_bytes(tmp_path: Path, settings: Any, kind: str) -> None:
    """Of other writers, with labels of a type of their own, and nothing in the metadata."""
    pictures = pa.array([own for own, _ in cells(5)], kind)
    columns = {"a": pa.array([3, 1, 3, 2, 1], "int8"), "photo": pictures}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2, **settings)
    data = datasets.load(tmp_path / "a.parquet")
    assert data.class_names == ("1", "2", "3")
    assert data.train.y.tolist() == [2, 0, 2, 1, 0]
    np.testing.assert_array_equal(data.train.x, planes(0, 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("changes", "asked", "names", "y"),
    [
        ({}, "fine", tuple(NAMES), [0, 1]),
        ({"fine": None, "label": ["ox", "cow"]}, None, ("cow", "ox"), [1, 0]),
        ({"fine": None, "note": ["b", "a"]}, None, ("a", "b"), [1, 0]),
        ({"size": [1.5, 2.25]}, "size", ("size",), [[1.5], [2.25]]),
        ({"tags": [[1], [0, 1]]}, ["img", "tags"], ("x", "y"), [[0, 1], [1, 1]]),
        ({"u": [True, False], "v": [True, True]}, ["u", "v"], ("u", "v"), [[1, 1], [0, 1]]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*left out")
def test_labels(tmp_path: Path, changes: Any, asked: Any, names: tuple[str, ...], y: Any) -> None:
    data = datasets.load(table(tmp_path / "a.parquet", 2, **changes), columns=asked)
    assert (data.class_names or data.target_names) == names
    np.testing.assert_array_equal(data.train.y, y)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    table(tmp_path / "train.parquet", note=["-"] * 7)
    table(tmp_path / "test.parquet", 2, fine=[-1, -1], note=["-"] * 2)
    said = r"left out: 2 rows of the test split, which has no labels, 1 columns \(note\)"
    with pytest.warns(BlobnetWarning, match=said):
        assert datasets.load(tmp_path).test is None


def test_an_epoch_reads_group_after_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no group twice, although few are kept."""
    monkeypatch.setattr(image_folder, "KEPT_BYTES", 0)
    for number in range(3):
        table(tmp_path / f"{number}.parquet", 12, 20 * number)
    monkeypatch.setattr(parquet, "_KEPT_BYTES", 0)  # At least three groups stay, and so the buffer is one group.
    x = datasets.load(tmp_path, workers=0).train.x
    orders = [x.order(np.arange(36), np.random.default_rng(seed)) for seed in range(2)]
    assert (orders[0] != orders[1]).any()
    for order in orders:
        assert sorted(order) == list(range(36))
        groups = order.reshape(-1, 3) // 3
        assert ((groups.max(1) - groups.min(1)) == 0).all()
    read = []
    plain = parquet._Groups._read
    monkeypatch.setattr(parquet._Groups, "_read", lambda self, *place: read.append(place) or plain(self, *place))
    x = datasets.load(tmp_path, workers=0, shuffle_buffer=4).train.x
    order, read[:] = x.order(np.arange(36), np.random.default_rng(5)), []
    expected = [20 * (number // 12) + number % 12 for number in order]
    np.testing.assert_array_equal(np.asarray(x[order]), planes(*expected))
    assert len(read) == len(set(read)) == 12


def test_a_cell_becomes_its_bytes_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_folder, "KEPT_BYTES", 0)
    cell = datasets.load(table(tmp_path / "a.parquet"), workers=0).train.x._source._paths[4]
    held = pickle.loads(pickle.dumps(cell))
    assert (str(held), held.suffix, held.data) == (f"{tmp_path}/a.parquet, row 4, 004.png", ".png", cells(5)[4][0])
    assert (cell.size, cell.piece) == (held.size, (f"{tmp_path}/a.parquet", 1))


def test_every_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = table(tmp_path / "whole.parquet").read_bytes()
    for cut in range(0, len(whole), 97):
        (tmp_path / "cut.parquet").write_bytes(whole[:cut])
        with pytest.raises(
            FileError, match=r"cut\.parquet: the file must be a readable Parquet file\. Received reason="
        ):
            datasets.load(tmp_path / "cut.parquet")


def test_damage_is_an_error_or_changes_nothing_else(tmp_path: Path) -> None:
    """With checksums no changed byte of pictures and labels goes unseen."""
    path = tmp_path / "a.parquet"
    table(path)
    again = pq.read_table(path)
    pq.write_table(again, path, row_group_size=3, write_page_checksum=True, compression="snappy")
    whole, data = path.read_bytes(), datasets.load(path)
    random = np.random.default_rng(3)
    for place in random.integers(0, len(whole), 150):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        try:
            found = datasets.load(path)
        except (DataError, FileError, OptionError):
            continue
        np.testing.assert_array_equal(found.train.x, data.train.x)
        np.testing.assert_array_equal(found.train.y, data.train.y)


@pytest.mark.parametrize(
    ("changes", "asked", "rule"),
    [
        ({"tags": [[0]] * 7}, {}, "one column must hold the labels. Received found=fine, tags, columns=img, "),
        ({"mask": cells(7)}, {}, "one column must hold the pictures. Received found=img, mask, columns=img"),
        ({"img": ["a.png"] * 7}, {}, "one column must hold the pictures. Received found=none, columns=img, fine"),
        ({"fine": None}, {}, "one column must hold the labels. Received found=none, columns=img. Hint: --columns"),
        ({}, {"columns": "fines"}, "must have them. Received missing=fines. Hint: did you mean 'fine'?"),
        ({"fine": [0, 1, 3, 0, 0, 0, 0]}, {}, "a.parquet, row 2: a label must be the number of a class. Received "),
        ({"fine": [0, 1, None, 0, 0, 0, 0]}, {}, "a.parquet, row 2: every row must have a path and a label"),
        ({"fine": [0, -1, 1, 0, 0, 0, 0]}, {}, "a.parquet, row 1: every row must have a path and a label"),
        ({"img": [*cells(3), (None, "x/b.png"), *cells(3)]}, {}, "row 3, b.png: it must hold its picture, and not be"),
        ({"img": [*cells(3), (b"", "b.png"), *cells(3)]}, {}, "row 3, b.png: the picture must be readable and whole"),
        ({"img": [*cells(6), (as_png(picture(1, (9, 9))), None)]}, {}, "row 6: all pictures must have one size"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_do_not_do(tmp_path: Path, changes: Any, asked: Any, rule: str, workers: int) -> None:
    path = table(tmp_path / "a.parquet", **changes)
    with pytest.raises((DataError, FileError, OptionError)) as caught:
        datasets.load(path, workers=workers, **asked)
    assert rule in str(caught.value)


def test_rows_without_pictures_may_be_left_out(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", img=[*cells(3), (None, "x/b.png"), *cells(3)])
    with pytest.warns(BlobnetWarning, match="1 of 7 pictures cannot be read and are left out"):
        assert len(datasets.load(tmp_path / "a.parquet", skip_unreadable=True).train) == 6


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet")
    table(tmp_path / "b.parquet", fine=["ant"] * 7)
    rule = r"b\.parquet: all files must have columns of the same types and classes\. Received columns=.*string.*int64"
    with pytest.raises(DataError, match=rule):
        datasets.load(tmp_path)
    features = {"fine": {"names": ["ant", "zebra", "bee"], "_type": "ClassLabel"}}
    pack_table(tmp_path / "b.parquet", {"img": cells(3), "fine": [0, 1, 2]}, features)
    with pytest.raises(DataError, match=r"b\.parquet: all files must have columns of the same types and classes"):
        datasets.load(tmp_path)


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(OptionError, match=r'reading Parquet needs pyarrow.*pip install "blobnet\[parquet\]"'):
        datasets.load(tmp_path / "a.parquet")
