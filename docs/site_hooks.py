"""For MkDocs: the reference's search path, the page of the command line, and references in docstrings."""

from __future__ import annotations

import argparse
import html
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import tomllib
from mkdocs.plugins import event_priority

from blobnet.support.kinds import spelled

ROOT = Path(__file__).parents[1]
#: Sphinx's roles, which docstrings have in front of names.
_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):(?=<code>)")
#: Asks for the table of a family: of a package, by the name of its base.
_KINDS = re.compile(r"<!-- kinds: (\w+)\.(\w+) -->")


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


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Writes the commands into their page, and tables of kinds where a comment asks for one."""
    markdown = _KINDS.sub(lambda found: kinds(*found.groups()), markdown)
    return markdown + commands() if page.file.src_uri == "commands.md" else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Names files of source code as they are installed, and takes the roles of names away."""
    return _ROLE.sub("", html.replace("<code>build/api/blobnet/", "<code>blobnet/"))


def kinds(package: str, base: str) -> str:
    """A table of a family's classes, their names in options, and what each is, in Markdown."""
    family = getattr(importlib.import_module(f"blobnet.{package}"), base)
    lines = [f"| {package} | in options | |", "|---|---|---|"]
    for name, kind in sorted(family.kinds.items()):
        said = re.sub(r"\s+", " ", inspect.getdoc(kind) or "").partition(". ")[0].rstrip(".:")
        names = ", ".join(f"`{word}`" for word in (spelled(name), *kind.aliases))
        lines.append(f"| `{name}` | {names} | {said.replace('|', '&#124;')} |")
    return "\n".join(lines)


def commands() -> str:
    """All commands with their arguments, as the parser has them, in Markdown."""
    from blobnet.command_line.main import make_parser

    lines: list[str] = []
    for name, parser in make_parser()[1].items():
        lines += [f"\n## blobnet {name}\n", f"    {parser.usage}\n", f"{html.escape(str(parser.description))}\n"]
        for group in parser._action_groups:
            shown = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
            if shown:
                lines += [f"| {group.title} | |", "|---|---|", *map(_row, shown), ""]
        if parser.epilog:
            lines += ["```text", parser.epilog.rstrip(), "```\n"]
    return "\n".join(lines)


def _row(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    word = f"{', '.join(action.option_strings)} {metavar}" if action.nargs != 0 else ", ".join(action.option_strings)
    text = html.escape(str(action.help)).replace("|", "&#124;").replace("*", "&#42;").replace("_", "&#95;")
    return f"| `{word.strip()}` | {text} |"
