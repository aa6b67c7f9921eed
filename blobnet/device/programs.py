"""A device's programs: built once, many at a time, and found again by the next process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

from blobnet.device import child_builds
from blobnet.device.child_builds import Trial
from blobnet.device.compiler import BuiltProgram, Compiler, part_of, without_remarks
from blobnet.device.discovery import DeviceInfo, check_process
from blobnet.device.opencl import cl
from blobnet.device.queue import driver_error
from blobnet.errors import BuildError
from blobnet.support.cores import usable_cores
from blobnet.support.lru import LRUCache
from blobnet.support.user_cache import read_entry, write_entry

#: Programs that a device keeps at least for who asks again; each may take megabytes of the process's memory.
MAX_PROGRAMS = 256
#: Threads at least that load programs: each waits for Python between two of the driver's calls.
_MIN_LOADERS = 4


class Programs:
    """Programs of a device.

    Args:
        context: OpenCL's.
        info: the device.

    Attributes:
        compiler: what builds them.
        built: those that were asked for last, by source.
        builds_in_children: whether programs are first built in child processes: not where a child asks.
        keeps_children: whether children that have built wait for more: not on a GPU, of whose memory each holds some.
    """

    builds_in_children = True

    def __init__(self, context: cl.Context, info: DeviceInfo) -> None:
        self.compiler = Compiler(context, info)
        self.built: LRUCache[str, BuiltProgram] = LRUCache(MAX_PROGRAMS)
        self.keeps_children = info.is_host
        #: Programs that are being loaded, by digest: see :meth:`preload`.
        self._loading: dict[str, Future[cl.Program | None]] = {}

    def kernel(self, source: str, entry: str, what: str) -> cl.Kernel:
        """Return a kernel object of its own (never shared between launch sites) of a program: see :meth:`build`.

        Raises:
            BuildError: the driver refuses the source, or finds no kernel ``entry`` in what it built.
            DeviceError: it cannot make a kernel object.
        """
        built = self.build(source, what)
        name = self.compiler.info.name
        try:
            return cl.Kernel(built.program, entry + built.suffix)
        except cl.Error as error:
            if error.code != cl.status_code.INVALID_KERNEL_NAME:
                raise driver_error(error, what, f"{name} must make the kernel") from error
            rule = f"{name} must find the kernel {entry!r} in the program"
            raise BuildError(what, rule, cause=error, hint="is that its name in the source?") from error

    def build(self, source: str, what: str) -> BuiltProgram:
        """Return a program, built once as long as it is kept: see :meth:`set_cache_limit`.

        Raises:
            BuildError: the driver refuses the source; names ``what``, the log and a file with the source.
        """
        check_process()
        built = self.built.get(source)
        if built is None:
            with without_remarks():
                built = self.built[source] = self.compiler.build(source, self.compiler.digest(source), what)
        return built

    def set_cache_limit(self, programs: int) -> None:
        """Keep so many programs from now on, if that is more than MAX_PROGRAMS: all that one plan needs.

        Those that were asked for longest ago are forgotten. Kernel objects live on: a driver keeps what they need.
        """
        self.built.limit(max(MAX_PROGRAMS, programs))

    def cache_file(self, name: str) -> Path:
        """Return the file of the cache for what is of use with this device and driver alone."""
        return self.compiler.folder / name

    @contextlib.contextmanager
    def preload(self, purpose: str) -> Iterator[set[str]]:
        """Load, beside what the caller does, the programs that a purpose needed the last time.

        Yields a set for the sources of those that it needs now. What it needs no more was loaded in vain, no worse.
        """
        record, is_kept = self.cache_file(f"{purpose}.programs"), self.compiler.traits.keeps_programs
        known = None if is_kept else read_entry(record)
        built, needed = {self.compiler.digest(source) for source in self.built}, set[str]()
        # A line has a program, and which of its sources were needed if it is a bundle.
        programs = {name: sources for name, *sources in map(str.split, (known or b"").decode().splitlines())}
        self.compiler.note_bundles({digest: name for name, sources in programs.items() for digest in sources})
        with _loaders() as pool:
            try:
                missing = (name for name, sources in programs.items() if not built.issuperset(sources or [name]))
                self._loading = {name: pool.submit(self.compiler.load, name) for name in missing}
                yield needed
            finally:
                pool.shutdown(cancel_futures=True)
                self._loading = {}
        if not is_kept:
            self._note(record, known, map(self.compiler.digest, needed))

    def _note(self, record: Path, known: bytes | None, digests: Iterable[str]) -> None:
        """Keeps what :meth:`preload` finds the next time, if it is not what was known."""
        programs: dict[str, list[str]] = {}
        for digest in sorted(digests):
            programs.setdefault(self.compiler.program_of(digest), []).append(digest)
        lines = (" ".join(dict.fromkeys([name, *sources])) for name, sources in sorted(programs.items()))
        now = "\n".join(lines).encode()
        if now != known:
            with contextlib.suppress(OSError):
                write_entry(record, now)

    def build_ahead(
        self,
        sources: Iterable[str],
        advance: Callable[[int, int], object] | None = None,
        trials: Callable[[str], Sequence[Trial]] = lambda _: (),
    ) -> None:
        """Build programs that will be asked for, side by side; what the driver refuses it will refuse again then.

        Those that this driver has not built before are first built in child processes: a compiler that crashes leaves
        this one alive, and :meth:`build` raises BuildError for what crashed it.

        Args:
            sources: of the programs; those that are there already cost nothing.
            advance: told how many programs are built, and of how many, as children build them.
            trials: for a source, launches that children try where the driver leaves work to the first one.
        """
        compiler = self.compiler
        missing = {compiler.digest(source): source for source in sources if source not in self.built}
        self._load_known(missing)
        if self.builds_in_children and missing:
            child_builds.build(compiler, missing, advance, trials, keep_children=self.keeps_children)
            self._load_known(missing)
        # Drivers of CPUs have no cores to spare, or compile at the first launch.
        if not compiler.info.is_host:
            with _loaders() as pool:
                futures = {
                    digest: pool.submit(compiler.build, source, digest, "a kernel")
                    for digest, source in missing.items()
                }
            for digest, future in futures.items():
                with contextlib.suppress(BuildError):
                    self.built[missing[digest]] = future.result()

    def _load_known(self, missing: dict[str, str]) -> None:
        """Loads what was built before of some sources, by digest, and takes it out of them."""
        compiler = self.compiler
        names = {digest: compiler.program_of(digest) for digest in missing}
        with _loaders() as pool:
            loads = {name: self._loading.get(name) or pool.submit(compiler.load, name) for name in set(names.values())}
        for digest, name in names.items():
            with contextlib.suppress(CancelledError):  # Another thread preloaded it, and has ended.
                if program := loads[name].result():
                    self.built[missing.pop(digest)] = part_of(program, name, digest)
                else:
                    compiler.forget_bundle(digest)  # It is built anew, perhaps with others.


@contextlib.contextmanager
def _loaders() -> Iterator[ThreadPoolExecutor]:
    """Threads for the driver's work; all is done at the end."""
    with without_remarks(), ThreadPoolExecutor(max(_MIN_LOADERS, usable_cores())) as pool:
        yield pool
