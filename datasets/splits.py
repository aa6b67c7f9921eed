"""Samples and labels as a split of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import (
    check_array_type,
    check_axes,
    check_finite,
    check_label_array,
    check_label_shape,
    check_label_values,
    classes_of_one_hot,
    label_positions,
)
from blobnet.datasets.dataset import Dataset, Split, ignored_label
from blobnet.datasets.source import ArraySource, Renumbered, Source


def as_split(x: npt.NDArray[Any] | Source, y: npt.NDArray[Any] | Source, classes: int | None, subject: str) -> Split:
    """Checks samples and labels, and brings arrays into the types of a :class:`Split`.

    Samples of a source, and targets of one, are checked when they are read; class numbers are gone through once. Those
    of masks keep their type, of which there are many.

    Raises:
        DataError: as :func:`check_arrays`.
    """
    if isinstance(y, np.ndarray | Source):
        y = classes_of_one_hot(y, classes)
    if not isinstance(x, Source):
        check_array_type(x, "x", subject)
    check_axes(x.shape, subject)
    if not isinstance(y, Source):
        check_label_array(y, x.shape, subject)
    check_label_shape(y.shape, x.shape, subject)
    has_targets = classes is None and y.dtype.kind == "f"
    if not isinstance(x, Source):
        check_finite(x, "x", subject)
        x = np.ascontiguousarray(x, dtype=np.uint8 if x.dtype == np.uint8 else np.float32)
    positions = label_positions(y, x.shape, classes)
    if not (has_targets and isinstance(y, Source)):
        check_label_values(y, classes, subject, positions=positions, ignore=ignored_label(positions, classes))
    if not isinstance(y, Source):
        kept = y.dtype if positions and y.dtype.kind in "iu" else np.int64
        y = np.ascontiguousarray(y, dtype=np.float32 if has_targets else kept)
    return Split(x, y)


def targets_as(data: Dataset, names: Sequence[str]) -> Dataset:
    """A data set whose targets stand in the order of ``names``; 0 for those that it does not have."""
    places = [data.target_names.index(name) if name in data.target_names else -1 for name in names]

    def ordered(split: Split | None) -> Split | None:
        if split is None:
            return None
        y = np.concatenate([split.y[:], np.zeros((len(split), 1), np.float32)], axis=1)
        return replace(split, y=y[:, places])

    train, test, validation = map(ordered, (data.train, data.test, data.validation))
    assert train is not None, "every data set has it"
    return replace(data, train=train, test=test, validation=validation, target_names=tuple(names))


def numbered_as(data: Dataset, class_numbers: Sequence[int], class_names: Sequence[str]) -> Dataset:
    """A data set whose classes get other numbers, among ``class_names``."""
    numbers = np.array(class_numbers)

    def renumbered(split: Split | None) -> Split | None:
        if split is None:
            return None
        if data.has_boxes:
            boxes = split.y.copy()
            kinds = boxes[..., 0]
            kinds[kinds >= 0] = numbers[kinds[kinds >= 0].astype(int)]
            return replace(split, y=boxes)
        if isinstance(split.y, Source):
            return replace(split, y=Renumbered(split.y, numbers))
        y = np.asarray(Renumbered(ArraySource(split.y, data.name, has_labels=True), numbers))
        return replace(split, y=y)

    train = renumbered(data.train)
    assert train is not None, "every data set has it"
    test, validation = renumbered(data.test), renumbered(data.validation)
    return replace(data, train=train, test=test, validation=validation, class_names=tuple(class_names))
