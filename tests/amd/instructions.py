"""The instructions that the interpreter knows: what each computes, as C (tests/amd/wave.c has what is called here).

Semantics are those of AMD, "RDNA3" Instruction Set Architecture Reference Guide (2023), chapter 16, in the modes that
OpenCL's kernels run in: denormals are kept, NaN are quiet, rounding is to the nearest even. Where the guide leaves an
error to the hardware (reciprocals, roots, exponentials, logarithms), results are rounded correctly here; those read and
give 0 for denormals, since LLVM's code generator counts on no more (SIISelLowering.cpp). tests/amd/semantics.py says
the same once more, in NumPy, and test_instructions.py compares.

A letter is the type of an operand:

    f u i        32 bits: a float, unsigned, signed
    b            32 bits, where a float's sign may be changed on the way
    e h k        the lower half of a register: a half, unsigned, signed; the upper half of a result's register stays
    U I          64 bits in two registers, or as many scalar ones: unsigned, signed
    m            of scalars: a bit for each lane, in one register or two
    c C          of 16 bits in the instruction itself: signed, unsigned

``a``, ``b``, ``c`` are the sources, ``d`` is what the destination held.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

#: C's names of types.
C_TYPES = {"f": "float", "u": "uint32_t", "i": "int32_t", "e": "_Float16", "h": "uint16_t", "k": "int16_t"}
C_TYPES |= {"b": "uint32_t", "U": "uint64_t", "I": "int64_t", "m": "int", "c": "int32_t", "C": "uint32_t"}
WIDE, HALVES, IMMEDIATES = "UI", "ehk", "cC"


class Rule(NamedTuple):
    """What an instruction computes.

    Attributes:
        result: the type of its destination; "" without one.
        sources: those of its sources.
        text: for a lane: an expression; with two destinations, and for scalars, statements that set D, and C or S.
    """

    result: str
    sources: str
    text: str


def _rules(table: str) -> dict[str, Rule]:
    """By the name, from lines of: name, type of the result (- without one) and types of sources, text."""
    rules = {}
    for line in filter(None, map(str.strip, table.splitlines())):
        name, types, text = line.split(maxsplit=2)
        rules[name] = Rule(types[0].strip("-"), types[1:], text)
    return rules


#: Of vectors, one destination: for each lane an expression.
VECTOR = _rules("""
    v_mov_b32         uu    a
    v_not_b32         uu    ~a
    v_and_b32         uuu   a & b
    v_or_b32          uuu   a | b
    v_xor_b32         uuu   a ^ b
    v_xnor_b32        uuu   ~(a ^ b)
    v_and_or_b32      uuuu  (a & b) | c
    v_or3_b32         uuuu  a | b | c
    v_xor3_b32        uuuu  a ^ b ^ c
    v_xad_u32         uuuu  (a ^ b) + c
    v_bfi_b32         uuuu  (a & b) | (~a & c)
    v_bfe_u32         uuuu  unsigned_field(a, b, c)
    v_bfe_i32         iuuu  signed_field(a, b, c)
    v_bfrev_b32       uu    __builtin_bitreverse32(a)
    v_bcnt_u32_b32    uuu   __builtin_popcount(a) + b
    v_clz_i32_u32     uu    a ? __builtin_clz(a) : ~0u
    v_ctz_i32_b32     uu    a ? __builtin_ctz(a) : ~0u
    v_alignbit_b32    uuuu  ((uint64_t)a << 32 | b) >> (c & 31)
    v_perm_b32        uuuu  permuted_bytes(a, b, c)
    v_pack_b32_f16    uhh   a | (uint32_t)b << 16
    v_cndmask_b32     ubbm  c ? b : a

    v_lshlrev_b32     uuu   b << (a & 31)
    v_lshrrev_b32     uuu   b >> (a & 31)
    v_ashrrev_i32     iui   b >> (a & 31)
    v_lshlrev_b64     UuU   b << (a & 63)
    v_lshrrev_b64     UuU   b >> (a & 63)
    v_ashrrev_i64     IuI   b >> (a & 63)
    v_lshl_add_u32    uuuu  (a << (b & 31)) + c
    v_lshl_or_b32     uuuu  (a << (b & 31)) | c
    v_add_lshl_u32    uuuu  (a + b) << (c & 31)

    v_add_nc_u32      uuu   a + b
    v_sub_nc_u32      uuu   a - b
    v_subrev_nc_u32   uuu   b - a
    v_add_nc_i32      iii   a + b
    v_sub_nc_i32      iii   a - b
    v_add3_u32        uuuu  a + b + c
    v_mul_lo_u32      uuu   a * b
    v_mul_hi_u32      uuu   (uint64_t)a * b >> 32
    v_mul_hi_i32      iii   (int64_t)a * b >> 32
    v_mul_u32_u24     uuu   (a & 0xffffff) * (b & 0xffffff)
    v_mul_hi_u32_u24  uuu   (uint64_t)(a & 0xffffff) * (b & 0xffffff) >> 32
    v_mul_i32_i24     iuu   (int64_t)extended(a, 24) * extended(b, 24)
    v_mul_hi_i32_i24  iuu   (int64_t)extended(a, 24) * extended(b, 24) >> 32
    v_mad_u32_u24     uuuu  (a & 0xffffff) * (b & 0xffffff) + c
    v_mad_i32_i24     uuuu  (uint32_t)extended(a, 24) * (uint32_t)extended(b, 24) + c
    v_min_u32         uuu   LEAST(a, b)
    v_max_u32         uuu   MOST(a, b)
    v_min_i32         iii   LEAST(a, b)
    v_max_i32         iii   MOST(a, b)
    v_min3_u32        uuuu  LEAST(LEAST(a, b), c)
    v_max3_u32        uuuu  MOST(MOST(a, b), c)
    v_min3_i32        iiii  LEAST(LEAST(a, b), c)
    v_max3_i32        iiii  MOST(MOST(a, b), c)
    v_minmax_i32      iiii  MOST(LEAST(a, b), c)
    v_maxmin_i32      iiii  LEAST(MOST(a, b), c)
    v_minmax_u32      uuuu  MOST(LEAST(a, b), c)
    v_maxmin_u32      uuuu  LEAST(MOST(a, b), c)
    v_med3_i32        iiii  MOST(LEAST(a, b), LEAST(MOST(a, b), c))

    v_and_b16         hhh   a & b
    v_or_b16          hhh   a | b
    v_xor_b16         hhh   a ^ b
    v_lshlrev_b16     hhh   (uint32_t)b << (a & 15)
    v_lshrrev_b16     hhh   b >> (a & 15)
    v_ashrrev_i16     khk   b >> (a & 15)
    v_add_nc_u16      hhh   a + b
    v_sub_nc_u16      hhh   a - b
    v_mul_lo_u16      hhh   (uint32_t)a * b
    v_mad_u16         hhhh  (uint32_t)a * b + c
    v_min_u16         hhh   LEAST(a, b)
    v_max_u16         hhh   MOST(a, b)
    v_min_i16         kkk   LEAST(a, b)
    v_max_i16         kkk   MOST(a, b)

    v_add_f32         fff   a + b
    v_sub_f32         fff   a - b
    v_subrev_f32      fff   b - a
    v_mul_f32         fff   a * b
    v_mul_dx9_zero_f32 fff   a == 0 || b == 0 ? 0 : a * b
    v_fma_f32         ffff  fmaf(a, b, c)
    v_fmac_f32        fff   fmaf(a, b, d)
    v_fmaak_f32       ffff  fmaf(a, b, c)
    v_fmamk_f32       ffff  fmaf(a, b, c)
    v_min_f32         fff   minimum(a, b)
    v_max_f32         fff   maximum(a, b)
    v_min3_f32        ffff  minimum(minimum(a, b), c)
    v_max3_f32        ffff  maximum(maximum(a, b), c)
    v_minmax_f32      ffff  maximum(minimum(a, b), c)
    v_maxmin_f32      ffff  minimum(maximum(a, b), c)
    v_med3_f32        ffff  median(a, b, c)
    v_floor_f32       ff    floorf(a)
    v_ceil_f32        ff    ceilf(a)
    v_trunc_f32       ff    truncf(a)
    v_rndne_f32       ff    rintf(a)
    v_fract_f32       ff    fraction(a)
    v_rcp_f32         ff    flushed(1 / flushed(a))
    v_rcp_iflag_f32   ff    flushed(1 / flushed(a))
    v_rsq_f32         ff    (float)(1 / sqrt((double)flushed(a)))
    v_sqrt_f32        ff    sqrtf(flushed(a))
    v_exp_f32         ff    flushed(exp2(flushed(a)))
    v_log_f32         ff    log2(flushed(a))
    v_ldexp_f32       ffi   ldexpf(a, b)
    v_frexp_mant_f32  ff    mantissa(a)
    v_frexp_exp_i32_f32 if  exponent(a)
    v_div_fmas_f32    ffffm m ? scaled_up(fmaf(a, b, c)) : fmaf(a, b, c)
    v_div_fixup_f32   ffff  division_fixed(a, b, c)

    v_cvt_f32_i32     fi    (float)a
    v_cvt_f32_u32     fu    (float)a
    v_cvt_i32_f32     if    signed_of(a)
    v_cvt_u32_f32     uf    unsigned_of(a)
    v_cvt_f32_ubyte0  fu    (float)(a & 255)
    v_cvt_f32_ubyte1  fu    (float)(a >> 8 & 255)
    v_cvt_f32_ubyte2  fu    (float)(a >> 16 & 255)
    v_cvt_f32_ubyte3  fu    (float)(a >> 24)
    v_cvt_f32_f16     fe    (float)a
    v_cvt_f16_f32     ef    (_Float16)a
""")

#: Of vectors, with a bit for each lane as a second destination: statements that set D and C.
CARRY = _rules("""
    v_add_co_u32        uuu   C = __builtin_add_overflow(a, b, &D);
    v_sub_co_u32        uuu   C = __builtin_sub_overflow(a, b, &D);
    v_subrev_co_u32     uuu   C = __builtin_sub_overflow(b, a, &D);
    v_add_co_ci_u32     uuum  uint64_t t = (uint64_t)a + b + c; D = t; C = t >> 32 != 0;
    v_sub_co_ci_u32     uuum  D = a - b - c; C = (uint64_t)b + c > a;
    v_subrev_co_ci_u32  uuum  D = b - a - c; C = (uint64_t)a + c > b;
    v_mad_u64_u32       UuuU  C = __builtin_add_overflow((uint64_t)a * b, c, &D);
    v_mad_i64_i32       IiiI  C = __builtin_add_overflow((int64_t)a * b, c, &D);
    v_div_scale_f32     ffff  D = division_scaled(a, b, c, &C);
""")

_CONDITIONS = {"lt": "a < b", "eq": "a == b", "le": "a <= b", "gt": "a > b", "ge": "a >= b"}
#: Those that NaN do not meet, and their opposites.
_OF_FLOATS = {**_CONDITIONS, "lg": "a < b || a > b", "o": "a == a && b == b"}
_OF_FLOATS |= {"u": "a != a || b != b", "nge": "!(a >= b)", "nlg": "!(a < b || a > b)", "ngt": "!(a > b)"}
_OF_FLOATS |= {"nle": "!(a <= b)", "neq": "!(a == b)", "nlt": "!(a < b)"}
_COMPARED = {"f32": "f", "i32": "i", "u32": "u", "i64": "I", "u64": "U", "i16": "k", "u16": "h"}


def _compares() -> Iterator[tuple[str, Rule]]:
    for name, letter in _COMPARED.items():
        for word, text in (_OF_FLOATS if letter == "f" else {**_CONDITIONS, "ne": "a != b"}).items():
            yield f"v_cmp_{word}_{name}", Rule("m", 2 * letter, text)
    yield "v_cmp_class_f32", Rule("m", "fu", "is_of_class(a, b)")


#: Of vectors, whose destination is a bit for each lane; ``v_cmpx_`` means the same with the lanes at work for one.
COMPARE = dict(_compares())

#: Of scalars: statements that set D, and S, the condition.
SCALAR = _rules("""
    s_mov_b32         uu    D = a;
    s_mov_b64         UU    D = a;
    s_movk_i32        ic    D = a;
    s_cmov_b32        uu    D = S ? a : d;
    s_cselect_b32     uuu   D = S ? a : b;
    s_cselect_b64     UUU   D = S ? a : b;
    s_not_b32         uu    D = ~a; S = D != 0;
    s_not_b64         UU    D = ~a; S = D != 0;
    s_brev_b32        uu    D = __builtin_bitreverse32(a);
    s_bitset0_b32     uu    D = d & ~(1u << (a & 31));
    s_bitset1_b32     uu    D = d | 1u << (a & 31);
    s_bcnt1_i32_b32   uu    D = __builtin_popcount(a); S = D != 0;
    s_bcnt1_i32_b64   uU    D = __builtin_popcountll(a); S = D != 0;
    s_ctz_i32_b32     iu    D = a ? __builtin_ctz(a) : -1;
    s_ctz_i32_b64     iU    D = a ? __builtin_ctzll(a) : -1;
    s_clz_i32_u32     iu    D = a ? __builtin_clz(a) : -1;
    s_clz_i32_u64     iU    D = a ? __builtin_clzll(a) : -1;
    s_sext_i32_i8     iu    D = (int8_t)a;
    s_sext_i32_i16    iu    D = (int16_t)a;
    s_abs_i32         ii    D = a < 0 ? 0 - a : a; S = D != 0;
    s_bfm_b32         uuu   D = ((1u << (a & 31)) - 1) << (b & 31);
    s_bfe_u32         uuu   D = scalar_field(a, b); S = D != 0;
    s_bfe_i32         iuu   D = scalar_signed_field(a, b); S = D != 0;
    s_bfe_u64         UUu   D = wide_field(a, b); S = D != 0;
    s_bfe_i64         IUu   D = wide_signed_field(a, b); S = D != 0;
    s_pack_ll_b32_b16 uuu   D = (a & 0xffff) | b << 16;
    s_pack_lh_b32_b16 uuu   D = (a & 0xffff) | (b & 0xffff0000);
    s_pack_hh_b32_b16 uuu   D = a >> 16 | (b & 0xffff0000);

    s_add_u32         uuu   S = __builtin_add_overflow(a, b, &D);
    s_sub_u32         uuu   S = __builtin_sub_overflow(a, b, &D);
    s_addc_u32        uuu   uint64_t t = (uint64_t)a + b + S; D = t; S = t >> 32 != 0;
    s_subb_u32        uuu   uint64_t t = (uint64_t)b + S; D = a - b - S; S = t > a;
    s_add_i32         iii   S = __builtin_add_overflow(a, b, &D);
    s_sub_i32         iii   S = __builtin_sub_overflow(a, b, &D);
    s_addk_i32        ic    S = __builtin_add_overflow((int32_t)d, a, &D);
    s_mulk_i32        ic    D = (int32_t)d * a;
    s_mul_i32         uuu   D = a * b;
    s_mul_hi_u32      uuu   D = (uint64_t)a * b >> 32;
    s_mul_hi_i32      iii   D = (int64_t)a * b >> 32;
    s_lshl1_add_u32   uuu   uint64_t t = ((uint64_t)a << 1) + b; D = t; S = t >> 32 != 0;
    s_lshl2_add_u32   uuu   uint64_t t = ((uint64_t)a << 2) + b; D = t; S = t >> 32 != 0;
    s_lshl3_add_u32   uuu   uint64_t t = ((uint64_t)a << 3) + b; D = t; S = t >> 32 != 0;
    s_lshl4_add_u32   uuu   uint64_t t = ((uint64_t)a << 4) + b; D = t; S = t >> 32 != 0;
    s_min_u32         uuu   S = a < b; D = S ? a : b;
    s_max_u32         uuu   S = a > b; D = S ? a : b;
    s_min_i32         iii   S = a < b; D = S ? a : b;
    s_max_i32         iii   S = a > b; D = S ? a : b;

    s_lshl_b32        uuu   D = a << (b & 31); S = D != 0;
    s_lshr_b32        uuu   D = a >> (b & 31); S = D != 0;
    s_ashr_i32        iiu   D = a >> (b & 31); S = D != 0;
    s_lshl_b64        UUu   D = a << (b & 63); S = D != 0;
    s_lshr_b64        UUu   D = a >> (b & 63); S = D != 0;
    s_ashr_i64        IIu   D = a >> (b & 63); S = D != 0;

    s_bitcmp0_b32     -uu   S = !(a >> (b & 31) & 1);
    s_bitcmp1_b32     -uu   S = a >> (b & 31) & 1;
""")
_LOGIC = {"and": "a & b", "or": "a | b", "xor": "a ^ b", "and_not1": "a & ~b", "or_not1": "a | ~b"}
_LOGIC |= {"nand": "~(a & b)", "nor": "~(a | b)", "xnor": "~(a ^ b)"}
for _word, _text in _LOGIC.items():
    for _bits, _letter in ((32, "u"), (64, "U")):
        SCALAR[f"s_{_word}_b{_bits}"] = Rule(_letter, 2 * _letter, f"D = {_text}; S = D != 0;")
# The lanes at work, which go to the destination, and a source make those that are at work now; waves of 32 have them in
# one register, those of 64 in two.
for _word, _text in {**_LOGIC, "and_not0": "~a & b", "or_not0": "~a | b"}.items():
    _narrow = f"D = w->s[EXEC]; uint32_t b = D, x = {_text}; w->s[EXEC] = x; S = x != 0;"
    _wide = f"D = pair(w, EXEC); uint64_t b = D, x = {_text}; set_scalar64(w, EXEC, x); S = x != 0;"
    SCALAR[f"s_{_word}_saveexec_b32"] = Rule("u", "u", _narrow)
    SCALAR[f"s_{_word}_saveexec_b64"] = Rule("U", "U", _wide)
for _word, _text in {**_CONDITIONS, "lg": "a != b"}.items():
    for _name, _types in (("cmp", ("ii", "uu")), ("cmpk", ("ic", "uC"))):
        for _letter, _both in zip("iu", _types, strict=True):
            SCALAR[f"s_{_name}_{_word}_{_letter}32"] = Rule("", _both, f"S = {_text};")
SCALAR["s_cmp_eq_u64"] = Rule("", "UU", "S = a == b;")
SCALAR["s_cmp_lg_u64"] = Rule("", "UU", "S = a != b;")


class Access(NamedTuple):
    """What an instruction does to memory, for each lane.

    Attributes:
        space: ``global`` (a launch's buffers), ``scratch`` (a work-item's) or ``ds`` (local memory).
        stores: whether it stores.
        words: registers, at each address.
        piece: if not a whole register: C's type of what is in memory.
        upper: whether that is the upper half of the register.
        keeps: whether the other half of the register stays as it is.
        addresses: one or two.
    """

    space: str
    stores: bool
    words: int = 1
    piece: str = ""
    upper: bool = False
    keeps: bool = False
    addresses: int = 1


def _accesses() -> Iterator[tuple[str, Access]]:
    for space, words in itertools.product(("global", "scratch", "ds"), (1, 2, 3, 4)):
        yield f"{space}_load_b{32 * words}", Access(space, False, words)
        yield f"{space}_store_b{32 * words}", Access(space, True, words)
    for space in ("global", "scratch", "ds"):
        for name, piece in (("u8", "uint8_t"), ("i8", "int8_t"), ("u16", "uint16_t"), ("i16", "int16_t")):
            yield f"{space}_load_{name}", Access(space, False, piece=piece)
        yield f"{space}_store_b8", Access(space, True, piece="uint8_t")
        yield f"{space}_store_b16", Access(space, True, piece="uint16_t")
        load, store = (f"{space}_{word}_{{}}" if space != "ds" else f"ds_{word}_{{}}" for word in ("load", "store"))
        names = ("d16_b16", "d16_hi_b16", "d16_hi_b16") if space != "ds" else ("u16_d16", "u16_d16_hi", "b16_d16_hi")
        yield load.format(names[0]), Access(space, False, piece="uint16_t", keeps=True)
        yield load.format(names[1]), Access(space, False, piece="uint16_t", upper=True, keeps=True)
        yield store.format(names[2]), Access(space, True, piece="uint16_t", upper=True)
    for words in (1, 2):
        yield f"ds_load_2addr_b{32 * words}", Access("ds", False, words, addresses=2)
        yield f"ds_store_2addr_b{32 * words}", Access("ds", True, words, addresses=2)


#: Of vectors and memory.
MEMORY = dict(_accesses())
#: Of scalars and memory: how many registers they load.
SCALAR_LOADS = {f"s_load_b{32 * words}": words for words in (1, 2, 4, 8, 16)}
#: When a branch is taken.
BRANCHES = {"s_branch": "1", "s_cbranch_scc0": "!S", "s_cbranch_scc1": "S"}
BRANCHES |= {"s_cbranch_vccz": "!mask_at(w, VCC)", "s_cbranch_vccnz": "mask_at(w, VCC)"}
BRANCHES |= {"s_cbranch_execz": "!mask_at(w, EXEC)", "s_cbranch_execnz": "mask_at(w, EXEC)"}
#: What only times and orders, of which there is nothing here: every instruction is done before the next begins.
NOTHING = frozenset(
    [
        "s_clause",
        "s_delay_alu",
        "s_waitcnt",
        "s_waitcnt_depctr",
        "s_waitcnt_vscnt",
        "s_nop",
        "s_sendmsg",
        "s_set_inst_prefetch_distance",
        "s_sleep",
        "s_setprio",
        "v_nop",
        "buffer_gl0_inv",
        "buffer_gl1_inv",
    ]
)
#: Others: a statement each. ``I`` is the instruction, ``w`` the wave.
OTHERS = {
    "s_endpgm": "return ENDED;",
    "s_barrier": "w->pc = pc; return AT_BARRIER;",
    "s_getpc_b64": "set_scalar64(w, I->d, q->code + I->immediate);",
    "s_setpc_b64": "if (!jump(q, scalar64(w, &I->source[0]), &pc)) return fault(q, OUTSIDE_CODE, pc - 1, 0, 0);",
    "v_readfirstlane_b32": "w->s[I->d] = lanes(w, &I->source[0], t0)[first_lane(w)];",
    "v_readlane_b32": "w->s[I->d] = lanes(w, &I->source[0], t0)[scalar(w, &I->source[1]) & (LANES - 1)];",
    "v_writelane_b32": "w->v[I->d][scalar(w, &I->source[1]) & (LANES - 1)] = scalar(w, &I->source[0]);",
    "v_movrels_b32": "put(w, I->d, w->v[I->source[0].number + w->s[M0] & 255]);",
    "v_movreld_b32": "put(w, I->d + w->s[M0] & 255, lanes(w, &I->source[0], t0));",
    "v_fma_mix_f32": "fma_mix(w, I, R); put(w, I->d, R);",
    "v_fma_mixlo_f16": "fma_mix(w, I, R); put_half(w, I->d, R, 0);",
    "v_fma_mixhi_f16": "fma_mix(w, I, R); put_half(w, I->d, R, 16);",
}
#: The instructions' numbers, by their names.
NUMBERS = {
    name: number
    for number, name in enumerate(
        ["nothing", *VECTOR, *CARRY, *COMPARE, *SCALAR, *MEMORY, *SCALAR_LOADS, *BRANCHES, *OTHERS]
    )
}
