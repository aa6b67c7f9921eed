"""Pass 2: where every blob lies: concat and in-place layers join blobs into one storage, through unit offsets."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
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

    def overlaps(self, other: Region) -> bool:
        """Return True if they have units in common."""
        return (
            self.storage == other.storage
            and self.unit_offset < other.unit_offset + other.units
            and other.unit_offset < self.unit_offset + self.units
        )


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
    regions: dict[int, Region] = {}
    overwriters: defaultdict[str, list[int]] = defaultdict(list)
    in_place_of: dict[int, int] = {}
    copy_reasons: dict[tuple[int, int], str] = {}
    parts = _parts(request, roles, planes)
    whole = _wholes(graph, parts)
    last_reads = _last_reads(graph, roles, parts)

    def hindrance(source: int, region: Region, reader: Vertex) -> str:
        """Why ``source`` cannot lie in ``region`` of its ``reader``: no value is overwritten before its last read."""
        name = graph.vertices[source].name
        if not request.share:
            return NOT_SHARED
        if source in regions:
            return f"{name} lies in {regions[source].storage.name}"
        if source in parts:
            return f"{name} is a part of {graph.vertices[graph.vertices[source].inputs[0]].name}"
        if reader.inputs.count(source) > 1:
            return f"{name} comes in more than once"
        others = (whole[other] for other in reader.inputs if other in parts)
        if roles.placements[reader.index] is Placement.IN_PLACE and source in others:
            return f"a part of {name} comes in, too"
        if not same_plane(planes[source], planes[reader.index]):
            return other_planes(name, planes[source], planes[reader.index])
        if roles.placements[reader.index] is Placement.IN_PLACE and graph.vertices[source].shape != reader.shape:
            return f"{name} is repeated"
        writers = overwriters[region.storage.name]
        behind = (writers[place] for place in range(bisect_right(writers, source), len(writers)))
        overwritten = next((index for index in behind if regions[index].overlaps(region)), _NEVER)
        last_read = last_reads[source]
        # A layer that runs in place of one input may not read the same memory as another input too.
        if overwritten < last_read or overwritten == last_read != reader.index:
            is_kept = overwritten == _NEVER
            return f"{name} is kept" if is_kept else f"{graph.vertices[overwritten].name} would overwrite {name}"
        return ""

    def joins(position: int, region: Region, reader: Vertex) -> bool:
        source = reader.inputs[position]
        why = hindrance(source, region, reader)
        if why:
            copy_reasons[reader.index, position] = why
        else:
            put(source, region)
        return not why

    def put(index: int, region: Region) -> None:
        regions[index] = region
        if roles.placements[index] is Placement.IN_PLACE:
            insort(overwriters[region.storage.name], index)

    for vertex in reversed(graph.vertices):
        if vertex.index in parts:
            continue
        if vertex.index not in regions:
            put(vertex.index, Region.whole(f"{vertex.name} output", planes[vertex.index]))
        region = regions[vertex.index]
        placement = roles.placements[vertex.index]
        if placement is Placement.CONCAT:
            offset = region.unit_offset
            for position, source in enumerate(vertex.inputs):
                joins(position, Region(region.storage, offset, planes[source].units), vertex)
                offset += planes[source].units
        elif placement is not Placement.SEPARATE:
            # NOTE: in place of a third input, a sum would be added up in another order, and round differently. In
            # place of the one that is computed last, its kernels may add the other one.
            for position in sorted(range(len(vertex.inputs[:2])), key=lambda place: -vertex.inputs[place]):
                if joins(position, region, vertex):
                    in_place_of[vertex.index] = position
                    break
    for index, first in parts.items():
        regions[index] = regions[graph.vertices[index].inputs[0]].part(first, planes[index].units)
    return Places(planes, tuple(regions[vertex.index] for vertex in graph.vertices), in_place_of, parts, copy_reasons)


def _parts(request: Request, roles: Roles, planes: tuple[Shape, ...]) -> dict[int, int]:
    """The vertices whose outputs are units of their input, in order, and the first unit of each.

    What would be the memory of its input is a part as well, of one.
    """
    graph, parts = request.graph, dict[int, int]()
    for vertex in graph.vertices if request.share else ():
        placement = roles.placements[vertex.index]
        is_part = placement is Placement.PART or (placement is Placement.SHARED and vertex.inputs[0] in parts)
        if is_part and len(vertex.inputs) == 1 and same_plane(planes[vertex.inputs[0]], planes[vertex.index]):
            is_own = placement is Placement.PART
            parts[vertex.index] = vertex.layer.first_unit(graph.input_shapes(vertex)) if is_own else 0
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
        joins = roles.placements[vertex.index] in (Placement.CONCAT, Placement.SHARED) and vertex.index not in parts
        if joins and not roles.kept[vertex.index] and not graph.is_output(vertex.index):
            # Its inputs are the same memory, unless they have to be copied for what overwrites it.
            last[vertex.index] = max([last[vertex.index], *(last[item] for item in vertex.inputs)])
    return last
