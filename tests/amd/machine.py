"""The interpreter: tests/amd/wave.c with a case for each instruction of the tables, built and called."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.amd.compiler import library
from tests.amd.instructions import (
    BRANCHES,
    C_TYPES,
    CARRY,
    COMPARE,
    HALVES,
    MEMORY,
    NUMBERS,
    OTHERS,
    SCALAR,
    SCALAR_LOADS,
    VECTOR,
    WIDE,
    Access,
    Rule,
)

#: Registers with a meaning, by their names in assembly.
NAMED = {"vcc_lo": 106, "vcc_hi": 107, "vcc": 106, "null": 124, "off": 124, "m0": 125}
NAMED |= {"exec_lo": 126, "exec_hi": 127, "exec": 126}
#: Where a source comes from.
CONSTANT, SCALAR_REGISTER, VECTOR_REGISTER = range(3)
#: Of C's structures, as in wave.c.
SOURCE = np.dtype(
    [
        ("kind", "i4"),
        ("number", "i4"),
        ("value", "u8"),
        ("negative", "u4"),
        ("absolute", "u4"),
        ("half", "u4"),
        ("is_half", "u4"),
    ]
)
_NUMBERS = ("operation", "d", "d2", "address", "is_first", "clamp", "scale", "base")
INSTRUCTION = np.dtype(
    [*((name, "i4") for name in _NUMBERS), ("immediate", "i8"), ("immediate2", "i8"), ("source", SOURCE, 4)]
)
#: What ends a launch before its time, by the code.
FAULTS = {
    -1: "an instruction that is not known",
    -2: "an address outside all buffers of the launch",
    -3: "too many instructions",
    -4: "some waves ended while others wait at a barrier",
    -5: "an address outside local memory",
    -6: "an address outside the work-item's own memory",
    -7: "a jump to where no instruction begins",
    -8: "a register that there is not",
}


class Launch(ctypes.Structure):
    """What waves share; see wave.c."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("executed", "most", "code", "fault_address", "turn", "random")),
        *((name, ctypes.c_uint64) for name in ("sampled", "groups")),
        *((name, ctypes.c_void_p) for name in ("regions", "places", "counts", "traffic")),
        *((name, ctypes.c_uint32) for name in ("region_count", "place_count", "local_bytes", "fault_pc")),
        *((name, ctypes.c_uint32) for name in ("fault_lane", "last_region")),
    )


class Traffic(ctypes.Structure):
    """What memory instructions cost; see wave.c.

    Attributes:
        banks, line: banks of local memory, each a word wide, and bytes of a line of the first cache.
        loaded, stored: bytes that lanes load and store.
        lines: lines of the first cache that instructions touch, each for itself.
        local_clocks: clocks of the local memory that a compute unit has.
        conflicts: those among them that it would not take if no two words were in one bank.
    """

    COUNTED = ("loaded", "stored", "lines", "local_clocks", "conflicts")
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("banks", "line", *COUNTED))


class Start(ctypes.Structure):
    """What a launch's waves begin with; see wave.c."""

    _fields_ = (
        ("arguments", ctypes.c_uint64),
        ("packet", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("user_registers", "group_numbers", "scratch_bytes", "unused")),
    )


def wave_type(lanes: int) -> np.dtype[Any]:
    """A wave of 32 or 64 lanes, as in wave.c."""
    numbers = ("condition", "pc", "state", "late_d", "is_late", "scratch_bytes")
    registers = [("s", "u4", 128), ("v", "u4", (256, lanes)), ("late", "u4", lanes)]
    return np.dtype([*registers, *((name, "u4") for name in numbers), ("scratch", "u8"), ("local", "u8")])


@cache
def interpreter(lanes: int) -> Any:
    """The interpreter for waves of 32 or 64 lanes as a library: ``run_wave`` and ``run_launch`` of wave.c.

    Raises:
        CompileError: the compiler refuses it.
    """
    text = Path(__file__).with_name("wave.c").read_text(encoding="utf-8")
    assert SOURCE.itemsize == 32
    cases = text.replace("/* INSTRUCTIONS */", "\n    ".join(_cases()))
    return ctypes.CDLL(str(library(f"#define LANES {lanes}\n{cases}")))


# -- cases -------------------------------------------------------------------------------------------------------------


def _cases() -> Iterator[str]:
    """C's cases, for all instructions."""
    texts = {"nothing": "break;"}
    texts |= {name: _vector(rule) for name, rule in VECTOR.items()}
    texts |= {name: _carry(rule) for name, rule in CARRY.items()}
    texts |= {name: _compare(rule) for name, rule in COMPARE.items()}
    texts |= {name: _scalar(rule) for name, rule in SCALAR.items()}
    texts |= {name: _memory(access) for name, access in MEMORY.items()}
    failed = "return fault(q, OUTSIDE_BUFFERS, pc - 1, q->fault_address, 0);"
    texts |= {name: f"if (!load_scalars(w, q, I, {words})) {failed} break;" for name, words in SCALAR_LOADS.items()}
    texts |= {name: f"if ({condition}) pc = I->immediate; break;" for name, condition in BRANCHES.items()}
    texts |= {name: f"{text} break;" for name, text in OTHERS.items()}
    for name, text in texts.items():
        yield f"case {NUMBERS[name]}: {{ /* {name} */ {text} }}"


def _lanes_of(types: str) -> tuple[str, str]:
    """What is done once to have a vector's sources, and what in each lane ``l``."""
    once, each = [], []
    for k, (letter, name) in enumerate(zip(types, "abcm" if types.endswith("fffm") else "abc", strict=False)):
        source, kind = f"w, &I->source[{k}]", C_TYPES[letter]
        if letter == "m":
            once.append(f"mask_t p{k} = mask({source});")
            each.append(f"int {name} = p{k} >> l & 1;")
        elif letter in WIDE:
            once.append(f"const uint64_t *p{k} = wide_lanes({source}, w{k});")
            each.append(f"{kind} {name} = ({kind})p{k}[l];")
        else:
            function = "half_lanes" if letter in HALVES else "lanes"
            once.append(f"const uint32_t *p{k} = {function}({source}, t{k});")
            cast = {"f": "float_of", "e": "half_of"}.get(letter, f"({kind})")
            each.append(f"{kind} {name} = {cast}(p{k}[l]);")
    return " ".join(once), " ".join(each)


def _loop(body: str) -> str:
    return f"for (int l = 0; l < LANES; l++) {{ {body} }}"


def _vector(rule: Rule) -> str:
    once, each = _lanes_of(rule.sources)
    letter, kind = rule.result, C_TYPES[rule.result]
    each += " float d = float_of(w->v[I->d][l]);" if "d)" in rule.text else ""
    each += f" {kind} D = {rule.text};"
    if letter in WIDE:
        both = "put(w, I->d, R); put(w, I->d + 1, R2); break;"
        return f"{once} {_loop(f'{each} R[l] = (uint32_t)D; R2[l] = (uint64_t)D >> 32;')} {both}"
    if letter in HALVES:
        bits = "bits_of_half(D)" if letter == "e" else "(uint16_t)D"
        return f"{once} {_loop(f'{each} R[l] = {bits} | (w->v[I->d][l] & 0xffff0000);')} put(w, I->d, R); break;"
    bits = "bits_of(scaled_and_clamped(I, D))" if letter == "f" else "(uint32_t)D"
    return f"{once} {_loop(f'{each} R[l] = {bits};')} put_of_pair(w, I, R); break;"


def _carry(rule: Rule) -> str:
    once, each = _lanes_of(rule.sources)
    bits = {"f": "R[l] = bits_of(D);"}.get(rule.result, "R[l] = (uint32_t)D; R2[l] = (uint64_t)D >> 32;")
    body = f"{each} {C_TYPES[rule.result]} D; int C; {rule.text} {bits} M |= (mask_t)(C != 0) << l;"
    upper = "put(w, I->d + 1, R2);" if rule.result in WIDE else ""
    done = f"put(w, I->d, R); {upper} set_mask(w, I->d2, M & mask_at(w, EXEC)); break;"
    return f"mask_t M = 0; {once} {_loop(body)} {done}"


def _compare(rule: Rule) -> str:
    once, each = _lanes_of(rule.sources)
    body = f"{each} M |= (mask_t)({rule.text}) << l;"
    return f"mask_t M = 0; {once} {_loop(body)} set_mask(w, I->d, M & mask_at(w, EXEC)); break;"


def _scalar(rule: Rule) -> str:
    parts = []
    for k, (letter, name) in enumerate(zip(rule.sources, "ab", strict=False)):
        function = "scalar64" if letter in WIDE else "scalar"
        cast = {"c": "(int16_t)", "C": "(uint16_t)"}.get(letter, f"({C_TYPES[letter]})")
        parts.append(f"{C_TYPES[letter]} {name} = {cast}{function}(w, &I->source[{k}]);")
    if rule.result:
        parts.append(f"uint32_t d = w->s[I->d]; {C_TYPES[rule.result]} D;")
    parts.append(rule.text)
    if rule.result:
        parts.append("set_scalar64(w, I->d, D);" if rule.result in WIDE else "w->s[I->d] = (uint32_t)D;")
    return " ".join([*parts, "break;"])


def _memory(access: Access) -> str:
    """All lanes' addresses are used before a register changes: it may be that of the addresses."""
    why = {"global": "OUTSIDE_BUFFERS", "scratch": "OUTSIDE_SCRATCH", "ds": "OUTSIDE_LOCAL"}[access.space]
    size = {"": 4 * access.words, "uint8_t": 1, "int8_t": 1}.get(access.piece, 2)
    body, counted = [], []
    for place in range(access.addresses):
        at, first = f"p{place}", place * access.words
        offset = f"I->immediate{'2' if place else ''}"
        if access.space == "global":
            counted.append(f"count_global(w, q, I, {int(access.stores)}, {size});")
        elif access.space == "ds":
            counted.append(f"count_local(w, q, I, {offset}, {size});")
        body.append(f"uint8_t *{at} = {access.space}_memory(w, q, I, l, {offset}, {size});")
        body.append(f"if (!{at}) return fault(q, {why}, pc - 1, q->fault_address, l);")
        register = f"w->v[I->d{'2' if place else ''}"
        if access.piece:
            body.append(_of_piece(access))
        elif access.stores:
            body += [f"memcpy({at} + {4 * k}, &{register} + {k}][l], 4);" for k in range(access.words)]
        else:
            body += [f"memcpy(&V[{first + k}][l], {at} + {4 * k}, 4);" for k in range(access.words)]
    total = access.words * access.addresses
    puts = "" if access.stores else " ".join(f"put(w, I->d + {k}, V[{k}]);" for k in range(total))
    values = "" if access.stores else f"uint32_t V[{total}][LANES];"
    count = f"if (q->traffic) {{ {' '.join(counted)} }}" if counted else ""
    return f"{count} {values} {_loop('if (mask_at(w, EXEC) >> l & 1) { ' + ' '.join(body) + ' }')} {puts} break;"


def _of_piece(access: Access) -> str:
    """Moves less than a register between memory at p0 and V, or the register."""
    shift = 16 if access.upper else 0
    if access.stores:
        return f"{access.piece} piece = w->v[I->d][l] >> {shift}; memcpy(p0, &piece, sizeof piece);"
    kept = f" | (w->v[I->d][l] & {'0xffff' if access.upper else '0xffff0000'})" if access.keeps else ""
    return f"{access.piece} piece; memcpy(&piece, p0, sizeof piece); V[0][l] = (uint32_t)piece << {shift}{kept};"
