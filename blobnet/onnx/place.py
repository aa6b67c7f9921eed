"""One place of a layer on its way into an ONNX graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.memory.blob import FloatArray, Shape
from blobnet.onnx.values import Array


@dataclass
class Place:
    """One place of a layer in a graph that becomes nodes.

    Attributes:
        layer: the layer.
        name: of the place.
        inputs: the names of the values that it reads.
        shapes: of these, for a sample.
        shape: of a sample of its output.
        weights: its parameters.
        samples: the name of a value whose first axis is the batch.
        nodes: the nodes so far: operator, names of inputs and of the output, attributes.
        arrays: the constants and parameters that these read, by name.
        main: the output of the node that gets the layer's name; empty: of the last one that computes something.
    """

    layer: Any
    name: str
    inputs: list[str]
    shapes: list[Shape]
    shape: Shape
    weights: dict[str, FloatArray]
    samples: str
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    main: str = ""

    @property
    def input(self) -> str:
        """The first input."""
        return self.inputs[0]

    @property
    def rank(self) -> int:
        """The spatial axes of the first input."""
        return self.shapes[0].rank

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node; gives the name of its output."""
        output = f"{self.name}/{operator}_{len(self.nodes)}"
        self.nodes.append((operator, list(inputs), output, attributes))
        return output

    def constant(self, values: npt.ArrayLike, name: str = "constant") -> str:
        """The name of an array of numbers, or of what is true; lists of ints are axes and sizes."""
        array = np.asarray(values)
        array = array.astype({"i": np.int64, "b": np.bool_}.get(array.dtype.kind, np.float32))
        self.arrays[f"{self.name}/{name}_{len(self.arrays)}"] = array
        return next(reversed(self.arrays))

    def parameter(self, name: str, *, axes: int = 0) -> str:
        """The name of a parameter; with so many axes of size 1 after its own."""
        values, full = self.weights[name], f"{self.layer.name}/{name}"
        full += f"_{axes}" if axes else ""
        self.arrays[full] = values.reshape(*values.shape, *(1,) * axes)
        return full

    def turned(self, name: str, values: Array) -> str:
        """The name of a parameter in another order."""
        full = f"{self.layer.name}/{name}"
        self.arrays[full] = values
        return full

    def reshaped(self, value: str, *sizes: int) -> str:
        """A value in another shape; 0 is the size that the axis has."""
        return self.node("Reshape", value, self.constant(sizes))

    def affine(self, value: str, axes: int) -> str:
        """``value * scale + shift``, where the layer has them."""
        if "scale" not in self.weights:
            return value
        return self.node(
            "Add",
            self.node("Mul", value, self.parameter("scale", axes=axes)),
            self.parameter("shift", axes=axes),
        )
