"""``blobnet tune``: what is measured, what is believed, what is kept; no test looks at how long anything takes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from blobnet import implementations, layers
from blobnet.bench import tuner
from blobnet.bench.tuner import Tuner, _Arena, jobs_of
from blobnet.data.samples import sources_for
from blobnet.device import tuning
from blobnet.device.device import Device
from blobnet.device.programs import Programs
from blobnet.device.tuning import LEVELS, Tunings, Winner
from blobnet.errors import BlobnetWarning, BuildError, DeviceError
from blobnet.examination import layer_cases
from blobnet.execution.executor import plan_for
from blobnet.execution.inference import Evaluator
from blobnet.execution.loader import IndexedReader
from blobnet.hardware.device_model import GENERIC
from blobnet.implementations import tensor
from blobnet.implementations.base import BACKWARD_WEIGHTS, FORWARD, Implementation
from blobnet.implementations.direct import Direct
from blobnet.launch.kernel_call import KernelCall, Tuning
from blobnet.launch.kernel_source import Definition, Macro
from blobnet.launch.task import BrokenVariant, Task, Variant
from blobnet.model import Model
from blobnet.network.graph import Graph, sequential
from blobnet.network.parameters import DeviceParameters
from tests.kinds import only, tuning_for
from tests.shipped import check_shipped
from tests.small_tiles import SMALL_WARP
from tests.tiny import digits, tiny_model

TASKS = ["forward 1x8x8:10k3psame batch 4", "backward weights 1x8x8:10k3psame batch 4"]
_NET = """
from blobnet import Sequential, layers

def net(input_shape=(1, 8, 8), classes=10, seed=0):
    convolution = layers.Conv2D(classes, 3, padding="same", bias=False)
    stack = [layers.Input(*input_shape), convolution, layers.BatchNorm(), layers.GlobalAveragePool()]
    return Sequential(stack, seed=seed)
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    """A user's own model, of which every device has the same to tune: GPUs know several ways for dense layers."""
    (tmp_path / "net.py").write_text(_NET)
    return "net.py:net"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tunings of this test alone."""
    monkeypatch.setattr(tuning, "_folder", lambda: tmp_path / "tunings")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # sources that do not build
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return tmp_path / "tunings"


@pytest.fixture
def fresh(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device without any tunings; a new one, where the tuner asks for it, shares its context."""
    kept = vars(device).pop("tunings", None)

    def renewed(self: Device, _: object = None) -> None:
        vars(self).update({name: value for name, value in vars(device).items() if name != "tunings"})

    monkeypatch.setattr(Device, "__init__", renewed)
    yield device
    vars(device).pop("tunings", None)
    if kept is not None:
        device.tunings = kept


KNOWN = dict(implementations.IMPLEMENTATIONS)


class OddWay(Implementation):
    """Looks the cheapest, and launches the plain kernel with other macros."""

    lanes = False
    directions = (FORWARD,)
    cost = 0.0
    macros: ClassVar[dict[str, Macro]] = {}

    @classmethod
    def kernel_of(cls, direction: str) -> str:
        return Direct.kernel_of(direction)

    def calls(self) -> list[KernelCall]:
        *copies, product = min(Direct.candidates(self.operation), key=lambda item: item.cost).calls()
        return [*copies, dataclasses.replace(product, macros={**product.macros, **self.macros})]


def odd_way(name: str, **macros: Macro) -> type[OddWay]:
    """One with a name of its own."""
    way = Variant.parse(name)
    tiles = classmethod(lambda *_: (way.tile,))
    made: type[OddWay] = type("Odd", (OddWay,), {"variants": (way.variant,), "tiles": tiles, "macros": macros})
    return made


def offer(monkeypatch: pytest.MonkeyPatch, device: Device, *ways: type[Implementation]) -> None:
    """Offers a CPU only these ways forward."""
    if not device.is_host:
        pytest.skip("the ways of CPUs are replaced")
    other = {name: backward_alone(item) for name, item in KNOWN.items() if is_replaced(item)}
    offered = {f"way {number}": way for number, way in enumerate(ways)}
    monkeypatch.setattr(implementations, "IMPLEMENTATIONS", {**KNOWN, **other, **offered})


def is_replaced(item: type[Implementation]) -> bool:
    """Whether it computes convolutions, and not on GPUs alone."""
    return not item.lanes and "convolution" in item.families


def backward_alone(item: type[Implementation]) -> type[Implementation]:
    """The same without the forward pass."""
    directions = tuple(direction for direction in item.directions if direction != FORWARD)
    return type("BackwardAlone", (item,), {"directions": directions, "variants": item.variants})


#: The driver cannot build it; its result is not that of the convolution.
torn = odd_way("torn 1", FINISHED=Definition("(value, unit) that_is_not_there"))
wrong = odd_way("wrong 1", FINISHED=Definition("(value, unit) fmax(value, 0.0f)"))
fine = odd_way("fine 1")
FINE = Variant("fine", "1")


def odd_graph() -> Graph:
    return sequential([layers.Input(3, 6, 7), layers.Conv2D(5, 3, stride=(2, 1), padding=1), layers.Flatten()])


def times(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> list[str]:
    """Variants take so many seconds, and others 1.0; they are built and launched all the same."""
    measured: list[str] = []
    measure = _Arena.seconds

    def known(self: _Arena, task: Task, way: Variant) -> float:
        measure(self, task, way)
        measured.append(str(way))
        return seconds.get(way.variant, 1.0)

    monkeypatch.setattr(_Arena, "seconds", known)
    monkeypatch.setattr(tuner, "burst_length", lambda *_: 1)
    return measured


def tune(device: Device, level: str = "fast") -> list[str]:
    """Tunes the forward task of the odd graph; the candidates that were announced."""
    announced: list[str] = []
    jobs = jobs_of(odd_graph(), 4, False, device.tuning)
    assert [job.count for job in jobs] == [1]
    for _ in Tuner(device, jobs, 4, level).run(lambda task, way: announced.append(str(way))):
        pass
    return announced


def forward_candidates(device: Device) -> set[str]:
    """The candidates whose kernels a plan of the odd graph launches."""
    plan = plan_for(device, odd_graph(), 4)
    return {str(BrokenVariant.of(call.task, call.way)) for _, call in plan.calls if call.way and call.task}


# -- what is believed --------------------------------------------------------------------------------------------------


def test_the_fastest_that_is_right_wins_and_is_used(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fresh, torn, wrong, fine, Direct)
    times(monkeypatch, wrong=0.1, fine=0.5)
    with pytest.warns(BlobnetWarning) as caught:
        announced = tune(fresh)
    assert {"torn 1", "wrong 1", "fine 1"} < set(announced)
    texts = [str(warning.message) for warning in caught]
    rule = f"{fresh.info.name} must build and run this candidate, which is left out from now on. Received cause="
    assert len(texts) == 2
    assert texts[0].startswith(
        f"torn 1 (convolution forward): {rule}kernel convolution/forward_flat (layer forward): {fresh.info.name} must"
    )
    assert texts[1].startswith(
        f"wrong 1 (convolution forward): {rule}forward 3x7x11:5k3s2x1p1 batch 3, 2 samples: layer output is wrong by "
    )
    assert texts[1].endswith(f" Hint: to try it again, delete {fresh.tunings.path}.")
    (winner,) = fresh.tunings.winners.values()
    # The default is what would run without tuning: the cheapest that the driver builds.
    assert (winner.candidate, winner.default, winner.ms, winner.level) == (FINE, FINE, 500.0, "fast")
    assert (
        Tunings(fresh.info.identity).broken
        == fresh.tunings.broken
        == {BrokenVariant(Variant(name, "1"), "convolution", "forward") for name in ("torn", "wrong")}
    )
    assert forward_candidates(fresh) == {"fine 1 (convolution forward)"}


def test_the_default_stays_unless_another_is_clearly_faster(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, expected in ((0.99, "fine 1"), (0.97, "direct")):
        offer(monkeypatch, fresh, fine, Direct)
        fresh.tunings.path.unlink(missing_ok=True)
        del fresh.tunings
        with monkeypatch.context() as patch:
            times(patch, direct=seconds)
            tune(fresh)
        (winner,) = fresh.tunings.winners.values()
        assert winner.default == FINE
        assert str(winner.candidate).startswith(expected)


@pytest.mark.parametrize(("rival", "expected"), [(0.99, "fine 1"), (0.9, "rival 1")])
def test_chance_on_a_busy_machine_is_no_win(
    fresh: Device, monkeypatch: pytest.MonkeyPatch, rival: float, expected: str
) -> None:
    offer(monkeypatch, fresh, fine, odd_way("rival 1"))
    times(monkeypatch)
    measure, rounds = _Arena.seconds, iter([1.0, 2.0, 2.0, 1.0, *[2.0] * 4])

    def disturbed(self: _Arena, task: Task, way: Variant) -> float:
        return measure(self, task, way) * (next(rounds) if way == FINE else rival)

    monkeypatch.setattr(_Arena, "seconds", disturbed)
    tune(fresh)
    (winner,) = fresh.tunings.winners.values()
    assert (str(winner.candidate), winner.default, winner.default_ms) == (expected, FINE, 2000.0)


def test_a_launch_that_fails_costs_the_context_and_not_the_run(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fresh, odd_way("lost 1"), fine, Direct)
    times(monkeypatch, fine=0.5)
    measure = _Arena.seconds

    def failing(self: _Arena, task: Task, way: Variant) -> float:
        if way.variant == "lost":
            raise DeviceError("some device", "the kernel must launch")
        return measure(self, task, way)

    monkeypatch.setattr(_Arena, "seconds", failing)
    with pytest.warns(
        BlobnetWarning,
        match=r"^lost 1 \(convolution forward\): .* Received cause=some device: the kernel must launch. Hint",
    ):
        tune(fresh)
    assert dict(Tunings(fresh.info.identity).winners) == fresh.tunings.winners
    assert [winner.candidate for winner in fresh.tunings.winners.values()] == [FINE]


def test_a_task_of_broken_candidates_alone_is_left_out(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fresh, torn, wrong)
    fresh.tunings.mark_broken(BrokenVariant.parse("wrong (convolution forward)"))
    with pytest.warns(BlobnetWarning, match=r"^torn 1 \(convolution forward\): "):
        assert tune(fresh) == ["torn 1"]
    assert not fresh.tunings.winners


def test_kernels_of_gpus_are_checked_against_those_of_cpus(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dataclasses.replace(fresh.tuning, model=dataclasses.replace(GENERIC["gpu"], compute_units=4))
    monkeypatch.setattr(Device, "tuning", property(lambda _: settings))
    times(monkeypatch)
    compared: list[bool] = []
    difference = tuner._difference

    def noted(wanted: dict[str, np.ndarray], found: dict[str, np.ndarray], tolerance: float) -> str:
        compared.append(tolerance == 5e-4 and all(np.abs(values).max() > 0.01 for values in wanted.values()))
        return difference(wanted, found, tolerance)

    monkeypatch.setattr(tuner, "_difference", noted)
    jobs = jobs_of(sequential([layers.Input(8, 4, 5), layers.Conv2D(6, 3)]), 2, True, settings)
    smallest = {FORWARD: Variant("tiled", "32x64x16/4x4"), BACKWARD_WEIGHTS: Variant("tiled", "32x32x16/4x4")}
    assert [job.task.direction for job in jobs] == list(smallest)
    monkeypatch.setattr(Tuner, "_select", lambda _, job: [smallest[job.task.direction]])
    assert list(Tuner(fresh, jobs, 2, "fast").run(lambda *_: None)) == jobs
    assert compared == [True] * 4, "each on odd planes and on its own"


def test_references_are_of_other_variants(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fresh, odd_way("a 1"), odd_way("a 2"), odd_way("b 1"), Direct)
    (job,) = jobs_of(odd_graph(), 4, False, fresh.tuning)
    problem = tuner._Problem(job.case, 4, fresh.tuning)
    names = {
        name: [str(item.way) for item in problem.references(job.task, Variant.parse(name))] for name in ("a 1", "b 1")
    }
    direct = [str(item.way) for item in problem.plain[job.task] if item.way.variant == "direct"]
    assert names == {"a 1": ["b 1", *direct[:3]], "b 1": ["a 1", direct[0], "a 2", direct[1]]}


def test_a_kernel_for_gpus_has_one_of_its_name_for_reference(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fresh, fine)
    for device_class, expected in (("cpu", []), ("gpu", ["fine 1"])):
        settings = dataclasses.replace(fresh.tuning, model=GENERIC[device_class])
        graph = sequential([layers.Input(3, 4, 5), layers.Conv2D(4, 3)])
        (case,) = (layer_cases.of_vertex(graph, vertex) for vertex in graph.vertices[1:])
        problem = tuner._Problem(case, 4, settings)
        task = next(task for task in problem.candidates if task.direction == FORWARD)
        assert [str(item.way) for item in problem.references(task, FINE)] == expected


def test_weights_and_bias_are_both_compared(fresh: Device) -> None:
    settings = dataclasses.replace(fresh.tuning, model=dataclasses.replace(GENERIC["gpu"], compute_units=2))
    graph = sequential([layers.Input(12), layers.Dense(5)])
    problem = tuner._Problem(layer_cases.of_vertex(graph, graph.vertices[1]), 4, settings)
    task = next(task for task in problem.candidates if task.direction == BACKWARD_WEIGHTS)
    (way, *_) = [item.way for item in problem.candidates[task] if item.way.variant == "direct"]
    arena = _Arena(fresh, problem, {task: [way]})
    results = arena._results(arena._calls[task, way], 4)
    assert sorted(values.size for values in results.values()) == [5, 60]
    assert all(np.abs(values).min() > 0 for values in results.values())


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_all_ways_write_the_same(kind: str) -> None:
    # NOTE: or tuning takes one for wrong that leaves out what its references make.
    graph = sequential([layers.Input(4, 3, 5), layers.Conv2D(6, 3), layers.Flatten(), layers.Dense(5)])
    for vertex in (graph.vertices[1], graph.vertices[-1]):
        problem = tuner._Problem(layer_cases.of_vertex(graph, vertex), 64, tuning_for(kind))
        for candidates in problem.candidates.values():
            written = {
                item.way: {
                    (array.storage, array.offset)
                    for call in item.calls()
                    for role, array in call.arrays.items()
                    if call.source.arrays[role] != "read" and array.persistent
                }
                for item in candidates
            }
            assert len(written) > 1
            assert len({*map(frozenset, written.values())}) == 1, written


def test_scratch_holds_all_parts_of_an_array() -> None:
    (case,) = layer_cases.named("16x9x9:16k3p1")
    problem = tuner._Problem(case, 4, tuning_for("gpu", compute_units=2))
    for candidates in problem.candidates.values():
        calls = next(item for item in candidates if item.way.variant == "winograd2").calls()
        own = [array for call in calls for array in call.arrays.values() if not array.persistent]
        assert max(array.offset for array in own) > 0
        scratch = problem.scratch(calls)
        assert all(4 * (array.offset + array.elements) <= scratch[array.storage] for array in own)


def test_one_wrong_reference_is_outvoted(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fresh, wrong, fine, Direct)
    (job,) = jobs_of(odd_graph(), 4, False, fresh.tuning)
    problem = tuner._Problem(job.case, 4, fresh.tuning)
    arena = _Arena(fresh, problem, {job.task: [Variant("wrong", "1"), FINE]})
    arena.verify(job.task, FINE)
    with pytest.raises(tuner._WrongError, match="layer output is wrong by "):
        arena.verify(job.task, Variant("wrong", "1"))


def test_no_room_to_check_is_no_fault(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fresh, odd_way("large 1"), fine, Direct)
    times(monkeypatch, large=0.1, fine=0.5)
    verify = _Arena.verify

    def no_room(self: _Arena, task: Task, way: Variant) -> None:
        if way.variant == "large":
            fresh.memory.allocate(1 << 60)
        verify(self, task, way)

    monkeypatch.setattr(_Arena, "verify", no_room)
    with pytest.warns(BlobnetWarning) as caught:
        tune(fresh)
    (text,) = (str(warning.message) for warning in caught)
    rule = f"{fresh.info.name} must have room to measure and check this candidate, which is left out this time"
    task = "forward 3x6x7:5k3s2x1p1 batch 4"
    assert text.startswith(
        f"large 1 (convolution forward): {rule}. Received task={task}, cause={fresh.info.name}: the "
    )
    assert text.endswith(" Hint: use a smaller --batch-size.")
    assert [winner.candidate for winner in fresh.tunings.winners.values()] == [FINE]
    assert not fresh.tunings.broken


# -- tf32 --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tf32(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> Tuning:
    """The settings of a GPU with tensor cores, which has small tiles for them and nothing else forward."""
    settings = tuning_for("gpu", compute_units=2, precision="tf32")
    monkeypatch.setattr(Device, "tuning", property(lambda _: settings))
    monkeypatch.setattr(tensor, "TILES", (SMALL_WARP,))
    return settings


@pytest.mark.parametrize(
    ("tolerance", "is_sound"), [(tuner.TOLERANCES["tf32"], True), (tuner.TOLERANCES["fp32"], False)]
)
def test_tensor_cores_may_round(
    fresh: Device, tf32: Tuning, tolerance: float, is_sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tuner.TOLERANCES, "tf32", tolerance)
    tf32 = only(tf32, "tensor")
    (case,) = layer_cases.named("50x7x8:40k3p1")
    problem = tuner._Problem(case, 3, tf32)
    task = next(task for task in problem.candidates if task.direction == FORWARD)
    assert str(task) == "forward 50x7x8:40k3p1 batch 3 tf32"
    (way,) = (item.way for item in problem.candidates[task])
    assert {item.precision for item in problem.plain[task]} == {"fp32"}
    arena = _Arena(fresh, problem, {task: [way]})
    if is_sound:
        arena.verify(task, way)
    else:
        # The error is far above that of fp32, and as far below the bound as it should be.
        with pytest.raises(
            tuner._WrongError, match=r"layer output is wrong by 0\.00(0[5-9]|1)\d* of its root mean square"
        ):
            arena.verify(task, way)


def test_products_in_fp32_may_not_round_in_tf32_either(tf32: Tuning) -> None:
    (case,) = layer_cases.named("50x7x8:40k3p1")
    for candidates in tuner._Problem(case, 3, tf32).candidates.values():
        assert {item.way.variant for item in candidates if item.precision == "tf32"} <= {"tensor", "cells"}
        assert "tensor" in {item.way.variant for item in candidates}
        assert {"tiled", "winograd4"} <= {item.way.variant for item in candidates if item.precision == "fp32"}


# -- what is measured --------------------------------------------------------------------------------------------------


def test_levels(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = sequential([layers.Input(24, 6, 7), layers.Conv2D(40, 3, stride=(2, 1), padding=1), layers.Flatten()])
    jobs = jobs_of(graph, 4, True, fresh.tuning)
    assert [job.task for job in jobs] == [Task(way, "24x6x7:40k3s2x1p1", 4) for way in (FORWARD, BACKWARD_WEIGHTS)]
    counts = {level: Tuner(fresh, jobs, 4, level).measurements for level in LEVELS}
    assert counts["none"] == 0 < counts["fast"] < counts["wide"]
    fast = Tuner(fresh, jobs, 4, "fast")
    for job in jobs:
        every = fast._problem(job.case).candidates[job.task]
        found = sorted(every, key=lambda item: (item.doubt, item.cost))
        cheapest = [item.way for item in found][:4]
        assert set(cheapest) <= set(fast._selected[job.task])
        assert {item.way.variant for item in found} == {way.variant for way in fast._selected[job.task]}
        assert Variant("compiled") in fast._selected[job.task]
        fresh.tunings.record(job.task, Winner(Variant("x"), 1.0, Variant("x"), 1.0, "fast"))
    remaining = {level: len(Tuner(fresh, jobs, 4, level).jobs) for level in LEVELS}
    assert remaining == {"none": 0, "fast": 0, "wide": 2}
    assert len(Tuner(fresh, jobs, 4, "fast", again=True).jobs) == 2


def test_wide_reaches_beyond_what_costs_nothing(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tuning_for("gpu", compute_units=4)
    monkeypatch.setattr(Device, "tuning", property(lambda _: settings))
    jobs = jobs_of(sequential([layers.Input(3, 9, 9), layers.Conv2D(2, 3)]), 4, False, settings)
    names = {level: Tuner(fresh, jobs, 4, level)._selected[jobs[0].task] for level in ("fast", "wide")}
    assert names["fast"][0] == names["wide"][0] == Variant("strip")
    assert set(names["fast"]) < set(names["wide"])


def test_what_is_measured_and_checked_is_built_ahead(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch)
    ahead, built, build = set[str](), set[str](), Programs.build

    def noted(self: Programs, source: str, what: str) -> object:
        built.add(source)
        return build(self, source, what)

    monkeypatch.setattr(Programs, "build_ahead", lambda _, sources, *others: ahead.update(sources))
    monkeypatch.setattr(Programs, "build", noted)
    tune(fresh)
    assert built
    assert built <= ahead


def test_layers_that_are_alike_are_one_task(fresh: Device) -> None:
    node = start = layers.Input(4, 5, 5)()
    for name in "abc":
        node = layers.Conv2D(4, 3, padding=1, bias=name == "b", activation="relu" if name == "c" else None)(node)
    graph = Model(start, layers.GlobalAveragePool()(node)).graph
    counts = {str(job.task): job.count for job in jobs_of(graph, 2, True, fresh.tuning)}
    shape = "4x5x5:4k3p1 batch 2"
    # Nobody needs the delta of the input.
    assert counts == {f"forward {shape}": 3, f"backward weights {shape}": 3, f"backward data {shape}": 2}


def test_suites_and_shapes(run) -> None:
    shown = run("tune", "anchors", "--level", "none")
    assert (shown.status, shown.err) == (0, "")
    names = [line.split("  ")[0] for line in shown.out.splitlines() if "not tuned" in line]
    forward = [name.removeprefix("forward ") for name in names if name.startswith("forward ")]
    assert forward == [f"{case} batch 64" for case in layer_cases.suite("anchors")]
    assert f"\ntuned: 0 of {len(set(names))} tasks" in shown.out
    for shape in ("2x5x6:4k3s2p1", "7x9:4k5p2"):
        rows = run("tune", shape, "--level", "none", "--inference").out.splitlines()
        assert [row.split("  ")[0] for row in rows if "not tuned" in row] == [f"forward {shape} batch 64"]


# -- outside of tuning -------------------------------------------------------------------------------------------------


def test_what_does_not_build_is_left_out_of_plans(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = tiny_model(), digits(5)[0]
    wanted = model.predict(x, device=fresh)
    offer(monkeypatch, fresh, torn, Direct)
    model = tiny_model()
    with pytest.warns(BlobnetWarning) as caught:
        found = model.predict(x, device=fresh)
    np.testing.assert_array_equal(found, wanted)
    (warning,) = caught
    rule = f"{fresh.info.name} must build the kernels of this variant, which is left out from now on. Received cause="
    assert str(warning.message).startswith(
        f"torn (convolution forward): {rule}kernel convolution/forward_flat (conv1 forward): "
    )
    assert Tunings(fresh.info.identity).broken == {BrokenVariant(Variant("torn"), "convolution", "forward")}
    tiny_model().predict(x, device=fresh)  # without a warning


def test_a_cache_that_cannot_be_written_stops_nobody(fresh: Device, folder: Path, monkeypatch) -> None:
    offer(monkeypatch, fresh, torn, Direct)
    folder.mkdir()
    monkeypatch.setattr(tuning, "write_atomically", lambda *_: (_ for _ in ()).throw(PermissionError("no")))
    with pytest.warns(BlobnetWarning, match=r"^torn \(convolution forward\): "):
        assert not any(name.startswith("torn") for name in forward_candidates(fresh))
    assert not any(name.startswith("torn") for name in forward_candidates(fresh))


def test_where_nothing_builds_the_error_stands(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fresh, torn)
    with pytest.raises(BuildError, match=r"^kernel convolution/forward_flat \(conv2d_1 forward\): .* must build"):
        plan_for(fresh, odd_graph(), 4)
    assert not fresh.tunings.broken


def test_work_groups_that_the_device_does_not_allow(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "largest_group", 2)
    settings = tuning_for("gpu")
    with pytest.raises(BuildError) as caught:
        plan_for(fresh, odd_graph(), 4, tuning=settings)
    rule = f"its work-group must have no more work-items than {fresh.info.name} allows. Received items="
    assert rule in str(caught.value)
    assert str(caught.value).endswith(", most=2.")


def test_tuned_plans_compute_the_same(fresh: Device) -> None:
    model, x = tiny_model(), digits(4)[0]
    weights = DeviceParameters(fresh, model.graph)
    weights.write(model.weights)
    evaluator = Evaluator.of(fresh, model.graph, weights, 4)
    (wanted,) = evaluator.predict(IndexedReader(sources_for(evaluator.plan.request.graph, x, "x")), len(x))
    for job in jobs_of(model.graph, 4, False, fresh.tuning):
        found = tuner._Problem(job.case, 4, fresh.tuning).candidates[job.task]
        other = max(found, key=lambda item: item.cost).way
        fresh.tunings.record(job.task, Winner(other, 1.0, Variant("x"), 1.0, "fast"))
    tuned = Evaluator.of(fresh, model.graph, weights, 4)
    before, after = ({(call.task, call.way) for _, call in each.plan.calls} for each in (evaluator, tuned))
    chosen = {(task, winner.candidate) for task, winner in fresh.tunings.winners.items()}
    # Generated launches are ways of their own.
    generated = {(task, way) for task, way in chosen if way.variant == "compiled"}
    assert len(generated) == sum(way is not None and way.variant == "compiled" for _, way in after) > 0
    chosen -= generated
    assert chosen
    assert chosen <= after
    assert not chosen & before
    np.testing.assert_allclose(
        *tuned.predict(IndexedReader(sources_for(model.graph, x, "x")), len(x)), wanted, rtol=1e-5, atol=1e-5
    )


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_table(run, net, folder: Path) -> None:
    arguments = ["tune", net, "--batch-size", "4", "--size", "8"]
    nothing = run(*arguments, "--level", "none")
    assert (nothing.status, nothing.err) == (0, "")
    assert nothing.out.count("not tuned") == 2
    assert "tuned: 0 of 2 tasks, kept in " in nothing.out
    result = run(*arguments)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[1] == "net.py:net, training, batch 4, fp32"
    assert lines[3].split() == ["task", "n", "ms", "tuned", "by", "default", "->", "tuned"]
    assert max(map(len, lines[2:-2])) <= 110  # GPUs' tiles have long names
    (path,) = folder.iterdir()
    content = json.loads(path.read_text())
    assert list(content["tasks"]) == sorted(TASKS)
    for line, task in zip(lines[4:6], TASKS, strict=True):
        winner = content["tasks"][task]
        assert line.startswith(task)
        kernels = dict.fromkeys((winner["default"], winner["candidate"]))
        assert line.removeprefix(task).split(maxsplit=3) == [
            "1", f"{winner['default_ms']:.4g}", f"{winner['ms']:.4g}", " -> ".join(kernels)
        ]  # fmt: skip
    assert lines[-2] == f"tuned: 2 of 2 tasks, kept in {path}"
    assert lines[-1].startswith("all of them, n times each: ")
    assert run(*arguments).out == result.out, "what is known is not measured again"
    assert "2 tuned\n" in run("devices").out
    assert run("tune", net, "--batch-size", "4", "--inference").out.count(" batch 4  ") == 1


def test_what_was_measured_serves_near_batches(run, net) -> None:
    assert run("tune", net, "--batch-size", "4").status == 0
    for batch_size, count in ((2, 2), (3, 2), (8, 2), (9, 0)):
        shown = run("tune", net, "--batch-size", batch_size, "--level", "none").out
        assert shown.count(", as for batch 4\n") == count
        assert shown.count("not tuned") == 2 - count


def test_what_ships(run, net, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch)
    result = run("tune", net, "--batch-size", "4", "--output", "ship")
    path = Path("ship") / f"{tuning._slug(device.info.name)}.json"
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith(f"\nto ship: {path}\n")
    check_shipped(path)
    assert list(json.loads(path.read_text())["tasks"]) == sorted(TASKS)
    # Another shape is added; what is known is not measured again to ship.
    run("tune", "3x5x4:4k3", "--batch-size", "2", "--inference")
    assert run("tune", "3x5x4:4k3", "--batch-size", "2", "--inference", "--output", "ship").status == 0
    check_shipped(path)
    content = json.loads(path.read_text())
    assert list(content["tasks"]) == sorted([*TASKS, "forward 3x5x4:4k3 batch 2"])
    assert tuning.answers_in(content) == device.info.answers
    # On another machine with a device of this name:
    monkeypatch.setattr(tuning, "_folder", lambda: Path("empty"))
    monkeypatch.setattr(tuning, "_shipped_folder", lambda: Path("ship"))
    assert run("tune", net, "--batch-size", "4", "--level", "none").out.count(", as it ships\n") == 2


def test_what_cannot_be_shipped_is_said_first(run, net, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = times(monkeypatch)
    path = Path(f"{tuning._slug(device.info.name)}.json")
    path.write_text('{"device": "Another", "tasks": {}}')
    result = run("tune", net, "--output", ".")
    assert (result.status, result.out, measured) == (1, "", [])
    assert (
        result.err
        == f"error: {path}: the file must be of this device. Received file=Another, here={device.info.name}.\n"
    )


def test_tuned_networks_train(run, net) -> None:
    assert run("tune", net, "--batch-size", "64").status == 0
    result = run("train", net, "--dataset", "digits", "--epochs", "1", "--output", "net.h5")
    assert result.status == 0
    assert "warning" not in result.err
    # A model in a file is tuned for what it was built for.
    summary = run("tune", "net.h5", "--inference").out.splitlines()[-2]
    assert re.match(r"tuned: ([12]) of \1 tasks", summary)


def test_a_load_is_told(run, net, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch)
    monkeypatch.setattr(os, "getloadavg", lambda: (1e4, 0.0, 0.0))
    told = "NOTE: a load of 10000.0 on "
    assert told in run("tune", net, "--batch-size", "4").out
    assert told not in run("tune", net, "--batch-size", "4").out, "nothing is measured"


def test_ctrl_c_keeps_what_was_found(run, net, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = times(monkeypatch)
    measure = _Arena.seconds

    def interrupted(self: _Arena, task: Task, name: str) -> float:
        if task.direction == BACKWARD_WEIGHTS:
            raise KeyboardInterrupt
        return measure(self, task, name)

    with monkeypatch.context() as patch:
        patch.setattr(_Arena, "seconds", interrupted)
        result = run("tune", net, "--batch-size", "4")
    assert result.status == 130
    assert result.err == "interrupted; 1 of 2 tasks are known and kept; the same command goes on with the others\n"
    (path,) = folder.iterdir()
    assert list(json.loads(path.read_text())["tasks"]) == TASKS[:1]
    count = len(measured)
    assert run("tune", net, "--batch-size", "4").status == 0
    assert list(json.loads(path.read_text())["tasks"]) == sorted(TASKS)
    assert len(measured) > count


def test_a_stale_file_is_one_line(run, net, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch)
    run("tune", net, "--batch-size", "4")
    monkeypatch.setattr(tuning, "fingerprint", lambda: "other")
    result = run("tune", net, "--batch-size", "4", "--level", "none")
    (path,) = folder.iterdir()
    assert result.status == 0
    assert result.err == (
        f"warning: {path}: the tuning cache is of other kernels than these, and is ignored. "
        "Hint: 'blobnet doctor' and 'blobnet tune MODEL' write it anew.\n"
    )
    assert result.out.count("not tuned") == 2


def test_a_folder_that_cannot_be_written(run, net, folder: Path) -> None:
    folder.write_text("no folder")
    result = run("tune", net)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"error: {folder}")
    assert ": the tuning cache must be writable. Received cause=" in result.err
    assert result.err.endswith(" Hint: set XDG_CACHE_HOME to a folder that is.\n")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["lenet"],
            1,
            "MODEL: it must be one of blobnet's models, or a function of yours. Received name=lenet. Hint: ",
        ),
        (["anchors", "--size", "9"], 1, "--size: only networks are built for a size. Received given=anchors."),
        (
            ["lenet5", "--precision", "bf16"],
            1,
            "--precision: ways are measured with float32 between layers, at fp32 or tf32.",
        ),
        (["2x5x6:4k9"], 1, "Conv2D: the dilated filter must fit the padded input."),
        (["lenet5", "--level", "full"], 2, "argument --level: "),
        (["lenet5", "--batch-size", "0"], 2, "argument --batch-size: "),
        (["none.h5"], 1, "none.h5: there must be such a file."),
        (["some.h5", "--size", "8"], 1, "--size: a model in a file has its size. Received file=some.h5."),
        (["lenet5", "--device", "zzz"], 1, "device: the device must be one that OpenCL lists. Received device=zzz."),
    ],
)
def test_what_is_refused(run, arguments, status, message) -> None:
    result = run("tune", *arguments)
    assert (result.status, result.out) == (status, "")
    assert result.err.startswith(f"error: {message}")
