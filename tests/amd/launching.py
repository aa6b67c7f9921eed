"""Runs a launch of a kernel's machine code on memory of this process."""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.amd.code_object import CodeObject
from tests.amd.instructions import NUMBERS
from tests.amd.machine import FAULTS, Launch, Start, Traffic, interpreter

#: Waves take turns of so many instructions at most, at random, if $BLOBNET_AMD_TURN says so: a barrier that is missing
#: shows. If not, each runs until a barrier or its end.
TURN = "BLOBNET_AMD_TURN"
MAX_INSTRUCTIONS = 4_000_000_000
_NAMES = list(NUMBERS)


@dataclass(frozen=True)
class Counts:
    """What a launch's waves did, all of them.

    Attributes:
        instructions: how often each instruction was executed, by its name; of a pair both, what only waits not.
        pairs: how many of them were issued together with the one before.
        groups: of work-items.
        traffic: bytes and clocks of memory instructions (machine.Traffic); empty if they were not asked for.
    """

    instructions: Counter[str]
    pairs: int
    groups: int
    traffic: dict[str, int]


class LaunchError(Exception):
    """A launch did what it must not; names the kernel, the instruction, the lane and the group."""


def run(
    code: CodeObject,
    entry: str,
    values: Sequence[Any],
    global_size: Sequence[int],
    local_size: Sequence[int],
    regions: Iterable[tuple[int, int]],
    traffic: Traffic | None = None,
    sampled: int = 1,
) -> Counts:
    """Runs a launch, one group behind the other; returns what its waves did.

    Args:
        code: the code object.
        entry: the kernel's name.
        values: its arguments; addresses as int, all else as NumPy's numbers.
        global_size, local_size: work-items, and those of a group.
        regions: address and bytes of what it may read and write.
        traffic: how memory is made, to count what is done to it; None not to count.
        sampled: of how many groups one runs, at random and one at least; counts are multiplied to be those of all.

    Raises:
        LaunchError: it accesses other memory, or never ends, or misses a barrier.
    """
    kernel, axes = code.kernels[entry], len(global_size)
    size, items = ((*given, *[1] * (3 - axes)) for given in (local_size, global_size))
    if any(count % width for count, width in zip(items, size, strict=True)):
        raise LaunchError(f"{entry}: groups of {local_size} do not divide {global_size} work-items")
    groups = [count // width for count, width in zip(items, size, strict=True)]
    arguments = ctypes.create_string_buffer(kernel.packed(values, groups, size))
    # Of the packet (Heterogeneous System Architecture, Runtime) kernels read sizes alone.
    words = (0, axes, *size, 0, *items, kernel.scratch_bytes, kernel.local_bytes, 0, ctypes.addressof(arguments), 0, 0)
    packet = ctypes.create_string_buffer(struct.pack("<HHHHHHIIIIIQQQQ", *words))
    known = [(ctypes.addressof(held), len(held)) for held in (arguments, packet)]
    table = np.array([*regions, *known, (code.base, code.size)], np.uint64)
    program = kernel.program
    counts, failed = np.zeros(len(program.records), np.uint64), np.zeros(3, np.uint32)
    launch = Launch(
        most=MAX_INSTRUCTIONS,
        code=kernel.address,
        turn=int(os.environ.get(TURN, "0")),
        random=1,
        sampled=sampled,
        regions=table.ctypes.data,
        places=program.places.ctypes.data,
        counts=counts.ctypes.data,
        traffic=ctypes.addressof(traffic) if traffic else None,
        region_count=len(table),
        place_count=len(program.places),
        local_bytes=kernel.local_bytes,
    )
    start = Start(
        arguments=ctypes.addressof(arguments),
        packet=ctypes.addressof(packet) if kernel.takes_packet else 0,
        user_registers=kernel.user_registers,
        group_numbers=kernel.group_numbers,
        scratch_bytes=kernel.scratch_bytes,
    )
    why = interpreter(kernel.lanes).run_launch(
        ctypes.c_void_p(program.records.ctypes.data),
        ctypes.byref(launch),
        ctypes.byref(start),
        (ctypes.c_uint32 * 3)(*groups),
        (ctypes.c_uint32 * 3)(*size),
        ctypes.c_void_p(failed.ctypes.data),
    )
    if why < 0:
        line, at = program.lines[launch.fault_pc], f"lane {launch.fault_lane} of group {failed.tolist()}"
        raise LaunchError(f"{entry}: {FAULTS[why]}: {launch.fault_address:#x}, at '{line}', {at}")
    scale = math.prod(groups) / launch.groups
    each = (counts * scale).round().astype(np.int64)
    operations = np.bincount(program.records["operation"], each, len(_NAMES)).astype(np.int64).tolist()
    named = {name: count for name, count in zip(_NAMES[1:], operations[1:], strict=True) if count}
    costs = {name: round(getattr(traffic, name) * scale) for name in Traffic.COUNTED} if traffic else {}
    return Counts(Counter(named), int(each[program.records["is_first"] == 1].sum()), math.prod(groups), costs)
