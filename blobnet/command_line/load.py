"""The load of this machine: where others are at work, times mean little."""

from __future__ import annotations

import os

#: The load of a processor, before anything is measured, from which on times mean little.
_BUSY = 0.75


def load_average() -> float:
    """The load of the last minute, where the system tells it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def load_notes(load: float) -> list[str]:
    """A line for a load that is too high."""
    processors = os.cpu_count() or 1
    if load <= processors * _BUSY:
        return []
    return [f"NOTE: a load of {load:.1f} on {processors} processors: others are at work here, and times mean little"]
