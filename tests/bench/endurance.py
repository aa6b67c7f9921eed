"""A week of training in small: many steps of a tiny network, with all that a long training does, and what it leaves.

    nice -n 19 python tests/bench/endurance.py [--steps 100000] [--windows 20] [--device Intel]

The network has dropout and batch norm; each epoch is 500 steps with samples that change (augmentation), a validation,
files of the model and a line of the log; there is a file every 20 steps besides. For each part of the run a line: steps
a second (with files and validations), processor time a step, which others on the machine disturb less, the process's
resident memory, which on a processor is the device's too, its threads and open files; and on NVIDIA's GPUs the memory
that is in use. The last line compares the second half with the first. An event, a kernel or a buffer that a step would
leave behind is some hundred bytes at least: 10 MB in 100,000 steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import blobnet as bn
from blobnet import layers
from blobnet.callbacks import Callback, Checkpoint, CSVLog, SaveBest
from blobnet.device.device import Device
from blobnet.training.trainer import Progress

BATCH, STEPS_OF_AN_EPOCH = 32, 500


def resident_memory() -> int:
    """Bytes of this process that lie in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def gpu_memory() -> str:
    """What NVIDIA's driver says is in use on its first GPU; nothing where there is none."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader", "--id=0"]
    try:
        return ", GPU " + subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class Meter(Callback):
    """Prints a line after every so many steps, and keeps its figures."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.times: list[float] = []
        self.memories: list[int] = []
        self._next = window

    def begin(self, progress: Progress) -> None:
        self._start = time.perf_counter(), time.process_time()

    def epoch_end(self, progress: Progress) -> None:
        steps = progress.trainer.step.number
        if steps < self._next:
            return
        now, done = (time.perf_counter(), time.process_time()), steps - self._next + self.window
        wall, busy = (end - start for end, start in zip(now, self._start, strict=True))
        self.times.append(busy / done)
        self.memories.append(resident_memory())
        threads, files = (len(list(Path("/proc/self", name).iterdir())) for name in ("task", "fd"))
        print(
            f"{steps:>8,} steps: {done / wall:6.1f} a second, {self.times[-1] * 1e3:.2f} ms of processors a step, "
            f"{self.memories[-1] / 2**20:.2f} MiB, {threads} threads, {files} files{gpu_memory()}",
            flush=True,
        )
        self._start, self._next = now, steps + self.window


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--device")
    options = parser.parse_args()
    device, random = Device(options.device), np.random.default_rng(0)
    x = random.standard_normal((BATCH * STEPS_OF_AN_EPOCH, 1, 6, 6)).astype(np.float32)
    y = random.integers(0, 3, len(x))
    model = bn.Sequential(
        [
            layers.Input(1, 6, 6),
            layers.Conv2D(4, 3, padding=1),
            layers.BatchNorm(),
            layers.Activation("relu"),
            layers.Dropout(0.1),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    print(device.info)
    meter = Meter(max(STEPS_OF_AN_EPOCH, options.steps // options.windows))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [Checkpoint(folder / "a.h5", every_steps=20), SaveBest(folder / "best.h5"), CSVLog(folder / "log.csv")]
        model.fit(
            x,
            y,
            epochs=-(-options.steps // STEPS_OF_AN_EPOCH),
            batch_size=BATCH,
            validation=(x[:BATCH], y[:BATCH]),
            augment="crop=1, flip",
            callbacks=[*files, meter],
            device=device,
            verbose=False,
        )
    half = len(meter.times) // 2
    times, memories = np.array(meter.times), np.array(meter.memories)
    print(
        f"second half over first: processor time {np.median(times[half:]) / np.median(times[:half]):.3f}, "
        f"memory {(memories[-1] - memories[half - 1]) / 2**10:+.0f} KiB"
    )


if __name__ == "__main__":
    main()
