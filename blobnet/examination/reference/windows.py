"""Windows that slide over padded planes: what convolution and pooling share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from blobnet.examination.reference.arrays import FloatArray, float64

Pair = tuple[int, int]
Sides = tuple[Pair, Pair]
"""((top, bottom), (left, right))."""

NO_PADDING: Sides = ((0, 0), (0, 0))


def pad(x: FloatArray, padding: Sides, value: float = 0.0) -> FloatArray:
    """``x`` (N, C, H, W) with ``value`` around every plane."""
    return float64(np.pad(float64(x), ((0, 0), (0, 0), *padding), constant_values=value))


def crop(padded: FloatArray, padding: Sides) -> FloatArray:
    """The inverse of :func:`pad`: the planes without what was put around them."""
    (top, bottom), (left, right) = padding
    height, width = padded.shape[2:]
    return float64(padded[:, :, top : height - bottom, left : width - right].copy())


def output_size(padded_size: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """Windows along one axis: floor((H + P0 + P1 - D(K-1) - 1) / S) + 1, where H + P0 + P1 is ``padded_size``."""
    size = (padded_size - dilation * (kernel - 1) - 1) // stride + 1
    if size < 1:
        raise ValueError(f"no window of {kernel} taps (dilation {dilation}) fits into {padded_size} cells")
    return size


def taps(
    padded_shape: tuple[int, ...], kernel: Pair, stride: Pair, dilation: Pair = (1, 1)
) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
    """(v, u, where) for each tap in row-major order; ``padded[where]`` is what the tap reads, (N, C, Ho, Wo)."""
    output_height = output_size(padded_shape[2], kernel[0], stride[0], dilation[0])
    output_width = output_size(padded_shape[3], kernel[1], stride[1], dilation[1])
    for v in range(kernel[0]):
        for u in range(kernel[1]):
            y, x = v * dilation[0], u * dilation[1]
            rows = slice(y, y + (output_height - 1) * stride[0] + 1, stride[0])
            columns = slice(x, x + (output_width - 1) * stride[1] + 1, stride[1])
            yield v, u, (slice(None), slice(None), rows, columns)
