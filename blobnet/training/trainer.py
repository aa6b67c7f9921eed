"""Training: epochs over data, and what resuming needs.

Same seed, same device: bit-identical weights. The samples' order in epoch e follows from (seed, e) alone, and dropout
from (seed, step), so that a resumed training continues exactly where it stopped, after any step of an epoch.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from blobnet.augment.epoch_rows import EpochRows
from blobnet.callbacks import Callback
from blobnet.datasets.source import Rows
from blobnet.device.memory import PendingRead
from blobnet.errors import DataError, OptionError, TrainingError
from blobnet.execution.executor import first_that_fits
from blobnet.execution.inference import Evaluator, LabelledData, head_name, measured_names, measurements
from blobnet.execution.loader import Labels, Loader
from blobnet.files.checkpoint import TrainingState
from blobnet.launch.kernel_call import Batch
from blobnet.memory.blob import FloatArray
from blobnet.metrics.types import Metric
from blobnet.network.ends import TOTALS, by_name
from blobnet.parallel.world import World
from blobnet.planning import make_plan
from blobnet.training.advice import DIVERGED, note_divergence, note_single_values
from blobnet.training.progress import Table, bar, shown
from blobnet.training.resuming import EPOCHS, RATE, check_resumed, settings_of
from blobnet.training.training_step import TrainingStep, not_finite

#: Seconds between two looks at the running metrics.
DISPLAY_INTERVAL = 0.25


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
        best: the weights that the training would end with, where a callback keeps those of its best epoch.
    """

    trainer: Trainer
    epochs: int
    history: dict[str, list[float]] = field(default_factory=dict)
    stop: str | None = None
    metrics: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    is_resumable: bool = True
    best: dict[str, FloatArray] | None = None

    @property
    def writes(self) -> bool:
        """Whether this process writes files: of several ranks the first."""
        return self.trainer.step.world.is_first


class _Run(NamedTuple):
    """A run of the plan: the place of its first sample in the epoch, if that is known, and the loader's job."""

    place: int | None
    job: Any


class _PlannedStep(NamedTuple):
    """The runs of each of a rank's shards in a step; and, if that is known, its batches and samples over all ranks.

    ``counts``: of the first run of each shard of all ranks, then of the second, ...: their samples.
    """

    shards: Sequence[Sequence[_Run]]
    of_all: tuple[int, int] | None
    counts: Sequence[Sequence[int]] = ()

    def turns(self, *, in_step: bool) -> list[tuple[int, int]]:
        """The runs' shards, and their numbers there, in the order in which they are computed."""
        turns = [(shard, number) for shard, runs in enumerate(self.shards) for number in range(len(runs))]
        return sorted(turns, key=itemgetter(1)) if in_step else turns


class Trainer:
    """The loop over data: epochs of steps, in an order that follows from the seed.

    Args:
        step: what a batch, or a part of it, goes through; its seed is that of the order too.
        accumulate: batches of a step, whose gradients are added up.
        parts: of a batch, where the device has no memory for all of it at once; their gradients are added up too.

    Attributes:
        batch_size: samples of a batch, over all shards.
        epoch: finished epochs.
        batches: batches of the finished steps of the epoch that is under way.
        is_begun: whether a batch has been on the device.
        samples: theirs.
        rate_factor: what callbacks multiply the schedule's learning rates by.
        learning_rate: that of the last step.
        best: the weights of the best epoch in what was restored, where those are not the last one's.
    """

    def __init__(self, step: TrainingStep, accumulate: int = 1, parts: int = 1) -> None:
        self.step = step
        self.accumulate = accumulate
        self.parts = parts
        self.batch_size = step.shards * step.batch_size * parts
        self.epoch = self.batches = self.samples = 0
        self.rate_factor = 1.0
        self.learning_rate = 0.0
        self._first_loss: float | None = None
        self.best: dict[str, FloatArray] | None = None
        weights = [None if own is None else [float(weight) for weight in own] for own in step.class_weights]
        self._settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            "accumulate": accumulate,
            "average": step.average,
            "class_weights": by_name([head.name for head in step.heads], weights),
            "frozen": sorted(step.frozen),
            "augment": [augmentation.description() for augmentation in step.augment],
        }
        # Files do not say what could not be otherwise.
        if step.shards > 1:
            self._settings["shards"] = step.shards
        if step.lockstep is not None:
            self._settings["sync_batch_norm"] = True
        if len(step.heads) > 1 or step.loss_weights != (1.0,):
            self._settings["loss_weights"] = list(step.loss_weights)
        if step.augment and len(step.graph.entries) > 1:
            self._settings["augmented"] = step.augmented
        self._changes: dict[str, tuple[Any, Any]] = {}
        self._weights: tuple[int, dict[str, FloatArray]] | None = None
        self._check_loss: Callable[[FloatArray], None] = _check_nothing
        self.is_begun = False

    # -- state -------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, FloatArray]:
        """All parameters, or their averages, by name; not to be changed."""
        version = self.step.result.version
        if self._weights is None or self._weights[0] != version:
            self._weights = version, self.step.result.read()
        return self._weights[1]

    def state(self, *, is_whole: bool = False) -> TrainingState:
        """What resuming needs, besides the weights (with them if ``is_whole``); to be asked for behind a step."""
        place: dict[str, Any] = {}
        if self.batches:
            place = {"batches": self.batches, "samples": self.samples, "learning_rate": self.learning_rate}
            place["totals"] = self.step.totals().tolist()
        return TrainingState(
            epoch=self.epoch,
            step=self.step.number,
            seed=self.step.seed,
            optimizer=self.step.optimizer.description(),
            optimizer_state=self.step.optimizer_state(is_whole=is_whole),
            settings=dict(self._settings),
            place=place,
        )

    def restore(self, state: TrainingState) -> None:
        """Continues from what :meth:`state` gave.

        Raises:
            OptionError: the state is that of another training (blobnet/training/resuming.py); later, in :meth:`fit`, of
                another number of samples.
        """
        now = {"shards": self.step.shards, "sync_batch_norm": self.step.lockstep is not None}
        self._agree(settings_of(state), {**settings_of(self.state()), **now})
        self._settings = {**state.settings, **self._settings}
        self.epoch = state.epoch
        before = self.weights()
        if self.step.restore(state.step, state.optimizer_state):
            self.best = before
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
        numbers = self.step.shards * len(self.step.heads) * TOTALS
        if min(self.batches, self.samples) < 1 or totals.shape != (numbers,):
            rule = "the state must say how many batches of its epoch are done, and their metrics"
            raise OptionError("resume", rule, place=place)
        self.step.reset_totals(totals)

    def _agree(self, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Notes what changes in a resumed training; OptionError if that must not."""
        self._changes |= check_resumed(saved, now)

    def _note_changes(self, steps: int, epochs: int) -> None:
        """Says what another learning rate, or another number of epochs, means for the steps to come."""
        schedule, said = self.step.optimizer.schedule, []
        if RATE in self._changes:
            said.append("is another one than in the interrupted training")
        if EPOCHS in self._changes:
            said.append("is spread over {1} epochs in place of {0}".format(*self._changes[EPOCHS]))
        if said:
            rate = self.rate_factor * schedule.value(self.step.number, steps, epochs)
            print(f"note: the learning rate {' and '.join(said)}: it goes on at {rate:.2g}", file=sys.stderr)

    # -- training ----------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: LabelledData,
        epochs: int,
        *,
        sample_weights: Sequence[FloatArray | None] | None = None,
        validation: LabelledData | None = None,
        metrics: Sequence[Mapping[str, Metric]] | None = None,
        callbacks: Sequence[Callback] = (),
        keep: Callable[[Progress], None] = lambda progress: None,
        history: Mapping[str, list[float]] | None = None,
        class_names: tuple[str, ...] = (),
        verbose: bool = True,
    ) -> Progress:
        """Trains up to epoch ``epochs``, counted from the very beginning if this training was resumed.

        ``sample_weights`` are those of prepare_sample_weights for each output, for data that are no stream; ``metrics``
        for each output what named_metrics gives. ``keep`` is called after every epoch, before the callbacks, and at the
        end, behind them.

        Raises:
            DataError: samples or labels that cannot be used.
            TrainingError: the loss or the weights are not finite.
        """
        heads = self.step.heads
        asked = metrics or ({},) * len(heads)
        if any(asked) and (validation is None or validation.labels is None):
            rule = "metrics are measured on validation data that are no stream"
            hint = "give validation=(x, y), arrays." if data.count is None else "validation=0.1 holds a tenth out."
            raise OptionError("fit", rule, validation=None if validation is None else "a stream", hint=hint)
        schedule = self.step.optimizer.schedule
        if schedule.depends_on_steps and data.steps(self.batch_size) is None:
            rule = "a stream of batches whose number is unknown needs a constant learning rate"
            raise OptionError("fit", rule, schedule=schedule, hint="give the stream a length: a class with __len__.")
        planned: dict[str, Any] = {} if data.count is None else {"samples": data.count}
        if schedule.depends_on_epochs:
            planned[EPOCHS] = epochs
        if self.batches and (data.count is None) != ("samples" not in self._settings):
            rule = "in the middle of an epoch, data must come as before: by their numbers, or as a stream"
            raise OptionError("resume", rule, now="a stream" if data.count is None else f"{data.count} samples")
        self._agree(self._settings, planned)
        self._settings |= planned
        progress = Progress(self, epochs, {name: list(values) for name, values in (history or {}).items()})
        progress.class_names = class_names
        progress.metrics += measured_names(heads)
        more = [f"validation_{head_name(head, name)}" for head, own in zip(heads, asked, strict=True) for name in own]
        if validation is not None:
            progress.metrics += [*(f"validation_{name}" for name in measured_names(heads)), *more]
        if data.count is not None and progress.writes:
            # Where batch norms are over all shards, they see whole batches.
            size = self.step.batch_size if self.step.lockstep is None else self.batch_size
            note_single_values(self.step.graph, self.step.frozen, data.count % size or size)
        is_noted = not progress.writes
        evaluator = None if validation is None else self._evaluator(validation)
        callbacks = [callback for callback in callbacks if progress.writes or not callback.only_logs]
        _tell(callbacks, "begin", progress)
        loader = Loader(self.step.executor)
        if self.epoch < epochs:
            reserved = self.step.bytes + (evaluator.plan.bytes() if evaluator is not None else 0)
            with bar("loading data", data.count, verbose) as shown:
                loader.keep(data.sources, reserved, shown.update)
            if evaluator is not None and validation is not None:
                with bar("loading validation data", validation.count, verbose) as shown:
                    evaluator.loader.keep(validation.sources, reserved + data.bytes, shown.update)
        has_accuracy = len(heads) == 1 and heads[0].loss.takes_classes
        table = Table(epochs, has_accuracy, validation is not None, more)
        if verbose and self.epoch < epochs:
            self._note_changes(-(-(data.steps(self.batch_size) or 1) // self.accumulate), epochs)
            print(table.header, file=sys.stderr)
        while self.epoch < epochs and progress.stop is None:
            start = time.perf_counter()
            record, count = self._run_epoch(loader, data, sample_weights, progress, callbacks, verbose)
            seconds = max(1e-9, time.perf_counter() - start)  # A clock may stand still.
            if evaluator is not None and validation is not None:
                world = self.step.world
                with world.together("validation"), bar("validation", validation.count, verbose) as shown:
                    finish = evaluator.measure(validation, self.step.loss_weights, asked, world, shown.update)
                record |= {f"validation_{name}": value for name, value in finish().items()}
            record = self.step.world.broadcast(record)
            is_noted = is_noted or note_divergence(self._first_loss or 0.0, record, self.epoch + 1)
            self.epoch, self.batches, self.samples = self.epoch + 1, 0, 0
            if verbose:
                print(table.row(self.epoch, seconds, count, self.learning_rate, record), file=sys.stderr)
            _record(progress.history, record)
            keep(progress)
            _tell(callbacks, "epoch_end", progress)
        _record(progress.history, {})
        _tell(callbacks, "end", progress)
        keep(progress)
        return progress

    def check(self) -> None:
        """Waits for the device, and raises TrainingError unless the epoch's losses and the weights are finite."""
        self._check_loss(self.step.totals())
        broken = not_finite(self.weights())
        if broken:
            rule = "the weights must stay finite"
            raise TrainingError("training", rule, epoch=self.epoch + 1, broken=broken, hint=DIVERGED)

    def _run_epoch(
        self,
        loader: Loader,
        data: LabelledData,
        sample_weights: Sequence[FloatArray | None] | None,
        progress: Progress,
        callbacks: Sequence[Callback],
        verbose: bool,
    ) -> tuple[dict[str, float], int]:
        """What is left of a pass over the data, with a progress bar that is gone when it ends.

        Returns:
            The metrics of the whole pass, and how many samples were left.
        """
        step, size, epochs, before = self.step, self.step.batch_size, progress.epochs, self.samples
        first_step = step.number - -(-self.batches // self.accumulate)

        def check(totals: FloatArray) -> None:
            """Raises TrainingError if a loss was not finite."""
            if np.isfinite(totals[0]):
                return
            # What came behind the batch with that loss has changed nothing.
            number = -(-int(totals[TOTALS - 1]) // size) - 1
            step.number = first_step + number // self._together
            layer = {}
            if len(step.heads) > 1:
                broken = [head.name for head in step.heads[1:] if not np.isfinite(totals[head.totals][0])]
                layer["output"] = ", ".join(broken) or step.heads[0].name
            order = self._order(data)
            if order is not None and step.shards == 1:
                samples = order[number * size : (number + 1) * size]
                count = loader.load(data.reader, samples)
                rows = self._rows(order)
                if rows is not None:
                    step.change_samples(rows.of(number * size, count))
                layer["first_layer"] = step.first_not_finite(count)
            rule = "the loss must stay finite"
            raise TrainingError("training", rule, epoch=self.epoch + 1, step=step.number, **layer, hint=DIVERGED)

        self._check_loss = check
        if not self.batches:
            step.reset_totals()
        with bar(f"epoch {self.epoch + 1}/{epochs}", data.count, verbose, before) as shown:
            watch, number = _Watch(step, shown, check), step.number
            steps = self._run_steps(loader, data, sample_weights, epochs)
            while True:
                # Of what callbacks do nobody knows how long it takes, nor of the first step, which finds memory.
                with step.world.doing("steps" if self.is_begun else "begins"):
                    count = next(steps, None)
                if count is None:
                    break
                self.is_begun = True
                shown.update(count)
                watch.look()
                if step.number != number:
                    number = step.number
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
        self._check_loss = _check_nothing  # The other one holds this trainer, and with it memory of the device.
        return measurements(step.sum_of_shards(totals), step.heads, step.loss_weights), self.samples - before

    def _run_steps(
        self, loader: Loader, data: LabelledData, sample_weights: Sequence[FloatArray | None] | None, epochs: int
    ) -> Iterator[int]:
        """What is left of an epoch's steps; yields the number of samples of each batch, when its work is on its way.

        Of several shards, that of each step.
        """
        step, size = self.step, self.step.batch_size
        schedule, in_all = step.optimizer.schedule, data.steps(self.batch_size)
        steps = 1 if in_all is None else -(-in_all // self.accumulate)
        order, first = self._order(data), self.samples
        planned, found = itertools.tee(self._planned(data, order))
        in_step = step.lockstep is not None
        in_turn = (own.shards[shard][number] for own in found for shard, number in own.turns(in_step=in_step))
        runs, places = itertools.tee(in_turn)
        rows = self._rows(order)
        several = self._together > 1 or step.shards > 1
        sent = first

        def move(labels: Sequence[Labels]) -> None:
            nonlocal sent
            place, count = next(places).place, len(labels[0])
            place = sent if place is None else place
            if rows is not None and step.moves_labels:
                step.move_labels(labels, rows.of(place, count))
            sent = place + count

        def weigh(place: int, count: int) -> tuple[float, ...]:
            """Says what changes the batch that was loaded, and the weights of its samples; their sums."""
            if rows is not None:
                step.change_samples(rows.of(place, count))
            weights = None
            if sample_weights is not None and order is not None:
                chosen = order[place : place + count]
                weights = [None if own is None else own[chosen] for own in sample_weights]
            return step.weigh(loader.labels, weights)

        loaded = loader.batches(data.reader, (run.job for run in runs), move)
        for planned_step in planned:
            own_runs, of_all, _ = planned_step
            if in_step:
                self._compute_together(planned_step, first, loaded, weigh)
                own_runs = ()
            batches, samples, weight = 0, 0, 0.0  # of the step that is under way
            count = 0
            for shard, of_shard in enumerate(own_runs):
                if several:
                    step.sum.begin(shard)
                for number, run in enumerate(of_shard, 1):
                    is_last = shard == len(own_runs) - 1 and number == len(of_shard)
                    count = next(loaded, 0)
                    if not count:
                        break
                    place = first + samples if run.place is None else run.place
                    own = weigh(place, count)
                    if several:
                        # How much the samples to come weigh is not known yet: the sum is brought to scale at its end.
                        batch = Batch(count, first=place - first, divisor=size)
                        step.compute_gradients(batch, exchanging=is_last)
                        step.sum.add()
                    else:
                        step.compute_gradients(Batch(count, divisor=own))
                    # NOTE: there is one sum for all outputs, whose batches weigh the same (fit sees to it).
                    batches, samples, weight = batches + 1, samples + count, weight + own[0]
                    if step.shards == 1 and batches < self._together:
                        yield count
                        count = 0
                if several:
                    step.sum.end(weight)
                    weight = 0.0
            if of_all is not None:
                batches, samples = of_all
            if not batches:
                return
            is_finite = step.sum.finish(size) if several else True
            self.learning_rate = self.rate_factor * schedule.value(step.number, steps, epochs)
            step.update(self.learning_rate)
            first += samples
            self.batches, self.samples = self.batches + batches, first
            if not is_finite:
                self._check_loss(step.totals())
            yield samples if step.shards > 1 else count

    def _compute_together(
        self,
        planned: _PlannedStep,
        first: int,
        loaded: Iterator[int],
        weigh: Callable[[int, int], tuple[float, ...]],
    ) -> None:
        """The gradients of a step whose shards are computed in step; ``first`` is the place of its first sample."""
        step = self.step
        weights = [0.0] * len(planned.shards)
        for number, counts in enumerate(planned.counts):
            for shard, runs in enumerate(planned.shards):
                if number >= len(runs):
                    break  # Nor have those behind it.
                count, place = next(loaded), runs[number].place
                assert place is not None, "all samples of shards have places"
                weights[shard] += weigh(place, count)[0]
                of_all = {"whole": sum(counts), "shard": step.own_shards[shard]}
                step.begin_gradients(shard, Batch(count, first=place - first, divisor=step.batch_size, **of_all))
            step.finish_gradients(counts)
        step.sum.end_together(weights)

    @property
    def _together(self) -> int:
        """Runs of the plan whose gradients are added up in a shard of a whole step."""
        return self.accumulate * self.parts

    @property
    def _step_size(self) -> int:
        """Samples of a whole step."""
        return self.accumulate * self.batch_size

    def _planned(self, data: LabelledData, order: Rows | None) -> Iterator[_PlannedStep]:
        """What is left of an epoch's steps; of a stream in one shard, whose end nobody knows, they have none."""
        if order is not None:
            yield from self._of_order(order)
        elif self.step.shards > 1:
            yield from self._of_stream(data)
        else:
            for job in data.jobs(self.step.batch_size, self.batches):
                yield _PlannedStep([[_Run(None, job)] * self._together], None)

    def _of_order(self, order: Rows) -> Iterator[_PlannedStep]:
        """The steps over samples with numbers: a step fills its shards from the first one on."""
        size, end = self.step.batch_size, len(order)
        room = self._together * size
        for first in range(self.samples, end, self._step_size):
            starts = [first + number * room for number in range(self.step.shards)]
            every = [
                [slice(place, min(place + size, end)) for place in range(start, min(start + room, end), size)]
                for start in starts
            ]
            own = every[self.step.own_shards.start : self.step.own_shards.stop]
            shards = [[_Run(part.start, order[part]) for part in parts] for parts in own]
            samples = min(self._step_size, end - first)
            yield _PlannedStep(shards, (-(-samples // self.batch_size), samples), _counts(every))

    def _of_stream(self, data: LabelledData) -> Iterator[_PlannedStep]:
        """The steps over a stream, of which every rank takes its shards' parts; batches may be small, all of them.

        So a batch is dealt out to all shards evenly.
        """
        assert data.stream is not None, "samples without numbers come in a stream"
        place, batches = self.samples, data.stream.batches(self.batch_size, self.batches)
        while some := list(itertools.islice(batches, self.accumulate)):
            shards: list[list[_Run]] = [[] for _ in self.step.own_shards]
            every: list[list[slice]] = [[] for _ in range(self.step.shards)]
            first = place
            for samples, labels in some:
                count = len(samples[0])
                room = -(-count // self.step.shards)
                for start, parts in zip(range(0, count, room), every, strict=False):
                    parts.append(slice(start, min(start + room, count)))
                for runs, number in zip(shards, self.step.own_shards, strict=True):
                    if number * room < count:
                        part = every[number][-1]
                        own = tuple(x[part] for x in samples), tuple(y[part] for y in labels)
                        runs.append(_Run(place + part.start, iter([own])))
                place += count
            yield _PlannedStep(shards, (len(some), place - first), _counts(every))

    def _order(self, data: LabelledData) -> Rows | None:
        """The samples' numbers in the order of this epoch; None where they have none."""
        if data.count is None:
            return None
        order: Rows = np.random.default_rng([self.step.seed, self.epoch]).permutation(data.count)
        return order

    def _rows(self, order: Rows | None) -> EpochRows | None:
        """How the samples of this epoch change, by their places in its order; None if they do not."""
        # What comes in a stream has the number at which it came.
        return self.step.epoch_rows(self.epoch, np.arange if order is None else lambda first, end: order[first:end])

    def _evaluator(self, data: LabelledData) -> Evaluator:
        """Measures held-out samples with the parameters that are trained, in the memory that training leaves free."""
        step, info = self.step, self.step.device.info
        room = info.memory, info.largest_allocation, step.bytes
        sample_type, debug = data.reader.sample_types, step.executor.debug
        settings: dict[str, Any] = {"sample_type": sample_type, "parameters": step.parameters.table}
        plan = make_plan(step.graph, step.batch_size, loss=step.losses, tuning=step.plan.request.tuning, **settings)
        most = step.batch_size if plan.fits(*room) else max(1, plan.largest_batch(*room))
        sizes = [most >> halves for halves in range(most.bit_length())]

        def evaluator(batch_size: int) -> Evaluator:
            return Evaluator(step.device, step.graph, step.result, batch_size, step.losses, sample_type, debug)

        return first_that_fits(step.device, sizes, evaluator)


def _counts(parts: Sequence[Sequence[slice]]) -> list[list[int]]:
    """How many samples the first parts of all shards have, then the second ones, ..."""
    sizes = ([part.stop - part.start for part in own] for own in parts)
    return [list(counts) for counts in itertools.zip_longest(*sizes, fillvalue=0)]


def _tell(callbacks: Sequence[Callback], event: str, progress: Progress) -> None:
    """Calls a method of all callbacks; what only logs measures by itself, since it is the first rank's alone."""
    for callback in callbacks:
        with World.alone() if callback.only_logs else contextlib.nullcontext():
            getattr(callback, event)(progress)


def _check_nothing(totals: FloatArray) -> None:
    """Between epochs there is nothing to check."""


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

    def look(self) -> None:
        """To be called after every step."""
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
