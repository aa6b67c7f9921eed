"""Dense, forward and backward, on flat, contiguous and padded inputs, in random arrangements and tunings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.examination.checks import one_of
from blobnet.examination.layer_references import reference_of
from blobnet.implementations.base import FORWARD, choose
from blobnet.implementations.dense_tiled import TILES
from blobnet.implementations.tile import Tile
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.task import Task, TunedChoices, Variant
from blobnet.layers import Activation, Conv2D, Dense, Flatten, Input
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import FLOAT16, FLOAT32, Shape, StorageType
from blobnet.model import Sequential
from blobnet.network.parameters import parameter_table
from blobnet.planning import make_plan
from tests.kinds import as_gpu, tuning_for
from tests.layers.arranged import Arrangement, Bench, finishing, make_problem
from tests.layers.layer_contract import (
    ContractReport,
    check_central_differences,
    run_layer_contract,
)
from tests.layers.random_cases import (
    Case,
    Traits,
    random_arrangement,
    random_overrides,
    traits_of_call,
)

KERNELS = ["dense/forward", "dense/backward_weight", "dense/backward_data"]


def contract(
    device: Device,
    layer: Dense,
    shape: Shape,
    arrangements: Sequence[str | Arrangement] | None = None,
    kernels: Sequence[str] | None = KERNELS,
    **options: Any,
) -> ContractReport:
    """The layer contract against the reference; ``options`` are those of run_layer_contract."""
    reference = reference_of(layer, [shape])
    report = run_layer_contract(
        device,
        layer,
        [shape],
        reference_forward=reference.forward,
        reference_backward=reference.backward,
        arrangements=arrangements,
        **{"fused": (), "relative": 2e-5, "absolute": 2e-5, **options},
    )
    for run in report.runs.values():
        assert kernels is None or [name for name in run.kernels if not name.startswith("gradient/")] == list(kernels)
    return report


# -- random configurations ---------------------------------------------------------------------------------------------


@cache
def random_case(number: int) -> Case:
    """A case that its number determines."""
    generator = np.random.default_rng(number)
    rank = number % 3
    units = int(generator.integers(1, 90)) if rank == 0 else int(generator.integers(1, 6))
    height = int(generator.integers(1, 7)) if rank == 2 else 1
    width = int(generator.integers(1, 40)) if rank else 1

    def tunables() -> dict[str, int]:
        group = one_of(generator, 1, 1, 32, 64)
        return {
            "GROUP_WIDTH": group,
            "MAXIMUM_LANES": one_of(generator, 1, 4, 8, 16, 16) if group == 1 else one_of(generator, 1, 4),
            "MAXIMUM_UNITS": one_of(generator, 1, 2, 3, 5),
            "MAXIMUM_SAMPLES": one_of(generator, 1, 2, 3, 5),
            "MAXIMUM_VECTORS": one_of(generator, 1, 2, 3, 4),
            "MAXIMUM_ACCUMULATORS": 8,
        }

    return Case(
        layer=Dense(int(generator.integers(1, 24)), bias=one_of(generator, False, True)),
        shape=Shape(units, *(height, width)[2 - rank :]),
        count=one_of(generator, 1, 2, 3, 7, 9),
        arrangement=random_arrangement(generator, "tight", "tight", "one pitch", "own pitches"),
        overrides=random_overrides(generator, KERNELS, tunables),
        seed=number,
    )


#: The cases to run: few, chosen from the first 300 so that together they have all that the test below wants,
#: twice.
CASES = [0, 4, 9, 58, 75, 126, 209, 212, 245]


@pytest.mark.parametrize("number", CASES)
def test_at_random(device: Device, number: int) -> None:
    case = random_case(number)
    assert isinstance(case.layer, Dense)
    contract(device, case.layer, case.shape, [case.arrangement], **case.options)


def traits(case: Case, bench: Bench) -> Traits:
    """What a case has that can go wrong."""
    layer = case.layer
    assert isinstance(layer, Dense)
    found: Traits = {
        ("flat and contiguous", (case.shape.rank == 0, bench.inputs[0].layout.is_contiguous)),
        ("bias", layer.bias),
        ("epilogue", case.arrangement.activation is not None),
        ("count", case.count),
    }
    for call in (call for calls in bench.calls.values() for call in calls):
        found |= traits_of_call(call)
        rows, run, lanes = (int(call.macros[name]) for name in ("ROWS", "ROW_ELEMENTS", "LANES"))
        found.add((call.kernel, ("one row, whole vectors", (rows == 1, run % lanes == 0))))
        for total, block in ((layer.units, "BLOCK_UNITS"), (case.count, "BLOCK_SAMPLES")):
            if block in call.macros:
                found.add((call.kernel, (f"left over of {block}", total % int(call.macros[block]) > 0)))
    return found


def wanted_traits() -> Traits:
    answers = (False, True)
    wanted: Traits = {(name, answer) for name in ("bias", "epilogue") for answer in answers}
    wanted |= {("flat and contiguous", (flat, contiguous)) for flat in answers for contiguous in answers}
    wanted |= {("count", count) for count in (1, 9)}
    wanted |= {("dense/backward_data", ("ACCUMULATE", added)) for added in (0, 1)}
    for name in KERNELS:
        wanted |= {(name, ("lanes", lanes)) for lanes in (1, 4, 16)}
        wanted |= {(name, ("group", (width, 1, 1))) for width in (1, 32, 64)}
        wanted |= {(name, ("one row, whole vectors", (one, whole))) for one in answers for whole in answers}
    for name, block in (
        ("forward", "BLOCK_UNITS"),
        ("forward", "BLOCK_SAMPLES"),
        ("backward_weight", "BLOCK_UNITS"),
        ("backward_data", "BLOCK_SAMPLES"),
    ):
        wanted |= {(f"dense/{name}", (f"left over of {block}", answer)) for answer in answers}
    return wanted


def test_the_random_cases_reach_every_variant(device: Device) -> None:
    """All that the random cases are for is among them: inputs of every kind, loads, stores, tunings."""
    cases = [random_case(number) for number in CASES]
    missing = wanted_traits() - set[tuple[str, Any]]().union(*(traits(case, case.bench(device)) for case in cases))
    assert not missing, missing


# -- chosen configurations ---------------------------------------------------------------------------------------------


def test_one_sample_is_for_many_groups(device: Device) -> None:
    """A GPU's groups take fewer units, and no sample that is not there."""
    for count, units in ((1, 2), (8, 4), (40, 8)):
        tuning = tuning_for("gpu", compute_units=4, only={"direct"})
        report = contract(device, Dense(37), Shape.flat(70), ["tight"], count=count, tuning=tuning)
        (run,) = report.runs.values()
        macros = run.calls["forward"][0].macros
        assert (macros["BLOCK_UNITS"], macros["BLOCK_SAMPLES"]) == (units, min(count, 4))


def test_every_arrangement(device: Device) -> None:
    report = contract(device, Dense(7), Shape(3, 4, 5))
    assert {"tight", "one pitch", "own pitches"} <= set(report.runs)


# The epilogue is of scalars, as in activation/forward, whose test has all functions.
@pytest.mark.parametrize("function", ["relu", "gelu"])
def test_an_activation_in_the_epilogue(device: Device, function: str) -> None:
    report = contract(device, Dense(5), Shape.flat(13), [], fused=[function])
    (run,) = report.runs.values()
    assert run.calls["forward"][0].macros["FINISHED"] == finishing(function)


#: (units, input, samples): sizes at which something is as small or as large as it gets.
EDGES = {
    "everything 1": (1, Shape.flat(1), 1),
    "one input": (9, Shape.flat(1), 5),
    "one unit": (1, Shape(5, 3, 3), 4),
    "one column": (3, Shape(4, 6, 1), 2),
    "many units": (131, Shape.flat(5), 2),
    "many inputs": (3, Shape.flat(1031), 2),
    "many samples": (4, Shape.flat(6), 37),
}


@pytest.mark.parametrize("edge", EDGES)
def test_edges(device: Device, edge: str) -> None:
    units, shape, count = EDGES[edge]
    contract(device, Dense(units), shape, ["own pitches"], count=count)


@pytest.mark.parametrize("shape", [Shape.flat(203), Shape(3, 5, 9), Shape(2, 3, 2, 9)], ids=str)
def test_the_defaults_of_the_other_class_of_device(device: Device, shape: Shape) -> None:
    tuning = tuning_for("gpu" if device.is_host else "cpu")
    contract(device, Dense(21), shape, ["one pitch"], count=10, tuning=tuning)


@pytest.mark.parametrize("shape", [Shape.flat(17), Shape(2, 3, 5), Shape(2, 3, 2, 5)], ids=str)
def test_slopes(device: Device, shape: Shape) -> None:
    check_central_differences(device, Dense(6), [shape])


# -- shapes, parameters, arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [Shape.flat(24), Shape(2, 3, 4), Shape(6, 4), Shape(2, 3, 2, 2)], ids=str)
def test_shapes_and_parameters(shape: Shape) -> None:
    layer = Dense(5)
    assert layer.flattens_input
    assert layer.output_shape([shape]) == Shape.flat(5)
    weight, bias = layer.parameters([shape])
    assert (weight.name, weight.shape, weight.decayed) == ("weight", (5, 24), True)
    assert (bias.name, bias.shape, bias.decayed) == ("bias", (5,), False)
    assert [spec.name for spec in Dense(5, bias=False).parameters([shape])] == ["weight"]


def test_an_activation_is_split_off() -> None:
    plain, behind = Dense(4, activation="tanh", name="d1").expanded()
    assert plain == Dense(4, name="d1")
    assert behind == Activation("tanh", name="d1_tanh")


@pytest.mark.parametrize("units", [0, -1, 2.0, "3", None, (3,), True])
def test_wrong_units(units: Any) -> None:
    with pytest.raises(OptionError, match=r"^d1 \(Dense\): units must be an int of at least 1\. Received units="):
        Dense(units, name="d1")


@pytest.mark.parametrize("bias", ["position", 1, None, []])
def test_wrong_bias(bias: Any) -> None:
    with pytest.raises(OptionError, match=r"^Dense: bias must be True or False\. Received bias="):
        Dense(4, bias=bias)


def test_unknown_activation() -> None:
    with pytest.raises(OptionError, match=r"known function\. Received function=sigmod\. Hint: did you mean 'sigmoid'"):
        Dense(4, activation="sigmod")


@pytest.mark.parametrize("initializer", ["glorot", None])
def test_unknown_initializer(initializer: Any) -> None:
    with pytest.raises(OptionError, match=r"^Dense: the initializer must be a known one\. Received initializer="):
        Dense(4, initializer=initializer)


# -- products through local memory: the kernels of GPUs, on whatever device there is -----------------------------------


class Always(TunedChoices):
    """The same candidate for every task."""

    def near(self, task: Task) -> Iterator[tuple[Task, Variant]]:
        yield task, self.sources[0][EVERY_TASK]


EVERY_TASK = Task(FORWARD, "1:dense1", 1)


def tiled(tile: Tile, compute_units: int = 64) -> Tuning:
    choices = Always(({EVERY_TASK: Variant("tiled", str(tile))},))
    return tuning_for("gpu", compute_units=compute_units, choices=choices)


TILED = ["dense/forward_tiled", "dense/split_sum", "dense/backward_weight_tiled"]
TILED += ["dense/backward_data_tiled", "dense/split_sum"]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(device: Device, tile: Tile) -> None:
    """Several tiles of everything, none of them whole."""
    options: dict[str, Any] = {"count": 67, "absolute": 5e-5, "tuning": tiled(tile, 2)}
    contract(device, Dense(133), Shape.flat(211), ["tight"], TILED, **options)


#: (units, elements, samples)
PRODUCTS = {"less than a tile": (3, 5, 2), "whole tiles": (64, 64, 64), "one of everything": (1, 1, 1)}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products(device: Device, case: str) -> None:
    units, elements, samples = PRODUCTS[case]
    options: dict[str, Any] = {"count": samples, "tuning": tiled(TILES[2])}
    contract(device, Dense(units, bias=False), Shape.flat(elements), ["tight"], TILED, **options)


def test_products_of_planes_with_an_activation(device: Device) -> None:
    options: dict[str, Any] = {"count": 40, "tuning": tiled(TILES[1])}
    fused = Arrangement("fused", tight=True, accumulate=True, activation="sigmoid")
    contract(device, Dense(37), Shape(5, 3, 7), [fused], TILED, **options)
    contract(device, Dense(37), Shape(5, 3, 7), ["own pitches"], KERNELS, **options)  # no rows of a matrix


#: (units, elements, samples), of which a step takes 8 and a split at least 64.
STEPS = {"whole steps": (16, 128, 24), "part of a step": (3, 5, 2), "steps and a part": (37, 75, 45)}


@pytest.mark.parametrize("storage", [FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("case", STEPS)
@pytest.mark.usefixtures("small_tiles")
def test_cheap_addresses(device: Device, case: str, storage: StorageType) -> None:
    units, elements, samples = STEPS[case]

    def run(compiler: str) -> ContractReport:
        tuning = tuning_for("gpu", compute_units=2, only={"tiled"}, compiler=compiler, storage=storage)
        options: dict[str, Any] = {"count": samples, "absolute": 5e-5, "tuning": tuning}
        return contract(device, Dense(units), Shape.flat(elements), ["tight"], TILED, **options)

    for compiler in ("amd", "intel"):
        report = run(compiler)
        calls = [call for phase in report.runs["tight"].calls.values() for call in phase]
        assert [call.macros["CHEAP_ADDRESSES"] for call in calls if call.kernel.endswith("_tiled")] == [1, 1, 1]
        assert report.results == run("nvidia").results


@pytest.mark.parametrize(("samples", "compiler", "wanted"), [(1008, "intel", 1), (1009, "intel", 0), (8, "nvidia", 0)])
def test_addresses_are_cheap_where_all_bytes_have_32_bits(samples: int, compiler: str, wanted: int) -> None:
    graph = Sequential([Input(1 << 20), Dense(3)]).graph  # 4 MiB a sample, and 15 rows may lie behind the last one
    tuning = tuning_for("gpu", only={"tiled"}, compiler=compiler)
    plan = make_plan(graph, samples, training=True, loss=MeanSquaredError(), tuning=tuning)
    calls = [call for _, call in plan.calls if call.kernel.startswith("dense/") and call.kernel.endswith("_tiled")]
    assert [call.macros["CHEAP_ADDRESSES"] for call in calls] == [wanted, wanted]  # the input needs no delta


def test_batches_are_products_and_samples_are_not(device: Device) -> None:
    def variants(samples: int) -> list[str]:
        problem = make_problem(Dense(1000), [Shape.flat(2048)], count=samples, seed=0)
        site = Bench(device, problem, Arrangement("tight", tight=True), tuning_for("gpu", compute_units=132)).site
        tasks = problem.layer.alternatives(site).items()
        return [choose(TunedChoices(), task, candidates).way.variant for task, candidates in tasks]

    assert variants(64) == ["tiled", "tiled", "tiled"]
    assert variants(1) == ["direct", "direct", "tiled"]  # The delta is of sums over 1000 units: test_waits below.


@pytest.mark.parametrize(
    ("units", "elements", "samples", "kernels"),
    [
        (241, 11, 37, ["dense/forward", "dense/backward_weight_tiled", "dense/backward_data_tiled", "dense/split_sum"]),
        (7, 143, 37, ["dense/forward", "dense/backward_weight_tiled", "dense/backward_data"]),
        (241, 11, 3, ["dense/forward", "dense/backward_weight", "dense/backward_data_tiled", "dense/split_sum"]),
    ],
)
def test_waits(device: Device, units: int, elements: int, samples: int, kernels: list[str]) -> None:
    """No work-item of a GPU adds up many terms alone, however few the sums are: squeeze and excite."""
    options: dict[str, Any] = {"count": samples, "tuning": tuning_for("gpu", compute_units=132)}
    report = contract(device, Dense(units), Shape.flat(elements), ["tight"], kernels, **options)
    assert report.results == contract(device, Dense(units), Shape.flat(elements), ["tight"], kernels, **options).results
    calls = [call for phase in report.runs["tight"].calls.values() for call in phase]
    assert all(call.macros["SPLITS"] == 4 for call in calls if call.kernel == "dense/backward_data_tiled")


@pytest.mark.parametrize("frozen", [(), ("conv/weight", "dense/weight")])
@pytest.mark.parametrize("way", ["direct", "tiled", "compiled"])
def test_each_gradient_is_made_once(way: str, frozen: tuple[str, ...]) -> None:
    graph = Sequential([Input(4, 3, 2), Conv2D(7, 1, name="conv"), Flatten(), Dense(3, name="dense")]).graph
    table, tuning = parameter_table(graph, frozenset(frozen)), tuning_for("gpu", only={way})
    plan = make_plan(graph, 64, loss=MeanSquaredError(), training=True, tuning=tuning, parameters=table)
    made = Counter(
        array.offset
        for whole in plan.phase("backward")
        for call in whole.each
        for role, array in call.arrays.items()
        if array.storage == "gradients" and call.source.arrays[role] != "read"
    )
    trained = [name for name, spec in graph.named_parameters.items() if spec.trainable and name not in frozen]
    assert made == {table.slices[name].offset: 1 for name in trained}


@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_a_bias_trains_without_its_weights(device: Device, device_class: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device_class == "gpu":
        as_gpu(monkeypatch, device)
    generator = np.random.default_rng(3)
    x, y = (generator.normal(size=size).astype(np.float32) for size in ((5, 4, 3, 2), (5, 3)))
    model = Sequential([Input(4, 3, 2), Conv2D(7, 1, name="conv"), Flatten(), Dense(3, name="dense")])
    found = model.gradients(x, y, loss=MeanSquaredError(), freeze=["*/weight"], device=device)
    weights = {name: np.float64(value) for name, value in model.weights.items()}
    planes = np.einsum("ncyx,oc->noyx", np.float64(x), weights["conv/weight"][:, :, 0, 0])
    output = (planes + weights["conv/bias"][:, None, None]).reshape(5, -1) @ weights["dense/weight"].T
    delta = 2 * (output + weights["dense/bias"] - y) / y.size
    below = (delta @ weights["dense/weight"]).reshape(planes.shape)
    np.testing.assert_allclose(found["dense/bias"], delta.sum(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["conv/bias"], below.sum(axis=(0, 2, 3)), rtol=1e-5, atol=1e-6)
    assert not {"dense/weight", "conv/weight"} & {*found}
