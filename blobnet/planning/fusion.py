"""Pass 6: which layers' kernels do the work of the layers behind them, where nobody wants the values between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blobnet.graph import Graph, Vertex
from blobnet.layers.base import Site
from blobnet.planning.placement import Places


@dataclass(frozen=True)
class Fusion:
    """What is computed where.

    Attributes:
        sites: those of all vertices, with epilogues.
        computed_by: the vertices whose kernels compute others, which are epilogues of theirs, by these.
    """

    sites: tuple[Site, ...]
    computed_by: Mapping[int, int]


def fuse(graph: Graph, places: Places, sites: Sequence[Site]) -> Fusion:
    """Gives sites their epilogues: what layers in place behind them do to single values, in any order.

    Steps are added while the layer's kernels can do all of them. What else such a layer reads must be there when the
    kernels with the epilogue run, which is earlier.
    """
    fused, computed_by = list(sites), dict[int, int]()
    for head in graph.vertices:
        last = head.index
        while head.index not in computed_by and (reader := _in_place_reader(graph, places, last)) is not None:
            steps = reader.layer.epilogue(sites[reader.index])
            ready = all(computed_by.get(source, source) < head.index for source in reader.inputs if source != last)
            if steps is None or not ready:
                break
            epilogue = (*fused[head.index].epilogue, *steps)
            if epilogue and not head.layer.fuses(epilogue):
                break
            fused[head.index] = replace(fused[head.index], epilogue=epilogue)
            computed_by[reader.index] = head.index
            last = reader.index
    return Fusion(tuple(fused), computed_by)


def _in_place_reader(graph: Graph, places: Places, index: int) -> Vertex | None:
    """The vertex that alone reads the output of another, if it runs in place of it."""
    readers = graph.readers[index]
    if len(readers) != 1 or readers[0] not in places.in_place_of:
        return None
    reader = graph.vertices[readers[0]]
    return reader if reader.inputs[places.in_place_of[reader.index]] == index else None
