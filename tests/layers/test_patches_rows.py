"""Minimal filtering of blobs of cells, on processors: vectors of units (kernels/convolution/winograd_unit_sums.cl)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from blobnet.device.device import Device
from blobnet.implementations import patches
from blobnet.implementations.patches_rows import UnitPatches
from blobnet.layers import Conv2D
from blobnet.memory.blob import CELL_UNITS, FLOAT32_CELLS, Shape
from tests.kinds import tuning_for
from tests.layers.arranged import Arrangement
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract
from tests.layers.test_convolution_winograd import ERRORS, launches, plan_for
from tests.layers.test_rows import KINDS

#: By the side of a patch: layers and shapes, each with something that does not come out even.
CASES: dict[str, tuple[int, Conv2D, Shape]] = {
    "7x7": (6, Conv2D(16, 3, padding="same"), Shape(24, 7, 7)),
    "long rows": (6, Conv2D(24, 3, padding=1), Shape(8, 6, 70)),
    "padding of 2": (6, Conv2D(40, 3, padding=2), Shape(16, 6, 5)),
    "taps of 5": (6, Conv2D(16, 5, padding=((2, 1), (0, 3)), bias=False), Shape(8, 8, 6)),
    "units beyond whole blocks": (4, Conv2D(168, 3), Shape(8, 5, 9)),
    "asymmetric padding": (4, Conv2D(8, 3, padding=((2, 0), (0, 1)), bias=False), Shape(16, 4, 7)),
    "one result": (4, Conv2D(8, 3), Shape(8, 3, 3)),
    "one position": (4, Conv2D(24, 3, padding=1), Shape(16, 2, 1)),
}


def check(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[int, Conv2D, Shape],
    kind: str = "AVX-512",
    tunables: Mapping[str, int] = {},
    **options: Any,
) -> ContractReport:
    """The layer contract with patches of one size alone."""
    side, layer, shape = case
    monkeypatch.setattr(patches, "SIDES", {side: patches.SIDES[side]})
    own = {"convolution/winograd_unit_sums": tunables}
    tuning = tuning_for("cpu", own, compute_units=2, only={"patches_rows"}, storage=FLOAT32_CELLS, **KINDS[kind])
    options = {"arrangements": ["own pitches"], "fused": ("relu",), **options}
    report = contract(device, layer, shape, tuning=tuning, relative=ERRORS[side], absolute=ERRORS[side], **options)
    for run in report.runs.values():
        weights, *_, units, sums = run.calls["forward"]
        assert weights.kernel == "convolution/winograd_blocks"
        assert (units.kernel, sums.kernel) == ("convolution/winograd_units", "convolution/winograd_unit_sums")
        assert sums.macros["CELLS"] == side - layer.parameters([shape])[0].shape[-1] + 1
        assert sums.macros["LANES"] == (CELL_UNITS if layer.filters <= CELL_UNITS else KINDS[kind]["lanes"])
    return report


@pytest.mark.parametrize(("case", "kind"), [*((case, "AVX-512") for case in CASES), ("7x7", "AVX2")])
def test_cases(device: Device, case: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(device, monkeypatch, CASES[case], kind)


def test_a_residual(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    residual = Arrangement("residual", same_pitch=True, training=False, residual=True)
    check(device, monkeypatch, CASES["7x7"], arrangements=[residual])


@pytest.mark.parametrize("items", [1, 32])
def test_runs_of_a_work_item(device: Device, items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few work-items make several runs of patches, of which the last does not come out even."""
    tunables = {"MAXIMUM_RUN": 4, "MAXIMUM_VECTORS": 1, "TARGET_ITEMS": items}
    report = check(device, monkeypatch, (4, Conv2D(32, 3, padding=1), Shape(8, 9, 13)), tunables=tunables)
    for run in report.runs.values():
        assert (run.calls["forward"][-1].macros["RUNS_AT_ONCE"] > 1) == (items == 1)


@pytest.mark.parametrize("batch_size", [3, 4])
def test_chunks_and_short_batches(device: Device, batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 samples of the batch that is planned, in chunks of 2."""
    plan_for(monkeypatch, UnitPatches, batch_size)
    monkeypatch.setattr(UnitPatches, "most_samples", 2)
    report = check(device, monkeypatch, (6, Conv2D(16, 3, padding=1), Shape(8, 9, 9)))
    for run in report.runs.values():
        assert launches(run, "forward", "units") == launches(run, "forward", "unit_sums") == 2
