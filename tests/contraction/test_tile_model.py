"""Flat tables and the published choice of tiles, against what was published."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from blobnet.contraction import function, reference
from blobnet.contraction.form import Affine, Apply, Read, Statement
from blobnet.contraction.layout import Layout
from blobnet.contraction.table import flatten
from tests.bench.tile_model import PUBLISHED, Flat, choose, output_plan, read_plan, score, search
from tests.contraction.random_contractions import bound

TEXT = """function (D[N, X, Y, CI], K[I, J, CO, CI]) -> (R) {
  O[n, x, y, co : N, X, Y, CO] = +(D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]);
  R = (O > 0 ? O : 0);
}"""
CONVOLUTION, ACTIVATION = function(TEXT).program(D=(32, 224, 224, 64), K=(3, 3, 64, 64)).statements
AFTER = sum(isinstance(part, Apply) for part in ACTIVATION.expression.walk())
CHOSEN = (8, 32, 2, 3, 16, 2, 2)  # ci, co, i, j, n, x, y


def flat_of(statement: Statement) -> Flat:
    """The table for tensors without padding."""
    reads = (statement.output, *statement.reads)
    return Flat.of(flatten(statement, {read.tensor.name: Layout.padded(read.tensor.shape) for read in reads}))


@pytest.fixture(scope="module")
def flat() -> Flat:
    return flat_of(CONVOLUTION)


def test_the_published_table(flat: Flat) -> None:
    assert str(flat) == (
        """             Range         O         D         K
      ci        64         0         1         1
      co        64         1         0        64
       i         3         0     14336     12288
       j         3         0        64      4096
       n        32   3211264   3211264         0
       x       224     14336     14336         0
       y       224        64        64         0
     off                   0    -14400         0
Constraint: (0,0,-1,0,0,-1,0) <= -1
Constraint: (0,0,1,0,0,1,0) <= 224
Constraint: (0,0,0,-1,0,0,-1) <= -1
Constraint: (0,0,0,1,0,0,1) <= 224"""
    )


@pytest.mark.parametrize(
    ("tile", "figures", "over"),
    [
        ((8, 32, 1, 3, 16, 8, 2), "wg=12544 il=24 sm=20656 or=32768 mr=19456 mw=32768 op=256 tu=256", "memory"),
        ((8, 32, 1, 3, 16, 4, 4), "wg=12544 il=24 sm=16272 or=32768 mr=15360 mw=32768 op=256 tu=256", "registers"),
        ((16, 32, 1, 1, 16, 2, 2), "wg=50176 il=36 sm=6488 or=8192 mr=6144 mw=8192 op=256 tu=256", ""),
        ((8, 32, 2, 1, 16, 2, 2), "wg=50176 il=48 sm=5264 or=8192 mr=5120 mw=8192 op=256 tu=256", ""),
    ],
)
def test_the_published_scores(flat: Flat, tile: tuple[int, ...], figures: str, over: str) -> None:
    found = score(flat, tile, PUBLISHED, AFTER)
    assert found.total_operations == 236760072192
    assert figures == (
        f"wg={found.work_groups} il={found.inner_loops} sm={found.shared_memory} or={found.output_registers} "
        f"mr={found.memory_read} mw={found.memory_written} op={found.operations} tu={found.threads_used}"
    )
    assert found.over == over
    assert (found.value == -1) == bool(over)


def test_the_published_ratios(flat: Flat) -> None:
    first = score(flat, (16, 32, 1, 1, 16, 2, 2), PUBLISHED, AFTER)
    assert f"{first.flops_per_byte:.6g}" == "20.5714"
    assert (first.roof_ratio, first.occupancy_ratio, first.thread_ratio, first.value) == (1, 1, 1, 1)
    second = score(flat, (8, 32, 2, 1, 16, 2, 2), PUBLISHED, AFTER)
    assert f"{second.flops_per_byte:.6g}" == "18.5806"
    assert (f"{second.roof_ratio:.6g}", second.occupancy_ratio, second.thread_ratio) == ("0.929032", 1, 1)
    assert f"{second.value:.6g}" == "0.929032"


def test_the_published_choice(flat: Flat) -> None:
    seen = search(flat, PUBLISHED, AFTER)
    order = list(seen)
    published = [(8, 32, 1, 3, 16, 8, 2), (8, 32, 1, 3, 16, 4, 4), (16, 32, 1, 1, 16, 2, 2), (8, 32, 2, 1, 16, 2, 2)]
    first = order.index(published[0])
    assert order[first : first + 4] == published
    assert sum(found.value == 1 for found in seen.values()) == 128
    assert choose(flat, PUBLISHED, AFTER) == CHOSEN


@pytest.mark.parametrize(
    ("local_memory", "registers", "same"),
    [(16272, 16384, True), (18432, 32768, True), (20000, 18432, False), (18432, 8192, False)],
)
def test_where_the_choice_is_the_same(flat: Flat, local_memory: int, registers: int, same: bool) -> None:
    hardware = replace(PUBLISHED, local_memory=local_memory, registers=registers)
    assert (choose(flat, hardware, AFTER) == CHOSEN) == same


def test_the_published_read_plans(flat: Flat) -> None:
    data, weights = (read_plan(flat, access, CHOSEN, PUBLISHED) for access in flat.operands)
    found = {m.name: (m.range, m.stride, local) for m, local in zip(data.merged, data.local, strict=True)}
    assert found == {"i_x": (3, 14336, 1), "j_y": (4, 64, 393), "ci": (8, 1, 49), "n": (16, 3211264, 3)}
    found = {m.name: (m.range, m.stride, local) for m, local in zip(weights.merged, weights.local, strict=True)}
    assert found == {"j_i": (6, 4096, 265), "ci": (8, 1, 33), "co": (32, 64, 1)}
    assert (data.elements, weights.elements) == (1572, 1590)


def test_the_published_threads(flat: Flat) -> None:
    plan = output_plan(flat, CHOSEN, PUBLISHED)
    assert dict(zip(flat.indexes, plan.threads, strict=True)) == {
        "ci": 1, "co": 8, "i": 1, "j": 1, "n": 8, "x": 2, "y": 2
    }  # fmt: skip
    assert not plan.rolled_up


def test_threads_that_an_output_leaves_sum_up() -> None:
    flat = flat_of(function("O[i] = +(A[i, k])").program(A=(4, 1000)).statements[0])
    plan = output_plan(flat, (4, 512), PUBLISHED)
    assert plan == type(plan)(threads=(4, 64), rolled_up=True)
    found = score(flat, (4, 512), PUBLISHED)
    assert found.shared_memory == 4 * (4 * 513 + PUBLISHED.threads)  # rows lie 513 apart, and a sum a thread
    assert found.output_registers == 4 * PUBLISHED.threads


def test_a_sum_of_everything_has_no_output_index() -> None:
    flat = flat_of(function("O[] = +(A[k])").program(A=(1000,)).statements[0])
    assert choose(flat, PUBLISHED) in search(flat, PUBLISHED)
    assert score(flat, (1000,), PUBLISHED).work_groups == 1


@pytest.mark.parametrize("seed", range(2))
def test_tables_say_what_statements_say(seed: int) -> None:
    """Addresses and constraints of random contractions, also for tensors with padding."""
    rng = np.random.default_rng(seed)
    for contraction, program in bound(700 + seed, 150):
        (statement,) = program.statements
        reads: list[Read] = [statement.output, *statement.reads]
        strides = {read.tensor.name: tuple(int(s) for s in rng.integers(1, 99, len(read.map))) for read in reads}
        layouts = {
            read.tensor.name: replace(Layout.padded(read.tensor.shape), strides=strides[read.tensor.name])
            for read in reads
        }
        flat = Flat.of(flatten(statement, layouts))
        assert list(flat.indexes) == sorted(flat.indexes)
        assert all(size > 1 for size in flat.ranges)
        count = math.prod(flat.ranges)
        grid = np.indices(flat.ranges).reshape(len(flat.ranges), count)
        points = {"": np.arange(count)} | {name: np.full(count, span.start) for name, span in statement.ranges}
        for name, row in zip(flat.indexes, grid, strict=True):
            points[name] = points[name] + row
        for read, access in zip(reads, (flat.output, *flat.operands), strict=True):
            address = np.zeros(count, int)
            for form, pitch in zip(read.map, strides[read.tensor.name], strict=True):
                address += reference.affine(form, points) * pitch
            flattened = access.offset + np.array(access.strides, int) @ grid
            assert access.tensor == read.tensor.name
            np.testing.assert_array_equal(flattened, address, err_msg=contraction.text)
        met = np.ones(count, bool)
        for constraint in statement.constraints:
            value = reference.affine(constraint.form, points)
            met &= (value >= 0) & (value < constraint.size)
        flat_met = np.ones(count, bool)
        for side in flat.bounds:
            reached = np.array(side.factors, int) @ grid
            assert reached.max() > side.most, "a constraint that the ranges imply"
            flat_met &= reached <= side.most
        np.testing.assert_array_equal(flat_met, met, err_msg=contraction.text)


def test_forms_read_as_they_are_written() -> None:
    i, j = Affine.index("i"), Affine.index("j")
    assert [str(form) for form in (Affine(), i, -i, i * 2 - j + 3, j * -3 - 1, Affine((), -4))] == [
        "0", "i", "-i", "2*i - j + 3", "-3*j - 1", "-4"
    ]  # fmt: skip
    assert i + j - i == j
    assert (i * 2 + 1).substitute({"i": j * 3 - 1}) == j * 6 - 1
    assert (i * 2 - j).range({"i": range(-1, 3), "j": range(5)}) == range(-6, 5)
