"""Activation functions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blobnet.errors import near_matches
from blobnet.launch.elementwise import FUNCTIONS, EpilogueOp, activation, fits, row_call, slope_macro
from blobnet.launch.kernel_call import KernelCall
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import elementwise_work
from blobnet.layers.base import ALIKE, Kept, Layer, LayerContext, Nonlinearity, Placement, Placements, TakesCells
from blobnet.memory.blob import Shape

#: The options that are a function's number.
_NUMBERS = {name: found.number[0] for name, found in FUNCTIONS.items() if found.number}
_NUMBERS["relu"] = _NUMBERS.pop("limited_relu")
#: The names that layers take.
ACTIVATIONS = (*(name for name in FUNCTIONS if name != "limited_relu"), "softmax")


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
        own = _NUMBERS.get(self.function, "")
        for name, least in (("slope", "at least 0"), ("limit", "above 0")):
            value = getattr(self, name)
            if value is not None:
                owners = [function for function, number in _NUMBERS.items() if number == name]
                self._require(own == name, f"{name} is an option of {owners[0]} alone", function=self.function)
                number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
                fits = number and (value > 0 or name == "slope")
                self._require(fits, f"{name} must be a number {least}", **{name: value})

    def _read_number(self) -> None:
        """Takes the number in brackets after the function's name as the option that it is."""
        match = re.fullmatch(r"(\w+)\(([^()]+)\)", str(self.function))
        if match and match.group(1) in _NUMBERS:
            option = _NUMBERS[match.group(1)]
            self._require(getattr(self, option) is None, f"{option} must be given once", function=self.function)
            try:
                value = float(match.group(2))
            except ValueError:
                return
            object.__setattr__(self, "function", match.group(1))
            object.__setattr__(self, option, value)

    @property
    def kept(self) -> Kept:  # type: ignore[override]
        reads_inputs = self.elementwise and not FUNCTIONS[self.function].from_output
        return Kept(inputs=reads_inputs, output=not reads_inputs)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return self.function != "softmax"

    @property
    def nonlinearity(self) -> Nonlinearity:  # type: ignore[override]
        number = getattr(self, _NUMBERS[self.function]) if self.function in _NUMBERS else None
        text = self.function if number is None else f"{self.function}({float(number)!r})"
        name = "limited_relu" if self.limit is not None else self.function
        step = activation(name, number) if self.elementwise else None
        return Nonlinearity(text, step, gives_probabilities=self.function in ("softmax", "sigmoid"))

    @property
    def _step(self) -> EpilogueOp | None:
        return self.nonlinearity.step

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.IN_PLACE, Placement.IN_PLACE)

    def takes_cells(self, site: LayerContext) -> TakesCells:
        return ALIKE if self.elementwise else TakesCells()

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        return self._step is not None and fits([self._step, *steps], 0)

    def epilogue(self, site: LayerContext) -> tuple[EpilogueOp, ...] | None:
        return (self._step,) if self._step else None

    def forward(self, site: LayerContext) -> list[KernelCall]:
        label = f"{site.name} forward"
        if self._step is None:
            size, local = elementwise_work(site.output.shape.one_unit, site.tuning)
            blobs = {"INPUT": site.inputs[0], "OUTPUT": site.output}
            return [KernelCall("activation/softmax_forward", label, size, blobs, local_size=local)]
        blobs = {"INPUT": site.inputs[0], "OUTPUT": site.output}
        return [row_call("activation/forward", label, blobs, site.tuning, [self._step, *site.epilogue])]

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        delta = site.input_deltas[0]
        if delta is None:
            return []
        label = f"{site.name} backward data"
        roles = "VALUE", "OUTPUT_DELTA", "INPUT_DELTA"
        values = site.inputs[0] if self.kept.inputs else site.output, site.delta, delta
        macros: dict[str, Macro] = {"ACCUMULATE": int(site.accumulate[0])}
        blobs = dict(zip(roles, values, strict=True))
        if self._step is None:
            size, local = elementwise_work(delta.shape.one_unit, site.tuning)
            return [KernelCall("activation/softmax_backward", label, size, blobs, macros=macros, local_size=local)]
        macros |= slope_macro([self._step], of_results=True)
        return [row_call("activation/backward", label, blobs, site.tuning, macros=macros)]


def check_activation(layer: Layer, activation: str | None) -> None:
    """Raises OptionError unless ``layer`` may have this ``activation``."""
    if activation is not None:
        Activation(activation, name=layer.name)


def split(layer: Layer, activation: str | None) -> tuple[Layer, ...]:
    """A layer without its ``activation``, and after it that as a layer of its own: <name>_<activation>."""
    if activation is None:
        return (layer,)
    plain = replace(layer, activation=None)  # type: ignore[call-arg]
    behind = Activation(activation)
    return plain, replace(behind, name=f"{layer.name}_{behind.function}")
