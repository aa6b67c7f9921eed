"""The base of schedules."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from blobnet.support.checks import check_number, plain
from blobnet.support.foreign import Explained


@dataclass(frozen=True)
class Schedule(metaclass=Explained):
    """Base of all schedules."""

    #: Every schedule by the name of its class, for files.
    kinds: ClassVar[dict[str, type[Schedule]]] = {}
    #: True if the rates depend on the number of epochs, so that a resumed training must plan the same.
    depends_on_epochs: ClassVar[bool] = False
    #: True if they depend on the number of steps of an epoch.
    depends_on_steps: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Schedule.kinds[cls.__name__] = cls

    @abstractmethod
    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The learning rate of a step, in a training of ``epochs`` epochs."""

    def config(self) -> dict[str, Any]:
        """The arguments that build an equal schedule, as plain data (JSON)."""
        return {item.name: plain(getattr(self, item.name)) for item in fields(self)}

    def description(self) -> dict[str, Any]:
        """Kind and config, as plain data that :func:`from_description` takes."""
        return {"kind": type(self).__name__, "config": self.config()}

    def _check(self, name: str, *, least: float | None = None, above: float | None = None) -> None:
        check_number(type(self).__name__, name, getattr(self, name), least=least, above=above)
