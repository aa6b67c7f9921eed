"""``blobnet predict``: what a model in a file makes of pictures and samples."""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet.command_line import predict_session
from blobnet.command_line.data_argument import units_first
from blobnet.command_line.model_argument import open_model
from blobnet.command_line.predict_session import pictures_in, report, write_npz
from blobnet.command_line.text import plain
from blobnet.data.samples import samples_for, sources_for
from blobnet.datasets import read_image
from blobnet.datasets.array_files import format_of
from blobnet.datasets.file_source import npy_shape
from blobnet.datasets.named_data import read_named
from blobnet.datasets.picture_labels import SEPARATOR
from blobnet.datasets.pictures import image_size, read_picture, save_boxes, save_mask, save_picture
from blobnet.datasets.source import Source
from blobnet.datasets.user_data import NPY_SUFFIXES, has_arrays, holds_npy, read_samples
from blobnet.device.device import Device
from blobnet.errors import BlobnetError, DataError, FileError, OptionError, counted
from blobnet.explain import check_explains, explain_pictures, gives_numbers, overlay
from blobnet.files.atomic import check_writable
from blobnet.losses import CenterNet, CrossEntropy, Loss, MeanSquaredError
from blobnet.losses.center_net import BOX_UNITS, boxes_of, check_gives_boxes
from blobnet.memory.blob import FloatArray, Shape
from blobnet.model import Model
from blobnet.network.ends import to_dict
from blobnet.network.graph import Graph
from blobnet.onnx.operation import OpenAxisError, UnsupportedError
from blobnet.parallel.world import World, device_of_rank
from blobnet.training.arguments import losses_for

#: Pictures that are read and predicted at a time, at most, and values of theirs or of answers.
_CHUNK, _CHUNK_ELEMENTS = 256, 1 << 26

#: The least score of a box, unless --score says it.
_LEAST = 0.3

#: Writes an answer.
_Writer: TypeAlias = Callable[["_Answer"], None]


@dataclass(frozen=True)
class _Head:
    """An output of the model.

    Attributes:
        name: the output's.
        shape: of its values for a sample.
        loss: what it is made for; None if it gives no logits of classes, as far as is known.
        units: the names of its units.
        has_names: whether the model gives these, and they are not numbers for want of them.
    """

    name: str
    shape: Shape
    loss: Loss | None
    units: list[str]
    has_names: bool = False

    @property
    def has_several(self) -> bool:
        """Whether its units are labels with names, of which a sample may have several."""
        return self.loss is not None and not self.loss.takes_classes and self.has_names

    def scores(self, outputs: FloatArray) -> npt.NDArray[np.float64] | None:
        """Return the probabilities of outputs (N, units, ...); None where they are no logits of classes."""
        return self.loss.scores(outputs) if self.loss else None

    def columns(self, prefix: str) -> list[str]:
        """Return the names of its columns in a table."""
        has_scores = self.scores(np.zeros((1, *self.shape.dimensions), np.float32)) is not None
        return [
            f"{prefix}{name}"
            for name in (*(["labels" if self.has_several else "class"] if has_scores else []), *self.units)
        ]


@dataclass(frozen=True)
class _Said:
    """The answer for a sample at one output: numbers, and probabilities where they are logits of classes."""

    head: _Head
    outputs: FloatArray
    scores: npt.NDArray[np.float64] | None


@dataclass(frozen=True)
class _Answer:
    """The answers for a picture, at each output of the model."""

    file: str
    said: tuple[_Said, ...]


def run(options: argparse.Namespace) -> int:
    """Prints a line for every sample, or writes files; what cannot be read costs status 1, and not the others."""
    written, world = {"csv": options.csv, "json": options.json, "npz": options.npz}, World.started()
    try:
        model = open_model(options.file, pretrained=options.pretrained, needs_head=True)
    except (OpenAxisError, UnsupportedError):
        if not world.is_first:  # A session has no batches to share.
            return 0
        _check_paths(options, written)
        with World.alone():
            return predict_session.run(options)
    heads = _heads(model)
    _check_outputs(model, heads, options)
    if world.is_first:
        _check_paths(options, written)
    failures: list[BlobnetError] = []
    inputs = list(_inputs(options.images, model, failures))
    pictures = [Path(each.name) for each in inputs if each.samples is None]
    rank = model.graph.input.shape.rank if pictures and len(model.graph.entries) == 1 else 2
    if rank != 2 and not (rank == 3 and all(map(format_of, pictures))):
        rule = "for pictures, the model must take images"
        hint = "a .npz, HDF5 or .npy file holds other samples."
        raise OptionError(str(options.file), rule, input=model.graph.input.shape, hint=hint)
    _check_folders(inputs, heads, options)
    device = Device(device_of_rank(world, options.device))
    answering = model
    if options.tta:  # Means of outputs, where nothing is known of them.
        unknown = CenterNet() if options.boxes else MeanSquaredError()
        made_for = to_dict(model.graph.outputs, [head.loss or unknown for head in heads])
        answering = model.averaged(options.tta, loss=made_for)
    batches = _outputs(answering, inputs, device, options.precision, failures)
    if not world.is_first:
        for _ in batches:  # Its share of them; the first rank writes what all have made.
            pass
        return int(bool(failures))
    if options.explain:
        batches = _drawing(batches, _drawings(heads, options.explain), model, device)
    if options.masks:
        count = _write_masks(batches, options.masks)
    elif options.boxes:
        count = _write_boxes(batches, options, model)
    elif options.npz:
        count = _write_arrays(heads, batches, options.npz)
    elif any(written.values()):
        count = _write_files(heads, batches, options)
    else:
        _print_answers(inputs, heads, batches, options.top)
        if options.explain:
            print(f"saved {options.explain}", file=sys.stderr)
        return int(bool(failures))
    folders = options.masks, options.boxes, options.explain
    targets = " and ".join(str(path) for path in (*written.values(), *folders) if path)
    print(f"{counted(count, 'picture' if pictures else 'sample')}; saved {targets}")
    return int(bool(failures))


def _heads(model: Model) -> list[_Head]:
    """The outputs of a model."""
    graph = model.graph
    if model.loss is None:
        # A model that was saved without its loss, but with names of classes, gives logits of them.
        losses: tuple[Loss | None, ...] = (CrossEntropy() if model.class_names else None,) * len(graph.exits)
    else:
        losses = losses_for(graph, None, model.loss)
    return [
        _Head(
            name,
            vertex.shape,
            loss,
            [*model.class_names] or [str(unit) for unit in range(vertex.shape.units)],
            bool(model.class_names),
        )
        for (name, vertex), loss in zip(graph.outputs.items(), losses, strict=True)
    ]


def _check_outputs(model: Model, heads: Sequence[_Head], options: argparse.Namespace) -> None:
    """Raises OptionError unless the model's outputs can be shown as the options ask."""
    for name in ("csv", "json", "npz"):
        for other in ("masks", "boxes", "npz"):
            if name != other and getattr(options, other) and getattr(options, name):
                raise OptionError(f"--{name}", f"it goes without --{other}")
    if options.explain:
        _check_drawings(model, heads, options)
    if options.boxes:
        if options.masks or len(heads) > 1:
            rule = "it goes without --masks, and the model must have one output"
            raise OptionError("--boxes", rule, outputs=", ".join(head.name for head in heads))
        check_gives_boxes(model.loss, heads[0].shape, model.class_names)
        if model.loss is None and not model.class_names:
            said = f"the file says no loss: {BOX_UNITS} of {heads[0].shape.units} units are taken for sides and places"
            print(f"note: {said} of boxes", file=sys.stderr)
    if options.masks:
        if len(heads) > 1:
            rule = "the model must have one output"
            raise OptionError("--masks", rule, outputs=", ".join(head.name for head in heads))
        output, loss = heads[0].shape, heads[0].loss or CrossEntropy()
        if output.rank != 2 or not 2 <= output.units <= 256 or not loss.takes_classes:
            rule = "the model must give logits of 2 to 256 classes at each position of an image"
            raise OptionError("--masks", rule, output=output, loss=loss)
    for head in heads:
        if not (options.masks or options.boxes or options.npz) and head.shape.rank:
            rule = "the model must give a value for each class"
            hint = "--masks DIR writes the classes of an image's positions, --npz FILE all values as arrays."
            if isinstance(head.loss, CenterNet):
                hint = "--boxes DIR draws and lists the boxes that it gives."
            own = {"output": head.shape} if len(heads) == 1 else {"output": head.name, "shape": head.shape}
            raise OptionError(str(options.file), rule, **own, hint=hint)


def _check_drawings(model: Model, heads: Sequence[_Head], options: argparse.Namespace) -> None:
    """Raises OptionError unless drawings of all answers can be made, into a folder of their own."""
    for _, number, unit in _drawings(heads, options.explain):
        check_explains(model, "--explain", unit, heads[number].name)
    if options.explain in (options.masks, options.boxes):
        raise OptionError("--explain", "it must name a folder of its own", folder=options.explain)


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
        samples: those in the file, for several inputs by their names; None for a picture.
        count: how many samples it holds.
    """

    name: str
    place: Path
    samples: Source | Mapping[str, Source] | None = None
    count: int = 1

    def name_of(self, number: int) -> str:
        """Return the name of the answer for one of its samples."""
        return self.name if self.samples is None else f"{self.name}[{number}]"

    def mask_of(self, number: int) -> Path:
        """The file of a sample's mask, within the folder of all."""
        return self.place.with_suffix(".png") if self.samples is None else self.place.with_suffix("") / f"{number}.png"


#: Samples, by their numbers in inputs, and what the model makes of them at each output.
_Batch: TypeAlias = tuple[list[tuple[_Input, int]], list[FloatArray]]


def _inputs(names: list[str], model: Model, failures: list[BlobnetError]) -> Iterator[_Input]:
    """The files, and all pictures in the folders among them, sorted; what is not there is reported."""
    for name in names:
        path = Path(name)
        try:
            if not path.exists():
                raise FileError(name, "there must be such a file")
            if not path.is_dir() or holds_npy(path) or len(model.graph.entries) > 1:
                yield _Input(name, Path(path.resolve().name), *_samples(path, model.graph))
                continue
            for item in pictures_in(path):
                yield _Input(str(item), item.relative_to(path))
        except BlobnetError as error:
            report(error, failures)


def _samples(path: Path, graph: Graph) -> tuple[Any, int]:
    """The samples in a file of many, and how many they are; None and 1 if it is one picture."""
    axes, names = 0, list(graph.inputs)
    named = read_named(path)
    if len(names) > 1 and named is None:
        rule = "for a model with several inputs it must be a .npz or an HDF5 file, or a folder of .npy files"
        hint = "it holds an array for each input, of its name."
        raise DataError(str(path), rule, inputs=", ".join(names), hint=hint)
    if named is not None and (len(names) > 1 or names[0] in named.parts["train"]):
        sources = sources_for(graph, named.samples(names), str(path))
        return to_dict(names, sources), len(sources[0])
    if path.suffix.lower() in NPY_SUFFIXES:
        with contextlib.suppress(FileError):
            axes = len(npy_shape(path))
    # An array with an axis more than a sample holds samples.
    if not has_arrays(path) and axes != graph.input.shape.rank + 2:
        return None, 1
    source = samples_for(graph, units_first(read_samples(path), graph, str(path)), str(path))
    return source, len(source)


def _outputs(
    model: Model, inputs: list[_Input], device: Device, precision: str, failures: list[BlobnetError]
) -> Iterator[_Batch]:
    """Yield the answers for the pictures that can be read, and for samples."""
    settings: dict[str, Any] = {"device": device, "precision": precision}
    for is_picture, group in itertools.groupby(inputs, lambda each: each.samples is None):
        if is_picture:
            yield from _outputs_of_pictures(list(group), model, settings, failures)
            continue
        for each in group:
            try:
                done = 0
                for found in model.predict_batches(each.samples, **settings):
                    outputs = _in_order(model, found)
                    count = len(outputs[0])
                    yield [(each, done + number) for number in range(count)], outputs
                    done += count
            except (DataError, FileError) as error:
                report(error, failures)


def _in_order(model: Model, found: Any) -> list[FloatArray]:
    """Return what ``predict`` gave for each output, in their order."""
    return [found] if len(model.graph.exits) == 1 else [*found.values()]


def _outputs_of_pictures(
    inputs: list[_Input], model: Model, settings: Mapping[str, Any], failures: list[BlobnetError]
) -> Iterator[_Batch]:
    """Yield the answers for the pictures that can be read, some at a time, each rank for its own."""
    outputs = sum(vertex.shape.elements for vertex in model.graph.outputs.values())
    largest = max(model.graph.input.shape.elements, outputs)
    step = max(1, min(_CHUNK, _CHUNK_ELEMENTS // largest))
    world = World.started()

    def found(some: list[_Input]) -> tuple[list[_Input], list[FloatArray], list[BlobnetError]]:
        read, samples = [], []
        errors: list[BlobnetError] = []
        for each in some:
            try:
                samples.append(read_image(each.name, model.graph.input.shape.dimensions))
                read.append(each)
            except (DataError, FileError) as error:
                errors.append(error)
        if not read:
            return [], [], errors
        with World.alone():
            return read, _in_order(model, model.predict(np.stack(samples), **settings)), errors

    for first in range(0, len(inputs), step * world.size):
        parts = (
            inputs[place : place + step] for place in range(first, min(first + step * world.size, len(inputs)), step)
        )
        with world.propagate_errors():
            own = [found(some) for some in world.scatter(parts)]
        for read, values, errors in world.gather_in_order(own):
            for error in errors:
                report(error, failures)
            if read:
                yield [(each, 0) for each in read], values


def _answers(heads: Sequence[_Head], batches: Iterable[_Batch]) -> Iterator[_Answer]:
    for samples, outputs in batches:
        scores = [head.scores(own) for head, own in zip(heads, outputs, strict=True)]
        for row, (each, number) in enumerate(samples):
            said = (
                _Said(head, own[row], None if score is None else score[row])
                for head, own, score in zip(heads, outputs, scores, strict=True)
            )
            yield _Answer(each.name_of(number), tuple(said))


def _print_answers(inputs: Sequence[_Input], heads: Sequence[_Head], batches: Iterable[_Batch], top: int) -> None:
    width = max((len(plain(each.name_of(each.count - 1))) for each in inputs), default=0)
    for answer in _answers(heads, batches):
        said = [_described(each, top) for each in answer.said]
        if len(said) > 1:
            said = [f"{plain(head.name)}: {text}" for head, text in zip(heads, said, strict=True)]
        print(f"{plain(answer.file):<{width}}  {'  '.join(said)}")


def _described(said: _Said, top: int) -> str:
    """The best classes with their probabilities, of several labels all that are said; numbers of other outputs."""
    scores = said.scores
    names = [plain(name) for name in said.head.units]
    if scores is None:
        prefixes = [f"{name} " for name in names] if said.head.has_names and len(names) > 1 else [""] * len(names)
        return "  ".join(f"{prefix}{value:.4g}" for prefix, value in zip(prefixes, said.outputs, strict=True))
    if said.head.has_several:
        top = max(top, int((scores > 0.5).sum()))
    best = np.argsort(-scores, kind="stable")[:top]
    width = max(map(len, names))
    return "  ".join(f"{names[unit]:<{width}} {scores[unit]:.4f}" for unit in best)


# -- masks -------------------------------------------------------------------------------------------------------------


def _check_folders(inputs: list[_Input], heads: Sequence[_Head], options: argparse.Namespace) -> None:
    for option, what in (("masks", "mask"), ("boxes", "drawing")):
        if folder := getattr(options, option):
            _check_folder(inputs, folder, f"--{option}", what)
    for folder, *_ in _drawings(heads, options.explain) if options.explain else ():
        _check_folder(inputs, folder, "--explain", "drawing")


def _check_folder(inputs: list[_Input], folder: Path, option: str, what: str) -> None:
    """Raises OptionError where masks, or drawings, would replace each other, or a picture."""
    taken = {os.path.realpath(each.name): each.name for each in inputs}
    for each in inputs:
        # The masks of samples have a folder of their own.
        path = folder / each.mask_of(0)
        place = os.path.realpath(path if each.samples is None else path.parent)
        if place in taken:
            rule = f"each {what} must have a file of its own: that of its picture's name, in another folder"
            raise OptionError(option, rule, file=path, picture=each.name, other=taken[place])
        taken[place] = each.name


def _write_masks(batches: Iterable[_Batch], folder: Path) -> int:
    """Writes the most probable class of each position, in the sizes of the pictures; how many masks there are."""
    count = 0
    for samples, (outputs,) in batches:
        for (each, number), output in zip(samples, outputs, strict=True):
            path = _place(folder / each.mask_of(number))
            size = None if each.samples is not None else image_size(each.name)
            save_mask(path, output.argmax(axis=0).astype(np.uint8), size)
            count += 1
    return count


def _place(path: Path) -> Path:
    """The path of a file, whose folder is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(str(path.parent), f"the folder cannot be made: {error.strerror or error}") from error
    return path


def _write_boxes(batches: Iterable[_Batch], options: argparse.Namespace, model: Model) -> int:
    """Draws boxes over the pictures, and lists them in pixels; how many pictures there are."""
    listed, size = [], model.graph.input.shape.sizes
    least = _LEAST if options.score is None else options.score
    for samples, (outputs,) in batches:
        for (each, number), found in zip(samples, boxes_of(outputs), strict=True):
            height, width = size if each.samples is not None else image_size(each.name)
            boxes = []
            # What is no peak has the score 0.
            for kind, score, *sides in found[(found[:, 1] > 0) & (found[:, 1] >= least)].tolist():
                name = model.class_names[int(kind)] if model.class_names else str(int(kind))
                pixels = [round(side * length, 2) for side, length in zip(sides, (width, height) * 2, strict=True)]
                boxes.append({"class": name, "number": int(kind), "score": round(score, 6), "box": pixels})
            listed.append({"file": each.name_of(number), "width": width, "height": height, "boxes": boxes})
            if each.samples is None:
                words = [(f"{box['class']} {box['score']:.2f}", box["number"], box["box"]) for box in boxes]
                save_boxes(_place(options.boxes / each.mask_of(number)), Path(each.name), words)
    with _opened(_place(options.boxes / "boxes.json")) as file:
        json.dump(listed, file, ensure_ascii=False, indent=1)
    return len(listed)


# -- explanations ------------------------------------------------------------------------------------------------------


#: What is drawn of each picture: into which folder, of which output, and of which unit; None: the class that is said.
_Drawing: TypeAlias = tuple[Path, int, int | None]


def _drawings(heads: Sequence[_Head], folder: Path) -> list[_Drawing]:
    """The drawings of each picture: of several outputs, and of several numbers, each has a folder of its own."""
    found: list[_Drawing] = []
    for number, head in enumerate(heads):
        own = folder / head.name if len(heads) > 1 else folder
        if head.shape.units > 1 and gives_numbers(head.loss, head.shape):
            found += [(own / str(unit), number, unit) for unit in range(head.shape.units)]
        else:
            found.append((own, number, None))
    return found


def _drawing(batches: Iterable[_Batch], drawings: Sequence[_Drawing], model: Model, device: Device) -> Iterator[_Batch]:
    """Yield the batches, and draw for each picture what its answers come from: Grad-CAM, and saliency beside it."""
    names = list(model.graph.outputs)
    shape = model.graph.input.shape.dimensions
    for samples, outputs in batches:
        x = [
            read_image(each.name, shape) if each.samples is None else _sample(each.samples, number)
            for each, number in samples
        ]
        for folder, output, unit in drawings:
            # The answer that is printed, which may be that of several views.
            said = outputs[output].argmax(axis=1) if unit is None and outputs[output].ndim == 2 else unit
            with World.alone():
                found = explain_pictures(model, np.stack(x), said, output=names[output], device=device)
            for (each, number), sample, *maps in zip(samples, x, found.maps, found.saliency, strict=True):
                is_picture = each.samples is None and Path(each.name).suffix.lower() != ".npy"
                planes = read_picture(Path(each.name)) if is_picture else sample
                drawn = [overlay(planes[None], own[None])[0] for own in maps]
                save_picture(_place(folder / each.mask_of(number)), np.concatenate(drawn, axis=1))
        yield samples, outputs


def _sample(samples: Source | Mapping[str, Source], number: int) -> npt.NDArray[Any]:
    """Return one sample of a model with one input."""
    assert isinstance(samples, Source)
    one: npt.NDArray[Any] = np.asarray(samples[np.array([number])])[0]
    return one


# -- files -------------------------------------------------------------------------------------------------------------


def _write_arrays(heads: Sequence[_Head], batches: Iterable[_Batch], path: Path) -> int:
    """Writes all outputs as arrays of a .npz file, by the outputs' names; how many samples there are."""
    kept: list[list[FloatArray]] = [[] for _ in heads]
    for _, outputs in batches:
        for own, values in zip(kept, outputs, strict=True):
            own.append(values)
    arrays = [
        np.concatenate(own) if own else np.empty((0, *head.shape.dimensions), np.float32)
        for head, own in zip(heads, kept, strict=True)
    ]
    write_npz(path, {head.name: array for head, array in zip(heads, arrays, strict=True)})
    return len(arrays[0])


def _write_files(heads: Sequence[_Head], batches: Iterable[_Batch], options: argparse.Namespace) -> int:
    """Writes all answers; how many there are."""
    count = 0
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(write(path, heads))
            for path, write in ((options.csv, _csv_file), (options.json, _json_file))
            if path
        ]
        for answer in _answers(heads, batches):
            for write in writers:
                write(answer)
            count += 1
    return count


def _row(said: _Said) -> dict[str, Any]:
    """Return the answer at an output as plain data: the best class or all labels, with probabilities; or outputs."""
    if said.scores is None:
        return {"outputs": [float(value) for value in said.outputs]}
    scores = {name: float(score) for name, score in zip(said.head.units, said.scores, strict=True)}
    if said.head.has_several:
        return {"labels": [name for name, score in scores.items() if score > 0.5], "scores": scores}
    return {"class": said.head.units[int(said.scores.argmax())], "scores": scores}


@contextlib.contextmanager
def _csv_file(path: Path, heads: Sequence[_Head]) -> Iterator[_Writer]:
    """Writes a line an answer, below a header; columns of several outputs begin with the output's name."""
    with _opened(path) as file:
        writer = csv.writer(file)
        columns = (head.columns(f"{head.name} " if len(heads) > 1 else "") for head in heads)
        writer.writerow(["file", *itertools.chain.from_iterable(columns)])

        def write(answer: _Answer) -> None:
            cells: list[Any] = []
            for row in map(_row, answer.said):
                said = row["class"] if "class" in row else SEPARATOR.join(row.get("labels", ()))
                cells += [said, *row["scores"].values()] if "scores" in row else row["outputs"]
            writer.writerow([answer.file, *cells])

        yield write


@contextlib.contextmanager
def _json_file(path: Path, heads: Sequence[_Head]) -> Iterator[_Writer]:
    """Writes a list with an answer a line; what is said at several outputs goes by their names."""
    with _opened(path) as file:
        separator = "[\n"

        def write(answer: _Answer) -> None:
            nonlocal separator
            rows = [_row(said) for said in answer.said]
            by_output = {said.head.name: row for said, row in zip(answer.said, rows, strict=True)}
            row = {"file": answer.file, **({"said": by_output} if len(heads) > 1 else rows[0])}
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
