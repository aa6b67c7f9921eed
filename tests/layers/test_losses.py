"""The losses: each sample's loss, the delta, hits and their totals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import Model, Sequential, layers, load
from blobnet.device.device import Device
from blobnet.errors import OptionError, ShapeError
from blobnet.examination.measured import bits, in_memory, poison
from blobnet.examination.reference import losses as reference
from blobnet.execution.executor import Executor
from blobnet.execution.inference import metrics_of
from blobnet.launch.kernel_call import Batch, Blob
from blobnet.losses import (
    BinaryCrossEntropy,
    CenterNet,
    CrossEntropy,
    Dice,
    Expression,
    Focal,
    Huber,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
)
from blobnet.losses.distillation import Distilled
from blobnet.memory.blob import BFLOAT16, FLOAT16, FLOAT32, BlobLayout, FloatArray, Halo, Shape, StorageType
from blobnet.network import graph
from blobnet.network.graph import Graph
from blobnet.network.parameters import ParameterTable
from blobnet.optimizers import SGD
from blobnet.planning import Buffer, Plan, make_plan
from blobnet.planning.request import Request
from tests.kinds import kind_of, tuning_for
from tests.reference import counts
from tests.reference.compare import assert_close

SUMS = Loss.SAMPLE_METRICS  # Numbers of a part; in the totals the samples come last.
LOSS, WEIGHT, RIGHT, FIVE, COUNTED = range(SUMS)
SHAPES = [Shape.flat(7), Shape(3, 4, 5), Shape(2, 9), Shape.flat(1), Shape(3, 2, 4, 5)]


def _name(value: object) -> str:
    """The same in every process."""
    return str(value) if isinstance(value, Loss) else ""


class LossBench:
    """A loss alone, on blobs with random halos, slack and neighbours, NaN wherever it has no business."""

    def __init__(
        self,
        device: Device,
        loss: Loss,
        shape: Shape,
        *,
        delta: bool = True,
        capacity: int = 6,
        kind: str = "",
        storage: StorageType = FLOAT32,
    ) -> None:
        self.device, self.loss, self.capacity = device, loss, capacity
        self._generator = np.random.default_rng(shape.elements)
        self.output, self.delta = (Blob(name, self._layout(shape), type=storage) for name in ("output", "delta"))
        calls = loss.calls(self.output, self.delta if delta else None, tuning_for(kind or kind_of(device)), capacity)
        buffers = {
            "output": Buffer("output", 0, self.output.layout.memory_elements, type=storage),
            "delta": Buffer("delta", 0, self.delta.layout.memory_elements, type=storage),
            **{name: Buffer(name, *sizes) for name, sizes in loss.memory(shape).items()},
        }
        for array in (array for call in calls for array in call.arrays.values() if not array.persistent):
            buffers[array.storage] = Buffer(array.storage, array.elements, array.per_sample)
        plan = Plan(
            Request(Graph(()), capacity, tuning=tuning_for(kind_of(device)), parameters=ParameterTable({}, (), 1)),
            calls=tuple(("loss", call) for call in calls),
            buffers=buffers,
            placed={name: name for name in buffers},
            outputs={},
            deltas={},
        )
        self.executor = Executor(device, plan, debug=True)
        for name in buffers:
            self._write(name, poison(self._elements(name), 0, buffers[name].type))
        self._write("totals", np.zeros(SUMS + 1, np.float32))

    def _layout(self, shape: Shape) -> BlobLayout:
        halo = Halo(*self._generator.integers(0, 3, (3 if shape.rank == 3 else 2, 2)))
        return BlobLayout.padded(shape.with_units(shape.units + 3), halo, slack=3).slice_units(2, shape.units)

    def _elements(self, name: str) -> int:
        buffer = self.executor.plan.buffers[name]
        return buffer.bytes(self.capacity) // buffer.type.itemsize

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        self.device.memory.write(self.executor.buffers[name], values)

    def _clear(self, blob: Blob, count: int) -> FloatArray:
        """A buffer with NaN in all but the halo of the blob's own units."""
        layout, memory = blob.layout, poison(self._elements(blob.storage), 0, blob.type)
        units = memory[: count * layout.memory_elements].reshape(count, layout.unit_memory_count, -1)
        units[:, layout.unit_offset : layout.unit_offset + layout.unit_count, layout.halo_mask()] = 0
        return memory

    def run(
        self,
        values: npt.ArrayLike,
        labels: npt.NDArray[Any],
        sample_weights: npt.ArrayLike = 1,
        class_weights: npt.ArrayLike = 1,
        divisor: float | None = None,
        partner_shares: npt.ArrayLike = 0,
    ) -> tuple[FloatArray, FloatArray]:
        """The metrics of each sample and the delta, for one batch; the totals go on."""
        count, classes = len(labels), self.output.shape.units
        memory = self._clear(self.output, count)
        data = self.output.layout.data(memory, count)
        data[...] = np.asarray(values, np.float32).reshape(data.shape)
        self._write("output", memory)
        before = self._clear(self.delta, count)
        self._write("delta", before)
        size = self.capacity * self.loss.memory(self.output.shape)["sample_metrics"][1]
        self._write("sample_metrics", poison(size))
        self._write("labels", self.loss.device_labels(labels))
        self._write("sample_weights", np.broadcast_to(np.float32(sample_weights), (count,)).copy())
        if self.loss.takes_pairs:
            self._write("partner_shares", np.broadcast_to(np.float32(partner_shares), (count,)).copy())
        if "class_weights" in self.executor.buffers:
            self._write("class_weights", np.broadcast_to(np.float32(class_weights), (classes,)).copy())
        self.executor.run("loss", Batch(count, divisor=divisor))
        self.device.queue.finish()
        metrics = self.device.memory.read(self.executor.buffers["sample_metrics"], size).reshape(
            self.capacity, -1, SUMS
        )
        assert np.isnan(metrics[count:]).all(), "samples that are not in the batch must keep their metrics"
        after = self.device.memory.read(self.executor.buffers["output"], memory.size, memory.dtype)
        assert np.array_equal(bits(after), bits(memory)), "the output must not change"
        after = self.device.memory.read(self.executor.buffers["delta"], before.size, before.dtype)
        delta = self.delta.layout.data(after, count).copy()
        self.delta.layout.data(after, count)[...] = self.delta.layout.data(before, count)
        assert np.array_equal(bits(after), bits(before)), "only the delta's data may change"
        return metrics[:count].sum(axis=1), delta.reshape(np.shape(values))

    def totals(self) -> FloatArray:
        values: FloatArray = self.device.memory.read(self.executor.buffers["totals"], SUMS + 1)
        return values


def check(
    metrics: FloatArray,
    delta: FloatArray,
    values: FloatArray,
    labels: npt.NDArray[Any],
    function: Callable[..., tuple[float, npt.NDArray[np.float64]]],
    absolute: float = 1e-6,
    **options: Any,
) -> None:
    """Asserts that each sample's loss, and the delta of the batch's mean, are those of the reference."""
    single = [function(values[n : n + 1], labels[n : n + 1], **options) for n in range(len(labels))]
    expected = np.array([loss for loss, _ in single])
    assert_close(metrics[:, LOSS], expected, relative=2e-6, absolute=absolute, what="loss of each sample")
    # The mean over the batch, whose mean over a sample's outputs the reference takes too.
    batch = np.concatenate([slope for _, slope in single]) / len(labels)
    assert_close(delta, batch, relative=5e-6, absolute=1e-7, what="delta")


def smoothed_binary_cross_entropy(
    logits: FloatArray, targets: FloatArray, *, smoothing: float
) -> tuple[float, npt.NDArray[np.float64]]:
    return reference.binary_cross_entropy(logits, targets.astype(np.float64) * (1 - smoothing) + smoothing / 2)


def random_batch(shape: Shape, count: int, seed: int, scale: float = 2) -> tuple[FloatArray, FloatArray]:
    """Outputs and targets from 0 to 1."""
    generator = np.random.default_rng(seed)
    size = (count, *in_memory(shape))
    return (scale * generator.standard_normal(size)).astype(np.float32), generator.random(size).astype(np.float32)


# -- cross-entropy from logits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("classes", [2, 3, 10, 101])
def test_cross_entropy(device: Device, classes: int, smoothing: float) -> None:
    generator = np.random.default_rng(classes)
    logits = (3 * generator.standard_normal((5, classes))).astype(np.float32)
    labels = generator.integers(0, classes, 5)
    metrics, delta = LossBench(device, CrossEntropy(smoothing), Shape.flat(classes)).run(logits, labels)
    check(metrics, delta, logits, labels, reference.cross_entropy, label_smoothing=smoothing)
    ranks = counts.ranks(logits.astype(np.float64), labels)
    np.testing.assert_array_equal(metrics[:, RIGHT], ranks < 1)
    np.testing.assert_array_equal(metrics[:, FIVE], ranks < 5)
    np.testing.assert_array_equal(metrics[:, [WEIGHT, COUNTED]], 1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_extreme_logits(device: Device, smoothing: float) -> None:
    logits = np.array(
        [
            [100, -100, 0],
            [-1e4, 1e4, 0],
            [1e4, 1e4 + 1, 1e4 - 1],
            [-3e4, -3e4 - 0.5, -3e4 - 2],
            [0, 0, 0],
            [1e30, -1e30, 0],
        ],
        np.float32,
    )
    bench = LossBench(device, CrossEntropy(smoothing), Shape.flat(3))
    for label in range(3):
        labels = np.full(len(logits), label)
        metrics, delta = bench.run(logits, labels)
        assert np.isfinite(metrics).all()
        check(metrics, delta, logits, labels, reference.cross_entropy, label_smoothing=smoothing)


def test_a_masked_class(device: Device) -> None:
    logits = np.array([[1, -np.inf, 2], [-np.inf, 0, -np.inf]], np.float32)
    metrics, delta = LossBench(device, CrossEntropy(), Shape.flat(3)).run(logits, np.array([0, 1]))
    assert_close(metrics[:, 0], np.array([np.log1p(np.e), 0]), relative=1e-6, absolute=1e-7, what="loss")
    right = 1 / (1 + np.e)
    expected = np.array([[right - 1, 0, 1 - right], [0, 0, 0]]) / 2
    assert_close(delta, expected, relative=1e-5, absolute=1e-7, what="delta")


def test_of_equal_logits_the_first_wins(device: Device) -> None:
    logits = np.zeros((5, 8), np.float32)
    logits[1, 3] = logits[1, 6] = 1
    logits[2] = np.arange(8) // 2
    labels = np.array([0, 6, 0, 4, 5])
    metrics, _ = LossBench(device, CrossEntropy(), Shape.flat(8)).run(logits, labels)
    ranks = counts.ranks(logits.astype(np.float64), labels)
    assert list(ranks) == [0, 1, 6, 4, 5]
    np.testing.assert_array_equal(metrics[:, [RIGHT, FIVE]], [[1, 1], [0, 1], [0, 0], [0, 1], [0, 0]])


def test_fewer_than_five_classes_are_always_among_the_best_five(device: Device) -> None:
    logits = np.array([[3, 2, 1], [1, 2, 3]], np.float32)
    metrics, _ = LossBench(device, CrossEntropy(), Shape.flat(3)).run(logits, np.array([2, 2]))
    np.testing.assert_array_equal(metrics[:, [RIGHT, FIVE]], [[0, 1], [1, 1]])


@pytest.mark.parametrize(("classes", "kind"), [(3, "cpu"), (9, "cpu"), (135, "gpu")])
def test_logits_that_are_not_numbers_are_wrong(device: Device, classes: int, kind: str) -> None:
    logits = np.zeros((4, classes), np.float32)
    logits[0] = np.nan
    logits[1, 0] = np.nan
    logits[2, classes - 1] = np.nan
    logits[3, 0] = 1
    metrics, _ = LossBench(device, CrossEntropy(), Shape.flat(classes), kind=kind).run(logits, np.zeros(4, int))
    assert np.isnan(metrics[:3, 0]).all()
    assert np.isfinite(metrics[3, 0])
    np.testing.assert_array_equal(metrics[:, [RIGHT, FIVE]], [[0, 0]] * 3 + [[1, 1]])


# -- losses of a class for each position -------------------------------------------------------------------------------

#: Shapes of outputs, and the class of device whose work-groups take them.
PLANES = [
    (Shape.flat(3), "cpu"),
    (Shape(4, 3, 5), "cpu"),
    (Shape(2, 7, 1), "gpu"),
    (Shape(6, 11), "gpu"),
    (Shape(3, 2, 4, 5), "cpu"),
    (Shape(3, 4, 5, 7), "gpu"),
    (Shape(3, 67, 131), "cpu"),
    (Shape(3, 67, 131), "gpu"),
    *(FEW_POSITIONS := [(Shape.flat(1001), "gpu"), (Shape(131, 3, 1), "gpu")]),  # A group shares the classes of each.
]


@pytest.mark.parametrize(("shape", "kind"), PLANES, ids=str)
@pytest.mark.parametrize(
    ("loss", "function"),
    [
        (CrossEntropy(ignore=255), reference.cross_entropy),
        (CrossEntropy(0.2, ignore=255), partial(reference.cross_entropy, label_smoothing=0.2)),
        (Focal(ignore=255), reference.focal),
        (Focal(0.0, ignore=255), partial(reference.focal, gamma=0.0)),
        (Focal(0.5, 0.1, ignore=255), partial(reference.focal, gamma=0.5, label_smoothing=0.1)),
        (Dice(ignore=255), reference.dice),
        (Dice(0.01, ignore=255), partial(reference.dice, smoothing=0.01)),
    ],
    ids=_name,
)
def test_losses_of_classes(
    device: Device,
    loss: Loss,
    function: Callable[..., tuple[float, npt.NDArray[np.float64]]],
    shape: Shape,
    kind: str,
) -> None:
    """With weights of samples and classes, and positions without a class, down to a sample that has none."""
    generator = np.random.default_rng(shape.elements)
    count, positions = 4, shape.dimensions[1:]
    logits = (2 * generator.standard_normal((count, *shape.dimensions))).astype(np.float32)
    labels = generator.integers(0, shape.units, (count, *positions))
    labels[generator.random(labels.shape) < 0.2] = 255
    labels[0], labels[1:].reshape(3, -1)[:, 0] = 255, shape.units - 1
    samples, classes = (generator.uniform(0.1, 2, size).astype(np.float32) for size in (count, shape.units))
    options = {"sample_weights": samples, "class_weights": classes, "ignore": 255}
    expected, slope = function(logits, labels, **options)
    divisor = loss.weight(loss.device_labels(labels), samples, classes)
    bench = LossBench(device, loss, shape, kind=kind)
    metrics, delta = bench.run(logits, labels, samples, classes, divisor)
    assert_close(metrics[:, LOSS].sum() / divisor, np.float64(expected), relative=5e-6, absolute=0, what="loss")
    assert_close(metrics[:, WEIGHT].sum(), np.float64(divisor), relative=5e-6, absolute=0, what="weight")
    assert_close(delta, slope, relative=5e-5, absolute=2e-6 * float(np.abs(slope).max()), what="delta")
    np.testing.assert_array_equal(delta[0], 0)
    flat, rows = labels.reshape(-1), np.moveaxis(logits, 1, -1).reshape(-1, shape.units)
    ranks = counts.ranks(rows[flat != 255].astype(np.float64), flat[flat != 255])
    for column, wanted in ((RIGHT, (ranks < 1).sum()), (FIVE, (ranks < 5).sum()), (COUNTED, len(ranks))):
        assert metrics[:, column].sum() * labels[0].size == pytest.approx(wanted, rel=1e-5)


def test_without_focus_it_is_the_cross_entropy(device: Device) -> None:
    logits, _ = random_batch(Shape(5, 3, 2), 3, seed=8)
    labels = np.random.default_rng(8).integers(0, 5, (3, 3, 2))
    found = [LossBench(device, loss, Shape(5, 3, 2)).run(logits, labels) for loss in (CrossEntropy(), Focal(0.0))]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focal_of_extreme_logits(device: Device, gamma: float) -> None:
    logits = np.array([[100, 0, 0], [20, 0, -1], [12, 0, 0], [9, 0, 0], [-100, 0, 1], [1e4, 1e4, 1e4 + 2]], np.float32)
    labels = np.zeros(len(logits), int)
    metrics, delta = LossBench(device, Focal(gamma), Shape.flat(3)).run(logits, labels)
    check(metrics, delta, logits, labels, reference.focal, gamma=gamma)


def test_a_batch_that_is_all_ignored(device: Device) -> None:
    for loss in (CrossEntropy(ignore=1), Focal(ignore=1), Dice(ignore=1)):
        bench = LossBench(device, loss, Shape(3, 2, 2))
        labels = np.ones((2, 2, 2), int)
        weight = loss.weight(loss.device_labels(labels))
        assert weight == (2 if isinstance(loss, Dice) else 0)  # What Dice divides by are samples.
        metrics, delta = bench.run(random_batch(Shape(3, 2, 2), 2, seed=9)[0], labels, divisor=weight or 1.0)
        np.testing.assert_array_equal(delta, 0)
        np.testing.assert_array_equal(metrics[:, [LOSS, RIGHT, FIVE, COUNTED]], 0)
        assert np.isnan(metrics_of(bench.totals(), loss)["accuracy"])


@pytest.mark.parametrize("loss", [CrossEntropy(ignore=9), Focal(ignore=9), Dice(ignore=9)], ids=_name)
def test_training_on_what_is_all_ignored_changes_nothing(device: Device, loss: Loss) -> None:
    """PyTorch divides 0 by 0, and its weights become NaN; what is measured over nothing is NaN here, too."""
    x, labels = np.random.default_rng(0).standard_normal((6, 2, 3, 3)).astype(np.float32), np.full((6, 3, 3), 9)
    model = Sequential([layers.Input(2, 3, 3), layers.Conv2D(4, 1)])
    before = {name: values.copy() for name, values in model.weights.items()}
    history = model.fit(x, labels, epochs=1, batch_size=3, loss=loss, optimizer=SGD(0.5), device=device, verbose=False)
    assert all(np.array_equal(values, before[name]) for name, values in model.weights.items())
    assert np.isnan(history["accuracy"]).all()
    found = model.evaluate(x, labels, loss=loss, device=device)["loss"]
    assert found == 0 if isinstance(loss, Dice) else np.isnan(found)


@pytest.mark.parametrize("loss", [CrossEntropy(0.1), Focal(), Dice(), MeanSquaredError(), Huber()], ids=str)
def test_weights_are_those_of_repeated_samples(device: Device, loss: Loss) -> None:
    values, targets = random_batch(Shape(3, 2, 5), 2, seed=10)
    labels = np.random.default_rng(10).integers(0, 3, (2, 2, 5)) if loss.takes_classes else targets
    bench = LossBench(device, loss, Shape(3, 2, 5))
    once, weighted = bench.run(values, labels, [1, 3], divisor=4)
    thrice, repeated = bench.run(values[[0, 1, 1, 1]], labels[[0, 1, 1, 1]])
    assert once[:, LOSS].sum() == pytest.approx(thrice[:, LOSS].sum(), rel=1e-6)
    np.testing.assert_allclose(weighted, [repeated[0], repeated[1:].sum(axis=0)], rtol=1e-5, atol=1e-8)


SOME_PLANES = [Shape.flat(7), Shape(3, 4, 5), Shape(2, 9), Shape(3, 2, 4, 5), Shape(2, 70, 67)]


@pytest.mark.parametrize(("shape", "kind"), [*((shape, "") for shape in SOME_PLANES), *FEW_POSITIONS], ids=str)
@pytest.mark.parametrize("labels_loss", [CrossEntropy(0.1, ignore=1), Focal(1.5)], ids=str)
def test_distillation(device: Device, labels_loss: Any, shape: Shape, kind: str) -> None:
    """What a teacher adds to another loss: weight * T^2 * KL(q || p) where labels count, and T * (p - q)."""
    generator = np.random.default_rng(shape.elements)
    count, places, classes, temperature, weight = 4, shape.dimensions[1:], shape.units, 2.5, 0.7
    logits, answers = (2 * generator.standard_normal((2, count, *shape.dimensions))).astype(np.float32)
    labels = generator.integers(0, classes, (count, *places))
    shares = np.float32([0, 0.3, 0.6, 0])
    of_samples, of_classes = (generator.uniform(0.5, 2, size).astype(np.float32) for size in (count, classes))

    def logarithm(values: Any) -> npt.NDArray[np.float64]:
        scaled = values.astype(np.float64) / temperature
        shifted = scaled - scaled.max(axis=1, keepdims=True)
        result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return result

    p, q = logarithm(logits), logarithm(answers)
    each = of_classes.astype(np.float64)[labels] * (labels != labels_loss.ignore)
    each = each.reshape(count, -1) * of_samples[:, None] / max(1, np.prod(places))
    each = (each + shares[:, None].astype(np.float64) * (np.roll(each, -1, axis=0) - each)).reshape(labels.shape)
    distance = weight * temperature**2 * (np.exp(q) * (q - p)).sum(axis=1) * each
    slope = weight * temperature * (np.exp(p) - np.exp(q)) * each[:, None]

    loss = Distilled(labels_loss, temperature, weight)
    divisor = labels_loss.weight(labels_loss.device_labels(labels), of_samples, of_classes, shares)
    given = logits, labels_loss.device_labels(labels), of_samples, of_classes, divisor, shares
    before, delta_before = LossBench(device, labels_loss, shape, kind=kind).run(*given)
    bench = LossBench(device, loss, shape, kind=kind)
    bench._write("teacher", q.astype(np.float32))
    metrics, delta = bench.run(*given)
    wanted = before[:, LOSS] + distance.reshape(count, -1).sum(axis=1)
    assert_close(metrics[:, LOSS], wanted, relative=5e-6, absolute=1e-6, what="loss of each sample")
    np.testing.assert_array_equal(metrics[:, WEIGHT:], before[:, WEIGHT:])
    wanted = delta_before.astype(np.float64) + slope / divisor
    assert_close(delta, wanted, relative=1e-5, absolute=1e-6 * float(np.abs(wanted).max()), what="delta")
    assert bench.totals()[LOSS] == pytest.approx(metrics[:, LOSS].sum(), rel=1e-6)


def test_a_class_that_a_teacher_excludes(device: Device) -> None:
    """Its probability is 0, and so is what it adds, also where the student excludes it too."""
    answers = np.float32([[0, 1, -np.inf], [0, 1, -np.inf]])
    logits, labels = np.float32([[0.5, 0, 2], [0.5, 0, -np.inf]]), np.array([1, 1])
    bench = LossBench(device, Distilled(CrossEntropy(), 1.0, 1.0), Shape.flat(3))
    q = answers - np.log(np.exp(answers).sum(axis=1, keepdims=True))
    bench._write("teacher", q)
    metrics, delta = bench.run(logits, labels)
    p = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    expected = [(np.exp(q[n, :2]) * (q[n, :2] - p[n, :2])).sum() - p[n, 1] for n in range(2)]
    np.testing.assert_allclose(metrics[:, LOSS], expected, rtol=1e-6)
    np.testing.assert_allclose(delta, (2 * np.exp(p) - np.exp(q) - [0, 1, 0]) / 2, rtol=1e-5, atol=1e-7)


# -- samples that are mixed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kind"), [(Shape.flat(6), ""), (Shape(3, 4, 5), ""), (Shape(4, 9), ""), *FEW_POSITIONS], ids=str
)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    ("loss", "gamma"), [(CrossEntropy(), 0), (CrossEntropy(0.2, ignore=1), 0), (Focal(1.5, 0.1), 1.5)], ids=str
)
def test_mixed_samples_have_soft_targets(
    device: Device, loss: Any, gamma: float, count: int, shape: Shape, kind: str
) -> None:
    """The label of the next sample has a share, with its weights: -sum of t * (1 - p)^gamma * log p, and its slope."""
    classes, positions = shape.units, shape.height * shape.width
    generator = np.random.default_rng(count)
    values = 2 * generator.standard_normal((count, classes, shape.height, shape.width)).astype(np.float32)
    labels = generator.integers(0, classes, (count, shape.height, shape.width))
    labels[0, 0, 0] = 0
    shares = generator.uniform(0, 1, count).astype(np.float32)
    shares[0] = 0 if count > 2 else shares[0]
    of_samples, of_classes = (generator.uniform(0.5, 2, size).astype(np.float32) for size in (count, classes))
    weights = reference.position_weights(
        labels, classes, class_weights=of_classes, sample_weights=of_samples, ignore=loss.ignore
    )
    smoothed = np.eye(classes)[labels] * (1 - loss.label_smoothing) + loss.label_smoothing / classes
    own, share = (smoothed * weights[..., None]), shares.astype(np.float64)[:, None, None]
    targets = np.moveaxis(own + share[..., None] * (np.roll(own, -1, axis=0) - own), -1, 1)
    weight = (weights + share * (np.roll(weights, -1, axis=0) - weights)).sum(axis=(1, 2)) / positions
    shifted = values - values.max(axis=1, keepdims=True).astype(np.float64)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    p = np.exp(logarithm)
    wanted = -(targets * (1 - p) ** gamma * logarithm).sum(axis=(1, 2, 3)) / positions
    slope = targets * (gamma * (1 - p) ** (gamma - 1) * p * logarithm - (1 - p) ** gamma)
    slope = (slope - p * slope.sum(axis=1, keepdims=True)) / positions

    assert weight.any(), "some of the labels must count"
    divisor = loss.weight(loss.device_labels(labels), of_samples, of_classes, shares)
    assert divisor == pytest.approx(weight.sum(), rel=1e-6)
    bench = LossBench(device, loss, shape, kind=kind)
    metrics, delta = bench.run(values, labels, of_samples, of_classes, divisor, shares)
    assert_close(metrics[:, LOSS], wanted, relative=1e-5, absolute=1e-6, what="loss of each sample")
    assert_close(metrics[:, WEIGHT], weight, relative=1e-6, absolute=1e-7, what="weight of each sample")
    assert_close(delta, slope / divisor, relative=1e-5, absolute=1e-7, what="delta")
    # Of two labels, each is right by its share.
    said = np.where(values.argmax(axis=1) == loss.ignore, -1, values.argmax(axis=1))
    right = ((1 - share) * (labels == said) + share * (np.roll(labels, -1, axis=0) == said)).mean(axis=(1, 2))
    assert_close(metrics[:, RIGHT], right, relative=1e-6, absolute=1e-7, what="right")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixed_samples_against_pytorch(device: Device, smoothing: float) -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(1)
    values, labels = generator.standard_normal((5, 7)).astype(np.float32), generator.integers(0, 7, 5)
    shares = generator.uniform(0, 1, 5).astype(np.float32)
    logits = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    targets = np.eye(7)[labels]
    targets += shares[:, None] * (np.roll(targets, -1, axis=0) - targets)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(targets), label_smoothing=smoothing)
    loss.backward()
    metrics, delta = LossBench(device, CrossEntropy(smoothing), Shape.flat(7)).run(
        values, labels, partner_shares=shares
    )
    assert metrics[:, LOSS].mean() == pytest.approx(loss.item(), rel=1e-6)
    assert_close(delta.reshape(5, 7), logits.grad.numpy(), relative=1e-5, absolute=1e-7, what="delta")


@pytest.mark.parametrize(
    "loss", [BinaryCrossEntropy(0.1), MeanSquaredError(), MeanAbsoluteError(), Huber()], ids=lambda loss: loss.kernel
)
def test_mixed_targets_lie_between_two(device: Device, loss: Loss) -> None:
    shape = Shape(3, 2, 5)
    values, targets = random_batch(shape, 4, seed=11)
    shares, weights = np.float32([0.3, 0, 1, 0.75]), np.float32([1, 2, 3, 4])
    between = targets + shares[:, None, None, None] * (np.roll(targets, -1, axis=0) - targets)
    np.testing.assert_allclose(between[2], targets[3], rtol=1e-6)
    weight = weights + shares * (np.roll(weights, -1) - weights)
    divisor = loss.weight(loss.device_labels(targets), weights, None, shares)
    assert divisor == pytest.approx(weight.sum(), rel=1e-6)
    bench = LossBench(device, loss, shape)
    seen = bench.run(values, targets, weights, divisor=divisor, partner_shares=shares)
    wanted = bench.run(values, between, weight, divisor=divisor)
    for one, other in zip(seen, wanted, strict=True):
        assert_close(one, other, relative=1e-5, absolute=1e-7, what="metrics and delta")


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64, np.float32])
@pytest.mark.parametrize("ignore", [255, 1])
def test_labels_of_any_type(dtype: Any, ignore: int) -> None:
    labels = CrossEntropy(ignore=ignore).device_labels(np.array([[0, 1], [ignore, 2]]).astype(dtype))
    assert labels.dtype == np.int32
    assert labels.tolist() == [[0, -1 if ignore == 1 else 1], [-1, 2]]


def test_weights_of_batches() -> None:
    labels, samples = np.array([[0, 1], [2, 7]]), np.float32([2, 3])
    classes = np.float32([1, 0.5, 4])
    loss = CrossEntropy(ignore=7)
    labels = loss.device_labels(labels)
    assert labels.tolist() == [[0, 1], [2, -1]]
    assert loss.weight(labels) == 1.5
    assert loss.weight(labels, samples) == 2 + 3 / 2
    assert loss.weight(labels, samples, classes) == 2 * 0.75 + 3 * 2
    assert loss.weight(np.array([[-1, -1]])) == 0
    # What has moved out of a sample takes no part.
    assert CrossEntropy().weight(labels) == 1.5
    assert CrossEntropy().weight(labels[:1]) == 1
    assert MeanSquaredError().weight(labels) == 2
    assert MeanSquaredError().weight(labels, samples) == Dice().weight(labels, samples, classes) == 5


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("loss", "function"),
    [
        (CrossEntropy(0.2), partial(reference.cross_entropy, label_smoothing=0.2)),
        (Focal(), reference.focal),
        (Dice(), reference.dice),
        (MeanSquaredError(), reference.mean_squared_error),
    ],
    ids=_name,
)
@pytest.mark.parametrize("storage", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)
def test_narrow_outputs_and_deltas(device: Device, loss: Loss, function: Any, kind: str, storage: StorageType) -> None:
    """The loss is that of the rounded outputs, in float32; deltas are rounded."""
    shape, count = Shape(3, 7, 11), 4
    values, targets = random_batch(shape, count, seed=3)
    values = storage.decode(storage.encode(values))
    labels = np.argmax(targets, axis=1) if loss.takes_classes else targets
    metrics, delta = LossBench(device, loss, shape, kind=kind, storage=storage).run(storage.encode(values), labels)
    expected, slope = function(values, labels)
    assert delta.dtype == storage.dtype
    assert_close(metrics[:, LOSS].mean(), np.float64(expected), relative=5e-6, absolute=0, what="loss")
    # Below 6e-5 halves have fewer bits: 3e-8 is half of what tells two of them apart.
    assert_close(storage.decode(delta), slope, relative=0.6 * storage.epsilon, absolute=4e-8, what="delta")


# -- losses of targets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("loss", "function"),
    [
        (BinaryCrossEntropy(), reference.binary_cross_entropy),
        (BinaryCrossEntropy(0.2), partial(smoothed_binary_cross_entropy, smoothing=0.2)),
        (MeanSquaredError(), reference.mean_squared_error),
        (MeanAbsoluteError(), reference.mean_absolute_error),
        (Huber(), reference.huber),
        (Huber(0.3), partial(reference.huber, delta=0.3)),
    ],
    ids=_name,
)
def test_losses_of_targets(
    device: Device, loss: Loss, function: Callable[..., tuple[float, npt.NDArray[np.float64]]], shape: Shape
) -> None:
    values, targets = random_batch(shape, 4, seed=1)
    metrics, delta = LossBench(device, loss, shape).run(values, targets)
    check(metrics, delta, values, targets, function)
    np.testing.assert_array_equal(metrics[:, WEIGHT:], [[1, 0, 0, 1]] * 4)


def test_binary_cross_entropy_of_extreme_logits(device: Device) -> None:
    logits = np.array([-1e4, -100, -20, -1e-3, 0, 1e-3, 20, 100, 1e4], np.float32)
    bench = LossBench(device, BinaryCrossEntropy(), Shape.flat(1), capacity=len(logits))
    for target in (0.0, 0.25, 1.0):
        values, targets = logits[:, None], np.full((len(logits), 1), target, np.float32)
        metrics, delta = bench.run(values, targets)
        check(metrics, delta, values, targets, reference.binary_cross_entropy, absolute=1e-37)
        # Even where it nearly vanishes, the slope is right; what float32 cannot hold may be 0.
        expected = reference.binary_cross_entropy(values.astype(np.float64), targets.astype(np.float64))[1]
        assert_close(delta, expected, relative=5e-6, absolute=1e-37, what="small slopes")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_large_output_does_not_lose_small_terms(device: Device, kind: str) -> None:
    values, targets = random_batch(Shape(5, 113, 127), 1, seed=2)
    metrics, delta = LossBench(device, MeanSquaredError(), Shape(5, 113, 127), kind=kind).run(values, targets)
    check(metrics, delta, values, targets, reference.mean_squared_error)


@pytest.mark.parametrize(
    "loss",
    [CrossEntropy(), Focal(), Dice(), BinaryCrossEntropy(), MeanSquaredError(), MeanAbsoluteError(), Huber()],
    ids=lambda loss: loss.kernel,
)
def test_what_is_not_a_number_makes_a_loss_that_is_none(device: Device, loss: Loss) -> None:
    values, targets = random_batch(Shape.flat(3), 3, seed=3)
    values[1, 2] = np.nan
    labels = np.zeros(3, int) if loss.takes_classes else targets
    bench = LossBench(device, loss, Shape.flat(3))
    metrics, delta = bench.run(values, labels)
    np.testing.assert_array_equal(np.isnan(metrics[:, 0]), [False, True, False])
    np.testing.assert_array_equal(np.isnan(delta).any(axis=(1, 2, 3)), [False, True, False])
    assert np.isnan(bench.totals()[0])


# -- where slopes jump, and where nothing takes part -------------------------------------------------------------------

#: Losses, and the same of (output, targets) in PyTorch. What is no loss of its own there is said as people say it.
TWINS: dict[str, tuple[Loss, Callable[[Any, Any, Any], Any]]] = {
    "absolute": (MeanAbsoluteError(), lambda f, o, t: f.l1_loss(o, t)),
    "huber": (Huber(0.5), lambda f, o, t: f.huber_loss(o, t, delta=0.5)),
    "squared": (MeanSquaredError(), lambda f, o, t: f.mse_loss(o, t)),
    "binary": (BinaryCrossEntropy(), lambda f, o, t: f.binary_cross_entropy_with_logits(o, t)),
    "text of abs": (
        Expression("function (P[N, C], T[N, C]) -> (L) { L[n] = +(abs(P[n, c] - T[n, c]) / C); }"),
        lambda f, o, t: f.l1_loss(o, t),
    ),
    "text of hinge": (
        Expression("function (P[N, C], T[N, C]) -> (L) { L[n] = +(max(1 - P[n, c] * T[n, c], 0) / C); }"),
        lambda f, o, t: (1 - o * t).clamp(min=0).mean(),
    ),
    "entropy": (CrossEntropy(ignore=9), lambda f, o, t: f.cross_entropy(o, t, ignore_index=9)),
    "smoothed": (CrossEntropy(0.1), lambda f, o, t: f.cross_entropy(o, t, label_smoothing=0.1)),
    "focal": (
        Focal(2.0),
        lambda f, o, t: ((1 - o.softmax(1)) ** 2 * -o.log_softmax(1)).gather(1, t[:, None]).mean(),
    ),
    "dice": (
        Dice(),
        lambda f, o, t: (1 - (2 * o.softmax(1) * f.one_hot(t, 5) + 1) / (o.softmax(1) + f.one_hot(t, 5) + 1)).mean(),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_slopes_at_kinks_are_those_of_pytorch(device: Device, name: str) -> None:
    """Where output and target are equal, at a knee, at a hinge; between equal logits, and far apart ones."""
    torch = pytest.importorskip("torch")
    loss, twin = TWINS[name]
    if loss.takes_classes:
        values = np.float32([[0, 0, 0, 0, 0], [1e5, 0, -1e5, 3, 3], [0, 0, 1e5, 1e5, 0], [-1e5, 0, 0, 0, 0]])
        targets = np.array([2, 0, 3, 1])
    else:
        targets = np.float32([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1]])
        values = targets + np.float32([-1, -0.5, 0, 0.5, 1])
    output = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    wanted = twin(torch.nn.functional, output, torch.tensor(targets if loss.takes_classes else targets.astype(float)))
    wanted.backward()
    metrics, delta = LossBench(device, loss, Shape.flat(5)).run(values, targets)
    assert_close(metrics[:, LOSS].mean(), wanted.detach().numpy(), relative=2e-6, absolute=1e-7, what="loss")
    assert_close(delta, output.grad.numpy(), relative=5e-6, absolute=3e-8, what="slopes")


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", [CrossEntropy(0.1), Focal(), Dice(), BinaryCrossEntropy(), Huber()], ids=lambda loss: loss.kernel
)
def test_without_a_delta_only_the_metrics_are_written(device: Device, loss: Loss) -> None:
    values, targets = random_batch(Shape.flat(6), 4, seed=4)
    labels = np.array([5, 0, 3, 3]) if loss.takes_classes else targets
    with_delta, delta = LossBench(device, loss, Shape.flat(6)).run(values, labels)
    without, untouched = LossBench(device, loss, Shape.flat(6), delta=False).run(values, labels)
    np.testing.assert_array_equal(without, with_delta)
    assert np.isfinite(delta).all()
    assert np.isnan(untouched).all()


@pytest.mark.parametrize("loss", [CrossEntropy(), MeanSquaredError()], ids=lambda loss: loss.kernel)
def test_totals_over_several_batches(device: Device, loss: Loss) -> None:
    bench = LossBench(device, loss, Shape.flat(7))
    expected = np.zeros(SUMS + 1)
    for seed, count in enumerate((6, 6, 1, 3)):
        values, targets = random_batch(Shape.flat(7), count, seed)
        labels = np.random.default_rng(seed).integers(0, 7, count) if loss.takes_classes else targets
        metrics, _ = bench.run(values, labels)
        expected += [*metrics.astype(np.float64).sum(axis=0), count]
        assert_close(bench.totals().astype(np.float64), expected, relative=1e-6, absolute=0, what="totals")
    means = metrics_of(bench.totals(), loss)
    assert list(means) == (["loss", "accuracy", "top_5"] if loss.takes_classes else ["loss"])
    assert means["loss"] == pytest.approx(expected[0] / 16, rel=1e-6)


def test_two_runs_are_bit_equal(device: Device) -> None:
    values, targets = random_batch(Shape(3, 4, 5), 4, seed=5)
    bench = LossBench(device, BinaryCrossEntropy(), Shape(3, 4, 5))
    first, second = bench.run(values, targets), bench.run(values, targets)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_in_a_plan(device: Device) -> None:
    """The delta of a loss on planes reaches the input; labels are packed densely, in the order (unit, y, x)."""
    source = layers.Input(2, 3, 5)()
    plan = make_plan(
        graph.from_nodes(source, layers.Activation("tanh")(source)),
        4,
        loss=MeanSquaredError(),
        training=True,
        input_delta=True,
    )
    values, targets = random_batch(Shape(2, 3, 5), 3, seed=6)
    executor = Executor(device, plan, debug=True)
    parameters = np.zeros(plan.request.parameters.elements, np.float32)
    for name, piece in plan.request.parameters.slices.items():
        parameters[piece.offset : piece.offset + piece.elements] = float(name.endswith("deviation"))
    executor.write_array("parameters", parameters)
    executor.write_array("samples", values)
    executor.write_array("labels", targets)
    for phase in ("forward", "loss", "backward"):
        executor.run(phase, 3)
    output = np.tanh(values.astype(np.float64))
    loss, slope = reference.mean_squared_error(output, targets.astype(np.float64))
    totals = device.memory.read(executor.buffers["totals"], SUMS + 1)
    assert_close(totals[0], np.float64(3 * loss), relative=1e-5, absolute=0, what="total loss")
    assert totals[WEIGHT] == totals[COUNTED] == totals[-1] == 3
    actual = executor.read_blob(plan.deltas["input_1"], 3)
    assert_close(actual, slope * (1 - output**2), relative=1e-5, absolute=1e-7, what="input delta")


# -- expressions -------------------------------------------------------------------------------------------------------

SQUARES = """function (P[N, C, ...], T[N, C, ...]) -> (L) {
  L[n] = +((P[n, c, ...] - T[n, c, ...]) * (P[n, c, ...] - T[n, c, ...]) / (C * Y * X));
}"""
OVERLAP = """function (P[N, C, ...], T[N, C, ...]) -> (L) {
  A[n, c] = +(sigmoid(P[n, c, ...]) * T[n, c, ...]);
  B[n, c] = +(sigmoid(P[n, c, ...]) + T[n, c, ...]);
  L[n] = +((1 - (2 * A[n, c] + S) / (B[n, c] + S)) / C);
}"""


def overlap(outputs: FloatArray, targets: FloatArray) -> tuple[float, npt.NDArray[np.float64]]:
    """What OVERLAP says, by hand."""
    p, t = 1 / (1 + np.exp(-outputs.astype(np.float64))), targets.astype(np.float64)
    spatial = tuple(range(2, p.ndim))
    above, below = ((part.sum(axis=spatial, keepdims=True) + 1) for part in (2 * p * t, p + t))
    slope = (above / below - 2 * t) / below / p.shape[1]
    return float((1 - above / below).mean()), slope * p * (1 - p)


@pytest.mark.parametrize("shape", [*SHAPES, Shape(3, 1, 4, 5)], ids=str)
def test_expressions(device: Device, shape: Shape) -> None:
    values, targets = random_batch(shape, 4, 3)
    squares = SQUARES.replace("Y * X", "Z * Y * X") if shape.rank == 3 else SQUARES
    metrics, delta = LossBench(device, Expression(squares), shape).run(values, targets)
    check(metrics, delta, values, targets, reference.mean_squared_error)
    np.testing.assert_array_equal(metrics[:, [WEIGHT, RIGHT, FIVE, COUNTED]], [[1, 0, 0, 1]] * 4)
    metrics, delta = LossBench(device, Expression(OVERLAP, {"S": 1}), shape).run(values, targets)
    check(metrics, delta, values, targets, overlap)


def test_an_expression_of_fewer_axes(device: Device) -> None:
    text = "function (P[N, C], T[N, C]) -> (L) { L[n] = +(abs(P[n, c] - T[n, c]) / C); }"
    values, targets = random_batch(Shape.flat(7), 3, 4)
    metrics, delta = LossBench(device, Expression(text), Shape.flat(7)).run(values, targets)
    check(metrics, delta, values, targets, reference.mean_absolute_error)


def test_an_expression_weighs_samples_as_other_losses_do(device: Device) -> None:
    shape = Shape(2, 3, 5)
    values, targets = random_batch(shape, 5, 5)
    weights = np.float32([1, 0, 0.5, 3, 2])
    found = [
        LossBench(device, loss, shape).run(values, targets, sample_weights=weights, divisor=6.5)
        for loss in (Expression(SQUARES), MeanSquaredError())
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    without = LossBench(device, Expression(SQUARES), shape, delta=False)
    metrics, _ = without.run(values, targets, sample_weights=weights)
    np.testing.assert_allclose(metrics, found[1][0], rtol=1e-5)


def test_training_with_an_expression(device: Device, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((40, 5)).astype(np.float32)
    y = (x[:, :2] * x[:, 2:3]).astype(np.float32)
    losses = []
    for loss in (Expression(SQUARES), MeanSquaredError()):
        model = Sequential([layers.Input(5), layers.Dense(16, activation="tanh"), layers.Dense(2)])
        history = model.fit(x, y, epochs=3, batch_size=16, loss=loss, seed=0, device=device)
        losses.append(history["loss"])
        model.save(tmp_path / "model.h5")
        again = load(tmp_path / "model.h5")
        assert again.loss == loss
        assert again.evaluate(x, y, device=device)["loss"] == model.evaluate(x, y, device=device)["loss"]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_two_outputs_with_expressions(device: Device) -> None:
    node = layers.Input(4)()
    trunk = layers.Dense(5, activation="tanh")(node)
    model = Model(node, [layers.Dense(2)(trunk), layers.Dense(3)(trunk)])
    random = np.random.default_rng(1)
    x, first, second = (random.standard_normal((7, units)).astype(np.float32) for units in (4, 2, 3))
    found, wanted = (
        model.gradients(x, [first, second], loss=[loss, loss], loss_weights=[1.0, 0.3], device=device, debug=True)
        for loss in (Expression(SQUARES), MeanSquaredError())
    )
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("L[n] = +(P[n, c])", None, r"Expression: the text must have a head.* one output\. Received inputs="),
        ("function (P[N, C]) -> (L) { L[n] = +(P[n, c]); }", None, r"two inputs, output and targets"),
        ("function (P[N, C], T[N]) -> (L) { L[n] = +(P[n, c] - T[n]); }", None, r"'T': \('N',\)"),
        (5, None, r"text: a contraction must be a string\. Received text=5\."),
        ("function (P[N, C], T[N, C]) -> (L) { L = P - T; }", Shape.flat(3), r"must give one value for each sample"),
        ("function (P[N, C], T[N, C]) -> (L) { L[n] = +(P[n, c] - T[n, c]); }", Shape(3, 2, 2),
         r"(?s)Expression: the text must fit the model's output\. Received output=\(3, 2, 2\)\..*'P' must have 2 axes"),
    ],
)  # fmt: skip
def test_expressions_that_make_no_loss(text: str, shape: Shape | None, message: str) -> None:
    with pytest.raises(OptionError if shape is None else ShapeError, match=message):
        Expression(text).check(shape or Shape.flat(3))


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CrossEntropy, Focal, BinaryCrossEntropy])
@pytest.mark.parametrize("smoothing", [-0.1, 1, 1.5, float("nan"), "0.1", None])
def test_wrong_label_smoothing(kind: Any, smoothing: Any) -> None:
    rule = rf"^{kind.__name__}: label_smoothing must be at least 0 and below 1\. Received label_smoothing="
    with pytest.raises(OptionError, match=rule):
        kind(label_smoothing=smoothing)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Focal(-1.0), "Focal: gamma must be a finite number of at least 0. Received gamma=-1.0."),
        (lambda: Dice(0.0), "Dice: smoothing must be a finite number above 0. Received smoothing=0.0."),
        (lambda: Huber(0), "Huber: delta must be a finite number above 0. Received delta=0."),
        (lambda: Dice(ignore=1.5), "Dice: ignore must be a label, a whole number, or None. Received ignore=1.5."),
    ],
)
def test_wrong_arguments(build: Callable[[], Loss], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        build()
    assert str(caught.value) == message


@pytest.mark.parametrize("shape", [Shape(1, 4, 4), Shape(1, 4), Shape.flat(1)], ids=str)
def test_outputs_that_are_no_logits(shape: Shape) -> None:
    rule = r"^CrossEntropy: the model's output must be one logit for each of at least 2 classes\. Received output="
    with pytest.raises(ShapeError, match=rule):
        CrossEntropy().check(shape)
    source = layers.Input(shape.units, shape.height, shape.width)()
    if shape.rank == 2:
        with pytest.raises(ShapeError, match=rule):
            make_plan(
                graph.from_nodes(source, layers.Activation("relu")(source)), 2, loss=CrossEntropy(), training=True
            )


def test_outputs_that_fit() -> None:
    for loss in (CrossEntropy(), Focal(), Dice()):
        for shape in (Shape.flat(2), Shape(3, 4, 5), Shape(2, 4)):
            loss.check(shape)
            assert loss.label_elements(shape) == shape.height * shape.width
    for loss in (BinaryCrossEntropy(), MeanSquaredError(), MeanAbsoluteError(), Huber()):
        for shape in (Shape.flat(1), Shape(3, 4, 5), Shape(2, 4)):
            loss.check(shape)
            assert loss.label_elements(shape) == shape.elements


def test_a_loss_is_rebuilt_from_its_arguments() -> None:
    for loss in (
        CrossEntropy(0.25, ignore=3),
        Focal(1.5, 0.1),
        Dice(0.5, ignore=-1),
        BinaryCrossEntropy(0.1),
        MeanSquaredError(),
        MeanAbsoluteError(),
        Huber(2.0),
        Expression(OVERLAP, {"S": 1}),
    ):
        assert Loss.kinds[type(loss).__name__](**loss.config()) == loss
    assert replace(CrossEntropy(), label_smoothing=0.5) == CrossEntropy(0.5)


def test_scores() -> None:
    outputs = np.random.default_rng(0).standard_normal((3, 4, 2, 5)).astype(np.float32)
    powers = np.exp(outputs.astype(np.float64))
    for loss in (CrossEntropy(), Focal(), Dice()):
        np.testing.assert_allclose(loss.scores(outputs), powers / powers.sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(BinaryCrossEntropy().scores(outputs), powers / (1 + powers), rtol=1e-12)
    assert np.isfinite(BinaryCrossEntropy().scores(np.float32([[-1e4, 1e4]]))).all()
    assert Huber().scores(outputs) is None


# -- boxes -------------------------------------------------------------------------------------------------------------


def random_boxes(rng: np.random.Generator, count: int, most: int, classes: int) -> FloatArray:
    """(count, most, 5), of all sizes; some rows are no boxes, and some boxes share a middle."""
    sides = np.sort(rng.random((count, most, 2, 2)), axis=2).reshape(count, most, 4)
    boxes = np.concatenate([rng.integers(-1, classes, (count, most, 1)), sides], axis=2)
    if most > 1:
        boxes[:, 1, 1:] = boxes[:, 0, 1:]
    boxes[-1, :, 0] = -1
    return boxes.astype(np.float32)


@pytest.mark.parametrize("kind", ["", "gpu"])
@pytest.mark.parametrize(("shape", "most"), [(Shape(7, 9, 13), 6), (Shape(5, 1, 2), 1), (Shape(6, 70, 61), 20)])
def test_boxes(device: Device, shape: Shape, most: int, kind: str) -> None:
    rng = np.random.default_rng(most)
    loss = CenterNet(0.3, 0.7, boxes=most + 2)
    values = rng.normal(0, 3, (4, *shape.dimensions)).astype(np.float32)
    labels = random_boxes(rng, 4, most, shape.units - 4)
    bench = LossBench(device, loss, shape, kind=kind)
    metrics, delta = bench.run(values, labels, divisor=4)
    single = [reference.center_net(values[n : n + 1], labels[n : n + 1], size_weight=0.3, offset_weight=0.7)
              for n in range(4)]  # fmt: skip
    expected = np.concatenate([slope for _, slope in single]) / 4
    assert_close(metrics[:, LOSS], [value for value, _ in single], relative=1e-5, absolute=1e-5, what="loss")
    assert_close(delta, expected, relative=2e-5, absolute=1e-6, what="delta")
    np.testing.assert_array_equal(metrics[:, WEIGHT], 1)


def test_the_radius_of_a_peak_keeps_the_overlap() -> None:
    """Boxes whose corners are a radius away cover 0.7 of the union, the worst of them exactly."""
    for w, h in np.random.default_rng(0).uniform(0.5, 60, (20, 2)):
        box = np.array([[0, 0.5 - w / 128, 0.5 - h / 128, 0.5 + w / 128, 0.5 + h / 128]])
        heat = reference.box_heat(box, 1, 64, 64)[0]
        beside = heat[32, 33]
        if beside == 0:
            continue
        r = 3 * np.sqrt(-1 / (2 * np.log(beside))) - 0.5
        outer = w * h / ((w + 2 * r) * (h + 2 * r))
        inner = (w - 2 * r) * (h - 2 * r) / (w * h)
        common = (w - r) * (h - r)
        assert min(outer, inner, common / (2 * w * h - common)) == pytest.approx(0.7, abs=1e-6)


@pytest.mark.parametrize("shape", [Shape(4, 3, 3), Shape.flat(9), Shape(9, 4)], ids=str)
def test_boxes_need_planes(shape: Shape) -> None:
    with pytest.raises(ShapeError, match="CenterNet: the output must have a height and a width, and a unit for each"):
        CenterNet().check(shape)
