"""The fully connected layer: the seeds' perceptron."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from blobnet.blob import BlobLayout, Shape
from blobnet.initializers import check_initializer
from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.activation import activation_macro, check_activation, split
from blobnet.layers.base import Layer, ParameterSpec, Site
from blobnet.layers.blocking import choose_tile, lanes_for


@dataclass(frozen=True)
class Dense(Layer):
    """Every output unit sees every value of a sample: (N, ...) -> (N, units).

    output[o] = bias[o] + sum over all values k of weight[o, k] * input[k], values in the order (unit, y, x)

    Args:
        units: output units.
        bias: whether to add one number a unit.
        activation: a function to apply to the output, see Activation.
        initializer: how ``weight`` starts, see blobnet.initializers.

    Raises:
        OptionError: an argument is out of range.
    """

    units: int
    bias: bool = True
    activation: str | None = None
    initializer: str = "he_normal"

    def __post_init__(self) -> None:
        self._require_counts("units")
        self._require(isinstance(self.bias, bool), "bias must be True or False", bias=self.bias)
        check_activation(self, self.activation)
        check_initializer(self.subject, self.initializer)

    @property
    def backward_reads_inputs(self) -> bool:
        return True

    @property
    def fuses(self) -> Collection[str]:
        return ("activation",)

    @property
    def flattens_input(self) -> bool:
        return True

    def expanded(self) -> tuple[Layer, ...]:
        return split(self, replace(self, activation=None), self.activation)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape.flat(self.units)

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        weight = ParameterSpec("weight", (self.units, inputs[0].elements), self.initializer, decayed=True)
        return (weight, ParameterSpec("bias", (self.units,), "zeros")) if self.bias else (weight,)

    def forward(self, site: Site) -> list[KernelCall]:
        kernel = "dense/forward"
        tunables = site.tuning.of(kernel)
        macros, _ = _rows(site.inputs[0].layout, tunables)
        units, samples = choose_tile(
            self.units,
            tunables["MAXIMUM_SAMPLES"],
            tunables["MAXIMUM_UNITS"],
            tunables["MAXIMUM_SAMPLES"],
            tunables["MAXIMUM_ACCUMULATORS"],
        )
        local = tunables["GROUP_WIDTH"]
        return [
            KernelCall(
                kernel,
                f"{site.name} forward",
                GlobalSize(local, -(-self.units // units), samples=samples),
                blobs={"INPUT": site.inputs[0], "OUTPUT": site.output},
                # NOTE: a kernel takes no null array; without a bias the role is bound to the weights and not read.
                arrays={
                    "WEIGHT": site.parameter("weight"),
                    "BIAS": site.parameter("bias" if self.bias else "weight"),
                },
                macros={
                    **macros,
                    "HAS_BIAS": int(self.bias),
                    **activation_macro(site.activation),
                    "BLOCK_SAMPLES": samples,
                    "BLOCK_UNITS": units,
                },
                tunables=tunables,
                local_size=(local, 1, 1),
            )
        ]

    def backward_parameters(self, site: Site) -> list[KernelCall]:
        kernel = "dense/backward_weight"
        tunables = site.tuning.of(kernel)
        macros, vectors = _rows(site.inputs[0].layout, tunables)
        local = tunables["GROUP_WIDTH"]
        groups = -(-vectors // local)
        limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
        units, block_vectors = choose_tile(self.units, groups, *limits)
        return [
            KernelCall(
                kernel,
                f"{site.name} backward weight",
                GlobalSize(-(-groups // block_vectors) * local, -(-self.units // units), per_sample=False),
                blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": site.delta},
                arrays={
                    "WEIGHT_GRADIENT": site.gradient("weight"),
                    "BIAS_GRADIENT": site.gradient("bias" if self.bias else "weight"),
                },
                macros={
                    **macros,
                    "HAS_BIAS": int(self.bias),
                    "BLOCK_UNITS": units,
                    "BLOCK_VECTORS": block_vectors,
                },
                tunables=tunables,
                local_size=(local, 1, 1),
            )
        ]

    def backward_data(self, site: Site) -> list[KernelCall]:
        target = site.input_deltas[0]
        if target is None:
            return []
        kernel = "dense/backward_data"
        tunables = site.tuning.of(kernel)
        macros, vectors = _rows(target.layout, tunables)
        local = tunables["GROUP_WIDTH"]
        groups = -(-vectors // local)
        most = tunables["MAXIMUM_SAMPLES"]
        limits = tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
        samples, block_vectors = choose_tile(most, groups, most, *limits)
        return [
            KernelCall(
                kernel,
                f"{site.name} backward data",
                GlobalSize(-(-groups // block_vectors) * local, samples=samples),
                blobs={"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
                arrays={"WEIGHT": site.parameter("weight")},
                macros={
                    **macros,
                    "ACCUMULATE": int(site.accumulate[0]),
                    "BLOCK_SAMPLES": samples,
                    "BLOCK_VECTORS": block_vectors,
                },
                tunables=tunables,
                local_size=(local, 1, 1),
            )
        ]


def _rows(layout: BlobLayout, tunables: dict[str, int]) -> tuple[dict[str, Macro], int]:
    """Macros that describe a sample as runs of consecutive values, and the number of vectors in it."""
    if layout.is_contiguous:
        rows, run = 1, layout.unit_count * layout.unit_elements
    else:
        rows, run = layout.unit_count * layout.unit_height, layout.unit_width
    lanes = lanes_for(run, tunables["MAXIMUM_LANES"])
    macros: dict[str, Macro] = {
        "ROWS": rows,
        "ROW_ELEMENTS": run,
        "LANES": lanes,
    }
    return macros, rows * -(-run // lanes)
