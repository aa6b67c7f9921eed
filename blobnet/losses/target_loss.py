"""The base of losses of targets: a number for each output."""

from __future__ import annotations

from dataclasses import dataclass

from blobnet.losses.base import Loss
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class _TargetLoss(Loss):
    """The base of losses of targets of the output's shape: means over a sample's outputs."""

    def check(self, output: Shape) -> None:
        """Any shape will do."""
