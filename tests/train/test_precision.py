"""Training with 16 bits between layers: gradients as near as roundings allow, the same accuracy, the same bits."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import OptionError, TrainingError
from blobnet.execution.executor import plan_for
from blobnet.launch.kernel_call import PRECISIONS
from blobnet.losses.base import LOSS_SCALE
from blobnet.memory.blob import BFLOAT16, FLOAT16, FLOAT32, StorageType
from blobnet.model import Model
from blobnet.training.settings import TrainingSettings
from blobnet.training.training_step import TrainingStep
from tests.tiny import digits, tiny_model

#: Runs a test for each precision that keeps 16 bits between layers.
each_narrow = pytest.mark.parametrize("narrow", ["bf16", "fp16"])


def smooth_model() -> Model:
    """A network without kinks, at which a rounding may send a gradient elsewhere."""
    return bn.Sequential(
        [
            layers.Input(3, 9, 11),
            layers.Conv2D(8, 3, padding="same", bias=False),
            layers.BatchNorm(),
            layers.Activation("tanh"),
            layers.Conv2D(8, 3, stride=2, padding="same", activation="gelu"),
            layers.AveragePool2D(2),
            layers.Flatten(),
            layers.Dense(5),
        ]
    )


def test_rounds_to_nearest_even() -> None:
    # 1 + 2^-8 lies between 1 and 1 + 2^-7: the even one is 1. 1 + 3 * 2^-8 lies between odd 1 + 2^-7 and 1 + 2^-6.
    values = np.float32([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8 + 2**-20), np.inf, 3.4e38, 1e-40, -0.0])
    wanted = np.float32([1, 1 + 2**-6, -(1 + 2**-7), np.inf, np.inf, 2.0**-133, -0.0])
    np.testing.assert_array_equal(BFLOAT16.decode(BFLOAT16.encode(values)), wanted)
    assert np.isnan(BFLOAT16.decode(BFLOAT16.encode(np.uint32([0x7F800001]).view(np.float32)))).all()


def test_a_type_of_a_plan_that_was_read_back_is_the_same() -> None:
    again = replace(BFLOAT16)
    assert again is not BFLOAT16
    np.testing.assert_array_equal(again.decode(again.encode([1.5, -2.0])), [1.5, -2.0])


@each_narrow
def test_gradients(device: Device, narrow: str) -> None:
    generator, model = np.random.default_rng(0), smooth_model()
    x, y = generator.standard_normal((16, 3, 9, 11), dtype=np.float32), generator.integers(0, 5, 16)
    exact, rounded = (model.gradients(x, y, device=device, precision=name) for name in ("fp32", narrow))
    rounding = PRECISIONS[narrow][1].epsilon / 4
    for name, values in exact.items():
        error = np.linalg.norm(rounded[name] - values) / np.linalg.norm(values)
        # Some roundings on the way, of independent signs: more than those of fp32, and no more than some of them.
        assert rounding / 8 < error < 4 * rounding, name


@each_narrow
def test_learns_as_in_float32(device: Device, narrow: str) -> None:
    (x, y), (unseen, labels) = digits(1200), digits(230, 1200)
    accuracies = {}
    for precision in ("fp32", narrow):
        model = tiny_model()
        model.fit(x, y, epochs=8, batch_size=16, device=device, precision=precision, verbose=False)
        accuracies[precision] = model.evaluate(unseen, labels, device=device, precision=precision)["accuracy"]
    assert accuracies["fp32"] > 0.85
    assert accuracies[narrow] > accuracies["fp32"] - 0.03


@each_narrow
def test_resumes_with_the_same_bits(device: Device, tmp_path: Path, narrow: str) -> None:
    settings: dict[str, Any] = {"device": device, "precision": narrow, "batch_size": 16, "verbose": False}
    data, whole, halves = digits(64), tiny_model(), tiny_model()
    whole.fit(*data, epochs=2, **settings)
    halves.fit(*data, epochs=1, **settings)
    halves.save(tmp_path / "one.h5")
    again = bn.load(tmp_path / "one.h5")
    again.fit(*data, epochs=2, resume=True, **settings)
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(again.weights[name], values, err_msg=name)


@each_narrow
def test_memory_and_what_stays_float32(device: Device, narrow: str) -> None:
    kind = PRECISIONS[narrow][1]
    graph, options = tiny_model().graph, {"loss": bn.losses.CrossEntropy(), "training": True}
    plans = [plan_for(device.at(name), graph, 64, **options) for name in ("fp32", narrow)]
    blobs = {blob.storage: blob for _, call in plans[1].calls for blob in call.blobs.values()}
    assert {name for name, blob in blobs.items() if blob.type == FLOAT32} == {"logits output"}
    assert {blob.type for blob in blobs.values()} == {FLOAT32, kind}
    assert all(
        array.type == FLOAT32 for _, call in plans[1].calls for array in call.arrays.values() if array.persistent
    )
    # All but the logits, and the room behind each buffer that vectors may read.
    sizes = [sum(plan.buffers[name].bytes(64) for name in blobs if name in plan.buffers) for plan in plans]
    assert sizes[1] < 0.55 * sizes[0]


def test_prediction_in_one_precision_of_what_was_trained_in_another(device: Device) -> None:
    x, model = digits(20)[0], tiny_model()
    exact = model.predict(x, device=device)
    for options in ({"precision": "bf16"}, {"storage": "bfloat16"}, {"precision": "fp16"}):
        found = model.predict(x, device=device, **options)
        assert found.dtype == np.float32
        assert 0 < np.abs(found - exact).max() < 0.03 * np.abs(exact).max()


def test_unknown_precision(device: Device) -> None:
    with pytest.raises(OptionError, match=r"it must be one of fp32, tf32, bf16, fp16\. Received precision=half\."):
        tiny_model().fit(*digits(8), device=device, precision="half")


@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)
def test_devices_round_as_the_host_does(device: Device, kind: StorageType) -> None:
    """Ties to even, below the normal numbers too, and overflow to infinity from half a step beyond the largest."""
    steps = np.float32([1, 2**-14, 2**-24, 65504, 2**-130, 1024])
    near = np.float32([0.5, 1.5, 2.5, 0.4999, 0.5001, 1, 0]) * np.float32(kind.epsilon)
    x = np.concatenate([(1 + near) * step for step in steps] + [near * 2**-14, np.float32([65519, 65520])])
    x = np.concatenate([x, -x, np.random.default_rng(0).standard_normal(1001, np.float32)])
    images = layers.Input(1, 1, len(x))()
    model = Model(images, layers.Upsample((2, 1))(layers.Pad(1)(images)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some overflow, as they should.
        found = model.predict(x.reshape(1, 1, 1, -1), device=device, storage=kind.name)[0, 0, 2, 1:-1]
        wanted = kind.decode(kind.encode(x))
    np.testing.assert_array_equal(found, wanted)


# -- the loss scale ----------------------------------------------------------------------------------------------------


def step_of(device: Device, model: Model, **settings: Any) -> TrainingStep:
    losses = (bn.losses.CrossEntropy(),)
    return TrainingStep(
        device.at("fp16"), model.graph, model.weights, TrainingSettings(loss=losses, batch_size=8, **settings)
    )


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.25}, {"clip_value": 0.5}], ids=str)
def test_loss_scale_against_torch(device: Device, clip: dict[str, float]) -> None:
    """Scales, skipped steps and weights are those of PyTorch's GradScaler: growth, backoff, clipped to a norm."""
    torch = pytest.importorskip("torch")
    model = bn.Sequential([layers.Input(3), layers.Dense(5)])
    step = step_of(device, model, optimizer=bn.optimizers.SGD(0.1, momentum=0.9, **clip))
    table = step.parameters.table
    weights = torch.nn.Parameter(torch.zeros(table.trainable_elements, dtype=torch.float64))
    begin = weights.data.numpy().copy()
    for name, values in step.parameters.read().items():
        piece = table.slices[name]
        if piece.offset >= len(begin):  # Not trained.
            continue
        begin[piece.offset : piece.offset + piece.elements] = values.ravel()
    weights.data = torch.tensor(begin)
    optimizer = torch.optim.SGD([weights], 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))  # It makes its tensors at its first use.
    scaler._growth_tracker.fill_(1996)
    buffers, memory, random = step.executor.buffers, step.device.memory, np.random.default_rng(0)
    memory.write(buffers[LOSS_SCALE], np.float32([65536, 1996]))
    broken = {2: np.inf, 3: -np.inf, 4: np.nan, 9: np.inf}
    for number in range(16):
        if number == 9:
            memory.write(buffers[LOSS_SCALE], np.float32([step.loss_scale.value(), 1999]))
            scaler._growth_tracker.fill_(1999)
        if number == 11:
            memory.write(buffers[LOSS_SCALE], np.float32([step.loss_scale.value(), 1998]))
            scaler._growth_tracker.fill_(1998)
        gradients = np.float32(step.loss_scale.value()) * random.standard_normal(table.trainable_elements, np.float32)
        gradients[number % table.trainable_elements] *= broken.get(number, 1)
        memory.write(buffers["gradients"], gradients)
        weights.grad = torch.tensor(gradients, dtype=torch.float64)
        scaler.unscale_(optimizer)
        if "clip_norm" in clip:
            torch.nn.utils.clip_grad_norm_([weights], clip["clip_norm"])
        if "clip_value" in clip:
            torch.nn.utils.clip_grad_value_([weights], clip["clip_value"])
        scaler.step(optimizer)
        scaler.update()
        step.update(0.1)
        assert step.loss_scale.value() == scaler.get_scale(), number
        found = memory.read(step.parameters.buffer, table.trainable_elements)
        np.testing.assert_allclose(found, weights.detach().numpy(), rtol=2e-5, atol=2e-6)
    assert step.loss_scale.value() == 2.0**13


def test_overflow_leaves_steps_out(device: Device) -> None:
    """Steps whose deltas halves cannot hold change nothing, until the scale is small enough; then all is as in fp32."""
    x, y = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32), np.full((8, 3), 400, np.float32)
    model, wide = (bn.Sequential([layers.Input(4), layers.Dense(3, name="d")], seed=1) for _ in range(2))
    options: dict[str, Any] = {"optimizer": bn.optimizers.Adam(0.01), "loss": "mse", "batch_size": 8}
    options |= {"device": device, "verbose": False}
    model.fit(x, y, epochs=1, precision="fp16", **options)
    assert not np.any(model.weights["d/bias"])
    assert model.training_state is not None
    np.testing.assert_array_equal(model.training_state.optimizer_state["loss_scale"], [2.0**15, 0])
    assert not np.any(model.training_state.optimizer_state["first_moment"])
    model.fit(x, y, epochs=12, resume=True, precision="fp16", **options)
    scale, steps = model.training_state.optimizer_state["loss_scale"]
    assert 0 < steps < 12
    assert scale == 65536 * 2.0 ** (steps - 12)
    found, exact = (
        own.gradients(x, y, loss="mse", device=device, precision=p) for own, p in ((wide, "fp16"), (wide, "fp32"))
    )
    for name, values in exact.items():
        np.testing.assert_allclose(found[name], values, rtol=3e-3, atol=1e-3 * np.abs(values).max(), err_msg=name)


def test_gradients_that_no_scale_makes_finite(device: Device) -> None:
    """The scale stops where it is an error, which the next step of one's own says, and the end of an epoch of fit."""
    model = bn.Sequential([layers.Input(3), layers.Dense(5)])
    step = step_of(device, model, optimizer=bn.optimizers.SGD(0.1))
    elements = step.parameters.table.trainable_elements
    begin = step.device.memory.read(step.parameters.buffer, elements)
    for _ in range(40):
        step.device.memory.write(step.executor.buffers["gradients"], np.full(elements, np.inf, np.float32))
        step.update(0.1)
    assert step.loss_scale.value() == 2.0**-15
    np.testing.assert_array_equal(step.device.memory.read(step.parameters.buffer, elements), begin)
    rule = r"the gradients must be finite in some steps, at some loss scale\. Received step=3, loss_scale=.*bf16"
    with pytest.raises(TrainingError, match=rule):
        step.loss_scale.check(step=3)


def test_lookahead_goes_nowhere_back_in_a_step_that_is_left_out(device: Device) -> None:
    model = bn.Sequential([layers.Input(3), layers.Dense(5)])
    step = step_of(device, model, optimizer=bn.optimizers.SGD(0.1, lookahead=2))
    elements = step.parameters.table.trainable_elements

    def update(*gradients: float) -> Any:
        step.device.memory.write(step.executor.buffers["gradients"], np.resize(np.float32(gradients), elements))
        step.update(0.1)
        return step.device.memory.read(step.parameters.buffer, elements)

    begin = step.device.memory.read(step.parameters.buffer, elements)
    first = update(65536)
    np.testing.assert_allclose(first, begin - np.float32(0.1), rtol=1e-6)
    # The second step would go back, and is left out; the fourth goes back to the middle of all that were not.
    np.testing.assert_array_equal(update(65536, np.inf), first)
    assert step.loss_scale.value() == 32768
    update(32768)
    np.testing.assert_allclose(update(32768), begin - np.float32(0.15), rtol=1e-5)


def test_a_step_climbs_by_gradients_of_any_scale_but_not_by_infinite_ones(device: Device) -> None:
    model = bn.Sequential([layers.Input(3), layers.Dense(5)])
    step = step_of(device, model, optimizer=bn.optimizers.SGD(0.1, sam=0.5))
    elements = step.parameters.table.trainable_elements
    is_used = np.arange(elements) < 15

    def parameters() -> Any:
        return step.device.memory.read(step.parameters.buffer, elements)

    def write(value: float) -> None:
        values = np.where(is_used, np.float32(value), 0).astype(np.float32)
        step.device.memory.write(step.executor.buffers["gradients"], values)

    begin = parameters()
    write(65536)
    step.sharpness.climb()
    np.testing.assert_allclose(parameters(), begin + is_used * np.float32(0.5 / np.sqrt(15)), rtol=1e-6)
    step.update(0.1)
    np.testing.assert_allclose(parameters(), begin - is_used * np.float32(0.1), rtol=1e-6)
    before = parameters()
    write(np.inf)
    step.sharpness.climb()
    np.testing.assert_array_equal(parameters(), before)
    step.update(0.1)
    np.testing.assert_array_equal(parameters(), before)
    assert step.loss_scale.value() == 32768


def test_a_loss_that_is_not_finite_is_still_said(device: Device) -> None:
    x, y = digits(16)
    model = bn.Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(4), layers.Dense(10)])
    model.set_weights({name: 1e4 * np.ones_like(v) for name, v in model.weights.items() if name.startswith("dense_1")})
    rule = r"the loss must stay finite.* first_layer=.*Halves hold nothing beyond 65504: precision='bf16' has the range"
    with pytest.raises(TrainingError, match=rule):
        model.fit(x, y, device=device, precision="fp16", batch_size=16, verbose=False)


def test_a_training_goes_on_in_another_precision(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"device": device, "batch_size": 16}
    model = tiny_model()
    model.fit(*digits(64), epochs=1, precision="fp16", verbose=False, **settings)
    model.save(tmp_path / "half.h5")
    again = bn.load(tmp_path / "half.h5")
    assert again.training_state is not None
    assert again.training_state.settings["precision"] == "fp16"
    again.fit(*digits(64), epochs=2, resume=True, precision="bf16", **settings)
    assert "note: the precision was fp16, and is bf16" in capsys.readouterr().err
    assert "loss_scale" not in again.training_state.optimizer_state
    again.fit(*digits(64), epochs=3, resume=True, precision="fp16", verbose=False, **settings)
    np.testing.assert_array_equal(again.training_state.optimizer_state["loss_scale"], [65536, 4])


@pytest.mark.parametrize("scale", [0.0, np.nan, -1.0])
def test_a_loss_scale_of_a_file_that_is_none(device: Device, scale: float) -> None:
    step = step_of(device, bn.Sequential([layers.Input(3), layers.Dense(5)]), optimizer=bn.optimizers.SGD(0.1))
    state = step.state.slots().read()
    with pytest.raises(OptionError, match="the loss scale must be a finite number above 0"):
        step.state.restore(state | {"loss_scale": np.float32([scale, 0])})


def test_accumulated_steps_and_training_step_by_step_see_unscaled_gradients(device: Device) -> None:
    x, y = digits(8)
    model, wide = smooth_model(), smooth_model()
    x = np.random.default_rng(0).standard_normal((8, 3, 9, 11)).astype(np.float32)
    y = y % 5
    found = []
    for own, precision in ((model, "fp16"), (wide, "fp32")):
        step = own.trainer(optimizer=bn.optimizers.SGD(0.1), precision=precision, device=device)
        step.train(x, y)
        step.train(x, y, add=True)
        gradients = step.gradients
        step.set_gradients({"dense_1/bias": np.ones(5)})
        assert np.all(step.gradients["dense_1/bias"] == 1)
        step.update()
        found.append((gradients, own.weights))
    for half, exact in zip(*found, strict=True):
        for name, values in exact.items():
            error = np.linalg.norm(half[name] - values)
            assert error <= 3e-3 * np.linalg.norm(values) + 1e-6, name
