"""Square filters at stride 1 by minimal filtering (Lavin & Gray 2015, arXiv 1509.09308), on GPUs.

Weights, and patches of blobs, become values at the points of a patch. Their products, over the units or, for the
gradient of the weights, over the patches, take 2.25 to 4 times fewer multiplications than the taps would. What is
between two launches lies in memory, so a batch goes through them in chunks of samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from blobnet.geometry import WindowAxis
from blobnet.implementations.base import BACKWARD_DATA, BACKWARD_WEIGHTS, Candidate, Implementation
from blobnet.implementations.blocking import splits_for
from blobnet.implementations.operation import Operation
from blobnet.implementations.tile import LAUNCH_COST, VALUE_COST, Tile, fitting, product_cost
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.task import Way

#: Cells of a patch on a side, for which winograd.h has matrices.
PATCH_SIZES = (4, 6)
#: Tiles of the products. Speeds, relative to the best direct products', were fitted to times on an NVIDIA H200.
TILES = (
    Tile(128, 64, 16, 8, 8, speed=1.0, busy=2),
    Tile(64, 128, 8, 8, 8, speed=1.01, busy=2),
    Tile(64, 64, 16, 8, 8, speed=0.92, busy=4),
)
#: Tiles of the products for the gradient of the weights.
WEIGHT_TILES = (
    Tile(64, 128, 8, 8, 8, speed=1.05),
    Tile(128, 64, 16, 8, 8, speed=1.02),
    Tile(64, 64, 16, 8, 8, speed=0.94),
)
#: Work-items side by side in the kernels that transform patches, and in those that transform weights.
_PATCH_LOCAL, _WEIGHT_LOCAL = 128, 32
#: Bytes that everything between two launches may take, but for the partial sums of splits.
WORKSPACE = 512 << 20
#: Tiles for each compute unit that a split sum should have, the most splits, and steps of depth that one is worth.
SPLIT_TILES, MOST_SPLITS, SPLIT_STEPS = 4, 64, 4


@dataclass(frozen=True)
class Filtering:
    """F(``cells`` x ``cells``, ``taps`` x ``taps``) for an operation, its products in ``tile``.

    The planes of ``operation.result`` are made (gradient of the weights: read) ``cells`` x ``cells`` cells a patch.
    """

    operation: Operation
    cells: int
    tile: Tile

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.operation.name} {self.operation.direction}"

    @property
    def taps(self) -> int:
        """Taps of a filter on a side."""
        return self.operation.vertical.kernel

    @property
    def batches(self) -> int:
        """Products: a group's for each value of a patch."""
        return (self.cells + self.taps - 1) ** 2 * self.operation.groups

    @property
    def units(self) -> int:
        """Units of the result (gradient of the weights: the delta), in whole tiles."""
        return _whole(self.operation.units, self.tile.units)

    @property
    def depth(self) -> int:
        """Units of the source, in whole tiles: the depth of products, or columns of the gradient of the weights."""
        of_weights = self.operation.direction == BACKWARD_WEIGHTS
        return _whole(self.operation.depth, self.tile.columns if of_weights else self.tile.depth)

    @property
    def row_patches(self) -> int:
        """Patches side by side."""
        return -(-self.operation.result.shape.width // self.cells)

    @property
    def sample_patches(self) -> int:
        """Patches of a sample."""
        return -(-self.operation.result.shape.height // self.cells) * self.row_patches

    @property
    def chunk(self) -> int:
        """Samples of a chunk: what WORKSPACE has room for, 0 if that is none.

        Two of the three factors and products grow with the patches, the third does not.
        """
        room = WORKSPACE // (4 * self.batches) - self.units * self.depth
        most = max(0, room // ((self.units + self.depth) * self.sample_patches))
        return most and -(-self.operation.batch_size // -(-self.operation.batch_size // most))

    @property
    def chunks(self) -> list[range]:
        """The samples of each chunk."""
        count = self.operation.batch_size
        return [range(first, min(first + self.chunk, count)) for first in range(0, count, self.chunk)]

    @property
    def patches(self) -> int:
        """Columns for the patches of a chunk, in whole tiles of every kernel."""
        return _whole(self.chunk * self.sample_patches, max(_PATCH_LOCAL, self.tile.units, self.tile.columns))

    @property
    def splits(self) -> int:
        """Parts of the sum over patches that is the gradient of the weights."""
        tiles = self.batches * self.units // self.tile.units * self.depth // self.tile.columns
        steps = -(-self.chunk * self.sample_patches // self.tile.depth)
        return splits_for(tiles, SPLIT_TILES * self.operation.cores, min(MOST_SPLITS, steps // SPLIT_STEPS))

    @property
    def macros(self) -> dict[str, Macro]:
        """Matrices and patches."""
        return {
            "CELLS": self.cells,
            "TAPS": self.taps,
            "SAMPLE_PATCHES": self.sample_patches,
            "ROW_PATCHES": self.row_patches,
            "PATCHES": self.patches,
            "GROUP_UNITS": self.operation.units,
            "GROUP_DEPTH": self.operation.depth,
            "UNITS": self.units,
            "DEPTH": self.depth,
            "COLUMNS": self.depth,
            "ROTATED": int(self.operation.direction == BACKWARD_DATA),
        }

    def values(self, splits: int = 1) -> int:
        """What launches read and write in a chunk beside the arithmetic of products."""
        read = self.operation.source.shape.elements + self.operation.result.shape.elements
        moved = self.batches * (self.units + self.depth) * self.patches + self.chunk * read
        return moved + self.batches * self.units * self.depth * splits

    def cost(self, columns: int, depth: float, values: int, cores: int, launches: int) -> float:
        """See Candidate: a product of ``units`` x ``columns`` x ``depth``, and ``values`` moved besides, in a chunk."""
        product = product_cost(self.tile, self.units, columns, self.batches, cores) * depth
        moved = values * VALUE_COST / self.operation.cores
        return len(self.chunks) * (product + moved + launches * LAUNCH_COST)

    def memory(self, *sizes: int) -> list[Array]:
        """Arrays of so many elements for each product: parts of one, so that the next layer's fit in its place."""
        name = f"{self.operation.direction} between launches"
        whole = self.operation.memory(name, self.batches * sum(sizes))
        starts = accumulate(sizes, initial=0)
        return [
            replace(whole, elements=self.batches * size, offset=whole.offset + self.batches * start)
            for size, start in zip(sizes, starts, strict=False)
        ]

    def call(self, kernel: str, size: GlobalSize, local: int, note: str, **more: Any) -> KernelCall:
        """A launch; ``more`` as for :meth:`Operation.call`."""
        label = self.label + note
        return self.operation.call(kernel, size, (local, 1, 1), facts=self.macros, label=label, **more)

    def patch(self, samples: range, blob: Blob, to: Array, rows: int, *, delta: bool = False) -> KernelCall:
        """Transforms the patches of a blob into ``rows`` a group; they begin with the first cell that a result reads.

        ``delta``: those of the delta for the gradient of the weights, which lie side by side.
        """
        operation = self.operation

        def first(axis: WindowAxis) -> int:
            before = axis.kernel - 1 - axis.padding[0] if operation.direction == BACKWARD_DATA else axis.padding[0]
            return 0 if delta else -before

        return self.call(
            "convolution/winograd_patch",
            self.patch_size(operation.groups * rows),
            _PATCH_LOCAL,
            ": patches",
            macros={
                "DELTA": int(delta),
                "FIRST_Y": first(operation.vertical),
                "FIRST_X": first(operation.horizontal),
                "GROUP_UNITS": blob.shape.units // operation.groups,
                "UNITS": rows,
            },
            blobs={"SOURCE": blob},
            arrays={"TRANSFORMED": to},
            samples=samples,
        )

    def product(self, samples: range, factors: list[Array], size: GlobalSize, macros: dict[str, Macro]) -> KernelCall:
        """Multiplies two matrices into a third."""
        return self.call(
            Winograd.forward,
            size,
            self.tile.items,
            ": products",
            macros={**macros, **self.tile.macros},
            arrays=dict(zip(("LEFT", "RIGHT", "PRODUCTS"), factors, strict=True)),
            samples=samples,
        )

    def patch_size(self, units: int) -> GlobalSize:
        """The work of transforms."""
        return GlobalSize(_PATCH_LOCAL, 1, units, positions=self.sample_patches, tile=_PATCH_LOCAL)


class Winograd(Implementation):
    """Minimal filtering: square filters at stride 1 by 2.25 to 4 times fewer multiplications, in patches."""

    lanes = True
    forward = backward_data = backward_weights = "convolution/winograd_product"
    #: By the results of a patch on a side.
    variants = ("winograd2", "winograd3", "winograd4", "winograd5")

    def matches(self, operation: Operation) -> bool:
        axes = operation.vertical, operation.horizontal
        square = all(axis.stride == axis.dilation == 1 and axis.kernel == axes[0].kernel > 1 for axis in axes)
        return super().matches(operation) and square

    def candidates(self, operation: Operation) -> Iterator[Candidate]:
        of_weights, taps = operation.direction == BACKWARD_WEIGHTS, operation.vertical.kernel
        for cells in (size - taps + 1 for size in PATCH_SIZES if size > taps):
            for tile in fitting(WEIGHT_TILES if of_weights else TILES, operation.tuning.model):
                work = Filtering(operation, cells, tile)
                if not work.chunk:
                    continue
                if of_weights:
                    # Splits fill the device, whatever the tile.
                    depth = work.patches / operation.cores
                    cost = work.cost(work.depth, depth, work.values(work.splits), cores=1, launches=5)
                else:
                    cost = work.cost(work.patches, work.depth, work.values(), operation.cores, launches=3)
                calls = partial(_gradient_calls if of_weights else _filter_calls, work)
                yield Candidate(Way(f"winograd{cells}", str(tile)), cost, calls)


def _filter_calls(work: Filtering) -> list[KernelCall]:
    """Filters the source; backward data with the filter turned by 180 degrees."""
    operation, units, depth = work.operation, work.units, work.depth
    # Memory of its own: in inference it stays from batch to batch.
    weights = operation.memory(f"filtered weights for {operation.direction}", work.batches * units * depth)
    patches, products = work.memory(depth * work.patches, units * work.patches)
    size = GlobalSize(units, depth, operation.groups, per_sample=False)
    filtered = {"TRANSFORMED": weights}
    calls = [work.call("convolution/winograd_weight", size, _WEIGHT_LOCAL, ": weights", arrays=filtered)]
    width = units // work.tile.units * work.tile.items
    size = GlobalSize(width, 1, work.batches, positions=work.sample_patches, tile=work.tile.columns)
    macros: dict[str, Macro] = {"COLUMNS": work.patches, "BY_PATCH": 0, "SPLITS": 1, "ACCUMULATE": 0}
    arrays = {"PRODUCTS": products}
    cells = work.patch_size(operation.groups * operation.units)
    for samples in work.chunks:
        calls += [
            work.patch(samples, operation.source, patches, depth),
            work.product(samples, [weights, patches, products], size, macros),
            work.call("convolution/winograd_result", cells, _PATCH_LOCAL, "", samples=samples, arrays=arrays),
        ]
    return calls


def _gradient_calls(work: Filtering) -> list[KernelCall]:
    """Multiplies patches of the delta with patches of the input, in splits, and sums them chunk by chunk."""
    operation, units, columns, splits = work.operation, work.units, work.depth, work.splits
    deltas, patches, products = work.memory(units * work.patches, columns * work.patches, splits * units * columns)
    tiles = units // work.tile.units * columns // work.tile.columns
    size = GlobalSize(tiles * work.tile.items, splits, work.batches, per_sample=False)
    macros: dict[str, Macro] = {"DEPTH": work.patches, "BY_PATCH": 1, "SPLITS": splits}
    calls = []
    for samples in work.chunks:
        accumulated = {**macros, "ACCUMULATE": int(samples.start > 0)}
        calls += [
            work.patch(samples, operation.output, deltas, units, delta=True),
            work.patch(samples, operation.input, patches, columns),
            work.product(samples, [deltas, patches, products], size, accumulated),
        ]
    size = GlobalSize(operation.input_units, operation.output_units, operation.groups, per_sample=False)
    arrays, parts = {"PRODUCTS": products}, {"SPLITS": splits}
    return [*calls, work.call("convolution/winograd_gradient", size, _WEIGHT_LOCAL, "", macros=parts, arrays=arrays)]


def _whole(size: int, step: int) -> int:
    """``size`` up to the next multiple of ``step``."""
    return -(-size // step) * step
