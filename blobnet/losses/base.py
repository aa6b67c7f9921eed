"""The base of all losses: the walk through positions, samples and weights, and the mean of a batch."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning
from blobnet.launch.kernel_source import Macro
from blobnet.launch.work_sizes import group_size, power_of_two
from blobnet.memory.blob import FloatArray, Shape
from blobnet.support.kinds import Kind

#: The number of a label that takes no part, on the device.
IGNORED = -1
#: What deltas are multiplied by in a type that needs it (StorageType.needs_loss_scale), and the steps of the optimizer
#: since it last changed.
LOSS_SCALE, LOSS_SCALE_ELEMENTS = "loss scale", 2
#: Positions that a part of a sample has at least, the most parts of a sample, and a GPU's most work-items for one;
#: classes of a position for each of those that share them.
_PART_POSITIONS, _MAX_PARTS, _MAX_ITEMS, _CLASSES_OF_ITEM = 4096, 64, 256, 4


@dataclass(frozen=True)
class Loss(Kind):
    """Base of all losses."""

    #: Numbers that a loss leaves for each part of a sample in ``sample_metrics``, and sums in ``totals``, in front of
    #: the number of samples: the weighted loss, its weight, and of the positions with a class how many were right,
    #: among the best five, and there at all.
    SAMPLE_METRICS: ClassVar[int] = 5
    #: True if labels are class numbers (then accuracy is meaningful), False for targets of the output's shape.
    takes_classes: ClassVar[bool] = False
    #: True if labels are boxes with classes (then their number need not be that of the output's positions).
    takes_boxes: ClassVar[bool] = False
    #: True if a sample may have the labels of two, each with a share.
    takes_pairs: ClassVar[bool] = True
    #: The kernel that computes it.
    kernel: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Loss]]] = {}
    noun: ClassVar[str] = "loss"

    # -- labels and weights ------------------------------------------------------------------------------------------

    @property
    def ignored_label(self) -> int | None:
        """The label that takes no part, if there is one."""
        return None

    def ignoring(self, label: int | None) -> Loss:
        """The same loss, but if it takes classes and ignores none, without the positions that have this one."""
        return self

    def label_elements(self, output: Shape) -> int:
        """Label values for one sample."""
        return output.elements

    @abstractmethod
    def check(self, output: Shape) -> None:
        """Raises ShapeError if the output's shape does not fit."""

    def check_targets(self, targets: npt.NDArray[Any], subject: str) -> None:
        """Raises DataError if targets have values that the loss is not made for."""
        return

    def device_labels(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Checked labels as the device takes them: (N, ...), int32 classes or float32 targets."""
        return np.ascontiguousarray(labels, np.float32).reshape(len(labels), -1)

    def weight(
        self,
        labels: npt.NDArray[Any],
        sample_weights: FloatArray | None = None,
        class_weights: FloatArray | None = None,
        partner_shares: FloatArray | None = None,
    ) -> float:
        """The divisor of the loss of a batch: the weight of its samples together.

        Args:
            labels: as :meth:`device_labels` gives them.
            sample_weights: (N,); all 1 if None.
            class_weights: a number for each class; all 1 if None.
            partner_shares: (N,), the share of the next sample's label, after the last one the first's; all 0 if None.
        """
        weights = self._own_weights(labels, class_weights)
        if sample_weights is not None:
            weights = weights * sample_weights
        if partner_shares is not None:
            weights = weights + partner_shares * (np.roll(weights, -1) - weights)
        return float(weights.sum())

    def _own_weights(self, labels: npt.NDArray[Any], class_weights: FloatArray | None) -> npt.NDArray[np.float64]:
        """The weights of samples by their labels, (N,)."""
        return np.ones(len(labels))

    # -- the device's part -------------------------------------------------------------------------------------------

    def macros(self) -> dict[str, Macro]:
        """Macros of the kernel."""
        return {}

    def memory(self, output: Shape) -> dict[str, tuple[int, int]]:
        """The buffers of its calls: (elements, elements for each sample)."""
        return {
            "totals": (self.SAMPLE_METRICS + 1, 0),
            "labels": (0, self.label_elements(output)),
            "sample_weights": (0, 1),
            **({"partner_shares": (0, 1)} if self.takes_pairs else {}),
            "sample_metrics": (0, self.SAMPLE_METRICS * _part_count(self._rows(output), output.width)),
        }

    def start_values(self, output: Shape, batch_size: int) -> dict[str, FloatArray]:
        """The first content of its buffers: weights of 1, and no share of a partner."""
        shares = {"partner_shares": np.zeros(batch_size, np.float32)} if self.takes_pairs else {}
        return {"sample_weights": np.ones(batch_size, np.float32), **shares}

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning, batch_size: int) -> list[KernelCall]:
        """Calls that write the delta of ``output`` (if there is one) and add the batch's metrics to ``totals``.

        ``batch_size`` are the most samples of a batch.
        """
        walk = self._walk(output.shape, tuning)
        metrics = self._array("sample_metrics", output.shape)
        scale = self._scale(output.shape, delta, tuning)
        # NOTE: a kernel takes no null blob; without a delta the role is bound to the output and not touched.
        per_sample = KernelCall(
            self.kernel,
            f"{type(self).__name__} loss",
            GlobalSize(walk.parts * walk.items),
            blobs={"OUTPUT": output, "OUTPUT_DELTA": delta or output},
            arrays={
                **{name.upper(): self._array(name, output.shape) for name in self._reads},
                **({"PARTNER_SHARES": self._array("partner_shares", output.shape)} if self.takes_pairs else {}),
                "SAMPLE_WEIGHTS": self._array("sample_weights", output.shape),
                "SAMPLE_METRICS": metrics,
                "LOSS_SCALE": scale,
            },
            macros={
                "HAS_LOSS_SCALE": int(scale.storage == LOSS_SCALE),
                "HAS_DELTA": int(delta is not None),
                "METRICS": self.SAMPLE_METRICS,
                **walk.macros,
                **self.macros(),
            },
            local_size=(walk.items, 1, 1),
        )
        total = self._total(output.shape, walk.parts)
        return [replace(call, owner=self) for call in (*self._calls_before(output, tuning), per_sample, total)]

    def _total(self, output: Shape, parts: int) -> KernelCall:
        """Adds the metrics of all parts of all samples to the totals."""
        return KernelCall(
            "loss/accumulate",
            "metrics",
            GlobalSize(self.SAMPLE_METRICS + 1, per_sample=False),
            arrays={name.upper(): self._array(name, output) for name in ("sample_metrics", "totals")},
            macros={"METRICS": self.SAMPLE_METRICS, "PARTS": parts},
            local_size=(self.SAMPLE_METRICS + 1, 1, 1),
        )

    #: The arrays that the kernel reads, besides the weights of the samples.
    _reads: ClassVar[tuple[str, ...]] = ("labels",)

    def _array(self, name: str, output: Shape) -> Array:
        """The whole of one of the loss's buffers."""
        return Array(name, *self.memory(output)[name], persistent=True)

    def _scale(self, output: Shape, delta: Blob | None, tuning: Tuning) -> Array:
        """The scale of the deltas, where they need one; else an array that is not touched."""
        if delta is not None and tuning.storage.needs_loss_scale:
            return Array(LOSS_SCALE, LOSS_SCALE_ELEMENTS, persistent=True)
        return self._array("sample_weights", output)

    def _calls_before(self, output: Blob, tuning: Tuning) -> list[KernelCall]:
        """Calls that the loss's kernel needs the results of."""
        return []

    def _rows(self, output: Shape) -> int:
        """Rows of a sample that have losses of their own."""
        return output.planes * output.height

    def _walk(self, output: Shape, tuning: Tuning) -> _Walk:
        parts = _part_count(self._rows(output), output.width)
        classes = output.units if self.takes_classes else 1
        return _Walk.of(self._rows(output), output.width, parts, tuning, classes)

    def scores(self, outputs: FloatArray) -> npt.NDArray[np.float64] | None:
        """The probabilities of outputs (N, units, ...), in float64; None where the outputs are no logits."""
        return None


@dataclass(frozen=True)
class _Walk:
    """The walk of work-groups through the rows of a sample: kernels/loss/rows.h."""

    rows: int
    parts: int
    items: int
    row_items: int
    class_items: int = 1

    @classmethod
    def of(cls, rows: int, width: int, parts: int, tuning: Tuning, classes: int = 1) -> _Walk:
        """Return the walk through rows of ``width`` positions, whose ``classes`` a kernel passes several times."""
        most = group_size(tuning.model, _MAX_ITEMS) if tuning.model.is_simt else 1
        if tuning.model.is_simt and classes >= rows * width * tuning.model.lanes:
            # A work-item for each position would take longer than a group for one after the other.
            items = power_of_two(-(-classes // _CLASSES_OF_ITEM), most)
            return cls(rows, parts, items, 1, items)
        items = power_of_two(-(-rows // parts) * width, most)
        return cls(rows, parts, items, power_of_two(width, items))

    @property
    def macros(self) -> dict[str, Macro]:
        """The macros of the kernel."""
        items = {"ROW_ITEMS": self.row_items, "CLASS_ITEMS": self.class_items}
        return {"ROWS": self.rows, "PARTS": self.parts, **items}


def softmax_call(kernel: str, label: str, output: Blob, tuning: Tuning, **given: Any) -> KernelCall:
    """The call of a kernel that makes something of the logits of each position by itself; ``given``: its arrays."""
    shape = output.shape
    walk = _Walk.of(shape.depth * shape.height, shape.width, 1, tuning, shape.units)
    positions = min(shape.positions, _MAX_PARTS * walk.items // walk.class_items)
    return KernelCall(
        kernel,
        label,
        GlobalSize(positions * walk.class_items),
        blobs={"OUTPUT": output},
        arrays=given,
        macros={"CLASS_ITEMS": walk.class_items},
        local_size=None if walk.class_items == 1 else (walk.class_items, 1, 1),
    )


def _part_count(rows: int, width: int) -> int:
    """The parts of a sample; they do not depend on the device or the batch."""
    return max(1, min(rows, _MAX_PARTS, rows * width // _PART_POSITIONS))
