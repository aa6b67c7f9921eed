"""Processes find the plans that others have made with the same device and driver, and run them to the same bits."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device import tuning
from blobnet.device.device import Device
from blobnet.errors import BlobnetWarning
from blobnet.execution import executor
from blobnet.execution.executor import plan_for
from blobnet.launch.task import BrokenVariant, Variant
from blobnet.planning import plan_cache
from blobnet.planning.plan import plan_of


@pytest.fixture
def fresh(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device of which nothing is known."""
    monkeypatch.setattr(plan_cache, "_files", lambda: (("a file", 1, 2),))
    monkeypatch.setattr(tuning, "_folder", lambda: tmp_path / "tunings")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "one driver").mkdir()
    return another(device, tmp_path / "one driver")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was planned for."""
    asked: list[Any] = []

    def counted(request: Any) -> Any:
        asked.append(request)
        return plan_of(request)

    monkeypatch.setattr(executor, "plan_of", counted)
    return asked


def another(device: Device, folder: Path | None = None) -> Device:
    """As in the next process."""
    other = Device(device.info)
    other.programs.compiler.folder = folder or device.programs.compiler.folder
    return other


def network() -> bn.Model:
    some = [layers.Input(2, 6, 5), layers.Conv2D(3, 3, padding="same", activation="relu"), layers.MaxPool2D(2)]
    return bn.Sequential([*some, layers.BatchNorm(), layers.Flatten(), layers.Dropout(0.3), layers.Dense(4)], seed=1)


X = np.random.default_rng(0).standard_normal((7, 2, 6, 5)).astype(np.float32)
Y = np.arange(7) % 4


def test_the_next_process_plans_nothing(fresh: Device, planned: list[Any]) -> None:
    found = []
    for number in range(2):
        model, device = network(), another(fresh)
        history = model.fit(X, Y, epochs=2, batch_size=3, device=device, verbose=False, validation=(X, Y))
        answers = model.predict(X, device=device)
        found.append((answers.tobytes(), history, {name: array.tobytes() for name, array in model.weights.items()}))
        assert bool(planned) == (number == 0)
        planned.clear()
    assert found[0] == found[1]


def test_the_same_training_is_planned_once_a_process(fresh: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one of an equal network neither reads a plan nor looks whether its kernels are built; the bits stay."""
    read: list[Path] = []
    load = plan_cache.load
    monkeypatch.setattr(plan_cache, "load", lambda path, *rest: (read.append(path), load(path, *rest))[1])
    found = []
    for number in range(2):
        model = network()
        history = model.fit(X, Y, epochs=2, batch_size=3, device=fresh, verbose=False, validation=(X, Y))
        answers = model.predict(X, device=fresh)
        found.append((answers.tobytes(), history, {name: array.tobytes() for name, array in model.weights.items()}))
        assert bool(read) == (number == 0)
        read.clear()
    assert found[0] == found[1]
    for size in range(1, 12):
        plan_for(fresh, network().graph, size)
    assert len(executor._MADE[fresh.programs]) == executor._KEPT_PLANS


def test_other_drivers_and_options_plan_anew(fresh: Device, planned: list[Any], tmp_path: Path) -> None:
    graph = network().graph
    plan_for(fresh, graph, 2)
    plan_for(another(fresh), graph, 2)
    assert len(planned) == 1
    (tmp_path / "another driver").mkdir()
    plan_for(another(fresh, tmp_path / "another driver"), graph, 2)
    assert len(planned) == 2
    plan_for(another(fresh), graph, 4)
    plan_for(another(fresh), graph, 2, sample_type="uint8")
    plan_for(another(fresh).at("fp32", "float16"), graph, 2)
    assert len(planned) == 5


def test_what_is_known_to_be_broken_since_is_not_planned(fresh: Device, planned: list[Any]) -> None:
    graph = network().graph
    first = plan_for(fresh, graph, 2)
    way = next(call.way for _, call in first.calls if call.way)
    fresh.tunings.mark_broken(BrokenVariant(Variant(way.variant)))
    second = plan_for(another(fresh), graph, 2)
    assert len(planned) == 2
    assert way.variant not in {call.way.variant for _, call in second.calls if call.way}


def test_a_damaged_plan_and_one_of_other_files(
    fresh: Device, planned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = network().graph
    wanted = plan_for(fresh, graph, 2)
    (path,) = fresh.programs.compiler.folder.glob("*.plan")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(BlobnetWarning, match=r"\.plan: an entry of the cache must be as it was written"):
        assert plan_for(another(fresh), graph, 2) == wanted
    assert len(planned) == 2
    assert plan_for(another(fresh), graph, 2) == wanted
    assert len(planned) == 2, "it was mended"
    monkeypatch.setattr(plan_cache, "_files", lambda: (("a file", 1, 3),))
    assert plan_for(another(fresh), graph, 2) == wanted
    assert len(planned) == 3
