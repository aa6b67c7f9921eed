"""Finding OpenCL devices: the drivers of this process, the device that a name means, and what its driver says of it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from platform import machine
from typing import Any

from blobnet.device import opencl
from blobnet.device.opencl import cl
from blobnet.errors import DeviceError, FileError, OptionError, near_matches, nearest
from blobnet.hardware.device_model import HOPPER, Answers, DeviceModel, model_of
from blobnet.launch.kernel_call import PRECISIONS, Tuning
from blobnet.launch.task import TunedChoices
from blobnet.memory.blob import CELL_UNITS, CELLS_OF, Padding, StorageType
from blobnet.support.regular_file import check_regular
from blobnet.support.user_cache import cache_folder, has_room, temporary_folder

#: The variable that names the folder in which the OpenCL loader finds drivers, and that folder where it is not set.
_VENDORS, _SYSTEM_VENDORS = "OCL_ICD_VENDORS", Path("/etc/OpenCL/vendors")
#: What Khronos' loader, which pyopencl has on Windows, takes besides the drivers of the registry: their libraries.
_LIBRARIES = "OCL_ICD_FILENAMES"
#: The variable that names the folder in which PoCL keeps what it has built.
_POCL_CACHE = "POCL_CACHE_DIR"
#: The compute capability from which NVIDIA's GPUs have tensor cores for tf32, and copies to local memory in the
#: background (kernels/local_copy.h).
AMPERE = (8, 0)


def _intel_runtime() -> Path | None:
    """The library of PyPI's intel-opencl-rt, if it is installed in this environment."""
    places = ("lib/libintelocl.so", "Library/bin/intelocl64.dll")  # On Linux, and on Windows.
    return next((path for place in places if (path := Path(sys.prefix, place)).exists()), None)


@dataclass(frozen=True)
class DriverTraits:
    """Findings about drivers that no driver tells of itself.

    Attributes:
        name: a part of its platform's name.
        keeps_programs: it keeps what it has built by itself. (PoCL's binaries would be compiled once more to be had.)
        compiles_at_launch: it compiles a kernel for a work-group when that is first launched.
        reads_all: it parses a header of all built-in functions for every program.
        host_works: who waits for the queue works along, who waits for an event does not: with one thread less than
            there are cores, that is half the speed of two.
        takes_prefetch: its compiler knows Clang's function for what is asked for ahead (kernels/vector.h).
        takes_assembly: its compiler for x86 puts assembly text of a kernel into what it makes.
        most_bundled: sources that it should be given as one program (blobnet/device/bundle.py). On two cores of a CPU
            Intel's compiler takes 40 ms for a program without kernels, and its runtime 2 ms to load one.
    """

    name: str = ""
    keeps_programs: bool = False
    compiles_at_launch: bool = False
    reads_all: bool = False
    host_works: bool = False
    takes_prefetch: bool = False
    takes_assembly: bool = False
    most_bundled: int = 1

    @classmethod
    def of(cls, info: DeviceInfo) -> DriverTraits:
        """Return the traits of a device's driver."""
        found = next((driver for driver in _DRIVERS if driver.name in info.platform), cls())
        return found if info.is_host else replace(found, most_bundled=1)


_DRIVERS = (
    DriverTraits(
        "Portable Computing",
        keeps_programs=True,
        compiles_at_launch=True,
        reads_all=True,
        takes_prefetch=True,
        takes_assembly=True,
    ),
    DriverTraits("NVIDIA", keeps_programs=True),
    DriverTraits("Intel", host_works=True, takes_prefetch=True, takes_assembly=True, most_bundled=8),
)


@dataclass(frozen=True)
class DeviceInfo:
    """The facts of a device that ``blobnet devices`` shows."""

    platform_index: int
    device_index: int
    platform: str
    name: str
    kind: str
    compute_units: int
    # NOTE: PoCL's are what is free at the time.
    memory: int = field(compare=False)
    largest_allocation: int = field(compare=False)
    local_memory: int
    driver: str
    handle: cl.Device

    @property
    def identity(self) -> dict[str, str]:
        """The identity of this device and its driver, also among processors of the same name."""
        features = hashlib.sha256(_processor_features().encode()).hexdigest()[:16] if self.is_host else ""
        return {"device": self.name, "platform": self.platform, "driver": self.driver, "processor": features}

    @property
    def is_host(self) -> bool:
        """True if it is the host's own processor."""
        return self.kind == "cpu"

    @cached_property
    def uuid(self) -> bytes | None:
        """The name that CUDA uses too; None for devices of others than NVIDIA."""
        uuid = ctypes.create_string_buffer(opencl.UUID_BYTES)
        if self.model.capability is None or opencl.GET_INFO is None:
            return None
        return None if opencl.GET_INFO(self.handle.int_ptr, opencl.UUID, opencl.UUID_BYTES, uuid, None) else uuid.raw

    @cached_property
    def traits(self) -> DriverTraits:
        """The traits of its driver."""
        return DriverTraits.of(self)

    @cached_property
    def reads_host(self) -> bool:
        """True if kernels may read any memory of this process: see :class:`blobnet.device.queue.HostBuffer`."""
        capabilities = _asked(self.handle, "svm_capabilities") or 0
        return opencl.SET_POINTER is not None and bool(capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM)

    @cached_property
    def answers(self) -> Answers:
        """The answers of its driver."""
        return _answers(self)

    @cached_property
    def model(self) -> DeviceModel:
        """The known facts of the device."""
        return model_of(self.answers)

    @property
    def address(self) -> str:
        """The device as ``platform:device`` numbers, which --device takes."""
        return f"{self.platform_index}:{self.device_index}"

    def __str__(self) -> str:
        return f"{self.address} {self.name} ({self.kind}; {self.platform}, driver {self.driver})"


#: Whether this process was forked from one that had found its drivers.
_IS_FORKED = False


def _after_fork() -> None:
    global _IS_FORKED
    _IS_FORKED = bool(_platforms.cache_info().currsize)
    if _IS_FORKED:
        opencl.keep_all()


def is_forked() -> bool:
    """Return whether this process was forked from one that had found its drivers."""
    return _IS_FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_process() -> None:
    """Raises DeviceError in a process that was forked from one that uses OpenCL.

    NOTE: a fork takes along locks of drivers and none of the threads that would open them: what is called next may wait
    for ever.
    """
    if _IS_FORKED:
        rule = "a process that was forked from one that uses OpenCL cannot use it: its drivers' threads are not here"
        hint = "start processes anew: multiprocessing.get_context('spawn'), or fork before blobnet is used."
        raise DeviceError("OpenCL", rule, hint=hint)


@cache
def _platforms() -> Sequence[Any]:
    """The platforms whose drivers the OpenCL loader finds, which looks for them once a process.

    NOTE: the .icd file in Intel's wheel names a path that exists nowhere, and the loader reads only one folder; so it
    is shown another one meanwhile, with the system's files and one that names the library. A user's own OCL_ICD_VENDORS
    is left alone. On Windows the loader takes the library itself.
    """
    _give_pocl_a_cache()
    library = _intel_runtime()
    is_dll = library is not None and library.suffix == ".dll"
    variable = _LIBRARIES if is_dll else _VENDORS
    given = os.environ.get(variable)
    if library is None or given:
        return cl.get_platforms()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # Where nothing can be written there are the system's drivers.
            os.environ[variable] = str(library) if is_dll else _folder_of_vendors(library, stack)
        try:
            return cl.get_platforms()
        finally:
            os.environ.pop(variable, None)
            os.environ.update({} if given is None else {variable: given})


def _folder_of_vendors(library: Path, stack: contextlib.ExitStack) -> str:
    """A folder that names the system's drivers and a library, until the stack unwinds."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="blobnet-vendors-"))
    for path in sorted(_SYSTEM_VENDORS.glob("*.icd")):
        with contextlib.suppress(OSError):  # A driver that was removed may have left a dangling link.
            check_regular(path)
            shutil.copyfile(path, Path(folder, path.name))
    Path(folder, "intel-cpu-pypi.icd").write_text(f"{library}\n")
    return folder


def _give_pocl_a_cache() -> None:
    """Shows PoCL, which cannot build anything without a folder to keep it, another one where its own is of no use."""
    given = os.environ.get(_POCL_CACHE)
    try:
        folder = Path(given) if given else cache_folder().with_name("pocl") / "kcache"
    except FileError:  # PoCL takes /tmp then.
        return
    if not has_room(folder):
        os.environ[_POCL_CACHE] = str(temporary_folder("pocl"))


def devices() -> list[DeviceInfo]:
    """All OpenCL devices that the loader finds; empty if there are none.

    Raises:
        DeviceError: this process was forked from one that uses OpenCL.
    """
    check_process()
    try:
        platforms = _platforms()
    except (cl.Error, RuntimeError):
        return []
    found = []
    for platform_index, platform in enumerate(platforms):
        try:
            handles = platform.get_devices()
        except cl.Error:
            continue
        for device_index, handle in enumerate(handles):
            kind = "gpu" if handle.type & cl.device_type.GPU else "cpu" if handle.type & cl.device_type.CPU else "other"
            found.append(
                DeviceInfo(
                    platform_index=platform_index,
                    device_index=device_index,
                    platform=f"{platform.name.strip()} {_platform_version(platform)}".strip(),
                    name=handle.name.strip(),
                    kind=kind,
                    compute_units=handle.max_compute_units,
                    memory=handle.global_mem_size,
                    largest_allocation=handle.max_mem_alloc_size,
                    local_memory=handle.local_mem_size,
                    driver=handle.driver_version.strip(),
                    handle=handle,
                )
            )
    return found


def _platform_version(platform: cl.Platform) -> str:
    words = platform.version.split()
    return " ".join(words[2:4]).rstrip(",") if len(words) > 2 else ""


def identified(identity: str) -> DeviceInfo:
    """The device of a ``DeviceInfo.identity``, as JSON: that of a parent process, in its child."""
    wanted = json.loads(identity)
    return next(info for info in devices() if info.identity == wanted)


def choose(name: str | None = None) -> DeviceInfo:
    """The device called ``name``: ``cpu``, ``gpu``, part of a platform's or device's name, or ``platform:device``.

    Platform and device after one another are given by number or by part of a name each.

    Without a name: $BLOBNET_DEVICE, else the GPU that looks fastest, else a CPU.

    Raises:
        DeviceError: there is no device at all, or none of that name.
    """
    found = devices()
    if not found:
        raise no_platform_error()
    subject = "device" if name else "$BLOBNET_DEVICE"
    name = name or os.environ.get("BLOBNET_DEVICE") or None
    if name is None:
        return max(found, key=_rank)
    matches = [info for info in found if _matches(info, name)]
    if not matches:
        near = nearest(name, [info.name for info in found] + [info.platform for info in found])
        listed = f"devices here: {'; '.join(str(info) for info in found)}."
        hint = f"{near} {listed}" if near else listed
        raise DeviceError(subject, "the device must be one that OpenCL lists", device=name, hint=hint)
    return max(matches, key=_rank)


def _matches(info: DeviceInfo, name: str) -> bool:
    platform, colon, device = name.partition(":")
    if not colon:
        return name.lower() == info.kind or name.lower() in info.name.lower() or name.lower() in info.platform.lower()
    return _part(platform, info.platform_index, info.platform) and _part(device, info.device_index, info.name)


def _part(wanted: str, index: int, name: str) -> bool:
    return int(wanted) == index if wanted.isdigit() else wanted.lower() in name.lower()


def _rank(info: DeviceInfo) -> tuple[int, int, int]:
    kinds = {"gpu": 2, "cpu": 1}
    # Of several CPU drivers: those whose compiled code was measured as faster (docs/measurements.md).
    drivers = [word in info.platform for word in ("3.0-rc", "Portable", "Intel")]
    speed = drivers.index(True) if any(drivers) else -1
    units = info.compute_units * (1 if info.kind != "gpu" else info.handle.max_clock_frequency)
    return kinds.get(info.kind, 0), speed if info.is_host else 0, units


def _answers(info: DeviceInfo) -> Answers:
    """Return the answers of a device's driver, and of the system about its own processors."""
    handle = info.handle
    return Answers(
        name=info.name,
        vendor=handle.vendor,
        platform=info.platform,
        board=_asked(handle, "board_name_amd") or "",
        machine=machine(),
        is_host=info.is_host,
        compute_units=info.compute_units,
        group_size=int(handle.max_work_group_size),
        local_memory=info.local_memory,
        local_is_cache=handle.local_mem_type == cl.device_local_mem_type.GLOBAL,
        cache_line=handle.global_mem_cacheline_size,
        caches=_processor_caches() if info.is_host else (),
        clock=handle.max_clock_frequency,
        vector_width=_vector_width(handle),
        lanes=_asked(handle, "warp_size_nv") or _asked(handle, "wavefront_width_amd") or 0,
        capability=_compute_capability(info),
        half="cl_khr_fp16" in handle.extensions.split(),
        matrix_unit=matrix_unit() if info.is_host and info.traits.takes_assembly else "",
    )


def _vector_width(handle: cl.Device) -> int:
    """Floats of a vector of what a driver's compiler compiles for.

    NOTE: PoCL says what the processor has, but compiles for the one that its LLVM takes it for: LLVM 14 takes AMD's Zen
    4 and 5 for Zen 3. Programs with wider vectors than that are in PoCL 3.0's cache without their kernels.
    """
    width = int(handle.native_vector_width_float)
    return min(width, 8) if re.search(r"PoCL.*-znver[123]$", handle.version) else width


def _asked(handle: cl.Device, name: str) -> Any:
    """Return an answer that only drivers of one vendor give; None from others."""
    try:
        return getattr(handle, name)
    except (cl.Error, AttributeError):
        return None


def _processor_caches() -> tuple[int, ...]:
    """Bytes of the caches that data of the host's first processor are in, the first one first; empty if unknown."""
    found = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
            if kind != "Instruction":
                found[int(level)] = int(size.removesuffix("K")) << 10
    return tuple(found[level] for level in sorted(found))


def check_precision(info: DeviceInfo, precision: str) -> None:
    """Raises unless the device can compute with a ``precision``.

    Raises:
        OptionError: there is no such precision.
        DeviceError: the device has no tensor cores.
    """
    if precision not in PRECISIONS:
        hint = near_matches(precision, list(PRECISIONS))
        raise OptionError("precision", f"it must be one of {', '.join(PRECISIONS)}", precision=precision, hint=hint)
    if precision == "tf32" and (info.model.capability or (0, 0)) < AMPERE:
        rule = "tf32 needs an NVIDIA GPU with tensor cores (compute capability 8.0)"
        raise DeviceError("precision", rule, device=info.name, hint="leave it at fp32, or choose another device.")


def products_on(model: DeviceModel, precision: str) -> str:
    """Return what products round their factors to at one of PRECISIONS: fp32 on devices without tensor cores."""
    products = PRECISIONS[precision][0]
    is_there = model.is_host and products in model.tensor_types
    return products if is_there or (model.capability or (0, 0)) >= AMPERE else "fp32"


def tuning_of(
    model: DeviceModel, precision: str, storage: StorageType, padding: Padding, choices: TunedChoices
) -> Tuning:
    """Return how a device of this model computes in one of PRECISIONS: plans follow it."""
    products = products_on(model, precision)
    # Tensor cores take cells of what they multiply, and the vectors of processors those of float32.
    vectors = not model.is_simt and model.lanes >= CELL_UNITS
    has_kernels = vectors if products == "fp32" else model.capability == HOPPER
    cells = CELLS_OF[products] if has_kernels and PRECISIONS[products][1] == storage else None
    return Tuning(model, products, choices, padding, storage, cells)


def _compute_capability(info: DeviceInfo) -> tuple[int, int] | None:
    """NVIDIA's version of what a device can do; None for devices of others."""
    major = _asked(info.handle, "compute_capability_major_nv")
    return None if major is None else (major, _asked(info.handle, "compute_capability_minor_nv") or 0)


def no_platform_error() -> DeviceError:
    """Return the error where the loader finds no platform: what it was told, what there is, what to install."""
    folder = Path(os.environ.get(_VENDORS) or _SYSTEM_VENDORS)
    seen = [str(path) for path in sorted(folder.glob("*.icd"))] if folder.is_dir() else []
    return DeviceError(
        "OpenCL",
        "at least one OpenCL platform must be installed",
        OCL_ICD_VENDORS=os.environ.get(_VENDORS, "unset"),
        icd_files=seen or "none",
        hint="for a CPU: pip install intel-opencl-rt intel-cmplr-lib-rt; for a GPU: the driver of its vendor, which "
        f"puts an .icd file into {_SYSTEM_VENDORS}. pyopencl brings its own loader: if a driver is installed "
        "elsewhere, set OCL_ICD_VENDORS to the folder of its .icd file.",
    )


#: The numbers of Linux' call ``arch_prctl`` on x86-64, of asking it for a state of registers, and of that of tiles.
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18


@cache
def matrix_unit() -> str:
    """Return the host's matrix unit, "" if it has none: on Linux AMX of x86, or AMD's AVX-512 with bfloat16.

    Registers of AMX must be asked for: a process may not touch them before, nor what is forked from it. The system
    refuses where a thread's signals have a stack that is too small for them. On Intel's processors AVX-512 does no more
    multiply-adds in bfloat16 than in fp32.
    """
    if sys.platform != "linux" or machine() != "x86_64" or sys.maxsize < 1 << 32:
        return ""
    features = _processor_features().split()
    if "amx_bf16" in features:
        call = ctypes.CDLL(None).syscall
        call.restype = ctypes.c_long
        if call(*map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA))) == 0:
            return "amx_bf16"
    is_amds = "AuthenticAMD" in _processor_line("vendor_id")
    return "avx512_bf16" if is_amds and "avx512_bf16" in features else ""


@cache
def _processor_features() -> str:
    """Return what tells processors of one name apart (virtual machines): a CPU's binaries need its own features."""
    return _processor_line("flags", "Features")


def _processor_line(*starts: str) -> str:
    """The first of Linux' lines about its processors that starts so; "" without any."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line for line in lines if line.startswith(starts))
    return ""
