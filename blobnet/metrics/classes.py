"""Metrics of classes: from the confusion matrix, and areas under curves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from blobnet.metrics.types import Labels, Scores, metric


def confusion_matrix(labels: Labels, predicted: Labels, classes: int) -> npt.NDArray[np.int64]:
    """Return the counts (classes, classes) of samples of each class (row) that were taken for each class (column)."""
    pairs = np.asarray(labels, np.int64).reshape(-1) * classes + np.asarray(predicted, np.int64).reshape(-1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def _matrix(labels: Labels, scores: Scores) -> npt.NDArray[np.int64]:
    return confusion_matrix(labels, scores.argmax(axis=1), scores.shape[1])


def _quotient(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> Scores:
    """0 where there is nothing to divide by."""
    above, below = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)


def _precision(matrix: npt.NDArray[np.int64]) -> Scores:
    return _quotient(np.diag(matrix), matrix.sum(axis=0))


def _recall(matrix: npt.NDArray[np.int64]) -> Scores:
    return _quotient(np.diag(matrix), matrix.sum(axis=1))


def _f1(matrix: npt.NDArray[np.int64]) -> Scores:
    return _quotient(2 * np.diag(matrix), matrix.sum(axis=0) + matrix.sum(axis=1))


def _iou(matrix: npt.NDArray[np.int64]) -> Scores:
    hits = np.diag(matrix)
    return _quotient(hits, matrix.sum(axis=0) + matrix.sum(axis=1) - hits)


def _mean(of_classes: Callable[[npt.NDArray[np.int64]], Scores], labels: Labels, scores: Scores) -> float:
    """The mean over the classes that have samples."""
    matrix = _matrix(labels, scores)
    present = matrix.sum(axis=1) > 0
    return float(of_classes(matrix)[present].mean()) if present.any() else math.nan


@metric("classes")
def precision(labels: Labels, scores: Scores) -> float:
    """The part that is right of what was taken for a class; the mean over the classes that have samples."""
    return _mean(_precision, labels, scores)


@metric("classes")
def recall(labels: Labels, scores: Scores) -> float:
    """The part of a class that was found; the mean over the classes that have samples."""
    return _mean(_recall, labels, scores)


@metric("classes")
def f1(labels: Labels, scores: Scores) -> float:
    """The harmonic mean of a class's precision and recall; the mean over the classes that have samples."""
    return _mean(_f1, labels, scores)


@metric("classes")
def iou(labels: Labels, scores: Scores) -> float:
    """Intersection over union of a class and of what was taken for it; the mean over the classes that have samples."""
    return _mean(_iou, labels, scores)


@metric("classes", "targets")
def auc(labels: Labels, scores: Scores) -> float:
    """The area below the ROC curve of each class against the others; the mean over the classes that have one.

    Labels may also be targets of the scores' shape, 0 or 1: then each output has a curve of its own.
    """
    areas = class_auc(labels, scores)
    known = areas[~np.isnan(areas)]
    return float(known.mean()) if known.size else math.nan


def class_auc(labels: Labels, scores: Scores) -> Scores:
    """The area below the ROC curve of each class; NaN for a class that has no samples, or all of them.

    It is the chance that one of the class gets a higher score for it than one that is not, ties counting half (Mann and
    Whitney's U over the number of pairs).
    """
    is_class = labels[:, None] == np.arange(scores.shape[1]) if labels.ndim == 1 else labels > 0.5
    return np.array([_area(of, score) for of, score in zip(is_class.T, scores.T, strict=True)])


def _area(is_class: npt.NDArray[np.bool_], score: Scores) -> float:
    inside = int(is_class.sum())
    pairs = inside * (len(score) - inside)
    if not pairs:
        return math.nan
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[is_class].sum() - inside * (inside + 1) / 2) / pairs)
