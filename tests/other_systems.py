"""A pytest plug-in that hides from blobnet what Windows lacks: ``pytest -p tests.other_systems``.

It shows how far blobnet does without, on Linux. What Windows does otherwise (paths, open files that cannot be removed,
its drivers) it cannot show. Only modules of blobnet find less: pytest, NumPy and others work as ever.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import signal
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

MODULES = frozenset({"fcntl", "resource", "termios", "pwd", "grp"})
NAMES = {
    os: """fork forkpty register_at_fork preadv pwritev pread pwrite readv writev posix_spawn posix_fallocate mkfifo
        killpg getpgid setpgid setsid getpgrp setpgrp geteuid getuid getloadavg sched_getaffinity sched_setaffinity
        O_NOFOLLOW O_NONBLOCK O_DIRECTORY fchmod fchown chown statvfs sysconf uname WIFSIGNALED""",
    signal: """SIGKILL SIGSTOP SIGCONT SIGTSTP SIGHUP SIGQUIT SIGALRM SIGCHLD SIGPIPE SIGUSR1 SIGUSR2 SIGXCPU
        alarm setitimer pthread_sigmask pthread_kill sigwait""",
}
HIDDEN: dict[ModuleType, frozenset[str]] = {module: frozenset(names.split()) for module, names in NAMES.items()}
#: What was asked for and not found, for a test that the plug-in works.
MISSED: set[str] = set()


def _is_ours(depth: int = 2) -> bool:
    name = str(sys._getframe(depth).f_globals.get("__name__", ""))
    return name.partition(".")[0] == "blobnet"


class _Poorer(ModuleType):
    """A module in which blobnet does not find all names."""

    def __getattribute__(self, name: str) -> Any:
        if name in HIDDEN[self] and _is_ours():
            MISSED.add(name)
            raise AttributeError(f"module has no attribute {name!r}: it is hidden, as on Windows")
        return super().__getattribute__(name)


def _locking(descriptor: int, mode: int, count: int) -> None:
    """As msvcrt's, which locks bytes from the descriptor's position on: a tenth of a second, then an error."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, count, 0, os.SEEK_CUR)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "Permission denied") from error


MSVCRT = SimpleNamespace(locking=_locking, LK_NBLCK=2)
_import, _popen = builtins.__import__, subprocess.Popen.__init__


def _poorer_import(name: str, *arguments: Any, **named: Any) -> Any:
    if _is_ours() and name in MODULES:
        MISSED.add(name)
        raise ModuleNotFoundError(f"No module named {name!r}: it is hidden, as on Windows", name=name)
    return MSVCRT if name == "msvcrt" and _is_ours() else _import(name, *arguments, **named)


def _poorer_popen(self: Any, *arguments: Any, **named: Any) -> None:
    if _is_ours() and (named.get("pass_fds") or named.get("preexec_fn")):
        raise ValueError("pass_fds and preexec_fn are not supported on Windows platforms")
    _popen(self, *arguments, **named)


for _module in HIDDEN:
    _module.__class__ = _Poorer
builtins.__import__ = _poorer_import
subprocess.Popen.__init__ = _poorer_popen  # type: ignore[method-assign]
