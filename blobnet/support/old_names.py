"""Names of before: they warn, and go with the next release."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def old_names(module: str, names: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which gives ``names`` by their names of before, with a DeprecationWarning."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        now = names[name].__name__
        warnings.warn(f"{module}.{name} is called {now} now", DeprecationWarning, stacklevel=2)
        return names[name]

    return find


def old_method(old: str, now: str) -> Callable[..., Any]:
    """Return a method that has the name ``old`` of before, warns, and calls the one that is called ``now``."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        warnings.warn(f"{type(self).__name__}.{old} is called {now} now", DeprecationWarning, stacklevel=2)
        return getattr(self, now)(*arguments, **named)

    return method


def names_of_parts(parts: Sequence[str], renamed: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """Return a class's ``__getattr__``, which gives what its parts have now, with a DeprecationWarning.

    Args:
        parts: attributes of its objects.
        renamed: the names of now of what is called otherwise in its part.
    """

    def find(self: Any, name: str) -> Any:
        now, own = renamed.get(name, name), vars(self)
        for part in parts:
            if not name.startswith("_") and part in own and hasattr(own[part], now):
                kind = type(self).__name__
                warnings.warn(f"{kind}.{name} is {kind}.{part}.{now} now", DeprecationWarning, stacklevel=2)
                return getattr(own[part], now)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    return find
