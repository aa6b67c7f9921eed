"""Philox4x32-10 (Salmon et al. 2011, *Parallel random numbers: as easy as 1, 2, 3*)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WordArray = npt.NDArray[np.uint32]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counter: WordArray, key: WordArray, rounds: int = 10) -> WordArray:
    """(..., 4) and (..., 2) uint32, whose leading axes broadcast -> (..., 4) uint32.

    A round of section 3.3, with hi/lo the halves of a 32x32-bit product:
    (c0, c1, c2, c3) <- (hi(M1*c2) ^ c1 ^ k0,  lo(M1*c2),  hi(M0*c0) ^ c3 ^ k1,  lo(M0*c0)); between two rounds the key
    is increased by the Weyl constants.
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, dtype=np.uint32).astype(np.uint64), -1, 0)
    k0, k1 = np.moveaxis(np.asarray(key, dtype=np.uint32).astype(np.uint64), -1, 0)
    for number in range(rounds):
        if number > 0:
            k0, k1 = (k0 + np.uint64(_WEYL[0])) & _LOW, (k1 + np.uint64(_WEYL[1])) & _LOW
        first, second = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (second >> _SHIFT) ^ c1 ^ k0, second & _LOW, (first >> _SHIFT) ^ c3 ^ k1, first & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)
