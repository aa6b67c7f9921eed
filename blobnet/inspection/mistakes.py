"""The samples that a model gets most wrong, and what it says of them."""

from __future__ import annotations

import csv
import heapq
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.data.labels import prepare_labels
from blobnet.data.samples import samples_for
from blobnet.datasets.picture_labels import SEPARATOR
from blobnet.datasets.source import runs
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.inspection.network_inputs import network_inputs
from blobnet.losses import Loss
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray
from blobnet.model import Model, check_model
from blobnet.support.checks import check_count
from blobnet.training.arguments import losses_for

#: Outputs that are looked at together.
_OUTPUTS_AT_ONCE = 1 << 24
#: Numbers of a target or an output that are written out.
_SHOWN_VALUES = 3
#: What is said of a sample without labels, of which it could have several.
NO_LABEL = "(none)"


@dataclass(frozen=True)
class Mistake:
    """A sample that a model gets wrong.

    Attributes:
        number: the sample's, in the data set.
        error: how wrong: see :func:`worst_mistakes`.
        truth: what the label says.
        said: what the model says.
        share: the probability of what is said; or the part that is wrong of a class for each position, or of several
            labels; None with other targets.
        file: the sample's, if it has one of its own.
        is_part: whether ``share`` is the part that is wrong.
        numbers: of a sample with one target or several, those and the outputs (probabilities of labels), (2, outputs).
        masks: with a class for each position the label's and the model's, (2, ...); IGNORED where none counts. None
            where they are not wanted.
    """

    number: int
    error: float
    truth: str
    said: str
    share: float | None = None
    file: str = ""
    is_part: bool = False
    numbers: npt.NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    masks: npt.NDArray[np.int64] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Mistakes:
    """The worst mistakes, the worst one first.

    Attributes:
        samples: how many were looked at.
        wrong: how many of them the model gets wrong; None with numbers, which no output meets exactly.
        worst: some of these.
        values: (M, units[[[, depth], height], width]), the samples of the first M of them as the model gets them,
            normalised.
        class_names: of the model.
    """

    samples: int
    wrong: int | None
    worst: tuple[Mistake, ...]
    values: FloatArray
    class_names: tuple[str, ...] = ()

    @property
    def drawn(self) -> tuple[Mistake, ...]:
        """Those whose samples are kept."""
        return self.worst[: len(self.values)]

    def csv(self) -> str:
        """A line for each mistake: the sample's number and file, truth, answer, share and error (see Mistake).

        Of targets also each with its output.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        first = self.worst[0].numbers if self.worst else None
        names = [] if first is None else [class_name(unit, self.class_names) for unit in range(first.shape[1])]
        of_targets = [f"{what} {name}" for name in names for what in ("truth", "said")]
        writer.writerow(["number", "file", "truth", "said", "share", "error", *of_targets])
        for item in self.worst:
            share = "" if item.share is None else f"{item.share:.6g}"
            numbers = [] if item.numbers is None else [f"{value:.6g}" for value in item.numbers.T.reshape(-1)]
            writer.writerow([item.number, item.file, item.truth, item.said, share, f"{item.error:.6g}", *numbers])
        return text.getvalue()


def _judged(model: Model, given: Loss | str | None) -> Loss:
    """The loss of a model, of classes or targets."""
    (loss,) = losses_for(model.graph, given, model.loss)
    if loss.takes_boxes:
        rule, hint = "the loss must be one of classes or targets", "blobnet predict --boxes DIR draws what is found."
        raise OptionError("mistakes", rule, loss=loss, hint=hint)
    return loss


def worst_mistakes(  # noqa: PLR0913
    model: Model,
    x: Any,
    y: Any,
    *,
    count: int = 40,
    drawn: int | None = None,
    files: Sequence[str] = (),
    loss: Loss | str | None = None,
    batch_size: int = 128,
    device: Device | str | None = None,
    precision: str = "fp32",
) -> Mistakes:
    """The samples that a model gets most wrong.

    With classes a sample is wrong if another class gets a higher probability, and its error is ``-log p`` of its own
    class; with a class for each position, if any position is wrong, and its error is the mean. With several
    labels (targets of an output without positions, whose loss takes logits) a sample is wrong if any label is, and its
    error is the mean of ``-log p`` of what is right. With other targets nothing is right or wrong, and the error is the
    mean distance of outputs (probabilities, where the loss takes logits) to them.

    Args:
        model: whose answers.
        x: samples, as for Model.fit; no iterable.
        y: labels or targets.
        count: the most mistakes.
        drawn: of how many of them the samples, and the masks, are kept; of all if None.
        files: of the samples, if they have files of their own.
        loss: what the outputs are made for; that of the training if None.
        batch_size: samples at once.
        device: a device or its name; the one used last if None.
        precision: as for Model.predict.

    Raises:
        OptionError: it is no Model, or its loss is one of boxes.
        DataError, ShapeError: samples or labels that cannot be used.
    """
    check_model(model, "mistakes")
    loss = _judged(model, loss)
    check_count("mistakes", "count", count)
    batch_size = check_count("mistakes", "batch_size", batch_size)
    opened = model.device_for(device)
    source = samples_for(model.graph, x, "x")
    labels = prepare_labels(model.graph.output.shape, loss, source.shape, y, "y")
    size = batch_size * max(1, _OUTPUTS_AT_ONCE // (batch_size * model.graph.output.shape.elements))
    kept = count if drawn is None else min(drawn, count)
    worst: list[Mistake] = []
    wrong, knows_wrong = 0, True
    for rows in runs(len(source), size):
        outputs = model.predict(source[rows], batch_size=batch_size, device=opened, precision=precision)
        found, own = _worst(loss, np.asarray(labels[rows]), outputs, count, model.class_names)
        wrong, knows_wrong = wrong + (found or 0), found is not None
        for item in own:
            number = int(rows[item.number])
            worst.append(replace(item, number=number, file=files[number] if files else ""))
        worst = heapq.nlargest(count, worst, key=lambda item: item.error)
        worst[kept:] = [replace(item, masks=None) for item in worst[kept:]]
    numbers = np.array([item.number for item in worst[:kept]], np.int64)
    values = network_inputs(opened, model.graph.input.layer, model.weights, source, numbers)
    return Mistakes(len(source), wrong if knows_wrong else None, tuple(worst), values, tuple(model.class_names))


def _worst(
    loss: Loss, labels: npt.NDArray[Any], outputs: FloatArray, count: int, class_names: Sequence[str]
) -> tuple[int | None, list[Mistake]]:
    """Return the number of wrong samples of a batch, None of numbers, and the worst of them."""
    scores = loss.scores(outputs)
    values = outputs.astype(np.float64) if scores is None else scores
    judge: Callable[..., Judged]
    if loss.takes_classes:
        judge = _of_positions if values.ndim > 2 else _of_classes
    else:
        judge = _of_targets if scores is None or values.ndim > 2 else _of_labels
    errors, is_wrong, describe = judge(labels, values, class_names)
    errors = np.where(np.isnan(errors), np.inf, errors)  # Nothing is worse than a model that is broken.
    numbers = np.flatnonzero(is_wrong)
    # The first of equals first.
    numbers = numbers[np.argsort(-errors[numbers], kind="stable")][:count]
    return None if judge is _of_targets else int(is_wrong.sum()), [
        Mistake(int(number), float(errors[number]), **describe(int(number))) for number in numbers
    ]


#: The error of each sample, whether it is wrong, and what Mistake says of one besides.
Judged = tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], Callable[[int], dict[str, Any]]]


def _of_classes(labels: npt.NDArray[Any], scores: npt.NDArray[np.float64], class_names: Sequence[str]) -> Judged:
    counts, own = labels != IGNORED, np.maximum(labels, 0)
    said = scores.argmax(axis=1)
    errors = _surprise(scores[np.arange(len(own)), own])

    def describe(number: int) -> dict[str, Any]:
        truth, answer = (class_name(int(unit), class_names) for unit in (own[number], said[number]))
        return {"truth": truth, "said": answer, "share": float(scores[number, said[number]])}

    return errors, counts & (said != own), describe


def _of_positions(labels: npt.NDArray[Any], scores: npt.NDArray[np.float64], class_names: Sequence[str]) -> Judged:
    counts, own = labels != IGNORED, np.maximum(labels, 0)
    said = scores.argmax(axis=1)
    surprise = _surprise(np.take_along_axis(scores, own[:, None], axis=1)[:, 0])
    axes = tuple(range(1, labels.ndim))
    number_of = np.maximum(counts.sum(axis=axes), 1)
    is_wrong = counts & (said != own)
    errors = np.where(counts, surprise, 0).sum(axis=axes) / number_of

    def describe(number: int) -> dict[str, Any]:
        missed = is_wrong[number]
        part = float(missed.sum() / number_of[number])
        pairs = own[number][missed] * scores.shape[1] + said[number][missed]
        truth, answer = divmod(int(np.bincount(pairs).argmax()), scores.shape[1])
        masks = np.where(counts[number], [own[number], said[number]], IGNORED).astype(np.int64)
        names = {"truth": class_name(truth, class_names), "said": class_name(answer, class_names)}
        return {**names, "share": part, "is_part": True, "masks": masks}

    return errors, is_wrong.any(axis=axes), describe


def _of_targets(labels: npt.NDArray[Any], values: npt.NDArray[np.float64], class_names: Sequence[str]) -> Judged:
    targets, flat = labels.reshape(len(labels), -1).astype(np.float64), values.reshape(len(values), -1)
    errors = np.abs(flat - targets).mean(axis=1)

    def describe(number: int) -> dict[str, Any]:
        pair = np.stack([targets[number], flat[number]])
        truth, said = map(short_values, pair)
        return {"truth": truth, "said": said, "numbers": pair if values.ndim == 2 else None}

    return errors, errors > 0, describe


def _of_labels(labels: npt.NDArray[Any], scores: npt.NDArray[np.float64], class_names: Sequence[str]) -> Judged:
    targets = labels.reshape(scores.shape).astype(np.float64)
    right, other = _surprise(scores), _surprise(1 - scores)
    errors = (targets * right + (1 - targets) * other).mean(axis=1)
    is_wrong = (targets > 0.5) != (scores > 0.5)

    def describe(number: int) -> dict[str, Any]:
        pair = np.stack([targets[number], scores[number]])
        truth, said = (label_words(own, class_names) for own in pair)
        return {"truth": truth, "said": said, "share": float(is_wrong[number].mean()), "is_part": True, "numbers": pair}

    return errors, is_wrong.any(axis=1), describe


def _surprise(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """-log p, also of a p that is 0 in float64."""
    surprise: npt.NDArray[np.float64] = -np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return surprise


def class_name(unit: int, class_names: Sequence[str]) -> str:
    """The name of a class; its number where classes have no names."""
    return class_names[unit] if class_names else str(unit)


def percent(part: float) -> str:
    """A part of 1; never rounded to all or nothing."""
    if 0 < part < 0.005:
        return "<1 %"
    return f"{math.floor(100 * part) if part > 0.99 else 100 * part:.0f} %"


def label_words(scores: npt.NDArray[Any], names: Sequence[str]) -> str:
    """The names of the labels whose scores are above a half: ``cat|red``."""
    found = [class_name(int(unit), names) for unit in np.flatnonzero(scores > 0.5)]
    return SEPARATOR.join(found) or NO_LABEL


def short_values(values: npt.NDArray[Any]) -> str:
    """The first few numbers of a target."""
    flat = values.reshape(-1)
    return ", ".join([*(f"{value:.3g}" for value in flat[:_SHOWN_VALUES]), *(["..."] * (flat.size > _SHOWN_VALUES))])
