"""The types that metrics take and return, and the metrics that go by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[Any]
Scores = npt.NDArray[np.float64]
Metric = Callable[[Labels, Scores], float]


@dataclass(frozen=True)
class Named:
    """A metric that goes by its name.

    Attributes:
        function: the metric.
        labels: what it is for, of ``classes``, ``targets`` and ``boxes``.
        falls: whether less is better.
    """

    function: Metric
    labels: tuple[Literal["classes", "targets", "boxes"], ...]
    falls: bool


#: Metrics by their names.
METRICS: dict[str, Named] = {}


def metric(*labels: Literal["classes", "targets", "boxes"], falls: bool = False) -> Callable[[Metric], Metric]:
    """Have a function go by its name in ``fit(metrics=...)`` and ``evaluate(metrics=...)``.

    Args:
        labels: what it is for: ``classes``, ``targets`` or both; or ``boxes``.
        falls: whether less is better.
    """

    def register(function: Metric) -> Metric:
        METRICS[function.__name__] = Named(function, labels, falls)
        return function

    return register
