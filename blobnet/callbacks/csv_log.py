"""The callback CSVLog."""

from __future__ import annotations

import csv
import io
import itertools
import math
from typing import TYPE_CHECKING

from blobnet.files.atomic import write

if TYPE_CHECKING:
    from blobnet.training.trainer import Progress
from blobnet.callbacks.base import _FileCallback


class CSVLog(_FileCallback):
    """Writes the history as CSV, a line an epoch; the file is replaced whole after each.

    Args:
        path: the file.

    Raises:
        FileError: (before the first epoch) the file cannot be written, or another training or callback writes it.
    """

    only_logs = True
    option = ("path", "--csv FILE  log the metrics, a line an epoch")

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
