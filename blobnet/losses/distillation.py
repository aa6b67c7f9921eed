"""What a step of training does with a second network, the teacher: its answers, and how far the first is from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from blobnet.launch.kernel_call import Blob, KernelCall, Tuning
from blobnet.launch.kernel_source import Macro
from blobnet.losses.base import Loss, softmax_call
from blobnet.losses.class_loss import _ClassLoss
from blobnet.memory.blob import FloatArray, Shape

#: The logarithms of the teacher's probabilities: (samples, units, positions).
TEACHER = "teacher"


@dataclass(frozen=True)
class Distilled(_ClassLoss):
    """The loss of the labels, and ``weight * T^2 * sum(q * log(q / p))`` at each position, with the same weights.

    p = softmax(output / T), and q is the teacher's (Hinton et al., *Distilling the Knowledge in a Neural Network*,
    2015); T^2 keeps the gradients of both in proportion.

    Args:
        of_labels: the loss of the labels, which takes classes and pairs of samples.
        temperature: T.
        teacher_weight: that of the second term.
    """

    of_labels: Loss
    temperature: float
    teacher_weight: float
    kernel: ClassVar[str] = "loss/distillation"
    kinds: ClassVar[dict[str, type[Any]]] = {}  # It is no loss by itself, which options or files could name.
    _reads: ClassVar[tuple[str, ...]] = ("labels", "class_weights", TEACHER)

    def macros(self) -> dict[str, Macro]:
        return {"TEMPERATURE": float(self.temperature), "TEACHER_WEIGHT": float(self.teacher_weight)}

    def memory(self, output: Shape) -> dict[str, tuple[int, int]]:
        return {**super().memory(output), TEACHER: (0, output.elements)}

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning, batch_size: int) -> list[KernelCall]:
        *own, _ = self.of_labels.calls(output, delta, tuning, batch_size)
        return [replace(call, owner=self) for call in own] + super().calls(output, delta, tuning, batch_size)


@dataclass(frozen=True)
class Teaching(Loss):
    """The part of the teacher: it leaves what :class:`Distilled` reads, and measures nothing.

    Args:
        temperature: what logits are divided by.
    """

    temperature: float
    kinds: ClassVar[dict[str, type[Any]]] = {}

    def check(self, output: Shape) -> None:
        """Any shape will do."""

    def memory(self, output: Shape) -> dict[str, tuple[int, int]]:
        return {TEACHER: (0, output.elements)}

    def start_values(self, output: Shape, batch_size: int) -> dict[str, FloatArray]:
        return {}

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning, batch_size: int) -> list[KernelCall]:
        answers = self._array(TEACHER, output.shape)
        call = softmax_call("loss/teacher", "teacher's answers", output, tuning, TEACHER=answers)
        return [replace(call, macros={**call.macros, "TEMPERATURE": float(self.temperature)}, owner=self)]
