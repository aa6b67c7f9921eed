"""The public face: what a user types, and what it answers."""

from __future__ import annotations

import inspect
import re
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.device.device import Device
from blobnet.errors import BlobnetWarning, DataError, OptionError, ShapeError
from blobnet.examination.reference import convolution, dense, pooling
from blobnet.losses import BinaryCrossEntropy, CrossEntropy, MeanSquaredError
from blobnet.model import Model, Sequential
from tests.kinds import as_gpu
from tests.networks import run
from tests.reference.compare import assert_close
from tests.small_graphs import KNOWN_GRAPHS
from tests.tiny import digits, tiny_model


def model_of(name: str) -> Model:
    model = Model.__new__(Model)
    model._start(KNOWN_GRAPHS[name](), (), 0)
    random = np.random.default_rng(3)
    # Statistics that inference can be seen to use, and with which some values are above 0.
    variances = {key: values for key, values in model.weights.items() if "running_variance" in key}
    model.set_weights({key: np.abs(random.standard_normal(values.shape)) + 0.5 for key, values in variances.items()})
    means = {key: values for key, values in model.weights.items() if "running_mean" in key}
    model.set_weights({key: 0.3 * random.standard_normal(values.shape) for key, values in means.items()})
    return model


# -- prediction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["residual", "one dimension"])
def test_predictions_against_numpy(device: Device, name: str) -> None:
    model = model_of(name)
    x = np.random.default_rng(1).standard_normal((5, *model.graph.input.shape.dimensions)).astype(np.float32)
    found = model.predict(x, batch_size=3, device=device)
    wanted = run(model.graph, model.weights, x, training=False)
    assert found.shape == (5, 3)
    assert (wanted != 0).all()
    assert_close(found, wanted.reshape(5, 3), relative=1e-4, absolute=1e-5, what=name)


@pytest.mark.parametrize("device_class", ["cpu", "gpu"])
def test_halves_between_layers_are_rounded_once(
    device: Device, device_class: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference rounds what one launch leaves for another, and nothing else."""
    if device_class == "gpu":
        as_gpu(monkeypatch, device)
    stack = [
        layers.Conv2D(7, 3, padding=1, activation="relu", name="first"),
        layers.MaxPool2D(2),
        layers.Conv2D(5, (3, 2), stride=(2, 1), name="second"),
        layers.Dense(4, name="last"),
    ]
    model = Sequential([layers.Input(3, 9, 11), *stack], seed=5)
    x = np.random.default_rng(2).standard_normal((6, 3, 9, 11)).astype(np.float32)
    weights = {name: values.astype(np.float64) for name, values in model.weights.items()}

    def kept(values: Any) -> Any:
        return values.astype(np.float16).astype(np.float64)

    def weight_and_bias(name: str) -> tuple[Any, Any]:
        return weights[f"{name}/weight"], weights[f"{name}/bias"]

    padded = convolution.Windows(padding=((1, 1), (1, 1)))

    def reference(kept: Any) -> Any:
        first = kept(np.maximum(convolution.conv2d(kept(x), *weight_and_bias("first"), padded), 0))
        pooled = pooling.max_pool2d(first, (2, 2), (2, 2))
        second = kept(convolution.conv2d(pooled, *weight_and_bias("second"), convolution.Windows((2, 1))))
        return dense.dense(second, *weight_and_bias("last"))

    wanted, exact = reference(kept), reference(lambda values: values.astype(np.float64))
    found = model.predict(x, device=device, storage="float16")
    assert found.dtype == np.float32
    lost, off = (np.sqrt(np.mean((values - wanted) ** 2)) for values in (exact, found))
    assert 1e-5 < lost < 1e-2
    assert off < 0.1 * lost, "no other rounding than that"
    assert_close(model.predict(x, device=device), exact, relative=1e-4, absolute=1e-5, what="float32")


@pytest.mark.parametrize("name", ["residual", "one dimension", "three readers", "dense blocks"])
def test_predictions_by_halves(device: Device, name: str) -> None:
    model = model_of(name)
    x = np.random.default_rng(1).standard_normal((5, *model.graph.input.shape.dimensions)).astype(np.float32)
    settings: dict[str, Any] = {"batch_size": 3, "device": device, "storage": "float16"}
    found = model.predict(x, **settings)
    wanted = run(model.graph, model.weights, x, training=False).reshape(found.shape)
    assert_close(found, wanted, relative=0, absolute=5e-3 * float(np.abs(wanted).max()), what=name)
    assert (found != model.predict(x, batch_size=3, device=device)).any()
    np.testing.assert_array_equal(np.concatenate(list(model.predict_batches(x, **settings))), found)


def test_halves_end_at_65504(device: Device) -> None:
    model = Sequential([layers.Input(1), layers.Dense(1, name="large"), layers.Dense(1, name="small")])
    model.set_weights({"large/weight": [[1e5]], "small/weight": [[1e-5]]})
    x = np.float32([[0.5], [1.0]])
    settings: dict[str, Any] = {"device": device, "storage": "float16"}
    rule = (
        "halves hold nothing beyond 65504; with storage='float16' some results are now NaN or infinite. Hint: storage"
    )
    with pytest.warns(BlobnetWarning, match=f"^predict: {re.escape(rule)}"):
        np.testing.assert_allclose(model.predict(x, **settings), [[0.5], [np.inf]], rtol=1e-3)
    with pytest.warns(BlobnetWarning, match=f"^evaluate: {re.escape(rule)}"):
        assert model.evaluate(x, x, loss=MeanSquaredError(), **settings) == {"loss": np.inf}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(model.evaluate(x[:1], x[:1], loss=MeanSquaredError(), **settings)) == {"loss"}
        np.testing.assert_allclose(model.predict(x, device=device), x, rtol=1e-3)


def test_storages_that_there_are_not(device: Device) -> None:
    rule = (
        "storage: it must be one of float32, float16, bfloat16. Received storage=half. "
        "Hint: known names: bfloat16, float16, float32."
    )
    with pytest.raises(OptionError, match=re.escape(rule)):
        tiny_model().predict(digits(3)[0], device=device, storage="half")


@pytest.mark.parametrize(
    ("start", "stack", "shape"),
    [
        (layers.Input(2, 5, 4), [layers.Conv2D(3, 2)], (7, 3, 4, 3)),
        (layers.Input(2, width=9), [layers.Conv1D(3, 2)], (7, 3, 8)),
        (layers.Input(2), [layers.Dense(1)], (7, 1)),
        (layers.Input(2, 3, 3), [layers.Activation("relu")], (7, 2, 3, 3)),
        (layers.Input(2, 3, 3), [layers.Flatten()], (7, 18)),
        (layers.Input(2, 3, 3), [layers.Dropout(0.5)], (7, 2, 3, 3)),
    ],
    ids=lambda item: str(item) if isinstance(item, tuple) else "",
)
def test_predictions_have_the_axes_of_the_output(
    device: Device, start: layers.Layer, stack: list[layers.Layer], shape: tuple[int, ...]
) -> None:
    model = Sequential([start, *stack])
    x = np.random.default_rng(2).standard_normal((7, *model.graph.input.shape.dimensions)).astype(np.float32)
    found = model.predict(x, device=device)
    assert found.shape == shape
    if isinstance(stack[0], layers.Flatten | layers.Dropout):
        assert np.array_equal(found, x.reshape(shape))


def test_normalisation_is_part_of_the_model(device: Device, tmp_path: Path) -> None:
    model = Sequential([layers.Input(2, 3, 3, name="in"), layers.Flatten()])
    model.set_normalization([1.0, -2.0], [2.0, 4.0])
    x = np.random.default_rng(4).standard_normal((3, 2, 3, 3)).astype(np.float32)
    wanted = (x - np.array([1, -2.0])[:, None, None]) / np.array([2, 4.0])[:, None, None]
    assert_close(model.predict(x, device=device), wanted.reshape(3, -1), relative=1e-6, absolute=1e-7, what="output")
    model.save(tmp_path / "model.h5")
    loaded = bn.load(tmp_path / "model.h5")
    assert np.array_equal(loaded.predict(x, device=device), model.predict(x, device=device))


def test_one_number_normalises_all_units() -> None:
    """As of pictures from 0 to 255 of any number of channels; a list still needs one for each."""
    model = Sequential([layers.Input(3, 2, 2, name="in"), layers.Flatten()])
    model.set_normalization(127.5, [2.0, 4.0, 8.0])
    np.testing.assert_array_equal(model.weights["in/mean"], np.float32([127.5] * 3))
    model.set_normalization(np.zeros(3), 0.5)
    np.testing.assert_array_equal(model.weights["in/deviation"], np.float32([0.5] * 3))
    with pytest.raises(ShapeError, match=r"in/mean: the array must have the parameter's shape\. Received array=\(1,\)"):
        model.set_normalization([1.0], 1.0)


def test_evaluate_uses_the_loss_of_training(device: Device, tmp_path: Path) -> None:
    x, y = digits(16)
    targets = np.eye(10, dtype=np.float32)[y]
    model = tiny_model()
    model.fit(x, targets, loss=MeanSquaredError(), batch_size=8, device=device, verbose=False)
    model.save(tmp_path / "model.h5")
    loaded = bn.load(tmp_path / "model.h5")
    assert loaded.loss == MeanSquaredError()
    found = loaded.evaluate(x, targets, device=device)
    assert found == pytest.approx({"loss": float(((loaded.predict(x) - targets) ** 2).mean())}, rel=1e-5)
    assert set(loaded.evaluate(x, y, loss=CrossEntropy())) == {"loss", "accuracy", "top_5"}


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_are_copies(device: Device) -> None:
    model = tiny_model()
    assert model.weights["conv1/weight"].shape == (4, 1, 3, 3)
    assert model.weights["logits/weight"].shape == (10, 96)
    model.weights["conv1/weight"][...] = 7
    assert not (model.weights["conv1/weight"] == 7).any()
    values = np.ones((4, 1, 3, 3))
    model.set_weights({"conv1/weight": values})
    values[...] = 2
    assert (model.weights["conv1/weight"] == 1).all()
    assert model.weights["conv1/weight"].dtype == np.float32


def test_initial_weights_follow_from_the_seed() -> None:
    first, same, other = tiny_model(3), tiny_model(3), tiny_model(4)
    assert all(np.array_equal(values, same.weights[name]) for name, values in first.weights.items())
    assert not np.array_equal(first.weights["conv1/weight"], other.weights["conv1/weight"])
    other.initialize(3)
    assert np.array_equal(first.weights["conv1/weight"], other.weights["conv1/weight"])
    with pytest.raises(OptionError, match=r"the seed must be an int of at least 0\. Received seed=-1"):
        tiny_model(-1)


def test_set_weights_refuses_names_and_shapes_and_then_changes_nothing(device: Device) -> None:
    model = tiny_model()
    before = model.weights
    good = {"conv1/bias": np.full(4, 9.0)}
    rule = r"set_weights: every name must be a parameter of the model\. .*Hint: did you mean 'conv1/weight'"
    with pytest.raises(OptionError, match=rule):
        model.set_weights(good | {"conv1/weigth": np.zeros((4, 1, 3, 3))})
    rule = r"logits/weight: the array must have the parameter's shape\. Received array=\(96, 10\), wanted=\(10, 96\)"
    with pytest.raises(ShapeError, match=rule):
        model.set_weights(good | {"logits/weight": np.zeros((96, 10))})
    assert all(np.array_equal(values, before[name]) for name, values in model.weights.items())


@pytest.mark.parametrize("deviation", [[0.0], [-1.0], [float("nan")], [float("inf")], [1e-45]], ids=str)
def test_a_deviation_that_cannot_be_divided_by_is_refused(device: Device, deviation: list[float]) -> None:
    model = tiny_model()
    rule = r"set_normalization: every deviation must be finite and above 0\. Received deviation=.*Hint: give a unit"
    with pytest.raises(OptionError, match=rule):
        model.set_normalization([0.5], deviation)
    assert model.weights["input/mean"] == 0
    x, y = digits(8)
    model.fit(x, y, batch_size=8, device=device, verbose=False)
    assert np.isfinite(model.history["loss"]).all()


def test_normalisation_needs_a_number_for_each_unit() -> None:
    model = tiny_model()
    with pytest.raises(ShapeError, match=r"input/mean: the array must have the parameter's shape\. .*wanted=\(1,\)"):
        model.set_normalization([0.0, 0.0], [1.0])
    with pytest.raises(OptionError, match=r"set_normalization: every mean must be finite\. Received mean=\[nan\]"):
        model.set_normalization([float("nan")], [1.0])


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["predict", "evaluate"])
def test_measuring_refuses_bad_input_and_still_works(device: Device, method: str) -> None:
    model = tiny_model()
    x, y = digits(6)
    hole = x.copy()
    hole[2, 0, 1, 1] = np.nan

    def call(samples: Any, **options: Any) -> Any:
        return getattr(model, method)(*((samples, y) if method == "evaluate" else (samples,)), device=device, **options)

    # predict takes a list as a stream of batches.
    of_lists = {
        "evaluate": r"x: x must be a numpy array\. Received type=list",
        "predict": "x, batch 0: each sample must",
    }
    wanted = call(x)
    for samples, message in (
        (x[:, :, :7], r"x: each sample must have the shape of the model's input\. Received sample=\(1, 7, 8\)"),
        (x[0], r"x: each sample must have the shape of the model's input\. Received sample=\(8, 8\), input=\(1, 8"),
        (hole, r"x: x must hold finite float32 values\. Received index=\(2, 0, 1, 1\), value=nan"),
        (x[:0], r"x: x must hold at least one sample"),
        (x.tolist(), of_lists[method]),
        (x.astype(str), r"x: x must hold real numbers\. Received dtype=<U"),
    ):
        with pytest.raises(DataError, match=message):
            call(samples)
    for batch_size in (0, -3, 2.5, "8", None):
        rule = rf"{method}: batch_size must be an int of at least 1\. Received batch_size="
        with pytest.raises(OptionError, match=rule):
            call(x, batch_size=batch_size)
    assert np.array_equal(call(x), wanted) if method == "predict" else call(x) == wanted


def test_evaluate_refuses_labels_that_do_not_fit(device: Device) -> None:
    model = tiny_model()
    x, y = digits(6)
    for labels, loss, message in (
        (y[:5], None, r"y: x and y must hold the same number of samples"),
        (y + 10, None, r"y: class numbers must be below 10"),
        (y - 10, None, r"y: class numbers must not be negative"),
        (y, BinaryCrossEntropy(), r"y: each target must have the shape of the model's output\. Received target=\(\)"),
        (np.full((6, 10), -0.5), BinaryCrossEntropy(), r"y: targets of BinaryCrossEntropy must be from 0 to 1"),
        (np.zeros((6, 9)), MeanSquaredError(), r"y: each target must have the shape .*target=\(9\,\), output=\(10\)"),
    ):
        with pytest.raises(DataError, match=message):
            model.evaluate(x, labels, loss=loss, device=device)
    assert model.evaluate(x, y, device=device)["loss"] > 0


def test_gradients_refuse_what_fit_refuses(device: Device) -> None:
    model = tiny_model()
    x, y = digits(6)
    with pytest.raises(DataError, match=r"x: each sample must have the shape of the model's input"):
        model.gradients(x[:, :, 1:], y, device=device)
    with pytest.raises(DataError, match=r"y: class numbers must be below 10"):
        model.gradients(x, y + 10, device=device)
    with pytest.raises(OptionError, match=r"gradients: seed must be an int from 0 to below 2\^63\. Received seed=-1"):
        model.gradients(x, y, seed=-1, device=device)
    assert set(model.gradients(x, y, device=device)) >= {"input", "conv1/weight", "logits/bias"}


# -- files -------------------------------------------------------------------------------------------------------------


def test_save_and_load_give_the_same_model(device: Device, tmp_path: Path) -> None:
    x, y = digits(16)
    model = tiny_model()
    model.fit(x, y, epochs=2, batch_size=8, device=device, verbose=False)
    model.save(tmp_path / "model.h5")
    loaded = bn.load(tmp_path / "model.h5")
    assert np.array_equal(loaded.predict(x, device=device), model.predict(x))
    assert loaded.graph == model.graph
    assert loaded.class_names == model.class_names
    assert loaded.history == model.history
    assert loaded.loss == model.loss
    model.save(tmp_path / "again.h5")
    assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "model.h5").read_bytes()


# -- for people --------------------------------------------------------------------------------------------------------


def test_a_model_describes_itself() -> None:
    conv1, conv2, norm2, logits = 4 * 9 + 4, 6 * 4 * 9, 6 + 6, 96 * 10 + 10
    trainable = conv1 + conv2 + norm2 + logits
    model = tiny_model()
    assert repr(model).splitlines() == [
        "layer       kind        output shape  parameters",
        "------------------------------------------------",
        "input       Input       (1, 8, 8)              2",
        "conv1       Conv2D      (4, 8, 8)             40",
        "conv1_relu  Activation  (4, 8, 8)              -",
        "pool1       MaxPool2D   (4, 4, 4)              -",
        "conv2       Conv2D      (6, 4, 4)            216",
        "norm2       BatchNorm   (6, 4, 4)             24",
        "relu2       Activation  (6, 4, 4)              -",
        "dropout     Dropout     (6, 4, 4)              -",
        "flatten     Flatten     (96)                   -",
        "logits      Dense       (10)                 970",
        "------------------------------------------------",
        "total                                      1,252",
        "",
        f"parameters  1,252 (4.9 KiB), {trainable:,} of them trainable",
    ]
    assert model.parameter_count == trainable
    summary = model.summary(freeze=["conv*", "logits/bias"])
    assert (summary.parameters, summary.trainable, summary.frozen) == (1252, trainable, conv1 + conv2 + 10)
    assert {layer.name: layer.frozen for layer in summary.layers if layer.frozen} == {
        "conv1": conv1,
        "conv2": conv2,
        "logits": 10,
    }
    lines = str(summary).splitlines()
    assert lines[0] == "layer       kind        output shape  parameters  frozen"
    assert lines[6].split()[-2:] == ["216", "all"]
    assert lines[11].split()[-2:] == ["970", "10"]
    assert lines[13].split() == ["total", "1,252", "266"]
    assert lines[-1] == f"parameters  1,252 (4.9 KiB), {trainable:,} of them trainable, of which 266 are frozen"


def test_a_summary_shows_what_the_last_training_froze() -> None:
    model = tiny_model()
    x, y = digits(20)
    model.fit(x, y, batch_size=10, freeze="conv1", verbose=False)
    assert model.summary().frozen == 40
    assert str(model.summary()) == repr(model) == str(model.summary(freeze="conv1"))


def test_notebooks_show_models_and_plans_as_tables() -> None:
    start = layers.Input(1, 4, 6, name="<in>")()
    model = Model(start, layers.Dense(2, name="a&b")(layers.Flatten(name="flat")(start)))
    root = ElementTree.fromstring(f"<all>{model._repr_html_()}</all>")
    tables = [[[cell.text or "" for cell in row] for row in table.iter("tr")] for table in root.iter("table")]
    assert tables[0] == [
        ["layer", "kind", "output shape", "parameters"],
        ["<in>", "Input", "(1, 4, 6)", "2"],
        ["flat", "Flatten", "(24)", "-"],
        ["a&b", "Dense", "(2)", "50"],
        ["total", "", "", "52"],
    ]
    assert tables[1] == [["parameters", "52 (208 B), 50 of them trainable"]]
    plan = model.plan(4)
    root = ElementTree.fromstring(f"<all>{plan._repr_html_()}</all>")
    lines = ["  ".join(cell.text or "" for cell in row).split() for row in root.iter("tr")]
    wanted = [line.split() for line in str(plan).splitlines() if set(line) != {"-"}]
    assert lines == wanted


def test_a_plan_needs_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a plan needs no device")

    monkeypatch.setattr(Device, "__init__", refuse)
    training, inference = tiny_model().plan(32), tiny_model().plan(32, training=False)
    assert training.bytes() > inference.bytes() > 0
    assert (training.request.loss, inference.request.loss) == (CrossEntropy(), None)
    assert tiny_model().plan(64).bytes() > training.bytes()
    with pytest.raises(OptionError, match=r"plan: batch_size must be an int of at least 1\. Received batch_size=0"):
        tiny_model().plan(0)


def test_a_graph_is_built_from_nodes(device: Device) -> None:
    images = layers.Input(1, 8, 8)()
    node = layers.Conv2D(4, 3, padding="same", activation="relu")(images)
    node = layers.Concat()([node + layers.Conv2D(4, 1)(images), node])
    model = bn.Model(images, layers.Dense(10)(layers.GlobalAveragePool()(node)), class_names=["a"] * 10, seed=2)
    x, y = digits(16)
    history = model.fit(x, y, epochs=3, batch_size=8, device=device, verbose=False, optimizer=bn.optimizers.Adam(1e-2))
    assert history["loss"][-1] < history["loss"][0]


def test_public_methods_are_documented() -> None:
    for kind in (Model, Sequential):
        assert inspect.getdoc(kind)
    for name, member in inspect.getmembers(Model, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.getdoc(member), name
