"""``blobnet convert``, and commands that take ONNX files."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.command_line.model_argument import find_model
from blobnet.errors import FileError
from blobnet.files.atomic import WRITERS
from tests.cli.test_init_from import arrays
from tests.interop.networks import random_weights, samples, torchvision

onnx = pytest.importorskip("onnx")
pytest.importorskip("safetensors")

NET = "net.py:net"
WHOLE, WEIGHTS = [".h5", ".onnx"], [".weights.h5", ".safetensors"]


def model_file(path: str) -> bn.Model:
    """A network with everything that files keep."""
    model = find_model(NET).build((1, 8, 8), 10, [f"class {number}" for number in range(10)], 0)
    random_weights(model)
    model.set_normalization([0.5], [2])
    model.history = {"loss": [1.0, 0.5]}
    model.save(path)
    return model


@pytest.fixture
def saved(run, net) -> bn.Model:
    return model_file("a.h5")


@pytest.mark.parametrize("first", WHOLE + WEIGHTS)
@pytest.mark.parametrize("second", WHOLE + WEIGHTS)
def test_every_kind_into_every_other(run, saved, device, first: str, second: str) -> None:
    """And back into one of blobnet's: the network predicts the same."""
    names, options = ["a.h5", f"b{first}", f"c{second}", "d.h5"], ["--model", NET, "--input-shape", "1,8,8"]
    for source, target in itertools.pairwise(names):
        result = run("convert", source, target, *(options if source.endswith(tuple(WEIGHTS)) else []))
        assert result.status == 0, result.err
        assert result.out == f"saved {target}: {saved.parameter_count:,} trainable parameters\n"
    x = samples(saved)["input_1"]
    model = bn.load("d.h5")
    np.testing.assert_allclose(model.predict(x, device=device), saved.predict(x, device=device), atol=1e-4)
    whole = not {first, second} & set(WEIGHTS)
    assert model.class_names == (saved.class_names if whole else ())
    assert bool(model.history) == ({first, second} == {".h5"})
    # All weights are the same ones, by the same names.
    assert model.weights.keys() == saved.weights.keys()
    for name, values in saved.weights.items():
        np.testing.assert_allclose(model.weights[name], values, rtol=1e-6, err_msg=name)


def test_notes(run, saved) -> None:
    assert run("convert", "a.h5", "b.onnx").err == "note: .onnx files have no place for: training\n"
    found = run("convert", "a.h5", "b.safetensors").err
    assert found == "note: .safetensors files have no place for: class names, training\n"
    assert run("convert", "b.onnx", "c.h5").err == ""


def test_weights_of_keras_2(run, saved) -> None:
    from tests.interop.test_keras_weights import keras_2

    layers = {
        "conv": {"kernel": np.ones((3, 3, 1, 4), np.float32)},
        "norm": {key: np.ones(4, np.float32) for key in ("gamma", "beta", "moving_mean", "moving_variance")},
        "dense": {"kernel": np.ones((256, 10), np.float32), "bias": np.ones(10, np.float32)},
    }
    keras_2(Path("old.h5"), layers)
    assert run("convert", "old.h5", "new.h5", "--model", "a.h5").status == 0
    assert (bn.load("new.h5").weights["dense_1/weight"] == 1).all()
    assert bn.load("new.h5").class_names == saved.class_names


def test_published_weights(run, tmp_path) -> None:
    models = torchvision().models
    from safetensors.torch import save_file

    network = models.resnet18(num_classes=7).eval()
    save_file(network.state_dict(), "resnet18.safetensors")
    result = run("convert", "resnet18.safetensors", "resnet18.h5", "--model", "resnet18", "--classes", 7)
    assert result.status == 0, result.err
    weights = bn.load("resnet18.h5").weights
    np.testing.assert_array_equal(weights["logits/weight"], network.fc.weight.detach().numpy())
    result = run("convert", "resnet18.safetensors", "other.h5", "--model", "resnet18")
    assert result.status == 1
    assert "fc.weight must have the shape of logits/weight. Received given=(7, 512), wanted=(1000, 512)" in result.err
    assert not Path("other.h5").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["a.safetensors", "b.h5"],
            "--model: a.safetensors holds weights alone: there must be a network for them. Hint: --model resnet18, a ",
        ),
        (
            ["a.h5", "b.onnx", "--model", "lenet5"],
            "--model: it is for weights alone, and a.h5 says what the network is",
        ),
        (["a.h5", "b.onnx", "--classes", "3"], "--classes: it is for weights alone, and a.h5 says what"),
        (["a.h5", "b.tflite"], "b.tflite: the name must end in one of .weights.h5, .safetensors, .keras, .onnx, .h5."),
        (["a.npz", "b.h5"], "a.npz: the name must end in one of .weights.h5, .safetensors, .keras, .onnx, .h5."),
        (["a.h5", "a.h5"], "a.h5: there is such a file already. Hint: --overwrite replaces it."),
        (["none.onnx", "b.h5"], "none.onnx: there must be such a file."),
        (["none.h5", "b.onnx"], "none.h5: there must be such a file"),
        (["junk.h5", "b.onnx"], "junk.h5: a model file must be HDF5, but this is no format that blobnet knows."),
        (["a.h5", "none/b.onnx"], "none/b.onnx: the folder of the file must exist"),
        (["a.pt", "b.h5"], "a.pt: weights are not read from pickles, which can run any code. Hint"),
        (["none.safetensors", "b.h5"], "none.safetensors: there must be such a file"),
        (["a.pt", "b.h5", "--model", "a.h5"], "a.pt: weights are not read from pickles, which can run any code. Hint"),
        (["a.safetensors", "b.h5", "--model", "a.h5", "--classes", "4"], "--model: a model in a file has its shape"),
        (["a.weights.h5", "b.h5", "--model", "a.h5"], "a.weights.h5: there must be such a file"),
    ],
)
def test_what_cannot_be_converted(run, saved, arguments, message) -> None:
    saved.save_safetensors("a.safetensors")
    Path("a.pt").write_bytes(b"PK\x03\x04")
    Path("junk.h5").write_bytes(bytes(range(144, 256)))
    result = run("convert", *arguments)
    assert (result.status, result.out) == (1, "")
    assert f"error: {message}" in result.err
    assert not Path("b.h5").exists()
    assert not Path("b.onnx").exists()


def test_open_sizes_of_onnx_files(run, net) -> None:
    values = onnx.numpy_helper.from_array(np.ones((2, 3, 3, 3), np.float32), "w")
    entry, end = (onnx.helper.make_tensor_value_info(name, 1, ["N", 3, "h", "w"]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Conv", ["x", "w"], ["y"])], "g", [entry], [end], [values])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), "open.onnx")
    for command in (["convert", "open.onnx", "b.h5"], ["plan", "open.onnx"], ["show", "open.onnx"]):
        error = run(*command).err
        assert "input x: every axis but that of the samples must have a size" in error
        assert "Hint: blobnet convert open.onnx model.h5 --input-shape 3,224,224, say," in error
        assert "load(..., sizes={" not in error
    assert run("convert", "open.onnx", "b.h5", "--input-shape", "3,8,9").status == 0
    assert bn.load("b.h5").graph.input.shape.dimensions == (3, 8, 9)
    rule = "input x: the sizes of an input must be those that the file says. Received sizes=(1, 4, 8, 9)"
    for command in (["convert", "open.onnx", "c.h5"], ["plan", "open.onnx"]):
        result = run(*command, "--input-shape", "4,8,9")
        assert result.status == 1
        assert rule in result.err
    assert not Path("c.h5").exists()


def test_overwrite(run, saved) -> None:
    Path("b.onnx").write_bytes(b"old")
    assert run("convert", "a.h5", "b.onnx", "--overwrite").status == 0
    assert len(Path("b.onnx").read_bytes()) > 1000


def test_commands_that_take_onnx(run, saved) -> None:
    """As they take blobnet's own files, with the same results."""
    assert run("convert", "a.h5", "a.onnx").status == 0
    arrays("ten.npz", 10)
    results = {}
    for file in ("a.h5", "a.onnx"):
        results[file] = [
            run("evaluate", file, "--dataset", "ten.npz").out,
            run("predict", file, "ten.npz").out,
            run("plan", file, "--inference").status,
            run("show", file, "--plot", "layers.png").status,
        ]
    assert results["a.h5"][0] == results["a.onnx"][0] != ""
    assert "class 8 " in results["a.h5"][1]
    assert results["a.h5"][1:] == results["a.onnx"][1:]


def test_fine_tuning_an_onnx_file(run, saved) -> None:
    """A new head on it, frozen below, and out again as ONNX."""
    assert run("convert", "a.h5", "a.onnx").status == 0
    arrays("four.npz", 4)
    command = ["train", "--init-from", "a.onnx", "--freeze-until", "batchnorm_1", "--dataset", "four.npz"]
    result = run(*command, "--epochs", 1, "--classes", 6)
    assert result.status == 0, result.err
    assert "init    weights of a.onnx; new: dense_1\n" in result.err
    assert "frozen  44 of " in result.err
    weights = bn.load("a-tuned.h5").weights
    np.testing.assert_array_equal(weights["conv2d_1/weight"], saved.weights["conv2d_1/weight"])
    assert weights["dense_1/weight"].shape == (6, 256)
    assert run("convert", "a-tuned.h5", "tuned.onnx").status == 0
    result = run("train", NET, "--init-from", "a.onnx", "--dataset", "four.npz", "--epochs", 1, "--output", "own.h5")
    assert "init    weights of a.onnx; new: dense_1\n" in result.err


def test_sizes_that_a_file_leaves_open_are_those_of_the_data(run) -> None:
    images = layers.Input(1, 12, 10)()
    pooled = layers.GlobalAveragePool(name="pool")(layers.Conv2D(4, 3, padding=1, name="first")(images))
    logits = layers.Dense(3, name="head")(pooled)
    bn.onnx.save(bn.Model(images, layers.Activation("softmax")(logits)), "a.onnx")
    proto = onnx.load("a.onnx")
    for axis in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        axis.Clear()
    onnx.save(proto, "open.onnx")
    assert "every axis but that of the samples must have a size" in run("plan", "open.onnx").err
    result = run("train", "--init-from", "open.onnx", "--freeze-until", "first", "--dataset", "digits", "--epochs", "1")
    assert result.status == 0, result.err
    assert "logits" not in result.err  # The softmax at the end, of which a training would be told, has gone.
    tuned = bn.load("open-tuned.h5")
    assert (tuned.graph.input.shape.dimensions, tuned.graph.output.shape.units) == ((1, 8, 8), 10)
    np.testing.assert_array_equal(tuned.weights["first/weight"], bn.onnx.load("a.onnx").weights["first/weight"])


@pytest.mark.parametrize(
    ("writer", "write"),
    [
        ("model.save", bn.Model.save),
        ("model.save_safetensors", bn.Model.save_safetensors),
        ("blobnet.onnx.save", bn.onnx.save),
    ],
)
def test_names_of_other_formats_are_refused(tmp_path: Path, writer: str, write: Any) -> None:
    model = bn.models.lenet5()
    for ending, other in WRITERS.items():
        path = tmp_path / f"a{ending}"
        if other == writer:
            write(model, path)
        else:
            message = (
                f"{path}: {writer} writes another format. Received ending={ending}. "
                f"Hint: {other} writes such files, as blobnet convert does."
            )
            with pytest.raises(FileError, match=f"^{re.escape(message)}$"):
                write(model, path)
        assert path.exists() == (other == writer)


@pytest.mark.parametrize("ending", [".keras", ".KERAS", ".pt", ".pth", ".ckpt", ".pkl", ".bin", ".npz", ".tflite"])
def test_names_of_formats_that_nothing_writes_are_refused(tmp_path: Path, ending: str) -> None:
    model, path = bn.models.lenet5(), tmp_path / f"a{ending}"
    rule = "model.save writes another format, and nothing here writes this one"
    hint = "a.h5; model.save_keras_weights .weights.h5, model.save_safetensors .safetensors, blobnet.onnx.save .onnx."
    with pytest.raises(FileError, match=f"^{re.escape(f'{path}: {rule}. Hint: {hint}')}"):
        model.save(path)
    with pytest.raises(FileError, match="nothing here writes this one"):
        bn.onnx.save(model, path)
    with pytest.raises(FileError, match="nothing here writes this one"):
        bn.callbacks.Checkpoint(path)
    assert not path.exists()
    model.save(path.with_suffix(".h5"))  # As the hint says.


@pytest.mark.parametrize("callback", [bn.callbacks.Checkpoint, bn.callbacks.SaveBest])
def test_callbacks_refuse_such_names_at_once(callback: Any) -> None:
    with pytest.raises(FileError, match=r"^a\.onnx: model\.save writes another format\. Received ending=\.onnx\. Hint"):
        callback("a.onnx")


def test_a_training_does_not_begin_with_such_a_name(run) -> None:
    result = run("train", "lenet5", "--dataset", "digits", "--output", "a.onnx")
    assert (result.status, Path("a.onnx").exists()) == (1, False)
    assert result.err.endswith(
        "error: a.onnx: model.save writes another format. Received ending=.onnx. "
        "Hint: blobnet.onnx.save writes such files, as blobnet convert does.\n"
    )
    assert "epoch" not in result.out + result.err
