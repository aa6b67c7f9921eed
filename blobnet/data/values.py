"""Arrays of numbers as users give them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError, ShapeError
from blobnet.memory.blob import FloatArray


def all_finite(values: FloatArray) -> bool:
    """Return True if all numbers of a float32 array are finite: their float64 sum is then finite too.

    NOTE: that needs no memory for an answer for each, which takes longer to get than all the rest.
    """
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(values.sum(dtype=np.float64)))


def as_float32(values: npt.ArrayLike, subject: str) -> FloatArray:
    """A new array of real numbers.

    Raises:
        OptionError: there is something else in it, or under a mask.
        ShapeError: its rows differ in length.
    """
    if np.ma.is_masked(values):
        hint = "fill the masked values in: values.filled(value)."
        raise OptionError(subject, "the values must go without a mask, which would be ignored", hint=hint)
    try:
        with np.errstate(over="ignore"):
            array: FloatArray = np.array(values, np.float32)
    except (TypeError, ValueError) as error:
        is_ragged = "inhomogeneous" in str(error)
        kind = ShapeError if is_ragged else OptionError
        raise kind(subject, "the values must be an array of numbers", cause=error, received=repr(values)) from error
    return array
