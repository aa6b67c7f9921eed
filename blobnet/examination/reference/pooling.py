"""Pooling over windows, and over whole planes.

Overlapping windows (stride < kernel), gaps (stride > kernel) and asymmetric padding are all the same code.
"""

from __future__ import annotations

import numpy as np

from blobnet.examination.reference.arrays import FloatArray, float64
from blobnet.examination.reference.windows import NO_PADDING, Pair, Sides, crop, pad, taps


def max_pool2d(x: FloatArray, kernel: Pair, stride: Pair, padding: Sides = NO_PADDING) -> FloatArray:
    """(N, C, H, W) -> (N, C, Ho, Wo). Padding never wins; a window of nothing but padding gives -inf."""
    padded = pad(x, padding, -np.inf)
    return float64(np.max([padded[where] for _, _, where in taps(padded.shape, kernel, stride)], axis=0))


def max_pool2d_backward(
    x: FloatArray, delta: FloatArray, kernel: Pair, stride: Pair, padding: Sides = NO_PADDING
) -> FloatArray:
    """``delta`` (N, C, Ho, Wo) -> dx; the first maximum of a window in row-major order takes all (as PyTorch)."""
    padded = pad(x, padding, -np.inf)
    windows = np.stack([padded[where] for _, _, where in taps(padded.shape, kernel, stride)])
    winner = windows.argmax(axis=0)
    padded_delta = np.zeros_like(padded)
    for tap, (_, _, where) in enumerate(taps(padded.shape, kernel, stride)):
        padded_delta[where] += np.where(winner == tap, float64(delta), 0.0)
    return crop(padded_delta, padding)


def avg_pool2d(
    x: FloatArray, kernel: Pair, stride: Pair, padding: Sides = NO_PADDING, *, count_include_pad: bool = True
) -> FloatArray:
    """(N, C, H, W) -> (N, C, Ho, Wo): the sum over the window, divided by its area (``count_include_pad``) or by the
    number of its cells that are data (0 data cells give 0).
    """
    padded = pad(x, padding)
    total = np.sum([padded[where] for _, _, where in taps(padded.shape, kernel, stride)], axis=0)
    return float64(total / _divisor(x, kernel, stride, padding, count_include_pad))


def avg_pool2d_backward(
    x: FloatArray,
    delta: FloatArray,
    kernel: Pair,
    stride: Pair,
    padding: Sides = NO_PADDING,
    *,
    count_include_pad: bool = True,
) -> FloatArray:
    """``delta`` (N, C, Ho, Wo) -> dx in the shape of x."""
    share = float64(delta) / _divisor(x, kernel, stride, padding, count_include_pad)
    padded_delta = np.zeros_like(pad(x, padding))
    for _, _, where in taps(padded_delta.shape, kernel, stride):
        padded_delta[where] += share
    return crop(padded_delta, padding)


def global_average_pool(x: FloatArray) -> FloatArray:
    """(N, C, any axes) -> (N, C): the mean of every plane."""
    return float64(float64(x).reshape(*x.shape[:2], -1).mean(axis=2))


def global_average_pool_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """``delta`` (N, C) -> dx: every cell of a plane gets the same share."""
    planes = float64(delta).reshape(*x.shape[:2], *(1 for _ in x.shape[2:]))
    return float64(np.broadcast_to(planes / np.prod(x.shape[2:]), x.shape).copy())


def _divisor(x: FloatArray, kernel: Pair, stride: Pair, padding: Sides, count_include_pad: bool) -> FloatArray:
    """Return the divisor of the sum of every window, broadcastable to (N, C, Ho, Wo)."""
    if count_include_pad:
        return np.full((1, 1, 1, 1), float(kernel[0] * kernel[1]))
    data = pad(np.ones((1, 1, *x.shape[2:])), padding)
    count = np.sum([data[where] for _, _, where in taps(data.shape, kernel, stride)], axis=0)
    return float64(np.maximum(count, 1.0))
