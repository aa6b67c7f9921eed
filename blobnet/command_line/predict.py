"""``blobnet predict``: what a model in a file makes of pictures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from blobnet.blob import FloatArray
from blobnet.command_line.text import plain
from blobnet.datasets import read_image
from blobnet.device import Device
from blobnet.errors import BlobnetError, FileError, OptionError
from blobnet.losses import CrossEntropy
from blobnet.model import Model, load

#: Pictures that are read and predicted at a time.
_CHUNK = 256


def run(options: argparse.Namespace) -> int:
    """Prints a line for every picture; one that cannot be read costs status 1, and not the others' lines."""
    model = load(options.file)
    shape, output = model.graph.input.shape, model.graph.output.shape
    if shape.rank != 2 or output.rank:
        rule = "the model must take images and give a value for each class"
        raise OptionError(str(options.file), rule, input=shape, output=output, hint="use Model.predict in Python.")
    device = Device(options.device)
    width = max(len(plain(name)) for name in options.images)
    failed = False
    for first in range(0, len(options.images), _CHUNK):
        names, samples = [], []
        for name in options.images[first : first + _CHUNK]:
            try:
                if not Path(name).exists():
                    raise FileError(name, "there must be such a file")
                samples.append(read_image(name, shape.dimensions))
                names.append(name)
            except BlobnetError as error:
                print(f"error: {error}", file=sys.stderr)
                failed = True
        if names:
            values = model.predict(np.stack(samples), device=device, precision=options.precision)
            for name, row in zip(names, values, strict=True):
                print(f"{plain(name):<{width}}  {_described(model, row, options.top)}")
    return int(failed)


def _described(model: Model, values: FloatArray, top: int) -> str:
    """The best classes with their probabilities; plain numbers where the outputs are no classes."""
    # A model that was saved without its loss, but with names of classes, gives logits of them.
    loss = model.loss or (CrossEntropy() if model.class_names else None)
    batch = loss.scores(values[None]) if loss else None
    if batch is None:
        return "  ".join(f"{value:.4g}" for value in values)
    scores = batch[0]
    names = [plain(name) for name in model.class_names] or [str(unit) for unit in range(len(values))]
    best = np.argsort(-scores, kind="stable")[:top]
    width = max(map(len, names))
    return "  ".join(f"{names[unit]:<{width}} {scores[unit]:.4f}" for unit in best)
