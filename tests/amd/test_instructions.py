"""Each instruction of the tables against a written semantics of its own: assembled, decoded, executed, compared."""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.amd import semantics
from tests.amd.compiler import assembled, disassembled, missing
from tests.amd.decoder import Program, UnknownInstructionError, decode
from tests.amd.instructions import CARRY, COMPARE, SCALAR, VECTOR, Rule
from tests.amd.machine import NAMED, Launch, interpreter, wave_type

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
TYPES = {"f": "f4", "u": "u4", "i": "i4", "b": "u4", "e": "f2", "h": "u2", "k": "i2", "U": "u8", "I": "i8"}
#: What a float can be: zeros, denormals, the least and largest numbers, infinities, NaN.
FLOATS = [0.0, -0.0, 1e-45, -1e-40, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1, -1.5, 2.5, np.inf, -np.inf, np.nan]
FLOATS += [2.0**31, -(2.0**31), 2.0**32, 1 - 2.0**-24, 65504, 65520, 6e-8, 127, -150]
#: Bits of integers, of any width.
INTEGERS = [0, 1, 2, 15, 16, 24, 31, 32, 63, 64, 2**15, 2**16 - 1, 2**23, 2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1]
#: Where results lie, and the first source: the others follow at every second register.
RESULT, FIRST, MASK = 20, 2, 40
#: The source that is a number in the instruction's own code.
NUMBER_AT = {"v_fmaak_f32": 2, "v_fmamk_f32": 1}
END = "s_endpgm"
ROUNDS = 8


#: For waves of 32 lanes and of 64.
both_widths = pytest.mark.parametrize("lanes", [32, 64])


#: What was assembled, by the instruction and the lanes of a wave.
PROGRAMS: dict[tuple[str, int], Program] = {}


def assemble(lines: Iterable[str], lanes: int) -> None:
    """Has the assembler and the disassembler say what instructions are, each with an end: they take long to start."""
    lines = list(dict.fromkeys(lines))
    text = disassembled(assembled("".join(f"{line}\n{END}\n" for line in lines), lanes), lanes=lanes)
    parts = re.findall(rf"\t(?:(?!\t{END}).)*\t{END}[^\n]*\n", text, re.DOTALL)
    PROGRAMS.update({(line, lanes): decode(part) for line, part in zip(lines, parts, strict=True)})


@cache
def assemble_vectors(lanes: int) -> None:
    """Those of all tests of vectors."""
    assemble([vector_line(name, lanes) for name in rounds(VECTOR)], lanes)
    assemble([line for name in rounds(COMPARE) for line in compare_lines(name, lanes)], lanes)
    assemble([carry_line(name, lanes) for name in semantics.CARRY], lanes)


def program(line: str, lanes: int) -> Program:
    """An instruction and the end."""
    if (line, lanes) not in PROGRAMS:
        assemble([line], lanes)
    return PROGRAMS[line, lanes]


def executed(line: str, wave: Any) -> Any:
    """The wave after an instruction."""
    lanes = wave["late"].size
    after, code = wave.copy(), program(line, lanes)
    counts = np.zeros(len(code.records), np.uint64)
    launch = Launch(most=10, counts=counts.ctypes.data)
    records = ctypes.c_void_p(code.records.ctypes.data)
    assert interpreter(lanes).run_wave(records, ctypes.c_void_p(after.ctypes.data), ctypes.byref(launch)) == 0
    return after


def random_wave(rng: np.random.Generator, lanes: int) -> Any:
    wave = np.zeros((), wave_type(lanes))
    wave["s"], wave["v"] = rng.integers(0, 2**32, 128), rng.integers(0, 2**32, (256, lanes))
    wave["condition"] = rng.integers(2)
    wave["s"][NAMED["null"]] = 0
    return wave


def draw(rng: np.random.Generator, letter: str, count: int) -> Any:
    """Random values of a type, half of them special."""
    kind = np.dtype(TYPES[letter])
    values = rng.integers(0, 256, (count, kind.itemsize), np.uint8).view(kind)[:, 0]
    special = rng.random(count) < 0.5
    with np.errstate(all="ignore"):
        if kind.kind == "f":
            near = rng.choice(np.array([*FLOATS, *9 * [1.0]]), count)
            chosen = np.where(rng.random(count) < 0.7, near, rng.standard_normal(count) * 8).astype(kind)
        else:
            chosen = np.array(rng.choice(INTEGERS, count), np.uint64).astype(kind)
    return np.where(special, chosen, values).astype(kind)


def give(wave: Any, name: str, place: int, values: Any) -> None:
    """Sets the register, or pair, at a place."""
    bits = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    wave[name][place] = bits & 0xFFFFFFFF if values.dtype.itemsize > 2 else wave[name][place] & 0xFFFF0000 | bits
    if values.dtype.itemsize == 8:
        wave[name][place + 1] = bits >> 32


def taken(wave: Any, name: str, place: int, letter: str) -> Any:
    """What the register, or pair, at a place holds."""
    bits = np.atleast_1d(wave[name][place].astype(np.uint64))
    if letter in "UI":
        bits |= np.atleast_1d(wave[name][place + 1].astype(np.uint64)) << np.uint64(32)
    kind = np.dtype(TYPES[letter])
    return bits.astype(f"u{kind.itemsize}").view(kind)


def mask(wave: Any, place: int) -> Any:
    """The bits of the lanes in the scalar register, or pair, at a place, as truths."""
    lanes = wave["late"].size
    return np.array([wave["s"][place + lane // 32] >> lane % 32 & 1 for lane in range(lanes)], bool)


def mask_register(place: int, lanes: int) -> str:
    return register("s", place, "U" if lanes == 64 else "u")


def register(name: str, place: int, letter: str) -> str:
    return f"{name}[{place}:{place + 1}]" if letter in "UI" else f"{name}{place}"


def same(found: Any, wanted: Any, letter: str, active: Any = None) -> None:
    """Asserts the same bits, but for which NaN it is."""
    kind = np.dtype(TYPES[letter])
    with np.errstate(all="ignore"):
        wanted = np.asarray(wanted, None if kind.kind == "f" else object)
        wanted = wanted.astype(kind) if kind.kind == "f" else semantics.low(wanted, 8 * kind.itemsize).astype(kind)
    bits = f"u{kind.itemsize}"
    good = found.view(bits) == wanted.view(bits)
    good |= (np.isnan(found) & np.isnan(wanted)) if kind.kind == "f" else False
    good |= False if active is None else ~active
    assert good.all(), f"{found[~good]} instead of {wanted[~good]}, lanes {np.flatnonzero(~good)}"


def prepared(name: str, rule: Rule, lanes: int) -> tuple[Any, list[Any], Any]:
    """A random wave with an instruction's sources; these; and which lanes are at work."""
    assemble_vectors(lanes)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    sources = []
    wave = random_wave(rng, lanes)
    for place, letter in places(rule):
        if letter == "m":
            sources.append(mask(wave, NAMED["vcc"]).astype(int))
            continue
        sources.append(draw(rng, letter, lanes))
        give(wave, "v", place, sources[-1])
    return wave, sources, mask(wave, NAMED["exec"])


def places(rule: Rule) -> list[tuple[int, str]]:
    """The register and the type of each source."""
    return [(FIRST + 2 * k, letter) for k, letter in enumerate(rule.sources)]


def operands(rule: Rule, lanes: int) -> list[str]:
    """The sources as text."""
    carried = "vcc" if lanes == 64 else "vcc_lo"
    return [carried if letter == "m" else register("v", place, letter) for place, letter in places(rule)]


def rounds(names: Mapping[str, Rule]) -> list[str]:
    return [name for name in names if not name.startswith("v_div_")]


def vector_line(name: str, lanes: int) -> str:
    texts = operands(VECTOR[name], lanes)
    if name in NUMBER_AT:
        texts[NUMBER_AT[name]] = "0x40490fdb"
    return f"{name} {', '.join([register('v', RESULT, VECTOR[name].result), *texts])}"


def compare_lines(name: str, lanes: int) -> tuple[str, str]:
    """Into a mask, and into that of the lanes at work."""
    texts = ", ".join(operands(COMPARE[name], lanes))
    return f"{name} {mask_register(MASK, lanes)}, {texts}", f"{name.replace('cmp', 'cmpx')} {texts}"


def carry_line(name: str, lanes: int) -> str:
    rule = CARRY[name]
    results = register("v", RESULT, rule.result), mask_register(MASK, lanes)
    return f"{name} {', '.join([*results, *operands(rule, lanes)])}"


@both_widths
@pytest.mark.parametrize("name", rounds(VECTOR))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_vector(name: str, lanes: int) -> None:
    rule = VECTOR[name]
    for turn in range(ROUNDS):
        wave, sources, active = prepared(f"{name} {turn}", rule, lanes)
        if name in NUMBER_AT:
            sources[NUMBER_AT[name]] = np.full(lanes, np.pi, np.float32)
        if name == "v_fmac_f32":
            sources.append(taken(wave, "v", RESULT, "f"))
        after = executed(vector_line(name, lanes), wave)
        same(taken(after, "v", RESULT, rule.result), semantics.VECTOR[name](*sources), rule.result, active)
        assert_untouched(wave, after, rule.result, active)


def assert_untouched(wave: Any, after: Any, letter: str, active: Any) -> None:
    """Asserts that nothing but the destination changed, and that only in the lanes at work."""
    changed = wave["v"] != after["v"]
    results = [RESULT, RESULT + 1] if letter in "UI" else [RESULT]
    assert not changed[results][:, ~active].any()
    changed[results] = False
    assert not changed.any()
    if letter in "ehk":
        assert np.array_equal(wave["v"][RESULT] >> 16, after["v"][RESULT] >> 16)


@both_widths
@pytest.mark.parametrize("name", rounds(COMPARE))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_compare(name: str, lanes: int) -> None:
    rule = COMPARE[name]
    word = name.split("_")[2]
    function = semantics.classes if word == "class" else semantics.CONDITIONS[word]
    for turn in range(ROUNDS):
        wave, sources, active = prepared(f"{name} {turn}", rule, lanes)
        wanted = np.asarray(function(*sources)).astype(bool) & active
        to_mask, to_exec = compare_lines(name, lanes)
        assert np.array_equal(mask(executed(to_mask, wave), MASK), wanted)
        assert np.array_equal(mask(executed(to_exec, wave), NAMED["exec"]), wanted)


@both_widths
@pytest.mark.parametrize("name", semantics.CARRY)
def test_carry(name: str, lanes: int) -> None:
    rule, (function, bits) = CARRY[name], semantics.CARRY[name]
    for turn in range(ROUNDS):
        wave, sources, active = prepared(f"{name} {turn}", rule, lanes)
        whole = [function(*map(int, values)) for values in zip(*sources, strict=True)]
        after = executed(carry_line(name, lanes), wave)
        same(taken(after, "v", RESULT, rule.result), whole, rule.result, active)
        carried = np.array([not 0 <= value < 1 << bits for value in whole])
        assert np.array_equal(mask(after, MASK), carried & active)


@both_widths
def test_division(lanes: int) -> None:
    """The three instructions of a division together, as the compiler uses them: correct rounding of normal quotients.

    Of those that overflow what the guide says of the three is no infinity.
    """
    rng = np.random.default_rng(0)
    scaled = "vcc" if lanes == 64 else "vcc_lo"
    lines = f"""
        v_div_scale_f32 v10, {mask_register(MASK, lanes)}, v4, v4, v2
        v_div_scale_f32 v11, {scaled}, v2, v4, v2
        v_rcp_f32 v12, v10
        v_fma_f32 v13, -v10, v12, 1.0
        v_fma_f32 v12, v13, v12, v12
        v_mul_f32 v13, v11, v12
        v_fma_f32 v14, -v10, v13, v11
        v_fma_f32 v13, v14, v12, v13
        v_fma_f32 v14, -v10, v13, v11
        v_div_fmas_f32 v14, v14, v12, v13
        v_div_fixup_f32 v20, v14, v4, v2
    """
    for _ in range(40):
        wave = random_wave(rng, lanes)
        wave["s"][NAMED["exec"] :] = 2**32 - 1
        a, b = (draw(rng, "f", lanes) for _ in range(2))
        give(wave, "v", 2, a)
        give(wave, "v", 4, b)
        for line in filter(None, map(str.strip, lines.splitlines())):
            wave = executed(line, wave)
            wave["pc"] = 0
        with np.errstate(all="ignore"):
            wanted = a / b
        found = taken(wave, "v", RESULT, "f")
        normal = (np.abs(wanted) >= 2.0**-126) & np.isfinite(wanted) | np.isnan(wanted) | (b == 0)
        same(np.where(normal, found, 0), np.where(normal, wanted, 0), "f")


def scalar_case(name: str, turn: int) -> tuple[Any, list[int], str]:
    """A random wave with the sources of an instruction; these; and the instruction, which may have numbers in it."""
    rule = SCALAR[name]
    rng = np.random.default_rng(zlib.crc32(f"{name} {turn}".encode()))
    wave = random_wave(rng, 32)
    numbers, texts = [], [register("s", RESULT, rule.result)] if rule.result else []
    for place, letter in places(rule):
        value = draw(rng, "k" if letter == "c" else "h" if letter == "C" else letter, 1)
        if letter in "cC":
            texts.append(hex(int(value.view("u2")[0])))
        else:
            give(wave, "s", place, value[0])
            texts.append(register("s", place, letter))
        numbers.append(int(value[0]))
    return wave, numbers, f"{name} {', '.join(texts)}"


@pytest.mark.parametrize("name", SCALAR)
def test_scalar(name: str) -> None:
    rule = SCALAR[name]
    cases = [scalar_case(name, turn) for turn in range(4 * ROUNDS)]
    assemble([line for *_, line in cases], 32)
    for wave, numbers, line in cases:
        before = int(np.int32(wave["s"][RESULT].astype(np.int32))), int(wave["condition"])
        active = int(taken(wave, "s", NAMED["exec"], "U")[0])
        result, condition = semantics.SCALAR[name](*numbers, d=before[0], s=before[1], x=active)
        after = executed(line, wave)
        if rule.result:
            same(taken(after, "s", RESULT, rule.result), [result], rule.result)
        assert bool(after["condition"]) == bool(condition)
        if "saveexec" in name:
            word = name.removeprefix("s_").partition("_saveexec")[0]
            wanted = semantics.LOGIC[word](numbers[0], active)
            same(taken(after, "s", NAMED["exec"], rule.result), [wanted], rule.result)


def test_every_instruction_has_a_semantics() -> None:
    together = {"v_div_fmas_f32", "v_div_fixup_f32", "v_div_scale_f32"}  # test_division
    known = {*semantics.VECTOR, *semantics.CARRY, *semantics.SCALAR, *together, "v_mad_i64_i32"}
    assert not {*VECTOR, *CARRY, *SCALAR} - known


@pytest.mark.parametrize(
    "line", ["v_dot2_f32_f16 v0, v1, v2, v3", "v_add_f32_dpp v0, v1, v2 quad_perm:[0,1,2,3] row_mask:0xf bank_mask:0xf"]
)
def test_what_is_not_known_is_refused_before_it_runs(line: str) -> None:
    with pytest.raises(UnknownInstructionError, match=re.escape(line.split()[0])):
        program(line, 32)


@both_widths
@pytest.mark.parametrize(("name", "shift"), [("v_fma_mix_f32", None), ("v_fma_mixlo_f16", 0), ("v_fma_mixhi_f16", 16)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_multiply_adds_of_halves(name: str, shift: int | None, lanes: int) -> None:
    rng = np.random.default_rng(0)
    wave = random_wave(rng, lanes)
    wave["s"][NAMED["exec"] :] = 2**32 - 1
    a, b = (rng.standard_normal((lanes, 2)).astype("f2") for _ in range(2))
    c = rng.standard_normal(lanes).astype("f4")
    for place, values in ((2, a.view("u4")[:, 0]), (4, b.view("u4")[:, 0]), (6, c)):
        give(wave, "v", place, values)
    after = executed(f"{name} v{RESULT}, v2, v4, v6 op_sel:[1,0,0] op_sel_hi:[1,1,0]", wave)
    wanted = semantics.fma(a[:, 1].astype("f4"), b[:, 0].astype("f4"), c)
    if shift is None:
        same(taken(after, "v", RESULT, "f"), wanted, "f")
        return
    bits = after["v"][RESULT] >> np.uint32(shift)
    assert np.array_equal(bits & 0xFFFF, wanted.astype("f2").view("u2"))
    other = 16 - shift
    assert np.array_equal(after["v"][RESULT] >> other & 0xFFFF, wave["v"][RESULT] >> other & 0xFFFF)
