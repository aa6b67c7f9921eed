"""Follows docs/adding_a_layer.md to the letter: its files are written to a folder, and its test must pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import blobnet as bn
from blobnet import layers
from blobnet.memory.blob import Shape

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "adding_a_layer.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_guide(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = dict(re.findall(r"`(\w+\.py)`, .*?:\n\n```python\n(.*?)```", GUIDE, re.DOTALL))
    assert sorted(files) == ["gain.py", "test_gain.py", "train_gain.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "BLOBNET_CHECK": "1",
    }
    printed = []
    for command in (
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_gain.py"],
        ["train_gain.py"],
    ):
        result = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        printed.append(result.stdout)
    assert "1 passed" in printed[0]
    assert float(re.search(r"'accuracy': ([0-9.]+)", printed[1])[1]) > 0.7  # type: ignore[index]
    (picture,) = re.findall(r"!\[.+?\]\(images/(.+?)\)", GUIDE)
    assert (tmp_path / picture).stat().st_size > 5000
    assert (ROOT / "docs" / "images" / picture).stat().st_size > 5000


def test_its_one_line() -> None:
    text = re.search(r"```python\n(layers\.Contraction\(.*?\n\))\n```", GUIDE, re.DOTALL)
    assert text
    layer = eval(text[1], {"layers": layers})
    assert layer.output_shape([Shape(3, 5, 7)]) == Shape(32, 5, 7)
    assert [spec.shape for spec in layer.parameters([Shape(3, 5, 7)])] == [(32, 3)]


def test_its_other_text() -> None:
    text = re.search(r"    (function \(I\[N, C, Y, X\]\).*?\})\n", GUIDE, re.DOTALL)
    assert text
    layer = layers.Contraction(text[1])
    assert bn.Sequential([layers.Input(units=3, height=4, width=5), layer]).graph.output.shape == Shape(3, 4, 5)
