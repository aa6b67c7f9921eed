"""``blobnet speedrun``: the fastest published training on small pictures, from several seeds, with the time of each.

Jordan, *94% on CIFAR-10 in 3.29 seconds on a single GPU*, 2024, and its later version with Muon (airbench94_muon):
first filters that whiten patches, Muon for the others, alternating flips, shifts by two, label smoothing, and in the
end the mean of six views. Here Adam trains what is no filter, and an average of the weights is measured. The large
network also erases rectangles (Zhong et al., *Random Erasing Data Augmentation*, 2020).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet import augment, losses, models, optimizers, schedules
from blobnet.command_line.beside_tests import beside_the_tests
from blobnet.command_line.data_argument import check_classes, load_plain_dataset
from blobnet.datasets import Dataset
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.memory.blob import FloatArray
from blobnet.models.airbench import FROZEN, whiten
from blobnet.network.patterns import frozen_parameters

#: The network for two CPU cores, and one for the best accuracy: its groups' widths, its activation, and epochs.
SMALL: dict[str, Any] = {"widths": (32, 64, 128), "activation": "relu"}
LARGE: dict[str, Any] = {"widths": (128, 384, 512), "activation": "gelu"}
EPOCHS, LARGE_EPOCHS, BATCH_SIZE = 9, 60, 500
RATE = schedules.Linear(0.2, warmup_epochs=0.1)
OPTIMIZER = optimizers.Muon(RATE, momentum=0.7, weight_decay=0.05, adam_factor=0.1)
SMOOTHING, AVERAGE, SHIFT = 0.1, 0.98, 2
CHANGES: tuple[augment.Augmentation, ...] = (augment.RandomCrop(SHIFT), augment.AlternatingFlip())
LARGE_CHANGES = (*CHANGES, augment.Erasing(0.5, (0.02, 0.33)))
#: Pictures whose patches are whitened.
_WHITENED = 5000

#: (model, data, epochs, seed) -> a function that gives outputs for pictures.
Train = Callable[[Any, Dataset, int, int], Callable[[npt.NDArray[Any]], FloatArray]]


def run(options: argparse.Namespace) -> int:
    """Trains a network from each seed, and prints accuracies and times."""
    data = load_plain_dataset(options)
    check_classes(data)
    if len(data.shape) != 3 or not data.classes or data.positions or data.test is None:
        rule = "there must be pictures of one size, with a class each, and a test split"
        raise OptionError("speedrun", rule, data=data)
    if options.large and options.against:
        rule = "PyTorch's network trains without erased rectangles, --large with them"
        raise OptionError("--against torch", rule, hint="leave out --large or --against.")
    chosen = LARGE if options.large else SMALL
    epochs = options.epochs or (LARGE_EPOCHS if options.large else EPOCHS)
    device = Device(options.device)
    changes = LARGE_CHANGES if options.large else CHANGES
    ways: dict[str, Train] = {"blobnet": _trained_by(device, options.precision, changes)}
    if options.against:
        ways[options.against] = beside_the_tests("speedrun", "--against").trained_by(device.info, options.precision)
    print(f"{device.info}\n{data}\n{chosen}, {epochs} epochs in batches of {BATCH_SIZE}", flush=True)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for seed in range(options.seed, options.seed + options.seeds):
        for name, train in ways.items():
            model = models.airbench(data.shape, data.classes, seed=seed, **chosen)
            start, processor = time.perf_counter(), time.process_time()
            model.set_normalization(*data.statistics())
            whiten(model, _first(data.train.x, _WHITENED))
            right = of_views(train(model, data, epochs, seed), _first(data.test.x)).argmax(axis=1) == data.test.y
            seconds, accuracy = time.perf_counter() - start, float(right.mean())
            found[name].append((accuracy, seconds))
            used = time.process_time() - processor
            said = f"seed {seed}: accuracy {accuracy:.4f} in {seconds:.1f} s (processor time {used:.1f} s)"
            print(f"{name} {said}" if options.against else said, flush=True)
    for name, results in found.items():
        accuracies, times = zip(*results, strict=True)
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        said = f"mean accuracy {statistics.mean(accuracies):.4f}, deviation {spread:.4f}"
        print(f"{name}: {said}, median time {statistics.median(times):.1f} s, of {len(results)}")
    return 0


def _first(x: Any, count: int | None = None) -> npt.NDArray[Any]:
    """Some of the pictures, or all, as an array."""
    return np.asarray(x[np.arange(min(count or len(x), len(x)))])


def _trained_by(device: Device, precision: str, changes: Sequence[augment.Augmentation]) -> Train:
    def train(model: Any, data: Dataset, epochs: int, seed: int) -> Callable[[npt.NDArray[Any]], FloatArray]:
        model.fit(
            data.train.x,
            data.train.y,
            epochs=epochs,
            batch_size=BATCH_SIZE,
            optimizer=OPTIMIZER,
            loss=losses.CrossEntropy(label_smoothing=SMOOTHING).ignoring(data.ignored_label),
            augment=changes,
            freeze=FROZEN,
            average=AVERAGE,
            seed=seed,
            device=device,
            precision=precision,
            verbose=False,
        )
        return lambda x: model.predict(x, batch_size=BATCH_SIZE, precision=precision)

    return train


def of_views(predict: Callable[[npt.NDArray[Any]], FloatArray], x: npt.NDArray[Any]) -> FloatArray:
    """Outputs for pictures: half of them as they are, half moved by a cell to both sides; all mirrored as well."""
    height, width = x.shape[2:]
    edged = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")
    views = [(0.25, x), *((0.125, edged[..., place : place + height, place : place + width]) for place in (0, 2))]
    sides = [(share, np.ascontiguousarray(view)) for share, own in views for view in (own, own[..., ::-1])]
    result: FloatArray = sum(np.float32(share) * predict(view) for share, view in sides)
    return result


def frozen_names(model: Any) -> frozenset[str]:
    """The names of the parameters that the recipe does not train."""
    return frozen_parameters(model.graph, FROZEN)
