"""Data sets in files that change, or vanish, between the epochs of a training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet import datasets, layers
from blobnet.callbacks import Callback
from blobnet.datasets import image_folder, source, user_data
from blobnet.device.device import Device
from blobnet.errors import BlobnetError, DataError, FileError
from blobnet.training.trainer import Progress
from tests.cli.conftest import NET
from tests.tiny import share_of_memory
from tests.unit.test_stored_arrays import write

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.integers(0, 256, (24, 1, 8, 8), np.uint8), np.arange(24) % 2


def pictures(folder: Path, kind: str, **arrays: np.ndarray) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number, (values, label) in enumerate(zip(arrays["x"], arrays["y"], strict=True)):
        path = folder / "data" / "ab"[label] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(values[0]).save(path)
    return folder / "data"


KINDS: dict[str, Callable[..., Path]] = {"npz": write, "h5": write, "chunked": write, "pictures": pictures}


def file_of(path: Path) -> Path:
    """What is changed: one picture of a folder."""
    return path / "b" / "03.png" if path.is_dir() else path


def rewrite(path: Path) -> None:
    """Writes into the file itself, as a program does that has mapped it."""
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes() + b"\0")
    other.replace(path)


CHANGES = {"rewritten": rewrite, "cut": cut, "replaced": replace, "removed": Path.unlink}


class AfterAnEpoch(Callback):
    """Does something to a file behind the first epoch."""

    def __init__(self, change: Callable[[Path], object], path: Path) -> None:
        self.change, self.path = change, path

    def epoch_end(self, progress: Progress) -> None:
        if progress.trainer.epoch == 1:
            self.change(self.path)


def expected(kind: str, change: str) -> tuple[type[BlobnetError], str] | None:
    """The error; None where nothing happens, since a file that is open stays what it was."""
    if change in ("replaced", "removed") and kind != "pictures":
        return None
    if change == "removed":
        return FileError, r"03\.png: the picture must be readable and whole\. Received reason=.*No such file"
    if change == "cut":
        if kind == "pictures":
            return FileError, r"03\.png: the picture must be readable and whole"
        return DataError, r"the file must stay as (it was|long as it was)|the source must give a batch"
    return DataError, r"the file must stay as it was\. Received file=.*Hint: do not write to data while they are used"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_files_that_change_between_epochs(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, change: str
) -> None:
    for module in (source, user_data, image_folder):
        monkeypatch.setattr(module, "KEPT_BYTES", 0)
    share_of_memory(monkeypatch, 0)
    path = KINDS[kind](tmp_path, kind, x=X, y=Y)
    data = datasets.load(path, **({"workers": 0} if kind == "pictures" else {})).train

    def trained(*callbacks: Callback) -> bn.Sequential:
        model = bn.Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(2)], seed=1)
        model.set_normalization([128], [74])
        model.fit(data.x, data.y, epochs=3, batch_size=5, callbacks=callbacks, device=device, verbose=False)
        return model

    wanted, error = trained(), expected(kind, change)
    callback = AfterAnEpoch(CHANGES[change], file_of(path))
    if error is None:
        found = trained(callback)
        assert all(values.tobytes() == wanted.weights[name].tobytes() for name, values in found.weights.items())
        return
    with pytest.raises(error[0], match=error[1]):
        trained(callback)


#: ``blobnet`` that reads each batch from its file, however small that is.
STREAMED = """
import sys
from blobnet.execution import loader
from blobnet.command_line.main import main
from blobnet.datasets import image_folder, source, user_data
for module in (source, user_data, image_folder):
    module.KEPT_BYTES = 0
loader._SHARE_OF_MEMORY = loader._SHARE_OF_HOST = 0
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "change", "rule"),
    [
        ("npz", "cut", "data.npz: the file must stay as"),
        ("chunked", "rewritten", "data.h5: the file must stay as it was"),
        ("pictures", "removed", "03.png: the picture must "),
    ],
    ids=["npz", "h5", "pictures"],
)
def test_a_training_whose_data_change_names_its_last_file(tmp_path: Path, kind: str, change: str, rule: str) -> None:
    """From which it goes on to the same bits, once the data are back; seen by a process of its own."""
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    (tmp_path / "streamed.py").write_text(STREAMED, encoding="utf-8")
    data, kept = KINDS[kind](tmp_path, kind, x=X, y=Y), tmp_path / "kept"
    shutil.copy2(file_of(data), kept)

    def train(output: str, epochs: int, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "streamed.py", "train", "net.py:net", "--dataset", data.name, "--output", output]
        command += ["--batch-size", "5", "--schedule", "constant", "--epochs", str(epochs), *more]
        return subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)

    training = train("a.h5", 100_000)
    while not (tmp_path / "a.h5").exists() and training.poll() is None:
        time.sleep(0.01)
    CHANGES[change](file_of(data))
    said = training.communicate(timeout=120)[1]
    assert (training.returncode, "Traceback" in said) == (1, False), said
    state = bn.load(tmp_path / "a.h5").training_state
    assert state is not None
    last = said.splitlines()[-1]
    assert rule in last
    assert last.endswith(f"The last checkpoint is a.h5 (epoch {state.epoch})."), said
    file_of(data).unlink(missing_ok=True)
    shutil.copy2(kept, file_of(data))
    for output, more in (("a.h5", ["--resume"]), ("whole.h5", [])):
        ending = train(output, state.epoch + 2, *more)
        said = ending.communicate(timeout=240)[1]
        assert ending.returncode == 0, said
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
