"""The loss MeanAbsoluteError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from blobnet.losses.target_loss import _TargetLoss


@dataclass(frozen=True)
class MeanAbsoluteError(_TargetLoss):
    """The mean over a sample's outputs of abs(output - target), the L1 loss; targets of the output's shape."""

    kernel: ClassVar[str] = "loss/mean_absolute_error"
    aliases: ClassVar[tuple[str, ...]] = ("mae", "l1")
