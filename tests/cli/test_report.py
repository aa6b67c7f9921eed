"""``blobnet report``: the page of a model says what the library says, and needs nothing but itself."""

from __future__ import annotations

import base64
import io
import re
import socket
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn
from blobnet import layers
from blobnet.errors import OptionError
from blobnet.inspection.mistakes import worst_mistakes
from blobnet.support import page

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


class Page(HTMLParser):
    """What is in a page: by section its text, the rows of its tables, and its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.section = self.fact = ""
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self.images: dict[str, list[np.ndarray]] = {}
        self.facts: dict[str, str] = {}
        self.drawn: dict[str, list[tuple[str, dict[str, str | None]]]] = {}
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert not {"src", "href"} & given.keys() or re.match(
            "data:image/png;base64,", given.get("src") or given["href"] or ""
        )
        assert tag not in ("script", "link", "iframe")
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.section = given["id"] or "" if tag == "section" else self.section
        if tag == "tr":
            self.rows.setdefault(self.section, []).append([])
        if tag in ("td", "th"):
            self.rows[self.section][-1].append("")
        if url := given.get("src") or given.get("href"):
            pixels = np.asarray(image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))
            self.images.setdefault(self.section, []).append(pixels)
        if tag in ("polyline", "circle", "rect"):
            self.drawn.setdefault(self.section, []).append((tag, given))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts[self.section] = self.texts.get(self.section, "") + data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[self.section][-1][-1] += data
        if self.open and self.open[-1] == "dt":
            self.fact = data
            self.facts[data] = ""
        if self.open and self.open[-1] == "dd":
            self.facts[self.fact] += data


def read(path: str | Path) -> Page:
    return Page(Path(path).read_text(encoding="utf-8"))


def test_a_page_says_what_the_library_says(run, trained) -> None:
    done = run("report", trained, "--dataset", "digits", "--output", "a.html", "--license", "CC0 <1>", "--count", 5)
    assert (done.status, done.out) == (0, "saved a.html\n")
    found, model, data = read("a.html"), bn.load(trained), bn.datasets.load("digits")
    x, y = data.test.x, data.test.y
    sections = ["about", "training", "measured", "classes", "mistakes", "samples", "layers", "time", "plan"]
    assert [name for name in found.texts if name] == sections
    measured = model.evaluate(x, y, batch_size=64)
    for name, value in measured.items():
        np.testing.assert_allclose(float(found.facts[name.replace("_", " ")]), value, rtol=1e-4)
    header, *epochs, last = found.rows["training"]
    assert header == ["epoch", *model.history]
    assert len(epochs) + 1 == len(model.history["loss"])
    np.testing.assert_allclose(
        [float(cell) for cell in last[1:]], [own[-1] for own in model.history.values()], rtol=1e-5
    )
    assert len(found.drawn["training"]) == 2  # A line of the loss, and one of the accuracy.
    report = model.report(x, y)
    own, matrix = found.rows["classes"][:12], found.rows["classes"][12:]
    assert own[0] == ["class", *report.table()[0]]
    np.testing.assert_allclose(
        np.array([row[1:4] for row in own[1:-1]], float).T, [report.precision, report.recall, report.f1], atol=6e-5
    )
    np.testing.assert_array_equal(np.array([row[1:] for row in matrix[1:]], int), report.matrix)
    worst = worst_mistakes(model, x, y, count=5)
    text = found.texts["mistakes"]
    for item in worst.worst:
        assert f"is {item.truth}said {item.said} (" in text
        assert f"#{item.number}" in text
    assert f"{worst.wrong} of 360 samples are wrong; the 5 worst of them" in text
    pictures, rows = found.images["mistakes"], [item.number for item in worst.worst]
    assert [picture.shape for picture in pictures] == [(8, 8), (8, 8, 3), (8, 8, 3)] * 5
    maps = bn.explain.grad_cam(model, x[rows]), bn.explain.saliency(model, x[rows])
    for number, own_maps in enumerate(maps, start=1):
        drawn = bn.explain.overlay(worst.values, own_maps)
        np.testing.assert_allclose(np.stack(pictures[number::3]).astype(int), drawn, atol=1)
    assert len(found.images["samples"]) == 5
    assert found.facts["license"] == "CC0 <1>"
    assert found.facts["data"] == str(data)
    assert found.facts["versions"].startswith(f"blobnet {bn.__version__}, Python ")
    assert ["logits", "Dense", "(10)", "850"] in found.rows["layers"]
    assert found.rows["plan"][0] == ["storage", "planes", "bytes", "halo", "buffer"]
    shares = [float(share) for share in re.findall(r"ms, ([\d.]+)%", found.texts["time"])]
    np.testing.assert_allclose(sum(shares), 100, atol=1.1)
    assert "convolution/" in found.texts["time"]


def test_a_page_without_data(run, trained) -> None:
    """Of a model alone there is less to say; the page lies beside it."""
    Path("own.h5").write_bytes(Path(trained).read_bytes())
    assert run("report", "own.h5", "--no-timing").out == "saved own.html\n"
    found = read("own.html")
    assert [name for name in found.texts if name] == ["about", "training", "layers", "plan"]
    assert found.facts["license"] == found.facts["data"] == "not said"
    failed = run("report", "own.h5", "--output", "own.h5")
    assert failed.err == "error: --output: it must not name the model's file. Received file=own.h5.\n"


def tiny(output: layers.Layer, *behind: layers.Layer, **settings: Any) -> bn.Model:
    first = layers.Conv2D(4, 3, padding="same", activation="relu")
    return bn.Sequential([layers.Input(3, 12, 10, name="in"), first, *behind, output], seed=1, **settings)


def test_numbers_have_their_answers_over_the_truth(tmp_path: Path) -> None:
    model, rng = tiny(layers.Dense(2), layers.GlobalAveragePool(), class_names=["age", "<b>"]), np.random.default_rng(0)
    model.loss = bn.losses.MeanSquaredError()
    x, y = rng.normal(size=(9, 3, 12, 10)).astype(np.float32), rng.normal(size=(9, 2)).astype(np.float32)
    bn.report(
        model, tmp_path / "a.html", x, y, timing=False, count=2, metrics="mae", files=[f"<{n}>.png" for n in range(9)]
    )
    found, report = read(tmp_path / "a.html"), model.report(x, y)
    assert found.facts["mae"] == f"{model.evaluate(x, y, metrics='mae')['mae']:.6g}"
    assert [row[0] for row in found.rows["classes"]] == ["number", "age", "<b>", "mean"]
    np.testing.assert_allclose(float(found.rows["classes"][2][1]), report.mae[1], atol=6e-5)
    dots = [given for tag, given in found.drawn["classes"] if tag == "circle"]
    assert len(dots) == 18
    across = np.array([float(given["cx"] or 0) for given in dots[:9]])
    np.testing.assert_allclose(np.corrcoef(across, y[:, 0])[0, 1], 1, atol=1e-5)
    up = np.array([float(given["cy"] or 0) for given in dots[:9]])
    np.testing.assert_allclose(np.corrcoef(up, model.predict(x)[:, 0])[0, 1], -1, atol=1e-2)
    worst = worst_mistakes(model, x, y, count=2)
    assert all(f"<{item.number}>.png" in found.texts["mistakes"] for item in worst.worst)
    assert len(found.images["mistakes"]) == 2  # Several numbers are not one answer that came from somewhere.


def test_several_labels_have_their_precision(tmp_path: Path) -> None:
    model, rng = (
        tiny(layers.Dense(3), layers.GlobalAveragePool(), class_names=["a", "b", "c"]),
        np.random.default_rng(1),
    )
    model.loss = bn.losses.BinaryCrossEntropy()
    x, y = rng.normal(size=(9, 3, 12, 10)).astype(np.float32), rng.integers(0, 2, (9, 3)).astype(np.float32)
    bn.report(model, tmp_path / "a.html", x, y, timing=False)
    found, report = read(tmp_path / "a.html"), model.report(x, y)
    column = found.rows["classes"][0].index("AP")
    shown = [float(row[column]) for row in found.rows["classes"][1:4]]
    np.testing.assert_allclose(shown, report.class_average_precision, atol=6e-5)  # type: ignore[union-attr]


def test_masks_lie_beside_mistakes(tmp_path: Path) -> None:
    model, rng = tiny(layers.Conv2D(3, 1)), np.random.default_rng(2)
    model.loss = bn.losses.CrossEntropy()
    x, y = rng.integers(0, 256, (4, 3, 12, 10), np.uint8), rng.integers(0, 3, (4, 12, 10))
    model.set_normalization(128, 74)
    bn.report(model, tmp_path / "a.html", x, y, timing=False, count=2)
    found = read(tmp_path / "a.html")
    np.testing.assert_array_equal(
        np.array([row[1:] for row in found.rows["classes"][-3:]], int),
        model.report(x, y).matrix,  # type: ignore[union-attr]
    )
    assert {picture.shape for picture in found.images["mistakes"][::3]} == {(12, 32, 3)}  # Two masks, and lines.


def test_boxes_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    model, rng = tiny(layers.Conv2D(6, 1), class_names=["cat", "dog", "w", "h", "x", "y"]), np.random.default_rng(3)
    model.loss = bn.losses.CenterNet()
    model.set_weights({"conv2d_2/bias": [3, -3, 4, 4, 0.5, 0.5]})
    x = rng.normal(size=(3, 3, 12, 10)).astype(np.float32)
    y = np.full((3, 2, 5), -1, np.float32)
    y[:, 0] = 1, 0.2, 0.25, 0.7, 0.75
    bn.report(model, tmp_path / "a.html", x, y, timing=False, count=2)
    found = read(tmp_path / "a.html")
    assert {"box map", "box map 50"} <= found.facts.keys()
    assert len(found.images["boxes"]) == 2
    assert "mistakes" not in found.texts
    dashed = [given for _, given in found.drawn["boxes"] if "stroke-dasharray" in given]
    assert len(dashed) == 2
    assert [float(dashed[0][side] or 0) for side in ("x", "y", "width", "height")] == [2, 3, 5, 6]
    from blobnet.losses.center_net import boxes_of

    assert len(found.drawn["boxes"]) == 2 + (boxes_of(model.predict(x[:2]))[..., 1] >= 0.3).sum()


def test_several_outputs(tmp_path: Path) -> None:
    entry = layers.Input(4, name="in")()
    model = bn.Model(entry, {"kind": layers.Dense(3)(entry), "size": layers.Dense(1)(entry)}, seed=1)
    model.loss = {"kind": bn.losses.CrossEntropy(), "size": bn.losses.MeanSquaredError()}
    x = np.random.default_rng(4).normal(size=(6, 4)).astype(np.float32)
    y = {"kind": np.arange(6) % 3, "size": x[:, :1]}
    bn.report(model, tmp_path / "a.html", x, y)
    found = read(tmp_path / "a.html")
    assert found.facts["kind loss"] == f"{model.evaluate(x, y)['kind_loss']:.6g}"
    assert [row[0] for row in found.rows["classes"] if row[0] in ("class", "number")] == ["class", "number"]
    assert "A step was not timed: " in found.texts["time"]


def test_errors(tmp_path: Path) -> None:
    model = tiny(layers.Dense(2), layers.GlobalAveragePool())
    with pytest.raises(OptionError, match="report: samples and labels go together"):
        bn.report(model, tmp_path / "a.html", np.zeros((1, 3, 12, 10)))
    with pytest.raises(OptionError, match="report: it takes a Model"):
        bn.report("a.h5", tmp_path / "a.html")  # type: ignore[arg-type]


def test_many_classes_are_pairs(tmp_path: Path) -> None:
    model, rng = tiny(layers.Dense(40), layers.GlobalAveragePool()), np.random.default_rng(5)
    model.loss = bn.losses.CrossEntropy()
    x, y = rng.normal(size=(50, 3, 12, 10)).astype(np.float32), rng.integers(0, 40, 50)
    bn.report(model, tmp_path / "a.html", x, y, timing=False)
    pairs = [row for row in read(tmp_path / "a.html").rows["classes"] if len(row) == 3][1:]
    matrix = model.report(x, y).matrix  # type: ignore[union-attr]
    assert [int(matrix[int(own), int(said)]) for own, said, _ in pairs] == [int(count) for *_, count in pairs]
    np.fill_diagonal(matrix, 0)
    assert sorted(matrix.reshape(-1))[-len(pairs) :] == sorted(int(count) for *_, count in pairs)


def test_curves_go_through_their_values() -> None:
    values = [0.5, 2.0, float("nan"), 1.0]
    found = Page(page.section("a", "a", page.curves("loss", {"training": values})))
    lines = [given["points"] or "" for _, given in found.drawn["a"]]
    places = [[float(value) for value in point.split(",")] for line in lines for point in line.split()[:-1]]
    assert [len(line.split()) - 1 for line in lines] == [2, 1]  # NaN is a gap, and what is alone a dot.
    across, up = np.array(places).T
    np.testing.assert_allclose(np.diff(across) / np.diff([1, 2, 4]), np.full(2, np.ptp(across) / 3), rtol=0.01)
    np.testing.assert_allclose(np.diff(up)[1] / np.diff(up)[0], (1.0 - 2.0) / (2.0 - 0.5), rtol=0.02)
    assert page.curves("loss", {"training": [float("nan")]}) == ""
    assert "training" in page.curves("loss", {"training": [3.0, 3.0]})
    # Numbers that differ in their last bits, or are hardly numbers of a chart.
    for pair in ([0.43329583344918976, 0.4332958334491898], [0.0, 5e-324], [-1.7e308, 1.7e308]):
        assert "training" in page.curves("loss", {"training": pair})
    assert page.dots("a", [(1.0, float("inf")), (2.0, 3.0)], "x").count("<circle") == 1


def test_train_serves_its_curves(run, net) -> None:
    settings = ["--dataset", "digits", "--epochs", 1]
    done = run("train", net, *settings, "--live", 0, "--output", "own.h5")
    assert done.status == 0
    assert re.search(r"^live    http://127\.0\.0\.1:\d+/$", done.err, re.MULTILINE)
    assert "--live: it must be a port, from 0 to 65535" in run("train", net, *settings, "--live", "x").err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        failed = run("train", net, *settings, "--live", number, "--output", "other.h5")
        assert failed.status == 1
        assert (
            f"error: Live: the port must be free, and one that this user may have. Received port={number}" in failed.err
        )
        assert not Path("other.h5").exists()
