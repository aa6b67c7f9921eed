"""Schedules that are kept on disk from process to process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blobnet.contraction import schedule_cache
from blobnet.contraction.schedule import Schedule
from blobnet.contraction.schedule_cache import cached_schedule
from blobnet.contraction.table import Table
from blobnet.errors import BlobnetWarning
from tests.contraction.test_schedule import CPU, table_of

FOUND = Schedule.parse("tile i 1x1x4; order i k")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tmp_path / "blobnet" / "schedules"
    forget()


def forget() -> None:
    """As a new process."""
    schedule_cache._KNOWN.clear()
    schedule_cache._folder.cache_clear()


def product(size: int) -> Table:
    return table_of(f"R[i : {size}] = +(A[i, k] * B[k])", A=(size, 5), B=(5,))


def never() -> Schedule:
    raise AssertionError("it is known")


def test_what_was_found_is_known_to_the_next_process(folder: Path) -> None:
    assert cached_schedule(product(8), CPU, lambda: FOUND) == FOUND
    assert cached_schedule(product(8), CPU, never) == FOUND
    forget()
    assert cached_schedule(product(8), CPU, never) == FOUND
    for table, device in ((product(9), CPU), (product(8), replace(CPU, lanes=4))):
        assert cached_schedule(table, device, Schedule) == Schedule()
    forget()
    assert cached_schedule(product(9), CPU, never) == Schedule()
    (own,) = folder.iterdir()
    assert len(list(own.iterdir())) == 3


def test_what_was_not_written_to_its_end_does_not_count(folder: Path) -> None:
    cached_schedule(product(8), CPU, lambda: FOUND)
    (path,) = folder.glob("*/*")
    whole = path.read_bytes()
    for data in (whole[:-3], whole.replace(b"1x1x4", b"1x1x2"), b"\xff\n", b""):
        path.write_bytes(data)
        forget()
        with pytest.warns(BlobnetWarning, match="must be as it was written, and is made anew"):
            assert cached_schedule(product(8), CPU, lambda: FOUND) == FOUND
        assert path.read_bytes() == whole


def test_those_of_another_compiler_are_deleted(folder: Path) -> None:
    (folder / "123456789abc").mkdir(parents=True)
    (folder / "123456789abc" / "a").write_text("old\n")
    (folder / "0123456789ab.txt").write_text("older\n")
    cached_schedule(product(8), CPU, lambda: FOUND)
    (path,) = folder.iterdir()
    assert path.name != "123456789abc"


def test_those_of_another_user_do_not_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_schedule(product(8), CPU, lambda: FOUND)
    forget()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert cached_schedule(product(8), CPU, Schedule) == Schedule()


def test_without_a_folder_every_process_searches(tmp_path: Path) -> None:
    (tmp_path / "blobnet").write_text("no folder")
    assert cached_schedule(product(8), CPU, lambda: FOUND) == FOUND
    forget()
    assert cached_schedule(product(8), CPU, Schedule) == Schedule()
