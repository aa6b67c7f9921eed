"""What was measured on a device: the fastest candidate for each task, kept in the user's cache (docs/tuning.md).

A file holds one device and driver; it counts only with the kernels that it was measured with. Below it lie the tunings
that ship with blobnet, a file for a device of that name, whatever its driver.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from blobnet.cache import cache_folder, write_atomically
from blobnet.errors import FileError, warn
from blobnet.kernel_source import fingerprint

#: How thoroughly a task was measured, the least first.
LEVELS = ("none", "fast", "wide")


@dataclass(frozen=True)
class Winner:
    """The fastest candidate of a task, and what would be taken without tuning; times are in ms.

    ``level`` says among how many it won: see LEVELS.
    """

    candidate: str
    ms: float
    default: str
    default_ms: float
    level: str

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Winner:
        """A winner from a file; TypeError, ValueError or KeyError if it is none."""
        LEVELS.index(values["level"])
        times = {name: float(values[name]) for name in ("ms", "default_ms")}
        return cls(str(values["candidate"]), times["ms"], str(values["default"]), times["default_ms"], values["level"])


@dataclass
class _Content:
    """What a file holds of a device: winners by task, and the candidates and variants that its driver breaks."""

    tasks: dict[str, Winner] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)


class Tunings:
    """The tunings of a device. Files are read when they are first asked for.

    Args:
        identity: what tells devices and drivers apart; ``device`` is the device's name.
    """

    def __init__(self, identity: Mapping[str, str]) -> None:
        self.identity = dict(identity)

    @property
    def path(self) -> Path:
        """The file in the cache."""
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        return _folder() / f"{_slug(self.identity['device'])}-{digest}.json"

    @cached_property
    def _measured(self) -> _Content:
        return self._read(quiet=False)

    @cached_property
    def shipped(self) -> Mapping[str, str]:
        """The candidate for each task that blobnet brings for devices of this name."""
        file = _shipped_folder() / f"{_slug(self.identity['device'])}.json"
        if not file.is_file():
            return {}
        content = json.loads(file.read_text(encoding="utf-8"))
        is_same = content["device"] == self.identity["device"]
        return {task: winner["candidate"] for task, winner in content["tasks"].items() if is_same}

    @property
    def winners(self) -> Mapping[str, Winner]:
        """What was measured on this device, by task."""
        return self._measured.tasks

    @cached_property
    def choices(self) -> Mapping[str, str]:
        """The candidate for each task: measured here, else shipped."""
        return {**self.shipped, **{task: winner.candidate for task, winner in self.winners.items()}}

    @property
    def broken(self) -> frozenset[str]:
        """Candidates and variants that this driver does not build, or builds wrongly."""
        return frozenset(self._measured.broken)

    def record(self, task: str, winner: Winner) -> None:
        """Keeps the winner of a task, at once; FileError if the file cannot be written."""
        self._measured.tasks[task] = winner
        self._save({task: winner}, set())

    def mark_broken(self, *names: str) -> None:
        """Keeps candidates or variants from being chosen; FileError if the file cannot be written."""
        self._measured.broken.update(names)
        self._save({}, set(names))

    def check_writable(self) -> None:
        """Raises FileError if :meth:`record` would."""
        self._save({}, set())

    def _save(self, tasks: Mapping[str, Winner], broken: set[str]) -> None:
        # What other processes have found meanwhile stays.
        content = self._read(quiet=True)
        content.tasks |= tasks
        content.broken |= broken
        vars(self).pop("choices", None)
        values = {
            **self.identity,
            "kernels": fingerprint(),
            "broken": sorted(content.broken),
            "tasks": {task: asdict(winner) for task, winner in sorted(content.tasks.items())},
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, (json.dumps(values, indent=1) + "\n").encode())
        except OSError as error:
            rule, hint = "the tuning cache must be writable", "set XDG_CACHE_HOME to a folder that is."
            raise FileError(str(self.path), rule, cause=error, hint=hint) from error

    def _read(self, *, quiet: bool) -> _Content:
        """The file's content; empty, with a warning, where it is of no use."""
        try:
            text = self.path.read_bytes()
        except (FileNotFoundError, FileError):  # FileError: there is no cache for a user without a home.
            return _Content()
        except OSError as error:
            return self._useless("the tuning cache must be readable", quiet, cause=error)
        try:
            values = json.loads(text)
            content = _Content(
                {str(task): Winner.parse(winner) for task, winner in values["tasks"].items()},
                {str(name) for name in values["broken"]},
            )
            identity = {name: values[name] for name in self.identity}
            kernels = values["kernels"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return self._useless("the tuning cache must be a file that 'blobnet tune' wrote", quiet, cause=repr(error))
        for name, value in identity.items():
            if value != self.identity[name]:
                rule = f"the tuning cache must be of this {name}, and is ignored"
                return self._useless(rule, quiet, file=value, here=self.identity[name])
        if kernels != fingerprint():
            return self._useless("the tuning cache is of other kernels than these, and is ignored", quiet)
        return content

    def _useless(self, rule: str, quiet: bool, **received: Any) -> _Content:
        if not quiet:
            warn(str(self.path), rule, hint="'blobnet tune MODEL' writes it anew.", **received)
        return _Content()


def _folder() -> Path:
    """The folder of the cache's files."""
    return cache_folder() / "tunings"


def _shipped_folder() -> Path:
    """The folder of the files that ship with blobnet."""
    return Path(__file__).with_name("tunings")


def _slug(name: str) -> str:
    """A device's name as part of a file's."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
