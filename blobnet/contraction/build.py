"""The language from Python: names with operators, which write the text of a function.

>>> from blobnet.contraction import build
>>> n, x, k, c, N, X, K, C, I, W, O = build.names("n x k c N X K C I W O")
>>> f = build.function(
...     [I[N, X, C], W[K, C]], [O], [build.sum_of(O[n, x], (N, X), I[n, x + k - 1, c] * W[k, c])]
... )
>>> print(f.text)
function (I[N, X, C], W[K, C]) -> (O) {
  O[n, x : N, X] = +(I[n, x + k - 1, c] * W[k, c]);
}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blobnet.contraction.function import Function
from blobnet.contraction.function import function as parsed
from blobnet.contraction.syntax import AGGREGATIONS, CALLABLE
from blobnet.errors import OptionError, near_matches

_CHOICE, _COMPARISON, _SUM, _PRODUCT, _UNARY = range(5)


class Term:
    """A piece of an expression: a name, an element, a number, or operators of them. Comparisons give terms, too."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str, level: int = _UNARY) -> None:
        self.text = text
        self.level = level

    def __repr__(self) -> str:
        return self.text

    def __getitem__(self, maps: Term | float | tuple[Term | float, ...]) -> Term:
        parts = maps if isinstance(maps, tuple) else (maps,)
        return Term(f"{self.text}[{_listed(parts)}]")

    def __neg__(self) -> Term:
        return Term(f"-{_inside(self, _UNARY)}", _UNARY)

    def __add__(self, other: Term | float) -> Term:
        return _binary(self, "+", other, _SUM)

    def __radd__(self, other: float) -> Term:
        return _binary(other, "+", self, _SUM)

    def __sub__(self, other: Term | float) -> Term:
        return _binary(self, "-", other, _SUM)

    def __rsub__(self, other: float) -> Term:
        return _binary(other, "-", self, _SUM)

    def __mul__(self, other: Term | float) -> Term:
        return _binary(self, "*", other, _PRODUCT)

    def __rmul__(self, other: float) -> Term:
        return _binary(other, "*", self, _PRODUCT)

    def __truediv__(self, other: Term | float) -> Term:
        """A quotient; between sizes it is rounded down, and ``//`` is the same."""
        return _binary(self, "/", other, _PRODUCT)

    __floordiv__ = __truediv__

    def __rtruediv__(self, other: float) -> Term:
        return _binary(other, "/", self, _PRODUCT)

    def __mod__(self, other: Term | float) -> Term:
        return _binary(self, "%", other, _PRODUCT)

    def __lt__(self, other: Term | float) -> Term:
        return _binary(self, "<", other, _COMPARISON)

    def __le__(self, other: Term | float) -> Term:
        return _binary(self, "<=", other, _COMPARISON)

    def __gt__(self, other: Term | float) -> Term:
        return _binary(self, ">", other, _COMPARISON)

    def __ge__(self, other: Term | float) -> Term:
        return _binary(self, ">=", other, _COMPARISON)

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return _binary(self, "==", other, _COMPARISON)

    def __ne__(self, other: object) -> Term:  # type: ignore[override]
        return _binary(self, "!=", other, _COMPARISON)

    def __bool__(self) -> bool:
        raise OptionError(self.text, "a term is neither true nor false", hint="build.choice(condition, a, b).")


def _text(term: object) -> str:
    return term.text if isinstance(term, Term) else repr(term)


def _inside(term: object, level: int) -> str:
    """The text as an operand of what binds at ``level``, in brackets where it binds less."""
    binds = term.level if isinstance(term, Term) else _UNARY
    return _text(term) if binds >= level else f"({_text(term)})"


def _binary(left: object, symbol: str, right: object, level: int) -> Term:
    # Sums and products go from left to right, and comparisons do not chain.
    own = level + (level == _COMPARISON)
    return Term(f"{_inside(left, own)} {symbol} {_inside(right, level + 1)}", level)


def _listed(parts: Iterable[object]) -> str:
    return ", ".join(map(_text, parts))


def names(text: str) -> tuple[Term, ...]:
    """Names of indexes, sizes and tensors, apart by blanks; what a name is follows from its use."""
    return tuple(map(Term, text.split()))


def apply(name: str, *arguments: Term | float) -> Term:
    """A function of the language, ``apply("exp", x)``."""
    if name not in CALLABLE:
        raise OptionError(name, "the language has no such function", hint=near_matches(name, sorted(CALLABLE)))
    return Term(f"{name}({_listed(arguments)})")


def choice(condition: Term, chosen: Term | float, otherwise: Term | float | None = None) -> Term:
    """``condition ? chosen : otherwise``; without ``otherwise`` (as a whole term only) the term is left out."""
    text = f"{_inside(condition, _COMPARISON)} ? {_text(chosen)}"
    return Term(text if otherwise is None else f"{text} : {_text(otherwise)}", _CHOICE)


def contraction(
    aggregation: str,
    output: Term,
    sizes: Sequence[Term | int] | None,
    term: Term | float,
    constraints: Iterable[tuple[Term, Term | int]] = (),
) -> str:
    """A statement that aggregates.

    Args:
        aggregation: "+" sum, "*" product, ">" maximum, "<" minimum.
        output: the element that is written, ``O[n, x]``.
        sizes: of the output, or None where operands give them.
        term: what is aggregated.
        constraints: pairs (e, r) for 0 <= e < r.
    """
    if aggregation not in AGGREGATIONS:
        raise OptionError("aggregation", f"must be one of {' '.join(AGGREGATIONS)}", received=aggregation)
    element = output.text if not sizes else f"{output.text.removesuffix(']')} : {_listed(sizes)}]"
    bounds = "".join(f", {_inside(e, _SUM)} < {_inside(r, _SUM)}" for e, r in constraints)
    return f"{element} = {aggregation}({_text(term)}){bounds}"


def sum_of(
    output: Term,
    sizes: Sequence[Term | int] | None,
    term: Term | float,
    constraints: Iterable[tuple[Term, Term | int]] = (),
) -> str:
    """:func:`contraction` of a sum."""
    return contraction("+", output, sizes, term, constraints)


def maximum_of(
    output: Term,
    sizes: Sequence[Term | int] | None,
    term: Term | float,
    constraints: Iterable[tuple[Term, Term | int]] = (),
) -> str:
    """:func:`contraction` of a maximum."""
    return contraction(">", output, sizes, term, constraints)


def elementwise(output: Term, value: Term | float) -> str:
    """An element-wise statement."""
    return f"{output.text} = {_text(value)}"


def function(inputs: Iterable[Term], outputs: Iterable[Term], statements: Iterable[str], **sizes: int) -> Function:
    """A function of inputs ``D[N, X]``, outputs and statements; see :func:`blobnet.contraction.function`."""
    body = "".join(f"  {statement};\n" for statement in statements)
    return parsed(f"function ({_listed(inputs)}) -> ({_listed(outputs)}) {{\n{body}}}", **sizes)
