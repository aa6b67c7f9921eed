"""Pass 3: where every delta lies, and whether what adds up there is set or added to by each of a blob's readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blobnet.layers.base import Placement
from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph, Vertex
from blobnet.planning.placement import NOT_SHARED, Places, Region, other_planes, same_plane
from blobnet.planning.request import Request
from blobnet.planning.roles import Roles


@dataclass(frozen=True)
class Deltas:
    """The places of deltas; none in an inference plan.

    Attributes:
        regions: where the delta of a vertex's output lies, by vertex, of those that need one.
        accumulate: by vertex and position of an input: whether the vertex adds to that input's delta (``+=``), or sets
            it; of those that it computes.
        copy_reasons: why an input's delta does not lie in the output's, by vertex and position.
    """

    regions: Mapping[int, Region]
    accumulate: Mapping[tuple[int, int], bool]
    copy_reasons: Mapping[tuple[int, int], str]


def place_deltas(request: Request, roles: Roles, places: Places) -> Deltas:
    """Gives every delta a region, in the order of the backward pass.

    Backward runs from the last vertex to the first, so 'later' is 'smaller index' here.
    """
    graph, planes = request.graph, places.planes
    regions: dict[int, Region] = {}
    # By storage, the vertices whose deltas lie in it and whose turn is still to come.
    waiting = defaultdict[str, dict[int, Region]](dict)
    accumulate: dict[tuple[int, int], bool] = {}
    copy_reasons: dict[tuple[int, int], str] = {}
    parts = _parts(request, roles, planes)

    def new(index: int) -> Region:
        if index in parts:
            return new(graph.vertices[index].inputs[0]).part(parts[index], planes[index].units)
        return Region.whole(f"{graph.vertices[index].name} delta", planes[index])

    def put(index: int, region: Region) -> None:
        regions[index] = waiting[region.storage.name][index] = region

    def hindrance(vertex: Vertex, source: int, region: Region, placement: Placement) -> str:
        """Why the delta of ``source`` cannot lie where the delta of its reader ``vertex`` lies."""
        name = graph.vertices[source].name
        if placement is Placement.SEPARATE:
            return f"{vertex.layer.kind} gives a delta of its own" if request.share else NOT_SHARED
        if not same_plane(planes[source], planes[vertex.index]):
            return other_planes(name, planes[source], planes[vertex.index])
        if placement is not Placement.CONCAT and planes[source].units != planes[vertex.index].units:
            return f"{name} is repeated"
        if source in parts:
            return f"{name} is a part of {graph.vertices[graph.vertices[source].inputs[0]].name}"
        pending = (index for index, other in waiting[region.storage.name].items() if other.overlaps(region))
        if placement is Placement.SHARED and vertex.inputs.count(source) > 1:
            # A delta that is added to itself doubles, once too often with three readers or two sources.
            return f"{name} comes in more than once"
        for other in pending:
            # Each delta in the region must have been read before another reader of the other one adds to it.
            if (
                placement is Placement.IN_PLACE
                or _next_addition(graph, source, vertex.index) >= roles.absorbed.get(other, other)
                or _next_addition(graph, other, vertex.index) >= roles.absorbed.get(source, source)
            ):
                return f"another reader adds to {name} or {graph.vertices[other].name} too early"
        return ""

    for _, output in graph.exits if request.training else ():
        if roles.needs_delta[output]:
            put(output, new(output))
    for vertex in reversed(graph.vertices) if request.training else ():
        if not roles.needs_delta[vertex.index]:
            continue
        own = regions[vertex.index]
        del waiting[own.storage.name][vertex.index]
        if vertex.index in parts:
            # What its readers left is a part of its input's delta, and other slices have the rest.
            accumulate[vertex.index, 0] = False
            put(vertex.inputs[0], new(vertex.inputs[0]))
            continue
        placement = vertex.layer.delta_placement() if request.share else Placement.SEPARATE
        if vertex.index in roles.absorbed:
            placement = Placement.SHARED
        if placement is Placement.PART:
            placement = Placement.SEPARATE
        offset = own.unit_offset
        for position, source in enumerate(vertex.inputs):
            units = planes[source].units
            if roles.needs_delta[source]:
                accumulate[vertex.index, position] = source in regions
                if source not in regions:
                    region = Region(own.storage, offset, units) if placement is Placement.CONCAT else own
                    why = hindrance(vertex, source, region, placement)
                    assert not why or vertex.index not in roles.absorbed, f"{vertex.name}: nothing comes between"
                    put(source, new(source) if why else region)
                    if why:
                        copy_reasons[vertex.index, position] = why
            offset += units
    return Deltas(regions, accumulate, copy_reasons)


def _parts(request: Request, roles: Roles, planes: Sequence[Shape]) -> dict[int, int]:
    """The slices whose deltas are units of their input's delta, and the first of them: if together they are all of it.

    Nobody else may read the input, and no unit be read twice, or deltas would have to be added up.
    """
    graph, parts = request.graph, dict[int, int]()
    for vertex in graph.vertices if request.share else ():
        readers = [graph.vertices[index] for index in graph.readers[vertex.index]]
        cut = all(
            reader.layer.delta_placement() is Placement.PART
            and roles.needs_delta[reader.index]
            and same_plane(planes[reader.index], planes[vertex.index])
            for reader in readers
        )
        if not readers or not cut or graph.is_output(vertex.index) or not roles.needs_delta[vertex.index]:
            continue
        first = {reader.index: reader.layer.first_unit(graph.input_shapes(reader)) for reader in readers}
        units = [unit for index, start in first.items() for unit in range(start, start + planes[index].units)]
        if sorted(units) == list(range(planes[vertex.index].units)):
            parts |= first
    return parts


def _next_addition(graph: Graph, source: int, now: int) -> int:
    """The next vertex in backward order, from ``now`` on, that adds to the delta of ``source``; -1 if none."""
    later = [reader for reader in graph.readers[source] if reader < now]
    twice = graph.vertices[now].inputs.count(source) > 1
    return now if twice else max(later, default=-1)
