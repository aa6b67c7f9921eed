"""The devices that tests share, and which kernels were built on any device."""

from __future__ import annotations

from functools import cache
from typing import Any

from blobnet.device import Device

#: The entries of all kernels that tests of this process have made.
BUILT: set[str] = set()


@cache
def shared_device(name: str | None) -> Device:
    """The one device of this name that all tests share, with its programs."""
    return Device(name)


def remember_kernels() -> None:
    """From now on, BUILT gets the entry of every kernel that is made on any device."""
    make = Device.kernel

    def kernel(self: Device, source: str, entry: str, what: str) -> Any:
        result = make(self, source, entry, what)
        BUILT.add(entry)
        return result

    Device.kernel = kernel  # type: ignore[method-assign]


remember_kernels()
