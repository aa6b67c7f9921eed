"""The normalization of samples inside a network: what an input layer does, after another layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blobnet.launch.elementwise import EpilogueOp, fits, with_epilogue
from blobnet.launch.kernel_call import Array, KernelCall
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import cell_call
from blobnet.layers.base import Layer, LayerContext, ParameterSpec, Placement, Placements
from blobnet.layers.initializers import GIVEN
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class Standardize(Layer):
    """Every unit shifted and scaled by numbers that are given and that no training changes.

    output = scale * (input - mean) / sqrt(variance) + shift. Shapes: (N, C, ...) -> (N, C, ...) for inputs of any rank.
    It stands where a whole network is put after a node (``model(node)``), for what its input layer does to samples;
    its kernels are those of BatchNorm in inference.
    """

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        names = "running_mean", "running_variance", "scale", "shift"
        return tuple(ParameterSpec(name, (inputs[0].units,), GIVEN, trainable=False) for name in names)

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.IN_PLACE, Placement.IN_PLACE)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        source, target = site.inputs[0], site.output
        # NOTE: a kernel takes no null blob; without a residual the role is bound to the output and not read.
        blobs = {"INPUT": source, "RESIDUAL": target, "OUTPUT": target}
        macros: dict[str, Macro] = {"EPSILON": 0.0, "IN_PLACE": int(source == target)}
        arrays = _arrays(site, "running_mean", "running_variance", "scale", "shift")
        kernel, label = "normalization/forward_inference", f"{site.name} forward"
        call = cell_call(kernel, label, blobs, site.tuning, arrays=arrays, macros=macros)
        return [with_epilogue(call, site.epilogue)]

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        return fits(steps, blobs=1)

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        target = site.input_deltas[0]
        if target is None:
            return []
        blobs = {"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target}
        macros: dict[str, Macro] = {"EPSILON": 0.0, "IN_PLACE": int(site.delta == target)}
        macros["ACCUMULATE"] = int(site.accumulate[0])
        arrays = _arrays(site, "running_variance", "scale")
        label = f"{site.name} backward data"
        return [cell_call("normalization/backward_inference", label, blobs, site.tuning, arrays=arrays, macros=macros)]


def _arrays(site: LayerContext, *names: str) -> dict[str, Array]:
    return {name.upper(): site.parameter(name) for name in names}
