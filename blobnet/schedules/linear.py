"""The schedule Linear."""

from __future__ import annotations

from dataclasses import dataclass

from blobnet.schedules.cosine import Cosine


@dataclass(frozen=True)
class Linear(Cosine):
    """A linear warm-up, then a line down to ``final_rate`` in the last step: a triangle.

    As :class:`Cosine`, with 1 - p in place of (1 + cos(pi * p)) / 2.

    Args:
        rate: the highest learning rate.
        warmup_epochs: length of the warm-up; parts of an epoch are allowed.
        final_rate: the learning rate of the last step, and of any after it.

    Raises:
        OptionError: a negative rate or length.
    """

    @staticmethod
    def _left(progress: float) -> float:
        return 1.0 - progress
