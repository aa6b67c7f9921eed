"""Convolutions as products of matrices on tensor cores, in tf32 (kernels/convolution/tensor.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from blobnet.kernel_call import Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site
from blobnet.layers.candidates import Candidate
from blobnet.layers.convolution_problem import Problem
from blobnet.layers.convolution_tiled import (
    PackedWeights,
    Positions,
    backward_data_products,
    backward_weight_products,
    forward_products,
)
from blobnet.layers.tile import ProductTile


@dataclass(frozen=True)
class WarpTile(ProductTile):
    """A tile of which a warp keeps ``warp_units`` x ``warp_columns`` sums.

    ``stages`` steps of ``depth`` rows of both factors lie in local memory.
    """

    warp_units: int
    warp_columns: int
    stages: int
    precision: ClassVar[str] = "tf32"

    @property
    def items(self) -> int:
        return 32 * (self.units // self.warp_units) * (self.columns // self.warp_columns)

    def __str__(self) -> str:
        return f"{self.units}x{self.columns}"

    @property
    def macros(self) -> dict[str, Macro]:
        return {
            **super().macros,
            "WARP_UNITS": self.warp_units,
            "WARP_COLUMNS": self.warp_columns,
            "STAGES": self.stages,
        }


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


class FragmentWeights(PackedWeights):
    """The weights as a matrix in the order of tensor cores (kernels/convolution/pack_weight_tensor.cl)."""

    @property
    def depth_rows(self) -> int:
        return -(-self.depth // self.tile.depth) * self.tile.depth

    @property
    def elements(self) -> int:
        return self.groups * self.taps * self.depth_rows * self.columns

    @staticmethod
    def positions(height: int, width: int, source: Blob, stride: int) -> Positions:
        # A row as long as the source's makes neighbours of neighbours in memory, which copies need to be fast.
        return Positions(height, width, source.layout.unit_memory_width if stride == 1 else width)

    def call(self, site: Site) -> KernelCall:
        size = GlobalSize(self.columns * 8, self.depth_rows // 8, self.groups, per_sample=False)
        return self._pack(site, "convolution/pack_weight_tensor", size, 128)


def forward(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Packs the weights, and multiplies them with the input."""
    return forward_products(site, problem, _tiles(site, TILES), "tensor", FragmentWeights, "convolution/forward_tensor")


def backward_data(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Packs the weights, and multiplies them with the delta, phase by phase."""
    kernel = "convolution/backward_data_tensor"
    return backward_data_products(site, problem, _tiles(site, TILES), "tensor", FragmentWeights, kernel)


def backward_weight(site: Site, problem: Problem) -> Iterator[Candidate]:
    """Multiplies the delta with the input over all positions, in splits."""
    kernel = "convolution/backward_weight_tensor"
    return backward_weight_products(site, problem, _tiles(site, WEIGHT_TILES), "tensor", kernel)


def _tiles(site: Site, tiles: tuple[WarpTile, ...]) -> tuple[WarpTile, ...]:
    """Tensor cores round to tf32: they are for those who asked for it."""
    return tiles if site.tuning.precision == "tf32" else ()
