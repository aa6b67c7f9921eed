"""Checks in child processes: a driver that crashes or hangs takes no one else with it."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from blobnet.examination.checks import Examinable
from blobnet.examination.examination import CRASHED, FAILED, HUNG, Finding
from blobnet.support.child_process import Child, Overseer, command_of, results_of
from blobnet.support.cores import usable_cores

Kind = TypeVar("Kind", bound=Examinable)

#: Seconds that a check may take, its builds among them.
LIMIT = 60.0
#: Children that work side by side at most: compilers of CPUs' drivers use one core.
_MOST = 4
#: The program of a child.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from blobnet.checkup.serving import serve
serve(sys.argv[2])
"""


def examine_all(
    identity: Mapping[str, str], checks: Sequence[Kind], *, limit: float = LIMIT
) -> Iterator[tuple[Kind, Finding]]:
    """Has children examine a device, and yields each finding when it is there.

    A check that takes too long, or on which a child dies that had done others before, is tried once more, in a child of
    its own.

    Args:
        identity: of the device, see DeviceInfo.
        checks: what to examine.
        limit: seconds for each check.
    """
    waiting = deque(checks)
    count = min(usable_cores(), _MOST, len(checks))
    return results_of([_Examiner(identity, waiting, limit) for _ in range(count)])


class _Examiner(Overseer[Kind, tuple[Kind, Finding]]):
    """Hands checks to a child, and starts another where one dies."""

    def __init__(self, identity: Mapping[str, str], waiting: deque[Kind], limit: float) -> None:
        super().__init__(waiting)
        self._command = command_of(_PROGRAM, json.dumps(dict(identity)))
        self._limit = limit

    def _result(self, check: Kind) -> tuple[Kind, Finding] | None:
        finding = self._examine(check)
        return None if self._is_dismissed else (check, finding)

    def _examine(self, check: Kind) -> Finding:
        was_used = self._child is not None
        finding = self._ask(check)
        # A machine may be busy, and a process may die of what was done in it before.
        is_doubtful = finding.verdict == HUNG or (finding.verdict == CRASHED and was_used)
        if not is_doubtful or not finding.is_certain or self._is_dismissed:
            return finding
        again = self._ask(check)
        if again.is_failure:
            return again
        note = f"once; it passes when it is tried again, in a process of its own: {finding.note}"
        return replace(again, verdict=finding.verdict, note=note, is_certain=False)

    def _ask(self, check: Kind) -> Finding:
        """Have a child run a check; end the child if it dies, is too late, or may have lost its device."""
        way = str(check.way)
        if self._child is None:
            with contextlib.suppress(OSError):
                self._child = Child(self._command)
            if self._child is None:
                return Finding(FAILED, way=way, note="no process could be started")
            if not self._child.is_ready(self._limit):
                return self._failure(way, "the device could not be opened: ")
        finding: Finding | None = self._child.ask(check, self._limit)
        if finding is None:
            return self._failure(way)
        if finding.verdict == FAILED:
            self._close()
        return finding

    def _failure(self, way: str, where: str = "") -> Finding:
        assert self._child is not None
        if self._child.is_late:
            finding = Finding(HUNG, way=way, note=f"{where}no answer within {self._limit:g} s", is_certain=not where)
        else:
            finding = Finding(CRASHED, way=way, note=where + self._child.last_words(), is_certain=not where)
        self._close()
        return finding
