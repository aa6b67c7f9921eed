"""Training: steps, epochs, and what resuming needs.

Same seed, same device: bit-identical weights. The samples' order in epoch e follows from (seed, e) alone, and dropout
from (seed, step), so that a resumed training continues exactly where it stopped.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from blobnet.blob import FloatArray
from blobnet.callbacks import Callback
from blobnet.checkpoint import TrainingState
from blobnet.device import Device
from blobnet.errors import OptionError, TrainingError
from blobnet.executor import Executor, plan_for
from blobnet.graph import Graph
from blobnet.inference import Evaluator, check_samples, metric_names, metrics_of, prepare_labels
from blobnet.losses import Loss
from blobnet.optimizers import HYPERPARAMETERS, Optimizer
from blobnet.planner import STEP_WORDS, Plan, make_plan, parameter_table

#: Seconds between two readings of the running metrics for the progress bar.
DISPLAY_INTERVAL = 0.25
#: What the bar of an epoch shows; with the metrics it fits 80 columns.
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {rate_fmt}{postfix}"


@dataclass
class Progress:
    """What callbacks see of a training.

    Attributes:
        trainer: the trainer, for its weights and state.
        epochs: planned epochs.
        history: a value an epoch, by name; the last ones are those of the epoch that has just ended.
        stop: set by a callback that wants training to end after this epoch; says why.
        metrics: the names that every epoch adds a value to; a callback that adds others names them in its ``begin``.
        class_names: names of the model's outputs, for files.
        is_resumable: whether the trainer's state belongs to its weights; not after going back to an earlier epoch's.
    """

    trainer: Trainer
    epochs: int
    history: dict[str, list[float]] = field(default_factory=dict)
    stop: str | None = None
    metrics: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    is_resumable: bool = True


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


class Trainer:
    """A training plan with memory on a device.

    Args:
        device: where to train.
        graph: the model.
        weights: the parameters to start from.
        loss: what to minimise.
        optimizer: how.
        batch_size: samples a step.
        seed: of the samples' order and of dropout.
        input_delta: also compute dL/d input.
        debug: see Executor.

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
        self.epoch = 0
        self.step_number = 0
        self._settings: dict[str, int] = {"batch_size": batch_size}
        self.plan = fitting_plan(device, graph, batch_size, loss, optimizer, input_delta=input_delta)
        self.table = self.plan.parameters
        memory = optimizer.memory(self.table)
        self._state = {name: device.allocate(4 * elements) for name, elements in memory.items()}
        self.executor = Executor(device, self.plan, self._state, debug=debug)
        self.executor.write_array("parameters", self.table.pack(weights))
        self._update = self.executor.bind(optimizer.calls(self.table, self.plan.tuning), 0)

    @property
    def batch_size(self) -> int:
        """Samples a step."""
        return self.plan.batch_size

    # -- one step ----------------------------------------------------------------------------------------------------

    def load_batch(self, x: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Puts a batch on the device, behind the work on the batch before."""
        self.executor.feed("samples", np.asarray(x, np.float32))
        self.executor.feed("labels", labels)

    def _loaded(self, *batch: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        """A batch, once it is on its way."""
        self.load_batch(*batch)
        return batch

    def compute_gradients(self, count: int) -> None:
        """Forward, loss and backward on the batch that is loaded."""
        step = np.array([self.seed & 0xFFFFFFFF, self.seed >> 32, self.step_number], np.uint32)
        self.executor.feed("step", np.pad(step, (0, STEP_WORDS - len(step))))
        for phase in ("forward", "loss", "backward"):
            self.executor.run(phase, count)

    def update(self, learning_rate: float) -> None:
        """One step of the optimizer along the gradients."""
        self.executor.feed(HYPERPARAMETERS, self.optimizer.step_values(self.step_number, learning_rate))
        self.executor.launch(self._update, 0)
        self.step_number += 1

    def read_totals(self) -> FloatArray:
        """The sums of the metrics since the last :meth:`reset_totals`, and the number of samples."""
        totals: FloatArray = self.device.read(self.executor.buffers["totals"], Loss.SAMPLE_METRICS + 1)
        return totals

    def reset_totals(self) -> None:
        """Starts the metrics anew."""
        self.device.fill_zero(self.executor.buffers["totals"], 4 * (Loss.SAMPLE_METRICS + 1))

    def first_not_finite(self, count: int) -> str:
        """Runs forward on the batch that is loaded, launch by launch; the first that leaves NaN or infinity."""
        weights = self.weights()
        for call in self.plan.phase("forward"):
            self.executor.launch(self.executor.bind([call], count), count)
            if call.kernel == "blob/zero_halo":
                continue  # The data of its blob are still those of another one, whose memory it was.
            layer = call.label.rsplit(" ", 1)[0]
            for role, access in call.source.blobs.items():
                if access != "read" and not np.isfinite(self.executor.read_blob(call.blobs[role], count)).all():
                    broken = [name for name in weights if name.startswith(f"{layer}/") and _is_broken(weights[name])]
                    return layer + (f", whose {', '.join(broken)} are not finite themselves" if broken else "")
        return "the loss itself"

    # -- state -------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, FloatArray]:
        """All parameters, by name."""
        return self.table.unpack(self.device.read(self.executor.buffers["parameters"], self.table.elements))

    def gradients(self) -> dict[str, FloatArray]:
        """The gradients of all trainable parameters, by name."""
        flat = self.device.read(self.executor.buffers["gradients"], self.table.elements)
        trainable = {name for name, spec in self.graph.named_parameters.items() if spec.trainable}
        return {name: values for name, values in self.table.unpack(flat).items() if name in trainable}

    def state(self) -> TrainingState:
        """What resuming needs, besides the weights."""
        slots = {
            slot: self.device.read(self._state[self.optimizer.storage(slot)], self.table.trainable_elements)
            for slot in self.optimizer.state_slots
        }
        return TrainingState(
            epoch=self.epoch,
            step=self.step_number,
            seed=self.seed,
            optimizer=self.optimizer.description(),
            optimizer_state=slots,
            settings=dict(self._settings),
        )

    def restore(self, state: TrainingState) -> None:
        """Continues from what :meth:`state` gave.

        Raises:
            OptionError: the state is that of another optimizer, batch size or seed; later, in :meth:`fit`: of another
                number of samples or, if the learning rate depends on it, of epochs.
        """
        mine = self.state()
        for name in ("optimizer", "seed"):
            saved, now = getattr(state, name), getattr(mine, name)
            if saved != now:
                rule = f"the {name} must be that of the interrupted training"
                raise OptionError("resume", rule, saved=_unlike(saved, now), now=_unlike(now, saved))
        self._settle(state.settings, self._settings)
        self.epoch, self.step_number = state.epoch, state.step
        for slot, values in state.optimizer_state.items():
            self.device.write(self._state[self.optimizer.storage(slot)], values)

    def _settle(self, saved: Mapping[str, Any], now: Mapping[str, int]) -> None:
        """Keeps settings that a resumed training must share with the interrupted one; OptionError if one differs."""
        for name, value in now.items():
            if saved.get(name, value) != value:
                rule = f"the {name.replace('_', ' ')} must be that of the interrupted training"
                hint = "a constant learning rate can go on for any number of epochs." if name == "epochs" else None
                raise OptionError("resume", rule, saved=f"{name}={saved[name]}", now=f"{name}={value}", hint=hint)
        self._settings = {**saved, **now}

    # -- training ----------------------------------------------------------------------------------------------------

    def fit(
        self,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        epochs: int,
        *,
        validation: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None,
        callbacks: Sequence[Callback] = (),
        history: Mapping[str, list[float]] | None = None,
        class_names: tuple[str, ...] = (),
        verbose: bool = True,
    ) -> Progress:
        """Trains up to epoch ``epochs``, counted from the very beginning if this training was resumed.

        Raises:
            DataError: samples or labels that cannot be trained on.
            TrainingError: the loss is not finite (with the callback StopOnNaN).
        """
        check_samples(self.graph, x, "x")
        labels = prepare_labels(self.graph, self.loss, x, y, "y")
        held_out = None
        if validation is not None:
            check_samples(self.graph, validation[0], "validation x")
            held_out = prepare_labels(self.graph, self.loss, *validation, "validation y")
        planned = {"samples": len(x)}
        if self.optimizer.schedule.depends_on_epochs:
            planned["epochs"] = epochs
        self._settle(self._settings, planned)
        progress = Progress(self, epochs, {name: list(values) for name, values in (history or {}).items()})
        progress.class_names = class_names
        progress.metrics += metric_names(self.loss)
        if validation is not None:
            progress.metrics += [f"validation_{name}" for name in metric_names(self.loss)]
        evaluator = None if validation is None else self._evaluator()
        for callback in callbacks:
            callback.begin(progress)
        table = _Table(epochs, self.loss.takes_classes, validation is not None)
        if verbose and self.epoch < epochs:
            print(table.header, file=sys.stderr)
        while self.epoch < epochs and progress.stop is None:
            start = time.perf_counter()
            record = self._run_epoch(x, labels, epochs, callbacks, verbose)
            seconds = time.perf_counter() - start
            if evaluator is not None and validation is not None and held_out is not None:
                with _bar("validation", len(held_out), verbose) as bar:
                    measured = evaluator.evaluate(validation[0], held_out, bar.update)
                record |= {f"validation_{name}": value for name, value in measured.items()}
            self.epoch += 1
            if verbose:
                print(table.row(self.epoch, seconds, len(x), record), file=sys.stderr)
            _record(progress.history, record)
            for callback in callbacks:
                callback.epoch_end(progress)
        _record(progress.history, {})
        for callback in callbacks:
            callback.end(progress)
        return progress

    def _run_epoch(
        self,
        x: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        epochs: int,
        callbacks: Sequence[Callback],
        verbose: bool,
    ) -> dict[str, float]:
        """One pass over the data, with a progress bar that is gone when it ends; the metrics."""
        guarded = any(callback.needs_finite_loss for callback in callbacks)
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(x))
        steps = -(-len(x) // self.batch_size)
        chosen = (order[first : first + self.batch_size] for first in range(0, len(x), self.batch_size))
        batches = (self._loaded(np.asarray(x[batch], np.float32), labels[batch]) for batch in chosen)
        self.reset_totals()
        title = f"epoch {self.epoch + 1}/{epochs}"
        with _bar(title, len(x), verbose) as bar:
            shown = time.perf_counter()
            upcoming = next(batches, None)
            while upcoming is not None:
                samples, targets = upcoming
                self.compute_gradients(len(samples))
                # The device works on this batch while the host gathers and loads the next: what follows may wait.
                self.device.flush()
                upcoming = next(batches, None)
                if guarded and not np.isfinite(self.read_totals()[0]):
                    self.load_batch(samples, targets)
                    raise TrainingError(
                        "training",
                        "the loss must stay finite",
                        epoch=self.epoch + 1,
                        step=self.step_number,
                        first_layer=self.first_not_finite(len(samples)),
                        hint="use a smaller learning rate, or clip the gradients (clip_norm).",
                    )
                self.update(self.optimizer.schedule.value(self.step_number, steps, epochs))
                bar.update(len(samples))
                if not bar.disable and time.perf_counter() - shown > DISPLAY_INTERVAL:
                    shown = time.perf_counter()
                    bar.set_postfix_str(_shown(metrics_of(self.read_totals(), self.loss)), refresh=False)
            # Waits for the device, so that the bar does not end before the work.
            return metrics_of(self.read_totals(), self.loss)

    def _evaluator(self) -> Evaluator:
        """Measures held-out samples with the parameters that are trained, in the memory that training leaves free."""
        info, buffer = self.device.info, self.executor.buffers["parameters"]
        reserved = self.plan.bytes() + 4 * sum(self.optimizer.memory(self.table).values())
        room = info.memory, info.largest_allocation, reserved
        plan = make_plan(self.graph, self.batch_size, loss=self.loss, tuning=self.plan.tuning)
        batch_size = self.batch_size if plan.fits(*room) else max(1, plan.largest_batch(*room))
        return Evaluator(self.device, self.graph, buffer, batch_size, self.loss, debug=self.executor.debug)


def _record(history: dict[str, list[float]], record: Mapping[str, float]) -> None:
    """Adds the values of an epoch to a history, in which NaN stands for what an earlier epoch did not measure.

    The names get the order of ``record``, and not that of the file that a resumed history comes from.
    """
    epochs = max(map(len, history.values()), default=0)
    old = dict(history)
    history.clear()
    for name in [*record, *(name for name in old if name not in record)]:
        values = old.get(name, [])
        history[name] = [*values, *[math.nan] * (epochs - len(values))]
        if name in record:
            history[name].append(record[name])


def _unlike(value: Any, other: Any) -> str:
    """What a part of a training state does not share with that of another one."""
    if not isinstance(value, Mapping):
        return str(value)
    if value.get("kind") != other.get("kind"):
        return str(value["kind"])
    mine, theirs = (each.get("config", each) for each in (value, other))
    return ", ".join(f"{name}={item}" for name, item in mine.items() if item != theirs.get(name))


def _bar(title: str, total: int, verbose: bool) -> Any:
    """A progress bar that is gone when it ends; none where stderr is no terminal."""
    disable = None if verbose else True
    settings = {"unit": " img", "unit_scale": True, "bar_format": _BAR, "dynamic_ncols": True, "leave": False}
    return tqdm(total=total, desc=title, disable=disable, **settings)


def _is_broken(values: FloatArray) -> bool:
    return not bool(np.isfinite(values).all())


def _shown(record: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in record.items() if "top_5" not in name)


def _short(value: float) -> str:
    """A number in at most 6 characters or so."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


class _Table:
    """What a training prints: a row an epoch, below a header; fits 80 columns."""

    def __init__(self, epochs: int, has_accuracy: bool, has_validation: bool) -> None:
        metrics = ["loss", "accuracy"] if has_accuracy else ["loss"]
        names = metrics + [f"validation_{name}" for name in metrics if has_validation]
        columns = {"epoch": "epoch", "time": "time", "rate": "img/s"}
        columns |= {name: name.replace("validation_", "val. ") for name in names}
        self.epochs = epochs
        widths = {"epoch": len(f"{epochs}/{epochs}"), "time": 7, "rate": 6}
        self._widths = {name: max(len(title), widths.get(name, 6)) for name, title in columns.items()}
        self.header = self._line(columns)

    def row(self, epoch: int, seconds: float, samples: int, record: Mapping[str, float]) -> str:
        """The row of an epoch that took ``seconds`` without its validation."""
        cells = {name: _short(value) for name, value in record.items() if name in self._widths}
        cells["epoch"] = f"{epoch}/{self.epochs}"
        cells["time"] = f"{seconds:.1f} s" if seconds < 100 else tqdm.format_interval(seconds)
        cells["rate"] = f"{samples / seconds:.0f}"
        return self._line(cells)

    def _line(self, cells: Mapping[str, str]) -> str:
        return "  ".join(f"{cells[name]:>{width}}" for name, width in self._widths.items())
