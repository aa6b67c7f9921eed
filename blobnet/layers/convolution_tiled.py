"""Convolutions as products of matrices through local memory: how GPUs compute them (kernels/convolution/*_tiled.cl)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.kernel_source import Macro
from blobnet.layers.base import Site


@dataclass(frozen=True)
class Tile:
    """What one work-group computes: ``units`` x ``positions`` sums, of which a work-item keeps a part.

    For the gradient of the weights, ``positions`` counts columns (an input unit and a tap).
    """

    units: int
    columns: int
    depth: int
    item_units: int
    item_columns: int

    @property
    def items(self) -> int:
        """Work-items in a group."""
        return self.units // self.item_units * (self.columns // self.item_columns)

    @property
    def macros(self) -> dict[str, Macro]:
        """The tile as macros."""
        return {
            "TILE_UNITS": self.units,
            "TILE_COLUMNS": self.columns,
            "TILE_DEPTH": self.depth,
            "ITEM_UNITS": self.item_units,
            "ITEM_COLUMNS": self.item_columns,
        }


def choose_tile(units: int, depth: int, taps: int, positions: int) -> Tile:
    """The tile for a product with ``units`` rows."""
    if units <= 32:
        return Tile(32, 128, 8, 4, 8)
    return Tile(64, 128, 8, 8, 8) if units <= 64 else Tile(128, 128, 8, 8, 8)


def choose_weight_tile(units: int, columns: int) -> Tile:
    """The tile for the gradient of the weights."""
    return Tile(64 if units <= 64 else 128, 64 if columns <= 64 else 128, 16, 8, 8)


def choose_splits(groups: int) -> int:
    """Into how many partial sums to split the positions."""
    splits = 1
    while splits < 256 and groups * splits < 512:
        splits *= 2
    return splits


def depth_rows(depth: int, tile: Tile) -> int:
    """Rows a tap of the packed weights: whole tiles, unless that wastes too much."""
    whole = -(-depth // tile.depth) * tile.depth
    return whole if whole == depth or depth >= 4 * tile.depth else depth


@dataclass(frozen=True)
class Product:
    """One product of packed weights and a source: what forward, and each phase of backward data, has to compute.

    Attributes:
        name: of the packed weights' memory.
        units, depth: result and source units of a group.
        unit_stride, depth_stride: their strides in the weights.
        groups, taps: as in the layer.
        positions: results of one unit of one sample.
    """

    name: str
    units: int
    depth: int
    unit_stride: int
    depth_stride: int
    groups: int
    taps: int
    positions: int

    @property
    def tile(self) -> Tile:
        """The tile for this product."""
        return choose_tile(self.units, self.depth, self.taps, self.positions)

    @property
    def macros(self) -> dict[str, Macro]:
        """Macros of the tile and of the packed weights."""
        return {"DEPTH_ROWS": depth_rows(self.depth, self.tile), "UNIT_COLUMNS": self.columns, **self.tile.macros}

    @property
    def columns(self) -> int:
        """Columns of the packed weights."""
        return -(-self.units // self.tile.units) * self.tile.units

    @property
    def size(self) -> GlobalSize:
        """The work."""
        width = self.columns // self.tile.units * self.tile.items
        return GlobalSize(width, self.groups, tile=self.tile.columns, positions=self.positions)

    def packed(self, site: Site) -> Array:
        """Memory for the packed weights."""
        rows = self.taps * depth_rows(self.depth, self.tile) + 1
        return site.memory(f"packed {self.name}", self.groups * rows * self.columns)

    def pack(self, site: Site) -> KernelCall:
        """The call that packs the weights."""
        rows = depth_rows(self.depth, self.tile)
        weight = site.parameter("weight")
        return KernelCall(
            "convolution/pack_weight",
            f"{site.name} pack {self.name}",
            GlobalSize(-(-self.columns // 32) * 32, self.taps * rows + 1, self.groups, per_sample=False),
            arrays={"WEIGHT": weight, "PACKED": self.packed(site)},
            macros={
                "UNITS": self.units,
                "DEPTH": self.depth,
                "TAPS": self.taps,
                "DEPTH_ROWS": rows,
                "UNIT_COLUMNS": self.columns,
                "UNIT_STRIDE": self.unit_stride,
                "DEPTH_STRIDE": self.depth_stride,
                "GROUP_STRIDE": weight.elements // self.groups,
            },
            local_size=(32, 1, 1),
        )

    def call(
        self, site: Site, kernel: str, label: str, blobs: Mapping[str, Blob], arrays: Mapping[str, Array],
        macros: Mapping[str, Macro],
    ) -> KernelCall:
        """The call that multiplies."""
        return KernelCall(
            kernel,
            label,
            self.size,
            blobs=blobs,
            arrays={"PACKED": self.packed(site), **arrays},
            macros={**macros, **self.macros},
            local_size=(self.tile.items, 1, 1),
        )
