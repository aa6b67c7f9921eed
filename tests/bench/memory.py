"""The memory of a training step, and its time, with and without ``recompute``; on a GPU beside PyTorch's memory.

    python tests/bench/memory.py NAME... [--batch-size 32] [--precision bf16] [--device NVIDIA]

Ours is what is allocated: the plan's buffers and Adam's state. PyTorch's, on the same layers with Adam, is its
allocator's peak in steps after the first few, and in brackets with these, in which cuDNN tries out algorithms that need
much work space. Neither counts the driver's own. Times are medians, in turns. Needs PyTorch with CUDA, or none.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch_twin

from blobnet import models
from blobnet.bench.network import LEARNING_RATE, TRAINING, NetworkBench, burst
from blobnet.device.device import Device
from blobnet.launch.kernel_call import PRECISIONS
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
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="NVIDIA")
    options = parser.parse_args()
    device = Device(options.device).at(options.precision)
    print(f"{device.info}\nbatch {options.batch_size}, {device.precision}")
    has_torch = "NVIDIA" in device.info.platform and torch_twin.device_for(device.info) == "cuda"
    if has_torch:
        torch_twin.set_precision(options.precision)
        print(torch_twin.description("cuda"))
    for name in options.models:
        model = getattr(models, name)((3, 224, 224), 1000)
        kept, again = (NetworkBench(device, model, options.batch_size, recompute=value) for value in (False, True))
        rival = partial(burst, again.train, device.queue.finish)
        rival(1)
        timing = kept.measure(TRAINING, options.repeats, rival)
        sizes = [bench.step.bytes for bench in (kept, again)]
        print(
            f"{name}: {format_bytes(sizes[0])}, {1e3 * timing.seconds:.1f} ms; "
            f"with recompute {format_bytes(sizes[1])}, ratio {sizes[1] / sizes[0]:.2f}, time {timing.ratio:.3f}",
            flush=True,
        )
        del again, rival
        if has_torch:
            first, later = torch_peaks(model, kept)
            ratios = [f"{size / later:.2f} ({size / first:.2f})" for size in sizes]
            print(f"  PyTorch {format_bytes(later)} ({format_bytes(first)}); ratios {', '.join(ratios)}", flush=True)
        del kept


if __name__ == "__main__":
    main()
