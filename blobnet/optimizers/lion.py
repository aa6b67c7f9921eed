"""The optimizer Lion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from blobnet.launch.kernel_source import Macro
from blobnet.optimizers.base import Optimizer, factors_and_rests
from blobnet.schedules import Schedule


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of one size along the sign of a running mean (Chen et al. 2023).

    *Symbolic discovery of optimization algorithms*:

    w -= learning_rate * weight_decay * w for the decayed parameters;  w -= learning_rate * sign(beta1 * m + (1 - beta1)
    * g);  m = beta2 * m + (1 - beta2) * g

    Its authors take a third to a tenth of AdamW's learning rate, and three to ten times its weight decay.

    Args:
        learning_rate: a number, a Schedule, or a function of the step (counted from 0).
        beta1: how much of the mean the step goes along, from 0 to below 1.
        beta2: how much of the mean a step keeps, from 0 to below 1.
        weight_decay: what a step takes away of the decayed parameters, as a part of the learning rate.
        clip_norm: the largest norm of all gradients together; None for any.
        rates: factors of the learning rate by patterns of names, as {"head/*": 1, "*": 0.1}: the first that matches.

    Raises:
        OptionError: a value out of its range.
    """

    learning_rate: float | Schedule | Callable[[int], float] = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    kernel: ClassVar[str] = "optimizer/lion"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta1", least=0, below=1)
        self._check("beta2", least=0, below=1)

    @classmethod
    def examples(cls) -> tuple[Lion, ...]:
        return (cls(weight_decay=0.1),)

    def _roles(self) -> dict[str, str | None]:
        return {"FIRST_MOMENT": "first_moment"}

    def _macros(self) -> dict[str, Macro]:
        return factors_and_rests(BETA1=self.beta1, BETA2=self.beta2)
