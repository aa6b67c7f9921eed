"""The loss Huber."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from blobnet.launch.kernel_source import Macro
from blobnet.losses.target_loss import _TargetLoss
from blobnet.support.checks import check_number


@dataclass(frozen=True)
class Huber(_TargetLoss):
    """The mean over a sample's outputs of d^2 / 2 where abs(d) <= delta, else delta * (abs(d) - delta / 2).

    d = output - target, with targets of the output's shape (Huber, *Robust estimation of a location parameter*, 1964).

    Args:
        delta: above 0: the distance from which on the loss grows linearly.

    Raises:
        OptionError: a value out of its range.
    """

    delta: float = 1.0
    kernel: ClassVar[str] = "loss/huber"
    aliases: ClassVar[tuple[str, ...]] = ("smooth-l1",)

    def __post_init__(self) -> None:
        check_number("Huber", "delta", self.delta, above=0)

    @classmethod
    def examples(cls) -> tuple[Huber, ...]:
        return (cls(0.5),)

    def macros(self) -> dict[str, Macro]:
        return {"KNEE": float(self.delta)}
