"""Convolutions as products of matrices on tensor cores, in tf32 (kernels/convolution/tensor.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blobnet.implementations.base import BACKWARD_WEIGHTS
from blobnet.implementations.operation import Operation, Phase
from blobnet.implementations.tile import Tile
from blobnet.implementations.tiled import Tiled
from blobnet.launch.kernel_source import Macro
from blobnet.memory.blob import FLOAT32


@dataclass(frozen=True)
class WarpTile(Tile):
    """A tile of which a warp, instead of a work-item, keeps ``item_units`` x ``item_columns`` sums.

    ``stages`` steps of ``depth`` rows of both factors lie in local memory.
    """

    stages: int

    @property
    def items(self) -> int:
        return 32 * super().items

    def __str__(self) -> str:
        return f"{self.units}x{self.columns}"

    @property
    def macros(self) -> dict[str, Macro]:
        own = {"WARP_UNITS": self.item_units, "WARP_COLUMNS": self.item_columns, "STAGES": self.stages}
        return {**super().macros, **own}


# NOTE: tiles may take 96 KB of local memory: NVIDIA's OpenCL does, though it says 48 KB.
#: Tiles of forward and backward data. Speeds were fitted to times on an NVIDIA H200 (docs/performance.md).
TILES = (
    WarpTile(128, 128, 16, 64, 64, 4, speed=3.25, busy=2.2, overhead=90),
    WarpTile(128, 64, 16, 64, 32, 4, speed=3.3, busy=1.6, overhead=86),
    WarpTile(64, 128, 16, 32, 64, 4, speed=2.75, busy=3, overhead=100),
    WarpTile(64, 64, 16, 32, 32, 4, speed=2.5, busy=2.5, overhead=80),
)
#: Tiles of the gradient of the weights.
WEIGHT_TILES = (
    WarpTile(128, 128, 32, 64, 64, 3, speed=1.75, busy=2, overhead=60),
    WarpTile(64, 128, 32, 32, 64, 3, speed=1.95, busy=2, overhead=60),
    WarpTile(64, 64, 32, 32, 32, 3, speed=1.75, busy=3, overhead=80),
)

#: The time of products of narrow blobs over that of float32's: forward and backward data, and gradients of weights.
_NARROW_COSTS = (1.1, 1.7)


class Tensor(Tiled):
    """Products of matrices on tensor cores, for those who asked for tf32, or 16 bits; in splits as ``tiled``.

    The packed weights lie in the order of tensor cores (kernels/convolution/pack_weight_tensor.cl).
    """

    precisions = ("tf32", "bf16", "fp16")
    slower = ()
    packer = "convolution/pack_weight_tensor"
    takes_rows = False

    @classmethod
    def tiles(cls, operation: Operation) -> Sequence[Tile]:
        tiles = WEIGHT_TILES if operation.direction == BACKWARD_WEIGHTS else TILES
        return tiles if operation.tuning.precision in cls.precisions else ()

    def _product_cost(self, splits: int) -> float:
        """The cost of the products: narrow numbers are widened on the way to local memory, which takes registers."""
        operation = self.operation
        is_narrow = any(blob.type != FLOAT32 for blob in (operation.source, operation.result))
        return super()._product_cost(splits) * (_NARROW_COSTS[self.of_weights] if is_narrow else 1)

    def row(self, phase: Phase) -> int:
        # A row as long as the source's makes neighbours of neighbours in memory, which copies need to be fast.
        return self.operation.source.layout.width.memory if phase.horizontal.stride == 1 else phase.horizontal.size
