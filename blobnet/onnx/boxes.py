"""The choice among overlapping boxes: ONNX's NonMaxSuppression, in NumPy."""

from __future__ import annotations

import numpy as np

from blobnet.onnx.values import Array


def non_max_suppression(
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
    *,
    centers: bool = False,
) -> Array:
    """The boxes that no box of a higher score overlaps, by sample, class and falling score.

    Args:
        boxes: (samples, boxes, 4): two opposite corners, y and x of each.
        scores: (samples, classes, boxes).
        most: boxes of a class, one number; none at all where it is missing.
        overlap: above which share of what two boxes cover both do they overlap; 0 where it is missing.
        least: scores must be above this number.
        centers: whether boxes are x and y of the center, width and height.

    Returns:
        (found, 3) of int64: the sample, the class and the number of each box.
    """
    room = 0 if most is None else int(np.ravel(most)[0])
    share = 0.0 if overlap is None else float(np.ravel(overlap)[0])
    found = [
        (sample, kind, box)
        for sample in range(len(scores))
        for kind in range(scores.shape[1])
        for box in _kept(_corners(boxes[sample], centers=centers), scores[sample, kind], room, share, least)
    ]
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: Array, *, centers: bool) -> Array:
    """(boxes, 4): the least coordinates, and the largest."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centers:
        return np.concatenate([first - second / 2, first + second / 2], axis=1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def _kept(corners: Array, scores: Array, room: int, share: float, least: Array | None) -> list[int]:
    """The numbers of the boxes that stay, of one class."""
    # Of equal scores the first one wins.
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > np.ravel(least)[0]]
    sizes = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    kept: list[int] = []
    while len(order) and len(kept) < room:
        best, order = order[0], order[1:]
        kept.append(int(best))
        sides = np.minimum(corners[best, 2:], corners[order, 2:]) - np.maximum(corners[best, :2], corners[order, :2])
        common = np.prod(np.maximum(sides, 0), axis=1)
        # Boxes without an area overlap nothing.
        order = order[common <= share * (sizes[best] + sizes[order] - common)]
    return kept
