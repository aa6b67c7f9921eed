"""Training step by step: who calls says when there are gradients, what becomes of them, and when weights move.

``fit`` is a loop over the same :class:`TrainingStep`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.data.labels import labels_for
from blobnet.data.sample_weights import weights_for_outputs
from blobnet.data.samples import sources_for
from blobnet.data.values import all_finite, as_float32
from blobnet.device.device import Device
from blobnet.errors import DataError, OptionError, ShapeError, TrainingError, near_matches
from blobnet.execution.executor import Launch
from blobnet.execution.inference import measurements
from blobnet.execution.loader import IndexedReader
from blobnet.launch.kernel_call import Array, Batch
from blobnet.memory.blob import FLOAT32, FloatArray
from blobnet.network.ends import heads_of, to_dict, to_list
from blobnet.network.graph import Graph
from blobnet.support.checks import check_number
from blobnet.support.foreign import explained
from blobnet.training.advice import DIVERGED
from blobnet.training.settings import TrainingSettings
from blobnet.training.step_plan import StepContext
from blobnet.training.training_step import TrainingStep, input_deltas
from blobnet.training.weight_buffers import merge_call

#: Gradients to which those of one more batch are added.
_BEFORE = "gradients before"


class LatestWeights:
    """A model's weights: arrays by name, or a trainer's, which are read from the device when they are first needed."""

    def __get__(self, model: Any, kind: type | None = None) -> Any:
        if model is None:
            return self
        trainer = self.trainer_of(model)
        if trainer is not None:
            vars(model)["_latest"] = trainer.weights()
        return vars(model)["_latest"]

    def __set__(self, model: Any, weights: Mapping[str, FloatArray] | StepByStep) -> None:
        vars(model)["_latest"] = weights

    @staticmethod
    def trainer_of(model: Any) -> StepByStep | None:
        """Return the trainer that has newer weights than anybody else."""
        latest = vars(model)["_latest"]
        return latest if isinstance(latest, StepByStep) else None


class StepByStep:
    """A training whose steps are called one by one: :meth:`blobnet.model.Model.trainer` makes it.

        step = model.trainer(optimizer="adam")
        for x, y in batches:
            step.train(x, y)
            print(step.loss)
            step.update()

    Between ``train`` and ``update``, :attr:`gradients` can be read, and changed with :meth:`set_gradients`. The model
    always has the weights of now, and what is set there (``model.set_weights``) is trained on from then on.

    The first batch says how large batches are (unless ``batch_size`` does), and of which type samples are.

    Args:
        model: the model, which has ``graph`` and ``_weights``, a :class:`LatestWeights`.
        settings: how it is trained.
        device: gives the device that it runs on.
        batch_size: the most samples of a batch; None: as many as the first one has.
        input_delta: whether dL/d input is wanted.
        debug: see Executor.
    """

    def __init__(
        self,
        model: Any,
        settings: TrainingSettings,
        device: Callable[[], Device],
        batch_size: int | None = None,
        *,
        input_delta: bool = False,
        debug: bool | None = None,
    ) -> None:
        self._model, self._settings, self._device = model, settings, device
        self._batch_size, self._input_delta, self._debug = batch_size, input_delta, debug
        self._made: TrainingStep | None = None
        #: The weights of the model that are those on the device.
        self._written: Mapping[str, FloatArray] | None = None
        self._batch: Batch | None = None
        self._samples: tuple[tuple[int, ...], ...] = ()
        #: Samples of the batch that the gradients are of.
        self._count = 0
        self._has_gradients = self._had_labels = False
        self._restored: Mapping[str, npt.NDArray[Any]] = {}
        self._adding: Sequence[Launch] = ()
        self._metrics: dict[str, float] | None = None
        #: Samples since the last update, whose number tells dropout which batch of the step it is.
        self._seen = 0
        self._rate: float | None = None
        schedule = settings.optimizer.schedule
        if (schedule.depends_on_steps or schedule.depends_on_epochs) and settings.steps_per_epoch is None:
            rule = "a schedule that counts epochs must know how many steps they have"
            hint = "trainer(steps_per_epoch=100, epochs=10), say, or update(learning_rate=...) with a number as rate."
            raise OptionError("trainer", rule, schedule=schedule, hint=hint)
        self._heads = heads_of(model.graph, settings.loss)

    @property
    def _graph(self) -> Graph:
        graph: Graph = self._model.graph
        return graph

    @property
    def _step(self) -> TrainingStep:
        if self._made is None:
            raise OptionError("trainer", "there must have been a batch", hint="train(x, y) comes first.")
        return self._made

    # -- a step ------------------------------------------------------------------------------------------------------

    @explained
    def train(
        self,
        x: Any,
        y: Any = None,
        *,
        delta: Any = None,
        sample_weights: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None,
        add: bool = False,
    ) -> None:
        """Compute the gradients of a batch: :meth:`forward` and :meth:`backward`, without reading the outputs.

        Args:
            x: samples, as for ``fit``; for several inputs by their names.
            y: labels or targets, as for ``fit``.
            delta: in place of ``y``, dL/d output, of the output's shape: that of a loss of one's own, or of what comes
                behind this network. For several outputs by their names.
            sample_weights: what the loss of each sample is multiplied by, as for ``fit``.
            add: add the gradients to those that there are, in place of these: of two calls, those of the sum of both
                losses.

        Raises:
            DataError, OptionError, ShapeError: what was given does not fit.
            PlanError, OutOfMemoryError: the device has no memory for it.
        """
        self._begin(x)
        self.backward(y, delta=delta, sample_weights=sample_weights, add=add)

    @explained
    def forward(self, x: Any) -> Any:
        """Return the outputs for a batch, as in training: dropout drops, batch norms take the batch's statistics.

        :meth:`backward` goes on from there. Of several outputs {name: array}; errors as for :meth:`train`.
        """
        batch = self._begin(x)
        step, vertices = self._step, self._graph.outputs
        found = [step.executor.read_blob(step.plan.outputs[vertex.name], batch.count) for vertex in vertices.values()]
        return to_dict(
            vertices,
            [
                values.reshape(batch.count, *vertex.shape.dimensions)
                for values, vertex in zip(found, vertices.values(), strict=True)
            ],
        )

    @explained
    def backward(
        self,
        y: Any = None,
        *,
        delta: Any = None,
        sample_weights: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None,
        add: bool = False,
    ) -> None:
        """Compute the gradients of the batch of :meth:`forward`; what it takes is as for :meth:`train`."""
        if self._batch is None:
            raise OptionError("backward", "forward must come before it, once for each", hint="step.forward(x).")
        if (y is None) == (delta is None):
            raise OptionError("train", "it takes either labels or the delta of the output", y=type(y).__name__)
        add = add and self._has_gradients
        step, batch, deltas = self._step, self._batch, None
        if delta is not None:
            deltas = self._deltas(delta, batch.count)
        else:
            weights = weights_for_outputs([head.name for head in self._heads], sample_weights, batch.count)
            labels = [np.asarray(own) for own in labels_for(self._heads, self._samples[0], y, "y")]
            # Nobody says so where all weigh the same, but a batch before may have had others.
            weights = [
                np.ones(batch.count, np.float32) if own is None else own for own in weights or (None,) * len(labels)
            ]
            for head, own in zip(step.heads, labels, strict=True):
                step.executor.feed(head.buffer("labels"), own)
            batch = replace(batch, divisor=step.weigh(labels, weights)[0])
        if add:
            self._keep_gradients()
        else:
            step.reset_totals()
        self._batch, self._metrics = None, None
        step.backward(batch, deltas)
        if add:
            step.executor.launch(self._adding, 0)
        self._count = batch.count
        self._has_gradients, self._had_labels = True, self._had_labels or delta is None

    @explained
    def update(self, learning_rate: float | None = None) -> None:
        """Move the weights along the gradients: a step of the optimizer.

        Args:
            learning_rate: of this step; by default what the optimizer says.

        Raises:
            OptionError: there are no gradients since the last one.
            TrainingError: the loss was not finite; the weights are as before.
        """
        if not self._has_gradients:
            raise OptionError("update", "there must be gradients since the last update", hint="train(x, y) first.")
        if learning_rate is not None:
            check_number("update", "learning_rate", learning_rate, least=0)
        step = self._step
        self._take_weights("update")
        if not np.isfinite(step.totals()[0]):
            self._has_gradients = False
            rule = "the loss must stay finite"
            raise TrainingError("training", rule, step=step.number, hint=DIVERGED)
        step.loss_scale.check(step=step.number)
        settings, rate = self._settings, learning_rate
        if rate is None:
            schedule = settings.optimizer.schedule
            rate = schedule.value(step.number, settings.steps_per_epoch or 1, settings.epochs)
        self._rate = rate
        step.update(rate)
        self._has_gradients, self._seen = False, 0
        self._model._weights, self._model.training_state = self, None
        if self._had_labels:
            self._model.loss = to_dict(self._graph.outputs, step.losses)

    # -- what can be read and set --------------------------------------------------------------------------------------

    @property
    def loss(self) -> float:
        """The loss of the batch (the mean of several that were added up; NaN of a delta); waits for the device."""
        return self.metrics["loss"]

    @property
    def metrics(self) -> dict[str, float]:
        """The loss of the batch and, with classes, its accuracy, as ``evaluate`` names them."""
        if self._metrics is None:
            step = self._step
            self._metrics = measurements(step.totals(), step.heads, step.loss_weights)
        return dict(self._metrics)

    @property
    def gradients(self) -> dict[str, FloatArray]:
        """Copies of dL/d parameter by name, of those that are trained; waits for the device."""
        self._check_gradients("gradients")
        return self._step.gradients()

    def set_gradients(self, gradients: Mapping[str, npt.ArrayLike]) -> None:
        """Replace the gradients that are named, before :meth:`update`.

        Raises:
            OptionError: a name that is that of no trained parameter, a value that is not finite, or no gradients.
            ShapeError: an array of another shape.
        """
        self._check_gradients("set_gradients")
        step = self._step
        buffer, table = step.executor.buffers["gradients"], step.parameters.table
        flat = step.device.memory.read(buffer, max(1, table.trainable_elements))
        now = table.unpack_gradients(flat)
        for name, given in gradients.items():
            if name not in now:
                rule, hint = "every name must be that of a trained parameter", near_matches(name, list(now))
                raise OptionError("set_gradients", rule, name=name, hint=hint)
            values = as_float32(given, name)
            if values.shape != now[name].shape:
                rule = "the array must have the parameter's shape"
                raise ShapeError(name, rule, array=values.shape, wanted=now[name].shape)
            if not all_finite(values):
                raise OptionError(name, "every gradient must be finite in float32")
            now[name][...] = values * np.float32(step.loss_scale.value())
        step.device.memory.write(buffer, flat)

    @property
    def input_delta(self) -> Any:
        """dL/d x of the last batch, (N, ...); of several inputs by their names."""
        self._check_gradients("input_delta")
        if not self._input_delta:
            hint = "model.trainer(..., input_delta=True)."
            raise OptionError("input_delta", "it must be asked for, since it takes time and memory", hint=hint)
        found = input_deltas(self._step, self._count)
        return to_dict(
            self._graph.inputs, [own.reshape(shape) for own, shape in zip(found, self._samples, strict=True)]
        )

    @property
    def number(self) -> int:
        """Updates so far."""
        return self._made.number if self._made else 0

    @property
    def learning_rate(self) -> float | None:
        """That of the last update."""
        return self._rate

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the optimizer keeps, by name, for :meth:`restore`; the weights are the model's."""
        slots = self._step.state.slots().read()
        return {"step": np.array(self._step.number), **{name: values.copy() for name, values in slots.items()}}

    def restore(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from what :meth:`state` gave, with the weights of the model as they are.

        Raises:
            OptionError: it is that of another network or optimizer; the next batch finds it out, if there was none yet.
        """
        if "step" not in state:
            rule = "the state must be one that step.state() gave"
            raise OptionError("restore", rule, names=", ".join(state), hint="numpy.load gives back what savez wrote.")
        self._restored = {name: np.array(values) for name, values in state.items()}
        if self._made is not None:
            self._take_weights("restore")  # They would set back a part of the state later.
            self._take_restored(self._made)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check_gradients(self, subject: str) -> None:
        if not self._has_gradients:
            rule = "there must be gradients since the last update"
            raise OptionError(subject, rule, hint="train(x, y) computes them.")

    def weights(self) -> Mapping[str, FloatArray]:
        """Return all parameters, or their averages, as they are now, for the model; not to be changed."""
        self._written = self._step.state.weights().read()
        return self._written

    def _take_weights(self, subject: str) -> None:
        """Puts the model's weights on the device, unless they are those that are there."""
        self._model._check_idle(subject)
        if LatestWeights.trainer_of(self._model) is self:
            return
        weights = self._model._weights
        if weights is not self._written:
            for parameters in {self._step.parameters, self._step.result}:
                parameters.write(weights)
            self._step.state.start_anew()
            self._written = weights

    def _take_restored(self, step: TrainingStep) -> None:
        """Puts the state of :meth:`restore` on the device."""
        if self._restored:
            state = {name: np.asarray(values, np.float32) for name, values in self._restored.items() if name != "step"}
            step.state.restore(state)
            step.number, self._restored = int(self._restored["step"]), {}

    def _begin(self, x: Any) -> Batch:
        """Brings samples to the device, and runs forward on them."""
        sources = sources_for(self._graph, x, "x")
        for source in sources:
            source.check_all()
        types, count = IndexedReader(sources).sample_types, len(sources[0])
        if self._made is None:
            settings = replace(self._settings, batch_size=self._batch_size or count)
            context = StepContext(sample_type=types, input_delta=self._input_delta, debug=self._debug)
            device = self._device().at(settings.precision)
            self._written = self._model._weights
            made = TrainingStep(device, self._graph, self._written, settings, context)
            self._take_restored(made)
            self._made = made
        step = self._made
        entries = step.plan.request.entries
        if count > step.batch_size:
            hint = f"model.trainer(..., batch_size={count})."
            rule = "no batch may be larger than the first one, unless batch_size says how large they are"
            raise DataError("x", rule, samples=count, batch_size=step.batch_size, hint=hint)
        if types != (planned := tuple(entry.sample_type for entry in entries)):
            rule, hint = "all batches must be of the type of the first one", "x.astype(numpy.float32), say."
            raise DataError("x", rule, types=", ".join(types), first=", ".join(planned), hint=hint)
        self._take_weights("train")
        step.load_samples([np.asarray(source) for source in sources])
        self._samples = tuple(tuple(source.shape) for source in sources)
        self._batch = batch = Batch(count, first=self._seen)
        self._seen += count
        step.forward(batch)
        return batch

    def _deltas(self, given: Any, count: int) -> list[FloatArray]:
        """Returns the delta of each output, of the right shape."""
        names = [head.name for head in self._heads]
        found = []
        for head, own in zip(self._heads, to_list(names, given, "delta", "output", DataError), strict=True):
            values, wanted = as_float32(own, "delta"), (count, *head.shape.dimensions)
            if values.shape != wanted:
                raise ShapeError("delta", "it must have the shape of the output", delta=values.shape, output=wanted)
            if not all_finite(values):
                raise DataError("delta", "every number must be finite")
            found.append(values)
        return found

    def _keep_gradients(self) -> None:
        """Copies the gradients, for those of one more batch to be added to."""
        step, elements = self._step, self._step.parameters.table.trainable_elements
        buffers, size = step.executor.buffers, FLOAT32.itemsize * max(1, elements)
        if _BEFORE not in buffers:
            step.executor.use(_BEFORE, step.device.memory.allocate(size))
            model = step.plan.request.tuning.model
            before, sum_ = (Array(name, elements, persistent=True) for name in (_BEFORE, "gradients"))
            self._adding = step.executor.bind(merge_call(before, sum_, model), 0)
        step.device.memory.copy(buffers["gradients"], buffers[_BEFORE], size=size)
