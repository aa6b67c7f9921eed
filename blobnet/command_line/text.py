"""Text that any terminal takes."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text, with control characters (of a name in a file, say) written as escapes."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def short_list(names: list[str], most: int = 3) -> str:
    """The first few names."""
    return ", ".join([*(plain(name) for name in names[:most]), *(["..."] if len(names) > most else [])])
