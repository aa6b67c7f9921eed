"""Calls that one launch makes. Needs no OpenCL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from blobnet import layers, models
from blobnet.launch.kernel_call import CONSTANT, TABLES, Array, KernelCall, Tuning
from blobnet.launch.work_sizes import sum_call
from blobnet.losses import CrossEntropy
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning import Plan, combining, make_plan
from blobnet.planning.combining import with_combined
from blobnet.planning.constants import PhasedCall
from tests.kinds import tuning_for
from tests.planning.stages import request_for

GPU = tuning_for("gpu")


def small_graph() -> Graph:
    images = layers.Input(9, 8, 8)()
    node = images
    for _ in range(4):
        node = layers.Conv2D(24, 3, padding=1, bias=False)(node)
    return from_nodes(images, layers.Dense(3)(layers.GlobalAveragePool()(node)))


def summed(name: str, to: Array | int, elements: int = 100, splits: int = 3) -> KernelCall:
    """Sums partials of its own into an array, or into the gradients from an element on."""
    if isinstance(to, int):
        to = Array("gradients", elements, offset=to, persistent=True)
    return sum_call(name, Array(f"{name} partials", splits * to.elements), to, splits, GPU)


def combined(*calls: KernelCall | PhasedCall, tuning: Tuning = GPU, in_batches: bool = False) -> list[KernelCall]:
    """What becomes of calls, of the backward pass unless a phase is said."""
    phased = [call if isinstance(call, tuple) else ("backward", call) for call in calls]
    request = request_for(small_graph(), tuning=tuning, in_batches=in_batches)
    return [call for _, call in with_combined(request, phased)]


def labels(calls: Sequence[KernelCall]) -> list[str | list[str]]:
    """Of each call, or of all that it combines."""
    return [[one.label for one in call.each] if call.combines else call.label for call in calls]


def test_one_launch_for_several() -> None:
    calls = [summed("a", 320, 300, 3), summed("b", 0, 65, 2), summed("c", 1000, 70, 200)]
    (call,) = combined(*calls)
    assert call.label == "sums of gradients (3 at once)"
    assert call.kernel == "gradient/reduce"
    assert call.source.name == "gradient/reduce_several"
    # Work-groups are of 64 work-items, of 4 elements each where there are few parts; arrays in memory of the plan's lie
    # side by side, at lines of caches.
    assert call.global_size.width == (2 + 1 + 2) * 64
    assert call.table == [0, 0, 320, 3, 300, 4, 2, 928, 0, 2, 65, 4, 3, 928 + 160, 1000, 200, 70, 1]
    assert call.arrays == {
        "PARTIALS": Array("a partials and 2 more", 928 + 160 + 14_000),
        "GRADIENT": Array("gradients", 1070, persistent=True),
        "TABLE": Array(TABLES, 18, persistent=True),
    }
    assert call.macros == {"ROWS": 3}
    assert call.bytes(1) == sum(one.bytes(1) for one in calls)
    assert call.vertex is call.owner is call.way is None


def test_who_makes_what_they_read_finds_where_it_lies_now() -> None:
    first = summed("first", Array("b partials", 300))
    made, *others = combined(first, summed("a", 0), summed("b", 100))
    assert labels(others) == [["a", "b"]]
    assert made.arrays["GRADIENT"] == Array("a partials and 1 more", 300, offset=320)
    assert others[0].combines[1].arrays["PARTIALS"] == made.arrays["GRADIENT"]


def test_no_array_moves_twice() -> None:
    makers = [summed(f"make {name}", Array(f"{name} partials", 300)) for name in "ab"]
    made, *others = combined(*makers, summed("a", 0), summed("b", 100))
    assert labels([made, *others]) == [["make a", "make b"], "a", "b"]
    assert [call.arrays["PARTIALS"] for call in others] == [call.arrays["GRADIENT"] for call in made.combines]


def test_an_order_that_matters_stays() -> None:
    between = summed("between", Array("b partials", 300))
    reading = sum_call("reading", Array("gradients", 100, persistent=True), Array("read", 50), 2, GPU)
    # What one writes the other reads: neither can be made with it.
    assert labels(combined(summed("a", 0), reading, summed("b", 100))) == [["a", "b"], "reading"]
    assert labels(combined(summed("a", 50), reading, summed("b", 50))) == ["a", "reading", "b"]
    # The later one where the first is, or the first where the later one is.
    assert labels(combined(summed("a", 0), between, summed("b", 100))) == ["between", ["a", "b"]]
    assert labels(combined(summed("a", 100), reading, summed("c", 200))) == [["a", "c"], "reading"]
    # The same elements are written twice.
    assert labels(combined(summed("a", 0), summed("b", 99))) == ["a", "b"]
    assert labels(combined(summed("a", 0), summed("b", 100), summed("c", 0))) == [["a", "b"], "c"]


def test_what_cannot_be_one_launch() -> None:
    first, second = summed("a", 0), summed("b", 100)
    for other in (
        replace(second, tunables={"MORE": 1}),
        replace(second, macros={**second.macros, "MORE": 2}),
        replace(second, local_size=(32, 1, 1)),
        summed("b", Array("elsewhere", 100, persistent=True)),
        summed("b", Array("of samples", 100, per_sample=1)),
        ("loss", second),
    ):
        assert len(combined(first, other)) == 2
    # An array that is a part of a storage, or that others see as another one.
    part = replace(second, arrays={**second.arrays, "PARTIALS": Array("b partials", 300, offset=8)})
    assert len(combined(first, part)) == 2
    whole = summed("whole", Array("b partials", 400))
    assert len(combined(whole, first, second)) == 3
    # A kernel whose header does not say that it may be.
    assert second.source.combined
    assert len(combined(first, second, tuning=tuning_for("cpu"))) == 2


def test_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [summed(name, 1000 * place, 1000, 2) for place, name in enumerate("abcdef")]
    monkeypatch.setattr(combining, "MIN_BYTES", 3 * 8000)
    assert labels(combined(*calls)) == [["a", "b", "c"], ["d", "e", "f"]]
    monkeypatch.setattr(combining, "MIN_BYTES", 0)
    assert labels(combined(*calls)) == list("abcdef")


def test_what_runs_once_a_step_or_hardly_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = [(CONSTANT, summed(name, 1000 * place, 1000, 2)) for place, name in enumerate("abcd")]
    made = [(CONSTANT, summed(name, Array(f"made by {name}", 1000), splits=2)) for name in "abcd"]
    for calls in (gradients, made):
        assert labels(combined(*calls)) == list("abcd")
        assert labels(combined(*calls, in_batches=True)) == [list("abcd")]
    # What they make lives for good anyway; what they read does not.
    monkeypatch.setattr(combining, "MIN_BYTES", 16000)
    assert labels(combined(*made, in_batches=True)) == [["a", "b"], ["c", "d"]]


def test_tables_lie_one_behind_the_other() -> None:
    calls = [summed(name, 100 * place) for place, name in enumerate("abcd")]
    first, second = combined(*calls[:2], *(("forward", call) for call in calls[2:]))
    assert first.arrays["TABLE"] == Array(TABLES, 12, persistent=True)
    assert second.arrays["TABLE"] == Array(TABLES, 12, offset=12, persistent=True)


# -- whole plans -------------------------------------------------------------------------------------------------------


def plan_of(graph: Graph, tuning: Tuning = GPU, **settings: bool) -> Plan:
    return make_plan(graph, 16, training=True, loss=CrossEntropy(), tuning=tuning, **settings)


def test_a_plan_has_the_tables_of_its_calls() -> None:
    plan = plan_of(small_graph())
    found = [call for _, call in plan.calls if call.combines]
    assert [(call.kernel, len(call.combines)) for call in found] == [
        ("convolution/pack_weight", 4),
        ("convolution/pack_weight", 3),
        ("gradient/reduce", 4),
    ]
    assert plan.tables == [number for call in found for number in call.table]
    assert plan.buffers[TABLES].elements == len(plan.tables)
    assert TABLES in plan.persistent
    for call in found:
        table = call.arrays["TABLE"]
        assert plan.tables[table.offset : table.end(0)] == call.table


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_network_has_fewer_launches_and_hardly_more_memory(in_batches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = models.mobilenet_v2().graph
    plan = plan_of(graph, in_batches=in_batches)
    monkeypatch.setattr(combining, "with_combined", lambda _, calls: calls)
    monkeypatch.setattr("blobnet.planning.plan.with_combined", lambda _, calls: calls)
    separate = plan_of(graph, in_batches=in_batches)
    assert len(plan.calls) < len(separate.calls) - 70
    assert plan.bytes() < 1.03 * separate.bytes()
    every = [one.label for _, call in plan.calls for one in call.each]
    assert sorted(every) == sorted(call.label for _, call in separate.calls)


def test_a_processor_has_none() -> None:
    plan = plan_of(small_graph(), tuning_for("cpu"))
    assert not any(call.combines for _, call in plan.calls)
    assert TABLES not in plan.buffers
