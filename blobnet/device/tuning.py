"""Measurements of a device: the fastest candidate for each task, kept in the user's cache (docs/tuning.md).

A file holds one device and driver; it counts only as it was written (its seal says so), and with the kernels that it
was measured with. Below it lie the tunings
that ship with blobnet: for devices of that name, whatever their driver, and then for their relatives.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from blobnet.errors import FileError, warn
from blobnet.hardware.device_model import Answers, model_of
from blobnet.launch.kernel_source import fingerprint
from blobnet.launch.task import BrokenVariant, Task, TunedChoices, Variant
from blobnet.support.regular_file import check_regular
from blobnet.support.user_cache import cache_folder, is_own, locked, make_folder, seal, write_atomically

#: What may have been measured of a device besides: fp32 operations and bytes a second.
SPEEDS = ("flops", "bandwidth")
#: How thoroughly a task was measured, the least first.
LEVELS = ("none", "fast", "wide")


#: Answers that a file need not hold.
_SILENCE = Answers("")
#: What was said of files.
_NOTED: set[tuple[Path, str]] = set()


def answers_in(content: Mapping[str, Any]) -> Answers:
    """Return the driver's answers in a file that ships: its device can be planned for without it."""
    lists = {name: tuple(value) for name, value in content["answers"].items() if isinstance(value, list)}
    return Answers(**{**content["answers"], **lists})


@dataclass(frozen=True)
class Winner:
    """The fastest candidate of a task, and what would be taken without tuning; times are in ms.

    ``level`` says among how many it won: see LEVELS.
    """

    candidate: Variant
    ms: float
    default: Variant
    default_ms: float
    level: str

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Winner:
        """A winner from a file; TypeError, ValueError or KeyError if it is none."""
        LEVELS.index(values["level"])
        times = {name: float(values[name]) for name in ("ms", "default_ms")}
        ways = {name: Variant.parse(values[name]) for name in ("candidate", "default")}
        return cls(ways["candidate"], times["ms"], ways["default"], times["default_ms"], values["level"])


def parse_winners(values: Mapping[str, Any]) -> dict[Task, Winner]:
    """The winners of a file; TypeError, ValueError, KeyError or AttributeError if there is anything else."""
    return {Task.parse(name): Winner.parse(winner) for name, winner in values["tasks"].items()}


def _winners_text(winners: Mapping[Task, Winner]) -> dict[str, dict[str, Any]]:
    """Winners as a file has them, in the order of their names."""
    named = {str(task): winner for task, winner in winners.items()}
    ways = {name: {"candidate": str(item.candidate), "default": str(item.default)} for name, item in named.items()}
    return {name: {**asdict(named[name]), **ways[name]} for name in sorted(named)}


@dataclass
class _Content:
    """The content of a device's file: winners by task, what its driver breaks, and SPEEDS.

    ``denied`` are the faults that a check has found, with its verdict, and ``verified`` the ways that passed one.
    """

    tasks: dict[Task, Winner] = field(default_factory=dict)
    broken: set[BrokenVariant] = field(default_factory=set)
    speeds: dict[str, float] = field(default_factory=dict)
    denied: dict[BrokenVariant, str] = field(default_factory=dict)
    verified: set[BrokenVariant] = field(default_factory=set)

    def add(self, other: _Content) -> None:
        """Takes in what another holds."""
        self.tasks |= other.tasks
        self.broken |= other.broken
        self.speeds |= other.speeds
        self.denied |= other.denied
        self.verified |= other.verified

    def lift(self, faults: Collection[BrokenVariant]) -> None:
        """Takes what is right after all off the list of what is denied."""
        for fault in faults:
            self.denied.pop(fault, None)


class Tunings:
    """The tunings of a device. Files are read when they are first asked for.

    Args:
        identity: what tells devices and drivers apart; ``device`` is the device's name.
        relatives: of the device, see blobnet.hardware.device_model; without any, only its name counts.
    """

    def __init__(self, identity: Mapping[str, str], relatives: Sequence[str] = ()) -> None:
        self.identity = dict(identity)
        self._relatives = tuple(relatives) or (self.identity["device"],)

    @property
    def path(self) -> Path:
        """The file in the cache."""
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        return _folder() / f"{_slug(self.identity['device'])}-{digest}.json"

    @cached_property
    def _measured(self) -> _Content:
        return self._read()

    @cached_property
    def shipped(self) -> tuple[Mapping[Task, Variant], ...]:
        """The candidates by task that blobnet brings for this device and its relatives, the nearest first."""
        contents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(_shipped_folder().glob("*.json"))]
        relatives = [model_of(answers_in(content)).relatives for content in contents]
        order = {number: None for own in self._relatives for number, theirs in enumerate(relatives) if own in theirs}
        return tuple(
            {task: winner.candidate for task, winner in parse_winners(contents[number]).items()} for number in order
        )

    def _shipped_path(self, folder: Path) -> Path:
        """The file for devices of this name."""
        return folder / f"{_slug(self.identity['device'])}.json"

    @property
    def winners(self) -> Mapping[Task, Winner]:
        """The winners that were measured on this device, by task."""
        return self._measured.tasks

    @cached_property
    def choices(self) -> TunedChoices:
        """The candidates that were measured as the fastest, here or where blobnet comes from, and what is broken."""
        return TunedChoices(
            ({task: winner.candidate for task, winner in self.winners.items()}, *self.shipped), self.broken
        )

    @property
    def broken(self) -> frozenset[BrokenVariant]:
        """The variants that this driver does not build, or builds wrongly."""
        return frozenset(self._measured.broken | self.denied.keys())

    @property
    def denied(self) -> Mapping[BrokenVariant, str]:
        """The broken variants that ``blobnet doctor``, or the check of a first use, has found, with its verdict."""
        return self._measured.denied

    @property
    def verified(self) -> frozenset[BrokenVariant]:
        """The ways that have passed a check here, as the faults that they are not."""
        return frozenset(self._measured.verified)

    def judge(self, denied: Mapping[BrokenVariant, str], verified: Iterable[BrokenVariant]) -> None:
        """Keeps what checks have found: what must not be used, with the verdict, and what is right now.

        Raises:
            FileError: the file cannot be written.
        """
        passed = set(verified) - denied.keys()
        self._keep(_Content(denied=dict(denied), verified=passed), lifted=passed)

    def clear_denied(self) -> int:
        """Forgets all that was denied, and says how much that was; FileError if the file cannot be written."""
        denied = dict(self.denied)
        if denied:
            self._keep(_Content(), lifted=denied)
        return len(denied)

    def record(self, task: Task, winner: Winner) -> None:
        """Keeps the winner of a task, at once; FileError if the file cannot be written."""
        self._keep(_Content({task: winner}))

    def mark_broken(self, *faults: BrokenVariant) -> None:
        """Keeps candidates or variants from being chosen; FileError if the file cannot be written."""
        self._keep(_Content(broken=set(faults)))

    @property
    def speeds(self) -> Mapping[str, float]:
        """Facts of the device's model (blobnet.hardware.device_model) that were measured: SPEEDS, as far as known."""
        return self._measured.speeds

    def record_speeds(self, **speeds: float) -> None:
        """Keeps measured SPEEDS; FileError if the file cannot be written."""
        self._keep(_Content(speeds=speeds))

    def check_writable(self) -> None:
        """Raises FileError if :meth:`record` would."""
        self._save(_Content())

    def ship(self, folder: Path, tasks: Iterable[Task], answers: Answers) -> Path:
        """Puts what was measured of ``tasks`` into this device's file in ``folder``, in the form in which tunings ship.

        What the file holds of other tasks stays. Without any winner, a file that is not there is not made.

        Args:
            folder: of the files; it is made.
            tasks: those without a winner are left out.
            answers: of the device, which say what candidates it has, and whose relative it is.

        Returns:
            The file.

        Raises:
            FileError: the file cannot be read or written, or is of another device.
        """
        path = self._shipped_path(folder)
        winners = _winners_of(path, self.identity["device"])
        winners |= {task: self.winners[task] for task in tasks if task in self.winners}
        values = {
            "device": self.identity["device"],
            "answers": {name: value for name, value in asdict(answers).items() if value != getattr(_SILENCE, name)},
            "tasks": _winners_text(winners),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if winners:
                write_atomically(path, _json(values))
        except OSError as error:
            raise FileError(str(path), "the file must be writable", cause=error) from error
        return path

    def _keep(self, found: _Content, lifted: Collection[BrokenVariant] = ()) -> None:
        self._measured.add(found)
        self._measured.lift(lifted)
        self._save(found, lifted)

    def _save(self, found: _Content, lifted: Collection[BrokenVariant] = ()) -> None:
        vars(self).pop("choices", None)
        try:
            make_folder(self.path.parent)
            with locked(self.path.parent):
                # What other processes have found meanwhile stays.
                content = self._read()
                content.add(found)
                content.lift(lifted)
                values = {
                    **self.identity,
                    "kernels": fingerprint(),
                    "broken": sorted(map(str, content.broken)),
                    "denied": {str(fault): content.denied[fault] for fault in sorted(content.denied)},
                    "verified": sorted(map(str, content.verified)),
                    "speeds": content.speeds,
                    "tasks": _winners_text(content.tasks),
                }
                write_atomically(self.path, _json({"seal": self._seal(values), **values}))
        except OSError as error:
            rule, hint = "the tuning cache must be writable", "set XDG_CACHE_HOME to a folder that is."
            raise FileError(str(self.path), rule, cause=error, hint=hint) from error

    def _seal(self, values: Mapping[str, Any]) -> str:
        """Return the seal that confirms that the file's values are those that were kept."""
        return seal(self.path, _json(values)).hex()

    def _read(self) -> _Content:
        """The file's content; empty, with a warning, where it is of no use."""
        try:
            check_regular(self.path)
            text = self.path.read_bytes()
            if not is_own(self.path):
                return self._useless("the tuning cache must be this user's own, and is ignored")
        except (FileNotFoundError, FileError):  # FileError: there is no cache for a user without a home.
            return _Content()
        except OSError as error:
            return self._useless("the tuning cache must be readable", cause=error)
        damaged = "the tuning cache must be as it was written, and is ignored with all that it denies"
        try:
            values = json.loads(text)
            given = values.pop("seal", None)
            if given != self._seal(values):
                # Before files had seals, any command left its device's speeds there, which are found again.
                is_old = given is None and not values.get("tasks") and not values.get("denied")
                return _Content() if is_old else self._useless(damaged, seal=given)
            speeds = {name: float(values["speeds"][name]) for name in SPEEDS if name in values["speeds"]}
            denied = {BrokenVariant.parse(name): str(verdict) for name, verdict in values.get("denied", {}).items()}
            broken, verified = (
                {BrokenVariant.parse(name) for name in values.get(key, ())} for key in ("broken", "verified")
            )
            content = _Content(parse_winners(values), broken, speeds, denied, verified - denied.keys())
            identity = {name: values[name] for name in self.identity}
            kernels = values["kernels"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return self._useless(damaged, cause=repr(error))
        for name, value in identity.items():
            if value != self.identity[name]:
                rule = f"the tuning cache must be of this {name}, and is ignored"
                return self._useless(rule, file=value, here=self.identity[name])
        if kernels != fingerprint():
            # What any command leaves there, a peak or a fault, is found again by itself.
            rule = "the tuning cache is of other kernels than these, and is ignored"
            return self._useless(rule) if content.tasks else _Content()
        return content

    def _useless(self, rule: str, **received: Any) -> _Content:
        # Each model may open the device anew.
        if (self.path, rule) not in _NOTED:
            _NOTED.add((self.path, rule))
            warn(str(self.path), rule, hint="'blobnet doctor' and 'blobnet tune MODEL' write it anew.", **received)
        return _Content()


def _winners_of(path: Path, device: str) -> dict[Task, Winner]:
    """The winners of a file in the form in which tunings ship; none if it is not there. FileError as for ship."""
    if not path.exists():
        return {}
    try:
        check_regular(path)
        content = json.loads(path.read_bytes())
        winners, of = parse_winners(content), content["device"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        rule, hint = "the file must be one that 'blobnet tune --output' wrote", "remove it, and tune again."
        raise FileError(str(path), rule, cause=repr(error), hint=hint) from error
    if of != device:
        raise FileError(str(path), "the file must be of this device", file=of, here=device)
    return winners


def _json(values: Mapping[str, Any]) -> bytes:
    """The content of a file."""
    return (json.dumps(values, indent=1) + "\n").encode()


def _folder() -> Path:
    """The folder of the cache's files."""
    return cache_folder() / "tunings"


def _shipped_folder() -> Path:
    """The folder of the files that ship with blobnet."""
    return Path(__file__).with_name("tunings")


def _slug(name: str) -> str:
    """A device's name as part of a file's."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
