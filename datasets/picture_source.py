"""Pictures in files as samples, decoded when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.picture_workers import PictureWorkers
from blobnet.datasets.source import Rows, Source


class PictureSource(Source):  # type: ignore[misc]  # mypy sees this package under another name
    """Pictures, decoded and resized by processes side by side when they are asked for: (N, units, H, W), uint8.

    Their pixels are those of :func:`read_image`, with any number of workers. Masks are (N, H, W), as :func:`read_mask`
    has them.

    Args:
        paths: the pictures.
        size: (height, width) to which they are resized.
        units: 1 for gray, 3 for RGB; None for masks.
        workers: the processes, or how many there may be; 0 decodes in the thread that asks, None takes one for each
            core. They start when something is read, and end with this object.
        subject: what errors call it.

    Raises:
        OptionError: the number of workers is negative.
    """

    is_parallel = True

    def __init__(
        self,
        paths: Sequence[Path],
        size: tuple[int, int],
        units: int | None,
        workers: PictureWorkers | int | None = None,
        subject: str = "pictures",
    ) -> None:
        self.subject, self.dtype = subject, np.dtype(np.uint8)
        self.shape = (len(paths), *([] if units is None else [units]), *size)
        self.workers = workers if isinstance(workers, PictureWorkers) else PictureWorkers(workers)
        self._paths = list(paths)

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        """As :meth:`Source.read`; a picture that cannot be read any more is a FileError that names it."""
        self.workers.decode([self._paths[row] for row in rows], out)
