"""What may happen between the epochs, and the steps, of a training."""

from __future__ import annotations

import contextlib
import csv
import inspect
import io
import itertools
import math
import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from blobnet.errors import FileError, OptionError, add_sentence, counted, extra, near_matches, nearest, warn
from blobnet.files.atomic import check_writable, held, write
from blobnet.files.checkpoint import ModelFile, check_name, save
from blobnet.memory.blob import FLOAT32
from blobnet.metrics import FALLING
from blobnet.network.ends import by_name, losses_description
from blobnet.parallel.world import World
from blobnet.support.checks import check_count, check_number
from blobnet.support.foreign import Explained

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "ReduceOnPlateau",
    "SaveBest",
    "TensorBoard",
]


class Callback(metaclass=Explained):
    """Base of all callbacks; every method does nothing.

    Attributes:
        only_logs: whether it changes nothing in the training; of several ranks the first alone has such callbacks.
    """

    only_logs: ClassVar[bool] = False

    def begin(self, progress: Progress) -> None:
        """Before the first epoch."""

    def step_end(self, progress: Progress) -> None:
        """After every step, whose work may still be on its way; the model keeps the weights of the epoch before."""

    def epoch_end(self, progress: Progress) -> None:
        """After every epoch; ``progress.history`` ends with its values."""

    def end(self, progress: Progress) -> None:
        """After the last epoch, unless an error ended the training."""

    def failed(self, error: BaseException) -> None:
        """After an error, or Ctrl-C, that has ended the training since its first step; it is raised behind this."""

    def release(self) -> None:
        """After all that, and after an error too, even one before :meth:`begin`: gives back what is held."""


def check_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """The callbacks that ``fit`` was given: a list of them, or a single one.

    Raises:
        OptionError: something else.
    """
    members = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for member in members:
        if not isinstance(member, Callback):
            received = member if isinstance(member, type) else type(member)
            hint = "a class of yours derives from blobnet.callbacks.Callback; give the callback, not its class."
            raise OptionError("callbacks", "each must be a Callback", type=received.__name__, hint=hint)
        _check_hooks(member)
    return members


def _check_hooks(callback: Callback) -> None:
    """Warns of methods that look like hooks and that nobody calls; OptionError for a hook of other parameters."""
    hooks = {name: hook for name, hook in vars(Callback).items() if inspect.isfunction(hook)}
    kind = type(callback)
    for name in dir(kind):
        if name.startswith("on_") and callable(getattr(kind, name)):
            # Keras and Lightning say batch where this is a step, and call the whole training train or fit.
            meant = re.sub(r"^on_((train|fit)_)?", "", name).replace("batch", "step")
            near = nearest(meant, [meant] if meant in hooks else hooks)
            hint = near or f"the hooks are {', '.join(hooks)}."
            warn(kind.__name__, "no hook of a training has this name, so nobody calls it", method=name, hint=hint)
    for name, hook in hooks.items():
        wanted = list(inspect.signature(hook).parameters)[1:]
        try:
            inspect.signature(getattr(callback, name)).bind(*wanted)
        except TypeError as error:
            rule, hint = f"{name} must take what it is given", f"def {name}({', '.join(['self', *wanted])})."
            raise OptionError(kind.__name__, rule, cause=error, hint=hint) from error


class _FileCallback(Callback):
    """What writes a file, which nobody else may write from :meth:`hold` to :meth:`release`.

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._held: contextlib.ExitStack | None = None

    def hold(self) -> None:
        """Keeps other trainings, and other callbacks, from writing the file, if that is not done yet.

        Raises:
            FileError: one of them writes it.
        """
        if self._held is None:
            stack = contextlib.ExitStack()
            stack.enter_context(held(self.path))
            self._held = stack

    def begin(self, progress: Progress) -> None:
        if progress.writes:
            self.hold()

    def release(self) -> None:
        stack, self._held = self._held, None
        if stack is not None:
            stack.close()


class Checkpoint(_FileCallback):
    """Saves a file that training can be resumed from, all or nothing, after every ``every`` epochs and at the end.

    Args:
        path: the HDF5 file.
        every: epochs between two files.
        class_names: names of the classes, kept with the model; those of the model itself if there are none.
        every_steps: also save in the middle of epochs, whenever so many steps are done, counted over all epochs; a
            training that is resumed from there leaves out what the epoch has seen, and goes on with its metrics.
        keep_best: whether the file's weights are those of the best epoch, where an EarlyStopping in front of this
            callback restores that one; the last ones then lie beside them, for resuming. Without, a training that is
            resumed behind its best epoch cannot restore it.

    Attributes:
        epoch: the finished epochs, behind which the file can be resumed; 0 while there is none.
        step: the finished steps, if the file holds a part of an epoch besides; else 0.

    Raises:
        FileError: the name is that of another format; (before the first epoch) the file cannot be written, or another
            training or callback writes it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: int = 1,
        class_names: tuple[str, ...] = (),
        every_steps: int | None = None,
        keep_best: bool = False,
    ) -> None:
        super().__init__(path)
        check_name(path)
        self.keep_best = keep_best
        self.every = check_count("Checkpoint", "every", every)
        self.every_steps = None if every_steps is None else check_count("Checkpoint", "every_steps", every_steps)
        self.class_names = class_names
        self.epoch = self.step = 0
        self._world: World | None = None

    @property
    def state(self) -> str:
        """What is safe on disk, as a sentence."""
        if self.step:
            return f"The last checkpoint is {self.path} (in epoch {self.epoch + 1}, after step {self.step})."
        if self.epoch:
            return f"The last checkpoint is {self.path} (epoch {self.epoch})."
        return f"There is no checkpoint yet{f', {self.path} is as it was' if Path(self.path).exists() else ''}."

    def failed(self, error: BaseException) -> None:
        add_sentence(error, self.state)

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        _check_room(self.path, progress, copies=1 + self.keep_best)
        self._world = progress.trainer.step.world
        self._world.last_words(lambda: self.state, partial(self._rescue, progress))

    def release(self) -> None:
        super().release()
        if self._world is not None:
            self._world.last_words(lambda: self.state)
            self._world = None

    def _rescue(self, progress: Progress) -> None:
        """Saves what the last step has left, where another rank is lost in the next one."""
        trainer = progress.trainer
        if trainer.step.go_back():
            trainer.check()
            _save(self.path, progress, self.class_names, self.keep_best, is_alone=True)
            self.epoch, self.step = trainer.epoch, trainer.step.number if trainer.batches else 0

    def step_end(self, progress: Progress) -> None:
        if self.every_steps and progress.trainer.step.number % self.every_steps == 0:
            self._save_within(progress)

    def _save_within(self, progress: Progress) -> None:
        """Saves in the middle of an epoch; a training that has come apart leaves the last file as it is."""
        progress.trainer.check()
        _save(self.path, progress, self.class_names, self.keep_best)
        self.step = progress.trainer.step.number

    def epoch_end(self, progress: Progress) -> None:
        if progress.trainer.epoch % self.every == 0 or progress.trainer.epoch == progress.epochs or progress.stop:
            self._save(progress)

    def end(self, progress: Progress) -> None:
        # A callback behind this one may have stopped the training, between two files.
        if progress.trainer.epoch % self.every and progress.trainer.epoch != self.epoch:
            self._save(progress)

    def _save(self, progress: Progress) -> None:
        _save(self.path, progress, self.class_names, self.keep_best)
        self.epoch, self.step = progress.trainer.epoch, 0


def _check_room(path: str | os.PathLike[str], progress: Progress, copies: int = 1) -> None:
    """Raises FileError if :func:`_save` will not be able to write, with so many weights."""
    step = progress.trainer.step
    table, slots = step.parameters.table, len(step.optimizer.state_slots)
    values = table.type.itemsize * table.elements * copies * (1 + (step.average is not None))
    state = FLOAT32.itemsize * table.trainable_elements * slots
    # The new file is complete before the old one goes.
    files = 1 if Path(path).exists() else 2
    if progress.writes:
        check_writable(path, files * (values + state))


def _save(
    path: str | os.PathLike[str],
    progress: Progress,
    class_names: tuple[str, ...],
    keep_best: bool = False,
    *,
    is_alone: bool = False,
) -> None:
    """The model of now, or if it is wanted and there is one, that of the best epoch; with what resuming needs.

    Of several ranks the first writes it, or this one if it ``is_alone``.
    """
    trainer = progress.trainer
    now, step = trainer.weights(), trainer.step
    kept = progress.best if keep_best and progress.best is not None else now
    file = ModelFile(
        description=step.graph.description(),
        weights=kept,
        class_names=class_names or progress.class_names,
        history=progress.history,
        loss=losses_description(by_name([head.name for head in step.heads], step.losses)),
        training=trainer.state(is_whole=kept is not now),
    )
    # NOTE: the state within an epoch is one of all ranks together, each of which must ask for it.
    if progress.writes or is_alone:
        save(path, file)


class _Monitor(Callback):
    """What the callbacks share that look for the best value of the history.

    Attributes:
        waited: epochs since the best one; 0 right after it.
    """

    def __init__(self, monitor: str, minimum_change: float, falls: bool | None) -> None:
        if not isinstance(monitor, str):
            hint = "give numbers by name, patience=3 say."
            raise OptionError(type(self).__name__, "monitor must be the name of a value", monitor=monitor, hint=hint)
        self.monitor = monitor
        self.minimum_change = minimum_change
        # Of several outputs an error stands behind the output's name.
        is_error = "loss" in monitor or any(f"_{monitor}".endswith(f"_{name}") for name in FALLING)
        self.falls = is_error if falls is None else falls
        self.waited = 0
        self._best: float | None = None

    def begin(self, progress: Progress) -> None:
        if self.monitor not in progress.metrics:
            rule = "monitor must be one of the values that this training measures"
            hint = near_matches(self.monitor, progress.metrics)
            if self.monitor.startswith("validation_"):
                hint = "train with validation data, or monitor another value."
                if any(name.startswith("validation_") for name in progress.metrics):
                    hint = "fit(metrics=...) measures more of the validation data."
            raise OptionError(type(self).__name__, rule, monitor=self.monitor, hint=hint)
        self._best, self.waited = None, 0
        # A resumed training goes on waiting.
        for value in progress.history.get(self.monitor, []):
            self._judge(value)

    def epoch_end(self, progress: Progress) -> None:
        self._judge(progress.history[self.monitor][-1])

    def _judge(self, value: float) -> None:
        gain = 0.0 if self._best is None else self._best - value if self.falls else value - self._best
        if not math.isnan(value) and (self._best is None or gain > self.minimum_change):
            self._best, self.waited = value, 0
        else:
            self.waited += 1


class SaveBest(_Monitor, _FileCallback):
    """Saves a file whenever a value of the history has become better than it ever was, all or nothing.

    Args:
        path: the HDF5 file; training can be resumed from it, behind its epoch.
        monitor: a name in the history: ``validation_loss``, ``validation_accuracy``, ``loss``, ...
        minimum_change: what counts as better.
        falls: whether less is better; None: for losses and errors (``loss``, ``mae``, ``rmse``).
        class_names: names of the classes, kept with the model; those of the model itself if there are none.

    Raises:
        FileError: the name is that of another format; (before the first epoch) the file cannot be written, or another
            training or callback writes it.
        OptionError: (before the first epoch) nothing measures ``monitor``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        monitor: str = "validation_loss",
        minimum_change: float = 0.0,
        falls: bool | None = None,
        class_names: tuple[str, ...] = (),
    ) -> None:
        _Monitor.__init__(self, monitor, minimum_change, falls)
        _FileCallback.__init__(self, path)
        check_name(path)
        self.class_names = class_names

    def begin(self, progress: Progress) -> None:
        _Monitor.begin(self, progress)
        _FileCallback.begin(self, progress)
        _check_room(self.path, progress)

    def epoch_end(self, progress: Progress) -> None:
        super().epoch_end(progress)
        if not self.waited:
            _save(self.path, progress, self.class_names)


class ReduceOnPlateau(_Monitor):
    """Multiplies the learning rate by ``factor`` when a value has not become better for ``patience`` epochs.

    It does so again after as many further epochs. The factor is one of the schedule's rates, whatever schedule that is.

    Args:
        monitor: a name in the history: ``validation_loss``, ``validation_accuracy``, ``loss``, ...
        factor: above 0 and below 1.
        patience: epochs to wait.
        minimum_change: what counts as better.
        falls: whether less is better; None: for losses and errors (``loss``, ``mae``, ``rmse``).

    Raises:
        OptionError: a value out of its range; or, before the first epoch, nothing measures ``monitor``.
    """

    def __init__(
        self,
        monitor: str = "validation_loss",
        factor: float = 0.5,
        patience: int = 3,
        minimum_change: float = 0.0,
        falls: bool | None = None,
    ) -> None:
        check_number("ReduceOnPlateau", "factor", factor, above=0, below=1)
        super().__init__(monitor, minimum_change, falls)
        self.factor = factor
        self.patience = check_count("ReduceOnPlateau", "patience", patience)
        self._reductions = 0

    def begin(self, progress: Progress) -> None:
        self._reductions = 0
        super().begin(progress)
        progress.trainer.rate_factor *= self.factor**self._reductions

    def epoch_end(self, progress: Progress) -> None:
        before = self._reductions
        super().epoch_end(progress)
        progress.trainer.rate_factor *= self.factor ** (self._reductions - before)

    def _judge(self, value: float) -> None:
        super()._judge(value)
        if self.waited >= self.patience:
            self.waited = 0
            self._reductions += 1


class EarlyStopping(_Monitor):
    """Stops when a value of the history has not become better for ``patience`` epochs.

    Args:
        monitor: a name in the history: ``validation_loss``, ``validation_accuracy``, ``loss``, ...
        patience: epochs to wait.
        minimum_change: what counts as better.
        restore_best: whether to end with the weights of the best epoch.
        falls: whether less is better; None: for losses and errors (``loss``, ``mae``, ``rmse``).

    Raises:
        OptionError: patience is not a positive int; or, before the first epoch, nothing measures ``monitor``.
    """

    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 3,
        minimum_change: float = 0.0,
        restore_best: bool = True,
        falls: bool | None = None,
    ) -> None:
        super().__init__(monitor, minimum_change, falls)
        self.patience = check_count("EarlyStopping", "patience", patience)
        self.restore_best = restore_best

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        trainer = progress.trainer
        if progress.history.get(self.monitor) and self.restore_best:
            # The best epoch's weights are there if it was the last one, or if the file kept them.
            is_last = not self.waited and not trainer.batches
            if not is_last and trainer.best is None:
                rule = "a training that was interrupted after its best epoch cannot restore that epoch's weights"
                hint = "resume from the best epoch's file, or from one of Checkpoint(keep_best=True)."
                raise OptionError("EarlyStopping", rule, epochs_since=self.waited, hint=hint)
            progress.best = trainer.weights() if is_last else trainer.best
        if not trainer.batches:
            self._stop(progress)

    def epoch_end(self, progress: Progress) -> None:
        super().epoch_end(progress)
        if not self.waited and self.restore_best:
            progress.best = progress.trainer.weights()
        self._stop(progress)

    def _stop(self, progress: Progress) -> None:
        if self.waited >= self.patience:
            best = "NaN" if self._best is None else f"{self._best:.4f}"
            progress.stop = f"{self.monitor} has not become better than {best} for {counted(self.patience, 'epoch')}"

    def end(self, progress: Progress) -> None:
        if progress.best is not None:
            progress.trainer.step.result.write(progress.best)
            progress.is_resumable = not self.waited


class CSVLog(_FileCallback):
    """Writes the history as CSV, a line an epoch; the file is replaced whole after each.

    Args:
        path: the file.

    Raises:
        FileError: (before the first epoch) the file cannot be written, or another training or callback writes it.
    """

    only_logs = True

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        self._write(progress)

    def epoch_end(self, progress: Progress) -> None:
        self._write(progress)

    def _write(self, progress: Progress) -> None:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["epoch", *progress.history])
        rows = itertools.zip_longest(*progress.history.values(), fillvalue=math.nan)
        writer.writerows([epoch, *values] for epoch, values in enumerate(rows, start=1))
        # As a whole: what was logged outlives a kill and a full disk.
        write(self.path, text.getvalue().encode())


class TensorBoard(Callback):
    """Writes the history, and the learning rate, for TensorBoard; needs tensorboardX.

    Args:
        folder: where its event files go; it is made if there is none.

    Raises:
        OptionError: tensorboardX is not installed.
        FileError: (before the first epoch) the folder cannot be written to.
    """

    only_logs = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            rule = "logging needs tensorboardX"
            raise OptionError("TensorBoard", rule, cause=error, hint=extra("tensorboard")) from error
        self.folder = Path(folder)
        self._writer: Any = None

    def begin(self, progress: Progress) -> None:
        from tensorboardX import SummaryWriter

        try:
            self._writer = SummaryWriter(str(self.folder))
        except OSError as error:
            raise FileError(str(self.folder), "the logs must be writable", cause=error) from error

    def epoch_end(self, progress: Progress) -> None:
        epoch = progress.trainer.epoch
        values = {name: values[-1] for name, values in progress.history.items()}
        for name, value in {**values, "learning_rate": progress.trainer.learning_rate}.items():
            part, _, rest = name.partition("validation_")
            self._writer.add_scalar(f"{rest}/validation" if not part else f"{name}/training", value, epoch)
        self._writer.flush()

    def end(self, progress: Progress) -> None:
        self._writer.close()
