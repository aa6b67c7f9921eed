"""``blobnet devices``: what OpenCL finds."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blobnet.device import discovery
from blobnet.device.tuning import Tunings
from blobnet.errors import DeviceError
from blobnet.hardware.device_model import DeviceModel, facts
from blobnet.parallel.world import World, device_of_rank
from blobnet.support.formatting import format_bytes

_FORM = "{:1} {:<7}  {:<5}  {:>5}  {:>9}  {}"

#: How facts are written that are no plain numbers or words.
_FORMS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("register_file", "local_memory", "core_memory", "cache_line"), format_bytes),
    "caches": lambda sizes: ", ".join(map(format_bytes, sizes)) or "unknown",
    "clock": lambda hertz: f"{hertz / 1e9:.4g} GHz",
    "flops": lambda speed: f"{speed / 1e9:,.0f} GFLOPS",
    "bandwidth": lambda speed: f"{speed / 1e9:,.0f} GB/s",
    "capability": lambda version: ".".join(map(str, version)),
}


def run(options: argparse.Namespace) -> int:
    """Prints two lines a device, and marks the one that is taken by default; with ``--facts`` what is known of it.

    Ranks of one host that find the same devices have one list, which says who takes which.
    """
    world = World.started()
    with world.propagate_errors():
        found = discovery.devices()
        if not found:
            raise discovery.no_platform_error()
    default, problem = "", None
    try:
        default = device_of_rank(world, None).address
    except DeviceError as error:  # $BLOBNET_DEVICE names none of them: here is the list that helps.
        problem = error
    # NOTE: not what is printed of them: some drivers say how much memory is free at this moment.
    own = platform.node(), tuple((info.address, *info.identity.values()) for info in found)
    listed = [(info.address, *_lines(info, options.facts)) for info in found]
    lists: dict[Any, tuple[list[tuple[str, ...]], dict[int, str]]] = {}
    for rank, (key, rows, taken) in enumerate(world.gather((own, listed, default))):
        lists.setdefault(key, (rows, {}))[1][rank] = taken
    for (host, _), (rows, taken_by) in lists.items():
        if world.size > 1:
            print(f"{_ranks(taken_by)} on {host}")
        print(_FORM.format("", "address", "kind", "units", "memory", "name / platform, driver"))
        for address, *lines in rows:
            takers = [rank for rank, taken in taken_by.items() if taken == address]
            print("*" if takers else " ", *lines[:1])
            print("\n".join([*lines[1:], *([f"{'':11}{_ranks(takers)}"] if takers and world.size > 1 else [])]))
    print("\n* = default; choose another by address or name: --device, or $BLOBNET_DEVICE")
    if problem:
        raise problem
    return 0


def _lines(info: discovery.DeviceInfo, has_facts: bool) -> list[str]:
    """Return the lines about a device, after its mark."""
    tunings = Tunings(info.identity)
    tuned = len(tunings.winners)
    row = _FORM.format("", info.address, info.kind, info.compute_units, format_bytes(info.memory), info.name)
    lines = [row[2:], f"{'':11}{info.platform}, driver {info.driver}{f', {tuned} tuned' if tuned else ''}"]
    return [*lines, *([_facts_text(info.model.measured(**tunings.speeds))] if has_facts else [])]


def _ranks(numbers: Iterable[int]) -> str:
    """``rank 0``, ``ranks 0, 1``."""
    listed = [str(number) for number in numbers]
    return f"rank{'s' * (len(listed) > 1)} {', '.join(listed)}"


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
