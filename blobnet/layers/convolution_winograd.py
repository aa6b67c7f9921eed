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

from blobnet.blob import Shape
from blobnet.geometry import Pair
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Epilogue, Site
from blobnet.layers.blocking import splits_for
from blobnet.layers.candidates import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, Candidate
from blobnet.layers.convolution_problem import Problem
from blobnet.layers.tile import LAUNCH_COST, VALUE_COST, Tile, fitting, product_cost

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


def _whole(size: int, step: int) -> int:
    """``size`` up to the next multiple of ``step``."""
    return -(-size // step) * step


@dataclass(frozen=True)
class Filtering:
    """F(``cells`` x ``cells``, ``taps`` x ``taps``) for one direction at a site, its products in ``tile``.

    Attributes:
        plane: the shape whose planes are made (gradient of the weights: read) ``cells`` x ``cells`` cells a patch.
        groups: as in the layer.
        rows: rows of the two factors or products that have a column for each patch.
        fixed: elements, for each product, of the third, which the batch does not change.
    """

    site: Site
    direction: str
    cells: int
    taps: int
    plane: Shape
    groups: int
    rows: int
    fixed: int
    tile: Tile

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.site.name} {self.direction}"

    @property
    def points(self) -> int:
        """Values of a patch and a unit."""
        return (self.cells + self.taps - 1) ** 2

    @property
    def batches(self) -> int:
        """Products."""
        return self.points * self.groups

    @property
    def row_patches(self) -> int:
        """Patches side by side."""
        return -(-self.plane.width // self.cells)

    @property
    def sample_patches(self) -> int:
        """Patches of a sample."""
        return -(-self.plane.height // self.cells) * self.row_patches

    @property
    def chunk(self) -> int:
        """Samples of a chunk: what WORKSPACE has room for, 0 if that is none."""
        room = WORKSPACE // (4 * self.batches) - self.fixed
        most = max(0, room // (self.rows * self.sample_patches))
        return most and -(-self.site.batch_size // -(-self.site.batch_size // most))

    @property
    def chunks(self) -> list[range]:
        """The samples of each chunk."""
        count = self.site.batch_size
        return [range(first, min(first + self.chunk, count)) for first in range(0, count, self.chunk)]

    @property
    def patches(self) -> int:
        """Columns for the patches of a chunk, in whole tiles of every kernel."""
        return _whole(self.chunk * self.sample_patches, max(_PATCH_LOCAL, self.tile.units, self.tile.columns))

    @property
    def filter_macros(self) -> dict[str, Macro]:
        """The matrices."""
        return {"CELLS": self.cells, "TAPS": self.taps, "GROUPS": self.groups}

    @property
    def macros(self) -> dict[str, Macro]:
        """Matrices and patches."""
        return {
            **self.filter_macros,
            "SAMPLE_PATCHES": self.sample_patches,
            "ROW_PATCHES": self.row_patches,
            "PATCHES": self.patches,
        }

    def memory(self, *sizes: int) -> list[Array]:
        """Arrays of so many elements for each product: parts of one, so that the next layer's fit in its place."""
        whole = self.site.memory(f"{self.direction} between launches", self.batches * sum(sizes))
        starts = accumulate(sizes, initial=0)
        return [
            replace(whole, elements=self.batches * size, offset=whole.offset + self.batches * start)
            for size, start in zip(sizes, starts, strict=False)
        ]

    def patch(
        self, samples: range, blob: Blob, to: Array, units: int, rows: int, first: Pair = (0, 0), *, delta: bool = False
    ) -> KernelCall:
        """Transforms the patches of ``units`` units a group, the first patch from cell ``first`` on, into ``rows``."""
        return KernelCall(
            "convolution/winograd_patch",
            f"{self.label}: patches",
            self._patch_size(self.groups * rows),
            blobs={"SOURCE": blob},
            arrays={"TRANSFORMED": to},
            macros={
                **self.macros,
                "DELTA": int(delta),
                "FIRST_Y": first[0],
                "FIRST_X": first[1],
                "GROUP_UNITS": units,
                "UNITS": rows,
            },
            local_size=(_PATCH_LOCAL, 1, 1),
            samples=samples,
        )

    def product(
        self, samples: range, arrays: dict[str, Array], size: GlobalSize, macros: dict[str, Macro]
    ) -> KernelCall:
        """Multiplies matrices of the sizes in ``macros``."""
        return KernelCall(
            "convolution/winograd_product",
            f"{self.label}: products",
            size,
            arrays=arrays,
            macros={**macros, **self.tile.macros, "SAMPLE_PATCHES": self.sample_patches},
            local_size=(self.tile.items, 1, 1),
            samples=samples,
        )

    def result(self, samples: range, direction: Direction, products: Array, rows: int) -> KernelCall:
        """Transforms ``rows`` of products into the result."""
        return KernelCall(
            "convolution/winograd_result",
            self.label,
            self._patch_size(self.groups * direction.units),
            blobs={"RESULT": direction.result, **direction.problem.epilogue_blobs(direction.site)},
            arrays={"PRODUCTS": products, **direction.problem.epilogue_arrays(direction.site)},
            macros={
                **self.macros,
                "GROUP_UNITS": direction.units,
                "UNITS": rows,
                "ACCUMULATE": int(direction.accumulate),
                **direction.problem.epilogue_macros(direction.site),
            },
            local_size=(_PATCH_LOCAL, 1, 1),
            samples=samples,
        )

    def _patch_size(self, units: int) -> GlobalSize:
        return GlobalSize(_PATCH_LOCAL, 1, units, positions=self.sample_patches, tile=_PATCH_LOCAL)

    def cost(self, units: int, columns: int, depth: float, values: int, cores: int, launches: int) -> float:
        """See Candidate: a product of ``units`` x ``columns`` x ``depth``, and ``values`` moved besides, in a chunk."""
        product = product_cost(self.tile, units, columns, self.batches, cores) * depth
        moved = values * VALUE_COST / self.site.tuning.model.cores
        return len(self.chunks) * (product + moved + launches * LAUNCH_COST)


@dataclass(frozen=True)
class Direction:
    """What forward and backward data differ in.

    ``site`` and ``problem`` are those of its epilogue. ``first``: the source cell where the first patch begins;
    ``unit_stride``, ``depth_stride``: in the weights.
    """

    name: str
    site: Site
    problem: Problem
    source: Blob
    result: Blob
    units: int
    depth: int
    first: Pair
    unit_stride: int
    depth_stride: int
    rotated: bool
    accumulate: bool


def _cells(problem: Problem) -> Iterator[int]:
    """Results of a patch on a side, for each size of patch that there is for a filter."""
    axes = problem.vertical, problem.horizontal
    if all(axis.stride == axis.dilation == 1 and axis.kernel == axes[0].kernel > 1 for axis in axes):
        yield from (size - axes[0].kernel + 1 for size in PATCH_SIZES if size > axes[0].kernel)


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Filters the input."""
    direction = Direction(
        FORWARD,
        site,
        problem,
        source=site.inputs[0],
        result=site.output,
        units=problem.output_units,
        depth=problem.input_units,
        first=(-problem.vertical.padding[0], -problem.horizontal.padding[0]),
        unit_stride=problem.columns,
        depth_stride=problem.taps,
        rotated=False,
        accumulate=False,
    )
    yield from _filters(site, problem, direction)


def backward_data(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Filters the delta with the filter turned by 180 degrees."""
    target = site.input_deltas[0]
    assert target is not None
    direction = Direction(
        BACKWARD_DATA,
        # Without an epilogue.
        replace(site, output=target, epilogue=Epilogue()),
        replace(problem, bias_mode=0),
        source=site.delta,
        result=target,
        units=problem.input_units,
        depth=problem.output_units,
        first=(
            problem.vertical.padding[0] + 1 - problem.vertical.kernel,
            problem.horizontal.padding[0] + 1 - problem.horizontal.kernel,
        ),
        unit_stride=problem.taps,
        depth_stride=problem.columns,
        rotated=True,
        accumulate=site.accumulate[0],
    )
    yield from _filters(site, problem, direction)


def _filters(site: Site, problem: Problem, direction: Direction) -> Iterator[Candidate]:
    for cells in _cells(problem):
        for tile in fitting(TILES, site.tuning.model):
            units, depth = _whole(direction.units, tile.units), _whole(direction.depth, tile.depth)
            work = Filtering(
                site,
                direction.name,
                cells,
                problem.vertical.kernel,
                direction.result.shape,
                problem.groups,
                rows=units + depth,
                fixed=units * depth,
                tile=tile,
            )
            if not work.chunk:
                continue
            # What products read and write goes on beside their arithmetic.
            values = work.batches * work.rows * work.patches
            values += work.chunk * (direction.source.shape.elements + direction.result.shape.elements)
            values += work.batches * units * depth
            cost = work.cost(units, work.patches, depth, values, site.tuning.model.cores, launches=3)
            yield Candidate(f"winograd{cells} {tile}", cost, partial(_filter_calls, work, direction))


def _filter_calls(work: Filtering, direction: Direction) -> list[KernelCall]:
    units, depth = _whole(direction.units, work.tile.units), _whole(direction.depth, work.tile.depth)
    # Memory of its own: in inference it stays from batch to batch.
    weights = work.site.memory(f"filtered weights for {work.direction}", work.batches * units * depth)
    patches, products = work.memory(depth * work.patches, units * work.patches)
    calls = [
        KernelCall(
            "convolution/winograd_weight",
            f"{work.label}: weights",
            GlobalSize(units, depth, work.groups, per_sample=False),
            arrays={"WEIGHT": work.site.parameter("weight"), "TRANSFORMED": weights},
            macros={
                **work.filter_macros,
                "ROTATED": int(direction.rotated),
                "GROUP_UNITS": direction.units,
                "GROUP_DEPTH": direction.depth,
                "UNITS": units,
                "DEPTH": depth,
                "UNIT_STRIDE": direction.unit_stride,
                "DEPTH_STRIDE": direction.depth_stride,
            },
            local_size=(_WEIGHT_LOCAL, 1, 1),
        )
    ]
    size = GlobalSize(
        units // work.tile.units * work.tile.items,
        1,
        work.batches,
        positions=work.sample_patches,
        tile=work.tile.columns,
    )
    macros: dict[str, Macro] = {"UNITS": units, "COLUMNS": work.patches, "DEPTH": depth}
    macros |= {"BY_PATCH": 0, "SPLITS": 1, "ACCUMULATE": 0}
    for samples in work.chunks:
        calls += [
            work.patch(samples, direction.source, patches, direction.depth, depth, direction.first),
            work.product(samples, {"LEFT": weights, "RIGHT": patches, "PRODUCTS": products}, size, macros),
            work.result(samples, direction, products, units),
        ]
    return calls


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Multiplies patches of the delta with patches of the input, in splits, and sums them chunk by chunk."""
    for cells in _cells(problem):
        for tile in fitting(WEIGHT_TILES, site.tuning.model):
            units, columns = _whole(problem.output_units, tile.units), _whole(problem.input_units, tile.columns)
            work = Filtering(
                site,
                BACKWARD_WEIGHTS,
                cells,
                problem.vertical.kernel,
                site.delta.shape,
                problem.groups,
                rows=units + columns,
                fixed=units * columns,
                tile=tile,
            )
            if not work.chunk:
                continue
            values = work.batches * work.rows * work.patches
            values += work.chunk * (site.delta.shape.elements + site.inputs[0].shape.elements)
            values += work.batches * units * columns * _splits(work, units, columns)
            # Splits fill the device, whatever the tile.
            depth = work.patches / site.tuning.model.cores
            cost = work.cost(units, columns, depth, values, cores=1, launches=5)
            yield Candidate(f"winograd{cells} {tile}", cost, partial(_gradient_calls, work, problem))


def _splits(work: Filtering, units: int, columns: int) -> int:
    tiles = work.batches * units // work.tile.units * columns // work.tile.columns
    steps = -(-work.chunk * work.sample_patches // work.tile.depth)
    return splits_for(tiles, SPLIT_TILES * work.site.tuning.model.cores, min(MOST_SPLITS, steps // SPLIT_STEPS))


def _gradient_calls(work: Filtering, problem: Problem) -> list[KernelCall]:
    site, tile = work.site, work.tile
    units, columns = _whole(problem.output_units, tile.units), _whole(problem.input_units, tile.columns)
    splits = _splits(work, units, columns)
    deltas, patches, products = work.memory(units * work.patches, columns * work.patches, splits * units * columns)
    first = -problem.vertical.padding[0], -problem.horizontal.padding[0]
    tiles = units // tile.units * columns // tile.columns
    size = GlobalSize(tiles * tile.items, splits, work.batches, per_sample=False)
    macros: dict[str, Macro] = {"UNITS": units, "COLUMNS": columns, "DEPTH": work.patches}
    macros |= {"BY_PATCH": 1, "SPLITS": splits}
    calls = []
    for samples in work.chunks:
        calls += [
            work.patch(samples, site.delta, deltas, problem.output_units, units, delta=True),
            work.patch(samples, site.inputs[0], patches, problem.input_units, columns, first),
            work.product(
                samples,
                {"LEFT": deltas, "RIGHT": patches, "PRODUCTS": products},
                size,
                {**macros, "ACCUMULATE": int(samples.start > 0)},
            ),
        ]
    gradient = KernelCall(
        "convolution/winograd_gradient",
        work.label,
        GlobalSize(problem.input_units, problem.output_units, problem.groups, per_sample=False),
        arrays={"PRODUCTS": products, "WEIGHT_GRADIENT": site.gradient("weight")},
        macros={
            **work.filter_macros,
            "SPLITS": splits,
            "GROUP_INPUT_UNITS": problem.input_units,
            "GROUP_OUTPUT_UNITS": problem.output_units,
            "UNITS": units,
            "COLUMNS": columns,
        },
        local_size=(_WEIGHT_LOCAL, 1, 1),
    )
    return [*calls, gradient]
