"""Functions that run at the end of a process, and not in its forks."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def at_exit(function: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
    """Has this process call a function as it ends."""
    process = os.getpid()

    def call() -> None:
        if os.getpid() == process:
            function(*arguments, **named)

    atexit.register(call)
