"""Training: epochs over data, and what resuming needs.

Same seed, same device: bit-identical weights. The samples' order in epoch e follows from (seed, e) alone, and dropout
from (seed, step), so that a resumed training continues exactly where it stopped.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray
from blobnet.callbacks import Callback
from blobnet.checkpoint import TrainingState
from blobnet.device import Reading
from blobnet.errors import OptionError, TrainingError
from blobnet.inference import Evaluator, check_samples, metric_names, metrics_of, prepare_labels
from blobnet.kernel_call import Batch
from blobnet.metrics import Metric, measured, named
from blobnet.planner import make_plan
from blobnet.progress import Table, bar, shown
from blobnet.training_step import TrainingStep, not_finite

#: Seconds between two looks at the running metrics.
DISPLAY_INTERVAL = 0.25
_DIVERGED = "use a smaller learning rate, or clip the gradients (clip_norm)."


@dataclass
class Progress:
    """What callbacks see of a training.

    Attributes:
        trainer: the trainer, for its weights and state.
        epochs: planned epochs.
        history: a value an epoch, by name; the last ones are those of the epoch that has just ended.
        stop: set by a callback that wants training to end after this epoch; says why.
        metrics: the names that every epoch adds a value to; a callback that adds others names them in its ``begin``.
        class_names: names of the model's outputs, for files.
        is_resumable: whether the trainer's state belongs to its weights; not after going back to an earlier epoch's.
    """

    trainer: Trainer
    epochs: int
    history: dict[str, list[float]] = field(default_factory=dict)
    stop: str | None = None
    metrics: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    is_resumable: bool = True


class Trainer:
    """The loop over data: epochs of steps, in an order that follows from the seed.

    Args:
        step: what a batch goes through; its seed is that of the order too.
        accumulate: batches of a step, whose gradients are added up.

    Attributes:
        epoch: finished epochs.
        rate_factor: what callbacks multiply the schedule's learning rates by.
        learning_rate: that of the last step.
    """

    def __init__(self, step: TrainingStep, accumulate: int = 1) -> None:
        self.step = step
        self.accumulate = accumulate
        self.epoch = 0
        self.rate_factor = 1.0
        self.learning_rate = 0.0
        weights = None if step.class_weights is None else [float(weight) for weight in step.class_weights]
        self._settings: dict[str, Any] = {
            "batch_size": step.batch_size,
            "accumulate": accumulate,
            "average": step.average,
            "class_weights": weights,
        }
        self._weights: tuple[int, dict[str, FloatArray]] | None = None

    # -- state -------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, FloatArray]:
        """All parameters, or their averages, by name; not to be changed."""
        version = self.step.result.version
        if self._weights is None or self._weights[0] != version:
            self._weights = version, self.step.result.read()
        return self._weights[1]

    def state(self) -> TrainingState:
        """What resuming needs, besides the weights."""
        return TrainingState(
            epoch=self.epoch,
            step=self.step.number,
            seed=self.step.seed,
            optimizer=self.step.optimizer.description(),
            optimizer_state=self.step.optimizer_state(),
            settings=dict(self._settings),
        )

    def restore(self, state: TrainingState) -> None:
        """Continues from what :meth:`state` gave.

        Raises:
            OptionError: the state is that of another optimizer, batch size or seed; later, in :meth:`fit`: of another
                number of samples or, if the learning rate depends on it, of epochs.
        """
        mine = self.state()
        for name in ("optimizer", "seed"):
            saved, now = getattr(state, name), getattr(mine, name)
            if saved != now:
                rule = f"the {name} must be that of the interrupted training"
                raise OptionError("resume", rule, saved=_unlike(saved, now), now=_unlike(now, saved))
        self._settle(state.settings, self._settings)
        self.epoch = state.epoch
        self.step.restore(state.step, state.optimizer_state)

    def _settle(self, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Keeps settings that a resumed training must share with the interrupted one; OptionError if one differs."""
        for name, value in now.items():
            if saved.get(name, value) != value:
                rule = f"the {name.replace('_', ' ')} must be that of the interrupted training"
                hint = "a constant learning rate can go on for any number of epochs." if name == "epochs" else None
                raise OptionError("resume", rule, saved=f"{name}={saved[name]}", now=f"{name}={value}", hint=hint)
        self._settings = {**saved, **now}

    # -- training ----------------------------------------------------------------------------------------------------

    def fit(
        self,
        x: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        epochs: int,
        *,
        sample_weights: FloatArray | None = None,
        validation: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None,
        metrics: Sequence[Metric | str] = (),
        callbacks: Sequence[Callback] = (),
        keep: Callable[[Progress], None] = lambda progress: None,
        history: Mapping[str, list[float]] | None = None,
        class_names: tuple[str, ...] = (),
        verbose: bool = True,
    ) -> Progress:
        """Trains up to epoch ``epochs``, counted from the very beginning if this training was resumed.

        ``x`` was checked, ``labels`` are those of prepare_labels, and the weights those of prepare_sample_weights.
        ``keep`` is called after every epoch, before the callbacks, and at the end, behind them.

        Raises:
            DataError: validation data that cannot be measured.
            TrainingError: the loss or the weights are not finite.
        """
        graph, loss = self.step.graph, self.step.loss
        held_out = None
        if validation is not None:
            check_samples(graph, validation[0], "validation x")
            held_out = prepare_labels(graph, loss, *validation, "validation y")
        asked = named(metrics, loss)
        if asked and validation is None:
            raise OptionError("fit", "metrics are measured on validation data", validation=None)
        planned: dict[str, Any] = {"samples": len(x)}
        if self.step.optimizer.schedule.depends_on_epochs:
            planned["epochs"] = epochs
        self._settle(self._settings, planned)
        progress = Progress(self, epochs, {name: list(values) for name, values in (history or {}).items()})
        progress.class_names = class_names
        progress.metrics += metric_names(loss)
        if validation is not None:
            progress.metrics += [f"validation_{name}" for name in (*metric_names(loss), *asked)]
        evaluator = None if validation is None else self._evaluator()
        for callback in callbacks:
            callback.begin(progress)
        table = Table(epochs, loss.takes_classes, validation is not None)
        if verbose and self.epoch < epochs:
            print(table.header, file=sys.stderr)
        while self.epoch < epochs and progress.stop is None:
            start = time.perf_counter()
            record = self._run_epoch(x, labels, sample_weights, epochs, verbose)
            seconds = time.perf_counter() - start
            if evaluator is not None and validation is not None and held_out is not None:
                with bar("validation", len(held_out), verbose) as shown:
                    found = evaluator.evaluate(validation[0], held_out, shown.update)
                if asked:
                    found |= measured(asked, loss, held_out, evaluator.predict(validation[0]))
                record |= {f"validation_{name}": value for name, value in found.items()}
            self.epoch += 1
            if verbose:
                print(table.row(self.epoch, seconds, len(x), self.learning_rate, record), file=sys.stderr)
            _record(progress.history, record)
            keep(progress)
            for callback in callbacks:
                callback.epoch_end(progress)
        _record(progress.history, {})
        for callback in callbacks:
            callback.end(progress)
        keep(progress)
        return progress

    def _run_epoch(
        self,
        x: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        sample_weights: FloatArray | None,
        epochs: int,
        verbose: bool,
    ) -> dict[str, float]:
        """One pass over the data, with a progress bar that is gone when it ends; the metrics."""
        step, size = self.step, self.step.batch_size
        order = np.random.default_rng([step.seed, self.epoch]).permutation(len(x))
        batches, first_step = -(-len(x) // size), step.number
        steps = -(-batches // self.accumulate)

        def load(rows: npt.NDArray[np.intp]) -> Batch:
            """Puts samples on their way."""
            return step.load_batch(x[rows], labels[rows], None if sample_weights is None else sample_weights[rows])

        def divisor(number: int) -> float:
            """That of all batches that make a step with batch ``number``."""
            first = number // self.accumulate * self.accumulate * size
            rows = order[first : first + self.accumulate * size]
            return step.weight(labels[rows], None if sample_weights is None else sample_weights[rows])

        def check(totals: FloatArray) -> None:
            """Raises TrainingError if a loss was not finite."""
            if np.isfinite(totals[0]):
                return
            # What came behind the batch with that loss has changed nothing.
            number = -(-int(totals[-1]) // size) - 1
            step.number = first_step + number // self.accumulate
            raise TrainingError(
                "training",
                "the loss must stay finite",
                epoch=self.epoch + 1,
                step=step.number,
                first_layer=step.first_not_finite(load(order[number * size : (number + 1) * size]).count),
                hint=_DIVERGED,
            )

        step.reset_totals()
        with bar(f"epoch {self.epoch + 1}/{epochs}", len(x), verbose) as shown:
            watch = _Watch(step, shown, check)
            for number in range(batches):
                batch = load(order[number * size : (number + 1) * size])
                part = number % self.accumulate
                goes_on = part + 1 < self.accumulate and number + 1 < batches
                if goes_on or part:
                    batch = replace(batch, first=part * size, divisor=divisor(number))
                step.compute_gradients(batch, goes_on=goes_on, is_first=not part)
                if not goes_on:
                    rate = step.optimizer.schedule.value(step.number, steps, epochs)
                    self.learning_rate = self.rate_factor * rate
                    step.update(self.learning_rate)
                # The device works on this batch while the host gathers and loads the next.
                step.device.flush()
                shown.update(batch.count)
                watch.look()
            # Waits for the device, so that the bar does not end before the work.
            totals = step.totals()
        check(totals)
        broken = not_finite(self.weights())
        if broken:
            rule = "the weights must stay finite"
            raise TrainingError("training", rule, epoch=self.epoch + 1, broken=broken, hint=_DIVERGED)
        return metrics_of(totals, step.loss)

    def _evaluator(self) -> Evaluator:
        """Measures held-out samples with the parameters that are trained, in the memory that training leaves free."""
        step, info = self.step, self.step.device.info
        room = info.memory, info.largest_allocation, step.bytes
        plan = make_plan(step.graph, step.batch_size, loss=step.loss, tuning=step.plan.tuning)
        batch_size = step.batch_size if plan.fits(*room) else max(1, plan.largest_batch(*room))
        return Evaluator(step.device, step.graph, step.result, batch_size, step.loss, debug=step.executor.debug)


class _Watch:
    """Looks at the running metrics now and then, without making the device wait.

    Args:
        step: whose.
        shown: the progress bar to show them on.
        check: called with the totals.
    """

    def __init__(self, step: TrainingStep, shown: Any, check: Callable[[FloatArray], None]) -> None:
        self._step, self._shown, self._check = step, shown, check
        self._reading: Reading | None = None
        self._last = time.perf_counter()

    def look(self) -> None:
        """To be called after every step."""
        if self._reading is None:
            if time.perf_counter() - self._last > DISPLAY_INTERVAL:
                self._last = time.perf_counter()
                self._reading = self._step.read_totals()
        elif self._reading.is_done():
            totals, self._reading = self._reading.values(), None
            self._check(totals)
            self._shown.set_postfix_str(shown(metrics_of(totals, self._step.loss)), refresh=False)


def _record(history: dict[str, list[float]], record: Mapping[str, float]) -> None:
    """Adds the values of an epoch to a history, in which NaN stands for what an earlier epoch did not measure.

    The names get the order of ``record``, and not that of the file that a resumed history comes from.
    """
    epochs = max(map(len, history.values()), default=0)
    old = dict(history)
    history.clear()
    for name in [*record, *(name for name in old if name not in record)]:
        values = old.get(name, [])
        history[name] = [*values, *[math.nan] * (epochs - len(values))]
        if name in record:
            history[name].append(record[name])


def _unlike(value: Any, other: Any) -> str:
    """What a part of a training state does not share with that of another one."""
    if not isinstance(value, Mapping):
        return str(value)
    if value.get("kind") != other.get("kind"):
        return str(value["kind"])
    mine, theirs = (each.get("config", each) for each in (value, other))
    return ", ".join(f"{name}={item}" for name, item in mine.items() if item != theirs.get(name))
