"""Programs that are built in child processes: a compiler that crashes ends its own process, and not the one that asks.

Several children build side by side, which also is faster: compilers of CPUs' drivers use one core. What they have built
comes back through the driver's cache, or blobnet's (blobnet/device/device.py), not through them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from threading import Lock, Timer
from typing import Any

from blobnet.support.child_process import Child, Overseer, command_of, results_of

#: Seconds that a child waits for more to build: another, and its first program, take a second.
_PATIENCE = 60.0
#: What a child runs.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from blobnet.device.device import build_for_parent
build_for_parent(sys.argv[2])
"""


def build_all(
    identity: Mapping[str, Any], jobs: Sequence[str], *, children: int, keep_children: bool
) -> Generator[tuple[str, str], None, None]:
    """Has children do jobs, and says of each when it is done, and which ones a compiler crashed on.

    One in which a child dies is tried once more, as the first one of another child: it was the cause only if that one
    dies too. Where children cannot work at all, nothing is done.

    Args:
        identity: what tells the device from others (as JSON).
        jobs: what to build, each once: see :func:`blobnet.device.device.build_for_parent`.
        children: side by side.
        keep_children: for what is built within the next seconds; else they give back what they hold of the device.

    Yields:
        A job, and how its compilers died and their last words if it killed them. Who may stop before the last one
        closes it (contextlib.closing): Ctrl-C must end the children.
    """
    waiting = deque(jobs)
    return results_of([_Foreman(identity, waiting, keep_child=keep_children) for _ in range(min(children, len(jobs)))])


class _Foreman(Overseer[str, tuple[str, str]]):
    """Hands jobs to a child; its results are (job, last words if it crashed)."""

    def __init__(self, identity: Mapping[str, Any], waiting: deque[str], *, keep_child: bool) -> None:
        super().__init__(waiting)
        self._identity, self._keeps_child = identity, keep_child

    def _result(self, job: str) -> tuple[str, str] | None:
        words = self._build(job)
        return None if words is None else (job, words)

    def _keep_child(self) -> None:
        if self._child is not None and self._keeps_child:
            _IDLE.add(self._child)
            self._child = None

    def _build(self, job: str) -> str | None:
        """Nothing if the child lives on, its last words if the job kills it, None if there is no child."""
        while True:
            if self._child is None and not self._start(_IDLE.take(_command(self._identity))):
                return None
            assert self._child is not None
            was_used = self._child.is_used
            if self._child.ask(job) is not None:
                return ""
            words = self._child.last_words()
            self._close()
            if self._is_dismissed:
                return None
            if not was_used:  # It had nothing but this job to die of.
                return words
            if not self._start(None):
                return None

    def _start(self, child: Child | None) -> bool:
        """Goes on with a child, or with a new one; whether there is one."""
        command = _command(self._identity)
        self._child = child
        if self._child is None and not self._is_dismissed:
            with contextlib.suppress(OSError):
                self._child = Child(command)
                if not self._child.is_ready():
                    self._close()
        return self._child is not None and not self._is_dismissed


def _command(identity: Mapping[str, Any]) -> list[str]:
    """What starts a child."""
    return command_of(_PROGRAM, json.dumps(dict(identity)))


class _Idle:
    """Children that have nothing to do; they wait a minute for more."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._lock = Lock()
        self._timer: Timer | None = None
        atexit.register(self.close)

    def add(self, child: Child) -> None:
        """Keeps a child for a while."""
        with self._lock:
            self._children.append(child)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = Timer(_PATIENCE, self.close)
            self._timer.daemon = True
            self._timer.start()

    def take(self, command: list[str]) -> Child | None:
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


def _after_fork() -> None:
    """Leaves the children to the process that has started them."""
    global _IDLE
    atexit.unregister(_IDLE.close)
    _IDLE = _Idle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
