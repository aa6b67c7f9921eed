"""What lies beside the tests of a checkout, and not in what is installed: blobnet's own figures alone need it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import blobnet
from blobnet.errors import OptionError


def beside_the_tests(name: str, what: str) -> Any:
    """Return a module of tests/bench, for an option or a command ``what``.

    Raises:
        OptionError: blobnet is installed without its checkout.
    """
    root = Path(blobnet.__file__).parents[1]
    path = root / "tests" / "bench" / f"{name}.py"
    if not path.is_file():
        rule = "what measures blobnet's own figures is in its repository, and not in what is installed"
        hint = "run `pip install -e .` in a checkout of the repository."
        raise OptionError(what, rule, missing=path, hint=hint)
    sys.path.insert(0, str(root))
    return importlib.import_module(f"tests.bench.{name}")
