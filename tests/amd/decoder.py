"""From what llvm-objdump says of code to the records that the interpreter executes.

An instruction, an operand or a modifier that is not known here is an error before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.amd.instructions import (
    BRANCHES,
    CARRY,
    COMPARE,
    HALVES,
    IMMEDIATES,
    MEMORY,
    NOTHING,
    NUMBERS,
    SCALAR,
    SCALAR_LOADS,
    VECTOR,
    WIDE,
)
from tests.amd.machine import CONSTANT, INSTRUCTION, NAMED, SCALAR_REGISTER, SOURCE, VECTOR_REGISTER

_LINE = re.compile(r"^\t(\S.*?)\s*// ([0-9A-F]{12}):", re.MULTILINE)
_REGISTER = re.compile(r"([sv])\[?(\d+)(?::\d+)?\]?")
#: Of memory that others see too: what is said about caches has no meaning here.
_CACHES = {"glc", "slc", "dlc"}
_SCALES = {("mul", 2): 1, ("mul", 4): 2, ("div", 2): 3}
#: What a debugger sees of what lies behind the end.
_END = "s_code_end"
#: Of v_cmpx: where it says which lanes are at work.
_EXEC = "exec_lo"


class UnknownInstructionError(Exception):
    """Something in the code is not in the tables; names all of it."""


@dataclass(frozen=True)
class Program:
    """A kernel's instructions.

    Attributes:
        records: of the type INSTRUCTION.
        lines: the instructions as text, for errors.
        places: for each word (4 bytes) behind the first instruction's address, the record that begins there.
    """

    records: npt.NDArray[Any]
    lines: tuple[str, ...]
    places: npt.NDArray[np.uint32]


def decode(text: str) -> Program:
    """The program that llvm-objdump shows.

    Raises:
        UnknownInstructionError: some of it is not known.
    """
    records, lines, missing = [], [], set()
    found = [(line, int(at, 16)) for line, at in _LINE.findall(text)]
    ends = [number for number, (line, _) in enumerate(found) if line.startswith(_END)]
    found = found[: ends[0]] if ends else found
    start, end = found[0][1], found[-1][1]
    places = np.full((end - start) // 4 + 1, 2**32 - 1, np.uint32)
    for line, at in found:
        places[(at - start) // 4] = len(records)
        halves = line.split(" :: ")
        for half in halves:
            try:
                record = _decoded(half, at - start)
            except UnknownInstructionError as error:
                missing.add(str(error))
                continue
            record["is_first"] = half is halves[0] and len(halves) == 2
            records.append(record)
            lines.append(half)
    if missing:
        raise UnknownInstructionError("; ".join(sorted(missing)))
    program = np.array(records, INSTRUCTION)
    branches = np.isin(program["operation"], [NUMBERS[name] for name in BRANCHES])
    program["immediate"][branches] = places[program["immediate"][branches] // 4]
    return Program(program, tuple(lines), places)


def _decoded(text: str, at: int) -> Any:
    """One instruction, or half of a pair, at a byte of the program; of a branch ``immediate`` is the byte to go to."""
    mnemonic, _, rest = text.partition(" ")
    name = re.sub(r"_(e32|e64)$", "", mnemonic).replace("v_dual_", "v_")
    record = np.zeros((), INSTRUCTION)
    if name in NOTHING:
        return record
    operands, modifiers = _split(rest, text)
    try:
        _fill(record, name, operands, modifiers, at)
    except (KeyError, ValueError, IndexError) as error:
        raise UnknownInstructionError(text) from error
    if modifiers:
        raise UnknownInstructionError(f"{text}: {', '.join(modifiers)}")
    return record


def _split(rest: str, text: str) -> tuple[list[str], dict[str, list[int]]]:
    """Operands, and what stands behind the last one: ``offset:16``, ``op_sel:[0,1]``, ``clamp``."""
    lists = re.compile(r"\s(\w+):\[([\d,]+)\]")
    modifiers = {name: [int(value) for value in values.split(",")] for name, values in lists.findall(rest)}
    plain = [word.strip() for word in lists.sub("", rest).split(",")] if rest.strip() else []
    if plain:
        plain[-1], *more = plain[-1].split()
        for word in more:
            name, _, value = word.partition(":")
            try:
                modifiers[name] = [int(value, 0) if value else 1]
            except ValueError:
                raise UnknownInstructionError(f"{text}: {word}") from None
    return plain, modifiers


def _fill(record: Any, name: str, operands: list[str], modifiers: dict[str, list[int]], at: int) -> None:
    """Fills a record in, and takes what it knows out of ``modifiers``."""
    if name.startswith("v_cmpx_"):
        name, operands = name.replace("v_cmpx_", "v_cmp_"), [_EXEC, *operands]
    if name.startswith("ds_") and "_2addr" in name:
        stride = 64 if "_stride64" in name else 1
        name = name.replace("_stride64", "")
        size = stride * (8 if name.endswith("64") else 4)
        for k, field in enumerate(("immediate", "immediate2")):
            record[field] = modifiers.pop(f"offset{k}", [0])[0] * size
    record["operation"] = NUMBERS[name]
    if name in VECTOR:
        rule = VECTOR[name]
        record["d"] = _register(operands[0])
        sources = [*operands[1:], *(["vcc_lo"] if rule.sources.endswith("m") else [])][: len(rule.sources)]
        if rule.result == "f":
            record["clamp"] = modifiers.pop("clamp", [0])[0]
            for (word, factor), scale in _SCALES.items():
                if modifiers.get(word) == [factor]:
                    record["scale"] = scale
                    del modifiers[word]
        _fill_sources(record, sources, rule.sources, modifiers)
    elif name in CARRY:
        record["d"], record["d2"] = map(_register, operands[:2])
        _fill_sources(record, operands[2:], CARRY[name].sources, modifiers)
    elif name in COMPARE:
        record["d"] = _register(operands[0])
        _fill_sources(record, operands[1:], COMPARE[name].sources, modifiers)
    elif name in SCALAR:
        rule = SCALAR[name]
        if rule.result:
            record["d"], operands = _register(operands[0]), operands[1:]
        _fill_sources(record, operands, rule.sources, modifiers)
    elif name in SCALAR_LOADS:
        record["d"], record["immediate"] = _register(operands[0]), modifiers.pop("offset", [0])[0]
        if operands[2] not in NAMED and not _REGISTER.fullmatch(operands[2]):
            record["immediate"], operands[2] = int(operands[2], 0), "null"
        _fill_sources(record, operands[1:], "Uu", modifiers)
    elif name in MEMORY:
        _fill_memory(record, name, operands, modifiers)
    elif name in BRANCHES:
        words = int(operands[0], 0)
        record["immediate"] = at + 4 + 4 * (words - (1 << 16) if words >= 1 << 15 else words)
    elif name.startswith("v_fma_mix"):
        _fill_mix(record, operands, modifiers)
    else:
        _fill_other(record, name, operands, modifiers, at)


def _fill_sources(record: Any, operands: Sequence[str], types: str, modifiers: dict[str, list[int]]) -> None:
    for k, (operand, letter) in enumerate(zip(operands, types, strict=True)):
        record["source"][k] = _source(operand, letter)
    for k, is_upper in enumerate(modifiers.pop("op_sel", [])):
        if is_upper and (k >= len(types) or types[k] not in HALVES):
            raise ValueError("the upper half of what is no half, or of the destination")
        record["source"]["half"][k] = is_upper


def _fill_mix(record: Any, operands: Sequence[str], modifiers: dict[str, list[int]]) -> None:
    """Three sources, each a float or, as op_sel_hi says, the half of a register that op_sel names."""
    record["d"], record["clamp"] = _register(operands[0]), modifiers.pop("clamp", [0])[0]
    are_halves, upper = (modifiers.pop(name, [0, 0, 0]) for name in ("op_sel_hi", "op_sel"))
    for k, operand in enumerate(operands[1:]):
        record["source"][k] = _source(operand, "e" if are_halves[k] else "f")
        record["source"]["half"][k], record["source"]["is_half"][k] = upper[k], are_halves[k]


def _fill_memory(record: Any, name: str, operands: list[str], modifiers: dict[str, list[int]]) -> None:
    access = MEMORY[name]
    for word in _CACHES & modifiers.keys():
        del modifiers[word]
    address, value = operands[:2] if access.stores else operands[1::-1]
    record["d"], record["address"] = _register(value), -1 if address == "off" else _register(address)
    if access.addresses == 2:
        record["d2"] = _register(operands[2]) if access.stores else 0
    else:
        record["immediate"] = modifiers.pop("offset", [0])[0]
    if access.space != "ds":
        record["base"] = _register(operands[2])


def _fill_other(record: Any, name: str, operands: list[str], modifiers: dict[str, list[int]], at: int) -> None:
    if name == "s_getpc_b64":
        record["d"], record["immediate"] = _register(operands[0]), at + 4
    elif name == "s_setpc_b64":
        record["source"][0] = _source(operands[0], "U")
    elif operands:
        record["d"] = _register(operands[0])
        _fill_sources(record, operands[1:], "uu"[: len(operands) - 1], modifiers)


def _register(word: str) -> int:
    """A register's number, of several that of the first."""
    if word in NAMED:
        return NAMED[word]
    match = _REGISTER.fullmatch(word)
    if match is None:
        raise ValueError(word)
    return int(match[2])


def _source(word: str, letter: str) -> Any:
    """A source operand of a type: a register, or the bits of a number."""
    source = np.zeros((), SOURCE)
    if word.startswith("-") and not re.match(r"-[\d.]", word):
        source["negative"], word = 1, word[1:]
    if word.startswith("|"):
        source["absolute"], word = 1, word.strip("|")
    if (source["negative"] or source["absolute"]) and letter not in "fbe":
        raise ValueError("a sign of what is no float")
    if word in NAMED or _REGISTER.fullmatch(word):
        source["kind"] = VECTOR_REGISTER if word[0] == "v" and word not in NAMED else SCALAR_REGISTER
        source["number"] = _register(word)
        return source
    source["kind"], source["value"] = CONSTANT, _constant(word, letter)
    return source


def _constant(word: str, letter: str) -> int:
    """A number's bits. NOTE: objdump shows floats with a point, and all else as integers, floats' bits too."""
    if "." in word:
        if letter in WIDE + IMMEDIATES:
            raise ValueError("a float where an integer is wanted")
        kind, bits = (np.float16, np.uint16) if letter in HALVES else (np.float32, np.uint32)
        return int(np.array(float(word), kind).view(bits))
    value = int(word, 0)
    if letter == "I" and value >= 1 << 31:  # Of 32 bits: extended by its sign where that is known, else by zeros.
        value -= 1 << 32
    return value & (2**64 - 1)
