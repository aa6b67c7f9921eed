"""Lifetimes, buffers and the halos that are cleared."""

from __future__ import annotations

import cProfile
import itertools
from dataclasses import replace

import numpy as np
import pytest

from blobnet import layers
from blobnet.launch.kernel_call import CONSTANT, COPYING, Blob, KernelCall, Tuning
from blobnet.launch.work_sizes import copy_call
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.memory.blob import FLOAT16, FLOAT32, BlobLayout, Halo, Shape
from blobnet.network.graph import Graph, from_nodes, sequential
from blobnet.planning import make_plan
from blobnet.planning.memory import Buffer, Occupant, _share_buffers, _Slot, allocate, occupants, sample_slots
from tests.kinds import tuning_for
from tests.planning.stages import request_for

SMALL, LARGE = Shape(2, 3, 4), Shape(2, 6, 8)


def blob(name: str, planes: Shape = SMALL) -> Blob:
    return Blob(name, BlobLayout.padded(planes, Halo((1, 1), (1, 1))))


def copies(*names: Blob) -> list[tuple[str, KernelCall]]:
    """Calls that hand a blob on from name to name."""
    pairs = itertools.pairwise(names)
    return [("forward", call) for first, second in pairs for call in copy_call("copy", first, second, Tuning())]


def chain() -> Graph:
    return sequential([layers.Input(1, 2, 2), layers.Conv2D(1, 1)])


def test_a_storage_lives_from_its_first_call_to_its_last() -> None:
    a, b, c = blob("a"), blob("b"), blob("c")
    calls = copies(a, b, c, a)
    assert all(call.moves == COPYING for _, call in calls)
    found = {item.name: (item.first, item.last) for item in occupants(calls)}
    assert found == {"a": (0, 2), "b": (0, 1), "c": (1, 2)}
    assert {item.size(5) for item in occupants(calls)} == {5 * a.layout.memory_elements}


def test_a_part_of_a_storage_stands_for_all_of_it() -> None:
    layout = BlobLayout.padded(SMALL.with_units(7), Halo()).slice_units(3, SMALL.units)
    (found,) = (item for item in occupants(copies(Blob("a", layout), blob("b"))) if item.name == "a")
    assert found.per_sample == 7 * 12
    assert found.blob is not None
    assert (found.blob.layout.unit_offset, found.blob.layout.unit_count) == (0, 7)


def test_what_constant_calls_leave_for_others_lives_for_ever() -> None:
    (made, *others) = copies(blob("x"), blob("y"), blob("z"))
    calls = [(CONSTANT, made[1]), *copies(blob("a"), blob("b")), *others]
    found = {item.name: (item.first, item.last) for item in occupants(calls)}
    assert found["y"] == (0, len(calls))
    assert found["x"] == (0, 0)


def test_buffers_are_shared_in_turn_and_cleared_where_planes_change() -> None:
    request = request_for(chain(), training=True, tuning=tuning_for("cpu"))
    a, b, c, d = blob("a"), blob("b"), blob("c"), blob("d")
    memory = allocate(request, copies(a, b, c, d))
    assert (memory.placed["a"], memory.placed["b"]) == ("a", "b")
    assert (memory.placed["c"], memory.placed["d"]) == ("a", "b")
    assert len(memory.calls) == 3, "a halo that is zero already is not cleared"
    mixed = allocate(request, copies(a, b, blob("c", LARGE)))
    assert mixed.placed["c"] == "a"
    assert mixed.buffers["a"].size(1) == blob("c", LARGE).layout.memory_elements
    kernels = [(call.kernel, call.blobs["OUTPUT"].storage) for _, call in mixed.calls]
    assert kernels == [("blob/zero_halo", "a"), ("blob/copy", "b"), ("blob/zero_halo", "c"), ("blob/copy", "c")]
    apart = allocate(request_for(chain(), reuse=False), copies(a, b, c, d))
    assert all(apart.placed[name] == name for name in "abcd")


@pytest.mark.parametrize(("worth", "clears"), [(0, 2), (1, 2), (1 << 20, 0)])
def test_a_launch_less_is_worth_some_memory(monkeypatch: pytest.MonkeyPatch, worth: int, clears: int) -> None:
    request = request_for(chain(), training=True, tuning=tuning_for("cpu"))
    calls = copies(blob("a"), blob("b"), blob("c", LARGE))
    monkeypatch.setattr("blobnet.planning.memory._CLEAR_BYTES", worth)
    memory = allocate(request, calls)
    assert len(memory.calls) == len(calls) + clears
    assert memory.placed["c"] == ("a" if clears else "c")
    tight = allocate(replace(request, recompute=True), calls)
    assert tight.placed["c"] == "a"


def test_what_is_always_there() -> None:
    request = request_for(chain(), training=True, augmented=True, sample_type="uint8", tuning=tuning_for("gpu"))
    buffers = allocate(request, []).buffers
    assert {"parameters", "samples", "rows", "step", "augmentation", "gradients", "labels"} <= set(buffers)
    assert buffers["samples"] == Buffer("samples", 0, sample_slots(request.tuning.model) * 4 // 4)
    assert buffers["parameters"].elements == request.parameters.elements
    few = allocate(request_for(chain(), training=False), []).buffers
    assert set(few) == {"parameters", "samples", "rows", "not_finite", "step"}


@pytest.mark.parametrize("shards", [1, 2])
def test_there_is_room_for_every_part_of_what_persists(shards: int) -> None:
    images = layers.Input(3, 4, 4)()
    node = layers.GlobalAveragePool()(layers.BatchNorm()(layers.Conv2D(10, 3)(images)))
    graph = from_nodes(images, layers.Dense(3)(node))
    plan = make_plan(graph, 4, training=True, loss=CrossEntropy(), tuning=tuning_for("gpu"), shards=shards)
    ends = [
        (array.storage, array.end(4)) for _, call in plan.calls for array in call.arrays.values() if array.persistent
    ]
    assert len(ends) > 10
    assert all(plan.buffers[name].size(4) >= end for name, end in ends if end)
    if shards > 1:
        # Of the norm's scale and of its shift.
        assert plan.buffers["batchnorm_1/gradients"].elements == 20


@pytest.mark.parametrize(("kind", "slots"), [("cpu", 1), ("gpu", 2)])
def test_a_device_that_is_not_the_host_holds_the_next_batch_too(kind: str, slots: int) -> None:
    assert sample_slots(tuning_for(kind).model) == slots


#: Chains of layers, by what is behind an input of two units, or of two single values: (layers, shape of a sample).
CHAINS: dict[str, tuple[tuple[layers.Layer, ...], tuple[int, ...]]] = {
    "convolutions": ((layers.Conv2D(2, 3, padding="same", bias=False), layers.Activation("relu")), (2, 3, 3)),
    "norms": ((layers.Conv2D(2, 1), layers.BatchNorm(), layers.Activation("relu")), (2, 3, 3)),
    "pools": ((layers.MaxPool2D(3, stride=1, padding="same"), layers.Conv2D(2, 1)), (2, 3, 3)),
    "dense": ((layers.Dense(2), layers.Activation("relu")), (2,)),
    "in place": ((layers.Activation("relu"), layers.Activation("tanh")), (2,)),
    "same memory": ((layers.Dropout(0.1), layers.Reshape((2,))), (2,)),
}


def _work(name: str, count: int, training: bool) -> int:
    """How many functions are called to plan a chain of so many layers."""
    repeated, shape = CHAINS[name]
    graph = sequential([layers.Input(*shape), *(repeated * count)[:count]])
    loss = MeanSquaredError() if training else None
    profile = cProfile.Profile()
    profile.runcall(make_plan, graph, 2, training=training, loss=loss, tuning=tuning_for("cpu"))
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_plans_of_many_layers_take_time_with_their_number(name: str, training: bool) -> None:
    _work(name, 6, training)  # What is kept from plan to plan is there.
    few = 300 if name in ("in place", "same memory") else 75  # Which once took a frame of the stack a layer.
    assert _work(name, 4 * few, training) < 4.4 * _work(name, few, training)


def _random_occupants(random: np.random.Generator, count: int) -> list[Occupant]:
    """Blobs of a few geometries and arrays, in the order of first use: short lives, nested ones, and any."""
    found, now = list[Occupant](), 0
    for number in range(count):
        now += int(random.integers(0, 3))
        last = int(
            random.choice([now + random.integers(0, 5), max(now, 2 * count - now), now + random.integers(0, 60)])
        )
        own = (
            blob("", Shape(int(random.integers(1, 5)), int(random.integers(2, 4)), 4))
            if random.random() < 0.5
            else None
        )
        size = own.layout.memory_elements if own else int(random.choice([0, 5, 100, int(random.integers(1, 1000))]))
        kind = FLOAT16 if random.random() < 0.2 else FLOAT32
        found.append(Occupant(f"{number}", 0, size, now, last, own, type=kind))
    return found


def _places_by_asking_all(occupants: list[Occupant], keep_planes: bool) -> list[list[str]]:
    """The rule of :func:`_share_buffers` as it is written: the names in each buffer."""
    slots: list[list[Occupant]] = []

    def turn(item: Occupant) -> int:
        return int(item.name)

    for new in sorted(occupants, key=lambda item: -item.per_sample):
        ranks = []
        for number, members in enumerate(slots):
            room, planes = max(item.per_sample for item in members), {item.plane for item in members}
            clears = len(planes | {new.plane}) > 1 and any(item.has_halo for item in (*members, new))
            if (
                members[0].type == new.type
                and (members[0].blob is None) == (new.blob is None)
                and all(item.last < new.first or new.last < item.first for item in members)
                and not (keep_planes and clears)
            ):
                ranks.append((planes != {new.plane}, room, number))
        if ranks:
            slots[min(ranks)[-1]].append(new)
        else:
            slots.append([new])
    return sorted(
        ([item.name for item in sorted(members, key=turn)] for members in slots), key=lambda names: int(names[0])
    )


@pytest.mark.parametrize("keep_planes", [False, True])
def test_buffers_are_those_that_the_rule_says(keep_planes: bool) -> None:
    random = np.random.default_rng(1)
    for count in random.integers(1, 60, 150):
        items = _random_occupants(random, int(count))
        found = _share_buffers(items, True, 1, keep_planes=keep_planes)
        assert [[item.name for item in slot.members] for slot in found] == _places_by_asking_all(items, keep_planes)


def test_a_buffer_has_room_for_the_largest_that_lies_there_and_no_more() -> None:
    fixed, sampled = Buffer("fixed", 1000, 0), Buffer("sampled", 7, 100)
    both = Buffer("fixed", 1000, 0, others=((sampled.elements, sampled.per_sample),))
    assert [both.size(count) for count in (1, 9, 10, 50)] == [1000, 1000, 1007, 5007]
    assert all(both.bytes(count) == max(fixed.bytes(count), sampled.bytes(count)) for count in range(30))


def test_what_lives_at_once_is_never_in_one_place() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        lives = [sorted(map(int, random.integers(0, 40, 2))) for _ in range(12)]
        items = [Occupant(f"{number}", 1, 1, first=a, last=b, blob=None) for number, (a, b) in enumerate(lives)]
        slot = _Slot(items[0], 1)
        for item in items[1:]:
            meets = any(item.first <= other.last and other.first <= item.last for other in slot.members)
            assert slot.is_free_for(item) == (not meets)
            if not meets:
                slot.add(item)
