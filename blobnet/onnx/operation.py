"""One node of an ONNX graph, as the functions that build layers for it see it; and the registry of these functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from blobnet import layers
from blobnet.contraction.form import numbered
from blobnet.data.values import all_finite
from blobnet.errors import OptionError
from blobnet.layers import Constant, Layer, Node
from blobnet.onnx.values import Array, Tensor, Value, node_sizes

#: A function that builds an operator: it gives the values of the node's outputs, or the only one.
Build: TypeAlias = "Callable[[Operation], Value | Sequence[Value]]"

#: The hint where only the host computes something.
SESSION_HINT = "bn.onnx.Session(path) runs the file: the network on the device, and on the host what follows it."
#: The largest number of float32.
HUGE = float(np.finfo(np.float32).max)
#: The operators that there are, by ONNX's names: one function each, in blobnet/onnx/operators/.
OPERATORS: dict[str, Build] = {}


def operator(*names: str) -> Callable[[Build], Build]:
    """Registers a function for ONNX operators of these names."""

    def register(build: Build) -> Build:
        for name in names:
            assert name not in OPERATORS, f"{name} is there twice"
            OPERATORS[name] = build
        return build

    return register


class UnsupportedError(OptionError):
    """A node of an ONNX graph is none that blobnet has a layer for."""


class OpenAxisError(OptionError):
    """A model, which has one size, is asked for of a file that leaves an axis open."""


class ValueNeededError(UnsupportedError):
    """An operator needs a value to be known that depends on inputs of the network; ``inputs`` are their names."""

    inputs: frozenset[str] = frozenset()


class OnHostError(UnsupportedError):
    """An operator, or a form of it, is none of the device's: the host computes it, after the network."""


class SamplesMixedError(UnsupportedError):
    """An operator lets samples meet."""


@dataclass(frozen=True)
class Operation:
    """A node of an ONNX graph with the values of its inputs.

    Attributes:
        name: of its layers.
        kind: the operator.
        version: of the operator set.
        attributes: by name, as Python's values.
        inputs: the values; None where an optional one is missing.
        outputs: the names of the outputs, those that are missing empty.
        samples: how many samples ONNX's tensors have, or None where all of a tensor is one sample.
        subject: how errors name the node.
        shared: the layers of other nodes with the same parameters.
        names: of all layers, to which this node adds its own.
        sources: names of the inputs that initializers and constants of the file make: the same name, the same array.
        alone: for each input, True if this node alone reads it, and once.
        spend: takes the bytes of a layer's arrays off what the file may take.
    """

    name: str
    kind: str
    version: int
    attributes: Mapping[str, Any]
    inputs: Sequence[Value | None]
    outputs: Sequence[str]
    samples: int | None
    subject: str
    shared: dict[Any, Layer] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    sources: Sequence[str | None] = ()
    alone: Sequence[bool] = ()
    spend: Callable[[int], None] = lambda _: None

    # -- what the node says ------------------------------------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def given(self, place: int) -> bool:
        """Return True if there is such an input."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def value(self, place: int) -> Value:
        """An input, known or not."""
        self.require(self.given(place), "the operator's inputs must be there", inputs=len(self.inputs))
        value = self.inputs[place]
        assert value is not None
        return value

    def array(self, place: int, default: Any = None) -> Array:
        """An input whose value must be known.

        Raises:
            ValueNeededError: it depends on inputs of the network.
        """
        if not self.given(place):
            known: Array = np.asarray(default)
            return known
        value = self.value(place)
        if not isinstance(value, Tensor):
            return value
        rule = "the input must be known when the model is read: a constant of the file"
        raise self.needed(value, rule, "export the network with constants in its place.", input=place)

    def needed(self, tensor: Tensor, rule: str, hint: str, **received: object) -> ValueNeededError:
        """The error of this node for a tensor whose value must be known."""
        error = ValueNeededError(self.subject, rule, hint=hint, **received)
        error.inputs = frozenset(str(node.layer.name) for node in depended([tensor.node]) if node.layer.takes_samples)
        return error

    def numbers(self, name: str, place: int | None = None, default: Any = None) -> tuple[int, ...] | Any:
        """Whole numbers that older operator sets have as an attribute, and newer ones as an input."""
        if name in self.attributes:
            found = self.attributes[name]
        elif place is not None and self.given(place):
            found = self.array(place)
        else:
            return default
        return tuple(int(number) for number in np.ravel(found))

    def number(self, name: str, place: int | None = None, default: Any = None) -> Any:
        """A number that older operator sets have as an attribute, and newer ones as an input."""
        if name in self.attributes:
            return self.attributes[name]
        if place is None or not self.given(place):
            return default
        array = self.array(place)
        self.require(array.size == 1, f"{name} must be one number", shape=array.shape)
        return array.reshape(()).item()

    def tensor(self, place: int, at: int = 0) -> Tensor:
        """An input as a tensor; a known one becomes a Constant, with the samples on the axis ``at``."""
        value = self.value(place)
        if isinstance(value, Tensor):
            return value
        axis = None if self.samples is None else at
        own = value if axis is None else self.array_of_sample(value, axis)
        values = np.asarray(own, np.float32).reshape(node_sizes(own.shape, axis))
        return Tensor(self.layer(Constant(values), part="constant"), own.shape, axis, value.dtype)

    def array_of_sample(self, value: Array, axis: int, outer: int = 1) -> Array:
        """Return the array of each sample, of one with an axis for samples and perhaps more; ``outer`` as in Tensor.

        Raises:
            SamplesMixedError: it is not the same for all.
        """
        samples = self.samples or 1
        if axis < value.ndim and value.shape[axis] == 1:
            return value
        if axis >= value.ndim or value.shape[axis] % (outer * samples):
            self.mixed("a constant must have the samples' axis, or 1 in its place", shape=value.shape, axis=axis)
        parts = value.reshape(*value.shape[:axis], outer, samples, -1, *value.shape[axis + 1 :])
        first = np.take(parts, [0], axis + 1)
        if not np.array_equal(parts, np.broadcast_to(first, parts.shape)):
            self.mixed("a constant must be the same for all samples", shape=value.shape)
        return first.reshape(*value.shape[:axis], -1, *value.shape[axis + 1 :])

    def shape_of(self, value: Value) -> tuple[int, ...]:
        """The shape that ONNX sees."""
        if not isinstance(value, Tensor):
            return value.shape
        return tuple(size * (self.samples or 1) if axis == value.at else size for axis, size in enumerate(value.axes))

    def axis(self, axis: int, tensor: Tensor) -> int:
        """ONNX's ``axis`` of a tensor, negative ones from the end.

        Raises:
            SamplesMixedError: it is that of the samples.
        """
        rank = len(tensor.axes)
        self.require(-rank <= axis < rank, "an axis must be one of the tensor's", axis=axis, axes=rank)
        if axis % rank == tensor.at:
            self.mixed("the operator must leave the axis of the samples alone", axis=axis)
        return axis % rank

    def of_samples(self, node: Node) -> Tensor:
        """A node as a tensor whose axis 0 are the samples."""
        return Tensor(node, (1, *node.shape.dimensions), 0)

    # -- layers ------------------------------------------------------------------------------------------------------

    def layer(
        self,
        layer: Layer,
        *nodes: Node,
        weights: Mapping[str, Array] | None = None,
        key: object = None,
        part: str = "",
    ) -> Node:
        """The node of a layer that reads nodes, under a name of this node's, with these values of its parameters.

        ``key`` says of which initializers these were made: who has the same ones shares the layer. ``part`` is a name
        for a layer that only goes with that of the node.
        """
        memo = (replace(layer, name=None), key) if key and not isinstance(layer, Constant) else None
        if memo is None or memo not in self.shared:
            self.spend(sum(4 * np.size(values) for values in (weights or {}).values()))
            own = numbered(f"{self.name}_{part}" if part else self.name, self.names)
            self.names.add(own)
            layer = replace(layer, name=own)
            if memo is not None:
                self.shared[memo] = layer
        else:
            layer = self.shared[memo]
        node = layer(*nodes)
        if weights is None:
            return node
        arrays = {name: np.asarray(values, np.float32) for name, values in weights.items()}
        for name, values in arrays.items():
            if not all_finite(values):  # Masks for softmax have infinities: the largest number does there.
                self.require(not np.isnan(values).any(), "every number of a constant must be one", parameter=name)
                arrays[name] = np.clip(values, -HUGE, HUGE)
        return replace(node, weights=arrays)

    def key_of(self, *arrays: Array) -> tuple[str, ...] | None:
        """Return the key of inputs that other nodes, or other trips, read too: see ``key`` of :meth:`layer`."""
        places = [next((place for place, value in enumerate(self.inputs) if value is array), -1) for array in arrays]
        names = [self.sources[place] if place >= 0 else None for place in places]
        is_shared = any(not self.alone[place] for place in places)
        return tuple(map(str, names)) if is_shared and all(names) else None

    def shaped(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> Node:
        """The node of a tensor in the shape of its axes, or in another one of as many values."""
        wanted = tuple(node_sizes(tensor.axes, tensor.at) if sizes is None else sizes)
        if tensor.node.shape.dimensions == wanted:
            return tensor.node
        layer: Layer = layers.Flatten() if len(wanted) == 1 else layers.Reshape(wanted)
        if sizes is None and tensor.name:
            return replace(self, name=tensor.name).layer(layer, tensor.node)
        return self.layer(layer, tensor.node, part="shape")

    def plain(self, place: int = 0) -> Tensor:
        """An input whose axis 0 has the samples, and nothing else."""
        tensor = self.tensor(place)
        if not tensor.is_plain:
            self.mixed("the operator must see samples on axis 0", shape=self.shape_of(tensor))
        return tensor

    def spatial(self, place: int = 0) -> tuple[Node, tuple[int, ...]]:
        """An input that has units and spatial axes: its node, and the sizes of the latter."""
        tensor = self.plain(place)
        rule = "the operator must have samples, units and one to three spatial axes"
        self.require(2 <= len(tensor.sizes) <= 4, rule, shape=self.shape_of(tensor))
        return self.shaped(tensor), tensor.sizes[1:]

    # -- errors ------------------------------------------------------------------------------------------------------

    def require(self, condition: bool, rule: str, *, hint: str | None = None, **received: object) -> None:
        """Raises UnsupportedError, of this node, unless the condition is met."""
        if not condition:
            raise UnsupportedError(self.subject, rule, hint=hint, **received)

    def on_host(self, rule: str, **received: object) -> None:
        """Raises OnHostError of this node."""
        raise OnHostError(self.subject, rule, hint=SESSION_HINT, **received)

    def mixed(self, rule: str, **received: object) -> None:
        """Raises SamplesMixedError of this node."""
        hint = "load(..., samples=False) reads a graph whose tensors have no axis of samples: all of them are one."
        raise SamplesMixedError(self.subject, rule, hint=hint, **received)


def depended(nodes: Iterable[Node]) -> set[Node]:
    """Nodes, and all that they depend on."""
    stack = list(nodes)
    found = set(stack)
    while stack:
        new = [source for source in stack.pop().inputs if source not in found]
        found.update(new)
        stack.extend(new)
    return found
