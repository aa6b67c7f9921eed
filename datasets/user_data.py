"""A user's own arrays, in a .npz or an HDF5 file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import as_split
from blobnet.datasets.dataset import Dataset, Split
from blobnet.errors import DataError, FileError

#: Keras's names for arrays, and blobnet's.
KERAS_KEYS = {"x_train": "x", "y_train": "y"}
#: What arrays to validate with may be called.
VALIDATION_KEYS = {f"{axis}_{name}": f"{axis}_val" for axis in "xy" for name in ("val", "valid", "validation")}
KEYS = ("x", "y", "x_test", "y_test", "class_names", *KERAS_KEYS, *VALIDATION_KEYS)
NPZ_SUFFIXES = (".npz",)
HDF5_SUFFIXES = (".h5", ".hdf5")
# Beyond this, whole numbers are surely meant as targets.
MAXIMUM_UNNAMED_CLASSES = 100_000

Arrays = dict[str, npt.NDArray[Any]]


def read_npz(path: Path) -> Dataset:
    """Read the arrays ``x`` and ``y``, and optionally ``x_test``, ``y_test`` and ``class_names``, of a .npz file.

    x is (N, C, H, W), (N, C, L) or (N, C); uint8 stays uint8, other types become float32. Integers in y are class
    numbers, or rows of one 1 among 0s; floats are targets unless ``class_names`` is there. ``x_val`` and ``y_val`` (or
    ``valid``, ``validation``) are the validation split.

    With the names ``x_train`` and ``y_train`` the axes are Keras's: x is (N, H, W), or (N, H, W, C) unless C can only
    be the second axis, since that one is 1 or 3 and the last one is not; y may be (N, 1).

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
    arrays = _renamed(path, arrays, found)
    if "x" not in arrays or "y" not in arrays:
        raise FileError(str(path), "it must hold the arrays x and y", found=found)
    for part in ("test", "val"):
        if (f"x_{part}" in arrays) != (f"y_{part}" in arrays):
            raise FileError(str(path), f"x_{part} and y_{part} must come together", found=found)
    class_names = _class_names(path, arrays["class_names"]) if "class_names" in arrays else None
    classes = len(class_names) if class_names is not None else None
    train = as_split(arrays["x"], arrays["y"], classes, str(path))
    others: dict[str, Split] = {}
    for part in ("test", "val"):
        if f"x_{part}" in arrays:
            other = as_split(arrays[f"x_{part}"], arrays[f"y_{part}"], classes, f"{path} ({part})")
            _check_alike(path, train, other, part)
            others[part] = other
    if class_names is None:
        class_names = _numbers(path, [split.y for split in (train, *others.values())])
    return Dataset(path.stem, train, others.get("test"), class_names, others.get("val"))


def _check_alike(path: Path, train: Split, other: Split, part: str) -> None:
    for name, mine, theirs in (("x", train.x, other.x), ("y", train.y, other.y)):
        if mine.shape[1:] != theirs.shape[1:] or (name == "y" and mine.dtype != theirs.dtype):
            raise DataError(
                str(path),
                f"{name} and {name}_{part} must have samples of the same kind",
                train=f"{mine.dtype} {mine.shape}",
                **{part: f"{theirs.dtype} {theirs.shape}"},
            )


def _renamed(path: Path, arrays: Arrays, found: list[str]) -> Arrays:
    """The arrays under blobnet's names, with its axes."""
    is_keras = any(name in arrays for name in KERAS_KEYS)
    names = KERAS_KEYS | VALIDATION_KEYS
    renamed: Arrays = {}
    for name, array in arrays.items():
        plain = names.get(name, name)
        if plain in renamed:
            raise FileError(str(path), f"{plain} must be there under one name", found=found)
        renamed[plain] = array
        if is_keras and plain.startswith("x"):
            renamed[plain] = _units_first(array)
        elif is_keras and plain.startswith("y") and array.shape[1:] == (1,) and array.dtype.kind in "iu":
            renamed[plain] = array[:, 0]
    return renamed


def _units_first(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Keras's (N, H, W) or (N, H, W, C) as (N, C, H, W)."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4 or (x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)):
        return x
    return x.transpose(0, 3, 1, 2)


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
