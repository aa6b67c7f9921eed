"""Runs a launch of a kernel's machine code on memory of this process."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tests.amd.code_object import CodeObject
from tests.amd.instructions import NUMBERS
from tests.amd.machine import FAULTS, Launch, Start, interpreter

#: Waves take turns of so many instructions at most, at random, if $BLOBNET_AMD_TURN says so: a barrier that is missing
#: shows. If not, each runs until a barrier or its end.
TURN = "BLOBNET_AMD_TURN"
MOST_INSTRUCTIONS = 4_000_000_000
#: Executed instructions by name, of all launches of this process.
executed: Counter[str] = Counter()
_NAMES = list(NUMBERS)


class LaunchError(Exception):
    """A launch did what it must not; names the kernel, the instruction, the lane and the group."""


def run(
    code: CodeObject,
    entry: str,
    values: Sequence[Any],
    global_size: Sequence[int],
    local_size: Sequence[int],
    regions: Iterable[tuple[int, int]],
) -> Counter[str]:
    """Runs a launch, one group behind the other; returns how often each instruction was executed, by waves.

    Args:
        code: the code object.
        entry: the kernel's name.
        values: its arguments; addresses as int, all else as NumPy's numbers.
        global_size, local_size: work-items, and those of a group.
        regions: address and bytes of what it may read and write.

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
    counts, failed = np.zeros(len(NUMBERS), np.uint64), np.zeros(3, np.uint32)
    program = kernel.program
    launch = Launch(
        most=MOST_INSTRUCTIONS,
        code=kernel.address,
        turn=int(os.environ.get(TURN, "0")),
        random=1,
        regions=table.ctypes.data,
        places=program.places.ctypes.data,
        counts=counts.ctypes.data,
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
    why = interpreter().run_launch(
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
    found = Counter({name: int(count) for name, count in zip(_NAMES, counts, strict=True) if count})
    executed.update(found)
    return found
