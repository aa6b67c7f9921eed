"""The callback SaveBest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from blobnet.files.checkpoint import check_name

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress
from blobnet.callbacks.base import _FileCallback, _Monitor
from blobnet.callbacks.checkpoint import _check_room, _save


class SaveBest(_Monitor, _FileCallback):
    """Saves a file whenever a value of the history has become better than it ever was, all or nothing.

    Args:
        path: the HDF5 file; training can be resumed from it, after its epoch.
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
