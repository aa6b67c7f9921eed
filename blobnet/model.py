"""The public face of a network: build, train, measure, predict, save."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet import checkpoint, graph, initializers, optimizers
from blobnet.arguments import as_float32, loss_of, optimizer_of, parted
from blobnet.augment import Augmentation, augmentations_of, from_descriptions
from blobnet.blob import FloatArray
from blobnet.building import announced
from blobnet.callbacks import Callback, check_callbacks
from blobnet.checkpoint import ModelFile, TrainingState
from blobnet.datasets.source import Source, is_stream, runs
from blobnet.device import Device, choose
from blobnet.device_model import GENERIC, HOST
from blobnet.errors import FileError, OptionError, ShapeError, near_matches, warn
from blobnet.geometry import check_count, is_int
from blobnet.inference import Evaluator, Evaluators, LabelledData, samples_for
from blobnet.kernel_call import Tuning
from blobnet.labels import prepare_labels
from blobnet.layers import Input, Layer, Node
from blobnet.loader import IndexedReader, Reader, StreamReader
from blobnet.losses import CrossEntropy, Loss
from blobnet.metrics import Metric, Report, measured, named
from blobnet.notes import note_loss, note_scale
from blobnet.optimizers import Optimizer
from blobnet.parameters import parameter_table
from blobnet.patterns import frozen_parameters, recorded_frozen
from blobnet.planning import Plan, make_plan
from blobnet.sample_weights import ClassWeights, prepare_class_weights, prepare_sample_weights
from blobnet.schedules import check_number
from blobnet.summary import Summary, summarize
from blobnet.trainer import Progress, Trainer
from blobnet.training_step import TrainingStep, not_finite

#: Batches that predict_batches predicts at a time.
_PREDICTED_AHEAD = 8


class Model:
    """A network between one input node and one output node.

    Args:
        inputs: the node of an Input layer.
        outputs: the node whose value is the result. Nodes of :meth:`trunk` bring the weights of their model along.
        class_names: names of the outputs, kept in files.
        seed: of the initial weights of all other layers.

    Raises:
        OptionError: the nodes do not make a network with one input and one output.
    """

    def __init__(
        self,
        inputs: Node | Sequence[Node],
        outputs: Node | Sequence[Node],
        *,
        class_names: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self._start(graph.from_nodes(inputs, outputs), class_names, seed)
        if carried := graph.carried_weights(outputs):
            self.set_weights(carried)

    def _start(self, network: graph.Graph, class_names: Sequence[str], seed: int) -> None:
        self.graph = network
        self.class_names = check_class_names(network, class_names)
        self.loss: Loss | None = None
        self._device: Device | None = None
        self._evaluators = Evaluators()
        self._noted: object = None
        self.initialize(seed)

    # -- weights -----------------------------------------------------------------------------------------------------

    def initialize(self, seed: int) -> None:
        """Draws all weights anew, and forgets all training; they depend on the seed and on their own names alone."""
        # Drawn when they are first needed, which is after a plan was found to fit.
        self._weights: Mapping[str, FloatArray] = initializers.FirstWeights(self.graph.named_parameters, seed)
        self.history: dict[str, list[float]] = {}
        self.training_state: TrainingState | None = None

    @property
    def weights(self) -> dict[str, FloatArray]:
        """Copies of all parameters: ``<layer>/<parameter>`` to float32; convolutions OIHW, Dense OI."""
        return {name: values.copy() for name, values in self._weights.items()}

    def set_weights(self, weights: Mapping[str, npt.ArrayLike]) -> None:
        """Replaces the parameters that are named; the others stay, and all of them if there is an error.

        Raises:
            OptionError: a name that the model does not have, or a value that is no finite number.
            ShapeError: an array of another shape.
        """
        arrays, specs = {}, self.graph.named_parameters
        for name, values in weights.items():
            if name not in specs:
                hint = near_matches(name, list(specs))
                raise OptionError("set_weights", "every name must be a parameter of the model", name=name, hint=hint)
            array = as_float32(values, name)
            if array.shape != specs[name].shape:
                wanted = specs[name].shape
                raise ShapeError(name, "the array must have the parameter's shape", array=array.shape, wanted=wanted)
            if not np.isfinite(array).all():
                index = tuple(int(axis) for axis in np.argwhere(~np.isfinite(array))[0])
                raise OptionError(name, "every weight must be finite in float32", index=index, value=array[index])
            arrays[name] = array
        # NOTE: always another object, by which evaluators know that the weights have changed.
        self._weights = {name: arrays[name] if name in arrays else self._weights[name] for name in specs}

    def set_normalization(self, mean: npt.ArrayLike, deviation: npt.ArrayLike) -> None:
        """Sets what the input layer does to samples: (sample - mean) / deviation, numbers for each unit.

        Raises:
            OptionError: a mean that is not finite, or a deviation that is not above 0.
            ShapeError: not one number for each unit.
        """
        means, deviations = (as_float32(values, "set_normalization") for values in (mean, deviation))
        if not np.isfinite(means).all():
            raise OptionError("set_normalization", "every mean must be finite", mean=means)
        if not (np.isfinite(deviations) & (deviations >= np.finfo(np.float32).tiny)).all():
            hint = "give a unit that never changes the deviation 1."
            rule = "every deviation must be finite and above 0"
            raise OptionError("set_normalization", rule, deviation=deviations, hint=hint)
        name = self.graph.input.name
        self.set_weights({f"{name}/mean": mean, f"{name}/deviation": deviation})

    # -- transfer ----------------------------------------------------------------------------------------------------

    def trunk(self, *names: str) -> tuple[Node, ...]:
        """Nodes to build a new model on: that of the input, and that of each layer that is named.

        They carry the weights of now. A new head on a model in a file:

            inputs, features = bn.load("resnet50.h5").trunk("pool")
            model = bn.Model(inputs, layers.Dense(5, name="head")(features))
            model.fit(x, y, freeze=model.layers_until("pool"))

        Args:
            names: of layers (``print(model)`` lists them). A layer that was made with an activation is two of them:
                ``conv1`` and, with the activation, ``conv1_relu``.

        Raises:
            OptionError: there is no such layer.
        """
        nodes = self.graph.nodes(self._weights)
        wanted = [self.graph.input, *(self.graph.vertex(name, "trunk") for name in names)]
        return tuple(nodes[vertex.name] for vertex in wanted)

    def outputs_of(self, name: str) -> Model:
        """A model whose output is that of a layer, with the weights of now: its ``predict`` gives the inner values.

        Raises:
            OptionError: there is no such layer.
        """
        self.graph.vertex(name, "outputs_of")
        return Model(*self.trunk(name))

    def layers_until(self, name: str) -> list[str]:
        """The layers with weights that a layer's values depend on, itself included, for ``freeze`` of :meth:`fit`.

        Raises:
            OptionError: there is no such layer.
        """
        trainable = {parameter.rpartition("/")[0] for parameter in self.graph.trainable}
        return [item.name for item in self.graph.up_to(name, "layers_until") if item.name in trainable]

    def with_classes(
        self,
        classes: int,
        class_names: Sequence[str] = (),
        *,
        size: Sequence[int] | None = None,
        seed: int = 0,
    ) -> Model:
        """The same layers and weights, but for the last one with weights: it has ``classes`` outputs, and starts anew.

        Args:
            classes: outputs of the new model.
            class_names: their names.
            size: (height, width), or (width,), of its samples, if it is another one.
            seed: of the weights of the last layer.

        Raises:
            OptionError: that layer cannot have another number of outputs (it is no Dense or convolution).
            ShapeError: the layers behind it do not take that, or make another number of outputs of it; or the size is
                none of samples of this model, too small, or one that the weights of a layer do not fit.
        """
        check_count("with_classes", "classes", classes)
        owners = [vertex for vertex in self.graph.vertices if self.graph.parameters(vertex)][1:]
        if not owners:
            raise OptionError(
                "with_classes", "the model must have a layer with weights", layers=len(self.graph.vertices)
            )
        head = owners[-1]
        replaced: dict[str, Layer] = {head.name: head.layer.with_outputs(classes)}
        start, now = self.graph.input, self.graph.input.shape.dimensions
        if size is not None and tuple(size) != now[1:]:
            if len(size) != len(now) - 1:
                rule = "the size must have as many axes as samples have besides their units"
                raise ShapeError("with_classes", rule, size=tuple(size), input=start.shape)
            replaced[start.name] = Input(now[0], *[None, None, *size][-2:], name=start.name)
        nodes = self.graph.nodes(self._weights, replaced)
        output = nodes[self.graph.output.name]
        if output.shape.units != classes:
            rule = "the model's outputs must be those of its last layer with weights"
            raise ShapeError("with_classes", rule, layer=head.name, output=output.shape, classes=classes)
        return Model(nodes[self.graph.input.name], output, class_names=class_names, seed=seed)

    def take_weights(self, other: Model) -> list[str]:
        """Takes the weights of all layers that another model has under the same names; the others stay.

        What the input layer does to samples stays too (:meth:`set_normalization`).

        Returns:
            The layers with weights that the other model does not have; and the last one, if its number of outputs
            differs.

        Raises:
            OptionError: the other model has none of the layers.
            ShapeError: a layer before the last one has other shapes there.
        """
        own, given = self.graph.named_parameters, other.graph.named_parameters
        start = f"{self.graph.input.name}/"
        layers = list(dict.fromkeys(name.rpartition("/")[0] for name in own if not name.startswith(start)))
        taken: dict[str, FloatArray] = {}
        left = []
        for layer in layers:
            names = [name for name in own if name.rpartition("/")[0] == layer]
            there = [name for name in given if name.rpartition("/")[0] == layer]
            shapes = [
                {name.rpartition("/")[2]: specs[name].shape for name in found}
                for specs, found in ((own, names), (given, there))
            ]
            if there and shapes[0] == shapes[1]:
                taken |= {name: other._weights[name] for name in names}
            elif not there or layer == layers[-1]:
                left.append(layer)
            else:
                rule = "a layer before the last one must have the same parameters in both models"
                hint = "give it another name to start it anew."
                raise ShapeError(f"weights of {layer}", rule, wanted=shapes[0], given=shapes[1], hint=hint)
        if not taken:
            rule = "the models must have layers with weights of the same names and shapes"
            theirs = list(dict.fromkeys(name.rpartition("/")[0] for name in given))
            raise OptionError("take_weights", rule, wanted=", ".join(layers[:4]), given=", ".join(theirs[1:5]))
        self._weights = {**self._weights, **taken}
        return left

    # -- training and inference --------------------------------------------------------------------------------------

    def _on(self, device: Device | str | None) -> Device:
        """The device to use: the one given, by itself or by name, else the one used last."""
        if isinstance(device, Device):
            self._device = device
        elif self._device is None or (device is not None and choose(device) != self._device.info):
            self._device = Device(device)
        return self._device

    @announced
    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 128,
        optimizer: Optimizer | str | None = None,
        loss: Loss | str | None = None,
        validation: tuple[Any, Any] | float | None = None,
        metrics: Metric | str | Sequence[Metric | str] = (),
        callbacks: Callback | Sequence[Callback] = (),
        freeze: str | Iterable[str] | None = None,
        class_weights: ClassWeights | None = None,
        sample_weights: npt.ArrayLike | None = None,
        accumulate: int = 1,
        average: float | None = None,
        augment: Sequence[Augmentation] | Augmentation | str | None = None,
        seed: int = 0,
        resume: bool = False,
        device: Device | str | None = None,
        precision: str = "fp32",
        debug: bool | None = None,
        verbose: bool = True,
    ) -> dict[str, list[float]]:
        """Trains the model, from its weights of now.

        Every call is a training of its own: order and dropout follow from the seed, the optimizer starts anew, and the
        history begins again; ``resume`` goes on with the last one. What a training that ends early (Ctrl-C, an error)
        leaves is the model after its last full epoch.

        What is frozen stays as it is, and costs what it costs in prediction: no gradients, no optimizer state, and no
        deltas below the lowest layer that is trained. A batch norm whose scale and shift are frozen runs on its stored
        statistics, and keeps them. Dropout has nothing to freeze and goes on dropping.

        Args:
            x: samples, (N, C, H, W), (N, C, W) or (N, C), any real type: a NumPy array (also of a mapped file), an
                h5py data set, or any object with ``len()`` that gives a batch for an array of indices; or, without
                ``y``, an iterable of pairs of a batch and its labels, which is gone through in its own order.
            y: class numbers (N,) or targets of the output's shape, whatever the loss takes; those of a mapped file or
                of an h5py data set, of more than 64 MB, are read and checked batch by batch.
            epochs: passes over the data; with ``resume``, counted from the beginning of the interrupted training.
            batch_size: samples a step; the last step of an epoch may have fewer.
            optimizer: or its name, "adam"; Adam(1e-3) if None, or with ``resume`` that of the interrupted training.
            loss: or its name, "mse"; CrossEntropy() if None, or with ``resume`` that of the interrupted training.
            validation: (x, y) to measure after each epoch; or a fraction of the samples, drawn by the seed, which are
                then not trained on.
            metrics: what else to measure on the validation data: as for :meth:`evaluate`.
            callbacks: one or several of blobnet.callbacks, or of your own.
            freeze: names of layers or parameters that are not trained, or patterns of them ("stage1*", "*/bias"); see
                also :meth:`layers_until`. None is nothing, or with ``resume`` what the interrupted training froze.
            class_weights: what the losses of each class are multiplied by: a number for each; a mapping from some
                classes' numbers or names; or "balanced", which makes all classes weigh the same. Validation, like
                evaluate, goes without weights.
            sample_weights: what the loss of each sample is multiplied by. A batch's loss is divided by its weight.
            accumulate: batches of a step, whose gradients are added up: a step is then that of one batch so many times
                as large, but for batch norms, which normalise each batch by itself.
            average: how much of an exponential moving average of the weights a step keeps, 0.999 say; the model, its
                files and validation then have the average. None: there is none.
            augment: how samples change at random, anew in every epoch: a list of :mod:`blobnet.augment`, applied in
                that order, or a string, "crop=2, flip". Labels, targets and ``validation`` stay as they are. None is
                nothing, or with ``resume`` what the interrupted training did.
            seed: of the samples' order, of augmentation and of dropout.
            resume: go on from the state that the model was loaded with.
            device: a device or its name; the best one if None.
            precision: of the factors of convolutions: fp32, or tf32 (10 bits of fraction, about 1e-3 of a value; sums
                stay fp32) for the tensor cores of NVIDIA GPUs.
            debug: check every launch's writes; $BLOBNET_CHECK if None.
            verbose: show progress bars, and how far kernels are built; on a terminal.

        Returns:
            The history: a value an epoch for ``loss``, ``accuracy``, ``validation_loss``, ...

        Raises:
            DataError, OptionError, ShapeError: what was given does not fit.
            DeviceError: the device has no tensor cores for tf32.
            PlanError: the plan does not fit the device.
            TrainingError: the loss or the weights are not finite.
        """
        epochs = check_count("fit", "epochs", epochs)
        accumulate = check_count("fit", "accumulate", accumulate)
        if average is not None:
            check_number("fit", "average", average, least=0, below=1)
        seed = _check_seed("fit", seed)
        callbacks = check_callbacks(callbacks)
        loss, optimizer = loss_of(loss), optimizer_of(optimizer)
        state = self.training_state if resume else None
        if resume:
            if state is None:
                hint = "load a file that the Checkpoint callback, or blobnet train, wrote."
                raise OptionError("fit", "resume needs a model loaded from a checkpoint", resume=resume, hint=hint)
            if loss is not None and loss != self.loss:
                rule = "the loss must be that of the interrupted training"
                raise OptionError("resume", rule, saved=self.loss, now=loss)
            loss = self.loss
            optimizer = optimizer or optimizers.from_description(state.optimizer, "resume")
        loss = loss or CrossEntropy()
        x, y, sample_weights, validation = parted(x, y, sample_weights, validation, seed)
        data = LabelledData(self.graph, loss, x, y)
        held_out = None if validation is None else LabelledData(self.graph, loss, *validation, subject="validation")
        note_loss(self.graph, loss)
        self._note_scale(data.source, training=True)
        self._evaluators.clear()  # They would only hold memory that training needs.
        if freeze is not None or state is None:
            frozen = frozen_parameters(self.graph, freeze or ())
        else:
            frozen = recorded_frozen(self.graph, state.settings.get("frozen", []))
        if augment is not None or state is None:
            changes = augmentations_of(augment or ())
        else:
            changes = from_descriptions(state.settings.get("augment", []), "resume")
        step = TrainingStep(
            self._on(device).at(precision),
            self.graph,
            self._weights,
            loss,
            optimizer or optimizers.Adam(),
            batch_size,
            seed,
            sample_type=data.reader.sample_type,
            frozen=frozen,
            class_weights=prepare_class_weights(
                class_weights, loss, self.graph.output.shape.units, data.labels, self.class_names
            ),
            accumulate=accumulate > 1,
            average=average,
            augment=changes,
            debug=debug,
        )
        trainer = Trainer(step, accumulate)
        if state is not None:
            trainer.restore(state)
        trainer.fit(
            data,
            epochs,
            sample_weights=prepare_sample_weights(sample_weights, data.count),
            validation=held_out,
            metrics=metrics,
            callbacks=callbacks,
            keep=self._keep,
            history=self.history if resume else None,
            class_names=self.class_names,
            verbose=verbose,
        )
        return self.history

    def _keep(self, progress: Progress) -> None:
        """Keeps what an epoch has reached."""
        trainer = progress.trainer
        self._weights = trainer.weights()
        self.history = {name: list(values) for name, values in progress.history.items()}
        self.loss = trainer.step.loss
        self.training_state = trainer.state() if progress.is_resumable else None

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: Loss | str | None = None,
        metrics: Metric | str | Sequence[Metric | str] = (),
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
    ) -> dict[str, float]:
        """The mean loss over (x, y), with classes also ``accuracy`` and ``top_5``; by default the loss of training.

        ``metrics`` are measured besides: names and functions of blobnet.metrics, or functions of your own, of which
        that module says what they get; not of iterables. ``x``, ``y`` and ``precision`` are as for :meth:`fit`.
        """
        batch_size = check_count("evaluate", "batch_size", batch_size)
        loss = loss_of(loss) or self.loss or CrossEntropy()
        asked = named(metrics, loss)
        data = LabelledData(self.graph, loss, x, y)
        if asked and data.labels is None:
            raise OptionError("evaluate", "metrics are measured on data that are no stream", metrics=list(asked))
        self._note_scale(data.source)
        settings = {"count": data.count, "batch_size": batch_size, "sample_type": data.reader.sample_type}
        with self._evaluator(device, precision=precision, loss=loss, **settings) as evaluator:
            found = evaluator.evaluate(data)
            if asked and data.labels is not None:
                outputs = evaluator.predict(data.reader, len(data.labels))
                found |= measured(asked, loss, np.asarray(data.labels), outputs)
        return found

    def report(
        self,
        x: Any,
        y: Any,
        *,
        loss: Loss | str | None = None,
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
    ) -> Report:
        """What a classifier gets right, class by class: a table to print, and the confusion matrix.

        ``x`` and ``y`` (but for iterables) and ``precision`` are as for :meth:`fit`. With a class for each position
        there is no area below a curve, for which all probabilities would have to be in memory.

        Raises:
            OptionError: the loss takes no classes.
        """
        loss = loss_of(loss) or self.loss or CrossEntropy()
        batch_size = check_count("report", "batch_size", batch_size)
        source = samples_for(self.graph, x, "x")
        labels = prepare_labels(self.graph, loss, source.shape, y, "y")
        settings: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
        if not self.graph.output.shape.rank:
            return Report.of(loss, np.asarray(labels), self.predict(x, **settings), self.class_names)

        def of_some(rows: npt.NDArray[np.int64]) -> Report:
            samples = np.empty((len(rows), *source.shape[1:]), source.dtype)
            source.read(rows, samples)
            own = np.asarray(labels[rows])
            return Report.of(loss, own, self.predict(samples, **settings), self.class_names, has_auc=False)

        return Report.summed([of_some(rows) for rows in runs(len(source), batch_size)])

    def predict(
        self,
        x: Any,
        *,
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
    ) -> FloatArray:
        """The model's output for every sample, in their order: (N, units[[[, depth], height], width]).

        ``x`` and ``precision`` are as for :meth:`fit`; an iterable may give batches without labels. A sample's bits
        depend on the batch size of the plan and on nothing else: ``batch_size`` for at least as many samples, and for
        iterables, else 1, 4, 16 or 64 if that holds them all. Several threads may call this at once: one brings its
        samples to the device while another waits for its answers. See :meth:`predict_batches` for answers that are too
        many for memory.
        """
        if is_stream(x):
            settings: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
            return np.concatenate(list(self.predict_batches(x, **settings)))
        batch_size = check_count("predict", "batch_size", batch_size)
        source = samples_for(self.graph, x, "x")
        self._note_scale(source)
        settings = {"count": len(source), "batch_size": batch_size, "sample_type": source.dtype.name}
        with self._evaluator(device, precision=precision, loss=None, **settings) as evaluator:
            finish = evaluator.begin(IndexedReader(source), len(source))
        return finish()

    def predict_batches(
        self,
        x: Any,
        *,
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
    ) -> Iterator[FloatArray]:
        """What :meth:`predict` gives, some samples at a time, in their order: neither they nor the answers pile up.

        A few batches are read and predicted ahead of the one that is asked for. Others may predict between them.
        """
        batch_size = check_count("predict_batches", "batch_size", batch_size)
        reader: Reader
        if is_stream(x):
            reader, count = StreamReader(x, self.graph.input.shape.dimensions, None, "x"), None
            jobs = reader.jobs(batch_size)
        else:
            source = samples_for(self.graph, x, "x")
            self._note_scale(source)
            reader, count = IndexedReader(source), len(source)
            jobs = runs(count, batch_size)
        settings = {"count": count, "batch_size": batch_size, "sample_type": reader.sample_type}

        def outputs() -> Iterator[FloatArray]:
            while True:
                # NOTE: nothing is yielded with the evaluator in hand, which nobody else could have meanwhile.
                with self._evaluator(device, precision=precision, loss=None, **settings) as evaluator:
                    some = itertools.islice(jobs, _PREDICTED_AHEAD)
                    found = [values.copy() for values in evaluator.outputs(reader, some)]
                yield from found
                if len(found) < _PREDICTED_AHEAD:
                    return

        return outputs()

    def predict_proba(
        self,
        x: Any,
        *,
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
    ) -> FloatArray:
        """The probabilities that the outputs of :meth:`predict` stand for: (N, units[[[, depth], height], width]).

        A softmax over the units for the losses of classes (also where the model does not know its loss), the sigmoid of
        each output for BinaryCrossEntropy.

        Raises:
            OptionError: the model was trained with a loss whose outputs are no logits.
        """
        loss = self.loss or CrossEntropy()
        scores = loss.scores(self.predict(x, batch_size=batch_size, device=device, precision=precision))
        if scores is None:
            rule = "the loss of the model must take logits"
            raise OptionError("predict_proba", rule, loss=loss, hint="predict gives the outputs themselves.")
        return scores.astype(np.float32)

    def _note_scale(self, source: Source | None, *, training: bool = False) -> None:
        """Looks at the scale of samples, once for the same weights."""
        if source is not None and self._noted is not self._weights:
            note_scale(self.graph, self._weights, source, training=training)
            self._noted = self._weights

    def _evaluator(self, device: Device | str | None, **settings: Any) -> AbstractContextManager[Evaluator]:
        return self._evaluators.lend(self._on(device), self.graph, self._weights, **settings)

    def gradients(
        self,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        *,
        loss: Loss | str | None = None,
        freeze: str | Iterable[str] = (),
        seed: int = 0,
        device: Device | str | None = None,
        precision: str = "fp32",
        debug: bool | None = None,
    ) -> dict[str, FloatArray]:
        """dL/d parameter by name, and dL/d x as ``input``, for one batch; the weights stay as they are.

        ``freeze`` and ``precision`` are as for :meth:`fit`; what is frozen has no gradient.
        """
        seed = _check_seed("gradients", seed)
        loss = loss_of(loss) or self.loss or CrossEntropy()
        source = samples_for(self.graph, x, "x")
        source.check_all()
        labels = np.asarray(prepare_labels(self.graph, loss, source.shape, y, "y"))
        step = TrainingStep(
            self._on(device).at(precision),
            self.graph,
            self._weights,
            loss,
            optimizers.SGD(),
            len(x),
            seed,
            input_delta=True,
            frozen=frozen_parameters(self.graph, freeze),
            debug=debug,
        )
        step.compute_gradients(step.load_batch(x, labels))
        delta = step.executor.read_blob(step.plan.deltas[self.graph.input.name], len(x))
        # The input's delta is that of the normalised sample.
        deviation = self._weights[f"{self.graph.input.name}/deviation"][:, None, None]
        return {**step.gradients(), "input": (delta / deviation).reshape(x.shape)}

    def plan(
        self,
        batch_size: int = 128,
        *,
        training: bool = True,
        loss: Loss | str | None = None,
        freeze: str | Iterable[str] = (),
        device_class: str = HOST.name,
    ) -> Plan:
        """The memory plan, which can be printed; needs no device. ``freeze`` is as for :meth:`fit`."""
        wanted = (loss_of(loss) or self.loss or CrossEntropy()) if training else None
        table = parameter_table(self.graph, frozen_parameters(self.graph, freeze))
        if device_class not in GENERIC:
            hint = near_matches(device_class, list(GENERIC))
            raise OptionError(
                "device_class", f"it must be {' or '.join(GENERIC)}", device_class=device_class, hint=hint
            )
        tuning = Tuning(GENERIC[device_class])
        return make_plan(self.graph, batch_size, loss=wanted, training=training, tuning=tuning, parameters=table)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes architecture, weights, class names and history to an HDF5 file, all or nothing.

        Raises:
            FileError: the file cannot be written.
        """
        loss = {"kind": type(self.loss).__name__, "config": self.loss.config()} if self.loss else None
        checkpoint.save(
            path,
            ModelFile(
                description=self.graph.description(),
                weights=self._weights,
                class_names=self.class_names,
                history=self.history,
                loss=loss,
                training=self.training_state,
            ),
        )

    def __getstate__(self) -> dict[str, Any]:
        # What belongs to a device stays with its process.
        return {name: value for name, value in vars(self).items() if name not in ("_device", "_evaluators")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._device, self._evaluators = None, Evaluators()

    def __copy__(self) -> Model:
        return self._with_state(self.__getstate__())

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self._with_state(copy.deepcopy(self.__getstate__(), memo))

    def _with_state(self, state: dict[str, Any]) -> Model:
        other = type(self).__new__(type(self))
        other.__setstate__(state)
        other._device = self._device
        return other

    # -- for people --------------------------------------------------------------------------------------------------

    @property
    def parameter_count(self) -> int:
        """Trainable values."""
        return sum(spec.elements for spec in self.graph.named_parameters.values() if spec.trainable)

    def summary(self, freeze: str | Iterable[str] | None = None) -> Summary:
        """The layers with their outputs' shapes and parameters, and totals: a table to print.

        Args:
            freeze: as for :meth:`fit`: what the table is to show as frozen; None is what the last training froze.
        """
        if freeze is None:
            return summarize(self.graph, self.training_state.frozen if self.training_state else ())
        return summarize(self.graph, frozen_parameters(self.graph, freeze))

    def __repr__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


class Sequential(Model):
    """A chain of layers, the first an Input.

    Args:
        layers: the layers in order.
        class_names: names of the outputs, kept in files.
        seed: of the initial weights.

    Raises:
        OptionError: the list does not begin with its one Input.
        ShapeError: two neighbours do not fit.
    """

    def __init__(self, layers: Iterable[Layer], *, class_names: Sequence[str] = (), seed: int = 0) -> None:
        self._start(graph.sequential(layers), class_names, seed)


def check_class_names(network: graph.Graph, class_names: Sequence[str]) -> tuple[str, ...]:
    """The names of a network's outputs, if there are any; OptionError unless there is one for each."""
    names, units = tuple(class_names), network.output.shape.units
    if names and len(names) != units:
        rule = "there must be a name for each output of the model, or none at all"
        hint = f"end the model with Dense({len(names)})."
        raise OptionError("class_names", rule, names=len(names), outputs=units, hint=hint)
    return names


def _check_seed(subject: str, seed: Any) -> int:
    if not is_int(seed, 0) or seed >= 2**63:
        raise OptionError(subject, "seed must be an int from 0 to below 2^63", seed=seed)
    return int(seed)


def load(path: str | os.PathLike[str]) -> Model:
    """The model in an HDF5 file: architecture, weights, class names, history and, in a checkpoint, training state.

    Raises:
        FileError: the file is missing, damaged, or not one of blobnet's.
    """
    file = checkpoint.load(path)
    model = Model.__new__(Model)
    names, units = file.class_names, file.graph.output.shape.units
    if names and len(names) != units:
        rule = "a file should have a name for each output of its model; they are left out"
        warn(str(path), rule, names=len(names), outputs=units)
        names = ()
    model._start(file.graph, names, 0)
    if broken := not_finite(file.weights):
        warn(str(path), "the weights of a model should be finite", parameters=", ".join(broken))
    model._weights = file.weights
    model.history = dict(file.history)
    model.training_state = file.training
    if file.loss:
        model.loss = _loss(file.loss, str(path))
    return model


def _loss(description: Mapping[str, Any], subject: str) -> Loss:
    kind = description["kind"]
    if kind not in Loss.kinds:
        hint = near_matches(kind, list(Loss.kinds))
        raise OptionError(subject, "the loss must be one of blobnet's", kind=kind, hint=hint)
    build: Callable[..., Loss] = Loss.kinds[kind]
    try:
        return build(**description["config"])
    except (TypeError, ValueError) as error:
        received = {"loss": kind, "config": description["config"], "cause": error}
        raise FileError(subject, "the loss must have arguments that blobnet knows", **received) from error
