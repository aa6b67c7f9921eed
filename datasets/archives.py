"""Tar archives of pictures and their labels, as WebDataset has them: ``cat/0001.jpg`` beside ``cat/0001.cls``."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from blobnet.datasets.containers import are_containers, containers_of
from blobnet.datasets.dataset import Dataset
from blobnet.datasets.file_source import readable
from blobnet.datasets.image_folder import Reading
from blobnet.datasets.keyed import read_keyed
from blobnet.datasets.listing import Listing
from blobnet.datasets.packed import Stretch
from blobnet.errors import FileError

TAR_SUFFIXES = (".tar",)
#: The ends of archives that are packed as a whole: no member of these can be read by itself.
_PACKED = re.compile(r"\.(tgz|tar\.(gz|bz2|xz|zst|lz4))$", re.IGNORECASE)


def are_archives(text: str) -> bool:
    """Return True if a text names tar archives (:func:`are_containers`)."""
    return _PACKED.search(text) is not None or are_containers(text, TAR_SUFFIXES)


def read_archives(path: Path, reading: Reading) -> Dataset:
    """Read tar archives of pictures with their labels, as WebDataset writes them (:func:`containers_of`).

    Samples stay in the archives. Each epoch reads these in an order drawn from the seed, and shuffles
    ``reading.shuffle_buffer`` samples at a time among themselves.

    Raises:
        OptionError: the name is that of no file here.
        FileError: an archive is missing, damaged or cut short, or packed as a whole.
        DataError: a sample without a picture or a label.
    """
    if (packed := _PACKED.search(str(path))) is not None:
        rule = "archives must not be packed as a whole, since their samples are read one by one"
        hint = "gunzip FILE, or unxz, unzstd, ..., unpacks one; pictures in it are packed by themselves."
        raise FileError(str(path), rule, ending=packed[0], hint=hint)
    return read_keyed(containers_of(path, TAR_SUFFIXES), _members, reading)


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
