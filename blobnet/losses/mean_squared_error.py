"""The loss MeanSquaredError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from blobnet.losses.target_loss import _TargetLoss


@dataclass(frozen=True)
class MeanSquaredError(_TargetLoss):
    """The mean over a sample's outputs of (output - target)^2; targets of the output's shape."""

    kernel: ClassVar[str] = "loss/mean_squared_error"
    aliases: ClassVar[tuple[str, ...]] = ("mse", "l2")
