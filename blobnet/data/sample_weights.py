"""The weights that samples and classes have in a loss, as users give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import chunks
from blobnet.datasets.source import Source
from blobnet.errors import DataError, OptionError, near_matches
from blobnet.losses import Loss
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray
from blobnet.network.ends import to_list

#: The values of ``class_weights`` besides None: a weight for each class, some by number or name, or "balanced".
ClassWeights = str | Sequence[float] | Mapping[Any, float] | npt.NDArray[Any]

BALANCED = "balanced"


def prepare_sample_weights(weights: npt.ArrayLike | None, samples: int | None) -> FloatArray | None:
    """One weight for each of so many samples, float32; ``samples`` is None for a stream.

    Raises:
        OptionError: there are weights for a stream.
        DataError: another number of weights, one that is negative or not finite, or none above 0.
    """
    if weights is None:
        return None
    subject = "sample_weights"
    if samples is None:
        raise OptionError(subject, "a stream of batches cannot have them", hint="give arrays, or class_weights.")
    try:
        array = np.asarray(weights, np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(subject, "the weights must be numbers", type=type(weights).__name__) from error
    if array.shape != (samples,):
        raise DataError(subject, "there must be one weight for each sample", shape=array.shape, samples=samples)
    _check(subject, array)
    return array


def weights_for_outputs(names: Sequence[str], weights: Any, samples: int | None) -> list[FloatArray | None] | None:
    """The weights of samples at each output: of all, or by an output's name; errors as for prepare_sample_weights."""
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        return [prepare_sample_weights(weights, samples)] * len(names)
    given = to_list(names, {**dict.fromkeys(names), **weights}, "sample_weights", "output")
    return [prepare_sample_weights(own, samples) for own in given]


def prepare_class_weights(
    weights: ClassWeights | None,
    loss: Loss,
    classes: int,
    labels: npt.NDArray[Any] | Source | None,
    class_names: Sequence[str] = (),
) -> FloatArray | None:
    """One weight for each class, float32.

    Args:
        weights: a weight for each class; a mapping from numbers or names of some classes, where the others have 1;
            or "balanced": labels / (classes that there are * labels of the class), so that all classes weigh the same.
        loss: what they are for.
        classes: how many there are.
        labels: of the training samples, as the loss's ``device_labels`` gives them; None for a stream.
        class_names: names of the classes.

    Raises:
        OptionError: the loss takes no classes, a name or number that is no class, or "balanced" for a stream.
        DataError: another number of weights, one that is negative or not finite, or none above 0.
    """
    if weights is None or (isinstance(weights, Mapping) and not weights):
        return None
    subject = "class_weights"
    if not loss.takes_classes:
        raise OptionError(subject, "the loss must be one of classes", loss=loss, hint="give sample_weights.")
    if isinstance(weights, str):
        if weights != BALANCED:
            hint = f"did you mean {BALANCED!r}?"
            raise OptionError(subject, f"weights by name must be {BALANCED!r}", received=weights, hint=hint)
        if labels is None:
            rule = f"{BALANCED!r} must know all labels, which a stream of batches does not tell"
            raise OptionError(subject, rule, hint="give a weight for each class.")
        return _balanced(labels, classes)
    array = np.ones(classes, np.float32)
    if isinstance(weights, Mapping):
        for name, weight in weights.items():
            array[_class_number(name, classes, class_names)] = weight
    else:
        array = np.asarray(weights, np.float32)
        if array.shape != (classes,):
            raise DataError(subject, "there must be one weight for each class", shape=array.shape, classes=classes)
    _check(subject, array)
    return array


def _class_number(name: Any, classes: int, class_names: Sequence[str]) -> int:
    names = list(class_names)
    if name in names:
        return names.index(name)
    is_number = isinstance(name, int | np.integer) and not isinstance(name, bool)
    if is_number and 0 <= name < classes:
        return int(name)
    rule = f"each class must be one of the model's names, or a number from 0 to {classes - 1}"
    hint = near_matches(name, names) if names and isinstance(name, str) else None
    raise OptionError("class_weights", rule, hint=hint, **{"class": repr(name)})


def _balanced(labels: npt.NDArray[Any] | Source, classes: int) -> FloatArray:
    counts = np.zeros(classes, np.int64)
    for _, rows in chunks(labels):
        counts += np.bincount(rows[rows != IGNORED].reshape(-1), minlength=classes)
    present = counts > 0
    weights = np.zeros(classes, np.float32)
    weights[present] = counts.sum() / (present.sum() * counts[present])
    return weights


def _check(subject: str, weights: FloatArray) -> None:
    is_wrong = ~(np.isfinite(weights) & (weights >= 0))
    if is_wrong.any():
        place = int(is_wrong.argmax())
        rule = "every weight must be finite and at least 0"
        raise DataError(subject, rule, index=place, weight=weights[place])
    if not weights.any():
        raise DataError(subject, "at least one weight must be above 0", weights=f"{len(weights)} times 0")
