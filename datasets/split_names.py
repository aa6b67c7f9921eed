"""The names of splits in folders, tables and arrays."""

from __future__ import annotations

import re

#: The splits, and their names in any case.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_SPLIT_OF = {name: split for split, names in SPLIT_NAMES.items() for name in names}


def split_named(text: str) -> str | None:
    """The split that has this name: ``Val`` is that of validation."""
    return _SPLIT_OF.get(text.lower())


def split_like(text: str) -> str | None:
    """The split whose name is a word of a text, as in ``test1``, ``seg_train`` or ``Trainset``."""
    words = (re.sub("(set|data)$", "", word) for word in re.findall("[a-z]+", text.lower()))
    return next((_SPLIT_OF[word] for word in words if word in _SPLIT_OF), None)
