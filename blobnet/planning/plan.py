"""The plan: what an executor needs to run a graph, and how the passes make it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from blobnet.errors import ShapeError
from blobnet.launch.kernel_call import CONSTANT, COPYING, Blob, KernelCall, for_model
from blobnet.layers.base import LayerContext
from blobnet.network.graph import Graph
from blobnet.planning.combining import with_combined
from blobnet.planning.constants import PhasedCall, with_constants
from blobnet.planning.deltas import place_deltas
from blobnet.planning.memory import MAX_ELEMENTS, Buffer, allocate
from blobnet.planning.placement import place_outputs
from blobnet.planning.recomputing import with_recomputed
from blobnet.planning.report import report
from blobnet.planning.request import Request
from blobnet.planning.roles import assign_roles
from blobnet.planning.settling import settle
from blobnet.planning.sharding import with_shards
from blobnet.planning.statistics import with_own_statistics
from blobnet.support.garbage import gc_paused
from blobnet.support.old_names import names_of_parts


@dataclass(frozen=True)
class Plan:
    """All that an executor needs to run a graph on batches of up to ``batch_size`` samples.

    Attributes:
        request: what was asked for.
        calls: the launches in their order, each with its phase.
        buffers: all memory, by name.
        placed: the buffer of each storage.
        outputs, deltas: the blobs of each vertex, by layer name.
        fused: for each layer that the kernels of another compute, that one.
        sites: the place of each vertex, by layer name.
    """

    request: Request
    _: KW_ONLY
    calls: tuple[PhasedCall, ...]
    buffers: Mapping[str, Buffer]
    placed: Mapping[str, str]
    outputs: Mapping[str, Blob]
    deltas: Mapping[str, Blob]
    fused: Mapping[str, str] = field(default_factory=dict)
    sites: Mapping[str, LayerContext] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        return str(report(self))

    def _repr_html_(self) -> str:
        return report(self)._repr_html_()

    @property
    def batch_size(self) -> int:
        """The most samples of a batch."""
        return self.request.batch_size

    if not TYPE_CHECKING:  # Checkers should say that there is no such attribute.
        __getattr__ = names_of_parts(("request",), {})

    def phase(self, name: str) -> list[KernelCall]:
        """The calls of one phase: ``constant``, ``forward``, ``loss`` or ``backward``.

        Those of ``constant`` run whenever parameters changed; of those that are trained only with ``in_batches``.
        """
        return [call for phase, call in self.calls if phase == name]

    @property
    def copies(self) -> list[str]:
        """Launches that only move values where blobs could not share memory: each with its label, and why not."""
        return [f"{call.label} ({call.reason})" for _, call in self.calls if call.moves == COPYING]

    @property
    def constants(self) -> set[str]:
        """The buffers of what the calls of ``constant`` have made for the others."""
        made = {name for call in self.phase(CONSTANT) for name in call.storages("write", "update")}
        others = (call for phase, call in self.calls if phase != CONSTANT)
        return {self.placed[name] for call in others for name in made.intersection(call.storages("read"))}

    @property
    def tables(self) -> list[int]:
        """The content of TABLES, for calls that combine others."""
        return [number for _, call in self.calls for number in call.table]

    @property
    def persistent(self) -> set[str]:
        """The buffers that keep what they hold from batch to batch, or are filled from outside."""
        return {array.storage for _, call in self.calls for array in call.arrays.values() if array.persistent}

    def bytes(self, count: int | None = None) -> int:
        """Bytes of all buffers for a batch of ``count`` (the planned batch size if None)."""
        return sum(buffer.bytes(count or self.batch_size) for buffer in self.buffers.values())

    def largest_allocation(self, count: int | None = None) -> int:
        """Bytes of the largest buffer."""
        return max(buffer.bytes(count or self.batch_size) for buffer in self.buffers.values())

    def for_batch(self, batch_size: int) -> Plan:
        """Return the plan for another batch size, with the kernels and the work space of that."""
        return plan_of(replace(self.request, batch_size=batch_size))

    def fits(self, memory: int, allocation: int, reserved: int = 0, count: int | None = None) -> bool:
        """Return True if all buffers fit ``memory`` bytes beside ``reserved`` ones, each of at most ``allocation``."""
        return self.bytes(count) + reserved <= memory and self.largest_allocation(count) <= allocation

    def largest_batch(self, memory: int, allocation: int, reserved: int = 0) -> int:
        """The largest batch whose plan fits ``memory`` bytes in buffers of at most ``allocation`` bytes; 0 if none.

        ``reserved`` is what others need besides (optimizer state). For another batch, layers may choose other kernels
        and ask for other work space: so what a plan says is tried, with a plan for that. (Where kernels change, a
        larger batch may fit again.)
        """
        room = memory, allocation, reserved
        fitting, too_large = (self.batch_size, MAX_ELEMENTS) if self.fits(*room) else (0, self.batch_size)
        plan = self
        while fitting + 1 < too_large:
            batch = plan._largest_count(*room)
            if batch == plan.batch_size:
                break
            if not fitting < batch < too_large:
                batch = (fitting + too_large) // 2
            try:
                fits = (plan := self.for_batch(batch)).fits(*room)
            except ShapeError:  # More elements than kernels can count.
                fits = False
            fitting, too_large = (batch, too_large) if fits else (fitting, batch)
        return fitting

    def _largest_count(self, memory: int, allocation: int, reserved: int) -> int:
        """Return the largest batch with the kernels of this plan."""
        counts = range(1, MAX_ELEMENTS)
        return bisect_left(counts, True, key=lambda count: not self.fits(memory, allocation, reserved, count))


def make_plan(graph: Graph, batch_size: int, **settings: Any) -> Plan:
    """Plans a graph for training, or for inference.

    What is not trained costs what it costs in inference: a layer whose parameters are all frozen runs as there, and
    where neither a layer nor any before it is trained there are no deltas, and nothing is kept for the backward pass.

    The arguments are those of :class:`blobnet.planning.request.Request`.

    Raises:
        OptionError, ShapeError: as there.
        PlanError: as there; or a sample or the parameters have more elements than kernels can count.
    """
    return plan_of(Request(graph, batch_size, **settings))


def plan_of(request: Request) -> Plan:
    """The plan that is asked for; PlanError as for :func:`make_plan`."""
    with gc_paused():
        return _plan(request)


def _plan(request: Request) -> Plan:
    roles = assign_roles(request)
    places = place_outputs(request, roles)
    deltas = place_deltas(request, roles, places)
    layouts, fusion, scheduled = settle(request, roles, places, deltas)
    calls: Sequence[PhasedCall] = with_recomputed(request, [(item.phase, item.call) for item in scheduled])
    calls = with_constants(calls, request.changing_parameters)
    calls = with_own_statistics(calls, request.statistics)
    calls = with_combined(request, calls)
    calls = with_shards(request, calls)
    results = {places.regions[index].storage.name for _, index in request.graph.exits}
    wanted = {index for _, index in request.graph.entries} & deltas.regions.keys() if request.input_delta else set()
    memory = allocate(request, calls, results, {deltas.regions[index].storage.name for index in wanted})
    made = for_model((call for _, call in memory.calls), request.tuning.model)
    names = [vertex.name for vertex in request.graph.vertices]
    return Plan(
        request,
        # What rarely runs is not worth a program for each size.
        calls=tuple(
            (phase, call if phase == CONSTANT and not request.in_batches else fast)
            for (phase, call), fast in zip(memory.calls, made, strict=True)
        ),
        buffers=memory.buffers,
        placed=memory.placed,
        outputs={name: site.output for name, site in zip(names, fusion.sites, strict=True)},
        deltas={names[index]: layouts.blob(region) for index, region in deltas.regions.items()},
        fused={names[index]: names[computer] for index, computer in fusion.computed_by.items()},
        sites=dict(zip(names, fusion.sites, strict=True)),
    )
