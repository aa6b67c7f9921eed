"""The steps of a training, as large as the device has memory for; another one wherever samples get another size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from blobnet.device.device import Device
from blobnet.errors import OutOfMemoryError, warn
from blobnet.execution.executor import IN_PARTS, first_that_fits
from blobnet.memory.blob import FloatArray
from blobnet.network.graph import Graph
from blobnet.training.settings import TrainingSettings
from blobnet.training.step_plan import StepContext, plan_step, sizes_of_parts
from blobnet.training.training_step import TrainingStep


@dataclass(frozen=True)
class Steps:
    """The steps of a training, by the epoch that they are for.

    Args:
        device: where to train.
        graph: the model.
        settings: how.
        context: what steps are made for besides.
    """

    device: Device
    graph: Graph
    settings: TrainingSettings
    context: StepContext

    def check(self) -> None:
        """Raises PlanError now where a step of a later epoch will not fit the device."""
        for size in self.settings.sizes[1:] if not self.settings.fit_memory else ():
            plan_step(self.device, self.settings.graph_at(self.graph, size.epoch), self.settings, self.context)

    def at(self, epoch: int, weights: Mapping[str, FloatArray]) -> TrainingStep:
        """Return a step for an epoch, counted from 0, that begins with these weights.

        It is for batches; with ``fit_memory`` for parts of them, as many as it takes to fit the device's memory. A
        warning says that there are parts.

        Raises:
            PlanError, OutOfMemoryError: the memory is not enough.
        """
        sizes, settings = sizes_of_parts(self.settings), self.settings
        graph = settings.graph_at(self.graph, epoch)

        def made(size: int) -> TrainingStep:
            return TrainingStep(self.device, graph, weights, settings, replace(self.context, batch_size=size))

        try:
            step = first_that_fits(self.device, sizes, made)
        except OutOfMemoryError as error:
            if not settings.fit_memory and sizes[0] > 1:
                error.args = (f"{error}{'' if 'Hint: ' in str(error) else ' Hint:'} {IN_PARTS}",)
            raise
        if step.batch_size < sizes[0]:
            rule = "the memory of the device should hold a whole batch, which is computed in parts now"
            warn("fit_memory", rule, batch_size=sizes[0], part=step.batch_size)
        return step
