"""Plans of many random graphs, run in NumPy: right numbers, and the same bits however memory is shared and reused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from blobnet.blob import FloatArray, Halo, Shape
from blobnet.graph import Graph
from blobnet.kernel_call import Blob, GlobalSize, KernelCall
from blobnet.layers.base import Layer, Placement, Site
from blobnet.planner import Plan
from tests.reference.compare import assert_close
from tests.simple_graphs import (
    Float64Array,
    MakeLayer,
    dense_graph,
    nested_graph,
    random_graph,
    random_samples,
    reference,
    residual_graph,
    training_plan,
)
from tests.unit.plan_simulator import Kernel, PlanSimulator, store

COUNT = 2
WAYS = [(True, True), (True, False), (False, False), (False, True)]


# -- layers in place of real ones: they read halos, change planes, keep memory of their own ----------------------------


@dataclass(frozen=True)
class _Shift(Layer):
    """output[y][x] = input[y + down][x + right] + input[y][x], zeros outside: as a convolution does."""

    down: int = 0
    right: int = 0

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def input_halo(self, inputs: Sequence[Shape]) -> Halo:
        return Halo(max(0, -self.down), max(0, self.down), max(0, -self.right), max(0, self.right))

    def delta_halo(self, inputs: Sequence[Shape]) -> Halo:
        return replace(self, down=-self.down, right=-self.right).input_halo(inputs)

    def same_pitch(self, inputs: Sequence[Shape]) -> bool:
        return True

    def forward(self, site: Site) -> list[KernelCall]:
        return [_call("toy/shift", {"INPUT": site.inputs[0], "OUTPUT": site.output}, DOWN=self.down, RIGHT=self.right)]

    def backward_data(self, site: Site) -> list[KernelCall]:
        if site.input_deltas[0] is None:
            return []
        blobs = {"INPUT": site.delta, "OUTPUT": site.input_deltas[0]}
        return [_call("toy/shift", blobs, DOWN=-self.down, RIGHT=-self.right, ACCUMULATE=int(site.accumulate[0]))]

    def reference_forward(self, x: Float64Array) -> Float64Array:
        result = x.copy()
        height, width = x.shape[2:]
        for y in range(height):
            for column in range(width):
                if 0 <= y + self.down < height and 0 <= column + self.right < width:
                    result[:, :, y, column] += x[:, :, y + self.down, column + self.right]
        return result

    def reference_backward(self, x: Float64Array, delta: Float64Array) -> Float64Array:
        return replace(self, down=-self.down, right=-self.right).reference_forward(delta)


@dataclass(frozen=True)
class _Pick(Layer):
    """Every second row and column: other planes behind it."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = inputs[0]
        return replace(shape, height=(shape.height + 1) // 2, width=(shape.width + 1) // 2)

    def forward(self, site: Site) -> list[KernelCall]:
        return [_call("toy/pick", {"INPUT": site.inputs[0], "OUTPUT": site.output})]

    def backward_data(self, site: Site) -> list[KernelCall]:
        if site.input_deltas[0] is None:
            return []
        blobs = {"OUTPUT_DELTA": site.delta, "INPUT_DELTA": site.input_deltas[0]}
        return [_call("toy/unpick", blobs, ACCUMULATE=int(site.accumulate[0]))]

    def reference_forward(self, x: Float64Array) -> Float64Array:
        return x[:, :, ::2, ::2].copy()

    def reference_backward(self, x: Float64Array, delta: Float64Array) -> Float64Array:
        result = np.zeros_like(x)
        result[:, :, ::2, ::2] = delta
        return result


@dataclass(frozen=True)
class _Positive(Layer):
    """max(input, 0) in place, with a mask in memory of its own: as dropout does; backward in two steps."""

    @property
    def elementwise(self) -> bool:
        return True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def placement(self, training: bool) -> Placement:
        return Placement.IN_PLACE

    def delta_placement(self) -> Placement:
        return Placement.IN_PLACE

    def forward(self, site: Site) -> list[KernelCall]:
        mask = site.memory("mask", per_sample=site.output.shape.elements)
        return [replace(_call("toy/mask", {"INPUT": site.inputs[0], "OUTPUT": site.output}), arrays={"MASK": mask})]

    def backward_data(self, site: Site) -> list[KernelCall]:
        if site.input_deltas[0] is None:
            return []
        blobs = {"OUTPUT_DELTA": site.delta, "INPUT_DELTA": site.input_deltas[0]}
        arrays = {"MASK": site.memory("mask"), "WORK": site.memory("work", 7, site.output.shape.elements)}
        first = _call("toy/unmask_first", {"OUTPUT_DELTA": site.delta})
        second = _call("toy/unmask_second", blobs, ACCUMULATE=int(site.accumulate[0]))
        return [replace(first, arrays=arrays), replace(second, arrays={"WORK": arrays["WORK"]})]

    def reference_forward(self, x: Float64Array) -> Float64Array:
        return np.maximum(x, 0)

    def reference_backward(self, x: Float64Array, delta: Float64Array) -> Float64Array:
        return delta * (x > 0)


def _call(kernel: str, blobs: dict[str, Blob], **macros: int) -> KernelCall:
    return KernelCall(kernel, kernel, GlobalSize(1), blobs, macros=macros)


def _shift(simulator: PlanSimulator, call: KernelCall) -> None:
    source = call.blobs["INPUT"]
    moved = simulator.shifted(source, int(call.macros["DOWN"]), int(call.macros["RIGHT"]))
    store(simulator, call, "OUTPUT", simulator.data(source) + moved)


def _pick(simulator: PlanSimulator, call: KernelCall) -> None:
    store(simulator, call, "OUTPUT", simulator.data(call.blobs["INPUT"])[:, :, ::2, ::2])


def _unpick(simulator: PlanSimulator, call: KernelCall) -> None:
    result = np.zeros_like(simulator.data(call.blobs["INPUT_DELTA"]))
    result[:, :, ::2, ::2] = simulator.data(call.blobs["OUTPUT_DELTA"])
    store(simulator, call, "INPUT_DELTA", result)


def _mask(simulator: PlanSimulator, call: KernelCall) -> None:
    values = simulator.data(call.blobs["INPUT"]).copy()
    simulator.array(call.arrays["MASK"])[...] = values.reshape(-1) > 0
    store(simulator, call, "OUTPUT", np.maximum(values, 0))


def _unmask_first(simulator: PlanSimulator, call: KernelCall) -> None:
    mask, delta = simulator.array(call.arrays["MASK"]), simulator.data(call.blobs["OUTPUT_DELTA"])
    work = simulator.array(call.arrays["WORK"])
    work[:7] = 0
    work[7:] = mask * delta.reshape(-1)


def _unmask_second(simulator: PlanSimulator, call: KernelCall) -> None:
    store(simulator, call, "INPUT_DELTA", simulator.array(call.arrays["WORK"])[7:])


TOYS: dict[str, Kernel] = {
    "toy/shift": _shift,
    "toy/pick": _pick,
    "toy/unpick": _unpick,
    "toy/mask": _mask,
    "toy/unmask_first": _unmask_first,
    "toy/unmask_second": _unmask_second,
}
OTHERS: list[MakeLayer] = [
    lambda generator: _Shift(down=int(generator.integers(-1, 2)), right=int(generator.integers(-2, 3))),
    lambda generator: _Pick(),
    lambda generator: _Positive(),
]


# -- runs --------------------------------------------------------------------------------------------------------------


def run(plan: Plan, samples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(output, dL/d input) of the second of two batches."""
    simulator = PlanSimulator(plan, TOYS)
    piece = plan.parameters.slices[f"{plan.graph.input.name}/deviation"]
    simulator.buffers["parameters"][piece.offset : piece.offset + piece.elements] = 1
    for batch in (10 * samples[::-1], samples):
        simulator.buffers["samples"][: batch.size] = batch.reshape(-1)
        simulator.run("forward", COUNT)
        simulator.run("loss", COUNT)
        output = simulator.data(plan.outputs[plan.graph.output.name]).copy()
        simulator.run("backward", COUNT)
        delta = simulator.data(plan.deltas[plan.graph.input.name]).copy()
    return output, delta


def check(graph: Graph) -> list[Plan]:
    """All ways to plan a graph give the reference's numbers, and the same bits."""
    samples = random_samples(graph, COUNT)
    expected = reference(graph, samples)
    plans, results = [], []
    for share, reuse in WAYS:
        plans.append(training_plan(graph, COUNT + 1, share=share, reuse=reuse))
        found = run(plans[-1], samples)
        what = f"share={share}, reuse={reuse}"
        for name, actual, wanted in zip(("output", "input delta"), found, expected, strict=True):
            absolute = 1e-5 * max(1.0, float(np.abs(wanted).max()))
            assert_close(actual.reshape(wanted.shape), wanted, relative=1e-5, absolute=absolute, what=f"{name}, {what}")
        results.append([values.tobytes() for values in found])
        assert results[-1] == results[0], f"{what}: bits differ from share=True, reuse=True"
    return plans


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs(seed: int) -> None:
    shared, kept, separate, _ = check(random_graph(seed, 4 + seed % 17, OTHERS))
    assert shared.bytes() <= kept.bytes() <= separate.bytes()
    assert len(shared.copies) <= len(separate.copies)


def test_residual_blocks_need_no_copies() -> None:
    plans = check(residual_graph())
    # The first sum's inputs are both needed backwards: it lies in place of none, and is written straight to its memory.
    assert _moves(plans[0]) == []
    sums = [call.macros["IN_PLACE"] for _, call in plans[0].calls if call.label == "add_1 forward"]
    assert sums == [0]


@pytest.mark.parametrize("make", [dense_graph, nested_graph])
def test_concat_needs_no_copies(make: Callable[[], Graph]) -> None:
    plans = check(make())
    assert _moves(plans[0]) == []
    assert _moves(plans[2]) != []


def _moves(plan: Plan) -> list[str]:
    """The labels of launches that copy a blob, and do not add it to another."""
    calls = [call for _, call in plan.calls if call.kernel == "blob/copy" and not call.macros["ACCUMULATE"]]
    return [call.label for call in calls if call.label != "loss"]
