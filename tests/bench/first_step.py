"""Seconds from the start of a process to the end of its first training step: with empty program caches, and full ones.

python tests/bench/first_step.py resnet50 --shape 3 224 224 --classes 1000 --batch-size 64 --device NVIDIA
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from blobnet.errors import DeviceError

#: Where blobnet and drivers keep built programs.
_CACHE_VARIABLES = ("XDG_CACHE_HOME", "POCL_CACHE_DIR", "CUDA_CACHE_PATH", "NEO_CACHE_DIR")


def seconds(
    model: str, input_shape: Sequence[int], classes: int, batch_size: int, device: str, precision: str = "fp32"
) -> tuple[float, float]:
    """Seconds with cold and with warm program caches.

    Raises:
        DeviceError: the process fails.
    """
    command = [sys.executable, __file__, model, "--one-step", "--shape", *map(str, input_shape), "--device", device]
    command += ["--classes", str(classes), "--batch-size", str(batch_size), "--precision", precision]
    times = []
    with tempfile.TemporaryDirectory(prefix="blobnet-first-step-") as folder:
        environment = {**os.environ, **{name: str(Path(folder) / name.lower()) for name in _CACHE_VARIABLES}}
        # Where it is not forbidden, Python compiles modules once.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for name in _CACHE_VARIABLES:
            Path(environment[name]).mkdir()
        for _ in range(2):
            start = time.perf_counter()
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            times.append(time.perf_counter() - start)
            if result.returncode:
                last = (result.stderr.strip().splitlines() or ["no message"])[-1]
                raise DeviceError(
                    "first step", "a new process must train one step", status=result.returncode, said=last
                )
    return times[0], times[1]


def train_step(options: argparse.Namespace) -> None:
    """What a process does: it builds a model, and trains one step of it on a device."""
    import numpy as np

    from blobnet.command_line.model_argument import find_model
    from blobnet.device.device import Device
    from blobnet.layers.initializers import FirstWeights
    from blobnet.losses import CrossEntropy
    from blobnet.training.settings import TrainingSettings
    from blobnet.training.training_step import TrainingStep

    shape, batch_size = tuple(options.shape), options.batch_size
    model = find_model(options.model).build(shape, options.classes, (), 0)
    device = Device(options.device or None).at(options.precision)
    weights = FirstWeights(model.graph.named_parameters, 0)  # As ``fit`` has them, and no copies.
    settings = TrainingSettings(loss=CrossEntropy(), batch_size=batch_size)
    step = TrainingStep(device, model.graph, weights, settings)
    # Samples are there when a training begins: what it takes to make them up should count little.
    random = np.random.default_rng(0)
    x = random.random((batch_size, *shape), dtype=np.float32)
    output = model.graph.output.shape
    step.load_batch(x, random.integers(0, output.units, (batch_size, *output.dimensions[1:]), np.int32))
    step.compute_gradients(batch_size)
    step.update(1e-3)
    step.device.queue.finish()


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--shape", type=int, nargs="+", default=[3, 224, 224])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="")
    parser.add_argument("--one-step", action="store_true", help="be the process that is timed")
    options = parser.parse_args()
    if options.one_step:
        train_step(options)
        return
    cold, warm = seconds(
        options.model, options.shape, options.classes, options.batch_size, options.device, options.precision
    )
    print(f"a new process to the end of its first step: {cold:.2f} s without program caches, {warm:.2f} s with")


if __name__ == "__main__":
    main()
