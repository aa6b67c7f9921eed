"""``blobnet evaluate``: how good a model in a file is on a data set."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobnet import plots
from blobnet.command_line.data_argument import check_labels, fitted, load_dataset, metrics_for, was_trained_on
from blobnet.command_line.model_argument import open_model
from blobnet.datasets.named_data import NamedDataset
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.files.atomic import check_writable, write
from blobnet.inspection.mistakes import Mistakes, worst_mistakes
from blobnet.losses import Loss
from blobnet.metrics import Report
from blobnet.metrics.boxes import measures_of_boxes
from blobnet.metrics.report import AnyReport
from blobnet.model import Model
from blobnet.parallel.world import World, device_of_rank

#: Mistakes of a picture.
_DRAWN = 40


def run(options: argparse.Namespace) -> int:
    """Prints the metrics over the test split, or over what else was not trained on, or over all samples."""
    world = World.started()
    for name, path in (("--matrix", options.matrix), *(("--mistakes", path) for path in options.mistakes)):
        if path is not None and world.is_first:
            if name == "--matrix" or not _is_table(path):
                plots.check(path, name)
            check_writable(path, 0)
    model = open_model(options.file, pretrained=options.pretrained, needs_head=True)
    device = Device(device_of_rank(world, options.device))
    data, loss = fitted(options, model, load_dataset(options, model))
    settings: dict[str, Any] = {"batch_size": options.batch_size, "device": device, "precision": options.precision}
    if isinstance(data, NamedDataset):
        _evaluate_by_name(options, model, data, loss, settings)
        return 0
    split = split_to_measure(model, data)
    metrics = _measures_of_boxes(options) if data.has_boxes else metrics_for(options, data)
    model = model.averaged(options.tta, loss=loss) if options.tta else model
    _print_measures(model.evaluate(split.x, split.y, loss=loss, metrics=metrics, **settings), model)
    title = f"{options.file.name} on {data.name}"
    if options.matrix is not None and not loss.takes_classes:
        raise OptionError("--matrix", "it draws which class was taken for which, of a loss of classes", loss=loss)
    if options.report or options.matrix is not None:
        _report(options, model.report(split.x, split.y, loss=loss, **settings), title)
    if options.mistakes:
        # A table has all of them.
        count = len(split) if any(map(_is_table, options.mistakes)) else _DRAWN
        lists = {"files": split.files, "count": count, "drawn": _DRAWN}
        found = worst_mistakes(model, split.x, split.y, loss=loss, **lists, **settings)
        if world.is_first:
            _save_mistakes(found, title, options.mistakes)
    return 0


def _measures_of_boxes(options: argparse.Namespace) -> tuple[str, ...]:
    """The names of what is measured of boxes besides the loss; nothing, with a note, where pycocotools is missing."""
    if options.metrics is not None:
        return tuple(options.metrics)
    return measures_of_boxes(lambda text: print(f"note: {text}", file=sys.stderr))


def _is_table(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _save_mistakes(found: Mistakes, title: str, paths: Sequence[Path]) -> None:
    for path in paths:
        if _is_table(path):
            write(path, found.csv().encode("utf-8", "surrogateescape"))
        elif found.worst:
            plots.save(plots.draw_mistakes(found, title), path)
        else:
            print(f"no mistakes, {path} is not drawn", file=sys.stderr)
            continue
        print(f"saved {path}", file=sys.stderr)


def _evaluate_by_name(
    options: argparse.Namespace, model: Model, data: NamedDataset, loss: Any, settings: Mapping[str, Any]
) -> None:
    """The same for arrays that go by the names of the model's inputs and outputs."""
    if options.mistakes:
        rule = "samples are drawn where there is one input and one output, for a data set with x and y"
        raise OptionError(
            "--mistakes", rule, inputs=", ".join(model.graph.inputs), outputs=", ".join(model.graph.outputs)
        )
    names = list(model.graph.outputs)
    losses: Mapping[str, Loss] = loss if isinstance(loss, Mapping) else {names[0]: loss}
    check_labels(model, tuple(losses.values()), data)
    classifying = [name for name, one in losses.items() if one.takes_classes]
    if options.matrix is not None and len(classifying) != 1:
        rule = "it draws the classes of one output, and there must be no other one with classes"
        raise OptionError(
            "--matrix", rule, outputs=", ".join(classifying) or "none", hint="--report lists all of them."
        )
    # Numbers have a report where a sample has them once, and not for each position.
    reported = [name for name in names if name in classifying or not model.graph.outputs[name].shape.rank]
    if options.report and not reported:
        rule = "an output must have classes, or no positions"
        raise OptionError("--report", rule, outputs=", ".join(model.graph.outputs))
    split = split_to_measure(model, data)
    state = model.training_state
    weights = state.settings.get("loss_weights") if state else None
    model = model.averaged(options.tta, loss=loss) if options.tta else model
    more = {"loss_weights": weights, "metrics": options.metrics or (), **settings}
    _print_measures(model.evaluate(split.x, split.y, loss=loss, **more), model)
    drawn = classifying if options.matrix is not None else ()
    for name in reported if options.report else drawn:
        if options.report and len(names) > 1:
            print(f"\n{name}")
        report = model.report(split.x, split.y[name], output=name, loss=losses[name], **settings)
        _report(options, report, f"{name} of {options.file.name} on {data.name}")


def split_to_measure(model: Model, data: Any) -> Any:
    """Return the samples to measure on, and say which: the test split, else validation, held out, or all."""
    without = "the data set has no test split"
    split, what = data.train, f"samples, all that there are: {without}, and the model may have been trained on them"
    state = model.training_state
    trained = state.settings.get("samples") if state else None
    count = len(split) - trained if isinstance(trained, int) else -1
    if data.test or data.validation:
        split = data.test or data.validation
        what = "test samples" if data.test else f"validation samples: {without}"
    elif state and count == 0 and was_trained_on(model, data):
        what = f"samples, all of which the model was trained on: {without}"
    elif state and 0 < count < len(split):
        rest, held_out = split.split_validation(count / len(split), state.seed)
        if was_trained_on(model, replace(data, train=rest)):
            split, what = held_out, f"samples that were held out of the training: {without}"
    print(f"{data.name}, {len(split)} {what}", file=sys.stderr)
    return split


def _print_measures(measured: Mapping[str, float], model: Model) -> None:
    # Of up to five classes any answer is among the five likeliest.
    outputs = model.graph.outputs.items()
    idle = {"top_5" if len(outputs) == 1 else f"{name}_top_5" for name, vertex in outputs if vertex.shape.units <= 5}
    measured = {name: value for name, value in measured.items() if name not in idle}
    names = {name: name.replace("top_5", "top-5") for name in measured}
    width = max(9, *map(len, names.values()))
    for name, value in measured.items():
        print(f"{names[name]:<{width}} {value:.4f}")


def _report(options: argparse.Namespace, report: AnyReport, title: str) -> None:
    if options.report:
        print(f"\n{report}")
    if options.matrix is not None and World.started().is_first and isinstance(report, Report):
        plots.save(plots.confusion(report.matrix, report.class_names, title), options.matrix)
        print(f"saved {options.matrix}", file=sys.stderr)
