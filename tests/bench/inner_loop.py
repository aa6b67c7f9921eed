"""The inner loop of a kernel, read in a compiler's assembly: clang's for AMD's GPUs, or Intel's."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"([.\w]+):\s*$")
#: A predicate in front of Intel's, then the instruction, then its operands.
_INSTRUCTION = re.compile(r"(?:\([^)|]*\))?\s+([a-z][\w.]*)(.*)")
_COMMENT = re.compile(r"(;|//).*")
_BRANCHES = re.compile(r"(s_c?branch\w*|(jmpi|while|goto|brd|brc)(\.\w+)?)$")
_END = "s_endpgm"
#: What only waits, or tells the processor when to.
_WAITS = re.compile(r"(s_waitcnt\w*|s_nop|s_delay_alu|s_clause|sync\.\w+|nop)$")
_MULTIPLY_ADDS = re.compile(r"v_(dual_|pk_)?(fma|fmac|fmaak|fmamk|mac|mad|madak|madmk|fma_mix)(_legacy)?_f32")
_INTEL = re.compile(r"(mad|mac|madm)$")


@dataclass(frozen=True)
class Loop:
    """What a loop executes each time, for a wave or a thread.

    Attributes:
        instructions: without those that only wait; a pair that AMD's issue together is two.
        multiply_adds: those among them that multiply and add in fp32.
    """

    instructions: int = 0
    multiply_adds: int = 0

    @property
    def share(self) -> float:
        """The part of the instructions that multiplies and adds."""
        return self.multiply_adds / max(1, self.instructions)


def inner_loop(text: str) -> Loop:
    """Of the loops without a loop in them, the one with most multiply-adds; an empty one if there is none.

    A loop lies between a label and a branch back to it, whatever branches leave or skip parts of it. Where the program
    ends in between, it is none: blocks that clang moves behind the end branch back to where they came from.
    """
    labels: dict[str, int] = {}
    ends: list[int] = []
    counts, loops = [(0, 0)], []  # Before each line that counts: instructions, and multiply-adds.
    for line in text.splitlines():
        code = _COMMENT.sub("", line)
        if label := _LABEL.match(code):
            labels[label[1]] = len(counts) - 1
        for part in code.replace("::", "\n").splitlines():
            found = _INSTRUCTION.match(part)
            if not found or _WAITS.match(found[1]):
                continue
            name, operands = found.groups()
            multiplies = _MULTIPLY_ADDS.match(name) or (_INTEL.match(name) and re.search(r"<1>:f\b", operands))
            instructions, multiply_adds = counts[-1]
            counts.append((instructions + 1, multiply_adds + bool(multiplies)))
            if name == _END:
                ends.append(len(counts) - 1)
            if _BRANCHES.match(name):
                back = [(labels[word], len(counts) - 1) for word in operands.split() if word in labels]
                loops += [(begin, end) for begin, end in back if not any(begin < place <= end for place in ends)]
    innermost = [
        (begin, end)
        for begin, end in loops
        if not any(begin <= other[0] and other[1] <= end and other != (begin, end) for other in loops)
    ]
    found_loops = (
        Loop(counts[end][0] - counts[begin][0], counts[end][1] - counts[begin][1]) for begin, end in innermost
    )
    return max(found_loops, key=lambda loop: loop.multiply_adds, default=Loop())
