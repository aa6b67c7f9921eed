"""Pass 5: the place of each layer in the plan, which is all that it sees of it."""

from __future__ import annotations

from collections.abc import Callable

from blobnet.errors import KernelError
from blobnet.launch.elementwise import EpilogueOp
from blobnet.launch.kernel_call import Array, ArrayHandle, ArrayKind
from blobnet.layers.base import LayerContext
from blobnet.memory.blob import FLOAT32
from blobnet.network.ends import Entry
from blobnet.network.graph import Vertex
from blobnet.planning.deltas import Deltas
from blobnet.planning.layout import Layouts
from blobnet.planning.placement import Places
from blobnet.planning.request import Request
from blobnet.planning.roles import Roles


def make_sites(
    request: Request, roles: Roles, places: Places, deltas: Deltas, layouts: Layouts
) -> tuple[LayerContext, ...]:
    """The sites of all vertices, without epilogues."""
    vertices = request.graph.vertices
    outputs = [layouts.blob(region) for region in places.regions]
    wanted = {index: layouts.blob(region) for index, region in deltas.regions.items()}
    entries = {entry.index: entry for entry in request.entries}
    fused_activations: dict[int, tuple[EpilogueOp, ...]] = {}
    for index, head in sorted(roles.absorbed.items()):
        function = vertices[index].layer.nonlinearity
        assert function is not None
        assert function.step is not None
        fused_activations[head] = (*fused_activations.get(head, ()), function.step)

    def site(vertex: Vertex) -> LayerContext:
        ends = [(vertex.index, position) for position in range(len(vertex.inputs))]
        return LayerContext(
            name=vertex.name,
            inputs=tuple(outputs[source] for source in vertex.inputs),
            output=outputs[vertex.index],
            array=_memory(request, vertex, roles.trained[vertex.index], entries.get(vertex.index)),
            input_deltas=tuple(wanted[vertex.inputs[end[1]]] if end in deltas.accumulate else None for end in ends),
            output_delta=wanted.get(vertex.index),
            accumulate=tuple(deltas.accumulate.get(end, False) for end in ends),
            training=roles.in_training[vertex.index],
            frozen=roles.frozen[vertex.index],
            fused_activations=fused_activations.get(vertex.index, ()),
            in_place_of=places.in_place_of.get(vertex.index),
            copy_reasons={end[1]: places.copy_reasons[end] for end in ends if end in places.copy_reasons},
            delta_copy_reasons={end[1]: deltas.copy_reasons[end] for end in ends if end in deltas.copy_reasons},
            batch_size=request.of_shard,
            sample_type=entries[vertex.index].sample_type if vertex.index in entries else "float32",
            augmented=vertex.index in entries and entries[vertex.index].augmented,
            tuning=request.tuning,
            ordinal=vertex.index,
            shards=request.shards,
            shapes=tuple(request.graph.input_shapes(vertex)),
        )

    return tuple(map(site, vertices))


def _memory(
    request: Request, vertex: Vertex, trained: frozenset[str], entry: Entry | None
) -> Callable[[ArrayHandle], Array]:
    """Return a function that finds memory for a vertex, as LayerContext.array."""
    known: dict[str, Array] = {}

    def array(handle: ArrayHandle) -> Array:
        kind, name, elements, per_sample = handle
        if kind in (ArrayKind.PARAMETER, ArrayKind.GRADIENT):
            piece = request.parameters.slices[vertex.parameter(name)]
            if kind is ArrayKind.PARAMETER or (name in trained and request.graph.places(vertex) == 1):
                of = request.parameters.type if kind is ArrayKind.PARAMETER else FLOAT32
                return Array(kind.value, piece.elements, offset=piece.offset, persistent=True, type=of)
            if name in trained:
                return gradient_parts(request, vertex, name)
            name, elements = f"{name} gradient", piece.elements
        if kind is ArrayKind.SHARED:
            if entry is None or name == "step":
                return Array(name, 0, persistent=True)
            # A batch's rows say which of the samples it has, so these are not the batch's.
            buffer = entry.buffer(name)
            return Array(buffer, *((0, 0) if name == "samples" else entry.memory(1)[buffer]), persistent=True)
        asked = Array(f"{vertex.name}/{name}", elements, per_sample, persistent=kind is ArrayKind.COMMON)
        found = known.setdefault(name, asked)
        if found != asked:
            rule = "memory of one name must have one size in all calls of a layer"
            sizes = {
                when: f"{item.elements} elements and {item.per_sample} a sample"
                for when, item in (("first", found), ("then", asked))
            }
            raise KernelError(vertex.layer.subject, rule, memory=name, **sizes)
        return found

    return array


def gradient_parts(request: Request, vertex: Vertex, name: str, *, whole: bool = False) -> Array:
    """Return the array of a place's part of a gradient, for a layer in several places; or of all parts."""
    elements = request.parameters.slices[vertex.parameter(name)].elements
    storage = f"{vertex.parameter(name)} gradients"
    if whole:
        return Array(storage, request.graph.places(vertex) * elements)
    return Array(storage, elements, offset=(vertex.place - 1) * elements)
