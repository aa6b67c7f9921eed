"""What the compiler needs to know of a device."""

from __future__ import annotations

from dataclasses import dataclass

from blobnet.device_model import DeviceModel


@dataclass(frozen=True)
class Hardware:
    """Facts about a device.

    Args:
        vectors: whether a work-item computes with vectors by itself (CPUs); else work-items are lanes (GPUs).
        lanes: floats that an instruction computes on: of a CPU's vectors, or work-items of a warp.
        registers: that a work-item has: vectors of a CPU, floats of a GPU.
        compute_units: that run side by side.
        local_memory: bytes that a group may have.
        most_threads: work-items that a group may have.
        cache_line: bytes that memory moves at least.
        caches: bytes of a compute unit's first and second cache, and of the last one.
        resident: groups' work-items that a compute unit keeps under way, to hide how long memory takes.
    """

    vectors: bool
    lanes: int
    registers: int
    compute_units: int
    local_memory: int
    most_threads: int
    cache_line: int
    caches: tuple[int, int, int]
    resident: int = 1

    @classmethod
    def of(cls, model: DeviceModel) -> Hardware:
        """The facts of a device."""
        if not model.items_are_lanes:
            return cls.cpu(model.compute_units, model.lanes)
        return cls.gpu(model.compute_units, model.local_memory, model.group_size)

    @classmethod
    def cpu(cls, compute_units: int, lanes: int = 16) -> Hardware:
        """A CPU with vectors of so many floats; where they are of 256 bits or the driver does not say, 16 registers."""
        known = lanes if lanes in (4, 8, 16) else 8
        registers = 16 if known == 8 else 32
        return cls(True, known, registers, compute_units, 1 << 15, 1, 64, (1 << 15, 1 << 20, 1 << 25))

    @classmethod
    def gpu(cls, compute_units: int, local_memory: int, most_threads: int) -> Hardware:
        """A GPU whose work-items have up to 255 registers."""
        return cls(
            False, 32, 255, compute_units, local_memory, most_threads, 128, (1 << 17, 1 << 18, 1 << 25), resident=2048
        )
