"""Square filters at stride 1 by minimal filtering (Lavin & Gray 2015, arXiv 1509.09308), on GPUs.

Weights, and patches of blobs, become values at the points of a patch. Their products, over the units or, for the
gradient of the weights, over the patches, take 2.25 to 6.25 times fewer multiplications than the taps would. What is
between two launches lies in memory, so a batch goes through them in chunks of samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from blobnet.blob import FLOAT32
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.blocking import rounded_up, splits_for
from blobnet.implementations.operation import Operation
from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST, Tile, fitting
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall, group_size
from blobnet.kernel_source import Macro
from blobnet.task import Way

#: Cells of a patch on a side, for which winograd.h has matrices, and the sides of filters that err little enough there;
#: and the rows that larger patches than _PLAIN sum before they are added to a total (docs/performance.md).
PATCH_TAPS: Mapping[int, Collection[int]] = {4: (2, 3), 6: (2, 3, 4, 5), 8: (4, 5)}
_PLAIN, _SUM_ROWS = 6, 16
#: Tiles of the products. Speeds, relative to the best direct products', were fitted to times on an NVIDIA H200.
TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=2),
    Tile(64, 128, 8, 8, 8, speed=1.01, busy=2),
    Tile(64, 64, 16, 8, 8, speed=0.92, busy=4),
    Tile(32, 128, 16, 8, 8, speed=0.82, busy=4, is_guess=True),
)
#: Tiles of the products for the gradient of the weights.
WEIGHT_TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.05),
    Tile(64, 128, 8, 8, 8, speed=1.02),
    Tile(64, 64, 16, 8, 8, speed=0.94),
    Tile(64, 32, 16, 8, 4, speed=0.75, is_guess=True),
)
#: The same for products of patches whose sums go to totals.
TOTAL_TILES = (
    Tile(128, 64, 16, 8, 8, speed=0.86, busy=2, totals=True),
    Tile(64, 64, 16, 8, 8, speed=0.78, busy=4, totals=True),
    Tile(32, 128, 16, 8, 8, speed=0.83, busy=4, totals=True, is_guess=True),
)
WEIGHT_TOTAL_TILES = (
    Tile(64, 64, 16, 8, 8, speed=0.9, totals=True),
    Tile(128, 64, 16, 8, 8, speed=0.88, totals=True),
    Tile(64, 32, 16, 8, 4, speed=0.75, totals=True, is_guess=True),
)
#: Patches, and units of weights, side by side in a work-group that transforms them; and patches, and work-items, of one
#: that stores units side by side.
_PATCH_LOCAL, _WEIGHT_LOCAL, _BATCH_PATCHES, _BATCH_LOCAL = 128, 32, 8, 256
Local = int | tuple[int, int, int]
#: Bytes that everything between two launches may take, but for the partial sums of splits.
WORKSPACE = 512 << 20
#: Tiles for each compute unit that a split sum should have, the most splits, and steps of depth that one is worth.
SPLIT_TILES, MOST_SPLITS, SPLIT_STEPS = 4, 64, 4


class Winograd(Implementation):
    """Minimal filtering: square filters at stride 1 by 2.25 to 6.25 times fewer multiplications, in patches.

    F(``cells`` x ``cells``, ``taps`` x ``taps``): planes of the operation's result are made (backward weights: read)
    ``cells`` x ``cells`` cells a patch.
    """

    tile: Tile

    lanes = True
    #: By the results of a patch on a side.
    variants = ("winograd2", "winograd3", "winograd4", "winograd5")
    #: The kernels that transform, and the real numbers of a value at a point.
    weight, patch = "convolution/winograd_weight", "convolution/winograd_patch"
    result, gradient = "convolution/winograd_result", "convolution/winograd_gradient"
    parts = 1

    @classmethod
    def kernel_of(cls, direction: str) -> str:
        return "convolution/point_product"

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        axes = operation.vertical, operation.horizontal
        square = all(axis.stride == axis.dilation == 1 and axis.kernel == axes[0].kernel > 1 for axis in axes)
        return super().matches(operation) and square

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        taps, of_weights = operation.vertical.kernel, operation.direction == BACKWARD_WEIGHTS
        known = (
            (side - taps + 1, points, tile)
            for side, points in cls.patches_of(taps).items()
            for tile in fitting(cls.tiles_of(side, of_weights=of_weights), operation.tuning.model)
        )
        found = (cls(operation, tile, cells, points) for cells, points, tile in known)
        return (candidate for candidate in found if candidate.chunk)

    @classmethod
    def patches_of(cls, taps: int) -> dict[int, int]:
        """The sides of patches for filters of so many taps on a side, and the points of each."""
        return {side: side**2 for side in PATCH_TAPS if taps in PATCH_TAPS[side]}

    @classmethod
    def tiles_of(cls, side: int, *, of_weights: bool) -> tuple[Tile, ...]:
        """Tiles for the products of patches of a side."""
        if side > _PLAIN:
            return WEIGHT_TOTAL_TILES if of_weights else TOTAL_TILES
        return WEIGHT_TILES if of_weights else TILES

    def __init__(self, operation: Operation, tile: Tile, cells: int, points: int) -> None:
        super().__init__(operation, tile)
        self.cells, result, parts = cells, operation.result.shape, self.parts
        #: Whether products are over the patches, instead of the units.
        self.of_weights = operation.direction == BACKWARD_WEIGHTS
        #: Products: a group's for each point.
        self.batches = points * operation.groups
        #: Units of the result (backward weights: the delta), in whole tiles.
        self.units = rounded_up(operation.units, tile.units)
        #: Units of the source, in whole tiles: the depth of products, or columns of the gradient of the weights.
        self.depth = rounded_up(operation.depth, (tile.columns if self.of_weights else tile.depth) // parts)
        #: Patches side by side, and those of a sample.
        self.row_patches = -(-result.width // cells)
        self.sample_patches = -(-result.height // cells) * self.row_patches
        #: Values of one product that are not of the patches, and those that are, for each of them.
        self.fixed, self.growing = parts * self.units * self.depth, parts * (self.units + parts * self.depth)
        room = WORKSPACE // (FLOAT32.itemsize * self.batches) - self.fixed
        most = max(0, room // (self.growing * self.sample_patches))
        #: Samples of a chunk: what WORKSPACE has room for, 0 if that is none; and those of each.
        self.chunk = most and -(-operation.batch_size // -(-operation.batch_size // most))
        count, firsts = operation.batch_size, range(0, operation.batch_size, self.chunk or operation.batch_size)
        self.chunks = [range(first, min(first + self.chunk, count)) for first in firsts]
        #: Patches of a chunk, in whole tiles of every kernel.
        self.patches = rounded_up(self.chunk * self.sample_patches, max(_PATCH_LOCAL, tile.columns) // parts)
        #: What is side by side in the right factor of a product, and what the product sums over.
        self.across, self.rows = (self.depth, self.patches) if self.of_weights else (self.patches, self.depth)
        tiles = self.batches * tile.count(self.units, parts * self.across)
        most = min(MOST_SPLITS, -(-parts * self.chunk * self.sample_patches // tile.depth) // SPLIT_STEPS)
        #: Parts of the sum over patches that is the gradient of the weights; of other sums one.
        self.splits = splits_for(tiles, SPLIT_TILES * operation.cores, most) if self.of_weights else 1

    @property
    def way(self) -> Way:
        return Way(f"winograd{self.cells}", str(self.tile))

    @property
    def cost(self) -> float:
        operation, cores, launches = self.operation, self.operation.cores, 5 if self.of_weights else 3
        # What launches read and write in a chunk beside the arithmetic of products.
        read = operation.source.shape.elements + operation.result.shape.elements
        values = self.batches * (self.growing * self.patches + self.fixed * self.splits) + self.chunk * read
        # Splits fill the device, whatever the tile.
        rows, shared = self.parts * self.rows, cores if self.of_weights else 1
        sums = self.tile.cost(self.units, self.parts * self.across, self.batches, cores // shared) * rows / shared
        return len(self.chunks) * (sums + values * VALUE_COST / cores + launches * LAUNCH_COST)

    def calls(self) -> list[KernelCall]:
        return self._sums() if self.of_weights else self._products()

    def _products(self) -> list[KernelCall]:
        """Filters the source; backward data with the filter turned by 180 degrees."""
        operation, units, depth = self.operation, self.units, self.depth
        # Memory of its own: in inference it stays from batch to batch.
        weights = operation.memory(f"filtered weights for {operation.direction}", self.batches * self.fixed)
        patches, products = self._memory(self.parts**2 * depth * self.patches, self.parts * units * self.patches)
        calls = [self._call(self.weight, *self.weight_work, ": weights", TRANSFORMED=weights)]
        width, positions = units // self.tile.units * self.tile.items, self.parts * self.sample_patches
        size = GlobalSize(width, 1, self.batches, positions=positions, tile=self.tile.columns)
        for samples in self.chunks:
            calls += [
                self._patch(samples, operation.source, patches, depth),
                self._product(samples, [weights, patches, products], size),
                self._call(self.result, *self.result_work, "", samples, PRODUCTS=products),
            ]
        return calls

    def _sums(self) -> list[KernelCall]:
        """Multiplies patches of the delta with patches of the input, in splits, and sums them chunk by chunk."""
        operation, units, columns, splits = self.operation, self.units, self.depth, self.splits
        sizes = self.parts * units * self.patches, self.parts**2 * columns * self.patches, splits * self.fixed
        deltas, patches, products = self._memory(*sizes)
        width = self.tile.count(units, self.parts * columns) * self.tile.items
        size = GlobalSize(width, splits, self.batches, per_sample=False)
        calls = []
        for samples in self.chunks:
            calls += [
                self._patch(samples, operation.output, deltas, units, delta=True),
                self._patch(samples, operation.input, patches, columns),
                self._product(samples, [deltas, patches, products], size),
            ]
        return [*calls, self._call(self.gradient, *self.gradient_work, SPLITS=splits, PRODUCTS=products)]

    def _memory(self, *sizes: int) -> list[Array]:
        """Arrays of so many elements for each product: parts of one, so that the next layer's fit in its place."""
        name = f"{self.operation.direction} between launches"
        whole = self.operation.memory(name, self.batches * sum(sizes))
        starts = accumulate(sizes, initial=0)
        return [
            replace(whole, elements=self.batches * size, offset=whole.offset + self.batches * start)
            for size, start in zip(sizes, starts, strict=False)
        ]

    def _call(
        self, kernel: str, size: GlobalSize, local: Local, note: str = "", samples: range | None = None, /, **given: Any
    ) -> KernelCall:
        """A launch of a kernel that transforms; ``given`` as for :meth:`Operation.call`."""
        operation = self.operation
        facts: dict[str, Macro] = {
            "CELLS": self.cells,
            "TAPS": operation.vertical.kernel,
            "SAMPLE_PATCHES": self.sample_patches,
            "ROW_PATCHES": self.row_patches,
            "PATCHES": self.patches,
            "GROUP_UNITS": operation.units,
            "GROUP_DEPTH": operation.depth,
            "UNITS": self.units,
            "DEPTH": self.depth,
            "COLUMNS": self.depth,
            "ROTATED": int(operation.direction == BACKWARD_DATA),
            "BY_BATCH": int(self.of_weights),
        }
        label = f"{operation.name} {operation.direction}{note}"
        return operation.call(kernel, size, local, facts, label, samples, **given)

    def _patch(self, samples: range, blob: Blob, to: Array, units: int, *, delta: bool = False) -> KernelCall:
        """Transforms the patches of a blob, for ``units`` a group; they begin with the first cell that a result reads.

        ``delta``: those of the delta for the gradient of the weights, which lie side by side.
        """
        (phase,), groups = self.operation.phases, self.operation.groups
        axes = phase.vertical, phase.horizontal
        first = [0 if delta else axis.shift + (axis.count - 1) * min(0, axis.shift_step) for axis in axes]
        return self._call(
            self.patch,
            *self.patch_work(units),
            ": patches",
            samples,
            DELTA=int(delta),
            FIRST_Y=first[0],
            FIRST_X=first[1],
            GROUP_UNITS=blob.shape.units // groups,
            UNITS=units,
            SOURCE=blob,
            TRANSFORMED=to,
        )

    def _product(self, samples: range, factors: list[Array], size: GlobalSize) -> KernelCall:
        """Multiplies two matrices into a third."""
        operation, parts = self.operation, self.parts
        facts: dict[str, Macro] = {
            **self.tile.macros,
            "UNITS": self.units,
            "COLUMNS": parts * self.across,
            "DEPTH": parts * self.rows,
            "BY_BATCH": int(self.of_weights),
            "SAMPLE_ROWS": parts * self.sample_patches,
            "SPLITS": self.splits,
            "ACCUMULATE": int(self.of_weights and samples.start > 0),
            "SUM_ROWS": _SUM_ROWS * self.tile.totals,
        }
        label = f"{operation.name} {operation.direction}: products"
        arrays = dict(zip(("LEFT", "RIGHT", "PRODUCTS"), factors, strict=True))
        return operation.call(self.kernel, size, self.tile.items, facts, label, samples, **arrays)

    # -- the work of transforms, and the work-items of a group ---------------------------------------------------------

    @property
    def weight_work(self) -> tuple[GlobalSize, Local]:
        """That of weights."""
        return GlobalSize(self.units, self.depth, self.operation.groups, per_sample=False), _WEIGHT_LOCAL

    def patch_work(self, units: int) -> tuple[GlobalSize, Local]:
        """That of patches of ``units`` a group."""
        size = GlobalSize(
            _PATCH_LOCAL, 1, self.operation.groups * units, positions=self.sample_patches, tile=_PATCH_LOCAL
        )
        model = self.operation.tuning.model
        if not self.of_weights:
            return size, group_size(model, _PATCH_LOCAL)
        return size, (_BATCH_PATCHES, 1, group_size(model, _BATCH_LOCAL) // _BATCH_PATCHES)

    @property
    def result_work(self) -> tuple[GlobalSize, Local]:
        """That of results."""
        return self.patch_work(self.operation.units)

    @property
    def gradient_work(self) -> tuple[GlobalSize, Local]:
        """That of the gradient of weights."""
        operation = self.operation
        size = GlobalSize(operation.depth, operation.units, operation.groups, per_sample=False)
        return size, _WEIGHT_LOCAL
