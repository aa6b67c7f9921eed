"""What may befall a training, each seen by processes of its own: signals, kills, two that write one file, forks."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import blobnet as bn
from blobnet.files import atomic
from tests.cli.conftest import NET

#: Kills of the test of kills; a hundred on demand.
KILLS = int(os.environ.get("BLOBNET_TEST_KILLS", "3"))
ENDLESS = 5000
#: Epochs that take some seconds.
ENOUGH = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where trainings run: with a network of their own."""
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    return tmp_path


def train(folder: Path, *more: object, output: str = "a.h5", epochs: int = ENDLESS) -> subprocess.Popen[str]:
    """A training that has begun."""
    command = [sys.executable, "-m", "blobnet", "train", "net.py:net", "--dataset", "digits", "--batch-size", 32]
    command += ["--schedule", "constant", "--epochs", epochs, "--output", output, *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(list(map(str, command)), cwd=folder, stdout=pipe, stderr=pipe, text=True)


def await_file(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists(), process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The status, and the last line of what was said."""
    err = process.communicate(timeout=120)[1]
    assert "Traceback" not in err
    return process.returncode, err.splitlines()[-1] if err else ""


@pytest.mark.long
def test_a_second_training_does_not_write_the_same_file(folder: Path) -> None:
    first = train(folder)
    await_file(folder / "a.h5", first)
    (folder / "link.h5").symlink_to("a.h5")
    for arguments in ({"output": "a.h5"}, {"output": "link.h5"}):
        status, said = finish(train(folder, "--overwrite", **arguments))
        assert (status, said) == (
            1,
            f"error: {arguments['output']}: another training is writing this file. Hint: wait for the end of process "
            f"{first.pid}, or write another file.",
        )
    assert first.poll() is None
    first.kill()
    first.communicate()
    assert (folder / ".a.h5.lock").exists(), "a kill leaves the file of the lock, and no lock"
    bn.load(folder / "a.h5")
    assert finish(train(folder, "--overwrite", epochs=1))[0] == 0
    assert sorted(path.name for path in folder.glob(".*")) == []


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    """Somebody may have put it into the folder, so that a training writes over another file of its user's."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".a.h5.lock").symlink_to("precious")
    with atomic.held(tmp_path / "a.h5"):
        assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A folder on a disk with little room."""
    disk = folder / "disk"
    disk.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user mounts nothing")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.long
@pytest.mark.parametrize("full", ["a.h5", "a.csv"])
def test_a_disk_that_fills_while_it_trains(folder: Path, small_disk: Path, full: str) -> None:
    """The file before stays, is named, and is gone on from to the same bits; so is the log."""
    output, log = (f"disk/{name}" if name == full else name for name in ("a.h5", "a.csv"))
    assert finish(train(folder, "--csv", "whole.csv", output="whole.h5", epochs=ENOUGH))[0] == 0
    process = train(folder, "--csv", log, output=output, epochs=ENOUGH)
    await_file(small_disk / full, process)
    with contextlib.suppress(OSError), (small_disk / "other").open("wb", buffering=0) as other:
        while True:
            other.write(bytes(4096))
    status, said = finish(process)
    assert status == 1, said
    assert "No space left on device" in said
    state = bn.load(folder / output).training_state
    assert state is not None
    assert 1 <= state.epoch < ENOUGH
    assert said.endswith(f"The last checkpoint is {output} (epoch {state.epoch}).")
    assert sorted(path.name for path in small_disk.iterdir()) == [full, "other"]
    (small_disk / "other").unlink()
    assert finish(train(folder, "--csv", log, "--resume", output=output, epochs=ENOUGH))[0] == 0
    assert (folder / output).read_bytes() == (folder / "whole.h5").read_bytes()
    assert (folder / log).read_bytes() == (folder / "whole.csv").read_bytes()


@pytest.fixture(scope="module")
def of_four_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a training has come to its end."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "net.py").write_text(NET, encoding="utf-8")
    assert finish(train(folder, "--csv", "a.csv", epochs=4))[0] == 0
    return folder


@pytest.fixture(scope="module")
def failing_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is loaded before the C library, and fails where that would not (failing_disk.c)."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("calls of the system are only replaced by a C compiler's code on Linux")
    library = tmp_path_factory.mktemp("library") / "failing_disk.so"
    source = Path(__file__).with_name("failing_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "number", "file", "error"),
    [
        ("write", 3, "*/.a.h5.*.tmp", errno.EIO),
        ("fsync", 3, "*/.a.h5.*.tmp", errno.EIO),
        ("close", 5, "*/.a.h5.*.tmp", errno.EDQUOT),  # Twice it is tried whether there can be a file.
        ("rename", 3, "*/a.h5", errno.EIO),
        ("fsync", 6, "{folder}", errno.EIO),  # The log's is made first.
        ("write", 3, "*/.a.csv.*.tmp", errno.EIO),
    ],
    ids=["write", "flush", "close", "rename", "flush the folder", "write the log"],
)
def test_a_disk_that_fails_while_a_file_is_saved(
    folder: Path,
    of_four_epochs: Path,
    failing_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    file: str,
    error: int,
) -> None:
    """The file before is safe, or the new one there; it is gone on from to the same bits, and so is the log."""
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(failing_disk))
        fault = {"CALL": call, "NUMBER": str(number), "FILE": file.format(folder=folder), "ERROR": str(error)}
        for name, value in fault.items():
            patch.setenv(f"BLOBNET_FAULT_{name}", value)
        status, said = finish(train(folder, "--csv", "a.csv", epochs=4))
    assert status == 1, said
    assert os.strerror(error) in said
    state = bn.load(folder / "a.h5").training_state
    assert state is not None
    assert state.epoch == (3 if file == "{folder}" else 2)
    assert said.endswith("The last checkpoint is a.h5 (epoch 2).")
    assert sorted(path.name for path in folder.glob(".*")) == []
    assert finish(train(folder, "--csv", "a.csv", "--resume", epochs=4))[0] == 0
    for name in ("a.h5", "a.csv"):
        assert (folder / name).read_bytes() == (of_four_epochs / name).read_bytes()


def test_sigterm_saves_and_ends_with_its_status(folder: Path) -> None:
    process = train(folder)
    await_file(folder / "a.h5", process)
    process.send_signal(signal.SIGTERM)
    status, said = finish(process)
    assert status == 143
    assert said.startswith("interrupted; the last checkpoint is a.h5 (")
    state = bn.load(folder / "a.h5").training_state
    assert state is not None
    assert f"(in epoch {state.epoch + 1}, after step {state.step})" in said or f"(epoch {state.epoch})" in said
    assert sorted(path.name for path in folder.glob(".*")) == []


FIRST_OF_A_CONTAINER = """
import os, signal, sys
from blobnet.support import interrupt
with interrupt.at_once():
    {body}
"""


@pytest.mark.parametrize(
    "body", ["os.kill(os.getpid(), signal.SIGTERM)", "with interrupt.as_exception(): os.kill(os.getpid(), 15)"]
)
def test_sigterm_is_heard_by_the_first_process_of_a_container(body: str) -> None:
    """Which has no default: what it has no handler for does not reach it."""
    script = FIRST_OF_A_CONTAINER.format(body=body)
    command = ["unshare", "--fork", "--pid", "--kill-child", sys.executable, "-c", script]
    if subprocess.run(["unshare", "--fork", "--pid", "true"], capture_output=True, check=False).returncode:
        command = command[4:]  # Where this user may not make one, there is a default, with another status.
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "as_exception" in body:
        assert "Terminated" in result.stderr
    else:
        assert (result.returncode, result.stderr) == (143, "interrupted\n")


def test_what_a_killed_process_of_the_same_number_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f".a.h5.{os.getpid()}-01234567.tmp"
    left.touch()
    atomic._UNDER_WAY.add(under_way := f".a.h5.{os.getpid()}-76543210.tmp")
    (tmp_path / under_way).touch()
    try:
        atomic.write(tmp_path / "a.h5", b"image")
    finally:
        atomic._UNDER_WAY.discard(under_way)
    assert sorted(path.name for path in tmp_path.iterdir()) == [under_way, "a.h5"]


@pytest.mark.long
def test_kills_at_any_moment_lose_only_steps(folder: Path) -> None:
    epochs, random_ = 5 + KILLS, random.Random(1)
    assert finish(train(folder, "--csv", "whole.csv", output="whole.h5", epochs=epochs))[0] == 0
    arguments, steps = ["--csv", "log.csv", "--checkpoint-steps", 5], 0
    for kill in range(KILLS):
        process = train(folder, *arguments, *(["--resume"] if kill else []), epochs=epochs)
        if kill == 0:
            await_file(folder / "a.h5", process)
        else:
            mark = (folder / "a.h5").stat().st_mtime_ns
            while (folder / "a.h5").stat().st_mtime_ns == mark and process.poll() is None:
                time.sleep(0.001)
        time.sleep(random_.random() * 0.05)
        process.kill()
        process.communicate()
        state = bn.load(folder / "a.h5").training_state
        assert state is not None
        assert state.step >= steps
        assert state.step % 5 == 0 or not state.place
        steps = state.step
        rows = (folder / "log.csv").read_text().splitlines()
        assert len(rows) in (1 + state.epoch, state.epoch), (
            "the log is whole, and of the file's epoch or the one before"
        )
    assert finish(train(folder, *arguments, "--resume", epochs=epochs))[0] == 0
    assert (folder / "a.h5").read_bytes() == (folder / "whole.h5").read_bytes()
    assert (folder / "log.csv").read_bytes() == (folder / "whole.csv").read_bytes()
    assert sorted(path.name for path in folder.glob(".*")) == []
