"""Pictures as a source: the same pixels with any number of processes, and what happens when those fail."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets import picture_workers, pictures
from blobnet.datasets.picture_source import PictureSource
from blobnet.datasets.picture_workers import PictureWorkers
from blobnet.datasets.pictures import read_picture
from blobnet.datasets.source import Source
from blobnet.errors import BlobnetWarning, DataError, FileError, OptionError, extra

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

MODES = {
    "1": "png",
    "L": "jpg",
    "LA": "png",
    "P": "bmp",
    "RGB": "jpg",
    "RGBA": "webp",
    "I;16": "png",
    "CMYK": "jpg",
}


def random_picture(rng: np.random.Generator, mode: str, height: int, width: int) -> Any:
    if mode == "I;16":
        return image.fromarray(rng.integers(0, 1 << 16, (height, width)).astype(np.uint16))
    values = rng.integers(0, 256, (height, width, 4)).astype(np.uint8)
    picture = image.fromarray(values if mode == "RGBA" else values[..., :3])
    return picture.convert(mode)


def test_a_picture_of_absurd_size_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """70 bytes that say 60000x60000."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(9))), chunk(b"IEND", b"")]
    (tmp_path / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with pytest.raises(FileError, match=r"the picture must be readable and whole\..*exceeds limit"):
        read_picture(tmp_path / "large.png", (32, 32))


def reference(path: Path, units: int, size: tuple[int, int]) -> np.ndarray:
    """Straight through Pillow: decode whole, lay on white, gray or RGB, resize."""
    with image.open(path) as picture:
        picture.load()
    if picture.mode.startswith("I"):
        picture = image.fromarray((np.asarray(picture) / 257).astype(np.float32))
        planes = np.asarray(picture.resize(size[::-1], image.Resampling.BILINEAR))
        return np.stack([planes] * units)
    gray = picture.mode in ("1", "L", "LA")
    if "A" in picture.mode:
        paper = image.new("RGBA", picture.size, "white")
        picture = image.alpha_composite(paper, picture.convert("RGBA"))
    picture = picture.convert("L" if gray else "RGB").resize(size[::-1], image.Resampling.BILINEAR)
    return np.asarray(picture.convert("RGB" if units == 3 else "L")).reshape(*size, units).transpose(2, 0, 1)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    rng, folder, made = np.random.default_rng(5), tmp_path_factory.mktemp("pictures"), []
    for number in range(24):
        mode = list(MODES)[number % len(MODES)]
        height, width = rng.integers(1, 40, 2)
        made.append(folder / f"{number:02} {mode[:2]}.{MODES[mode]}")
        random_picture(rng, mode, int(height), int(width)).save(made[-1])
    return made


@pytest.fixture(scope="module")
def two() -> Iterator[PictureWorkers]:
    workers = PictureWorkers(2)
    yield workers
    workers.close()


def read(source: PictureSource, rows: Any) -> np.ndarray:
    rows = np.asarray(rows)
    out = np.full((len(rows), *source.shape[1:]), 77, source.dtype)
    source.read(rows, out)
    return out


def has_ended(process: int) -> bool:
    """Whether there is no such process, not even as a zombie; waits a little."""
    for _ in range(50):
        if not Path(f"/proc/{process}").exists():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("dtype", [np.uint8, np.float32], ids=["uint8", "float32"])
@pytest.mark.parametrize(("units", "size"), [(3, (17, 23)), (1, (9, 31))])
def test_pixels_of_every_mode(
    paths: list[Path], two: PictureWorkers, units: int, size: tuple[int, int], dtype: type
) -> None:
    """With grays of 16 bits among them in float32, of 8 bits alone in uint8."""
    own = [path for path in paths if dtype is np.float32 or path.stem[3:] != "I;"]
    inline, apart = (PictureSource(own, size, units, workers, dtype=dtype) for workers in (0, two))
    assert apart.shape == (len(own), units, *size)
    assert (apart.dtype, apart.is_parallel, apart.is_quick) == (dtype, True, False)
    rows = np.random.default_rng(1).permutation(len(own))
    found = read(apart, rows)
    np.testing.assert_array_equal(found, read(inline, rows))
    for row, planes in zip(rows, found, strict=True):
        np.testing.assert_array_equal(planes, datasets.read_image(own[row], (units, *size)), str(own[row]))
        if units == 3 or own[row].stem[3:] in ("1", "L", "LA", "I;"):  # Else gray comes after resizing.
            np.testing.assert_array_equal(planes, reference(own[row], units, size), str(own[row]))
    np.testing.assert_array_equal(read(apart, [3, 3, 1]), read(inline, [3, 3, 1]))
    np.testing.assert_array_equal(np.asarray(apart[2:5]), read(inline, [2, 3, 4]))


def test_large_jpegs_are_decoded_small(tmp_path: Path) -> None:
    """They stay what they are to the eye."""
    y, x = np.mgrid[:400, :600]
    path = tmp_path / "a.jpg"
    image.fromarray(np.dstack([y // 2, x // 3, (x + y) // 5]).astype(np.uint8)).save(path, quality=95)
    found = datasets.read_image(path, (3, 30, 50))
    assert np.abs(found.astype(int) - reference(path, 3, (30, 50))).max() <= 3


def test_a_picture_that_is_cut_off_is_named(paths: list[Path], two: PictureWorkers, tmp_path: Path) -> None:
    broken = tmp_path / "cut.jpg"
    broken.write_bytes(paths[1].read_bytes()[:-40])
    for workers in (0, two):
        source = PictureSource([*paths[:9], broken, *paths[9:]], (8, 8), 3, workers)
        with pytest.raises(FileError, match=re.escape(f"{broken}: the picture must be readable and whole. Received")):
            read(source, range(25))
        np.testing.assert_array_equal(read(source, [0, 1]), read(PictureSource(paths, (8, 8), 3, 0), [0, 1]))


def test_a_picture_that_is_gone_is_named(paths: list[Path], two: PictureWorkers, tmp_path: Path) -> None:
    source = PictureSource([tmp_path / "gone.png"], (8, 8), 3, two)
    with pytest.raises(FileError, match=r"gone\.png: the picture must be readable and whole"):
        read(source, [0])


def processes_of(source: PictureSource) -> list[int]:
    """The processes that wait for work."""
    return [worker._child._process.pid for worker in source.workers._idle]


def test_killed_workers_are_replaced(paths: list[Path]) -> None:
    source = PictureSource(paths, (8, 8), 3, 2)
    expected = read(source, range(24))
    killed = processes_of(source)
    assert 1 <= len(killed) <= 2
    for process in killed:
        os.kill(process, signal.SIGKILL)
    rule = r"\d\d .*: the process that decoded the picture must not end. Received worker=killed by SIGKILL. Hint: it"
    for _ in killed:
        with pytest.raises(DataError, match=rule):
            read(source, [5])
    np.testing.assert_array_equal(read(source, range(24)), expected)
    assert all(has_ended(process) for process in killed)
    assert not set(killed) & set(processes_of(source))


def test_workers_end_with_their_source(paths: list[Path]) -> None:
    source = PictureSource(paths, (8, 8), 3, 2)
    read(source, range(24))
    processes = processes_of(source)
    assert processes
    del source
    assert all(has_ended(process) for process in processes)


def test_workers_that_cannot_start(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source = PictureSource(paths, (8, 8), 3, 1)
    rule = "workers: the processes that decode pictures must start. Received cause="
    monkeypatch.setattr("blobnet.datasets.picture_workers._PROGRAM", "raise SystemExit('no such module')")
    with pytest.raises(DataError, match=re.escape(f"{rule}ended with status 1: no such module. Hint: workers=0")):
        read(source, [0])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(DataError, match=re.escape(f"{rule}[Errno 2] No such file")):
        read(source, [0])
    monkeypatch.undo()
    assert read(source, [0]).any()
    with pytest.raises(OptionError, match=re.escape("workers: it must be 0 or more. Received workers=-1.")):
        PictureSource(paths, (8, 8), 3, -1)


def test_workers_without_pillow(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import sys\nsys.modules['PIL'] = None\n{picture_workers._PROGRAM}"
    monkeypatch.setattr(picture_workers, "_PROGRAM", program)
    rule = re.escape(f"{paths[0]}: reading or resizing pictures needs Pillow. Hint: {extra('images')}")
    with pytest.raises(OptionError, match=f"^{rule}$"):
        PictureWorkers(1).forms(paths, has_size=True, is_whole=False)
    with pytest.raises(OptionError, match=f"^{rule}$"):
        read(PictureSource(paths, (8, 8), 3, 1), [0])


def test_ctrl_c_leaves_nothing(paths: list[Path], tmp_path: Path) -> None:
    """Nor does a script need to be written for it: it has no `if __name__ == "__main__"`."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            from pathlib import Path
            import numpy as np
            from blobnet.datasets.picture_source import PictureSource
            source = PictureSource(sorted(Path({str(paths[0].parent)!r}).iterdir()) * 40, (200, 200), 3, 2)
            np.asarray(source[:48])
            print(*(each._child._process.pid for each in source.workers._idle), flush=True)
            try:
                while True:
                    np.asarray(source)
            except KeyboardInterrupt:
                print("stopped", np.asarray(source[:3]).shape, flush=True)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert workers
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("stopped (3, 3, 200, 200)\n", "", 0)
    assert all(has_ended(worker) for worker in workers)


def test_workers_end_when_their_parent_is_killed(paths: list[Path]) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; import numpy as np\n"
        "from blobnet.datasets.picture_source import PictureSource\n"
        "source = PictureSource([Path(sys.argv[1])] * 9, (5, 5), 3, 2); np.asarray(source)\n"
        "print(*(each._child._process.pid for each in source.workers._idle), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, paths[0]], capture_output=True, text=True, check=False)
    workers = [int(word) for word in done.stdout.split()]
    assert workers, done.stderr
    # Nobody here waits for orphans, so that one may stay as a zombie of the system's first process.
    for worker in workers:
        for _ in range(50):
            state = Path(f"/proc/{worker}/stat")
            if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"{worker} is still there")


# --- folders and tables ---


def put(path: Path, seed: int = 0, size: tuple[int, int] = (5, 7), *, is_gray: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    image.fromarray(values[..., 0] if is_gray else values).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, a folder for each split; pictures of all kinds and sizes."""
    for number in range(14):
        part = ("train", "train", "val", "test")[number % 4]
        suffix = ("png", "jpg", "webp", "BMP")[number // 4]
        size = (3 + number, 20 - number)
        put(
            tmp_path / "set" / part / "ba"[number % 3 % 2] / f"{number}.{suffix}", number, size, is_gray=number % 5 == 0
        )
    return tmp_path / "set"


@pytest.mark.parametrize("workers", [0, 2])
def test_large_folders_are_read_lazily(folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = datasets.load(folder, size=(6, 9))
    monkeypatch.setattr("blobnet.datasets.image_folder.KEPT_BYTES", 14 * 3 * 6 * 9 - 1)
    lazy = datasets.load(folder, size=(6, 9), workers=workers)
    assert repr(lazy) == repr(whole) == "set: 8 + 3 + 3 samples of (3, 6, 9), 2 classes"
    for theirs, ours in ((whole.train, lazy.train), (whole.validation, lazy.validation), (whole.test, lazy.test)):
        assert theirs is not None
        assert ours is not None
        assert isinstance(theirs.x, np.ndarray)
        assert isinstance(ours.x, Source)
        np.testing.assert_array_equal(np.asarray(ours.x), theirs.x)
        np.testing.assert_array_equal(ours.y, theirs.y)
    np.testing.assert_array_equal(lazy.statistics(), whole.statistics())
    for theirs, ours in zip(whole.train.split_validation(0.25, 3), lazy.train.split_validation(0.25, 3), strict=True):
        np.testing.assert_array_equal(np.asarray(ours.x), theirs.x)
    monkeypatch.setattr("blobnet.datasets.image_folder.KEPT_BYTES", 14 * 3 * 6 * 9)
    assert isinstance(datasets.load(folder, size=(6, 9)).train.x, np.ndarray)


def test_forms_are_those_of_the_pixels(paths: list[Path], two: PictureWorkers) -> None:
    expected = [read_picture(path).shape for path in paths]
    for workers in (PictureWorkers(0), two):
        for is_whole in (False, True):
            assert workers.forms(paths, has_size=True, is_whole=is_whole) == expected
        assert [form[0] for form in workers.forms(paths, has_size=False, is_whole=False)] == [e[0] for e in expected]  # type: ignore[index]


@pytest.mark.parametrize(("suffix", "orientation"), [("jpg", 6), ("png", 8), ("jpg", 3)])
def test_pictures_on_their_side(tmp_path: Path, suffix: str, orientation: int) -> None:
    path = put(tmp_path / "set" / "a" / f"1.{suffix}")
    with image.open(path) as picture:
        exif = picture.getexif()
        exif[0x0112] = orientation
        picture.save(path, exif=exif)
    assert datasets.load(tmp_path / "set").shape == ((3, 5, 7) if orientation == 3 else (3, 7, 5))


@pytest.mark.parametrize("workers", [None, 1])
def test_unreadable_pictures_are_left_out(folder: Path, workers: int | None) -> None:
    expected = datasets.load(folder, size=(6, 9))
    cut = sorted((folder / "train" / "b").iterdir())[0]
    (folder / "train" / "b" / "cut.jpg").write_bytes(put(folder / ".x.jpg", 1, (60, 60)).read_bytes()[:-300])
    (folder / "val" / "a" / "empty.png").write_bytes(b"")
    with pytest.raises(FileError, match="(cut.jpg|empty.png): the picture must be readable and whole"):  # noqa: RUF043
        datasets.load(folder, size=(6, 9), workers=workers)
    rule = "set: 2 of 16 pictures cannot be read and are left out. Received first="
    with pytest.warns(BlobnetWarning, match=re.escape(f"{rule}{cut.parent / 'cut.jpg'}: the picture must be")) as said:
        found = datasets.load(folder, size=(6, 9), workers=workers, skip_unreadable=True)
    assert str(said[0].message).endswith(f", others={folder / 'val' / 'a' / 'empty.png'}.")
    assert repr(found) == repr(expected)
    np.testing.assert_array_equal(found.train.x, expected.train.x)
    np.testing.assert_array_equal(found.train.y, expected.train.y)


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"")
    rule = f"{tmp_path.name}: every split must hold pictures that can be read. Received unreadable=1."
    with pytest.warns(BlobnetWarning), pytest.raises(DataError, match=re.escape(rule)):
        datasets.load(tmp_path, skip_unreadable=True)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_names_of_the_validation_folder(tmp_path: Path, name: str) -> None:
    for number, part in enumerate(("train", name)):
        put(tmp_path / part / "a" / "1.png", number)
    found = datasets.load(tmp_path)
    assert found.test is None
    assert found.validation is not None
    assert (len(found.train), len(found.validation)) == (1, 1)
    put(tmp_path / ("valid" if name == "val" else "val") / "a" / "1.png")
    with pytest.raises(DataError, match="only one folder may hold the validation split. Received found="):  # noqa: RUF043
        datasets.load(tmp_path)


def test_a_class_without_pictures_that_can_be_read(folder: Path) -> None:
    for path in (folder / "train" / "b").iterdir():
        path.write_bytes(b"")
    rule = "every class must hold a picture to train on that can be read. Received unreadable="
    with (
        pytest.warns(BlobnetWarning, match=r"and are left out.*cannot identify image file .[^,]*, others=.*9\.webp\.$"),
        pytest.raises(DataError, match=rf"{rule}\d+, class=b\."),
    ):
        datasets.load(folder, size=(4, 4), skip_unreadable=True)


def test_class_file(folder: Path) -> None:
    (folder / "classes.txt").write_text("c\nb\n\n a \n")
    found, plain = datasets.load(folder, size=(4, 4)), None
    assert found.class_names == ("c", "b", "a")
    (folder / "classes.txt").unlink()
    plain = datasets.load(folder, size=(4, 4))
    names = [[data.class_names[label] for label in data.train.y] for data in (found, plain)]
    assert names[0] == names[1]
    for text, rule in (
        ("a\n", "classes.txt: every class must stand in it. Received missing=b, names=['a']."),
        ("a\nb\na", "classes.txt: it must name each class once. Received names=['a', 'b', 'a']."),
        ("\n", "classes.txt: it must name each class once. Received names=[]."),
    ):
        (folder / "classes.txt").write_text(text)
        with pytest.raises(DataError, match=re.escape(rule)):
            datasets.load(folder, size=(4, 4))


@pytest.mark.parametrize(
    "text", ['{"c": 0, "a": 2, "b": 1}', '{"1": "b", "0": "c", "2": "a"}', '{"0": ["c", "C"], "1": ["b"], "2": ["a"]}']
)
def test_class_index(folder: Path, text: str) -> None:
    plain = datasets.load(folder, size=(4, 4))
    (folder / "class_index.json").write_text(text)
    found = datasets.load(folder, size=(4, 4))
    assert found.class_names == ("c", "b", "a")
    names = [[data.class_names[label] for label in data.train.y] for data in (found, plain)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"a": 1, "b": 2, "c": 3}', '{"a": 0, "b": 0}', '{"x": "a"}', '{"0": []}']
)
def test_class_index_that_numbers_no_names(folder: Path, text: str) -> None:
    (folder / "class_index.json").write_text(text)
    with pytest.raises(FileError, match=r"class_index.json: the file must be readable text. Received reason="):
        datasets.load(folder, size=(4, 4))


def test_class_index_without_a_class(folder: Path) -> None:
    (folder / "class_index.json").write_text('{"a": 0}')
    rule = "class_index.json: every class must stand in it. Received missing=b, names=['a']."
    with pytest.raises(DataError, match=re.escape(rule)):
        datasets.load(folder, size=(4, 4))


def deep_png(path: Path, values: np.ndarray) -> Path:
    """A PNG of 16 bits, which Pillow itself writes in gray alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, 2 if values.ndim == 3 else 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return path


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["png", "uint16", "int32", "float32"])
@pytest.mark.parametrize("peak", [200, 4095, 65535])
def test_grays_of_more_than_8_bits(tmp_path: Path, kind: str, peak: int, workers: int) -> None:
    """White, 65535, is 255, and no gray is lost, whatever part of the range is used; real numbers stay."""
    values = np.random.default_rng(peak).integers(0, peak + 1, (6, 5))
    values[0, 0] = peak
    path = tmp_path / "set" / "a" / ("1.png" if kind == "png" else "1.tif")
    if kind == "png":
        deep_png(path, values)
    else:
        path.parent.mkdir(parents=True)
        image.fromarray(values.astype(kind)).save(path)
    put(tmp_path / "set" / "a" / "2.png", 2, (6, 5), is_gray=True)
    expected = values.astype(np.float64) / (1 if kind == "float32" else 257)
    found = datasets.load(tmp_path / "set", workers=workers).train.x
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-6)
    with image.open(tmp_path / "set" / "a" / "2.png") as picture:
        np.testing.assert_array_equal(found[1, 0], np.asarray(picture))
    np.testing.assert_array_equal(datasets.read_image(path, (1, 6, 5)), found[0])
    halved = datasets.read_image(path, (3, 3, 5))
    wanted = image.fromarray(expected.astype(np.float32)).resize((5, 3), image.Resampling.BILINEAR)
    np.testing.assert_array_equal(halved, np.stack([np.asarray(wanted)] * 3))


def test_real_numbers_that_are_none(tmp_path: Path) -> None:
    image.fromarray(np.array([[1, np.nan]], np.float32)).save(tmp_path / "1.tif")
    with pytest.raises(FileError, match=r"reason=its values are not finite"):
        read_picture(tmp_path / "1.tif")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("peak", "left"), [(200, "nothing but black"), (4095, "16 of 256 values"), (1 << 14, None), (65535, None)]
)
def test_deep_colours_of_few_values(tmp_path: Path, peak: int, left: str | None, workers: int) -> None:
    values = np.random.default_rng(peak).integers(0, peak + 1, (6, 5, 3))
    values[0, 0] = peak
    path = deep_png(tmp_path / "set" / "a" / "1.png", values)
    put(tmp_path / "set" / "a" / "2.png", 2, (6, 5), is_gray=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = datasets.load(tmp_path / "set", workers=workers).train.x[0]
    np.testing.assert_array_equal(found, values.transpose(2, 0, 1) >> 8)
    if left is None:
        assert not said
        return
    high = peak | 0xFF
    rule = f"Pillow reads 8 of 16 bits of colours, and these have no value above {high}, which leaves {left}."
    hint = "scale them before, with OpenCV: cv2.imwrite(file, (cv2.imread(file, cv2.IMREAD_UNCHANGED) * (255 / "
    assert str(said[0].message).startswith(f"set: {rule} Received pictures=1. Hint: {hint}{high})).astype('uint8')).")
    if peak == 200:
        with pytest.warns(BlobnetWarning, match="leaves nothing but black"):
            assert not datasets.read_image(path, (1, 6, 5)).any()


# --- what counts, what is left out, and what is asked ---

#: Suffixes of all formats that Pillow itself reads everywhere, and writes.
WRITTEN = {"tif": "TIFF", "TIFF": "TIFF", "gif": "GIF", "ppm": "PPM", "pnm": "PPM", "jfif": "JPEG", "JPE": "JPEG"}
WRITTEN |= {"PNG": "PNG", "bmp": "BMP", "dib": "DIB", "ico": "ICO", "tga": "TGA"}


def test_all_formats_in_all_folders_below_a_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    colours = {}
    for number, (suffix, kind) in enumerate(WRITTEN.items()):
        path = tmp_path / "set" / "ab"[number % 2] / ("deep/deeper" if number % 3 else "") / f"{number}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        colours[path] = rng.integers(0, 256, 3)
        image.fromarray(np.tile(colours[path].astype(np.uint8), (16, 16, 1))).save(path, kind)
    first = image.fromarray(np.full((16, 16), 9, np.uint8))
    (tmp_path / "set" / "b" / "again").symlink_to(tmp_path / "set" / "b")  # A circle.
    moving = tmp_path / "set" / "b" / "moving.gif"
    first.save(moving, save_all=True, append_images=[image.new("L", (16, 16), 200)])
    colours[moving] = np.array([9, 9, 9])
    found = datasets.load(tmp_path / "set")
    paths = sorted(colours, key=lambda path: (path.relative_to(tmp_path).parts[1], path))
    assert found.train.y.tolist() == ["ab".index(path.relative_to(tmp_path).parts[1]) for path in paths]
    for planes, path in zip(found.train.x, paths, strict=True):
        assert np.abs(planes[:, 8, 8].astype(int) - colours[path]).max() <= 3, path


@pytest.mark.parametrize(("suffix", "module"), [("heic", "pillow_heif"), ("avif", "pillow_avif")])
def test_formats_of_plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, module: str) -> None:
    """They are read where the plug-in is there; where it is not, they are counted, and it is named."""
    put(tmp_path / "set" / "a" / "1.png")
    for name in ("2", "3"):
        (tmp_path / "set" / "a" / f"{name}.{suffix}").write_bytes(b"\0\0\0\x1cftyp" + suffix.encode() + bytes(20))
    package = {"pillow_heif": "pillow-heif", "pillow_avif": "pillow-avif-plugin"}[module]
    image.init()  # What Pillow opens itself would else be noted in what is taken away again.
    with monkeypatch.context() as without:
        for name in [name for name in sys.modules if name.startswith(module)] or [module]:
            without.setitem(sys.modules, name, None)
        without.setitem(sys.modules, f"{module}.HeifImagePlugin", None)
        without.setattr(image, "OPEN", {kind: own for kind, own in image.OPEN.items() if kind not in ("HEIF", "AVIF")})
        pictures._formats.cache_clear()
        rule = f"left out: 2 .{suffix} (pip install {package})."
        with pytest.warns(BlobnetWarning, match=re.escape(rule)):
            assert len(datasets.load(tmp_path / "set").train) == 1
        (tmp_path / "set" / "a" / f"3.{suffix}").rename(tmp_path / "phone.jpg")
        hint = f"Hint: it is {'HEIF' if suffix == 'heic' else 'AVIF'}, whatever its name says: pip install {package}"
        with pytest.raises(FileError, match=re.escape(hint)):
            read_picture(tmp_path / "phone.jpg")
    pictures._formats.cache_clear()
    if pictures.reads("HEIF" if suffix == "heic" else "AVIF"):
        values = np.full((32, 32, 3), (200, 60, 30), np.uint8)
        image.fromarray(values).save(tmp_path / f"right.{suffix}", quality=95)
        assert (
            np.abs(
                datasets.read_image(tmp_path / f"right.{suffix}", (3, 32, 32)).transpose(1, 2, 0) - 1.0 * values
            ).max()
            < 9
        )


def test_what_is_left_out_is_said_once(tmp_path: Path) -> None:
    for place in ("train/a/1.png", "train/b/1.png", "train/b/.hidden.png", "val/a/1.png", "val/loose.png"):
        put(tmp_path / "set" / place)
    for place in ("train/a/1.txt", "train/b/deep/2.TXT", "val/a/none", "read.me", "docs/a.txt", "train/b/Thumbs.db"):
        path = tmp_path / "set" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no picture")
    with pytest.warns(BlobnetWarning) as said:
        assert repr(datasets.load(tmp_path / "set")) == "set: 2 + 1 samples of (3, 5, 7), 2 classes"
    (warning,) = said
    counts = "2 .txt, 1 .me, 1 folder docs/, 1 .png beside the folders, 1 without a suffix"
    assert str(warning.message) == f"{tmp_path / 'set'}: left out: {counts}."


@pytest.mark.parametrize(
    ("folders", "counts"),
    [
        ("Train/a Train/b Testing/a VALIDATION/b", (2, 1, 1)),
        ("Training/a Training/b", (2, None, None)),
        ("car train plane", (3, None, None)),
        ("valid invalid", (2, None, None)),
        ("bullet-train/a plane", (2, None, None)),
    ],
)
def test_names_of_splits(tmp_path: Path, folders: str, counts: tuple[int | None, ...]) -> None:
    """Folders of such names without folders in them are classes, where others are there, too."""
    for number, folder in enumerate(folders.split()):
        put(tmp_path / folder / "1.png", number)
        put(tmp_path / folder.partition("/")[0] / ".hidden" / "1.png")
    if "bullet" in folders:
        put(tmp_path / "bullet-train" / "1.png")
        counts = (3, None, None)
    found = datasets.load(tmp_path)
    splits = (found.train, found.test, found.validation)
    assert tuple(None if split is None else len(split) for split in splits) == counts


@pytest.mark.parametrize(
    ("files", "rule", "hint"),
    [
        ("train/a test1/a", "test1: folders of splits must be called train, val or test", "did you mean test/?"),
        ("seg_train/a seg_test/a", "seg_test: folders of splits must be called", "did you mean test/?"),
        ("train/a/b other/a", "other: folders of splits must be called", "move it elsewhere; or, where all"),
        ("train test", "train: it must hold one folder of pictures for each class", "put its pictures into a folder"),
        ("val/a test/a", "there must be a folder train. Received found=['test', 'val']", "test by itself is a data"),
        ("Train/a train/a", "only one folder may hold the train split. Received found=['Train', 'train']", ""),
        ("a/train a/val b/train", "a: folders of splits must hold those of classes", "did you mean train/a and val/a?"),
        ("set/train/a set/val/a", "set: folders of splits must hold those of classes", "set?"),
        ("images labels", "Received found=['images', 'labels']", "did you mean images/ and masks/?"),
        ("JPEGImages SegmentationClass", "found=['JPEGImages', 'SegmentationClass']", "mean images/ and masks/?"),
        ("images/train images/val masks/train", "images: folders of splits", "train/images and val/images?"),
    ],
)  # fmt: skip
def test_folders_that_could_be_something_else(tmp_path: Path, files: str, rule: str, hint: str) -> None:
    for folder in files.split():
        put(tmp_path / folder / "1.png")
    with pytest.raises(DataError) as caught:
        datasets.load(tmp_path)
    assert rule in str(caught.value)
    assert hint in str(caught.value).partition("Hint: ")[2]


def test_a_folder_above_the_right_one(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        put(tmp_path / "archive" / name / "1.png")
    rule = f"all pictures lie below archive, which is taken for the only class. Hint: did you mean {tmp_path}/archive?"
    with pytest.warns(BlobnetWarning, match=re.escape(rule)):
        assert datasets.load(tmp_path).class_names == ("archive",)


@pytest.mark.parametrize("is_table", [False, True])
def test_names_that_mean_the_same(tmp_path: Path, is_table: bool) -> None:
    names = ["cat", "Cat", "hot dog", "hot_dog", "dog"]
    for name in names:
        put(tmp_path / name / "1.png")
    (tmp_path / "my.csv").write_text("path,label\n" + "".join(f"{name}/1.png,{name}\n" for name in names))
    rule = "'Cat' and 'cat', 'hot dog' and 'hot_dog' are classes of their own. Hint: if they are one class, give them"
    with pytest.warns(BlobnetWarning) as said:
        assert datasets.load(tmp_path / "my.csv" if is_table else tmp_path).classes == 5
    assert rule in str(said[0].message)
    assert len(said) == 2 - is_table  # The folder has the table beside it.


@pytest.mark.parametrize("labels", [["0.5", "1", "2.25"], ["0,5", "1", "1e-3"], ["-0.5", "12", ".5"]])
def test_a_table_of_targets_is_none_of_classes(tmp_path: Path, labels: list[str]) -> None:
    for number in range(len(labels)):
        put(tmp_path / f"{number}.png", number)
    rows = "".join(f"{number}.png;{label}\n" for number, label in enumerate(labels))
    (tmp_path / "my.csv").write_text(f"path;label\n{rows}")
    data = datasets.load(tmp_path / "my.csv")
    assert (data.classes, data.target_names, data.has_several) == (0, ("label",), False)
    expected = np.array([[float(label.replace(",", "."))] for label in labels], np.float32)
    np.testing.assert_array_equal(data.train.y, expected)
    assert data.train.y.dtype == np.float32
    assert repr(data) == "my: 3 samples of (3, 5, 7), 1 number: label"
    assert datasets.load(tmp_path / "my.csv", labels="classes").classes == 3
    (tmp_path / "classes.txt").write_text("\n".join(labels))
    assert datasets.load(tmp_path / "my.csv").class_names == tuple(labels)


#: A table of three pictures, what is asked for, the names of its targets, whether they are labels, and y.
LABELS = {
    "several": ("path,label\n0,cat|red\n1,red\n2,\n", {}, "cat red", True, [[1, 1], [0, 1], [0, 0]]),
    "spaces": ("path,label\n0,cat | red |\n1,a b\n2,red\n", {}, "a b;cat;red", True, [[0, 1, 1], [1, 0, 0], [0, 0, 1]]),
    "one each": ("path,label\n0,b\n1,a\n2,b\n", {"labels": "several"}, "a b", True, [[0, 1], [1, 0], [0, 1]]),
    "columns": ("a,b,file_name\n1,0,0\n0.0,1,1\n1,1,2\n", {}, "a b", True, [[1, 0], [0, 1], [1, 1]]),
    "shares": ("file,a,b\n0,1,0.5\n1,0,0\n2,1,1\n", {"labels": "several"}, "a b", True, [[1, 0.5], [0, 0], [1, 1]]),
    "words": (
        "file,what,colour,by\n0,cat,red,me\n1,dog,,me\n2,cat,blue,me\n",
        {"columns": ["what", "colour"], "labels": "several"},
        "blue cat dog red",
        True,
        [[0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 0, 0]],
    ),
    "numbers": (
        "file;age;height\n0;3;1,5\n1;-4;2\n2;5;1e-3\n",
        {},
        "age height",
        False,
        [[3, 1.5], [-4, 2], [5, 0.001]],
    ),
    "whole": ("file,label\n0,3\n1,4\n2,50\n", {"labels": "numbers"}, "label", False, [[3], [4], [50]]),
    "one column": (
        "file,age,id\n0,3,a\n1,4,b\n2,5,c\n",
        {"columns": "age", "labels": "numbers"},
        "age",
        False,
        [[3], [4], [5]],
    ),
    "in one cell": ("file,label\n0,.5|1\n1,2|3\n2,4|-5\n", {}, "label 0;label 1", False, [[0.5, 1], [2, 3], [4, -5]]),
}


@pytest.mark.parametrize(("text", "asked", "names", "are_labels", "y"), LABELS.values(), ids=LABELS)
def test_kinds_of_labels(tmp_path: Path, text: str, asked: Any, names: str, are_labels: bool, y: Any) -> None:
    for number in range(3):
        put(tmp_path / f"{number}.png", number)
    (tmp_path / "my.csv").write_text(text)
    data = datasets.load(tmp_path / "my.csv", **asked)
    assert (data.class_names, data.has_several) == ((), are_labels)
    assert data.target_names == tuple(names.split(";") if ";" in names else names.split())
    np.testing.assert_array_equal(data.train.y, np.array(y, np.float32))
    assert [Path(file).stem for file in data.train.files] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("text", "asked", "rule"),
    [
        ("path,label\n0,1.5\n1,\n", {}, "row 3: every row must have a path and a label"),
        (
            "path,label\n0,1.5\n1,a\n",
            {"labels": "numbers"},
            "row 3: every label must be a number, finite in float32. Received label='a'. Hint: --labels ",
        ),
        (
            "path,label\n0,1.5\n1,1e39\n",
            {"labels": "numbers"},
            "row 3: every label must be a number, finite in float32. Received label='1e39'",
        ),
        (
            "path,label\n0,1.5|2\n1,1\n",
            {},
            "row 3: every picture must have as many numbers as the first one. Received numbers=1, ",
        ),
        (
            "path,a,b\n0,1,x\n",
            {},
            "row 2: columns of labels must hold numbers, or 0 and 1. Received column=b, received='x'. Hint: --col",
        ),
        (
            "path,a,b\n0,1,x\n",
            {"labels": "classes"},
            "columns: a class must lie in one column. Received columns=a, b. Hint: --columns a",
        ),
        (
            "path,a,b\n0,1,x\n",
            {"columns": ["c"]},
            "my.csv must have them. Received missing=c. Hint: known names: a, b, path",
        ),
        ("path,cat,dog\n0,1,0\n1,1,\n", {"labels": "several"}, "row 3: every row must have a path and a label"),
        ("path,cat\n0,1\n", {"columns": ["cat", "cat"]}, "columns: every column must be named once. Received columns"),
        ("path,label\n0,\n1,\n", {"labels": "several"}, "a picture to train on must have a label. Received pictures=2"),
        (
            "path,label,split\n0,a|b,train\n1,c|a,test\n",
            {},
            "row 3: every label must be trained. Received label=c, labels=['a', 'b']",
        ),
        (
            "path,label\n0,a\n",
            {"labels": "many"},
            "labels: they must be classes, several or numbers. Received labels=many",
        ),
    ],
)
def test_labels_that_do_not_do(tmp_path: Path, text: str, asked: Any, rule: str) -> None:
    for number in range(3):
        put(tmp_path / f"{number}.png", number)
    (tmp_path / "my.csv").write_text(text)
    with pytest.raises((DataError, OptionError), match=re.escape(rule)):
        datasets.load(tmp_path / "my.csv", **asked)


def test_labels_that_are_listed(tmp_path: Path) -> None:
    put(tmp_path / "0.png")
    (tmp_path / "classes.txt").write_text("dog\nred\ncat\n")
    (tmp_path / "my.csv").write_text("path,label\n0,cat|red\n")
    data = datasets.load(tmp_path / "my.csv")
    assert (data.target_names, data.train.y.tolist()) == (("dog", "red", "cat"), [[0, 1, 1]])
    (tmp_path / "my.csv").write_text("path,label\n0,cat|blue\n")
    with pytest.raises(DataError, match=r"row 2: every label must stand in classes\.txt\. Received label=blue"):
        datasets.load(tmp_path / "my.csv")


def test_folders_of_several_labels_and_of_numbers(tmp_path: Path) -> None:
    for split, name in (("train", "cat|red"), ("train", "red"), ("train", "dog"), ("test", "dog|red")):
        put(tmp_path / "tags" / split / name / "a" / "1.png")
    data = datasets.load(tmp_path / "tags")
    assert (data.target_names, data.has_several) == (("cat", "dog", "red"), True)
    assert data.train.y.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert data.test is not None
    assert data.test.y.tolist() == [[0, 1, 1]]
    assert datasets.load(tmp_path / "tags" / "train", labels="classes").class_names == ("cat|red", "dog", "red")
    for name in ("3", "40"):
        put(tmp_path / "ages" / name / "1.png")
    assert datasets.load(tmp_path / "ages").class_names == ("3", "40")
    ages = datasets.load(tmp_path / "ages", labels="numbers")
    assert (ages.target_names, ages.train.y.tolist()) == (("label",), [[3], [40]])
    with pytest.raises(OptionError, match=r"columns: only a table has columns of labels: .* Received columns=age"):
        datasets.load(tmp_path / "ages", columns="age")


def test_a_folder_with_a_table(tmp_path: Path) -> None:
    put(tmp_path / "photos" / "1.png")
    put(tmp_path / "photos" / "2.png")
    (tmp_path / "labels.csv").write_text("path,age,weight\nphotos/1.png,3,4.5\nphotos/2.png,5,6\n")
    data = datasets.load(tmp_path)
    assert (data.name, data.target_names) == (tmp_path.name, ("age", "weight"))
    assert data.train.y.tolist() == [[3, 4.5], [5, 6]]
    put(tmp_path / "drawings" / "1.png")  # Folders of classes come first, as ever.
    with pytest.warns(BlobnetWarning, match=r"left out: 1 \.csv"):
        assert datasets.load(tmp_path).class_names == ("drawings", "photos")


def test_labels_stay_with_pictures_that_can_be_read(tmp_path: Path) -> None:
    for number in (0, 2):
        put(tmp_path / f"{number}.png", number)
    (tmp_path / "1.png").write_text("no picture")
    (tmp_path / "my.csv").write_text("path,label\n0.png,0.5\n1.png,1.5\n2.png,2.5\n")
    with pytest.warns(BlobnetWarning, match="1 of 3 pictures cannot be read and are left out"):
        data = datasets.load(tmp_path / "my.csv", skip_unreadable=True)
    assert (data.train.y.tolist(), data.train.files[1]) == ([[0.5], [2.5]], str(tmp_path / "2.png"))


def test_files_that_names_in_tables_mean(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "in" / f"{number}.png", number)
    put(tmp_path / "in" / "2.png", 2)
    table, expected = tmp_path / "my.csv", [read_picture(tmp_path / "in" / f"{number}.png") for number in range(3)]
    for encoding in ("utf-16", "utf-8"):
        for form in ("in\\{}.png", "in/{}", "in\\{}", "in/{}.png"):
            rows = "".join(f"{form.format(number)}\t{'äbä'[number]}\n" for number in range(3))
            table.write_text(f"path\tlabel\n{rows}", encoding=encoding)
            found = datasets.load(table)
            assert (found.class_names, found.train.y.tolist()) == (("b", "ä"), [1, 0, 1])
            np.testing.assert_array_equal(found.train.x, expected)
    put(tmp_path / "in" / "2.jpg")  # Now the name alone means two.
    table.write_text("path,label\nin/2,a\n")
    with pytest.raises(
        FileError, match=r"in/2: .*Hint: paths in a table start from the folder that it lies in\. skip_"
    ):
        datasets.load(table)
    table.write_text("path,label\nin/2.png,ä\n", encoding="latin-1")
    with pytest.raises(FileError, match=r"must be a readable CSV file\. Received reason=.*Hint: save it as UTF-8\."):
        datasets.load(table)


def test_table(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path / "in" / f"{number}.png", number)
    table = tmp_path / "my.csv"
    rows = ["in/0.png,owl,train", "in/3.png, ant,TRAIN", "in/1.png,owl,test", f"{tmp_path}/in/2.png,ant,valid"]
    table.write_text("\ufeffPath, Label, split\n" + "\n".join(rows) + "\n", encoding="utf-8")
    found = datasets.load(table)
    assert repr(found) == "my: 2 + 1 + 1 samples of (3, 5, 7), 2 classes"
    assert (found.class_names, found.train.y.tolist()) == (("ant", "owl"), [1, 0])
    with image.open(tmp_path / "in" / "3.png") as picture:
        np.testing.assert_array_equal(found.train.x[1], np.asarray(picture).transpose(2, 0, 1))
    assert datasets.load(table, size=(2, 3)).shape == (3, 2, 3)
    # Numbers are sorted as such, and count the lines of a class file.
    table.write_text("filename,class\nin/0.png,10\nin/1.png,9\nin/2.png,9\n")
    found = datasets.load(table)
    assert (found.class_names, found.train.y.tolist(), found.test) == (("9", "10"), [1, 0, 0], None)
    (tmp_path / "classes.txt").write_text("ant\nbee\nowl\n")
    table.write_text("file,label\nin/0.png,2\nin/1.png,0\n")
    assert (datasets.load(table).class_names, datasets.load(table).train.y.tolist()) == (("ant", "bee", "owl"), [2, 0])
    for mark in ",;\t":
        table.write_text(f"file{mark}label\nin/0.png{mark}bee\n")
        assert datasets.load(table).train.y.tolist() == [1]
    # Columns without a name, or with the same one, count in their places.
    table.write_text("label,,,file,label\nbee,1,2,in/0.png,ant\n\nowl,,,in/1.png\n")
    assert datasets.load(table).train.y.tolist() == [1, 2]
    (tmp_path / "classes.txt").unlink()
    labels = ["9" * 5000, "10"]  # The first one is no number that Python takes.
    table.write_text("file,label\n" + "".join(f"in/{number}.png,{label}\n" for number, label in enumerate(labels)))
    assert datasets.load(table).class_names == ("10", labels[0])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "my.csv: it must have the columns path and label. Received columns=[]. Hint: the first line names the"),
        ("a,label\n1,2\n", "my.csv: it must have the columns path and label. Received columns=['a', 'label']."),
        ("path,label\n", "my.csv: it must name pictures to train on. Received rows=0."),
        ("path,label\na.png\n", "my.csv, row 2: every row must have a path and a label, and its split must be train"),
        ("path,label,split\na.png,1,dev\n", "Received row=['a.png', '1', 'dev']."),
        ("path,label,split\na.png,b,train\na.png,c,test\n", "must be trained. Received label=c, classes=['b']."),
    ],
)
def test_tables_that_do_not_do(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "my.csv").write_text(text)
    with pytest.raises(DataError, match=re.escape(rule)):
        datasets.load(tmp_path / "my.csv")


def test_table_that_does_not_fit(tmp_path: Path) -> None:
    table = tmp_path / "my.csv"
    table.write_text("path,label\na.png,b\n")
    with pytest.raises(FileError, match=re.escape(f"{tmp_path / 'a.png'}: the picture must be readable and whole.")):
        datasets.load(table)
    (tmp_path / "classes.txt").write_text("c\n")
    rule = "label must stand in classes.txt, or be a class's number there, from 0 on. Received label=b, names=['c']."
    with pytest.raises(DataError, match=re.escape(rule)):
        datasets.load(table)
    table.write_bytes(b"path,label\n\xff\xfe,b\n")
    with pytest.raises(FileError, match=r"my\.csv: the file must be a readable CSV file\. Received reason="):
        datasets.load(table)


@pytest.mark.parametrize(("option", "value"), [("workers", 2), ("skip_unreadable", True)])
def test_options_of_pictures_alone(option: str, value: Any) -> None:
    rule = f"{option}: only pictures in a folder are decoded. Received data=digits."
    with pytest.raises(OptionError, match=re.escape(rule)):
        datasets.load("digits", **{option: value})
