"""Data sets from strangers: nothing is read from other files, no code of theirs runs, no size is believed."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets import user_data
from blobnet.datasets.pictures import image_size
from blobnet.errors import BlobnetError, BlobnetWarning, DataError, FileError
from blobnet.support import regular_file

X, Y = np.arange(192, dtype=np.uint8).reshape(3, 1, 8, 8), np.arange(3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With files that belong to somebody else."""
    with h5py.File(tmp_path / "others.h5", "w") as file:
        file["x"] = X
    (tmp_path / "others.bin").write_bytes(X.tobytes())
    return tmp_path


def linked(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("others.h5", "/x")


def linked_softly(file: h5py.File) -> None:
    file["elsewhere"] = h5py.ExternalLink("others.h5", "/")
    file["x"] = h5py.SoftLink("/elsewhere/x")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(X.shape, "u1")
    layout[:] = h5py.VirtualSource("others.h5", "x", X.shape)
    file.create_virtual_dataset("x", layout)


def external(file: h5py.File) -> None:
    file.create_dataset("x", X.shape, "u1", external=[("others.bin", 0, X.nbytes)])


def filtered(file: h5py.File) -> None:
    """By a filter that HDF5 would look for in folders of plug-ins; no chunk is there, so that it can be written."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((1, 1, 8, 8))
    made.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
    h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, h5py.h5s.create_simple(X.shape), made)


def huge(file: h5py.File) -> None:
    file.create_dataset("x", (1 << 40, 1, 8, 8), "u1", chunks=(1, 1, 8, 8))


def doubled(file: h5py.File) -> None:
    """Many names for one array, which takes no room in the file."""
    file.create_dataset("x", (1 << 20, 1, 8, 8), "u1", compression="gzip")
    for name in ("x_test", "x_val", "x_valid", "x_validation", "x_train", "y", "y_test", "y_val", "y_train"):
        file[name] = file["x"]


IN_ITSELF = "an array must lie in the file itself: links are not followed"
SIZE = "what is read into memory must be no more than 256 times its file, or 1 GiB"
HDF5: dict[Callable[[h5py.File], None], str] = {
    linked: rf"h5, x: {IN_ITSELF}\. Received link=ExternalLink, to='/x'",
    linked_softly: rf"h5, x: {IN_ITSELF}\. Received link=SoftLink, to='/elsewhere/x'\. Hint: file\[name\]",
    virtual: r"h5, x: the values of an array must lie in the file itself\. Received storage=virtual",
    external: r"h5, x: the values of an array must lie in the file itself\. Received storage=external",
    filtered: r"h5, x: an array must be packed by filters that HDF5 has.*filter=32001.*Hint: h5repack -f GZIP=4",
    huge: rf"h5, all arrays: {SIZE}\. Received bytes=8796093022232",
    doubled: rf"h5, all arrays: {SIZE}\. Received bytes=671088640",
}


@pytest.mark.parametrize("change", HDF5)
def test_hdf5(folder: Path, change: Callable[[h5py.File], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_file, "MIN_MOST", 1 << 29)
    path = folder / "data.h5"
    with h5py.File(path, "w") as file:
        change(file)
        if "y" not in file:
            file["y"] = Y
    for read in (datasets.load, user_data.read_samples):
        with pytest.raises(DataError, match=HDF5[change]):
            read(path)


def header(shape: object, descr: object = "|u1") -> bytes:
    """The beginning of a .npy file."""
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin-1")


#: NumPy divides by zero where it reads the first one, and that ends the process.
TYPES = ["<M8[7Y/0]", "|,1", "(2,f4", (), [("a", "<f4")], "|O", {"names": 1}, None, "<V4", "((" * 90]
SHAPES = [(3.0,), 3, [3], None, "(3,)"]
READ = """
import sys
from blobnet.datasets import user_data
for path in sys.argv[1:]:
    try:
        user_data.read_samples(user_data.Path(path))
    except user_data.FileError as error:
        print(error)
"""


def test_headers_of_no_plain_arrays(tmp_path: Path) -> None:
    headers = [*(header((3,), each) for each in TYPES), *map(header, SHAPES)]
    paths = [tmp_path / f"{number}.npy" for number in range(len(headers))]
    for path, data in zip(paths, headers, strict=True):
        path.write_bytes(data + bytes(100))
    run = subprocess.run([sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run
    said = run.stdout.splitlines()
    assert len(said) == len(paths)
    for path, line in zip(paths, said, strict=True):
        assert line.startswith(f"{path}: the file must be a readable .npy array. Received reason=the "), line


@pytest.mark.filterwarnings("ignore:Reading .*Python 2")  # NumPy's own.
def test_headers_of_python_2(tmp_path: Path) -> None:
    path, values = tmp_path / "x.npy", np.arange(24, dtype=np.uint8).reshape(1, 2, 3, 4)
    path.write_bytes(header((1, 2, 3, 4)).replace(b"(1, 2, 3, 4)", b"(1L,2L,3, 4)") + values.tobytes())
    np.testing.assert_array_equal(np.asarray(user_data.read_samples(path)), values)


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_headers_that_say_more_than_there_is(tmp_path: Path, packing: int) -> None:
    """NumPy would take the memory first."""
    data = header((1 << 44, 1, 8, 8)) + bytes(100)
    (tmp_path / "x.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "data.npz", "w", packing) as archive:
        archive.writestr("x.npy", data)
        archive.writestr("y.npy", header((3,)) + bytes(3))
    rule = r"Received reason=the array needs 1125899906842752 bytes, and there are 228\."
    for name, kind in (("x.npy", ".npy array"), ("data.npz", ".npz file")):
        with pytest.raises(FileError, match=f"{name}: the file must be a readable {kind}. {rule}"):
            user_data.read_samples(tmp_path / name)
    with pytest.raises(FileError, match=rf"x\.npy: the file must be a readable \.npy array. {rule}"):
        datasets.read_image(tmp_path / "x.npy", (1, 8, 8))
    (tmp_path / "x.npy").write_bytes(b"no array")
    for read in (image_size, lambda path: datasets.read_image(path, (1, 8, 8))):
        with pytest.raises(FileError, match=r"x\.npy: the file must be a readable \.npy array"):
            read(tmp_path / "x.npy")


@pytest.mark.parametrize("shape", [(True, 4), (-1, 4), (-2, -2)], ids=str)
def test_headers_whose_shape_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    data = header(shape) + bytes(1000)
    (tmp_path / "x.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", data)
        archive.writestr("y.npy", header((3,)) + bytes(3))
    for most in (user_data.KEPT_BYTES, 16):  # What is larger stays in its file.
        monkeypatch.setattr(user_data, "KEPT_BYTES", most)
        for name, read in (("x.npy", user_data.read_samples), ("data.npz", datasets.load)):
            with pytest.raises(FileError, match=f"{name}: .*the header says that the shape is {re.escape(str(shape))}"):
                read(tmp_path / name)


def test_an_archive_that_unpacks_to_more_than_it_can(tmp_path: Path) -> None:
    """Its list of files says 4 GB."""
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.zeros((100, 1, 8, 8), np.uint8), y=np.zeros(100, int))
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 0xFFFFFFF0)
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"all arrays: {SIZE}"):
        datasets.load(path)


def test_damage_ends_in_an_error_of_blobnets(tmp_path: Path) -> None:
    random, refused = np.random.default_rng(0), 0
    for kind in ("h5", "npz"):
        path = tmp_path / f"data.{kind}"
        if kind == "h5":
            with h5py.File(path, "w") as file:
                file.update({"x": X, "y": Y})
        else:
            np.savez_compressed(path, x=X, y=Y)
        content = path.read_bytes()
        for position in random.integers(0, len(content), 120):
            damaged = bytearray(content)
            damaged[position] ^= int(random.integers(1, 256))
            path.write_bytes(damaged)
            try:
                datasets.load(path)
            except BlobnetError:
                refused += 1
    assert 40 < refused < 240


@pytest.mark.parametrize("text", ['{"a": [[[' + "[" * 100_000, '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}"])
def test_lists_of_classes(tmp_path: Path, text: str) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "class_index.json").write_text(text)
    with pytest.raises(BlobnetError, match=r"class_index\.json: "):
        datasets.load(tmp_path)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    # 60 KB that decode to 3.6 GB.
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    (tmp_path / "bomb.png").write_bytes(
        bomb + chunk(b"IDAT", zlib.compress(bytes(60_000_000), 1)) + chunk(b"IEND", b"")
    )
    with pytest.raises(FileError, match=r"bomb\.png: the picture must be readable and whole.*3600000000 pixels"):
        datasets.read_image(tmp_path / "bomb.png", (1, 8, 8))
    # PostScript in a file that is called a picture: Pillow would hand it to Ghostscript.
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *arguments, **settings: pytest.fail("it ran"))
    image.new("L", (8, 8)).save(tmp_path / "code.png", "EPS")
    assert (tmp_path / "code.png").read_bytes().startswith(b"%!PS")
    with pytest.raises(FileError, match=r"code\.png: the picture must be readable and whole.*cannot identify"):
        datasets.read_image(tmp_path / "code.png", (1, 8, 8))


def test_arrays_that_are_too_much_together(tmp_path: Path) -> None:
    """Each of them is not; what stays in the file takes no memory."""
    path = tmp_path / "data.npz"
    one = np.zeros((1 << 29, 1), np.uint8)
    np.savez_compressed(path, x=one, x_test=one, y=np.zeros(1, np.uint8))
    with pytest.raises(
        DataError, match=rf"data\.npz, all arrays: {SIZE}\. Received bytes=10737422\d\d, most=1073741824"
    ):
        user_data.read_samples(path)


def test_a_picture_that_is_larger_than_its_file(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("1", (9_000, 9_000)).save(tmp_path / "a.png")
    rule = "decoding a picture must take no more than 256 times its file, or 1 GiB. Received pixels=81000000, bytes="
    for read in (image_size, lambda path: datasets.read_image(path, (1, 8, 8))):
        with pytest.raises(FileError, match=re.escape(rule)):
            read(tmp_path / "a.png")
    image.new("1", (5_000, 5_000)).save(tmp_path / "b.png")
    assert image_size(tmp_path / "b.png") == (5000, 5000)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_table_of_pictures_that_are_not_there(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("PIL")
    rows = "".join(f"a{number}.png,b\n" for number in range(3000))
    (tmp_path / "t.csv").write_text(f"path,label\n{rows}")
    with pytest.raises(FileError, match="so many pictures cannot be read that no more are looked at") as found:
        datasets.load(tmp_path / "t.csv", workers=workers)
    assert str(found.value).endswith("Hint: skip_unreadable=True (--skip-unreadable) leaves such pictures out.")
    with (
        pytest.raises(DataError, match="every split must hold pictures that can be read"),
        pytest.warns(BlobnetWarning),
    ):
        datasets.load(tmp_path / "t.csv", workers=workers, skip_unreadable=True)
