"""A layer alone in memory that no cache holds, as its plan has it, and bursts of launches that are timed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blobnet import layers
from blobnet.device.device import Device
from blobnet.device.queue import event_seconds
from blobnet.examination.layer_cases import Case
from blobnet.execution.executor import Executor, Launch
from blobnet.implementations.base import FORWARD
from blobnet.layers.base import ParameterSpec
from blobnet.losses import MeanSquaredError
from blobnet.memory.blob import FloatArray
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning import Plan

#: Seconds that a burst of the same work takes at least, so that waiting for its end does not count: on the host, and on
#: another device.
BURST = {True: 0.005, False: 0.02}
_LONGEST_BURST = 500
#: Sets of buffers are used in turn until so many bytes lie between two uses of the same: more than any last cache of
#: a host, or of another device.
ROTATED_BYTES = {True: 1 << 27, False: 1 << 28}
MAX_SETS = 16
#: The part of a device's memory that all sets together may take.
_MEMORY_PART = 2
#: Seconds in which the threads of another library go to sleep before a burst.
_PAUSE = 0.01
#: The name of the layer that a case is about, in its plan, and how that is planned.
CASE_LAYER = "layer"
# NOTE: without reuse each phase can be repeated alone; it also needs no launches that clear halos.
CASE_SETTINGS: dict[str, Any] = {"loss": MeanSquaredError(), "training": True, "input_delta": True, "reuse": False}
#: Buffers that no measured launch uses.
_UNUSED = ("samples", "labels", "sample_metrics", "totals")


def burst_seconds(device: Device, rounds: Sequence[Sequence[Launch]], length: int) -> float:
    """Wall seconds of one of ``length`` rounds, which take turns; one more goes first, unmeasured."""
    for item in rounds[-1]:
        item.enqueue()
    device.queue.finish()
    start = time.perf_counter()
    for index in range(length):
        for item in rounds[index % len(rounds)]:
            item.enqueue()
    device.queue.finish()
    return (time.perf_counter() - start) / length


def launch_seconds(device: Device, rounds: Sequence[Sequence[Launch]], repeats: int) -> tuple[float, ...]:
    """The median seconds of every launch of a round, as the device tells them; ``rounds`` take turns."""
    times = []
    with device.queue.profiling() as launch:
        for index in range(repeats + 1):
            launches = rounds[index % len(rounds)]
            events = [launch(item.kernel, item.global_size, item.local_size) for item in launches]
            device.queue.finish()
            times.append([event_seconds(event) for event in events])
    return tuple(statistics.median(of_launch) for of_launch in zip(*times[1:], strict=True))


def burst_length(seconds: float, device: Device) -> int:
    """Return the number of repeats that make a burst of BURST seconds."""
    return max(1, min(_LONGEST_BURST, math.ceil(BURST[device.is_host] / max(seconds, 1e-7))))


def alternate(
    ours: Callable[[], float], theirs: Callable[[], float] | None, repeats: int
) -> tuple[list[float], list[float]]:
    """The values of two measurements that take turns, after one of each that does not count."""
    values: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for side, run in zip(values, (ours, theirs), strict=True):
            if run is not None:
                if theirs is not None:
                    time.sleep(_PAUSE)
                value = run()
                if repeat:
                    side.append(value)
    return values


def race(
    ours: Callable[[], float], theirs: Callable[[], float] | None, repeats: int
) -> tuple[float, float | None, float | None]:
    """The medians of two measurements that take turns, and of their ratios; None for what there is no other for."""
    own, others = alternate(ours, theirs, repeats)
    if not others:
        return statistics.median(own), None, None
    ratios = [other / mine for mine, other in zip(own, others, strict=True)]
    return statistics.median(own), statistics.median(others), statistics.median(ratios)


def values_like(elements: int) -> FloatArray:
    """Numbers of mean 0 and variance 1, cheap to make: zeros would flatter devices that save power on them."""
    block = np.random.default_rng(0).random(min(elements, 1_000_003), np.float32)
    return np.resize((block - np.float32(0.5)) * np.float32(math.sqrt(12)), elements)


def _weights(specs: dict[str, ParameterSpec]) -> dict[str, FloatArray]:
    """Values that keep the variance of what passes, without the time that an initializer takes for millions."""
    weights = {}
    for name, spec in specs.items():
        if len(spec.shape) > 1:
            scale = np.float32(1 / math.sqrt(math.prod(spec.shape[1:])))
            weights[name] = (values_like(spec.elements) * scale).reshape(spec.shape)
        else:
            # Not 0, so that a result without its bias shows.
            weights[name] = np.full(spec.shape, 1.0 if spec.initializer == "ones" else 0.1, np.float32)
    return weights


def case_graph(case: Case) -> Graph:
    """The layer after an input.

    Add gets a second input from a layer that does not fuse it, so that it launches itself.
    """
    shape = case.input
    node = layers.Input.of(shape, name="input")()
    inputs = [node]
    if case.layer.arity[0] == 2:
        kind = layers.MaxPool1D if shape.rank == 1 else layers.MaxPool2D
        inputs.insert(0, kind(1, name="branch")(node))
    return from_nodes(node, replace(case.layer, name=CASE_LAYER)(inputs))


def count_sets(device: Device, case: Case, plan: Plan, more: int = 0) -> int:
    """Sets of buffers, with ``more`` bytes each, that take turns: as many as outgrow a cache, and as there is room for.

    What a phase touches is less than what is there, the gradients of another phase for example.
    """
    size = more + sum(buffer.bytes(plan.batch_size) for name, buffer in plan.buffers.items() if name not in _UNUSED)
    touched = case.work(FORWARD, plan.batch_size).bytes
    room = device.info.memory // _MEMORY_PART
    return max(1, min(MAX_SETS, math.ceil(ROTATED_BYTES[device.is_host] / touched), room // size))


def filled_executor(
    device: Device, plan: Plan, scratch: Mapping[str, int] | None = None, *, debug: bool = False
) -> Executor:
    """A case's plan with memory, random numbers in all its blobs and parameters, and buffers of ``scratch`` bytes."""
    sizes = {**dict.fromkeys(_UNUSED, 16), **(scratch or {})}
    executor = Executor(device, plan, {name: device.memory.allocate(size) for name, size in sizes.items()}, debug=debug)
    executor.write_array("parameters", plan.request.parameters.pack(_weights(plan.request.graph.named_parameters)))
    for blob in {blob.storage: blob for blob in [*plan.outputs.values(), *plan.deltas.values()]}.values():
        memory = np.zeros(plan.batch_size * blob.numbers.memory_elements, blob.type.dtype)
        blob.write(memory, values_like(plan.batch_size * blob.shape.elements).reshape(plan.batch_size, -1))
        device.memory.write(executor.buffers[plan.placed[blob.storage]], memory)
    return executor
