"""The other side of ``tests/bench/ranks.py scaling``: PyTorch's DistributedDataParallel, with images on the GPU.

    python -m torch.distributed.run --nproc_per_node 2 tests/bench/ddp.py [--networks ...] [--precision fp32 tf32]

torchvision's networks, SGD with momentum, NCCL; the median time of a step, of which the slowest rank's counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torchvision
from torch import distributed, nn


def step_time(network: str, batch_size: int, steps: int) -> float:
    """Seconds of a step."""
    model = getattr(torchvision.models, network)().cuda()
    if distributed.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x = torch.randn(batch_size, 3, 224, 224, device="cuda")
    y = torch.randint(0, 1000, (batch_size,), device="cuda")
    times = []
    for _ in range(8 + steps):
        torch.cuda.synchronize()
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    slowest = torch.tensor(statistics.median(times[8:]), device="cuda")
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    return float(slowest)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet50", "mobilenet_v2"])
    parser.add_argument("--precision", nargs="+", default=["fp32", "tf32"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl")
    ranks, torch.backends.cudnn.benchmark = distributed.get_world_size(), True
    for network in options.networks:
        for precision in options.precision:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
            seconds = step_time(network, options.batch_size, options.steps)
            if not distributed.get_rank():
                rate = options.batch_size * ranks / seconds
                print(f"PyTorch, {network} {precision}, {ranks} ranks: {1e3 * seconds:.2f} ms, {rate:,.0f} images/s")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
