"""The known facts of a device (docs/devices.md); choices that follow from them are made elsewhere.

Facts come from what OpenCL answers, from the table of architectures (blobnet/hardware/architectures.py) and from
measurement; in this order the later wins. Where none of them knows, a careful value is assumed, and said to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from blobnet.hardware.architectures import BANDWIDTHS, CAPABILITIES, NAMES, Architecture, architectures

#: The origins of facts, the least trusted first.
ASSUMED, DRIVER, TABLE, MEASURED = "assumed", "driver", "table", "measured"
#: The compute capability of NVIDIA's GPUs whose tensor cores take cells (kernels/warp_group.h).
HOPPER = (9, 0)
#: The assumption about devices of which nothing is known.
_ASSUMED_GPU = {"lanes": 32, "registers": 128, "register_file": 1 << 16, "banks": 32, "cache_line": 64}
_ASSUMED_CPU = {"lanes": 4, "registers": 16, "banks": 1, "cache_line": 64}
#: The authors of compilers, by a word in a platform's name: for CPUs they count more than the maker.
_COMPILERS = (
    ("portable computing", "pocl"),
    ("rusticl", "mesa"),
    ("clover", "mesa"),
    ("oclgrind", "oclgrind"),
    ("intel", "intel"),
    ("nvidia", "nvidia"),
    ("amd", "amd"),
    ("apple", "apple"),
    ("arm", "arm"),
    ("qualcomm", "qualcomm"),
)
#: The compilers whose products of tiles use other addresses, see DeviceModel.prefers_32bit_addresses.
_DEAR_ADDRESSES = "amd", "intel"
#: The makers of devices, by a word in a device's name, else in the vendor that its driver names.
_VENDORS = (
    (r"nvidia|geforce|quadro|tesla", "nvidia"),
    (r"\bamd\b|authenticamd|advanced micro devices|radeon|\bgfx\d|epyc|ryzen", "amd"),
    (r"\bapple\b", "apple"),
    (r"qualcomm|adreno|snapdragon", "qualcomm"),
    (r"\barm\b|mali|immortalis|cortex|neoverse", "arm"),
    (r"intel", "intel"),
)


@dataclass(frozen=True)
class MatrixUnit:
    """What a processor multiplies bfloat16 with (kernels/fragment.h).

    Attributes:
        macro: what a kernel knows it by.
        speed: its multiply-adds in the time of one of fp32.
        moves: its cost of packing and storing a number, relative to AMX's.
        alone: how much longer a gradient's product takes with one fragment of input units, for which what is loaded of
            the delta serves once.

    Numbers are fitted to measured times (docs/performance.md).
    """

    macro: str
    speed: float
    moves: float
    alone: float


#: By their names among Linux' features of a processor.
MATRIX_UNITS = {
    "amx_bf16": MatrixUnit("TAKES_TILES", speed=8, moves=1, alone=3),
    "avx512_bf16": MatrixUnit("TAKES_PAIRS", speed=1.7, moves=0.5, alone=1),
}


@dataclass(frozen=True)
class Answers:
    """The answers of OpenCL, and for CPUs of the system, about a device; None or empty where there are none.

    Attributes:
        name, vendor, platform: names.
        board: AMD's other name, of the product.
        machine: the host's instruction set, as Python's ``platform.machine`` names it.
        is_host: whether the device is the host's own processor (OpenCL's type CPU).
        compute_units, group_size, clock: of work-items at most in a group; of MHz, 0 if unknown.
        local_memory, local_is_cache: bytes for a group; whether they are in global memory, that is in caches.
        cache_line, caches: bytes; of caches from the first to the last.
        vector_width: elements of a native vector of float.
        lanes: work-items of a warp or wavefront.
        capability: NVIDIA's compute capability.
        half: whether it has arithmetic in 16 bits (``cl_khr_fp16``).
        matrix_unit: of a processor, that this process may use: a name in MATRIX_UNITS.
    """

    name: str
    vendor: str = ""
    platform: str = ""
    board: str = ""
    machine: str = ""
    is_host: bool = False
    compute_units: int = 1
    group_size: int = 256
    local_memory: int = 1 << 15
    local_is_cache: bool = False
    cache_line: int = 0
    caches: tuple[int, ...] = ()
    clock: int = 0
    vector_width: int = 0
    lanes: int = 0
    capability: tuple[int, int] | None = None
    half: bool = False
    matrix_unit: str = ""


@dataclass(frozen=True)
class DeviceModel:
    """Facts of a device.

    Attributes:
        name: as its driver says it.
        vendor: who makes it: ``nvidia``, ``amd``, ``intel``, ``apple``, ``arm``, ``qualcomm``; None if unknown.
        architecture: its name in the table of architectures; None if unknown.
        compiler: whose compiler translates its kernels: a vendor, ``pocl``, ``mesa`` or ``oclgrind``; None if unknown.
        is_host: whether it is the host's own processor: they share memory, caches and time.
        is_simt: whether neighbouring work-items run as lanes of one instruction. If not, work-items are
            threads, and what is vectorized are the loops within one.
        lanes: work-items side by side in one instruction where they are lanes, else numbers of fp32 in a vector.
        registers: of 32 bits that a work-item (a lane) may have.
        register_file: bytes of registers of a compute unit; None if unknown.
        compute_units: as OpenCL counts them.
        units_of_core: compute units that a work-group runs on together, and that share local memory.
        group_size: work-items of a work-group at most.
        local_memory: bytes that a work-group may have.
        core_memory: bytes of local memory that all groups on a core share; None if unknown.
        local_is_cache: whether local memory is ordinary memory: copying to it gains nothing but order.
        banks: of local memory, each 4 bytes wide; 1 where it is a cache.
        cache_line: bytes.
        caches: bytes from the first cache (of a core) on; those that are known.
        clock: in Hz at most; None if unknown.
        flops: fp32 operations a second at most, a multiply-add is two; None if unknown.
        bandwidth: bytes a second from and to its memory at most; None if unknown.
        half: whether arithmetic in 16 bits is as fast as in 32, or faster.
        tensor_types: what its tensor cores, or the matrix unit of a processor, multiply: ``tf32``, ``bf16``, ``fp16``,
            ``fp32``; empty without any.
        matrix_unit: of a processor, which multiplies them: a name in MATRIX_UNITS; None without any.
        capability: NVIDIA's compute capability; None for others.
        parts: the equal parts of the device of which this is one, see :meth:`part`.
        origins: where each fact comes from: ASSUMED, DRIVER, TABLE or MEASURED.
        tunables: by kernel, the values of tunables that are better on it than those for devices of its kind.
    """

    name: str
    vendor: str | None
    architecture: str | None
    compiler: str | None
    is_host: bool
    is_simt: bool
    lanes: int
    registers: int
    register_file: int | None
    compute_units: int
    units_of_core: int
    group_size: int
    local_memory: int
    core_memory: int | None
    local_is_cache: bool
    banks: int
    cache_line: int
    caches: tuple[int, ...]
    clock: float | None
    flops: float | None
    bandwidth: float | None
    half: bool
    tensor_types: tuple[str, ...]
    matrix_unit: str | None
    capability: tuple[int, int] | None
    parts: int = 1
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    tunables: Mapping[str, Mapping[str, int]] = field(default_factory=dict, repr=False, hash=False)

    @property
    def cores(self) -> int:
        """Work-groups that run side by side, where one fills a core."""
        return max(1, self.compute_units // self.units_of_core)

    def part(self, parts: int) -> DeviceModel:
        """The model of one of so many parts that work side by side: it has its share of the compute units alone."""
        if parts == self.parts:
            return self
        assert self.parts == 1, "parts are those of a whole device"
        return replace(self, compute_units=max(self.units_of_core, self.compute_units // parts), parts=parts)

    @property
    def prefers_32bit_addresses(self) -> bool:
        """True if its compiler spends up to a quarter of an inner loop on 64-bit addresses (docs/drivers.md)."""
        return self.compiler in _DEAR_ADDRESSES

    @property
    def relatives(self) -> tuple[str, ...]:
        """The names of this device, from the narrowest to the widest: itself, its architecture, its vendor.

        Tunings that are not there for a device may be for its relatives (docs/tuning.md). The same architecture and
        vendor under another compiler is no relative: what is fast differs more between compilers than between
        processors. Nor are processors of two vendors, though their vectors be alike.
        """
        if not self.compiler or not self.vendor:
            return (self.name,)
        kinds = [f"{self.vendor} {self.architecture}", self.vendor] if self.architecture else [self.vendor]
        return (self.name, *(f"{kind} by {self.compiler}" for kind in kinds))

    def measured(self, *, flops: float | None = None, bandwidth: float | None = None) -> DeviceModel:
        """The model with what was measured; None leaves a fact as it is."""
        given: dict[str, Any] = {"flops": flops, "bandwidth": bandwidth}
        found = {name: value for name, value in given.items() if value is not None}
        return replace(self, **found, origins={**self.origins, **dict.fromkeys(found, MEASURED)})


_FACTS = [item.name for item in fields(DeviceModel) if item.name not in ("parts", "origins", "tunables")]


def model_of(answers: Answers) -> DeviceModel:
    """Return the model of a device that gave these answers."""
    name = f"{answers.name} {answers.board}".lower()
    makers = (_first(_VENDORS, text) for text in (name, answers.vendor.lower()))
    vendor = next((maker for maker in makers if maker), None)
    row = architectures().get(_architecture(answers, name, vendor) or "")
    known = _Facts()
    known.put(ASSUMED, _ASSUMED_CPU if answers.is_host else _ASSUMED_GPU, caches=(), half=False, tensor_types=())
    known.put(ASSUMED, units_of_core=1)
    known.put(DRIVER, _answered(answers))
    known.put(DRIVER, vendor=vendor)
    if row is not None:
        known.put(TABLE, _published(row, answers))
    known.put(TABLE, bandwidth=_bandwidth(name))
    unknown = dict.fromkeys(_FACTS)
    return DeviceModel(**{**unknown, **known.values, "origins": known.origins})


class _Facts:
    """Facts as they come in: the later wins, and None is not known."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def put(self, origin: str, facts: Mapping[str, object] | None = None, **more: object) -> None:
        found = {name: value for name, value in {**(facts or {}), **more}.items() if value is not None}
        self.values |= found
        self.origins |= dict.fromkeys(found, origin)


def _answered(answers: Answers) -> dict[str, object]:
    """The facts among a driver's answers."""
    local_is_cache = answers.is_host or answers.local_is_cache
    return {
        "name": answers.name,
        "compiler": next((who for word, who in _COMPILERS if word in answers.platform.lower()), None),
        "clock": 1e6 * answers.clock or None,
        "is_host": answers.is_host,
        "is_simt": not answers.is_host,
        "lanes": (answers.vector_width if answers.is_host else answers.lanes) or None,
        "compute_units": answers.compute_units,
        "group_size": answers.group_size,
        "local_memory": answers.local_memory,
        "local_is_cache": local_is_cache,
        "banks": 1 if local_is_cache else None,
        "cache_line": answers.cache_line or None,
        "caches": answers.caches or None,
        # NOTE: Intel's CPU compiler offers fp16 wherever it runs; only processors of late have the instructions.
        "half": (answers.half and not answers.is_host) or None,
        "capability": answers.capability,
        "tensor_types": ("bf16",) if answers.is_host and answers.matrix_unit else None,
        "matrix_unit": (answers.is_host and answers.matrix_unit) or None,
    }


def _published(row: Architecture, answers: Answers) -> dict[str, object]:
    """The facts that the table has of an architecture."""
    on_gpu = not answers.is_host
    speed = 2e6 * (row.multiply_adds or 0) * answers.compute_units * answers.clock
    return {
        "architecture": row.name,
        "vendor": row.vendor,
        "flops": speed or None,
        # Arm's Midgard has vectors, but no lanes.
        "is_simt": None if row.name != "midgard" else False,
        "lanes": row.lanes,
        "registers": row.registers,
        "register_file": row.register_file if on_gpu else 4 * row.lanes * row.registers,
        "units_of_core": row.units_of_core,
        "core_memory": row.local_memory,
        "local_is_cache": True if row.local_is_cache and on_gpu else None,
        "banks": 1 if row.local_is_cache and on_gpu else row.banks,
        "cache_line": None if answers.cache_line else row.cache_line,
        "caches": None if row.first_cache is None else (row.first_cache,),
        "half": row.half or None,
        "tensor_types": row.tensor_types or None,
    }


def _architecture(answers: Answers, name: str, vendor: str | None) -> str | None:
    """The name of a device's row in the table."""
    if answers.is_host:
        is_arm = answers.machine.lower() in ("aarch64", "arm64") or vendor in ("arm", "apple")
        widths = {4: "neon", 8: "sve256", 16: "sve512"} if is_arm else {4: "sse", 8: "avx2", 16: "avx512"}
        return widths.get(answers.vector_width)
    if answers.capability is not None:
        return next((row for least, row in CAPABILITIES if answers.capability >= least), None)
    return _first([item for item in NAMES if vendor in (None, architectures()[item[1]].vendor)], name)


def _first(patterns: Iterable[tuple[str, str]], text: str) -> str | None:
    return next((found for pattern, found in patterns if re.search(pattern, text)), None)


def _bandwidth(name: str) -> float | None:
    return next((gigabytes * 1e9 for part, gigabytes in BANDWIDTHS if part in name), None)


#: Devices of which only the kind is known, for plans without one; the GPU has as many registers, and as much local
#: memory, as most have.
HOST = model_of(Answers("cpu", is_host=True, compute_units=64))
GENERIC = {
    "cpu": HOST,
    "gpu": replace(model_of(Answers("gpu", compute_units=64, local_memory=48 << 10)), registers=255),
}


def facts(model: DeviceModel) -> list[tuple[str, object, str]]:
    """Every fact of a model: its name, its value, and where it comes from ("" for what is not known)."""
    return [(name, getattr(model, name), model.origins.get(name, "")) for name in _FACTS]
