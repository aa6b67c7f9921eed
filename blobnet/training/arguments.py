"""Forms that ``fit`` and its like accept in place of objects: names, classes, and a fraction of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from blobnet.datasets.dataset import held_out_rows
from blobnet.datasets.source import Rows
from blobnet.errors import DataError, OptionError, near_matches
from blobnet.execution.inference import LabelledData
from blobnet.losses import CrossEntropy, Loss
from blobnet.network.ends import to_list
from blobnet.network.graph import Graph
from blobnet.optimizers import Optimizer
from blobnet.support.checks import check_number


def loss_of(value: Any) -> Loss | None:
    """A loss, its class, or its name: ``MeanSquaredError``, ``mean_squared_error`` or ``mse``; None stays None.

    Raises:
        OptionError: it is none of these.
    """
    found: Loss | None = _object(value, Loss)
    return found


def losses_for(graph: Graph, given: Any, known: Any = None) -> tuple[Loss, ...]:
    """The losses of a model's outputs, in their order.

    Args:
        graph: the model.
        given: as users give them: a loss, as for :func:`loss_of`; for several outputs one for each, by name or in a
            list. None for those that are known.
        known: those of the last training; None if there was none: then that of a single output is CrossEntropy().

    Raises:
        OptionError: there is not one for each output, or a name is that of no output.
    """
    names = list(graph.outputs)
    if given is None and known is None and len(names) == 1:
        return (CrossEntropy(),)
    found = []
    items = to_list(names, known if given is None else given, "loss", "output", listed=True)
    for name, item in zip(names, items, strict=True):
        loss = loss_of(item)
        if loss is None:
            raise OptionError("loss", "there must be one for every output of the model", missing=name)
        found.append(loss)
    return tuple(found)


def loss_weights_for(graph: Graph, given: Any) -> tuple[float, ...]:
    """Return the weight of each output's loss in the sum of all: 1 unless something else is given.

    Args:
        graph: the model.
        given: a mapping by the names of some outputs, a list with one for each, or None; for a single output a number.

    Raises:
        OptionError: a name is that of no output, there are too few or too many, or one is negative or not finite.
    """
    names = list(graph.outputs)
    if given is None:
        return (1.0,) * len(names)
    whole = {**dict.fromkeys(names, 1.0), **given} if isinstance(given, Mapping) else given
    weights = to_list(names, whole, "loss_weights", "output", listed=True)
    for weight in weights:
        check_number("loss_weights", "weight", weight, least=0)
    if not any(weights):
        raise OptionError("loss_weights", "at least one must be above 0", weights=weights)
    return tuple(float(weight) for weight in weights)


def optimizer_of(value: Any) -> Optimizer | None:
    """An optimizer, its class, or its name: ``adam`` with its default rate; None stays None.

    Raises:
        OptionError: it is none of these.
    """
    found: Optimizer | None = _object(value, Optimizer)
    return found


#: What hints name where they know nothing better.
_USUAL = {"loss": "CrossEntropy", "optimizer": "Adam"}


def _object(value: Any, base: Any) -> Any:
    if value is None or isinstance(value, base):
        return value
    what = base.noun
    build = value if isinstance(value, type) and issubclass(value, base) else None
    if isinstance(value, str):
        build = base.named(value)
        if build is None:
            rule = f"the {what} must be one of blobnet's"
            raise OptionError(what, rule, name=value, hint=near_matches(value, list(base.kinds)))
    if build is None:
        said = getattr(value, "__name__", type(value).__name__)
        own = base.named(said) or base.named(said.lower().removesuffix("loss"))
        hint = f"blobnet.{base.__module__.split('.')[1]}.{own.__name__ if own else _USUAL[what]}(), for example."
        if what == "loss" and not own and callable(value):
            hint = "a formula is a losses.Expression(text), whose derivative follows from it (docs/contractions.md)."
        raise OptionError(what, f"it must be {_article(base)}, or the name of one", received=_kind(value), hint=hint)
    try:
        return build()
    except TypeError as error:
        hint = f"make it with its arguments: {build.__name__}(...)."
        raise OptionError(what, f"{build.__name__} must have its arguments", cause=error, hint=hint) from error


def _article(base: type) -> str:
    return f"{'an' if base.__name__[0] in 'AEIO' else 'a'} {base.__name__}"


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, int | float) else type(value).__name__


def held_out_of(
    data: LabelledData, validation: Any, seed: int
) -> tuple[LabelledData, LabelledData | None, Rows | slice]:
    """Return what to train on, what to validate with, and which samples the former are.

    Args:
        data: samples and labels.
        validation: None; (x, y), or x that brings its labels along; or a fraction of the samples, which are then drawn
            and not trained on.
        seed: of the drawing.

    Raises:
        OptionError: it is something else, or a fraction that leaves one of the two without samples.
        DataError: there are no numbers of samples to draw.
    """
    if validation is None:
        return data, None, slice(None)
    if isinstance(validation, tuple | list) and len(validation) == 2:
        return data, data.to_validate(*validation), slice(None)
    if data.comes_in_batches(validation) or _has_items(validation):
        return data, data.to_validate(validation, None), slice(None)
    is_number = isinstance(validation, float | np.floating)
    if not is_number or not 0 < validation < 1:
        rule = "it must be (x, y), or a fraction of the samples, above 0 and below 1"
        raise OptionError("validation", rule, received=_kind(validation))
    samples = data.count
    if samples is None:
        hint = "give validation=(x, y)."
        raise DataError("validation", "a fraction needs samples with numbers, and their labels", y=None, hint=hint)
    if not 0 < round(samples * float(validation)) < samples:
        rule = "a fraction must leave samples on both sides"
        raise OptionError("validation", rule, fraction=validation, samples=samples)
    kept, held_out = map(np.sort, held_out_rows(samples, float(validation), seed))
    return data.some(kept), data.some(held_out), kept


def _has_items(x: Any) -> bool:
    return hasattr(x, "__getitem__") and not hasattr(x, "shape") and not isinstance(x, str | list | tuple)
