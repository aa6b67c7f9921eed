"""Texts that make no sense: what is said, and where the carets are."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from blobnet.contraction import function
from blobnet.errors import ContractionError, DataError, OptionError

#: Each is the body of ``function (A[N, M], B[M], W[4]) -> (R)`` for N = 4, M = 3, and the message's two last parts.
WRONG = {
    "index of nothing": (
        "R[i : N] = +(A[i, j + k])",
        "the index 'j' has no range. Hint: bound it by a map of its own or a constraint, as in ', j < 3', or mend its "
        "name.",
        "                  ^",
    ),
    "coupled": (
        "R[i : N] = +(A[i, j + k] * B[k + j])",
        "the index 'j' has no range. Hint: bound it by a map of its own or a constraint, as in ', j < 3', or mend its "
        "name.",
        "                  ^",
    ),
    "no aggregation": (
        "R[i : N] = A[i, j]",
        "an aggregation (+ sum, * product, > maximum or < minimum) and '(' must follow '='. Hint: element-wise "
        "statements assign whole tensors: 'R = ...'.",
        "           ^",
    ),
    "open bracket": (
        "R[i : N] = +(A[i, j)",
        "']' is missing after the indexes; ')' stands there.",
        "                   ^",
    ),
    "unknown operand": (
        "R[i : N] = +(A[i, j] * C[j])",
        "'C' is neither an input nor assigned before. Hint: known names: A, B, W.",
        "                       ^^^^",
    ),
    "case": (
        "R[i : N] = +(a[i, j] * B[j])",
        "'a' is neither an input nor assigned before. Hint: known names: A, B, W.",
        "             ^^^^^^^",
    ),
    "unknown name": (
        "R = A + B * Q",
        "'Q' is neither a tensor nor a size. Hint: known names: A, B, M, N, W.",
        "            ^",
    ),
    "product of indexes": (
        "R[i : N] = +(A[i, j] * B[i*j])",
        "this is not affine in the indexes. Hint: maps are sums of indexes times whole numbers, and a whole number.",
        "                         ^^^",
    ),
    "quotient": (
        "R[i : N] = +(A[i, j/2] * B[j])",
        "this is not affine in the indexes. Hint: maps are sums of indexes times whole numbers, and a whole number.",
        "                  ^^^",
    ),
    "gather": (
        "R[i : N] = +(A[i, B[j]])",
        "an element cannot be an index. Hint: maps are sums of indexes times whole numbers, and a whole number.",
        "                  ^^^^",
    ),
    "tensor as index": (
        "R[i : N] = +(A[i, B])",
        "'B' is a tensor and cannot be an index. Hint: "
        "maps are sums of indexes times whole numbers, and a whole number.",
        "                  ^",
    ),
    "operand without element": (
        "R[i : N] = +(A)",
        "'A' is a tensor: its element must be named. Hint: 'A[...]'.",
        "             ^",
    ),
    "fraction": (
        "R[i : N] = +(A[i, j*1.5])",
        "indexes and sizes are whole numbers.",
        "                    ^^^",
    ),
    "element-wise element": (
        "R = A[i, j]",
        "an element-wise statement reads no single elements. Hint: name whole tensors, as in "
        "'R = exp(A)', or aggregate.",
        "    ^^^^^^^",
    ),
    "empty": (
        "R[i : N] = +(A[i, j+10] * B[j])",
        "no term is left: the range of the index 'j' is empty.",
        "                  ^",
    ),
    "outside": (
        "R[i : N] = +(A[i, 3])",
        "no term can be here: nothing of its range is inside. Received least=3, greatest=3, size=3.",
        "                  ^",
    ),
    "a result for an index": (
        "R[i : N] = +(A[R, j])",
        "'R' is a tensor and cannot be an index. Hint: maps are sums of indexes times whole numbers, and a whole "
        "number.",
        "               ^",
    ),
    "a result for an index of a constraint": (
        "R[i : N] = +(A[i, j]), R < 2",
        "'R' is a tensor and cannot be an index. Hint: maps are sums of indexes times whole numbers, and a whole "
        "number.",
        "                       ^",
    ),
    "a size for an index": (
        "R[N : N] = +(A[N, j])",
        "no term can be here: nothing of its range is inside. Received least=4, greatest=4, size=4. "
        "Hint: 'N' is a size here, and an index needs another name.",
        "               ^",
    ),
    "empty constraint": (
        "R[i : N] = +(A[i, j]), j + 1 < 0",
        "no term is left: the range of the index 'j' is empty.",
        "                  ^",
    ),
    "constant constraint": (
        "R[i : N] = +(A[i, j]), 5 < M",
        "no term can be here: nothing of its range is inside. Received least=5, greatest=5, size=3.",
        "                       ^",
    ),
    "less or equal": (
        "R[i : N] = +(A[i, j]), j <= 2",
        "a constraint must go on with '<', not '<='. Hint: 'e < r' means 0 <= e < r.",
        "                         ^^",
    ),
    "size of 0": (
        "R[i : N-4] = +(A[i, j])",
        "a size must be at least 1. Received size=0.",
        "      ^^^",
    ),
    "division by 0": (
        "R[i : N/(M-3)] = +(A[i, j])",
        "a size is divided by zero.",
        "      ^^^^^^",
    ),
    "unknown size": (
        "R[i : P] = +(A[i, j])",
        "'P' is no size. Hint: known names: M, N.",
        "      ^",
    ),
    "ambiguous size": (
        "R[i] = +(A[i+1, j])",
        "the size of this axis is ambiguous: no operand gives it. Hint: write the sizes behind ':', as in "
        "'R[... : N, M]'.",
        "  ^",
    ),
    "ambiguous valid or full": (
        "R[x : ] = +(A[x+i, j])",
        "'R' has 1 axis, but 0 are given a size.",
        "^^^^^^^",
    ),
    "no size": (
        "R[x] = +(A[x+i, j]), i < 2",
        "the size of this axis is ambiguous: no operand gives it. Hint: write the sizes behind ':', as in "
        "'R[... : N, M]'.",
        "  ^",
    ),
    "two sizes": (
        "R[i] = +(A[j, i] * A[i, j])",
        "the size of this axis is ambiguous: the operands give it [3, 4]. Hint: write the sizes behind ':', as in "
        "'R[... : N, M]'.",
        "  ^",
    ),
    "sizes that disagree": (
        "R[i : N] = +(A[i, j] * W[j])",
        "the index 'j' runs along axes of 3 and 4. Hint: if the first ones are meant, say how many: ', j < 3'.",
        "                         ^",
    ),
    "sizes missing": (
        "R[i, j : N] = +(A[i, j])",
        "'R' has 2 axes, but 1 is given a size.",
        "^^^^^^^^^^^",
    ),
    "rank": (
        "R[i : N] = +(A[i])",
        "'A' has 2 axes, but 1 is read. Received shape=(4, 3).",
        "             ^^^^",
    ),
    "no broadcast": (
        "R = A + A * (B > 0 ? A : W)",
        "shapes do not broadcast: (3,) with (4, 3) with (4,).",
        "             ^^^^^^^^^^^^^",
    ),
    "arguments": (
        "R = exp(A, A)",
        "exp takes 1 argument, not 2.",
        "    ^^^^^^^^^",
    ),
    "function": (
        "R = expp(A)",
        "there is no function 'expp'. Hint: did you mean 'exp' or 'expm1'?",
        "    ^^^^",
    ),
    "chain": (
        "R = A < A < A",
        "comparisons do not chain.",
        "          ^",
    ),
    "else": (
        "R = A ? 1",
        "':' and what holds otherwise must follow; '}' stands there.",
        "         ^",
    ),
    "remainder": (
        "R = A % B",
        "'%' is for sizes. Hint: x - y * floor(x / y).",
        "    ^^^^^",
    ),
    "sign": (
        "R = A ^ B",
        "'^' is no sign of the language.",
        "      ^",
    ),
    "input assigned": (
        "A = B",
        "'A' is an input, which is never assigned.",
        "^",
    ),
    "assigned twice": (
        "R = A; R = B",
        "'R' is assigned twice.",
        "       ^",
    ),
    "too early": (
        "R[i : N] = +(S[i]); S[i : N] = +(A[i, j])",
        "'S' is read before it is assigned.",
        "             ^^^^",
    ),
    "no statement": (
        "",
        "a statement must stand here, not '}'.",
        "                                       ^",
    ),
    "constraint inside": (
        "R[i : N] = +(A[i, j], j < 2)",
        "')' is missing after the term; ',' stands there.",
        "                    ^",
    ),
    "overflow of elements": (
        "R[i, j, k, l : 65536, 65536, N, M] = +(A[i, j])",
        "'R' must have less than 2^31 elements. Received shape=(65536, 65536, 4, 3).",
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
    ),
    "overflow of a map": (
        "R[i : N] = +(A[i, 3000000000*j])",
        "indexes must fit 32 bits. Received least=0, greatest=3000000000.",
        "                  ^^^^^^^^^^^^",
    ),
    "overflow of a size": (
        "R[i : N] = +(A[i, j]), j < 3000000000",
        "a size must be less than 2^31. Received size=3000000000.",
        "                           ^^^^^^^^^^",
    ),
    "rest": (
        "R = A B",
        "'}' is missing after the statements; 'B' stands there.",
        "      ^",
    ),
}

HEAD = "function (A[N, M], B[M], W[4]) -> (R) {\n"


@pytest.mark.parametrize("case", WRONG)
def test_messages_point_at_the_place(case: str) -> None:
    body, rule, carets = WRONG[case]
    with pytest.raises(ContractionError) as caught:
        function(f"{HEAD}{body}\n}}").program(A=(4, 3), B=(3,), W=(4,))
    line = body or HEAD.rstrip()
    where = f"contraction, line {1 + bool(body)}, column {carets.index('^') + 1}"
    assert str(caught.value) == f"{where}: {rule}\n    {line}\n    {carets}"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("head", "rule", "marked"),
    [
        ("(A[N], A[N]) -> (R)", "there are two inputs 'A'", "A[N]"),
        ("(A[N]) -> (Q)", "the output 'Q' is never assigned. Hint: known names: R", "Q"),
        ("(A[N]) -> (A)", "the output 'A' is never assigned. Hint: known names: R", "A"),
        ("(A[N]) -> (R, R)", "'R' is named twice as an output", "R"),
        ("(A[A]) -> (R)", "'A' is both a size and an input", "A[A]"),
        ("(A[R]) -> (R)", "'R' is both a size and a tensor", "R"),
        ("(A[N+1]) -> (R)", "']' is missing after the sizes; '+' stands there", "+"),
        ("(A[-1]) -> (R)", "a size, which is a name or a whole number, must stand here, not '-'", "-"),
        ("(A[1.5]) -> (R)", "indexes and sizes are whole numbers", "1.5"),
        ("(A) (R)", "'->' is missing after the inputs; '(' stands there", "("),
        ("() -> (R)", "the name of an input must stand here, not ')'", ")"),
    ],
)
def test_heads(head: str, rule: str, marked: str) -> None:
    with pytest.raises(ContractionError) as caught:
        function(f"function {head} {{ R = A; }}").program(A=(3,))
    message, line, carets = str(caught.value).split("\n")
    assert f": {rule}." in message
    assert line[carets.index("^") : len(carets)] == marked


@pytest.mark.parametrize(
    ("shapes", "rule", "marked"),
    [
        ({"A": (4, 3), "B": (4,)}, "M is 3, but 'B' has 4 here. Received shape=(4,).", "M"),
        ({"A": (4, 3), "B": (3, 1)}, "'B' must have 1 axis. Received shape=(3, 1).", "B[M]"),
        ({"A": (4, 3)}, "the input 'B' is missing. Received given=A.", "B[M]"),
        ({}, "the input 'A' is missing. Received given=none.", "A[N, M, 2]"),
        ({"A": (0, 3, 2), "B": (3,)}, "'A' must not be empty. Received shape=(0, 3, 2).", "A[N, M, 2]"),
        ({"A": (4, 3, 5), "B": (3,)}, "this axis has 2, but 'A' has 5 here. Received shape=(4, 3, 5).", "2"),
        ({"A": (65536, 32768, 2)}, "'A' must have less than 2^31 elements.", "A[N, M, 2]"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], rule: str, marked: str) -> None:
    if shapes.get("A") == (4, 3):
        shapes = shapes | {"A": (4, 3, 2)}
    with pytest.raises(ContractionError) as caught:
        function("function (A[N, M, 2], B[M]) -> (R) { R[j : M] = +(A[i, j, k] * B[j]) }").program(**shapes)
    message, line, carets = str(caught.value).split("\n")
    assert rule in message
    assert line[carets.index("^") : len(carets)] == marked


def test_a_given_size_that_disagrees() -> None:
    f = function("function (A[N]) -> (R) { R[i : N] = +(A[i]) }", N=4)
    with pytest.raises(ContractionError, match="N is 4, but 'A' has 3 here"):
        f.program(A=(3,))


def test_sizes_that_the_text_does_not_know() -> None:
    text = "function (A[N]) -> (R) { R[i : N / STRIDE] = +(A[STRIDE * i]) }"
    with pytest.raises(OptionError, match=r"^STIDE: the contraction has no such size\. Hint: did you mean 'STRIDE'\?$"):
        function(text, STIDE=2)
    with pytest.raises(OptionError, match=r"^A: the contraction has no such size"):
        function(text, A=2)
    with pytest.raises(OptionError, match=r"^STRIDE: a size must be a whole number\. Received size=2\.0\.$"):
        function(text, STRIDE=2.0)  # type: ignore[arg-type]
    assert function(text, STRIDE=np.int64(2)).program(A=(6,)).outputs[0].shape == (3,)


def test_sizes_that_differ_on_purpose() -> None:
    """A constraint, the output's shape or a window says how many are meant."""
    a, w = np.arange(12.0).reshape(4, 3), np.array([1.0, 2.0, 3.0, 4.0])
    for text, wanted in {
        "R[i : 4] = +(A[i, j] * W[j]), j < 3": a @ w[:3],
        "R[j : 4] = +(A[i, j] * W[j])": np.append(a.sum(0) * w[:3], 0),
        "R[i : 4] = +(A[i, j] * W[j] * W[j + 1])": a @ (w[:3] * w[1:]),
    }.items():
        np.testing.assert_allclose(function(text).reference(A=a, W=w)["R"], wanted)


def test_texts_that_are_none() -> None:
    with pytest.raises(OptionError, match=r"^text: a contraction must be a string\. Received text=5\.$"):
        function(5)  # type: ignore[arg-type]


def test_what_is_no_input_or_output() -> None:
    f = function("R[i] = +(A[i])")
    with pytest.raises(OptionError, match=r"^B: the contraction has no such input\. Received inputs=A\.$"):
        f.program(A=(3,), B=(3,))
    with pytest.raises(OptionError, match=r"^B: the contraction has no such input\. Received inputs=A\.$"):
        f.gradient_program(["B"], A=(3,))
    one = np.ones(3)
    with pytest.raises(DataError, match=r"^Q: the contraction has no such output\. Received outputs=R\.$"):
        f.reference_gradients({"A": one}, {"Q": one})
    with pytest.raises(DataError, match=r"^R: the delta of this output is missing\. Received given=none\.$"):
        f.reference_gradients({"A": one}, {})
    with pytest.raises(DataError, match=r"^R: its delta must have its shape \(3,\)\. Received shape=\(2,\)\.$"):
        f.reference_gradients({"A": one}, {"R": one[:2]})
    with pytest.raises(DataError, match=r"^A: must be an array of real numbers\. Received type=complex128\.$"):
        f.reference(A=one * 1j)


@pytest.mark.parametrize(
    "text", ["(" * 200, "R = " + "A + " * 200 + "A", "R = " + "(" * 150 + "A" + ")" * 150, "R = -" * 99]
)
def test_deep_texts(text: str) -> None:
    with pytest.raises(ContractionError) as caught:
        function(text)
    assert all(len(line) < 110 for line in str(caught.value).split("\n")[1:])
    assert str(caught.value).split("\n")[2].strip("^ ") == ""


@pytest.mark.parametrize(
    ("body", "aggregation", "constraint"),
    [
        ("R[x : X] = >(A[x+i-1]), i < 3", ">", "i + x - 1 < 5"),
        ("R[x : X] = <(A[x+i-1]), i < 3", "<", "i + x - 1 < 5"),
        ("R[x : X] = *(A[x+i-1]), i < 3", "[*]", "i + x - 1 < 5"),
        ("R[x : X] = +(A[x+i-1] + B[i]), i < 3", "[+]", "i + x - 1 < 5"),
        ("R[x : X] = +(A[x+i-1] == B[i]), i < 3", "[+]", "i + x - 1 < 5"),
        ("R[x : X] = +(exp(A[x+i-1]) * B[i]), i < 3", "[+]", "i + x - 1 < 5"),
        ("R[x : X] = +(A[x+i-1] / B[x+i-1]), i < 3", "[+]", "i + x - 1 < 5"),
        ("R[x : X] = +(A[x+i-1] * log(B[x+i-1])), i < 3", "[+]", "i + x - 1 < 5"),
        ("R[x : X] = +(A[i] * B[x]), x - i < 5", "[+]", "-i + x < 5"),
    ],
)
def test_what_no_halo_can_be(body: str, aggregation: str, constraint: str) -> None:
    f = function(f"function (A[X], B[X]) -> (R) {{\n  {body}\n}}")
    rule = f"under {aggregation} no halo of zeros can replace the constraint {constraint.replace('+', '[+]')}"
    with pytest.raises(ContractionError, match=f"line 2, column 3: {rule}") as caught:
        f.halos(A=(5,), B=(5,))
    assert str(caught.value).endswith("\n      ^^^^^^^^")


@pytest.mark.parametrize(
    "term",
    [
        "A[x+i-1]",
        "A[x+i-1] * B[i]",
        "B[i] * -A[x+i-1]",
        "A[x+i-1] * exp(B[i])",
        "A[x+i-1] * log(B[i])",
        "tanh(A[x+i-1])",
        "A[x+i-1] / 3",
        "A[x+i-1] * A[x+i-1]",
        "A[x+i-1] + B[x+i-1]",
        "(B[i] > 0 ? A[x+i-1] : 0)",
        "pow(A[x+i-1], 2)",
    ],
)
def test_what_halos_can_be(term: str) -> None:
    f = function(f"function (A[X], B[X]) -> (R) {{ R[x : X] = +({term}), i < 3 }}")
    assert f.halos(A=(5,), B=(5,))["A"] == ((1, 1),)
