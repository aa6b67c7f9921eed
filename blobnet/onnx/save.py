"""ONNX files of models (docs/onnx.md)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import blobnet
from blobnet.errors import FileError, OptionError
from blobnet.files import atomic
from blobnet.losses.center_net import check_gives_boxes
from blobnet.model import Model, check_model
from blobnet.network.graph import Graph, Vertex
from blobnet.onnx.conventions import CLASS_NAMES, PRODUCER, model_of
from blobnet.onnx.forms import FORMS
from blobnet.onnx.peaks import add_peaks
from blobnet.onnx.place import Place
from blobnet.onnx.reading import package
from blobnet.onnx.statements import add_statements
from blobnet.support.checks import check_count
from blobnet.support.formatting import format_bytes
from blobnet.support.unit_axes import TO_FIRST, TO_LAST

#: The version of ONNX's operators that is written, and that of the format which came with it.
OPSET, IR_VERSION = 20, 9
#: The name of the batch's axis: its size is known when the file is run.
BATCH = "N"
#: Operators that compute nothing. Of a layer's others the last has its name, and so has what ``load`` makes of that.
_SHAPING = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
#: Protocol buffers hold no more.
_MAX_BYTES = 2**31 - 1

#: A shape; None is the batch.
_Axes: TypeAlias = "tuple[int | None, ...]"


def save(model: Model, path: str | os.PathLike[str], *, boxes: int | None = None) -> None:
    """Writes an ONNX file, all or nothing: the network as it predicts, its weights, and the names of its classes.

    Inputs and outputs are float32 (N, units[[[, depth], height], width]), N being the batch, by the names of the
    model's. Of a model that was read from an ONNX file they have the names, types, shapes and texts of that file, whose
    metadata are written too; the batch is open, whatever it was. What the input layer does to samples is part of the
    network, as Sub and Div nodes. Nodes are called as layers, and their weights as parameters: ``conv1/weight``. Names
    of classes are a JSON list in the metadata ``class_names``. Training state, loss and history are not written.

    Args:
        model: what to write.
        path: the file.
        boxes: of a model for the loss CenterNet, have the file itself pick the peaks: its outputs are then the best so
            many ``boxes`` (N, boxes, 4), left, top, right and bottom as parts of the picture, their ``scores`` and
            their ``classes`` (N, boxes), by falling score.

    Raises:
        OptionError: it is no Model, or a layer has no form in ONNX; the error names it. Or ``boxes`` is no count, or
            the model was trained with another loss than CenterNet.
        ShapeError: there are to be boxes, and the output is none for CenterNet.
        FileError: the name is that of another format, or the file cannot be written, or would be larger than ONNX
            allows (2 GiB).
    """
    atomic.check_name(path, "blobnet.onnx.save")
    proto = to_proto(model, boxes)
    size = proto.ByteSize()
    if size > _MAX_BYTES:
        rule = "an ONNX file must be smaller than 2 GiB"
        raise FileError(
            atomic.subject_of(path), rule, needed=format_bytes(size), hint="model.save writes HDF5 of any size."
        )
    atomic.write(path, proto.SerializeToString(deterministic=True))


def to_proto(model: Model, boxes: int | None = None) -> Any:
    """The model as an ``onnx.ModelProto``; errors as for :func:`save`."""
    check_model(model, "onnx.save")
    onnx, graph = package(), model.graph
    proto = model_of(graph.origin, "onnx.save")
    proto.graph.name = proto.graph.name or "blobnet"
    proto.producer_name, proto.producer_version, proto.ir_version = PRODUCER, blobnet.__version__, IR_VERSION
    proto.opset_import.extend([onnx.helper.make_opsetid("", OPSET)])
    writer = _Writer(model, proto.graph)
    for vertex in graph.vertices:
        writer.add(vertex)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in writer.arrays.items())
    if boxes is not None:
        output = graph.output.shape
        check_gives_boxes(model.loss, output, model.class_names)
        add_peaks(proto.graph, output, check_count("onnx.save", "boxes", boxes))
    if model.class_names:
        names = [name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in model.class_names]
        proto.metadata_props.add(key=CLASS_NAMES, value=json.dumps(names))
    return proto


@dataclass(frozen=True)
class _End:
    """An input or output of a file.

    Attributes:
        name: in the file.
        type: of its elements there, by ONNX's number.
        inner: its shape in the model, where all is float32; None is the batch.
        shape: that of the file, but for the order of its axes.
        is_turned: True if the file has units last.
    """

    name: str
    type: int
    inner: _Axes
    shape: _Axes
    is_turned: bool

    @classmethod
    def of(cls, origin: Mapping[str, Any], own: str, vertex: Vertex, items: Any, taken: Collection[str] = ()) -> _End:
        """Return the end that a model calls ``own``; write its description to ``items``, under a free name.

        ``origin`` is what the file that the model was read from says of such ends.
        """
        onnx, said = package(), origin.get(own, {})
        inner: _Axes = (None, *vertex.shape.dimensions)
        shape = tuple(said.get("shape", ()))
        if not said or math.prod(size or 1 for size in shape) != vertex.shape.elements:
            shape = inner  # It has got other sizes since: with_classes, say.
        is_turned = len(shape) == 4 and said.get("units_last") is True
        name = said.get("name", own)
        item = next((item for item in items if item.name == name), None)
        item = items.add() if item is None else item
        item.name = f"{name}_output" if name in taken else name
        before = item.type.tensor_type
        kind = before.elem_type or onnx.TensorProto.FLOAT
        said_axes = [axis.dim_param for axis in before.shape.dim]
        names = said_axes if len(said_axes) == len(shape) else [""] * len(shape)
        sizes = [shape[axis] for axis in TO_LAST] if is_turned else shape
        sizes = [(name or BATCH) if size is None else size for name, size in zip(names, sizes, strict=True)]
        item.type.CopyFrom(onnx.helper.make_tensor_type_proto(kind, sizes))
        return cls(item.name, kind, inner, shape, is_turned)

    @property
    def is_inner(self) -> bool:
        """True if the file has it as the model has."""
        return self.type == package().TensorProto.FLOAT and self.shape == self.inner and not self.is_turned


class _Writer:
    """Adds vertices to an ``onnx.GraphProto``, its inputs and outputs first, and collects the arrays that they read."""

    def __init__(self, model: Model, proto: Any) -> None:
        self.graph: Graph = model.graph
        self.weights = model.weights
        self.arrays: dict[str, Any] = {}
        self._nodes = proto.node
        ends: list[dict[int, _End]] = []
        for side, vertices, items in (
            ("inputs", self.graph.inputs, proto.input),
            ("outputs", self.graph.outputs, proto.output),
        ):
            origin, taken = self.graph.origin.get(side, {}), [end.name for found in ends for end in found.values()]
            ends.append({own.index: _End.of(origin, name, own, items, taken) for name, own in vertices.items()})
        inputs, self._outputs = ends
        #: The names of inputs and outputs, which no other value may have.
        self._public = {item.name for items in (proto.input, proto.output) for item in items}
        self._taken, self._renamed = set(self._public), dict[str, str]()
        self._values: dict[int, str] = {}
        self._samples = {index: self._entering(end) for index, end in inputs.items()}

    def add(self, vertex: Vertex) -> None:
        """Adds the nodes of a vertex."""
        layer, graph = vertex.layer, self.graph
        place = Place(
            layer,
            vertex.name,
            [self._values[source] for source in vertex.inputs],
            graph.input_shapes(vertex),
            vertex.shape,
            {spec.name: self.weights[vertex.parameter(spec.name)] for spec in graph.parameters(vertex)},
            self._samples.get(vertex.index, next(iter(self._samples.values()))),
        )
        result, end = _add_nodes(place), self._outputs.get(vertex.index)
        if end and not any(output == result for _, _, output, _ in place.nodes):
            result = place.node("Identity", result)
        # What a vertex gives is called as it is.
        wanted = end.name if end and end.is_inner else self._free(vertex.name)
        computing = [output for operator, _, output, _ in place.nodes if operator not in _SHAPING]
        named = place.main or (computing[-1] if computing else result)
        made = [output for _, _, output, _ in place.nodes]
        names = {name: self._inner(name) for name in (*place.arrays, *made)}
        names |= {result: wanted} if result in made else {}
        for operator, inputs, output, attributes in place.nodes:
            name = vertex.name if output == named else output
            self._add(operator, [names.get(item, item) for item in inputs], names[output], name, **attributes)
        self.arrays |= {names[name]: np.asarray(array, order="C") for name, array in place.arrays.items()}
        self._values[vertex.index] = names.get(result, result)
        if end and not end.is_inner:
            self._leaving(wanted, end)

    def _add(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str,
        name: str = "",
        *,
        output_place: int = 0,
        **attributes: Any,
    ) -> str:
        name = name or f"{output}/end"  # No layer's name has a '/'.
        outputs = [*[""] * output_place, output]
        self._nodes.append(package().helper.make_node(operator, inputs, outputs, name=name, **attributes))
        return output

    def _entering(self, end: _End) -> str:
        """The name of an input's samples as the model has them."""
        value, kind = end.name, package().TensorProto.FLOAT
        if end.type != kind:
            value = self._add("Cast", [value], self._free(f"{end.name}_float"), to=kind)
        if end.is_turned:
            value = self._add("Transpose", [value], self._free(f"{end.name}_turned"), perm=TO_FIRST)
        return self._reshaped(value, end.shape, end.inner, end.name)

    def _leaving(self, value: str, end: _End) -> None:
        """Gives a value of the model the shape and type that an output has in the file."""
        value = self._reshaped(value, end.inner, end.shape, end.name)
        if end.is_turned:
            value = self._add("Transpose", [value], self._free(f"{end.name}_turned"), perm=TO_LAST)
        if end.type != package().TensorProto.FLOAT:
            value = self._add("Cast", [value], self._free(f"{end.name}_cast"), to=end.type)
        self._nodes[-1].output[0] = end.name

    def _reshaped(self, value: str, before: _Axes, wanted: _Axes, name: str) -> str:
        """A value in another shape; what has no batch is one sample."""
        if before == wanted:
            return value
        sizes, batch = self._free(f"{name}_sizes"), 0 if None in before else 1
        self.arrays[sizes] = np.array([batch if size is None else size for size in wanted], np.int64)
        return self._add("Reshape", [value, sizes], self._free(f"{name}_shaped"))

    def _inner(self, name: str) -> str:
        """The name of an array, or of a value within a layer: another one where an input or output is called so."""
        if name not in self._public:
            return name
        return self._renamed.get(name) or self._renamed.setdefault(name, self._free(name))

    def _free(self, name: str) -> str:
        """A name like that which no other value has."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _add_nodes(place: Place) -> str:
    """The nodes of a layer; the name of their result."""
    layer = place.layer
    form, contraction = FORMS.get(layer.kind), layer.contraction(place.shapes)
    if form:
        return form(place)
    if contraction:
        return add_statements(place, contraction.program, contraction.inputs)
    hint = "a model up to the layer before it can be written: model.outputs_of(name); and "
    hint += "blobnet.onnx.forms.FORMS takes a function for a kind of layer of your own."
    raise OptionError(layer.subject, "the layer must have a form in ONNX", kind=layer.kind, hint=hint)
