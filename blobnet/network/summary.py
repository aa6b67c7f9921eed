"""The summary of a model, layer by layer: shapes, parameters, and what is frozen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from blobnet.memory.blob import Shape
from blobnet.network.graph import Graph
from blobnet.support.formatting import format_bytes
from blobnet.support.tables import Table


@dataclass(frozen=True)
class LayerSummary:
    """A layer: its output's shape, and how many values its parameters have.

    Attributes:
        name: in the model.
        kind: its class.
        shape: of a sample of its output.
        parameters: all values.
        trainable: those that can be trained (running statistics cannot).
        frozen: those of the trainable ones that are frozen.
        parameter_bytes: of all values.
    """

    name: str
    kind: str
    shape: Shape
    parameters: int
    trainable: int
    frozen: int
    parameter_bytes: int

    @property
    def frozen_text(self) -> str:
        """The frozen part of it, as text for people."""
        return "" if not self.frozen else "all" if self.frozen == self.trainable else f"{self.frozen:,}"


@dataclass(frozen=True)
class Summary:
    """All layers of a model; a table, as text and in a notebook."""

    layers: tuple[LayerSummary, ...]

    @property
    def parameters(self) -> int:
        """Values of all parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of them."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def trainable(self) -> int:
        """The parameters that can be trained."""
        return sum(layer.trainable for layer in self.layers)

    @property
    def frozen(self) -> int:
        """The trainable parameters that are frozen."""
        return sum(layer.frozen for layer in self.layers)

    @property
    def table(self) -> Table:
        """The summary as a table; frozen parameters have a column if there are any."""
        header = ["layer", "kind", "output shape", "parameters", "frozen"]
        rows = [
            [
                layer.name,
                layer.kind,
                str(layer.shape),
                f"{layer.parameters:,}" if layer.parameters else "-",
                layer.frozen_text,
            ]
            for layer in self.layers
        ]
        total = ["total", "", "", f"{self.parameters:,}", f"{self.frozen:,}"]
        text = f"{self.parameters:,} ({format_bytes(self.parameter_bytes)}), {self.trainable:,} of them trainable"
        text += f", of which {self.frozen:,} are frozen" if self.frozen else ""
        columns = 5 if self.frozen else 4
        shown = [row[:columns] for row in (header, total, *rows)]
        return Table(shown[0], shown[2:], "<<<>>"[:columns], shown[1], {"parameters": text})

    def __str__(self) -> str:
        return str(self.table)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def summarize(graph: Graph, frozen: Collection[str] = ()) -> Summary:
    """The summary of a graph.

    Args:
        graph: the model's.
        frozen: names of parameters that are not trained.
    """
    layers = []
    for vertex in graph.vertices:
        # The parameters of a layer in several places are those of the first one.
        specs = graph.parameters(vertex) if vertex.place == 1 else ()
        trainable = [spec for spec in specs if spec.trainable]
        held = [spec for spec in trainable if vertex.parameter(spec.name) in frozen]
        elements, trained, frozen_ones = (sum(spec.elements for spec in some) for some in (specs, trainable, held))
        size = sum(spec.elements * spec.type.itemsize for spec in specs)
        kind = vertex.layer.kind
        layers.append(LayerSummary(vertex.name, kind, vertex.shape, elements, trained, frozen_ones, size))
    return Summary(tuple(layers))
