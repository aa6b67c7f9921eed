"""Running a model on data without training it."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.data.labels import Labels, labels_for
from blobnet.data.samples import as_batches, comes_in_batches, sources_for, with_labels
from blobnet.data.values import all_finite
from blobnet.datasets.source import Part, Rows, Source, is_stream, runs
from blobnet.device.device import Device
from blobnet.device.memory import PendingRead
from blobnet.errors import DataError, DeviceError, warn
from blobnet.execution.executor import Executor, plan_for
from blobnet.execution.loader import IndexedReader, Loader, Reader, StreamReader
from blobnet.losses import Loss
from blobnet.memory.blob import FLOAT16, FLOAT32, FloatArray
from blobnet.metrics.naming import measured, named
from blobnet.metrics.types import Metric
from blobnet.network.ends import TOTALS, Head, Losses, heads_of, to_list
from blobnet.network.graph import Graph
from blobnet.network.parameters import DeviceParameters
from blobnet.parallel.world import ALONE, World
from blobnet.planning import Plan

#: Metrics in the order of a loss's totals.
METRICS = ("loss", "accuracy", "top_5")


#: An array for each output of a model.
Outputs: TypeAlias = tuple[FloatArray, ...]
#: Batch sizes of the plans that serve fewer samples than a whole batch.
BUCKETS = (1, 4, 16, 64)
#: Batches whose totals lie on the device side by side: those of each are apart, so that any rank may measure it.
_MEASURED = 64
#: Plans with memory that a model keeps for its next calls.
_MAX_EVALUATORS = 8


class LabelledData:
    """Samples with their labels, ready for batches.

    Args:
        graph: the model.
        losses: what takes the labels of each output.
        x: samples; or, without ``y``, an iterable of pairs of a batch and its labels.
        y: labels or targets.
        subject: what errors call it.

    Attributes:
        graph: the model.
        heads: the outputs with their losses.
        reader: reads batches.
        sources: the samples of each input by their numbers; none where they come in a stream.
        labels: those for each output, as prepare_labels gives them; None where they come in a stream.
        stream: what gives them, where they come in a stream.
        count: how many samples there are; None where nobody knows yet.
        bytes: of all samples that have numbers.
        steps: how many batches of so many samples there are; None where nobody knows.

    Raises:
        DataError: samples or labels that cannot be used.
        ShapeError: a loss does not fit its output.
    """

    def __init__(self, graph: Graph, losses: Losses, x: Any, y: Any, subject: str = "") -> None:
        prefix = f"{subject} " if subject else ""
        self.graph, self._losses = graph, losses
        self.heads = heads = heads_of(graph, losses)
        self.sources: tuple[Source, ...] = ()
        self.labels: tuple[Labels, ...] | None = None
        self.stream: StreamReader | None = None
        self.reader: Reader
        self.count: int | None = None
        self.bytes = 0
        self.steps: Callable[[int], int | None]
        self._jobs: Callable[[int, int, World], Iterable[Any]]
        x, y = with_labels(graph, x, y)
        if y is None and is_stream(x) and not isinstance(x, Mapping):
            name = f"{prefix}x"

            def prepare(batch: npt.NDArray[Any], labels: Any) -> list[npt.NDArray[Any]]:
                own = labels if len(heads) > 1 or isinstance(labels, Mapping) else np.asarray(labels)
                return [np.asarray(item) for item in labels_for(heads, batch.shape, own, name)]

            stream = StreamReader(x, sample_shapes(graph), prepare, name)
            self.stream = self.reader = stream
            self.steps, self._jobs = stream.steps, stream.jobs
            return
        sources = sources_for(graph, x, f"{prefix}x")
        if y is None:
            rule = "y must be the labels or targets of the samples"
            hint = "only an iterable of batches, pairs of x and y, goes without it."
            raise DataError(f"{prefix}y", rule, y=None, hint=hint)
        labels = labels_for(heads, sources[0].shape, y, f"{prefix}y")
        for source in sources:
            source.check_all()
        self._take(sources, labels)

    def _take(self, sources: tuple[Source, ...], labels: tuple[Labels, ...]) -> None:
        self.sources, self.labels, self.count = sources, labels, len(sources[0])
        self.reader, count = IndexedReader(sources, labels), self.count
        self.bytes = sum(source.bytes for source in sources)
        self.steps = lambda size: -(-count // size)
        self._jobs = lambda size, skipped, world: world.scatter(runs(count, size, skipped))

    def order(self, generator: np.random.Generator) -> Rows:
        """Return the numbers of all samples in the order of an epoch, as the first input's source likes to be read."""
        assert self.count is not None, "a stream has its own order"
        order = self.sources[0].order(np.arange(self.count), generator)
        return generator.permutation(self.count) if order is None else order

    @property
    def facts(self) -> dict[str, Any]:
        """What a training that is resumed must find again: the number of samples, and what tells their order."""
        if self.count is None:
            return {}
        order = self.sources[0].order(np.arange(self.count), np.random.default_rng(0))
        own = {} if order is None else {"order": hashlib.sha256(order.tobytes()).hexdigest()[:16]}
        return {"samples": self.count, **own}

    def some(self, rows: Rows) -> LabelledData:
        """Return those of some samples, by their numbers."""
        labels = tuple(own[rows] if isinstance(own, np.ndarray) else Part(own, rows) for own in self.labels or ())
        other = copy.copy(self)
        other._take(tuple(Part(source, rows) for source in self.sources), labels)
        return other

    def of_graph(self, graph: Graph) -> LabelledData:
        """Return the same samples, by their numbers, in the size that a graph of the same input takes."""
        if graph is self.graph:
            return self
        other = copy.copy(self)
        other.graph = graph
        other._take((self.sources[0].resized(*graph.input.shape.sizes),), self.labels or ())
        return other

    def to_validate(self, x: Any, y: Any) -> LabelledData:
        """Return others for the same model and losses."""
        return LabelledData(self.graph, self._losses, x, y, subject="validation")

    def comes_in_batches(self, x: Any) -> bool:
        """Return True if such samples come as an iterable of batches."""
        return comes_in_batches(self.graph, as_batches(self.graph, x))

    def jobs(self, size: int, skipped: int = 0, world: World = ALONE) -> Iterable[Any]:
        """The reader's jobs for this rank's batches of at most ``size`` samples, in order, without the first ones."""
        return self._jobs(size, skipped, world)


def sample_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The axes of a sample of each input, by its name."""
    return {name: vertex.shape.dimensions for name, vertex in graph.inputs.items()}


def metric_names(loss: Loss) -> tuple[str, ...]:
    """Return the names of what :func:`metrics_of` measures."""
    return METRICS if loss.takes_classes else METRICS[:1]


def metrics_of(totals: npt.NDArray[np.floating[Any]], loss: Loss) -> dict[str, float]:
    """The means of the totals that a loss kept on the device; accuracies only where labels are classes."""
    total, weight, right, among_five, counted = (float(value) for value in totals[:-1])
    means = {"loss": (total, weight), "accuracy": (right, counted), "top_5": (among_five, counted)}
    return {name: means[name][0] / means[name][1] if means[name][1] else math.nan for name in metric_names(loss)}


def measured_names(heads: Sequence[Head]) -> tuple[str, ...]:
    """Return the names of :func:`measurements`: of several outputs ``loss``, and the others after the output's name."""
    own = [head_name(head, name) for head in heads for name in metric_names(head.loss)]
    return tuple(own) if len(heads) == 1 else ("loss", *own)


def head_name(head: Head, metric: str) -> str:
    """Return the name of an output's metric in histories: ``accuracy``, or of several outputs ``mask_accuracy``."""
    return metric if head.is_only else f"{head.name}_{metric}"


def measurements(
    totals: npt.NDArray[np.floating[Any]], heads: Sequence[Head], weights: Sequence[float]
) -> dict[str, float]:
    """The metrics of all outputs; ``loss`` is the sum of their losses, each times its weight.

    Of an output of which nothing counted the loss is NaN, and is none of the sum's.
    """
    found = [metrics_of(totals[head.totals], head.loss) for head in heads]
    counts = [bool(totals[head.totals][1]) or len(heads) == 1 for head in heads]
    parts = [weight * own["loss"] for weight, own, is_there in zip(weights, found, counts, strict=True) if is_there]
    loss = sum(parts) if parts else math.nan
    each = {head_name(head, name): value for head, own in zip(heads, found, strict=True) for name, value in own.items()}
    return {"loss": loss, **{name: value for name, value in each.items() if name != "loss"}}


def named_metrics(heads: Sequence[Head], metrics: Any) -> tuple[dict[str, Metric], ...]:
    """Return the metrics of each output that users ask for: see :func:`blobnet.metrics.named`; of several by name.

    Raises:
        OptionError: a name is that of no output, or metrics for several outputs go without their names.
    """
    if len(heads) == 1 and not isinstance(metrics, Mapping):
        return (named(metrics, heads[0].loss),)
    names = [head.name for head in heads]
    given = {**dict.fromkeys(names, ()), **metrics} if isinstance(metrics, Mapping) else metrics or [()] * len(heads)
    return tuple(
        named(own, head.loss) for own, head in zip(to_list(names, given, "metrics", "output"), heads, strict=True)
    )


class _Arriving(NamedTuple):
    """The outputs of so many samples on their way to memory."""

    samples: int
    readings: tuple[PendingRead, ...]
    memory: tuple[FloatArray, ...]


class Evaluator:
    """An inference plan with memory: predictions and metrics.

    Args:
        device: where to run.
        plan: what to run; of losses it measures.
        parameters: all parameters on the device, which may be a trainer's.
        debug: see Executor.
    """

    def __init__(self, device: Device, plan: Plan, parameters: DeviceParameters, *, debug: bool | None = None) -> None:
        self.plan, self.parameters, graph = plan, parameters, plan.request.graph
        self._sums = TOTALS * len(plan.request.heads)
        buffers = {"parameters": parameters.buffer}
        if self._sums:
            buffers["totals"] = device.memory.allocate(FLOAT32.itemsize * _MEASURED * self._sums)
        self.executor = Executor(device, self.plan, buffers, debug=debug)
        self.loader = Loader(self.executor)
        self._outputs = [self.plan.outputs[vertex.name] for vertex in graph.outputs.values()]
        self._dimensions = [vertex.shape.dimensions for vertex in graph.outputs.values()]
        self._sizes = [output.layout.memory_elements for output in self._outputs]
        #: Host memory for outputs that nobody uses.
        self._results: deque[tuple[FloatArray, ...]] = deque()
        #: What says that a sample was not finite, one for each input, and host memory for it that nobody uses.
        self._not_finite = [self.executor.buffers[entry.buffer("not_finite")] for entry in plan.request.entries]
        self._answers: deque[npt.NDArray[np.int32]] = deque()
        self._was_met = False

    @classmethod
    def of(
        cls,
        device: Device,
        graph: Graph,
        parameters: DeviceParameters,
        batch_size: int,
        *,
        debug: bool | None = None,
        **settings: Any,
    ) -> Evaluator:
        """Return one for batches of at most ``batch_size``; ``settings`` are as for plan_for: losses, sample types."""
        plan = plan_for(device, graph, batch_size, parameters=parameters.table, **settings)
        return cls(device, plan, parameters, debug=debug)

    def predict(self, reader: Reader, count: int) -> Outputs:
        """Each of the model's outputs for samples 0 to ``count``: (count, units[[[, depth], height], width])."""
        return self.begin(reader, count)()

    def begin(self, reader: Reader, count: int, world: World = ALONE) -> Callable[[], Outputs]:
        """Begins to predict: a function that waits for the last batch and gives what :meth:`predict` does.

        It may be called while another thread already has the evaluator. Each rank predicts some of the batches; all
        must call the function, which gives all of them. A GPU sees by itself whether samples in memory are finite: the
        function tells of one that is not, after the last batch.

        Raises:
            DataError: a sample is not finite; so does the function.
        """
        size = self.plan.batch_size
        result = tuple(np.empty((count, *dimensions), np.float32) for dimensions in self._dimensions)
        batches = world.share(-(-count // size))
        own = range(min(batches.start * size, count), min(batches.stop * size, count))
        done, last = own.start, None

        def take(arriving: _Arriving) -> None:
            nonlocal done
            for values, outputs in zip(result, self._unpacked(arriving), strict=True):
                values[done : done + len(outputs)] = outputs
            done += arriving.samples
            self._results.append(arriving.memory)

        # NOTE: all ranks hear of a fault before any of them waits for others.
        looks = self.executor.device.info.is_host or world.size > 1
        if self._was_met:  # The flags are cleared here, behind all that was to be read, and nowhere else.
            self._was_met = False
            for flag in self._not_finite:
                self.executor.device.memory.fill_zero(flag, FLOAT32.itemsize)
        for arriving in self._arriving(reader if looks else reader.unchecked(), runs(own.stop, size, batches.start)):
            # The device works on this batch while the host takes the one before.
            if last is not None:
                take(last)
            last = arriving
        has_met_fault = None if looks else self._ask_for_faults()

        def finish() -> Outputs:
            if last is not None:
                take(last)
            if has_met_fault is not None and has_met_fault():
                reader.find_fault(runs(own.stop, size, batches.start))
            self._note_overflow("predict", [values[own.start : own.stop] for values in result])
            for values in result:
                world.complete(values, own)
            return result

        return finish

    def outputs(self, reader: Reader, jobs: Iterable[Any]) -> Iterator[Outputs]:
        """The model's outputs for the batch of each job in turn, which hold until the next ones are asked for."""
        last = None
        for arriving in itertools.chain(self._arriving(reader, jobs), [None]):
            if last is not None:
                outputs = self._unpacked(last)
                self._note_overflow("predict", outputs)
                yield outputs
                self._results.append(last.memory)
            last = arriving

    def _arriving(self, reader: Reader, jobs: Iterable[Any]) -> Iterator[_Arriving]:
        """The outputs of each batch, on their way as soon as the device has the batch."""
        device, sizes = self.executor.device, self._sizes
        for count in self.loader.batches(reader, jobs):
            self._run(count)
            if self._results:
                memory = self._results.popleft()
            else:
                memory = tuple(
                    device.memory.host_memory(output.type.itemsize * self.plan.batch_size * size).view(
                        output.type.dtype
                    )
                    for output, size in zip(self._outputs, sizes, strict=True)
                )
            readings = tuple(
                device.memory.read_async(self.executor.buffer_of(output.storage), own[: count * size])
                for output, own, size in zip(self._outputs, memory, sizes, strict=True)
            )
            yield _Arriving(count, readings, memory)

    def _ask_for_faults(self) -> Callable[[], bool]:
        """Begins to read whether the device has met samples that are not finite: a function that waits for that.

        It may have met them for a caller before this one.
        """
        memory = self.executor.device.memory
        size = FLOAT32.itemsize * len(self._not_finite)
        answers = self._answers.popleft() if self._answers else memory.host_memory(size).view(np.int32)
        readings = [memory.read_async(flag, answers[i : i + 1]) for i, flag in enumerate(self._not_finite)]

        def found() -> bool:
            for reading in readings:
                reading.values()
            is_found = bool(answers.any())
            self._answers.append(answers)
            if is_found:
                self._was_met = True
            return is_found

        return found

    def _unpacked(self, arriving: _Arriving) -> Outputs:
        count = arriving.samples
        return tuple(
            output.layout.data(reading.values(), count).reshape(count, *dimensions)
            for output, reading, dimensions in zip(self._outputs, arriving.readings, self._dimensions, strict=True)
        )

    def _note_overflow(self, subject: str, results: Iterable[FloatArray]) -> None:
        """Warns where results are not finite, and what halves cannot hold may be why."""
        if self.plan.request.tuning.storage == FLOAT16 and not all(map(all_finite, results)):
            rule = "halves hold nothing beyond 65504; with storage='float16' some results are now NaN or infinite"
            warn(subject, rule, hint="storage='float32' has the range, and shows whether that was why.")

    def measure(
        self,
        data: LabelledData,
        weights: Sequence[float],
        asked: Sequence[Mapping[str, Metric]],
        world: World = ALONE,
        advance: Callable[[int], object] | None = None,
    ) -> Callable[[], dict[str, float]]:
        """Begins to measure: a function that gives the mean loss and, for classes, the accuracies, and what was asked.

        Each rank measures some of the batches; all must call the function, which gives the same to all of them. What
        the batches give is added up in their order, so that it does not depend on the ranks either.

        Args:
            data: samples and labels.
            weights: of the losses of the outputs, in their sum.
            asked: what else to measure at each output, of data that are no stream.
            world: the ranks.
            advance: called with the number of samples, over all ranks, after each batch.
        """
        executor, heads = self.executor, self.plan.request.heads
        totals: list[npt.NDArray[np.float32]] = []
        place = 0
        for count in self.loader.batches(data.reader, data.jobs(self.plan.batch_size, world=world)):
            if place == 0:
                executor.device.memory.fill_zero(executor.buffers["totals"], FLOAT32.itemsize * _MEASURED * self._sums)
            executor.place("totals", place * self._sums)
            self._run(count)
            for head in heads:
                executor.run(head.phase, count)
            place += 1
            if place == _MEASURED:
                totals += self._totals(place)
                place = 0
            if advance is not None:
                advance(count * world.size)
        totals += self._totals(place)
        outputs = None
        if any(asked) and data.labels is not None and data.count is not None:
            outputs = self.begin(data.reader, data.count, world)

        def finish() -> dict[str, float]:
            every = np.array(world.gather_in_order(totals), np.float64).reshape(-1, self._sums)
            self._note_overflow("evaluate", totals)
            found = measurements(every.sum(axis=0), heads, weights)
            values = outputs() if outputs is not None else ()
            for head, own, labels, value in zip(data.heads, asked, data.labels or (), values, strict=False):
                each = measured(own, head.loss, np.asarray(labels), value)
                found |= {head_name(head, name): number for name, number in each.items()}
            return found

        return finish

    def _totals(self, batches: int) -> list[FloatArray]:
        """The totals of so many batches, each by itself."""
        if not batches:
            return []
        return list(
            self.executor.device.memory.read(self.executor.buffers["totals"], batches * self._sums).reshape(batches, -1)
        )

    def _run(self, count: int) -> None:
        self.executor.prepare(self.parameters.version)
        self.executor.run("forward", count)


@dataclass(frozen=True)
class Use:
    """The purpose of an evaluator.

    Attributes:
        count: samples; None where nobody knows.
        batch_size: the most at once.
        sample_type: NumPy's name for the type of the samples, or of those of each input.
        loss: what to measure at each output; None for predictions alone.
        precision: of products.
        storage: what is kept between layers.
    """

    count: int | None
    batch_size: int
    sample_type: str | tuple[str, ...]
    loss: Losses
    precision: str
    storage: str


class Evaluators:
    """The evaluators that a model keeps, a few at most: for batches of BUCKETS and of the size asked for.

    One caller at a time has one of them, with the weights that it asked for, until the device has its last batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, Evaluator] = OrderedDict()
        self._parameters: dict[int, tuple[DeviceParameters, Mapping[str, FloatArray]]] = {}

    @contextlib.contextmanager
    def lend(self, device: Device, graph: Graph, weights: Mapping[str, FloatArray], use: Use) -> Iterator[Evaluator]:
        """An evaluator with these weights, for a use."""
        size = use.batch_size
        if use.count is not None and use.count < size:
            size = min(size, *(bucket for bucket in (*BUCKETS, size) if bucket >= use.count))
        kind = id(device.queue), replace(use, count=None, batch_size=size)
        with self._lock:
            parameters = self._written(device, graph, weights)
            evaluator = self._kept.get(kind)
            if evaluator is None:
                while len(self._kept) >= _MAX_EVALUATORS:
                    self._kept.popitem(last=False)
                measured: dict[str, Any] = {"loss": use.loss, "sample_type": use.sample_type}
                evaluator = Evaluator.of(device.at(use.precision, use.storage), graph, parameters, size, **measured)
                self._kept[kind] = evaluator
                for queue in self._parameters.keys() - {other for other, *_ in self._kept}:
                    del self._parameters[queue]  # And with them the device, if nobody else has it.
            self._kept.move_to_end(kind)
            try:
                yield evaluator
            except BaseException:
                self._kept.pop(kind, None)  # Who knows what is still on its way.
                with contextlib.suppress(DeviceError):  # It may read what was lent.
                    device.queue.finish()
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
