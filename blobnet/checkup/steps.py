"""Checks of what is around the layers: losses, optimizers, augmentation, weights of samples, sums, and float16.

Each is a small network with one convolution, on a device as it is trained or used, against float64; its memory is
hostile (blobnet/examination/hostile.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from blobnet import layers, losses, optimizers
from blobnet.augment import Augmentation, Brightness, CutMix, Erasing, Flip, Mixup, RandomAffine, RandomCrop, Saturation
from blobnet.augment.epoch_rows import rows_for
from blobnet.data.samples import sources_for
from blobnet.device.device import Device
from blobnet.examination.examination import Finding, compared
from blobnet.examination.hostile import poison_unset, require_canaries
from blobnet.examination.reference import augmentation, convolution, dropout, normalization
from blobnet.examination.reference import losses as of_losses
from blobnet.examination.reference import optimizers as of_optimizers
from blobnet.execution.inference import Evaluator
from blobnet.execution.loader import IndexedReader
from blobnet.launch.kernel_call import Batch
from blobnet.launch.task import BrokenVariant, Variant
from blobnet.losses.center_net import BOX_UNITS
from blobnet.memory.blob import FLOAT32, Shape, storage_type
from blobnet.model import Sequential
from blobnet.network.parameters import DeviceParameters
from blobnet.support.kinds import Kind, spelled
from blobnet.training.settings import Augmented, TrainingSettings
from blobnet.training.step_plan import StepContext
from blobnet.training.training_step import TrainingStep

Float64Array = npt.NDArray[np.float64]
Arrays: TypeAlias = Mapping[str, Float64Array]

#: Of the samples, and the units that the convolution makes of them; samples of a batch, steps, and their rate.
SHAPE, _UNITS, _COUNT, _STEPS, _RATE = Shape(3, 7, 5), 4, 3, 2, 0.05
#: What a result may differ by at most, over its root mean square: in fp32, and in units in the last place where each
#: value of one layer for the next is rounded to 16 bits, and a sum of 27 such numbers is.
_TOLERANCE, _ROUNDINGS = 5e-5, 3
#: Augmentations that change single samples: they move, recolour or erase.
_AUGMENT = (RandomCrop(1), RandomAffine(30, 0.1, (0.8, 1.3)), Flip(), Brightness(0.4), Saturation(0.5), Erasing(0.9))
#: Augmentations that mix samples, and their labels.
_MIXUP, _CUTMIX = (Mixup(1.0),), (CutMix(),)
#: Parameters of the batch norm.
_NORM, _STATISTICS = ("norm/scale", "norm/shift"), ("norm/running_mean", "norm/running_variance")
#: The samples' mean and deviation.
_MEAN, _DEVIATION = (np.array(values, np.float32) for values in ([0.2, -0.1, 0.4], [0.9, 1.2, 0.8]))


def _reference(module: ModuleType, kind: type[Kind]) -> Callable[..., Any] | None:
    """The float64 reference of a loss or an optimizer, a function of the class's name; None if there is none."""
    return getattr(module, spelled(kind.__name__).replace("-", "_"), None)


@dataclass(frozen=True)
class StepCheck:
    """Steps of a training, or a prediction, to examine.

    Attributes:
        name: what it is a check of.
        loss, optimizer: what is minimised, and how.
        rate: of dropout after the convolution.
        augment: how samples change on their way in.
        is_weighted: whether samples and classes have weights; only for losses of classes.
        is_normalized: whether there is a batch norm, with its statistics, before the convolution.
        shards, batches: a step is made of so many shards, each of so many batches.
        average: how much of an average of the weights a step keeps; None: there is none.
        predicts: whether it is a prediction, and nothing is trained.
        storage: what is kept between layers.
        seed: of all numbers.
    """

    name: str
    loss: losses.Loss = field(default_factory=losses.CrossEntropy)
    optimizer: optimizers.Optimizer = field(default_factory=optimizers.SGD)
    rate: float = 0.0
    augment: tuple[Augmentation, ...] = ()
    is_weighted: bool = False
    is_normalized: bool = False
    shards: int = 1
    batches: int = 1
    average: float | None = None
    predicts: bool = False
    storage: str = "float32"
    seed: int = 0

    way: ClassVar[Variant] = Variant("")
    #: There is no other way to compute this, so that nothing is denied.
    fault: ClassVar[BrokenVariant | None] = None
    family: ClassVar[str] = "step"

    @property
    def title(self) -> str:
        """The title of its row in a report."""
        return self.name

    def __str__(self) -> str:
        parts = f"{self.loss}, {self.optimizer}, storage {self.storage}"
        return f"{self.name}: {parts} after a convolution of {_COUNT} samples {SHAPE}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        """Plain data for a report."""
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        augment = [item.description() for item in self.augment]
        return {**own, "loss": self.loss.description(), "optimizer": self.optimizer.description(), "augment": augment}


def checks_of_steps(seed: int) -> list[StepCheck]:
    """Every loss and optimizer, and what else a step does besides its layers."""
    kinds = [kind for kind in losses.Loss.kinds.values() if _reference(of_losses, kind)]
    found = [StepCheck(kind.__name__, loss) for kind in kinds for loss in kind.examples()]
    ways = [kind for kind in optimizers.Optimizer.kinds.values() if _reference(of_optimizers, kind)]
    found += [StepCheck(kind.__name__, optimizer=way) for kind in ways for way in kind.examples()]
    found += [
        StepCheck("sample weights", is_weighted=True),
        StepCheck("Dropout", rate=0.4),
        StepCheck("augmentation", augment=_AUGMENT),
        StepCheck("Mixup", augment=_MIXUP),
        StepCheck("CutMix", augment=_CUTMIX),
        StepCheck("sum of batches", is_weighted=True, batches=3),
        StepCheck("sum of shards", is_weighted=True, is_normalized=True, shards=4),
        StepCheck("sum of shards' batches", is_normalized=True, shards=4, batches=2),
        StepCheck("average of weights", is_normalized=True, average=0.9),
        StepCheck("prediction", is_normalized=True, predicts=True),
        StepCheck("float16", predicts=True, storage="float16"),
        StepCheck("bfloat16", is_normalized=True, storage="bfloat16"),
    ]
    return [replace(check, seed=seed + number) for number, check in enumerate(found)]


def examine_steps(device: Device, check: StepCheck) -> Finding:
    """Run a check on a device and return its finding."""
    run = _predicted if check.predicts else _trained
    storage = storage_type(check.storage)
    tolerance = _TOLERANCE if storage == FLOAT32 else _ROUNDINGS * storage.epsilon
    return compared(str(check), lambda debug: run(device, check, debug=debug), lambda: _expected(check), tolerance)


# -- as it is ----------------------------------------------------------------------------------------------------------


class _Batch(NamedTuple):
    """Samples with labels, the weights of both, and the rows by which samples change."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    of_samples: npt.NDArray[np.float32] | None
    of_classes: npt.NDArray[np.float32] | None
    rows: npt.NDArray[np.float32]


def _network(check: StepCheck) -> Sequential:
    parts: list[layers.Layer] = [layers.Input.of(SHAPE, name="input")]
    parts += [layers.BatchNorm(name="norm")] if check.is_normalized else []
    units = _UNITS + (BOX_UNITS if check.loss.takes_boxes else 0)
    parts += [layers.Conv2D(units, 3, padding=1, name="conv")]
    parts += [layers.Dropout(check.rate)] if check.rate else []
    model = Sequential(parts, seed=check.seed)
    model.set_normalization(_MEAN, _DEVIATION)
    if check.is_normalized:
        values = np.random.default_rng(check.seed).uniform(0.5, 2, (4, SHAPE.units))
        model.set_weights(dict(zip((*_NORM, *_STATISTICS), values, strict=True)))
    return model


def _steps(check: StepCheck) -> Iterator[list[list[_Batch]]]:
    """The batches of each shard, for every step; the last one lacks a sample, where there are several."""
    generator = np.random.default_rng(check.seed)
    weights = np.linspace(0.5, 2, _COUNT, dtype=np.float32), np.linspace(2, 0.25, _UNITS, dtype=np.float32)
    of_samples, of_classes = weights if check.is_weighted else (None, None)

    def batch(step: int, number: int) -> _Batch:
        count = _COUNT - (number > 0 and number == check.shards * check.batches - 1)
        x = generator.standard_normal((count, *SHAPE.dimensions), dtype=np.float32)
        y: npt.NDArray[Any]
        if check.loss.takes_classes:
            y = generator.integers(0, _UNITS, (count, *SHAPE.dimensions[1:]))
        elif check.loss.takes_boxes:
            corners = np.sort(generator.random((count, 3, 2, 2), dtype=np.float32), axis=2).reshape(count, 3, 4)
            kinds = generator.integers(-1, _UNITS, (count, 3, 1)).astype(np.float32)
            y = np.concatenate([kinds, corners], axis=2)
        else:
            y = generator.random((count, _UNITS, *SHAPE.dimensions[1:]), dtype=np.float32)
        rows = rows_for(check.augment, SHAPE, check.seed, step, np.arange(count))
        return _Batch(x, y, None if of_samples is None else of_samples[:count], of_classes, rows)

    for step in range(_STEPS):
        numbers = np.arange(check.shards * check.batches).reshape(check.shards, check.batches).tolist()
        yield [[batch(step, number) for number in own] for own in numbers]


def _trained(device: Device, check: StepCheck, *, debug: bool) -> dict[str, np.ndarray[Any, Any]]:
    """The gradients of the last step, the parameters after it, and the sum of all losses."""
    model, device = _network(check), device.at(device.precision, check.storage).guarding()
    settings = TrainingSettings(
        loss=check.loss,
        optimizer=check.optimizer,
        batch_size=_COUNT * check.shards,
        class_weights=[next(_steps(check))[0][0].of_classes],
        accumulate=check.batches,
        shards=check.shards,
        average=check.average,
        augment=Augmented(next(iter(model.graph.inputs)), check.augment) if check.augment else Augmented(),
        seed=check.seed,
    )
    step = TrainingStep(device, model.graph, model.weights, settings, StepContext(debug=debug))
    poison_unset(step.executor)
    step.reset_totals()
    is_sum = check.shards * check.batches > 1
    for shards in _steps(check):
        for number, batches in enumerate(_runs(shards, step.plan.request.at_once)):
            weights = [0.0] * len(batches[0])
            if is_sum:
                step.sum.begin(number)
            for run in batches:
                own = _load(step, check, run)
                weights = [sum(pair) for pair in zip(weights, own, strict=True)]
                count = sum(len(batch.x) for batch in run)
                step.compute_gradients(Batch(count, of_shard=_COUNT, divisor=_COUNT if is_sum else own[0]))
                if is_sum:
                    step.sum.add()
            if is_sum:
                step.sum.end(weights)
        if is_sum:
            step.sum.finish(_COUNT)
        gradients = step.gradients()
        step.update(_RATE)
    require_canaries(device, step.executor, str(check))
    found: dict[str, np.ndarray[Any, Any]] = {f"gradient of {name}": values for name, values in gradients.items()}
    found |= step.parameters.read()
    found |= {f"average of {name}": values for name, values in step.result.read().items()}
    return {**found, "sum of losses": step.sum_of_shards(step.totals())[:1]}


def _runs(shards: list[list[_Batch]], at_once: int) -> Iterator[list[list[_Batch]]]:
    """For each run of the plan, of so many shards at once: the first batches of all of them, then the second ones."""
    for first in range(0, len(shards), at_once):
        yield [list(batches) for batches in zip(*shards[first : first + at_once], strict=True)]


def _load(step: TrainingStep, check: StepCheck, run: list[_Batch]) -> list[float]:
    """Puts a batch of each of some shards on the device; their weights."""
    own = [check.loss.device_labels(batch.y) for batch in run]
    if check.augment == _CUTMIX:
        for labels, batch in zip(own, run, strict=True):
            step.changes.move_labels([labels], batch.rows)
    labels = np.concatenate(own)
    step.load_batch(np.concatenate([batch.x for batch in run]), labels)
    if check.augment:
        step.change_samples(np.concatenate([batch.rows for batch in run]))
    of_samples = [batch.of_samples for batch in run if batch.of_samples is not None]
    parts = [slice(first, first + _COUNT) for first in range(0, len(labels), _COUNT)]
    found = step.weigh([labels], [np.concatenate(of_samples)] if of_samples else None, parts)
    return [weight for (weight,) in found]


def _predicted(device: Device, check: StepCheck, *, debug: bool) -> dict[str, np.ndarray[Any, Any]]:
    model, device = _network(check), device.at(device.precision, check.storage).guarding()
    parameters = DeviceParameters(device, model.graph)
    parameters.write(model.weights)
    evaluator = Evaluator.of(device, model.graph, parameters, _COUNT, debug=debug)
    poison_unset(evaluator.executor)
    ((batch,),) = next(_steps(check))
    (output,) = evaluator.predict(IndexedReader(sources_for(model.graph, batch.x, "x")), _COUNT)
    require_canaries(device, evaluator.executor, str(check))
    return {"output": output}


# -- as it should be ---------------------------------------------------------------------------------------------------


def _expected(check: StepCheck) -> Iterator[tuple[str, Float64Array]]:
    """Yield the expected results in float64."""
    every = _network(check).weights.items()
    weights = {name: values.astype(np.float64) for name, values in every if not name.startswith("input/")}
    if check.predicts:
        ((batch,),) = next(_steps(check))
        x = _entered(check, batch)
        if check.is_normalized:
            x = normalization.batch_norm_inference(x, *(weights[name] for name in (*_NORM, *_STATISTICS)))
        yield "output", _convolved(weights, x)
        return
    state: of_optimizers.State = {}
    total, before = 0.0, {name: weights.pop(name) for name in _STATISTICS if name in weights}
    average = dict(weights)
    for number, shards in enumerate(_steps(check)):
        weight, sums, after = 0.0, dict.fromkeys(weights, np.zeros(())), []
        for batches in shards:
            statistics: Arrays = before  # Each shard begins with those before the step.
            for batch in batches:
                loss, own, gradients, statistics = _computed(check, weights, statistics, batch, number)
                total, weight = total + loss * own, weight + own
                sums = {name: values + own * gradients[name] for name, values in sums.items()}
            after.append(statistics)
        before = {name: np.mean([own[name] for own in after], axis=0) for name in before}
        means = {name: values / weight for name, values in sums.items()}
        weights, state = _updated(check.optimizer, weights, means, state)
        rate = 1 - min(check.average or 0, (2 + number) / (11 + number))
        average = {name: values + rate * (weights[name] - values) for name, values in average.items()}
    yield from ((f"gradient of {name}", values) for name, values in means.items())
    yield from {**weights, **before}.items()
    yield from ((f"average of {name}", values) for name, values in {**average, **before}.items())
    yield "sum of losses", np.array([total])


def _computed(
    check: StepCheck, weights: Arrays, statistics: Arrays, batch: _Batch, step: int
) -> tuple[float, float, Arrays, Arrays]:
    """Return a batch's mean loss, the weight of that mean, its gradients, and the statistics after the batch."""
    x = entered = _entered(check, batch)
    if check.is_normalized:
        arrays: Any = [*(weights[name] for name in _NORM), *(statistics[name] for name in _STATISTICS)]
        x, *moved = normalization.batch_norm_training(entered, *arrays)
        statistics = dict(zip(_STATISTICS, moved, strict=True))
    logits = _convolved(weights, x)
    # The third vertex of the graph, where there is dropout.
    mask = dropout.dropout_mask(check.seed, step, 2, len(x), logits[0].size, check.rate).reshape(logits.shape)
    loss, delta, weight = _loss(check, logits * mask, batch)
    kernel, bias = weights["conv/weight"], weights["conv/bias"]
    delta, *gradients = convolution.conv2d_backward(x, kernel, bias, delta * mask, _PADDED)
    found: dict[str, Any] = dict(zip(("conv/weight", "conv/bias"), gradients, strict=True))
    if check.is_normalized:
        _, *gradients = normalization.batch_norm_backward(entered, weights["norm/scale"], delta)
        found |= dict(zip(_NORM, gradients, strict=True))
    return loss, weight, found, statistics


#: A cell of zeros on each side.
_PADDED = convolution.Windows(padding=((1, 1), (1, 1)))


def _convolved(weights: Arrays, x: Float64Array) -> Float64Array:
    return convolution.conv2d(x, weights["conv/weight"], weights["conv/bias"], _PADDED)


def _entered(check: StepCheck, batch: _Batch) -> Float64Array:
    """Return the batch as the layers get it: normalised, and augmented if the check says so."""
    mean, deviation = _MEAN.astype(np.float64), _DEVIATION.astype(np.float64)
    if check.augment:
        return augmentation.augmented(batch.x, batch.rows, mean, deviation)
    return (batch.x.astype(np.float64) - mean[:, None, None]) / deviation[:, None, None]


def _loss(check: StepCheck, logits: Float64Array, batch: _Batch) -> tuple[float, Float64Array, float]:
    """The mean loss, its derivative, and the weight that the mean is of."""
    reference, y = _reference(of_losses, type(check.loss)), batch.y
    assert reference is not None, "those without a reference are not checked"
    takes = inspect.signature(reference).parameters
    own = {name: value for name, value in check.loss.config().items() if name in takes}
    if not check.loss.takes_classes:
        return (*reference(logits, y, **own), float(len(y)))
    own["class_weights"] = batch.of_classes
    of_samples = np.ones(len(y), np.float32) if batch.of_samples is None else batch.of_samples
    others = np.roll(y, -1, axis=0)
    if check.augment == _CUTMIX:
        y = y.copy()
        for n, (top, left, bottom, right) in enumerate(batch.rows[:, 14:18].astype(int)):
            y[n, top:bottom, left:right] = others[n, top:bottom, left:right]
    if check.augment == _MIXUP:
        # The label of the next sample with its share, too.
        shares = batch.rows[:, 18]
        pairs = [(y, 1 - shares), (others, shares)]
    else:
        pairs = [(y, of_samples)]
    found = [reference(logits, labels, sample_weights=of, **own) for labels, of in pairs]
    amounts = [check.loss.weight(check.loss.device_labels(labels), of, batch.of_classes) for labels, of in pairs]
    loss = sum(amount * own for amount, (own, _) in zip(amounts, found, strict=True))
    delta = sum(amount * own for amount, (_, own) in zip(amounts, found, strict=True))
    return loss / sum(amounts), delta / sum(amounts), sum(amounts)


def _updated(
    optimizer: optimizers.Optimizer, weights: Arrays, gradients: Arrays, state: of_optimizers.State
) -> tuple[dict[str, Float64Array], of_optimizers.State]:
    """Parameters, of which the filters decay, after a step, and the optimizer's new state."""
    config = optimizer.config()
    most, decay = config.pop("clip_norm"), config.pop("weight_decay")
    config.pop("learning_rate")
    flat, gradient = (np.concatenate([every[name].ravel() for name in weights]) for every in (weights, gradients))
    if most is not None:
        gradient, _ = of_optimizers.clip_by_global_norm(gradient, most)
    decays = np.concatenate([np.full(own.size, decay * (name == "conv/weight")) for name, own in weights.items()])
    update = _reference(of_optimizers, type(optimizer))
    assert update is not None, "those without a reference are not checked"
    ends = np.cumsum([own.size for own in weights.values()])
    if "places" in inspect.signature(update).parameters:
        config["places"] = [(end - own.size, own.shape) for end, own in zip(ends, weights.values(), strict=True)]
    flat, state = update(flat, gradient, state, learning_rate=_RATE, weight_decay=decays, **config)
    pieces = np.split(flat, ends[:-1])
    return {name: piece.reshape(weights[name].shape) for name, piece in zip(weights, pieces, strict=True)}, state
