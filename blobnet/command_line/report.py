"""``blobnet report``: a page that shows a model and what it does on a data set."""

from __future__ import annotations

import argparse
from typing import Any

from blobnet import card
from blobnet.command_line.data_argument import fitted, load_dataset, metrics_for
from blobnet.command_line.evaluate import split_to_measure
from blobnet.command_line.model_argument import open_model
from blobnet.datasets import Dataset
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.model import Model


def run(options: argparse.Namespace) -> int:
    """Writes the page."""
    path = options.output or options.file.with_suffix(".html")
    if path.resolve() == options.file.resolve():
        raise OptionError("--output", "it must not name the model's file", file=path)
    model = open_model(options.file, pretrained=options.pretrained, needs_head=True)
    given = {} if options.dataset is None else _of_data(options, model)
    card.report(
        model,
        path,
        title=options.title or options.file.name,
        license=options.license or "",
        augment=options.augment,
        count=options.count,
        batch_size=options.batch_size,
        timing=not options.no_timing,
        device=Device(options.device),
        **given,
    )
    print(f"saved {path}")
    return 0


def _of_data(options: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Return what a report takes of a data set."""
    data, loss = fitted(options, model, load_dataset(options, model))
    split = split_to_measure(model, data)
    given = {"x": split.x, "y": split.y, "loss": loss, "data": str(data), "metrics": metrics_for(options, data)}
    if isinstance(data, Dataset):
        given |= {"files": split.files, "training": (data.train.x, data.train.y)}
    return given
