"""The sizes that functions and classes keep to; those of arguments and branches are ruff's (pyproject.toml)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Lines of a function, with its docstring; methods of a class.
MAX_LINES, MAX_METHODS = 60, 24
#: What is larger, and why it may be. `fit` explains its 30 keywords; a Model is what users call.
LARGER = {"Model.fit": 200, "Model": 53}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def sizes(node: ast.AST, where: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield (name, size, limit) of each function and class below a node."""
    for child in ast.iter_child_nodes(node):
        name = f"{where}{child.name}" if isinstance(child, (*_FUNCTIONS, ast.ClassDef)) else ""
        if isinstance(child, _FUNCTIONS):
            assert child.end_lineno is not None
            yield name, child.end_lineno - child.lineno + 1, MAX_LINES
        elif isinstance(child, ast.ClassDef):
            yield name, sum(isinstance(item, _FUNCTIONS) for item in child.body), MAX_METHODS
        yield from sizes(child, f"{name}." if name else where)


def test_functions_and_classes_keep_to_their_sizes() -> None:
    paths = [path for room in ("blobnet", "models", "datasets") for path in (ROOT / room).rglob("*.py")]
    found = [(path, *each) for path in paths for each in sizes(ast.parse(path.read_text(encoding="utf-8")))]
    assert len(found) > 3000
    large = {name: size for _, name, size, limit in found if size > LARGER.get(name, limit)}
    assert not large, "find the idea that makes it smaller"
