"""Predictions by one model for many callers: the same bits for everybody, and nothing built twice."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import layers
from blobnet.callbacks import Callback
from blobnet.data.samples import sources_for
from blobnet.datasets import source
from blobnet.device.device import Device
from blobnet.device.discovery import DeviceInfo
from blobnet.device.memory import Memory, PendingRead
from blobnet.errors import DataError
from blobnet.execution import inference
from blobnet.execution.inference import BUCKETS, Evaluator
from blobnet.execution.loader import IndexedReader
from blobnet.launch.kernel_call import CONSTANT
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FloatArray
from blobnet.model import Model, Sequential
from blobnet.models import resnet50
from blobnet.parallel.world import World
from blobnet.planning import make_plan
from blobnet.training.trainer import Progress
from tests.kinds import as_gpu, tuning_for
from tests.tiny import digits, tiny_model


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch sizes of all evaluators that are made."""
    sizes: list[int] = []
    make = Evaluator.__init__

    def counted(self: Evaluator, *arguments: object, **settings: object) -> None:
        make(self, *arguments, **settings)  # type: ignore[arg-type]
        sizes.append(self.plan.batch_size)

    monkeypatch.setattr(Evaluator, "__init__", counted)
    return sizes


def test_plans_for_a_few_batch_sizes_serve_all_counts(device: Device, built: list[int]) -> None:
    model, (x, _) = tiny_model(), digits(200)
    for count in (1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 128, 129, 200):
        model.predict(x[:count], device=device)
    assert built == [*BUCKETS, 128]
    for count in (129, 3, 1, 60, 16):
        model.predict(x[:count], device=device)
    assert built == [*BUCKETS, 128]


def test_a_device_has_one_plan_by_any_of_its_names(
    device: Device, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[DeviceInfo] = []

    def looked_for(world: World, name: str | None) -> DeviceInfo:
        # PoCL says anew what is free; and of several ranks' devices a name is that of the first.
        found.append(replace(device.info, memory=device.info.memory - len(found)))
        return found[-1]

    monkeypatch.setattr("blobnet.model.device_of_rank", looked_for)
    model, (x, _) = tiny_model(), digits(1)
    for name in (device.info.address, device.info.address, device.info.name, None, device.info.name):
        model.predict(x, device=name)
    assert built == [1]
    assert len(found) == 2


def test_bits_depend_on_the_plans_batch_size_alone(device: Device) -> None:
    model, (x, _) = tiny_model(), digits(64)
    whole = model.predict(x, device=device)
    assert model.predict(x[:40], device=device).tobytes() == whole[:40].tobytes()
    assert model.predict(x[::-1], device=device)[::-1].tobytes() == whole.tobytes()
    assert model.predict(x, device=device, batch_size=64).tobytes() == whole.tobytes()
    one = [model.predict(x[number : number + 1], device=device) for number in range(4)]
    again = [model.predict(x[number : number + 1], device=device) for number in (3, 2, 1, 0)]
    assert np.concatenate(one).tobytes() == np.concatenate(again[::-1]).tobytes()
    np.testing.assert_allclose(np.concatenate(one), whole[:4], rtol=1e-4, atol=1e-4)


def test_many_threads_get_what_one_gets(device: Device, built: list[int]) -> None:
    models = [tiny_model(seed=seed) for seed in (1, 2)]
    x, y = digits(150)
    jobs = [(model, first, count) for model in (0, 1) for first in (0, 20, 50) for count in (1, 4, 7, 64, 100)]
    wanted = [models[model].predict(x[first : first + count], device=device) for model, first, count in jobs]
    measured = [model.evaluate(x, y, device=device) for model in models]
    built.clear()

    def run(job: int) -> tuple[int, FloatArray, dict[str, float]]:
        model, first, count = jobs[job % len(jobs)]
        values = models[model].predict(x[first : first + count], device=device)
        return job % len(jobs), values, models[model].evaluate(x, y, device=device)

    with ThreadPoolExecutor(8) as pool:
        for job, values, found in pool.map(run, range(4 * len(jobs))):
            assert np.array_equal(values, wanted[job])
            assert found == measured[jobs[job][0]]
    assert built == []


def test_threads_that_come_first_build_once(device: Device, built: list[int]) -> None:
    model, (x, _) = tiny_model(), digits(16)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: model.predict(x, device=device), range(16)))
    assert built == [16]
    assert all(np.array_equal(values, results[0]) for values in results)


def test_new_weights_are_used_at_once_and_by_nobody_else(device: Device) -> None:
    x, _ = digits(20)
    weights = [tiny_model(seed=seed).weights for seed in range(4)]
    wanted = [tiny_model(seed=seed).predict(x, device=device) for seed in range(4)]
    model = tiny_model(seed=0)
    for number in (1, 3, 2, 2, 0):
        model.set_weights(weights[number])
        assert np.array_equal(model.predict(x, device=device), wanted[number])
    twin = copy.deepcopy(model)
    twin.set_weights(weights[3])
    assert np.array_equal(model.predict(x, device=device), wanted[0])
    assert np.array_equal(twin.predict(x, device=device), wanted[3])

    def run(number: int) -> bool:
        model.set_weights(weights[number % 4])
        found = model.predict(x, device=device)
        return any(np.array_equal(found, each) for each in wanted)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(60)))


def test_one_caller_brings_samples_while_another_waits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is held back until a second caller has had his; each has memory of his own for it."""
    model, (x, _) = tiny_model(), digits(24)
    wanted = model.predict(x, batch_size=8, device=device)
    waiting, release = threading.Event(), threading.Event()
    values = PendingRead.values

    def held(self: PendingRead) -> FloatArray:
        if threading.current_thread().name == "first":
            waiting.set()
            assert release.wait(60)
        return values(self)

    monkeypatch.setattr(PendingRead, "values", held)
    found: list[FloatArray] = []
    first = threading.Thread(
        target=lambda: found.append(model.predict(x[:8], batch_size=8, device=device)), name="first"
    )
    first.start()
    assert waiting.wait(60)
    others = [model.predict(x[8 * number : 8 * number + 8], batch_size=8, device=device) for number in (1, 2)]
    assert not found
    release.set()
    first.join(60)
    assert np.array_equal(np.concatenate([*found, *others]), wanted)


def test_a_call_of_one_batch_needs_one_copy(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: no second queue to wait for, and no other rows; batches behind it have both."""
    as_gpu(monkeypatch, device)
    fetches: list[bool] = []
    fetch = Memory.write_async

    def counted(self: Memory, buffer: Any, source: Any, offset: int = 0, after: Any = None) -> Any:
        fetches.append(after is not None)
        return fetch(self, buffer, source, offset, after)

    monkeypatch.setattr(Memory, "write_async", counted)
    gpu, model, (x, _) = Device(device.info), tiny_model(), digits(40)
    wanted = tiny_model().predict(x, batch_size=40, device=device)
    found = []
    for first in range(0, 40, 8):
        fetches.clear()
        found.append(model.predict(x[first : first + 8], batch_size=8, device=gpu))
        assert fetches == [False]
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-4, atol=1e-5)
    for _ in range(2):
        fetches.clear()
        several = model.predict(x, batch_size=8, device=gpu)
        assert fetches.count(True) >= 3
        assert np.array_equal(several, np.concatenate(found))


@pytest.mark.parametrize(
    ("kind", "value"), [("float32", np.nan), ("float32", -np.inf), ("float16", np.inf), ("float64", 1e39)]
)
def test_a_gpu_sees_samples_that_are_not_finite(
    device: Device, monkeypatch: pytest.MonkeyPatch, kind: str, value: float
) -> None:
    """The host looks at samples only where it has to say which one."""
    as_gpu(monkeypatch, device)
    gpu, model, (x, _) = Device(device.info), tiny_model(), digits(20)
    x = x.astype(kind)
    looked: list[int] = []
    check = source.check_finite

    def counted(values: Any, name: str, subject: str, rows: Any = None) -> None:
        looked.append(len(values))
        check(values, name, subject, rows)

    monkeypatch.setattr(source, "check_finite", counted)
    wanted = model.predict(x, batch_size=8, device=gpu)
    assert not looked
    hole = x.copy()
    hole[13, 0, 2, 1] = value
    place = r"x: x must hold finite float32 values\. .*Received index=\(13, 0, 2, 1\)"
    with pytest.raises(DataError, match=place):
        model.predict(hole, batch_size=8, device=gpu)
    assert sum(looked) == 16  # The last batch is none that it had to look at.
    with pytest.raises(DataError, match=place):
        list(model.predict_batches(hole, batch_size=8, device=gpu))
    looked.clear()
    assert np.array_equal(model.predict(x, batch_size=8, device=gpu), wanted)
    assert not looked
    # What it met for another caller is no fault of these.
    for evaluator in model._evaluators._kept.values():
        evaluator.executor.write_array("not_finite", np.ones(1, np.int32))
    assert np.array_equal(model.predict(x, batch_size=8, device=gpu), wanted)
    assert sum(looked) == 20
    looked.clear()
    assert np.array_equal(model.predict(x, batch_size=8, device=gpu), wanted)
    assert not looked
    # Parts of arrays and other axes are no more to look at.
    model.predict(source.ArraySource(x, "x")[4:], batch_size=8, device=gpu)
    turned = source.UnitsFirst(source.ArraySource(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "x"))
    assert np.array_equal(model.predict(turned, batch_size=8, device=gpu), wanted)
    assert not looked


def test_a_gpu_loses_no_fault_of_one_of_two_callers(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one hears of its fault when the second one's batches are launched, and its flag not read yet."""
    as_gpu(monkeypatch, device)
    gpu, model, (x, _) = Device(device.info), tiny_model(), digits(20)
    wanted = model.predict(x, batch_size=8, device=gpu)
    (evaluator,) = model._evaluators._kept.values()
    ask = Evaluator._ask_for_faults

    def begin(place: int) -> Any:
        hole = x.copy()
        hole[place, 0, 0, 0] = np.nan
        return evaluator.begin(IndexedReader(sources_for(model.graph, hole, "x")), len(x))

    first = begin(3)

    def between(self: Evaluator) -> Any:
        monkeypatch.setattr(Evaluator, "_ask_for_faults", ask)
        with pytest.raises(DataError, match=r"index=\(3, 0, 0, 0\)"):
            first()
        return ask(self)

    monkeypatch.setattr(Evaluator, "_ask_for_faults", between)
    second = begin(5)
    with pytest.raises(DataError, match=r"index=\(5, 0, 0, 0\)"):
        second()
    assert np.array_equal(model.predict(x, batch_size=8, device=gpu), wanted)


@pytest.mark.filterwarnings("error")
def test_a_gpu_does_not_take_a_fault_for_an_overflow(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that are not finite make answers that are not, and no warning that halves cannot hold them."""
    as_gpu(monkeypatch, device)
    gpu, model, (x, _) = Device(device.info), tiny_model(), digits(20)
    x[2] = np.nan
    with pytest.raises(DataError, match="x must hold finite float32 values"):
        model.predict(x, batch_size=8, device=gpu, storage="float16")


def test_files_are_looked_at_as_they_are_read(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A mapped file takes longer to read than to look at: its fault is told of at once, on a GPU too."""
    as_gpu(monkeypatch, device)
    gpu, model, (x, _) = Device(device.info), tiny_model(), digits(20)
    x[1, 0, 2, 2] = np.inf
    np.save(tmp_path / "x.npy", x)
    runs: list[int] = []
    run = Evaluator._run
    monkeypatch.setattr(Evaluator, "_run", lambda self, count: (runs.append(count), run(self, count))[1])
    with pytest.raises(DataError, match=r"index=\(1, 0, 2, 2\)"):
        model.predict(np.load(tmp_path / "x.npy", mmap_mode="r"), batch_size=4, device=gpu)
    assert not runs


def test_a_gpu_sees_which_input_is_not_finite(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    as_gpu(monkeypatch, device)
    first, second = layers.Input(3, name="first")(), layers.Input(5, name="second")()
    model = Model([first, second], layers.Dense(2)(first) + layers.Dense(2)(second))
    x = {"first": np.ones((4, 3), np.float32), "second": np.ones((4, 5), np.float32)}
    gpu = Device(device.info)
    wanted = model.predict(x, device=gpu)
    for name in x:
        hole = {own: values.copy() for own, values in x.items()}
        hole[name][2, 1] = np.nan
        with pytest.raises(DataError, match=rf"{name}.*index=\(2, 1\)"):
            model.predict(hole, device=gpu)
    assert np.array_equal(model.predict(x, device=gpu), wanted)


def test_an_error_leaves_the_others_right(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, _) = tiny_model(), digits(40)
    wanted = model.predict(x, device=device, batch_size=8)
    run, calls = Evaluator._run, []

    def fails(self: Evaluator, count: int) -> None:
        calls.append(count)
        if len(calls) == 3:
            raise KeyboardInterrupt
        run(self, count)

    monkeypatch.setattr(Evaluator, "_run", fails)
    with pytest.raises(KeyboardInterrupt):
        model.predict(x, device=device, batch_size=8)
    assert np.array_equal(model.predict(x, device=device, batch_size=8), wanted)


def test_a_model_keeps_a_few_plans_only(device: Device, built: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_MAX_EVALUATORS", 2)
    model, (x, _) = tiny_model(), digits(20)
    for count in (1, 4, 16, 16, 1):
        model.predict(x[:count], device=device)
    assert built == [1, 4, 16, 1]
    assert len(model._evaluators._kept) == 2


@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_what_depends_on_parameters_alone_runs_once(device_class: str) -> None:
    graph = resnet50().graph
    plan = make_plan(graph, 1, tuning=tuning_for(device_class, compute_units=132, group_size=1024))
    constant, forward = plan.phase(CONSTANT), plan.phase("forward")
    written = {storage for call in constant for storage in call.storages("write")}
    assert all(call.storages("read", "update") <= {"parameters"} | written for call in constant)
    kinds = {call.kernel for call in forward}
    assert not kinds & {
        "convolution/pack_weight", "convolution/winograd_weight", "convolution/winograd_blocks", "normalization/fold",
        "blob/zero_halo",
    }  # fmt: skip
    # A processor packs the 13 that it filters minimally.
    packed = {"gpu": 53, "cpu": 13}[device_class]
    assert Counter(call.kernel == "normalization/fold" for call in constant) == {True: 53, False: packed}
    # What they made is nobody else's; but weights that are folded only to be packed lie where others will be made.
    read = {storage for call in forward for storage in call.storages("read")}
    made = {plan.placed[storage] for storage in written & read}
    passing = {storage for storage in written - read if storage.endswith("/folded weight")}
    assert len(passing) == packed
    assert len({plan.placed[storage] for storage in passing} - made) <= 1
    used = {plan.placed[storage] for call in forward for storage in call.storages("write") if storage in plan.placed}
    assert not made & used
    training = make_plan(graph, 1, training=True, loss=CrossEntropy(), tuning=tuning_for(device_class))
    assert training.phase(CONSTANT) == []
    calls = [call.kernel for _, call in training.calls]
    assert "normalization/fold" not in calls


def test_constants_are_made_anew_in_every_epoch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's plan packs weights: validation during a training must not see those of an earlier epoch."""
    as_gpu(monkeypatch, device)
    gpu = Device(device.info)
    x, y = digits(24)
    model: Model = tiny_model()
    seen = []

    class Looking(Callback):
        def epoch_end(self, progress: Progress) -> None:
            seen.append(model.evaluate(x, y, batch_size=8, device=gpu)["loss"])

    model.fit(x, y, epochs=3, batch_size=8, validation=(x, y), callbacks=[Looking()], device=gpu, verbose=False)
    assert seen == pytest.approx(model.history["validation_loss"], rel=1e-5)
    assert len(set(seen)) == 3


def test_a_model_lets_go_of_devices_that_nobody_else_has(device: Device) -> None:
    model, x = Sequential([layers.Input(3), layers.Dense(2)]), np.ones((4, 3), np.float32)
    owned = []
    for _ in range(12):
        own = Device(device.info)
        model.predict(x, device=own)
        owned.append(weakref.ref(own))
        del own
    model.predict(x, device=device)
    gc.collect()
    assert sum(item() is not None for item in owned) < 8  # As many evaluators as a model keeps, and no more.


#: Prints the bytes that the process holds after each of forty networks.
_FORTY = """
import gc, mmap, sys
from pathlib import Path
import numpy as np
from blobnet import Sequential, layers
from blobnet.device.device import Device

device = Device(sys.argv[1])
for number in range(40):  # Ten networks, again and again: to compile is what the first ones take.
    units = 5 + number % 10
    model = Sequential([layers.Input(units), layers.Dense(701), layers.Activation("relu"), layers.Dense(3)])
    x, y = np.ones((512, units), np.float32), np.arange(512) % 3  # Some megabytes of blobs a network.
    model.fit(x, y, epochs=1, batch_size=256, device=device, verbose=False)
    model.predict(x, device=device)
    gc.collect()
    print(int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_forty_networks_one_after_another_take_no_more_memory_than_twenty(device: Device) -> None:
    # In a process of its own: what other tests leave behind goes and comes by some megabytes.
    command = [sys.executable, "-c", _FORTY, device.info.address]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken = [int(line) for line in done.stdout.split()]
    assert len(taken) == 40
    assert taken[39] - taken[19] < 6 << 20, [size >> 20 for size in taken]
