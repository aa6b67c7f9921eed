"""Ctrl-C of the command line: it ends the process in one line, or is the exception that a running command takes.

NOTE: this module is loaded before Ctrl-C is taken, so that it imports nothing which Python has not loaded by itself.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # That of typing, as type checkers know it: typing takes longer to load than all of this.
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any
else:
    import _signal  # What signal puts names on, which takes longer.

#: What a shell shows of a process that Ctrl-C has ended, and what blobnet prints then; and that of SIGTERM.
STATUS, WORD, TERMINATED = 130, "interrupted", 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it is taken for Ctrl-C."""


def _end(*_: object) -> None:
    os.write(2, f"{WORD}\n".encode())
    os._exit(STATUS)


class _Handler:
    """Inside, another handler takes Ctrl-C than before; where others (nohup, say) had set theirs, it stays."""

    def __init__(self, before: Any, inside: Any) -> None:
        self._before, self._inside = before, inside

    def __enter__(self) -> None:
        self._is_ours = _signal.getsignal(_signal.SIGINT) is self._before
        if self._is_ours:
            try:
                _signal.signal(_signal.SIGINT, self._inside)
            except ValueError:  # Only the main thread handles signals.
                self._is_ours = False

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            _signal.signal(_signal.SIGINT, self._before)


def at_once() -> _Handler:
    """Inside, Ctrl-C ends the process, at once and in one line: while modules are imported, say.

    NOTE: the usual exception is no help there: libraries that it meets while they load make other errors of it, or
    forget it.
    """
    return _Handler(_signal.default_int_handler, _end)


def as_exception() -> _Handler:
    """Within :func:`at_once`, what takes Ctrl-C as KeyboardInterrupt all the same, and ends in its own way."""
    return _Handler(_end, _signal.default_int_handler)
