"""Schedules that were searched for before, in the user's cache: a search takes tens of milliseconds.

Each is an entry of the cache (blobnet/support/user_cache.py), named by a digest of the table and the device. Its folder
is named for the compiler's sources; the folders of other compilers are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from blobnet.contraction.schedule import Schedule
from blobnet.contraction.table import Table
from blobnet.errors import FileError
from blobnet.hardware.device_model import DeviceModel
from blobnet.support.user_cache import cache_folder, is_usable, read_entry, write_entry

#: The schedules that this process has asked for, by keys.
_KNOWN: dict[str, str] = {}


def cached_schedule(table: Table, device: DeviceModel, search: Callable[[], Schedule]) -> Schedule:
    """Return the schedule that ``search`` gave before for a table and a device, else what it gives now.

    Where nothing can be kept, every process searches.
    """
    key = key_of(table, device)
    if key not in _KNOWN:
        folder = _folder()
        kept = read_entry(folder / key) if folder else None
        _KNOWN[key] = str(search()) if kept is None else kept.decode(errors="replace")
        if folder and kept is None:
            with contextlib.suppress(OSError):
                write_entry(folder / key, _KNOWN[key].encode())
    return Schedule.parse(_KNOWN[key])


def key_of(table: Table, device: DeviceModel) -> str:
    """Return what tells a table and a device from others."""
    return hashlib.sha256(f"{table!r} {device!r}".encode()).hexdigest()[:32]


@cache
def _folder() -> Path | None:
    """The folder of this compiler; None where nothing can be kept."""
    with contextlib.suppress(OSError, FileError):
        sources = sorted(Path(__file__).parent.glob("*.py"))
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
        folder = cache_folder() / "schedules" / digest
        if is_usable(folder):
            for other in folder.parent.iterdir():
                if other.is_file():  # As earlier versions kept them.
                    other.unlink()
                elif other != folder:
                    shutil.rmtree(other, ignore_errors=True)
            return folder
    return None
