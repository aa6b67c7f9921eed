"""Convolutions as products with panels, copies in the order of reading: for CPUs (kernels/convolution/panels.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from blobnet.implementations.base import BACKWARD_DATA, FORWARD, Candidate, Implementation
from blobnet.implementations.blocking import READ_COST, VectorTile, balance, vector_tiles
from blobnet.implementations.operation import Operation
from blobnet.kernel_call import GlobalSize, KernelCall
from blobnet.kernel_source import Macro

#: What it costs to copy a value into a panel, to store a result, and to transpose a weight, in multiply-adds of a
#: compute unit; and a multiply-add itself, which reads nothing but a panel and weights in their order.
COPY_COST, STORE_COST, TRANSPOSE_COST, PRODUCT_COST = 30, 40, 40, 0.8
#: Rows of a panel at most, and units of a work-item, each of which has a tile of sums in local memory.
MOST_ROWS, MOST_UNITS = 512, 512
#: Work-items that a compute unit should have, so that none waits long for the last, if they have so many units each.
WORK_ITEMS, FEWEST_UNITS = 8, 64


@dataclass(frozen=True)
class Cut:
    """How a product is cut into panels and work-items.

    Attributes:
        tile: of sums in registers; its vectors are of positions.
        units_at_once: units of a work-item.
        depths: source units in a panel.
    """

    tile: VectorTile
    units_at_once: int
    depths: int

    @property
    def macros(self) -> dict[str, Macro]:
        """The cut as macros."""
        return {**self.tile.macros, "UNITS_AT_ONCE": self.units_at_once, "DEPTHS": self.depths}


class Panels(Implementation):
    """Products with panels, copies of the source in the order of reading; backward data at stride 1."""

    lanes = False
    forward = "convolution/forward_panels"
    backward_data = "convolution/backward_data_panels"

    def matches(self, operation: Operation) -> bool:
        one_phase = operation.direction == FORWARD or operation.strides == (1, 1)
        return super().matches(operation) and one_phase

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        for cut in self._cuts(operation):
            cost = _cost(operation, cut)
            if operation.direction == BACKWARD_DATA:
                cost += TRANSPOSE_COST * operation.weights / operation.cores
            yield Candidate(self.way(cut.tile), cost, partial(self._calls, operation, cut))

    def _cuts(self, operation: Operation) -> Iterator[Cut]:
        """Tiles that local memory has room for, the one with the cheapest product first."""
        positions, model = operation.batch_size * _positions(operation), operation.tuning.model
        tunables = operation.tuning.of(self.kernel(operation))
        for tile in vector_tiles(tunables, operation.units, positions):
            # Tiles that fit: rows of the panel, sums of a unit each, and what kernels/convolution/panels.h has besides.
            room = model.local_memory // (4 * tile.values) - 4
            wanted = -(-WORK_ITEMS * model.cores // (operation.groups * -(-positions // tile.values)))
            most_units = max(1, min(MOST_UNITS, room // 2))
            chunks = max(-(-operation.units // most_units), min(wanted, -(-operation.units // FEWEST_UNITS)))
            units = -(-operation.units // (chunks * tile.units)) * tile.units
            depths = min(operation.depth, max(1, min(MOST_ROWS, room - units) // operation.taps))
            if units + depths * operation.taps <= room:
                yield Cut(tile, units, depths)

    def _calls(self, operation: Operation, cut: Cut) -> list[KernelCall]:
        arrays, before = {}, []
        if operation.direction == BACKWARD_DATA:
            before = [_transpose(operation, cut.tile.lanes)]
            arrays = {"WEIGHT": before[0].arrays["TRANSPOSED"]}
        chunks = operation.groups * -(-operation.units // cut.units_at_once)
        size = GlobalSize(chunks, positions=_positions(operation), tile=cut.tile.values)
        facts = operation.phases[0].macros if operation.phases else {}
        kernel = self.kernel(operation)
        return [*before, operation.call(kernel, size, macros=cut.macros, facts=facts, arrays=arrays)]


def _positions(operation: Operation) -> int:
    """Positions of a sample's result."""
    return operation.result.shape.height * operation.result.shape.width


def _cost(operation: Operation, cut: Cut) -> float:
    """See Candidate."""
    chunks = -(-operation.units // cut.units_at_once)
    copied = COPY_COST * operation.depth * operation.taps * chunks
    positions = operation.batch_size * _positions(operation)
    values = positions * operation.groups * (copied + STORE_COST * operation.units)
    items = operation.groups * chunks * -(-positions // cut.tile.values)
    product = cut.tile.cost * operation.depth * operation.taps * operation.groups
    shared = (PRODUCT_COST * product + values + READ_COST * operation.weights) / operation.cores
    return shared * balance(items, operation.cores)


def _transpose(operation: Operation, lanes: int) -> KernelCall:
    """The launch that puts weights of an input unit together."""
    return operation.call(
        "convolution/transpose_weight",
        GlobalSize(-(-operation.output_units // lanes), operation.groups, per_sample=False),
        macros={"LANES": lanes},
        arrays={"TRANSPOSED": operation.memory("weights transposed", operation.weights)},
        label=f"{operation.label}: transpose",
    )
