"""Debug mode: a launch that breaks the promise is found, and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from blobnet.device.device import Device
from blobnet.errors import PromiseError
from blobnet.execution.executor import check_promise
from blobnet.launch.kernel_call import Array, GlobalSize, KernelCall
from blobnet.launch.kernel_source import load
from blobnet.memory.blob import FLOAT16, BlobLayout, Shape
from tests.layers.arranged import Arrangement, Bench, make_problem
from tests.layers.toy_layer import BACKWARD, FORWARD, ToyLayer, use_kernels

#: Mistake -> the rule that the message names, and the cell, of a blob of 2 units of 3 x 4 with halos and slack.
MISTAKES: dict[str, tuple[str, str, Callable[[BlobLayout], tuple[int, ...]]]] = {
    "one column too far": (
        "output[BLOB_INDEX(OUTPUT, n, 1, 2, OUTPUT_UNIT_WIDTH)] = 3;",
        "every halo cell must be exactly 0 after a launch",
        lambda layout: (0, layout.unit_offset + 1, *_row_and_column(layout, 2, layout.width.size)),
    ),
    "not a number in the halo above": (
        "output[BLOB_INDEX(OUTPUT, n, 0, -1, 0)] = NAN;",
        "every halo cell must be exactly 0 after a launch",
        lambda layout: (0, layout.unit_offset, *_row_and_column(layout, -1, 0)),
    ),
    "one in the halo of the last sample": (
        "if (n == count - 1) { output[BLOB_INDEX(OUTPUT, n, 0, 0, -1)] = 1; }",
        "every halo cell must be exactly 0 after a launch",
        lambda layout: (2, layout.unit_offset, *_row_and_column(layout, 0, -1)),
    ),
    "another unit": (
        "output[BLOB_INDEX(OUTPUT, n, -1, 0, 0)] = 1;",
        "a launch may change only the data of the blobs and arrays that it writes",
        lambda layout: (0, layout.unit_offset - 1, *_row_and_column(layout, 0, 0)),
    ),
    "slack": (
        "output[BLOB_INDEX(OUTPUT, n, 0, 0, 0) + OUTPUT_UNIT_MEMORY_ELEMENTS - 1"
        " - OUTPUT_UNIT_MEMORY_HEIGHT_OFFSET * OUTPUT_UNIT_MEMORY_WIDTH - OUTPUT_UNIT_MEMORY_WIDTH_OFFSET] = 1;",
        "a launch may change only the data of the blobs and arrays that it writes",
        lambda layout: (
            0,
            layout.unit_offset,
            *divmod(layout.unit_memory_elements - 1, layout.width.memory),
        ),
    ),
    "a sample that is not in the batch": (
        "output[BLOB_INDEX(OUTPUT, count, 0, 1, 2)] = 1;",
        "a launch may change only the data of the blobs and arrays that it writes",
        lambda layout: (3, layout.unit_offset, *_row_and_column(layout, 1, 2)),
    ),
}


def _row_and_column(layout: BlobLayout, y: int, x: int) -> tuple[int, int]:
    position = (layout.height.before + y) * layout.width.memory + layout.width.before + x
    return divmod(position, layout.width.memory)


def _bench(device: Device) -> Bench:
    """A bench whose output has a halo on all sides, slack, and units before and behind; its input delta has a unit
    before it.
    """
    problem = make_problem(ToyLayer(name="toy1"), [Shape(2, 3, 4)])
    for number in range(1000):
        bench = Bench(device, problem, Arrangement(f"arrangement {number}"))
        layout = bench.output.layout
        sides = (layout.height.before, layout.height.after, layout.width.before)
        room = (layout.unit_offset, layout.unit_padding, layout.unit_memory_elements - layout.plane_extent)
        delta = bench.input_deltas[0]
        if delta and min(*sides, *room, layout.width.after, delta.layout.unit_offset) > 0:
            bench.load()
            return bench
    raise AssertionError("no arrangement has room on all sides")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_launch_that_breaks_the_promise_is_named(
    device: Device, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    statement, rule, place = MISTAKES[mistake]
    use_kernels(monkeypatch, forward=FORWARD.replace("MISTAKE", statement))
    bench = _bench(device)
    n, unit, row, column = place(bench.output.layout)
    cell = f"cell=(n={n}, memory unit={unit}, memory row={row}, memory column={column})"
    message = f"toy1 forward (toy/forward): {rule}. Received storage=output 0, {cell}, value="
    with pytest.raises(PromiseError, match=re.escape(message)):
        bench.run("forward", debug=True)


def test_backward_launches_are_checked_too(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = "input_delta[BLOB_INDEX(INPUT_DELTA, n, -1, 0, 0)] = 1;"
    use_kernels(monkeypatch, backward=BACKWARD.replace("MISTAKE", statement))
    bench = _bench(device)
    bench.run("forward", debug=True)
    bench.load_deltas()
    with pytest.raises(PromiseError, match=r"toy1 backward data \(toy/backward\): .*storage=input delta 0, cell=\(n=0"):
        bench.run("backward data", debug=True)


def test_a_correct_launch_passes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(monkeypatch)
    bench = _bench(device)
    bench.run("forward", debug=True)
    np.testing.assert_array_equal(bench.values(bench.output), 2 * bench.problem.inputs[0])


def test_computing_on_the_halo_is_allowed_if_zeros_stay(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(monkeypatch, forward=FORWARD.replace("MISTAKE", "output[BLOB_INDEX(OUTPUT, n, 0, 0, -1)] = -0.0f;"))
    _bench(device).run("forward", debug=True)


def test_without_debug_mode_nothing_is_checked(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    statement, _, _ = MISTAKES["another unit"]
    use_kernels(monkeypatch, forward=FORWARD.replace("MISTAKE", statement))
    with pytest.raises(PromiseError, match="must keep what is not the phase's to write"):  # The bench's own check.
        _bench(device).run("forward", debug=False)


def test_arrays_and_what_lies_behind_them() -> None:
    """A gradient that runs into its neighbour's, or a write behind the last sample, is found as well."""
    totals, metrics = Array("totals", 4, persistent=True), Array("sample_metrics", 0, 3, persistent=True)
    arrays = {"SAMPLE_METRICS": metrics, "TOTALS": totals}
    call = KernelCall("loss/accumulate", "metrics", GlobalSize(1, per_sample=False), arrays=arrays)
    before = {"totals": np.zeros(9, np.float32), "sample_metrics": np.zeros(12, np.float32)}
    good = {"totals": np.float32([1, 2, 3, 4, 0, 0, 0, 0, 0]), "sample_metrics": before["sample_metrics"]}
    check_promise(call, before, good, 2, 3)
    for name, index in (("totals", 4), ("totals", 8), ("sample_metrics", 0)):
        bad = {key: values.copy() for key, values in good.items()}
        bad[name][index] = 7
        message = rf"metrics \(loss/accumulate\): a launch may change only .* storage={name}, cell={index}, value=7.0"
        with pytest.raises(PromiseError, match=message):
            check_promise(call, before, bad, 2, 3)


def test_halves_are_compared_bit_by_bit() -> None:
    arrays = {role: Array(name, 3, persistent=True, type=FLOAT16) for role, name in (("INPUT", "a"), ("OUTPUT", "b"))}
    source = replace(load("loss/accumulate"), blobs={}, arrays={"INPUT": "read", "OUTPUT": "write"})
    call = KernelCall("copy", "halves", GlobalSize(1), arrays=arrays, generated=source)
    before = {name: np.full(5, np.nan, np.float16) for name in "ab"}
    good = {"a": before["a"], "b": np.float16([1, 2, 3, np.nan, np.nan])}
    check_promise(call, before, good, 1, 1)
    bad = {"a": before["a"], "b": np.float16([1, 2, 3, np.nan, -0.0])}
    with pytest.raises(PromiseError, match=r"halves \(copy\): .* storage=b, cell=4, value=-0.0"):
        check_promise(call, before, bad, 1, 1)
