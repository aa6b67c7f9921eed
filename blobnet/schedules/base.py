"""The base of schedules."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from blobnet.support.checks import check_number
from blobnet.support.kinds import Kind


@dataclass(frozen=True)
class Schedule(Kind):
    """Base of all schedules."""

    kinds: ClassVar[dict[str, type[Schedule]]] = {}
    noun: ClassVar[str] = "learning rate's schedule"
    #: True if the rates depend on the number of epochs, so that a resumed training must plan the same.
    depends_on_epochs: ClassVar[bool] = False
    #: True if they depend on the number of steps of an epoch.
    depends_on_steps: ClassVar[bool] = True

    @abstractmethod
    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The learning rate of a step, in a training of ``epochs`` epochs."""

    def _check(self, name: str, *, least: float | None = None, above: float | None = None) -> None:
        check_number(type(self).__name__, name, getattr(self, name), least=least, above=above)
