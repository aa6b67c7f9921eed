"""Data sets: what is read, where it is looked for, and the text of every error."""

from __future__ import annotations

import gzip
import http.client
import io
import re
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import blobnet as bn
from blobnet import datasets
from blobnet.datasets import checks, fetch, known, user_data
from blobnet.datasets.dataset import Dataset, Split
from blobnet.datasets.idx import parse_idx, unpack
from blobnet.datasets.splits import as_split
from blobnet.errors import BlobnetWarning, DataError, FileError, OptionError
from blobnet.files import hdf5

IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = known.FASHION_MNIST.digests


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, no network and no apt; the folder of the set in the cache."""

    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("offline")

    monkeypatch.delenv("BLOBNET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch.urllib.request, "urlopen", offline)
    monkeypatch.setattr(fetch.shutil, "which", lambda tool: None)
    return tmp_path / "cache" / "blobnet" / "datasets" / "fashion-mnist"


class Tiny:
    """A known set with a few samples, in place of Fashion-MNIST."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(5)
        self.x, self.y = rng.integers(0, 256, (7, 5, 3)), rng.integers(0, 10, 7)
        self.x_test, self.y_test = rng.integers(0, 256, (4, 5, 3)), rng.integers(0, 10, 4)
        arrays = (self.x, self.y, self.x_test, self.y_test)
        self.files = {name: idx_bytes(array) for name, array in zip(known.FASHION_MNIST.digests, arrays, strict=True)}
        self.system_folder = folder / "system"
        self.known = self.describe(self.files)

    def describe(self, files: dict[str, bytes]) -> known.KnownSet:
        digests = {name: known.digest(data) for name, data in files.items()}
        package = known.DebianPackage("dataset-fashion-mnist", self.system_folder)
        return replace(known.FASHION_MNIST, digests=digests, debian=package)

    def write(self, folder: Path, *, compressed: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            if compressed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1))
            else:
                (folder / name).write_bytes(data)
        return folder

    def check(self, dataset: Dataset) -> None:
        assert dataset.test is not None
        np.testing.assert_array_equal(dataset.train.x[:, 0], self.x)
        np.testing.assert_array_equal(dataset.train.y, self.y)
        np.testing.assert_array_equal(dataset.test.x[:, 0], self.x_test)
        np.testing.assert_array_equal(dataset.test.y, self.y_test)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tiny:
    result = Tiny(tmp_path)
    monkeypatch.setitem(known.KNOWN_SETS, "fashion-mnist", result.known)
    return result


def failing(kind: type[Exception], text: str) -> Any:
    return pytest.raises(kind, match=re.escape(text))


# --- data sets and splits ---


def test_digits() -> None:
    digits = datasets.load("digits")
    assert digits.test is not None
    x, y = np.concatenate([digits.train.x, digits.test.x]), np.concatenate([digits.train.y, digits.test.y])
    assert (x.shape, x.dtype, int(x.sum()), int(x.max())) == ((1797, 1, 8, 8), np.uint8, 561718, 16)
    assert (len(digits.train), len(digits.test), y.dtype) == (1437, 360, np.int64)
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert x[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert digits.train.x.flags.c_contiguous
    assert digits.train.x.flags.writeable
    assert (digits.shape, digits.classes, digits.class_names[9]) == ((1, 8, 8), 10, "9")
    assert repr(digits) == "digits: 1437 + 360 samples of (1, 8, 8), 10 classes"
    assert repr(digits.test) == "360 samples of (1, 8, 8)"


def test_digits_are_those_of_scikit_learn() -> None:
    source = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed").load_digits()
    digits = datasets.load("digits")
    np.testing.assert_array_equal(digits.train.x[:, 0], source.images[:1437])
    np.testing.assert_array_equal(digits.train.y, source.target[:1437])


def test_real_fashion_mnist() -> None:
    if not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    dataset = datasets.load("fashion-mnist", download=False)
    assert repr(dataset) == "fashion-mnist: 60000 + 10000 samples of (1, 28, 28), 10 classes"
    assert np.bincount(dataset.train.y).tolist() == [6000] * 10
    assert dataset.class_names[dataset.train.y[0]] == "Ankle boot"
    mean, deviation = dataset.statistics()
    np.testing.assert_allclose([mean[0] / 255, deviation[0] / 255], [0.2860, 0.3530], atol=1e-4)


@pytest.mark.parametrize("shape", [(13, 3, 5, 7), (29, 2, 11), (17, 4)])
def test_statistics(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blobnet.datasets.dataset.CHUNK_ELEMENTS", 300)
    axes = (0, *range(2, len(shape)))
    rng = np.random.default_rng(1)
    for x in (rng.integers(0, 256, shape).astype(np.uint8), (rng.normal(1e4, 1, shape)).astype(np.float32)):
        x[:, -1] = x.dtype.type(0.1)
        mean, deviation = Dataset("a", Split(x, np.zeros(len(x))), None, ()).statistics()
        assert mean.dtype == deviation.dtype == np.float64
        np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis=axes), rtol=1e-12)
        np.testing.assert_allclose(deviation[:-1], x.astype(np.float64).std(axis=axes)[:-1], rtol=1e-9)
        assert deviation[-1] == 1


def test_a_part_of_the_samples_is_held_out() -> None:
    x = np.arange(11, dtype=np.float32)[:, None]
    whole = Dataset("a", Split(x, x), None, ())
    assert repr(whole) == "a: 11 samples of (1,), targets of (1,)"
    kept, held_out = whole.train.split_validation(0.25, seed=3)
    assert (len(kept), len(held_out)) == (8, 3)
    order = np.concatenate([kept.x, held_out.x])[:, 0]
    assert sorted(order) == list(range(11))
    assert list(order) != sorted(order)
    np.testing.assert_array_equal(held_out.x, held_out.y)
    with pytest.warns(DeprecationWarning, match="Split.parted is called split_validation now"):
        _, before = whole.train.parted(0.25, seed=3)
    np.testing.assert_array_equal(before.x, held_out.x)
    (_, again), (_, other) = (whole.train.split_validation(0.25, seed) for seed in (3, 4))
    np.testing.assert_array_equal(again.x, held_out.x)
    assert not np.array_equal(other.x, held_out.x)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 1.5, 0.01, 0.99, float("nan")])
def test_fraction_must_leave_samples(fraction: float) -> None:
    x = np.zeros((5, 1), dtype=np.float32)
    rule = "fraction: it must lie between 0 and 1 and leave samples on both sides. Received fraction="
    with failing(OptionError, rule):
        Split(x, x).split_validation(fraction, seed=0)


# --- names and options ---


def test_unknown_name() -> None:
    rule = "data set: it must be a known name, or the path of a file or folder. Received name=Fashion_MNIST. "
    with failing(OptionError, rule + "Hint: did you mean 'fashion-mnist'"):
        datasets.load("Fashion_MNIST")
    with failing(OptionError, "known names: digits, fashion-mnist, mnist."):
        datasets.load("zzz")
    assert datasets.known_names() == ["digits", "fashion-mnist", "mnist"]


@pytest.mark.parametrize(("value", "kind"), [(3, "int"), (np.zeros((2, 3)), "ndarray")])
def test_what_is_no_name(value: Any, kind: str) -> None:
    rule = f"data set: it must be a known name, or the path of a file or folder. Received type={kind}. Hint: arrays are"
    with failing(OptionError, rule):
        datasets.load(value)


def test_names_near_those_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics").mkdir()
    with failing(FileError, "pic: there must be such a file or folder. Hint: did you mean 'pics'?"):
        datasets.load("pic/")
    with failing(OptionError, "Received name=pic. Hint: did you mean 'pics'?"):
        datasets.load("pic")
    with failing(OptionError, "Received name=mnits. Hint: did you mean 'mnist'"):
        datasets.load("mnits")


def test_paths_that_do_not_do(tmp_path: Path) -> None:
    with failing(FileError, "a.npz: there must be such a file or folder"):
        datasets.load(tmp_path / "a.npz")
    with failing(FileError, "here/digits: there must be such a file or folder"):
        datasets.load("here/digits")
    (tmp_path / "pics").mkdir()
    for wrong in (f"{tmp_path}/pic/", tmp_path / "pic"):
        with failing(FileError, f"{tmp_path}/pic: there must be such a file or folder. Hint: did you mean 'pics'?"):
            datasets.load(wrong)
    (tmp_path / "a.txt").write_text("1,2")
    rule = "a.txt: a data file must be a .npz, .npy, HDF5, CSV, tar, Parquet or LMDB file. Hint: its name must "
    with failing(FileError, rule):
        datasets.load(tmp_path / "a.txt")


def test_options_that_do_not_belong(tmp_path: Path) -> None:
    with failing(OptionError, "size: only a folder of pictures can be resized. Received data=digits"):
        datasets.load("digits", size=(4, 4))
    with failing(
        OptionError, "folder: only a data set with a name is looked for in a folder. Received data=" + str(tmp_path)
    ):
        datasets.load(tmp_path, folder="elsewhere")


# --- IDX ---


@pytest.mark.parametrize("shape", [(3, 5, 2), (7,), (0,)])
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_idx_is_read(shape: tuple[int, ...], pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    array = np.random.default_rng(2).integers(0, 256, shape).astype(np.uint8)
    (tmp_path / "a").write_bytes(pack(idx_bytes(array)))
    found = parse_idx(unpack(tmp_path / "a"), len(shape), tmp_path / "a")
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


WHOLE = idx_bytes(np.zeros((2, 3, 5)))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            b"",
            "an IDX file must start with two zero bytes, a type and a number of axes. Received start=. Hint: the file",
        ),
        (WHOLE[:3], "Received start=00 00 08."),
        (b"\x89PNG" + WHOLE, "Received start=89 50 4e 47."),
        (b"\0\0\x0d\3" + WHOLE[4:], "the type must be 0x08, unsigned bytes. Received type=0x0d."),
        (idx_bytes(np.zeros(4)), "the number of axes must be 3. Received axes=1."),
        (WHOLE[:4], "the header must have 16 bytes. Received bytes=4."),
        (WHOLE[:15], "the header must have 16 bytes. Received bytes=15."),
        (WHOLE[:16], "30 bytes of data must follow the header. Received shape=(2, 3, 5), bytes=0."),
        (WHOLE[:-1], "30 bytes of data must follow the header. Received shape=(2, 3, 5), bytes=29."),
        (WHOLE + b"\0", "30 bytes of data must follow the header. Received shape=(2, 3, 5), bytes=31."),
    ],
)
def test_idx_is_strict(data: bytes, text: str) -> None:
    with failing(FileError, text) as caught:
        parse_idx(data, 3, Path("folder/images"))
    assert str(caught.value).startswith("folder/images: ")


@pytest.mark.parametrize("keep", [5, 12, 25, -9, -1])
def test_truncated_gzip(keep: int, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(WHOLE)[:keep])
    with failing(FileError, "a.gz: the file must be readable and whole. Received reason="):
        unpack(tmp_path / "a.gz")


def test_gzip_that_unpacks_to_more_than_memory(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(1 << 24)) * 5)
    with failing(FileError, "a.gz: the file must not unpack to more than 67108864 bytes."):
        unpack(tmp_path / "a.gz")


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(bytes(range(256))))
    packed[40] ^= 0xFF
    (tmp_path / "a.gz").write_bytes(packed)
    with failing(FileError, "a.gz: the file must be readable and whole. Received reason="):
        unpack(tmp_path / "a.gz")
    with failing(FileError, "b.gz: the file must be readable and whole. Received reason=[Errno 2] No such file"):
        unpack(tmp_path / "b.gz")


# --- known sets: content ---


def test_checksum_mismatch(tiny: Tiny, tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "mine")
    wrong = idx_bytes(np.zeros(7))
    (folder / f"{LABELS}.gz").write_bytes(gzip.compress(wrong))
    expected, found = tiny.known.digests[LABELS], known.digest(wrong)
    with failing(
        FileError,
        f"{folder / LABELS}.gz: the checksum (SHA-256) of the decompressed data must be {expected}. "
        f"Received checksum={found}. Hint: delete the file",
    ):
        datasets.load("fashion-mnist", folder=folder)


def test_files_of_another_set(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {name: idx_bytes(np.full((2, 1), 3)) for name in tiny.files}
    monkeypatch.setitem(known.KNOWN_SETS, "mnist", replace(tiny.describe(other), name="mnist"))
    folder = tiny.write(tmp_path / "mine")
    (folder / f"{IMAGES}.gz").write_bytes(gzip.compress(other[IMAGES]))
    with failing(FileError, "Hint: this file belongs to mnist: keep each set in a folder of its own"):
        datasets.load("fashion-mnist", folder=folder)


def test_images_and_labels_must_be_as_many(tiny: Tiny, tmp_path: Path) -> None:
    tiny.files[TEST_LABELS] = idx_bytes(np.zeros(3))
    folder = tiny.write(tmp_path / "mine")
    with failing(FileError, f"mine: {TEST_IMAGES} and {TEST_LABELS} must hold as many. Received images=4, labels=3."):
        known.read_known(tiny.describe(tiny.files), folder)


def test_labels_of_known_sets_are_checked(tiny: Tiny, tmp_path: Path) -> None:
    tiny.files[LABELS] = idx_bytes(np.array([0, 1, 10, 2, 3, 4, 5]))
    folder = tiny.write(tmp_path / "mine")
    with failing(DataError, "fashion-mnist: class numbers must be below 10. Received sample=2, label=10."):
        known.read_known(tiny.describe(tiny.files), folder)


# --- known sets: search order ---


def test_search_order(tiny: Tiny, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, named = tmp_path / "given", tmp_path / "environment"
    monkeypatch.setenv("BLOBNET_DATA", str(named))
    places = [given / "fashion-mnist", given, tiny.system_folder, cache]
    for place in places:
        tiny.write(place)
    for place in places:
        assert fetch.locate(tiny.known, given, download=False) == place
        (place / f"{TEST_LABELS}.gz").unlink()
    tiny.write(named)
    assert fetch.locate(tiny.known, None, download=False) == named
    tiny.write(named / "fashion-mnist")
    assert fetch.locate(tiny.known, None, download=False) == named / "fashion-mnist"


@pytest.mark.parametrize("compressed", [True, False])
def test_given_folder_is_read(tiny: Tiny, tmp_path: Path, compressed: bool) -> None:
    dataset = datasets.load("fashion-mnist", folder=tiny.write(tmp_path / "mine", compressed=compressed))
    tiny.check(dataset)
    assert (dataset.train.x.shape, dataset.train.x.dtype) == ((7, 1, 5, 3), np.uint8)
    assert dataset.class_names[:2] == ("T-shirt/top", "Trouser")


def test_everything_that_was_tried_is_listed(tiny: Tiny, tmp_path: Path, cache: Path, capsys: Any) -> None:
    folder = tiny.write(tmp_path / "mine")
    (folder / f"{LABELS}.gz").unlink()
    cache.mkdir(parents=True)
    with failing(FileError, "fashion-mnist: its four files must be on this machine, or a source") as caught:
        datasets.load("fashion-mnist", folder=folder)
    assert str(caught.value).splitlines()[1:] == [
        f"  {folder}/fashion-mnist: no such folder",
        f"  {folder}: lacks {LABELS}",
        f"  {tiny.system_folder}: no such folder",
        f"  {cache}: has none of the files",
        f"  {tiny.known.address}: <urlopen error offline>",
        "  dataset-fashion-mnist: apt-get: the tool must be installed to use a Debian package. Hint: sudo apt-get "
        f"install dataset-fashion-mnist; or put {IMAGES}.gz, {LABELS}.gz, {TEST_IMAGES}.gz, {TEST_LABELS}.gz into a "
        "folder and name it with --data-folder or BLOBNET_DATA",
    ]
    assert capsys.readouterr().err == f"fashion-mnist: fetching {tiny.known.address} into {cache}\n"
    assert list(cache.iterdir()) == []


def test_mnist_has_no_debian_package() -> None:
    with failing(FileError, "ossci-datasets.s3.amazonaws.com/mnist/: <urlopen error offline>. Hint: put train-images"):
        datasets.load("mnist")


def test_no_download(tiny: Tiny, cache: Path, capsys: Any) -> None:
    with failing(FileError, "\n  fetching: switched off (download=False). Hint: "):
        datasets.load("fashion-mnist", download=False)
    assert not cache.exists()
    assert capsys.readouterr().err == ""


def test_places_that_cannot_be_read_or_written(
    tiny: Tiny, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "cache").write_text("a file in the way")
    with failing(FileError, f"{tiny.known.address}: [Errno 20] Not a directory"):
        datasets.load("fashion-mnist")
    monkeypatch.setattr(Path, "is_file", closed)
    with failing(FileError, f"{tiny.system_folder}: Permission denied\n  {cache}: Permission denied"):
        datasets.load("fashion-mnist", download=False)


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", homeless)
    with failing(FileError, "cache folder: the user must have a home folder. Hint: set XDG_CACHE_HOME"):
        fetch.cache_folder()
    monkeypatch.undo()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert fetch.cache_folder() == Path("/somewhere/.cache/blobnet")


# --- known sets: fetching ---


class Server:
    """Answers urlopen from memory and remembers what was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.answers: dict[str, bytes | Exception] = {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
        self.asked: list[str] = []

    def urlopen(self, address: str, timeout: float) -> io.BytesIO:
        assert timeout == 20
        folder, _, name = address.rpartition("/")
        assert folder + "/" == known.FASHION_MNIST.address
        self.asked.append(name)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)


@pytest.fixture
def server(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Server:
    result = Server(tiny.files)
    monkeypatch.setattr(fetch.urllib.request, "urlopen", result.urlopen)
    return result


def test_fetch_from_address(tiny: Tiny, server: Server, cache: Path, capsys: Any) -> None:
    tiny.check(datasets.load("fashion-mnist"))
    assert sorted(path.name for path in cache.iterdir()) == sorted(tiny.known.archives)
    assert capsys.readouterr().err == f"fashion-mnist: fetching {tiny.known.address} into {cache}\n"
    tiny.check(datasets.load("fashion-mnist"))
    assert server.asked == list(tiny.known.archives)
    (cache / f"{LABELS}.gz").unlink()
    tiny.check(datasets.load("fashion-mnist"))
    assert server.asked[4:] == [f"{LABELS}.gz"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            gzip.compress(b"something else"),
            "labels-idx1-ubyte.gz: the checksum (SHA-256) of the decompressed data must be",
        ),
        (gzip.compress(WHOLE)[:-3], "the file must be readable and whole. Received reason=Compressed file ended"),
        (b"<html>log in first</html>", "the checksum (SHA-256) of the decompressed data must be"),
        (urllib.error.HTTPError("a", 404, "Not Found", http.client.HTTPMessage(), None), "HTTP Error 404: Not Found"),
        (http.client.IncompleteRead(b"abc"), "IncompleteRead(3 bytes read)"),
        (TimeoutError("timed out"), "timed out"),
    ],
    # NOTE: not by the bytes: gzip writes the time into them, and pytest-xdist's workers must name tests alike.
    ids=["other content", "truncated", "a page", "not found", "cut off", "no answer"],
)
def test_failed_download_leaves_no_file(server: Server, cache: Path, answer: bytes | Exception, reason: str) -> None:
    server.answers[f"{LABELS}.gz"] = answer
    with failing(FileError, reason):
        datasets.load("fashion-mnist")
    assert [path.name for path in cache.iterdir()] == [f"{IMAGES}.gz"]
    if isinstance(answer, urllib.error.HTTPError):
        answer.close()


def test_interrupted_download_leaves_no_file(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object, file: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.shutil, "copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt):
        datasets.load("fashion-mnist")
    assert list(cache.iterdir()) == []


class Debian:
    """Stands in for apt-get and dpkg-deb; ``lists`` says whether the system has package lists."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny, self.lists, self.has_package, self.leaves_package = tiny, True, True, True
        self.commands: list[list[str]] = []

    def run(self, command: list[str], cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        assert options["stdin"] == subprocess.DEVNULL
        assert options["env"]["LC_ALL"] == "C"
        words = [word for word in command if not word.startswith(("-o", "Acquire::"))]
        self.commands.append(words)
        is_private = any(word.startswith("Dir::State::Lists=") for word in words)
        if words[0] == "dpkg-deb":
            assert (words[1], words[3], Path(words[2]).read_bytes()) == ("-x", "files", b"package")
            self.tiny.write(cwd / "files" / self.tiny.system_folder.relative_to("/"))
        elif words[-1] == "update":
            assert is_private
            assert (cwd / "lists" / "partial").is_dir()
            return subprocess.CompletedProcess(command, 0, "", "W: Some files failed\n")
        elif not (self.lists or is_private) or not self.has_package:
            return subprocess.CompletedProcess(command, 100, "", "E: Unable to locate\n  package\n")
        elif self.leaves_package:
            (cwd / f"{words[-1]}_1_all.deb").write_bytes(b"package")
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def debian(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Debian:
    result = Debian(tiny)
    monkeypatch.setattr(fetch.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(fetch.subprocess, "run", result.run)
    return result


@pytest.mark.parametrize("lists", [True, False])
def test_fetch_from_debian(tiny: Tiny, debian: Debian, cache: Path, lists: bool, capsys: Any) -> None:
    debian.lists = lists
    tiny.check(datasets.load("fashion-mnist"))
    steps = ["dataset-fashion-mnist"] if lists else ["dataset-fashion-mnist", "update", "dataset-fashion-mnist"]
    assert [command[-1] for command in debian.commands] == [*steps, "files"]
    assert sorted(path.name for path in cache.iterdir()) == sorted(tiny.known.archives)
    assert capsys.readouterr().err.splitlines() == [
        f"fashion-mnist: fetching {tiny.known.address} into {cache}",
        f"fashion-mnist: fetching the Debian package dataset-fashion-mnist into {cache}",
    ]


def test_debian_without_the_package(debian: Debian, cache: Path) -> None:
    debian.has_package = False
    reason = (
        "apt-get: the command must succeed. Received status=100, said=W: Some files failed E: Unable to locate package"
    )
    with failing(FileError, f"\n  dataset-fashion-mnist: {reason}. Hint: "):
        datasets.load("fashion-mnist")
    debian.has_package, debian.leaves_package = True, False
    with failing(FileError, "apt-get: it must leave the package dataset-fashion-mnist"):
        datasets.load("fashion-mnist")
    assert list(cache.iterdir()) == []


def test_debian_with_other_content(debian: Debian, tiny: Tiny, cache: Path) -> None:
    tiny.files[IMAGES] = WHOLE
    with failing(FileError, f"{IMAGES}.gz: the checksum (SHA-256) of the decompressed data must be"):
        datasets.load("fashion-mnist")
    assert list(cache.iterdir()) == []


def test_slow_tool(debian: Debian, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 600)

    monkeypatch.setattr(fetch.subprocess, "run", slow)
    with failing(FileError, "timed out after 600 seconds"):
        datasets.load("fashion-mnist")


# --- checks ---

X, Y = np.zeros((6, 2, 3, 5), np.float32), np.array([0, 1, 2, 0, 1, 2])


def changed(array: np.ndarray, index: Any, value: Any, dtype: Any = None) -> np.ndarray:
    result = array.astype(dtype or array.dtype)
    result[index] = value
    return result


@pytest.mark.parametrize(
    ("x", "y", "classes", "text"),
    [
        ([[1.0]], Y, 3, "x must be a numpy array. Received type=list. Hint: numpy.asarray(x)"),
        ("pics", Y, 3, "x must be a numpy array. Received type=str. Hint: blobnet.datasets.load(name).train"),
        (Path("pics"), Y, 3, "Path. Hint: blobnet.datasets.load(name).train has the x and y"),
        (Split(X, Y), Y, 3, "type=Split. Hint: x and y of a data set are arrays: data.train.x and data.train.y."),
        (X, [0], 3, "y must be a numpy array. Received type=list. Hint: numpy.asarray(y)"),
        (X.astype(object), Y, 3, "x must hold real numbers. Received dtype=object. Hint: convert it"),
        (X.astype(complex), Y, 3, "x must hold real numbers. Received dtype=complex128."),
        (X.astype(str), Y, 3, "x must hold real numbers. Received dtype=<U32."),
        (X, Y.astype(str), 3, "y must hold real numbers. Received dtype=<U21. Hint: class names become numbers with"),
        (X, Y.astype(object), 3, "y must hold real numbers. Received dtype=object."),
        (
            X[0, 0, 0],
            Y,
            3,
            "x must have the axes (samples, units[[[, depth], height], width]). Received shape=(5,). Hint: add",
        ),
        (
            X[None, None],
            Y,
            3,
            "x must have the axes (samples, units[[[, depth], height], width]). Received shape=(1, 1, 6, 2, 3, 5).",
        ),
        (X[:0], Y[:0], 3, "x must hold at least one sample and no axis of size 0. Received shape=(0, 2, 3, 5)."),
        (X[:, :, :0], Y, 3, "x must hold at least one sample and no axis of size 0. Received shape=(6, 2, 0, 5)."),
        (X, np.zeros((6, 0)), None, "y must have no axis of size 0. Received shape=(6, 0)."),
        (X, Y[:5], 3, "x and y must hold the same number of samples. Received x_shape=(6, 2, 3, 5), y_shape=(5,)."),
        (X, np.array(1), 3, "x and y must hold the same number of samples. Received x_shape=(6, 2, 3, 5), y_shape=()."),
        (
            changed(X, (4, 1, 2, 3), np.nan),
            Y,
            3,
            "x must hold finite float32 values. Received index=(4, 1, 2, 3), value=nan. Hint: drop or repair",
        ),
        (changed(X, (3, 0, 0, 1), -np.inf, np.float16), None, None, "index=(3, 0, 0, 1), value=-inf."),
        (changed(X, (5, 0, 2, 1), 1e39, np.float64), None, None, "index=(5, 0, 2, 1), value=1e+39."),
        (
            X,
            changed(Y, 2, np.nan, np.float32),
            None,
            "y must hold finite float32 values. Received index=(2,), value=nan.",
        ),
        (
            X,
            np.stack([Y, Y], axis=1),
            3,
            "class numbers must have the shape (samples,). Received shape=(6, 2). Hint: one-hot rows become",
        ),
        (
            X,
            changed(Y, [2, 4], -1),
            3,
            "class numbers must not be negative. Received sample=2, label=-1. Hint: classes",
        ),
        (X, changed(Y, 3, -7), None, "class numbers must not be negative. Received sample=3, label=-7."),
        (X, changed(Y, [3, 5], 3), 3, "class numbers must be below 3. Received sample=3, label=3. Hint: classes count"),
        (
            X,
            changed(Y, 1, 0.5, np.float32),
            3,
            "class numbers must be whole numbers. Received sample=1, label=0.5. Hint: targets, which are no classes, ",
        ),
        (
            X,
            np.linspace(0, 1, 12).reshape(6, 2),
            3,
            "class numbers must have the shape (samples,). Received shape=(6, 2). Hint: targets, which are no classes, "
            "need a loss of their own: mean-squared-error, say",
        ),
    ],
)
def test_checks(x: Any, y: Any, classes: int | None, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHUNK_ELEMENTS", 40)
    with failing(DataError, text) as caught:
        datasets.check_arrays(x, y, classes, "my data")
    assert str(caught.value).startswith("my data: ")


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, bool, np.float64])
def test_checks_pass_good_arrays(dtype: Any) -> None:
    y = (Y % 2).astype(dtype)
    for x in (X, X[0], X[0, 0], X.astype(np.uint16), X.astype(np.float64), X.astype(bool)):
        datasets.check_arrays(x)
        datasets.check_arrays(x, y[: len(x)], 2)
        datasets.check_arrays(x, y[: len(x)])
    split = as_split(X.astype(np.float64)[:, :, ::2], y, 2, "a")
    assert (split.x.dtype, split.y.dtype, split.x.flags.c_contiguous) == (np.float32, np.int64, True)


# --- .npz and HDF5 ---


def write_npz(path: Path, arrays: dict[str, Any]) -> Path:
    path = path.with_suffix(".npz")
    np.savez(path, **arrays)
    return path


def write_hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    path = path.with_suffix(".h5")
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array.astype("S") if array.dtype.kind == "U" else array
    return path


@pytest.fixture(params=[write_npz, write_hdf5])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    return lambda arrays: request.param(tmp_path / "mine", arrays)


@pytest.mark.parametrize("seed", range(4))
def test_user_arrays(write: Callable[[dict[str, Any]], Path], seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 8, size=1 + seed % 3))
    count, test_count = rng.integers(3, 9, size=2)
    x, y = rng.integers(0, 256, (count, *shape)).astype(np.uint8), rng.integers(0, 5, count).astype(np.int32)
    x_test, y_test = rng.integers(0, 256, (test_count, *shape)).astype(np.uint8), rng.integers(0, 6, test_count)
    plain = datasets.load(write({"x": x, "y": y, "notes": np.zeros(1)}))
    assert (plain.name, plain.test, plain.shape, plain.classes) == ("mine", None, shape, y.max() + 1)
    np.testing.assert_array_equal(plain.train.x, x)
    np.testing.assert_array_equal(plain.train.y, y)
    assert (plain.train.x.dtype, plain.train.y.dtype) == (np.uint8, np.int64)
    both = datasets.load(str(write({"x": x, "y": y, "x_test": x_test, "y_test": y_test})))
    assert both.test is not None
    np.testing.assert_array_equal(both.test.x, x_test)
    assert both.class_names == tuple(str(number) for number in range(max(y.max(), y_test.max()) + 1))
    names = np.array(["a", "b", "c", "d", "e", "f"])
    named = datasets.load(write({"x": x.astype(np.float64), "y": y.astype(np.float32), "class_names": names}))
    assert named.class_names == ("a", "b", "c", "d", "e", "f")
    assert (named.train.x.dtype, named.train.y.dtype) == (np.float32, np.int64)


def test_targets(write: Callable[[dict[str, Any]], Path]) -> None:
    dataset = datasets.load(write({"x": X, "y": np.ones((6, 3))}))
    assert (dataset.classes, dataset.train.y.dtype, dataset.train.y.shape) == (0, np.float32, (6, 3))
    assert repr(dataset) == "mine: 6 samples of (2, 3, 5), targets of (3,)"


@pytest.mark.parametrize("units", [None, 1, 3, 4])
def test_the_layout_of_keras(write: Callable[[dict[str, Any]], Path], units: int | None) -> None:
    """(N, H, W[, C]), and labels (N, 1) or one-hot."""
    x, y = noise(7, 5, 6, *([units] if units else [])), np.array([2, 0, 1, 1, 0, 2, 2], np.uint8)
    arrays = {"x_train": x, "y_train": y[:, None], "x_test": x[:2], "y_test": np.eye(3)[y[:2]]}
    found = datasets.load(write(arrays | {"x_valid": x[:3], "y_valid": y[:3]}))
    assert found.test is not None
    assert found.validation is not None
    assert repr(found) == f"mine: 7 + 3 + 2 samples of ({units or 1}, 5, 6), 3 classes"
    expected = x[:, None] if units is None else np.moveaxis(x, -1, 1)
    for split, count in ((found.train, 7), (found.validation, 3), (found.test, 2)):
        np.testing.assert_array_equal(split.x, expected[:count])
        np.testing.assert_array_equal(split.y, y[:count])
    for shape in ((7, 3, 5, 6), (7, 1, 5, 6), (7, 9)):  # What is in blobnet's order stays so.
        assert datasets.load(write({"x_train": noise(*shape), "y_train": y})).shape == shape[1:]


def test_variable_length_names(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "mine", {"x": X, "y": Y})
    with h5py.File(path, "a") as file:
        file["class_names"] = ["née", "b", "c"]
    assert datasets.load(path).class_names == ("née", "b", "c")


def test_a_model_is_no_data_set(tmp_path: Path) -> None:
    path = tmp_path / "net.h5"
    bn.Sequential([bn.layers.Input(3), bn.layers.Dense(2)]).save(path)
    rule = r"net\.h5: a data set must hold samples, but this is a model that was saved\. Hint: `blobnet train"
    with pytest.raises(DataError, match=rule):
        datasets.load(path)


def test_damaged_variable_length_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hdf5(tmp_path / "mine", {"x": X, "y": Y})
    with h5py.File(path, "a") as file:
        file["class_names"] = ["aaaa", "b", "c"]
    whole = path.read_bytes()
    heap = whole.index(b"GCOL")
    # With an object's size of 0, at which HDF5 2.0 loops forever.
    monkeypatch.setattr(hdf5, "_PATIENCE", 5)
    path.write_bytes(whole[: heap + 24] + bytes(8) + whole[heap + 32 :])
    rule = r"must be a readable HDF5 file\. Received reason="
    with pytest.raises(FileError, match=f"{rule}(HDF5 does not end within 5 seconds|OSError: )"):
        datasets.load(path)
    # Three names that are the same place of the file.
    with h5py.File(path, "w") as file:
        file.update({"x": X, "y": Y, "class_names": ["a" * 3000, "b", "c"]})
        place = file["class_names"].id.get_offset()
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + whole[place : place + 16] * 3 + whole[place + 48 :])
    monkeypatch.setattr(hdf5, "_PATIENCE", 60)
    with pytest.raises(FileError, match=f"{rule}they are longer than the file"):
        datasets.load(path)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("y", ["a", "b", "c"]),
        ("class_names", [["a", "b"], ["c", "d"]]),
        ("class_names", np.array([np.arange(2), np.arange(3)], object)),
    ],
    ids=["labels", "rows", "numbers"],
)
def test_values_of_variable_length_that_are_no_names(tmp_path: Path, key: str, values: object) -> None:
    path = write_hdf5(tmp_path / "mine", {"x": X, **({} if key == "y" else {"y": Y})})
    with h5py.File(path, "a") as file:
        if isinstance(values, np.ndarray):
            file.create_dataset(key, data=values, dtype=h5py.vlen_dtype(np.int64))
        else:
            file[key] = values
    rule = f"{path}, {key}: an array must hold numbers, and class_names a list of texts. Received dtype=object, shape="
    with pytest.raises(DataError, match=re.escape(rule)):
        datasets.load(path)


@pytest.mark.parametrize(
    ("arrays", "kind", "text"),
    [
        ({"x": X}, FileError, "it must hold the arrays x and y. Received found=['x']."),
        ({"x": X, "y": Y, "x_test": X}, FileError, "x_test and y_test must come together. Received found=['x', "),
        ({"x": X, "y": Y, "y_val": Y}, FileError, "x_val and y_val must come together. Received found=['x', "),
        ({"x": X, "y": Y, "x_train": X}, FileError, "x must be there under one name. Received found=['x', "),
        (
            {"x": X, "y": Y, "x_val": X[:, :, :2], "y_val": Y},
            DataError,
            "x and x_val must have samples of the same kind. Received train=float32 (6, 2, 3, 5), val=float32 (6, 2, 2",
        ),
        ({"x": X, "y": Y[:3]}, DataError, "x and y must hold the same number of samples."),
        ({"x": X, "y": Y, "x_test": X, "y_test": -Y}, DataError, "(test): class numbers must not be negative."),
        (
            {"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y},
            DataError,
            "x and x_test must have samples of the same kind. Received train=float32 (6, 2, 3, 5), test=float32 (6, 1",
        ),
        (
            {"x": X, "y": Y, "x_test": X, "y_test": Y * 1.0},
            DataError,
            "y and y_test must have samples of the same kind. Received train=int64 (6,), test=float32 (6,).",
        ),
        (
            {"x": X, "y": Y + 10**6},
            DataError,
            "must be below 100000 if class_names is not given. Received largest=1000002.",
        ),
        (
            {"x": X, "y": np.full(6, 2**64 - 1, np.uint64)},
            DataError,
            "must be below 100000 if class_names is not given.",
        ),
        ({"x": X, "y": Y, "class_names": Y}, DataError, "class_names must be a list of texts. Received dtype=int64,"),
        ({"x": X, "y": Y, "class_names": np.array([["a"]])}, DataError, "class_names must be a list of texts."),
        ({"x": X, "y": Y, "class_names": np.array(["a", "b"])}, DataError, "class numbers must be below 2."),
    ],
)
def test_arrays_that_do_not_fit(
    write: Callable[[dict[str, Any]], Path], arrays: dict[str, Any], kind: type[Exception], text: str
) -> None:
    path = write(arrays)
    with failing(kind, text) as caught:
        datasets.load(path)
    assert str(caught.value).startswith(str(path))


def test_groups_are_no_arrays(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "mine", {"x/inner": X, "y": Y})
    with failing(FileError, "it must hold the arrays x and y. Received found=['x', 'y']."):
        datasets.load(path)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_unreadable_array_files(tmp_path: Path, cut: int) -> None:
    for write, kind in ((write_npz, ".npz"), (write_hdf5, "HDF5")):
        path = write(tmp_path / "mine", {"x": X, "y": Y})
        data = path.read_bytes()
        path.write_bytes((b"", b"garbage", data[: len(data) // 2])[cut])
        with failing(FileError, f"the file must be a readable {kind} file. Received reason="):
            datasets.load(path)


def test_npz_of_objects(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine", {"x": X.astype(object), "y": Y})
    with failing(FileError, "mine.npz: the file must be a readable .npz file. Received reason=the type must be one of"):
        user_data.read_dataset(path)


# --- pictures ---


def save(path: Path, array: np.ndarray, mode: str | None = None, **options: Any) -> Path:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = image.fromarray(array)
    (picture.convert(mode) if mode else picture).save(path, **options)
    return path


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8)


def test_gray_folder(tmp_path: Path) -> None:
    pictures = {name: noise(5, 7 if name else 1) for name in ("owl/b.png", "owl/a.PNG", "ant/z.png")}
    for name, array in pictures.items():
        save(tmp_path / "set" / name, array)
    (tmp_path / "set" / "owl" / "notes.txt").write_text("left out")
    (tmp_path / "set" / "owl" / ".a.png").write_text("left out")
    (tmp_path / "set" / ".git").mkdir()
    with pytest.warns(BlobnetWarning, match=f"^{re.escape(str(tmp_path))}/set: left out: 1 .txt\\.$"):
        dataset = datasets.load(tmp_path / "set")
    assert (dataset.name, dataset.class_names, dataset.test) == ("set", ("ant", "owl"), None)
    assert (dataset.train.x.dtype, dataset.train.y.tolist()) == (np.uint8, [0, 1, 1])
    expected = [pictures[name] for name in ("ant/z.png", "owl/a.PNG", "owl/b.png")]
    np.testing.assert_array_equal(dataset.train.x[:, 0], expected)


def test_mixed_folder_with_test_split(tmp_path: Path) -> None:
    gray, colour = noise(3, 9), noise(3, 9, 3)
    save(tmp_path / "train" / "a" / "1.png", gray)
    save(tmp_path / "train" / "b" / "1.png", colour)
    save(tmp_path / "test" / "b" / "1.png", colour)
    dataset = datasets.load(tmp_path)
    assert dataset.test is not None
    assert (dataset.shape, dataset.train.y.tolist(), dataset.test.y.tolist()) == ((3, 3, 9), [0, 1], [1])
    np.testing.assert_array_equal(dataset.train.x[0], np.stack([gray] * 3))
    np.testing.assert_array_equal(dataset.train.x[1], colour.transpose(2, 0, 1))
    np.testing.assert_array_equal(dataset.test.x[0], dataset.train.x[1])
    assert dataset.train.x.flags.c_contiguous


def test_train_folder_alone(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a" / "1.png", noise(3, 9))
    assert repr(datasets.load(tmp_path)) == f"{tmp_path.name}: 1 samples of (1, 3, 9), 1 classes"


def test_what_macos_leaves_is_no_class(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name / "1.png", noise(3, 9))
    (tmp_path / "__MACOSX" / "a").mkdir(parents=True)
    (tmp_path / "__MACOSX" / "a" / "._1.png").write_bytes(b"no picture")
    assert datasets.load(tmp_path).class_names == ("a", "b")


def test_folder_of_several_sizes(tmp_path: Path) -> None:
    first, second = save(tmp_path / "a" / "1.png", noise(4, 6)), save(tmp_path / "a" / "2.jpg", noise(8, 5))
    with failing(
        DataError,
        f"{second}: all pictures must have one size. Received size=(8, 5), first=(4, 6) in {first}. Hint: "
        "give size=(height, width), or --image-size HEIGHTxWIDTH, to resize them",
    ):
        datasets.load(tmp_path)
    dataset = datasets.load(tmp_path, size=(4, 6))
    assert dataset.shape == (1, 4, 6)
    np.testing.assert_array_equal(dataset.train.x[0, 0], noise(4, 6))
    rule = "size: it must be a height and a width of at least 1. Received size="
    wrong: list[tuple[Any, str]] = [((0, 4), "(0, 4)."), ((4,), "(4,)."), ((4, 6.5), "(4, 6.5)."), ("46", "46.")]
    for size, shown in [*wrong, (24, "24. Hint: size=(24, 24) makes squares.")]:
        with failing(OptionError, rule + shown):
            datasets.load(tmp_path, size=size)


def test_folders_that_do_not_do(tmp_path: Path) -> None:
    with failing(DataError, f"{tmp_path}: it must hold one folder of pictures for each class"):
        datasets.load(tmp_path)
    (tmp_path / "train" / "a").mkdir(parents=True)
    with failing(DataError, "train/a: the folder of a class must hold pictures"):
        datasets.load(tmp_path)
    save(tmp_path / "train" / "a" / "1.png", noise(3, 3))
    save(tmp_path / "test" / "b" / "1.png", noise(3, 3))
    hint = f"Hint: pictures lie in it itself: if they are those of one class, give the folder above, {tmp_path}/train."
    with failing(DataError, f"train/a: it must hold one folder of pictures for each class. {hint}"):
        datasets.load(tmp_path / "train" / "a")
    with failing(DataError, "test/b: every class of the test split must be trained. Received classes=['a']"):
        datasets.load(tmp_path)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("keep", [0, 30, 200, -40])
def test_unreadable_picture_is_named(tmp_path: Path, suffix: str, keep: int) -> None:
    path = save(tmp_path / "a" / f"1{suffix}", noise(20, 20))
    path.write_bytes(path.read_bytes()[:keep])
    named = re.escape(f"{path}: the picture must be readable and whole. Received reason=")
    with pytest.raises(FileError, match=named) as caught:
        datasets.load(tmp_path)
    if keep == 0:  # Found before any is decoded.
        assert str(caught.value).startswith(f"{tmp_path.name}: 1 of 1 pictures cannot be read. Received first=")
        hint = "Hint: skip_unreadable=True (--skip-unreadable) leaves such pictures out."
        assert str(caught.value).endswith(hint)


@pytest.mark.parametrize("settings", [{}, {"skip_unreadable": True}])
def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    path = save(tmp_path / "a" / "1.png", noise(3, 3))
    save(tmp_path / "a" / "2.png", noise(3, 3))
    np.save(tmp_path / ".a.npy", noise(3, 3))
    monkeypatch.setitem(sys.modules, "PIL", None)
    rule = (
        rf'^{re.escape(str(path))}: reading or resizing pictures needs Pillow\. Hint: pip install "blobnet\[images\]"'
    )
    with pytest.raises(OptionError, match=rule):
        datasets.load(tmp_path, **settings)
    assert datasets.read_image(tmp_path / ".a.npy", (1, 3, 3)).shape == (1, 3, 3)
    with failing(OptionError, "a.npy: reading or resizing pictures needs Pillow"):
        datasets.read_image(tmp_path / ".a.npy", (1, 4, 4))


def test_read_image_units(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    gray, colour = noise(3, 5), noise(3, 5, 3)
    gray_file, colour_file = save(tmp_path / "g.png", gray), save(tmp_path / "c.png", colour)
    np.testing.assert_array_equal(datasets.read_image(gray_file, (1, 3, 5))[0], gray)
    np.testing.assert_array_equal(datasets.read_image(gray_file, (3, 3, 5)), np.stack([gray] * 3))
    np.testing.assert_array_equal(datasets.read_image(str(colour_file), (3, 3, 5)), colour.transpose(2, 0, 1))
    luma = np.asarray(image.fromarray(colour).convert("L"))
    np.testing.assert_array_equal(datasets.read_image(colour_file, (1, 3, 5))[0], luma)
    with failing(
        DataError, "c.png: a picture has 1 unit (gray) or 3 (RGB), the model expects 2. Hint: give a .npy file"
    ):
        datasets.read_image(colour_file, (2, 3, 5))
    for shape in ((3, 5), (1, 0, 5)):
        with failing(OptionError, f"shape: an image needs the axes (units, height, width). Received shape={shape}"):
            datasets.read_image(gray_file, shape)


def test_read_image_resizes(tmp_path: Path) -> None:
    steps = np.repeat(np.arange(0, 80, 10, dtype=np.uint8)[None], 4, axis=0)
    path = save(tmp_path / "a.png", steps)
    found = datasets.read_image(path, (1, 2, 4))
    assert (found.shape, found.dtype) == ((1, 2, 4), np.uint8)
    assert np.all(np.diff(found[0].astype(int), axis=1) > 10)
    np.save(tmp_path / "a.npy", np.stack([steps, steps + 0.5]))
    found = datasets.read_image(tmp_path / "a.npy", (2, 2, 4))
    assert (found.shape, found.dtype) == ((2, 2, 4), np.float32)
    np.testing.assert_allclose(found[1] - found[0], 0.5, atol=1e-4)


def test_kinds_of_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    gray, colour = noise(4, 4), noise(4, 4, 3)

    def units(name: str, shape: int = 3) -> np.ndarray:
        return datasets.read_image(tmp_path / name, (shape, 4, 4))

    # Transparent parts lie on white; opaque ones keep their value.
    alpha = np.full((4, 4), 255, np.uint8)
    alpha[0] = 0
    save(tmp_path / "la.png", np.dstack([gray, alpha]))
    np.testing.assert_array_equal(units("la.png", 1)[0], np.where(alpha == 0, 255, gray))
    save(tmp_path / "rgba.png", np.dstack([colour, alpha]))
    np.testing.assert_array_equal(units("rgba.png"), np.where(alpha == 0, 255, colour.transpose(2, 0, 1)))
    # A palette of grays is gray, another one RGB; one with a transparent entry lies on white.
    picture = image.fromarray(noise(4, 4) % 4, mode=None).convert("L")
    picture.putpalette([10, 10, 10, 20, 20, 20, 30, 30, 30, 40, 40, 40])
    picture.save(tmp_path / "gray_palette.png")
    np.testing.assert_array_equal(units("gray_palette.png", 1)[0], noise(4, 4) % 4 * 10 + 10)
    save(tmp_path / "palette.png", (colour // 128) * 255, "P")
    np.testing.assert_array_equal(units("palette.png"), (colour // 128 * 255).transpose(2, 0, 1))
    picture.save(tmp_path / "clear.png", transparency=0)
    clear = noise(4, 4) % 4
    np.testing.assert_array_equal(units("clear.png", 1)[0], np.where(clear == 0, 255, clear * 10 + 10))
    # 16-bit gray is scaled, not clipped; black and white is 0 and 255.
    save(tmp_path / "deep.png", gray.astype(np.uint16) * 257)
    np.testing.assert_array_equal(units("deep.png", 1)[0], gray)
    save(tmp_path / "bits.png", np.eye(4, dtype=np.uint8) * 255, "1")
    np.testing.assert_array_equal(units("bits.png", 1)[0], np.eye(4) * 255)
    # A camera's sideways picture is turned upright.
    save(tmp_path / "turned.png", gray, exif=bytes.fromhex("4d4d002a00000008000101120003000000010006000000000000"))
    np.testing.assert_array_equal(units("turned.png", 1)[0], np.rot90(gray, -1))
    # So are whole numbers of 32 bits; real ones have no known range.
    save(tmp_path / "float.tiff", gray.astype(np.float32) / 255)
    np.testing.assert_array_equal(units("float.tiff", 1)[0], gray.astype(np.float32) / 255)
    save(tmp_path / "long.tiff", gray.astype(np.int32) * -257 + 257 * 300)
    np.testing.assert_array_equal(units("long.tiff", 1)[0], 300 - gray.astype(np.int32))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int16])
def test_read_npy(tmp_path: Path, dtype: Any) -> None:
    array = noise(2, 3, 5).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    found = datasets.read_image(tmp_path / "a.npy", (2, 3, 5))
    assert found.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    np.testing.assert_array_equal(found, array)
    np.save(tmp_path / "a.npy", array[0])
    np.testing.assert_array_equal(datasets.read_image(tmp_path / "a.npy", (1, 3, 5))[0], array[0])


def test_npy_that_does_not_do(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, noise(5, 5, 3))
    rule = (
        f"{path}: the array must have the axes (units, height, width) with 3 units. Received shape=(5, 5, 3). Hint: an "
    )
    with failing(DataError, rule):
        datasets.read_image(path, (3, 5, 5))
    np.save(path, changed(np.zeros((5, 5)), (1, 2), np.nan))
    with failing(DataError, f"{path}: x must hold finite float32 values. Received index=(0, 0, 1, 2), value=nan."):
        datasets.read_image(path, (1, 5, 5))
    for write in (lambda: np.save(path, np.array([[None]])), lambda: path.write_bytes(b"garbage"), path.unlink):
        write()
        with failing(FileError, f"{path}: the file must be a readable .npy array. Received reason="):
            datasets.read_image(path, (1, 5, 5))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros((2, 3), int), "y: class numbers must have the shape (samples, 3, 4). Received shape=(2, 3). Hint"),
        (np.zeros((2, 3, 5), int), "Received shape=(2, 3, 5). Hint: a mask must be as large as the model's output"),
        (np.zeros(2, int), "Received shape=(2,). Hint: for one class a sample, end the model with Dense(classes)"),
        (np.full((2, 3, 4), 9), "y: class numbers must be below 5. Received sample=(0, 0, 0), label=9. Hint: a label "
         "to leave out is named by the loss: CrossEntropy(ignore=255)"),
        (np.full((2, 3, 4), -1), "y: class numbers must not be negative. Received sample=(0, 0, 0), label=-1. Hint: a "
         "label to leave out is named by the loss: CrossEntropy(ignore=-1)"),
        (np.full((2, 3, 4), 0.5), "y: class numbers must be whole numbers. Received sample=(0, 0, 0), label=0.5."),
    ],
)  # fmt: skip
def test_classes_of_positions(y: np.ndarray, message: str) -> None:
    good = np.arange(24).reshape(2, 3, 4) % 5
    good[1, 2, 3] = 255
    x = np.zeros((2, 1, 3, 4), np.float32)
    for dtype in (np.uint8, np.int64, np.float32):
        datasets.check_arrays(x, good.astype(dtype), 5, "y", positions=(3, 4), ignore=255)
    with pytest.raises(DataError, match=re.escape("Received sample=(1, 2, 3), label=255.")):
        datasets.check_arrays(x, good, 5, "y", positions=(3, 4))
    with pytest.raises(DataError, match=re.escape(message)):
        datasets.check_arrays(x, y, 5, "y", positions=(3, 4), ignore=255)
