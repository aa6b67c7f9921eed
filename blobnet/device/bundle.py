"""Several sources as one program, which some drivers build and load much faster than as many programs."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NO_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\\\n", re.DOTALL)
_MACROS = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
#: What stands for a block, and for parentheses, with all that is in them.
_BLOCK, _PARENTHESES = "\x01", "\x02"
#: What gives names to a whole file where blocks and parentheses are one letter: functions, types, tags and constants.
_NAMES = (
    re.compile(rf"(\w+)\s*{_PARENTHESES}\s*{_BLOCK}"),
    re.compile(r"\btypedef\b[^;]*?(\w+)\s*;"),
    re.compile(r"\b(?:struct|union|enum)\s+(\w+)"),
    re.compile(r"\b__constant\b[^;=]*?(\w+)\s*(?:\[[^\]]*\]\s*)*="),
)
#: What looks like a function and is none.
_STATEMENTS = {"if", "for", "while", "switch"}


def bundled(sources: Mapping[str, str]) -> str:
    """The text of one program with the kernels of several sources, each of which has its macros and names for itself.

    The names of a source's functions, types and constants are macros for longer ones, up to its end. Where one goes by
    unseen (a name that is put together), the compiler finds it twice, and does not build that bundle.

    Args:
        sources: by what their names get at the end.
    """
    return "".join(_apart(source, suffix) for suffix, source in sources.items())


def _apart(source: str, suffix: str) -> str:
    code = _NO_CODE.sub(" ", source)
    macros = dict.fromkeys(_MACROS.findall(code))
    outline = _without(r"\{[^{}]*\}", _BLOCK, _without(r"\([^()]*\)", _PARENTHESES, code))
    outline = re.sub(rf"\b__attribute__\s*{_PARENTHESES}", "", outline)
    found = dict.fromkeys(name for pattern in _NAMES for name in pattern.findall(outline))
    names = [name for name in found if name not in _STATEMENTS and name not in macros]
    renamed = "".join(f"#define {name} {name}{suffix}\n" for name in names)
    return f"{renamed}{source}\n" + "".join(f"#undef {name}\n" for name in [*names, *macros])


def _without(pattern: str, mark: str, text: str) -> str:
    """A text with a mark for what matches, from the inside out."""
    count = 1
    while count:
        text, count = re.subn(pattern, mark, text)
    return text
