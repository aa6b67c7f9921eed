"""What the compiler of contractions makes of an operation (docs/contractions.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from blobnet.contraction import function
from blobnet.contraction.calls import calls
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program
from blobnet.geometry import WindowAxis
from blobnet.implementations.base import BACKWARD_DATA, FORWARD, Candidate, Implementation
from blobnet.implementations.operation import Operation
from blobnet.implementations.sums import bias_gradient
from blobnet.kernel_call import Array, Blob, KernelCall, as_rows, cell_work

#: Speed against that of the best product of a device: on CPUs as measured (docs/contractions.md), on GPUs a guess.
_SPEEDS = {False: 0.9, True: 0.4}
#: Activations that are fused, as kernels/activation/functions.h writes them; others are a launch behind.
_FUSED = {"ACTIVATION_linear": "T", "ACTIVATION_relu": "(T < 0 ? 0 : T)"}


class Compiled(Implementation):
    """Anything, by generated kernels: where nothing else is left, or tuning chose it."""

    lanes = None
    families = ("convolution", "dense")
    forward = backward_data = backward_weights = "generated"

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        # NOTE: the search for a schedule, which predicts cycles, takes too long for what is rarely chosen.
        output = operation.output.shape
        multiply_adds = operation.batch_size * output.height * output.width * operation.weights
        cost = multiply_adds / operation.cores / _SPEEDS[operation.tuning.model.items_are_lanes]
        calls = partial(_calls, operation)
        yield Candidate(self.way(), cost, calls, is_guess=True, is_last_resort=True)


def _calls(operation: Operation) -> list[KernelCall]:
    known: dict[str, Blob | Array] = {"I": operation.input, "W": operation.weight}
    if operation.direction != FORWARD:
        name, result = ("I", operation.input) if operation.direction == BACKWARD_DATA else ("W", operation.gradient)
        program = _program(operation, "R = S")
        deltas = delta_names(program)
        known |= {deltas["R"]: operation.output, deltas[name]: result}
        bias = bias_gradient(operation) if operation.family == "dense" else []
        accumulate = [deltas[name]] if operation.accumulate else []
        return [*_launches(operation, differentiate(program, [name]), known, accumulate), *bias]
    known["R"] = operation.output
    terms = "S"
    if operation.bias_mode:
        terms, known["B"] = f"{terms} + B", operation.bias
    if operation.residual:
        terms, known["E"] = f"{terms} + E", operation.residual
    fused = _FUSED.get(str(operation.activation["ACTIVATION"]))
    launches = _launches(operation, _program(operation, f"T = {terms}; R = {fused or 'T'}"), known)
    if not fused:
        kernel, (row,) = "activation/forward", as_rows(operation.output)
        work = cell_work(kernel, row.shape, operation.tuning)
        launches.append(operation.call(kernel, *work, blobs={"INPUT": row, "OUTPUT": row}))
    return launches


def _program(operation: Operation, then: str) -> Program:
    """The forward pass, the sum S and what is done to it ``then``, for the shapes of an operation."""
    inputs, outputs, groups = operation.input_units, operation.output_units, operation.groups
    given, made, batch = operation.input.shape, operation.output.shape, operation.batch_size
    result = f"S[n, {outputs}*g + o, y, x : N, {made.units}, {made.height}, {made.width}]"
    cell = f"{_cell(operation.vertical, 'y', 'a')}, {_cell(operation.horizontal, 'x', 'b')}"
    product = f"I[n, {inputs}*g + i, {cell}] * W[g, o, i, a, b]"
    shapes = {
        "I": (batch, given.units, given.height, given.width),
        "W": (groups, outputs, inputs, operation.vertical.kernel, operation.horizontal.kernel),
        "B": (made.units, made.height, made.width) if operation.bias_mode == 2 else (made.units, 1, 1),
        "E": (batch, made.units, made.height, made.width),
    }
    more = [name for name in "BE" if f"+ {name}" in then]
    text = f"function ({', '.join(['I[N, C, Y, X]', 'W', *more])}) -> (R) {{ {result} = +({product}); {then}; }}"
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
