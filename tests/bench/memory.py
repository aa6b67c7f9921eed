"""The memory of a training step on a GPU against PyTorch's, on the same layers, with Adam in both.

    python tests/bench/memory.py NAME... [--batch-size 32] [--device NVIDIA]

Ours is what is allocated: the plan's buffers and Adam's state. PyTorch's is its allocator's peak in steps after the
first few, and in brackets with these, in which cuDNN tries out algorithms that need much work space. Neither counts the
driver's own. Needs PyTorch with CUDA.
"""

from __future__ import annotations

import argparse

import torch_twin

from blobnet import models
from blobnet.bench.network import LEARNING_RATE, NetworkBench
from blobnet.device.device import Device
from blobnet.errors import OptionError
from blobnet.model import Model
from blobnet.support.formatting import format_bytes

_STEPS = 5


def torch_peaks(model: Model, bench: NetworkBench) -> tuple[int, int]:
    """Bytes at most of PyTorch's arrays in the first steps, and in those after them."""
    torch = torch_twin.load()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = torch_twin.training_step(torch_twin.Twin(model).module, "cuda", bench.x, bench.y, LEARNING_RATE)
    peaks = []
    for _ in range(2):
        for _ in range(_STEPS):
            step()
        torch_twin.finish("cuda")
        peaks.append(int(torch.cuda.max_memory_allocated()))
        torch.cuda.reset_peak_memory_stats()
    return peaks[0], peaks[1]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="names of networks that ship")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="NVIDIA")
    options = parser.parse_args()
    device = Device(options.device)
    if torch_twin.device_for(device.info) != "cuda":
        raise OptionError("--device", "PyTorch says what it allocates on GPUs alone", device=device.info.name)
    torch_twin.set_precision("fp32")
    print(f"{device.info}\n{torch_twin.description('cuda')}\nbatch {options.batch_size}")
    for name in options.models:
        model = getattr(models, name)((3, 224, 224), 1000)
        bench = NetworkBench(device, model, options.batch_size)
        bench.train()
        device.queue.finish()
        first, later = torch_peaks(model, bench)
        ours = bench.step.bytes
        print(
            f"{name}: {format_bytes(ours)}, PyTorch {format_bytes(later)} ({format_bytes(first)}); "
            f"ratio {ours / later:.2f} ({ours / first:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
