"""Metrics for ``Model.evaluate`` and ``Model.fit``, and the report of ``Model.report``.

A metric is any function of (labels, scores) that returns a number; its name is the function's. With a loss of classes
it gets a class number for each sample, or each position that is not ignored, (M,), and the probabilities of all
classes, (M, classes). With another loss it gets targets and outputs, both (N, outputs), where the outputs are
probabilities if the loss takes logits; with CenterNet it gets boxes (:func:`box_map`). Everything is computed in
float64. :class:`Expression` makes one of a text.
"""

from blobnet.metrics.boxes import box_map, box_map_50
from blobnet.metrics.classes import (
    auc,
    average_precision,
    class_auc,
    class_average_precision,
    confusion_matrix,
    f1,
    iou,
    precision,
    recall,
)
from blobnet.metrics.expression import Expression
from blobnet.metrics.report import LabelReport, NumberReport, Report
from blobnet.metrics.targets import mae, r2, rmse

__all__ = [
    "Expression",
    "LabelReport",
    "NumberReport",
    "Report",
    "auc",
    "average_precision",
    "box_map",
    "box_map_50",
    "class_auc",
    "class_average_precision",
    "confusion_matrix",
    "f1",
    "iou",
    "mae",
    "precision",
    "r2",
    "recall",
    "rmse",
]
