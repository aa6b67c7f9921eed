"""Ctrl-C while modules are still being imported, and what stands for it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

#: What a shell shows of a process that Ctrl-C has ended, and what blobnet prints then; and that of SIGTERM.
STATUS, WORD, TERMINATED = 130, "interrupted", 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it is taken for Ctrl-C."""


@contextlib.contextmanager
def while_importing() -> Iterator[None]:
    """Ends the process at Ctrl-C, at once and in one line.

    NOTE: the usual exception is no help: libraries that it meets while they load make other errors of it, or forget it.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:  # Whoever ignores Ctrl-C (nohup), or has plans of his own.
        yield
        return
    try:
        signal.signal(signal.SIGINT, _end)
    except ValueError:  # Only the main thread handles signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _end(*_: object) -> None:
    os.write(2, f"{WORD}\n".encode())
    os._exit(STATUS)
