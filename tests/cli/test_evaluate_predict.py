"""``blobnet evaluate``, ``predict`` and ``inspect``: reading a model file."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import blobnet as bn
from blobnet.files import checkpoint

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
    split = bn.datasets.load("digits").test
    measured = bn.load(trained).evaluate(split.x, split.y)
    expected = [measured[name] for name in ("loss", "accuracy", "top_5")]
    names, values = zip(*(line.split() for line in result.out.splitlines()), strict=True)
    assert names == ("loss", "accuracy", "top-5")
    np.testing.assert_allclose([float(value) for value in values], expected, atol=6e-5)
    assert (result.status, result.err) == (0, "digits, 360 test samples\n")
    assert len({line.index(".") for line in result.out.splitlines()}) == 1


def test_views_are_averaged(run, trained) -> None:
    data, model = bn.datasets.load("digits").test, bn.load(trained)
    result = run("evaluate", trained, "--dataset", "digits", "--tta", "flip", "--report")
    wanted = model.evaluate(data.x, data.y, tta="flip")
    assert f"loss      {wanted['loss']:.4f}\naccuracy  {wanted['accuracy']:.4f}\n" in result.out, result.err
    assert wanted["loss"] != pytest.approx(model.evaluate(data.x, data.y)["loss"], abs=1e-3)
    np.savez("some.npz", x=data.x[:5])
    assert run("predict", trained, "some.npz", "--tta", "flip,shift=1", "--json", "said.json").status == 0
    said = [list(row["scores"].values()) for row in json.loads(Path("said.json").read_text(encoding="utf-8"))]
    np.testing.assert_allclose(said, model.predict_proba(data.x[:5], tta="flip,shift=1"), atol=1e-5)
    refused = run("predict", trained, "some.npz", "--tta", "turn")
    assert "tta: every word must be that of a view. Received word='turn'." in refused.err


def test_evaluate_says_what_is_measured(run, trained) -> None:
    data = bn.datasets.load("digits").test
    np.savez("own.npz", x=data.x, y=data.y, class_names=np.array([f"digit {name}" for name in NAMES]))
    result = run("evaluate", trained, "--dataset", "own.npz")
    assert result.err == (
        "note: the classes of own are digit 0, digit 1, digit 2, ...; those of the model are 0, 1, 2, ...; "
        "they are compared by their numbers\n"
        "own, 360 samples, all that there are: the data set has no test split, and the model may have been trained on "
        "them\n"
    )
    assert result.out == run("evaluate", trained, "--dataset", "digits").out


def test_measures_on_what_was_held_out(run, net) -> None:
    """By the seed and the number of samples in the file, where its normalization shows that these are the samples."""
    rng = np.random.default_rng(5)
    x, y = rng.random((90, 1, 8, 8), np.float32), rng.integers(0, 3, 90)
    names, without = np.array(list("abc")), "the data set has no test split"
    np.savez("own.npz", x=x, y=y, class_names=names)
    np.savez("other.npz", x=x + 1, y=y, class_names=names)
    np.savez("val.npz", x=x, y=y, x_val=x[:40], y_val=y[:40], class_names=names)
    settings = ["--epochs", 1, "--seed", 7, "--output"]
    assert run("train", net, "--dataset", "own.npz", "--validation-fraction", 0.2, *settings, "part.h5").status == 0
    assert run("train", net, "--dataset", "val.npz", *settings, "all.h5").status == 0
    order = np.random.default_rng(7).permutation(90)
    everything = f"all that there are: {without}, and the model may have been trained on them"
    for model, data, what, rows in (
        ("part", "own", f"18 samples that were held out of the training: {without}", order[:18]),
        ("part", "other", f"90 samples, {everything}", range(90)),
        ("all", "own", f"90 samples, all of which the model was trained on: {without}", range(90)),
        ("all", "val", f"40 validation samples: {without}", range(40)),
    ):
        result = run("evaluate", f"{model}.h5", "--dataset", f"{data}.npz")
        assert result.err == f"{data}, {what}\n"
        chosen = np.asarray(rows)
        measured = bn.load(f"{model}.h5").evaluate(x[chosen] + (data == "other"), y[chosen])
        assert f"loss      {measured['loss']:.4f}\naccuracy  {measured['accuracy']:.4f}\n" in result.out


@pytest.mark.parametrize("named", [(), ("ground", "cat", "dog")])
def test_class_numbers_keep_their_meaning(run, named: tuple[str, ...]) -> None:
    """Labels 1 and 2 of a table are classes 1 and 2 of a model that does not have them as names."""
    image = pytest.importorskip("PIL.Image")
    for label in range(3):
        image.fromarray(np.full((4, 4), 100 * label, np.uint8)).save(f"{label}.png")
    model = bn.Sequential([bn.layers.Input(1, 4, 4), bn.layers.Flatten(), bn.layers.Dense(3)], class_names=named)
    dense = next(name.rpartition("/")[0] for name in model.weights if name.endswith("weight"))
    slopes = np.array([-1, 0, 1], np.float32)  # The likeliest class is that of the gray.
    model.set_weights({f"{dense}/weight": np.repeat(slopes[:, None], 16, axis=1), f"{dense}/bias": 0 * slopes})
    model.set_normalization([100], [1])
    model.save("own.h5")
    Path("own.csv").write_text("path,label\n0.png,0\n2.png,2\n2.png,2\n", encoding="utf-8")
    Path("some.csv").write_text("path,label\n2.png,2\n2.png,2\n", encoding="utf-8")
    Path("far.csv").write_text("path,label\n2.png,3\n2.png,2\n", encoding="utf-8")
    for table in ("own", "some"):
        result = run("evaluate", "own.h5", "--dataset", f"{table}.csv")
        assert "accuracy  1.0000" in result.out, result.err
        assert ("compared by their numbers" in result.err) == bool(named)
    result = run("evaluate", "own.h5", "--dataset", "far.csv")
    assert "error: far: its classes must have the names of the model's" in result.err or named


@pytest.mark.parametrize("stored", [False, True])
def test_classes_are_those_of_the_same_names(run, trained, monkeypatch, stored: bool) -> None:
    split = bn.datasets.load("digits").test
    named = np.isin(split.y, (8, 3, 5))
    x, y = split.x[named], split.y[named]
    names = np.array(["8", "3", "5"])
    np.savez("some.npz", x=x, y=np.argmax(y[:, None] == [8, 3, 5], axis=1).astype(np.uint8), class_names=names)
    if stored:
        monkeypatch.setattr("blobnet.datasets.user_data.KEPT_BYTES", 0)
    model = bn.load(trained)
    measured = model.evaluate(x, y)
    result = run("evaluate", trained, "--dataset", "some.npz", "--report")
    loss, accuracy, _, _, *table = result.out.splitlines()
    assert float(loss.split()[1]) == pytest.approx(measured["loss"], abs=6e-5)
    assert float(accuracy.split()[1]) == pytest.approx(measured["accuracy"], abs=6e-5)
    assert "\n".join(table) == str(model.report(x, y))
    assert (
        result.err == f"some, {len(x)} samples, all that there are: the data set has no test split, "
        "and the model may have been trained on them\n"
    )


def test_classes_of_which_some_are_the_models_are_refused(run, trained) -> None:
    np.savez("some.npz", x=np.zeros((2, 1, 8, 8)), y=np.array([0, 1]), class_names=np.array(["3", "ten"]))
    result = run("evaluate", trained, "--dataset", "some.npz")
    assert (result.status, result.out) == (1, "")
    assert result.err == (
        "error: some: its classes must have the names of the model's, or all of them other names. "
        "Received foreign=ten, model=0, 1, 2, ....\n"
    )


def test_report_and_matrix(run, trained) -> None:
    image = pytest.importorskip("PIL.Image")
    result = run("evaluate", trained, "--dataset", "digits", "--report", "--matrix", "matrix.png")
    assert result.status == 0, result.err
    split, model = bn.datasets.load("digits").test, bn.load(trained)
    report = model.report(split.x, split.y)
    loss, accuracy, top_5, empty, *table = result.out.splitlines()
    assert (accuracy.split()[0], top_5.split()[0], empty) == ("accuracy", "top-5", "")
    assert loss.startswith("loss ")
    assert "\n".join(table) == str(report)
    assert np.trace(report.matrix) / 360 == pytest.approx(float(accuracy.split()[1]), abs=1e-4)
    assert report.matrix.sum(axis=1).tolist() == np.bincount(split.y).tolist()
    with image.open("matrix.png") as picture:
        assert min(picture.size) >= 500
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)
    # Much of the diagonal is dark blue, and what is not in it nearly white.
    assert (np.abs(pixels - (8, 48, 107)).sum(axis=1) < 60).mean() > 0.02
    refused = run("evaluate", trained, "--dataset", "digits", "--matrix", "matrix.jpg")
    assert refused.err.startswith("error: --matrix: the file's name must end in .png, .pdf or .svg.")


def test_mistakes(run, trained) -> None:
    image = pytest.importorskip("PIL.Image")
    result = run("evaluate", trained, "--dataset", "digits", "--mistakes", "worst.png")
    assert (result.status, result.err) == (0, "digits, 360 test samples\nsaved worst.png\n")
    assert result.out == run("evaluate", trained, "--dataset", "digits").out
    with image.open("worst.png") as picture:
        assert min(picture.size) > 400
    refused = run("evaluate", trained, "--dataset", "digits", "--mistakes", "worst.bmp")
    assert refused.err.startswith("error: --mistakes: the file's name must end in .png, .pdf or .svg.")
    split, model = bn.datasets.load("digits").test, bn.load(trained)
    right = model.predict(split.x).argmax(axis=1)
    np.savez("right.npz", x=split.x, y=right, class_names=np.array(NAMES))
    result = run("evaluate", trained, "--dataset", "right.npz", "--mistakes", "none.png")
    assert (result.status, result.err.splitlines()[-1]) == (0, "no mistakes, none.png is not drawn")
    assert not Path("none.png").exists()


def test_a_matrix_needs_classes_and_a_report_does_not(run) -> None:
    y = np.random.default_rng(1).normal(size=(20, 2)).astype(np.float32)
    np.savez("targets.npz", x=np.zeros((20, 1, 8, 8), np.float32), y=y)
    layers = [bn.layers.Input(1, 8, 8), bn.layers.Flatten(), bn.layers.Dense(2)]
    bn.Sequential(layers).save("own.h5")
    result = run("evaluate", "own.h5", "--dataset", "targets.npz", "--metrics", "mae,rmse", "--report")
    lines = [line.split() for line in result.out.splitlines()]
    assert [line[0] for line in lines[:3]] == ["loss", "mae", "rmse"]
    assert float(lines[1][1]) == pytest.approx(np.abs(y).mean(), abs=6e-5)
    assert lines[4] == ["number", "MAE", "RMSE", "bias", "R2", "samples"]
    assert float(lines[5][1]) == pytest.approx(np.abs(y[:, 0]).mean(), abs=6e-5)
    refused = run("evaluate", "own.h5", "--dataset", "targets.npz", "--matrix", "m.png")
    assert refused.err.splitlines()[-1] == (
        "error: --matrix: it draws which class was taken for which, of a loss of classes. "
        "Received loss=MeanSquaredError()."
    )
    unknown = run("evaluate", "own.h5", "--dataset", "targets.npz", "--metrics", "mae,iuo")
    assert "Received metric=iuo. Hint: did you mean 'iou'?" in unknown.err


@pytest.fixture
def pictures() -> Path:
    """Pictures with bars of colours, and tables of which they have and how far a gray one reaches; after ``run``."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    has, reach = rng.random((80, 3)) < 0.5, rng.integers(2, 15, 80)
    names = np.array(["red", "green", "blue"])
    rows = {"tags": ["path,label,split"], "ages": ["path,age,height,split"], "turned": ["path,height,age"]}
    for n in range(80):
        picture = rng.normal(40, 15, (16, 16, 3))
        for unit in np.flatnonzero(has[n]):
            picture[4 * unit : 4 * unit + 4, :8, unit] += 180
        picture[: reach[n], 8:] += 120
        image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(f"{n}.png")
        split = "test" if n % 4 == 0 else "train"
        rows["tags"].append(f"{n}.png,{'|'.join(names[has[n]])},{split}")
        rows["ages"].append(f"{n}.png,{5 * reach[n]},{reach[n] / 8},{split}")
        rows["turned"] += [f"{n}.png,{reach[n] / 8},{5 * reach[n]}"] if split == "test" else []
    for name, lines in rows.items():
        Path(f"{name}.csv").write_text("\n".join(lines))
    return Path()


def test_several_labels_of_pictures(run, pictures) -> None:
    options = ["--epochs", 8, "--batch-size", 12, "--learning-rate", 0.01, "--workers", 0]
    result = run("train", "resnet8", "--dataset", "tags.csv", "--output", "net.h5", *options)
    assert re.search(r"test loss \S+ \(average_precision (\S+), f1 \S+\) after 8 epochs", result.out)
    model, data = bn.load("net.h5"), bn.datasets.load("tags.csv")
    assert (model.class_names, model.loss) == (("blue", "green", "red"), bn.losses.BinaryCrossEntropy())
    found = run("evaluate", "net.h5", "--dataset", "tags.csv", "--report", "--mistakes", "m.csv")
    lines = found.out.splitlines()
    measured = model.evaluate(data.test.x, data.test.y, metrics=["average_precision", "f1"])
    assert measured["average_precision"] > 0.9  # It has learnt the colours.
    for line, (name, value) in zip(lines, measured.items(), strict=False):
        assert line.split() == [name, f"{value:.4f}"]
    assert found.out.endswith(f"\n{model.report(data.test.x, data.test.y)}\n")
    scores = 1 / (1 + np.exp(-model.predict(data.test.x[:2]).astype(np.float64)))
    said = [[name for name, score in zip(model.class_names, own, strict=True) if score > 0.5] for own in scores]
    printed = run("predict", "net.h5", "0.png", "4.png").out.splitlines()
    for line, own in zip(printed, said, strict=True):
        assert {word for word in line.split() if word in model.class_names} >= set(own)
    assert run("predict", "net.h5", "0.png", "4.png", "--csv", "a.csv", "--json", "a.json").status == 0
    rows = list(csv.DictReader(Path("a.csv").read_text().splitlines()))
    assert [row["labels"] for row in rows] == ["|".join(own) for own in said]
    assert [answer["labels"] for answer in json.loads(Path("a.json").read_text())] == said
    np.testing.assert_allclose([[float(row[name]) for name in model.class_names] for row in rows], scores, rtol=1e-5)
    # A table of some of the labels, in which no picture has several, is one of labels all the same.
    Path("some.csv").write_text("path,label\n0.png,green\n4.png,red\n")
    assert run("evaluate", "net.h5", "--dataset", "some.csv").out.startswith("loss ")
    Path("other.csv").write_text("path,label\n0.png,green|pink\n")
    refused = run("evaluate", "net.h5", "--dataset", "other.csv")
    assert refused.err.endswith(
        "error: other: its labels must have the names of the model's. "
        "Received labels=green, pink, model=blue, green, red.\n"
    )


def test_numbers_of_pictures(run, pictures) -> None:
    options = ["--epochs", 8, "--batch-size", 12, "--learning-rate", 0.01, "--workers", 0]
    result = run("train", "resnet8", "--dataset", "ages.csv", "--output", "net.h5", *options)
    assert re.search(r"test loss \S+ \(mae \S+, r2 \S+\) after 8 epochs", result.out)
    model, data = bn.load("net.h5"), bn.datasets.load("ages.csv")
    assert (model.class_names, model.loss) == (("age", "height"), bn.losses.MeanSquaredError())
    # It began at the means: without them an age of 40 would be out of reach of so few steps.
    assert model.report(data.test.x, data.test.y).r2[0] > 0
    # The same numbers in another order are told apart by their names.
    turned = run("evaluate", "net.h5", "--dataset", "turned.csv", "--mistakes", "m.csv", "--mistakes", "m.png")
    assert turned.out == run("evaluate", "net.h5", "--dataset", "ages.csv").out
    row = next(csv.DictReader(Path("m.csv").read_text().splitlines()))
    number = int(Path(row["file"]).stem)
    output = model.predict(data.test.x[number // 4 : number // 4 + 1])[0]
    assert float(row["truth age"]) == data.test.y[number // 4, 0]
    np.testing.assert_allclose([float(row["said age"]), float(row["said height"])], output, rtol=1e-4)
    age, height = output
    assert run("predict", "net.h5", f"{number}.png").out == f"{number}.png  age {age:.4g}  height {height:.4g}\n"
    Path("less.csv").write_text("path,height\n0.png,0.5\n4.png,1\n")
    refused = run("evaluate", "net.h5", "--dataset", "less.csv")
    assert refused.err.endswith(
        "error: less: its numbers must have the names of the model's. Received labels=height, model=age, height. "
        "Hint: --columns age,height, say, names the columns of a CSV file.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.h5", "--dataset", "digits"], "no.h5: there must be such a file."),
        (["wide.npz", "--dataset", "digits"], "wide.npz: a model file must be HDF5, but this is a zip archive"),
        (["{trained}", "--dataset", "wide.npz"], "wide: each sample must have the shape of the model's input. "
                                                 "Received sample=(1, 8, 9), input=(1, 8, 8).\n"),
        (["{trained}", "--dataset", "many.npz"], "class numbers must be below 10"),
        (["{trained}", "--dataset", "digit"], "data set: it must be a known name, or the path of a file or folder."),
        (["{trained}", "--dataset", "digits", "--device", "zzz"], "device: the device must be one that OpenCL lists"),
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


def test_predict_folders_to_files(run, trained, images) -> None:
    for number, name in enumerate(images):
        target = Path("pictures") / "ab"[number % 2] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(name).rename(target)
    Path("pictures/notes.txt").write_text("no picture")
    Path("pictures/.hidden.npy").write_text("no picture")
    files = ["pictures/a/digit.npy", "pictures/a/xxdigit.npy", "pictures/b/xdigit.npy"]
    scores = softmax(bn.load(trained).predict(bn.datasets.load("digits").test.x[[0, 2, 1]]))
    printed = run("predict", trained, "pictures").out.splitlines()
    assert [line.split()[0] for line in printed] == files
    result = run("predict", trained, "pictures", "none.png", "--csv", "a.csv", "--json", "a.json")
    assert (result.status, result.out) == (1, "3 pictures; saved a.csv and a.json\n")
    assert result.err == "warning: pictures: left out: 1 .txt.\nerror: none.png: there must be such a file.\n"
    rows = list(csv.DictReader(Path("a.csv").read_text().splitlines()))
    answers = json.loads(Path("a.json").read_text())
    assert [row["file"] for row in rows] == [answer["file"] for answer in answers] == files
    for row, answer, expected in zip(rows, answers, scores, strict=True):
        assert row["class"] == answer["class"] == str(expected.argmax())
        assert list(answer["scores"]) == list(NAMES)
        np.testing.assert_allclose([float(row[name]) for name in NAMES], expected, rtol=1e-6)
        np.testing.assert_allclose(list(answer["scores"].values()), expected, rtol=1e-6)
    Path("empty").mkdir()
    Path("empty/a.txt").write_text("no picture")
    assert run("predict", trained, "empty").err == (
        "error: empty: the folder must hold pictures. Received left_out=1 .txt.\n"
    )
    same = run("predict", trained, "pictures", "--csv", "a.csv", "--json", "./a.csv")
    assert same.err == "error: --json: it must name a file of its own. Received file=a.csv.\n"
    assert "no/a.csv: the folder of the file must exist" in run("predict", trained, "pictures", "--csv", "no/a.csv").err


def test_outputs_that_are_no_classes_in_files(run, images) -> None:
    layers = [bn.layers.Input(1, 8, 8), bn.layers.Flatten(), bn.layers.Dense(2)]
    model = bn.Sequential(layers)
    model.loss = bn.losses.MeanSquaredError()
    model.save("own.h5")
    values = model.predict(np.load(images[0])[None])[0]
    assert run("predict", "own.h5", images[0], "--csv", "a.csv", "--json", "a.json").status == 0
    header, row = csv.reader(Path("a.csv").read_text().splitlines())
    assert header == ["file", "0", "1"]
    np.testing.assert_allclose([float(value) for value in row[1:]], values, rtol=1e-6)
    (answer,) = json.loads(Path("a.json").read_text())
    assert answer == {"file": images[0], "outputs": [float(value) for value in values]}


def test_predict_top(run, trained, images) -> None:
    scores = softmax(bn.load(trained).predict(bn.datasets.load("digits").test.x[:1]))[0]
    best = np.argsort(-scores)
    pairs = [f"{unit} {scores[unit]:.4f}" for unit in best]
    assert run("predict", trained, images[0], "--top", 3).out == f"{images[0]}  {'  '.join(pairs[:3])}\n"
    assert run("predict", trained, images[0], "--top", 99).out == f"{images[0]}  {'  '.join(pairs)}\n"


def test_predict_draws_where_answers_come_from(run, trained, images) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    model, samples = bn.load(trained), bn.datasets.load("digits").test.x[:3]
    large = np.random.default_rng(0).integers(0, 256, (20, 12, 3), np.uint8)
    image.fromarray(large).save("large.png")
    np.savez("many.npz", x=samples[:2])
    plain = run("predict", trained, *images, "large.png", "many.npz")
    said = run("predict", trained, *images, "large.png", "many.npz", "--explain", "said")
    assert (said.status, said.out, said.err) == (0, plain.out, "saved said\n")
    x = np.stack([*samples, bn.datasets.read_image("large.png", (1, 8, 8)).astype(np.float32), *samples[:2]])
    maps = bn.explain.grad_cam(model, x), bn.explain.saliency(model, x)
    files = [*(Path(name).with_suffix(".png").name for name in images), "large.png", "many/0.png", "many/1.png"]
    for number, file in enumerate(files):
        whole = large.transpose(2, 0, 1) if file == "large.png" else x[number]
        drawn = [bn.explain.overlay(whole[None], own[number : number + 1])[0] for own in maps]
        np.testing.assert_allclose(np.asarray(image.open(Path("said", file))), np.concatenate(drawn, axis=1), atol=1)
    assert len(list(Path("said").rglob("*.png"))) == len(files)
    json_too = run("predict", trained, "large.png", "--json", "a.json", "--explain", "said")
    assert json_too.out == "1 picture; saved a.json and said\n"


def test_predict_draws_each_output_and_each_number(run, images) -> None:
    """As Python explains them: of classes the one that is said, of numbers every one."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    entry = bn.layers.Input(1, 8, 8)()
    flat = bn.layers.Flatten()(bn.layers.Conv2D(4, 3, activation="tanh")(entry))
    kind, size = bn.layers.Dense(3)(flat), bn.layers.Dense(2)(flat)
    model, numbers = bn.Model(entry, {"kind": kind, "size": size}, seed=1), bn.Model(entry, size, seed=2)
    model.loss = {"kind": bn.losses.CrossEntropy(), "size": bn.losses.MeanSquaredError()}
    numbers.loss = bn.losses.MeanSquaredError()
    x = np.load(images[0])[None]
    folders = {"kind": {"output": "kind"}, **{f"size/{unit}": {"output": "size", "classes": unit} for unit in range(2)}}
    for own, drawings in ((model, folders), (numbers, {f"{unit}": {"classes": unit} for unit in range(2)})):
        own.save("own.h5")
        target = Path(f"said {len(drawings)}")
        assert run("predict", "own.h5", images[0], "--npz", "a.npz", "--explain", target).status == 0
        found = {path.parent.relative_to(target).as_posix(): path for path in target.rglob("*.png")}
        assert found.keys() == drawings.keys()
        for folder, given in drawings.items():
            maps = bn.explain.grad_cam(own, x, **given), bn.explain.saliency(own, x, **given)
            wanted = np.concatenate([bn.explain.overlay(x, map_)[0] for map_ in maps], axis=1)
            np.testing.assert_allclose(np.asarray(image.open(found[folder])), wanted, atol=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--explain", "."], "--explain: each drawing must have a file of its own"),
        (["--explain", "a", "--masks", "a"], "--explain: it must name a folder of its own. Received folder=a."),
    ],
)
def test_predict_explains_into_files_of_their_own(run, trained, arguments, said) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.fromarray(np.zeros((8, 8), np.uint8)).save("zero.png")
    failed = run("predict", trained, "zero.png", *arguments)
    assert (failed.status, failed.out) == (1, "")
    assert said in failed.err


def test_predict_explains_pictures_alone(run, images) -> None:
    bn.Sequential([bn.layers.Input(8, name="in"), bn.layers.Dense(2)]).save("flat.h5")
    np.savez("flat.npz", x=np.zeros((2, 8), np.float32))
    failed = run("predict", "flat.h5", "flat.npz", "--explain", "said")
    assert failed.err == "error: --explain: the model must take pictures, and nothing else. Received inputs=in (8).\n"


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


def test_without_pillow(run, trained, monkeypatch) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("a.png", "b.png"):
        image.fromarray(np.zeros((8, 8), np.uint8)).save(name)
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = run("predict", trained, "a.png", "b.png")
    error = "error: a.png: reading or resizing pictures needs Pillow. Hint: "
    error += 'pip install "blobnet[images]" (adds to the blobnet that is installed; it is on no package index)\n'
    assert (result.status, result.err) == (1, error)


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
    ("layers", "message"),
    [
        (
            [bn.layers.Input(5), bn.layers.Dense(2)],
            "for pictures, the model must take images. Received input=(5). Hint: a .npz, HDF5 or .npy file holds other "
            "samples.",
        ),
        (
            [bn.layers.Input(1, 8, 8), bn.layers.Conv2D(2, 3)],
            "the model must give a value for each class. Received output=(2, 6, 6). Hint: --masks DIR writes the "
            "classes of an image's positions, --npz FILE all values as arrays.",
        ),
    ],
)
def test_predict_needs_a_classifier_of_images(run, images, layers, message) -> None:
    bn.Sequential(layers).save("own.h5")
    assert run("predict", "own.h5", images[0], "--csv", "a.csv").err == f"error: own.h5: {message}\n"
    assert not Path("a.csv").exists()


@pytest.mark.parametrize("kind", ["npz", "npy", "h5"])
def test_predict_files_of_samples(run, trained, images, kind, monkeypatch) -> None:
    monkeypatch.setattr("blobnet.datasets.user_data.KEPT_BYTES", 0)
    data = bn.datasets.load("digits").test
    if kind == "npz":
        np.savez("some.npz", x_train=data.x[:2, 0], y_train=data.y[:2], x_test=data.x[:, 0])  # Keras's names and axes
    elif kind == "npy":
        np.save("some.npy", data.x)
    else:
        with h5py.File("some.h5", "w") as file:
            file.create_dataset("x", data=data.x, chunks=(7, 1, 8, 8))
    scores = softmax(bn.load(trained).predict(data.x))
    Path("folder").mkdir()
    np.save("folder/x.npy", data.x[:4])
    lines = run("predict", trained, "folder").out.splitlines()
    assert [line.split()[:2] for line in lines] == [[f"folder[{n}]", str(scores[n].argmax())] for n in range(4)]
    arguments = ["predict", trained, images[1], f"some.{kind}", images[0]]
    result = run(*arguments, "--csv", "a.csv", "--json", "a.json")
    assert (result.status, result.out, result.err) == (0, "362 pictures; saved a.csv and a.json\n", "")
    names = [images[1], *(f"some.{kind}[{number}]" for number in range(360)), images[0]]
    expected = scores[[1, *range(360), 0]]
    rows, answers = list(csv.DictReader(Path("a.csv").read_text().splitlines())), json.loads(Path("a.json").read_text())
    assert [row["file"] for row in rows] == [answer["file"] for answer in answers] == names
    for found in ([[row[name] for name in NAMES] for row in rows], [list(each["scores"].values()) for each in answers]):
        np.testing.assert_allclose(np.array(found, float), expected, atol=1e-5)
    assert [row["class"] for row in rows] == [str(best) for best in expected.argmax(axis=1)]
    lines = run(*arguments).out.splitlines()
    assert [line.split()[0] for line in lines] == names
    assert len({line.index(".", line.index(" ")) for line in lines}) == 1


def test_predict_samples_of_another_shape_costs_the_others_nothing(run, trained, images) -> None:
    np.savez("wide.npz", x=np.zeros((4, 1, 8, 9), np.float32))
    np.savez("none.npz", y=np.zeros(4))
    np.save("text.npy", np.full((2, 1, 8, 8), "a"))
    result = run("predict", trained, "wide.npz", images[0], "none.npz", "text.npy")
    assert (result.status, result.out.split()[0]) == (1, images[0])
    assert result.err.splitlines() == [
        "error: wide.npz: each sample must have the shape of the model's input. Received sample=(1, 8, 9), "
        "input=(1, 8, 8).",
        "error: none.npz: it must hold the array x or x_test. Received found=['y'].",
        "error: text.npy: x must hold real numbers. Received dtype=<U1. Hint: convert it, for example with "
        "x.astype(numpy.float32)",
    ]


def test_inspect(run, trained) -> None:
    result = run("inspect", trained)
    assert (result.status, result.err, result.out) == (0, "", f"{checkpoint.inspect(trained)}\n")
    assert re.search(r"resumable +yes, after epoch 2", result.out)


def test_inspect_refuses_what_is_no_model(run) -> None:
    Path("notes.h5").write_text("just text")
    message = "error: notes.h5: a model file must be HDF5, but this is no format that blobnet knows."
    assert run("inspect", "notes.h5").err.startswith(message)
    Path("notes.onnx").write_bytes(b"\x08\x09")
    hint = "Hint: blobnet.onnx.load reads it, and so do blobnet plan and blobnet predict.\n"
    assert run("inspect", "notes.onnx").err.endswith(hint)
