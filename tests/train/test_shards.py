"""Steps that are cut into shards: what they compute, and that any number of ranks gives the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import layers
from blobnet.callbacks import Checkpoint
from blobnet.device import Device
from blobnet.errors import OptionError, TrainingError
from blobnet.losses import CrossEntropy
from blobnet.model import Model, Sequential, load
from blobnet.optimizers import SGD
from tests.tiny import digits, tiny_model

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")
X, Y = digits(45)
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "optimizer": SGD(0.05, momentum=0.9), "seed": 7}

#: A training of one rank of several: the file, how much the seeds of ranks differ, and the shards.
RANK = """
import sys
from blobnet.callbacks import Checkpoint
from blobnet.errors import BlobnetError
from blobnet.parallel import World
from tests.tiny import tiny_model
from tests.train.test_shards import SETTINGS, X, Y

own = {"seed": 7 + int(sys.argv[2]) * World.current().rank, "shards": int(sys.argv[3])}
try:
    model = tiny_model()
    model.fit(X, Y, callbacks=Checkpoint(sys.argv[1], every_steps=4), verbose=False, **(SETTINGS | own))
except BlobnetError as error:
    print(error, flush=True)
"""


def plain_model() -> Model:
    """Without what depends on the other samples of a batch, and without noise."""
    return Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)])


def ranks(count: int, device: Device, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BLOBNET_DEVICE": device.info.address}
    command = [MPIEXEC, "-n", str(count), sys.executable, "-c", RANK, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


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


@pytest.mark.skipif(not MPIEXEC.exists(), reason="needs mpi4py and mpich")
def test_any_number_of_ranks_writes_the_same_file(device: Device, tmp_path: Path) -> None:
    alone = tiny_model()
    callback = Checkpoint(tmp_path / "1.h5", every_steps=4)
    alone.fit(X, Y, device=device, verbose=False, shards=4, callbacks=callback, **SETTINGS)
    for count in (2, 4):
        assert ranks(count, device, tmp_path / f"{count}.h5", 0, 4) == ""
        assert (tmp_path / f"{count}.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    # What two ranks began one goes on with.
    begun = load(tmp_path / "2.h5")
    alone.fit(X, Y, device=device, verbose=False, resume=True, **(SETTINGS | {"epochs": 3}))
    begun.fit(X, Y, device=device, verbose=False, resume=True, **(SETTINGS | {"epochs": 3}))
    for name, values in alone.weights.items():
        assert begun.weights[name].tobytes() == values.tobytes(), name


@pytest.mark.skipif(not MPIEXEC.exists(), reason="needs mpi4py and mpich")
def test_ranks_that_differ_are_refused(device: Device, tmp_path: Path) -> None:
    rule = "rank 1: all ranks must train with the same seed. Received rank_1=8, rank_0=7."
    assert ranks(2, device, tmp_path / "none.h5", 1, 4).count(rule) == 2
    rule = "MPI: every rank must have as many shards of a batch, and at least one. Received ranks=2, shards=1."
    assert ranks(2, device, tmp_path / "none.h5", 0, 1).count(rule) == 2
    assert not (tmp_path / "none.h5").exists()


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


@pytest.mark.filterwarnings("ignore:.*samples should be normalised")
def test_a_loss_that_is_not_finite_in_a_later_shard_stops_the_step(device: Device) -> None:
    x = np.zeros((16, 1, 8, 8), np.float32)
    x[np.random.default_rng([0, 0]).permutation(16)[13]] = 3e38  # In the last of four shards.
    model = plain_model()
    before = {name: values.tobytes() for name, values in model.weights.items()}
    with pytest.raises(TrainingError, match=r"the loss must stay finite\. Received epoch=1, step=0"):
        model.fit(x, Y[:16], batch_size=16, shards=4, device=device, optimizer=SGD(1e30), verbose=False)
    assert {name: values.tobytes() for name, values in model.weights.items()} == before


@pytest.mark.skipif(not MPIEXEC.exists(), reason="needs mpi4py and mpich")
def test_the_command_line_prints_and_writes_once(device: Device, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BLOBNET_DEVICE": device.info.address}
    options = ["lenet5", "--dataset", "digits", "--epochs", "1", "--csv", str(tmp_path / "log.csv")]
    options += ["--batch-size-per-device", "256", "--output", str(tmp_path / "out.h5")]
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "blobnet", "train", *options]
    first, again = (
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120) for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("test accuracy") == first.stderr.count("epoch  ") == 1
    state = load(tmp_path / "out.h5").training_state
    assert state is not None
    assert (state.settings["batch_size"], state.settings["shards"]) == (512, 8)
    assert again.returncode == 1
    assert again.stderr.count("there is such a file already") == 1


def test_streams_have_one_shard(device: Device) -> None:
    with pytest.raises(OptionError, match="shards: samples must have numbers to be dealt out to shards"):
        plain_model().fit([(X[:8], Y[:8])], batch_size=8, shards=2, device=device, verbose=False)


def test_a_process_that_mpi_started_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    from blobnet.parallel import World, _started

    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    _started.cache_clear()
    with pytest.raises(OptionError, match=r"MPI: .* needs mpi4py.*Hint: pip install 'blobnet\[mpi\]'"):
        World.current()
