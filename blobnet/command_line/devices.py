"""``blobnet devices``: what OpenCL finds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from blobnet import device
from blobnet.device_model import DeviceModel, facts
from blobnet.errors import DeviceError
from blobnet.plan_report import readable
from blobnet.tuning import Tunings

_FORM = "{:1} {:<7}  {:<5}  {:>5}  {:>9}  {}"

#: How facts are written that are no plain numbers or words.
_FORMS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("register_file", "local_memory", "core_memory", "cache_line"), readable),
    "caches": lambda sizes: ", ".join(map(readable, sizes)) or "unknown",
    "clock": lambda hertz: f"{hertz / 1e9:.4g} GHz",
    "flops": lambda speed: f"{speed / 1e9:,.0f} GFLOPS",
    "bandwidth": lambda speed: f"{speed / 1e9:,.0f} GB/s",
    "capability": lambda version: ".".join(map(str, version)),
}


def run(options: argparse.Namespace) -> int:
    """Prints two lines a device, and marks the one that is taken by default; with ``--facts`` what is known of it."""
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
        tunings = Tunings(info.identity)
        tuned = len(tunings.winners)
        print(f"{row}\n{'':11}{info.platform}, driver {info.driver}{f', {tuned} tuned' if tuned else ''}")
        if options.facts:
            print(_facts_text(info.model.measured(**tunings.speeds)))
    print("\n* = default; choose another by address or name: --device, or $BLOBNET_DEVICE")
    if problem:
        raise problem
    return 0


def _facts_text(model: DeviceModel) -> str:
    """A line a fact: its name, its value, and where it comes from."""
    rows = [(name, _value_text(name, value), origin) for name, value, origin in facts(model) if name != "name"]
    return "\n".join(f"{'':11}{name:<16}{value:<30}{origin}".rstrip() for name, value, origin in rows)


def _value_text(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if name in _FORMS:
        return _FORMS[name](value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)
