"""A model's card: one HTML file that shows a run, and needs no server and no network to be read."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.augment import Augmentation
from blobnet.augment.epoch_rows import from_descriptions
from blobnet.augment.words import augmentations_of
from blobnet.bench import roofline
from blobnet.bench.network import NetworkBench, kernel_shares
from blobnet.callbacks.live import about_device, plan_section, training_section
from blobnet.data.samples import sources_for
from blobnet.datasets.pictures import png
from blobnet.datasets.source import Source
from blobnet.device.device import Device
from blobnet.errors import BlobnetError, OptionError
from blobnet.explain import check_explains, explain_pictures, overlay
from blobnet.files import atomic
from blobnet.inspection.mistakes import Mistakes, class_name, worst_mistakes
from blobnet.inspection.network_inputs import network_inputs, sample_sheet
from blobnet.inspection.sheets import below, caption, captions_of, listed, masks_beside, masks_over, pixels, verdict
from blobnet.losses import Loss
from blobnet.losses.center_net import boxes_of
from blobnet.metrics import Report
from blobnet.metrics.boxes import measures_of_boxes
from blobnet.metrics.report import NumberReport
from blobnet.model import Model, check_model
from blobnet.network.ends import to_dict
from blobnet.support import page
from blobnet.support.checks import check_count
from blobnet.support.tables import ABOVE_FLOOR, floor_percent
from blobnet.training.arguments import losses_for

#: The longest side of a picture in the page, in pixels.
_LONGEST = 160
#: Classes of a confusion matrix; of more, the pairs that are confused most, and how many of them.
_MAX_CLASSES, _PAIRS = 30, 20
#: Numbers of a sample, and samples, whose answers are drawn over the truth.
_MAX_NUMBERS, _MAX_DOTS = 4, 400
#: The least score of a box that is drawn.
_LEAST = 0.3
#: Samples of the step that is timed, where the model was not trained with a batch size, and at most.
_BATCH_SIZE, _MAX_TIMED = 32, 128
#: Times that launches are measured, and kernels that are listed.
_REPEATS, _MAX_KERNELS = 5, 16
_UNKNOWN = "not said"


def report(  # noqa: PLR0913
    model: Model,
    path: str | os.PathLike[str],
    x: Any = None,
    y: Any = None,
    *,
    title: str = "",
    data: str = "",
    license: str = "",
    files: Sequence[str] = (),
    training: tuple[Any, Any] | None = None,
    augment: Sequence[Augmentation] | Augmentation | str | None = None,
    loss: Any = None,
    metrics: Any = (),
    count: int = 12,
    batch_size: int | None = None,
    timing: bool = True,
    device: Device | str | None = None,
) -> None:
    """Write what there is to see of a run to one HTML file: the model's card.

    docs/looking.md lists its sections; those that there is nothing to say in are left out. Pictures need Pillow.

    Args:
        model: trained or not.
        path: the file.
        x: samples that the model was not trained on, as for Model.evaluate; no iterable. None: without measurements.
        y: their labels.
        title: of the page; by default the name of the file.
        data: what the samples are, for readers.
        license: of the model; by default that of the weights that its training began with, if these say it.
        files: of the samples, if they have files of their own.
        training: the samples and labels that the model was trained on; by default ``x`` and ``y`` are shown.
        augment: how they change; by default as in the training.
        loss: what the outputs are made for; that of the training if None.
        metrics: what is measured besides, as for Model.evaluate.
        count: mistakes and samples that are shown.
        batch_size: samples of the plan and of the step that is timed; by default as in the training, up to 128.
        timing: whether a step is timed, which takes some seconds.
        device: a device or its name; the one used last if None.

    Raises:
        OptionError: it is no Model, or there are samples without labels.
        DataError, ShapeError: samples or labels that cannot be used.
        FileError: the file cannot be written.
    """
    check_model(model, "report")
    if (x is None) != (y is None):
        raise OptionError("report", "samples and labels go together", x=type(x).__name__, y=type(y).__name__)
    check_count("report", "count", count)
    atomic.check_writable(path, 0)
    size = batch_size or min(int(_settings(model).get("batch_size", _BATCH_SIZE)), _MAX_TIMED)
    opened = model.device_for(device)
    sections = [_about(model, opened, data, license), training_section(model.history)]
    if x is not None:
        run = _Run(model, opened, x, y, losses_for(model.graph, loss, model.loss), tuple(files), count, size)
        sections += [run.measured(metrics), run.classes(), run.mistakes(), run.found_boxes()]
        sections.append(run.samples(training or (x, y), augment))
    sections += _network(model, opened, size, timing=timing)
    atomic.write(path, page.document(title or Path(path).name, sections).encode())


def _settings(model: Model) -> Mapping[str, Any]:
    """How a model was trained, where its file says it."""
    return model.training_state.settings if model.training_state else {}


def _about(model: Model, device: Device, data: str, license: str) -> str:
    """Where the model comes from, and what this was run on."""
    state, graph = model.training_state, model.graph
    origin = model.pretrained or {}
    ends = {
        side: ", ".join(
            f"{name} {vertex.shape}" if len(found) > 1 else str(vertex.shape) for name, vertex in found.items()
        )
        for side, found in (("input", graph.inputs), ("output", graph.outputs))
    }
    said: dict[str, object] = {
        "license": license or origin.get("license") or _UNKNOWN,
        "data": data or _UNKNOWN,
        **ends,
        "classes": ", ".join(model.class_names),
        "parameters": f"{sum(spec.elements for spec in graph.named_parameters.values()):,}",
        "loss": model.loss,
        "first weights": ", ".join(f"{name} {value}" for name, value in origin.items() if value and name != "license"),
    }
    if state is not None:
        words = {
            name: value for name, value in state.settings.items() if value not in (None, [], {}, "") and value != 1
        }
        said |= {
            "training": f"{state.epoch} epochs, {state.step:,} steps, seed {state.seed}",
            "optimizer": _plain(state.optimizer),
            "settings": _plain(words),
        }
    written = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
    said |= {**about_device(device), "written": written}
    return page.section("about", "About", page.facts(said))


def _plain(values: Any) -> str:
    """Return settings in a line."""
    if isinstance(values, Mapping) and values.keys() == {"kind", "config"}:
        return f"{values['kind']}({_plain(values['config'])})"
    if isinstance(values, Mapping):
        parts = (f"{name} {_plain(value)}" for name, value in values.items() if value is not None)
        return ", ".join(parts)
    return ", ".join(map(_plain, values)) if isinstance(values, list) else str(values)


@dataclass(frozen=True, eq=False)
class _Run:
    """A model, and samples to look at it with; each method gives a section."""

    model: Model
    device: Device
    x: Any
    y: Any
    losses: tuple[Loss, ...]
    files: tuple[str, ...]
    count: int
    batch_size: int

    def __post_init__(self) -> None:
        samples = len(sources_for(self.model.graph, self.x, "x")[0])
        if self.files and len(self.files) != samples:
            rule = "there must be a file for each sample"
            raise OptionError("report", rule, files=len(self.files), samples=samples)

    @property
    def has_one(self) -> bool:
        """Whether there is one input, and one output."""
        return len(self.model.graph.entries) == len(self.model.graph.exits) == 1

    def measured(self, metrics: Any) -> str:
        """What ``evaluate`` measures."""
        loss = to_dict(self.model.graph.outputs, self.losses)
        notes = [f"on {len(sources_for(self.model.graph, self.x, 'x')[0]):,} samples"]
        if not metrics and self.has_one and self.losses[0].takes_boxes:
            metrics = measures_of_boxes(notes.append)
        settings: dict[str, Any] = {"batch_size": self.batch_size, "device": self.device}
        found = self.model.evaluate(self.x, self.y, loss=loss, metrics=metrics, **settings)
        values = {name.replace("_", " "): f"{value:.6g}" for name, value in found.items()}
        return page.section("measured", "Measured", page.note("; ".join(notes)), page.facts(values))

    def classes(self) -> str:
        """The report of each output, with a confusion matrix or the answers over the truth."""
        parts = []
        for (name, vertex), loss in zip(self.model.graph.outputs.items(), self.losses, strict=True):
            if loss.takes_boxes or (vertex.shape.rank and not loss.takes_classes):
                continue
            labels = self.y if len(self.losses) == 1 else self.y[name]
            settings: dict[str, Any] = {"output": name, "batch_size": self.batch_size, "device": self.device}
            found = self.model.report(self.x, labels, loss=loss, **settings)
            columns, rows = found.table()
            cells = [[row, *(f"{value:.4f}" for value in own[:-1]), f"{own[-1]:.0f}"] for row, own in rows.items()]
            parts += [page.note(name) if len(self.losses) > 1 else "", page.table([found.heading, *columns], cells)]
            if isinstance(found, Report):
                parts.append(_confusion(found))
            elif isinstance(found, NumberReport):
                parts.append(self._dots(name, labels, found.class_names))
        return page.section("classes", "Class by class" if self.losses[0].takes_classes else "One by one", *parts)

    def _dots(self, output: str, labels: Any, names: Sequence[str]) -> str:
        """The answers for some samples, over the truth."""
        sources = sources_for(self.model.graph, self.x, "x")
        rows = np.linspace(0, len(sources[0]) - 1, min(_MAX_DOTS, len(sources[0]))).astype(np.int64)
        some = to_dict(self.model.graph.inputs, [np.asarray(source[rows]) for source in sources])
        said = self.model.predict(some, batch_size=self.batch_size, device=self.device)
        said = (said if len(self.losses) == 1 else said[output]).reshape(len(rows), -1)
        own = labels if isinstance(labels, Source) else np.asarray(labels)
        truth = np.asarray(own[rows]).reshape(len(rows), -1)
        charts = [
            page.dots(
                name, [*zip(truth[:, unit].tolist(), said[:, unit].tolist(), strict=True)], "answers over the truth"
            )
            for unit, name in enumerate(names[:_MAX_NUMBERS])
        ]
        return page.charts(*charts)

    def mistakes(self) -> str:
        """The samples that are most wrong, and where the answers come from."""
        if not self.has_one or self.losses[0].takes_boxes:
            return ""
        lists: dict[str, Any] = {"files": self.files, "count": self.count, "batch_size": self.batch_size}
        found = worst_mistakes(self.model, self.x, self.y, loss=self.losses[0], device=self.device, **lists)
        items = [
            page.Pictured(images, caption(item), below(item.number, item.file))
            for item, images in zip(found.worst, self._images(found), strict=True)
        ]
        heading = "Worst mistakes" if found.wrong is not None else "Largest errors"
        return page.section("mistakes", heading, page.note(verdict(found)), page.samples(items))

    def _images(self, found: Mistakes) -> list[list[str]]:
        """The pictures of each mistake: the sample, perhaps masks, and where it is explained."""
        if found.values.ndim != 4 or not found.worst:
            return [[] for _ in found.worst]
        masks = masks_beside(found)
        images = [
            [own]
            for own in _pngs(
                pixels(found.values, masks), "the sample" + (", truth, answer" if masks is not None else "")
            )
        ]
        try:
            check_explains(self.model, "report")
        except OptionError:  # No layer has positions, or the answer is several numbers.
            return images
        rows = np.array([item.number for item in found.worst])
        some = np.asarray(sources_for(self.model.graph, self.x, "x")[0][rows])
        maps = explain_pictures(self.model, some, device=self.device)
        for name, own in (("Grad-CAM of the answer", maps.maps), ("saliency of the answer", maps.saliency)):
            for before, image in zip(images, _pngs(overlay(found.values, own), name), strict=True):
                before.append(image)
        return images

    def found_boxes(self) -> str:
        """Samples with their boxes, and with those that the model finds."""
        if not self.has_one or not self.losses[0].takes_boxes:
            return ""
        vertex, source = self.model.graph.input, sources_for(self.model.graph, self.x, "x")[0]
        rows = np.arange(min(self.count, len(source)))
        some = np.asarray(source[rows])
        values = network_inputs(self.device, vertex.layer, self.model.weights, source, rows)
        answers = boxes_of(self.model.predict(some, batch_size=self.batch_size, device=self.device))
        drawn = np.rint(255 * pixels(values)).astype(np.uint8)
        items = []
        for row in rows:
            truth = [(kind, None, sides) for kind, *sides in np.asarray(self.y[row : row + 1])[0].tolist() if kind >= 0]
            said = [(kind, score, sides) for kind, score, *sides in answers[row].tolist() if score >= _LEAST]
            boxes = [
                (sides, self._name(kind) + ("" if score is None else f" {score:.2f}"), score is None)
                for kind, score, sides in [*truth, *said]
            ]
            picture = page.boxed(png(drawn[row], _LONGEST * 2), drawn.shape[1:3], boxes)
            words = [("boxes ", str(len(truth)), ""), ("found ", str(len(said)), "")]
            items.append(page.Pictured([picture], words, below(int(row), self.files[row] if self.files else "")))
        what = f"the first samples: their boxes (dashed), and what the model finds with scores of {_LEAST:g} and more"
        return page.section("boxes", "Boxes", page.note(what), page.samples(items))

    def _name(self, kind: float) -> str:
        return class_name(int(kind), self.model.class_names)

    def samples(self, training: tuple[Any, Any], augment: Any) -> str:
        """Samples as the training got them."""
        vertex = self.model.graph.vertices[0]
        if not self.has_one or vertex.shape.rank != 2:
            return ""
        x, y = training
        mean, deviation = (self.model.weights[vertex.parameter(name)] for name in ("mean", "deviation"))
        labels = y if isinstance(y, Source) else np.asarray(y)
        if self.losses[0].takes_boxes:
            labels = np.zeros(len(labels), np.float32)
        state = self.model.training_state
        changes: tuple[Augmentation, ...] = ()
        notes: list[str] = []
        settings: dict[str, Any] = {"count": self.count, "seed": state.seed if state else 0, "device": self.device}
        settings["normalization"] = mean, deviation
        try:
            said = _settings(self.model).get("augment", [])
            changes = from_descriptions(said, "report") if augment is None else augmentations_of(augment)
            sheet = sample_sheet(x, labels, augment=changes, **settings)
        except BlobnetError as error:  # The user's own class is not known here, or is for samples of another type.
            if augment is not None:
                raise
            changes, notes = (), [f"without the training's augmentation: {error}"]
            sheet = sample_sheet(x, labels, **settings)
        names = () if self.losses[0].takes_boxes else self.model.class_names
        words = [[]] * len(sheet.numbers) if self.losses[0].takes_boxes else captions_of(sheet, names)
        images = _pngs(pixels(sheet.values, masks_over(sheet, names), over=True), "a sample")
        known = self.files if x is self.x else ()
        items = [
            page.Pictured([image], own, below(int(number), known[number] if known else ""))
            for image, own, number in zip(images, words, sheet.numbers, strict=True)
        ]
        normal = f"normalised by mean {listed(sheet.mean)} and standard deviation {listed(sheet.deviation)}"
        notes = ["as the network gets them", normal, *map(str, changes), *notes]
        return page.section("samples", "Samples", page.note("; ".join(notes)), page.samples(items))


def _pngs(pictures: npt.NDArray[Any], title: str) -> list[str]:
    """The images of pictures (N, height, width[, 3]), of bytes or from 0 to 1."""
    drawn = pictures if pictures.dtype == np.uint8 else np.rint(255 * np.clip(pictures, 0, 1)).astype(np.uint8)
    return [page.image(png(own, _LONGEST * max(1, round(own.shape[1] / own.shape[0]))), title) for own in drawn]


def _confusion(found: Report) -> str:
    """The confusion matrix, or of many classes what is confused most."""
    names, matrix = found.class_names, found.matrix
    if len(names) <= _MAX_CLASSES:
        return page.matrix(matrix.tolist(), names)
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
    pairs = [(*divmod(int(place), len(matrix)), int(wrong.flat[place])) for place in order if wrong.flat[place]]
    rows = [[names[own], names[said], count] for own, said, count in pairs]
    return page.note("confused most:") + page.table(["class", "taken for", "samples"], rows) if rows else ""


def _network(model: Model, device: Device, size: int, *, timing: bool) -> list[str]:
    """The layers, the plan of a training step, and the time that its kernels take."""
    layers = page.section("layers", "Layers", model.summary()._repr_html_())
    times, why, plan = "", "", None
    if timing:
        try:
            bench = NetworkBench(device, model, size)
            plan, times = bench.step.plan, _times(bench)
        except BlobnetError as error:  # Several ends, an output without logits, a device without room.
            why = f"A step was not timed: {error}"
    plan = plan or model.plan(size, training=False)
    return [
        layers,
        page.section("time", "Time of a training step", times or page.note(why)),
        plan_section(plan),
    ]


def _times(bench: NetworkBench) -> str:
    """The time of a step's kernels."""
    top = roofline.measure(bench.device)
    profile = bench.profile(_REPEATS)
    shares = kernel_shares(profile, bench.points(profile), top, bench.batch_size)
    total = sum(share.seconds for share in shares)
    rows = [
        (
            share.kernel,
            share.seconds,
            f"{1e3 * share.seconds:.3f} ms, {share.seconds / total:.1%}, {share.launches}x, "
            f"floor {floor_percent(share.floor, share.seconds)} % by {share.bound}",
        )
        for share in shares[:_MAX_KERNELS]
    ]
    if rest := shares[_MAX_KERNELS:]:
        seconds = sum(share.seconds for share in rest)
        rows.append((f"{len(rest)} other kernels", seconds, f"{1e3 * seconds:.3f} ms, {seconds / total:.1%}"))
    said = (
        f"{1e3 * total:.3f} ms on the device for a batch of {bench.batch_size} random samples, "
        "with cross-entropy and Adam; "
        f"the device reaches {top.flops / 1e9:,.0f} GFLOPS and {top.bandwidth / 1e9:,.0f} GB/s"
    )
    above = page.note(ABOVE_FLOOR) if any(share.floor > share.seconds for share in shares[:_MAX_KERNELS]) else ""
    return page.note(said) + page.bars(rows) + above
