"""Operations by the compiler of contractions (docs/contractions.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from blobnet.contraction import function
from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.calls import Context, Operand, calls, cost, takes_cells
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import LIMIT, Affine, Program, Tensor
from blobnet.implementations.base import BACKWARD_DATA, FORWARD, Implementation
from blobnet.implementations.operation import Operation
from blobnet.launch.elementwise import EpilogueOp, statements
from blobnet.launch.kernel_call import KernelCall


class Compiled(Implementation):
    """Anything, by generated kernels: where there is no other way, or tuning chose it."""

    lanes = None
    families = ("convolution", "dense")
    doubt = 2
    kernels = "generated"
    takes_cells = True

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        """Windows that see nothing but zeros are a contraction without terms; and tensors have a largest size."""
        made, given = operation.output.shape, operation.input.shape
        sizes = (made.height, given.height), (made.width, given.width)
        axes = zip((operation.vertical, operation.horizontal), sizes, strict=True)
        fits = super().matches(operation) and all(axis.meets(*size) for axis, size in axes)
        fits = fits and operation.batch_size * max(made.elements, given.elements) < LIMIT
        return fits and (not operation.has_cells or takes_cells(*cls(operation)._parts[:2], {}))

    @property
    def cost(self) -> float:
        return cost(*self._parts)

    def calls(self) -> list[KernelCall]:
        is_dense_gradient = self.operation.family == "dense" and self.operation.direction != FORWARD
        return [*calls(*self._parts), *(self.operation.bias_gradient() if is_dense_gradient else [])]

    @property
    def _parts(self) -> tuple[Program, dict[str, Operand], Context, Sequence[str]]:
        """The program, the places of what it reads and makes, what its launches share, and what is added up."""
        operation, program, added = self.operation, _program(self.operation), list[str]()
        known: dict[str, Operand] = {"I": operation.input, "W": operation.parameter("WEIGHT")}
        if operation.direction == FORWARD:
            program, more = finished(program, operation.epilogue)
            known |= {"B": operation.parameter("BIAS"), program.outputs[0].name: operation.output, **more}
        else:
            name, deltas = "I" if operation.direction == BACKWARD_DATA else "W", delta_names(program)
            result = operation.input if name == "I" else operation.parameter("WEIGHT_GRADIENT")
            known |= {deltas["S"]: operation.output, deltas[name]: result}
            program, added = differentiate(program, [name]), [deltas[name]] * operation.accumulate
        read = {read.tensor.name for statement in program.statements for read in statement.reads}
        inputs = tuple(tensor for tensor in program.inputs if tensor.name in read)
        context = Context(operation.label, operation.batch_size, operation.memory, operation.tuning)
        return replace(program, inputs=inputs), known, context, added


def _program(operation: Operation) -> Program:
    """The sum S of an operation's forward pass, and forward the bias on it.

    Backward there is the sum alone: its delta then is the blob, where zeros lie around it, and no copy.
    """
    given, made, batch = operation.input.shape, operation.output.shape, operation.batch_size
    source = Tensor("I", (batch, given.units, given.height, given.width))
    built = Builder([source])
    n, y, x, *taps = indexes("n y x a b")
    # An index of one value is left out: what is packed must have an axis that is one index alone.
    sizes = {"g": operation.groups, "o": made.units // operation.groups, "i": given.units // operation.groups}
    used = {name: size for name, size in sizes.items() if size > 1 or (name != "g" and operation.groups == 1)}
    g, o, i = (Affine.index(name) if name in used else Affine() for name in sizes)
    axes = operation.vertical, operation.horizontal
    weight = built.parameter("W", *used.values(), *(axis.kernel for axis in axes))
    at = [
        place * axis.stride + tap * axis.dilation - axis.padding[0]
        for axis, place, tap in zip(axes, (y, x), taps, strict=True)
    ]
    unit, shape = g * sizes["o"] + o, (batch, made.units, made.height, made.width)
    term = source(n, g * sizes["i"] + i, *at) * weight(*indexes(used), *taps)
    total = built.sum("S", (n, unit, y, x), term, shape=shape)
    if operation.direction == FORWARD and operation.bias_mode:
        (c,) = indexes("c")
        sides, place = ((made.height, made.width), (y, x)) if operation.bias_mode == 2 else ((), ())
        bias = built.parameter("B", made.units, *sides)
        built.sum("T", (n, c, y, x), total(n, c, y, x) + bias(c, *place))
    return built.program


def finished(program: Program, steps: tuple[EpilogueOp, ...]) -> tuple[Program, dict[str, Operand]]:
    """Return a program that does these steps to its first output, and their operands by the names of its new inputs."""
    if not steps:
        return program, {}
    output = program.outputs[0]
    taken = {tensor.name for tensor in program.inputs} | {one.output.tensor.name for one in program.statements}
    prefix = f"{output.name}_"
    while any(name.startswith(prefix) for name in taken):
        prefix += "_"
    tail = statements(steps, output.name, prefix)
    shapes = tuple(tail.shapes(output.shape).items())
    return _with_tail(program, tail.statements, tail.output, shapes), dict(tail.operands)


@lru_cache(1024)
def _with_tail(
    program: Program, texts: tuple[str, ...], result: str, operands: tuple[tuple[str, tuple[int, ...]], ...]
) -> Program:
    """A program, and element-wise statements on its first output; ``operands`` are the shapes of what these read."""
    output = program.outputs[0]
    shapes = {output.name: output.shape, **dict(operands)}
    text = f"function ({', '.join(shapes)}) -> ({result}) {{ {' '.join(f'{text};' for text in texts)} }}"
    tail = function(text).program(**shapes)
    return Program(
        (*program.inputs, *tail.inputs[1:]),
        (*tail.outputs, *program.outputs[1:]),
        (*program.statements, *tail.statements),
    )
