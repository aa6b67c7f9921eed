"""Arrays that stay in their files: the values are those in memory, and what is said where a file is not what it was."""

from __future__ import annotations

import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets import source, user_data
from blobnet.datasets.dataset import Dataset
from blobnet.datasets.file_source import FileSource
from blobnet.datasets.source import IndexedSource, Source, UnitsFirst
from blobnet.errors import BlobnetWarning, DataError, FileError

COUNT, CLASSES = 23, 5
KINDS = ("npz", "npy", "h5", "chunked", "grown")


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (source, user_data):
        monkeypatch.setattr(module, "KEPT_BYTES", 0)


def write(path: Path, kind: str, **arrays: np.ndarray) -> Path:
    """A file, or a folder, of arrays."""
    if kind == "npz":
        np.savez(path / "data.npz", **arrays)
        return path / "data.npz"
    if kind == "npy":
        (path / "data").mkdir()
        for name, values in arrays.items():
            np.save(path / "data" / f"{name}.npy", values)
        return path / "data"
    with h5py.File(path / "data.h5", "w") as file:
        for name, values in arrays.items():
            settings: dict[str, Any] = {"data": values}
            if kind == "chunked":
                settings |= {"chunks": (4, *values.shape[1:]), "compression": "gzip"}
            if kind == "grown":
                settings = {"shape": (0, *values.shape[1:]), "maxshape": (None, *values.shape[1:])}
            stored = file.create_dataset(name, dtype=values.dtype, **settings)
            if kind == "grown":
                stored.resize(len(values), axis=0)
                stored[:] = values
    return path / "data.h5"


def samples(dtype: str, shape: tuple[int, ...] = (3, 5, 7), count: int = COUNT) -> np.ndarray:
    values = np.random.default_rng(3).normal(60, 20, (count, *shape))
    return np.asarray(values > 60 if dtype == "?" else values.astype(dtype))


def labels(count: int = COUNT) -> np.ndarray:
    found = np.random.default_rng(4).integers(0, CLASSES, count)
    found[:CLASSES] = np.arange(CLASSES)
    return found


def same(stored: Any, values: np.ndarray) -> None:
    """A source gives what an array has, in any order and as a slice."""
    assert isinstance(stored, Source)
    assert stored.shape == values.shape
    np.testing.assert_array_equal(np.asarray(stored), values)
    rng = np.random.default_rng(5)
    for _ in range(5):
        rows = rng.integers(0, len(values), rng.integers(1, 2 * len(values)))
        np.testing.assert_array_equal(np.asarray(stored[rows]), values[rows])
    np.testing.assert_array_equal(np.asarray(stored[4:19:3]), values[4:19:3])
    np.testing.assert_array_equal(np.asarray(stored[7:12]), values[7:12])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["u1", "<f4", ">f4", "<i2", ">u2", "f2", "f8", "i8", "?"])
def test_samples_are_those_of_the_array(tmp_path: Path, kind: str, dtype: str) -> None:
    x, y = samples(dtype), labels()
    data = datasets.load(write(tmp_path, kind, x=x, y=y, x_val=x[:9], y_val=y[:9]))
    assert isinstance(data.train.x, FileSource if kind in ("npz", "npy", "h5") else IndexedSource)
    kept = dtype if dtype in ("u1", "<f4", "<i2", "f2") else "u1" if dtype == "?" else "f4"
    assert data.train.x.dtype == np.dtype(kept)
    same(data.train.x, x.astype(kept))
    same(data.train.y, y)
    assert data.validation is not None
    np.testing.assert_array_equal(np.asarray(data.validation.x), x[:9].astype(kept))
    assert data.class_names == tuple("01234")
    assert repr(data) == "data: 23 + 9 samples of (3, 5, 7), 5 classes"


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_and_parts(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples("<f4"), labels()
    data = datasets.load(write(tmp_path, kind, x=x, y=y))
    mean, deviation = data.statistics()
    np.testing.assert_allclose(mean, x.mean(axis=(0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(deviation, x.std(axis=(0, 2, 3)), rtol=1e-5)
    train, held_out = data.train.split_validation(0.3, seed=1)
    order = np.random.default_rng(1).permutation(COUNT)
    np.testing.assert_array_equal(np.asarray(held_out.x), x[np.sort(order[:7])])
    np.testing.assert_array_equal(np.asarray(train.y), y[order[7:]])
    monkeypatch.setattr("blobnet.datasets.dataset.STATISTICS_BYTES", x.nbytes // 4)
    np.testing.assert_allclose(data.statistics()[0], x[::4].mean(axis=(0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_stay_in_the_file(tmp_path: Path, kind: str) -> None:
    x, y = samples("u1"), samples("f8", (2, 3))
    data = datasets.load(write(tmp_path, kind, x=x, y=y))
    same(data.train.y, y)
    assert (data.train.y.dtype, data.classes) == (np.float64, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_hot_rows_become_classes(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobnet.datasets.checks.CHUNK_ELEMENTS", 3 * CLASSES)
    x, y = samples("u1"), labels()
    data = datasets.load(write(tmp_path, kind, x=x, y=np.eye(CLASSES, dtype=np.uint8)[y]))
    np.testing.assert_array_equal(data.train.y, y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(6, 7), (6, 7, 3), (6, 7, 1), (3, 6, 7)])
def test_axes_of_keras(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    x, y = samples("u1", shape), labels()
    data = datasets.load(write(tmp_path, kind, x_train=x, y_train=y[:, None], x_test=x[:4], y_test=y[:4, None]))
    assert isinstance(data.train.x, Source if shape[0] == 3 else UnitsFirst)
    same(data.train.x, x if shape[0] == 3 else x[:, None] if len(shape) == 2 else x.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.train.y, y)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_are_no_classes(tmp_path: Path, kind: str) -> None:
    x, y = samples("u1"), labels()
    y[17] = 9
    path = write(tmp_path, kind, x=x, y=y, class_names=np.array([b"a", b"b", b"c", b"d", b"e"]))
    with pytest.raises(DataError, match=r"class numbers must be below 5. Received sample=17, label=9"):
        datasets.load(path)


def test_values_that_are_not_finite_are_found_when_they_are_read(tmp_path: Path) -> None:
    x = samples("f8")
    x[13, 1, 2, 3] = 1e300
    data = datasets.load(write(tmp_path, "npy", x=x, y=labels()))
    np.asarray(data.train.x[:13])
    with pytest.raises(DataError, match=r"x.npy: x must hold finite float32 values. Received index=\(13, 1, 2, 3\)"):
        np.asarray(data.train.x[5:])


@pytest.mark.parametrize("kind", ["npz", "npy", "h5"])
def test_a_file_that_is_cut_short(tmp_path: Path, kind: str) -> None:
    x = samples("<f4")
    path = write(tmp_path, kind, x=x, y=labels())
    file = path / "x.npy" if kind == "npy" else path
    data = datasets.load(path)
    whole = file.read_bytes()
    file.write_bytes(whole[:3000])
    with pytest.raises(DataError, match=r"the file must stay as it was. Received file=.*bytes=3000, before=\d{4,}"):
        np.asarray(data.train.x[:1])
    with pytest.raises(DataError, match=r"the file must stay as long as it was. Received file=.*ends_at=3000"):
        np.asarray(data.train.x)
    rule = {"npz": "be a readable .npz file", "npy": "hold the whole array, but it is cut", "h5": "be a readable HDF5"}
    with pytest.raises(FileError, match=f"^{re.escape(str(file))}: the file must {rule[kind]}"):
        datasets.load(path)


def test_a_folder_says_what_it_lacks(tmp_path: Path) -> None:
    path = write(tmp_path, "npy", x=samples("u1"), z=labels())
    with pytest.raises(FileError, match=r"data: it must hold the arrays x and y. Received found=\['x', 'z'\]"):
        datasets.load(path)
    np.save(path / "y.npy", labels()[:7])
    with pytest.raises(DataError, match=r"the same number of samples. Received x_shape=\(23.*y_shape=\(7,\)"):
        datasets.load(path)
    np.save(path / "y.npy", labels().astype(complex))
    with pytest.raises(DataError, match=r"^/.*y.npy: y must hold real numbers. Received dtype=complex128"):
        datasets.load(path)
    (path / "y.npy").write_text("nothing")
    with pytest.raises(FileError, match=r"y.npy: the file must be a readable .npy array"):
        datasets.load(path)
    (tmp_path / "z.npy").write_bytes(b"")
    with pytest.raises(FileError, match=re.escape("a .npy file of a data set must be x.npy")):
        datasets.load(tmp_path / "z.npy")


def test_the_name_of_the_samples_stands_for_their_folder(tmp_path: Path) -> None:
    path = write(tmp_path, "npy", x=samples("u1"), y=labels())
    assert (
        repr(datasets.load(path / "x.npy")) == repr(datasets.load(path)) == "data: 23 samples of (3, 5, 7), 5 classes"
    )


@pytest.mark.parametrize("how", ["compressed", "Fortran", "Fortran npy"])
def test_what_cannot_be_read_in_parts_is_read_as_a_whole(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_data, "_NOTED_BYTES", 1000)
    x, y = samples("u1"), labels()
    if how == "compressed":
        np.savez_compressed(tmp_path / "data.npz", x=x, y=y)
        path = tmp_path / "data.npz"
    else:
        path = write(tmp_path, "npy" if "npy" in how else "npz", x=np.asfortranarray(x), y=y)
    state = "it=is compressed" if how == "compressed" else "it=is in Fortran's order"
    with pytest.warns(BlobnetWarning, match=f"x: an array that is larger than memory should.*{state}, bytes=2"):
        data = datasets.load(path)
    assert isinstance(data.train.x, np.ndarray)
    np.testing.assert_array_equal(data.train.x, x)


def test_an_archive_whose_members_are_not_where_it_says(tmp_path: Path) -> None:
    path = write(tmp_path, "npz", y=labels(), x=samples("u1"))
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("x.npy").header_offset
    content = bytearray(path.read_bytes())
    content[place : place + 4] = struct.pack("<I", 7)
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"the file must be a readable .npz file. Received reason=Bad magic number"):
        datasets.load(path)


def test_small_files_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("npz", "npy", "h5"):
        for module in (source, user_data):
            monkeypatch.setattr(module, "KEPT_BYTES", 1 << 20)
        (tmp_path / kind).mkdir()
        data: Dataset = datasets.load(write(tmp_path / kind, kind, x=samples("u1"), y=labels()))
        assert type(data.train.x) is type(data.train.y) is np.ndarray


def test_units_that_come_last_are_noted(tmp_path: Path) -> None:
    x, y = samples("u1", (6, 6, 3)), labels()
    rule = r"data.npz: samples should have the axes .samples, units, height, width., but these seem to have their units"
    with pytest.warns(BlobnetWarning, match=rule):
        datasets.load(write(tmp_path, "npz", x=x, y=y))
    datasets.load(write(tmp_path, "npz", x_train=x, y_train=y))
    datasets.load(write(tmp_path, "npz", x=samples("u1", (3, 6, 6)), y=y))
    datasets.load(write(tmp_path, "npz", x=samples("u1", (1, 1, 1)), y=y))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_alone(tmp_path: Path, kind: str) -> None:
    x = samples("f4")
    same(user_data.read_samples(write(tmp_path, kind, x=x)), x)
    (tmp_path / "other").mkdir()
    path = write(tmp_path / "other", kind, x_train=x[:, 0], y_train=labels(), x_test=x[:11, 1])
    np.testing.assert_array_equal(np.asarray(user_data.read_samples(path)), x[:11, 1:2])


def test_damage_within_arrays_of_archives_is_found(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (COUNT, 1, 4, 4), np.uint8)
    path = write(tmp_path, "npz", x=x, y=np.arange(COUNT) % CLASSES)
    content = bytearray(path.read_bytes())
    content[content.index(x.tobytes()) + 77] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        FileError, match=r"data\.npz: the file must be a readable \.npz file\. Received reason=Bad CRC-32"
    ):
        datasets.load(path)
