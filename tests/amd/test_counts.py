"""What the interpreter counts of a launch, against NumPy's own count of a kernel's addresses."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from blobnet.hardware.device_model import model_of
from tests.amd.compiler import missing
from tests.amd.launching import Counts

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
GROUP, KEPT, STEPS = 64, 256, 7
LANES, BANKS, LINE = 32, 32, 128
SOURCE = """
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void gathered(
    __global float *to, __global const int *places, __global const int *cells, const int steps)
{
    __local TYPE kept[256];
    for (int k = get_local_id(0); k < 256; k += 64) {
        kept[k] = k;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float x = SUM(kept[places[get_global_id(0)]]);
#pragma unroll 1
    for (int k = 0; k < steps; k++) {
        x = fma(x, x, 1.0f);
    }
    if (get_local_id(0) % 3 != 1) {
        to[cells[get_global_id(0)]] = x;
    }
}
"""
SUMS = {1: "(v)", 2: "((v).x + (v).y)", 4: "((v).x + (v).y + (v).z + (v).w)"}


def waves(values: Any) -> Iterable[Any]:
    return values.reshape(-1, LANES)


def lines_of(addresses: Iterable[Any]) -> int:
    """Cache lines of one access of each wave."""
    return sum(len(np.unique(wave // LINE)) for wave in addresses)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_bytes_lines_and_conflicts_of_random_addresses(width: int) -> None:
    from tests.amd.device import MachineDevice

    rng = np.random.default_rng(width)
    groups = 3
    places = rng.integers(0, KEPT, groups * GROUP).astype(np.int32)
    places[:LANES] = 5  # The same word for all: no conflict.
    places[LANES:GROUP] = 32 * np.arange(LANES) % KEPT  # Always the same bank.
    cells = rng.permutation(1 << 12)[: groups * GROUP].astype(np.int32)
    device = MachineDevice()
    device.counts_traffic = True
    kind = f"float{width}" if width > 1 else "float"
    kernel = device.programs.kernel(
        f"#define TYPE {kind}\n#define SUM(v) {SUMS[width]}\n{SOURCE}", "gathered", "kernel gathered"
    )
    buffers = [
        device.memory.allocate(4 << 12),
        device.memory.allocate(places.nbytes),
        device.memory.allocate(cells.nbytes),
    ]
    device.memory.write(buffers[1], places)
    device.memory.write(buffers[2], cells)
    for index, value in enumerate([*buffers, np.int32(STEPS)]):
        device.queue.set_argument(kernel, index, value)
    device.queue.prepare(kernel, (groups * GROUP,), (GROUP,))()

    counts = device.counts
    assert counts is not None
    assert counts.groups == groups
    assert counts.instructions["v_fma_f32"] + counts.instructions["v_fmac_f32"] == 2 * groups * STEPS
    assert counts.instructions["s_endpgm"] == 2 * groups
    at_work = np.arange(groups * GROUP) % GROUP % 3 != 1
    assert counts.traffic["loaded"] == 4 * (len(places) + at_work.sum())
    assert counts.traffic["stored"] == 4 * at_work.sum()
    stored = [wave[mask] for wave, mask in zip(waves(4 * cells), waves(at_work), strict=True)]
    assert counts.traffic["lines"] == 2 * 2 * groups + lines_of(stored)
    clocks, least = 0, 0
    for wave in waves(places):
        for lanes in wave.reshape(-1, BANKS // width):  # That many are served at once.
            words = np.unique(lanes[:, None] * width + np.arange(width))
            clocks += np.bincount(words % BANKS).max()
            least += 1
    stores = 2 * groups * KEPT // GROUP * width  # Neighbours: no conflict.
    assert counts.traffic["local_clocks"] == stores + clocks
    assert counts.traffic["conflicts"] == clocks - least > 0


def test_a_sample_of_equal_groups_counts_for_all() -> None:
    from tests.amd.device import MachineDevice

    source = "__kernel void doubled(__global float *to) { to[get_global_id(0)] *= 2; }"
    found = []
    for sampled in (1, 5):
        device = MachineDevice()
        device.counts_traffic, device.sampled = True, sampled
        kernel, to = device.programs.kernel(source, "doubled", "kernel doubled"), device.memory.allocate(4 * 64 * 50)
        device.memory.write(to, np.ones(64 * 50, np.float32))
        device.queue.set_argument(kernel, 0, to)
        device.queue.prepare(kernel, (64 * 50,), (64,))()
        found.append(device.counts)
        ran = (device.memory.read(to, 64 * 50) == 2).reshape(50, 64)
        assert (ran.all(1) == ran.any(1)).all()
        assert ran.any(1).sum() == 50 if sampled == 1 else 1 <= ran.any(1).sum() < 25
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].traffic["loaded"] == 4 * 64 * 50


def test_the_slowest_part_is_the_bound() -> None:
    from tests.amd.counts import cost
    from tests.amd.device import ANSWERS

    model = model_of(ANSWERS[32])
    assert model.compute_units == 16
    named = Counter(v_fmac_f32=900, v_mul_lo_u32=50, v_add_nc_u32=100, s_add_u32=160, ds_load_b128=8, global_load_b32=4)
    traffic = {"loaded": 512, "stored": 0, "lines": 40, "local_clocks": 640, "conflicts": 80}
    found = cost(Counts(named, 10, 32, traffic), 128 * 15, model)
    assert [*found.kinds.values()] == [900, 150, 160, 8, 4]
    assert (found.bound, found.least) == ("local", 640 / 2 / 16)
    slower = Counts(named, 10, 32, traffic | {"local_clocks": 64})
    assert (cost(slower, 0, model).bound, cost(slower, 0, model).least) == ("vector", (1050 - 10 + 3 * 50) / 4 / 16)
    assert cost(slower, 128 * 1000, model).bound == "memory"
    assert cost(slower, 128 * 1000, model).least == 1000
    # A group more than a round of the 16 processors: one of them has two.
    assert cost(Counts(named, 10, 17, traffic), 0, model).least == 640 / 2 * 2 / 17
    assert (found + found).least == 2 * found.least


@pytest.mark.long
def test_the_command_lists_the_launches_of_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.amd.counts import main

    monkeypatch.setattr(sys, "argv", ["counts", "lenet5", "--shape", "1", "12", "12", "--sampled", "3"])
    main()
    said = capsys.readouterr().out
    for words in ("convolution/forward_tiled", "conv2 backward weight", "least time"):
        assert words in said
    total = next(line for line in said.splitlines() if line.startswith("all ")).split()
    shares = [int(word) for word in total[3:8]]
    assert 98 <= sum(shares) <= 102
