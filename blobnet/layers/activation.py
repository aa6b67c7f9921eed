"""Activation functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blobnet.blob import Shape
from blobnet.errors import near_matches
from blobnet.kernel_call import KernelCall, activation_macro, as_rows, cell_call, elementwise_work
from blobnet.kernel_source import Macro
from blobnet.layers.base import Epilogue, Layer, Placement, Site

#: Functions whose derivative follows from their output.
FROM_OUTPUT = ("linear", "relu", "relu6", "leaky_relu", "elu", "sigmoid", "tanh", "softplus", "softmax")
#: Functions whose derivative needs their input.
FROM_INPUT = ("silu", "gelu")
ACTIVATIONS = FROM_OUTPUT + FROM_INPUT


@dataclass(frozen=True)
class Activation(Layer):
    """output = f(input), cell by cell; ``softmax`` runs over the units at each position.

    leaky_relu has the slope 0.01 below 0, elu has alpha 1, gelu is the exact one (erf).

    Args:
        function: one of ACTIVATIONS.

    Raises:
        OptionError: an unknown function.
    """

    function: str

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.function in ACTIVATIONS
        hint = None if known else near_matches(str(self.function), list(ACTIVATIONS))
        self._require(known, "the activation must be a known function", function=self.function, hint=hint)

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
    def slope(self) -> str | None:
        return self.function if self.elementwise else None

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
        return Epilogue(activation=self.slope) if self.slope else None

    def forward(self, site: Site) -> list[KernelCall]:
        label = f"{site.name} forward"
        if self.function == "softmax":
            size, local = elementwise_work(site.output.shape.one_unit, site.tuning)
            blobs = {"INPUT": site.inputs[0], "OUTPUT": site.output}
            return [KernelCall("activation/softmax_forward", label, size, blobs, local_size=local)]
        blobs = dict(zip(("INPUT", "OUTPUT"), as_rows(site.inputs[0], site.output), strict=True))
        return [cell_call("activation/forward", label, blobs, site.tuning, macros=activation_macro(self.function))]

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
        macros |= activation_macro(self.function)
        return [cell_call("activation/backward", label, blobs, site.tuning, macros=macros)]


def check_activation(layer: Layer, activation: str | None) -> None:
    """Raises OptionError unless ``layer`` may have this ``activation``."""
    if activation is not None:
        Activation(activation, name=layer.name)


def split(layer: Layer, plain: Layer, activation: str | None) -> tuple[Layer, ...]:
    """``plain`` and, behind it, ``layer``'s activation as a layer of its own: <name>_<activation>."""
    if activation is None:
        return (plain,)
    return plain, Activation(activation, name=f"{layer.name}_{activation}")
