"""Pictures: formats, and what is on them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from blobnet import plots
from blobnet.errors import FileError, OptionError
from blobnet.inspection.layer_statistics import LayerSpread
from blobnet.inspection.mistakes import Mistake, Mistakes
from blobnet.inspection.network_inputs import Sheet
from blobnet.memory.blob import Shape
from blobnet.model import Model
from blobnet.models import resnet20
from blobnet.models.lenet5 import lenet5
from blobnet.planning.timeline import memory_schedule
from blobnet.plots.model import _lanes

HISTORY = {"loss": [0.9, 0.5, 0.3], "accuracy": [0.5, 0.7, 0.9], "top_5": [1.0, 1.0, 1.0],
           "validation_loss": [0.8, 0.6, 0.5], "validation_accuracy": [0.6, 0.65, 0.7]}  # fmt: skip
STARTS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.mark.parametrize("suffix", plots.SUFFIXES)
def test_every_format_is_written_whole(tmp_path, suffix) -> None:
    path = tmp_path / f"curves{suffix}"
    path.write_text("an older picture")
    plots.check(path)
    plots.save(plots.curves(HISTORY, "a training"), path)
    assert path.read_bytes().startswith(STARTS[suffix])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("names", "epochs", "size"),
    [(list(HISTORY), 3, (1200, 480)), (list(HISTORY), 1, (1200, 480)), (["loss"], 2, (600, 480))],
)
def test_a_panel_for_each_measure(tmp_path, names, epochs, size) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    plots.save(plots.curves({name: HISTORY[name][:epochs] for name in names}, "a training"), path)
    with image.open(path) as picture:
        assert picture.size == size
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)
    for colour, name in (((31, 119, 180), "loss"), ((255, 127, 14), "validation_loss")):
        drawn = (np.abs(pixels - colour).sum(axis=1) < 30).sum()
        assert (drawn > 20) == (name in names)


def test_what_is_measured_on_validation_data_alone_has_a_panel_too() -> None:
    figure = plots.curves({**HISTORY, "validation_f1": [0.2, 0.4, 0.6], "validation_top_5": [1.0] * 3})
    found = {axes.get_title(): [line.get_ydata() for line in axes.lines] for axes in figure.axes if axes.lines}
    assert list(found) == ["loss", "accuracy", "f1"]
    np.testing.assert_array_equal(found["f1"], [[0.2, 0.4, 0.6]])
    np.testing.assert_array_equal(found["loss"], [HISTORY["loss"], HISTORY["validation_loss"]])


def test_no_window_is_needed(tmp_path) -> None:
    plots.save(plots.curves(HISTORY, "a training"), tmp_path / "a.png")
    assert "matplotlib.pyplot" not in sys.modules or "tkinter" not in sys.modules


@pytest.mark.parametrize("name", ["curves", "curves.jpg", "png"])
def test_other_formats_are_refused(name) -> None:
    with pytest.raises(
        OptionError, match=r"^--plot: the file's name must end in \.png, \.pdf or \.svg\. Received file="
    ):
        plots.check(name)


def test_without_matplotlib(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        OptionError, match=r'^--plot: drawing needs matplotlib\. .* Hint: pip install "blobnet\[plot\]" \(adds'
    ):
        plots.check(Path("a.png"))


def captions(figure: Any) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def test_a_sheet_has_a_picture_and_a_label_for_each_sample() -> None:
    numbers = np.array([7, 3, 5])
    values = np.zeros((3, 1, 4, 4), np.float32)
    values[1] = 1
    labels = np.array([0, 2, 1])
    sheet = Sheet(numbers, values, labels, labels, np.zeros(3), np.zeros(1), np.ones(1), ())
    figure = plots.draw_sheet(sheet, ["ant", "$bee$", "a cat with such a long name that nobody will read it"])
    assert captions(figure) == ["ant", "a cat with such a…", r"\$bee\$"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["#7", "#3", "#5"]
    shown = [axes.images[0].get_array() for axes in figure.axes]
    np.testing.assert_array_equal(shown, values[:, 0])
    assert plots.samples(values, np.arange(3), count=2)._repr_png_().startswith(STARTS[".png"])


@pytest.mark.parametrize(
    ("share", "captions"),
    [
        (0.304, ["cat (70 %)\n+ dog (30 %)", "dog (70 %)\n+ cat (30 %)"]),
        (0.996, ["dog", "cat"]),
        (0.004, ["cat", "dog"]),
        (0.0, ["cat", "dog"]),
    ],
)
def test_labels_of_mixed_samples_have_their_shares(share: float, captions: list[str]) -> None:
    ones = np.ones(1)
    values, shares = np.zeros((3, 1, 4, 4), np.float32), np.array([share, share, 0], np.float32)
    sheet = Sheet(np.arange(3), values, np.array([0, 1, 1]), np.array([1, 0, 0]), shares, ones, ones, ())
    axes = plots.draw_sheet(sheet, ["cat", "dog"]).axes
    assert [each.get_title().strip() for each in axes] == [*captions, "dog"]


def test_labels_of_positions_name_the_classes_that_are_there() -> None:
    labels = np.array([[[1, 1], [1, 0]], [[255, 1], [1, 1]]])
    sheet = Sheet(
        np.arange(2), np.zeros((2, 1, 2, 2), np.float32), labels, labels, np.zeros(2), np.ones(1), np.ones(1), ()
    )
    figure = plots.draw_sheet(sheet, ["cat", "dog"])
    assert [each.get_title() for each in figure.axes] == ["dog, cat", "dog"]
    # Classes lie over the pictures, in the colours that the legend names; what takes no part is left as it is.
    (legend,) = figure.legends
    assert [words.get_text() for words in legend.get_texts()] == ["cat", "dog", "takes no part"]
    colours = [patch.get_facecolor()[:3] for patch in legend.get_patches()]
    pictures = np.array([axes.get_images()[0].get_array() for axes in figure.axes])
    for number, colour in enumerate(colours[:2]):
        seen = pictures[labels == number]
        np.testing.assert_allclose(seen, np.full_like(seen, 0.25 + np.array(colour) / 2), atol=1e-6)
    np.testing.assert_allclose(pictures[labels == 255], 0.5)


@pytest.mark.parametrize(
    ("shape", "picture"),
    [
        ((1, 6, 5), (6, 5)), ((3, 6, 5), (6, 5, 3)), ((2, 6, 5), (6, 11)), ((4, 6, 5), (13, 11)),
        ((20, 6, 5), (27, 23)), ((2, 9), None), ((9,), None),
    ],
)  # fmt: skip
def test_samples_of_any_shape(tmp_path, shape, picture) -> None:
    values = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    y = np.zeros((5, 7))
    sheet = Sheet(np.arange(5), values, y, y, np.zeros(5), np.zeros(shape[0]), np.ones(shape[0]), ())
    figure = plots.draw_sheet(sheet)
    assert captions(figure) == ["0, 0, 0, ..."] * 5
    for axes, sample in zip(figure.axes, values, strict=True):
        if picture is not None:
            assert axes.images[0].get_array().shape == picture
        else:
            curves = [line.get_ydata() for line in axes.lines]
            np.testing.assert_array_equal(np.reshape(curves, shape), sample)
    plots.save(figure, tmp_path / "a.png")


def test_mistakes_say_what_is_and_what_was_said() -> None:
    files = {12: "", 4: "photos/cats/a-cat-of-ours-0004.jpg"}
    worst = tuple(
        Mistake(number, 3.0, "Ankle boot", "T-shirt/top, or the like", 0.42, file) for number, file in files.items()
    )
    figure = plots.draw_mistakes(Mistakes(50, 9, worst, np.ones((2, 3, 5, 5), np.float32)), "a model")
    assert captions(figure) == ["is Ankle boot\nsaid T-shi… (42 %)"] * 2
    assert [axes.get_xlabel() for axes in figure.axes] == ["#12", "…-of-ours-0004.jpg"]
    assert figure.get_suptitle() == "a model\n9 of 50 samples are wrong; the 2 worst of them"


def test_errors_of_targets_are_no_mistakes() -> None:
    worst = (Mistake(7, 0.2536, "0.5", "0.754"), Mistake(2, 0.1, "1", "1.1"))
    figure = plots.draw_mistakes(Mistakes(200, None, worst, np.ones((1, 3, 5, 5), np.float32)), "a model")
    assert captions(figure) == ["is 0.5\nsaid 0.754\noff by 0.254"]
    assert figure.get_suptitle() == "a model\nthe 1 of 200 samples with the largest errors"


def test_mistakes_of_positions_have_a_line_for_what_is_wrong() -> None:
    worst = (Mistake(7, 3.0, "ground", "square", 0.12, masks=np.zeros((2, 5, 5), np.int64)),)
    figure = plots.draw_mistakes(Mistakes(9, 1, worst, np.ones((1, 3, 5, 5), np.float32)), "a model")
    assert captions(figure) == ["is ground\nsaid square\n12 % wrong"]


def test_masks_stand_beside_the_picture_that_they_are_of() -> None:
    masks = np.zeros((2, 4, 5), np.int64)
    masks[0, 1:3, 2:] = 3
    masks[:, 0] = -1
    worst = (Mistake(7, 3.0, "ground", "square", 0.12, masks=masks),)
    values, names = np.random.default_rng(0).random((1, 1, 8, 10), np.float32), ("ground", "a", "b", "square")
    figure = plots.draw_mistakes(Mistakes(9, 1, worst, values, names))
    (axes,) = figure.axes
    (drawn,) = (drawing.get_array() for drawing in axes.get_images())
    assert drawn.shape == (8, 10 + 1 + 10 + 1 + 10, 3)
    truth, said = drawn[:, 11:21], drawn[:, 22:]
    # Each cell is two by two here; what does not count is white.
    wanted = np.repeat(np.repeat(masks, 2, axis=1), 2, axis=2)
    for values, own in ((truth, wanted[0]), (said, wanted[1])):
        assert (values[own == -1] == 1).all()
        colours = [np.unique(values[own == number].reshape(-1, 3), axis=0) for number in np.unique(own[own >= 0])]
        assert all(len(colour) == 1 and (colour != 1).any() for colour in colours)
    assert (truth[4, 9] != said[4, 9]).any()
    assert (truth[7, 0] == said[7, 0]).all()
    assert figure.texts[-1].get_text().endswith("beside it what is and what was said")
    (legend,) = figure.legends
    assert [words.get_text() for words in legend.get_texts()] == ["ground", "square", "takes no part"]
    np.testing.assert_allclose(legend.get_patches()[1].get_facecolor()[:3], truth[4, 9])


@pytest.mark.parametrize(("build", "is_late"), [(resnet20, False), (lenet5, True)])
def test_words_of_a_plan_stand_clear_of_the_line_to_its_peak(build: Callable[..., Model], is_late: bool) -> None:
    plan = build((1, 28, 28), 10).plan(128)
    found = memory_schedule(plan)
    assert (found.peak >= len(found.launches) / 2) == is_late
    figure = plots.memory(plan)
    figure.canvas.draw()
    (axes,) = figure.axes
    words = {item.get_text().split(":")[0]: item for item in axes.texts}
    peak, allocated = words["most in use"], words["allocated"]
    line = peak.arrow_patch.get_window_extent()
    assert not line.overlaps(allocated.get_window_extent())
    assert not Text.get_window_extent(peak).overlaps(Text.get_window_extent(allocated))
    assert axes.get_window_extent().containsx(Text.get_window_extent(peak).x0)
    assert axes.get_window_extent().containsx(Text.get_window_extent(peak).x1)


def test_functions_and_files_have_different_names() -> None:
    for name in plots._MODULES:
        assert name not in plots._MODULES.values()
        assert callable(getattr(plots, name))
    assert sorted(plots.__all__) == sorted([*plots._MODULES, "SUFFIXES", "check"])
    with pytest.raises(AttributeError, match="has no attribute 'curve'"):
        _ = plots.curve


def test_connections_that_overlap_have_lanes_of_their_own() -> None:
    def layer(*inputs: int) -> LayerSpread:
        return LayerSpread("a", "a", ("Add",), inputs, Shape(1), 0)

    layers = [layer(), layer(0), layer(1, 0), layer(2, 0), layer(3, 2), layer(4, 3), layer(5, 3)]
    found = _lanes(layers)
    assert sorted(edge[:2] for edge in found) == [(0, 2), (0, 3), (2, 4), (3, 5), (3, 6)]
    for one, (first, last, lane) in enumerate(found):
        for start, end, other in found[:one]:
            assert lane != other or end <= first or last <= start
    assert max(lane for *_, lane in found) == 2


def test_a_folder_that_is_gone(tmp_path) -> None:
    rule = r"gone/a\.png: the folder of the file must exist\. Received folder=.*/gone\. Hint: mkdir -p .*/gone$"
    with pytest.raises(FileError, match=rule):
        plots.save(plots.curves(HISTORY), tmp_path / "gone" / "a.png")


def test_a_folder_that_is_a_file(tmp_path) -> None:
    (tmp_path / "own.py").touch()
    rule = r"own\.py/x\.png: the folder of the file must be a folder, but it is a file\. Received folder="
    with pytest.raises(FileError, match=rule):
        plots.save(plots.curves(HISTORY), tmp_path / "own.py" / "x.png")


def test_formats_that_are_not_saved(tmp_path) -> None:
    rule = r"^plots\.save: the file's name must end in \.png, \.pdf or \.svg\. Received file=.*x\.foo\.$"
    with pytest.raises(OptionError, match=rule):
        plots.save(plots.curves(HISTORY), tmp_path / "x.foo")


@pytest.mark.parametrize(("history", "names"), [({}, "none"), ({"seconds": [1.0]}, "seconds")])
def test_a_history_of_nothing(history, names) -> None:
    rule = (
        rf"^plots\.curves: the history must have a loss or an accuracy of every epoch\. Received names={names}\. Hint: "
    )
    with pytest.raises(OptionError, match=rule):
        plots.curves(history)


@pytest.mark.parametrize(("function", "subject"), [("network", "layer_spreads"), ("mistakes", "mistakes")])
def test_the_name_of_a_file_is_no_model(function, subject) -> None:
    rule = (
        rf"^{subject}: it takes a Model\. Received type=str\. Hint: blobnet\.load\(path\) gives the model in a file\.$"
    )
    with pytest.raises(OptionError, match=rule):
        getattr(plots, function)("m.h5", None, None)
