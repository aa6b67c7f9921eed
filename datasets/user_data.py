"""A user's own arrays, in a .npz or an HDF5 file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import as_split
from blobnet.datasets.dataset import Dataset
from blobnet.errors import DataError, FileError

KEYS = ("x", "y", "x_test", "y_test", "class_names")
NPZ_SUFFIXES = (".npz",)
HDF5_SUFFIXES = (".h5", ".hdf5")
# Beyond this, whole numbers are surely meant as targets.
MAXIMUM_UNNAMED_CLASSES = 100_000

Arrays = dict[str, npt.NDArray[Any]]


def read_npz(path: Path) -> Dataset:
    """Read the arrays ``x`` and ``y``, and optionally ``x_test``, ``y_test`` and ``class_names``, of a .npz file.

    x is (N, C, H, W), (N, C, L) or (N, C); uint8 stays uint8, other types become float32. Integers in y are class
    numbers; floats are targets unless ``class_names`` is there.

    Raises:
        FileError: the file cannot be read, or lacks an array.
        DataError: an array cannot be trained on (see :func:`check_arrays`), or arrays do not fit together.
    """
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no whole zip archive")
        with np.load(path, allow_pickle=False) as file:
            found, arrays = list(file), {key: file[key] for key in KEYS if key in file}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(str(path), "the file must be a readable .npz file", reason=error) from error
    return _dataset(path, arrays, found)


def read_hdf5(path: Path) -> Dataset:
    """Read an HDF5 file with the same arrays as :func:`read_npz`."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            found = list(file)
            arrays = {key: np.asarray(file[key][()]) for key in KEYS if isinstance(file.get(key), h5py.Dataset)}
    except OSError as error:
        raise FileError(str(path), "the file must be a readable HDF5 file", reason=error) from error
    return _dataset(path, arrays, found)


def _dataset(path: Path, arrays: Arrays, found: list[str]) -> Dataset:
    """Checked arrays as a data set."""
    if "x" not in arrays or "y" not in arrays:
        raise FileError(str(path), "it must hold the arrays x and y", found=found)
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise FileError(str(path), "x_test and y_test must come together", found=found)
    class_names = _class_names(path, arrays["class_names"]) if "class_names" in arrays else None
    classes = len(class_names) if class_names is not None else None
    train = as_split(arrays["x"], arrays["y"], classes, str(path))
    test = None
    if "x_test" in arrays:
        test = as_split(arrays["x_test"], arrays["y_test"], classes, f"{path} (test)")
        for name, one, other in (("x", train.x, test.x), ("y", train.y, test.y)):
            if one.shape[1:] != other.shape[1:] or (name == "y" and one.dtype != other.dtype):
                raise DataError(
                    str(path),
                    f"{name} and {name}_test must have samples of the same kind",
                    train=f"{one.dtype} {one.shape}",
                    test=f"{other.dtype} {other.shape}",
                )
    if class_names is None:
        class_names = _numbers(path, [split.y for split in (train, test) if split is not None])
    return Dataset(path.stem, train, test, class_names)


def _numbers(path: Path, labels: list[npt.NDArray[Any]]) -> tuple[str, ...]:
    """Names for classes that have none: their numbers; no names for targets."""
    if labels[0].dtype != np.int64:
        return ()
    # as_split turned an unsigned number beyond int64 into a negative one.
    last = max(int(y.max()) for y in labels) if min(int(y.min()) for y in labels) >= 0 else np.iinfo(np.int64).max
    if last >= MAXIMUM_UNNAMED_CLASSES:
        raise DataError(
            str(path),
            f"class numbers must be below {MAXIMUM_UNNAMED_CLASSES} if class_names is not given",
            hint="number the classes from 0 on; targets must be of a float type",
            largest=last,
        )
    return tuple(str(number) for number in range(last + 1))


def _class_names(path: Path, values: npt.NDArray[Any]) -> tuple[str, ...]:
    """Texts, which HDF5 gives as bytes."""
    names = values.tolist() if values.ndim == 1 else []
    if not names or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(str(path), "class_names must be a list of texts", dtype=values.dtype, shape=values.shape)
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names)
