"""One step of training on a device: a plan with memory, the parameters, and the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray
from blobnet.device import Device, Reading
from blobnet.executor import Executor, plan_for
from blobnet.graph import Graph
from blobnet.kernel_call import Batch
from blobnet.losses import Loss
from blobnet.optimizers import HYPERPARAMETERS, Optimizer
from blobnet.parameters import DeviceParameters, parameter_table
from blobnet.planner import STEP_WORDS, Plan


def fitting_plan(
    device: Device, graph: Graph, batch_size: int, loss: Loss, optimizer: Optimizer, *, input_delta: bool = False
) -> Plan:
    """A training plan that fits a device beside the optimizer's state, and whose kernels are built.

    Raises:
        PlanError: it does not fit.
        ShapeError: the loss does not fit the model's output.
    """
    reserved = 4 * sum(optimizer.memory(parameter_table(graph)).values())
    return plan_for(device, graph, batch_size, reserved=reserved, loss=loss, training=True, input_delta=input_delta)


class TrainingStep:
    """Gradients of a batch, and a step of the optimizer along them.

    Args:
        device: where to train.
        graph: the model.
        weights: the parameters to start from.
        loss: what to minimise.
        optimizer: how.
        batch_size: the most samples at once.
        seed: of dropout, together with the number of the step.
        input_delta: also compute dL/d input.
        debug: see Executor.

    Attributes:
        plan: what runs.
        executor: runs it.
        parameters: the parameters on the device.
        number: steps done.

    Raises:
        PlanError: the plan does not fit the device.
    """

    def __init__(
        self,
        device: Device,
        graph: Graph,
        weights: Mapping[str, FloatArray],
        loss: Loss,
        optimizer: Optimizer,
        batch_size: int,
        seed: int = 0,
        *,
        input_delta: bool = False,
        debug: bool | None = None,
    ) -> None:
        self.device = device
        self.graph = graph
        self.loss = loss
        self.optimizer = optimizer
        self.seed = seed
        self.number = 0
        self.plan = fitting_plan(device, graph, batch_size, loss, optimizer, input_delta=input_delta)
        self.parameters = DeviceParameters(device, graph)
        self.parameters.write(weights)
        memory = optimizer.memory(self.parameters.table)
        self._state = {name: device.allocate(4 * elements) for name, elements in memory.items()}
        buffers = {"parameters": self.parameters.buffer, **self._state}
        self.executor = Executor(device, self.plan, buffers, debug=debug)
        self._update = self.executor.bind(optimizer.calls(self.parameters.table, self.plan.tuning), 0)

    @property
    def batch_size(self) -> int:
        """The most samples at once."""
        return self.plan.batch_size

    @property
    def bytes(self) -> int:
        """What the step holds on the device."""
        return self.plan.bytes() + 4 * sum(self.optimizer.memory(self.parameters.table).values())

    def load_batch(self, x: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Batch:
        """Puts a batch on the device, behind the work on the batch before; what :meth:`compute_gradients` takes."""
        self.executor.feed("samples", np.asarray(x, np.float32))
        self.executor.feed("labels", labels)
        return Batch(len(labels), divisor=self.loss.weight(labels))

    def compute_gradients(self, batch: Batch | int) -> None:
        """Forward, loss and backward on the batch that is loaded, or on so many samples."""
        self._feed_step()
        for phase in ("forward", "loss", "backward"):
            self.executor.run(phase, batch)

    def update(self, learning_rate: float) -> None:
        """One step of the optimizer along the gradients; none once a loss was not finite (see :meth:`read_totals`)."""
        self.executor.feed(HYPERPARAMETERS, self.optimizer.step_values(self.number, learning_rate))
        self.executor.launch(self._update, 0)
        self.parameters.changed()
        self.number += 1

    def _feed_step(self) -> None:
        step = np.array([self.seed & 0xFFFFFFFF, self.seed >> 32, self.number], np.uint32)
        self.executor.feed("step", np.pad(step, (0, STEP_WORDS - len(step))))

    # -- what was measured -------------------------------------------------------------------------------------------

    def read_totals(self) -> Reading:
        """Begins to read the sums of the metrics since :meth:`reset_totals`, and the number of samples.

        After a loss that is not finite they stand still, and so do the parameters: the last of the samples counted are
        those of the batch with that loss.
        """
        return self.device.read_later(self.executor.buffers["totals"], Loss.SAMPLE_METRICS + 1)

    def totals(self) -> FloatArray:
        """The same, once all that was launched is done."""
        return self.read_totals().values()

    def reset_totals(self) -> None:
        """Starts the metrics anew."""
        self.device.fill_zero(self.executor.buffers["totals"], 4 * (Loss.SAMPLE_METRICS + 1))

    def first_not_finite(self, count: int) -> str:
        """Runs forward on the batch that is loaded, launch by launch; the first that leaves NaN or infinity."""
        self._feed_step()
        weights = self.parameters.read()
        for call in self.plan.phase("forward"):
            self.executor.launch(self.executor.bind([call], count), count)
            if call.kernel == "blob/zero_halo":
                continue  # The data of its blob are still those of another one, whose memory it was.
            layer = call.label.rsplit(" ", 1)[0]
            for role, access in call.source.blobs.items():
                if access != "read" and not np.isfinite(self.executor.read_blob(call.blobs[role], count)).all():
                    broken = [name for name in not_finite(weights) if name.startswith(f"{layer}/")]
                    return layer + (f", whose {', '.join(broken)} are not finite themselves" if broken else "")
        return "the loss itself"

    # -- state -------------------------------------------------------------------------------------------------------

    def gradients(self) -> dict[str, FloatArray]:
        """The gradients of all trainable parameters, by name."""
        table = self.parameters.table
        flat = self.device.read(self.executor.buffers["gradients"], table.elements)
        trainable = {name for name, spec in self.graph.named_parameters.items() if spec.trainable}
        return {name: values for name, values in table.unpack(flat).items() if name in trainable}

    def optimizer_state(self) -> dict[str, FloatArray]:
        """A flat array for each slot of the optimizer."""
        elements = self.parameters.table.trainable_elements
        return {slot: self.device.read(self._slot(slot), elements) for slot in self.optimizer.state_slots}

    def restore(self, number: int, optimizer_state: Mapping[str, FloatArray]) -> None:
        """Goes on behind step ``number`` with what :meth:`optimizer_state` gave."""
        self.number = number
        for slot, values in optimizer_state.items():
            self.device.write(self._slot(slot), values)

    def _slot(self, slot: str) -> Any:
        return self._state[self.optimizer.storage(slot)]


def not_finite(weights: Mapping[str, FloatArray]) -> list[str]:
    """The names of the parameters that hold NaN or infinity."""
    return [name for name, values in weights.items() if not np.isfinite(values).all()]
