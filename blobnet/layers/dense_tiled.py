"""Dense layers as products of matrices through local memory, for GPUs and batches (kernels/dense/tiled.h)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blobnet.kernel_call import Array, Blob, GlobalSize, KernelCall
from blobnet.layers.activation import activation_macro
from blobnet.layers.base import Site
from blobnet.layers.blocking import splits_for
from blobnet.layers.candidates import Candidate
from blobnet.layers.gradients import bias_gradient
from blobnet.layers.tile import Tile, fitting, product_cost

#: Tiles: samples x output units (forward), samples x elements (backward data), output units x elements (weights).
TILES = (
    Tile(64, 128, 8, 8, 8, speed=0.98),
    Tile(64, 32, 16, 8, 4, speed=0.88),
    Tile(32, 32, 16, 4, 4, speed=0.83),
)
#: Tiles for each compute unit that split sums should have, the most splits, and their least rows.
_SPLIT_TILES, _MOST_SPLITS, _LEAST_ROWS = 4, 64, 64


def forward(site: Site, bias: bool) -> Iterator[Candidate]:
    """Products over the elements, in splits, and their sums."""
    for tile, splits, cost in _products(site, site.output.shape.units, site.inputs[0].shape.elements):
        yield Candidate(f"tiled {tile}", cost, partial(_forward_calls, site, bias, tile, splits))


def backward_data(site: Site) -> Iterator[Candidate]:
    """Products over the output units, in splits, and their sums."""
    for tile, splits, cost in _products(site, site.inputs[0].shape.elements, site.output.shape.units):
        yield Candidate(f"tiled {tile}", cost, partial(_backward_data_calls, site, tile, splits))


def _products(site: Site, columns: int, rows: int) -> Iterator[tuple[Tile, int, float]]:
    """Tile, splits and cost of products of all samples and ``columns``, whose sums have ``rows`` terms."""
    if not _fits(site):
        return
    cores = site.tuning.model.cores
    for tile in fitting(TILES, site.tuning.model):
        tiles = -(-site.batch_size // tile.units) * -(-columns // tile.columns)
        splits = splits_for(tiles, _SPLIT_TILES * cores, min(_MOST_SPLITS, -(-rows // _LEAST_ROWS)))
        cost = product_cost(tile, site.batch_size, columns, splits, cores) * rows / splits
        yield tile, splits, cost


def _forward_calls(site: Site, bias: bool, tile: Tile, splits: int) -> list[KernelCall]:
    units = site.output.shape.units
    partials = site.memory("forward partials", per_sample=splits * units)
    label = f"{site.name} forward"
    product = KernelCall(
        "dense/forward_tiled",
        label,
        _work(tile, site.batch_size, units, splits),
        blobs={"INPUT": site.inputs[0]},
        arrays={"WEIGHT": site.parameter("weight"), "PARTIALS": partials},
        macros={"UNITS": units, "SPLITS": splits, **tile.macros},
        local_size=(tile.items, 1, 1),
    )
    return [product, _sum(site, label, site.output, partials, splits, bias=bias, activation=site.activation)]


def _backward_data_calls(site: Site, tile: Tile, splits: int) -> list[KernelCall]:
    target = site.input_deltas[0]
    assert target is not None
    elements = target.shape.elements
    partials = site.memory("backward data partials", per_sample=splits * elements)
    label = f"{site.name} backward data"
    product = KernelCall(
        "dense/backward_data_tiled",
        label,
        _work(tile, site.batch_size, elements, splits),
        blobs={"OUTPUT_DELTA": site.delta},
        arrays={"WEIGHT": site.parameter("weight"), "PARTIALS": partials},
        macros={"ELEMENTS": elements, "SPLITS": splits, **tile.macros},
        local_size=(tile.items, 1, 1),
    )
    return [product, _sum(site, label, target, partials, splits, accumulate=site.accumulate[0])]


def _sum(
    site: Site,
    label: str,
    result: Blob,
    partials: Array,
    splits: int,
    *,
    bias: bool = False,
    activation: str | None = None,
    accumulate: bool = False,
) -> KernelCall:
    """Adds up the splits of a product."""
    return KernelCall(
        "dense/split_sum",
        label,
        GlobalSize(result.shape.elements),
        blobs={"RESULT": result},
        # NOTE: a kernel takes no null array; without a bias the role is bound to the weights and not read.
        arrays={"PARTIALS": partials, "BIAS": site.parameter("bias" if bias else "weight")},
        macros={
            "SPLITS": splits,
            "HAS_BIAS": int(bias),
            "ACCUMULATE": int(accumulate),
            **activation_macro(activation),
        },
        local_size=(64, 1, 1),
    )


def backward_weight(site: Site, bias: bool) -> Iterator[Candidate]:
    """Products over the samples."""
    if not _fits(site):
        return
    units, elements = site.output.shape.units, site.inputs[0].shape.elements
    for tile in fitting(TILES, site.tuning.model):
        cost = product_cost(tile, units, elements, 1, site.tuning.model.cores)
        steps = -(-site.batch_size // tile.depth)
        yield Candidate(f"tiled {tile}", cost * steps * tile.depth, partial(_backward_weight_calls, site, bias, tile))


def _backward_weight_calls(site: Site, bias: bool, tile: Tile) -> list[KernelCall]:
    product = KernelCall(
        "dense/backward_weight_tiled",
        f"{site.name} backward weight",
        _work(tile, site.output.shape.units, site.inputs[0].shape.elements),
        blobs={"INPUT": site.inputs[0], "OUTPUT_DELTA": site.delta},
        arrays={"WEIGHT_GRADIENT": site.gradient("weight")},
        macros=tile.macros,
        local_size=(tile.items, 1, 1),
    )
    return [product, *bias_gradient(site, int(bias))]


def _work(tile: Tile, units: int, columns: int, splits: int = 1) -> GlobalSize:
    """The work of ``splits`` products of ``units`` x ``columns`` sums."""
    tiles = -(-units // tile.units) * -(-columns // tile.columns)
    return GlobalSize(tiles * tile.items, splits, per_sample=False)


def _fits(site: Site) -> bool:
    """Whether the samples are rows of matrices, whose cells an int can count."""
    blobs = [site.inputs[0], *(blob for blob in site.input_deltas if blob is not None)]
    return all(blob.layout.is_contiguous and site.batch_size * blob.layout.memory_elements < 2**31 for blob in blobs)
