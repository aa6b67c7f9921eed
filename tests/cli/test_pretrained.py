"""docs/pretrained.md: networks that packages ship, read, run, fine-tuned on real pictures and taken back to ONNX."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blobnet as bn

pytest.importorskip("onnx")
pytest.importorskip("PIL")

PAGE = (Path(__file__).parents[2] / "docs/pretrained.md").read_text(encoding="utf-8")
#: The parts of the page by their titles; the first is that before all of them.
START, LINES, FACES, FINDING = re.split(r"^## ", PAGE, flags=re.MULTILINE)
#: Seconds for the packages to come.
PATIENCE = 120


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page's first command downloads."""
    folder = tmp_path_factory.mktemp("wheels")
    arguments = shlex.split(re.search(r"^    pip (.+)$", START, re.MULTILINE)[1])  # type: ignore[index]
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--retries", "1", "--timeout", "10"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip did not bring the packages within {PATIENCE} s")
    if done.returncode:
        pytest.skip(f"pip could not bring the packages: {done.stderr.strip().rpartition(chr(10))[2]}")
    return folder


@pytest.fixture
def page(run: Any, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Runs a part of the page in an empty folder: its blocks, and then its commands, whose output it gives."""
    for package in wheels.iterdir():
        Path(package.name).symlink_to(package)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "emotions", raising=False)

    def through(part: str, names: dict[str, Any] | None = None) -> list[str]:
        names = {} if names is None else names
        for block in re.findall(r"```python\n(.*?)```", START + part, re.DOTALL):
            if block.startswith("# emotions.py"):
                Path("emotions.py").write_text(block, encoding="utf-8")
            else:
                exec(block, names)
        printed = []
        for command in re.findall(r"^    blobnet (.+)$", part, re.MULTILINE):
            result = run(*shlex.split(command))
            assert result.status == 0, result.err
            printed.append(result.out)
        return printed

    return through


def accuracy(printed: str) -> float:
    return float(re.search(r"^accuracy +([0-9.]+)", printed, re.MULTILINE)[1])  # type: ignore[index]


def pictures(folder: str, count: int) -> np.ndarray:
    """Some of the pictures, as the networks take them."""
    from PIL import Image

    files = sorted(Path(folder).glob("*/*.png"))[:: len(list(Path(folder).glob("*/*.png"))) // count][:count]
    side = (192, 48) if folder.startswith("lines") else (64, 64)
    arrays = [np.atleast_3d(np.asarray(Image.open(file).resize(side))) for file in files]
    return np.stack(arrays).transpose(0, 3, 1, 2)


def check_onnx(name: str, x: np.ndarray) -> None:
    """The tuned network gives the same in onnxruntime."""
    wanted = bn.load(f"{name}.h5").predict(x)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(f"{name}.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.astype(np.float32)})
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def frozen_alike(before: bn.Model, after: bn.Model, until: str) -> bool:
    """Whether the layers up to one have the weights that they had."""
    names = [name for layer in after.layers_until(until) for name in after.weights if name.startswith(f"{layer}/")]
    assert names
    return all(np.array_equal(before.weights[name], after.weights[name]) for name in names)


@pytest.mark.long
def test_a_classifier_of_lines_from_onnx(page: Callable[[str], list[str]]) -> None:
    _, evaluated, _ = page(LINES)
    before = bn.onnx.load("direction.onnx", sizes=(3, 48, 192))
    after = bn.load("lines.h5")
    assert after.class_names == ("mirrored", "upright", "upside_down")
    assert frozen_alike(before, after, "MaxPool.0")
    # The network as it was knows two of the three classes.
    assert accuracy(evaluated) > 0.7
    check_onnx("lines", pictures("lines/test", 12))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras and NumPy 2 disagree.
@pytest.mark.long
def test_a_classifier_of_faces_from_keras(page: Callable[[str], list[str]]) -> None:
    _, evaluated, _, _, scratch = page(FACES)
    x = pictures("faces/test", 12)
    before, after = bn.onnx.load("emotions.onnx"), bn.load("faces.h5")
    assert frozen_alike(before, after, "add_3")
    assert accuracy(evaluated) > max(0.8, accuracy(scratch))
    check_onnx("faces", x)

    pytest.importorskip("torch")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    wanted = keras.models.load_model("emotions.hdf5", compile=False).predict(
        x.transpose(0, 2, 3, 1) / 127.5 - 1, verbose=0
    )
    np.testing.assert_allclose(before.predict_proba(x), wanted, atol=1e-5)


@pytest.mark.long
def test_a_detector_of_several_outputs_and_sizes(page: Callable[..., list[str]]) -> None:
    """Each network gives what onnxruntime does, and together they find the one face of the photograph."""
    names: dict[str, Any] = {}
    page(FINDING, names)
    (found,) = names["boxes"]
    np.testing.assert_allclose(found, [181, 62, 268, 174], atol=2)
    assert Path("found.png").stat().st_size > 10_000
    assert len(names["session"]._networks) == 7
    (boxes, marks, faces) = np.load("found.npz").values()
    assert (boxes.shape, marks.shape) == ((1, 4), (1, 10))
    assert faces[0, 1] > 0.99

    runtime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    shapes = {"pnet": [(1, 43, 57, 3), (2, 30, 26, 3)], "rnet": [(5, 24, 24, 3)], "onet": [(3, 48, 48, 3)]}
    for name, sizes in shapes.items():
        theirs = runtime.InferenceSession(f"{name}.onnx", providers=["CPUExecutionProvider"])
        ours = bn.onnx.Session(f"{name}.onnx")
        for size in sizes:
            x = random.standard_normal(size).astype(np.float32)
            wanted = theirs.run(None, {theirs.get_inputs()[0].name: x})
            for values, expected in zip(ours.predict(x).values(), wanted, strict=True):
                np.testing.assert_allclose(values, expected, atol=1e-5)
