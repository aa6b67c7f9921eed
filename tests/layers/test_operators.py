"""Every layer that lowers to contractions: the contract, against PyTorch in float64, on random odd shapes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from blobnet import layers
from blobnet.blob import Shape
from blobnet.device import Device
from blobnet.layers.lowered import Lowered
from tests.layers.torch_contract import Module, run_torch_contract

Random = np.random.Generator
#: A layer, its inputs' shapes, and what it is in PyTorch.
Case = tuple[Lowered, Sequence[Shape], Module]


def sizes(random: Random, count: int, least: int = 1, most: int = 7) -> list[int]:
    return [int(size) for size in random.integers(least, most + 1, count)]


def matrix(rows: int, columns: int) -> Shape:
    return Shape(rows, columns)


def any_rank(random: Random, units: int, least: int = 0) -> Shape:
    """A shape of so many units and a random number of axes."""
    return Shape(units, *sizes(random, int(random.integers(least, 4)), 2, 5))


def functional() -> Any:
    return pytest.importorskip("torch").nn.functional


# -- norms -------------------------------------------------------------------------------------------------------------


def layer_norm(random: Random) -> Case:
    shape = any_rank(random, sizes(random, 1, 2)[0])
    affine = bool(random.integers(2))

    def module(x: list[Any], p: dict[str, Any]) -> Any:
        last = x[0].movedim(1, -1)
        return functional().layer_norm(last, last.shape[-1:], p.get("scale"), p.get("shift"), 1e-3).movedim(-1, 1)

    return layers.LayerNorm(1e-3, affine), [shape], module


def group_norm(random: Random) -> Case:
    groups, each = sizes(random, 2, 2, 4)
    shape = any_rank(random, groups * each, 1)
    return (
        layers.GroupNorm(groups),
        [shape],
        lambda x, p: functional().group_norm(x[0], groups, p["scale"], p["shift"]),
    )


def instance_norm(random: Random) -> Case:
    shape = any_rank(random, sizes(random, 1)[0], 1)
    affine = bool(random.integers(2))
    return (
        layers.InstanceNorm(1e-2, affine),
        [shape],
        lambda x, p: functional().instance_norm(x[0], weight=p.get("scale"), bias=p.get("shift"), eps=1e-2),
    )


def local_response_norm(random: Random) -> Case:
    size = sizes(random, 1)[0]
    shape = any_rank(random, sizes(random, 1, 2, 9)[0], 1)
    return (
        layers.LocalResponseNorm(size, 0.3, 0.6, 1.5),
        [shape],
        lambda x, p: functional().local_response_norm(x[0], size, 0.3, 0.6, 1.5),
    )


# -- sizes -------------------------------------------------------------------------------------------------------------


def upsample_nearest(random: Random) -> Case:
    scales = tuple(sizes(random, 2, 1, 3))
    return (
        layers.Upsample(scales),
        [Shape(*sizes(random, 3))],
        lambda x, p: functional().interpolate(x[0], scale_factor=scales),
    )


def upsample_bilinear(random: Random) -> Case:
    scales = tuple(sizes(random, 2, 1, 4))
    return (
        layers.Upsample(scales, "bilinear"),
        [Shape(*sizes(random, 3))],
        lambda x, p: functional().interpolate(x[0], scale_factor=scales, mode="bilinear"),
    )


def upsample_linear(random: Random) -> Case:
    return (
        layers.Upsample(3, mode="bilinear"),
        [matrix(*sizes(random, 2))],
        lambda x, p: functional().interpolate(x[0], scale_factor=3, mode="linear"),
    )


def depth_to_space(random: Random) -> Case:
    units, height, width, block = sizes(random, 4, 1, 4)
    shape = Shape(units * block**2, height, width)
    return layers.DepthToSpace(block), [shape], lambda x, p: functional().pixel_shuffle(x[0], block)


def space_to_depth(random: Random) -> Case:
    units, height, width, block = sizes(random, 4, 1, 4)
    shape = Shape(units, height * block, width * block)
    return layers.SpaceToDepth(block), [shape], lambda x, p: functional().pixel_unshuffle(x[0], block)


def adaptive_average_pool(random: Random) -> Case:
    wanted = tuple(sizes(random, 2))
    return (
        layers.AdaptiveAveragePool(wanted),
        [Shape(*sizes(random, 3))],
        lambda x, p: functional().adaptive_avg_pool2d(x[0], wanted),
    )


def adaptive_max_pool(random: Random) -> Case:
    wanted = tuple(sizes(random, 2))
    return (
        layers.AdaptiveMaxPool(wanted),
        [Shape(*sizes(random, 3))],
        lambda x, p: functional().adaptive_max_pool2d(x[0], wanted),
    )


def adaptive_pool_of_a_line(random: Random) -> Case:
    wanted, units, width = sizes(random, 3)
    return (
        layers.AdaptiveAveragePool(wanted),
        [matrix(units, width)],
        lambda x, p: functional().adaptive_avg_pool1d(x[0], wanted),
    )


def global_max_pool(random: Random) -> Case:
    return layers.GlobalMaxPool(), [any_rank(random, 3, 1)], lambda x, p: x[0].flatten(2).amax(2)


# -- transposed convolutions -------------------------------------------------------------------------------------------


def conv_transpose_2d(random: Random) -> Case:
    groups, each, filters, height, width = sizes(random, 5, 1, 4)
    kernel, dilation, stride = (tuple(sizes(random, 2, 1, 3)) for _ in range(3))
    padding = tuple(int(random.integers(0, 1 + (dilation[axis] * (kernel[axis] - 1)) // 2)) for axis in range(2))
    more = tuple(int(random.integers(0, max(stride[axis], dilation[axis]))) for axis in range(2))
    bias = bool(random.integers(2))
    layer = layers.ConvTranspose2D(
        groups * filters, kernel, stride, padding, more, dilation=dilation, groups=groups, bias=bias
    )

    def module(x: list[Any], p: dict[str, Any]) -> Any:
        return functional().conv_transpose2d(
            x[0], p["weight"], p.get("bias"), stride, padding, more, groups=groups, dilation=dilation
        )

    return layer, [Shape(groups * each, height, width)], module


def conv_transpose_1d(random: Random) -> Case:
    filters, kernel, stride, units, width = sizes(random, 5)
    return (
        layers.ConvTranspose1D(filters, kernel, stride),
        [matrix(units, width)],
        lambda x, p: functional().conv_transpose1d(x[0], p["weight"], p["bias"], stride),
    )


def volume(random: Random, units: int, least: int = 2) -> Shape:
    return Shape(units, *sizes(random, 3, least, 5))


def conv_transpose_3d(random: Random) -> Case:
    groups, each, filters = sizes(random, 3, 1, 3)
    kernel, stride = (tuple(sizes(random, 3, 1, 3)) for _ in range(2))
    padding = tuple((size - 1) // 2 for size in kernel)
    return (
        layers.ConvTranspose3D(groups * filters, kernel, stride, padding, groups=groups),
        [volume(random, groups * each)],
        lambda x, p: functional().conv_transpose3d(x[0], p["weight"], p["bias"], stride, padding, groups=groups),
    )


# -- volumes -----------------------------------------------------------------------------------------------------------


def conv_3d(random: Random) -> Case:
    groups, each, filters = sizes(random, 3, 1, 3)
    kernel, stride, dilation = (tuple(sizes(random, 3, 1, 3)) for _ in range(3))
    padding = tuple(dilation[axis] * (kernel[axis] - 1) for axis in range(3))
    bias = bool(random.integers(2))
    layer = layers.Conv3D(groups * filters, kernel, stride, padding, dilation, groups, bias)

    def module(x: list[Any], p: dict[str, Any]) -> Any:
        return functional().conv3d(x[0], p["weight"], p.get("bias"), stride, padding, dilation, groups)

    return layer, [volume(random, groups * each)], module


def conv_3d_same(random: Random) -> Case:
    """With an odd zero behind the data."""
    return (
        layers.Conv3D(3, (2, 3, 4), padding="same"),
        [volume(random, 2)],
        lambda x, p: functional().conv3d(functional().pad(x[0], (1, 2, 1, 1, 0, 1)), p["weight"], p["bias"]),
    )


def max_pool_3d(random: Random) -> Case:
    size, stride = (tuple(sizes(random, 3, 1, 3)) for _ in range(2))
    padding = tuple(extent // 2 for extent in size)
    return (
        layers.MaxPool3D(size, stride, padding),
        [volume(random, 3, 3)],
        lambda x, p: functional().max_pool3d(x[0], size, stride, padding),
    )


def average_pool_3d(random: Random) -> Case:
    size, stride = (tuple(sizes(random, 3, 1, 3)) for _ in range(2))
    padding = tuple(extent // 2 for extent in size)
    counts = bool(random.integers(2))
    return (
        layers.AveragePool3D(size, stride, padding, counts),
        [volume(random, 3, 3)],
        lambda x, p: functional().avg_pool3d(x[0], size, stride, padding, count_include_pad=counts),
    )


def upsample_trilinear(random: Random) -> Case:
    scales = tuple(sizes(random, 3, 1, 3))
    return (
        layers.Upsample(scales, "bilinear"),
        [volume(random, 2)],
        lambda x, p: functional().interpolate(x[0], scale_factor=scales, mode="trilinear"),
    )


# -- products ----------------------------------------------------------------------------------------------------------


def multiply(random: Random) -> Case:
    shape = Shape(*sizes(random, 3, 2))
    others = [shape, Shape(shape.units), Shape(1, shape.height, shape.width), Shape(shape.units, 1, shape.width)]
    chosen = [others[int(place)] for place in random.permutation(4)[:2]]
    return layers.Multiply(), [shape, *chosen], lambda x, p: x[0] * of_rank(x[1], 4) * of_rank(x[2], 4)


def of_rank(values: Any, rank: int) -> Any:
    return values.reshape(*values.shape, *[1] * (rank - values.ndim))


def multiply_vectors(random: Random) -> Case:
    shape = Shape(sizes(random, 1)[0])
    return layers.Multiply(), [shape, shape], lambda x, p: x[0] * x[1]


def prelu(random: Random) -> Case:
    return (
        layers.PReLU(),
        [any_rank(random, sizes(random, 1, 2)[0])],
        lambda x, p: functional().prelu(x[0], p["slope"]),
    )


def squeeze_excite(random: Random) -> Case:
    shape = any_rank(random, sizes(random, 1, 2)[0], 1)

    def module(x: list[Any], p: dict[str, Any]) -> Any:
        hidden = (x[0].flatten(2).mean(2) @ p["squeeze"].T + p["squeeze_bias"]).relu()
        return x[0] * of_rank((hidden @ p["excite"].T + p["excite_bias"]).sigmoid(), x[0].ndim)

    return layers.SqueezeExcite(2), [shape], module


def matmul(random: Random) -> Case:
    rows, inner, columns = sizes(random, 3)
    first, second = (bool(flag) for flag in random.integers(0, 2, 2))
    shapes = [matrix(inner, rows) if first else matrix(rows, inner)]
    shapes += [matrix(columns, inner) if second else matrix(inner, columns)]
    return (
        layers.MatMul(first, second),
        shapes,
        lambda x, p: (x[0].mT if first else x[0]) @ (x[1].mT if second else x[1]),
    )


def attention(random: Random) -> Case:
    torch = pytest.importorskip("torch")
    heads, each, queries, columns = sizes(random, 4, 1, 4)
    causal, count = bool(random.integers(2)), int(random.integers(1, 4))
    shapes = [matrix(heads * each, queries), *(matrix(size, columns) for size in sizes(random, count - 1))]

    def module(x: list[Any], p: dict[str, Any]) -> Any:
        query, key, value = (x[place].permute(2, 0, 1) for place in (0, min(1, count - 1), count - 1))
        mask = torch.ones(len(query), len(key), dtype=torch.bool).triu(1) if causal else None
        projections = {f"{name[0]}_proj_weight": p[name] for name in ("query", "key", "value")}
        result, _ = functional().multi_head_attention_forward(
            query, key, value, query.shape[2], heads, None,
            torch.cat([p["query_bias"], p["key_bias"], p["value_bias"]]), None, None, False, 0.0,
            p["output"], p["output_bias"],
            need_weights=False, attn_mask=mask, use_separate_proj_weight=True, **projections,
        )  # fmt: skip
        return result.permute(1, 2, 0)

    return layers.MultiHeadAttention(heads, causal=causal), shapes, module


# -- views -------------------------------------------------------------------------------------------------------------


def permute(random: Random) -> Case:
    order = [int(axis) for axis in random.permutation(3)]
    return (
        layers.Permute(order),
        [Shape(*sizes(random, 3))],
        lambda x, p: x[0].permute(0, *(1 + axis for axis in order)),
    )


def pad(random: Random) -> Case:
    top, bottom, left, right = sizes(random, 4, 0, 3)
    return (
        layers.Pad(((top, bottom), (left, right))),
        [Shape(*sizes(random, 3))],
        lambda x, p: functional().pad(x[0], (left, right, top, bottom)),
    )


def slice_(random: Random) -> Case:
    start, stop = sizes(random, 2, 1, 3)
    return (
        layers.Slice(((start, -1), None, (-stop, None, 2))),
        [Shape(start + 3, *sizes(random, 2, 3))],
        lambda x, p: x[0][:, start:-1, :, -stop::2],
    )


CASES: dict[str, Callable[[Random], Case]] = {
    maker.__name__.rstrip("_"): maker
    for maker in (
        layer_norm, group_norm, instance_norm, local_response_norm,
        upsample_nearest, upsample_bilinear, upsample_linear, depth_to_space, space_to_depth,
        adaptive_average_pool, adaptive_max_pool, adaptive_pool_of_a_line, global_max_pool,
        conv_transpose_1d, conv_transpose_2d, conv_transpose_3d,
        conv_3d, conv_3d_same, max_pool_3d, average_pool_3d, upsample_trilinear,
        multiply, multiply_vectors, prelu, squeeze_excite, matmul, attention,
        permute, pad, slice_,
    )
}  # fmt: skip


def case(name: str, seed: int) -> Case:
    return CASES[name](np.random.default_rng([zlib.crc32(name.encode()), seed]))


@pytest.mark.parametrize("name", CASES)
def test_contract(device: Device, name: str) -> None:
    layer, shapes, module = case(name, 0)
    # Where neighbours take turns at being the greatest, slopes to both sides differ.
    run_torch_contract(device, layer, shapes, module, differences="max" not in name)


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", CASES)
def test_random_shapes(device: Device, name: str, seed: int) -> None:
    layer, shapes, module = case(name, seed)
    kind = "tight" if seed % 2 else "own pitches"
    run_torch_contract(device, layer, shapes, module, arrangements=[kind], count=seed + 1)


@pytest.mark.parametrize("name", CASES)
def test_config(name: str) -> None:
    layer, _, _ = case(name, 0)
    assert type(layer)(**layer.config()) == layer
    assert layers.Layer.kinds[layer.kind] is type(layer)
    assert layer.kind in layers.__all__
