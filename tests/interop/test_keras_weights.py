"""Weights for Keras and from it: files that Keras writes and reads, and files that are not to be trusted."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.errors import ArgumentError, FileError, OptionError, ShapeError
from blobnet.files import hdf5
from blobnet.interop import keras_files
from tests.interop.damage import refusals
from tests.interop.networks import keras_2, random_weights, samples

#: Keras and NumPy 2 disagree on how arrays are made.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def keras() -> Any:
    pytest.importorskip("torch")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


#: Pairs of networks: ours, and the same one written in Keras. Each is (ours, Keras's, epsilon of norms).
Pair = tuple[bn.Model, Callable[[Any], Any]]


def chain() -> Pair:
    model = bn.Sequential(
        [
            layers.Input(3, 9, 8, name="input"),
            layers.Conv2D(4, (3, 2), stride=2, padding="same", activation="relu"),
            layers.BatchNorm(epsilon=1e-3),
            layers.Activation("silu"),
            layers.Conv2D(8, 3, groups=4, padding="same"),
            layers.MaxPool2D(2, 1),
            layers.PReLU(),
            layers.Conv2D(6, 1, groups=2, bias=False),
            layers.GroupNorm(3, epsilon=1e-3),
            layers.ConvTranspose2D(5, 3, stride=2),
            layers.LayerNorm(epsilon=1e-3),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.BatchNorm(epsilon=1e-3),
            layers.Dense(7, activation="tanh"),
            layers.Dense(4, bias=False),
        ]
    )

    def build(keras: Any) -> Any:
        k = keras.layers
        return keras.Sequential(
            [
                keras.Input((9, 8, 3)),
                k.Conv2D(4, (3, 2), strides=2, padding="same", activation="relu"),
                k.BatchNormalization(),
                k.Activation("silu"),
                k.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
                k.MaxPooling2D(2, 1),
                k.PReLU(shared_axes=[1, 2]),
                k.Conv2D(6, 1, groups=2, use_bias=False),
                k.GroupNormalization(3),
                k.Conv2DTranspose(5, 3, strides=2),
                k.LayerNormalization(),
                k.Dropout(0.5),
                k.Flatten(),
                k.BatchNormalization(),
                k.Dense(7, activation="tanh"),
                k.Dense(4, use_bias=False),
            ]
        )

    return model, build


def branches() -> Pair:
    """Residuals with a shortcut, a concat of flattened planes, and layers of one class that are equally far."""
    images = layers.Input(2, 6, 5, name="image")()
    node = layers.Conv2D(4, 3, padding="same", activation="relu")(images)
    branch = layers.Conv2D(6, 3, padding="same")(layers.Activation("relu")(layers.BatchNorm(epsilon=1e-3)(node)))
    branch = layers.Conv2D(6, 3, padding="same")(layers.Activation("relu")(branch))
    shortcut = layers.Conv2D(6, 1)(node)
    node = layers.Activation("relu")(branch + shortcut)
    other = layers.Conv2D(3, 3, activation="elu")(node)
    means = layers.GlobalAveragePool()(node)
    flat = layers.Concat()([layers.Flatten()(other), means, layers.Flatten()(node)])
    flat = layers.Dropout(0.3)(layers.Activation("tanh")(flat))
    left, right = layers.Dense(5)(flat), layers.Dense(5)(flat)
    model = bn.Model(images, layers.Dense(3)(left + right))

    def build(keras: Any) -> Any:
        k = keras.layers
        images = keras.Input((6, 5, 2))
        node = k.Conv2D(4, 3, padding="same", activation="relu")(images)
        branch = k.Conv2D(6, 3, padding="same")(k.Activation("relu")(k.BatchNormalization()(node)))
        branch = k.Conv2D(6, 3, padding="same")(k.Activation("relu")(branch))
        shortcut = k.Conv2D(6, 1)(node)
        node = k.Activation("relu")(k.Add()([branch, shortcut]))
        other = k.Conv2D(3, 3, activation="elu")(node)
        means = k.GlobalAveragePooling2D()(node)
        flat = k.Concatenate()([k.Flatten()(other), means, k.Flatten()(node)])
        flat = k.Dropout(0.3)(k.Activation("tanh")(flat))
        left, right = k.Dense(5)(flat), k.Dense(5)(flat)
        return keras.Model(images, k.Dense(3)(k.Add()([left, right])))

    return model, build


def one_dimension() -> Pair:
    signal = layers.Input(4, width=10)()
    node = layers.Conv1D(6, 3, padding="same", dilation=2)(signal)
    node = layers.Conv1D(6, 3, groups=6)(node)
    node = layers.ConvTranspose1D(6, 2, stride=2)(node)
    node = layers.InstanceNorm(epsilon=1e-3)(node)
    node = layers.MultiHeadAttention(2)(node) + node
    shared = layers.Dense(3, name="shared")
    model = bn.Model(signal, shared(node))

    def build(keras: Any) -> Any:
        k = keras.layers
        signal = keras.Input((10, 4))
        node = k.Conv1D(6, 3, padding="same", dilation_rate=2)(signal)
        node = k.DepthwiseConv1D(3)(node)
        node = k.Conv1DTranspose(6, 2, strides=2)(node)
        node = k.GroupNormalization(-1)(node)
        node = k.Add()([k.MultiHeadAttention(2, 3)(node, node), node])
        return keras.Model(signal, k.Dense(3)(k.Flatten()(node)))

    return model, build


def volumes_and_several_ends() -> Pair:
    """Two inputs, two outputs, and a layer in two places."""
    left, right = (layers.Input(2, 5, 6, depth=4, name=name)() for name in ("left", "right"))
    shared = layers.Conv3D(3, (2, 3, 2), stride=(1, 2, 1), name="shared", activation="relu")
    nodes = [shared(left), shared(right)]
    up = layers.ConvTranspose3D(2, 2)(nodes[0])
    joined = layers.Dense(4)(layers.Flatten()(layers.Multiply()(nodes)))
    model = bn.Model({"left": left, "right": right}, {"joined": joined, "up": layers.Dense(2)(up)})

    def build(keras: Any) -> Any:
        k = keras.layers
        left, right = keras.Input((4, 5, 6, 2)), keras.Input((4, 5, 6, 2))
        shared = k.Conv3D(3, (2, 3, 2), strides=(1, 2, 1), activation="relu")
        nodes = [shared(left), shared(right)]
        up = k.Conv3DTranspose(2, 2)(nodes[0])
        joined = k.Dense(4)(k.Flatten()(k.Multiply()(nodes)))
        return keras.Model([left, right], [joined, k.Dense(2)(k.Flatten()(up))])

    return model, build


def generator() -> Pair:
    """Flat values that become planes, and that a dense layer reads too."""
    noise = layers.Input(7, name="noise")()
    node = layers.BatchNorm(epsilon=1e-3)(layers.Dense(60, bias=False)(noise))
    node = layers.Activation("leaky_relu", slope=0.2)(node)
    planes = layers.ConvTranspose2D(4, 3, stride=2, activation="relu")(layers.Reshape((5, 3, 4))(node))
    signal = layers.Conv1D(3, 2)(layers.Reshape((6, 4))(layers.Dense(24, activation="tanh")(node)))
    model = bn.Model(noise, {"planes": layers.Dense(4)(planes), "signal": layers.Dense(2)(signal)})

    def build(keras: Any) -> Any:
        k = keras.layers
        noise = keras.Input((7,))
        node = k.BatchNormalization()(k.Dense(60, use_bias=False)(noise))
        node = k.LeakyReLU(negative_slope=0.2)(node)
        planes = k.Conv2DTranspose(4, 3, strides=2, activation="relu")(k.Reshape((3, 4, 5))(node))
        signal = k.Conv1D(3, 2)(k.Reshape((4, 6))(k.Dense(24, activation="tanh")(node)))
        ends = [k.Dense(4)(k.Flatten()(planes)), k.Dense(2)(k.Flatten()(signal))]
        return keras.Model(noise, ends)

    return model, build


def recurrent() -> Pair:
    """Both kinds of layers, one way, the other and both, with biases and without, all positions and the last state."""
    words = layers.Input(7, name="words")()
    node = layers.LSTM(3, bidirectional=True)(layers.Embedding(9, 4)(words))
    node = layers.GRU(5)(node)
    ends: list[Any] = [layers.Flatten()(layers.LSTM(2)(node))]
    for kind in (layers.LSTM, layers.GRU):
        ends += [kind(3, bidirectional=True, return_sequences=False)(node)]
        ends += [kind(2, reverse=True, return_sequences=False, bias=False)(node)]
    model = bn.Model(words, layers.Dense(3)(layers.Concat()(ends)))

    def build(keras: Any) -> Any:
        k = keras.layers
        words = keras.Input((7,))
        node = k.Bidirectional(k.LSTM(3, return_sequences=True))(k.Embedding(9, 4)(words))
        node = k.GRU(5, return_sequences=True)(node)
        ends = [k.Flatten()(k.LSTM(2, return_sequences=True, dropout=0.3)(node))]
        for kind in (k.LSTM, k.GRU):
            ends += [k.Bidirectional(kind(3))(node)]
            ends += [kind(2, go_backwards=True, use_bias=False, recurrent_dropout=0.3)(node)]
        return keras.Model(words, k.Dense(3)(k.Concatenate()(ends)))

    return model, build


def lenet5() -> Pair:
    def build(keras: Any) -> Any:
        k = keras.layers
        return keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                k.Conv2D(6, 5, padding="same", activation="relu"),
                k.MaxPooling2D(),
                k.Conv2D(16, 5, activation="relu"),
                k.MaxPooling2D(),
                k.Flatten(),
                k.Dense(120, activation="relu"),
                k.Dense(84, activation="relu"),
                k.Dense(10),
            ]
        )

    return bn.models.lenet5(), build


def resnet8() -> Pair:
    def build(keras: Any) -> Any:
        k = keras.layers

        def normed(node: Any, units: int, kernel: int, stride: int = 1) -> Any:
            node = k.ZeroPadding2D(kernel // 2)(node)
            return k.BatchNormalization(epsilon=1e-5)(k.Conv2D(units, kernel, stride, use_bias=False)(node))

        images = keras.Input((12, 10, 1))
        node = k.ReLU()(normed(images, 16, 3))
        for units, stride in ((16, 1), (32, 2), (64, 2)):
            branch = normed(k.ReLU()(normed(node, units, 3, stride)), units, 3)
            shortcut = node if stride == 1 else normed(node, units, 1, stride)
            node = k.ReLU()(k.Add()([branch, shortcut]))
        return keras.Model(images, k.Dense(5)(k.GlobalAveragePooling2D()(node)))

    return bn.models.resnet8((1, 12, 10), 5), build


PAIRS = {
    item.__name__: item
    for item in (chain, branches, one_dimension, volumes_and_several_ends, generator, recurrent, lenet5, resnet8)
}


def last(x: Any) -> Any:
    """With the units behind all other axes."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def compare(model: bn.Model, theirs: Any, device: Any) -> None:
    x = samples(model, 4)
    found = model.predict(x if len(x) > 1 else next(iter(x.values())), device=device)
    found = list(found.values()) if isinstance(found, dict) else [found]
    given = [last(values) for values in x.values()]
    expected = theirs.predict(given if len(given) > 1 else given[0], verbose=0)
    expected = expected if isinstance(expected, list) else [expected]
    assert len(found) == len(expected)
    for ours, values in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, values, atol=1e-5 * max(1, np.abs(values).max()), rtol=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_keras_loads_and_predicts_the_same(keras: Any, device: Any, tmp_path: Path, name: str) -> None:
    model, build = PAIRS[name]()
    random_weights(model)
    for vertex in model.graph.inputs.values():
        units = vertex.shape.units
        model.set_weights({vertex.parameter("mean"): np.zeros(units), vertex.parameter("deviation"): np.ones(units)})
    model.save_keras_weights(tmp_path / "m.weights.h5")
    theirs = build(keras)
    theirs.load_weights(tmp_path / "m.weights.h5")
    compare(model, theirs, device)


def randomized(theirs: Any, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    theirs.set_weights(
        [
            random.uniform(0.5, 1.5, values.shape) if "variance" in weight.path else random.normal(0, 0.4, values.shape)
            for weight, values in zip(theirs.weights, theirs.get_weights(), strict=True)
        ]
    )
    return theirs


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", ["weights.h5", "keras", "keras 2", "keras 2, old texts", "keras 2, a whole model"])
def test_what_keras_writes_is_read(keras: Any, device: Any, tmp_path: Path, name: str, kind: str) -> None:
    model, build = PAIRS[name]()
    theirs, path = randomized(build(keras)), tmp_path / f"m.{kind if ' ' not in kind else 'h5'}"
    if " " in kind:
        as_keras_2(theirs, path, fixed="old" in kind, group="model_weights" if "whole" in kind else "/")
    else:
        theirs.save_weights(path) if kind == "weights.h5" else theirs.save(path)
    model.load_keras_weights(path)
    compare(model, theirs, device)


def test_a_gru_of_another_kind(keras: Any, tmp_path: Path) -> None:
    """The one of before cuDNN, whose reset gate comes before the product, has one bias."""
    theirs = keras.Sequential([keras.Input((5, 4)), keras.layers.GRU(3, reset_after=False), keras.layers.Dense(2)])
    model = bn.Sequential([layers.Input(4, width=5), layers.GRU(3, return_sequences=False, name="g"), layers.Dense(2)])
    theirs.save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ShapeError, match=r"cell/vars/2 must have the shape of g/bias .*given=\(9,\), wanted=\(2, 9\).*"
                       "Hint: a GRU with reset_after=False has one bias, and computes something else"):  # fmt: skip
        model.load_keras_weights(tmp_path / "m.weights.h5")


@pytest.mark.parametrize(
    ("kind", "argument", "hint"),
    [
        ("GRU", "reset_after", "a GRU is as Keras has it with reset_after=True"),
        ("GRU", "stateful", "every sample begins with zeros"),
        ("LSTM", "recurrent_dropout", "Dropout before or behind the layer"),
        ("LSTM", "go_backwards", "did you mean 'reverse'?"),
        ("Embedding", "mask_zero", "the length of each sample as a second input"),
    ],
)
def test_arguments_of_recurrent_layers_of_keras(kind: str, argument: str, hint: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{kind}: there is no such argument\. .*Hint: .*{re.escape(hint)}"):
        getattr(layers, kind)(**{argument: True})


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_masks_of_what_lies_behind_samples_are_lengths(keras: Any, device: Any, tmp_path: Path, kind: str) -> None:
    k, theirs, ours = keras.layers, getattr(keras.layers, kind), getattr(layers, kind)
    entry = keras.Input((6,))
    node = k.Bidirectional(theirs(3, return_sequences=True))(k.Embedding(9, 4, mask_zero=True)(entry))
    network = randomized(keras.Model(entry, k.Dense(2)(k.Bidirectional(theirs(3))(node))))
    network.save_weights(tmp_path / "m.weights.h5")
    words, lengths = layers.Input(6, name="words")(), layers.Input(1, name="lengths")()
    inner = ours(3, bidirectional=True)(layers.Embedding(9, 4)(words), lengths)
    last_state = ours(3, bidirectional=True, return_sequences=False)(inner, lengths)
    model = bn.Model({"words": words, "lengths": lengths}, layers.Dense(2)(last_state))
    model.load_keras_weights(tmp_path / "m.weights.h5")
    count = np.array([[6], [1], [3], [5]])
    x = np.where(np.arange(6) < count, np.random.default_rng(0).integers(1, 9, (4, 6)), 0)
    found = model.predict({"words": x, "lengths": count}, device=device)
    np.testing.assert_allclose(found, network.predict(x.astype(np.float32), verbose=0), rtol=1e-5, atol=1e-5)


def separable() -> Pair:
    """Separable convolutions beside others, in an order that only they make: each is one layer in Keras, two here."""

    def convolution(node: Any, units: int, activation: str | None = None) -> Any:
        depthwise = layers.Conv2D(node.shape.units, 3, padding="same", groups=node.shape.units, bias=False)
        return layers.Conv2D(units, 1, activation=activation)(depthwise(node))

    images = layers.Input(2, 6, 5)()
    node = layers.Conv2D(4, 3, padding="same")(images)
    branch = convolution(convolution(node, 6, "relu"), 6)
    other = layers.Conv2D(6, 1)(layers.Conv2D(4, 1)(layers.Conv2D(4, 1, activation="relu")(node)))
    model = bn.Model(images, layers.Dense(3)(branch + other))

    def build(keras: Any) -> Any:
        k = keras.layers
        images = keras.Input((6, 5, 2))
        node = k.Conv2D(4, 3, padding="same")(images)
        branch = k.SeparableConv2D(6, 3, padding="same", activation="relu")(node)
        branch = k.SeparableConv2D(6, 3, padding="same")(branch)
        other = k.Conv2D(6, 1)(k.Conv2D(4, 1)(k.Conv2D(4, 1, activation="relu")(node)))
        return keras.Model(images, k.Dense(3)(k.Flatten()(k.Add()([branch, other]))))

    return model, build


@pytest.mark.parametrize("kind", ["weights.h5", "keras 2"])
def test_separable_convolutions_are_read(keras: Any, device: Any, tmp_path: Path, kind: str) -> None:
    model, build = separable()
    theirs, path = randomized(build(keras)), tmp_path / ("m.weights.h5" if kind == "weights.h5" else "m.h5")
    if kind == "weights.h5":
        theirs.save_weights(path)
    else:
        as_keras_2(theirs, path)
    model.load_keras_weights(path)
    compare(model, theirs, device)


def as_keras_2(theirs: Any, path: Path, *, fixed: bool = False, group: str = "/") -> None:
    """The weights as Keras 2 has them: by its own writer, which Keras 3 still has; texts are of fixed length in older
    files.
    """
    from keras.src.legacy.saving import legacy_h5_format

    with h5py.File(path, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file.require_group(group), theirs)
        if fixed:
            for item in [file, *(member for member in file.values() if isinstance(member, h5py.Group))]:
                for name, values in list(item.attrs.items()):
                    if name.endswith("_names"):
                        item.attrs[name] = np.array([text.encode() for text in values], "S")


def test_normalization(keras: Any, device: Any, tmp_path: Path) -> None:
    """What the input layer does is what Keras's Normalization layer does, both ways."""
    model = bn.Sequential([layers.Input(3, 4, 5, name="image"), layers.Conv2D(2, 3), layers.Dense(3)])
    random_weights(model)

    def build() -> Any:
        k = keras.layers
        return keras.Sequential([keras.Input((4, 5, 3)), k.Normalization(), k.Conv2D(2, 3), k.Flatten(), k.Dense(3)])

    model.save_keras_weights(tmp_path / "m.weights.h5")
    theirs = build()
    theirs.load_weights(tmp_path / "m.weights.h5")
    compare(model, theirs, device)
    theirs = build()
    theirs.layers[0].adapt(np.random.default_rng(0).normal(3, 2, (50, 4, 5, 3)))
    theirs.save_weights(tmp_path / "theirs.weights.h5")
    model.load_keras_weights(tmp_path / "theirs.weights.h5")
    assert model.weights["image/mean"].min() > 2
    compare(model, theirs, device)


def small(classes: int = 4) -> bn.Model:
    return bn.Sequential(
        [
            layers.Input(2, 4, 4, name="input"),
            layers.Conv2D(3, 3, name="conv"),
            layers.BatchNorm(name="norm"),
            layers.Dense(6, name="inner"),
            layers.Dense(classes, name="logits"),
        ]
    )


def test_roundtrip_is_exact(tmp_path: Path) -> None:
    for pair in PAIRS.values():
        model, path = pair()[0], tmp_path / "m.weights.h5"
        random_weights(model)
        model.save_keras_weights(path)
        first, other = path.read_bytes(), pair()[0]
        other.load_keras_weights(path)
        for name, values in model.weights.items():
            np.testing.assert_allclose(other.weights[name], values, rtol=1e-6 if "deviation" in name else 0)
        model.save_keras_weights(path)
        assert path.read_bytes() == first


def written(tmp_path: Path) -> Path:
    path = tmp_path / "m.weights.h5"
    small().save_keras_weights(path)
    return path


Change = Callable[[h5py.File], object]


def replaced(name: str, values: Any, **options: Any) -> Change:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, data=values, **options)

    return change


def linked(name: str, link: Any) -> Change:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = link

    return change


KERNEL = "layers/conv2d/vars/0"


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            replaced(KERNEL, np.zeros((3, 3, 2, 5), np.float32)),
            ShapeError,
            "/layers/conv2d/vars/0 must have the shape of conv/weight in Keras's order. Received given=(3, 3, 2, 5), "
            "wanted=(3, 3, 2, 3).",
        ),
        (
            replaced("layers/dense_1/vars/0", np.zeros((6, 10), np.float32)),
            ShapeError,
            "/layers/dense_1/vars/0 must have the shape of logits/weight in Keras's order. Received given=(6, 10), "
            "wanted=(6, 4). Hint: for another number of classes, build the network for 10,",
        ),
        (
            replaced(KERNEL, np.zeros((3, 3, 2, 3), np.int64)),
            FileError,
            "/layers/conv2d/vars/0 must hold float numbers",
        ),
        (replaced(KERNEL, np.full((3, 3, 2, 3), np.nan)), OptionError, "conv/weight: every weight must be finite"),
        (
            lambda file: file.move("layers/conv2d", "layers/conv3d"),
            FileError,
            "the layers of the file must be those of the network. Received missing=conv2d (conv), extra=conv3d. Hint: "
            "layers are counted by their classes, in the order of the graph.",
        ),
        (
            lambda file: file.__delitem__("layers/conv2d/vars/1"),
            FileError,
            "the file must hold /layers/conv2d/vars/1. Received found=0.",
        ),
        (
            lambda file: file.__setitem__("layers/conv2d/vars/2", np.zeros(3)),
            FileError,
            "/layers/conv2d/vars must have as many variables as the layer conv. Received variables=3, wanted=2.",
        ),
        (
            linked(KERNEL, h5py.ExternalLink("other.h5", "/x")),
            FileError,
            f"/{KERNEL} must be in the file itself, links",
        ),
        (linked("layers/conv2d", h5py.ExternalLink("other.h5", "/x")), FileError, "/layers/conv2d must be in the file"),
        (linked("layers", h5py.ExternalLink("other.h5", "/x")), FileError, "/layers must be in the file itself, links"),
        (linked("layers/conv2d/vars", h5py.SoftLink("/layers/dense/vars")), FileError, "links are not followed"),
        (
            replaced(KERNEL, np.zeros((3, 3, 2, 3), np.float32), chunks=True, compression="gzip"),
            FileError,
            f"/{KERNEL} must be stored in this file, in one piece and not compressed. Received storage=chunked",
        ),
        (lambda file: file.__delitem__("layers"), FileError, "the file must hold weights of Keras"),
        (
            replaced("layers/normalization/vars/0", np.zeros(5, np.float32)),
            ShapeError,
            "/layers/normalization/vars/0 must have a number for each unit of the input. Received given=(5,)",
        ),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, change: Change, kind: type[Exception], message: str) -> None:
    path, model = tmp_path / "m.weights.h5", small()
    model.set_normalization([1, 2], [3, 4])
    model.save_keras_weights(path)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.zeros((3, 3, 2, 3), np.float32)
    with h5py.File(path, "r+") as file:
        change(file)
    before = model.weights
    with pytest.raises(kind, match=re.escape(message)):
        model.load_keras_weights(path)
    assert all(np.array_equal(before[name], values) for name, values in model.weights.items())


def external(name: str) -> Change:
    """A dataset whose numbers lie in another file."""

    def change(file: h5py.File) -> None:
        shape = file[name].shape
        del file[name]
        file.create_dataset(name, shape, np.float32, external=[("secret.bin", 0, h5py.h5f.UNLIMITED)])

    return change


def huge(name: str) -> Change:
    """A dataset that says to be larger than the file."""

    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, (2**20, 2**20), np.float32)

    return change


def test_storage_that_lies(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(1000))
    for change, kind, text in (
        (external(KERNEL), FileError, "storage=external"),
        (huge(KERNEL), ShapeError, "2097152"),
    ):
        path = written(tmp_path)
        with h5py.File(path, "r+") as file:
            change(file)
        with pytest.raises(kind, match=text if kind is FileError else re.escape("given=(1048576, 1048576)")):
            small().load_keras_weights(path)


def test_truncated_and_changed_files(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert refusals(path, small().load_keras_weights, cuts=25, lengths=[0, 8], places=5) > 30


def arrays_of_keras_2() -> dict[str, dict[str, Any]]:
    ones = {key: np.ones(3, np.float32) for key in ("gamma", "beta", "moving_mean", "moving_variance")}
    return {
        "input_1": {},
        "first": {"kernel": np.ones((3, 3, 2, 3), np.float32), "bias": np.ones(3, np.float32)},
        "a_norm": ones,
        "second": {"kernel": np.ones((12, 6), np.float32), "bias": np.ones(6, np.float32)},
        "dense": {"kernel": np.ones((6, 4), np.float32), "bias": np.ones(4, np.float32)},
    }


def test_keras_2_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = small(), tmp_path / "m.h5"
    model.load_keras_weights(keras_2(path, arrays_of_keras_2()))
    assert (model.weights["inner/weight"] == 1).all()

    arrays = arrays_of_keras_2()
    del arrays["second"]
    message = (
        "the layers with weights must be those of the network, in its order. Received file=first (2), a_norm (4), "
    )
    with pytest.raises(
        FileError, match=re.escape(f"{message}dense (2), network=conv (2), norm (4), inner (2), logits")
    ):
        model.load_keras_weights(keras_2(path, arrays))
    arrays = arrays_of_keras_2()
    arrays["dense"]["kernel"] = np.ones((6, 10), np.float32)
    with pytest.raises(
        ShapeError, match=re.escape("/dense/dense/kernel:0 must have the shape of logits/weight in Keras")
    ):
        model.load_keras_weights(keras_2(path, arrays))

    def changed(change: Change) -> Path:
        with h5py.File(keras_2(path, arrays_of_keras_2()), "r+") as file:
            change(file)
        return path

    # Links are not followed: layers behind them are none of the file's.
    keras_2(tmp_path / "other.h5", arrays_of_keras_2())
    with pytest.raises(FileError, match=re.escape("Received file=a_norm (4), second (2)")):
        model.load_keras_weights(changed(linked("first", h5py.ExternalLink("other.h5", "/first"))))
    with pytest.raises(FileError, match="links are not followed"):
        model.load_keras_weights(changed(linked("first/first", h5py.SoftLink("/dense/dense"))))
    with pytest.raises(FileError, match="the names of layers must be readable"):
        model.load_keras_weights(changed(lambda file: file.attrs.__setitem__("layer_names", 7)))
    with pytest.raises(FileError, match="the file must hold weights of Keras"):
        model.load_keras_weights(changed(lambda file: file.attrs.__delitem__("layer_names")))
    # HDF5 may loop forever on what it reads there.
    monkeypatch.setattr(keras_files, "_NAMES", "while True: pass")
    monkeypatch.setattr(hdf5, "_PATIENCE", 0.5)
    with pytest.raises(FileError, match=r"must be readable\. Received reason=HDF5 does not end within 0\.5 seconds\."):
        model.load_keras_weights(keras_2(path, arrays_of_keras_2()))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            layers.Reshape((2, 24), name="r"),
            "d (Dense): a layer with weights must not read values that Keras may have in another order. Received "
            "moved_by=r.",
        ),
        (layers.SqueezeExcite(name="se"), "se (SqueezeExcite): the layer must have a form in Keras."),
        (layers.Conv2D(2, 1, bias="position", name="c"), "c (Conv2D): a layer of Keras has one bias for a unit."),
        (
            layers.ConvTranspose2D(3, 1, groups=3, name="t"),
            "t (ConvTranspose2D): transposed convolutions of Keras have no",
        ),
    ],
)
def test_layers_without_a_form(tmp_path: Path, layer: layers.Layer, message: str) -> None:
    model = bn.Sequential([layers.Input(3, 4, 4), layer, layers.Flatten(), layers.Dense(2, name="d")])
    with pytest.raises(OptionError, match=re.escape(message)):
        model.save_keras_weights(tmp_path / "m.weights.h5")
    assert not list(tmp_path.iterdir())


def test_positions_that_keras_turns_round(tmp_path: Path) -> None:
    model = bn.Sequential([layers.Input(3, width=4), layers.GRU(2, reverse=True, name="g")])
    rule = "g (GRU): layers of Keras that go backwards give their positions in that order"
    with pytest.raises(OptionError, match=re.escape(rule)):
        model.save_keras_weights(tmp_path / "m.weights.h5")


def test_flat_outputs_stay_in_their_order(tmp_path: Path) -> None:
    """What users get is not put into another one, for planes that are made of it too."""
    noise = layers.Input(7)()
    node = layers.Dense(60, name="d")(noise)
    planes = layers.Conv2D(2, 1, name="c")(layers.Reshape((5, 3, 4), name="r")(node))
    model = bn.Model(noise, {"flat": layers.Activation("tanh")(node), "planes": planes})
    with pytest.raises(
        OptionError, match=re.escape("c (Conv2D): a layer with weights must not read values that Keras")
    ):
        model.save_keras_weights(tmp_path / "m.weights.h5")


def test_paths_that_fork_again_and_again(tmp_path: Path) -> None:
    """Each vertex is looked at once, not once for each of the paths to an output, of which there are 2^60 here."""
    node = layers.Dense(3, name="d")(noise := layers.Input(7)())
    for _ in range(60):
        node = layers.Add()(node, layers.Activation("tanh")(node))
    model, other = (bn.Model(noise, node, seed=seed) for seed in (4, 5))
    model.save_keras_weights(tmp_path / "m.weights.h5")
    other.load_keras_weights(tmp_path / "m.weights.h5")
    for name, weights in model.weights.items():
        np.testing.assert_array_equal(other.weights[name], weights)


def test_flattened_values_that_are_taken_apart(tmp_path: Path) -> None:
    model = bn.Sequential([layers.Input(4, 3, 3), layers.Flatten(), layers.GroupNorm(2, name="groups")])
    with pytest.raises(
        OptionError, match=r"groups \(GroupNorm\): flattened values must go to layers that treat them alike"
    ):
        model.save_keras_weights(tmp_path / "m.weights.h5")


def test_names_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"names end in \.weights\.h5"):
        small().save_keras_weights(tmp_path / "m.h5")
    small().save(tmp_path / "m.h5")
    with pytest.raises(
        FileError, match=r"must be one of Keras's, but it is one of blobnet's\. Hint: bn\.load reads it"
    ):
        small().load_keras_weights(tmp_path / "m.h5")
    for name, rule in (
        ("m.npz", "must be HDF5, but this is a zip archive"),
        ("m.keras", "must be a readable .keras archive"),
    ):
        (tmp_path / name).write_bytes(b"PK\x03\x04")
        with pytest.raises(FileError, match=rule):
            small().load_keras_weights(tmp_path / name)


def test_layers_without_weights_are_passed_over(tmp_path: Path) -> None:
    """What Keras has no layer for keeps no weights from being read, unless layers behind it have weights."""
    ours = [layers.Input(3, 4, 4), layers.Slice((None, (1, 3))), layers.Conv2D(4, 1), layers.Reshape((2, 16))]
    model = bn.Sequential([*ours, layers.Permute((1, 0))])
    random_weights(model)
    model.save_keras_weights(tmp_path / "m.weights.h5")
    again = bn.Sequential([*ours, layers.Permute((1, 0))], seed=5)
    again.load_keras_weights(tmp_path / "m.weights.h5")
    assert all(np.array_equal(values, model.weights[name]) for name, values in again.weights.items())


@pytest.mark.parametrize("ending", [".keras", ".weights.h5", ".h5"])
def test_models_within_models_are_read(keras: Any, device: Any, tmp_path: Path, ending: str) -> None:
    """A base that was trained before, changes of pictures and a head, as tutorials of transfer have them."""
    k = keras.layers
    entry = keras.Input((12, 12, 3))
    deepest = keras.Sequential([k.DepthwiseConv2D(3), k.Conv2D(6, 3)])
    base = keras.Model(entry, deepest(k.BatchNormalization()(k.Conv2D(4, 3, activation="relu")(entry))))
    changes = keras.Sequential([k.RandomFlip(), k.RandomRotation(0.1)])
    head = keras.Sequential([k.Dense(7, activation="relu"), k.Dropout(0.3), k.Dense(5)])
    node = k.Conv2D(4, 1)(base(k.Rescaling(0.5)(changes(entry))))
    theirs = randomized(keras.Model(entry, head(k.Dense(9)(k.GlobalAveragePooling2D()(node)))))
    path = tmp_path / f"m{ending}"
    theirs.save_weights(path) if ending == ".weights.h5" else theirs.save(path)
    model = bn.Sequential(
        [
            layers.Input(3, 12, 12),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNorm(epsilon=1e-3),
            layers.Conv2D(4, 3, groups=4),
            layers.Conv2D(6, 3),
            layers.Conv2D(4, 1),
            layers.GlobalAveragePool(),
            layers.Dense(9),
            layers.Dense(7, activation="relu"),
            layers.Dense(5),
        ]
    )
    model.load_keras_weights(path)
    model.set_normalization([0] * 3, [2] * 3)
    compare(model, theirs, device)


def test_models_within_models_whose_order_is_open(tmp_path: Path) -> None:
    """Two dense layers of one shape: which comes first, no file says."""
    model = bn.Sequential([layers.Input(4), layers.Dense(4, name="a"), layers.Dense(4, name="b")])
    names = ("dense", "functional/layers/dense")
    for shapes, rule in (((4, 4), "orders=several"), ((4, 3), "orders=none")):
        with h5py.File(tmp_path / "m.weights.h5", "w") as file:
            for name in names:
                file[f"layers/{name}/vars/0"] = np.zeros((4, shapes[name == "dense"]), np.float32)
                file[f"layers/{name}/vars/1"] = np.zeros(4, np.float32)
        with pytest.raises(FileError, match=rule) as found:
            model.load_keras_weights(tmp_path / "m.weights.h5")
        assert "must be those of the network, in one order" in str(found.value)
        assert "file=dense, functional/layers/dense, network=dense (a), dense_1 (b). Hint: " in str(found.value)


def test_archives_that_are_none(tmp_path: Path) -> None:
    model = bn.Sequential([layers.Input(4), layers.Dense(4)])
    path = tmp_path / "m.keras"
    for content, reason in ((b"PK nothing", "File is not a zip file"), (None, "no item named 'model.weights.h5'")):
        path.write_bytes(content or b"")
        if content is None:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("config.json", "{}")
        with pytest.raises(FileError, match=r"the file must be a readable \.keras archive") as found:
            model.load_keras_weights(path)
        assert reason in str(found.value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(FileError, match="an HDF5 file must be whole"):
        model.load_keras_weights(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(1 << 20))
    with pytest.raises(FileError, match="the weights in an archive must be stored as they are"):
        model.load_keras_weights(path)
