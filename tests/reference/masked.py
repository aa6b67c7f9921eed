"""Dropout by a mask, which :mod:`blobnet.examination.reference.dropout` draws."""

from __future__ import annotations

from blobnet.examination.reference.arrays import FloatArray, float64


def dropout(x: FloatArray, mask: FloatArray) -> FloatArray:
    """(N, any axes) times its mask (N, elements), in the shape of x."""
    return float64(x) * mask.reshape(x.shape)


def dropout_backward(x: FloatArray, mask: FloatArray, delta: FloatArray) -> FloatArray:
    """``delta`` in the shape of x -> dx: the same mask again."""
    return float64(delta) * mask.reshape(x.shape)
