"""``blobnet evaluate``, ``predict`` and ``inspect``: reading a model file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet import checkpoint

NAMES = tuple("0123456789")


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.fixture
def images() -> list[str]:
    """Some of the test digits as .npy files; asked for after ``run``, in its folder."""
    samples = bn.datasets.load("digits").test.x[:3]
    names = [f"{'x' * number}digit.npy" for number in range(3)]
    for name, sample in zip(names, samples, strict=True):
        np.save(name, sample)
    return names


def test_evaluate(run, trained) -> None:
    result = run("evaluate", trained, "--dataset", "digits", "--batch-size", 50)
    history = bn.load(trained).history
    expected = [history[f"validation_{name}"][-1] for name in ("loss", "accuracy", "top_5")]
    names, values = zip(*(line.split() for line in result.out.splitlines()), strict=True)
    assert names == ("loss", "accuracy", "top-5")
    np.testing.assert_allclose([float(value) for value in values], expected, atol=6e-5)
    assert (result.status, result.err) == (0, "digits, 360 test samples\n")
    assert len({line.index(".") for line in result.out.splitlines()}) == 1


def test_evaluate_says_what_is_measured(run, trained) -> None:
    data = bn.datasets.load("digits").test
    np.savez("own.npz", x=data.x, y=data.y, class_names=np.array([f"digit {name}" for name in NAMES]))
    result = run("evaluate", trained, "--dataset", "own.npz")
    assert result.err == (
        "note: the classes of own are digit 0, digit 1, digit 2, ...; those of the model are 0, 1, 2, ...\n"
        "own, 360 samples, all that there are: the data set has no test split\n"
    )
    assert result.out == run("evaluate", trained, "--dataset", "digits").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.h5", "--dataset", "digits"], "no.h5: there must be such a file."),
        (["wide.npz", "--dataset", "digits"], "wide.npz: a model file must be HDF5, but this is a zip archive"),
        (["{trained}", "--dataset", "wide.npz"], "wide: each sample must have the shape of the model's input. "
                                                 "Received sample=(1, 8, 9), input=(1, 8, 8).\n"),
        (["{trained}", "--dataset", "many.npz"], "class numbers must be below 10"),
        (["{trained}", "--dataset", "digit"], "data set: it must be a known name, or the path of a file or folder."),
        (["{trained}", "--dataset", "digits", "--device", "zzz"], "--device: the device must be one that OpenCL lists"),
    ],
)  # fmt: skip
def test_evaluate_errors(run, trained, arguments, message) -> None:
    np.savez("wide.npz", x=np.zeros((20, 1, 8, 9), np.float32), y=np.arange(20) % 10)
    np.savez("many.npz", x=np.zeros((20, 1, 8, 8), np.float32), y=np.arange(20))
    result = run("evaluate", *(argument.format(trained=trained) for argument in arguments))
    assert (result.status, result.out) == (1, "")
    assert "error: " in result.err
    assert message in result.err


def test_predict_prints_a_line_an_image(run, trained, images) -> None:
    scores = softmax(bn.load(trained).predict(bn.datasets.load("digits").test.x[:3]))
    expected = [f"{name:<11}  {row.argmax()} {row.max():.4f}" for name, row in zip(images, scores, strict=True)]
    result = run("predict", trained, *images)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines() == expected


def test_predict_top(run, trained, images) -> None:
    scores = softmax(bn.load(trained).predict(bn.datasets.load("digits").test.x[:1]))[0]
    best = np.argsort(-scores)
    pairs = [f"{unit} {scores[unit]:.4f}" for unit in best]
    assert run("predict", trained, images[0], "--top", 3).out == f"{images[0]}  {'  '.join(pairs[:3])}\n"
    assert run("predict", trained, images[0], "--top", 99).out == f"{images[0]}  {'  '.join(pairs)}\n"


def test_predict_reads_pictures_as_they_are(run, trained) -> None:
    image = pytest.importorskip("PIL.Image")
    sample = bn.datasets.load("digits").test.x[0, 0]
    np.save("a.npy", sample)
    image.fromarray(sample).save("a.png")
    image.fromarray(sample).convert("RGB").save("b.png")
    lines = run("predict", trained, "a.npy", "a.png", "b.png").out.splitlines()
    assert len({line.split(maxsplit=1)[1] for line in lines}) == 1


def test_a_bad_picture_does_not_cost_the_others(run, trained, images) -> None:
    np.save("two.npy", np.zeros((2, 8, 8), np.uint8))
    Path("text.png").write_text("no picture")
    result = run("predict", trained, "none.png", images[0], "two.npy", "text.png", images[1])
    assert result.status == 1
    assert [line.split()[0] for line in result.out.splitlines()] == [images[0], images[1]]
    errors = result.err.splitlines()
    assert errors[0] == "error: none.png: there must be such a file."
    assert errors[1].startswith("error: two.npy: the array must have the axes (units, height, width) with 1 units.")
    assert errors[2].startswith("error: text.png: the picture must be readable and whole.")
    assert len(errors) == 3


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (None, lambda values: f"{np.argmax(values)} {softmax(values[None]).max():.4f}"),
        (bn.losses.BinaryCrossEntropy(), lambda values: f"{np.argmax(values)} {1 / (1 + np.exp(-values.max())):.4f}"),
        (bn.losses.MeanSquaredError(), lambda values: "  ".join(f"{value:.4g}" for value in values)),
    ],
)
def test_predict_shows_what_the_outputs_are(run, images, loss, expected) -> None:
    names = NAMES if loss is None else ()
    layers = [bn.layers.Input(1, 8, 8), bn.layers.Flatten(), bn.layers.Dense(10)]
    model = bn.Sequential(layers, class_names=names)
    model.set_normalization([5.0], [6.0])
    model.loss = loss
    model.save("own.h5")
    values = model.predict(np.load(images[0])[None])[0]
    assert run("predict", "own.h5", images[0]).out == f"{images[0]}  {expected(values)}\n"


def test_predict_escapes_what_a_terminal_might_obey(run, images) -> None:
    layers = [bn.layers.Input(1, 8, 8), bn.layers.Flatten(), bn.layers.Dense(2)]
    bn.Sequential(layers, class_names=["\x1b[2J", "\x1b]0;x\x07"]).save("own.h5")
    out = run("predict", "own.h5", images[0]).out
    assert "\\x1b" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("layers", "shapes"),
    [
        ([bn.layers.Input(5), bn.layers.Dense(2)], "input=(5), output=(2)"),
        ([bn.layers.Input(1, 8, 8), bn.layers.Conv2D(2, 3)], "input=(1, 8, 8), output=(2, 6, 6)"),
    ],
)
def test_predict_needs_a_classifier_of_images(run, images, layers, shapes) -> None:
    bn.Sequential(layers).save("own.h5")
    assert run("predict", "own.h5", images[0]).err == (
        f"error: own.h5: the model must take images and give a value for each class. Received {shapes}. "
        "Hint: use Model.predict in Python.\n"
    )


def test_inspect(run, trained) -> None:
    result = run("inspect", trained)
    assert (result.status, result.err, result.out) == (0, "", f"{checkpoint.inspect(trained)}\n")
    assert re.search(r"resumable +yes, after epoch 2", result.out)


def test_inspect_refuses_what_is_no_model(run) -> None:
    Path("notes.h5").write_text("just text")
    message = "error: notes.h5: a model file must be HDF5, but this is no format that blobnet knows."
    assert run("inspect", "notes.h5").err.startswith(message)
