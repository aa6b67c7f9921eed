"""A generated kernel, and the lines of C that it is written in, with names that nothing else has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from blobnet.contraction.form import numbered


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


class Writer:
    """Writes lines, and knows the names that are taken.

    Args:
        entry: of the kernel.
    """

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.lines: list[str] = []
        self.depth = 0
        self.used = {entry}

    def name(self, wanted: str) -> str:
        """A name that nothing else has here."""
        found = numbered(wanted, self.used)
        self.used.add(found)
        return found

    def given(self, kind: str, name: str) -> str:
        """A name for what a text calls ``name``: no word of C, macro or name of ours begins with a ``kind``, ``t_``."""
        return self.name(re.sub(r"\W", "_", f"{kind}_{name}"))

    def put(self, line: str) -> None:
        """Writes a line at the depth of the block that is open."""
        self.lines.append("    " * self.depth + line if line else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Brackets around what is written within; names of theirs are free again after."""
        used = set(self.used)
        self.put(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.put("}")
        self.used = used

    def when(self, conditions: Sequence[str]) -> AbstractContextManager[None]:
        """A block of what is done where conditions hold; without any of them always."""
        return self.block(f"if ({' && '.join(conditions)})" if conditions else "")

    @contextmanager
    def group_block(self, condition: str) -> Iterator[None]:
        """Write what all work-items of a group do, or none: there may be barriers. Without a condition all do."""
        start = len(self.lines)
        with self.block(f"if ({condition})" if condition else ""):
            yield
            if condition and any("barrier(" in line for line in self.lines[start:]):
                self.put("END_OF_IF;")
