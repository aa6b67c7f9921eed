"""Cross-validation: a model trained anew on all but one of k parts of the samples, and measured on that, k times."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.data.labels import in_memory
from blobnet.data.samples import sources_for
from blobnet.datasets.checks import check_label_array, check_label_shape
from blobnet.datasets.source import Rows, stored_labels
from blobnet.errors import DataError, OptionError, warn
from blobnet.network.ends import to_dict, to_list
from blobnet.support.checks import check_count, is_int

_SUBJECT = "cross_validate"


@dataclass(frozen=True)
class CrossValidation:
    """The results of :func:`cross_validate`; printed they are a table.

    Attributes:
        models: the trained model of each fold.
        measured: what ``evaluate`` gives for each, on the samples that it was not trained on.
        numbers: of the fold of each sample, from 0: (samples,).
    """

    models: Sequence[Any]
    measured: Sequence[Mapping[str, float]]
    numbers: npt.NDArray[np.int64]

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each measure over the folds."""
        return {name: float(np.mean([own[name] for own in self.measured])) for name in self.measured[0]}

    @property
    def deviation(self) -> dict[str, float]:
        """The standard deviation of each measure over the folds, that of a sample of them (n - 1)."""
        return {name: float(np.std([own[name] for own in self.measured], ddof=1)) for name in self.measured[0]}

    def __str__(self) -> str:
        rows = [(f"fold {number}", own) for number, own in enumerate(self.measured, start=1)]
        rows += [("mean", self.mean), ("deviation", self.deviation)]
        return "\n".join(
            f"{title:9}  {', '.join(f'{name} {value:.4f}' for name, value in own.items())}" for title, own in rows
        )


def fold_numbers(count: int, folds: int, seed: int | None = 0, classes: Any = None) -> npt.NDArray[np.int64]:
    """Return the number of the fold of each sample, as scikit-learn's StratifiedKFold and KFold deal them out.

    Args:
        count: samples.
        folds: parts, at least 2.
        seed: of the shuffle, ``random_state`` there; None: in the order of the samples.
        classes: of each sample, (count,): then each fold has as many of each class, but for one; None: any.

    Raises:
        OptionError: a number out of its range, or fewer samples than folds.
    """
    if check_count(_SUBJECT, "folds", folds) < 2 or folds > count:
        raise OptionError(_SUBJECT, "folds must be at least 2, and at most the samples", folds=folds, samples=count)
    if seed is not None and (not is_int(seed, 0) or seed >= 2**32):
        raise OptionError(_SUBJECT, "seed must be an int from 0 to below 2^32, or None", seed=repr(seed))
    random = None if seed is None else np.random.RandomState(seed)
    found = np.empty(count, np.int64)
    if classes is None:
        order = np.arange(count)
        if random is not None:
            random.shuffle(order)
        for number, rows in enumerate(np.array_split(order, folds)):
            found[rows] = number
        return found
    # Classes go by the order in which they come, of which sorted labels are dealt out in turn.
    _, first, inverse = np.unique(np.asarray(classes), return_index=True, return_inverse=True)
    own = np.argsort(np.argsort(first))[inverse.reshape(-1)]
    ordered, kinds = np.sort(own), len(first)
    shares = [np.bincount(ordered[number::folds], minlength=kinds) for number in range(folds)]
    least = int(np.bincount(own).min())
    if least < folds:
        warn(_SUBJECT, "each fold should have samples of all classes", folds=folds, least_of_a_class=least)
    for kind in range(kinds):
        numbers = np.arange(folds).repeat([share[kind] for share in shares])
        if random is not None:
            random.shuffle(numbers)
        found[own == kind] = numbers
    return found


def cross_validate(
    model: Any,
    x: Any,
    y: Any,
    *,
    folds: int = 5,
    seed: int = 0,
    metrics: Any = (),
    **settings: Any,
) -> CrossValidation:
    """Train a copy of a model for each fold, on the samples of the others, and measure it on those of the fold.

    All begin with the model's weights of now; the model stays as it is. Where labels are a class for each sample, every
    fold has its share of each class.

    Args:
        model: the model.
        x: samples, as for :meth:`blobnet.model.Model.fit`, but for iterables.
        y: their labels.
        folds: parts, at least 2.
        seed: of the parts, and of each training.
        metrics: what else to measure, as for :meth:`blobnet.model.Model.evaluate`.
        settings: others of :meth:`blobnet.model.Model.fit`.

    Raises:
        DataError: there is not one label for each sample.
        OptionError: a number out of its range, or a setting that is not for this (``validation``, ``resume``).
    """
    for name in ("validation", "resume", "sample_weights"):
        if settings.get(name) is not None:
            raise OptionError(_SUBJECT, f"{name} is for fit alone", received=type(settings[name]).__name__)
    sources = sources_for(model.graph, x, "x")
    shape, ends = sources[0].shape, model.graph.outputs
    labels = [_indexed(own, shape) for own in to_list(list(ends), y, _SUBJECT, "output", DataError)]
    numbers = fold_numbers(len(sources[0]), folds, seed, _classes(labels))
    models, measured = [], []
    asked = {name: settings[name] for name in ("loss", "loss_weights", "batch_size", "device", "precision")
             if settings.get(name) is not None}  # fmt: skip
    for rows, others in _parts(numbers, folds):
        own = copy.copy(model)
        train, held = ((_some(model.graph.inputs, sources, part), _some(ends, labels, part)) for part in (rows, others))
        own.fit(*train, seed=seed, **settings)
        found = own.evaluate(*held, metrics=metrics, **asked)
        models.append(own)
        measured.append(found)
    return CrossValidation(models, measured, numbers)


def _indexed(y: Any, x_shape: tuple[int, ...]) -> Any:
    """Labels of samples of that shape as what gives those of some numbers: an array in memory, or a source."""
    if (stored := stored_labels(y, _SUBJECT)) is not None:
        check_label_shape(stored.shape, x_shape, _SUBJECT)
        return stored
    y = in_memory(y, _SUBJECT)
    check_label_array(y, x_shape, _SUBJECT)
    return y


def _classes(labels: Sequence[Any]) -> Any:
    """The class of each sample, where labels are that; else None."""
    is_one = len(labels) == 1 and len(labels[0].shape) == 1
    return np.asarray(labels[0]) if is_one and labels[0].dtype.kind in "iu" else None


def _parts(numbers: npt.NDArray[np.int64], folds: int) -> Iterator[tuple[Rows, Rows]]:
    """The samples to train on, and those to measure with, for each fold."""
    for number in range(folds):
        yield np.flatnonzero(numbers != number), np.flatnonzero(numbers == number)


def _some(ends: Collection[str], given: Sequence[Any], rows: Rows) -> Any:
    """Some of the samples or labels, as ``fit`` takes them."""
    return to_dict(ends, [own[rows] for own in given])
