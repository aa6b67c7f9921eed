"""Pass 7: the kernel calls of all layers and of the loss, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.launch.kernel_call import Array, KernelCall
from blobnet.launch.work_sizes import sum_call
from blobnet.network.ends import totals_call
from blobnet.network.graph import Vertex
from blobnet.planning.fusion import Fusion
from blobnet.planning.layout import HaloOf
from blobnet.planning.request import Request
from blobnet.planning.roles import Roles
from blobnet.planning.sites import gradient_parts


class Scheduled(NamedTuple):
    """A call, its phase, and the vertex that made it."""

    phase: str
    vertex: int | None
    call: KernelCall


def schedule(request: Request, roles: Roles, fusion: Fusion) -> tuple[Scheduled, ...]:
    """All calls, as layers and the loss make them."""
    calls: list[Scheduled] = []
    pairs = list(zip(request.graph.vertices, fusion.sites, strict=True))
    for vertex, site in pairs:
        if vertex.index not in fusion.computed_by:
            calls += _made("forward", vertex, FORWARD, vertex.layer.forward(site))
    for head in request.heads:
        site = fusion.sites[head.index]
        made = head.calls(site.output, site.output_delta, request.tuning, request.of_shard)
        calls += [Scheduled(head.phase, None, call) for call in made]
    if request.training:
        calls += [Scheduled("loss", None, call) for call in totals_call(request.heads)]
    for vertex, site in reversed(pairs) if request.training else ():
        if roles.runs_backward(vertex.index):
            if site.training:
                calls += _made("backward", vertex, BACKWARD_WEIGHTS, vertex.layer.backward_parameters(site))
            calls += _made("backward", vertex, BACKWARD_DATA, vertex.layer.backward_data(site))
            if vertex.place == 1 and request.graph.places(vertex) > 1:
                sums = _gradient_sums(request, vertex, roles.trained[vertex.index])
                calls += _made("backward", vertex, BACKWARD_WEIGHTS, sums)
    return tuple(calls)


def halos_read(calls: Iterable[Scheduled]) -> set[HaloOf]:
    """Return the pairs of a vertex and a storage whose halo a call of the vertex reads."""
    return {(item.vertex, name) for item in calls if item.vertex is not None for name in item.call.halos_read}


def _gradient_sums(request: Request, vertex: Vertex, trained: Iterable[str]) -> Iterator[KernelCall]:
    """The calls that add up the gradients of a layer in several places; the first one comes last in a backward pass."""
    for name in sorted(trained):
        piece = request.parameters.slices[vertex.parameter(name)]
        gradient = Array("gradients", piece.elements, offset=piece.offset, persistent=True)
        parts = gradient_parts(request, vertex, name, whole=True)
        label = f"{vertex.layer.name} sum over its places"
        yield sum_call(label, parts, gradient, request.graph.places(vertex), request.tuning)


def _made(phase: str, vertex: Vertex, direction: str, calls: Iterable[KernelCall]) -> list[Scheduled]:
    """The calls of a layer, which are told whose they are."""
    made = []
    for call in calls:
        reason = call.reason or (vertex.layer.copy_reason if call.moves else "")
        whose = replace(call, owner=vertex.layer, vertex=vertex.index, direction=direction, reason=reason)
        made.append(Scheduled(phase, vertex.index, whose))
    return made
