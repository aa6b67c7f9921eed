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
    arrays("large.npz", 4, (3, 9, 8))
    result = run("train", "--init-from", trained, "--dataset", "large.npz")
    assert result.status == 1
    wanted = r"large.*: each sample must have the shape of the model's input. Received .*\(3, 9, 8\).*\(1, 9, 8\)"
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


def test_samples_of_another_size(run, trained: str) -> None:
    arrays("large.npz", 4, (1, 11, 9))
    command = [
        "train",
        "--init-from",
        trained,
        "--dataset",
        "large.npz",
        "--freeze-until",
        NORM,
        "--schedule",
        "constant",
    ]
    result = run(*command, "--epochs", 1)
    assert result.status == 0, result.err
    assert "note: ten.h5 was made for samples of (1, 8, 8), and is trained for (1, 11, 9)\n" in result.err
    before, model = bn.load(trained).weights, bn.load("ten-tuned.h5")
    assert model.graph.input.shape.dimensions == (1, 11, 9)
    assert np.array_equal(before[f"{CONVOLUTION}/weight"], model.weights[f"{CONVOLUTION}/weight"])
    assert model.weights[f"{HEAD}/weight"].shape == (4, 4 * 11 * 9)
    assert run(*command, "--epochs", 2, "--resume").status == 0


def test_sizes_that_a_model_does_not_take(run) -> None:
    arrays("large.npz", 4, (1, 11, 9))
    arrays("small.npz", 4, (1, 2, 2))
    entry, flat = bn.layers.Input(1, 8, 8), bn.layers.Flatten()
    bn.Sequential([entry, flat, bn.layers.Dense(5, name="inner"), bn.layers.Dense(3)]).save("dense.h5")
    bn.Sequential([entry, bn.layers.Conv2D(2, 5), flat, bn.layers.Dense(3)]).save("wide.h5")
    bn.Sequential([bn.layers.Input(7), bn.layers.Dense(3)]).save("flat.h5")
    rule = "samples must have the size that the model was made for, unless its layers take another one as well"
    for file, data, cause in (
        ("dense", "large", "cause=inner: its weights must fit what the layers before it give now. Received "
         "weights={'weight': (5, 64), 'bias': (5,)}, wanted={'weight': (5, 99), 'bias': (5,)}. Hint: a "
         "GlobalAveragePool in front of dense layers makes weights that fit any size. Hint: --image-size 8x8 resizes "
         "the pictures of a folder."),
        ("wide", "small", "cause=conv2d_1 (Conv2D): the dilated filter must fit the"),
    ):  # fmt: skip
        result = run("train", "--init-from", f"{file}.h5", "--dataset", f"{data}.npz")
        sample = (1, 11, 9) if data == "large" else (1, 2, 2)
        assert result.status == 1
        assert result.err.startswith(f"error: {file}.h5: {rule}. Received model=(1, 8, 8), sample={sample}, {cause}")
    result = run("train", "--init-from", "flat.h5", "--dataset", "large.npz")
    assert "each sample must have the shape of the model's input. Received sample=(1, 11, 9), input=(7,)" in result.err


def test_a_model_without_dense_layers_gives_for_another_size_what_it_did(run) -> None:
    """Where only the samples are larger: the middle of a convolution's output is the same."""
    layers = [bn.layers.Input(2, 6, 6), bn.layers.Conv2D(3, 3, padding="same", name="head")]
    model = bn.Sequential(layers)
    large = model.with_classes(3, size=(9, 7))
    large.set_weights({name: model.weights[name] for name in ("head/weight", "head/bias")})
    x = np.random.default_rng(0).normal(size=(2, 2, 9, 7)).astype(np.float32)
    wanted = model.predict(x[:, :, 2:8, :6])[:, :, 1:-1, 1:-1]
    np.testing.assert_allclose(large.predict(x)[:, :, 3:7, 1:5], wanted, atol=1e-5)
    with pytest.raises(bn.errors.ShapeError, match="the size must have as many axes as samples have besides"):
        model.with_classes(3, size=(9,))


def test_more_outputs_than_classes_keep_the_names(run, net) -> None:
    names = ["ant", "bee", "cat", "dog"]
    arrays("ten.npz", 10)
    assert run("train", NET, "--dataset", "ten.npz", "--epochs", 1, "--output", "ten.h5").status == 0
    random = np.random.default_rng(0)
    np.savez("named.npz", x=random.random((48, 1, 8, 8), np.float32), y=np.arange(48) % 4, class_names=names)
    for command in (["--init-from", "ten.h5"], [NET], [NET, "--init-from", "ten.h5"]):
        result = run("train", *command, "--dataset", "named.npz", "--epochs", 1, "--classes", 6, "--output", "six.h5",
                     "--overwrite")  # fmt: skip
        assert result.status == 0, result.err
        assert bn.load("six.h5").class_names == (*names, "4", "5")
        assert "note" not in run("evaluate", "six.h5", "--dataset", "named.npz").err


def test_the_plan_shows_what_freezing_saves(run) -> None:
    sizes = []
    for options in ([], ["--freeze-until", "pool"], ["--inference"]):
        result = run("plan", "resnet20", *options, "--batch-size", 32, "--memory", "1GiB")
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


@pytest.fixture
def units_last() -> np.ndarray:
    """last.onnx: a network as TensorFlow's exporter writes it, of pictures (N, 6, 5, 3), which scales them itself.

    Gives the means of its filters' outputs before, for other weights.
    """
    onnx = pytest.importorskip("onnx")
    node, random = onnx.helper.make_node, np.random.default_rng(3)
    weights = random.standard_normal((4, 3, 3, 3)).astype(np.float32) / 9
    constants = {
        "scale": np.float32(1 / 127.5),
        "one": np.float32(1),
        "w": weights,
        "head": np.eye(4, dtype=np.float32),
    }
    nodes = [
        node("Mul", ["image", "scale"], ["a"], "scaled"),
        node("Sub", ["a", "one"], ["b"], "moved"),
        node("Transpose", ["b"], ["c"], "turned", perm=[0, 3, 1, 2]),
        node("Conv", ["c", "w"], ["d"], "conv"),
        node("GlobalAveragePool", ["d"], ["e"], "means"),
        node("Flatten", ["e"], ["f"], "flat"),
        node("MatMul", ["f", "head"], ["logits"], "head"),
    ]
    inputs = [onnx.helper.make_tensor_value_info("image", 1, ["N", 6, 5, 3])]
    outputs = [onnx.helper.make_tensor_value_info("logits", 1, ["N", 4])]
    arrays_of = [onnx.numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, arrays_of)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), "last.onnx"
    )
    return weights


def test_networks_of_pictures_with_units_last(run, units_last: np.ndarray) -> None:
    """Pictures and arrays in either order are turned for them, in each command, and a turned model takes both."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (8, 6, 5, 3), np.uint8)
    for number, each in enumerate(pixels):
        folder = Path("pictures", "ab"[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(each).save(folder / f"{number}.png")
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # As the folders have them.
    labels = np.repeat([0, 1], 4)
    np.savez("last.npz", x=pixels[order], y=labels)
    np.savez("first.npz", x=pixels[order].transpose(0, 3, 1, 2), y=labels)
    scaled = pixels[order].astype(np.float64) / 127.5 - 1
    windows = np.lib.stride_tricks.sliding_window_view(scaled, (3, 3), (1, 2))
    wanted = np.einsum("nyxcij,fcij->nyxf", windows, units_last.astype(np.float64)).mean((1, 2))
    said = "are (height, width, units); the model gets them as (units, height, width)\n"
    assert run("train", "--init-from", "last.onnx", "--dataset", "pictures", "--epochs", 1).status == 0
    tuned = bn.load("last-tuned.h5")
    assert tuned.graph.input.shape.dimensions == (3, 6, 5)
    # The file's scaling is the input layer's, whose numbers are the data's now: nothing is scaled twice.
    assert "Contraction" not in {vertex.layer.kind for vertex in tuned.graph.vertices}
    np.testing.assert_allclose(tuned.weights["image/deviation"], pixels.reshape(-1, 3).std(0, np.float64), rtol=0.1)
    for data, is_turned in (("pictures", False), ("first.npz", False), ("last.npz", True)):
        result = run("predict", "last.onnx", data, "--npz", "found.npz")
        assert result.status == 0, result.err
        with np.load("found.npz") as found:
            np.testing.assert_allclose(found[found.files[0]], wanted, rtol=1e-4, atol=1e-5)
        assert result.err == (f"note: the samples of {data} {said}" if is_turned else "")
        exponents = np.exp(wanted - wanted.max(1, keepdims=True))
        loss = -np.log(exponents / exponents.sum(1, keepdims=True))[np.arange(8), labels].mean()
        result = run("evaluate", "last.onnx", "--dataset", data)
        assert f"loss      {loss:.4f}\n" in result.out, result.err
        assert (said in result.err) == is_turned
        for command in (["train", "--init-from", "last.onnx", "--output", "t.h5"], ["evaluate", "last-tuned.h5"]):
            result = run(*command, "--dataset", data, *(["--epochs", 1, "--overwrite"] * (command[0] == "train")))
            assert result.status == 0, result.err
            assert (said in result.err) == is_turned
    # Of another size, too.
    result = run(
        "train", "--init-from", "last.onnx", "--dataset", "pictures", "--image-size", "9x8", "--output", "n.h5"
    )
    assert result.status == 0, result.err
    assert bn.load("n.h5").graph.input.shape.dimensions == (3, 9, 8)


def test_the_data_say_the_kind_of_labels(run) -> None:
    """A model of classes begins a training of labels, which goes on as one even with one label for each picture."""
    image = pytest.importorskip("PIL.Image")
    for number in range(4):
        image.fromarray(np.full((16, 16, 3), 60 * number, np.uint8)).save(f"{number}.png")
    Path("s.csv").write_text("path,label\n0.png,cat|red\n1.png,red\n2.png,cat\n3.png,\n")
    Path("one.csv").write_text("path,label\n0.png,cat\n1.png,red\n2.png,cat\n3.png,red\n")
    model = bn.models.resnet8((3, 16, 16), 2, class_names=("a", "b"))
    model.loss = bn.losses.CrossEntropy()
    model.save("cl.h5")
    for start in (["resnet8", "--init-from", "cl.h5"], ["--init-from", "cl.h5"]):
        command = ["train", *start, "--batch-size", 2, "--output", "t.h5", "--dataset"]
        result = run(*command, "s.csv", "--epochs", 1, "--overwrite")
        assert result.status == 0, result.err
        tuned = bn.load("t.h5")
        assert (tuned.class_names, tuned.loss) == (("cat", "red"), bn.losses.BinaryCrossEntropy())
        result = run(*command, "one.csv", "--epochs", 2, "--resume")
        assert result.status == 0, result.err
