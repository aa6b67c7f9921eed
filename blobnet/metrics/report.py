"""The report of a model's answers, class by class or target by target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError
from blobnet.losses import Loss
from blobnet.memory.blob import FloatArray
from blobnet.metrics.classes import _f1, _iou, _matrix, _precision, _quotient, _recall, class_auc
from blobnet.metrics.naming import answers
from blobnet.metrics.types import Labels, Scores


@dataclass(frozen=True, eq=False)
class Report:
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
    def samples(self) -> npt.NDArray[np.int64]:
        """The number of samples of each class."""
        counts: npt.NDArray[np.int64] = self.matrix.sum(axis=1)
        return counts

    @property
    def accuracy(self) -> float:
        """The part that was right, over all classes."""
        return float(_quotient(np.trace(self.matrix), self.matrix.sum()))

    @property
    def precision(self) -> Scores:
        """The part that is right of what was taken for a class."""
        return _precision(self.matrix)

    @property
    def recall(self) -> Scores:
        """The part of a class that was found: the class's accuracy."""
        return _recall(self.matrix)

    @property
    def f1(self) -> Scores:
        """The harmonic mean of precision and recall."""
        return _f1(self.matrix)

    @property
    def iou(self) -> Scores:
        """Intersection over union of a class and of what was taken for it."""
        return _iou(self.matrix)

    def table(self) -> tuple[list[str], dict[str, list[float]]]:
        """The names of the columns, and the rows by class; the last row is the mean over the classes with samples."""
        columns = {
            "precision": self.precision,
            "recall": self.recall,
            "F1": self.f1,
            "IoU": self.iou,
        }
        if not np.isnan(self.class_auc).all():  # Of a class at each position there are none.
            columns["AUC"] = self.class_auc
        present = self.samples > 0
        rows = {
            name: [*(float(values[unit]) for values in columns.values()), float(self.samples[unit])]
            for unit, name in enumerate(self.class_names)
        }
        means = [
            float(np.mean(kept)) if (kept := values[present & ~np.isnan(values)]).size else math.nan
            for values in columns.values()
        ]
        return [*columns, "samples"], {**rows, "mean": [*means, float(self.samples.sum())]}

    def __str__(self) -> str:
        titles, rows = self.table()
        printable = {name: name.encode("unicode_escape").decode() if not name.isprintable() else name for name in rows}
        width = max(len("class"), *map(len, printable.values()))
        widths = [max(6, len(title)) for title in titles]  # 60 columns, with names of up to 14 characters

        def line(name: str, cells: Sequence[str]) -> str:
            return " ".join(
                [f"{name:<{width}}", *(f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True))]
            )

        lines = [line("class", titles)]
        for name, values in rows.items():
            lines.append(line(printable[name], [*(f"{value:.4f}" for value in values[:-1]), f"{values[-1]:.0f}"]))
        return "\n".join([*lines, f"accuracy {self.accuracy:.4f}"])
