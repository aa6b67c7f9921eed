"""Parsing of the command line: argparse with near matches and short errors."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from blobnet.errors import near_matches, nearest


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that takes no abbreviations, and answers a typo with what may have been meant."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Says what is wrong with the command line, in two lines, and ends with status 2."""
        self.exit(2, f"error: {message}\nSee '{self.prog} --help'.\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and file is sys.stdout:  # Which argparse passes over where it cannot be written.
            file.write(message)
        else:
            super()._print_message(message, file)

    def refuse_unknown(self, arguments: list[str]) -> None:
        """Ends with an error if there are arguments that no option took."""
        if not arguments:
            return
        name = arguments[0].partition("=")[0]
        options = [option for option in self._option_string_actions if option.startswith("--")]
        meant = [option for option in options if _initials(option) == name.strip("-")]
        # All of the options stand in the help, which the error names.
        near = nearest(meant[0] if meant else name, meant or options) if name.startswith("-") else None
        if name.endswith(".tar"):
            near = "a pattern must stand in quotes, as --dataset 'train-{000..146}.tar' does"
        self.error(f"unknown argument {arguments[0]!r}" + (f": {near}" if near else ""))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"unknown name {value!r}: {near_matches(str(value), known)}")


def _initials(option: str) -> str:
    """Return the initials that people shorten an option to: ``lr`` for ``--learning-rate``."""
    return "".join(word[0] for word in option.strip("-").split("-"))
