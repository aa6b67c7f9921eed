"""The ways to compute products: every module here with an :class:`Implementation` is one, found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from blobnet.implementations.base import Implementation
from blobnet.implementations.operation import Operation


def _found() -> Iterator[tuple[str, type[Implementation]]]:
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        path = f"{__name__}.{module}"
        for item in vars(importlib.import_module(path)).values():
            is_own = isinstance(item, type) and item.__module__ == path != Implementation.__module__
            if is_own and issubclass(item, Implementation) and not item.__name__.startswith("_"):
                yield module, item


#: All of them by the names of their files.
IMPLEMENTATIONS: dict[str, type[Implementation]] = dict(_found())


def candidates(operation: Operation) -> list[Implementation]:
    """The ways to compute an operation on the device that it is tuned for: of ``choices.only``, where these match."""
    tuning, only = operation.tuning, operation.tuning.choices.only
    found = [
        (name, candidate)
        for name, item in IMPLEMENTATIONS.items()
        if item.lanes in (None, tuning.model.is_simt) and item.matches(operation) and item.stores(operation)
        for candidate in item.candidates(operation)
    ]
    wanted = [item for name, item in found if only & {name, item.way.variant}] if only else []
    return wanted or [item for _, item in found]
