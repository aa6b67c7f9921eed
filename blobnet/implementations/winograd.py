"""Square filters at stride 1 by minimal filtering (Lavin & Gray 2015, arXiv 1509.09308), on GPUs.

Weights, and patches of blobs, become values at the points of a patch, whose products are over the units or, for the
gradient of the weights, over the patches. What is between launches lies in memory: a batch goes in chunks of samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Implementation
from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation
from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST, Tile, fitting
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, rounded_up
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import group_size
from blobnet.memory.blob import FLOAT32

#: Cells of a patch on a side, for which winograd.h has matrices, and the sides of filters that err little enough there;
#: and the rows that larger patches than _PLAIN sum before they are added to a total (docs/performance.md).
PATCH_TAPS: Mapping[int, Collection[int]] = {4: (2, 3), 6: (2, 3, 4, 5), 8: (4, 5)}
_PLAIN, _SUM_ROWS = 6, 16
#: Tiles of the products. Speeds, relative to the best direct products', were fitted to times on an NVIDIA H200.
TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=2),
    Tile(64, 128, 8, 8, 8, speed=1.01, busy=2),
    Tile(64, 64, 16, 8, 8, speed=0.92, busy=4),
    Tile(32, 128, 16, 8, 8, speed=0.82, busy=4, doubt=1),
)
#: Tiles of the products for the gradient of the weights.
WEIGHT_TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.05),
    Tile(64, 128, 8, 8, 8, speed=1.02),
    Tile(64, 64, 16, 8, 8, speed=0.94),
    Tile(64, 32, 16, 8, 4, speed=0.75, doubt=1),
)
#: The same for products of patches whose sums go to totals.
TOTAL_TILES = (
    Tile(128, 64, 16, 8, 8, speed=0.86, busy=2, totals=True),
    Tile(64, 64, 16, 8, 8, speed=0.78, busy=4, totals=True),
    Tile(32, 128, 16, 8, 8, speed=0.83, busy=4, totals=True, doubt=1),
)
WEIGHT_TOTAL_TILES = (
    Tile(64, 64, 16, 8, 8, speed=0.9, totals=True),
    Tile(128, 64, 16, 8, 8, speed=0.88, totals=True),
    Tile(64, 32, 16, 8, 4, speed=0.75, totals=True, doubt=1),
)
#: Patches, and units of weights, side by side in a work-group that transforms them; and patches, and work-items, of one
#: that stores units side by side.
_PATCH_LOCAL, _WEIGHT_LOCAL, _BATCH_PATCHES, _BATCH_LOCAL = 128, 32, 8, 256
Local = int | tuple[int, int, int] | None
#: Bytes that everything between two launches may take, but for the partial sums of splits.
WORKSPACE = 512 << 20
#: Tiles for each compute unit that a split sum should have, the most splits, and steps of depth that one is worth.
SPLIT_TILES, MAX_SPLITS, SPLIT_STEPS = 4, 64, 4


class Winograd(Implementation):
    """Minimal filtering: square filters at stride 1 by 2.25 to 6.25 times fewer multiplications, in patches.

    F(``cells`` x ``cells``, ``taps`` x ``taps``): planes of the operation's result are made (backward weights: read)
    ``cells`` x ``cells`` cells a patch.
    """

    tile: Any

    lanes = True
    #: By the results of a patch on a side.
    variants: ClassVar[tuple[str, ...]] = ("winograd2", "winograd3", "winograd4", "winograd5")
    kernels = "convolution/point_product"
    #: The kernels that transform.
    weight, patch = "convolution/winograd_weight", "convolution/winograd_patch"
    result, gradient = "convolution/winograd_result", "convolution/winograd_gradient"
    #: Real numbers of a value at a point, and work-items that share the points of a weight's gradient.
    parts, slices = 1, 1

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        axes = operation.vertical, operation.horizontal
        square = all(axis.stride == axis.dilation == 1 and axis.kernel == axes[0].kernel > 1 for axis in axes)
        return super().matches(operation) and square

    @classmethod
    def tiles(cls, operation: Operation) -> list[tuple[Tile, str, int, int]]:
        """Each with the variant of the patches that it is for, their results on a side, and their points."""
        taps, of_weights = operation.vertical.kernel, operation.direction == BACKWARD_WEIGHTS
        plain, total = (TILES, WEIGHT_TILES)[of_weights], (TOTAL_TILES, WEIGHT_TOTAL_TILES)[of_weights]
        return [
            (tile, f"winograd{side - taps + 1}", side - taps + 1, side**2)
            for side, known in PATCH_TAPS.items()
            if taps in known
            for tile in fitting(plain if side <= _PLAIN else total, operation.tuning.model)
        ]

    def __init__(self, operation: Operation, choice: tuple[Any, str, int, int]) -> None:
        tile, variant, cells, points = choice
        super().__init__(operation, tile, variant)
        self.cells, result, parts, batch = cells, operation.result.shape, self.parts, operation.batch_size
        #: Whether products are over the patches, instead of the units.
        self.of_weights = operation.direction == BACKWARD_WEIGHTS
        #: Products: a group's for each point.
        self.batches = points * operation.groups
        units, columns, depth = self.sides
        #: Units of the result (backward weights: the delta), in whole tiles.
        self.units = rounded_up(operation.units, units)
        #: Units of the source, in whole tiles: the depth of products, or columns of the gradient of the weights.
        self.depth = rounded_up(operation.depth, (columns if self.of_weights else depth) // parts)
        #: Patches side by side, and those of a sample.
        self.row_patches = -(-result.width // cells)
        self.sample_patches = -(-result.height // cells) * self.row_patches
        #: Values of one product that are not of the patches, and those that are, for each of them.
        self.fixed, self.growing = parts * self.units * self.depth, parts * (self.units + parts * self.depth)
        most = self.most_samples
        self.fits = most > 0
        #: Samples of chunks, which are about equal, and of each no more than there is room for.
        chunk = -(-batch // -(-batch // max(1, most)))
        self.chunks = [range(first, min(first + chunk, batch)) for first in range(0, batch, chunk)]
        #: Patches of a chunk, in whole tiles of every kernel.
        self.patches = self.whole(chunk * self.sample_patches)
        #: Columns and rows of the right factor of a product: what is side by side, and what the product sums over.
        sides = self.depth, self.patches
        self.columns, self.rows = (parts * side for side in (sides if self.of_weights else sides[::-1]))
        #: Parts of the sum over patches that is the gradient of the weights; of other sums one.
        self.splits = self.splits_of(parts * chunk * self.sample_patches) if self.of_weights else 1

    @property
    def sides(self) -> tuple[int, int, int]:
        """Units, columns and depth of a tile of products."""
        return self.tile.units, self.tile.columns, self.tile.depth

    @property
    def most_samples(self) -> int:
        """Samples of which there is room for what lies between two launches."""
        room = WORKSPACE // (FLOAT32.itemsize * self.batches) - self.fixed
        return room // (self.growing * self.sample_patches)

    def whole(self, patches: int) -> int:
        """``patches`` in whole tiles."""
        return rounded_up(patches, max(_PATCH_LOCAL, self.sides[1]) // self.parts)

    def splits_of(self, rows: int) -> int:
        """Return how many parts the sum over so many rows has."""
        tiles = self.batches * self.tile.count(self.units, self.columns)
        most = min(MAX_SPLITS, -(-rows // self.tile.depth) // SPLIT_STEPS)
        return splits_for(tiles, SPLIT_TILES * self.operation.cores, most)

    @property
    def cost(self) -> float:
        operation, cores, launches = self.operation, self.operation.cores, 5 if self.of_weights else 3
        # What launches read and write in a chunk beside the arithmetic of products.
        read = len(self.chunks[0]) * (operation.source.shape.elements + operation.result.shape.elements)
        values = self.batches * (self.growing * self.patches + self.fixed * self.splits) + read
        # Splits fill the device, whatever the tile.
        shared = cores if self.of_weights else 1
        sums = self.tile.cost(self.units, self.columns, self.batches, cores // shared) * self.rows / shared
        return float(len(self.chunks) * (sums + values * VALUE_COST / cores + launches * LAUNCH_COST))

    def calls(self) -> list[KernelCall]:
        return self._sums() if self.of_weights else self._products()

    def _products(self) -> list[KernelCall]:
        """Filters the source; backward data with the filter turned by 180 degrees."""
        operation, tile, units, depth, batches = self.operation, self.tile, self.units, self.depth, self.batches
        # Memory of its own: in inference it stays from batch to batch.
        weights = operation.memory(f"filtered weights for {operation.direction}", batches * self.fixed)
        patches, products = self._memory(self.parts**2 * depth * self.patches, self.parts * units * self.patches)
        size = GlobalSize(units * depth * operation.groups, per_sample=False)
        calls = [self._call(self.weight, size, _WEIGHT_LOCAL, ": weights", TRANSFORMED=weights)]
        positions = self.parts * self.sample_patches
        size = GlobalSize(units // tile.units * tile.items, 1, batches, positions=positions, tile=tile.columns)
        for samples in self.chunks:
            calls += [
                self._patch(samples, operation.source, patches, depth),
                self._product(samples, size, weights, patches, products),
                self._call(self.result, *self.result_work, "", samples, PRODUCTS=products),
            ]
        return calls

    def _sums(self) -> list[KernelCall]:
        """Multiplies patches of the delta with patches of the input, in splits, and sums them chunk by chunk."""
        operation, units, depth, slices = self.operation, self.units, self.depth, self.slices
        sizes = self.parts * units * self.patches, self.parts**2 * depth * self.patches, self.splits * self.fixed
        deltas, patches, products = self._memory(*sizes)
        width, calls = self.tile.count(units, self.columns) * self.tile.items, []
        size = GlobalSize(width, self.splits, self.batches, per_sample=False)
        for samples in self.chunks:
            calls += [
                self._patch(samples, operation.output, deltas, units, delta=True),
                self._patch(samples, operation.input, patches, depth),
                self._product(samples, size, deltas, patches, products),
            ]
        size = GlobalSize(operation.depth, operation.units, operation.groups * slices, per_sample=False)
        return [*calls, self._call(self.gradient, size, (_WEIGHT_LOCAL, 1, slices), PRODUCTS=products)]

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
        """A launch of a kernel that transforms, or of the product; ``given`` as for :meth:`Operation.call`."""
        operation = self.operation
        facts: dict[str, Macro] = {"CELLS": self.cells, "TAPS": operation.vertical.kernel, "SPLITS": self.splits}
        facts |= {"ROTATED": int(operation.direction == BACKWARD_DATA), "BY_BATCH": int(self.of_weights)}
        facts |= {"SAMPLE_PATCHES": self.sample_patches, "ROW_PATCHES": self.row_patches, "PATCHES": self.patches}
        facts |= {"GROUP_UNITS": operation.units, "GROUP_DEPTH": operation.depth}
        facts |= {"UNITS": self.units, "DEPTH": self.depth, "COLUMNS": self.depth}
        return operation.call(kernel, size, local, f"{operation.label}{note}", samples, **{**facts, **given})

    def _patch(
        self, samples: range, blob: Blob, to: Array, units: int, *, delta: bool = False, **more: Any
    ) -> KernelCall:
        """Transforms the patches of a blob, for ``units`` a group; they begin with the first cell that a result reads.

        ``delta``: those of the delta for the gradient of the weights, which lie side by side.
        """
        (phase,), given = self.operation.phases, {"SOURCE": blob, "TRANSFORMED": to, **more}
        for axis, name in (phase.vertical, "FIRST_Y"), (phase.horizontal, "FIRST_X"):
            given[name] = 0 if delta else axis.shift + (axis.count - 1) * min(0, axis.shift_step)
        given |= {"DELTA": int(delta), "GROUP_UNITS": blob.shape.units // self.operation.groups, "UNITS": units}
        return self._call(self.patch, *self.patch_work(units), ": patches", samples, **given)

    def _product(self, samples: range, size: GlobalSize, left: Array, right: Array, products: Array) -> KernelCall:
        """Multiplies two matrices into a third."""
        given = {"LEFT": left, "RIGHT": right, "PRODUCTS": products, "COLUMNS": self.columns, "DEPTH": self.rows}
        given |= {"SAMPLE_ROWS": self.parts * self.sample_patches, "SUM_ROWS": _SUM_ROWS * self.tile.totals}
        given |= {"ACCUMULATE": int(self.of_weights and samples.start > 0), **self.tile.macros}
        return self._call(self.kernel, size, self.tile.items, ": products", samples, **given)

    def patch_work(self, units: int) -> tuple[GlobalSize, Local]:
        """The work of transforming patches of ``units`` a group, and the work-items of a group."""
        units, local = self.operation.groups * units, _PATCH_LOCAL
        size = GlobalSize(local, 1, units, positions=self.sample_patches, tile=local)
        model = self.operation.tuning.model
        if not self.of_weights:
            return size, group_size(model, local)
        return size, (_BATCH_PATCHES, 1, group_size(model, _BATCH_LOCAL) // _BATCH_PATCHES)

    @property
    def result_work(self) -> tuple[GlobalSize, Local]:
        """The sizes of transforming results."""
        return self.patch_work(self.operation.units)
