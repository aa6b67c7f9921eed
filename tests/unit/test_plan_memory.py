"""What holds memory over the launches of a plan, against sets of names at each launch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from blobnet.hardware.device_model import HOST
from blobnet.launch.kernel_call import CONSTANT
from blobnet.losses import CrossEntropy
from blobnet.optimizers import Adam
from blobnet.planning import Plan, make_plan
from blobnet.planning.timeline import KINDS, memory_schedule
from tests.kinds import tuning_for
from tests.small_graphs import KNOWN_GRAPHS


def used(plan: Plan) -> list[set[str]]:
    """The storages that each launch is given."""
    calls = [call for _, call in plan.calls]
    return [
        {item.storage for item in (*call.blobs.values(), *call.arrays.values()) if item.storage in sizes(plan)}
        for call in calls
    ]


def sizes(plan: Plan) -> dict[str, int]:
    """Bytes of every storage that is not there all the time."""
    found: dict[str, int] = {}
    for _, call in plan.calls:
        for blob in call.blobs.values():
            found[blob.storage] = 4 * plan.batch_size * blob.layout.memory_elements
        for array in call.arrays.values():
            if not array.persistent:
                end = array.offset + array.elements + plan.batch_size * array.per_sample
                found[array.storage] = max(found.get(array.storage, 0), 4 * end)
    return found


def kind_of(name: str, plan: Plan) -> str:
    if any(name in call.storages("write", "update") for call in plan.phase(CONSTANT)):
        return "packed weights"
    return {"output": "activations", "delta": "deltas"}.get(name.rpartition(" ")[2], "work space")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
@pytest.mark.parametrize("name", sorted(KNOWN_GRAPHS))
def test_storages_are_in_use_from_their_first_launch_to_their_last(name, device_class, training) -> None:
    loss = CrossEntropy() if training else None
    plan = make_plan(KNOWN_GRAPHS[name](), 5, loss=loss, training=training, tuning=tuning_for(device_class))
    found = memory_schedule(plan)
    launches, bytes_of = used(plan), sizes(plan)
    constants = {storage for call in plan.phase(CONSTANT) for storage in call.storages("write", "update")}
    for position in range(len(launches)):
        before = set().union(*launches[: position + 1])
        alive = before & (set().union(*launches[position:]) | constants)
        wanted: Counter[str] = Counter()
        in_buffer: Counter[str] = Counter()
        for storage in alive:
            wanted[kind_of(storage, plan)] += bytes_of[storage]
            in_buffer[plan.placed[storage]] += bytes_of[storage]
        for kind in ("activations", "deltas", "packed weights", "work space"):
            held = found.held[kind][position] if kind in found.held else 0
            assert held == wanted[kind], (kind, position)
        assert all(size <= plan.buffers[buffer].bytes(5) for buffer, size in in_buffer.items())
    assert found.phases == tuple(phase for phase, _ in plan.calls)
    assert (found.total <= found.allocated).all()
    assert found.total[found.peak] == max(
        sum(values[i] for values in found.held.values()) for i in range(len(launches))
    )
    assert found.allocated == plan.bytes()
    assert list(found.held) == [kind for kind in KINDS if kind in found.held]


def test_what_is_always_there() -> None:
    graph = KNOWN_GRAPHS[min(KNOWN_GRAPHS)]()
    plan = make_plan(graph, 3, loss=CrossEntropy(), training=True)
    updates = Adam().calls(plan.request.parameters, HOST)
    found = memory_schedule(plan, {"optimizer moment": 1000, "optimizer square": 24}, updates)
    assert len(found.launches) == len(plan.calls) + len(updates)
    assert found.phases[-len(updates) :] == ("update",) * len(updates)
    assert found.launches[-1] == updates[-1].label
    assert (found.held["optimizer"] == 1024).all()
    assert (found.held["weights"] == 4 * plan.request.parameters.elements).all()
    assert (found.held["gradients"] == 4 * plan.request.parameters.trainable_elements).all()
    others = set(plan.buffers) - set(sizes(plan)) - {"parameters", "gradients"}
    assert {"samples", "labels"} <= others
    batch = sum(4 * (plan.buffers[name].elements + 3 * plan.buffers[name].per_sample) for name in others)
    assert (found.held["samples and labels"] == batch).all()
    end = [values[-1] for kind, values in found.held.items() if kind in ("activations", "deltas", "work space")]
    assert not np.any(end)
    assert found.allocated == plan.bytes() + 1024
