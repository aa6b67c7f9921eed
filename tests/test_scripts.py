"""Programs beside the tests, which are run on demand or by CI alone: what they import is there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SCRIPTS = sorted(
    str(path.relative_to(TESTS))
    for path in TESTS.rglob("*.py")
    if "__main__" in path.read_text(encoding="utf-8") and not path.name.startswith("test_")
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_names_that_a_script_imports_are_there(name: str) -> None:
    tree = ast.parse((TESTS / name).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    own = [node for node in imports if node.module and node.module.split(".")[0] in ("blobnet", "tests")]
    for node in own:
        module = import_module(str(node.module))
        missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
        assert not [name for name in missing if not _is_module(f"{node.module}.{name}")]


def _is_module(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError:
        return False
    return True
