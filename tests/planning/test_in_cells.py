"""Plans whose blobs have cells for elements, against the same networks with numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import blobnet.device.device
from blobnet import layers
from blobnet.device.device import Device
from blobnet.examination.checks import checks_of_plan
from blobnet.examination.examination import OK, examine
from blobnet.implementations.base import DIRECTIONS
from blobnet.launch.task import BrokenVariant
from blobnet.layers import Node
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import BFLOAT16, BFLOAT16_CELLS, CELLS_OF, FLOAT32_CELLS, StorageType
from blobnet.model import Model
from blobnet.planning import make_plan, settling
from blobnet.planning.plan import Plan
from blobnet.planning.request import Request
from blobnet.planning.schedule import Scheduled
from tests.kinds import as_gpu, only, tuning_for
from tests.train.test_shards_at_once import check_that_shards_leave_the_same_bits

#: The samples of a batch, and their shape.
COUNT, SIDE = 5, 9


def without_norms(images: Node) -> Node:
    """Biases, pools, a concat, groups and strides; 12 units are no whole cells, nor are 20."""
    node = layers.Conv2D(16, 3, padding=1, activation="relu")(images)
    node = layers.MaxPool2D(3, 2, 1)(node)
    left = layers.Conv2D(8, 1, activation="tanh")(node)
    right = layers.Conv2D(32, 3, padding=1, groups=2, activation="relu")(node)
    node = layers.Concat()([left, right])
    node = layers.Conv2D(16, (3, 2), padding=((1, 1), (1, 0)), activation="silu")(node)
    node = layers.AveragePool2D(2, 1)(node)
    node = layers.Conv2D(12, 1)(node)
    node = layers.Conv2D(20, 2, activation="relu")(node)
    return layers.Dense(7)(layers.Flatten()(node))


def residual(images: Node) -> Node:
    """What residual networks have, with a stride, and norms."""

    def block(node: Node, units: int, stride: int) -> Node:
        made = layers.Activation("relu")(layers.BatchNorm()(layers.Conv2D(units // 2, 1, bias=False)(node)))
        made = layers.BatchNorm()(layers.Conv2D(units // 2, 3, stride, padding=1, bias=False)(made))
        made = layers.BatchNorm()(layers.Conv2D(units, 1, bias=False)(layers.Activation("relu")(made)))
        if stride > 1 or node.shape.units != units:
            node = layers.BatchNorm()(layers.Conv2D(units, 1, stride, bias=False)(node))
        return layers.Activation("relu")(made + node)

    node = layers.Activation("relu")(layers.BatchNorm()(layers.Conv2D(16, 3, padding=1, bias=False)(images)))
    for units, stride in ((16, 1), (32, 2), (32, 1)):
        node = block(node, units, stride)
    return layers.Dense(7)(layers.GlobalAveragePool()(node))


def separable(images: Node) -> Node:
    """Depthwise convolutions between others, with a stride."""
    node = layers.Conv2D(16, 3, padding=1, activation="relu6")(images)
    for stride in (1, 2):
        node = layers.Conv2D(node.shape.units, 3, stride, padding=1, groups=node.shape.units, activation="relu6")(node)
        node = layers.Conv2D(24, 1, activation="silu")(node)
    return layers.Dense(7)(layers.GlobalAveragePool()(node))


def compiled(images: Node) -> Node:
    """Layers that have no kernels of their own: gates of units, norms of units and groups, other planes."""
    node = layers.Conv2D(16, 3, padding=1, activation="gelu")(images)
    node = layers.SqueezeExcite(8)(layers.LayerNorm()(node))
    gate = layers.Dense(16, activation="sigmoid")(layers.GlobalAveragePool()(node))
    node = layers.Conv2D(16, 3, padding=1)(layers.PReLU()(layers.Multiply()([gate, node])))
    node = layers.InstanceNorm()(layers.GroupNorm(2)(layers.Upsample(2)(node)))
    node = layers.Conv2D(24, 3, padding=1)(layers.Scale()(node))
    return layers.Dense(7)(layers.GlobalMaxPool()(node))


#: By how much of the largest value results may differ.
APART = {
    "bf16": {"without norms": 2.0**-20, "residual": 2.0**-7, "separable": 2.0**-3, "compiled": 2.0**-4},
    # Cells are rounded, numbers are not: of the residual network those are up to 0.1 from float32 themselves.
    "tf32": {"without norms": 2.0**-8, "residual": 2.0**-1, "separable": 2.0**-8, "compiled": 2.0**-4},
}
NETWORKS: dict[str, Callable[[Node], Node]] = {
    "without norms": without_norms,
    "residual": residual,
    "separable": separable,
    "compiled": compiled,
}


def model_of(name: str) -> Model:
    images = layers.Input(3, SIDE, SIDE)()
    return Model(images, NETWORKS[name](images), seed=3)


def prefer_cells(request: Request, calls: Sequence[Scheduled]) -> float:
    """A cost that is less the more blobs have cells."""
    return -sum(blob.type.cell for item in calls for blob in item.call.blobs.values())


@pytest.fixture
def takes(device: Device, monkeypatch: pytest.MonkeyPatch) -> Callable[[StorageType | None], Device]:
    """The device as a GPU with tensor cores that take cells, whose plans have blobs of cells or not.

    They have cells wherever these can be, though small networks take longer with them.
    """
    as_gpu(monkeypatch, device)
    monkeypatch.setattr(blobnet.device.device, "check_precision", lambda info, precision: None)
    monkeypatch.setattr(settling, "_cost", prefer_cells)
    own = Device.tuning
    assert isinstance(own, property)
    asked: list[StorageType | None] = [None]

    def tuning(self: Device) -> Any:
        made = only(replace(own.__get__(self), precision=self.precision), "cells", "cellwise")
        return replace(made, cells=asked[0] if self.precision in APART else None)

    monkeypatch.setattr(Device, "tuning", property(tuning))

    def with_cells(cells: StorageType | None) -> Device:
        asked[0] = cells
        return device

    return with_cells


@pytest.mark.parametrize("precision", APART)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_predictions(takes: Callable[[StorageType | None], Device], name: str, precision: str) -> None:
    """They are those of blobs of numbers, but for rounding where sums have another order, as those of norms have.

    A sum of a norm that rounds the other way moves what follows, and a network multiplies that: of three batches the
    one that agrees best counts. Depthwise kernels for cells do not round weights to bfloat16; those for numbers do.
    """

    def worst(seed: int) -> tuple[float, str]:
        """Return by how much of the largest value results differ, and where."""
        generator = np.random.default_rng(seed)
        x = generator.standard_normal((COUNT, 3, SIDE, SIDE)).astype(np.float32)
        y = generator.integers(0, 7, COUNT)
        found = []
        for kind in (None, CELLS_OF[precision]):
            model, device = model_of(name), takes(kind)
            made = model.gradients(x, y, loss="cross_entropy", device=device, precision=precision, debug=True)
            made["prediction"] = model.predict(x, device=device, precision=precision, batch_size=3)
            found.append(made)
        plain, in_cells = found
        # What is 0 but for rounding: the gradients of shifts before other norms.
        noise = (precision == "tf32") * 2.0**-9 * max(float(np.abs(values).max()) for values in plain.values())
        apart = []
        for key, values in plain.items():
            most = float(np.abs(in_cells[key] - values).max())
            assert np.isfinite(most), key
            size = max(noise, float(np.abs(values).max()))
            # What is 0 must be 0.
            apart.append((most / size if size else np.sign(most), key))
        return max(apart)

    apart, where = min(worst(seed) for seed in range(3 if name == "residual" else 1))
    assert apart <= APART[precision][name], where


@pytest.mark.parametrize("name", ["residual", "compiled"])
def test_shards_at_once_leave_the_bits_of_each(takes: Callable[[StorageType | None], Device], name: str) -> None:
    """A kernel moves to a shard's part of a blob by cells, or by their numbers if the compiler made it."""
    device = takes(BFLOAT16_CELLS).at("bf16")
    check_that_shards_leave_the_same_bits(device, model_of(name), device.tuning)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_has_cells(takes: Callable[[StorageType | None], Device], name: str, training: bool) -> None:
    """All between two products whose units fill them; what has none is packed alone."""

    def made_with(cells: StorageType | None) -> Plan:
        tuning = takes(cells).at("bf16").tuning
        more: dict[str, Any] = {"training": True, "loss": CrossEntropy()} if training else {}
        return make_plan(model_of(name).graph, COUNT, tuning=tuning, **more)

    plain, made = made_with(None), made_with(BFLOAT16_CELLS)
    assert all(blob.type.cell == 1 for blob in plain.outputs.values())
    others = {
        "without norms": {"conv2d_5", "conv2d_6", "conv2d_6_relu", "flatten_1"},  # Of 12 and 20 units.
        "compiled": {"dense_1_sigmoid", "dense_2", "globalaveragepool_1", "globalmaxpool_1"},
    }.get(name, {"globalaveragepool_1"})
    assert {layer for layer, blob in made.outputs.items() if blob.type.cell == 1} == {"input_1", "dense_1", *others}
    packed = {call.label for _, call in made.calls if call.kernel == "convolution/pack_cells"}
    numbers = {"conv2d_1", *(["conv2d_6"] if name == "without norms" else [])}
    assert {label.partition(" ")[0] for label in packed if "forward" in label} == numbers
    assert not any("backward data" in label for label in packed if not label.startswith(("conv2d_5", "conv2d_6")))


def test_layers_without_cells_keep_others_from_them(takes: Callable[[StorageType | None], Device]) -> None:
    """A softmax over units, and what it lies in place of."""
    images = layers.Input(8, SIDE, SIDE)()
    first = layers.Conv2D(16, 3)(images)
    second = layers.Conv2D(16, 3)(layers.Activation("softmax")(layers.Activation("relu")(first)))
    third = layers.Conv2D(8, 1)(layers.Activation("relu")(second))
    model = Model(images, layers.GlobalAveragePool()(third))
    made = make_plan(model.graph, COUNT, tuning=takes(BFLOAT16_CELLS).at("bf16").tuning)
    cells = {name: blob.type.cell for name, blob in made.outputs.items()}
    assert cells == {
        "input_1": 1,
        "conv2d_1": 1,
        "activation_2": 1,
        "activation_1": 1,
        "conv2d_2": 8,
        "activation_3": 8,
        "conv2d_3": 8,
        "globalaveragepool_1": 1,
    }


def test_cells_must_save_more_than_they_cost() -> None:
    """Products of few positions take less time in other ways, of many with cells."""
    tuning = tuning_for("gpu", compute_units=132, capability=(9, 0), precision="bf16", storage=BFLOAT16)
    tuning = replace(tuning, cells=BFLOAT16_CELLS)
    images = layers.Input(8, 20, 20)()
    node = layers.Conv2D(64, 3)(layers.Conv2D(64, 3)(layers.Conv2D(64, 3)(images)))
    graph = Model(images, layers.GlobalAveragePool()(node)).graph

    def has_cells(count: int) -> bool:
        return any(blob.type.cell > 1 for blob in make_plan(graph, count, tuning=tuning).outputs.values())

    assert not has_cells(1)
    assert has_cells(1 << 10)


@pytest.mark.parametrize(("count", "units", "launches"), [(8, 16, 2), (128, 16, 6), (128, 2048, 2), (512, 2048, 6)])
def test_one_launch_normalizes_few_cells_or_many_units(
    count: int, units: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 units there are two groups, which others do not wait long for where a unit has 8 * 28 * 28 cells."""
    tuning = tuning_for(
        "gpu", compute_units=132, capability=(9, 0), precision="bf16", storage=BFLOAT16, group_size=1024
    )
    monkeypatch.setattr(settling, "_cost", prefer_cells)
    side = 28 if units == 16 else 14
    images = layers.Input(8, side, side)()
    norm = layers.BatchNorm()(layers.Conv2D(units, 3, padding=1)(images))
    graph = Model(images, layers.GlobalAveragePool()(layers.Conv2D(64, 3, padding=1)(norm))).graph
    made = make_plan(graph, count, tuning=replace(tuning, cells=BFLOAT16_CELLS), training=True, loss=CrossEntropy())
    assert made.outputs["batchnorm_1"].type.cell == 8
    assert sum(call.kernel.startswith("normalization/") for _, call in made.calls) == launches


@pytest.mark.parametrize("precision", APART)
def test_ways_are_verified_in_cells(takes: Callable[[StorageType | None], Device], precision: str) -> None:
    """What ``fit(verify=True)`` does with a plan: each way computes a small layer whose blobs have cells, too."""
    device = takes(CELLS_OF[precision]).at(precision)
    checked = set[tuple[str, str]]()
    for name in ("residual", "separable"):
        made = make_plan(model_of(name).graph, COUNT, tuning=device.tuning, training=True, loss=CrossEntropy())
        for check in checks_of_plan(made, ()):
            finding = examine(device, check)
            assert finding.verdict == OK, (check, finding)
            if check.in_cells:
                checked.add((check.way.variant, check.direction))
    assert checked >= set(itertools.product(("cells", "cellwise"), DIRECTIONS))


def test_ways_that_are_broken_are_none(takes: Callable[[StorageType | None], Device]) -> None:
    """Where a driver builds no products of cells, blobs have numbers, and products are others."""
    tuning = takes(BFLOAT16_CELLS).at("bf16").tuning
    broken = frozenset({BrokenVariant.parse("cells")})
    tuning = replace(tuning, choices=replace(tuning.choices, broken=broken, only=frozenset()))
    made = make_plan(model_of("residual").graph, COUNT, tuning=tuning, training=True, loss=CrossEntropy())
    assert {blob.type.cell for blob in made.outputs.values()} == {1}
    assert not any(call.kernel.endswith("_cells") for _, call in made.calls)


def test_what_others_read_may_leave_no_room_for_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pitch that one reader wants makes another one's runs too long to be read as they lie: it packs."""
    monkeypatch.setattr(settling, "_cost", prefer_cells)
    images = layers.Input(8, 6, 232)()
    node = layers.Conv2D(64, 1, activation="relu")(images)
    ends = [layers.Conv2D(64, 3, padding=1)(node), layers.Conv2D(64, (1, 33), padding=(0, 16))(node)]
    graph = Model(images, layers.Dense(3)(layers.GlobalAveragePool()(layers.Add()(ends)))).graph
    tuning = tuning_for("gpu", compute_units=132, capability=(9, 0), precision="bf16", storage=BFLOAT16)
    tuning = replace(tuning, cells=BFLOAT16_CELLS)
    made = make_plan(graph, 64, tuning=tuning, training=True, loss=CrossEntropy())
    assert made.outputs["conv2d_1"].type.cell == 8
    packed = [call.label for _, call in made.calls if call.kernel == "convolution/pack_cells"]
    assert any(label.startswith("conv2d_2 backward weight") for label in packed), packed


@pytest.fixture
def processor(device: Device) -> Device:
    """A device that takes a processor's launches: their work-groups may be long along the units."""
    if not device.is_host:
        pytest.skip("GPUs of NVIDIA take 64 work-items along the units")
    return device


@pytest.mark.parametrize("name", NETWORKS)
def test_predictions_on_processors(processor: Device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of blobs of numbers, which training has."""
    monkeypatch.setattr(settling, "_cost", prefer_cells)
    x = np.random.default_rng(0).standard_normal((COUNT, 3, SIDE, SIDE)).astype(np.float32)
    found = []
    for kind in (None, FLOAT32_CELLS):
        tuning, model = replace(tuning_for("cpu", lanes=16), cells=kind), model_of(name)
        monkeypatch.setattr(Device, "tuning", tuning)
        found.append(model.predict(x, device=processor, batch_size=3))
        cells = {blob.type.cell for blob in make_plan(model.graph, COUNT, tuning=tuning).outputs.values()}
        assert cells == ({1, 8} if kind else {1})
        trained = make_plan(model.graph, COUNT, tuning=tuning, training=True, loss=CrossEntropy())
        assert {blob.type.cell for blob in trained.outputs.values()} == {1}
    plain, in_cells = found
    np.testing.assert_allclose(in_cells, plain, rtol=0, atol=1e-5 * float(np.abs(plain).max()))


@pytest.mark.parametrize("count", [1, 2])
def test_a_transposed_convolution_in_cells(device: Device, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its pieces would leave one another in memory of numbers is asked for, and not taken."""
    monkeypatch.setattr(settling, "_cost", prefer_cells)
    x = np.random.default_rng(1).standard_normal((count, 8, 9, 7)).astype(np.float32)
    found = []
    for kind in (None, FLOAT32_CELLS):
        monkeypatch.setattr(Device, "tuning", replace(tuning_for("cpu", lanes=16), cells=kind))
        images = layers.Input(8, 9, 7)()
        node = layers.ConvTranspose2D(24, 3, 2)(layers.Conv2D(16, 3, padding=1)(images))
        found.append(Model(images, layers.Conv2D(8, 1)(node), seed=3).predict(x, device=device, batch_size=count))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-5 * float(np.abs(found[0]).max()))


@pytest.mark.parametrize(
    ("facts", "precision", "kind"),
    [
        ({"lanes": 16}, "fp32", FLOAT32_CELLS),
        ({"lanes": 8}, "fp32", FLOAT32_CELLS),
        ({"lanes": 4}, "fp32", None),
        ({"lanes": 16}, "bf16", None),
        ({"lanes": 32, "is_simt": True}, "fp32", None),
    ],
)
def test_which_processors_take_cells(
    device: Device, facts: dict[str, Any], precision: str, kind: StorageType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "model", replace(tuning_for("cpu").model, **facts))
    assert device.at(precision).tuning.cells == kind


#: What makes a blob of 16 units, which a kernel computes.
HEADS: dict[str, Callable[[Node], Node]] = {
    "product": layers.Conv2D(16, 3, padding=1),
    "depthwise": layers.Conv2D(16, 3, padding=1, groups=16),
    "norm": layers.BatchNorm(),
    "concat": lambda node: layers.Concat()([layers.Conv2D(8, 1)(node), layers.Conv2D(8, 3, padding=1)(node)]),
}


def beside_numbers(head: str, join: layers.Layer) -> Model:
    """Something in cells that is joined with numbers, one for each of its units, which are there before it."""
    images = layers.Input(16, SIDE, SIDE)()
    node = layers.Conv2D(16, 1)(images)
    gate = layers.Dense(16)(layers.GlobalAveragePool()(node))
    node = layers.Conv2D(8, 3)(join([gate, HEADS[head](node)]))
    return Model(images, layers.Dense(3)(layers.GlobalAveragePool()(node)), seed=2)


@pytest.mark.parametrize("join", [layers.Multiply(), layers.Add()], ids=lambda layer: layer.kind)
@pytest.mark.parametrize("head", HEADS)
def test_numbers_of_units_beside_cells(
    processor: Device, head: str, join: layers.Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_cost", prefer_cells)
    x = np.random.default_rng(1).standard_normal((COUNT, 16, SIDE, SIDE)).astype(np.float32)
    found = []
    for kind in (None, FLOAT32_CELLS):
        monkeypatch.setattr(Device, "tuning", replace(tuning_for("cpu", lanes=16), cells=kind))
        found.append(beside_numbers(head, join).predict(x, device=processor))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-5 * float(np.abs(found[0]).max()))


def test_numbers_of_units_beside_cells_of_tensor_cores(takes: Callable[[StorageType | None], Device]) -> None:
    x = np.random.default_rng(1).standard_normal((COUNT, 16, SIDE, SIDE)).astype(np.float32)
    plain, in_cells = (
        beside_numbers("product", layers.Multiply()).predict(x, device=takes(kind), precision="bf16")
        for kind in (None, BFLOAT16_CELLS)
    )
    np.testing.assert_allclose(in_cells, plain, rtol=0, atol=2.0**-6 * float(np.abs(plain).max()))
