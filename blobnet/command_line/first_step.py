"""Seconds from the start of a process to the end of its first training step.

``python -m blobnet.command_line.first_step MODEL 1,28,28 10 128 0:0`` is the process: it builds a model, and trains one
step of it on a device. ``seconds`` runs it with caches that are empty, and again with those that it has left.
"""

from __future__ import annotations

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
    command = [sys.executable, "-m", "blobnet.command_line.first_step", model, ",".join(map(str, input_shape))]
    command += [str(classes), str(batch_size), device, precision]
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


def main(arguments: Sequence[str]) -> None:
    """The process: one step."""
    import numpy as np

    from blobnet.command_line.model_argument import find_model
    from blobnet.device.device import Device
    from blobnet.layers.initializers import FirstWeights
    from blobnet.losses import CrossEntropy
    from blobnet.training.settings import TrainingSettings
    from blobnet.training.training_step import TrainingStep

    name, sizes, classes, count, address, precision = arguments
    shape = tuple(int(size) for size in sizes.split(","))
    batch_size = int(count)
    model = find_model(name).build(shape, int(classes), (), 0)
    device = Device(address).at(precision)
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


if __name__ == "__main__":
    main(sys.argv[1:])
