"""Pictures in files as samples, decoded when they are read."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.file_source import check_unwritten, written
from blobnet.datasets.packed import File, Packed
from blobnet.datasets.picture_workers import PictureWorkers
from blobnet.datasets.source import Rows, Source
from blobnet.errors import FileError

#: How many samples of larger files are shuffled among themselves, where nobody says it.
SHUFFLE_BUFFER = 4096


class PictureSource(Source):  # type: ignore[misc]  # mypy sees this package under another name
    """Pictures, decoded and resized by processes side by side when they are asked for: (N, units, H, W).

    Their pixels are those of :func:`read_image`, with any number of workers. Masks are (N, H, W), as :func:`read_mask`
    has them. A picture that is read again must not have been written to.

    Args:
        paths: the pictures.
        size: (height, width) to which they are resized; of volumes their (depth, height, width).
        units: 1 for gray, 3 for RGB; None for masks.
        workers: the processes, or how many there may be; 0 decodes in the thread that asks, None takes one for each
            core. They start when something is read, and end with this object.
        subject: what errors call it.
        dtype: uint8, or float32 where pictures of more than 8 bits are among them.

    Attributes:
        shuffle_buffer: how many pictures inside larger files are shuffled among themselves in an epoch.

    Raises:
        OptionError: the number of workers is negative.
    """

    is_parallel = True
    shuffle_buffer = SHUFFLE_BUFFER

    def __init__(
        self,
        paths: Sequence[File],
        size: tuple[int, ...],
        units: int | None,
        workers: PictureWorkers | int | None = None,
        subject: str = "pictures",
        dtype: npt.DTypeLike = np.uint8,
    ) -> None:
        self.subject, self.dtype = subject, np.dtype(dtype)
        self.shape = (len(paths), *([] if units is None else [units]), *size)
        self.workers = workers if isinstance(workers, PictureWorkers) else PictureWorkers(workers)
        self._paths, self._are_masks = list(paths), units is None
        #: :func:`written` of each picture when it was read.
        self._written = np.full((len(paths), 2), -1, np.int64)

    def read(self, rows: Rows, out: npt.NDArray[Any]) -> None:
        """Read as :meth:`Source.read`; a picture that cannot be read any more is a FileError that names it."""
        paths = [self._paths[row] for row in rows]
        self.workers.decode(paths, out, are_masks=self._are_masks)
        for row, path in zip(rows, paths, strict=True):
            try:
                now = written(path)
            except OSError as error:
                raise FileError(str(path), "the picture must stay readable", reason=error) from error
            before = int(self._written[row, 0]), int(self._written[row, 1])
            check_unwritten(self.subject, path, now if before[0] < 0 else before, now)
            self._written[row] = now

    def resized(self, height: int, width: int) -> Source:
        other = copy.copy(self)
        other.shape = (*self.shape[:-2], height, width)
        return other

    def order(self, rows: Rows, generator: np.random.Generator) -> Rows | None:
        """Return the order in which larger files are read one after another, and their pictures near one another."""
        numbers: dict[Hashable, int] = {}
        pieces = np.array([numbers.setdefault(_piece(self._paths[row]), len(numbers)) for row in rows], np.int64)
        if numbers.keys() <= {None}:
            return None
        order = np.lexsort((rows, generator.permutation(len(numbers))[pieces]))
        for first in range(0, len(order), self.shuffle_buffer):
            generator.shuffle(order[first : first + self.shuffle_buffer])
        return order


def _piece(file: File) -> Hashable:
    return file.piece if isinstance(file, Packed) else None
