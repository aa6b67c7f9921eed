"""The schedule Custom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blobnet.errors import FileError, OptionError
from blobnet.schedules.base import _Warmed
from blobnet.support.checks import check_number


@dataclass(frozen=True)
class Custom(_Warmed):
    """A function of the step: ``rate(step)``, steps counted from 0; what optimizers make of a function.

    A file keeps its name alone: who resumes gives the optimizer again.

    Args:
        function: takes the step, returns the learning rate.
        warmup_epochs: epochs, or parts of one, in which the rates rise to those.

    Raises:
        OptionError: (at a step) it returns anything but a number of at least 0.
    """

    function: Callable[[int], float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise OptionError(
                "Custom", "function must take a step and return its learning rate", function=self.function
            )

    @property
    def depends_on_steps(self) -> bool:
        return self.warmup_epochs > 0

    def _rate(self, step: int, steps_per_epoch: int) -> float:
        rate = self.function(step)
        check_number(f"learning rate of step {step}", "rate", rate, least=0)
        return float(rate)

    def config(self) -> dict[str, Any]:
        return super().config() | {"function": getattr(self.function, "__qualname__", type(self.function).__name__)}

    @classmethod
    def _from_config(cls, config: dict[str, Any], subject: str) -> Custom:
        hint = "give fit the optimizer again."
        raise FileError(
            subject, "a file cannot hold the function of a schedule", function=config["function"], hint=hint
        )
