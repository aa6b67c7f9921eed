"""Schedules as text, and what they must not ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blobnet.contraction import function
from blobnet.contraction.costs import predict
from blobnet.contraction.lowering import grouped, laid_out
from blobnet.contraction.schedule import Schedule, borders, check, prepared
from blobnet.contraction.search import best_schedule, search
from blobnet.contraction.table import Table, flatten
from blobnet.device_model import GENERIC, DeviceModel
from blobnet.errors import OptionError
from tests.contraction.random_schedules import proposal

CONVOLUTION = "R[n, o, y, x : 2, 32, 14, 14] = +(I[n, i, y + a - 1, x + b - 1] * W[o, i, a, b])"
CPU = replace(GENERIC["cpu"], compute_units=2, lanes=16, registers=32)
POOLING = "R[n, u, y, x : 2, 3, 7, 7] = >(I[n, u, 2*y + a - 1, 2*x + b - 1]), a < 3, b < 3"


def table_of(text: str, **shapes: tuple[int, ...]) -> Table:
    program = function(text).program(**shapes)
    groups = grouped(program)
    return flatten(groups[0].statement, laid_out(program, groups), groups[0].stores)


@pytest.fixture(scope="module")
def convolution() -> Table:
    return table_of(CONVOLUTION, I=(2, 6, 14, 14), W=(32, 6, 3, 3))


@pytest.fixture(scope="module")
def pooling() -> Table:
    return table_of(POOLING, I=(2, 3, 14, 14))


def test_text_says_it_all(convolution: Table) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        schedule = proposal(convolution, rng)
        again = Schedule.parse(str(schedule))
        assert str(again) == str(schedule)
        assert again.tile("o") == schedule.tile("o")
    assert Schedule.parse("") == Schedule()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tile q 1x1x1", "there is no index 'q'"),
        ("tile i 1x1x2", "i is no output index"),
        ("tile x 1x1x15", "a tile of x must not be larger than its range"),
        ("join y o", "y and o must be the same distance apart"),
        ("unroll x", "x must be a reduction index"),
        ("vector x 3", "a vector must have 1, 2, 4, 8, 16 lanes"),
        ("tile x 1x1x6; vector x 4", "the results of x must be whole vectors"),
        ("vector a 2; order b i a; pack W", "the reduction index a must be the innermost loop"),
        ("pack W", "operands are packed for the lanes of a vector"),
        ("pack I; tile o 1x1x16; vector o 16", "I must have an axis that is o alone"),
        ("pack Q; tile o 1x1x16; vector o 16", "there is no operand 'Q'"),
        ("split i 4", "i must be a reduction index whose range the parts divide"),
        ("chunk i 2", "i must be a reduction index, and an operand in local memory"),
        ("tile o 1x1x32; tile x 1x1x14; tile y 1x1x14", "the innermost loop must have no more than 2048 multiply-adds"),
        ("tile o 32x1x1; tile x 14x1x1", "a work-group must have no more than 256 work-items"),
        ("local I W; tile o 8x1x1; tile x 4x1x1; tile y 4x1x1", "local memory has 2048 bytes"),
        ("tile o", "'tile o' is no setting"),
        ("tile o 1x2", "'tile o 1x2' is no setting"),
        ("tiel o 1x1x1", "'tiel' is no setting"),
    ],
)
def test_what_does_not_fit_is_refused(convolution: Table, text: str, rule: str) -> None:
    def use() -> None:
        schedule = Schedule.parse(text)
        check(prepared(convolution, schedule), schedule, most_threads=256, local_memory=2048)

    with pytest.raises(OptionError) as caught:
        use()
    assert f"schedule: {rule}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tile x 1x1x2", "x is in a constraint and must have one result a work-item"),
        ("tile x 1x1x4; vector x 4", "x is in a constraint"),
        ("local I", "operands must be read where they lie while constraints are left"),
    ],
)
def test_constraints_allow_less(pooling: Table, text: str, rule: str) -> None:
    assert pooling.constraints
    with pytest.raises(OptionError, match=rule):
        check(pooling, Schedule.parse(text))


def test_halos_leave_no_constraints(convolution: Table) -> None:
    assert not convolution.constraints


@pytest.mark.parametrize("hardware", [CPU, replace(GENERIC["gpu"], compute_units=16)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", ["convolution", "pooling"])
def test_the_search_repeats_itself_and_proposes_what_fits(
    request: pytest.FixtureRequest, name: str, hardware: DeviceModel
) -> None:
    table: Table = request.getfixturevalue(name)
    found = search(table, hardware)
    assert [str(schedule) for _, schedule in found] == [str(schedule) for _, schedule in search(table, hardware)]
    assert best_schedule(table, hardware) == found[0][1]
    for prediction, schedule in found:
        joined = prepared(table, schedule)
        check(joined, schedule, hardware.group_size, hardware.local_memory)
        assert predict(joined, schedule, hardware) == prediction
        assert prediction.overhang >= 1


def test_predictions_are_of_what_is_there(convolution: Table) -> None:
    """Counted by hand for a block of 16 x 7 results."""
    schedule = Schedule.parse("tile o 1x1x16; tile x 1x1x7; vector o 16; pack W")
    prediction = predict(convolution, schedule, CPU)
    assert prediction.groups == 2 * 2 * 14 * 2
    assert prediction.loads == (1 + 7) / 7
    assert prediction.registers == 7 + 1 + 7
    assert prediction.overhang == 1
    assert prediction.arithmetic == 2 * 2 * 14 * 2 * 7 * 6 * 9


def test_what_is_peeled_is_left_to_kernels_of_its_own(convolution: Table) -> None:
    table = table_of(POOLING.replace("7, 7]", "7, 8]"), I=(2, 3, 13, 15))
    schedule = Schedule.parse("peel x; tile x 1x1x4; vector x 4")
    inside = prepared(table, schedule)
    assert inside.extents["x"] == 6
    assert [str(bound) for bound in inside.constraints] == [str(b) for b in table.constraints if "y" in str(b)]
    check(inside, schedule)
    left, right = borders(table, schedule)
    assert (left.extents["x"], right.extents["x"]) == (1, 1)
    assert left.stores[0].operand.start + 7 == right.stores[0].operand.start
    for name, other in (("a", table), ("y", convolution)):
        with pytest.raises(OptionError, match=f"schedule: {name} must be an output index in constraints"):
            prepared(other, Schedule(peel=name))
