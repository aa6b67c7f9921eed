"""Commands on networks with several inputs and outputs, whose arrays go by their names (docs/graphs.md)."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import blobnet as bn
from blobnet import losses, schedules
from blobnet.datasets import source, user_data
from blobnet.datasets.named_data import read_named
from blobnet.errors import DataError
from tests.two_ends import data, two_ends

#: Two inputs of shapes that it is told; classes for each position, and targets.
NET = """
import blobnet as bn
from blobnet import layers

def net(input_shape: dict, classes={"mask": 3}, seed=0):
    image, state = (layers.Input(*input_shape[name], name=name)() for name in ("image", "state"))
    seen = layers.Conv2D(4, 3, padding="same", activation="tanh", name="seen")(image)
    mask = layers.Conv2D(classes["mask"], 1, name="classes")(seen)
    pooled = layers.GlobalAveragePool()(seen)
    value = layers.Dense(2, name="values")(layers.Concat()([layers.Dense(3)(state), pooled]))
    return bn.Model([image, state], {"mask": mask, "value": value}, seed=seed)

def plain(input_shape=(2, 6, 5), classes=10):
    return bn.Sequential([layers.Input(*input_shape), layers.Flatten(), layers.Dense(classes)])

def heads(input_shape, classes):
    image = layers.Input(*input_shape["x"], name="image")()
    flat = layers.Flatten()(image)
    ends = {"kind": layers.Dense(classes["kind"])(flat), "size": layers.Dense(1)(flat)}
    return bn.Model(image, ends)
"""


def arrays(count: int = 40, seed: int = 1, ending: str = "") -> dict[str, np.ndarray]:
    x, y = data(count, seed)
    return {f"{name}{ending}": values for name, values in {**x, **y}.items()}


@pytest.fixture
def named(run) -> str:
    """A model, and files of arrays for it, in the folder of ``run``."""
    Path("net.py").write_text(NET, encoding="utf-8")
    np.savez("pairs.npz", **arrays(), **arrays(17, 2, "_test"))
    return "net.py:net"


def trained(**settings: Any) -> bn.Model:
    """What Python makes of the same arrays."""
    x, y = data(40, 1)
    scope: dict[str, Any] = {}
    exec(NET, scope)
    model: bn.Model = scope["net"]({name: values.shape[1:] for name, values in x.items()})
    for name, values in x.items():
        axes = (0, *range(2, values.ndim))
        model.set_normalization(values.mean(axes, dtype=np.float64), values.std(axes, dtype=np.float64), input=name)
    chosen = {"mask": losses.CrossEntropy(ignore=255), "value": losses.MeanSquaredError()}
    optimizer = bn.optimizers.Adam(schedules.Cosine(0.002, 0.0))
    model.fit(x, y, **{"loss": chosen, "optimizer": optimizer, "epochs": 2, "batch_size": 16, **settings})
    return model


def assert_same(path: str, model: bn.Model) -> None:
    found = bn.load(path).weights
    assert set(found) == set(model.weights)
    for name, values in model.weights.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_train_is_what_fit_does(run, named) -> None:
    result = run("train", named, "--dataset", "pairs.npz", "--epochs", 2, "--batch-size", 16)
    assert result.status == 0, result.err
    model = trained()
    assert_same("net.h5", model)
    x, y = data(17, 2)
    measured = model.evaluate(x, y)
    assert result.out == (
        f"test loss {measured['loss']:.4f} (mask loss {measured['mask_loss']:.4f}, mask accuracy "
        f"{measured['mask_accuracy']:.4f}, value loss {measured['value_loss']:.4f}) after 2 epochs; saved net.h5\n"
    )
    assert result.err.splitlines()[0] == (
        "data    pairs: 40 + 17 samples of image (2, 6, 5), state (3,); labels mask (6, 5), value (2,)"
    )


def test_what_train_can_do_by_name(run, named) -> None:
    options = ["--loss", "mask=focal,value=huber", "--loss-weights", "value=0.5", "--class-weights", "balanced"]
    options += ["--augment", "image:crop=1,flip", "--label-smoothing", 0.1]
    result = run("train", named, "--dataset", "pairs.npz", "--epochs", 2, "--batch-size", 16, *options)
    assert result.status == 0, result.err
    assert "augment image: RandomCrop(padding=1), Flip(" in result.err
    model = trained(
        loss={"mask": losses.Focal(label_smoothing=0.1, ignore=255), "value": losses.Huber()},
        loss_weights={"value": 0.5},
        class_weights={"mask": "balanced"},
        augment={"image": "crop=1, flip"},
    )
    assert_same("net.h5", model)
    weighted = model.evaluate(*data(17, 2), loss_weights={"value": 0.5})["loss"]
    assert f"test loss {weighted:.4f} " in result.out
    # The weights of the losses lie in the file.
    assert run("evaluate", "net.h5", "--dataset", "pairs.npz").out.startswith(f"loss          {weighted:.4f}\n")


@pytest.mark.parametrize("kind", ["h5", "npy", "stored"])
def test_files_of_arrays(run, named, kind, monkeypatch) -> None:
    both = {**arrays(ending="_train"), **arrays(17, 2, "_test"), **arrays(11, 3, "_valid")}
    if kind == "h5":
        with h5py.File("pairs.h5", "w") as file:
            for name, values in both.items():
                file.create_dataset(name, data=values)
    elif kind == "npy":
        Path("pairs").mkdir()
        for name, values in both.items():
            np.save(f"pairs/{name}.npy", values)
    else:
        np.savez("pairs.npz", **both)
        for module in (source, user_data):
            monkeypatch.setattr(module, "KEPT_BYTES", 0)
    path = {"h5": "pairs.h5", "npy": "pairs", "stored": "pairs.npz"}[kind]
    result = run("train", named, "--dataset", path, "--epochs", 2, "--batch-size", 16)
    assert result.status == 0, result.err
    assert "data    pairs: 40 + 17 samples" in result.err
    assert ", 11 held out for validation" in result.err
    model = trained(validation=data(11, 3))
    assert_same("net.h5", model)
    assert bn.load("net.h5").history["validation_loss"] == pytest.approx(model.history["validation_loss"], rel=1e-5)
    if kind == "stored":  # Labels keep their type where they stay in the file, samples travel as others do.
        found = read_named(Path("pairs.npz")).dataset(["image", "state"], ["mask", "value"])
        assert isinstance(found.train.y["mask"], source.Source)
        assert (found.train.y["mask"].dtype, found.train.x["image"].dtype) == (np.int64, np.float32)
        with np.load("pairs.npz") as file:
            np.testing.assert_array_equal(np.asarray(found.train.x["image"][3:9]), file["image_train"][3:9])


def test_a_resumed_training_gives_the_same_bytes(run, named) -> None:
    np.savez("whole.npz", **arrays())
    arguments = ["train", named, "--dataset", "whole.npz", "--batch-size", 16, "--schedule", "constant"]
    arguments += ["--loss-weights", "mask=2", "--augment", "image:flip", "--save-best"]
    assert run(*arguments, "--epochs", 2, "--output", "whole.h5").status == 0
    assert run(*arguments, "--epochs", 1, "--output", "parts.h5").status == 0
    result = run(*arguments, "--epochs", 2, "--output", "parts.h5", "--resume")
    assert result.status == 0, result.err
    assert ", 4 held out for validation" in result.err
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()
    changed = arrays()
    changed["state"] = changed["state"] + 1
    np.savez("whole.npz", **changed)
    result = run(*arguments, "--epochs", 3, "--output", "parts.h5", "--resume")
    assert "--resume: the data must be those of the training in parts.h5, but their mean differs." in result.err


@pytest.fixture
def file(named) -> bn.Model:
    """``two.h5``: a model whose inputs and outputs have other names than their layers."""
    model = two_ends()
    x, y = data(40, 1)
    model.fit(x, y, loss={"mask": "cross_entropy", "value": "mse"}, loss_weights={"mask": 3.0}, epochs=1, verbose=False)
    model.save("two.h5")
    return model


def test_evaluate(run, file) -> None:
    result = run("evaluate", "two.h5", "--dataset", "pairs.npz", "--report")
    assert (result.status, result.err) == (0, "pairs, 17 test samples\n")
    x, y = data(17, 2)
    measured = file.evaluate(x, y, loss_weights={"mask": 3.0})
    lines = [line.split() for line in result.out.split("\n\n")[0].splitlines()]
    assert [name for name, _ in lines] == ["loss", "mask_loss", "mask_accuracy", "value_loss"]  # of three classes
    wanted = [value for name, value in measured.items() if name != "mask_top_5"]
    np.testing.assert_allclose([float(value) for _, value in lines], wanted, atol=6e-5)
    mask, value = (file.report(x, y[name], output=name) for name in ("mask", "value"))
    assert result.out.endswith(f"\n\nmask\n\n{mask}\n\nvalue\n\n{value}\n")


def test_predict(run, file) -> None:
    model, (x, _) = bn.load("two.h5"), data(17, 2)
    wanted = model.predict(x)
    result = run("predict", "two.h5", "pairs.npz", "--npz", "said.npz")
    assert (result.status, result.out) == (0, "17 samples; saved said.npz\n"), result.err
    with np.load("said.npz") as said:
        assert list(said) == ["mask", "value"]
        for name, values in wanted.items():
            np.testing.assert_allclose(said[name], values, rtol=1e-5, atol=1e-6)
    refused = run("predict", "two.h5", "pairs.npz")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err == (
        "error: two.h5: the model must give a value for each class. Received output=mask, shape=(3, 6, 5). Hint: "
        "--masks DIR writes the classes of an image's positions, --npz FILE all values as arrays.\n"
    )


def test_predict_classes_and_values(run, named) -> None:
    """One input, which pictures are as well, and two outputs."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(3)
    x, kind = random.integers(0, 256, (30, 1, 5, 4), np.uint8), np.arange(30) % 3
    size = x.mean((1, 2, 3), dtype=np.float32) / 99
    np.savez("own.npz", x=x, kind=kind, size=size)
    result = run("train", "net.py:heads", "--dataset", "own.npz", "--epochs", 1, "--output", "heads.h5")
    assert result.status == 0, result.err
    model = bn.load("heads.h5")
    said = model.predict(x)
    scores, values = _softmax(said["kind"]), said["size"]
    lines = run("predict", "heads.h5", "own.npz", "--top", 2).out.splitlines()
    assert len(lines) == 30
    best = np.argsort(-scores[7])
    assert lines[7] == (
        f"own.npz[7]   kind: {best[0]} {scores[7, best[0]]:.4f}  {best[1]} {scores[7, best[1]]:.4f}  "
        f"size: {values[7, 0]:.4g}"
    )
    image.fromarray(x[7, 0]).save("seven.png")
    result = run("predict", "heads.h5", "seven.png", "--csv", "o.csv", "--json", "o.json")
    assert result.status == 0, result.err
    with Path("o.csv").open(newline="") as file:
        header, row = csv.reader(file)
    assert header == ["file", "kind class", "kind 0", "kind 1", "kind 2", "size 0"]
    assert row[:2] == ["seven.png", str(best[0])]
    np.testing.assert_allclose([float(cell) for cell in row[2:]], [*scores[7], values[7, 0]], rtol=1e-4)
    (row,) = json.loads(Path("o.json").read_text())
    assert row["file"] == "seven.png"
    assert row["said"]["kind"]["class"] == str(best[0])
    np.testing.assert_allclose([*row["said"]["kind"]["scores"].values()], scores[7], rtol=1e-4)
    np.testing.assert_allclose(row["said"]["size"]["outputs"], values[7], rtol=1e-4)


def _softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


def test_init_from_takes_layers_of_the_same_names(run, named, file) -> None:
    assert run("train", named, "--dataset", "pairs.npz", "--epochs", 1, "--output", "one.h5").status == 0
    options = ["--init-from", "one.h5", "--freeze-until", "seen", "--epochs", 1, "--output", "two_more.h5"]
    result = run("train", named, "--dataset", "pairs.npz", *options)
    assert result.status == 0, result.err
    assert "init    weights of one.h5; new: nothing\nfrozen  76 of " in result.err
    one, two = bn.load("one.h5").weights, bn.load("two_more.h5").weights
    np.testing.assert_array_equal(one["seen/weight"], two["seen/weight"])
    assert not np.array_equal(one["classes/weight"], two["classes/weight"])


def test_plan_tune_and_show(run, named, file) -> None:
    assert run("plan", "two.h5", "--batch-size", 8).out.count("\ntotal ") == 1
    Path("one.py").write_text(
        NET.replace("input_shape, classes)", "input_shape={'x': (1, 5, 4)}, classes={'kind': 3})")
    )
    result = run("plan", "one.py:heads", "--batch-size", 8)  # An output of one unit is no class.
    assert result.out.count("\ntotal ") == 1, result.err
    result = run("tune", "two.h5", "--level", "none", "--batch-size", 8)
    assert result.status == 0, result.err
    assert "forward 2x6x5:4k3p1 batch 8" in result.out
    pytest.importorskip("matplotlib")
    result = run("show", "two.h5", "--dataset", "pairs.npz", "--count", 8)
    assert (result.status, result.err) == (0, "saved two-layers.png\n")
    spreads = {line.split()[0] for line in result.out.splitlines() if line}
    assert {"classes", "values"} <= spreads


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "net.py:net", "--dataset", "digits"],
         "net.py:net: a function that takes shapes or classes by name needs a file with an array for each input and "
         "output. Received arguments=input_shape. Hint: give these arguments defaults, where it must do without."),
        (["train", "unet_1d", "--dataset", "lines.npz"],
         "lines: a model with several inputs or outputs takes a file with an array for each of them, of its name. "
         "Received inputs=sequence, condition, outputs=noise. Hint: numpy.savez(file, sequence=..., condition=..., "),
        (["train", "net.py:plain", "--dataset", "pairs.npz"],
         "pairs.npz: there must be an array for each input and each output of the model, of its name. Received "
         "missing=input_1, dense_1, found=image, state, mask, value, inputs=input_1, outputs=dense_1. "
         "Hint: a single input may be called x, and a single output y."),
        (["train", "net.py:net", "--dataset", "less.npz"], "less.npz: there must be an array for each input and each "
         "output of the model, of its name. Received missing=value, found=image, state, mask, inputs="),
        (["train", "net.py:net", "--dataset", "short.npz"],
         "short.npz: all arrays must have the same number of samples. Received samples=image 40, state 39, mask 40, "),
        (["train", "net.py:net", "--dataset", "half.npz"],
         "half.npz (test): there must be an array for each input and each output of the model, of its name. Received "
         "missing=state, value, found=image, mask, inputs=image, state, outputs=mask, value. Hint: a name that "
         "ends in _test or _testing is of this split."),
        (["train", "net.py:net", "--dataset", "other.npz"], "other.npz, image: the arrays of all splits must have "
         "samples of the same kind. Received train=float32 (40, 2, 6, 5), other=float32 (17, 2, 6, 4)."),
        (["train", "net.py:net", "--dataset", "nan.npz"], "nan.npz['state']: x must hold finite float32 values."),
        (["train", "net.py:net", "--dataset", "beyond.npz"],
         "beyond (test)['mask']: class numbers must be below 3. Received sample=(0, 0, 0), label=3."),
        (["train", "net.py:net", "--dataset", "pairs.npz", "--augment", "flip"],
         "--augment: in front of a colon there must be the input of the model whose samples change. Received "
         "flip, inputs=image, state. Hint: --augment image:flip, for example."),
        (["train", "net.py:net", "--dataset", "pairs.npz", "--augment", "image:flip,mixup"],
         "--augment: samples can be mixed where the network has one input. Received augment=Mixup(alpha=0.2, "
         "probability=1.0), inputs=image, state. Hint: leave Mixup and CutMix out."),
        (["train", "net.py:net", "--dataset", "pairs.npz", "--augment", "state:crop=1"],
         "RandomCrop: the model's input must have a width. Received input=(3)"),
        (["train", "net.py:net", "--dataset", "pairs.npz", "--loss", "focal"],
         "--loss: with several outputs it must say whose loss it is. Received loss=focal. "
         "Hint: --loss mask=focal,value=focal"),
        (["train", "net.py:net", "--dataset", "pairs.npz", "--loss", "mash=focal"],
         "--loss: each name must be that of an output of the model. Received name=mash, outputs=mask, value. "
         "Hint: did you mean 'mask'?"),
        (["train", "net.py:net", "--dataset", "pairs.npz", "--loss", "value=dice"],
         "--loss: the labels value must be whole numbers, the classes. Received loss=dice, dtype=float32."),
        (["train", "net.py:heads", "--dataset", "whole.npz"],
         "whole, size: whole numbers are classes, which take an output of at least 2 units. Received output=(1), "
         "dtype=int64. Hint: targets must be of a float type: y.astype(numpy.float32)"),
        (["train", "net.py:net", "--dataset", "pairs.npz", "--loss-weights", "mash=1"],
         "loss_weights: each name must be that of an output of the model. Received name=mash"),
        (["train", "lenet5", "--dataset", "digits", "--loss-weights", "logits=1"],
         "--loss-weights: the model must have several outputs. Received outputs=logits."),
        (["train", "lenet5", "--dataset", "digits", "--loss", "logits=focal"],
         "--loss: losses go by the names of outputs where the arrays of a data set do."),
        (["train", "net.py:net", "--dataset", "pairs.npz", "--classes", 4],
         "--classes: only a model with one input and one output, for a data set with x and y, is made for so many "),
        (["train", "--init-from", "two.h5", "--dataset", "pairs.npz"],
         "--init-from: without MODEL it makes a new last layer, which a data set with x and y is needed for. Received "
         "file=two.h5, data=pairs. Hint: give MODEL too"),
        (["evaluate", "two.h5", "--dataset", "digits"], "digits: a model with several inputs or outputs takes a file"),
        (["evaluate", "two.h5", "--dataset", "pairs.npz", "--mistakes", "m.png"],
         "--mistakes: samples are drawn where there is one input and one output, for a data set with x and y."),
        (["predict", "two.h5", "net.py", "--npz", "o.npz"],
         "net.py: for a model with several inputs it must be a .npz or an HDF5 file, or a folder of .npy files. "
         "Received inputs=image, state. Hint: it holds an array for each input, of its name."),
        (["predict", "two.h5", "pairs.npz", "--masks", "out"], "--masks: the model must have one output. Received "
         "outputs=mask, value."),
        (["predict", "two.h5", "pairs.npz", "--npz", "a.npz", "--csv", "a.csv"], "--csv: it goes without --npz."),
        (["show", "pairs.npz"], "pairs.npz: it must hold the arrays x and y. Received found=['image', 'state', 'mask', "
         "'value', 'image_test', 'state_test', 'mask_test', 'value_test']. Hint: arrays that are called after the"),
    ],
)  # fmt: skip
def test_what_does_not_go_is_said(run, file, arguments, message) -> None:
    whole = arrays()
    np.savez("whole.npz", x=np.ones((40, 1, 5, 4)), kind=np.arange(40) % 3, size=np.arange(40))
    np.savez("lines.npz", x=np.ones((40, 2, 16)), y=np.ones((40, 2, 16)))
    np.savez("less.npz", **{name: values for name, values in whole.items() if name != "value"})
    np.savez("short.npz", **{**whole, "state": whole["state"][1:]})
    np.savez("half.npz", **whole, image_test=whole["image"], mask_test=whole["mask"])
    tested = arrays(17, 2, "_test")
    np.savez("other.npz", **whole, **{**tested, "image_test": tested["image_test"][..., 1:]})
    np.savez("nan.npz", **{**whole, "state": whole["state"] + np.where(np.arange(3) == 1, np.nan, 0)})
    np.savez("beyond.npz", **whole, **{**tested, "mask_test": tested["mask_test"] * 0 + 3})
    result = run(*arguments)
    assert (result.status, result.out) == (1, "0 samples; saved o.npz\n" if "o.npz" in arguments else "")
    assert f"error: {message}" in result.err, result.err
    assert "Traceback" not in result.err
    assert not Path("net.h5").exists()


@pytest.mark.parametrize("text", ["dise", "mask=dise", "mask=", "=dice", "mask=dice;value=huber"])
def test_losses_that_are_none(run, text) -> None:
    result = run("train", "lenet5", "--dataset", "digits", "--loss", text)
    assert result.status == 2
    assert "argument --loss: it must be " in result.err
    assert ("mean-squared-error (mse, l2), " in result.err) == (text in ("dise", "mask=dise", "mask=dice;value=huber"))


def test_endings_are_names_where_there_is_no_split(run) -> None:
    """``drive_test`` alone is an array of that name."""
    values = np.ones((4, 2), np.float32)
    np.savez("odd.npz", drive_test=values, y_val=values, kind=np.arange(4))
    found = read_named(Path("odd.npz"))
    assert found.shapes == {"drive_test": (2,), "y_val": (2,), "kind": ()}
    assert found.classes == {"kind": 4}
    split = found.dataset(["drive_test"], ["kind"]).train
    assert (list(split.x), list(split.y), len(split)) == (["drive_test"], ["kind"], 4)
    np.savez("one_hot.npz", a=values, kind=np.eye(4))
    np.testing.assert_array_equal(read_named(Path("one_hot.npz")).dataset(["a"], ["kind"]).train.y["kind"], range(4))
    np.savez("plain.npz", x=values, y=np.arange(4), other=values)
    assert read_named(Path("plain.npz")) is None
    np.savez("texts.npz", a=np.array(["one", "two"]), b=np.arange(2))
    run_on = read_named(Path("texts.npz")).dataset(["a"], ["b"]).train.x["a"]
    with pytest.raises(DataError, match=r"texts: x must hold real numbers"):
        source.source_of(run_on, "texts")


def test_numbers_for_an_embedding_stay_as_they_are(run) -> None:
    """Train, lr-find and show take no statistics of them, and the network learns which number comes first."""
    text = """
import blobnet as bn
from blobnet import layers

def words(input_shape=(4,), classes=6):
    behind = [layers.Embedding(6, 8), layers.Flatten(), layers.Dense(classes)]
    return bn.Sequential([layers.Input(*input_shape), *behind])
"""
    Path("words.py").write_text(text)
    x = np.random.default_rng(0).integers(0, 6, (200, 4)).astype(np.float32)
    np.savez("words.npz", x=x, y=x[:, 0].astype(np.int64))
    data = ["words.py:words", "--dataset", "words.npz"]
    trained = run("train", *data, "--epochs", 20, "--learning-rate", "0.05", "--output", "words.h5")
    assert trained.status == 0, trained.err
    assert "normalised" not in trained.err
    model = bn.load("words.h5")
    assert (model.weights["input_1/mean"] == 0).all()
    assert (model.predict(x).argmax(axis=1) == x[:, 0]).mean() > 0.99
    for command in (["lr-find", *data, "--steps", 60], ["show", *data, "--plot", "words.png"]):
        done = run(*command)
        assert done.status == 0, done.err
