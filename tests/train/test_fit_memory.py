"""Batches that are too large for a device's memory, computed in parts: the same steps, but for rounding."""

from __future__ import annotations

import dataclasses
import gc
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.callbacks import Checkpoint
from blobnet.device.device import Device
from blobnet.device.memory import Memory
from blobnet.errors import BlobnetWarning, OptionError, OutOfMemoryError, PlanError, TrainingError
from blobnet.execution.executor import IN_PARTS
from blobnet.model import Model, load
from blobnet.optimizers import SGD
from blobnet.schedules import Cosine
from blobnet.training.settings import TrainingSettings
from blobnet.training.training_step import TrainingStep
from tests.tiny import digits, share_of_memory
from tests.train.test_resume_within_epoch import StopAt, StopError

#: A last batch of 9, and a last part of 1.
X, Y = digits(45)
MESSAGE = "fit_memory: the memory of the device should hold a whole batch, which is computed in parts now. Received "


def net() -> Model:
    return bn.Sequential(
        [
            layers.Input(1, 8, 8),
            layers.Conv2D(8, 3, activation="relu", name="conv"),
            layers.Dropout(0.3),
            layers.GlobalAveragePool(),
            layers.Dense(10, name="dense"),
        ],
        seed=3,
    )


def fit(model: Model, device: Device, **settings: Any) -> Model:
    given: dict[str, Any] = {"epochs": 2, "batch_size": 12, "optimizer": SGD(Cosine(0.1), momentum=0.9), "seed": 7}
    model.fit(X, Y, device=device, verbose=False, **(given | settings))
    return model


def small_device(device: Device, augment: Any = ()) -> Device:
    """A device whose memory holds 5 samples, and of the divisors of 12 the next smaller one."""
    graph = net().graph
    settings = TrainingSettings.of(graph, {"accumulate": 2, "augment": augment, "batch_size": 5})
    step = TrainingStep(device, graph, net().weights, dataclasses.replace(settings, optimizer=SGD(0.1, momentum=0.9)))
    return Device(dataclasses.replace(device.info, memory=step.bytes))


@pytest.fixture
def small(device: Device) -> Device:
    return small_device(device)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sums of batches": {"accumulate": 2},
    "weights": {"sample_weights": np.linspace(0.1, 2, 45), "class_weights": "balanced"},
    "augmentation": {"augment": "crop=2, flip"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_steps_but_for_rounding(device: Device, case: str) -> None:
    small = small_device(device, CASES[case].get("augment", ()))
    whole = fit(net(), device, **CASES[case])
    with pytest.warns(BlobnetWarning) as caught:
        parted = fit(net(), small, fit_memory=True, **CASES[case])
    assert [str(warning.message) for warning in caught] == [f"{MESSAGE}batch_size=12, part=4."]
    for name, values in whole.weights.items():
        np.testing.assert_allclose(parted.weights[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(parted.history["loss"], whole.history["loss"], rtol=1e-5)
    states = [each.training_state for each in (whole, parted)]
    assert states[0] is not None
    assert states[1] is not None
    assert (states[0].step, states[0].settings, states[0].place) == (states[1].step, states[1].settings, {})
    assert any((values != net().weights[name]).any() for name, values in whole.weights.items())


def test_nothing_changes_where_a_batch_fits(device: Device) -> None:
    whole = fit(net(), device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = fit(net(), device, fit_memory=True)
    assert {name: values.tobytes() for name, values in same.weights.items()} == {
        name: values.tobytes() for name, values in whole.weights.items()
    }


def test_what_can_be_computed_again_comes_before_parts(device: Device) -> None:
    """For it gives the same bits."""
    model = bn.models.resnet18((1, 8, 8), 10)
    graph, settings = model.graph, TrainingSettings.of(model.graph, {"batch_size": 12, "optimizer": SGD(0.1)})
    kept, again = (
        TrainingStep(device, graph, model.weights, dataclasses.replace(settings, recompute=recompute)).bytes
        for recompute in (False, True)
    )
    assert again < kept
    small = Device(dataclasses.replace(device.info, memory=(kept + again) // 2))
    weights = model.weights
    whole = fit(model, device, optimizer=SGD(0.1)).weights
    with pytest.raises(PlanError, match=r"Hint: the largest batch that fits is \d+\. fit\(fit_memory=True\)"):
        fit(model, small, optimizer=SGD(0.1))
    for asked in {"recompute": True}, {"fit_memory": True}:
        model.set_weights(weights)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = fit(model, small, optimizer=SGD(0.1), **asked).weights
        said = [str(warning.message) for warning in caught]
        rule = "the memory of the device should hold all that the backward pass reads, and some is computed again now"
        assert said == ([f"fit_memory: {rule}. Received batch_size=12."] if "fit_memory" in asked else [])
        for name, values in whole.items():
            assert found[name].tobytes() == values.tobytes(), name


@pytest.mark.filterwarnings("ignore:fit_memory")
def test_a_training_goes_on_with_more_memory_or_less(device: Device, small: Device, tmp_path: Path) -> None:
    """A file does not know of parts: it counts whole batches."""
    paths = [tmp_path / "large.h5", tmp_path / "small.h5"]
    for path, settings in zip(paths, ({"device": device}, {"device": small, "fit_memory": True}), strict=True):
        with pytest.raises(StopError):
            fit(net(), callbacks=[Checkpoint(path, every_steps=3), StopAt(3)], accumulate=1, **settings)
        place = load(path).training_state.place  # type: ignore[union-attr]
        assert (place["batches"], place["samples"]) == (3, 36)
    wanted = fit(net(), small, fit_memory=True)
    resumed = fit(load(paths[1]), small, fit_memory=True, resume=True)
    assert resumed.history == wanted.history
    for name, values in wanted.weights.items():
        assert resumed.weights[name].tobytes() == values.tobytes(), name
        for path, other, settings in ((paths[0], small, {"fit_memory": True}), (paths[1], device, {})):
            found = fit(load(path), other, resume=True, **settings)
            np.testing.assert_allclose(found.weights[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.filterwarnings("ignore:fit_memory")
def test_a_loss_that_is_not_finite_is_found_in_its_step(device: Device, small: Device) -> None:
    weights = np.ones(45)
    weights[np.random.default_rng([7, 0]).permutation(45)[31]] = 3e38
    for chosen, settings in ((device, {}), (small, {"fit_memory": True})):
        with pytest.raises(TrainingError, match="epoch=1, step=2, first_layer=the loss itself"):
            fit(net(), chosen, sample_weights=weights, **settings)


def test_memory_that_others_take(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the plan, for which there is room, and the buffers: those of the first steps are refused."""
    usual, calls = Memory.allocate_together, 0

    def crowded(self: Memory, sizes: list[int]) -> list[Any]:
        nonlocal calls
        calls += sum(sizes) > 10_000
        if calls and calls < 3:
            raise OutOfMemoryError(
                self.queue.info.name, "the device must have room for a buffer", hint="use a smaller one."
            )
        return usual(self, sizes)

    monkeypatch.setattr(Memory, "allocate_together", crowded)
    with pytest.raises(OutOfMemoryError) as caught:
        fit(net(), device)
    assert str(caught.value) == (
        f"{device.info.name}: the device must have room for a buffer. Hint: use a smaller one. {IN_PARTS}"
    )
    calls = 0
    with pytest.warns(BlobnetWarning, match=r"batch_size=12, part=6\.$"):
        fit(net(), device, fit_memory=True)


def test_samples_stay_with_the_host_where_others_take_the_memory(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_of_memory(monkeypatch, 1)
    # NOTE: in debug mode all memory is copied at every launch, and samples stay with the host anyway.
    wanted, usual, refused = fit(net(), device, debug=False), Memory.allocate, 0

    def crowded(self: Memory, size: int) -> Any:
        nonlocal refused
        if size == X.nbytes:
            refused += 1
            raise OutOfMemoryError(self.queue.info.name, "the device must have room for a buffer")
        return usual(self, size)

    monkeypatch.setattr(Memory, "allocate", crowded)
    found = fit(net(), device, debug=False)
    assert refused == 1
    assert {name: values.tobytes() for name, values in found.weights.items()} == {
        name: values.tobytes() for name, values in wanted.weights.items()
    }


def test_not_even_one_sample(small: Device) -> None:
    tiny = Device(dataclasses.replace(small.info, memory=10_000))
    with pytest.raises(PlanError, match=r"Received batch_size=1, .* Hint: not even a batch of 1 fits\.$"):
        fit(net(), tiny, fit_memory=True)


def test_what_cannot_be_parted(device: Device) -> None:
    rule = r"^fit_memory: batches of a stream are computed as they come\. Hint: give smaller ones, and accumulate\.$"
    with pytest.raises(OptionError, match=rule):
        net().fit([(X, Y)], fit_memory=True, device=device, verbose=False)
    inputs = layers.Input(4)()
    both = bn.Model(inputs, [layers.Dense(2, name="a")(inputs), layers.Dense(2, name="b")(inputs)])
    y = np.zeros(6, int)
    settings = {"class_weights": {"a": [1, 2]}, "loss": ["cross-entropy"] * 2, "device": device, "verbose": False}
    with pytest.raises(OptionError, match=r"^fit_memory: with several outputs, all samples must weigh the same"):
        both.fit(np.ones((6, 4)), [y, y], fit_memory=True, **settings)


def test_what_a_training_held_is_given_back_when_it_ends(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when Python looks for cycles: predictions need the memory."""
    steps = []

    class Known(TrainingStep):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            steps.append(weakref.ref(self))

    monkeypatch.setattr("blobnet.training.steps.TrainingStep", Known)
    gc.disable()
    try:
        fit(net(), device, validation=(X, Y))
        assert [step() for step in steps] == [None]
    finally:
        gc.enable()
