"""The one door to every data set: a name or a path."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from blobnet.datasets.boxes import BOX_SUFFIXES, reader_of
from blobnet.datasets.dataset import Dataset
from blobnet.datasets.digits import read_digits
from blobnet.datasets.image_folder import TABLE_SUFFIXES, Reading, read_image_folder, read_picture_table
from blobnet.datasets.known import KNOWN_SETS, read_known
from blobnet.datasets.user_data import ARRAY_SUFFIXES, NPY_SUFFIXES, has_arrays, holds_npy, read_dataset
from blobnet.errors import FileError, OptionError, file_errors, near_matches, nearest

#: The options of pictures in files, and what is said where there are none.
_OF_PICTURES = {
    "size": "only a folder of pictures can be resized",
    **dict.fromkeys(("workers", "skip_unreadable"), "only pictures in a folder are decoded"),
    "labels": "only pictures have labels of several kinds",
    "columns": "only a table of pictures has columns of labels",
}
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
) -> Dataset:
    """Load a data set by its name, or a user's own by its path.

    Args:
        name_or_path: ``digits`` (ships with blobnet), ``fashion-mnist``, ``mnist``; or the path of a ``.npz`` file, of
            an HDF5 file (``.h5``, ``.hdf5``), of a folder with ``x.npy`` and ``y.npy`` (or of that ``x.npy``), of a
            folder that holds a folder of pictures for each class (perhaps in folders ``train``, ``val`` and ``test``),
            or of a ``.csv`` file with the columns ``path`` and ``label``; or, for boxes, COCO's ``.json`` file, or a
            folder of YOLO or Pascal VOC (docs/boxes.md). A name comes before a path: write ``./mnist``
            for a folder of that name.
        folder: where to look for the files of ``fashion-mnist`` and ``mnist`` first (else: ``BLOBNET_DATA``).
        download: whether these two may be fetched into the user's cache if they are nowhere.
        size: (height, width) to which the pictures of a folder are resized.
        workers: processes that decode pictures; None takes one for each core where it pays, 0 does without.
        skip_unreadable: whether pictures that cannot be decoded are left out, with a warning that names the first.
        units: what the pictures of a folder become: 1 for gray, 3 for RGB; None: gray if all are. Nothing to others.
        labels: what the labels of pictures are: ``classes``, ``several`` (``cat|red``) or ``numbers``; None finds it.
        columns: the columns of a table that hold labels; None: ``label``, else all but ``path`` and ``split``.

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
        has_pictures = are_pictures(name_or_path)
        of_pictures = {"size": size, "workers": workers, "skip_unreadable": skip_unreadable or None}
        for option, value in {**of_pictures, "labels": labels, "columns": columns}.items():
            if value is not None and not has_pictures:
                raise OptionError(option, _OF_PICTURES[option], data=name)
        columns = (columns,) if isinstance(columns, str) else columns
        if folder is not None and not is_known:
            raise OptionError("folder", "only a data set with a name is looked for in a folder", data=name)
        if not is_known:
            if has_pictures and path.exists():
                read = reader_of(path) or (read_image_folder if path.is_dir() else read_picture_table)
                return read(path, Reading(size, workers, skip_unreadable, units, labels, columns))
            return _read_path(name_or_path, path)
        if name == "digits":
            return read_digits()
        known = KNOWN_SETS[name]
        from blobnet.datasets.fetch import locate  # It takes Python's HTTP, which nobody else needs.

        return read_known(known, locate(known, Path(folder) if folder is not None else None, download))


def are_pictures(name_or_path: str | Path) -> bool:
    """Return True if a data set exists and is a folder or a table of pictures."""
    path = Path(name_or_path).expanduser()
    if isinstance(name_or_path, str) and name_or_path in known_names():
        return False
    return not holds_npy(path) if path.is_dir() else path.suffix.lower() in (*TABLE_SUFFIXES, *BOX_SUFFIXES)


def _read_path(name_or_path: str | Path, path: Path) -> Dataset:
    """A user's own arrays."""
    suffix = path.suffix.lower()
    if not path.exists():
        there: list[str] = []
        with contextlib.suppress(OSError):
            there = [item.name for item in path.parent.iterdir() if not item.name.startswith(".")]
        near = nearest(path.name, there)
        if name_or_path != path.name or suffix:  # It cannot be meant as a name.
            raise FileError(str(path), "there must be such a file or folder", hint=near)
        hint = nearest(path.name.lower().replace("_", "-"), known_names()) or near or near_matches("", known_names())
        raise OptionError("data set", _RULE, hint=hint, name=name_or_path)
    if has_arrays(path):
        return read_dataset(path)
    if suffix in NPY_SUFFIXES:
        if not holds_npy(path.parent):
            hint = "the samples are x.npy, and their labels y.npy beside it; name their folder."
            raise FileError(str(path), "a .npy file of a data set must be x.npy", hint=hint)
        return read_dataset(path.parent)
    raise FileError(
        str(path),
        "a data file must be a .npz, .npy, HDF5 or CSV file",
        hint=f"its name must end in {', '.join((*ARRAY_SUFFIXES, *NPY_SUFFIXES, *TABLE_SUFFIXES))}",
    )
