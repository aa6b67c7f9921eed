"""Schedules against closed formulas, float64 references and PyTorch."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from blobnet.errors import FileError, OptionError
from blobnet.schedules import Constant, Cosine, Custom, Linear, OneCycle, Schedule, Step
from tests.reference import schedules as reference


def rates(schedule: Schedule, steps_per_epoch: int, epochs: int) -> list[float]:
    """The rate of every step of a training."""
    return [schedule.value(step, steps_per_epoch, epochs) for step in range(steps_per_epoch * epochs)]


def test_constant() -> None:
    assert rates(Constant(0.3), 4, 3) == [0.3] * 12
    assert isinstance(Constant(1).value(0, 1, 1), float)


def test_step() -> None:
    expected = [1.0] * 6 + [0.5] * 6 + [0.25] * 3
    assert rates(Step(1.0, every_epochs=2, factor=0.5), 3, 5) == expected
    assert Step(1.0, 2).factor == 0.1
    for epoch in range(12):
        wanted = reference.step_schedule(0.7, epoch, step_size=5, factor=0.3)
        for step in (7 * epoch, 7 * epoch + 6):
            assert math.isclose(Step(0.7, 5, 0.3).value(step, 7, 12), wanted, rel_tol=1e-15)


@pytest.mark.parametrize("steps_per_epoch", [1, 3, 10])
@pytest.mark.parametrize("warmup_epochs", [0, 0.5, 2, 2.25])
@pytest.mark.parametrize("final_rate", [0.0, 0.01])
def test_cosine(steps_per_epoch: int, warmup_epochs: float, final_rate: float) -> None:
    epochs = 7
    found = rates(Cosine(0.4, warmup_epochs, final_rate), steps_per_epoch, epochs)
    warmup, last = round(warmup_epochs * steps_per_epoch), len(found) - 1
    np.testing.assert_allclose(found[:warmup], [0.4 * (step + 1) / warmup for step in range(warmup)])
    expected = [
        reference.cosine_schedule(0.4, t, steps=last, warm_up=warmup, final=final_rate) for t in range(last + 1)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-16)
    assert max(found) == found[warmup] == pytest.approx(0.4, rel=1e-15)
    assert found[last] == pytest.approx(final_rate, abs=1e-16)
    assert found[warmup:] == sorted(found[warmup:], reverse=True)


def test_cosine_by_hand() -> None:
    half = math.sqrt(0.5)
    expected = [1.0, 2.0, 2.0, 1 + half, 1.0, 1 - half, 0.0]
    np.testing.assert_allclose(rates(Cosine(2.0, warmup_epochs=2), 1, 7), expected, atol=1e-15)


def test_linear_is_a_triangle() -> None:
    found = rates(Linear(2.0, warmup_epochs=1, final_rate=0.5), 4, 3)
    np.testing.assert_allclose(found, [0.5, 1.0, 1.5, *np.linspace(2.0, 2.0, 1), *np.linspace(2.0, 0.5, 8)], atol=1e-15)
    again = Schedule.from_description(json.loads(json.dumps(Linear(0.2, 0.1).description())), "file")
    assert again == Linear(0.2, warmup_epochs=0.1)


def test_cosine_at_its_ends() -> None:
    """After the last step; a warm-up that lasts all the time, or all but one step; one step."""
    assert Cosine(2.0, final_rate=0.5).value(100, 5, 2) == 0.5
    assert rates(Cosine(2.0, warmup_epochs=8), 1, 4) == [0.25, 0.5, 0.75, 1.0]
    assert rates(Cosine(2.0, warmup_epochs=2), 1, 3) == [1.0, 2.0, 2.0]
    assert rates(Cosine(2.0), 1, 1) == [2.0]


def test_cosine_against_torch() -> None:
    torch = pytest.importorskip("torch")
    oracle = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(oracle, T_max=11, eta_min=0.1)
    for rate in rates(Cosine(0.8, final_rate=0.1), 4, 3):
        assert math.isclose(rate, oracle.param_groups[0]["lr"], rel_tol=1e-12)
        oracle.step()
        annealing.step()


@pytest.mark.parametrize(("rise", "first", "last", "steps"), [(0.3, 25, 1e4, 40), (0.25, 10, 100, 8), (0.5, 2, 3, 6)])
def test_one_cycle_against_torch(rise: float, first: float, last: float, steps: int) -> None:
    torch = pytest.importorskip("torch")
    oracle = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    options = {"pct_start": rise, "div_factor": first, "final_div_factor": last, "cycle_momentum": False}
    cycle = torch.optim.lr_scheduler.OneCycleLR(oracle, 0.8, total_steps=steps, **options)
    for step, rate in enumerate(rates(OneCycle(0.8, rise, first, last), steps // 2, 2)):
        assert math.isclose(rate, oracle.param_groups[0]["lr"], rel_tol=1e-12)
        oracle.step()
        if step < steps - 1:
            cycle.step()
    assert OneCycle(0.8).value(steps + 5, steps // 2, 2) == pytest.approx(0.8 / 25 / 1e4)
    assert rates(OneCycle(0.8, rise=0), 1, 1) == [pytest.approx(0.8 / 25 / 1e4)]


def test_every_schedule_warms_up() -> None:
    """The first rates are times (t + 1) / W; epochs of a warm-up count; a schedule without one needs no steps."""
    assert rates(Constant(0.8, warmup_epochs=2), 2, 3) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    found = rates(Step(1.0, 1, 0.5, warmup_epochs=1.5), 2, 3)
    assert found == pytest.approx([1 / 3, 2 / 3, 0.5, 0.5, 0.25, 0.25])
    assert rates(Custom(lambda step: 3.0 - step, warmup_epochs=1), 2, 2) == pytest.approx([1.5, 2.0, 1.0, 0.0])
    assert not Constant(0.8).depends_on_steps
    assert not Custom(float).depends_on_steps
    assert Constant(0.8, warmup_epochs=1).depends_on_steps
    assert Custom(float, warmup_epochs=1).depends_on_steps
    assert Constant(0.8).description() == {"kind": "Constant", "config": {"rate": 0.8}}


@pytest.mark.parametrize(
    "schedule",
    [
        Constant(0.1),
        Constant(0.1, warmup_epochs=1),
        OneCycle(0.1),
        OneCycle(0.1, 0.5, 10, 100),
        Step(1, 2, warmup_epochs=0.5),
        Step(1, 2),
        Step(0.1, 3, 0.5),
        Cosine(1, 0.5),
        Cosine(1, 2, 3),
    ],
    ids=str,
)
def test_description(schedule: Schedule) -> None:
    description = json.loads(json.dumps(schedule.description()))
    assert Schedule.from_description(description, "a.h5") == schedule
    assert type(schedule)(**schedule.config()) == schedule


def test_numbers_of_numpy() -> None:
    rate: Any = np.float32(0.5)
    every: Any = np.int64(3)
    assert json.dumps(Step(rate, every).description()) == json.dumps(Step(0.5, 3).description())


def test_kinds() -> None:
    assert sorted(Schedule.kinds) == ["Constant", "Cosine", "Custom", "Linear", "OneCycle", "Step"]
    assert Step(0.1, 3).description() == {"kind": "Step", "config": {"rate": 0.1, "every_epochs": 3, "factor": 0.1}}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"kind": "Stepp", "config": {}}, "must be one of blobnet's. Received kind=Stepp. Hint: did you mean 'Step'"),
        ({"kind": 3, "config": {}}, "must be one of blobnet's. Received kind=3. Hint: known names: Constant, Cosine"),
        ({"kind": "Step", "config": {}}, "must have arguments that blobnet knows. Received kind=Step, .*'rate'"),
        (
            {"kind": "Custom", "config": {}},
            "must have arguments that blobnet knows. Received kind=Custom",
        ),
        ({"config": {}}, "must have a kind and its config"),
        ("Step", "must have a kind and its config"),
    ],
    ids=str,
)
def test_foreign_descriptions(description: Any, message: str) -> None:
    with pytest.raises(FileError, match=rf"a\.h5: the learning rate's schedule {message}"):
        Schedule.from_description(description, "a.h5")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Constant, {"rate": -1}, "Constant: rate must be a finite number of at least 0. Received rate=-1."),
        (Constant, {"rate": "1"}, "Constant: rate must be a finite number of at least 0. Received rate='1'."),
        (Constant, {"rate": math.inf}, "Constant: rate must be a finite number of at least 0. Received rate=inf."),
        (Step, {"rate": math.nan, "every_epochs": 1}, "Step: rate must be a finite number of at least 0"),
        (
            Step,
            {"rate": 1, "every_epochs": 0},
            "Step: every_epochs must be an int of at least 1. Received every_epochs=0.",
        ),
        (Step, {"rate": 1, "every_epochs": "3"}, "at least 1. Received every_epochs='3'."),
        (Step, {"rate": 1, "every_epochs": 1.5}, "Step: every_epochs must be an int of at least 1"),
        (Step, {"rate": 1, "every_epochs": True}, "Step: every_epochs must be an int of at least 1"),
        (Step, {"rate": 1, "every_epochs": 1, "factor": 0}, "Step: factor must be a finite number above 0"),
        (
            Step,
            {"rate": 1, "every_epochs": 1, "warmup_epochs": -1},
            "Step: warmup_epochs must be a finite number of at",
        ),
        (OneCycle, {"rate": 1, "rise": 1}, "OneCycle: rise must be below 1. Received rise=1."),
        (OneCycle, {"rate": 1, "div_factor": 0}, "OneCycle: div_factor must be a finite number above 0"),
        (Cosine, {"rate": 1, "warmup_epochs": -1}, "Cosine: warmup_epochs must be a finite number of at least 0"),
        (Cosine, {"rate": 1, "final_rate": -1}, "Cosine: final_rate must be a finite number of at least 0"),
    ],
)
def test_options(kind: type[Schedule], options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(**options)
