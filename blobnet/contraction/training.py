"""A program as the passes of training: forward, which keeps what derivatives read, and a program for each gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program, Statement, Tensor


@dataclass(frozen=True)
class Passes:
    """The programs of a training step, in their order.

    Args:
        forward: the function itself; its outputs are the function's and, after them, what the derivatives read of all
            that it computes on the way.
        gradients: a program for each operand whose gradient is wanted, with the statements that none before it has.
        deltas: the name of each tensor's delta.
    """

    forward: Program
    gradients: tuple[Program, ...]
    deltas: dict[str, str]


def passes(program: Program, wanted: Sequence[str]) -> Passes:
    """The passes that give the gradients of the inputs ``wanted``, one after another."""
    derived = differentiate(program, wanted)
    made = dict.fromkeys(statement.output.tensor for statement in program.statements)
    gradients = _parts([one for one in derived.statements if one.output.tensor not in made], derived.outputs)
    read = {tensor for part in gradients for tensor in part.inputs}
    kept = tuple(tensor for tensor in made if tensor in read and tensor not in program.outputs)
    return Passes(replace(program, outputs=(*program.outputs, *kept)), gradients, delta_names(program))


def _parts(statements: Sequence[Statement], targets: Sequence[Tensor]) -> tuple[Program, ...]:
    """A program for each target: its inputs are all that it reads and does not make.

    Its outputs are the target, and what programs after it read.
    """
    left = list(statements)
    pieces: list[list[Statement]] = []
    for target in targets:
        needed = {target}
        piece: list[Statement] = []
        for statement in reversed(left):
            if statement.output.tensor in needed:
                piece.insert(0, statement)
                needed.update(_read([statement]))
        left = [statement for statement in left if statement not in piece]
        pieces.append(piece)
    programs = []
    for number, (target, piece) in enumerate(zip(targets, pieces, strict=True)):
        made = dict.fromkeys(statement.output.tensor for statement in piece)
        later = _read([statement for other in pieces[number + 1 :] for statement in other])
        inputs = tuple(tensor for tensor in _read(piece) if tensor not in made)
        outputs = tuple(tensor for tensor in made if tensor == target or tensor in later)
        programs.append(Program(inputs, outputs, tuple(piece)))
    return tuple(programs)


def _read(statements: Iterable[Statement]) -> dict[Tensor, None]:
    """The tensors that statements read, each once, in their order."""
    return dict.fromkeys(read.tensor for statement in statements for read in statement.reads)
