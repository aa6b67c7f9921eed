"""OpenCL: a device is its discovery, queue, memory and programs (a module each), and what was measured on it.

The only package that imports pyopencl. Nothing here knows layers or networks.
"""

from typing import Any

#: Public names, which are imported when they are used: what is measured (blobnet.device.tuning) needs no pyopencl.
__all__ = ["Device", "choose", "devices"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from blobnet.device import device, discovery

    return getattr(device if name == "Device" else discovery, name)
