"""Tests of the launch that adds up the parts of a gradient (kernels/gradient/reduce.cl), of any number of elements."""

from __future__ import annotations

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.execution.executor import bind
from blobnet.launch.kernel_call import Array, Batch, KernelCall
from blobnet.launch.work_sizes import sum_call
from blobnet.memory.blob import FloatArray
from blobnet.network.parameters import READ_OVERRUN
from tests.kinds import tuning_for
from tests.planning.test_combining import combined


def launched(device: Device, call: KernelCall, parts: list[FloatArray]) -> FloatArray:
    """The gradients that a launch makes of such parts, one of each sum, and what lies behind them, which was 7."""
    sizes = {array.storage: array.end(0) + READ_OVERRUN for array in call.arrays.values()}
    buffers = {storage: device.memory.allocate(4 * size) for storage, size in sizes.items()}
    gradient = call.arrays["GRADIENT"].storage
    device.memory.write(buffers[gradient], np.full(sizes[gradient], 7, np.float32))
    if call.combines:
        device.memory.write(buffers[call.arrays["TABLE"].storage], np.array(call.table, np.int32))
    for one, values in zip(call.combines or [call], parts, strict=True):
        place = one.arrays["PARTIALS"]
        device.memory.write(buffers[place.storage], values, 4 * place.offset)
    for launch in bind(device, [call], buffers, Batch(1)):
        launch.enqueue()
    found: FloatArray = device.memory.read(buffers[gradient], sizes[gradient])
    return found


@pytest.mark.parametrize("splits", [1, 2, 4, 5, 33])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_sums_of_parts(device: Device, kind: str, splits: int) -> None:
    random = np.random.default_rng(splits)
    for elements in (1, 63, 64, 65, 199, 200, 255, 256, 257, 515, 1001):
        values = random.standard_normal((splits, elements)).astype(np.float32)
        partials, gradient = Array("partials", splits * elements), Array("gradient", elements)
        call = sum_call("sum", partials, gradient, splits, tuning_for(kind))
        found = launched(device, call, [values])
        bound = splits * np.finfo(np.float32).eps * np.abs(values).sum(0, np.float64)
        assert np.all(np.abs(found[:elements] - values.sum(0, np.float64)) <= bound), elements
        assert np.all(found[elements:] == 7)


def test_sums_of_several_gradients_at_once(device: Device) -> None:
    """Those of few parts and of many, in one launch."""
    random, parts, wanted, first = np.random.default_rng(0), [2, 33, 4, 5, 3], list[np.ndarray](), 0
    calls, values = [], []
    for number, (splits, elements) in enumerate(zip(parts, (257, 70, 1001, 64, 1), strict=True)):
        values.append(random.standard_normal((splits, elements)).astype(np.float32))
        wanted.append(values[-1].sum(0, np.float64))
        to = Array("gradients", elements, offset=first, persistent=True)
        calls.append(
            sum_call(str(number), Array(f"{number} partials", splits * elements), to, splits, tuning_for("gpu"))
        )
        first += elements
    (call,) = combined(*calls)
    assert {one.macros["RUN"] for one in call.combines} == {1, 4}
    found = launched(device, call, values)
    np.testing.assert_allclose(found[:first], np.concatenate(wanted), rtol=0, atol=1e-4)
    assert np.all(found[first:] == 7)
