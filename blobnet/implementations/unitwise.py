"""Gradients of the weights of convolutions whose lanes are input units, which a copy lays side by side: for CPUs."""

from __future__ import annotations

from dataclasses import replace

from blobnet.implementations.base import BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.blocking import Block, splits_for, vector_tiles
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import GlobalSize, KernelCall

#: What it costs to copy a value, and to put a weight's sum in its place, in multiply-adds of a compute unit.
COPY_COST, WEIGHT_COST = 40, 60
#: What the launches around the product cost, on the same scale but for all compute units.
LAUNCHES_COST = 100_000


class Unitwise(Implementation):
    """Lanes of input units of a tap, which a copy lays side by side, at all output units."""

    tile: Block

    lanes = False
    directions = (BACKWARD_WEIGHTS,)

    @classmethod
    def tiles(cls, operation: Operation) -> list[Block]:
        return vector_tiles(cls.tunables(operation), operation.units, operation.depth)

    @property
    def cost(self) -> float:
        operation, source = self.operation, self.operation.input.shape
        # What it reads, and what of it goes into phases that a tap reads.
        copied = (source.height * source.width + operation.input_phases.elements) / 2
        copying = COPY_COST * copied * source.units * operation.batch_size
        cost = self.tile.cost * operation.taps_inside * operation.batch_size * operation.groups + copying
        if operation.taps > 1:
            cost += WEIGHT_COST * operation.weights
        return cost / operation.cores + LAUNCHES_COST

    def calls(self) -> list[KernelCall]:
        operation, tile, phases = self.operation, self.tile, self.operation.input_phases
        tunables, delta = self.tunables(operation), operation.output.shape
        panels, columns = operation.groups * tile.count, tile.count * tile.values
        ranges = -(-operation.units // (tile.units * tunables["RANGE_BLOCKS"]))
        splits = splits_for(ranges * operation.taps * panels, tunables["TARGET_GROUPS"], tunables["MAXIMUM_SPLITS"])

        gradient, sums = operation.parameter("WEIGHT_GRADIENT"), splits * operation.taps * delta.units * columns
        in_place = operation.taps == 1 and splits == 1 and columns == operation.depth
        panel_values = operation.groups * columns * phases.elements
        arrays = {
            "GRADIENT": gradient,
            "PARTIALS": gradient if in_place else operation.memory("weight partials", sums),
            "PANELS": replace(operation.memory("input in panels", per_sample=panel_values), type=operation.input.type),
        }
        rows = min(max(1, tunables["PIECE_POSITIONS"] // delta.width), delta.height)
        facts = {**tile.macros, "PANEL_UNITS": tile.values, "SPLITS": splits, "PIECE_ROWS": rows}
        facts |= {"RANGE": tunables["RANGE_BLOCKS"] * tile.units, "UNITS": delta.units, "COLUMNS": columns}
        vectors = -(-operation.depth // tile.lanes)
        launches = [
            ("convolution/pack_units", GlobalSize(panels * tile.vectors), f"{operation.label}: pack"),
            (self.kernel, GlobalSize(ranges, operation.taps, panels * splits, per_sample=False), ""),
            ("convolution/unitwise_gradient", GlobalSize(vectors, delta.units, per_sample=False), ""),
        ]
        launches = launches[: 2 if in_place else 3]
        return [operation.call(kernel, size, None, label, **arrays, **facts) for kernel, size, label in launches]
