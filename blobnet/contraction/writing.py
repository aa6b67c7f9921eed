"""Lines of C, with names that nothing else has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: What sources cannot name anything else: words, and types of vectors.
_WORDS = """
    auto break case char const continue default do double else enum extern float for goto half if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool
    kernel global local constant private uint ulong uchar ushort image pipe from element row column size_t NAN INFINITY
    thread rest event_t sampler_t true false min max floor ceil exp log pow sin cos sqrt tanh erf fabs I M_PI MAXFLOAT
    expm1 log1p
    HUGE_VALF read_only write_only read_write complex imaginary barrier CLK_LOCAL_MEM_FENCE get_group_id get_local_id
"""
_TYPES = ("float", "int", "LOAD", "LOAD_LOCAL", "LOAD_ALIGNED", "STORE")
_RESERVED = frozenset([*_WORDS.split(), *(f"{name}{lanes}" for name in _TYPES for lanes in (2, 4, 8, 16))])


class Writer:
    """Writes lines, and knows the names that are taken.

    Args:
        entry: of the kernel.
    """

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.lines: list[str] = []
        self.depth = 0
        self.used = {*_RESERVED, entry}

    def name(self, wanted: str) -> str:
        """A name that nothing else has here."""
        found, count = wanted, 1
        while found in self.used:
            count += 1
            found = f"{wanted}_{count}"
        self.used.add(found)
        return found

    def put(self, line: str) -> None:
        """Writes a line at the depth of the block that is open."""
        self.lines.append("    " * self.depth + line if line else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Brackets around what is written within; names of theirs are free again behind."""
        used = set(self.used)
        self.put(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.put("}")
        self.used = used
