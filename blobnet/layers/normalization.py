"""Normalization over the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from blobnet.launch.elementwise import EpilogueOp, fits, norm, slope_macro, with_epilogue
from blobnet.launch.kernel_call import SHARD_COUNTS, Array, Blob, GlobalSize, KernelCall, Tuning
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import cell_call, full_group, group_size, planes_at_once, power_of_two
from blobnet.layers.base import ALIKE, Kept, Layer, LayerContext, ParameterSpec, Placement, Placements, TakesCells
from blobnet.memory.blob import FLOAT32, Shape

Local = tuple[int, int, int]

#: Work-items of a GPU that share the samples of a unit.
_SAMPLE_SHARERS = 32
#: Cells that planes have at least where one launch does all; values of a unit that a work-group of a GPU normalizes at
#: most, its work-items at most, those of them that share a plane, and values that are worth one more; cells so few that
#: a group is soon done with them; units for each core of a processor.
_MIN_CELLS = 16
_UNIT_VALUES, _UNIT_ITEMS, _CELL_SHARERS, _ITEM_VALUES = 1 << 15, 512, 32, 16
_FEW_VALUES = 1 << 13
_UNITS_OF_A_CORE = 4
#: Work-items of a GPU that may share a plane, which programs know, and steps of each that adding up sums is worth.
_PLANE_SHARERS, _MIN_STEPS = (8, 32, 128), 2
#: The same of blobs of cells, whose numbers whole warps sum.
_WARP_SHARERS, _MIN_WARP_STEPS = (32, 128), 4


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Every unit shifted and scaled to mean 0 and variance 1, and then by two learned numbers.

    output = scale * (input - mean) / sqrt(variance + epsilon) + shift, with statistics of a unit over the samples and
    planes of the batch in training, and running ones in inference (Ioffe and Szegedy, *Batch Normalization*, 2015).
    Shapes: (N, C, ...) -> (N, C, ...) for inputs of any rank. Reads no halo.

    Conventions are PyTorch's: the population variance (sum / M, for M values of a unit in the batch) normalizes, the
    unbiased one (sum / (M - 1)) goes into running_variance, running = (1 - momentum) * running + momentum * batch.
    Where M is 1 (one sample of 1x1 planes, say the last batch) both variances are 0, and the output is the shift.
    In a step that is cut into shards, M values are those of a shard, or of all of them (``fit(sync_batch_norm=True)``,
    docs/many_devices.md). With scale and shift frozen it runs in training as in inference, and keeps its running
    statistics.

    Args:
        momentum: the weight of a batch in the running statistics, from 0 to 1.
        epsilon: added to the variance, at least 1e-30.

    Raises:
        OptionError: a number out of its range.
    """

    momentum: float = 0.1
    epsilon: float = 1e-5
    kept: ClassVar[Kept] = Kept(inputs=True, frozen=False)
    couples_samples: ClassVar[bool] = True
    recomputes_output: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        momentum, epsilon = self.momentum, self.epsilon
        self._require(_is_number(momentum) and 0 <= momentum <= 1, "momentum must be from 0 to 1", momentum=momentum)
        # Less is 0 in float32, and 0 / 0 where a unit is constant.
        fits = _is_number(epsilon) and 1e-30 <= epsilon < math.inf
        self._require(fits, "epsilon must be a finite number of at least 1e-30", epsilon=epsilon)

    def takes_cells(self, site: LayerContext) -> TakesCells:
        return ALIKE

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        return fits(steps, blobs=1)

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

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.SEPARATE if training else Placement.IN_PLACE, Placement.IN_PLACE)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        source, target = site.inputs[0], site.output
        # NOTE: a kernel takes no null blob; without a residual the role is bound to the output and not read.
        blobs = {"INPUT": source, "RESIDUAL": target, "OUTPUT": target}
        running = _running(site)
        label = f"{site.name} forward"
        if not site.training:
            kernel = "normalization/forward_inference"
            macros = {"EPSILON": float(self.epsilon), "IN_PLACE": int(source == target)}
            arrays = {**running, **_affine(site)}
            call = cell_call(kernel, label, blobs, site.tuning, arrays=arrays, macros=macros)
            return [with_epilogue(call, site.epilogue)]
        units = source.shape.units
        own: dict[str, Macro] = {"MOMENTUM": float(self.momentum), "EPSILON": float(self.epsilon)}
        made = {"STATISTICS": _statistics(site), **running}
        arrays = {"STATISTICS": _statistics(site), **_affine(site)}
        last = with_epilogue(
            cell_call("normalization/forward", label, blobs, site.tuning, arrays=arrays), site.epilogue
        )
        if _by_units(site, site.tuning.model.parts):
            own |= {"UNITS": source.layout.unit_count}
            call = _unit_call("normalization/forward_unit", label, site, blobs, {**made, **_affine(site)}, own)
            return [replace(with_epilogue(call, site.epilogue), again=last)]
        partials = {"PARTIALS": site.memory("partials", per_sample=3 * source.shape.planes)}
        kernel = "normalization/forward_plane_statistics"
        plane_size, plane_local, lanes = _plane_work(kernel, source, site.tuning)
        unit_size, unit_local = _unit_work(units, site.tuning)
        depth, cells = source.layout.depth.size, source.layout.plane_elements
        sizes: dict[str, Macro] = {"UNITS": units, "DEPTH": depth, "CELLS": cells}
        shards: list[KernelCall] = []
        kernel_of_units = "normalization/forward_statistics"
        if site.shards > 1:
            moments = {"MOMENTS": site.common("moments", site.shards * 3 * units)}
            whole: dict[str, Macro] = {"CELLS": depth * cells, **own}
            every = "normalization/forward_shards"
            shards = [_of_shards(every, f"{label} (shards)", site, {**moments, **made}, whole)]
            kernel_of_units, made, own = "normalization/forward_shard", moments, {}
        return [
            KernelCall(
                kernel,
                f"{label} (planes)",
                plane_size,
                blobs={"INPUT": source},
                arrays=partials,
                tunables=lanes,
                local_size=plane_local,
            ),
            KernelCall(
                kernel_of_units,
                f"{label} (statistics)",
                unit_size,
                arrays={**partials, **made},
                macros={**sizes, **own},
                local_size=unit_local,
            ),
            *shards,
            last,
        ]

    def epilogue(self, site: LayerContext) -> tuple[EpilogueOp, ...] | None:
        return None if site.training else (norm(_running(site) | _affine(site), self.epsilon),)

    def backward_parameters(self, site: LayerContext) -> list[KernelCall]:
        source = site.inputs[0]
        label = f"{site.name} backward parameters"
        if site.input_deltas[0] and _by_units(site):
            blobs = {"INPUT": source, "OUTPUT_DELTA": site.delta, "INPUT_DELTA": site.input_deltas[0]}
            arrays = {"STATISTICS": _statistics(site), **_affine(site), **_gradients(site)}
            macros = {**_in_place(site), **slope_macro(site.fused_activations)}
            return [_unit_call("normalization/backward_unit", f"{site.name} backward", site, blobs, arrays, macros)]
        units = source.shape.units
        partials = {"PARTIALS": site.memory("delta_partials", per_sample=2 * source.shape.planes)}
        kernel = "normalization/backward_plane_sums"
        plane_size, plane_local, lanes = _plane_work(kernel, source, site.tuning)
        unit_size, unit_local = _unit_work(units, site.tuning)
        shards: list[KernelCall] = []
        if site.shards > 1:
            sums = {"DELTA_SUMS": site.common("delta sums", site.shards * 2 * units)}
            totals = {"TOTALS": site.common("gradients", 2 * units)}
            shards = [
                KernelCall(
                    "normalization/backward_shard",
                    f"{label} (shard)",
                    GlobalSize(1, 1, units, per_sample=False),
                    arrays={**_gradients(site), **sums},
                    macros={"UNITS": units},
                    local_size=_alone(site.tuning),
                ),
                _of_shards("normalization/backward_shards", f"{label} (shards)", site, {**sums, **totals}, {}),
            ]
        return [
            KernelCall(
                kernel,
                f"{label} (planes)",
                plane_size,
                blobs={"INPUT": source, "OUTPUT_DELTA": site.delta},
                arrays={"STATISTICS": _statistics(site), **_affine(site), **partials},
                macros=slope_macro(site.fused_activations),
                tunables=lanes,
                local_size=plane_local,
            ),
            KernelCall(
                "normalization/backward_parameters",
                label,
                unit_size,
                arrays={**partials, **_gradients(site)},
                macros={"UNITS": units, "DEPTH": source.layout.depth.size},
                local_size=unit_local,
            ),
            *shards,
        ]

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        target = site.input_deltas[0]
        if target is None:
            return []
        in_place = _in_place(site)
        label = f"{site.name} backward data"
        if not site.training:
            blobs = {"OUTPUT_DELTA": site.delta, "INPUT_DELTA": target}
            arrays = {"RUNNING_VARIANCE": site.parameter("running_variance"), "SCALE": site.parameter("scale")}
            macros = {"EPSILON": float(self.epsilon), **in_place}
            kernel = "normalization/backward_inference"
            return [cell_call(kernel, label, blobs, site.tuning, arrays=arrays, macros=macros)]
        if _by_units(site):
            return []  # It comes with the gradients.
        return [
            cell_call(
                "normalization/backward_data",
                label,
                {"INPUT": site.inputs[0], "OUTPUT_DELTA": site.delta, "INPUT_DELTA": target},
                site.tuning,
                arrays={"STATISTICS": _statistics(site), **_affine(site), **_whole_gradients(site)},
                macros={**in_place, **slope_macro(site.fused_activations)},
            )
        ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_place(site: LayerContext) -> dict[str, Macro]:
    return {"ACCUMULATE": int(site.accumulate[0]), "IN_PLACE": int(site.delta == site.input_deltas[0])}


def _by_units(site: LayerContext, shards: int = 1) -> bool:
    """Return True if one launch does all: a work-group reads its unit twice, the second time from a cache.

    Of so many ``shards`` side by side a unit's values count together: forward passes over planes are faster there.

    NOTE: on a GPU it is launches that it saves, which cost a host more than such a pass a GPU (docs/many_devices.md).
    """
    model, layout, values = site.tuning.model, site.inputs[0].layout, shards * _unit_values(site)
    if model.is_simt:
        # Of cells there are fewer groups, which must leave no compute unit without one, unless they are done at once.
        has_groups = site.inputs[0].type.cell == 1 or layout.unit_count >= model.cores or values <= _FEW_VALUES
        fits = group_size(model) >= _CELL_SHARERS and values <= _UNIT_VALUES and has_groups
    else:
        own_cache = model.caches[1] if len(model.caches) > 1 else 0
        fits = 2 * FLOAT32.itemsize * values <= own_cache and layout.unit_count >= _UNITS_OF_A_CORE * model.cores
        fits = fits and site.inputs[0].type.cell == 1  # Warps sum the numbers of cells.
    return fits and layout.plane_elements >= _MIN_CELLS and layout.depth.size == site.shards == 1


def _unit_values(site: LayerContext) -> int:
    """Cells of a unit in all samples of a shard."""
    return site.batch_size * site.inputs[0].layout.plane_elements


def _unit_call(
    kernel: str,
    label: str,
    site: LayerContext,
    blobs: dict[str, Blob],
    arrays: dict[str, Array],
    macros: dict[str, Macro],
) -> KernelCall:
    layout, model, tunables = site.inputs[0].layout, site.tuning.model, site.tuning.of(kernel)
    if model.is_simt:
        items = power_of_two(max(_CELL_SHARERS, _unit_values(site) // _ITEM_VALUES), _UNIT_ITEMS)
        local = (_CELL_SHARERS, 1, group_size(model, items) // _CELL_SHARERS)
        steps = -(-layout.plane_elements // _CELL_SHARERS)
        if site.inputs[0].type.cell > 1:
            tunables = dict.fromkeys(tunables, 1)
        tunables = {name: power_of_two(steps, most) for name, most in tunables.items()}
    else:
        local = (1, 1, 1)
        tunables["LANES"] = power_of_two(layout.width.size, tunables["LANES"])
    size = GlobalSize(local[0], 1, layout.unit_count * local[2], per_sample=False)
    return KernelCall(kernel, label, size, blobs, arrays, macros, tunables, local)


def _statistics(site: LayerContext) -> Array:
    """Mean, what its rounding lost, and 1 / deviation of every unit; they live until the backward pass."""
    elements = 3 * site.inputs[0].shape.units
    return site.memory("statistics", elements) if site.shards == 1 else site.common("statistics", elements)


def _whole_gradients(site: LayerContext) -> dict[str, Array]:
    """The gradients of all that was normalized together."""
    if site.shards == 1:
        return _gradients(site)
    units = site.inputs[0].shape.units
    both = site.common("gradients", 2 * units)
    scale, shift = (replace(both, elements=units, offset=offset) for offset in (0, units))
    return {"SCALE_GRADIENT": scale, "SHIFT_GRADIENT": shift}


def _of_shards(
    kernel: str, label: str, site: LayerContext, arrays: dict[str, Array], macros: dict[str, Macro]
) -> KernelCall:
    """A call that is made once for all shards, from what each has left in the first of the arrays."""
    units = site.inputs[0].shape.units
    return KernelCall(
        kernel,
        label,
        GlobalSize(1, 1, units, per_sample=False),
        arrays={**arrays, "SHARD_COUNTS": Array(SHARD_COUNTS, site.shards, persistent=True)},
        macros={"UNITS": units, "SHARDS": site.shards, **macros},
        local_size=_alone(site.tuning),
        gathers=next(iter(arrays)),
    )


def _running(site: LayerContext) -> dict[str, Array]:
    return {name.upper(): site.parameter(name) for name in ("running_mean", "running_variance")}


def _affine(site: LayerContext) -> dict[str, Array]:
    return {name.upper(): site.parameter(name) for name in ("scale", "shift")}


def _gradients(site: LayerContext) -> dict[str, Array]:
    return {"SCALE_GRADIENT": site.gradient("scale"), "SHIFT_GRADIENT": site.gradient("shift")}


def _plane_work(kernel: str, source: Blob, tuning: Tuning) -> tuple[GlobalSize, Local, dict[str, int]]:
    """A work-item for each plane, or for several small ones; on a GPU a row of neighbours, or a part of a group.

    Returns the work size, the group, and the tunable LANES, which is not wider than a row where lanes run along it.
    """
    shape, lanes = source.layout.shape, tuning.of(kernel)["LANES"]
    if source.type.cell > 1:  # Cells are vectors as they are, and whole warps sum their numbers.
        worth = [count for count in _WARP_SHARERS if count * _MIN_WARP_STEPS <= shape.height * shape.width]
        sharers = group_size(tuning.model, max(worth, default=_WARP_SHARERS[0]))
        return GlobalSize(sharers, 1, shape.planes), full_group(tuning.model, sharers), {"LANES": 1}
    along_row = {"LANES": power_of_two(shape.width, lanes)}
    if not tuning.model.is_simt:
        return GlobalSize(1, 1, -(-shape.planes // planes_at_once(shape))), (1, 1, 1), along_row
    steps = shape.height * shape.width // lanes
    if steps <= 1:
        return GlobalSize(1, 1, shape.planes), full_group(tuning.model, 1), along_row
    worth = [count for count in _PLANE_SHARERS if count * _MIN_STEPS <= steps]
    sharers = group_size(tuning.model, max(worth, default=_PLANE_SHARERS[0]))
    return GlobalSize(sharers, 1, shape.planes), full_group(tuning.model, sharers), {"LANES": lanes}


def _alone(tuning: Tuning) -> Local:
    """The group of work-items that do a unit each."""
    return full_group(tuning.model, 1) if tuning.model.is_simt else (1, 1, 1)


def _unit_work(units: int, tuning: Tuning) -> tuple[GlobalSize, Local]:
    """A work-item for each unit; on a GPU some that share its samples."""
    group = full_group(tuning.model, _SAMPLE_SHARERS) if tuning.model.is_simt else (1, 1, 1)
    return GlobalSize(group[0], 1, units, per_sample=False), group
