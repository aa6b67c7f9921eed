"""Normalization over the batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from blobnet.blob import Shape
from blobnet.kernel_call import (
    Array,
    GlobalSize,
    KernelCall,
    Tuning,
    elementwise_work,
    full_group,
    power_of_two,
    row_group,
)
from blobnet.layers.base import Epilogue, Layer, Norm, ParameterSpec, Placement, Site

Local = tuple[int, int, int] | None

#: Cells that a CPU's work-item should have at least, so that starting it does not cost more than its work.
_CELLS_OF_A_WORK_ITEM = 512
#: Work-items of a GPU that share the samples of a unit.
_SAMPLE_SHARERS = 32


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Every unit shifted and scaled to mean 0 and variance 1, and then by two learned numbers.

    output = scale * (input - mean) / sqrt(variance + epsilon) + shift, with statistics of a unit over the samples and
    planes of the batch in training, and running ones in inference (Ioffe and Szegedy, *Batch Normalization*, 2015).
    Shapes: (N, C, ...) -> (N, C, ...) for inputs of any rank. Reads no halo.

    Conventions are PyTorch's: the population variance (sum / M, for M values of a unit in the batch) normalizes, the
    unbiased one (sum / (M - 1)) goes into running_variance, running = (1 - momentum) * running + momentum * batch.
    Where M is 1 (one sample of 1x1 planes, say the last batch) both variances are 0, and the output is the shift.

    Args:
        momentum: the weight of a batch in the running statistics, from 0 to 1.
        epsilon: added to the variance, at least 1e-30.

    Raises:
        OptionError: a number out of its range.
    """

    momentum: float = 0.1
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        momentum, epsilon = self.momentum, self.epsilon
        self._require(_is_number(momentum) and 0 <= momentum <= 1, "momentum must be from 0 to 1", momentum=momentum)
        # Less is 0 in float32, and 0 / 0 where a unit is constant.
        fits = _is_number(epsilon) and 1e-30 <= epsilon < math.inf
        self._require(fits, "epsilon must be a finite number of at least 1e-30", epsilon=epsilon)

    @property
    def backward_reads_inputs(self) -> bool:
        return True

    @property
    def fuses(self) -> Collection[str]:
        return ("activation",)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def parameters(self, inputs: Sequence[Shape]) -> tuple[ParameterSpec, ...]:
        shape = (inputs[0].units,)
        return (
            ParameterSpec("scale", shape, "ones"),
            ParameterSpec("shift", shape, "zeros"),
            ParameterSpec("running_mean", shape, "zeros", trainable=False),
            ParameterSpec("running_variance", shape, "ones", trainable=False),
        )

    def placement(self, training: bool) -> Placement:
        return Placement.SEPARATE if training else Placement.IN_PLACE

    def delta_placement(self) -> Placement:
        return Placement.IN_PLACE

    def forward(self, site: Site) -> list[KernelCall]:
        source, target = site.inputs[0], site.output
        activation = {"ACTIVATION": f"ACTIVATION_{site.activation or 'linear'}"}
        parameters = _affine(site)
        running = _running(site)
        label = f"{site.name} forward"
        size, local = _cell_work(target.shape, site.tuning)
        if not site.training:
            return [
                KernelCall(
                    "normalization/forward_inference",
                    label,
                    size,
                    blobs={"INPUT": source, "OUTPUT": target},
                    arrays={**running, **parameters},
                    macros={"EPSILON": float(self.epsilon), "IN_PLACE": int(source == target), **activation},
                    local_size=local,
                )
            ]
        units = source.layout.unit_count
        partials = {"PARTIALS": site.memory("partials", per_sample=3 * units)}
        kernel = "normalization/forward_plane_statistics"
        plane_size, plane_local = _plane_work(source.shape, site.tuning)
        unit_size, unit_local = _unit_work(units, site.tuning)
        return [
            KernelCall(
                kernel,
                f"{label} (planes)",
                plane_size,
                blobs={"INPUT": source},
                arrays=partials,
                tunables=_lanes(kernel, source.shape, site.tuning),
                local_size=plane_local,
            ),
            KernelCall(
                "normalization/forward_statistics",
                f"{label} (statistics)",
                unit_size,
                arrays={**partials, "STATISTICS": _statistics(site), **running},
                macros={
                    "UNITS": units,
                    "CELLS": source.layout.unit_elements,
                    "MOMENTUM": float(self.momentum),
                    "EPSILON": float(self.epsilon),
                },
                local_size=unit_local,
            ),
            KernelCall(
                "normalization/forward",
                label,
                size,
                blobs={"INPUT": source, "OUTPUT": target},
                arrays={"STATISTICS": _statistics(site), **parameters},
                macros=activation,
                local_size=local,
            ),
        ]

    def epilogue(self, site: Site) -> Epilogue | None:
        return None if site.training else Epilogue(norm=Norm(_running(site) | _affine(site), float(self.epsilon)))

    def backward_parameters(self, site: Site) -> list[KernelCall]:
        source = site.inputs[0]
        units = source.layout.unit_count
        partials = {"PARTIALS": site.memory("delta_partials", per_sample=2 * units)}
        kernel = "normalization/backward_plane_sums"
        label = f"{site.name} backward parameters"
        plane_size, plane_local = _plane_work(source.shape, site.tuning)
        unit_size, unit_local = _unit_work(units, site.tuning)
        return [
            KernelCall(
                kernel,
                f"{label} (planes)",
                plane_size,
                blobs={"INPUT": source, "OUTPUT_DELTA": site.delta},
                arrays={"STATISTICS": _statistics(site), **partials},
                tunables=_lanes(kernel, source.shape, site.tuning),
                local_size=plane_local,
            ),
            KernelCall(
                "normalization/backward_parameters",
                label,
                unit_size,
                arrays={**partials, **_gradients(site)},
                macros={"UNITS": units},
                local_size=unit_local,
            ),
        ]

    def backward_data(self, site: Site) -> list[KernelCall]:
        target = site.input_deltas[0]
        if target is None:
            return []
        size, local = _cell_work(target.shape, site.tuning)
        return [
            KernelCall(
                "normalization/backward_data",
                f"{site.name} backward data",
                size,
                blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
                arrays={"STATISTICS": _statistics(site), "SCALE": site.parameter("scale"), **_gradients(site)},
                macros={"ACCUMULATE": int(site.accumulate[0]), "IN_PLACE": int(site.delta == target)},
                local_size=local,
            )
        ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _statistics(site: Site) -> Array:
    """Mean, what its rounding lost, and 1 / deviation of every unit; they live until the backward pass."""
    return site.memory("statistics", elements=3 * site.inputs[0].layout.unit_count)


def _running(site: Site) -> dict[str, Array]:
    return {name.upper(): site.parameter(name) for name in ("running_mean", "running_variance")}


def _affine(site: Site) -> dict[str, Array]:
    return {name.upper(): site.parameter(name) for name in ("scale", "shift")}


def _gradients(site: Site) -> dict[str, Array]:
    return {"SCALE_GRADIENT": site.gradient("scale"), "SHIFT_GRADIENT": site.gradient("shift")}


def _units_at_once(shape: Shape) -> int:
    """Units that a CPU's work-item does, one behind the other."""
    return max(1, _CELLS_OF_A_WORK_ITEM // (shape.height * shape.width))


def _cell_work(shape: Shape, tuning: Tuning) -> tuple[GlobalSize, Local]:
    """Elementwise work that also steps through the units, where planes are small."""
    size, local = elementwise_work(shape, tuning)
    if tuning.device_class == "cpu":
        size = replace(size, units=-(-shape.units // _units_at_once(shape)))
    return size, local


def _plane_work(shape: Shape, tuning: Tuning) -> tuple[GlobalSize, Local]:
    """A work-item for each plane, or for several small ones; on a GPU a row of neighbours, or a part of a group."""
    if tuning.device_class == "cpu":
        return GlobalSize(1, 1, -(-shape.units // _units_at_once(shape))), (1, 1, 1)
    group = row_group(shape.height * shape.width)
    return GlobalSize(group[0], 1, shape.units), group


def _unit_work(units: int, tuning: Tuning) -> tuple[GlobalSize, Local]:
    """A work-item for each unit; on a GPU some that share its samples."""
    group = (1, 1, 1) if tuning.device_class == "cpu" else full_group(_SAMPLE_SHARERS)
    return GlobalSize(group[0], 1, units, per_sample=False), group


def _lanes(kernel: str, shape: Shape, tuning: Tuning) -> dict[str, int]:
    """The tunable LANES, not wider than a row needs."""
    return {"LANES": power_of_two(shape.width, tuning.of(kernel)["LANES"])}
