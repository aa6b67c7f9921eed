"""A memory plan as a table: every storage with its bytes and zeros, the launches, and what is needed in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blobnet.errors import counted
from blobnet.launch.kernel_call import CONSTANT, COPYING, Blob
from blobnet.memory.blob import BlobLayout
from blobnet.planning.recomputing import AGAIN
from blobnet.support.formatting import format_bytes
from blobnet.support.tables import Table

if TYPE_CHECKING:
    from blobnet.planning import Plan

#: When constant calls run.
_RARELY = " when weights change"
_HEADER, _SIDES = ("storage", "planes", "bytes", "halo", "buffer"), "<>>>>"


@dataclass(frozen=True)
class Limits:
    """The memory that a plan should fit: of a device, or of what the user has in mind."""

    name: str
    memory: int
    largest_allocation: int


def report(
    plan: Plan, *, reserved: Mapping[str, int] | None = None, updates: int = 0, limits: Limits | None = None
) -> Table:
    """A plan as a table.

    Args:
        plan: what to show.
        reserved: bytes that are needed besides the plan, by name (optimizer state).
        updates: launches of an optimizer's step.
        limits: where given, the largest batch that fits is shown.
    """
    extra = dict(reserved or {})
    blobs = _stored_blobs(plan)
    rows = [*_rows(plan, blobs), *(_row(name, size=size, buffer=size) for name, size in extra.items())]
    return Table(_HEADER, rows, _SIDES, facts=_facts(plan, blobs, extra, updates, limits))


def _stored_blobs(plan: Plan) -> dict[str, Blob]:
    """A blob of every storage that holds some; all blobs of a storage have the same planes."""
    used = (blob for _, call in plan.calls for blob in call.blobs.values() if not blob.is_memory)
    return {blob.storage: blob for blob in [*used, *plan.outputs.values(), *plan.deltas.values()]}


def _array_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of the arrays that layers keep for themselves."""
    sizes: dict[str, int] = {}
    for array in (array for _, call in plan.calls for array in call.arrays.values() if not array.persistent):
        sizes[array.storage] = max(array.type.itemsize * array.end(plan.batch_size), sizes.get(array.storage, 0))
    return sizes


def _rows(plan: Plan, blobs: Mapping[str, Blob]) -> Iterator[tuple[str, ...]]:
    """A row for every storage, those that reuse a buffer below the first in it."""
    arrays = _array_bytes(plan)
    others: dict[str, list[str]] = {}
    for storage, place in plan.placed.items():
        others.setdefault(place, []).extend([storage] if storage != place else [])
    for name, buffer in plan.buffers.items():
        size = buffer.bytes(plan.batch_size)
        for storage in [name, *others.get(name, ())]:
            label, shown = (storage, size) if storage == name else (f"+ {storage}", None)
            if storage in blobs:
                yield _row(label, layout=blobs[storage].layout, size=_bytes(plan, blobs[storage]), buffer=shown)
            else:
                yield _row(label, size=arrays.get(storage, size), buffer=shown)


def _row(name: str, *, size: int, layout: BlobLayout | None = None, buffer: int | None = None) -> tuple[str, ...]:
    planes = "x".join(map(str, layout.shape.with_units(layout.unit_memory_count).dimensions)) if layout else ""
    zeros = f"{_zeros(layout) / layout.unit_memory_elements:.0%}" if layout else ""
    return name, planes, format_bytes(size), zeros, format_bytes(buffer) if buffer is not None else ""


def _bytes(plan: Plan, blob: Blob) -> int:
    return blob.type.itemsize * plan.batch_size * blob.layout.memory_elements


def _zeros(layout: BlobLayout) -> int:
    """Elements of a unit that hold no data."""
    return layout.unit_memory_elements - layout.unit_elements


def _facts(
    plan: Plan, blobs: Mapping[str, Blob], extra: Mapping[str, int], updates: int, limits: Limits | None
) -> dict[str, str]:
    """Return the sums of the table."""
    size = sum(_bytes(plan, blob) for blob in blobs.values())
    again = [_bytes(plan, blob) for name, blob in blobs.items() if name.endswith(AGAIN)]
    halo = sum(_bytes(plan, blob) * _zeros(blob.layout) // blob.layout.unit_memory_elements for blob in blobs.values())
    stored = size + sum(_array_bytes(plan).values())
    names = set(plan.placed.values()) - plan.persistent
    held = sum(plan.buffers[name].bytes(plan.batch_size) for name in names)
    constant = len(plan.phase(CONSTANT))
    phases = Counter(phase for phase, _ in plan.calls if phase != CONSTANT) + Counter({"update": updates})
    launches = f"{phases.total()} a batch ({', '.join(f'{phase} {number}' for phase, number in phases.items())})"
    total, reserved = plan.bytes() + sum(extra.values()), sum(extra.values())
    largest = max(plan.buffers.values(), key=lambda buffer: buffer.bytes(plan.batch_size))
    weights = [format_bytes(plan.buffers["parameters"].bytes(1))]
    weights += [f"gradients {format_bytes(plan.buffers['gradients'].bytes(1))}"] if "gradients" in plan.buffers else []
    own = {name: size for name, size in extra.items() if name.startswith("optimizer")}
    weights += [f"optimizer {format_bytes(sum(own.values()))}"] if own else []
    facts = {
        "launches": launches + (f", {constant}{_RARELY}" if constant else ""),
        "fused": _fused(plan),
        **({"computed again": f"{counted(len(again), 'blob')}, {format_bytes(sum(again))}"} if again else {}),
        **_moves(plan),
        "halo and slack": f"{format_bytes(halo)}, {halo / size:.1%} of all blobs",
        "reuse": f"{format_bytes(stored)} of blobs and arrays lie in {format_bytes(held)}",
        "weights": ", ".join(weights),
        "largest allocation": f"{format_bytes(plan.largest_allocation())} ({largest.name})",
        "total": f"{format_bytes(total)} for a batch of {plan.batch_size}",
    }
    if limits is not None:
        batch = plan.largest_batch(limits.memory, limits.largest_allocation, reserved)
        room = f"{limits.name}: {format_bytes(limits.memory)}, {format_bytes(limits.largest_allocation)} a buffer"
        facts["largest batch"] = f"{batch:,} ({room})" if batch else f"none, not even 1 fits ({room})"
    return facts


def _moves(plan: Plan) -> dict[str, str]:
    """The launches that only move data: in all, by what they do, and why.

    Copies of blobs, which joins and sums cost where they cannot share memory, stand by their names, if there are none.
    """
    kinds: dict[tuple[str, str], list[tuple[bool, int]]] = {(COPYING, ""): []}
    for phase, call in plan.calls:
        if call.moves:
            # Names within a generated kernel say nothing without the layer.
            is_named = call.source.is_generated and call.vertex is not None
            of = f" ({plan.request.graph.vertices[call.vertex or 0].layer.kind})" if is_named else ""
            kind = (COPYING, "") if call.moves == COPYING else (f"{call.moves}{of}", call.reason)
            kinds.setdefault(kind, []).append((phase == CONSTANT, call.bytes(plan.batch_size)))

    def summed(launches: Sequence[tuple[bool, int]]) -> str:
        parts = []
        for rarely in (False, True):
            sizes = [size for is_constant, size in launches if is_constant == rarely]
            if sizes:
                parts.append(f"{len(sizes)}, {format_bytes(sum(sizes))}{_RARELY if rarely else ''}")
        return "; ".join(parts) or "0"

    lines = {"only moving data": summed([launch for launches in kinds.values() for launch in launches])}
    for (what, reason), launches in sorted(kinds.items(), key=lambda item: -len(item[1])):
        why = ", ".join(plan.copies) if what == COPYING else reason
        lines[f"  {what}"] = summed(launches) + (f": {why}" if why else "")
    return lines


def _fused(plan: Plan) -> str:
    """The layers without a launch of their own, by kind."""
    kinds = Counter(vertex.layer.kind for vertex in plan.request.graph.vertices if vertex.name in plan.fused)
    listed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    return f"{listed}, into the launches of the layers before them" if kinds else "0"
