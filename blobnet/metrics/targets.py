"""Metrics of numbers."""

from __future__ import annotations

import math

import numpy as np

from blobnet.metrics.classes import _quotient
from blobnet.metrics.types import Labels, Scores, metric


@metric("targets", falls=True)
def mae(targets: Labels, outputs: Scores) -> float:
    """The mean absolute error."""
    return float(np.abs(outputs - targets).mean())


@metric("targets", falls=True)
def rmse(targets: Labels, outputs: Scores) -> float:
    """The square root of the mean squared error."""
    return math.sqrt(float(np.square(outputs - targets).mean()))


@metric("targets")
def r2(targets: Labels, outputs: Scores) -> float:
    """The coefficient of determination, ``1 - sum((y - f)^2) / sum((y - mean(y))^2)``, the mean over the outputs.

    An output whose targets are all the same has none: NaN.
    """
    spread = np.square(targets - targets.mean(axis=0)).sum(axis=0)
    residual = np.square(targets - outputs).sum(axis=0)
    return float(np.mean(np.where(spread > 0, 1.0 - _quotient(residual, spread), math.nan)))
