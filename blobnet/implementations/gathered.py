"""Convolutions whose lanes are samples, which a copy lays side by side: for CPUs, at small planes."""

from __future__ import annotations

from dataclasses import replace

from blobnet.implementations.base import BACKWARD_DATA, FORWARD, Implementation
from blobnet.implementations.blocking import READ_COST, Block, reads, vector_tiles
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import GlobalSize, KernelCall, rounded_up

#: What it costs to copy a value, and to store one of another sample each time, in multiply-adds of a compute unit; and
#: a multiply-add itself, since no tap reads what another one has brought near.
COPY_COST, STORE_COST, PRODUCT_COST = 60, 100, 1.4
#: Units of a group that lie together, position by position: each tap then reads long runs of memory.
RUN = 16


class Gathered(Implementation):
    """Lanes of samples, which a copy lays side by side; a launch for each phase."""

    tile: Block

    lanes = False
    directions = (FORWARD, BACKWARD_DATA)

    @classmethod
    def tiles(cls, operation: Operation) -> list[Block]:
        return vector_tiles(cls.tunables(operation), operation.units, operation.batch_size)

    def __init__(self, operation: Operation, tile: Block) -> None:
        super().__init__(operation, tile)
        layout = operation.source.layout
        positions = (layout.height.size - 1) * layout.width.memory + layout.width.size
        #: Samples side by side, padded to whole vectors.
        self.samples = rounded_up(operation.batch_size, tile.lanes)
        #: Units that lie together.
        self.run = min(RUN, operation.depth)
        #: Values of one sample's copy (kernels/blob/gather.cl).
        self.copied = operation.groups * rounded_up(operation.depth, self.run) * positions

    @property
    def cost(self) -> float:
        operation, tile = self.operation, self.tile
        copied, results = self.copied * self.samples, operation.result.shape.elements * operation.batch_size
        cost = PRODUCT_COST * tile.cost * operation.taps_inside * operation.depth * operation.groups
        cost += COPY_COST * copied + STORE_COST * results
        # Positions follow one another.
        of_samples, blocks = -(-self.samples // tile.values), -(-operation.units // tile.units)
        source, weights = copied // (operation.groups * of_samples), operation.units * operation.depth
        read = sum(reads(weights * phase.taps, blocks, source, 1)[1] for phase in operation.phases)
        return (cost + READ_COST * read * operation.groups * of_samples) / operation.cores

    def calls(self) -> list[KernelCall]:
        operation, tile, layout = self.operation, self.tile, self.operation.source.layout
        role = "output delta" if operation.direction == BACKWARD_DATA else "input"
        memory = operation.memory(f"{role} gathered by samples", (tile.lanes - 1) * self.copied, self.copied)
        gathered = replace(memory, side_by_side=True, type=operation.source.type)
        macros = {**tile.macros, "GROUP_UNITS": operation.depth, "RUN": self.run, "SAMPLES": self.samples}
        macros |= {"SOURCE_HEIGHT": layout.height.size, "SOURCE_WIDTH": layout.width.size}
        macros["SOURCE_PITCH"] = layout.width.memory
        size = GlobalSize(self.samples // tile.lanes, units=operation.source.shape.units, per_sample=False)
        label = f"{operation.label}: gather"
        calls = [operation.call("blob/gather", size, None, label, INPUT=operation.source, GATHERED=gathered, **macros)]
        blocks = operation.groups * -(-operation.units // tile.units)
        for phase in operation.phases:
            size = GlobalSize(phase.vertical.size * phase.horizontal.size, blocks, samples=tile.values)
            calls.append(operation.call(self.kernel, size, GATHERED=gathered, **macros | phase.macros))
        return calls if operation.phases else []
