"""The functions of element-wise expressions: how many arguments they take, what they cost, what they do with zeros.

What they compute stands in :mod:`blobnet.contraction.reference`, their derivatives in
:mod:`blobnet.contraction.derivatives`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
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
    "add": Function(2, keeps_zero=True, symbol="+"),
    "subtract": Function(2, keeps_zero=True, symbol="-"),
    "multiply": Function(2, keeps_zero=True, symbol="*"),
    "divide": Function(2, tame=False, symbol="/"),
    "negate": Function(1, keeps_zero=True, symbol="-"),
    "less": Function(2, 0, keeps_zero=True, symbol="<"),
    "less_equal": Function(2, 0, symbol="<="),
    "greater": Function(2, 0, keeps_zero=True, symbol=">"),
    "greater_equal": Function(2, 0, symbol=">="),
    "equal": Function(2, 0, symbol="=="),
    "not_equal": Function(2, 0, keeps_zero=True, symbol="!="),
    "same": Function(2, 0),
    "select": Function(3, 0, keeps_zero=True),
    "abs": Function(1, 0, keeps_zero=True),
    "ceil": Function(1, keeps_zero=True),
    "cos": Function(1),
    "detach": Function(1, 0, keeps_zero=True),
    "erf": Function(1, keeps_zero=True),
    "exp": Function(1),
    "expm1": Function(1, keeps_zero=True),
    "floor": Function(1, keeps_zero=True),
    "log": Function(1, tame=False),
    "log1p": Function(1, keeps_zero=True, tame=False),
    "max": Function(2, keeps_zero=True),
    "min": Function(2, keeps_zero=True),
    "pow": Function(2, tame=False),
    "round": Function(1, keeps_zero=True),
    "sigmoid": Function(1),
    "sin": Function(1, keeps_zero=True),
    "sqrt": Function(1, keeps_zero=True, tame=False),
    "tanh": Function(1, keeps_zero=True),
}
