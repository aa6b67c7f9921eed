"""The callback EarlyStopping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blobnet.errors import OptionError, counted
from blobnet.support.checks import check_count

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress
from blobnet.callbacks.base import _Monitor


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

    option = (
        "patience",
        "--early-stopping N  stop when the validation loss has not fallen for N epochs; the file keeps the best epoch",
    )

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
