"""The line that says how far the building of kernels is: it takes seconds, but once for each driver."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

_is_wanted = ContextVar("is_wanted", default=True)


def announced(function: Function) -> Function:
    """A function whose argument ``verbose``, True by default, says whether what it builds is shown."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, verbose: bool = True, **named: Any) -> Any:
        token = _is_wanted.set(_is_wanted.get() and verbose)
        try:
            return function(*arguments, verbose=verbose, **named)
        finally:
            _is_wanted.reset(token)

    return cast(Function, wrapper)


def is_watched() -> bool:
    """Return True if somebody reads along: stderr is a terminal, or this process belongs to a notebook."""
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel.zmqshell" in sys.modules)


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[int, int], None]]:
    """Yields what says how many kernels are built, and of how many; the line is gone at the end.

    Nothing is said where nobody watches.
    """
    written = ""

    def show(done: int, count: int) -> None:
        nonlocal written
        text = f"compiling kernels {done}/{count} (first run only)"
        sys.stderr.write(f"\r{text.ljust(len(written))}")
        sys.stderr.flush()
        written = text

    def ignore(done: int, count: int) -> None:
        """Ignore progress: for callers that want no line."""

    try:
        yield show if _is_wanted.get() and is_watched() else ignore
    finally:
        if written:
            # The two letters more are the ^C that a terminal shows.
            sys.stderr.write(f"\r{' ' * (len(written) + 2)}\r")
            sys.stderr.flush()
