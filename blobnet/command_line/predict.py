"""``blobnet predict``: what a model in a file makes of pictures."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blobnet.blob import FloatArray
from blobnet.checkpoint import check_writable
from blobnet.command_line.text import plain
from blobnet.datasets import read_image
from blobnet.datasets.image_folder import PICTURE_SUFFIXES
from blobnet.device import Device
from blobnet.errors import BlobnetError, FileError, OptionError
from blobnet.losses import CrossEntropy
from blobnet.model import Model, load

#: Pictures that are read and predicted at a time.
_CHUNK = 256


@dataclass(frozen=True)
class _Answer:
    """What the model makes of a picture: its outputs, and their probabilities where they are logits of classes."""

    file: str
    outputs: FloatArray
    scores: FloatArray | None


def run(options: argparse.Namespace) -> int:
    """Prints a line for every picture, or writes files; one that cannot be read costs status 1, and not the others."""
    model = load(options.file)
    shape, output = model.graph.input.shape, model.graph.output.shape
    if shape.rank != 2 or output.rank:
        rule = "the model must take images and give a value for each class"
        raise OptionError(str(options.file), rule, input=shape, output=output, hint="use Model.predict in Python.")
    written = {"csv": options.csv, "json": options.json}
    _check_paths(options, written)
    failures: list[BlobnetError] = []
    names = list(_pictures(options.images, failures))
    answers = _answers(model, names, Device(options.device), options.precision, failures)
    if not any(written.values()):
        width = max((len(plain(name)) for name in names), default=0)
        for answer in answers:
            print(f"{plain(answer.file):<{width}}  {_described(model, answer, options.top)}")
        return int(bool(failures))
    rows = [_row(model, answer) for answer in answers]
    if options.csv:
        _write(options.csv, lambda file: _write_csv(file, model, rows))
    if options.json:
        _write(options.json, lambda file: json.dump(rows, file, indent=1, ensure_ascii=False))
    targets = " and ".join(str(path) for path in written.values() if path)
    print(f"{len(rows)} pictures; saved {targets}")
    return int(bool(failures))


def _check_paths(options: argparse.Namespace, written: Mapping[str, Path | None]) -> None:
    """Refuses files that cannot be written, or that would destroy others."""
    read = {os.path.realpath(name) for name in (options.file, *options.images)}
    for option, path in written.items():
        if path is None:
            continue
        if os.path.realpath(path) in read:
            raise OptionError(f"--{option}", "it must name a file of its own", file=path)
        read.add(os.path.realpath(path))
        check_writable(path, 0)


def _pictures(names: list[str], failures: list[BlobnetError]) -> Iterator[str]:
    """The files, and all pictures in the folders among them, sorted; what is not there is reported."""
    for name in names:
        path = Path(name)
        try:
            if not path.exists():
                raise FileError(name, "there must be such a file")
            if not path.is_dir():
                yield name
                continue
            suffixes = (*PICTURE_SUFFIXES, ".npy")
            found = sorted(item for item in path.rglob("*") if item.suffix.lower() in suffixes and item.is_file())
            shown = [item for item in found if not any(part.startswith(".") for part in item.relative_to(path).parts)]
            if not shown:
                raise FileError(name, "the folder must hold pictures", looked_for=", ".join(suffixes))
            yield from map(str, shown)
        except BlobnetError as error:
            _report(error, failures)


def _answers(
    model: Model, names: list[str], device: Device, precision: str, failures: list[BlobnetError]
) -> Iterator[_Answer]:
    """What the model makes of the pictures that can be read."""
    # A model that was saved without its loss, but with names of classes, gives logits of them.
    loss = model.loss or (CrossEntropy() if model.class_names else None)
    for first in range(0, len(names), _CHUNK):
        read, samples = [], []
        for name in names[first : first + _CHUNK]:
            try:
                samples.append(read_image(name, model.graph.input.shape.dimensions))
                read.append(name)
            except BlobnetError as error:
                _report(error, failures)
        if read:
            outputs = model.predict(np.stack(samples), device=device, precision=precision)
            scores = loss.scores(outputs) if loss else None
            for number, name in enumerate(read):
                yield _Answer(name, outputs[number], None if scores is None else scores[number])


def _report(error: BlobnetError, failures: list[BlobnetError]) -> None:
    print(f"error: {error}", file=sys.stderr)
    failures.append(error)


def _class_names(model: Model) -> list[str]:
    return [*model.class_names] or [str(unit) for unit in range(model.graph.output.shape.units)]


def _described(model: Model, answer: _Answer, top: int) -> str:
    """The best classes with their probabilities; plain numbers where the outputs are no classes."""
    scores = answer.scores
    if scores is None:
        return "  ".join(f"{value:.4g}" for value in answer.outputs)
    names = [plain(name) for name in _class_names(model)]
    best = np.argsort(-scores, kind="stable")[:top]
    width = max(map(len, names))
    return "  ".join(f"{names[unit]:<{width}} {scores[unit]:.4f}" for unit in best)


# -- files -------------------------------------------------------------------------------------------------------------


def _row(model: Model, answer: _Answer) -> dict[str, Any]:
    """An answer as plain data: the best class and the probabilities of all, or the outputs."""
    if answer.scores is None:
        return {"file": answer.file, "outputs": [float(value) for value in answer.outputs]}
    names = _class_names(model)
    scores = {name: float(score) for name, score in zip(names, answer.scores, strict=True)}
    return {"file": answer.file, "class": names[int(answer.scores.argmax())], "scores": scores}


def _write_csv(file: Any, model: Model, rows: list[dict[str, Any]]) -> None:
    writer = csv.writer(file)
    has_scores = bool(rows) and "scores" in rows[0]
    writer.writerow(["file", *(["class"] if has_scores else []), *_class_names(model)])
    for row in rows:
        values = [row["class"], *row["scores"].values()] if has_scores else row["outputs"]
        writer.writerow([row["file"], *values])


def _write(path: Path, write: Any) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            write(file)
    except OSError as error:
        raise FileError(str(path), f"the file cannot be written: {error.strerror or error}") from error
