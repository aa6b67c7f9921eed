"""The references against central differences, against PyTorch in float64, and against published numbers."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from blobnet.examination.reference import activation, dense, dropout, losses, normalization, optimizers, pooling
from blobnet.examination.reference import convolution as conv
from blobnet.examination.reference.arrays import FloatArray, float64
from blobnet.examination.reference.philox import philox4x32
from blobnet.examination.reference.windows import Pair, Sides
from tests.reference import counts, joins, masked, schedules
from tests.reference.central_differences import numerical_gradient
from tests.reference.compare import assert_close

Generator = np.random.Generator


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, or skip: it is a development oracle only."""
    return pytest.importorskip("torch")


def check_gradient(
    function: Callable[[FloatArray], FloatArray], array: FloatArray, delta: FloatArray, got: Any
) -> None:
    """``got`` is the gradient of sum(function(array) * delta)."""
    expected = numerical_gradient(lambda values: float((function(values) * delta).sum()), array)
    assert_close(got, expected, relative=1e-6, absolute=1e-8, what="gradient")


def torch_gradients(
    torch: Any, function: Callable[..., Any], arrays: list[FloatArray], delta: FloatArray
) -> tuple[FloatArray, list[FloatArray]]:
    """(y, gradients) of PyTorch's ``function`` of float64 tensors."""
    tensors = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]
    y = function(*tensors)
    y.backward(torch.tensor(delta))
    return y.detach().numpy(), [tensor.grad.numpy() for tensor in tensors]


def check(actual: FloatArray | float, expected: FloatArray | float, what: str) -> None:
    """Two float64 computations of the same thing, summed in another order."""
    assert_close(actual, expected, relative=1e-10, absolute=1e-12, what=what)


def torch_sides(padding: Sides) -> tuple[int, int, int, int]:
    """The order of torch.nn.functional.pad: the last axis first."""
    return (*padding[1], *padding[0])


def test_references_are_independent() -> None:
    """No reference imports anything of blobnet but other references."""
    own = "blobnet.examination.reference"
    for path in [*Path(__file__).parent.glob("*.py"), *Path(conv.__file__).parent.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "blobnet" and not name.startswith(own) for name in modules), path


# -- convolution -----------------------------------------------------------------------------------------------------


class ConvolutionCase(NamedTuple):
    """Arrays and hyperparameters of a convolution."""

    x: FloatArray
    weight: FloatArray
    options: dict[str, Any]
    random: Generator


def convolution_case(seed: int, largest: int) -> ConvolutionCase:
    """Random odd shapes; every third case is 1-D (H = 1)."""
    random = np.random.default_rng(seed)

    def integers(low: int, high: int) -> int:
        return int(random.integers(low, high + 1))

    groups = integers(1, 3)
    kernel = (1 if seed % 3 == 0 else integers(1, 3), integers(1, 5))
    stride, dilation = (integers(1, 3), integers(1, 4)), (integers(1, 2), integers(1, 3))
    padding = ((integers(0, 2), integers(0, 2)), (integers(0, 3), integers(0, 3)))
    if seed % 3 == 0:
        padding = ((0, 0), padding[1])
    low = [max(1, dilation[axis] * (kernel[axis] - 1) + 1 - sum(padding[axis])) for axis in range(2)]
    height = 1 if seed % 3 == 0 else max(low[0], integers(1, largest))
    width = max(low[1], integers(1, largest))
    x = random.standard_normal((integers(1, 3), groups * integers(1, 2), height, width))
    weight = random.standard_normal((groups * integers(1, 2), x.shape[1] // groups, *kernel))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return ConvolutionCase(x, weight, options, random)


@pytest.mark.parametrize(
    ("seed", "bias_kind"), [(0, "untied"), (1, "none"), (2, "shared"), (3, "shared"), (4, "untied"), (5, "untied")]
)
def test_convolution_differences(seed: int, bias_kind: str) -> None:
    x, weight, options, random = convolution_case(seed, largest=5)
    plain = conv.conv2d(x, weight, None, conv.Windows(**options))
    shapes = {"none": None, "shared": plain.shape[1:2], "untied": plain.shape[1:]}
    shape = shapes[bias_kind]
    bias = None if shape is None else random.standard_normal(shape)
    delta = random.standard_normal(plain.shape)
    dx, dweight, dbias = conv.conv2d_backward(x, weight, bias, delta, conv.Windows(**options))
    check_gradient(lambda value: conv.conv2d(value, weight, bias, conv.Windows(**options)), x, delta, dx)
    check_gradient(lambda value: conv.conv2d(x, value, bias, conv.Windows(**options)), weight, delta, dweight)
    if bias is None:
        assert dbias is None
    else:
        check_gradient(lambda value: conv.conv2d(x, weight, value, conv.Windows(**options)), bias, delta, dbias)


@pytest.mark.parametrize("seed", range(15), ids="seed{}".format)
def test_convolution_torch(torch: Any, seed: int) -> None:
    x, weight, options, random = convolution_case(seed, largest=13)
    sides = torch_sides(options["padding"])
    rest = {name: options[name] for name in ("stride", "dilation", "groups")}
    untied = seed % 2 == 0

    def function(x: Any, weight: Any, bias: Any) -> Any:
        padded = torch.nn.functional.pad(x, sides)
        y = torch.nn.functional.conv2d(padded, weight, None if untied else bias, **rest)
        return y + bias if untied else y

    shape = conv.conv2d(x, weight, None, conv.Windows(**options)).shape
    bias = random.standard_normal(shape[1:] if untied else shape[1:2])
    delta = random.standard_normal(shape)
    y, gradients = torch_gradients(torch, function, [x, weight, bias], delta)
    check(conv.conv2d(x, weight, bias, conv.Windows(**options)), y, "y")
    for got, expected, what in zip(
        conv.conv2d_backward(x, weight, bias, delta, conv.Windows(**options)),
        gradients,
        ("dx", "dweight", "dbias"),
        strict=True,
    ):
        assert got is not None
        check(got, expected, what)


def test_convolution_by_hand() -> None:
    x = np.arange(1.0, 6.0).reshape(1, 1, 1, 5)
    weight = np.array([1.0, 10.0]).reshape(1, 1, 1, 2)
    y = conv.conv2d(x, weight, np.array([0.5]), conv.Windows(stride=(1, 2), padding=((0, 0), (1, 0))))
    check(y, np.array([10.5, 32.5, 54.5]).reshape(1, 1, 1, 3), "y")


def test_convolution_refuses() -> None:
    x, weight = np.ones((1, 4, 3, 3)), np.ones((2, 3, 3, 3))
    with pytest.raises(ValueError, match="1 groups do not fit"):
        conv.conv2d(x, weight)
    with pytest.raises(ValueError, match="no window of 4 taps"):
        conv.conv2d(x, np.ones((2, 4, 4, 1)))


# -- dense -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4), ids="seed{}".format)
@pytest.mark.parametrize("axes", [(5,), (2, 3, 4), (3, 7)], ids=str)
def test_dense(torch: Any, seed: int, axes: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    count, outputs = int(random.integers(1, 4)), int(random.integers(1, 7))
    x = random.standard_normal((count, *axes))
    weight = random.standard_normal((outputs, math.prod(axes)))
    bias = random.standard_normal(outputs) if seed % 2 else None
    delta = random.standard_normal((count, outputs))
    dx, dweight, dbias = dense.dense_backward(x, weight, bias, delta)
    check_gradient(lambda value: dense.dense(value, weight, bias), x, delta, dx)
    check_gradient(lambda value: dense.dense(x, value, bias), weight, delta, dweight)

    def function(x: Any, weight: Any, *bias: Any) -> Any:
        return torch.nn.functional.linear(x.reshape(count, -1), weight, *bias)

    y, gradients = torch_gradients(torch, function, [x, weight, *([] if bias is None else [bias])], delta)
    check(dense.dense(x, weight, bias), y, "y")
    check(dx, gradients[0], "dx")
    check(dweight, gradients[1], "dweight")
    assert (dbias is None) == (bias is None)
    if dbias is not None:
        check(dbias, gradients[2], "dbias")


# -- pooling ---------------------------------------------------------------------------------------------------------

WINDOWS: list[tuple[Pair, Pair, Sides]] = [
    ((2, 2), (2, 2), ((0, 0), (0, 0))),
    ((3, 3), (2, 2), ((1, 1), (1, 1))),
    ((3, 2), (1, 1), ((1, 0), (0, 1))),
    ((2, 3), (3, 4), ((0, 1), (2, 0))),
    ((1, 1), (2, 3), ((0, 0), (0, 0))),
    ((1, 4), (1, 3), ((0, 0), (3, 2))),
]


@pytest.mark.parametrize("seed", range(2), ids="seed{}".format)
@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS, ids=str)
class TestPooling:
    """Windows that tile, overlap, leave gaps, and hang over one side."""

    def test_max_differences(self, kernel: Pair, stride: Pair, padding: Sides, seed: int) -> None:
        random = np.random.default_rng(seed)
        x = random.standard_normal((2, 2, 6 - seed, 5 + seed))
        delta = random.standard_normal(pooling.max_pool2d(x, kernel, stride, padding).shape)
        got = pooling.max_pool2d_backward(x, delta, kernel, stride, padding)
        check_gradient(lambda value: pooling.max_pool2d(value, kernel, stride, padding), x, delta, got)

    @pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
    def test_max_torch(self, torch: Any, kernel: Pair, stride: Pair, padding: Sides, seed: int, ties: bool) -> None:
        random = np.random.default_rng(seed)
        size = (3, 2, int(random.integers(3, 14)), int(random.integers(3, 14)))
        x = float64(random.integers(-2, 1, size)) if ties else random.standard_normal(size)

        def function(x: Any) -> Any:
            padded = torch.nn.functional.pad(x, torch_sides(padding), value=-math.inf)
            return torch.nn.functional.max_pool2d(padded, kernel, stride)

        delta = random.standard_normal(pooling.max_pool2d(x, kernel, stride, padding).shape)
        y, (dx,) = torch_gradients(torch, function, [x], delta)
        check(pooling.max_pool2d(x, kernel, stride, padding), y, "y")
        check(pooling.max_pool2d_backward(x, delta, kernel, stride, padding), dx, "dx")

    @pytest.mark.parametrize("include", [True, False], ids=["include_pad", "exclude_pad"])
    def test_average(self, torch: Any, kernel: Pair, stride: Pair, padding: Sides, seed: int, include: bool) -> None:
        random = np.random.default_rng(seed)
        x = random.standard_normal((2, 2, int(random.integers(3, 7)), int(random.integers(3, 7))))

        def reference(value: FloatArray) -> FloatArray:
            return pooling.avg_pool2d(value, kernel, stride, padding, count_include_pad=include)

        def function(x: Any) -> Any:
            def total(values: Any) -> Any:
                padded = torch.nn.functional.pad(values, torch_sides(padding))
                return torch.nn.functional.avg_pool2d(padded, kernel, stride, divisor_override=1)

            return total(x) / (kernel[0] * kernel[1] if include else total(torch.ones_like(x)))

        delta = random.standard_normal(reference(x).shape)
        got = pooling.avg_pool2d_backward(x, delta, kernel, stride, padding, count_include_pad=include)
        check_gradient(reference, x, delta, got)
        y, (dx,) = torch_gradients(torch, function, [x], delta)
        check(reference(x), y, "y")
        check(got, dx, "dx")


@pytest.mark.parametrize("include", [True, False], ids=["include_pad", "exclude_pad"])
def test_average_pool_torch_padding(torch: Any, include: bool) -> None:
    """The divisor is PyTorch's own, where PyTorch can pad (symmetrically)."""
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 8))
    y = torch.nn.functional.avg_pool2d(torch.tensor(x), (3, 4), (2, 3), padding=(1, 2), count_include_pad=include)
    got = pooling.avg_pool2d(x, (3, 4), (2, 3), ((1, 1), (2, 2)), count_include_pad=include)
    check(got, y.numpy(), "y")


def test_window_of_nothing_but_padding() -> None:
    x = np.full((1, 1, 1, 2), 3.0)
    sides = ((0, 0), (2, 0))
    check(pooling.max_pool2d(x, (1, 2), (1, 2), sides), np.array([[[[-np.inf, 3.0]]]]), "max")
    delta = np.array([[[[5.0, 7.0]]]])
    check(pooling.max_pool2d_backward(x, delta, (1, 2), (1, 2), sides), np.array([[[[7.0, 0.0]]]]), "dx")
    average = pooling.avg_pool2d(x, (1, 2), (1, 2), sides, count_include_pad=False)
    check(average, np.array([[[[0.0, 3.0]]]]), "average")


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 4, 1, 6), (3, 2, 1, 1), (2, 3, 4)], ids=str)
def test_global_average_pool(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x, delta = random.standard_normal(shape), random.standard_normal(shape[:2])
    check(pooling.global_average_pool(x), x.mean(axis=tuple(range(2, len(shape)))), "y")
    check_gradient(pooling.global_average_pool, x, delta, pooling.global_average_pool_backward(x, delta))


# -- normalization ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4, 5, 3), (2, 3, 1, 7), (5, 2), (2, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("seed", range(2), ids="seed{}".format)
def test_batch_norm(torch: Any, shape: tuple[int, ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    x, delta = 2.0 * random.standard_normal(shape) + 3.0, random.standard_normal(shape)
    scale, shift, mean = random.standard_normal((3, shape[1]))
    variance = random.uniform(0.5, 2.0, shape[1])
    numbers = normalization.Numbers(0.3, 1e-3)

    def reference(x: FloatArray, scale: FloatArray, shift: FloatArray) -> FloatArray:
        return normalization.batch_norm_training(x, scale, shift, mean, variance, numbers)[0]

    gradients = normalization.batch_norm_backward(x, scale, delta, epsilon=1e-3)
    check_gradient(lambda value: reference(value, scale, shift), x, delta, gradients[0])
    check_gradient(lambda value: reference(x, value, shift), scale, delta, gradients[1])
    check_gradient(lambda value: reference(x, scale, value), shift, delta, gradients[2])

    running = torch.tensor(mean), torch.tensor(variance)

    def function(x: Any, scale: Any, shift: Any) -> Any:
        return torch.nn.functional.batch_norm(x, *running, scale, shift, True, 0.3, 1e-3)

    inference = torch.nn.functional.batch_norm(
        *(torch.tensor(item) for item in (x, mean, variance, scale, shift)), False, 0.3, 1e-3
    )
    got = normalization.batch_norm_inference(x, scale, shift, mean, variance, epsilon=1e-3)
    check(got, inference.numpy(), "inference")
    y, expected = torch_gradients(torch, function, [x, scale, shift], delta)
    got, new_mean, new_variance = normalization.batch_norm_training(x, scale, shift, mean, variance, numbers)
    check(got, y, "y")
    check(new_mean, running[0].numpy(), "running mean")
    check(new_variance, running[1].numpy(), "running variance")
    for actual, wanted, what in zip(gradients, expected, ("dx", "dscale", "dshift"), strict=True):
        assert_close(actual, wanted, relative=1e-9, absolute=1e-11, what=what)


def test_batch_norm_of_one_value() -> None:
    """M = 1, which PyTorch refuses: y = shift, and the batch's variance is 0."""
    one = np.ones(1)
    numbers = normalization.Numbers(0.5)
    y, mean, variance = normalization.batch_norm_training(np.full((1, 1), 7.0), one, 3 * one, one, one, numbers)
    check(y, np.array([[3.0]]), "y")
    check(mean, 4 * one, "running mean")
    check(variance, 0.5 * one, "running variance")


# -- activations -----------------------------------------------------------------------------------------------------

KINKS = np.array([-30.0, -6.0, -3.0, -1.0, -0.0, 0.0, 0.5, 1.5, 3.0, 6.0, 6.5, 19.0]).reshape(1, 1, 3, 4)


@pytest.mark.parametrize("seed", range(2), ids="seed{}".format)
@pytest.mark.parametrize("name", activation.ACTIVATIONS)
def test_activation_differences(name: str, seed: int) -> None:
    forward, backward = activation.named(name)
    random = np.random.default_rng(seed)
    x, delta = 4.0 * random.standard_normal((2, 4, 3, 5)), random.standard_normal((2, 4, 3, 5))
    check_gradient(forward, x, delta, backward(x, delta))


@pytest.mark.parametrize("seed", range(2), ids="seed{}".format)
@pytest.mark.parametrize("name", activation.ACTIVATIONS)
def test_activation_torch(torch: Any, name: str, seed: int) -> None:
    """Random values, and the kinks themselves."""
    forward, backward = activation.named(name)
    random = np.random.default_rng(seed)

    def function(x: Any) -> Any:
        if name == "linear":
            return x * 1.0
        if name == "softmax":
            return torch.nn.functional.softmax(x, dim=1)
        if name.startswith("hard"):  # PyTorch's own derivative has 1/6 in float32.
            return torch.nn.functional.relu6(x + 3) / 6 * (x if name == "hard_swish" else 1)
        return getattr(torch.nn.functional, name)(x)

    for x in (4.0 * random.standard_normal((3, 5, 7, 3)), 9.0 * random.standard_normal((3, 5)), KINKS):
        delta = random.standard_normal(x.shape)
        if name == "softplus":
            x = np.minimum(x, 20.0)
        y, (dx,) = torch_gradients(torch, function, [x], delta)
        check(forward(x), y, name)
        check(backward(x, delta), dx, f"{name}: dx")


@pytest.mark.parametrize("name", activation.ACTIVATIONS)
def test_activation_extremes(name: str) -> None:
    """No overflow and no NaN at +-1e4."""
    forward, backward = activation.named(name)
    x = np.array([[1e4, -1e4], [-750.0, 750.0]])
    assert np.isfinite(forward(x)).all()
    assert np.isfinite(backward(x, np.ones_like(x))).all()


@pytest.mark.parametrize(
    ("text", "function", "numbers"),
    [
        ("leaky_relu(0.3)", "leaky_relu", (0.3,)),
        ("relu(0.7)", "hardtanh", (0.0, 0.7)),
        ("elu(1.7)", "elu", (1.7,)),
    ],
)
def test_activation_options(torch: Any, text: str, function: str, numbers: tuple[float, ...]) -> None:
    x, delta = np.random.default_rng(0).standard_normal((2, 3, 4, 5))[:, None]
    forward, backward = activation.named(text)
    y, (dx,) = torch_gradients(torch, lambda x: getattr(torch.nn.functional, function)(x, *numbers), [x], delta)
    check(forward(x), y, text)
    check(backward(x, delta), dx, f"{text}: dx")


# -- joins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2), ids="seed{}".format)
def test_joins(seed: int) -> None:
    random = np.random.default_rng(seed)
    same = list(random.standard_normal((3, 2, 2, 3, 2)))
    pieces = [random.standard_normal((2, units, 3, 2)) for units in (1, 3, 2)]
    for forward, backward, inputs in (
        (joins.add, joins.add_backward, same),
        (joins.concat, joins.concat_backward, pieces),
    ):
        delta = random.standard_normal(forward(inputs).shape)
        for place, got in enumerate(backward(inputs, delta)):

            def function(value: FloatArray, place: int = place) -> FloatArray:
                return forward([value if other == place else item for other, item in enumerate(inputs)])  # noqa: B023

            check_gradient(function, inputs[place], delta, got)
    check(joins.add(same), same[0] + same[1] + same[2], "add")
    check(joins.concat(pieces)[:, 1:4], pieces[1], "concat")
    check(joins.add([same[0], same[1][:, :, :1]]), same[0] + np.repeat(same[1][:, :, :1], 3, 2), "add, repeated")


def test_flatten() -> None:
    x = np.arange(24.0).reshape(2, 3, 2, 2)
    check(joins.flatten(x), np.arange(24.0).reshape(2, 12), "flatten")
    check(joins.flatten_backward(x, joins.flatten(x)), x, "dx")


# -- philox and dropout ----------------------------------------------------------------------------------------------

#: Random123, tests/kat_vectors: (counter, key, result).
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Hexadecimal words as uint32."""
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint32)


def scalar_philox(counter: list[int], key: list[int]) -> list[int]:
    """The same generator in Python's integers, one block at a time."""
    for number in range(10):
        weyl = [(item + number * step) % 2**32 for item, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            second // 2**32 ^ counter[1] ^ weyl[0],
            second % 2**32,
            first // 2**32 ^ counter[3] ^ weyl[1],
            first % 2**32,
        ]
    return counter


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_philox_known_answers(counter: str, key: str, result: str) -> None:
    got = philox4x32(words(counter), words(key))
    assert got.dtype == np.uint32
    assert got.tolist() == words(result).tolist()


def test_philox_is_vectorised() -> None:
    random = np.random.default_rng(0)
    counter = random.integers(0, 2**32, (3, 5, 4), dtype=np.uint32)
    for key in (random.integers(0, 2**32, (3, 5, 2), dtype=np.uint32), random.integers(0, 2**32, 2, dtype=np.uint32)):
        got = philox4x32(counter, key)
        keys = np.broadcast_to(key, (3, 5, 2))
        for index in np.ndindex(3, 5):
            assert got[index].tolist() == scalar_philox(counter[index].tolist(), keys[index].tolist())


@pytest.mark.parametrize(("elements", "rate"), [(1, 0.5), (7, 0.1), (12, 0.75), (5, 0.0)])
def test_dropout_mask(elements: int, rate: float) -> None:
    """Every cell by the definition, with a seed of more than 32 bits."""
    seed, step, ordinal = 0x123456789ABCDEF0, 17, 3
    mask = dropout.dropout_mask(seed, step, ordinal, 4, elements, rate)
    assert mask.shape == (4, elements)
    for n, e in np.ndindex(mask.shape):
        word = scalar_philox([e // 4, n, ordinal, step], [0x9ABCDEF0, 0x12345678])[e % 4]
        assert mask[n, e] == (1.0 / (1.0 - rate) if word >= rate * 2**32 else 0.0)


def test_dropout_keeps_the_threshold_itself() -> None:
    word = scalar_philox([0, 0, 3, 17], [5, 0])[0]
    assert dropout.dropout_mask(5, 17, 3, 1, 1, word / 2**32)[0, 0] > 0.0
    assert dropout.dropout_mask(5, 17, 3, 1, 1, (word + 1) / 2**32)[0, 0] == 0.0


def test_dropout_statistics() -> None:
    mask = dropout.dropout_mask(1, 0, 0, 50, 400, 0.3)
    assert set(np.unique(mask)) == {0.0, 1.0 / 0.7}
    assert abs(mask.mean() - 1.0) < 4 * math.sqrt(0.3 / 0.7 / mask.size)
    check(dropout.dropout_mask(1, 0, 0, 3, 400, 0.3), mask[:3], "a shorter batch")
    for other in (dropout.dropout_mask(2, 0, 0, 50, 400, 0.3), dropout.dropout_mask(1, 1, 0, 50, 400, 0.3)):
        assert 0.3 < (other != mask).mean() < 0.55


def test_dropout_threshold() -> None:
    assert [dropout.dropout_threshold(rate) for rate in (0.0, 0.5, 0.1)] == [0, 2**31, 429496730]
    assert dropout.dropout_threshold(1.0 - 2.0**-40) == 2**32 - 1
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\), not 1"):
        dropout.dropout_threshold(1.0)


def test_dropout_gradient() -> None:
    random = np.random.default_rng(0)
    x, delta = random.standard_normal((2, 2, 3, 2, 5))
    mask = dropout.dropout_mask(5, 1, 2, 2, 30, 0.4)
    check(masked.dropout(x, mask), x * mask.reshape(x.shape), "y")
    got = masked.dropout_backward(x, mask, delta)
    check_gradient(lambda value: masked.dropout(value, mask), x, delta, got)


# -- losses ----------------------------------------------------------------------------------------------------------


def check_loss(
    torch: Any, reference: Callable[[FloatArray], tuple[float, FloatArray]], function: Any, x: FloatArray
) -> None:
    """A loss and its delta against PyTorch, and the delta against differences."""
    loss, delta = reference(x)
    tensor = torch.tensor(x, requires_grad=True)
    expected = function(tensor)
    expected.backward()
    check(loss, expected.item(), "loss")
    check(delta, tensor.grad.numpy(), "delta")
    numerical = numerical_gradient(lambda value: reference(value)[0], x)
    assert_close(delta, numerical, relative=1e-5, absolute=1e-9, what="delta")


@pytest.mark.parametrize("seed", range(3), ids="seed{}".format)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(torch: Any, seed: int, smoothing: float) -> None:
    random = np.random.default_rng(seed)
    x = 5.0 * random.standard_normal((int(random.integers(1, 6)), int(random.integers(2, 9))))
    labels = random.integers(0, x.shape[1], len(x))

    def function(x: Any) -> Any:
        return torch.nn.functional.cross_entropy(x, torch.tensor(labels), label_smoothing=smoothing)

    check_loss(torch, lambda x: losses.cross_entropy(x, labels, label_smoothing=smoothing), function, x)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 5), (2, 4, 3, 5)], ids=str)
def test_weighted_cross_entropy_at_each_position(torch: Any, shape: tuple[int, ...], smoothing: float) -> None:
    """PyTorch weighs the smoothed part by the weight of each class, so smoothing goes without class weights here."""
    random = np.random.default_rng(sum(shape))
    x, labels = 3.0 * random.standard_normal(shape), random.integers(0, shape[1], (shape[0], *shape[2:]))
    labels.reshape(-1)[::3] = 255
    labels.reshape(-1)[1] = 0
    weights = random.uniform(0.1, 3.0, shape[1]) if not smoothing else None

    def function(x: Any) -> Any:
        weight = None if weights is None else torch.tensor(weights)
        settings = {"ignore_index": 255, "label_smoothing": smoothing}
        return torch.nn.functional.cross_entropy(x, torch.tensor(labels), weight=weight, **settings)

    options = {"label_smoothing": smoothing, "class_weights": weights, "ignore": 255}
    check_loss(torch, lambda x: losses.cross_entropy(x, labels, **options), function, x)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3, 5)], ids=str)
def test_focal(torch: Any, shape: tuple[int, ...], gamma: float, smoothing: float) -> None:
    random = np.random.default_rng(sum(shape))
    x, labels = 3.0 * random.standard_normal(shape), random.integers(0, shape[1], (shape[0], *shape[2:]))
    samples, classes = random.uniform(0.1, 3.0, shape[0]), random.uniform(0.1, 3.0, shape[1])

    def function(x: Any) -> Any:
        logarithm = torch.log_softmax(x, dim=1)
        onehot = torch.movedim(torch.nn.functional.one_hot(torch.tensor(labels), shape[1]).double(), -1, 1)
        targets = onehot * (1 - smoothing) + smoothing / shape[1]
        each = -(targets * (1 - logarithm.exp()) ** gamma * logarithm).sum(dim=1)
        weight = torch.tensor(classes)[torch.tensor(labels)] * torch.tensor(samples).reshape(-1, *[1] * (x.ndim - 2))
        return (each * weight).sum() / weight.sum()

    options = {"label_smoothing": smoothing, "gamma": gamma, "sample_weights": samples, "class_weights": classes}
    check_loss(torch, lambda x: losses.focal(x, labels, **options), function, x)


@pytest.mark.parametrize("smoothing", [0.01, 1.0])
@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 7), (2, 4, 3, 5)], ids=str)
def test_dice(torch: Any, shape: tuple[int, ...], smoothing: float) -> None:
    random = np.random.default_rng(sum(shape))
    x, labels = 3.0 * random.standard_normal(shape), random.integers(0, shape[1], (shape[0], *shape[2:]))
    labels.reshape(-1)[::4] = -1
    samples, classes = random.uniform(0.1, 3.0, shape[0]), random.uniform(0.1, 3.0, shape[1])

    def function(x: Any) -> Any:
        total = 0.0
        for n in range(shape[0]):
            p = torch.softmax(x[n], dim=0).reshape(shape[1], -1)
            flat = torch.tensor(labels[n]).reshape(-1)
            for z in range(shape[1]):
                t = (flat == z).double()
                sums = (p[z] * (flat >= 0)).sum() + t.sum() + smoothing
                total += samples[n] * classes[z] * (1 - (2 * (p[z] * t).sum() + smoothing) / sums)
        return total / samples.sum() / classes.sum()

    options = {"sample_weights": samples, "class_weights": classes, "smoothing": smoothing, "ignore": -1}
    check_loss(torch, lambda x: losses.dice(x, labels, **options), function, x)


@pytest.mark.parametrize("seed", range(2), ids="seed{}".format)
@pytest.mark.parametrize("shape", [(3, 5), (2, 1), (2, 3, 2, 2)], ids=str)
def test_elementwise_losses(torch: Any, seed: int, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    x, targets = 4.0 * random.standard_normal(shape), random.uniform(0.0, 1.0, shape)
    function = torch.nn.functional
    check_loss(
        torch,
        lambda x: losses.binary_cross_entropy(x, targets),
        lambda x: function.binary_cross_entropy_with_logits(x, torch.tensor(targets)),
        x,
    )
    check_loss(
        torch,
        lambda x: losses.mean_squared_error(x, targets),
        lambda x: function.mse_loss(x, torch.tensor(targets)),
        x,
    )
    check_loss(
        torch,
        lambda x: losses.mean_absolute_error(x, targets),
        lambda x: function.l1_loss(x, torch.tensor(targets)),
        x,
    )
    check_loss(
        torch,
        lambda x: losses.huber(x, targets, delta=0.7),
        lambda x: function.huber_loss(x, torch.tensor(targets), delta=0.7),
        x,
    )


def test_losses_of_extreme_logits() -> None:
    x = np.array([[1e4, -1e4], [-1e4, 1e4]])
    loss, delta = losses.cross_entropy(x, np.array([0, 0]))
    check(loss, 1e4, "loss")
    check(delta, np.array([[0.0, 0.0], [-0.5, 0.5]]), "delta")
    loss, delta = losses.binary_cross_entropy(x, np.array([[1.0, 0.0], [1.0, 0.0]]))
    check(loss, 5e3, "loss")
    check(delta, np.array([[0.0, 0.0], [-0.25, 0.25]]), "delta")


def test_losses_refuse() -> None:
    for function in (
        losses.binary_cross_entropy,
        losses.mean_squared_error,
        losses.mean_absolute_error,
        losses.huber,
    ):
        with pytest.raises(ValueError, match="shapes differ"):
            function(np.zeros((2, 1)), np.zeros(2))


@pytest.mark.parametrize("seed", range(3), ids="seed{}".format)
@pytest.mark.parametrize("levels", [2, 5, 1000], ids="{}levels".format)
def test_ranks(seed: int, levels: int) -> None:
    """A stable sort, largest first, finds the same places, ties included."""
    random = np.random.default_rng(seed)
    logits = float64(random.integers(0, levels, (40, 9)))
    labels = random.integers(0, 9, 40)
    order = np.argsort(-logits, axis=1, kind="stable")
    places = [list(row).index(label) for row, label in zip(order, labels, strict=True)]
    assert counts.ranks(logits, labels).tolist() == places
    assert counts.accuracy_count(logits, labels) == sum(place < 1 for place in places)
    assert counts.top5_count(logits, labels) == sum(place < 5 for place in places)
    assert counts.accuracy_count(logits, labels) == int((logits.argmax(axis=1) == labels).sum())


# -- optimizers ------------------------------------------------------------------------------------------------------

OPTIMIZERS: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("SGD", optimizers.sgd, {}, {}),
    ("SGD", optimizers.sgd, {"momentum": 0.9}, {}),
    ("SGD", optimizers.sgd, {"momentum": 0.8, "weight_decay": 0.1}, {}),
    ("SGD", optimizers.sgd, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.05}, {}),
    ("RMSprop", optimizers.rmsprop, {}, {}),
    ("RMSprop", optimizers.rmsprop, {"momentum": 0.7, "weight_decay": 0.1}, {"alpha": 0.9, "epsilon": 1e-3}),
    ("Adam", optimizers.adam, {}, {}),
    ("Adam", optimizers.adam, {"weight_decay": 0.1}, {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}),
    ("AdamW", optimizers.adamw, {}, {}),
    ("AdamW", optimizers.adamw, {"weight_decay": 0.3}, {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}),
]


def torch_options(renamed: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's names of our options."""
    options = {{"epsilon": "eps"}.get(name, name): value for name, value in renamed.items()}
    if "beta1" in options:
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    return options


@pytest.mark.parametrize(
    ("name", "function", "same", "renamed"), OPTIMIZERS, ids=[f"{item[0]}-{item[2] | item[3]}" for item in OPTIMIZERS]
)
def test_optimizer(torch: Any, name: str, function: Any, same: dict[str, Any], renamed: dict[str, Any]) -> None:
    """Six steps against PyTorch, the learning rate changing on the way; arguments stay as they were."""
    random = np.random.default_rng(0)
    parameters = random.standard_normal(11)
    tensor = torch.tensor(parameters, requires_grad=True)
    oracle = getattr(torch.optim, name)([tensor], lr=0.1, foreach=False, **same, **torch_options(renamed))
    state: dict[str, FloatArray] = {}
    for rate in (0.1, 0.1, 0.05, 0.05, 0.2, 0.01):
        gradient = random.standard_normal(11)
        before = parameters.copy(), gradient.copy(), {key: value.copy() for key, value in state.items()}
        updated, new_state = function(parameters, gradient, state, learning_rate=rate, **same, **renamed)
        assert (parameters == before[0]).all()
        assert (gradient == before[1]).all()
        assert all((state[key] == before[2][key]).all() for key in state)
        oracle.param_groups[0]["lr"] = rate
        tensor.grad = torch.tensor(gradient)
        oracle.step()
        parameters, state = updated, new_state
        check(parameters, tensor.detach().numpy(), name)


@pytest.mark.parametrize(
    "function", [optimizers.sgd, optimizers.rmsprop, optimizers.adam, optimizers.adamw], ids=lambda item: item.__name__
)
def test_decay_for_some(function: Any) -> None:
    """A vector of decays: what has 0 moves as without decay."""
    random = np.random.default_rng(0)
    parameters, gradient = random.standard_normal((2, 6))
    decay = np.array([0.2, 0.2, 0.2, 0.0, 0.0, 0.0])
    mixed, with_decay, without = (
        function(parameters, gradient, {}, learning_rate=0.1, weight_decay=item)[0] for item in (decay, 0.2, 0.0)
    )
    check(mixed, np.concatenate([with_decay[:3], without[3:]]), "mixed")


@pytest.mark.parametrize("max_norm", [0.5, 3.0, 100.0])
def test_clipping(torch: Any, max_norm: float) -> None:
    gradient = np.random.default_rng(0).standard_normal(10)
    tensors = [torch.zeros(4, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)]
    for tensor, part in zip(tensors, np.split(gradient, [4]), strict=True):
        tensor.grad = torch.tensor(part.copy())
    norm = torch.nn.utils.clip_grad_norm_(tensors, max_norm)
    clipped, own = optimizers.clip_by_global_norm(gradient, max_norm)
    check(own, norm.item(), "norm")
    check(clipped, np.concatenate([tensor.grad.numpy() for tensor in tensors]), "clipped")


def test_schedules(torch: Any) -> None:
    tensor = torch.zeros(1, requires_grad=True)

    def rates(kind: str, **options: Any) -> list[float]:
        oracle = torch.optim.SGD([tensor], lr=0.8)
        schedule = getattr(torch.optim.lr_scheduler, kind)(oracle, **options)
        found = []
        for _ in range(10):
            found.append(oracle.param_groups[0]["lr"])
            oracle.step()
            schedule.step()
        return found

    expected = float64(rates("StepLR", step_size=3, gamma=0.1))
    check(float64([schedules.step_schedule(0.8, t, step_size=3, factor=0.1) for t in range(10)]), expected, "step")
    expected = float64(rates("CosineAnnealingLR", T_max=10, eta_min=0.1))
    check(float64([schedules.cosine_schedule(0.8, t, steps=10, final=0.1) for t in range(10)]), expected, "cosine")
    assert [schedules.constant_schedule(0.8, epoch) for epoch in range(3)] == [0.8] * 3


def test_warm_up() -> None:
    got = [schedules.cosine_schedule(2.0, step, steps=8, warm_up=4) for step in range(10)]
    half = math.sqrt(0.5)
    check(float64(got), np.array([0.5, 1.0, 1.5, 2.0, 2.0, 1.0 + half, 1.0, 1.0 - half, 0.0, 0.0]), "rates")
    assert schedules.cosine_schedule(2.0, 3, steps=4, warm_up=4) == 2.0


# -- the tools themselves --------------------------------------------------------------------------------------------


def test_float32_is_computed_in_float64() -> None:
    """float32 arrays give the same float64 results as their float64 copies."""
    random = np.random.default_rng(0)
    x, delta = random.standard_normal((2, 2, 4, 5, 5)).astype(np.float32)
    weight, flat = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 4, 3, 3), (3, 100)))
    four = random.uniform(0.5, 1.5, 4).astype(np.float32)
    same: dict[str, Any] = {"padding": ((1, 1), (1, 1))}
    window: tuple[Pair, Pair, Sides] = ((3, 3), (1, 1), ((1, 1), (1, 1)))
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (lambda *arrays: conv.conv2d(*arrays, conv.Windows(**same)), (x, weight, four)),
        (lambda *arrays: conv.conv2d_backward(*arrays, conv.Windows(**same)), (x, weight, four, delta)),
        (dense.dense, (x, flat, four[:3])),
        (dense.dense_backward, (x, flat, four[:3], delta[:, 0, 0, :3])),
        (lambda x: pooling.max_pool2d(x, *window), (x,)),
        (lambda x, delta: pooling.max_pool2d_backward(x, delta, *window), (x, delta)),
        (lambda x: pooling.avg_pool2d(x, *window), (x,)),
        (lambda x, delta: pooling.avg_pool2d_backward(x, delta, *window), (x, delta)),
        (pooling.global_average_pool, (x,)),
        (pooling.global_average_pool_backward, (x, delta[:, :, 0, 0])),
        (normalization.batch_norm_training, (x, four, four, four, four)),
        (normalization.batch_norm_inference, (x, four, four, four, four)),
        (normalization.batch_norm_backward, (x, four, delta)),
        (lambda *inputs: joins.add(inputs), (x, delta)),
        (lambda *inputs: joins.concat(inputs), (x, delta)),
        (losses.binary_cross_entropy, (x, delta)),
        (losses.mean_squared_error, (x, delta)),
        (losses.mean_absolute_error, (x, delta)),
        (losses.huber, (x, delta)),
        (lambda x: losses.focal(x, np.array([0, 2])), (flat[:2],)),
        (lambda x: losses.dice(x, np.array([0, 2])), (flat[:2],)),
        (lambda x: losses.cross_entropy(x, np.array([0, 2])), (flat[:2],)),
    ]
    for forward, backward in map(activation.named, activation.ACTIVATIONS):
        calls += [(forward, (x,)), (backward, (x, delta))]
    for number, (function, arrays) in enumerate(calls):
        low, high = function(*arrays), function(*(float64(array) for array in arrays))
        low, high = (item if isinstance(item, tuple) else (item,) for item in (low, high))
        for got, expected in zip(low, high, strict=True):
            assert isinstance(got, float) or got.dtype == np.float64, number
            assert np.array_equal(got, expected), number


def test_numerical_gradient() -> None:
    array = np.array([[1.0, -2.0], [0.5, 3.0]])
    before = array.copy()
    got = numerical_gradient(lambda a: float((a**3).sum() + a[0, 0] * a[1, 1]), array, 1e-4)
    assert (array == before).all()
    assert_close(got, 3 * array**2 + [[3.0, 0.0], [0.0, 1.0]], relative=0, absolute=1e-7, what="cubes")
    with pytest.raises(TypeError, match="central differences need float64, not float32"):
        numerical_gradient(lambda a: float(a.sum()), np.ones(2, dtype=np.float32))


class TestCompare:
    """Every text that assert_close can fail with."""

    @staticmethod
    def failure(actual: Any, expected: Any, relative: float = 1e-3, absolute: float = 1e-6) -> str:
        with pytest.raises(AssertionError) as caught:
            assert_close(actual, expected, relative=relative, absolute=absolute, what="conv1")
        return str(caught.value)

    def test_equal(self) -> None:
        values = np.array([1.0, -0.0, np.inf, -np.inf])
        assert_close(values, values.copy(), relative=0, absolute=0, what="same")
        assert_close(values.astype(np.float32), values, relative=0, absolute=0, what="other precision")
        assert_close(1.5, np.float32(1.5), relative=0, absolute=0, what="scalars")

    def test_tolerances(self) -> None:
        expected = np.array([100.0, 0.0])
        assert_close(expected + np.array([0.1, 0.0]), expected, relative=1e-3, absolute=0, what="relative")
        assert_close(expected + 1e-6, expected, relative=0, absolute=1.1e-6, what="absolute")
        self.failure(expected + np.array([0.11, 0.0]), expected, absolute=0)
        self.failure(expected + np.array([0.0, 2e-6]), expected)

    def test_difference(self) -> None:
        expected = np.ones((2, 3, 4, 5), dtype=np.float64)
        actual = expected.astype(np.float32)
        actual[1, 0, 2, 3] = 1.25
        actual[1, 2, 0, 0] = -1.0
        assert self.failure(actual, expected) == (
            "conv1: 2 of 120 cells differ (relative 0.001, absolute 1e-06), first at (n, z, y, x) = (1, 0, 2, 3): "
            "actual 1.25, expected 1; maximum relative error 2 at (n, z, y, x) = (1, 2, 0, 0), maximum absolute error 2"
        )

    def test_difference_in_other_ranks(self) -> None:
        assert "first at index (1, 0): actual 4, expected 3;" in self.failure([[1.0], [4.0]], [[1.0], [3.0]])
        assert "1 of 1 cells differ" in self.failure(1.0, 2.0)
        assert "first at index (): actual 1, expected 2;" in self.failure(1.0, 2.0)

    def test_relative_error_at_zero(self) -> None:
        assert "maximum relative error 5 at index (0)" in self.failure(
            np.array([0.5, 2.0]), np.array([0.0, 1.0]), 0, 0.1
        )
        assert "maximum relative error inf at index (0)" in self.failure(np.array([0.5]), np.array([0.0]), 0, 0)

    def test_infinity(self) -> None:
        for actual, expected in ((1.0, np.inf), (np.inf, 1.0), (np.inf, -np.inf)):
            text = self.failure(np.array([actual]), np.array([expected]))
            assert f"first at index (0): actual {actual:g}, expected {expected:g}" in text

    def test_nan(self) -> None:
        clean = np.zeros((1, 1, 2, 2))
        dirty = clean.copy()
        dirty[0, 0, 1] = np.nan
        text = "is NaN in 2 of 4 cells, first at (n, z, y, x) = (0, 0, 1, 0)"
        assert self.failure(dirty, clean) == f"conv1: actual {text}"
        assert self.failure(clean, dirty) == f"conv1: expected {text}"
        assert self.failure(dirty, dirty) == f"conv1: actual {text}"

    def test_shape(self) -> None:
        assert self.failure(np.zeros((2, 1)), np.zeros(2)) == "conv1: shapes differ: actual (2, 1), expected (2,)"
        text = "conv1: there is nothing to compare, both arrays are empty (0, 3)"
        assert self.failure(np.zeros((0, 3)), np.zeros((0, 3))) == text

    def test_dtype(self) -> None:
        ones = np.ones(2)
        for dtype in (np.int64, np.bool_, np.complex128, object):
            name = np.dtype(dtype)
            assert self.failure(ones.astype(dtype), ones) == f"conv1: actual must be floating-point, not {name}"
            assert self.failure(ones, ones.astype(dtype)) == f"conv1: expected must be floating-point, not {name}"
