"""Plans that were made before, in the user's cache: making one takes a tenth of a second and more.

A file has the key of what its plan was made for, and after it the plan as a list of values, each a JSON list of its
kind and its parts. Parts that are values themselves are written before it, once, and stand for it as ``[their place]``;
the first places are the layers and losses that the plan is asked for with. So a file holds numbers, texts, and what a
plan is made of, and nothing else can come out of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from blobnet.errors import FIRST_READ
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, Shards
from blobnet.launch.kernel_source import Definition, KernelSource, Tunable
from blobnet.launch.task import Task, Variant
from blobnet.memory.blob import Axis, BlobLayout, StorageType
from blobnet.planning import Buffer, Plan
from blobnet.planning.request import Request
from blobnet.support.garbage import gc_paused
from blobnet.support.user_cache import read_entry, write_entry

#: The classes that a plan is made of; their parts are their fields, in order.
_RECORDS = (
    *(Array, Axis, Blob, BlobLayout, Buffer, GlobalSize, KernelCall, KernelSource, Shards, StorageType, Task, Tunable),
    Variant,
)
#: The fields of a plan that are kept, beside its request. ``sites`` only serve callers that let layers make more calls.
_KEPT = ("calls", "buffers", "placed", "outputs", "deltas", "fused")
#: The level of zlib: the kernels of a plan are the same text again and again.
_LEVEL = 1
#: Nanoseconds by which clocks of disks may be behind, and modules that need no errors ahead.
_MARGIN = 5 * 10**9


def key_of(request: Request) -> str | None:
    """Return the key of a plan, also by the files of blobnet that make it; None if there can be none.

    What others' layers and losses do may change without a change of these files.
    """
    files, tuning, choices = _files(), request.tuning, request.tuning.choices
    if files is None or not all(type(item).__module__.startswith("blobnet.") for item in _given(request)):
        return None
    ways = choices.sources, sorted(map(str, choices.broken)), sorted(choices.only)
    known = tuning.model, tuning.model.tunables, tuning.precision, tuning.padding, tuning.storage, tuning.cells
    return hashlib.sha256(f"{request.cache_key} {request.parameters} {ways} {known} {files}".encode()).hexdigest()


def load(path: Path, key: str, request: Request) -> Plan | None:
    """The plan that was kept in a file for a request; None if there is none, or one of another key.

    Its ``sites`` are empty.
    """
    entry = read_entry(path)
    if entry is None or not entry.startswith(key.encode()):
        return None
    with gc_paused():
        kept = _read(json.loads(zlib.decompress(entry[len(key) :])), _given(request))
    return Plan(request, **dict(zip(_KEPT, kept, strict=True)))


def keep(path: Path, key: str, plan: Plan) -> None:
    """Keeps what :func:`load` gives, in place of another plan. Where that cannot be, the next process plans anew."""
    with contextlib.suppress(OSError, TypeError):
        text = _written(tuple(getattr(plan, name) for name in _KEPT), _given(plan.request))
        write_entry(path, key.encode() + zlib.compress(text.encode(), _LEVEL))


def _given(request: Request) -> list[Any]:
    """The layers and losses of a request, which calls have for owners."""
    return [*(vertex.layer for vertex in request.graph.vertices), *(head.loss for head in request.heads)]


def _written(value: Any, given: Sequence[Any]) -> str:
    """A value, and all within it, as :func:`_read` takes it; TypeError for what no plan is made of."""
    known = {id(item): place for place, item in enumerate(given)}
    texts: dict[str, int] = {}

    def part(value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) not in known:
            text = json.dumps([type(value).__name__, *map(part, _parts(value))])
            known[id(value)] = texts.setdefault(text, len(given) + len(texts))
        return [known[id(value)]]

    part(value)
    return f"[{','.join(texts)}]"


def _parts(value: Any) -> Iterator[Any]:
    """Yield the parts that :data:`_MAKERS` makes a value of."""
    if type(value) in _RECORDS:
        yield from (getattr(value, name) for name in _names(type(value)))
    elif isinstance(value, dict):
        yield from (item for pair in value.items() for item in pair)
    elif isinstance(value, range):
        yield from (value.start, value.stop, value.step)
    elif isinstance(value, Definition):
        yield str(value)
    elif isinstance(value, frozenset):
        yield from sorted(value)
    elif isinstance(value, tuple):
        yield from value
    else:
        raise TypeError(f"plans are not made of {value!r}")


def _names(kind: Any) -> tuple[str, ...]:
    """The parts of a record."""
    return kind._fields if kind is Axis else tuple(item.name for item in fields(kind))


def _record(kind: Any) -> Callable[[list[Any]], Any]:
    names = _names(kind)
    return lambda parts: kind(**dict(zip(names, parts, strict=True)))


def _unpacked(kind: Any) -> Callable[[list[Any]], Any]:
    return lambda parts: kind(*parts)


#: The functions that make values of their parts, by kind.
_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    **{kind.__name__: _record(kind) for kind in _RECORDS},
    **{kind.__name__: _unpacked(kind) for kind in (Definition, range)},
    "dict": lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "frozenset": frozenset,
    "tuple": tuple,
}


def _read(records: Sequence[Sequence[Any]], given: Sequence[Any]) -> Any:
    """The last of the values that :func:`_written` has written."""
    values = list(given)
    for kind, *parts in records:
        values.append(_MAKERS[kind]([values[part[0]] if type(part) is list else part for part in parts]))
    return values[-1]


@cache
def _files() -> tuple[tuple[str, int, int], ...] | None:
    """The path, size and time of each file of blobnet, by which Python too knows what it has compiled.

    None where they are no plain files, or have changed since this process, or little before it, has read them.
    """
    try:
        found = sorted(state for folder in _folders() for state in _states(folder))
    except OSError:
        return None
    return tuple(found) if max(time for _, _, time in found) < FIRST_READ - _MARGIN else None


def _folders() -> list[str]:
    return [str(resources.files(package)) for package in ("blobnet", "blobnet.kernels")]


def _states(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _states(entry.path)
            elif entry.name.endswith((".py", ".cl", ".h")):
                yield entry.path, entry.stat().st_size, entry.stat().st_mtime_ns
