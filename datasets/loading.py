"""The one door to every data set: a name or a path."""

from __future__ import annotations

from pathlib import Path

from blobnet.datasets.dataset import Dataset
from blobnet.datasets.digits import read_digits
from blobnet.datasets.fetch import locate
from blobnet.datasets.image_folder import read_image_folder
from blobnet.datasets.known import KNOWN_SETS, read_known
from blobnet.datasets.user_data import HDF5_SUFFIXES, NPZ_SUFFIXES, read_hdf5, read_npz
from blobnet.errors import FileError, OptionError, near_matches


def known_names() -> list[str]:
    """The names that :func:`load` takes."""
    return sorted(["digits", *KNOWN_SETS])


def load(
    name_or_path: str | Path,
    *,
    folder: str | Path | None = None,
    download: bool = True,
    size: tuple[int, int] | None = None,
) -> Dataset:
    """Load a data set by its name, or a user's own by its path.

    Args:
        name_or_path: ``digits`` (ships with blobnet), ``fashion-mnist``, ``mnist``; or the path of a ``.npz`` file, of
            an HDF5 file (``.h5``, ``.hdf5``), or of a folder that holds a folder of pictures for each class. A name
            comes before a path: write ``./mnist`` for a folder of that name.
        folder: where to look for the files of ``fashion-mnist`` and ``mnist`` first (else: ``BLOBNET_DATA``).
        download: whether these two may be fetched into the user's cache if they are nowhere.
        size: (height, width) to which the pictures of a folder are resized.

    Raises:
        OptionError: the name is not known, or an option does not belong to this kind of data set.
        FileError: a file is missing, damaged, or not what it should be.
        DataError: the data cannot be trained on.
    """
    name, path = str(name_or_path), Path(name_or_path).expanduser()
    is_known = isinstance(name_or_path, str) and name in known_names()
    if size is not None and (is_known or not path.is_dir()):
        raise OptionError("size", "only a folder of pictures can be resized", data=name)
    if folder is not None and not is_known:
        raise OptionError("folder", "only a data set with a name is looked for in a folder", data=name)
    if not is_known:
        return _read_path(name_or_path, path, size)
    if name == "digits":
        return read_digits()
    known = KNOWN_SETS[name]
    return read_known(known, locate(known, Path(folder) if folder is not None else None, download))


def _read_path(name_or_path: str | Path, path: Path, size: tuple[int, int] | None) -> Dataset:
    """A user's own data."""
    suffix = path.suffix.lower()
    if path.is_dir():
        return read_image_folder(path, size)
    if not path.exists() and isinstance(name_or_path, str) and not suffix and len(path.parts) == 1:
        raise OptionError(
            "data set",
            "it must be a known name, or the path of a file or folder",
            hint=near_matches(name_or_path.lower().replace("_", "-"), known_names()),
            name=name_or_path,
        )
    if not path.exists():
        raise FileError(str(path), "there must be such a file or folder")
    if suffix in NPZ_SUFFIXES:
        return read_npz(path)
    if suffix in HDF5_SUFFIXES:
        return read_hdf5(path)
    raise FileError(
        str(path),
        "a data file must be a .npz or an HDF5 file",
        hint=f"its name must end in {', '.join(NPZ_SUFFIXES + HDF5_SUFFIXES)}",
    )
