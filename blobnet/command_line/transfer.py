"""--init-from, --classes, --freeze and --freeze-until: trainings that start from the weights of another one."""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from blobnet.command_line.model_argument import ModelSource, find_model, open_model
from blobnet.datasets import Dataset
from blobnet.datasets.loading import are_pictures
from blobnet.datasets.named_data import NamedData
from blobnet.errors import OptionError, ShapeError, first_few
from blobnet.model import Model
from blobnet.network.patterns import frozen_parameters
from blobnet.onnx.operation import OpenAxisError


@dataclass(frozen=True)
class FileSource:
    """The model in a file, with a new last layer unless its classes are the same; it stands for a ModelSource."""

    path: Path

    @property
    def text(self) -> str:
        """The model, as errors and notes call it."""
        return str(self.path)

    @property
    def name(self) -> str:
        """The name of the file of a training."""
        return f"{self.path.stem}-tuned"

    @cached_property
    def model(self) -> Model | None:
        """The model as it is in the file; None where that leaves open for which size."""
        try:
            return open_model(self.path)
        except OpenAxisError:
            return None

    def build(self, input_shape: Sequence[int], classes: int, class_names: Sequence[str], seed: int) -> Model:
        """The model for so many classes and samples of that size; whether it takes their units is not looked at here.

        Raises:
            ShapeError: its layers do not take that size.
        """
        sample = tuple(input_shape)
        model = self.model or open_model(self.path, sample)
        before = model.graph.input.shape
        if len(sample) != len(before.dimensions) or sample[1:] == before.dimensions[1:]:
            return model.with_classes(classes, class_names, seed=seed)
        try:
            found = model.with_classes(classes, class_names, size=sample[1:], seed=seed)
        except ShapeError as error:
            rule = "samples must have the size that the model was made for, unless its layers take another one as well"
            sides = "x".join(map(str, before.dimensions[1:]))
            hint = f"--image-size {sides} resizes the pictures of a folder." if before.rank == 2 else None
            cause = str(error).partition("\n")[0].rstrip(".")  # What follows is the text of a layer.
            raise ShapeError(self.text, rule, hint=hint, model=before, sample=sample, cause=cause) from error
        print(f"note: {self.text} was made for samples of {before}, and is trained for {sample}", file=sys.stderr)
        return found


@dataclass(frozen=True)
class PretrainedSource(FileSource):
    """A network with the weights that --pretrained names; ``path`` is its own name."""

    pretrained: str

    @property
    def text(self) -> str:
        """The model, as errors and notes call it."""
        return f"{self.path} with {self.pretrained}"

    @property
    def name(self) -> str:
        """The name of the file of a training."""
        return find_model(str(self.path)).name

    @cached_property
    def model(self) -> Model:
        """The network for the size and classes of the weights."""
        return open_model(self.path, pretrained=self.pretrained)

    @property
    def normalizes(self) -> bool:
        """Whether the weights say how samples are normalised."""
        weights, vertex = self.model.weights, self.model.graph.input
        return bool(weights[vertex.parameter("mean")].any() or (weights[vertex.parameter("deviation")] != 1).any())


def file_model(options: argparse.Namespace, source: ModelSource | FileSource) -> Model | None:
    """The model of --init-from, whose size and units pictures get; None where there is none, or no need of it."""
    if isinstance(source, FileSource):
        return source.model
    return FileSource(options.init_from).model if options.init_from and are_pictures(options.dataset) else None


def find_source(options: argparse.Namespace) -> ModelSource | FileSource:
    """The model that the options name: MODEL, perhaps with --pretrained, or without it that of --init-from."""
    if options.pretrained and not options.resume:
        return PretrainedSource(Path(options.model), options.pretrained)
    source = find_model(options.model) if options.model else FileSource(options.init_from)
    if options.trunk is None:
        return source
    if not isinstance(source, ModelSource) or "trunk" not in inspect.signature(source.function).parameters:
        rule = "the model's function must take a trunk"
        raise OptionError("--trunk", rule, model=source.text, hint="centernet does.")
    return replace(source, function=partial(source.function, trunk=options.trunk))


def build(options: argparse.Namespace, source: ModelSource | FileSource, data: Dataset) -> tuple[Model, list[str]]:
    """The model to train, for the samples and classes of the data, with the weights of --init-from.

    Also the layers that start anew all the same. With --resume the weights are not those, but the output file's.

    Raises:
        OptionError: --classes does not fit the data, or the models have no layers in common.
        ShapeError: the file's layers have other shapes.
    """
    outputs = data.classes or math.prod(data.train.y.shape[1:])
    names = data.class_names or data.target_names
    if options.classes is not None:
        if not data.classes:
            rule = "the data set must have classes, not targets"
            raise OptionError("--classes", rule, classes=options.classes, data=data.name)
        if options.classes < data.classes:
            rule = "there must be an output for each class of the data"
            raise OptionError("--classes", rule, classes=options.classes, data=f"{data.name} with {data.classes}")
        # Classes that the data do not show are called by their numbers.
        outputs, names = options.classes, (*names, *map(str, range(len(names), options.classes)))
    model = source.build(data.shape, outputs, names, options.seed)
    last = model.graph.trainable[-1].rpartition("/")[0]
    is_file = isinstance(source, FileSource)
    if (is_file or options.init_from) and not options.resume:
        given = source.model if isinstance(source, FileSource) else open_model(options.init_from)
        if given is not None and (not is_file or given.class_names == model.class_names != ()):
            return model, model.take_weights(given)
    return model, [last]


def build_by_name(
    options: argparse.Namespace, source: ModelSource | FileSource, data: NamedData
) -> tuple[Model, list[str]]:
    """Build as :func:`build`, for arrays that go by the names of the model's inputs and outputs.

    Raises:
        OptionError: the options ask for another number of classes, or for a new last layer.
        ShapeError: the file's layers have other shapes.
    """
    if options.classes is not None:
        rule = "only a model with one input and one output, for a data set with x and y, is made for so many classes"
        raise OptionError("--classes", rule, classes=options.classes, data=data.name)
    if options.pretrained:
        raise OptionError("--pretrained", "it needs a data set with x and y", data=data.name)
    if isinstance(source, FileSource):
        rule = "without MODEL it makes a new last layer, which a data set with x and y is needed for"
        hint = "give MODEL too: its layers then take the weights of those that have the same names in the file."
        raise OptionError("--init-from", rule, file=source.path, data=data.name, hint=hint)
    model = source.build_by_name(data.shapes, data.classes, data.class_names, options.seed)
    anew = model.take_weights(open_model(options.init_from)) if options.init_from and not options.resume else []
    return model, anew


def frozen_patterns(options: argparse.Namespace, model: Model) -> list[str] | None:
    """Return the freezing that --freeze and --freeze-until ask for, as ``fit`` takes it; None if there is neither.

    Raises:
        OptionError: there is no such layer, nothing with weights up to it, or nothing would be left to train.
    """
    patterns = list(options.freeze or ())
    if options.freeze_until is not None:
        model.graph.vertex(options.freeze_until, "--freeze-until")
        layers = model.layers_until(options.freeze_until)
        if not layers:
            rule = "there must be a layer with weights to freeze"
            raise OptionError("--freeze-until", rule, layer=options.freeze_until, hint="blobnet inspect lists layers.")
        patterns += layers
    if patterns:
        frozen_parameters(model.graph, patterns)  # now, and not when the device is at work
    return patterns or None


def describe(
    options: argparse.Namespace, model: Model, anew: Sequence[str], patterns: Sequence[str] | None
) -> list[str]:
    """A line for where the weights come from, and which layers start ``anew``, and one for what is frozen."""
    lines = []
    if options.init_from and not options.resume:
        lines.append(f"init    weights of {options.init_from}; new: {first_few(anew, 6) or 'nothing'}")
    if options.pretrained and model.pretrained and not options.resume:
        said = ", ".join(f"{name} {value}" for name, value in model.pretrained.items() if value)
        lines.append(f"init    weights of {said}; new: {first_few(anew, 6) or 'nothing'}")
    if patterns:
        specs = model.graph.named_parameters
        frozen = sum(specs[name].elements for name in frozen_parameters(model.graph, patterns))
        lines.append(f"frozen  {frozen:,} of {model.parameter_count:,} trainable parameters")
    return lines
