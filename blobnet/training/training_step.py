"""One step of training on a device: a plan with memory, the parameters, and the optimizer's state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.device.device import Device
from blobnet.device.memory import PendingRead
from blobnet.execution.executor import Executor, Launch
from blobnet.launch.kernel_call import SHARD_COUNTS, Array, Batch
from blobnet.losses import Loss
from blobnet.losses.base import LOSS_SCALE
from blobnet.memory.blob import FLOAT32, FloatArray
from blobnet.network.ends import TOTALS, heads_of
from blobnet.network.graph import Graph
from blobnet.network.parameters import DeviceParameters
from blobnet.optimizers.base import HYPERPARAMETERS
from blobnet.planning import STEP_WORDS
from blobnet.training.changes import SampleChanges
from blobnet.training.kept import StepState
from blobnet.training.loss_scale import LossScale
from blobnet.training.settings import TrainingSettings
from blobnet.training.shard_sum import ShardSum
from blobnet.training.sharpness import Sharpness
from blobnet.training.step_plan import PLAIN, StepContext, plan_step
from blobnet.training.teacher import TeacherRun
from blobnet.training.weight_buffers import (
    AVERAGE,
    AVERAGE_RATE,
    GRADIENT_SUM,
    SQUARES,
    average_call,
    average_rate,
    finite_call,
)


class TrainingStep:
    """Gradients of a batch, and a step of the optimizer along them.

    Args:
        device: where to train.
        graph: the model.
        weights: the parameters to start from.
        settings: how; the weighted sum of its losses is minimised. Where it augments, every batch needs
            :meth:`change_samples`.
        context: what the step is made for besides.

    Attributes:
        plan: what runs.
        executor: runs it.
        heads: the outputs with their losses.
        changes: how samples change.
        parameters: the parameters on the device.
        state: what a file has of them and of the optimizer.
        result: those that training is for: the averaged ones if there are any, else the same.
        number: steps done.
        sharpness: what a step does between its first and its second gradients.
        own_shards: the numbers of the shards of this rank.

    Raises:
        OptionError: samples of the model's shape cannot be augmented so.
        PlanError: the plan does not fit the device.
    """

    def __init__(
        self,
        device: Device,
        graph: Graph,
        weights: Mapping[str, FloatArray],
        settings: TrainingSettings,
        context: StepContext = PLAIN,
    ) -> None:
        self.heads = heads_of(graph, settings.loss)
        self.changes = SampleChanges(graph, settings, self.heads)
        self.device, self.graph, self.settings, self.world = device, graph, settings, context.world
        self.number = 0
        self.loss_weights = settings.loss_weights or (1.0,) * len(self.heads)
        self._class_weights = settings.class_weights or (None,) * len(self.heads)
        self._partner_shares: tuple[FloatArray | None, ...] = (None,) * len(self.heads)
        own = settings.shards // self.world.size
        self.own_shards = range(self.world.rank * own, (self.world.rank + 1) * own)
        made = plan_step(device, graph, settings, context)
        self.plan, self.bytes, sums = made.plan, made.bytes, made.sums
        self.parameters = self.result = DeviceParameters(device, graph, self.plan.request.parameters)
        self.parameters.write(weights)
        allocate = partial(self.world.transport.allocate, device)
        memory = {
            name: (allocate if name == GRADIENT_SUM else device.memory.allocate)(FLOAT32.itemsize * elements)
            for name, elements in made.memory.items()
        }
        buffers = {"parameters": self.parameters.buffer, **memory}
        table, model = self.plan.request.parameters, self.plan.request.tuning.model
        updates = settings.optimizer.calls(table, model, scaled=LOSS_SCALE in memory)
        if settings.average is not None:
            self.result = DeviceParameters(device, graph, table)
            self.result.write(weights)
            buffers[AVERAGE] = self.result.buffer
            updates += average_call(table, model)
        self.loss_scale = LossScale(device, memory.get(LOSS_SCALE))
        self.state = StepState(device, self.parameters, self.result, settings.optimizer, memory)
        #: Of the totals of each shard.
        self._totals = len(self.heads) * TOTALS
        if sums.parts:
            buffers["gradients"] = allocate(self.plan.buffers["gradients"].bytes(self.plan.batch_size))
        if own > 1:
            buffers["totals"] = device.memory.allocate(FLOAT32.itemsize * own * self._totals)
        self.executor = self._computing = Executor(device, self.plan, buffers, debug=context.debug)
        self._teacher = None
        if settings.teacher is not None and made.teacher is not None:
            self._teacher = TeacherRun(device, made.teacher, settings.teacher, self.executor)
        self._gathering = {phase: self._gatherings(phase) for phase in ("forward", "backward")}
        #: The sum of the gradients, where a step is made of several batches.
        self.sum = ShardSum(self.executor, sums, settings.shards, self.world, self._totals)
        for head, numbers in zip(self.heads, self._class_weights, strict=True):
            if numbers is not None:
                self.executor.write_array(head.buffer("class_weights"), numbers)
        trained = "parameters" if settings.average is None else AVERAGE
        *self._update, self._squares = self.executor.bind([*updates, finite_call(trained, table, model)], 0)
        self.sharpness = Sharpness(self.executor, self.parameters, settings.optimizer, own * self._totals)
        self._is_over = False
        #: The number of the step that launches have been told last.
        self._told: int | None = None
        self._told_rate: tuple[int, float] | None = None

    @property
    def batch_size(self) -> int:
        """The most samples of a shard at once."""
        return self.plan.request.of_shard

    @property
    def parts(self) -> int:
        """Into how many parts a batch of a shard is cut, where the device has no memory for all of it at once."""
        return self.settings.batch_size // self.settings.shards // self.batch_size

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of the outputs."""
        return tuple(head.loss for head in self.heads)

    def load_batch(self, *arrays: npt.NDArray[Any]) -> Batch:
        """Puts a batch on the device, behind the work on the batch before; what :meth:`compute_gradients` takes.

        Args:
            arrays: the samples of each input, then the labels of each output.
        """
        inputs = len(self.plan.request.entries)
        labels = arrays[inputs:]
        self.load_samples(arrays[:inputs])
        for head, own in zip(self.heads, labels, strict=True):
            self.executor.feed(head.buffer("labels"), own)
        return Batch(len(labels[0]), divisor=self.weigh(labels)[0])

    def load_samples(self, samples: Sequence[npt.NDArray[Any]]) -> None:
        """Puts the samples of each input on the device."""
        for entry, values in zip(self.plan.request.entries, samples, strict=True):
            self.executor.feed(entry.buffer("samples"), np.asarray(values, entry.sample_type))

    def weigh(
        self,
        labels: Sequence[npt.NDArray[Any]],
        sample_weights: Sequence[FloatArray | None] | None = None,
        parts: Sequence[slice] = (slice(None),),
    ) -> list[tuple[float, ...]]:
        """The weight of each part of the batch that is loaded, in the mean of each output's losses; 1 where it is 0.

        Args:
            labels: of the batch, for each output.
            sample_weights: for each output a number for each sample. Either all batches have them, or none has.
            parts: of the samples.
        """
        given = sample_weights or (None,) * len(self.heads)
        ends = list(zip(self.heads, labels, given, self._class_weights, self._partner_shares, strict=True))
        for head, _, weights, _, _ in ends:
            if weights is not None:
                self.executor.feed(head.buffer("sample_weights"), weights)

        def weight(end: tuple[Any, ...], part: slice) -> float:
            head, own, weights, class_weights, shares = end
            of_samples = (None if values is None else values[part] for values in (weights, shares))
            return float(head.loss.weight(own[part], next(of_samples), class_weights, next(of_samples)))

        return [tuple(weight(end, part) for end in ends) for part in parts]

    def change_samples(self, rows: FloatArray) -> None:
        """Says how the batch that is loaded is augmented, before it is weighed: by rows of ``changes``."""
        for entry in self.plan.request.entries:
            if entry.augmented:
                self.executor.feed(entry.buffer("augmentation"), rows)
        if any(augmentation.mixes for augmentation in self.settings.augment.changes):
            self._partner_shares = tuple(self.changes.partner_shares(head, rows) for head in self.heads)
            for head, shares in zip(self.heads, self._partner_shares, strict=True):
                if shares is not None:
                    self.executor.feed(head.buffer("partner_shares"), shares)

    def compute_gradients(
        self, batch: Batch | int, *, exchanging: bool = False, counts: Sequence[int] | None = None
    ) -> None:
        """Forward, losses and backward on the batch that is loaded, or on so many samples.

        Args:
            batch: what is loaded; without samples, where only other ranks have some.
            exchanging: it is the rank's last one, and what is done of its gradients goes to the others meanwhile.
            counts: the samples of each shard of all ranks, where batch norms are over all: then all ranks must call it.
        """
        batch = Batch(batch) if isinstance(batch, int) else batch
        if counts is not None and SHARD_COUNTS in self.executor.buffers:
            self.executor.feed(SHARD_COUNTS, np.array(counts, np.float32))
        if batch.count:
            self.forward(batch)
            self.backward(batch, exchanging=exchanging)
            return
        self._prepare()
        executor = self.sum.take(batch)
        for phase, calls in self._gathering.items():
            for number, gather in calls:
                gather()
                executor.launch([executor.launches(phase, batch)[number]], 0)

    def forward(self, batch: Batch) -> None:
        """Forward on the samples that are loaded."""
        self._prepare()
        self._computing = self.sum.take(batch)
        self._computing.run("forward", batch, self._gathering["forward"])

    def backward(self, batch: Batch, deltas: Sequence[FloatArray] | None = None, *, exchanging: bool = False) -> None:
        """Losses and backward on the batch of :meth:`forward`.

        Args:
            batch: what is loaded.
            deltas: dL/d output of each output, in place of losses.
            exchanging: see :meth:`compute_gradients`.
        """
        executor = self._computing
        if deltas is None:
            if self._teacher is not None:
                self._teacher.run(batch)
            executor.launch(self._losses(executor, batch), batch.count)
        for head, values in zip(self.heads, deltas or (), strict=deltas is not None):
            if delta := self.plan.deltas.get(self.graph.vertices[head.index].name):
                executor.write_blob(delta, values * self.loss_scale.value())
        executor.run("backward", batch, self._gathering["backward"] or (self.sum.behind() if exchanging else ()))

    def _gatherings(self, phase: str) -> list[tuple[int, Callable[[], None]]]:
        """Return behind how many launches of a phase ranks give each other what their shards have left, and how."""

        def gather(array: Array) -> None:
            size = array.elements // self.settings.shards
            own = range(self.own_shards.start * size, self.own_shards.stop * size)
            self.world.transport.fill(self.device, self.executor.buffers[array.storage], own)

        calls = enumerate(self.plan.phase(phase))
        return [(number, partial(gather, call.arrays[call.gathers])) for number, call in calls if call.gathers]

    def _losses(self, executor: Executor, batch: Batch) -> list[Launch]:
        """Return the launches of an executor for the losses of a batch."""
        ends = zip(self.heads, self.loss_weights, strict=True)
        of_heads = [executor.launches(head.phase, batch.of_output(head.number, weight)) for head, weight in ends]
        in_all = executor.launches("loss", batch) if len(self.heads) > 1 else []
        return [*itertools.chain.from_iterable(of_heads), *in_all]

    def tell_rate(self, learning_rate: float) -> None:
        """Tells launches the learning rate of this step, and what else depends on its number, once."""
        if self._told_rate == (self.number, learning_rate):
            return
        self._told_rate, table = (self.number, learning_rate), self.parameters.table
        self.executor.feed(HYPERPARAMETERS, self.settings.optimizer.hyperparameters(table, self.number, learning_rate))
        if self.settings.average is not None:
            rate = average_rate(self.number, self.settings.average)
            self.executor.feed(AVERAGE_RATE, np.array([rate], np.float32))

    def update(self, learning_rate: float) -> None:
        """One step of the optimizer along the gradients; none once a loss was not finite (see :meth:`read_totals`)."""
        self.tell_rate(learning_rate)
        self.sharpness.descend()
        self.executor.launch(self._update, 0)
        for parameters in {self.parameters, self.result}:
            parameters.changed(only_trained=True)
        self.number += 1

    def _prepare(self) -> None:
        """Makes anew what depends on parameters, and tells launches which step it is, once: shards read it too."""
        parameters = self.parameters
        self.executor.prepare(parameters.version if self.plan.request.in_batches else parameters.frozen_version)
        if self._told == self.number:
            return
        step = np.zeros(STEP_WORDS, np.uint32)
        step[:3] = self.settings.seed & 0xFFFFFFFF, self.settings.seed >> 32, self.number
        self.executor.feed("step", step)
        self._told = self.number

    # -- what was measured -------------------------------------------------------------------------------------------

    def read_totals(self) -> PendingRead:
        """Begins to read the sums of the metrics since :meth:`reset_totals`, and the number of samples.

        After a loss that is not finite they stand still, and so do the parameters: the last of the samples counted are
        those of the batch with that loss.
        """
        totals = np.empty(len(self.own_shards) * self._totals, np.float32)
        return self.device.memory.read_async(self.executor.buffers["totals"], totals)

    def totals(self) -> FloatArray:
        """The same of each shard in turn, on all ranks, once all that was launched is done; all ranks must ask.

        Behind :meth:`go_back` those of the last step, on this rank alone.
        """
        if self._is_over:
            assert self.sum.totals is not None, "a step was done"
            return self.sum.totals
        return np.concatenate(self.world.gather(self.read_totals().values()))

    def sum_of_shards(self, totals: FloatArray) -> FloatArray:
        """The sums over all shards of what :meth:`totals` or :meth:`read_totals` gave."""
        if totals.size == self._totals:
            return totals
        summed: FloatArray = totals.reshape(-1, self._totals).astype(np.float64).sum(axis=0).astype(np.float32)
        return summed

    def reset_totals(self, totals: FloatArray | None = None) -> None:
        """Starts the metrics anew, or from what :meth:`totals` gave."""
        every = np.zeros(self.settings.shards * self._totals, np.float32) if totals is None else totals
        own = self.own_shards
        self.executor.feed("totals", every[own.start * self._totals : own.stop * self._totals])

    def first_not_finite(self, count: int) -> str:
        """Runs forward on the batch that is loaded, launch by launch; the first that leaves NaN or infinity."""
        self._prepare()
        weights = self.parameters.read()
        for call in self.plan.phase("forward"):
            self.executor.launch(self.executor.bind([call], count), count)
            if call.vertex is None:
                continue  # The plan's own leave no data of a layer: behind one that clears a halo there are another's.
            for role, access in call.source.blobs.items():
                if access != "read" and not np.isfinite(self.executor.read_blob(call.blobs[role], count)).all():
                    vertex = self.graph.vertices[call.vertex]
                    own = {vertex.parameter(spec.name) for spec in self.graph.parameters(vertex)}
                    broken = [name for name in not_finite(weights) if name in own]
                    return vertex.name + (f", whose {', '.join(broken)} are not finite themselves" if broken else "")
        return "the loss itself"

    def go_back(self) -> bool:
        """Makes all that a file has of this step what it was behind the last one, where others do not answer any more.

        Returns:
            Whether it could.
        """
        # The statistics of batch norms over all shards move in the middle of a step, and so do all where it climbs.
        stays = not self.settings.sync_batch_norm and not self.sharpness.is_up
        self._is_over = self.sum.totals is not None and stays
        return self._is_over

    def gradients(self) -> dict[str, FloatArray]:
        """The gradients of all parameters that are trained, by name."""
        table = self.parameters.table
        flat = self.device.memory.read(self.executor.buffers["gradients"], max(1, table.trainable_elements))
        return table.unpack_gradients(flat / self.loss_scale.value() if self.loss_scale.is_used else flat)

    def is_finite(self) -> bool:
        """Return True if :attr:`result` is surely finite once all launches are done; huge numbers are not sure."""
        self.executor.launch([self._squares], 0)
        sums = self.device.memory.read(self.executor.buffers[SQUARES], self._squares.call.groups)
        return bool(np.isfinite(sums).all())


def input_deltas(step: TrainingStep, count: int) -> list[FloatArray]:
    """Return dL/d x of each input for the batch of the last backward pass: (count, units[, depth], height, width)."""
    found, parameters, scale = [], step.parameters, step.loss_scale.value()
    for vertex in step.graph.inputs.values():
        delta = step.executor.read_blob(step.plan.deltas[vertex.name], count)
        # The delta is that of the normalised sample.
        place = parameters.table.slices[vertex.parameter("deviation")]
        offset = FLOAT32.itemsize * place.offset
        deviation = step.device.memory.read(parameters.buffer, place.elements, offset=offset)
        found.append(delta / np.float32(scale) / deviation.reshape(-1, *(1,) * (delta.ndim - 2)))
    return found


def not_finite(weights: Mapping[str, FloatArray]) -> list[str]:
    """The names of the parameters that hold NaN or infinity."""
    return [name for name, values in weights.items() if not np.isfinite(values).all()]
