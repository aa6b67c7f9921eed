"""When Python looks for objects that only refer to each other."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Puts the search off: of what is made at once and stays, as graphs and plans do, it takes a seventh of the time.

    Who finds it put off already leaves it so: several threads may be within.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
