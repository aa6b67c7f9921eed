"""Programs that are built in child processes: a compiler that crashes ends its own process, and not the one that asks.

Several children build side by side, which also is faster: compilers of CPUs' drivers use one core. What they have built
comes back through the driver's cache, or blobnet's (blobnet/device.py), not through them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock, Thread, Timer
from typing import IO, Any, BinaryIO

#: Sources that are worth a child of their own, which takes 0.3 s to start.
_SOURCES_OF_A_CHILD = 4
#: Seconds that a child waits for more to build: another, and its first program, take a second.
_PATIENCE = 60.0
#: Characters of what a child said last that are kept.
_MOST_WORDS = 1500
#: What a child runs: with the parent's modules, wherever those are.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from blobnet.device import build_for_parent
build_for_parent(sys.argv[2])
"""
_LENGTH = struct.Struct("<Q")
_DONE = b"+"


def build_all(
    settings: Mapping[str, Any],
    sources: Sequence[str],
    advance: Callable[[], object],
    *,
    most_children: int,
    keep_children: bool,
) -> dict[str, str]:
    """Has children build sources, and says which ones a compiler crashed on.

    A source on which a child dies is tried once more, as the first one of another child: it was the cause only if that
    one dies too. Where children cannot work at all, nothing is built.

    Args:
        settings: what the children are told of the device (as JSON).
        sources: what to build, each of them once.
        advance: called after each source.
        most_children: side by side.
        keep_children: for what is built within the next seconds; else they give back what they hold of the device.

    Returns:
        For each source that killed its compilers, how they died and their last words.
    """
    waiting, results = deque(sources), SimpleQueue[tuple[str, str] | None]()
    count = max(1, min(most_children, -(-len(sources) // _SOURCES_OF_A_CHILD)))
    foremen = [_Foreman(settings, waiting, results, keep_children) for _ in range(count)]
    crashed = {}
    try:
        for foreman in foremen:
            foreman.start()
        while count:
            result = results.get()
            if result is None:
                count -= 1
                continue
            source, words = result
            advance()
            if words:
                crashed[source] = words
    finally:  # Also at Ctrl-C.
        waiting.clear()
        for foreman in foremen:
            foreman.dismiss()
    return crashed


class _Foreman(Thread):
    """Hands sources to a child, and starts another where one dies; puts (source, last words if it crashed) in a queue.

    None in the queue says that there will be no more from this one.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        waiting: deque[str],
        results: SimpleQueue[tuple[str, str] | None],
        keep_child: bool,
    ) -> None:
        super().__init__(daemon=True)
        self._settings, self._waiting, self._results, self._keep_child = settings, waiting, results, keep_child
        self._child: _Child | None = None
        self._is_dismissed = False

    def run(self) -> None:
        try:
            while self._waiting:
                try:
                    source = self._waiting.popleft()
                except IndexError:  # Another one was faster.
                    break
                words = self._build(source)
                if words is None:
                    break
                self._results.put((source, words))
            if self._child is not None and self._keep_child and not self._is_dismissed:
                _IDLE.add(self._child)
                self._child = None
        finally:
            self._close()
            self._results.put(None)

    def dismiss(self) -> None:
        """Ends the child, whatever it is doing."""
        self._is_dismissed = True
        child = self._child
        if child is not None:
            child.kill()

    def _build(self, source: str) -> str | None:
        """Nothing if the child lives on, its last words if the source kills it, None if there is no child."""
        while True:
            if self._child is None and not self._start(_IDLE.take(_command(self._settings))):
                return None
            assert self._child is not None
            was_used = self._child.is_used
            if self._child.build(source):
                return ""
            words = self._child.last_words()
            self._close()
            if self._is_dismissed:
                return None
            if not was_used:  # It had nothing but this source to die of.
                return words
            if not self._start(None):
                return None

    def _start(self, child: _Child | None) -> bool:
        """Goes on with a child, or with a new one; whether there is one."""
        command = _command(self._settings)
        self._child = child
        if self._child is None and not self._is_dismissed:
            with contextlib.suppress(OSError):
                self._child = _Child(command)
                if not self._child.is_ready():
                    self._close()
        return self._child is not None and not self._is_dismissed

    def _close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


def _command(settings: Mapping[str, Any]) -> list[str]:
    """What starts a child."""
    modules = json.dumps([path or "." for path in sys.path])
    return [sys.executable, "-I", "-c", _PROGRAM, modules, json.dumps(dict(settings))]


class _Child:
    """A process that builds; OSError if it cannot start."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        self.is_used = False
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

    def is_ready(self) -> bool:
        """Whether it has found the device; waits for it."""
        return self._has_answered()

    def build(self, source: str) -> bool:
        """Builds a source; whether it has survived that."""
        self.is_used = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            data = source.encode()
            self._process.stdin.write(_LENGTH.pack(len(data)) + data)
            self._process.stdin.flush()
            return self._has_answered()
        return False

    def _has_answered(self) -> bool:
        assert self._process.stdout is not None
        return self._process.stdout.read(1) == _DONE

    def last_words(self) -> str:
        """How it died, and what it said last."""
        status = self._process.wait()
        try:
            cause = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        except ValueError:
            cause = f"killed by signal {-status}"
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - _MOST_WORDS))
        return f"{cause}\n{self._words.read().decode(errors='replace').strip()}".strip()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def close(self) -> None:
        """Waits for its end, after what it is doing."""
        with contextlib.suppress(OSError):
            self._process.communicate()
        self._words.close()


class _Idle:
    """Children that have nothing to do; they wait a minute for more."""

    def __init__(self) -> None:
        self._children: list[_Child] = []
        self._lock = Lock()
        self._timer: Timer | None = None
        atexit.register(self.close)

    def add(self, child: _Child) -> None:
        """Keeps a child for a while."""
        with self._lock:
            self._children.append(child)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = Timer(_PATIENCE, self.close)
            self._timer.daemon = True
            self._timer.start()

    def take(self, command: list[str]) -> _Child | None:
        """A child that was started with a command; None if there is none."""
        with self._lock:
            for index, child in enumerate(self._children):
                if child.command == command:
                    return self._children.pop(index)
        return None

    def close(self) -> None:
        """Sends all of them home."""
        with self._lock:
            children, self._children = self._children, []
        for child in children:
            child.close()


_IDLE = _Idle()


def serve(make_builder: Callable[[], Callable[[str], object]]) -> None:
    """What a child does: builds the sources that come, one after another, and says after each that it still lives.

    Args:
        make_builder: finds the device, and gives what builds a source and keeps it.
    """
    _leave_no_core_file()
    sources, answers = _take_over_pipes()
    build = make_builder()
    answers.write(_DONE)
    while header := sources.read(_LENGTH.size):
        data = sources.read(_LENGTH.unpack(header)[0])
        build(data.decode())
        answers.write(_DONE)


def _take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes from and to the parent; what drivers print goes to where errors go."""
    sources, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return sources, answers


def _leave_no_core_file() -> None:
    """A crash is expected here, and its core file of no use."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Not on Windows.
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
