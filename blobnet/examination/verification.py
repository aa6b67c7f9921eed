"""Findings become lists of denied and verified variants, in a device's tunings (blobnet/device/tuning.py)."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterable

from blobnet.device.device import Device
from blobnet.device.tuning import Tunings
from blobnet.errors import FileError, warn
from blobnet.examination.checks import Check, Examinable, checks_of_plan
from blobnet.examination.children import examine_all
from blobnet.examination.examination import OK, Finding
from blobnet.execution.executor import DENIALS_TOLD, MAX_CAUSE
from blobnet.launch.task import BrokenVariant
from blobnet.planning import Plan


def judge(tunings: Tunings, findings: Iterable[tuple[Examinable, Finding]]) -> list[BrokenVariant]:
    """Keeps what checks have found in a device's tunings, and gives what is denied by them.

    Raises:
        FileError: it cannot be kept beyond this process.
    """
    denied, passed = dict[BrokenVariant, str](), set[BrokenVariant]()
    for check, finding in findings:
        fault = check.fault
        if fault and finding.condemns:
            denied[fault] = finding.verdict
        elif fault and finding.verdict == OK:
            passed.add(fault)
    if denied or passed:
        tunings.judge(denied, passed)
    return sorted(denied)


def verify_plan(device: Device, plan: Plan) -> list[BrokenVariant]:
    """Checks each way to compute in a plan that was never checked on this device, driver and source.

    What fails is denied from now on, with a warning: whoever asked makes another plan.

    Returns:
        What is denied.
    """
    found: list[tuple[Check, Finding]] = []
    known = device.tunings.verified | device.tunings.denied.keys()  # Those are there where nothing else is.
    for check, finding in examine_all(device.info.identity, list(checks_of_plan(plan, known))):
        found.append((check, finding))
        if finding.is_failure and check.fault:
            cause = textwrap.shorten(f"{finding.verdict}: {finding.note}", MAX_CAUSE).rstrip(".")
            rule = f"{device.info.name} must compute rightly by this variant"
            outcome = "it is left out from now on" if finding.condemns else "it is used nevertheless"
            hint = f"{outcome}; 'blobnet doctor' says more."
            warn(str(check.fault), rule, cause=cause, hint=hint)
            DENIALS_TOLD.add((device.info.name, check.fault))
    denied = sorted({check.fault for check, finding in found if check.fault and finding.condemns})
    with contextlib.suppress(FileError):  # This process knows it; the next one will check again.
        judge(device.tunings, found)
    return denied
