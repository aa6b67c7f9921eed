"""Boxes, from files to files: train, evaluate and predict."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet.datasets import read_image
from blobnet.losses.center_net import boxes_of
from tests.scenes import CLASSES, write_coco

pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytest.importorskip("pycocotools", reason="pycocotools is not installed")


def train(run, data: Path, *more: object):
    options = ["--epochs", 2, "--batch-size", 8, "--augment", "flip", "--output", "boxes.h5"]
    return run("train", "centernet", "--trunk", "resnet8", "--dataset", data, *options, *more)


def test_train_and_evaluate(run, tmp_path: Path) -> None:
    data = write_coco(tmp_path / "scenes", 24, size=(32, 32), most=2)
    trained = train(run, data)
    assert trained.status == 0, trained.err
    assert "3 classes in up to 2 boxes, 2 held out for validation" in trained.err
    assert bn.load("boxes.h5").class_names == (*CLASSES, "width", "height", "x", "y")
    measured = run("evaluate", "boxes.h5", "--dataset", data)
    assert measured.status == 0, measured.err
    assert [line.split()[0] for line in measured.out.splitlines()] == ["loss", "box_map", "box_map_50"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["resnet8"], "the model must give a unit for each class and four for boxes, with a height and a width"),
        (["resnet8", "--trunk", "resnet18"], "--trunk: the model's function must take a trunk"),
        (["centernet", "--trunk", "resnet81"], "centernet: the trunk must be one of blobnet's networks"),
        (["centernet", "--loss", "mse"], "--loss: boxes take the loss center-net, and no other labels do"),
        (["centernet", "--augment", "cutmix"], "the loss must take the labels of two samples, each with a share"),
    ],
)
def test_what_does_not_fit(run, tmp_path: Path, arguments: list[str], said: str) -> None:
    data = write_coco(tmp_path / "scenes", 12, size=(32, 32), most=2)
    failed = run("train", *arguments, "--dataset", data, "--output", "boxes.h5")
    assert failed.status == 1
    assert said in failed.err


def test_there_are_no_mistakes_of_boxes(run, boxes: bn.Model) -> None:
    failed = run("evaluate", "boxes.h5", "--dataset", "scenes/coco.json", "--image-size", 32, "--mistakes", "m.csv")
    assert failed.status == 1
    assert "mistakes: the loss must be one of classes or targets" in failed.err
    assert "Hint: blobnet predict --boxes DIR draws what is found." in failed.err


def test_classes_are_no_boxes(run) -> None:
    failed = run("train", "lenet5", "--dataset", "digits", "--loss", "center-net", "--output", "boxes.h5")
    assert failed.status == 1
    assert "--loss: boxes take the loss center-net, and no other labels do" in failed.err


@pytest.fixture
def boxes(tmp_path: Path) -> bn.Model:
    """A network in boxes.h5, and a folder of pictures that are larger than its samples."""
    write_coco(tmp_path / "scenes", 3, size=(48, 64))
    model = bn.models.centernet((3, 32, 32), 3, CLASSES, trunk="resnet8", filters=(16,))
    rng = np.random.default_rng(0)
    weights = {"heat/weight": rng.normal(0, 0.5, (3, 64, 1, 1)), "box/bias": [4, 5, 0.5, 0.5]}
    model.set_weights(weights)
    model.set_normalization(90, 40)
    model.loss = bn.losses.CenterNet()
    model.save(tmp_path / "boxes.h5")
    return model


def test_predict(run, boxes: bn.Model, tmp_path: Path) -> None:
    """What boxes.json lists are the network's boxes in pixels of each picture, and they are drawn there."""
    (tmp_path / "scenes" / "coco.json").unlink()
    done = run("predict", "boxes.h5", "scenes", "--boxes", "said", "--score", "0.4")
    assert done.status == 0, done.err
    assert done.out == "3 pictures; saved said\n"
    listed = json.loads(Path("said/boxes.json").read_text())
    assert [Path(row["file"]).name for row in listed] == ["0000.png", "0001.png", "0002.png"]
    count = 0
    for row in listed:
        sample = read_image(row["file"], (3, 32, 32))
        (wanted,) = boxes_of(boxes.predict(sample[None]))
        wanted = wanted[wanted[:, 1] >= 0.4]
        assert [box["class"] for box in row["boxes"]] == [CLASSES[int(kind)] for kind in wanted[:, 0]]
        found = np.array([[box["score"], *box["box"]] for box in row["boxes"]]).reshape(-1, 5)
        np.testing.assert_allclose(found, wanted[:, 1:] * [1, 64, 48, 64, 48], atol=0.02)
        assert (row["width"], row["height"]) == (64, 48)
        before, after = (read_image(path, (3, 48, 64)) for path in (row["file"], f"said/{Path(row['file']).name}"))
        assert (before != after).any() == bool(row["boxes"])
        count += len(found)
    assert count > 3
    assert run("predict", "boxes.h5", "scenes", "--boxes", "all", "--score", 0).status == 0
    scores = [box["score"] for row in json.loads(Path("all/boxes.json").read_text()) for box in row["boxes"]]
    assert len(scores) > count
    assert min(scores) > 0  # What is no peak is no box.


def masks() -> bn.Model:
    """A network with a class for each position, and as many as boxes need."""
    made = bn.Sequential([bn.layers.Input(3, 32, 32), bn.layers.Conv2D(6, 1)])
    made.loss = bn.losses.CrossEntropy()
    return made


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["boxes.h5", "scenes/0000.png", "--boxes", "scenes"], "--boxes: each drawing must have a file of its own"),
        (["boxes.h5", "scenes/0000.png", "--boxes", "a", "--masks", "b"], "--boxes: it goes without --masks"),
        (["boxes.h5", "scenes/0000.png", "--boxes", "a", "--json", "b"], "--json: it goes without --boxes"),
        (
            ["boxes.h5", "scenes/0000.png", "--boxes", "a", "--tta", "flip"],
            "tta: answers of boxes and volumes are not moved back",
        ),
        (["boxes.h5", "scenes/0000.png"], "Hint: --boxes DIR draws and lists the boxes that it gives."),
        (["plain.h5", "scenes/0000.png", "--boxes", "a"], "CenterNet: the output must have a height and a width"),
        (["masks.h5", "scenes/0000.png", "--boxes", "a"], "boxes: the model must be trained with the loss CenterNet"),
        (
            ["named.h5", "scenes/0000.png", "--boxes", "a"],
            "boxes: the last units of the model must be width, height, x, y",
        ),
    ],
)
def test_what_is_not_predicted(run, boxes: bn.Model, arguments: list[str], said: str) -> None:
    bn.models.resnet8((3, 32, 32)).save("plain.h5")
    masks().save("masks.h5")
    named = masks()
    named.loss, named.class_names = None, tuple("abcdef")
    named.save("named.h5")
    failed = run("predict", *arguments)
    assert failed.status == 1
    assert said in failed.err


def test_a_file_without_loss_or_names_is_taken_for_one_of_boxes(run, boxes: bn.Model) -> None:
    boxes.loss, boxes.class_names = None, ()
    boxes.save("bare.h5")
    done = run("predict", "bare.h5", "scenes/0000.png", "--boxes", "a")
    assert done.status == 0, done.err
    assert "note: the file says no loss: 4 of 7 units are taken for sides and places of boxes" in done.err


def test_without_pycocotools_there_is_the_loss(run, boxes: bn.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    options = ["boxes.h5", "--dataset", "scenes/coco.json", "--image-size", 32]
    measured = run("evaluate", *options)
    assert measured.status == 0, measured.err
    assert [line.split()[0] for line in measured.out.splitlines()] == ["loss"]
    assert 'note: box_map: it needs pycocotools. Hint: pip install "blobnet[detection]"' in measured.err
    failed = run("evaluate", *options, "--metrics", "box_map")
    assert failed.status == 1
    assert "error: box_map: it needs pycocotools. Hint: " in failed.err


@pytest.mark.parametrize("command", [["train", "centernet"], ["evaluate", "boxes.h5"]], ids=lambda command: command[0])
def test_boxes_have_one_kind_of_labels(run, boxes: bn.Model, command: list[str]) -> None:
    failed = run(*command, "--dataset", "scenes/coco.json", "--image-size", 32, "--labels", "several")
    assert failed.status == 1
    assert "--labels: it is for classes, labels and numbers of pictures, and these have boxes" in failed.err


def test_peaks_in_onnx(run, boxes: bn.Model) -> None:
    """The file gives onnxruntime, and predict's session, the boxes that blobnet finds."""
    runtime = pytest.importorskip("onnxruntime")
    assert run("convert", "boxes.h5", "boxes.onnx", "--boxes", 20).status == 0
    x = np.stack([read_image(f"scenes/{number:04}.png", (3, 32, 32)) for number in range(3)]).astype(np.float32)
    wanted = boxes_of(boxes.predict(x), 20)
    session = runtime.InferenceSession("boxes.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_outputs()] == ["boxes", "scores", "classes"]
    sides, scores, kinds = session.run(None, {session.get_inputs()[0].name: x})
    assert (sides.shape, scores.shape, kinds.shape) == ((3, 20, 4), (3, 20), (3, 20))
    np.testing.assert_allclose(scores, wanted[..., 1], rtol=0, atol=1e-5)
    counted = wanted[..., 1] > 0
    np.testing.assert_array_equal(kinds[counted], wanted[..., 0][counted])
    np.testing.assert_allclose(sides[counted], wanted[..., 2:][counted], rtol=0, atol=1e-5)
    np.savez("x.npz", x=x)
    assert run("predict", "boxes.onnx", "x.npz", "--npz", "said.npz").status == 0
    with np.load("said.npz") as said:
        np.testing.assert_allclose(said["boxes"], sides, rtol=0, atol=1e-5)
    assert "only a .onnx file picks boxes itself" in run("convert", "boxes.h5", "copy.h5", "--boxes", 20).err
    bn.models.resnet8((3, 32, 32)).save("plain.h5")
    failed = run("convert", "plain.h5", "plain.onnx", "--boxes", 20)
    assert failed.status == 1
    assert "CenterNet: the output must have a height and a width" in failed.err
    masks().save("masks.h5")
    failed = run("convert", "masks.h5", "masks.onnx", "--boxes", 20)
    assert failed.status == 1
    assert "boxes: the model must be trained with the loss CenterNet" in failed.err
