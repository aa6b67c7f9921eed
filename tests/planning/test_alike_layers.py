"""Tests that a way that was chosen for one layer is right for those that are alike (Implementation.of)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blobnet import layers, models
from blobnet.implementations import candidates
from blobnet.implementations.base import Implementation
from blobnet.implementations.operation import Operation
from blobnet.launch.kernel_call import Tuning
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import BFLOAT16, BFLOAT16_CELLS
from blobnet.network.graph import Graph, from_nodes
from blobnet.planning import make_plan
from tests.kinds import tuning_for


def alike() -> Graph:
    """Layers of which each is there three times, on blobs of their own."""
    node = images = layers.Input(16, 9, 8)()
    for _ in range(3):
        node = layers.Activation("relu")(layers.Conv2D(16, 3, padding=1)(node))
        node = layers.Add()(node, layers.Conv2D(16, 1)(node))
        node = layers.Conv2D(16, 3, padding=1, groups=16)(node)
        node = layers.ConvTranspose2D(16, 3, padding=1)(node)
    node = layers.Flatten()(layers.Conv2D(16, 3, stride=2, padding=1)(node))
    for _ in range(3):
        node = layers.Activation("relu")(layers.Dense(24)(node))
    return from_nodes(images, layers.Dense(3)(node))


GRAPHS = {"alike": alike, "resnet8": lambda: models.resnet8((3, 16, 16), 3).graph}


def with_cells() -> Tuning:
    whole = {"compute_units": 132, "capability": (9, 0), "group_size": 1024, "local_memory": 48 << 10}
    return replace(tuning_for("gpu", precision="bf16", storage=BFLOAT16, **whole), cells=BFLOAT16_CELLS)


TUNINGS = {
    "cpu": lambda: tuning_for("cpu"),
    "gpu": lambda: tuning_for("gpu"),
    "tf32": lambda: tuning_for("gpu", precision="tf32", capability=(9, 0)),
    "cells": with_cells,
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", TUNINGS)
@pytest.mark.parametrize("batch", [2, 64])
def test_a_way_is_that_of_each_layer(batch: int, kind: str, graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launches name the blobs and arrays of that layer, as if it had been chosen for it alone."""
    plain, checked, used = Implementation.of, 0, set[str]()

    def of(self: Any, operation: Operation) -> Implementation:
        nonlocal checked
        made = plain(self, operation)
        if operation is not self.operation:
            (fresh,) = (item for item in candidates(operation) if item.way == self.way)
            assert made.calls() == fresh.calls()
            assert made.cost == fresh.cost
            checked += 1
            used.add(type(self).__name__)
        return made

    monkeypatch.setattr(Implementation, "of", of)
    make_plan(GRAPHS[graph](), batch, training=True, loss=CrossEntropy(), tuning=TUNINGS[kind]())
    assert checked >= 2
    assert kind != "cells" or graph != "alike" or batch == 2 or "Cells" in used
