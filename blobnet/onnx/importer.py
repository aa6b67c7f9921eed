"""From an ONNX graph to a model: each node's operator builds layers behind the nodes of its inputs."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from blobnet.blob import Shape
from blobnet.errors import BlobnetError, FileError, OptionError, first_few, near_matches
from blobnet.geometry import is_int
from blobnet.layers import Activation, Input, Layer, Node
from blobnet.model import Model
from blobnet.onnx import host
from blobnet.onnx.conventions import class_names, take_normalization
from blobnet.onnx.host import HostNode, Late, Operand
from blobnet.onnx.operation import OnHostError, Operation, SamplesMixedError, UnsupportedError, ValueNeededError
from blobnet.onnx.operators import OPERATORS
from blobnet.onnx.reading import array_of, opset, package, read
from blobnet.onnx.values import Array, Pieces, Tensor, node_sizes

#: What samples may be on their way to the device.
SAMPLE_TYPES = ("float32", "float16", "float64", "uint8", "int8", "uint16", "int16")
#: Values of a tensor that a sample may have.
MOST_ELEMENTS = 2**31
#: Axes that ONNX's tensors may have.
MOST_AXES = 16
#: Samples for which shapes are worked out where a file leaves their number open: a prime that nothing else has.
_SOME = 7
#: How deep branches may lie within each other.
_MOST_DEPTH = 20

#: Values for the axes of inputs that a file leaves open: by the axis' name, or all axes of an input by its name.
Sizes = Mapping[str, "int | Sequence[int]"]


def load(path: str | os.PathLike[str], *, sizes: Sizes | Sequence[int] | None = None, samples: bool = True) -> Model:
    """The model in an ONNX file (docs/onnx.md): trainable, with the file's weights.

    Inputs and outputs keep their names and order. What does not depend on samples is computed once, here; no device is
    asked for.

    Args:
        path: the file.
        sizes: for axes that the file leaves open: {"height": 224} by the name of an axis, or {"image": (1, 3, 224,
            224)} for all axes of an input. How many samples there are (axis 0) stays open. Or the shape of a sample,
            (3, 224, 224), for a file with one input, of which the axes that the file leaves open count.
        samples: whether axis 0 of all inputs and outputs are the samples of a batch. If not, all of a tensor is one
            sample: a model for arrays with one more axis in front.

    Raises:
        FileError: the file is missing, damaged or of an operator set that cannot be read.
        OptionError: an axis has no size, or an operator is none of those that docs/onnx.md lists; the error names the
            node, and is an UnsupportedError of blobnet.onnx.operation.
    """
    model = read(path)
    graph, subject = model.graph, str(path)
    arrays = {item.name: item for item in graph.initializer} if samples else {}
    normalized = take_normalization(graph, lambda name: array_of(arrays[name], subject) if name in arrays else None)
    imported = import_for(model, subject, sizes_by_name(inputs_of(graph), sizes, subject, samples=samples), samples)
    tensors = {}
    for name, value in imported.outputs.items():
        if not isinstance(value, Tensor):
            rule = "every output must depend on an input"
            raise UnsupportedError(f"{subject}, output {name}", rule, value=str(value)[:60])
        tensors[name] = value
    found = imported.model(tensors)
    for entered, name in zip(imported.entered, found.graph.inputs, strict=True):
        if entered in normalized:
            found.set_normalization(*normalized[entered], input=name)
    if len(found.graph.exits) == 1:
        found.class_names = class_names(model, found.graph.output.shape.units)
    return found


def inputs_of(graph: Any) -> list[Any]:
    """The inputs of a graph that it has no initializers for."""
    known = {item.name for item in graph.initializer}
    return [item for item in graph.input if item.name not in known]


def import_for(model: Any, subject: str, sizes: Sizes, samples: bool = True, **settings: Any) -> Import:
    """The reading of a graph for these sizes, and any number of samples; see :func:`load`, and Import for settings.

    Raises:
        OptionError: an axis has no size, or an operator is none that blobnet has.
    """
    inputs = inputs_of(model.graph)
    check_sizes(model.graph, sizes, subject)
    # With some number of samples, shapes say where these are; but not all files that leave it open mean it.
    *counts, last = (_SOME, 1) if samples else (0,)
    for count in counts:
        with contextlib.suppress(UnsupportedError):
            shapes = {item.name: input_shape(item, sizes, subject, count) for item in inputs}
            return Import(model, subject, {}, shapes, samples=samples, **settings)
    shapes = {item.name: input_shape(item, sizes, subject, last) for item in inputs}
    return Import(model, subject, {}, shapes, samples=samples, **settings)


def sizes_by_name(
    inputs: Sequence[Any], sizes: Sizes | Sequence[int] | None, subject: str, *, samples: bool = True
) -> Sizes:
    """The sizes of axes and inputs, by name; the shape of a sample says those that the only input leaves open.

    Raises:
        OptionError: there are several inputs, or samples have another number of axes.
    """
    if sizes is None or isinstance(sizes, Mapping):
        return sizes or {}
    if len(inputs) != 1:
        names = [item.name for item in inputs]
        hint = "sizes={NAME: (1, ...), ...} has them for each."
        raise OptionError(f"{subject}, sizes", "the shape of a sample is that of one input", inputs=names, hint=hint)
    axes = inputs[0].type.tensor_type.shape.dim
    shape = (1, *sizes) if samples else tuple(sizes)
    if len(shape) != len(axes):
        rule = "a sample must have as many axes as the file says"
        raise OptionError(f"{subject}, sizes", rule, sample=tuple(sizes), file=_shown_axes(axes))
    return {inputs[0].name: tuple(_fixed(axis) or int(own) for axis, own in zip(axes, shape, strict=True))}


def input_shape(item: Any, sizes: Sizes, subject: str, samples: int) -> tuple[int, ...]:
    """The shape of an input of a file, with so many samples on axis 0 if that is open; 0 means that it must not be.

    Raises:
        OptionError: an axis has no size.
    """
    dimensions = item.type.tensor_type.shape.dim
    given = sizes.get(item.name)
    if given is not None and not is_int(given, 0):
        found = tuple(int(size) for size in given)  # type: ignore[union-attr]
        fits = len(found) == len(dimensions)
        for own, dimension in zip(found, dimensions, strict=False):
            fits = fits and _fixed(dimension) in (0, own)
        if not fits or min(found, default=1) < 1:
            rule = "the sizes of an input must be those that the file says"
            raise OptionError(f"{subject}, input {item.name}", rule, sizes=found, file=_shown_axes(dimensions))
        return found
    shape = []
    for axis, dimension in enumerate(dimensions):
        size: Any = _fixed(dimension) or sizes.get(dimension.dim_param, samples if axis == 0 else 0)
        if not is_int(size, 1):
            name = dimension.dim_param
            hint = f"load(..., sizes={{{name!r}: 224}}), say."
            if not name:
                hint = f"load(..., sizes={{{item.name!r}: ...}}) with a size for each of its axes."
            rule = "every axis but that of the samples must have a size of at least 1"
            raise OptionError(f"{subject}, input {item.name}", rule, axes=_shown_axes(dimensions), hint=hint)
        shape.append(int(size))
    return tuple(shape)


def _fixed(dimension: Any) -> int:
    """The size of an axis, or 0 if it is open, for which some exporters write 0 or -1."""
    return max(0, int(dimension.dim_value))


def _shown_axes(dimensions: Any) -> str:
    return f"({', '.join(str(item.dim_param or _fixed(item) or '?') for item in dimensions)})"


def check_sizes(graph: Any, sizes: Sizes, subject: str) -> None:
    """Raises OptionError where sizes are those of no axis and no input."""
    axes = {dim.dim_param for item in graph.input for dim in item.type.tensor_type.shape.dim if dim.dim_param}
    names = [*sorted(axes), *(item.name for item in graph.input)]
    for name, size in sizes.items():
        if name not in names:
            hint = near_matches(name, names)
            raise OptionError(f"{subject}, sizes", "they must be those of axes or inputs", name=name, hint=hint)
        if name in axes and not is_int(size, 1):
            raise OptionError(
                f"{subject}, sizes", "the size of an axis must be an int of at least 1", axis=name, size=size
            )


@dataclass
class Import:
    """One reading of a graph, with values for what must be known.

    Attributes:
        proto: the model, an ``onnx.ModelProto``.
        subject: how errors begin.
        known: values for inputs.
        shapes: of the other inputs.
        samples: whether axis 0 are the samples.
        has_tail: whether the host may compute what follows the network. If not, that is an OnHostError.
        mixes: whether the host computes what lets samples meet, too.
        constants: arrays of the initializers, where they were read before.
        outputs: the values of the graph's outputs.
        inputs: the tensors that the inputs are.
        tail: what the host computes of such tensors, in order.
        entered: the inputs that :meth:`model` needs.
    """

    proto: Any
    subject: str
    known: Mapping[str, Array]
    shapes: Mapping[str, tuple[int, ...]]
    samples: bool = True
    has_tail: bool = False
    mixes: bool = False
    constants: Mapping[str, Array] = field(default_factory=dict)
    outputs: dict[str, Operand] = field(init=False)
    inputs: dict[str, Tensor] = field(init=False, default_factory=dict)
    tail: list[HostNode] = field(init=False, default_factory=list)
    entered: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        graph = self.proto.graph
        self._version = opset(self.proto)
        self._names: set[str] = set()
        self._shared: dict[Any, Layer] = {}
        self._initializers: set[str] = set()
        self._reads = reads(graph)
        counts = {shape[0] if shape else 0 for shape in self.shapes.values()} if self.samples else set()
        if len(counts) > 1 or 0 in counts:
            rule = "axis 0 of all inputs must be the samples, as many in each"
            hint = "load(..., samples=False) reads a graph whose tensors have no axis of samples."
            error = SamplesMixedError(self.subject, rule, hint=hint, shapes=dict(self.shapes))
            raise error
        self._samples = next(iter(counts), 1) if self.samples else None
        check_operators(graph, self.subject)
        values: dict[str, Operand] = {}
        for item in graph.initializer:
            is_read = item.name in self.constants
            values[item.name] = self.constants[item.name] if is_read else array_of(item, self.subject)
            self._initializers.add(item.name)
        types = {item.name: item.type.tensor_type.elem_type for item in graph.input}
        for name, array in self.known.items():
            values[name] = array
        for name, shape in self.shapes.items():
            values[name] = self.inputs[name] = self._input(name, shape, types.get(name, 1))
        self._run(graph, values, 0)
        missing = [item.name for item in graph.output if item.name not in values]
        if missing:
            raise FileError(self.subject, "every output must be made by a node", missing=first_few(missing, 4))
        self.outputs = {item.name: values[item.name] for item in graph.output}
        for name, value in self.outputs.items():
            if isinstance(value, Pieces):
                raise UnsupportedError(f"{self.subject}, output {name}", "outputs must be tensors, and no sequences")
            if self.samples and not self.has_tail and isinstance(value, Tensor) and not value.is_plain:
                subject = f"{self.subject}, output {name}"
                operation = Operation(name, "", self._version, {}, (), (), self._samples, subject)
                shape = operation.shape_of(value)
                operation.mixed("outputs must have the samples on axis 0, and nothing else", shape=shape)

    def _input(self, name: str, shape: tuple[int, ...], kind: int) -> Tensor:
        types = {package().helper.np_dtype_to_tensor_dtype(np.dtype(name)): name for name in SAMPLE_TYPES}
        if kind not in types:
            rule = "inputs must be numbers that a network computes with"
            known = ", ".join(SAMPLE_TYPES)
            raise UnsupportedError(f"{self.subject}, input {name}", rule, type=kind, types=known)
        at = 0 if self.samples else None
        axes = (1, *shape[1:]) if self.samples else shape
        if math.prod(shape) > MOST_ELEMENTS or len(shape) > MOST_AXES:
            rule = f"a tensor must have at most {MOST_ELEMENTS:,} values, and {MOST_AXES} axes"
            raise UnsupportedError(f"{self.subject}, input {name}", rule, shape=shape)
        own = _layer_name(name, self._names)
        self._names.add(own)
        node = Input.of(Shape(*node_sizes(axes, at)), name=own)()
        return Tensor(node, axes, at, np.dtype(types[kind]))

    def _run(self, graph: Any, values: dict[str, Operand], depth: int) -> None:
        """The values of all nodes that outputs need, beside those that are there."""
        wanted = {item.name for item in graph.output}
        needed = []
        for node in reversed(graph.node):
            if wanted.intersection(node.output):
                needed.append(node)
                wanted.update([*node.input, *_inner_reads(node)])
        for node in reversed(needed):
            missing = [name for name in node.input if name and name not in values]
            if missing:
                rule = "the inputs of a node must be made by nodes before it"
                raise FileError(_subject_of(node, self.subject), rule, missing=first_few(missing, 4))
            found = self._branch(node, values, depth) if node.op_type == "If" else self._build(node, values)
            for name, value in zip(node.output, found, strict=False):
                if isinstance(value, Tensor) and (math.prod(value.axes) > MOST_ELEMENTS or len(value.axes) > MOST_AXES):
                    rule = f"a tensor must have at most {MOST_ELEMENTS:,} values a sample, and {MOST_AXES} axes"
                    raise UnsupportedError(_subject_of(node, self.subject), rule, shape=value.axes)
                if name:
                    values[name] = value

    def _branch(self, node: Any, values: Mapping[str, Operand], depth: int) -> Sequence[Operand]:
        """The outputs of the branch of an If that is taken, which must be known."""
        condition = values[node.input[0]]
        attributes = {item.name: item.g for item in node.attribute}
        subject = _subject_of(node, self.subject)
        if self.has_tail and isinstance(condition, Tensor | Late):
            for graph in attributes.values():
                check_operators(graph, self.subject)
            return self._late(node, values)
        if isinstance(condition, Tensor | Late) or condition.size != 1 or depth >= _MOST_DEPTH:
            rule = "the condition must be known when the model is read, and branches lie in each other"
            raise UnsupportedError(subject, f"{rule} at most {_MOST_DEPTH} deep", depth=depth)
        graph = attributes["then_branch" if bool(condition.reshape(())) else "else_branch"]
        check_operators(graph, self.subject)
        inner = dict(values)
        for item in graph.initializer:
            inner[item.name] = array_of(item, self.subject)
        self._run(graph, inner, depth + 1)
        return [inner[item.name] for item in graph.output]

    def _late(self, node: Any, values: Mapping[str, Operand]) -> Sequence[Late]:
        """The outputs of a node that becomes one of the tail."""
        names = [*node.input, *(name for name in _inner_reads(node) if name in values)]
        inputs = {name: values[name] for name in names if name}
        found = HostNode(
            node, self._version, inputs, tuple(Late() for _ in node.output), _subject_of(node, self.subject)
        )
        self.tail.append(found)
        return found.outputs

    def _build(self, node: Any, values: Mapping[str, Operand]) -> Sequence[Operand]:
        inputs: list[Tensor | Array | None] = []
        for name in node.input:
            value = values[name] if name else None
            if isinstance(value, Late):
                return self._late(node, values)
            inputs.append(value)
        subject = _subject_of(node, self.subject)
        if node.op_type in host.KINDS and not any(isinstance(value, Tensor) for value in inputs):
            known = {
                name: value for name, value in zip(node.input, inputs, strict=True) if isinstance(value, np.ndarray)
            }
            return host.evaluated(node, self._version, known, subject)
        operation = Operation(
            name=_layer_name(node.name or next((name for name in node.output if name), node.op_type), set()),
            kind=node.op_type,
            version=self._version,
            attributes={item.name: self._attribute(item) for item in node.attribute},
            inputs=inputs,
            outputs=tuple(node.output),
            samples=self._samples,
            subject=subject,
            shared=self._shared,
            names=self._names,
            sources=[name if name in self._initializers else None for name in node.input],
            alone=[self._reads[name] == 1 for name in node.input],
        )
        try:
            if node.op_type not in OPERATORS:
                rule = "the operator's inputs must be known when the model is read: it works on constants alone"
                operation.on_host(rule, operator=node.op_type)
            found = OPERATORS[node.op_type](operation)
        except (OnHostError, SamplesMixedError) as error:
            if not (self.has_tail if isinstance(error, OnHostError) else self.mixes):
                raise
            return self._late(node, values)
        except ValueNeededError as error:
            own = {str(item.node.layer.name): name for name, item in self.inputs.items()}
            error.inputs = frozenset(own.get(name, name) for name in error.inputs)
            raise
        except UnsupportedError:
            raise
        except BlobnetError as error:
            raise UnsupportedError(subject, "its layers must be such as blobnet has", cause=error) from error
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # Attributes and constants are whatever the file says.
            rule = "its attributes and constants must be such as ONNX allows"
            raise UnsupportedError(subject, rule, cause=f"{type(error).__name__}: {error}") from error
        values_found = [found] if isinstance(found, Tensor | np.ndarray) else found
        nodes = [value.node for value in inputs if isinstance(value, Tensor)]
        return [
            replace(value, name=operation.name) if isinstance(value, Tensor) and value.node in nodes else value
            for value in values_found
        ]

    def _attribute(self, item: Any) -> Any:
        try:
            value = package().helper.get_attribute_value(item)
        except ValueError as error:
            rule = "an attribute must have a value"
            raise FileError(self.subject, rule, attribute=item.name) from error
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, package().TensorProto):
            return array_of(value, self.subject)
        return value

    def model(self, tensors: Mapping[str, Tensor]) -> Model:
        """The network up to these tensors, which are its outputs; inputs that none depends on are left out."""
        operation = Operation("output", "", self._version, {}, (), (), self._samples, self.subject, names=self._names)
        entries = {name: tensor.node for name, tensor in self.inputs.items()}
        outputs: dict[str, Node] = {}
        for name, tensor in tensors.items():
            node = operation.shaped(tensor)
            if node in outputs.values() or node in entries.values():
                node = replace(operation, name=tensor.name or "output").layer(Activation("linear"), node)
            outputs[_layer_name(name, set(outputs))] = node
        used = depended(list(outputs.values()))
        self.entered = [name for name, node in entries.items() if node in used]
        inputs = {str(entries[name].layer.name): entries[name] for name in self.entered}
        first, last = (next(iter(ends.values())) if len(ends) == 1 else ends for ends in (inputs, outputs))
        return Model(first, last)


def check_operators(graph: Any, subject: str) -> None:
    """Raises UnsupportedError, of the first node of a graph whose operator there is not, before anything is built."""
    lacking = [
        node
        for node in graph.node
        if node.domain not in ("", "ai.onnx") or node.op_type not in {*OPERATORS, *host.KINDS, "If"}
    ]
    if lacking:
        kinds = first_few(dict.fromkeys(map(_kind, lacking)), 8)
        rule = "every operator must be one that blobnet has (docs/onnx.md lists them)"
        hint = "export the network up to the layers before it, or write a function for it: blobnet/onnx/operators/ has "
        hint += "one for each operator."
        first = lacking[0]
        raise UnsupportedError(_subject_of(first, subject), rule, operator=_kind(first), all_that_lack=kinds, hint=hint)


def reads(graph: Any) -> Counter[str]:
    """How often each value is read: by nodes, also those of branches, and as an output."""
    found = Counter(item.name for item in graph.output)
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found.update(reads(inner))
    return found


def _inner_reads(node: Any) -> list[str]:
    """What the graphs within a node read, inside and out."""
    inner = [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)]
    return list(dict.fromkeys(name for graph in inner for name in reads(graph)))


def depended(nodes: Sequence[Node]) -> set[Node]:
    """Nodes, and all that they depend on."""
    found, stack = set(nodes), list(nodes)
    while stack:
        new = [source for source in stack.pop().inputs if source not in found]
        found.update(new)
        stack.extend(new)
    return found


def _subject_of(node: Any, subject: str) -> str:
    """How errors name a node."""
    return f"{subject}, node {node.name or next(iter(node.output), '')} ({_kind(node)})"


def _kind(node: Any) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _layer_name(name: str, taken: set[str]) -> str:
    """A name for a layer: printable, without '/' and '@'."""
    plain = "".join(letter if letter.isprintable() and letter not in "/@" else "." for letter in name).strip(".")
    plain, number = plain or "value", 1
    found = plain
    while found in taken:
        number += 1
        found = f"{plain}_{number}"
    return found
