"""The code of the pages for users runs as it stands and draws their pictures; each public name has a reference."""

from __future__ import annotations

import ast
import html
import inspect
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import blobnet as bn
from blobnet.command_line.main import make_parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Pages whose ``python`` blocks are one program; blocks of other libraries' code are called ``py``.
PAGES = (
    "index",
    "own_pictures",
    "masks",
    "regression",
    "series",
    "looking",
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
    assert "Source code in <code>blobnet/augment/base.py" in page
    site = tmp_path / "site"
    pages = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    source = re.compile(r'<details class="mkdocstrings-source">.*?</details>', re.DOTALL)
    roles = re.compile(r":(class|func|meth|attr|mod|data):(<|`)")
    assert not [name for name, page in pages.items() if roles.search(source.sub("", page))]
    words = html.unescape(re.sub(r"<.*?>", "", pages["reference/layers.html"]))
    assert 'layers.Conv2D(32, 3, padding="same", activation="relu")' in words  # an example
    assert "Conv2D(\n    filters: int" in words  # a signature
    for name, parser in make_parser()[1].items():
        assert f'id="blobnet-{name}"' in pages["commands.html"]
        options = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
        assert not [option for option in options if f"<code>{option}" not in pages["commands.html"]]


def test_each_class_has_an_example_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = (bn.augment, bn.callbacks, bn.datasets, bn.layers, bn.losses, bn.optimizers, bn.schedules)
    # What others derive from, what layers give, and a class that Contraction derives from, are made by nobody.
    bases = {"Augmentation", "Layer", "Loss", "ContractionLayer", "Node", "Optimizer", "Schedule"}
    names = {
        f"{module.__name__}.{name}"
        for module in modules
        for name in module.__all__
        if inspect.isclass(getattr(module, name)) and name not in bases
    }
    text = (DOCS / "examples.py").read_text(encoding="utf-8")
    given = re.findall(r"^# (blobnet\S+)$", text, re.MULTILINE)
    assert len(set(given)) == len(given)
    assert not names - set(given)
    pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    lines, known, shapes = text.splitlines(), {"__name__": "examples"}, 0
    for statement in ast.parse(text).body:
        exec(compile(ast.Module([statement], []), "examples.py", "exec"), known)
        shape = re.search(r"  # (\(.*\))$", lines[(statement.end_lineno or 1) - 1])
        if shape and isinstance(statement, ast.Assign):
            (target,) = statement.targets
            assert isinstance(target, ast.Name)
            assert str(known[target.id].shape.dimensions) == shape[1], lines[statement.lineno - 1]
            shapes += 1
    assert shapes > 50


def test_what_takes_arguments_says_what_it_raises() -> None:
    modules = (bn.augment, bn.callbacks, bn.datasets, bn.layers, bn.losses, bn.metrics, bn.optimizers, bn.schedules)
    silent = []
    for module in modules:
        for name in module.__all__:
            text = inspect.getdoc(getattr(module, name)) or ""
            if not text or ("Args:" in text and "Raises:" not in text):
                silent.append(f"{module.__name__}.{name}")
    assert not silent
