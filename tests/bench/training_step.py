"""Images/s of training steps against PyTorch, interleaved in one process.

python tests/bench/training_step.py [--device NAME] [--torch-device cuda] [--batch-size 128] [--repeats 15] [MODEL ...]
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch_models import TorchGraph

import blobnet as bn
from blobnet.device import Device
from blobnet.trainer import Trainer


def blobnet_step(model: bn.Model, device: Device, batch_size: int, x: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """A function that does one training step."""
    trainer = Trainer(
        device, model.graph, model.weights, bn.losses.CrossEntropy(), bn.optimizers.Adam(), batch_size, debug=False
    )

    def step() -> None:
        trainer.load_batch(x, y)
        trainer.compute_gradients(batch_size)
        trainer.update(1e-3)
        trainer.device.finish()

    return step


def torch_step(model: bn.Model, where: str, x: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """The same in PyTorch, with fp32 arithmetic, its batch copied to the device at every step as well."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    network = TorchGraph(model).train().to(where)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)

    def step() -> None:
        inputs, labels = torch.tensor(x).to(where), torch.tensor(y, dtype=torch.int64).to(where)
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        if where != "cpu":
            torch.cuda.synchronize()

    return step


def main() -> None:
    """Prints a line a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["lenet5", "fashion_cnn", "resnet8"])
    parser.add_argument("--device")
    parser.add_argument("--torch-device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    device = Device(options.device)
    print(f"{device.info}; PyTorch {torch.__version__}, {torch.get_num_threads()} threads; batch {options.batch_size}")
    random = np.random.default_rng(0)
    x = random.standard_normal((options.batch_size, 1, 28, 28)).astype(np.float32)
    y = random.integers(0, 10, options.batch_size).astype(np.int32)
    for name in options.models:
        model = getattr(importlib.import_module(f"blobnet.models.{name}"), name)()
        steps = blobnet_step(model, device, options.batch_size, x, y), torch_step(model, options.torch_device, x, y)
        rates: tuple[list[float], list[float]] = ([], [])
        for step in steps:
            for _ in range(5):
                step()
        for _ in range(options.repeats):
            for step, rate in zip(steps, rates, strict=True):
                start = time.perf_counter()
                for _ in range(options.steps):
                    step()
                rate.append(options.steps * options.batch_size / (time.perf_counter() - start))
        ours, theirs = (statistics.median(rate) for rate in rates)
        ratio = statistics.median(a / b for a, b in zip(*rates, strict=True))
        print(f"{name:12} blobnet {ours:8.0f} images/s   PyTorch {theirs:8.0f} images/s   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
