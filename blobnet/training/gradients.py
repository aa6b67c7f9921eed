"""The gradients of a step: of one run of the plan, or as a sum over several.

The loop over data knows nothing else of shards than what stands here.
"""

from __future__ import annotations

from dataclasses import replace

from blobnet.launch.kernel_call import Batch
from blobnet.training.epoch import Loaded, PlannedStep, Run
from blobnet.training.training_step import TrainingStep


class Gradients:
    """Gradients of steps that are one run each: the losses divide by the weight of its samples."""

    def __init__(self, step: TrainingStep) -> None:
        self._step, self._size = step, step.batch_size
        #: The place of the step's first sample in the epoch.
        self._first = 0

    def start(self, planned: PlannedStep, first: int) -> None:
        """Begin a step whose first sample has that place in the epoch."""
        self._first = first

    def expect(self, run: Run) -> None:
        """Be called before the batch of a run is on the device."""

    def add(self, run: Run, loaded: Loaded) -> None:
        """Compute the gradients of the batch of a run, and add them."""
        self._step.compute_gradients(Batch(loaded.samples, divisor=loaded.weights[0]))

    def finish(self) -> bool:
        """Make the gradients those of the step, on all ranks; the last runs of a step may be missing.

        Returns:
            Whether the losses of all ranks are finite, where there are several.
        """
        return True


class SummedGradients(Gradients):
    """Gradients of steps of several shards or batches, which are computed run by run.

    How much the samples to come weigh is not known yet, so the sum is brought to scale at its end. There is one sum for
    all outputs, whose batches weigh the same (``fit`` sees to it).
    """

    def start(self, planned: PlannedStep, first: int) -> None:
        super().start(planned, first)
        self._weights = list[float]()
        self._number, self._at_once = -1, self._step.plan.request.at_once
        self._runs = len(self._step.own_shards) // self._at_once
        self._last = planned.runs[-1] if planned.runs else None
        #: The samples of runs that all ranks must make together, and how many are done.
        settings = self._step.settings
        self._counts = planned.counts if settings.sync_batch_norm and settings.shards > 1 else ()
        self._done = 0

    def _go_to(self, number: int) -> None:
        """Ends the shards at once before a number, of which some may have no runs, and begins those."""
        while self._number < number:
            if self._number >= 0:
                self._step.sum.end(self._weights)
            self._number, self._weights = self._number + 1, [0.0] * self._at_once
            self._step.sum.begin(self._number)

    def _skip_to(self, number: int) -> None:
        """Does its part of runs before a number of which only other ranks have samples."""
        for counts in self._counts[self._done : number]:
            self._step.compute_gradients(0, counts=counts)
        self._done = number

    def expect(self, run: Run) -> None:
        self._go_to(run.shard // self._at_once)
        self._skip_to(run.number)

    def add(self, run: Run, loaded: Loaded) -> None:
        batch = replace(run.batch(loaded.samples), first=loaded.place - self._first, divisor=self._size)
        is_last = run is self._last and self._number == self._runs - 1
        counts = None
        if self._counts:
            counts, self._done = self._counts[run.number], run.number + 1
            batch = replace(batch, whole=sum(counts), shard=self._step.own_shards.start)
        self._step.compute_gradients(batch, exchanging=is_last, counts=counts)
        self._step.sum.add()
        for place, weights in enumerate(loaded.weights):
            self._weights[place] += weights[0]

    def finish(self) -> bool:
        self._go_to(self._runs - 1)
        self._skip_to(len(self._counts))
        self._step.sum.end(self._weights)
        return self._step.sum.finish(self._size)


def gradients_of(step: TrainingStep) -> Gradients:
    """Return what a step needs: its gradients are a sum where it is made of several runs."""
    is_sum = step.settings.shards > 1 or step.settings.accumulate * step.parts > 1
    return SummedGradients(step) if is_sum else Gradients(step)
