"""Forward convolutions of processors whose blobs have cells: vectors of units (kernels/convolution/forward_rows.cl)."""

from __future__ import annotations

from typing import Any

import pytest

from blobnet.device.device import Device
from blobnet.launch.kernel_call import Tuning
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import CELL_UNITS, FLOAT32_CELLS, Shape
from tests.kinds import tuning_for
from tests.layers.test_convolution import contract
from tests.layers.test_convolution_cells import APART, WHOLE

#: Beside those of whole cells: numbers on one side, rows of several runs, blocks of units that overlap.
CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    **{name: WHOLE[name] for name in ("valid", "stride of 3, dilated", "padding beyond the filter", "row")},
    "numbers in": (Conv2D(24, (3, 2), stride=2, padding=1), Shape(5, 9, 8)),
    "numbers out": (Conv2D(13, 3, padding=1), Shape(16, 5, 7)),
    "a cell alone": (Conv2D(8, 3), Shape(8, 3, 3)),
    "runs that overlap": (Conv2D(40, (1, 3), padding=(0, 1)), Shape(8, 3, 31)),
    "blocks of units that overlap": (Conv2D(168, 1), Shape(24, 2, 5)),
    "one column": (Conv2D(16, 3, padding=1), Shape(8, 6, 1)),
}
KINDS: dict[str, dict[str, Any]] = {"AVX2": {"lanes": 8, "registers": 16}, "AVX-512": {"lanes": 16, "registers": 32}}


def tuning(kind: str) -> Tuning:
    return tuning_for("cpu", compute_units=2, only={"rows", "depthwise_rows"}, storage=FLOAT32_CELLS, **KINDS[kind])


@pytest.mark.parametrize(
    ("case", "kind"), [*((case, "AVX-512") for case in CASES), ("valid", "AVX2"), ("numbers out", "AVX2")]
)
def test_products(device: Device, case: str, kind: str) -> None:
    layer, shape = CASES[case]
    report = contract(device, layer, shape, ["own pitches"], tuning=tuning(kind), fused=("relu",))
    for run in report.runs.values():
        assert [call.kernel for call in run.calls["forward"]] == ["convolution/pack_weight", "convolution/forward_rows"]
        lanes = run.calls["forward"][1].macros["LANES"]
        assert lanes == (CELL_UNITS if layer.filters <= CELL_UNITS else KINDS[kind]["lanes"])


@pytest.mark.parametrize(
    ("case", "kind"), [*((case, "AVX-512") for case in (*APART, "a long row")), ("same", "AVX2"), ("stride", "AVX2")]
)
def test_units_that_are_apart(device: Device, case: str, kind: str) -> None:
    layer, shape = APART.get(case, (Conv2D(16, 3, padding=1, groups=16), Shape(16, 3, 61)))
    report = contract(device, layer, shape, ["own pitches"], tuning=tuning(kind), fused=("relu",))
    for run in report.runs.values():
        kernels = [call.kernel for call in run.calls["forward"]]
        assert kernels == ["convolution/pack_weight", "convolution/forward_depthwise_rows"]
