"""Shards that are computed at once: the same bits as one by one, and the memory that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import Sequential, layers, models
from blobnet.augment import Flip, Mixup
from blobnet.callbacks import Checkpoint
from blobnet.device.device import Device
from blobnet.errors import PlanError
from blobnet.execution import executor
from blobnet.execution.executor import Executor, plan_for
from blobnet.launch.kernel_call import PRECISIONS, Batch, Tuning
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FloatArray
from blobnet.model import Model
from blobnet.network.ends import TOTALS
from blobnet.network.parameters import parameter_table
from blobnet.optimizers import SGD
from blobnet.planning import STATISTICS, Plan, make_plan
from blobnet.training import step_plan
from blobnet.training.settings import TrainingSettings
from blobnet.training.step_plan import StepContext, counts_at_once
from blobnet.training.training_step import TrainingStep
from blobnet.training.weight_buffers import GRADIENT_SUM, statistics_of
from tests.kinds import as_gpu, tuning_for
from tests.ranks import mpiexec, needs_mpi
from tests.tiny import tiny_model
from tests.train.test_shards import RANK, SETTINGS, X, Y, check_that_a_later_shard_stops_the_step, plain_model


def at_a_time(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_plan, "counts_at_once", lambda kind, shards: [min(count, shards)])


def trained(path: Path, device: Device, data: Any = (X, Y), **more: Any) -> bytes:
    """The file of a model with dropout and batch norms."""
    callback = Checkpoint(path, every_steps=4)
    tiny_model().fit(*data, device=device, verbose=False, callbacks=callback, **(SETTINGS | {"shards": 8} | more))
    return path.read_bytes()


@pytest.mark.parametrize(("count", "shards"), [(2, 2), (2, 8), (4, 8), (8, 8)])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"augment": [Flip(), Mixup(0.4)], "sample_weights": np.linspace(0.5, 2, len(X), dtype=np.float32)},
        {"freeze": "norm*", "average": 0.9, "class_weights": dict(enumerate(np.linspace(1, 2, 10).tolist()))},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"accumulate": 3, "augment": [Mixup(0.4)]},
        {"data": ((X * 16).astype(np.uint8), Y), "augment": "augmix, mixup"},
        {"teacher": tiny_model(5), "augment": [Flip(), Mixup(0.4)]},
    ],
    ids=["plain", "augment", "freeze", "bf16", "fp16", "accumulate", "policy", "teacher"],
)
def test_shards_at_a_time_train_the_same_bits(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, shards: int, more: dict[str, Any]
) -> None:
    at_a_time(1, monkeypatch)
    one_by_one = trained(tmp_path / "1.h5", device, shards=shards, **more)
    at_a_time(count, monkeypatch)
    assert trained(tmp_path / "n.h5", device, shards=shards, **more) == one_by_one


def in_shards(
    device: Device, model: Model, tuning: Tuning, at_once: int, samples: int, of_shard: int
) -> list[FloatArray]:
    """Gradients, statistics and totals of each shard of a batch, by plans for so many at once."""
    table = parameter_table(model.graph)
    statistics, loss = statistics_of(model.graph, table), CrossEntropy()
    settings: dict[str, Any] = {"loss": loss, "training": True, "parameters": table, "statistics": statistics}
    settings |= {"tuning": tuning, "at_once": at_once, "in_batches": True}
    plan = plan_for(device, model.graph, of_shard * at_once, **settings)
    run, found, weights = Executor(device, plan), list[list[FloatArray]](), table.pack(model.weights)
    run.write_array("parameters", weights)
    run.write_array("step", np.zeros(4, np.uint32))
    run.prepare(1)
    generator, (head,) = np.random.default_rng(5), plan.request.heads
    x = generator.standard_normal((samples, *model.graph.input.shape.dimensions), dtype=np.float32)
    y = generator.integers(0, model.graph.output.shape.units, (samples, 1), np.int32)
    sizes = {"gradients": table.trainable_elements, STATISTICS: len(statistics), "totals": TOTALS}
    sizes = {name: size for name, size in sizes.items() if size}
    for first in range(0, samples, of_shard * at_once):
        part = slice(first, first + of_shard * at_once)
        run.feed("samples", x[part])
        run.feed("labels", y[part])
        if statistics:
            run.write_array(STATISTICS, np.tile(weights[statistics.start : statistics.stop], at_once))
        run.write_array("totals", np.zeros(at_once * TOTALS, np.float32))
        batch = Batch(len(y[part]), of_shard=of_shard, first=first, divisor=float(of_shard))
        run.run("forward", batch)
        run.launch(run.launches(head.phase, batch), batch.count)
        run.run("backward", batch)
        filled = -(-batch.count // of_shard)
        read = {name: device.memory.read(run.buffers[name], at_once * size) for name, size in sizes.items()}
        found.append([read[name].reshape(at_once, -1)[:filled] for name in sizes])
    return [np.concatenate(of_runs) for of_runs in zip(*found, strict=True)]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_plan_of_shards_leaves_the_bits_of_each(device: Device, kind: str) -> None:
    """On the kernels of GPUs too, whose sums have two stages, and where the last shard is short."""
    parts = [layers.Input(3, 12, 12), layers.Conv2D(24, 3, padding=1), layers.BatchNorm(), layers.Activation("relu")]
    parts += [layers.Conv2D(24, 3, padding=1, groups=24, stride=2), layers.BatchNorm(), layers.Dropout(0.3)]
    parts += [
        layers.ConvTranspose2D(16, 2),
        layers.MaxPool2D(2),
        layers.Conv2D(32, 1),
        layers.Flatten(),
        layers.Dense(10),
    ]
    check_that_shards_leave_the_same_bits(device, Sequential(parts, seed=1), tuning_for(kind))


def check_that_shards_leave_the_same_bits(device: Device, model: Model, tuning: Tuning) -> None:
    alone = in_shards(device, model, tuning, 1, 18, 5)
    for at_once in (2, 4):
        for one, other in zip(alone, in_shards(device, model, tuning, at_once, 18, 5), strict=True):
            assert other.shape == one.shape
            assert np.isfinite(one).all()
            assert other.tobytes() == one.tobytes()


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_products_of_cells_leave_the_bits_of_each_shard(device: Device, small_tiles: None, precision: str) -> None:
    """A step of the weights' gradient has positions of several samples, but never those of two shards."""
    parts = [layers.Input(5, 9, 7), layers.Conv2D(18, 3, padding=1), layers.BatchNorm(), layers.Activation("relu")]
    parts += [layers.Conv2D(20, 3, stride=2, padding=1, groups=2), layers.Conv2D(10, (5, 4)), layers.Flatten()]
    storage = PRECISIONS[precision][1]
    tuning = tuning_for("gpu", compute_units=2, precision=precision, storage=storage, only={"cells"})
    model = Sequential(parts, seed=1)
    plan = make_plan(model.graph, 20, loss=CrossEntropy(), training=True, tuning=tuning, at_once=4, in_batches=True)
    kernels = {call.kernel for _, call in plan.calls}
    assert kernels >= {f"convolution/{name}_cells" for name in ("forward", "backward_data", "backward_weight")}
    check_that_shards_leave_the_same_bits(device, model, tuning)


def test_batches_of_a_stream_come_in_one_behind_the_other(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = [(X[first:end], Y[first:end]) for first, end in ((0, 16), (16, 19), (19, 41))]
    for accumulate in (1, 2):
        at_a_time(1, monkeypatch)
        one_by_one = trained(tmp_path / "1.h5", device, data=(stream,), accumulate=accumulate)
        at_a_time(2, monkeypatch)
        assert trained(tmp_path / "2.h5", device, data=(stream,), accumulate=accumulate) == one_by_one


@needs_mpi
def test_ranks_compute_two_at_a_time_or_one_where_the_sum_is(device: Device, tmp_path: Path) -> None:
    weights = {number: 1 + number / 9 for number in range(10)}
    one_by_one = trained(tmp_path / "1.h5", device, shards=4, class_weights=weights)
    script = f"""
from blobnet.training import step_plan
from tests.train.test_shards import SETTINGS
SETTINGS["class_weights"] = {weights}
step_plan.counts_at_once = lambda kind, shards: [min(2, shards)]
{RANK}"""
    # In several buckets, which wait for both shards of a rank.
    for count, whole in ((2, 700), (4, 0)):
        mpiexec(count, device, "-c", script, tmp_path / "ranks.h5", 4, "ordered", 300, whole, check=True)
        assert (tmp_path / "ranks.h5").read_bytes() == one_by_one


def test_no_sum_is_a_negative_zero(device: Device) -> None:
    # As it were where the gradients of all shards are, and the sum begins with those of one of them.
    model = plain_model()
    settings = TrainingSettings(loss=CrossEntropy(), optimizer=SGD(0.1), batch_size=8, shards=2)
    step = TrainingStep(device, model.graph, model.weights, settings, StepContext(debug=False))
    room, at_once = step.plan.request.parameters.trainable_elements, step.plan.request.at_once
    for run in range(2 // at_once):
        step.sum.begin(run)
        step.sum.end([4.0] * at_once)
    device.memory.write(step.executor.buffers[GRADIENT_SUM], np.full(room, -0.0, np.float32))
    step.sum.finish(4.0)
    for name, gradients in step.gradients().items():
        assert not gradients.any(), name
        assert not np.signbit(gradients).any(), name


@pytest.mark.filterwarnings("ignore:.*samples should be normalised")
def test_a_loss_that_is_not_finite_stops_the_step(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_time(2, monkeypatch)
    check_that_a_later_shard_stops_the_step(device)


def test_a_gpu_computes_all_shards_at_once_that_fit() -> None:
    gpu, cpu = (tuning_for(kind).model for kind in ("gpu", "cpu"))
    assert [counts_at_once(gpu, shards) for shards in (1, 2, 8)] == [[1], [2, 1], [8, 4, 2, 1]]
    assert counts_at_once(cpu, 8) == [1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_gpu_bits_do_not_depend_on_how_many(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    as_gpu(monkeypatch, device)
    files = set()
    for count in (1, 2, 8):
        at_a_time(count, monkeypatch)
        files.add(trained(tmp_path / f"{count}.h5", device, epochs=1, precision=precision))
    assert len(files) == 1


def ways(samples: int, **settings: Any) -> list[tuple[Any, ...]]:
    """How each layer of a network is computed on a large GPU, without what counts samples."""
    graph = models.resnet18((3, 64, 64)).graph
    tuning = tuning_for("gpu", compute_units=132)
    plan = make_plan(graph, samples, loss=CrossEntropy(), training=True, tuning=tuning, **settings)
    return [(call.label, call.kernel, call.tunables, call.macros.get("SPLITS")) for _, call in plan.calls]


def test_ways_are_those_of_shards_side_by_side() -> None:
    """They are the same for one and for four at once, and like those of one batch of as many samples."""
    of_four = ways(64, at_once=4, side_by_side=4)
    assert ways(16, at_once=1, side_by_side=4) == of_four
    splits = [sum("split_sum" in kernel for _, kernel, *_ in own) for own in (ways(64), of_four, ways(64, at_once=4))]
    whole, four, alone = splits
    assert 0 <= four - whole < alone - four


def test_a_part_of_a_device_has_its_share_of_the_compute_units() -> None:
    model = tuning_for("gpu", compute_units=10).model
    part = model.part(4)
    assert (part.compute_units, part.parts, part.part(4)) == (2, 4, part)
    assert model.part(16).compute_units == 1
    assert model.part(1) is model


def test_where_memory_is_short_there_are_fewer(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = models.resnet8().graph
    monkeypatch.setattr(step_plan, "counts_at_once", lambda kind, shards: [4, 2, 1])

    def step() -> TrainingStep:
        weights = models.resnet8().weights
        settings = TrainingSettings(loss=CrossEntropy(), batch_size=32, shards=8)
        return TrainingStep(device, graph, weights, settings, StepContext(debug=False))

    large = step()
    assert large.plan.request.at_once == 4

    def refuse(plan: Plan, device: Device, reserved: int = 0) -> None:
        if plan.bytes() + reserved >= large.bytes:
            raise PlanError("plan", "it must fit")

    monkeypatch.setattr(executor, "check_fits", refuse)
    less = step()
    assert less.plan.request.at_once == 2
    assert less.plan.request.batch_size == 8
    # Four runs in place of two have a sum more that waits for others.
    besides = [step.bytes - step.plan.bytes() for step in (less, large)]
    table = large.plan.request.parameters
    assert besides[0] - besides[1] == 4 * (table.trainable_elements + len(large.plan.request.statistics))


def test_what_parameters_alone_give_is_made_once_a_step() -> None:
    graph = models.resnet8().graph
    settings: dict[str, Any] = {"loss": CrossEntropy(), "training": True, "tuning": tuning_for("gpu")}
    for_each, once = (make_plan(graph, 16, in_batches=in_batches, **settings) for in_batches in (False, True))
    packed = {one.label for call in once.phase("constant") for one in call.each}
    assert not for_each.phase("constant")
    assert packed <= {one.label for _, call in for_each.calls for one in call.each}
    assert any("pack" in call.kernel for call in once.phase("constant"))
    # Nothing else takes their place.
    assert once.constants
    for name in once.constants:
        others = [storage for storage, buffer in once.placed.items() if buffer == name]
        made = {storage for call in once.phase("constant") for storage in call.storages("write", "update")}
        assert set(others) <= made
