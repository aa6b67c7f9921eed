"""Sources of samples: arrays in memory or in a file, objects that give batches by index, streams of batches."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.array_files import resized
from blobnet.datasets.checks import check_array_type, check_axes, check_finite, check_real
from blobnet.errors import DataError
from blobnet.support.unit_axes import TO_FIRST

Rows = npt.NDArray[np.int64]

#: Bytes up to which the samples or labels of a file are read into memory; more are read when they are asked for.
KEPT_BYTES = 1 << 26

#: The types that samples keep on their way to the device; all others become float32 on the host.
KEPT_TYPES = ("uint8", "int8", "uint16", "int16", "float16", "float32")
_KEPT_TYPES = frozenset(map(np.dtype, KEPT_TYPES))


def kept_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The type in which samples of a ``dtype`` travel; it holds all their values, as float32 has them."""
    given = np.dtype(dtype)
    if given.kind == "b":
        return np.dtype(np.uint8)
    return given if given in _KEPT_TYPES else np.dtype(np.float32)  # Those of another byte order are not.


def check_kept(given: np.dtype[Any], dtype: np.dtype[Any], subject: str) -> None:
    """Raises DataError unless batches that travel as ``dtype`` hold what a batch of the type ``given`` does."""
    if kept_type(given) != dtype and not np.can_cast(given, dtype):
        rule = "all batches must have the type of the first one, or one that it holds"
        raise DataError(subject, rule, first=dtype, now=given, hint="make them float32.")


class Source(ABC):
    """Samples, or labels, that are read by their numbers, a batch at a time.

    Attributes:
        subject: what errors call it.
        shape: as an array's: the number of samples, then the axes of one.
        dtype: the type in which they are read.
        is_parallel: whether several threads may read at once.
        is_quick: whether a read only copies memory.
    """

    subject: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_parallel = False
    is_quick = False

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def bytes(self) -> int:
        """The bytes of all samples."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @abstractmethod
    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        """Puts samples, in the order of ``rows``, into ``out``: (len(rows), *shape[1:]), of ``dtype``.

        Raises:
            DataError: the source does not give what it promised, or a value is not finite.
        """

    def lent(self, rows: Rows) -> npt.NDArray[Any] | None:
        """Return a view of what :meth:`read` would give, not checked; None if it does not lie in memory so."""
        return None

    def unchecked(self) -> Source:
        """Return the same samples without a check of their values; a source that must check returns itself."""
        return self

    def check(self, rows: Rows, samples: npt.NDArray[Any]) -> None:
        """Raises DataError where a value of samples that were lent is not finite."""
        check_finite(samples, "x", self.subject, rows)

    def order(self, rows: Rows, generator: np.random.Generator) -> Rows | None:
        """Return the places in ``rows`` in the order in which an epoch reads these samples.

        None where any order is as quick: then it is one of all permutations.
        """
        return None

    def resized(self, height: int, width: int) -> Source:
        """The same pictures in another size; themselves if they have it."""
        return self if self.shape[2:] == (height, width) else Resized(self, height, width)

    def __getitem__(self, rows: Rows | slice) -> Source:
        """Some samples, by their numbers or as a slice; they are not read yet."""
        return Part(self, np.arange(len(self), dtype=np.int64)[rows])

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """All samples, read into memory."""
        values = np.empty(self.shape, self.dtype)
        self.read(np.arange(len(self), dtype=np.int64), values)
        return values if dtype is None else values.astype(dtype)

    def check_all(self) -> None:
        """Looks for values that are not finite ahead of time, where that is cheap.

        Raises:
            DataError: there is one.
        """
        return


class ArraySource(Source):
    """An array in memory, or a file that is mapped into it."""

    is_parallel = True

    def __init__(self, values: npt.NDArray[Any], subject: str, has_labels: bool = False) -> None:
        dtype = values.dtype if has_labels else kept_type(values.dtype)
        self.subject, self.shape, self.dtype = subject, values.shape, dtype
        self.is_quick = not isinstance(values, np.memmap)
        self._values = np.asarray(values)
        self._is_plain = self._values.flags.c_contiguous and self._values.dtype in (self.dtype, np.dtype(bool))
        self._needs_check = not has_labels

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        if self._is_plain:
            # NOTE: this, and the copy of a run below, lets other threads go on; indexing does not.
            np.take(self._values.view(self.dtype), rows, axis=0, out=out, mode="clip")
        else:
            with np.errstate(over="ignore"):  # What float32 cannot hold is found below.
                np.copyto(out, self._values[rows], casting="unsafe")
        if self._needs_check:
            check_finite(out, "x", self.subject, rows)

    def unchecked(self) -> ArraySource:
        if not self.is_quick:  # A file that is not in memory yet takes longer to read than to check.
            return self
        other = copy.copy(self)
        other._needs_check = False
        return other

    def lent(self, rows: Rows) -> npt.NDArray[Any] | None:
        if not (self._is_plain and self.is_quick and (len(rows) == 1 or (np.diff(rows) == 1).all())):
            return None
        return self._values.view(self.dtype)[rows[0] : rows[0] + len(rows)]

    def check_all(self) -> None:
        if self.is_quick and self._needs_check:
            check_finite(self._values, "x", self.subject)
            self._needs_check = False


class IndexedSource(Source):
    """An object with ``len()`` that gives a batch for a list of indices: an h5py data set, a user's own class.

    Labels keep their type, and nobody looks at them here.
    """

    def __init__(self, values: Any, subject: str, has_labels: bool = False) -> None:
        self.subject, self._values, self._has_labels = subject, values, has_labels
        try:
            count = len(values)
        except Exception as error:
            rule, cause = "the source must say how many samples it has", f"{type(error).__name__}: {error}"
            raise DataError(subject, rule, received=type(values).__name__, cause=cause) from error
        self._is_h5py = type(values).__module__.startswith("h5py")
        shape, dtype = getattr(values, "shape", None), getattr(values, "dtype", None)
        if shape is None or dtype is None:
            sample = self._batch(np.zeros(1, np.int64)) if count else np.zeros((0, 1, 1))
            shape, dtype = (count, *sample.shape[1:]), sample.dtype
        self.shape = (count, *(int(size) for size in tuple(shape)[1:]))
        self.dtype = np.dtype(dtype) if has_labels else kept_type(dtype)

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        batch = self._batch(rows)
        if batch.shape != out.shape:
            rule = "the source must give one sample of its shape for each index"
            hint = "its length, or the shape of its samples, must not change."
            raise DataError(self.subject, rule, indices=len(rows), wanted=out.shape, received=batch.shape, hint=hint)
        if not self._has_labels:
            check_kept(batch.dtype, self.dtype, self.subject)
        with np.errstate(over="ignore"):
            np.copyto(out, batch, casting="unsafe")
        if not self._has_labels:
            check_finite(out, "x", self.subject, rows)

    def _batch(self, rows: Rows) -> npt.NDArray[Any]:
        try:
            batch = np.asarray(self._h5py_batch(rows) if self._is_h5py else self._values[rows])
        except Exception as error:
            rule = "the source must give a batch for an array of indices"
            hint = "its length must not change; a list becomes an array with numpy.stack."
            first = rows[:4].tolist()
            cause = f"{type(error).__name__}: {error}"
            raise DataError(self.subject, rule, indices=first, of=len(rows), cause=cause, hint=hint) from error
        check_array_type(batch, "y" if self._has_labels else "x", self.subject)
        return batch

    def _h5py_batch(self, rows: Rows) -> npt.NDArray[Any]:
        """A run in one piece, else sample by sample: a list of indices takes h5py up to a hundred times as long."""
        first, count = int(rows[0]), len(rows)
        if (np.diff(rows) == 1).all():
            return np.asarray(self._values[first : first + count])
        batch = np.empty((count, *self._values.shape[1:]), self._values.dtype)
        # In their order in the file, so that a compressed chunk is unpacked once.
        for place in np.argsort(rows, kind="stable"):
            batch[place] = self._values[int(rows[place])]
        return batch


class Part(Source):
    """Some samples of a source."""

    def __init__(self, source: Source, rows: Rows) -> None:
        self._source, self._rows = source, rows
        self.subject, self.dtype, self.shape = source.subject, source.dtype, (len(rows), *source.shape[1:])
        self.is_parallel, self.is_quick = source.is_parallel, source.is_quick

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        self._source.read(self._rows[rows], out)

    def unchecked(self) -> Source:
        return Part(self._source.unchecked(), self._rows)

    def order(self, rows: Rows, generator: np.random.Generator) -> Rows | None:
        return self._source.order(self._rows[rows], generator)

    def resized(self, height: int, width: int) -> Source:
        return Part(self._source.resized(height, width), self._rows)

    def check_all(self) -> None:
        self._source.check_all()


class Resized(Source):
    """Pictures (N, units, height, width) in another size, bilinearly, as they are read."""

    def __init__(self, source: Source, height: int, width: int) -> None:
        self._source, self.subject, self.dtype = source, source.subject, source.dtype
        self.shape = (*source.shape[:2], height, width)
        self.is_parallel = source.is_parallel

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        pictures = np.empty((len(rows), *self._source.shape[1:]), self.dtype)
        self._source.read(rows, pictures)
        for picture, place in zip(pictures, out, strict=True):
            place[...] = resized(picture, self.shape[2:], Path(self.subject))

    def order(self, rows: Rows, generator: np.random.Generator) -> Rows | None:
        return self._source.order(rows, generator)


class AsSamples(Source):
    """Labels that were read from a file, as samples: in a type of samples, and checked."""

    def __init__(self, source: Source) -> None:
        check_real(source.dtype, "x", source.subject)
        self._source, self.subject, self.shape = source, source.subject, source.shape
        self.dtype, self.is_parallel = kept_type(source.dtype), source.is_parallel

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        values = out if self._source.dtype == out.dtype else np.empty(out.shape, self._source.dtype)
        self._source.read(rows, values)
        if values is not out:
            with np.errstate(over="ignore"):
                np.copyto(out, values, casting="unsafe")
        check_finite(out, "x", self.subject, rows)


class Renumbered(Source):
    """Class numbers in place of others: ``numbers`` of them; what is no number of a class stays."""

    def __init__(self, labels: Source, numbers: npt.NDArray[np.int64]) -> None:
        self._labels, self._numbers = labels, numbers
        self.subject, self.shape = labels.subject, labels.shape
        self.dtype = np.promote_types(labels.dtype, np.min_scalar_type(numbers.max()))
        self.is_parallel = labels.is_parallel

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        labels = np.empty(out.shape, self._labels.dtype)
        self._labels.read(rows, labels)
        are_classes = (labels >= 0) & (labels < len(self._numbers))
        np.copyto(out, labels, casting="unsafe")
        out[are_classes] = self._numbers[labels[are_classes]]


def source_of(x: Any, subject: str) -> Source:
    """A source of samples.

    Args:
        x: an array (also of a mapped file), a :class:`Source`, or an object with ``len()`` that gives a batch for an
            array of indices, such as an h5py data set.
        subject: what errors call it.

    Raises:
        DataError: it is none of these, has no samples, or they have the wrong type or number of axes.
    """
    if isinstance(x, Source):
        source = x
    elif hasattr(x, "__array__") and not isinstance(x, np.ndarray) and not _has_numpy_type(x):
        values = converted(x, subject)
        check_array_type(values, "x", subject)
        source = ArraySource(values, subject)
    elif not isinstance(x, np.ndarray) and hasattr(x, "__len__") and hasattr(x, "__getitem__") and not _is_list(x):
        source = IndexedSource(x, subject)
    else:
        check_array_type(x, "x", subject)
        source = ArraySource(x, subject)
    check_axes(source.shape, subject)
    return source


def _has_numpy_type(x: Any) -> bool:
    """Return True if an array of another package has one NumPy type, as h5py's do; a DataFrame has several."""
    return isinstance(getattr(x, "dtype", None), np.dtype)


def converted(x: Any, subject: str, name: str = "x") -> npt.NDArray[Any]:
    """An array of another package, such as a tensor of PyTorch, as one of NumPy's, without a copy where it allows."""
    try:
        return np.asarray(x)
    except (TypeError, RuntimeError, ValueError) as error:
        rule, hint = f"{name} must become an array of NumPy", f"{name}.detach().cpu().numpy()"
        raise DataError(subject, rule, received=type(x).__name__, cause=error, hint=hint) from error


def whole(values: Any, subject: str, name: str) -> npt.NDArray[Any]:
    """All of an array that is none of NumPy's: a source, an h5py data set, a tensor, an object that gives batches."""
    if not hasattr(values, "__array__"):
        values = IndexedSource(values, subject, has_labels=True)
    return converted(values, subject, name)


def stored_labels(y: Any, subject: str) -> Source | None:
    """A source of labels that are in no memory and are too many for it; None for all others.

    Args:
        y: a :class:`Source`; or an array of a mapped file, or an h5py data set, of more than KEPT_BYTES.
        subject: what errors call it.
    """
    if isinstance(y, Source):
        return y if y.bytes > KEPT_BYTES else None
    if not all(hasattr(y, name) for name in ("shape", "dtype", "__getitem__")) or not y.shape:
        return None
    if not _has_numpy_type(y):
        return None
    if int(np.prod(y.shape, dtype=np.int64)) * np.dtype(y.dtype).itemsize <= KEPT_BYTES:
        return None
    if isinstance(y, np.memmap):
        return ArraySource(y, subject, has_labels=True)
    return None if isinstance(y, np.ndarray) else IndexedSource(y, subject, has_labels=True)


class UnitsFirst(Source):
    """Samples with Keras's axes, (N, H, W) or (N, H, W, C), as (N, C, H, W)."""

    def __init__(self, source: Source) -> None:
        count, height, width, units = (*source.shape, 1)[:4]
        self._source, self.shape = source, (count, units, height, width)
        self.subject, self.dtype = source.subject, source.dtype
        self.is_parallel, self.is_quick = source.is_parallel, source.is_quick

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        if len(self._source.shape) == 3:
            self._source.read(rows, out[:, 0])
            return
        samples = np.empty((len(rows), *self._source.shape[1:]), self.dtype)
        self._source.read(rows, samples)
        np.copyto(out, samples.transpose(TO_FIRST))

    def unchecked(self) -> Source:
        return UnitsFirst(self._source.unchecked())


class Restarted:
    """Batches of a generator function, which begin anew whenever they are asked for.

    Args:
        batches: called for an iterator of them.
    """

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches()


class Limited:
    """So many batches an epoch of an iterable that may never end; each epoch goes on where the last one stopped.

    Where an iterable that begins anew ends within an epoch, it begins anew.

    Args:
        stream: the iterable.
        count: batches an epoch.
        skipped: batches that were done before, of a resumed training.
    """

    def __init__(self, stream: Iterable[Any], count: int, skipped: int = 0) -> None:
        self._count = count
        self._rest = itertools.islice(_round_and_round(stream), skipped, None)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._rest, self._count)


def _round_and_round(stream: Iterable[Any]) -> Iterator[Any]:
    """All items of an iterable, again and again; those of an iterator once."""
    while True:
        round_ = iter(stream)
        first = next(round_, round_)
        if first is round_:
            return
        yield first
        yield from round_
        if round_ is stream:
            return


def is_stream(x: Any) -> bool:
    """Return True if ``x`` is an iterable of batches that gives no samples by their numbers."""
    return (
        hasattr(x, "__iter__")
        and not isinstance(x, np.ndarray | Source)
        and not hasattr(x, "shape")
        and (_is_list(x) or not hasattr(x, "__getitem__") or not hasattr(x, "__len__"))
    )


def _is_list(x: Any) -> bool:
    return isinstance(x, list | tuple | str | bytes | dict)


def runs(count: int, size: int, skipped: int = 0) -> Iterator[Rows]:
    """The numbers from 0 to below ``count``, ``size`` at a time, without the first of these runs."""
    for first in range(skipped * size, count, size):
        yield np.arange(first, min(first + size, count), dtype=np.int64)
