"""The kinds of pictures that folders may hold; the command line's help takes nothing heavier."""

from __future__ import annotations

_SUFFIXES = {"PNG": (".png",), "JPEG": (".jpg", ".jpeg"), "WebP": (".webp",), "BMP": (".bmp",)}

#: What files of pictures end in.
PICTURE_SUFFIXES = tuple(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
#: The kinds, for messages: ``PNG, JPEG, WebP or BMP``.
PICTURE_KINDS = " or ".join((", ".join([*_SUFFIXES][:-1]), [*_SUFFIXES][-1]))
