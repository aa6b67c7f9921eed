"""Child processes that answer requests: what crashes or hangs a driver ends its own process, not the one that asks."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from threading import Thread, Timer
from typing import IO, Any, BinaryIO, Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")

#: Characters of what a child said last that are kept.
_MAX_WORDS = 1500


def command_of(program: str, *arguments: str) -> list[str]:
    """Return the command of a child that runs a Python program with the parent's modules, wherever those are.

    Args:
        program: its text, which finds the parent's ``sys.path`` in ``sys.argv[1]`` as JSON, and calls :func:`serve`.
        arguments: what follows there.
    """
    return [sys.executable, "-I", "-c", program, json.dumps([path or "." for path in sys.path]), *arguments]


class Child:
    """A process that answers requests, one after another; OSError if it cannot start.

    Attributes:
        command: what it was started with.
        is_used: whether it was ever asked.
        is_late: whether it was ended since it took too long.
    """

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        self.is_used = self.is_late = False
        try:
            # A session of its own: Ctrl-C in a terminal is the parent's, which then ends its children.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                start_new_session=True,
            )
        except OSError:
            self._words.close()
            raise

    def is_ready(self, limit: float | None = None) -> bool:
        """Return True once it can answer; wait for that, ``limit`` seconds at most."""
        return self._answer(limit) is not None

    def ask(self, request: object, limit: float | None = None) -> Any:
        """Return its answer; None if it did not survive the request, or was ended after ``limit`` seconds."""
        self.is_used = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            return self._answer(limit)
        return None

    def _answer(self, limit: float | None) -> Any:
        if limit is None:
            return self._next()
        timer = Timer(limit, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            return self._next()
        finally:
            timer.cancel()

    def _end_late(self) -> None:
        self.is_late = True
        self.kill()

    def _next(self) -> Any:
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            return pickle.load(self._process.stdout)
        return None

    def last_words(self) -> str:
        """Return how it died, and what it said last."""
        status = self._process.wait()
        try:
            cause = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        except ValueError:
            cause = f"killed by signal {-status}"
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - _MAX_WORDS))
        return f"{cause}\n{self._words.read().decode(errors='replace').strip()}".strip()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def close(self, patience: float | None = None) -> None:
        """Waits for its end, after what it is doing; ends it at once after so many seconds."""
        with contextlib.suppress(OSError):
            try:
                self._process.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                self.kill()
                self._process.communicate()
        self._words.close()


class Overseer(Thread, Generic[Request, Result]):
    """Has a child, which it starts where there is none, answer the requests that wait, beside others of its kind.

    Its results, and a None when there will be no more, are for :func:`results_of`.
    """

    def __init__(self, waiting: deque[Request]) -> None:
        super().__init__(daemon=True)
        self._waiting = waiting
        self._results: SimpleQueue[Result | None] = SimpleQueue()
        self._child: Child | None = None
        self._is_dismissed = False

    @abstractmethod
    def _result(self, request: Request) -> Result | None:
        """Return a child's result of a request; None if children give nothing any more."""

    def _keep_child(self) -> None:
        """Keeps a child for others that has nothing left to do, where that is of use."""

    def report_to(self, results: SimpleQueue[Result | None]) -> None:
        """Begin to work."""
        self._results = results
        self.start()

    def run(self) -> None:
        try:
            while not self._is_dismissed:
                try:
                    request = self._waiting.popleft()
                except IndexError:
                    break
                result = self._result(request)
                if result is None:
                    break
                self._results.put(result)
            if not self._is_dismissed:
                self._keep_child()
        finally:
            self._close()
            self._results.put(None)

    def dismiss(self) -> None:
        """Ends the child, whatever it is doing, and leaves nothing to others either."""
        self._is_dismissed = True
        self._waiting.clear()
        child = self._child
        if child is not None:
            child.kill()

    def _close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


def results_of(overseers: Sequence[Overseer[Request, Result]]) -> Generator[Result, None, None]:
    """Has all of them work side by side, and yields each result when it is there; dismisses them at the end.

    Who may stop before the last result closes it (contextlib.closing): Ctrl-C must end the children.
    """
    results, count = SimpleQueue[Result | None](), len(overseers)
    try:
        for overseer in overseers:
            overseer.report_to(results)
        while count:
            result = results.get()
            if result is None:
                count -= 1
            else:
                yield result
    finally:
        for overseer in overseers:
            overseer.dismiss()


def serve(make_worker: Callable[[], Callable[[Any], object]]) -> None:
    """Answer requests one after another, in a child; each answer says that the child still lives.

    Args:
        make_worker: finds the device, and gives what answers a request, by something that is not None.
    """
    _leave_no_core_file()
    requests, answers = _take_over_pipes()
    work = make_worker()
    answer: object = True
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            pickle.dump(answer, answers)
            answers.flush()
            answer = work(pickle.load(requests))


def _take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes from and to the parent; what drivers print goes to where errors go."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return requests, answers


def _leave_no_core_file() -> None:
    """A crash is expected here, and its core file of no use."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Not on Windows.
        resource: Any = __import__("resource")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
