"""Metrics of classes: from the confusion matrix, and areas under curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blobnet.metrics.types import Labels, Scores, metric


def confusion_matrix(labels: Labels, predicted: Labels, classes: int) -> npt.NDArray[np.int64]:
    """Return the counts (classes, classes) of samples of each class (row) that were taken for each class (column)."""
    pairs = np.asarray(labels, np.int64).reshape(-1) * classes + np.asarray(predicted, np.int64).reshape(-1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


class Counts(NamedTuple):
    """How often each class, or each label, was right; arrays (classes,).

    Attributes:
        hits: said of samples that have it.
        said: said at all.
        samples: those that have it.
    """

    hits: npt.NDArray[np.int64]
    said: npt.NDArray[np.int64]
    samples: npt.NDArray[np.int64]

    @classmethod
    def of(cls, labels: Labels, scores: Scores) -> Counts:
        """Count answers; labels as metrics get them. Of several labels those above a half are said."""
        if labels.ndim == 1:
            return cls.of_matrix(_matrix(labels, scores))
        has, said = labels > 0.5, scores > 0.5
        return cls((has & said).sum(axis=0), said.sum(axis=0), has.sum(axis=0))

    @classmethod
    def of_matrix(cls, matrix: npt.NDArray[np.int64]) -> Counts:
        """Count the samples of a confusion matrix."""
        return cls(np.diag(matrix), matrix.sum(axis=0), matrix.sum(axis=1))

    @property
    def precision(self) -> Scores:
        """The part that is right of what was said."""
        return _quotient(self.hits, self.said)

    @property
    def recall(self) -> Scores:
        """The part that was found of the samples that have it."""
        return _quotient(self.hits, self.samples)

    @property
    def f1(self) -> Scores:
        """The harmonic mean of precision and recall."""
        return _quotient(2 * self.hits, self.said + self.samples)

    @property
    def iou(self) -> Scores:
        """Intersection over union of the samples that have it and those of which it was said."""
        return _quotient(self.hits, self.said + self.samples - self.hits)

    def mean(self, name: str) -> float:
        """The mean of one of these over the classes that have samples."""
        present = self.samples > 0
        return float(getattr(self, name)[present].mean()) if present.any() else math.nan


def _matrix(labels: Labels, scores: Scores) -> npt.NDArray[np.int64]:
    return confusion_matrix(labels, scores.argmax(axis=1), scores.shape[1])


def _quotient(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> Scores:
    """0 where there is nothing to divide by."""
    above, below = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)


@metric("classes", "targets")
def precision(labels: Labels, scores: Scores) -> float:
    """The part that is right of what was taken for a class; the mean over the classes that have samples.

    Here, and for recall, f1 and iou, labels may also be targets of the scores' shape, 0 or 1: several labels, of which
    those are said that have a score above a half.
    """
    return Counts.of(labels, scores).mean("precision")


@metric("classes", "targets")
def recall(labels: Labels, scores: Scores) -> float:
    """The part of a class that was found; the mean over the classes that have samples."""
    return Counts.of(labels, scores).mean("recall")


@metric("classes", "targets")
def f1(labels: Labels, scores: Scores) -> float:
    """The harmonic mean of a class's precision and recall; the mean over the classes that have samples."""
    return Counts.of(labels, scores).mean("f1")


@metric("classes", "targets")
def iou(labels: Labels, scores: Scores) -> float:
    """Intersection over union of a class and of what was taken for it; the mean over the classes that have samples."""
    return Counts.of(labels, scores).mean("iou")


@metric("classes", "targets")
def average_precision(labels: Labels, scores: Scores) -> float:
    """The mean average precision, mAP: the mean of :func:`class_average_precision` over the classes that have one."""
    return _mean_of_known(class_average_precision(labels, scores))


@metric("classes", "targets")
def auc(labels: Labels, scores: Scores) -> float:
    """The area below the ROC curve of each class against the others; the mean over the classes that have one.

    Labels may also be targets of the scores' shape, 0 or 1: then each output has a curve of its own.
    """
    return _mean_of_known(class_auc(labels, scores))


def _mean_of_known(values: Scores) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def class_auc(labels: Labels, scores: Scores) -> Scores:
    """The area below the ROC curve of each class; NaN for a class that has no samples, or all of them.

    It is the chance that one of the class gets a higher score for it than one that is not, ties counting half (Mann and
    Whitney's U over the number of pairs).
    """
    return _of_each(_area, labels, scores)


def class_average_precision(labels: Labels, scores: Scores) -> Scores:
    """The average precision of each class; NaN for a class without samples.

    It is the sum, over the scores from the highest down, of the precision among the samples that have at least this
    score, times the recall that was won with it: that of scikit-learn, without interpolation.
    """
    return _of_each(_average_precision, labels, scores)


def _of_each(measure: Callable[[npt.NDArray[np.bool_], Scores], float], labels: Labels, scores: Scores) -> Scores:
    is_class = labels[:, None] == np.arange(scores.shape[1]) if labels.ndim == 1 else labels > 0.5
    return np.array([measure(of, score) for of, score in zip(is_class.T, scores.T, strict=True)])


def _average_precision(is_class: npt.NDArray[np.bool_], score: Scores) -> float:
    if not is_class.any():
        return math.nan
    order = np.argsort(-score, kind="stable")
    # Samples of one score come together.
    last = np.flatnonzero(np.diff(score[order], append=-np.inf))
    found = np.cumsum(is_class[order])[last]
    won = np.diff(found, prepend=0) / found[-1]
    return float((won * found / (last + 1)).sum())


def _area(is_class: npt.NDArray[np.bool_], score: Scores) -> float:
    inside = int(is_class.sum())
    pairs = inside * (len(score) - inside)
    if not pairs:
        return math.nan
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[is_class].sum() - inside * (inside + 1) / 2) / pairs)
