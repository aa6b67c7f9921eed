"""Shards that are computed several at a time: the same bits as one by one, and the memory that they take."""

from __future__ import annotations

from dataclasses import replace
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
from blobnet.losses import CrossEntropy
from blobnet.optimizers import SGD
from blobnet.planning import Plan, make_plan
from blobnet.training import step_plan
from blobnet.training.lanes import lane_counts, memory_of_lanes
from blobnet.training.settings import TrainingSettings
from blobnet.training.step_plan import StepContext
from blobnet.training.training_step import TrainingStep
from blobnet.training.weight_buffers import GRADIENT_SUM
from tests.kinds import tuning_for
from tests.ranks import mpiexec, needs_mpi
from tests.tiny import tiny_model
from tests.train.test_shards import RANK, SETTINGS, X, Y, check_that_a_later_shard_stops_the_step, plain_model


def at_a_time(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_plan, "lane_counts", lambda kind, graph, size, shards: [min(count, shards)])


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
    ],
    ids=["plain", "augment", "freeze"],
)
def test_shards_at_a_time_train_the_same_bits(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, shards: int, more: dict[str, Any]
) -> None:
    at_a_time(1, monkeypatch)
    one_by_one = trained(tmp_path / "1.h5", device, shards=shards, **more)
    at_a_time(count, monkeypatch)
    assert trained(tmp_path / "n.h5", device, shards=shards, **more) == one_by_one


def test_batches_of_a_stream_come_in_one_behind_the_other(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = [(X[first:end], Y[first:end]) for first, end in ((0, 16), (16, 19), (19, 41))]
    one_by_one = trained(tmp_path / "1.h5", device, data=(stream,))
    at_a_time(2, monkeypatch)
    assert trained(tmp_path / "2.h5", device, data=(stream,)) == one_by_one


@needs_mpi
def test_ranks_compute_two_at_a_time_or_one_where_the_sum_is(device: Device, tmp_path: Path) -> None:
    weights = {number: 1 + number / 9 for number in range(10)}
    one_by_one = trained(tmp_path / "1.h5", device, shards=4, class_weights=weights)
    script = f"""
from blobnet.training import step_plan
from tests.train.test_shards import SETTINGS
SETTINGS["class_weights"] = {weights}
step_plan.lane_counts = lambda kind, graph, size, shards: [min(2, shards)]
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
    room = step.executor.plan.buffers["gradients"].elements
    for shard in range(2):
        step.sum.begin(shard)
        step.sum.end(4.0)
    step.lanes.run()
    device.memory.write(step.executor.buffers[GRADIENT_SUM], np.full(room, -0.0, np.float32))
    step.sum.finish(4.0)
    for name, gradients in step.gradients().items():
        assert not gradients.any(), name
        assert not np.signbit(gradients).any(), name


@pytest.mark.filterwarnings("ignore:.*samples should be normalised")
def test_a_loss_that_is_not_finite_stops_the_step(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_time(2, monkeypatch)
    check_that_a_later_shard_stops_the_step(device)


def test_a_gpu_computes_up_to_four_shards_at_a_time_where_products_are_long() -> None:
    gpu, cpu = (replace(tuning_for(kind).model, flops=67e12) for kind in ("gpu", "cpu"))
    resnet, mobile = (make(input_shape=(3, 224, 224)).graph for make in (models.resnet50, models.mobilenet_v2))
    several = [lane_counts(gpu, resnet, 16, shards) for shards in (1, 2, 4, 8)]
    assert several == [[1], [2, 1], [4, 2, 1], [4, 2, 1]]
    assert lane_counts(gpu, resnet, 8, 4) == lane_counts(gpu, mobile, 32, 4) == [1]
    assert lane_counts(replace(gpu, flops=5e12), mobile, 32, 4) == [4, 2, 1]
    assert lane_counts(replace(gpu, flops=None), mobile, 1, 4) == [4, 2, 1]
    assert lane_counts(cpu, resnet, 16, 4) == [1]
    # A bias for each position is no product.
    small = [layers.Input(3, 64, 64), layers.Conv2D(64, 3, padding=1, bias="position"), layers.GlobalAveragePool()]
    assert lane_counts(gpu, Sequential(small).graph, 16, 4) == [1]


def test_where_memory_is_short_there_are_fewer(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = models.resnet8().graph
    monkeypatch.setattr(step_plan, "lane_counts", lambda kind, graph, size, shards: [4, 2, 1])

    def step() -> TrainingStep:
        weights = models.resnet8().weights
        settings = TrainingSettings(loss=CrossEntropy(), batch_size=32, shards=8)
        return TrainingStep(device, graph, weights, settings, StepContext(debug=False))

    large = step()
    assert len(large.lanes.executors) == 4

    def refuse(plan: Plan, device: Device, reserved: int = 0) -> None:
        if plan.bytes() + reserved >= large.bytes:
            raise PlanError("plan", "it must fit")

    monkeypatch.setattr(executor, "check_fits", refuse)
    less = step()
    assert len(less.lanes.executors) == 2
    assert less.bytes + memory_of_lanes(large.plan, 4, 8) == large.bytes + memory_of_lanes(less.plan, 2, 8)


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
