"""The rules that arrays must meet before a training."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.dataset import CHUNK_ELEMENTS, Dataset, Split
from blobnet.errors import DataError

if TYPE_CHECKING:
    from blobnet.datasets.source import Source

FLOAT32_LIMIT = float(np.finfo(np.float32).max)
#: Said where the name of a file was given in place of samples.
FILE_HINT = "blobnet.datasets.load(name).train has the x and y of a data set, "
FILE_HINT += "blobnet.datasets.read_image(name, shape)[None] is a picture, numpy.load(name) an array."
#: Said where targets were given to a loss of classes.
_OTHER_LOSS = "targets, which are no classes, need a loss of their own: mean-squared-error, say"


def check_arrays(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any] | None = None,
    classes: int | None = None,
    subject: str = "data",
    *,
    positions: tuple[int, ...] = (),
    ignore: int | None = None,
) -> None:
    """Check samples, and the labels or targets that belong to them.

    Args:
        x: samples, (N, C, H, W), (N, C, L) or (N, C), of any real type.
        y: class numbers (N,) of any integer type (or whole numbers in a float type, if ``classes`` is given), float
            targets (N, ...), or None where there is only ``x`` (prediction).
        classes: how many classes there are; None where ``y`` may be targets.
        subject: what the error names.
        positions: the shape of a sample's class numbers, where each position has one: (height, width), say.
        ignore: a class number that is allowed besides, wherever it lies.

    Raises:
        DataError: a wrong type or rank, no samples, numbers of samples that differ, a value that is not finite, a label
            that is no class number; it points at the first offending value.
    """
    check_array_type(x, "x", subject)
    check_axes(x.shape, subject)
    if y is not None:
        check_label_array(y, x.shape, subject)
    check_finite(x, "x", subject)
    if y is not None:
        check_label_values(y, classes, subject, positions=positions, ignore=ignore)


def check_label_array(y: npt.NDArray[Any], x_shape: tuple[int, ...], subject: str) -> None:
    """Raises DataError unless ``y`` is an array of labels or targets for samples of that shape."""
    hint = "class names become numbers with names, y = numpy.unique(y, return_inverse=True)"
    check_array_type(y, "y", subject, hint)
    check_label_shape(y.shape, x_shape, subject)


def check_label_shape(shape: tuple[int, ...], x_shape: tuple[int, ...], subject: str) -> None:
    """Raises DataError unless labels of a shape may be those of samples of that shape."""
    if not shape or shape[0] != x_shape[0]:
        raise DataError(subject, "x and y must hold the same number of samples", x_shape=x_shape, y_shape=shape)
    if 0 in shape:
        raise DataError(subject, "y must have no axis of size 0", shape=shape)


def label_positions(y: Any, x_shape: tuple[int, ...], classes: int | None) -> tuple[int, ...]:
    """The shape of a sample's labels in files, where they are class numbers for each of its positions; else ().

    Those are as many axes as the sample has besides its units: (N, height, width) for images, or (N, width).
    """
    is_mask = 3 <= len(x_shape) == len(y.shape) + 1
    return tuple(y.shape[1:]) if is_mask and (classes is not None or y.dtype.kind != "f") else ()


def check_label_values(
    y: npt.NDArray[Any] | Source,
    classes: int | None,
    subject: str,
    *,
    positions: tuple[int, ...] = (),
    ignore: int | None = None,
    numbers: npt.NDArray[np.int64] | None = None,
) -> None:
    """Raises DataError unless all labels are finite and, where there are classes, numbers of them.

    ``positions`` and ``ignore`` are as for :func:`check_arrays`, ``numbers`` as for :func:`check_finite`.
    """
    check_finite(y, "y", subject, numbers)
    if classes is not None or y.dtype.kind != "f":
        _check_labels(y, classes, subject, positions, ignore, numbers)


def classes_of_one_hot(y: Any, units: int | None = None) -> Any:
    """The class numbers that rows of one 1 among 0s, or a column of class numbers, stand for; all else as it is.

    Args:
        y: labels or targets, (N, ...), an array or a source. Columns of real numbers are targets, unless ``units``.
        units: how many classes there are, if that is known.
    """
    if y.shape[1:] == (1,) and (units is not None or y.dtype.kind in "biu"):
        return np.concatenate([rows[:, 0] for _, rows in chunks(y)]) if len(y) else y[:, 0]
    if len(y.shape) != 2 or y.shape[1] < 2 or y.dtype.kind not in "biuf" or units not in (None, y.shape[1]):
        return y
    found = [np.empty(0, np.int64)]
    for _, rows in chunks(y):
        if not (((rows == 0) | (rows == 1)).all() and ((rows != 0).sum(axis=1) == 1).all()):
            return y
        found.append(rows.argmax(axis=1))
    return np.concatenate(found)


def check_axes(shape: tuple[int, ...], subject: str) -> None:
    """Raises DataError unless an array of this shape holds samples."""
    if not 2 <= len(shape) <= 5:
        raise DataError(
            subject,
            "x must have the axes (samples, units[[[, depth], height], width])",
            hint="add the missing axes, for example x[:, None] for gray images (N, H, W) or x[None] for one sample",
            shape=shape,
        )
    if 0 in shape:
        raise DataError(subject, "x must hold at least one sample and no axis of size 0", shape=shape)


def check_array_type(
    values: object,
    name: str,
    subject: str,
    hint: str = "convert it, for example with x.astype(numpy.float32)",
) -> None:
    """Raises DataError unless it is an array that holds real numbers."""
    if not isinstance(values, np.ndarray):
        advice = f"numpy.asarray({name})"
        if callable(values):
            advice = f"what it returns may be one: {getattr(values, '__name__', name)}()."
        elif isinstance(values, str | os.PathLike):
            advice = FILE_HINT
        elif isinstance(values, Dataset | Split):
            advice = "x and y of a data set are arrays: data.train.x and data.train.y."
        raise DataError(subject, f"{name} must be a numpy array", hint=advice, type=type(values).__name__)
    # NOTE: the first use of numpy.ma imports it, which takes 30 ms.
    if type(values) is not np.ndarray and isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        fill = f"fill the masked values in: {name}.filled(value)"
        rule = f"{name} must be an array without a mask, which would be ignored"
        raise DataError(subject, rule, masked=int(np.ma.getmaskarray(values).sum()), hint=fill)
    check_real(values.dtype, name, subject, hint)


def check_real(
    dtype: np.dtype[Any], name: str, subject: str, hint: str = "convert it, for example with x.astype(numpy.float32)"
) -> None:
    """Raises DataError unless values of this type are real numbers."""
    if dtype.kind not in "biuf":
        raise DataError(subject, f"{name} must hold real numbers", hint=hint, dtype=dtype)


def chunks(values: npt.NDArray[Any] | Source) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Runs of samples, so that a check never needs a second copy of the data."""
    step = max(1, CHUNK_ELEMENTS // max(1, math.prod(values.shape[1:])))
    for first in range(0, len(values), step):
        yield first, np.asarray(values[first : first + step])


def check_finite(
    values: npt.NDArray[Any] | Source, name: str, subject: str, numbers: npt.NDArray[np.int64] | None = None
) -> None:
    """Raises DataError for NaN, infinity, or what would become one: everything is trained in float32.

    ``numbers`` are those of the samples, if they are not 0, 1, 2, ...
    """
    if values.dtype.kind != "f":
        return
    for first, chunk in chunks(values):
        # NOTE: NaN is the greatest and the least there is. This takes half as long as looking at each.
        if chunk.dtype == np.float32 and chunk.size and np.isfinite(chunk.max()) and np.isfinite(chunk.min()):
            continue
        is_right = np.isfinite(chunk) if chunk.itemsize <= 4 else np.abs(chunk) <= FLOAT32_LIMIT
        if not is_right.all():
            place = np.unravel_index(int(is_right.argmin()), chunk.shape)
            sample = first + int(place[0])
            index = (sample if numbers is None else int(numbers[sample]), *(int(axis) for axis in place[1:]))
            raise DataError(
                subject,
                f"{name} must hold finite float32 values",
                hint="drop or repair the samples that hold NaN, infinity or values beyond 3.4e38",
                index=index,
                value=chunk[place],
            )


def _check_labels(
    y: npt.NDArray[Any] | Source,
    classes: int | None,
    subject: str,
    positions: tuple[int, ...],
    ignore: int | None,
    numbers: npt.NDArray[np.int64] | None,
) -> None:
    """Whole numbers from 0 to classes-1, or the one to ignore."""
    if y.shape[1:] != positions:
        shape = ", ".join(["samples", *map(str, positions)])
        raise DataError(
            subject,
            f"class numbers must have the shape ({shape}{'' if positions else ','})",
            hint=_shape_hint(y, positions),
            shape=y.shape,
        )
    for first, chunk in chunks(y):
        is_counted = np.ones(chunk.shape, dtype=bool) if ignore is None else chunk != ignore
        is_fraction = chunk != np.floor(chunk) if y.dtype.kind == "f" else np.zeros(chunk.shape, dtype=bool)
        is_beyond = chunk >= classes if classes is not None else np.zeros(chunk.shape, dtype=bool)
        for is_wrong, rule, hint in (
            (is_fraction, "class numbers must be whole numbers", _OTHER_LOSS),
            (chunk < 0, "class numbers must not be negative", _negative_hint(positions)),
            (is_beyond, f"class numbers must be below {classes}", _beyond_hint(positions)),
        ):
            if (is_wrong & is_counted).any():
                place = np.unravel_index(int((is_wrong & is_counted).argmax()), chunk.shape)
                sample = first + int(place[0])
                index = (sample if numbers is None else int(numbers[sample]), *(int(axis) for axis in place[1:]))
                where = index if positions else index[0]
                raise DataError(subject, rule, hint=hint, sample=where, label=chunk[place])


def _shape_hint(y: npt.NDArray[Any] | Source, positions: tuple[int, ...]) -> str:
    if positions and len(y.shape) == 1:
        return "for one class a sample, end the model with Dense(classes)"
    if len(y.shape) == len(positions) + 1:
        return "a mask must be as large as the model's output"
    if y.dtype.kind == "f":
        return _OTHER_LOSS
    return "one-hot rows become class numbers with y.argmax(axis=1); targets must be of a float type"


def _negative_hint(positions: tuple[int, ...]) -> str:
    hint = "classes count from 0; targets must be of a float type"
    return "a label to leave out is named by the loss: CrossEntropy(ignore=-1)" if positions else hint


def _beyond_hint(positions: tuple[int, ...]) -> str:
    hint = "classes count from 0, so the last one is classes - 1"
    return "a label to leave out is named by the loss: CrossEntropy(ignore=255)" if positions else hint
