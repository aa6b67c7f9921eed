"""Ranks on devices, or the cores of one processor: whether any number of them trains the same bits, and what they cost.

    python tests/bench/ranks.py bits [--steps 200] [--ranks 1 2 4 8] [--sync-batch-norm] [--device Intel]
    python tests/bench/ranks.py speed [--repeats 5] [--device Intel]
    python tests/bench/ranks.py scaling [--networks resnet50 mobilenet_v2] [--ranks 1 2] [--shards 8] [--batch-size 64]
        [--precision tf32] [--reduction fast] [--steps 20] [--device NVIDIA]

``bits``: lenet5 and resnet8 in 8 shards on 1 rank, 2, ...: each must write the same file, bit for bit, which is said of
each; else the exit status is 1.

``speed``: two ranks of one core each against one process of two cores: training steps of lenet5 (a batch of 256) and
resnet18 at 64x64 (a batch of 64), images/s of all. The process computes a whole batch at once, the ranks half of it
each, in as many shards as there are ranks; both in turn, so many times, each in new processes, of whose epochs behind
the second one the median counts. The machine must be quiet, and have two cores of its own: hardware threads of one core
are none.

``scaling``: training steps of 64 images of 224x224 for each rank, uint8 from the host through ``fit``: one rank's in
one shard, those of several in so many (0: one a rank). The time of a step, images/s of all ranks, and the part of the
first count's images/s that each has. PyTorch's: tests/bench/ddp.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SHARDS = 8
#: For ``speed``: epochs of a process, and those before the ones that count. The second still finds memory.
EPOCHS, WARM = 7, 2
#: For ``speed``: the shape of samples, those of a batch, and batches of an epoch.
NETWORKS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "lenet5": ((1, 28, 28), 256, 60),
    "resnet18": ((3, 64, 64), 64, 4),
}


def start(ranks: int, settings: dict[str, Any]) -> str:
    """Trains in new processes (one alone if ``ranks`` is 0); what the first prints."""
    command = [sys.executable, __file__, "train", json.dumps(settings)]
    if ranks:
        command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks), *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}")
    return done.stdout


def train(settings: dict[str, Any]) -> None:
    """What each rank does."""
    if settings.get("cores"):
        # Before there is a device: drivers make a thread for each core that they may use.
        cores, rank = sorted(os.sched_getaffinity(0))[:2], int(os.environ.get("PMI_RANK", "-1"))
        os.sched_setaffinity(0, cores if rank < 0 else {cores[rank]})

    import time

    import blobnet as bn
    from blobnet import models
    from blobnet.callbacks import Callback, Checkpoint
    from blobnet.training.trainer import Progress

    class Clock(Callback):
        def begin(self, progress: Progress) -> None:
            self.ends = [time.perf_counter()]

        def step_end(self, progress: Progress) -> None:
            if progress.trainer.step.number in settings.get("timed", ()):
                progress.trainer.step.device.queue.finish()
                self.ends.append(time.perf_counter())

        def epoch_end(self, progress: Progress) -> None:
            self.ends.append(time.perf_counter())

    shape, batch, steps = settings["shape"], settings["batch"], settings["steps"]
    random = np.random.default_rng(0)
    if settings.get("timed"):
        x = random.integers(0, 256, (batch * steps, *shape), np.uint8)
    else:
        x = random.standard_normal((batch * steps, *shape)).astype(np.float32)
    y = random.integers(0, 10, len(x))
    model, clock = getattr(models, settings["network"])(input_shape=shape), Clock()
    callbacks: list[Callback] = [clock]
    if settings.get("file"):
        callbacks.append(Checkpoint(settings["file"]))
    fit = {"batch_size": batch, "callbacks": callbacks, "verbose": False, "device": settings["device"]}
    fit |= {"shards": settings["shards"], "sync_batch_norm": settings.get("sync_batch_norm", False)}
    fit |= {name: settings[name] for name in ("precision", "reduction") if name in settings}
    model.fit(x, y, epochs=settings["epochs"], **fit)
    world = bn.parallel.World.current()
    if world.is_first and settings.get("timed"):
        first, end = settings["timed"]
        print(json.dumps([(clock.ends[2] - clock.ends[1]) / (end - first), world.transport.name]))
    elif world.is_first and len(clock.ends) > WARM + 1:
        print(len(x) / statistics.median(np.diff(clock.ends)[WARM:]))


def bits(options: argparse.Namespace) -> int:
    """Whether all files are one."""
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        for network in ("lenet5", "resnet8"):
            first = b""
            for ranks in options.ranks:
                file = Path(folder) / f"{network}-{ranks}.h5"
                settings = {"network": network, "shape": (1, 28, 28), "batch": 32, "steps": options.steps, "epochs": 1}
                settings |= {"shards": SHARDS, "sync_batch_norm": options.sync_batch_norm, "device": options.device}
                start(ranks if ranks > 1 else 0, {**settings, "file": str(file)})
                written = file.read_bytes()
                first = first or written
                found |= written != first
                said = "the same bits" if written == first else "OTHER BITS"
                print(f"{network}, {options.steps} steps, {ranks} ranks: {said}, {len(written):,} bytes", flush=True)
    return int(found)


def speed(options: argparse.Namespace) -> int:
    """The ranks' images/s over those of one process."""
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two cores are needed")
    for network, (shape, batch, steps) in NETWORKS.items():
        found: dict[int, list[float]] = {0: [], 2: []}
        for _ in range(options.repeats):
            for ranks, own in found.items():
                settings = {"network": network, "shape": shape, "batch": batch, "steps": steps, "epochs": EPOCHS}
                settings |= {"shards": max(1, ranks), "device": options.device, "cores": True}
                own.append(float(start(ranks, settings)))
        ratios = [two / one for one, two in zip(*found.values(), strict=True)]
        one, two = (statistics.median(own) for own in found.values())
        print(
            f"{network}: one process {one:,.0f} images/s, two ranks {two:,.0f}, ratio {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )
    return 0


def scaling(options: argparse.Namespace) -> int:
    """The time of a step with several ranks, and the part of the images/s of one that each has."""
    warm = 4
    for network in options.networks:
        for precision in options.precision:
            one = 0.0
            for ranks in options.ranks:
                batch, steps = options.batch_size * ranks, warm + options.steps
                settings = {"network": network, "shape": (3, 224, 224), "batch": batch, "steps": steps, "epochs": 1}
                settings |= {"shards": (options.shards or ranks) if ranks > 1 else 1, "device": options.device}
                settings |= {"timed": (warm, steps - 1), "precision": precision, "reduction": options.reduction}
                seconds, transport = json.loads(start(ranks if ranks > 1 else 0, settings))
                rate = batch / seconds
                one = one or rate / ranks
                print(
                    f"{network} {precision}, {ranks} ranks of {options.batch_size}, {settings['shards']} shards, "
                    f"{options.reduction}, {transport}: {1e3 * seconds:.2f} ms, "
                    f"{rate:,.0f} images/s, {rate / ranks / one:.3f}",
                    flush=True,
                )
    return 0


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_bits, of_speed, of_scaling = (commands.add_parser(name) for name in ("bits", "speed", "scaling"))
    commands.add_parser("train").add_argument("settings", type=json.loads)
    of_bits.add_argument("--steps", type=int, default=200)
    of_bits.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    of_bits.add_argument("--sync-batch-norm", action="store_true")
    of_speed.add_argument("--repeats", type=int, default=5)
    of_scaling.add_argument("--networks", nargs="+", default=["resnet50", "mobilenet_v2"])
    of_scaling.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    of_scaling.add_argument("--shards", type=int, default=SHARDS)
    of_scaling.add_argument("--batch-size", type=int, default=64)
    of_scaling.add_argument("--precision", nargs="+", default=["fp32"])
    of_scaling.add_argument("--reduction", default="ordered")
    of_scaling.add_argument("--steps", type=int, default=20)
    for own in (of_bits, of_speed, of_scaling):
        own.add_argument("--device")
    options = parser.parse_args()
    if options.command == "train":
        train(options.settings)
        return 0
    return {"bits": bits, "speed": speed, "scaling": scaling}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
