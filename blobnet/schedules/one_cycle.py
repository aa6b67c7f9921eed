"""The schedule OneCycle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from blobnet.errors import OptionError
from blobnet.schedules.base import Schedule


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Half a cosine up to the rate, then half a cosine down to almost 0 (Smith and Topin, *Super-convergence*, 2019).

    PyTorch's OneCycleLR without its third phase. With T = epochs * steps_per_epoch and R = rise * T - 1, the rate goes
    from rate / div_factor in the first step to the rate in step R, and to rate / div_factor / final_div_factor in the
    last one. Momentum does not cycle.

    Args:
        rate: the highest learning rate.
        rise: the part of the training in which it rises, from 0 to below 1.
        div_factor: the rate is so many times that of the first step.
        final_div_factor: the rate of the first step is so many times that of the last one.

    Raises:
        OptionError: a negative rate or part, a factor that is not above 0, or a rise that never ends.
    """

    rate: float
    rise: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    depends_on_epochs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check("rate", least=0)
        self._check("rise", least=0)
        self._check("div_factor", above=0)
        self._check("final_div_factor", above=0)
        if self.rise >= 1:
            raise OptionError("OneCycle", "rise must be below 1", rise=self.rise)

    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        first = self.rate / self.div_factor
        last_step = epochs * steps_per_epoch - 1
        top = self.rise * (last_step + 1) - 1
        if step <= top:
            begin, end, part = first, self.rate, step / top if top > 0 else 1.0
        else:
            begin, end = self.rate, first / self.final_div_factor
            part = min(1.0, (step - top) / max(last_step - top, 1e-9))
        return float(end + (begin - end) * (1.0 + math.cos(math.pi * part)) / 2.0)
