"""What the compiler of contractions makes of an operation (docs/contractions.md)."""

from __future__ import annotations

from dataclasses import replace

from blobnet.cellwise import Tail, statements
from blobnet.contraction import function
from blobnet.contraction.calls import calls
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program
from blobnet.geometry import WindowAxis
from blobnet.implementations.base import BACKWARD_DATA, FORWARD, Implementation
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import Array, Blob, KernelCall

#: Speed against that of the best product of a device: as measured (docs/contractions.md).
_SPEEDS = {False: 0.9, True: 0.7}


class Compiled(Implementation):
    """Anything, by generated kernels: where nothing else is left, or tuning chose it."""

    lanes = None
    families = ("convolution", "dense")
    is_last_resort = True
    is_guess = True
    kernels = "generated"

    @classmethod
    def stores(cls, operation: Operation) -> bool:
        # What it generates is for the types.
        return True

    @property
    def cost(self) -> float:
        # NOTE: the search for a schedule, which predicts cycles, takes too long for what is rarely chosen.
        operation = self.operation
        multiply_adds = operation.batch_size * operation.output.shape.height * operation.output.shape.width
        speed = _SPEEDS[operation.tuning.model.items_are_lanes]
        return multiply_adds * operation.weights / operation.cores / speed

    def calls(self) -> list[KernelCall]:
        return _calls(self.operation)


def _calls(operation: Operation) -> list[KernelCall]:
    known: dict[str, Blob | Array] = {"I": operation.input, "W": operation.parameter("WEIGHT")}
    if operation.direction != FORWARD:
        name, result = (
            ("I", operation.input)
            if operation.direction == BACKWARD_DATA
            else ("W", operation.parameter("WEIGHT_GRADIENT"))
        )
        program = _program(operation)
        deltas = delta_names(program)
        known |= {deltas["S"]: operation.output, deltas[name]: result}
        bias = operation.bias_gradient() if operation.family == "dense" else []
        accumulate = [deltas[name]] if operation.accumulate else []
        return [*_launches(operation, differentiate(program, [name]), known, accumulate), *bias]
    terms = "S"
    if operation.bias_mode:
        terms, known["B"] = "S + B", operation.parameter("BIAS")
    tail = statements(operation.epilogue, "T", "T_")
    known |= {tail.output: operation.output, **tail.operands}
    then = " ".join(f"{statement};" for statement in (f"T = {terms}", *tail.statements))
    return _launches(operation, _program(operation, then, tail.output, tail), known)


def _program(operation: Operation, then: str = "", result: str = "S", tail: Tail | None = None) -> Program:
    """The forward pass, the sum S and what is done to it ``then``, for the shapes of an operation.

    Backward it is the sum alone, whose delta then is the blob, where zeros lie around it, and no copy.
    """
    given, made, batch, groups = operation.input.shape, operation.output.shape, operation.batch_size, operation.groups
    sizes = {"g": groups, "o": made.units // groups, "i": given.units // groups}
    # An index of one value is left out: what is packed must have an axis that is one index alone.
    used = [name for name, size in sizes.items() if size > 1 or (name != "g" and groups == 1)]

    def unit(name: str) -> str:
        terms = {"g": f"{sizes[name]}*g", name: name}
        return " + ".join(terms[key] for key in terms if key in used)

    total = f"S[n, {unit('o')}, y, x : N, {made.units}, {made.height}, {made.width}]"
    cell = f"{_cell(operation.vertical, 'y', 'a')}, {_cell(operation.horizontal, 'x', 'b')}"
    product = f"I[n, {unit('i')}, {cell}] * W[{', '.join(used)}, a, b]"
    each, whole = (made.units, 1, 1), (made.units, made.height, made.width)
    shapes = {
        "I": (batch, given.units, given.height, given.width),
        "W": (*(sizes[name] for name in used), operation.vertical.kernel, operation.horizontal.kernel),
        "B": whole if operation.bias_mode == 2 else each,
    }
    beside = tail.shapes((batch, *whole)) if tail else {}
    shapes |= beside
    more = [*("B" if "+ B" in then else ""), *beside]
    text = f"function ({', '.join(['I[N, C, Y, X]', 'W', *more])}) -> ({result}) {{ {total} = +({product}); {then} }}"
    return function(text).program(**{name: shapes[name] for name in ("I", "W", *more)})


def _cell(axis: WindowAxis, position: str, tap: str) -> str:
    """What a result reads at a tap."""
    return f"{axis.stride}*{position} + {axis.dilation}*{tap} - {axis.padding[0]}"


def _launches(
    operation: Operation, program: Program, operands: dict[str, Blob | Array], accumulate: list[str] | None = None
) -> list[KernelCall]:
    """The launches of a program, whose inputs are only those that it reads."""
    read = {read.tensor.name for statement in program.statements for read in statement.reads}
    inputs = tuple(tensor for tensor in program.inputs if tensor.name in read)
    return calls(
        replace(program, inputs=inputs),
        operands,
        label=operation.label,
        batch=operation.batch_size,
        memory=operation.memory,
        tuning=operation.tuning,
        accumulate=accumulate or [],
    )
