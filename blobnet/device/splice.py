"""Instructions that NVIDIA's OpenCL compiler does not know, put into what it has built (kernels/warp_group.h).

A binary of NVIDIA's is text of its assembly language, PTX. A kernel has such an instruction as a comment behind MARK,
with the registers that the compiler chose. Here comments become instructions, and the driver builds the text once more,
for the one architecture that has them. A driver that takes no such text refuses the program, as any other.
"""

from __future__ import annotations

import re

#: What stands before an instruction in a kernel.
#: Programs are kept by their source: another mark goes with another way to splice.
MARK = "//sm_90a "
#: The target of compute capability 9.0 in PTX, and the same with what it alone has.
_TARGET, _OWN_TARGET = rb"\.target sm_90\b", b".target sm_90a"


def spliced(binary: bytes) -> bytes:
    """Return a program's PTX with its marked comments as instructions."""
    return re.sub(_TARGET, _OWN_TARGET, binary.replace(MARK.encode(), b""), count=1)
