"""Pooling, forward and backward, in random configurations and arrangements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.errors import OptionError, ShapeError
from blobnet.examination.layer_references import Pool, of_pool, window
from blobnet.examination.reference import pooling
from blobnet.examination.reference.windows import Sides
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.work_sizes import elementwise_work
from blobnet.layers import (
    AveragePool1D,
    AveragePool2D,
    Conv2D,
    Dense,
    Flatten,
    GlobalAveragePool,
    Input,
    Layer,
    MaxPool1D,
    MaxPool2D,
)
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FloatArray, Shape
from blobnet.network.graph import sequential
from blobnet.planning import make_plan
from tests.kinds import kind_of, tuning_for
from tests.layers.arranged import Arrangement, Bench, make_problem
from tests.layers.layer_contract import (
    check_central_differences,
    run_layer_contract,
)
from tests.reference.compare import assert_close

RANDOM_CONFIGURATIONS = 24
NO_PADDING: Sides = ((0, 0), (0, 0))


# -- the contract ------------------------------------------------------------------------------------------------------


def contract(device: Device, layer: Pool, shape: Shape, sides: Sides, inputs: Any = None, **options: Any) -> None:
    """The contract test of ``layer``, which pads ``sides``."""
    reference = of_pool(layer, sides)
    run_layer_contract(
        device,
        layer,
        [shape],
        reference_forward=reference.forward,
        reference_backward=reference.backward,
        inputs=None if inputs is None else [inputs],
        relative=1e-5,
        absolute=1e-6,
        **options,
    )


def check_once(
    device: Device,
    layer: Pool,
    shape: Shape,
    sides: Sides,
    inputs: Any = None,
    *,
    accumulate: bool = False,
    tuning: Tuning | None = None,
    **options: Any,
) -> None:
    """The numbers and the promise alone, in one random arrangement: a quarter of the contract's builds."""
    reference = of_pool(layer, sides)
    problem = make_problem(layer, [shape], inputs=None if inputs is None else [inputs], **options)
    bench = Bench(device, problem, Arrangement("one", accumulate=accumulate), tuning)
    values = [problem.inputs[0].astype(np.float64)]
    bench.load()
    bench.run("forward")
    expected = reference.forward(values, {})
    assert_close(bench.values(bench.output), expected, relative=1e-5, absolute=1e-6, what=f"{bench.name}: output")
    bench.load_deltas()
    bench.run("backward data")
    (expected,), _ = reference.backward(values, {}, problem.delta.astype(np.float64))
    delta = bench.input_deltas[0]
    assert delta is not None
    expected = expected + problem.old_deltas[0] * accumulate
    assert_close(bench.values(delta), expected, relative=1e-5, absolute=1e-6, what=f"{bench.name}: delta")


def random_configuration(seed: int) -> tuple[Pool, Shape, Sides, int, FloatArray]:
    """A layer that fits its shape, what it pads, a batch, and inputs with many ties, all negative every third time."""
    generator = np.random.default_rng([41, seed])

    def number(low: int, high: int) -> int:
        return int(generator.integers(low, high))

    rank = 1 if seed % 4 == 3 else 2
    while True:
        size, stride = (
            (1 if rank == 1 else number(1, 6), number(1, 6)),
            (1 if rank == 1 else number(1, 6), number(1, 6)),
        )
        sides = (number(0, size[0]), number(0, size[0])), (number(0, size[1]), number(0, size[1]))
        height, width = 1 if rank == 1 else number(1, 14), number(1, 14)
        if height + sum(sides[0]) >= size[0] and width + sum(sides[1]) >= size[1]:
            break
    shape = Shape(number(1, 4), *(height, width)[2 - rank :])
    count = number(1, 4)
    inputs = generator.integers(-3, 0 if seed % 3 == 0 else 3, (count, shape.units, height, width)).astype(np.float32)
    layer: Pool
    if rank == 1 and seed % 8 == 3:
        layer = MaxPool1D(size[1], stride[1], sides[1])
    elif rank == 1:
        layer = AveragePool1D(size[1], stride[1], sides[1], count_include_pad=seed % 16 == 7)
    elif seed % 2 == 0:
        layer = MaxPool2D(size, stride, sides)
    else:
        layer = AveragePool2D(size, stride, sides, count_include_pad=seed % 8 == 1)
    return layer, shape, sides, count, inputs


@pytest.mark.parametrize("seed", range(1, RANDOM_CONFIGURATIONS, 5))
def test_contract(device: Device, seed: int) -> None:
    layer, shape, sides, count, inputs = random_configuration(seed)
    contract(
        device, layer, shape, sides, inputs, count=count, seed=seed, tuning=tuning_for("gpu") if seed % 3 else None
    )


@pytest.mark.parametrize("seed", range(RANDOM_CONFIGURATIONS))
def test_random_configurations(device: Device, seed: int) -> None:
    layer, shape, sides, count, inputs = random_configuration(seed)
    tuning = tuning_for("gpu") if seed % 3 == 2 else None
    accumulate = seed % 7 < 3
    check_once(device, layer, shape, sides, inputs, accumulate=accumulate, tuning=tuning, count=count, seed=seed)


@pytest.mark.parametrize("layer", [MaxPool2D(3, 2, 1), AveragePool2D((5, 2), 1)], ids=["max", "average"])
def test_several_rows_a_work_item(device: Device, layer: Pool) -> None:
    """Of many planes a GPU's work-items take several rows each, and the last of them fewer."""
    shape, sides = Shape(20, 67, 10), ((1, 1), (1, 1)) if isinstance(layer, MaxPool2D) else ((0, 0), (0, 0))
    tuning = tuning_for("gpu", compute_units=1)
    for rows in (shape.height, layer.output_shape([shape]).height):
        size, local = elementwise_work(Shape(shape.units, rows, shape.width), tuning, samples=3)
        assert local is not None
        assert size.height < rows - local[1]
    contract(device, layer, shape, sides, count=3, arrangements=["tight"], tuning=tuning)


def test_means_of_windows_that_reach_beyond(device: Device) -> None:
    """What a mean is divided by, forward and backward, with zeros counted and not; for a sample of all tests, too."""
    for counted in (False, True):
        layer = AveragePool2D(3, 2, 1, count_include_pad=counted)
        check_once(device, layer, Shape(2, 5, 6), ((1, 1), (1, 1)))


def test_random_configurations_cover_what_they_should() -> None:
    found = [random_configuration(seed)[:4] for seed in range(RANDOM_CONFIGURATIONS)]
    for kind in ((MaxPool1D, MaxPool2D), (AveragePool1D, AveragePool2D)):
        chosen = [
            (*window(layer), shape, sides, count) for layer, shape, sides, count in found if isinstance(layer, kind)
        ]
        assert {type(layer) for layer, *_ in found if isinstance(layer, kind)} == set(kind)
        assert sum(size[1] > stride[1] for size, stride, *_ in chosen) >= 3, "overlapping windows"
        assert sum(size[1] < stride[1] for size, stride, *_ in chosen) >= 3, "gaps"
        assert sum(sides[1][0] != sides[1][1] for *_, sides, _ in chosen) >= 3, "asymmetric padding"
        assert any(size[0] == 1 < size[1] for size, *_ in chosen), "one row"
        assert {count for *_, count in chosen} == {1, 2, 3}
        assert any(shape.width == 1 for _, _, shape, _, _ in chosen), "one column"
    assert {layer.count_include_pad for layer, *_ in found if isinstance(layer, AveragePool2D)} == {False, True}


@pytest.mark.parametrize(
    ("layer", "shape", "sides"),
    [
        (MaxPool2D(2), Shape(3, 7, 9), NO_PADDING),
        (MaxPool2D(2), Shape(2, 4, 37), NO_PADDING),
        (MaxPool2D(3, 2, "same"), Shape(2, 6, 35), ((0, 1), (1, 1))),
        (MaxPool2D((2, 3), padding=(1, 2)), Shape(2, 5, 7), ((1, 1), (2, 2))),
        (AveragePool2D(2), Shape(2, 5, 70), NO_PADDING),
        (AveragePool2D(3, 1, 1, False), Shape(2, 4, 18), ((1, 1), (1, 1))),
        (AveragePool2D((1, 4), (2, 3), "valid"), Shape(2, 4, 40), NO_PADDING),
        (MaxPool1D(3, 2, (0, 2)), Shape(2, 11), ((0, 0), (0, 2))),
        (AveragePool1D(4, padding="same", count_include_pad=False), Shape(2, 10), ((0, 0), (1, 1))),
    ],
    ids=str,
)
def test_forms_of_padding_and_long_rows(device: Device, layer: Pool, shape: Shape, sides: Sides) -> None:
    check_once(device, layer, shape, sides, accumulate=shape.width % 2 == 0)


@pytest.mark.parametrize(
    ("layer", "shape", "sides"),
    [
        (MaxPool2D(3, 2, ceil_mode=True), Shape(3, 8, 7), ((0, 1), (0, 0))),
        (MaxPool2D((2, 5), (3, 2), (0, 1), ceil_mode=True), Shape(2, 10, 14), ((0, 1), (1, 2))),
        (MaxPool2D(3, 1, 1, ceil_mode=True), Shape(2, 5, 6), ((1, 1), (1, 1))),
        (MaxPool1D(4, 4, 2, ceil_mode=True), Shape(3, 15), ((0, 0), (2, 3))),
    ],
    ids=str,
)
def test_sizes_rounded_up(device: Device, layer: Pool, shape: Shape, sides: Sides) -> None:
    (size, stride), planes = window(layer), (shape.height, shape.width)
    wanted = [
        (cells + sum(side) - taps) // step + 1
        for cells, side, taps, step in zip(planes, sides, size, stride, strict=True)
    ]
    assert [layer.output_shape([shape]).height, layer.output_shape([shape]).width] == wanted
    check_once(device, layer, shape, sides)
    check_once(device, layer, shape, sides, accumulate=True)


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_all_lanes(device: Device, lanes: int) -> None:
    kernels = ("max_forward_training", "max_backward", "average_forward", "average_backward")
    tuning = tuning_for(kind_of(device), {f"pooling/{kernel}": {"MAXIMUM_LANES": lanes} for kernel in kernels})
    check_once(device, MaxPool2D(3, 2, 1), Shape(2, 3, 41), ((1, 1), (1, 1)), tuning=tuning)
    check_once(device, AveragePool2D((2, 3), 1), Shape(2, 3, 20), NO_PADDING, tuning=tuning)


@pytest.mark.parametrize(
    ("shape", "device_class", "arrangements"),
    [
        (Shape(3, 5, 7), "cpu", None),
        (Shape(2, 3, 16), "gpu", ["own pitches"]),
        (Shape(2, 21), "cpu", ["own pitches"]),
        (Shape(2, 3, 4, 5), "cpu", ["own pitches", "own zeros"]),
        (Shape(2, 3, 4, 5), "gpu", ["own pitches"]),
        (Shape.flat(5), "cpu", ["own pitches"]),
    ],
    ids=str,
)
def test_contract_of_global_average(
    device: Device, shape: Shape, device_class: str, arrangements: list[str] | None
) -> None:
    if device_class == "cpu" and not device.is_host:
        pytest.skip("a CPU's groups of 512 units are more than NVIDIA's driver takes (64)")
    run_layer_contract(
        device,
        GlobalAveragePool(),
        [shape],
        reference_forward=lambda inputs, parameters: pooling.global_average_pool(inputs[0]),
        reference_backward=lambda inputs, parameters, delta: (
            [pooling.global_average_pool_backward(inputs[0], delta)],
            {},
        ),
        relative=1e-5,
        absolute=1e-6,
        tuning=tuning_for(device_class),
        arrangements=arrangements,
    )


@pytest.mark.parametrize(
    "layer",
    [MaxPool2D(3, 2, 1), AveragePool2D(3, 2, ((0, 1), (2, 1)), count_include_pad=False), GlobalAveragePool()],
    ids=str,
)
def test_central_differences(device: Device, layer: Layer) -> None:
    # All values are further apart than the step, so that none lies at a kink.
    inputs = np.random.default_rng(5).permutation(2 * 2 * 7 * 8).reshape(2, 2, 7, 8) / 16
    check_central_differences(device, layer, [Shape(2, 7, 8)], inputs=[inputs])


# -- max ---------------------------------------------------------------------------------------------------------------


def run_max_pool(
    device: Device, layer: MaxPool2D, inputs: FloatArray, *, training: bool = True
) -> tuple[Bench, FloatArray]:
    """The bench after its forward pass, and the output."""
    count, units, height, width = inputs.shape
    problem = make_problem(layer, [Shape(units, height, width)], count=count, inputs=[inputs])
    bench = Bench(device, problem, Arrangement("one", training=training))
    bench.load()
    bench.run("forward")
    return bench, bench.values(bench.output)


@pytest.mark.parametrize("training", [True, False])
def test_nan_wins_and_only_in_its_windows(device: Device, training: bool) -> None:
    inputs = np.random.default_rng(3).standard_normal((2, 2, 9, 23)).astype(np.float32)
    inputs[0, 1, 0, 0] = inputs[1, 0, 4, 11] = inputs[1, 1, 8, 22] = np.nan
    inputs[0, 0] = -np.inf
    _, output = run_max_pool(device, MaxPool2D(3, 2, 1), inputs, training=training)
    expected = pooling.max_pool2d(inputs.astype(np.float64), (3, 3), (2, 2), ((1, 1), (1, 1)))
    assert 0 < np.isnan(expected).sum() < 10
    assert np.array_equal(output, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("window", "size", "kind"), [((2, 3), (6, 41), "u1"), ((16, 16), (18, 53), "u1"), ((1, 257), (3, 300), "u2")]
)
def test_winners_are_the_first_maxima(
    device: Device, window: tuple[int, int], size: tuple[int, int], kind: str
) -> None:
    """Their numbers lie in one byte, if all of them fit, or in two."""
    random = np.random.default_rng(4)
    inputs = random.integers(0, 2 if math.prod(window) < 9 else 100, (2, 3, *size)).astype(np.float32)
    bench, _ = run_max_pool(device, MaxPool2D(window, (2, 2)), inputs)
    windows = np.lib.stride_tricks.sliding_window_view(inputs, window, (2, 3))[:, :, ::2, ::2]
    expected = windows.reshape(*windows.shape[:4], -1).argmax(axis=-1)
    winners = bench.mirror["memory winners"].view(kind)[: expected.size].reshape(expected.shape)
    assert np.array_equal(winners, expected)


def test_winners_are_kept_in_training_only(device: Device) -> None:
    inputs = np.zeros((1, 1, 4, 4), np.float32)
    for training, kernel in ((True, "pooling/max_forward_training"), (False, "pooling/max_forward")):
        bench, _ = run_max_pool(device, MaxPool2D(2), inputs, training=training)
        assert [call.kernel for call in bench.calls["forward"]] == [kernel]
        assert [list(call.arrays) for call in bench.calls["forward"]] == [["WINNERS"] if training else []]


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [MaxPool2D(2), AveragePool2D(3, 2, 1)], ids=str)
@pytest.mark.parametrize("size", [8, 9])
def test_flatten_behind_pooling_needs_no_copy(pool: Layer, size: int) -> None:
    layers = [Input(2, size, size), Conv2D(3, 3, padding=1), pool, Flatten(), Dense(4)]
    for training in (True, False):
        plan = make_plan(sequential(layers), 4, loss=CrossEntropy(), training=training)
        assert plan.copies == []
        output = next(blob for name, blob in plan.outputs.items() if "pool" in name)
        assert output.layout.is_contiguous


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MaxPool2D(0, name="pool1"),
            "pool1 (MaxPool2D): pool_size must be an int or a pair of ints of at least 1. Received pool_size=0.",
        ),
        (
            lambda: MaxPool2D(2, ceil_mode=1),
            "MaxPool2D: ceil_mode must be True or False. Received ceil_mode=1.",
        ),
        (
            lambda: MaxPool1D((2, 2)),
            "MaxPool1D: pool_size must be an int of at least 1. Received pool_size=(2, 2).",
        ),
        (
            lambda: AveragePool2D(2, (1, 0)),
            "AveragePool2D: stride must be an int or a pair of ints of at least 1. Received stride=(1, 0).",
        ),
        (
            lambda: AveragePool1D(2, padding="full"),
            "AveragePool1D: padding must be an int, (left, right), 'same' or 'valid', without negative numbers. "
            "Received padding=full.",
        ),
        (
            lambda: MaxPool2D((3, 2), padding=((1, 1), (0, 2))),
            "MaxPool2D: the padding on every side must be smaller than the window. "
            "Received padding=((1, 1), (0, 2)), pool_size=(3, 2).",
        ),
        (
            lambda: AveragePool1D(2, padding=2),
            "AveragePool1D: the padding on every side must be smaller than the window. "
            "Received padding=2, pool_size=2.",
        ),
    ],
)
def test_options_that_are_not_allowed(make: Any, message: str) -> None:
    with pytest.raises(OptionError) as error:
        make()
    assert str(error.value) == message


def test_lists_become_tuples() -> None:
    layer = MaxPool2D([2, 3], stride=[1, 2], padding=[[0, 1], [1, 0]])
    assert hash(layer) == hash(MaxPool2D((2, 3), stride=(1, 2), padding=((0, 1), (1, 0))))


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (
            MaxPool2D(4, padding=1, name="pool2"),
            Shape(3, 1, 5),
            "pool2 (MaxPool2D): the window must not be larger than the padded input. "
            "Received input=(3, 1, 5), pool_size=4, padding=1.",
        ),
        (
            AveragePool1D(3),
            Shape(2, 2),
            "AveragePool1D: the window must not be larger than the padded input. "
            "Received input=(2, 2), pool_size=3, padding=0.",
        ),
        (
            MaxPool2D(2),
            Shape.flat(8),
            "MaxPool2D: the input must have the axes (units, height, width). Received input=(8).",
        ),
        (
            MaxPool1D(2),
            Shape(2, 4, 4),
            "MaxPool1D: the input must have the axes (units, width). Received input=(2, 4, 4).",
        ),
    ],
)
def test_shapes_that_do_not_fit(layer: Layer, shape: Shape, message: str) -> None:
    with pytest.raises(ShapeError) as error:
        layer.output_shape([shape])
    assert str(error.value) == message


def test_same_padding_is_always_smaller_than_the_window() -> None:
    for size in range(1, 6):
        for stride in range(1, 7):
            for width in range(1, 14):
                shape = MaxPool1D(size, stride, "same").output_shape([Shape(1, width)])
                assert shape.width == -(-width // stride)


@pytest.mark.parametrize(
    "layer", [MaxPool2D((2, 3), 2, ((0, 1), (1, 0)), name="a"), AveragePool1D(2, name="b")], ids=str
)
def test_config_builds_an_equal_layer(layer: Layer) -> None:
    assert type(layer)(**layer.config()) == layer
    assert layer.kind in Layer.kinds
    assert not any(kind.startswith("_") for kind in Layer.kinds)
