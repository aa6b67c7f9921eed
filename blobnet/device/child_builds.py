"""Programs that are built in child processes: a compiler that crashes ends its own process, and not the one that asks.

Several children build side by side, which also is faster: compilers of CPUs' drivers use one core. What they have built
comes back through the driver's cache, or blobnet's (blobnet/device/compiler.py), not through them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from typing import Any, NamedTuple

import numpy as np

from blobnet.device.compiler import Compiler, without_remarks
from blobnet.device.discovery import identified
from blobnet.device.opencl import cl
from blobnet.device.queue import Queue
from blobnet.errors import DeviceError
from blobnet.support.child_process import Child, Overseer, command_of, results_of, serve
from blobnet.support.cores import usable_cores
from blobnet.support.system import untouched_memory

#: Sources that are worth a child process of their own, which takes 0.3 s to start.
_SOURCES_OF_A_CHILD = 4
#: Memory that a child process may need which builds programs: a GPU's context, or a compiler on a CPU.
_MEMORY_OF_A_CHILD = 1 << 31
#: Bytes that stand for each buffer of a launch that a child tries: more than any kernel touches for one sample. Nothing
#: of it is taken before it is touched.
_TRIAL_BYTES = 1 << 32
#: Seconds that a child waits for more to build: another, and its first program, take a second.
_PATIENCE = 60.0
#: What a child runs.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from blobnet.device.child_builds import build_for_parent
build_for_parent(sys.argv[2])
"""


@dataclass(frozen=True)
class Trial:
    """A launch of one work-group, to see whether a driver survives it.

    Attributes:
        entry: the kernel.
        local_size: of the work-group.
        arguments: None for memory, the bytes of others.
    """

    entry: str
    local_size: tuple[int, ...]
    arguments: tuple[bytes | None, ...]

    def launch(self, program: cl.Program, queue: Queue) -> None:
        """Launch the kernel once, with zeros for memory, of which there is more than it takes, and wait for it."""
        kernel, regions = cl.Kernel(program, self.entry), []
        for index, value in enumerate(self.arguments):
            if value is None:
                region = np.frombuffer(untouched_memory(_TRIAL_BYTES), np.uint8)
                flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
                regions.append(cl.Buffer(queue.context, flags, hostbuf=region))
            kernel.set_arg(index, regions[-1] if value is None else value)
        queue.launch(kernel, self.local_size, self.local_size).wait()


class BuildJob(NamedTuple):
    """Sources that a child builds together, where it records that, and what it then launches of each."""

    sources: tuple[str, ...]
    records: Path
    trials: tuple[Trial, ...]


def build(
    compiler: Compiler,
    missing: Mapping[str, str],
    advance: Callable[[int, int], object] | None,
    trials: Callable[[str], Sequence[Trial]],
    *,
    keep_children: bool,
) -> None:
    """Have children build those sources that the driver has not built before; note in ``compiler`` what crashes it.

    Of a bundle that crashes it each source is tried alone.

    Args:
        compiler: of the device.
        missing: sources by digest.
        advance: told how many programs are built, and of how many.
        trials: for a source, launches to try where the driver leaves work to the first one.
        keep_children: see :func:`build_all`.
    """
    unknown = [digest for digest in missing if compiler.is_unknown(digest)]
    if not unknown:
        return
    info, traits = compiler.info, compiler.traits
    children = min(usable_cores(), info.memory // _MEMORY_OF_A_CHILD, -(-len(unknown) // _SOURCES_OF_A_CHILD))
    children = max(1, children)
    size = min(traits.most_bundled, -(-len(unknown) // children))
    done = 0

    def job(digests: Sequence[str]) -> BuildJob:
        sources = tuple(missing[digest] for digest in digests)
        return BuildJob(sources, compiler.folder, tuple(trials(sources[0]) if traits.compiles_at_launch else ()))

    def more(count: int) -> None:
        nonlocal done
        done += count
        if advance is not None:
            advance(done, len(unknown))

    more(0)  # The first ones take longest.
    waiting = [unknown[start : start + size] for start in range(0, len(unknown), size)]
    while waiting:
        jobs, waiting = {job(digests): digests for digests in waiting}, []
        results = build_all(info.identity, list(jobs), children=children, keep_children=keep_children)
        with contextlib.closing(results):
            for done_job, words in results:
                digests = jobs[done_job]
                if words and len(digests) > 1:
                    waiting += [[digest] for digest in digests]
                    continue
                more(len(digests))
                if words:
                    compiler.crashed[digests[0]] = words
                    with contextlib.suppress(OSError):  # It may have built, and crashed when it was launched.
                        compiler.record(digests[0]).unlink(missing_ok=True)


def build_for_parent(identity: str) -> None:
    """Serve the requests of a parent process: see :func:`build`.

    Args:
        identity: what tells the device from others, as JSON.
    """

    def make_builder() -> Callable[[BuildJob], object]:
        info = identified(identity)
        context = cl.Context([info.handle])
        compiler, queue = Compiler(context, info), Queue(context, info)

        def build(job: BuildJob) -> object:
            compiler.folder = job.records
            with without_remarks():
                for source in () if compiler.compile_together(job.sources) else job.sources:
                    with contextlib.suppress(cl.Error, RuntimeError):
                        program = compiler.compile(source, compiler.digest(source)).program
                        for trial in job.trials:
                            with contextlib.suppress(DeviceError, cl.Error, OSError, ValueError, TypeError):
                                trial.launch(program, queue)
            return True

        return build

    serve(make_builder)


def build_all(
    identity: Mapping[str, Any], jobs: Sequence[BuildJob], *, children: int, keep_children: bool
) -> Generator[tuple[BuildJob, str], None, None]:
    """Has children do jobs, and says of each when it is done, and which ones a compiler crashed on.

    One in which a child dies is tried once more, as the first one of another child: it was the cause only if that one
    dies too. Where children cannot work at all, nothing is done.

    Args:
        identity: what tells the device from others (as JSON).
        jobs: what to build, each once: see :func:`build_for_parent`.
        children: side by side.
        keep_children: for what is built within the next seconds; else they give back what they hold of the device.

    Yields:
        A job, and how its compilers died and their last words if it killed them. Who may stop before the last one
        closes it (contextlib.closing): Ctrl-C must end the children.
    """
    waiting = deque(jobs)
    return results_of([_Foreman(identity, waiting, keep_child=keep_children) for _ in range(min(children, len(jobs)))])


class _Foreman(Overseer[BuildJob, tuple[BuildJob, str]]):
    """Hands jobs to a child; its results are (job, last words if it crashed)."""

    def __init__(self, identity: Mapping[str, Any], waiting: deque[BuildJob], *, keep_child: bool) -> None:
        super().__init__(waiting)
        self._identity, self._keeps_child = identity, keep_child

    def _result(self, job: BuildJob) -> tuple[BuildJob, str] | None:
        words = self._build(job)
        return None if words is None else (job, words)

    def _keep_child(self) -> None:
        if self._child is not None and self._keeps_child:
            _IDLE.add(self._child)
            self._child = None

    def _build(self, job: BuildJob) -> str | None:
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
    """Return the command that starts a child."""
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
