"""One pass over the data: its steps, and its batches on their way to the device."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from blobnet.augment.epoch_rows import EpochRows
from blobnet.datasets.source import Rows
from blobnet.execution.inference import LabelledData
from blobnet.execution.loader import Labels, Loader
from blobnet.launch.kernel_call import Batch
from blobnet.memory.blob import FloatArray
from blobnet.metrics.types import Metric
from blobnet.network.graph import Graph
from blobnet.training.training_step import TrainingStep


class Run(NamedTuple):
    """A run of the plan.

    Attributes:
        shard: among those of the rank; the first one, where there are several at once.
        number: which run of its shard in the step it is.
        job: the loader's.
        parts: where in the epoch the samples of each of its shards lie, of which the last one may have less than the
            others; None where they follow from the batches before.
    """

    shard: int
    number: int
    job: Any
    parts: Sequence[slice] | None = None

    def places(self, first: int, count: int) -> Sequence[slice]:
        """The parts of ``count`` samples, which begin at ``first`` where the run does not say it."""
        return self.parts or [slice(first, first + count)]

    def batch(self, count: int) -> Batch:
        """What launches are told of ``count`` samples of these shards."""
        starts = [part.start for part in self.parts or ()]
        room = self.parts[0].stop - starts[0] if self.parts else None
        return Batch(count, of_shard=room, apart=starts[1] - starts[0] if starts[1:] else None)


class PlannedStep(NamedTuple):
    """A step.

    Attributes:
        runs: of the rank, in the order in which they are computed.
        of_all: its batches and samples over all ranks; None where they are known when the batches are there.
        counts: the samples of the first run of each shard of all ranks, then of the second, ...
    """

    runs: list[Run]
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

    def of_graph(self, graph: Graph) -> TrainingData:
        """Return the same, to train a graph for samples of another size."""
        return replace(self, train=self.train.of_graph(graph))


class Epoch:
    """The rest of a pass over the data.

    Args:
        step: what the batches are for.
        loader: brings them to the device.
        data: of the training.
        number: of the epoch; the order of the samples follows from it and the seed.
        done: batches and samples that are done.

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
    ) -> None:
        self._step, self._loader, self._data = step, loader, data.train
        self._sample_weights = data.sample_weights
        self._batches, self._samples = done
        order: Rows | None = None
        if self._data.count is not None:
            order = self._data.order(np.random.default_rng([step.settings.seed, number]))
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
        self._rest, ahead = itertools.tee(self._planned())
        #: The next step, where it was looked at; its run whose batch was brought ahead, and that batch, or an error.
        self._next: PlannedStep | None = None
        self._fetched: tuple[Run, Loaded | Exception | None] | None = None
        self.steps = self._left()
        self._loaded = loader.batches(self._data.reader, self._jobs(ahead), self._change)
        self._last: Loaded | None = None

    def close(self) -> None:
        """Lets go of what is under way, which holds memory of the device."""
        self._loaded.close()
        self.steps = iter(())

    # -- batches -----------------------------------------------------------------------------------------------------

    def load(self, run: Run, place: int, *, again: bool = False) -> Loaded | None:
        """Brings the next batch to the device, which is that of a run; None behind the last one of a stream.

        ``place`` is that of its first sample, where the run does not say it. ``again``: it is still there.
        """
        if again:
            return self._last
        if self._fetched is not None:
            (fetched, loaded), self._fetched = self._fetched, None
            assert fetched is run, "steps come one after the other"
            if isinstance(loaded, Exception):
                raise loaded
            return loaded
        if not (count := next(self._loaded, 0)):
            return None
        parts = run.places(place, count)
        if self._rows is not None:
            self._step.change_samples(np.concatenate(self._rows_of(self._rows, parts)))
        weights = None
        if self._sample_weights is not None and self._order is not None:
            chosen = np.concatenate([self._order[part] for part in parts])
            weights = [None if own is None else own[chosen] for own in self._sample_weights]
        sums = self._step.weigh(self._loader.labels, weights, _side_by_side(parts))
        self._last = Loaded(count, parts[0].start, sums)
        return self._last

    def fetch(self, place: int) -> None:
        """Bring the batch of the next step's first run ahead of it, behind all launches of this step that see samples.

        ``place`` is as for :meth:`load`, which raises what goes wrong here: this step is to be finished first.
        """
        self._next = next(self._rest, None)
        if self._next is not None and self._next.runs:
            run = self._next.runs[0]
            try:
                self._fetched = run, self.load(run, place)
            except Exception as error:
                self._fetched = run, error

    @staticmethod
    def _rows_of(rows: EpochRows, parts: Sequence[slice]) -> list[FloatArray]:
        """How the samples of each part of the epoch change."""
        return [rows.of(part.start, part.stop - part.start) for part in parts]

    def _jobs(self, steps: Iterator[PlannedStep]) -> Iterator[Any]:
        for planned in steps:
            # A run that is alone is still on the device when a step computes its gradients again.
            for run in planned.runs * (self._step.sharpness.passes if len(planned.runs) > 1 else 1):
                self._coming.append(run)
                yield run.job

    def _change(self, labels: Sequence[Labels]) -> None:
        """Moves the labels of a batch along with its samples, before they are sent."""
        run, count = self._coming.popleft(), len(labels[0])
        parts = run.places(self._changed, count)
        if self._rows is not None and self._step.changes.moves_labels:
            for part, rows in zip(_side_by_side(parts), self._rows_of(self._rows, parts), strict=True):
                self._step.changes.move_labels([own[part] for own in labels], rows)
        self._changed = parts[-1].stop

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

    def _left(self) -> Iterator[PlannedStep]:
        while (planned := self._next or next(self._rest, None)) is not None:
            self._next = None
            yield planned

    def _planned(self) -> Iterator[PlannedStep]:
        """Yield the steps that are left; those of a stream in one shard, whose end nobody knows, have no counts."""
        settings, of_shard = self._step.settings, self._step.settings.accumulate * self._step.parts
        if self._order is not None:
            yield from self._of_order(self._order, of_shard)
        elif settings.shards > 1 or (self._step.sharpness.passes > 1 and of_shard > 1):
            yield from self._of_stream()
        else:
            for job in self._data.jobs(self._step.batch_size, self._batches):
                yield PlannedStep([Run(0, number, job) for number in range(of_shard)])

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
            numbers = range(max(map(len, every)))
            runs = [
                Run(shard, number, np.concatenate([order[part] for part in parts]), parts)
                for shard, together in self._together(every)
                for number in numbers
                if (parts := [own[number] for own in together if number < len(own)])
            ]
            samples = min(in_step, end - first)
            yield PlannedStep(runs, (-(-samples // batch_size), samples), _counts(every))

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
                for number, own in enumerate(every):
                    own.append(slice(*(place + min(edge * room, count) for edge in (number, number + 1))))
                for shard, together in self._together(every):
                    if parts := [own[-1] for own in together if own[-1].start < own[-1].stop]:
                        part = slice(parts[0].start - place, parts[-1].stop - place)
                        job = tuple(x[part] for x in samples), tuple(y[part] for y in labels)
                        runs.append(Run(shard, len(every[0]) - 1, itertools.repeat(job), parts))
                place += count
            runs.sort(key=attrgetter("shard", "number"))
            yield PlannedStep(runs, (len(some), place - first), _counts(every))

    def _together(self, every: Sequence[list[slice]]) -> Iterator[tuple[int, Sequence[list[slice]]]]:
        """The shards of the rank that run together: the number of the first, and the parts of each."""
        own, at_once = self._step.own_shards, self._step.plan.request.at_once
        for shard in range(0, len(own), at_once):
            yield shard, every[own.start + shard : own.start + shard + at_once]


def _side_by_side(parts: Sequence[slice]) -> list[slice]:
    """The places of parts in the batch that they make."""
    ends = [0, *itertools.accumulate(part.stop - part.start for part in parts)]
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def _counts(parts: Sequence[Sequence[slice]]) -> list[list[int]]:
    """Return the numbers of samples of the first parts of all shards, then of the second ones, ..."""
    sizes = ([part.stop - part.start for part in own] for own in parts)
    return [list(counts) for counts in itertools.zip_longest(*sizes, fillvalue=0)]
