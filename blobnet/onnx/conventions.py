"""Conventions of files beside operators: numbers of inputs, names of classes, where the units of pictures are, and the
origin: a file's description of itself and of its inputs and outputs, which a file that is written again keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.errors import OptionError
from blobnet.memory.blob import FloatArray
from blobnet.onnx.reading import OWN_DOMAINS, inner_graphs, package
from blobnet.onnx.values import Array, Tensor
from blobnet.support.checks import is_int
from blobnet.support.unit_axes import TO_FIRST, TO_LAST, has_units_last

#: The metadata that is a JSON list of the names of classes.
CLASS_NAMES = "class_names"
#: The producer of files that blobnet writes.
PRODUCER = "blobnet"


#: The fields of a file and of its graph that files which are written again keep.
_KEPT = ("doc_string", "domain", "metadata_props", "model_version")
_KEPT_OF_GRAPH = ("doc_string", "input", "metadata_props", "name", "output")


def head_of(proto: Any) -> Any:
    """Return what an ``onnx.ModelProto`` says besides its nodes and values, as another one."""
    known, kept = {item.name for item in proto.graph.initializer}, package().ModelProto()
    for source, target, names in ((proto, kept, _KEPT), (proto.graph, kept.graph, _KEPT_OF_GRAPH)):
        for field, value in source.ListFields():  # Those that the file has.
            if field.name not in names:
                continue
            if isinstance(value, str | bytes | int):
                setattr(target, field.name, value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
            else:
                own = (item for item in value if field.name != "input" or item.name not in known)
                getattr(target, field.name).extend(own)
    return kept


def origin_of(
    head: Any,
    inputs: Mapping[str, tuple[str, Tensor]],
    outputs: Mapping[str, tuple[str, Tensor]],
    units_last: Collection[str],
) -> dict[str, Any]:
    """Return what a file says besides its network, as plain data: ``Graph.origin``.

    ``{"model": ..., "inputs": ..., "outputs": ...}``: the head in protobuf's JSON, and for each of the model's inputs
    and outputs its ``name`` in the file, its ``shape``, in which None is the batch, and whether the file has
    ``units_last`` there.

    Args:
        head: of the file.
        inputs: the model's inputs by name: their names in the file, and the tensors that they are there.
        outputs: the same of the outputs.
        units_last: the names in the file of those that were turned.
    """
    from google.protobuf.json_format import MessageToDict

    def described(ends: Mapping[str, tuple[str, Tensor]]) -> dict[str, Any]:
        found = {}
        for own, (name, tensor) in ends.items():
            shape = [None if axis == tensor.at else size for axis, size in enumerate(tensor.axes)]
            found[own] = {"name": name, "shape": shape, "units_last": name in units_last}
        return found

    return {"model": MessageToDict(head), "inputs": described(inputs), "outputs": described(outputs)}


def model_of(origin: Mapping[str, Any], subject: str) -> Any:
    """The ``onnx.ModelProto`` that an origin begins a file with; an empty one where there is no origin.

    Raises:
        OptionError: it is none.
    """
    from google.protobuf.json_format import ParseDict, ParseError

    try:
        for side in ("inputs", "outputs"):
            for end in origin.get(side, {}).values():
                sizes = [size for size in end["shape"] if size is not None]
                if not isinstance(end["name"], str) or not all(is_int(size, 1) for size in sizes):
                    raise ValueError(end)
        return ParseDict({**origin.get("model", {})}, package().ModelProto())
    except (ParseError, AttributeError, KeyError, TypeError, ValueError) as error:
        rule = "what a model keeps of the ONNX file that it was read from must be whole"
        raise OptionError(subject, rule, cause=error, hint="model.graph.origin has it.") from error


def class_names(proto: Any, units: int) -> tuple[str, ...]:
    """The names in a file's metadata; none where there are not so many, or something else stands there."""
    texts = [item.value for item in proto.metadata_props if item.key == CLASS_NAMES]
    try:
        names = json.loads(texts[0]) if texts else []
    except (ValueError, RecursionError):
        return ()
    fits = isinstance(names, list) and len(names) == units and all(isinstance(name, str) for name in names)
    return tuple(names) if fits else ()


def entries_of(graph: Any) -> list[Any]:
    """Return the inputs of a graph that it has no initializers for."""
    known = {item.name for item in graph.initializer}
    return [item for item in graph.input if item.name not in known]


def take_normalization(proto: Any, array: Callable[[str], Array | None]) -> dict[str, tuple[FloatArray, FloatArray]]:
    """The mean and the deviation of the inputs that a file normalises before anything else, by numbers of its own.

    The nodes that do so are left out of the graph: they are what an input layer does.

    Args:
        proto: an ``onnx.ModelProto``, which is changed.
        array: gives an initializer by its name, None where there is no such one.
    """
    found, graph = {}, proto.graph
    # What blobnet wrote has a Sub and a Div by unit; other steps there are layers.
    is_own = proto.producer_name == PRODUCER
    first_only, either = ("Sub", "Div"), () if is_own else ("Add", "Mul")
    outputs = {item.name for item in graph.output}
    for item in entries_of(graph):
        sizes = [axis.dim_value for axis in item.type.tensor_type.shape.dim]
        value, mean, deviation = item.name, np.zeros(1), np.ones(1)
        while value not in outputs:
            readers = [node for node in graph.node if _renamed(node, {value: value})]
            kinds = [node.op_type for node in readers if node.domain in OWN_DOMAINS]
            if len(readers) != 1 or len(kinds) != 1 or readers[0].output[0] in outputs:
                break
            (node,), (kind,) = readers, kinds
            if kind == "Identity" or (kind == "Cast" and node.attribute[0].i == package().TensorProto.FLOAT):
                value = node.output[0]  # Of whole numbers, say, which the device converts.
                continue
            others = [name for name in node.input if name != value]
            is_step = len(others) == 1 and (kind in either or (kind in first_only and node.input[0] == value))
            own = _by_unit(array(others[0]), sizes, 0 if is_own else _MAX_UNITS) if is_step else None
            if own is None:
                break
            if kind in either and own.size > 1 and sum(others[0] in other.input for other in graph.node) > 1:
                break  # A vector that others read, too, is a parameter.
            with np.errstate(divide="ignore"):
                scaled = deviation * own if kind == "Div" else deviation / own if kind == "Mul" else deviation
            if kind in ("Add", "Sub"):
                mean = mean + own * deviation * (1 if kind == "Sub" else -1)
            if not (scaled >= np.finfo(np.float32).tiny).all() or not (scaled <= np.finfo(np.float32).max).all():
                break
            deviation = scaled
            for other in graph.node:
                _renamed(other, {node.output[0]: value})
            graph.node.remove(node)
            units = np.zeros(sizes[1])
            found[item.name] = (mean + units).astype(np.float32), (deviation + units).astype(np.float32)
    return found


#: Operators that do the same to each value of a picture, or of a unit: the axes may be turned after them.
_OF_VALUES = frozenset(
    ["Add", "Cast", "Clip", "DequantizeLinear", "Div", "Identity", "Mul", "QuantizeLinear", "Relu", "Sub"]
)


def put_units_first(graph: Any, array: Callable[[str], Array | None]) -> set[str]:
    """Have a graph of pictures with units last, as TensorFlow's are, take them as (samples, units, height, width).

    The graph's own transpose goes; a graph without one gets one in front of what reads the pictures. An output that
    is transposed at the end is given with units first, too.

    Args:
        graph: an ``onnx.GraphProto`` with one input, which is changed.
        array: gives an initializer by its name, None where there is no such one.

    Returns:
        The names of the input, and of outputs, that were turned; none where it has no such pictures and stays as it is.
    """
    from onnx import helper, numpy_helper

    entries = entries_of(graph)
    outputs = {item.name: item.type.tensor_type.shape.dim for item in graph.output}
    sizes = entries[0].type.tensor_type.shape.dim if len(entries) == 1 else []
    if not has_units_last([axis.dim_value for axis in sizes]) or entries[0].name in outputs:
        return set()
    units = sizes[3].dim_value
    _reorder(sizes, TO_FIRST)
    nodes, placed, turned = list(graph.node), set[str](), {entries[0].name}
    del graph.node[:]
    last_of = {entries[0].name: f"{entries[0].name}/units_last"}  # Of what has units first, for who needs them last.
    for node in nodes:
        of_values = (
            node.op_type in _OF_VALUES and last_of.keys() & {*node.input} and not outputs.keys() & {*node.output}
        )
        numbers = {name: array(name) for name in node.input if of_values and name and name not in last_of}
        if node.op_type == "Transpose" and node.input[0] in last_of and _order(node) == TO_FIRST:
            _become_identity(node)
        elif of_values and all(own is not None and _is_of_units(own, units, node.op_type) for own in numbers.values()):
            last_of[node.output[0]] = f"{node.output[0]}/units_last"
            for place, name in enumerate(node.input):
                own = numbers.get(name)
                if own is not None and own.size == units:
                    node.input[place] = f"{node.output[0]}/{name}/units_first"
                    graph.initializer.append(numpy_helper.from_array(own.reshape(-1, 1, 1), node.input[place]))
        else:
            for name in sorted(_renamed(node, last_of) - placed):
                graph.node.append(helper.make_node("Transpose", [name], [last_of[name]], perm=TO_LAST))
                placed.add(name)
        if _order(node) == TO_LAST and node.output[0] in outputs:
            _become_identity(node)
            _reorder(outputs[node.output[0]], TO_FIRST)
            turned.add(node.output[0])
        graph.node.append(node)
    return turned


def _order(node: Any) -> tuple[int, ...]:
    """The order of axes that a Transpose asks for; () of all other nodes."""
    found = [tuple(item.ints) for item in node.attribute if node.op_type == "Transpose" and item.name == "perm"]
    return found[0] if found else ()


def _become_identity(node: Any) -> None:
    node.op_type = "Identity"
    del node.attribute[:]


def _reorder(dimensions: Any, order: Sequence[int]) -> None:
    """Puts the axes of a shape into another order, if it has as many."""
    if len(dimensions) == len(order):
        kept = [type(item).FromString(item.SerializeToString()) for item in dimensions]
        for place, axis in enumerate(order):
            dimensions[place].CopyFrom(kept[axis])


def _renamed(node: Any, names: Mapping[str, str]) -> set[str]:
    """Has a node, and the graphs within it, read others of ``names``; gives those that they read."""
    found = names.keys() & {*node.input}
    for place, name in enumerate(node.input):
        node.input[place] = names.get(name, name)
    for graph in inner_graphs(node):
        for inner in graph.node:
            found |= _renamed(inner, names)
        for item in graph.output:
            found |= names.keys() & {item.name}
            item.name = names.get(item.name, item.name)
    return found


def _is_of_units(array: Array, units: int, kind: str) -> bool:
    """Return True if numbers beside pictures with units last are a single one, or one for each unit."""
    is_one = array.size == 1 and array.ndim <= 4
    return is_one or (
        array.shape in [(*(1,) * axes, units) for axes in range(4)] and not kind.endswith("uantizeLinear")
    )


#: Units of an input whose numbers may be one for all.
_MAX_UNITS = 2**16


def _by_unit(array: Array | None, sizes: Sequence[int], most: int) -> npt.NDArray[np.float64] | None:
    """Return numbers beside an input of ``sizes`` as a vector: one a unit, or one for up to ``most`` units; or None."""
    if array is None or array.dtype.kind != "f" or not 2 <= len(sizes) >= array.ndim or not np.isfinite(array).all():
        return None
    is_one = array.size == 1 and 1 <= sizes[1] <= most
    is_each = (1,) * (len(sizes) - array.ndim) + array.shape == (1, sizes[1], *(1,) * (len(sizes) - 2))
    return array.reshape(-1).astype(np.float64) if is_one or is_each else None
