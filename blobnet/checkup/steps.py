"""Checks of what is around the layers: losses, optimizers, dropout, augmentation, weights of samples, and float16.

Each is a small network with one convolution, on a device as it is trained or used, against float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blobnet import layers, losses, optimizers
from blobnet.augment import Brightness, Erasing, Flip, RandomAffine, RandomCrop, Saturation, rows_for
from blobnet.blob import Shape
from blobnet.checkup.bench import bits
from blobnet.checkup.examination import (
    FAILED,
    NOT_BUILT,
    NOT_REPEATABLE,
    OK,
    STRAY_WRITE,
    WRONG,
    Finding,
    difference,
)
from blobnet.checkup.reference import augmentation, convolution, dropout
from blobnet.checkup.reference import losses as of_losses
from blobnet.checkup.reference import optimizers as of_optimizers
from blobnet.device import Device
from blobnet.errors import BuildError, DeviceError, KernelError, PromiseError
from blobnet.kernel_call import Batch
from blobnet.model import Sequential
from blobnet.task import Fault, Way
from blobnet.training_step import TrainingStep

Float64Array = npt.NDArray[np.float64]

#: Of the samples, and the units that the convolution makes of them; samples of a batch, steps, and their rate.
SHAPE, _UNITS, _COUNT, _STEPS, _RATE = Shape(3, 7, 5), 4, 3, 2, 0.05
#: What a result may differ by at most, over its root mean square: in fp32, and where each value of one layer for the
#: next is rounded to 11 bits (half a unit in the last place is 2^-12 of it) and a sum of 27 such numbers is.
_TOLERANCE, _TOLERANCE_OF_HALVES = 5e-5, 6 * 2.0**-11
#: What may change samples: all that moves, recolours or erases, on its way in.
_AUGMENT = (RandomCrop(1), RandomAffine(30, 0.1, (0.8, 1.3)), Flip(), Brightness(0.4), Saturation(0.5), Erasing(0.9))
#: The samples' mean and deviation.
_MEAN, _DEVIATION = (np.array(values, np.float32) for values in ([0.2, -0.1, 0.4], [0.9, 1.2, 0.8]))
#: The references of losses that take classes, and of others.
_OF_CLASSES: Mapping[str, Callable[..., Any]] = {
    "CrossEntropy": of_losses.cross_entropy,
    "Focal": of_losses.focal,
    "Dice": of_losses.dice,
}
_OF_TARGETS: Mapping[str, Callable[..., Any]] = {
    "BinaryCrossEntropy": of_losses.binary_cross_entropy,
    "MeanSquaredError": of_losses.mean_squared_error,
    "MeanAbsoluteError": of_losses.mean_absolute_error,
    "Huber": of_losses.huber,
}
_OF_OPTIMIZERS: Mapping[str, Callable[..., Any]] = {
    "SGD": of_optimizers.sgd,
    "RMSprop": of_optimizers.rmsprop,
    "Adam": of_optimizers.adam,
    "AdamW": of_optimizers.adamw,
}


@dataclass(frozen=True)
class StepCheck:
    """Steps of a training, or a prediction, to examine.

    Attributes:
        name: what it is a check of.
        loss, optimizer: what is minimised, and how.
        rate: of dropout behind the convolution.
        is_augmented: whether samples change on their way in.
        is_weighted: whether samples and classes have weights; only for losses of classes.
        storage: what is kept between layers: with float16 it is a prediction.
        seed: of all numbers.
    """

    name: str
    loss: losses.Loss = field(default_factory=losses.CrossEntropy)
    optimizer: optimizers.Optimizer = field(default_factory=optimizers.SGD)
    rate: float = 0.0
    is_augmented: bool = False
    is_weighted: bool = False
    storage: str = "float32"
    seed: int = 0

    way: ClassVar[Way] = Way("")
    #: There is no other way to compute this, so that nothing is denied.
    fault: ClassVar[Fault | None] = None
    family: ClassVar[str] = "step"

    @property
    def title(self) -> str:
        """What stands in a row of it."""
        return self.name

    def __str__(self) -> str:
        parts = f"{self.loss}, {self.optimizer}, storage {self.storage}"
        return f"{self.name}: {parts} behind a convolution of {_COUNT} samples {SHAPE}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        """Plain data that :meth:`from_json` takes."""
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        loss = {"kind": type(self.loss).__name__, "config": self.loss.config()}
        return {**own, "loss": loss, "optimizer": self.optimizer.description()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StepCheck:
        """The check that :meth:`as_json` described."""
        loss = losses.Loss.kinds[values["loss"]["kind"]](**values["loss"]["config"])
        optimizer = optimizers.from_description(values["optimizer"], "check")
        return cls(**{**values, "loss": loss, "optimizer": optimizer})


def checks_of_steps(seed: int) -> list[StepCheck]:
    """Every loss and optimizer, and what else a step does besides its layers."""
    every: list[losses.Loss] = [
        losses.CrossEntropy(label_smoothing=0.1),
        losses.Focal(),
        losses.Dice(),
        losses.BinaryCrossEntropy(),
        losses.MeanSquaredError(),
        losses.MeanAbsoluteError(),
        losses.Huber(0.5),
    ]
    ways: list[optimizers.Optimizer] = [
        optimizers.SGD(momentum=0.9, nesterov=True, weight_decay=0.1, clip_norm=0.5),
        optimizers.RMSprop(momentum=0.5, weight_decay=0.1),
        optimizers.Adam(weight_decay=0.1),
        optimizers.AdamW(clip_norm=0.5),
    ]
    found = [StepCheck(type(loss).__name__, loss) for loss in every]
    found += [StepCheck(type(way).__name__, optimizer=way) for way in ways]
    found += [
        StepCheck("sample weights", is_weighted=True),
        StepCheck("Dropout", rate=0.4),
        StepCheck("augmentation", is_augmented=True),
        StepCheck("float16", storage="float16"),
    ]
    return [replace(check, seed=seed + number) for number, check in enumerate(found)]


def examine_steps(device: Device, check: StepCheck) -> Finding:
    """What a check shows on a device."""
    run = _predicted if check.storage == "float16" else _trained
    try:
        first, second = (run(device, check, debug=debug) for debug in (True, False))
    except PromiseError as error:
        return Finding(STRAY_WRITE, note=str(error))
    except (BuildError, KernelError) as error:
        return Finding(NOT_BUILT, note=str(error))
    except DeviceError as error:
        return Finding(FAILED, note=str(error))
    wanted = dict(_expected(check))
    worst, where = max((difference(values, wanted[name]), name) for name, values in first.items())
    tolerance = _TOLERANCE_OF_HALVES if check.storage == "float16" else _TOLERANCE
    if worst > tolerance:
        note = f"{check}: {where} is off by {worst:.2g} of its root mean square, where {tolerance:.2g} is the most"
        return Finding(WRONG, error=worst, note=note)
    for name, values in first.items():
        if np.any(bits(values) != bits(second[name])):
            return Finding(NOT_REPEATABLE, error=worst, note=f"{check}: {name} differs between two runs")
    return Finding(OK, error=worst)


# -- as it is ----------------------------------------------------------------------------------------------------------


def _network(check: StepCheck) -> Sequential:
    parts = [layers.Input.of(SHAPE, name="input"), layers.Conv2D(_UNITS, 3, padding=1, name="conv")]
    model = Sequential([*parts, *([layers.Dropout(check.rate)] if check.rate else [])], seed=check.seed)
    model.set_normalization(_MEAN, _DEVIATION)
    return model


def _batches(check: StepCheck) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[Any]]]:
    """Samples and labels of each step."""
    generator = np.random.default_rng(check.seed)
    for _ in range(_STEPS):
        x = generator.standard_normal((_COUNT, *SHAPE.dimensions), dtype=np.float32)
        if check.loss.takes_classes:
            yield x, generator.integers(0, _UNITS, (_COUNT, *SHAPE.dimensions[1:]))
        else:
            yield x, generator.random((_COUNT, _UNITS, *SHAPE.dimensions[1:]), dtype=np.float32)


def _weights(check: StepCheck) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.float32] | None]:
    """Of samples, and of classes."""
    if not check.is_weighted:
        return None, None
    return np.linspace(0.5, 2, _COUNT, dtype=np.float32), np.linspace(2, 0.25, _UNITS, dtype=np.float32)


def _rows(check: StepCheck, number: int) -> npt.NDArray[np.float32]:
    """How the samples of a step change."""
    return rows_for(_AUGMENT, SHAPE, check.seed, number, np.arange(_COUNT))


def _trained(device: Device, check: StepCheck, *, debug: bool) -> dict[str, np.ndarray[Any, Any]]:
    """The gradients of the last step, the parameters behind it, and the sum of all losses."""
    model, of_samples = _network(check), _weights(check)[0]
    step = TrainingStep(
        device,
        model.graph,
        model.weights,
        check.loss,
        check.optimizer,
        _COUNT,
        check.seed,
        class_weights=[_weights(check)[1]],
        augment=_AUGMENT if check.is_augmented else (),
        debug=debug,
    )
    step.reset_totals()
    for x, y in _batches(check):
        labels = check.loss.device_labels(y)
        step.load_batch(x, labels)
        if check.is_augmented:
            step.change_samples(_rows(check, step.number))
        divisor = step.weigh([labels], None if of_samples is None else [of_samples])
        step.compute_gradients(Batch(_COUNT, divisor=divisor))
        gradients = step.gradients()
        step.update(_RATE)
    found: dict[str, np.ndarray[Any, Any]] = {f"gradient of {name}": values for name, values in gradients.items()}
    found |= {name: values for name, values in step.parameters.read().items() if name in gradients}
    return {**found, "sum of losses": step.totals()[:1]}


def _predicted(device: Device, check: StepCheck, *, debug: bool) -> dict[str, np.ndarray[Any, Any]]:
    return {"output": _network(check).predict(next(_batches(check))[0], device=device, storage=check.storage)}


# -- as it should be ---------------------------------------------------------------------------------------------------


def _expected(check: StepCheck) -> Iterator[tuple[str, Float64Array]]:
    """The same in float64."""
    model, (of_samples, of_classes) = _network(check), _weights(check)
    names = ("conv/weight", "conv/bias")
    weight, bias = (model.weights[name].astype(np.float64) for name in names)
    state: of_optimizers.State = {}
    total = 0.0
    for number, (samples, y) in enumerate(_batches(check)):
        x = _entered(check, samples, number)
        logits = convolution.conv2d(x, weight, bias, padding=((1, 1), (1, 1)))
        if check.storage == "float16":
            yield "output", logits
            return
        # The third vertex of the graph, where there is dropout.
        mask = dropout.dropout_mask(check.seed, number, 2, _COUNT, logits[0].size, check.rate).reshape(logits.shape)
        loss, delta, amount = _loss(check, logits * mask, y, of_samples, of_classes)
        total, delta = total + loss * amount, delta * mask
        _, *gradients = convolution.conv2d_backward(x, weight, bias, delta, padding=((1, 1), (1, 1)))
        for name, values in zip(names, gradients, strict=True):
            assert values is not None
            yield f"gradient of {name}", values
        (weight, bias), state = _updated(check.optimizer, (weight, bias), gradients, state)
    yield from zip(names, (weight, bias), strict=True)
    yield "sum of losses", np.array([total])


def _entered(check: StepCheck, samples: npt.NDArray[np.float32], number: int) -> Float64Array:
    """What the convolution gets of samples in a step."""
    mean, deviation = _MEAN.astype(np.float64), _DEVIATION.astype(np.float64)
    if check.is_augmented:
        return augmentation.augmented(samples, _rows(check, number), mean, deviation)
    return (samples.astype(np.float64) - mean[:, None, None]) / deviation[:, None, None]


def _loss(
    check: StepCheck, logits: Float64Array, y: npt.NDArray[Any], of_samples: Any, of_classes: Any
) -> tuple[float, Float64Array, float]:
    """The mean loss, its derivative, and the weight that the mean is of."""
    kind, config = type(check.loss).__name__, check.loss.config()
    if kind not in _OF_CLASSES:
        own = {"knee": config["delta"]} if "delta" in config else {}
        return (*_OF_TARGETS[kind](logits, y, **own), float(_COUNT))
    names = {"CrossEntropy": "label_smoothing", "Focal": "gamma", "Dice": "smoothing"}
    own = {names[kind]: config[names[kind]], "class_weights": of_classes, "sample_weights": of_samples}
    weight = check.loss.weight(check.loss.device_labels(y), of_samples, of_classes)
    return (*_OF_CLASSES[kind](logits, y, **own), weight)


def _updated(
    optimizer: optimizers.Optimizer, parameters: Any, gradients: Any, state: of_optimizers.State
) -> tuple[list[Float64Array], of_optimizers.State]:
    """Parameters, of which the first decays, behind a step, and the optimizer's new state."""
    config = optimizer.config()
    most, decay = config.pop("clip_norm"), config.pop("weight_decay")
    config.pop("learning_rate")
    flat, gradient = (np.concatenate([values.ravel() for values in every]) for every in (parameters, gradients))
    if most is not None:
        gradient, _ = of_optimizers.clip_by_global_norm(gradient, most)
    decays = np.repeat([decay, 0.0], [values.size for values in parameters])
    update = _OF_OPTIMIZERS[type(optimizer).__name__]
    flat, state = update(flat, gradient, state, learning_rate=_RATE, weight_decay=decays, **config)
    pieces = np.split(flat, [parameters[0].size])
    return [piece.reshape(values.shape) for piece, values in zip(pieces, parameters, strict=True)], state
