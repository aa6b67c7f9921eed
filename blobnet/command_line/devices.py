"""``blobnet devices``: what OpenCL finds."""

from __future__ import annotations

import argparse

from blobnet import device
from blobnet.errors import DeviceError
from blobnet.plan_report import readable
from blobnet.tuning import Tunings

_FORM = "{:1} {:<7}  {:<5}  {:>5}  {:>9}  {}"


def run(options: argparse.Namespace) -> int:
    """Prints two lines a device, and marks the one that is taken by default."""
    found = device.devices()
    if not found:
        raise device.no_platform_error()
    default, problem = "", None
    try:
        default = device.choose().address
    except DeviceError as error:  # $BLOBNET_DEVICE names none of them: here is the list that helps.
        problem = error
    print(_FORM.format("", "address", "kind", "units", "memory", "name / platform, driver"))
    for info in found:
        mark = "*" if info.address == default else ""
        row = _FORM.format(mark, info.address, info.kind, info.compute_units, readable(info.memory), info.name)
        tuned = len(Tunings(info.identity).winners)
        print(f"{row}\n{'':11}{info.platform}, driver {info.driver}{f', {tuned} tuned' if tuned else ''}")
    print("\n* = default; choose another by address or name: --device, or $BLOBNET_DEVICE")
    if problem:
        raise problem
    return 0
