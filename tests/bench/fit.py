"""What users call, ``Model.fit`` and ``Model.predict`` on NumPy arrays, against what the device needs for it.

    blobnet bench fit resnet50 [--augment crop,flip] [--batch-size 64] [--size 224] [--device NVIDIA]

The seconds of a step of ``fit`` and of a batch of ``predict``, over those of the same launches on data that are there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blobnet.augment import Augmentation
from blobnet.augment.epoch_rows import check_fit
from blobnet.augment.words import augmentations_of
from blobnet.bench.network import random_classes, settings_of
from blobnet.bench.roofline import Roofline
from blobnet.bench.timing import values_like
from blobnet.callbacks import Callback
from blobnet.command_line.bench import short
from blobnet.device.device import Device
from blobnet.execution.inference import Evaluator
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FLOAT32
from blobnet.model import Model
from blobnet.network.parameters import DeviceParameters
from blobnet.optimizers import Adam
from blobnet.training.trainer import Progress
from blobnet.training.training_step import TrainingStep

#: Seconds that an epoch of the data should take: its end, where weights come back, must not count for much.
_EPOCH_SECONDS = 4.0
#: The most bytes of samples that are made.
_MAX_BYTES = 4e9
_EPOCHS = 3
#: The number of times that trainings take turns.
_ROUNDS = 5
#: Calls of predict in a row.
_CALLS = 12


@dataclass(frozen=True)
class PublicTiming:
    """Seconds of a public call and of the device's own work, for a step or a batch.

    Attributes:
        what: ``fit``, ``augment`` (fit with augmentation) or ``predict``.
        samples: of a step or batch.
        seconds: of the public call, by the step or batch.
        device: seconds that the same launches take, one after the other, on data that are there.
    """

    what: str
    samples: int
    seconds: float
    device: float

    @property
    def over_device(self) -> float:
        """The public call's seconds over the device's."""
        return self.seconds / self.device


class _Clock(Callback):
    """The seconds of every epoch, with all that belongs to it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start = 0.0

    def begin(self, progress: Progress) -> None:
        self._start = time.perf_counter()

    def epoch_end(self, progress: Progress) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._start)
        self._start = now


def time_fits(
    device: Device,
    model: Model,
    batch_size: int,
    lists: Sequence[Sequence[Augmentation]] = ((),),
    *,
    recompute: bool = False,
) -> list[PublicTiming]:
    """``fit`` from NumPy arrays, by the step, against its steps on a batch that is there.

    The arrays are float32; where a list holds a policy, which is for pictures, uint8.
    On a processor, and with several lists of augmentations, the steps and the trainings with each list take turns, so
    that what else a machine does falls on all alike.
    """
    on_device = [_device_step(device, model, batch_size, recompute=recompute)]
    elements = model.graph.input.shape.elements
    rounds = _ROUNDS if device.is_host or len(lists) > 1 else 1
    steps = min(_EPOCH_SECONDS / on_device[0], _MAX_BYTES / (FLOAT32.itemsize * elements * batch_size))
    steps = max(4, int(steps / min(2, rounds)))
    x = values_like(batch_size * elements).reshape(batch_size, *model.graph.input.shape.dimensions)
    if any(augmentation.policy_steps for augment in lists for augmentation in augment):
        x = np.rint(255 * np.clip(x, 0, 1)).astype(np.uint8)
    x = np.tile(x, (steps, *(1 for _ in x.shape[1:])))
    y = random_classes(model, len(x))
    seconds: list[list[float]] = [[] for _ in lists]
    for number in range(rounds):
        if number:
            on_device.append(_device_step(device, model, batch_size, recompute=recompute))
        for times, augment in zip(seconds, lists, strict=True):
            clock = _Clock()
            model.fit(
                x,
                y,
                epochs=_EPOCHS,
                batch_size=batch_size,
                optimizer=Adam(1e-6),
                loss=CrossEntropy(),
                callbacks=[clock],
                augment=augment,
                device=device,
                precision=device.precision,
                recompute=recompute,
                verbose=False,
            )
            # The first epoch finds kernels that were never launched.
            times += clock.seconds[1:]
    step = statistics.median(on_device)
    return [
        PublicTiming("augment" if augment else "fit", batch_size, statistics.median(times) / steps, step)
        for times, augment in zip(seconds, lists, strict=True)
    ]


def time_predict(device: Device, model: Model, count: int, repeats: int) -> PublicTiming:
    """``predict`` of one batch, or by the batch of many, from float32 NumPy arrays."""
    on_device = _device_forward(device, model, count, repeats)
    # One image is a call; batches come many at a time.
    batches = 1 if count == 1 else _CALLS
    elements = model.graph.input.shape.elements
    x = values_like(count * elements).reshape(count, *model.graph.input.shape.dimensions)
    x = np.tile(x, (batches, *(1 for _ in x.shape[1:])))

    def call() -> None:
        model.predict(x, batch_size=count, device=device, precision=device.precision)

    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(_CALLS // batches):
            call()
        times.append((time.perf_counter() - start) / _CALLS)
    return PublicTiming("predict", count, statistics.median(times), on_device)


def _device_forward(device: Device, model: Model, count: int, repeats: int) -> float:
    """Seconds of a forward pass of samples that are there."""
    parameters = DeviceParameters(device, model.graph)
    parameters.write(model.weights)
    executor = Evaluator.of(device, model.graph, parameters, count).executor
    executor.prepare(parameters.version)
    return _median_burst(lambda: executor.run("forward", count), device, repeats)


def _device_step(device: Device, model: Model, batch_size: int, *, recompute: bool) -> float:
    """Seconds of a training step on a batch that is there."""
    step = TrainingStep(device, model.graph, model.weights, settings_of(batch_size, recompute=recompute))
    shape = model.graph.input.shape
    x = values_like(batch_size * shape.elements).reshape(batch_size, *shape.dimensions)
    step.load_batch(x, random_classes(model, batch_size))

    def run() -> None:
        step.compute_gradients(batch_size)
        step.update(1e-6)

    return _median_burst(run, device, 5)


def _median_burst(run: Callable[[], None], device: Device, repeats: int) -> float:
    """Seconds of one of many runs that are begun one after another."""
    for _ in range(2):
        run()
    device.queue.finish()
    start = time.perf_counter()
    run()
    device.queue.finish()
    length = max(1, min(50, int(0.5 / max(1e-3, time.perf_counter() - start))))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(length):
            run()
        device.queue.finish()
        times.append((time.perf_counter() - start) / length)
    return statistics.median(times)


def changes_of(options: argparse.Namespace) -> Sequence[Augmentation]:
    """How samples change in a second ``fit``; raises OptionError where these samples cannot."""
    changes = augmentations_of(options.augment, "--augment") if options.augment else ()
    check_fit(changes, options.model.graph.input.shape, options.model.graph.output.shape, CrossEntropy())
    return changes


def run(options: argparse.Namespace, top: Roofline, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures and prints ``fit``, with augmentation too where there is some, and ``predict`` of a batch and of one."""
    device, model, batch_size = options.opened, options.model, options.samples
    shape, classes = model.graph.input.shape.dimensions, model.graph.output.shape.units
    say(f"{options.source.text} for {'x'.join(map(str, shape))} and {classes} classes, from NumPy arrays\n")
    timings = time_fits(
        device, model, batch_size, [(), options.changes] if options.changes else [()], recompute=options.recompute
    )
    for item in timings:
        say(_line(item))
    if options.changes:
        rate = timings[0].seconds / timings[1].seconds
        say(f"{'':<8}{rate:.3f} of the images/s without {', '.join(map(str, options.changes))}")
    for count in (batch_size, 1):
        timings.append(time_predict(device, model, count, options.repeats))
        say(_line(timings[-1]))
    return {
        "model": options.source.text,
        "input_shape": list(shape),
        "classes": classes,
        "calls": [
            {"what": item.what, "samples": item.samples, "ms": 1e3 * item.seconds, "device_ms": 1e3 * item.device}
            for item in timings
        ],
    }


def _line(item: PublicTiming) -> str:
    unit = "batch" if item.what == "predict" else "step"
    line = f"{item.what:<8}{short(1e3 * item.seconds):>8} ms a {unit} of {item.samples}, "
    line += f"{item.samples / item.seconds:,.0f} images/s; "
    return line + f"{item.over_device:.2f} times the device's {short(1e3 * item.device)} ms"
