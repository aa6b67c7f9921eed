"""The picture of a training."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from blobnet import plotting
from blobnet.errors import FileError, OptionError

HISTORY = {"loss": [0.9, 0.5, 0.3], "accuracy": [0.5, 0.7, 0.9], "top_5": [1.0, 1.0, 1.0],
           "validation_loss": [0.8, 0.6, 0.5], "validation_accuracy": [0.6, 0.65, 0.7]}  # fmt: skip
STARTS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.mark.parametrize("suffix", plotting.SUFFIXES)
def test_every_format_is_written_whole(tmp_path, suffix) -> None:
    path = tmp_path / f"curves{suffix}"
    path.write_text("an older picture")
    plotting.check(path)
    plotting.save_curves(path, HISTORY, "a training")
    assert path.read_bytes().startswith(STARTS[suffix])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("names", "epochs", "size"),
    [(list(HISTORY), 3, (1200, 480)), (list(HISTORY), 1, (1200, 480)), (["loss"], 2, (600, 480))],
)
def test_a_panel_for_each_measure(tmp_path, names, epochs, size) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    plotting.save_curves(path, {name: HISTORY[name][:epochs] for name in names}, "a training")
    with image.open(path) as picture:
        assert picture.size == size
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)
    for colour, name in (((31, 119, 180), "loss"), ((255, 127, 14), "validation_loss")):
        drawn = (np.abs(pixels - colour).sum(axis=1) < 30).sum()
        assert (drawn > 20) == (name in names)


def test_no_window_is_needed(tmp_path) -> None:
    plotting.save_curves(tmp_path / "a.png", HISTORY, "a training")
    assert "matplotlib.pyplot" not in sys.modules or "tkinter" not in sys.modules


@pytest.mark.parametrize("name", ["curves", "curves.jpg", "png"])
def test_other_formats_are_refused(name) -> None:
    with pytest.raises(
        OptionError, match=r"^--plot: the file's name must end in \.png, \.pdf or \.svg\. Received file="
    ):
        plotting.check(name)


def test_without_matplotlib(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        OptionError, match=r'^--plot: drawing needs matplotlib\. .* Hint: pip install "blobnet\[plots\]"$'
    ):
        plotting.check(Path("a.png"))


def test_a_folder_that_is_gone(tmp_path) -> None:
    with pytest.raises(FileError, match=r"gone/a\.png: the picture cannot be written: No such file or directory\.$"):
        plotting.save_curves(tmp_path / "gone" / "a.png", HISTORY, "a training")
