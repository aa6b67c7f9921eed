"""The loss BinaryCrossEntropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.errors import DataError
from blobnet.launch.kernel_source import Macro
from blobnet.losses.class_loss import check_smoothing
from blobnet.losses.target_loss import _TargetLoss
from blobnet.memory.blob import FloatArray


@dataclass(frozen=True)
class BinaryCrossEntropy(_TargetLoss):
    """Binary cross-entropy from logits, the mean over a sample's outputs; targets from 0 to 1 of the output's shape.

    Args:
        label_smoothing: s, from 0 to below 1: a target t becomes ``t * (1 - s) + s / 2``.

    Raises:
        OptionError: a value out of its range.
    """

    label_smoothing: float = 0.0
    kernel: ClassVar[str] = "loss/binary_cross_entropy"
    aliases: ClassVar[tuple[str, ...]] = ("bce",)

    def __post_init__(self) -> None:
        check_smoothing(self)

    def check_targets(self, targets: npt.NDArray[Any], subject: str) -> None:
        if targets.min() < 0 or targets.max() > 1:
            rule = "targets of BinaryCrossEntropy must be from 0 to 1"
            raise DataError(subject, rule, smallest=targets.min(), largest=targets.max())

    def macros(self) -> dict[str, Macro]:
        return {"LABEL_SMOOTHING": float(self.label_smoothing)}

    def scores(self, outputs: FloatArray) -> npt.NDArray[np.float64] | None:
        values = outputs.astype(np.float64)
        tail = np.exp(-np.abs(values))
        scores: npt.NDArray[np.float64] = np.where(values < 0, tail, 1.0) / (1.0 + tail)
        return scores
