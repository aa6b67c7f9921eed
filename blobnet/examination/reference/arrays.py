"""The type that all references compute in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def float64(values: npt.ArrayLike) -> FloatArray:
    """``values`` in float64, so that references given float32 data do not round to float32."""
    return np.asarray(values, dtype=np.float64)
