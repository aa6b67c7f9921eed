"""All passes together, without a device: plans are run on symbols (tests/symbolic.py)."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from blobnet import layers, models
from blobnet.errors import KernelError, OptionError, PlanError, ShapeError
from blobnet.launch.kernel_call import Tuning
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.network.graph import Graph, from_nodes, sequential
from blobnet.network.parameters import READ_OVERRUN, parameter_table
from blobnet.planning import Plan, combining, make_plan
from tests.kinds import tuning_for
from tests.small_graphs import KNOWN_GRAPHS, random_graph
from tests.symbolic import TUNING, PlanBrokenError, SymbolicExecutor, expected

LOSS = MeanSquaredError()
BATCH, SHORT = 3, 2
#: Random graphs, in blocks of a test each.
BLOCK, BLOCKS = 15, 6


def plan_of(graph: Graph, *, training: bool = True, share: bool = True, reuse: bool = True) -> Plan:
    return make_plan(
        graph,
        BATCH,
        loss=LOSS if training else None,
        training=training,
        input_delta=training,
        tuning=TUNING,
        share=share,
        reuse=reuse,
    )


def differences(plan: Plan) -> list[str]:
    """What comes out wrong for a short batch, in memory that a full batch has used before."""
    executor = SymbolicExecutor(plan)
    executor.run(BATCH, batch=1)
    outcome = executor.run(SHORT, batch=2)
    wanted = expected(
        plan.request.graph, plan.request.parameters, SHORT, 2, training=plan.request.training, loss=plan.request.loss
    )
    return wanted.differences(outcome)


# -- every value is where it is read -----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_graphs(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        graph = random_graph(seed)
        # The plan that users train with for every graph, the others for some.
        options: list[tuple[bool, ...]] = [(True, True, True)]
        if seed % 3 == 0:
            options.append((False, True, True))
        if seed % 20 == 0:
            options = list(itertools.product((True, False), repeat=3))
        for training, share, reuse in options:
            found = differences(plan_of(graph, training=training, share=share, reuse=reuse))
            assert not found, f"seed {seed}, training={training}, share={share}, reuse={reuse}: {found}"


@pytest.mark.parametrize("reuse", [True, False], ids="reuse={}".format)
@pytest.mark.parametrize("share", [True, False], ids="share={}".format)
@pytest.mark.parametrize("training", [True, False], ids="training={}".format)
@pytest.mark.parametrize("name", KNOWN_GRAPHS)
def test_known_graphs(name: str, training: bool, share: bool, reuse: bool) -> None:
    assert not differences(plan_of(KNOWN_GRAPHS[name](), training=training, share=share, reuse=reuse))


def test_arrays_fit_their_buffers_part_by_part() -> None:
    tuning = tuning_for("gpu", only={"winograd", "strip", "direct"})
    plan = make_plan(KNOWN_GRAPHS["many units"](), BATCH, loss=CrossEntropy(), training=True, tuning=tuning)
    arrays = [array for _, call in plan.calls for array in call.arrays.values() if not array.persistent]
    assert any(array.offset for array in arrays)
    for array in arrays:
        buffer = plan.buffers[plan.placed[array.storage]]
        assert all(array.end(count) <= buffer.size(count) for count in (0, 1, BATCH))


def test_large_arrays_share_memory_though_small_ones_live_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "MAX_BYTES", 0)  # Those of calls that are combined live together.
    # The places of the maxima of each pooling layer are kept for backward; what convolutions need is not.
    node = images = layers.Input(64, 32, 32)()
    for _ in range(3):
        node = layers.MaxPool2D(2)(layers.Conv2D(64, 3, padding=1)(node))
    graph = from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node)))
    plan = make_plan(graph, 16, loss=CrossEntropy(), training=True, tuning=tuning_for("gpu"))
    largest = {array.storage for _, call in plan.calls if "winograd" in call.kernel for array in call.arrays.values()}
    assert len({plan.placed[storage] for storage in largest if "between" in storage}) == 1
    assert len([storage for storage in largest if "between" in storage]) > 3


def test_sum_of_a_blob_and_its_flattened_self() -> None:
    # Flatten shares the blob's memory; were the sum in place of it, the other inputs would change while it adds.
    rows = layers.Input(5)()
    node = layers.BatchNorm()(layers.Dense(3)(rows))
    total = layers.Add()([node, layers.Flatten()(node), node])
    graph = from_nodes(rows, layers.Dense(3)(total))
    for training in (True, False):
        assert not differences(plan_of(graph, training=training))


@pytest.mark.parametrize("block", range(4))
def test_random_layouts_and_sizes(block: int) -> None:
    """Every blob has the zeros and the pitch that its readers ask for; sharing and reuse never cost memory."""
    for seed in range(1000 + 15 * block, 1015 + 15 * block):
        graph = random_graph(seed)
        shared, kept, separate = (
            plan_of(graph, share=share, reuse=reuse) for share, reuse in ((True, True), (True, False), (False, False))
        )
        assert shared.bytes() <= kept.bytes() <= separate.bytes(), f"seed {seed}"
        assert len(shared.copies) <= len(separate.copies), f"seed {seed}"
        for plan in (shared, separate):
            check_layouts(plan, seed)


def check_layouts(plan: Plan, seed: int) -> None:
    for vertex in plan.request.graph.vertices[1:]:
        shapes, where = plan.request.graph.input_shapes(vertex), f"seed {seed}, {vertex.name}"
        names = [plan.request.graph.vertices[source].name for source in vertex.inputs]
        inputs = [plan.outputs[name].layout for name in names]
        deltas = [plan.deltas[name].layout for name in (vertex.name, *names) if name in plan.deltas]
        assert all(layout.holds(vertex.layer.input_halo(shapes)) for layout in inputs), where
        if vertex.name in plan.deltas:
            assert plan.deltas[vertex.name].layout.holds(vertex.layer.delta_halo(shapes)), where
        if vertex.layer.same_pitch(shapes):
            layouts = [*inputs, plan.outputs[vertex.name].layout, *deltas]
            assert len({layout.width.memory for layout in layouts if layout.width.size > 1}) <= 1, where


def test_a_gpu_has_no_zeros_that_nobody_reads() -> None:
    images = layers.Input(2, 6, 5)()
    node = layers.Conv2D(3, 1)(images)
    graph = from_nodes(images, layers.Conv2D(2, 3, padding=1)(layers.Conv2D(4, 1)(layers.BatchNorm()(node))))

    def contiguous(tuning: Tuning) -> list[bool]:
        plan = make_plan(graph, BATCH, loss=LOSS, training=True, tuning=tuning)
        return [blob.layout.is_contiguous for blob in plan.outputs.values()]

    # Only what the 3x3 convolution reads has a halo; on a CPU its pitch spreads.
    assert contiguous(tuning_for("gpu")) == [True, True, True, False, True]
    assert not any(contiguous(tuning_for("cpu")))


@pytest.mark.parametrize("batch_size", [1, 7, 64, 300])
def test_work_items_of_a_gpu_have_cells_of_a_bias_to_sum(batch_size: int) -> None:
    images = layers.Input(2, 12, 10)()
    graph = from_nodes(images, layers.Dense(200)(layers.Flatten()(layers.Conv2D(9, 3)(images))))
    plan = make_plan(graph, batch_size, loss=LOSS, training=True, tuning=tuning_for("gpu"))
    found = [call for _, call in plan.calls if call.kernel == "gradient/unit_bias"]
    for call in found:
        cells = batch_size * call.blobs["OUTPUT_DELTA"].shape.positions
        items, splits = call.global_size.width, call.macros["SPLITS"]
        assert call.local_size == (items, 1, 1)
        assert items == min(256, 1 << (cells - 1).bit_length())
        assert (splits - 1) * items < 2 * cells
        assert splits == call.global_size.height <= batch_size * 2
    every = [one for _, call in plan.calls for one in call.each]
    sums = [call.label for call in every if call.kernel == "gradient/reduce" and "bias" in call.label]
    assert sums == [call.label for call in found if call.macros["SPLITS"] > 1]
    if batch_size == 64:  # The dense layer's, in a launch of a group for each unit.
        assert [call.macros["SPLITS"] for call in found] == [1, 32]


def test_halos_are_for_the_kernels_that_were_chosen() -> None:
    """Minimal filtering reads data cells alone, in all directions; products read the padding."""
    images = layers.Input(2, 12, 12)()
    first = layers.Conv2D(16, 1)(images)
    node = layers.Activation("relu")(layers.BatchNorm()(layers.Conv2D(16, 3, padding=1)(first)))
    pooled = layers.MaxPool2D(3, 2, padding=1)(node)
    graph = from_nodes(images, layers.Conv2D(4, 1)(pooled))
    products, filtering = frozenset({"tiled", "strip", "dot"}), frozenset({"winograd2", "winograd4"})

    def padded(broken: frozenset[str], every_halo: bool = False) -> tuple[set[str], int]:
        tuning = tuning_for("gpu", broken=broken)
        plan = make_plan(graph, 8, loss=LOSS, training=True, tuning=tuning, every_halo=every_halo)
        kernels = {call.kernel for _, call in plan.calls if call.label.startswith("conv2d_2")}
        assert ("convolution/winograd_patch" in kernels) == (broken == products)
        assert plan.for_batch(8).calls == plan.calls
        blobs = {f"{name} output": blob for name, blob in plan.outputs.items()}
        blobs |= {f"{name} delta": blob for name, blob in plan.deltas.items()}
        cleared = sum(call.kernel == "blob/zero_halo" for _, call in plan.calls)
        return {name for name, blob in blobs.items() if not blob.layout.is_contiguous}, cleared

    # The delta of the batch norm is in place of the activation's, which is the convolution's.
    read = {"conv2d_1 output", "conv2d_2 delta"}
    shared = {"batchnorm_1 delta", "activation_1 delta"}
    assert padded(products) == (set(), 0)
    assert padded(products, every_halo=True)[0] == read | shared
    assert padded(filtering)[0] == read | shared
    assert padded(filtering)[1] > 0


# -- the symbols would notice ------------------------------------------------------------------------------------------


def broken(plan: Plan) -> bool:
    try:
        return bool(differences(plan))
    except PlanBrokenError:
        return True


def test_symbols_notice_memory_that_is_reused_too_early() -> None:
    plan = plan_of(KNOWN_GRAPHS["residual"](), reuse=False)
    assert not broken(plan)
    blobs = [name for name in plan.placed if name.endswith(("output", "delta"))][::3]
    noticed = 0
    for first, second in itertools.combinations(blobs, 2):
        placed = {**plan.placed, second: first}
        size = max(plan.buffers[name].per_sample for name in (first, second))
        buffers = {**plan.buffers, first: dataclasses.replace(plan.buffers[first], per_sample=size)}
        noticed += broken(dataclasses.replace(plan, placed=placed, buffers=buffers))
    # Some pairs may really share memory: those with the same planes that do not live at the same time.
    assert noticed > len(blobs) * (len(blobs) - 1) / 2 * 0.8


@pytest.mark.parametrize("name", ["three readers", "concats that share"])
def test_symbols_notice_a_wrong_sum(name: str) -> None:
    plan = plan_of(KNOWN_GRAPHS[name]())
    for position, (phase, call) in enumerate(plan.calls):
        if "ACCUMULATE" not in call.macros:
            continue
        macros = {**call.macros, "ACCUMULATE": 1 - int(call.macros["ACCUMULATE"])}
        changed = (phase, dataclasses.replace(call, macros=macros))
        calls = (*plan.calls[:position], changed, *plan.calls[position + 1 :])
        assert broken(dataclasses.replace(plan, calls=calls)), call.label


def test_symbols_notice_a_launch_that_is_missing() -> None:
    plan = plan_of(KNOWN_GRAPHS["plain"]())
    for position, (_, call) in enumerate(plan.calls):
        # Metrics are no symbols here, and a halo may be zeroed that would have been 0 all the same.
        if call.kernel in ("loss/accumulate", "blob/zero_halo"):
            continue
        without = plan.calls[:position] + plan.calls[position + 1 :]
        assert broken(dataclasses.replace(plan, calls=without)), call.label


# -- halos of reused memory --------------------------------------------------------------------------------------------


def cleared(plan: Plan) -> list[str]:
    return [call.label for _, call in plan.calls if call.kernel == "blob/zero_halo"]


def test_halos_are_zeroed_where_reused_memory_changes_geometry() -> None:
    shrinking = [layers.Input(1, 12, 12), *(layers.Conv2D(2, 3, 2, 1, name=f"conv{step}") for step in range(3))]
    graph = sequential([*shrinking, layers.Dense(3)])
    assert not cleared(plan_of(graph, reuse=False))
    plan = plan_of(graph)
    mixed = {
        buffer
        for buffer in plan.buffers
        if len({blob.layout.plane for _, call in plan.calls for blob in call.blobs.values()
                if plan.placed[blob.storage] == buffer}) > 1
    }  # fmt: skip
    assert mixed, "the test needs memory that changes geometry"
    assert {plan.placed[label.removesuffix(" zero halo")] for label in cleared(plan)} <= mixed
    assert cleared(plan)
    assert not broken(plan)
    for label in cleared(plan):
        without = tuple((phase, call) for phase, call in plan.calls if call.label != label)
        assert broken(dataclasses.replace(plan, calls=without)), label


def test_no_halo_is_zeroed_where_the_geometry_stays() -> None:
    images = layers.Input(2, 6, 6)()
    node = images
    for _ in range(4):
        node = layers.Conv2D(2, 3, padding=1)(node)
    graph = from_nodes(images, layers.Concat()([node, layers.Conv2D(2, 3, padding=1)(node)]))
    plan = plan_of(graph, training=False)
    assert len({plan.placed[blob.storage] for blob in plan.outputs.values()}) < 4
    assert not cleared(plan)
    assert not broken(plan)


# -- shared memory -----------------------------------------------------------------------------------------------------


def test_in_place_layers_and_joins_launch_nothing() -> None:
    plan = plan_of(KNOWN_GRAPHS["in place around concat"]())
    assert plan.copies == []
    separate = plan_of(KNOWN_GRAPHS["in place around concat"](), share=False)
    assert len(separate.copies) >= 4
    assert len(plan.calls) < len(separate.calls)


def joins_of_joins() -> Graph:
    """Branches joined by Concat, within another Concat."""
    images = layers.Input(2, 4, 5)()
    stem = layers.Activation("tanh")(images)
    inner = layers.Concat()([layers.Activation("relu")(stem), layers.Activation("sigmoid")(stem)])
    outer = layers.Concat()([layers.Activation("elu")(stem), inner, layers.Activation("softplus")(stem)])
    return from_nodes(images, layers.Activation("tanh")(outer))


@pytest.mark.parametrize("make", [KNOWN_GRAPHS["dense blocks"], joins_of_joins])
def test_joins_within_joins_need_no_copies(make: Callable[[], Graph]) -> None:
    plan = plan_of(make())
    assert plan.copies == []
    assert not differences(plan)
    assert plan_of(make(), share=False).copies != []


def test_sums_need_no_copy_wherever_they_lie() -> None:
    # The first sum cannot lie in place of one of its inputs, the second one can.
    images = layers.Input(2, 4, 5)()
    node = layers.Activation("tanh")(images)
    node = node + layers.Activation("sigmoid")(layers.Activation("relu")(node))
    around = layers.Activation("gelu")(node)
    node = around + layers.Activation("sigmoid")(layers.Activation("silu")(node))
    plan = plan_of(from_nodes(images, layers.Activation("relu")(node)))
    assert plan.copies == []
    added = [call.label for call in plan.phase("forward") if call.kernel == "join/add"]
    assert added == ["add_1 forward", "add_2 forward"]
    assert not differences(plan)


def test_two_joins_of_one_blob_need_a_copy_that_the_plan_shows() -> None:
    plan = plan_of(KNOWN_GRAPHS["concats that share"]())
    assert plan.copies
    assert all(label.split()[0].startswith("concat") for label in plan.copies)


def test_an_activation_is_fused_unless_somebody_wants_the_value_before() -> None:
    def kernels(graph: Graph, *, training: bool) -> list[str]:
        return [call.kernel for call in plan_of(graph, training=training).phase("forward")]

    images = layers.Input(2, 4, 4)()
    convolution = layers.Conv2D(2, 3, padding=1)(images)
    relu = layers.Activation("relu")(convolution)
    assert "activation/forward" not in kernels(from_nodes(images, relu), training=True)
    # The derivative of gelu needs the value before, that of relu does not.
    gelu = layers.Activation("gelu")(convolution)
    assert "activation/forward" in kernels(from_nodes(images, gelu), training=True)
    assert "activation/forward" not in kernels(from_nodes(images, gelu), training=False)
    assert "activation/forward" in kernels(from_nodes(images, relu + convolution), training=False)
    assert "activation/forward" not in kernels(
        from_nodes(images, layers.Activation("relu")(relu + images)), training=True
    )


@pytest.mark.parametrize("function", ["relu", "gelu"])
def test_an_activation_behind_a_batch_norm_is_nothing_but_a_name(function: str) -> None:
    images = layers.Input(2, 4, 4)()
    norm = layers.BatchNorm()(layers.Conv2D(2, 3, padding=1)(images))
    activated = layers.Conv2D(2, 3, padding=1)(layers.Activation(function)(norm))
    plan = plan_of(from_nodes(images, activated))
    assert not [call.label for _, call in plan.calls if call.kernel.startswith("activation/")]
    assert plan.bytes() == plan_of(from_nodes(images, layers.Conv2D(2, 3, padding=1)(norm))).bytes()
    # Where somebody wants the value before, both are kept, and the activation has calls of its own.
    plan = plan_of(from_nodes(images, activated + norm))
    assert [call.kernel for _, call in plan.calls if call.kernel.startswith("activation/")] == [
        "activation/forward",
        "activation/backward",
    ]


def test_a_delta_that_a_batch_norm_reads_through_its_activation_is_there_until_then() -> None:
    # The sum's delta is that of both its inputs: the batch norm must not add to it while it still reads it.
    images = layers.Input(2, 4, 4)()
    node = layers.Conv2D(2, 3, padding=1)(images)
    graph = from_nodes(images, layers.Activation("relu")(layers.BatchNorm()(node)) + node)
    plan = plan_of(graph)
    assert not differences(plan)
    (call,) = (call for _, call in plan.calls if call.kernel == "normalization/backward_data")
    assert plan.placed[call.blobs["OUTPUT_DELTA"].storage] != plan.placed[call.blobs["INPUT_DELTA"].storage]


def fused(node: layers.Node, *, training: bool = False, with_symbols: bool = True) -> dict[str, str]:
    """Which layers the kernels of which compute, in a graph whose input is ``images`` and that ends with ``node``.

    Symbols know neither generated kernels nor parts of numbers: tests/train/test_plans.py computes with these.
    """
    entry = node
    while entry.inputs:
        entry = entry.inputs[0]
    plan = plan_of(from_nodes(entry, node), training=training)
    assert not with_symbols or not differences(plan)
    return dict(plan.fused)


def convolved(source: layers.Node, name: str, **options: bool | str) -> layers.Node:
    return layers.Conv2D(source.shape.units, 3, padding=1, name=name, **options)(source)  # type: ignore[arg-type]


def normed(source: layers.Node) -> layers.Node:
    return layers.BatchNorm(name="norm")(source)


def summed(*nodes: layers.Node) -> layers.Node:
    return layers.Add(name="sum")(nodes)


def activated(source: layers.Node) -> layers.Node:
    return layers.Activation("relu", name="relu")(source)


@pytest.fixture
def images() -> layers.Node:
    return layers.Input(2, 4, 4, name="images")()


def test_norm_residual_and_activation_are_fused(images: layers.Node) -> None:
    first = convolved(images, "first")
    for inputs in ((first, normed(convolved(first, "second"))), (normed(convolved(first, "second")), first)):
        assert fused(activated(summed(*inputs))) == dict.fromkeys(("norm", "sum", "relu"), "second")
    # In training a norm needs all values before it; but what is behind it does not.
    behind = activated(summed(first, normed(convolved(first, "second"))))
    assert fused(behind, training=True) == dict.fromkeys(("sum", "relu"), "norm")
    plain = activated(summed(first, convolved(first, "second")))
    assert fused(plain, training=True) == {"sum": "second", "relu": "second"}


def test_epilogues_have_any_order(images: layers.Node) -> None:
    first = convolved(images, "first")
    assert fused(summed(first, activated(convolved(first, "second")))) == {"relu": "second", "sum": "second"}
    assert fused(normed(summed(first, convolved(first, "second")))) == {"sum": "second", "norm": "second"}
    assert fused(summed(first, normed(activated(convolved(first, "second"))))) == dict.fromkeys(
        ("relu", "norm", "sum"), "second"
    )
    assert fused(normed(convolved(images, "first", bias="position"))) == {"norm": "first"}
    # There it is added to a cell with the bias, before all else.
    positioned = convolved(first, "second", bias="position")
    assert fused(activated(summed(first, positioned))) == dict.fromkeys(("sum", "relu"), "second")
    assert fused(summed(first, activated(positioned))) == {"relu": "second"}
    assert fused(activated(normed(images))) == {"relu": "norm"}
    # Kernels read one other blob.
    again = layers.Activation("tanh", name="again")(summed(first, convolved(first, "second")))
    assert fused(layers.Add(name="last")([first, again])) == dict.fromkeys(("sum", "again"), "second")


def test_what_is_behind_a_concat_is_fused_into_its_parts(images: layers.Node) -> None:
    first, second = convolved(images, "first"), convolved(images, "second")
    pool = layers.MaxPool2D(1, name="pool")(second)
    assert fused(activated(layers.Concat(name="both")([first, pool]))) == {"relu": "both"}
    # What is done to a part comes before it; a part may be a concat.
    parts = layers.Concat(name="parts")([layers.Activation("tanh", name="tanh")(first), second])
    all_of_them = activated(normed(layers.Concat(name="both")([parts, convolved(images, "third")])))
    assert fused(all_of_them, with_symbols=False) == {"tanh": "first", "norm": "both", "relu": "both"}
    plan = plan_of(from_nodes(images, all_of_them), training=False)
    assert [call.kernel.partition("/")[0] for call in plan.phase("forward")] == ["input", *["convolution"] * 3]
    # Somebody wants what is in a part; a part is the samples themselves; a part is copied.
    assert fused(layers.Concat()([activated(layers.Concat(name="both")([first, second])), first])) == {}
    assert fused(activated(layers.Concat(name="both")([images, first]))) == {}
    assert fused(activated(layers.Concat(name="both")([first, first]))) == {}


def test_gates_are_fused(images: layers.Node) -> None:
    gates = layers.Dense(2, name="gates")(layers.GlobalAveragePool(name="means")(images))
    first = convolved(images, "first")
    times = layers.Multiply(name="times")([gates, first])
    assert fused(activated(times), with_symbols=False) == {"times": "first", "relu": "first"}
    total = layers.Add(name="sum")([gates, first])
    assert fused(total, with_symbols=False) == {"sum": "first"}
    # In training the derivative of a product reads the values, that of a sum does not.
    assert fused(times, training=True, with_symbols=False) == {}
    assert fused(total, training=True, with_symbols=False) == {"sum": "first"}
    # What comes behind the values in the order of the graph comes too late for their kernel.
    times = layers.Multiply(name="times")([first, gates])
    assert fused(activated(times), with_symbols=False) == {"relu": "times"}
    own = layers.Dense(2, name="gates")(layers.GlobalAveragePool(name="means")(first))
    assert fused(activated(layers.Multiply(name="times")([first, own])), with_symbols=False) == {"relu": "times"}


def test_only_a_residual_that_is_there_before_is_fused(images: layers.Node) -> None:
    first, second = convolved(images, "first"), convolved(images, "second")
    assert fused(summed(first, second)) == {"sum": "second"}
    # The second one is wanted later, so that the sum runs in place of the first, before which there is no second.
    assert fused(layers.Concat()([summed(first, second), second])) == {}
    assert fused(summed(first, first)) == {}
    assert fused(summed(images, first, second)) == {}


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_bytes_are_the_sum_of_the_buffers() -> None:
    plan = plan_of(KNOWN_GRAPHS["plain"]())
    for count in (1, 2, BATCH, 1000):
        sizes = [
            4
            * (READ_OVERRUN + max(own + count * more for own, more in [(item.elements, item.per_sample), *item.others]))
            for item in plan.buffers.values()
        ]
        assert plan.bytes(count) == sum(sizes)
        assert plan.largest_allocation(count) == max(sizes)
    assert plan.bytes() == plan.bytes(BATCH)
    assert plan.bytes(1) < plan.bytes(2)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("training", [True, False])
def test_what_shares_a_buffer_is_used_in_turn(kind: str, training: bool) -> None:
    """By the launches of the plan as they stand, with those that run rarely first. It is as large as the largest."""
    shared = 0
    for make in KNOWN_GRAPHS.values():
        loss = CrossEntropy() if training else None
        plan = make_plan(make(), BATCH, loss=loss, training=training, tuning=tuning_for(kind))
        uses = defaultdict[str, defaultdict[str, list[int]]](lambda: defaultdict(list))
        for position, (_, call) in enumerate(plan.calls):
            for storage in call.storages("read", "write", "update"):
                uses[plan.placed[storage]][storage].append(position)
        sizes = defaultdict[str, list[int]](list)
        for _, call in plan.calls:
            for blob in call.blobs.values():
                sizes[plan.placed[blob.storage]].append(BATCH * blob.layout.memory_elements)
            for array in call.arrays.values():
                sizes[plan.placed[array.storage]].append(array.end(BATCH))
        for name, places in uses.items():
            assert len(places) == 1 + len(plan.buffers[name].others)
            assert name in plan.persistent or plan.buffers[name].size(BATCH) == max(sizes[name])
            for first, second in itertools.pairwise(sorted(places.values())):
                shared += 1
                assert max(first) < min(second), name
    assert shared >= 3


def test_every_blob_fits_its_buffer() -> None:
    for make in KNOWN_GRAPHS.values():
        plan = plan_of(make())
        for _, call in plan.calls:
            for blob in call.blobs.values():
                assert blob.layout.memory_elements <= plan.buffers[plan.placed[blob.storage]].size(1)
            for array in call.arrays.values():
                buffer = plan.buffers[plan.placed[array.storage]]
                assert all(array.end(count) <= buffer.size(count) for count in (0, 1, BATCH))


def test_reuse_needs_less_memory() -> None:
    # Inference of a chain needs two buffers at most; every layer has one of its own without reuse.
    graph = sequential([layers.Input(4, 16, 16), *(layers.Conv2D(4, 3, padding=1) for _ in range(6))])
    assert plan_of(graph, training=False).bytes(64) < 0.5 * plan_of(graph, training=False, reuse=False).bytes(64)
    assert plan_of(graph).bytes(64) < plan_of(graph, reuse=False).bytes(64)


@pytest.mark.parametrize("reserved", [0, 12345])
def test_largest_batch_is_the_largest_that_fits(reserved: int) -> None:
    plan = plan_of(KNOWN_GRAPHS["plain"]())
    unlimited = 1 << 62
    for count in (1, 2, 3, 7, 8, 9, 1000):
        other = plan.for_batch(count)
        exact = other.bytes() + reserved
        assert plan.largest_batch(exact, unlimited, reserved) == count
        assert plan.largest_batch(exact - 1, unlimited, reserved) == count - 1
        assert plan.largest_batch(unlimited, other.largest_allocation(), reserved) >= count
        largest = plan.largest_batch(unlimited, other.largest_allocation() - 1, reserved)
        assert largest < count
        assert largest == 0 or plan.for_batch(largest).largest_allocation() < other.largest_allocation()
    assert plan.largest_batch(0, 0, reserved) == 0
    assert plan.largest_batch(reserved, unlimited, reserved) == 0


def test_the_largest_batch_is_one_that_kernels_can_count() -> None:
    """However much memory there is; a compiled kernel's elements have numbers of 32 bits."""
    plan = make_plan(sequential([layers.Input(3, 40, 40), layers.ConvTranspose2D(64, 2, stride=2)]), 4)
    largest = plan.largest_batch(1 << 60, 1 << 60)
    assert plan.for_batch(largest).batch_size == largest > 4
    with pytest.raises(ShapeError, match="must have less than 2\\^31 elements"):
        plan.for_batch(largest + 1)


@pytest.mark.parametrize("memory", [16 << 20, 40 << 20])
def test_the_largest_batch_counts_its_own_work_space(memory: int) -> None:
    graph = sequential([layers.Input(24, 7, 7), layers.Conv2D(40, 3, padding=1), layers.Flatten(), layers.Dense(7)])
    # By minimal filtering, from some batch on.
    plan = make_plan(graph, 16, loss=LOSS, training=True, tuning=tuning_for("gpu", compute_units=8))
    too_many = plan._largest_count(memory, memory, 0)
    assert not plan.for_batch(too_many).fits(memory, memory), "it needs more work space than the plan for 16"
    for start in (plan, plan.for_batch(1), plan.for_batch(too_many)):
        found = start.largest_batch(memory, memory)
        assert plan.for_batch(found).fits(memory, memory)
        assert not plan.for_batch(found + 1).fits(memory, memory)


def test_parameters_lie_by_kind_and_pack_both_ways() -> None:
    graph = KNOWN_GRAPHS["plain"]()
    table = parameter_table(graph)
    specs = graph.named_parameters
    assert set(table.slices) == set(specs)
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(spec.shape).astype(np.float32) for name, spec in specs.items()}
    flat = table.pack(weights)
    assert flat.size == table.elements
    for name, values in table.unpack(flat).items():
        assert np.array_equal(values, weights[name]), name
    for name, piece in table.slices.items():
        end = piece.offset + piece.elements
        assert (end <= table.groups[0].decayed_elements) == (specs[name].decayed and specs[name].trainable), name
        assert (end <= table.trainable_elements) == table.trains(name) == specs[name].trainable, name
    ranges = sorted((piece.offset, piece.offset + piece.elements) for piece in table.slices.values())
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(ranges))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "8", None])
def test_batch_size_must_be_a_positive_int(batch_size: object) -> None:
    with pytest.raises(OptionError, match=r"plan: batch_size must be an int of at least 1\. Received batch_size="):
        make_plan(KNOWN_GRAPHS["vectors"](), batch_size)  # type: ignore[arg-type]


def test_training_needs_a_loss() -> None:
    with pytest.raises(OptionError, match=r"plan: training needs a loss\. Received loss=None\."):
        make_plan(KNOWN_GRAPHS["vectors"](), 1, training=True)


@pytest.mark.parametrize(
    ("shape", "units", "largest"),
    [((1, 1 << 15, (1 << 15) + 1), 0, "a sample of "), ((1, 1 << 10, 1 << 10), (1 << 10) + 1, "parameters")],
)
def test_more_elements_than_kernels_can_count(shape: tuple[int, int, int], units: int, largest: str) -> None:
    start = layers.Input(*shape)()
    flat = layers.Flatten()(start)
    graph = from_nodes(start, layers.Dense(units)(flat) if units else flat)
    with pytest.raises(PlanError, match=rf"^plan: .* at most 1073741824 elements.*Received of={largest}.*elements=1"):
        make_plan(graph, 1)


def test_a_loss_must_fit_the_output() -> None:
    graph = sequential([layers.Input(1, 4, 4), layers.Conv2D(1, 3)])
    with pytest.raises(ShapeError, match=r"CrossEntropy: the model's output must be one logit .*output=\(1, 2, 2\)"):
        make_plan(graph, 1, loss=CrossEntropy(), training=True)


# -- models that ship --------------------------------------------------------------------------------------------------

#: Launches of forward and loss, backward, and inference for images of 28x28, on a processor with AVX-512.
LAUNCHES = {"lenet5": (10, 21, 11), "fashion_cnn": (31, 42, 16), "resnet8": (51, 80, 23)}


def shipped(name: str) -> Graph:
    make: Callable[[], object] = getattr(models, name)
    return make().graph  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", LAUNCHES)
def test_shipped_models_have_no_copies_and_few_launches(name: str) -> None:
    graph = shipped(name)
    tuning = tuning_for("cpu", lanes=16, registers=32)
    training = make_plan(graph, 128, loss=CrossEntropy(), training=True, tuning=tuning)
    inference = make_plan(graph, 128, tuning=tuning)
    assert training.copies == []
    assert inference.copies == []
    phases = [phase for phase, _ in training.calls]
    found = (phases.count("forward") + phases.count("loss"), phases.count("backward"), len(inference.phase("forward")))
    assert found == LAUNCHES[name]


@pytest.mark.parametrize("name", LAUNCHES)
def test_shipped_models_on_symbols(name: str) -> None:
    assert not differences(plan_of(shipped(name)))


@pytest.mark.parametrize(("elements", "per_sample"), [(20, 0), (10, 1), (0, 10)])
def test_memory_of_one_name_has_one_size(elements: int, per_sample: int) -> None:
    plan = plan_of(sequential([layers.Input(2, 5, 4), layers.BatchNorm(name="norm")]))
    memory = plan.sites["norm"].memory
    assert memory("mine", 10) == memory("mine", 10)
    with pytest.raises(KernelError) as caught:
        memory("mine", elements, per_sample)
    assert str(caught.value) == (
        "norm (BatchNorm): memory of one name must have one size in all calls of a layer. Received memory=mine, "
        f"first=10 elements and 0 a sample, then={elements} elements and {per_sample} a sample."
    )
