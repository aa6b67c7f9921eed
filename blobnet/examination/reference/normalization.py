"""Batch normalization (Ioffe and Szegedy 2015), as PyTorch has it.

    y = scale * (x - mean) / sqrt(variance + epsilon) + shift        for each unit (axis 1)

Training uses the batch's mean and population variance (divided by M, the values of a unit in the batch). The running
statistics move by ``momentum`` towards the batch's, whose variance is there divided by M - 1 (by 1 if M is 1, where the
variance is 0): running = (1 - momentum) * running + momentum * batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from blobnet.examination.reference.arrays import FloatArray, float64


class Numbers(NamedTuple):
    """The hyperparameters of a batch norm."""

    momentum: float = 0.1
    epsilon: float = 1e-5


_USUAL = Numbers()


def batch_norm_training(
    x: FloatArray,
    scale: FloatArray,
    shift: FloatArray,
    running_mean: FloatArray,
    running_variance: FloatArray,
    numbers: Numbers = _USUAL,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(N, C, any axes) and four (C,) -> (y, new running mean, new running variance)."""
    mean, variance = _statistics(x)
    count = x.size // x.shape[1]
    unbiased = variance * count / max(count - 1, 1)
    momentum = numbers.momentum
    return (
        batch_norm_inference(x, scale, shift, mean, variance, epsilon=numbers.epsilon),
        (1.0 - momentum) * float64(running_mean) + momentum * mean,
        (1.0 - momentum) * float64(running_variance) + momentum * unbiased,
    )


def batch_norm_inference(
    x: FloatArray,
    scale: FloatArray,
    shift: FloatArray,
    running_mean: FloatArray,
    running_variance: FloatArray,
    *,
    epsilon: float = 1e-5,
) -> FloatArray:
    """(N, C, any axes) and four (C,) -> y, with the statistics given."""
    normalized = (float64(x) - _unit(running_mean, x)) / np.sqrt(_unit(running_variance, x) + epsilon)
    return _unit(scale, x) * normalized + _unit(shift, x)


def batch_norm_backward(
    x: FloatArray, scale: FloatArray, delta: FloatArray, *, epsilon: float = 1e-5
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``delta`` in the shape of x -> (dx, dscale, dshift) of the training form.

    The batch's statistics depend on x:

        dx = scale / sqrt(variance + epsilon) * (delta - mean(delta) - normalized * mean(delta * normalized))
    """
    x, scale, delta = float64(x), float64(scale), float64(delta)
    mean, variance = _statistics(x)
    deviation = np.sqrt(variance + epsilon)
    normalized = (x - _unit(mean, x)) / _unit(deviation, x)
    axes = _axes(x)
    centred = delta - _unit(delta.mean(axis=axes), x) - normalized * _unit((delta * normalized).mean(axis=axes), x)
    return _unit(scale / deviation, x) * centred, (delta * normalized).sum(axis=axes), delta.sum(axis=axes)


def _axes(x: FloatArray) -> tuple[int, ...]:
    """All axes but the units'."""
    return tuple(axis for axis in range(x.ndim) if axis != 1)


def _statistics(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(mean, population variance) of every unit."""
    x = float64(x)
    return float64(x.mean(axis=_axes(x))), float64(x.var(axis=_axes(x)))


def _unit(values: FloatArray, x: FloatArray) -> FloatArray:
    """(C,) so that it broadcasts over x (N, C, any axes)."""
    return float64(values).reshape(1, -1, *(1 for _ in x.shape[2:]))
