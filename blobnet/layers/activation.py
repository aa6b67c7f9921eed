"""Activation functions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blobnet.blob import Shape
from blobnet.errors import near_matches
from blobnet.implementations.operation import NO_ACTIVATION
from blobnet.kernel_call import KernelCall, as_rows, cell_call, elementwise_work
from blobnet.kernel_source import Macro
from blobnet.layers.base import Epilogue, Layer, Placement, Site

#: Functions whose derivative follows from their output.
FROM_OUTPUT = (
    *("linear", "relu", "relu6", "leaky_relu", "elu"),
    *("sigmoid", "hard_sigmoid", "tanh", "softplus", "softmax"),
)
#: Functions whose derivative needs their input.
FROM_INPUT = ("silu", "gelu", "hard_swish", "mish")
ACTIVATIONS = FROM_OUTPUT + FROM_INPUT
#: What they are in the contraction language, of x and the number p; kernels/activation/functions.h has them for files.
EXPRESSIONS = {
    "linear": "x",
    "relu": "x < 0 ? 0 : x",
    "limited_relu": "x < 0 ? 0 : x > p ? p : x",
    "relu6": "x < 0 ? 0 : x > 6 ? 6 : x",
    "leaky_relu": "x > 0 ? x : p * x",
    "elu": "x > 0 ? x : exp(x) - 1",
    "sigmoid": "sigmoid(x)",
    "hard_sigmoid": "x < -3 ? 0 : x > 3 ? 1 : x / 6 + 0.5",
    "tanh": "tanh(x)",
    "softplus": "max(x, 0) + log(1 + exp(-abs(x)))",
    "silu": "x * sigmoid(x)",
    "gelu": "0.5 * x * (1 + erf(x * 0.7071067811865476))",
    "hard_swish": "x < -3 ? 0 : x > 3 ? x : x * (x / 6 + 0.5)",
    "mish": "x * tanh(max(x, 0) + log(1 + exp(-abs(x))))",
}
#: The options that are a function's number, and its value where nobody gives one.
NUMBERS: dict[str, tuple[str, float | None]] = {"leaky_relu": ("slope", 0.01), "relu": ("limit", None)}


@dataclass(frozen=True)
class Activation(Layer):
    """output = f(input), cell by cell; ``softmax`` runs over the units at each position.

    elu has alpha 1, gelu is the exact one (erf), hard_sigmoid is ``min(max(x / 6 + 1/2, 0), 1)``, hard_swish
    ``x * hard_sigmoid(x)`` (Howard et al., *Searching for MobileNetV3*, 2019), mish ``x * tanh(log(1 + exp(x)))``
    (Misra 2019).

    Args:
        function: one of ACTIVATIONS; ``leaky_relu(0.2)`` and ``relu(4)`` have the number in brackets, which is also how
            the ``activation`` of other layers takes it.
        slope: of leaky_relu below 0, at least 0; 0.01 if None.
        limit: above 0: what relu gives at most; None is none.

    Raises:
        OptionError: an unknown function, or a number that it does not have, or that is out of its range.
    """

    function: str
    slope: float | None = None
    limit: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._read_number()
        known = self.function in ACTIVATIONS
        hint = None if known else near_matches(str(self.function), list(ACTIVATIONS))
        self._require(known, "the activation must be a known function", function=self.function, hint=hint)
        own = NUMBERS.get(self.function, ("", None))[0]
        for name, least in (("slope", "at least 0"), ("limit", "above 0")):
            value = getattr(self, name)
            if value is not None:
                owners = [function for function, (number, _) in NUMBERS.items() if number == name]
                self._require(own == name, f"{name} is an option of {owners[0]} alone", function=self.function)
                number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
                fits = number and (value > 0 or name == "slope")
                self._require(fits, f"{name} must be a number {least}", **{name: value})

    def _read_number(self) -> None:
        """Takes the number in brackets behind the function's name as the option that it is."""
        match = re.fullmatch(r"(\w+)\(([^()]+)\)", str(self.function))
        if match and match.group(1) in NUMBERS:
            option = NUMBERS[match.group(1)][0]
            self._require(getattr(self, option) is None, f"{option} must be given once", function=self.function)
            try:
                value = float(match.group(2))
            except ValueError:
                return
            object.__setattr__(self, "function", match.group(1))
            object.__setattr__(self, option, value)

    @property
    def backward_reads_inputs(self) -> bool:
        return self.function in FROM_INPUT

    @property
    def backward_reads_output(self) -> bool:
        return self.function in FROM_OUTPUT

    @property
    def elementwise(self) -> bool:
        return self.function != "softmax"

    @property
    def activates(self) -> str | None:
        if not self.elementwise:
            return None
        number = getattr(self, NUMBERS[self.function][0]) if self.function in NUMBERS else None
        return self.function if number is None else f"{self.function}({float(number)!r})"

    @property
    def gives_probabilities(self) -> bool:
        return self.function in ("softmax", "sigmoid")

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def placement(self, training: bool) -> Placement:
        return Placement.IN_PLACE

    def delta_placement(self) -> Placement:
        return Placement.IN_PLACE

    def epilogue(self, site: Site) -> Epilogue | None:
        return Epilogue(activation=self.activates) if self.activates else None

    def forward(self, site: Site) -> list[KernelCall]:
        label = f"{site.name} forward"
        if self.function == "softmax":
            size, local = elementwise_work(site.output.shape.one_unit, site.tuning)
            blobs = {"INPUT": site.inputs[0], "OUTPUT": site.output}
            return [KernelCall("activation/softmax_forward", label, size, blobs, local_size=local)]
        blobs = dict(zip(("INPUT", "OUTPUT"), as_rows(site.inputs[0], site.output), strict=True))
        return [cell_call("activation/forward", label, blobs, site.tuning, macros=activation_macro(self.activates))]

    def backward_data(self, site: Site) -> list[KernelCall]:
        delta = site.input_deltas[0]
        if delta is None:
            return []
        label = f"{site.name} backward data"
        roles = "VALUE", "OUTPUT_DELTA", "INPUT_DELTA"
        values = site.inputs[0] if self.backward_reads_inputs else site.output, site.delta, delta
        macros: dict[str, Macro] = {"ACCUMULATE": int(site.accumulate[0])}
        if self.function == "softmax":
            size, local = elementwise_work(delta.shape.one_unit, site.tuning)
            blobs = dict(zip(roles, values, strict=True))
            return [KernelCall("activation/softmax_backward", label, size, blobs, macros=macros, local_size=local)]
        blobs = dict(zip(roles, as_rows(*values), strict=True))
        macros |= activation_macro(self.activates)
        return [cell_call("activation/backward", label, blobs, site.tuning, macros=macros)]


def activation_macro(function: str | None) -> dict[str, Macro]:
    """The macros that tell a kernel its activation (kernels/activation/functions.h); None is none."""
    if function is None:
        return dict(NO_ACTIVATION)
    name, number = _named(function)
    return {"ACTIVATION": f"ACTIVATION_{name}", "ACTIVATION_PARAMETER": number}


def expression(function: str, x: str) -> str:
    """An activation of the tensor ``x`` in the contraction language."""
    name, number = _named(function)
    values = {"x": x, "p": repr(number)}
    return re.sub(r"\b[xp]\b", lambda match: values[match[0]], EXPRESSIONS[name])


def _named(function: str) -> tuple[str, float]:
    """The name that kernels have for an activation, and its number; 0 if it has none."""
    layer = Activation(function)
    option, default = NUMBERS.get(layer.function, ("", None))
    number = getattr(layer, option) if option else None
    name = "limited_relu" if layer.limit is not None else layer.function
    return name, float((default or 0.0) if number is None else number)


def check_activation(layer: Layer, activation: str | None) -> None:
    """Raises OptionError unless ``layer`` may have this ``activation``."""
    if activation is not None:
        Activation(activation, name=layer.name)


def split(layer: Layer, plain: Layer, activation: str | None) -> tuple[Layer, ...]:
    """``plain`` and, behind it, ``layer``'s activation as a layer of its own: <name>_<activation>."""
    if activation is None:
        return (plain,)
    behind = Activation(activation)
    return plain, replace(behind, name=f"{layer.name}_{behind.function}")
