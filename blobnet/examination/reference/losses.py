"""Losses on logits, and counts of correct answers. Each loss returns (loss, delta), delta = dloss/dlogits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.examination.reference.activation import sigmoid
from blobnet.examination.reference.arrays import FloatArray, float64

LabelArray = npt.NDArray[np.integer]


def cross_entropy(
    logits: FloatArray, labels: LabelArray, *, label_smoothing: float = 0.0, **weights: Any
) -> tuple[float, FloatArray]:
    """(N, K, ...), integer (N, ...) -> the mean over all positions of -sum over k of t[k] * log softmax(logits)[k].

    t = (1 - label_smoothing) * onehot(label) + label_smoothing / K (Szegedy et al. 2016, as PyTorch). ``weights`` are
    those of :func:`position_weights`, of which the mean is one.
    """
    return focal(logits, labels, gamma=0.0, label_smoothing=label_smoothing, **weights)


def focal(
    logits: FloatArray, labels: LabelArray, *, gamma: float = 2.0, label_smoothing: float = 0.0, **weights: Any
) -> tuple[float, FloatArray]:
    """The loss -sum over k of t[k] * (1 - p[k])^gamma * log p[k], otherwise as the cross-entropy (Lin et al. 2017)."""
    rows, weight = _rows(logits), position_weights(labels, np.shape(logits)[1], **weights)
    classes = rows.shape[1]
    shifted = rows - rows.max(axis=1, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    p = np.exp(logarithm)
    # 1 - p, without cancellation where p is nearly 1.
    others = np.where(p > 0.5, -np.expm1(logarithm), 1.0 - p)
    targets = np.full(rows.shape, label_smoothing / classes)
    counted = weight.reshape(-1) != 0
    targets[counted, np.asarray(labels).reshape(-1)[counted]] += 1.0 - label_smoothing
    loss = -np.where(targets == 0, 0.0, targets * others**gamma * np.where(targets == 0, 0.0, logarithm)).sum(axis=1)
    # d(-(1 - p)^gamma * log p) / d log p, and d log p[k] / d z[j] = (k == j) - p[j].
    slope = -(others**gamma)
    if gamma:
        slope += gamma * np.where(others > 0, others, 1.0) ** (gamma - 1.0) * p * logarithm
    slope = np.where(targets == 0, 0.0, targets * slope)
    delta = slope - p * slope.sum(axis=1, keepdims=True)
    share = (weight / weight.sum()).reshape(-1)
    return float(loss @ share), _planes(delta * share[:, None], np.shape(logits))


def dice(
    logits: FloatArray,
    labels: LabelArray,
    *,
    smoothing: float = 1.0,
    class_weights: FloatArray | None = None,
    sample_weights: FloatArray | None = None,
    ignore: int | None = None,
) -> tuple[float, FloatArray]:
    """(N, K, ...), integer (N, ...) -> the mean over samples and classes of 1 - (2 I + s) / (U + s).

    I = sum of p * t over the positions, U = sum of p + t; s is the smoothing.
    """
    count, classes = np.shape(logits)[:2]
    z = float64(logits).reshape(count, classes, -1)
    flat = np.asarray(labels).reshape(count, 1, -1)
    counted = np.ones(flat.shape, bool) if ignore is None else flat != ignore
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    t = (flat == np.arange(classes)[:, None]) & counted
    kept = p * counted
    numerator = 2 * (kept * t).sum(axis=2, keepdims=True) + smoothing
    denominator = (kept + t).sum(axis=2, keepdims=True) + smoothing
    of_class = np.ones(classes) if class_weights is None else float64(class_weights)
    of_sample = np.ones(count) if sample_weights is None else float64(sample_weights)
    share = (of_class / of_class.sum())[None, :, None] * (of_sample / of_sample.sum())[:, None, None]
    slope = share * (numerator / denominator**2 - 2 * t / denominator) * counted
    delta = p * (slope - (p * slope).sum(axis=1, keepdims=True))
    return float((share * (1 - numerator / denominator)).sum()), delta.reshape(np.shape(logits))


def center_net(
    outputs: FloatArray, labels: FloatArray, *, size_weight: float = 0.1, offset_weight: float = 1.0
) -> tuple[float, FloatArray]:
    """(N, K + 4, H, W), boxes (N, M, 5) -> the mean over the samples of CenterNet's loss (Zhou et al. 2019)."""
    outputs, labels = float64(outputs), float64(labels)
    count, units, height, width = outputs.shape
    classes, delta, total = units - 4, np.zeros(outputs.shape), 0.0
    for own, slope, boxes in zip(outputs, delta, labels, strict=True):
        boxes = boxes[boxes[:, 0] >= 0]
        share = 1 / max(1, len(boxes)) / count
        heat = box_heat(boxes, classes, height, width)
        x, p = own[:classes], sigmoid(own[:classes])
        lacks, exceeds, rest = np.logaddexp(0, -x), np.logaddexp(0, x), (1 - heat) ** 4
        is_middle = heat == 1
        loss = np.where(is_middle, (1 - p) ** 2 * lacks, rest * p**2 * exceeds)
        missed = -((1 - p) ** 2) * (2 * p * lacks + 1 - p)
        slope[:classes] = share * np.where(is_middle, missed, rest * p**2 * (2 * (1 - p) * exceeds + p))
        total += share * float(loss.sum())
        for _, left, top, right, bottom in boxes:
            x, y = (left + right) / 2 * width, (top + bottom) / 2 * height
            row, column = min(int(y), height - 1), min(int(x), width - 1)
            wanted = np.array([(right - left) * width, (bottom - top) * height, x - column, y - row])
            weights = share * np.array([size_weight, size_weight, offset_weight, offset_weight])
            difference = own[classes:, row, column] - wanted
            total += float((weights * np.abs(difference)).sum())
            slope[classes:, row, column] += weights * np.sign(difference)
    return total, delta


def box_heat(boxes: FloatArray, classes: int, height: int, width: int) -> FloatArray:
    """(M, 5) -> (classes, height, width): peaks whose radius keeps an overlap of 0.7 (Law & Deng 2018)."""
    heat, overlap = np.zeros((classes, height, width)), 0.7
    down, across = np.mgrid[:height, :width]
    for kind, left, top, right, bottom in boxes:
        w, h = (right - left) * width, (bottom - top) * height
        # The least r above 0 of: (w-r)(h-r) = t (2wh - (w-r)(h-r)), (w-2r)(h-2r) = t wh, wh = t (w+2r)(h+2r).
        polynomials = [
            [1, -(w + h), w * h * (1 - overlap) / (1 + overlap)],
            [4, -2 * (w + h), w * h * (1 - overlap)],
            [4 * overlap, 2 * overlap * (w + h), w * h * (overlap - 1)],
        ]
        radius = min(float(root) for each in polynomials for root in np.roots(each).real if root > 0)
        deviation = (2 * radius + 1) / 6
        y, x = min(int((top + bottom) / 2 * height), height - 1), min(int((left + right) / 2 * width), width - 1)
        far = np.maximum(abs(down - y), abs(across - x))
        peak = np.exp(-((down - y) ** 2 + (across - x) ** 2) / (2 * deviation**2)) * (far <= 3 * deviation)
        heat[int(kind)] = np.maximum(heat[int(kind)], peak)
    return heat


def position_weights(
    labels: LabelArray,
    classes: int,
    *,
    class_weights: FloatArray | None = None,
    sample_weights: FloatArray | None = None,
    ignore: int | None = None,
) -> FloatArray:
    """The weight of each label: that of its class times that of its sample; 0 for the label to ignore."""
    labels = np.asarray(labels)
    counted = np.ones(labels.shape, bool) if ignore is None else labels != ignore
    of_class = np.ones(classes) if class_weights is None else float64(class_weights)
    weights = np.where(counted, of_class[np.where(counted, labels, 0)], 0.0)
    if sample_weights is not None:
        weights = weights * float64(sample_weights).reshape(-1, *[1] * (labels.ndim - 1))
    return float64(weights)


def _rows(logits: FloatArray) -> FloatArray:
    """(N, K, ...) -> the logits of each position: (positions, K)."""
    return np.moveaxis(float64(logits), 1, -1).reshape(-1, np.shape(logits)[1])


def _planes(rows: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """The inverse of :func:`_rows`."""
    return np.ascontiguousarray(np.moveaxis(rows.reshape(shape[0], *shape[2:], shape[1]), -1, 1))


def binary_cross_entropy(logits: FloatArray, targets: FloatArray) -> tuple[float, FloatArray]:
    """Two arrays of one shape -> the mean over all elements of log(1 + exp(x)) - x * t."""
    logits, targets = _pair(logits, targets)
    return _mean(np.logaddexp(0.0, logits) - logits * targets, sigmoid(logits) - targets)


def mean_squared_error(predictions: FloatArray, targets: FloatArray) -> tuple[float, FloatArray]:
    """Two arrays of one shape -> the mean over all elements of (prediction - target)^2."""
    difference = np.subtract(*_pair(predictions, targets))
    return _mean(difference**2, 2.0 * difference)


def mean_absolute_error(predictions: FloatArray, targets: FloatArray) -> tuple[float, FloatArray]:
    """Two arrays of one shape -> the mean over all elements of |prediction - target|."""
    difference = np.subtract(*_pair(predictions, targets))
    return _mean(np.abs(difference), np.sign(difference))


def expression(outputs: FloatArray, targets: FloatArray) -> tuple[float, FloatArray]:
    """Charbonnier's, sqrt(d^2 + 1/4), as :data:`blobnet.losses.expression.CHARBONNIER` says it."""
    difference = np.subtract(*_pair(outputs, targets))
    roots = np.sqrt(difference**2 + 0.25)
    return _mean(roots, difference / roots)


def huber(predictions: FloatArray, targets: FloatArray, *, delta: float = 1.0) -> tuple[float, FloatArray]:
    """Two arrays of one shape -> the mean over all elements of d^2 / 2, or delta * (|d| - delta / 2) beyond it."""
    difference = np.subtract(*_pair(predictions, targets))
    distance = np.abs(difference)
    loss = np.where(distance <= delta, difference**2 / 2, delta * (distance - delta / 2))
    return _mean(loss, np.clip(difference, -delta, delta))


def _pair(first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Two arrays of one shape, in float64."""
    if first.shape != second.shape:
        raise ValueError(f"shapes differ: {first.shape} and {second.shape}")
    return float64(first), float64(second)


def _mean(losses: FloatArray, slopes: FloatArray) -> tuple[float, FloatArray]:
    """The mean of a loss of each element, and its derivative."""
    return float(losses.mean()), float64(slopes / slopes.size)
