"""A user's own arrays, in a .npz or an HDF5 file, or in .npy files of one folder.

What takes more than KEPT_BYTES stays in its file and is read batch by batch.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import chunks, label_positions
from blobnet.datasets.dataset import IGNORED_LABEL, Dataset, Split
from blobnet.datasets.file_source import (
    FileSource,
    check_header,
    check_unwritten,
    npy_header,
    read_npy,
    readable,
    written,
)
from blobnet.datasets.source import KEPT_BYTES, IndexedSource, Rows, Source, UnitsFirst, source_of
from blobnet.datasets.split_names import SPLIT_NAMES
from blobnet.datasets.splits import as_split
from blobnet.errors import DataError, FileError, warn
from blobnet.files.hdf5 import DAMAGE, MODEL_FORMAT, attribute, read_apart
from blobnet.support.regular_file import MAX_UNPACKED, most_memory
from blobnet.support.unit_axes import TO_FIRST

#: Keras's names for arrays, and blobnet's.
KERAS_KEYS = {"x_train": "x", "y_train": "y"}
#: The names that arrays to validate with may have.
VALIDATION_KEYS = {f"{axis}_{name}": f"{axis}_val" for axis in "xy" for name in SPLIT_NAMES["validation"]}
KEYS = ("x", "y", "x_test", "y_test", "class_names", *KERAS_KEYS, *VALIDATION_KEYS)
NPZ_SUFFIXES = (".npz",)
NPY_SUFFIXES = (".npy",)
#: The ends of the names of files that hold several arrays.
ARRAY_SUFFIXES = (*NPZ_SUFFIXES, ".h5", ".hdf5")
#: The names that samples to train on may have.
_FIRST_KEYS = ("x", "x_train")
#: The filters that HDF5 and h5py bring: deflate, shuffle, Fletcher's checksum, szip, nbit, scale and offset, LZF.
#: Others are code that HDF5 would look for in folders of the system.
_FILTERS = (1, 2, 3, 4, 5, 6, 32000)
#: Bytes of an array beyond which it is said that it is read as a whole.
_NOTED_BYTES = 1 << 30
# Beyond this, whole numbers are surely meant as targets.
MAXIMUM_UNNAMED_CLASSES = 100_000

Array: TypeAlias = npt.NDArray[Any] | Source
Arrays: TypeAlias = dict[str, Array]


def read_dataset(path: Path) -> Dataset:
    """Read the arrays ``x`` and ``y``, and optionally ``x_test``, ``y_test`` and ``class_names``, of a user's data.

    They lie in a .npz or an HDF5 file, or as ``x.npy``, ``y.npy``, ... in a folder.

    x is (N, C, H, W), (N, C, L) or (N, C); uint8 stays uint8, other types become float32. Integers in y are class
    numbers, one for each sample or for each of its positions (N, H, W), where 255 takes no part unless it is a class;
    or rows of one 1 among 0s. Floats are targets unless ``class_names`` is there. ``x_val`` and ``y_val`` (or
    ``valid``, ``validation``) are the validation split.

    With the names ``x_train`` and ``y_train`` the axes are Keras's: x is (N, H, W), or (N, H, W, C) unless C can only
    be the second axis, since that one is 1 or 3 and the last one is not; y may be (N, 1) or (N, H, W, 1).

    Arrays that take more than KEPT_BYTES are read batch by batch, unless they are compressed or in Fortran's order.

    Raises:
        FileError: the file cannot be read, or lacks an array.
        DataError: an array cannot be trained on (see :func:`check_arrays`), or arrays do not fit together.
    """
    return _dataset(path, *read_arrays(path))


def read_samples(path: Path) -> Array:
    """The samples in a .npz, HDF5 or .npy file, or in a folder of .npy files; labels may be missing.

    They are those to test with, else those to train on.

    Raises:
        FileError: the file cannot be read, or holds neither.
        DataError: they are no samples.
    """
    is_one = path.suffix.lower() in NPY_SUFFIXES and not path.is_dir()
    arrays, found = ({"x": _npy_array(path, "x")}, [path.stem]) if is_one else read_arrays(path)
    arrays = _renamed(path, arrays, found)
    name = next((name for name in ("x_test", "x") if name in arrays), None)
    if name is None:
        raise FileError(str(path), "it must hold the array x or x_test", found=found)
    return source_of(arrays[name], str(path))


def holds_npy(folder: Path) -> bool:
    """Return True if a folder holds samples as .npy files."""
    return any((folder / f"{key}.npy").is_file() for key in _FIRST_KEYS)


# -- files -------------------------------------------------------------------------------------------------------------


def has_arrays(path: Path) -> bool:
    """Return True if a path is one for :func:`read_arrays`: a folder, or a file whose name says that it has arrays."""
    return path.is_dir() or path.suffix.lower() in ARRAY_SUFFIXES


def read_arrays(path: Path, keys: Sequence[str] | None = KEYS) -> tuple[Arrays, list[str]]:
    """The arrays of a .npz or an HDF5 file, or of a folder of .npy files, that have names of ``keys``; all names.

    Without ``keys`` all arrays, as labels: those that stay in the file keep their type.

    Raises:
        FileError: the file cannot be read.
        DataError: an array takes too much memory, or does not lie in the file itself.
    """
    if path.is_dir():
        found = sorted(file.stem for file in path.glob("*.npy"))
        return {key: _npy_array(path / f"{key}.npy", key, keys) for key in keys or found if key in found}, found
    return (_npz_arrays if path.suffix.lower() in NPZ_SUFFIXES else _hdf5_arrays)(path, keys)


def _npz_arrays(path: Path, keys: Sequence[str] | None) -> tuple[Arrays, list[str]]:
    # NotImplementedError: what zip archives may be, and zipfile does not read. RuntimeError: encryption.
    faults = OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error
    with readable(path, ".npz file", faults):
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no whole zip archive")
        with path.open("rb") as plain, np.load(plain, allow_pickle=False) as file:
            found = list(file)
            wanted = [key for key in keys or found if key in found]
            members = {key: _member(file, key) for key in wanted}
            _check_size(path, "all arrays", sum(item.file_size for item in members.values() if not _stays(item)))
            return {key: _npz_member(path, file, key, keys) for key in wanted}, found


def _member(file: Any, key: str) -> zipfile.ZipInfo:
    """Return the place of an array in an archive."""
    names = file.zip.namelist()
    found: zipfile.ZipInfo = file.zip.getinfo(f"{key}.npy" if f"{key}.npy" in names else key)
    return found


def _stays(member: zipfile.ZipInfo) -> bool:
    """Return True if an array of an archive is large and not packed: it is then read from there on demand."""
    is_plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
    return is_plain and member.file_size > KEPT_BYTES


def _npz_member(path: Path, file: Any, key: str, keys: Sequence[str] | None) -> Array:
    member = _member(file, key)

    def whole() -> npt.NDArray[Any]:
        with file.zip.open(member) as packed:
            check_header(packed, member.file_size)
        return np.asarray(file[key])

    if member.file_size <= KEPT_BYTES or key == "class_names":
        return whole()
    if not _stays(member):
        _note_whole(path, key, member.file_size, "is compressed", "numpy.savez stores it as it is.")
        return whole()
    with file.zip.open(member) as packed:
        while packed.read(1 << 20):  # Which compares all of it with the archive's checksum; later reads do not.
            pass
    with path.open("rb") as plain:
        # What lies in front of a member: 30 bytes, of which the last say how long its name and its notes are.
        plain.seek(member.header_offset)
        local = plain.read(30)
        plain.seek(sum(struct.unpack("<HH", local[26:])), os.SEEK_CUR)
        return _stored(path, plain, key, _has_labels(key, keys), whole)


def _npy_array(path: Path, key: str, keys: Sequence[str] | None = KEYS) -> Array:
    """The array in a .npy file, which goes by the name ``key``."""
    with readable(path, ".npy array"):
        if path.stat().st_size <= KEPT_BYTES or key == "class_names":
            return read_npy(path)
        with path.open("rb") as file:
            return _stored(path, file, key, _has_labels(key, keys), lambda: read_npy(path))


def _check_size(path: Path, key: str, size: int) -> None:
    """Raises DataError for arrays that take more memory than what a file holds may."""
    most = most_memory(path.stat().st_size)
    if size > most:
        rule = f"what is read into memory must be no more than {MAX_UNPACKED} times its file, or 1 GiB"
        raise DataError(f"{path}, {key}", rule, bytes=size, most=most)


def _stored(path: Path, file: BinaryIO, key: str, has_labels: bool, whole: Callable[[], npt.NDArray[Any]]) -> Array:
    """The .npy array that begins at a file's position, to be read later; ``whole`` reads it now."""
    shape, is_fortran, dtype = npy_header(file)
    if is_fortran:
        size = math.prod(shape) * dtype.itemsize
        _note_whole(path, key, size, "is in Fortran's order", "numpy.ascontiguousarray has the other.")
        return whole()
    return FileSource(path, file.tell(), shape, dtype, str(path), has_labels)


def _hdf5_arrays(path: Path, keys: Sequence[str] | None) -> tuple[Arrays, list[str]]:
    """The file stays open as long as something is to be read from it.

    Nothing is read from another file, and no code is loaded that the file asks for.
    """
    import h5py

    with readable(path, "HDF5 file", DAMAGE):
        file = h5py.File(path, "r")
        if attribute(file, "format") == MODEL_FORMAT:
            hint = "`blobnet train --init-from` goes on from its weights."
            raise DataError(str(path), "a data set must hold samples, but this is a model that was saved", hint=hint)
        found = list(file)
        wanted = [key for key in keys or found if key in found and _is_array(path, file, key)]
        _check_size(path, "all arrays", sum(_held_bytes(file[key], key) for key in wanted))  # Names may share values.
        arrays = {key: _hdf5_array(path, file[key], key, _has_labels(key, keys)) for key in wanted}
        if not any(isinstance(array, IndexedSource) for array in arrays.values()):
            file.close()
        return arrays, found


def _is_array(path: Path, file: Any, key: str) -> bool:
    """Return True if a name of an HDF5 file is an array, and not a group.

    Raises:
        DataError: it stands for one elsewhere, one that only other code can read, or one that cannot be so large.
    """
    import h5py

    subject, link = f"{path}, {ascii(key)[1:-1]}", file.get(key, getlink=True)
    if not isinstance(link, h5py.HardLink):
        rule, hint = "an array must lie in the file itself: links are not followed", "file[name] = array copies it."
        to = ascii(getattr(link, "path", ""))
        raise DataError(subject, rule, link=type(link).__name__, to=to, hint=hint)
    values = file[key]
    if not isinstance(values, h5py.Dataset):
        return False
    made = values.id.get_create_plist()
    if values.is_virtual or made.get_external_count():
        rule = "the values of an array must lie in the file itself"
        raise DataError(subject, rule, storage="virtual" if values.is_virtual else "external")
    filters = [made.get_filter(number) for number in range(made.get_nfilters())]
    foreign = [(code, name) for code, _, _, name in filters if code not in _FILTERS]
    if foreign:
        (code, name), hint = foreign[0], "h5repack -f GZIP=4 writes such a file."
        rule = "an array must be packed by filters that HDF5 has, since others are code"
        raise DataError(subject, rule, filter=code, called=ascii(name), hint=hint)
    return True


def _is_read_whole(values: Any, key: str) -> bool:
    return values.ndim == 0 or values.nbytes <= KEPT_BYTES or key == "class_names"


def _held_bytes(values: Any, key: str) -> int:
    """Bytes of memory that an array of an HDF5 file takes: itself, or the order of its samples.

    An array may be far longer than its file, since chunks that were never written take no room.
    """
    return int(values.nbytes) if _is_read_whole(values, key) else 8 * len(values)


#: Prints the texts of variable length at a name; each lies in the file.
_TEXTS = """
with h5py.File(sys.argv[1], "r", locking=False) as file:
    texts, left = [], int(sys.argv[3])
    for text in file[sys.argv[2]]:
        left -= len(text)
        if left < 0:
            sys.exit("they are longer than the file")
        texts.append(text.decode("utf-8", "replace"))
    print(json.dumps(texts))
"""


def _hdf5_array(path: Path, values: Any, key: str, has_labels: bool) -> Array:
    if values.dtype.hasobject:
        import h5py

        if key != "class_names" or values.ndim != 1 or not h5py.check_string_dtype(values.dtype):
            rule = "an array must hold numbers, and class_names a list of texts"
            raise DataError(f"{path}, {ascii(key)[1:-1]}", rule, dtype=values.dtype, shape=values.shape)
        return np.array(read_apart(path, _TEXTS, key, str(path.stat().st_size)), object)
    if _is_read_whole(values, key):
        return np.asarray(values[()])
    place = values.id.get_offset()
    # What lies in one piece is read without HDF5, by several threads; its library lets in one.
    if place is not None and not values.file.userblock_size:
        return FileSource(path, place, values.shape, values.dtype, str(path), has_labels)
    return _StoredSource(path, values, has_labels)


class _StoredSource(IndexedSource):  # type: ignore[misc]  # mypy sees this package under another name
    """An array that h5py reads, of a file that nobody must write to."""

    def __init__(self, path: Path, values: Any, has_labels: bool) -> None:
        super().__init__(values, str(path), has_labels)
        self._path, self._file = path, values.file.id.get_vfd_handle()
        self._written = written(self._file)

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        super().read(rows, out)
        check_unwritten(self.subject, self._path, self._written, written(self._file))


def _has_labels(key: str, keys: Sequence[str] | None) -> bool:
    return keys is None or key.startswith("y")


def _note_whole(path: Path, key: str, size: int, state: str, hint: str) -> None:
    """Says that a large array is read into memory as a whole."""
    if size > _NOTED_BYTES:
        rule = "an array that is larger than memory should lie in its file as it is; it is read as a whole"
        warn(f"{path}, {key}", rule, it=state, bytes=size, hint=hint)


# -- a data set --------------------------------------------------------------------------------------------------------


def _dataset(path: Path, arrays: Arrays, found: list[str]) -> Dataset:
    """Checked arrays as a data set."""
    arrays = _renamed(path, arrays, found)
    if "x" not in arrays or "y" not in arrays:
        hint = "arrays that are called after the inputs and outputs of a model are for that one (docs/graphs.md)."
        raise FileError(str(path), "it must hold the arrays x and y", found=found, hint=hint)
    for part in ("test", "val"):
        if (f"x_{part}" in arrays) != (f"y_{part}" in arrays):
            raise FileError(str(path), f"x_{part} and y_{part} must come together", found=found)
    shape = arrays["x"].shape
    if len(shape) == 4 and shape[3] in (1, 3) and shape[1] == shape[2] > 3 and "x" in found:
        rule = "samples should have the axes (samples, units, height, width), but these seem to have their units last"
        hint = "x.transpose(0, 3, 1, 2); or call the arrays x_train and y_train, which have Keras's axes."
        warn(str(path), rule, shape=shape, hint=hint)
    class_names = class_names_of(path, np.asarray(arrays["class_names"])) if "class_names" in arrays else None
    classes = len(class_names) if class_names is not None else None
    train = as_split(arrays["x"], arrays["y"], classes, str(path))
    others: dict[str, Split] = {}
    for part in ("test", "val"):
        if f"x_{part}" in arrays:
            other = as_split(arrays[f"x_{part}"], arrays[f"y_{part}"], classes, f"{path} ({part})")
            _check_alike(path, train, other, part, has_targets=classes is None)
            others[part] = other
    if class_names is None:
        class_names = _numbers(path, [train, *others.values()])
    name = path.resolve().name if path.is_dir() else path.stem
    return Dataset(name, train, others.get("test"), class_names, others.get("val"))


def _check_alike(path: Path, train: Split, other: Split, part: str, has_targets: bool) -> None:
    for name, mine, theirs in (("x", train.x, other.x), ("y", train.y, other.y)):
        is_other = name == "y" and has_targets and (mine.dtype.kind == "f") != (theirs.dtype.kind == "f")
        if mine.shape[1:] != theirs.shape[1:] or is_other:
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
        elif is_keras and plain.startswith("y") and _is_one_label(array.shape) and array.dtype.kind in "iu":
            renamed[plain] = np.asarray(array)[..., 0]
    return renamed


def _is_one_label(shape: tuple[int, ...]) -> bool:
    """Return True if labels of Keras, (N, 1) or (N, H, W, 1), have an axis too many."""
    return len(shape) in (2, 4) and shape[-1] == 1


def _units_first(x: Array) -> Array:
    """Keras's (N, H, W) or (N, H, W, C) as (N, C, H, W)."""
    axes = len(x.shape)
    if axes not in (3, 4) or (axes == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)):
        return x
    if isinstance(x, Source):
        return UnitsFirst(x)
    return x[:, None] if axes == 3 else x.transpose(TO_FIRST)


def _numbers(path: Path, splits: list[Split]) -> tuple[str, ...]:
    """Names for classes that have none: their numbers; no names for targets."""
    if splits[0].y.dtype.kind == "f":
        return ()
    return tuple(str(number) for number in range(largest_class(str(path), splits) + 1))


def largest_class(subject: str, splits: Sequence[Split]) -> int:
    """The largest class number in splits, but for that of positions that take no part.

    Raises:
        DataError: it is too large, or no position takes part.
    """
    last = -1
    for split in splits:
        has_positions = bool(label_positions(split.y, split.x.shape, None))
        for _, rows in chunks(split.y):
            counted = rows[rows != IGNORED_LABEL] if has_positions else rows
            if counted.size:
                # as_split turned an unsigned number beyond int64 into a negative one.
                last = max(last, int(counted.max()) if int(counted.min()) >= 0 else np.iinfo(np.int64).max)
    if last < 0:
        rule = f"a position must have a class, and not all be {IGNORED_LABEL}, which takes no part"
        raise DataError(subject, rule)
    if last >= MAXIMUM_UNNAMED_CLASSES:
        raise DataError(
            subject,
            f"class numbers must be below {MAXIMUM_UNNAMED_CLASSES} if class_names is not given",
            hint="number the classes from 0 on; targets must be of a float type",
            largest=last,
        )
    return last


def class_names_of(path: Path, values: npt.NDArray[Any]) -> tuple[str, ...]:
    """The texts of an array ``class_names``, which HDF5 gives as bytes; DataError if it holds something else."""
    names = values.tolist() if values.ndim == 1 else []
    if not names or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(str(path), "class_names must be a list of texts", dtype=values.dtype, shape=values.shape)
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names)
