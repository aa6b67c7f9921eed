"""A device that remembers which kernels were built on it."""

from __future__ import annotations

from functools import cache
from typing import Any

from blobnet.device import Device, DeviceInfo


class RecordingDevice(Device):
    """A device that remembers the entries of the kernels that were made on it."""

    def __init__(self, info: DeviceInfo | str | None = None) -> None:
        super().__init__(info)
        self.entries: set[str] = set()

    def kernel(self, source: str, entry: str, what: str) -> Any:
        kernel = super().kernel(source, entry, what)
        self.entries.add(entry)
        return kernel


@cache
def recording_device(name: str | None = None) -> RecordingDevice:
    """The one device of this name that all tests share."""
    return RecordingDevice(name)
