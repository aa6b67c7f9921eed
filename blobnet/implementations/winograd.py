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
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.task import Way

#: Cells of a patch on a side, for which winograd.h has matrices, and the sides of filters that err little enough there;
#: and the rows that larger patches than _PLAIN sum before they are added to a total (docs/performance.md).
PATCH_TAPS: Mapping[int, Collection[int]] = {4: (2, 3), 6: (2, 3, 4, 5), 8: (4, 5)}
_PLAIN, _SUM_ROWS = 6, 16
#: Tiles of the products. Speeds, relative to the best direct products', were fitted to times on an NVIDIA H200, but for
#: those with sides of 32, which have predicted ones.
TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=2),
    Tile(64, 128, 8, 8, 8, speed=1.01, busy=2),
    Tile(64, 64, 16, 8, 8, speed=0.92, busy=4),
    Tile(32, 128, 16, 8, 8, speed=0.92, busy=4, is_guess=True),
)
#: Tiles of the products for the gradient of the weights.
WEIGHT_TILES = (
    Tile(64, 128, 8, 8, 8, speed=1.05),
    Tile(128, 64, 16, 8, 8, speed=1.02),
    Tile(64, 64, 16, 8, 8, speed=0.94),
    Tile(64, 32, 16, 8, 4, speed=0.88, is_guess=True),
)
#: Work-items side by side in the kernels that transform patches, and in those that transform weights.
_PATCH_LOCAL, _WEIGHT_LOCAL = 128, 32
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

    @classmethod
    def kernel_of(cls, direction: str) -> str:
        return "convolution/winograd_product"

    @classmethod
    def matches(cls, operation: Operation) -> bool:
        axes = operation.vertical, operation.horizontal
        square = all(axis.stride == axis.dilation == 1 and axis.kernel == axes[0].kernel > 1 for axis in axes)
        return super().matches(operation) and square

    @classmethod
    def candidates(cls, operation: Operation) -> Iterator[Implementation]:
        tiles, taps = WEIGHT_TILES if operation.direction == BACKWARD_WEIGHTS else TILES, operation.vertical.kernel
        known = (
            (size - taps + 1, tile)
            for size in PATCH_TAPS
            if taps in PATCH_TAPS[size]
            for tile in fitting((replace(tile, totals=size > _PLAIN) for tile in tiles), operation.tuning.model)
        )
        found = (cls(operation, tile, cells) for cells, tile in known)
        return (candidate for candidate in found if candidate.chunk)

    def __init__(self, operation: Operation, tile: Tile, cells: int) -> None:
        super().__init__(operation, tile)
        self.cells, result = cells, operation.result.shape
        #: Whether products are over the patches, instead of the units.
        self.of_weights = operation.direction == BACKWARD_WEIGHTS
        #: Products: a group's for each value of a patch.
        self.batches = (cells + operation.vertical.kernel - 1) ** 2 * operation.groups
        #: Units of the result (backward weights: the delta), in whole tiles.
        self.units = rounded_up(operation.units, tile.units)
        #: Units of the source, in whole tiles: the depth of products, or columns of the gradient of the weights.
        self.depth = rounded_up(operation.depth, tile.columns if self.of_weights else tile.depth)
        #: Patches side by side, and those of a sample.
        self.row_patches = -(-result.width // cells)
        self.sample_patches = -(-result.height // cells) * self.row_patches
        # Two of the three factors and products grow with the patches, the third does not.
        room = WORKSPACE // (FLOAT32.itemsize * self.batches) - self.units * self.depth
        most = max(0, room // ((self.units + self.depth) * self.sample_patches))
        #: Samples of a chunk: what WORKSPACE has room for, 0 if that is none; and those of each.
        self.chunk = most and -(-operation.batch_size // -(-operation.batch_size // most))
        count, firsts = operation.batch_size, range(0, operation.batch_size, self.chunk or operation.batch_size)
        self.chunks = [range(first, min(first + self.chunk, count)) for first in firsts]
        #: Columns for the patches of a chunk, in whole tiles of every kernel.
        self.patches = rounded_up(self.chunk * self.sample_patches, max(_PATCH_LOCAL, tile.units, tile.columns))
        patches = self.chunk * self.sample_patches
        tiles, steps = self.batches * tile.count(self.units, self.depth), -(-patches // tile.depth)
        most = min(MOST_SPLITS, steps // SPLIT_STEPS)
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
        values = self.batches * (self.units + self.depth) * self.patches + self.chunk * read
        values += self.batches * self.units * self.depth * self.splits
        if self.of_weights:  # Splits fill the device, whatever the tile.
            sums = self.tile.cost(self.units, self.depth, self.batches, cores=1) * (self.patches / cores)
        else:
            sums = self.tile.cost(self.units, self.patches, self.batches, cores) * self.depth
        if self.tile.totals:  # Each sum is added to one, and cleared.
            sums *= 1 + 2 / _SUM_ROWS
        return len(self.chunks) * (sums + values * VALUE_COST / cores + launches * LAUNCH_COST)

    def calls(self) -> list[KernelCall]:
        return self._sums() if self.of_weights else self._products()

    def _products(self) -> list[KernelCall]:
        """Filters the source; backward data with the filter turned by 180 degrees."""
        operation, units, depth = self.operation, self.units, self.depth
        # Memory of its own: in inference it stays from batch to batch.
        weights = operation.memory(f"filtered weights for {operation.direction}", self.batches * units * depth)
        patches, products = self._memory(depth * self.patches, units * self.patches)
        size = GlobalSize(units, depth, operation.groups, per_sample=False)
        calls = [self._call("convolution/winograd_weight", size, _WEIGHT_LOCAL, ": weights", TRANSFORMED=weights)]
        width, cells = units // self.tile.units * self.tile.items, self._patch_size(operation.groups * operation.units)
        size = GlobalSize(width, 1, self.batches, positions=self.sample_patches, tile=self.tile.columns)
        macros = {"COLUMNS": self.patches, "BY_PATCH": 0, "SPLITS": 1, "ACCUMULATE": 0}
        for samples in self.chunks:
            calls += [
                self._patch(samples, operation.source, patches, depth),
                self._product(samples, [weights, patches, products], size, macros),
                self._call("convolution/winograd_result", cells, _PATCH_LOCAL, "", samples, PRODUCTS=products),
            ]
        return calls

    def _sums(self) -> list[KernelCall]:
        """Multiplies patches of the delta with patches of the input, in splits, and sums them chunk by chunk."""
        operation, units, columns, splits = self.operation, self.units, self.depth, self.splits
        sizes = units * self.patches, columns * self.patches, splits * units * columns
        deltas, patches, products = self._memory(*sizes)
        size = GlobalSize(self.tile.count(units, columns) * self.tile.items, splits, self.batches, per_sample=False)
        calls = []
        for samples in self.chunks:
            macros = {"DEPTH": self.patches, "BY_PATCH": 1, "SPLITS": splits, "ACCUMULATE": int(samples.start > 0)}
            calls += [
                self._patch(samples, operation.output, deltas, units, delta=True),
                self._patch(samples, operation.input, patches, columns),
                self._product(samples, [deltas, patches, products], size, macros),
            ]
        size = GlobalSize(operation.depth, operation.units, operation.groups, per_sample=False)
        return [
            *calls,
            self._call("convolution/winograd_gradient", size, _WEIGHT_LOCAL, SPLITS=splits, PRODUCTS=products),
        ]

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
        self, kernel: str, size: GlobalSize, local: int, note: str = "", samples: range | None = None, /, **given: Any
    ) -> KernelCall:
        """A launch; ``given`` as for :meth:`Operation.call`."""
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
            "SUM_ROWS": _SUM_ROWS * self.tile.totals,
        }
        label = f"{operation.name} {operation.direction}{note}"
        return operation.call(kernel, size, local, facts, label, samples, **given)

    def _patch(self, samples: range, blob: Blob, to: Array, rows: int, *, delta: bool = False) -> KernelCall:
        """Transforms the patches of a blob into ``rows`` a group; they begin with the first cell that a result reads.

        ``delta``: those of the delta for the gradient of the weights, which lie side by side.
        """
        (phase,), groups = self.operation.phases, self.operation.groups
        axes = phase.vertical, phase.horizontal
        first = [0 if delta else axis.shift + (axis.count - 1) * min(0, axis.shift_step) for axis in axes]
        return self._call(
            "convolution/winograd_patch",
            self._patch_size(groups * rows),
            _PATCH_LOCAL,
            ": patches",
            samples,
            DELTA=int(delta),
            FIRST_Y=first[0],
            FIRST_X=first[1],
            GROUP_UNITS=blob.shape.units // groups,
            UNITS=rows,
            SOURCE=blob,
            TRANSFORMED=to,
        )

    def _product(self, samples: range, factors: list[Array], size: GlobalSize, macros: dict[str, int]) -> KernelCall:
        """Multiplies two matrices into a third."""
        given = {**macros, **self.tile.macros, **dict(zip(("LEFT", "RIGHT", "PRODUCTS"), factors, strict=True))}
        return self._call("convolution/winograd_product", size, self.tile.items, ": products", samples, **given)

    def _patch_size(self, units: int) -> GlobalSize:
        """The work of transforms."""
        return GlobalSize(_PATCH_LOCAL, 1, units, positions=self.sample_patches, tile=_PATCH_LOCAL)
