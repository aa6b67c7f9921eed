"""Running a model on data without training it."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from blobnet.blob import FloatArray
from blobnet.datasets.source import Source, is_stream, runs, source_of
from blobnet.device import Device, Reading
from blobnet.errors import DataError
from blobnet.executor import Executor, plan_for
from blobnet.graph import Graph
from blobnet.labels import Labels, prepare_labels
from blobnet.loader import IndexedReader, Loader, Reader, StreamReader
from blobnet.losses import Loss
from blobnet.parameters import DeviceParameters

#: Metrics in the order of a loss's totals.
METRICS = ("loss", "accuracy", "top_5")


#: Batch sizes of the plans that serve fewer samples than a whole batch.
BUCKETS = (1, 4, 16, 64)
#: Plans with memory that a model keeps for its next calls.
_MOST_EVALUATORS = 8


def samples_for(graph: Graph, x: Any, subject: str) -> Source:
    """Samples for a model: see :func:`blobnet.datasets.source.source_of`.

    Raises:
        DataError: they have another shape than the model's input, or cannot be samples at all.
    """
    source = source_of(x, subject)
    wanted = graph.input.shape.dimensions
    if source.shape[1:] != wanted:
        rule = "each sample must have the shape of the model's input"
        raise DataError(subject, rule, sample=source.shape[1:], input=wanted)
    return source


class LabelledData:
    """Samples with their labels, ready for batches.

    Args:
        graph: the model.
        loss: what takes the labels.
        x: samples; or, without ``y``, an iterable of pairs of a batch and its labels.
        y: labels or targets.
        subject: what errors call it.

    Attributes:
        reader: reads batches.
        source: the samples by their numbers; None where they come in a stream.
        labels: theirs, as prepare_labels gives them; None where they come in a stream.
        count: how many samples there are; None where nobody knows yet.
        bytes: of all samples that have numbers.
        steps: how many batches of so many samples there are; None where nobody knows.

    Raises:
        DataError: samples or labels that cannot be used.
        ShapeError: the loss does not fit the model's output.
    """

    def __init__(self, graph: Graph, loss: Loss, x: Any, y: Any, subject: str = "") -> None:
        prefix = f"{subject} " if subject else ""
        self.source: Source | None = None
        self.labels: Labels | None = None
        self.reader: Reader
        self.count: int | None = None
        self.bytes = 0
        self.steps: Callable[[int], int | None]
        self._jobs: Callable[[int, int], Iterable[Any]]
        if y is None and is_stream(x):
            loss.check(graph.output.shape)
            name = f"{prefix}x"
            stream = StreamReader(
                x,
                graph.input.shape.dimensions,
                lambda batch, labels: np.asarray(prepare_labels(graph, loss, batch.shape, np.asarray(labels), name)),
                name,
            )
            self.reader, self.steps, self._jobs = stream, lambda size: stream.steps, stream.jobs
            return
        if y is None:
            rule = "y must be the labels or targets of the samples"
            hint = "only an iterable of batches, pairs of x and y, goes without it."
            raise DataError(f"{prefix}y", rule, y=None, hint=hint)
        self.source = samples_for(graph, x, f"{prefix}x")
        self.labels = prepare_labels(graph, loss, self.source.shape, y, f"{prefix}y")
        self.source.check_all()
        self.reader, self.count = IndexedReader(self.source, self.labels), len(self.source)
        self.bytes, count = self.source.bytes, len(self.source)
        self.steps = lambda size: -(-count // size)
        self._jobs = lambda size, skipped: runs(count, size, skipped)

    def jobs(self, size: int, skipped: int = 0) -> Iterable[Any]:
        """The reader's jobs for batches of at most ``size`` samples, in order, without the first ones."""
        return self._jobs(size, skipped)


def metric_names(loss: Loss) -> tuple[str, ...]:
    """What :func:`metrics_of` measures."""
    return METRICS if loss.takes_classes else METRICS[:1]


def metrics_of(totals: FloatArray, loss: Loss) -> dict[str, float]:
    """The means of the totals that a loss kept on the device; accuracies only where labels are classes."""
    total, weight, right, among_five, counted = (float(value) for value in totals[:-1])
    means = {"loss": (total, weight), "accuracy": (right, counted), "top_5": (among_five, counted)}
    return {name: means[name][0] / means[name][1] if means[name][1] else math.nan for name in metric_names(loss)}


class _Arriving(NamedTuple):
    """The output of so many samples on its way to memory."""

    samples: int
    reading: Reading
    memory: FloatArray


class Evaluator:
    """An inference plan with memory: predictions and metrics.

    Args:
        device: where to run.
        graph: the model.
        parameters: all parameters on the device, which may be a trainer's.
        batch_size: the most samples at once.
        loss: what to measure; None for predictions only.
        sample_type: NumPy's name for the type of the samples.
        debug: see Executor.
    """

    def __init__(
        self,
        device: Device,
        graph: Graph,
        parameters: DeviceParameters,
        batch_size: int,
        loss: Loss | None = None,
        sample_type: str = "float32",
        debug: bool | None = None,
    ) -> None:
        self.loss = loss
        self.parameters = parameters
        table = parameters.table
        self.plan = plan_for(device, graph, batch_size, loss=loss, sample_type=sample_type, parameters=table)
        self.executor = Executor(device, self.plan, {"parameters": parameters.buffer}, debug=debug)
        self.loader = Loader(self.executor)
        #: Host memory for outputs that nobody uses.
        self._results: deque[FloatArray] = deque()

    def predict(self, reader: Reader, count: int) -> FloatArray:
        """The model's output for samples 0 to ``count``: (count, units[[[, depth], height], width])."""
        return self.begin(reader, count)()

    def begin(self, reader: Reader, count: int) -> Callable[[], FloatArray]:
        """Begins to predict: a function that waits for the last batch and gives what :meth:`predict` does.

        It may be called while another thread already has the evaluator.
        """
        result = np.empty((count, *self.plan.graph.output.shape.dimensions), np.float32)
        done, last = 0, None

        def take(arriving: _Arriving) -> None:
            nonlocal done
            outputs = self._unpacked(arriving)
            result[done : done + len(outputs)] = outputs
            done += len(outputs)
            self._results.append(arriving.memory)

        for arriving in self._arriving(reader, runs(count, self.plan.batch_size)):
            # The device works on this batch while the host takes the one before.
            if last is not None:
                take(last)
            last = arriving

        def finish() -> FloatArray:
            if last is not None:
                take(last)
            return result

        return finish

    def outputs(self, reader: Reader, jobs: Iterable[Any]) -> Iterator[FloatArray]:
        """The model's output for the batch of each job in turn, which holds until the next one is asked for."""
        last = None
        for arriving in itertools.chain(self._arriving(reader, jobs), [None]):
            if last is not None:
                yield self._unpacked(last)
                self._results.append(last.memory)
            last = arriving

    def _arriving(self, reader: Reader, jobs: Iterable[Any]) -> Iterator[_Arriving]:
        """The output of each batch, on its way as soon as the device has the batch."""
        output, device = self.plan.outputs[self.plan.graph.output.name], self.executor.device
        elements = output.layout.memory_elements
        for count in self.loader.batches(reader, jobs):
            self._run(count)
            if self._results:
                memory = self._results.popleft()
            else:
                memory = device.host_memory(4 * self.plan.batch_size * elements).view(np.float32)
            values = memory[: count * elements]
            yield _Arriving(count, device.read_later(self.executor.buffer_of(output.storage), values), memory)

    def _unpacked(self, arriving: _Arriving) -> FloatArray:
        layout, count = self.plan.outputs[self.plan.graph.output.name].layout, arriving.samples
        return layout.data(arriving.reading.values(), count).reshape(count, *self.plan.graph.output.shape.dimensions)

    def evaluate(self, data: LabelledData, advance: Callable[[int], object] | None = None) -> dict[str, float]:
        """The mean loss and, for classes, the accuracies.

        Args:
            data: samples and labels.
            advance: called with the number of samples after each batch.
        """
        assert self.loss is not None
        executor, device = self.executor, self.executor.device
        device.fill_zero(executor.buffers["totals"], 4 * (Loss.SAMPLE_METRICS + 1))
        for count in self.loader.batches(data.reader, data.jobs(self.plan.batch_size)):
            self._run(count)
            executor.run("loss", count)
            if advance is not None:
                advance(count)
        return metrics_of(device.read(executor.buffers["totals"], Loss.SAMPLE_METRICS + 1), self.loss)

    def _run(self, count: int) -> None:
        self.executor.prepare(self.parameters.version)
        self.executor.run("forward", count)


class Evaluators:
    """The evaluators that a model keeps, a few at most: for batches of BUCKETS and of the size asked for.

    One caller at a time has one of them, with the weights that it asked for, until the device has its last batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, Evaluator] = OrderedDict()
        self._parameters: dict[int, tuple[DeviceParameters, Mapping[str, FloatArray]]] = {}

    @contextlib.contextmanager
    def lend(
        self,
        device: Device,
        graph: Graph,
        weights: Mapping[str, FloatArray],
        *,
        count: int | None,
        batch_size: int,
        loss: Loss | None,
        sample_type: str,
        precision: str,
    ) -> Iterator[Evaluator]:
        """An evaluator with these weights, for ``count`` samples in batches of at most ``batch_size``."""
        whole = count is None or count >= batch_size
        size = batch_size if whole else min(size for size in (*BUCKETS, batch_size) if size >= (count or 0))
        kind = (id(device.queue), precision, min(size, batch_size), loss, sample_type)
        with self._lock:
            parameters = self._written(device, graph, weights)
            evaluator = self._kept.get(kind)
            if evaluator is None:
                while len(self._kept) >= _MOST_EVALUATORS:
                    self._kept.popitem(last=False)
                evaluator = Evaluator(device.at(precision), graph, parameters, kind[2], loss, sample_type)
                self._kept[kind] = evaluator
            self._kept.move_to_end(kind)
            try:
                yield evaluator
            except BaseException:
                self._kept.pop(kind, None)  # Who knows what is still on its way.
                raise

    def _written(self, device: Device, graph: Graph, weights: Mapping[str, FloatArray]) -> DeviceParameters:
        """The parameters on a device; ``weights`` are never changed, but replaced."""
        held = self._parameters.get(id(device.queue))
        parameters = held[0] if held else DeviceParameters(device, graph)
        if held is None or held[1] is not weights:
            parameters.write(weights)
            self._parameters[id(device.queue)] = parameters, weights
        return parameters

    def clear(self) -> None:
        """Gives all memory back."""
        with self._lock:
            self._kept.clear()
            self._parameters.clear()

    def __deepcopy__(self, memo: object) -> Evaluators:
        return Evaluators()
