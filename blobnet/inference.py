"""Running a model on data without training it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray
from blobnet.datasets import check_arrays
from blobnet.device import Device
from blobnet.errors import DataError
from blobnet.executor import Executor, plan_for
from blobnet.graph import Graph
from blobnet.losses import Loss
from blobnet.parameters import DeviceParameters

#: Metrics in the order of a loss's totals.
METRICS = ("loss", "accuracy", "top_5")


def check_samples(graph: Graph, x: npt.NDArray[Any], subject: str) -> None:
    """Raises DataError unless ``x`` holds finite samples of the model's input shape."""
    check_arrays(x, None, None, subject)
    wanted = graph.input.shape.dimensions
    if tuple(x.shape[1:]) != wanted:
        received = tuple(x.shape[1:])
        raise DataError(subject, "each sample must have the shape of the model's input", sample=received, input=wanted)


def prepare_labels(
    graph: Graph, loss: Loss, x: npt.NDArray[Any], y: npt.NDArray[Any], subject: str
) -> npt.NDArray[Any]:
    """Labels as the device takes them: int32 class numbers, or float32 targets of the output's shape.

    Raises:
        DataError: labels that are not classes of the model, or targets of another shape or out of range.
        ShapeError: the loss does not fit the model's output.
    """
    output = graph.output.shape
    loss.check(output)
    if loss.takes_classes:
        positions = output.dimensions[1:]
        check_arrays(x, y, output.units, subject, positions=positions, ignore=loss.ignored_label)
        return loss.device_labels(y)
    is_integer = isinstance(y, np.ndarray) and y.dtype.kind in "biu"
    check_arrays(x, y.astype(np.float32) if is_integer else y, None, subject)
    target = tuple(y.shape[1:])
    # One value may go without an axis of its own, and several may come as one row.
    if target not in (output.dimensions, (output.elements,)) and not (target == () and output.elements == 1):
        raise DataError(subject, "each target must have the shape of the model's output", target=target, output=output)
    loss.check_targets(y, subject)
    return loss.device_labels(y)


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
        debug: see Executor.
    """

    def __init__(
        self,
        device: Device,
        graph: Graph,
        parameters: DeviceParameters,
        batch_size: int,
        loss: Loss | None = None,
        debug: bool | None = None,
    ) -> None:
        self.loss = loss
        self.parameters = parameters
        self.plan = plan_for(device, graph, batch_size, loss=loss)
        self.executor = Executor(device, self.plan, {"parameters": parameters.buffer}, debug=debug)

    def predict(self, x: npt.NDArray[Any]) -> FloatArray:
        """The model's output: (N, units[, height][, width])."""
        graph = self.plan.graph
        shape, size = graph.output.shape.dimensions, self.plan.batch_size
        result = np.empty((len(x), *shape), np.float32)
        batches = (self._loaded(x[first : first + size]) for first in range(0, len(x), size))
        done, count = 0, next(batches, 0)
        while count:
            self.executor.run("forward", count)
            # The device works on this batch while the host loads the next.
            self.executor.device.flush()
            following = next(batches, 0)
            values = self.executor.read_blob(self.plan.outputs[graph.output.name], count)
            result[done : done + count] = values.reshape(count, *shape)
            done, count = done + count, following
        return result

    def _loaded(self, batch: npt.NDArray[Any]) -> int:
        """The samples of a batch, once it is on its way to the device."""
        self.executor.feed("samples", np.asarray(batch, np.float32))
        return len(batch)

    def evaluate(
        self, x: npt.NDArray[Any], labels: npt.NDArray[Any], advance: Callable[[int], object] | None = None
    ) -> dict[str, float]:
        """The mean loss and, for classes, the accuracies.

        Args:
            x: samples.
            labels: as :func:`prepare_labels` gives them.
            advance: called with the number of samples after each batch.
        """
        assert self.loss is not None
        executor, device = self.executor, self.executor.device
        device.fill_zero(executor.buffers["totals"], 4 * (Loss.SAMPLE_METRICS + 1))
        for first in range(0, len(x), self.plan.batch_size):
            batch = slice(first, first + self.plan.batch_size)
            count = self._loaded(x[batch])
            executor.feed("labels", labels[batch])
            executor.run("forward", count)
            executor.run("loss", count)
            if advance is not None:
                advance(count)
        return metrics_of(device.read(executor.buffers["totals"], Loss.SAMPLE_METRICS + 1), self.loss)
