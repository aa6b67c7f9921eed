"""Steps that are cut into shards: what they compute, and that any number of ranks gives the same bits."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blobnet import layers, models
from blobnet.callbacks import Checkpoint
from blobnet.device.device import Device
from blobnet.errors import BlobnetWarning, OptionError, PlanError, TrainingError
from blobnet.execution.inference import LabelledData
from blobnet.launch.kernel_call import Array
from blobnet.launch.work_sizes import sum_call
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import FLOAT32
from blobnet.model import Model, Sequential, load
from blobnet.network.parameters import parameter_table
from blobnet.optimizers import SGD
from blobnet.parallel.world import World, check_alike, check_room
from blobnet.planning import make_plan
from blobnet.planning.combining import with_combined
from blobnet.planning.request import Request
from blobnet.training.ranks import digest_of
from blobnet.training.settings import TrainingSettings
from blobnet.training.shard_sum import _touches, exchanges, sums_of, tree_adds
from blobnet.training.weight_buffers import GRADIENT_SUM, Sums
from tests.kinds import tuning_for
from tests.ranks import mpiexec, needs_mpi
from tests.tiny import digits, tiny_model
from tests.two_ends import LOSSES, data

X, Y = digits(45)
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "optimizer": SGD(0.05, momentum=0.9), "seed": 7}

#: A training of one rank of several: the file, the shards, how gradients are added, in buckets of how many bytes, and
#: how large those are at most that go whole.
RANK = """
import sys
from blobnet.training import shard_sum
from blobnet.training import weight_buffers
from blobnet.callbacks import Checkpoint
from blobnet.parallel.transports import HostMemory
from tests.tiny import tiny_model
from tests.train.test_shards import SETTINGS, X, Y

shard_sum.BUCKET, weight_buffers.WHOLE = int(sys.argv[4]), int(sys.argv[5])
if sys.argv[6:]:
    HostMemory.all_at_once, weight_buffers.WHOLE_AT_ONCE = True, int(sys.argv[6])
callback = Checkpoint(sys.argv[1], every_steps=4)
tiny_model().fit(X, Y, callbacks=callback, verbose=False, shards=int(sys.argv[2]), reduction=sys.argv[3], **SETTINGS)
"""


def plain_model() -> Model:
    """Without what depends on the other samples of a batch, and without noise."""
    return Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)])


def ranks(count: int, device: Device, *arguments: object) -> str:
    return mpiexec(count, device, "-c", RANK, *arguments, check=True).stdout


@pytest.mark.parametrize("accumulate", [1, 2])
def test_shards_train_as_whole_batches_do(device: Device, accumulate: int) -> None:
    # 45 samples: the last step has shards that are not whole, and empty ones.
    whole, cut = plain_model(), plain_model()
    whole.fit(X, Y, device=device, verbose=False, accumulate=accumulate, **SETTINGS)
    cut.fit(X, Y, device=device, verbose=False, accumulate=accumulate, shards=8, **SETTINGS)
    for name, values in whole.weights.items():
        np.testing.assert_allclose(cut.weights[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(cut.history["loss"], whole.history["loss"], rtol=1e-5)
    assert cut.history["accuracy"] == whole.history["accuracy"]


def test_statistics_are_the_mean_of_those_of_the_shards(device: Device) -> None:
    model = Sequential([layers.Input(1, 8, 8), layers.BatchNorm(momentum=0.1, name="norm"), layers.Flatten(),
                        layers.Dense(10)])  # fmt: skip
    model.fit(X[:16], Y[:16], epochs=1, batch_size=16, shards=4, optimizer=SGD(0.0), device=device, verbose=False)
    order = np.random.default_rng([0, 0]).permutation(16)
    shards = X[order].astype(np.float64).reshape(4, -1)
    mean, variance = shards.mean(axis=1).mean(), shards.var(axis=1, ddof=1).mean()
    np.testing.assert_allclose(model.weights["norm/running_mean"], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(model.weights["norm/running_variance"], 0.9 + 0.1 * variance, rtol=1e-5)


def test_two_gradients_a_step_are_those_of_whole_batches(device: Device) -> None:
    """Sharpness-aware steps, in one run and in several, of arrays and of streams."""
    settings = {**SETTINGS, "optimizer": SGD(0.05, momentum=0.9, sam=0.3), "device": device, "verbose": False}
    order = np.random.default_rng([7, 0]).permutation(45)
    whole, plain = plain_model(), plain_model()
    whole.fit(X, Y, **settings | {"epochs": 1})
    plain.fit(X, Y, **settings | {"epochs": 1, "optimizer": SGD(0.05, momentum=0.9)})
    batches = [(X[order[first : first + 8]], Y[order[first : first + 8]]) for first in range(0, 45, 8)]
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X, Y), {"shards": 8}),
        ((X, Y), {"batch_size": 8, "accumulate": 2}),
        ((batches,), {"batch_size": 8, "accumulate": 2}),
        ((batches,), {"batch_size": 8, "accumulate": 2, "shards": 4, "debug": True}),
    ]
    for given, more in ways:
        found = plain_model()
        found.fit(*given, **settings | {"epochs": 1} | more)
        for name, values in whole.weights.items():
            np.testing.assert_allclose(found.weights[name], values, rtol=1e-4, atol=1e-6, err_msg=f"{name} {more}")
        np.testing.assert_allclose(found.history["loss"], whole.history["loss"], rtol=1e-5)
        assert found.history["accuracy"] == whole.history["accuracy"]
    assert all(
        not np.allclose(plain.weights[name], whole.weights[name], rtol=1e-2, atol=1e-4) for name in ("dense_1/weight",)
    )


#: Sharpness-aware steps of one rank of several.
CLIMBING = """
import sys
from tests.train.test_shards import climbing
climbing(sys.argv[1])
"""


def climbing(path: object, **more: Any) -> Model:
    model, optimizer = tiny_model(), SGD(0.05, momentum=0.9, sam=0.1)
    callback = Checkpoint(path, every_steps=2)
    settings = {**SETTINGS, "accumulate": 2, "optimizer": optimizer, "callbacks": callback, **more}
    model.fit(X, Y, shards=4, verbose=False, **settings)
    return model


@needs_mpi
def test_two_gradients_a_step_do_not_depend_on_ranks(device: Device, tmp_path: Path) -> None:
    climbing(tmp_path / "1.h5", device=device)
    mpiexec(2, device, "-c", CLIMBING, tmp_path / "2.h5", check=True)
    assert (tmp_path / "2.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()


#: The last batch of each epoch has samples for the first rank alone: who has none exchanges buckets all the same.
FEW = RANK.replace("fit(X, Y", "fit(X[:40], Y[:40]")


@needs_mpi
def test_a_rank_without_samples_in_a_step(device: Device, tmp_path: Path) -> None:
    alone = tiny_model()
    callback = Checkpoint(tmp_path / "1.h5", every_steps=4)
    alone.fit(X[:40], Y[:40], device=device, verbose=False, shards=4, callbacks=callback, **SETTINGS)
    mpiexec(2, device, "-c", FEW, tmp_path / "2.h5", 4, "ordered", 300, 0, check=True)
    assert (tmp_path / "2.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()


@pytest.mark.long
@needs_mpi
def test_any_number_of_ranks_writes_the_same_file(device: Device, tmp_path: Path) -> None:
    alone = tiny_model()
    callback = Checkpoint(tmp_path / "1.h5", every_steps=4)
    alone.fit(X, Y, device=device, verbose=False, shards=4, callbacks=callback, **SETTINGS)
    # In buckets while the backward pass goes on.
    for count, bucket, whole in ((2, 1000, 0), (4, 300, 700)):
        assert ranks(count, device, tmp_path / f"{count}.h5", 4, "ordered", bucket, whole) == ""
        assert (tmp_path / f"{count}.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    # As GPUs copy, each rank from all others at once: pieces, or all; in one bucket and in several.
    for count, bucket, at_once in ((4, 1000, 0), (4, 1 << 30, 1 << 30), (2, 1000, 0), (4, 1000, 1 << 30)):
        assert ranks(count, device, tmp_path / "once.h5", 4, "ordered", bucket, 0, at_once) == ""
        assert (tmp_path / "once.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    # In an order of MPI's the same but for rounding.
    assert ranks(2, device, tmp_path / "fast.h5", 4, "fast", 1000, 0) == ""
    fast = load(tmp_path / "fast.h5")
    for name, values in alone.weights.items():
        np.testing.assert_allclose(fast.weights[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
    # What two ranks began one goes on with.
    begun = load(tmp_path / "2.h5")
    alone.fit(X, Y, device=device, verbose=False, resume=True, **(SETTINGS | {"epochs": 3}))
    begun.fit(X, Y, device=device, verbose=False, resume=True, **(SETTINGS | {"epochs": 3}))
    for name, values in alone.weights.items():
        assert begun.weights[name].tobytes() == values.tobytes(), name


#: The same with batch norms over all shards; batches after which some ranks have no samples at all.
IN_STEP = """
import sys
from tests.train.test_shards import X, Y, in_step
in_step(sys.argv[1], int(sys.argv[2]))
"""


def in_step(path: object, accumulate: int, **more: Any) -> Model:
    """Trains four shards; the last steps fill one and a half of them."""
    model = tiny_model()
    callback = Checkpoint(path, every_steps=2)
    settings = {**SETTINGS, "accumulate": accumulate, "sync_batch_norm": True, "callbacks": callback, **more}
    model.fit(X[:38], Y[:38], shards=4, verbose=False, **settings)
    return model


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("accumulate", [1, 2])
def test_batch_norms_over_all_shards_do_not_depend_on_ranks(device: Device, tmp_path: Path, accumulate: int) -> None:
    alone = in_step(tmp_path / "1.h5", accumulate, device=device)
    for count in (2, 4):
        mpiexec(count, device, "-c", IN_STEP, tmp_path / f"{count}.h5", accumulate, check=True)
        assert (tmp_path / f"{count}.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    assert np.isfinite(alone.history["loss"]).all()
    rule = r"resume: the choice of sync_batch_norm must be that of .* Received saved=True, now=False"
    now = {**SETTINGS, "epochs": 3, "accumulate": accumulate, "sync_batch_norm": False}
    with pytest.raises(OptionError, match=rule):
        load(tmp_path / "2.h5").fit(X[:38], Y[:38], resume=True, device=device, **now)


def norm_model() -> Model:
    """Batch norms one behind the other, of one plane and of several, and none of a value of its own."""
    return Sequential([layers.Input(1, 8, 8), layers.Conv2D(4, 3, bias=False), layers.BatchNorm(name="first"),
                       layers.Activation("relu"), layers.Flatten(), layers.Dense(12), layers.BatchNorm(name="second"),
                       layers.Dense(10)])  # fmt: skip


@pytest.mark.parametrize("kind", ["arrays", "stream", "changed"])
def test_batch_norms_over_all_shards_are_those_of_whole_batches(device: Device, kind: str) -> None:
    settings = {**SETTINGS, "class_weights": {3: 2.0}, "device": device, "verbose": False}
    given: tuple[Any, ...] = (X, Y)
    if kind == "stream":
        given = ([(X[first:end], Y[first:end]) for first, end in ((0, 16), (16, 27), (27, 29), (29, 45))],)
    elif kind == "changed":
        settings |= {"augment": "flip, crop=1", "sample_weights": np.linspace(0.5, 2, 45), "class_weights": None}
    whole, cut = norm_model(), norm_model()
    whole.fit(*given, **settings)
    # Debug mode looks at all memory behind each launch.
    cut.fit(*given, shards=8, sync_batch_norm=True, debug=kind == "arrays", **settings)
    for name, values in whole.weights.items():
        np.testing.assert_allclose(cut.weights[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(cut.history["loss"], whole.history["loss"], rtol=1e-5)


def test_all_inputs_of_a_shard_come_in_before_those_of_the_next(device: Device) -> None:
    # The second one stands behind a batch norm: all shards are loaded by then.
    def network() -> Model:
        picture, state = layers.Input(2, 6, 5)(), layers.Input(3)()
        image = layers.BatchNorm()(layers.Conv2D(4, 3, padding=1)(picture))
        joined = layers.Concat()([layers.GlobalAveragePool()(image), layers.Dense(4)(state)])
        ends = {"mask": layers.Conv2D(3, 1)(image), "value": layers.Dense(2)(layers.BatchNorm()(joined))}
        return Model({"image": picture, "state": state}, ends)

    whole, cut = network(), network()
    settings = {**SETTINGS, "loss": LOSSES, "loss_weights": {"mask": 0.5}, "device": device, "verbose": False}
    whole.fit(*data(23), **settings)
    cut.fit(*data(23), shards=4, sync_batch_norm=True, debug=True, **settings)
    for name, values in whole.weights.items():
        np.testing.assert_allclose(cut.weights[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("freeze", [None, "norm2"])
def test_without_batch_norms_there_is_nothing_to_wait_for(device: Device, freeze: str | None) -> None:
    found = []
    for sync_batch_norm in (False, True):
        model = tiny_model() if freeze else plain_model()
        settings = {**SETTINGS, "freeze": freeze, "sync_batch_norm": sync_batch_norm}
        model.fit(X, Y, shards=4, device=device, verbose=False, **settings)
        assert model.training_state is not None
        assert "sync_batch_norm" not in model.training_state.settings
        found.append({name: values.tobytes() for name, values in model.weights.items()})
    assert found[0] == found[1]


def test_a_batch_norm_over_all_shards_against_float64(device: Device) -> None:
    model = Sequential([layers.Input(9), layers.Dense(6, bias=False, name="in"), layers.BatchNorm(name="norm"),
                        layers.Dense(5, bias=False, name="out")])  # fmt: skip
    random = np.random.default_rng(5)
    x, y = (random.normal(3, 1, (11, 9)).astype(np.float32), random.integers(0, 5, 11))
    before = {name: values.astype(np.float64) for name, values in model.weights.items()}
    # Shards of 4, 4, 3 and 0 samples.
    settings = {"epochs": 1, "batch_size": 16, "shards": 4, "sync_batch_norm": True, "optimizer": SGD(1.0)}
    model.fit(x, y, device=device, verbose=False, **settings)

    hidden = x.astype(np.float64) @ before["in/weight"].T
    deviation = np.sqrt(hidden.var(axis=0) + 1e-5)
    normal = (hidden - hidden.mean(axis=0)) / deviation
    powers = np.exp(normal @ before["out/weight"].T)
    delta = (powers / powers.sum(axis=1, keepdims=True) - np.eye(5)[y]) / 11
    back = delta @ before["out/weight"]
    through = (back - back.mean(axis=0) - normal * (back * normal).mean(axis=0)) / deviation
    wanted = {
        "out/weight": before["out/weight"] - delta.T @ normal,
        "in/weight": before["in/weight"] - through.T @ x,
        "norm/scale": 1 - (back * normal).sum(axis=0),
        "norm/shift": -back.sum(axis=0),
        "norm/running_mean": 0.1 * hidden.mean(axis=0),
        "norm/running_variance": 0.9 + 0.1 * hidden.var(axis=0, ddof=1),
    }
    for name, values in wanted.items():
        np.testing.assert_allclose(model.weights[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


#: What a rank may be started with that the others are not, and what the error calls it.
UNLIKE: dict[str, dict[str, Any]] = {
    "seed": {"seed": 8},
    "epochs": {"epochs": 3},
    "optimizer": {"optimizer": SGD(0.05)},
    "loss": {"loss": CrossEntropy(label_smoothing=0.1)},
    "data": {"x": np.where(np.arange(45).reshape(-1, 1, 1, 1) == 44, 0.5, X)},
    "samples": {"x": X[:44], "y": Y[:44]},
    "validation": {"validation": (X[:9], Y[1:10])},
    "class weights": {"class_weights": {3: 2.0}},
    "sample weights": {"sample_weights": np.arange(45.0)},
    "average": {"average": 0.9},
    "set of frozen parameters": {"freeze": "conv1"},
    "augmentation": {"augment": "flip"},
    "batch size": {"batch_size": 32},
    "metrics": {"metrics": "f1"},
}


class InAFile:
    """Samples that are read, of which ranks compare few before."""

    shape, dtype = (450, *X.shape[1:]), X.dtype

    def __init__(self, changed: int) -> None:
        self.values = np.tile(X, (10, 1, 1, 1))
        self.values[222] += changed

    def __len__(self) -> int:
        return 450

    def __getitem__(self, rows: Any) -> Any:
        return self.values[rows]


#: A rank that tries all that.
DIFFERING = """
from blobnet.errors import BlobnetError
from blobnet.parallel.world import World
import numpy as np
from tests.tiny import tiny_model
from tests.train.test_shards import SETTINGS, UNLIKE, InAFile, X, Y

file = open(f"{World.current().rank}.txt", "w")
mine = World.current().rank
trained = {"x": InAFile(mine), "y": np.tile(Y, 10)}
measured = {"validation": (InAFile(mine), np.tile(Y, 10))}
for own in [*UNLIKE.values(), {"shards": 1}, {"batch_size": 10}, trained, measured]:
    given = {"x": X, "y": Y, "shards": 4, "validation": (X[:9], Y[:9]), **SETTINGS}
    try:
        is_own = mine or own is trained or own is measured
        tiny_model().fit(**given | own if is_own else given, verbose=False)
        print("nothing", file=file)
    except BlobnetError as error:
        print(error, file=file)
"""


@pytest.mark.long
@needs_mpi
def test_ranks_that_differ_are_refused(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BLOBNET_CHECK", raising=False)  # With it devices keep no samples, and few are compared.
    mpiexec(2, device, "-c", DIFFERING, check=True)
    for rank in "01":
        own = Path(f"{rank}.txt").read_text().splitlines()
        for name, line in zip(UNLIKE, own, strict=False):
            assert line.startswith(f"rank 1: all ranks must train with the same {name}. Received rank_1="), line
        rules = (
            "MPI: every rank must have as many shards of a batch, and at least one. Received ranks=2, shards=1.",
            "shards: the shards must divide a batch. Received batch_size=10, shards=4. Hint: take a batch of 8 or 12.",
        )
        for rule, line in zip(rules, own[len(UNLIKE) : -2], strict=True):
            # What one rank alone meets, the others are told.
            assert line.removeprefix("on rank 1: ").startswith(rule)
            assert line.startswith("on rank 1: ") == (rank == "0")
        assert len(own) == len(UNLIKE) + 4
        for line in own[-2:]:
            assert line.startswith("rank 1: all ranks must train with the same samples. Received rank_1="), line


ONE_RANK = """
from tests.tiny import tiny_model
from tests.train.test_shards import SETTINGS, X, Y
model = tiny_model()
model.fit(X, Y, verbose=False, callbacks=__import__("blobnet").callbacks.Checkpoint("a.h5"), **SETTINGS)
"""


@needs_mpi
def test_one_rank_has_the_shards_of_several(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpiexec(1, device, "-c", ONE_RANK, check=True)
    state = load("a.h5").training_state
    assert state is not None
    assert state.settings["shards"] == 8


@pytest.mark.parametrize("changed", ["x", "y"])
def test_data_that_differ_in_one_sample_are_seen(changed: str) -> None:
    graph, loss = tiny_model().graph, CrossEntropy()
    given = {"x": np.tile(X, (20, 1, 1, 1)), "y": np.tile(Y, 20)}
    before = digest_of(LabelledData(graph, [loss], given["x"], given["y"]))
    assert before == digest_of(LabelledData(graph, [loss], given["x"].copy(), given["y"].copy()))
    given[changed][701] += 1
    assert before != digest_of(LabelledData(graph, [loss], given["x"], given["y"]))


class TwoRanks(World):
    """Which both have what this process has, but for what the other one is said to have."""

    size = 2

    def __init__(self, *others: Any) -> None:
        self.others = others

    def gather(self, value: Any) -> list[Any]:
        return [value, *(self.others or [value])]


def test_ranks_that_share_a_device_share_its_memory(device: Device) -> None:
    room = device.info.memory
    check_room(TwoRanks(), device.info, room // 2)
    check_room(TwoRanks((("another host", device.info.address), room)), device.info, room)
    rule = r"MPI: ranks that share a device must fit its memory together\. Received ranks=0, 1, device=.+, needed="
    with pytest.raises(PlanError, match=rule):
        check_room(TwoRanks(), device.info, room // 2 + 1)


def test_devices_of_different_kinds_are_said(device: Device, recwarn: pytest.WarningsRecorder) -> None:
    check_alike(TwoRanks(), device.info)
    assert not recwarn.list
    with pytest.warns(BlobnetWarning, match=r"rank 1: the same bits .* devices of one kind\. Received device=Other,"):
        check_alike(TwoRanks("Other"), device.info)


def test_buckets_are_parts_from_the_end_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_model().graph
    table = parameter_table(graph)
    world = World()
    world.size = 4
    assert sums_of(graph, table, TrainingSettings(shards=4), world).parts == (range(table.trainable_elements + 32),)
    monkeypatch.setattr("blobnet.training.shard_sum.BUCKET", 300)
    # The weights of logits; those of conv2 and conv1, which alone are no bucket; all that is plain, and the statistics.
    second, plain = table.slices["logits/weight"].offset, table.groups[0].decayed_elements
    assert sums_of(graph, table, TrainingSettings(shards=4), world).parts == (
        range(second, plain),
        range(second),
        range(plain, table.trainable_elements + 32),
    )
    world.transport = SimpleNamespace(all_at_once=True, adds=True)
    assert len(sums_of(graph, table, TrainingSettings(shards=4), world).parts) == 3
    # What comes from so many ranks has no room where the gradients of such a bucket were.
    world.size = 64
    assert sums_of(graph, table, TrainingSettings(shards=64), world).parts == (range(table.trainable_elements + 32),)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_exchanges_add_along_the_tree(ranks: int, whole: bool) -> None:
    """On every rank the sums of a balanced tree, bit for bit, of as many elements as are said to be sent."""
    part = range(48, 48 + 5 * 16)
    own = np.random.default_rng(ranks).standard_normal((ranks, part.stop)).astype(np.float32)
    tree = own
    while len(tree) > 1:
        tree = tree[::2] + tree[1::2]
    trees = [exchanges(part, rank, ranks, whole=whole) for rank in range(ranks)]
    sent = np.zeros(ranks, int)

    def slices(elements: range) -> slice:
        return slice(elements.start, elements.stop)

    def swapped(number: int, there: bool) -> list[Any]:
        """What comes to each rank."""
        found = []
        for rank, of_rank in enumerate(trees):
            partner = trees[of_rank[number].partner][number]
            given, taken = (partner.other, of_rank[number].mine) if there else (partner.mine, of_rank[number].other)
            assert (partner.partner, given) == (rank, taken)
            found.append(own[of_rank[number].partner, slices(given)].copy())
            sent[of_rank[number].partner] += len(given)
        return found

    for number, levels in enumerate(zip(*trees, strict=True)):
        for rank, (level, come) in enumerate(zip(levels, swapped(number, there=True), strict=True)):
            own[rank, slices(level.mine)] += come
    for number, levels in reversed([*enumerate(zip(*trees, strict=True))]):
        if levels[0].comes_back:
            for rank, (level, come) in enumerate(zip(levels, swapped(number, there=False), strict=True)):
                own[rank, slices(level.other)] = come
    for rank, levels in enumerate(trees):
        assert own[rank, slices(part)].tobytes() == tree[0, slices(part)].tobytes()
        assert sent[rank] == sum(level.elements for level in levels)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_each_rank_adds_along_the_same_tree(ranks: int) -> None:
    """The sums of all ranks at once have the bits of those in pairs, on every rank."""
    own = np.random.default_rng(ranks).standard_normal((ranks, 1000)).astype(np.float32)
    tree = own
    while len(tree) > 1:
        tree = tree[::2] + tree[1::2]
    for rank in range(ranks):
        held = own.copy()
        for into, added in tree_adds(rank, ranks):
            held[into] += held[added]
            held[added] = 0
        assert held[rank].tobytes() == tree[0].tobytes()


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("elements", [32, 96, 32 * 1001, 32 << 20])
def test_pieces_of_ranks_are_a_part(ranks: int, elements: int) -> None:
    part = range(64, 64 + elements)
    sums = Sums(1 << 30, range(0), 1, parts=(part,), ranks=ranks)
    pieces = sums.pieces(part)
    if sums.goes_whole(part):
        assert pieces == [part] * ranks
    else:
        assert [place for piece in pieces for place in piece[:: len(piece) or 1]] == [p.start for p in pieces if p]
        assert sum(map(len, pieces)) == elements
        assert sums.room(part) >= (ranks - 1) * max(map(len, pieces))
    # Of two, each adds all: as many bytes as with pieces, in one message.
    assert sums.goes_whole(part) == (ranks == 2 or elements < 1 << 20)


@pytest.mark.parametrize(("ranks", "sums"), [(8, 1), (4, 1), (2, 2), (1, 3)])
def test_sums_take_as_much_as_gradients(ranks: int, sums: int) -> None:
    graph = plain_model().graph
    table = parameter_table(graph)
    world = World()
    world.size = ranks
    for accumulate in (False, True):
        memory = sums_of(graph, table, TrainingSettings(shards=8), world, accumulate=accumulate).memory()
        assert memory[GRADIENT_SUM] == (sums + (accumulate and ranks < 8)) * table.trainable_elements


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_needs_at_most_its_gradients_more_than_one_device_for_the_same_samples(ranks: int, kind: str) -> None:
    graph = models.resnet8().graph
    table, world = parameter_table(graph), World()
    world.size = ranks

    def plan_bytes(samples: int) -> int:
        settings: dict[str, Any] = {"loss": CrossEntropy(), "training": True, "parameters": table}
        return make_plan(graph, samples, tuning=tuning_for(kind), **settings).bytes()

    sums = sums_of(graph, table, TrainingSettings(shards=8), world)
    beside = FLOAT32.itemsize * sum(sums.memory().values())
    # The statistics of batch norms: those before the step, and their sum; and two numbers.
    norms = FLOAT32.itemsize * (2 * len(sums.statistics) + 2)
    extra = plan_bytes(32 * ranks // 8) + beside - plan_bytes(32)
    assert extra <= FLOAT32.itemsize * table.trainable_elements + norms
    # Several shards leave room, since one is computed at a time.
    assert extra < 0 or ranks == 8


def test_reductions_have_names(device: Device) -> None:
    with pytest.raises(OptionError, match=r"reduction: it must be ordered or fast\. Received quick"):
        plain_model().fit(X, Y, reduction="quick", device=device)


@pytest.mark.parametrize(
    ("shards", "batch_size", "message"),
    [
        (3, 12, r"shards: the number of shards must be a power of two: .* Received shards=3"),
        (8, 12, r"shards: the shards must divide a batch\. Received batch_size=12, shards=8"),
    ],
)
def test_batches_that_cannot_be_cut(device: Device, shards: int, batch_size: int, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        plain_model().fit(X, Y, batch_size=batch_size, shards=shards, device=device, loss=CrossEntropy())


def test_shards_keep_the_promise(device: Device) -> None:
    model = tiny_model()
    model.fit(X[:20], Y[:20], batch_size=16, shards=4, device=device, debug=True, verbose=False)
    assert np.isfinite(model.history["loss"]).all()


def check_that_a_later_shard_stops_the_step(device: Device) -> None:
    """One whose loss is not finite: no weight changes."""
    x = np.zeros((16, 1, 8, 8), np.float32)
    x[np.random.default_rng([0, 0]).permutation(16)[13]] = 3e38  # In the last of four shards.
    model = plain_model()
    before = {name: values.tobytes() for name, values in model.weights.items()}
    with pytest.raises(TrainingError, match=r"the loss must stay finite\. Received epoch=1, step=0"):
        model.fit(x, Y[:16], batch_size=16, shards=4, device=device, optimizer=SGD(1e30), verbose=False)
    assert {name: values.tobytes() for name, values in model.weights.items()} == before


@pytest.mark.filterwarnings("ignore:.*samples should be normalised")
def test_a_loss_that_is_not_finite_in_a_later_shard_stops_the_step(device: Device) -> None:
    check_that_a_later_shard_stops_the_step(device)


@needs_mpi
def test_the_command_line_prints_and_writes_once(device: Device, tmp_path: Path) -> None:
    options = ["lenet5", "--dataset", "digits", "--epochs", "1", "--csv", str(tmp_path / "log.csv")]
    options += ["--batch-size-per-device", "256", "--output", str(tmp_path / "out.h5")]
    first, again = (mpiexec(2, device, "-m", "blobnet", "train", *options) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("test accuracy") == first.stderr.count("epoch  ") == 1
    state = load(tmp_path / "out.h5").training_state
    assert state is not None
    assert (state.settings["batch_size"], state.settings["shards"]) == (512, 8)
    assert again.returncode == 1
    assert again.stderr.count("there is such a file already") == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_streams_are_cut_as_well(device: Device, accumulate: int) -> None:
    # 41 samples, of which one batch is longer than those of a step, one has less samples than there are shards.
    stream = [(X[first:end], Y[first:end]) for first, end in ((0, 16), (16, 19), (19, 41))]
    whole, cut = plain_model(), plain_model()
    whole.fit(stream, device=device, verbose=False, accumulate=accumulate, **SETTINGS)
    cut.fit(stream, device=device, verbose=False, accumulate=accumulate, shards=8, **SETTINGS)
    for name, values in whole.weights.items():
        np.testing.assert_allclose(cut.weights[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(cut.history["loss"], whole.history["loss"], rtol=1e-5)
    assert cut.history["accuracy"] == whole.history["accuracy"]


def test_random_numbers_of_streams_do_not_depend_on_shards(device: Device) -> None:
    stream = [(X[first:end], Y[first:end]) for first, end in ((0, 16), (16, 27))]
    found = []
    for shards in (1, 8):
        model = Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dropout(0.5), layers.Dense(10)])
        model.fit(stream, device=device, verbose=False, shards=shards, **SETTINGS)
        found.append(model.weights)
    for name, values in found[0].items():
        np.testing.assert_allclose(found[1][name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_process_that_mpi_started_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    from blobnet.parallel.world import World, _started

    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    _started.cache_clear()
    with pytest.raises(OptionError, match=r'MPI: .* needs mpi4py.*Hint: pip install "blobnet\[mpi\]"'):
        World.current()


class OfAnotherMpi:
    """The world that a library finds which is not that of the mpiexec that started the process."""

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Get_size(self) -> int:  # noqa: N802
        return 1

    def Split_type(self, kind: int) -> OfAnotherMpi:  # noqa: N802
        return self


def test_an_mpi_that_is_not_that_of_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    from blobnet.parallel.world import World, _started

    library = SimpleNamespace(
        Is_initialized=lambda: True, COMM_WORLD=OfAnotherMpi(), Get_library_version=lambda: "Some MPI v1\nbuilt today"
    )
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace(initialize=True, finalize=None)))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", library)
    _started.cache_clear()
    with pytest.raises(OptionError, match=r"MPI: .* Received started=2, found=1, mpi4py_uses=Some MPI v1\. Hint: pip"):
        World.current()


def test_a_part_of_the_gradients_waits_for_those_of_its_own_in_a_combined_launch() -> None:
    """Not for all between the first and the last that the launch sums."""
    tuning = tuning_for("gpu")
    gradients = [Array("gradients", 100, offset=offset, persistent=True) for offset in (0, 1000)]
    sums = [sum_call("a layer", Array(f"parts {item.offset}", 200), item, 2, tuning) for item in gradients]
    request = Request(Sequential([layers.Input(2), layers.Dense(2)]).graph, 1, tuning=tuning)
    ((_, call),) = with_combined(request, [("backward", item) for item in sums])
    assert call.arrays["GRADIENT"].elements == 1100
    parts = range(50, 60), range(100, 1000), range(1099, 2000), range(1100, 2000)
    assert [_touches(call, part) for part in parts] == [True, False, True, False]
