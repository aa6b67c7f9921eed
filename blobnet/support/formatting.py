"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(size: int) -> str:
    """Bytes as people read them."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def size_text(value: object) -> str:
    """A hyperparameter of one or several axes as benchmarks write it: 3, (3, 5) as ``3x5``, ``same``."""
    return "x".join(size_text(item) for item in value) if isinstance(value, tuple) else str(value)
