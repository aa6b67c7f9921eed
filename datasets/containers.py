"""Data in several files of one kind: how they are named, and which split each is of."""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from blobnet.datasets.dataset import Dataset
from blobnet.datasets.image_folder import Reading, labelled_dataset
from blobnet.datasets.listing import Listing
from blobnet.datasets.picture_labels import Labelled
from blobnet.datasets.split_names import SPLIT_NAMES, split_like
from blobnet.errors import DataError, FileError, OptionError, nearest

#: What names no file here, but how to get one.
_ELSEWHERE = re.compile(r"^(pipe:|[a-z0-9]{2,}:/)", re.IGNORECASE)
_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
#: Files beyond which a pattern is a slip.
_MAX_FILES = 1_000_000


class Table(NamedTuple):
    """Labelled pictures.

    Attributes:
        columns: the names of the columns of labels.
        parts: the pictures, with a text for each of these, by the names of splits.
        classes: the names of classes in the order of their numbers; none leaves that to a file of classes, if there
            is one, or to their names.
    """

    columns: Sequence[str]
    parts: Mapping[str, Sequence[Labelled]]
    classes: Sequence[str] = ()


class Containers(NamedTuple):
    """Files of a data set.

    Attributes:
        subject: what errors call them.
        name: of the data set.
        splits: the split that the name of each file says, if it says one.
    """

    subject: str
    name: str
    splits: Mapping[Path, str | None]

    def read(self, reading: Reading, read: Callable[[Mapping[str, list[Path]], Listing], Table]) -> Dataset:
        """The data set; ``read`` gives the pictures of the files of each split.

        What is of no split is to train on, and so are files that all are of one: by themselves they are data, to
        measure on, say. A ``classes.txt`` beside the first file names the classes.

        Raises:
            DataError: there is nothing to train on.
        """
        is_one = len(set(self.splits.values())) == 1
        parts: dict[str, list[Path]] = {split: [] for split in SPLIT_NAMES}
        for path, split in self.splits.items():
            parts["train" if is_one else split or "train"].append(path)
        listing = Listing()
        found = read({split: own for split, own in parts.items() if own}, listing)
        if not found.parts.get("train"):
            there = ", ".join(split for split, own in found.parts.items() if own) or "nothing"
            raise DataError(self.subject, "there must be samples to train on", found=there)
        listing.say(self.subject)
        return labelled_dataset(self.name, next(iter(self.splits)), found.parts, found.columns, reading, found.classes)


def are_containers(text: str, suffixes: Sequence[str]) -> bool:
    """Return True if a text names files of a kind: by a path, by patterns, or as a folder of nothing else."""
    if text.lower().endswith(tuple(suffixes)):
        return True
    folder = Path(text).expanduser()
    if not folder.is_dir():
        return False
    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    ours = _in(folder, suffixes)
    return bool(ours) and not any(path.is_dir() for path in found if path not in ours)


def containers_of(path: Path, suffixes: Sequence[str]) -> Containers:
    """The files of a kind that a path names, in the order of their names.

    It is that of a file, has ``{000..146}``, ``{train,val}``, ``*``, or ``::`` between names, or is that of a folder.

    Raises:
        OptionError: it names no files here, or so many that it must be a slip.
        FileError: a file is not there.
    """
    text, found = str(path), list[Path]()
    for pattern in text.split("::"):
        if not pattern:
            raise OptionError("data set", "there must be the name of a file between two ::", name=text)
        if _ELSEWHERE.match(pattern):
            rule = "data must lie in files of this machine"
            raise OptionError("data set", rule, name=pattern, hint="fetch them first, or mount what they lie on.")
        paths = [Path(name).expanduser() for name in _expanded(pattern)]
        if len(paths) == 1 and paths[0].is_dir() and not _has(paths[0], suffixes):
            found += _in(paths[0], suffixes)
        elif len(paths) == 1 and not paths[0].exists() and glob.has_magic(str(paths[0])):
            matching = [Path(name) for name in sorted(glob.glob(str(paths[0])))]  # noqa: PTH207 - absolute ones too
            if not matching:
                raise FileError(pattern, "files must match the pattern", found=0)
            found += matching
        else:
            found += paths
    missing = [path for path in found if not path.exists()]
    if missing:
        hint = nearest(missing[0].name, [each.name for each in _in(missing[0].parent, suffixes)])
        raise FileError(str(missing[0]), "every file must be there", missing=len(missing), of=len(found), hint=hint)
    files = {each: split_like(each.stem) for each in found}
    is_folder = path.is_dir() and not _has(path, suffixes)
    name = path.resolve().name if is_folder else found[0].stem if len(files) == 1 else _title(path.stem)
    return Containers(text, name, files)


def _in(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files of a kind in a folder, sorted by name, without hidden ones."""
    there = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in there if _has(path, suffixes) and not path.name.startswith("."))


def _has(path: Path, suffixes: Sequence[str]) -> bool:
    return path.suffix.lower() in suffixes


def _expanded(pattern: str) -> list[str]:
    """The texts that ``{000..010}`` and ``{a,b}`` stand for, as in a shell.

    Raises:
        OptionError: there are too many.
    """
    found = list(itertools.islice(_texts(pattern), _MAX_FILES + 1))
    if len(found) > _MAX_FILES:
        rule = f"a pattern must name no more than {_MAX_FILES} files"
        raise OptionError("data set", rule, name=pattern)
    return found


def _texts(pattern: str) -> Iterator[str]:
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    for choice in _choices(braces[1]):
        yield from _texts(f"{pattern[: braces.start()]}{choice}{pattern[braces.end() :]}")


def _choices(text: str) -> Iterable[str]:
    ends = _RANGE.fullmatch(text)
    if ends is None:
        return text.split(",")
    first, last = int(ends[1]), int(ends[2])
    digits = max(map(len, ends.groups())) if any(len(end) > 1 and end[0] == "0" for end in ends.groups()) else 0
    step = 1 if last >= first else -1
    return (f"{number:0{digits}d}" for number in range(first, last + step, step))


def _title(stem: str) -> str:
    """The name of a data set of several files: their pattern's, without what differs."""
    return re.sub(r"\{.*\}|[*?\[\]]", "", stem).strip("-_. ") or "data"
