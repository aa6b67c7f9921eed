"""Losses on a model's output: dL/d output, and for each sample its loss and whether it was right.

The loss of a batch is the mean over its samples, each of which has a weight (1 unless something else was given). The
losses of classes take a class for each position of the output, so one for each sample where it has no positions: the
logits of (N, units, height, width) go with classes of (N, height, width), and with a depth in both. There the mean is
one over all positions of the batch, each with the weight of its sample and of its class; a class to ignore has the
weight 0.

Labels reach the device as 4-byte numbers: classes as int32, targets as float32.
"""

from __future__ import annotations

import math
import numbers
from abc import abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet.contraction import Function, function
from blobnet.contraction import calls as compiled
from blobnet.contraction.form import Program
from blobnet.contraction.training import passes
from blobnet.errors import ContractionError, DataError, OptionError, ShapeError
from blobnet.launch.kernel_call import Array, Blob, GlobalSize, KernelCall, Tuning, group_size, power_of_two
from blobnet.launch.kernel_source import Macro
from blobnet.layers.lowered import spelled_out
from blobnet.memory.blob import FloatArray, Shape
from blobnet.support.checks import check_number
from blobnet.support.foreign import Explained

__all__ = [
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Dice",
    "Expression",
    "Focal",
    "Huber",
    "Loss",
    "MeanAbsoluteError",
    "MeanSquaredError",
]

#: What stands for a label that takes no part, on the device.
IGNORED = -1
#: Positions that a part of a sample has at least, the most parts of a sample, and a GPU's most work-items for one.
_PART_POSITIONS, _MAX_PARTS, _MAX_ITEMS = 4096, 64, 256


@dataclass(frozen=True)
class Loss(metaclass=Explained):
    """Base of all losses."""

    #: Numbers that a loss leaves for each part of a sample in ``sample_metrics``, and sums in ``totals``, in front of
    #: the number of samples: the weighted loss, its weight, and of the positions with a class how many were right,
    #: among the best five, and there at all.
    SAMPLE_METRICS: ClassVar[int] = 5
    #: Whether labels are class numbers (then accuracy is meaningful) or targets of the output's shape.
    takes_classes: ClassVar[bool] = False
    #: Whether a sample may have the labels of two, each with a share.
    takes_pairs: ClassVar[bool] = True
    #: The kernel that computes it.
    kernel: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Loss]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__name__.startswith("_"):
            Loss.kinds[cls.__name__] = cls

    def config(self) -> dict[str, Any]:
        """The arguments that build an equal loss."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

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
        """What the loss of a batch is divided by: the weight of its samples together.

        Args:
            labels: as :meth:`device_labels` gives them.
            sample_weights: (N,); all 1 if None.
            class_weights: a number for each class; all 1 if None.
            partner_shares: (N,), the share of the next sample's label, behind the last one the first's; all 0 if None.
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
        """What buffers hold unless something else is written there: weights of 1, and no partner's share."""
        shares = {"partner_shares": np.zeros(batch_size, np.float32)} if self.takes_pairs else {}
        return {"sample_weights": np.ones(batch_size, np.float32), **shares}

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning, batch_size: int) -> list[KernelCall]:
        """Calls that write the delta of ``output`` (if there is one) and add the batch's metrics to ``totals``.

        ``batch_size`` are the most samples of a batch.
        """
        walk = self._walk(output.shape, tuning)
        metrics = self._array("sample_metrics", output.shape)
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
            },
            macros={
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

    def _calls_before(self, output: Blob, tuning: Tuning) -> list[KernelCall]:
        """Calls that the loss's kernel needs the results of."""
        return []

    def _rows(self, output: Shape) -> int:
        """Rows of a sample that have losses of their own."""
        return output.planes * output.height

    def _walk(self, output: Shape, tuning: Tuning) -> _Walk:
        parts = _part_count(self._rows(output), output.width)
        return _Walk.of(self._rows(output), output.width, parts, tuning)

    def scores(self, outputs: FloatArray) -> npt.NDArray[np.float64] | None:
        """The probabilities of outputs (N, units, ...), in float64; None where the outputs are no logits."""
        return None


@dataclass(frozen=True)
class _Walk:
    """How work-groups walk through the rows of a sample: kernels/loss/rows.h."""

    rows: int
    parts: int
    items: int
    row_items: int

    @classmethod
    def of(cls, rows: int, width: int, parts: int, tuning: Tuning) -> _Walk:
        """For rows of ``width`` positions."""
        most = group_size(tuning.model, _MAX_ITEMS) if tuning.model.is_simt else 1
        items = power_of_two(-(-rows // parts) * width, most)
        return cls(rows, parts, items, power_of_two(width, items))

    @property
    def macros(self) -> dict[str, Macro]:
        """What the kernel is told."""
        return {"ROWS": self.rows, "PARTS": self.parts, "ROW_ITEMS": self.row_items}


def _part_count(rows: int, width: int) -> int:
    """The parts of a sample; they do not depend on the device or the batch."""
    return max(1, min(rows, _MAX_PARTS, rows * width // _PART_POSITIONS))


# -- losses of classes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ClassLoss(Loss):
    """What the losses of a class for each position share."""

    #: The label that takes no part; None if all do.
    ignore: int | None = field(default=None, kw_only=True)

    takes_classes: ClassVar[bool] = True
    _reads: ClassVar[tuple[str, ...]] = ("labels", "class_weights")

    def __post_init__(self) -> None:
        whole = isinstance(self.ignore, numbers.Integral) and not isinstance(self.ignore, bool)
        if self.ignore is not None and not (whole and -(2**31) <= self.ignore < 2**31):
            rule = "ignore must be a label, a whole number, or None"
            raise OptionError(type(self).__name__, rule, ignore=repr(self.ignore))

    @property
    def ignored_label(self) -> int | None:
        return self.ignore

    def ignoring(self, label: int | None) -> Loss:
        return self if self.ignore is not None else replace(self, ignore=label)

    def label_elements(self, output: Shape) -> int:
        return output.positions

    def check(self, output: Shape) -> None:
        if output.units < 2:
            rule = "the model's output must be one logit for each of at least 2 classes"
            hint = "end the model with Dense(classes), or Conv2D(classes, 1) for a class at each position."
            raise ShapeError(type(self).__name__, rule, output=output, hint=hint)

    def device_labels(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        classes = np.ascontiguousarray(labels, np.int32)
        if self.ignore is not None:
            classes = np.where(labels == self.ignore, np.int32(IGNORED), classes)
        return classes

    def _own_weights(self, labels: npt.NDArray[Any], class_weights: FloatArray | None) -> npt.NDArray[np.float64]:
        classes = labels.reshape(len(labels), -1)
        # What has moved out of a sample takes no part either, whether there is a label to ignore or not.
        is_class = classes != IGNORED
        if class_weights is None and is_class.all():
            return super()._own_weights(labels, class_weights)
        each = (
            is_class if class_weights is None else np.where(is_class, class_weights[np.where(is_class, classes, 0)], 0)
        )
        weights: npt.NDArray[np.float64] = each.mean(axis=1, dtype=np.float64)
        return weights

    def memory(self, output: Shape) -> dict[str, tuple[int, int]]:
        return {**super().memory(output), "class_weights": (output.units, 0)}

    def start_values(self, output: Shape, batch_size: int) -> dict[str, FloatArray]:
        return {**super().start_values(output, batch_size), "class_weights": np.ones(output.units, np.float32)}

    def _rows(self, output: Shape) -> int:
        return output.depth * output.height

    def scores(self, outputs: FloatArray) -> npt.NDArray[np.float64] | None:
        values = outputs.astype(np.float64)
        powers: npt.NDArray[np.float64] = np.exp(values - values.max(axis=1, keepdims=True))
        scores: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return scores


@dataclass(frozen=True)
class CrossEntropy(_ClassLoss):
    """Softmax cross-entropy from logits, ``-sum(t * log_softmax(output))``, at each position.

    ``t`` is 1 for the label, or with label smoothing s: ``1 - s + s/C`` for the label and ``s/C`` for the others
    (Szegedy et al., *Rethinking the Inception Architecture*, 2016). The weight of the label's class multiplies all of
    it.

    Args:
        label_smoothing: s, from 0 to below 1.
        ignore: the label of positions that take no part (255, say); None if all do.

    Raises:
        OptionError: a value out of its range.
    """

    label_smoothing: float = 0.0
    kernel: ClassVar[str] = "loss/cross_entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_smoothing(self)

    def macros(self) -> dict[str, Macro]:
        return {"LABEL_SMOOTHING": float(self.label_smoothing)}


@dataclass(frozen=True)
class Focal(_ClassLoss):
    """The focal loss from logits, ``-sum(t * (1 - p)^gamma * log(p))`` with p = softmax(output), at each position.

    It counts examples less that are right already (Lin et al., *Focal Loss for Dense Object Detection*, 2017, for any
    number of classes). ``t`` is that of CrossEntropy; the paper's alpha are class weights.

    Args:
        gamma: how much less, at least 0; with 0 it is the cross-entropy.
        label_smoothing: from 0 to below 1.
        ignore: the label of positions that take no part; None if all do.

    Raises:
        OptionError: a value out of its range.
    """

    gamma: float = 2.0
    label_smoothing: float = 0.0
    kernel: ClassVar[str] = "loss/focal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Focal", "gamma", self.gamma, least=0)
        _check_smoothing(self)

    def macros(self) -> dict[str, Macro]:
        return {"GAMMA": float(self.gamma), "LABEL_SMOOTHING": float(self.label_smoothing)}


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
            KernelCall(
                "loss/softmax_sums",
                "Dice loss softmax",
                GlobalSize(min(shape.positions, _MAX_PARTS * walk.items)),
                blobs={"OUTPUT": output},
                arrays={"SOFTMAX_SUMS": sums},
            ),
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


# -- losses of targets -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TargetLoss(Loss):
    """What the losses of targets of the output's shape share: they are means over a sample's outputs."""

    def check(self, output: Shape) -> None:
        """Any shape will do."""


@dataclass(frozen=True)
class BinaryCrossEntropy(_TargetLoss):
    """Binary cross-entropy from logits, the mean over a sample's outputs; targets from 0 to 1 of the output's shape.

    Args:
        label_smoothing: s, from 0 to below 1: a target t becomes ``t * (1 - s) + s / 2``.

    Raises:
        OptionError: a value out of its range.
    """

    label_smoothing: float = 0.0
    kernel: ClassVar[str] = "loss/binary_cross_entropy"

    def __post_init__(self) -> None:
        _check_smoothing(self)

    def check_targets(self, targets: npt.NDArray[Any], subject: str) -> None:
        if targets.min() < 0 or targets.max() > 1:
            rule = "targets of BinaryCrossEntropy must be from 0 to 1"
            raise DataError(subject, rule, smallest=targets.min(), largest=targets.max())

    def macros(self) -> dict[str, Macro]:
        return {"LABEL_SMOOTHING": float(self.label_smoothing)}

    def scores(self, outputs: FloatArray) -> npt.NDArray[np.float64] | None:
        values = outputs.astype(np.float64)
        tail = np.exp(-np.abs(values))
        scores: npt.NDArray[np.float64] = np.where(values < 0, tail, 1.0) / (1.0 + tail)
        return scores


@dataclass(frozen=True)
class MeanSquaredError(_TargetLoss):
    """The mean over a sample's outputs of (output - target)^2; targets of the output's shape."""

    kernel: ClassVar[str] = "loss/mean_squared_error"


@dataclass(frozen=True)
class MeanAbsoluteError(_TargetLoss):
    """The mean over a sample's outputs of abs(output - target), the L1 loss; targets of the output's shape."""

    kernel: ClassVar[str] = "loss/mean_absolute_error"


@dataclass(frozen=True)
class Huber(_TargetLoss):
    """The mean over a sample's outputs of d^2 / 2 where abs(d) <= delta, else delta * (abs(d) - delta / 2).

    d = output - target, with targets of the output's shape (Huber, *Robust estimation of a location parameter*, 1964).

    Args:
        delta: above 0: the distance from which on the loss grows linearly.

    Raises:
        OptionError: a value out of its range.
    """

    delta: float = 1.0
    kernel: ClassVar[str] = "loss/huber"

    def __post_init__(self) -> None:
        check_number("Huber", "delta", self.delta, above=0)

    def macros(self) -> dict[str, Macro]:
        return {"KNEE": float(self.delta)}


@dataclass(frozen=True)
class Expression(Loss):
    """A loss that a text of the contraction language gives (docs/contractions.md); its derivative follows from it.

        losses.Expression(
            "function (P[N, C], T[N, C]) -> (L) { L[n] = +(abs(P[n, c] - T[n, c]) / C); }"
        )

    The function's inputs are the model's output and the targets, of the output's shape; its output is one value for
    each sample, whose mean is the loss. Samples have weights as with other losses.

    Args:
        text: of the function, with a head; ``...`` stands for ``y, x``, of the size 1 where the output has fewer axes,
            and for ``z, y, x`` where it has more.
        sizes: whole numbers for names that are the size of no input.

    Raises:
        ContractionError: the text is none of the language.
        OptionError: the text has no head, or not two inputs and one output.
    """

    text: str
    sizes: Any = ()
    takes_pairs: ClassVar[bool] = False
    kernel: ClassVar[str] = "loss/expression"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(dict(self.sizes).items())))
        function = self._function()
        heads = function.heads
        rule = (
            "the text must have a head with two inputs, output and targets, each with the samples and what is of one, "
            "and one output"
        )
        fits = len(heads) == 2 and all(sizes and len(sizes) > 1 for sizes in heads.values())
        if not fits or len(function.outputs) != 1:
            raise OptionError("Expression", rule, inputs=heads, outputs=function.outputs)

    def _function(self, rank: int = 2) -> Function:
        return function(spelled_out(self.text, rank), **dict(self.sizes))

    def check(self, output: Shape) -> None:
        try:
            (loss,) = self._program(output, 2).outputs
        except ContractionError as error:
            wrapped = ShapeError("Expression", "the text must fit the model's output", output=output)
            wrapped.args = (f"{wrapped}\n{error}",)
            raise wrapped from error
        if loss.shape != (2,):
            raise ShapeError("Expression", "the text must give one value for each sample", output=output)

    def _program(self, output: Shape, samples: int) -> Program:
        function = self._function(3 if output.depth > 1 else 2)
        shapes = {}
        for name, sizes in function.heads.items():
            hidden = len(output.axes) - (len(sizes or ()) - 2)  # Outer axes of one value that the text leaves out.
            shapes[name] = (samples, output.units, *output.axes[hidden:])
            if math.prod(shapes[name]) != samples * output.elements:
                shapes[name] = (samples, *output.dimensions)  # The error says which axes there are.
        return function.program(**shapes)

    def memory(self, output: Shape) -> dict[str, tuple[int, int]]:
        own = {"losses": (0, 1), "loss_deltas": (0, 1), "sample_metrics": (0, self.SAMPLE_METRICS)}
        return {**super().memory(output), **own}

    def calls(self, output: Blob, delta: Blob | None, tuning: Tuning, batch_size: int) -> list[KernelCall]:
        program = self._program(output.shape, batch_size)
        values, targets = program.inputs
        steps = passes(program, [values.name] if delta else [])

        def memory(name: str, elements: int, per_sample: int) -> Array:
            return Array(f"loss/{name}", elements, per_sample)

        operands: dict[str, Blob | Array] = {
            values.name: output,
            targets.name: self._array("labels", output.shape),
            program.outputs[0].name: self._array("losses", output.shape),
            steps.deltas[program.outputs[0].name]: self._array("loss_deltas", output.shape),
            **{
                tensor.name: memory(tensor.name, 0, tensor.elements // batch_size)
                for tensor in steps.forward.outputs[1:]
            },
        }
        if delta:
            operands[steps.deltas[values.name]] = delta
        parts = [
            compiled.calls(part, operands, label="Expression loss", batch=batch_size, memory=memory, tuning=tuning)
            for part in (steps.forward, *steps.gradients)
        ]
        metrics = KernelCall(
            self.kernel,
            "Expression loss metrics",
            GlobalSize(1),
            arrays={
                name.upper(): self._array(name, output.shape)
                for name in ("sample_weights", "losses", "loss_deltas", "sample_metrics")
            },
            macros={"METRICS": self.SAMPLE_METRICS},
        )
        made = [*parts[0], metrics, *(call for part in parts[1:] for call in part), self._total(output.shape, 1)]
        return [replace(call, owner=self) for call in made]


def _check_smoothing(loss: Any) -> None:
    smoothing = loss.label_smoothing
    if not isinstance(smoothing, numbers.Real) or not 0 <= float(smoothing) < 1:
        rule = "label_smoothing must be at least 0 and below 1"
        raise OptionError(type(loss).__name__, rule, label_smoothing=smoothing)
