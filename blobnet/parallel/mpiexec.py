"""What a rank finds out about mpiexec, and about the ranks that mpiexec has started beside it on its host.

MPI tells a rank nothing of others before all have begun it, nor what became of mpiexec. Linux does, in ``/proc``;
elsewhere nothing is found, and nothing is said.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from blobnet.support.at_exit import at_exit

#: The variables in which mpiexec of MPICH (and srun), of Open MPI, and others by PMIx tell a process its rank, the
#: number of ranks, and how many of them are on its host.
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")

#: Seconds between two looks at the others, and for which one must be missing: mpiexec starts them one by one.
_LOOK_SECONDS, _MISSING_SECONDS = 1.0, 5.0

#: Seconds for which a process that is killed seems to be there still, to mpiexec alone.
_HELD_SECONDS = 10

#: What to do when mpiexec was killed.
_GOES_ON = "Hint: --resume goes on from the file of the last epoch, or of --checkpoint-steps."

#: The address at which the holder of the first rank hears that one of the ranks is about to end all.
_ADDRESS = "\0blobnet-mpiexec-{}"

#: What the holder does, a Python of its own: it waits for a word of its rank, or for the rank's end. That of the first
#: rank says, where mpiexec says things, if mpiexec ends before that, and no rank was about to end all.
_HOLD = f"""
import os, select, socket, sys, time
stderr, process, line = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
poll = select.poll()
poll.register(0, select.POLLIN)
if stderr:
    try:
        ended = os.pidfd_open(process)
        told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        told.bind({_ADDRESS!r}.format(process))
        poll.register(ended, select.POLLIN)
        poll.register(told, select.POLLIN)
        if [number for number, _ in poll.poll()] == [ended]:
            os.write(stderr, line.encode())
    except (AttributeError, OSError):
        pass
    os.close(stderr)
os.read(0, 1) or time.sleep({_HELD_SECONDS})
"""


class Watch:
    """Looks from time to time whether a rank of this host is missing, while this one waits for all to begin MPI."""

    def __init__(self) -> None:
        self._looked = 0.0
        self._since: float | None = None

    def missing(self) -> str | None:
        """A line on a rank that has ended, as errors begin; None as long as none has for some seconds."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return None
        self._looked = now
        line = missing_rank()
        if line is None:
            self._since = None
            return None
        self._since = self._since or now
        return line if now - self._since >= _MISSING_SECONDS else None


def missing_rank() -> str | None:
    """A line on a rank that mpiexec has started on this host, and that is no more; None if there is none."""
    found = _ranks_here()
    local = _number(_LOCAL_SIZES)
    if not found or len(found) >= local:
        return None
    gone = sorted(set(range(local)) - found.keys()) if local == _number(SIZES) else []
    name = f"rank {gone[0]}" if gone else "a rank"
    return f"{name} (on {socket.gethostname()}) has ended before it began MPI, and others wait for it"


def speaks_first() -> bool:
    """Return True if this is the first of the ranks on this host that are left."""
    return min(_ranks_here(), default=-1) == _number(RANKS)


def _number(names: tuple[str, ...], variables: dict[str, str] | None = None) -> int:
    values = [(os.environ if variables is None else variables).get(name, "") for name in names]
    return next((int(value) for value in values if value.isdigit()), -1)


def _ranks_here() -> dict[int, int]:
    """The processes of the ranks on this host that are there, by their ranks; wrappers of programs stand for these."""
    starter = _ancestor(lambda process: _number(RANKS, _variables(process)) < 0)
    found: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*") if starter else ():
        parent, state, _ = _status(int(entry.name))
        rank = _number(RANKS, _variables(int(entry.name))) if parent == starter and state not in "ZX" else -1
        if rank >= 0:
            found[rank] = int(entry.name)
    return found


def _ancestor(fits: Callable[[int], bool]) -> int | None:
    """The nearest ancestor of this process that fits; None if there is none, or it cannot be seen."""
    process = os.getppid()
    while process > 1:
        if fits(process):
            return process
        process, _, _ = _status(process)
    return None


def _status(process: int) -> tuple[int, str, str]:
    """The parent of a process, its state and its name; 0, X and nothing if it is gone."""
    try:
        head, _, rest = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return 0, "X", ""
    state, parent = rest.split()[:2]
    return int(parent), state, head.partition("(")[2]


def _variables(process: int) -> dict[str, str]:
    """The environment with which a process began; empty where it may not be seen."""
    try:
        pairs = Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _starter() -> int | None:
    """The process of mpiexec, where it runs on this host."""
    return _ancestor(lambda process: _status(process)[2].startswith(("mpiexec", "mpirun")))


def announce_end() -> None:
    """Say that this rank is about to end all: mpiexec may end before the first one then."""
    starter = _starter()
    if sys.platform == "linux" and starter is not None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.sendto(b"\n", _ADDRESS.format(starter))


def hold_streams() -> Callable[[], None]:
    """Keep open what mpiexec hears this process by, for a while where it is killed; return what lets go of it.

    Where mpiexec itself is killed, which ends all ranks, a line of the first one says so where mpiexec said things.

    NOTE: MPICH's mpiexec ends all others as soon as that is closed, before one of them can say who is at fault.
    """
    number = os.environ.get("PMI_FD", "")
    if not number.isdigit():
        return lambda: None
    starter, said = _starter(), 0
    if sys.platform == "linux" and starter is not None and _number(RANKS) == 0:
        with contextlib.suppress(OSError):  # Opened anew, to write at its end: it may be a file on disk.
            said = os.open(f"/proc/{starter}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    line = f"error: mpiexec (process {starter}) has ended before its ranks, which were killed with it. {_GOES_ON}\n"
    command = [sys.executable, "-ISc", _HOLD, str(said), str(starter), line]
    try:
        # In a session of its own: neither Ctrl-C nor mpiexec ends it before.
        holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            bufsize=0,
            pass_fds=[int(number), *[said] * (said > 0)],
            start_new_session=True,
        )
    except OSError:  # No room for a process: then the line may be lost.
        return lambda: None
    finally:
        if said:
            os.close(said)

    @cache
    def release() -> None:
        assert holder.stdin is not None, "it was asked for"
        with contextlib.suppress(OSError):
            holder.stdin.write(b"\n")
        holder.wait()

    at_exit(release)
    return release
