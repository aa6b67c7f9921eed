"""For MkDocs: the reference's search path, in which the packages lie as they are installed (pyproject.toml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomllib
from mkdocs.plugins import event_priority

ROOT = Path(__file__).parents[1]


@event_priority(100)  # before mkdocstrings' own, which looks for the path
def on_config(config: Any) -> Any:
    """Makes build/api/blobnet of links."""
    package = ROOT / "build" / "api" / "blobnet"
    package.mkdir(parents=True, exist_ok=True)
    sources = list((ROOT / "blobnet").iterdir())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in settings["tool"]["setuptools"]["package-dir"]:
        sources.append(ROOT / name.removeprefix("blobnet."))
    for source in sources:
        link = package / source.name
        if not link.is_symlink():
            link.symlink_to(source)
    return config


def on_page_content(html: str, **_: Any) -> str:
    """Names files of source code as they are installed."""
    return html.replace("<code>build/api/blobnet/", "<code>blobnet/")
