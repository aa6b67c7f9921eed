"""Caches that are damaged, full, or cannot be written cost time, and no results: each seen by a process of its own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blobnet.device.discovery import _SYSTEM_VENDORS, _intel_runtime, choose, devices
from blobnet.errors import BlobnetWarning
from blobnet.support.user_cache import has_room, is_usable, make_folder, read_entry, write_entry

#: A little of what is cached: programs, schedules of the compiler, what pyopencl keeps.
PROGRAM = """
import numpy as np
import blobnet as bn
from blobnet import layers
some = [layers.Input(2, 5, 5), layers.Conv2D(3, 3), layers.LayerNorm(), layers.Flatten(), layers.Dense(2)]
model = bn.Sequential(some, seed=1)
print(model.predict(np.linspace(-1, 1, 200, dtype=np.float32).reshape(4, 2, 5, 5)).tobytes().hex())
"""


def run(cache: Path, program: str = PROGRAM, *arguments: str) -> tuple[str, str]:
    """What a process prints whose caches lie in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "POCL_CACHE_DIR"}
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**environment, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache that has been filled, and what was computed."""
    cache = tmp_path_factory.mktemp("cache")
    printed, said = run(cache)
    assert said == ""
    return cache, printed


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk that has no room."""
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(tmp_path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user mounts nothing")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_others_may_not_enter_the_cache(warm: tuple[Path, str]) -> None:
    folder = warm[0] / "blobnet"
    found = [folder, *folder.rglob("*")]
    assert len(found) > 4
    modes = {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()}
    assert modes == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) & 0o022 for path in found} == {0}


def test_flipped_bits_in_programs_are_found_and_mended(warm: tuple[Path, str]) -> None:
    cache, expected = warm
    programs = sorted((cache / "blobnet" / "programs").glob("*/*.program"))
    if not programs:
        assert list((cache / "blobnet" / "programs").glob("*/*.known")), "this driver keeps programs by itself"
        return
    for number, path in enumerate(programs):
        data = bytearray(path.read_bytes())
        data[len(data) * number // len(programs)] ^= 1 << number % 8
        path.write_bytes(data)
    printed, said = run(cache)
    assert printed == expected
    for path in programs:
        rule = "an entry of the cache must be as it was written, and is made anew. Received bytes="
        assert f"{path}: {rule}" in said
    assert run(cache) == (expected, "")


#: Keeps what was found of the device, as commands do that measure it.
MEASURED = """
from blobnet.device.discovery import choose
from blobnet.device.tuning import Tunings
Tunings(choose().identity).record_speeds(flops=1e12, bandwidth=1e11)
"""
#: What a disk, a copy or a stranger makes of a file.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "flipped": lambda data: data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 4]) + data[len(data) // 3 + 1 :],
    "no text": lambda data: b"\xff\xfe\x80" * 99,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damaged_file_of_a_cache_changes_what_is_computed(
    tmp_path: Path, warm: tuple[Path, str], damage: str
) -> None:
    """Programs, schedules and tunings at once; the next process finds all as if nothing had been."""
    shutil.copytree(warm[0], tmp_path, dirs_exist_ok=True)
    run(tmp_path, MEASURED)
    found = [path for path in (tmp_path / "blobnet").rglob("*") if path.is_file() and path.suffix != ".lock"]
    kinds = {path.relative_to(tmp_path / "blobnet").parts[0] for path in found}
    assert kinds == {"programs", "schedules", "tunings"}
    for path in found:
        path.write_bytes(DAMAGES[damage](path.read_bytes()) if path.stat().st_size else b"no seal")
    printed, said = run(tmp_path, PROGRAM + MEASURED)
    assert (printed, "Traceback" in said) == (warm[1], False)
    assert run(tmp_path) == (warm[1], "")


@pytest.mark.parametrize("damage", ["no folder", "a damaged data base"])
def test_what_pyopencl_keeps_is_not_needed(warm: tuple[Path, str], damage: str) -> None:
    """pytools opens an SQLite file whenever pyopencl first makes a kernel; not for us."""
    cache, expected = warm
    folder = cache / "pytools"
    assert not folder.exists()
    if damage == "no folder":
        folder.write_text("")
    else:
        folder.mkdir()
        version = ".".join(map(str, sys.version_info))
        (folder / f"pdict-v5-pyopencl-invoker-cache-v42-nano-{version}.sqlite").write_bytes(b"no data base" * 99)
    try:
        assert run(cache) == (expected, "")
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)


def test_a_cache_that_cannot_be_made(tmp_path: Path, warm: tuple[Path, str]) -> None:
    (tmp_path / "file").write_text("")
    printed, said = run(tmp_path / "file")
    assert printed == warm[1]
    assert "Traceback" not in said
    assert "the tuning cache must be readable. Received cause=" in said


def test_a_cache_on_a_full_disk(full: Path, warm: tuple[Path, str]) -> None:
    assert run(full) == (warm[1], "")


@pytest.mark.parametrize("is_warm", [False, True], ids=["empty", "warm"])
def test_a_cache_that_is_read_only(tmp_path: Path, warm: tuple[Path, str], is_warm: bool) -> None:
    """Of a mounted disk, since no mode keeps the system's administrator out."""
    if is_warm:
        subprocess.run(["cp", "-a", str(warm[0] / "blobnet"), str(tmp_path)], check=True)
    try:
        subprocess.run(["mount", "--bind", str(tmp_path), str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user mounts nothing")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(tmp_path)], check=True)
        assert run(tmp_path) == (warm[1], "")
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.long
def test_processes_that_fill_a_cache_at_once(tmp_path: Path, warm: tuple[Path, str]) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(run, [tmp_path] * 3)) == {(warm[1], "")}
    names = {path.name for path in (tmp_path / "blobnet" / "programs").glob("*/*")}
    assert names == {path.name for path in (warm[0] / "blobnet" / "programs").glob("*/*")}


def test_programs_of_another_driver_are_built_anew(warm: tuple[Path, str]) -> None:
    """Its entries have another folder; and a binary that the driver refuses is replaced, whoever sealed it."""
    cache, expected = warm
    assert choose().identity["driver"]
    for path in (cache / "blobnet" / "programs").glob("*/*.program"):
        write_entry(path, b"\x7fELF of another version")
    assert run(cache) == (expected, "")
    for path in (cache / "blobnet" / "programs").glob("*/*.program"):
        assert read_entry(path) != b"\x7fELF of another version"


def test_an_entry_counts_only_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "one" / "entry"
    make_folder(path.parent)
    assert read_entry(path) is None
    for content in (b"", b"content", bytes(range(256)) * 100):
        write_entry(path, content)
        assert read_entry(path) == content
    message = f"{path}: an entry of the cache must be as it was written, and is made anew. Received bytes="
    whole = path.read_bytes()
    for damaged in (b"", whole[:31], whole[:-1], whole + b"\0", whole[1:]):
        path.write_bytes(damaged)
        with pytest.warns(BlobnetWarning) as caught:
            assert read_entry(path) is None
        assert str(caught[0].message) == f"{message}{len(damaged)}."
    for other in (path.with_name("other"), tmp_path / "two" / "entry"):
        make_folder(other.parent)
        other.write_bytes(whole)
        with pytest.warns(BlobnetWarning, match="must be as it was written"):
            assert read_entry(other) is None


def test_an_entry_of_another_user_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could write to a folder before it was closed can have written a hash, too."""
    path = tmp_path / "entry"
    write_entry(path, b"content")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.warns(BlobnetWarning, match="an entry of the cache must be this user's own, and is made anew"):
        assert read_entry(path) is None


def test_a_cache_within_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "blobnet" / "programs" / "device"
    assert is_usable(folder)
    if os.geteuid():
        pytest.skip("this user gives no folders away")
    for other in (folder.parent, folder.parent.parent):
        os.chown(other, 4711, -1)
        assert not is_usable(folder)
        os.chown(other, 0, -1)
    os.chown(tmp_path, 4711, -1)  # A home on a disk that is another's.
    assert is_usable(folder)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_cache_that_others_could_enter_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "blobnet"
    folder.mkdir()
    folder.chmod(mode)
    above = stat.S_IMODE(tmp_path.stat().st_mode)
    make_folder(folder / "tunings")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(tmp_path.stat().st_mode) == above, "it is not ours"


def test_folders_that_others_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a" / "b"
    assert is_usable(folder)
    folder.chmod(0o777)
    assert is_usable(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert not is_usable(folder), "it is somebody else's"
    (tmp_path / "file").write_text("")
    assert not has_room(tmp_path / "file" / "folder")
    assert has_room(tmp_path / "not" / "there")


def test_devices_without_a_cache_share_what_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with it the processes that build, of which there would be more with every device."""
    from blobnet.device.device import Device

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    first, second = Device(), Device()
    assert first.programs.compiler.folder == second.programs.compiler.folder
    assert tmp_path not in first.programs.compiler.folder.parents


#: Looks for the system's drivers in another folder.
DRIVERS = """
import sys
from pathlib import Path
from blobnet.device import discovery
discovery._SYSTEM_VENDORS = Path(sys.argv[1])
print(*sorted(f"{found.platform}: {found.name}" for found in discovery.devices()), sep="\\n", file=sys.stderr)
"""


def test_damaged_files_that_name_drivers_hide_no_driver(tmp_path: Path, warm: tuple[Path, str]) -> None:
    """Neither those of the system, nor those that versions before this one have left in the cache."""
    if _intel_runtime() is None or "OCL_ICD_VENDORS" in os.environ:
        pytest.skip("the loader reads the system's files by itself")
    system, kept = tmp_path / "system", tmp_path / "cache" / "blobnet" / "vendors"
    shutil.copytree(_SYSTEM_VENDORS, system)
    make_folder(kept)
    for number, content in enumerate([b"", b"\n\n", b"/usr/lib/x86_64", b"/etc/passwd\n", b"\xff\0\xfe" * 99]):
        for folder in (system, kept):
            (folder / f"{number}.icd").write_bytes(content)
    (kept / "intel-cpu-pypi.icd").write_bytes(b"/opt/venv/lib/libinte")
    os.mkfifo(system / "pipe.icd")
    (system / "endless.icd").symlink_to("/dev/zero")
    (system / "nowhere.icd").symlink_to("nowhere")
    printed, said = run(tmp_path / "cache", DRIVERS + PROGRAM, str(system))
    assert printed == warm[1]
    assert said.splitlines() == sorted(f"{found.platform}: {found.name}" for found in devices())
