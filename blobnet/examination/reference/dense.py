"""The fully connected layer: y[n, o] = bias[o] + sum over i of weight[o, i] * x[n, i]."""

from __future__ import annotations

from blobnet.examination.reference.arrays import FloatArray, float64


def dense(x: FloatArray, weight: FloatArray, bias: FloatArray | None = None) -> FloatArray:
    """(N, any axes), flattened to (N, I) in C order; (O, I); (O,) or None -> (N, O)."""
    y = float64(float64(x).reshape(x.shape[0], -1) @ float64(weight).T)
    return y if bias is None else y + bias


def dense_backward(
    x: FloatArray, weight: FloatArray, bias: FloatArray | None, delta: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """``delta`` (N, O) -> (dx in the shape of x, dweight (O, I), dbias (O,) or None)."""
    delta = float64(delta)
    flat = float64(x).reshape(x.shape[0], -1)
    bias_gradient = None if bias is None else delta.sum(axis=0)
    return (delta @ float64(weight)).reshape(x.shape), delta.T @ flat, bias_gradient
