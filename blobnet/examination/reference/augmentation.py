"""Augmentation of samples by rows, cell by cell."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
_GRAY = (0.299, 0.587, 0.114)


def augmented(
    samples: npt.NDArray[np.generic], rows: npt.NDArray[np.float32], mean: Float64Array, deviation: Float64Array
) -> Float64Array:
    """(N, units, height, width), changed as rows of 19 say (kernels/input/augmented.cl), and normalised."""
    changed = _changed(samples, rows, mean, deviation)
    output: Float64Array = changed.copy()
    for n, (top, left, bottom, right) in enumerate(rows[:, 14:18].astype(int)):
        cells = np.s_[:, top:bottom, left:right]
        other, part = changed[(n + 1) % len(samples)], float(rows[n, 18])
        output[n][cells] = (1 - part) * changed[n][cells] + part * other[cells]
    return output


def _changed(
    samples: npt.NDArray[np.generic], rows: npt.NDArray[np.float32], mean: Float64Array, deviation: Float64Array
) -> Float64Array:
    """Each sample by itself."""
    _, units, height, width = samples.shape
    output: Float64Array = np.zeros(samples.shape)
    for n, y, x in np.ndindex(len(samples), height, width):
        map_y, map_x, erased, colours, _ = np.split(rows[n].astype(np.float64), [3, 6, 10, 14])
        own, gray, of_mean, of_gray_mean = colours
        from_y, from_x = map_y @ [y, x, 1], map_x @ [y, x, 1]
        top, left, bottom, right = erased
        is_outside = not (-0.5 <= from_y <= height - 0.5 and -0.5 <= from_x <= width - 0.5)
        if is_outside or (top <= y < bottom and left <= x < right):
            continue
        value = _between_cells(samples[n].astype(np.float64), from_y, from_x)
        changed = own * value + of_mean * mean
        if units == 3:
            changed += gray * (value @ _GRAY) + of_gray_mean * (mean @ _GRAY)
        output[n, :, y, x] = (changed - mean) / deviation
    return output


def _between_cells(sample: Float64Array, y: float, x: float) -> Float64Array:
    """The four cells around a position, each with the share that it has in it; at an edge the last cell goes on."""
    _, height, width = sample.shape
    value = np.zeros(len(sample))
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            share = (1 - abs(y - row)) * (1 - abs(x - column))
            value += share * sample[:, min(max(row, 0), height - 1), min(max(column, 0), width - 1)]
    return value
