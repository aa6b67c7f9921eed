"""The random changes of samples in a training, and what they make of the labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from blobnet.augment.epoch_rows import EpochRows, check_fit, partner_shares
from blobnet.data.moved_labels import move_labels
from blobnet.memory.blob import FloatArray, Shape
from blobnet.network.ends import Head
from blobnet.network.graph import Graph
from blobnet.training.settings import TrainingSettings


class SampleChanges:
    """How the samples of a training change.

    Args:
        graph: the model.
        settings: which have the changes, and the name of the input whose samples change.
        heads: the outputs with their losses.

    Attributes:
        moves_labels: whether there are labels that move along with their samples.

    Raises:
        OptionError: samples of the model's shape cannot be augmented so.
    """

    def __init__(self, graph: Graph, settings: TrainingSettings, heads: Sequence[Head]) -> None:
        changed, self._changes = settings.augment
        self._shape = graph.inputs[changed].shape if changed else Shape.flat(1)
        self._seed, self._heads = settings.seed, heads
        for head in heads:
            check_fit(self._changes, self._shape, head.shape, head.loss)
        have_positions = any(head.shape.rank > 0 for head in heads)
        self.moves_labels = have_positions and any(item.moves for item in self._changes)

    def rows(self, epoch: int, numbers: Callable[[int, int], npt.NDArray[np.integer]]) -> EpochRows | None:
        """Return the changes of an epoch's samples; None if they do not change. ``numbers`` is as for EpochRows."""
        return EpochRows(self._changes, self._shape, self._seed, epoch, numbers) if self._changes else None

    def partner_shares(self, head: Head, rows: FloatArray) -> FloatArray | None:
        """Return the part of each sample that is its partner's; None where the head's loss has no use for it."""
        if not head.loss.takes_pairs:
            return None
        return partner_shares(rows, self._shape, has_positions=head.shape.rank > 0)

    def move_labels(self, labels: Sequence[npt.NDArray[np.int32]], rows: FloatArray) -> None:
        """Moves the labels of a batch, in place, along with its samples: before they are loaded."""
        for head, own in zip(self._heads, labels, strict=True):
            if head.shape.rank > 0:
                move_labels(own, rows, self._shape, head.loss)
