"""The optimizer SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from blobnet.errors import OptionError
from blobnet.launch.kernel_source import Macro
from blobnet.optimizers.base import Optimizer
from blobnet.schedules import Schedule


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (Sutskever et al. 2013).

    g += weight_decay * w;  m = momentum * m + g;  w -= learning_rate * (g + momentum * m if nesterov else m)

    Args:
        learning_rate: a number, a Schedule, or a function of the step (counted from 0).
        momentum: from 0 to below 1.
        nesterov: look ahead along the momentum.
        weight_decay: an L2 penalty on the decayed parameters.
        clip_norm: the largest norm of all gradients together; None for any.
        rates: factors of the learning rate by patterns of names, as {"head/*": 1, "*": 0.1}: the first that matches.

    Raises:
        OptionError: a value out of its range, or nesterov without momentum.
    """

    learning_rate: float | Schedule | Callable[[int], float] = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    kernel: ClassVar[str] = "optimizer/sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", least=0, below=1)
        if not isinstance(self.nesterov, bool):
            raise OptionError(self._subject, "nesterov must be True or False", nesterov=repr(self.nesterov))
        if self.nesterov and not self.momentum:
            hint = "SGD(momentum=0.9, nesterov=True)."
            raise OptionError(self._subject, "nesterov needs a momentum above 0", momentum=self.momentum, hint=hint)

    @classmethod
    def examples(cls) -> tuple[SGD, ...]:
        return (cls(momentum=0.9, nesterov=True, weight_decay=0.1, clip_norm=0.5),)

    def _roles(self) -> dict[str, str | None]:
        return {"MOMENTUM": "momentum" if self.momentum else None}

    def _macros(self) -> dict[str, Macro]:
        return {
            "HAS_MOMENTUM": int(self.momentum > 0),
            "MOMENTUM_FACTOR": float(self.momentum),
            "NESTEROV": int(self.nesterov),
        }
