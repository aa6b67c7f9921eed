"""--dataset on the command line, and how its samples fit a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from blobnet import datasets
from blobnet.datasets import Dataset
from blobnet.errors import DataError
from blobnet.model import Model


def load_dataset(options: argparse.Namespace) -> Dataset:
    """The data set that the options --dataset, --data-folder and --image-size name."""
    return datasets.load(options.dataset, folder=options.data_folder, size=options.image_size)


def check_input(model: Model, data: Dataset, options: argparse.Namespace) -> None:
    """Raises DataError unless the samples have the shape of the model's input."""
    wanted = model.graph.input.shape.dimensions
    if data.shape != wanted:
        rule = "each sample must have the shape of the model's input"
        hint = "--image-size resizes the pictures of a folder." if Path(options.dataset).is_dir() else None
        raise DataError(data.name, rule, sample=data.shape, input=wanted, hint=hint)
