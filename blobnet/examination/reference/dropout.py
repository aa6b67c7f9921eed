"""Inverted dropout (Srivastava et al. 2014) with a mask that Philox computes from where and when it is."""

from __future__ import annotations

import numpy as np

from blobnet.examination.reference.arrays import FloatArray
from blobnet.examination.reference.philox import philox4x32


def dropout_threshold(rate: float) -> int:
    """min(2^32 - 1, round(rate * 2^32)): a random word at or above it keeps its value."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"rate must be in [0, 1), not {rate}")
    return min(2**32 - 1, round(rate * 2**32))


def dropout_mask(seed: int, step: int, ordinal: int, count: int, elements: int, rate: float) -> FloatArray:
    """(count, elements) of 0 or 1 / (1 - rate); element e of a sample is e = (z*H + y)*W + x.

    Element e of sample n uses word e % 4 of philox4x32(counter=(e // 4, n, ordinal, step), key=(seed low, seed high)).
    """
    threshold = dropout_threshold(rate)
    blocks = -(-elements // 4)
    counter = np.zeros((count, blocks, 4), dtype=np.uint32)
    counter[..., 0] = np.arange(blocks)
    counter[..., 1] = np.arange(count)[:, None]
    counter[..., 2] = ordinal
    counter[..., 3] = step
    key = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], dtype=np.uint32)
    words = philox4x32(counter, key).reshape(count, -1)[:, :elements]
    return np.where(words >= np.uint32(threshold), 1.0 / (1.0 - rate), 0.0)
