"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blobnet import layers
from blobnet.onnx.operation import Operation, operator
from blobnet.onnx.values import Array, Tensor

#: The gates of ONNX, by their places among those of blobnet (and PyTorch).
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
#: The state at the last position of each sample.
_LAST = """function (Y[N, C, T], L[N, K]) -> (O) {{
    O[n, u, k : N, {units}, K] = +(Y[n, u + {first}, t] * (t + 1 == L[n, k]));
}}"""
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}


@operator("LSTM", "GRU")
def _recurrent(op: Operation) -> Sequence[Tensor]:
    tensor, weight, recurrent = op.tensor(0, 1), op.array(1), op.array(2)
    _check(op, tensor, recurrent)
    directions, _, units = recurrent.shape
    is_lstm, names = op.kind == "LSTM", ("", "reverse_")[:directions]
    arrays = {"weight": weight, "recurrent": recurrent}
    if op.given(3):
        inputs, products = np.split(op.array(3), 2, axis=1)
        arrays |= {"bias": inputs + products} if is_lstm else {"bias": inputs, "recurrent_bias": products}
    weights = {
        prefix + name: from_gates(op.kind, values[number])
        for number, prefix in enumerate(names)
        for name, values in arrays.items()
    }
    is_reverse = op.get("direction", "forward") == "reverse"
    layer = (layers.LSTM if is_lstm else layers.GRU)(
        units, bias=op.given(3), bidirectional=directions > 1, reverse=is_reverse
    )
    key = op.key_of(*(op.array(place) for place in (1, 2, 3) if op.given(place)))
    width = tensor.axes[0]
    columns = op.layer(layers.Permute((1, 0)), op.shaped(tensor), part="columns")
    lengths = [op.shaped(op.tensor(4))] if op.given(4) and isinstance(op.value(4), Tensor) else []
    node = op.layer(layer, columns, *lengths, weights=weights, key=key and (*key, op.get("direction", "")))
    rows = op.layer(layers.Permute((1, 0)), node, part="rows")
    found = [replace(tensor, node=rows, axes=(width, directions, 1, units), at=2, name="")]
    if any(op.outputs[1:]):
        ends = []
        for number in range(directions):
            first, is_back = number * units, bool(is_reverse or number)
            if lengths and not is_back:
                end = op.layer(layers.Contraction(_LAST.format(units=units, first=first)), node, *lengths, part="last")
            else:
                place = 0 if is_back else width - 1
                end = op.layer(layers.Slice(((first, first + units), (place, place + 1))), node, part="last")
            ends.append(end)
        last = op.layer(layers.Concat(), *ends, part="state") if directions > 1 else ends[0]
        found.append(replace(tensor, node=last, axes=(directions, 1, units), at=1, name=""))
    return found


def from_gates(kind: str, values: Array) -> Array:
    """Return an array whose first axis has ONNX's gates with those of blobnet."""
    parts = np.split(values, len(GATES[kind]))
    return np.concatenate([parts[GATES[kind].index(gate)] for gate in range(len(parts))])


def to_gates(kind: str, values: Array) -> Array:
    """Return an array whose first axis has blobnet's gates with those of ONNX."""
    parts = np.split(values, len(GATES[kind]))
    return np.concatenate([parts[gate] for gate in GATES[kind]])


def _check(op: Operation, tensor: Tensor, recurrent: Array) -> None:
    """Raises UnsupportedError for what the layers do not do."""
    directions = recurrent.shape[0]
    if tensor.at != 1 or tensor.axes[1] != 1 or op.get("layout", 0):
        op.mixed("the samples must be on axis 1 of (positions, samples, values)", shape=op.shape_of(tensor))
    if op.given(4) and isinstance(op.value(4), Tensor):
        op.require(op.tensor(4).is_plain, "lengths must be one number a sample", shape=op.shape_of(op.value(4)))
    elif op.given(4):
        op.require(
            bool((op.array(4) == tensor.axes[0]).all()), "lengths that are no input must be those of whole samples"
        )
    states = [place for place in (5, 6) if op.given(place)]
    op.require(not any(op.array(place).any() for place in states), "the first state must be zeros")
    op.require(not op.given(7), "gates must not see the memory (peepholes)")
    functions = _ACTIVATIONS[op.kind] * directions
    own = [str(name) for name in op.get("activations", functions)]
    op.require(own == functions, "the functions must be the usual ones", activations=", ".join(own))
    for name in ("clip", "input_forget"):
        op.require(not op.get(name, 0), f"{name} must not be there", **{name: op.get(name)})
    rule = "the gate must reset the product (linear_before_reset=1), as PyTorch has it"
    op.require(op.kind == "LSTM" or op.get("linear_before_reset", 0) == 1, rule)
    op.require(not any(op.outputs[2:]), "nobody may read the memory behind the last position")
