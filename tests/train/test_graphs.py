"""Networks with several inputs, outputs and losses, with layers in several places, and with constants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import blobnet as bn
from blobnet import layers, losses
from blobnet.device.device import Device
from blobnet.errors import BlobnetError, DataError, OptionError, ShapeError, TrainingError
from blobnet.execution.loader import Loader
from blobnet.files import checkpoint
from blobnet.model import Model
from blobnet.network.graph import from_description
from tests.reference.compare import assert_close
from tests.two_ends import LOSSES, Arrays, data, two_ends


def torch_results(model: Model, x: Arrays, y: Arrays, weights: tuple[float, float]) -> tuple[Arrays, Arrays]:
    """The outputs and losses of :func:`two_ends`, and all derivatives, by PyTorch in float64."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in (model.weights | x).items()}
    wanted = [*model.graph.trainable, *x]
    for name in wanted:
        tensors[name].requires_grad_()
    picture, state = tensors["image"], tensors["state"]

    def shared(values: Any) -> Any:
        convolved = functional.conv2d(values, tensors["shared/weight"], tensors["shared/bias"], padding=1)
        return torch.tanh(convolved)

    def dense(values: Any, name: str) -> Any:
        return functional.linear(values, tensors[f"{name}/weight"], tensors[f"{name}/bias"])

    joined = torch.cat([shared(picture), shared(picture + tensors["pattern/value"])], dim=1)
    mask = functional.conv2d(joined, tensors["classes/weight"], tensors["classes/bias"])
    moved = dense(torch.sigmoid(dense(state, "dense")), "dense")
    value = dense(torch.cat([moved, joined.mean(dim=(2, 3))], dim=1), "values")
    of_mask = functional.cross_entropy(mask, torch.tensor(y["mask"]))
    of_value = functional.mse_loss(value, torch.tensor(y["value"], dtype=torch.float64))
    (weights[0] * of_mask + weights[1] * of_value).backward()
    results = {"mask": mask, "value": value, "mask_loss": of_mask, "value_loss": of_value}
    return (
        {name: values.detach().numpy() for name, values in results.items()},
        {name: tensors[name].grad.numpy() for name in wanted},
    )


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 2.0), (0.0, 1.0)], ids=str)
def test_against_pytorch(device: Device, weights: tuple[float, float]) -> None:
    model = two_ends()
    x, y = data(7)
    results, derivatives = torch_results(model, x, y, weights)
    found = model.predict(x, device=device, batch_size=3)
    assert list(found) == ["mask", "value"]
    for name, values in found.items():
        assert_close(values, results[name], relative=1e-5, absolute=1e-6, what=name)
    gradients = model.gradients(x, y, loss=LOSSES, loss_weights=list(weights), device=device, debug=True)
    assert set(gradients) == set(derivatives)
    for name, values in gradients.items():
        assert_close(values, derivatives[name], relative=2e-5, absolute=2e-6, what=name)
    measured = model.evaluate(x, y, loss=LOSSES, loss_weights=dict(zip(LOSSES, weights, strict=True)), device=device)
    total = weights[0] * results["mask_loss"] + weights[1] * results["value_loss"]
    right = (results["mask"].argmax(axis=1) == y["mask"]).mean()
    wanted = {"loss": total, "mask_loss": results["mask_loss"], "mask_accuracy": right, "mask_top_5": 1}
    wanted["value_loss"] = results["value_loss"]
    assert measured == pytest.approx({name: float(value) for name, value in wanted.items()}, rel=1e-5)


def test_lists_in_order_are_the_same(device: Device) -> None:
    model = two_ends()
    x, y = data(5)
    by_name = model.gradients(x, y, loss=LOSSES, device=device)
    in_order = model.gradients(list(x.values()), tuple(y.values()), loss=list(LOSSES.values()), device=device)
    assert all(np.array_equal(values, in_order[name]) for name, values in by_name.items())


def test_the_delta_of_an_input_that_is_done_early_stays(device: Device) -> None:
    """That of ``state`` is known before the gates have theirs, which are as large."""
    image, state = layers.Input(2, 6, 5)(), layers.Input(4)()
    first = layers.Conv2D(4, 3, name="first")(image)
    gates = layers.Activation("sigmoid")(layers.Dense(4)(layers.GlobalAveragePool()(first)))
    last = layers.Conv2D(4, 3, name="last")(layers.Activation("relu")(first * gates))
    model = bn.Model({"image": image, "state": state}, layers.Flatten()(last * layers.Dense(4, name="scale")(state)))
    random = np.random.default_rng(0)
    x = {"image": random.standard_normal((5, 2, 6, 5)), "state": random.standard_normal((5, 4))}
    delta = random.standard_normal((5, 8))
    text = "function (P[N, C], T[N, C]) -> (L) { L[n] = +(P[n, c] * T[n, c]); }"
    found = model.gradients(x, delta, loss=losses.Expression(text), device=device)
    scaled = model.outputs_of("last").predict(x["image"], device=device).reshape(5, 4, 2)
    wanted = (delta.reshape(5, 4, 2) * scaled).sum(axis=2) @ model.weights["scale/weight"] / 5
    assert_close(found["state"], wanted, relative=1e-4, absolute=1e-5, what="state")


def test_a_matrix_for_all_samples_and_all_of_a_stack(device: Device) -> None:
    random = np.random.default_rng(3)
    stack, matrix, shift = layers.Input(3, 4, 5)(), random.standard_normal((5, 2)), random.standard_normal((3, 1, 2))
    product = layers.MatMul()([stack, layers.Constant(matrix, trainable=True, name="matrix")()])
    model = bn.Model(stack, product + layers.Constant(shift, trainable=True, name="shift")())
    x, delta = random.standard_normal((7, 3, 4, 5)), random.standard_normal((7, 3, 4, 2))
    assert_close(model.predict(x, device=device), x @ matrix + shift, relative=1e-5, absolute=1e-5, what="output")
    text = "function (P[N, C, Y, X], T[N, C, Y, X]) -> (L) { L[n] = +(P[n, c, y, x] * T[n, c, y, x]); }"
    found = model.gradients(x, delta, loss=losses.Expression(text), device=device, debug=True)
    wanted = {
        "input": delta @ matrix.T,
        "matrix/value": np.einsum("ncyk,ncyx->kx", x, delta),
        "shift/value": delta.sum(axis=(0, 2), keepdims=True)[0],
    }
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        assert_close(7 * values, wanted[name], relative=1e-5, absolute=1e-4, what=name)


def test_an_output_that_others_read_has_both_deltas(device: Device) -> None:
    torch = pytest.importorskip("torch")
    rows = layers.Input(4, name="rows")()
    inner = layers.Dense(3, activation="tanh", name="inner")(rows)
    model = Model(rows, {"inner": inner, "outer": layers.Dense(2, name="outer")(inner)})
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    y = {"inner": x[:, :3] * 0.5, "outer": x[:, 2:]}
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in model.weights.items()}
    for name in model.graph.trainable:
        tensors[name].requires_grad_()
    first = torch.tanh(torch.tensor(x).double() @ tensors["inner/weight"].T + tensors["inner/bias"])
    second = first @ tensors["outer/weight"].T + tensors["outer/bias"]
    loss = sum(((mine - torch.tensor(y[name])) ** 2).mean() for name, mine in (("inner", first), ("outer", second)))
    loss.backward()
    found = model.gradients(x, y, loss=dict.fromkeys(y, "mse"), device=device, debug=True)
    for name in model.graph.trainable:
        assert_close(found[name], tensors[name].grad.numpy(), relative=1e-5, absolute=1e-6, what=name)
    predicted = model.predict(x, device=device)
    assert_close(predicted["inner"], first.detach().numpy(), relative=1e-5, absolute=1e-6, what="inner")
    assert_close(predicted["outer"], second.detach().numpy(), relative=1e-5, absolute=1e-6, what="outer")


def test_an_output_that_a_dense_layer_reads_has_its_own_shape(device: Device) -> None:
    """Its values may not lie as the planes before it, whose units the loss would take for the classes."""
    images = layers.Input(2, 3, 2, name="images")()
    flat = layers.Activation("tanh")(layers.Flatten()(images))
    model = Model(images, {"flat": flat, "dense": layers.Dense(3)(flat)})
    x, labels = np.random.default_rng(0).standard_normal((4, 2, 3, 2)).astype(np.float32), np.array([0, 5, 7, 11])
    logits = np.tanh(np.float64(x)).reshape(4, 12)
    wanted = float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), labels]))
    loss = dict.fromkeys(("flat", "dense"), "CrossEntropy")
    measured = model.evaluate(x, {"flat": labels, "dense": labels % 3}, loss=loss, device=device)
    assert measured["flat_loss"] == pytest.approx(wanted, rel=1e-5)
    assert measured["flat_accuracy"] == np.mean(logits.argmax(axis=1) == labels)


@pytest.mark.parametrize("join", [layers.Add, layers.Multiply])
@pytest.mark.parametrize("ranges", [((1, 2),), ((None, None),)], ids=["one unit", "all units"])
def test_a_part_goes_together_with_the_whole(device: Device, join: Any, ranges: Any) -> None:
    """The result may not lie over the whole, whose part is read for other units."""
    images = layers.Input(3, 4, 2, name="images")()
    values = layers.Activation("tanh")(images)
    part = layers.Slice(ranges)(layers.Slice(((0, 3),))(values))
    model = Model(images, join()([values, part]))
    x = np.random.default_rng(0).standard_normal((5, 3, 4, 2)).astype(np.float32)
    own = np.tanh(np.float64(x))
    other = own[:, slice(*ranges[0])]
    wanted = own + other if join is layers.Add else own * other
    assert_close(model.predict(x, device=device), wanted, relative=1e-5, absolute=1e-6, what="joined")


@pytest.mark.parametrize("frozen", [None, "norm", "convolution"])
def test_a_norm_and_a_convolution_in_three_places(device: Device, frozen: str | None) -> None:
    torch = pytest.importorskip("torch")
    images = layers.Input(3, 5, 4)()
    convolution = layers.Conv2D(3, 3, padding=1, bias=False, name="convolution")
    norm = layers.BatchNorm(name="norm")
    node = images
    for _ in range(3):
        node = layers.Activation("relu")(norm(convolution(node)))
    model = Model(images, layers.Dense(4, name="head")(node))
    x = np.random.default_rng(3).standard_normal((6, 3, 5, 4)).astype(np.float32)
    y = np.arange(6) % 4
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in model.weights.items()}
    trained = [name for name in model.graph.trainable if not frozen or not name.startswith(frozen)]
    for name in trained:
        tensors[name].requires_grad_()
    values = torch.tensor(x).double()
    for _ in range(3):
        values = torch.nn.functional.conv2d(values, tensors["convolution/weight"], padding=1)
        own = [tensors[f"norm/{name}"] for name in ("running_mean", "running_variance", "scale", "shift")]
        values = torch.relu(torch.nn.functional.batch_norm(values, *own, training=frozen != "norm"))
    logits = values.flatten(1) @ tensors["head/weight"].T + tensors["head/bias"]
    torch.nn.functional.cross_entropy(logits, torch.tensor(y)).backward()
    found = model.gradients(x, y, freeze=frozen or (), device=device, debug=True)
    assert set(found) == {*trained, "input"}
    for name in trained:
        assert_close(found[name], tensors[name].grad.numpy(), relative=1e-4, absolute=1e-5, what=name)


# -- training ----------------------------------------------------------------------------------------------------------


def test_training_with_everything(device: Device, tmp_path: Path) -> None:
    model = two_ends()
    (x, y), (xv, yv) = data(40), data(10, seed=2)
    history = model.fit(
        x,
        y,
        epochs=6,
        batch_size=8,
        optimizer=bn.optimizers.Adam(1e-2),
        loss=LOSSES,
        loss_weights={"value": 0.5},
        validation=(xv, yv),
        metrics={"mask": ["iou"], "value": "mae"},
        class_weights={"mask": [1.0, 2.0, 1.5]},
        sample_weights={"value": np.linspace(0.5, 1, 40)},
        callbacks=[bn.callbacks.SaveBest(tmp_path / "best.h5", "validation_value_mae")],
        device=device,
        verbose=False,
    )
    own = ["loss", "mask_loss", "mask_accuracy", "mask_top_5", "value_loss"]
    names = [*own, *(f"validation_{name}" for name in (*own, "mask_iou", "value_mae"))]
    assert list(history) == names
    for name in ("loss", "mask_loss", "value_loss", "validation_loss", "validation_value_mae"):
        assert history[name][-1] < history[name][0], name
    assert history["validation_mask_iou"][-1] > history["validation_mask_iou"][0]
    parts = zip(history["loss"], history["mask_loss"], history["value_loss"], strict=True)
    assert all(total == pytest.approx(mask + 0.5 * value, rel=1e-6) for total, mask, value in parts)
    measured = model.evaluate(xv, yv, metrics={"value": "mae"}, loss_weights={"value": 0.5}, device=device)
    assert measured["loss"] == pytest.approx(history["validation_loss"][-1], rel=1e-5)
    assert measured["value_mae"] == pytest.approx(history["validation_value_mae"][-1], rel=1e-5)
    assert bn.load(tmp_path / "best.h5").loss == LOSSES


def test_a_step_follows_the_gradient(device: Device) -> None:
    model, same = two_ends(), two_ends()
    x, y = data(8)
    gradients = model.gradients(x, y, loss=LOSSES, loss_weights=[1, 3], device=device)
    model.fit(x, y, batch_size=8, optimizer=bn.optimizers.SGD(0.1), loss=LOSSES, loss_weights=[1, 3], verbose=False)
    for name in model.graph.trainable:
        wanted = same.weights[name] - 0.1 * gradients[name]
        assert_close(model.weights[name], wanted, relative=1e-5, absolute=1e-6, what=name)


def test_batches_of_a_step_add_up(device: Device) -> None:
    whole, in_parts = two_ends(), two_ends()
    x, y = data(12)
    settings: dict[str, Any] = {"loss": LOSSES, "optimizer": bn.optimizers.SGD(0.1), "verbose": False}
    settings |= {"loss_weights": [2, 1], "sample_weights": np.linspace(0.5, 2, 12), "device": device}
    whole.fit(x, y, batch_size=12, **settings)
    in_parts.fit(x, y, batch_size=4, accumulate=3, **settings)
    for name, values in whole.weights.items():
        assert_close(in_parts.weights[name], values, relative=1e-5, absolute=1e-6, what=name)
    with pytest.raises(OptionError, match="accumulate: with several outputs, all samples must weigh the same at each"):
        whole.fit(x, y, accumulate=2, class_weights={"mask": [1, 2, 3]}, loss=LOSSES)


def test_the_sum_of_weights_at_each_output_is_its_own(device: Device) -> None:
    model = two_ends()
    x, y = data(6)
    y["mask"][:, :3] = 255
    loss = {"mask": losses.CrossEntropy(ignore=255), "value": "mse"}
    alone = Model(model.node("image"), model.node("classes"))
    wanted = alone.gradients(x["image"], y["mask"], loss=loss["mask"], device=device)
    found = model.gradients(x, y, loss=loss, loss_weights={"value": 0}, device=device)
    for name in wanted.keys() - {"input"}:
        assert_close(found[name], wanted[name], relative=1e-5, absolute=1e-7, what=name)
    assert not found["values/weight"].any()
    # Of which nothing counts, an output's loss is none, and none of the sum's.
    y["mask"][:] = 255
    measured = model.evaluate(x, y, loss=loss, device=device)
    history = model.fit(x, y, loss=loss, batch_size=3, device=device, verbose=False)
    for values in (measured, {name: each[0] for name, each in history.items()}):
        assert np.isnan(values["mask_loss"])
        assert values["loss"] == values["value_loss"] > 0


def test_the_same_seed_gives_the_same_bits_and_a_resumed_training_too(device: Device, tmp_path: Path) -> None:
    x, y = data(20)

    def train(model: Model, epochs: int, **options: Any) -> Model:
        model.fit(x, y, epochs=epochs, batch_size=8, loss=LOSSES, device=device, verbose=False, **options)
        return model

    settings: dict[str, Any] = {"loss_weights": {"mask": 0.25}, "augment": {"image": "flip"}}
    whole, other = train(two_ends(), 3, **settings), train(two_ends(), 3, **settings)
    assert all(np.array_equal(values, other.weights[name]) for name, values in whole.weights.items())
    begun = train(two_ends(), 2, **settings)
    begun.save(tmp_path / "begun.h5")
    resumed = bn.load(tmp_path / "begun.h5")
    resumed.fit(x, y, epochs=3, batch_size=8, resume=True, device=device, verbose=False)
    assert all(np.array_equal(values, resumed.weights[name]) for name, values in whole.weights.items())
    assert resumed.history == whole.history
    with pytest.raises(OptionError, match="resume: the loss weights must be that of the interrupted training"):
        bn.load(tmp_path / "begun.h5").fit(x, y, epochs=3, batch_size=8, resume=True, loss_weights=[1, 1])


def test_what_is_not_finite_at_any_output_stops_training(device: Device) -> None:
    for output, bias in (("mask", {"classes/bias": [3e38, -3e38, 0]}), ("value", {"values/bias": [3e38, 0]})):
        model = two_ends()
        x, y = data(24)
        model.set_weights(bias)
        with pytest.raises(TrainingError, match=rf"training: the loss must stay finite\..*output={output}"):
            model.fit(x, y, batch_size=8, loss=LOSSES, optimizer=bn.optimizers.SGD(0.1), device=device, verbose=False)


# -- where samples come from -------------------------------------------------------------------------------------------


class Lazy:
    """Gives batches by index, and counts them."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values, self.reads = values, 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        self.reads += 1
        return self.values[rows]


@pytest.mark.parametrize("kind", ["resident", "copied", "mapped", "lazy", "one resident"])
def test_every_way_in_gives_the_same(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    x, y = data(20)
    x["image"] = (50 * x["image"] + 120).clip(0, 255).astype(np.uint8)
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 6, "loss": LOSSES, "device": device, "verbose": False}
    wanted = two_ends()
    wanted.set_normalization([120, 120], [50, 50], input="image")
    wanted.fit({"image": x["image"].astype(np.float32), "state": x["state"]}, y, **settings)
    given: dict[str, Any] = dict(x)
    if kind == "copied":
        monkeypatch.setattr("blobnet.execution.loader._SHARE_OF_HOST", 0)
    elif kind == "one resident":
        # Room for the small input alone.
        keep = Loader._keep
        monkeypatch.setattr(Loader, "_keep", lambda *of: of[1].name == "state" and keep(*of))
    elif kind == "mapped":
        np.save(tmp_path / "image.npy", x["image"])
        given["image"] = np.load(tmp_path / "image.npy", mmap_mode="r")
    elif kind == "lazy":
        given["state"] = Lazy(x["state"])
    model = two_ends()
    model.set_normalization([120, 120], [50, 50], input="image")
    model.fit(given, y, **settings)
    for name, values in wanted.weights.items():
        assert_close(model.weights[name], values, relative=1e-5, absolute=1e-6, what=name)
    found, expected = model.predict(given, device=device), wanted.predict(x, device=device)
    assert_close(found["mask"], expected["mask"], relative=1e-4, absolute=1e-5, what="mask")


def test_samples_keep_their_types(device: Device) -> None:
    x, _ = data(8)
    x["image"] = x["image"].astype(np.float16)
    model = two_ends()
    with model._evaluator(
        device,
        precision="fp32",
        storage="float32",
        loss=None,
        count=8,
        batch_size=8,
        sample_type=("float16", "float32"),
    ) as evaluator:
        assert [entry.sample_type for entry in evaluator.plan.request.entries] == ["float16", "float32"]
        buffers = evaluator.plan.buffers
        halves, wholes = buffers["samples of image"].per_sample, buffers["samples of state"].per_sample
        assert (halves % 30, wholes % 3) == (0, 0)
        assert halves // 30 == wholes // 3
    assert model.predict(x, device=device)["value"].shape == (8, 2)


def test_streams_of_batches_by_name_and_in_order(device: Device) -> None:
    x, y = data(20)

    class Stream:
        def __init__(self, *, named: bool) -> None:
            self.named = named

        def __iter__(self) -> Iterator[Any]:
            for first in range(0, 20, 8):
                some = slice(first, first + 8)
                xs, ys = ({name: values[some] for name, values in part.items()} for part in (x, y))
                yield (xs, ys) if self.named else (tuple(xs.values()), tuple(ys.values()))

        def __len__(self) -> int:
            return 3

    weights = []
    for named in (True, False):
        model = two_ends()
        model.fit(Stream(named=named), epochs=2, batch_size=8, loss=LOSSES, device=device, verbose=False)
        weights.append(model.weights)
    assert all(np.array_equal(values, weights[1][name]) for name, values in weights[0].items())
    wanted = model.predict(x, device=device, batch_size=8)
    for stream in (
        iter(({"image": x["image"][:8], "state": x["state"][:8]},)),
        iter([(x["image"][:8], x["state"][:8])]),
    ):
        found = model.predict(stream, device=device, batch_size=8)
        assert all(np.array_equal(values, wanted[name][:8]) for name, values in found.items())
    measured = model.evaluate(Stream(named=True), device=device, batch_size=8)
    assert measured == pytest.approx(model.evaluate(x, y, device=device, batch_size=8), rel=1e-5)


def test_a_fraction_for_validation(device: Device) -> None:
    model = two_ends()
    x, y = data(20)
    history = model.fit(x, y, validation=0.25, batch_size=5, loss=LOSSES, device=device, verbose=False)
    assert np.isfinite(history["validation_value_loss"]).all()


def test_masks_move_along_with_the_named_picture(device: Device) -> None:
    images, state = layers.Input(1, 6, 7, name="image")(), layers.Input(2, name="state")()
    mask = layers.Conv2D(2, 1, name="mask")(images)
    model = Model([images, state], [mask, layers.Dense(1, name="value")(state)])
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, (64, 6, 7))
    x = {"image": labels[:, None].astype(np.float32), "state": random.standard_normal((64, 2)).astype(np.float32)}
    y = {"mask": labels, "value": x["state"].sum(axis=1)}
    settings: dict[str, Any] = {"optimizer": bn.optimizers.Adam(0.3), "loss": {"mask": "CrossEntropy", "value": "mse"}}
    history = model.fit(
        x, y, epochs=8, batch_size=16, augment={"image": "crop=2, flip"}, device=device, verbose=False, **settings
    )
    # Were a mask not moved with its picture, half of its cells would be wrong.
    assert history["mask_accuracy"][-1] == 1
    assert history["value_loss"][-1] < 0.1 * history["value_loss"][0]


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_brings_everything_back(device: Device, tmp_path: Path) -> None:
    model = two_ends(seed=4)
    x, y = data(9)
    model.fit(x, y, batch_size=4, loss=LOSSES, device=device, verbose=False)
    model.save(tmp_path / "model.h5")
    loaded = bn.load(tmp_path / "model.h5")
    assert loaded.graph == model.graph
    assert loaded.loss == LOSSES
    assert loaded.history == model.history
    assert {name: values.tobytes() for name, values in loaded.weights.items()} == {
        name: values.tobytes() for name, values in model.weights.items()
    }
    found, wanted = loaded.predict(x, device=device), model.predict(x)
    assert all(np.array_equal(values, wanted[name]) for name, values in found.items())
    text = checkpoint.inspect(tmp_path / "model.h5")
    assert "format 2," in text
    assert "image (2, 6, 5), state (3)" in text
    assert "mask CrossEntropy(" in text
    # The parameters of layers in several places, and of constants, are there once.
    shared = [layer for layer in model.summary().layers if layer.name.startswith("shared")]
    assert [(layer.name, layer.parameters) for layer in shared] == [
        ("shared", 2 * 4 * 9 + 4),
        ("shared_tanh", 0),
        ("shared@2", 0),
        ("shared_tanh@2", 0),
    ]
    assert model.parameter_count == sum(
        values.size for name, values in model.weights.items() if "/mean" not in name and "/deviation" not in name
    )


def test_a_description_survives_json() -> None:
    graph = two_ends().graph
    assert from_description(json.loads(json.dumps(graph.description())), "file") == graph
    assert [*graph.inputs] == ["image", "state"]
    assert [vertex.name for vertex in graph.inputs.values()] == ["image", "rows"]


@pytest.mark.parametrize(
    "change",
    [
        lambda description: description.pop("outputs"),
        lambda description: description["outputs"].update(mask="nowhere"),
        lambda description: description.update(inputs=["image"]),
        lambda description: description["layers"][-1].update(place="two"),
    ],
)
def test_broken_descriptions(change: Any) -> None:
    description = json.loads(json.dumps(two_ends().graph.description()))
    change(description)
    with pytest.raises(BlobnetError):
        from_description(description, "m.h5")


def test_a_place_must_be_of_the_same_layer() -> None:
    description = json.loads(json.dumps(two_ends().graph.description()))
    (second,) = [entry for entry in description["layers"] if entry.get("place") == 2 and entry["kind"] == "Conv2D"]
    second["config"]["filters"] = 5
    with pytest.raises(BlobnetError, match=r"m\.h5: a layer must be the same in all of its places\. .*layer=shared"):
        from_description(description, "m.h5")


# -- constants ---------------------------------------------------------------------------------------------------------


def test_constants_stay_and_are_trained_if_they_may(device: Device, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    images = layers.Input(2, 3, 4)()
    for trainable in (False, True):
        constant = layers.Constant(values, trainable=trainable, name="constant")()
        model = Model(images, layers.Dense(2)(images + constant))
        assert np.array_equal(model.weights["constant/value"], values)
        model.initialize(3)
        assert np.array_equal(model.weights["constant/value"], values)
        assert np.array_equal(
            model.outputs_of("add_1").predict(np.zeros((2, 2, 3, 4), np.float32), device=device)[1], values
        )
        x = np.random.default_rng(1).standard_normal((6, 2, 3, 4)).astype(np.float32)
        model.fit(x, np.arange(6) % 2, device=device, verbose=False)
        assert np.array_equal(model.weights["constant/value"], values) != trainable
        model.save(tmp_path / "model.h5")
        loaded = bn.load(tmp_path / "model.h5")
        assert np.array_equal(loaded.predict(x, device=device), model.predict(x))
        loaded.initialize(0)
        assert np.array_equal(loaded.weights["constant/value"], model.weights["constant/value"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: layers.Constant(),
            "Constant: the values must have 1 to 4 axes: units, depth, height, width. Received shape=None",
        ),
        (lambda: layers.Constant(np.zeros((1, 2, 3, 4, 5))), "Constant: the values must have 1 to 4 axes"),
        (lambda: layers.Constant([1.0, np.nan]), "Constant: every value must be finite"),
        (lambda: layers.Constant(np.zeros(3), shape=(4,)), "Constant: the shape must be that of the values"),
    ],
)
def test_constants_must_be_arrays(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


# -- taken apart -------------------------------------------------------------------------------------------------------


def test_nodes_of_a_model_make_new_ones(device: Device) -> None:
    model = two_ends(seed=2)
    x, _ = data(4)
    alone = Model(model.node("image"), {"mask": model.node("classes"), "joined": model.node("joined")})
    wanted = model.predict(x, device=device)
    found = alone.predict(x["image"], device=device)
    assert_close(found["mask"], wanted["mask"], relative=1e-6, absolute=1e-6, what="mask")
    inner = model.outputs_of("joined").predict(x["image"], device=device)
    assert_close(found["joined"], inner, relative=1e-6, absolute=1e-6, what="joined")
    assert list(model.outputs_of("values").graph.inputs) == ["image", "state"]
    with pytest.raises(OptionError, match=r"node: it must name a layer of the model\. Received layer=clases\. Hint"):
        model.node("clases")


def test_a_part_is_a_model_of_its_own(device: Device) -> None:
    model = two_ends(seed=2)
    x, _ = data(4)
    head = model.part("joined", "classes")
    inner = model.outputs_of("joined").predict(x["image"], device=device)
    assert_close(
        head.predict(inner, device=device), model.predict(x)["mask"], relative=1e-6, absolute=1e-6, what="mask"
    )
    with pytest.raises(OptionError, match="part: the last layer must come behind the first one"):
        model.part("classes", "joined")
    with pytest.raises(OptionError, match="Model: the outputs must depend on exactly the input that is given"):
        model.part("joined", "values")


def test_a_network_is_called_like_a_layer(device: Device) -> None:
    random = np.random.default_rng(0)
    images = layers.Input(2, 6, 5)()
    features = Model(
        images, layers.GlobalAveragePool()(layers.Conv2D(4, 3, activation="relu", name="convolution")(images)), seed=7
    )
    features.set_normalization([0.5, -1.0], [2.0, 0.25])
    left, right = layers.Input(2, 6, 5, name="left")(), layers.Input(2, 6, 5, name="right")()
    twin = Model(
        [left, right], layers.Dense(2, name="head")(layers.Concat(name="both")([features(left), features(right)]))
    )
    x = {name: random.standard_normal((5, 2, 6, 5)).astype(np.float32) for name in ("left", "right")}
    both = twin.outputs_of("both").predict(x, device=device)
    for values, name in zip((both[:, :4], both[:, 4:]), x, strict=True):
        assert_close(values, features.predict(x[name], device=device), relative=1e-5, absolute=1e-6, what=name)
    # One convolution, in two places.
    assert sum(name.startswith("convolution") for name in twin.weights) == 2
    y = np.arange(5) % 2
    history = twin.fit(x, y, epochs=5, device=device, verbose=False, optimizer=bn.optimizers.Adam(1e-2))
    assert history["loss"][-1] < history["loss"][0]
    apart = Model([left, right], layers.Concat()([features(left), features(right, prefix="right_")]))
    assert {"convolution/weight", "right_convolution/weight"} <= set(apart.weights)


# -- what is refused ---------------------------------------------------------------------------------------------------


def _fit(x: Any, y: Any, **options: Any) -> None:
    two_ends().fit(x, y, **{"loss": LOSSES, "verbose": False, **options})


def _without(arrays: Arrays, name: str) -> Arrays:
    return {key: values for key, values in arrays.items() if key != name}


X, Y = data(6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: _fit(_without(X, "state"), Y),
            r"x: there must be one for every input of the model\. "
            r"Received missing=state, given=image",
        ),
        (
            lambda: _fit({**X, "stat": X["state"]}, Y),
            r"x: each name must be that of an input of the model\. "
            r"Received name=stat, inputs=image, state\. "
            r"Hint: did you mean 'state'",
        ),
        (
            lambda: _fit([X["image"]], Y),
            r"x: the model has 2 inputs: give one for each, by name or as a list in their order\. "
            r"Received inputs=image, state, received=1",
        ),
        (lambda: _fit(X["image"], Y), r"x: the model has 2 inputs: .*received=ndarray"),
        (
            lambda: _fit({**X, "state": X["state"][:5]}, Y),
            r"x: all inputs must have the same number of samples\. "
            r"Received samples=image 6, state 5",
        ),
        (
            lambda: _fit({**X, "state": X["state"][:, :2]}, Y),
            r"x\['state'\]: each sample must have the shape of the model's input\. "
            r"Received sample=\(2,\), input=\(3,\)",
        ),
        (
            lambda: _fit(X, _without(Y, "value")),
            r"y: there must be one for every output of the model\. "
            r"Received missing=value",
        ),
        (lambda: _fit(X, {**Y, "mask": Y["mask"] + 3}), r"y\['mask'\]: class numbers must be below 3"),
        (
            lambda: _fit(X, {**Y, "value": Y["value"][:4]}),
            r"y\['value'\]: x and y must hold the same number of samples",
        ),
        (
            lambda: _fit(X, Y, loss={"mask": "ce"}),
            r"loss: there must be one for every output of the model\. "
            r"Received missing=value, given=mask",
        ),
        (
            lambda: _fit(X, Y, loss={**LOSSES, "depth": "mse"}),
            r"loss: each name must be that of an output of the model\. "
            r"Received name=depth, outputs=mask, value",
        ),
        (lambda: _fit(X, Y, loss=None), r"loss: the model has 2 outputs: give one for each, by name"),
        (
            lambda: _fit(X, Y, loss="mse"),
            r"loss: the model has 2 outputs: give one for each, by name or as a list in their order\. "
            r".*received=str",
        ),
        (
            lambda: _fit(X, Y, loss_weights={"maks": 1}),
            r"loss_weights: each name must be that of an output of the model\. "
            r"Received name=maks, outputs=mask, value\. "
            r"Hint: did you mean 'mask'",
        ),
        (lambda: _fit(X, Y, loss_weights=[1, -1]), r"loss_weights: weight must be"),
        (lambda: _fit(X, Y, loss_weights=[0, 0]), r"loss_weights: at least one must be above 0"),
        (lambda: _fit(X, Y, metrics="iou"), r"metrics: the model has 2 outputs"),
        (lambda: _fit(X, Y, class_weights="balanced"), r"class_weights: the model has 2 outputs"),
        (lambda: _fit(X, Y, class_weights={"value": [1, 1]}), r"class_weights: the loss must be one of classes"),
        (
            lambda: _fit(X, Y, sample_weights={"other": np.ones(6)}),
            r"sample_weights: each name must be that of an output",
        ),
        (
            lambda: _fit(X, Y, augment="flip"),
            r"augment: with several inputs, it must say whose samples change\. "
            r"Hint: give augment=\{'image': \.\.\.\}",
        ),
        (
            lambda: _fit(X, Y, augment={"picture": "flip"}),
            r"augment: the samples of one input may change, which goes by its name\. "
            r"Received picture",
        ),
        (
            lambda: _fit(X, Y, augment={"image": "mixup"}),
            r"augment: samples can be mixed where the network has one input",
        ),
        (
            lambda: two_ends().set_normalization(0, 1),
            r"set_normalization: input must name one of the model's inputs\. "
            r"Received input=None, inputs=image, state",
        ),
        (lambda: two_ends().report(X, Y["mask"]), r"report: output must name one of the model's outputs"),
        (
            lambda: two_ends().graph.input,
            r"Model: what was asked for works with models of one input\. "
            r"Received inputs=image, state\. "
            r"Hint: Model\.fit, evaluate, .* and so do the commands train, evaluate and predict",
        ),
        (
            lambda: two_ends().predict({"image": X["image"]}),
            r"x: there must be one for every input of the model\. "
            r"Received missing=state",
        ),
        (lambda: two_ends().predict_batches([X["image"]]), r"x: the model has 2 inputs"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises((DataError, OptionError), match=message):
        call()


def test_bad_graphs() -> None:
    first, second = layers.Input(3, name="a")(), layers.Input(4, name="b")()
    dense = layers.Dense(2, name="dense")
    with pytest.raises(
        ShapeError,
        match=r"dense \(Dense\): a layer that stands in several places has the same param.*first=\(3\), now=\(4\)",
    ):
        Model([first, second], dense(first) + dense(second))
    both = layers.Concat()([first, second])
    with pytest.raises(OptionError, match=r"Model: the outputs must depend on exactly the input that is given"):
        Model(first, both)
    with pytest.raises(OptionError, match=r"Model: the outputs must depend on exactly the inputs that are given"):
        Model([first, second], dense(first))
    with pytest.raises(OptionError, match=r"Model: each of the inputs must be another node"):
        Model([first, first], dense(first))
    with pytest.raises(OptionError, match=r"Model: each of the outputs must be another node\. .*Hint: Activation"):
        Model([first, second], {"x": both, "y": both})
    with pytest.raises(OptionError, match=r"Model: the name of one of the inputs must be printable, without '/'"):
        Model({"a/b": first, "b": second}, both)
    with pytest.raises(OptionError, match=r"Model: layer names must be unique"):
        Model({"b": first, "c": second}, {"d": both, "e": layers.Dense(2, name="a")(both)})
    with pytest.raises(OptionError, match=r"class_names: only a model with one output has names of its classes"):
        Model([first, second], [both, dense(first)], class_names=["x", "y"])


def test_calls_must_fit() -> None:
    model = two_ends()
    images, rows = layers.Input(2, 6, 5)(), layers.Input(4)()
    with pytest.raises(ShapeError, match=r"Model: a node must have the shape of the input that it stands for"):
        model(images, rows)
    with pytest.raises(OptionError, match=r"Model: the model has 2 inputs"):
        model(images)
    with pytest.raises(OptionError, match=r"Model: a network stands behind nodes"):
        model({"image": images, "state": 3})
