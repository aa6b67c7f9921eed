"""Same seed, same device: the same file, bit for bit, whatever else differs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.callbacks import Checkpoint
from blobnet.datasets.image_folder import Reading, read_image_folder
from blobnet.device.device import Device
from blobnet.planning import make_plan
from blobnet.planning.plan import plan_of
from tests.tiny import share_of_memory
from tests.train.test_resume_within_epoch import StopAt, StopError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of two classes, larger than the network takes."""
    image = pytest.importorskip("PIL.Image")
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(26):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        image.fromarray(random.integers(0, 256, (11, 13), np.uint8)).save(path)
    return folder


@pytest.fixture
def train(device: Device, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Trains on pictures in files, and gives the bytes of the last file."""

    def trained(workers: int = 0, *, kept: bool = True, stop: int | None = None) -> bytes:
        with monkeypatch.context() as patch:
            # Else they are few enough to be decoded ahead.
            patch.setattr("blobnet.datasets.image_folder.KEPT_BYTES", 0)
            share_of_memory(patch, float(kept))
            data, path = read_image_folder(pictures, Reading((8, 8), workers)).train, tmp_path / "model.h5"
            model, callbacks = network(), [Checkpoint(path, every_steps=2)]
            settings = {"epochs": 2, "batch_size": 4, "seed": 5, "augment": "crop=1, flip", "average": 0.9}
            settings |= {"validation": 0.25, "device": device, "verbose": False}
            if stop is not None:
                with pytest.raises(StopError):
                    model.fit(data.x, data.y, callbacks=[*callbacks, StopAt(stop)], **settings)
                model, settings = bn.load(path), settings | {"resume": True}
            model.fit(data.x, data.y, callbacks=callbacks, **settings)
            return path.read_bytes()

    return trained


def network() -> bn.Sequential:
    model = bn.Sequential(
        [
            layers.Input(1, 8, 8),
            layers.Conv2D(3, 3, padding=1, bias=False),
            layers.BatchNorm(),
            layers.Activation("relu"),
            layers.MaxPool2D(2),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Dropout(0.2),
            layers.Flatten(),
            layers.Dense(2),
        ],
        seed=1,
    )
    model.set_normalization([128], [50])
    return model


@pytest.mark.long
def test_the_same_file_however_samples_come_and_memory_is_used(train, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = train()
    assert train() == wanted
    for workers in (1, 3):
        assert train(workers) == wanted, workers
    assert train(2, kept=False) == wanted
    for stop in (4, 8):
        assert train(1, stop=stop) == wanted, stop
    plans = []

    def apart(request):
        plans.append(plan_of(replace(request, reuse=False)))
        return plans[-1]

    buffers = len(make_plan(network().graph, 4, loss=bn.losses.CrossEntropy(), training=True).buffers)
    monkeypatch.setattr("blobnet.execution.executor.plan_of", apart)
    assert train() == wanted
    assert len(plans[0].buffers) > buffers, "no memory was used twice"


#: A training, with all that a cache holds: programs, and what the compiler of contractions has found.
PROGRAM = """
import sys
import numpy as np
import blobnet as bn
from blobnet import layers
model = bn.Sequential([
    layers.Input(2, 5, 5), layers.Conv2D(3, 3), layers.LayerNorm(), layers.Dropout(0.2), layers.Flatten(),
    layers.Dense(2),
], seed=1)
x = np.linspace(-1, 1, 400, dtype=np.float32).reshape(8, 2, 5, 5)
model.fit(x, np.arange(8) % 2, epochs=2, batch_size=3, verbose=False)
model.save(sys.argv[1])
"""


@pytest.mark.long
def test_the_same_file_from_a_cold_cache_and_a_warm_one(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONHASHSEED": str(number), "PYTHONPATH": str(ROOT)}
        environment = {name: value for name, value in os.environ.items() if name != "POCL_CACHE_DIR"}
        path = tmp_path / f"{number}.h5"
        command = [sys.executable, "-c", PROGRAM, str(path)]
        subprocess.run(command, env={**environment, **variables}, check=True, timeout=300)
        found.append(path.read_bytes())
    assert list((tmp_path / "cache").glob("blobnet/programs/*/*"))
    assert found[0] == found[1]
