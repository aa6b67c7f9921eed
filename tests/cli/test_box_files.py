"""Boxes, from files to files: train, evaluate and predict."""

from __future__ import annotations

from pathlib import Path

import pytest

import blobnet as bn
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


def test_classes_are_no_boxes(run) -> None:
    failed = run("train", "lenet5", "--dataset", "digits", "--loss", "center-net", "--output", "boxes.h5")
    assert failed.status == 1
    assert "--loss: boxes take the loss center-net, and no other labels do" in failed.err
