"""Layers of single values, and of units, behind one another: what one launch does for several, and in whose place."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest

from blobnet import layers
from blobnet.checkup.chains import LINKS, MODES, PREDICTION, ChainCheck, chains, checks_of_chains, examine_chains
from blobnet.device.device import Device
from blobnet.launch import elementwise
from blobnet.memory.blob import Shape

SHAPES = [Shape(5), Shape(5, 1, 1), Shape(3, 7), Shape(3, 4, 5), Shape(2, 3, 2, 4)]


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_each_link_comes_behind_each_other_one(count: int) -> None:
    links = [str(number) for number in range(count)]
    found = Counter(pair for chain in chains(links) for pair in itertools.pairwise(chain))
    assert found.keys() == {*itertools.product(links, links)}
    assert found.total() <= count**2 + 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chains_are_right(device: Device, shape: Shape, mode: str) -> None:
    """All chains of flat values in prediction, and for the time that they take other ones of each other kind."""
    seed = len(SHAPES) * MODES.index(mode) + SHAPES.index(shape)
    some = np.random.default_rng(seed).permutation(list(LINKS))[: 8 if seed else None]
    finding = examine_chains(device, ChainCheck(shape, mode, tuple(map(str, some)), seed))
    assert (finding.verdict, finding.note) == ("ok", "")
    assert finding.error is not None
    assert 0 < finding.error < 5e-5


def test_what_the_doctor_checks() -> None:
    few, all_of_them = (checks_of_chains(thorough=thorough, seed=3) for thorough in (False, True))
    assert {(check.shape, check.mode) for check in all_of_them} == {*itertools.product(SHAPES, MODES)}
    assert all({*check.links} == {*LINKS} for check in all_of_them)
    assert [(check.shape, check.mode, len(check.links)) for check in few] == [
        (Shape(5), PREDICTION, 7),
        (Shape(3, 4, 5), PREDICTION, 7),
    ]
    for check in [*few, *all_of_them]:
        assert pickle.loads(pickle.dumps(check)) == check
        assert json.dumps(check.as_json())


def test_numbers_of_other_units_are_found(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a flat sample always a row, each unit would have the numbers of the first one."""

    def rows(*arguments: object, **named: object) -> object:
        kernel, label, blobs, tuning, steps, macros = (*arguments, *named.values(), (), None)[:6]
        call = elementwise.row_call(kernel, label, blobs, tuning, (), macros)  # type: ignore[arg-type]
        return elementwise.with_epilogue(call, steps)  # type: ignore[arg-type]

    (check, _) = checks_of_chains(thorough=False, seed=0)
    monkeypatch.setattr(layers.activation, "row_call", rows)
    refused = examine_chains(device, check)
    assert refused.verdict == "not built"
    assert "a kernel must write the units for which its epilogue has numbers" in refused.note
    monkeypatch.setattr(elementwise, "_check_units", lambda call, steps: None)
    finding = examine_chains(device, check)
    assert finding.verdict == "wrong"
    assert finding.error is not None
    assert finding.error > 1e-2
