"""Pass 6: which layers' kernels do the work of the layers after them, where nobody wants the values between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from blobnet.layers.base import LayerContext, Placement
from blobnet.network.graph import Graph, Vertex
from blobnet.planning.placement import Places


@dataclass(frozen=True)
class Fusion:
    """The fused operations: which kernel computes which layer.

    Attributes:
        sites: those of all vertices, with epilogues.
        computed_by: the vertices whose kernels compute others, which are epilogues of theirs, by these; for a concat
            without copies those that write its parts do.
    """

    sites: tuple[LayerContext, ...]
    computed_by: Mapping[int, int]


class _Writer(NamedTuple):
    """A vertex whose kernels write units of a blob, from the first one on."""

    vertex: int
    first: int
    units: int


def fuse(graph: Graph, places: Places, sites: Sequence[LayerContext]) -> Fusion:
    """Gives sites their epilogues: what layers in place after them do to single values, in any order.

    Steps are added while the layer's kernels can do all of them; after a concat those of all its parts. What else such
    a layer reads must be there when the kernels with the epilogue run, which is earlier.
    """
    fused, computed_by = list(sites), dict[int, int]()
    for head in graph.vertices:
        last = head.index
        writers = [] if last in computed_by else _writers(graph, places, computed_by, last)
        while writers and (reader := _in_place_reader(graph, places, last)) is not None:
            steps = reader.layer.epilogue(sites[reader.index])
            begin = min(writer.vertex for writer in writers)
            ready = all(computed_by.get(source, source) < begin for source in reader.inputs if source != last)
            # Of what has another type of element, kernels find no units.
            kind = sites[last].output.type
            if steps is None or not ready or not all(step.reads_like(kind) for step in steps):
                break
            epilogues = {
                vertex: (*fused[vertex].epilogue, *(step.part(first, units) for step in steps))
                for vertex, first, units in writers
            }
            if not all(not chain or graph.vertices[vertex].layer.fuses(chain) for vertex, chain in epilogues.items()):
                break
            for vertex, chain in epilogues.items():
                fused[vertex] = replace(fused[vertex], epilogue=chain)
            computed_by[reader.index] = head.index
            last = reader.index
    return Fusion(tuple(fused), computed_by)


def _writers(graph: Graph, places: Places, computed_by: Mapping[int, int], index: int) -> list[_Writer]:
    """The vertices whose kernels write the output of one, of which nobody reads a part alone; none if copies do."""
    vertex = graph.vertices[index]
    if vertex.layer.placement(graph.input_shapes(vertex), training=False).output is not Placement.CONCAT:
        return [_Writer(computed_by.get(index, index), 0, places.planes[index].units)]
    writers: list[_Writer] = []
    first = 0
    for source in vertex.inputs:
        units = places.planes[source].units
        within = graph.readers[source] == (index,) and places.regions[source] == places.regions[index].part(
            first, units
        )
        parts = _writers(graph, places, computed_by, source) if within and not graph.is_output(source) else []
        if not parts:
            return []
        writers += [part._replace(first=first + part.first) for part in parts]
        first += units
    return writers


def _in_place_reader(graph: Graph, places: Places, index: int) -> Vertex | None:
    """The vertex that alone reads the output of another, if it runs in place of it."""
    readers = graph.readers[index]
    if len(readers) != 1 or readers[0] not in places.in_place_of:
        return None
    reader = graph.vertices[readers[0]]
    return reader if reader.inputs[places.in_place_of[reader.index]] == index else None
