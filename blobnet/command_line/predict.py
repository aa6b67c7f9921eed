"""``blobnet predict``: what a model in a file makes of pictures and samples."""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np

from blobnet.arguments import losses_for
from blobnet.blob import FloatArray
from blobnet.checkpoint import check_writable
from blobnet.command_line.text import plain
from blobnet.datasets import read_image
from blobnet.datasets.file_source import npy_header
from blobnet.datasets.image_folder import PICTURE_SUFFIXES
from blobnet.datasets.source import Source
from blobnet.datasets.user_data import HDF5_SUFFIXES, NPY_SUFFIXES, NPZ_SUFFIXES, holds_npy, read_samples
from blobnet.device import Device
from blobnet.errors import BlobnetError, DataError, FileError, OptionError
from blobnet.graph import Graph
from blobnet.model import Model, load
from blobnet.samples import samples_for

#: Pictures that are read and predicted at a time.
_CHUNK = 256

#: Writes an answer as plain data.
_Writer: TypeAlias = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class _Answer:
    """What the model makes of a picture: its outputs, and their probabilities where they are logits of classes."""

    file: str
    outputs: FloatArray
    scores: FloatArray | None


def run(options: argparse.Namespace) -> int:
    """Prints a line for every sample, or writes files; what cannot be read costs status 1, and not the others."""
    model = load(options.file)
    output = model.graph.output.shape
    if output.rank:
        rule = "the model must give a value for each class"
        raise OptionError(str(options.file), rule, output=output, hint="use Model.predict in Python.")
    written = {"csv": options.csv, "json": options.json}
    _check_paths(options, written)
    failures: list[BlobnetError] = []
    inputs = list(_inputs(options.images, model, failures))
    has_pictures = any(each.samples is None for each in inputs)
    if has_pictures and model.graph.input.shape.rank != 2:
        rule = "for pictures, the model must take images"
        hint = "a .npz, HDF5 or .npy file holds other samples."
        raise OptionError(str(options.file), rule, input=model.graph.input.shape, hint=hint)
    answers = _answers(model, inputs, Device(options.device), options.precision, failures)
    if not any(written.values()):
        width = max((len(plain(each.last)) for each in inputs), default=0)
        for answer in answers:
            print(f"{plain(answer.file):<{width}}  {_described(model, answer, options.top)}")
        return int(bool(failures))
    count = 0
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(write(path, model))
            for path, write in ((options.csv, _csv_file), (options.json, _json_file))
            if path
        ]
        for answer in answers:
            row = _row(model, answer)
            for write in writers:
                write(row)
            count += 1
    targets = " and ".join(str(path) for path in written.values() if path)
    print(f"{count} {'pictures' if has_pictures else 'samples'}; saved {targets}")
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


@dataclass(frozen=True)
class _Input:
    """A picture; or a file of samples, which answers call by its name and their numbers."""

    name: str
    samples: Source | None = None

    @property
    def last(self) -> str:
        """The longest name of an answer."""
        return self.name if self.samples is None else f"{self.name}[{len(self.samples) - 1}]"


def _inputs(names: list[str], model: Model, failures: list[BlobnetError]) -> Iterator[_Input]:
    """The files, and all pictures in the folders among them, sorted; what is not there is reported."""
    for name in names:
        path = Path(name)
        try:
            if not path.exists():
                raise FileError(name, "there must be such a file")
            if not path.is_dir() or holds_npy(path):
                yield _Input(name, _samples(path, model.graph))
                continue
            suffixes = (*PICTURE_SUFFIXES, *NPY_SUFFIXES)
            found = sorted(item for item in path.rglob("*") if item.suffix.lower() in suffixes and item.is_file())
            shown = [item for item in found if not any(part.startswith(".") for part in item.relative_to(path).parts)]
            if not shown:
                raise FileError(name, "the folder must hold pictures", looked_for=", ".join(suffixes))
            for item in shown:
                yield _Input(str(item))
        except BlobnetError as error:
            _report(error, failures)


def _samples(path: Path, graph: Graph) -> Source | None:
    """The samples in a file of many; None if it is one picture."""
    suffix, axes = path.suffix.lower(), 0
    if suffix in NPY_SUFFIXES:
        with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
            axes = len(npy_header(file)[0])
    # An array with an axis more than a sample holds samples.
    is_data = path.is_dir() or suffix in (*NPZ_SUFFIXES, *HDF5_SUFFIXES) or axes == graph.input.shape.rank + 2
    return samples_for(graph, read_samples(path), str(path)) if is_data else None


def _answers(
    model: Model, inputs: list[_Input], device: Device, precision: str, failures: list[BlobnetError]
) -> Iterator[_Answer]:
    """What the model makes of the pictures that can be read, and of samples."""
    # A model that was saved without its loss, but with names of classes, gives logits of them.
    loss = losses_for(model.graph, None, model.loss)[0] if model.loss or model.class_names else None
    settings: dict[str, Any] = {"device": device, "precision": precision}

    def answers(names: Iterable[str], outputs: FloatArray) -> Iterator[_Answer]:
        scores = loss.scores(outputs) if loss else None
        for number, name in enumerate(names):
            yield _Answer(name, outputs[number], None if scores is None else scores[number])

    for is_picture, group in itertools.groupby(inputs, lambda each: each.samples is None):
        if is_picture:
            for names, pictures in _read([each.name for each in group], model, failures):
                yield from answers(names, model.predict(pictures, **settings))
            continue
        for each in group:
            try:
                done = 0
                for outputs in model.predict_batches(each.samples, **settings):
                    yield from answers((f"{each.name}[{done + n}]" for n in range(len(outputs))), outputs)
                    done += len(outputs)
            except (DataError, FileError) as error:
                _report(error, failures)


def _read(names: list[str], model: Model, failures: list[BlobnetError]) -> Iterator[tuple[list[str], Any]]:
    """The pictures that can be read, some at a time, with their names."""
    for first in range(0, len(names), _CHUNK):
        read, samples = [], []
        for name in names[first : first + _CHUNK]:
            try:
                samples.append(read_image(name, model.graph.input.shape.dimensions))
                read.append(name)
            except BlobnetError as error:
                _report(error, failures)
        if read:
            yield read, np.stack(samples)


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


@contextlib.contextmanager
def _csv_file(path: Path, model: Model) -> Iterator[_Writer]:
    """Writes a line a row, below a header."""
    names = _class_names(model)
    with _opened(path) as file:
        writer = csv.writer(file)
        is_begun = False

        def write(row: dict[str, Any]) -> None:
            nonlocal is_begun
            has_scores = "scores" in row
            if not is_begun:
                writer.writerow(["file", *(["class"] if has_scores else []), *names])
                is_begun = True
            writer.writerow([row["file"], *([row["class"], *row["scores"].values()] if has_scores else row["outputs"])])

        yield write
        if not is_begun:
            writer.writerow(["file", *names])


@contextlib.contextmanager
def _json_file(path: Path, model: Model) -> Iterator[_Writer]:
    """Writes a list with a row a line."""
    with _opened(path) as file:
        separator = "[\n"

        def write(row: dict[str, Any]) -> None:
            nonlocal separator
            file.write(separator + json.dumps(row, ensure_ascii=False))
            separator = ",\n"

        yield write
        file.write("[]\n" if separator == "[\n" else "\n]\n")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            yield file
    except BlobnetError:
        raise
    except OSError as error:
        raise FileError(str(path), f"the file cannot be written: {error.strerror or error}") from error
