"""Losses on logits, and counts of correct answers. Each loss returns (loss, delta), delta = dloss/dlogits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.reference.activation import sigmoid
from tests.reference.arrays import FloatArray, float64

LabelArray = npt.NDArray[np.integer]


def cross_entropy(logits: FloatArray, labels: LabelArray, *, label_smoothing: float = 0.0) -> tuple[float, FloatArray]:
    """(N, K), integer (N,) -> the mean over the batch of -sum over k of t[k] * log softmax(logits)[k].

    t = (1 - label_smoothing) * onehot(label) + label_smoothing / K (Szegedy et al. 2016, as PyTorch).
    """
    logits = float64(logits)
    count, classes = logits.shape
    targets = np.full((count, classes), label_smoothing / classes)
    targets[np.arange(count), labels] += 1.0 - label_smoothing
    shifted = logits - logits.max(axis=1, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -(targets * logarithm).sum() / count
    return float(loss), float64((np.exp(logarithm) - targets) / count)


def binary_cross_entropy(logits: FloatArray, targets: FloatArray) -> tuple[float, FloatArray]:
    """Two arrays of one shape -> the mean over all elements of log(1 + exp(x)) - x * t."""
    _check_shapes(logits, targets)
    logits, targets = float64(logits), float64(targets)
    loss = (np.logaddexp(0.0, logits) - logits * targets).mean()
    return float(loss), float64((sigmoid(logits) - targets) / logits.size)


def mean_squared_error(predictions: FloatArray, targets: FloatArray) -> tuple[float, FloatArray]:
    """Two arrays of one shape -> the mean over all elements of (prediction - target)^2."""
    _check_shapes(predictions, targets)
    difference = float64(predictions) - float64(targets)
    return float((difference**2).mean()), 2.0 * difference / difference.size


def ranks(logits: FloatArray, labels: LabelArray) -> npt.NDArray[np.int64]:
    """(N, K), (N,) -> (N,): the classes before each label's: larger logits, and equal ones of a smaller index."""
    own = logits[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(logits.shape[1])[None, :] < np.asarray(labels)[:, None]
    return np.asarray(((logits > own) | ((logits == own) & earlier)).sum(axis=1), dtype=np.int64)


def top_count(logits: FloatArray, labels: LabelArray, places: int) -> int:
    """How many of the labels have a rank below ``places``."""
    return int((ranks(logits, labels) < places).sum())


def accuracy_count(logits: FloatArray, labels: LabelArray) -> int:
    """How many of the labels come first."""
    return top_count(logits, labels, 1)


def top5_count(logits: FloatArray, labels: LabelArray) -> int:
    """How many of the labels are among the first five."""
    return top_count(logits, labels, 5)


def _check_shapes(first: FloatArray, second: FloatArray) -> None:
    if first.shape != second.shape:
        raise ValueError(f"shapes differ: {first.shape} and {second.shape}")
