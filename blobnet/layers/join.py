"""Layers that join or reshape blobs; where the planner can, they launch nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import ClassVar

from blobnet.contraction.build import Builder, indexes
from blobnet.contraction.form import Expression, Tensor, apply
from blobnet.launch.elementwise import PER_CELL, PER_PLANE_CELL, PER_UNIT, EpilogueOp, fits, row_call
from blobnet.launch.kernel_call import Blob, KernelCall
from blobnet.launch.kernel_source import Macro
from blobnet.layers.base import ALIKE, Layer, LayerContext, Placement, Placements, TakesCells
from blobnet.layers.lowered import AXES, ContractionLayer, broadcast, repeating, wanted_inputs
from blobnet.memory.blob import Shape


@dataclass(frozen=True)
class _Join(ContractionLayer):
    """Base of the layers that combine two or more inputs value by value.

    The output has the greatest size along each axis; inputs of size 1 there are repeated. Inputs may be (units,) alone.
    """

    arity: ClassVar[tuple[int, int | None]] = (2, None)
    operator: ClassVar[str]

    def define(self, built: Builder, inputs: Sequence[Tensor]) -> None:
        shapes = [Shape(*tensor.shape[1:]) for tensor in inputs]
        rank = max(shape.rank for shape in shapes)
        own = [shape.dimensions if shape.rank else (shape.units, *(1,) * rank) for shape in shapes]
        rule = "all inputs must have the same shape, or 1 in place of any size, or be (units,)"
        wanted = broadcast(*own)
        fits = wanted is not None and all(len(dimensions) == 1 + rank for dimensions in own)
        self._require_shape(fits, rule, inputs=_listed(shapes))
        assert wanted is not None
        n, *cell = indexes(["n", "c", *AXES[len(AXES) - rank :]])
        terms: list[Expression] = [
            tensor(n, *repeating(cell, dimensions, wanted)[: 1 + shape.rank])
            for tensor, shape, dimensions in zip(inputs, shapes, own, strict=True)
        ]
        function = {"+": "add", "*": "multiply"}[self.operator]
        built.sum("O", (n, *cell), reduce(partial(apply, function), terms), shape=(inputs[0].shape[0], *wanted))

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.IN_PLACE if self.output_shape(inputs) in inputs else Placement.SEPARATE)

    def epilogue(self, site: LayerContext) -> tuple[EpilogueOp, ...] | None:
        own = site.in_place_of
        if own is None:
            return None
        whole = self.output_shape(site.shapes)
        steps = []
        for place, (shape, blob) in enumerate(zip(site.shapes, site.inputs, strict=True)):
            if place != own:
                known = {whole: PER_CELL, Shape(1, *whole.sizes): PER_PLANE_CELL, Shape.flat(whole.units): PER_UNIT}
                known[Shape(whole.units, *(1,) * whole.rank)] = PER_UNIT
                if shape not in known:
                    return None
                steps.append(EpilogueOp(f"x {self.operator} r", blob, per=known[shape]))
        return tuple(steps)


@dataclass(frozen=True)
class Multiply(_Join):
    """The product of two or more inputs, value by value.

    All have the same shape, or 1 in place of any size, or are (units,) alone: they are repeated along these axes.
    ``Multiply()([gates, values])`` with gates of (units,) scales each unit; what is listed first is computed first, so
    that in this order the launch that makes the values scales them in inference.
    """

    operator: ClassVar[str] = "*"


@dataclass(frozen=True)
class Add(_Join):
    """The sum of two or more inputs, value by value.

    All have the same shape, or 1 in place of any size, or are (units,) alone: they are repeated along these axes. Those
    that have the output's shape are added up two at a time, in place of one where it can be; backward, they share the
    output's delta.
    """

    operator: ClassVar[str] = "+"
    keeps_inputs: ClassVar[bool] = False

    def fuses(self, steps: tuple[EpilogueOp, ...]) -> bool:
        return fits(steps, blobs=0)

    def same_pitch(self, inputs: Sequence[Shape]) -> bool:
        return True

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return replace(super().placement(inputs, training), delta=Placement.SHARED)

    def takes_cells(self, site: LayerContext) -> TakesCells:
        return ALIKE if len(set(site.shapes)) == 1 else super().takes_cells(site)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        if len(set(site.shapes)) > 1:
            return super().forward(site)
        first = site.in_place_of or 0
        calls: list[KernelCall] = []
        addends = *site.inputs[:first], *site.inputs[first + 1 :]
        for addend in addends:
            total = site.output if calls else site.inputs[first]
            blobs = {"INPUT": total, "ADDEND": addend, "OUTPUT": site.output}
            steps = site.epilogue if len(calls) == len(addends) - 1 else ()
            macros: dict[str, Macro] = {"IN_PLACE": int(total == site.output)}
            calls.append(row_call("join/add", f"{site.name} forward", blobs, site.tuning, steps, macros))
        return calls

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        elements = self.output_shape(site.shapes).elements
        whole = [shape.elements == elements for shape in site.shapes]
        same = tuple(delta if is_whole else None for delta, is_whole in zip(site.input_deltas, whole, strict=True))
        names = self.bound(site.shapes).inputs
        repeated = {name for name, is_whole in zip(names, whole, strict=True) if not is_whole}
        wanted = [name for name in wanted_inputs(self, site) if name in repeated]
        calls = self._backward(site, "backward data", wanted) if wanted else []
        alike = replace(site, input_deltas=same)
        return [*calls, *(call for position in range(len(same)) for call in alike.copied_delta(position, site.delta))]


@dataclass(frozen=True)
class Concat(Layer):
    """The inputs' units one after the other; all inputs have the same axes otherwise."""

    arity: ClassVar[tuple[int, int | None]] = (1, None)
    moves_values: ClassVar[bool] = True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        same = all(shape.sizes == inputs[0].sizes for shape in inputs)
        self._require_shape(same, "all inputs must have the same axes but for the units", inputs=_listed(inputs))
        return inputs[0].with_units(sum(shape.units for shape in inputs))

    def same_pitch(self, inputs: Sequence[Shape]) -> bool:
        return True

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.CONCAT, Placement.CONCAT)

    def takes_cells(self, site: LayerContext) -> TakesCells:
        return ALIKE

    def forward(self, site: LayerContext) -> list[KernelCall]:
        slices = _slices(site.output, site.inputs)
        return [call for position, target in enumerate(slices) for call in site.copied_input(position, target)]

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        slices = _slices(site.delta, site.inputs)
        return [call for position, source in enumerate(slices) for call in site.copied_delta(position, source)]


@dataclass(frozen=True)
class Flatten(Layer):
    """All values of a sample as one row of units, in the order (unit[, z], y, x)."""

    moves_values: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape.flat(inputs[0].elements)

    def placement(self, inputs: Sequence[Shape], training: bool) -> Placements:
        return Placements(Placement.SHARED, Placement.SHARED)

    def forward(self, site: LayerContext) -> list[KernelCall]:
        return site.copied_input(0, site.output)

    def backward_data(self, site: LayerContext) -> list[KernelCall]:
        return site.copied_delta(0, site.delta)


def _slices(blob: Blob, parts: Sequence[Blob]) -> list[Blob]:
    slices = []
    first = 0
    for part in parts:
        slices.append(replace(blob, layout=blob.layout.slice_units(first, part.layout.unit_count)))
        first += part.layout.unit_count
    return slices


def _listed(shapes: Sequence[Shape]) -> str:
    return " ".join(str(shape) for shape in shapes)
