"""The optimizer RMSprop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from blobnet.launch.kernel_source import Macro
from blobnet.optimizers.base import _MIN_EPSILON, Optimizer, factors_and_rests
from blobnet.schedules import Schedule


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Steps divided by a running root mean square of the gradient (Hinton 2012, lecture 6e; not centred).

    g += weight_decay * w;  s = alpha * s + (1 - alpha) * g^2;  m = momentum * m + g / (sqrt(s) + epsilon);
    w -= learning_rate * m

    Args:
        learning_rate: a number, a Schedule, or a function of the step (counted from 0).
        alpha: how much of the mean square a step keeps, from 0 to below 1.
        epsilon: keeps the quotient finite.
        momentum: from 0 to below 1.
        weight_decay: an L2 penalty on the decayed parameters.
        clip_norm: the largest norm of all gradients together; None for any.
        rates: factors of the learning rate by patterns of names, as {"head/*": 1, "*": 0.1}: the first that matches.

    Raises:
        OptionError: a value out of its range.
    """

    learning_rate: float | Schedule | Callable[[int], float] = 1e-3
    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    kernel: ClassVar[str] = "optimizer/rmsprop"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("alpha", least=0, below=1)
        self._check("epsilon", least=_MIN_EPSILON)
        self._check("momentum", least=0, below=1)

    @classmethod
    def examples(cls) -> tuple[RMSprop, ...]:
        return (cls(momentum=0.5, weight_decay=0.1),)

    def _roles(self) -> dict[str, str | None]:
        return {"MEAN_SQUARE": "mean_square", "MOMENTUM": "momentum" if self.momentum else None}

    def _macros(self) -> dict[str, Macro]:
        return {
            **factors_and_rests(ALPHA=self.alpha),
            "EPSILON": float(self.epsilon),
            "HAS_MOMENTUM": int(self.momentum > 0),
            "MOMENTUM_FACTOR": float(self.momentum),
        }
