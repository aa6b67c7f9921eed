"""Frozen parameters and learning rates by pattern, without a device: what plans and tables make of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

import numpy as np
import pytest

from blobnet import layers, models
from blobnet.errors import OptionError, PlanError
from blobnet.launch.kernel_call import CONSTANT
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.memory.blob import FLOAT16
from blobnet.models import resnet50
from blobnet.network.graph import Graph, from_nodes, sequential
from blobnet.network.parameters import parameter_table
from blobnet.network.patterns import frozen_parameters, layers_behind, rate_factors
from blobnet.network.summary import summarize
from blobnet.optimizers import SGD, Adam, Optimizer
from blobnet.planning import Plan, make_plan
from blobnet.support.tables import Table, row_text
from blobnet.training import progress
from tests.kinds import tuning_for
from tests.small_graphs import KNOWN_GRAPHS, random_graph
from tests.symbolic import TUNING, SymbolicExecutor, expected

BATCH, SHORT = 3, 2


def plan_of(graph: Graph, frozen: Collection[str], *, input_delta: bool = False, share: bool = True) -> Plan:
    return make_plan(
        graph,
        BATCH,
        loss=MeanSquaredError(),
        training=True,
        input_delta=input_delta,
        tuning=TUNING,
        share=share,
        parameters=parameter_table(graph, frozen),
    )


def differences(plan: Plan) -> list[str]:
    """What comes out wrong for a short batch, in memory that a full batch has used before."""
    executor = SymbolicExecutor(plan)
    executor.run(BATCH, batch=1)
    outcome = executor.run(SHORT, batch=2)
    wanted = expected(plan.request.graph, plan.request.parameters, SHORT, 2, training=True, loss=plan.request.loss)
    if not plan.request.input_delta:
        wanted = dataclasses.replace(wanted, input_delta=None)
    return wanted.differences(outcome)


def numbers(plan: Plan) -> int:
    """Elements of all buffers, without what only loads reach, which small plans mostly consist of."""
    return sum(buffer.size(BATCH) for buffer in plan.buffers.values())


def layer_of(name: str) -> str:
    return name.rpartition("/")[0]


def frozen_in(graph: Graph, seed: int) -> list[frozenset[str]]:
    """Some layers, some parameters, all that lies before some layer, and all that there is."""
    random = np.random.default_rng([7, seed])
    names = list(graph.trainable)
    owners = [vertex.name for vertex in graph.vertices]
    some = {owner for owner in owners if random.random() < 0.5}
    until = owners[: int(random.integers(len(owners)))]
    return [
        frozenset(name for name in names if layer_of(name) in some),
        frozenset(name for name in names if random.random() < 0.5),
        frozenset(name for name in names if layer_of(name) in until),
        frozenset(names),
    ]


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(4))
def test_random_graphs_with_frozen_parameters(block: int) -> None:
    """Every gradient that is wanted comes about as if nothing shared memory, and no other is there."""
    for seed in range(2000 + 15 * block, 2015 + 15 * block):
        graph = random_graph(seed)
        for number, frozen in enumerate(frozen_in(graph, seed)):
            plan = plan_of(graph, frozen, input_delta=seed % 3 == 0, share=seed % 5 > 0)
            found = differences(plan)
            assert not found, f"seed {seed}, {number}: {found}"
            written = {name for name in graph.trainable if name not in frozen}
            assert {name for name in plan.request.parameters.slices if plan.request.parameters.trains(name)} == written
            if number == 2 and not plan.request.input_delta:
                assert numbers(plan) <= numbers(plan_of(graph, (), share=plan.request.share)), f"seed {seed}"


@pytest.mark.parametrize("name", KNOWN_GRAPHS)
def test_known_graphs_with_frozen_parameters(name: str) -> None:
    graph = KNOWN_GRAPHS[name]()
    for seed in range(3):
        for frozen in frozen_in(graph, seed):
            for input_delta in (True, False):
                assert not differences(plan_of(graph, frozen, input_delta=input_delta))


def chain() -> Graph:
    """Convolution, norm and activation, three times, and a head."""
    stack: list[layers.Layer] = [layers.Input(3, 12, 12)]
    for number in (1, 2, 3):
        stack += [
            layers.Conv2D(4, 3, padding=1, bias=False, name=f"conv{number}"),
            layers.BatchNorm(name=f"norm{number}"),
            layers.Activation("silu", name=f"silu{number}"),
            layers.MaxPool2D(2, name=f"pool{number}"),
        ]
    return sequential([*stack, layers.Dense(3, name="head")])


@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_what_lies_below_the_trained_layers_is_planned_as_in_inference(device_class: str) -> None:
    graph = chain()
    tuning = tuning_for(device_class)
    table = parameter_table(graph, frozen_parameters(graph, ["conv*", "norm*"]))
    plan = make_plan(graph, 8, loss=CrossEntropy(), training=True, tuning=tuning, parameters=table)
    inference = make_plan(graph, 8, tuning=tuning)

    def launches(which: Plan) -> list[str]:
        return [f"{call.label}: {call.kernel}" for call in which.phase("forward")]

    assert launches(plan) == launches(inference)
    assert plan.fused == inference.fused
    assert set(plan.deltas) == {"head"}
    assert plan.request.parameters.trainable_elements == plan.buffers["gradients"].elements < 16 * (3 * 4 + 2)
    written = {array.offset for _, call in plan.calls for role, array in call.arrays.items()
               if array.storage == "gradients" and call.source.arrays[role] != "read"}  # fmt: skip
    assert written == {table.slices[name].offset for name in ("head/weight", "head/bias")}
    # Nothing changes a parameter, running statistics included.
    assert not any(
        array.storage == "parameters" and call.source.arrays[role] != "read"
        for _, call in plan.calls
        for role, array in call.arrays.items()
    )


def test_deltas_end_at_the_lowest_trained_layer() -> None:
    graph = chain()
    plan = make_plan(
        graph, 8, loss=CrossEntropy(), training=True, parameters=parameter_table(graph, frozen_parameters(graph, "*1"))
    )
    assert set(plan.deltas) == {
        vertex.name for vertex in graph.vertices if vertex.name[-1] in "23" or vertex.name == "head"
    }
    kernels = {call.label: call.kernel for call in plan.phase("forward")}
    assert kernels["pool1 forward"] == "pooling/max_forward"
    assert kernels["pool2 forward"] == "pooling/max_forward_training"


def test_frozen_norms_between_trained_layers_pass_deltas_on() -> None:
    graph = chain()
    plan = make_plan(
        graph, 8, loss=CrossEntropy(), training=True, parameters=parameter_table(graph, frozen_parameters(graph, "n*"))
    )
    kernels = [call.kernel for _, call in plan.calls]
    assert kernels.count("normalization/backward_inference") == 3
    assert {name for name in plan.fused if name.startswith("norm")} == {"norm1", "norm2", "norm3"}
    assert {kernel for kernel in kernels if kernel.startswith("normalization/")} == {
        "normalization/backward_inference",
        "normalization/fold",
    }
    # The weights in front of them change at every step.
    assert [call.label for call in plan.phase("forward") if call.kernel == "normalization/fold"] == [
        f"conv{number} forward: fold" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_what_frozen_layers_make_of_their_weights_is_made_once(device_class: str) -> None:
    """Of conv2 and norm2, frozen between trained layers; norm1 is frozen behind a trained convolution."""
    graph = chain()
    frozen = frozen_parameters(graph, ["conv2", "norm2", "norm1"])
    # What reads weights as they lie is left out.
    tuning = tuning_for(device_class, only={"panels", "unitwise", "tiled"})
    plan = make_plan(
        graph, 8, loss=CrossEntropy(), training=True, tuning=tuning, parameters=parameter_table(graph, frozen)
    )
    made = {call.label for call in plan.phase(CONSTANT)}
    assert made
    assert all(label.startswith("conv2 ") for label in made)
    assert "conv2 forward: fold" in made
    assert any(label.startswith("conv2 backward data: ") for label in made)
    every_step = {call.label for _, call in plan.calls} - made
    assert "conv1 forward: fold" in every_step
    assert any(label.startswith("conv1 backward data: ") or "conv3 backward data: " in label for label in every_step)
    # A step finds them as they were: no other call writes there.
    others = [call for phase, call in plan.calls if phase != CONSTANT]
    read = {plan.placed[name] for call in others for name in call.storages("read") if name.startswith("conv2/")}
    kept = {plan.placed[name] for call in plan.phase(CONSTANT) for name in call.storages("write")} & read
    assert kept
    assert not kept & {plan.placed.get(name) for call in others for name in call.storages("write", "update")}


def test_a_frozen_layer_keeps_no_inputs_for_its_gradients() -> None:
    images = layers.Input(2, 9, 9)()
    node = layers.Conv2D(4, 3, name="first")(images)
    node = layers.Conv2D(4, 3, name="second")(node)
    graph = from_nodes(images, layers.Conv2D(4, 3, name="third")(layers.Activation("relu", name="relu")(node)))
    plan = make_plan(
        graph, 8, loss=MeanSquaredError(), training=True, parameters=parameter_table(graph, {"second/weight"})
    )
    labels = [call.label for call in plan.phase("backward")]
    assert "second backward bias" in labels
    assert not any("second" in label and "weight" in label for label in labels)


@pytest.mark.parametrize(("device_class", "most"), [("cpu", 1.02), ("gpu", 1.02)])
def test_memory_to_train_the_head_of_resnet50(device_class: str, most: float) -> None:
    """1.01 of what inference needs: both keep weights that they have folded and packed."""
    graph = resnet50().graph
    table = parameter_table(graph, frozen_parameters(graph, ["stem*", "stage*"]))
    tuning = tuning_for(device_class)
    plan = make_plan(graph, 64, loss=CrossEntropy(), training=True, tuning=tuning, parameters=table)
    assert {name for name in table.slices if table.trains(name)} == {"logits/weight", "logits/bias"}
    assert plan.bytes() <= most * make_plan(graph, 64, tuning=tuning).bytes()
    assert plan.for_batch(64).bytes() == plan.bytes()
    # Optimizer state and gradients are the head's alone.
    assert sum(Adam().memory(table).values()) < 3 * (2048 + 16) * 1000


# -- tables ------------------------------------------------------------------------------------------------------------


def test_tables_rank_by_what_is_trained_rate_and_decay() -> None:
    graph = chain()
    factors = rate_factors(graph, [("head/*", 1.0), ("*2", 0.5), ("*", 0.1)])
    assert factors["head/weight"] == factors["head/bias"] == 1
    assert factors["conv2/weight"] == factors["norm2/scale"] == 0.5
    assert factors["conv1/weight"] == factors["norm3/shift"] == 0.1
    table = parameter_table(graph, {"conv1/weight", "norm2/scale"}, factors)
    assert [group.factor for group in table.groups] == [1.0, 0.5, 0.1]
    offset = 0
    for group in table.groups:
        assert group.offset == offset
        offset += group.elements
        inside = {name: piece for name, piece in table.slices.items() if group.offset <= piece.offset < offset}
        assert set(inside) == {
            name for name, factor in factors.items() if factor == group.factor and table.trains(name)
        }
        for name, piece in inside.items():
            decayed = piece.offset < group.offset + group.decayed_elements
            assert decayed == graph.named_parameters[name].decayed, name
    assert offset == table.trainable_elements
    assert not any(table.trains(name) for name in ("conv1/weight", "norm2/scale", "norm1/running_mean"))
    weights = {name: np.random.default_rng(3).random(spec.shape) for name, spec in graph.named_parameters.items()}
    packed = table.pack({name: values.astype(np.float32) for name, values in weights.items()})
    assert all(
        np.array_equal(values, weights[name].astype(np.float32)) for name, values in table.unpack(packed).items()
    )
    assert set(table.unpack_gradients(packed[:offset])) == set(filter(table.trains, table.slices))


def test_bytes_follow_the_type_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as wide numbers take half the bytes, in plans and summaries; there is one type for all."""
    graph = sequential([layers.Input(3), layers.Dense(5, name="dense")])
    wide = make_plan(graph, BATCH), summarize(graph).parameter_bytes
    assert wide[1] == 4 * (5 * 3 + 5 + 2 * 3)

    def narrow(kind: type[layers.Input] | type[layers.Dense]) -> None:
        original = kind.parameters
        monkeypatch.setattr(
            kind,
            "parameters",
            lambda self, inputs: tuple(dataclasses.replace(spec, type=FLOAT16) for spec in original(self, inputs)),
        )

    narrow(layers.Dense)
    mixed = sequential([layers.Input(3), layers.Dense(5, name="dense")])
    rule = "all parameters lie in one buffer, and must be of one type. Received types=float16, float32."
    with pytest.raises(PlanError, match=re.escape(f"parameters: {rule}")):
        parameter_table(mixed)
    narrow(layers.Input)
    halves = sequential([layers.Input(3), layers.Dense(5, name="dense")])
    table, plan = parameter_table(halves), make_plan(halves, BATCH)
    assert table.type == FLOAT16
    assert plan.buffers["parameters"].bytes(1) == table.bytes == wide[0].buffers["parameters"].bytes(1) // 2
    assert summarize(halves).parameter_bytes == wide[1] // 2
    weight = next(call.arrays["WEIGHT"] for call in plan.phase("forward") if "WEIGHT" in call.arrays)
    assert weight.type == FLOAT16
    values = {name: np.full(spec.shape, 0.1, np.float32) for name, spec in halves.named_parameters.items()}
    packed = table.pack(values)
    assert packed.dtype == np.float16
    assert (table.unpack(packed)["dense/weight"] == np.float16(0.1)).all()


# -- patterns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ("head", {"head/weight", "head/bias"}),
        (["head/bias"], {"head/bias"}),
        (["*/bias", "conv?"], {"head/bias", "conv1/weight", "conv2/weight", "conv3/weight"}),
        (["norm[13]/s*"], {"norm1/scale", "norm1/shift", "norm3/scale", "norm3/shift"}),
        ([], set()),
    ],
)
def test_patterns_of_layers_and_parameters(patterns: str | list[str], wanted: set[str]) -> None:
    assert frozen_parameters(chain(), patterns) == wanted


def test_a_name_with_brackets_is_its_own_pattern() -> None:
    images = layers.Input(1, 4, 4)()
    graph = from_nodes(images, layers.Dense(2, name="b")(layers.Dense(3, name="a[1]")(images)))
    assert frozen_parameters(graph, ["a[1]"]) == {"a[1]/weight", "a[1]/bias"}


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["conv4"], r"freeze: every pattern must stand for parameters that can be trained. Received pattern='conv4'. "
                    r"Hint: did you mean 'conv"),
        (["silu1"], r"Received pattern='silu1'. Hint: silu1 has none."),
        (["*running_mean"], r"every pattern must stand for parameters that can be trained"),
        ([3], r"freeze: patterns must be names of layers or parameters. Received pattern=3."),
        (["*"], r"freeze: something must be left to train, but all trainable parameters are frozen. "
                r"Received freeze=\*, parameters=11."),
        (["conv*", "norm*", "head"], r"Received freeze=conv\*, norm\*, head, parameters=11."),
    ],
)  # fmt: skip
def test_patterns_that_are_refused(patterns: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        frozen_parameters(chain(), patterns)


def test_layer_decay() -> None:
    """A block of a residual network is one layer, what has a number of its own another one; factors multiply."""
    graph = models.resnet18().graph
    behind = layers_behind(graph)
    assert behind["stem_conv/weight"] == behind["stem_norm/shift"] == 9
    assert behind["stage1_block1_a_conv/weight"] == behind["stage1_block1_b_norm/scale"] == 8
    assert behind["stage2_block1_shortcut_conv/weight"] == 6
    assert behind["logits/bias"] == 0
    assert layers_behind(models.lenet5().graph)["conv2/bias"] == 3
    factors = rate_factors(graph, [("logits", 2.0)], 0.5)
    assert (factors["logits/weight"], factors["stage4_block2_a_conv/weight"]) == (2.0, 0.5)
    vit = layers_behind(models.vit_tiny().graph)
    assert (vit["patches/bias"], vit["block12_attention/key"], vit["last_norm/shift"]) == (14, 1, 1)


def test_rates_that_are_refused() -> None:
    with pytest.raises(OptionError, match=r"rates: every pattern must stand for .*pattern='hat'"):
        rate_factors(chain(), [("head", 1.0), ("hat", 2.0)])
    for factor in (0, -1.0, float("nan"), float("inf"), "much", None):
        with pytest.raises(OptionError, match=r"Adam: rates must map patterns .*rates=\{'head': .*Hint: .*freeze"):
            Adam(rates={"head": factor})  # type: ignore[dict-item]
    for rates in ({3: 1.0}, 0.1, ["head"]):
        with pytest.raises(OptionError, match="SGD: rates must map patterns"):
            SGD(rates=rates)  # type: ignore[arg-type]


def test_rates_are_part_of_an_optimizers_description() -> None:
    optimizer = Adam(rates={"head/*": 1, "*": 0.1})
    assert optimizer.rates == (("head/*", 1.0), ("*", 0.1))
    assert optimizer.config()["rates"] == [["head/*", 1.0], ["*", 0.1]]
    assert Optimizer.from_description(optimizer.description(), "file") == optimizer
    assert "rates" not in Adam().config()
    assert hash(optimizer) != hash(Adam())


@pytest.mark.parametrize("columns", [30, 44, 60, 110])
def test_rows_of_many_columns_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """As many lines a row as it takes; empty ones are left out."""
    cells = [f"{place}{'x' * (place % 5 + 3)}" for place in range(9)]
    table = Table(cells, [[*cells[:6], "", "", ""]], "<>>><>>><")
    piped = str(table)
    assert len(piped.splitlines()) == 4
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = str(table).splitlines()
    assert max(map(len, lines)) <= columns
    assert (str(table) == piped) == (columns == 110)
    assert all(line.strip() for line in lines)
    assert " ".join(lines).replace("-", "").split() == [*cells, *cells[:6]]
    forms = ["{:<4}", "{:>6}", " {:<20}", "{:>9}"]
    assert row_text(forms, ["a", 1, "", ""], gap="") == ("a\n       1" if columns == 30 else "a        1")
    assert row_text(forms, ["a", 1, "b", 2], gap="|").split() == (
        ["a", "1", "b", "2"] if columns == 30 else ["a", "|", "1|", "b", "|", "2"]
    )


@pytest.mark.parametrize("columns", [44, 100])
def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    rows = [["block1_a_conv + BatchNorm + relu", "(16, 8, 8)", "2,368"], ["logits", "(10)", "650"]]
    total = ["total", "", "3,018"]
    table = Table(["layer", "output shape", "parameters"], rows, "<<>", total, {"parameters": "3,018"})
    piped = str(table)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    if columns == 100:
        assert str(table) == piped
        return
    lines = str(table).splitlines()
    assert max(map(len, lines)) == columns
    training = progress.Table(30, has_accuracy=True, has_validation=True)
    monkeypatch.setenv("COLUMNS", "60")
    assert training.header == "epoch    loss  accuracy  val. loss  val. accuracy"
    narrow = progress.Table(30, has_accuracy=True, has_validation=True)
    assert narrow.header == "epoch     time    loss  accuracy  val. loss  val. accuracy"
    record = {"loss": 0.5, "accuracy": 0.75, "validation_loss": 1.25, "validation_accuracy": 0.125}
    assert narrow.row(3, 1.5, 30, 0.1, record).split() == ["3/30", "1.5", "s", "0.5000", "0.7500", "1.2500", "0.1250"]
    assert lines[3:7] == [rows[0][0], "  (16, 8, 8)        2,368", "logits", "  (10)                650"]
