"""What instructions compute, once more: in NumPy, written from AMD's guide without a look at the interpreter.

A function takes the sources as arrays of their types (tests/amd/instructions.py has the letters); where an instruction
reads what its destination held, or the condition, that comes last. It returns the destination, and the carry or the
condition where there is one. Whatever it returns is converted to the type of the result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
U32, U64, I64 = np.uint32, np.uint64, np.int64


def low(x: Array, bits: int = 32) -> Array:
    """The lower bits of Python's integers."""
    return np.vectorize(lambda value: int(value) & (1 << bits) - 1, otypes=[U64])(x)


def each(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Python's numbers, for arrays; an integer may be negative or too large, and is cut."""
    return lambda *x: np.array([function(*(value.item() for value in values)) for values in zip(*x, strict=True)])


def integer(function: Callable[..., int], bits: int = 32) -> Callable[..., Any]:
    """A function of Python's integers: the lower bits of what it gives."""
    return lambda *x: low([function(*map(int, values)) for values in zip(*x, strict=True)], bits)


def flush(x: Array) -> Array:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def exact(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Of floats by doubles, rounded once; denormals are 0, before and after."""
    return lambda x: flush(function(flush(x).astype(np.float64)).astype(np.float32))


def fma(a: Array, b: Array, c: Array) -> Array:
    """Rounded from long doubles, which hold the product and, but in rare cases, the sum."""
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def least(a: Array, b: Array) -> Array:
    """Of floats: not NaN if one is none, and -0 is less than +0."""
    smaller = np.where((a < b) | ((a == b) & np.signbit(a)), a, b)
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, smaller))


def most(a: Array, b: Array) -> Array:
    return -least(-a, -b)


def convert(low_end: int, high_end: int) -> Callable[[Array], Array]:
    def one(x: float) -> int:
        return 0 if math.isnan(x) else int(max(low_end, min(high_end, x)))

    return each(lambda x: one(x))


def classes(x: Array, mask: Array) -> Array:
    bits, tiny = x.view(U32), np.abs(x) < np.float32(2.0**-126)
    negative = bits >> 31 == 1
    quiet = bits & 0x400000 != 0
    kinds = [np.isnan(x) & ~quiet, np.isnan(x) & quiet, np.isneginf(x), np.isfinite(x) & negative & ~tiny]
    kinds += [tiny & negative & (x != 0), negative & (x == 0), ~negative & (x == 0), tiny & ~negative & (x != 0)]
    kinds += [np.isfinite(x) & ~negative & ~tiny, np.isposinf(x)]
    return sum((kind & (mask >> place & 1 == 1)).astype(int) for place, kind in enumerate(kinds))


def field(value: int, offset: int, size: int) -> int:
    return value >> offset & (1 << size) - 1


def signed_field(value: int, offset: int, size: int, bits: int) -> int:
    found = field(value - (value >> bits - 1 << bits), offset, min(size, bits))
    return found - (1 << size) if 0 < size <= bits and found >> size - 1 else found


def ends(bits: int, first: bool) -> Callable[[int], int]:
    """The place of the first or last bit that is 1, or -1."""
    return lambda a: -1 if a == 0 else bits - a.bit_length() if first else (a & -a).bit_length() - 1


def reversed_bits(a: int) -> int:
    return int(f"{a:032b}"[::-1], 2)


def cut(a: int) -> int:
    """24 bits with a sign."""
    return (a & 0xFFFFFF) - ((a >> 23 & 1) << 24)


VECTOR: dict[str, Callable[..., Any]] = {
    "v_mov_b32": lambda a: a,
    "v_not_b32": integer(operator.invert),
    "v_xnor_b32": integer(lambda a, b: ~(a ^ b)),
    "v_and_or_b32": integer(lambda a, b, c: a & b | c),
    "v_or3_b32": integer(lambda a, b, c: a | b | c),
    "v_xor3_b32": integer(lambda a, b, c: a ^ b ^ c),
    "v_xad_u32": integer(lambda a, b, c: (a ^ b) + c),
    "v_bfi_b32": integer(lambda a, b, c: c ^ (a & (b ^ c))),
    "v_bfe_u32": integer(lambda a, b, c: field(a, b % 32, c % 32)),
    "v_bfe_i32": integer(lambda a, b, c: signed_field(a, b % 32, c % 32, 32)),
    "v_bfrev_b32": integer(reversed_bits),
    "v_bcnt_u32_b32": integer(lambda a, b: bin(a).count("1") + b),
    "v_clz_i32_u32": integer(ends(32, True)),
    "v_ctz_i32_b32": integer(ends(32, False)),
    "v_alignbit_b32": integer(lambda a, b, c: (a * 2**32 + b) >> c % 32),
    "v_perm_b32": integer(lambda a, b, c: sum(chosen_byte(a * 2**32 + b, c >> 8 * k & 255) << 8 * k for k in range(4))),
    "v_pack_b32_f16": integer(lambda a, b: a + b * 65536),
    "v_cndmask_b32": lambda a, b, c: np.where(c, b, a),
    "v_lshlrev_b32": integer(lambda a, b: b << a % 32),
    "v_lshrrev_b32": integer(lambda a, b: b >> a % 32),
    "v_ashrrev_i32": integer(lambda a, b: b >> a % 32),
    "v_lshlrev_b64": integer(lambda a, b: b << a % 64, 64),
    "v_lshrrev_b64": integer(lambda a, b: b >> a % 64, 64),
    "v_ashrrev_i64": integer(lambda a, b: b >> a % 64, 64),
    "v_lshl_add_u32": integer(lambda a, b, c: (a << b % 32) + c),
    "v_lshl_or_b32": integer(lambda a, b, c: (a << b % 32) % 2**32 | c),
    "v_add_lshl_u32": integer(lambda a, b, c: (a + b) << c % 32),
    "v_subrev_nc_u32": integer(lambda a, b: b - a),
    "v_add3_u32": integer(lambda a, b, c: a + b + c),
    "v_mul_lo_u32": integer(operator.mul),
    "v_mul_hi_u32": integer(lambda a, b: a * b >> 32),
    "v_mul_hi_i32": integer(lambda a, b: a * b >> 32),
    "v_mul_u32_u24": integer(lambda a, b: a % 2**24 * (b % 2**24)),
    "v_mul_hi_u32_u24": integer(lambda a, b: a % 2**24 * (b % 2**24) >> 32),
    "v_mul_i32_i24": integer(lambda a, b: cut(a) * cut(b)),
    "v_mul_hi_i32_i24": integer(lambda a, b: cut(a) * cut(b) >> 32),
    "v_mad_u32_u24": integer(lambda a, b, c: a % 2**24 * (b % 2**24) + c),
    "v_mad_i32_i24": integer(lambda a, b, c: cut(a) * cut(b) + c),
    "v_minmax_f32": lambda a, b, c: most(least(a, b), c),
    "v_maxmin_f32": lambda a, b, c: least(most(a, b), c),
    "v_med3_i32": integer(lambda a, b, c: sorted((a, b, c))[1]),
    "v_lshlrev_b16": integer(lambda a, b: b << a % 16, 16),
    "v_lshrrev_b16": integer(lambda a, b: b >> a % 16, 16),
    "v_ashrrev_i16": integer(lambda a, b: b >> a % 16, 16),
    "v_mul_lo_u16": integer(operator.mul, 16),
    "v_mad_u16": integer(lambda a, b, c: a * b + c, 16),
    "v_add_f32": operator.add,
    "v_sub_f32": operator.sub,
    "v_subrev_f32": lambda a, b: b - a,
    "v_mul_f32": operator.mul,
    "v_mul_dx9_zero_f32": lambda a, b: np.where((a == 0) | (b == 0), 0, a * b),
    "v_fma_f32": fma,
    "v_fmac_f32": fma,
    "v_fmaak_f32": fma,
    "v_fmamk_f32": fma,
    "v_min_f32": least,
    "v_max_f32": most,
    "v_min3_f32": lambda a, b, c: least(least(a, b), c),
    "v_max3_f32": lambda a, b, c: most(most(a, b), c),
    "v_med3_f32": lambda *x: np.where(np.isnan(x).any(0), least(least(x[0], x[1]), x[2]), np.sort(x, 0)[1]),
    "v_floor_f32": np.floor,
    "v_ceil_f32": np.ceil,
    "v_trunc_f32": np.trunc,
    "v_rndne_f32": np.rint,
    "v_fract_f32": lambda a: least(a - np.floor(a), np.where(np.isfinite(a), np.float32(1 - 2.0**-24), a - a)),
    "v_rcp_f32": exact(lambda a: 1 / a),
    "v_rcp_iflag_f32": exact(lambda a: 1 / a),
    "v_rsq_f32": exact(lambda a: 1 / np.sqrt(a)),
    "v_sqrt_f32": exact(np.sqrt),
    "v_exp_f32": exact(np.exp2),
    "v_log_f32": exact(np.log2),
    "v_ldexp_f32": lambda a, b: np.ldexp(a.astype(np.float64), np.clip(b, -400, 400)),
    "v_frexp_mant_f32": lambda a: np.frexp(a)[0],
    "v_frexp_exp_i32_f32": lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0),
    "v_cvt_f32_i32": lambda a: a.astype(np.float32),
    "v_cvt_f32_u32": lambda a: a.astype(np.float32),
    "v_cvt_i32_f32": convert(-(2**31), 2**31 - 1),
    "v_cvt_u32_f32": convert(0, 2**32 - 1),
    **{f"v_cvt_f32_ubyte{k}": lambda a, k=k: a.view(np.uint8)[k::4].astype(np.float32) for k in range(4)},
    "v_cvt_f32_f16": lambda a: a.astype(np.float32),
    "v_cvt_f16_f32": lambda a: a.astype(np.float16),
}
for _bits in (16, 32):
    for _word, _function in {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.items():
        VECTOR[f"v_{_word}_b{_bits}"] = integer(_function, _bits)
    for _letter in "iu":
        VECTOR[f"v_min_{_letter}{_bits}"] = integer(min, _bits)
        VECTOR[f"v_max_{_letter}{_bits}"] = integer(max, _bits)
        VECTOR[f"v_minmax_{_letter}{_bits}"] = integer(lambda a, b, c: max(min(a, b), c), _bits)
        VECTOR[f"v_maxmin_{_letter}{_bits}"] = integer(lambda a, b, c: min(max(a, b), c), _bits)
        VECTOR[f"v_min3_{_letter}{_bits}"] = integer(min, _bits)
        VECTOR[f"v_max3_{_letter}{_bits}"] = integer(max, _bits)
        VECTOR[f"v_add_nc_{_letter}{_bits}"] = integer(operator.add, _bits)
        VECTOR[f"v_sub_nc_{_letter}{_bits}"] = integer(operator.sub, _bits)


def chosen_byte(both: int, selector: int) -> int:
    if selector > 12:
        return 255
    if selector == 12:
        return 0
    return both >> 8 * selector & 255 if selector < 8 else 255 * (both >> (15, 31, 47, 63)[selector - 8] & 1)


CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("lt", "le", "eq", "ne", "ge", "gt")},
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
}
#: Both results: the lower bits, and whether more is needed.
CARRY: dict[str, tuple[Callable[..., int], int]] = {
    "v_add_co_u32": (lambda a, b: a + b, 32),
    "v_sub_co_u32": (lambda a, b: a - b, 32),
    "v_subrev_co_u32": (lambda a, b: b - a, 32),
    "v_add_co_ci_u32": (lambda a, b, c: a + b + c, 32),
    "v_sub_co_ci_u32": (lambda a, b, c: a - b - c, 32),
    "v_subrev_co_ci_u32": (lambda a, b, c: b - a - c, 32),
    "v_mad_u64_u32": (lambda a, b, c: a * b + c, 64),
}


LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "and_not1": lambda a, b: a & ~b,
    "or_not1": lambda a, b: a | ~b,
    "and_not0": lambda a, b: ~a & b,
    "or_not0": lambda a, b: ~a | b,
}


def _scalars() -> dict[str, Callable[..., tuple[int, Any]]]:
    """Result and condition; ``d`` is what the destination held, ``s`` the condition, ``x`` the lanes at work."""
    full, whole = 2**32, 2**64

    def bits(function: Callable[..., int], width: int = 32) -> Callable[..., tuple[int, Any]]:
        """The condition says whether the result is not 0."""
        return lambda *v, d, s, x: ((r := function(*v) % 2**width), r != 0)

    def kept(function: Callable[..., int]) -> Callable[..., tuple[int, Any]]:
        """The condition stays."""
        return lambda *v, d, s, x: (function(*v), s)

    def fits(function: Callable[..., int], low_end: int, high_end: int) -> Callable[..., tuple[int, Any]]:
        """The condition says whether the result does not fit."""
        return lambda *v, d, s, x: ((r := function(*v, s)), not low_end <= r < high_end)

    found: dict[str, Callable[..., tuple[int, Any]]] = {
        "s_mov_b32": kept(lambda a: a),
        "s_mov_b64": kept(lambda a: a),
        "s_movk_i32": kept(lambda a: a),
        "s_cmov_b32": lambda a, d, s, x: (a if s else d, s),
        "s_cselect_b32": lambda a, b, d, s, x: (a if s else b, s),
        "s_cselect_b64": lambda a, b, d, s, x: (a if s else b, s),
        "s_not_b32": bits(operator.invert),
        "s_not_b64": bits(operator.invert, 64),
        "s_brev_b32": kept(reversed_bits),
        "s_bitset0_b32": lambda a, d, s, x: (d & ~(1 << a % 32), s),
        "s_bitset1_b32": lambda a, d, s, x: (d | 1 << a % 32, s),
        "s_bcnt1_i32_b32": bits(lambda a: bin(a).count("1")),
        "s_bcnt1_i32_b64": bits(lambda a: bin(a).count("1")),
        "s_ctz_i32_b32": kept(ends(32, False)),
        "s_ctz_i32_b64": kept(ends(64, False)),
        "s_clz_i32_u32": kept(ends(32, True)),
        "s_clz_i32_u64": kept(ends(64, True)),
        "s_sext_i32_i8": kept(lambda a: (a & 255) - 2 * (a & 128)),
        "s_sext_i32_i16": kept(lambda a: (a & 65535) - 2 * (a & 32768)),
        "s_abs_i32": bits(abs),
        "s_bfm_b32": kept(lambda a, b: (2 ** (a % 32) - 1) << b % 32),
        "s_bfe_u32": bits(lambda a, b: field(a, b % 32, b >> 16 & 127)),
        "s_bfe_i32": bits(lambda a, b: signed_field(a, b % 32, min(b >> 16 & 127, 32), 32)),
        "s_bfe_u64": bits(lambda a, b: field(a, b % 64, b >> 16 & 127), 64),
        "s_bfe_i64": bits(lambda a, b: signed_field(a % whole, b % 64, min(b >> 16 & 127, 64), 64), 64),
        "s_pack_ll_b32_b16": kept(lambda a, b: a % 65536 + b * 65536),
        "s_pack_lh_b32_b16": kept(lambda a, b: a % 65536 + (b >> 16 << 16)),
        "s_pack_hh_b32_b16": kept(lambda a, b: (a >> 16) + (b >> 16 << 16)),
        "s_add_u32": fits(lambda a, b, s: a + b, 0, full),
        "s_sub_u32": fits(lambda a, b, s: a - b, 0, full),
        "s_addc_u32": fits(lambda a, b, s: a + b + s, 0, full),
        "s_subb_u32": fits(lambda a, b, s: a - b - s, 0, full),
        "s_add_i32": fits(lambda a, b, s: a + b, -(2**31), 2**31),
        "s_sub_i32": fits(lambda a, b, s: a - b, -(2**31), 2**31),
        "s_addk_i32": lambda a, d, s, x: (a + d, not -(2**31) <= a + d < 2**31),
        "s_mulk_i32": lambda a, d, s, x: (a * d, s),
        "s_mul_i32": kept(operator.mul),
        "s_mul_hi_u32": kept(lambda a, b: a * b >> 32),
        "s_mul_hi_i32": kept(lambda a, b: a * b >> 32),
        "s_min_u32": lambda a, b, d, s, x: (min(a, b), a < b),
        "s_max_u32": lambda a, b, d, s, x: (max(a, b), a > b),
        "s_min_i32": lambda a, b, d, s, x: (min(a, b), a < b),
        "s_max_i32": lambda a, b, d, s, x: (max(a, b), a > b),
        "s_lshl_b32": bits(lambda a, b: a << b % 32),
        "s_lshr_b32": bits(lambda a, b: a >> b % 32),
        "s_ashr_i32": bits(lambda a, b: a >> b % 32),
        "s_lshl_b64": bits(lambda a, b: a << b % 64, 64),
        "s_lshr_b64": bits(lambda a, b: a >> b % 64, 64),
        "s_ashr_i64": bits(lambda a, b: a >> b % 64, 64),
        "s_bitcmp0_b32": lambda a, b, d, s, x: (0, not a >> b % 32 & 1),
        "s_bitcmp1_b32": lambda a, b, d, s, x: (0, a >> b % 32 & 1),
        "s_cmp_eq_u64": lambda a, b, d, s, x: (0, a == b),
        "s_cmp_lg_u64": lambda a, b, d, s, x: (0, a != b),
    }
    for word, function in LOGIC.items():
        for width in (32, 64):
            found[f"s_{word}_b{width}"] = bits(function, width)
            # The destination gets the lanes that were at work; the condition is of those that are now.
            found[f"s_{word}_saveexec_b{width}"] = lambda a, d, s, x, f=function, n=2**width: (x % n, f(a, x) % n != 0)
    for shift in range(1, 5):
        found[f"s_lshl{shift}_add_u32"] = fits(lambda a, b, s, k=shift: (a << k) + b, 0, full)
    for word in ("lt", "le", "eq", "lg", "gt", "ge"):
        compare = getattr(operator, word.replace("lg", "ne"))
        for name in ("cmp", "cmpk"):
            for letter in "iu":
                found[f"s_{name}_{word}_{letter}32"] = lambda a, b, d, s, x, f=compare: (0, f(a, b))
    return found


SCALAR = _scalars()
