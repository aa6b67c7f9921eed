"""--dataset on the command line, and how its samples fit a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blobnet import datasets
from blobnet.command_line.text import short_list
from blobnet.data.labels import labels_for
from blobnet.data.samples import sources_for
from blobnet.datasets import Dataset
from blobnet.datasets.class_names import numbers_in
from blobnet.datasets.dataset import are_names, ignored_label
from blobnet.datasets.loading import are_pictures
from blobnet.datasets.named_data import NamedData, NamedDataset, read_named
from blobnet.datasets.picture_labels import CLASSES, NUMBERS, SEVERAL
from blobnet.datasets.source import Source, UnitsFirst
from blobnet.datasets.splits import numbered_as, targets_as
from blobnet.errors import DataError, OptionError, near_matches
from blobnet.losses import BinaryCrossEntropy, CenterNet, CrossEntropy, Loss, MeanSquaredError
from blobnet.losses.center_net import BOX_NAMES
from blobnet.model import Model
from blobnet.network.ends import heads_of, to_dict
from blobnet.network.graph import Graph
from blobnet.support.unit_axes import TO_FIRST, with_units_first
from blobnet.training.arguments import losses_for

#: Options that say how the data are read.
OF_DATA = ("data_folder", "image_size", "workers", "skip_unreadable", "labels", "columns", "shuffle_buffer")


def load_dataset(
    options: argparse.Namespace, model: Model | None = None, keeps_kind: bool = True
) -> Dataset | NamedData:
    """The data set that --dataset names, as --data-folder, --image-size, --workers and others say.

    A file of arrays with names of their own is for a model whose inputs and outputs have these names. Pictures become
    gray or RGB, and get the size, as a ``model`` takes them, but for what --image-size says. With ``keeps_kind`` their
    labels are of the kind that the model was trained for, but for what --labels says.
    """
    is_plain = options.dataset in datasets.known_names() or any(getattr(options, name) for name in OF_DATA)
    named = None if is_plain else read_named(Path(options.dataset).expanduser())
    if named is not None:
        return named
    return load_plain_dataset(options, model, keeps_kind)


def load_plain_dataset(options: argparse.Namespace, model: Model | None = None, keeps_kind: bool = True) -> Dataset:
    """The same for what works with samples x and labels y alone."""
    shape = model.graph.input.shape if model and len(model.graph.entries) == 1 else None
    size, units = options.image_size, None
    if shape is not None and shape.rank == 2 and are_pictures(options.dataset):
        height, width = shape.dimensions[1:]
        size, units = size or (height, width), shape.units if shape.units in (1, 3) else None
    kind = options.labels
    if kind is None and keeps_kind and model is not None and are_pictures(options.dataset):
        kind = kind_of_labels(model)
    data = datasets.load(
        options.dataset,
        folder=options.data_folder,
        size=size,
        workers=options.workers,
        skip_unreadable=options.skip_unreadable,
        units=units,
        labels=kind,
        columns=options.columns,
        shuffle_buffer=options.shuffle_buffer,
    )
    if options.labels and (data.has_boxes or data.positions):
        others = "boxes" if data.has_boxes else "masks"
        rule = f"it is for classes, labels and numbers of pictures, and these have {others}"
        raise OptionError("--labels", rule, data=options.dataset, labels=options.labels, hint="leave it out.")
    if model is None or shape is None:
        return data
    splits = {name: getattr(data, name) for name in ("train", "validation", "test")}
    turned = {name: replace(own, x=units_first(own.x, model.graph, data.name)) for name, own in splits.items() if own}
    return replace(data, **turned)


def kind_of_labels(model: Model) -> str | None:
    """The kind of labels of pictures that a model was trained for; None where nobody knows."""
    kind: str | None = None
    if isinstance(model.loss, Loss) and not model.graph.output.shape.rank:
        kind = SEVERAL if isinstance(model.loss, BinaryCrossEntropy) else NUMBERS
        kind = CLASSES if model.loss.takes_classes else kind
    return kind


def target_loss(data: Dataset) -> Loss:
    """The loss of targets where nobody says another one."""
    return BinaryCrossEntropy() if data.has_several else MeanSquaredError()


def as_numbered_by(model: Model, data: Dataset) -> Dataset:
    """The data set with its classes, labels or numbers in the order of the model's, by their names."""
    return _with_classes_of(model, data) if data.class_names else with_targets_of(model, data)


def _with_classes_of(model: Model, data: Dataset) -> Dataset:
    """The data set with its classes numbered as the model's, by their names, or by the numbers that they are called.

    A model may have classes besides; one without names has numbers.

    Raises:
        DataError: some classes have names of the model's, and others do not.
    """
    theirs, units = data.class_names, model.graph.output.shape.units
    ours = model.class_names or tuple(map(str, range(units)))
    if ours[: data.classes] == theirs:
        return data
    numbers = numbers_in(theirs, ours)
    foreign = [name for name in theirs if name not in ours]
    if numbers is None and are_names(theirs) and len(foreign) < len(theirs):
        rule = "its classes must have the names of the model's, or all of them other names"
        raise DataError(data.name, rule, foreign=short_list(foreign), model=short_list([*ours]))
    if foreign:
        known = f"are {short_list([*ours])}" if model.class_names else "have no names"
        said = f"the classes of {data.name} are {short_list([*theirs])}; those of the model {known}"
        print(f"note: {said}; they are compared by their numbers", file=sys.stderr)
    return data if numbers is None else numbered_as(data, numbers, ours)


def with_targets_of(model: Model, data: Dataset) -> Dataset:
    """The data set with its targets in the order of the model's, by their names.

    Of several labels those that no picture has may be missing.

    Raises:
        DataError: the names are others.
    """
    ours, theirs = model.class_names, data.target_names
    if not theirs or not ours or ours == theirs or (not data.has_several and len(ours) == len(theirs) == 1):
        return data
    foreign = [name for name in theirs if name not in ours]
    missing = [] if data.has_several else [name for name in ours if name not in theirs]
    if foreign or missing:
        rule = f"its {'labels' if data.has_several else 'numbers'} must have the names of the model's"
        hint = f"--columns {','.join(ours)}, say, names the columns of a CSV file." if missing else None
        raise DataError(data.name, rule, labels=short_list([*theirs]), model=short_list([*ours]), hint=hint)
    return targets_as(data, ours)


def metrics_for(options: argparse.Namespace, data: Dataset | NamedDataset) -> tuple[str, ...]:
    """The names of what is measured besides the loss: that of --metrics, else what is usual for such targets."""
    if options.metrics is not None or isinstance(data, NamedDataset) or not data.target_names:
        return options.metrics or ()
    return ("average_precision", "f1") if data.has_several else ("mae", "r2")


def units_first(x: Any, graph: Graph, subject: str) -> Any:
    """Samples (N, ...); those of (height, width, units) as (units, height, width), where a model takes only these."""
    wanted = graph.input.shape.dimensions
    sample = tuple(x.shape[1:])
    if sample == wanted or with_units_first(sample, wanted[0]) != wanted:
        return x
    said = f"the samples of {subject} are (height, width, units); the model gets them as (units, height, width)"
    print(f"note: {said}", file=sys.stderr)
    return UnitsFirst(x) if isinstance(x, Source) else x.transpose(TO_FIRST)


def fitted(options: argparse.Namespace, model: Model, data: Dataset | NamedData) -> tuple[Any, Any]:
    """Return a data set as it is for a model, with classes, labels or numbers in the model's order; and its loss.

    Of arrays that go by names the losses are by the outputs' names, where there are several.

    Raises:
        DataError: the data set does not fit the model.
    """
    if isinstance(data, NamedData):
        named = dataset_for(model, data)
        return named, to_dict(model.graph.outputs, evaluation_losses(model, named))
    check_input(model, data, options)
    check_output(model, data)
    data = as_numbered_by(model, data)
    return data, evaluation_loss(model, data)


def dataset_for(model: Model, data: NamedData) -> NamedDataset:
    """The arrays of a model's inputs and outputs, with every array looked at that lies in memory.

    Raises:
        DataError: an array is missing, or cannot be what its name says.
    """
    found = data.dataset(model.graph.inputs, model.graph.outputs)
    for part, split in (("", found.train), (" (validation)", found.validation), (" (test)", found.test)):
        if split is not None:
            for source in sources_for(model.graph, split.x, f"{data.subject}{part}"):
                source.check_all()
    return found


def losses_of(model: Model, data: NamedDataset, chosen: str | Mapping[str, str] | None = None) -> tuple[Loss, ...]:
    """The loss of each output: that which was chosen, else by the type of its labels.

    Args:
        model: whose outputs.
        data: whose labels: whole numbers are classes, others targets.
        chosen: names of losses, by those of outputs; for a single output the name itself.

    Raises:
        OptionError: a loss for no output, or one that does not take such labels.
    """
    names = list(model.graph.outputs)
    if isinstance(chosen, str):
        if len(names) > 1:
            hint = f"--loss {','.join(f'{name}={chosen}' for name in names)}"
            raise OptionError("--loss", "with several outputs it must say whose loss it is", loss=chosen, hint=hint)
        chosen = {names[0]: chosen}
    for name in chosen or ():
        if name not in names:
            rule = "each name must be that of an output of the model"
            raise OptionError("--loss", rule, name=name, outputs=", ".join(names), hint=near_matches(name, names))
    found: list[Loss] = []
    for name in names:
        has_classes = data.train.y[name].dtype.kind != "f"
        given = (chosen or {}).get(name)
        kind = Loss.named(given or "") or (CrossEntropy if has_classes else MeanSquaredError)
        if has_classes and model.graph.outputs[name].shape.units == 1:
            rule = "whole numbers are classes, which take an output of at least 2 units"
            received = {"output": model.graph.outputs[name].shape, "dtype": data.train.y[name].dtype}
            hint = "targets must be of a float type: y.astype(numpy.float32)"
            raise DataError(f"{data.name}, {name}", rule, **received, hint=hint)
        if kind.takes_classes != has_classes:
            wanted = "whole numbers, the classes" if kind.takes_classes else "of a float type, targets"
            raise OptionError(
                "--loss", f"the labels {name} must be {wanted}", loss=given, dtype=data.train.y[name].dtype
            )
        found.append(_ignoring(kind(), model, name))
    return tuple(found)


def check_labels(model: Model, losses: Sequence[Loss], data: NamedDataset) -> None:
    """Raises DataError for labels in memory, of any split, that are not what the losses take."""
    heads = heads_of(model.graph, tuple(losses))
    for part, split in (("", data.train), (" (validation)", data.validation), (" (test)", data.test)):
        if split is not None:
            labels_for(heads, (len(split), 1), split.y, f"{data.name}{part}")


def evaluation_losses(model: Model, data: NamedDataset) -> tuple[Loss, ...]:
    """Return the losses that a model is measured with: those of its training, if there was one."""
    if model.loss is None:
        return losses_of(model, data)
    known = losses_for(model.graph, None, model.loss)
    return tuple(_ignoring(loss, model, name) for name, loss in zip(model.graph.outputs, known, strict=True))


def _ignoring(loss: Loss, model: Model, output: str) -> Loss:
    """A loss that leaves out what labels in files leave out."""
    shape = model.graph.outputs[output].shape
    return loss.ignoring(ignored_label(shape.dimensions[1:], shape.units) if loss.takes_classes else None)


def check_ends(model: Model, data: Dataset) -> None:
    """Raises DataError where samples x and labels y are to serve several inputs or outputs."""
    if len(model.graph.entries) + len(model.graph.exits) > 2:
        rule = "a model with several inputs or outputs takes a file with an array for each of them, of its name"
        ends = {"inputs": ", ".join(model.graph.inputs), "outputs": ", ".join(model.graph.outputs)}
        hint = f"numpy.savez(file, {', '.join(f'{name}=...' for name in (*model.graph.inputs, *model.graph.outputs))})"
        raise DataError(data.name, rule, **ends, hint=hint)


def check_input(model: Model, data: Dataset, options: argparse.Namespace) -> None:
    """Raises DataError unless the samples have the shape of the model's input."""
    check_ends(model, data)
    wanted = model.graph.input.shape.dimensions
    if data.shape != wanted:
        rule = "each sample must have the shape of the model's input"
        resizes = len(wanted) == 3 and are_pictures(options.dataset)
        hint = f"--image-size {wanted[1]}x{wanted[2]} resizes pictures to the model's size." if resizes else None
        raise DataError(data.name, rule, sample=data.shape, input=wanted, hint=hint)


def normalize(model: Model, statistics: Any) -> None:
    """Sets the mean and deviation of the model's input, or of several by their names, but where it takes numbers."""
    for name, own in _by_input(model, statistics).items():
        if not model.graph.holds_numbers(model.graph.inputs[name]):
            model.set_normalization(*own, input=name)


def was_trained_on(model: Model, data: Dataset | NamedDataset) -> bool:
    """Return True if a model normalises by the statistics of a training split, as after a training on it."""
    graph = model.graph
    pairs = [
        (model.weights[graph.inputs[name].parameter(kind)], own)
        for name, statistics in _by_input(model, data.statistics()).items()
        for kind, own in zip(("mean", "deviation"), statistics, strict=True)
        if not graph.holds_numbers(graph.inputs[name])
    ]
    return all(np.allclose(theirs, own, rtol=1e-5, atol=1e-6) for theirs, own in pairs)


def _by_input(model: Model, statistics: Any) -> Mapping[str, Any]:
    return statistics if isinstance(statistics, Mapping) else {next(iter(model.graph.inputs)): statistics}


def check_output(model: Model, data: Dataset) -> None:
    """Raises DataError where the data have a class for each position, and the model's output has others, or none."""
    output = model.graph.output.shape
    units = len(data.class_names) + len(BOX_NAMES)
    if data.has_boxes and (output.rank != 2 or output.units < units):
        rule = "the model must give a unit for each class and four for boxes, with a height and a width"
        raise DataError(data.name, rule, classes=data.classes, output=output, hint="train centernet.")
    if data.positions and data.positions != output.dimensions[1:]:
        rule = "the model must give a logit of each class at each position of the masks"
        hint = "train unet, or end a model of your own with Conv2D(classes, 1)."
        raise DataError(data.name, rule, masks=data.positions, output=output, hint=hint)


def evaluation_loss(model: Model, data: Dataset) -> Loss:
    """Return the loss that a model is measured with on a data set: that of its training, if there was one."""
    if model.loss is None and not data.classes:
        return target_loss(data)
    if data.has_boxes:
        return loss_of_boxes(data)
    return losses_for(model.graph, None, model.loss)[0].ignoring(data.ignored_label)


def loss_of_boxes(data: Dataset) -> CenterNet:
    """Return the loss for a data set's boxes, however many a picture has."""
    splits = (data.train, data.validation, data.test)
    return CenterNet(boxes=max(CenterNet().boxes, *(split.y.shape[1] for split in splits if split)))


def check_classes(data: Dataset) -> None:
    """Raises DataError where there is nothing to tell apart."""
    if data.classes == 1 and not data.has_boxes:
        rule = "there must be samples of at least two classes, to learn what tells them apart"
        hint = "a folder of pictures holds one folder for each class, or the folders images and masks."
        raise DataError(data.name, rule, classes=data.class_names[0], hint=hint)
