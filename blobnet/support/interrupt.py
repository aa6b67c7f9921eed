"""Ctrl-C of the command line: it ends the process in one line, or is the exception that a running command takes.

SIGTERM likewise, where nobody else has plans with it. Without a handler the first process of a container
never hears it.

NOTE: this module is loaded before Ctrl-C is taken, so that it imports nothing which Python has not loaded by itself.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # That of typing, as type checkers know it: typing takes longer to load than all of this.
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any

    _Taken = dict[int, Any]
else:
    import _signal  # What signal puts names on, which takes longer.

#: The status of a process that Ctrl-C has ended, the word that blobnet prints then, and the status of SIGTERM.
STATUS, WORD, TERMINATED = 130, "interrupted", 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it is taken for Ctrl-C."""


def _end(number: int, _: object) -> None:
    os.write(2, f"{WORD}\n".encode())
    os._exit(TERMINATED if number == _signal.SIGTERM else STATUS)


def _terminate(*_: object) -> None:
    raise Terminated


class _Handlers:
    """Inside, other handlers take signals than before; where others (nohup, say) had set theirs, those stay."""

    def __init__(self, before: _Taken, inside: _Taken) -> None:
        self._before, self._inside = before, inside

    def __enter__(self) -> None:
        self._ours = [number for number, usual in self._before.items() if _signal.getsignal(number) is usual]
        try:
            for number in self._ours:
                _signal.signal(number, self._inside[number])
        except ValueError:  # Only the main thread handles signals.
            self._ours = []

    def __exit__(self, *_: object) -> None:
        for number in self._ours:
            _signal.signal(number, self._before[number])


#: The handlers of signals in a process, while modules are imported, and in a running command.
_USUAL: _Taken = {_signal.SIGINT: _signal.default_int_handler, _signal.SIGTERM: _signal.SIG_DFL}
_ENDING: _Taken = {_signal.SIGINT: _end, _signal.SIGTERM: _end}
RUNNING: _Taken = {_signal.SIGINT: _signal.default_int_handler, _signal.SIGTERM: _terminate}


def at_once() -> _Handlers:
    """Inside, Ctrl-C ends the process, at once and in one line: while modules are imported, say.

    NOTE: the usual exception is no help there: libraries that it meets while they load make other errors of it, or
    forget it.
    """
    return _Handlers(_USUAL, _ENDING)


def as_exception() -> _Handlers:
    """Within :func:`at_once`, let Ctrl-C be a KeyboardInterrupt all the same, for code that ends in its own way."""
    return _Handlers(_ENDING, RUNNING)
