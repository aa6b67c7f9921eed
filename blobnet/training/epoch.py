"""One pass over the data: its steps, and its batches on their way to the device."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from blobnet.datasets.source import Rows
from blobnet.execution.inference import LabelledData
from blobnet.execution.loader import Labels, Loader
from blobnet.memory.blob import FloatArray
from blobnet.metrics.types import Metric
from blobnet.training.training_step import TrainingStep


class Run(NamedTuple):
    """A run of the plan.

    Attributes:
        shard: among those of the rank; the first one, where there are several at once.
        number: which run of its shard in the step it is.
        place: of its first sample in the epoch; None where it follows from the batches before.
        job: the loader's.
        of_shard: the samples of each shard at once, of which the last one may have less; None: there is one.
    """

    shard: int
    number: int
    place: int | None
    job: Any
    of_shard: int | None = None

    def parts(self, count: int) -> list[slice]:
        """The samples of each shard, of ``count``."""
        room = self.of_shard or count
        return [slice(first, min(first + room, count)) for first in range(0, count, room)]


class PlannedStep(NamedTuple):
    """A step.

    Attributes:
        runs: of the rank, in the order in which they are computed.
        of_all: its batches and samples over all ranks; None where they are known when the batches are there.
        counts: the samples of the first run of each shard of all ranks, then of the second, ...
    """

    runs: Sequence[Run]
    of_all: tuple[int, int] | None = None
    counts: Sequence[Sequence[int]] = ()


class Loaded(NamedTuple):
    """A batch on the device.

    Attributes:
        samples: how many there are.
        place: of the first one in the epoch.
        weights: of each of its shards at each output.
    """

    samples: int
    place: int
    weights: list[tuple[float, ...]]


@dataclass(frozen=True)
class TrainingData:
    """The data of a training.

    Attributes:
        train: samples and labels to train on.
        sample_weights: for each output what prepare_sample_weights gives, for data that are no stream; None for none.
        validation: samples and labels to measure behind every epoch.
        metrics: what else to measure there, for each output what named_metrics gives.
    """

    train: LabelledData
    sample_weights: Sequence[FloatArray | None] | None = None
    validation: LabelledData | None = None
    metrics: Sequence[Mapping[str, Metric]] = ()


class Epoch:
    """The rest of a pass over the data.

    Args:
        step: what the batches are for.
        loader: brings them to the device.
        data: of the training.
        number: of the epoch; the order of the samples follows from it and the seed.
        done: batches and samples that are done.
        in_turn: puts the runs of a step into the order in which they are computed.

    Attributes:
        steps: what is left.
    """

    def __init__(
        self,
        step: TrainingStep,
        loader: Loader,
        data: TrainingData,
        number: int,
        done: tuple[int, int],
        in_turn: Callable[[Sequence[Run]], Sequence[Run]],
    ) -> None:
        self._step, self._loader, self._data, self._in_turn = step, loader, data.train, in_turn
        self._sample_weights = data.sample_weights
        self._batches, self._samples = done
        order: Rows | None = None
        if self._data.count is not None:
            order = np.random.default_rng([step.settings.seed, number]).permutation(self._data.count)
        #: The samples' numbers in their order; None where they have none.
        self._order = order

        def numbers(first: int, end: int) -> Rows:
            # What comes in a stream has the number at which it came.
            return np.arange(first, end) if order is None else order[first:end]

        #: How samples change, by their places in the epoch; None if they do not.
        self._rows = step.changes.rows(number, numbers)
        #: Runs whose labels are still to be changed, and the place behind those that are.
        self._coming: deque[Run] = deque()
        self._changed = self._samples
        # The loader is ahead of the steps.
        self.steps: Iterator[PlannedStep]
        self.steps, ahead = itertools.tee(self._planned())
        self._loaded = loader.batches(self._data.reader, self._jobs(ahead), self._change)

    def close(self) -> None:
        """Lets go of what is under way, which holds memory of the device."""
        self._loaded.close()
        self.steps = iter(())

    # -- batches -----------------------------------------------------------------------------------------------------

    def load(self, run: Run, place: int) -> Loaded | None:
        """Brings the next batch to the device, which is that of a run; None behind the last one of a stream.

        ``place`` is that of its first sample, where the run does not say it.
        """
        count, place = next(self._loaded, 0), place if run.place is None else run.place
        if not count:
            return None
        if self._rows is not None:
            self._step.change_samples(self._rows.of(place, count))
        weights = None
        if self._sample_weights is not None and self._order is not None:
            chosen = self._order[place : place + count]
            weights = [None if own is None else own[chosen] for own in self._sample_weights]
        return Loaded(count, place, self._step.weigh(self._loader.labels, weights, run.parts(count)))

    def _jobs(self, steps: Iterator[PlannedStep]) -> Iterator[Any]:
        for planned in steps:
            for run in planned.runs:
                self._coming.append(run)
                yield run.job

    def _change(self, labels: Sequence[Labels]) -> None:
        """Moves the labels of a batch along with its samples, before they are sent."""
        run, count = self._coming.popleft(), len(labels[0])
        place = self._changed if run.place is None else run.place
        if self._rows is not None and self._step.changes.moves_labels:
            rows = self._rows.of(place, count)
            for part in run.parts(count):
                self._step.changes.move_labels([own[part] for own in labels], rows[part])
        self._changed = place + count

    def first_not_finite(self, number: int) -> str | None:
        """The first layer that leaves NaN or infinity for a run of a single shard; None where it cannot be repeated."""
        if self._order is None or self._step.settings.shards > 1:
            return None
        size = self._step.batch_size
        count = self._loader.load(self._data.reader, self._order[number * size : (number + 1) * size])
        if self._rows is not None:
            self._step.change_samples(self._rows.of(number * size, count))
        return self._step.first_not_finite(count)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _planned(self) -> Iterator[PlannedStep]:
        """Yield the steps that are left; those of a stream in one shard, whose end nobody knows, have no counts."""
        settings, of_shard = self._step.settings, self._step.settings.accumulate * self._step.parts
        if self._order is not None:
            yield from self._of_order(self._order, of_shard)
        elif settings.shards > 1:
            yield from self._of_stream()
        else:
            for job in self._data.jobs(self._step.batch_size, self._batches):
                yield PlannedStep([Run(0, number, None, job) for number in range(of_shard)])

    def _of_order(self, order: Rows, of_shard: int) -> Iterator[PlannedStep]:
        """The steps over samples with numbers: a step fills its shards, of so many runs, from the first one on."""
        step, size, end = self._step, self._step.batch_size, len(order)
        room, batch_size = of_shard * size, step.settings.batch_size
        in_step = step.settings.accumulate * batch_size
        for first in range(self._samples, end, in_step):
            starts = [first + number * room for number in range(step.settings.shards)]
            every = [
                [slice(place, min(place + size, end)) for place in range(start, min(start + room, end), size)]
                for start in starts
            ]
            own = every[step.own_shards.start : step.own_shards.stop]
            runs = [
                Run(shard, number, part.start, order[part], of_shard)
                for shard, of_shard, parts in self._together(own, size)
                for number, part in enumerate(parts)
            ]
            samples = min(in_step, end - first)
            yield PlannedStep(self._in_turn(runs), (-(-samples // batch_size), samples), _counts(every))

    def _of_stream(self) -> Iterator[PlannedStep]:
        """The steps over a stream, of which every rank takes its shards' parts; batches may be small, all of them.

        So a batch is dealt out to all shards evenly.
        """
        assert self._data.stream is not None, "samples without numbers come in a stream"
        step, place = self._step, self._samples
        batches = self._data.stream.batches(step.settings.batch_size, self._batches)
        while some := list(itertools.islice(batches, step.settings.accumulate)):
            runs: list[Run] = []
            every: list[list[slice]] = [[] for _ in range(step.settings.shards)]
            first = place
            for samples, labels in some:
                count = len(samples[0])
                room = -(-count // step.settings.shards)
                for start, parts in zip(range(0, count, room), every, strict=False):
                    parts.append(slice(start, min(start + room, count)))
                own = [parts[-1:] if number * room < count else [] for number, parts in enumerate(every)]
                mine = own[step.own_shards.start : step.own_shards.stop]
                for shard, of_shard, parts in self._together(mine, room):
                    for part in parts:
                        job = tuple(x[part] for x in samples), tuple(y[part] for y in labels)
                        number = len(every[step.own_shards[shard]]) - 1
                        runs.append(Run(shard, number, place + part.start, iter([job]), of_shard))
                place += count
            yield PlannedStep(self._in_turn(runs), (len(some), place - first), _counts(every))

    def _together(self, parts: Sequence[list[slice]], room: int) -> Iterator[tuple[int, int | None, list[slice]]]:
        """The shards that run together: the first one, the room of each if there are several, and their data.

        ``parts`` are those of each shard, each of ``room`` samples at most. Those of shards at once are one run's.
        """
        at_once = self._step.plan.request.at_once
        for shard in range(0, len(parts), at_once):
            own = [part for of_shard in parts[shard : shard + at_once] for part in of_shard]
            if at_once > 1 and own:
                own = [slice(own[0].start, own[-1].stop)]
            yield shard, room if at_once > 1 else None, own


def _counts(parts: Sequence[Sequence[slice]]) -> list[list[int]]:
    """Return the numbers of samples of the first parts of all shards, then of the second ones, ..."""
    sizes = ([part.stop - part.start for part in own] for own in parts)
    return [list(counts) for counts in itertools.zip_longest(*sizes, fillvalue=0)]
