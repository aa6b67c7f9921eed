"""Comparison of arrays that says where and by how much they differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def assert_close(
    actual: npt.ArrayLike, expected: npt.ArrayLike, *, relative: float, absolute: float, what: str
) -> None:
    """Asserts |actual - expected| <= absolute + relative * |expected| in every cell of two floating-point arrays.

    Infinities match only themselves. Both may be of any floating-point type and shape (scalars too), but the shapes
    must be equal; nothing broadcasts.

    Raises:
        AssertionError: starts with ``what``; names the number of cells that differ, the first of them ((n, z, y, x) for
            four axes), both its values, and the maximum of |actual - expected| / max(|expected|, absolute).
    """
    __tracebackhide__ = True
    actual, expected = np.asarray(actual), np.asarray(expected)
    for side, array in (("actual", actual), ("expected", expected)):
        if not np.issubdtype(array.dtype, np.floating):
            raise AssertionError(f"{what}: {side} must be floating-point, not {array.dtype}")
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shapes differ: actual {actual.shape}, expected {expected.shape}")
    if actual.size == 0:
        raise AssertionError(f"{what}: there is nothing to compare, both arrays are empty {actual.shape}")
    first, second = actual.astype(np.float64), expected.astype(np.float64)
    for side, array in (("actual", first), ("expected", second)):
        bad = np.isnan(array)
        if bad.any():
            cells = f"{int(bad.sum())} of {array.size} cells"
            raise AssertionError(f"{what}: {side} is NaN in {cells}, first at {_first(bad)}")

    finite = np.isfinite(first) & np.isfinite(second)
    difference = np.zeros(first.shape)
    np.subtract(first, second, out=difference, where=finite)
    difference = np.where(finite | (first == second), np.abs(difference), np.inf)
    size = np.where(np.isfinite(second), np.abs(second), 0.0)
    wrong = difference > absolute + relative * size
    if not wrong.any():
        return
    scale = np.maximum(size, absolute)
    error = np.where(difference > 0.0, np.inf, 0.0)
    np.divide(difference, scale, out=error, where=scale > 0.0)
    place = tuple(np.argwhere(wrong)[0])
    raise AssertionError(
        f"{what}: {int(wrong.sum())} of {wrong.size} cells differ (relative {relative:g}, absolute {absolute:g}), "
        f"first at {_first(wrong)}: actual {first[place]:.9g}, expected {second[place]:.9g}; "
        f"maximum relative error {error.max():.3g} at {_first(error == error.max())}, "
        f"maximum absolute error {difference.max():.3g}"
    )


def _first(mask: npt.NDArray[np.bool_]) -> str:
    """The first True, as text."""
    index = ", ".join(str(position) for position in np.argwhere(mask)[0])
    return f"(n, z, y, x) = ({index})" if mask.ndim == 4 else f"index ({index})"
