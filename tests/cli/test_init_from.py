"""``blobnet train --init-from``, ``--freeze`` and ``--freeze-until``, and the same of ``blobnet plan``."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn

NET = "net.py:net"
#: Names that the layers of conftest's model get.
CONVOLUTION, NORM, HEAD = "conv2d_1", "batchnorm_1", "dense_1"


def arrays(path: str, classes: int, shape: tuple[int, ...] = (1, 8, 8)) -> str:
    """A user's own data."""
    random = np.random.default_rng(classes)
    np.savez(path, x=random.random((48, *shape), np.float32), y=np.arange(48) % classes)
    return path


@pytest.fixture
def trained(run, net) -> str:
    """A model of 10 classes."""
    arrays("ten.npz", 10)
    assert run("train", NET, "--dataset", "ten.npz", "--epochs", 1, "--output", "ten.h5").status == 0
    return "ten.h5"


def test_a_new_head_on_a_file(run, trained: str) -> None:
    arrays("four.npz", 4)
    command = ["train", "--init-from", trained, "--freeze-until", NORM, "--dataset", "four.npz"]
    command += ["--schedule", "constant"]  # A cosine ends with its epochs.
    result = run(*command, "--epochs", 1)
    assert result.status == 0, result.err
    assert "model   ten.h5, " in result.err
    assert f"init    weights of ten.h5; new: {HEAD}\n" in result.err
    # 4 filters of 3x3, scale and shift; the head has 4 * 256 + 4 values.
    assert "frozen  44 of 1,072 trainable parameters\n" in result.err
    assert "saved ten-tuned.h5" in result.out
    before, after = bn.load(trained).weights, bn.load("ten-tuned.h5").weights
    for name in before:
        if name.startswith((CONVOLUTION, NORM)):
            assert np.array_equal(before[name], after[name]), name
    assert after[f"{HEAD}/weight"].shape == (4, 256)
    # The new data's statistics, not the old ones'.
    assert not np.array_equal(before["input_1/mean"], after["input_1/mean"])

    # The same command goes on with it, and ends where one training of two epochs does.
    result = run(*command, "--epochs", 2, "--resume")
    assert result.status == 0
    assert "init" not in result.err
    assert run(*command, "--epochs", 2, "--output", "whole.h5").status == 0
    one, two = bn.load("ten-tuned.h5").weights, bn.load("whole.h5").weights
    assert all(np.array_equal(one[name], two[name]) for name in one)
    result = run(*command[:3], *command[5:], "--freeze", "*norm*", "--epochs", 3, "--resume", "--output", "whole.h5")
    assert result.status == 1
    assert "resume: the set of frozen parameters must be that of the interrupted training" in result.err


def test_weights_for_a_model_with_the_same_layers(run, trained: str) -> None:
    arrays("four.npz", 4)
    command = ["train", NET, "--init-from", trained, "--dataset", "four.npz", "--freeze", CONVOLUTION, "--freeze"]
    result = run(*command, "batch*/scale", "--epochs", 1, "--classes", 6, "--output", "six.h5")
    assert result.status == 0, result.err
    assert "frozen  40 of " in result.err
    assert f"init    weights of ten.h5; new: {HEAD}\n" in result.err
    before, model = bn.load(trained).weights, bn.load("six.h5")
    assert model.graph.output.shape.units == 6
    after = model.weights
    kept = {name for name in after if name in before and np.array_equal(before[name], after[name])}
    assert {f"{CONVOLUTION}/weight", f"{NORM}/scale"} <= kept
    assert f"{NORM}/shift" not in kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--freeze-until", "norm9"], r"--freeze-until: it must name a layer of the model. Received layer=norm9."),
        (["--freeze-until", "input_1"], r"--freeze-until: there must be a layer with weights to freeze. "
                                        r"Received layer=input_1."),
        (["--freeze-until", HEAD], r"freeze: something must be left to train, but all trainable parameters are frozen"),
        (["--freeze", "*"], r"freeze: something must be left to train"),
        (["--freeze", "conv3"], r"freeze: every pattern must stand for parameters that can be trained. .*'conv3'"),
        (["--classes", "3"], r"--classes: there must be an output for each class of the data. "
                             r"Received classes=3, data=four with 4."),
        (["--output", "ten.h5"], r"--output: it must not name the same file as --init-from. Received file=ten.h5."),
    ],
)  # fmt: skip
def test_what_is_refused_before_any_training(run, trained: str, arguments: list[str], message: str) -> None:
    arrays("four.npz", 4)
    result = run("train", "--init-from", trained, "--dataset", "four.npz", *arguments)
    assert result.status == 1
    assert re.search(message, result.err), result.err
    assert not Path("ten-tuned.h5").exists()


def test_data_and_models_that_do_not_fit_a_file(run, trained: str) -> None:
    arrays("large.npz", 4, (1, 9, 8))
    result = run("train", "--init-from", trained, "--dataset", "large.npz")
    assert result.status == 1
    wanted = r"large.*: each sample must have the shape of the model's input. Received .*\(1, 9, 8\).*\(1, 8, 8\)"
    assert re.search(wanted, result.err), result.err
    arrays("colour.npz", 4, (3, 8, 8))
    result = run("train", NET, "--init-from", trained, "--dataset", "colour.npz")
    assert result.status == 1
    wanted = rf"weights of {CONVOLUTION}: a layer before the last one must have the same parameters in both models"
    assert re.search(wanted, result.err), result.err
    result = run("train", "resnet8", "--init-from", trained, "--dataset", "digits")
    assert result.status == 1
    assert "take_weights: the models must have layers with weights of the same names and shapes" in result.err
    result = run("train", "--init-from", "none.h5", "--dataset", "digits")
    assert result.status == 1
    assert "none.h5: there must be such a file" in result.err
    np.savez("targets.npz", x=np.zeros((20, 1, 8, 8), np.float32), y=np.zeros((20, 2), np.float32))
    result = run("train", "--init-from", trained, "--dataset", "targets.npz", "--classes", 3)
    assert result.status == 1
    assert "--classes: the data set must have classes, not targets" in result.err


def test_the_plan_shows_what_freezing_saves(run) -> None:
    sizes = []
    for options in ([], ["--freeze-until", "pool"], ["--inference"]):
        result = run("plan", "resnet8", *options, "--batch-size", 32, "--memory", "1GiB")
        assert result.status == 0, result.err
        found = re.search(r"^total +([0-9.]+) MiB", result.out, re.MULTILINE)
        assert found
        sizes.append(float(found[1]))
    assert sizes[0] > 3 * sizes[1]
    assert sizes[1] <= 1.1 * sizes[2]
    assert "gradients 18.6 KiB" in run("plan", "resnet8", "--freeze-until", "pool").out
    result = run("plan", "resnet8", "--freeze-until", "pol")
    assert result.status == 1
    assert (
        "--freeze-until: it must name a layer of the model. Received layer=pol. Hint: did you mean 'pool'" in result.err
    )
