"""--dataset on the command line, and how its samples fit a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from blobnet import datasets
from blobnet.arguments import losses_for
from blobnet.datasets import Dataset
from blobnet.errors import DataError
from blobnet.losses import Loss, MeanSquaredError
from blobnet.model import Model


def load_dataset(options: argparse.Namespace) -> Dataset:
    """The data set that --dataset names, as --data-folder, --image-size, --workers and --skip-unreadable say."""
    return datasets.load(
        options.dataset,
        folder=options.data_folder,
        size=options.image_size,
        workers=options.workers,
        skip_unreadable=options.skip_unreadable,
    )


def check_input(model: Model, data: Dataset, options: argparse.Namespace) -> None:
    """Raises DataError unless the samples have the shape of the model's input."""
    wanted = model.graph.input.shape.dimensions
    if data.shape != wanted:
        rule = "each sample must have the shape of the model's input"
        hint = _hint(data.shape, wanted) if Path(options.dataset).is_dir() else None
        raise DataError(data.name, rule, sample=data.shape, input=wanted, hint=hint)


def _hint(sample: tuple[int, ...], wanted: tuple[int, ...]) -> str | None:
    """What to do about the pictures of a folder."""
    if sample[0] == wanted[0]:
        return "--image-size resizes the pictures of a folder."
    kinds = {1: "gray", 3: "RGB"}
    ours, theirs = (kinds.get(shape[0]) for shape in (sample, wanted))
    return f"the pictures are {ours}, the model takes {theirs} ones: convert them." if ours and theirs else None


def check_output(model: Model, data: Dataset) -> None:
    """Raises DataError where the data have a class for each position, and the model's output has others, or none."""
    output = model.graph.output.shape
    if data.positions and data.positions != output.dimensions[1:]:
        rule = "the model must give a logit of each class at each position of the masks"
        hint = "end a model of your own with Conv2D(classes, 1)."
        raise DataError(data.name, rule, masks=data.positions, output=output, hint=hint)


def evaluation_loss(model: Model, data: Dataset) -> Loss:
    """What a model is measured with on a data set: the loss of its training, if there was one."""
    if model.loss is None and not data.classes:
        return MeanSquaredError()
    return losses_for(model.graph, None, model.loss)[0].ignoring(data.ignored_label)


def check_classes(data: Dataset) -> None:
    """Raises DataError where there is nothing to tell apart."""
    if data.classes == 1:
        rule = "there must be samples of at least two classes, to learn what tells them apart"
        hint = "a folder of pictures holds one folder for each class, or the folders images and masks."
        raise DataError(data.name, rule, classes=data.class_names[0], hint=hint)
