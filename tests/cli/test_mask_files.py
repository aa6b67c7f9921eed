"""A class for each position, from files to files: train, evaluate, predict and show."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet.datasets.pictures import read_image, read_mask

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

NET = """
import blobnet as bn
from blobnet import layers

def net(input_shape, classes, seed=0):
    return bn.Sequential([
        layers.Input(*input_shape),
        layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.Conv2D(classes, 1),
    ], seed=seed)

def half(input_shape, classes):
    return bn.Sequential([layers.Input(*input_shape), layers.Conv2D(classes, 2, stride=2)])
"""
COLOURS = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200]])
NAMES = ["red", "green", "blue"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures with an even ground and two squares, and their masks; the frame takes no part."""
    (tmp_path / "nets.py").write_text(NET, encoding="utf-8")
    rng = np.random.default_rng(0)
    for part, count in (("train", 24), ("test", 6)):
        for name in ("images", "masks"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
        for number in range(count):
            mask = np.zeros((12, 10), np.uint8)
            for label in (1, 2):
                top, left = rng.integers(0, 7, 2)
                mask[top : top + 4, left : left + 4] = label
            mask[[0, -1]] = mask[:, [0, -1]] = 255
            noise = rng.integers(-30, 30, (12, 10, 3))
            picture = (COLOURS[np.where(mask == 255, 0, mask)] + noise).astype(np.uint8)
            image.fromarray(picture).save(tmp_path / "data" / part / "images" / f"{number}.png")
            image.fromarray(mask).save(tmp_path / "data" / part / "masks" / f"{number}.png")
    (tmp_path / "data" / "classes.txt").write_text("\n".join(NAMES), encoding="utf-8")
    return tmp_path / "data"


def truth(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The pictures and masks to test with."""
    paths = sorted((folder / "test" / "images").iterdir())
    pictures = np.stack([read_image(path, (3, 12, 10)) for path in paths])
    return pictures, np.stack([read_mask(folder / "test" / "masks" / path.name) for path in paths])


def test_from_files_to_files(run, folder) -> None:
    settings = ["--dataset", "data", "--epochs", "12", "--batch-size", "4", "--learning-rate", "0.02"]
    result = run("train", "nets.py:net", *settings, "--class-weights", "balanced", "--augment", "flip")
    assert result.status == 0, result.err
    assert "data    data: 24 + 6 samples of (3, 12, 10), 3 classes for each of (12, 10) positions" in result.err

    model = bn.load("net.h5")
    assert model.class_names == tuple(NAMES)
    x, masks = truth(folder)
    outputs = model.predict(x).astype(np.float64)
    counts = masks != 255
    logits = np.take_along_axis(outputs, np.where(counts, masks, 0)[:, None].astype(int), axis=1)[:, 0]
    losses = np.log(np.exp(outputs).sum(axis=1)) - logits
    said = outputs.argmax(axis=1)
    accuracy = (said == masks)[counts].mean()
    assert accuracy > 0.95
    measured = dict(re.findall(r"^(\S+) +([0-9.]+)$", run("evaluate", "net.h5", "--dataset", "data").out, re.MULTILINE))
    assert float(measured["loss"]) == pytest.approx(losses[counts].mean(), abs=1e-4)
    assert float(measured["accuracy"]) == pytest.approx(accuracy, abs=1e-4)
    table = run("evaluate", "net.h5", "--dataset", "data", "--report").out
    for label, name in enumerate(NAMES):
        own, theirs = (masks == label)[counts], (said == label)[counts]
        iou = (own & theirs).sum() / (own | theirs).sum()
        row = next(line for line in table.splitlines() if line.strip().startswith(name))
        assert f"{iou:.4f}" in row.split()

    result = run("predict", "net.h5", "data/test/images", "--masks", "said")
    assert (result.status, result.out) == (0, "6 pictures; saved said\n")
    for number, path in enumerate(sorted((folder / "test" / "images").iterdir())):
        np.testing.assert_array_equal(read_mask(Path("said") / path.name), said[number])


def test_numbers_of_masks_that_no_position_has(run, folder) -> None:
    for path in folder.glob("*/masks/*"):
        mask = read_mask(path)
        image.fromarray(np.where(mask == 255, 255, mask * 100).astype(np.uint8)).save(path)
    (folder / "classes.txt").unlink()
    result = run("train", "nets.py:net", "--dataset", "data", "--epochs", "1")
    assert (
        "note: data has no samples of some classes, which are counted from 0: 198 of 201: 1, 2, 3, ...; masks of 0, "
        "100, 200 should become masks of 0, 1, ...\n"
    ) in result.err
    assert "note: data has" not in run("evaluate", "net.h5", "--dataset", "data").err


def test_predicted_masks_have_the_sizes_of_their_pictures(run, folder) -> None:
    pytest.importorskip("PIL.Image")
    run("train", "nets.py:net", "--dataset", "data", "--epochs", "1", "--output", "net.h5")
    x, _ = truth(folder)
    large = x[0].repeat(2, axis=1).repeat(3, axis=2)
    image.fromarray(large.transpose(1, 2, 0)).save("large.png")
    np.save("own.npy", x[0])
    np.save("many.npy", x[:3])
    said = bn.load("net.h5").predict(x).argmax(axis=1)
    result = run("predict", "net.h5", "large.png", "own.npy", "many.npy", "--masks", "deep/said")
    assert (result.status, result.out, result.err) == (0, "5 pictures; saved deep/said\n", "")
    assert read_mask(Path("deep/said/large.png")).shape == (24, 30)
    np.testing.assert_array_equal(read_mask(Path("deep/said/own.png")), said[0])
    for number in range(3):
        np.testing.assert_array_equal(read_mask(Path(f"deep/said/many/{number}.png")), said[number])


def test_resumed_trainings_of_masks_end_the_same(run, folder) -> None:
    settings = ["nets.py:net", "--dataset", "data", "--schedule", "constant", "--augment", "flip"]
    assert run("train", *settings, "--epochs", "2", "--output", "a.h5").status == 0
    assert run("train", *settings, "--epochs", "1", "--output", "b.h5").status == 0
    assert run("train", *settings, "--epochs", "2", "--output", "b.h5", "--resume").status == 0
    assert Path("a.h5").read_bytes() == Path("b.h5").read_bytes()


def test_other_losses(run, folder) -> None:
    for loss in ("focal", "dice"):
        assert run("train", "nets.py:net", "--dataset", "data", "--loss", loss, "--output", f"{loss}.h5").status == 0
        saved = bn.load(f"{loss}.h5").loss
        assert saved is not None
        assert saved.ignored_label == 255


def test_a_model_that_was_trained_without_files_ignores_as_well(run, folder) -> None:
    x, masks = truth(folder)
    model = bn.Sequential([bn.layers.Input(3, 12, 10), bn.layers.Conv2D(3, 1)], class_names=NAMES)
    model.set_normalization([128] * 3, [64] * 3)
    model.fit(x, np.where(masks == 255, 0, masks), loss=bn.losses.CrossEntropy())
    model.save("own.h5")
    wanted = model.evaluate(x, masks, loss=bn.losses.CrossEntropy(ignore=255))
    assert f"loss      {wanted['loss']:.4f}\n" in run("evaluate", "own.h5", "--dataset", "data").out


def test_pictures_of_them(run, folder) -> None:
    pytest.importorskip("matplotlib")
    run("train", "nets.py:net", "--dataset", "data", "--epochs", "1", "--output", "net.h5")
    assert run("show", "data", "--augment", "flip", "--plot", "sheet.png").status == 0
    assert run("show", "net.h5", "--dataset", "data", "--plot", "net.png").status == 0
    assert run("evaluate", "net.h5", "--dataset", "data", "--mistakes", "wrong.png", "--matrix", "m.png").status == 0
    result = run("evaluate", "net.h5", "--dataset", "data", "--mistakes", "wrong.csv", "--mistakes", "again.png")
    assert (result.status, result.err) == (0, "data, 6 test samples\nsaved wrong.csv\nsaved again.png\n")
    assert "top-5" not in result.out
    _, *rows = csv.reader(Path("wrong.csv").read_text().splitlines())
    files = sorted((folder / "test" / "images").iterdir())
    assert {row[1] for row in rows} <= {f"data/test/images/{path.name}" for path in files}
    assert [float(row[5]) for row in rows] == sorted((float(row[5]) for row in rows), reverse=True)
    x, masks = truth(folder)
    parts = ((bn.load("net.h5").predict(x).argmax(axis=1) != masks) & (masks != 255)).sum(axis=(1, 2))
    parts = parts / (masks != 255).sum(axis=(1, 2))
    assert len(rows) == (parts > 0).sum()
    for row in rows:
        assert float(row[4]) == pytest.approx(parts[int(row[0])], rel=1e-5)
        assert Path(row[1]).name == files[int(row[0])].name
    assert all(Path(name).stat().st_size for name in ("sheet.png", "net.png", "wrong.png", "m.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nets.py:half", "--dataset", "data"], "data: the model must give a logit of each class at each "
         "position of the masks. Received masks=(12, 10), output=(3, 6, 5). Hint: train unet, or end a model "
         "of your own with Conv2D(classes, 1)."),
        (["train", "lenet5", "--dataset", "data", "--image-size", "28x28"], "data: the model must give a logit of each "
         "class at each position of the masks. Received masks=(28, 28), output=(3). Hint: train unet, or end a model "
         "of your own with Conv2D(classes, 1)."),
        (["predict", "net.h5", "data/test/images/0.png", "--masks", "said", "--csv", "a.csv"],
         "--csv: it goes without --masks."),
        (["predict", "net.h5", "data/test/images", "data/train/images/0.png", "--masks", "said"],
         "--masks: each mask must have a file of its own: that of its picture's name, in another folder. Received "
         "file=said/0.png, picture=data/train/images/0.png, other=data/test/images/0.png."),
        (["predict", "net.h5", "data/test/images/0.png", "--masks", "data/test/images"],
         "--masks: each mask must have a file of its own: that of its picture's name, in another folder. Received "
         "file=data/test/images/0.png, picture=data/test/images/0.png, other=data/test/images/0.png."),
        (["predict", "flat.h5", "data/test/images/0.png", "--masks", "said"],
         "--masks: the model must give logits of 2 to 256 classes at each position of an image. Received output=(2), "
         "loss=CrossEntropy(ignore=None, label_smoothing=0.0)."),
        (["predict", "net.h5", "data/test/images/0.png", "--masks", "nets.py"],
         "nets.py: the folder cannot be made: File exists."),
    ],
)  # fmt: skip
def test_errors(run, folder, arguments: list[str], message: str) -> None:
    inputs = bn.layers.Input(3, 12, 10)
    bn.Sequential([inputs, bn.layers.Conv2D(3, 1)], class_names=NAMES).save("net.h5")
    bn.Sequential([inputs, bn.layers.Flatten(), bn.layers.Dense(2)], class_names=["a", "b"]).save("flat.h5")
    result = run(*arguments)
    assert (result.status, result.err) == (1, f"error: {message}\n")
