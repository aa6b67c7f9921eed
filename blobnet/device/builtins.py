"""Declarations of OpenCL C's built-in functions, for compilers that parse a header of them all for every program.

PoCL's takes 0.15 s for that, for kernels that call five of them. Here stand those that kernels call; a program that
calls others does not compile with them alone, and is built with the whole header then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: What makes the header (Clang's opencl-c.h) empty: it is protected by this macro from being read twice.
WITHOUT_HEADER = "-D_OPENCL_H_"

_LENGTHS = ("", "2", "3", "4", "8", "16")
_FLOATS = [f"float{length}" for length in _LENGTHS]
_SPACES = ("__global", "__local", "__constant", "__private")
#: Functions of floats by how many they take.
_MATHS = {
    1: "ceil cos erf exp exp2 expm1 fabs floor log log1p log2 rint round rsqrt sign sin sqrt tanh trunc",
    2: "copysign fdim fmax fmin fmod hypot pow",
    3: "clamp fma mad mix",
}
#: How many vectors those take whose other arguments may be scalars.
_TAKE_SCALARS = {"fmax": 1, "fmin": 1, "max": 1, "min": 1, "clamp": 1, "mix": 2}
_WHOLE = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
_WHOLE_MATHS = {1: "clz", 2: "max min mul_hi", 3: "clamp"}
_WORK_ITEMS = "get_global_id get_global_size get_group_id get_local_id get_local_size get_num_groups get_global_offset"
_CONST, _PURE, _CONVERGENT = (f"__attribute__((overloadable, {word}))" for word in ("const", "pure", "convergent"))
_PLAIN = "__attribute__((overloadable))"
_OTHERS = {"atomic_inc": [f"{kind} {_PLAIN} atomic_inc(volatile __local {kind} *);" for kind in ("int", "uint")]}


def declared(source: str) -> str | None:
    """The source behind declarations of the built-in functions that it names; None if it needs those of doubles."""
    called = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", source))
    if "double" in called:
        return None
    return " ".join(line for name in called for line in _declarations(name)) + "\n#line 1\n" + source


def _declarations(name: str) -> Iterator[str]:
    """All forms of a function, of which a call may choose any: with fewer it might choose another."""
    for count, names in _MATHS.items():
        if name in names.split():
            yield from _of_numbers(name, count, _FLOATS)
    for count, names in _WHOLE_MATHS.items():
        if name in names.split():
            for kind in _WHOLE:
                yield from _of_numbers(name, count, [kind + length for length in _LENGTHS])
            if name in ("max", "min"):
                yield from _of_numbers(name, count, _FLOATS)
    if name in _WORK_ITEMS.split():
        yield f"size_t {_CONST} {name}(uint);"
    if name in ("isnan", "isinf", "isfinite"):
        yield from (f"int{length} {_CONST} {name}(float{length});" for length in _LENGTHS)
    if name in ("barrier", "mem_fence"):
        yield f"void {_CONVERGENT if name == 'barrier' else _PLAIN} {name}(cl_mem_fence_flags);"
    yield from _OTHERS.get(name, ())
    if name == "select":
        for length in _LENGTHS:
            for kind in ("float", "int", "uint"):
                value = kind + length
                yield from (f"{value} {_CONST} select({value}, {value}, {mask}{length});" for mask in ("int", "uint"))
    if found := re.fullmatch(r"convert_(float|u?int|u?short)(2|3|4|8|16|)(_rt[ezpn])?", name):
        kind, length, _ = found.groups()
        kinds = ("float", *_WHOLE)
        yield from (f"{kind}{length} {_CONST} {name}({other}{length});" for other in kinds)
    if found := re.fullmatch(r"v(load|store)(a?_half)?(2|3|4|8|16|)", name):
        yield from _of_memory(name, *found.groups())


def _of_numbers(name: str, count: int, types: list[str]) -> Iterator[str]:
    scalar = types[0]
    for type_ in types:
        yield f"{type_} {_CONST} {name}({', '.join([type_] * count)});"
        own = _TAKE_SCALARS.get(name)
        if own and type_ != scalar:
            yield f"{type_} {_CONST} {name}({', '.join([type_] * own + [scalar] * (count - own))});"


def _of_memory(name: str, action: str, half: str | None, length: str) -> Iterator[str]:
    if not half and not length:
        return
    for kind in ("half",) if half else ("float", *_WHOLE):
        value = f"{'float' if half else kind}{length}"
        for space in _SPACES:
            if action == "load":
                yield f"{value} {_PURE} {name}(size_t, const {space} {kind} *);"
            elif space != "__constant":
                yield f"void {_PLAIN} {name}({value}, size_t, {space} {kind} *);"
