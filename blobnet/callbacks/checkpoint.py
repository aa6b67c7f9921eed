"""The callback Checkpoint."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blobnet.errors import add_sentence
from blobnet.files.atomic import check_writable
from blobnet.files.checkpoint import ModelFile, check_name, save
from blobnet.memory.blob import FLOAT32
from blobnet.network.ends import losses_description, to_dict
from blobnet.parallel.world import World
from blobnet.support.checks import check_count

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress
from blobnet.callbacks.base import _FileCallback


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
            resumed after its best epoch cannot restore it.

    Attributes:
        epoch: the finished epochs, after which the file can be resumed; 0 while there is none.
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
        """Return what is safe on disk, as a sentence."""
        if self.step:
            return f"The last checkpoint is {self.path} (in epoch {self.epoch + 1}, after step {self.step})."
        if self.epoch:
            return f"The last checkpoint is {self.path} (epoch {self.epoch})."
        return f"There is no checkpoint yet{f', {self.path} is as it was' if _is_there(self.path) else ''}."

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
        # A callback after this one may have stopped the training, between two files.
        if progress.trainer.epoch % self.every and progress.trainer.epoch != self.epoch:
            self._save(progress)

    def _save(self, progress: Progress) -> None:
        _save(self.path, progress, self.class_names, self.keep_best)
        self.epoch, self.step = progress.trainer.epoch, 0


def _is_there(path: str | os.PathLike[str]) -> bool:
    """Return True if there is such a file, as far as this user may see."""
    with contextlib.suppress(OSError):
        return Path(path).exists()
    return False


def _check_room(path: str | os.PathLike[str], progress: Progress, copies: int = 1) -> None:
    """Raises FileError if :func:`_save` will not be able to write, with so many weights."""
    step = progress.trainer.step
    table, slots = step.parameters.table, len(step.settings.optimizer.state_slots)
    values = table.type.itemsize * table.elements * copies * (1 + (step.settings.average is not None))
    state = FLOAT32.itemsize * table.trainable_elements * slots
    # The new file is complete before the old one goes.
    files = 1 if _is_there(path) else 2
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
        description=trainer.graph.description(),
        weights=kept,
        class_names=class_names or progress.class_names,
        pretrained=progress.pretrained,
        history=progress.history,
        loss=losses_description(to_dict([head.name for head in step.heads], step.losses)),
        training=trainer.state(is_whole=kept is not now),
    )
    # NOTE: the state within an epoch is one of all ranks together, each of which must ask for it.
    if progress.writes or is_alone:
        save(path, file)
