"""The losses: each sample's loss, the delta, hits and their totals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blobnet import graph, layers
from blobnet.blob import BlobLayout, FloatArray, Halo, Shape
from blobnet.device import Device
from blobnet.errors import OptionError, ShapeError
from blobnet.executor import Executor
from blobnet.graph import Graph
from blobnet.inference import metrics_of
from blobnet.kernel_call import Blob, Tuning
from blobnet.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from blobnet.parameters import ParameterTable
from blobnet.planner import Buffer, Plan, make_plan
from tests.layers.layer_bench import poison
from tests.reference import losses as reference
from tests.reference.compare import assert_close

FOUR = 4  # Numbers in the totals: loss, right, among the best five, samples.
SHAPES = [Shape.flat(7), Shape(3, 4, 5), Shape(2, 1, 9, 1), Shape.flat(1)]


class LossBench:
    """A loss alone, on blobs with random halos, slack and neighbours, NaN wherever it has no business."""

    def __init__(self, device: Device, loss: Loss, shape: Shape, *, delta: bool = True, capacity: int = 6) -> None:
        self.device, self.loss, self.capacity = device, loss, capacity
        self._generator = np.random.default_rng(shape.elements)
        self.output, self.delta = (Blob(name, self._layout(shape)) for name in ("output", "delta"))
        calls = loss.calls(self.output, self.delta if delta else None, Tuning(device.kind))
        buffers = {
            "output": Buffer("output", 0, self.output.layout.memory_elements),
            "delta": Buffer("delta", 0, self.delta.layout.memory_elements),
            "labels": Buffer("labels", 0, loss.label_elements(shape)),
            "sample_metrics": Buffer("sample_metrics", 0, Loss.SAMPLE_METRICS),
            "totals": Buffer("totals", FOUR, 0),
        }
        plan = Plan(
            graph=Graph(()),
            batch_size=capacity,
            training=True,
            tuning=Tuning(device.kind),
            calls=tuple(("loss", call) for call in calls),
            buffers=buffers,
            placed={name: name for name in buffers},
            parameters=ParameterTable({}, (), 1),
            outputs={},
            deltas={},
        )
        self.executor = Executor(device, plan, debug=True)
        for name in buffers:
            self._write(name, poison(self._elements(name)))
        self._write("totals", np.zeros(FOUR, np.float32))

    def _layout(self, shape: Shape) -> BlobLayout:
        halo = Halo(*(int(side) for side in self._generator.integers(0, 3, 4)))
        return BlobLayout.padded(shape, halo, slack=3, unit_offset=2, unit_memory_count=shape.units + 3)

    def _elements(self, name: str) -> int:
        return self.executor.plan.buffers[name].bytes(self.capacity) // 4

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        self.device.write(self.executor.buffers[name], values)

    def _clear(self, blob: Blob, count: int) -> FloatArray:
        """A buffer with NaN in all but the halo of the blob's own units."""
        layout, memory = blob.layout, poison(self._elements(blob.storage))
        units = memory[: count * layout.memory_elements].reshape(count, layout.unit_memory_count, -1)
        units[:, layout.unit_offset : layout.unit_offset + layout.unit_count, layout.halo_mask()] = 0
        return memory

    def run(self, values: npt.ArrayLike, labels: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """The metrics of each sample and the delta, for one batch; the totals go on."""
        count = len(labels)
        memory = self._clear(self.output, count)
        data = self.output.layout.data(memory, count)
        data[...] = np.asarray(values, np.float32).reshape(data.shape)
        self._write("output", memory)
        before = self._clear(self.delta, count)
        self._write("delta", before)
        self._write("sample_metrics", poison(self.capacity * Loss.SAMPLE_METRICS))
        self._write("labels", labels.astype(np.int32 if self.loss.takes_classes else np.float32))
        self.executor.run("loss", count)
        self.device.finish()
        metrics = self.device.read(self.executor.buffers["sample_metrics"], self.capacity * Loss.SAMPLE_METRICS)
        metrics = metrics.reshape(self.capacity, Loss.SAMPLE_METRICS)
        assert np.isnan(metrics[count:]).all(), "samples that are not in the batch must keep their metrics"
        after = self.device.read(self.executor.buffers["output"], memory.size)
        assert np.array_equal(after.view(np.uint32), memory.view(np.uint32)), "the output must not change"
        after = self.device.read(self.executor.buffers["delta"], before.size)
        delta = self.delta.layout.data(after, count).copy()
        self.delta.layout.data(after, count)[...] = self.delta.layout.data(before, count)
        assert np.array_equal(after.view(np.uint32), before.view(np.uint32)), "only the delta's data may change"
        return metrics[:count], delta.reshape(np.shape(values))

    def totals(self) -> FloatArray:
        values: FloatArray = self.device.read(self.executor.buffers["totals"], FOUR)
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
    assert_close(metrics[:, 0], expected, relative=2e-6, absolute=absolute, what="loss of each sample")
    # The mean over the batch, whose mean over a sample's outputs the reference takes too.
    batch = np.concatenate([slope for _, slope in single]) / len(labels)
    assert_close(delta, batch, relative=5e-6, absolute=1e-7, what="delta")


def random_batch(shape: Shape, count: int, seed: int, scale: float = 2) -> tuple[FloatArray, FloatArray]:
    """Outputs and targets from 0 to 1."""
    generator = np.random.default_rng(seed)
    size = (count, shape.units, shape.height, shape.width)
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
    ranks = reference.ranks(logits.astype(np.float64), labels)
    np.testing.assert_array_equal(metrics[:, 1], ranks < 1)
    np.testing.assert_array_equal(metrics[:, 2], ranks < 5)


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
    ranks = reference.ranks(logits.astype(np.float64), labels)
    assert list(ranks) == [0, 1, 6, 4, 5]
    np.testing.assert_array_equal(metrics[:, 1:], [[1, 1], [0, 1], [0, 0], [0, 1], [0, 0]])


def test_fewer_than_five_classes_are_always_among_the_best_five(device: Device) -> None:
    logits = np.array([[3, 2, 1], [1, 2, 3]], np.float32)
    metrics, _ = LossBench(device, CrossEntropy(), Shape.flat(3)).run(logits, np.array([2, 2]))
    np.testing.assert_array_equal(metrics[:, 1:], [[0, 1], [1, 1]])


@pytest.mark.parametrize("classes", [3, 9])
def test_logits_that_are_not_numbers_are_wrong(device: Device, classes: int) -> None:
    logits = np.zeros((4, classes), np.float32)
    logits[0] = np.nan
    logits[1, 0] = np.nan
    logits[2, classes - 1] = np.nan
    logits[3, 0] = 1
    metrics, _ = LossBench(device, CrossEntropy(), Shape.flat(classes)).run(logits, np.zeros(4, int))
    assert np.isnan(metrics[:3, 0]).all()
    assert np.isfinite(metrics[3, 0])
    np.testing.assert_array_equal(metrics[:, 1:], [[0, 0]] * 3 + [[1, 1]])


# -- losses of targets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("loss", "function"),
    [(BinaryCrossEntropy(), reference.binary_cross_entropy), (MeanSquaredError(), reference.mean_squared_error)],
    ids=["binary cross-entropy", "mean squared error"],
)
def test_losses_of_targets(
    device: Device, loss: Loss, function: Callable[..., tuple[float, npt.NDArray[np.float64]]], shape: Shape
) -> None:
    values, targets = random_batch(shape, 4, seed=1)
    metrics, delta = LossBench(device, loss, shape).run(values, targets)
    check(metrics, delta, values, targets, function)
    np.testing.assert_array_equal(metrics[:, 1:], 0)


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


def test_a_large_output_does_not_lose_small_terms(device: Device) -> None:
    values, targets = random_batch(Shape(5, 113, 127), 1, seed=2)
    metrics, delta = LossBench(device, MeanSquaredError(), Shape(5, 113, 127)).run(values, targets)
    check(metrics, delta, values, targets, reference.mean_squared_error)


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), BinaryCrossEntropy(), MeanSquaredError()], ids=lambda loss: loss.kernel
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


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", [CrossEntropy(0.1), BinaryCrossEntropy(), MeanSquaredError()], ids=lambda loss: loss.kernel
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
    expected = np.zeros(FOUR)
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
    parameters = np.zeros(plan.parameters.elements, np.float32)
    for name, piece in plan.parameters.slices.items():
        parameters[piece.offset : piece.offset + piece.elements] = float(name.endswith("deviation"))
    executor.write_array("parameters", parameters)
    executor.write_array("samples", values)
    executor.write_array("labels", targets)
    for phase in ("forward", "loss", "backward"):
        executor.run(phase, 3)
    output = np.tanh(values.astype(np.float64))
    loss, slope = reference.mean_squared_error(output, targets.astype(np.float64))
    totals = device.read(executor.buffers["totals"], FOUR)
    assert_close(totals[0], np.float64(3 * loss), relative=1e-5, absolute=0, what="total loss")
    assert totals[3] == 3
    actual = executor.read_blob(plan.deltas["input_1"], 3)
    assert_close(actual, slope * (1 - output**2), relative=1e-5, absolute=1e-7, what="input delta")


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [-0.1, 1, 1.5, float("nan"), "0.1", None])
def test_wrong_label_smoothing(smoothing: Any) -> None:
    rule = r"^CrossEntropy: label_smoothing must be at least 0 and below 1\. Received label_smoothing="
    with pytest.raises(OptionError, match=rule):
        CrossEntropy(smoothing)


@pytest.mark.parametrize("shape", [Shape(10, 4, 4), Shape(10, 1, 1), Shape(10, 1, 4, 1), Shape.flat(1)], ids=str)
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
    CrossEntropy().check(Shape.flat(2))
    for loss in (BinaryCrossEntropy(), MeanSquaredError()):
        for shape in (Shape.flat(1), Shape(3, 4, 5), Shape(2, 1, 4, 1)):
            loss.check(shape)
            assert loss.label_elements(shape) == shape.elements
    assert CrossEntropy().label_elements(Shape.flat(9)) == 1


def test_a_loss_is_rebuilt_from_its_arguments() -> None:
    for loss in (CrossEntropy(0.25), BinaryCrossEntropy(), MeanSquaredError()):
        assert Loss.kinds[type(loss).__name__](**loss.config()) == loss
    assert replace(CrossEntropy(), label_smoothing=0.5) == CrossEntropy(0.5)
