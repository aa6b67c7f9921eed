"""Pass 3: where every delta lies, and whether what adds up there is set or added to by each of a blob's readers."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blobnet.layers.base import Placement
from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph, Vertex
from blobnet.planning.placement import NOT_SHARED, Occupied, Places, Region, other_planes, same_plane, times_read
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
    placing = _Placing(request, roles, places.planes)
    if request.training:
        for _, output in request.graph.exits:
            if roles.needs_delta[output]:
                placing.put(output, placing.new(output))
        for vertex in reversed(request.graph.vertices):
            if roles.needs_delta[vertex.index]:
                placing.take_turn(vertex)
    return Deltas(placing.regions, placing.accumulate, placing.copy_reasons)


class _Placing:
    """The places of deltas so far.

    Attributes:
        regions, accumulate, copy_reasons: as of :class:`Deltas`.
    """

    def __init__(self, request: Request, roles: Roles, planes: Sequence[Shape]) -> None:
        self.regions: dict[int, Region] = {}
        self.accumulate: dict[tuple[int, int], bool] = {}
        self.copy_reasons: dict[tuple[int, int], str] = {}
        self._graph, self._shares, self._roles, self._planes = request.graph, request.share, roles, planes
        self._parts = _parts(request, roles, planes)
        #: By storage, the vertices whose deltas lie in it and whose turn is still to come.
        self._waiting = defaultdict[str, Occupied](Occupied)

    def new(self, index: int) -> Region:
        """Return a region of its own for the delta of a vertex; of a part, within that of the whole."""
        vertex = self._graph.vertices[index]
        if index in self._parts:
            return self.new(vertex.inputs[0]).part(self._parts[index], self._planes[index].units)
        return Region.whole(f"{vertex.name} delta", self._planes[index])

    def put(self, index: int, region: Region) -> None:
        """Have the delta of a vertex lie in a region."""
        self.regions[index] = region
        self._waiting[region.storage.name].add(index, region)

    def take_turn(self, vertex: Vertex) -> None:
        """Find places for the deltas of a vertex's inputs, which it computes from its own."""
        own = self.regions[vertex.index]
        self._waiting[own.storage.name].remove(vertex.index, own)
        if vertex.index in self._parts:
            # What its readers left is a part of its input's delta, and other slices have the rest.
            self.accumulate[vertex.index, 0] = False
            self.put(vertex.inputs[0], self.new(vertex.inputs[0]))
            return
        placement, offset = self._placement(vertex), own.unit_offset
        for position, source in enumerate(vertex.inputs):
            units = self._planes[source].units
            if self._roles.needs_delta[source]:
                self.accumulate[vertex.index, position] = source in self.regions
                if source not in self.regions:
                    region = Region(own.storage, offset, units) if placement is Placement.CONCAT else own
                    self._place(vertex, position, region, placement)
            offset += units

    def _placement(self, vertex: Vertex) -> Placement:
        placement = self._roles.placements[vertex.index].delta
        if not self._shares:
            return Placement.SEPARATE
        return Placement.SEPARATE if placement is Placement.PART else placement

    def _place(self, vertex: Vertex, position: int, region: Region, placement: Placement) -> None:
        """Have the delta of an input lie in a region, where nothing is in the way."""
        source = vertex.inputs[position]
        why = self._hindrance(vertex, source, region, placement)
        assert not why or vertex.index not in self._roles.absorbed, f"{vertex.name}: nothing comes between"
        self.put(source, self.new(source) if why else region)
        if why:
            self.copy_reasons[vertex.index, position] = why

    def _hindrance(self, vertex: Vertex, source: int, region: Region, placement: Placement) -> str:
        """Say why the delta of ``source`` cannot lie where the delta of its reader ``vertex`` lies."""
        graph, planes = self._graph, self._planes
        name = graph.vertices[source].name
        if placement is Placement.SEPARATE:
            return f"{vertex.layer.kind} gives a delta of its own" if self._shares else NOT_SHARED
        if not same_plane(planes[source], planes[vertex.index]):
            return other_planes(name, planes[source], planes[vertex.index])
        if placement is not Placement.CONCAT and planes[source].units != planes[vertex.index].units:
            return f"{name} is repeated"
        if source in self._parts:
            return f"{name} is a part of {graph.vertices[graph.vertices[source].inputs[0]].name}"
        if placement is Placement.SHARED and times_read(graph, source, vertex.index) > 1:
            # A delta that is added to itself doubles, once too often with three readers or two sources.
            return f"{name} comes in more than once"
        absorbed = self._roles.absorbed
        for other in itertools.chain.from_iterable(self._waiting[region.storage.name].within(region)):
            # Each delta in the region must have been read before another reader of the other one adds to it.
            if (
                placement is Placement.IN_PLACE
                or _next_addition(graph, source, vertex.index) >= absorbed.get(other, other)
                or _next_addition(graph, other, vertex.index) >= absorbed.get(source, source)
            ):
                return f"another reader adds to {name} or {graph.vertices[other].name} too early"
        return ""


def _parts(request: Request, roles: Roles, planes: Sequence[Shape]) -> dict[int, int]:
    """The slices whose deltas are units of their input's delta, and the first of them: if together they are all of it.

    Nobody else may read the input, and no unit be read twice, or deltas would have to be added up.
    """
    graph, parts = request.graph, dict[int, int]()
    for vertex in graph.vertices if request.share else ():
        readers = [graph.vertices[index] for index in graph.readers[vertex.index]]
        cut = all(
            roles.placements[reader.index].delta is Placement.PART
            and roles.needs_delta[reader.index]
            and same_plane(planes[reader.index], planes[vertex.index])
            for reader in readers
        )
        if not readers or not cut or graph.is_output(vertex.index) or not roles.needs_delta[vertex.index]:
            continue
        first = {reader.index: roles.placements[reader.index].first_unit for reader in readers}
        units = [unit for index, start in first.items() for unit in range(start, start + planes[index].units)]
        if sorted(units) == list(range(planes[vertex.index].units)):
            parts |= first
    return parts


def _next_addition(graph: Graph, source: int, now: int) -> int:
    """The next vertex in backward order, from ``now`` on, that adds to the delta of ``source``; -1 if none."""
    if times_read(graph, source, now) > 1:
        return now
    first = bisect_left(graph.readers[source], now)
    return graph.readers[source][first - 1] if first else -1
