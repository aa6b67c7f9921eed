"""The schedule Step."""

from __future__ import annotations

from dataclasses import dataclass

from blobnet.schedules.base import _Warmed
from blobnet.support.checks import check_count


@dataclass(frozen=True)
class Step(_Warmed):
    """rate * factor^floor(epoch / every_epochs): the rate is multiplied by ``factor`` every few epochs.

    Args:
        rate: the learning rate of the first epochs.
        every_epochs: epochs between two changes.
        factor: what a change multiplies by.
        warmup_epochs: epochs, or parts of one, in which the rate first rises to that; they count as others do.

    Raises:
        OptionError: a negative rate, a factor that is not above 0, or less than one epoch.
    """

    rate: float
    every_epochs: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("rate", least=0)
        self._check("factor", above=0)
        check_count("Step", "every_epochs", self.every_epochs)

    def _rate(self, step: int, steps_per_epoch: int) -> float:
        return float(self.rate * self.factor ** (step // (self.every_epochs * steps_per_epoch)))
