"""One of several ranks is killed, hangs or meets an error: all end, in a line that names it."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from blobnet import layers
from blobnet.callbacks import Callback, Checkpoint
from blobnet.command_line.main import main
from blobnet.device.device import Device
from blobnet.execution import loader
from blobnet.model import Sequential, load
from blobnet.network.ends import TOTALS
from blobnet.optimizers import SGD
from blobnet.parallel import heartbeat
from blobnet.parallel.world import World
from tests.ranks import MPIEXEC, TCP, mpiexec, needs_mpi
from tests.tiny import digits

X, Y = digits(64)
SETTINGS: dict[str, Any] = {"batch_size": 16, "shards": 2, "optimizer": SGD(0.01), "verbose": False}


class Samples:
    """Which a disk gives, until it does not."""

    shape, dtype = X.shape, X.dtype

    def __init__(self) -> None:
        self.batches = 0
        self.hangs = False

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, rows: Any) -> Any:
        self.batches += 1
        if self.hangs and self.batches > 6:
            time.sleep(600)
        return X[rows]


class BrokenVariant(Callback):
    """Meets it after some steps."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def step_end(self, progress: Any) -> None:
        if progress.trainer.step.number == 6:
            if self.kind in ("killed", "stopped"):
                time.sleep(0.5)  # The other one may still be in the step that this one has ended.
            if self.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.kind == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif self.kind in ("error", "hasty"):
                raise ValueError("what a callback\nsays")


def network() -> Sequential:
    """With statistics, which a step moves before its end."""
    return Sequential([layers.Input(1, 8, 8), layers.BatchNorm(), layers.Flatten(), layers.Dense(10)])


def train(kind: str, path: str, at_fault: int) -> None:
    """What each rank does; one of them meets a fault."""
    heartbeat.SILENCE, heartbeat.INTERVAL, heartbeat.PATIENCE = 2.0, 0.2, 1.0
    loader._SHARE_OF_HOST = loader._SHARE_OF_MEMORY = 0  # All samples are read again in every epoch.
    if kind == "hasty":
        importlib.import_module("mpi4py").rc.finalize = False  # Which may not wait for others.
    is_at_fault = World.current().rank == at_fault
    samples = Samples()
    samples.hangs = is_at_fault and kind == "disk"
    model = network()
    callbacks = [Checkpoint(path, every_steps=5), *([BrokenVariant(kind)] if is_at_fault else [])]
    model.fit(samples, Y, epochs=50, callbacks=callbacks, **SETTINGS)


#: ``blobnet train`` on a rank that is told to end once there is a file.
TOLD = """
import os, signal, sys, threading, time
from pathlib import Path
from blobnet.command_line.main import main
from blobnet.parallel.world import World

def tell():
    while not Path("a.h5").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

if World.current().rank == 1:
    threading.Thread(target=tell, daemon=True).start()
options = "train lenet5 --dataset digits --batch-size 64 --schedule constant --epochs 5000 --output a.h5"
sys.exit(main(options.split()))
"""


@needs_mpi
def test_sigterm_on_one_rank_saves_and_ends_all(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mpiexec(2, device, "-c", TOLD)
    assert done.returncode == 143, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "interrupted" in line]
    state = load("a.h5").training_state
    assert state is not None
    assert state.place
    assert said == (f"interrupted; the last checkpoint is a.h5 (in epoch {state.epoch + 1}, after step {state.step}).")
    options = f"--epochs {state.epoch + 1} --resume --output a.h5 --device {device.info.address}"
    assert main(f"train lenet5 --dataset digits --batch-size 64 --schedule constant {options} --shards 8".split()) == 0


@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_mpiexec_that_is_killed_leaves_a_line(device: Device, tmp_path: Path, number: int) -> None:
    """In a file that holds something already, behind which the line stands."""
    options = (
        "-m blobnet train lenet5 --dataset digits --batch-size 512 --schedule constant --epochs 5000 --output a.h5"
    )
    command = [MPIEXEC, "-n", "2", sys.executable, *options.split(), "--device", device.info.address]
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("r+") as stderr:
        stderr.seek(0, os.SEEK_END)
        started = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=stderr)
    while not (tmp_path / "a.h5").exists():
        assert started.poll() is None, log.read_text()
        time.sleep(0.05)
    started.send_signal(number)
    assert started.wait(60) == -number
    line = f"error: mpiexec (process {started.pid}) has ended before its ranks, which were killed with it. Hint: "
    last = time.monotonic() + 30
    while not (lines := [own for own in log.read_text().splitlines() if own.startswith("error")]):
        assert time.monotonic() < last
        time.sleep(0.05)
    assert len(lines) == 1
    assert lines[0].startswith(line)
    assert log.read_text().startswith("before\n")
    assert load(tmp_path / "a.h5").training_state is not None


#: ``blobnet train`` on ranks of which one loses its device in a step.
LOST = """
import sys
from blobnet.training import training_step
from blobnet.command_line.main import main
from blobnet.errors import DeviceError
from blobnet.parallel.world import World

update = training_step.TrainingStep.update

number, *options = sys.argv[1:]

def failing(self, rate):
    if self.number == int(number) and World.current().rank == 1:
        raise DeviceError("Some GPU", "the driver must not lose it", code=-36)
    update(self, rate)

training_step.TrainingStep.update = failing
sys.exit(main(options))
"""


@needs_mpi
def test_a_rank_that_loses_its_device_ends_all(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = "train lenet5 --dataset digits --batch-size 512 --epochs 9 --output a.h5"
    done = mpiexec(2, device, "-c", LOST, 5, *options.split())
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert re.fullmatch(
        r"error: rank 1 \(process \d+ on .+\): Some GPU: the driver must not lose it\. Received code=-36\. "
        r"The last checkpoint is a\.h5 \(in epoch 2, after step 6\)\.",
        said,
    )
    state = load("a.h5").training_state
    assert state is not None
    assert (state.epoch, state.step) == (1, 6)


@needs_mpi
def test_the_best_epoch_is_not_lost(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = "train lenet5 --dataset digits --batch-size 512 --epochs 4 --save-best --shards 8"
    done = mpiexec(2, device, "-c", LOST, 10, *options.split(), "--output", "a.h5")
    assert done.returncode == 1, done.stderr
    assert "The last checkpoint is a.h5 (in epoch 4, after step 11)." in done.stderr
    options += f" --device {device.info.address} --output"
    shutil.copy("a.h5", "b.h5")  # Which no rank holds that is still about to end.
    assert main([*options.split(), "b.h5", "--resume"]) == 0
    assert main([*options.split(), "c.h5"]) == 0
    lost, whole = load("b.h5"), load("c.h5")
    assert lost.history == whole.history
    for name, values in whole.weights.items():
        assert lost.weights[name].tobytes() == values.tobytes(), name


@needs_mpi
@pytest.mark.parametrize(
    ("kind", "rank", "line"),
    [
        ("killed", 0, "has ended without a word: it was killed, or its host is lost"),
        ("killed", 1, "has ended without a word: it was killed, or its host is lost"),
        ("stopped", 0, r"has said nothing for \d s: it was stopped, or its host is lost"),
        ("disk", 1, r"is in a step for \d s, and others wait for it: its device, or a disk, does not answer"),
        ("error", 1, "what a callback says"),
        ("hasty", 0, "what a callback says"),
        ("hasty", 1, "what a callback says"),
    ],
)
def test_a_rank_that_is_lost_ends_all(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rank: int, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.h5"
    code = f"from tests.faults.test_lost_ranks import train; train({kind!r}, {str(path)!r}, {rank})"
    started = time.monotonic()
    done = mpiexec(2, device, "-c", code)
    assert time.monotonic() - started < 60
    assert done.returncode != 0
    said = "".join(text for text in done.stderr.splitlines() if text.startswith("error: "))
    assert re.fullmatch(
        rf"error: rank {rank} \(process \d+ on .+\):? {line}\. The last checkpoint is {path} .+\.", said
    ), done.stderr
    model = load(path)
    state = model.training_state
    assert state is not None
    # What the last step has left, which is no multiple of five (the last file's, if the first met an error),
    # and goes on as if nothing had been.
    left = 5 if kind == "hasty" and rank == 0 else 6
    assert (state.epoch, state.step) == (1, left) if kind != "disk" else state.step > 2
    model.fit(X, Y, epochs=3, resume=True, device=device, **{**SETTINGS, "shards": None})
    whole = network()
    whole.fit(X, Y, epochs=3, device=device, **SETTINGS)
    assert model.history == whole.history
    for name, values in whole.weights.items():
        assert model.weights[name].tobytes() == values.tobytes(), name


def test_nothing_is_rescued_behind_a_training(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(World, "last_words", lambda self, words, *rescue: told.append(rescue))
    network().fit(X, Y, epochs=1, callbacks=Checkpoint(tmp_path / "a.h5"), device=device, **SETTINGS)
    assert list(map(len, told)) == [1, 0]


#: A training of two ranks, one of which is killed in the exchange of the seventh step.
EXCHANGING = """
import os, signal, sys, time
from tests import host_cuda
if sys.argv[1] == "copies":
    host_cuda.pretend()
from blobnet.callbacks import Checkpoint
from blobnet.parallel import cuda, transports
from blobnet.parallel.world import World
from blobnet.training import weight_buffers
from tests.faults.test_lost_ranks import SETTINGS, X, Y, network

weight_buffers.WHOLE = 0  # Through MPI there is a swap there, and one back.
kind, name, last = {
    "copies": (cuda.Communicator, "swap", 7), "mpi": (transports.HostMemory, "swapping", 14)
}[sys.argv[1]]
plain, calls = getattr(kind, name), []

def swap(*arguments):
    calls.append(name)
    if len(calls) < last:
        return plain(*arguments)
    if name == "swapping":
        return die
    die()

def die():
    time.sleep(0.5)  # The other rank waits for this one.
    os.kill(os.getpid(), signal.SIGKILL)

if World.current().rank == 1:
    setattr(kind, name, swap)
network().fit(X, Y, epochs=50, callbacks=Checkpoint(sys.argv[2], every_steps=5), **SETTINGS)
"""


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("transport", ["mpi", "copies"])
def test_a_rank_that_is_killed_while_it_exchanges(device: Device, tmp_path: Path, transport: str) -> None:
    """The other one saves the step before, with the metrics of that one, and goes on as if nothing had been."""
    if transport == "copies" and (TCP or not (device.is_host and sys.platform.startswith("linux"))):
        pytest.skip("for processors of one host, on Linux")
    path = tmp_path / "m.h5"
    done = mpiexec(2, device, "-c", EXCHANGING, transport, path)
    assert done.returncode
    assert "Traceback" not in done.stderr
    model = load(path)
    state = model.training_state
    assert state is not None
    assert (state.step, state.place["batches"], state.place["samples"]) == (6, 2, 32)
    assert sum(state.place["totals"][TOTALS - 1 :: TOTALS]) == 32
    model.fit(X, Y, epochs=3, resume=True, device=device, **SETTINGS | {"shards": None})
    whole = network()
    whole.fit(X, Y, epochs=3, device=device, **SETTINGS)
    assert model.history == whole.history
