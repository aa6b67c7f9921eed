"""Where a training step's time goes: device time of every launch, summed by label (median of repeats).

python tests/bench/profile_step.py MODEL [--device NAME] [--batch-size 128]
"""

from __future__ import annotations

import argparse
import importlib
import statistics

import numpy as np
import pyopencl as cl

import blobnet as bn
from blobnet.device import Device
from blobnet.executor import Executor
from blobnet.planner import make_plan


def main() -> None:
    """Prints a line a launch, the slowest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    device = Device(options.device)
    device.queue = cl.CommandQueue(device.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    model = getattr(importlib.import_module(f"blobnet.models.{options.model}"), options.model)()
    loss = bn.losses.CrossEntropy()
    plan = make_plan(model.graph, options.batch_size, loss=loss, training=True, tuning=device.tuning)
    executor = Executor(device, plan, debug=False)
    executor.write_array("parameters", plan.parameters.pack(model.weights))
    samples = np.random.default_rng(0).standard_normal((options.batch_size, model.graph.input.shape.elements))
    executor.write_array("samples", samples.astype(np.float32))
    launches = executor.bind([call for _, call in plan.calls], options.batch_size)
    times: list[list[float]] = [[] for _ in launches]
    for _ in range(options.repeats + 1):
        events = [
            cl.enqueue_nd_range_kernel(device.queue, item.kernel, item.global_size, item.local_size)
            for item in launches
        ]
        device.finish()
        for event, collected in zip(events, times, strict=True):
            collected.append((event.profile.end - event.profile.start) / 1e6)
    medians = [statistics.median(collected[1:]) for collected in times]
    total = sum(medians)
    print(f"{device.info}: {total:.3f} ms in {len(launches)} launches")
    for median, item in sorted(zip(medians, launches, strict=True), key=lambda pair: -pair[0]):
        share = 100 * median / total
        print(f"{median:8.3f} ms {share:5.1f} %  {item.call.label:28} {item.call.kernel:32} {item.global_size}")


if __name__ == "__main__":
    main()
