"""``blobnet train``: everything is checked before the first epoch, and every epoch leaves a whole file."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from blobnet import optimizers, plots, schedules
from blobnet.augment import Augmentation
from blobnet.augment.epoch_rows import check_mixed
from blobnet.augment.words import augmentations_of
from blobnet.callbacks import Callback, Checkpoint, EarlyStopping
from blobnet.command_line import transfer
from blobnet.command_line.data_argument import (
    check_classes,
    check_input,
    check_labels,
    check_output,
    dataset_for,
    kind_of_labels,
    load_dataset,
    load_plain_dataset,
    loss_of_boxes,
    losses_of,
    metrics_for,
    normalize,
    target_loss,
    with_targets_of,
)
from blobnet.command_line.model_argument import ModelSource, open_model
from blobnet.command_line.options import name_of
from blobnet.command_line.text import short_list
from blobnet.data.sample_weights import ClassWeights
from blobnet.datasets import Dataset, Split
from blobnet.datasets.checks import chunks
from blobnet.datasets.dataset import are_names
from blobnet.datasets.loading import are_pictures
from blobnet.datasets.named_data import NamedData, NamedDataset, NamedSplit
from blobnet.device.device import Device
from blobnet.errors import (
    BlobnetError,
    BlobnetWarning,
    DeviceError,
    FileError,
    OptionError,
    TrainingError,
    add_sentence,
    counted,
)
from blobnet.files.atomic import check_writable
from blobnet.losses import CenterNet, CrossEntropy, Loss
from blobnet.model import AnyLoss, Model, load
from blobnet.network.ends import to_dict
from blobnet.parallel.world import World, device_of_rank
from blobnet.support.checks import LARGEST_COUNT, is_int
from blobnet.support.interrupt import RUNNING, Terminated
from blobnet.training.arguments import loss_weights_for, losses_for
from blobnet.training.folds import cross_validate
from blobnet.training.settings import KEYWORDS
from blobnet.training.trainer import Progress

#: The highest learning rates of a schedule that serve the shipped models with batches of 64 (docs/measurements.md).
DEFAULT_RATE, RATES = 0.002, {"sgd": 0.01, "lion": 0.0003, "muon": 0.02}
#: The part of the training samples that is held out, where something is chosen by validation or there is no test split.
DEFAULT_FRACTION = 0.1
#: Steps of an epoch below which a note says so.
_FEW_STEPS = 4
#: What an option is that this command needs itself, where nobody says it.
DEFAULTS = {"epochs": 5, "batch_size": 64, "seed": 0}
#: The options that say what the optimizer is.
_RATES = ("learning_rate", "schedule", "step_epochs", "warmup_epochs")
_KEYWORDS = (
    *("momentum", "weight_decay", "clip_norm", "clip_value", "decays", "layer_decay", "lookahead"),
    *("sam", "sam_adaptive"),
)
_OF_OPTIMIZER = ("optimizer", *_KEYWORDS, *_RATES)

#: A data set and its splits, or one whose arrays go by names.
_Data = TypeVar("_Data", Dataset, NamedDataset)
_Split: TypeAlias = Split | NamedSplit
_Source: TypeAlias = ModelSource | transfer.FileSource
_Prepared: TypeAlias = tuple[Model, list[str], Any, Dataset | NamedDataset, _Split | None]


class _CtrlC:
    """Ctrl-C or SIGTERM during a training: it waits while a file is written, and is never lost.

    NOTE: Python swallows an exception that is raised while a weak reference dies, and h5py lives on those.

    Attributes:
        waits_first: whether the first one waits for :meth:`deferred`; a second one does not.
        asked: what there was, if anything.
    """

    #: What is taken, where nobody else has plans with it.
    _USUAL: ClassVar[tuple[Any, ...]] = (signal.SIG_DFL, *RUNNING.values())

    def __init__(self) -> None:
        self.waits_first = False
        self.asked: type[KeyboardInterrupt] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._waits = False

    def __enter__(self) -> None:
        # Who runs in the background, or in a thread, has no Ctrl-C to take.
        if threading.current_thread() is threading.main_thread():
            before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
            self._before = {each: handler for each, handler in before.items() if handler in self._USUAL}
        for each in self._before:
            signal.signal(each, self._ask)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        if error is None and self.asked is not None:
            raise self.asked  # It came after the last epoch's end.

    def _ask(self, number: int, _: object) -> None:
        waits = self._waits or (self.waits_first and self.asked is None)
        self.asked = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if not waits:
            raise self.asked
        if not self._waits:
            os.write(2, b"\nthe step is finished and saved first; once more ends at once\n")

    def agree(self, world: World) -> type[KeyboardInterrupt] | None:
        """Return the request of any rank, which is then that of all; all must call it.

        NOTE: what comes while this rank waits for the others is that of the next time.
        """
        agreed = next(filter(None, world.gather(self.asked)), None)
        if agreed is not None:
            self.asked = agreed
        return agreed

    @contextlib.contextmanager
    def deferred(self, world: World) -> Iterator[None]:
        """Raise at the end, on all ranks, what came inside or was lost before."""
        self._waits = True
        try:
            yield
            agreed = self.agree(world)
        finally:
            self._waits = False
        agreed = agreed or (self.asked if world.size == 1 else None)
        if agreed is not None:
            raise agreed


class _OutputFile(Checkpoint):
    """The output file; knows the epoch that it holds: the best one if something looks for it, else the last.

    In files of the middle of epochs, the last one lies beside the best one.

    Attributes:
        kept_epoch: the epoch whose weights are the file's.
        is_begun: whether there was a step.
    """

    def __init__(self, path: Path, best: EarlyStopping | None, every_steps: int | None) -> None:
        super().__init__(path, every_steps=every_steps, keep_best=bool(best and every_steps))
        self.best = best
        self.ctrl_c = _CtrlC()
        self.kept_epoch = 0
        self.is_begun = False
        self.stop: str | None = None

    def step_end(self, progress: Progress) -> None:
        self.is_begun = True
        # From the first step on there is something to keep, so that they wait for the end of a step.
        self.ctrl_c.waits_first = True
        if self.ctrl_c.agree(progress.trainer.step.world) is None:
            super().step_end(progress)
        else:
            self._save_within(progress)

    def _save_within(self, progress: Progress) -> None:
        self.keep_best = self.best is not None
        with self.ctrl_c.deferred(progress.trainer.step.world):
            super()._save_within(progress)

    def _rescue(self, progress: Progress) -> None:
        self.keep_best = self.best is not None
        super()._rescue(progress)

    def epoch_end(self, progress: Progress) -> None:
        self.stop = progress.stop
        with self.ctrl_c.deferred(progress.trainer.step.world):
            is_best = self.best is None or self.best.waited == 0
            if is_best or self.keep_best:
                super().epoch_end(progress)
            if is_best:
                self.kept_epoch = self.epoch

    def end(self, progress: Progress) -> None:
        self.stop = progress.stop  # A training that had stopped before it was resumed has no more epochs.

    def failed(self, error: BaseException) -> None:
        """Does nothing: the command says what is safe, also for errors after the training."""


#: Seconds that a rank has to say that it is out of time, before others do that wait for it.
_HEAD_START = 5


class _Timeout(Callback):
    """Ends the process where no step ends for so many seconds, which need not be those of a clock on the wall.

    NOTE: who waits in a driver, or for a disk, hears no signal and raises nothing. Files are written all or nothing.
    """

    def __init__(self, seconds: float, device: Device, file: _OutputFile) -> None:
        self.seconds, self._device, self._file = seconds, device, file
        self._waited = 0.0
        self._is_over: threading.Event | None = None

    def step_end(self, progress: Progress) -> None:
        self._waited = 0.0
        if self._is_over is None:
            self._is_over = threading.Event()
            threading.Thread(target=self._watch, args=[self._is_over, progress], daemon=True).start()

    def epoch_end(self, progress: Progress) -> None:
        self._waited = 0.0

    def release(self) -> None:
        if self._is_over is not None:
            self._is_over.set()

    def _watch(self, is_over: threading.Event, progress: Progress) -> None:
        # NOTE: a process that was stopped (Ctrl-Z) for an hour has not waited for an hour.
        part, world = min(1.0, self.seconds / 4), progress.trainer.step.world
        while not is_over.wait(part):
            self._waited += part
            # Who waits for others lets one of them say that it hangs; all may wait, for a device that exchanges.
            if self._waited > self.seconds + (_HEAD_START if world.waits else 0):
                rule = "a step must end in that time, but the device, or a disk, does not answer"
                device, step = self._device.info.name, progress.trainer.step.number + 1
                error = DeviceError("--timeout", rule, seconds=self.seconds, device=device, step=step)
                world.end(f"error: {world.who}{error}")
                add_sentence(error, self._file.state)
                os.write(2, f"\nerror: {error}\n".encode())
                os._exit(1)


class _Plot(Callback):
    """Draws the training curves at the end."""

    only_logs = True

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        self.title = title

    def end(self, progress: Progress) -> None:
        plots.save(plots.curves(progress.history, self.title), self.path)


def run(options: argparse.Namespace, more: Sequence[Callback] = ()) -> int:
    """Trains a model, with ``more`` callbacks than options, and keeps it in a file, which the first rank writes."""
    world = World.current()
    source = transfer.find_source(options)
    if options.batch_size_per_device is not None:
        options.batch_size = world.size * options.batch_size_per_device
    output = options.output or Path(f"{source.name}.h5")
    if world.is_first:
        _check_paths(options, output)
    # Who waits for ever keeps the best epoch, and never stops.
    patience = options.early_stopping or (LARGEST_COUNT if options.save_best else None)
    file = _OutputFile(output, EarlyStopping(patience=patience) if patience else None, options.checkpoint_steps)
    try:
        if world.is_first:
            file.hold()
            _check_new(options, output)
        return _train(options, source, file, more)
    except KeyboardInterrupt as interrupt:
        state = file.state[0].lower() + file.state[1:].removesuffix(".")
        raise type(interrupt)(f"interrupted; {state}") from None
    except BlobnetError as error:
        if file.is_begun or isinstance(error, TrainingError):
            add_sentence(error, file.state)
        raise
    finally:
        file.release()


def _train(options: argparse.Namespace, source: _Source, file: _OutputFile, more: Sequence[Callback]) -> int:
    saved = _resumed(file) if options.resume else None
    _fill(options, saved)
    optimizer = _optimizer(options)
    augmented, augment = _augmentation(options)
    device = Device(device_of_rank(World.current(), options.device))
    # Both readings of the data take the kind of labels of the training that goes on, and of no other model.
    if saved is not None and options.labels is None and are_pictures(options.dataset):
        options.labels = kind_of_labels(saved)
    if options.sizes and options.image_size is None and are_pictures(options.dataset):
        options.image_size = options.sizes[max(options.sizes)]
    given = load_dataset(options, saved or transfer.file_model(options, source), keeps_kind=False)
    prepare = _prepared_by_name if isinstance(given, NamedData) else _prepared
    model, anew, loss, data, held_out = prepare(options, source, given)
    _check_by_output(options, model)
    augment_of = _augment_of(options, model, augmented, augment)
    if saved is not None:
        _check_same(options, saved, model, file)
        model = saved
    if file.epoch >= options.epochs:
        print(
            f"nothing to do: {file.path} is trained for {counted(file.epoch, 'epoch')}, "
            f"{_measured(model.history, file.kept_epoch)}; --epochs says how many there are to be"
        )
        return 0
    file.class_names = model.class_names
    freeze = transfer.frozen_patterns(options, model)
    print(f"data    {data}{f', {len(held_out)} held out for validation' if held_out else ''}", file=sys.stderr)
    _note_few_steps(options.batch_size, len(data.train))
    print(f"model   {source.text}, {model.parameter_count:,} trainable parameters", file=sys.stderr)
    for line in transfer.describe(options, model, anew, freeze):
        print(line, file=sys.stderr)
    if augment is not None:
        print(f"augment {f'{augmented}: ' if augmented else ''}{', '.join(map(str, augment))}", file=sys.stderr)
    teacher = open_model(options.teacher) if options.teacher else None
    if teacher is not None:
        print(f"teacher {options.teacher}, {teacher.parameter_count:,} trainable parameters", file=sys.stderr)
    print(f"device  {device.info}", file=sys.stderr)
    world = World.current()
    if world.size > 1:
        world.connect(device)
        print(f"ranks   {world.size}, gradients go through {world.transport.name}", file=sys.stderr)
    print(file=sys.stderr)
    chosen = {"device": device, "optimizer": optimizer, "loss": loss, "freeze": freeze, "teacher": teacher}
    if options.folds is not None:
        return _cross_validate(options, model, data, Path(file.path), augment=augment_of, **chosen)
    chosen["callbacks"] = [*_callbacks(options, data, file, device), *more]
    with file.ctrl_c:
        _fit(options, model, data, held_out, augment=augment_of, **chosen)
    if file.stop:
        print(f"stopped early: {file.stop}", file=sys.stderr)
    results = [_measured(model.history, file.kept_epoch)] if held_out or data.test is None else []
    if data.test is not None:
        settings: dict[str, Any] = {"batch_size": options.batch_size, "device": device, "precision": options.precision}
        settings["loss_weights"] = options.loss_weights
        settings["metrics"] = metrics_for(options, data)
        results.append(_result("test", model.evaluate(data.test.x, data.test.y, loss=loss, **settings)))
    print(f"{', '.join(results)} after {counted(file.kept_epoch, 'epoch')}; saved {file.path}")
    return 0


def _prepared(options: argparse.Namespace, source: _Source, given: Dataset) -> _Prepared:
    """The model for samples x and labels y, the layers that start anew, the loss, and the data."""
    check_classes(given)
    model, anew = transfer.build(options, source, given)
    units = {given.shape[0], *(vertex.shape.units for vertex in model.graph.inputs.values())}
    if units == {1, 3} and are_pictures(options.dataset):
        with warnings.catch_warnings():  # What is left out was said.
            warnings.simplefilter("ignore", BlobnetWarning)
            given = load_plain_dataset(options, model, keeps_kind=False)
    given = with_targets_of(model, given)
    _note_odd_labels(given, options.loss)
    data, held_out = _held_out(options, given)
    loss = _loss(options, data)
    check_input(model, data, options)
    check_output(model, data)
    _note_lost_classes(data, held_out)
    # What pretrained weights were trained on were pixels.
    if not (isinstance(source, transfer.PretrainedSource) and source.normalizes and data.train.x.dtype == np.uint8):
        normalize(model, data.statistics())
    if data.target_names and not data.has_several:
        _start_at_means(model, anew, data)
    return model, anew, loss, data, held_out


def _start_at_means(model: Model, anew: Sequence[str], data: Dataset) -> None:
    """Has the last layer, where it starts anew, begin at the means of the numbers that it is to give.

    An age of 40 is far from the outputs of a new network, and steps are small.
    """
    layer, _, _ = model.graph.trainable[-1].rpartition("/")
    shape = model.graph.named_parameters.get(f"{layer}/bias")
    means = np.asarray(data.train.y, np.float64).mean(axis=0)
    if layer in anew and shape is not None and shape.shape == means.shape:
        model.set_weights({f"{layer}/bias": means})


def _prepared_by_name(options: argparse.Namespace, source: _Source, given: NamedData) -> _Prepared:
    """The same for arrays that go by the names of the model's inputs and outputs."""
    model, anew = transfer.build_by_name(options, source, given)
    data, held_out = _held_out(options, dataset_for(model, given))
    loss = _losses(options, model, data)
    normalize(model, data.statistics())
    return model, anew, loss, data, held_out


def _cross_validate(
    options: argparse.Namespace, model: Model, data: Dataset | NamedDataset, output: Path, **settings: Any
) -> int:
    """Trains a model for each fold of the training samples, writes its file, and prints what each measures."""
    paths = [output.with_name(f"{output.stem}-fold{number}{output.suffix}") for number in range(1, options.folds + 1)]
    if World.current().is_first:
        for path in paths:
            _check_new(options, path)
    given = {name: value for name, value in vars(options).items() if name in KEYWORDS and value is not None}
    given |= settings | {"metrics": metrics_for(options, data), "debug": options.check or None}
    given["class_weights"] = _class_weights(options, model, settings["loss"])
    found = cross_validate(model, data.train.x, data.train.y, folds=options.folds, verify=options.verify, **given)
    if World.current().is_first:
        for path, own in zip(paths, found.models, strict=True):
            own.save(path)
    print(f"{found}\nsaved {paths[0]} to {paths[-1].name}")
    return 0


def _fit(
    options: argparse.Namespace,
    model: Model,
    data: Dataset | NamedDataset,
    held_out: _Split | None,
    **settings: Any,
) -> None:
    given = {name: value for name, value in vars(options).items() if name in KEYWORDS} | settings
    if held_out or options.metrics:
        given["metrics"] = metrics_for(options, data)
    given["class_weights"] = _class_weights(options, model, settings["loss"])
    validation = (held_out.x, held_out.y) if held_out else None
    more: dict[str, Any] = {"resume": options.resume, "debug": options.check or None, "verify": options.verify}
    model.fit(data.train.x, data.train.y, validation=validation, **given, **more)


def _class_weights(options: argparse.Namespace, model: Model, loss: AnyLoss) -> ClassWeights | None:
    """Return class weights as ``fit`` takes them: for several outputs those of all that have classes."""
    if not isinstance(loss, Mapping) or options.class_weights is None:
        given: ClassWeights | None = options.class_weights
        return given
    takes_classes = {name: own.takes_classes for name, own in zip(loss, losses_for(model.graph, loss), strict=True)}
    found = {name: options.class_weights for name, takes in takes_classes.items() if takes}
    if not found:
        raise OptionError("--class-weights", "an output must have classes, not targets", outputs=", ".join(loss))
    return found


def _augmentation(options: argparse.Namespace) -> tuple[str | None, tuple[Augmentation, ...] | None]:
    """The input that --augment names, if it does, and how its samples change."""
    if options.augment is None:
        return None, None
    name, colon, words = options.augment.rpartition(":")
    return name.strip() if colon else None, augmentations_of(words, "--augment")


def _augment_of(
    options: argparse.Namespace, model: Model, name: str | None, changes: tuple[Augmentation, ...] | None
) -> Any:
    """Return the augmentation as ``fit`` takes it: of several inputs by the input's name."""
    names = list(model.graph.inputs)
    if changes is None or (name is None and len(names) == 1):
        return changes
    if name not in names:
        rule = "in front of a colon there must be the input of the model whose samples change"
        hint = f"--augment {names[0]}:flip, for example."
        raise OptionError("--augment", rule, received=options.augment, inputs=", ".join(names), hint=hint)
    check_mixed(changes, names, "--augment")
    return {name: changes}


def _check_by_output(options: argparse.Namespace, model: Model) -> None:
    """Raises OptionError for weights of losses where there is one loss, or that are for no output."""
    if options.loss_weights is None:
        return
    if len(model.graph.exits) == 1:
        raise OptionError(
            "--loss-weights", "the model must have several outputs", outputs=", ".join(model.graph.outputs)
        )
    loss_weights_for(model.graph, options.loss_weights)


def _callbacks(
    options: argparse.Namespace, data: Dataset | NamedDataset, file: _OutputFile, device: Device
) -> list[Callback]:
    asked = {kind: value for kind, value in _given(options).items() if kind is not EarlyStopping}
    made: list[Any] = [kind(**{kind.option[0]: value}) for kind, value in asked.items()]
    callbacks: list[Callback] = [file.best] if file.best is not None else []  # The file asks it for the best epoch.
    callbacks += [*(each for each in made if not each.only_logs), file]
    if options.timeout:
        callbacks.append(_Timeout(options.timeout, device, file))
    callbacks += [each for each in made if each.only_logs]
    if options.plot:
        callbacks.append(_Plot(options.plot, f"{Path(file.path).name} on {data.name}"))
    return callbacks


def _given(options: argparse.Namespace) -> dict[Any, Any]:
    """Return the callbacks that options ask for, each class with what its option says."""
    values = {kind: getattr(options, name_of(kind.option[1]), None) for kind in Callback.with_option}
    return {kind: value for kind, value in values.items() if value is not None}


def _check_paths(options: argparse.Namespace, output: Path) -> None:
    """Refuses, before any work, files that cannot be written or that would destroy others."""
    rows = {kind.option[1]: path for kind, path in _given(options).items()}
    logs = {row.split()[0]: path for row, path in rows.items() if row.split()[1] == "FILE"}
    written = {"--output": output, **logs, "--plot": options.plot}
    paths = {name: os.path.realpath(path) for name, path in written.items() if path is not None}
    read = {"--dataset": options.dataset, "--init-from": options.init_from, "--pretrained": options.pretrained}
    read["--teacher"] = options.teacher
    for (one, path), (other, same) in itertools.product(paths.items(), {**paths, **read}.items()):
        if one != other and same is not None and path == os.path.realpath(same):
            raise OptionError(one, f"it must not name the same file as {other}", file=written[one])
    if options.plot is not None:
        plots.check(options.plot)
    if options.resume and not output.exists():
        hint = "leave out --resume to start a training, or name its file with --output."
        raise FileError(str(output), "--resume needs the file of the training to go on with", hint=hint)
    for path in paths:
        check_writable(written[path], 0)


def _check_new(options: argparse.Namespace, output: Path) -> None:
    """Refuses, before any work, to replace a file where nobody said so."""
    if output.exists() and not (options.resume or options.overwrite):
        hint = "--resume goes on with its training, --overwrite replaces it, --output writes another file."
        raise FileError(str(output), "there is such a file already", hint=hint)


def _resumed(file: _OutputFile) -> Model:
    """The model in the file, with the state of a training."""
    model = load(file.path)
    state = model.training_state
    if state is None or len(model.history.get("loss", ())) != state.epoch:
        rule = "to go on from, the file must be one that blobnet train wrote"
        raise OptionError(str(file.path), rule, hint="blobnet inspect shows what it holds.")
    file.epoch, file.step = state.epoch, state.step if state.place else 0
    losses = np.array(model.history.get("validation_loss", ()) if file.best else ())
    file.kept_epoch = state.epoch if not np.isfinite(losses).any() else int(np.nanargmin(losses)) + 1
    return model


def _check_same(options: argparse.Namespace, saved: Model, model: Model, file: _OutputFile) -> None:
    """Raises OptionError unless a file's model is the one, for the data, that the options describe."""
    hint = "--overwrite starts anew, --output writes another file."
    difference = _difference(saved, model)
    if difference:
        raise OptionError("--resume", f"the model must be that in {file.path}", **difference, hint=hint)
    began_with = (saved.pretrained or {}).get("name")
    if options.init_from is None and options.pretrained != began_with:
        rule = "with --resume it must be what the training began with"
        raise OptionError("--pretrained", rule, received=options.pretrained, file=began_with, hint=hint)
    if options.pretrained:  # Samples may be normalised as these weights want it, and not as the data say.
        return
    for vertex, name in itertools.product(model.graph.inputs.values(), ("mean", "deviation")):
        theirs, ours = (each.weights[vertex.parameter(name)] for each in (saved, model))
        if not np.allclose(theirs, ours, rtol=1e-3, atol=1e-6):
            rule = f"the data must be those of the training in {file.path}, but their {name} differs"
            raise OptionError("--resume", rule, saved=theirs, now=ours, hint=hint)


def _difference(saved: Model, model: Model) -> dict[str, str]:
    """Describe how the first layer that differs was saved, and how it is now; empty if none does."""
    descriptions = [json.loads(json.dumps(each.graph.description())) for each in (saved, model)]
    layers = [each["layers"] if isinstance(each, dict) else each for each in descriptions]
    for pair in itertools.zip_longest(*layers):
        if pair[0] != pair[1]:
            return {"saved": _layer(*pair), "now": _layer(*reversed(pair))}
    ends = [", ".join((*each.graph.inputs, *each.graph.outputs)) for each in (saved, model)]
    return {} if descriptions[0] == descriptions[1] else {"saved": ends[0], "now": ends[1]}


def _layer(layer: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    """A layer's name, and what it does not share with another one."""
    if layer is None:
        return "no such layer"
    mine, theirs = (
        {"kind": each["kind"], "inputs": each["inputs"], **each["config"]} for each in (layer, other or layer)
    )
    changed = {name: value for name, value in mine.items() if name != "name" and value != theirs.get(name)}
    return f"{mine['name']} ({', '.join(f'{name}={value}' for name, value in changed.items()) or mine['kind']})"


def _fill(options: argparse.Namespace, saved: Model | None) -> None:
    """Gives options that nobody has given, and that this command needs, what the interrupted training had."""
    state = saved.training_state if saved else None
    said: dict[str, Any] = {**state.settings, "seed": state.seed} if state else {}
    for name, default in DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, said[name] if is_int(said.get(name), min(default, 1)) else default)


def _optimizer(options: argparse.Namespace) -> optimizers.Optimizer | None:
    """The optimizer; None for that of the interrupted training."""
    if options.resume and all(getattr(options, name) is None for name in _OF_OPTIMIZER):
        return None
    name = options.optimizer or "adam"
    build: Any = optimizers.Optimizer.named(name)
    given = {name: getattr(options, name) for name in _KEYWORDS}
    rate = RATES.get(name, DEFAULT_RATE) if options.learning_rate is None else options.learning_rate
    return build(_schedule(options, rate), **{name: value for name, value in given.items() if value is not None})  # type: ignore[no-any-return]


def _schedule(options: argparse.Namespace, rate: float) -> float | schedules.Schedule:
    if options.schedule == "constant" and not options.warmup_epochs:
        return rate
    kind: Any = schedules.Schedule.named(options.schedule or "cosine")
    given = {"every_epochs": options.step_epochs or math.ceil(options.epochs / 3)}
    given["warmup_epochs"] = options.warmup_epochs or 0.0
    own = {item.name for item in fields(kind)}
    return kind(rate, **{name: value for name, value in given.items() if name in own})  # type: ignore[no-any-return]


def _held_out(options: argparse.Namespace, data: _Data) -> tuple[_Data, _Split | None]:
    """The data to train on and to test with at the end, and what is held out of the former, if anything."""
    if options.folds is not None:
        return data, None
    if data.validation is not None:
        if options.validation_fraction is not None:
            rule = "only a data set without a validation split can hold one out"
            raise OptionError("--validation-fraction", rule, data=data)
        return replace(data, validation=None), data.validation
    is_chosen = options.save_best or any(not kind.only_logs for kind in _given(options))
    fraction = options.validation_fraction
    if fraction is None and (is_chosen or data.test is None):
        fraction = DEFAULT_FRACTION
        if not round(fraction * len(data.train)):
            if is_chosen:
                rule, hint = "there must be samples to choose by, that are held out", "--validation-fraction 0.5, say."
                raise OptionError("--validation-fraction", rule, samples=len(data.train), hint=hint)
            said = f"{counted(len(data.train), 'sample')} are too few to hold a tenth out for validation, so none are"
            print(f"note: {said}; --validation-fraction holds out more", file=sys.stderr)
            return data, None
    if fraction is None:
        return data, None
    train, held_out = data.train.split_validation(fraction, options.seed)
    return replace(data, train=train), held_out


def _losses(options: argparse.Namespace, model: Model, data: NamedDataset) -> Any:
    """The loss of each output, by name."""
    found = losses_of(model, data, options.loss)
    if options.label_smoothing is not None:
        smoothed: list[Any] = [loss for loss in found if hasattr(loss, "label_smoothing")]
        if not smoothed:
            raise OptionError("--label-smoothing", "the loss of an output must have one", losses=found)
        change: Any = replace
        found = tuple(
            change(loss, label_smoothing=options.label_smoothing) if loss in smoothed else loss for loss in found
        )
    check_labels(model, found, data)
    return to_dict(model.graph.outputs, found)


def _loss(options: argparse.Namespace, data: Dataset) -> Loss:
    if isinstance(options.loss, Mapping):
        rule = "losses go by the names of outputs where the arrays of a data set do"
        raise OptionError("--loss", rule, loss=", ".join(options.loss), data=data)
    usual = CenterNet if data.has_boxes else CrossEntropy if data.classes else type(target_loss(data))
    kind = Loss.named(options.loss or "") or usual
    if kind.takes_boxes or data.has_boxes:
        if kind.takes_boxes and data.has_boxes and options.label_smoothing is None:
            return loss_of_boxes(data)
        rule = "boxes take the loss center-net, and no other labels do; it has no smoothing"
        raise OptionError("--loss", rule, loss=options.loss, label_smoothing=options.label_smoothing, data=data)
    if kind.takes_classes != bool(data.classes):
        wanted = "classes" if kind.takes_classes else "targets, not classes"
        raise OptionError("--loss", f"the data set must have {wanted}", loss=options.loss, data=data)
    if options.label_smoothing is None:
        return kind().ignoring(data.ignored_label)
    if not hasattr(kind, "label_smoothing"):
        if not data.classes and not data.has_several:
            raise OptionError("--label-smoothing", "the data set must have classes, not targets", data=data)
        raise OptionError("--label-smoothing", "the loss must have one", loss=options.loss)
    smoothed: Any = kind
    return smoothed(label_smoothing=options.label_smoothing).ignoring(data.ignored_label)  # type: ignore[no-any-return]


def _note_odd_labels(data: Dataset, loss: str | None) -> None:
    """Points out classes that go by numbers which no label has, and targets that look like classes."""
    labels, said = data.train.y, ""
    if data.has_boxes:
        return
    if data.classes and not are_names(data.class_names):
        counts = _counts(data.train, data.classes)
        empty = [str(number) for number in np.flatnonzero(counts == 0)]
        if empty:
            which = f"{len(empty)} of {data.classes}: {short_list(empty)}"
            said = f"{data.name} has no samples of some classes, which are counted from 0: {which}"
            if data.positions:
                used = short_list([str(number) for number in np.flatnonzero(counts)])
                said += f"; masks of {used} should become masks of 0, 1, ..."
    elif not data.classes and loss is None and _are_whole(labels):
        said = f"the labels of {data.name} are of the type {labels.dtype}, so they are targets, not classes: "
        said += "whole numbers of an integer type are classes"
    if said:
        print(f"note: {said}", file=sys.stderr)


def _are_whole(labels: Any) -> bool:
    """Return True if targets, one for each sample, in memory, could be numbers of classes."""
    is_column = isinstance(labels, np.ndarray) and labels.ndim == 1
    return is_column and bool((labels >= 0).all() and (labels == np.rint(labels)).all())


def _counts(split: Split, classes: int) -> npt.NDArray[np.int64]:
    """Return the number of labels of each class, without those that take no part."""
    counts = np.zeros(classes, np.int64)
    for _, labels in chunks(split.y):
        counts += np.bincount(labels.reshape(-1).astype(np.int64), minlength=classes)[:classes]
    return counts


def _note_lost_classes(data: Dataset, held_out: Split | None) -> None:
    """Points out classes of which nothing is left to train on."""
    if held_out is not None and data.classes and not data.positions and not data.has_boxes:
        left, others = (_counts(split, data.classes) for split in (data.train, held_out))
        lost = [data.class_names[number] for number in np.flatnonzero((left == 0) & (others > 0))]
        if lost:
            said = f"all samples of {short_list(lost)} are held out for validation, and none is trained on"
            print(f"note: {said}", file=sys.stderr)


def _note_few_steps(batch_size: int, count: int) -> None:
    """Points out a batch that leaves an epoch of ``count`` samples few steps."""
    steps = math.ceil(count / batch_size)
    if steps < _FEW_STEPS <= count:
        said = f"an epoch has {counted(steps, 'step')}: {counted(count, 'sample')} in batches of {batch_size}"
        print(f"note: {said}; a smaller --batch-size takes more", file=sys.stderr)


def _measured(history: Mapping[str, Sequence[float]], epoch: int) -> str:
    """The measures after an epoch: on what is held out, else on what was trained on."""
    part, prefix = ("validation", "validation_") if "validation_loss" in history else ("training", "")
    names = [name.removeprefix(prefix) for name in history if name.startswith(prefix)]
    measured = {name: history[prefix + name][epoch - 1] for name in names}
    return _result(part, {name: value for name, value in measured.items() if not name.startswith("validation_")})


def _result(part: str, measured: Mapping[str, float]) -> str:
    if "accuracy" in measured:
        return f"{part} accuracy {measured['accuracy']:.4f} (loss {measured['loss']:.4f})"
    # Of several outputs each has its own.
    others = [name.rpartition("_") for name in measured if name.endswith(("_loss", "_accuracy"))]
    found = [f"{output} {metric} {measured[f'{output}_{metric}']:.4f}" for output, _, metric in others]
    listed = ", ".join(found or [f"{name} {value:.4f}" for name, value in measured.items() if name != "loss"])
    return f"{part} loss {measured['loss']:.4f}{f' ({listed})' if listed else ''}"
