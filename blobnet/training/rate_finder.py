"""Finding a learning rate: a short training whose rate grows from step to step, until the loss explodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.errors import DataError, OptionError, TrainingError
from blobnet.support.checks import check_count, check_number

_SUBJECT = "find_learning_rate"
#: How much of the mean loss a step keeps, and at how many times the least mean loss the search ends.
_KEPT, _EXPLODED = 0.98, 4.0
#: Steps at the end that no suggestion looks at, the least that one is made of, and how many of these fall.
_LAST, _FEWEST, _FALLING = 5, 8, 3


@dataclass(frozen=True)
class RateSearch:
    """The losses of a training whose learning rate grows.

    Attributes:
        rates: of each step.
        losses: running means of the losses, of each step.
        suggestion: a rate in the steepest part of the longest valley of the losses, to begin with.
    """

    rates: npt.NDArray[np.float64]
    losses: npt.NDArray[np.float64]
    suggestion: float


def find_learning_rate(  # noqa: PLR0913
    model: Any,
    x: Any,
    y: Any,
    *,
    first: float = 1e-7,
    last: float = 10.0,
    steps: int = 100,
    batch_size: int = 64,
    seed: int = 0,
    **settings: Any,
) -> RateSearch:
    """Train with a rate that grows from ``first`` to ``last``, and return the losses; the model stays as it was.

    It ends where the mean loss is four times the least one before. The suggestion is fastai's ``valley``: a rate in the
    middle third of the longest falling sequence of mean losses (Smith, *Cyclical learning rates for training neural
    networks*, 2017).

    Args:
        model: the model.
        x: samples in an array or a list.
        y: labels or targets in an array or a list.
        first: the learning rate of the first step, above 0.
        last: that of the last one, above ``first``.
        steps: how many, unless the loss explodes.
        batch_size: the samples of a step; they come in a random order, again and again.
        seed: of that order.
        settings: ``optimizer``, ``loss``, ``device`` and others of :meth:`blobnet.model.Model.trainer`.

    Raises:
        OptionError: a number out of its range.
        DataError: there are fewer samples than labels, or none.
        TrainingError: the loss exploded at once, or never fell, and there is nothing to suggest.
    """
    x, y = _checked(first, last, steps, batch_size, x, y)
    size = min(batch_size, len(x))
    order = np.random.default_rng(seed)
    batches = (part for _ in range(steps) for part in _parts(order.permutation(len(x)), size))
    before, state, loss = model.weights, model.training_state, model.loss
    rates, losses, mean, least = list[float](), list[float](), 0.0, math.inf
    try:
        step = model.trainer(batch_size=size, seed=seed, **settings)
        for number, batch in zip(range(steps), batches, strict=False):
            rate = first * (last / first) ** (number / (steps - 1))
            step.train(x[batch], y[batch])
            own = step.loss
            if not math.isfinite(own):
                break
            mean = _KEPT * mean + (1 - _KEPT) * own
            smooth = mean / (1 - _KEPT ** (number + 1))
            rates.append(rate)
            losses.append(smooth)
            least = min(least, smooth)
            if smooth > _EXPLODED * least:
                break
            step.update(rate)
    finally:
        model.set_weights(before)
        model.training_state, model.loss = state, loss
    return RateSearch(np.array(rates), np.array(losses), _valley(rates, losses))


def _checked(first: float, last: float, steps: int, batch_size: int, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the samples and labels, those of lists as arrays."""
    if len(x) != len(y) or not len(x):
        raise DataError(_SUBJECT, "there must be a label for each sample", samples=len(x), labels=len(y))
    check_number(_SUBJECT, "first", first, above=0)
    check_number(_SUBJECT, "last", last, above=first)
    check_count(_SUBJECT, "steps", steps)
    check_count(_SUBJECT, "batch_size", batch_size)
    if steps < 2 * _FEWEST:
        raise OptionError(_SUBJECT, f"steps must be at least {2 * _FEWEST}", steps=steps)
    x, y = (np.asarray(each) if isinstance(each, list | tuple) else each for each in (x, y))
    return x, y


def _parts(order: npt.NDArray[np.int64], size: int) -> list[npt.NDArray[np.int64]]:
    """Return whole batches of an order, each sorted, since files are read so."""
    return [np.sort(order[begin : begin + size]) for begin in range(0, len(order) - size + 1, size)]


def _valley(rates: list[float], losses: list[float]) -> float:
    """Return the rate in the middle of the middle third of the longest falling sequence of losses."""
    begin = len(losses) // 10
    rates, losses = rates[begin:-_LAST], losses[begin:-_LAST]
    longest = np.ones(len(losses), int)
    for place in range(1, len(losses)):
        falling = longest[:place][np.array(losses[:place]) > losses[place]]
        longest[place] += falling.max(initial=0)
    if len(losses) < _FEWEST or longest.max() < _FALLING:
        rule, hint = "the loss must fall before it explodes", "begin with a smaller first rate, or take more steps."
        raise TrainingError(_SUBJECT, rule, steps=len(losses), hint=hint)
    end = int(longest.argmax())
    start = end - int(longest[end])
    third = (end - start) / 3
    return rates[max(0, start + int(third) + int(third / 2))]
