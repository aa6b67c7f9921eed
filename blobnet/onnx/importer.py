"""From an ONNX graph to a model: the operator of each node builds layers that read those of its inputs."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from blobnet.contraction.form import numbered
from blobnet.errors import BlobnetError, FileError, OptionError, first_few, near_matches, warn
from blobnet.layers import Activation, Input, Layer, Node
from blobnet.memory.blob import Shape
from blobnet.model import Model
from blobnet.onnx import bodies, host
from blobnet.onnx.conventions import (
    CLASS_NAMES,
    class_names,
    entries_of,
    head_of,
    origin_of,
    put_units_first,
    take_normalization,
)
from blobnet.onnx.host import HostNode, Late, Operand
from blobnet.onnx.operation import (
    SESSION_HINT,
    OnHostError,
    OpenAxisError,
    Operation,
    SamplesMixedError,
    UnsupportedError,
    ValueNeededError,
    depended,
)
from blobnet.onnx.operators import OPERATORS
from blobnet.onnx.reading import OWN_DOMAINS, array_of, inner_graphs, opset, package, read
from blobnet.onnx.values import MAX_ELEMENTS, Array, Pieces, Tensor, node_sizes
from blobnet.support.checks import is_int
from blobnet.support.garbage import gc_paused
from blobnet.support.unit_axes import with_units_first

#: The types that samples may have on their way to the device.
SAMPLE_TYPES = ("float32", "float16", "float64", "uint8", "int8", "uint16", "int16")
#: Axes that ONNX's tensors may have.
MAX_AXES = 16
#: The operators that make sequences, and take them.
SEQUENCE_KINDS = frozenset(["SequenceAt", "SplitToSequence"])
#: The operators that compute with numbers, which of whole ones overflow and are cut off; and those that choose some.
_ARITHMETIC = frozenset([
    "Abs", "Add", "Div", "Einsum", "Gemm", "MatMul", "Mean", "Mod", "Mul", "Neg", "Pow", "ReduceL1", "ReduceL2",
    "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Sub", "Sum",
])  # fmt: skip
_CHOOSING = frozenset([
    "Clip", "Concat", "DepthToSpace", "Expand", "Gather", "GatherND", "Max", "MaxPool", "Min", "Pad", "Relu", "Slice",
    "SpaceToDepth", "Split", "Tile", "Where",
])  # fmt: skip
#: The operators that give an array another shape, or order.
_VIEWS = frozenset(["Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
#: Samples for which shapes are worked out where a file leaves their number open: a prime that nothing else has.
_SOME = 7

#: Values for the axes of inputs that a file leaves open: by the axis' name, or all axes of an input by its name.
Sizes = Mapping[str, "int | Sequence[int]"]


def load(
    path: str | os.PathLike[str],
    *,
    sizes: Sizes | Sequence[int] | None = None,
    samples: bool = True,
    units_first: bool = False,
) -> Model:
    """The model in an ONNX file (docs/onnx.md): trainable, with the file's weights.

    Inputs and outputs keep their names and order. What does not depend on samples is computed once, here; no device is
    asked for.

    Args:
        path: the file.
        sizes: for axes that the file leaves open: {"height": 224} by the name of an axis, or {"image": (1, 3, 224,
            224)} for all axes of an input. How many samples there are (axis 0) stays open. Or the shape of a sample,
            (3, 224, 224), for a file with one input. What the file says of sizes must be so.
        samples: whether axis 0 of all inputs and outputs are the samples of a batch. If not, all of a tensor is one
            sample: a model for arrays with one more axis in front.
        units_first: whether a file for gray or RGB pictures of (height, width, units), as TensorFlow's are, becomes a
            model for (units, height, width), as blobnet's own are: pictures, augmentations and normalization fit it.

    Raises:
        FileError: the file is missing, damaged or of an operator set that cannot be read.
        OptionError: an axis has no size, or another one than the file says; or an operator is none of those that
            docs/onnx.md lists: the error names the node, and is an UnsupportedError of blobnet.onnx.operation.
    """
    with gc_paused():
        return _loaded(read(path), str(path), sizes, samples, units_first)


def _loaded(
    model: Any, subject: str, sizes: Sizes | Sequence[int] | None, samples: bool, units_first: bool = False
) -> Model:
    """Return what :func:`load` gives, of a model that was read."""
    graph, head = model.graph, head_of(model)

    def array(name: str) -> Array | None:
        return array_of(arrays[name], subject) if name in arrays else None

    arrays = _tensors_of(graph) if samples else {}
    turned = put_units_first(graph, array) if units_first and samples else set[str]()
    if turned:
        arrays = _tensors_of(graph)
        units = next(item for item in graph.input if item.name in turned).type.tensor_type.shape.dim[1].dim_value
        sizes = _turned(sizes, units)
    normalized = take_normalization(model, array)
    imported = import_for(
        model, subject, sizes_by_name(inputs_of(graph, subject), sizes, subject, samples=samples), samples
    )
    tensors = {}
    for name, value in imported.outputs.items():
        if not isinstance(value, Tensor):
            rule = "every output must depend on an input"
            raise UnsupportedError(f"{subject}, output {name}", rule, value=str(value)[:60])
        tensors[name] = value
    compare_shapes(graph, tensors, subject)
    found = imported.model(tensors)
    for entered, name in zip(imported.entered, found.graph.inputs, strict=True):
        if entered in normalized:
            # What the file says counts, also where an Embedding reads it.
            entry, parts = found.graph.inputs[name], ("mean", "deviation")
            found.set_weights(
                {entry.parameter(part): own for part, own in zip(parts, normalized[entered], strict=True)}
            )
    trained = {name.rpartition("/")[0] for name in found.graph.trainable}
    if copied := [group for group in imported.copied() if trained.intersection(group)]:
        rule = "layers with copies of one array of the file train apart, since their nodes use it in different ways"
        hint = "fit(freeze=[...]) keeps some as they are; written to ONNX again, they have an array each."
        warn(subject, rule, layers=first_few(map(" and ".join, copied), 4), hint=hint)
    if len(found.graph.exits) == 1:
        found.class_names = class_names(model, found.graph.output.shape.units)
    if found.class_names:  # Of which the model has the only copy.
        kept = [item for item in model.metadata_props if item.key != CLASS_NAMES]
        del head.metadata_props[:]
        head.metadata_props.extend(kept)
    entries = ((name, imported.inputs[name]) for name in imported.entered)
    inputs = dict(zip(found.graph.inputs, entries, strict=True))
    outputs = dict(zip(found.graph.outputs, tensors.items(), strict=True))
    found.graph = replace(found.graph, origin=origin_of(head, inputs, outputs, turned))
    return found


def _tensors_of(graph: Any) -> dict[str, Any]:
    """The tensors that a graph's initializers and constants hold, by name."""
    constants = (node for node in graph.node if node.op_type == "Constant")
    found = {node.output[0]: item.t for node in constants for item in node.attribute if item.name == "value"}
    return found | {item.name: item for item in graph.initializer}


def _turned(sizes: Sizes | Sequence[int] | None, units: int) -> Sizes | Sequence[int] | None:
    """Return sizes as :func:`load` takes them: those of the file, which end in ``units``, in the model's order."""
    if isinstance(sizes, Mapping):
        return {
            name: own if isinstance(own, int) else (own[0], *_turned(own[1:], units))  # type: ignore[misc]
            for name, own in sizes.items()
        }
    return sizes if sizes is None or [*sizes[:1]] == [units] else with_units_first(sizes, units)


def inputs_of(graph: Any, subject: str) -> list[Any]:
    """The inputs of a graph that it has no initializers for.

    Raises:
        UnsupportedError: one is no tensor.
    """
    inputs = entries_of(graph)
    for item in inputs:
        if not item.type.HasField("tensor_type"):
            kind = str(item.type.WhichOneof("value")).removesuffix("_type")
            rule, hint = "inputs must be tensors", "export the network with an input for each of its tensors."
            raise UnsupportedError(f"{subject}, input {item.name}", rule, type=kind, hint=hint)
    return inputs


def import_for(model: Any, subject: str, sizes: Sizes, samples: bool = True, **settings: Any) -> Import:
    """The reading of a graph for these sizes, and any number of samples; see :func:`load`, and Import for settings.

    Raises:
        OptionError: an axis has no size, or an operator is none that blobnet has.
    """
    read_ones = reads(model.graph)
    inputs = [item for item in inputs_of(model.graph, subject) if read_ones[item.name]]
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
    """The sizes of axes and inputs, by name; the shape of a sample is that of the only input.

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
    shape = tuple(sizes)
    if samples and axes:  # How many of them the file has is not asked.
        shape = (_fixed(axes[0]) or 1, *shape)
    if len(shape) != len(axes):
        rule = "a sample must have as many axes as the file says"
        raise OptionError(f"{subject}, sizes", rule, sample=tuple(sizes), file=_shown_axes(axes))
    return {inputs[0].name: shape}


def input_shape(item: Any, sizes: Sizes, subject: str, samples: int) -> tuple[int, ...]:
    """The shape of an input of a file, with so many samples on axis 0 if that is open; 0 means that it must not be.

    Raises:
        OptionError: an axis has no size.
    """
    dimensions = item.type.tensor_type.shape.dim
    given, has_shape = sizes.get(item.name), item.type.tensor_type.HasField("shape")
    if given is not None and not is_int(given, 0):
        found = tuple(int(size) for size in given)  # type: ignore[union-attr]
        fits = len(found) == len(dimensions) or not has_shape
        for own, dimension in zip(found, dimensions, strict=False):
            fits = fits and _fixed(dimension) in (0, own)
        if not fits or min(found, default=1) < 1:
            rule = "the sizes of an input must be those that the file says"
            raise OptionError(f"{subject}, input {item.name}", rule, sizes=found, file=_shown_axes(dimensions))
        return found
    if not has_shape:
        rule = "an input must have axes, of which the file says nothing"
        hint = f"load(..., sizes={{{item.name!r}: (1, 3, 224, 224)}}), say. {SESSION_HINT}"
        raise OpenAxisError(f"{subject}, input {item.name}", rule, hint=hint)
    shape = []
    for axis, dimension in enumerate(dimensions):
        size: Any = _fixed(dimension) or sizes.get(dimension.dim_param, samples if axis == 0 else 0)
        if not is_int(size, 1):
            known = [*sizes, dimensions[0].dim_param] if samples else [*sizes]
            names = dict.fromkeys(each.dim_param for each in dimensions if not _fixed(each))
            wanted = {name: 224 for name in names if name not in known}
            hint = f"load(..., sizes={wanted}), say."
            if "" in names:
                hint = f"load(..., sizes={{{item.name!r}: ...}}) with a size for each of its axes."
            rule = "every axis but that of the samples must have a size of at least 1"
            hint += f" {SESSION_HINT}"
            raise OpenAxisError(f"{subject}, input {item.name}", rule, axes=_shown_axes(dimensions), hint=hint)
        shape.append(int(size))
    return tuple(shape)


def compare_shapes(graph: Any, values: Mapping[str, Operand], subject: str) -> None:
    """Warns where an output has another shape than the file says; the samples' axis may have any size."""
    for item in graph.output:
        value, dimensions = values.get(item.name), item.type.tensor_type.shape.dim
        if not isinstance(value, Tensor) or not item.type.tensor_type.HasField("shape"):
            continue
        sizes = [value.axes[axis] if axis != value.at else 0 for axis in range(len(value.axes))]
        same = len(dimensions) == len(sizes) and all(
            0 in (_fixed(own), size) or _fixed(own) == size for own, size in zip(dimensions, sizes, strict=True)
        )
        if not same:
            rule = "an output should have the shape that the file says, which others may rely on"
            found = f"({', '.join(str(size or 'samples') for size in sizes)})"
            warn(f"{subject}, output {item.name}", rule, file=_shown_axes(dimensions), found=found)


def axes_of(dimensions: Any) -> tuple[int | str, ...]:
    """The sizes of axes; of one that is open its name, or "?"."""
    return tuple(_fixed(item) or item.dim_param or "?" for item in dimensions)


def _fixed(dimension: Any) -> int:
    """The size of an axis, or 0 if it is open, for which some exporters write 0 or -1."""
    return max(0, int(dimension.dim_value))


def _shown_axes(dimensions: Any) -> str:
    return f"({', '.join(map(str, axes_of(dimensions)))})"


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


def _indexes(graph: Any) -> set[str]:
    """The names of values that are numbers of rows, or lengths of samples, and nothing else.

    Gather or recurrent operators alone read them, perhaps behind a Cast, and Shape, which sees no value.
    """
    found, others = set[str](), {item.name for item in graph.output}
    for node in reversed(graph.node):
        others.update(_inner_reads(node))
        for place, name in enumerate(node.input):
            is_index = (node.op_type, place) in {("Gather", 1), ("LSTM", 4), ("GRU", 4), ("Shape", 0)}
            is_index |= node.op_type == "Cast" and node.output[0] in found - others
            (found if is_index else others).add(name)
    return found - others


@dataclass
class Import:
    """One reading of a graph, with values for what must be known.

    Attributes:
        proto: the model, an ``onnx.ModelProto``.
        subject: how errors begin.
        known: values for inputs.
        shapes: of the other inputs.
        samples: True if axis 0 are the samples.
        has_tail: True if the host may compute nodes after the network. If not, such a node is an OnHostError.
        mixes: True if the host also computes nodes in which samples meet.
        constants: arrays of the initializers, where they were read before.
        outputs: the values of the graph's outputs.
        inputs: the tensors that the inputs are.
        tail: the nodes that the host computes of such tensors, in order.
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
        #: Names of the arrays that the file's initializers and constants make, by the arrays' ids: the same array has
        #: the same name; and True if one node alone reads it.
        self._sources: dict[int, tuple[str, bool]] = {}
        self._texts: dict[tuple[Any, ...], str] = {}
        self._kept: list[Array] = []  # Whose ids nothing else may have.
        self._own_arrays: dict[int, tuple[Any, dict[str, Array]]] = {}
        self._budget = bodies.Budget(bodies.MAX_READ)
        self._loops = 0  # That the node at hand is within.
        self._reads, self._indexes = reads(graph), _indexes(graph)
        counts = {shape[0] if shape else 0 for shape in self.shapes.values()} if self.samples else set()
        if len(counts) > 1 or 0 in counts:
            rule = "axis 0 of all inputs must be the samples, as many in each"
            hint = "load(..., samples=False) reads a graph whose tensors have no axis of samples."
            error = SamplesMixedError(self.subject, rule, hint=hint, shapes=dict(self.shapes))
            raise error
        self._samples = next(iter(counts), 1) if self.samples else None
        check_operators(graph, self.subject)
        values: dict[str, Operand] = dict(self._arrays_of(graph, self.constants))
        own = sum(array.nbytes for array in values.values() if isinstance(array, np.ndarray))
        self._most = self._left = host.MAX_BYTES + 4 * own
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
                _refuse_sequences(f"{self.subject}, output {name}")
            if self.samples and not self.has_tail and isinstance(value, Tensor) and not value.is_plain:
                subject = f"{self.subject}, output {name}"
                operation = Operation(name, "", self._version, {}, (), (), self._samples, subject)
                shape = operation.shape_of(value)
                operation.mixed("outputs must have the samples on axis 0, and nothing else", shape=shape)

    def _input(self, name: str, shape: tuple[int, ...], kind: int) -> Tensor:
        known = (*SAMPLE_TYPES, *(("int32", "int64") if name in self._indexes else ()))
        types = {package().helper.np_dtype_to_tensor_dtype(np.dtype(item)): item for item in known}
        if kind not in types:
            rule = "inputs must be numbers that a network computes with"
            hint = "rows of a matrix of the file for Gather, and lengths for LSTM and GRU, may also be int32 or int64."
            raise UnsupportedError(f"{self.subject}, input {name}", rule, hint=hint, type=kind, types=", ".join(known))
        at = 0 if self.samples else None
        axes = (1, *shape[1:]) if self.samples else shape
        if math.prod(shape) > MAX_ELEMENTS or len(shape) > MAX_AXES:
            rule = f"a tensor must have at most {MAX_ELEMENTS:,} values, and {MAX_AXES} axes"
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
            is_plain = node.op_type not in bodies.KINDS
            found = self._build(node, values) if is_plain else self._within(node, values, depth)
            if is_plain:
                self._name_made(graph, node, values, found)
            for name, value in zip(node.output, found, strict=False):
                if isinstance(value, Tensor) and (math.prod(value.axes) > MAX_ELEMENTS or len(value.axes) > MAX_AXES):
                    rule = f"a tensor must have at most {MAX_ELEMENTS:,} values a sample, and {MAX_AXES} axes"
                    raise UnsupportedError(_subject_of(node, self.subject), rule, shape=value.axes)
                if name:
                    values[name] = value

    def _arrays_of(self, graph: Any, known: Mapping[str, Array]) -> dict[str, Array]:
        """The initializers of a graph, which are the same arrays each time that it is run."""
        if id(graph) not in self._own_arrays:
            names = [item.name for item in graph.initializer]
            arrays = {
                name: known[name] if name in known else array_of(item, self.subject)
                for name, item in zip(names, graph.initializer, strict=True)
            }
            self._own_arrays[id(graph)] = graph, arrays  # Which keeps the graph's id.
            for name, array in arrays.items():
                self._name(array, (id(graph), name), self._reads[name] == 1)
        return self._own_arrays[id(graph)][1]

    def _name(self, array: Array, key: tuple[Any, ...], is_alone: bool) -> None:
        """Says what an array is."""
        known, _ = self._sources.get(id(array), (None, None))
        self._sources[id(array)] = known or self._texts.setdefault(key, f"{len(self._texts)}"), is_alone
        self._kept.append(array)

    def copied(self) -> list[tuple[str, ...]]:
        """The layers that have copies of one array of the file, each as its node uses it, by name."""
        roots: dict[str, str] = {}
        for made, text in self._texts.items():  # What an array is made of comes before it.
            roots[text] = roots[made[2][0]] if made[0] in _VIEWS else text
        owners: dict[str, dict[str, None]] = {}
        for (_, key), layer in self._shared.items():
            texts = key[0] if isinstance(key[0], tuple) else key
            for text in texts:
                owners.setdefault(roots[text], {})[str(layer.name)] = None
        return sorted({tuple(names) for names in owners.values() if len(names) > 1})

    def _name_made(self, graph: Any, node: Any, values: Mapping[str, Operand], found: Sequence[Operand]) -> None:
        """Says what arrays are that a node makes of such as are named: of the same ones each time the same."""
        inputs = [self._sources.get(id(values[name])) for name in node.input if name]
        if not all(inputs) or not all(isinstance(value, np.ndarray) for value in found):
            return
        texts = tuple(item[0] for item in inputs if item)
        content = [item.SerializeToString(deterministic=True) for item in node.attribute] if texts else []
        for place, (name, value) in enumerate(zip(node.output, found, strict=False)):
            key: tuple[Any, ...] = (node.op_type, place, texts, *content) if texts else (id(graph), name)
            if isinstance(value, np.ndarray):
                self._name(value, key, self._reads[name] == 1 and all(item[1] for item in inputs if item))

    def _within(self, node: Any, values: Mapping[str, Operand], depth: int) -> Sequence[Operand]:
        """The outputs of an If, of the branch that is taken; of a Loop or a Scan, whose trips are all written out."""
        subject, mark = _subject_of(node, self.subject), len(self.tail)
        depth = bodies.depth_within(depth, subject)
        is_loop = node.op_type != "If"
        read = [values.get(name) for name in (*node.input, *_inner_reads(node))]
        if is_loop:
            self._check_within(node)
        if not (is_loop and any(isinstance(value, Late) for value in read)):
            self._loops += is_loop
            try:
                return bodies.run(node, values, self._version, _Trips(self, node, subject, self._budget, values, depth))
            except OnHostError:
                if not self.has_tail:
                    raise
            finally:
                self._loops -= is_loop
        # What was begun is left to the host as a whole.
        del self.tail[mark:]
        self._check_within(node)
        return self._late(node, values)

    def _check_within(self, node: Any) -> None:
        """Raises UnsupportedError where an operator within a node, however deep, is none that there is."""
        for graph in bodies.graphs_of(node).values():
            check_operators(graph, self.subject)
            for inner in graph.node:
                self._check_within(inner)

    def _late(self, node: Any, values: Mapping[str, Operand]) -> Sequence[Late]:
        """The outputs of a node that becomes one of the tail."""
        subject = _subject_of(node, self.subject)
        names = [*node.input, *(name for name in _inner_reads(node) if name in values)]
        inputs = {name: values[name] for name in names if name}
        if bodies.kinds_of(node) & SEQUENCE_KINDS or any(isinstance(value, Pieces) for value in inputs.values()):
            _refuse_sequences(subject)
        found = HostNode(node, self._version, inputs, tuple(Late() for _ in node.output), subject)
        self.tail.append(found)
        return found.outputs

    def _build(self, node: Any, values: Mapping[str, Operand]) -> Sequence[Operand]:
        inputs: list[Tensor | Array | None] = []
        for name in node.input:
            value = values[name] if name else None
            if isinstance(value, Late):
                return self._late(node, values)
            inputs.append(value)
        if node.op_type == "Cast" and node.output[0] in self._indexes and isinstance(inputs[0], Tensor):
            return [inputs[0]]  # They are looked up as they are.
        subject = _subject_of(node, self.subject)
        if node.op_type not in SEQUENCE_KINDS and any(isinstance(value, Pieces) for value in inputs):
            _refuse_sequences(subject)
        # What depends on inputs whose values are known is the host's, whatever it is: no network reads them.
        is_host = node.op_type in host.KINDS or (bool(self.known) and node.op_type not in SEQUENCE_KINDS)
        if is_host and not any(isinstance(value, Tensor) for value in inputs):
            return self._computed(node, inputs)
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
            sources=[self._sources.get(id(value), (None, None))[0] for value in inputs],
            spend=lambda count: self._spend(count, subject),
            # What a loop reads from around it, it reads in each trip.
            alone=[
                self._sources.get(id(values.get(name)), (None, self._reads[name] == 1))[1] and not self._loops
                for name in node.input
            ],
        )
        try:
            with _layers_of(subject):
                found = self._layers(operation)
        except (OnHostError, SamplesMixedError) as error:
            if not (self.has_tail if isinstance(error, OnHostError) else self.mixes):
                raise
            return self._late(node, values)
        except ValueNeededError as error:
            own = {str(item.node.layer.name): name for name, item in self.inputs.items()}
            error.inputs = frozenset(own.get(name, name) for name in error.inputs)
            raise
        nodes = [value.node for value in inputs if isinstance(value, Tensor)]
        return [
            replace(value, name=operation.name) if isinstance(value, Tensor) and value.node in nodes else value
            for value in found
        ]

    def _computed(self, node: Any, inputs: Sequence[Tensor | Array | None]) -> Sequence[Array]:
        """The outputs of a node whose inputs are known, which the host computes."""
        subject = _subject_of(node, self.subject)
        known = {name: value for name, value in zip(node.input, inputs, strict=True) if isinstance(value, np.ndarray)}
        made = host.evaluated(node, self._version, known, subject, max(self._left, 0))
        solid = (array for array in made if any(array.strides))  # Views take none.
        given = list(known.values())
        self._spend(sum(a.nbytes for a in solid if not any(np.may_share_memory(a, b) for b in given)), subject)
        return made

    def _layers(self, operation: Operation) -> Sequence[Operand]:
        """The outputs of an operation, of layers that are built for it."""
        kind, inputs = operation.kind, operation.inputs
        if kind not in OPERATORS:
            rule = "the operator's inputs must be known when the model is read: it works on constants alone"
            operation.on_host(rule, operator=kind)
        whole = [value for value in inputs if isinstance(value, Tensor) and value.type.kind in "iu"]
        if whole and kind in _ARITHMETIC:
            rule = "whole numbers are computed by the host alone, of inputs that are known"
            hint = f"cast them to float before it. {SESSION_HINT}"
            raise operation.needed(whole[0], rule, hint, type=whole[0].type.name)
        found = OPERATORS[kind](operation)
        many = [found] if isinstance(found, Tensor | np.ndarray) else found
        if not whole or kind not in _CHOOSING or (kind == "Gather" and not isinstance(inputs[0], Tensor)):
            return many
        return [replace(value, type=whole[0].type) if isinstance(value, Tensor) else value for value in many]

    def _spend(self, count: int, subject: str) -> None:
        """Takes bytes off what a file may make; UnsupportedError where nothing is left."""
        self._left -= count
        if self._left < 0:
            rule = "the constants and weights that a file makes may take 2 GiB and four times its own arrays, together"
            raise UnsupportedError(subject, rule, bytes=self._most - self._left, most=self._most)

    def _attribute(self, item: Any) -> Any:
        from onnx.helper import get_attribute_value

        try:
            value = get_attribute_value(item)
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
        used = depended(outputs.values())
        self.entered = [name for name, node in entries.items() if node in used]
        if not self.entered:
            rule = "what the device computes must read an input of finite numbers of 8 or 16 bits, or real ones"
            known = {name: f"{array.dtype} {array.shape}" for name, array in self.known.items()}
            hint = "export the network with float32 inputs, or give these arrays without infinities and NaN."
            raise UnsupportedError(self.subject, rule, known=known, layers=first_few(outputs, 3), hint=hint)
        inputs = {str(entries[name].layer.name): entries[name] for name in self.entered}
        return Model(inputs, outputs)


@dataclass
class _Trips(bodies.Runner):
    """Runs graphs within a node as they are read.

    Attributes:
        reading: of the file.
        node: whose graphs they are.
        subject: how errors name it.
        values: around it.
        depth: of its graphs.
    """

    reading: Import
    node: Any
    subject: str
    budget: bodies.Budget
    values: Mapping[str, Operand]
    depth: int

    def outputs(self, graph: Any, values: Mapping[str, Any]) -> list[Any]:
        check_operators(graph, self.reading.subject)
        inner = {**self.values, **self.reading._arrays_of(graph, {}), **values}
        self.reading._run(graph, inner, self.depth)
        missing = [item.name for item in graph.output if item.name not in inner]
        if missing:
            raise FileError(self.subject, "every output must be made by a node", missing=first_few(missing, 4))
        found = [inner[item.name] for item in graph.output]
        return found if self.node.op_type == "If" else [self._early(value) for value in found]

    def number(self, value: Any) -> Array:
        if isinstance(value, np.ndarray):
            return value
        rule = "what decides about branches and trips must be known when the model is read"
        raise OnHostError(self.subject, rule, hint=SESSION_HINT)

    def _early(self, value: Any) -> Any:
        """A value that goes on to other trips: if it is the host's, so is the loop."""
        if isinstance(value, Late):
            raise OnHostError(self.subject, "all of a loop must be the device's, or the host's", hint=SESSION_HINT)
        if isinstance(value, Pieces):
            _refuse_sequences(self.subject)
        return value

    def _built(self, kind: str, values: Sequence[Any], **attributes: Any) -> Any:
        """Return the result of an operator on values."""
        names = [f"{place}" for place in range(len(values))]
        node = package().helper.make_node(kind, names, ["value"], self.node.name or self.node.output[0], **attributes)
        (found,) = self.reading._build(node, dict(zip(names, values, strict=True)))
        return self._early(found)

    def taken(self, value: Any, axis: int, place: int) -> Any:
        if isinstance(value, Tensor):
            return self._built("Gather", [value, np.array(place)], axis=axis)
        return super().taken(value, axis, place)

    def stacked(self, values: Sequence[Any], axis: int) -> Any:
        shapes = {value.axes if isinstance(value, Tensor) else value.shape for value in values}
        if all(isinstance(value, np.ndarray) for value in values) and len(shapes) == 1:
            return np.stack(values, axis)
        parts = [
            self._built("Unsqueeze", [value], axes=[axis]) if isinstance(value, Tensor) else np.expand_dims(value, axis)
            for value in values
        ]
        return self._built("Concat", parts, axis=axis)


def check_operators(graph: Any, subject: str) -> None:
    """Raises UnsupportedError, of the first node of a graph whose operator there is not, before anything is built."""
    known = {*OPERATORS, *host.KINDS, *bodies.KINDS}
    lacking = [node for node in graph.node if node.domain not in OWN_DOMAINS or node.op_type not in known]
    if lacking:
        kinds = first_few(dict.fromkeys(map(_kind, lacking)), 8)
        rule = "every operator must be one that blobnet has (docs/onnx.md lists them)"
        hint = "export the network up to the layers before it, or write a function for it: blobnet/onnx/operators/ has "
        hint += "one for each operator."
        first = lacking[0]
        raise UnsupportedError(_subject_of(first, subject), rule, operator=_kind(first), all_that_lack=kinds, hint=hint)


def _refuse_sequences(subject: str) -> None:
    """Raises UnsupportedError."""
    rule = "a sequence must be of tensors of the device, made by SplitToSequence and read by SequenceAt alone"
    raise UnsupportedError(subject, rule, hint="export the network with Split, Gather and Concat in its place.")


def reads(graph: Any) -> Counter[str]:
    """Return how often each value is read: by nodes, also those of branches, and as an output."""
    found = Counter(item.name for item in graph.output)
    for node in graph.node:
        found.update(node.input)
        for inner in inner_graphs(node):
            found.update(reads(inner))
    return found


def _inner_reads(node: Any) -> list[str]:
    """Return what the graphs within a node read, inside and out."""
    return list(dict.fromkeys(name for graph in inner_graphs(node) for name in reads(graph)))


@contextlib.contextmanager
def _layers_of(subject: str) -> Iterator[None]:
    """Raises UnsupportedError for any error of a node's layers: attributes and constants are whatever the file says."""
    try:
        yield
    except UnsupportedError:
        raise
    except BlobnetError as error:
        cause = str(error).partition("\n")[0].rstrip(".")  # What follows is the text of a layer.
        raise UnsupportedError(subject, "its layers must be such as blobnet has", cause=cause) from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        rule = "its attributes and constants must be such as ONNX allows"
        raise UnsupportedError(subject, rule, cause=f"{type(error).__name__}: {error}") from error


def _subject_of(node: Any, subject: str) -> str:
    """Return the name of a node in errors."""
    return f"{subject}, node {node.name or next(iter(node.output), '')} ({_kind(node)})"


def _kind(node: Any) -> str:
    return node.op_type if node.domain in OWN_DOMAINS else f"{node.domain}.{node.op_type}"


def _layer_name(name: str, taken: set[str]) -> str:
    """A name for a layer: printable, without '/' and '@'."""
    plain = "".join(letter if letter.isprintable() and letter not in "/@" else "." for letter in name).strip(".")
    return numbered(plain or "value", taken)
