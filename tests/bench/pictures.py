"""A folder of JPEGs on its way to batches: blobnet's source against PyTorch's DataLoader with torchvision, in turns.

    python tests/bench/pictures.py [--workers 2] [--policy]    (needs torch, torchvision and Pillow)

With ``--policy`` the DataLoader changes pictures by TrivialAugment. blobnet does so on the device, in the kernel that
writes a batch's blob (``blobnet bench fit NETWORK --augment trivialaugment`` times that): here it only reads.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from blobnet.datasets.picture_source import PictureSource

COUNT, BATCH, SIZE, ROUNDS = 400, 64, (224, 224), 7
#: Seconds after which what the other one started has come to rest.
PAUSE = 1.0


def write(folder: Path) -> list[Path]:
    """JPEGs of 300x400 with smooth colours."""
    rng, paths = np.random.default_rng(0), [folder / "ab"[number % 2] / f"{number}.jpg" for number in range(COUNT)]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        picture = Image.fromarray(rng.integers(0, 256, (30, 40, 3)).astype(np.uint8))
        picture.resize((400, 300), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def ours(source: PictureSource, threads: ThreadPoolExecutor, seed: int) -> float:
    """Images/s; as blobnet/execution/loader.py reads: two threads, each half of a batch, a few batches ahead."""
    order, start = np.random.default_rng(seed).permutation(COUNT), time.perf_counter()
    pieces = np.empty((3, BATCH, *source.shape[1:]), np.uint8)
    futures = []
    for number, first in enumerate(range(0, COUNT, BATCH)):
        rows, out = order[first : first + BATCH], pieces[number % 3]
        half = -(-len(rows) // 2)
        futures += [threads.submit(source.read, rows[part], out[: len(rows)][part]) for part in _halves(half)]
    for future in futures:
        future.result()
    return COUNT / (time.perf_counter() - start)


def _halves(half: int) -> tuple[slice, slice]:
    return slice(half), slice(half, None)


def main() -> None:
    """Prints images/s of both and the ratios of neighbours."""
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policy", action="store_true", help="the DataLoader changes pictures by TrivialAugment")
    options = parser.parse_args()
    workers = options.workers
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as threads:
        source = PictureSource(write(Path(name)), SIZE, 3, workers)
        policy = [transforms.TrivialAugmentWide()] if options.policy else []
        steps = transforms.Compose([transforms.Resize(SIZE), *policy, transforms.PILToTensor()])
        folder = datasets.ImageFolder(name, steps)
        loader = DataLoader(folder, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=True)
        found = []
        for number in range(ROUNDS + 1):
            time.sleep(PAUSE)
            mine = ours(source, threads, number)
            time.sleep(PAUSE)
            start = time.perf_counter()
            seen = sum(len(batch) for batch, _ in loader)
            found.append((mine, seen / (time.perf_counter() - start)))
        for rates in sorted(found[1:], key=lambda rates: rates[0] / rates[1]):
            print(f"{rates[0]:6.0f} {rates[1]:6.0f} images/s, {rates[0] / rates[1]:.2f}")


if __name__ == "__main__":
    main()
