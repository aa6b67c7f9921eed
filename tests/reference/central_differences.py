"""Derivatives from values alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blobnet.examination.reference.arrays import FloatArray


def numerical_gradient(function: Callable[[FloatArray], float], array: FloatArray, step: float = 1e-5) -> FloatArray:
    """(f(a + step) - f(a - step)) / (2 * step) for every value of the float64 ``array``, in its shape.

    The error is about step^2 * f''' / 6 + 1e-16 * f / step: with 1e-5, some 1e-10 for smooth functions of size 1.
    ``array`` is as it was afterwards.
    """
    if array.dtype != np.float64:
        raise TypeError(f"central differences need float64, not {array.dtype}")
    gradient = np.empty_like(array)
    for index in np.ndindex(array.shape):
        value = array[index]
        array[index] = value + step
        above = function(array)
        array[index] = value - step
        below = function(array)
        array[index] = value
        gradient[index] = (above - below) / (2.0 * step)
    return gradient
