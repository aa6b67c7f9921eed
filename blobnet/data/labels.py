"""Labels as a loss takes them: checked, in memory or read batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import (
    check_finite,
    check_label_array,
    check_label_shape,
    check_label_values,
    classes_of_one_hot,
)
from blobnet.datasets.source import Rows, Source, stored_labels, whole
from blobnet.errors import DataError
from blobnet.losses import CenterNet, Loss
from blobnet.memory.blob import Shape
from blobnet.network.ends import Head, part_subject, to_list

#: One for each sample, int32 class numbers or float32 targets; a source where they are too many for memory.
Labels: TypeAlias = npt.NDArray[Any] | Source


def prepare_labels(output: Shape, loss: Loss, x_shape: tuple[int, ...], y: Any, subject: str) -> Labels:
    """Labels of samples (N, ...) as the device takes them, for an output of a shape.

    Those that :func:`stored_labels` finds are checked when they are read.

    Raises:
        DataError: labels that are not classes of the model, or targets of another shape or out of range.
        ShapeError: the loss does not fit the output.
    """
    loss.check(output)
    stored = stored_labels(y, subject)
    if stored is not None:
        check_label_shape(stored.shape, x_shape, subject)
        return _StoredLabels(output, loss, stored)
    y = in_memory(y, subject)
    check_label_array(y, x_shape, subject)
    return _prepared(output, loss, y, subject)


def in_memory(y: Any, subject: str) -> Any:
    """Labels as an array: of another package's array, and of numbers in a list; all else as it is."""
    if isinstance(y, np.ndarray | str | bytes | Mapping) or not hasattr(y, "__getitem__"):
        return y
    if hasattr(y, "shape"):
        return whole(y, subject, "y")
    with contextlib.suppress(ValueError, TypeError):  # Of unequal rows, say.
        found = np.array([np.asarray(label) for label in y])
        return found if found.dtype.kind in "biuf" else y
    return y


def labels_for(heads: Sequence[Head], x_shape: tuple[int, ...], y: Any, subject: str) -> tuple[Labels, ...]:
    """Labels for every output of a model: for several a mapping by their names, or a list in their order.

    Raises:
        DataError, ShapeError: as for :func:`prepare_labels`; or there is not one for each output.
    """
    names = [head.name for head in heads]
    given = to_list(names, y, subject, "output", DataError)
    return tuple(
        prepare_labels(head.shape, head.loss, x_shape, own, part_subject(subject, head.name, names))
        for head, own in zip(heads, given, strict=True)
    )


def _prepared(
    output: Shape, loss: Loss, y: npt.NDArray[Any], subject: str, rows: Rows | None = None
) -> npt.NDArray[Any]:
    """Labels in memory; ``rows`` are their samples' numbers, if those are not 0, 1, 2, ..."""
    if loss.takes_classes:
        y = y if output.rank else classes_of_one_hot(y, output.units)
        settings: dict[str, Any] = {"positions": output.dimensions[1:], "ignore": loss.ignored_label, "numbers": rows}
        check_label_values(y, output.units, subject, **settings)
        return loss.device_labels(y)
    if isinstance(loss, CenterNet):
        check_finite(y, "y", subject, rows)
        loss.check_boxes(y, output, subject)
        return loss.device_labels(y)
    check_label_values(y.astype(np.float32) if y.dtype.kind in "biu" else y, None, subject, numbers=rows)
    target = tuple(y.shape[1:])
    # One value may go without an axis of its own, and several may come as one row.
    if target not in (output.dimensions, (output.elements,)) and not (target == () and output.elements == 1):
        raise DataError(subject, "each target must have the shape of the model's output", target=target, output=output)
    loss.check_targets(y, subject)
    return loss.device_labels(y)


class _StoredLabels(Source):  # type: ignore[misc]  # mypy sees this package under another name
    """Labels that are checked when they are read; a mistake in their shape is found at once."""

    def __init__(self, output: Shape, loss: Loss, stored: Source) -> None:
        self._output, self._loss, self._stored = output, loss, stored
        self.subject, self.is_parallel = stored.subject, stored.is_parallel
        first = self._read(np.zeros(1, np.int64))
        self.shape, self.dtype = (len(stored), *first.shape[1:]), first.dtype

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        np.copyto(out, self._read(rows))

    def _read(self, rows: Rows) -> npt.NDArray[Any]:
        values = np.empty((len(rows), *self._stored.shape[1:]), self._stored.dtype)
        self._stored.read(rows, values)
        return _prepared(self._output, self._loss, values, self.subject, rows)
