"""Random networks of all layers against PyTorch in float64; more of them: ``python -m tests.random_networks``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blobnet.device.device import Device

pytest.importorskip("torch")

from tests import random_networks, torch_graphs
from tests.random_networks import GENERATED, NOT_GENERATED, STORAGE_OF, differences, examine, make_problem

#: The first networks of each test, and how many it has: pytest shares tests among processes.
FIRST, EACH = [*range(0, 30, 5), *range(500, 530, 5)], 5


def test_there_is_every_kind_of_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert random_networks.unlisted_kinds() == set()
    assert all(reason for reason in NOT_GENERATED.values())
    seen = {vertex.layer.kind for seed in range(600) for vertex in make_problem(seed).model.graph.vertices}
    assert seen == GENERATED.keys() | {"Input"}
    # Copies: an item that is put back is the last one, and other networks are drawn.
    for module, name, kind in (random_networks, "GENERATED", "Pad"), (torch_graphs, "MODULES", "Scale"):
        monkeypatch.setattr(module, name, {own: made for own, made in getattr(module, name).items() if own != kind})
    assert random_networks.unlisted_kinds() == {"Pad", "Scale"}


@pytest.mark.parametrize("first", FIRST)
def test_random_networks_are_pytorchs(device: Device, first: int) -> None:
    said: list[str] = []
    # What a gradient is, three steps show as well; gradients by themselves take as long as the rest.
    tally = examine(range(first, first + EACH), device, said.append, with_gradients=first % 3 == 0)
    assert tally.networks == EACH
    assert not said, "\n".join(said)


@pytest.mark.parametrize("precision", STORAGE_OF)
def test_random_networks_in_narrow_types(device: Device, precision: str) -> None:
    """One of them has the greatest of values that are wider in memory than what is kept of it."""
    said: list[str] = []
    tally = examine(range(28, 34), device, said.append, precision=precision)
    assert tally.networks == 6
    assert not said, "\n".join(said)


@pytest.mark.parametrize(("precision", "factor"), [("fp32", 1.001), ("bf16", 1.2)])
def test_a_wrong_number_is_found(
    device: Device, monkeypatch: pytest.MonkeyPatch, precision: str, factor: float
) -> None:
    monkeypatch.setitem(
        torch_graphs.MODULES, "Scale", lambda layer, x, p: x[0] * factor * torch_graphs.by_unit(p["scale"], x[0])
    )
    kinds = (
        (seed, {vertex.layer.kind for vertex in make_problem(seed, 3).model.graph.vertices}) for seed in range(1000)
    )
    seed = next(seed for seed, own in kinds if "Scale" in own and not own & {"BatchNorm", "LayerNorm", "Activation"})
    problem = replace(make_problem(seed, 3), precision=precision)
    assert "prediction" in " ".join(map(str, differences(problem, device)))
    monkeypatch.undo()
    assert differences(problem, device) == []


def test_what_cancels_is_measured_by_its_terms() -> None:
    """A gradient that is 0 in theory is allowed the rounding of what it is the sum of; a small one is not."""
    arrays = {
        "gradient of a/key": np.array([0.5, -2.0]),
        "gradient of a/key_bias": np.array([1e-17, 0.0]),
        "gradient of a/bias": np.array([1e-4]),
        "gradient of b/bias": np.array([0.0]),
        "loss": np.array([np.nan, 3.0]),
    }
    found = {name: random_networks._scale(arrays, name) for name in arrays}
    assert found == dict(zip(arrays, (2.0, 2.0, 1e-4, 0.0, 3.0), strict=True))
