"""The loss Dice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.launch.kernel_call import Blob, GlobalSize, KernelCall, Tuning
from blobnet.losses.base import Loss, _Walk, softmax_call
from blobnet.losses.class_loss import _ClassLoss
from blobnet.memory.blob import FloatArray, Shape
from blobnet.support.checks import check_number


@dataclass(frozen=True)
class Dice(_ClassLoss):
    """1 - the Dice coefficient of each class over a sample's positions, the mean over the classes.

    With p = softmax(output) and t = 1 where the label is the class, else 0, that of a class is
    ``1 - (2 * sum(p * t) + s) / (sum(p) + sum(t) + s)`` (Milletari et al., *V-Net*, 2016, without its squares). Class
    weights make the mean a weighted one.

    Args:
        smoothing: s, above 0: what a class that is nowhere has as both of its sums.
        ignore: the label of positions that take no part; None if all do.

    Raises:
        OptionError: a value out of its range.
    """

    smoothing: float = 1.0
    kernel: ClassVar[str] = "loss/dice"
    _reads: ClassVar[tuple[str, ...]] = ("labels", "class_terms")
    takes_pairs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Dice", "smoothing", self.smoothing, above=0)

    def _own_weights(self, labels: npt.NDArray[Any], class_weights: FloatArray | None) -> npt.NDArray[np.float64]:
        return Loss._own_weights(self, labels, class_weights)

    def memory(self, output: Shape) -> dict[str, tuple[int, int]]:
        own = {"softmax_sums": (0, 2 * output.positions), "class_terms": (0, 3 * output.units)}
        return {**super().memory(output), **own}

    def _calls_before(self, output: Blob, tuning: Tuning) -> list[KernelCall]:
        shape = output.shape
        walk = _Walk.of(shape.depth * shape.height, shape.width, 1, tuning)
        sums, terms = self._array("softmax_sums", shape), self._array("class_terms", shape)
        return [
            softmax_call("loss/softmax_sums", "Dice loss softmax", output, tuning, SOFTMAX_SUMS=sums),
            KernelCall(
                "loss/dice_classes",
                "Dice loss classes",
                GlobalSize(walk.items, 1, shape.units),
                blobs={"OUTPUT": output},
                arrays={
                    "LABELS": self._array("labels", shape),
                    "CLASS_WEIGHTS": self._array("class_weights", shape),
                    "SOFTMAX_SUMS": sums,
                    "CLASS_TERMS": terms,
                },
                macros={"SMOOTHING": float(self.smoothing), **walk.macros},
                local_size=(walk.items, 1, 1),
            ),
        ]
