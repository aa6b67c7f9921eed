"""The optimizer LAMB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from blobnet.errors import OptionError
from blobnet.hardware.device_model import DeviceModel
from blobnet.launch.kernel_call import Array, KernelCall
from blobnet.launch.kernel_source import Macro
from blobnet.memory.blob import FloatArray
from blobnet.network.parameters import ParameterTable
from blobnet.optimizers.adam import bias_corrections
from blobnet.optimizers.base import _MIN_EPSILON, MAX_PIECES, Tensor, _TensorOptimizer, factors_and_rests
from blobnet.schedules import Schedule

_NORMS = "optimizer norms"


@dataclass(frozen=True)
class LAMB(_TensorOptimizer):
    """Adam's step, as long in each parameter as that is itself: for large batches (You et al. 2020).

    *Large batch optimization for deep learning: training BERT in 76 minutes*:
    m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2;
    u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * w;
    w -= learning_rate * (|w| / |u|) * u, with the norms of each parameter by itself, or 1 where one of them is 0

    As in timm's LAMB, what does not decay keeps Adam's length, unless ``always_adapts``.

    Args:
        learning_rate: a number, a Schedule, or a function of the step (counted from 0).
        beta1: how much of the mean gradient a step keeps, from 0 to below 1.
        beta2: how much of the mean square a step keeps, from 0 to below 1.
        epsilon: keeps the quotient finite.
        always_adapts: also the parameters that do not decay have steps as long as themselves.
        weight_decay: what is added of the decayed parameters to Adam's step.
        clip_norm: the largest norm of all gradients together; None for any.
        rates: factors of the learning rate by patterns of names, as {"head/*": 1, "*": 0.1}: the first that matches.

    Raises:
        OptionError: a value out of its range.
    """

    learning_rate: float | Schedule | Callable[[int], float] = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    always_adapts: bool = False
    weight_decay: float = field(default=0.01, kw_only=True)
    kernel: ClassVar[str] = "optimizer/lamb"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta1", least=0, below=1)
        self._check("beta2", least=0, below=1)
        self._check("epsilon", least=_MIN_EPSILON)
        if not isinstance(self.always_adapts, bool):
            rule = "always_adapts must be True or False"
            raise OptionError(self._subject, rule, always_adapts=repr(self.always_adapts))

    @classmethod
    def examples(cls) -> tuple[LAMB, ...]:
        return (cls(weight_decay=0.1), cls(always_adapts=True))

    def _roles(self) -> dict[str, str | None]:
        return {"FIRST_MOMENT": "first_moment", "SECOND_MOMENT": "second_moment"}

    def _macros(self) -> dict[str, Macro]:
        return {
            **factors_and_rests(BETA1=self.beta1, BETA2=self.beta2),
            "EPSILON": float(self.epsilon),
            "ALWAYS_ADAPTS": int(self.always_adapts),
        }

    def step_values(self, step: int, learning_rate: float) -> FloatArray:
        """The learning rate, and the bias corrections 1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t)."""
        values = super().step_values(step, learning_rate)
        values[1:3] = np.reciprocal(bias_corrections(step, self.beta1, self.beta2))
        return values

    def row(self, tensor: Tensor) -> Sequence[int]:
        return tensor.offset, tensor.elements, tensor.group, int(tensor.decays)

    def memory(self, table: ParameterTable, *, scaled: bool = False) -> dict[str, int]:
        return super().memory(table, scaled=scaled) | {_NORMS: max(1, 2 * MAX_PIECES * len(self.tensors(table)))}

    def _steps(self, table: ParameterTable, model: DeviceModel) -> list[KernelCall]:
        norms = {"NORMS": Array(_NORMS, self.memory(table)[_NORMS], persistent=True)}
        return [
            self._over_tensors(table, model, f"LAMB {label}", norms, MOVES=moves)
            for moves, label in enumerate(("moments", "step"))
        ]
