"""A generated kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A kernel's text, and how to launch it.

    Its parameters are buffers, by the names of tensors, each with an offset (an int), and if it
    ``takes_count`` the number of samples in the batch.
    """

    text: str
    entry: str
    buffers: tuple[str, ...]
    groups: int
    threads: int
    lanes: int
    takes_count: bool = False
    widths: frozenset[int] = frozenset()
