"""Backward data to few units at a stride, on GPUs: all phases in one product of matrices (tiled.py)."""

from __future__ import annotations

from collections.abc import Sequence

from blobnet.implementations.base import BACKWARD_DATA
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.tile import Tile, fitting
from blobnet.implementations.tiled import TILES as TILED
from blobnet.implementations.tiled import Tiled

#: Tiles beside those of tiled.py; the speed of the first is as measured on an NVIDIA H200 (docs/performance.md).
TILES = (
    *TILED,
    Tile(48, 64, 16, 12, 4, speed=0.97, busy=3, overhead=20),
    Tile(16, 256, 8, 8, 8, speed=0.8, busy=2.5, overhead=14, doubt=1),
)
#: Rows of a product up to which its phases are worth a common window.
_MAX_ROWS = 128


class Blocks(Tiled):
    """Few units at a stride: the phases side by side, as units of one product, whose results are blocks of cells.

    All read one window of the delta, as large as the phase with most taps needs: others have weights of 0 there.
    """

    directions = (BACKWARD_DATA,)
    kernels = "convolution/{direction}_tiled"
    packer = "convolution/pack_blocks"

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        if not super().matches(operation) or operation.strides == (1, 1):
            return False
        return operation.units * operation.strides[0] * operation.strides[1] <= _MAX_ROWS and bool(operation.blocks)

    @classmethod
    def tiles(cls, operation: Operation) -> Sequence[Tile]:
        rows = [phase.taps * operation.depth for phase in cls.phases(operation)]
        return fitting(TILES, operation.tuning.model, rows)

    @classmethod
    def phases(cls, operation: Operation) -> list[Phase]:
        return [operation.blocks] if operation.blocks else []
