"""Gradients of whole networks, and the same network planned in different ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from blobnet import layers, models, optimizers
from blobnet.device.device import Device
from blobnet.device.memory import Memory
from blobnet.errors import DeviceError
from blobnet.examination.reference.dropout import dropout_mask
from blobnet.examination.reference.losses import cross_entropy
from blobnet.execution.executor import Executor
from blobnet.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from blobnet.memory.blob import FloatArray
from blobnet.model import Model
from blobnet.network.graph import Graph, from_nodes
from blobnet.optimizers.base import MAX_PARTIALS
from blobnet.planning import STEP_WORDS, Plan, combining, make_plan
from blobnet.training.settings import TrainingSettings
from blobnet.training.training_step import TrainingStep
from tests.kinds import kind_of, only, tuning_for
from tests.networks import run
from tests.reference.compare import assert_close
from tests.small_graphs import COMPARED_GRAPHS, KNOWN_GRAPHS, random_graph
from tests.small_tiles import take_small_tiles
from tests.torch_graphs import torch_gradients

COUNT = 4
#: Known graphs whose blobs share memory in every way: sums and joins, in place, with copies where they cannot.
#: tests/planning/test_plan.py has all graphs and many more; here each layout of a blob is a program to build.
JOINED = ["residual", "in place around concat"]
SEED = (3 << 32) + 5


def model_of(graph: Graph) -> Model:
    """A model with weights that are neither 0 nor 1 anywhere."""
    model = Model.__new__(Model)
    model._start(graph, (), 0)
    random = np.random.default_rng(8)
    weights = {}
    for name, values in model.weights.items():
        noise = random.standard_normal(values.shape)
        positive = name.endswith(("scale", "deviation", "running_variance"))
        weights[name] = np.abs(1 + 0.2 * noise) if positive else values + 0.1 * noise
    model.set_weights(weights)
    return model


def batch_of(graph: Graph, loss: Loss, count: int = COUNT) -> tuple[FloatArray, Any]:
    random = np.random.default_rng(9)
    x = random.standard_normal((count, *graph.input.shape.dimensions)).astype(np.float32)
    if loss.takes_classes:
        return x, random.integers(0, graph.output.shape.units, count)
    return x, random.random((count, *graph.output.shape.dimensions)).astype(np.float32)


def assert_gradients(found: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    """Every gradient close to that in float64, measured by the largest value of its array, and of the others a bit.

    A bias in front of a batch norm has the gradient 0, which in float32 is what the sum of large terms leaves.
    """
    largest = max(float(np.abs(values).max()) for values in wanted.values())
    for name, values in found.items():
        # Without a value: the loss does not depend on it.
        expected = wanted.get(name, np.zeros(values.shape)).reshape(values.shape)
        absolute = 2e-5 * float(np.abs(expected).max()) + 1e-6 * largest
        assert_close(values, expected, relative=1e-4, absolute=absolute, what=f"{what}: {name}")


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPARED_GRAPHS)
def test_gradients_of_known_graphs_against_pytorch(device: Device, name: str) -> None:
    pytest.importorskip("torch")
    model = model_of(KNOWN_GRAPHS[name]())
    x, labels = batch_of(model.graph, CrossEntropy())
    before = model.weights
    found = model.gradients(x, labels, seed=SEED, device=device, debug=True)
    _, wanted = torch_gradients(model.graph, model.weights, x, labels, CrossEntropy(), SEED)
    assert set(found) == {name for name, spec in model.graph.named_parameters.items() if spec.trainable} | {"input"}
    assert_gradients(found, wanted, name)
    for parameter, values in model.weights.items():
        assert np.array_equal(values, before[parameter]), "the weights stay as they are"


def test_gradients_in_tf32_against_pytorch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = Device.tuning.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Device, "tuning", property(lambda self: only(tuning(self), "tensor")))
    pytest.importorskip("torch")
    images = layers.Input(16, 9, 9)()
    node = layers.Conv2D(64, 3, padding=1, activation="tanh")(images)
    model = model_of(from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node))))
    x, labels = batch_of(model.graph, CrossEntropy())
    try:
        found = model.gradients(x, labels, device=device, debug=True, precision="tf32")
    except DeviceError as error:
        pytest.skip(str(error))
    _, wanted = torch_gradients(model.graph, model.weights, x, labels, CrossEntropy())
    for name, values in found.items():
        expected = wanted[name].reshape(values.shape)
        error = np.linalg.norm(values - expected) / np.linalg.norm(expected)
        # Of the convolution's own arrays, tf32 makes 2^-12 or so; fp32 would make 1e-6.
        assert error < 2e-3, name
        assert not name.startswith("conv2d_1/weight") or error > 1e-5, name
    monkeypatch.undo()
    assert_gradients(model.gradients(x, labels, device=device), wanted, "fp32 again")


def test_gradients_with_the_kernels_of_gpus(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    model = model_of(KNOWN_GRAPHS["many units"]())
    x, labels = batch_of(model.graph, CrossEntropy())
    # By minimal filtering.
    tuning = tuning_for("gpu", only={"winograd", "strip", "dense_direct"})
    monkeypatch.setattr(Device, "tuning", property(lambda self: tuning))
    # Arrays in parts, that other layers' arrays share.
    found = model.gradients(x, labels, seed=SEED, device=device)
    _, wanted = torch_gradients(model.graph, model.weights, x, labels, CrossEntropy(), SEED)
    assert_gradients(found, wanted, "many units")


@pytest.mark.parametrize("way", ["tiled", "tensor", "winograd"])
def test_launches_that_do_the_work_of_several_give_the_same_bits(
    device: Device, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_small_tiles(monkeypatch)
    tuning = tuning_for("gpu", only={way, "dense_direct"}, precision="tf32" if way == "tensor" else "fp32")
    monkeypatch.setattr(Device, "tuning", property(lambda self: tuning))
    node = images = layers.Input(9, 9, 8)()
    for groups in (1, 3, 1):
        node = layers.Conv2D(15, 3, padding=1, groups=groups)(node)
    model = model_of(from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node))))
    x, labels = batch_of(model.graph, CrossEntropy())
    try:
        found = model.gradients(x, labels, device=device, debug=True)
    except DeviceError as error:  # The tiles of tensor cores are larger than the least of devices allows.
        pytest.skip(str(error))
    monkeypatch.setattr(combining, "MAX_BYTES", 0)
    wanted = model.gradients(x, labels, device=device, debug=True)
    for name, values in wanted.items():
        assert np.array_equal(found[name], values), name

    def kernels(most: int) -> list[str]:
        monkeypatch.setattr(combining, "MAX_BYTES", most)
        plan = make_plan(model.graph, COUNT, training=True, loss=CrossEntropy(), input_delta=True, tuning=tuning)
        return [call.source.name for _, call in plan.calls if call.combines]

    kernel = {"tiled": "pack_weight", "tensor": "pack_weight_tensor", "winograd": "winograd_weight"}[way]
    assert {f"convolution/{kernel}_several", "gradient/reduce_several"} <= set(kernels(1 << 20))
    assert not kernels(0)


def test_gradients_of_a_random_graph_against_pytorch(device: Device) -> None:
    pytest.importorskip("torch")
    model = model_of(random_graph(4, steps=9))
    for loss in (MeanSquaredError(), BinaryCrossEntropy()):
        x, labels = batch_of(model.graph, loss)
        found = model.gradients(x, labels, loss=loss, seed=SEED, device=device)
        _, wanted = torch_gradients(model.graph, model.weights, x, labels, loss, SEED)
        assert_gradients(found, wanted, type(loss).__name__)


def test_gradients_of_a_class_for_each_position(device: Device) -> None:
    """Positions to ignore, in numbers that differ from sample to sample, against PyTorch."""
    torch = pytest.importorskip("torch")
    source = layers.Input(2, 5, 7)()
    model = model_of(from_nodes(source, layers.Conv2D(4, 1)(layers.Conv2D(3, 3, padding=1, activation="tanh")(source))))
    random = np.random.default_rng(11)
    x = random.standard_normal((3, 2, 5, 7)).astype(np.float32)
    labels = random.integers(0, 4, (3, 5, 7))
    labels[0, :3], labels[1, 2, 4] = 2, 2
    loss = CrossEntropy(0.1, ignore=2)
    found = model.gradients(x, labels, loss=loss, device=device, debug=True)
    weights = {
        name: torch.tensor(values.astype(np.float64), requires_grad=True) for name, values in model.weights.items()
    }
    samples = torch.tensor(x.astype(np.float64), requires_grad=True)
    shape, function = (1, -1, 1, 1), torch.nn.functional
    node = (samples - weights["input_1/mean"].reshape(shape)) / weights["input_1/deviation"].reshape(shape)
    node = torch.tanh(function.conv2d(node, weights["conv2d_1/weight"], weights["conv2d_1/bias"], padding=1))
    node = function.conv2d(node, weights["conv2d_2/weight"], weights["conv2d_2/bias"])
    function.cross_entropy(node, torch.tensor(labels), ignore_index=2, label_smoothing=0.1).backward()
    wanted = {name: weights[name].grad.numpy() for name in found if name != "input"} | {"input": samples.grad.numpy()}
    assert_gradients(found, wanted, "positions")
    expected = float(function.cross_entropy(node.detach(), torch.tensor(labels), ignore_index=2, label_smoothing=0.1))
    measured = model.evaluate(x, labels, loss=loss, batch_size=2, device=device)
    assert measured["loss"] == pytest.approx(expected, rel=1e-5)
    is_right = (node.detach().numpy().argmax(axis=1) == labels)[labels != 2]
    assert measured["accuracy"] == pytest.approx(is_right.mean(), rel=1e-5)


# NumPy takes too long for many units.
@pytest.mark.parametrize("name", [name for name in COMPARED_GRAPHS if name != "many units"])
def test_gradients_against_central_differences(device: Device, name: str) -> None:
    model = model_of(KNOWN_GRAPHS[name]())
    assert_central_differences(device, model, *batch_of(model.graph, CrossEntropy()))


def assert_central_differences(device: Device, model: Model, x: FloatArray, labels: Any) -> None:
    """The gradients that the device gives are the slopes of the loss in float64."""
    found = model.gradients(x, labels, seed=SEED, device=device)
    arrays = {key: values.astype(np.float64) for key, values in model.weights.items()} | {"input": x.astype(np.float64)}

    def loss() -> float:
        output = run(model.graph, arrays, arrays["input"], training=True, seed=SEED)
        return cross_entropy(output.reshape(len(output), -1), labels)[0]

    random, step = np.random.default_rng(1), 1e-5
    for key, gradient in found.items():
        scale = max(float(np.abs(gradient).max()), 1e-3)
        flat = arrays[key].reshape(-1)
        for index in random.choice(flat.size, min(flat.size, 6), replace=False):
            value = flat[index]
            sides = []
            for moved in (value + step, value - step):
                flat[index] = moved
                sides.append(loss())
            flat[index] = value
            slope = (sides[0] - sides[1]) / (2 * step)
            assert abs(gradient.reshape(-1)[index] - slope) <= 1e-4 * scale + 1e-6, f"{key}[{index}]"


def chains(seed: int) -> Graph:
    """Chains of layers of single values, in any order, behind products, pools and concats of odd sizes."""
    random = np.random.default_rng([41, seed])
    units = int(random.integers(2, 6))
    images = layers.Input(2, *random.integers(3, 7, 2).tolist())()
    earlier = [layers.Conv2D(units, 1)(images)]

    def behind(node: layers.Node, others: list[layers.Node]) -> layers.Node:
        for _ in range(int(random.integers(2, 6))):
            kind = str(random.choice(["activation", "norm", "prelu", "add", "multiply", "gates", "mask", "dropout"]))
            if kind == "activation":
                function = str(
                    random.choice(["relu", "tanh", "gelu", "sigmoid", "elu", "relu(0.7)", "leaky_relu(0.3)"])
                )
                node = layers.Activation(function)(node)
            elif kind in ("norm", "prelu"):
                node = (layers.BatchNorm() if kind == "norm" else layers.PReLU())(node)
            elif kind == "dropout":
                node = layers.Dropout(0.25)(node)
            elif others:
                joining = [node, others[int(random.integers(len(others)))]]
                if kind == "gates":
                    joining[1] = layers.Activation("sigmoid")(layers.GlobalAveragePool()(joining[1]))
                elif kind == "mask":
                    joining[1] = layers.Conv2D(1, 1)(joining[1])
                join = layers.Multiply() if kind == "multiply" or random.integers(2) else layers.Add()
                node = join([joining[i] for i in random.permutation(2)])
        return node

    for size in (3, 1):
        source = earlier[int(random.integers(len(earlier)))]
        kind = str(random.choice(["convolution", "pool", "concat"]))
        head = layers.Conv2D(units, size, padding="same", bias=bool(random.integers(2)))(source)
        if kind == "pool":
            head = layers.MaxPool2D(3, 1, padding=1)(head)
        elif kind == "concat":
            head = layers.Concat()(
                [layers.Conv2D(1, 1)(source), layers.AveragePool2D(1)(layers.Conv2D(units - 1, 1)(head))]
            )
        earlier.append(behind(head, earlier))
    return from_nodes(images, layers.Dense(3)(behind(layers.Dense(7)(earlier[-1]), [])))


@pytest.mark.parametrize("seed", range(12))
def test_chains_behind_products_in_any_order(device: Device, seed: int) -> None:
    model = model_of(chains(seed))
    x, labels = batch_of(model.graph, CrossEntropy())
    arrays = {key: values.astype(np.float64) for key, values in model.weights.items()}
    wanted = run(model.graph, arrays, x.astype(np.float64), training=False)
    assert_close(
        model.predict(x, device=device), wanted.reshape(COUNT, -1), relative=2e-5, absolute=2e-5, what="output"
    )
    plan = model.plan(COUNT, training=False, device_class=kind_of(device))
    # What one kernel cannot do is launched: at most one other blob a product, none of a dense layer or a pool.
    alone = {"Activation", "BatchNorm", "PReLU", "Dropout"}
    behind = {vertex.name for vertex in model.graph.vertices if vertex.layer.kind in alone}
    read_once = {vertex.name for vertex in model.graph.vertices if len(model.graph.readers[vertex.index]) == 1}
    sources = {vertex.name: model.graph.vertices[vertex.inputs[0]].name for vertex in model.graph.vertices[1:]}
    heads = "conv", "dense", "maxpool", "concat"
    first = {name for name in behind if sources[name] in read_once and sources[name].startswith(heads)}
    assert first <= set(plan.fused)
    assert_central_differences(device, model, x, labels)


def test_gradients_are_those_of_the_normalised_samples(device: Device) -> None:
    graph = KNOWN_GRAPHS["vectors"]()
    model = model_of(graph)
    x, labels = batch_of(graph, CrossEntropy())
    plain = model.gradients(x, labels, device=device)
    mean, deviation = np.arange(5.0), np.array([0.5, 1, 2, 4, 8.0])
    model.set_normalization(mean, deviation)
    old = model_of(graph).weights
    raw = ((x - old["input_1/mean"]) / old["input_1/deviation"] * deviation + mean).astype(np.float32)
    scaled = model.gradients(raw, labels, device=device)
    # dL/dx = dL/d normalised / deviation, before and after.
    wanted = {"input": plain["input"] * old["input_1/deviation"]}
    assert_gradients({"input": scaled["input"] * deviation}, wanted, "input")


# -- plans -------------------------------------------------------------------------------------------------------------


def planned(model: Model, loss: Loss, device: Device, *, training: bool, share: bool, reuse: bool) -> Plan:
    return make_plan(
        model.graph,
        COUNT + 1,
        loss=loss,
        training=training,
        input_delta=training,
        tuning=device.tuning,
        share=share,
        reuse=reuse,
    )


def outcome(
    device: Device, plan: Plan, model: Model, x: FloatArray, labels: Any, *, debug: bool
) -> dict[str, FloatArray]:
    """What a plan computes, in memory that another batch has used before: output, totals, gradients, dL/d input."""
    executor = Executor(device, plan, debug=debug)
    loss = plan.request.loss
    assert loss is not None
    step = np.array([SEED & 0xFFFFFFFF, SEED >> 32, 7] + [0] * (STEP_WORDS - 3), np.uint32)
    executor.write_array("step", step)
    labels = np.asarray(labels, np.int32 if loss.takes_classes else np.float32)
    executor.write_array("parameters", plan.request.parameters.pack(model.weights))
    executor.prepare(version=0)
    for factor in (-3, 1):
        executor.write_array("parameters", plan.request.parameters.pack(model.weights))
        executor.write_array("samples", factor * x)
        executor.write_array("labels", labels)
        device.memory.fill_zero(executor.buffers["totals"], 4 * (Loss.SAMPLE_METRICS + 1))
        for phase in ("forward", "loss"):
            executor.run(phase, len(x))
        output = executor.read_blob(plan.outputs[plan.request.graph.output.name], len(x))
        executor.run("backward", len(x))
    found = {"output": output, "totals": device.memory.read(executor.buffers["totals"], Loss.SAMPLE_METRICS + 1)}
    # With the running statistics of batch norms.
    found |= plan.request.parameters.unpack(
        device.memory.read(executor.buffers["parameters"], plan.request.parameters.elements)
    )
    if plan.request.training:
        gradients = device.memory.read(executor.buffers["gradients"], plan.request.parameters.trainable_elements)
        found |= {
            f"gradient of {name}": values
            for name, values in plan.request.parameters.unpack_gradients(gradients).items()
        }
        found["dL/d input"] = executor.read_blob(plan.deltas[plan.request.graph.input.name], len(x))
    return found


def assert_same_results(device: Device, graph: Graph, loss: Loss, *, training: bool, debug: bool = False) -> None:
    """The same bits wherever the same kernels run. Without sharing, layers that a kernel would have taken on launch
    themselves: a product is rounded before it is stored that a compiler may have contracted with a sum.
    """
    model = model_of(graph)
    x, labels = batch_of(graph, loss)
    first: dict[str, FloatArray] = {}
    for share, reuse in ((True, True), (True, False), (False, True)):
        plan = planned(model, loss, device, training=training, share=share, reuse=reuse)
        found = outcome(device, plan, model, x, labels, debug=debug)
        first = first or found
        if share:
            differing = [name for name, values in found.items() if values.tobytes() != first[name].tobytes()]
            assert not differing, f"share={share}, reuse={reuse}: other bits than with both in {differing}"
        else:
            assert_gradients(found, first, "not shared")


@pytest.mark.parametrize("name", ["fourier", "winograd", "tiled", "patches"])
def test_a_sample_has_the_same_bits_beside_others(device: Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    take_small_tiles(monkeypatch)
    images = layers.Input(2, 9, 7)()
    graph = from_nodes(images, layers.Conv2D(3, 4, padding=2)(layers.Conv2D(4, 5, padding=2)(images)))
    model, loss = model_of(graph), MeanSquaredError()
    x, labels = batch_of(graph, loss)
    kind = "cpu" if name == "patches" else "gpu"
    tuning = tuning_for(kind, group_size=device.largest_group, only={name})
    plan = make_plan(graph, COUNT + 1, tuning=tuning, loss=loss, training=True, input_delta=True)
    assert any(call.way and call.way.variant.startswith(name) for _, call in plan.calls)
    others = np.concatenate([x[:1], 1e4 * x[1:]])
    first, second = (outcome(device, plan, model, batch, labels, debug=False) for batch in (x, others))
    for what in ("output", "dL/d input"):
        assert first[what][0].tobytes() == second[what][0].tobytes()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("kind", "way", "kernel"), [("gpu", "winograd", "patch"), ("cpu", "patches", "rows")])
def test_minimal_filtering_has_the_same_results_without_halos(device: Device, kind: str, way: str, kernel: str) -> None:
    """Its kernels, and a bias's gradient, read data cells alone: other bits would come from what lies behind a row."""
    images = layers.Input(2, 9, 7)()
    node = layers.Activation("relu")(layers.Conv2D(8, 3, padding=1)(layers.Conv2D(16, 3, padding=1)(images)))
    graph = from_nodes(images, layers.Conv2D(3, 3, padding=1)(layers.MaxPool2D(3, 2, padding=1)(node)))
    model, loss = model_of(graph), MeanSquaredError()
    x, labels = batch_of(graph, loss)
    tuning = tuning_for(kind, group_size=device.largest_group, only={way})
    found = []
    for every_halo in (False, True):
        settings = {"loss": loss, "training": True, "input_delta": True, "every_halo": every_halo}
        plan = make_plan(graph, COUNT + 1, tuning=tuning, **settings)
        assert any(call.kernel == f"convolution/winograd_{kernel}" for _, call in plan.calls)
        padded = [blob for blob in plan.outputs.values() if not blob.layout.is_contiguous]
        assert bool(padded) == every_halo
        found.append(outcome(device, plan, model, x, labels, debug=True))
    differing = [name for name, values in found[0].items() if values.tobytes() != found[1][name].tobytes()]
    assert not differing


@pytest.mark.long
@pytest.mark.parametrize("name", JOINED)
def test_known_graphs_have_the_same_results_however_planned(device: Device, name: str) -> None:
    assert_same_results(device, KNOWN_GRAPHS[name](), CrossEntropy(), training=True, debug=name == "residual")


@pytest.mark.parametrize("name", JOINED)
def test_inference_has_the_same_results_however_planned(device: Device, name: str) -> None:
    # Without shared memory nothing is in place, so that nothing is fused either.
    assert_same_results(device, KNOWN_GRAPHS[name](), CrossEntropy(), training=False, debug=name == "residual")


@pytest.mark.parametrize("name", ["lenet5", "fashion_cnn", "resnet8"])
def test_shipped_models_have_no_copies_for_any_input(device: Device, name: str) -> None:
    make = getattr(models, name)
    for shape in ((1, 8, 8), (1, 28, 28), (3, 32, 32)):
        model = make(shape, 10)
        for training in (True, False):
            assert model.plan(16, training=training, device_class=kind_of(device)).copies == []


def test_a_plan_is_what_is_allocated(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = []
    allocate = Memory.allocate_together

    def recorded(self: Memory, sizes: Sequence[int]) -> list[Any]:
        allocated.extend(sizes)
        return allocate(self, sizes)

    monkeypatch.setattr(Memory, "allocate_together", recorded)
    model = model_of(KNOWN_GRAPHS["plain"]())
    plan = planned(model, CrossEntropy(), device, training=True, share=True, reuse=True)
    Executor(device, plan)
    assert sum(allocated) == plan.bytes()
    assert max(allocated) == plan.largest_allocation()
    allocated.clear()
    optimizer = optimizers.Adam(clip_norm=1.0)
    settings = TrainingSettings(loss=CrossEntropy(), optimizer=optimizer, batch_size=COUNT)
    step = TrainingStep(device, model.graph, model.weights, settings)
    state = 4 * (sum(optimizer.memory(step.parameters.table).values()) + MAX_PARTIALS)
    assert sum(allocated) == step.plan.bytes() + state == step.bytes


def test_convolution_wider_than_its_input(device: Device) -> None:
    """A column of cells, padded: the input's pitch must hold a row of the output."""
    inputs = layers.Input(2, 5, 1)()
    model = model_of(from_nodes(inputs, layers.Conv2D(3, 1, padding=1)(inputs)))
    x, _ = batch_of(model.graph, MeanSquaredError())
    expected = run(model.graph, model.weights, x, training=False)
    assert_close(model.predict(x, device=device), expected, relative=1e-6, absolute=1e-6, what="output")


def test_memory_of_layers_with_similar_names() -> None:
    """'a weight' is a layer's name and 'weight partials' an array's: they must not meet."""
    rows = layers.Input(4, 6, 6)()
    node = layers.BatchNorm(name="a weight")(layers.Conv2D(4, 3, padding=1, name="a")(rows))
    plan = Model(rows, layers.Dense(2)(node)).plan(2)
    own = {array.storage for _, call in plan.calls for array in call.arrays.values() if not array.persistent}
    assert {"a/weight partials", "a weight/partials"} <= own


# -- dropout -----------------------------------------------------------------------------------------------------------


def test_dropout_gradients_have_the_mask_of_the_layer(device: Device) -> None:
    rows = layers.Input(40)()
    graph = from_nodes(rows, layers.Dropout(0.5)(layers.Dropout(0.25)(rows)))
    model = Model.__new__(Model)
    model._start(graph, (), 0)
    x, labels = np.ones((3, 40), np.float32), np.zeros((3, 40), np.float32)
    found = model.gradients(x, labels, loss=MeanSquaredError(), seed=SEED, device=device)["input"]
    mask = dropout_mask(SEED, 0, 1, 3, 40, 0.25) * dropout_mask(SEED, 0, 2, 3, 40, 0.5)
    assert_close(found, 2 * mask**2 / (3 * 40), relative=1e-6, absolute=1e-9, what="dL/d input")
