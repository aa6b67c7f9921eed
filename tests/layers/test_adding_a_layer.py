"""Follows docs/adding_a_layer.md to the letter: its files are written to a copy of the tree, and its test must pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_guide(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "adding_a_layer.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"`([\w/]+\.(?:py|cl))`:\n\n```\w+\n(.*?)```", guide, re.DOTALL))
    assert sorted(files) == [
        "blobnet/layers/gain.py",
        "kernels/gain/backward_data.cl",
        "kernels/gain/backward_factor.cl",
        "kernels/gain/forward.cl",
        "tests/layers/test_gain.py",
        "tests/reference/gain.py",
    ]
    # The copy is laid out as an installation is: the top-level folders lie inside the package.
    package = tmp_path / "blobnet"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "blobnet", package, ignore=ignore)
    for folder in ("kernels", "models", "datasets"):
        shutil.copytree(ROOT / folder, package / folder, ignore=ignore)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignore)
    for name, text in files.items():
        place = (package if name.startswith("kernels/") else tmp_path) / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")
    exports = package / "layers" / "__init__.py"
    line = re.search(r"^    (from blobnet\.layers\.gain import Gain)$", guide, re.MULTILINE)
    assert line
    exports.write_text(exports.read_text(encoding="utf-8") + line.group(1) + "\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/layers/test_gain.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 passed" in result.stdout
