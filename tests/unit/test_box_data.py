"""Pictures with boxes: COCO's JSON, YOLO's texts, Pascal VOC's XML, and what is wrong in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import datasets, losses, metrics
from blobnet.augment import CutMix, Flip, RandomAffine, RandomResizedCrop
from blobnet.augment.epoch_rows import check_fit, rows_for
from blobnet.data.labels import prepare_labels
from blobnet.data.moved_labels import move_labels
from blobnet.errors import BlobnetError, BlobnetWarning, DataError, FileError, OptionError
from blobnet.losses.center_net import boxes_of
from blobnet.memory.blob import Shape

Image = pytest.importorskip("PIL.Image")

SIZE = (40, 50)
#: Each picture's boxes in pixels: class, left, top, right, bottom.
BOXES: dict[str, list[tuple[str, int, int, int, int]]] = {
    "a": [("cat", 5, 8, 25, 20), ("dog", 0, 0, 50, 40)],
    "b": [],
    "c": [("dog", 10, 4, 20, 36)],
}
NAMES = ["cat", "dog"]


def picture(path: Path, size: tuple[int, int] = SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)).save(path)


def coco(folder: Path) -> dict[str, Any]:
    """COCO's tables, with ids that jump."""
    rows = [(number, box) for number, boxes in enumerate(BOXES.values()) for box in boxes]
    for name in BOXES:
        picture(folder / f"{name}.png")
    return {
        "images": [
            {"id": 10 * number, "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]}
            for number, name in enumerate(BOXES)
        ],
        "categories": [{"id": 90, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [
            {"id": n, "image_id": 10 * number, "category_id": {"cat": 3, "dog": 90}[k], "bbox": [x, y, r - x, b - y]}
            for n, (number, (k, x, y, r, b)) in enumerate(rows)
        ],
    }


def write_coco(path: Path) -> Path:
    (path / "coco.json").write_text(json.dumps(coco(path)))
    return path / "coco.json"


def write_yolo(path: Path, place: str = "{kind}/{name}") -> Path:
    for name, boxes in BOXES.items():
        picture(path / f"{place.format(kind='images', name=name)}.png")
        lines = [
            f"{NAMES.index(k)} {(x + r) / 2 / SIZE[1]} {(y + b) / 2 / SIZE[0]} {(r - x) / SIZE[1]} {(b - y) / SIZE[0]}"
            for k, x, y, r, b in boxes
        ]
        text = path / f"{place.format(kind='labels', name=name)}.txt"
        text.parent.mkdir(parents=True, exist_ok=True)
        text.write_text("\n".join(lines))
    (path / "classes.txt").write_text("\n".join(NAMES))
    return path


def write_voc(path: Path) -> Path:
    (path / "Annotations").mkdir(parents=True)
    for name, boxes in BOXES.items():
        picture(path / "JPEGImages" / f"{name}.png")
        objects = "".join(
            f"<object><name>{k}</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{r}</xmax>"
            f"<ymax>{b}</ymax></bndbox></object>"
            for k, x, y, r, b in boxes
        )
        size = f"<size><width>{SIZE[1]}</width><height>{SIZE[0]}</height></size>"
        text = f"<annotation><filename>{name}.png</filename>{size}{objects}</annotation>"
        (path / "Annotations" / f"{name}.xml").write_text(text)
    return path


def expected() -> np.ndarray:
    found = np.zeros((3, 2, 5), np.float32)
    found[..., 0] = -1
    for row, boxes in zip(found, BOXES.values(), strict=True):
        for own, (kind, *sides) in zip(row, boxes, strict=False):
            own[:] = NAMES.index(kind), *np.divide(sides, (*SIZE[::-1], *SIZE[::-1]))
    return found


@pytest.mark.parametrize("write", [write_coco, write_yolo, write_voc], ids=["coco", "yolo", "voc"])
@pytest.mark.parametrize("size", [None, (20, 30)])
def test_formats(tmp_path: Path, write: Any, size: tuple[int, int] | None) -> None:
    data = datasets.load(write(tmp_path), size=size)
    assert (data.class_names, data.has_boxes, data.positions) == (("cat", "dog"), True, ())
    assert data.train.x.shape == (3, 3, *(size or SIZE))
    np.testing.assert_allclose(data.train.y, expected(), rtol=0, atol=1e-6)
    assert [Path(file).stem for file in data.train.files] == ["a", "b", "c"]
    assert "2 classes in up to 2 boxes" in repr(data)
    part, rest = data.train.split_validation(0.34, 0)
    assert (part.y.shape, rest.y.shape) == ((2, 2, 5), (1, 2, 5))


@pytest.mark.parametrize("place", ["{kind}/train/{name}", "train/{kind}/{name}"])
def test_yolo_splits(tmp_path: Path, place: str) -> None:
    write_yolo(tmp_path, place)
    write_yolo(tmp_path, place.replace("train", "val"))
    data = datasets.load(tmp_path)
    assert (len(data.train), len(data.validation or ()), data.test) == (3, 3, None)


def test_voc_splits(tmp_path: Path) -> None:
    lists = write_voc(tmp_path) / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\n")
    (lists / "val.txt").write_text("c\n")
    with pytest.warns(BlobnetWarning, match=r"1 files are in no list of ImageSets/Main, and are left out.*b\.xml"):
        data = datasets.load(tmp_path)
    assert (len(data.train), len(data.validation or ())) == (1, 1)


def test_coco_splits(tmp_path: Path) -> None:
    """Of each split a file; the numbers of its categories are its own, its names those of the training."""
    (tmp_path / "annotations").mkdir()
    tables = coco(tmp_path / "train2017")
    (tmp_path / "annotations" / "instances_train2017.json").write_text(json.dumps(tables))
    other = coco(tmp_path / "val2017")
    for row, number in zip(other["categories"], (1, 2), strict=True):
        row["id"] = number
    for row in other["annotations"]:
        row["category_id"] = {90: 1, 3: 2}[row["category_id"]]
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(other))
    # What COCO's own download has beside them: texts without categories, and people with keypoints.
    texts = {"images": tables["images"], "annotations": [{"id": 1, "image_id": 0, "caption": "a cat"}]}
    people = {**tables, "categories": [{"id": 1, "name": "person"}], "annotations": []}
    for split in ("train2017", "val2017"):
        (tmp_path / "annotations" / f"captions_{split}.json").write_text(json.dumps(texts))
        (tmp_path / "annotations" / f"person_keypoints_{split}.json").write_text(json.dumps(people))
    data = datasets.load(tmp_path)
    assert data.class_names == tuple(NAMES)
    assert (len(data.train), len(data.validation or ())) == (3, 3)
    assert data.validation is not None
    np.testing.assert_allclose(data.validation.y, expected(), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(data.validation.y, data.train.y)


def test_coco_files_of_a_split_have_the_same_categories(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    tables = coco(tmp_path / "annotations")
    (tmp_path / "annotations" / "first_train.json").write_text(json.dumps(tables))
    tables["categories"][0]["name"] = "wolf"
    (tmp_path / "annotations" / "second_train.json").write_text(json.dumps(tables))
    said = r"second_train\.json: files of one split must have the same categories.*first_train\.json"
    with pytest.raises(DataError, match=said):
        datasets.load(tmp_path)


def change(tables: dict[str, Any], table: str, row: int, **values: Any) -> dict[str, Any]:
    tables[table][row] |= values
    return tables


@pytest.mark.parametrize(
    ("box", "said", "row"),
    [
        ([30, 10, 40, 20], "1 boxes reach beyond their pictures, and are cut off there", [0, 0.6, 0.25, 1, 0.75]),
        ([60, 10, 5, 5], "1 boxes are empty, or lie outside their pictures, and are left out", None),
        ([10, 10, 0, 5], "1 boxes are empty, or lie outside their pictures, and are left out", None),
        ([10, 10, -4, 5], "1 boxes are empty, or lie outside their pictures, and are left out", None),
    ],
)
def test_boxes_outside_or_empty(tmp_path: Path, box: list[int], said: str, row: list[float] | None) -> None:
    tables = change(coco(tmp_path), "annotations", 0, bbox=box)
    (tmp_path / "coco.json").write_text(json.dumps(tables))
    with pytest.warns(BlobnetWarning, match=f"{said}.*coco.json, image 0"):
        data = datasets.load(tmp_path / "coco.json")
    first = [row for row in data.train.y[0].tolist() if row[0] == 0]
    assert len(first) == (row is not None)
    np.testing.assert_allclose(first, [row] if row else np.zeros((0,)), atol=1e-6)


def test_crowds_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "coco.json").write_text(json.dumps(change(coco(tmp_path), "annotations", 0, iscrowd=1)))
    with pytest.warns(BlobnetWarning, match=r"1 boxes are around crowds \(iscrowd\), and are left out"):
        data = datasets.load(tmp_path / "coco.json")
    assert (data.train.y[0, :, 0] >= 0).sum() == 1


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("{", FileError, "coco.json: the file must be readable JSON"),
        ("[]", DataError, "it must be COCO's JSON, with the lists images, annotations and categories"),
        (("annotations", {"image_id": [0]}), DataError, "its image_id must be that of a row of the file"),
        (("annotations", {"category_id": {}}), DataError, "its category_id must be that of a row of the file"),
        (("annotations", {"bbox": [10**400, 0, 1, 1]}), DataError, "the sides of a box must be finite numbers"),
        (("annotations", {"category_id": 4}), DataError, "annotation 0: its category_id must be that of a row"),
        (("annotations", {"image_id": 4}), DataError, "annotation 0: its image_id must be that of a row of the file"),
        (("annotations", {"bbox": [1, 2]}), DataError, "an annotation must have a bbox of left, top, width and height"),
        (("annotations", {"bbox": [1, 2, "x", 4]}), DataError, "the sides of a box must be finite numbers"),
        (("annotations", {"bbox": [1, 2, float("nan"), 4]}), DataError, "the sides of a box must be finite numbers"),
        (("images", {"file_name": "gone.png"}), FileError, "1 of 3 pictures cannot be read"),
        (("images", {"height": 50, "width": 40}), DataError, "boxes must be those of a picture of its size"),
        (("images", {"id": 10}), DataError, "an id, a whole number that no other has"),
        (("categories", {"name": "cat"}), DataError, "every category must have a name of its own"),
    ],
)
def test_wrong_coco(tmp_path: Path, text: Any, error: type[BlobnetError], said: str) -> None:
    if not isinstance(text, str):
        text = json.dumps(change(coco(tmp_path), text[0], 0, **text[1]))
    (tmp_path / "coco.json").write_text(text)
    with pytest.raises(error, match=re.escape(said)):
        datasets.load(tmp_path / "coco.json")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2 0.5 0.5 0.2 0.2", "a.txt, line 1: the class must be one of those that are named"),
        ("0 25 20 10 10", "a.txt, line 1: sides must be parts of the picture's, from 0 to 1, not pixels"),
        ("0 0.5 0.5 0.2", "a.txt, line 1: a line must be a class number from 0 on, the middle x and y"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3", "outlines (polygons) are no boxes."),
        ("0 0.5 0.5 0.2 x", "a.txt, line 1: the sides of a box must be finite numbers"),
    ],
)
def test_wrong_yolo(tmp_path: Path, line: str, said: str) -> None:
    (write_yolo(tmp_path) / "labels" / "a.txt").write_text(line)
    with pytest.raises(DataError, match=re.escape(said)):
        datasets.load(tmp_path)


def test_yolo_without_partners(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    (tmp_path / "labels" / "b.txt").rename(tmp_path / "labels" / "z.txt")
    with pytest.warns(BlobnetWarning) as warned:
        datasets.load(tmp_path)
    said = " ".join(str(each.message) for each in warned)
    assert "1 pictures have no file of boxes, and count as empty" in said
    assert "1 files of boxes have no picture, and are left out" in said


def test_yolo_names(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (write_yolo(tmp_path) / "classes.txt").unlink()
    assert datasets.load(tmp_path).class_names == ("0", "1")
    (tmp_path / "data.yaml").write_text("names: {0: cat, 1: dog}\n")
    assert datasets.load(tmp_path).class_names == ("cat", "dog")
    (tmp_path / "data.yaml").write_text("names: 3\n")
    with pytest.raises(FileError, match="it must be readable YAML whose names number classes from 0 on"):
        datasets.load(tmp_path)


def test_wrong_voc(tmp_path: Path) -> None:
    path = write_voc(tmp_path) / "Annotations" / "a.xml"
    text = path.read_text()
    path.write_text(text.replace("<xmin>6</xmin>", "<xmin>six</xmin>"))
    with pytest.raises(DataError, match=r"a\.xml: the sides of a box must be finite numbers"):
        datasets.load(tmp_path)
    path.write_text(text[:-20])
    with pytest.raises(FileError, match=r"a\.xml: the file must be readable XML"):
        datasets.load(tmp_path)


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([2, 0, 0, 1, 1], "the class of a box must be a whole number from 0 to 1, or -1 where there is none"),
        ([0.5, 0, 0, 1, 1], "the class of a box must be a whole number from 0 to 1"),
        ([0, 0, 0, 20, 30], "a box must be left < right and top < bottom, as parts of the picture from 0 to 1"),
        ([0, 0.5, 0, 0.5, 1], "a box must be left < right"),
        ([0, 0.5, np.nan, 0.6, 1], "must hold finite float32 values"),
    ],
)
def test_labels_are_checked(row: list[float], said: str) -> None:
    y = expected()
    y[1, 0] = row
    with pytest.raises(DataError, match=said):
        prepare_labels(Shape(6, 4, 5), losses.CenterNet(), (3, 3, 16, 20), y, "fit")


def test_labels_are_packed() -> None:
    y = expected()[:, ::-1]
    words = prepare_labels(Shape(6, 4, 5), losses.CenterNet(boxes=3), (3, 3, 16, 20), y, "fit")
    found = np.asarray(words).reshape(3, 3, 5)
    np.testing.assert_array_equal(found[2, 0], expected()[2, 0])
    np.testing.assert_array_equal(found[..., 0], [[1, 0, -1], [-1, -1, -1], [1, -1, -1]])
    with pytest.raises(DataError, match=r"labels must be \(N, up to 1 boxes, 5\).*CenterNet\(boxes=...\) takes more"):
        prepare_labels(Shape(6, 4, 5), losses.CenterNet(boxes=1), (3, 3, 16, 20), y, "fit")


@pytest.mark.parametrize(
    "change", [Flip(), Flip(vertical=True), RandomAffine(20, 0.1, (0.8, 1.3)), RandomResizedCrop((0.4, 1))], ids=str
)
def test_boxes_move_with_pictures(change: Any) -> None:
    """A box holds what a filled box becomes, and no more than a turned one's corners add."""
    shape, rng = Shape(1, 60, 80), np.random.default_rng(1)
    for number in range(20):
        sides = np.sort(rng.uniform(0.1, 0.9, (2, 2)), axis=0)
        if (sides[1] - sides[0]).min() < 0.2:
            continue
        left, top, right, bottom = [*sides[0], *sides[1]]
        plane = np.zeros((1, 60, 80), np.float32)
        plane[:, round(top * 60) : round(bottom * 60), round(left * 80) : round(right * 80)] = 1
        box = np.array([[[0, round(left * 80) / 80, round(top * 60) / 60, round(right * 80) / 80,
                          round(bottom * 60) / 60], [-1, 0, 0, 0, 0]]], np.float32)  # fmt: skip
        rows = rows_for((change,), shape, 3, 0, np.array([number]))
        planes, words = plane.reshape(1, -1).view(np.int32).copy(), box.reshape(1, -1).view(np.int32).copy()
        move_labels(planes, rows, shape, losses.MeanSquaredError())
        move_labels(words, rows, shape, losses.CenterNet(boxes=2))
        cells = np.argwhere(planes.view(np.float32).reshape(60, 80) > 0.5)
        kind, *found = words.view(np.float32).reshape(2, 5)[0]
        if len(cells) == 0 or kind < 0:
            assert len(cells) < 0.15 * plane.sum() * 1.7
            continue
        (first_row, first), (last_row, last) = cells.min(axis=0), cells.max(axis=0) + 1
        np.testing.assert_allclose(found, [first / 80, first_row / 60, last / 80, last_row / 60], atol=0.035)


def test_boxes_that_leave_are_dropped() -> None:
    shape, row = Shape(1, 10, 10), np.zeros((1, 19), np.float32)
    row[0, :6] = 1, 0, 0, 0, 1, 6  # Cell x shows what was at x + 6.
    y = np.array([[[0, 0, 0, 0.6, 1], [1, 0.5, 0, 1, 1], [2, 0.15, 0.2, 0.64, 0.4]]], np.float32)
    words = y.reshape(1, -1).view(np.int32).copy()
    move_labels(words, row, shape, losses.CenterNet(boxes=3))
    found = words.view(np.float32).reshape(3, 5)
    np.testing.assert_allclose(found[0], [1, 0, 0, 0.4, 1], atol=1e-6)
    np.testing.assert_array_equal(found[1:, 0], [-1, -1])


def test_boxes_are_not_mixed() -> None:
    with pytest.raises(OptionError, match="the loss must take the labels of two samples"):
        check_fit((CutMix(),), Shape(3, 64, 64), Shape(7, 16, 16), losses.CenterNet())


# -- boxes of outputs, and their mean average precision ----------------------------------------------------------------


def test_boxes_of_outputs() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.normal(0, 1, (2, 7, 9, 11)).astype(np.float32)
    found = boxes_of(outputs, 20)
    for own, rows in zip(outputs, found, strict=True):
        peaks = []
        for kind, y, x in np.ndindex(3, 9, 11):
            near = own[kind, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
            if own[kind, y, x] == near.max():
                w, h, dx, dy = own[3:, y, x].astype(float)
                middle, half = ((x + dx) / 11, (y + dy) / 9), (w / 22, h / 18)
                sides = [middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1]]
                peaks.append([kind, 1 / (1 + np.exp(-float(own[kind, y, x]))), *np.clip(sides, 0, 1)])
        peaks.sort(key=lambda row: -row[1])
        np.testing.assert_allclose(rows, peaks[:20], rtol=1e-6, atol=1e-9)


def test_box_map_is_pycocotools(tmp_path: Path) -> None:
    """The numbers of pycocotools from its own files, in pixels; and those of perfect and of no boxes."""
    coco_tools, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(2)
    sides = np.sort(rng.random((6, 5, 2, 2)), axis=2).reshape(6, 5, 4)
    y = np.concatenate([rng.integers(-1, 3, (6, 5, 1)), sides], axis=2)
    moved = np.sort((sides + rng.normal(0, 0.03, sides.shape)).reshape(6, 5, 2, 2), axis=2).reshape(6, 5, 4)
    kinds = np.where(rng.random((6, 5, 1)) < 0.8, np.maximum(y[..., :1], 0), rng.integers(0, 3, (6, 5, 1)))
    boxes = np.concatenate([kinds, rng.random((6, 5, 1)), moved], axis=2)
    size = (640, 480) * 2

    def row(n: int, kind: float, sides: Any, **more: Any) -> dict[str, Any]:
        left, top, right, bottom = (float(side * length) for side, length in zip(sides, size, strict=True))
        box = [left, top, right - left, bottom - top]
        return {"image_id": n, "category_id": int(kind) + 1, "bbox": box, "area": box[2] * box[3], **more}

    true = [row(n, own[0], own[1:], iscrowd=0) for n, each in enumerate(y) for own in each if own[0] >= 0]
    said = [row(n, own[0], own[2:], score=own[1]) for n, each in enumerate(boxes) for own in each]
    tables = {"info": {}, "images": [{"id": n} for n in range(6)], "categories": [{"id": n} for n in (1, 2, 3)]}
    tables["annotations"] = [{**each, "id": number} for number, each in enumerate(true, 1)]
    for name, content in (("true", tables), ("said", said)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    known = coco_tools.COCO(str(tmp_path / "true.json"))
    evaluation = cocoeval.COCOeval(known, known.loadRes(str(tmp_path / "said.json")), "bbox")
    for step in (evaluation.evaluate, evaluation.accumulate, evaluation.summarize):
        step()
    assert 0.05 < evaluation.stats[0] < 0.95
    assert metrics.box_map(y, boxes) == pytest.approx(evaluation.stats[0], abs=1e-9)
    assert metrics.box_map_50(y, boxes) == pytest.approx(evaluation.stats[1], abs=1e-9)
    perfect = np.insert(y, 1, y[..., 0] >= 0, axis=2)
    assert metrics.box_map(y, perfect) == pytest.approx(1)
    assert metrics.box_map(y, np.zeros((6, 0, 6))) == 0
    assert np.isnan(metrics.box_map(np.full((6, 1, 5), -1.0), boxes))
