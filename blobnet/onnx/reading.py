"""ONNX files: from bytes that nobody vouches for to a checked graph of nodes.

Nothing of a file is run, and nothing outside its folder is read. A file may have 2 GiB, as protobuf has it, its
external data besides as many bytes as their files have.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from blobnet.errors import FileError, OptionError, extra, first_few, warn
from blobnet.files import atomic
from blobnet.onnx import host
from blobnet.onnx.operators import OPERATORS
from blobnet.onnx.values import Array

if TYPE_CHECKING:
    from onnx import ModelProto

#: The operator sets that are read as they are: from here to the newest that the package knows. It converts older ones.
OLDEST_OPSET = 7
#: Nodes that a graph may have, its functions written out.
MAX_NODES = 100_000
#: Those of them that ONNX defines by others: it takes milliseconds to write one out.
MAX_COMPOSITES = 1_000
#: Nodes that ONNX looks at to write out those whose text depends on the types of their inputs: for each all before it.
MAX_LOOKS = 5_000_000
#: Nodes that one of these becomes, about; on average half the others lie before it.
_WRITTEN = 100
#: The domains of ONNX's own operators.
OWN_DOMAINS = ("", "ai.onnx")
#: Characters of another package's message that errors repeat.
_SHOWN = 200


def package() -> Any:
    """The package ``onnx``.

    Raises:
        OptionError: it is not installed.
    """
    try:
        for part in (
            "checker",
            "external_data_helper",
            "inliner",
            "numpy_helper",
            "shape_inference",
            "version_converter",
        ):
            importlib.import_module(f"onnx.{part}")
        return importlib.import_module("onnx")
    except ImportError as error:
        rule = "the package must be installed for ONNX files"
        raise OptionError("onnx", rule, cause=error, hint=extra("onnx")) from error


def read(file: str | os.PathLike[str] | ModelProto, subject: str | None = None) -> Any:
    """A model that was checked, an ``onnx.ModelProto``, with its external data, and its functions written out.

    Args:
        file: its path; or a model, of which all data was read, and which stays as it is.
        subject: its name in errors; the path by default.

    Raises:
        FileError: the file is missing, damaged or none of ONNX; its external data is missing, too short or elsewhere.
        OptionError: it is no path and no model, or the package ``onnx`` is missing.
    """
    onnx, folder = package(), None
    model: Any = file
    if not isinstance(model, onnx.ModelProto):
        own = atomic.subject_of(file)
        subject = subject or own
        model, folder = _parsed(Path(own), subject), Path(own).resolve().parent
    subject = subject or "onnx"
    check(model, subject)
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(tensor, folder, subject)
    bare = [item for item in (*model.graph.input, *model.graph.output) if not _has_shape(item)]
    kept = [item.SerializeToString() for item in bare]
    try:
        if folder is not None and not bare:
            onnx.checker.check_model(os.fspath(cast(Any, file)))
        if folder is not None:
            onnx.external_data_helper.load_external_data_for_model(model, str(folder))
        if folder is None or bare:
            for item in bare:  # The checker wants shapes, which nobody needs.
                item.type.tensor_type.elem_type = item.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
                item.type.tensor_type.shape.SetInParent()
            onnx.checker.check_model(model)
    except Exception as error:
        raise FileError(subject, "the model must be one that ONNX's checker accepts", cause=_shown(error)) from error
    finally:
        for item, data in zip(bare, kept, strict=True):
            item.ParseFromString(data)
    model = written_out(model if opset(model) >= OLDEST_OPSET else _converted(model, subject), subject)
    quantised = [
        node.name or node.output[0]
        for node in model.graph.node
        if "uantize" in node.op_type or node.op_type.startswith("QLinear")
    ]
    if quantised:
        rule = "its quantised values are computed in float32, rounded as the file says: as exact, and not faster"
        warn(subject, rule, nodes=len(quantised))
    return model


def _has_shape(item: Any) -> bool:
    """Return True if a file says of an input or output how many axes it has, or that it is no tensor."""
    return item.type.WhichOneof("value") not in (None, "tensor_type") or item.type.tensor_type.HasField("shape")


def _converted(model: Any, subject: str) -> Any:
    """A model of an old operator set in the oldest one that is read, by ONNX's own converter.

    Raises:
        FileError: that does not know an operator of the model.
    """
    onnx, sized = package(), package().ModelProto()
    sized.CopyFrom(model)
    open_axes: dict[str, int] = {}
    for axis in (axis for item in sized.graph.input for axis in item.type.tensor_type.shape.dim):
        if axis.dim_value < 1:  # The converter wants sizes, by which it sees what goes together.
            axis.dim_value = open_axes.setdefault(axis.dim_param or str(len(open_axes)), 1009 + len(open_axes))
    del sized.graph.value_info[:]
    for item in sized.graph.output:
        item.type.tensor_type.ClearField("shape")
    try:
        _add_axes(sized.graph, onnx.shape_inference.infer_shapes(sized).graph)
        found = onnx.version_converter.convert_version(sized, OLDEST_OPSET)
    except Exception as error:
        rule = f"ONNX's version converter must know how to bring a model from its operator set to {OLDEST_OPSET}"
        hint = "export the network again, with a newer operator set."
        raise FileError(subject, rule, opset=opset(model), cause=_shown(error), hint=hint) from error
    del found.graph.input[:], found.graph.output[:], found.graph.value_info[:]
    found.graph.input.extend(model.graph.input)
    found.graph.output.extend(model.graph.output)
    return found


def _add_axes(graph: Any, inferred: Any) -> None:
    """Gives second inputs that begin at an axis of the first, as before operator set 7, axes of size 1 after it.

    The converter leaves the slopes of a PRelu as they are, and takes no axis but 0. ``inferred`` has the shapes.
    """
    items = (*inferred.input, *inferred.value_info, *inferred.output)
    axes = {
        item.name: len(item.type.tensor_type.shape.dim) for item in items if item.type.tensor_type.HasField("shape")
    }
    axes |= {item.name: len(item.dims) for item in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        own = {item.name: item for item in node.attribute}
        if {"axis", "broadcast"} <= own.keys() or node.op_type == "PRelu":
            first, second = (axes[name] for name in node.input)
            start = own["axis"].i if "axis" in own else 1
            more = first - (start + first if start < 0 else start) - second
            if more > 0 and second > 0:
                name = f"{node.output[0]}/axes"
                new = package().helper.make_node(
                    "Unsqueeze", [node.input[1]], [name], axes=[*range(second, second + more)]
                )
                graph.node.append(new)
                node.input[1] = name
            if "axis" in own:
                node.attribute.remove(own["axis"])
        graph.node.append(node)


def _parsed(path: Path, subject: str) -> Any:
    """The model that the bytes of a file are."""
    start, size = atomic.opening(path)
    kind, hint = atomic.kind_of(path, start)
    if kind not in (atomic.ONNX, atomic.UNKNOWN):
        raise FileError(subject, f"the file must be an ONNX model, but this is {kind}", hint=hint)
    try:
        data = path.read_bytes() if 0 < size < 2**31 else b""
    except OSError as error:
        raise FileError(subject, "the file must be one that can be read", cause=error) from error
    if not data:
        raise FileError(subject, "an ONNX file must have some bytes, and less than 2 GiB", bytes=size)
    model = package().ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        rule = "the file must be a whole ONNX model"
        raise FileError(subject, rule, bytes=len(data), cause=_shown(error)) from error
    return model


def check(model: Any, subject: str) -> None:
    """Check what ONNX's checker must not be asked, or does not ask.

    Raises:
        FileError: the model has none of the operator sets that can be read, names that are no text, functions that
            call themselves, or too many nodes.
    """
    newest = package().defs.onnx_opset_version()
    version = opset(model)
    if not 1 <= version <= newest:
        rule = f"the operator set of the model must be one of 1 to {newest}"
        hint = "onnx.version_converter.convert_version makes another one of it."
        raise FileError(subject, rule, opset=version, hint=hint)
    if any(item.sparse_initializer for item in _graphs(model) if hasattr(item, "sparse_initializer")):
        rule, hint = (
            "initializers must hold all of their values",
            "onnx.numpy_helper.from_array makes such of an array.",
        )
        raise FileError(subject, rule, sparse=len(model.graph.sparse_initializer), hint=hint)
    _check_nodes(model, subject)


def written_out(model: Any, subject: str) -> Any:
    """The model with its own functions, and what ONNX defines by other operators and blobnet lacks, in their nodes.

    Raises:
        FileError: a function does not fit its calls.
    """
    onnx, version, given = package(), opset(model), model
    if model.functions:
        model = _completed(model, {(item.domain, item.name): item.attribute_proto for item in model.functions})
        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as error:
            raise FileError(subject, "the functions of a model must fit their calls", cause=_shown(error)) from error
    for _ in range(3):
        kinds = Counter(node.op_type for graph in _graphs(model) for node in graph.node if node.domain in OWN_DOMAINS)
        schemas = {("", kind): schema for kind in sorted(kinds) if (schema := _composite(onnx, kind, version))}
        if not schemas:
            break
        count = sum(kinds[kind] for _, kind in schemas)
        if count > MAX_COMPOSITES:
            rule = f"a model may have {MAX_COMPOSITES:,} nodes of operators that ONNX defines by others"
            raise FileError(subject, rule, nodes=count, operators=first_few([kind for _, kind in schemas], 4))
        typed = [kind for (_, kind), schema in schemas.items() if schema.has_context_dependent_function]
        nodes, calls = sum(kinds.values()), sum(kinds[kind] for kind in typed)
        if calls * (nodes + _WRITTEN * calls // 2) > MAX_LOOKS:
            rule = "operators that ONNX writes out by the types of their inputs take time with all nodes before each"
            hint = "export the network with the operators that these are made of, or an older operator set."
            received = {"nodes": nodes, "of_these": calls, "operators": first_few(typed, 4)}
            raise FileError(subject, rule, hint=hint, **received)
        defaults = {key: [item.default_value for item in found.attributes.values()] for key, found in schemas.items()}
        model = _completed(model, defaults)
        for key in schemas:
            # Some need types that ONNX does not find: then the node is what is not supported.
            with contextlib.suppress(Exception):
                model = onnx.inliner.inline_selected_functions(model, [key], inline_schema_functions=True)
    if model is not given:
        _check_nodes(model, subject)
    return model


def _completed(model: Any, defaults: Mapping[tuple[str, str], Iterable[Any]]) -> Any:
    """The model, whose nodes have the attributes that they leave out, by domain and operator.

    ONNX writes functions out with what their nodes have, and without what they do not.
    """
    own = package().ModelProto()
    own.CopyFrom(model)
    for node in (node for graph in _graphs(own) for node in graph.node):
        given = {attribute.name for attribute in node.attribute}
        others = defaults.get(("" if node.domain in OWN_DOMAINS else node.domain, node.op_type), ())
        node.attribute.extend(item for item in others if item.type and item.name not in given)
    return own


def opset(model: Any) -> int:
    """The version of ONNX's own operators in a model."""
    return max((int(item.version) for item in model.opset_import if item.domain in OWN_DOMAINS), default=0)


def _composite(onnx: Any, kind: str, version: int) -> Any:
    """The schema of an operator that ONNX defines by others, if blobnet has none of its own; or None."""
    if kind in OPERATORS or kind in host.KINDS or not onnx.defs.has(kind, version, ""):
        return None
    schema = onnx.defs.get_schema(kind, version, "")
    return schema if schema.has_function or schema.has_context_dependent_function else None


def array_of(tensor: Any, subject: str) -> Array:
    """The values of an ``onnx.TensorProto``.

    Raises:
        FileError: there are more or fewer than its shape says, or it has a type that NumPy does not have.
    """
    from onnx.numpy_helper import to_array

    try:
        array: Array = to_array(tensor)
    except Exception as error:
        rule = "a tensor must have as many values as its shape says"
        received = {"tensor": tensor.name, "shape": tuple(tensor.dims), "cause": _shown(error)}
        raise FileError(subject, rule, **received) from error
    return array


def _graphs(model: Any) -> Iterator[Any]:
    """The graph of a model, its functions, and all graphs within their nodes."""
    stack = [model.graph, *model.functions]
    while stack:
        item = stack.pop()
        yield item
        stack += [graph for node in item.node for graph in inner_graphs(node)]


def inner_graphs(node: Any) -> list[Any]:
    """The graphs in the attributes of a node."""
    # NOTE: of others, ``g`` is an empty graph, which would be made for each of thousands.
    graphs = ([item.g, *item.graphs] if item.HasField("g") else item.graphs for item in node.attribute)
    return [graph for own in graphs for graph in own]


def _tensors(model: Any) -> Iterator[Any]:
    """All tensors of a model, those in attributes and in graphs within nodes too."""
    for item in _graphs(model):
        sparse: list[Any] = []
        if isinstance(item, package().GraphProto):
            yield from item.initializer
            sparse += item.sparse_initializer
        for attribute in (attribute for node in item.node for attribute in node.attribute):
            yield from (attribute.t, *attribute.tensors)
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
        for tensor in sparse:
            yield from (tensor.values, tensor.indices)


def _check_external(tensor: Any, folder: Path | None, subject: str) -> None:
    """Raises FileError unless a tensor's data is a part of a file in the folder of the model."""
    if folder is None:
        rule, hint = "a model that is no file must have all of its data", "onnx.load(path) reads it, or give the path."
        raise FileError(subject, rule, tensor=tensor.name, hint=hint)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    try:
        path = (folder / location).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # A link to itself, say, or a name with a NUL.
        rule = "external data must have the name of a file"
        raise FileError(subject, rule, tensor=tensor.name, location=location, cause=error) from error
    inside = bool(location) and not Path(location).is_absolute() and path.is_relative_to(folder) and path != folder
    if not inside:
        rule = "external data must lie in the folder of the model"
        raise FileError(subject, rule, tensor=tensor.name, location=location)
    try:
        if path.exists() and not path.is_file():  # Of a pipe one would wait for values for ever.
            raise ValueError("it is something else")
        offset, size = int(entries.get("offset", 0)), path.stat().st_size
        length = int(entries["length"]) if "length" in entries else size - offset
    except (OSError, ValueError) as error:
        rule = "external data must be a file, with whole numbers for offset and length"
        raise FileError(subject, rule, tensor=tensor.name, location=location, cause=error) from error
    if offset < 0 or length < 0 or offset + length > size:
        rule = "external data must lie within its file"
        received = {"tensor": tensor.name, "offset": offset, "length": length, "bytes": size}
        raise FileError(subject, rule, **received)


def _check_nodes(model: Any, subject: str) -> None:
    """Raises FileError where functions call themselves, or written out are too many nodes, or names are no text."""
    texts = [item.name for ends in (model.graph.input, model.graph.output, model.graph.initializer) for item in ends]
    functions = {(item.domain, item.name): item.node for item in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_ones: list[tuple[str, str]] = []

    def size(nodes: Any, depth: int) -> int:
        total = 0
        for node in nodes:
            texts.extend((node.name, node.op_type, node.domain, *node.input, *node.output))
            key = (node.domain, node.op_type)
            if key in open_ones or depth > len(functions):
                rule = "functions of a model must not call themselves"
                raise FileError(subject, rule, function=first_few((name for _, name in open_ones), 4))
            if key in functions and key not in sizes:
                open_ones.append(key)
                sizes[key] = size(functions[key], depth + 1)
                open_ones.pop()
            inner = sum(size(graph.node, depth) for graph in inner_graphs(node))
            total += sizes.get(key, 1) + inner
        return total

    nodes = size(model.graph.node, 0)
    if nodes > MAX_NODES:
        raise FileError(subject, f"a model may have {MAX_NODES:,} nodes", nodes=nodes)
    # What is not UTF-8 comes as bytes.
    if broken := [text for text in texts if not isinstance(text, str)]:
        raise FileError(subject, "names must be text", names=first_few(broken, 3))


def _shown(error: Exception) -> str:
    """Another package's message, on one line and not too long."""
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
