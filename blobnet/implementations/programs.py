"""Programs as launches: each convolution of them by the best implementation, the rest by compiled kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby

from blobnet import implementations
from blobnet.contraction import calls as compiled
from blobnet.contraction.calls import Context, Operand
from blobnet.contraction.form import Apply, Program, Read, Statement, Tensor
from blobnet.implementations.base import BACKWARD_DATA, FORWARD, Implementation
from blobnet.implementations.compiled import Compiled, finished
from blobnet.implementations.operation import Operation
from blobnet.implementations.recognition import Convolution, convolution_of
from blobnet.launch.elementwise import EpilogueOp, fits
from blobnet.launch.kernel_call import Array, ArrayHandle, ArrayKind, Blob, KernelCall
from blobnet.launch.task import Task, convolution_text
from blobnet.memory.blob import FLOAT32, BlobLayout, Halo, Shape
from blobnet.support.formatting import size_text


def calls(
    program: Program,
    operands: Mapping[str, Operand],
    context: Context,
    accumulate: Collection[str] = (),
    steps: tuple[EpilogueOp, ...] = (),
) -> list[KernelCall]:
    """The launches of a program.

    Args:
        program: bound for shapes whose samples are ``context.batch``; derivatives are programs, too.
        operands: where every input and output lies, as :func:`blobnet.contraction.calls.calls` takes it.
        context: of the layer.
        accumulate: outputs that are added to what is there.
        steps: what is done to the values of the first output.

    Raises:
        ContractionError, ShapeError, KernelError: as :func:`blobnet.contraction.calls.calls`.
    """
    program = compiled.accumulating(program, accumulate)
    pieces = _Pieces(program, operands, context, steps)
    if pieces.steps:
        output = operands[program.outputs[0].name]
        program, more = finished(program, steps)
        pieces = _Pieces(program, {**operands, program.outputs[0].name: output, **more}, context, ())
    return pieces.calls()


def task_of(operation: Operation) -> Task:
    """The task of a convolution that no layer names: that of the layer Conv2D, or Conv1D, which does the same."""
    shape = operation.input.shape
    rank = 1 if shape.height == operation.vertical.kernel == 1 else 2
    axes, sizes = (operation.vertical, operation.horizontal)[-rank:], (shape.height, shape.width)[-rank:]

    def numbers(*values: int) -> int | tuple[int, ...]:
        return values[0] if len(set(values)) == 1 else values

    text = convolution_text(
        operation.output.shape.units,
        numbers(*(axis.kernel for axis in axes)),
        numbers(*(axis.stride for axis in axes)),
        numbers(*(axis.padding[0] for axis in axes)),
        numbers(*(axis.dilation for axis in axes)),
        operation.groups,
    )
    layer = f"{size_text((shape.units, *sizes))}:{text}"
    return Task(operation.direction, layer, operation.batch_size, operation.tuning.precision)


class _Pieces:
    """The pieces of a program: the convolutions that something computes better than the compiler, and what is between.

    There is but one, the program, where pieces would leave one another what has no memory of a known size a sample.

    Attributes:
        steps: what is done to the values of the first output, and no convolution's launches do.
    """

    def __init__(
        self, program: Program, operands: Mapping[str, Operand], context: Context, steps: tuple[EpilogueOp, ...]
    ) -> None:
        self._program, self._operands, self._context, self.steps = program, dict(operands), context, steps
        #: Where what one statement leaves to another lies.
        self._own: dict[str, Operand] = {}
        #: Statements that a product does besides, by number.
        self._done: set[int] = set()
        products: dict[int, Implementation] = {}
        for number, statement in enumerate(program.statements):
            found = convolution_of(statement)
            product = self._product(found, accumulates=statement.accumulates) if found else None
            if product:
                products[number] = product
        self._pieces = self._cut(products)
        programs = [piece for piece in self._pieces if isinstance(piece, Program)]
        known = self._operands.keys() | self._own.keys()
        if not all(tensor.name in known for piece in programs for tensor in (*piece.inputs, *piece.outputs)):
            self._pieces, self.steps = [program], steps

    def calls(self) -> list[KernelCall]:
        """The launches of all pieces."""
        context, operands, made = self._context, {**self._own, **self._operands}, list[KernelCall]()
        for piece in self._pieces:
            if isinstance(piece, Program):
                made += compiled.calls(piece, operands, context)
            else:
                made += implementations.calls_of(piece, task_of(piece.operation))
        return made

    def _cut(self, products: Mapping[int, Implementation]) -> list[Program | Implementation]:
        """The program at its products, by the numbers of their statements; the rest in programs as long as can be."""
        statements, pieces = self._program.statements, list[Program | Implementation]()
        numbers = [number for number in range(len(statements)) if number not in self._done]
        for is_product, group in groupby(numbers, lambda number: number in products):
            run = [*group]
            if is_product:
                pieces += [products[number] for number in run]
                continue
            own, later = [statements[number] for number in run], statements[run[-1] + 1 :]
            made = dict.fromkeys(item.output.tensor for item in own)
            read = dict.fromkeys(read.tensor for item in own for read in item.reads)
            # What others read, or add to, or have begun to add up.
            shared = {read.tensor for item in later for read in item.reads}
            shared |= {item.output.tensor for item in (*statements[: run[0]], *later)}
            outputs = [tensor for tensor in made if tensor in shared or tensor in self._program.outputs]
            pieces.append(Program(tuple(tensor for tensor in read if tensor not in made), (*outputs,), (*own,)))
        return pieces

    def _product(self, found: Convolution, *, accumulates: bool) -> Implementation | None:
        """Return the implementation for a statement; None leaves it to the compiler."""
        result, context = found.result, self._context
        if accumulates and found.direction != BACKWARD_DATA:
            return None
        weight, bias, done, steps = self._operands.get(found.weight.name), None, set[int](), tuple[EpilogueOp, ...]()
        if found.direction == FORWARD:
            bias, result, done = self._bias(result)
            is_last = result == self._program.outputs[0] and fits(self.steps, blobs=1)
            steps = self.steps if is_last else ()
        ends = {found.input: found.input, found.output: found.output, found.result: result}
        input_, output = (_blob(ends[tensor], self._place(ends[tensor])) for tensor in (found.input, found.output))
        if not isinstance(weight, Array) or weight.per_sample or not input_ or not output:
            return None
        if (output if found.source == found.output else input_).is_memory and found.halo != Halo():
            return None

        def array(handle: ArrayHandle) -> Array:
            if handle.kind is ArrayKind.MEMORY:
                name = f"{context.label}: {handle.name} of {result.name}"
                return context.memory(name, handle.elements, handle.per_sample)
            assert isinstance(weight, Array)
            return bias if bias and handle.name == "bias" else weight

        operation = Operation(
            context.name,
            "convolution",
            found.direction,
            input_,
            output,
            found.groups,
            found.vertical,
            found.horizontal,
            array,
            context.tuning,
            context.batch,
            1 if bias else 0,
            steps,
            accumulates,
            label=context.label,
        )
        chosen = implementations.chosen(operation, task_of(operation))
        if isinstance(chosen, Compiled) or found.direction in chosen.slower:
            return None
        self._done |= done
        self.steps = () if steps else self.steps
        return chosen

    def _bias(self, tensor: Tensor) -> tuple[Array | None, Tensor, set[int]]:
        """The bias that is added to a tensor, the sum, and the number of its statement; else the tensor as it is."""
        number, reader = self._reader(tensor)
        if reader and isinstance(reader.expression, Apply) and reader.expression.function == "add":
            for value, other in (reader.expression.arguments, reader.expression.arguments[::-1]):
                is_bias = isinstance(other, Read) and other.map == reader.output.map[1:2]
                if is_bias and isinstance(value, Read) and value.tensor == tensor:
                    assert isinstance(other, Read)
                    operand = self._operands.get(other.tensor.name)
                    if isinstance(operand, Array):
                        return operand, reader.output.tensor, {number}
        return None, tensor, set()

    def _reader(self, tensor: Tensor) -> tuple[int, Statement | None]:
        """The only statement that reads a tensor of the program's own, if it takes the same cell of it for each."""
        statements = self._program.statements
        readers = [
            number for number, item in enumerate(statements) if any(read.tensor == tensor for read in item.reads)
        ]
        if len(readers) == 1 and tensor.name not in self._operands and tensor not in self._program.outputs:
            reader = statements[readers[0]]
            maps = {read.map for read in reader.reads if read.tensor == tensor}
            same = maps == {reader.output.map} and tensor.shape == reader.output.tensor.shape
            if same and reader.is_cellwise and not reader.accumulates:
                return readers[0], reader
        return 0, None

    def _place(self, tensor: Tensor) -> Operand:
        """Where a tensor lies: its own is where the result of what follows it will lie, if that is possible."""
        if tensor.name in self._operands:
            return self._operands[tensor.name]
        if tensor.name not in self._own:
            last, read = tensor, set[str]()
            while (reader := self._reader(last)[1]) is not None:
                read |= {item.tensor.name for item in reader.reads} - {last.name}
                last = reader.output.tensor
            others = {self._operands[name].storage for name in read & self._operands.keys()}
            end = self._operands.get(last.name)
            if not isinstance(end, Blob) or end.storage in others or end.type != FLOAT32:
                # A name of its own: of one sample the compiler's memory of the tensor does not grow by samples.
                name = f"{self._context.label}: {tensor.name} between pieces"
                end = self._context.memory(name, 0, tensor.elements // self._context.batch)
            self._own[tensor.name] = end
        return self._own[tensor.name]


def _blob(tensor: Tensor, operand: Operand) -> Blob | None:
    """An operand as the blob of planes, or of rows, that a tensor says; None if it is not one."""
    samples, units, *sizes = tensor.shape
    layout = BlobLayout.padded(Shape(units, *sizes))
    if isinstance(operand, Blob):
        return operand if operand.layout.shape.axes == layout.shape.axes and operand.shape.units == units else None
    is_dense = operand.per_sample == layout.memory_elements and not (operand.elements or operand.offset)
    return Blob(operand.storage, layout, is_memory=True, type=operand.type) if is_dense and samples else None
