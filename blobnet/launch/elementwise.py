"""Operations on single values: activation functions, and the steps of an epilogue.

Each is an expression in the contraction language, of which kernels of kernels/ get C, as macros, and compiled ones a
statement. There is no other place where they stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from blobnet.errors import KernelError
from blobnet.launch.kernel_call import Array, Blob, KernelCall, Tuning
from blobnet.launch.kernel_source import Definition, Macro
from blobnet.launch.work_sizes import cell_call
from blobnet.memory.blob import StorageType


class Activation(NamedTuple):
    """A function f of single values.

    Attributes:
        value: f(x), and of a number p that some have beside.
        slope: f'(x), of x and y = f(x), for C alone. At kinks it is PyTorch's (docs/training.md).
        number: the option that p is, and its value where nobody gives one.
    """

    value: str
    slope: str
    number: tuple[str, float | None] | None = None

    @property
    def from_output(self) -> bool:
        """True if the slope follows from y alone, so that nobody need keep x."""
        return not re.search(r"\bx\b", self.slope)


# NOTE: numbers with a point are floats in C; those that values are only compared with need none.
_SIGMOID = "1 / (1 + exp(-x))"
# tanh(softplus(x)) = n / (n + 2) with n = e^2 + 2e, e = exp(x): 1 long before e overflows.
_POWER = "exp(min(x, 20.0))"
_TANH = f"({_POWER} * ({_POWER} + 2)) / ({_POWER} * ({_POWER} + 2) + 2)"
FUNCTIONS = {
    "linear": Activation("x", "1.0"),
    "relu": Activation("x < 0 ? 0.0 : x", "y > 0 ? 1.0 : 0.0"),
    "limited_relu": Activation("x < 0 ? 0.0 : x > p ? p : x", "y > 0 && y < p ? 1.0 : 0.0", ("limit", None)),
    "relu6": Activation("x < 0 ? 0.0 : x > 6 ? 6.0 : x", "y > 0 && y < 6 ? 1.0 : 0.0"),
    "leaky_relu": Activation("x > 0 ? x : p * x", "y > 0 ? 1.0 : p", ("slope", 0.01)),
    "elu": Activation("x > 0 ? x : expm1(x)", "y > 0 ? 1.0 : y + 1"),
    "sigmoid": Activation(_SIGMOID, "y * (1 - y)"),
    "hard_sigmoid": Activation(
        "x < -3 ? 0.0 : x > 3 ? 1.0 : x * 0.16666667 + 0.5", "y > 0 && y < 1 ? 0.16666667 : 0.0"
    ),
    "tanh": Activation("tanh(x)", "1 - y * y"),
    "softplus": Activation("max(x, 0.0) + log1p(exp(-abs(x)))", "-expm1(-y)"),
    "silu": Activation("x / (1 + exp(-x))", f"({_SIGMOID}) * (1 + x * (1 - ({_SIGMOID})))"),
    "gelu": Activation(
        "0.5 * x * (1 + erf(x * 0.70710678))",
        "0.5 * (1 + erf(x * 0.70710678)) + x * 0.39894228 * exp(-0.5 * x * x)",
    ),
    "hard_swish": Activation(
        "x * (x < -3 ? 0.0 : x > 3 ? 1.0 : x * 0.16666667 + 0.5)",
        "x <= -3 ? 0.0 : x >= 3 ? 1.0 : x * 0.33333334 + 0.5",
    ),
    "mish": Activation(f"x * ({_TANH})", f"{_TANH} + x * (1 - ({_TANH})) * (1 + ({_TANH})) * ({_SIGMOID})"),
}


#: What a step's blob may have a value for, as kernels/joined.h has them in HAS_RESIDUAL.
PER_CELL, PER_UNIT, PER_PLANE_CELL = 1, 2, 3


@dataclass(frozen=True)
class EpilogueOp:
    """One thing that is done to a value before it is stored.

    Attributes:
        expression: of the value ``x``, of ``r`` if there is a blob, and of the names of numbers.
        blob: another one that is read at the value's place.
        numbers: those of the value's unit, by name: arrays of one for each.
        slope: the expression's derivative, of x and of y, the result, for C; empty if nobody needs it.
        per: what the blob has a value for: PER_CELL, PER_UNIT (all its cells) or PER_PLANE_CELL (in all units).
    """

    expression: str
    blob: Blob | None = None
    numbers: tuple[tuple[str, Array], ...] = ()
    slope: str = ""
    per: int = PER_CELL

    def operand_shape(self, of_blob: bool, output: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of its blob, or numbers, beside an output (samples, units, ...) in the language."""
        samples, units, *sizes = output
        whole = self.per != PER_UNIT and of_blob
        cells = tuple(sizes) if whole else (1,) * len(sizes)
        return (*([samples] if of_blob else []), 1 if of_blob and self.per == PER_PLANE_CELL else units, *cells)

    def reads_like(self, kind: StorageType) -> bool:
        """Return True if the units of its blob lie as those of a value of this type do; one unit is for all of them."""
        return not self.blob or self.per == PER_PLANE_CELL or self.blob.type.cell == kind.cell

    def named(self, place: int) -> dict[str, Array]:
        """Its numbers by names that those of other steps of a chain do not have."""
        return {f"{name}_{place}": array for name, array in self.numbers}

    def part(self, first: int, units: int) -> EpilogueOp:
        """The step for some units of the values, from the first one on."""
        blob = self.blob
        if blob and self.per != PER_PLANE_CELL:
            blob = blob.part(first, units)
        numbers = tuple(
            (name, replace(array, offset=array.offset + first, elements=units)) for name, array in self.numbers
        )
        return replace(self, blob=blob, numbers=numbers)


#: The sum of a value and another blob's.
SUM = "x + r"


@dataclass(frozen=True)
class Norm(EpilogueOp):
    """A normalization with numbers that are known before; products may put it into their weights."""

    epsilon: float = 0.0


def norm(arrays: Mapping[str, Array], epsilon: float) -> Norm:
    """The norm with these arrays: RUNNING_MEAN, RUNNING_VARIANCE, SCALE and SHIFT."""
    expression = f"(x - RUNNING_MEAN) * (SCALE / sqrt(RUNNING_VARIANCE + {float(epsilon)!r})) + SHIFT"
    return Norm(expression, numbers=tuple(arrays.items()), epsilon=float(epsilon))


def activation(function: str, number: float | None) -> EpilogueOp:
    """The step that an activation is, of FUNCTIONS."""
    found = FUNCTIONS[function]
    default = found.number[1] if found.number else None
    names = {"p": repr(float((default or 0.0) if number is None else number))}
    return EpilogueOp(renamed(found.value, names), slope=renamed(found.slope, names))


# -- as statements of the contraction language -------------------------------------------------------------------------

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def renamed(expression: str, names: Mapping[str, str]) -> str:
    """An expression with other texts for some names."""
    return _NAME.sub(lambda match: names.get(match[0], match[0]), expression)


class Tail(NamedTuple):
    """Statements behind a tensor: their texts, the last one's output, and what they read besides and whose, by name."""

    statements: tuple[str, ...]
    output: str
    operands: Mapping[str, Blob | Array]
    steps: Mapping[str, EpilogueOp]

    def shapes(self, output: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the operands, for an output (samples, units, ...)."""
        return {
            name: self.steps[name].operand_shape(isinstance(operand, Blob), output)
            for name, operand in self.operands.items()
        }


def statements(steps: Sequence[EpilogueOp], first: str, prefix: str) -> Tail:
    """The steps as element-wise statements, from the tensor ``first`` on; new names begin with ``prefix``.

    Numbers of units have the shape (units, 1, ...), which goes with (samples, units, ...).
    """
    found: list[str] = []
    operands: dict[str, Blob | Array] = {}
    owners: dict[str, EpilogueOp] = {}
    value = first
    for place, step in enumerate(steps):
        names = {"x": value, "r": f"{prefix}r_{place}"}
        own: dict[str, Blob | Array] = {names["r"]: step.blob} if step.blob else {}
        for (name, array), unique in zip(step.numbers, step.named(place), strict=True):
            names[name] = f"{prefix}{unique}"
            own[names[name]] = array
        operands |= own
        owners |= dict.fromkeys(own, step)
        value = f"{prefix}x_{place}"
        found.append(f"{value} = {renamed(step.expression, names)}")
    return Tail(tuple(found), value, operands, owners)


# -- as C of kernels ---------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"(?<![\w.])(?:(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z_]\w*))")
_IN_C = {"abs": "fabs", "max": "fmax", "min": "fmin"}
#: Characters of C that an epilogue may have: each step has the one before it in place of every x.
_MAX_TEXT = 4000


def c_text(expression: str, names: Mapping[str, str]) -> str:
    """An expression as C, in brackets, with these texts for names."""

    def change(match: re.Match[str]) -> str:
        if match["number"]:
            return match[0] if match[0].isdigit() else f"{match[0]}f"
        return names.get(match[0], _IN_C.get(match[0], match[0]))

    return f"({_TOKEN.sub(change, expression)})"


def _of_unit(step: EpilogueOp, place: int) -> dict[str, str]:
    """The C texts of a step's numbers."""
    return {
        name: f"UNIT_NUMBERS(ARRAY({own.lower()}), unit)"
        for (name, _), own in zip(step.numbers, step.named(place), strict=True)
    }


def _chained(steps: Sequence[EpilogueOp], value: str, first: int = 0) -> str:
    """The steps, from number ``first`` of a chain on, of a C text in brackets."""
    for place, step in enumerate(steps, start=first):
        value = c_text(step.expression, {"x": value, **_of_unit(step, place)})
    return value


def slope_macro(steps: Sequence[EpilogueOp], *, of_results: bool = False) -> dict[str, Macro]:
    """SLOPE(x), the derivative of steps by the value x in front of them; ``of_results``: of one step, at its result."""
    value, factors = "(x)", []
    for step in steps:
        result = value if of_results else c_text(step.expression, {"x": value})
        factors.append(c_text(step.slope, {"x": value, "y": result}))
        value = result
    return {"SLOPE": Definition(f"(x) {' * '.join(factors) or '1.0f'}")}


def fits(steps: Sequence[EpilogueOp], blobs: int) -> bool:
    """Return True if the kernels of kernels/ can do the steps, if they can read so many ``blobs`` besides their own."""
    own = [step for step in steps if step.blob]
    return len(own) <= blobs and sum(map(len, map(str, _macros(steps, has_bias=True).values()))) <= _MAX_TEXT


def _macros(steps: Sequence[EpilogueOp], *, has_bias: bool, has_term: bool = False) -> dict[str, Macro]:
    """Return the macros that kernels/epilogue.h lists."""
    place = next((place for place, step in enumerate(steps) if step.blob), len(steps))
    before, rest = steps[:place], steps[place:]
    term, first = "((value) + (term))" if has_term else "(value)", 0
    if rest:
        term = c_text(rest[0].expression, {"x": "(value)", "r": "(term)", **_of_unit(rest[0], place)})
        first = place + 1
    before, after = (before, rest[1:]) if rest else ((), steps)
    biased = "((value) + (bias))" if has_bias else "(value)"
    roles = [role.lower() for number, step in enumerate(steps) for role in step.named(number)]
    return {
        "BIASED": Definition(f"(value, bias, unit) {_chained(before, biased)}"),
        "JOINED": Definition(f"(value, term, unit) {term}"),
        "FINISHED": Definition(f"(value, unit) {_chained(after, '(value)', first)}"),
        "MORE_ARRAYS": "".join(f", READ_ARRAY({role}_t, {role})" for role in roles),
        "MORE_ARGUMENTS": "".join(f", {role}_array, {role}_offset" for role in roles),
    }


def with_epilogue(call: KernelCall, steps: Sequence[EpilogueOp], bias_mode: int = 0) -> KernelCall:
    """A call of a kernel that includes kernels/epilogue.h, which does the steps before it stores a value.

    ``bias_mode`` is a product's: 1 a bias for each unit, 2 for each position, which is a term of cells then.

    Raises:
        KernelError: what the steps read is not for the units of the blob that the kernel writes.
    """
    source = call.source
    _check_units(call, steps)
    macros = _macros(steps, has_bias=bias_mode == 1, has_term=bias_mode == 2)
    joined = next((step for step in steps if step.blob), None)
    macros["HAS_RESIDUAL"] = joined.per if joined else 0
    blobs = {"RESIDUAL": joined.blob} if joined and joined.blob else {}
    numbers = {role: array for place, step in enumerate(steps) for role, array in step.named(place).items()}
    return replace(
        call,
        blobs={**call.blobs, **blobs},
        arrays={**call.arrays, **numbers},
        macros={**call.macros, **{name: macros[name] for name in macros if name in source.macros}},
        generated=source.reading(numbers, behind="BIAS") if numbers else call.generated,
    )


def _check_units(call: KernelCall, steps: Sequence[EpilogueOp]) -> None:
    """Kernels find numbers by the unit, so a view of the blob with other units would find those of others."""
    if not steps:
        return
    made = call.blobs["OUTPUT" if "OUTPUT" in call.blobs else "RESULT"]
    units = made.shape.units
    for step in steps:
        if not step.reads_like(made.type):
            rule = "a blob that its epilogue reads must have as many units in an element as the one that it writes"
            received = step.blob.type.cell if step.blob else 1
            raise KernelError(f"kernel {call.kernel} ({call.label})", rule, written=made.type.cell, read=received)
        read = [array.elements for _, array in step.numbers]
        read += [step.blob.shape.units] if step.blob and step.per != PER_PLANE_CELL else []
        if any(count != units for count in read):
            rule = "a kernel must write the units for which its epilogue has numbers"
            raise KernelError(f"kernel {call.kernel} ({call.label})", rule, units=units, numbers=read)


def row_call(
    kernel: str,
    label: str,
    blobs: Mapping[str, Blob],
    tuning: Tuning,
    steps: Sequence[EpilogueOp] = (),
    macros: Mapping[str, Macro] | None = None,
) -> KernelCall:
    """The launch of a kernel of single values, with the steps behind it.

    A flat sample is one row, if no blob has padding, and no step numbers of its own for each unit.
    """
    rows = {role: replace(blob, layout=blob.layout.as_row()) for role, blob in blobs.items()}
    are_rows = len({row.layout for row in rows.values()}) == 1 and not any(step.numbers or step.blob for step in steps)
    return with_epilogue(cell_call(kernel, label, rows if are_rows else blobs, tuning, macros=macros), steps)
