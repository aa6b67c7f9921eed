"""Layers that join or reshape blobs; where the planner can, they launch nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from blobnet.blob import Shape
from blobnet.cellwise import SUM, Step, fits, with_epilogue
from blobnet.kernel_call import Blob, KernelCall, as_rows, cell_call, copy_call
from blobnet.kernel_source import Macro
from blobnet.layers.base import Layer, Placement, Site


@dataclass(frozen=True)
class Add(Layer):
    """The sum of two or more inputs of the same shape, added up two at a time.

    Runs in place of one input where it can; backward, all inputs share the output's delta.
    """

    arity: ClassVar[tuple[int, int | None]] = (2, None)

    @property
    def elementwise(self) -> bool:
        return True

    def fuses(self, steps: tuple[Step, ...]) -> bool:
        return fits(steps, blobs=0)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        same = all(shape == inputs[0] for shape in inputs)
        self._require_shape(same, "all inputs must have the same shape", inputs=_listed(inputs))
        return inputs[0]

    def placement(self, training: bool) -> Placement:
        return Placement.IN_PLACE

    def delta_placement(self) -> Placement:
        return Placement.SHARED

    def forward(self, site: Site) -> list[KernelCall]:
        first = site.in_place_of or 0
        calls: list[KernelCall] = []
        addends = *site.inputs[:first], *site.inputs[first + 1 :]
        for addend in addends:
            total = site.output if calls else site.inputs[first]
            blobs = dict(zip(("INPUT", "ADDEND", "OUTPUT"), as_rows(total, addend, site.output), strict=True))
            is_last = len(calls) == len(addends) - 1
            macros: dict[str, Macro] = {"IN_PLACE": int(total == site.output)}
            call = cell_call("join/add", f"{site.name} forward", blobs, site.tuning, macros=macros)
            calls.append(with_epilogue(call, site.epilogue if is_last else ()))
        return calls

    def epilogue(self, site: Site) -> tuple[Step, ...] | None:
        own = site.in_place_of
        if own is None:
            return None
        return tuple(Step(SUM, blob) for place, blob in enumerate(site.inputs) if place != own)

    def backward_data(self, site: Site) -> list[KernelCall]:
        return _share_delta(site)


@dataclass(frozen=True)
class Concat(Layer):
    """The inputs' units one behind the other; all inputs have the same axes otherwise."""

    arity: ClassVar[tuple[int, int | None]] = (1, None)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        same = all(shape.sizes == inputs[0].sizes for shape in inputs)
        self._require_shape(same, "all inputs must have the same axes but for the units", inputs=_listed(inputs))
        return inputs[0].with_units(sum(shape.units for shape in inputs))

    def same_pitch(self, inputs: Sequence[Shape]) -> bool:
        return True

    def placement(self, training: bool) -> Placement:
        return Placement.CONCAT

    def delta_placement(self) -> Placement:
        return Placement.CONCAT

    def forward(self, site: Site) -> list[KernelCall]:
        calls: list[KernelCall] = []
        for source, target in zip(site.inputs, _slices(site.output, site.inputs), strict=True):
            calls += copy_call(f"{site.name} forward", source, target, site.tuning)
        return calls

    def backward_data(self, site: Site) -> list[KernelCall]:
        calls: list[KernelCall] = []
        slices = _slices(site.delta, site.inputs)
        for source, target, accumulate in zip(slices, site.input_deltas, site.accumulate, strict=True):
            if target is not None:
                calls += copy_call(f"{site.name} backward data", source, target, site.tuning, accumulate=accumulate)
        return calls


@dataclass(frozen=True)
class Flatten(Layer):
    """All values of a sample as one row of units, in the order (unit[, z], y, x)."""

    @property
    def elementwise(self) -> bool:
        return True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape.flat(inputs[0].elements)

    def placement(self, training: bool) -> Placement:
        return Placement.SHARED

    def delta_placement(self) -> Placement:
        return Placement.SHARED

    def forward(self, site: Site) -> list[KernelCall]:
        return copy_call(f"{site.name} forward", site.inputs[0], site.output, site.tuning)

    def backward_data(self, site: Site) -> list[KernelCall]:
        return _share_delta(site)


def _share_delta(site: Site) -> list[KernelCall]:
    """Every input's delta is the output's: calls only where they do not share memory."""
    calls: list[KernelCall] = []
    for target, accumulate in zip(site.input_deltas, site.accumulate, strict=True):
        if target is not None:
            label = f"{site.name} backward data"
            calls += copy_call(label, site.delta, target, site.tuning, accumulate=accumulate)
    return calls


def _slices(blob: Blob, parts: Sequence[Blob]) -> list[Blob]:
    slices = []
    first = 0
    for part in parts:
        slices.append(replace(blob, layout=blob.layout.slice_units(first, part.layout.unit_count)))
        first += part.layout.unit_count
    return slices


def _listed(shapes: Sequence[Shape]) -> str:
    return " ".join(str(shape) for shape in shapes)
