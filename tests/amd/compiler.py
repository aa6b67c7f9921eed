"""OpenCL C to RDNA 3 machine code by clang 16 and ROCm's device libraries, and back to text.

Debian: ``apt-get install clang-16 llvm-16 lld-16 rocm-device-libs``. What was compiled is kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from blobnet.support.user_cache import cache_folder

#: What is compiled for: RDNA 3, whose waves are of 32 lanes, or of 64 where the compiler is told.
TARGET = "gfx1100"
PROGRAMS = ("clang-16", "ld.lld-16", "llvm-mc-16", "llvm-objdump-16")
BITCODE = Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")
_MODES = ("daz_opt_off", "unsafe_math_off", "finite_only_off", "correctly_rounded_sqrt_off")
_LIBRARIES = ("opencl", "ocml", "ockl", "oclc_abi_version_500", *(f"oclc_{mode}" for mode in _MODES))
#: NOTE: Debian's libraries (5.2) are older than this target, and lack the one that has nothing but this number.
VERSION = '__attribute__((visibility("protected"))) __constant const int __oclc_ISA_version = 11000;\n#line 1\n'


def missing() -> str | None:
    """What is not installed here of what is needed, in words; None if all is there."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    absent += [] if BITCODE.is_dir() else ["ROCm's device libraries"]
    packages = "Debian: clang-16 llvm-16 lld-16 rocm-device-libs"
    return f"{', '.join(absent)} must be installed ({packages})" if absent else None


class CompileError(Exception):
    """The compiler refuses a program; its words."""


def target_options(lanes: int = 32) -> list[str]:
    """What clang is told for waves of so many lanes of a target that its device libraries are too old for."""
    libraries = (*_LIBRARIES, f"oclc_wavefrontsize64_{'on' if lanes == 64 else 'off'}")
    linked = [word for name in libraries for word in ("-mlink-builtin-bitcode", str(BITCODE / f"{name}.bc"))]
    options = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={TARGET}", "-mcode-object-version=5", "-nogpulib"]
    options += ["-mwavefrontsize64"] if lanes == 64 else []
    return [*options, *(word for item in linked for word in ("-Xclang", item))]


def compiled(source: str, options: Sequence[str] = (), lanes: int = 32) -> Path:
    """The code object of an OpenCL program, in waves of 32 or 64 lanes.

    Raises:
        CompileError: the compiler refuses it.
    """
    options = [*options, "-Xclang", "-finclude-default-header", "-O3", *target_options(lanes)]
    return _made(VERSION + source, ["clang-16", "-x", "cl", *options, "-"], ".co")


def library(source: str, folders: Iterable[Path] = ()) -> Path:
    """The shared library of a C program for this processor, whose arithmetic is IEEE 754's, operation by operation.

    Raises:
        CompileError: the compiler refuses it.
    """
    strict = ["-O2", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-fno-math-errno"]
    strict += ["-fno-unroll-loops"]  # Unrolled, loops over 64 lanes take minutes to compile.
    command = ["clang-16", "-x", "c", *strict, *(f"-I{folder}" for folder in folders), "-shared", "-fPIC", "-"]
    return _made(source, [*command, "-lm"], f"-{_processor()}.so")


def _features(lanes: int) -> str:
    """What LLVM's tools are told of waves."""
    return f"-mattr=+wavefrontsize{lanes},-wavefrontsize{96 - lanes}"


def assembled(text: str, lanes: int = 32) -> Path:
    """The object file of assembly for waves of 32 or 64 lanes.

    Raises:
        CompileError: the assembler refuses it.
    """
    command = ["llvm-mc-16", "-arch=amdgcn", f"-mcpu={TARGET}", _features(lanes), "-filetype=obj"]
    return _made(text, command, ".o")


def disassembled(path: Path, symbol: str | None = None, lanes: int = 32) -> str:
    """What llvm-objdump says of a code object's instructions; of one function if a symbol is given."""
    only = "--disassemble" if symbol is None else f"--disassemble-symbols={symbol}"
    command = ["llvm-objdump-16", f"--mcpu={TARGET}", f"-{_features(lanes)}", only, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _made(source: str, command: Sequence[str], suffix: str) -> Path:
    """What a command makes of a source on its standard input, from the cache if it was made before."""
    digest = hashlib.sha256("\n".join([_version(), *command, source]).encode()).hexdigest()[:24]
    path = cache_folder() / "amd" / f"{digest}{suffix}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}{suffix}")
        whole = [*command, "-o", str(unfinished)]
        done = subprocess.run(whole, input=source, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(done.stderr)
        unfinished.replace(path)
    return path


@cache
def _version() -> str:
    """What the compiler says that it is."""
    return subprocess.run(["clang-16", "--version"], capture_output=True, text=True, check=True).stdout


@cache
def _processor() -> str:
    """What tells this processor from others that may share the cache."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return hashlib.sha256(next((line for line in lines if line.startswith("flags")), "").encode()).hexdigest()[:8]
