"""The loss Focal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from blobnet.launch.kernel_source import Macro
from blobnet.losses.class_loss import _ClassLoss, check_smoothing
from blobnet.support.checks import check_number


@dataclass(frozen=True)
class Focal(_ClassLoss):
    """The focal loss from logits, ``-sum(t * (1 - p)^gamma * log(p))`` with p = softmax(output), at each position.

    It counts examples less that are right already (Lin et al., *Focal Loss for Dense Object Detection*, 2017, for any
    number of classes). ``t`` is that of CrossEntropy; the paper's alpha are class weights.

    Args:
        gamma: how much less, at least 0; with 0 it is the cross-entropy.
        label_smoothing: from 0 to below 1.
        ignore: the label of positions that take no part; None if all do.

    Raises:
        OptionError: a value out of its range.
    """

    gamma: float = 2.0
    label_smoothing: float = 0.0
    kernel: ClassVar[str] = "loss/focal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Focal", "gamma", self.gamma, least=0)
        check_smoothing(self)

    def macros(self) -> dict[str, Macro]:
        return {"GAMMA": float(self.gamma), "LABEL_SMOOTHING": float(self.label_smoothing)}
