"""How far apart drivers are after the same steps of lenet5, on the same data, from the same weights.

    python tests/bench/drivers.py write intel.npz --device Intel
    python tests/bench/drivers.py write pocl.npz --device PoCL
    python tests/bench/drivers.py compare intel.npz pocl.npz [...]

The data are the real digits, each enlarged three times to lenet5's 28x28; 100 steps of 64 samples with SGD (rate
0.02, momentum 0.9) and, anew, with Adam (rate 0.001), of its usual epsilon and of another. A file holds the weights and
losses after 1, 10 and 100 steps. For each pair of files and each of these it prints the largest difference of a weight,
by the largest weight of its parameter, with the parameter's name, and that of the losses, by the loss. Files of one
device must agree in every bit.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet import datasets, models
from blobnet.device import Device
from blobnet.losses import CrossEntropy
from blobnet.optimizers import SGD, Adam, Optimizer
from blobnet.training_step import TrainingStep

BATCH, STEPS = 64, (1, 10, 100)
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(0.02, momentum=0.9),
    "adam": Adam(0.001),
    "adam, epsilon 1e-6": Adam(0.001, epsilon=1e-6),
}
_LOSS = "the loss"


def trained(device: Device, optimizer: Optimizer) -> dict[str, npt.NDArray[Any]]:
    """``steps/parameter`` to weights, and ``steps/the loss``."""
    split = datasets.load("digits").train
    x = np.pad(np.kron(np.asarray(split.x), np.ones((3, 3), np.uint8)), ((0, 0), (0, 0), (2, 2), (2, 2)))
    y = np.asarray(split.y, np.int32)
    model = models.lenet5((1, 28, 28), 10)
    model.set_normalization([x.mean()], [x.std()])
    step = TrainingStep(
        device, model.graph, model.weights, CrossEntropy(), optimizer, batch_size=BATCH, seed=0, sample_type="uint8"
    )
    order = np.random.default_rng(0).permutation(np.arange(BATCH * max(STEPS)) % len(x))
    found: dict[str, npt.NDArray[Any]] = {}
    for number, rows in enumerate(np.split(order, max(STEPS)), 1):
        step.reset_totals()
        step.compute_gradients(step.load_batch(x[rows], y[rows]))
        step.update(optimizer.schedule.value(number - 1, max(STEPS), 1))
        if number in STEPS:
            found |= {f"{number}/{name}": values for name, values in step.parameters.read().items()}
            found[f"{number}/{_LOSS}"] = step.totals()[:1] / BATCH
    return found


def furthest(one: Mapping[str, Any], other: Mapping[str, Any], start: str) -> tuple[float, str]:
    """The largest difference of a weight by the largest of its parameter, and which parameter that is."""
    names = [name for name in one if name.startswith(start) and not name.endswith(_LOSS)]
    found = [(np.abs(one[name] - other[name]).max() / np.abs(one[name]).max(), name) for name in names]
    return max(found)


def compare(paths: list[Path]) -> None:
    """Prints a row for each pair of files."""
    files = {path.stem: np.load(path) for path in paths}
    for pair in itertools.combinations(files, 2):
        one, other = (files[name] for name in pair)
        for start in (f"{name}/{steps}/" for name in OPTIMIZERS for steps in STEPS):
            largest, name = furthest(one, other, start)
            losses = [float(each[start + _LOSS][0]) for each in (one, other)]
            difference = abs(losses[0] - losses[1]) / losses[0]
            at = f" at {name.removeprefix(start)}" if largest else ""
            print(f"{' / '.join(pair)} {start} weights {largest:.1e}{at}, loss {losses[0]:.6f} {difference:.1e}")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("write", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--device")
    options = parser.parse_args()
    if options.task == "compare":
        compare(options.files)
        return
    device = Device(options.device)
    print(device.info)
    found = {kind: trained(device, optimizer) for kind, optimizer in OPTIMIZERS.items()}
    arrays: dict[str, Any] = {f"{kind}/{name}": values for kind, own in found.items() for name, values in own.items()}
    np.savez(options.files[0], **arrays)


if __name__ == "__main__":
    main()
