"""Pass 7: the kernel calls of all layers and of the loss, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from blobnet.graph import Vertex
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from blobnet.kernel_call import KernelCall
from blobnet.planning.fusion import Fusion
from blobnet.planning.layout import HaloOf
from blobnet.planning.request import Request
from blobnet.planning.roles import Roles


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
    if request.loss:
        site = fusion.sites[request.graph.output.index]
        made = request.loss.calls(site.output, site.output_delta, request.tuning, request.batch_size)
        calls += [Scheduled("loss", None, call) for call in made]
    for vertex, site in reversed(pairs) if request.training else ():
        if roles.runs_backward(vertex.index):
            if site.training:
                calls += _made("backward", vertex, BACKWARD_WEIGHTS, vertex.layer.backward_parameters(site))
            calls += _made("backward", vertex, BACKWARD_DATA, vertex.layer.backward_data(site))
    return tuple(calls)


def halos_read(calls: Iterable[Scheduled]) -> set[HaloOf]:
    """Which vertices have calls that read the halo of which storages."""
    return {(item.vertex, name) for item in calls if item.vertex is not None for name in item.call.halos_read}


def _made(phase: str, vertex: Vertex, direction: str, calls: Iterable[KernelCall]) -> list[Scheduled]:
    """The calls of a layer, which are told whose they are."""
    return [
        Scheduled(phase, vertex.index, replace(call, owner=vertex.layer, vertex=vertex.index, direction=direction))
        for call in calls
    ]
