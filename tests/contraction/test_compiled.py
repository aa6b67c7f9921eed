"""Compiled contractions on a device, under random schedules, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from blobnet.contraction import function, lowering, reference
from blobnet.contraction.derivatives import delta_names, differentiate
from blobnet.contraction.form import Program
from blobnet.contraction.layout import Layout
from blobnet.contraction.lowering import LoweredProgram, lower
from blobnet.contraction.schedule import Schedule
from blobnet.contraction.search import best_schedule
from blobnet.contraction.table import Table
from blobnet.errors import BlobnetWarning, BuildError, ContractionError
from blobnet.hardware.device_model import GENERIC, DeviceModel
from tests.contraction.conformance import assert_conforms, gathered_program
from tests.contraction.random_contractions import TERMS, Random, random_contraction
from tests.contraction.random_schedules import random_schedule
from tests.contraction.tables import evaluate
from tests.contraction.test_fusion import random_text

if TYPE_CHECKING:
    from blobnet.device.device import Device

#: Elements of NaN before and after the data and zeros of each tensor.
MARGIN = 24
EXACT = tuple(kind for kind in TERMS if kind != "function")


@pytest.fixture(autouse=True)
def margins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts what nobody may touch around every tensor."""
    padded = Layout.padded

    def make(*arguments: object, **named: object) -> Layout:
        layout = padded(*arguments, **named)
        return replace(layout, offset=layout.offset + MARGIN, elements=layout.elements + 2 * MARGIN)

    monkeypatch.setattr(lowering.Layout, "padded", make)


def bound(rng: np.random.Generator, kinds: tuple[str, ...] = EXACT) -> tuple[Random, Program]:
    """A random contraction that has terms, with its program."""
    while True:
        contraction = random_contraction(rng, kinds)
        try:
            program = function(contraction.text).program(**contraction.shapes)
        except ContractionError:
            continue
        if program.statements[0].points <= 2000:
            return contraction, program


def run_lowered(device: Device, lowered: LoweredProgram, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs; sees that nothing but data is written."""
    from blobnet.execution.contractions import Compiled

    compiled = Compiled(device, lowered)
    for name, layout in lowered.layouts.items():
        memory = np.full(layout.elements, np.nan, np.float32)
        memory[MARGIN:-MARGIN] = 0
        device.memory.write(compiled.buffers[name], memory)
    for tensor in lowered.program.inputs:
        layout = lowered.layouts[tensor.name]
        memory = layout.filled(arrays[tensor.name])
        memory[:MARGIN] = memory[layout.elements - MARGIN :] = np.nan
        device.memory.write(compiled.buffers[tensor.name], memory)
    compiled.launch()
    results = compiled.read()
    for name, layout in lowered.layouts.items():
        memory = device.memory.read(compiled.buffers[name], layout.elements)
        layout.view(memory)[...] = 0
        assert np.isnan(memory[:MARGIN]).all(), name
        assert np.isnan(memory[layout.elements - MARGIN :]).all(), name
        assert not memory[MARGIN:-MARGIN].any(), f"{name}: what is between the data is 0"
    compiled.launch()
    again = compiled.read()
    for name, values in results.items():
        np.testing.assert_array_equal(values.view(np.uint32), again[name].view(np.uint32))
    return results


def check(device: Device, program: Program, arrays: dict[str, np.ndarray], choose: Callable[[Table], Schedule]) -> None:
    """Runs a program under schedules: what is whole numbers is exact."""
    expected = reference.run(program, arrays)
    chosen: list[str] = []

    def noted(table: Table) -> Schedule:
        schedule = choose(table)
        chosen.append(str(schedule))
        return schedule

    results = run_lowered(device, lower(program, noted), arrays)
    for name, values in expected.items():
        message = f"{program}\n{chosen}"
        with np.errstate(over="ignore"):
            is_exact = np.max(np.abs(np.where(np.isfinite(values), values, 0)), initial=0) < 2**24
            if is_exact:
                np.testing.assert_array_equal(results[name], values.astype(np.float32), err_msg=message)
            else:
                np.testing.assert_allclose(results[name], values.astype(np.float32), rtol=1e-5, err_msg=message)


@pytest.mark.parametrize("seed", range(6))
def test_random_contractions(device: Device, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(12):
        contraction, program = bound(rng)
        check(device, program, contraction.arrays(rng, whole=True), partial(random_schedule, rng=rng))


@pytest.mark.parametrize("seed", range(4))
def test_random_gradients(device: Device, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for _ in range(4):
        contraction, program = bound(rng)
        arrays = contraction.arrays(rng, whole=True)
        names = delta_names(program)
        for tensor in program.outputs:
            arrays[names[tensor.name]] = rng.integers(-2, 3, tensor.shape).astype(float)
        check(device, differentiate(program), arrays, partial(random_schedule, rng=rng))


@pytest.mark.parametrize("seed", range(4))
def test_tables_say_what_statements_say(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    for _ in range(40):
        contraction, program = bound(rng)
        arrays = contraction.arrays(rng, whole=True)
        lowered = lower(program, lambda table: random_schedule(table, rng))
        buffers = {name: np.zeros(size) for name, size in lowered.elements.items()}
        for tensor in program.inputs:
            layout = lowered.layouts[tensor.name]
            buffers[tensor.name] = layout.filled(arrays[tensor.name], np.float64)
        for step in lowered.steps:
            evaluate(step.table, buffers)
        for name, values in reference.run(program, arrays).items():
            np.testing.assert_array_equal(lowered.layouts[name].view(buffers[name]), values)


#: Devices for which schedules are chosen; what they compute is the same on any.
HARDWARE = (
    replace(GENERIC["cpu"], compute_units=2, lanes=16, registers=32),
    replace(GENERIC["cpu"], compute_units=4, lanes=8),
    replace(GENERIC["gpu"], compute_units=4, group_size=64),
)


@pytest.mark.parametrize("hardware", HARDWARE, ids=["wide", "narrow", "gpu"])
def test_chosen_schedules(device: Device, hardware: DeviceModel) -> None:
    rng = np.random.default_rng(300)
    for _ in range(8):
        contraction, program = bound(rng)
        check(device, program, contraction.arrays(rng, whole=True), partial(best_schedule, device=hardware))


#: Convolutions: padded, strided, dilated, of groups, of one position, with odd sizes; and products of matrices.
PRODUCTS = {
    "R[n, o, y, x : 2, 19, 9, 11] = +(I[n, i, y + a - 1, x + b - 1] * W[o, i, a, b])": ((2, 5, 9, 11), (19, 5, 3, 3)),
    "R[n, o, y, x : 2, 7, 5, 6] = +(I[n, i, 2*y + a - 1, 2*x + b - 1] * W[o, i, a, b])": ((2, 6, 9, 11), (7, 6, 3, 3)),
    "R[n, o, y, x : 1, 9, 8, 8] = +(I[n, i, y + 2*a - 2, x + 2*b - 2] * W[o, i, a, b])": ((1, 3, 8, 8), (9, 3, 3, 3)),
    "R[n, o, y, x : 2, 8, 7, 7] = +(I[n, o, y + a - 1, x + b - 1] * W[o, a, b])": ((2, 8, 7, 7), (8, 3, 3)),
    "R[n, o] = +(I[n, i] * W[o, i])": ((13, 70), (37, 70)),
    "R[b, q, d] = +(I[b, q, k] * W[b, k, d])": ((2, 17, 9), (2, 9, 33)),
}


@pytest.mark.parametrize("hardware", HARDWARE, ids=["wide", "narrow", "gpu"])
@pytest.mark.parametrize("text", PRODUCTS)
def test_products_and_their_gradients(device: Device, hardware: DeviceModel, text: str) -> None:
    rng = np.random.default_rng(len(text))
    program = function(text).program(**dict(zip("IW", PRODUCTS[text], strict=True)))
    arrays = {tensor.name: rng.integers(-3, 4, tensor.shape).astype(float) for tensor in program.inputs}
    arrays[delta_names(program)["R"]] = rng.integers(-3, 4, program.outputs[0].shape).astype(float)
    choose = partial(best_schedule, device=hardware)
    check(device, program, {name: arrays[name] for name in "IW"}, choose)
    check(device, differentiate(program), arrays, choose)


@pytest.mark.parametrize("seed", range(3))
def test_infinities_and_nan_follow_the_rule(device: Device, seed: int) -> None:
    rng = np.random.default_rng(400 + seed)
    for _ in range(8):
        contraction, program = bound(rng)
        arrays = contraction.arrays(rng, whole=True)
        for values in arrays.values():
            odd = rng.random(values.shape) < 0.2
            values[...] = np.where(odd, rng.choice([np.inf, -np.inf, np.nan], values.shape), values)
        chosen: list[Schedule] = []

        def choose(table: Table, chosen: list[Schedule] = chosen) -> Schedule:
            chosen.append(random_schedule(table, rng))
            return chosen[-1]

        results = run_lowered(device, lower(program, choose), arrays)
        what = f"{contraction.text} {contraction.shapes} {chosen}"
        assert_conforms(gathered_program(program), arrays, results, relative=1e-5, absolute=1e-5, what=what)


@pytest.mark.parametrize("seed", range(3))
def test_programs_of_expressions(device: Device, seed: int) -> None:
    rng = np.random.default_rng(500 + seed)
    for _ in range(3):
        text = random_text(rng)
        program = function(text).program(A=(3, 3), B=(3, 3))
        arrays = {name: rng.uniform(-1, 1, (3, 3)) for name in "AB"}
        lowered = lower(program, partial(random_schedule, rng=rng))
        results = run_lowered(device, lowered, arrays)
        assert_conforms(program, arrays, results, relative=1e-3, absolute=1e-3, what=text)


@pytest.mark.parametrize("schedule", ["depth n t 16", "depth t n 4; split t 5", "depth t n 4; pack A; split t 13"])
@pytest.mark.parametrize("samples", [1, 5])
def test_cheap_addresses_change_no_bit(device: Device, schedule: str, samples: int) -> None:
    rng = np.random.default_rng(0)
    program = function("R[e, c] = +(A[n, t, e] * B[n, t, c])").program(A=(samples, 53, 10), B=(samples, 53, 21))
    arrays = {"A": rng.standard_normal((samples, 53, 10)), "B": rng.standard_normal((samples, 53, 21))}
    chosen = Schedule.parse(f"rows e 16x4; columns c 32x8; {schedule}")

    def results(choice: Schedule) -> np.ndarray:
        lowered = lower(program, lambda table: choice if "t" in table.extents else Schedule())
        return run_lowered(device, lowered, arrays)["R"]

    expected = results(chosen)
    np.testing.assert_allclose(expected, reference.run(program, arrays)["R"], atol=1e-4)
    assert chosen.product
    found = results(replace(chosen, product=replace(chosen.product, cheap_addresses=True)))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_a_softmax(device: Device) -> None:
    f = function(
        """function (X[N, C]) -> (S) {
             M[n : N] = >(X[n, c]); E[n, c : N, C] = +(exp(X[n, c] - M[n])); T[n : N] = +(E[n, c]);
             S[n, c : N, C] = +(E[n, c] / T[n]);
           }"""
    )
    x = np.random.default_rng(0).standard_normal((9, 21))
    np.testing.assert_allclose(f(device, X=x)["S"], f.reference(X=x)["S"], rtol=1e-5)
    delta = {"S": np.random.default_rng(1).standard_normal((9, 21))}
    found, expected = f.gradients({"X": x}, delta, device), f.reference_gradients({"X": x}, delta)
    np.testing.assert_allclose(found["X"], expected["X"], atol=1e-5)


def test_calls_take_integers_and_keep_what_they_compiled(device: Device) -> None:
    f = function("O[n, m] = +(A[n, k] * B[k, m])")
    a, b = np.arange(12).reshape(3, 4), np.arange(20).reshape(4, 5)
    for _ in range(2):
        result = f(device, A=a, B=b)["O"]
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, a @ b)


def test_a_driver_that_refuses_a_kernel_gets_a_simple_one(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from blobnet.execution import contractions

    kernel = device.programs.kernel

    def refuse(source: str, entry: str, what: str) -> object:
        if "float8" in source or "float4" in source:
            raise BuildError(what, "no vectors here")
        return kernel(source, entry, what)

    monkeypatch.setattr(device.programs, "kernel", refuse)
    program = function("O[n, m] = +(A[n, k] * B[k, m])").program(A=(3, 4), B=(4, 8))
    arrays = {"A": np.arange(12).reshape(3, 4), "B": np.arange(32).reshape(4, 8)}
    vectors = Schedule.parse("tile m 1x1x8; vector m 8")
    with pytest.warns(BlobnetWarning, match="contraction O: .* must build the kernels of the contraction"):
        compiled = contractions.compiled(device, program, lambda table: vectors)
    np.testing.assert_array_equal(compiled.run(arrays)["O"], arrays["A"] @ arrays["B"])


@pytest.mark.parametrize(
    ("text", "shapes", "schedule"),
    [
        # Cells without terms, in lanes of the second stage.
        ("O[i, j : 2, 4] = <(A[] < B[]), i + j + 1 < 3, k < 2", {"A": (), "B": ()}, "split k 2"),
        # Axes of a remainder whose values lie farther apart than a whole chunk's.
        ("O[i] = +(A[i, k, j] * B[3*k + j])", {"A": (2, 5, 3), "B": (15,)}, "local A B; chunk j 2; chunk k 2"),
        # Lanes of a single value, several work-items.
        ("O[j, i] = +(A[i] * B[j, k])", {"A": (1,), "B": (5, 4)}, "tile i 3x1x8; vector i 8; pack A; order j i k"),
        # Every second element of local memory.
        ("O[i : 10] = +(A[2*i + k] * B[k])", {"A": (21,), "B": (3,)}, "local A; tile i 2x1x4; vector i 4"),
        # Forms that shrink along an index, along several axes.
        ("O[i : 4] = +(A[i - k, k] * B[k])", {"A": (4, 3), "B": (3,)}, "local A B; tile i 2x1x2"),
    ],
)
def test_schedules_that_were_wrong(
    device: Device, text: str, shapes: dict[str, tuple[int, ...]], schedule: str
) -> None:
    program = function(text).program(**shapes)
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(-3, 4, shape).astype(float) for name, shape in shapes.items()}
    check(device, program, arrays, lambda table: Schedule.parse(schedule if "k" in table.extents else ""))
