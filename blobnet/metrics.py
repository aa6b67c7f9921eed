"""How good answers are: metrics for ``Model.evaluate`` and ``Model.fit``, and the report of ``Model.report``.

A metric is any function of (labels, scores) that returns a number; its name is the function's. With a loss of classes
it gets a class number for each sample, or each position that is not ignored, (M,), and the probabilities of all
classes, (M, classes). With another loss it gets targets and outputs, both (N, outputs), where the outputs are
probabilities if the loss takes logits. Everything is computed in float64. :class:`Expression` makes one of a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.contraction import Function, function
from blobnet.errors import OptionError, near_matches
from blobnet.losses import IGNORED, Loss
from blobnet.memory.blob import FloatArray

__all__ = [
    "Expression",
    "Report",
    "auc",
    "class_auc",
    "confusion_matrix",
    "f1",
    "iou",
    "mae",
    "precision",
    "r2",
    "recall",
    "rmse",
]

Labels = npt.NDArray[Any]
Scores = npt.NDArray[np.float64]
Metric = Callable[[Labels, Scores], float]


# -- classes -----------------------------------------------------------------------------------------------------------


def confusion_matrix(labels: Labels, predicted: Labels, classes: int) -> npt.NDArray[np.int64]:
    """How many of each class (row) were taken for each class (column): (classes, classes)."""
    pairs = np.asarray(labels, np.int64).reshape(-1) * classes + np.asarray(predicted, np.int64).reshape(-1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def _matrix(labels: Labels, scores: Scores) -> npt.NDArray[np.int64]:
    return confusion_matrix(labels, scores.argmax(axis=1), scores.shape[1])


def _quotient(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> Scores:
    """0 where there is nothing to divide by."""
    above, below = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)


def _precision(matrix: npt.NDArray[np.int64]) -> Scores:
    return _quotient(np.diag(matrix), matrix.sum(axis=0))


def _recall(matrix: npt.NDArray[np.int64]) -> Scores:
    return _quotient(np.diag(matrix), matrix.sum(axis=1))


def _f1(matrix: npt.NDArray[np.int64]) -> Scores:
    return _quotient(2 * np.diag(matrix), matrix.sum(axis=0) + matrix.sum(axis=1))


def _iou(matrix: npt.NDArray[np.int64]) -> Scores:
    hits = np.diag(matrix)
    return _quotient(hits, matrix.sum(axis=0) + matrix.sum(axis=1) - hits)


def _mean(of_classes: Callable[[npt.NDArray[np.int64]], Scores], labels: Labels, scores: Scores) -> float:
    """The mean over the classes that have samples."""
    matrix = _matrix(labels, scores)
    present = matrix.sum(axis=1) > 0
    return float(of_classes(matrix)[present].mean()) if present.any() else math.nan


def precision(labels: Labels, scores: Scores) -> float:
    """Of what was taken for a class, the part that is of it; the mean over the classes that have samples."""
    return _mean(_precision, labels, scores)


def recall(labels: Labels, scores: Scores) -> float:
    """Of what is of a class, the part that was found; the mean over the classes that have samples."""
    return _mean(_recall, labels, scores)


def f1(labels: Labels, scores: Scores) -> float:
    """The harmonic mean of a class's precision and recall; the mean over the classes that have samples."""
    return _mean(_f1, labels, scores)


def iou(labels: Labels, scores: Scores) -> float:
    """Intersection over union of a class and of what was taken for it; the mean over the classes that have samples."""
    return _mean(_iou, labels, scores)


def auc(labels: Labels, scores: Scores) -> float:
    """The area below the ROC curve of each class against the others; the mean over the classes that have one.

    Labels may also be targets of the scores' shape, 0 or 1: then each output has a curve of its own.
    """
    areas = class_auc(labels, scores)
    known = areas[~np.isnan(areas)]
    return float(known.mean()) if known.size else math.nan


def class_auc(labels: Labels, scores: Scores) -> Scores:
    """The area below the ROC curve of each class; NaN for a class that has no samples, or all of them.

    It is the chance that one of the class gets a higher score for it than one that is not, ties counting half (Mann and
    Whitney's U over the number of pairs).
    """
    is_class = labels[:, None] == np.arange(scores.shape[1]) if labels.ndim == 1 else labels > 0.5
    return np.array([_area(of, score) for of, score in zip(is_class.T, scores.T, strict=True)])


def _area(is_class: npt.NDArray[np.bool_], score: Scores) -> float:
    inside = int(is_class.sum())
    pairs = inside * (len(score) - inside)
    if not pairs:
        return math.nan
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[is_class].sum() - inside * (inside + 1) / 2) / pairs)


# -- targets -----------------------------------------------------------------------------------------------------------


def mae(targets: Labels, outputs: Scores) -> float:
    """The mean absolute error."""
    return float(np.abs(outputs - targets).mean())


def rmse(targets: Labels, outputs: Scores) -> float:
    """The square root of the mean squared error."""
    return math.sqrt(float(np.square(outputs - targets).mean()))


def r2(targets: Labels, outputs: Scores) -> float:
    """The coefficient of determination, ``1 - sum((y - f)^2) / sum((y - mean(y))^2)``, the mean over the outputs.

    An output whose targets are all the same has none: NaN.
    """
    spread = np.square(targets - targets.mean(axis=0)).sum(axis=0)
    residual = np.square(targets - outputs).sum(axis=0)
    return float(np.mean(np.where(spread > 0, 1.0 - _quotient(residual, spread), math.nan)))


@dataclass(frozen=True)
class Expression:
    """A metric that a text of the contraction language gives (docs/contractions.md), in float64 on the host.

        metrics.Expression("function (P[N, C], T[N, C]) -> (M) { M[n] = >(abs(P[n, c] - T[n, c])); }", "worst")

    The function's inputs are the scores and the labels, as other metrics get them; the metric is the mean over all that
    its output has.

    Args:
        text: of the function, with a head.
        name: what the metric is called.
        sizes: whole numbers for names that are the size of no input.

    Raises:
        ContractionError: the text is none of the language; when called, labels and scores do not fit it.
        OptionError: the text has not two inputs and one output.
    """

    text: str
    name: str = "expression"
    sizes: Any = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(dict(self.sizes).items())))
        found = self._function
        if len(found.inputs) != 2 or len(found.outputs) != 1:
            rule = "the text must have two inputs, scores and labels, and one output"
            raise OptionError(f"metric {self.name}", rule, inputs=found.inputs, outputs=found.outputs)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def _function(self) -> Function:
        return function(self.text, **dict(self.sizes))

    def __call__(self, labels: Labels, scores: Scores) -> float:
        found = self._function
        result = found.reference(**dict(zip(found.inputs, (scores, labels), strict=True)))
        return float(result[found.outputs[0]].mean())


# -- what users ask for ------------------------------------------------------------------------------------------------

_OF_CLASSES: tuple[Metric, ...] = (precision, recall, f1, iou, auc)
_OF_TARGETS: tuple[Metric, ...] = (mae, rmse, r2, auc)
#: Metrics of which less is better.
FALLING = frozenset({"mae", "rmse"})


def named(metrics: Metric | str | Sequence[Metric | str], loss: Loss) -> dict[str, Metric]:
    """The metrics, one or several, by name, of which those of this module may be given by name.

    Raises:
        OptionError: an unknown name, one that is not made for the loss's labels, no function, or two of one name.
    """
    known = {metric.__name__: metric for metric in (_OF_CLASSES if loss.takes_classes else _OF_TARGETS)}
    anyway = ("loss", "accuracy", "top_5") if loss.takes_classes else ("loss",)
    found: dict[str, Metric] = {}
    for metric in (metrics,) if isinstance(metrics, str) or callable(metrics) else metrics:
        if isinstance(metric, str) and metric not in known:
            labels = "classes" if loss.takes_classes else "targets"
            hint = near_matches(metric, sorted(known))
            if metric in {other.__name__ for other in (*_OF_CLASSES, *_OF_TARGETS)}:
                hint = f"the model's loss is {type(loss).__name__}, which takes {labels}."
            elif metric in anyway:
                hint = f"leave it out: {metric} is always measured."
            raise OptionError("metrics", f"a name must be that of a metric of {labels}", metric=metric, hint=hint)
        function: Any = known[metric] if isinstance(metric, str) else metric
        if not callable(function):
            rule = "each metric must be a name or a function of (labels, scores)"
            raise OptionError("metrics", rule, metric=repr(metric))
        name = getattr(function, "__name__", type(function).__name__)
        if name in found or name in anyway:
            rule = "each metric must have a name of its own, and none that is measured anyway"
            raise OptionError("metrics", rule, name=name)
        found[name] = function
    return found


def measured(metrics: Mapping[str, Metric], loss: Loss, labels: Labels, outputs: FloatArray) -> dict[str, float]:
    """The values of metrics.

    Args:
        metrics: as :func:`named` gives them.
        loss: what the outputs are made for.
        labels: as the loss's ``device_labels`` gives them.
        outputs: of the model, for all samples.

    Raises:
        OptionError: a metric returned no number.
    """
    if not metrics:
        return {}
    pair = answers(loss, labels, outputs)
    values = {}
    for name, metric in metrics.items():
        value = metric(*pair)
        try:
            values[name] = float(value)
        except (TypeError, ValueError) as error:
            rule = "a metric must return one number"
            raise OptionError(f"metric {name}", rule, returned=type(value).__name__) from error
    return values


def answers(loss: Loss, labels: Labels, outputs: FloatArray) -> tuple[Labels, Scores]:
    """Labels and scores as metrics take them: see the top of this module."""
    scores = loss.scores(outputs)
    if scores is None:
        scores = outputs.astype(np.float64)
    if not loss.takes_classes:
        return labels.reshape(len(labels), -1).astype(np.float64), scores.reshape(len(scores), -1)
    flat = labels.reshape(-1)
    rows = np.moveaxis(scores, 1, -1).reshape(len(flat), -1)
    return flat[flat != IGNORED], rows[flat != IGNORED]


# -- the report --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Report:
    """What a classifier gets right, class by class; as text a table.

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
        """How many there are of each class."""
        counts: npt.NDArray[np.int64] = self.matrix.sum(axis=1)
        return counts

    @property
    def accuracy(self) -> float:
        """The part that was right, over all classes."""
        return float(_quotient(np.trace(self.matrix), self.matrix.sum()))

    @property
    def precision(self) -> Scores:
        """Of what was taken for a class, the part that is of it."""
        return _precision(self.matrix)

    @property
    def recall(self) -> Scores:
        """Of what is of a class, the part that was found: the class's accuracy."""
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
