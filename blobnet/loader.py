"""Batches on their way to a device: gathered ahead of it, and fetched while it works."""

from __future__ import annotations

import itertools
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import check_array_type, check_finite
from blobnet.datasets.source import Rows, Source, check_kept, kept_type
from blobnet.errors import DataError
from blobnet.executor import Executor
from blobnet.planning import sample_slots

#: Batches that are gathered ahead of the device: enough for a source whose batches take unequal time.
_PIECES = 4
#: Bytes of a batch up to which threads cost more than they take over.
_LEAST_SHARED = 1 << 20
#: Threads that gather; more than 8 do not make memory faster.
_MOST_THREADS = min(8, os.cpu_count() or 1)
#: Bytes that go to the device at a time when a whole data set does.
_LOAD_BYTES = 1 << 25
#: The part of a device's free memory that a data set may take; the host's memory holds the data already.
_SHARE_OF_MEMORY, _SHARE_OF_HOST = 1 / 2, 1 / 16

#: Labels as words of 4 bytes, a row for each sample.
Labels = npt.NDArray[np.int32]


class Reader(ABC):
    """What gives batches: samples, and labels where there are some.

    Attributes:
        sample_type: NumPy's name for the type of its samples.
        threads: how many threads may fill at the same time.
        is_quick: whether that only copies memory.
    """

    sample_type: str
    threads = 1
    is_quick = False

    @abstractmethod
    def fill(self, job: Any, samples: npt.NDArray[Any] | None, labels: Labels | None, part: slice) -> int:
        """Writes a part of a batch.

        Args:
            job: which batch: the numbers of its samples, where samples have numbers.
            samples: where its samples go; None if they are on the device already.
            labels: where its labels go; None if nobody wants them.
            part: which of them to write.

        Returns:
            How many samples the batch has.
        """


class IndexedReader(Reader):
    """Samples and labels that are found by their numbers.

    Args:
        source: the samples.
        labels: as a loss takes them, one for each sample, in memory or to be read; None for none.
    """

    def __init__(self, source: Source, labels: npt.NDArray[Any] | Source | None = None) -> None:
        stored = labels if isinstance(labels, Source) else None
        self._source, self._stored_labels = source, stored
        self._labels = None if labels is None or isinstance(labels, Source) else _words(labels)
        self.sample_type = source.dtype.name
        is_parallel = source.is_parallel and (stored is None or stored.is_parallel)
        self.threads = _MOST_THREADS if is_parallel else 1
        self.is_quick = source.is_quick and stored is None

    def fill(self, job: Rows, samples: npt.NDArray[Any] | None, labels: Labels | None, part: slice) -> int:
        rows = job[part]
        if samples is not None:
            self._source.read(rows, samples[part][: len(rows)])
        if labels is not None and self._labels is not None:
            np.take(self._labels, rows, axis=0, out=labels[part][: len(rows)], mode="clip")
        elif labels is not None and self._stored_labels is not None:
            labels[part][: len(rows)] = _words(np.asarray(self._stored_labels[rows]))
        return len(job)


class StreamReader(Reader):
    """Batches that come one after another from an iterable; a job is the next batch of a round.

    Args:
        stream: gives samples, or pairs of samples and labels; starts anew whenever it is asked for an iterator.
        shape: the axes of a sample.
        prepare: makes labels of samples what the loss takes; None where there are to be none.
        subject: what errors call it.

    Raises:
        DataError: it gives nothing.
    """

    def __init__(
        self,
        stream: Iterable[Any],
        shape: tuple[int, ...],
        prepare: Callable[[npt.NDArray[Any], Any], npt.NDArray[Any]] | None,
        subject: str,
    ) -> None:
        self._stream, self._shape, self._prepare, self._subject = stream, shape, prepare, subject
        round_ = self._batches()
        first = next(round_, None)
        if first is None:
            raise DataError(subject, "the stream must give at least one batch", batches=0)
        self.sample_type = kept_type(first[0].dtype).name
        # A generator cannot begin anew, so that the batch that was looked at must not be lost.
        self._round: Iterator[Any] | None = itertools.chain([first], round_)

    @property
    def steps(self) -> int | None:
        """How many batches a round has, if the stream tells."""
        return len(self._stream) if isinstance(self._stream, Sized) else None

    def jobs(self, size: int, skipped: int = 0) -> Iterator[Any]:
        """The jobs of a new round, of at most ``size`` samples each; without end, since nobody knows how many come.

        Raises:
            DataError: there are no ``skipped`` batches to leave out.
        """
        round_, self._round = self._round or self._batches(), None
        batches = _parted(round_, size)
        left_out = sum(1 for _ in itertools.islice(batches, skipped))
        if left_out < skipped:
            rule = "the stream must give the batches again that were done before the interruption"
            hint = "a generator gives its batches once; start it anew."
            raise DataError(self._subject, rule, done=skipped, received=left_out, hint=hint)
        return itertools.repeat(batches)

    def fill(self, job: Iterator[Any], samples: npt.NDArray[Any] | None, labels: Labels | None, part: slice) -> int:
        x, y = next(job, (None, None))
        if x is None:
            return 0
        assert samples is not None, "a stream is not kept on the device"
        check_kept(x.dtype, samples.dtype, self._subject)
        with np.errstate(over="ignore"):
            np.copyto(samples[: len(x)], x, casting="unsafe")
        check_finite(samples[: len(x)], "x", self._subject)
        if labels is not None and y is not None:
            labels[: len(x)] = _words(y)
        return len(x)

    def _batches(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any] | None]]:
        for number, batch in enumerate(self._stream):
            subject = f"{self._subject}, batch {number}"
            given, labels = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)
            if self._prepare is not None and labels is None:
                rule = "a stream for training must give pairs of samples and labels"
                raise DataError(subject, rule, received=type(batch).__name__)
            x = np.asarray(given)
            check_array_type(x, "x", subject)
            if tuple(x.shape[1:]) != self._shape:
                rule = "each sample must have the shape of the model's input"
                raise DataError(subject, rule, sample=tuple(x.shape[1:]), input=self._shape)
            yield x, None if self._prepare is None else self._prepare(x, labels)


def _parted(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """The batches, those of more than ``size`` samples in parts."""
    for x, y in batches:
        for first in range(0, len(x), size):
            chosen = slice(first, first + size)
            yield x[chosen], None if y is None else y[chosen]


def _words(labels: npt.NDArray[Any]) -> Labels:
    return np.ascontiguousarray(labels).reshape(len(labels), -1).view(np.int32)


@dataclass
class _Piece:
    """Host memory for a batch, and the copies that still read it."""

    samples: npt.NDArray[Any] | None
    labels: Labels | None
    copies: list[Any] = field(default_factory=list)


@dataclass
class _Filling:
    """A piece that is being filled for a job."""

    job: Any
    piece: _Piece
    results: list[Future[int]]


class Loader:
    """Brings batches to the buffers of an executor, each while the device works on the one before.

    Threads gather batches into page-locked memory, a few ahead; small ones in memory are gathered at once. A GPU
    fetches them by a queue of its own into one of two places in turn, of which ``rows`` names the samples.

    Args:
        executor: whose ``samples``, ``rows`` and ``labels`` are to be filled.

    Attributes:
        labels: those of the batch that was sent last, for as long as no other is asked for; None without labels.
    """

    def __init__(self, executor: Executor) -> None:
        plan = executor.plan
        self._executor, self._device = executor, executor.device
        self._size, self._type = plan.batch_size, np.dtype(plan.sample_type)
        self._shape = plan.graph.input.shape.dimensions
        self._sample_bytes = math.prod(self._shape) * self._type.itemsize
        self._label_words = plan.buffers["labels"].per_sample if "labels" in plan.buffers else 0
        self.labels: Labels | None = None
        self._free: deque[_Piece] = deque()
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._is_resident = False
        #: For each place in ``samples``, what happens when its batch is no longer needed; the place in use; and the
        #: first number in ``rows``.
        self._consumed: list[Any] = [None] * sample_slots(plan.tuning.model)
        self._slot = -1
        self._rows = 0

    # -- the whole data set ------------------------------------------------------------------------------------------

    def keep(self, source: Source | None, reserved: int, advance: Callable[[int], object]) -> bool:
        """Puts all samples of a source on the device, if they fit beside ``reserved`` bytes: batches are then rows.

        ``advance`` is called with how many samples have been read, again and again.

        Raises:
            DataError: the source does not give what it promised.
            DeviceError: the device failed.
        """
        if source is None or self._executor.debug:  # In debug mode all memory is copied at every launch.
            return False
        info = self._device.info
        share = _SHARE_OF_HOST if self._device.is_host else _SHARE_OF_MEMORY
        room = min(info.largest_allocation, (info.memory - reserved) * share)
        if source.bytes > room:
            return False
        buffer = self._device.allocate(-(-source.bytes // 4) * 4)
        reader, step = IndexedReader(source), max(1, _LOAD_BYTES // self._sample_bytes)
        pieces = deque(
            _Piece(self._device.host_memory(step * self._sample_bytes).view(self._type).reshape(-1, *self._shape), None)
            for _ in range(min(2, -(-len(source) // step)))
        )
        for first in range(0, len(source), step):
            piece, rows = pieces[0], np.arange(first, min(first + step, len(source)))
            for result in self._share(reader, rows, piece):
                result.result()
            assert piece.samples is not None
            piece.copies = [self._device.fetch(buffer, piece.samples[: len(rows)], first * self._sample_bytes)]
            pieces.rotate()
            advance(len(rows))
        for piece in pieces:
            self._await(piece)
        self._executor.use("samples", buffer)
        self._is_resident = True
        return True

    # -- batch by batch ----------------------------------------------------------------------------------------------

    def batches(
        self, reader: Reader, jobs: Iterable[Any], change: Callable[[Labels], None] = lambda labels: None
    ) -> Iterator[int]:
        """Puts the batch of every job on its way, and gives its number of samples, for launches that follow.

        ``change`` is called with the labels of each batch before they are sent, and may change them in place.

        Raises:
            DataError: the reader found something that cannot be used.
            DeviceError: the device failed.
        """
        waiting, most = iter(jobs), 1 if self._is_inline(reader) else _PIECES - 1
        ahead: deque[_Filling] = deque()
        self._slot = -1
        try:
            while True:
                ahead += (self._begin(reader, job) for job in itertools.islice(waiting, most - len(ahead)))
                if not ahead:
                    return
                filling = ahead.popleft()
                counts = [result.result() for result in filling.results]
                count = counts[0]
                if not count:
                    return
                if filling.piece.labels is not None:
                    change(filling.piece.labels[:count])
                self._send(filling, count)
                yield count
                # The device has work now, while the host gathers what comes next.
                self._consumed[self._slot] = self._device.mark()
                self._free.append(filling.piece)
        finally:
            for filling in ahead:
                for result in filling.results:
                    if not result.cancel():
                        result.exception()

    def load(self, reader: Reader, job: Any) -> int:
        """Puts one batch on its way; how many samples it has."""
        return next(self.batches(reader, [job]), 0)

    def _is_inline(self, reader: Reader) -> bool:
        """Whether batches are gathered at once; a CPU's cores have work enough."""
        is_small = self._size * (self._sample_bytes + 4 * self._label_words) <= _LEAST_SHARED
        return reader.is_quick and (is_small or self._is_resident or self._device.is_host)

    def _begin(self, reader: Reader, job: Any) -> _Filling:
        """Has a piece filled: at once, or by threads."""
        piece = self._free.popleft() if self._free else self._new_piece()
        if not self._is_inline(reader):
            return _Filling(job, piece, self._share(reader, job, piece))
        self._await(piece)
        done: Future[int] = Future()
        done.set_result(reader.fill(job, piece.samples, piece.labels, slice(None)))
        return _Filling(job, piece, [done])

    def _share(self, reader: Reader, job: Any, piece: _Piece) -> list[Future[int]]:
        """Has threads fill a piece, each a part of it."""
        # NOTE: one thread where there may be one, since batches of a stream must stay in their order.
        pool = self._pools.get(reader.threads)
        if pool is None:
            pool = self._pools[reader.threads] = ThreadPoolExecutor(reader.threads, "blobnet-loader")

        def fill(part: slice) -> int:
            self._await(piece)
            return reader.fill(job, piece.samples, piece.labels, part)

        if reader.threads == 1:
            return [pool.submit(fill, slice(None))]
        step = -(-len(job) // reader.threads)
        return [pool.submit(fill, slice(first, first + step)) for first in range(0, len(job), step)]

    def _await(self, piece: _Piece) -> None:
        """Waits until nothing reads a piece any more."""
        for copy in piece.copies:
            self._device.wait(copy)

    def _new_piece(self) -> _Piece:
        samples = labels = None
        if not self._is_resident:
            samples = (
                self._device.host_memory(self._size * self._sample_bytes).view(self._type).reshape(-1, *self._shape)
            )
        if self._label_words:
            labels = self._device.host_memory(4 * self._size * self._label_words).view(np.int32).reshape(self._size, -1)
        return _Piece(samples, labels)

    def _send(self, filling: _Filling, count: int) -> None:
        """Puts a piece that was filled on its way."""
        executor, piece = self._executor, filling.piece
        piece.copies = []
        if piece.samples is None:
            executor.feed("rows", filling.job.astype(np.int32))
        else:
            # NOTE: the first batch goes behind what was launched, which has nothing to do for it: one image comes in
            # sooner without a second queue.
            is_alone = self._slot < 0 or len(self._consumed) == 1
            self._slot = (self._slot + 1) % len(self._consumed)
            first, after = self._slot * self._size, None if is_alone else self._consumed[self._slot]
            copy = self._device.fetch(
                executor.buffers["samples"], piece.samples[:count], first * self._sample_bytes, after
            )
            if after is not None:
                self._device.hold(copy)
            if self._rows != first:
                executor.feed("rows", np.arange(first, first + self._size, dtype=np.int32))
                self._rows = first
            piece.copies.append(copy)
        if piece.labels is not None:
            self.labels = piece.labels[:count]
            piece.copies.append(self._device.fetch(executor.buffers["labels"], piece.labels[:count]))
