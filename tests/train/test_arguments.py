"""What users pass in place of objects, and by mistake: what is clear is taken, the rest is explained."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import blobnet as bn
from blobnet import layers, losses, optimizers
from blobnet.datasets.checks import classes_of_one_hot
from blobnet.datasets.splits import as_split
from blobnet.device.device import Device
from blobnet.errors import BlobnetError, BlobnetWarning, DataError, DeviceError, FileError, OptionError, ShapeError
from blobnet.execution.inference import LabelledData
from blobnet.support.foreign import ARGUMENTS, METHODS
from blobnet.training.arguments import held_out_of, loss_of, optimizer_of

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((21, 2, 5, 4), dtype=np.float32)
Y = RANDOM.integers(0, 3, 21)


def model(seed: int = 0) -> bn.Sequential:
    stack = [layers.Input(2, 5, 4), layers.Conv2D(4, 3, name="conv"), layers.Flatten(), layers.Dense(3, name="head")]
    return bn.Sequential(stack, seed=seed)


def trained(device: Device, x: Any = X, y: Any = Y, **settings: Any) -> bn.Model:
    made = model()
    made.fit(x, y, epochs=2, batch_size=4, device=device, verbose=False, **settings)
    return made


def assert_same(one: bn.Model, other: bn.Model) -> None:
    assert one.weights.keys() == other.weights.keys()
    for name, values in one.weights.items():
        np.testing.assert_array_equal(values, other.weights[name], name)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mse", "MSE", "mean_squared_error", "MeanSquaredError", "mean squared error"])
def test_losses_by_name(name: str) -> None:
    assert loss_of(name) == losses.MeanSquaredError()


def test_objects_classes_and_nothing() -> None:
    assert loss_of(None) is None
    assert optimizer_of(None) is None
    assert loss_of(losses.CrossEntropy) == losses.CrossEntropy()
    smooth = losses.CrossEntropy(0.1)
    assert loss_of(smooth) is smooth
    for name in ("bce", "binary_crossentropy", "BinaryCrossEntropy"):
        assert loss_of(name) == losses.BinaryCrossEntropy()
    for name in ("l1", "mae", "MAE", "mean absolute error"):
        assert loss_of(name) == losses.MeanAbsoluteError()
    assert loss_of("l2") == losses.MeanSquaredError()
    assert loss_of("smooth_l1") == losses.Huber()
    assert loss_of("ce") == loss_of("sparse_categorical_crossentropy") == losses.CrossEntropy()
    assert loss_of("cross-entropy") == losses.CrossEntropy()
    for name, kind in optimizers.Optimizer.kinds.items():
        assert type(optimizer_of(name)) is type(optimizer_of(name.lower())) is type(optimizer_of(kind)) is kind


def test_what_is_no_path() -> None:
    with pytest.raises(OptionError, match=r"^file: it must be a path: a text, or a pathlib\.Path\. Received 3\.$"):
        bn.load(3)
    for use in (bn.load, model().save):
        with pytest.raises(OptionError, match=r"^file: it must be a path, but it is an empty text\.$"):
            use("")
    with pytest.raises(OptionError, match=r"^file: it must be a path.*Received None"):
        bn.Sequential([layers.Input(2), layers.Dense(1)]).save(None)


def test_an_unknown_device() -> None:
    model = bn.Sequential([layers.Input(2), layers.Dense(1)])
    with pytest.raises(DeviceError, match=r"^device: the device must be one that OpenCL lists\. Received device=nope"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), loss="l2", device="nope")


def test_names_train_as_objects_do(device: Device) -> None:
    y = RANDOM.standard_normal((21, 3)).astype(np.float32)
    wanted = trained(device, y=y, loss=losses.MeanSquaredError(), optimizer=optimizers.SGD())
    found = trained(device, y=y, loss="mse", optimizer="sgd")
    assert_same(found, wanted)
    assert found.evaluate(X, y, loss="mse", device=device) == wanted.evaluate(X, y, device=device)
    assert found.gradients(X, y, loss="mse", device=device)["input"].any()
    assert found.plan(4, loss="mse").request.loss == losses.MeanSquaredError()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "msee"}, "loss: the loss must be one of blobnet's. Received name=msee. Hint: "),
        (
            {"optimizer": "adm"},
            "optimizer: the optimizer must be one of blobnet's. Received name=adm. Hint: did you mean",
        ),
        (
            {"loss": 3},
            "loss: it must be a Loss, or the name of one. Received 3. Hint: blobnet.losses.CrossEntropy()",
        ),
        (
            {"optimizer": 0.1},
            "optimizer: it must be an Optimizer, or the name of one. Received 0.1. Hint: blobnet.optimizers.",
        ),
        ({"loss": max}, "loss: it must be a Loss, or the name of one. Received builtin_function_or_method."),
        (
            {"validation": 1.5},
            "validation: it must be (x, y), or a fraction of the samples, above 0 and below 1. Received 1.5.",
        ),
        (
            {"validation": X},
            "validation: it must be (x, y), or a fraction of the samples, above 0 and below 1. Received",
        ),
        (
            {"validation": 3},
            "validation: it must be (x, y), or a fraction of the samples, above 0 and below 1. Received",
        ),
        (
            {"validation": 0.01},
            "validation: a fraction must leave samples on both sides. Received fraction=0.01, samples=21.",
        ),
    ],
)
def test_what_is_explained(device: Device, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        trained(device, **settings)


# -- a fraction to validate with ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "memmap", "h5py", "float64"])
def test_a_fraction_is_held_out(device: Device, tmp_path: Path, kind: str) -> None:
    x: Any = X
    if kind == "memmap":
        x = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
        x[:] = X
    elif kind == "h5py":
        x = h5py.File(tmp_path / "x.h5", "w").create_dataset("x", data=X)
    elif kind == "float64":
        x = X.astype(np.float64)
    data = LabelledData(model().graph, losses.CrossEntropy(), x, Y)
    train, held_out, rows = held_out_of(data, 0.3, 5)
    assert held_out is not None
    (kept_y,), (held_y,) = train.labels or (), held_out.labels or ()
    assert np.array_equal(Y[rows], kept_y)
    kept, held = (np.empty((own.count, 2, 5, 4), np.float32) for own in (train, held_out))
    for own, out in ((train, kept), (held_out, held)):
        own.sources[0].read(np.arange(len(out)), out)
    assert len(held_y) == len(held) == 6
    whole = np.concatenate([kept, held]), np.concatenate([kept_y, held_y])
    order = np.lexsort(whole[0].reshape(21, -1).T)
    wanted = np.lexsort(X.reshape(21, -1).T)
    np.testing.assert_array_equal(whole[0][order], X[wanted])
    np.testing.assert_array_equal(whole[1][order], Y[wanted])
    assert not np.array_equal(held_out_of(data, 0.3, 6)[2], rows)
    found = trained(device, x, validation=0.3, seed=5)
    explicit = trained(device, kept, kept_y, validation=(held, held_y), seed=5)
    assert_same(found, explicit)
    assert found.history == explicit.history


def test_streams_have_no_fraction(device: Device) -> None:
    with pytest.raises(DataError, match=r"^validation: a fraction needs samples with numbers, and their labels\."):
        trained(device, iter([(X, Y)]), None, validation=0.2)


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, bool])
def test_one_hot_rows_are_classes(device: Device, dtype: Any) -> None:
    rows = np.eye(3)[Y].astype(dtype)
    assert_same(trained(device, y=rows), trained(device))
    np.testing.assert_array_equal(as_split(X, rows, None, "data").y, Y)


def test_what_is_not_one_hot(device: Device) -> None:
    rows = np.eye(3, dtype=np.float32)[Y]
    for index, wrong in (((5, 1), 0.5), ((7, 2), np.nan)):
        other = rows.copy()
        other[index] = wrong
        assert classes_of_one_hot(other) is other
        with pytest.raises(DataError, match=r"^y: "):
            trained(device, y=other)
    assert classes_of_one_hot(rows, 4) is rows
    assert classes_of_one_hot(Y) is Y
    column = np.ones((21, 1), np.float32)
    assert classes_of_one_hot(column) is column
    # A loss of targets takes them as they are.
    assert trained(device, y=rows, loss="mse").loss == losses.MeanSquaredError()


def test_missing_labels(device: Device) -> None:
    with pytest.raises(DataError, match=r"^y: y must be the labels or targets of the samples\."):
        trained(device, y=None)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            "pics",
            r"^x: samples must be an array, .* Received 'pics'\. Hint: blobnet\.datasets\.load\(name\)\.train has",
        ),
        (Path("pics"), r"^x: x must be a numpy array\. Received type=\w+Path\. Hint: blobnet\.datasets\.load\(name\)"),
        (
            bn.datasets.load("digits"),
            r"^x: x must be a numpy array\. Received type=Dataset\. Hint: x and y of a data set",
        ),
    ],
)
def test_what_has_samples_is_no_array(device: Device, x: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        model().fit(x, device=device, verbose=False)


@pytest.mark.parametrize("name", ["x", "y"])
def test_masks_are_refused(device: Device, name: str) -> None:
    arrays = {"x": X, "y": Y}
    arrays[name] = np.ma.masked_array(arrays[name], mask=np.zeros(arrays[name].shape, bool))
    assert_same(trained(device, arrays["x"], arrays["y"]), trained(device))
    arrays[name][3] = np.ma.masked
    count = arrays[name][3].size
    rule = rf"{name}: {name} must be an array without a mask, which would be ignored\. Received masked={count}\. Hint: "
    with pytest.raises(DataError, match=rule):
        trained(device, arrays["x"], arrays["y"])


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (
            [0, np.nan, 1],
            OptionError,
            "head/bias: every weight must be finite in float32. Received index=(1,), value=nan.",
        ),
        (
            [0, 1, 1e39],
            OptionError,
            "head/bias: every weight must be finite in float32. Received index=(2,), value=inf.",
        ),
        (
            [np.inf, 0, -np.inf],
            OptionError,
            "head/bias: every weight must be finite in float32. Received index=(0,), value=inf.",
        ),
        ("abc", OptionError, "head/bias: the values must be an array of numbers. Received cause="),
        (None, ShapeError, "head/bias: the array must have the parameter's shape. Received array=(), wanted=(3,)."),
        ([[1], [2, 3]], ShapeError, "head/bias: the values must be an array of numbers. Received cause="),
        (np.ma.masked_less(np.arange(3.0), 1), OptionError, "head/bias: the values must go without a mask"),
    ],
)
def test_weights_are_finite_numbers(values: Any, kind: type[Exception], message: str) -> None:
    made = model()
    before = made.weights
    with pytest.raises(kind, match=re.escape(message)):
        made.set_weights({"conv/bias": np.ones(4), "head/bias": values})
    for name, array in made.weights.items():
        np.testing.assert_array_equal(array, before[name])


def test_normalization_of_no_numbers() -> None:
    with pytest.raises(
        OptionError, match=r"^set_normalization: the values must be an array of numbers\. Received cause="
    ):
        model().set_normalization("a", [1])


def test_weights_of_a_file_that_are_not_finite(tmp_path: Path) -> None:
    made = model()
    made._weights = {**made._weights, "head/bias": np.array([1, np.nan, 2], np.float32)}
    made.save(tmp_path / "a.h5")
    with pytest.warns(
        BlobnetWarning, match=r"a\.h5: the weights of a model should be finite\. Received parameters=head/bias"
    ):
        loaded = bn.load(tmp_path / "a.h5")
    np.testing.assert_array_equal(loaded.weights["head/bias"], made.weights["head/bias"])


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, lambda made: pickle.loads(pickle.dumps(made))])
def test_copies(device: Device, way: Any) -> None:
    made = trained(device)
    wanted = made.predict(X, device=device)
    other = way(made)
    assert isinstance(other, bn.Sequential)
    assert_same(made, other)
    assert (other.history, other.loss, other.class_names) == (made.history, made.loss, made.class_names)
    other.set_weights({"head/bias": np.full(3, 9)})
    np.testing.assert_array_equal(made.predict(X, device=device), wanted)
    np.testing.assert_allclose(
        other.predict(X, device=device), wanted - made.weights["head/bias"] + 9, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(made.predict(X, device=device), wanted)


def test_copies_stay_on_their_device(device: Device) -> None:
    made = trained(device)
    assert copy.deepcopy(made)._device is copy.copy(made)._device is made._device


def test_sums_of_nodes() -> None:
    start = layers.Input(2, 5, 4)()
    nodes = [layers.Conv2D(3, 1)(start) for _ in range(3)]
    total = bn.Model(start, layers.Flatten()(sum(nodes)))
    weights = total.weights
    x = X.astype(np.float64)
    wanted = sum(
        np.einsum("nihw,oi->nohw", x, weights[f"conv2d_{number}/weight"][:, :, 0, 0].astype(np.float64))
        + weights[f"conv2d_{number}/bias"].reshape(3, 1, 1)
        for number in (1, 2, 3)
    )
    np.testing.assert_allclose(total.predict(X), wanted.reshape(21, -1), rtol=1e-4, atol=1e-5)
    for wrong in (lambda: nodes[0] + X, lambda: X + nodes[0], lambda: nodes[0] + "1", lambda: nodes[0] + True):
        with pytest.raises(OptionError, match=r"(?s)^\+: nodes can be added, subtracted.* Hint: layers\.Constant"):
            wrong()


@pytest.mark.parametrize("shape", [(2, 5, 4), (3,), (2, 3)])
@pytest.mark.parametrize(
    ("formula", "slope"),
    [
        (lambda x: x * 2, lambda x: 2),
        (lambda x: np.float32(-2.5) * x, lambda x: -2.5),
        (lambda x: 1e-3 * x + 7, lambda x: 1e-3),
        (lambda x: 1 - x, lambda x: -1),
        (lambda x: x - 1e-8, lambda x: 1),
        (lambda x: -x, lambda x: -1),
        (lambda x: x / 3, lambda x: 1 / 3),
        (lambda x: 2 / x, lambda x: -2 / x**2),
        (lambda x: x - x * 3, lambda x: -2),
        (lambda x: (1 + x) / x, lambda x: -1 / x**2),
        (lambda x: x / x, lambda x: 0 * x),
        (lambda x: x**2, lambda x: 2 * x),
        (lambda x: (x - 1) ** 3 + x**-0.5, lambda x: 3 * (x - 1) ** 2 - 0.5 * x**-1.5),
        (lambda x: 2 * (x * x - 3) / 5 - x, lambda x: 0.8 * x - 1),
    ],
)
def test_arithmetic_of_nodes_and_numbers(device: Device, shape: Any, formula: Any, slope: Any, tmp_path: Path) -> None:
    """The values, and the gradient of the mean of squares, in float64; and all that after a file."""
    start = layers.Input.of(shape)()
    made = bn.Model(start, formula(start))
    x = np.random.default_rng(len(shape)).uniform(0.5, 2, (3, *shape)).astype(np.float32)
    exact = x.astype(np.float64)
    made.save(tmp_path / "made.h5")
    for own in (made, bn.load(tmp_path / "made.h5")):
        np.testing.assert_allclose(own.predict(x, device=device), formula(exact), rtol=1e-6, atol=1e-6)
    target = np.zeros((3, *shape), np.float32)
    found = made.gradients(x, target, loss="mse", device=device)["input"]
    wanted = 2 * formula(exact) * slope(exact) / exact.size
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_inputs_of_a_shape() -> None:
    assert layers.Input.of((3, 5, 4)) == layers.Input(3, 5, 4)
    assert layers.Input.of([7]) == layers.Input(7)
    for wrong in ((), (1, 2, 3, 4, 5), 3):
        with pytest.raises(
            OptionError, match=r"^Input\.of: the shape must be \(units.*Hint: Input\.of\(\(3, 32, 32\)\)"
        ):
            layers.Input.of(wrong)


@pytest.mark.parametrize(
    ("wrong", "symbol", "operand"),
    [
        (lambda node: np.ones(2) * node, r"\*", r"array\(\[1\., 1\.\]\)"),
        (lambda node: node * None, r"\*", "nothing"),
        (lambda node: node * float("nan"), r"\*", "nan"),
        (lambda node: node - True, "-", "True"),
        (lambda node: node**node, r"\*\*", "a node"),
        (lambda node: node / None, "/", "nothing"),
        (lambda node: 2**node, r"\*\*", "2"),
        (lambda node: node @ node, "@", "a node"),
        (lambda node: np.ones((2, 2)) @ node, "@", "array"),
    ],
)
def test_other_arithmetic_of_nodes(wrong: Callable[[Any], object], symbol: str, operand: str) -> None:
    rule = rf"^{symbol}: nodes can be added, subtracted, multiplied, divided and raised to numbers: other arithmetic "
    with pytest.raises(OptionError, match=rf"(?s){rule}.*Received operand={operand}.* Hint: layers\.Constant\(array\)"):
        wrong(layers.Input(2, 5, 4)())


def test_products_of_nodes(device: Device) -> None:
    start = layers.Input(2, 5, 4)()
    gate = layers.Activation("sigmoid")(layers.GlobalAveragePool()(start))
    found = bn.Model(start, start * gate).predict(X, device=device)
    wanted = X / (1 + np.exp(-X.mean(axis=(2, 3), dtype=np.float64)))[:, :, None, None]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    found = bn.Model(start, start / gate).predict(X, device=device)
    np.testing.assert_allclose(found, X * (1 + np.exp(-X.mean(axis=(2, 3), dtype=np.float64)))[:, :, None, None], 1e-5)


def test_nodes_are_no_sequences() -> None:
    node = layers.Input(2, 5, 4)()
    for wrong in (lambda: node[0], lambda: list(node), lambda: node[:, 1:]):
        with pytest.raises(OptionError, match=r"^\[\]: a part of a node's values is what .* Hint: layers\.Slice"):
            wrong()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: bn.Model(layers.Input(3), layers.Dense(2)),
         r"Model: inputs must be one node, or several ones in a list or by name\. Received \['Input'\]\. "
         r"Hint: a layer gives a node when it is called"),
        (lambda: bn.Sequential(layers.Input(3), layers.Dense(2)),
         r"Sequential: the layers must come in one list\. Received 2 arguments\. Hint: Sequential\(\[first"),
        (lambda: bn.Sequential(layers.Input(3)), r"Sequential: the layers must come in one list"),
        (lambda: model().set_weights([X]), r"set_weights: the arrays must come by the names of parameters\. Received "
         r"list\. Hint: model\.weights"),
        (lambda: layers.Input(6, 4), r"Input: an input with a height needs a width\. Received units=6, height=4, "
         r"width=None\. Hint: samples of \(units, width\) are Input\(6, width=4\)"),
        (lambda: layers.Contraction("O[n, f] = +(I[n, c] * W[f, c])"),
         r"Contraction: the text must have a head, with the sizes of its inputs\. Hint: function \(I\[N, C, \.\.\.\]"),
    ],
)  # fmt: skip
def test_what_is_taken_for_another_frameworks(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        wrong()


def test_one_text_is_no_names_of_classes() -> None:
    rule = r"^class_names: they must be a list of names\. Received 'abc'\. Hint: class_names=\[.cat., .dog.\], for exam"
    with pytest.raises(OptionError, match=rule):
        bn.Sequential([layers.Input(2), layers.Dense(3)], class_names="abc")


def test_names_of_classes_belong_to_one_output() -> None:
    start = layers.Input(3)()
    ends = {"one": layers.Dense(2)(start), "two": layers.Dense(2)(start)}
    rule = r"class_names: only a model with one output has names of its classes\. Received names=2, outputs=one, two"
    with pytest.raises(OptionError, match=rule):
        bn.Model(start, ends, class_names=["a", "b"])


@pytest.mark.parametrize(
    ("x", "hint"),
    [
        (X[0], "the first axis are the samples; a single one is x[None]."),
        (np.moveaxis(X, 1, -1), "units (channels) come first: numpy.moveaxis(x, -1, 1)"),
        (X[:, :, :4], None),
        (
            "picture.png",
            "blobnet.datasets.load(name).train has the x and y of a data set, blobnet.datasets.read_image(",
        ),
    ],
    ids=["one sample", "units last", "another size", "a name"],
)
def test_samples_of_other_shapes(x: Any, hint: str | None) -> None:
    with pytest.raises(DataError, match=r"^x: (each sample must have the shape|samples must be an array)") as caught:
        model().predict(x)
    assert (f" Hint: {hint}" in str(caught.value)) if hint else "Hint" not in str(caught.value)


def test_gray_samples_without_an_axis_of_units() -> None:
    gray = bn.Sequential([layers.Input(1, 5, 4), layers.Flatten(), layers.Dense(3)])
    with pytest.raises(DataError, match=r"Received sample=\(5, 4\), input=\(1, 5, 4\)\. Hint: .*x\[:, None\]\."):
        gray.fit(X[:, 0], Y)


class _Tensor:
    """An array of another package, with types of its own."""

    dtype = "tensor.float32"

    def __init__(self, values: Any, error: type[Exception] | None = None) -> None:
        self._values, self._error, self.shape = values, error, values.shape

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: Any) -> _Tensor:
        return _Tensor(self._values[key], self._error)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self._error:
            raise self._error("it lies on another device")
        return self._values


def test_tensors(device: Device) -> None:
    assert_same(trained(device), trained(device, _Tensor(X), _Tensor(Y)))
    for error in (TypeError, RuntimeError):
        for name, x, y in (("x", _Tensor(X, error), Y), ("y", X, _Tensor(Y, error))):
            rule = rf"^{name}: {name} must become an array of NumPy\. Received _Tensor, cause=it lies on another "
            with pytest.raises(DataError, match=rule + rf"device\. Hint: {name}\.detach\(\)\.cpu\(\)\.numpy\(\)"):
                model().fit(x, y)


def test_layers_stand_behind_nodes() -> None:
    rule = r"^Conv2D: a layer stands behind nodes: what other layers gave when called\. Received "
    with pytest.raises(
        OptionError, match=rule + r"Input\. Hint: call the layer first: Input\(\.\.\.\)\(\) is a node\."
    ):
        layers.Conv2D(8, 3)(layers.Input(1, 8, 8))
    for wrong in (X[0, 0, 0, 0], "input", None, [layers.Input(1, 8, 8)], 3):
        with pytest.raises(OptionError, match=rule):
            layers.Conv2D(8, 3)(wrong)


def test_names_of_outputs(device: Device, tmp_path: Path) -> None:
    rule = (
        "class_names: there must be a name for each output of the model, or none at all. Received names=2, outputs=3."
    )
    with pytest.raises(OptionError, match=re.escape(rule)):
        bn.Sequential([layers.Input(2), layers.Dense(3)], class_names=("cat", "dog"))
    made = model()
    made.class_names = ("cat", "dog")
    made.save(tmp_path / "a.h5")
    with pytest.warns(BlobnetWarning, match=r"they are left out\. Received names=2, outputs=3"):
        assert bn.load(tmp_path / "a.h5").class_names == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"label_smoothing", b"label_smoothong", "must have arguments that blobnet knows. Received kind=CrossEntropy"),
        (b"0.1", b"[0.1]", "must have arguments that blobnet knows. Received kind=CrossEntropy"),
        (
            b'"CrossEntropy"',
            b'"Cross"',
            "must be one of blobnet's. Received kind=Cross. Hint: did you mean 'CrossEntropy",
        ),
        (b'"CrossEntropy"', b"3", "must be one of blobnet's. Received kind=3. Hint: known names: BinaryCrossEntropy, "),
        (
            b'"CrossEntropy"',
            b"[]",
            "must be one of blobnet's. Received kind=[]. Hint: known names: BinaryCrossEntropy, ",
        ),
    ],
)
def test_a_loss_that_a_file_describes_wrongly(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    made = model()
    made.loss = losses.CrossEntropy(0.1)
    made.save(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        text = file["loss"][()]
        del file["loss"]
        file.create_dataset("loss", data=np.bytes_(text.replace(old, new)))
        del file.attrs["sha256"]
    with pytest.raises((FileError, OptionError), match=re.escape(f"a.h5: the loss {message}")):
        bn.load(tmp_path / "a.h5")


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
def test_a_file_that_this_process_has_open(tmp_path: Path, mode: str) -> None:
    made = model(3)
    made.save(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", mode) as file:
        assert "architecture" in file
        assert_same(bn.load(tmp_path / "a.h5"), made)
        assert "architecture" in file
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["architecture"]
        file.flush()
        with pytest.raises(FileError, match="architecture"):
            bn.load(tmp_path / "a.h5")


# -- what other packages have in place of arrays ----------------------------------------------------------------------

PLAIN = {"batch_size": 4, "verbose": False, "epochs": 2}


class OneByOne:
    """As PyTorch's data sets: pairs of a sample and its label, by whole numbers alone."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return X[number], int(Y[number])


class BatchByBatch:
    """As Keras's sequences: pairs of a batch and its labels, by the numbers of batches."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return X[number * 8 : number * 8 + 8], Y[number * 8 : number * 8 + 8]


class Frame:
    """As a DataFrame: an array without a type of its own, whose items are columns."""

    def __init__(self, values: Any) -> None:
        self._values, self.shape = values, values.shape

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self._values, dtype)


def batches() -> Any:
    for first in range(0, len(X), 8):
        yield X[first : first + 8], Y[first : first + 8]


@pytest.mark.parametrize(
    "given",
    [
        (list(X), list(Y)),
        (list(zip(X, Y, strict=True)),),
        (OneByOne(),),
        (Frame(X), Y),
        (X, Frame(Y[:, None])),
        (X, Y[:, None].astype(float)),
    ],
    ids=["lists", "pairs", "one by one", "frame", "frame of labels", "column"],
)
def test_samples_that_are_clear(device: Device, given: tuple[Any, ...]) -> None:
    """They are the same training as the arrays: order, weights of classes, what is held out."""
    settings: dict[str, Any] = {**PLAIN, "device": device, "validation": 0.25, "class_weights": "balanced"}
    found, wanted = model(), model()
    assert found.fit(*given, **settings) == wanted.fit(X, Y, **settings)
    assert_same(found, wanted)
    assert found.evaluate(*given) == wanted.evaluate(X, Y)
    np.testing.assert_array_equal(found.predict(given[0]), wanted.predict(X))


@pytest.mark.parametrize("given", [batches, BatchByBatch()], ids=["generator function", "batch by batch"])
def test_batches_that_begin_anew(device: Device, given: Any) -> None:
    settings: dict[str, Any] = {**PLAIN, "device": device}
    found, wanted = model(), model()
    history = found.fit(given, validation=given, **settings)
    assert history == wanted.fit(list(batches()), validation=(X, Y), **settings)
    assert_same(found, wanted)
    assert found.evaluate(given) == wanted.evaluate(list(batches()))
    np.testing.assert_array_equal(found.predict(given), wanted.predict(list(batches())))


def test_pictures_of_pillow(device: Device) -> None:
    """As read_image reads them from files: gray, and of the model's size."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    pictures = [image.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8)) for _ in range(3)]
    pictures[1] = pictures[1].convert("L")
    stack = [layers.Input(1, 5, 4), layers.Flatten(), layers.Dense(2)]
    gray = bn.Sequential(stack)
    resized = [np.asarray(item.resize((4, 5), image.Resampling.BILINEAR), np.float64) for item in pictures]
    wanted = np.stack([item if item.ndim == 2 else item @ [0.299, 0.587, 0.114] for item in resized])
    found = gray.predict(pictures, device=device)
    np.testing.assert_allclose(found, gray.predict(wanted[:, None].round()), atol=2)
    np.testing.assert_array_equal(gray.predict(pictures[2]), found[2:])
    history = gray.fit(pictures, [0, 1, 1], verbose=False)
    assert np.isfinite(history["loss"]).all()
    with pytest.raises(
        DataError, match=r"^x: a picture is a sample of \(units, height, width\), which the model does not"
    ):
        bn.Sequential([layers.Input(3), layers.Dense(2)]).predict(pictures, device=device)
    with pytest.raises(DataError, match=r"a picture has 1 unit \(gray\) or 3 \(RGB\), the model expects 2"):
        model().predict(pictures, device=device)


def test_a_schedule_over_batches_that_are_parted(device: Device) -> None:
    """Its steps are those of fit's batches, of which each of the stream's makes several."""
    settings: dict[str, Any] = {"verbose": False, "device": device, "epochs": 2, "batch_size": 4}
    settings["optimizer"] = optimizers.Adam(bn.schedules.Cosine(1e-2))
    found, wanted = model(), model()
    parted = [(x[part : part + 4], y[part : part + 4]) for x, y in batches() for part in range(0, len(x), 4)]
    assert found.fit(BatchByBatch(), **settings) == wanted.fit(parted, **settings)
    assert_same(found, wanted)


@pytest.mark.parametrize("epochs", [3, 4])
def test_steps_of_an_epoch_of_batches_that_never_end(device: Device, epochs: int) -> None:
    def forever() -> Any:
        while True:
            yield from batches()

    settings: dict[str, Any] = {"batch_size": 8, "verbose": False, "device": device, "steps_per_epoch": 2}
    settings["optimizer"] = optimizers.Adam(bn.schedules.Cosine(1e-2))
    found, wanted, parts = model(), model(), model()
    found.fit(forever(), epochs=epochs, **settings)
    # Each epoch goes on where the last one stopped; what ends begins anew.
    every = [pair for _ in range(epochs) for pair in batches()][: 2 * epochs]
    wanted.fit(iter(every), epochs=epochs, **settings)
    assert_same(found, wanted)
    wanted = model()
    wanted.fit(batches, epochs=epochs, **settings)
    assert_same(found, wanted)
    # A resumed training leaves out what was there before.
    stop = type("Stop", (bn.callbacks.Callback,), {"epoch_end": lambda self, progress: setattr(progress, "stop", "x")})
    parts.fit(forever, epochs=epochs, callbacks=stop(), **settings)
    parts.fit(forever, epochs=epochs, resume=True, **settings)
    assert_same(found, parts)
    with pytest.raises(OptionError, match=r"^steps_per_epoch: only an iterable of batches .* Hint: leave it out"):
        model().fit(X, Y, **settings)


class Table:
    """As a data set of Hugging Face."""

    column_names = ("image", "label")
    shape = (3, 2)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: Any) -> Any:
        return {}


@pytest.mark.parametrize(
    ("clear", "plain"),
    [
        ({"loss_weights": [2.0]}, {"loss_weights": 2}),
        ({"loss": ["focal"]}, {"loss": "focal"}),
        ({"class_weights": {}}, {}),
        ({"class_weights": [[1, 2, 3]]}, {"class_weights": [1, 2, 3]}),
        ({"class_weights": {"head": {1: 2}}}, {"class_weights": {1: 2}}),
        ({"loss": "mse", "class_weights": {}, "y": X[:, 0, 0, :3]}, {"loss": "mse", "y": X[:, 0, 0, :3]}),
    ],
    ids=str,
)
def test_what_is_for_the_only_output(device: Device, clear: dict[str, Any], plain: dict[str, Any]) -> None:
    assert_same(trained(device, **clear), trained(device, **plain))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: model().fit(Table()), r"^x: samples must be an array, and not a table of columns\. Received "
         r"columns=image, label\. Hint: give its columns one by one: fit\(table\['image'\], table\['label'\]\), say"),
        (lambda: model().fit(Frame(np.full((3, 2, 5, 4), "a"))), r"^x: "),
        (lambda: model().fit(X, Y, loss=lambda a, b: a - b), r"^loss: it must be a Loss.* Received function\. Hint: a "
         r"formula is a losses\.Expression\(text\), whose derivative follows"),
        (lambda: model().fit(X, Y, loss=type("MSELoss", (), {})()), r"Hint: blobnet\.losses\.MeanSquaredError"),
        (lambda: model().fit(X, Y, optimizer=type("AdamW", (), {})), r"Hint: blobnet\.optimizers\.AdamW\(\), for"),
        (lambda: model().predict(iter), r"^x: x must be a numpy array\. .* Hint: what it returns may be"),
        (lambda: model().fit(X, Y, class_weight={0: 1}), r'^fit: there is no such argument\. .*class_weight=dict\. '
         r'Hint: class_weights= takes \{number or name: weight\}, or "balanced"\.$'),
        (lambda: model().fit(X, Y, validation_split=0.1), r"validation_split=0\.1\. Hint: validation=0\.1 holds"),
        (lambda: model().fit(X, Y, 5), r"^fit: too many positional arguments\. Hint: it takes x, y; by name epochs, "),
        (lambda: bn.callbacks.EarlyStopping(restore_best_weights=True), r"^EarlyStopping: .* Hint: restore_best="),
        (lambda: layers.Conv2D(8, 3, strides=2), r"^Conv2D: .* Received strides=2\. Hint: did you mean 'stride'\?"),
        (lambda: layers.Conv2D(8), r"^Conv2D: missing a required argument: 'kernel_size'\. Hint: it takes "),
        (lambda: bn.optimizers.Adam(lr=1), r"^Adam: .* Received lr=1\. Hint: learning_rate= is a number"),
        (lambda: bn.losses.CrossEntropy(smoothing=1), r"Hint: did you mean 'label_smoothing'\?"),
        (lambda: bn.models.resnet18(weights="DEFAULT"), r"^resnet18: .*weights='DEFAULT'\. Hint: bn\.models\.resnet"),
        (lambda: bn.models.resnet18(3, 64, 64), r"^resnet18: input_shape must be the sizes of a sample in one tuple\. "
         r"Received 3, 64, 64\. Hint: resnet18\(\(3, 64, 64\), classes=10\)"),
        (lambda: type("Net", (bn.Model,), {"forward": None}), r"^Net: a network is a graph of nodes, and nobody calls "
         r"forward of its class\. Hint: write a function from nodes to nodes"),
    ],
)  # fmt: skip
def test_habits_of_other_packages(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(BlobnetError, match=message):
        wrong()


def test_every_argument_of_another_package_leads_to_one_here() -> None:
    """The names that hints give, and none that something here has."""
    kinds = [kind for base in (layers.Layer, losses.Loss, optimizers.Optimizer) for kind in base.kinds.values()]
    callbacks = [getattr(bn.callbacks, name) for name in bn.callbacks.__all__]
    functions = [bn.Model.fit, bn.Model.evaluate, bn.Model.predict, bn.models.resnet18, *kinds, *callbacks]
    known = {name for function in functions for name in inspect.signature(function).parameters}
    for name, hint in ARGUMENTS.items():
        for own in re.findall(r"(\w+)=", hint) or [hint]:
            assert own in known or not hint.isidentifier(), (name, own)
    for name in METHODS:
        with pytest.raises(AttributeError, match=rf"^'Sequential' object has no attribute '{name}'\. Hint: "):
            getattr(model(), name)
    assert not hasattr(model(), "other")


def test_arguments_are_still_type_errors_and_signatures_are_whole() -> None:
    with pytest.raises(TypeError):
        layers.Dense(3, use_bias=False)
    assert list(inspect.signature(layers.Dense).parameters) == ["units", "bias", "activation", "initializer", "name"]
    assert "classes" in inspect.signature(bn.models.unet).parameters
    assert pickle.loads(pickle.dumps(bn.models.lenet5)) is bn.models.lenet5
