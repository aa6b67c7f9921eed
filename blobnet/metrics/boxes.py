"""Metrics of boxes, as pycocotools computes them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
from collections.abc import Callable
from typing import Any

from blobnet.errors import OptionError, extra
from blobnet.metrics.types import Labels, Scores, metric


@metric("boxes")
def box_map(labels: Labels, boxes: Scores) -> float:
    """COCO's mean average precision of boxes: over the classes, and overlaps from 0.5 to 0.95 in steps of 0.05.

    Args:
        labels: (N, boxes, 5), the class (-1 for none), left, top, right and bottom of each.
        boxes: (N, boxes, 6), likewise, with the score after the class; those of the score 0 are none.

    Returns:
        From 0 to 1; NaN where there are no labels.

    Raises:
        OptionError: pycocotools is not installed.
    """
    return _coco_statistics(labels, boxes)[0]


@metric("boxes")
def box_map_50(labels: Labels, boxes: Scores) -> float:
    """The mean average precision of boxes that overlap by 0.5 at least; as :func:`box_map`."""
    return _coco_statistics(labels, boxes)[1]


def check_measures_boxes() -> None:
    """Raises OptionError where pycocotools is not installed."""
    if importlib.util.find_spec("pycocotools") is None:
        raise OptionError("box_map", "it needs pycocotools", hint=extra("detection"))


def measures_of_boxes(note: Callable[[str], object]) -> tuple[str, ...]:
    """Return what is measured of boxes besides the loss, by name; nothing, with a note, without pycocotools."""
    try:
        check_measures_boxes()
    except OptionError as error:
        note(str(error))
        return ()
    return ("box_map", "box_map_50")


def _coco_statistics(labels: Labels, boxes: Scores) -> list[float]:
    """The numbers of COCOeval's summary.

    NOTE: overlaps are the same for sides as parts of a picture as for those in pixels.
    """
    check_measures_boxes()
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    found = [
        {"image_id": n, "category_id": int(row[0]), "score": float(row[1]), "bbox": _sides(row[2:])}
        for n, own in enumerate(boxes)
        for row in own
        if row[1] > 0
    ]
    # NOTE: pycocotools takes the id 0 for no match.
    true: list[dict[str, Any]] = [
        {"image_id": n, "category_id": int(row[0]), "bbox": _sides(row[1:]), "iscrowd": 0}
        for n, own in enumerate(labels)
        for row in own
        if row[0] >= 0
    ]
    true = [{**row, "id": number, "area": row["bbox"][2] * row["bbox"][3]} for number, row in enumerate(true, 1)]
    if not true or not found:
        return [0.0 if true else math.nan] * 2
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        kinds = {row["category_id"] for row in (*true, *found)}
        known.dataset = {
            "info": {},
            "images": [{"id": n} for n in range(len(labels))],
            "categories": [{"id": kind} for kind in sorted(kinds)],
            "annotations": true,
        }
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(value) for value in evaluation.stats]


def _sides(box: Any) -> list[float]:
    """Left, top, width and height."""
    left, top, right, bottom = map(float, box)
    return [left, top, right - left, bottom - top]
