"""The code of the pages for users runs as it stands and draws their pictures; each public name has a reference."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import blobnet as bn

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Pages whose ``python`` blocks are one program; blocks of other libraries' code are called ``py``.
PAGES = (
    "index",
    "own_pictures",
    "from_keras",
    "from_pytorch",
    "onnx",
    "weights",
    "models",
    "training",
    "transfer",
    "devices",
)
#: What the code of a page needs beside matplotlib, Pillow and onnx.
NEEDED = {"weights": ("safetensors", "torch", "onnxscript")}


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs(name: str, tmp_path: Path) -> None:
    for package in ("PIL", "matplotlib", "onnx", *NEEDED.get(name, ())):
        pytest.importorskip(package)
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    pictures = set(re.findall(r"!\[.+?\]\(images/(.+?)\)", page))
    (tmp_path / "page.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert {path.name for path in tmp_path.glob("*.png")} == pictures
    assert all((DOCS / "images" / picture).stat().st_size > 5000 for picture in pictures)


@pytest.mark.long
def test_the_site_is_whole(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    inventory = (tmp_path / "site" / "objects.inv").read_bytes().split(b"\n", 4)[4]
    said = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    missing = []
    for name in bn.__all__:
        public = getattr(bn, name)
        for member in getattr(public, "__all__", [None]):
            last = member or name
            if not last.isupper() and not any(
                text.startswith("blobnet.") and text.endswith(f".{last}") for text in said
            ):
                missing.append(f"bn.{name}" + (f".{member}" if member else ""))
    assert not missing
    page = (tmp_path / "site" / "reference" / "augment.html").read_text(encoding="utf-8")
    assert "Source code in <code>blobnet/augment.py" in page


def test_what_takes_arguments_says_what_it_raises() -> None:
    modules = (bn.augment, bn.callbacks, bn.datasets, bn.layers, bn.losses, bn.metrics, bn.optimizers, bn.schedules)
    silent = []
    for module in modules:
        for name in module.__all__:
            text = inspect.getdoc(getattr(module, name)) or ""
            if not text or ("Args:" in text and "Raises:" not in text):
                silent.append(f"{module.__name__}.{name}")
    assert not silent
