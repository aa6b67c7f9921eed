"""What may happen between the epochs of a training."""

from __future__ import annotations

import csv
import itertools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from blobnet.blob import FloatArray
from blobnet.checkpoint import ModelFile, check_writable, save
from blobnet.errors import FileError, OptionError, near_matches
from blobnet.geometry import check_count

if TYPE_CHECKING:
    from blobnet.trainer import Progress


class Callback:
    """Base of all callbacks; every method does nothing."""

    def begin(self, progress: Progress) -> None:
        """Before the first epoch."""

    def epoch_end(self, progress: Progress) -> None:
        """After every epoch; ``progress.history`` ends with its values."""

    def end(self, progress: Progress) -> None:
        """After the last epoch, unless an error ended the training."""


class Checkpoint(Callback):
    """Saves a file that training can be resumed from, all or nothing, after every ``every`` epochs and at the end.

    Args:
        path: the HDF5 file.
        every: epochs between two files.
        class_names: names of the classes, kept with the model; those of the model itself if there are none.

    Raises:
        FileError: (before the first epoch) the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 1, class_names: tuple[str, ...] = ()) -> None:
        check_count("Checkpoint", "every", every)
        self.path = path
        self.every = every
        self.class_names = class_names
        self._saved = 0

    def begin(self, progress: Progress) -> None:
        step = progress.trainer.step
        slots = len(step.optimizer.state_slots)
        # The new file is complete before the old one goes.
        files = 1 if Path(self.path).exists() else 2
        check_writable(self.path, files * 4 * step.parameters.table.elements * (1 + slots))

    def epoch_end(self, progress: Progress) -> None:
        if progress.trainer.epoch % self.every == 0 or progress.trainer.epoch == progress.epochs or progress.stop:
            self._save(progress)

    def end(self, progress: Progress) -> None:
        # A callback behind this one may have stopped the training, between two files.
        if progress.trainer.epoch % self.every and progress.trainer.epoch != self._saved:
            self._save(progress)

    def _save(self, progress: Progress) -> None:
        trainer = progress.trainer
        loss = trainer.step.loss
        save(
            self.path,
            ModelFile(
                description=trainer.step.graph.description(),
                weights=trainer.weights(),
                class_names=self.class_names or progress.class_names,
                history=progress.history,
                loss={"kind": type(loss).__name__, "config": loss.config()},
                training=trainer.state(),
            ),
        )
        self._saved = trainer.epoch


class EarlyStopping(Callback):
    """Stops when a value of the history has not become better for ``patience`` epochs.

    Args:
        monitor: a name in the history: ``validation_loss``, ``validation_accuracy``, ``loss``, ...
        patience: epochs to wait.
        minimum_change: what counts as better.
        restore_best: whether to end with the weights of the best epoch.

    Raises:
        OptionError: patience is not a positive int; or, before the first epoch, nothing measures ``monitor``.
    """

    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 3,
        minimum_change: float = 0.0,
        restore_best: bool = True,
    ) -> None:
        check_count("EarlyStopping", "patience", patience)
        self.monitor = monitor
        self.patience = patience
        self.minimum_change = minimum_change
        self.restore_best = restore_best
        self._best: float | None = None
        self._waited = 0
        self._weights: dict[str, FloatArray] = {}

    @property
    def waited(self) -> int:
        """Epochs since the best one; 0 right after it."""
        return self._waited

    def begin(self, progress: Progress) -> None:
        if self.monitor not in progress.metrics:
            rule = "monitor must be one of the values that this training measures"
            hint = near_matches(self.monitor, progress.metrics)
            if self.monitor.startswith("validation_"):
                hint = "train with validation data, or monitor another value."
            raise OptionError("EarlyStopping", rule, monitor=self.monitor, hint=hint)
        self._best, self._waited, self._weights = None, 0, {}
        # A resumed training goes on waiting; the best epoch's weights are there only if it was the last one.
        values = progress.history.get(self.monitor, [])
        for value in values:
            self._judge(value)
        if values and self.restore_best:
            if self._waited:
                rule = "a training that was interrupted after its best epoch cannot restore that epoch's weights"
                hint = "resume from the best epoch's file, or give restore_best=False."
                raise OptionError("EarlyStopping", rule, epochs_since=self._waited, hint=hint)
            self._weights = progress.trainer.weights()

    def epoch_end(self, progress: Progress) -> None:
        self._judge(progress.history[self.monitor][-1])
        if not self._waited:
            self._weights = progress.trainer.weights() if self.restore_best else {}
        elif self._waited >= self.patience:
            best = "NaN" if self._best is None else f"{self._best:.4f}"
            progress.stop = f"{self.monitor} has not become better than {best} for {self.patience} epochs"

    def _judge(self, value: float) -> None:
        # Losses should fall, everything else should rise.
        gain = 0.0 if self._best is None else self._best - value if "loss" in self.monitor else value - self._best
        if not math.isnan(value) and (self._best is None or gain > self.minimum_change):
            self._best, self._waited = value, 0
        else:
            self._waited += 1

    def end(self, progress: Progress) -> None:
        if self._weights:
            progress.trainer.step.result.write(self._weights)
            progress.is_resumable = not self._waited


class CSVLog(Callback):
    """Writes the history as CSV, a line an epoch.

    Raises:
        FileError: (before the first epoch) the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def begin(self, progress: Progress) -> None:
        self._write(progress)

    def epoch_end(self, progress: Progress) -> None:
        self._write(progress)

    def _write(self, progress: Progress) -> None:
        names = list(progress.history)
        try:
            with self.path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["epoch", *names])
                rows = itertools.zip_longest(*progress.history.values(), fillvalue=math.nan)
                for epoch, values in enumerate(rows, start=1):
                    writer.writerow([epoch, *values])
        except OSError as error:
            raise FileError(str(self.path), "the CSV log must be writable", cause=error) from error
