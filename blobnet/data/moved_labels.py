"""Labels for each position, moved along with their samples by the rows of blobnet/augment/."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.augment.base import IDENTITY
from blobnet.losses import Loss
from blobnet.losses.base import IGNORED
from blobnet.memory.blob import FloatArray, Shape

#: The least part of a moved box's area that must lie within the sample.
KEPT_AREA = 0.1


def move_labels(labels: npt.NDArray[np.int32], rows: FloatArray, shape: Shape, loss: Loss) -> None:
    """Moves and pastes the labels of a batch, in place, as the input kernel does with the samples.

    Classes are those of the nearest cell, and what comes from outside a sample is ignored. Targets are interpolated;
    outside they are 0. A box becomes the one around its four moved corners, cut off at the edges of the sample; one
    that keeps less than KEPT_AREA of its area is dropped.

    Args:
        labels: (count, words), as the loss's ``device_labels`` gives them, of any type of 4 bytes.
        rows: of the samples.
        shape: of a sample; labels have its height and width, unless they are boxes.
        loss: what they are for.
    """
    if loss.takes_boxes:
        for own, row in zip(labels.view(np.float32).reshape(len(labels), -1, 5), rows, strict=True):
            if not np.array_equal(row[:6], IDENTITY):
                own[:] = _moved_boxes(own, row, shape)
        return
    look_up: Callable[..., npt.NDArray[Any]] = _nearest if loss.takes_classes else _interpolated
    planes: npt.NDArray[Any] = labels.view(np.int32 if loss.takes_classes else np.float32)
    planes = planes.reshape(len(labels), -1, shape.height, shape.width)
    for own, row in zip(planes, rows, strict=True):
        if not np.array_equal(row[:6], IDENTITY):
            own[:] = look_up(own, *_positions(row, shape))
    pasted = np.flatnonzero(rows[:, 18] == 1)
    sources = planes[(pasted + 1) % len(planes)]
    for n, source in zip(pasted, sources, strict=True):
        top, left, bottom, right = rows[n, 14:18].astype(int)
        planes[n, :, top:bottom, left:right] = source[:, top:bottom, left:right]


def _moved_boxes(boxes: FloatArray, row: FloatArray, shape: Shape) -> FloatArray:
    """Return the boxes (rows, 5) of a sample where its cells go; those that stay come first."""
    kinds, corners = boxes[:, 0], boxes[:, 1:].astype(np.float64)
    size = np.array([[shape.height], [shape.width]])
    maps = row[:6].astype(np.float64).reshape(2, 3)
    # Corners in cells, whose middles have whole numbers; the map is that from where a cell lies to where it reads from.
    points = np.stack([corners[:, [1, 1, 3, 3]].T, corners[:, [0, 2, 0, 2]].T]) * size[..., None] - 0.5
    moved = np.linalg.solve(maps[:, :2], (points - maps[:, 2, None, None]).reshape(2, -1)).reshape(points.shape)
    places = (moved + 0.5) / size[..., None]
    whole = np.concatenate([places.min(axis=1)[::-1], places.max(axis=1)[::-1]]).T
    inside = whole.clip(0, 1)
    areas, kept = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (whole, inside))
    stays = (kinds >= 0) & (kept > KEPT_AREA * areas)
    found = np.zeros_like(boxes)
    found[:, 0] = IGNORED
    found[: stays.sum()] = np.concatenate([kinds[stays, None], inside[stays]], axis=1)
    return found


def _positions(row: FloatArray, shape: Shape) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return where each cell reads from, as y and x of the shape (height, width) or one that broadcasts to it."""
    maps = row[:6].astype(np.float64).reshape(2, 3)
    y, x = np.arange(shape.height)[:, None], np.arange(shape.width)
    (by_y, by_x, constant), (x_by_y, x_by_x, x_constant) = maps
    from_y = by_y * y + constant + (by_x * x if by_x else 0)
    from_x = x_by_x * x + x_constant + (x_by_y * y if x_by_y else 0)
    return from_y, from_x


def _is_inside(
    y: npt.NDArray[np.float64], x: npt.NDArray[np.float64], height: int, width: int
) -> npt.NDArray[np.bool_]:
    return (y >= -0.5) & (y <= height - 0.5) & (x >= -0.5) & (x <= width - 0.5)


def _cells(planes: npt.NDArray[Any], row: npt.NDArray[np.intp], column: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    # NOTE: by one index and without a check, in half the time of planes[:, row, column].
    cells: npt.NDArray[Any] = planes.reshape(len(planes), -1).take(row * planes.shape[2] + column, axis=1, mode="clip")
    return cells


def _nearest(
    planes: npt.NDArray[np.int32], y: npt.NDArray[np.float64], x: npt.NDArray[np.float64]
) -> npt.NDArray[np.int32]:
    height, width = planes.shape[1:]
    row, column = (
        np.clip(np.floor(place + 0.5), 0, size - 1).astype(np.intp) for place, size in ((y, height), (x, width))
    )
    return np.where(_is_inside(y, x, height, width), _cells(planes, row, column), np.int32(IGNORED))


def _interpolated(planes: FloatArray, y: npt.NDArray[np.float64], x: npt.NDArray[np.float64]) -> FloatArray:
    height, width = planes.shape[1:]
    down, right = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
    top, left = down.astype(np.intp), right.astype(np.intp)
    bottom, next_ = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    above, below = (
        (1 - right + left) * _cells(planes, row, left) + (right - left) * _cells(planes, row, next_)
        for row in (top, bottom)
    )
    values = np.where(_is_inside(y, x, height, width), above + (down - top) * (below - above), 0)
    return values.astype(np.float32)
