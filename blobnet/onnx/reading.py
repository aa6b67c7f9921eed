"""ONNX files: from bytes that nobody vouches for to a checked graph of nodes.

Nothing of a file is run, and nothing outside its folder is read. A file may have 2 GiB, as protobuf has it, its
external data besides as many bytes as their files have.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blobnet.errors import FileError, OptionError, first_few
from blobnet.onnx import host
from blobnet.onnx.operators import OPERATORS
from blobnet.onnx.values import Array

#: The operator sets that can be read: from here to the newest that the package knows.
OLDEST_OPSET = 7
#: Nodes that a graph may have, its functions written out.
MOST_NODES = 100_000
#: Characters of another package's message that errors repeat.
_SHOWN = 200


def package() -> Any:
    """The package ``onnx``.

    Raises:
        OptionError: it is not installed.
    """
    try:
        for part in ("checker", "external_data_helper", "inliner", "numpy_helper"):
            importlib.import_module(f"onnx.{part}")
        return importlib.import_module("onnx")
    except ImportError as error:
        hint = "pip install 'blobnet[onnx]'"
        raise OptionError("onnx", "the package must be installed for ONNX files", cause=error, hint=hint) from error


def read(path: str | os.PathLike[str]) -> Any:
    """The model in a file, an ``onnx.ModelProto``, with its external data.

    Raises:
        FileError: the file is missing, damaged or none of ONNX; its external data is missing, too short or elsewhere.
        OptionError: the package ``onnx`` is missing.
    """
    onnx, subject = package(), str(path)
    try:
        data = Path(path).read_bytes() if Path(path).stat().st_size < 2**31 else b""
    except OSError as error:
        raise FileError(subject, "the file must be one that can be read", cause=error) from error
    if not data:
        size = Path(path).stat().st_size
        raise FileError(subject, "an ONNX file must have some bytes, and less than 2 GiB", bytes=size)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        rule = "the file must be a whole ONNX model"
        raise FileError(subject, rule, bytes=len(data), cause=_shown(error)) from error
    check(model, subject)
    folder = Path(path).resolve().parent
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(tensor, folder, subject)
    try:
        onnx.checker.check_model(str(path))
        onnx.external_data_helper.load_external_data_for_model(model, str(folder))
    except Exception as error:
        raise FileError(subject, "the model must be one that ONNX's checker accepts", cause=_shown(error)) from error
    return written_out(model, subject)


def check(model: Any, subject: str) -> None:
    """What ONNX's checker must not be asked, or does not ask.

    Raises:
        FileError: the model has none of the operator sets that can be read, names that are no text, functions that
            call themselves, or too many nodes.
    """
    newest = package().defs.onnx_opset_version()
    version = opset(model)
    if not OLDEST_OPSET <= version <= newest:
        rule = f"the operator set of the model must be one of {OLDEST_OPSET} to {newest}"
        hint = "onnx.version_converter.convert_version makes another one of it."
        raise FileError(subject, rule, opset=version, hint=hint)
    _check_nodes(model, subject)


def written_out(model: Any, subject: str) -> Any:
    """The model with its own functions, and what ONNX defines by other operators and blobnet lacks, in their nodes.

    Raises:
        FileError: a function does not fit its calls.
    """
    onnx, version = package(), opset(model)
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as error:
            raise FileError(subject, "the functions of a model must fit their calls", cause=_shown(error)) from error
    for _ in range(3):
        others = {
            node.op_type
            for node in model.graph.node
            if node.domain in ("", "ai.onnx") and node.op_type not in OPERATORS and node.op_type not in host.KINDS
        }
        written = [("", kind) for kind in sorted(others) if _is_function(onnx, kind, version)]
        if not written:
            break
        for function in written:
            # Some need types that ONNX does not find: then the node is what is not supported.
            with contextlib.suppress(Exception):
                model = onnx.inliner.inline_selected_functions(model, [function], inline_schema_functions=True)
    return model


def opset(model: Any) -> int:
    """The version of ONNX's own operators in a model."""
    return max((int(item.version) for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)


def _is_function(onnx: Any, kind: str, version: int) -> bool:
    try:
        schema = onnx.defs.get_schema(kind, version, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def array_of(tensor: Any, subject: str) -> Array:
    """The values of an ``onnx.TensorProto``.

    Raises:
        FileError: there are more or fewer than its shape says, or it has a type that NumPy does not have.
    """
    onnx = package()
    try:
        array: Array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:
        rule = "a tensor must have as many values as its shape says"
        received = {"tensor": tensor.name, "shape": tuple(tensor.dims), "cause": _shown(error)}
        raise FileError(subject, rule, **received) from error
    return array


def _tensors(graph: Any) -> Iterator[Any]:
    """All tensors of a graph, those in attributes and in graphs within it too."""
    stack = [graph]
    while stack:
        item = stack.pop()
        yield from item.initializer
        for node in item.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                stack += [attribute.g, *attribute.graphs] if attribute.g.node or attribute.graphs else []


def _check_external(tensor: Any, folder: Path, subject: str) -> None:
    """Raises FileError unless a tensor's data is a part of a file in the folder of the model."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    path = (folder / location).resolve()
    inside = bool(location) and not Path(location).is_absolute() and path.is_relative_to(folder) and path != folder
    if not inside:
        rule = "external data must lie in the folder of the model"
        raise FileError(subject, rule, tensor=tensor.name, location=location)
    try:
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
            inner = sum(
                size(graph.node, depth)
                for attribute in node.attribute
                for graph in (attribute.g, *attribute.graphs)
                if graph.node
            )
            total += sizes.get(key, 1) + inner
        return total

    nodes = size(model.graph.node, 0)
    if nodes > MOST_NODES:
        raise FileError(subject, f"a model may have {MOST_NODES:,} nodes", nodes=nodes)
    # What is not UTF-8 comes as bytes.
    if broken := [text for text in texts if not isinstance(text, str)]:
        raise FileError(subject, "names must be text", names=first_few(broken, 3))


def _shown(error: Exception) -> str:
    """Another package's message, on one line and not too long."""
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
