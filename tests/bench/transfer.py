"""Fine-tuning against training from scratch, on few samples.

A model is trained on six classes of Fashion-MNIST. From its weights it is then trained on few samples of other data:
the four other classes, or scikit-learn's digits, enlarged from 8x8 to 28x28. Three ways, with the same samples, steps
and shape of schedule: from scratch; the last layer alone, all others frozen; and all layers, those that come from the
first training at a fifth of the rate.

    python tests/bench/transfer.py [--model resnet8] [--epochs 3] [--samples 5 20] [--seeds 0 1 2] [--device NAME]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import blobnet as bn
from blobnet import models
from blobnet.device.device import Device
from blobnet.optimizers import Adam
from blobnet.schedules import Cosine

#: The classes of the first training. The others are trousers, coats, shirts and ankle boots.
FIRST = (0, 2, 3, 5, 7, 8)
#: Steps of each fine-tuning, and its batch.
STEPS, BATCH_SIZE = 300, 32
#: The rate of each way: of 0.002, 0.005, 0.01, 0.02 and 0.05 the best with 20 samples a class of the other classes,
#: for seeds 10 and 11.
WAYS = {"from scratch": 0.01, "last layer": 0.05, "all layers": 0.002}
#: What the rate of layers is multiplied by that come from the first training.
FACTOR = 0.2
Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def classes(split: Any, wanted: tuple[int, ...]) -> Arrays:
    """The samples of some classes, numbered from 0."""
    chosen = np.isin(split.y, wanted)
    return split.x[chosen], np.searchsorted(wanted, split.y[chosen])


def enlarged(split: Any) -> Arrays:
    """Digits of 8x8, from 0 to 16, as 24x24 in 28x28, from 0 to 255."""
    large = (split.x * 15.9).astype(np.uint8).repeat(3, axis=2).repeat(3, axis=3)
    return np.pad(large, ((0, 0), (0, 0), (2, 2), (2, 2))), split.y


def some(data: Arrays, count: int, seed: int) -> Arrays:
    """A few random samples of each class."""
    x, y = data
    random = np.random.default_rng(seed)
    rows = np.concatenate([random.choice(np.flatnonzero(y == label), count, False) for label in np.unique(y)])
    return x[rows], y[rows]


def normalise(model: bn.Model, x: npt.NDArray[Any]) -> None:
    """Sets the statistics of the samples that a model is trained on."""
    model.set_normalization([x.mean()], [x.std()])


def fine_tuned(model: bn.Model, way: str, few: Arrays, test: Arrays, seed: int, device: Device) -> float:
    """Test accuracy after one of the three ways, from the weights that the model has."""
    head = model.graph.output.name
    normalise(model, few[0])
    steps = -(-len(few[0]) // BATCH_SIZE)
    model.fit(
        *few,
        epochs=-(-STEPS // steps),
        batch_size=BATCH_SIZE,
        optimizer=Adam(Cosine(WAYS[way]), rates={head: 1.0, "*": FACTOR} if way == "all layers" else {}),
        freeze=[name for name in model.layers_until(head) if name != head] if way == "last layer" else None,
        seed=seed,
        device=device,
        verbose=False,
    )
    return model.evaluate(*test, device=device)["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device")
    options = parser.parse_args()
    device = Device(options.device)
    make = getattr(models, options.model)
    fashion, digits = bn.datasets.load("fashion-mnist"), bn.datasets.load("digits")
    others = tuple(label for label in range(10) if label not in FIRST)
    start = time.perf_counter()
    first, first_test = classes(fashion.train, FIRST), classes(fashion.test, FIRST)
    base = make((1, 28, 28), len(FIRST))
    normalise(base, first[0])
    base.fit(*first, epochs=options.epochs, batch_size=64, optimizer=Adam(Cosine(0.002)), device=device, verbose=False)
    accuracy = base.evaluate(*first_test, device=device)["accuracy"]
    print(
        f"{options.model} on {len(first[0])} samples of {len(FIRST)} classes: {accuracy:.4f}, device {device.info.name}"
    )
    targets = {
        "other classes": (classes(fashion.train, others), classes(fashion.test, others)),
        "digits": (enlarged(digits.train), enlarged(digits.test)),
    }
    print(f"{'data':<15}{'samples a class':<17}" + "".join(f"{way:<21}" for way in WAYS))
    for name, (train, test) in targets.items():
        outputs = len(np.unique(train[1]))
        for count in options.samples:
            row = []
            for way in WAYS:
                found = []
                for seed in options.seeds:
                    model = make((1, 28, 28), outputs, seed=seed)
                    if way != "from scratch":
                        model.take_weights(base)
                    found.append(fine_tuned(model, way, some(train, count, seed), test, seed, device))
                row.append(f"{statistics.mean(found):.3f} ({min(found):.3f}-{max(found):.3f})")
            print(f"{name:<15}{count:<17}" + "".join(f"{cell:<21}" for cell in row), flush=True)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
