"""The base of schedules."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from blobnet.support.checks import check_number
from blobnet.support.kinds import Kind


@dataclass(frozen=True)
class Schedule(Kind):
    """Base of all schedules."""

    kinds: ClassVar[dict[str, type[Schedule]]] = {}
    noun: ClassVar[str] = "learning rate's schedule"
    #: True if the rates depend on the number of epochs, so that a resumed training must plan the same.
    depends_on_epochs: ClassVar[bool] = False

    @property
    def depends_on_steps(self) -> bool:
        """True if they depend on the number of steps of an epoch."""
        return True

    @abstractmethod
    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The learning rate of a step, in a training of ``epochs`` epochs."""

    def _check(self, name: str, *, least: float | None = None, above: float | None = None) -> None:
        check_number(type(self).__name__, name, getattr(self, name), least=least, above=above)


@dataclass(frozen=True)
class _Warmed(Schedule):
    """The base of schedules that have no warm-up of their own: in the first W = round(warmup_epochs * steps_per_epoch)
    steps, the rate of step t is times (t + 1) / W.
    """

    warmup_epochs: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        self._check("warmup_epochs", least=0)

    def config(self) -> dict[str, Any]:
        # NOTE: files were written before there was one.
        return {name: value for name, value in super().config().items() if name != "warmup_epochs" or value}

    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        warmup = round(self.warmup_epochs * steps_per_epoch) if self.warmup_epochs else 0
        return self._rate(step, steps_per_epoch) * min(1.0, (step + 1) / max(1, warmup))

    @abstractmethod
    def _rate(self, step: int, steps_per_epoch: int) -> float:
        """Return the rate of a step without a warm-up."""
