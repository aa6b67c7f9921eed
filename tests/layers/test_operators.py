"""Every layer that lowers to contractions: the contract, against PyTorch in float64, on random odd shapes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from blobnet import layers
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program
from blobnet.device.device import Device
from blobnet.errors import OptionError, ShapeError
from blobnet.execution.contractions import run
from blobnet.layers.lowered import ContractionLayer
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.layer_contract import run_layer_contract
from tests.layers.torch_contract import Module, run_torch_contract

Random = np.random.Generator
#: A layer, its inputs' shapes, and what it is in PyTorch.
Case = tuple[ContractionLayer, Sequence[Shape], Module]


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


def conv_transpose_unreached(random: Random) -> Case:
    """No row of the output sees one of the input; or the last one of three does."""
    columns, more, bias = int(random.integers(1, 4)), int(random.integers(3)), bool(random.integers(2))
    layer = layers.ConvTranspose2D(4, (2, columns), 1, (2, 0), (more, 0), (4, 1), 2, bias)

    def module(x: list[Any], p: dict[str, Any]) -> Any:
        return functional().conv_transpose2d(x[0], p["weight"], p.get("bias"), 1, (2, 0), (more, 0), 2, (4, 1))

    return layer, [Shape(2, 1, int(random.integers(1, 4)))], module


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


def add(random: Random) -> Case:
    """The output's shape is that of no input, or of some."""
    rank = int(random.integers(1, 4))
    shape = Shape(*sizes(random, 1 + rank, 2, 5))
    others = [shape, Shape(shape.units), *(repeated(random, shape) for _ in range(2))]
    chosen = [others[int(place)] for place in random.permutation(4)[: int(random.integers(2, 5))]]
    return layers.Add(), chosen, lambda x, p: sum(of_rank(value, max(item.ndim for item in x)) for value in x)


def repeated(random: Random, shape: Shape) -> Shape:
    """A shape with 1 in place of some sizes."""
    return Shape(*(1 if random.integers(2) else size for size in shape.dimensions))


def multiply_any(random: Random) -> Case:
    shape = Shape(*sizes(random, int(random.integers(1, 5)), 2, 5))
    return layers.Multiply(), [repeated(random, shape) for _ in range(2)], lambda x, p: x[0] * x[1]


def multiply_vectors(random: Random) -> Case:
    shape = Shape(sizes(random, 1)[0])
    return layers.Multiply(), [shape, shape], lambda x, p: x[0] * x[1]


def prelu(random: Random) -> Case:
    return (
        layers.PReLU(),
        [any_rank(random, sizes(random, 1, 2)[0])],
        lambda x, p: functional().prelu(x[0], p["slope"]),
    )


def scale(random: Random) -> Case:
    shape = any_rank(random, sizes(random, 1)[0])
    return layers.Scale(0.5), [shape], lambda x, p: x[0] * of_rank(p["scale"][None], x[0].ndim)


def interleave(random: Random) -> Case:
    shape = any_rank(random, sizes(random, 1)[0])
    stack = pytest.importorskip("torch").stack
    return layers.Interleave(), [shape, shape], lambda x, p: stack([x[0], x[1]], 2).flatten(1, 2)


def tokens(random: Random) -> Case:
    shape = any_rank(random, sizes(random, 1)[0], 1)
    cat = pytest.importorskip("torch").cat

    def module(x: list[Any], p: dict[str, Any]) -> Any:
        front = p["token"][None, :, None].expand(len(x[0]), -1, -1)
        return cat([front, x[0].flatten(2)], 2) + p["position"].mT

    return layers.Tokens(), [shape], module


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


def matmul_of_stacks(random: Random) -> Case:
    """Two or four axes with one to three."""
    rows, inner, columns, *stack = sizes(random, 5, 2, 5)
    flip = bool(random.integers(2))
    stacks = [Shape(*stack[: int(random.integers(1, 3))]).dimensions, repeated(random, Shape(*stack)).dimensions]
    stacks = [stacks[0][-int(random.integers(1, 3)) :], stacks[1]] if len(stacks[0]) > 1 else [(), stacks[1]]
    first, second = (inner, rows) if flip else (rows, inner), (inner, columns)
    return (
        layers.MatMul(flip),
        [Shape(*stacks[0], *first), Shape(*stacks[1], *second)],
        lambda x, p: of_stacks(x[0].mT if flip else x[0], 5) @ x[1],
    )


def of_stacks(values: Any, rank: int) -> Any:
    """With missing axes behind the samples."""
    return values.reshape(len(values), *[1] * (rank - values.ndim), *values.shape[1:])


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
        conv_transpose_1d, conv_transpose_2d, conv_transpose_3d, conv_transpose_unreached,
        conv_3d, conv_3d_same, max_pool_3d, average_pool_3d, upsample_trilinear,
        add, multiply, multiply_any, multiply_vectors, prelu, scale, squeeze_excite, matmul, matmul_of_stacks,
        attention, tokens, permute, interleave, pad, slice_,
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
    # With the schedules of GPUs, too.
    tuning = tuning_for("gpu") if seed == 3 else None
    run_torch_contract(device, layer, shapes, module, arrangements=[kind], count=seed + 1, tuning=tuning, fused=())


@pytest.mark.parametrize("name", CASES)
def test_config(name: str) -> None:
    layer, _, _ = case(name, 0)
    assert type(layer)(**layer.config()) == layer
    assert layers.Layer.kinds[layer.kind] is type(layer)
    assert layer.kind in layers.__all__


def gradients(program: Program, arrays: dict[str, Any], delta: Any, device: Device) -> dict[str, Any]:
    """dL/d input of a program, by name, for the delta of its output."""
    names = delta_names(program)
    found = run(differentiate(program), {**arrays, names["O"]: delta}, device)
    return {name: found[names[name]] for name in arrays}


# -- nothing but zeros -------------------------------------------------------------------------------------------------


def test_windows_that_see_nothing_but_zeros_give_the_bias(device: Device) -> None:
    """Along one axis no window reaches the data: PyTorch gives the bias there, and gradients of 0."""
    random, layer = np.random.default_rng(0), layers.Conv3D(4, (2, 1, 2), 1, (2, 0, 1), (3, 1, 1), 2)
    arrays = {"I": (3, 2, 1, 2, 3), "weight": (4, 1, 2, 1, 2), "bias": (4,)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in arrays.items()}
    program = layer.bound([Shape(2, 1, 2, 3)], 3).program
    bias = arrays["bias"][:, None, None, None]
    np.testing.assert_array_equal(run(program, arrays, device)["O"], np.broadcast_to(bias, (3, 4, 2, 2, 4)))
    delta = random.standard_normal((3, 4, 2, 2, 4)).astype(np.float32)
    found = gradients(program, arrays, delta, device)
    assert not found["I"].any()
    assert not found["weight"].any()
    np.testing.assert_allclose(found["bias"], delta.sum((0, 2, 3, 4)), rtol=1e-5)


# -- large numbers -----------------------------------------------------------------------------------------------------


def attention_gradients(arrays: dict[str, Any], delta: Any, heads: int, causal: bool, dtype: Any) -> dict[str, Any]:
    """dL/d input and parameters of attention in PyTorch, from its softmax (its fused kernels cancel less exactly)."""
    torch = pytest.importorskip("torch")
    given = {name: torch.tensor(array, dtype=dtype, requires_grad=True) for name, array in arrays.items()}
    x = given["I"]
    size, units, columns = x.shape

    def projected(name: str) -> Any:
        every = given[name] @ x + given[f"{name}_bias"][:, None]
        return every.reshape(size, heads, units // heads, columns)

    scores = projected("query").mT @ projected("key") / (units / heads) ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(columns, columns, dtype=torch.bool).triu(1), -np.inf)
    heard = (projected("value") @ scores.softmax(-1).mT).reshape(x.shape)
    (given["output"] @ heard + given["output_bias"][:, None]).backward(torch.tensor(delta, dtype=dtype))
    return {name: tensor.grad.double().numpy() for name, tensor in given.items()}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("largest", [1.0, 1.5e3, 1e5])
def test_gradients_of_attention_at_large_scores(device: Device, largest: float, causal: bool) -> None:
    """They are no more than 30 times as far from float64's as PyTorch's: what has all the weight gets exactly 0."""
    torch = pytest.importorskip("torch")
    random, heads, units, columns = np.random.default_rng(7), 2, 6, 4
    arrays = {name: random.standard_normal((units, units)) for name in ("query", "key", "value", "output")}
    arrays |= {f"{name}_bias": random.standard_normal(units) for name in tuple(arrays)}
    arrays["I"], delta = random.standard_normal((2, 5, units, columns))
    for name in ("query", "key"):
        arrays[name] *= (largest / units) ** 0.5
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    layer = layers.MultiHeadAttention(heads, causal=causal)
    found = gradients(layer.bound([matrix(units, columns)], 5).program, arrays, delta.astype(np.float32), device)
    wanted, theirs = (
        attention_gradients(arrays, delta.astype(np.float32), heads, causal, kind)
        for kind in (torch.float64, torch.float32)
    )
    for name in arrays.keys() - {"key_bias"}:  # A sum that is 0.
        limit = 30 * np.abs(theirs[name] - wanted[name]).max() + 3e-6 * np.abs(wanted[name]).max()
        assert np.abs(found[name] - wanted[name]).max() <= limit, name


# -- mistakes ----------------------------------------------------------------------------------------------------------

#: What is wrong with hyperparameters, and the error.
WRONG_OPTIONS: dict[str, tuple[Callable[[], object], str]] = {
    "filters": (lambda: layers.ConvTranspose2D(0, 3), r"ConvTranspose2D: filters must be an int of at least 1"),
    "kernel": (
        lambda: layers.ConvTranspose2D(4, (3, 3, 3)),
        r"kernel_size must be an int of at least 1, or one for each spatial axis\. Received kernel_size=\(3, 3, 3\)",
    ),
    "padding": (lambda: layers.ConvTranspose1D(4, 3, padding="same"), r"padding must be an int of at least 0"),
    "groups": (
        lambda: layers.ConvTranspose2D(4, 3, groups=3),
        r"groups must divide filters\. Received filters=4, groups=3",
    ),
    "bias": (lambda: layers.Conv3D(4, 3, bias="position"), r"Conv3D: bias must be True or False"),
    "three": (lambda: layers.Conv3D(4, (3, 3)), r"Conv3D: kernel_size must be an int or three ints of at least 1"),
    "window": (lambda: layers.MaxPool3D(2, padding=2), r"the padding on every side must be smaller than the window"),
    "scale": (lambda: layers.Upsample(1.5), r"Upsample: scale must be an int of at least 1, or one for each"),
    "mode": (lambda: layers.Upsample(2, "cubic"), r"mode must be one of nearest, bilinear\. Received mode=cubic"),
    "block": (lambda: layers.DepthToSpace(0), r"DepthToSpace: block must be an int of at least 1"),
    "parts": (lambda: layers.AdaptiveMaxPool((2, 0)), r"output_size must be an int of at least 1"),
    "epsilon": (
        lambda: layers.LayerNorm(0),
        r"LayerNorm: epsilon must be a finite number above 0\. Received epsilon=0",
    ),
    "affine": (lambda: layers.GroupNorm(2, affine=1), r"GroupNorm: affine must be True or False\. Received affine=1"),
    "alpha": (lambda: layers.LocalResponseNorm(3, alpha=-1), r"alpha must be a finite number of at least 0"),
    "initial": (lambda: layers.Scale(float("nan")), r"Scale: initial must be a finite number\. Received initial=nan"),
    "reduction": (lambda: layers.SqueezeExcite(0), r"reduction must be an int of at least 1"),
    "heads": (lambda: layers.MultiHeadAttention(0), r"MultiHeadAttention: heads must be an int of at least 1"),
    "start": (lambda: layers.MultiHeadAttention(1, initializer="glorot"), r"the initializer must be a known one"),
    "order": (lambda: layers.Permute((0, 2)), r"order must have each axis of a sample once\. Received order=\(0, 2\)"),
    "negative": (lambda: layers.Pad(-1), r"Pad: padding must be an int of at least 0, or for each spatial axis one"),
    "triple": (lambda: layers.Pad(((1, 2, 3),)), r"Pad: padding must be an int of at least 0"),
    "range": (lambda: layers.Slice((0, 3)), r"Slice: ranges must have \(start, stop\).*Received ranges=\(0, 3\)"),
    "step": (lambda: layers.Slice(((0, 3, -1),)), r"with steps of at least 1"),
    "two unknown": (lambda: layers.Reshape((-1, -1)), r"Reshape: shape must be .*, of which one may be -1"),
    "no sizes": (lambda: layers.split(layers.Input(units=4)(), [4, 0]), r"split: sizes must be ints of at least 1"),
    "no axis": (lambda: layers.split(layers.Input(units=4)(), [4], 1), r"and the axis one of the node's"),
}


@pytest.mark.parametrize("mistake", WRONG_OPTIONS)
def test_wrong_options(mistake: str) -> None:
    build, message = WRONG_OPTIONS[mistake]
    with pytest.raises(OptionError, match=message):
        build()


#: A layer, inputs' shapes that do not fit it, and the error.
WRONG_SHAPES: list[tuple[layers.Layer, list[Shape], str]] = [
    (layers.ConvTranspose2D(4, 3), [Shape(3, 5)], r"the input must have the axes \(units, height, width\)"),
    (layers.ConvTranspose2D(4, 3, groups=2), [Shape(3, 5, 5)], r"groups must divide the input's units"),
    (layers.ConvTranspose2D(4, 1, padding=3), [Shape(3, 5, 5)], r"the padding must leave something of the output"),
    (layers.Conv3D(4, 3), [Shape(3, 5, 5)], r"the input must have the axes \(units, depth, height, width\)"),
    (layers.Conv3D(4, 3), [Shape(3, 5, 2, 5)], r"filter must fit the padded input\. .*filter=\(3, 3, 3\), padding=0"),
    (layers.MaxPool3D(3), [Shape(3, 5, 2, 5)], r"the window must not be larger than the padded input"),
    (layers.Upsample(), [Shape(3)], r"the input must have spatial axes\. Received input=\(3\)"),
    (layers.Upsample((2, 2)), [Shape(3, 4)], r"scale must be an int of at least 1, or one for each spatial axis"),
    (
        layers.DepthToSpace(2),
        [Shape(6, 2, 2)],
        r"units must be a multiple of block\^2\. Received input=\(6, 2, 2\), block=2",
    ),
    (layers.SpaceToDepth(2), [Shape(6, 2, 3)], r"height and width must be multiples of block"),
    (layers.GroupNorm(4), [Shape(6, 2, 2)], r"groups must divide the input's units"),
    (layers.InstanceNorm(), [Shape(6)], r"there must be several values a group"),
    (layers.GlobalMaxPool(), [Shape(6)], r"the input must have spatial axes"),
    (layers.AdaptiveAveragePool(2), [Shape(6)], r"the input must have spatial axes"),
    (layers.Multiply(), [Shape(3, 4, 5), Shape(3, 4, 4)], r"all inputs must have the same shape, or 1.*\(3, 4, 4\)"),
    (layers.Add(), [Shape(3, 4, 5), Shape(4, 5)], r"all inputs must have the same shape, or 1 .*\(3, 4, 5\) \(4, 5\)"),
    (
        layers.Add(),
        [Shape(3, 4, 5), Shape(5)],
        r"all inputs must have the same shape, or 1 in place of any size, or be",
    ),
    (
        layers.Interleave(),
        [Shape(3, 4), Shape(3, 5)],
        r"both inputs must have the same shape\. Received inputs=\(3, 4\) ",
    ),
    (layers.Tokens(), [Shape(3)], r"the input must have spatial axes\. Received input=\(3\)"),
    (layers.SqueezeExcite(), [Shape(3)], r"the input must have spatial axes"),
    (layers.MatMul(), [Shape(3, 4), Shape(3, 4)], r"the inner sizes of both matrices must be the same"),
    (layers.MatMul(), [Shape(3, 4), Shape(4)], r"both inputs must have matrices: \(\.\.\., rows, columns\)"),
    (layers.MatMul(), [Shape(2, 3, 4), Shape(3, 4, 5)], r"stacks of matrices must have the same sizes along each axis"),
    (layers.MultiHeadAttention(2), [Shape(3, 4)], r"heads must divide the units\. Received input=\(3, 4\), heads=2"),
    (layers.MultiHeadAttention(1), [Shape(3, 4)] * 2 + [Shape(3, 5)], r"keys and values must have the same width"),
    (layers.Permute((1, 0)), [Shape(3, 4, 5)], r"the input must have the axes \(units, width\)"),
    (layers.Pad((1, 2)), [Shape(3, 4)], r"there must be padding for each spatial axis"),
    (layers.Slice((None, (0, 1))), [Shape(3)], r"there must be no more ranges than axes"),
    (layers.Slice(((4, None),)), [Shape(3)], r"every range must have something of its axis"),
    (layers.Reshape((4, -1)), [Shape(3, 5)], r"the shape must hold the input's values\. Received input=\(3, 5\)"),
]


@pytest.mark.parametrize(("layer", "shapes", "message"), WRONG_SHAPES, ids=lambda value: getattr(value, "kind", ""))
def test_wrong_shapes(layer: layers.Layer, shapes: list[Shape], message: str) -> None:
    with pytest.raises((ShapeError, OptionError), match=rf"{layer.kind}: .*{message}"):
        layer([layers.Node(layers.Input(units=1), (), shape) for shape in shapes])


def test_parts_that_are_not_all() -> None:
    with pytest.raises(ShapeError, match=r"split: the parts must be all of the axis\. Received sizes=\[1, 2\], axis=0"):
        layers.split(layers.Input(units=4)(), [1, 2])


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [(Shape(3, 4, 5), (5, 12)), (Shape(6), (2, -1, 1)), (Shape(2, 9), (3, 2, 1, 3)), (Shape(2, 3, 2, 3), (-1,))],
    ids=str,
)
def test_reshape(device: Device, before: Shape, after: tuple[int, ...]) -> None:
    layer = layers.Reshape(after)
    report = run_layer_contract(
        device,
        layer,
        [before],
        reference_forward=lambda inputs, parameters: inputs[0].reshape(
            len(inputs[0]), *layer.output_shape([before]).dimensions
        ),
        reference_backward=lambda inputs, parameters, delta: ([delta.reshape(inputs[0].shape)], {}),
        relative=3e-7,
    )
    assert report.kernels == {"blob/copy"}


def test_parts_of_a_node() -> None:
    parts = layers.split(layers.Input(units=4, height=6, width=5)(), [1, 3, 2], axis=1)
    assert [part.shape for part in parts] == [Shape(4, size, 5) for size in (1, 3, 2)]
