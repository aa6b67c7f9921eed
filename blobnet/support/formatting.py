"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(size: int) -> str:
    """Bytes as people read them."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {'KMGT'[power - 1]}iB"
