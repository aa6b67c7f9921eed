"""Running a model on data without training it."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray
from blobnet.datasets.checks import check_label_array, check_label_values, classes_of_one_hot
from blobnet.datasets.source import Source, is_stream, runs, source_of
from blobnet.device import Device, Reading
from blobnet.errors import DataError
from blobnet.executor import Executor, plan_for
from blobnet.graph import Graph
from blobnet.kernel_call import CONSTANT
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


def prepare_labels(graph: Graph, loss: Loss, x_shape: tuple[int, ...], y: Any, subject: str) -> npt.NDArray[Any]:
    """Labels of samples (N, ...) as the device takes them: int32 class numbers, or float32 targets.

    Raises:
        DataError: labels that are not classes of the model, or targets of another shape or out of range.
        ShapeError: the loss does not fit the model's output.
    """
    output = graph.output.shape
    loss.check(output)
    if not isinstance(y, np.ndarray) and hasattr(y, "shape") and hasattr(y, "__getitem__"):
        y = np.asarray(y[()])  # an h5py data set
    if loss.takes_classes and not output.rank and isinstance(y, np.ndarray):
        y = classes_of_one_hot(y, output.units)
    check_label_array(y, x_shape, subject)
    if loss.takes_classes:
        check_label_values(y, output.units, subject, positions=output.dimensions[1:], ignore=loss.ignored_label)
        return loss.device_labels(y)
    check_label_values(y.astype(np.float32) if y.dtype.kind in "biu" else y, None, subject)
    target = tuple(y.shape[1:])
    # One value may go without an axis of its own, and several may come as one row.
    if target not in (output.dimensions, (output.elements,)) and not (target == () and output.elements == 1):
        raise DataError(subject, "each target must have the shape of the model's output", target=target, output=output)
    loss.check_targets(y, subject)
    return loss.device_labels(y)


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
        labels: theirs, as :func:`prepare_labels` gives them; None where they come in a stream.
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
        self.labels: npt.NDArray[Any] | None = None
        self.reader: Reader
        self.count: int | None = None
        self.bytes = 0
        self.steps: Callable[[int], int | None]
        self._jobs: Callable[[int], Iterable[Any]]
        if y is None and is_stream(x):
            loss.check(graph.output.shape)
            name = f"{prefix}x"
            stream = StreamReader(
                x,
                graph.input.shape.dimensions,
                lambda batch, labels: prepare_labels(graph, loss, batch.shape, np.asarray(labels), name),
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
        self.steps, self._jobs = lambda size: -(-count // size), lambda size: runs(count, size)

    def jobs(self, size: int) -> Iterable[Any]:
        """The reader's jobs for batches of at most ``size`` samples, in order."""
        return self._jobs(size)


def metric_names(loss: Loss) -> tuple[str, ...]:
    """What :func:`metrics_of` measures."""
    return METRICS if loss.takes_classes else METRICS[:1]


def metrics_of(totals: FloatArray, loss: Loss) -> dict[str, float]:
    """The means of the totals that a loss kept on the device; accuracies only where labels are classes."""
    total, weight, right, among_five, counted = (float(value) for value in totals[:-1])
    means = {"loss": (total, weight), "accuracy": (right, counted), "top_5": (among_five, counted)}
    return {name: means[name][0] / means[name][1] if means[name][1] else math.nan for name in metric_names(loss)}


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
        self._version: int | None = None
        self._results: list[FloatArray] = []

    def predict(self, reader: Reader, count: int) -> FloatArray:
        """The model's output for samples 0 to ``count``: (count, units[, height][, width])."""
        output = self.plan.outputs[self.plan.graph.output.name]
        result = np.empty((count, *self.plan.graph.output.shape.dimensions), np.float32)
        done, arriving = 0, None
        for samples in self.loader.batches(reader, runs(count, self.plan.batch_size)):
            self._run(samples)
            following = samples, self._read(output.storage, samples * output.layout.memory_elements)
            # The device works on this batch while the host unpacks the one before.
            if arriving is not None:
                done = self._unpack(arriving, result, done)
            arriving = following
        if arriving is not None:
            self._unpack(arriving, result, done)
        return result

    def _read(self, storage: str, elements: int) -> Reading:
        """Begins to read a buffer, to one of two places in turn."""
        device = self.executor.device
        if len(self._results) < 2:
            size = self.plan.batch_size * self.plan.outputs[self.plan.graph.output.name].layout.memory_elements
            self._results.append(device.host_memory(4 * size).view(np.float32))
        self._results.reverse()
        return device.read_later(self.executor.buffer_of(storage), self._results[0][:elements])

    def _unpack(self, arriving: tuple[int, Reading], result: FloatArray, done: int) -> int:
        count, reading = arriving
        layout = self.plan.outputs[self.plan.graph.output.name].layout
        values = layout.data(reading.values(), count)
        result[done : done + count] = values.reshape(count, *result.shape[1:])
        return done + count

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
        if self._version != self.parameters.version:
            self.executor.run(CONSTANT, self.plan.batch_size)
            self._version = self.parameters.version
        self.executor.run("forward", count)


class Evaluators:
    """The evaluators that a model keeps, a few at most: for batches of BUCKETS and of the size asked for.

    One caller at a time has one of them, with the weights that it asked for.
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
