"""Epilogues: what kernels do to single values before they store them, in any order, for every forward kernel."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.errors import KernelError
from blobnet.examination.layer_references import Float64Array
from blobnet.launch.elementwise import PER_UNIT, SUM, EpilogueOp, row_call, with_epilogue
from blobnet.launch.kernel_call import Array, Blob, Tuning
from blobnet.launch.kernel_source import load
from blobnet.launch.work_sizes import cell_call
from blobnet.layers import (
    Activation,
    Add,
    AveragePool1D,
    BatchNorm,
    Conv1D,
    Conv2D,
    Dense,
    GlobalAveragePool,
    GroupNorm,
    Input,
    MaxPool2D,
    PReLU,
    Scale,
)
from blobnet.layers.base import Layer
from blobnet.memory.blob import BlobLayout, Shape
from blobnet.model import Model
from tests.kinds import tuning_for
from tests.layers.arranged import BLOB_LINKS, Arrangement, Bench, function_step, make_problem
from tests.layers.test_convolution import contract
from tests.reference.compare import assert_close

#: Layers by the kernel that they should choose, the class of device it is for, and their input's shape.
LAYERS: dict[str, tuple[Conv1D | Conv2D, str, Shape]] = {
    "forward_flat": (Conv2D(5, 3, padding=1), "cpu", Shape(3, 6, 7)),
    "forward_flat, split": (Conv2D(5, (2, 3), stride=2, padding=1, groups=5, bias=False), "cpu", Shape(5, 4, 41)),
    "forward_depthwise": (Conv2D(5, 3, stride=2, padding=1, groups=5), "cpu", Shape(5, 9, 41)),
    "forward_tiled": (Conv2D(45, 3, stride=(1, 2), padding="same"), "gpu", Shape(6, 5, 9)),
    "forward_strip": (Conv2D(6, 3, groups=6, padding=1, bias=False), "gpu", Shape(6, 7, 5)),
    "forward_dot": (Conv1D(5, 3), "gpu", Shape(130, 3)),
    "forward_dot_local": (Conv1D(5, 3, padding=1), "gpu", Shape(130, 2)),
    "forward_gathered": (Conv2D(7, 3, stride=(1, 2), padding=1), "cpu", Shape(5, 4, 3)),
    "forward_panels": (Conv2D(27, 3, stride=(1, 2), padding=1), "cpu", Shape(9, 6, 7)),
    "winograd_result": (Conv2D(35, 3, padding=1), "gpu", Shape(6, 7, 9)),
    "winograd_sums": (Conv2D(5, 3, padding=1), "cpu", Shape(6, 7, 19)),
}
#: The implementations of kernels for which there are better ones at sizes that are good for tests.
ONLY = {
    "forward_flat": {"direct"},
    "forward_flat, split": {"direct"},
    "forward_depthwise": {"depthwise"},
    "forward_gathered": {"gathered"},
    "forward_panels": {"panels"},
    "winograd_result": {"winograd"},
    "winograd_sums": {"patches"},
}
EVERYTHING = (
    Arrangement("one pitch", same_pitch=True, beside=True, training=False, norm=True, residual=True, activation="relu"),
    Arrangement("own pitches", training=False, norm=True, residual=True, activation="sigmoid"),
)
RESIDUAL = Arrangement("residual", same_pitch=True, training=False, residual=True)
NORM = Arrangement("norm", same_pitch=True, training=False, norm=True)


BLOB = Blob("other", BlobLayout.padded(Shape(5, 6, 7)))
RELU = (function_step("relu"),)


def check(device: Device, kernel: str, layer: Conv1D | Conv2D, *arrangements: Arrangement) -> None:
    _, kind, shape = LAYERS[kernel]
    tuning = tuning_for(kind, only=ONLY.get(kernel, ()))
    report = contract(device, layer, shape, arrangements, tuning=tuning, absolute=5e-5)
    assert len(report.runs) == len(arrangements)
    for run in report.runs.values():
        call = run.calls["forward"][-1]
        assert call.kernel == f"convolution/{kernel.partition(',')[0]}"
        folds = [call.kernel for call in run.calls["forward"]].count("normalization/fold")
        assert folds == run.arrangement.norm
        assert call.macros["HAS_RESIDUAL"] == run.arrangement.residual


@pytest.mark.parametrize("kernel", LAYERS)
def test_norm_residual_and_activation(device: Device, kernel: str) -> None:
    check(device, kernel, LAYERS[kernel][0], *EVERYTHING)


@pytest.mark.parametrize("kernel", ["forward_flat", "forward_panels", "forward_tiled"])
def test_each_alone(device: Device, kernel: str) -> None:
    check(device, kernel, LAYERS[kernel][0], RESIDUAL, NORM)


@pytest.mark.parametrize("kernel", ["forward_flat", "forward_panels", "forward_strip"])
def test_residual_behind_a_bias_for_each_position(device: Device, kernel: str) -> None:
    layer = LAYERS[kernel][0]
    positioned = type(layer)(layer.filters, layer.kernel_size, 1, layer.padding, groups=layer.groups, bias="position")
    total, gate = EpilogueOp(SUM, BLOB), EpilogueOp("x * r", BLOB)
    assert positioned.fuses((total, *RELU))
    # It is added with the bias.
    assert not positioned.fuses((*RELU, total))
    assert not positioned.fuses((gate,))
    check(device, kernel, positioned, RESIDUAL)


# -- in any order ------------------------------------------------------------------------------------------------------

LINKS = ("norm", "prelu", "relu", "leaky_relu(0.3)", "sigmoid", "tanh", "hard_swish", "softplus")


def random_chain(random: np.random.Generator, blobs: int = 1) -> tuple[str, ...]:
    """Two to four links, of which so many at most read another blob."""
    links = [str(link) for link in random.choice(LINKS, int(random.integers(2, 5)))]
    if blobs and random.random() < 0.8:
        links[int(random.integers(len(links)))] = str(random.choice(list(BLOB_LINKS)))
    return tuple(links)


def chained(random: np.random.Generator, blobs: int = 1) -> Arrangement:
    chain = random_chain(random, blobs)
    return Arrangement(" ".join(chain), same_pitch=bool(random.integers(2)), training=False, chain=chain)


@pytest.mark.parametrize("kernel", LAYERS)
def test_chains_in_any_order(device: Device, kernel: str) -> None:
    random = np.random.default_rng([31, zlib.crc32(kernel.encode())])
    layer, kind, shape = LAYERS[kernel]
    tuning = tuning_for(kind, only=ONLY.get(kernel, ()))
    for arrangement in (chained(random), chained(random)):
        report = contract(device, layer, shape, (arrangement,), tuning=tuning, absolute=1e-4)
        (run,) = report.runs.values()
        call = run.calls["forward"][-1]
        assert call.kernel == f"convolution/{kernel.partition(',')[0]}"
        # A norm in front becomes part of the weights; the numbers of others are arrays of the kernel's.
        folds = [one.kernel for one in run.calls["forward"]].count("normalization/fold")
        assert folds == (arrangement.chain[0] == "norm")
        numbers = {"norm": 4, "prelu": 1}
        wanted = sum(numbers.get(link, 0) for link in arrangement.chain[folds:])
        assert len(call.arrays) - len(load(call.kernel).arrays) == wanted


@pytest.mark.parametrize("link", ["gates", "mask", "shifts"])
@pytest.mark.parametrize("kernel", LAYERS)
def test_what_is_repeated_for_all_cells_or_all_units(device: Device, kernel: str, link: str) -> None:
    layer, kind, shape = LAYERS[kernel]
    tuning = tuning_for(kind, only=ONLY.get(kernel, ()))
    arrangements = [
        Arrangement("one pitch", same_pitch=True, training=False, chain=("tanh", link)),
        Arrangement("own pitches", training=False, chain=(link, "leaky_relu(0.3)")),
    ]
    report = contract(device, layer, shape, arrangements, tuning=tuning, absolute=5e-5)
    assert len(report.runs) == len(arrangements)
    for run in report.runs.values():
        assert run.calls["forward"][-1].kernel == f"convolution/{kernel.partition(',')[0]}"


@pytest.mark.parametrize(
    ("layer", "shape", "blobs", "kind"),
    [
        (Dense(11), Shape(3, 4), 0, "cpu"),
        (Dense(130), Shape(37), 0, "gpu"),
        (Activation("silu"), Shape(3, 5, 7), 0, "cpu"),
        (Activation("tanh"), Shape(3, 5, 7), 0, "gpu"),
        (BatchNorm(), Shape(3, 5, 7), 1, "cpu"),
        (BatchNorm(), Shape(3, 9), 1, "gpu"),
        (BatchNorm(), Shape(3, 4, 5, 2), 1, "cpu"),
        (GroupNorm(1), Shape(4, 3, 5), 1, "cpu"),
        (MaxPool2D(3, 2, padding=1), Shape(3, 9, 40), 0, "cpu"),
        (MaxPool2D(2), Shape(3, 6, 7), 0, "gpu"),
        (AveragePool1D(3), Shape(5, 11), 0, "cpu"),
        (GlobalAveragePool(), Shape(5, 6, 11), 0, "cpu"),
        (GlobalAveragePool(), Shape(5, 6, 11), 0, "gpu"),
    ],
    ids=str,
)
def test_other_layers_take_chains_too(device: Device, layer: Layer, shape: Shape, blobs: int, kind: str) -> None:
    random = np.random.default_rng([32, zlib.crc32(f"{layer}{kind}".encode())])
    named = dataclasses.replace(layer, name="head")
    for arrangement in (chained(random, blobs), chained(random, blobs)):
        problem = make_problem(named, [shape])
        bench = Bench(device, problem, arrangement, tuning_for(kind))
        plain = Bench(device, problem, Arrangement("plain", training=False), tuning_for(kind))
        results = []
        for one in (bench, plain):
            one.load()
            one.run("forward")
            results.append(one.values(one.output).astype(np.float64))
        # What it does alone has tests of its own.
        assert_close(results[0], bench.finished(results[1]), relative=1e-5, absolute=2e-5, what=arrangement.name)
        assert len(bench.calls["forward"]) == len(plain.calls["forward"]) + (
            isinstance(layer, Dense) and arrangement.chain[0] == "norm"
        )


# -- of flat values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [Shape(5), Shape(5, 1), Shape(5, 1, 1), Shape(5, 1, 1, 1)], ids=str)
def test_each_unit_of_flat_values_has_its_own_numbers(device: Device, shape: Shape) -> None:
    images = Input.of(shape, name="images")()
    makers = {
        "relu": (lambda: Activation("relu")(images), lambda x: np.maximum(x, 0)),
        "tanh": (lambda: Activation("tanh")(images), np.tanh),
        "sum": (lambda: Add()([images, images]), lambda x: 2 * x),
    }
    behind = {"norm": BatchNorm(epsilon=0.5), "scale": Scale(), "prelu": PReLU()}
    outputs = {
        f"{head}_{tail}": dataclasses.replace(layer, name=f"{head}_{tail}")(make())
        for head, (make, _) in makers.items()
        for tail, layer in behind.items()
    }
    model = Model(images, outputs)
    random = np.random.default_rng(33)
    model.set_weights({name: random.uniform(0.5, 2, values.shape) for name, values in model.weights.items()})
    x = random.standard_normal((3, *shape.dimensions)).astype(np.float32)
    own = {name: np.float64(values).reshape(-1, *(1,) * shape.rank) for name, values in model.weights.items()}
    values = (np.float64(x) - own["images/mean"]) / own["images/deviation"]

    def normalized(x: Float64Array, name: str) -> Float64Array:
        scale, shift, mean, variance = (
            own[f"{name}/{part}"] for part in ("scale", "shift", "running_mean", "running_variance")
        )
        return (x - mean) / np.sqrt(variance + 0.5) * scale + shift

    found = model.predict(x, device=device)
    wanted = {}
    for head, (_, function) in makers.items():
        result = function(values)
        wanted[f"{head}_norm"] = normalized(result, f"{head}_norm")
        wanted[f"{head}_scale"] = result * own[f"{head}_scale/scale"]
        wanted[f"{head}_prelu"] = np.where(result < 0, own[f"{head}_prelu/slope"] * result, result)
    for name, expected in wanted.items():
        assert_close(found[name], expected, relative=1e-5, absolute=1e-5, what=name)


def test_numbers_of_other_units_are_refused() -> None:
    blob = Blob("values", BlobLayout.padded(Shape(5)))
    row = dataclasses.replace(blob, layout=blob.layout.as_row())
    numbers = (("p", Array("parameters", 5)),)
    steps = [EpilogueOp("x * p", numbers=numbers)], [EpilogueOp("x * r", blob, per=PER_UNIT)], [EpilogueOp(SUM, blob)]
    for own in steps:
        blobs = {"INPUT": row, "OUTPUT": row}
        with pytest.raises(
            KernelError,
            match=r"kernel activation/forward \(row\): a kernel must write the units for which its epilogue has "
            r"numbers\. Received units=1, numbers=\[5\]",
        ):
            with_epilogue(cell_call("activation/forward", "row", blobs, Tuning()), own)
    # A kernel of single values takes a row itself where no step reads anything.
    for own, units in ([], 1), ([EpilogueOp("x * 2.0")], 1), (steps[0], 5):
        call = row_call("activation/forward", "values", {"INPUT": blob, "OUTPUT": blob}, Tuning(), own)
        assert call.blobs["OUTPUT"].layout.unit_count == units
