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


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[int, int], None]]:
    """Yields what says how many kernels are built, and of how many; the line is gone at the end.

    Nothing is said where stderr is no terminal.
    """
    written = ""

    def show(done: int, count: int) -> None:
        nonlocal written
        text = f"compiling kernels {done}/{count} (first run only)"
        sys.stderr.write(f"\r{text.ljust(len(written))}")
        sys.stderr.flush()
        written = text

    def ignore(done: int, count: int) -> None:
        """For who wants no line."""

    is_shown = _is_wanted.get() and sys.stderr is not None and sys.stderr.isatty()
    try:
        yield show if is_shown else ignore
    finally:
        if written:
            sys.stderr.write(f"\r{' ' * len(written)}\r")
            sys.stderr.flush()
