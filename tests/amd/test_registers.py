"""What clang gives registers, and what it spills, of kernels that the contraction compiler makes."""

from __future__ import annotations

import functools

import pytest

from blobnet.contraction import function
from blobnet.contraction.lowering import lower
from blobnet.contraction.search import best_schedule
from blobnet.contraction.source import program_text
from blobnet.device.compiler import BUILD_OPTIONS
from blobnet.hardware.device_model import model_of
from tests.amd.compiler import compiled, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
#: A 3x3 convolution of 64 units, whose product has 8x8 sums a work-item.
CONVOLUTION = """
    function (I[N, C, H, W], F[O, C, A, B]) -> (R) {
        R[n, o, y, x : N, O, 56, 56] = +(I[n, i, y + a - 1, x + b - 1] * F[o, i, a, b]);
    }
"""


@pytest.mark.parametrize("lanes", [32, 64])
def test_a_product_whose_rows_are_written_out_spills_nothing(lanes: int) -> None:
    from tests.amd.code_object import CodeObject
    from tests.amd.device import ANSWERS

    program = function(CONVOLUTION).program(I=(64, 64, 56, 56), F=(64, 64, 3, 3))
    steps = lower(program, functools.partial(best_schedule, device=model_of(ANSWERS[lanes]))).steps
    products = [step for step in steps if step.schedule.product]
    assert products
    for step in products:
        code = CodeObject(compiled(program_text([step.kernel]), BUILD_OPTIONS, lanes))
        assert [kernel.scratch_bytes for kernel in code.kernels.values()] == [0]
