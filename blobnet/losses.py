"""Losses on a model's output: dL/d output, and for each sample its loss and whether it was right.

The loss of a batch is the mean over its samples. Labels reach the device as 4-byte numbers: classes as int32, targets
as float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray, Shape
from blobnet.errors import DataError, OptionError, ShapeError
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning
from blobnet.kernel_source import Macro


@dataclass(frozen=True)
class Loss(ABC):
    """Base of all losses."""

    #: Numbers that a loss leaves for each sample in ``sample_metrics``: loss, correct, among the best five.
    SAMPLE_METRICS: ClassVar[int] = 3
    #: Whether labels are class numbers (then accuracy is meaningful) or targets of the output's shape.
    takes_classes: ClassVar[bool] = False
    #: The kernel that computes it.
    kernel: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Loss]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Loss.kinds[cls.__name__] = cls

    def config(self) -> dict[str, Any]:
        """The arguments that build an equal loss."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def label_elements(self, output: Shape) -> int:
        """Label values for one sample."""
        return 1 if self.takes_classes else output.elements

    @abstractmethod
    def check(self, output: Shape) -> None:
        """Raises ShapeError if the output's shape does not fit."""

    def macros(self) -> dict[str, Macro]:
        """Macros of the kernel."""
        return {}

    def check_targets(self, targets: npt.NDArray[Any], subject: str) -> None:
        """Raises DataError if targets have values that the loss is not made for."""
        return

    def scores(self, output: FloatArray) -> npt.NDArray[np.float64] | None:
        """Probabilities of a sample's outputs, in float64; None where the outputs are no logits."""
        return None

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning) -> list[KernelCall]:
        """Calls that write the delta of ``output`` (if there is one) and add the batch's metrics to ``totals``."""
        metrics = Array("sample_metrics", 0, self.SAMPLE_METRICS, persistent=True)
        # NOTE: a kernel takes no null blob; without a delta the role is bound to the output and not touched.
        per_sample = KernelCall(
            self.kernel,
            f"{type(self).__name__} loss",
            GlobalSize(1),
            blobs={"OUTPUT": output, "OUTPUT_DELTA": delta or output},
            arrays={
                "LABELS": Array("labels", 0, persistent=True),
                "SAMPLE_METRICS": metrics,
            },
            macros={"HAS_DELTA": int(delta is not None), **self.macros()},
        )
        total = KernelCall(
            "loss/accumulate",
            "metrics",
            GlobalSize(1, per_sample=False),
            arrays={
                "SAMPLE_METRICS": metrics,
                "TOTALS": Array("totals", self.SAMPLE_METRICS + 1, persistent=True),
            },
            macros={"METRICS": self.SAMPLE_METRICS},
        )
        return [per_sample, total]


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Softmax cross-entropy from logits: ``-sum(t * log_softmax(output))``.

    ``t`` is 1 for the label, or with label smoothing s: ``1 - s + s/C`` for the label and ``s/C`` for the others
    (Szegedy et al., *Rethinking the Inception Architecture*, 2016).

    Args:
        label_smoothing: s, from 0 to below 1.
    """

    label_smoothing: float = 0.0
    takes_classes: ClassVar[bool] = True
    kernel: ClassVar[str] = "loss/cross_entropy"

    def __post_init__(self) -> None:
        if not isinstance(self.label_smoothing, (int, float)) or not 0 <= self.label_smoothing < 1:
            rule = "label_smoothing must be at least 0 and below 1"
            raise OptionError("CrossEntropy", rule, label_smoothing=self.label_smoothing)

    def check(self, output: Shape) -> None:
        if output.rank or output.units < 2:
            rule = "the model's output must be one logit for each of at least 2 classes"
            raise ShapeError("CrossEntropy", rule, output=output, hint="end the model with Dense(classes).")

    def macros(self) -> dict[str, Macro]:
        return {"LABEL_SMOOTHING": float(self.label_smoothing)}

    def scores(self, output: FloatArray) -> npt.NDArray[np.float64] | None:
        powers: npt.NDArray[np.float64] = np.exp(output.astype(np.float64) - float(output.max()))
        return powers / float(powers.sum())


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy from logits, the mean over a sample's outputs; targets from 0 to 1 of the output's shape."""

    kernel: ClassVar[str] = "loss/binary_cross_entropy"

    def check(self, output: Shape) -> None:
        """Any shape will do."""

    def check_targets(self, targets: npt.NDArray[Any], subject: str) -> None:
        if targets.min() < 0 or targets.max() > 1:
            rule = "targets of BinaryCrossEntropy must be from 0 to 1"
            raise DataError(subject, rule, smallest=targets.min(), largest=targets.max())

    def scores(self, output: FloatArray) -> npt.NDArray[np.float64] | None:
        return 1.0 / (1.0 + np.exp(-output.astype(np.float64)))


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """The mean over a sample's outputs of (output - target)^2; targets of the output's shape."""

    kernel: ClassVar[str] = "loss/mean_squared_error"

    def check(self, output: Shape) -> None:
        """Any shape will do."""
