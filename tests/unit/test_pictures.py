"""Pictures as a source: the same pixels with any number of processes, and what happens when those fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import datasets
from blobnet.datasets.picture_source import PictureSource
from blobnet.datasets.picture_workers import PictureWorkers
from blobnet.errors import DataError, FileError, OptionError

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


def reference(path: Path, units: int, size: tuple[int, int]) -> np.ndarray:
    """Straight through Pillow: decode whole, lay on white, gray or RGB, resize."""
    with image.open(path) as picture:
        picture.load()
    if picture.mode.startswith("I"):
        picture = image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
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
    out = np.full((len(rows), *source.shape[1:]), 77, np.uint8)
    source.read(rows, out)
    return out


def has_ended(process: int) -> bool:
    """Whether there is no such process, not even as a zombie; waits a little."""
    for _ in range(50):
        if not Path(f"/proc/{process}").exists():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(("units", "size"), [(3, (17, 23)), (1, (9, 31))])
def test_pixels_of_every_mode(paths: list[Path], two: PictureWorkers, units: int, size: tuple[int, int]) -> None:
    inline, apart = (PictureSource(paths, size, units, workers) for workers in (0, two))
    assert apart.shape == (24, units, *size)
    assert (apart.dtype, apart.is_parallel, apart.is_quick) == (np.uint8, True, False)
    rows = np.random.default_rng(1).permutation(24)
    found = read(apart, rows)
    np.testing.assert_array_equal(found, read(inline, rows))
    for row, planes in zip(rows, found, strict=True):
        np.testing.assert_array_equal(planes, datasets.read_image(paths[row], (units, *size)), str(paths[row]))
        if units == 3 or paths[row].stem[3:] in ("1", "L", "LA", "I;"):  # Else gray comes after resizing.
            np.testing.assert_array_equal(planes, reference(paths[row], units, size), str(paths[row]))
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


def test_killed_workers_are_replaced(paths: list[Path]) -> None:
    source = PictureSource(paths, (8, 8), 3, 2)
    expected = read(source, range(24))
    killed = source.workers.process_ids
    assert 1 <= len(killed) <= 2
    for process in killed:
        os.kill(process, signal.SIGKILL)
    rule = r"\d\d .*: the process that decoded the picture must not end. Received worker=ended by SIGKILL. Hint: it may"
    for _ in killed:
        with pytest.raises(DataError, match=rule):
            read(source, [5])
    np.testing.assert_array_equal(read(source, range(24)), expected)
    assert all(has_ended(process) for process in killed)
    assert not set(killed) & set(source.workers.process_ids)


def test_workers_end_with_their_source(paths: list[Path]) -> None:
    source = PictureSource(paths, (8, 8), 3, 2)
    read(source, range(24))
    processes = source.workers.process_ids
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
            print(*source.workers.process_ids, flush=True)
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
        "print(*source.workers.process_ids, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
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
