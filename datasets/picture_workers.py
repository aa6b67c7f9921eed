"""Processes that decode pictures, side by side, into memory that they share with the one that asks.

They are started by what they run, not by ``multiprocessing``, which would run a user's script anew in each of them
unless it is written for that. The file whose memory is shared loses its name as soon as both have opened it (but on
Windows, where it goes at the end), so that nothing of it can stay behind.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.datasets.packed import File
from blobnet.datasets.pictures import depth_of, picture_form, read_mask, read_sample
from blobnet.errors import BlobnetError, DataError, FileError, OptionError
from blobnet.support import child_process
from blobnet.support.child_process import Child, command_of

#: The (units, height, width) of a picture, or (units, depth, height, width) of a volume.
Form = tuple[int, ...]
#: The hint of errors about pictures that cannot be read.
SKIP_HINT = "skip_unreadable=True (--skip-unreadable) leaves such pictures out."
#: Pictures that cannot be read, beyond which no more are looked at.
_MAX_UNREADABLE = 1000
#: Pictures that a worker is given at a time.
_MAX_PICTURES = 8
#: The start of shared memory: the number of the picture that a worker is at.
_PLACE = struct.Struct("<q")
#: Blocks of memory, of 16 MB at most, that Pillow keeps in a worker for the next picture.
_BLOCKS = "8"
#: Seconds after which a worker that does not end is ended.
_PATIENCE = 2.0
#: Characters of what a worker said last that errors show.
_MAX_WORDS = 300
#: The program of a worker, with the parent's modules, wherever those are.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from blobnet.datasets.picture_workers import serve
serve(sys.argv[2])
"""


class PictureWorkers:
    """Decodes pictures, in processes that start when they are needed and end with this object.

    Several threads may use it at once.

    Args:
        count: how many processes there may be; 0 decodes in the thread that asks, None takes one for each core.

    Raises:
        OptionError: the number is negative.
    """

    def __init__(self, count: int | None = None) -> None:
        if count is not None and count < 0:
            raise OptionError("workers", "it must be 0 or more", workers=count)
        self.count = (os.cpu_count() or 1) if count is None else count
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        # NOTE: a thread for each process, which waits for it.
        self._threads = ThreadPoolExecutor(max(1, self.count), "blobnet-pictures")
        self._end = weakref.finalize(self, _end_all, self._idle)

    def close(self) -> None:
        """Ends the processes; new ones start if more is to be done."""
        _end_all(self._idle)

    def forms(self, paths: Sequence[File], *, has_size: bool, is_whole: bool) -> list[Form | FileError]:
        """Return the form of each picture, or why it cannot be read; the arguments are those of :func:`picture_form`.

        Raises:
            OptionError: Pillow is not installed.
            DataError: a worker cannot start, or ended before it said.
            FileError: a thousand cannot be read, and not all are to be looked at whole, to leave such out.
        """
        found: list[Form | FileError] = [(0, 0, 0)] * len(paths)
        unreadable: list[FileError] = []

        def keep(part: slice, forms: list[Form | FileError]) -> None:
            found[part] = forms
            unreadable.extend(form for form in forms if isinstance(form, FileError))
            if len(unreadable) > _MAX_UNREADABLE and not is_whole:
                first, rule = paths[part.start], "so many pictures cannot be read that no more are looked at"
                received = {"unreadable": len(unreadable), "first": str(unreadable[0]).rstrip(".")}
                raise FileError(str(Path(first).parent), rule, **received, hint=SKIP_HINT)

        self._share_task("forms", paths, keep, has_size, is_whole)
        return found

    def depths(self, paths: Sequence[File]) -> list[int | str | None]:
        """Return :func:`depth_of` of pictures that can be read; None for others.

        Raises:
            OptionError, DataError: as :meth:`forms`.
        """
        found: list[int | str | None] = [None] * len(paths)
        self._share_task("depths", paths, found.__setitem__)
        return found

    def _share_task(
        self, task: str, paths: Sequence[File], keep: Callable[[slice, Any], None], *settings: object
    ) -> None:
        """Has pictures looked at, some at a time, and ``keep`` take the answers."""

        def look(worker: _Worker, part: slice) -> None:
            keep(part, worker.ask(task, paths[part], 0, *settings))

        if self.count:
            self._share(len(paths), look)
        else:
            for first in range(0, len(paths), _MAX_PICTURES):
                part = slice(first, min(first + _MAX_PICTURES, len(paths)))
                keep(part, _TASKS[task](paths[part], None, *settings))

    def decode(self, paths: Sequence[File], out: npt.NDArray[Any], *, are_masks: bool = False) -> None:
        """Decodes pictures into ``out``, (len(paths), units, height, width), or masks: (len(paths), height, width).

        They are resized, and become uint8 or float32 as ``out`` is.

        Raises:
            FileError: a picture cannot be read.
            OptionError: Pillow is not installed.
            DataError: a worker cannot start, or ended before its picture was there.
        """

        def fill(worker: _Worker, part: slice) -> None:
            chosen = out[part]
            worker.ask("decode", paths[part], chosen.nbytes, chosen.shape[1:], chosen.dtype.name, are_masks)
            np.copyto(chosen, worker.memory.pictures(chosen.shape, chosen.dtype.name))

        if self.count:
            self._share(len(paths), fill)
        else:
            for path, planes in zip(paths, out, strict=True):
                _decode(path, planes, is_mask=are_masks)

    def _share(self, total: int, use: Callable[[_Worker, slice], None]) -> None:
        """Has all workers do their parts of something; an error ends the rest of it."""

        def work(part: slice) -> None:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker or _Worker()
            try:
                use(worker, part)
            finally:
                if worker.is_alive:
                    with self._lock:
                        self._idle.append(worker)

        step = max(1, min(_MAX_PICTURES, -(-total // (2 * self.count))))
        parts = [slice(first, min(first + step, total)) for first in range(0, total, step)]
        futures: list[Future[None]] = [self._threads.submit(work, part) for part in parts]
        try:
            for future in futures:
                future.result()
        finally:  # Also at Ctrl-C: nobody may write any more when this returns.
            for future in futures:
                future.cancel()
            wait(futures)


def _end_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()


class _Memory:
    """Memory of a file, by its descriptor, as large as it was needed so far."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._bytes: mmap.mmap | None = None

    def reserve(self, size: int, *, grows: bool) -> None:
        if self._bytes is None or len(self._bytes) < size + _PLACE.size:
            if grows:
                self._grow(size + _PLACE.size)
            self._bytes = mmap.mmap(self._number, size + _PLACE.size)

    def _grow(self, size: int) -> None:
        try:
            os.ftruncate(self._number, size)
            if hasattr(os, "posix_fallocate"):  # Else a signal ends who writes where there is no room.
                os.posix_fallocate(self._number, 0, size)
        except OSError as error:
            rule = "there must be memory to share with the processes that decode pictures"
            hint = "workers=0 (--workers 0) does without them, and fewer workers need less."
            raise DataError("workers", rule, bytes=size, cause=error, hint=hint) from error

    @property
    def place(self) -> int:
        assert self._bytes is not None
        return int(_PLACE.unpack_from(self._bytes)[0])

    @place.setter
    def place(self, place: int) -> None:
        assert self._bytes is not None
        _PLACE.pack_into(self._bytes, 0, place)

    def pictures(self, shape: tuple[int, ...], kind: str) -> npt.NDArray[Any]:
        assert self._bytes is not None
        values: npt.NDArray[Any] = np.ndarray(shape, kind, self._bytes, _PLACE.size)
        return values


class _Worker:
    """A process that decodes.

    Raises:
        DataError: it cannot start.
    """

    def __init__(self) -> None:
        room = "/dev/shm" if Path("/dev/shm").is_dir() else None  # Memory, where other folders may be on a disk.
        number, name = tempfile.mkstemp(prefix="blobnet-pictures-", dir=room)
        self._file, self._path = os.fdopen(number, "r+b"), Path(name)
        try:
            self._child = Child(command_of(_PROGRAM, name))
        except OSError as error:
            self._close_file()
            raise _cannot_start(error) from error
        self.is_alive = True
        self.memory = _Memory(number)
        self.memory.reserve(0, grows=True)
        if not self._child.is_ready():
            raise _cannot_start(self._last_words())
        self._remove_name()

    def _remove_name(self) -> None:
        with contextlib.suppress(OSError):  # On Windows it is open, in two processes.
            self._path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        self._file.close()
        self._remove_name()

    def ask(self, task: str, paths: Sequence[File], size: int, *settings: object) -> Any:
        """Has it do something with pictures, for which memory of ``size`` bytes is reserved; the answer.

        Raises:
            DataError: the process ended.
            FileError: a picture cannot be read.
            OptionError: Pillow is not installed.
        """
        self.memory.reserve(size, grows=True)
        self.memory.place = 0
        try:
            answer = self._child.ask((task, list(paths), size, settings))
        except BaseException:  # Its answer would be taken for that to the next question.
            self.end()
            raise
        if answer is None:
            path = paths[min(self.memory.place, len(paths) - 1)]
            rule = "the process that decoded the picture must not end"
            hint = "it may have had too little memory (fewer workers need less), or the picture breaks its decoder."
            raise DataError(str(path), rule, worker=self._last_words(), hint=hint)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """Ends the process."""
        self.is_alive = False
        self._child.close(_PATIENCE)
        self._close_file()

    def _last_words(self) -> str:
        """How a process that has died ended, and what it said last."""
        how, _, words = self._child.last_words().partition("\n")
        self.end()
        return f"{how}: {words[-_MAX_WORDS:]}" if words else how


def _cannot_start(cause: object) -> DataError:
    rule, hint = "the processes that decode pictures must start", "workers=0 (--workers 0) does without them."
    return DataError("workers", rule, cause=cause, hint=hint)


def _forms(paths: Sequence[File], memory: _Memory | None, has_size: bool, is_whole: bool) -> list[Form | FileError]:
    found: list[Form | FileError] = []
    for place, path in enumerate(paths):
        if memory is not None:
            memory.place = place
        try:
            found.append(picture_form(path, has_size=has_size, is_whole=is_whole))
        except FileError as error:
            error.__cause__ = error.__context__ = None  # They hold on to all that was read, for each of thousands.
            found.append(error.with_traceback(None))
    return found


def _depths(paths: Sequence[File], memory: _Memory | None) -> list[int | str | None]:
    found: list[int | str | None] = [None] * len(paths)
    for place, path in enumerate(paths):
        if memory is not None:
            memory.place = place
        with contextlib.suppress(FileError):
            found[place] = depth_of(path)
    return found


def _decode(path: File, out: npt.NDArray[Any], *, is_mask: bool) -> None:
    out[:] = read_mask(path, out.shape) if is_mask else read_sample(path, out.shape[0], out.shape[1:])


def serve(path: str) -> None:
    """Serve as a worker, with the path of the file whose memory it shares, until nobody asks any more."""
    # Before Pillow is imported. NOTE: a picture in memory that is new takes up to half as long again, for its pages.
    os.environ.setdefault("PILLOW_BLOCKS_MAX", _BLOCKS)
    with Path(path).open("r+b") as file:
        memory = _Memory(file.fileno())
        child_process.serve(lambda: functools.partial(_answer, memory))


def _answer(memory: _Memory, question: tuple[str, list[File], int, tuple[Any, ...]]) -> object:
    task, paths, size, settings = question
    memory.reserve(size, grows=False)
    try:
        return _TASKS[task](paths, memory, *settings)
    except BlobnetError as error:
        return error
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        return DataError(str(paths[memory.place]), "the picture must be readable", cause=cause)


def _fill(paths: list[File], memory: _Memory, shape: tuple[int, ...], kind: str, are_masks: bool) -> bool:
    for place, (path, planes) in enumerate(zip(paths, memory.pictures((len(paths), *shape), kind), strict=True)):
        memory.place = place
        _decode(path, planes, is_mask=are_masks)
    return True


_TASKS: dict[str, Callable[..., Any]] = {"forms": _forms, "depths": _depths, "decode": _fill}
