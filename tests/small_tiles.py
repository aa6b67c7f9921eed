"""Small tiles in place of GPUs', which drivers for CPUs build and run in little time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from blobnet.implementations import blocks, cells, dense_tiled, fourier, tensor, tiled, winograd
from blobnet.implementations.cells import CellTile, GradientTile
from blobnet.implementations.tensor import WarpTile
from blobnet.implementations.tile import Tile

SMALL = Tile(32, 32, 8, 4, 4, speed=1)
#: Of tensor cores.
SMALL_WARP = WarpTile(32, 32, 16, 16, 32, 2, speed=1)
SMALL_WARP_WEIGHTS = WarpTile(32, 32, 32, 16, 32, 2, speed=1)
#: Of tensor cores that take cells.
SMALL_CELLS = CellTile(64, 64, 2, 64, 1, speed=1)
SMALL_GRADIENTS = (
    GradientTile(64, 64, 16, 64, 64, 2, 1, speed=1),
    GradientTile(64, 64, 16, 64, 64, speed=1),
)
#: For what takes minutes with these.
LEAST = Tile(8, 16, 8, 4, 4, speed=1)


def take_small_tiles(patch: pytest.MonkeyPatch) -> None:
    """Has all products take them."""
    _take_for_points(patch, SMALL)
    for name in ("TILES", "WEIGHT_TILES"):
        patch.setattr(tiled, name, (SMALL,))
    patch.setattr(fourier, "_TILES", ())
    patch.setattr(blocks, "TILES", (SMALL,))
    patch.setattr(dense_tiled, "TILES", (SMALL,))
    patch.setattr(cells, "TILES", (SMALL_CELLS,))
    for name in ("WEIGHT_TILES", "TF32_WEIGHT_TILES", "FEW_TILES"):
        patch.setattr(cells, name, SMALL_GRADIENTS)
    patch.setattr(tensor, "TILES", (SMALL_WARP,))
    patch.setattr(tensor, "WEIGHT_TILES", (SMALL_WARP_WEIGHTS,))


def take_least_tiles(patch: pytest.MonkeyPatch) -> None:
    """Has products at the points of patches take the least, of no more patches than that."""
    _take_for_points(patch, LEAST)
    patch.setattr(winograd, "_PATCH_LOCAL", LEAST.columns)
    patch.setattr(winograd, "_BATCH_LOCAL", 2 * LEAST.columns)


def _take_for_points(patch: pytest.MonkeyPatch, tile: Tile) -> None:
    for module, name in product((winograd, fourier), ("TILES", "WEIGHT_TILES")):
        patch.setattr(module, name, (tile,))
    for name in ("TOTAL_TILES", "WEIGHT_TOTAL_TILES"):
        patch.setattr(winograd, name, (replace(tile, totals=True),))
    patch.setattr(fourier, "_WHOLE", tile.columns // 2)


def take_small_patches(patch: pytest.MonkeyPatch) -> None:
    """Has Winograd's convolutions take patches of 4 alone."""
    patch.setattr(winograd, "PATCH_TAPS", {4: (2, 3)})
