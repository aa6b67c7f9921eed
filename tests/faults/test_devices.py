"""Devices that are lost, hang, or have no memory left, and other surprises: each seen by a process of its own."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet.device.discovery import choose
from blobnet.training import progress
from tests.cli.conftest import NET

ROOT = Path(__file__).parents[2]
#: Two epochs of 45 steps.
TRAIN = ["train", "net.py:net", "--dataset", "digits", "--batch-size", 32, "--epochs", 2, "--checkpoint-steps", 5]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where trainings run: with a network of their own."""
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    return tmp_path


def run(folder: Path, *arguments: object, fault: tuple[object, ...] = (), module: str = "blobnet") -> tuple[int, str]:
    """The status of ``blobnet``, and what it says on stderr."""
    command = [sys.executable, "-m", *(["tests.faults.failing_driver", *fault] if fault else [module]), *arguments]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, result.stderr


def last_line(said: str) -> str:
    return said.splitlines()[-1]


@pytest.mark.long
def test_a_lost_device_loses_nothing(folder: Path) -> None:
    """It is named, and so is the last file, from which training goes on to the same bits."""
    assert run(folder, *TRAIN, "--output", "whole.h5")[0] == 0
    resume: list[str] = []
    registers = r" A kernel that never ran may need more registers than its work-group can have: report it\."
    for fault, launch, action, more in (
        ("DEVICE_NOT_AVAILABLE", 400, r"\w+ must launch\. Received ", ""),
        ("OUT_OF_RESOURCES", 400, r".* must \w+\. Received ", registers),
    ):
        status, said = run(folder, *TRAIN, "--output", "a.h5", *resume, fault=(fault, launch))
        pattern = (
            rf"error: {re.escape(choose().name)}: {action}cause=cl\w+ failed: {fault}\b.*\. Hint: the device may be "
            rf"lost, or was reset after a launch that took too long; the system's log may know\.{more} The last "
            r"checkpoint is a\.h5 \(in epoch \d, after step (\d+)\)\."
        )
        match = re.fullmatch(pattern, last_line(said))
        assert (status, bool(match)) == (1, True), said
        state = bn.load(folder / "a.h5").training_state
        assert state is not None
        assert match is not None
        assert state.step == int(match[1])
        assert state.step % 5 == 0
        resume = ["--resume"]
    assert run(folder, *TRAIN, "--output", "a.h5", "--resume")[0] == 0
    assert (folder / "a.h5").read_bytes() == (folder / "whole.h5").read_bytes()


def test_a_device_that_hangs_ends_the_training_where_a_timeout_was_asked_for(folder: Path) -> None:
    status, said = run(folder, *TRAIN, "--output", "a.h5", "--timeout", 1, fault=("HANG", 400))
    pattern = (
        r"error: --timeout: a step must end in that time, but the device, or a disk, does not answer\. Received "
        rf"seconds=1, device={re.escape(choose().name)}, step=\d+\. The last checkpoint is a\.h5 \(in epoch 1, after "
        r"step (\d+)\)\."
    )
    match = re.fullmatch(pattern, last_line(said))
    assert (status, bool(match)) == (1, True), said
    assert match is not None
    state = bn.load(folder / "a.h5").training_state
    assert state is not None
    assert state.step == int(match[1])


def test_a_neighbour_who_takes_the_memory(folder: Path) -> None:
    """Between the plan, for which there is room, and the buffers."""
    fault = ("NEIGHBOUR", 400_000)
    status, said = run(folder, *TRAIN, "--output", "a.h5", fault=fault)
    assert status == 1, said
    pattern = (
        rf"error: {re.escape(choose().name)}: the device must have room for a buffer\. Received bytes=\d+, "
        r"cause=clCreateBuffer failed: MEM_OBJECT_ALLOCATION_FAILURE\. Hint: use a smaller batch\. "
        r"fit\(fit_memory=True\), or --fit-memory, may take less: it computes blobs again, or a batch in parts\."
    )
    assert re.fullmatch(pattern, last_line(said))
    assert not (folder / "a.h5").exists()
    status, said = run(folder, *TRAIN, "--output", "a.h5", "--fit-memory", fault=fault)
    assert status == 0, said
    rule = "the memory of the device should hold a whole batch, which is computed in parts now"
    parts = re.search(rf"^warning: fit_memory: {rule}\. Received batch_size=32, part=(\d+)\.$", said, re.MULTILINE)
    assert parts, said
    assert int(parts[1]) in (4, 8, 16), said
    # A device with more memory goes on with whole batches.
    status, said = run(folder, *TRAIN, "--output", "a.h5", "--resume", "--schedule", "cosine")
    assert (status, said) == (0, "")


#: The layer ``root`` computes the root of what it is given, which one sample makes negative.
ROOTS = """
import blobnet as bn
from blobnet import layers

def net(input_shape, classes=2, seed=0):
    return bn.Sequential([
        layers.Input(*input_shape, name="input"),
        layers.Contraction("function (I[N, C]) -> (O) { O = sqrt(I + 8); }", name="root"),
        layers.Dense(classes, name="logits"),
    ], seed=seed)
"""


def test_nan_at_a_known_layer_is_named_with_the_last_good_file(folder: Path) -> None:
    (folder / "roots.py").write_text(ROOTS)
    x = np.random.default_rng(0).uniform(1, 2, (256, 6)).astype(np.float32)
    x[100] -= 100
    y = np.arange(256) % 2
    np.savez(folder / "data.npz", x=x, y=y, x_test=x[:2], y_test=y[:2])
    steps = int(np.flatnonzero(np.random.default_rng([0, 0]).permutation(256) == 100)[0]) // 32
    assert steps == 1
    data = ["--dataset", "data.npz", "--batch-size", 32, "--checkpoint-steps", 1]
    status, said = run(folder, "train", "roots.py:net", *data, "--epochs", 2, "--output", "a.h5")
    assert (status, last_line(said)) == (
        1,
        "error: training: the loss must stay finite. Received epoch=1, step=1, first_layer=root. Hint: use a smaller "
        "learning rate, or clip the gradients (clip_norm). The last checkpoint is a.h5 (in epoch 1, after step 1).",
    )
    model = bn.load(folder / "a.h5")
    assert model.training_state is not None
    assert model.training_state.step == 1
    assert all(np.isfinite(values).all() for values in model.weights.values())


#: A clock that jumps by days, there and back, whenever somebody looks at it.
JUMPS = """
import random, sys, time
usual, random_ = time.time, random.Random(0)
time.time = lambda: usual() + random_.randint(-9, 9) * 86400
time.time_ns = lambda: int(time.time() * 1e9)
"""


def test_a_clock_that_jumps_changes_nothing(folder: Path) -> None:
    assert run(folder, *TRAIN, "--output", "whole.h5", "--csv", "whole.csv")[0] == 0
    (folder / "jumps.py").write_text(
        JUMPS + "from blobnet.command_line.main import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    status, said = run(folder, *TRAIN, "--timeout", 60, "--output", "a.h5", "--csv", "a.csv", module="jumps")
    assert status == 0, said
    seconds = [float(line.split()[1]) for line in said.splitlines() if re.match(r" *\d/2 ", line)]
    assert len(seconds) == 2
    assert all(0 <= each < 60 for each in seconds)
    for name in ("h5", "csv"):
        assert (folder / f"a.{name}").read_bytes() == (folder / f"whole.{name}").read_bytes()


def test_a_bar_goes_on_where_the_clock_is_put_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = itertools.count(2e9, -86400)
    monkeypatch.setattr("tqdm.std.time", lambda: next(now))
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    with progress.bar("epoch 1/2", 100, verbose=True) as shown:
        for _ in range(4):
            time.sleep(0.11)
            shown.update(25)
    said = capsys.readouterr().err
    assert [f"{percent}%" in said for percent in (25, 50, 75)] == [True] * 3
