"""Convolutions on tensor cores that take cells: where there are none, on what kernels/warp_group.h puts in their place.

Small integers are exact in tf32 and in bfloat16, and so are their sums in fp32: the layer contract holds as for fp32.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.layers import Conv1D, Conv2D
from blobnet.memory.blob import Shape
from tests.kinds import tuning_for
from tests.layers.layer_contract import ContractReport
from tests.layers.test_convolution import contract
from tests.layers.test_convolution_tensor import MORE_CASES

CASES: dict[str, tuple[Conv1D | Conv2D, Shape]] = {
    **{name: case for name, case in MORE_CASES.items() if name != "whole tiles"},
    "odd": (Conv2D(37, 3, padding="same", bias="position"), Shape(17, 5, 9)),
    "valid": (Conv2D(70, (2, 3)), Shape(9, 5, 6)),
    "one tap": (Conv2D(37, 1, bias=False), Shape(36, 6, 6)),
    "padding beyond the filter": (Conv2D(5, 2, padding=((3, 0), (0, 4))), Shape(6, 3, 4)),
    "groups and dilation": (Conv2D(21, (3, 2), dilation=(1, 2), groups=3, padding=((1, 1), (0, 1))), Shape(15, 4, 5)),
}


def exact(device: Device, layer: Conv1D | Conv2D, shape: Shape, precision: str, **options: Any) -> ContractReport:
    """The contract on small integers, on these kernels alone."""
    generator = np.random.default_rng(7)
    count = 3

    def integers(*size: int) -> Any:
        return generator.integers(-4, 5, size)

    return contract(
        device,
        layer,
        shape,
        ["tight"],
        count=count,
        inputs=[integers(count, *shape.dimensions)],
        parameters={spec.name: integers(*spec.shape) for spec in layer.parameters([shape])},
        delta=integers(count, *layer.output_shape([shape]).dimensions),
        tuning=tuning_for("gpu", compute_units=2, precision=precision, only={"cells"}),
        **options,
    )


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_exact_products(device: Device, small_tiles: None, case: str, precision: str) -> None:
    layer, shape = CASES[case]
    report = exact(device, layer, shape, precision)
    phases = ["forward", "backward data"]
    # Tensor cores take no cells of tf32 turned.
    if precision == "bf16":
        phases.append("backward parameters")
    for run, phase in product(report.runs.values(), phases):
        others = {"convolution/split_sum", "convolution/clear_phase", "convolution/pack_cells"}
        products = {call.kernel for call in run.calls[phase] if "convolution" in call.kernel} - others
        assert products
        assert all("cells" in kernel for kernel in products), products
