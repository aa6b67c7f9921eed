"""``blobnet show``: what it takes for what, what it prints, and where the pictures go."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import blobnet as bn
from blobnet.errors import extra
from blobnet.inspection.layer_statistics import layer_spreads
from blobnet.inspection.network_inputs import sample_sheet


def size_of(path: str) -> tuple[int, int]:
    with pytest.importorskip("PIL.Image").open(path) as picture:
        size: tuple[int, int] = picture.size
        return size


def own_data(path: Path, count: int = 30) -> None:
    x = np.random.default_rng(0).integers(0, 256, (count, 3, 8, 8)).astype(np.uint8)
    names = np.array([b"cat", b"$dog$"])
    if path.suffix == ".npz":
        np.savez(path, x=x, y=np.arange(count) % 2, class_names=names.astype(str))
        return
    with h5py.File(path, "w") as file:
        file["x"], file["y"], file["class_names"] = x, np.arange(count) % 2, names


def test_a_data_set_by_name(run) -> None:
    result = run("show", "digits", "--augment", "crop=2,flip", "--count", 12, "--seed", 4)
    assert (result.status, result.err) == (0, "saved digits-samples.png\n")
    data = bn.datasets.load("digits")
    sheet = sample_sheet(data.train.x, data.train.y, augment="crop=2,flip", count=12, seed=4)
    values = sheet.values
    assert result.out.splitlines() == [
        str(data),
        f"values of the 12 samples shown, normalised: from {values.min():.4g} to {values.max():.4g}, "
        f"mean {values.mean():.4g}, standard deviation {values.std():.4g}",
    ]
    assert min(size_of("digits-samples.png")) > 400


@pytest.mark.parametrize("suffix", ["npz", "h5", "hdf5"])
def test_a_data_set_in_a_file(run, suffix) -> None:
    own_data(Path(f"own.{suffix}"))
    result = run("show", f"own.{suffix}", "--plot", "a.svg")
    assert (result.status, result.err) == (0, "saved a.svg\n"), result.err
    assert result.out.startswith("own: 30 samples of (3, 8, 8), 2 classes\n")
    assert Path("a.svg").read_text().startswith("<?xml")
    assert not list(Path().glob("*.png"))


def test_a_folder_of_pictures(run) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in "ab":
        Path(f"pictures/{name}").mkdir(parents=True)
        for number in range(3):
            image.fromarray(np.full((9, 9, 3), 40 * number, np.uint8)).save(f"pictures/{name}/{number}.png")
    result = run("show", "pictures/", "--image-size", "5x4")
    assert (result.status, result.err) == (0, "saved pictures-samples.png\n")
    assert result.out.startswith("pictures: 6 samples of (3, 5, 4), 2 classes\n")


def test_a_model_file(run, trained) -> None:
    result = run("show", trained)
    assert (result.status, result.err) == (0, "saved lenet5-layers.png\n")
    assert result.out == f"{layer_spreads(bn.load(trained))}\n"
    small = size_of("lenet5-layers.png")
    result = run("show", trained, "--dataset", "digits", "--count", 20, "--seed", 3, "--plot", "b.png")
    assert (result.status, result.err) == (0, "saved b.png\n")
    data = bn.datasets.load("digits").train
    assert result.out == f"{layer_spreads(bn.load(trained), data.x, data.y, count=20, seed=3)}\n"
    assert "dead" in result.out.splitlines()[0]
    assert size_of("b.png")[0] > small[0] + 500


def test_a_model_by_name_and_one_of_the_user(run, net) -> None:
    result = run("show", "resnet8")
    assert (result.status, result.err) == (0, "saved resnet8-layers.png\n")
    assert result.out.splitlines()[3].startswith("stem_conv + BatchNorm + relu")
    result = run("show", net, "--dataset", "digits", "--count", 16)
    assert (result.status, result.err) == (0, "saved net-layers.png\n")
    assert result.out.splitlines()[0].split()[-4:] == ["gradients", "values", "zero", "dead"]


def test_wrong_use(run, trained) -> None:
    own_data(Path("own.npz"))
    Path("foreign.h5").write_bytes(b"")
    with h5py.File("weights.h5", "w") as file:
        file["kernel"] = np.zeros(3)
    cases = [
        (["digit"], "WHAT: it must be a data set, a model file, or one of blobnet's models. Received name=digit. "
                    "Hint: did you mean 'digits'?"),
        (["lenet"], "WHAT: it must be a data set, a model file, or one of blobnet's models. Received name=lenet. "
                    "Hint: did you mean 'lenet5'"),
        (["nowhere/"], "WHAT: it must be"),
        (["no/where"], "no/where: there must be such a file or folder."),
        (["no.h5"], "no.h5: there must be such a file."),
        (["weights.h5"], "weights.h5: the file must be a model that blobnet wrote, or a data set. Received "
                         "reason=weights.h5: it must hold the arrays x and y. Received found=['kernel']."),
        (["digits", "--dataset", "digits"], "--dataset: only a model is run on a data set. Received what=digits."),
        ([trained, "--augment", "flip"], "--augment: only the samples of a data set are augmented."),
        ([trained, "--dataset", "own.npz"], "own: each sample must have the shape of the model's input."),
        (["digits", "--augment", "flop"], "--augment: every word must be that of an augmentation."),
        ([trained, "--count", "3"], "--count: it is for the samples of --dataset, which a model is run on."),
        ([trained, "--image-size", "8x8"], "--image-size: it is for the samples of --dataset"),
        (["digits", "--plot", "a.gif"], "--plot: the file's name must end in .png, .pdf or .svg."),
        (["digits", "--plot", "no/a.png"], "no/a.png: the folder of the file must exist"),
        (["digits", "--image-size", "8x8"], "size: only a folder of pictures can be resized."),
    ]  # fmt: skip
    for arguments, message in cases:
        result = run("show", *arguments)
        assert (result.status, result.out) == (1, ""), arguments
        assert result.err.startswith(f"error: {message}"), result.err
    assert not list(Path().glob("*.png"))


def test_without_matplotlib(run, trained, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for what in ("digits", trained):
        result = run("show", what)
        assert (result.status, result.out) == (1, "")
        assert result.err.startswith("error: --plot: drawing needs matplotlib. ")
        assert result.err.endswith(f"Hint: {extra('plot')}\n")
        assert result.err.count("\n") == 1
