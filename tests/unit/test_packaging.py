"""An installed blobnet has all that its source tree has: tests run on the tree, so they would not miss a package."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_folder_of_modules_is_installed():
    settings = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    elsewhere = {Path(folder): package for package, folder in settings["package-dir"].items()}
    folders = {
        path.parent.relative_to(ROOT) for top in (Path("blobnet"), *elsewhere) for path in (ROOT / top).rglob("*.py")
    }
    names = {elsewhere.get(folder, ".".join(folder.parts)) for folder in folders}
    # Kernels are data, with no module beside them.
    assert sorted(settings["packages"]) == sorted({*names, "blobnet.kernels"})


def test_the_source_distribution_has_what_the_readme_links_to(tmp_path):
    """And licence, documentation and changelog."""
    pytest.importorskip("setuptools", minversion="77")
    tree, made = tmp_path / "tree", tmp_path / "made"
    top = ("blobnet", "kernels", "models", "datasets", "docs")
    for name in top:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tree)
    made.mkdir()
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, made], cwd=tree, capture_output=True, check=True)
    (archive,) = made.iterdir()
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(links) > 30
    assert {*links, "LICENSE", "mkdocs.yml", "docs/images/devices_memory.png", "kernels/blob.h"} <= names


def test_a_checkout_may_be_imported_by_both_names():
    """The folders at its top are packages by themselves there."""
    code = "import blobnet, models; assert models.resnet8 is blobnet.models.resnet8; print('both')"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.stdout == "both\n", said.stderr


def test_no_placeholder_is_left_in_the_licence():
    assert "[yyyy]" not in (ROOT / "LICENSE").read_text()
