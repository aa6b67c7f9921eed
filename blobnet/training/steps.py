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
from blobnet.training.step_plan import StepContext, plan_step, ways_to_fit
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

        It is for batches. With ``fit_memory`` it computes blobs again, or is for parts of batches, as many as it takes
        to fit the device's memory, and a warning says so.

        Raises:
            PlanError, OutOfMemoryError: the memory is not enough.
        """
        settings, ways = self.settings, ways_to_fit(self.settings)
        graph = settings.graph_at(self.graph, epoch)

        def made(way: tuple[int, bool]) -> TrainingStep:
            own, context = replace(settings, recompute=way[1]), replace(self.context, batch_size=way[0])
            return TrainingStep(self.device, graph, weights, own, context)

        try:
            step = first_that_fits(self.device, ways, made)
        except OutOfMemoryError as error:
            if not settings.fit_memory and ways[0][0] > 1:
                error.args = (f"{error}{'' if 'Hint: ' in str(error) else ' Hint:'} {IN_PARTS}",)
            raise
        whole = ways[0][0]
        if step.batch_size < whole:
            rule = "the memory of the device should hold a whole batch, which is computed in parts now"
            warn("fit_memory", rule, batch_size=whole, part=step.batch_size)
        elif step.settings.recompute and not settings.recompute:
            rule = (
                "the memory of the device should hold all that the backward pass reads, and some is computed again now"
            )
            warn("fit_memory", rule, batch_size=whole)
        return step
