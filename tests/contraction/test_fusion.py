"""Fused statements do what they did apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from blobnet.contraction import function, reference
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program
from blobnet.contraction.fusion import Fused, fuse
from tests.contraction.conformance import gathered_program

#: Statements of square tensors: {0}, {1} and {2} are earlier ones.
STATEMENTS = (
    "{name} = {0} * 2 + {1}",
    "{name} = tanh({0} - {1}) * {2}",
    "{name} = ({0} > {1} ? {1} : {2})",
    "{name}[i, j : 3, 3] = +({0}[i, k] * {1}[k, j])",
    "{name}[j, i : 3, 3] = +({0}[i, j] * {1}[j, k])",
    "{name}[i, j : 3, 3] = >({0}[i + k - 1, j]), k < 3",
    "{name}[2*i + k, j : 3, 3] = +({0}[i, j]), i < 2, k < 2",
    "{name}[i, 2*j : 3, 3] = +({0}[i, j] * {1}[j, i])",
    "{name}[i, i : 3, 3] = +({0}[i, j])",
    "{name}[i, j : 3, 3] = +(exp({0}[i, j] - {1}[j, i]))",
    "{name}[i, j : 3, 3] = >({0}[i, j] * {1}[i, j]), i - j < 3",
    "{name}[i, j : 3, 3] = *({0}[j, i])",
)


def random_text(rng: np.random.Generator) -> str:
    names = ["A", "B"]
    lines = []
    for place in range(int(rng.integers(2, 8))):
        name = f"T{place}"
        lines.append(str(rng.choice(STATEMENTS)).format(*rng.choice(names[-4:], 3), name=name))
        names.append(name)
    outputs = ", ".join(dict.fromkeys([names[-1], str(rng.choice(names[2:]))]))
    return f"function (A[N, N], B[N, N]) -> ({outputs}) {{\n{';'.join(lines)}\n}}"


def unfused(program: Program, groups: Sequence[Fused]) -> Program:
    """The statements of groups one by one: the same program in their order."""
    return replace(program, statements=tuple(part for group in groups for part in (group.head, *group.after)))


def assert_the_same(program: Program, arrays: dict[str, np.ndarray], text: str) -> tuple[Fused, ...]:
    groups = fuse(program)
    expected, found = reference.run(program, arrays), reference.run(unfused(program, groups), arrays)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-9, err_msg=text)
    for group in groups:
        for part in group.after:
            assert part.output.map == group.head.output.map
    stored = {name for group in groups for name in group.stored} | {tensor.name for tensor in program.inputs}
    assert {tensor.name for tensor in program.outputs} <= stored
    for group in groups:
        own = {part.output.tensor.name for part in (group.head, *group.after)}
        assert {read.tensor.name for part in (group.head, *group.after) for read in part.reads} <= stored | own
    return groups


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_and_their_derivatives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fewer = 0
    for _ in range(40):
        text = random_text(rng)
        program = function(text).program(A=(3, 3), B=(3, 3))
        arrays = {name: rng.standard_normal((3, 3)) for name in "AB"}
        fewer += len(program.statements) - len(assert_the_same(program, arrays, text))
        names = delta_names(program)
        given = arrays | {names[output.name]: rng.standard_normal((3, 3)) for output in program.outputs}
        assert_the_same(gathered_program(differentiate(program)), given, text)
    assert fewer > 10


def test_bias_activation_and_residual_ride_along() -> None:
    f = function(
        """function (I[N, C, X], W[O, C, A], B[O, E], S[N, O, X]) -> (R) {
             T[n, o, x : N, O, X] = +(I[n, c, x + a - 1] * W[o, c, a]);
             U = T + B + S;
             R = (U > 0 ? U : 0);
           }"""
    )
    (group,) = fuse(f.program(I=(2, 3, 5), W=(4, 3, 3), B=(4, 1), S=(2, 4, 5)))
    assert [str(part) for part in group.after] == [
        "U[n, o, x] = ((T[n, o, x] + B[o, 0]) + S[n, o, x])",
        "R[n, o, x] = ((U[n, o, x] > 0) ? U[n, o, x] : 0)",
    ]
    assert group.stored == ("R",)


def test_sizes_of_one_are_no_broadcasts() -> None:
    f = function("function (I[N, X], B[N, X]) -> (R) { T[n, x : N, X] = +(I[n, k] * B[n, x]); R = max(T, 0) * B }")
    assert [len(fuse(f.program(I=shape, B=shape))) for shape in ((1, 1), (1, 4), (4, 1), (3, 2))] == [1] * 4


def test_deltas_ride_along_with_what_is_computed_again() -> None:
    f = function("function (A[N, K], B[K]) -> (O) { S[n : N] = +(A[n, k] * B[k]); O = (S > 0 ? S : 0) }")
    first, *others = fuse(f.gradient_program(A=(4, 3), B=(3,)))
    assert [str(part) for part in first.after] == ["d_S[n] = ((S[n] > 0) ? d_O[n] : 0)"]
    assert first.stored == ("d_S",)
    assert [group.after for group in others] == [(), ()]


def test_cells_that_constraints_empty_are_still_given() -> None:
    f = function("function (A[N]) -> (R) { S[i : N] = +(A[j] * A[i]), 2*j - i < 1; R = S + 1 }")
    program = f.program(A=(5,))
    (group,) = fuse(program)
    found = reference.run(unfused(program, [group]), {"A": np.ones(5)})
    assert found["R"].tolist() == [2, 1, 2, 1, 2]


def test_phases_have_no_epilogue() -> None:
    f = function("function (I[X], W[A]) -> (R) { T[2*x + a : 2*X + 1] = +(I[x] * W[a]); R = tanh(T) }")
    program = gathered_program(f.program(I=(4,), W=(3,)))
    assert [len(group.after) for group in fuse(program)] == [0, 0, 0]


def test_what_reads_other_cells_waits() -> None:
    f = function(
        "function (A[N, N]) -> (R) { S[i, j : N, N] = +(A[i, k] * A[k, j]); M[j : N] = >(S[i, j]); R = S / M }"
    )
    product, maximum, quotient = fuse(f.program(A=(3, 3)))
    assert (product.stored, maximum.stored, quotient.stored) == (("S",), ("M",), ("R",))
