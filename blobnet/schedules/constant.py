"""The schedule Constant."""

from __future__ import annotations

from dataclasses import dataclass

from blobnet.schedules.base import _Warmed


@dataclass(frozen=True)
class Constant(_Warmed):
    """The same rate in every step.

    Args:
        rate: the learning rate.
        warmup_epochs: epochs, or parts of one, in which the rate rises to that.

    Raises:
        OptionError: a negative rate or length.
    """

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("rate", least=0)

    @property
    def depends_on_steps(self) -> bool:
        return self.warmup_epochs > 0

    def _rate(self, step: int, steps_per_epoch: int) -> float:
        return float(self.rate)
