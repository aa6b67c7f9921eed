"""Schedules as text, and what they must not ask for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from blobnet.contraction import function
from blobnet.contraction.costs import predict
from blobnet.contraction.lowering import grouped, laid_out
from blobnet.contraction.schedule import (
    _SETTINGS,
    Schedule,
    borders,
    can_be_cheap,
    check,
    combining,
    local_tiles,
    prepared,
)
from blobnet.contraction.search import best_schedule, search
from blobnet.contraction.table import Table, flatten
from blobnet.errors import OptionError
from blobnet.hardware.device_model import GENERIC, DeviceModel
from tests.contraction.random_schedules import proposal

CONVOLUTION = "R[n, o, y, x : 2, 32, 14, 14] = +(I[n, i, y + a - 1, x + b - 1] * W[o, i, a, b])"
CPU = replace(GENERIC["cpu"], compute_units=2, lanes=16, registers=32)
POOLING = "R[n, u, y, x : 2, 3, 7, 7] = >(I[n, u, 2*y + a - 1, 2*x + b - 1]), a < 3, b < 3"


def table_of(text: str, **shapes: tuple[int, ...]) -> Table:
    """The table of the statement that takes most."""
    program = function(text).program(**shapes)
    groups = grouped(program)
    group = max(groups, key=lambda group: group.head.points)
    return flatten(group.head, laid_out(program, groups), group.stores)


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
        ("split i 7", "i must be a reduction index with a value for each part"),
        ("split i 4; unroll i", "parts of i must divide its range where it is written out"),
        ("split i 4; local I", "parts of i must divide its range where it is written out"),
        ("chunk i 2", "i must be a reduction index, and an operand in local memory"),
        ("tile o 1x1x32; tile x 1x1x14; tile y 1x1x14", "the innermost loop must have no more than 2048 multiply-adds"),
        ("tile o 32x1x1; tile x 14x1x1", "a work-group must have no more than 256 work-items"),
        ("local I W; tile o 8x1x1; tile x 4x1x1; tile y 4x1x1", "local memory has 2048 bytes"),
        ("cut i 4", "i must be a reduction index, not over samples, whose range 4 divides to be cut"),
        ("cut x 2", "x must be a reduction index"),
        ("cut q 2", "there is no index 'q'"),
        ("share q 2", "there is no index 'q'"),
        ("share i 7", "i must be a reduction index with a loop of its own, of at least 7 values, to be shared"),
        ("share i 4; split i 2", "i must be a reduction index with a loop of its own, of at least 4 values"),
        ("share x 2", "x must be a reduction index with a loop of its own"),
        ("share a 3; unroll a", "a must be a reduction index with a loop of its own"),
        ("share b 3; vector b 2; order a b", "b must be a reduction index with a loop of its own"),
        ("share i 3; tile o 8x1x1; tile x 14x1x1", "a work-group must have no more than 256 work-items"),
        ("share i 3; tile o 8x1x4; tile x 7x1x2", "local memory has 2048 bytes"),
        ("wide Q", "there is no operand 'Q'"),
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


@pytest.mark.parametrize("word", _SETTINGS)
def test_a_setting_without_its_words_is_refused(word: str) -> None:
    with pytest.raises(OptionError, match=f"schedule: {word!r} is no setting"):
        Schedule.parse(word)


PRODUCT = "rows o 16x4; columns n y x 64x8; depth i a b 4"


def test_products_of_matrices_are_schedules(convolution: Table) -> None:
    schedule = Schedule.parse(f"{PRODUCT}; pack W; split i 3")
    assert Schedule.parse(str(schedule)) == schedule
    assert schedule.product
    assert schedule.threads == 4 * 8
    check(convolution, schedule)
    assert [part.product is not None for part in (Schedule(), schedule)] == [False, True]


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("rows o 16x4; ", "", "a product has rows, columns and depth"),
        ("n y x", "n y q", "there is no index 'q'"),
        ("o 16x4", "o n 16x4", "n must be an output index of W alone"),
        ("n y x", "n y i", "i must be an output index of I alone"),
        ("n y x", "n y y", "an index is either of rows or of columns, once"),
        ("16x4", "24x4", "a block has 4, 8 or 16 rows or columns, and a tile a power of two of them"),
        ("i a b", "i a", "the depth is all reduction indexes"),
        ("b 4", "b 4; along a", "a must be the last of the depth, and whole steps of it"),
        ("b 4", "b 2; along b", "b must be the last of the depth, and whole steps of it"),
        ("b 4", "b 3; along b; addresses cheap", "cheap addresses take operands of less than 4 GB"),
        ("b 4", "b 4; addresses dear", "'addresses dear' is no setting"),
        ("b 4", "b 4; pack Q", "there is no operand 'Q'"),
        ("b 4", "b 4; split a 2", "i stands for the depth"),
        ("b 4", "b 4; split i 15", "i stands for the depth, which must have a step a part"),
        ("b 4", "b 4; tile o 2x1x1", "a product has no tiles"),
        ("64x8", "2048x4", "a work-group must have no more than 256 work-items"),
        ("b 4", "b 16", "local memory has 8192 bytes"),
        ("depth", "detph", "'detph' is no setting"),
        ("16x4", "x4", "'rows o x4' is no setting"),
    ],
)
def test_products_that_do_not_fit_are_refused(convolution: Table, old: str, new: str, rule: str) -> None:
    with pytest.raises(OptionError) as caught:
        check(convolution, Schedule.parse(PRODUCT.replace(old, new)), most_threads=256, local_memory=8192)
    assert f"schedule: {rule}" in str(caught.value)


def test_only_sums_of_products_are_products_of_matrices(pooling: Table) -> None:
    with pytest.raises(OptionError, match="rows, columns and depth are of a sum of products of two operands"):
        check(pooling, Schedule.parse("rows u 16x4; columns n y x 64x8; depth a b 4"))


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


def test_work_items_do_not_share_what_some_have_no_terms_for() -> None:
    table = table_of("O[i, j : 2, 4] = >(A[i, j, k]), i + j + 1 < 3", A=(2, 4, 6))
    with pytest.raises(OptionError, match="work-items cannot share what some of them have no terms for"):
        check(table, Schedule.parse("share k 2"))


def test_work_items_that_share_read_different_banks() -> None:
    table = table_of("R[n, o, x : 1, 8, 4] = +(I[n, i, x + a] * W[o, i, a])", I=(1, 64, 8), W=(8, 64, 5))
    schedule = Schedule.parse("cut i 4; share i 16; local I W")
    table = prepared(table, schedule)
    assert (table.extents["i"], table.extents["i/cut"]) == (16, 4)
    check(table, schedule)
    for operand, tile in local_tiles(table, schedule).items():
        assert tile.stride(operand, "i") % 2 == 1
        assert operand.stride("i") == 4 * operand.stride("i/cut")


@pytest.mark.parametrize("items", [1, 2, 3, 4, 5, 16, 17, 100, 1024])
def test_partial_results_are_combined_in_few_steps(items: int) -> None:
    steps = combining(items)
    assert [before for before, _ in steps] == [items, *(after for _, after in steps)][: len(steps)]
    assert items == 1 or steps[-1][1] == 1
    assert all(after < before <= 4 * after for before, after in steps)
    assert sum(before - after for before, after in steps) == items - 1
    assert len(steps) == math.ceil(math.log(items, 4) - 1e-9)


def test_what_shared_and_wide_schedules_are_predicted_to_cost() -> None:
    """Few outputs and long sums: work-items that share a sum are worth it on a GPU, and not on a CPU."""
    table = table_of("R[o] = +(I[i] * W[o, i])", I=(4096,), W=(64, 4096))
    gpu = replace(GENERIC["gpu"], compute_units=64)
    plain, spread = Schedule.parse("tile o 64x1x1"), Schedule.parse("share i 256")
    assert predict(table, spread, gpu).cycles < predict(table, plain, gpu).cycles / 4
    assert predict(table, spread, CPU).cycles > predict(table, Schedule(), CPU).cycles
    assert predict(table, spread, gpu).arithmetic == predict(table, Schedule.parse("tile o 1x1x1"), gpu).arithmetic
    made = prepared(table, Schedule.parse("cut i 4"))
    narrow, wide = (Schedule.parse(f"tile o 64x1x1; cut i 4; unroll i/cut{more}") for more in ("", "; wide I W"))
    assert predict(made, narrow, gpu).loads == 4 * predict(made, wide, gpu).loads


@pytest.mark.parametrize(
    ("text", "rows", "depth", "is_cheap"),
    [
        ("R[n, o] = +(I[n, k] * W[o, k])", 1 << 18, 1 << 12, True),
        ("R[n, o] = +(I[n, k] * W[o, k])", 1 << 18, (1 << 12) + 1, False),
        ("R[n, o : 262144, 4] = +(I[n, 100 - k] * W[o, k])", 1 << 18, 101, False),
    ],
    ids=["4 GB", "more", "backwards"],
)
def test_addresses_are_cheap_where_32_bits_say_them(text: str, rows: int, depth: int, is_cheap: bool) -> None:
    table = table_of(text, I=(rows, depth), W=(4, depth))
    assert can_be_cheap(table, ("k",)) is is_cheap


@pytest.mark.parametrize("compiler", ["amd", "intel", "nvidia", None])
def test_addresses_are_cheap_where_compilers_take_many_instructions_for_them(compiler: str | None) -> None:
    """And where a step goes along no index: 197 has no divisor but itself."""
    table = table_of("R[e, c] = +(A[n, t, e] * B[n, t, c])", A=(64, 197, 192), B=(64, 197, 192))
    hardware = replace(GENERIC["gpu"], compute_units=64, compiler=compiler)
    found = [schedule.product for _, schedule in search(table, hardware) if schedule.product]
    assert {product.cheap_addresses for product in found if not product.along} == {compiler in ("amd", "intel")}


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


def test_tables_of_other_names_and_places_share_a_search() -> None:
    text = "function (A[N, C, H, W], F[O, C, P, Q]) -> (R) { R[n, o, y, x : N, O, 7, 7] = "
    text += "+(A[n, c, y+a-1, x+b-1] * F[o, c, a, b]); }"
    shapes = {"A": (8, 64, 7, 7), "F": (64, 64, 3, 3)}
    one = table_of(text, **shapes)
    renamed = text.replace("A[", "left[").replace("F[", "right[")
    other = table_of(renamed, left=shapes["A"], right=shapes["F"])
    first, second = best_schedule(one, CPU), best_schedule(other, CPU)
    assert first == search(one, CPU)[0][1]
    assert second == search(other, CPU)[0][1]
    assert first.packed == ("F",)
    assert second == replace(first, packed=("right",))


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_writes_out_all_taps_of_one_unit(stride: int) -> None:
    """What was measured to be fastest (docs/performance.md): many units at once read from too many places."""
    text = f"R[n, o, y, x : 8, 144, {56 // stride}, {56 // stride}] = "
    text += f"+(I[n, o, {stride}*y+a-1, {stride}*x+b-1] * F[o, a, b])"
    schedule = best_schedule(table_of(text, I=(8, 144, 56, 56), F=(144, 3, 3)), CPU)
    assert schedule.unrolled == ("a", "b")
    assert schedule.lanes == 16
    assert schedule.tile("o").block == 1


def test_rows_a_page_apart_are_packed() -> None:
    """1024 filters of one tap: rows of 4096 bytes fall into the same lines of a cache."""
    text = "R[n, i, y, x : 8, {0}, 7, 7] = +(D[n, o, y, x] * F[o, i, 0, 0])"
    found = {}
    for units in (1024, 1008):
        table = table_of(text.format(units), D=(8, 512, 7, 7), F=(512, units, 1, 1))
        found[units] = best_schedule(table, CPU)
    assert found[1024].packed == ("F",)
    assert found[1008].packed == ()


def test_neighbours_that_share_positions_of_cells_have_a_unit_each() -> None:
    """Positions of cells lie 8 units apart; neighbours read all units of one position, then of the next."""
    table = table_of("S[c, u] = +(I[n, c, y, x, u])", I=(64, 24, 28, 28, 8))
    schedule = best_schedule(table, replace(GENERIC["gpu"], compute_units=132))
    assert schedule.shared[0] == "y.x"
    assert schedule.tile("u").threads == 8
    assert schedule.order[-1] == "u", "what comes last is what neighbours have one after another"
    # Without cells, positions lie side by side.
    plain = best_schedule(
        table_of("S[c] = +(I[n, c, y, x])", I=(64, 192, 28, 28)), replace(GENERIC["gpu"], compute_units=132)
    )
    assert plain.shared[0] == plain.order[-1] == "y.x"
