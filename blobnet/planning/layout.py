"""Pass 4: halos and row pitch: for each storage the most that any of its members and readers asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from blobnet.launch.kernel_call import Blob
from blobnet.memory.blob import FLOAT32, BlobLayout, Halo, Padding, StorageType
from blobnet.network.graph import Graph, Vertex
from blobnet.planning.deltas import Deltas
from blobnet.planning.placement import Places, Region
from blobnet.planning.request import Request

#: A vertex whose kernels read the halo of a storage, and that storage's name.
HaloOf = tuple[int, str]


@dataclass(frozen=True)
class Layouts:
    """The halo, the row pitch and the type of every storage, by name, and what padding there is besides."""

    halos: Mapping[str, Halo]
    pitches: Mapping[str, int]
    types: Mapping[str, StorageType]
    padding: Padding

    def blob(self, region: Region) -> Blob:
        """The blob that lies in a region."""
        storage, kind = region.storage, self.types[region.storage.name]
        layout = BlobLayout.padded(
            storage.planes.with_units(storage.planes.units // kind.cell),
            self.halos[storage.name],
            pitch=self.pitches[storage.name],
            # NOTE: vectors would not gain by it: units of a single value lie side by side.
            padding=self.padding if storage.planes.width > 1 else replace(self.padding, align=1),
        )
        own = layout.slice_units(region.unit_offset // kind.cell, region.units // kind.cell)
        return Blob(storage.name, own, type=kind)


def possible_halos(graph: Graph, places: Places, deltas: Deltas) -> dict[HaloOf, Halo]:
    """The storages around whose planes each layer's kernels may read zeros, and how many."""
    found: dict[HaloOf, Halo] = {}
    for vertex in graph.vertices:
        shapes = graph.input_shapes(vertex)
        read = {places.regions[source].storage.name: vertex.layer.input_halo(shapes) for source in vertex.inputs}
        if shapes and vertex.index in deltas.regions:
            read[deltas.regions[vertex.index].storage.name] = vertex.layer.delta_halo(shapes)
        found |= {(vertex.index, name): halo for name, halo in read.items() if halo != Halo()}
    return found


def lay_out(
    request: Request,
    places: Places,
    deltas: Deltas,
    halos: Mapping[HaloOf, Halo],
    in_cells: Mapping[str, StorageType],
) -> Layouts:
    """Layouts with no other halos than these; those of one size that a layer connects get one pitch, for a CPU.

    ``in_cells`` are the types of storages whose elements are cells, by name.
    """
    widths = {
        region.storage.name: region.storage.planes.width for region in (*places.regions, *deltas.regions.values())
    }
    merged = dict.fromkeys(widths, Halo())
    for (_, name), halo in halos.items():
        merged[name] = merged[name].merged(halo)
    # Of the storages that get one pitch, each leads to another, and one to itself.
    leaders = {name: name for name in widths}
    for vertex in request.graph.vertices:
        shapes = request.graph.input_shapes(vertex)
        # NOTE: lanes address cell by cell; one pitch would only give halos to planes that need none.
        if shapes and not request.tuning.model.is_simt and vertex.layer.same_pitch(shapes):
            linked = [name for name in _around(vertex, places, deltas) if widths[name] > 1]
            for name in linked:
                leaders[leader(leaders, name)] = leader(leaders, linked[0])
    padding = replace(request.tuning.padding, align=1)
    own = {name: padding.pitch(width, merged[name]) for name, width in widths.items()}
    widest = dict.fromkeys(widths, 0)
    for name in widths:
        first = leader(leaders, name)
        widest[first] = max(widest[first], own[name])
    pitches = {name: widest[leader(leaders, name)] for name in widths}
    # Results are what users get.
    results = {places.regions[index].storage.name for _, index in request.graph.exits}
    types = {name: FLOAT32 if name in results else request.tuning.storage for name in widths}
    return Layouts(merged, pitches, {**types, **in_cells}, request.tuning.padding)


def leader(leaders: dict[str, str], name: str) -> str:
    """Return the storage that stands for one and those that it goes with, and shorten the way to it."""
    while leaders[name] != name:
        leaders[name] = leaders[leaders[name]]
        name = leaders[name]
    return name


def _around(vertex: Vertex, places: Places, deltas: Deltas) -> set[str]:
    """The storages of a vertex's inputs and output, and of their deltas."""
    ends = (*vertex.inputs, vertex.index)
    regions = [places.regions[end] for end in ends] + [deltas.regions[end] for end in ends if end in deltas.regions]
    return {region.storage.name for region in regions}
