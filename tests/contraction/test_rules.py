"""The written rule for infinities, NaN, ties and cells without terms, and what element-wise functions give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from blobnet.contraction import function, reference
from blobnet.contraction.form import Apply
from tests.contraction.conformance import assert_conforms
from tests.reference.central_differences import numerical_gradient

INF, NAN = math.inf, math.nan


def value(text: str, **arrays: object) -> np.ndarray:
    return function(text).reference(**{name: np.array(a, float) for name, a in arrays.items()})["O"]


def gradients(text: str, delta: object = 1.0, **arrays: object) -> dict[str, list[float]]:
    f = function(text)
    given = {name: np.array(a, float) for name, a in arrays.items()}
    shape = f.reference(**given)["O"].shape
    found = f.reference_gradients(given, {"O": np.broadcast_to(np.array(delta, float), shape)})
    return {name: gradient.tolist() for name, gradient in found.items()}


def test_zero_times_infinity_within_a_term_is_nan() -> None:
    assert np.isnan(value("O[] = +(A[i] * B[i])", A=[0, 1], B=[INF, 1]))


def test_what_padding_leaves_out_meets_no_infinity() -> None:
    text, data, taps = "O[x : 4] = +(A[x + i - 1] * K[i])", [1, 2, 3, 4], [INF, 1, 1]
    np.testing.assert_array_equal(value(text, A=data, K=taps), [3, INF, INF, INF])


def test_halos_may_give_nan_where_an_infinity_meets_their_zeros_and_nowhere_else() -> None:
    program = function("O[x : 5] = +(A[x + i - 1] * K[i])").program(A=(5,), K=(3,))
    arrays = {"A": np.array([1, 2, INF, 4, 5.0]), "K": np.array([INF, 1, 1])}
    without, with_halos = (reference.run(program, arrays, with_halos=flag)["O"] for flag in (False, True))
    np.testing.assert_array_equal(without, [3, INF, INF, INF, INF])
    np.testing.assert_array_equal(with_halos, [NAN, INF, INF, INF, INF])
    arrays["K"][0] = 1.0
    without, with_halos = (reference.run(program, arrays, with_halos=flag)["O"] for flag in (False, True))
    np.testing.assert_array_equal(with_halos, without)


@pytest.mark.parametrize("aggregation", "+*><")
def test_nan_is_kept(aggregation: str) -> None:
    for data in ([NAN, 1, 2], [1, NAN, 2], [1, 2, NAN], [-INF, NAN, INF], [0, NAN, 0]):
        assert np.isnan(value(f"O[] = {aggregation}(A[i])", A=data))


@pytest.mark.parametrize(("aggregation", "expected"), [("+", 0), ("*", 1), (">", -INF), ("<", INF)])
def test_cells_without_terms_are_neutral(aggregation: str, expected: float) -> None:
    np.testing.assert_array_equal(value(f"O[2*x : 4] = {aggregation}(A[x])", A=[5, 7]), [5, expected, 7, expected])
    np.testing.assert_array_equal(
        value(f"O[x : 2] = {aggregation}(A[x, i] > 0 ? A[x, i])", A=[[-1, -2], [0, 3]]), [expected, 3]
    )


def test_extremes_of_infinities() -> None:
    assert value("O[] = >(A[i])", A=[-INF, -INF]) == -INF
    assert value("O[] = <(A[i])", A=[INF, 3, -INF]) == -INF


@pytest.mark.parametrize(
    ("data", "delta"),
    [
        ([3, 3, 3], [1, 0, 0]),
        ([1, 3, 3], [0, 1, 0]),
        ([NAN, 3, NAN], [1, 0, 0]),
        ([3, NAN, NAN], [0, 1, 0]),
        ([-INF, -INF, -INF], [1, 0, 0]),
        ([0.0, -0.0, 0.0], [1, 0, 0]),
    ],
)
def test_the_first_of_equal_terms_has_the_delta(data: list[float], delta: list[float]) -> None:
    assert gradients("O[] = >(A[i])", A=data) == {"A": delta}
    assert gradients("O[] = <(A[i])", A=np.negative(data)) == {"A": delta}


def test_the_order_of_terms_is_that_of_the_indexes_in_the_text() -> None:
    ones = np.ones((2, 2, 2))
    rows, columns = np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    # In the first, j is the last index, so i is 0 and 0 first; the smaller square excludes (0, 0).
    rows[:, 0, 1] = columns[:, 1, 0] = 1.0
    for text, expected in (
        ("O[n : 2] = >(A[n, i, j] * B[i, j])", rows),
        ("O[n : 2] = >(B[i, j] * A[n, i, j])", rows),
        ("O[n : 2] = >(C[j, i] * A[n, i, j] * B[i, j])", columns),
    ):
        arrays = {"A": ones, "B": [[0, 1], [1, 0]]} | ({"C": np.ones((2, 2))} if "C" in text else {})
        assert gradients(text, **arrays)["A"] == expected.tolist()


def test_overlapping_windows_add_up_and_ties_do_not() -> None:
    found = gradients("O[x : 4] = >(A[x + i]), i < 2", [1, 10, 100, 1000], A=[1, 5, 5, 1, 1])
    assert found == {"A": [0, 11, 100, 1000, 0]}


def test_ties_of_an_unpooling_maximum() -> None:
    # Cells 1 to 3 have two terms each from different x: the first x has the delta.
    assert gradients("O[x + i : 4] = >(A[x]), i < 2", [1, 10, 100, 1000], A=[2, 2, 2]) == {"A": [11, 100, 1000]}


def test_products_need_no_quotient() -> None:
    assert gradients("O[] = *(A[i])", A=[0, 3, 5]) == {"A": [15, 0, 0]}
    assert gradients("O[] = *(A[i])", A=[0, 3, 0]) == {"A": [0, 0, 0]}
    assert gradients("O[] = *(A[i])", A=[1e200, 1e200, 1e-300]) == {"A": [1e-100, 1e-100, INF]}


def test_a_branch_not_taken_has_a_delta_of_zero() -> None:
    assert gradients("O = (A > 0 ? log(A) : 0)", A=[0, -1, 2]) == {"A": [0, 0, 0.5]}
    assert gradients("O = (A > 0 ? A : 0)", [INF, NAN, 3], A=[-1, 0, 1]) == {"A": [0, 0, 3]}


def test_kinks() -> None:
    assert gradients("O = max(A, B)", A=[1, 1, NAN, 0, 2], B=[1, 2, 0, NAN, 1]) == {
        "A": [1, 0, 1, 0, 1],
        "B": [0, 1, 0, 1, 0],
    }
    assert gradients("O = min(A, B)", A=[1, 1], B=[1, 2]) == {"A": [1, 1], "B": [0, 0]}
    assert gradients("O = abs(A)", A=[-2, 0, 2]) == {"A": [-1, 0, 1]}
    assert gradients("O = floor(A) + ceil(A) + (A > 1)", A=[-2, 0.5, 2]) == {"A": [0, 0, 0]}
    assert gradients("O = A * detach(A)", A=[-2, 3]) == {"A": [-2, 3]}
    assert gradients("O = round(A)", A=[-2.5, 0.5, 1.3]) == {"A": [1, 1, 1]}
    assert gradients("O = pow(A, B)", A=[0, 0, 2], B=[0, 2, 0]) == {"A": [0, 0, 0], "B": [0, 0, math.log(2)]}
    assert gradients("O = sqrt(A)", A=[0, 4]) == {"A": [INF, 0.25]}


FUNCTIONS = {
    "abs(A)": np.abs,
    "cos(A)": np.cos,
    "erf(A)": np.vectorize(math.erf),
    "exp(A)": np.exp,
    "log(A * A + 1)": lambda a: np.log(a * a + 1),
    "pow(A * A + 1, 1.5)": lambda a: (a * a + 1) ** 1.5,
    "pow(2, A)": lambda a: 2.0**a,
    "pow(A, 3)": lambda a: a**3,
    "sigmoid(A)": lambda a: 1 / (1 + np.exp(-a)),
    "sin(A)": np.sin,
    "sqrt(A * A + 1)": lambda a: np.sqrt(a * a + 1),
    "tanh(A)": np.tanh,
    "max(A, -A / 2)": lambda a: np.maximum(a, -a / 2),
    "min(A, A * A)": lambda a: np.minimum(a, a * a),
    "1 / (A * A + 2)": lambda a: 1 / (a * a + 2),
    "-A - -2 * A": lambda a: a,
    "A - 1 - 2": lambda a: a - 3,
    "A / 2 / 4": lambda a: a / 8,
    "1 - A * 2 + A": lambda a: 1 - a * 2 + a,
    "A * (1 + A)": lambda a: a * (1 + a),
    "A > 0 ? A : A < -1 ? 2 * A : 3 * A": lambda a: np.where(a > 0, a, np.where(a < -1, 2 * a, 3 * a)),
    "A >= 0 ? 1 : A != A ? 2 : 3": lambda a: np.where(a >= 0, 1.0, 3.0),
    "(A <= 0) + (A == A) * 2": lambda a: (a <= 0) + 2.0,
    "floor(3 * A) - ceil(A)": lambda a: np.floor(3 * a) - np.ceil(a),
    "floor(round(3 * A))": lambda a: np.rint(3 * a),
    "N * A + N / 2": lambda a: 12 * a + 6,
    "1.5e0 * A + .5 * A + 2. * A": lambda a: 4 * a,
}


@pytest.mark.parametrize("text", FUNCTIONS)
def test_functions_and_their_derivatives(text: str) -> None:
    rng = np.random.default_rng(4)
    array = rng.standard_normal(12)
    f = function(f"function (A[N]) -> (O) {{ O = {text} }}")
    expected = FUNCTIONS[text](array)
    np.testing.assert_allclose(f.reference(A=array)["O"], expected, rtol=1e-14)
    delta = rng.standard_normal(12)
    # Inside one statement of a contraction, too.
    inner = function(f"function (A[N]) -> (O) {{ O[n : N] = +({text.replace('A', 'A[n]')}) }}")
    np.testing.assert_allclose(inner.reference(A=array)["O"], expected, rtol=1e-14)
    measured = numerical_gradient(lambda moved: float((f.reference(A=moved)["O"] * delta).sum()), array)
    for g in (f, inner):
        found = g.reference_gradients({"A": array}, {"O": delta})["A"]
        np.testing.assert_allclose(found, measured, rtol=1e-6, atol=1e-7)


def test_sigmoid_and_its_kin_do_not_overflow() -> None:
    np.testing.assert_array_equal(value("O = sigmoid(A)", A=[-1000, 0, 1000]), [0, 0.5, 1])
    assert gradients("O = sigmoid(A) + tanh(A)", A=[-1000, 1000]) == {"A": [0, 0]}


SHAPES = [((), ()), ((3,), ()), ((3,), (1,)), ((2, 3), (3,)), ((2, 1), (3,)), ((2, 1, 4), (3, 1)), ((1,), (1, 1))]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_broadcasting_is_numpys(first: tuple[int, ...], second: tuple[int, ...], swapped: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = (second, first) if swapped else (first, second)
    arrays = {name: np.array(rng.standard_normal(shape)) for name, shape in zip("AB", shapes, strict=True)}
    f = function("O = A * B + A")
    expected = arrays["A"] * arrays["B"] + arrays["A"]
    np.testing.assert_array_equal(f.reference(**arrays)["O"], expected)
    delta = rng.standard_normal(expected.shape)
    found = f.reference_gradients(arrays, {"O": delta})

    def loss(_: np.ndarray) -> float:
        return float((f.reference(**arrays)["O"] * delta).sum())

    for name, array in arrays.items():  # each is changed in place
        np.testing.assert_allclose(found[name], numerical_gradient(loss, array), rtol=1e-6, atol=1e-8)
        assert found[name].shape == array.shape


def test_several_statements_share_operands() -> None:
    """Softmax: an input read thrice, results read by later statements, and outputs that are read themselves."""
    f = function(
        """function (A[N, M]) -> (P, E, L) {
             T[n : N] = >(A[n, m]);
             E[n, m : N, M] = +(exp(A[n, m] - T[n]));  # of one term each
             S[n : N] = +(E[n, m]);
             P[n, m : N, M] = +(E[n, m] / S[n]);
             L = log(S) + T;
           }"""
    )
    rng = np.random.default_rng(2)
    array = rng.standard_normal((3, 4))
    found = f.reference(A=array)
    powers = np.exp(array)
    np.testing.assert_allclose(found["P"], powers / powers.sum(1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(found["L"], np.log(powers.sum(1)), rtol=1e-12)
    deltas = {name: rng.standard_normal(result.shape) for name, result in found.items()}

    def loss(moved: np.ndarray) -> float:
        return sum(float((result * deltas[name]).sum()) for name, result in f.reference(A=moved).items())

    gradient = f.reference_gradients({"A": array}, deltas)["A"]
    np.testing.assert_allclose(gradient, numerical_gradient(loss, array), rtol=1e-6, atol=1e-8)


def test_inputs_that_nothing_depends_on_have_gradients_of_zero() -> None:
    f = function("function (A[N], B[M]) -> (O) { Q = B * 2; O = A > 0 }")
    found = f.reference_gradients({"A": np.ones(3), "B": np.ones(2)}, {"O": np.ones(3)})
    assert {name: array.tolist() for name, array in found.items()} == {"A": [0, 0, 0], "B": [0, 0]}


def test_derivatives_recompute_no_more_than_they_read() -> None:
    f = function("function (A[N, K], B[K]) -> (O) { S[n : N] = +(A[n, k] * B[k]); O = (S > 0 ? S : 0) }")
    shapes = {"A": (4, 3), "B": (3,)}
    names = [statement.output.tensor.name for statement in f.gradient_program(**shapes).statements]
    assert names == ["S", "d_S", "d_A", "d_B"]
    names = [statement.output.tensor.name for statement in f.gradient_program(["B"], **shapes).statements]
    assert names == ["S", "d_S", "d_B"]
    linear = function("function (A[N, K], B[K]) -> (O) { O[n : N] = +(A[n, k] * B[k]) }")
    assert len(linear.gradient_program(**shapes).statements) == 2


def test_what_a_choice_leaves_out_is_not_read_backward() -> None:
    """The units of two inputs in turns: each has every other one of the delta."""
    text = "function (A[C], B[C]) -> (O) { O[2*c + k : 2*C] = +(k < 1 ? A[c] : B[c]), k < 2; }"
    program = function(text).gradient_program(A=(3,), B=(3,))
    assert {one.output.tensor.name: one.box["k"] for one in program.statements} == {"d_A": range(1), "d_B": range(1, 2)}
    assert not any(isinstance(node, Apply) for one in program.statements for node in one.expression.walk())
    assert gradients(text, [1, 2, 3, 4, 5, 6], A=[0, 0, 0], B=[0, 0, 0]) == {"A": [1, 3, 5], "B": [2, 4, 6]}
    # The outer ones of three are no range.
    outer = "function (A[C], B[C]) -> (O) { O[3*c + k : 3*C] = +(k == 1 ? A[c] : B[c]), k < 3; }"
    assert gradients(outer, [1, 2, 3, 4, 5, 6], A=[0, 0], B=[0, 0]) == {"A": [2, 5], "B": [4, 10]}


def test_what_is_added_to_a_copy_is_added_to_its_source() -> None:
    text = "function (I[G, K]) -> (O) { S[g : G] = +(I[g, k] / K); O[g, k] = +(I[g, k] - S[g]); }"
    program = function(text).gradient_program(I=(2, 3))
    assert [one.output.tensor.name for one in program.statements] == ["d_S", "d_I"]
    assert gradients(text, [[3, 0, 0], [0, 6, 3]], I=np.zeros((2, 3))) == {"I": [[2, -1, -1], [-3, 3, 0]]}


def test_a_sum_passes_its_delta_on_without_a_copy() -> None:
    shapes = {"A": (4, 3), "W": (5, 3), "B": (5,)}
    head, product = "function (A[N, K], W[M, K], B[M]) -> (O)", "S[n, m : N, M] = +(A[n, k] * W[m, k]);"
    sums = {
        # What S gets is what O got, and nothing else: d_S is d_O.
        "T = S * 2; O[n, m] = +(T[n, m] + B[m]);": ["d_S", "d_A", "d_W", "d_B"],
        "O[n, m] = +(S[n, m] + B[m]);": ["d_A", "d_W", "d_B"],
        # Two readers add up, a part has zeros besides, and other cells are other cells.
        "O[n, m] = +(S[n, m] + S[n, m] * B[m]);": ["d_S", "d_A", "d_W", "d_B"],
        "T[n] = +(S[n, m]); O[n, m] = +(S[n, m] + B[m] * T[n]);": ["d_T", "d_S", "d_A", "d_W", "d_B"],
        "O[n, m : N, 3] = +(S[n, m] + B[m]);": ["d_S", "d_A", "d_W", "d_B"],
        "O[n, m : N, M] = +(S[n, 4 - m] + B[m]);": ["d_S", "d_A", "d_W", "d_B"],
    }
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    for text, wanted in sums.items():
        f = function(f"{head} {{ {product} {text} }}")
        program = f.gradient_program(**shapes)
        made = [one.output.tensor.name for one in program.statements if one.output.tensor.name.startswith("d_")]
        assert sorted(made) == sorted(wanted), text
        delta = random.standard_normal(f.reference(**arrays)["O"].shape)
        found = f.reference_gradients(arrays, {"O": delta})
        for name in shapes:

            def loss(values: np.ndarray, f: Any = f, name: str = name, delta: np.ndarray = delta) -> float:
                return float((f.reference(**{**arrays, name: values})["O"] * delta).sum())

            np.testing.assert_allclose(found[name], numerical_gradient(loss, arrays[name]), atol=1e-6)


def test_names_of_deltas_give_way() -> None:
    f = function("function (A[N], d_O[N], d_A[N]) -> (O) { O = A * d_O + d_A }")
    program = f.gradient_program(["A"], A=(2,), d_O=(2,), d_A=(2,))
    assert [tensor.name for tensor in program.inputs] == ["A", "d_O", "d_A", "d_O_"]
    assert [tensor.name for tensor in program.outputs] == ["d_A_"]
    arrays = {"A": np.ones(2), "d_O": np.array([2.0, 3.0]), "d_A": np.ones(2)}
    found = f.reference_gradients(arrays, {"O": np.array([1.0, 10.0])})
    assert {name: array.tolist() for name, array in found.items()} == {"A": [2, 30], "d_O": [1, 10], "d_A": [1, 10]}


def test_sums_of_an_operand_and_one_of_other_indexes_keep_its_range() -> None:
    """Each A has as many terms as B has elements, and so its gradient."""
    assert gradients("O[] = +(A[i] + B[j])", A=[1, 2, 3], B=[1, 1]) == {"A": [2, 2, 2], "B": [3, 3]}
    # Where A ends, B's last element meets fewer terms.
    assert gradients("O[x : 3] = +(A[x + j] + B[j])", A=[1, 2, 3], B=[1, 1]) == {"A": [1, 2, 2], "B": [3, 2]}


def test_an_operand_read_along_its_diagonal() -> None:
    assert gradients("O[] = +(A[i, i] * A[i, 0])", A=[[1, 2], [3, 4]]) == {"A": [[2, 0], [4, 3]]}
    assert value("O[i, i : 2, 2] = +(A[i])", A=[5, 6]).tolist() == [[5, 0], [0, 6]]


def test_triangles_and_index_values() -> None:
    assert value("O[i : 3] = +(A[j]), i - j < 3", A=[1, 10, 100]).tolist() == [1, 11, 111]
    assert value("O[] = +(i * A[i])", A=[1, 10, 100]) == 210
    assert value("O[i : 3] = +(i == j ? 0 : A[j])", A=[1, 10, 100]).tolist() == [110, 101, 11]


def test_sizes_are_expressions_that_round_down() -> None:
    text = "function (A[N, 2]) -> (O) { O[i, k : (N - K) / S + 1, N % 4 * 2 - -1] = +(A[S * i + j, 1]), j < K, k < 7 }"
    f = function(text, K=2, S=3)
    array = np.arange(14.0).reshape(7, 2)
    assert f.reference(A=array)["O"].tolist() == [[sum(array[3 * i + j, 1] for j in (0, 1))] * 7 for i in (0, 1)]
    assert f.program(A=(7, 2)).outputs[0].shape == (2, 7)
    with pytest.raises(ValueError, match=r"a size must be at least 1\. Received size=0"):
        function(text, K=4, S=3).program(A=(3, 2))  # (3 - 4) / 3 + 1 is 0, not 1


def test_repeated_large_spaces_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    a, b = rng.integers(-3, 4, (9, 8)).astype(float), rng.integers(-3, 4, (8, 7)).astype(float)
    monkeypatch.setattr(reference, "BLOCK", 13)
    np.testing.assert_array_equal(value("C[i, k] = +(A[i, j] * B[j, k]); O = C", A=a, B=b), a @ b)


def test_more_terms_than_floats_count_have_no_gradient_of_their_maximum() -> None:
    from blobnet.errors import OptionError

    f = function("O[] = >(A[i])")
    with pytest.raises(OptionError, match=r"a maximum must be over no more than 2\^24 terms\. Received terms=16777217"):
        f.gradient_program(A=(2**24 + 1,))
    f.gradient_program(A=(2**24,))


def test_conformance_knows_right_from_wrong() -> None:
    program = function("O[x : 5] = +(A[x + i - 1] * K[i])").program(A=(5,), K=(3,))
    arrays = {"A": np.array([1, 2, INF, 4, 5.0]), "K": np.array([INF, 1, 1])}

    def check(*values: float) -> None:
        assert_conforms(program, arrays, {"O": np.array(values)}, relative=1e-6, absolute=0.0, what="sum")

    check(3, INF, INF, INF, INF)
    check(NAN, INF, INF, INF, INF)  # as a halo gives it
    for wrong in ((3, NAN, INF, INF, INF), (INF, INF, INF, INF, INF), (3, INF, INF, INF, 5), (3.1, INF, INF, INF, INF)):
        with pytest.raises(AssertionError, match=r"^sum: O is wrong in 1 of 5 cells, first at \(\d,\): "):
            check(*wrong)
    with pytest.raises(AssertionError, match=r"^sum: O has shape \(2,\), not \(5,\)"):
        check(1, 2)
