"""The report of a model's answers, class by class, label by label or number by number."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError
from blobnet.losses import Loss
from blobnet.memory.blob import FloatArray
from blobnet.metrics.classes import (
    Counts,
    _matrix,
    _mean_of_known,
    _quotient,
    class_auc,
    class_average_precision,
)
from blobnet.metrics.naming import answers
from blobnet.metrics.types import Labels, Scores


class _Rows(ABC):
    """A table with a row for each class, label or number, and their mean.

    Attributes:
        class_names: of the rows.
        samples: how many there are of each, (rows,).
    """

    #: What stands above the names.
    heading: ClassVar[str] = "class"
    class_names: tuple[str, ...]
    samples: npt.NDArray[np.int64]

    @abstractmethod
    def columns(self) -> dict[str, Scores]:
        """The numbers of the rows, by the titles of columns."""

    @abstractmethod
    def _last_line(self) -> str:
        """What is said of all rows together."""

    def table(self) -> tuple[list[str], dict[str, list[float]]]:
        """The names of the columns, and the rows by name; the last row is the mean over the rows with samples."""
        columns = {title: values for title, values in self.columns().items() if not np.isnan(values).all()}
        present = self.samples > 0
        rows = {
            name: [*(float(values[unit]) for values in columns.values()), float(self.samples[unit])]
            for unit, name in enumerate(self.class_names)
        }
        means = [_mean_of_known(values[present]) for values in columns.values()]
        return [*columns, "samples"], {**rows, "mean": [*means, float(self._counted())]}

    def _counted(self) -> int:
        return int(self.samples.sum())

    def __str__(self) -> str:
        titles, rows = self.table()
        printable = {name: name.encode("unicode_escape").decode() if not name.isprintable() else name for name in rows}
        width = max(len(self.heading), *map(len, printable.values()))
        cells = {
            name: [*(_shown(value) for value in values[:-1]), f"{values[-1]:.0f}"] for name, values in rows.items()
        }
        # 60 columns, with names of up to 14 characters.
        widths = [max(6, *map(len, column)) for column in zip(titles, *cells.values(), strict=True)]

        def line(name: str, cells: Sequence[str]) -> str:
            return " ".join(
                [f"{name:<{width}}", *(f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True))]
            )

        lines = [line(printable[name], own) for name, own in cells.items()]
        return "\n".join([line(self.heading, titles), *lines, self._last_line()])


def _shown(value: float) -> str:
    """A number with four digits behind the point; of a large one that many in all."""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.6g}"


@dataclass(frozen=True, eq=False)
class Report(_Rows):
    """The scores of a classifier, class by class; as text a table.

    Attributes:
        matrix: how many of each class (row) were taken for each class (column).
        class_names: a name for each class.
        class_auc: the area below the ROC curve of each class against the others; NaN where there is none.
    """

    matrix: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    class_auc: Scores

    @classmethod
    def of(
        cls,
        loss: Loss,
        labels: Labels,
        outputs: FloatArray,
        class_names: Sequence[str] = (),
        *,
        has_auc: bool = True,
    ) -> Report:
        """The report on outputs; labels as the loss's ``device_labels`` gives them.

        Raises:
            OptionError: the loss takes no classes.
        """
        if not loss.takes_classes:
            hint = "measure mae, rmse or r2 with Model.evaluate(metrics=...)."
            raise OptionError("report", "the loss must be one of classes", loss=loss, hint=hint)
        known, scores = answers(loss, labels, outputs)
        names = tuple(class_names) or tuple(str(unit) for unit in range(scores.shape[1]))
        areas = class_auc(known, scores) if has_auc else np.full(len(names), math.nan)
        return cls(_matrix(known, scores), names, areas)

    @classmethod
    def summed(cls, parts: Sequence[Report]) -> Report:
        """The report on all that parts report on; without areas below curves, which cannot be put together."""
        names = parts[0].class_names
        matrix = np.sum([part.matrix for part in parts], axis=0)
        return cls(matrix, names, np.full(len(names), math.nan))

    @cached_property
    def counts(self) -> Counts:
        """How often each class was right."""
        return Counts.of_matrix(self.matrix)

    @property
    def samples(self) -> npt.NDArray[np.int64]:  # type: ignore[override]
        """The number of samples of each class."""
        return self.counts.samples

    @property
    def accuracy(self) -> float:
        """The part that was right, over all classes."""
        return float(_quotient(np.trace(self.matrix), self.matrix.sum()))

    @property
    def precision(self) -> Scores:
        """The part that is right of what was taken for a class."""
        return self.counts.precision

    @property
    def recall(self) -> Scores:
        """The part of a class that was found: the class's accuracy."""
        return self.counts.recall

    @property
    def f1(self) -> Scores:
        """The harmonic mean of precision and recall."""
        return self.counts.f1

    @property
    def iou(self) -> Scores:
        """Intersection over union of a class and of what was taken for it."""
        return self.counts.iou

    def columns(self) -> dict[str, Scores]:
        columns = {"precision": self.precision, "recall": self.recall, "F1": self.f1, "IoU": self.iou}
        return {**columns, "AUC": self.class_auc}  # Of a class at each position there are none.

    def _last_line(self) -> str:
        return f"accuracy {self.accuracy:.4f}"


@dataclass(frozen=True, eq=False)
class LabelReport(_Rows):
    """The scores of a model that gives a sample any number of labels, label by label; as text a table.

    A label is said where its probability is above a half.

    Attributes:
        counts: how often each label was right.
        class_names: a name for each label.
        class_auc: the area below the ROC curve of each label; NaN where there is none.
        class_average_precision: of each label; NaN where no sample has it.
        exact: of how many samples all labels were right.
        total: how many samples there are.
    """

    heading: ClassVar[str] = "label"
    counts: Counts
    class_names: tuple[str, ...]
    class_auc: Scores
    class_average_precision: Scores
    exact: int
    total: int

    @classmethod
    def of(cls, labels: Labels, scores: Scores, names: tuple[str, ...]) -> LabelReport:
        """The report on probabilities; both are (N, labels)."""
        exact = int(((labels > 0.5) == (scores > 0.5)).all(axis=1).sum())
        areas = class_auc(labels, scores), class_average_precision(labels, scores)
        return cls(Counts.of(labels, scores), names, *areas, exact, len(labels))

    @property
    def samples(self) -> npt.NDArray[np.int64]:  # type: ignore[override]
        """The number of samples that have each label."""
        return self.counts.samples

    def columns(self) -> dict[str, Scores]:
        counts = self.counts
        columns = {"precision": counts.precision, "recall": counts.recall, "F1": counts.f1, "IoU": counts.iou}
        return {**columns, "AP": self.class_average_precision, "AUC": self.class_auc}

    def _last_line(self) -> str:
        right = f"all labels right {self.exact / self.total:.4f}"
        return f"mAP {_mean_of_known(self.class_average_precision):.4f}, {right}"


@dataclass(frozen=True, eq=False)
class NumberReport(_Rows):
    """The errors of a model's numbers, number by number; as text a table.

    Attributes:
        class_names: a name for each number.
        samples: how many there are of each.
        mae: the mean absolute error.
        rmse: the square root of the mean squared error.
        bias: the mean of outputs minus targets.
        r2: the coefficient of determination; NaN where all targets are the same.
    """

    heading: ClassVar[str] = "number"
    class_names: tuple[str, ...]
    samples: npt.NDArray[np.int64]
    mae: Scores
    rmse: Scores
    bias: Scores
    r2: Scores

    @classmethod
    def of(cls, targets: Labels, outputs: Scores, names: tuple[str, ...]) -> NumberReport:
        """The report on outputs; both are (N, numbers)."""
        errors = outputs - targets
        squares, spread = np.square(errors), np.square(targets - targets.mean(axis=0)).sum(axis=0)
        r2 = np.where(spread > 0, 1.0 - _quotient(squares.sum(axis=0), spread), math.nan)
        samples = np.full(len(names), len(targets))
        return cls(names, samples, np.abs(errors).mean(axis=0), np.sqrt(squares.mean(axis=0)), errors.mean(axis=0), r2)

    def columns(self) -> dict[str, Scores]:
        return {"MAE": self.mae, "RMSE": self.rmse, "bias": self.bias, "R2": self.r2}

    def _counted(self) -> int:
        return int(self.samples[0])

    def _last_line(self) -> str:
        return f"MAE {_shown(float(self.mae.mean()))}, R2 {_shown(_mean_of_known(self.r2))}"


#: A report on any kind of labels.
AnyReport: TypeAlias = Report | LabelReport | NumberReport


def report_of(loss: Loss, labels: Labels, outputs: FloatArray, class_names: Sequence[str] = ()) -> AnyReport:
    """The report on outputs (N, units), by the kind of the loss's labels.

    Those of a loss of classes are classes; of targets whose outputs are logits, labels; of others, numbers.

    Args:
        loss: what the outputs are made for.
        labels: as the loss's ``device_labels`` gives them.
        outputs: of the model.
        class_names: of its units; their numbers if there are none.
    """
    if loss.takes_classes:
        return Report.of(loss, labels, outputs, class_names)
    targets, scores = answers(loss, labels, outputs)
    names = tuple(class_names) or tuple(str(unit) for unit in range(scores.shape[1]))
    return (NumberReport if loss.scores(outputs[:1]) is None else LabelReport).of(targets, scores, names)
