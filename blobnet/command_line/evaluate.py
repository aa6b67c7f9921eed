"""``blobnet evaluate``: how good a model in a file is on a data set."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from blobnet import plots
from blobnet.checkpoint import check_writable
from blobnet.command_line.data_argument import check_input, check_output, evaluation_loss, load_dataset
from blobnet.command_line.text import short_list
from blobnet.device import Device
from blobnet.mistakes import worst_mistakes
from blobnet.model import load

_NAMES = {"loss": "loss", "accuracy": "accuracy", "top_5": "top-5"}


def run(options: argparse.Namespace) -> int:
    """Prints the metrics over the test split, or over all samples where there is none."""
    for name, path in (("--matrix", options.matrix), ("--mistakes", options.mistakes)):
        if path is not None:
            plots.check(path, name)
            check_writable(path, 0)
    model = load(options.file)
    device = Device(options.device)
    data = load_dataset(options)
    check_input(model, data, options)
    check_output(model, data)
    # A model may have classes besides those of the data.
    if model.class_names and data.class_names and model.class_names[: data.classes] != data.class_names:
        theirs, ours = short_list([*data.class_names]), short_list([*model.class_names])
        print(f"note: the classes of {data.name} are {theirs}; those of the model are {ours}", file=sys.stderr)
    part = "test samples" if data.test else "samples, all that there are: the data set has no test split"
    split = data.test or data.train
    loss = evaluation_loss(model, data)
    settings: dict[str, Any] = {"batch_size": options.batch_size, "device": device, "precision": options.precision}
    measured = model.evaluate(split.x, split.y, loss=loss, **settings)
    print(f"{data.name}, {len(split)} {part}", file=sys.stderr)
    for name, value in measured.items():
        print(f"{_NAMES[name]:<9} {value:.4f}")
    if options.report or options.matrix is not None:
        report = model.report(split.x, split.y, loss=loss, **settings)
        if options.report:
            print(f"\n{report}")
        if options.matrix is not None:
            title = f"{options.file.stem} on {data.name}"
            plots.save(plots.confusion(report.matrix, report.class_names, title), options.matrix)
            print(f"saved {options.matrix}", file=sys.stderr)
    if options.mistakes is not None:
        found = worst_mistakes(model, split.x, split.y, loss=loss, **settings)
        if found.worst:
            plots.save(plots.draw_mistakes(found, f"{options.file.stem} on {data.name}"), options.mistakes)
            print(f"saved {options.mistakes}", file=sys.stderr)
        else:
            print(f"no mistakes, {options.mistakes} is not drawn", file=sys.stderr)
    return 0
