"""Adam and AdamW: running means of gradients and of their squares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from blobnet.launch.kernel_source import Macro
from blobnet.memory.blob import FloatArray
from blobnet.optimizers.base import _MIN_EPSILON, Optimizer, factors_and_rests
from blobnet.schedules import Schedule


def bias_corrections(step: int, beta1: float, beta2: float) -> tuple[float, float]:
    """Return 1 - beta1^t and sqrt(1 - beta2^t), what running means and the roots of running squares are divided by."""
    return 1.0 - beta1 ** (step + 1), math.sqrt(1.0 - beta2 ** (step + 1))


@dataclass(frozen=True)
class _Moments(Optimizer):
    """The base of Adam and AdamW: all but the place where weight decay enters."""

    learning_rate: float | Schedule | Callable[[int], float] = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    kernel: ClassVar[str] = "optimizer/adam"
    #: True if weight decay shrinks the parameters themselves instead of adding to their gradients.
    decoupled: ClassVar[bool]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta1", least=0, below=1)
        self._check("beta2", least=0, below=1)
        self._check("epsilon", least=_MIN_EPSILON)

    def _roles(self) -> dict[str, str | None]:
        return {"FIRST_MOMENT": "first_moment", "SECOND_MOMENT": "second_moment"}

    def _macros(self) -> dict[str, Macro]:
        return {
            **factors_and_rests(BETA1=self.beta1, BETA2=self.beta2),
            "EPSILON": float(self.epsilon),
            "DECOUPLED": int(self.decoupled),
        }

    def step_values(self, step: int, learning_rate: float) -> FloatArray:
        """The learning rate, and the bias corrections learning_rate / (1 - beta1^t) and 1 / sqrt(1 - beta2^t)."""
        values = super().step_values(step, learning_rate)
        mean, square = bias_corrections(step, self.beta1, self.beta2)
        values[1:3] = learning_rate / mean, 1.0 / square
        return values


@dataclass(frozen=True)
class Adam(_Moments):
    """Adam (Kingma and Ba, *Adam: a method for stochastic optimization*, 2015).

    g += weight_decay * w;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2;
    w -= learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    Args:
        learning_rate: a number, a Schedule, or a function of the step (counted from 0).
        beta1: how much of the mean gradient a step keeps, from 0 to below 1.
        beta2: how much of the mean square a step keeps, from 0 to below 1.
        epsilon: keeps the quotient finite.
        weight_decay: an L2 penalty on the decayed parameters.
        clip_norm: the largest norm of all gradients together; None for any.
        rates: factors of the learning rate by patterns of names, as {"head/*": 1, "*": 0.1}: the first that matches.

    Raises:
        OptionError: a value out of its range.
    """

    decoupled: ClassVar[bool] = False

    @classmethod
    def examples(cls) -> tuple[Adam, ...]:
        return (cls(weight_decay=0.1),)


@dataclass(frozen=True)
class AdamW(_Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter, *Decoupled weight decay regularization*, 2019).

    w -= learning_rate * weight_decay * w for the decayed parameters, then Adam's step without decay.

    Args:
        learning_rate: a number, a Schedule, or a function of the step (counted from 0).
        beta1: how much of the mean gradient a step keeps, from 0 to below 1.
        beta2: how much of the mean square a step keeps, from 0 to below 1.
        epsilon: keeps the quotient finite.
        weight_decay: what a step takes away of the decayed parameters, as a part of the learning rate.
        clip_norm: the largest norm of all gradients together; None for any.
        rates: factors of the learning rate by patterns of names, as {"head/*": 1, "*": 0.1}: the first that matches.

    Raises:
        OptionError: a value out of its range.
    """

    weight_decay: float = field(default=0.01, kw_only=True)
    decoupled: ClassVar[bool] = True

    @classmethod
    def examples(cls) -> tuple[AdamW, ...]:
        return (cls(clip_norm=0.5),)
