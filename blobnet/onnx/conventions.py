"""What ``save`` writes of a model besides its layers, and ``load`` takes back: numbers of inputs, names of classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blobnet.blob import FloatArray
from blobnet.onnx.reading import OWN_DOMAINS
from blobnet.onnx.values import Array

#: The metadata that is a JSON list of the names of classes.
CLASS_NAMES = "class_names"


def class_names(proto: Any, units: int) -> tuple[str, ...]:
    """The names in a file's metadata; none where there are not so many, or something else stands there."""
    texts = [item.value for item in proto.metadata_props if item.key == CLASS_NAMES]
    try:
        names = json.loads(texts[0]) if texts else []
    except (ValueError, RecursionError):
        return ()
    fits = isinstance(names, list) and len(names) == units and all(isinstance(name, str) for name in names)
    return tuple(names) if fits else ()


def take_normalization(graph: Any, array: Callable[[str], Array | None]) -> dict[str, tuple[FloatArray, FloatArray]]:
    """The mean and the deviation that a graph subtracts from an input and divides it by, before anything else.

    These nodes are left out of the graph: they are what an input layer does.

    Args:
        graph: an ``onnx.GraphProto``, which is changed.
        array: gives an initializer by its name, None where there is no such one.
    """
    found = {}
    outputs = {item.name for item in graph.output}
    for item in graph.input:
        sizes = [axis.dim_value for axis in item.type.tensor_type.shape.dim]
        if len(sizes) < 2:
            continue
        value, numbers = item.name, dict[str, FloatArray]()
        for operator in ("Sub", "Div"):
            readers = [node for node in graph.node if value in node.input]
            if len(readers) != 1 or value in outputs:
                break
            (node,) = readers
            is_step = node.op_type == operator and node.domain in OWN_DOMAINS and len(node.input) == 2
            own = array(node.input[1]) if is_step and node.input[0] == value else None
            if own is None or node.output[0] in outputs or not _fits(own, sizes, operator):
                continue
            numbers[operator] = own.reshape(-1).astype(np.float32)
            (after,) = node.output
            for other in graph.node:
                for place, name in enumerate(other.input):
                    if name == after:
                        other.input[place] = value
            graph.node.remove(node)
            units = len(numbers[operator])  # No array has as many as a file may say.
            mean, deviation = (numbers.get(name) for name in ("Sub", "Div"))
            found[item.name] = (
                np.zeros(units, np.float32) if mean is None else mean,
                np.ones(units, np.float32) if deviation is None else deviation,
            )
    return found


def _fits(array: Array, sizes: Sequence[int], operator: str) -> bool:
    """Whether numbers are one for each unit of an input, and such as an input layer takes."""
    units, rank = sizes[1], len(sizes) - 2
    shape = array.shape[1:] if array.ndim == rank + 2 and array.shape[:1] == (1,) else array.shape
    if shape != (units, *(1,) * rank) or array.dtype.kind != "f" or not np.isfinite(array).all():
        return False
    return operator == "Sub" or bool((array >= np.finfo(np.float32).tiny).all())
