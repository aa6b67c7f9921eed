"""Trains through the command line on a sparse file of 40 GB, and says how much memory the process had resident.

    python tests/bench/large_files.py FOLDER npy|contiguous|chunked [SAMPLES]

A sample is one gray picture of 512x512; its cells are holes in the file, which read as zeros. The file stays in FOLDER.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np

SIDE, CLASSES, BATCH = 512, 4, 16
NET = """
from blobnet import Sequential, layers

def net(input_shape, classes, seed=0):
    return Sequential([
        layers.Input(*input_shape), layers.Conv2D(4, 16, stride=16, activation="relu"), layers.GlobalAveragePool(),
        layers.Dense(classes),
    ], seed=seed)
"""


def write(folder: Path, kind: str, count: int) -> Path:
    """The data set, of which only the labels take room on the disk."""
    shape, labels = (count, 1, SIDE, SIDE), np.arange(count) % CLASSES
    if kind == "npy":
        (folder / "npy").mkdir(exist_ok=True)
        np.lib.format.open_memmap(folder / "npy" / "x.npy", "w+", np.uint8, shape)
        np.save(folder / "npy" / "y.npy", labels)
        return folder / "npy"
    with h5py.File(folder / f"{kind}.h5", "w") as file:
        file.create_dataset("x", shape, np.uint8, chunks=(1, 1, SIDE, SIDE) if kind == "chunked" else None)
        file["y"] = labels
    return folder / f"{kind}.h5"


def main() -> None:
    """Prints what the command prints, then time and memory."""
    folder, kind, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 152_588
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.py").write_text(NET, encoding="utf-8")
    data, start = write(folder, kind, count), time.perf_counter()
    options = ["--dataset", data, "--epochs", 1, "--batch-size", BATCH, "--validation-fraction", 0.01]
    command = ["train", f"{folder}/net.py:net", *options, "--output", folder / "net.h5", "--overwrite"]
    subprocess.run([sys.executable, "-m", "blobnet", *map(str, command)], check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    gigabytes = count * SIDE * SIDE / 1e9
    print(f"{kind}: {gigabytes:.1f} GB in {time.perf_counter() - start:.0f} s, at most {peak} MiB resident")


if __name__ == "__main__":
    main()
