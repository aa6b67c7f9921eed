"""The same from Python."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from blobnet.contraction import build, function
from blobnet.contraction.build import names
from blobnet.errors import OptionError


def test_the_published_convolution() -> None:
    n, x, y, i, j, ci, co = names("n x y i j ci co")
    N, X, Y, I, J, CI, CO, D, K, O, R = names("N X Y I J CI CO D K O R")  # noqa: E741, N806
    f = build.function(
        [D[N, X, Y, CI], K[I, J, CO, CI]],
        [R],
        [
            build.sum_of(O[n, x, y, co], (N, X, Y, CO), D[n, x + i - 1, y + j - 1, ci] * K[i, j, co, ci]),
            build.elementwise(R, build.choice(O > 0, O, 0)),
        ],
    )
    written = function(
        """function (D[N, X, Y, CI], K[I, J, CO, CI]) -> (R) {
             O[n, x, y, co : N, X, Y, CO] = +(D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]);
             R = (O > 0 ? O : 0);
           }"""
    )
    shapes = {"D": (2, 5, 6, 3), "K": (3, 3, 4, 3)}
    assert f.program(**shapes) == written.program(**shapes)


def test_operators_keep_their_order() -> None:
    a, b, c, N = names("a b c N")  # noqa: N806
    terms = {
        "a - (b - c)": a - (b - c),
        "a - b - c": a - b - c,
        "a * (b + c) / 2": a * (b + c) / 2,
        "a / (b * c)": a / (b * c),
        "-(a + b) * -c": -(a + b) * -c,
        "2 - a + 1 * b / (1 / c)": 2 - a + 1 * b / (1 / c),
        "(a < b) == (b >= c)": (a < b) == (b >= c),
        "(a != 0 ? 1 : b) + 1": build.choice(a != 0, 1, b) + 1,
        "(a <= b) + (a > b)": (a <= b) + (a > b),
        "max(a, exp(b - 1))": build.apply("max", a, build.apply("exp", b - 1)),
        "N / 2 % 3": N // 2 % 3,
        "a + -3": a + -3,
        "1 - (a ? 1 : 2)": 1 - build.choice(a, 1, 2),
    }
    for text, term in terms.items():
        assert repr(term) == text


def test_numbers_mean_what_python_means() -> None:
    A, B, O = names("A B O")  # noqa: E741, N806
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 5))
    term = 2 - (A - B) * (1 - -A) / (B * B + 1) - -(A - 3)
    f = build.function([A, B], [O], [build.elementwise(O, term)])
    np.testing.assert_allclose(f.reference(A=a, B=b)["O"], 2 - (a - b) * (1 - -a) / (b * b + 1) - -(a - 3), rtol=1e-13)


def test_constraints_maxima_and_left_out_terms() -> None:
    i, j, A, O, N = names("i j A O N")  # noqa: E741, N806
    f = build.function([A[N]], [O], [build.maximum_of(O[i], (N,), build.choice(A[j] < 5, A[j]), [(i - j, N), (j, 2)])])
    assert f.reference(A=[1, 9, 3, 4])["O"].tolist() == [1, 1, 1, 1]
    assert "O[i : N] = >(A[j] < 5 ? A[j]), i - j < N, j < 2" in f.text
    g = build.function([A[N]], [O], [build.contraction("*", O[()], None, A[i])])
    assert g.reference(A=[2, 3, 4])["O"] == 24


def test_mistakes() -> None:
    a, O = names("a O")  # noqa: E741, N806
    with pytest.raises(OptionError, match=r"^a < 3: a term is neither true nor false\. Hint: build\.choice"):
        bool(a < 3)
    with pytest.raises(
        OptionError, match=r"^expp: the language has no such function\. Hint: did you mean 'exp' or 'expm1'\?"
    ):
        build.apply("expp", a)
    with pytest.raises(OptionError, match=r"^aggregation: must be one of \+ \* > <\. Received max\.$"):
        build.contraction("max", O[a], None, a)


def test_the_example() -> None:
    assert doctest.testmod(build).failed == 0
