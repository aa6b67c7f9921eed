"""Every kind of layer in plans that pad their blobs in other ways: results are those of the default."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.losses import CrossEntropy
from blobnet.memory.blob import Padding
from blobnet.planning import make_plan
from tests.kinds import as_gpu, tuning_for
from tests.reference.compare import assert_close
from tests.small_graphs import KNOWN_GRAPHS
from tests.train.test_plans import model_of

COUNT = 3
OWN_ZEROS, ALIGNED, BOTH = Padding(own_zeros=True), Padding(align=8), Padding(own_zeros=True, align=16)


def gradients_as_by_default(device: Device, name: str, padding: Padding) -> None:
    graph = KNOWN_GRAPHS[name]()
    generator = np.random.default_rng(1)
    x = generator.standard_normal((COUNT, *graph.input.shape.dimensions)).astype(np.float32)
    y = generator.integers(0, graph.output.shape.units, COUNT)
    model = model_of(graph)
    padded = copy.copy(device)
    padded.padding = padding
    expected = model.gradients(x, y, device=device)
    found = model.gradients(x, y, device=padded, debug=True)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        scale = float(np.abs(values).max())
        assert_close(found[key], values.astype(np.float64), relative=1e-4, absolute=1e-5 * scale + 1e-7, what=key)
    assert_close(
        model.predict(x, device=padded),
        model.predict(x, device=device).astype(np.float64),
        relative=1e-4,
        absolute=1e-5,
        what="output",
    )


@pytest.mark.parametrize("name", KNOWN_GRAPHS)
def test_rows_with_zeros_of_their_own(device: Device, name: str) -> None:
    gradients_as_by_default(device, name, OWN_ZEROS)


@pytest.mark.parametrize("name", ["residual", "one dimension", "depthwise"])
@pytest.mark.parametrize("padding", [ALIGNED, BOTH], ids=str)
def test_rounded_up(device: Device, name: str, padding: Padding) -> None:
    gradients_as_by_default(device, name, padding)


@pytest.mark.parametrize("name", ["residual", "depthwise", "few positions", "many units"])
@pytest.mark.parametrize("padding", [OWN_ZEROS, BOTH], ids=str)
def test_kernels_for_lanes(device: Device, monkeypatch: pytest.MonkeyPatch, name: str, padding: Padding) -> None:
    as_gpu(monkeypatch, device)
    gradients_as_by_default(device, name, padding)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_plans_pad_as_they_are_told(kind: str) -> None:
    graph = KNOWN_GRAPHS["residual"]()
    sizes = {}
    for padding in (Padding(), OWN_ZEROS, ALIGNED, BOTH):
        tuning = tuning_for(kind, padding=padding)
        plan = make_plan(graph, 4, loss=CrossEntropy(), training=True, tuning=tuning, every_halo=True)
        layouts = [blob.layout for blob in (*plan.outputs.values(), *plan.deltas.values())]
        for layout in layouts:
            if layout.width.size > 1:
                assert layout.width.memory % padding.align == layout.plane_memory_elements % padding.align == 0
        if padding == OWN_ZEROS:
            assert all(item.unit_memory_elements == item.height.memory * item.width.memory for item in layouts)
            assert any(layout.width.after and layout.width.before for layout in layouts)
        sizes[padding] = plan.bytes()
    assert sizes[Padding()] < min(sizes[OWN_ZEROS], sizes[ALIGNED]) < sizes[BOTH]
