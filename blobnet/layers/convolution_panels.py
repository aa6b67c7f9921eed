"""Convolutions as products with panels, copies in the order of reading: for CPUs (kernels/convolution/panels.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from blobnet.geometry import Pair
from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import READ_COST, balance, lanes_for, tiles
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Problem

#: What it costs to copy a value into a panel, to store a result, and to transpose a weight, in multiply-adds of a
#: compute unit; and a multiply-add itself, which reads nothing but a panel and weights in their order.
COPY_COST, STORE_COST, TRANSPOSE_COST, PRODUCT_COST = 30, 40, 40, 0.8
#: Rows of a panel at most, and units of a work-item, each of which has a tile of sums in local memory.
MOST_ROWS, MOST_UNITS = 512, 512
#: Work-items that a compute unit should have, so that none waits long for the last, if they have so many units each.
WORK_ITEMS, FEWEST_UNITS = 8, 64


@dataclass(frozen=True)
class Panels:
    """A tile of the product, and how it is cut into panels and work-items.

    Attributes:
        lanes, vectors, units: positions in a vector, vectors, and units whose sums are in registers.
        units_at_once: units of a work-item.
        depths: source units in a panel.
        cost: multiply-adds of the product.
    """

    lanes: int
    vectors: int
    units: int
    units_at_once: int
    depths: int
    cost: float

    @property
    def positions(self) -> int:
        """Positions of a tile."""
        return self.vectors * self.lanes

    def __str__(self) -> str:
        return f"{self.units}x{self.vectors}x{self.lanes}"

    @property
    def macros(self) -> dict[str, Macro]:
        """The tile as macros."""
        return {
            "LANES": self.lanes,
            "BLOCK_VECTORS": self.vectors,
            "BLOCK_UNITS": self.units,
            "UNITS_AT_ONCE": self.units_at_once,
            "DEPTHS": self.depths,
        }


@dataclass(frozen=True)
class Product:
    """A direction of a convolution as a product of weights and panels.

    Attributes:
        kernel: its name.
        source, result: the blobs that it reads and writes.
        units, depth: units of a group of the result and of the source.
        stride: from one cell of the result to the next, in cells of the source.
        shifts: of the taps, in rows and in columns of the source: each the first one's, and from one to the next.
    """

    kernel: str
    source: Blob
    result: Blob
    units: int
    depth: int
    stride: Pair
    shifts: tuple[Pair, Pair]

    def macros(self, problem: Problem) -> dict[str, Macro]:
        """What the kernel has to know, but for the tile."""
        (row, row_step), (column, column_step) = self.shifts
        return {
            "GROUPS": problem.groups,
            "UNITS": self.units,
            "DEPTH": self.depth,
            "RESULT_HEIGHT": self.result.shape.height,
            "RESULT_WIDTH": self.result.shape.width,
            "STRIDE_Y": self.stride[0],
            "STRIDE_X": self.stride[1],
            "TAPS_Y": problem.vertical.kernel,
            "TAPS_X": problem.horizontal.kernel,
            "ROW_FIRST": row,
            "ROW_STEP": row_step,
            "COLUMN_FIRST": column,
            "COLUMN_STEP": column_step,
        }

    def tiles(self, site: Site, problem: Problem) -> Iterator[Panels]:
        """Tiles that local memory has room for, the one with the cheapest product first."""
        tunables = site.tuning.of(self.kernel)
        positions = site.batch_size * self._positions
        lanes = lanes_for(positions, tunables["MAXIMUM_LANES"])
        limits = tunables["MAXIMUM_UNITS"], tunables["MAXIMUM_VECTORS"], tunables["MAXIMUM_ACCUMULATORS"]
        # A vector that is not full takes as long as one that is.
        scale = tunables["MAXIMUM_LANES"] * self.depth * problem.taps * problem.groups
        for cost, units, vectors in tiles(self.units, -(-positions // lanes), *limits):
            # Tiles that fit: rows of the panel, sums of a unit each, and what kernels/convolution/panels.h has besides.
            room = site.tuning.model.local_memory // (4 * vectors * lanes) - 4
            wanted = -(-WORK_ITEMS * site.tuning.model.cores // (problem.groups * -(-positions // (vectors * lanes))))
            most_units = max(1, min(MOST_UNITS, room // 2))
            chunks = max(-(-self.units // most_units), min(wanted, -(-self.units // FEWEST_UNITS)))
            at_once = -(-self.units // (chunks * units)) * units
            depths = min(self.depth, max(1, min(MOST_ROWS, room - at_once) // problem.taps))
            if at_once + depths * problem.taps <= room:
                yield Panels(lanes, vectors, units, at_once, depths, cost * scale)

    def cost(self, site: Site, problem: Problem, panels: Panels) -> float:
        """See Candidate."""
        chunks = -(-self.units // panels.units_at_once)
        copied = COPY_COST * self.depth * problem.taps * chunks
        positions = site.batch_size * self._positions
        values = positions * problem.groups * (copied + STORE_COST * self.units)
        items = problem.groups * chunks * -(-positions // panels.positions)
        weights = READ_COST * problem.groups * self.units * self.depth * problem.taps
        shared = (PRODUCT_COST * panels.cost + values + weights) / site.tuning.model.cores
        return shared * balance(items, site.tuning.model.cores)

    @property
    def _positions(self) -> int:
        return self.result.shape.height * self.result.shape.width

    def call(
        self,
        site: Site,
        problem: Problem,
        panels: Panels,
        direction: str,
        blobs: dict[str, Blob],
        arrays: dict[str, Array],
        macros: dict[str, Macro],
    ) -> KernelCall:
        """The launch."""
        chunks = problem.groups * -(-self.units // panels.units_at_once)
        return KernelCall(
            self.kernel,
            f"{site.name} {direction}",
            GlobalSize(chunks, positions=self._positions, tile=panels.positions),
            blobs=blobs,
            arrays=arrays,
            macros={**self.macros(problem), **panels.macros, **macros},
            tunables=site.tuning.of(self.kernel),
        )


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Panels of the input."""
    (top, _), (left, _) = problem.vertical.padding, problem.horizontal.padding
    product = Product(
        "convolution/forward_panels",
        site.inputs[0],
        site.output,
        problem.output_units,
        problem.input_units,
        problem.strides,
        ((-top, problem.vertical.dilation), (-left, problem.horizontal.dilation)),
    )
    for tile in product.tiles(site, problem):
        calls = partial(_forward_calls, site, problem, product, tile)
        yield Candidate(f"panels {tile}", product.cost(site, problem, tile), calls)


def _forward_calls(site: Site, problem: Problem, product: Product, panels: Panels) -> list[KernelCall]:
    blobs = {"INPUT": site.inputs[0], "OUTPUT": site.output, **problem.epilogue_blobs(site)}
    arrays = {"WEIGHT": site.parameter("weight"), **problem.epilogue_arrays(site)}
    return [product.call(site, problem, panels, "forward", blobs, arrays, problem.epilogue_macros(site))]


def backward_data(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Panels of the output's delta, at stride 1: the forward pass with rotated filters, and transposed weights."""
    target = site.input_deltas[0]
    assert target is not None
    if problem.strides != (1, 1):
        return
    (top, _), (left, _) = problem.vertical.padding, problem.horizontal.padding
    product = Product(
        "convolution/backward_data_panels",
        site.delta,
        target,
        problem.input_units,
        problem.output_units,
        (1, 1),
        ((top, -problem.vertical.dilation), (left, -problem.horizontal.dilation)),
    )
    transposition = TRANSPOSE_COST * site.parameter("weight").elements / site.tuning.model.cores
    for tile in product.tiles(site, problem):
        calls = partial(_backward_data_calls, site, problem, product, tile)
        yield Candidate(f"panels {tile}", product.cost(site, problem, tile) + transposition, calls)


def _backward_data_calls(site: Site, problem: Problem, product: Product, panels: Panels) -> list[KernelCall]:
    transpose = _transpose(site, problem, panels.lanes)
    blobs = {"OUTPUT_DELTA": product.source, "INPUT_DELTA": product.result}
    arrays = {"WEIGHT": transpose.arrays["TRANSPOSED"]}
    macros: dict[str, Macro] = {"ACCUMULATE": int(site.accumulate[0])}
    return [transpose, product.call(site, problem, panels, "backward data", blobs, arrays, macros)]


def _transpose(site: Site, problem: Problem, lanes: int) -> KernelCall:
    """The launch that puts weights of an input unit together."""
    weight = site.parameter("weight")
    return KernelCall(
        "convolution/transpose_weight",
        f"{site.name} backward data: transpose",
        GlobalSize(-(-problem.output_units // lanes), problem.groups, per_sample=False),
        arrays={"WEIGHT": weight, "TRANSPOSED": site.memory("weights transposed", weight.elements)},
        macros={
            "GROUP_INPUT_UNITS": problem.input_units,
            "GROUP_OUTPUT_UNITS": problem.output_units,
            "TAPS": problem.taps,
            "LANES": lanes,
        },
    )
