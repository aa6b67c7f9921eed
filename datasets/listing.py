"""The listing of a folder of pictures: one reader decides what is a picture, and says what it leaves out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from blobnet.datasets.array_files import suffix_of
from blobnet.datasets.pictures import reads
from blobnet.errors import FileError, first_few, warn
from blobnet.support.picture_kinds import KINDS, PLUGINS

#: The files that systems leave in folders, besides hidden ones.
_DEBRIS = ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")
#: Kinds of files left out that a warning names.
_MAX_KINDS = 8


class Listing:
    """Lists folders of a data set, and counts what is left out of them. Links are followed."""

    def __init__(self) -> None:
        self._left_out: Counter[str] = Counter()

    def pictures(self, folder: Path, formats: Sequence[str] | None = None, others: Sequence[str] = ()) -> list[Path]:
        """The pictures in a folder and in those below it, sorted.

        Args:
            folder: where to look.
            formats: the formats of Pillow that may be there; None takes all.
            others: suffixes that are taken besides.

        Raises:
            FileError: a folder cannot be read.
        """
        files = _files(folder, (os.path.realpath(folder),))
        return sorted(path for path in files if self._takes(path, formats, others))

    def folders(self, folder: Path, kept: Sequence[str] = ()) -> list[Path]:
        """The folders in a folder, sorted by name; files beside them are left out, but for those of ``kept`` names.

        Raises:
            FileError: the folder cannot be read.
        """
        entries = _entries(folder)
        for entry in entries:
            if not entry.is_dir() and entry.name not in kept:
                kind = _kind(Path(entry), None)
                self._left_out[f"{kind} beside the folders" if _is_picture(entry.name) else kind] += 1
        return sorted(Path(entry) for entry in entries if entry.is_dir())

    def leave_out(self, what: str, count: int = 1) -> None:
        """Counts something that is left out."""
        if count:
            self._left_out[what] += count

    def __str__(self) -> str:
        """``10 .heic (pip install pillow-heif), 3 .txt``; empty if nothing is left out."""
        kinds = (f"{count} {kind}" for kind, count in self._left_out.most_common())
        return first_few(kinds, _MAX_KINDS)

    @property
    def received(self) -> dict[str, str]:
        """The files that were left out, for errors."""
        return {"left_out": str(self)} if self._left_out else {}

    def say(self, subject: str) -> None:
        """Warns of what is left out, if anything is."""
        if self._left_out:
            warn(subject, f"left out: {self}")

    def _takes(self, path: Path, formats: Sequence[str] | None, others: Sequence[str]) -> bool:
        suffix = suffix_of(path)
        kind = KINDS.get(suffix)
        if suffix in others or (kind is not None and (formats is None or kind in formats) and reads(kind)):
            return True
        self._left_out[_kind(path, formats)] += 1
        return False


def has_pictures(folder: Path) -> bool:
    """Return True if there are pictures in a folder itself."""
    return any(_is_picture(entry.name) and not entry.is_dir() for entry in _entries(folder))


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name, without hidden ones."""
    return sorted(Path(entry) for entry in _entries(folder) if entry.is_dir())


def _is_picture(name: str) -> bool:
    return suffix_of(Path(name)) in KINDS


def _kind(path: Path, formats: Sequence[str] | None) -> str:
    """The kind of a file that is left out, and what would read it."""
    suffix = suffix_of(path)
    kind = KINDS.get(suffix)
    if kind is None or (formats is not None and kind not in formats) or reads(kind):
        return suffix or "without a suffix"
    return f"{suffix} (pip install {PLUGINS[kind][1]})" if kind in PLUGINS else f"{suffix} (not read by this Pillow)"


def _files(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    """All files in a folder and below it; a link to a folder ``above`` is not followed."""
    for entry in _entries(folder):
        if not entry.is_dir():
            yield Path(entry)
        elif (real := os.path.realpath(entry)) not in above:
            yield from _files(Path(entry), (*above, real))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, without hidden ones and those that systems leave there."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") and entry.name not in _DEBRIS]
    except OSError as error:
        raise FileError(str(folder), "the folder must be readable", reason=error.strerror or error) from error
