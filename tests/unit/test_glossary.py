"""One word, one meaning (docs/glossary.md), as far as a text shows it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
WORDS, OTHERS = (
    re.findall(r"^\| (?!word|not|---)(.+?) \| (.+?) \|$", part, re.MULTILINE) for part in PAGE.split("## ")
)
SOURCES = [
    path
    for folder in ("blobnet", "kernels", "models", "datasets")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".cl", ".h")
]
#: Files whose words are those of others: their formats, their arguments, titles of papers.
OF_OTHERS = (
    *("blobnet/onnx/", "blobnet/interop/", "blobnet/support/foreign.py"),
    *("blobnet/schedules/cosine.py", "blobnet/layers/initializers.py", "docs/drivers.md"),
)
#: Classes of one name that are told apart by their rooms: kinds that users see, and values within one room.
SHARED = {
    *("Activation", "Compiled", "Constant", "Contraction", "Entry", "Expression", "FileSource", "Memory", "Node"),
    *("Operation", "Part", "Place", "Reader", "Report", "Schedule", "Step", "Table", "Tensor", "Tile"),
}


def test_each_word_is_there_once_and_used() -> None:
    words = [word for word, _ in WORDS]
    plain = [word.partition(" (")[0] for word in words]
    assert plain == sorted(plain)
    times = Counter(plain)
    assert all(" (of " in word for word in words if times[word.partition(" (")[0]] > 1)
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES).lower()
    assert [word for word in plain if not re.search(rf"\b{word}(s|es)?\b", text)] == []


def test_other_words_are_not_used() -> None:
    banned = [item for words, _ in OTHERS for item in words.split(", ")]
    assert len(banned) > 10
    pattern = re.compile("|".join(rf"\b{re.escape(item)}s?\b" for item in banned), re.IGNORECASE)
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name != "glossary.md"]
    found = {}
    for path in [*SOURCES, *pages, ROOT / "README.md"]:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(OF_OTHERS):
            hits = sorted({match[0] for match in pattern.finditer(path.read_text(encoding="utf-8"))})
            found |= {name: hits} if hits else {}
    assert not found


def test_no_new_class_takes_the_name_of_another() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        if path.suffix == ".py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = {name for name, count in names.items() if count > 1}
    assert shared <= SHARED, f"give these other names: {sorted(shared - SHARED)}"
