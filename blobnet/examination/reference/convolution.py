"""Convolution as deep learning has it (cross-correlation), summed tap by tap.

    y[n, o, y, x] = bias + sum over i, v, u of  weight[o, i, v, u] * x[n, i, y*S + v*D - P0, x*S + u*D - P0]

where i runs over the inputs of o's group (Dumoulin and Visin 2016, *A guide to convolution arithmetic*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blobnet.examination.reference.arrays import FloatArray, float64
from blobnet.examination.reference.windows import NO_PADDING, Pair, Sides, crop, pad, taps


@dataclass(frozen=True)
class Windows:
    """The cells that filters see: S, P0 and P1, D, and the groups."""

    stride: Pair = (1, 1)
    padding: Sides = NO_PADDING
    dilation: Pair = (1, 1)
    groups: int = 1


def conv2d(
    x: FloatArray,
    weight: FloatArray,
    bias: FloatArray | None = None,
    windows: Windows = Windows(),
) -> FloatArray:
    """(N, C, H, W), (O, C/groups, KH, KW), bias None, (O,) or (O, Ho, Wo) -> (N, O, Ho, Wo)."""
    groups = windows.groups
    _check_groups(x, weight, groups)
    padded = pad(x, windows.padding)
    filters = _grouped_filters(weight, groups)
    total: FloatArray | None = None
    for v, u, where in taps(padded.shape, _kernel(weight), windows.stride, windows.dilation):
        window = _grouped_planes(padded[where], groups)
        term = np.einsum("ngiyx,goi->ngoyx", window, filters[..., v, u])
        total = term if total is None else total + term
    assert total is not None
    y = total.reshape(total.shape[0], weight.shape[0], *total.shape[3:])
    if bias is None:
        return y
    return y + (bias[:, None, None] if bias.ndim == 1 else bias)


def conv2d_backward(
    x: FloatArray,
    weight: FloatArray,
    bias: FloatArray | None,
    delta: FloatArray,
    windows: Windows = Windows(),
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """``delta`` (N, O, Ho, Wo) -> (dx, dweight, dbias), each in the shape of what it belongs to."""
    groups = windows.groups
    _check_groups(x, weight, groups)
    padded = pad(x, windows.padding)
    filters = _grouped_filters(weight, groups)
    deltas = _grouped_planes(float64(delta), groups)
    padded_delta = np.zeros_like(padded)
    filter_gradient = np.zeros_like(filters)
    for v, u, where in taps(padded.shape, _kernel(weight), windows.stride, windows.dilation):
        window = _grouped_planes(padded[where], groups)
        filter_gradient[..., v, u] = np.einsum("ngiyx,ngoyx->goi", window, deltas)
        spread = np.einsum("ngoyx,goi->ngiyx", deltas, filters[..., v, u])
        padded_delta[where] += spread.reshape(padded[where].shape)
    bias_gradient = None
    if bias is not None:
        bias_gradient = float64(float64(delta).sum(axis=(0, 2, 3) if bias.ndim == 1 else 0))
    return crop(padded_delta, windows.padding), filter_gradient.reshape(weight.shape), bias_gradient


def _kernel(weight: FloatArray) -> Pair:
    return weight.shape[2], weight.shape[3]


def _grouped_filters(weight: FloatArray, groups: int) -> FloatArray:
    """(O, I, KH, KW) as (groups, O/groups, I, KH, KW)."""
    return float64(weight).reshape(groups, weight.shape[0] // groups, *weight.shape[1:])


def _grouped_planes(planes: FloatArray, groups: int) -> FloatArray:
    """(N, C, H, W) as (N, groups, C/groups, H, W)."""
    return planes.reshape(planes.shape[0], groups, planes.shape[1] // groups, *planes.shape[2:])


def _check_groups(x: FloatArray, weight: FloatArray, groups: int) -> None:
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ValueError(f"{groups} groups do not fit x {x.shape} and weight {weight.shape}")
