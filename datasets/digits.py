"""The 1,797 optical digits of 8x8 that ship with blobnet (their source: digits.txt)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blobnet.datasets.dataset import Dataset
from blobnet.datasets.splits import as_split

TRAIN_COUNT = 1437
CLASSES = 10


def read_digits() -> Dataset:
    """The first 1,437 samples for training, the last 360 for test; x is uint8 (N, 1, 8, 8) of 0..16."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        x, y = arrays["x"], arrays["y"]
    return Dataset(
        "digits",
        as_split(x[:TRAIN_COUNT], y[:TRAIN_COUNT], CLASSES, "digits"),
        as_split(x[TRAIN_COUNT:], y[TRAIN_COUNT:], CLASSES, "digits"),
        tuple("0123456789"),
    )
