"""The child process that examines (blobnet/examination/children.py)."""

from __future__ import annotations

import json
from collections.abc import Callable

from blobnet.checkup.chains import ChainCheck, examine_chains
from blobnet.checkup.steps import StepCheck, examine_steps
from blobnet.device.device import Device
from blobnet.device.discovery import devices
from blobnet.examination.checks import Check
from blobnet.examination.examination import Finding, examine
from blobnet.support import child_process


def serve(identity: str) -> None:
    """Answers requests, which are checks, by findings, as JSON."""

    def make_examiner() -> Callable[[str], str]:
        wanted = json.loads(identity)
        device = Device(next(info for info in devices() if info.identity == wanted))
        device.programs.builds_in_children = False

        def found(values: dict[str, object]) -> Finding:
            if "loss" in values:
                return examine_steps(device, StepCheck.from_json(values))
            if "mode" in values:
                return examine_chains(device, ChainCheck.from_json(values))
            return examine(device, Check.from_json(values))

        return lambda request: json.dumps(found(json.loads(request)).as_json())

    child_process.serve(make_examiner)
