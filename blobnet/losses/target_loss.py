"""What losses of targets share: a number for each output."""

from __future__ import annotations

from dataclasses import dataclass

from blobnet.losses.base import Loss
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class _TargetLoss(Loss):
    """What the losses of targets of the output's shape share: they are means over a sample's outputs."""

    def check(self, output: Shape) -> None:
        """Any shape will do."""
