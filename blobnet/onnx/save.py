"""ONNX files of models (docs/onnx.md)."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

import blobnet
from blobnet import files
from blobnet.errors import FileError, OptionError
from blobnet.graph import Graph, Vertex
from blobnet.model import Model, check_model
from blobnet.onnx.conventions import CLASS_NAMES
from blobnet.onnx.forms import FORMS
from blobnet.onnx.place import Place
from blobnet.onnx.reading import package
from blobnet.onnx.statements import add_statements
from blobnet.plan_report import readable

#: The version of ONNX's operators that is written, and that of the format which came with it.
OPSET, IR_VERSION = 20, 9
#: What the batch is called: its size is known when the file is run.
BATCH = "N"
#: Operators that compute nothing. Of a layer's others the last has its name, and so has what ``load`` makes of that.
_SHAPING = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
#: Protocol buffers hold no more.
_MOST_BYTES = 2**31 - 1


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Writes an ONNX file, all or nothing: the network as it predicts, its weights, and the names of its classes.

    Inputs and outputs are float32 (N, units[[[, depth], height], width]), N being the batch, by the names of the
    model's. What the input layer does to samples is part of it, as Sub and Div nodes. Nodes are called as layers,
    and their weights as parameters: ``conv1/weight``. Names of classes are a JSON list in the metadata ``class_names``.
    Training state, loss and history are not written.

    Raises:
        OptionError: it is no Model, or a layer has no form in ONNX; the error names it.
        FileError: the name is that of another format, or the file cannot be written, or would be larger than ONNX
            allows (2 GiB).
    """
    files.check_name(path, "blobnet.onnx.save")
    proto = to_proto(model)
    size = proto.ByteSize()
    if size > _MOST_BYTES:
        rule = "an ONNX file must be smaller than 2 GiB"
        raise FileError(files.subject_of(path), rule, needed=readable(size), hint="model.save writes HDF5 of any size.")
    files.write(path, proto.SerializeToString(deterministic=True))


def to_proto(model: Model) -> Any:
    """The model as an ``onnx.ModelProto``; errors as for :func:`save`."""
    check_model(model, "onnx.save")
    onnx, graph, writer = package(), model.graph, _Writer(model)
    helper = onnx.helper
    for vertex in graph.vertices:
        writer.add(vertex)
    proto = helper.make_model(
        helper.make_graph(
            writer.nodes,
            "blobnet",
            [_value(name, vertex) for name, vertex in graph.inputs.items()],
            [_value(writer.outputs[vertex.index], vertex) for vertex in graph.outputs.values()],
            [onnx.numpy_helper.from_array(array, name) for name, array in writer.arrays.items()],
        ),
        producer_name="blobnet",
        producer_version=blobnet.__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    if model.class_names:
        names = [name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in model.class_names]
        helper.set_model_props(proto, {CLASS_NAMES: json.dumps(names)})
    return proto


def _value(name: str, vertex: Vertex) -> Any:
    onnx = package()
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [BATCH, *vertex.shape.dimensions])


class _Writer:
    """Nodes, and the arrays that they read, of the vertices that were added."""

    def __init__(self, model: Model) -> None:
        self.graph: Graph = model.graph
        self.weights = model.weights
        self.nodes: list[Any] = []
        self.arrays: dict[str, Any] = {}
        public = dict.fromkeys(self.graph.inputs)
        #: The names of the results, which no other value may have.
        self.outputs = {
            vertex.index: f"{name}_output" if name in public else name for name, vertex in self.graph.outputs.items()
        }
        self._taken = {*public, *self.outputs.values()}
        self._values: dict[int, str] = {}

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
            next((name for name, entry in graph.entries if entry == vertex.index), graph.entries[0][0]),
        )
        result = _add_nodes(place)
        if vertex.index in self.outputs and not any(node[2] == result for node in place.nodes):
            result = place.node("Identity", result)
        # What a vertex gives is called as it is.
        wanted = self.outputs.get(vertex.index) or self._free(vertex.name)
        computing = [output for operator, _, output, _ in place.nodes if operator not in _SHAPING]
        named = computing[-1] if computing else result
        for operator, inputs, output, attributes in place.nodes:
            name = vertex.name if output == named else output
            outputs = [wanted if output == result else output]
            self.nodes.append(package().helper.make_node(operator, inputs, outputs, name=name, **attributes))
        self.arrays |= {name: np.asarray(array, order="C") for name, array in place.arrays.items()}
        self._values[vertex.index] = wanted if any(node[2] == result for node in place.nodes) else result

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
