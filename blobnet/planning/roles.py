"""Pass 1: what each vertex does in a plan: which values and deltas are wanted of it, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blobnet.graph import Vertex
from blobnet.layers.base import Placement
from blobnet.planning.request import Request


@dataclass(frozen=True)
class Roles:
    """What each vertex does, by its index.

    Attributes:
        trained: the names of its parameters that are trained.
        frozen: the names of those that could be.
        in_training: whether it runs as in training.
        needs_delta: whether the delta of its output is wanted.
        absorbed: the activations that the layer before them takes on in training, forward and backward, which are
            nothing but names then: by their index, that layer's.
        kept: whether the backward pass reads its output.
        placements: where its output may lie.
    """

    trained: tuple[frozenset[str], ...]
    frozen: tuple[frozenset[str], ...]
    in_training: tuple[bool, ...]
    needs_delta: tuple[bool, ...]
    absorbed: Mapping[int, int]
    kept: tuple[bool, ...]
    placements: tuple[Placement, ...]

    def runs_backward(self, index: int) -> bool:
        """Whether a vertex has backward calls of its own, if the plan has any."""
        return self.needs_delta[index] and index not in self.absorbed


def assign_roles(request: Request) -> Roles:
    """The roles of all vertices."""
    graph, vertices = request.graph, request.graph.vertices
    could = [frozenset(spec.name for spec in graph.parameters(vertex) if spec.trainable) for vertex in vertices]
    trained = [
        frozenset(name for name in names if request.parameters.trains(vertex.parameter(name)))
        for vertex, names in zip(vertices, could, strict=True)
    ]
    # What could train some parameters, and trains none, runs as in inference.
    in_training = [request.training and bool(own or not names) for own, names in zip(trained, could, strict=True)]
    needs_delta: list[bool] = []
    for vertex, own in zip(vertices, trained, strict=True):
        wanted = bool(own) or any(needs_delta[source] for source in vertex.inputs)
        needs_delta.append(wanted or (request.input_delta and vertex.layer.takes_samples))
    absorbed = {
        vertex.index + 1: vertex.index
        for vertex, trains in zip(vertices, in_training, strict=True)
        if trains and request.share and _absorbs_reader(request, vertex)
    }

    def keeps(vertex: Vertex, *, output: bool) -> bool:
        """Whether the backward calls of a vertex read its output, or what it reads."""
        trains = vertex.layer.backward_reads_inputs if in_training[vertex.index] else vertex.layer.frozen_reads_inputs
        reads = vertex.layer.backward_reads_output if output else trains
        return request.training and reads and needs_delta[vertex.index] and vertex.index not in absorbed

    return Roles(
        trained=tuple(trained),
        frozen=tuple(names - own for own, names in zip(trained, could, strict=True)),
        in_training=tuple(in_training),
        needs_delta=tuple(needs_delta),
        absorbed=absorbed,
        kept=tuple(
            keeps(vertex, output=True) or any(keeps(vertices[reader], output=False) for reader in readers)
            for vertex, readers in zip(vertices, graph.readers, strict=True)
        ),
        placements=tuple(
            Placement.SHARED if vertex.index in absorbed else vertex.layer.placement(trains)
            for vertex, trains in zip(vertices, in_training, strict=True)
        ),
    )


def _absorbs_reader(request: Request, vertex: Vertex) -> bool:
    """Whether a vertex in training takes on the activation behind it.

    Nobody else wants the value before, and nothing comes between the two in the backward pass that could change the
    delta which both read.
    """
    behind = vertex.index + 1
    graph = request.graph
    alone = graph.readers[vertex.index] == (behind,) and not graph.is_output(vertex.index)
    return vertex.layer.fuses_slope and alone and bool(graph.vertices[behind].layer.activates)
