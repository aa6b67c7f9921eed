"""What the compiler of contractions makes of an operation (docs/contractions.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blobnet.contraction import function
from blobnet.contraction.calls import Context, calls
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program
from blobnet.implementations.base import BACKWARD_DATA, FORWARD, Implementation
from blobnet.implementations.operation import Operation
from blobnet.launch.elementwise import Tail, statements
from blobnet.launch.kernel_call import Array, Blob, KernelCall

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
    def matches(cls, operation: Operation) -> bool:
        """Windows that see nothing but zeros are a contraction without terms."""
        made, given = operation.output.shape, operation.input.shape
        sizes = (made.height, given.height), (made.width, given.width)
        axes = zip((operation.vertical, operation.horizontal), sizes, strict=True)
        return super().matches(operation) and all(axis.meets(*size) for axis, size in axes)

    @classmethod
    def stores(cls, operation: Operation) -> bool:
        return True  # What it generates is for the types.

    @property
    def cost(self) -> float:
        # NOTE: the search for a schedule, which predicts cycles, takes too long for what is rarely chosen.
        operation = self.operation
        multiply_adds = operation.batch_size * operation.output.shape.height * operation.output.shape.width
        speed = _SPEEDS[operation.tuning.model.is_simt]
        return multiply_adds * operation.weights / operation.cores / speed

    def calls(self) -> list[KernelCall]:
        operation = self.operation
        known: dict[str, Blob | Array] = {"I": operation.input, "W": operation.parameter("WEIGHT")}
        if operation.direction == FORWARD:
            tail = statements(operation.epilogue, "T", "T_")
            known |= {"B": operation.parameter("BIAS"), tail.output: operation.output, **tail.operands}
            return self._launches(_program(operation, tail), known)
        program, name = _program(operation), "I" if operation.direction == BACKWARD_DATA else "W"
        deltas = delta_names(program)
        result = operation.input if name == "I" else operation.parameter("WEIGHT_GRADIENT")
        known |= {deltas["S"]: operation.output, deltas[name]: result}
        bias = operation.bias_gradient() if operation.family == "dense" else []
        return [*self._launches(differentiate(program, [name]), known, [deltas[name]] * operation.accumulate), *bias]

    def _launches(
        self, program: Program, operands: dict[str, Blob | Array], accumulate: Sequence[str] = ()
    ) -> list[KernelCall]:
        """The launches of a program, whose inputs are only those that it reads."""
        read = {read.tensor.name for statement in program.statements for read in statement.reads}
        inputs, operation = tuple(tensor for tensor in program.inputs if tensor.name in read), self.operation
        context = Context(operation.label, operation.batch_size, operation.memory, operation.tuning)
        return calls(replace(program, inputs=inputs), operands, context, accumulate)


def _program(operation: Operation, tail: Tail | None = None) -> Program:
    """The forward pass for the shapes of an operation: the sum S, the bias, and its ``tail``.

    Without one it is the sum alone, for backward, whose delta then is the blob, where zeros lie around it, and no copy.
    """
    given, made, batch, groups = operation.input.shape, operation.output.shape, operation.batch_size, operation.groups
    sizes = {"g": groups, "o": made.units // groups, "i": given.units // groups}
    # An index of one value is left out: what is packed must have an axis that is one index alone.
    used = [name for name, size in sizes.items() if size > 1 or (name != "g" and groups == 1)]

    def unit(name: str) -> str:
        terms = {"g": f"{sizes[name]}*g", name: name}
        return " + ".join(terms[key] for key in terms if key in used)

    axes = (operation.vertical, "y", "a"), (operation.horizontal, "x", "b")
    cell = ", ".join(f"{axis.stride}*{place} + {axis.dilation}*{tap} - {axis.padding[0]}" for axis, place, tap in axes)
    text = f"S[n, {unit('o')}, y, x : N, {made.units}, {made.height}, {made.width}]"
    text += f" = +(I[n, {unit('i')}, {cell}] * W[{', '.join(used)}, a, b]);"
    shapes = {
        "I": (batch, given.units, given.height, given.width),
        "W": (*(sizes[name] for name in used), operation.vertical.kernel, operation.horizontal.kernel),
    }
    if tail:
        if operation.bias_mode:
            shapes["B"] = (made.units, made.height, made.width) if operation.bias_mode == 2 else (made.units, 1, 1)
        shapes |= tail.shapes((batch, made.units, made.height, made.width))
        text += "".join(f" {item};" for item in (f"T = S{' + B' if operation.bias_mode else ''}", *tail.statements))
    inputs = ", ".join(["I[N, C, Y, X]", *[name for name in shapes if name != "I"]])
    return function(f"function ({inputs}) -> ({tail.output if tail else 'S'}) {{ {text} }}").program(**shapes)
