"""Measuring held-out samples while a model is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blobnet.execution.executor import first_that_fits, plan_for
from blobnet.execution.inference import Evaluator, LabelledData, head_name, measured_names
from blobnet.metrics.types import Metric
from blobnet.training.progress import bar
from blobnet.training.training_step import TrainingStep


class Validation:
    """Measures held-out samples with the parameters that are trained, in the memory that training leaves free.

    Args:
        step: of the training.
        data: what is held out.
        metrics: what else to measure at each output.

    Attributes:
        names: in the history.
        asked_for: those of ``metrics`` among them.
    """

    def __init__(self, step: TrainingStep, data: LabelledData, metrics: Sequence[Mapping[str, Metric]]) -> None:
        self._step, self._data = step, data
        self._metrics = metrics or ({},) * len(step.heads)
        named = zip(step.heads, self._metrics, strict=True)
        self.asked_for = [f"validation_{head_name(head, name)}" for head, own in named for name in own]
        self.names = [*(f"validation_{name}" for name in measured_names(step.heads)), *self.asked_for]
        self._evaluator = self._fitting()

    @property
    def bytes(self) -> int:
        """The bytes of the plan on the device."""
        return self._evaluator.plan.bytes()

    def load(self, reserved: int, *, verbose: bool) -> None:
        """Puts the samples on the device, if they fit beside ``reserved`` bytes."""
        with bar("loading validation data", self._data.count, verbose) as shown:
            self._evaluator.loader.keep(self._data.sources, reserved, shown.update, self._step.world)

    def measure(self, *, verbose: bool) -> dict[str, float]:
        """Measure, and return the values by their names in the history."""
        world = self._step.world
        with world.propagate_errors("validation"), bar("validation", self._data.count, verbose) as shown:
            weights = self._step.loss_weights
            finish = self._evaluator.measure(self._data, weights, self._metrics, world, shown.update)
        return {f"validation_{name}": value for name, value in finish().items()}

    def _fitting(self) -> Evaluator:
        """One for batches as large as those of training, or as large as there is room for."""
        step, info = self._step, self._step.device.info
        room = info.memory, info.largest_allocation, step.bytes
        settings: dict[str, Any] = {"loss": step.losses, "sample_type": self._data.reader.sample_types}
        settings["parameters"] = step.parameters.table
        graph = self._data.graph
        plan = plan_for(step.device, graph, step.batch_size, **settings)
        most = step.batch_size if plan.fits(*room) else max(1, plan.largest_batch(*room))
        sizes = [most >> halves for halves in range(most.bit_length())]

        def evaluator(size: int) -> Evaluator:
            own = plan if size == plan.batch_size else plan_for(step.device, graph, size, **settings)
            return Evaluator(step.device, own, step.result, debug=step.executor.debug)

        return first_that_fits(step.device, sizes, evaluator)
