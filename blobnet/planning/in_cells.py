"""Pass 4b: which storages have cells for elements: those that nothing touches but kernels that take cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blobnet.layers.base import LayerContext
from blobnet.memory.blob import StorageType
from blobnet.planning.deltas import Deltas
from blobnet.planning.layout import leader
from blobnet.planning.placement import Places, Region
from blobnet.planning.request import Request


def storages_in_cells(
    request: Request, places: Places, deltas: Deltas, sites: Sequence[LayerContext]
) -> Mapping[str, StorageType]:
    """The types of the storages whose elements are cells, by name.

    Blobs of a layer that makes each value of those at the same place go together; a product may have either on each
    side. What users read, and what goes in and out of a network, has numbers.
    """
    cells, graph = request.tuning.cells, request.graph
    # The backward pass has no kernels for them on processors.
    if cells is None or (request.training and not request.tuning.model.is_simt):
        return {}
    leaders: dict[str, str] = {}
    refused = set[str]()
    for vertex, site in zip(graph.vertices, sites, strict=True):
        takes = vertex.layer.takes_cells(site)
        is_end = any(vertex.index in end for end in (*graph.entries, *graph.exits))
        around = [(source, takes.inputs) for source in vertex.inputs] + [(vertex.index, takes.output and not is_end)]
        touched = [(region, fits) for index, fits in around for region in _regions(index, places, deltas)]
        for region, fits in touched:
            name = region.storage.name
            leaders.setdefault(name, name)
            if not (fits and _fits(region, cells)):
                refused.add(name)
            if takes.alike:
                leaders[leader(leaders, name)] = leader(leaders, touched[0][0].storage.name)
    without = {leader(leaders, name) for name in refused}
    return {name: cells for name in leaders if leader(leaders, name) not in without}


def _regions(index: int, places: Places, deltas: Deltas) -> list[Region]:
    """Where a vertex's output and its delta lie."""
    return [places.regions[index], *([deltas.regions[index]] if index in deltas.regions else [])]


def _fits(region: Region, cells: StorageType) -> bool:
    """Return True if all units of a region are in whole cells, of one plane each."""
    sizes = region.unit_offset, region.units, region.storage.planes.units
    return region.storage.planes.depth == 1 and all(size % cells.cell == 0 for size in sizes)
