"""Learning rate schedules: pure functions of the step number.

Steps count from 0 over the whole training: step t lies in epoch ``t // steps_per_epoch``, also counted from 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from blobnet.errors import FileError, OptionError, near_matches
from blobnet.support.checks import check_count, check_number, plain
from blobnet.support.foreign import Explained

__all__ = [
    "Constant",
    "Cosine",
    "Custom",
    "Schedule",
    "Step",
]


@dataclass(frozen=True)
class Schedule(metaclass=Explained):
    """Base of all schedules."""

    #: Every schedule by the name of its class, for files.
    kinds: ClassVar[dict[str, type[Schedule]]] = {}
    #: Whether the rates depend on the number of epochs, so that a resumed training must plan the same.
    depends_on_epochs: ClassVar[bool] = False
    #: Whether they depend on the number of steps of an epoch.
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


@dataclass(frozen=True)
class Step(Schedule):
    """rate * factor^floor(epoch / every_epochs): the rate is multiplied by ``factor`` every few epochs.

    Args:
        rate: the learning rate of the first epochs.
        every_epochs: epochs between two changes.
        factor: what a change multiplies by.

    Raises:
        OptionError: a negative rate, a factor that is not above 0, or less than one epoch.
    """

    rate: float
    every_epochs: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        self._check("rate", least=0)
        self._check("factor", above=0)
        check_count("Step", "every_epochs", self.every_epochs)

    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        return float(self.rate * self.factor ** (step // (self.every_epochs * steps_per_epoch)))


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
        return float(self.final_rate + (self.rate - self.final_rate) * (1.0 + math.cos(math.pi * progress)) / 2.0)


@dataclass(frozen=True)
class Custom(Schedule):
    """A function of the step: ``rate(step)``, steps counted from 0; what optimizers make of a function.

    A file keeps its name alone: who resumes gives the optimizer again.

    Args:
        function: takes the step, returns the learning rate.

    Raises:
        OptionError: (at a step) it returns anything but a number of at least 0.
    """

    function: Callable[[int], float]
    depends_on_steps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionError(
                "Custom", "function must take a step and return its learning rate", function=self.function
            )

    def value(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        rate = self.function(step)
        check_number(f"learning rate of step {step}", "rate", rate, least=0)
        return float(rate)

    def config(self) -> dict[str, Any]:
        return {"function": getattr(self.function, "__qualname__", type(self.function).__name__)}


def from_description(description: Mapping[str, Any], subject: str) -> Schedule:
    """Rebuilds what :meth:`Schedule.description` gave.

    Args:
        description: kind and config.
        subject: the file that it was read from, for errors.

    Raises:
        FileError: it is not the description of a schedule.
        OptionError: a value in it is not allowed.
    """
    try:
        kind = description["kind"]
        if kind not in Schedule.kinds:
            hint = near_matches(kind, list(Schedule.kinds))
            raise FileError(subject, "the learning rate's schedule must be one of blobnet's", kind=kind, hint=hint)
        if kind == Custom.__name__:
            hint = "give fit the optimizer again."
            function = description["config"]["function"]
            raise FileError(subject, "a file cannot hold the function of a schedule", function=function, hint=hint)
        return Schedule.kinds[kind](**description["config"])
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(subject, "a learning rate's schedule must have a kind and its config") from error
