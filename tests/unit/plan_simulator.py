"""Runs plans in NumPy: the few kernels that random graphs need, cell by cell through the index equation.

With it, hundreds of plans can be checked in seconds, and without OpenCL. Kernels read halos from memory, as real ones
do, so that a halo which memory reuse left dirty, or a blob overwritten too early, gives wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blobnet.blob import FloatArray
from blobnet.kernel_call import Array, Blob, KernelCall
from blobnet.planner import Plan
from tests.reference.activation import ACTIVATIONS

Kernel = Callable[["PlanSimulator", KernelCall], None]


class PlanSimulator:
    """Memory for a plan, and its phases."""

    def __init__(self, plan: Plan, kernels: dict[str, Kernel] | None = None) -> None:
        self.plan = plan
        self.kernels = {**KERNELS, **(kernels or {})}
        self.count = 0
        self.buffers = {
            name: np.zeros(buffer.bytes(plan.batch_size) // 4, np.float32) for name, buffer in plan.buffers.items()
        }

    def run(self, phase: str, count: int) -> None:
        """Runs one phase for ``count`` samples."""
        self.count = count
        for call in self.plan.phase(phase):
            self.kernels[call.kernel](self, call)

    def data(self, blob: Blob) -> FloatArray:
        """The data of a blob in memory: (count, units, height, width)."""
        return blob.layout.data(self._memory(blob.storage), self.count)

    def shifted(self, blob: Blob, y: int, x: int) -> FloatArray:
        """What lies ``y`` rows and ``x`` columns from the data of a blob, in its halo where it runs over."""
        step = y * blob.layout.unit_memory_width + x
        assert blob.layout.index(0, 0, 0, 0) + step >= 0
        layout = replace(
            blob.layout, unit_memory_width_offset=blob.layout.unit_memory_width_offset + step
        )  # Only the start of the view moves.
        return layout.data(self._memory(blob.storage), self.count).copy()

    def array(self, array: Array) -> FloatArray:
        """An array in memory."""
        elements = array.elements + self.count * array.per_sample
        return self._memory(array.storage)[array.offset : array.offset + elements]

    def whole(self, array: Array) -> FloatArray:
        """An array of the trainer's, whose size is not known to the layer."""
        return self._memory(array.storage)[array.offset :]

    def _memory(self, storage: str) -> FloatArray:
        return self.buffers[self.plan.placed[storage]]


def store(simulator: PlanSimulator, call: KernelCall, role: str, values: npt.NDArray[Any]) -> None:
    """Writes a blob, or adds to it where the call says so."""
    target = simulator.data(call.blobs[role])
    values = values.reshape(target.shape).astype(np.float32)
    target[...] = target + values if call.macros.get("ACCUMULATE") else values


def _input(simulator: PlanSimulator, call: KernelCall) -> None:
    target = simulator.data(call.blobs["OUTPUT"])
    samples = simulator.whole(call.arrays["SAMPLES"])[: target.size].reshape(target.shape)
    mean, deviation = (simulator.array(call.arrays[name]).reshape(1, -1, 1, 1) for name in ("MEAN", "DEVIATION"))
    target[...] = (samples - mean) / deviation


def _copy(simulator: PlanSimulator, call: KernelCall) -> None:
    store(simulator, call, "OUTPUT", simulator.data(call.blobs["INPUT"]).copy())


def _add(simulator: PlanSimulator, call: KernelCall) -> None:
    store(simulator, call, "OUTPUT", simulator.data(call.blobs["INPUT"]) + simulator.data(call.blobs["ADDEND"]))


def _zero_halo(simulator: PlanSimulator, call: KernelCall) -> None:
    layout = call.blobs["OUTPUT"].layout
    memory = simulator.buffers[simulator.plan.placed[call.blobs["OUTPUT"].storage]]
    planes = memory[: simulator.count * layout.memory_elements].reshape(-1, layout.unit_memory_elements)
    planes[:, layout.halo_mask()] = 0


def _activation(simulator: PlanSimulator, call: KernelCall) -> None:
    function = ACTIVATIONS[_function(call)][0]
    store(simulator, call, "OUTPUT", function(simulator.data(call.blobs["INPUT"]).astype(np.float64)))


def _activation_backward(simulator: PlanSimulator, call: KernelCall) -> None:
    name = _function(call)
    value = simulator.data(call.blobs["VALUE"]).astype(np.float64)
    delta = simulator.data(call.blobs["OUTPUT_DELTA"]).astype(np.float64)
    slopes: dict[str, Callable[[npt.NDArray[Any]], Any]] = {
        "linear": lambda y: np.ones_like(y),
        "relu": lambda y: y > 0,
        "leaky_relu": lambda y: np.where(y > 0, 1, 0.01),
        "elu": lambda y: np.where(y > 0, 1, y + 1),
        "sigmoid": lambda y: y * (1 - y),
        "softplus": lambda y: -np.expm1(-y),
        "tanh": lambda y: 1 - y * y,
    }
    if name == "softmax":
        result = value * (delta - (value * delta).sum(1, keepdims=True))
    elif name in slopes:
        result = delta * slopes[name](value)
    else:  # silu, gelu: from the input.
        result = ACTIVATIONS[name][1](value, delta)
    store(simulator, call, "INPUT_DELTA", result)


def _function(call: KernelCall) -> str:
    return str(call.macros.get("ACTIVATION", "ACTIVATION_softmax")).removeprefix("ACTIVATION_")


KERNELS: dict[str, Kernel] = {
    "input/forward": _input,
    "blob/copy": _copy,
    "join/add": _add,
    "blob/zero_halo": _zero_halo,
    "activation/forward": _activation,
    "activation/backward": _activation_backward,
    "activation/softmax_forward": _activation,
    "activation/softmax_backward": _activation_backward,
}
