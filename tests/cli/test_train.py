"""``blobnet train``: what it writes and says, and what it refuses before the first epoch."""

from __future__ import annotations

import csv
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.errors import extra
from blobnet.training.folds import fold_numbers

DIGITS = ["train", "lenet5", "--dataset", "digits", "--epochs", "1"]


def arrays(path: Path, **changes: np.ndarray) -> Path:
    """A user's own data: 40 images of 2 classes."""
    random = np.random.default_rng(5)
    data = {"x": random.random((40, 1, 8, 8), np.float32), "y": np.arange(40) % 2} | changes
    np.savez(path, **data)
    return path


def test_folds(run) -> None:
    result = run(*DIGITS, "--folds", 3, "--output", "own.h5", "--metrics", "f1", "--seed", 4)
    assert result.status == 0
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == ["fold", "fold", "fold", "mean", "deviation", "saved"]
    assert lines[-1] == "saved own-fold1.h5 to own-fold3.h5"
    data = bn.datasets.load("digits")
    numbers = fold_numbers(len(data.train.y), 3, 4, data.train.y)
    found = []
    for number in range(3):
        rows = np.flatnonzero(numbers == number)
        measured = bn.load(f"own-fold{number + 1}.h5").evaluate(data.train.x[rows], data.train.y[rows], metrics=["f1"])
        assert f"accuracy {measured['accuracy']:.4f}" in lines[number]
        assert f"f1 {measured['f1']:.4f}" in lines[number]
        found.append(measured["accuracy"])
    assert f"accuracy {np.mean(found):.4f}" in lines[3]
    assert f"accuracy {np.std(found, ddof=1):.4f}" in lines[4]
    assert not Path("own.h5").exists()
    again = run(*DIGITS, "--folds", 3, "--output", "own.h5")
    assert "error: own-fold1.h5: there is such a file already" in again.err
    assert "--folds goes without --plot" in run(*DIGITS, "--folds", 3, "--plot", "a.png").err
    assert "folds must be at least 2, and at most the samples" in run(*DIGITS, "--folds", 1, "--output", "b.h5").err


def test_a_training_with_everything(run) -> None:
    files = ["--output", "a.h5", "--csv", "log.csv", "--plot", "curves.png"]
    result = run(*DIGITS, "--epochs", 3, "--validation-fraction", 0.1, *files)
    assert result.status == 0
    measured = r"accuracy (0\.\d{4}) \(loss (\d\.\d{4})\)"
    closing = re.fullmatch(rf"validation {measured}, test {measured} after 3 epochs; saved a\.h5\n", result.out)
    assert closing

    header, *rows = result.err.splitlines()[4:]
    data = "digits: 1293 + 360 samples of (1, 8, 8), 10 classes, 144 held out for validation"
    assert result.err.splitlines()[0] == f"data    {data}"
    assert result.err.splitlines()[1] == "model   lenet5, 21,386 trainable parameters"
    assert result.err.splitlines()[2].startswith("device  ")
    assert header == "epoch     time   img/s     rate    loss  accuracy  val. loss  val. accuracy"
    assert [row.split()[0] for row in rows] == ["1/3", "2/3", "3/3"]
    assert {len(row) for row in rows} == {len(header)}
    assert rows[-1].split()[-2:] == [closing[2], closing[1]]

    model, data = bn.load("a.h5"), bn.datasets.load("digits")
    mean, deviation = replace(data, train=data.train.split_validation(0.1, 0)[0]).statistics()
    np.testing.assert_array_equal(model.weights["input/mean"], mean.astype(np.float32))
    np.testing.assert_array_equal(model.weights["input/deviation"], deviation.astype(np.float32))
    assert model.class_names == data.class_names
    assert list(map(len, model.history.values())) == [3] * 6
    assert f"{model.history['validation_accuracy'][-1]:.4f}" == closing[1]
    assert f"{model.evaluate(data.test.x, data.test.y)['accuracy']:.4f}" == closing[3]
    assert model.training_state is not None
    assert model.training_state.optimizer["kind"] == "Adam"

    lines = list(csv.DictReader(Path("log.csv").read_text().splitlines()))
    assert [line["epoch"] for line in lines] == ["1", "2", "3"]
    assert [float(line["validation_loss"]) for line in lines] == model.history["validation_loss"]
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in Path().iterdir()) == ["a.h5", "curves.png", "log.csv"]


def test_the_same_command_gives_the_same_bytes(run, net) -> None:
    for name in ("a.h5", "b.h5"):
        assert run("train", net, "--dataset", "digits", "--epochs", 1, "--seed", 3, "--output", name).status == 0
    assert run("train", net, "--dataset", "digits", "--epochs", 1, "--seed", 4, "--output", "c.h5").status == 0
    assert Path("a.h5").read_bytes() == Path("b.h5").read_bytes()
    assert not np.array_equal(bn.load("a.h5").weights["dense_1/weight"], bn.load("c.h5").weights["dense_1/weight"])


def cosine(rate: float) -> dict[str, object]:
    """The schedule that training has by default."""
    return {"kind": "Cosine", "config": {"rate": rate, "warmup_epochs": 0.0, "final_rate": 0.0}}


@pytest.mark.parametrize(
    ("arguments", "kind", "expected"),
    [
        (["--optimizer", "sgd", "--momentum", "0.9", "--clip-norm", "1"], "SGD",
         {"learning_rate": cosine(0.01), "momentum": 0.9, "clip_norm": 1.0, "weight_decay": 0.0}),
        (["--optimizer", "rmsprop", "--weight-decay", "0.1"], "RMSprop",
         {"learning_rate": cosine(0.002), "weight_decay": 0.1}),
        (["--schedule", "constant"], "Adam", {"learning_rate": 0.002}),
        (["--optimizer", "adamw", "--schedule", "step"], "AdamW",
         {"weight_decay": 0.01,
          "learning_rate": {"kind": "Step", "config": {"rate": 0.002, "every_epochs": 1, "factor": 0.1}}}),
        (["--schedule", "step", "--step-epochs", "4", "--learning-rate", "0.1"], "Adam",
         {"learning_rate": {"kind": "Step", "config": {"rate": 0.1, "every_epochs": 4, "factor": 0.1}}}),
        (["--warmup-epochs", "0.5"], "Adam",
         {"learning_rate": {"kind": "Cosine", "config": {"rate": 0.002, "warmup_epochs": 0.5, "final_rate": 0.0}}}),
    ],
)  # fmt: skip
def test_options_reach_the_optimizer(run, net, arguments, kind, expected) -> None:
    result = run("train", net, "--dataset", arrays(Path("a.npz")), "--epochs", 1, *arguments)
    assert result.status == 0, result.err
    state = bn.load("net.h5").training_state
    assert state is not None
    assert state.optimizer["kind"] == kind
    assert expected.items() <= state.optimizer["config"].items()


def test_label_smoothing_and_batch_size_reach_the_trainer(run, net) -> None:
    arguments = ["--epochs", 1, "--label-smoothing", "0.2", "--batch-size", 16, "--check"]
    assert run("train", net, "--dataset", arrays(Path("a.npz")), *arguments).status == 0
    model = bn.load("net.h5")
    assert model.loss == bn.losses.CrossEntropy(0.2)
    assert model.training_state is not None
    assert model.training_state.settings == {
        "batch_size": 16,
        "accumulate": 1,
        "average": None,
        "class_weights": None,
        "frozen": [],
        "augment": [],
        "samples": 36,
        "epochs": 1,
    }
    assert model.training_state.step == 3  # 36 samples


def test_without_a_test_split_a_part_is_held_out(run, net) -> None:
    result = run("train", net, "--dataset", arrays(Path("own.npz")), "--epochs", 1, "--validation-fraction", 0.25)
    assert result.err.startswith("data    own: 30 samples of (1, 8, 8), 2 classes, 10 held out for validation\n")
    assert re.match(r"validation accuracy 0\.\d{4} \(loss \d\.\d{4}\) after 1 epoch; saved net\.h5\n", result.out)


def test_targets_are_trained_with_the_squared_error(run) -> None:
    data = arrays(Path("targets.npz"), y=np.linspace(0, 1, 120, dtype=np.float32).reshape(40, 3))
    result = run("train", "lenet5", "--dataset", data, "--epochs", 1)
    assert re.fullmatch(r"validation loss \d\.\d{4} after 1 epoch; saved lenet5\.h5\n", result.out)
    assert result.err.splitlines()[5].split() == ["epoch", "time", "img/s", "rate", "loss", "val.", "loss"]
    assert bn.load("lenet5.h5").graph.output.shape.dimensions == (3,)
    measured = run("evaluate", "lenet5.h5", "--dataset", data)
    assert re.fullmatch(r"loss      \d\.\d{4}\n", measured.out)
    refused = run("train", "lenet5", "--dataset", data, "--overwrite", "--label-smoothing", 0.1)
    assert "error: --label-smoothing: the data set must have classes, not targets. Received data=" in refused.err


def test_targets_that_look_like_classes_are_pointed_out(run) -> None:
    data = arrays(Path("floats.npz"), y=(np.arange(40) % 2).astype(np.float32))
    note = (
        "note: the labels of floats are of the type float32, so they are targets, not classes: "
        "whole numbers of an integer type are classes\n"
    )
    options = ["train", "lenet5", "--dataset", data, "--epochs", 1, "--overwrite"]
    result = run(*options)
    assert result.err.startswith(
        f"{note}data    floats: 36 samples of (1, 8, 8), a target each, 4 held out for validation\n"
    )
    chosen = run(*options, "--loss", "mean-squared-error")
    assert (chosen.status, "note: the labels" in chosen.err) == (0, False)


def test_class_numbers_without_samples_are_pointed_out(run, net) -> None:
    data = arrays(Path("gaps.npz"), y=10 * (np.arange(40) % 2) + 1)
    result = run("train", net, "--dataset", data, "--epochs", 1)
    assert result.status == 0
    assert result.err.startswith(
        "note: gaps has no samples of some classes, which are counted from 0: 10 of 12: 0, 2, 3, ...\n"
        "data    gaps: 36 samples of (1, 8, 8), 12 classes, 4 held out for validation\n"
    )


def test_a_folder_of_pictures(run, net) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(20):
        folder = Path("pictures") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((9, 7), 10 * number, np.uint8)).save(folder / f"{number}.png")
    result = run("train", net, "--dataset", "pictures", "--image-size", "8x8", "--epochs", 1)
    assert result.err.startswith("data    pictures: 18 samples of (1, 8, 8), 2 classes, 2 held out for validation\n")
    Path("net.h5").rename("same.h5")
    assert run("train", net, "--dataset", "pictures", "--image-size", 8, "--epochs", 1).out.replace("net", "same") == (
        result.out.replace("net", "same")
    )
    image.fromarray(np.full((5, 6), 90, np.uint8)).save("pictures/a/x.png")
    for command in (["evaluate", "net.h5"], ["show", "net.h5"], ["train", "--init-from", "net.h5", "--epochs", 1]):
        assert run(*command, "--dataset", "pictures").status == 0, command
    assert bn.load("net-tuned.h5").graph.input.shape.dimensions == (1, 8, 8)
    Path("pictures/a/x.png").unlink()
    resumed = run("train", net, "--dataset", "pictures", "--epochs", 2, "--resume")
    assert (resumed.status, "(1, 8, 8)" in resumed.err) == (0, True)
    refused = run("evaluate", "net.h5", "--dataset", "pictures", "--image-size", "9x7")
    assert refused.err == (
        "error: pictures: each sample must have the shape of the model's input. Received sample=(1, 9, 7), "
        "input=(1, 8, 8). Hint: --image-size 8x8 resizes pictures to the model's size.\n"
    )


@pytest.mark.parametrize(
    ("classes", "count", "options", "notes"),
    [
        (12, 1, [], ["note: all samples of {} are held out for validation, and none is trained on",
                     "note: an epoch has 1 step: 11 samples in batches of 64; a smaller --batch-size takes more"]),
        (2, 1, [], ["note: 2 samples are too few to hold a tenth out for validation, so none are; "
                    "--validation-fraction holds out more"]),
        (2, 1, ["--save-best"], ["error: --validation-fraction: there must be samples to choose by, that are held "
                                 "out. Received samples=2. Hint: --validation-fraction 0.5, say."]),
        (2, 1, ["--save-best", "--validation-fraction", 0.5], ["note: all samples of "]),
        (2, 100, [], ["note: an epoch has 3 steps: 180 samples in batches of 64; a smaller --batch-size takes more"]),
        (2, 100, ["--batch-size", 16], []),
    ],
)  # fmt: skip
def test_few_samples(run, net, classes: int, count: int, options: list[object], notes: list[str]) -> None:
    y = np.repeat(np.arange(classes), count)
    names = np.array([f"class {number}" for number in range(classes)])
    np.savez("few.npz", x=np.random.default_rng(0).random((len(y), 1, 8, 8), np.float32), y=y, class_names=names)
    result = run("train", net, "--dataset", "few.npz", "--epochs", 1, *options)
    assert result.status == any("error" in note for note in notes), result.err
    lost = names[bn.datasets.load("few.npz").train.split_validation(0.1, 0)[1].y[0]] if classes == 12 else ""
    for note in notes:
        assert note.format(lost) in result.err
    assert result.err.count("note: ") == sum("error" not in note for note in notes)


def test_pictures_with_a_validation_folder(run, net, monkeypatch) -> None:
    """Decoded by processes while the network trains, one of them broken."""
    image = pytest.importorskip("PIL.Image")
    for number in range(24):
        folder = Path("pictures") / ("train" if number < 16 else "val") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((8, 8), 10 * number, np.uint8)).save(folder / f"{number}.png")
    Path("pictures/train/a/x.png").write_bytes(b"")
    refused = run("train", net, "--dataset", "pictures", "--epochs", 1)
    assert refused.err.startswith(
        "error: pictures: 1 of 25 pictures cannot be read. Received first=pictures/train/a/x.png"
    )
    arguments = ("train", net, "--dataset", "pictures", "--epochs", 1, "--skip-unreadable", "--overwrite")
    eager = run(*arguments)
    monkeypatch.setattr("blobnet.datasets.image_folder.KEPT_BYTES", 0)
    lazy = run(*arguments, "--workers", 2)
    for result in (eager, lazy):
        assert "pictures: 1 of 25 pictures cannot be read and are left out. Received first=" in result.err
        assert "data    pictures: 16 samples of (1, 8, 8), 2 classes, 8 held out for validation\n" in result.err
        assert "validation" in result.out
    assert eager.out == lazy.out
    refused = run(*arguments, "--validation-fraction", 0.5)
    assert "--validation-fraction: only a data set without a validation split can hold one out." in refused.err


def test_early_stopping_keeps_the_best_epoch(run, net) -> None:
    arguments = ["train", net, "--dataset", "digits", "--learning-rate", 0.1, "--schedule", "constant"]
    result = run(*arguments, "--epochs", 50, "--early-stopping", 2, "--output", "stopped.h5", "--csv", "log.csv")
    history = [float(line["validation_loss"]) for line in csv.DictReader(Path("log.csv").read_text().splitlines())]
    best = int(np.argmin(history)) + 1
    assert len(history) == best + 2 < 50
    assert f"stopped early: validation_loss has not become better than {min(history):.4f} for 2 epochs" in result.err
    assert f" after {best} epoch{'s' * (best > 1)}; saved stopped.h5\n" in result.out
    # The file is the one that a training of so many epochs leaves.
    plain = ["--validation-fraction", 0.1, "--output", "plain.h5"]
    assert run(*arguments, "--epochs", best, *plain).status == 0
    assert Path("stopped.h5").read_bytes() == Path("plain.h5").read_bytes()
    # A resumed training finds the same best epoch.
    assert run(*arguments, "--epochs", 50, "--early-stopping", 2, "--output", "stopped.h5", "--resume").status == 0
    assert Path("stopped.h5").read_bytes() == Path("plain.h5").read_bytes()


def test_the_test_split_is_looked_at_once_at_the_end(run, net, monkeypatch) -> None:
    """What is chosen is chosen by samples that are neither trained on nor tested with."""
    seen: list[tuple[str, int, int]] = []
    fit, evaluate = bn.Model.fit, bn.Model.evaluate

    def fitting(self, x, y, **options):
        held_out = options["validation"]
        seen.append(("fit", len(x), 0 if held_out is None else len(held_out[0])))
        return fit(self, x, y, **options)

    def evaluating(self, x, y, **options):
        seen.append(("evaluate", len(x), 0))
        return evaluate(self, x, y, **options)

    monkeypatch.setattr(bn.Model, "fit", fitting)
    monkeypatch.setattr(bn.Model, "evaluate", evaluating)
    choices = (["--early-stopping", 1], ["--save-best"], ["--plateau", 1], ["--validation-fraction", 0.1])
    for number, arguments in enumerate(choices):
        data = ["--dataset", "digits", "--epochs", 1, "--output", f"{number}.h5"]
        result = run("train", net, *data, *arguments)
        assert result.status == 0, result.err
        assert re.match(r"validation accuracy .*, test accuracy .* after 1 epoch; saved", result.out)
    assert seen == [("fit", 1293, 144), ("evaluate", 360, 0)] * 4
    seen.clear()
    assert run("train", net, "--dataset", "digits", "--epochs", 1).out.startswith("test accuracy ")
    assert run("train", net, "--dataset", arrays(Path("own.npz")), "--overwrite").out.startswith("validation accuracy")
    assert seen == [("fit", 1437, 0), ("evaluate", 360, 0), ("fit", 36, 4)]


def test_save_best_keeps_the_best_of_all_epochs(run, net) -> None:
    arguments = ["train", net, "--dataset", "digits", "--learning-rate", 0.3, "--schedule", "constant"]
    result = run(*arguments, "--epochs", 6, "--save-best", "--output", "best.h5", "--csv", "log.csv")
    history = [float(line["validation_loss"]) for line in csv.DictReader(Path("log.csv").read_text().splitlines())]
    best = int(np.argmin(history)) + 1
    assert len(history) == 6
    assert f" after {best} epoch" in result.out
    assert bn.load("best.h5").history["validation_loss"] == history[:best]
    assert "stopped early" not in result.err


def test_options_of_training_reach_it(run, net) -> None:
    pytest.importorskip("tensorboardX")
    arguments = ["--loss", "focal", "--label-smoothing", 0.1, "--class-weights", "balanced", "--accumulate", 2]
    more = ["--average", 0.9, "--plateau", 1, "--epochs", 3, "--batch-size", 8, "--tensorboard", "logs"]
    result = run("train", net, "--dataset", arrays(Path("a.npz")), *arguments, *more)
    assert result.status == 0, result.err
    model = bn.load("net.h5")
    assert model.loss == bn.losses.Focal(label_smoothing=0.1)
    assert model.training_state is not None
    settings = model.training_state.settings
    assert (settings["accumulate"], settings["average"]) == (2, 0.9)
    assert np.mean(settings["class_weights"][:2]) == pytest.approx(1, rel=0.1)
    assert model.training_state.step == 3 * 3  # 36 samples are 5 batches, and 3 steps
    assert len(list(Path("logs").iterdir())) == 1


def test_a_teacher_reaches_it(run, net, trained) -> None:
    arguments = ["train", net, "--dataset", "digits", "--batch-size", 256, "--schedule", "constant", "--epochs"]
    given = ["--teacher", trained, "--temperature", 3, "--teacher-weight", 0.5]
    result = run(*arguments, 1, *given)
    assert result.status == 0, result.err
    assert f"\nteacher {trained}, " in result.err
    model = bn.load("net.h5")
    assert model.training_state is not None
    settings = model.training_state.settings
    assert (settings["temperature"], settings["teacher_weight"], len(settings["teacher"])) == (3.0, 0.5, 12)
    alone = run(*arguments, 2, "--resume")
    assert alone.status == 1
    assert "error: resume: the teacher of the interrupted training must be given again" in alone.err
    assert run(*arguments, 2, "--resume", *given).status == 0
    assert run(*arguments, 2, "--output", "whole.h5", *given).status == 0
    assert Path("net.h5").read_bytes() == Path("whole.h5").read_bytes()
    small = run("train", net, "--dataset", arrays(Path("a.npz")), "--teacher", trained, "--output", "small.h5")
    assert "error: teacher: its " in small.err
    overwrites = run(*arguments, 1, "--teacher", "net.h5", "--overwrite")
    assert "error: --output: it must not name the same file as --teacher." in overwrites.err


def test_sizes_reach_it(run) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(20):
        folder = Path("pictures") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((9, 7), 10 * number, np.uint8)).save(folder / f"{number}.png")
    Path("pooled.py").write_text(
        "import blobnet as bn\n"
        "def net(input_shape, classes, seed=0):\n"
        "    L = bn.layers\n"
        "    pooled = [L.Input(*input_shape), L.Conv2D(3, 3), L.GlobalAveragePool(), L.Dense(classes)]\n"
        "    return bn.Sequential(pooled, seed=seed)\n"
    )
    arguments = ["train", "pooled.py:net", "--dataset", "pictures", "--epochs", 4, "--sizes"]
    result = run(*arguments, "5x4@0,6@1,8@3")
    assert result.status == 0, result.err
    said = [line for line in result.err.splitlines() if line.startswith("samples of")]
    assert said == [f"samples of {size} from epoch {epoch} on" for size, epoch in (("5x4", 1), ("6x6", 2), ("8x8", 4))]
    model = bn.load("net.h5")
    assert model.graph.input.shape.dimensions == (1, 8, 8)
    assert model.training_state is not None
    assert model.training_state.settings["sizes"] == [[0, 5, 4], [1, 6, 6], [3, 8, 8]]
    refused = run(*arguments, "5@0,8", "--overwrite")
    assert refused.status == 2
    assert "--sizes: it must be SIZE@EPOCH for each size, such as 128@0,160@10,224@20, not '5@0,8'" in refused.err
    refused = run(*arguments, "5@0,8@1", "--image-size", 9, "--overwrite")
    assert (
        "error: sizes: the first size must be that from epoch 0 on, and the last one that of the model." in refused.err
    )


def test_augmentation_reaches_it(run, net) -> None:
    arguments = ["train", net, "--dataset", arrays(Path("a.npz")), "--epochs"]
    result = run(*arguments, 1, "--augment", "crop=1,flip")
    assert result.status == 0, result.err
    assert "\naugment RandomCrop(padding=1), Flip(horizontal=True, vertical=False)\ndevice " in result.err
    state = bn.load("net.h5").training_state
    assert state is not None
    assert [item["kind"] for item in state.settings["augment"]] == ["RandomCrop", "Flip"]
    with_less = run(*arguments, 2, "--resume", "--augment", "crop=1")
    assert with_less.status == 1
    assert "error: resume: the augmentation must be that of the interrupted training." in with_less.err


def test_words_that_are_no_augmentation_are_refused_at_once(run, net) -> None:
    result = run("train", net, "--dataset", "digits", "--augment", "crop,flop")
    assert result.status == 1
    assert result.err.startswith("error: --augment: every word must be that of an augmentation. Received word='flop'")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("huber", bn.losses.Huber),
        ("mean-absolute-error", bn.losses.MeanAbsoluteError),
        ("l1", bn.losses.MeanAbsoluteError),
        ("mse", bn.losses.MeanSquaredError),
        ("binary-cross-entropy", bn.losses.BinaryCrossEntropy),
    ],
)
def test_losses_of_targets(run, net, name, kind) -> None:
    data = arrays(Path("targets.npz"), y=np.linspace(0, 1, 120, dtype=np.float32).reshape(40, 3))
    assert run("train", net, "--dataset", data, "--epochs", 1, "--loss", name).status == 0
    assert bn.load("net.h5").loss == kind()
    refused = run("train", net, "--dataset", data, "--overwrite", "--loss", "focal")
    assert "error: --loss: the data set must have classes. Received loss=focal, data=targets" in refused.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "lenet", "--dataset", "digits"], "MODEL: it must be one of blobnet's models"),
        (["train", "a.h5", "--dataset", "digits"], "MODEL: it must be one of blobnet's models, or a function of yours. "
         "Received name=a.h5. Hint: --init-from a.h5 starts from the model in a file, and --output a.h5 --resume goes"),
        ([*DIGITS, "--dataset", "fashion_mnits"], "data set: it must be a known name, or the path of a file or folder. "
         "Received name=fashion_mnits. Hint: did you mean 'fashion-mnist'"),
        ([*DIGITS, "--dataset", "no.npz"], "no.npz: there must be such a file or folder."),
        ([*DIGITS, "--device", "no such device"], "device: the device must be one that OpenCL lists. "
         "Received device=no such device. Hint: devices here: "),
        ([*DIGITS, "--output", "no/a.h5"], "no/a.h5: the folder of the file must exist."),
        ([*DIGITS, "--output", "."], ".: the path must name a file, but it is a folder."),
        ([*DIGITS, "--csv", "no/a.csv"], "no/a.csv: the folder of the file must exist."),
        ([*DIGITS, "--plot", "no/a.png"], "no/a.png: the folder of the file must exist."),
        ([*DIGITS, "--plot", "a.jpg"], "--plot: the file's name must end in .png, .pdf or .svg. Received file=a.jpg."),
        ([*DIGITS, "--csv", "./lenet5.h5"], "--output: it must not name the same file as --csv. Received file=lenet5"),
        ([*DIGITS, "--csv", "a.svg", "--plot", "a.svg"], "--csv: it must not name the same file as --plot."),
        ([*DIGITS, "--resume"], "lenet5.h5: --resume needs the file of the training to go on with. Hint: leave out "
         "--resume to start a training, or name its file with --output."),
        ([*DIGITS, "--learning-rate", "-1"], "Cosine: rate must be a finite number of at least 0. Received"),
        ([*DIGITS, "--average", "1"], "fit: average must be a finite number of at least 0 and below 1. Received"),
        ([*DIGITS, "--loss", "huber"], "--loss: the data set must have targets, not classes. Received loss=huber"),
        ([*DIGITS, "--weight-decay", "nan"], "Adam: weight_decay must be a finite number of at least 0."),
        ([*DIGITS, "--clip-norm", "0"], "Adam: clip_norm must be a finite number above 0."),
        ([*DIGITS, "--optimizer", "sgd", "--momentum", "1"], "SGD: momentum must be a finite number of at least 0"),
        ([*DIGITS, "--label-smoothing", "1"], "CrossEntropy: label_smoothing must be at least 0 and below 1."),
        ([*DIGITS, "--schedule", "cosine", "--warmup-epochs", "-1"], "Cosine: warmup_epochs must be a finite number"),
        ([*DIGITS, "--validation-fraction", "0.0001"], "fraction: it must lie between 0 and 1 and leave samples on"),
        ([*DIGITS, "--image-size", "9x9"], "size: only a folder of pictures can be resized."),
        ([*DIGITS, "--batch-size", "999999999"], "all buffers must fit the device's memory. Received "
         "batch_size=999999999"),
    ],
)  # fmt: skip
def test_refusals_before_the_first_epoch(run, arguments, message) -> None:
    result = run(*arguments)
    assert (result.status, result.out) == (1, "")
    assert result.err.splitlines()[-1].startswith("error: ")
    assert message in result.err.splitlines()[-1]
    assert not list(Path().iterdir())


def test_a_plan_that_is_too_large_names_the_largest_batch(run) -> None:
    assert re.search(r"Hint: the largest batch that fits is \d{5,}\. fit", run(*DIGITS, "--batch-size", 10**8).err)


def test_a_trained_file_is_not_lost(run, trained) -> None:
    Path("lenet5.h5").write_bytes(trained.read_bytes())
    result = run(*DIGITS)
    assert result.status == 1
    assert result.err == (
        "error: lenet5.h5: there is such a file already. Hint: --resume goes on with its training, --overwrite "
        "replaces it, --output writes another file.\n"
    )
    assert Path("lenet5.h5").read_bytes() == trained.read_bytes()
    assert run(*DIGITS, "--overwrite").out.endswith(" after 1 epoch; saved lenet5.h5\n")
    assert Path("lenet5.h5").read_bytes() != trained.read_bytes()


def test_the_data_are_not_overwritten(run, net) -> None:
    data = arrays(Path("a.npz"))
    before = data.read_bytes()
    for option in ("--output", "--csv", "--plot"):
        result = run("train", net, "--dataset", data, "--overwrite", option, "./a.npz")
        assert f"error: {option}: it must not name the same file as --dataset. Received file=a.npz.\n" in result.err
    assert data.read_bytes() == before


def test_plot_without_matplotlib_is_refused(run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(*DIGITS, "--plot", "a.png")
    assert result.status == 1
    assert result.err.startswith("error: --plot: drawing needs matplotlib.")
    assert result.err.endswith(f"Hint: {extra('plot')}\n")
    assert not list(Path().iterdir())


def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(run, net) -> None:
    data = arrays(Path("a.npz"))
    options = ["--learning-rate", "1e30", "--batch-size", 36, "--schedule", "constant"]
    first = run("train", net, "--dataset", data, "--epochs", 1, *options)
    assert first.status == 0
    before = Path("net.h5").read_bytes()
    arguments = ["--epochs", 9, *options, "--resume"]
    result = run("train", net, "--dataset", data, *arguments)
    assert result.status == 1
    assert "error: training: the loss must stay finite. Received epoch=" in result.err
    assert result.err.endswith(" The last checkpoint is net.h5 (epoch 1).\n")
    assert Path("net.h5").read_bytes() == before


def test_wrong_data_for_a_users_model(run, net) -> None:
    x = np.zeros((40, 1, 9, 9), np.float32)
    Path("fixed.py").write_text("import net\ndef fixed(): return net.net()\n")
    result = run("train", "fixed.py:fixed", "--dataset", arrays(Path("big.npz"), x=x))
    assert result.err == (
        "error: big: each sample must have the shape of the model's input. Received sample=(1, 9, 9), "
        "input=(1, 8, 8).\n"
    )
    result = run("train", "fixed.py:fixed", "--dataset", arrays(Path("many.npz"), y=np.arange(40)))
    assert "class numbers must be below 10" in result.err
    assert not Path("fixed.h5").exists()


def test_gray_pictures_for_a_model_of_colours_and_a_single_class(run, net) -> None:
    image = pytest.importorskip("PIL.Image")
    Path("colour.py").write_text(
        "import blobnet as bn\nfrom blobnet import layers\n"
        "def colour(): return bn.Sequential([layers.Input(3, 9, 7), layers.Flatten(), layers.Dense(2)])\n"
    )
    for folder in ("gray/a", "gray/b", "one/a"):
        Path(folder).mkdir(parents=True)
        for number in range(20):
            image.fromarray(np.full((9, 7), 10 * number, np.uint8)).save(f"{folder}/{number}.png")
    Path("gray/a/a.txt").write_text("no picture")
    result = run("train", "colour.py:colour", "--dataset", "gray", "--epochs", 1)
    assert (result.status, result.err.count("left out: 1 .txt")) == (0, 1), result.err
    assert "data    gray: 36 samples of (3, 9, 7), 2 classes, 4 held out for validation\n" in result.err
    assert run("train", "--init-from", "colour.h5", "--dataset", "gray", "--epochs", 1).status == 0
    Path("gray/a/a.txt").unlink()
    # A model that is there says what pictures become, as for predict.
    colour = bn.Sequential([layers.Input(3, 9, 7), layers.Flatten(), layers.Dense(2)], seed=1)
    colour.set_normalization([100] * 3, [60] * 3)
    colour.save("colour.h5")
    result = run("evaluate", "colour.h5", "--dataset", "gray")
    pictures = np.broadcast_to(10 * np.arange(20, dtype=np.uint8)[:, None, None, None], (20, 3, 9, 7))
    order = sorted(range(20), key=lambda number: f"{number}.png")
    x = np.concatenate([pictures[order]] * 2)
    wanted = colour.evaluate(x, np.repeat([0, 1], 20))
    assert (result.status, result.out.split()[:2]) == (0, ["loss", f"{wanted['loss']:.4f}"])
    assert run("train", net, "--dataset", "one").err == (
        "error: one: there must be samples of at least two classes, to learn what tells them apart. Received "
        "classes=a. Hint: a folder of pictures holds one folder for each class, or the folders images and masks.\n"
    )


@pytest.mark.parametrize("columns", [80, 60])
def test_the_bar_neither_wraps_nor_stays(tmp_path, columns) -> None:
    """What a terminal gets: no line is wider than it, and when all is done only the table is left."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [
        sys.executable,
        "-m",
        "blobnet",
        *DIGITS,
        "--epochs",
        "2",
        "--batch-size",
        "1",
        "--validation-fraction",
        "0.3",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # Linux says so when the other side is closed.
            break
        if not part:
            break
        written += part
    os.close(leader)
    assert process.stdout is not None
    closing = process.stdout.read().decode()
    process.stdout.close()
    assert process.wait() == 0
    shown = written.decode()
    bars = [text for text in re.split("[\r\n]", shown) if "img/s" in text and "|" in text]
    assert any("epoch 2/2: " in bar for bar in bars)
    assert any("validation: " in bar for bar in bars)
    assert all(len(bar) <= columns for bar in bars)
    if columns == 80:
        assert any(re.search(r"loss \d\.\d{4}, accuracy 0\.\d{4}", bar) for bar in bars)
    lines = [line.replace("\r", "") for line in _screen(shown, columns)]
    table = [line for line in lines if line][-3:]
    assert table[0].split()[:2] == ["epoch", "time"]
    assert [line.split()[0] for line in table[1:]] == ["1/2", "2/2"]
    assert closing.startswith("validation accuracy ")


def _screen(text: str, columns: int) -> list[str]:
    """The lines that a terminal shows after ``text``, which may go back to the start of a line."""
    assert "\x1b[A" not in text
    lines = []
    for line in text.split("\n"):
        cells = [" "] * max(columns, len(line))
        for run in line.split("\r"):
            cells[: len(run)] = run
        lines.append("".join(cells).rstrip())
    return lines


def test_pictures_that_use_few_of_16_bits(run, tmp_path) -> None:
    """Classes that differ in less than 1/256 of the range: nothing is lost in training, evaluation and prediction."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 8)):
        for number in range(2 * count):
            folder = tmp_path / "deep" / part / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            values = rng.integers(0, 60, (8, 8)) + 100 * (number % 2)
            image.fromarray(values.astype(np.uint16)).save(folder / f"{number}.png")
    (tmp_path / "net.py").write_text(
        "from blobnet import Sequential, layers\n\n\ndef net(input_shape, classes):\n"
        "    return Sequential([layers.Input(*input_shape), layers.Flatten(), layers.Dense(classes)])\n"
    )
    data, saved = str(tmp_path / "deep"), str(tmp_path / "m.h5")
    options = ["--epochs", "5", "--batch-size", "8", "--output", saved]
    assert run("train", f"{tmp_path / 'net.py'}:net", "--dataset", data, *options).status == 0
    assert "accuracy  1.0000" in run("evaluate", saved, "--dataset", data).out
    for name in "ab":
        lines = run("predict", saved, f"{data}/test/{name}").out.splitlines()
        assert [line.split()[1] for line in lines] == [name] * 8
