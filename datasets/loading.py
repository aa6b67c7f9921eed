"""The one door to every data set: a name or a path."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from blobnet.datasets.archives import TAR_SUFFIXES, are_archives, read_archives
from blobnet.datasets.boxes import reader_of
from blobnet.datasets.containers import are_containers
from blobnet.datasets.dataset import Dataset
from blobnet.datasets.digits import read_digits
from blobnet.datasets.image_folder import TABLE_SUFFIXES, Reading, read_image_folder, read_picture_table
from blobnet.datasets.known import KNOWN_SETS, read_known
from blobnet.datasets.lmdb_files import LMDB_SUFFIXES, read_databases
from blobnet.datasets.parquet import PARQUET_SUFFIXES, are_parquet, read_parquet
from blobnet.datasets.user_data import ARRAY_SUFFIXES, NPY_SUFFIXES, has_arrays, holds_npy, read_dataset
from blobnet.errors import FileError, OptionError, file_errors, near_matches, nearest

#: The options of pictures in files, and what is said where there are none.
_OF_PICTURES = {
    "size": "only a folder of pictures can be resized",
    **dict.fromkeys(("workers", "skip_unreadable"), "only pictures in a folder are decoded"),
    "labels": "only pictures have labels of several kinds",
    "columns": "only a table of pictures has columns of labels",
    "shuffle_buffer": "only larger files of pictures, as archives, are shuffled by a buffer",
}
_SUFFIXES = (*ARRAY_SUFFIXES, *NPY_SUFFIXES, *TABLE_SUFFIXES, *TAR_SUFFIXES, *PARQUET_SUFFIXES, *LMDB_SUFFIXES)
_RULE = "it must be a known name, or the path of a file or folder"


def known_names() -> list[str]:
    """The names that :func:`load` takes."""
    return sorted(["digits", *KNOWN_SETS])


def load(  # noqa: PLR0913
    name_or_path: str | Path,
    *,
    folder: str | Path | None = None,
    download: bool = True,
    size: tuple[int, int] | None = None,
    workers: int | None = None,
    skip_unreadable: bool = False,
    units: int | None = None,
    labels: str | None = None,
    columns: Sequence[str] | None = None,
    shuffle_buffer: int | None = None,
) -> Dataset:
    """Load a data set by its name, or a user's own by its path.

    Args:
        name_or_path: ``digits`` (ships with blobnet), ``fashion-mnist``, ``mnist``; or the path of a ``.npz`` file, of
            an HDF5 file (``.h5``, ``.hdf5``), of a folder with ``x.npy`` and ``y.npy`` (or of that ``x.npy``), of a
            folder that holds a folder of pictures for each class (perhaps in ``train``, ``val`` and ``test``), of a
            ``.csv`` file with the columns ``path`` and ``label``, of boxes (docs/boxes.md), or of other forms of data,
            ``train-{000..146}.tar`` or ``hf:OWNER/NAME`` say (docs/data.md). ``./mnist`` is a folder, not the name.
        folder: where to look for the files of ``fashion-mnist`` and ``mnist`` first (else: ``BLOBNET_DATA``).
        download: whether these two may be fetched into the user's cache if they are nowhere.
        size: (height, width) to which the pictures of a folder are resized.
        workers: processes that decode pictures; None takes one for each core where it pays, 0 does without.
        skip_unreadable: whether pictures that cannot be decoded are left out, with a warning that names the first.
        units: what pictures become: 1 for gray, 3 for RGB; None: gray if all are. Nothing to others.
        labels: what the labels of pictures are: ``classes``, ``several`` (``cat|red``) or ``numbers``; None finds it.
        columns: the columns that hold labels, of Parquet pictures too; None: ``label``, else what docs/data.md says.
        shuffle_buffer: how many samples of archives and the like are shuffled among themselves (4096; docs/data.md).

    Raises:
        OptionError: the name is not known, or an option does not belong to this kind of data set.
        FileError: a file is missing, damaged, or not what it should be.
        DataError: the data cannot be trained on.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        hint = "arrays are given to fit as they are."
        raise OptionError("data set", _RULE, type=type(name_or_path).__name__, hint=hint)
    with file_errors():
        name, path = str(name_or_path), Path(name_or_path).expanduser()
        is_known = isinstance(name_or_path, str) and name in known_names()
        read = picture_reader(name_or_path)
        if read is None and not is_known and not path.exists():
            raise _not_there(name_or_path, path)
        of_pictures: dict[str, object] = {"size": size, "workers": workers, "skip_unreadable": skip_unreadable or None}
        of_pictures |= {"labels": labels, "columns": columns, "shuffle_buffer": shuffle_buffer}
        _check_options(name, of_pictures if read is None else {})
        if folder is not None and not is_known:
            raise OptionError("folder", "only a data set with a name is looked for in a folder", data=name)
        if read is not None:
            return read(path, Reading(size, workers, skip_unreadable, units, labels, columns, shuffle_buffer))
        if not is_known:
            return _read_path(path)
        if name == "digits":
            return read_digits()
        known = KNOWN_SETS[name]
        from blobnet.datasets.fetch import locate  # It takes Python's HTTP, which nobody else needs.

        return read_known(known, locate(known, Path(folder) if folder is not None else None, download))


def _check_options(name: str, of_pictures: Mapping[str, object]) -> None:
    """Raises OptionError for options of pictures that are given where there are none."""
    for option, value in of_pictures.items():
        if value is not None:
            raise OptionError(option, _OF_PICTURES[option], data=name)


def are_pictures(name_or_path: str | Path) -> bool:
    """Return True if a data set is made of pictures in files."""
    return picture_reader(name_or_path) is not None


def picture_reader(name_or_path: str | Path) -> Callable[[Path, Reading], Dataset] | None:
    """Return what reads pictures by a path: a folder of them, a table, archives; None for what is none of these."""
    path = Path(name_or_path).expanduser()
    if isinstance(name_or_path, str) and name_or_path in known_names():
        return None
    found: Callable[[Path, Reading], Dataset] | None = None
    if path.is_dir() and holds_npy(path):
        return None
    if are_archives(str(name_or_path)):
        found = read_archives
    elif are_parquet(str(name_or_path)):
        found = read_parquet
    elif are_containers(str(name_or_path), LMDB_SUFFIXES):
        found = read_databases
    elif path.is_dir():
        found = reader_of(path) or read_image_folder
    elif path.exists():
        found = read_picture_table if path.suffix.lower() in TABLE_SUFFIXES else reader_of(path)
    return found


def _not_there(name_or_path: str | Path, path: Path) -> FileError | OptionError:
    """The error of a path where there is nothing."""
    there: list[str] = []
    with contextlib.suppress(OSError):
        there = [item.name for item in path.parent.iterdir() if not item.name.startswith(".")]
    near = nearest(path.name, there)
    if name_or_path != path.name or path.suffix:  # It cannot be meant as a name.
        return FileError(str(path), "there must be such a file or folder", hint=near)
    hint = nearest(path.name.lower().replace("_", "-"), known_names()) or near or near_matches("", known_names())
    return OptionError("data set", _RULE, hint=hint, name=name_or_path)


def _read_path(path: Path) -> Dataset:
    """A user's own arrays."""
    suffix = path.suffix.lower()
    if has_arrays(path):
        return read_dataset(path)
    if suffix in NPY_SUFFIXES:
        if not holds_npy(path.parent):
            hint = "the samples are x.npy, and their labels y.npy beside it; name their folder."
            raise FileError(str(path), "a .npy file of a data set must be x.npy", hint=hint)
        return read_dataset(path.parent)
    raise FileError(
        str(path),
        "a data file must be a .npz, .npy, HDF5, CSV, tar, Parquet or LMDB file",
        hint=f"its name must end in {', '.join(_SUFFIXES)}",
    )
