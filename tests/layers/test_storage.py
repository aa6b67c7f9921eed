"""Layers on numbers that are narrower in memory than what kernels compute with."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import KernelError, PlanError
from blobnet.examination.reference import activation, pooling
from blobnet.execution.executor import Executor
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning
from blobnet.launch.kernel_source import load
from blobnet.layers import (
    Activation,
    Add,
    AveragePool2D,
    BatchNorm,
    Concat,
    Conv2D,
    Dense,
    Dropout,
    GlobalAveragePool,
    MaxPool2D,
    normalization,
)
from blobnet.layers.base import Layer
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import (
    BFLOAT16,
    BFLOAT16_CELLS,
    CELLS_OF,
    FLOAT16,
    FLOAT16_CELLS,
    FLOAT32,
    TF32_CELLS,
    BlobLayout,
    Halo,
    Shape,
    StorageType,
)
from blobnet.model import Model
from blobnet.network.graph import from_nodes
from blobnet.network.parameters import parameter_table
from blobnet.planning import make_plan
from blobnet.planning.memory import Buffer
from tests import networks as network
from tests import torch_graphs
from tests.kinds import tuning_for
from tests.layers import test_dropout, test_normalization, test_operators, test_recurrent
from tests.layers.arranged import Arrangement, Bench, make_problem
from tests.layers.layer_contract import run_layer_contract
from tests.layers.torch_contract import Module, run_torch_contract
from tests.reference import joins
from tests.reference.compare import assert_close

Float64Array = npt.NDArray[np.float64]


def of_function(name: str, x: Float64Array, delta: Float64Array) -> tuple[Float64Array, list[Float64Array]]:
    """An activation, and its derivative."""
    forward, backward = activation.named(name)
    return forward(x), [backward(x, delta)]


LAYERS: dict[str, tuple[Layer, Sequence[Shape], Callable[..., tuple[Float64Array, list[Float64Array]]]]] = {
    "tanh": (
        Activation("tanh"),
        [Shape(3, 5, 7)],
        lambda delta, x: of_function("tanh", x, delta),
    ),
    "gelu of three axes": (
        Activation("gelu"),
        [Shape(3, 2, 5, 7)],
        lambda delta, x: of_function("gelu", x, delta),
    ),
    "softmax": (
        Activation("softmax"),
        [Shape(5, 3, 4)],
        lambda delta, x: of_function("softmax", x, delta),
    ),
    "add": (Add(), [Shape(3, 5, 7)] * 3, lambda delta, *xs: (joins.add(xs), joins.add_backward(xs, delta))),
    "concat": (
        Concat(),
        [Shape(3, 5, 7), Shape(2, 5, 7)],
        lambda delta, *xs: (joins.concat(xs), joins.concat_backward(xs, delta)),
    ),
    "dropout of nothing": (Dropout(0.0), [Shape(3, 5, 7)], lambda delta, x: (x, [delta])),
    "max": (
        MaxPool2D(3, 2, 1),
        [Shape(3, 9, 41)],
        lambda delta, x: (
            pooling.max_pool2d(x, (3, 3), (2, 2), ((1, 1), (1, 1))),
            [pooling.max_pool2d_backward(x, delta, (3, 3), (2, 2), ((1, 1), (1, 1)))],
        ),
    ),
    "mean": (
        AveragePool2D((2, 3), (2, 3)),
        [Shape(2, 8, 39)],
        lambda delta, x: (
            pooling.avg_pool2d(x, (2, 3), (2, 3), ((0, 0), (0, 0))),
            [pooling.avg_pool2d_backward(x, delta, (2, 3), (2, 3), ((0, 0), (0, 0)))],
        ),
    ),
    "mean of all": (
        GlobalAveragePool(),
        [Shape(4, 5, 13)],
        lambda delta, x: (pooling.global_average_pool(x), [pooling.global_average_pool_backward(x, delta)]),
    ),
}


#: Runs a test for each type that is narrower.
each_narrow = pytest.mark.parametrize("storage", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)


def blob_of(name: str, shape: Shape, kind: StorageType) -> Blob:
    return Blob(name, BlobLayout.padded(shape, Halo((2, 1), (1, 2)), slack=3), type=kind)


@each_narrow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_narrow_blobs(device: Device, name: str, kind: str, storage: StorageType) -> None:
    """The layer contract holds, and results are those of the reference on the same numbers, rounded."""
    layer, shapes, reference = LAYERS[name]
    _check_narrow(device, layer, shapes, reference, tuning_for(kind, storage=storage))


#: Those of GPUs.
each_of_cells = pytest.mark.parametrize(
    "storage", [TF32_CELLS, FLOAT16_CELLS, BFLOAT16_CELLS], ids=lambda kind: f"{kind.name} {kind.cell}"
)


@each_of_cells
@pytest.mark.parametrize("name", ["tanh", "add", "concat", "max", "mean", "mean of all"])
def test_blobs_of_cells(device: Device, name: str, storage: StorageType) -> None:
    """The same of layers that take blobs whose elements are units side by side."""
    layer, shapes, reference = LAYERS[name]
    wider = [shape.with_units(storage.cell * shape.units) for shape in shapes]
    _check_narrow(device, layer, wider, reference, tuning_for("gpu", storage=storage))


def _check_narrow(
    device: Device, layer: Layer, shapes: Sequence[Shape], reference: Callable[..., Any], tuning: Tuning
) -> None:
    output, storage = layer.output_shape(shapes), tuning.storage

    def forward(inputs: Sequence[Float64Array], _: object) -> Float64Array:
        return reference(np.zeros((len(inputs[0]), *output.dimensions)), *inputs)[0]

    run_layer_contract(
        device,
        layer,
        shapes,
        reference_forward=forward,
        reference_backward=lambda inputs, _, delta: (reference(delta, *inputs)[1], {}),
        # NOTE: what follows from the rounded output, or is added up in several steps, is rounded more than once.
        relative=storage.epsilon,
        absolute=2 * storage.epsilon,
        fused=(),
        tuning=tuning,
    )


@pytest.mark.parametrize(
    "storage", [FLOAT32, FLOAT16, BFLOAT16, *CELLS_OF.values()], ids=lambda kind: f"{kind.name} {kind.cell}"
)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_norms_of_narrow_blobs(device: Device, kind: str, storage: StorageType) -> None:
    tuning, shape = tuning_for(kind, storage=storage), Shape(3 * storage.cell, 5, 7)
    arrangements = ["tight", "own pitches", "own zeros"]
    test_normalization.contract(device, BatchNorm(), shape, tuning, arrangements=arrangements, fused=["relu"])
    test_normalization.contract(device, BatchNorm(), shape, tuning, arrangements=["tight"], training=False)


@pytest.mark.parametrize("storage", CELLS_OF.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", [Shape(8, 23, 25), Shape(16, 2, 3)], ids=str)
def test_norms_of_cells_in_stages(
    device: Device, storage: StorageType, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of planes that several warps share, and of some with fewer cells than a warp has lanes."""
    monkeypatch.setattr(normalization, "_UNIT_VALUES", 0)
    tuning = tuning_for("gpu", storage=storage)
    report = test_normalization.contract(device, BatchNorm(), shape, tuning, arrangements=["tight", "own zeros"])
    for run in report.runs.values():
        calls = {call.kernel: call for calls in run.calls.values() for call in calls}
        assert not any(kernel.endswith("_unit") for kernel in calls)
        sharers = {calls[f"normalization/{name}"].global_size.width for name in PLANE_SUMS}
        assert sharers == {128 if shape.positions > 128 else 32}


PLANE_SUMS = "forward_plane_statistics", "backward_plane_sums"
#: The greatest of numbers that are not in memory, of which what is kept is rounded.
MAXIMUM = "function (I[N, C, ...], p[C]) -> (O) { O[n, 0, ... : N, 1, ...] = >(I[n, c, ...] * p[c]); }"
#: Layers that are neither above nor among those of test_operators: PyTorch's functions say what they are.
OTHERS: dict[str, tuple[Layer, Sequence[Shape]]] = {
    "lstm": (layers.LSTM(3, bidirectional=True), [Shape(4, 5)]),
    "gru": (layers.GRU(3, return_sequences=False), [Shape(4, 5)]),
    "standardize": (layers.Standardize(), [Shape(3, 5, 7)]),
    "flatten": (layers.Flatten(), [Shape(3, 5, 7)]),
    "reshape": (layers.Reshape((5, 3, 7)), [Shape(3, 5, 7)]),
    "max_pool_1d": (layers.MaxPool1D(3, 2, 1), [Shape(3, 11)]),
    "average_pool_1d": (layers.AveragePool1D(2), [Shape(3, 11)]),
    "conv_1d": (layers.Conv1D(5, 3, padding=1), [Shape(3, 11)]),
    "conv_2d": (layers.Conv2D(6, 3, 2, 1, groups=3), [Shape(3, 9, 7)]),
    "dense": (layers.Dense(5), [Shape(3, 4, 5)]),
    "contraction": (layers.Contraction(next(iter(torch_graphs.CONTRACTIONS)), sizes={"F": 3}), [Shape(4, 5)]),
    "maximum": (layers.Contraction(MAXIMUM), [Shape(5, 3, 4)]),
    "constant": (layers.Constant(shape=(3, 1, 7), trainable=True), []),
}
NAMES = [*test_operators.CASES, *OTHERS]


def torch_case(name: str) -> tuple[Layer, Sequence[Shape], Module]:
    if name not in OTHERS:
        return test_operators.case(name, 0)
    layer, shapes = OTHERS[name]
    if name == "constant":
        return layer, shapes, lambda x, p: p["value"].expand(3, *p["value"].shape)
    if name == "maximum":
        return layer, shapes, lambda x, p: (x[0] * test_operators.of_rank(p["p"], 3)).max(1, keepdim=True).values
    return layer, shapes, lambda x, p: torch_graphs.MODULES[layer.kind](layer, x, p)


def test_every_kind_is_kept_in_narrow_types() -> None:
    here = {layer.kind for layer, *_ in LAYERS.values()} | {torch_case(name)[0].kind for name in NAMES}
    elsewhere = {"BatchNorm", "Embedding", "StochasticDepth", "Input"}  # The last one in test_augmented.
    assert torch_graphs.own_kinds() == here | elsewhere
    assert not here & elsewhere


@each_narrow
@pytest.mark.parametrize(("name", "kind"), list(zip(NAMES, itertools.cycle(["cpu", "gpu"]))))
def test_other_layers_of_narrow_blobs(device: Device, name: str, kind: str, storage: StorageType) -> None:
    layer, shapes, module = torch_case(name)
    settings: dict[str, Any] = {"tuning": tuning_for(kind, storage=storage), "arrangements": ["own pitches"]}
    tolerance = {"relative": storage.epsilon, "absolute": storage.epsilon}
    run_torch_contract(device, layer, shapes, module, **tolerance, fused=(), **settings)


#: Layers of statements that walk whole cells, and others, which read units across, or have too few in a group.
IN_CELLS = [
    "layer_norm", "group_norm", "instance_norm", "upsample_bilinear", "adaptive_max_pool", "conv_transpose_3d",
    "conv_3d", "max_pool_3d", "multiply_any", "prelu", "scale", "squeeze_excite", "attention", "tokens", "pad",
]  # fmt: skip
NOT_IN_CELLS = ["local_response_norm", "depth_to_space", "space_to_depth", "conv_transpose_2d", "interleave", "slice"]


@pytest.mark.parametrize(
    ("name", "storage"),
    # Some of the others have whole cells of 4 units.
    [*itertools.product(IN_CELLS, [TF32_CELLS, BFLOAT16_CELLS]), *itertools.product(NOT_IN_CELLS, [BFLOAT16_CELLS])],
)
def test_compiled_layers_take_blobs_of_cells(device: Device, name: str, storage: StorageType) -> None:
    layer, shapes, module = torch_case(name)
    shapes = [shape.with_units(storage.cell * shape.units) for shape in shapes]
    settings: dict[str, Any] = {"tuning": tuning_for("gpu", storage=storage), "arrangements": ["own pitches"]}
    tolerance = {"relative": storage.epsilon, "absolute": storage.epsilon}

    def check() -> None:
        run_torch_contract(device, layer, shapes, module, **tolerance, fused=(), **settings)

    if name in NOT_IN_CELLS:
        with pytest.raises(KernelError, match="statements must walk the units of whole cells, where blobs have them"):
            check()
    else:
        check()


@each_narrow
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_masks_and_numbers_of_words(device: Device, kind: str, storage: StorageType) -> None:
    tuning = tuning_for(kind, storage=storage)
    test_dropout.contract(device, Shape(3, 5, 7), 0.4, tuning, arrangements=["own pitches"])
    test_dropout.test_whole_samples(device, Shape(3, 5, 7), tuning)
    test_recurrent.embedding_contract(device, Shape(1, 5), tuning=tuning, arrangements=["own pitches"])


@each_of_cells
def test_masks_of_cells(device: Device, storage: StorageType) -> None:
    test_dropout.test_whole_samples(device, Shape(24, 5, 7), tuning_for("gpu", storage=storage))


@each_narrow
def test_narrow_vectors_begin_anywhere(device: Device, storage: StorageType) -> None:
    """Zeros that are laid down, and rows, of samples whose distance no vector's alignment divides."""
    images = layers.Input(3, 5, 37)()
    node = layers.Pad(((1, 2), (1, 0)))(layers.Pad(((1, 2), (1, 0)))(images))
    model = Model(images, layers.Upsample(2)(node))
    x = storage.decode(storage.encode(np.random.default_rng(0).standard_normal((3, 3, 5, 37))))
    wanted = np.pad(x, ((0, 0), (0, 0), (2, 4), (2, 0))).repeat(2, axis=2).repeat(2, axis=3)
    found = model.predict(x, storage=storage.name, device=device, batch_size=4)
    np.testing.assert_array_equal(found, wanted)


def test_bytes_follow_the_type() -> None:
    assert (FLOAT32.itemsize, FLOAT16.itemsize) == (4, 2)
    wide, narrow = (Buffer("a", 10, 3, type=kind) for kind in (FLOAT32, FLOAT16))
    assert wide.bytes(7) == 2 * narrow.bytes(7)
    calls = [
        KernelCall(
            "blob/copy",
            "copy",
            GlobalSize(1),
            {role: blob_of(role, Shape(2, 3, 4), kind) for role in ("INPUT", "OUTPUT")},
            macros={"ACCUMULATE": 0},
        )
        for kind in (FLOAT32, FLOAT16)
    ]
    assert calls[0].bytes(5) == 2 * calls[1].bytes(5) == 2 * 5 * 24 * 4
    assert "#define input_t real_t\n" in calls[0].assemble()
    assert "NARROW_STORAGE 1" not in calls[0].assemble()
    assert "#define output_t half\n" in calls[1].assemble()


def test_arrays_that_are_float32_alone() -> None:
    blobs = {role: blob_of(role, Shape(2, 3, 4), FLOAT16) for role in ("INPUT", "OUTPUT", "RESIDUAL")}
    macros = dict.fromkeys(load("convolution/forward_tensor").macros, 1)
    arrays = {role: Array(role, 1) for role in ("PACKED", "BIAS", "PARTIALS")}
    call = KernelCall("convolution/forward_tensor", "product", GlobalSize(1), blobs, arrays, macros)
    assert "#define input_t half\n" in call.assemble()
    call = replace(call, arrays={**arrays, "PACKED": Array("packed", 24, type=FLOAT16)})
    rule = "kernel convolution/forward_tensor: it takes some of its arrays in float32 alone. Received types={'PACKED'"
    with pytest.raises(KernelError, match=re.escape(rule)):
        call.assemble()


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "layer", [BatchNorm(), Conv2D(5, 3, padding=1), Dense(7), MaxPool2D(2)], ids=lambda layer: layer.kind
)
def test_epilogues_with_numbers_that_are_halves(device: Device, layer: Layer, kind: str) -> None:
    chain = ("prelu", "norm", "tanh")
    arrangements = [Arrangement("norm", training=False, norm=True), Arrangement("chain", training=False, chain=chain)]
    named = replace(layer, name="head")
    results = []
    for arrangement in (*arrangements, Arrangement("plain", training=False)):
        bench = Bench(device, make_problem(named, [Shape(4, 6, 5)], weights=FLOAT16), arrangement, tuning_for(kind))
        bench.load()
        bench.run("forward")
        results.append((bench, bench.values(bench.output).astype(np.float64)))
    for bench, found in results[:-1]:
        arrays = {
            array.storage: array.type
            for calls in bench.calls.values()
            for call in calls
            for array in call.arrays.values()
        }
        assert arrays["norm"] == FLOAT16
        assert_close(found, bench.finished(results[-1][1]), relative=1e-5, absolute=2e-5, what=bench.arrangement.name)


def test_norms_with_parameters_that_are_halves(device: Device) -> None:
    for shape in (Shape(3, 5, 7), Shape(2, 3, 4, 5)):
        test_normalization.contract(
            device, BatchNorm(), shape, tuning_for("cpu"), arrangements=["tight", "own pitches"], training=False,
            weights=FLOAT16,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["layer_norm", "prelu", "conv_transpose_2d", "attention", "squeeze_excite", "conv_3d"])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_compiled_layers_with_weights_that_are_halves(device: Device, name: str, kind: str) -> None:
    layer, shapes, module = test_operators.case(name, 1)
    settings: dict[str, Any] = {"tuning": tuning_for(kind), "arrangements": ["own pitches"], "weights": FLOAT16}
    run_torch_contract(device, layer, shapes, module, fused=(), **settings)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_plans_with_parameters_that_are_halves(device: Device, kind: str) -> None:
    """A network computes with the rounded numbers, from a buffer of half the size."""
    if kind == "cpu" and not device.is_host:
        pytest.skip("processors' plans have groups of more than the 64 work-items that GPUs take along one axis")
    images = layers.Input(3, 9, 11)()
    node = layers.Conv2D(8, 3, padding=1, activation="relu")(images)
    node = layers.BatchNorm()(layers.Conv2D(12, 3, stride=2, padding=1, groups=2)(node))
    node = layers.PReLU()(layers.Conv2D(12, 1)(node)) + node
    model = Model(images, layers.Dense(5)(layers.GlobalAveragePool()(node)), seed=3)
    random = np.random.default_rng(4)
    weights = {name: values + 0.3 * random.random(values.shape) for name, values in model.weights.items()}
    halves = {name: values.astype(np.float16).astype(np.float64) for name, values in weights.items()}
    x = random.standard_normal((5, 3, 9, 11)).astype(np.float32)
    table = parameter_table(model.graph, kind=FLOAT16)
    plan = make_plan(model.graph, 5, tuning=tuning_for(kind), parameters=table)
    assert plan.buffers["parameters"].bytes(5) == table.bytes
    assert 2 * table.bytes == parameter_table(model.graph).bytes
    executor = Executor(device, plan, debug=True)
    executor.write_array("parameters", table.pack(weights))
    executor.write_array("samples", x)
    for phase in ("constant", "forward"):
        executor.run(phase, 5)
    wanted = network.run(model.graph, halves, x, training=False).reshape(5, 5)
    found = executor.read_blob(plan.outputs[model.graph.output.name], 5).reshape(5, 5)
    assert_close(found, wanted, relative=2e-5, absolute=2e-5, what="output")


def test_what_is_trained_is_float32() -> None:
    graph = from_nodes(images := layers.Input(3)(), layers.Dense(2)(images))
    with pytest.raises(PlanError, match=r"parameters: what is trained must be float32\. Received type=float16"):
        make_plan(graph, 2, loss=CrossEntropy(), training=True, parameters=parameter_table(graph, kind=FLOAT16))
