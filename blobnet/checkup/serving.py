"""The child process that examines (blobnet/examination/children.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blobnet.checkup.chains import ChainCheck, examine_chains
from blobnet.checkup.steps import StepCheck, examine_steps
from blobnet.device.device import Device
from blobnet.device.discovery import identified
from blobnet.examination.examination import Finding, examine
from blobnet.support import child_process

#: What examines checks of each kind; all others are those of a single layer.
_EXAMINERS: dict[type, Callable[[Device, Any], Finding]] = {StepCheck: examine_steps, ChainCheck: examine_chains}


def serve(identity: str) -> None:
    """Answers requests, which are checks, by findings."""

    def make_examiner() -> Callable[[Any], Finding]:
        device = Device(identified(identity))
        device.programs.builds_in_children = False
        return lambda check: _EXAMINERS.get(type(check), examine)(device, check)

    child_process.serve(make_examiner)
