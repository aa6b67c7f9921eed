"""The schedule Cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from blobnet.schedules.base import Schedule


@dataclass(frozen=True)
class Cosine(Schedule):
    """A linear warm-up, then half a cosine down to ``final_rate`` in the last step.

    With W = round(warmup_epochs * steps_per_epoch) and T = epochs * steps_per_epoch, the rate of step t is

        t < W:  rate * (t + 1) / W
        else:   final_rate + (rate - final_rate) * (1 + cos(pi * p)) / 2,   p = min(1, (t - W) / max(1, T - 1 - W))

    Loshchilov and Hutter, *SGDR*, 2017 (cosine); Goyal et al., *Accurate, Large Minibatch SGD*, 2017 (warm-up).

    Args:
        rate: the highest learning rate.
        warmup_epochs: length of the warm-up; parts of an epoch are allowed.
        final_rate: the learning rate of the last step, and of any after it.

    Raises:
        OptionError: a negative rate or length.
    """

    rate: float
    warmup_epochs: float = 0.0
    final_rate: float = 0.0
    depends_on_epochs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("rate", "warmup_epochs", "final_rate"):
            self._check(name, least=0)

    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return float(self.rate * ((step + 1) / warmup))
        progress = min(1.0, (step - warmup) / max(1, epochs * steps_per_epoch - 1 - warmup))
        return float(self.final_rate + (self.rate - self.final_rate) * self._left(progress))

    @staticmethod
    def _left(progress: float) -> float:
        """The part of the way down that is left behind a part of the steps."""
        return (1.0 + math.cos(math.pi * progress)) / 2.0
