"""Pass 2: where every blob lies: concat and in-place layers join blobs into one storage, through unit offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blobnet.layers.base import Placement
from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph, Vertex
from blobnet.planning.request import Request
from blobnet.planning.roles import Roles

_NEVER = 1 << 30
#: Why blobs do not share memory where none do.
NOT_SHARED = "no memory is shared"


@dataclass(frozen=True)
class Storage:
    """Planes in memory, for one blob or several."""

    name: str
    planes: Shape


@dataclass(frozen=True)
class Region:
    """The place of a blob before there are layouts: units of a storage."""

    storage: Storage
    unit_offset: int
    units: int

    @classmethod
    def whole(cls, name: str, planes: Shape) -> Region:
        """All of a new storage."""
        return cls(Storage(name, planes), 0, planes.units)

    def part(self, first: int, units: int) -> Region:
        """Return some of its units as a region."""
        return Region(self.storage, self.unit_offset + first, units)


class Occupied:
    """Vertices by the units of one storage that they have: thousands may lie there side by side, or in one place."""

    def __init__(self) -> None:
        #: By the number of units, where they begin; and of each such place the vertices; all in order.
        self._starts = defaultdict[int, list[int]](list)
        self._vertices = defaultdict[tuple[int, int], list[int]](list)

    def add(self, index: int, region: Region) -> None:
        """Have a vertex lie in a region."""
        vertices = self._vertices[region.units, region.unit_offset]
        if not vertices:
            insort(self._starts[region.units], region.unit_offset)
        insort(vertices, index)

    def remove(self, index: int, region: Region) -> None:
        """Have a vertex lie there no more."""
        vertices, starts = self._vertices[region.units, region.unit_offset], self._starts[region.units]
        del vertices[bisect_left(vertices, index)]
        if not vertices:
            del starts[bisect_left(starts, region.unit_offset)]

    def within(self, region: Region) -> Iterator[list[int]]:
        """The vertices of each place that has units in common with a region."""
        for units, starts in self._starts.items():
            first = bisect_right(starts, region.unit_offset - units)
            last = bisect_left(starts, region.unit_offset + region.units)
            yield from (self._vertices[units, start] for start in starts[first:last])


@dataclass(frozen=True)
class Places:
    """The places of the outputs of all vertices.

    Attributes:
        planes: the planes in memory, by vertex.
        regions: where they are, by vertex.
        in_place_of: for a vertex whose output lies where an input lay: the position of that input.
        parts: for a vertex whose output is units of its input: the first of them.
        copy_reasons: why an input does not lie in the output that it could lie in, by vertex and position.
    """

    planes: tuple[Shape, ...]
    regions: tuple[Region, ...]
    in_place_of: Mapping[int, int]
    parts: Mapping[int, int]
    copy_reasons: Mapping[tuple[int, int], str]


def place_outputs(request: Request, roles: Roles) -> Places:
    """Gives every vertex's output a region, from the output backwards, so that joins pull their inputs in."""
    graph, planes = request.graph, _memory_planes(request.graph)
    parts = _parts(request, roles, planes)
    placing = _Placing(request, roles, planes, parts)
    for vertex in reversed(graph.vertices):
        if vertex.index not in parts:
            placing.take_turn(vertex)
    regions = placing.regions
    for index, first in parts.items():
        regions[index] = regions[graph.vertices[index].inputs[0]].part(first, planes[index].units)
    everywhere = tuple(regions[vertex.index] for vertex in graph.vertices)
    return Places(planes, everywhere, placing.in_place_of, parts, placing.copy_reasons)


class _Placing:
    """The places of outputs so far.

    Attributes:
        regions: by vertex.
        in_place_of, copy_reasons: as of :class:`Places`.
    """

    def __init__(self, request: Request, roles: Roles, planes: tuple[Shape, ...], parts: Mapping[int, int]) -> None:
        self.regions: dict[int, Region] = {}
        self.in_place_of: dict[int, int] = {}
        self.copy_reasons: dict[tuple[int, int], str] = {}
        self._graph, self._shares, self._roles = request.graph, request.share, roles
        self._planes, self._parts = planes, parts
        self._whole, self._last_reads = _wholes(request.graph, parts), _last_reads(request.graph, roles, parts)
        #: By storage, the vertices that write over an input there.
        self._overwriters = defaultdict[str, Occupied](Occupied)

    def take_turn(self, vertex: Vertex) -> None:
        """Find a place for a vertex's output, and for those of its inputs that may lie there."""
        if vertex.index not in self.regions:
            self._put(vertex.index, Region.whole(f"{vertex.name} output", self._planes[vertex.index]))
        region, placement = self.regions[vertex.index], self._roles.placements[vertex.index].output
        if placement is Placement.CONCAT:
            offset = region.unit_offset
            for position, source in enumerate(vertex.inputs):
                self._joins(position, Region(region.storage, offset, self._planes[source].units), vertex)
                offset += self._planes[source].units
        elif placement is not Placement.SEPARATE:
            # NOTE: in place of a third input, a sum would be added up in another order, and round differently. In
            # place of the one that is computed last, its kernels may add the other one.
            for position in sorted(range(len(vertex.inputs[:2])), key=lambda place: -vertex.inputs[place]):
                if self._joins(position, region, vertex):
                    self.in_place_of[vertex.index] = position
                    break

    def _put(self, index: int, region: Region) -> None:
        self.regions[index] = region
        if self._roles.placements[index].output is Placement.IN_PLACE:
            self._overwriters[region.storage.name].add(index, region)

    def _joins(self, position: int, region: Region, reader: Vertex) -> bool:
        """Have an input lie in a region of its reader, where nothing is in the way; return True if it does."""
        source = reader.inputs[position]
        why = self._hindrance(source, reader) or self._overwritten(source, region, reader)
        if why:
            self.copy_reasons[reader.index, position] = why
        else:
            self._put(source, region)
        return not why

    def _hindrance(self, source: int, reader: Vertex) -> str:
        """Say why ``source`` cannot lie where its ``reader`` lies, whatever else lies there."""
        graph, planes, placement = self._graph, self._planes, self._roles.placements[reader.index].output
        name = graph.vertices[source].name
        if not self._shares:
            return NOT_SHARED
        if source in self.regions:
            return f"{name} lies in {self.regions[source].storage.name}"
        if source in self._parts:
            return f"{name} is a part of {graph.vertices[graph.vertices[source].inputs[0]].name}"
        if times_read(graph, source, reader.index) > 1:
            return f"{name} comes in more than once"
        others = (self._whole[other] for other in reader.inputs if other in self._parts)
        if placement is Placement.IN_PLACE and source in others:
            return f"a part of {name} comes in, too"
        if not same_plane(planes[source], planes[reader.index]):
            return other_planes(name, planes[source], planes[reader.index])
        if placement is Placement.IN_PLACE and graph.vertices[source].shape != reader.shape:
            return f"{name} is repeated"
        return ""

    def _overwritten(self, source: int, region: Region, reader: Vertex) -> str:
        """Say who would write over ``source`` in ``region`` before its last read."""
        name = self._graph.vertices[source].name
        overwritten = _NEVER
        for writers in self._overwriters[region.storage.name].within(region):
            behind = bisect_right(writers, source)
            overwritten = min([overwritten, *writers[behind : behind + 1]])
        last_read = self._last_reads[source]
        # A layer that runs in place of one input may not read the same memory as another input too.
        if overwritten < last_read or overwritten == last_read != reader.index:
            is_kept = overwritten == _NEVER
            return f"{name} is kept" if is_kept else f"{self._graph.vertices[overwritten].name} would overwrite {name}"
        return ""


def times_read(graph: Graph, source: int, reader: int) -> int:
    """How often ``reader`` reads ``source``, which may have thousands of readers; they are in order."""
    readers = graph.readers[source]
    return bisect_right(readers, reader) - bisect_left(readers, reader)


def _parts(request: Request, roles: Roles, planes: tuple[Shape, ...]) -> dict[int, int]:
    """The vertices whose outputs are units of their input, in order, and the first unit of each.

    What would be the memory of its input is a part as well, of one.
    """
    graph, parts = request.graph, dict[int, int]()
    for vertex in graph.vertices if request.share else ():
        places = roles.placements[vertex.index]
        is_part = places.output is Placement.PART or (places.output is Placement.SHARED and vertex.inputs[0] in parts)
        if is_part and len(vertex.inputs) == 1 and same_plane(planes[vertex.inputs[0]], planes[vertex.index]):
            parts[vertex.index] = places.first_unit
    return parts


def same_plane(first: Shape, second: Shape) -> bool:
    """Return True if blobs of these planes may be units of one storage."""
    return first.axes == second.axes


def other_planes(name: str, first: Shape, second: Shape) -> str:
    """Says that they may not."""
    return f"{name} is {first}, which is no part of {second}"


def _memory_planes(graph: Graph) -> tuple[Shape, ...]:
    """The planes in memory of every vertex: Flatten keeps its input's if all its readers can do with them."""
    any_do = [True] * len(graph.vertices)
    for vertex in reversed(graph.vertices):
        any_do[vertex.index] = _any_planes_do(graph, vertex, any_do)
    planes: list[Shape] = []
    for vertex in graph.vertices:
        keeps = vertex.layer.elementwise and vertex.inputs and any_do[vertex.index]
        planes.append(planes[vertex.inputs[0]] if keeps else vertex.shape)
    return tuple(planes)


def _any_planes_do(graph: Graph, vertex: Vertex, known: Sequence[bool]) -> bool:
    """Return True if all readers of a flat vertex take its elements in any memory shape; a loss does not.

    ``known`` says so of the vertices behind it.
    """
    if vertex.shape.rank:
        return True
    if graph.is_output(vertex.index):
        return False
    readers = [graph.vertices[reader] for reader in graph.readers[vertex.index]]
    return bool(readers) and all(
        reader.layer.flattens_input or (reader.layer.elementwise and len(reader.inputs) == 1 and known[reader.index])
        for reader in readers
    )


def _wholes(graph: Graph, parts: Mapping[int, int]) -> dict[int, int]:
    """Return, for each part, the vertex that it is a part of in the end: what it is cut from may be a part itself."""
    found: dict[int, int] = {}
    for index in parts:
        source = graph.vertices[index].inputs[0]
        found[index] = found.get(source, source)
    return found


def _last_reads(graph: Graph, roles: Roles, parts: Mapping[int, int]) -> list[int]:
    """Return the last vertex that reads each blob, or a part of it; _NEVER if the caller or the backward pass does."""
    last = [0] * len(graph.vertices)
    for vertex in reversed(graph.vertices):
        readers = (last[item] if item in parts else item for item in graph.readers[vertex.index])
        last[vertex.index] = max(readers, default=vertex.index)
        if roles.kept[vertex.index]:
            last[vertex.index] = _NEVER - 1
        if graph.is_output(vertex.index):
            last[vertex.index] = _NEVER
    for vertex in graph.vertices:
        joins = (
            roles.placements[vertex.index].output in (Placement.CONCAT, Placement.SHARED) and vertex.index not in parts
        )
        if joins and not roles.kept[vertex.index] and not graph.is_output(vertex.index):
            # Its inputs are the same memory, unless they have to be copied for what overwrites it.
            last[vertex.index] = max([last[vertex.index], *(last[item] for item in vertex.inputs)])
    return last
