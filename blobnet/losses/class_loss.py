"""The base of losses of classes: logits for each class, a number or a distribution for each position."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError, ShapeError
from blobnet.losses.base import IGNORED, Loss
from blobnet.memory.blob import FloatArray, Shape


@dataclass(frozen=True)
class _ClassLoss(Loss):
    """The base of losses of a class for each position."""

    #: The label that takes no part; None if all do.
    ignore: int | None = field(default=None, kw_only=True)

    takes_classes: ClassVar[bool] = True
    _reads: ClassVar[tuple[str, ...]] = ("labels", "class_weights")

    def __post_init__(self) -> None:
        whole = isinstance(self.ignore, numbers.Integral) and not isinstance(self.ignore, bool)
        if self.ignore is not None and not (whole and -(2**31) <= self.ignore < 2**31):
            rule = "ignore must be a label, a whole number, or None"
            raise OptionError(type(self).__name__, rule, ignore=repr(self.ignore))

    @property
    def ignored_label(self) -> int | None:
        return self.ignore

    def ignoring(self, label: int | None) -> Loss:
        return self if self.ignore is not None else replace(self, ignore=label)

    def label_elements(self, output: Shape) -> int:
        return output.positions

    def check(self, output: Shape) -> None:
        if output.units < 2:
            rule = "the model's output must be one logit for each of at least 2 classes"
            hint = "end the model with Dense(classes), or Conv2D(classes, 1) for a class at each position."
            raise ShapeError(type(self).__name__, rule, output=output, hint=hint)

    def device_labels(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        classes = np.ascontiguousarray(labels, np.int32)
        if self.ignore is not None:
            classes = np.where(labels == self.ignore, np.int32(IGNORED), classes)
        return classes

    def _own_weights(self, labels: npt.NDArray[Any], class_weights: FloatArray | None) -> npt.NDArray[np.float64]:
        classes = labels.reshape(len(labels), -1)
        # What has moved out of a sample takes no part either, whether there is a label to ignore or not.
        is_class = classes != IGNORED
        if class_weights is None and is_class.all():
            return super()._own_weights(labels, class_weights)
        each = (
            is_class if class_weights is None else np.where(is_class, class_weights[np.where(is_class, classes, 0)], 0)
        )
        weights: npt.NDArray[np.float64] = each.mean(axis=1, dtype=np.float64)
        return weights

    def memory(self, output: Shape) -> dict[str, tuple[int, int]]:
        return {**super().memory(output), "class_weights": (output.units, 0)}

    def start_values(self, output: Shape, batch_size: int) -> dict[str, FloatArray]:
        return {**super().start_values(output, batch_size), "class_weights": np.ones(output.units, np.float32)}

    def _rows(self, output: Shape) -> int:
        return output.depth * output.height

    def scores(self, outputs: FloatArray) -> npt.NDArray[np.float64] | None:
        values = outputs.astype(np.float64)
        powers: npt.NDArray[np.float64] = np.exp(values - values.max(axis=1, keepdims=True))
        scores: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return scores


def check_smoothing(loss: Any) -> None:
    """Raises OptionError unless a loss has a ``label_smoothing`` from 0 to below 1."""
    smoothing = loss.label_smoothing
    if not isinstance(smoothing, numbers.Real) or not 0 <= float(smoothing) < 1:
        rule = "label_smoothing must be at least 0 and below 1"
        raise OptionError(type(loss).__name__, rule, label_smoothing=smoothing)
