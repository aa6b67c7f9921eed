"""A training step, launch by launch as AMD's machine code and on a CPU device, with the same plan and the same memory.

    python -m tests.amd.launch_by_launch lenet5 --shape 1 12 12
    python -m tests.amd.launch_by_launch resnet8 --shape 3 16 16 --lanes 64

Each launch begins with what the CPU device's launches before it have left, so that nothing adds up. A line for each:
its kernel, how many numbers differ, and by how much of the largest number that was written. The exit status is 1 if
that is more than --most. What the waves did, counts tests/amd/counts.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from blobnet.command_line.model_argument import find_model
from blobnet.device.device import Device
from blobnet.execution.executor import Executor
from blobnet.losses import CrossEntropy
from blobnet.planning import make_plan
from blobnet.support.tables import Table
from tests.amd.device import MachineDevice, host_device

#: Of a training step.
PHASES = ("forward", "loss", "backward")


def executors(name: str, shape: tuple[int, ...], batch_size: int, devices: Sequence[Device]) -> list[Executor]:
    """A training step's plan for the last of some devices, on each of them; the first has numbers to begin with."""
    plan = make_plan(
        find_model(name).function(shape).graph,
        batch_size,
        loss=CrossEntropy(),
        training=True,
        tuning=devices[-1].tuning,
    )
    made = [Executor(device, plan, debug=False) for device in devices]
    rng = np.random.default_rng(0)
    parameters = rng.uniform(-0.3, 0.3, plan.request.parameters.elements).astype(np.float32)
    made[0].write_array("parameters", parameters)
    made[0].write_array("samples", rng.standard_normal((batch_size, *shape)).astype(np.float32))
    made[0].write_array("labels", np.arange(batch_size, dtype=np.int32) % 2)
    return made


def compare(name: str, shape: tuple[int, ...], batch_size: int, lanes: int) -> list[tuple[str, str, int, float]]:
    """Of each launch, in waves of so many lanes: kernel, label, numbers that differ, largest difference."""
    machine = MachineDevice(lanes=lanes)
    both = executors(name, shape, batch_size, (Device(host_device()), machine))
    lines = []
    for phase in PHASES:
        pairs = zip(*(executor.bind(executor.plan.phase(phase), batch_size) for executor in both), strict=True)
        for ours, theirs in pairs:
            storages = ours.call.storages("read", "write", "update")
            before = {storage: whole(both[0], storage) for storage in storages}
            for storage, values in before.items():
                machine.memory.write(both[1].buffer_of(storage), values)
            ours.enqueue()
            theirs.enqueue()
            wrong, worst = 0, 0.0
            for storage, values in before.items():
                wanted, found = (whole(executor, storage) for executor in both)
                written, differ = (wanted.view("u4") != other.view("u4") for other in (values, found))
                wrong += int(differ.sum())
                if differ.any():
                    largest = np.abs(wanted[written | differ], dtype=np.float64).max(initial=1e-30)
                    error = np.abs(wanted[differ].astype(np.float64) - found[differ]).max() / largest
                    worst = max(worst, float(np.nan_to_num(error, nan=np.inf)))
            lines.append((ours.call.kernel, ours.call.label, wrong, worst))
    return lines


def whole(executor: Executor, storage: str) -> np.ndarray:
    """A storage's buffer as floats, whatever it holds."""
    buffer = executor.buffer_of(storage)
    values: np.ndarray = executor.device.memory.read(buffer, buffer.size // 4)
    return values


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--shape", type=int, nargs="+", default=(3, 16, 16))
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--lanes", type=int, default=32, choices=(32, 64), help="of a wave")
    parser.add_argument("--most", type=float, default=1e-5, help="of the largest number written")
    arguments = parser.parse_args()
    lines = compare(arguments.model, tuple(arguments.shape), arguments.batch_size, arguments.lanes)
    rows = [[kernel, label, str(wrong), f"{worst:.1e}"] for kernel, label, wrong, worst in lines]
    print(Table(("kernel", "first use", "differ", "by"), rows, "<<>>"))
    equal = sum(wrong == 0 for *_, wrong, _ in lines)
    print(f"\n{len(lines)} launches, {equal} equal bit for bit, the worst by {max(worst for *_, worst in lines):.1e}")
    sys.exit(any(worst > arguments.most for *_, worst in lines))


if __name__ == "__main__":
    main()
