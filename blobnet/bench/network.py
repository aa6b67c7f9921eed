"""Timing a whole network: steps of training and of inference, and where the time of a training step goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from blobnet.bench.roofline import Roofline
from blobnet.bench.timing import burst_length, launch_seconds, race, values_like
from blobnet.data.samples import sources_for
from blobnet.device.device import Device
from blobnet.examination import layer_cases
from blobnet.examination.layer_cases import Case, Work
from blobnet.execution.executor import Launch
from blobnet.execution.inference import Evaluator
from blobnet.execution.loader import IndexedReader
from blobnet.launch.kernel_call import KernelCall
from blobnet.losses import CrossEntropy
from blobnet.model import Model
from blobnet.optimizers import Adam
from blobnet.training.settings import TrainingSettings
from blobnet.training.step_plan import StepContext, plan_step
from blobnet.training.training_step import TrainingStep

LEARNING_RATE = 1e-3
TRAINING, INFERENCE = "training", "inference"
#: Steps of a burst at least, on a device that is not the host: the first finds it idle, the others at work on the step
#: before.
_MIN_STEPS = 10
#: Launches that every driver queues without making the host wait.
_QUEUED = 64
Step = Callable[[], None]


@dataclass(frozen=True)
class StepTiming:
    """A step of training or inference: median seconds, launches, bytes planned, and PyTorch's seconds if measured."""

    kind: str
    seconds: float
    launches: int
    bytes: int
    torch: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class LaunchTiming:
    """A launch of a training step, and the median seconds that it takes on the device."""

    call: KernelCall
    global_size: tuple[int, int, int]
    seconds: float

    @property
    def label(self) -> str:
        """The call's, for people."""
        return self.call.label

    @property
    def kernel(self) -> str:
        """The call's."""
        return self.call.kernel


@dataclass(frozen=True)
class Point:
    """A layer's phase within a training step: its work, and its launches."""

    layer: str
    direction: str
    work: Work
    launches: Sequence[LaunchTiming]

    @property
    def seconds(self) -> float:
        """The seconds of all its launches."""
        return sum(item.seconds for item in self.launches)


@dataclass(frozen=True)
class KernelShare:
    """The share of a kernel in a training step.

    Attributes:
        kernel: its name.
        launches: how many there are.
        seconds: of all of them.
        floor: the seconds that the roofline needs for them: for what each reads and writes, once, at the bandwidth, or
            for the operations of its layer at the peak.
        bound: which of the two is more of the floor: ``memory`` or ``compute``.
    """

    kernel: str
    launches: int
    seconds: float
    floor: float
    bound: str


def random_classes(model: Model, count: int) -> npt.NDArray[np.int32]:
    """A class for each sample, or for each position of the output."""
    shape = model.graph.output.shape
    return np.random.default_rng(1).integers(0, shape.units, (count, *shape.dimensions[1:]), np.int32)


def check(device: Device, model: Model, batch_size: int, *, recompute: bool = False) -> None:
    """Raises what :class:`NetworkBench` would, before it takes any memory."""
    plan_step(device, model.graph, settings_of(batch_size, recompute=recompute), StepContext())


def settings_of(batch_size: int, *, recompute: bool = False) -> TrainingSettings:
    """Return how a network is trained that is timed."""
    optimizer = Adam(LEARNING_RATE)
    return TrainingSettings(loss=CrossEntropy(), optimizer=optimizer, batch_size=batch_size, recompute=recompute)


class NetworkBench:
    """A network with memory for training and inference on a device, and one batch of random images.

    Args:
        device: where to run.
        model: the network; its output must be logits.
        batch_size: samples a step.
        recompute: as for ``fit``.

    Raises:
        PlanError: the plan does not fit the device.
        ShapeError: the output is not one logit for each class.
    """

    def __init__(self, device: Device, model: Model, batch_size: int, *, recompute: bool = False) -> None:
        self.device, self.model, self.batch_size = device, model, batch_size
        settings, context = settings_of(batch_size, recompute=recompute), StepContext(debug=False)
        self.optimizer = settings.optimizer
        self.step = TrainingStep(device, model.graph, model.weights, settings, context)
        self.evaluator = Evaluator.of(device, model.graph, self.step.parameters, batch_size, debug=False)
        shape = model.graph.input.shape
        self.x = values_like(batch_size * shape.elements).reshape(batch_size, *shape.dimensions)
        self.reader = IndexedReader(sources_for(model.graph, self.x, "x"))
        self.y = random_classes(model, batch_size)
        updates = self.optimizer.calls(self.step.parameters.table, device.model, scaled=self.step.loss_scale.is_used)
        planned = [call for _, call in self.step.plan.calls]
        self._launches: list[Launch] = self.step.executor.bind(planned, batch_size)
        self._launches += self.step.executor.bind(updates, 0)
        #: The launches of a training step, in order.
        self.calls = [*planned, *updates]

    def train(self) -> None:
        """One training step, with the batch's way to the device; it may not have ended yet."""
        self.step.load_batch(self.x, self.y)
        self.step.compute_gradients(self.batch_size)
        self.step.update(LEARNING_RATE)

    def predict(self) -> None:
        """One inference step, with the batch's way to the device and the output's way back."""
        self.evaluator.predict(self.reader, self.batch_size)

    def measure(self, kind: str, repeats: int, rival: Callable[[int], float] | None = None) -> StepTiming:
        """Times TRAINING or INFERENCE steps, in turn with those of ``rival``, which takes a length (see burst)."""
        step = self.train if kind == TRAINING else self.predict
        run = partial(burst, step, self.device.queue.finish)
        run(1)
        length = max(1 if self.device.is_host else _MIN_STEPS, burst_length(run(1), self.device))
        seconds, torch, ratio = race(lambda: run(length), rival and (lambda: rival(length)), repeats)
        if kind == TRAINING:
            return StepTiming(kind, seconds, len(self._launches), self.step.bytes, torch, ratio)
        plan = self.evaluator.plan
        return StepTiming(kind, seconds, len(plan.phase("forward")), plan.bytes(), torch, ratio)

    def profile(self, repeats: int) -> list[LaunchTiming]:
        """Every launch of a training step, in order."""
        medians = launch_seconds(self.device, [self._launches], repeats)
        return [
            LaunchTiming(item.call, item.global_size, seconds)
            for item, seconds in zip(self._launches, medians, strict=True)
        ]

    def host_seconds(self, repeats: int) -> float:
        """The median of what the host needs to put one launch of a training step into the queue."""
        # NOTE: a full queue makes the host wait for the device (resnet50 on NVIDIA: 48 us a launch), so few are put in.
        launches, times = self._launches[:_QUEUED], []
        for _ in range(repeats + 1):
            self.device.queue.finish()
            start = time.perf_counter()
            for item in launches:
                item.enqueue()
            times.append((time.perf_counter() - start) / len(launches))
        self.device.queue.finish()
        return statistics.median(times[1:])

    def points(self, profile: list[LaunchTiming]) -> list[Point]:
        """The phases of all layers whose work is known, for a roofline."""
        graph, points = self.model.graph, []
        for vertex in graph.vertices:
            if vertex.layer.kind not in (*layer_cases.CONVOLUTIONS, *layer_cases.OTHERS):
                continue
            case = Case(vertex.layer, graph.input_shapes(vertex)[0])
            own = [item for item in profile if item.call.vertex == vertex.index]
            for direction in case.directions:
                launches = [item for item in own if case.phase(item.call.direction) == direction]
                point = Point(vertex.name, direction, case.work(direction, self.batch_size), launches)
                if point.seconds > 0:
                    points.append(point)
        return points


def kernel_shares(
    profile: Sequence[LaunchTiming], points: Sequence[Point], top: Roofline, batch_size: int
) -> list[KernelShare]:
    """Every kernel of a step with all of its launches, the slowest first.

    Args:
        profile: the launches.
        points: the phases of layers, whose operations count for the longest of their launches.
        top: what the device can do.
        batch_size: samples of the step.
    """
    flops: dict[int, int] = {}
    for point in points:
        longest = max(point.launches, key=lambda item: item.seconds)
        flops[id(longest)] = flops.get(id(longest), 0) + point.work.flops
    found: dict[str, list[LaunchTiming]] = {}
    for item in profile:
        found.setdefault(item.kernel, []).append(item)
    shares = []
    for kernel, items in found.items():
        floors = [top.floor(flops.get(id(item), 0), item.call.bytes(batch_size)) for item in items]
        parts = {bound: sum(seconds for seconds, by in floors if by == bound) for bound in ("memory", "compute")}
        bound = max(parts, key=lambda name: parts[name])
        shares.append(KernelShare(kernel, len(items), sum(item.seconds for item in items), sum(parts.values()), bound))
    return sorted(shares, key=lambda share: -share.seconds)


def burst(step: Step, finish: Step, length: int) -> float:
    """Seconds of one of ``length`` steps, which are begun one after another, to the end of the last."""
    start = time.perf_counter()
    for _ in range(length):
        step()
    finish()
    return (time.perf_counter() - start) / length
