"""For mkdocstrings: puts the examples of docs/examples.py behind the docstrings of their classes."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from griffe import Class, Docstring, Extension

TEXT = Path(__file__).with_name("examples.py").read_text(encoding="utf-8")


def examples() -> dict[str, str]:
    """The code of each class, by its name as users write it: ``blobnet.layers.Conv2D``."""
    _, *parts = re.split(r"^# (blobnet\S+)$", TEXT, flags=re.MULTILINE)
    return {name: code.strip() for name, code in zip(parts[::2], parts[1::2], strict=True)}


class Examples(Extension):
    """Adds examples to the classes that have some; a class is found by its name and by its package or module."""

    def __init__(self) -> None:
        self._codes = examples()

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Adds its example to a class."""
        top = cls.path.split(".")[1]  # The package or module that users import it from.
        code = self._codes.get(f"blobnet.{top}.{cls.name}", self._codes.get(f"blobnet.{cls.name}"))
        if code is None or cls.docstring is None:
            return
        text = f"{cls.docstring.value.rstrip()}\n\n**Example**\n\n```python\n{textwrap.dedent(code)}\n```\n"
        cls.docstring = Docstring(text, parent=cls, parser=cls.docstring.parser)
