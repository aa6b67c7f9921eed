"""A device's compiler: programs from source text, and the files that say what it has built before."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blobnet.device import opencl, splice
from blobnet.device.builtins import WITHOUT_HEADER, declared
from blobnet.device.bundle import bundled
from blobnet.device.discovery import AMPERE, DeviceInfo
from blobnet.device.opencl import cl
from blobnet.errors import BuildError, FileError, Lines
from blobnet.hardware.device_model import MATRIX_UNITS, DeviceModel
from blobnet.support.user_cache import cache_folder, is_usable, read_entry, temporary_folder, write_entry

BUILD_OPTIONS = ("-cl-std=CL1.2", "-cl-mad-enable")
#: Minimum SIMD width that Intel's compiler for GPUs is asked for; it chooses narrower ones by what it spills.
_MIN_ASKED_LANES = 16
#: Tells pyopencl not to keep programs: this module does. (pyopencl's annotation knows only folders.)
_NO_CACHE: Any = False


@dataclass(frozen=True)
class BuiltProgram:
    """The program that a source was built to.

    Attributes:
        program: pyopencl's.
        suffix: what the names of its kernels end in there, if the program is a bundle of several sources.
    """

    program: cl.Program
    suffix: str = ""


def preamble(model: DeviceModel) -> str:
    """Return what stands before the text of every program for a device.

    Intel's compiler for CPUs joins work-items to vectors, which takes it half as long again, and crashed it
    (2026.22.10). Here a work-item of a CPU loops over vectors itself, and is as fast alone.

    Where Intel's compiler for GPUs has threads of 16 lanes at least, it gives a kernel 32, with half the registers a
    lane, and stays with them whatever it spills. The model counts with the fewest lanes: they are asked for.
    """
    if model.compiler != "intel":
        return ""
    if model.is_host:
        return _of_kernels("intel_vec_len_hint(1)")
    return _of_kernels(f"intel_reqd_sub_group_size({model.lanes})") if model.lanes >= _MIN_ASKED_LANES else ""


def _of_kernels(attribute: str) -> str:
    """Gives an attribute to all kernels that follow."""
    return f"#define __kernel __attribute__(({attribute})) __kernel\n"


class Compiler:
    """Builds programs for a device, and keeps files that say what its driver has built, or the binaries.

    A source is known by its digest. Several sources may have been built as one program, a bundle.

    Args:
        context: OpenCL's.
        info: the device.

    Attributes:
        info: the device.
        traits: of its driver.
        options: of every build.
        preamble: the text before every source.
        crashed: what the compiler said last in a child process that it crashed, by the program's digest.
    """

    def __init__(self, context: cl.Context, info: DeviceInfo) -> None:
        self._context, self.info, self.traits = context, info, info.traits
        features = ["-DCOPIES_IN_BACKGROUND"] if (info.model.capability or (0, 0)) >= AMPERE else []
        features += ["-DIS_HOST"] if info.is_host else []
        features += ["-DTAKES_PREFETCH"] if info.is_host and self.traits.takes_prefetch else []
        features += [f"-D{MATRIX_UNITS[info.model.matrix_unit].macro}"] if info.model.matrix_unit else []
        self.options = [*BUILD_OPTIONS, *features]
        self.preamble = preamble(info.model)
        self.crashed: dict[str, str] = {}
        #: The bundles that sources were built in, as far as it is known, by digest.
        self._bundles: dict[str, str] = {}

    @cached_property
    def folder(self) -> Path:
        """The folder of notes on what this device and driver have built; in the cache, if there can be one."""
        identity = "|".join(self.info.identity.values())
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        with contextlib.suppress(FileError):
            folder = cache_folder() / "programs" / name
            if is_usable(folder):
                return folder
        return temporary_folder(f"programs-{name}")  # Of all Devices: they share what is built, and who builds.

    def digest(self, source: str) -> str:
        """Return what tells a program from others."""
        options = [*self.options, *([WITHOUT_HEADER] if self.traits.reads_all else [])]
        return hashlib.sha256("\n".join([*options, self.preamble + source]).encode()).hexdigest()

    def build(self, source: str, digest: str, what: str) -> BuiltProgram:
        """Return a program, from the files or from the driver.

        Raises:
            BuildError: the driver refuses the source; names ``what``, the log and a file with the source.
        """
        if digest in self.crashed:
            rule = f"the compiler of {self.info.name} must build the kernel, and crashed in a process of its own"
            raise self._error(what, rule, source, self.crashed[digest])
        try:
            return self.compile(source, digest)
        except (cl.Error, RuntimeError) as error:
            rule = f"{self.info.name} must build the kernel"
            raise self._error(what, rule, source, str(error)) from error

    def compile(self, source: str, digest: str) -> BuiltProgram:
        """Return a program, from the files or from the driver.

        Raises:
            pyopencl.Error, RuntimeError: the driver refuses the source.
        """
        # A cache that cannot be read or written costs time, not results.
        name = self.program_of(digest)
        if (known := self.load(name)) is not None:
            return part_of(known, name, digest)
        record = self.record(digest)
        program = self.from_source(self.preamble + source)
        with contextlib.suppress(cl.Error, OSError):
            if self.traits.keeps_programs:
                write_entry(record, b"")
            else:
                write_entry(record, program.get_info(cl.program_info.BINARIES)[0])
                self._part(digest).unlink(missing_ok=True)  # Of a bundle that cannot be had any more.
        self._bundles.pop(digest, None)
        return BuiltProgram(program)

    def compile_together(self, sources: Sequence[str]) -> bool:
        """Build a bundle of several sources, and note for each where it is; return whether the driver takes it."""
        parts = {self.digest(source): source for source in sources}
        if len(parts) == 1:
            return False
        text = bundled({_suffix(digest): source for digest, source in parts.items()})
        bundle = self.digest(text)
        try:
            self.compile(text, bundle)
        except (cl.Error, RuntimeError):
            return False
        with contextlib.suppress(OSError):
            for digest in parts:
                write_entry(self._part(digest), bundle.encode())
        return True

    def from_source(self, source: str) -> Any:
        """Return a program that the driver compiles, or finds in a cache of its own."""
        short = declared(source) if self.traits.reads_all else None
        if short is not None:
            with contextlib.suppress(cl.Error, RuntimeError):  # What is wrong is said of the source itself.
                options = [*self.options, WITHOUT_HEADER]
                return cl.Program(self._context, short).build(options=options, cache_dir=_NO_CACHE)
        program = cl.Program(self._context, source).build(options=self.options, cache_dir=_NO_CACHE)
        if self.info.model.capability is None or splice.MARK not in source:
            return program
        text = splice.spliced(program.get_info(cl.program_info.BINARIES)[0])
        return cl.Program(self._context, [self.info.handle], [text]).build(cache_dir=_NO_CACHE)

    def load(self, digest: str) -> cl.Program | None:
        """Return a program that was built before; None if its binary is not kept, or not taken."""
        binary = None if self.traits.keeps_programs else read_entry(self.record(digest))
        if binary is not None:
            with contextlib.suppress(cl.Error, RuntimeError):
                program: cl.Program = cl.Program(self._context, [self.info.handle], [binary])
                program.build(cache_dir=_NO_CACHE)
                opencl.touch_kernels(program)
                return program
        return None

    def is_unknown(self, digest: str) -> bool:
        """Return whether a child should build the program: it crashed none, and the driver has not kept it."""
        known = self.traits.keeps_programs and read_entry(self.record(digest)) is not None
        return digest not in self.crashed and not known

    def record(self, digest: str) -> Path:
        """Return the file that says that a program was built: its binary, or nothing if the driver keeps it."""
        return self.folder / f"{digest}.{'known' if self.traits.keeps_programs else 'program'}"

    def program_of(self, digest: str) -> str:
        """Return the digest of the program that a source was built in, if it was: that of a bundle, or its own."""
        if digest not in self._bundles and self.traits.most_bundled > 1:
            bundle = read_entry(self._part(digest))
            if bundle is None:
                return digest
            self._bundles[digest] = bundle.decode()
        return self._bundles.get(digest, digest)

    def note_bundles(self, bundles: Mapping[str, str]) -> None:
        """Take from elsewhere which bundles sources were built in."""
        self._bundles.update(bundles)

    def forget_bundle(self, digest: str) -> None:
        """Have a source built anew, perhaps with others."""
        self._bundles.pop(digest, None)

    def _part(self, digest: str) -> Path:
        """The file that says which bundle a source was built in."""
        return self.folder / f"{digest}.part"

    def _error(self, what: str, rule: str, source: str, log: str) -> BuildError:
        """An error that names the log, and a file with the source."""
        name = "lost, since no file can be written"
        with (
            contextlib.suppress(OSError),
            tempfile.NamedTemporaryFile("w", suffix=".cl", prefix="blobnet-", delete=False) as file,
        ):
            file.write(self.preamble + source)
            name = file.name
        return BuildError(
            what,
            rule,
            options=" ".join(self.options),
            source=name,
            log=Lines(f"\n{log.strip()}\n"),
            hint="report this with the source file and the output of 'blobnet devices'.",
        )


def part_of(program: cl.Program, name: str, digest: str) -> BuiltProgram:
    """Return what a source was built to, as a part of the program ``name``."""
    return BuiltProgram(program, "" if name == digest else _suffix(digest))


def _suffix(digest: str) -> str:
    """Return the suffix of the names of a source that is part of a bundle."""
    return f"_{digest[:16]}"


@contextlib.contextmanager
def without_remarks() -> Iterator[None]:
    """Keep quiet what drivers print about programs that build well; only failures matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        yield
