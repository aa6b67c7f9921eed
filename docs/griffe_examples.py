"""For mkdocstrings: puts the examples of docs/examples.py behind the docstrings of their classes.

Networks stand there as their callers know them: each is made of a function from its input to its logits.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from griffe import Class, Docstring, Extension, Function, Module, Parameter, ParameterKind, Parameters

import blobnet as bn

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

    def on_module_members(self, *, mod: Module, **_: Any) -> None:
        """Gives networks the parameters that their callers know."""
        for name in bn.models.__all__ if mod.path.startswith("blobnet.models.") else ():
            if getattr(bn.models, name).__module__ == mod.path:
                mod.set_member(name, _network(mod, name))


def _network(module: Module, name: str) -> Function:
    network, source = getattr(bn.models, name), module.members.get(name)
    parameters = [
        Parameter(
            own,
            annotation=item.annotation,
            kind=getattr(ParameterKind, item.kind.name.lower()),
            default=repr(item.default),
        )
        for own, item in inspect.signature(network).parameters.items()
    ]
    return Function(
        name,
        lineno=source and source.lineno,  # A family's networks have no lines of their own.
        endlineno=source and source.endlineno,
        parameters=Parameters(*parameters),
        returns="Model",
        docstring=Docstring(inspect.getdoc(network) or ""),
        parent=module,
    )
