"""The types that metrics take and return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[Any]
Scores = npt.NDArray[np.float64]
Metric = Callable[[Labels, Scores], float]
