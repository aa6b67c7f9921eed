"""Statements as values, for code; for users the language is text (:mod:`blobnet.contraction.syntax`).

>>> from blobnet.contraction.form import Tensor
>>> given = Tensor("I", (8, 3, 28, 28))
>>> built = Builder([given])
>>> weight = built.parameter("W", 16, 3, 5, 5)
>>> n, f, y, x, c, a, b = indexes("n f y x c a b")
>>> term = given(n, c, y + a - 2, x + b - 2) * weight(f, c, a, b)
>>> made = built.sum("O", (n, f, y, x), term, shape=(8, 16, 28, 28))
>>> print(built.program.statements[0])
O[n, f, y, x] = +(I[n, c, a + y - 2, b + x - 2] * W[f, c, a, b]), a + y - 2 < 28, b + x - 2 < 28
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from blobnet.contraction import ranges
from blobnet.contraction.form import LIMIT, Affine, Constraint, Expression, Position, Program, Read, Statement, Tensor
from blobnet.errors import ContractionError


def indexes(names: str | Iterable[str]) -> list[Affine]:
    """Index variables: of the words of a text, or of several names."""
    return [Affine.index(name) for name in (names.split() if isinstance(names, str) else names)]


def _step(term: tuple[str, int]) -> int:
    """Return what sorts terms of a form by their steps, the longest first."""
    return -abs(term[1])


class Builder:
    """A program, statement by statement; the output of the last one is the program's.

    The ranges of indexes follow from the edges of what is read and written, and from bounds, as those of a text do.
    Ties go by the order in which indexes appear: the output's first, in a map those of longer steps, then by name.

    Args:
        inputs: of the program; parameters follow them.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._inputs, self._statements = [*inputs], list[Statement]()

    def parameter(self, name: str, *shape: int) -> Tensor:
        """One more input."""
        self._inputs.append(Tensor(name, shape))
        return self._inputs[-1]

    def sum(
        self,
        name: str,
        cell: Sequence[Affine],
        term: Expression,
        *bounds: Constraint,
        shape: Sequence[int] = (),
        aggregation: str = "+",
    ) -> Tensor:
        """The tensor whose ``cell`` has the sum of the terms within ``bounds``.

        Args:
            name: of the tensor.
            cell: the map of the output.
            term: what is summed.
            bounds: on indexes, ``k < 3``.
            shape: of the tensor; without, each axis is an index that runs along all of an operand's axis.
            aggregation: one of :data:`blobnet.contraction.form.NEUTRAL`.

        Raises:
            ContractionError: no term is left.
        """
        reads = [node for node in term.walk() if isinstance(node, Read)]
        edges = [*bounds, *(edge for read in reads for edge in read.edges)]
        shape = shape or [next(edge.size for edge in edges if edge.form == form) for form in cell]
        output = Read(Tensor(name, tuple(shape)), tuple(cell))
        edges = [*edges, *output.edges]
        forms = [*cell]
        for node in term.walk():
            forms += node.map if isinstance(node, Read) else [node.form] if isinstance(node, Position) else []
        forms += [bound.form for bound in bounds]
        found = ranges.propagate(edges)
        box = {}
        for index in dict.fromkeys(index for form in forms for index, _ in sorted(form.terms, key=_step)):
            first, last = found.get(index, (-math.inf, math.inf))
            if not -math.inf < first <= last < math.inf:
                raise ContractionError(f"contraction {name}", f"no term is left: the index {index!r} has no range")
            box[index] = range(int(first), int(last) + 1)
        needed = ranges.needed(edges, box)
        self._statements.append(Statement(output, aggregation, term, tuple(box.items()), needed))
        return output.tensor

    @property
    def program(self) -> Program:
        """All statements so far.

        Raises:
            ContractionError: a tensor is too large.
        """
        for tensor in (*self._inputs, *(statement.output.tensor for statement in self._statements)):
            if tensor.elements >= LIMIT:
                rule = "a tensor must have less than 2^31 elements"
                raise ContractionError(f"tensor {tensor.name}", rule, shape=tensor.shape)
        return Program(tuple(self._inputs), (self._statements[-1].output.tensor,), tuple(self._statements))
