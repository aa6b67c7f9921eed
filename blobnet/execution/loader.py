"""Batches on their way to a device: gathered ahead of it, and fetched while it works."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy as copy_of
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.checks import FILE_HINT, check_array_type, check_finite
from blobnet.datasets.source import Rows, Source, check_kept, kept_type
from blobnet.device.memory import BATCHES_AHEAD, BYTES_AHEAD
from blobnet.device.queue import HostBuffer, Queue
from blobnet.errors import DataError, OutOfMemoryError
from blobnet.execution.executor import Executor
from blobnet.network.ends import Entry, part_subject, to_list
from blobnet.parallel.world import ALONE, World, check_same
from blobnet.planning import sample_slots

#: Batches that are gathered ahead of the device: enough for a source whose batches take unequal time.
_PIECES = 4
#: Of a number of a label: a class or a target.
_LABEL_BYTES = np.dtype(np.int32).itemsize
#: Bytes of a batch up to which threads cost more than they take over.
_MIN_SHARED = 1 << 20
#: Threads that gather; more than 8 do not make memory faster.
_MAX_THREADS = min(8, os.cpu_count() or 1)
#: Parts of a batch in memory, each for a thread: with more, threads wait for one another and for the one that launches.
_QUICK_PARTS = 4
#: Bytes that go to the device at a time when a whole data set does.
_LOAD_BYTES = 1 << 25
#: Seconds of work that may be on its way to a processor: who interrupts it waits so long.
_AHEAD_SECONDS = 0.1
#: The part of a device's free memory that a data set may take; the host's memory holds the data already.
_SHARE_OF_MEMORY, _SHARE_OF_HOST = 1 / 2, 1 / 16

#: Labels as words of 4 bytes, a row for each sample.
Labels = npt.NDArray[np.int32]
#: Memory for the samples of each input; None where they are on the device already.
Samples = Sequence[npt.NDArray[Any] | None]


class Reader(ABC):
    """A source of batches: samples, and labels where there are some.

    Attributes:
        sample_types: NumPy's names for the types of its samples, one for each input.
        threads: how many threads may fill at the same time.
        is_quick: whether that only copies memory.
    """

    sample_types: tuple[str, ...]
    threads = 1
    is_quick = False

    def lent(self, job: Any) -> Samples | None:
        """The samples of a batch where they lie in memory; None if they lie there otherwise, or there is more to it.

        Nobody has looked at their values (see :meth:`check`), which must not change before they are on the device.
        """
        return None

    def check(self, job: Any, samples: Samples) -> None:
        """Raises DataError where a value of lent samples is not finite."""
        raise NotImplementedError

    def unchecked(self) -> Reader:
        """Return a reader of the same batches that does not check their values; one that must returns itself."""
        return self

    def find_fault(self, jobs: Iterable[Any]) -> None:
        """Raises DataError for the first sample of some batches that is not finite, which :meth:`fill` may not see."""
        return

    @abstractmethod
    def fill(self, job: Any, samples: Samples, labels: Sequence[Labels], part: slice) -> int:
        """Writes a part of a batch.

        Args:
            job: which batch: the numbers of its samples, where samples have numbers.
            samples: where the samples of each input go; None for those that are on the device already.
            labels: where the labels of each output go; none if nobody wants them.
            part: which of them to write.

        Returns:
            How many samples the batch has.
        """


class IndexedReader(Reader):
    """Samples and labels that are found by their numbers.

    Args:
        sources: the samples of each input.
        labels: for each output, as its loss takes them: one for each sample, in memory or to be read; empty for none.
    """

    def __init__(self, sources: Sequence[Source], labels: Sequence[npt.NDArray[Any] | Source] = ()) -> None:
        self._sources = tuple(sources)
        self._labels = [item if isinstance(item, Source) else _words(item) for item in labels]
        stored = [item for item in labels if isinstance(item, Source)]
        self.sample_types = tuple(_name_of(source.dtype) for source in self._sources)
        is_parallel = all(item.is_parallel for item in (*self._sources, *stored))
        self.threads = _MAX_THREADS if is_parallel else 1
        self.is_quick = all(source.is_quick for source in self._sources) and not stored

    def lent(self, job: Rows) -> Samples | None:
        found = () if self._labels else tuple(source.lent(job) for source in self._sources)
        return found if found and all(samples is not None for samples in found) else None

    def check(self, job: Rows, samples: Samples) -> None:
        for source, own in zip(self._sources, samples, strict=True):
            assert own is not None, "lent are all samples or none"
            source.check(job, own)

    def unchecked(self) -> IndexedReader:
        other = copy_of(self)
        other._sources = tuple(source.unchecked() for source in self._sources)
        return other

    def find_fault(self, jobs: Iterable[Rows]) -> None:
        for job, source in itertools.product(jobs, self._sources):
            source.read(job, np.empty((len(job), *source.shape[1:]), source.dtype))

    def fill(self, job: Rows, samples: Samples, labels: Sequence[Labels], part: slice) -> int:
        rows = job[part]
        for source, to in zip(self._sources, samples, strict=True):
            if to is not None:
                source.read(rows, to[part][: len(rows)])
        for own, wanted in zip(self._labels, labels, strict=False):
            if isinstance(own, Source):
                wanted[part][: len(rows)] = _words(np.asarray(own[rows]))
            else:
                np.take(own, rows, axis=0, out=wanted[part][: len(rows)], mode="clip")
        return len(job)


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """NumPy's name for a type, which takes it as long as sending a small batch."""
    name: str = dtype.name
    return name


class StreamReader(Reader):
    """Batches that come one after another from an iterable; a job is the next batch of a round.

    Args:
        stream: gives samples, or pairs of samples and labels; starts anew whenever it is asked for an iterator.
        shapes: the axes of a sample of each input, by its name; the samples of several are given by name, or in order.
        prepare: makes labels of samples what the losses take, one array for each; None where there are to be none.
        subject: what errors call it.

    Raises:
        DataError: it gives nothing.
    """

    def __init__(
        self,
        stream: Iterable[Any],
        shapes: Mapping[str, tuple[int, ...]],
        prepare: Callable[[npt.NDArray[Any], Any], Sequence[npt.NDArray[Any]]] | None,
        subject: str,
    ) -> None:
        if isinstance(stream, str | bytes):
            rule = "samples must be an array, or what else Model.fit takes, and not the name of a file"
            raise DataError(subject, rule, received=repr(stream), hint=FILE_HINT)
        self._stream, self._shapes, self._prepare, self._subject = stream, shapes, prepare, subject
        round_ = self._batches()
        first = next(round_, None)
        if first is None:
            raise DataError(subject, "the stream must give at least one batch", batches=0)
        self.sample_types = tuple(kept_type(x.dtype).name for x in first[0])
        self._largest = len(first[0][0])
        #: The first batch, until a round begins.
        self.first: StreamBatch | None = first
        # A generator cannot begin anew, so that the batch that was looked at must not be lost.
        self._round: Iterator[Any] | None = itertools.chain([first], round_)

    def steps(self, size: int) -> int | None:
        """Return how many batches of ``size`` samples a round has if all are as the first; None for no length."""
        return len(self._stream) * -(-self._largest // size) if isinstance(self._stream, Sized) else None

    def jobs(self, size: int, skipped: int = 0, world: World = ALONE) -> Iterator[Any]:
        """The jobs of this rank's batches of a new round; without end, since nobody knows how many come."""
        return itertools.repeat(world.scatter(self.batches(size, skipped)))

    def batches(self, size: int, skipped: int = 0) -> Iterator[StreamBatch]:
        """The batches of a new round, of at most ``size`` samples each; an iterator of some of them is a job for each.

        Raises:
            DataError: there are no ``skipped`` batches to leave out.
        """
        round_, self._round, self.first = self._round or self._batches(), None, None
        batches = _parted(round_, size)
        left_out = sum(1 for _ in itertools.islice(batches, skipped))
        if left_out < skipped:
            rule = "the stream must give the batches again that were done before the interruption"
            hint = "a generator gives its batches once; start it anew."
            raise DataError(self._subject, rule, done=skipped, received=left_out, hint=hint)
        return batches

    def fill(self, job: Iterator[StreamBatch], samples: Samples, labels: Sequence[Labels], part: slice) -> int:
        xs, ys = next(job, ((), ()))
        if not xs:
            return 0
        for x, to in zip(xs, samples, strict=True):
            assert to is not None, "a stream is not kept on the device"
            check_kept(x.dtype, to.dtype, self._subject)
            with np.errstate(over="ignore"):
                np.copyto(to[: len(x)], x, casting="unsafe")
            check_finite(to[: len(x)], "x", self._subject)
        for wanted, y in zip(labels, ys, strict=False):
            wanted[: len(y)] = _words(y)
        return len(xs[0])

    def _batches(self) -> Iterator[StreamBatch]:
        for number, batch in enumerate(self._stream):
            subject = f"{self._subject}, batch {number}"
            given, labels = batch if self._is_pair(batch) else (batch, None)
            if self._prepare is not None and labels is None:
                rule = "a stream for training must give pairs of samples and labels"
                raise DataError(subject, rule, received=type(batch).__name__)
            xs = tuple(map(np.asarray, to_list(list(self._shapes), given, subject, "input", DataError)))
            for x, (name, shape) in zip(xs, self._shapes.items(), strict=True):
                where = part_subject(subject, name, list(self._shapes))
                check_array_type(x, "x", where)
                if tuple(x.shape[1:]) != shape:
                    rule = "each sample must have the shape of the model's input"
                    raise DataError(where, rule, sample=tuple(x.shape[1:]), input=shape)
                if len(x) != len(xs[0]):
                    listed = ", ".join(f"{own} {len(part)}" for own, part in zip(self._shapes, xs, strict=True))
                    raise DataError(subject, "all inputs must have the same number of samples", samples=listed)
            yield xs, () if self._prepare is None else tuple(self._prepare(xs[0], labels))

    def _is_pair(self, batch: Any) -> bool:
        """Return True for a batch of samples and labels; the samples of several inputs alone may be a pair too."""
        is_pair = isinstance(batch, tuple | list) and len(batch) == 2
        of_two = len(self._shapes) == 2 and self._prepare is None
        return is_pair and (not of_two or isinstance(batch[0], tuple | list | Mapping))


#: The samples of each input, and the labels of each output.
StreamBatch = tuple[tuple[npt.NDArray[Any], ...], tuple[npt.NDArray[Any], ...]]


def _parted(batches: Iterable[StreamBatch], size: int) -> Iterator[StreamBatch]:
    """The batches, those of more than ``size`` samples in parts."""
    for xs, ys in batches:
        for first in range(0, len(xs[0]), size):
            chosen = slice(first, first + size)
            yield tuple(x[chosen] for x in xs), tuple(y[chosen] for y in ys)


def _words(labels: npt.NDArray[Any]) -> Labels:
    return np.ascontiguousarray(labels).reshape(len(labels), -1).view(np.int32)


@dataclass
class _Piece:
    """Host memory for a batch, or several; samples that lie elsewhere instead; and the copies that still read them."""

    samples: list[npt.NDArray[Any] | None]
    labels: list[Labels]
    lent: Samples | None = None
    copies: list[Any] = field(default_factory=list)


@dataclass
class _Filling:
    """A piece that is being filled for a job; or for several, of so many samples each (``sizes``)."""

    job: Any
    sizes: Sequence[int]
    piece: _Piece
    results: list[Future[int]]

    def batches(self) -> list[slice]:
        """Waits for the batches: where each lies in the piece."""
        counts = [result.result() for result in self.results]
        ends = list(itertools.accumulate(self.sizes or counts[:1]))
        return [slice(first, end) for first, end in zip([0, *ends], ends, strict=False) if end > first]


class _Pace:
    """Lets a processor have as many batches on their way as it does in _AHEAD_SECONDS, but one at least.

    NOTE: Intel's runtime is done with all of them when a wait for the first one ends.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._under_way: deque[Any] = deque()
        self._number, self._start = 0, time.perf_counter()

    def keep(self, consumed: Any) -> None:
        """To be called behind each batch, with what happens when it is done."""
        self._number += 1
        self._under_way.append(consumed)
        speed = (self._number - len(self._under_way)) / max(1e-9, time.perf_counter() - self._start)
        while len(self._under_way) > max(1, min(BATCHES_AHEAD, _AHEAD_SECONDS * speed)):
            self._queue.synchronize(self._under_way.popleft())


class Loader:
    """Brings batches to the buffers of an executor, each while the device works on the one before.

    Threads gather batches into page-locked memory, a few ahead; small ones in memory are gathered at once. A GPU
    fetches them by a queue of its own into one of two places in turn, of which ``rows`` names the samples.

    Args:
        executor: whose ``samples``, ``rows`` and ``labels`` are to be filled.

    Attributes:
        labels: those of the batch that was sent last, one array for each output, for as long as no other is asked for.
    """

    def __init__(self, executor: Executor) -> None:
        plan = executor.plan
        self._executor, self._device = executor, executor.device
        self._size, self._entries = plan.batch_size, plan.request.entries
        self._label_buffers = {
            name: plan.buffers[name].per_sample for name in (head.buffer("labels") for head in plan.request.heads)
        }
        self.labels: tuple[Labels, ...] = ()
        #: Where samples go that are not lent.
        self._buffers = {entry.name: executor.buffers[entry.buffer("samples")] for entry in self._entries}
        #: Whether kernels read what is lent where it lies. (In debug mode all memory is copied at every launch.)
        self._reads_lent = self._device.info.reads_host and not executor.debug
        self._free: deque[_Piece] = deque()
        self._pools: dict[int, ThreadPoolExecutor] = {}
        #: The inputs whose samples are all on the device.
        self._resident: set[str] = set()
        #: Batches that are sent at once.
        self._at_once = 1
        #: For each place in ``samples``, what happens when its batch is no longer needed; and the place in use.
        self._consumed: list[Any] = [None] * sample_slots(plan.request.tuning.model)
        self._slot = -1

    # -- the whole data set ------------------------------------------------------------------------------------------

    def keep(
        self, sources: Sequence[Source], reserved: int, advance: Callable[[int], object], world: World = ALONE
    ) -> bool:
        """Puts the samples of all inputs on the device, if they fit beside ``reserved`` bytes: batches are then rows.

        Ranks compare what they have read of files, of which they have compared few samples before.

        Of several inputs some may fit. ``advance`` is called with how many samples of the first one have been read,
        again and again. Returns whether any are there.

        Raises:
            DataError: the source does not give what it promised.
            DeviceError: the device failed.
            OptionError: another rank has read other samples.
        """
        if self._executor.debug:  # In debug mode all memory is copied at every launch.
            return False
        read: dict[str, str] = {}
        for number, (entry, source) in enumerate(zip(self._entries, sources, strict=False)):
            digest = hashlib.sha256() if world.size > 1 and not source.is_quick else None
            if self._keep(entry, source, reserved, (lambda count: None) if number else advance, digest):
                self._resident.add(entry.name)
                reserved += source.bytes
                read |= {entry.name: digest.hexdigest()[:12]} if digest else {}
        if len({tuple(own) for own in world.gather(read)}) == 1:  # Else some have no room for what others keep.
            check_same(world, samples=" ".join(read.values()))
        if len(self._resident) == len(self._entries):
            self._send_several()
        return bool(self._resident)

    def _send_several(self) -> None:
        """Makes room for the numbers and labels of several batches: a copy for each batch is a part of a small step."""
        self._at_once = max(1, min(BATCHES_AHEAD, BYTES_AHEAD // max(1, self._piece_bytes)))
        for name in (*self._label_buffers, *(entry.buffer("rows") for entry in self._entries)):
            size = self._executor.plan.buffers[name].bytes(self._size)
            self._executor.use(name, self._device.memory.allocate(self._at_once * size))

    def _keep(self, entry: Entry, source: Source, reserved: int, advance: Callable[[int], object], digest: Any) -> bool:
        info = self._device.info
        share = _SHARE_OF_HOST if self._device.is_host else _SHARE_OF_MEMORY
        room = min(info.largest_allocation, (info.memory - reserved) * share)
        if source.bytes > room:
            return False
        try:
            buffer = self._device.memory.allocate(source.bytes)
            self._device.queue.finish()  # Drivers may look for memory when it is first used.
        except OutOfMemoryError:  # Others use the device too.
            return False
        reader, step = IndexedReader([source]), max(1, _LOAD_BYTES // entry.sample_bytes)
        pieces = deque(_Piece([self._memory(entry, step)], []) for _ in range(min(2, -(-len(source) // step))))
        for first in range(0, len(source), step):
            piece, rows = pieces[0], np.arange(first, min(first + step, len(source)))
            for result in self._share(reader, rows, piece):
                result.result()
            (samples,) = piece.samples
            assert samples is not None
            if digest is not None:
                digest.update(samples[: len(rows)])
            piece.copies = [self._device.memory.write_async(buffer, samples[: len(rows)], first * entry.sample_bytes)]
            pieces.rotate()
            advance(len(rows))
        for piece in pieces:
            self._await(piece)
        self._executor.use(entry.buffer("samples"), buffer)
        return True

    def _memory(self, entry: Entry, count: int) -> npt.NDArray[Any]:
        """Page-locked memory for so many samples of an input."""
        memory = self._device.memory.host_memory(count * entry.sample_bytes).view(entry.sample_type)
        return memory.reshape(-1, *entry.shape.dimensions)

    # -- batch by batch ----------------------------------------------------------------------------------------------

    def batches(
        self, reader: Reader, jobs: Iterable[Any], change: Callable[[Sequence[Labels]], None] = lambda labels: None
    ) -> Generator[int, None, None]:
        """Puts the batch of every job on its way, and gives its number of samples, for launches that follow.

        ``change`` is called with the labels of each batch before they are sent, and may change them in place.

        Raises:
            DataError: the reader found something that cannot be used.
            DeviceError: the device failed.
        """
        waiting, most = iter(jobs), 1 if self._is_inline(reader) else _PIECES - 1
        several = iter(lambda: list(itertools.islice(waiting, self._at_once)), [])
        ahead: deque[_Filling] = deque()
        pace = _Pace(self._device.queue)
        self._slot = -1
        try:
            while True:
                ahead += (self._begin(reader, own) for own in itertools.islice(several, most - len(ahead)))
                if not ahead:
                    return
                filling = ahead.popleft()
                batches = filling.batches()
                if not batches:
                    return
                for batch in batches if filling.piece.labels else ():
                    change([labels[batch] for labels in filling.piece.labels])
                self._send(filling, batches[-1].stop)
                for batch in batches:
                    self._take(filling.piece, batch)
                    yield batch.stop - batch.start
                    # The device has work now, while the host looks at what it lent, and gathers what comes next.
                    self._consumed[self._slot] = self._device.queue.record_event()
                    if filling.piece.lent is not None:
                        reader.check(filling.job, filling.piece.lent)
                    if self._device.is_host:
                        pace.keep(self._consumed[self._slot])
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
        """Return True if batches are gathered at once; a CPU's cores have work enough."""
        if not reader.is_quick or self._device.is_host:
            return reader.is_quick
        # Without samples to copy there are labels at most.
        return len(self._resident) == len(self._entries) or self._piece_bytes <= _MIN_SHARED

    @property
    def _piece_bytes(self) -> int:
        """The bytes of a batch's samples and labels that do not lie on the device."""
        coming = sum(entry.sample_bytes for entry in self._entries if entry.name not in self._resident)
        return self._size * (coming + _LABEL_BYTES * sum(self._label_buffers.values()))

    def _begin(self, reader: Reader, jobs: Sequence[Any]) -> _Filling:
        """Has a piece filled: at once, or by threads."""
        job, sizes = (jobs[0], []) if len(jobs) == 1 else (np.concatenate(jobs), list(map(len, jobs)))
        is_inline = self._is_inline(reader)
        piece = self._free.popleft() if self._free and not (is_inline and self._is_short()) else self._new_piece()
        piece.lent = None
        if not is_inline:
            return _Filling(job, sizes, piece, self._share(reader, job, piece))
        self._await(piece)
        done: Future[int] = Future()
        # A GPU fetches from page-locked memory; what a processor copies need not be copied to be sent.
        if self._device.is_host and not self._resident:
            piece.lent = reader.lent(job)
        is_there = piece.lent is not None
        done.set_result(len(job) if is_there else reader.fill(job, piece.samples, piece.labels, slice(None)))
        return _Filling(job, sizes, piece, [done])

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
        step = -(-len(job) // (min(reader.threads, _QUICK_PARTS) if reader.is_quick else reader.threads))
        return [pool.submit(fill, slice(first, first + step)) for first in range(0, len(job), step)]

    def _await(self, piece: _Piece) -> None:
        """Waits until nothing reads a piece any more."""
        for copy in piece.copies:
            self._device.queue.synchronize(copy)

    def _is_short(self) -> bool:
        """Return True if all pieces are still read, and there may be more."""
        is_read = not all(map(self._device.queue.is_done, self._free[0].copies))
        return is_read and len(self._free) < self._device.memory.pieces(self._piece_bytes)

    def _new_piece(self) -> _Piece:
        count = self._at_once * self._size
        return _Piece(
            [None if entry.name in self._resident else self._memory(entry, self._size) for entry in self._entries],
            [
                self._device.memory.host_memory(_LABEL_BYTES * count * words).view(np.int32).reshape(count, -1)
                for words in self._label_buffers.values()
            ],
        )

    def _send(self, filling: _Filling, count: int) -> None:
        """Puts a piece that was filled on its way."""
        executor, piece = self._executor, filling.piece
        piece.copies = []
        # NOTE: the first batch goes behind what was launched, which has nothing to do for it: one image comes in sooner
        # without a second queue.
        is_alone = self._slot < 0 or len(self._consumed) == 1
        if len(self._resident) < len(self._entries):
            self._slot = (self._slot + 1) % len(self._consumed)
        first, after = self._slot * self._size, None if is_alone else self._consumed[self._slot]
        for entry, samples in zip(self._entries, piece.lent or piece.samples, strict=True):
            if samples is None:
                executor.feed(entry.buffer("rows"), filling.job.astype(np.int32))
                continue
            if piece.lent is not None and self._reads_lent and samples.flags.aligned:
                executor.use(entry.buffer("samples"), HostBuffer(samples))
                continue
            place, buffer = first * entry.sample_bytes, self._buffers[entry.name]
            executor.use(entry.buffer("samples"), buffer)
            copy = self._device.memory.write_async(buffer, samples[:count], place, after)
            if after is not None:
                self._device.queue.wait_event(copy)
            executor.place(entry.buffer("rows"), first)
            piece.copies.append(copy)
        for name, labels in zip(self._label_buffers, piece.labels, strict=True):
            piece.copies.append(self._device.memory.write_async(executor.buffers[name], labels[:count]))

    def _take(self, piece: _Piece, batch: slice) -> None:
        """Has launches take one batch of a piece that was sent."""
        self.labels = tuple(labels[batch] for labels in piece.labels)
        resident = {entry.buffer("rows"): 1 for entry in self._entries if entry.name in self._resident}
        for name, words in (self._label_buffers | resident).items():
            self._executor.place(name, batch.start * words)
