"""What differs from system to system; the same under ``-p tests.other_systems``, where Windows' way is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blobnet.errors import FileError
from blobnet.files import atomic
from blobnet.support import system
from blobnet.support.user_cache import locked

ROOT = Path(__file__).parents[2]
#: A process that holds a lock until it is told to end, as the tests' own process takes it.
HOLDER = """
import importlib, sys
if sys.argv[2] == "hidden":
    importlib.import_module("tests.other_systems")
from pathlib import Path
from blobnet.support import system
with system.open_lock(Path(sys.argv[1])) as file:
    system.lock(file, waits=True)
    file.write("held")
    file.flush()
    print("locked", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("hidden", ["hidden", ""])
def test_a_lock_keeps_other_processes_out_until_its_holder_ends(tmp_path: Path, hidden: str) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, path, hidden]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert path.read_text() == "held"
        again = [sys.executable, "-c", HOLDER.replace("waits=True", "waits=False"), path, hidden]
        other = subprocess.run(again, cwd=ROOT, input="", capture_output=True, text=True, check=False)
        assert "BlockingIOError" in other.stderr
        holder.kill()
    with system.open_lock(path) as file:
        system.lock(file, waits=False)


def test_a_file_is_held_by_one_alone_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    with atomic.held(path), pytest.raises(FileError, match="another training"), atomic.held(path):
        pass
    for image in (b"one", b"another"):
        atomic.write(path, image)
        assert path.read_bytes() == image
    assert [item.name for item in tmp_path.iterdir()] == ["model.h5"]
    with locked(tmp_path):
        pass


def test_reads_at_a_place(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    path = tmp_path / "data"
    path.write_bytes(values.tobytes())
    descriptor = system.open_to_read(path)
    with os.fdopen(descriptor, "rb"):
        for first, count in ((0, 10), (990, 10), (995, 100), (1000, 5)):
            target = bytearray(count)
            found = system.read_at(descriptor, memoryview(target), first)
            assert found == len(values[first : first + count])
            assert bytes(target[:found]) == values[first : first + count].tobytes()


def test_untouched_memory_is_zero() -> None:
    memory = system.untouched_memory(1 << 30)
    assert memory[0] == memory[(1 << 30) - 1] == 0
