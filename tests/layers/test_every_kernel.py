"""No kernel file is left out by the tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from blobnet.examination.checks import plan_alone
from blobnet.implementations import IMPLEMENTATIONS
from blobnet.launch.kernel_call import Blob, KernelCall, Tuning
from blobnet.launch.kernel_source import all_kernels, load
from blobnet.layers import Conv2D
from blobnet.losses import (
    BinaryCrossEntropy,
    CenterNet,
    CrossEntropy,
    Dice,
    Expression,
    Focal,
    Huber,
    MeanAbsoluteError,
    MeanSquaredError,
)
from blobnet.losses.distillation import Distilled, Teaching
from blobnet.memory.blob import BFLOAT16_CELLS, FLOAT32_CELLS, BlobLayout, Shape
from blobnet.network.parameters import parameter_table
from blobnet.network.patterns import frozen_parameters
from blobnet.optimizers import SGD
from blobnet.planning import make_plan
from blobnet.training import weight_buffers
from blobnet.training.sharpness import sharpness_calls
from tests.kinds import tuning_for
from tests.layers.test_optimizers import OPTIMIZERS, TABLE
from tests.small_graphs import COMPARED_GRAPHS, KNOWN_GRAPHS
from tests.two_ends import LOSSES as TWO_LOSSES
from tests.two_ends import two_ends

LOSSES = (
    Expression("function (P[N, C, ...], T[N, C, ...]) -> (L) { L[n] = +(P[n, c, ...] * T[n, c, ...]); }"),
    CrossEntropy(),
    Focal(),
    Dice(),
    BinaryCrossEntropy(),
    MeanSquaredError(),
    MeanAbsoluteError(),
    Huber(),
    CenterNet(),
    Distilled(CrossEntropy(), 4.0, 1.0),
    Teaching(4.0),
)
KINDS = {"cpu": False, "gpu": True}
TUNINGS = [tuning_for(kind) for kind in KINDS]
TUNINGS += [
    tuning_for(kind, only={name})
    for kind, lanes in KINDS.items()
    for name, item in IMPLEMENTATIONS.items()
    if item.lanes in (None, lanes)
]
TUNINGS += [tuning_for("gpu", only={name}, precision="bf16") for name in ("tensor", "cells")]
TUNINGS += [tuning_for("cpu", only={"fragments"}, precision="bf16", tensor_types=("bf16",))]


def compared_calls(tunings: Iterable[Tuning] = TUNINGS) -> Iterator[KernelCall]:
    """What the graphs launch whose gradients are compared (tests/train/test_plans.py), with the candidates that the
    cost model prefers and then with each implementation wherever it fits; and the optimizers' calls.
    """
    for tuning in tunings:
        for name in COMPARED_GRAPHS:
            graph = KNOWN_GRAPHS[name]()
            for training in (True, False):
                plan = make_plan(graph, 3, loss=CrossEntropy(), training=training, input_delta=training, tuning=tuning)
                yield from (call for _, call in plan.calls)
        # With frozen norms (tests/train/test_transfer.py).
        graph = KNOWN_GRAPHS["residual"]()
        table = parameter_table(graph, frozen_parameters(graph, "batchnorm_*"))
        plan = make_plan(graph, 3, loss=CrossEntropy(), training=True, tuning=tuning, parameters=table)
        yield from (call for _, call in plan.calls)
        # With batch norms over several shards (tests/train/test_shards.py).
        yield from (
            call for _, call in make_plan(graph, 3, loss=CrossEntropy(), training=True, tuning=tuning, shards=2).calls
        )
        # tests/layers/test_augmented.py
        yield from (call for _, call in make_plan(graph, 3, augmented=True, tuning=tuning).calls)
        plan = make_plan(graph, 3, augmented=True, policy_steps=3, sample_type="uint8", tuning=tuning)
        yield from (call for _, call in plan.calls)
        # Those of networks with several ends: tests/train/test_graphs.py.
        plan = make_plan(two_ends().graph, 3, loss=tuple(TWO_LOSSES.values()), training=True, tuning=tuning)
        yield from (call for _, call in plan.calls)
        for optimizer in OPTIMIZERS:
            yield from optimizer.calls(TABLE, tuning.model)
        # What a step does besides: tests/train/test_weights.py.
        sums = weight_buffers.Sums(TABLE.trainable_elements, range(0), 2)
        yield from sums.accumulate_call(0, tuning.model)
        yield from sums.merge_call(1, tuning.model)
        yield from sums.finish_calls(tuning.model)
        yield from weight_buffers.average_call(TABLE, tuning.model)
        for calls in sharpness_calls(TABLE, SGD(sam=2.0, sam_adaptive=True), 6, tuning.model):
            yield from calls
    # Losses alone: tests/layers/test_losses.py.
    output = Blob("output", BlobLayout.padded(Shape(3, 4, 5)))
    for loss in LOSSES:
        yield from loss.calls(output, output, Tuning(), 3)


def calls_of_cells() -> list[KernelCall]:
    """Those of blobs of cells alone: tests/layers/test_convolution_cells.py, test_rows.py, test_patches_rows.py."""
    apart, product = Conv2D(8, 3, groups=8), Conv2D(8, 3)
    tuning = tuning_for("gpu", precision="bf16", only={"cellwise"})
    site = plan_alone(apart, Shape(8, 5, 5), 3, tuning)[1].in_cells(BFLOAT16_CELLS)
    calls = [*apart.forward(site), *apart.backward_parameters(site), *apart.backward_data(site)]
    for layer, only in (apart, "depthwise_rows"), (product, "rows"), (product, "patches_rows"):
        site = plan_alone(layer, Shape(8, 5, 5), 3, tuning_for("cpu", only={only}))[1].in_cells(FLOAT32_CELLS)
        calls += layer.forward(site)
    return calls


@pytest.mark.long
def test_every_kernel_is_in_a_plan_that_is_tested() -> None:
    # The kernels of bench compute nothing that anybody reads; tests/cli/test_bench.py runs them.
    sources = [load(name) for name in all_kernels() if not name.startswith("bench/")]
    sources += [source.of_several for source in sources if source.combined]
    launched = {call.source.name for call in (*compared_calls(), *calls_of_cells())}
    missing = {source.name for source in sources} - launched
    assert not missing, "tests/small_graphs.py needs a graph that launches them"
