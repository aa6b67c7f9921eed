"""Programs with units in cells: the same numbers as without, in other places."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from blobnet.contraction import function
from blobnet.contraction.cells import UNITS, in_cells
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program, Tensor
from blobnet.contraction.reference import run
from tests.contraction.random_contractions import bound

Array = npt.NDArray[np.float64]

#: What walks the units of whole cells of all its inputs and outputs.
WHOLE = {
    "values": "function (I[N, C, Y, X], r[C]) -> (O) { O[n, c, y, x] = +(I[n, c, y, x] * r[c] + c); }",
    "gate": "function (I[N, C, Y, X], G[N, C]) -> (O) { O[n, c, y, x] = +(I[n, c, y, x] * G[n, c]); }",
    "means": "function (I[N, C, X]) -> (O) { M[n, x] = +(I[n, c, x]); O[n, c, x] = +(I[n, c, x] - M[n, x] / C); }",
    "window": "function (I[N, C, X]) -> (O) { O[n, c, x : N, C, X] = >(I[n, c, x + k - 1]), k < 3; }",
    "groups": "function (I[N, C, X]) -> (O) { S[n, g : N, 2] = +(I[n, 8 * g + k, x]), k < 8; "
    "O[n, 8 * g + k, x : N, C, X] = +(I[n, 8 * g + k, x] - S[n, g]), k < 8; }",
    "product": "function (I[N, C, X], W[F, C]) -> (O) { O[n, f, x : N, F, X] = +(I[n, c, x] * W[f, c]); }",
    "products of units": "function (I[N, C, X]) -> (O) { O[n, c, d] = +(I[n, c, x] * I[n, d, x]); }",
    "shifted": "function (I[N, C, X]) -> (O) { O[n, c, x : N, 8, X] = +(I[n, c + 8, x]), c < 8; }",
}
#: What does not.
OTHERS = {
    "neighbours": "function (I[N, C, X]) -> (O) { O[n, c, x : N, C, X] = +(I[n, c + k - 1, x]), k < 3; }",
    "backwards": "function (I[N, C, X]) -> (O) { O[n, c, x : N, C, X] = +(I[n, 15 - c, x]); }",
    "groups of 2": "function (I[N, C, X]) -> (O) { O[n, g, x : N, 8, X] = +(I[n, 2 * g + k, x]), k < 2; }",
    "shifted by 3": "function (I[N, C, X]) -> (O) { O[n, c, x : N, 12, X] = +(I[n, c + 3, x]), c < 12; }",
}
SHAPES = {"I": (2, 16, 3, 5), "r": (16,), "G": (2, 16), "W": (8, 16)}


def program_of(text: str) -> Program:
    read = function(text)
    ranks = {name: len(head or ()) for name, head in read.heads.items()}
    return read.program(**{name: SHAPES[name][:rank] for name, rank in ranks.items()})


def moved(values: Array, before: Tensor, after: Tensor, cell: int, is_cells: bool) -> Array:
    """The values of a tensor as they are with its axes in two."""
    if before == after:
        return values
    if not is_cells:
        return values.reshape(after.shape)
    samples, units, *others = before.shape
    return np.moveaxis(values.reshape(samples, units // cell, cell, *others), 2, -1)


def check(program: Program, cell: int, names: frozenset[str]) -> bool:
    """Assert that a program gives the same in cells; return False if it cannot be in cells."""
    found = in_cells(program, cell, names)
    if found is None:
        return False
    made, cells = found
    generator = np.random.default_rng(0)
    arrays = {tensor.name: generator.integers(-3, 4, tensor.shape).astype(np.float64) for tensor in program.inputs}
    given = {
        old.name: moved(arrays[old.name], old, new, cell, old.name in names)
        for old, new in zip(program.inputs, made.inputs, strict=True)
    }
    wanted, results = run(program, arrays), run(made, given)
    for old, new in zip(program.outputs, made.outputs, strict=True):
        np.testing.assert_array_equal(results[old.name], moved(wanted[old.name], old, new, cell, old.name in names))
    assert all((name, UNITS) in cells.axes for name in names)
    return True


def blobs_of(program: Program) -> list[str]:
    tensors = (*program.inputs, *program.outputs)
    return [one.name for one in tensors if len(one.shape) > UNITS and one.shape[0] == 2 and one.shape[UNITS] % 8 == 0]


@pytest.mark.parametrize("name", WHOLE)
def test_units_in_cells(name: str) -> None:
    """Any of the tensors, and all; derivatives as well."""
    program = program_of(WHOLE[name])
    names = blobs_of(program)
    for count in range(1, len(names) + 1):
        for some in itertools.combinations(names, count):
            assert check(program, 8, frozenset(some)), some
    backward = differentiate(program, ["I"])
    assert check(backward, 8, frozenset({"I", delta_names(program)["I"]} & {*blobs_of(backward)}))


@pytest.mark.parametrize("name", OTHERS)
def test_units_that_are_no_whole_cells(name: str) -> None:
    assert in_cells(program_of(OTHERS[name]), 8, frozenset({"I"})) is None


@pytest.mark.parametrize("seed", range(8))
def test_random_contractions(seed: int) -> None:
    """Whatever maps there are: the same, or None."""
    done = 0
    for _, program in bound(seed, 60):
        tensors = [one for one in (*program.inputs, *program.outputs) if len(one.shape) > UNITS]
        names = [one.name for one in tensors if one.shape[UNITS] % 2 == 0]
        if names:
            done += check(program, 2, frozenset(names)) + check(program, 2, frozenset(names[:1]))
    assert done > 3


def test_axes_that_are_walked_together_are_in_two() -> None:
    """So that each axis has an index by itself: of parameters, too; not where others walk them in another way."""
    program = program_of(WHOLE["values"])
    found = in_cells(program, 8, frozenset({"I", "O"}))
    assert found is not None
    made, _ = found
    assert [tensor.shape for tensor in (*made.inputs, *made.outputs)] == [(2, 2, 3, 5, 8), (2, 8), (2, 2, 3, 5, 8)]
    assert str(made.statements[0]) == (
        "O[n, c, y, x, c_unit] = +((I[n, c, y, x, c_unit] * r[c, c_unit]) + (8*c + c_unit))"
    )
    text = "function (I[N, C, X], r[C]) -> (O) { O[n, c, x] = +(I[n, c, x] * r[c]); P[c : 15] = +(r[c + 1]); }"
    found = in_cells(program_of(text.replace("-> (O)", "-> (O, P)")), 8, frozenset({"I", "O"}))
    assert found is not None
    assert [tensor.shape for tensor in found[0].inputs] == [(2, 2, 3, 8), (16,)]
