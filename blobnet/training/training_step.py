"""One step of training on a device: a plan with memory, the parameters, and the optimizer's state."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.augment import Augmentation
from blobnet.augment.epoch_rows import EpochRows, check_fit, partner_shares
from blobnet.data.moved_labels import move_labels
from blobnet.device.device import Device
from blobnet.device.memory import PendingRead
from blobnet.errors import OptionError, OutOfMemoryError, PlanError, warn
from blobnet.execution.executor import (
    IN_PARTS,
    Executor,
    Launch,
    check_by_default,
    check_fits,
    first_that_fits,
    plan_for,
)
from blobnet.launch.kernel_call import Batch
from blobnet.losses import Loss
from blobnet.memory.blob import FLOAT32, FloatArray, Shape
from blobnet.network.ends import TOTALS, Head, Losses, heads_of
from blobnet.network.graph import Graph
from blobnet.network.parameters import DeviceParameters, ParameterTable, parameter_table
from blobnet.network.patterns import rate_factors
from blobnet.optimizers import Optimizer
from blobnet.optimizers.base import HYPERPARAMETERS
from blobnet.parallel.world import ALONE, World
from blobnet.planning import STEP_WORDS, Plan
from blobnet.training import weight_buffers
from blobnet.training.lanes import Lanes, lane_counts, memory_of_lanes, settings_of
from blobnet.training.lockstep import Lockstep, memory_of_shards
from blobnet.training.shard_sum import ORDERED, ShardSum, sums_of
from blobnet.training.weight_buffers import AVERAGE, AVERAGE_RATE, GRADIENT_SUM, Sums, average_call, average_rate

#: The names among the optimizer's slots of the parameters themselves and of their averages, in files whose weights are
#: not those: the parameters where there are averages, both where the file's weights are of an earlier epoch.
_PARAMETERS, _AVERAGES = "parameters", "averages"


def fitting_plan(
    device: Device,
    graph: Graph,
    batch_size: int,
    loss: Losses,
    optimizer: Optimizer,
    *,
    frozen: Collection[str] = (),
    accumulate: bool = False,
    shards: int = 1,
    world: World = ALONE,
    reduction: str = ORDERED,
    in_step: bool = False,
    lanes: int = 1,
    average: bool = False,
    **settings: Any,
) -> Plan:
    """A training plan that fits a device beside what a step keeps besides, and whose kernels are built.

    Its ``parameters`` say what is trained: all but those that are ``frozen``, by name. Other ``settings`` are as for
    make_plan.

    Raises:
        PlanError: it does not fit.
        ShapeError: the loss does not fit the model's output.
    """
    table = parameter_table(graph, frozen, rate_factors(graph, optimizer.factors))
    sums = sums_of(graph, table, accumulate, shards, world, reduction, in_step=in_step)
    reserved = _state_bytes(table, optimizer, sums, average)
    settings |= {"loss": loss, "training": True, "parameters": table, "shards": shards if in_step else 1}
    own = shards // world.size
    settings |= settings_of(sums, own, lanes, accumulate=accumulate)
    plan = plan_for(device, graph, batch_size, reserved=reserved, **settings)
    beside = memory_of_shards(plan, own) if in_step else memory_of_lanes(plan, lanes, own)
    check_fits(plan, device, reserved + beside)
    return plan


def _state_memory(table: ParameterTable, optimizer: Optimizer, sums: Sums, average: bool) -> dict[str, int]:
    """Elements of the buffers that a step keeps besides its plan's, but for averaged parameters."""
    return optimizer.memory(table) | sums.memory() | weight_buffers.memory(average=average)


def _state_bytes(table: ParameterTable, optimizer: Optimizer, sums: Sums, average: bool) -> int:
    elements = sum(_state_memory(table, optimizer, sums, average).values())
    return FLOAT32.itemsize * elements + (table.bytes if average else 0)


class TrainingStep:
    """Gradients of a batch, and a step of the optimizer along them.

    Args:
        device: where to train.
        graph: the model.
        weights: the parameters to start from.
        loss: what to minimise; of several outputs one for each, of which the weighted sum is minimised.
        optimizer: how.
        batch_size: the most samples at once.
        seed: of dropout, together with the number of the step.
        input_delta: also compute dL/d input.
        loss_weights: what the loss of each output is multiplied by; all 1 if None.
        sample_type: NumPy's name for the type of the samples, or of those of each input.
        frozen: names of trainable parameters that stay as they are.
        class_weights: for each output a number for each class, where its loss is one of classes; None is all 1.
        accumulate: whether a step may be made of several batches.
        shards: parts of a step that are computed alone, so that any number of ranks gives the same bits.
        world: the ranks, each with as many of the shards.
        reduction: how ranks add gradients: see blobnet.training.shard_sum.
        in_step: whether batch norms are over all shards, which are then computed together.
        average: how much of an average of the weights a step keeps, from 0 to below 1; None: no average is kept.
        augment: how samples change on their way in; then every batch needs :meth:`change_samples`.
        augmented: the name of the input whose samples change; the only one if None.
        debug: see Executor.

    Attributes:
        plan: what runs.
        executor: runs it.
        parameters: the parameters on the device.
        frozen: the names of those that stay as they are.
        result: those that training is for: the averaged ones if there are any, else the same.
        number: steps done.
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
        loss: Losses,
        optimizer: Optimizer,
        batch_size: int,
        seed: int = 0,
        *,
        input_delta: bool = False,
        loss_weights: Sequence[float] | None = None,
        sample_type: str | tuple[str, ...] = "float32",
        frozen: Collection[str] = (),
        class_weights: Sequence[FloatArray | None] | None = None,
        accumulate: bool = False,
        shards: int = 1,
        world: World = ALONE,
        reduction: str = ORDERED,
        in_step: bool = False,
        average: float | None = None,
        augment: Sequence[Augmentation] = (),
        augmented: str | None = None,
        debug: bool | None = None,
    ) -> None:
        self.heads = heads_of(graph, loss)
        self.augmented = augmented or (next(iter(graph.inputs)) if augment else None)
        #: The shape of the samples that change.
        self._changed = graph.inputs[self.augmented].shape if self.augmented else Shape.flat(1)
        for head in self.heads:
            check_fit(augment, self._changed, head.shape, head.loss)
        self.device = device
        self.graph = graph
        self.loss_weights = tuple(loss_weights or (1.0,) * len(self.heads))
        self.optimizer = optimizer
        self.frozen = frozenset(frozen)
        self.seed = seed
        self.number = 0
        self.class_weights = tuple(class_weights or (None,) * len(self.heads))
        self.average = average
        self.augment = tuple(augment)
        self._partner_shares: tuple[FloatArray | None, ...] = (None,) * len(self.heads)
        self.shards, self.world = shards, world
        own = shards // world.size
        self.own_shards = range(world.rank * own, (world.rank + 1) * own)
        settings: dict[str, Any] = {"input_delta": input_delta, "sample_type": sample_type, "frozen": frozen}
        in_step = in_step and shards > 1 and _couples_samples(graph, self.frozen)
        settings |= {"accumulate": accumulate, "shards": shards, "world": world, "reduction": reduction}
        settings["in_step"] = in_step
        settings["average"] = average is not None
        settings["augmented"] = self.augmented or False
        counts = (
            [1]
            if in_step or accumulate or debug or (debug is None and check_by_default())
            else lane_counts(device.model, graph, batch_size, own)
        )
        for lanes in counts:
            try:
                self.plan = fitting_plan(device, graph, batch_size, loss, optimizer, lanes=lanes, **settings)
                break
            except PlanError:  # Of fewer shards at a time there is less to keep.
                if lanes == 1:
                    raise
        self.parameters = self.result = DeviceParameters(device, graph, self.plan.request.parameters)
        self.parameters.write(weights)
        table, device_model = self.parameters.table, self.plan.request.tuning.model
        sums = sums_of(graph, table, accumulate, shards, world, reduction, in_step=in_step)
        self._state_bytes = _state_bytes(table, optimizer, sums, average is not None)
        memory = _state_memory(table, optimizer, sums, average is not None)
        sizes = {name: FLOAT32.itemsize * elements for name, elements in memory.items()}
        allocate = partial(world.transport.allocate, device)
        self._state = {
            name: (allocate if name == GRADIENT_SUM else device.memory.allocate)(size) for name, size in sizes.items()
        }
        buffers = {"parameters": self.parameters.buffer, **self._state}
        if average is not None:
            self.result = DeviceParameters(device, graph, table)
            self.result.write(weights)
            buffers[AVERAGE] = self.result.buffer
        #: Of the totals of each shard.
        self._totals = len(self.heads) * TOTALS
        if sums.parts:
            buffers["gradients"] = allocate(self.plan.buffers["gradients"].bytes(batch_size))
        if own > 1:
            buffers["totals"] = device.memory.allocate(FLOAT32.itemsize * own * self._totals)
        self.executor = Executor(device, self.plan, buffers, debug=debug)
        #: The shards of this rank, where they are computed together.
        self.lockstep: Lockstep | None = None
        if in_step:
            self.lockstep = Lockstep(self.executor, sums, self.own_shards, world, self._totals)
            self._state_bytes += memory_of_shards(self.plan, own)
        self._state_bytes += memory_of_lanes(self.plan, lanes, own)
        self.lanes = Lanes(self.executor, lanes, own, sums)
        for head, numbers in zip(self.heads, self.class_weights, strict=True):
            if numbers is not None:
                self.executor.write_array(head.buffer("class_weights"), numbers)
        updates = optimizer.calls(table, device_model)
        if average is not None:
            updates += average_call(table, device_model)
        self._update = self.executor.bind(updates, 0)
        self._is_over = False
        #: The number of the step that launches have been told last.
        self._told: int | None = None
        #: The sum of the gradients, where a step is made of several batches.
        self.sum = ShardSum(self.executor, sums, shards, world, self._totals, self.lanes)

    @property
    def batch_size(self) -> int:
        """The most samples at once."""
        return self.plan.batch_size

    @property
    def bytes(self) -> int:
        """What the step holds on the device."""
        return self.plan.bytes() + self._state_bytes

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of the outputs."""
        return tuple(head.loss for head in self.heads)

    def load_batch(self, *arrays: npt.NDArray[Any]) -> Batch:
        """Puts a batch on the device, behind the work on the batch before; what :meth:`compute_gradients` takes.

        Args:
            arrays: the samples of each input, then the labels of each output.
        """
        entries = self.plan.request.entries
        for entry, values in zip(entries, arrays[: len(entries)], strict=True):
            self.executor.feed(entry.buffer("samples"), np.asarray(values, entry.sample_type))
        labels = arrays[len(entries) :]
        for head, own in zip(self.heads, labels, strict=True):
            self.executor.feed(head.buffer("labels"), own)
        return Batch(len(labels[0]), divisor=self.weigh(labels))

    def weigh(
        self, labels: Sequence[npt.NDArray[Any]], sample_weights: Sequence[FloatArray | None] | None = None
    ) -> tuple[float, ...]:
        """The weight of the batch that is loaded, in the mean of the losses of each output; 1 where it is 0.

        Args:
            labels: of the batch, for each output.
            sample_weights: for each output a number for each sample. Either all batches have them, or none has.
        """
        found = []
        given = sample_weights or (None,) * len(self.heads)
        ends = self.heads, labels, given, self.class_weights, self._partner_shares
        for head, own, weights, class_weights, shares in zip(*ends, strict=True):
            if weights is not None:
                self.executor.feed(head.buffer("sample_weights"), weights)
            found.append(head.loss.weight(own, weights, class_weights, shares))
        return tuple(found)

    def epoch_rows(self, epoch: int, numbers: Callable[[int, int], npt.NDArray[np.integer]]) -> EpochRows | None:
        """How the samples of an epoch change; None if they do not. ``numbers`` is as for EpochRows."""
        if not self.augment:
            return None
        return EpochRows(self.augment, self._changed, self.seed, epoch, numbers)

    def change_samples(self, rows: FloatArray) -> None:
        """Says how the batch that is loaded is augmented, before it is weighed: by rows of :meth:`epoch_rows`."""
        for entry in self.plan.request.entries:
            if entry.augmented:
                self.executor.feed(entry.buffer("augmentation"), rows)
        if any(augmentation.mixes for augmentation in self.augment):
            self._partner_shares = tuple(map(self._shares_of(rows), self.heads))
            for head, shares in zip(self.heads, self._partner_shares, strict=True):
                if shares is not None:
                    self.executor.feed(head.buffer("partner_shares"), shares)

    def _shares_of(self, rows: FloatArray) -> Callable[[Head], FloatArray | None]:
        def shares(head: Head) -> FloatArray | None:
            if not head.loss.takes_pairs:
                return None
            return partner_shares(rows, self._changed, has_positions=head.shape.rank > 0)

        return shares

    @property
    def moves_labels(self) -> bool:
        """Whether there are labels that move along with their samples."""
        return any(item.moves for item in self.augment) and any(head.shape.rank > 0 for head in self.heads)

    def move_labels(self, labels: Sequence[npt.NDArray[np.int32]], rows: FloatArray) -> None:
        """Moves the labels of a batch, in place, along with its samples: before they are loaded."""
        for head, own in zip(self.heads, labels, strict=True):
            if head.shape.rank > 0:
                move_labels(own, rows, self._changed, head.loss)

    def compute_gradients(self, batch: Batch | int, *, exchanging: bool = False) -> None:
        """Forward, losses and backward on the batch that is loaded, or on so many samples.

        ``exchanging``: it is the rank's last one, and what is done of its gradients goes to the others meanwhile.
        """
        self._prepare()
        batch = Batch(batch) if isinstance(batch, int) else batch
        if self.lanes.are_several:
            self.lanes.stage(batch, partial(self._behind_forward, batch))
            return
        executor = self.lanes.take()
        executor.run("forward", batch)
        self._compute_losses(executor, batch)
        executor.run("backward", batch, self.sum.behind() if exchanging else ())

    def begin_gradients(self, shard: int, batch: Batch) -> None:
        """Takes the batch that is loaded for one of the rank's shards, where these are computed together."""
        assert self.lockstep is not None, "shards are computed one by one"
        self._feed_step()
        self.lockstep.begin(shard, batch, self._parameters_version)

    def finish_gradients(self, counts: Sequence[int]) -> None:
        """Forward, losses and backward on the batches that have begun; all ranks must call it.

        ``counts`` are the samples that each shard of all ranks has in them.
        """
        assert self.lockstep is not None, "shards are computed one by one"
        self.lockstep.finish(counts, self._compute_losses)

    def _compute_losses(self, executor: Executor, batch: Batch) -> None:
        executor.launch(self._losses(executor, batch), batch.count)

    def _losses(self, executor: Executor, batch: Batch) -> list[Launch]:
        """What an executor launches for the losses of a batch."""
        ends = zip(self.heads, self.loss_weights, strict=True)
        of_heads = [executor.launches(head.phase, batch.of_output(head.number, weight)) for head, weight in ends]
        in_all = executor.launches("loss", batch) if len(self.heads) > 1 else []
        return [*itertools.chain.from_iterable(of_heads), *in_all]

    def _behind_forward(self, batch: Batch, executor: Executor) -> list[Launch]:
        """What it launches behind the forward pass."""
        return [*self._losses(executor, batch), *executor.launches("backward", batch)]

    def update(self, learning_rate: float) -> None:
        """One step of the optimizer along the gradients; none once a loss was not finite (see :meth:`read_totals`)."""
        table = self.parameters.table
        self.executor.feed(HYPERPARAMETERS, self.optimizer.hyperparameters(table, self.number, learning_rate))
        if self.average is not None:
            rate = average_rate(self.number, self.average)
            self.executor.feed(AVERAGE_RATE, np.array([rate], np.float32))
        self.executor.launch(self._update, 0)
        for parameters in {self.parameters, self.result}:
            parameters.changed(only_trained=True)
        self.number += 1

    @property
    def _parameters_version(self) -> int:
        """Another number whenever parameters have changed of which the plan keeps something that is made of them."""
        return self.parameters.version if self.plan.request.in_batches else self.parameters.frozen_version

    def _prepare(self) -> None:
        self.executor.prepare(self._parameters_version)
        self._feed_step()

    def _feed_step(self) -> None:
        """Tells launches which step it is, once: shards that are under way read it too."""
        if self._told == self.number:
            return
        step = np.zeros(STEP_WORDS, np.uint32)
        step[:3] = self.seed & 0xFFFFFFFF, self.seed >> 32, self.number
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
        every = np.zeros(self.shards * self._totals, np.float32) if totals is None else totals
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
        self._is_over = self.sum.totals is not None and self.sum.keeps_statistics
        return self._is_over

    # -- state -------------------------------------------------------------------------------------------------------

    def gradients(self) -> dict[str, FloatArray]:
        """The gradients of all parameters that are trained, by name."""
        table = self.parameters.table
        flat = self.device.memory.read(self.executor.buffers["gradients"], max(1, table.trainable_elements))
        return table.unpack_gradients(flat)

    def optimizer_state(self, *, is_whole: bool = False) -> dict[str, FloatArray]:
        """A flat array for each slot of the optimizer; with an average also the parameters themselves.

        ``is_whole``: with all parameters, and their averages, for a file that holds others.
        """
        table = self.parameters.table
        slots = {
            slot: self.device.memory.read(self._slot(slot), table.trainable_elements)
            for slot in self.optimizer.state_slots
        }
        if self.average is not None or is_whole:
            slots[_PARAMETERS] = self.device.memory.read(self.parameters.buffer, table.elements)
        if self.average is not None and is_whole:
            slots[_AVERAGES] = self.device.memory.read(self.result.buffer, table.elements)
        return slots

    def restore(self, number: int, optimizer_state: Mapping[str, FloatArray]) -> bool:
        """Goes on behind step ``number`` with what :meth:`optimizer_state` gave; OptionError if that does not fit.

        Returns:
            Whether it was whole, so that :attr:`result` holds other weights than before.
        """
        table = self.parameters.table
        wanted = dict.fromkeys(self.optimizer.state_slots, table.trainable_elements)
        is_whole = (_PARAMETERS if self.average is None else _AVERAGES) in optimizer_state
        wanted |= {_PARAMETERS: table.elements} if self.average is not None or is_whole else {}
        wanted |= {_AVERAGES: table.elements} if self.average is not None and is_whole else {}
        sizes = {slot: values.size for slot, values in optimizer_state.items()}
        if sizes != wanted:
            rule = "the optimizer's state must be that of the parameters that are trained"
            raise OptionError("resume", rule, saved=sizes, wanted=wanted)
        self.number = number
        places = {_PARAMETERS: self.parameters.buffer, _AVERAGES: self.result.buffer}
        for slot, values in optimizer_state.items():
            self.device.memory.write(places[slot] if slot in places else self._slot(slot), values)
        for parameters in {self.parameters, self.result}:
            parameters.changed()
        return is_whole

    def _slot(self, slot: str) -> Any:
        return self._state[self.optimizer.storage(slot)]


def step_that_fits(
    device: Device, make: Callable[..., TrainingStep], batch_size: int, accumulate: bool, *, in_parts: bool
) -> TrainingStep:
    """A step for batches, or if it may be for parts of them: as many as it takes to fit the device's memory.

    A warning says that there are parts.

    Args:
        device: of the step.
        make: TrainingStep, which lacks ``batch_size`` and ``accumulate`` alone.
        batch_size: samples of a batch, which is a multiple of those of a part.
        accumulate: whether gradients are added up in any case.
        in_parts: whether there may be parts, whose gradients are added up.

    Raises:
        PlanError, OutOfMemoryError: the memory is not enough.
    """
    small = [size for size in range(1, math.isqrt(batch_size) + 1) if batch_size % size == 0]
    sizes = sorted({*small, *(batch_size // size for size in small)}, reverse=True)

    def made(size: int) -> TrainingStep:
        return make(batch_size=size, accumulate=accumulate or size < batch_size)

    try:
        step = first_that_fits(device, sizes if in_parts else sizes[:1], made)
    except OutOfMemoryError as error:
        if not in_parts and batch_size > 1:
            error.args = (f"{error}{'' if 'Hint: ' in str(error) else ' Hint:'} {IN_PARTS}",)
        raise
    if step.batch_size < batch_size:
        rule = "the memory of the device should hold a whole batch, which is computed in parts now"
        warn("fit_memory", rule, batch_size=batch_size, part=step.batch_size)
    return step


def _couples_samples(graph: Graph, frozen: Collection[str]) -> bool:
    """Whether a network has layers by which samples depend on each other: batch norms that are trained."""
    coupling = [vertex for vertex in graph.vertices if vertex.layer.couples_samples]
    trained = [(vertex, spec.name) for vertex in coupling for spec in graph.parameters(vertex) if spec.trainable]
    return any(vertex.parameter(name) not in frozen for vertex, name in trained)


def not_finite(weights: Mapping[str, FloatArray]) -> list[str]:
    """The names of the parameters that hold NaN or infinity."""
    return [name for name, values in weights.items() if not np.isfinite(values).all()]
