"""Pretrained weights by name: the hub's own client against a server on the loopback that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import blobnet as bn
from blobnet.command_line.main import main
from blobnet.errors import BlobnetWarning, FileError, OptionError, ShapeError
from blobnet.interop.hub import find
from tests.interop.hub_server import COMMIT, Hub
from tests.interop.networks import random_weights

constants = pytest.importorskip("huggingface_hub.constants")
pytest.importorskip("safetensors")
pytestmark = pytest.mark.filterwarnings("error")

SIDE, NAMES = 32, ["cat", "dog", "hen"]
CONFIG = {
    "architecture": "resnet8",
    "num_classes": 3,
    "label_names": NAMES,
    "pretrained_cfg": {
        "input_size": [3, SIDE, SIDE],
        "mean": [0.5, 0.25, 0.125],
        "std": [0.2, 0.25, 0.5],
        "license": "apache-2.0",
    },
}
NORMALIZATION = [127.5, 63.75, 31.875], [51, 63.75, 127.5]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[bn.Model, bytes]:
    """A small network with random weights, and its file."""
    model = bn.models.resnet8((3, SIDE, SIDE), 3)
    random_weights(model)
    path = tmp_path_factory.mktemp("theirs") / "model.safetensors"
    model.save_safetensors(path)
    from safetensors.numpy import load_file, save

    return model, save(load_file(path))  # Without what only blobnet says in the metadata.


@pytest.fixture
def served(hub: Hub, theirs: tuple[bn.Model, bytes]) -> Hub:
    hub.repositories["timm/resnet8.test"] = {
        "model.safetensors": theirs[1],
        "config.json": json.dumps(CONFIG).encode(),
    }
    return hub


def same(found: bn.Model, wanted: bn.Model, but: tuple[str, ...] = ("input/",)) -> None:
    for name, values in wanted.weights.items():
        if not name.startswith(but):
            np.testing.assert_array_equal(found.weights[name], values, err_msg=name)


def test_a_name_of_the_hub(served: Hub, theirs: tuple[bn.Model, bytes]) -> None:
    """Weights, size, classes and normalisation come along; the file says where from, and what was made of it too."""
    model = bn.models.resnet8(pretrained="hf:timm/resnet8.test")
    assert model.graph.input.shape.dimensions == (3, SIDE, SIDE)
    assert list(model.class_names) == NAMES
    same(model, theirs[0])
    for name, wanted in zip(("mean", "deviation"), NORMALIZATION, strict=True):
        np.testing.assert_allclose(model.weights[f"input/{name}"], wanted)
    record = {"name": "hf:timm/resnet8.test", "file": "model.safetensors", "revision": COMMIT}
    record |= {"sha256": hashlib.sha256(theirs[1]).hexdigest(), "license": "apache-2.0"}
    assert model.pretrained == record
    tuned = model.with_classes(5)
    tuned.save("tuned.h5")
    assert bn.load("tuned.h5").pretrained == record
    model.initialize(0)
    assert model.pretrained is None


def test_offline_from_the_cache(served: Hub, theirs: tuple[bn.Model, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    name = "hf:timm/resnet8.test/model.safetensors"
    assert find(name).revision == COMMIT
    served.shutdown()
    served.server_close()
    same(bn.models.resnet8(pretrained=f"{name}@{COMMIT}"), theirs[0])  # What cannot change is not asked for again.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    same(bn.models.resnet8(pretrained=name), theirs[0])
    rule = r"the hub must answer, or the file be in its cache.*Hint: is there a network, and a proxy"
    with pytest.raises(FileError, match=rule):
        bn.models.resnet8(pretrained="hf:timm/another")


def test_the_environment_says_where_the_hub_is(served: Hub, tmp_path: Path) -> None:
    """As other programs do: $HF_ENDPOINT and $HF_HOME when Python starts, then $HF_HUB_OFFLINE."""
    program = "import blobnet as bn; print(bn.models.resnet8(pretrained='hf:timm/resnet8.test').pretrained['revision'])"
    environment = {**os.environ, "HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", program]
    for offline in ("0", "1"):
        served.requests.clear()
        environment["HF_HUB_OFFLINE"] = offline
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == COMMIT, done.stderr
        assert bool(served.requests) is (offline == "0")


def test_other_classes(served: Hub, theirs: tuple[bn.Model, bytes]) -> None:
    rule = (
        "the last layer starts anew: the file has another number of classes, or none. Received layer=logits, file=3, "
    )
    with pytest.warns(BlobnetWarning, match=re.escape(rule + "network=7.")):
        model = bn.models.resnet8(classes=7, pretrained="hf:timm/resnet8.test")
    same(model, theirs[0], but=("input/", "logits/"))
    assert model.class_names == ()


def test_a_path_without_a_head_and_config(hub: Hub, theirs: tuple[bn.Model, bytes]) -> None:
    from safetensors.numpy import load, save_file

    state = {name: values for name, values in load(theirs[1]).items() if not name.startswith("logits.")}
    save_file(state, "trunk.safetensors")
    with pytest.warns(BlobnetWarning) as caught:
        model = bn.models.resnet8((3, 40, 40), 4, pretrained="trunk.safetensors")
    assert [str(one.message).partition(".")[2].partition(":")[2].strip().partition(".")[0] for one in caught] == [
        "the last layer starts anew: the file has another number of classes, or none",
        "without config",
    ]
    same(model, theirs[0], but=("input/", "logits/"))
    assert model.pretrained["revision"] is None
    # With a config beside it.
    Path("config.json").write_text(json.dumps(CONFIG | {"num_classes": 0, "label_names": []}))
    with pytest.warns(BlobnetWarning, match="the last layer starts anew"):
        model = bn.models.resnet8(pretrained="trunk.safetensors")
    assert model.graph.output.shape.units == 10
    np.testing.assert_allclose(model.weights["input/mean"], NORMALIZATION[0])


def test_the_last_layer_says_how_many_classes(
    hub: Hub, theirs: tuple[bn.Model, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without config.json; and what predicts needs a last layer that is the file's."""
    from safetensors.numpy import load, save_file

    Path("w.safetensors").write_bytes(theirs[1])
    Path("net.py").write_text("import blobnet as bn\ndef net(): return bn.models.resnet8((3, 32, 32), 4)\n")
    with pytest.warns(BlobnetWarning, match="nothing says how samples are to be normalised"):
        model = bn.models.resnet8((3, SIDE, SIDE), pretrained="w.safetensors")
    assert model.graph.output.shape.units == 3
    same(model, theirs[0])
    np.savez("x.npz", x=np.zeros((2, 3, SIDE, SIDE), np.uint8))
    assert main(["predict", "net.py:net", "x.npz", "--pretrained", "w.safetensors", "--npz", "p.npz"]) == 0
    with np.load("p.npz") as found:
        np.testing.assert_allclose(found[found.files[0]], model.predict(np.zeros((2, 3, SIDE, SIDE))), rtol=1e-5)
    capsys.readouterr()
    save_file({name: values for name, values in load(theirs[1]).items() if "logits" not in name}, "w.safetensors")
    for command in (["predict", "net.py:net", "x.npz"], ["evaluate", "net.py:net", "--dataset", "x.npz"]):
        assert main([*command, "--pretrained", "w.safetensors"]) == 1
        said = capsys.readouterr().err
        assert "error: w.safetensors: the file must have the weights of the last layer, or " in said
        assert "Received file=0, network=" in said
    Path("config.json").write_text(json.dumps(CONFIG | {"num_classes": 5}))
    Path("w.safetensors").write_bytes(theirs[1])
    assert main(["predict", "resnet8", "x.npz", "--pretrained", "w.safetensors"]) == 1
    assert "Received file=3, network=5." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ({"mean": [0.5], "std": [0.5]}, "mean and std in its config.json must have a number for each unit of the net"),
        ({"mean": [10**400] * 3, "std": [0.5] * 3}, "mean in its config.json must be what timm writes there."),
    ],
)
def test_all_weights_stay_where_the_config_does_not_fit(
    hub: Hub, theirs: tuple[bn.Model, bytes], said: dict[str, Any], rule: str
) -> None:
    Path("w.safetensors").write_bytes(theirs[1])
    Path("config.json").write_text(json.dumps(said))
    model = bn.models.resnet8((3, SIDE, SIDE), 3)
    with pytest.raises(FileError, match=re.escape(f"w.safetensors: {rule}")):
        bn.model.load_pretrained(model, "w.safetensors")
    same(model, bn.models.resnet8((3, SIDE, SIDE), 3), but=())


def test_a_file_of_our_own_says_how_samples_are_normalised(hub: Hub, theirs: tuple[bn.Model, bytes]) -> None:
    model = theirs[0].with_classes(3)
    model.set_normalization(*NORMALIZATION)
    model.save_safetensors("w.safetensors")
    found = bn.models.resnet8((3, SIDE, SIDE), pretrained="w.safetensors")  # No warning.
    same(found, model, but=())


def test_classifiers_in_the_middle_are_named(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    model, path = bn.models.googlenet((3, 64, 64), 3), tmp_path / "m.safetensors"
    random_weights(model)
    model.save_safetensors(path)
    save_file(load_file(path) | {"aux1.fc2.bias": np.zeros(3, np.float32)}, path)
    other = bn.models.googlenet((3, 64, 64), 3)
    rule = "classifiers in the middle of the network are left out. Received tensors=aux1.fc2.bias."
    with pytest.warns(BlobnetWarning, match=re.escape(rule)):
        other.load_safetensors(path)
    same(other, model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:nobody/nothing", "there must be such a repository on the hub, that you may read. Received reason="),
        ("hf:timm/resnet8.test@later", "the repository must have that revision. Received reason="),
        ("hf:timm/pickled", "the repository must have the file model.safetensors; weights are not read from pickles"),
        ("hf:timm/gated", "the repository must be open to you. Received reason="),
        ("hf:timm/resnet8.test/pytorch_model.bin", "weights are read from .safetensors files alone: pickles can run"),
        ("hf:timm", "it must be hf:OWNER/NAME, or a path of a .safetensors file. Received hf:timm."),
        ("hf:ti..mm/--x", "the name must be one that the hub allows. Received reason="),
        ("hf:timm/damaged", "a safetensors file must be whole, but this one is cut short or damaged"),
        ("hf:timm/renamed", "weights are not read from pickles, which can run any code"),
        ("hf:timm/bad_config", "its config.json must be JSON"),
        ("hf:timm/bad_mean", "std in its config.json must be what timm writes there. Received std="),
        ("none.safetensors", "there must be such a file"),
        ("model.bin", "weights are not read from pickles, which can run any code"),
    ],
)
def test_names_and_files_that_are_none(served: Hub, theirs: tuple[bn.Model, bytes], name: str, message: str) -> None:
    good = served.repositories["timm/resnet8.test"]
    served.repositories |= {
        "timm/pickled": {"pytorch_model.bin": b"\x80\x02", "config.json": good["config.json"]},
        "timm/gated": {"gated": b"yes"},
        "timm/damaged": good | {"model.safetensors": theirs[1][:-100]},
        "timm/renamed": good | {"model.safetensors": b"\x80\x02" + bytes(99)},
        "timm/bad_config": good | {"config.json": b"{"},
        "timm/bad_mean": good | {"config.json": json.dumps({"mean": [1], "std": [0]}).encode()},
    }
    Path("model.bin").write_bytes(b"PK\x03\x04" + bytes(99))
    with pytest.raises((FileError, OptionError), match=re.escape(message)):
        bn.models.resnet8((3, SIDE, SIDE), 3, pretrained=name)


def test_files_of_other_networks(served: Hub) -> None:
    rule = "the tensors of the file must be those of the network. Received missing="
    with pytest.raises(FileError, match=re.escape(rule)):
        bn.models.resnet20((3, SIDE, SIDE), 3, pretrained="hf:timm/resnet8.test")
    with pytest.raises(ShapeError, match=r"stem_conv\.weight must have the shape of stem_conv/weight"):
        bn.models.resnet8((1, SIDE, SIDE), 3, pretrained="hf:timm/resnet8.test")


def test_a_file_that_has_changed_in_the_cache(served: Hub) -> None:
    path = Path(find("hf:timm/resnet8.test").path).resolve()
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(FileError, match=r"the file in the cache must be what the hub has \(SHA-256\)"):
        bn.models.resnet8(pretrained="hf:timm/resnet8.test")


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OptionError, match=r'need the package huggingface_hub.*pip install "blobnet\[hub\]"'):
        bn.models.resnet8(pretrained="hf:timm/resnet8.test")


def pictures(classes: list[str]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for number, name in enumerate(classes):
        folder = Path("pictures") / name
        folder.mkdir(parents=True)
        for each in range(6):
            pixels = random.integers(40 * number, 40 * number + 60, (SIDE, SIDE, 3)).astype(np.uint8)
            pillow.fromarray(pixels).save(folder / f"{each}.png")


def test_on_the_command_line(
    served: Hub,
    theirs: tuple[bn.Model, bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Train on with other classes, go on, and evaluate and predict with the file's own."""
    pictures(["one", "two"])
    command = [
        "train",
        "resnet8",
        "--pretrained",
        "hf:timm/resnet8.test",
        "--dataset",
        "pictures",
        "--batch-size",
        "6",
    ]
    assert main([*command, "--freeze-until", "pool", "--epochs", "1"]) == 0
    said = capsys.readouterr().err
    assert f"init    weights of name hf:timm/resnet8.test, file model.safetensors, revision {COMMIT}, sha256 " in said
    assert "; new: logits\n" in said
    tuned = bn.load("resnet8.h5")
    same(tuned, theirs[0], but=("input/", "logits/"))
    np.testing.assert_allclose(tuned.weights["input/mean"], NORMALIZATION[0])
    assert tuned.class_names == ("one", "two")
    assert tuned.pretrained["revision"] == COMMIT
    assert main(["inspect", "resnet8.h5"]) == 0
    assert f"revision {COMMIT}" in capsys.readouterr().out

    served.shutdown()  # Nothing more is needed of the hub.
    served.server_close()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main([*command, "--freeze-until", "pool", "--epochs", "2", "--resume"]) == 0, capsys.readouterr().err
    assert len(bn.load("resnet8.h5").history["loss"]) == 2
    assert main([*command[:2], *command[4:], "--epochs", "3", "--resume"]) == 1
    assert "--pretrained: with --resume it must be what the training began with." in capsys.readouterr().err

    assert main(["predict", "resnet8", "pictures", "--pretrained", "hf:timm/resnet8.test", "--csv", "p.csv"]) == 0
    header = Path("p.csv").read_text().splitlines()[0]
    assert header.endswith(",".join(NAMES))
    capsys.readouterr()
    Path("pictures/one").rename("pictures/cat")
    Path("pictures/two").rename("pictures/hen")
    assert main(["evaluate", "resnet8", "--dataset", "pictures", "--pretrained", "hf:timm/resnet8.test"]) == 0
    model = bn.models.resnet8(pretrained="hf:timm/resnet8.test")
    data = bn.datasets.load("pictures", size=(SIDE, SIDE))
    wanted = model.evaluate(data.train.x, np.array([0, 2])[data.train.y])
    assert f"{wanted['accuracy']:.4f}" in capsys.readouterr().out


def test_files_of_before_are_read_and_damage_is_found(served: Hub) -> None:
    bn.models.resnet8(pretrained="hf:timm/resnet8.test").save("m.h5")
    with h5py.File("m.h5", "r+") as file:
        text = file["pretrained"][()].replace(b"apache", b"apachf")
        del file["pretrained"]
        file["pretrained"] = np.bytes_(text)
    with pytest.raises(FileError, match="must be those that were written"):
        bn.load("m.h5")


def test_what_the_options_need(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["resnet8", "--init-from", "m.h5"]):
        with pytest.raises(SystemExit):
            main(["train", *more, "--pretrained", "hf:a/b", "--dataset", "digits"])
        assert re.search(r"--pretrained needs MODEL, and|required: MODEL", capsys.readouterr().err)
