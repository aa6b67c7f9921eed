"""What ``fit`` and its like accept in place of objects: names, classes, and a fraction of the samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray
from blobnet.datasets.source import Part, Source, source_of, stored_labels
from blobnet.errors import DataError, OptionError, ShapeError, near_matches
from blobnet.losses import Loss
from blobnet.optimizers import Optimizer
from blobnet.sample_weights import prepare_sample_weights


def loss_of(value: Any) -> Loss | None:
    """A loss, its class, or its name: ``MeanSquaredError``, ``mean_squared_error`` or ``mse``; None stays None.

    Raises:
        OptionError: it is none of these.
    """
    found: Loss | None = _object("loss", value, Loss, Loss.kinds)
    return found


def optimizer_of(value: Any) -> Optimizer | None:
    """An optimizer, its class, or its name: ``adam`` with its default rate; None stays None.

    Raises:
        OptionError: it is none of these.
    """
    found: Optimizer | None = _object("optimizer", value, Optimizer, Optimizer.kinds)
    return found


def _object(what: str, value: Any, base: Any, kinds: Mapping[str, Any]) -> Any:
    if value is None or isinstance(value, base):
        return value
    build = value if isinstance(value, type) and issubclass(value, base) else None
    if isinstance(value, str):
        names = {_squeezed(name): kind for name, kind in kinds.items()}
        names |= {"".join(re.findall("[A-Z]", name)).lower(): kind for name, kind in kinds.items()} | names
        build = names.get(_squeezed(value))
        if build is None:
            rule = f"the {what} must be one of blobnet's"
            raise OptionError(what, rule, name=value, hint=near_matches(value, list(kinds)))
    if build is None:
        hint = f"blobnet.{base.__module__.rpartition('.')[2]}.{next(iter(kinds))}(), for example."
        raise OptionError(what, f"it must be {_article(base)}, or the name of one", received=_kind(value), hint=hint)
    try:
        return build()
    except TypeError as error:
        hint = f"make it with its arguments: {build.__name__}(...)."
        raise OptionError(what, f"{build.__name__} must have its arguments", cause=error, hint=hint) from error


def _squeezed(name: str) -> str:
    return re.sub(r"[ _-]", "", name).lower()


def _article(base: type) -> str:
    return f"{'an' if base.__name__[0] in 'AEIO' else 'a'} {base.__name__}"


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, int | float) else type(value).__name__


def parted(x: Any, y: Any, weights: Any, validation: Any, seed: int) -> tuple[Any, Any, Any, tuple[Any, Any] | None]:
    """Samples, labels and weights to train on, and samples and labels to validate with.

    Args:
        x: samples, as ``fit`` takes them.
        y: their labels.
        weights: of the samples; None for none.
        validation: None; (x, y); or a fraction of the samples, which are then drawn and not trained on.
        seed: of the drawing.

    Raises:
        OptionError: it is something else, or a fraction that leaves one of the two without samples.
        DataError: there are no labels for the samples to part, or not as many weights.
    """
    if validation is None or (isinstance(validation, tuple | list) and len(validation) == 2):
        return x, y, weights, validation if validation is None else tuple(validation)
    is_number = isinstance(validation, float | np.floating)
    if not is_number or not 0 < validation < 1:
        rule = "it must be (x, y), or a fraction of the samples, above 0 and below 1"
        raise OptionError("validation", rule, received=_kind(validation))
    if y is None:
        hint = "give validation=(x, y)."
        raise DataError("validation", "a fraction needs samples with numbers, and their labels", y=None, hint=hint)
    source = source_of(x, "x")
    labels = stored_labels(y, "y")
    if labels is None:
        labels = np.asarray(y[()] if hasattr(y, "shape") and not isinstance(y, Source) else y)
    count = round(len(source) * float(validation))
    if not labels.shape or len(labels) != len(source):
        raise DataError("y", "x and y must hold the same number of samples", x_shape=source.shape, y_shape=labels.shape)
    if not 0 < count < len(source):
        rule = "a fraction must leave samples on both sides"
        raise OptionError("validation", rule, fraction=validation, samples=len(source))
    order = np.random.default_rng(seed).permutation(len(source))
    kept, held_out = np.sort(order[count:]), np.sort(order[:count])
    given = prepare_sample_weights(weights, len(source))
    parts = Part(source, kept), labels[kept], None if given is None else given[kept]
    return *parts, (Part(source, held_out), labels[held_out])


def as_float32(values: npt.ArrayLike, subject: str) -> FloatArray:
    """A new array of real numbers.

    Raises:
        OptionError: there is something else in it, or under a mask.
        ShapeError: its rows differ in length.
    """
    if np.ma.is_masked(values):
        hint = "fill the masked values in: values.filled(value)."
        raise OptionError(subject, "the values must go without a mask, which would be ignored", hint=hint)
    try:
        with np.errstate(over="ignore"):
            array: FloatArray = np.array(values, np.float32)
    except (TypeError, ValueError) as error:
        is_ragged = "inhomogeneous" in str(error)
        kind = ShapeError if is_ragged else OptionError
        raise kind(subject, "the values must be an array of numbers", cause=error, received=repr(values)) from error
    return array
