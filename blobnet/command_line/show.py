"""``blobnet show``: a data set, or a model, as a picture."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blobnet import plots
from blobnet.augment import Augmentation
from blobnet.augment.words import augmentations_of
from blobnet.command_line.data_argument import (
    OF_DATA,
    check_input,
    check_output,
    dataset_for,
    evaluation_loss,
    evaluation_losses,
    load_dataset,
    load_plain_dataset,
    normalize,
)
from blobnet.command_line.model_argument import (
    build_or_load,
    find_model,
    is_model,
    is_model_file,
    known_models,
    open_model,
)
from blobnet.datasets import Dataset, known_names
from blobnet.datasets.named_data import NamedData, NamedDataset
from blobnet.datasets.source import source_of
from blobnet.device.device import Device
from blobnet.errors import FileError, OptionError, near_matches
from blobnet.files.atomic import check_writable
from blobnet.inspection.layer_statistics import layer_spreads
from blobnet.inspection.network_inputs import sample_sheet, statistics
from blobnet.model import Model
from blobnet.network.ends import to_dict

#: Samples of a sheet, where the command line does not say.
_SHEET = 40
#: Options that say nothing of a model alone.
_OF_SAMPLES = ("count", *OF_DATA)


def run(options: argparse.Namespace) -> int:
    """Draws a sheet of samples, or what a model is made of."""
    shows_model = is_model(options.what)
    _check_name(options.what)
    augment = None if options.augment is None else augmentations_of(options.augment, "--augment")
    if shows_model:
        if options.augment is not None:
            raise OptionError("--augment", "only the samples of a data set are augmented", what=options.what)
        for name in _OF_SAMPLES:
            if options.dataset is None and getattr(options, name):
                rule = "it is for the samples of --dataset, which a model is run on"
                raise OptionError(f"--{name.replace('_', '-')}", rule, what=options.what)
    elif options.dataset is not None:
        raise OptionError("--dataset", "only a model is run on a data set", what=options.what)
    path = options.plot or Path(f"{_stem(options.what)}-{'layers' if shows_model else 'samples'}.png")
    plots.check(path)
    check_writable(path, 0)
    figure = _network(options) if shows_model else _sheet(options, augment)
    plots.save(figure, path)
    print(f"saved {path}", file=sys.stderr)
    return 0


def _check_name(what: str) -> None:
    """Raises OptionError for a mere name that is none."""
    known = [*known_names(), *known_models()]
    is_name = not Path(what).suffix and len(Path(what).parts) == 1 and not Path(what).exists()
    if is_name and what not in known:
        rule = "it must be a data set, a model file, or one of blobnet's models"
        raise OptionError("WHAT", rule, name=what, hint=near_matches(what, known))


def _sheet(options: argparse.Namespace, augment: Sequence[Augmentation] | None) -> object:
    options.dataset = options.what
    data = _plain_data(options)
    count = options.count or _SHEET
    sheet = sample_sheet(
        data.train.x,
        data.train.y,
        augment=augment,
        count=count,
        seed=options.seed,
        device=Device(options.device),
    )
    print(f"{data}")
    low, high = sheet.values.min(), sheet.values.max()
    print(f"values of the {len(sheet.numbers)} samples shown, normalised: from {low:.4g} to {high:.4g}, ", end="")
    print(f"mean {sheet.values.mean():.4g}, standard deviation {sheet.values.std():.4g}")
    title = f"{len(sheet.numbers)} of {len(data.train):,} training samples of {data.name}"
    return plots.draw_sheet(sheet, data.class_names or data.target_names, title, data.train.files)


def _network(options: argparse.Namespace) -> object:
    title = Path(options.what).name if is_model_file(options.what) else _stem(options.what)
    if options.dataset is None:
        found = layer_spreads(build_or_load(options.what, None))
    else:
        model, data, loss = _on_data(options)
        given = data.train.x, data.train.y
        settings: dict[str, Any] = {"count": options.count, "seed": options.seed, "device": Device(options.device)}
        found = layer_spreads(model, *given, loss=loss, **settings)
        title += f", with {found.samples} samples of {data.name}"
    print(found)
    return plots.draw_network(found, title)


def _on_data(options: argparse.Namespace) -> tuple[Model, Dataset | NamedDataset, Any]:
    """A model, the data set to run it on, and its loss."""
    model = open_model(options.what) if is_model_file(options.what) else None
    given = load_dataset(options, model)
    if isinstance(given, NamedData):
        if model:
            data = dataset_for(model, given)
        else:
            model = find_model(options.what).build_by_name(given.shapes, given.classes, (), options.seed)
            data = dataset_for(model, given)
            found = {name: statistics(source_of(x, name), options.seed) for name, x in data.train.x.items()}
            normalize(model, found)
        return model, data, to_dict(model.graph.outputs, evaluation_losses(model, data))
    model = model or _new_model(options, given)
    check_input(model, given, options)
    check_output(model, given)
    return model, given, evaluation_loss(model, given)


def _new_model(options: argparse.Namespace, data: Dataset) -> Model:
    """A model that is not trained yet, for a data set."""
    model = find_model(options.what).build(
        data.shape, data.classes or math.prod(data.train.y.shape[1:]), (), options.seed
    )
    normalize(model, statistics(source_of(data.train.x, data.name), options.seed))
    return model


def _plain_data(options: argparse.Namespace) -> Dataset:
    try:
        return load_plain_dataset(options)
    except FileError as error:
        if not is_model_file(options.what):
            raise
        rule = "the file must be a model that blobnet wrote, or a data set"
        raise FileError(options.what, rule, reason=str(error).rstrip(".")) from error


def _stem(what: str) -> str:
    """Return a name for a picture of it."""
    name = Path(what.rpartition(":")[2] or what) if ".py" in what else Path(what)
    return name.resolve().stem if name.name in ("", ".", "..") else name.stem
