"""Expressions as OpenCL C, for a scalar or for the lanes of a vector: the text is the same but for the type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from blobnet.contraction.form import Affine, Apply, Expression, Number, Position
from blobnet.contraction.functions import COMPARISONS, FUNCTIONS
from blobnet.contraction.table import Load, Value

#: Functions that OpenCL C has under other names.
_NAMES = {"abs": "fabs", "round": "rint"}
#: How often a function's text repeats an argument, which then has to be a name.
_REPEATS = ("max", "min", "same")


def number(value: float) -> str:
    """A float literal that is exactly the float32 nearest to ``value``."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = repr(float(value))
    return f"{text}f" if any(letter in text for letter in ".e") else f"{text}.0f"


def affine(form: Affine, names: Mapping[str, str]) -> str:
    """An affine form of indexes, whose values have these texts."""
    parts = []
    constant = form.offset
    for name, factor in form.terms:
        text = names[name]
        if text.lstrip("-").isdigit():
            constant += factor * int(text)
        else:
            parts.append(
                text if factor == 1 else f"{factor} * {text}" if text.isidentifier() else f"{factor} * ({text})"
            )
    return summed(*parts, constant)


class Text:
    """Writes expressions of one type.

    Args:
        type: ``float`` or the vector's.
        load: the text of an operand's value.
        place: the text of an affine form of the indexes, as a value of the type.
        value: the text of the aggregated value.
        note: declares a name for a text that is needed more than once, and returns it.
        rounded: of the text of an expression, that of its value as it is in an operand's memory.
    """

    def __init__(
        self,
        type: str,
        load: Callable[[Load], str],
        place: Callable[[Affine], str],
        value: str,
        note: Callable[[str], str],
        rounded: Callable[[str, Expression, Load], str],
    ) -> None:
        self.type, self.load, self.place, self.value, self.note = type, load, place, value, note
        self.rounded = rounded

    def of(self, expression: Expression) -> str:
        """The text, in brackets where it needs them."""
        if isinstance(expression, Number):
            text = number(expression.value)
            return text if self.type == "float" else f"({self.type})({text})"
        if isinstance(expression, Load):
            return self.load(expression)
        if isinstance(expression, Position):
            return self.place(expression.form)
        if isinstance(expression, Value):
            return self.value
        assert isinstance(expression, Apply)
        return self.function(expression.function, expression.arguments)

    def function(self, name: str, arguments: tuple[Expression, ...]) -> str:
        """The text of a function."""
        if name == "select":
            condition, chosen, otherwise = arguments
            return f"({self.condition(condition)} ? {self.of(chosen)} : {self.of(otherwise)})"
        if name in (*COMPARISONS, "same"):
            one, zero = self.of(Number(1.0)), self.of(Number(0.0))
            return f"({self.condition(Apply(name, arguments))} ? {one} : {zero})"
        texts = [self.named(part) if name in _REPEATS else self.of(part) for part in arguments]
        symbol = FUNCTIONS[name].symbol
        if symbol:
            return f"({f' {symbol} '.join(texts)})" if len(texts) > 1 else f"({symbol}{texts[0]})"
        if name in ("max", "min"):
            return larger(texts[0], texts[1], "<=" if name == "max" else ">=")
        if name == "detach":
            return texts[0]
        if name == "sigmoid":
            return f"({self.of(Number(1.0))} / ({self.of(Number(1.0))} + exp(-{texts[0]})))"
        return f"{_NAMES.get(name, name)}({', '.join(texts)})"

    def named(self, expression: Expression) -> str:
        """A name, or a text as short."""
        text = self.of(expression)
        return text if text.isidentifier() else self.note(text)

    def condition(self, expression: Expression) -> str:
        """Return a condition as ``?`` takes it: for vectors, lanes of -1 and 0."""
        if isinstance(expression, Apply):
            if expression.function in COMPARISONS:
                a, b = map(self.of, expression.arguments)
                return f"({a} {FUNCTIONS[expression.function].symbol} {b})"
            if expression.function == "same":
                a, b = map(self.named, expression.arguments)
                value, kept = expression.arguments
                if isinstance(kept, Load) and (text := self.rounded(a, value, kept)) != a:
                    a = self.note(text)  # A maximum was rounded where it was stored.
                return f"(({a} == {b}) | (({a} != {a}) & ({b} != {b})))"
        return f"({self.of(expression)} != {self.of(Number(0.0))})"


def larger(a: str, b: str, comparison: str) -> str:
    """The larger of two names (``<=``), or the smaller (``>=``); NaN if one of them is."""
    return f"((({a} != {a}) | ({b} {comparison} {a})) ? {a} : {b})"


def combined(aggregation: str, total: str, term: str) -> str:
    """The statement that adds a term, a name under maxima and minima, to a total."""
    if aggregation in "+*":
        return f"{total} {aggregation}= {term};"
    if aggregation == "=":
        return f"{total} = {term};"
    return f"{total} = {larger(total, term, '<=' if aggregation == '>' else '>=')};"


def times(text: str, factor: int) -> str:
    """``factor * text`` of a name, a number or what is in brackets."""
    if not factor:
        return "0"
    if text.isdigit():
        return str(int(text) * factor)
    if not (text.isidentifier() or (text.startswith("(") and is_one(text))):
        text = f"({text})"
    return text if factor == 1 else f"{text} * {factor}" if factor >= 0 else f"{text} * ({factor})"


def summed(*parts: object) -> str:
    """The sum of texts and numbers; zeros are left out."""
    text = " + ".join(str(part) for part in parts if str(part) != "0") or "0"
    return text.replace("+ -", "- ")


def digit(number: str, below: int, size: int = 0) -> str:
    """How often ``below`` is in a number; of that the rest by ``size``, where there is more in front."""
    text = number if below == 1 else f"{number} / {below}"
    return f"{text} % {size}" if size else text


def is_one(text: str) -> bool:
    """Return True if the first bracket closes at the end."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place == len(text) - 1
    return False


def quotient(text: str, divisor: int) -> str:
    """Division that rounds down, as C's does not below zero."""
    if divisor == 1:
        return text if text.isdigit() else f"({text})"
    if text.lstrip("-").isdigit():
        return str(int(text) // divisor)
    # A multiple of the divisor that makes any 31-bit number positive is too large: the sign is looked at.
    return f"(({text}) >= 0 ? ({text}) / {divisor} : -((-({text}) + {divisor - 1}) / {divisor}))"


def nested(function: str, values: list[str]) -> str:
    """A function of two of many values."""
    text = values[0]
    for value in values[1:]:
        text = f"{function}({text}, {value})"
    return text
