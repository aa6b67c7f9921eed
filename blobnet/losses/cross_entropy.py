"""The loss CrossEntropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from blobnet.launch.kernel_source import Macro
from blobnet.losses.class_loss import _ClassLoss, check_smoothing


@dataclass(frozen=True)
class CrossEntropy(_ClassLoss):
    """Softmax cross-entropy from logits, ``-sum(t * log_softmax(output))``, at each position.

    ``t`` is 1 for the label, or with label smoothing s: ``1 - s + s/C`` for the label and ``s/C`` for the others
    (Szegedy et al., *Rethinking the Inception Architecture*, 2016). The weight of the label's class multiplies all of
    it.

    Args:
        label_smoothing: s, from 0 to below 1.
        ignore: the label of positions that take no part (255, say); None if all do.

    Raises:
        OptionError: a value out of its range.
    """

    label_smoothing: float = 0.0
    kernel: ClassVar[str] = "loss/cross_entropy"
    aliases: ClassVar[tuple[str, ...]] = ("ce", "categorical-crossentropy", "sparse-categorical-crossentropy")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_smoothing(self)

    @classmethod
    def examples(cls) -> tuple[CrossEntropy, ...]:
        return (cls(label_smoothing=0.1),)

    def macros(self) -> dict[str, Macro]:
        return {"LABEL_SMOOTHING": float(self.label_smoothing)}
