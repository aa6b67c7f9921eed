"""Kinds: families of classes (optimizers, losses, ...) that files, options and documents know by the classes' names.

One more of a kind is a class in a file of its own. Its names in options, its place in files and its row in the
documents follow from the class.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from blobnet.errors import FileError, near_matches
from blobnet.support.checks import plain
from blobnet.support.foreign import Explained

_Own = TypeVar("_Own", bound="Kind")


class Kind(metaclass=Explained):
    """Base of the bases. A dataclass that derives from one of these is known by its name from then on.

    A name that begins with ``_`` is that of a class for others to derive from, and is not known.
    """

    #: Every class of the family, by its name: the base of the family has one of its own.
    kinds: ClassVar[dict[str, type[Any]]]
    #: What errors call one of the family.
    noun: ClassVar[str]
    #: Other names of the class in options.
    aliases: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kinds" not in vars(cls) and not cls.__name__.startswith("_"):
            cls.kinds[cls.__name__] = cls

    @classmethod
    def named(cls: type[_Own], text: str) -> type[_Own] | None:
        """Return the class of a name in any spelling, or of one of its aliases; None if there is none."""
        known = {squeezed(name): kind for kind in cls.kinds.values() for name in (*kind.aliases, kind.__name__)}
        return known.get(squeezed(text))

    @classmethod
    def examples(cls: type[_Own]) -> tuple[_Own, ...]:
        """Return objects of this class that show all that it does, for ``blobnet doctor``."""
        return (cls(),)

    def config(self) -> dict[str, Any]:
        """Return the arguments that build an equal object, as plain data (JSON)."""
        return {item.name: plain(getattr(self, item.name)) for item in fields(self)}  # type: ignore[arg-type]

    def description(self) -> dict[str, Any]:
        """Return kind and config, as plain data that :meth:`from_description` takes."""
        return {"kind": type(self).__name__, "config": self.config()}

    @classmethod
    def from_description(cls: type[_Own], description: Any, subject: str) -> _Own:
        """Return what :meth:`description` described.

        Args:
            description: kind and config.
            subject: the file that it was read from, for errors.

        Raises:
            FileError: it is not the description of one of the family, or a value in it is not allowed.
        """
        try:
            name, config = description["kind"], dict(description["config"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(subject, f"the {cls.noun} must have a kind and its config") from error
        if not isinstance(name, str) or name not in cls.kinds:
            hint = near_matches(str(name), list(cls.kinds))
            raise FileError(subject, f"the {cls.noun} must be one of blobnet's", kind=name, hint=hint)
        try:
            made: _Own = cls.kinds[name]._from_config(config, subject)
        except (KeyError, TypeError, ValueError) as error:
            rule = f"the {cls.noun} must have arguments that blobnet knows"
            raise FileError(subject, rule, kind=name, config=config, cause=error) from error
        return made

    @classmethod
    def _from_config(cls: type[_Own], config: dict[str, Any], subject: str) -> _Own:
        """Builds one from its arguments as files have them."""
        return cls(**config)


def squeezed(name: str) -> str:
    """Return a name as all its spellings have it: ``Mean squared-Error`` and ``mean_squared_error`` are one."""
    return re.sub(r"[ _-]", "", name).lower()


def spelled(name: str) -> str:
    """Return the name of a class as options and help spell it: ``mean-squared-error``, ``adamw``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "-", name).lower()


def folder_of(package: str) -> Path:
    """Return the folder of a package of blobnet, without importing it."""
    spec = importlib.util.find_spec(f"blobnet.{package}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def public_names(package: str) -> list[str]:
    """Return what a package of blobnet makes public (its ``__all__``), without importing it.

    The help of commands takes them from here, and waits for neither NumPy nor OpenCL.
    """
    text = (folder_of(package) / "__init__.py").read_text(encoding="utf-8")
    # NOTE: to parse the whole file takes as long as all else that a command's help does.
    found = re.search(r"^__all__ = (\[.*?\])", text, re.MULTILINE | re.DOTALL)
    assert found, f"blobnet.{package} has no __all__"
    return list(ast.literal_eval(found[1]))


def option_names(package: str, base: str, besides: Sequence[str] = ()) -> list[str]:
    """Return the names of a family's classes as options spell them, without importing any.

    Args:
        package: of the family: ``optimizers``.
        base: the name of its base: ``Optimizer``.
        besides: classes that no option can name, since they need more than numbers.
    """
    names = dict.fromkeys(name for name in public_names(package) if name != base)
    loaded = sys.modules.get(f"blobnet.{package}")
    if loaded is not None:  # And with them those of a user's own that are defined.
        names |= dict.fromkeys(getattr(loaded, base).kinds)
    return [spelled(name) for name in names if name not in besides]
