"""Tar archives of pictures and their labels, as WebDataset has them: ``cat/0001.jpg`` beside ``cat/0001.cls``."""

from __future__ import annotations

import glob
import itertools
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from blobnet.datasets.dataset import Dataset
from blobnet.datasets.file_source import readable
from blobnet.datasets.image_folder import Reading, labelled_dataset
from blobnet.datasets.keyed import Sample, grouped, labelled
from blobnet.datasets.listing import Listing
from blobnet.datasets.packed import Stretch
from blobnet.datasets.split_names import SPLIT_NAMES, split_like
from blobnet.errors import DataError, FileError, OptionError, nearest

TAR_SUFFIXES = (".tar",)
#: The ends of archives that are packed as a whole: no member of these can be read by itself.
_PACKED = re.compile(r"\.(tgz|tar\.(gz|bz2|xz|zst|lz4))$", re.IGNORECASE)
#: What names no file here, but how to get one.
_ELSEWHERE = re.compile(r"^(pipe:|[a-z0-9]{2,}:/)", re.IGNORECASE)
_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
#: Shards beyond which a pattern is a slip.
_MAX_ARCHIVES = 1_000_000


def are_archives(text: str) -> bool:
    """Return True if a text names tar archives: by a path, by patterns, or as a folder of nothing else."""
    if text.lower().endswith(TAR_SUFFIXES) or _PACKED.search(text):
        return True
    folder = Path(text).expanduser()
    if not folder.is_dir():
        return False
    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return any(map(_is_tar, found)) and not any(path.is_dir() for path in found)


def _is_tar(path: Path) -> bool:
    return path.suffix.lower() in TAR_SUFFIXES


def read_archives(path: Path, reading: Reading) -> Dataset:
    """Read tar archives of pictures with their labels, as WebDataset writes them.

    ``path`` names one archive, several by ``{000..146}``, ``{train,val}``, ``*``, or ``::`` between names, or a folder
    of archives. An archive whose name has the word of a split, as in ``val-000.tar``, is of that split. Files whose
    names are the same up to the first dot are a sample: its picture, and its label (:func:`labelled`). The numbers of
    classes are named by a ``classes.txt`` beside the archives.

    Samples stay in the archives. Each epoch reads these in an order drawn from the seed, and shuffles
    ``reading.shuffle_buffer`` samples at a time among themselves.

    Raises:
        OptionError: the name is that of no file here, or archives are packed as a whole.
        FileError: an archive is missing, damaged or cut short.
        DataError: a sample without a picture or a label.
    """
    archives = archives_of(str(path))
    splits = {archive: split_like(archive.stem) or "train" for archive in archives}
    if len(set(splits.values())) == 1:  # By themselves they are data, to measure on, say.
        splits = dict.fromkeys(archives, "train")
    listing = Listing()
    parts: dict[str, list[Sample]] = {}
    for split in SPLIT_NAMES:
        members = (_members(archive, listing) for archive in archives if splits[archive] == split)
        own = [sample for files in members for sample in grouped(files)]
        if own or split == "train":
            parts[split] = own
    if not parts["train"]:
        raise DataError(
            str(path),
            "archives must hold samples to train on",
            found=", ".join(name for name, own in parts.items() if own) or "nothing",
        )
    columns, found = labelled(parts, reading.columns, listing)
    listing.say(str(path))
    name = path.resolve().name if path.is_dir() else archives[0].stem if len(archives) == 1 else _title(path.stem)
    return labelled_dataset(name, archives[0], found, columns, reading)


def archives_of(text: str) -> list[Path]:
    """The archives that a text names, in the order of their names.

    Raises:
        OptionError: it names no files here, or so many that it must be a slip.
        FileError: an archive is not there, or archives are packed as a whole.
    """
    found: list[Path] = []
    for pattern in text.split("::"):
        if not pattern:
            raise OptionError("data set", "there must be the name of an archive between two ::", name=text)
        if _ELSEWHERE.match(pattern):
            rule = "archives must be files of this machine"
            raise OptionError("data set", rule, name=pattern, hint="fetch them first, or mount what they lie on.")
        if (packed := _PACKED.search(pattern)) is not None:
            rule = "archives must not be packed as a whole, since their samples are read one by one"
            hint: str | None = (
                "gunzip FILE, or unxz, unzstd, ..., unpacks one; pictures in it are packed by themselves."
            )
            raise FileError(pattern, rule, ending=packed[0], hint=hint)
        paths = [Path(name).expanduser() for name in _expanded(pattern)]
        if len(paths) == 1 and paths[0].is_dir():
            found += sorted(path for path in paths[0].iterdir() if _is_tar(path) and not path.name.startswith("."))
        elif len(paths) == 1 and not paths[0].exists() and glob.has_magic(str(paths[0])):
            matching = [Path(name) for name in sorted(glob.glob(str(paths[0])))]  # noqa: PTH207 - absolute ones too
            if not matching:
                raise FileError(pattern, "files must match the pattern", found=0)
            found += matching
        else:
            found += paths
    missing = [path for path in found if not path.is_file()]
    if missing:
        hint = nearest(missing[0].name, [path.name for path in missing[0].parent.glob("*.tar")])
        raise FileError(str(missing[0]), "every archive must be there", missing=len(missing), of=len(found), hint=hint)
    return list(dict.fromkeys(found))


def _expanded(pattern: str) -> list[str]:
    """The texts that ``{000..010}`` and ``{a,b}`` stand for, as in a shell.

    Raises:
        OptionError: there are too many.
    """
    found = list(itertools.islice(_texts(pattern), _MAX_ARCHIVES + 1))
    if len(found) > _MAX_ARCHIVES:
        rule = f"a pattern must name no more than {_MAX_ARCHIVES} archives"
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
    """The name of a data set of several archives: their pattern's, without what differs."""
    return re.sub(r"\{.*\}|[*?\[\]]", "", stem).strip("-_. ") or "archives"


def _members(archive: Path, listing: Listing) -> Iterator[Stretch]:
    """The files of an archive, where they lie; others, such as links, are left out.

    Raises:
        FileError: it is no whole archive.
    """
    with readable(archive, "tar archive", (OSError, tarfile.TarError, ValueError, EOFError)):
        with tarfile.open(archive, "r:") as opened:
            while (member := opened.next()) is not None:
                opened.members.clear()  # type: ignore[attr-defined]  # It would hold on to all of them.
                if member.isreg() and not member.issparse():
                    if not member.name.rpartition("/")[2].startswith("."):
                        yield Stretch(archive, member.name, member.offset_data, member.size)
                elif not member.isdir():
                    listing.leave_out("links or special files of archives")
            end = opened.offset
        _check_end(archive, end)


def _check_end(archive: Path, place: int) -> None:
    """Raises ValueError unless an archive ends at a place as archives do.

    NOTE: tarfile takes anything that is no header for the end.
    """
    with archive.open("rb") as file:
        file.seek(place)
        block = rest = file.read(tarfile.BLOCKSIZE)
        while rest and not any(rest):
            rest = file.read(1 << 20)
    if len(block) < tarfile.BLOCKSIZE:
        raise ValueError(f"it is cut short after {place + len(block)} bytes")
    if any(block):
        raise ValueError(f"there is something else than a file's header at byte {place}")
    if rest:
        raise ValueError("there is more behind its end: archives must not be joined to one file")
