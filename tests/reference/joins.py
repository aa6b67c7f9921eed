"""Layers that join or reshape blobs without arithmetic of their own (global average pool: see pooling)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blobnet.examination.reference.arrays import FloatArray, float64


def add(inputs: Sequence[FloatArray]) -> FloatArray:
    """Arrays of one shape, or repeated along axes of size 1 -> their sum."""
    return float64(sum(float64(item) for item in inputs))


def add_backward(inputs: Sequence[FloatArray], delta: FloatArray) -> list[FloatArray]:
    """Every input gets ``delta`` as it is."""
    return [float64(delta).copy() for _ in inputs]


def concat(inputs: Sequence[FloatArray]) -> FloatArray:
    """(N, C_i, H, W) for each i -> (N, sum of C_i, H, W), in the order given."""
    return np.concatenate([float64(item) for item in inputs], axis=1)


def concat_backward(inputs: Sequence[FloatArray], delta: FloatArray) -> list[FloatArray]:
    """Every input gets its own units of ``delta``."""
    ends = np.cumsum([item.shape[1] for item in inputs])
    return [piece.copy() for piece in np.split(float64(delta), ends[:-1], axis=1)]


def flatten(x: FloatArray) -> FloatArray:
    """(N, C, H, W) -> (N, C*H*W) in C order."""
    return float64(x.reshape(x.shape[0], -1).copy())


def flatten_backward(x: FloatArray, delta: FloatArray) -> FloatArray:
    """``delta`` (N, C*H*W) -> dx in the shape of x."""
    return float64(delta.reshape(x.shape).copy())
