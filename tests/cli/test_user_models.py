"""MODEL: names, and functions in a user's own file."""

from __future__ import annotations

import pytest

import blobnet.models
from blobnet.command_line.model_argument import find_model, known_models
from blobnet.errors import BlobnetError

FILE = """
import helper
import blobnet as bn
from blobnet import layers

def plain(input_shape, classes):
    return bn.Sequential([layers.Input(*input_shape), layers.Flatten(), layers.Dense(classes)])

def fixed():
    return bn.Sequential([layers.Input(1, 8, 8), layers.Flatten(), layers.Dense(10)], class_names=list("abcdefghij"))

def everything(**given):
    assert sorted(given) == ["class_names", "classes", "input_shape", "seed"]
    return plain(given["input_shape"], given["classes"])

def optional(*args, depth=2, seed=1):
    assert (depth, seed, args) == (2, 7, ())
    return fixed()

def needy(input_shape, depth, width):
    pass

def nothing():
    pass

def fails(classes):
    return inner(classes)

def inner(classes):
    raise KeyError("weights")

def unfit():
    return bn.Sequential([layers.Input(1, 8, 8), layers.Conv2D(4, 9), layers.Dense(10)])

def leaves():
    raise SystemExit("bye")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, run):
    """A folder with models; ``run`` cleans up behind them."""
    nets = tmp_path / "nets"
    nets.mkdir()
    (nets / "own.py").write_text(FILE)
    (nets / "helper.py").write_text("")
    (nets / "empty.py").write_text("x = 1\n")
    (nets / "missing.py").write_text("import surely_not_there\n")
    (nets / "syntax.py").write_text("def f(:\n")
    (nets / "exits.py").write_text("import sys\nsys.exit(3)\n")
    return nets


def build(text: str):
    return find_model(text).build((1, 8, 8), 10, tuple("0123456789"), 7)


def test_known_models() -> None:
    assert known_models() == sorted(blobnet.models.__all__)
    for name in ("fashion_cnn", "lenet5", "mobilenet_v2", "resnet18", "resnet50", "resnet8"):
        model = build(name)
        assert model.graph.input.shape.dimensions == (1, 8, 8)
        assert model.class_names == tuple("0123456789")


def test_a_models_own_defaults(folder) -> None:
    assert find_model("vgg16").defaults() == ((3, 224, 224), 1000)
    assert find_model("lenet5").defaults() == ((1, 28, 28), 10)
    assert find_model("nets/own.py:plain").defaults() == ((1, 28, 28), 10)


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_a_function_gets_what_it_takes(folder, name) -> None:
    model = build(f"nets/own.py:{name}")
    assert model.graph.input.shape.dimensions == (1, 8, 8)
    assert model.class_names == tuple("0123456789")


@pytest.mark.parametrize("name", ["fixed", "optional"])
def test_a_model_keeps_its_own_class_names(folder, name) -> None:
    source = find_model(f"{folder}/own.py:{name}")
    assert source.name == name
    assert source.build((1, 8, 8), 10, tuple("0123456789"), 7).class_names == tuple("abcdefghij")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lenet6", "MODEL: it must be one of blobnet's models, or a function of yours. Received name=lenet6. "
                   "Hint: did you mean 'lenet5' or 'alexnet' or 'resnet56'? A model of your own is path/to/"),
        ("zzz", "Hint: known names: airbench, alexnet, centernet, convnext_tiny, densenet121, "),
        ("nets/onw.py:plain", "nets/onw.py: there must be such a Python file. Hint: did you mean 'own.py'"),
        ("nowhere/x.py:f", "nowhere/x.py: there must be such a Python file."),
        ("nets/own.py", "a model of your own must be path/to/file.py:function. Hint: nets/own.py:plain, perhaps?"),
        ("nets/empty.py", "a model of your own must be path/to/file.py:function. Hint: the file defines no function."),
        ("nets/own.py:plane", "nets/own.py: there must be such a function in the file. Received function=plane. "
                              "Hint: did you mean 'plain'?"),
        ("nets/empty.py:x", "nets/empty.py: there must be such a function in the file. Received function=x. "
                            "Hint: the file defines no function."),
        ("nets/own.py:needy", "the function must need no other arguments. Received needs=['depth', 'width']. "
                              "Hint: it may take input_shape, classes, class_names, seed; give the others default"),
        ("nets/own.py:nothing", "the function must return a Model (or a Sequential). Received returned=NoneType."),
        ("nets/own.py:leaves", "SystemExit: bye"),
        ("nets/missing.py:f", "nets/missing.py:f: the file must be importable, but it raises.\n"),
        ("nets/missing.py:f", "line 1, in <module>\n    import surely_not_there\nModuleNotFoundError: No module named"),
        ("nets/syntax.py:f", "line 1\n    def f(:\n"),
        ("nets/exits.py:f", "SystemExit: 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(folder, text, message) -> None:
    with pytest.raises(BlobnetError) as caught:
        build(text)
    assert message in str(caught.value)


def test_a_text_file_is_no_model(folder) -> None:
    (folder / "net.txt").write_text("")
    with pytest.raises(BlobnetError, match=r"must be path/to/file\.py:function\. Received file=net\.txt"):
        build("nets/net.txt:f")


def test_errors_of_a_users_code_keep_the_last_calls(run, folder) -> None:
    result = run("train", "nets/own.py:fails", "--dataset", "digits")
    lines = result.err.splitlines()
    assert result.status == 1
    assert lines[0] == "error: nets/own.py:fails: the function must return a Model, but it raises."
    assert lines[1].endswith('own.py", line 27, in fails')
    assert any(line.endswith('own.py", line 30, in inner') for line in lines)
    assert lines[-1] == "KeyError: 'weights'"
    assert "blobnet/command_line" not in result.err


def test_errors_of_layers_show_the_users_line_and_none_of_blobnets(run, folder) -> None:
    result = run("plan", "nets/own.py:unfit", "--input-shape", "1,8,8")
    assert result.status == 1
    assert 'own.py", line 33, in unfit' in result.err
    assert result.err.splitlines()[-1].startswith("blobnet.errors.ShapeError: conv2d_1 (Conv2D): ")
    assert "base.py" not in result.err


def test_blobnets_models_take_images() -> None:
    with pytest.raises(
        BlobnetError, match=r"lenet5: this model takes images.* Received sample=\(64,\)\. Hint: blobnet"
    ):
        find_model("lenet5").build((64,), 10, (), 0)
