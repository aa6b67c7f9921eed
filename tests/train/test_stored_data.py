"""Training on samples and labels that stay in files: the same bits, in little memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from blobnet import datasets, layers
from blobnet.datasets import source, user_data
from blobnet.device.device import Device
from blobnet.errors import DataError
from blobnet.losses import CrossEntropy
from blobnet.model import Model, Sequential
from blobnet.optimizers import SGD
from tests.tiny import digits, tiny_model

COUNT = 37


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (source, user_data):
        monkeypatch.setattr(module, "KEPT_BYTES", 0)


def trained(model: Model, device: Device, x: Any, y: Any, **settings: Any) -> bytes:
    """The bits of all weights after a short training."""
    given = {"epochs": 2, "batch_size": 8, "optimizer": SGD(0.05, momentum=0.9), "verbose": False}
    model.fit(x, y, device=device, **(given | settings))
    return b"".join(values.tobytes() for values in model.weights.values())


def stored(values: np.ndarray, folder: Path, kind: str) -> Any:
    """The same in a file: mapped, or an h5py data set."""
    path = folder / f"{len(list(folder.iterdir()))}.{'npy' if kind == 'mapped' else 'h5'}"
    if kind == "mapped":
        np.save(path, values)
        return np.load(path, mmap_mode="r")
    file = h5py.File(path, "w")
    file.create_dataset("values", data=values, chunks=(3, *values.shape[1:]))
    return file["values"]


def pixelwise() -> Model:
    """A class for each position of an 8x8 picture."""
    return Sequential([layers.Input(1, 8, 8), layers.Conv2D(3, 3, padding="same")])


def masks(x: np.ndarray) -> np.ndarray:
    """A class from 0 to 2 for each position, some of them to ignore."""
    found = (x[:, 0] * 2.99).astype(np.uint8)
    found[::5, 2, 3] = 255
    return found


@pytest.mark.parametrize("kind", ["npz", "npy", "h5", "chunked"])
def test_a_file_trains_like_its_arrays(device: Device, tmp_path: Path, kind: str) -> None:
    from tests.unit.test_stored_arrays import write

    x, y = digits(COUNT)
    data = datasets.load(write(tmp_path, kind, x=x, y=y))
    assert not isinstance(data.train.x, np.ndarray)
    wanted = trained(tiny_model(), device, x, y, class_weights="balanced", validation=0.2)
    assert trained(tiny_model(), device, data.train.x, data.train.y, class_weights="balanced", validation=0.2) == wanted
    model = tiny_model()
    for metrics in ((), ("f1",)):
        found = model.evaluate(data.train.x, data.train.y, metrics=metrics, device=device)
        assert found == model.evaluate(x, y, metrics=metrics, device=device)
    np.testing.assert_array_equal(model.predict(data.train.x, device=device), model.predict(x, device=device))
    assert str(model.report(data.train.x, data.train.y, device=device)) == str(model.report(x, y, device=device))


@pytest.mark.parametrize("kind", ["mapped", "h5py"])
def test_masks_stay_in_their_file(device: Device, tmp_path: Path, kind: str) -> None:
    x, _ = digits(COUNT)
    y, loss = masks(x), CrossEntropy(ignore=255)
    files = stored(x, tmp_path, kind), stored(y, tmp_path, kind)
    settings: dict[str, Any] = {"loss": loss, "class_weights": "balanced"}
    wanted = trained(pixelwise(), device, x, y, **settings)
    assert trained(pixelwise(), device, *files, **settings) == wanted
    assert trained(pixelwise(), device, x, files[1], **settings) == wanted
    model = pixelwise()
    assert model.evaluate(*files, loss=loss, device=device) == model.evaluate(x, y, loss=loss, device=device)
    reports = [str(model.report(*pair, loss=loss, device=device)) for pair in (files, (x, y))]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("kind", ["mapped", "h5py"])
def test_targets_and_one_hot_rows_stay_in_their_file(device: Device, tmp_path: Path, kind: str) -> None:
    x, y = digits(COUNT)
    rows = np.eye(10, dtype=np.float64)[y]
    assert trained(tiny_model(), device, x, stored(rows, tmp_path, kind)) == trained(tiny_model(), device, x, y)
    wanted = trained(tiny_model(), device, x, rows, loss="mse")
    assert trained(tiny_model(), device, x, stored(rows, tmp_path, kind), loss="mse") == wanted


def test_labels_are_checked_batch_by_batch(device: Device, tmp_path: Path) -> None:
    x, _ = digits(COUNT)
    y = masks(x)
    y[31, 4, 5] = 7
    loss = CrossEntropy(ignore=255)
    message = re.escape("y: class numbers must be below 3. Received sample=(31, 4, 5), label=7.")
    with pytest.raises(DataError, match=message):
        trained(pixelwise(), device, x, stored(y, tmp_path, "mapped"), loss=loss)
    with pytest.raises(DataError, match=r"must have the shape \(samples, 8, 8\). Received shape=\(1, 7, 8\)"):
        trained(pixelwise(), device, x, stored(y[:, :7], tmp_path, "mapped"), loss=loss)
    with pytest.raises(DataError, match="the same number of samples"):
        trained(pixelwise(), device, x, stored(y[:30], tmp_path, "h5py"), loss=loss)
    y[31, 4, 5] = 0
    assert trained(pixelwise(), device, x, y, loss=loss)  # The device is as good as before.


_SPARSE = """
import resource
import sys
from pathlib import Path
import h5py
import numpy as np
from blobnet.command_line.main import main
from blobnet.execution import loader
from blobnet.datasets import dataset, source, user_data

# As if they were 40 GB.
loader._SHARE_OF_MEMORY = loader._SHARE_OF_HOST = 0
dataset.STATISTICS_BYTES = source.KEPT_BYTES = user_data.KEPT_BYTES = 1 << 22
folder = Path(sys.argv[1])
(folder / "net.py").write_text('from blobnet import Sequential, layers as l\\ndef net(input_shape, classes, seed=0):\\n'
    ' return Sequential([l.Input(*input_shape), l.GlobalAveragePool(), l.Dense(classes)], seed=seed)')

def train(count, kind):
    shape, y = (count, 1, 512, 512), np.arange(count) % 4
    path = folder / f"{kind}{count}"
    if kind == "npy":
        path.mkdir()
        np.lib.format.open_memmap(path / "x.npy", "w+", np.uint8, shape)
        np.save(path / "y.npy", y)
    else:
        path = path.with_suffix(".h5")
        with h5py.File(path, "w") as file:
            file.create_dataset("x", shape, np.uint8, chunks=(1, *shape[1:]))
            file["y"] = y
    options = ["--epochs", "1", "--batch-size", "8", "--output", f"{folder}/out.h5", "--overwrite"]
    assert main(["train", f"{folder}/net.py:net", "--dataset", str(path), *options]) == 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

for kind in ("npy", "chunked"):
    before = train(40, kind)
    print("grown", kind, train(500, kind) - before)
"""


def test_a_data_set_takes_no_more_memory_than_its_batches(device: Device, tmp_path: Path) -> None:
    """Of 131 MB in sparse files, against 10 MB; docs/measurements.md has 40 GB."""
    command = [sys.executable, "-c", _SPARSE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    grown = [int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("grown")]
    assert len(grown) == 2, done.stderr
    assert max(grown) < 60, grown  # MiB
