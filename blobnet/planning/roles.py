"""Pass 1: what each vertex does in a plan: which values and deltas are wanted of it, and until when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blobnet.layers.base import Placement, Placements
from blobnet.network.graph import Graph, Vertex
from blobnet.planning.request import Request


@dataclass(frozen=True)
class Roles:
    """The role of each vertex, by its index.

    Attributes:
        trained: the names of its parameters that are trained.
        frozen: the names of those that could be.
        in_training: whether it runs as in training.
        needs_delta: whether the delta of its output is wanted.
        absorbed: functions of single values that a layer before them takes on in training, forward and backward, which
            are nothing but names then: by their index, that layer's.
        kept: whether the backward pass reads its output.
        placements: where its output and its inputs' deltas may lie.
    """

    trained: tuple[frozenset[str], ...]
    frozen: tuple[frozenset[str], ...]
    in_training: tuple[bool, ...]
    needs_delta: tuple[bool, ...]
    absorbed: Mapping[int, int]
    kept: tuple[bool, ...]
    placements: tuple[Placements, ...]

    def runs_backward(self, index: int) -> bool:
        """Return True if a vertex has backward calls of its own, if the plan has any."""
        return self.needs_delta[index] and index not in self.absorbed


def assign_roles(request: Request) -> Roles:
    """The roles of all vertices."""
    graph, vertices = request.graph, request.graph.vertices
    could = [frozenset(spec.name for spec in graph.parameters(vertex) if spec.trainable) for vertex in vertices]
    trained = [
        frozenset(name for name in names if request.parameters.trains(vertex.parameter(name)))
        for vertex, names in zip(vertices, could, strict=True)
    ]
    # What could train some parameters, and trains none, runs as in inference; so does all of a network that does.
    trains_some = request.training and (any(trained) or not any(could))
    in_training = [trains_some and bool(own or not names) for own, names in zip(trained, could, strict=True)]
    needs_delta = _with_deltas(request, trained)
    absorbed: dict[int, int] = {}
    for vertex, trains in zip(vertices, in_training, strict=True):
        if trains and request.share and vertex.layer.recomputes_output:
            absorbed |= dict.fromkeys(_functions_behind(graph, vertex.index), vertex.index)

    def keeps(vertex: Vertex, *, output: bool) -> bool:
        """Return True if the backward calls of a vertex read its output, or what it reads."""
        kept = vertex.layer.kept
        reads = kept.output if output else kept.inputs and (kept.frozen or in_training[vertex.index])
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
            Placements(Placement.SHARED, Placement.SHARED)
            if vertex.index in absorbed
            else vertex.layer.placement(graph.input_shapes(vertex), trains)
            for vertex, trains in zip(vertices, in_training, strict=True)
        ),
    )


def _with_deltas(request: Request, trained: Sequence[frozenset[str]]) -> list[bool]:
    """Return, by vertex, True if the delta of its output is wanted: something that is trained depends on it."""
    found: list[bool] = []
    for vertex, own in zip(request.graph.vertices, trained, strict=True):
        wanted = bool(own) or any(found[source] for source in vertex.inputs)
        found.append(wanted or (request.input_delta and vertex.layer.takes_samples))
    return found


def _functions_behind(graph: Graph, index: int) -> Iterator[int]:
    """The functions of single values after a vertex, one after the other: nobody else wants what is between.

    Each comes right after the one before in any order in which vertices follow their inputs depth first, so that
    nothing comes between them in the backward pass that could change the delta which they share.
    """
    while len(graph.readers[index]) == 1 and not graph.is_output(index):
        index = graph.readers[index][0]
        function = graph.vertices[index].layer.nonlinearity
        if function is None or function.step is None or not function.step.slope:
            return
        yield index
