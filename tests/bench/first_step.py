"""Seconds from the start of a process to the end of its first training step, with warm program caches.

python tests/bench/first_step.py [--device NAME] [--batch-size 128] [--repeats 5] [MODEL ...]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

STEP = """
import importlib, sys
import numpy as np
import blobnet as bn
from blobnet.device import Device
from blobnet.trainer import Trainer

name, count = sys.argv[1], int(sys.argv[2])
model = getattr(importlib.import_module(f"blobnet.models.{name}"), name)()
trainer = Trainer(Device(), model.graph, model.weights, bn.losses.CrossEntropy(), bn.optimizers.Adam(), count)
random = np.random.default_rng(0)
trainer.load_batch(random.standard_normal((count, 1, 28, 28)), random.integers(0, 10, count).astype(np.int32))
trainer.compute_gradients(count)
trainer.update(1e-3)
trainer.device.finish()
"""


def main() -> None:
    """Prints the median for each model, after one run that fills the caches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["lenet5", "fashion_cnn", "resnet8"])
    parser.add_argument("--device")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    environment = {**os.environ, **({"BLOBNET_DEVICE": options.device} if options.device else {})}
    for name in options.models:
        seconds = []
        for _ in range(options.repeats + 1):
            start = time.perf_counter()
            command = [sys.executable, "-c", STEP, name, str(options.batch_size)]
            subprocess.run(command, env=environment, check=True)
            seconds.append(time.perf_counter() - start)
        print(f"{name:12} first run {seconds[0]:.2f} s, then {statistics.median(seconds[1:]):.2f} s")


if __name__ == "__main__":
    main()
