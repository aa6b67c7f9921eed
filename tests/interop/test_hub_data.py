"""Data sets of the hub: its own client against a server on the loopback that speaks the hub's protocol."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import blobnet as bn
from blobnet import datasets
from blobnet.command_line.main import main
from blobnet.errors import DataError, FileError, OptionError
from tests.interop.hub_server import COMMIT, Hub
from tests.packing import as_png, pack_table

constants = pytest.importorskip("huggingface_hub.constants")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
NAMES = ["cat", "ant", "bee"]


def shard(folder: Path, count: int, first: int = 0) -> bytes:
    pixels = [np.full((8, 8, 3), 7 * (first + number) % 256, np.uint8) for number in range(count)]
    columns = {"image": [(as_png(own), None) for own in pixels], "label": [number % 3 for number in range(count)]}
    features = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    return pack_table(folder / "shard", columns, features).read_bytes()


@pytest.fixture
def served(hub: Hub, tmp_path: Path) -> Hub:
    own = {f"data/train-0000{part}-of-00002.parquet": shard(tmp_path, 9, 9 * part) for part in range(2)}
    own |= {"data/test-00000-of-00001.parquet": shard(tmp_path, 6, 20), "README.md": b"---\n", "data/a.py": b"1/0"}
    hub.repositories["datasets/some/pets"] = own
    hub.repositories["datasets/some/several"] = {
        f"{folder}/{split}/0000.parquet": shard(tmp_path, count)
        for count, (folder, split) in enumerate(
            [("fine", "train"), ("fine", "test"), ("rough", "partial-train"), ("rough", "test")], 6
        )
    }
    hub.repositories["datasets/some/scripts"] = {"load.py": b"1/0"}
    hub.repositories["datasets/some/gated"] = {"gated": b"yes", "train.parquet": b""}
    return hub


def test_a_data_set_of_the_hub(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest revision, of which the name says which it is; then from the cache."""
    data = datasets.load("hf:some/pets")
    assert repr(data) == f"some/pets@{COMMIT}: 18 + 6 samples of (3, 8, 8), 3 classes"
    assert data.class_names == tuple(NAMES)
    np.testing.assert_array_equal(np.asarray(data.train.x)[:, 0, 0, 0], 7 * np.arange(18))
    assert not any("a.py" in request or "README" in request for request in served.requests)
    served.shutdown()
    served.server_close()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("hf:some/pets", f"hf:some/pets@{COMMIT}", "hf:some/pets/data"):
        again = datasets.load(name)
        np.testing.assert_array_equal(np.asarray(again.train.x), np.asarray(data.train.x))
    with pytest.raises(FileError, match=r"the hub must answer, or the file be in its cache.*Hint: is there a network"):
        datasets.load("hf:some/others")


def test_a_folder_of_several(served: Hub) -> None:
    assert repr(datasets.load("hf:some/several/fine")).startswith(f"some/several@{COMMIT}: 6 + 7 samples")
    assert repr(datasets.load("hf:some/several/rough/@main")).startswith(f"some/several@{COMMIT}: 8 + 9 samples")
    rule = "a folder must be chosen, where there are several. Received folders=fine, rough. Hint: hf:some/several/fine"
    with pytest.raises(DataError, match=re.escape(rule)):
        datasets.load("hf:some/several")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:nobody/nothing", "there must be such a repository on the hub, that you may read. Received reason="),
        ("hf:some/pets@later", "the repository must have that revision. Received reason="),
        ("hf:some/gated", "the repository must be open to you. Received reason="),
        ("hf:pets", "it must be hf:OWNER/NAME, perhaps with /FOLDER and @REVISION. Received hf:pets."),
        ("hf:so..me/--x", "the name must be one that the hub allows. Received reason="),
        ("hf:some/scripts", f"there must be Parquet files. Received revision={COMMIT}. Hint: hf:some/scripts@refs/con"),
    ],
)
def test_names_that_are_none(served: Hub, name: str, message: str) -> None:
    with pytest.raises((FileError, OptionError), match=re.escape(message)):
        datasets.load(name)


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OptionError, match=r'need the package huggingface_hub.*pip install "blobnet\[hub\]"'):
        datasets.load("hf:some/pets")


def test_on_the_command_line(served: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "resnet8", "--dataset", "hf:some/pets", "--batch-size", "6", "--epochs"]
    assert main([*command, "1"]) == 0
    said = capsys.readouterr().err
    assert f"data    some/pets@{COMMIT}: 18 + 6 samples of (3, 8, 8), 3 classes\n" in said
    assert bn.load("resnet8.h5").class_names == tuple(NAMES)
    assert main([*command, "2", "--resume"]) == 0
    assert main(["evaluate", "resnet8.h5", "--dataset", f"hf:some/pets@{COMMIT}"]) == 0
