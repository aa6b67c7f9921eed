"""Backward data to few units at a stride, on GPUs: all phases in one product of matrices (tiled.py)."""

from __future__ import annotations

from collections.abc import Sequence

from blobnet.geometry import Pair
from blobnet.implementations.base import BACKWARD_DATA
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.tile import Tile, fitting
from blobnet.implementations.tiled import TILES as TILED
from blobnet.implementations.tiled import Tiled
from blobnet.kernel_call import GlobalSize
from blobnet.kernel_source import Macro

#: Tiles beside those of tiled.py; the speed of the first is as measured on an NVIDIA H200 (docs/performance.md).
TILES = (
    *TILED,
    Tile(48, 64, 16, 12, 4, speed=0.97, busy=3, overhead=20),
    Tile(16, 256, 8, 8, 8, speed=0.8, busy=2.5, overhead=14, is_guess=True),
)
#: Rows of a product up to which its phases are worth a common window.
_MOST_ROWS = 128


class Blocks(Tiled):
    """Few units at a stride: the phases side by side, as units of one product, whose results are blocks of cells.

    All read one window of the delta, as large as the phase with most taps needs: others have weights of 0 there.
    """

    directions = (BACKWARD_DATA,)
    kernels = "convolution/{direction}_tiled"

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        if not super().matches(operation) or operation.strides == (1, 1):
            return False
        return operation.units * operation.strides[0] * operation.strides[1] <= _MOST_ROWS and bool(operation.blocks)

    @classmethod
    def tiles(cls, operation: Operation) -> Sequence[Tile]:
        rows = [phase.taps * operation.depth for phase in [operation.blocks] if phase]
        return fitting(TILES, operation.tuning.model, rows)

    def phases(self, operation: Operation) -> list[Phase]:
        return [operation.blocks] if operation.blocks else []

    def extents(self) -> Pair:
        (phase,) = self.phases(self.operation)
        return self.operation.units * phase.vertical.beside * phase.horizontal.beside, phase.taps

    @property
    def matrix(self) -> dict[str, Macro]:
        (phase,), operation = self.phases(self.operation), self.operation
        window = {"FILTER_HEIGHT": phase.vertical.count, "FILTER_WIDTH": phase.horizontal.count}
        kernel = {"KERNEL_HEIGHT": operation.vertical.kernel, "KERNEL_WIDTH": operation.horizontal.kernel}
        return {**super().matrix, **phase.macros, **window, **kernel}

    @property
    def packing(self) -> tuple[str, GlobalSize, int]:
        return "convolution/pack_blocks", super().packing[1], 16
