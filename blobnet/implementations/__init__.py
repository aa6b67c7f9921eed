"""The ways to compute products: every module here with an :class:`Implementation` is one, found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace

from blobnet.implementations.base import Implementation, choose
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import KernelCall
from blobnet.launch.task import Task


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
        if item.lanes in (None, tuning.model.is_simt) and item.matches(operation)
        if item.takes_cells or not operation.has_cells
        for candidate in item.candidates(operation)
    ]
    wanted = [item for name, item in found if only & {name, item.way.variant}] if only else []
    return wanted or [item for _, item in found]


def chosen(operation: Operation, task: Task) -> Implementation:
    """The way to compute an operation, which others of the same task and geometry share."""
    known, key = operation.tuning.chosen, (task, operation.geometry)
    if key not in known:
        known[key] = choose(operation.tuning.choices, task, candidates(operation))
    found: Implementation = known[key]
    return found.of(operation)


def calls_of(way: Implementation, task: Task) -> list[KernelCall]:
    """The launches of a way to do a task, which say so."""
    # A call that names its own way, as generated ones do, is left out by itself where a driver breaks it.
    calls = [call if call.way else replace(call, way=way.way, task=task) for call in way.calls()]
    return [replace(call, cost=0.0 if number else way.cost) for number, call in enumerate(calls)]
