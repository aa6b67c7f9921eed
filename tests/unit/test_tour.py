"""The core that docs/tour.md lists is there, and small enough to be read in an afternoon."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Lines of all files together, as the README says.
MAX_LINES = 6000


def test_the_core_is_there_and_small() -> None:
    page = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    files = re.findall(r"^\* `([\w/.]+)`:", page, re.MULTILINE)
    assert len(files) == len(set(files)) >= 15
    lines = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files}
    assert sum(lines.values()) < MAX_LINES, f"{sum(lines.values())} lines: {lines}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{MAX_LINES:,} lines" in re.sub(r"\s+", " ", readme)
    assert f"{MAX_LINES:,} lines" in re.sub(r"\s+", " ", page)


def test_names_that_the_tour_points_out_are_there() -> None:
    page = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"^\* `([\w/.]+)`:(.*?)(?=^\*|^#|\Z)", page, re.MULTILINE | re.DOTALL):
        source = (ROOT / name).read_text(encoding="utf-8")
        for word in re.findall(r"`([A-Za-z_.]+)`", text):
            if "/" not in word and "=" not in word:
                assert re.search(rf"\b{word.rpartition('.')[2]}\b", source), f"{name} has no {word}"


def test_files_that_pages_and_docstrings_name_are_there() -> None:
    """But in docs/history, which is left as it was written."""
    folders = "blobnet", "kernels", "models", "datasets"
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cl", ".h")]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    missing = set()
    for path in [*sources, *pages]:
        for name in re.findall(
            r"(?<![\w/.])((?:blobnet|kernels|docs|tests)/[\w/.-]+\.(?:py|cl|h|md|json))\b", path.read_text("utf-8")
        ):
            if not (ROOT / name).exists():
                missing.add(f"{path.relative_to(ROOT)}: {name}")
    assert not missing
