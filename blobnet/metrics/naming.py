"""Metrics by their names, and their values over all answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blobnet.errors import OptionError, near_matches
from blobnet.losses import CenterNet, Loss
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray
from blobnet.metrics.types import METRICS, Labels, Metric, Scores


def is_error(name: str) -> bool:
    """Return whether less is better of a value of the history; of several outputs a name comes after the output's."""
    falling = [metric for metric, known in METRICS.items() if known.falls]
    return "loss" in name or any(f"_{name}".endswith(f"_{metric}") for metric in falling)


def panels(history: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Sequence[float]]]:
    """The values of a history that belong in a chart together, of training and validation, by the charts' names.

    These are the losses, the accuracies, and what else was measured on validation data.
    """
    measured = (name.removeprefix("validation_") for name in history)
    names = [name for name in dict.fromkeys(measured) if name.endswith(("loss", "accuracy")) or name not in history]
    found = {}
    for name in names:
        parts = {"training": history.get(name, ()), "validation": history.get(f"validation_{name}", ())}
        found[name] = {part: values for part, values in parts.items() if len(values)}
    return found


def named(metrics: Metric | str | Sequence[Metric | str], loss: Loss) -> dict[str, Metric]:
    """The metrics, one or several, by name, of which those of this module may be given by name.

    Raises:
        OptionError: an unknown name, one that is not made for the loss's labels, no function, or two of one name.
    """
    labels = "classes" if loss.takes_classes else "boxes" if loss.takes_boxes else "targets"
    known = {name: metric.function for name, metric in METRICS.items() if labels in metric.labels}
    anyway = ("loss", "accuracy", "top_5") if loss.takes_classes else ("loss",)
    found: dict[str, Metric] = {}
    for metric in (metrics,) if isinstance(metrics, str) or callable(metrics) else metrics:
        if isinstance(metric, str) and metric not in known:
            hint = near_matches(metric, sorted(known))
            if metric in METRICS:
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
    if isinstance(loss, CenterNet):
        return loss.answers(labels, outputs)
    scores = loss.scores(outputs)
    if scores is None:
        scores = outputs.astype(np.float64)
    if not loss.takes_classes:
        return labels.reshape(len(labels), -1).astype(np.float64), scores.reshape(len(scores), -1)
    flat = labels.reshape(-1)
    rows = np.moveaxis(scores, 1, -1).reshape(len(flat), -1)
    return flat[flat != IGNORED], rows[flat != IGNORED]
