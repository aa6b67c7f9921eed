"""Activation functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blobnet.blob import Shape
from blobnet.errors import near_matches
from blobnet.kernel_call import KernelCall, as_rows, elementwise_work
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

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def placement(self, training: bool) -> Placement:
        return Placement.SEPARATE if training and self.backward_reads_inputs else Placement.IN_PLACE

    def delta_placement(self) -> Placement:
        return Placement.IN_PLACE

    def epilogue(self, site: Site) -> Epilogue | None:
        return Epilogue(activation=self.function) if self.elementwise else None

    def forward(self, site: Site) -> list[KernelCall]:
        softmax = self.function == "softmax"
        source, target = (site.inputs[0], site.output) if softmax else as_rows(site.inputs[0], site.output)
        size, local = elementwise_work(target.shape.one_unit if softmax else target.shape, site.tuning)
        return [
            KernelCall(
                "activation/softmax_forward" if softmax else "activation/forward",
                f"{site.name} forward",
                size,
                blobs={"INPUT": source, "OUTPUT": target},
                macros={} if softmax else {"ACTIVATION": f"ACTIVATION_{self.function}"},
                local_size=local,
            )
        ]

    def backward_data(self, site: Site) -> list[KernelCall]:
        delta = site.input_deltas[0]
        if delta is None:
            return []
        softmax = self.function == "softmax"
        blobs = (site.inputs[0] if self.backward_reads_inputs else site.output, site.delta, delta)
        value, source, target = blobs if softmax else as_rows(*blobs)
        size, local = elementwise_work(target.shape.one_unit if softmax else target.shape, site.tuning)
        macros = {"ACCUMULATE": int(site.accumulate[0])}
        return [
            KernelCall(
                "activation/softmax_backward" if softmax else "activation/backward",
                f"{site.name} backward data",
                size,
                blobs={"VALUE": value, "OUTPUT_DELTA": source, "INPUT_DELTA": target},
                macros=macros if softmax else {"ACTIVATION": f"ACTIVATION_{self.function}", **macros},
                local_size=local,
            )
        ]


def check_activation(layer: Layer, activation: str | None) -> None:
    """Raises OptionError unless ``layer`` may have this ``activation``."""
    if activation is not None:
        Activation(activation, name=layer.name)


def split(layer: Layer, plain: Layer, activation: str | None) -> tuple[Layer, ...]:
    """``plain`` and, behind it, ``layer``'s activation as a layer of its own: <name>_<activation>."""
    if activation is None:
        return (plain,)
    return plain, Activation(activation, name=f"{layer.name}_{activation}")
