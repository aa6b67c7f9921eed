"""Convolutions and pooling by rule: phases and halos against the formulas of windows, and PyTorch's kind of loops."""

from __future__ import annotations

import numpy as np
import pytest

from blobnet.contraction import analysis, function, reference
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Statement
from blobnet.contraction.phases import disjoint, gathered
from blobnet.memory.windows import WindowAxis
from tests.contraction.conformance import gathered_program
from tests.contraction.test_loops import nest

TEXT = "O[n, o, x : N, F, X] = +(I[n, c, x * S + a * D - P] * W[o, c, a])"


def random_axis(rng: np.random.Generator) -> tuple[WindowAxis, int]:
    while True:
        padding = int(rng.integers(0, 5))
        axis = WindowAxis(*(int(rng.integers(1, top)) for top in (8, 6, 5)), (padding, int(rng.integers(0, 5))))
        size = int(rng.integers(1, 40))
        # Taps that never meet data narrow the ranges, and the formulas do not know; few outputs change roles with taps.
        if (
            axis.fits(size)
            and max(axis.padding) < axis.kernel
            and axis.span <= size
            and axis.output_size(size) > axis.kernel
        ):
            return axis, size


@pytest.mark.parametrize("seed", range(200))
def test_halos_and_phases_of_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    axis, size = random_axis(rng)
    stride, dilation, before = axis.stride, axis.dilation, axis.padding[0]
    f = function(TEXT, N=2, F=3, X=axis.output_size(size), S=stride, D=dilation, P=before)
    shapes = {"I": (2, 2, size), "W": (3, 2, axis.kernel)}
    assert f.halos(**shapes)["I"][2] == axis.input_halo(size)
    assert f.halos(**shapes)["W"] == ((0, 0),) * 3

    program = f.program(**shapes)
    gradient = differentiate(program)
    names = delta_names(program)
    data = next(s for s in gradient.statements if s.output.tensor.name == names["I"])
    phases = gathered(data)
    divisor = np.gcd(stride, dilation)
    apart = axis.span <= stride
    assert len(phases) <= (1 if apart else stride // divisor)
    assert all(disjoint(a.output, b.output) for n, a in enumerate(phases) for b in phases[:n])
    for phase in () if apart else phases:
        # Dense: no constraint is left but the edges of the output's delta, which its halo meets.
        assert analysis.met_by_halos(phase) == phase.constraints
        tap = phase.box["a"]
        assert (tap.start, phase.aggregation) == (0, "+")
        assert len(tap) in (axis.kernel * divisor // stride, -(-axis.kernel * divisor // stride))
    needed = [delta_sides(phase, names["O"]) for phase in phases]
    reach = axis.delta_halo(size)
    assert max(sides[0] for sides in needed) <= reach[0]
    assert max(sides[1] for sides in needed) <= reach[1]
    if apart:
        assert phases == (data,)
        assert analysis.met_by_halos(data) == ()
        assert nest(data).conditions == data.constraints  # for the store alone
    if stride == 1:
        assert (max(sides[0] for sides in needed), max(sides[1] for sides in needed)) == reach

    arrays = {name: rng.integers(-4, 5, shape).astype(float) for name, shape in shapes.items()}
    delta = rng.integers(-4, 5, program.outputs[0].shape).astype(float)
    whole = {**arrays, names["O"]: delta}
    dense = gathered_program(gradient)
    expected = by_loops(axis, arrays["I"], arrays["W"], delta)
    for found in (reference.run(gradient, whole), reference.run(dense, whole, with_halos=True)):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[names[name]], array)


def delta_sides(phase: Statement, name: str) -> tuple[int, int]:
    return next(sides[2] for read, sides in analysis.halos(phase).items() if read.tensor.name == name)


def by_loops(axis: WindowAxis, data: np.ndarray, weights: np.ndarray, delta: np.ndarray) -> dict[str, np.ndarray]:
    """Both gradients of a convolution, a tap at a time."""
    gradients = {"I": np.zeros_like(data), "W": np.zeros_like(weights)}
    for x in range(delta.shape[2]):
        for a in range(axis.kernel):
            cell = x * axis.stride + a * axis.dilation - axis.padding[0]
            if 0 <= cell < data.shape[2]:
                gradients["I"][:, :, cell] += delta[:, :, x] @ weights[:, :, a]
                gradients["W"][:, :, a] += delta[:, :, x].T @ data[:, :, cell]
    return gradients


def test_what_is_clamped_needs_no_halo() -> None:
    (maximum,) = function("O[x : 5] = >(A[x + i - 1]), i < 3").program(A=(5,)).statements
    assert list(analysis.halos(maximum).values()) == [((0, 0),)]
    # Rows have a halo, columns of which both operands are read beyond different edges are clamped.
    text = "O[y, x : 5, 5] = +(A[y + i - 1, x + j - 1] + A[y + i - 1, x - j + 1]), i < 3, j < 3"
    (both,) = function(text).program(A=(5, 5)).statements
    assert list(map(str, analysis.met_by_halos(both))) == ["i + y - 1 < 5"]
    assert list(analysis.halos(both).values()) == [((1, 1), (0, 0))] * 2


def test_two_dimensional_strides_have_phases_for_each_pair_of_remainders() -> None:
    f = function("O[y, x : 4, 4] = +(I[2*y + a, 3*x + b] * W[a, b])")
    gradient = f.gradient_program(("I",), I=(9, 13), W=(3, 4))
    (statement,) = gradient.statements
    phases = gathered(statement)
    assert {str(phase.output) for phase in phases} == {
        f"d_I[2*y{first}, 3*x{second}]" for first in ("", " + 1") for second in ("", " + 1", " + 2")
    }
    # Columns of taps that do not overlap need none.
    (statement,) = f.gradient_program(("I",), I=(9, 12), W=(3, 3)).statements
    assert {str(phase.output) for phase in gathered(statement)} == {"d_I[2*y, b + 3*x]", "d_I[2*y + 1, b + 3*x]"}


def test_a_transposed_convolution_is_dense_in_phases() -> None:
    f = function("O[2*y + a - 1 : 8] = +(I[y] * W[a])")
    (statement,) = f.program(I=(4,), W=(4,)).statements
    odd, even = gathered(statement)
    assert str(odd) == "O[2*y + 1] = +(I[-a + y + 1] * W[2*a]), -a + y + 1 < 4"
    assert str(even) == "O[2*y] += +(I[-a + y] * W[2*a + 1]), -a + y < 4"
    assert dict(even.ranges) == {"y": range(4), "a": range(2)}


def test_the_published_convolution_reads_one_cell_beyond_each_edge() -> None:
    f = function(
        """function (D[N, X, Y, CI], K[I, J, CO, CI]) -> (R) {
             O[n, x, y, co : N, X, Y, CO] = +(D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]);
             R = (O > 0 ? O : 0);
           }"""
    )
    shapes = {"D": (32, 224, 224, 64), "K": (3, 3, 64, 64)}
    assert f.halos(**shapes) == {
        "D": ((0, 0), (1, 1), (1, 1), (0, 0)),
        "K": ((0, 0),) * 4,
        "O": ((0, 0),) * 4,
    }
    convolution, activation = f.program(**shapes).statements
    assert {name: len(span) for name, span in convolution.ranges} == {
        "ci": 64, "co": 64, "i": 3, "j": 3, "n": 32, "x": 224, "y": 224
    }  # fmt: skip
    assert convolution.points == 59_190_018_048
    assert sorted(map(str, convolution.constraints)) == ["i + x - 1 < 224", "j + y - 1 < 224"]
    taps = 3 * 224 - 2  # of the 3 a cell, without those outside of an edge
    assert analysis.terms(convolution) == 32 * 64 * 64 * taps * taps
    assert analysis.flops(convolution) == 2 * analysis.terms(convolution)
    assert f.bytes(**shapes) == 4 * (4 * 32 * 224 * 224 * 64 + 9 * 64 * 64)
    assert str(activation) == "R[_0, _1, _2, _3] = ((O[_0, _1, _2, _3] > 0) ? O[_0, _1, _2, _3] : 0)"
    assert activation.reduction_indexes == ()


def test_outputs_of_groups_and_blocks_stay_as_they_are() -> None:
    """Channels of groups, depth to space and patches are told apart by steps longer than what the others reach."""
    shapes = {"I": (2, 6, 9), "W": (3, 4, 2, 3)}
    groups = function(
        "function (I[N, C, X], W[G, O, D, A]) -> (R) {"
        "R[n, O*g + o, x : N, G*O, X] = +(I[n, D*g + c, x + a - 1] * W[g, o, c, a]) }"
    )
    (statement,) = groups.program(**shapes).statements
    assert gathered(statement) == (statement,)
    assert statement.reduction_indexes == ("c", "a")
    assert groups.halos(**shapes)["I"] == ((0, 0), (0, 0), (1, 1))
    rng = np.random.default_rng(6)
    arrays = {name: rng.integers(-3, 4, shape).astype(float) for name, shape in shapes.items()}
    padded = np.pad(arrays["I"], ((0, 0), (0, 0), (1, 1)))
    windows = np.stack([padded[:, :, a : a + 9] for a in range(3)], axis=-1).reshape(2, 3, 2, 9, 3)
    expected = np.einsum("ngcxa,goca->ngox", windows, arrays["W"]).reshape(2, 12, 9)
    np.testing.assert_array_equal(groups.reference(**arrays)["R"], expected)

    # The gradient has phases for its strides, of whole groups.
    strided = function(
        "function (I[N, C, X], W[G, O, D, A]) -> (R) {"
        "R[n, O*g + o, x : N, G*O, X/2] = +(I[n, D*g + c, 2*x + a - 1] * W[g, o, c, a]) }"
    )
    (data,) = strided.gradient_program(("I",), **shapes).statements
    assert {str(phase.output) for phase in gathered(data)} == {"d_I[n, c + 2*g, 2*x]", "d_I[n, c + 2*g, 2*x + 1]"}

    to_space = function("R[n, c, 2*y + a, 2*x + b : 1, 3, 8, 10] = +(I[n, 6*a + 3*b + c, y, x]), a < 2, b < 2, c < 3")
    (statement,) = to_space.program(I=(1, 12, 4, 5)).statements
    assert gathered(statement) == (statement,)
    data = rng.standard_normal((1, 12, 4, 5))
    expected = data.reshape(1, 2, 2, 3, 4, 5).transpose(0, 3, 4, 1, 5, 2).reshape(1, 3, 8, 10)
    np.testing.assert_array_equal(to_space.reference(I=data)["R"], expected)


def test_programs_are_keys() -> None:
    shapes = {"I": (1, 2, 9), "W": (1, 2, 3)}
    f = function(TEXT, N=1, F=1, X=4, S=2, D=1, P=0)
    again = function(TEXT.replace(" * S", "*S"), N=1, F=1, X=4, S=2, D=1, P=0)
    assert f.program(**shapes) == again.program(**shapes)
    assert hash(f.gradient_program(**shapes)) == hash(again.gradient_program(**shapes))
    assert f.program(**shapes) != function(TEXT, N=1, F=1, X=4, S=1, D=1, P=0).program(**shapes)
