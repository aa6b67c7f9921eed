"""Checks of single values that users give: whole numbers, numbers, lists in place of arrays."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

from blobnet.errors import OptionError

#: The largest count of samples, steps or units: what an int of OpenCL holds.
LARGEST_COUNT = 2**31 - 1


def plain(value: Any) -> Any:
    """A hyperparameter with tuples in place of lists and arrays, and Python's numbers in place of NumPy's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(plain(item) for item in value) if isinstance(value, list | tuple) else value


def is_int(value: object, minimum: int) -> bool:
    """Return True if ``value`` is a whole number of at least ``minimum``, Python's or NumPy's, and no bool."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= minimum  # type: ignore[arg-type]
    except TypeError:
        return False


def check_count(subject: str, name: str, value: Any) -> int:
    """``value`` as Python's int; OptionError unless it is a whole number of at least 1, as kernels have them."""
    if not is_int(value, 1):
        received = {name: repr(value)}  # So that '3' is no 3.
        raise OptionError(subject, f"{name} must be an int of at least 1", **received)
    if value > LARGEST_COUNT:
        raise OptionError(subject, f"{name} must be at most {LARGEST_COUNT}", **{name: value})
    return operator.index(value)


#: The largest float32.
_LARGEST = (2 - 2.0**-23) * 2.0**127


def check_number(
    subject: str,
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raises OptionError unless ``value`` is a number that float32 can hold, within the limits given."""
    limits = {"of at least": least, "above": above, "below": below}
    listed = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
    rule = f"{name} must be a finite number {listed}".rstrip()
    number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    low = (least is None or number >= least) and (above is None or number > above)
    if not (low and (below is None or number < below) and abs(number) <= _LARGEST):
        received: dict[str, Any] = {name: repr(value) if isinstance(value, str) else value}
        raise OptionError(subject, rule, **received)
