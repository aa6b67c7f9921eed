"""How many labels are right, or among the first ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blobnet.examination.reference.arrays import FloatArray
from blobnet.examination.reference.losses import LabelArray


def ranks(logits: FloatArray, labels: LabelArray) -> npt.NDArray[np.int64]:
    """(N, K), (N,) -> (N,): the classes before each label's: larger logits, and equal ones of a smaller index."""
    own = logits[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(logits.shape[1])[None, :] < np.asarray(labels)[:, None]
    return np.asarray(((logits > own) | ((logits == own) & earlier)).sum(axis=1), dtype=np.int64)


def top_count(logits: FloatArray, labels: LabelArray, places: int) -> int:
    """How many of the labels have a rank below ``places``."""
    return int((ranks(logits, labels) < places).sum())


def accuracy_count(logits: FloatArray, labels: LabelArray) -> int:
    """How many of the labels come first."""
    return top_count(logits, labels, 1)


def top5_count(logits: FloatArray, labels: LabelArray) -> int:
    """How many of the labels are among the first five."""
    return top_count(logits, labels, 5)
