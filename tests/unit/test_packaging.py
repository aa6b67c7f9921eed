"""An installed blobnet has all that its source tree has: tests run on the tree, so they would not miss a package."""

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
