"""Plans that were made before: read back they are what they were, and count for what they were made for alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blobnet import layers, models
from blobnet.errors import FIRST_READ, BlobnetWarning
from blobnet.launch.kernel_call import Tuning
from blobnet.launch.task import BrokenVariant, Task, TunedChoices, Variant
from blobnet.losses import CrossEntropy, MeanSquaredError
from blobnet.memory.blob import BFLOAT16, FLOAT16, FLOAT32, Padding
from blobnet.network.graph import Graph, from_nodes, sequential
from blobnet.network.parameters import parameter_table
from blobnet.planning import make_plan, plan_cache
from blobnet.planning.plan import plan_of
from blobnet.planning.plan_cache import _given, _read, _written, keep, key_of, load
from blobnet.planning.request import Request
from tests.kinds import tuning_for
from tests.small_graphs import KNOWN_GRAPHS, random_graph
from tests.tiny import tiny_model

#: Before tests/conftest.py puts another in its place.
FILES_OF_BLOBNET = plan_cache._files.__wrapped__


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_files", lambda: (("a file", 1, 2),))


def check_read_back(request: Request, path: Path) -> None:
    plan, key = plan_of(request), key_of(request)
    assert key is not None
    keep(path, key, plan)
    found = load(path, key, request)
    assert found == plan
    assert found.sites == {}
    for (phase, call), (wanted_phase, wanted) in zip(found.calls, plan.calls, strict=True):
        assert phase == wanted_phase
        assert call.owner is wanted.owner
        # What kernels are given follows the order of what a call has.
        assert [list(item) for item in (call.blobs, call.arrays)] == [list(wanted.blobs), list(wanted.arrays)]
        assert call.assemble() == wanted.assemble()


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("training", [False, True], ids="training={}".format)
@pytest.mark.parametrize("name", KNOWN_GRAPHS)
def test_known_graphs(tmp_path: Path, name: str, training: bool, kind: str) -> None:
    settings: dict[str, Any] = {"loss": MeanSquaredError(), "training": True, "input_delta": True} if training else {}
    check_read_back(Request(KNOWN_GRAPHS[name](), 3, tuning=tuning_for(kind), **settings), tmp_path / "plan")


def test_random_graphs(tmp_path: Path) -> None:
    for seed in range(20):
        settings: dict[str, Any] = {"loss": MeanSquaredError(), "training": True} if seed % 2 else {}
        check_read_back(Request(random_graph(seed), 1 + seed, **settings), tmp_path / "plan")


@pytest.mark.parametrize("name", ["lenet5", "mobilenet_v2", "densenet121", "unet", "vit_tiny"])
def test_networks_in_all_kinds_of_numbers(tmp_path: Path, name: str) -> None:
    graph = getattr(models, name)().graph
    for storage in (FLOAT32, FLOAT16, BFLOAT16):
        check_read_back(
            Request(graph, 2, tuning=replace(tuning_for("cpu"), storage=storage), sample_type="uint8"),
            tmp_path / "plan",
        )


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_shards_at_once(tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {
        "loss": CrossEntropy(),
        "training": True,
        "in_batches": True,
        "tuning": tuning_for(kind),
    }
    one, several = (Request(tiny_model().graph, 12, at_once=count, **settings) for count in (1, 3))
    check_read_back(several, tmp_path / "plan")
    assert any(call.shards for _, call in plan_of(several).calls)
    assert key_of(one) != key_of(several)


def test_several_losses(tmp_path: Path) -> None:
    """Each of which is the owner of its calls."""
    entry = layers.Input(units=2, height=4, width=4)()
    first = layers.Conv2D(3, 3, name="first")(entry)
    graph = from_nodes(entry, {"a": first, "b": layers.Conv2D(2, 1, name="second")(first)})
    check_read_back(Request(graph, 2, loss=(MeanSquaredError(), MeanSquaredError()), training=True), tmp_path / "p")


def small(units: int = 3) -> Graph:
    return sequential([layers.Input(2, 5, 5), layers.Conv2D(units, 3, name="conv"), layers.Flatten(), layers.Dense(2)])


TASK = Task("forward", "2x5x5:3k3", 1)
#: Each is planned differently, or may be.
OTHERS: dict[str, Callable[[], Request]] = {
    "network": lambda: Request(small(4), 2),
    "batch size": lambda: Request(small(), 3),
    "loss": lambda: Request(small(), 2, loss=CrossEntropy()),
    "training": lambda: Request(small(), 2, loss=CrossEntropy(), training=True),
    "frozen": lambda: Request(
        small(), 2, loss=CrossEntropy(), training=True, parameters=parameter_table(small(), {"conv/weight"})
    ),
    "input delta": lambda: Request(small(), 2, loss=CrossEntropy(), training=True, input_delta=True),
    "sample type": lambda: Request(small(), 2, sample_type="uint8"),
    "augmented": lambda: Request(small(), 2, augmented=True),
    "policy": lambda: Request(small(), 2, sample_type="uint8", augmented=True, policy_steps=1),
    "longer policy": lambda: Request(small(), 2, sample_type="uint8", augmented=True, policy_steps=2),
    "share": lambda: Request(small(), 2, share=False),
    "reuse": lambda: Request(small(), 2, reuse=False),
    "every halo": lambda: Request(small(), 2, every_halo=True),
    "shards": lambda: Request(small(), 2, shards=2),
    "device": lambda: Request(small(), 2, tuning=tuning_for("gpu")),
    "fact": lambda: Request(small(), 2, tuning=tuning_for("cpu", lanes=8)),
    "tunables": lambda: Request(small(), 2, tuning=tuning_for("cpu", {"blob/copy": {"X": 1}})),
    "precision": lambda: Request(small(), 2, tuning=tuning_for("cpu", precision="tf32")),
    "padding": lambda: Request(small(), 2, tuning=tuning_for("cpu", padding=Padding(own_zeros=True))),
    "storage": lambda: Request(small(), 2, tuning=tuning_for("cpu", storage=FLOAT16)),
    "broken": lambda: Request(small(), 2, tuning=tuning_for("cpu", broken=["direct"])),
    "only": lambda: Request(small(), 2, tuning=tuning_for("cpu", only=["direct"])),
    "measured": lambda: Request(
        small(), 2, tuning=Tuning(tuning_for("cpu").model, choices=TunedChoices(({TASK: Variant("direct")},)))
    ),
}


def test_a_plan_counts_for_what_it_was_made_for_alone(tmp_path: Path) -> None:
    request = Request(small(), 2)
    key = key_of(request)
    assert key is not None
    assert key == key_of(Request(small(), 2))
    keys = {name: key_of(make()) for name, make in OTHERS.items()}
    assert None not in keys.values()
    assert len({key, *keys.values()}) == 1 + len(OTHERS), keys
    keep(tmp_path / "plan", key, plan_of(request))
    assert all(load(tmp_path / "plan", str(other), request) is None for other in keys.values())
    assert load(tmp_path / "plan", key, request) is not None


def test_keys_do_not_depend_on_the_order_of_a_set() -> None:
    """Which differs from process to process."""
    names = ["direct", "tiled", "winograd 4", "panels (convolution forward)"]
    made = [
        TunedChoices(broken=frozenset(map(BrokenVariant.parse, order)), only=frozenset(order))
        for order in (names, names[::-1])
    ]
    keys = [key_of(Request(small(), 2, tuning=Tuning(choices=choices))) for choices in made]
    assert keys[0] == keys[1]


def test_a_file_of_blobnet_that_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def write(name: str, text: str, age: float) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, ns=(0, FIRST_READ - int(1e9 * age)))

    for name in ("blobnet/a.py", "blobnet/deeper/a.py", "kernels/a.cl"):
        write(name, "a", age=60)
    monkeypatch.setattr(plan_cache, "_files", FILES_OF_BLOBNET)
    monkeypatch.setattr(plan_cache, "_folders", lambda: [str(tmp_path / name) for name in ("blobnet", "kernels")])
    request = Request(small(), 2)
    keys = [key_of(request)]
    write("kernels/notes.txt", "no part of blobnet", age=0)
    assert key_of(request) == keys[0]
    for name, text, age in (("blobnet/deeper/a.py", "a", 59), ("kernels/a.cl", "ab", 60), ("blobnet/b.py", "", 60)):
        write(name, text, age)
        keys.append(key_of(request))
    assert len({*keys, None}) == 5
    for age in (1, -1):
        write("blobnet/b.py", "", age)
        assert key_of(request) is None, "this process may have read another one"
    monkeypatch.setattr(plan_cache, "_folders", lambda: [str(tmp_path / "nowhere")])
    assert key_of(request) is None


@dataclass(frozen=True, kw_only=True)
class _Other(layers.Conv2D):
    """A layer of a user's own, whose calls may change without a change of blobnet."""


class _OtherError(MeanSquaredError):
    """A loss of a user's own."""


def test_no_plan_of_a_users_own_layers_or_losses_is_kept() -> None:
    assert key_of(Request(sequential([layers.Input(2, 5, 5), _Other(3, 3)]), 2)) is None
    assert key_of(Request(small(), 2, loss=_OtherError())) is None
    assert key_of(Request(small(), 2, loss=MeanSquaredError())) is not None


def test_what_is_damaged_is_planned_anew(tmp_path: Path) -> None:
    request = Request(small(), 2)
    key, path = str(key_of(request)), tmp_path / "plan"
    assert load(path, key, request) is None
    keep(path, key, plan_of(request))
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]):
        path.write_bytes(damaged)
        with pytest.warns(BlobnetWarning, match="an entry of the cache must be as it was written, and is made anew"):
            assert load(path, key, request) is None
    other = tmp_path / "another plan"
    other.write_bytes(whole)
    with pytest.warns(BlobnetWarning, match="must be as it was written"):
        assert load(other, key, request) is None
    keep(path, key, plan_of(request))
    assert load(path, key, request) == plan_of(request)
    keep(tmp_path / "no folder" / "plan", key, plan_of(request))


def test_nothing_else_is_written(tmp_path: Path) -> None:
    plan = make_plan(small(), 2)
    stranger: Any
    for stranger in (np.int64(3), [1], object(), b"bytes"):
        (phase, call), *others = plan.calls
        odd = replace(plan, calls=((phase, replace(call, macros={**call.macros, "ODD": stranger})), *others))
        with pytest.raises(TypeError, match="plans are not made of"):
            _written(odd.calls, _given(odd.request))
        keep(tmp_path / "plan", "key", odd)
    assert not list(tmp_path.iterdir())


def test_numbers_come_back_as_what_they_were() -> None:
    """JSON has no infinity of its own, and to Python 1, 1.0 and True are the same."""
    values = (
        1,
        1.0,
        True,
        0,
        False,
        0.1,
        -0.0,
        1e300,
        float("inf"),
        -float("inf"),
        "1",
        "",
        None,
        (),
        (1,),
        range(1, 9, 2),
    )
    found = _read(json.loads(_written(values, [])), [])
    assert list(map(repr, found)) == list(map(repr, values))
