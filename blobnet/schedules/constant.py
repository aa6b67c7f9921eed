"""The schedule Constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from blobnet.schedules.base import Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """The same rate in every step.

    Args:
        rate: the learning rate.

    Raises:
        OptionError: the rate is negative.
    """

    rate: float
    depends_on_steps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check("rate", least=0)

    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        return float(self.rate)
