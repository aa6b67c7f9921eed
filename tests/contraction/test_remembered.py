"""Schedules that are kept on disk from process to process."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blobnet.contraction import remembered as kept
from blobnet.contraction.schedule import Schedule
from blobnet.contraction.table import Table
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
    kept._known.cache_clear()
    kept._lines.cache_clear()
    kept._path.cache_clear()


def product(size: int) -> Table:
    return table_of(f"R[i : {size}] = +(A[i, k] * B[k])", A=(size, 5), B=(5,))


def never() -> Schedule:
    raise AssertionError("it is known")


def test_what_was_found_is_known_to_the_next_process(folder: Path) -> None:
    assert kept.remembered(product(8), CPU, lambda: FOUND) == FOUND
    assert kept.remembered(product(8), CPU, never) == FOUND
    forget()
    assert kept.remembered(product(8), CPU, never) == FOUND
    for table, device in ((product(9), CPU), (product(8), replace(CPU, lanes=4))):
        assert kept.remembered(table, device, Schedule) == Schedule()
    (path,) = folder.iterdir()
    assert len(path.read_text().splitlines()) == 3


def test_lines_that_were_not_written_to_their_end_do_not_count(folder: Path) -> None:
    kept.remembered(product(8), CPU, lambda: FOUND)
    (path,) = folder.iterdir()
    whole = path.read_text()
    other = whole.replace("1x1x4", "1x1x2")
    for text in (whole[:-3], other, re.sub(" .{64} ", f" {zlib.crc32(b''):08x} ", other), "\xff\n", ""):
        path.write_bytes(text.encode("latin-1"))
        forget()
        with pytest.raises(AssertionError, match="it is known"):
            kept.remembered(product(8), CPU, never)
    # Nor do they hide what was: processes write side by side.
    for text in (whole, whole + other, other + whole, whole + whole[:-3]):
        path.write_text(text)
        forget()
        assert kept.remembered(product(8), CPU, never) == FOUND


def test_those_of_another_compiler_are_deleted(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "123456789abc.txt").write_text("old\n")
    kept.remembered(product(8), CPU, lambda: FOUND)
    (path,) = folder.iterdir()
    assert path.name != "123456789abc.txt"


def test_those_of_another_user_do_not_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.remembered(product(8), CPU, lambda: FOUND)
    forget()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert kept.remembered(product(8), CPU, Schedule) == Schedule()


def test_without_a_folder_every_process_searches(tmp_path: Path) -> None:
    (tmp_path / "blobnet").write_text("no folder")
    assert kept.remembered(product(8), CPU, lambda: FOUND) == FOUND
    forget()
    assert kept.remembered(product(8), CPU, Schedule) == Schedule()
