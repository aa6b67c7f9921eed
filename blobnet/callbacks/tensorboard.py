"""The callback TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blobnet.errors import FileError, OptionError, extra

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress
from blobnet.callbacks.base import Callback


class TensorBoard(Callback):
    """Writes the history, and the learning rate, for TensorBoard; needs tensorboardX.

    Args:
        folder: where its event files go; it is made if there is none.

    Raises:
        OptionError: tensorboardX is not installed.
        FileError: (before the first epoch) the folder cannot be written to.
    """

    only_logs = True
    option = ("folder", "--tensorboard DIR  log the metrics for TensorBoard (needs tensorboardX)")

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
