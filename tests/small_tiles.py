"""Small tiles in place of GPUs', which drivers for CPUs build and run in little time."""

from __future__ import annotations

import pytest

from blobnet.implementations import blocks, dense_tiled, fourier, tensor, tiled, winograd
from blobnet.implementations.tensor import WarpTile
from blobnet.implementations.tile import Tile

SMALL = Tile(32, 32, 8, 4, 4, speed=1)
#: The same with sums of products in an array of their own.
SMALL_TOTALS = Tile(32, 32, 8, 4, 4, speed=1, totals=True)
#: Of tensor cores.
SMALL_WARP = WarpTile(32, 32, 16, 16, 32, 2, speed=1)
SMALL_WARP_WEIGHTS = WarpTile(32, 32, 32, 16, 32, 2, speed=1)


def take_small_tiles(patch: pytest.MonkeyPatch) -> None:
    """Has all products take them."""
    for module in (tiled, winograd, fourier):
        patch.setattr(module, "TILES", (SMALL,))
        patch.setattr(module, "WEIGHT_TILES", (SMALL,))
    for name in ("TOTAL_TILES", "WEIGHT_TOTAL_TILES"):
        patch.setattr(winograd, name, (SMALL_TOTALS,))
    patch.setattr(fourier, "_WHOLE", SMALL.columns // 2)
    patch.setattr(fourier, "_TILES", ())
    patch.setattr(blocks, "TILES", (SMALL,))
    patch.setattr(dense_tiled, "TILES", (SMALL,))
    patch.setattr(tensor, "TILES", (SMALL_WARP,))
    patch.setattr(tensor, "WEIGHT_TILES", (SMALL_WARP_WEIGHTS,))


def take_small_patches(patch: pytest.MonkeyPatch) -> None:
    """Has Winograd's convolutions take patches of 4 alone."""
    patch.setattr(winograd, "PATCH_TAPS", {4: (2, 3)})
