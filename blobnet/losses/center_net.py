"""The loss CenterNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.errors import DataError, OptionError, ShapeError
from blobnet.launch.kernel_source import Macro
from blobnet.losses.base import IGNORED, Loss
from blobnet.memory.blob import FloatArray, Shape
from blobnet.support.checks import check_count, check_number

#: Numbers of a box in labels: the class, left, top, right, bottom; units of the output besides the classes.
BOX_NUMBERS, BOX_UNITS = 5, 4
#: The names of those units.
BOX_NAMES = ("width", "height", "x", "y")


@dataclass(frozen=True)
class CenterNet(Loss):
    """Boxes by their middles: a heat map of each class, and sizes and offsets where the middles are.

    (Zhou et al., *Objects as Points*, 2019.) The output is (N, classes + 4, H, W): logits of the heat maps, then width,
    height and offsets x, y in cells. The heat Y is 1 in the cell of a box's middle, and falls off around it as
    ``exp(-d^2 / (2 s^2))`` up to 3 s away, with ``s = (r + 1/2) / 3``: r is how far both corners may move at once so
    that the box still covers 0.7 of the union (Law and Deng, *CornerNet*, 2018). Of several boxes the highest counts.
    With p = sigmoid(output) and N boxes (1 if there are none), the loss of a sample is::

        (sum over Y = 1 of -(1 - p)^2 log(p)  +  sum over the others of -(1 - Y)^4 p^2 log(1 - p)) / N
        + size_weight / N * sum of |width - w| + |height - h|  +  offset_weight / N * sum of |x - ox| + |y - oy|

    Labels are (N, boxes, 5), float: class, left, top, right and bottom as parts of the picture's width and height. Rows
    whose class is -1 are no boxes.

    Args:
        size_weight: of the distances of widths and heights.
        offset_weight: of those of the offsets.
        boxes: the most of a picture, in labels.

    Raises:
        OptionError: a value out of its range.
    """

    size_weight: float = 0.1
    offset_weight: float = 1.0
    boxes: int = 100
    kernel: ClassVar[str] = "loss/center_net"
    takes_pairs: ClassVar[bool] = False
    takes_boxes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("CenterNet", "size_weight", self.size_weight, least=0)
        check_number("CenterNet", "offset_weight", self.offset_weight, least=0)
        check_count("CenterNet", "boxes", self.boxes)

    def macros(self) -> dict[str, Macro]:
        weights = {"SIZE_WEIGHT": float(self.size_weight), "OFFSET_WEIGHT": float(self.offset_weight)}
        return {"BOXES": self.boxes, **weights}

    def label_elements(self, output: Shape) -> int:
        return self.boxes * BOX_NUMBERS

    def check(self, output: Shape) -> None:
        if output.rank != 2 or output.units <= BOX_UNITS:
            rule = "the output must have a height and a width, and a unit for each class and four more"
            raise ShapeError("CenterNet", rule, output=output)

    def check_boxes(self, labels: npt.NDArray[Any], output: Shape, subject: str) -> None:
        """Raises DataError for labels that are not boxes of the output's classes."""
        classes = output.units - BOX_UNITS
        if labels.ndim != 3 or labels.shape[2] != BOX_NUMBERS or labels.shape[1] > self.boxes:
            rule = f"labels must be (N, up to {self.boxes} boxes, {BOX_NUMBERS})"
            hint = "class, left, top, right, bottom of each; CenterNet(boxes=...) takes more of them."
            raise DataError(subject, rule, y_shape=labels.shape, hint=hint)
        kinds, sides = labels[..., 0], labels[..., 1:]
        is_box = kinds != IGNORED
        known = (kinds >= 0) & (kinds < classes) & (kinds % 1 == 0)
        inside = (sides >= 0).all(axis=2) & (sides <= 1).all(axis=2) & (sides[..., :2] < sides[..., 2:]).all(axis=2)
        for right, rule in (
            (known, f"the class of a box must be a whole number from 0 to {classes - 1}, or -1 where there is none"),
            (inside, "a box must be left < right and top < bottom, as parts of the picture from 0 to 1"),
        ):
            if (is_box & ~right).any():
                sample, row = map(int, np.argwhere(is_box & ~right)[0])
                raise DataError(subject, rule, sample=sample, box=labels[sample, row].tolist())

    def device_labels(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found = np.zeros((len(labels), self.boxes, BOX_NUMBERS), np.float32)
        found[..., 0] = IGNORED
        # Boxes come first, in their order.
        order = np.argsort(labels[..., 0] == IGNORED, axis=1, kind="stable")
        found[:, : labels.shape[1]] = np.take_along_axis(labels, order[..., None], axis=1)
        return found.reshape(len(labels), -1)

    def answers(self, labels: npt.NDArray[Any], outputs: FloatArray) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Labels as :meth:`device_labels` gives them, and outputs, as boxes: (N, boxes, 5) and as :func:`boxes_of`."""
        return labels.view(np.float32).reshape(len(labels), -1, BOX_NUMBERS), boxes_of(outputs)


def check_gives_boxes(loss: Any, output: Shape, units: Sequence[str]) -> None:
    """Raises unless a model with such an output, trained with ``loss`` if that is known, gives boxes.

    ``units`` are the names of the output's units, if they have names.

    Raises:
        OptionError: the loss is another one, or the units are.
        ShapeError: the output is none for :class:`CenterNet`.
    """
    if loss is not None and not loss.takes_boxes:
        rule = "the model must be trained with the loss CenterNet"
        raise OptionError("boxes", rule, loss=loss, hint="models.centernet makes a network for it.")
    CenterNet().check(output)
    if units and tuple(units[-BOX_UNITS:]) != BOX_NAMES:
        rule = f"the last units of the model must be {', '.join(BOX_NAMES)}"
        raise OptionError("boxes", rule, units=", ".join(units), hint="models.centernet makes a network for it.")


def boxes_of(outputs: FloatArray, most: int = 100) -> npt.NDArray[np.float64]:
    """The boxes that outputs for :class:`CenterNet` stand for: the highest cells of heat maps among their neighbours.

    Args:
        outputs: (N, classes + 4, H, W).
        most: boxes of a sample.

    Returns:
        (N, up to ``most``, 6), by falling score: the class, the score from 0 to 1, left, top, right and bottom as parts
        of the picture. Where there are fewer peaks, the scores of the others are 0.
    """
    count, units, height, width = outputs.shape
    heat = outputs[:, : units - BOX_UNITS]
    around = np.pad(heat, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    highest = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(2, 3)).max(axis=(4, 5))
    logits = np.where(heat == highest, heat, -np.inf).reshape(count, -1)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :most]
    cell = order % (height * width)
    scores = np.exp(-np.logaddexp(0, -np.take_along_axis(logits, order, axis=1).astype(np.float64)))
    boxes = outputs[:, units - BOX_UNITS :].reshape(count, BOX_UNITS, -1).astype(np.float64)
    wide, high, x, y = np.take_along_axis(boxes, cell[:, None], axis=2).swapaxes(0, 1)
    x, y = (x + cell % width) / width, (y + cell // width) / height
    wide, high = wide / (2 * width), high / (2 * height)
    sides = np.clip([x - wide, y - high, x + wide, y + high], 0, 1)
    return np.stack([order // (height * width), scores, *sides], axis=2)
