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
from blobnet.datasets.pictures import image_size, save_mask
from blobnet.datasets.source import Source
from blobnet.datasets.user_data import HDF5_SUFFIXES, NPY_SUFFIXES, NPZ_SUFFIXES, holds_npy, read_samples
from blobnet.device import Device
from blobnet.errors import BlobnetError, DataError, FileError, OptionError
from blobnet.graph import Graph
from blobnet.losses import CrossEntropy, Loss
from blobnet.model import Model, load
from blobnet.samples import samples_for

#: Pictures that are read and predicted at a time, at most, and values of theirs or of answers.
_CHUNK, _CHUNK_ELEMENTS = 256, 1 << 26

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
    _check_output(model, options)
    written = {"csv": options.csv, "json": options.json}
    _check_paths(options, written)
    failures: list[BlobnetError] = []
    inputs = list(_inputs(options.images, model, failures))
    has_pictures = any(each.samples is None for each in inputs)
    if has_pictures and model.graph.input.shape.rank != 2:
        rule = "for pictures, the model must take images"
        hint = "a .npz, HDF5 or .npy file holds other samples."
        raise OptionError(str(options.file), rule, input=model.graph.input.shape, hint=hint)
    if options.masks:
        _check_masks(inputs, options.masks)
    batches = _outputs(model, inputs, Device(options.device), options.precision, failures)
    if options.masks:
        count = _write_masks(batches, options.masks)
    elif any(written.values()):
        count = _write_files(model, batches, options)
    else:
        width = max((len(plain(each.name_of(each.count - 1))) for each in inputs), default=0)
        for answer in _answers(model, batches):
            print(f"{plain(answer.file):<{width}}  {_described(model, answer, options.top)}")
        return int(bool(failures))
    targets = " and ".join(str(path) for path in (*written.values(), options.masks) if path)
    print(f"{count} {'pictures' if has_pictures else 'samples'}; saved {targets}")
    return int(bool(failures))


def _check_output(model: Model, options: argparse.Namespace) -> None:
    """Raises OptionError unless the model's output can be shown as the options ask."""
    output = model.graph.output.shape
    if not options.masks and output.rank:
        rule = "the model must give a value for each class"
        hint = "--masks DIR writes the classes of an image's positions; in Python, Model.predict gives all."
        raise OptionError(str(options.file), rule, output=output, hint=hint)
    loss = _loss(model) or CrossEntropy()
    if options.masks and (output.rank != 2 or not 2 <= output.units <= 256 or not loss.takes_classes):
        rule = "the model must give logits of 2 to 256 classes at each position of an image"
        raise OptionError("--masks", rule, output=output, loss=loss)
    for name in ("csv", "json"):
        if options.masks and getattr(options, name):
            raise OptionError(f"--{name}", "it goes without --masks")


def _loss(model: Model) -> Loss | None:
    """What the outputs are made for; None if they are no logits of classes, as far as is known."""
    if model.loss is None:
        # A model that was saved without its loss, but with names of classes, gives logits of them.
        return CrossEntropy() if model.class_names else None
    return losses_for(model.graph, None, model.loss)[0]


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
    """A picture; or a file of samples, which answers call by its name and their numbers.

    Attributes:
        name: the file.
        place: where it lies in the folder that was named, if one was.
        samples: those in the file; None for a picture.
    """

    name: str
    place: Path
    samples: Source | None = None

    @property
    def count(self) -> int:
        """How many samples it holds."""
        return 1 if self.samples is None else len(self.samples)

    def name_of(self, number: int) -> str:
        """What the answer for a sample of it is called."""
        return self.name if self.samples is None else f"{self.name}[{number}]"

    def mask_of(self, number: int) -> Path:
        """The file of a sample's mask, within the folder of all."""
        return self.place.with_suffix(".png") if self.samples is None else self.place.with_suffix("") / f"{number}.png"


#: Samples, by their numbers in inputs, and what the model makes of them.
_Batch: TypeAlias = tuple[list[tuple[_Input, int]], FloatArray]


def _inputs(names: list[str], model: Model, failures: list[BlobnetError]) -> Iterator[_Input]:
    """The files, and all pictures in the folders among them, sorted; what is not there is reported."""
    for name in names:
        path = Path(name)
        try:
            if not path.exists():
                raise FileError(name, "there must be such a file")
            if not path.is_dir() or holds_npy(path):
                yield _Input(name, Path(path.resolve().name), _samples(path, model.graph))
                continue
            suffixes = (*PICTURE_SUFFIXES, *NPY_SUFFIXES)
            found = sorted(item for item in path.rglob("*") if item.suffix.lower() in suffixes and item.is_file())
            shown = [item for item in found if not any(part.startswith(".") for part in item.relative_to(path).parts)]
            if not shown:
                raise FileError(name, "the folder must hold pictures", looked_for=", ".join(suffixes))
            for item in shown:
                yield _Input(str(item), item.relative_to(path))
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


def _outputs(
    model: Model, inputs: list[_Input], device: Device, precision: str, failures: list[BlobnetError]
) -> Iterator[_Batch]:
    """What the model makes of the pictures that can be read, and of samples."""
    settings: dict[str, Any] = {"device": device, "precision": precision}
    for is_picture, group in itertools.groupby(inputs, lambda each: each.samples is None):
        if is_picture:
            for read, pictures in _read(list(group), model, failures):
                yield [(each, 0) for each in read], model.predict(pictures, **settings)
            continue
        for each in group:
            try:
                done = 0
                for outputs in model.predict_batches(each.samples, **settings):
                    yield [(each, done + number) for number in range(len(outputs))], outputs
                    done += len(outputs)
            except (DataError, FileError) as error:
                _report(error, failures)


def _read(inputs: list[_Input], model: Model, failures: list[BlobnetError]) -> Iterator[tuple[list[_Input], Any]]:
    """The pictures that can be read, some at a time."""
    largest = max(model.graph.input.shape.elements, model.graph.output.shape.elements)
    step = max(1, min(_CHUNK, _CHUNK_ELEMENTS // largest))
    for first in range(0, len(inputs), step):
        read, samples = [], []
        for each in inputs[first : first + step]:
            try:
                samples.append(read_image(each.name, model.graph.input.shape.dimensions))
                read.append(each)
            except BlobnetError as error:
                _report(error, failures)
        if read:
            yield read, np.stack(samples)


def _answers(model: Model, batches: Iterable[_Batch]) -> Iterator[_Answer]:
    loss = _loss(model)
    for samples, outputs in batches:
        scores = loss.scores(outputs) if loss else None
        for row, (each, number) in enumerate(samples):
            yield _Answer(each.name_of(number), outputs[row], None if scores is None else scores[row])


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


# -- masks -------------------------------------------------------------------------------------------------------------


def _check_masks(inputs: list[_Input], folder: Path) -> None:
    """Raises OptionError where masks would replace each other, or a picture."""
    taken = {os.path.realpath(each.name): each.name for each in inputs}
    for each in inputs:
        # The masks of samples have a folder of their own.
        path = folder / each.mask_of(0)
        place = os.path.realpath(path if each.samples is None else path.parent)
        if place in taken:
            rule = "each mask must have a file of its own: that of its picture's name, in another folder"
            raise OptionError("--masks", rule, file=path, picture=each.name, other=taken[place])
        taken[place] = each.name


def _write_masks(batches: Iterable[_Batch], folder: Path) -> int:
    """Writes the most probable class of each position, in the sizes of the pictures; how many masks there are."""
    count = 0
    for samples, outputs in batches:
        for (each, number), output in zip(samples, outputs, strict=True):
            path = folder / each.mask_of(number)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(str(path.parent), f"the folder cannot be made: {error.strerror or error}") from error
            size = None if each.samples is not None else image_size(each.name)
            save_mask(path, output.argmax(axis=0).astype(np.uint8), size)
            count += 1
    return count


# -- files -------------------------------------------------------------------------------------------------------------


def _write_files(model: Model, batches: Iterable[_Batch], options: argparse.Namespace) -> int:
    """Writes all answers; how many there are."""
    count = 0
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(write(path, model))
            for path, write in ((options.csv, _csv_file), (options.json, _json_file))
            if path
        ]
        for answer in _answers(model, batches):
            row = _row(model, answer)
            for write in writers:
                write(row)
            count += 1
    return count


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
