"""The functions of element-wise expressions: how many arguments they take, what they cost, what they do with zeros.

What they compute stands in :mod:`blobnet.contraction.reference`, their derivatives in
:mod:`blobnet.contraction.derivatives`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScalarFunction:
    """Facts about one function.

    Args:
        arguments: how many it takes.
        flops: floating-point operations that it counts as; comparisons and choices count as none.
        keeps_zero: whether it gives 0 where every argument is 0.
        tame: whether it is finite wherever every argument is, overflow aside.
        symbol: the operator that it is written with; others are written as calls.
    """

    arguments: int
    flops: int = 1
    keeps_zero: bool = False
    tame: bool = True
    symbol: str = ""


#: By name. Comparisons give 1 or 0; ``same`` is "equal" under which NaN is NaN's equal, and is not written by users.
FUNCTIONS = {
    "add": ScalarFunction(2, keeps_zero=True, symbol="+"),
    "subtract": ScalarFunction(2, keeps_zero=True, symbol="-"),
    "multiply": ScalarFunction(2, keeps_zero=True, symbol="*"),
    "divide": ScalarFunction(2, tame=False, symbol="/"),
    "negate": ScalarFunction(1, keeps_zero=True, symbol="-"),
    "less": ScalarFunction(2, 0, keeps_zero=True, symbol="<"),
    "less_equal": ScalarFunction(2, 0, symbol="<="),
    "greater": ScalarFunction(2, 0, keeps_zero=True, symbol=">"),
    "greater_equal": ScalarFunction(2, 0, symbol=">="),
    "equal": ScalarFunction(2, 0, symbol="=="),
    "not_equal": ScalarFunction(2, 0, keeps_zero=True, symbol="!="),
    "same": ScalarFunction(2, 0),
    "select": ScalarFunction(3, 0, keeps_zero=True),
    "abs": ScalarFunction(1, 0, keeps_zero=True),
    "ceil": ScalarFunction(1, keeps_zero=True),
    "cos": ScalarFunction(1),
    "detach": ScalarFunction(1, 0, keeps_zero=True),
    "erf": ScalarFunction(1, keeps_zero=True),
    "exp": ScalarFunction(1),
    "expm1": ScalarFunction(1, keeps_zero=True),
    "floor": ScalarFunction(1, keeps_zero=True),
    "log": ScalarFunction(1, tame=False),
    "log1p": ScalarFunction(1, keeps_zero=True, tame=False),
    "max": ScalarFunction(2, keeps_zero=True),
    "min": ScalarFunction(2, keeps_zero=True),
    "pow": ScalarFunction(2, tame=False),
    "round": ScalarFunction(1, keeps_zero=True),
    "sigmoid": ScalarFunction(1),
    "sin": ScalarFunction(1, keeps_zero=True),
    "sqrt": ScalarFunction(1, keeps_zero=True, tame=False),
    "tanh": ScalarFunction(1, keeps_zero=True),
}
#: The names of those that give 1 or 0 and have an operator.
COMPARISONS = tuple(name for name, facts in FUNCTIONS.items() if facts.symbol and not facts.flops)
