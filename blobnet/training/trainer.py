"""Training: epochs over data, and what resuming needs.

Same seed, same device: bit-identical weights. The samples' order in epoch e follows from (seed, e) alone, and dropout
from (seed, step), so that a resumed training continues exactly where it stopped, after any step of an epoch.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blobnet.callbacks import Callback
from blobnet.device.memory import PendingRead
from blobnet.errors import DataError, OptionError, TrainingError
from blobnet.execution.inference import measured_names, measurements
from blobnet.execution.loader import Loader
from blobnet.files.checkpoint import TrainingState
from blobnet.memory.blob import FloatArray
from blobnet.network.ends import TOTALS
from blobnet.parallel.world import World
from blobnet.training.advice import BEYOND, DIVERGED, note_divergence, note_single_values
from blobnet.training.epoch import Epoch, PlannedStep, TrainingData
from blobnet.training.gradients import gradients_of
from blobnet.training.kept import KeptArrays, Room
from blobnet.training.progress import Table, bar, shown
from blobnet.training.resuming import note_rate
from blobnet.training.steps import Steps
from blobnet.training.training_step import TrainingStep, not_finite
from blobnet.training.validation import Validation

#: Seconds between two looks at the running metrics.
DISPLAY_INTERVAL = 0.25


@dataclass
class Progress:
    """The progress of a training, as callbacks see it.

    Attributes:
        trainer: the trainer, for its weights and state.
        epochs: planned epochs.
        history: a value an epoch, by name; the last ones are those of the epoch that has just ended.
        stop: set by a callback that wants training to end after this epoch; says why.
        metrics: the names that every epoch adds a value to; a callback that adds others names them in its ``begin``.
        class_names: names of the model's outputs, for files.
        pretrained: where the model's first weights came from, for files.
        is_resumable: whether the trainer's state belongs to its weights; not after going back to an earlier epoch's.
        best: the weights that the training would end with, where a callback keeps those of its best epoch.
    """

    trainer: Trainer
    epochs: int
    history: dict[str, list[float]] = field(default_factory=dict)
    stop: str | None = None
    metrics: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    pretrained: dict[str, Any] | None = None
    is_resumable: bool = True
    best: dict[str, FloatArray] | None = None

    @property
    def writes(self) -> bool:
        """True if this process writes files: of several ranks the first."""
        return self.trainer.step.world.is_first


class Trainer:
    """The loop over data: epochs of steps, in an order that follows from the seed.

    Args:
        step: what a batch, or a part of it, goes through; its settings are those of the training.
        steps: make that of other epochs, where samples have another size then.

    Attributes:
        graph: the model; that of the step may be for samples of another size.
        batch_size: samples of a batch, over all shards.
        epoch: finished epochs.
        batches: batches of the finished steps of the epoch that is under way.
        is_begun: whether a batch has been on the device.
        samples: theirs.
        rate_factor: what callbacks multiply the schedule's learning rates by.
        learning_rate: that of the last step.
        best: the weights of the best epoch in what was restored, where those are not the last one's.
    """

    def __init__(self, step: TrainingStep, steps: Steps) -> None:
        self.settings, self.graph, self._steps_of = step.settings, steps.graph, steps
        self.batch_size = self.settings.batch_size
        self.epoch = self.batches = self.samples = 0
        self.rate_factor = 1.0
        self.learning_rate = 0.0
        self._first_loss: float | None = None
        self.best: dict[str, FloatArray] | None = None
        #: What files keep of the data.
        self._facts: Mapping[str, Any] = {}
        #: What is other than in the interrupted training, by name: (before, now).
        self._changes: Mapping[str, tuple[Any, Any]] = {}
        #: Those that must stay what they are.
        self._kept: tuple[KeptArrays, ...] = ()
        self._use(step)
        #: The epoch that is under way, and the number of its first step.
        self._under_way: Epoch | None = None
        self._first_step = 0
        #: Steps of an epoch, as schedules count them.
        self._steps = 1
        self.is_begun = False

    def _use(self, step: TrainingStep) -> None:
        """Goes on with a step."""
        self.step = step
        #: The weights and the optimizer's state, and their version.
        self._now: tuple[int, KeptArrays, KeptArrays] | None = None
        self._room = Room(step.device, max(0, step.device.info.memory // 2 - step.bytes))
        self._gradients = gradients_of(step)

    def _resize(self) -> None:
        """Goes on with a step for samples of the size of the epoch to come: the same weights, and optimizer's state."""
        weights, state = self.weights(), self.step.state.slots(is_whole=True).read()
        number, world = self.step.number, self.step.world
        for arrays in self._kept:
            arrays.read()
        # What the step before has on the device makes room.
        self._kept, self._now, self._under_way = (), None, None
        del self.step, self._gradients
        world.transport.release()
        world.gather(None)
        with world.propagate_errors():
            step = self._steps_of.at(self.epoch, weights)
            step.state.restore(state)
        step.number = number
        self._use(step)

    # -- state -------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, FloatArray]:
        """All parameters, or their averages, by name; not to be changed."""
        return self._arrays()[0].read()

    def _arrays(self) -> tuple[KeptArrays, KeptArrays]:
        """The weights and the optimizer's state of now, each read once at most."""
        version = self.step.result.version
        if self._now is None or self._now[0] != version:
            self._now = version, self.step.state.weights(), self.step.state.slots()
        return self._now[1:]

    def keep(self) -> tuple[KeptArrays, TrainingState]:
        """The weights and what resuming needs, as they are now, without reading them from the device.

        They stay what they are for as long as the trainer is there, or once they were read.
        """
        self._kept = weights, state = self._arrays()
        return weights, self._state(state)

    def _preserve(self) -> None:
        """Before what was kept changes on the device."""
        for arrays in self._kept:
            arrays.preserve(self._room)
        self._kept = ()

    def state(self, *, is_whole: bool = False) -> TrainingState:
        """Return the state that resuming needs besides the weights (with them if ``is_whole``), after a step."""
        return self._state((self.step.state.slots(is_whole=True) if is_whole else self._arrays()[1]).read())

    def _state(self, optimizer_state: Mapping[str, FloatArray]) -> TrainingState:
        place: dict[str, Any] = {}
        if self.batches:
            place = {"batches": self.batches, "samples": self.samples, "learning_rate": self.learning_rate}
            place["totals"] = self.step.totals().tolist()
        return TrainingState(
            epoch=self.epoch,
            step=self.step.number,
            seed=self.settings.seed,
            optimizer=self.settings.optimizer.description(),
            optimizer_state=optimizer_state,
            settings={**self.settings.for_file(self.graph), **self._facts},
            place=place,
        )

    def restore(self, state: TrainingState, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Continues from what :meth:`state` gave; ``changes`` is what check_resumed found.

        Raises:
            OptionError: the state does not fit the optimizer, or the place in the epoch.
        """
        self._changes = changes
        self.epoch = state.epoch
        before = self.weights()
        if self.step.state.restore(state.optimizer_state):
            self.best = before
        self.step.number = state.step
        if state.place:
            self._restore_place(state.place)

    def _restore_place(self, place: Mapping[str, Any]) -> None:
        """Goes on in the middle of an epoch."""
        try:
            self.batches, self.samples = int(place["batches"]), int(place["samples"])
            self.learning_rate = float(place["learning_rate"])
            totals = np.array(place["totals"], np.float32)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            rule = "the state must say how many batches of its epoch are done, and their metrics"
            raise OptionError("resume", rule, place=place, cause=error) from error
        numbers = self.settings.shards * len(self.step.heads) * TOTALS
        if min(self.batches, self.samples) < 1 or totals.shape != (numbers,):
            rule = "the state must say how many batches of its epoch are done, and their metrics"
            raise OptionError("resume", rule, place=place)
        self.step.reset_totals(totals)

    # -- training ----------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: TrainingData,
        progress: Progress,
        *,
        callbacks: Sequence[Callback] = (),
        keep: Callable[[Progress], None] = lambda progress: None,
        verbose: bool = True,
    ) -> None:
        """Trains up to the last epoch of the settings, counted from the very beginning if this training was resumed.

        ``keep`` is called after every epoch, before the callbacks, and at the end, behind them.

        Raises:
            DataError: samples or labels that cannot be used.
            TrainingError: the loss or the weights are not finite.
        """
        heads, epochs = self.step.heads, self.settings.epochs
        self._check(data)
        self._facts = data.train.facts
        self._steps = -(-(data.train.steps(self.batch_size) or 1) // self.settings.accumulate)
        progress.metrics += measured_names(heads)
        validation = self._validation(data)
        if validation is not None:
            progress.metrics += validation.names
        is_noted = not progress.writes
        callbacks = [callback for callback in callbacks if progress.writes or not callback.only_logs]
        _tell(callbacks, "begin", progress)
        loader, own = self._load(data, validation, verbose=verbose)
        has_accuracy = len(heads) == 1 and heads[0].loss.takes_classes
        table = Table(epochs, has_accuracy, validation is not None, validation.asked_for if validation else ())
        if verbose and self.epoch < epochs:
            note_rate(self._changes, self.settings, self._next_rate())
            print(table.header, file=sys.stderr)
        while self.epoch < epochs and progress.stop is None:
            self._preserve()
            if self.settings.graph_at(self.graph, self.epoch) != self.step.graph:
                del loader, validation, own
                self._resize()
                validation = self._validation(data)
                loader, own = self._load(data, validation, verbose=verbose)
            start, before = time.perf_counter(), self.samples
            record = self._run_epoch(loader, own, progress, callbacks, verbose=verbose)
            seconds = max(1e-9, time.perf_counter() - start)  # A clock may stand still.
            count = self.samples - before
            if validation is not None:
                record |= validation.measure(verbose=verbose)
            record = self.step.world.broadcast(record)
            is_noted = is_noted or note_divergence(self._first_loss or 0.0, record, self.epoch + 1)
            self.epoch, self.batches, self.samples = self.epoch + 1, 0, 0
            if verbose:
                print(table.row(self.epoch, seconds, count, self.learning_rate, record), file=sys.stderr)
            _record(progress.history, record)
            keep(progress)
            _tell(callbacks, "epoch_end", progress)
        _record(progress.history, {})
        self._preserve()
        _tell(callbacks, "end", progress)
        keep(progress)
        self.step.world.transport.release()

    def _validation(self, data: TrainingData) -> Validation | None:
        """Return what measures the held-out samples, if there are any: in the size of the model."""
        return None if data.validation is None else Validation(self.step, data.validation, data.metrics)

    def _load(self, data: TrainingData, validation: Validation | None, *, verbose: bool) -> tuple[Loader, TrainingData]:
        """Put on the device what fits, and return what brings the rest, with the data in the size of the step."""
        loader, own = Loader(self.step.executor), data.of_graph(self.step.graph)
        if self.epoch < self.settings.epochs:
            reserved = self.step.bytes + (validation.bytes if validation is not None else 0)
            with bar("loading data", own.train.count, verbose) as shown:
                loader.keep(own.train.sources, reserved, shown.update, self.step.world)
            if validation is not None:
                validation.load(reserved + own.train.bytes, verbose=verbose)
            if verbose and self.settings.sizes:
                height, width = self.step.graph.input.shape.sizes
                print(f"samples of {height}x{width} from epoch {self.epoch + 1} on", file=sys.stderr)
        return loader, own

    def _check(self, data: TrainingData) -> None:
        """Raises OptionError where data cannot be trained on, or measured, as it is asked for; notes what is odd."""
        validation, count = data.validation, data.train.count
        if any(data.metrics) and (validation is None or validation.labels is None):
            rule = "metrics are measured on validation data that are no stream"
            hint = "give validation=(x, y), arrays." if count is None else "validation=0.1 holds a tenth out."
            raise OptionError("fit", rule, validation=None if validation is None else "a stream", hint=hint)
        if self.settings.sizes and count is None:
            rule = "samples that are resized must have numbers, and come in no stream"
            raise OptionError("sizes", rule, hint="give arrays, a list of pictures, or a folder of them.")
        schedule = self.settings.optimizer.schedule
        if schedule.depends_on_steps and data.train.steps(self.batch_size) is None:
            rule = "a stream of batches whose number is unknown needs a constant learning rate"
            raise OptionError("fit", rule, schedule=schedule, hint="give the stream a length: a class with __len__.")
        if count is not None and self.step.world.is_first:
            # Where batch norms are over all shards, they see whole batches.
            size = self.batch_size if self.settings.sync_batch_norm else self.step.batch_size
            note_single_values(self.step.graph, self.settings.freeze, count % size or size)

    def _next_rate(self) -> float:
        """The learning rate of the next step."""
        schedule = self.settings.optimizer.schedule
        return self.rate_factor * schedule.value(self.step.number, self._steps, self.settings.epochs)

    def check(self) -> None:
        """Waits for the device, and raises TrainingError unless the epoch's losses and the weights are finite."""
        self._check_losses(self.step.totals())
        self.step.loss_scale.check(epoch=self.epoch + 1)
        broken = [] if self.step.is_finite() else not_finite(self.weights())
        if broken:
            rule = "the weights must stay finite"
            raise TrainingError("training", rule, epoch=self.epoch + 1, broken=broken, hint=DIVERGED)

    def _check_losses(self, totals: FloatArray) -> None:
        """Raises TrainingError if a loss of the epoch was not finite."""
        if np.isfinite(totals[0]):
            return
        step = self.step
        # What came behind the batch with that loss has changed nothing.
        number = -(-int(totals[TOTALS - 1]) // step.batch_size) - 1
        step.number = self._first_step + number // (self.settings.accumulate * step.parts)
        received: dict[str, Any] = {"epoch": self.epoch + 1, "step": step.number}
        if len(step.heads) > 1:
            broken = [head.name for head in step.heads[1:] if not np.isfinite(totals[head.totals][0])]
            received["output"] = ", ".join(broken) or step.heads[0].name
        layer = self._under_way and self._under_way.first_not_finite(number)
        if layer:
            received["first_layer"] = layer
        hint = f"{DIVERGED} {BEYOND}" if step.loss_scale.is_used else DIVERGED
        raise TrainingError("training", "the loss must stay finite", **received, hint=hint)

    def _run_epoch(
        self, loader: Loader, data: TrainingData, progress: Progress, callbacks: Sequence[Callback], *, verbose: bool
    ) -> dict[str, float]:
        """Does what is left of a pass over the data, with a progress bar that is gone when it ends.

        Returns:
            The metrics of the whole pass.
        """
        step, world = self.step, self.step.world
        self._first_step = step.number - -(-self.batches // self.settings.accumulate)
        if not self.batches:
            step.reset_totals()
        done = self.batches, self.samples
        title = f"epoch {self.epoch + 1}/{progress.epochs}"
        epoch = self._under_way = Epoch(step, loader, data, self.epoch, done)
        with contextlib.closing(epoch), bar(title, data.train.count, verbose, self.samples) as shown:
            watch = _Watch(step, shown, self._check_losses)
            for planned in epoch.steps:
                # Of what callbacks do nobody knows how long it takes, nor of the first step, which finds memory.
                with world.doing("steps" if self.is_begun else "begins"):
                    is_done = self._run_step(epoch, planned, watch.advance)
                if not is_done:
                    break
                self.is_begun = True
                _tell(callbacks, "step_end", progress)
            # Waits for the device, so that the bar does not end before the work.
            watch.finish()
            totals = step.totals()
            if self._first_loss is None:
                self._first_loss = watch.first
        if not self.samples:
            hint = "a generator gives its batches once; its function itself, or a class with __iter__, begins anew."
            rule = "the stream must give samples in every epoch"
            raise DataError("x", rule, epoch=self.epoch + 1, samples=0, hint=hint)
        self.check()
        self._under_way = None
        return measurements(step.sum_of_shards(totals), step.heads, step.loss_weights)

    def _run_step(self, epoch: Epoch, planned: PlannedStep, advance: Callable[[int], None]) -> bool:
        """Does a step; ``advance`` is told samples whose work is on its way, of several shards those of all ranks.

        Returns:
            Whether there was one, and not the end of a stream.
        """
        gradients, is_one_shard, rate = self._gradients, self.settings.shards == 1, self._next_rate()
        for number in range(self.step.sharpness.passes):
            if number:
                self.step.sharpness.climb()
            runs = samples = 0
            gradients.start(planned, self.samples)
            for run in planned.runs:
                gradients.expect(run)
                loaded = epoch.load(run, self.samples + samples, again=number > 0 and len(planned.runs) == 1)
                if loaded is None:
                    break
                gradients.add(run, loaded)
                runs, samples = runs + 1, samples + loaded.samples
                if is_one_shard and number == 0:
                    advance(loaded.samples)
            batches, samples = planned.of_all or (runs, samples)
            if not batches:
                return False
            if number == self.step.sharpness.passes - 1 and self.step.world.size > 1:
                # Now, while devices compute: once ranks have exchanged their gradients, they have nothing to do.
                epoch.fetch(self.samples + samples)
                self.step.tell_rate(rate)
            is_finite = gradients.finish()
        self.learning_rate = rate
        self.step.update(rate)
        self.batches, self.samples = self.batches + batches, self.samples + samples
        if not is_finite:
            self._check_losses(self.step.totals())
        if not is_one_shard:
            advance(samples)
        return True


def _tell(callbacks: Sequence[Callback], event: str, progress: Progress) -> None:
    """Calls a method of all callbacks; what only logs measures by itself, since it is the first rank's alone."""
    for callback in callbacks:
        with World.alone() if callback.only_logs else contextlib.nullcontext():
            getattr(callback, event)(progress)


class _Watch:
    """Looks at the running metrics now and then, without making the device wait.

    Args:
        step: whose.
        shown: the progress bar to show them on.
        check: called with the totals.

    Attributes:
        first: the loss of the first step; None before it is known.
    """

    def __init__(self, step: TrainingStep, shown: Any, check: Callable[[FloatArray], None]) -> None:
        self._step, self._shown, self._check = step, shown, check
        self._reading: PendingRead | None = None
        self._last = -math.inf  # The first look is at the first step.
        self.first: float | None = None

    def advance(self, count: int) -> None:
        """To be called whenever the work on so many samples is on its way."""
        self._shown.update(count)
        if self._reading is None:
            if time.perf_counter() - self._last > DISPLAY_INTERVAL:
                self._last = time.perf_counter()
                self._reading = self._step.read_totals()
        elif self._reading.is_done():
            self.finish()

    def finish(self) -> None:
        """Takes what was last read; waits for it."""
        if self._reading is None:
            return
        totals, self._reading = self._reading.values(), None
        self._check(totals)
        found = measurements(self._step.sum_of_shards(totals), self._step.heads, self._step.loss_weights)
        self.first = found["loss"] if self.first is None else self.first
        self._shown.set_postfix_str(shown(found), refresh=False)


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
