"""The public face of a network: build, train, measure, predict, save."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet import optimizers
from blobnet.augment import Augmentation
from blobnet.callbacks import Callback
from blobnet.callbacks.base import check_callbacks
from blobnet.data.labels import Labels, labels_for, prepare_labels
from blobnet.data.sample_weights import ClassWeights, prepare_class_weights, weights_for_outputs
from blobnet.data.samples import as_batches, comes_in_batches, sources_for, with_labels
from blobnet.data.values import all_finite, as_float32
from blobnet.datasets.source import Limited, Source, runs
from blobnet.device.device import Device
from blobnet.device.discovery import check_process
from blobnet.errors import DeviceError, OptionError, ShapeError, near_matches, warn
from blobnet.execution.inference import (
    Evaluator,
    Evaluators,
    LabelledData,
    Outputs,
    Use,
    named_metrics,
    sample_shapes,
)
from blobnet.execution.loader import IndexedReader, Reader, StreamReader
from blobnet.files import checkpoint
from blobnet.files.checkpoint import ModelFile, TrainingState
from blobnet.hardware.device_model import GENERIC, HOST
from blobnet.interop import hub, keras_files, safetensors_files
from blobnet.launch.kernel_call import Tuning
from blobnet.layers import Input, Layer, Node, Standardize, initializers
from blobnet.losses import Loss
from blobnet.memory.blob import FloatArray, Shape
from blobnet.metrics import Report
from blobnet.metrics.report import AnyReport, report_of
from blobnet.metrics.types import Metric
from blobnet.network import graph
from blobnet.network.averaged import averaged, words_of
from blobnet.network.ends import Head, heads_of, losses_description, to_dict, to_list
from blobnet.network.parameters import parameter_table
from blobnet.network.patterns import frozen_parameters
from blobnet.network.summary import Summary, summarize
from blobnet.optimizers import Optimizer
from blobnet.parallel.world import World, check_world, device_of_rank, watched
from blobnet.planning import Plan, make_plan
from blobnet.support.build_progress import announced
from blobnet.support.checks import check_count
from blobnet.support.foreign import explain_argument, explain_method, explained
from blobnet.training.advice import note_losses, note_order, note_scale
from blobnet.training.arguments import held_out_of, loss_of, loss_weights_for, losses_for
from blobnet.training.epoch import TrainingData
from blobnet.training.kept import KeptArrays
from blobnet.training.ranks import check_ranks
from blobnet.training.resuming import check_resumed, interrupted_training
from blobnet.training.settings import KEYWORDS, STEP_KEYWORDS, Interrupted, TrainingSettings, check_seed
from blobnet.training.step_by_step import LatestWeights, StepByStep
from blobnet.training.step_plan import StepContext
from blobnet.training.steps import Steps
from blobnet.training.trainer import Progress, Trainer
from blobnet.training.training_step import TrainingStep, input_deltas, not_finite

#: A loss or its name; for several outputs one for each, by name or in a list.
AnyLoss: TypeAlias = "Loss | str | Mapping[str, Loss | str] | Sequence[Loss | str] | None"
#: Metrics or their names; for several outputs by the outputs' names.
AnyMetrics: TypeAlias = "Metric | str | Sequence[Metric | str] | Mapping[str, Any]"
#: Batches that predict_batches predicts at a time.
_PREDICTED_AHEAD = 8


class Model:
    """A network between input nodes and output nodes.

    With several inputs or outputs, samples, labels, losses, metrics and results go by their names: those that are given
    here, or else those of their layers (docs/graphs.md).

    Args:
        inputs: the node of an Input layer; or several, in a list or by name.
        outputs: the node whose value is the result; or several, in a list or by name. Nodes of :meth:`node` and
            :meth:`trunk` bring the weights of their model along.
        class_names: names of the units of a single output, kept in files.
        seed: of the initial weights of all other layers.

    Raises:
        OptionError: the outputs do not depend on exactly these inputs.
        ShapeError: a layer stands in several places that do not fit the same parameters.
    """

    _weights = LatestWeights()

    @explained
    def __init__(
        self, inputs: graph.Ends, outputs: graph.Ends, *, class_names: Sequence[str] = (), seed: int = 0
    ) -> None:
        network, carried = graph.with_weights(inputs, outputs)
        self._start(network, class_names, seed, carried)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("forward", "call"):
            if name in vars(cls):
                rule = f"a network is a graph of nodes, and nobody calls {name} of its class"
                hint = "write a function from nodes to nodes, then Model(inputs, outputs) (docs/from_pytorch.md)."
                raise OptionError(cls.__name__, rule, hint=hint)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise explain_method(type(self).__name__, name)

    def _start(
        self,
        network: graph.Graph,
        class_names: Sequence[str],
        seed: int,
        carried: Mapping[str, FloatArray] | None = None,
    ) -> None:
        self.graph = network
        self.class_names = check_class_names(network, class_names)
        self.loss: Loss | dict[str, Loss] | None = None
        self._device: Device | None = None
        #: What it was called, if it was asked for by name.
        self._device_name: str | None = None
        self._evaluators = Evaluators()
        self._noted: object = None
        #: Whether fit is at work; only that may replace the weights then.
        self._is_training = False
        self._nodes: tuple[object, dict[str, Node]] | None = None
        #: The last model of means over views: the weights it was made of, and how.
        self._averaged: tuple[object, object, Model] | None = None
        #: What does to nodes what the input layers do to samples, by name: the same layers whenever it is called.
        self._standardized: dict[str, Layer] = {}
        self._weights = {}
        self._state: TrainingState | None = None
        self.initialize(seed)
        if carried:
            self._replace(carried)

    # -- weights -----------------------------------------------------------------------------------------------------

    def initialize(self, seed: int) -> None:
        """Draws all weights anew, and forgets all training; they depend on the seed and on their own names alone.

        What was given with a layer (Constant) stays.

        Raises:
            OptionError: the model is training: a callback called this.
        """
        self._check_idle("initialize")
        given = {name for name, spec in self.graph.named_parameters.items() if spec.initializer == initializers.GIVEN}
        kept = {name: values for name, values in self._weights.items() if name in given}
        # Drawn when they are first needed, which is after a plan was found to fit.
        self._weights = initializers.FirstWeights(self.graph.named_parameters, seed)
        if kept:
            self.set_weights(kept)
        self.history: dict[str, list[float]] = {}
        self.training_state = None
        #: Where the weights came from that its training began with, plain data: name, revision, sha256; or None.
        self.pretrained: dict[str, Any] | None = None

    @property
    def training_state(self) -> TrainingState | None:
        """The state that resuming needs besides the weights; None without a training that can be resumed."""
        if self._state is not None and isinstance(self._state.optimizer_state, KeptArrays):
            self._state = replace(self._state, optimizer_state=self._state.optimizer_state.read())
        return self._state

    @training_state.setter
    def training_state(self, state: TrainingState | None) -> None:
        self._state = state

    @property
    def weights(self) -> dict[str, FloatArray]:
        """Copies of all parameters: ``<layer>/<parameter>`` to float32; convolutions OIHW, Dense OI."""
        return {name: values.copy() for name, values in self._weights.items()}

    def set_weights(self, weights: Mapping[str, npt.ArrayLike]) -> None:
        """Replaces the parameters that are named; the others stay, and all of them if there is an error.

        Raises:
            OptionError: no mapping, a name that the model does not have, or a value that is no finite number; or the
                model is training: a callback called this.
            ShapeError: an array of another shape.
        """
        if not isinstance(weights, Mapping):
            hint = "model.weights has the names."
            rule = "the arrays must come by the names of parameters"
            raise OptionError("set_weights", rule, received=type(weights).__name__, hint=hint)
        specs = self.graph.named_parameters
        for name in weights:
            if name not in specs:
                hint = near_matches(name, list(specs))
                raise OptionError("set_weights", "every name must be a parameter of the model", name=name, hint=hint)
        self._replace({name: as_float32(values, name) for name, values in weights.items()})

    def _replace(self, arrays: Mapping[str, FloatArray]) -> None:
        """Replaces some parameters by arrays that nobody changes, as nodes carry them."""
        self._check_idle("set_weights")
        specs = self.graph.named_parameters
        for name, array in arrays.items():
            if array.shape != specs[name].shape:
                wanted = specs[name].shape
                raise ShapeError(name, "the array must have the parameter's shape", array=array.shape, wanted=wanted)
            if not all_finite(array):
                index = tuple(int(axis) for axis in np.argwhere(~np.isfinite(array))[0])
                raise OptionError(name, "every weight must be finite in float32", index=index, value=array[index])
        # NOTE: always another object, by which evaluators know that the weights have changed.
        self._weights = {name: arrays[name] if name in arrays else self._weights[name] for name in specs}

    def set_normalization(self, mean: npt.ArrayLike, deviation: npt.ArrayLike, *, input: str | None = None) -> None:
        """Sets what the input layer does to samples: (sample - mean) / deviation.

        Args:
            mean: what to subtract: a number for each unit, (units,), or one for all.
            deviation: what to divide by, likewise.
            input: the name of the input, where there are several.

        Raises:
            OptionError: a mean that is not finite, a deviation that is not above 0, or there is no such input. Or an
                Embedding reads whole numbers there, and none would stay whole.
            ShapeError: neither one number nor one for each unit.
        """
        self.set_weights(_normalization(self.graph, mean, deviation, input))

    def _check_idle(self, subject: str) -> None:
        """Raises OptionError while the model is training, whose weights are those on the device."""
        if self._is_training:
            rule = "this model is training, and its weights are replaced behind every epoch"
            hint = "a callback may end the training (progress.stop = 'why') and leave this for then."
            raise OptionError(subject, rule, hint=hint)

    # -- transfer ----------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """The node of a layer, to build a new model on; it carries the weights of now, and so do those before it.

        Nodes of one model go together until its weights change. ``bn.Model(model.node("input"), model.node("pool"))``.

        Args:
            name: of the layer, or of one of its places (``encoder@2``); ``print(model)`` lists them.

        Raises:
            OptionError: there is no such layer.
        """
        self.graph.vertex(name, "node")
        if self._nodes is None or self._nodes[0] is not self._weights:
            self._nodes = self._weights, self.graph.nodes(self._weights)
        return self._nodes[1][name]

    def part(self, first: str, last: str) -> Model:
        """The layers behind ``first``, up to ``last``, as a model of its own, with the weights of now.

        Its input has the shape of the values of ``first``, and that layer's name.

        Raises:
            OptionError: there is no such layer, or ``last`` depends on more than ``first``.
        """
        start, end = (self.graph.vertex(name, "part") for name in (first, last))
        entry = Input.of(start.shape, name=first)()
        needed = {vertex.name for vertex in self.graph.up_to(last, "part")}
        nodes = self.graph.nodes(self._weights, fed={first: entry})
        if first not in needed or start.index >= end.index:
            raise OptionError("part", "the last layer must come behind the first one", first=first, last=last)
        return Model(entry, nodes[last])

    def __call__(self, *inputs: Node | Sequence[Node] | Mapping[str, Node], prefix: str = "") -> Any:
        """Puts the whole network, with its weights of now, behind nodes of another one.

        Called more than once, its layers stand in several places and share their parameters. What its input layers do
        to samples is done to the nodes.

        Args:
            inputs: a node for each input, in their order or by name.
            prefix: of the layers' names, where they would meet others of the same names.

        Returns:
            The node of the output; for several outputs {name: node}.

        Raises:
            OptionError: there is not one node for each input.
            ShapeError: a node has another shape than the input.
        """
        given = to_list(list(self.graph.inputs), inputs[0] if len(inputs) == 1 else inputs, "Model", "input")
        fed: dict[str, Node] = {}
        for node, vertex in zip(given, self.graph.inputs.values(), strict=True):
            if not isinstance(node, Node):
                rule = "a network stands behind nodes: what layers gave when called"
                raise OptionError("Model", rule, received=type(node).__name__)
            if node.shape != vertex.shape:
                rule = "a node must have the shape of the input that it stands for"
                raise ShapeError("Model", rule, node=node.shape, input=vertex.shape)
            fed[vertex.name] = self._normalized(node, vertex, prefix)
        nodes = self.graph.nodes(self._weights, fed=fed, prefix=prefix)
        return to_dict(self.graph.outputs, [nodes[vertex.name] for vertex in self.graph.outputs.values()])

    def _normalized(self, node: Node, vertex: graph.Vertex, prefix: str) -> Node:
        """Return the values of a node as an input layer normalises them."""
        mean, deviation = (self._weights[vertex.parameter(name)] for name in ("mean", "deviation"))
        if not mean.any() and (deviation == 1).all():
            return node
        name = f"{prefix}{vertex.name}_standardized"
        layer = self._standardized.setdefault(name, Standardize(name=name))
        zeros = np.zeros_like(mean)
        weights: dict[str, FloatArray] = {"running_mean": mean, "shift": zeros, "scale": np.float32(1) / deviation}
        weights["running_variance"] = zeros + 1
        return replace(layer(node), weights=weights)

    def trunk(self, *names: str) -> tuple[Any, ...]:
        """Nodes to build a new model on: that of the input, and that of each layer that is named.

        Of several inputs the first item is {name: node}.

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
        wanted = [self.graph.vertex(name, "trunk") for name in names]
        nodes = self.graph.nodes(self._weights)
        inputs = to_dict(self.graph.inputs, [nodes[vertex.name] for vertex in self.graph.inputs.values()])
        return inputs, *(nodes[vertex.name] for vertex in wanted)

    def outputs_of(self, name: str) -> Model:
        """A model whose output is that of a layer, with the weights of now: its ``predict`` gives the inner values.

        Raises:
            OptionError: there is no such layer.
        """
        needed = {vertex.index for vertex in self.graph.up_to(name, "outputs_of")}
        nodes = self.graph.nodes(self._weights)
        inputs = {own: nodes[vertex.name] for own, vertex in self.graph.inputs.items() if vertex.index in needed}
        return Model(list(inputs.values()) if len(self.graph.entries) == 1 else inputs, nodes[name])

    def layers_until(self, name: str) -> list[str]:
        """The layers with weights that a layer's values depend on, itself included, for ``freeze`` of :meth:`fit`.

        Raises:
            OptionError: there is no such layer.
        """
        trainable = {parameter.rpartition("/")[0] for parameter in self.graph.trainable}
        layers = (str(item.layer.name) for item in self.graph.up_to(name, "layers_until"))
        return [layer for layer in dict.fromkeys(layers) if layer in trainable]

    def with_classes(
        self,
        classes: int,
        class_names: Sequence[str] = (),
        *,
        size: Sequence[int] | None = None,
        seed: int = 0,
    ) -> Model:
        """The same layers and weights, but for the last one with weights: it has ``classes`` outputs, and starts anew.

        What the input layer does to samples stays, also for those of another size. A softmax or sigmoid at the end
        goes: losses take logits, of which predict_proba gives probabilities.

        Args:
            classes: outputs of the new model.
            class_names: their names.
            size: ([[depth,] height,] width) of its samples, if it is another one.
            seed: of the weights of the last layer.

        Raises:
            OptionError: that layer cannot have another number of outputs (it is no Dense or convolution).
            ShapeError: the layers behind it do not take that, or make another number of outputs of it; or the size is
                none of samples of this model, too small, or one that the weights of a layer do not fit.
        """
        check_count("with_classes", "classes", classes)
        owners = [vertex for vertex in self.graph.vertices if vertex.inputs and self.graph.parameters(vertex)]
        if not owners:
            raise OptionError(
                "with_classes", "the model must have a layer with weights", layers=len(self.graph.vertices)
            )
        head = owners[-1]
        replaced: dict[str, Layer] = {str(head.layer.name): head.layer.with_outputs(classes)}
        start, now = self.graph.input, self.graph.input.shape.dimensions
        if size is not None and tuple(size) != now[1:]:
            if len(size) != len(now) - 1:
                rule = "the size must have as many axes as samples have besides their units"
                raise ShapeError("with_classes", rule, size=tuple(size), input=start.shape)
            replaced[start.name] = Input.of(Shape(now[0], *size), name=start.name)
        nodes = self.graph.nodes(self._weights, replaced)
        output = nodes[self.graph.output.name]
        if output.layer.nonlinearity and output.layer.nonlinearity.gives_probabilities:
            (output,) = output.inputs
        if output.shape.units != classes:
            rule = "the model's outputs must be those of its last layer with weights"
            raise ShapeError("with_classes", rule, layer=head.name, output=output.shape, classes=classes)
        (first,), (last,) = self.graph.inputs, self.graph.outputs
        found = Model({first: nodes[start.name]}, {last: output}, class_names=class_names, seed=seed)
        found.graph, found.pretrained = replace(found.graph, origin=self.graph.origin), self.pretrained
        # An input of another size does to samples what this one does.
        found.set_weights({name: self._weights[name] for name in map(start.parameter, ("mean", "deviation"))})
        return found

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
        self._check_idle("take_weights")
        own, given = self.graph.named_parameters, other.graph.named_parameters
        inputs = {vertex.name for vertex in self.graph.inputs.values()}
        layers = list(dict.fromkeys(name.rpartition("/")[0] for name in own))
        layers = [name for name in layers if name not in inputs]
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

    def device_for(self, device: Device | str | None) -> Device:
        """The device that the model runs on from now on: that given, by itself or by name, else that of the last call.

        Functions that take a model and a ``device=`` get theirs here, so that a model stays on one.
        """
        check_process()
        if isinstance(device, Device):
            self._device, self._device_name = device, None
        elif self._device is None or device not in (None, self._device_name):
            info = device_of_rank(World.started(), device)
            if self._device is None or info != self._device.info:
                self._device = Device(info)
            self._device_name = device
        return self._device

    @announced
    @watched
    @explained
    def fit(  # noqa: PLR0913
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        optimizer: Optimizer | str | None = None,
        loss: AnyLoss = None,
        loss_weights: Mapping[str, float] | Sequence[float] | float | None = None,
        validation: tuple[Any, Any] | float | None = None,
        metrics: AnyMetrics = (),
        callbacks: Callback | Sequence[Callback] = (),
        freeze: str | Iterable[str] | None = None,
        class_weights: ClassWeights | None = None,
        sample_weights: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None,
        steps_per_epoch: int | None = None,
        accumulate: int | None = None,
        shards: int | None = None,
        reduction: str | None = None,
        sync_batch_norm: bool | None = None,
        average: float | None = None,
        augment: Sequence[Augmentation] | Augmentation | str | Mapping[str, Any] | None = None,
        teacher: Model | None = None,
        temperature: float | None = None,
        teacher_weight: float | None = None,
        sizes: Mapping[int, int | tuple[int, int]] | None = None,
        fit_memory: bool | None = None,
        recompute: bool | None = None,
        seed: int | None = None,
        resume: bool = False,
        device: Device | str | None = None,
        precision: str | None = None,
        debug: bool | None = None,
        verify: bool = False,
        verbose: bool = True,
    ) -> dict[str, list[float]]:
        """Trains the model, from its weights of now.

        Every call is a training of its own: order and dropout follow from the seed, the optimizer starts anew, and the
        history begins again; ``resume`` goes on with the last one. What a training that ends early (Ctrl-C, an error)
        leaves is the model after its last full epoch.

        A setting that is not given, or None, is the default that stands here; with ``resume`` it is what the
        interrupted training had.

        What is frozen stays as it is, and costs what it costs in prediction: no gradients, no optimizer state, and no
        deltas below the lowest layer that is trained. A batch norm whose scale and shift are frozen runs on its stored
        statistics, and keeps them. Dropout has nothing to freeze and goes on dropping.

        Args:
            x: samples, (N, C, H, W), (N, C, W) or (N, C), any real type: a NumPy array (also of a mapped file), an
                h5py data set, or any object with ``len()`` that gives a batch for an array of indices; a list of
                samples, or of Pillow's pictures, which become gray or RGB and are resized as
                :func:`blobnet.datasets.read_image` does it. Or, without ``y``, an iterable of pairs of a batch and its
                labels, which is gone through in its own order, or a generator function, called for every epoch; a list
                of pairs of a sample and its label, or what gives such pairs by their numbers (a data set of PyTorch's),
                all of whose labels are read first. For
                several inputs (and outputs) what x (and y) says is given for each of them, by its name or in a list in
                their order, and each batch of an iterable is such a pair.
            y: class numbers (N,) or targets of the output's shape, whatever the loss takes; those of a mapped file or
                of an h5py data set, of more than 64 MB, are read and checked batch by batch.
            epochs: passes over the data, 1 by default; with ``resume``, counted from the beginning of the interrupted
                training. There may be more, or fewer, than were planned then: a schedule that depends on them is spread
                over those of now. Where none does, no file says them: give them then.
            batch_size: samples a step, 128 by default; the last step of an epoch may have fewer.
            optimizer: or its name, "adam"; by default Adam(1e-3).
            loss: or its name, "mse"; by default CrossEntropy(). For several outputs one for each, by its name or in a
                list.
            loss_weights: what the losses of several outputs are multiplied by in their sum, which is minimised; 1 for
                those that are not named.
            validation: (x, y) to measure after each epoch, or an ``x`` that brings its labels along; or a fraction of
                the samples, drawn by the seed, which are then not trained on.
            metrics: what else to measure on the validation data: as for :meth:`evaluate`.
            callbacks: one or several of blobnet.callbacks, or of your own.
            freeze: names of layers or parameters that are not trained, or patterns of them ("stage1*", "*/bias"); see
                also :meth:`layers_until`. By default nothing.
            class_weights: what the losses of each class are multiplied by: a number for each; a mapping from some
                classes' numbers or names; or "balanced", which makes all classes weigh the same. Validation, like
                evaluate, goes without weights. For several outputs by the output's name.
            sample_weights: what the loss of each sample is multiplied by. A batch's loss is divided by its weight. For
                several outputs those of all, or by the output's name.
            steps_per_epoch: batches of an epoch, of an iterable that may never end: each epoch goes on where the last
                one stopped. By default all that it gives.
            accumulate: batches of a step, 1 by default, whose gradients are added up: a step is then that of one batch
                so many times as large, but for batch norms, which normalise each batch by itself.
            shards: parts of a batch, a power of two, that are computed alone and added in a fixed order, so that any
                number of ranks up to theirs gives the same bits (docs/many_devices.md); batch norms normalise each by
                itself. By default 1, under mpiexec 8.
            sync_batch_norm: have batch norms normalise a batch over all its shards; a device then needs memory for all
                of its shards at once.
            reduction: how ranks add gradients: "ordered", by default, so that any number of them gives the same bits,
                or "fast", in an order that MPI chooses.
            average: how much of an exponential moving average of the weights a step keeps, 0.999 say; the model, its
                files and validation then have the average. By default there is none.
            augment: how samples change at random, anew in every epoch: a list of :mod:`blobnet.augment`, applied in
                that order, or a string, "crop=2, flip". Labels, targets and ``validation`` stay as they are. By default
                they do not change. Of several inputs those of one, {its name: how}.
            teacher: another model, whose answers are learned besides the labels (docs/training.md); by default none.
            temperature: what the logits of both models are divided by for that, 4 by default.
            teacher_weight: of the distance from the teacher's answers, which is added to the loss; 1 by default.
            sizes: of pictures that grow from epoch to epoch, N or (height, width): {0: 128, 10: 160, 20: 224} begins
                with 128x128, takes 160x160 after ten epochs, and ends with the model's own size, in which ``x`` and
                ``validation`` are given. By default the latter alone.
            fit_memory: where the device has too little memory for a batch, ``recompute`` blobs; if that is not enough,
                compute it in parts (docs/training.md). A warning says so. Not of an iterable.
            recompute: compute outputs of norms and activations again in the backward pass, in place of keeping them:
                the same bits in less memory, some percent slower.
            seed: of the samples' order, of augmentation and of dropout; 0 by default.
            resume: go on with the last training, or with that of the file that the model was loaded from. What is given
                must be as it was, but for ``epochs``, the optimizer's learning rate, ``steps_per_epoch``, and how it is
                computed (``precision``, ``reduction``, ``fit_memory``, ``recompute``).
            device: a device or its name; the best one if None.
            precision: fp32, by default; tf32 rounds factors of convolutions to 10 bits of fraction for tensor cores of
                NVIDIA GPUs, and on some what lies between layers; bf16 keeps bfloat16 between layers, 8 bits, in half
                the memory; fp16 float16, 11 bits of a smaller range, with a dynamic loss scale (docs/training.md).
            debug: check every launch's writes; $BLOBNET_CHECK if None.
            verify: before the first step, check each way to compute a convolution or a dense layer that was never
                checked on this device, driver and source, as ``blobnet doctor`` does (seconds, once); what fails is
                left out, with a warning.
            verbose: show progress bars, and how far kernels are built; on a terminal.

        Returns:
            The history: a value an epoch for ``loss``, ``accuracy``, ``validation_loss``, ...; with several outputs for
            ``loss``, their weighted sum, and ``mask_loss``, ``class_accuracy``, ...

        Raises:
            DataError, OptionError, ShapeError: what was given does not fit.
            OptionError: the model is training: a callback, or another thread, called this.
            DeviceError: the device has no tensor cores for tf32.
            PlanError: the plan does not fit the device.
            OutOfMemoryError: others have taken the memory that it needs.
            TrainingError: the loss or the weights are not finite.
        """
        given = {name: value for name, value in locals().items() if name in KEYWORDS and value is not None}
        world = World.current()
        self._check_idle("fit")
        with world.propagate_errors("fit"):
            callbacks = check_callbacks(callbacks)
            interrupted = interrupted_training(self.training_state, self.loss) if resume else None
            if interrupted is None:
                given.setdefault("shards", world.shards)
            settings = TrainingSettings.of(self.graph, given, interrupted)
            settings.check_teacher(self)
            check_world(world, settings.shards, settings.batch_size)
            x, y = with_labels(self.graph, x, y)
            if "steps_per_epoch" in given or (y is None and comes_in_batches(self.graph, x)):
                x = self._limited(x, y, settings.steps_per_epoch, interrupted)
            data = LabelledData(self.graph, settings.loss, x, y)
            of_samples = weights_for_outputs(list(self.graph.outputs), sample_weights, data.count)
            data, held_out, rows = held_out_of(data, validation, settings.seed)
            of_samples = of_samples and [None if own is None else own[rows] for own in of_samples]
            given_data = TrainingData(data, of_samples, held_out, named_metrics(data.heads, metrics))
            note_losses(data.heads, self.graph)
            note_order(self.graph)
            self._note_scale(data.sources, training=True)
            check_process()  # Else their lock may never open.
            self._evaluators.clear()  # They would only hold memory that training needs.
            settings = replace(
                settings, class_weights=self._class_weights(settings.class_weights, data.labels, data.heads)
            )
            _check_sums(settings, data)
            changes = check_resumed(interrupted, settings, self.graph, data.facts) if interrupted else {}
            chosen = self.device_for(device).at(settings.precision)
        world.connect(chosen)
        with world.propagate_errors():
            context = StepContext(sample_type=data.reader.sample_types, world=world, debug=debug)
            steps = Steps(chosen, self.graph, settings, context)
            steps.check()
            first_step = partial(steps.at, interrupted.state.epoch if interrupted else 0, self._weights)
            step = first_step()
            if verify:
                from blobnet.examination.verification import verify_plan  # Few ask, and all would wait for its import.

                while verify_plan(step.device, step.plan):
                    step = first_step()
        if world.size > 1:
            check_ranks(step, self._weights, given_data, interrupted)
        trainer = Trainer(step, steps)
        del step  # Where sizes change, the trainer has another one in its place.
        if interrupted is not None:
            trainer.restore(interrupted.state, changes)
        history = {name: list(values) for name, values in self.history.items()} if resume else {}
        progress = Progress(trainer, settings.epochs, history, class_names=self.class_names, pretrained=self.pretrained)
        with self._training(), contextlib.ExitStack() as releases:
            for callback in callbacks:
                releases.callback(callback.release)
            try:
                trainer.fit(
                    given_data,
                    progress,
                    callbacks=callbacks,
                    keep=self._keep,
                    verbose=verbose and world.is_first,
                )
            except BaseException as error:
                for callback in callbacks if trainer.is_begun else ():
                    callback.failed(error)
                raise
        return self.history

    def trainer(
        self,
        *,
        batch_size: int | None = None,
        input_delta: bool = False,
        device: Device | str | None = None,
        debug: bool | None = None,
        **settings: Any,
    ) -> StepByStep:
        """Return a training whose steps are called one by one, for loops that ``fit`` does not have (docs/training.md).

            step = model.trainer(optimizer="adam", loss="mse")
            step.train(x, y)
            step.update()

        Args:
            batch_size: the most samples of a batch; by default as many as the first one has.
            input_delta: whether dL/d input is wanted too: ``step.input_delta``.
            device: as for :meth:`fit`.
            debug: as for :meth:`fit`.
            settings: ``optimizer``, ``loss``, ``loss_weights``, ``freeze``, ``class_weights``, ``average``,
                ``teacher``, ``temperature``, ``teacher_weight``, ``seed`` and ``precision`` as for :meth:`fit`;
                ``epochs`` and ``steps_per_epoch`` for schedules that count them.

        Raises:
            OptionError: what was given does not fit, or several ranks train together, which only ``fit`` does.
        """
        unknown = next((name for name in settings if name not in STEP_KEYWORDS), None)
        if unknown is not None:
            raise explain_argument("trainer", unknown, settings[unknown], ["batch_size", "input_delta", *STEP_KEYWORDS])
        if getattr(settings.get("optimizer"), "sam", None) is not None:
            raise OptionError("trainer", "steps that take gradients twice (sam) are done in fit alone")
        if World.current().size > 1:
            raise OptionError("trainer", "ranks train together in fit alone", ranks=World.current().size)
        if batch_size is not None:
            check_count("trainer", "batch_size", batch_size)
        held = TrainingSettings.of(self.graph, {name: own for name, own in settings.items() if own is not None})
        held.check_teacher(self)
        weights = self._class_weights(held.class_weights, None, heads_of(self.graph, held.loss))
        held = replace(held, class_weights=weights)
        return StepByStep(
            self, held, partial(self.device_for, device), batch_size, input_delta=input_delta, debug=debug
        )

    def _limited(self, x: Any, y: Any, count: int | None, interrupted: Interrupted | None) -> Any:
        """So many batches an epoch of an iterable; a resumed training leaves out those of the epochs before."""
        if y is not None or not comes_in_batches(self.graph, x):
            rule = "only an iterable of batches may end an epoch before its end"
            raise OptionError("steps_per_epoch", rule, hint="leave it out: all samples of an array are an epoch.")
        return x if count is None else Limited(x, count, count * interrupted.state.epoch if interrupted else 0)

    @contextlib.contextmanager
    def _training(self) -> Iterator[None]:
        """Within, nobody else trains the model, or sets its weights; behind it these do not need the device."""
        self._check_idle("fit")
        self._is_training = True
        before = self._weights, self._state, self.history, self.loss
        try:
            yield
            self._read_kept()
        except BaseException:
            try:
                self._read_kept()
            except DeviceError as error:
                self._weights, self._state, self.history, self.loss = before
                rule = "the device must give back the weights of the last epoch; the model has those of before"
                warn("training", rule, cause=error, hint="files of the Checkpoint callback keep what epochs reach.")
            raise
        finally:
            self._is_training = False

    def _read_kept(self) -> None:
        """Reads what a training has left on the device alone."""
        if isinstance(self._weights, KeptArrays):
            self._weights = self._weights.read()
        _ = self.training_state  # Which reads it.

    def _class_weights(
        self, given: Any, known: Sequence[Labels] | None, heads: Sequence[Head]
    ) -> list[FloatArray | None]:
        """The weights of classes, for each output."""
        names = list(self.graph.outputs)
        if len(names) == 1:
            only = given
            if isinstance(given, Mapping | list | tuple) and len(given) == 1:  # Perhaps that of the output, no class.
                only = given.get(names[0], given) if isinstance(given, Mapping) else given[0]
            items: Sequence[Any] = [given if isinstance(only, Real) else only]
        else:
            given = {**dict.fromkeys(names), **given} if isinstance(given, Mapping) else given
            items = to_list(names, dict.fromkeys(names) if given is None else given, "class_weights", "output")
        labels = known or (None,) * len(names)
        return [
            prepare_class_weights(own, head.loss, head.shape.units, of_output, self.class_names)
            for own, head, of_output in zip(items, heads, labels, strict=True)
        ]

    def _keep(self, progress: Progress) -> None:
        """Keeps what an epoch has reached."""
        trainer = progress.trainer
        self._weights, state = trainer.keep()
        self.history = {name: list(values) for name, values in progress.history.items()}
        self.loss = to_dict(self.graph.outputs, trainer.step.losses)
        self._state = state if progress.is_resumable else None

    @explained
    def averaged(self, tta: str | Sequence[str], *, loss: AnyLoss = None) -> Model:
        """Return a model whose answers are means over views of each sample, with the weights of now.

        It is a model like any other: it predicts, is evaluated, and can be saved. Where a loss takes logits,
        probabilities are averaged, and an output is the logarithm of their mean (the logit, for several labels); other
        outputs are averaged themselves. Masks are moved back.

        Args:
            tta: words: ``flip`` (left for right), ``vflip`` (top for bottom), ``shift=1`` (the sample, and moved to
                each corner by so many cells; the mean comes from outside). All of a list together.
            loss: that says what outputs are, as for :meth:`fit`; by default that of the last training.

        Raises:
            OptionError: an unknown word; several inputs, or one without pictures; outputs of boxes; shifts of masks.
        """
        return copy.copy(_averaged_model(self, tta, loss))

    @explained
    def evaluate(  # noqa: PLR0913
        self,
        x: Any,
        y: Any = None,
        *,
        loss: AnyLoss = None,
        loss_weights: Mapping[str, float] | Sequence[float] | float | None = None,
        metrics: AnyMetrics = (),
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
        storage: str = "float32",
        tta: str | Sequence[str] | None = None,
    ) -> dict[str, float]:
        """The mean loss over (x, y), with classes also ``accuracy`` and ``top_5``; by default the loss of training.

        ``metrics`` are measured besides: names and functions of blobnet.metrics, or functions of your own, of which
        that module says what they get; not of iterables. For several outputs they are given by the outputs' names.
        ``x``, ``y``, ``loss_weights`` and ``precision`` are as for :meth:`fit`, ``storage`` as for :meth:`predict`.
        Under mpiexec all ranks share the work, as in :meth:`predict`. With ``tta``, what :meth:`averaged` gives is
        measured.
        """
        if tta is not None:
            more: dict[str, Any] = {"metrics": metrics, "batch_size": batch_size, "device": device}
            more |= {"precision": precision, "storage": storage, "loss_weights": loss_weights}
            return _averaged_model(self, tta, loss).evaluate(x, y, loss=loss, **more)
        batch_size = check_count("evaluate", "batch_size", batch_size)
        losses = losses_for(self.graph, loss, self.loss)
        weights = loss_weights_for(self.graph, loss_weights)
        asked = named_metrics(heads_of(self.graph, losses), metrics)
        data = LabelledData(self.graph, losses, x, y)
        if any(asked) and data.labels is None:
            names = [name for own in asked for name in own]
            raise OptionError("evaluate", "metrics are measured on data that are no stream", metrics=names)
        self._note_scale(data.sources)
        settings = {"count": data.count, "batch_size": batch_size, "sample_type": data.reader.sample_types}
        lent = self._evaluator(device, precision=precision, storage=storage, loss=losses, **settings)
        world = World.of_calls()
        with world.propagate_errors("evaluate"), lent as evaluator:
            finish = evaluator.measure(data, weights, asked, world)
        return finish()

    @explained
    def report(  # noqa: PLR0913
        self,
        x: Any,
        y: Any,
        *,
        output: str | None = None,
        loss: Loss | str | None = None,
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
    ) -> AnyReport:
        """Return what a model gets right, class by class: a table to print, and the confusion matrix.

        With targets it is a LabelReport where the loss takes logits (several labels for a sample), else a NumberReport.
        ``x`` and ``y`` (but for iterables) and ``precision`` are as for :meth:`fit`. With a class for each position
        there is no area below a curve, for which all probabilities would have to be in memory. Of several outputs
        ``output`` names one, whose labels ``y`` are.

        Raises:
            OptionError: the loss takes no classes and the output has positions, or there is no such output.
        """
        names = list(self.graph.outputs)
        if (output is None and len(names) > 1) or (output is not None and output not in names):
            rule = "output must name one of the model's outputs"
            raise OptionError("report", rule, output=output, outputs=", ".join(names))
        number = names.index(output) if output is not None else 0
        own_loss = loss_of(loss) or losses_for(self.graph, None, self.loss)[number]
        batch_size = check_count("report", "batch_size", batch_size)
        sources = sources_for(self.graph, x, "x")
        shape = self.graph.outputs[names[number]].shape
        labels = prepare_labels(shape, own_loss, sources[0].shape, y, "y")
        settings: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}

        def answers(x: Any) -> FloatArray:
            found = self.predict(x, **settings)
            values: FloatArray = found if len(names) == 1 else found[names[number]]
            return values

        if not shape.rank:
            return report_of(own_loss, np.asarray(labels), answers(x), self.class_names)

        def of_some(rows: npt.NDArray[np.int64]) -> Report:
            samples = to_dict(self.graph.inputs, [np.asarray(source[rows]) for source in sources])
            own = np.asarray(labels[rows])
            return Report.of(own_loss, own, answers(samples), self.class_names, has_auc=False)

        world = World.of_calls()
        with world.propagate_errors("report"), World.alone():
            parts = [of_some(rows) for rows in world.scatter(runs(len(sources[0]), batch_size))]
        return Report.summed(world.gather_in_order(parts))

    @explained
    def predict(
        self,
        x: Any,
        *,
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
        storage: str = "float32",
        tta: str | Sequence[str] | None = None,
    ) -> Any:
        """The model's output for every sample, in their order: (N, units[[[, depth], height], width]).

        Of several outputs {name: array}. ``x`` and ``precision`` are as for :meth:`fit`; an iterable may give batches
        without labels. A sample's bits depend on the batch size of the plan and on nothing else: ``batch_size`` for at
        least as many samples, and for iterables, else 1, 4, 16 or 64 if that holds them all. Several threads may call
        this at once: one brings its samples to the device while another waits for its answers. See
        :meth:`predict_batches` for answers that are too many for memory.

        With ``storage="float16"`` what one layer leaves for the next takes half the memory: each value is rounded to 11
        bits, about 5e-4 of it, and beyond 65504 it is infinite, with a warning where answers are not finite then; with
        ``"bfloat16"`` (as with ``precision="bf16"``) to 8 bits, over the whole range. Weights, sums and answers are
        float32.

        Under mpiexec each rank predicts some of the batches, and all get all answers: all must call this with the same
        samples, and a rank that calls it by itself does so within ``World.alone()`` (docs/many_devices.md).

        With ``tta="flip"`` answers are means over views of each sample: those of the model that :meth:`averaged` gives.
        """
        if tta is not None:
            given: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
            return _averaged_model(self, tta).predict(x, storage=storage, **given)
        x = as_batches(self.graph, x)
        if comes_in_batches(self.graph, x):
            settings: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
            settings["storage"] = storage
            batches = list(self._output_batches("predict", x, **settings))
            return to_dict(self.graph.outputs, [np.concatenate(own) for own in zip(*batches, strict=True)])
        batch_size = check_count("predict", "batch_size", batch_size)
        sources = sources_for(self.graph, x, "x")
        self._note_scale(sources)
        reader, count = IndexedReader(sources), len(sources[0])
        settings = {"count": count, "batch_size": batch_size, "sample_type": reader.sample_types}
        lent = self._evaluator(device, precision=precision, storage=storage, loss=None, **settings)
        world = World.of_calls()
        with world.propagate_errors("predict"), lent as evaluator:
            finish = evaluator.begin(reader, count, world)
        return to_dict(self.graph.outputs, finish())

    @explained
    def predict_batches(
        self,
        x: Any,
        *,
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
        storage: str = "float32",
        tta: str | Sequence[str] | None = None,
    ) -> Iterator[Any]:
        """Yield what :meth:`predict` gives, some samples at a time, in order: neither they nor answers pile up.

        A few batches are read and predicted ahead of the one that is asked for. Others may predict between them.
        """
        settings: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
        settings["storage"] = storage
        model = self if tta is None else _averaged_model(self, tta)
        return map(partial(to_dict, self.graph.outputs), model._output_batches("predict_batches", x, **settings))

    def _output_batches(
        self, subject: str, x: Any, *, batch_size: int, device: Device | str | None, precision: str, storage: str
    ) -> Iterator[Outputs]:
        batch_size = check_count(subject, "batch_size", batch_size)
        world = World.of_calls()
        reader: Reader
        x = as_batches(self.graph, x)
        if comes_in_batches(self.graph, x):
            reader, count = StreamReader(x, sample_shapes(self.graph), None, "x"), None
            jobs = reader.jobs(batch_size, world=world)
        else:
            sources = sources_for(self.graph, x, "x")
            self._note_scale(sources)
            reader, count = IndexedReader(sources), len(sources[0])
            jobs = world.scatter(runs(count, batch_size))
        settings = {"count": count, "batch_size": batch_size, "sample_type": reader.sample_types}

        def outputs() -> Iterator[Outputs]:
            while True:
                # NOTE: nothing is yielded with the evaluator in hand, which nobody else could have meanwhile.
                lent = self._evaluator(device, precision=precision, storage=storage, loss=None, **settings)
                with world.propagate_errors(subject), lent as evaluator:
                    some = itertools.islice(jobs, _PREDICTED_AHEAD)
                    own = [tuple(map(np.copy, values)) for values in evaluator.outputs(reader, some)]
                found = world.gather_in_order(own)
                yield from found
                if len(found) < _PREDICTED_AHEAD * world.size:
                    return

        return outputs()

    @explained
    def predict_proba(
        self,
        x: Any,
        *,
        batch_size: int = 128,
        device: Device | str | None = None,
        precision: str = "fp32",
        storage: str = "float32",
        tta: str | Sequence[str] | None = None,
    ) -> Any:
        """The probabilities that the outputs of :meth:`predict` stand for: (N, units[[[, depth], height], width]).

        Of several outputs {name: array}.

        A softmax over the units for the losses of classes (also where a model with one output does not know its loss),
        the sigmoid of each output for BinaryCrossEntropy.

        Raises:
            OptionError: the model was trained with a loss whose outputs are no logits; or it has several outputs, and
                was not trained.
        """
        if self.loss is None and len(self.graph.outputs) > 1:
            rule = "a model with several outputs must know the loss of each"
            hint = "fit it, or set model.loss = {output: loss}. predict gives the outputs themselves."
            raise OptionError("predict_proba", rule, outputs=list(self.graph.outputs), loss=None, hint=hint)
        losses = losses_for(self.graph, None, self.loss)
        found = self.predict(x, batch_size=batch_size, device=device, precision=precision, storage=storage, tta=tta)
        probabilities = []
        for loss, outputs in zip(losses, [found] if len(losses) == 1 else found.values(), strict=True):
            scores = loss.scores(outputs)
            if scores is None:
                rule = "the loss of the model must take logits"
                raise OptionError("predict_proba", rule, loss=loss, hint="predict gives the outputs themselves.")
            probabilities.append(scores.astype(np.float32))
        return to_dict(self.graph.outputs, probabilities)

    def _note_scale(self, sources: Sequence[Source], *, training: bool = False) -> None:
        """Looks at the scale of samples, once for the same weights."""
        if sources and self._noted is not self._weights:
            for source, vertex in zip(sources, self.graph.inputs.values(), strict=True):
                note_scale(self.graph, vertex, self._weights, source, training=training)
            self._noted = self._weights

    def _evaluator(self, device: Device | str | None, **settings: Any) -> AbstractContextManager[Evaluator]:
        return self._evaluators.lend(self.device_for(device), self.graph, self._weights, Use(**settings))

    @explained
    def gradients(  # noqa: PLR0913
        self,
        x: Any,
        y: Any,
        *,
        loss: AnyLoss = None,
        loss_weights: Mapping[str, float] | Sequence[float] | float | None = None,
        freeze: str | Iterable[str] = (),
        seed: int = 0,
        device: Device | str | None = None,
        precision: str = "fp32",
        debug: bool | None = None,
    ) -> dict[str, FloatArray]:
        """dL/d parameter by name, and dL/d x as ``input``, for one batch; the weights stay as they are.

        Those of several inputs go by the inputs' names. ``freeze``, ``loss_weights`` and ``precision`` are as for
        :meth:`fit`; what is frozen has no gradient.
        """
        seed = check_seed("gradients", seed)
        losses = losses_for(self.graph, loss, self.loss)
        sources = sources_for(self.graph, x, "x")
        for source in sources:
            source.check_all()
        labels = labels_for(heads_of(self.graph, losses), sources[0].shape, y, "y")
        settings = TrainingSettings(
            loss=losses,
            loss_weights=loss_weights_for(self.graph, loss_weights),
            optimizer=optimizers.SGD(),
            batch_size=len(sources[0]),
            freeze=frozen_parameters(self.graph, freeze),
            seed=seed,
        )
        context = StepContext(input_delta=True, debug=debug)
        step = TrainingStep(self.device_for(device).at(precision), self.graph, self._weights, settings, context)
        batch = step.load_batch(*map(np.asarray, sources), *map(np.asarray, labels))
        names = ["input"] if len(sources) == 1 else self.graph.inputs
        while True:
            step.compute_gradients(batch)
            found = zip(names, input_deltas(step, len(sources[0])), sources, strict=True)
            values = step.gradients() | {name: delta.reshape(source.shape) for name, delta, source in found}
            # What halves cannot hold at one scale they may hold at a smaller one.
            if all(map(all_finite, values.values())) or not step.loss_scale.lower():
                return values

    def plan(
        self,
        batch_size: int = 128,
        *,
        training: bool = True,
        loss: AnyLoss = None,
        freeze: str | Iterable[str] = (),
        device_class: str = HOST.name,
    ) -> Plan:
        """The memory plan, which can be printed; needs no device. ``freeze`` is as for :meth:`fit`."""
        losses = losses_for(self.graph, loss, self.loss) if training else ()
        wanted = losses[0] if len(losses) == 1 else losses or None
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
            FileError: the name is that of another format, or the file cannot be written.
        """
        loss = losses_description(self.loss) if self.loss else None
        checkpoint.save(
            path,
            ModelFile(
                description=self.graph.description(),
                weights=self._weights,
                class_names=self.class_names,
                history=self.history,
                loss=loss,
                training=self.training_state,
                pretrained=self.pretrained,
            ),
        )

    def save_safetensors(self, path: str | os.PathLike[str]) -> None:
        """Writes all weights to a safetensors file, by PyTorch's names (docs/weights.md).

        For the networks of blobnet.models that torchvision has, these are torchvision's, so that its model's
        ``load_state_dict`` takes them; else ``conv1/weight`` is ``conv1.weight``. What the input layer does to samples
        stands in the file's metadata.

        Raises:
            FileError: the name is that of another format, or the file cannot be written.
        """
        safetensors_files.write(path, self.graph, self._weights)

    def load_safetensors(self, path: str | os.PathLike[str]) -> None:
        """Takes all weights from a safetensors file, by the names that :meth:`save_safetensors` gives them.

        What the input layer does to samples stays, unless :meth:`save_safetensors` has written the file. If there is an
        error, all weights stay.

        Raises:
            FileError: there is no such file, it is no whole safetensors file (a pickle?), or it holds other tensors.
            ShapeError: a tensor has another shape; the error names the layer.
            OptionError: a value is no finite number.
        """
        self.set_weights(safetensors_files.read(path, self.graph))

    def save_keras_weights(self, path: str | os.PathLike[str]) -> None:
        """Writes all weights to a ``.weights.h5`` file, for ``load_weights`` of the same architecture in Keras 3.

        That model's arrays have the channels last. What the input layer does to samples is written as that of a
        ``Normalization`` layer (docs/weights.md).

        Raises:
            FileError: the name does not end in .weights.h5, or the file cannot be written.
            OptionError: a layer has no counterpart in Keras; the error names it.
        """
        keras_files.write(path, self.graph, self._weights)

    def load_keras_weights(self, path: str | os.PathLike[str]) -> None:
        """Takes all weights from a file of Keras: ``.weights.h5`` of Keras 3, or ``.h5`` of Keras 2.

        Layers correspond by their order in the graph (docs/weights.md). What the input layer does to samples stays,
        unless the file has ``Normalization`` layers. If there is an error, all weights stay.

        Raises:
            FileError: there is no such file, it is damaged, or it holds other layers.
            ShapeError: a layer's weights have another shape; the error names it.
            OptionError: a layer has no counterpart in Keras, or a value is no finite number.
        """
        self.set_weights(keras_files.read(path, self.graph))

    def __getstate__(self) -> dict[str, Any]:
        # What belongs to a device stays with its process; a copy of a model that is training is not.
        own = "_device", "_evaluators", "_nodes", "_averaged", "_is_training"
        self._read_kept()
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._device, self._evaluators, self._nodes, self._is_training = None, Evaluators(), None, False
        self._averaged = None

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

    @explained
    def __init__(self, layers: Iterable[Layer], *more: Any, class_names: Sequence[str] = (), seed: int = 0) -> None:
        if more or isinstance(layers, Layer):
            rule, hint = "the layers must come in one list", "Sequential([first, second, ...])"
            raise OptionError("Sequential", rule, received=f"{1 + len(more)} arguments", hint=hint)
        self._start(graph.sequential(layers), class_names, seed)


def _averaged_model(model: Model, tta: str | Sequence[str], loss: AnyLoss = None) -> Model:
    """Return what :meth:`Model.averaged` gives, which a model keeps as long as nothing changes: not to be changed."""
    losses, words = losses_for(model.graph, loss, model.loss), words_of(tta)
    key, known = (losses, words, tuple(model.class_names)), model._averaged
    if known is None or known[0] is not model._weights or known[1] != key:
        made = Model(*averaged(model.graph, model._weights, losses, words), class_names=model.class_names)
        made.loss = to_dict(model.graph.outputs, losses)
        made._device, made._device_name = model._device, model._device_name
        model._averaged = known = model._weights, key, made
    return known[2]


def _normalization(
    network: graph.Graph, mean: npt.ArrayLike, deviation: npt.ArrayLike, input: str | None = None
) -> dict[str, FloatArray]:
    """The weights of an input layer that does this to samples."""
    means, deviations = (as_float32(values, "set_normalization") for values in (mean, deviation))
    if not np.isfinite(means).all():
        raise OptionError("set_normalization", "every mean must be finite", mean=means)
    if not (np.isfinite(deviations) & (deviations >= np.finfo(np.float32).tiny)).all():
        hint = "give a unit that never changes the deviation 1."
        rule = "every deviation must be finite and above 0"
        raise OptionError("set_normalization", rule, deviation=deviations, hint=hint)
    names = list(network.inputs)
    if (input is None and len(names) > 1) or (input is not None and input not in names):
        rule = "input must name one of the model's inputs"
        raise OptionError("set_normalization", rule, input=input, inputs=", ".join(names))
    vertex = network.input if input is None else network.inputs[input]
    if network.holds_numbers(vertex) and not ((means % 1 == 0) & (deviations == 1)).any():
        rule = "an Embedding reads this input, whose numbers must stay whole"
        hint = "leave this out: such an input needs no normalization."
        raise OptionError("set_normalization", rule, input=vertex.name, hint=hint)
    given = {vertex.parameter("mean"): means, vertex.parameter("deviation"): deviations}
    units = vertex.shape.units
    return {name: np.full(units, one, np.float32) if not one.ndim else one for name, one in given.items()}


def check_model(value: object, subject: str) -> None:
    """Raises OptionError, which names the function that was called, unless it is a Model."""
    if not isinstance(value, Model):
        hint = "blobnet.load(path) gives the model in a file." if isinstance(value, str | os.PathLike) else None
        raise OptionError(subject, "it takes a Model", type=type(value).__name__, hint=hint)


def check_class_names(network: graph.Graph, class_names: Sequence[str]) -> tuple[str, ...]:
    """The names of a network's outputs, if there are any; OptionError unless there is one for each."""
    if isinstance(class_names, str):
        rule, hint = "they must be a list of names", 'class_names=["cat", "dog"], for example.'
        raise OptionError("class_names", rule, received=repr(class_names), hint=hint)
    names = tuple(class_names)
    if names and len(network.exits) > 1:
        rule = "only a model with one output has names of its classes"
        raise OptionError("class_names", rule, names=len(names), outputs=", ".join(network.outputs))
    units = network.output.shape.units if names else 0
    if names and len(names) != units:
        rule = "there must be a name for each output of the model, or none at all"
        hint = f"end the model with Dense({len(names)})."
        raise OptionError("class_names", rule, names=len(names), outputs=units, hint=hint)
    return names


def load(path: str | os.PathLike[str]) -> Model:
    """The model in an HDF5 file: architecture, weights, class names, history and, in a checkpoint, training state.

    Raises:
        FileError: the file is missing, damaged, or not one of blobnet's.
    """
    file = checkpoint.load(path)
    model = Model.__new__(Model)
    names = file.class_names
    units = file.graph.output.shape.units if names else 0
    if names and len(names) != units:
        rule = "a file should have a name for each output of its model; they are left out"
        warn(str(path), rule, names=len(names), outputs=units)
        names = ()
    model._start(file.graph, names, 0)
    if broken := not_finite(file.weights):
        warn(str(path), "the weights of a model should be finite", parameters=", ".join(broken))
    model._weights = file.weights
    model.history = dict(file.history)
    model.training_state, model.pretrained = file.training, file.pretrained
    if file.loss:
        is_one = len(file.graph.exits) == 1
        read = {
            name: Loss.from_description(own, str(path))
            for name, own in ({"": file.loss} if is_one else file.loss).items()
        }
        model.loss = read[""] if is_one else read
    return model


def load_pretrained(model: Model, source: str | hub.Pretrained) -> None:
    """Has a model take weights from a file of the Hugging Face hub, or from one here, with how it normalises samples.

    The last layer starts anew, with a warning, where the file has another number of classes. The model and its
    files remember where the weights came from (``model.pretrained``). If there is an error, all weights stay.

    Args:
        model: of blobnet.models, or another one, whose layers are called as in the file.
        source: ``hf:OWNER/NAME``, also with ``/FILE.safetensors`` and ``@REVISION``; or the path of a .safetensors
            file, whose config.json may lie beside it. Names are PyTorch's, torchvision's or timm's
            (docs/weights.md).

    Raises:
        FileError: there is no such file, it cannot be fetched, is damaged, a pickle, or of another network.
        ShapeError: a tensor has another shape; the error names the layer.
        OptionError: a package is missing, or a value is no finite number.
    """
    found = source if isinstance(source, hub.Pretrained) else hub.find(source)
    weights = safetensors_files.read(found.path, model.graph, other_head=True)
    inputs = model.graph.inputs.values()
    normalization = found.normalization(next(iter(inputs)).shape.units)
    if normalization is not None:
        weights |= _normalization(model.graph, *normalization)
    model.set_weights(weights)
    if not any(vertex.parameter("mean") in weights for vertex in inputs):
        hub.note_missing(found)
    model.pretrained = found.record


def with_classes_of(model: Model, found: hub.Pretrained) -> Model:
    """The model, or one with as many outputs as the last layer in a file of weights has, where they are classes."""
    units, own = safetensors_files.head_units(found.path, model.graph)
    if units in (0, own) or len(model.graph.exits) > 1 or model.graph.output.shape.units != own:
        return model
    return model.with_classes(units)


def _check_sums(settings: TrainingSettings, data: LabelledData) -> None:
    """Raises OptionError where the batches of a step, whose gradients are one sum, may weigh unlike at the outputs."""
    if settings.fit_memory and data.count is None:
        rule = "batches of a stream are computed as they come"
        raise OptionError("fit_memory", rule, hint="give smaller ones, and accumulate.")
    sums = {"accumulate": settings.accumulate > 1, "shards": settings.shards > 1, "fit_memory": settings.fit_memory}
    subject = next((name for name, is_so in sums.items() if is_so), None)
    if subject is None or len(data.heads) == 1:
        return
    for head, weights in zip(data.heads, settings.class_weights, strict=True):
        moves = head.shape.rank > 0 and any(augmentation.moves for augmentation in settings.augment.changes)
        if weights is not None or head.loss.ignored_label is not None or moves:
            rule = "with several outputs, all samples must weigh the same at each of them"
            hint = f"leave out class weights, labels to ignore and what moves masks, or {subject}."
            raise OptionError(subject, rule, output=head.name, hint=hint)
